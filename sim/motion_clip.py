"""Reference motions for imitation: read from a recording, cut to one cycle, resampled to the rate of control.

Two forms are read, neither of which can hold code:

- a store (`robot-rl data convert log.hdf5 out=log.store control_hz=...`): its observation "state" is positions without
  the root's place on the ground, then velocities, as Gymnasium's MuJoCo tasks give them, or all positions, velocities;
- an NPZ file with `qpos` (T, nq), `control_hz` () and, where known, `qvel` (T, nv) and `action` (T, A); with `stride`
  (2,) it is one closed cycle, as `save` writes it. A name without a suffix is a file of sim/assets/imitate.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from robot_rl.sim.world import ASSETS

if TYPE_CHECKING:
    from mujoco import MjModel

CLIPS = ASSETS / "imitate"
_CLIPPED = 10.0
"""Gymnasium clips the velocities of its Hopper and Walker2d to this size: what reached it was faster."""


@dataclass(frozen=True)
class Clip:
    """One reference motion.

    Attributes:
        qpos: (T, nq) positions, root first.
        qvel: (T, nv) velocities that agree with them.
        action: (T, A) in [-1, 1], what the recorded agent did; zeros where it is not known.
        control_hz: frames per second.
        loop: the frame behind the last one is the first, moved on by `stride`.
        stride: (2,) how far [m] the root travels in one cycle, x and y; zeros without `loop`.
    """

    qpos: np.ndarray
    qvel: np.ndarray
    action: np.ndarray
    control_hz: float
    loop: bool = False
    stride: np.ndarray = field(default_factory=lambda: np.zeros(2))

    def __post_init__(self) -> None:
        frames = {len(self.qpos), len(self.qvel), len(self.action)}
        if len(frames) != 1 or len(self.qpos) < 4:
            raise ValueError(
                f"a clip has {sorted(frames)} frames; expected the same number, at least 4, of each column"
            )
        for name, value in (("qpos", self.qpos), ("qvel", self.qvel), ("action", self.action)):
            if not np.isfinite(value).all():
                raise ValueError(f"{name} of the clip is not finite everywhere; leave out the broken frames")


def read(path: str, model: MjModel, *, actions: int, episode: int = 0) -> Clip:
    """Read a recording for a model.

    Args:
        path: a store's folder or an .npz file.
        model: MjModel of the body that moves.
        actions: A, of the recorded actions.
        episode: of the store.

    Raises:
        FileNotFoundError: there is no such recording.
        ValueError: it does not fit the model; says what was expected.
    """
    place = CLIPS / f"{path}.npz" if (CLIPS / f"{path}.npz").is_file() else Path(path)
    stride = None
    if place.suffix == ".npz" and place.is_file():
        with np.load(place, allow_pickle=False) as file:
            columns = {key: np.array(file[key], np.float64) for key in file.files}
        missing = {"qpos", "control_hz"} - columns.keys()
        if missing:
            raise ValueError(f"{path} lacks {sorted(missing)}; expected qpos (T, nq) and control_hz ()")
        hz, qpos = float(columns["control_hz"]), columns["qpos"]
        if qpos.ndim != 2 or qpos.shape[1] != model.nq:
            raise ValueError(f"qpos of {path} has shape {qpos.shape}, expected (T, {model.nq}) for this model")
        if int(model.jnt_type[0]) == 0:  # mjJNT_FREE: q and -q are one turn, and between them lies none
            turned = np.cumsum(np.sum(qpos[1:, 3:7] * qpos[:-1, 3:7], axis=1) < 0.0) % 2
            qpos[1:, 3:7] *= 1.0 - 2.0 * turned[:, None]
        qvel = columns["qvel"] if "qvel" in columns else _difference(qpos, model, hz)
        action, stride = columns.get("action", np.zeros((len(qpos), actions))), columns.get("stride")
    elif (place / "meta.json").is_file():
        qpos, qvel, action, hz = _from_store(place, model, episode)
    else:
        raise FileNotFoundError(
            f"no motion at '{path}'; expected one of {sorted(p.stem for p in CLIPS.glob('*.npz'))}, an .npz file with "
            "qpos and control_hz, or a store: robot-rl collect ... out=x.hdf5, then robot-rl data convert x.hdf5 "
            "out=x.store control_hz=<rate>"
        )
    if qvel.shape != (len(qpos), model.nv) or action.shape[1:] != (actions,):
        raise ValueError(
            f"{path}: qvel has shape {qvel.shape} and action {action.shape}; "
            f"expected (T, {model.nv}) and (T, {actions})"
        )
    if stride is not None and stride.shape != (2,):
        raise ValueError(f"stride of {path} has shape {stride.shape}, expected (2,): metres in x and y per cycle")
    return Clip(qpos, qvel, action, hz) if stride is None else Clip(qpos, qvel, action, hz, True, stride)


def save(clip: Clip, path: str) -> None:
    """Write a clip as an .npz file that `read` understands, in single precision."""
    qpos, qvel, action = (column.astype(np.float32) for column in (clip.qpos, clip.qvel, clip.action))
    hz = np.float64(clip.control_hz)
    if clip.loop:
        stride = clip.stride.astype(np.float32)
        np.savez_compressed(path, qpos=qpos, qvel=qvel, action=action, control_hz=hz, stride=stride)
    else:
        np.savez_compressed(path, qpos=qpos, qvel=qvel, action=action, control_hz=hz)


def _from_store(place: Path, model: MjModel, episode: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
    meta = json.loads((place / "meta.json").read_text())
    if not 0 <= episode < meta["episodes"]:
        raise ValueError(f"{place} holds episodes 0 to {meta['episodes'] - 1}, got {episode}")

    def column(name: str, first: int, count: int) -> np.ndarray:
        item = meta["columns"][name]
        rows = np.memmap(place / item["file"], item["dtype"], "r", shape=tuple(item["shape"]))
        return np.array(rows[first : first + count], np.float64)

    def fact(name: str) -> int:
        return int(np.fromfile(place / f"episode_{name}.bin", "<i8")[episode])

    if "obs/state" not in meta["columns"]:
        raise ValueError(f"{place} has {sorted(meta['columns'])}, expected an observation 'state'")
    steps = fact("len")
    state = column("obs/state", fact("start_obs"), steps)
    action = column("action", fact("start_step"), steps)
    hz, nq, nv = float(meta["io"]["control_hz"]), model.nq, model.nv
    left_out = nq + nv - state.shape[1]
    if left_out not in (0, 1, 2):
        raise ValueError(
            f"'state' of {place} has {state.shape[1]} numbers; expected the model's {nq} positions and {nv} "
            "velocities, with or without the root's place on the ground"
        )
    qvel = state[:, nq - left_out :].copy()
    # the place that was not observed is what the velocities add up to
    travel = np.cumsum(qvel[:, :left_out], 0) / hz
    qpos = np.concatenate([travel - travel[:1], state[:, : nq - left_out]], 1)
    faster = np.abs(qvel) >= _CLIPPED
    qvel[faster] = _difference(qpos, model, hz)[faster]
    return qpos, qvel, action, hz


def _difference(qpos: np.ndarray, model: MjModel, hz: float) -> np.ndarray:
    """(T, nv) velocities by central differences, one-sided at the ends."""
    from robot_rl.extras import require

    mujoco = require("mujoco")
    out = np.zeros((len(qpos), model.nv))
    for t in range(len(qpos)):
        a, b = max(t - 1, 0), min(t + 1, len(qpos) - 1)
        mujoco.mj_differentiatePos(model, out[t], (b - a) / hz, qpos[a], qpos[b])
    return out


def section(clip: Clip, start: float, seconds: float | None) -> Clip:
    """The frames from `start` [s] on, `seconds` of them or all.

    Raises:
        ValueError: the recording is not as long.
    """
    first = round(start * clip.control_hz)
    last = len(clip.qpos) if seconds is None else first + round(seconds * clip.control_hz)
    if not 0 <= first < last - 3 or last > len(clip.qpos):
        total = len(clip.qpos) / clip.control_hz
        raise ValueError(f"the clip is {total:.2f} s long, asked for {start} s on and {seconds} s of it")
    rows = slice(first, last)
    return replace(clip, qpos=clip.qpos[rows], qvel=clip.qvel[rows], action=clip.action[rows])


def resample(clip: Clip, control_hz: float) -> Clip:
    """The same motion at another rate, linear between frames.

    A cycle becomes a whole number of frames, which may make it a little faster or slower; its velocities with it.
    """
    if clip.control_hz == control_hz:
        return clip
    frames, seconds = len(clip.qpos), len(clip.qpos) / clip.control_hz
    count = max(round(seconds * control_hz), 4) if clip.loop else int((frames - 1) / clip.control_hz * control_hz) + 1
    faster = seconds * control_hz / count if clip.loop else 1.0
    old = np.arange(frames + clip.loop)
    new = np.arange(count) * faster * clip.control_hz / control_hz

    def between(rows: np.ndarray, travel: np.ndarray | None = None) -> np.ndarray:
        if clip.loop:
            behind = rows[:1].copy()
            if travel is not None:
                behind[0, :2] += travel
            rows = np.concatenate([rows, behind])
        return np.stack([np.interp(new, old, column) for column in rows.T], 1)

    # a planar root has its height, which does not travel, where a free one has its y: that stride is 0
    return replace(
        clip,
        qpos=between(clip.qpos, clip.stride),
        qvel=between(clip.qvel) * faster,
        action=between(clip.action),
        control_hz=control_hz,
    )


def cycle(clip: Clip, low: float, high: float, ground: int) -> Clip:
    """The cycle that closes best: from a frame to the most alike one between `low` and `high` seconds later.

    What then lacks to a closed cycle is spread evenly over its frames, so that the motion has no jump.

    Args:
        clip: a recording of a repeating motion.
        low: shortest period [s].
        high: longest period [s].
        ground: positions at the start of qpos that say where the root is on the ground: 1 for a planar root, 2 for a
            free one. These travel.

    Raises:
        ValueError: the recording is shorter than the longest period.
    """
    near, far = max(round(low * clip.control_hz), 4), round(high * clip.control_hz)
    if not near <= far < len(clip.qpos):
        raise ValueError(
            f"a cycle of {low} to {high} s does not fit into {len(clip.qpos) / clip.control_hz:.2f} s of motion; "
            "record a longer one or shorten the bounds"
        )
    seen = np.concatenate([clip.qpos[:, ground:], clip.qvel], 1)
    seen = seen / np.maximum(seen.std(0), 1e-6)
    best = (np.inf, 0, near)
    for period in range(near, far + 1):
        gap = np.square(seen[period:] - seen[:-period]).mean(1)
        t = int(gap.argmin())
        if gap[t] < best[0]:
            best = (float(gap[t]), t, period)
    _, start, period = best
    rows, share = slice(start, start + period), np.arange(period)[:, None] / period
    stride = np.zeros(2)
    stride[:ground] = clip.qpos[start + period, :ground] - clip.qpos[start, :ground]

    def close(column: np.ndarray, travels: int = 0) -> np.ndarray:
        lack = column[start + period] - column[start]
        lack[:travels] = 0.0
        return column[rows] - share * lack

    qpos = close(clip.qpos, ground)
    qpos[:, :ground] -= qpos[:1, :ground]
    return Clip(qpos, close(clip.qvel), close(clip.action), clip.control_hz, True, stride)
