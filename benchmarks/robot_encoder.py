"""Train what `encoder=robot` sees with, on pictures of our worlds in known looks, and measure it in unknown ones.

    python -m benchmarks.robot_encoder seed=0                      # the file and the card of the package
    python -m benchmarks.robot_encoder out=/tmp/mine.safetensors   # another file; encoder.path= takes it

Scripted experts with more and less noise drive the worlds; where things are is the simulator's truth. Each state is
drawn in a look of its own by cameras in many places, and one net for each kind of camera learns heat maps of the
points.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.functional import affine_grid, avg_pool2d, grid_sample, smooth_l1_loss

from benchmarks.sight import distances
from robot_rl import api
from robot_rl.extras import require
from robot_rl.policies.encoders.points_labels import BESIDE, Places
from robot_rl.policies.encoders.robot import RobotEncoder, RobotEncoderOptions
from robot_rl.policies.nets.heat_maps import HeatMaps, disturb, find_points, heat_loss
from robot_rl.policies.nets.pinhole import project
from robot_rl.policies.nets.point_weights import FORMAT, WEIGHTS
from robot_rl.sim.eyes import Painters, calibrate
from robot_rl.sim.look import Look, dress
from robot_rl.sim.mujoco_physics import mujoco
from robot_rl.sim.world import parts_of

SIZE = 64
VIEWS = 2
"""Of each camera in a scene."""
SHOWS = {"ball": ("pick", "pick", "reach"), "hole": ("insert",)}
"""What is looked for -> worlds that teach it, each with as many scenes; one that stands twice has twice as many."""
CAMERAS = {"ball": {"world": ("front", "side")}, "hole": {"world": ("front", "side"), "tool": ("wrist",)}}
"""What is looked for -> what carries the cameras -> their names; each makes a net."""
POINTS = {"ball": Places(grips=True, turns=False), "hole": Places(grips=False, turns=True)}
MIX = {"ball": 0.1, "hole": 0.4}
"""Of the pictures' colours (`spoil`): cubes and balls are known by theirs, holes are not."""
LONGER = {"ball": 1.6, "hole": 1.0}
"""Times the steps of a training."""
HIDES = {"ball": True, "hole": False}
"""Whether a point that something hides is one to doubt; where a hole is its block tells, too. Such pictures are also
warped, and patches laid on them: holes were seen less well for it."""
WARPED = 0.7
"""Share of them that are."""
ASIDE = 0.008
"""Metres from the middle of a thing at which rays are tried, too."""
HIDDEN = 5.0
"""Weight of points that are not seen, of which `heat_loss` takes a tenth: so many times that."""
SEEN = {"cameras": "own", "proprio": "own", "camera_size": [SIZE, SIZE], "camera_quality": "fast", "supersample": 2}


@dataclass(frozen=True)
class TrainOptions:
    """Of a training; `main` takes them as words."""

    seed: int = 0
    scenes: int = 3200
    """Of each kind of net, each with a look and a state of its own."""
    steps: int = 3000
    """Of each net, batches of 32; times `LONGER`."""
    width: int = 24
    further: int = 2
    """See `HeatMaps`."""
    lr: float = 2e-3
    precise: float = 2.0
    """Weight of the error in pixels beside the heat."""
    out: str = str(WEIGHTS)


@dataclass
class Pictures:
    """n pictures with P points.

    Attributes:
        pixels: (n, SIZE, SIZE, 3) uint8.
        places: (n, P, 2) where points fall.
        inside: (n, P) they are in the picture, and, where `HIDES` says so, not hidden.
        known: (n, P) 0 for points that the world does not have.
    """

    pixels: torch.Tensor
    places: torch.Tensor
    inside: torch.Tensor
    known: torch.Tensor


def labels(marks: Mapping[str, np.ndarray], places: Places) -> np.ndarray:
    """(N, P, 3) the points of landmarks (N, 4); NaN for those that a world does not have."""
    goal = marks["goal"]
    along = BESIDE * np.stack([np.cos(goal[:, 3]), np.sin(goal[:, 3]), 0.0 * goal[:, 3]], 1)
    there = {"goal": goal[:, :3], "goal_before": goal[:, :3] + along, "goal_behind": goal[:, :3] - along}
    there["object"] = marks["object"][:, :3] if "object" in marks else np.full_like(there["goal"], np.nan)
    return np.stack([there[name] for name in places.names], 1)


def drive(world: str, count: int, seed: int) -> dict[str, np.ndarray]:
    """States that experts with noise of many sizes pass through: qpos, tool (n, 4), goal of the marker, landmarks."""
    env: Any = api.make(world, 50, seed=seed, proprio="own")
    rng = np.random.default_rng(seed)
    obs, _ = env.reset(seed=seed)
    noise = rng.choice((0.05, 0.2, 0.5, 1.5), 50)[:, None]
    rows: list[dict[str, np.ndarray]] = []
    while len(rows) * 50 < count:
        action = env.expert(obs)
        for _ in range(2):
            obs, *_ = env.step(np.clip(action + noise * rng.standard_normal(action.shape), -1.0, 1.0))
            action = env.expert(obs)
        marks = env.world.landmarks(env._view)
        marker = {"marker": np.array(env._view.task["goal"])} if "goal" in env._view.task else {}
        rows.append({**marks, **marker, "qpos": np.array(env.physics.qpos), "tool": np.array(obs["tool"])})
    env.close()
    order = rng.permutation(50 * len(rows))[:count]
    return {key: np.concatenate([row[key] for row in rows])[order] for key in rows[0]}


def draw(world: str, number: int, scenes: int, o: TrainOptions, kind: str) -> dict[str, Pictures]:
    """Pictures of a world, a new scene for each state, seen by `VIEWS` cameras near each of the world's.

    Args:
        world: its name.
        number: of the part; others have other states and looks.
        scenes: how many.
        o: of the training.
        kind: what is looked for.

    Returns:
        What carries the cameras -> pictures.
    """
    made: Any = api.make(world, 1, seed=0)
    states = drive(world, scenes, o.seed + 1000 * number)
    where = torch.from_numpy(labels(states, POINTS[kind])).float()
    tools = torch.from_numpy(states["tool"]).float()
    text = made.world.mjcf()
    painters: Painters | None = None
    found: dict[str, list[tuple[torch.Tensor, ...]]] = {mount: [] for mount in CAMERAS[kind]}
    for i in range(scenes):
        look = Look(seed=1_000_000 * (10 * o.seed + number + 1) + i, range="known")
        model = mujoco.MjModel.from_xml_string(dress(text, look, VIEWS))
        if painters is None:
            painters = Painters(model, parts_of(made.world).markers)
        painters.show(model)
        at = slice(i, i + 1)
        known = (~where[at].isnan().any(-1)).float()
        for mount, cameras in CAMERAS[kind].items():
            names = [f"{name}_{view}" for name in cameras for view in range(VIEWS)]
            seen = calibrate(made.world, model, names, (SIZE, SIZE))
            task = {"goal": states["marker"][at]} if "marker" in states else {}
            shown = painters.paint(states["qpos"][at], task, names, (SIZE, SIZE), quality="fast", supersample=2)
            for name in names:
                pixel, inside = project(seen[f"image.{name}"], tools[at], where[at].nan_to_num())
                if HIDES[kind]:
                    inside = inside & visible(model, states["qpos"][i], name, where[i].numpy(), POINTS[kind].names)
                found[mount].append((torch.from_numpy(shown[name]), pixel, inside, known))
    assert painters is not None
    painters.close()
    made.close()
    return {mount: Pictures(*(torch.cat(part) for part in zip(*rows))) for mount, rows in found.items()}


def visible(model: Any, qpos: np.ndarray, camera: str, points: np.ndarray, names: Sequence[str]) -> torch.Tensor:
    """(P,) bool: of five rays at the middle of a thing and about it, two or more meet nothing else before it."""
    data = mujoco.MjData(model)
    data.qpos[:] = qpos
    mujoco.mj_forward(model, data)
    eye = data.cam(camera)
    right, up = eye.xmat.reshape(3, 3).T[:2]
    free = []
    for point, name in zip(points, names):
        count = 0
        if np.isfinite(point).all():
            body = model.geom("cube" if name == "object" else name).bodyid[0]
            for aside in (0.0 * up, up, -up, right, -right):
                way = point + ASIDE * aside - eye.xpos
                far = np.linalg.norm(way)
                met = mujoco.mj_ray(model, data, eye.xpos, way / far, None, 1, body, None)
                count += met < 0.0 or met > far - ASIDE
        free.append(count >= 2)
    return torch.tensor(free)


def warp(
    pictures: torch.Tensor, places: torch.Tensor, share: float, generator: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor]:
    """Floats (B, H, W, 3) and places in them (B, P, 2), a share of them turned, scaled and stretched."""
    batch = len(pictures)
    draws = 2.0 * torch.rand((3, batch), generator=generator) - 1.0
    draws = draws * (torch.rand(batch, generator=generator) < share)
    angle, size, stretch = 0.15 * draws[0], (0.2 * draws[1]).exp(), (0.1 * draws[2]).exp()
    cosine, sine = angle.cos() * size, angle.sin() * size
    turn = torch.stack([torch.stack([cosine * stretch, -sine], -1), torch.stack([sine * stretch, cosine], -1)], -2)
    back = torch.cat([torch.linalg.inv(turn), torch.zeros(batch, 2, 1)], 2)
    channels = pictures.permute(0, 3, 1, 2)
    moved = grid_sample(
        channels,
        affine_grid(back, list(channels.shape), align_corners=False),
        padding_mode="border",
        align_corners=False,
    )
    return moved.permute(0, 2, 3, 1), torch.einsum("bij,bpj->bpi", turn, places - 0.5 * SIZE) + 0.5 * SIZE


def cover(
    pictures: torch.Tensor, places: torch.Tensor, generator: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor]:
    """Floats (B, H, W, 3) with up to three patches on them, and (B, P) bool: no patch lies on a place."""
    batch = len(pictures)
    cell = torch.arange(SIZE) + 0.5
    free = torch.ones(places.shape[:2], dtype=torch.bool)
    for _ in range(3):
        low = torch.rand((batch, 2), generator=generator) * SIZE
        size = 4.0 + 12.0 * torch.rand((batch, 2), generator=generator)
        size = size * (torch.rand((batch, 1), generator=generator) < 0.4)
        inside = (cell >= low[..., None]) & (cell < (low + size)[..., None])
        patch = inside[:, 1, :, None] & inside[:, 0, None, :]
        colour = torch.rand((batch, 1, 1, 3), generator=generator) - 0.5
        pictures = torch.where(patch[..., None], colour, pictures)
        free = free & ~((places >= low[:, None]) & (places < (low + size)[:, None])).all(-1)
    return pictures, free


def spoil(pictures: torch.Tensor, mix: float, generator: torch.Generator) -> torch.Tensor:
    """Floats (B, H, W, 3) as a worse camera would give them: out of focus, of another exposure and colour, grainy.

    `mix` is the spread of what each colour takes of each: with 0.1 hues move by up to some 20 degrees.
    """
    batch = len(pictures)
    share, strength = torch.rand((2, batch, 1, 1, 1), generator=generator)
    soft = avg_pool2d(pictures.permute(0, 3, 1, 2), 3, 1, 1, count_include_pad=False).permute(0, 2, 3, 1)
    out = torch.lerp(pictures, soft, (1.6 * share - 0.6).clamp_min(0.0))
    gain = 1.0 + 0.15 * (2.0 * torch.rand((batch, 1, 1, 3), generator=generator) - 1.0)
    gain = gain * (0.6 + 0.7 * torch.rand((batch, 1, 1, 1), generator=generator))
    out = torch.einsum("bhwc,bcd->bhwd", out, torch.eye(3) + mix * torch.randn((batch, 3, 3), generator=generator))
    grain = torch.randn(pictures.shape, generator=generator)
    return (out + 0.5) * gain - 0.5 + 0.04 * strength * grain


def train(name: str, pictures: Pictures, o: TrainOptions) -> HeatMaps:
    """One net."""
    generator = torch.Generator().manual_seed(o.seed)
    kind = name.split(".")[0]
    steps = round(o.steps * LONGER[kind])
    net = HeatMaps(pictures.places.shape[1], generator, o.width, o.further)
    optimiser = torch.optim.Adam(net.parameters(), lr=o.lr)
    begun, losses = time.process_time(), []
    for step in range(steps):
        for group in optimiser.param_groups:
            group["lr"] = o.lr * min(1.0, step / 100) * 0.5 * (1.0 + math.cos(math.pi * step / steps))
        pick = torch.randint(len(pictures.pixels), (32,), generator=generator)
        moved, shift = disturb(pictures.pixels[pick], 6, generator)
        places, inside = pictures.places[pick] + shift[:, None], pictures.inside[pick]
        if HIDES[kind]:
            moved, places = warp(moved, places, WARPED, generator)
            moved, free = cover(moved, places, generator)
            inside = inside & free
        inside = inside & ((places > 0.0) & (places < SIZE)).all(-1)
        logits = net(spoil(moved, MIX[kind], generator))
        doubt = torch.where(inside, 1.0, HIDDEN if HIDES[kind] else 1.0)
        loss = heat_loss(logits, places, inside, pictures.known[pick] * doubt)
        near = smooth_l1_loss(find_points(logits)[0], places, reduction="none", beta=0.5).mean(-1).clamp_max(4.0)
        weight = pictures.known[pick] * inside
        loss = loss + o.precise * (near * weight).sum() / weight.sum().clamp_min(1.0)
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 5.0)
        optimiser.step()
        losses.append(float(loss.detach()))
        if step % 500 == 499:
            told = f"{name} {step + 1}: loss {np.mean(losses[-500:]):.3f}, {time.process_time() - begun:.0f} s"
            sys.stderr.write(told + "\n")
    return net.eval()


def judge(world: str, path: str, kind: str, scenes: int, seed: int = 90_000) -> dict[str, float]:
    """Errors, median and 90th percentile [mm, mrad], over an episode of the expert in each of many fresh scenes.

    Their looks are known or unknown ones, or that of the world as it is ("plain"). Of a hole: across it, where the end
    of the peg is near its axis (`benchmarks.sight`).
    """
    far: dict[str, list[float]] = {}
    for scene in range(scenes):
        look = None if kind == "plain" else {"seed": seed + scene, "range": kind}
        env: Any = api.make(world, 1, seed=seed + scene, **SEEN, look=look)
        encoder = RobotEncoder(RobotEncoderOptions(path=path), env.io)
        obs, _ = env.reset(seed=seed + scene)
        trail = None
        for _ in range(env.world.episode_steps):
            sight, trail = encoder.look(obs, trail)
            for key, value in distances(env, obs, sight[0].numpy()).items():
                far.setdefault(key, []).append(value)
            obs, _, _, truncated, info = env.step(env.expert(obs))
            if truncated[0] or info["success"][0]:
                break
        env.close()
    told = {}
    for key, values in far.items():
        told |= {key: round(float(np.median(values)), 2), f"{key}_p90": round(float(np.percentile(values, 90)), 2)}
    return told


def main(words: list[str]) -> None:
    """Train, save, judge, and write the card beside the weights."""
    given = dict(word.split("=", 1) for word in words)
    kinds = TrainOptions.__dataclass_fields__
    if unknown := set(given) - set(kinds):
        raise SystemExit(f"unknown: {', '.join(sorted(unknown))}; expected {', '.join(kinds)}")
    o = TrainOptions(**{key: type(kinds[key].default)(value) for key, value in given.items()})
    torch.set_num_threads(1)
    begun = time.process_time()
    tensors: dict[str, torch.Tensor] = {}
    head = {"format": FORMAT, "size": str(SIZE)}
    frames = {}
    for kind, worlds in SHOWS.items():
        parts = [draw(world, i, o.scenes // len(worlds), o, kind) for i, world in enumerate(worlds)]
        for mount in CAMERAS[kind]:
            name = f"{kind}.{mount}"
            rows = [vars(part[mount]) for part in parts]
            pictures = Pictures(**{key: torch.cat([row[key] for row in rows]) for key in rows[0]})
            frames[name] = len(pictures.pixels)
            sys.stderr.write(f"{name}: {frames[name]} pictures, {time.process_time() - begun:.0f} s\n")
            net = train(name, pictures, o)
            tensors |= {f"{name}.{key}": value.half() for key, value in net.state_dict().items()}
            head[name] = ",".join(POINTS[kind].names)
    Path(o.out).parent.mkdir(parents=True, exist_ok=True)
    require("safetensors.torch").save_file(tensors, o.out, head)
    spent = time.process_time() - begun
    told = {
        kind: {world: judge(world, o.out, kind, 20) for world in ("pick", "insert", "reach")}
        for kind in ("plain", "known", "unknown")
    }
    card = {
        "what": "nets that find object, goal and hole in pictures of reach, pick and insert (encoder=robot)",
        "command": " ".join(
            ["python -m benchmarks.robot_encoder", *(word for word in words if not word.startswith("out="))]
        ),
        "options": {key: value for key, value in vars(o).items() if key != "out"},
        "pictures": frames,
        "weights": sum(value.numel() for value in tensors.values()),
        "training_cpu_seconds": round(spent),
        "errors_in_fresh_scenes": told,
        "errors_are": "median and 90th percentile over an episode of the expert in each of 20 scenes, cameras=own",
    }
    Path(o.out).with_suffix(".json").write_text(json.dumps(card, indent=1) + "\n")
    sys.stderr.write(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
