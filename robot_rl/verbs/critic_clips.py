"""Clips for progress critics on disk, logs labelled by a critic, a picture of what it says, the run that trains it."""

from __future__ import annotations

import hashlib
import io
import json
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np

from robot_rl import checkpoint
from robot_rl.atomic import write_bytes
from robot_rl.checkpoint import CheckpointError, write_json
from robot_rl.figure import figure, save
from robot_rl.interrupt import Interrupt
from robot_rl.loops.fit import Fit
from robot_rl.parts import Parts
from robot_rl.run import Run, RunStart
from robot_rl.schedule import Schedule
from robot_rl.types import Episode, Metrics, Options, Stateful
from robot_rl.types.options import Count, Discount, Number

FACTS = "facts.json"


class Generator(Protocol):
    """What makes clips, such as `TabletopClips`."""

    def facts(self) -> dict[str, object]:
        """What the arrays mean; plain values."""
        ...

    def generate(self, kinds: list[str], seed: int) -> dict[str, np.ndarray]:
        """One clip for each kind."""
        ...


class ClipJudge(Protocol):
    """What scores a clip, such as `policies.vla.critic.TinyCritic`."""

    def trajectory(self, frames: np.ndarray, goal: str, *, stride: int = 1) -> Any:
        """Values, deltas, done and the frames used."""
        ...


def plan(count: int, shares: Mapping[str, float], seed: int) -> list[str]:
    """Kinds of `count` clips by their shares (largest remainders), shuffled.

    Raises:
        ValueError: no positive share, or a negative one.
    """
    names, weight = list(shares), np.array([float(value) for value in shares.values()])
    if len(weight) == 0 or weight.min() < 0 or weight.sum() <= 0:
        raise ValueError(f"shares are {dict(shares)}, expected numbers >= 0 that are not all 0")
    exact = count * weight / weight.sum()
    whole = np.floor(exact).astype(int)
    for i in np.argsort(whole - exact, kind="stable")[: count - whole.sum()]:
        whole[i] += 1
    kinds = [name for name, number in zip(names, whole) for _ in range(number)]
    return [kinds[i] for i in np.random.default_rng(seed).permutation(len(kinds))]


def make_clips(
    generator: Generator,
    folder: Path,
    *,
    count: int,
    chunk: int,
    shares: Mapping[str, float],
    seed: int,
    on_clips: Callable[[int], None] = lambda _: None,
) -> int:
    """Write clips in files of `chunk`; files that are there already stay, so that a stopped run continues.

    Args:
        generator: makes them; file i depends on the seed and i alone.
        folder: facts.json and clips_<i>.npz; each file appears whole or not at all.
        count: clips in all.
        chunk: clips in a file.
        shares: of the kinds.
        seed: of everything.
        on_clips: called with the clips on disk so far.

    Returns:
        Clips on disk; fewer than `count` when interrupted.

    Raises:
        ValueError: the folder holds clips of another recipe.
    """
    facts = {**generator.facts(), "count": count, "chunk": chunk, "shares": dict(shares), "seed": seed}
    path = folder / FACTS
    if path.exists():
        there = json.loads(path.read_text())
        differ = sorted(key for key in facts | there if facts.get(key) != there.get(key))
        if differ:
            raise ValueError(f"{folder} holds clips made otherwise ({', '.join(differ)}); choose another folder")
    write_json(path, facts)
    kinds, made = plan(count, shares, seed), 0
    with Interrupt() as interrupt:
        for number in range(-(-count // chunk)):
            part = kinds[number * chunk : (number + 1) * chunk]
            file = folder / f"clips_{number:04d}.npz"
            if not file.exists():
                packed = io.BytesIO()
                np.savez_compressed(packed, **generator.generate(part, seed * 100_003 + number))  # type: ignore[arg-type]
                write_bytes(file, packed.getvalue())
            made += len(part)
            on_clips(made)
            if interrupt.asked:
                break
    return made


def load_clips(folder: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """All clips of a folder as one set of arrays, and its facts with "hash", a digest of everything in it.

    Raises:
        FileNotFoundError: no clips there.
        ValueError: the set is not complete yet.
    """
    path = folder / FACTS
    if not path.exists():
        raise FileNotFoundError(f"{folder} holds no clips; make them with robot-rl critic clips out={folder}")
    facts = json.loads(path.read_text())
    files = sorted(folder.glob("clips_*.npz"))
    wanted = -(-facts["count"] // facts["chunk"])
    if len(files) != wanted:
        raise ValueError(f"{folder} holds {len(files)} of {wanted} files; run robot-rl critic clips again to finish")
    parts: dict[str, list[np.ndarray]] = {}
    digest, frames = hashlib.sha256(), 0
    for file in files:
        with np.load(file, allow_pickle=False) as arrays:
            for name in arrays.files:
                value = arrays[name]
                digest.update(value.tobytes())
                parts.setdefault(name, []).append(value[1:] + frames if name == "start" else value)
        frames += len(parts["frames"][-1])
    joined = {name: np.concatenate(values) for name, values in parts.items()}
    joined["start"] = np.concatenate([[0], joined["start"]]).astype(np.int64)
    return joined, {**facts, "hash": digest.hexdigest()[:16]}


class LabelledOptions(Options):
    """How a log gets a critic's reward."""

    camera: str = "front"
    """label: which pictures."""
    mode: Literal["reward", "potential", "delta", "dlogw", "absolute"] = "potential"
    """label: how progress becomes reward."""
    gamma: Discount = 0.99
    """label: of the potential."""
    stride: Count = 1
    """label: control steps between the frames of a pair."""
    done_reward: Number = 1.0
    """label: paid at every control step while the goal counts as met (done_events); 0 = shaping alone."""
    pictures: bool = True
    """label: keep them; false writes a log of the state alone."""


def label(
    episode: Episode,
    judge: ClipJudge,
    reward: Callable[..., np.ndarray],
    options: LabelledOptions,
    *,
    instruction: str,
    met: Callable[[np.ndarray, np.ndarray], np.ndarray] | None = None,
) -> Episode:
    """The same episode with the critic's reward, and what it said as further columns.

    Columns (T,): "critic_progress" and "critic_done" after each step, "critic_reward_<mode>", and "env_reward", what
    the log held before. Between the frames that the critic looked at (every `stride`-th), progress is held; a
    potential of what is held adds up exactly, and the other modes pay 0.

    Args:
        episode: with pictures "image.<camera>".
        judge: with `trajectory`.
        reward: such as `policies.reward.critic_reward.progress_reward`.
        options: which pictures, which reward.
        instruction: the sentence.
        met: (P(done), progress) of the looks -> where the goal counts as met; each control step after which it does is
            paid, since potentials alone tell no good policy from a bad one.

    Raises:
        ValueError: no such pictures; columns of these names are there already.
    """
    mode, pictures, stride = options.mode, options.pictures, options.stride
    key, steps = picture_key(options.camera, episode.obs), len(episode.reward)
    columns = dict(episode.meta.get("columns", {}))
    name = f"critic_reward_{mode}"
    if name in columns:
        raise ValueError(f"the log has a column '{name}' already; labels are never written over")
    path = judge.trajectory(episode.obs[key], instruction, stride=stride)
    index = path.index
    seen = np.searchsorted(index, np.arange(1, steps + 1), side="right") - 1
    values, deltas = np.concatenate([path.values[:1], path.values[seen]]), np.zeros(steps)
    deltas[index[1:] - 1] = path.deltas
    gained = reward(values, deltas, mode=mode, gamma=options.gamma, terminated=bool(episode.terminated))
    if mode == "absolute":
        gained = np.where(np.isin(np.arange(1, steps + 1), index), gained, 0.0)
    spread = gained.astype(np.float32)
    if met is not None:
        spread += np.float32(options.done_reward) * met(path.done, path.values)[seen]
    columns.update(
        critic_progress=path.values[seen].astype(np.float32),
        critic_done=path.done[seen].astype(np.float32),
        env_reward=columns.get("env_reward", episode.reward),
    )
    columns[name] = spread
    meta = {**episode.meta, "columns": columns, "instruction": instruction}
    obs = episode.obs if pictures else {k: v for k, v in episode.obs.items() if not k.startswith("image.")}
    if not pictures and not obs:
        raise ValueError("the log holds pictures alone, so nothing would be left of its observations; keep them")
    return replace(episode, obs=obs, reward=spread, meta=meta if pictures else without_pictures(meta))


def picture_key(camera: str, obs: Collection[str]) -> str:
    """The key of a camera's pictures among observations of a log.

    Raises:
        ValueError: it has none.
    """
    key = f"image.{camera}"
    if key not in obs:
        found = [name for name in obs if name.startswith("image.")]
        raise ValueError(f"the log holds no '{key}'; it holds {found or 'no pictures'}")
    return key


def without_pictures(meta: dict[str, Any]) -> dict[str, Any]:
    """The passport in an episode's `meta` without its pictures."""
    io = meta.get("io")
    if isinstance(io, dict):
        return {**meta, "io": {**io, "obs": {k: v for k, v in io["obs"].items() if not k.startswith("image.")}}}
    if io is not None:
        return {**meta, "io": replace(io, obs={k: v for k, v in io.obs.items() if not k.startswith("image.")})}
    return meta


def plot_clip(path: Path, frames: np.ndarray, lines: Mapping[str, np.ndarray], done: Mapping[str, np.ndarray]) -> None:
    """Write a PNG: pictures of the clip, values over its frames (dashed: truth), P(done) below.

    Args:
        path: file.
        frames: (T + 1, H, W, 3) uint8.
        lines: label -> (T + 1,) values; labels that end in "truth" are dashed.
        done: label -> (T + 1,) probabilities.
    """
    picture = figure(9, 6)
    axes = picture.subplots(3, 1, height_ratios=[1, 2.4, 1])
    shown = np.linspace(0, len(frames) - 1, min(10, len(frames))).astype(int)
    axes[0].imshow(np.concatenate(list(frames[shown]), axis=1))
    axes[0].set_axis_off()
    for axis, rows, label in ((axes[1], lines, "progress"), (axes[2], done, "P(done)")):
        for i, (name, values) in enumerate(rows.items()):
            truth = name.endswith("truth")
            # a truth has the colour of the line before it
            colour = f"C{sum(not key.endswith('truth') for key in list(rows)[: i + 1]) - 1}"
            axis.plot(values, "--" if truth else "-", color=colour, label=name, alpha=0.6 if truth else 1.0)
        axis.set_ylabel(label)
        axis.grid(alpha=0.3)
    axes[1].legend(fontsize=8)
    axes[2].set_xlabel("frame")
    axes[2].set_ylim(-0.05, 1.05)
    save(picture, path)


class ClipLearner(Stateful, Protocol):
    """What trains on clips, such as `policies.vla.critic.CriticLearner`."""

    steps: int

    def clips(self, arrays: Mapping[str, np.ndarray], facts: Mapping[str, Any]) -> Any:
        """Its data."""
        ...

    def sampler(self, clips: Any) -> Any:
        """Endless batches, with `state_dict` and `load_state_dict`."""
        ...

    def update(self, batch: Any) -> Metrics:
        """One step."""
        ...

    def calibrate(self, clips: Any) -> Any:
        """Fit done on held-out clips."""
        ...


@dataclass(frozen=True)
class TrainingClips:
    """What a critic is trained on.

    Attributes:
        train: the learner's data.
        calibration: clips kept from training.
        path: where they come from.
        hash: of everything in it.
    """

    train: Any
    calibration: Any
    path: str = ""
    hash: str = ""

    def __post_init__(self) -> None:
        if not self.calibration.meets_goal().any():  # said before a long training, at whose end it would be found
            raise ValueError(
                f"none of the {len(self.calibration)} clips kept for calibration is a success, so done could not be "
                "calibrated in the end; make more clips (robot-rl critic clips count=480) or keep a larger share "
                "(calibration=0.3)"
            )

    @classmethod
    def of(cls, folder: Path, learner: ClipLearner, *, share: float, seed: int) -> TrainingClips:
        """All clips of a folder, `share` of them kept for calibration.

        Raises:
            FileNotFoundError: no clips there.
            ValueError: the set is not complete yet, or no success is among those kept.
        """
        arrays, facts = load_clips(folder)
        clips = learner.clips(arrays, facts)
        rows, kept = split(len(clips), share, seed)
        return cls(clips.part(rows), clips.part(kept), str(folder), facts["hash"])


def split(count: int, share: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows to train on and rows kept for calibration."""
    order = np.random.default_rng([seed, 77]).permutation(count)
    kept = round(count * share)
    return np.sort(order[kept:]), np.sort(order[:kept])


class CriticJob:
    """Trains until the learner's last step, then calibrates done."""

    def __init__(
        self,
        learner: ClipLearner,
        clips: TrainingClips,
        start: RunStart,
        *,
        save_every: int = 500,
        minutes: float | None = None,
    ) -> None:
        """Join learner and clips, or restore them.

        Args:
            learner: to train.
            clips: what it is trained on.
            start: where the run begins.
            save_every: updates between checkpoints.
            minutes: of wall time after which it saves and stops, or None.

        Raises:
            CheckpointError: nothing to resume from, or the run began with other clips.
            InUse: another process runs in the folder that is to be resumed.
        """
        self._learner, self._clips, self._minutes = learner, clips, minutes
        self._sampler, self._fit = learner.sampler(clips.train), Fit()
        if start.resume and checkpoint.read_meta(checkpoint.find(start.folder))["clips"]["hash"] != clips.hash:
            raise CheckpointError(f"the clips in {clips.path} are not those that the run began with; give the original")
        facts = {"path": clips.path, "hash": clips.hash, "trained_on": len(clips.train)}
        self._run = Run.open(
            start,
            Schedule(total=learner.steps, log_every=50, checkpoint_every=save_every, keep_checkpoints=1, unit="update"),
            Parts({"learner": learner, "loop": self._fit, "sampler": self._sampler}, facts={"clips": facts}),
            count=lambda: self._fit.updates,
            sources={"clips": facts},
        )
        self.folder = self._run.folder

    def run(self) -> dict[str, object] | None:
        """Train, calibrate, write what a run leaves; the summary, or None where the time was up before.

        Raises:
            CheckpointError: a checkpoint could not be written.
            KeyboardInterrupt: after a Ctrl-C, once everything is saved.
        """
        try:
            self._run.follow(self._train)
            if self._fit.updates < self._learner.steps:
                return None
            return self._run.finish(more=lambda: {"calibrated_on": len(self._clips.calibration)})
        finally:
            self._run.close()

    def _train(self) -> None:
        end = None if self._minutes is None else time.monotonic() + 60.0 * self._minutes
        late = False

        def due(before: int, after: int) -> bool:
            nonlocal late
            late = end is not None and time.monotonic() > end
            return late or self._run.due(before, after)

        def tick(step: int, metrics: Metrics) -> bool:
            return self._run.tick(step, metrics) or late

        def update() -> Metrics:
            return self._learner.update(next(self._sampler))

        if self._fit.run(update, self._learner.steps, tick, due=due):
            self._run.save()  # whatever the calibration finds, the updates are not lost
            self._learner.calibrate(self._clips.calibration)
            self._run.save()
