"""Which property of an unknown look costs how much of what `encoder=robot` sees: one at a time, the rest as known.

    python -m benchmarks.looks world=insert             # a table: what is unknown -> errors of each point
    python -m benchmarks.looks world=pick path=/tmp/mine.safetensors scenes=5

Looks have seeds of their own, and an expert drives. The calibration is that of the scene, so that errors in space come
from errors in the pictures alone; pictures in which something hides an object or a goal are counted apart.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.robot_encoder import SEEN, labels, visible
from benchmarks.sight import NEAR
from robot_rl import api
from robot_rl.policies.encoders.points import kind_of
from robot_rl.policies.encoders.points_labels import Places
from robot_rl.policies.encoders.robot import RobotEncoder, RobotEncoderOptions
from robot_rl.policies.nets.heat_maps import HeatMaps, find_points
from robot_rl.policies.nets.pinhole import project
from robot_rl.policies.nets.point_weights import WEIGHTS, Weights

PARTS = {
    "pick": ("none", "arm", "colours", "textures", "task", "lamps", "sizes", "things", "cameras", "all"),
    "insert": ("none", "arm", "colours", "textures", "lamps", "sizes", "things", "cameras", "wrist", "all"),
}
NOTHING = {"pick": "wrist", "insert": "task"}
"""Of which a world has nothing: "none" has the same looks as the others."""
WRONG = 6.0
"""Pixels off at which a peak is that of another thing."""
Errors = dict[str, list[float]]


@dataclass(frozen=True)
class LookOptions:
    """Of a measurement; `main` takes them as words."""

    world: str = "insert"
    path: str = str(WEIGHTS)
    scenes: int = 20
    """Looks for each property."""
    episodes: int = 2
    """In each look."""
    seed: int = 60_000
    """Of the first look."""
    parts: str = ""
    """Which properties, separated by commas; left out = all."""


def measure(o: LookOptions, part: str) -> Errors:
    """All errors where one property of the looks is unknown.

    Returns:
        "<point> mm" in space, of the running estimate of what stands still, else of now; of a hole across it, where
        the end of the peg is near its axis. "<point>, <camera>" px in a picture that shows it, "<point> hidden" px in
        those in which something else is before it. "<point> of a look" mm: the median over a look's episodes as a
        vector, its length; what a policy that learns in this look alone can get used to.
    """
    found: Errors = defaultdict(list)
    weights = Weights(Path(o.path))
    for seed in range(o.seed, o.seed + o.scenes):
        look = {"seed": seed, "part": NOTHING[o.world] if part == "none" else part}
        env: Any = api.make(o.world, 1, seed=seed, **SEEN, look=look)
        encoder = RobotEncoder(RobotEncoderOptions(path=o.path), env.io)
        places, kind = encoder.places, kind_of(encoder.places.turns)
        nets = {key: weights.net(f"{kind}.{camera.mount}", places.names) for key, camera in env.io.calibration.items()}
        rows: dict[str, list[Tensor]] = defaultdict(list)
        for episode in range(o.episodes):
            obs, _ = env.reset(seed=seed + 1000 * episode)
            trail = None
            for _ in range(env.world.episode_steps):
                tool = torch.from_numpy(obs["tool"])
                truth = torch.from_numpy(labels(env.world.landmarks(env._view), places)).float()
                now, sure = encoder.see(obs, tool)
                trail = encoder.follow(now, sure, trail)
                now[:, places.still] = trail[0]
                if not places.turns or (tool - truth[:, 0])[0, :2].norm() < NEAR:
                    for i, name in enumerate(places.names[: 1 + places.grips]):
                        rows[name].append(1e3 * (now - truth)[0, i, : 2 if places.turns else 3])
                in_pictures(found, env, nets, places, obs)
                obs, _, _, truncated, info = env.step(env.expert(obs))
                if truncated[0] or info["success"][0]:
                    break
        for name, off in rows.items():
            found[f"{name} mm"] += torch.stack(off).norm(dim=-1).tolist()
            found[f"{name} of a look"].append(float(torch.stack(off).median(0).values.norm()))
        env.close()
    return found


def in_pictures(
    found: Errors, env: Any, nets: Mapping[str, HeatMaps], places: Places, obs: Mapping[str, np.ndarray]
) -> None:
    """Add the errors in an observation's pictures, pixels."""
    tool = torch.from_numpy(obs["tool"])
    truth = torch.from_numpy(labels(env.world.landmarks(env._view), places)).float()
    for key, net in nets.items():
        camera = key.removeprefix("image.")
        with torch.no_grad():
            pixel, _ = find_points(net(torch.from_numpy(obs[key])))
        mark, shown = project(env.io.calibration[key], tool, truth)
        free = shown[0]
        if places.grips:
            free = visible(env.physics.model, env.physics.qpos[0], camera, truth[0].numpy(), places.names)
        for i, name in enumerate(places.names[: 1 + places.grips]):
            if shown[0, i]:
                found[f"{name}, {camera}" if free[i] else f"{name} hidden"].append(float((pixel - mark)[0, i].norm()))


def table(o: LookOptions) -> str:
    """Rows of a table in Markdown: medians (90th percentiles), and for pictures the share of peaks elsewhere."""
    found = {part: measure(o, part) for part in (o.parts.split(",") if o.parts else PARTS[o.world])}
    keys = sorted({key for errors in found.values() for key in errors})
    lines = ["| unknown | " + " | ".join(keys) + " |", "|---" * (1 + len(keys)) + "|"]
    for part, errors in found.items():
        cells = []
        for key in keys:
            values = np.array(errors[key] or [np.nan])
            cell = f"{np.median(values):.2g} ({np.percentile(values, 90):.2g})"
            cells.append(cell if "mm" in key or "look" in key else f"{cell}, {np.mean(values > WRONG):.2f}")
        lines.append(f"| {part} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main(words: list[str]) -> None:
    """Measure and print."""
    given = dict(word.split("=", 1) for word in words)
    kinds = LookOptions.__dataclass_fields__
    if unknown := set(given) - set(kinds):
        raise SystemExit(f"unknown: {', '.join(sorted(unknown))}; expected {', '.join(kinds)}")
    o = LookOptions(**{key: type(kinds[key].default)(value) for key, value in given.items()})
    if o.world not in PARTS:
        raise SystemExit(f"world={o.world}, expected {' or '.join(PARTS)}")
    if unknown := set(o.parts.split(",")) - {"", *PARTS[o.world]}:
        raise SystemExit(f"parts={o.parts}: no {', '.join(sorted(unknown))}; expected {', '.join(PARTS[o.world])}")
    torch.set_num_threads(1)
    sys.stdout.write(table(o) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
