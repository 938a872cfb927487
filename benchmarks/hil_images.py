"""Image batches against LeRobot's replay buffer, and camera pictures against gym_hil's renderer, in alternation.

Both peers run their own code: `lerobot.rl.buffer.ReplayBuffer` with its defaults (float pictures, random shift), and
`mujoco.Renderer` used as `gym_hil.mujoco_gym_env` uses it, on gym_hil's own scene. A peer that is not installed is
left out.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.harness import compare
from robot_rl.data.hil_record import ControlStep
from robot_rl.human.memory import HilMemory
from robot_rl.types import IOSpec

CAMERAS, SIZE, STATE, ACTIONS = ("front", "wrist"), 128, 18, 4


def measure(quick: bool = False, rows: int = 800, batch: int = 256, repeats: int = 15) -> list[dict[str, Any]]:
    """One row per measurement: medians of processor time [ms], ours and the peer's, and their ratio.

    Args:
        quick: five repetitions and small buffers.
        rows: steps in the buffers.
        batch: rows of a batch, each with two pictures before and two after.
        repeats: alternations.
    """
    rows, repeats = (min(rows, 300), 5) if quick else (rows, repeats)
    return [*_batches(rows, batch, repeats), *_pictures(repeats)]


def _batches(rows: int, batch: int, repeats: int) -> list[dict[str, Any]]:
    ours = _our_memory(rows)
    random_shift: Any = importlib.import_module("robot_rl.policies.nets.image").random_shift  # what our learners use
    view, noise = ours.views["online"], torch.Generator().manual_seed(0)
    images = [f"image.{name}" for name in CAMERAS]

    def draw() -> Any:
        return view.sample(batch)

    def shift(*, real: bool = False) -> Any:
        """What the learner's encoder gets: shifted, and with `real` as floats like the peer's."""
        found = view.sample(batch)
        out = [random_shift(part[key], 4, noise) for part in (found.obs, found.next_obs) for key in images]
        return [picture.float() for picture in out] if real else out

    peer = _their_buffer(rows)
    if peer is None:
        return [{"what": "image batches", "left out": "lerobot is not installed (pip install --no-deps lerobot)"}]
    plain, shifting, how = peer
    pairs: list[tuple[str, Callable[[], Any], Callable[[], Any]]] = [
        ("batch, no augmentation", draw, lambda: plain.sample(batch)),
        (f"batch with random shift ({how})", shift, lambda: shifting.sample(batch)),
        (f"the same, ours as floats ({how})", lambda: shift(real=True), lambda: shifting.sample(batch)),
    ]
    return [{**_compare(name, mine, theirs, repeats), "batch": batch} for name, mine, theirs in pairs]


def _our_memory(rows: int) -> HilMemory:
    pictures: dict[str, tuple[tuple[int, ...], str]] = {f"image.{name}": ((SIZE, SIZE, 3), "uint8") for name in CAMERAS}
    names = tuple(f"a{i}" for i in range(ACTIONS))
    ends = (1.0,) * ACTIONS
    io = IOSpec({"state": ((STATE,), "float32"), **pictures}, names, (-1.0,) * ACTIONS, ends, ("1",) * ACTIONS, 10.0)
    memory, rng = HilMemory(io, rows), np.random.default_rng(0)

    def look() -> dict[str, np.ndarray]:
        seen = {key: rng.integers(0, 256, shape, np.uint8) for key, (shape, _) in pictures.items()}
        return {"state": rng.standard_normal(STATE).astype(np.float32), **seen}

    here, action = look(), np.zeros(ACTIONS, np.float32)
    for _ in range(rows):
        there = look()
        memory.extend([ControlStep(here, there, action, action, action, action)])
        here = there
    return memory


def _their_buffer(rows: int) -> tuple[Any, Any, str] | None:
    """LeRobot's buffer without and with its augmentation, and how that runs; None where it is not installed."""
    if importlib.util.find_spec("lerobot") is None:
        return None
    name = "lerobot.datasets.lerobot_dataset"
    if importlib.util.find_spec("datasets") is None and name not in sys.modules:
        # the buffer's file imports the dataset class for conversions that are not measured here
        empty = types.ModuleType(name)
        empty.LeRobotDataset = object  # type: ignore[attr-defined]
        sys.modules[name] = empty
    kind: Any = importlib.import_module("lerobot.rl.buffer")
    keys = [f"observation.images.{camera}" for camera in CAMERAS]
    # as its learner makes it: optimize_memory=True keeps pictures once
    plain = kind.ReplayBuffer(rows, device="cpu", state_keys=keys, use_drq=False, optimize_memory=True)
    rng = np.random.default_rng(0)
    for _ in range(rows):
        state = {key: torch.from_numpy(rng.integers(0, 256, (1, 3, SIZE, SIZE)).astype(np.float32)) for key in keys}
        state["observation.state"] = torch.zeros(1, STATE)
        plain.add(state, torch.zeros(1, ACTIONS), 0.0, state, False, False)
    shifting, how = _augment(kind, plain, rows, keys), "its shift compiled"
    try:
        shifting.sample(8)
    except Exception:  # no compiler on this machine: the same function without torch.compile
        shifting.image_augmentation_function = kind.random_shift
        shifting.sample(8)
        how = "its shift not compiled: no compiler here"
    return plain, shifting, how


def _augment(kind: Any, plain: Any, rows: int, keys: list[str]) -> Any:
    """The same buffer with the default augmentation, on the same memory."""
    buffer = kind.ReplayBuffer(rows, device="cpu", state_keys=keys, optimize_memory=True)
    augment = buffer.image_augmentation_function
    buffer.__dict__.update(plain.__dict__)
    buffer.use_drq, buffer.image_augmentation_function = True, augment
    return buffer


def _pictures(repeats: int) -> list[dict[str, Any]]:
    """Two cameras of gym_hil's scene, its own way and ours."""
    found = importlib.util.find_spec("gym_hil")
    if found is None or found.origin is None:
        return [{"what": "camera pictures", "left out": "gym_hil is not installed (pip install gym-hil)"}]
    render: Any = importlib.import_module(
        "robot_rl.sim.render"
    )  # chooses the OpenGL platform before mujoco is imported
    mujoco: Any = importlib.import_module("mujoco")
    path = str(Path(found.origin).parent / "assets" / "scene.xml")
    names = ["front", "handcam_rgb"]
    # theirs, as FrankaGymEnv makes and uses it
    model = mujoco.MjModel.from_xml_path(path)
    model.vis.global_.offwidth = model.vis.global_.offheight = SIZE
    data = mujoco.MjData(model)
    data.qpos[:7] = (0, 0.195, 0, -2.43, 0, 2.62, 0.785)
    mujoco.mj_forward(model, data)
    viewer = mujoco.Renderer(model, height=SIZE, width=SIZE)
    qpos = np.array(data.qpos)[None]
    ours = {
        quality: render.Cameras(mujoco.MjModel.from_xml_path(path), SIZE, SIZE, quality=quality)
        for quality in ("full", "fast")
    }

    def theirs() -> list[np.ndarray]:
        out = []
        for name in names:
            viewer.update_scene(data, camera=model.camera(name).id)
            out.append(viewer.render())
        return out

    rows = []
    for quality, cameras in ours.items():
        seen = cameras.render(qpos, names)
        apart = max(float(np.abs(a.astype(float) - seen[name][0]).mean()) for a, name in zip(theirs(), names))
        what = f"two pictures of {SIZE} x {SIZE}, camera_quality={quality}"
        row = _compare(what, lambda cameras=cameras: cameras.render(qpos, names), theirs, repeats)
        rows.append({**row, "mean difference of the pictures (of 255)": apart})
        cameras.close()
    viewer.close()
    return rows


def _compare(what: str, mine: Callable[[], Any], theirs: Callable[[], Any], repeats: int) -> dict[str, Any]:
    times = compare({"ours": mine, "theirs": theirs}, repeats, warm=1, clock=time.process_time)
    ours, peer = (1e3 * float(np.median(seconds)) for seconds in times.values())
    return {"what": what, "ours_ms": ours, "theirs_ms": peer, "ratio": peer / max(ours, 1e-9)}
