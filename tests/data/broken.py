"""Small logs of every format, sound ones, for tests to break."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from robot_rl.data.episode import episode_from_columns
from robot_rl.types import Episode


def hashes(path: Path) -> dict[str, str]:
    """SHA-256 of every file, to see that nothing was touched."""
    files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())
    return {str(p): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


def episode(number: int, steps: int, end: str = "timeout", *, size: int = 3, **meta: Any) -> Episode:
    rng = np.random.default_rng(number)
    state = np.cumsum(rng.normal(0, 0.1, (steps + 1, size)), 0).astype(np.float32)
    return episode_from_columns(
        {"state": state[:-1]},
        rng.uniform(-0.9, 0.9, (steps, 2)).astype(np.float32),
        rng.normal(size=steps).astype(np.float32),
        terminated=end == "terminal",
        truncated=end in ("timeout", "tail"),
        final_obs=None if end == "tail" else {"state": state[-1]},
        meta={**meta, **({"cut": True} if end == "tail" else {})},
    )


def toy() -> list[Episode]:
    """A terminal end, a time limit, and the tail of a file whose last observation is not known."""
    return [episode(1, 5, "terminal"), episode(2, 7), episode(3, 4, "tail")]


def d4rl_columns(steps: int = 600, length: int = 100, size: int = 3) -> dict[str, Any]:
    """Sound rows of a walk that is reset every `length` rows."""
    rng = np.random.default_rng(0)
    walk = rng.normal(0, 0.1, (steps, size))
    walk[::length] = 0.0
    for begin in range(0, steps, length):
        walk[begin : begin + length] = np.cumsum(walk[begin : begin + length], 0)
    timeouts = np.zeros(steps, bool)
    timeouts[length - 1 :: length] = True
    return {
        "observations": walk.astype(np.float32),
        "actions": rng.uniform(-0.9, 0.9, (steps, 2)).astype(np.float32),
        "rewards": rng.normal(size=steps).astype(np.float32),
        "terminals": np.zeros(steps, bool),
        "timeouts": timeouts,
    }


def hdf5(path: Path, data: dict[str, Any], **options: Any) -> Path:
    with h5py.File(path, "w") as file:
        for key, value in data.items():
            if value is not None:
                file.create_dataset(key, data=value, **(options if np.ndim(value) else {}))
    return path


def robomimic(path: Path, episodes: list[Episode], *, final: bool = True, images: bool = False) -> Path:
    with h5py.File(path, "w") as file:
        group = file.create_group("data")
        group.attrs["total"] = sum(len(e) for e in episodes)
        group.attrs["env_args"] = '{"env_name": "Lift", "env_type": 1, "env_kwargs": {}}'
        for i, e in enumerate(episodes):
            demo = group.create_group(f"demo_{i}")
            demo.attrs["num_samples"] = len(e)
            demo["actions"], demo["rewards"] = e.action, e.reward
            demo["dones"] = (np.arange(len(e)) == len(e) - 1).astype(int)
            demo["states"] = np.zeros((len(e), 9))
            demo["obs/object"], demo["obs/robot0_eef_pos"] = e.obs["state"][:-1, 1:], e.obs["state"][:-1, :1]
            if final:
                demo["next_obs/object"] = e.obs["state"][1:, 1:]
                demo["next_obs/robot0_eef_pos"] = e.obs["state"][1:, :1]
            if images:
                demo["obs/agentview_image"] = np.zeros((len(e), 8, 8, 3), np.uint8)
        file["mask/train"] = np.array([b"demo_0", b"demo_10"])
    return path
