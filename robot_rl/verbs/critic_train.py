"""What `robot-rl critic train` does: one run on clips, with those that its end is calibrated on kept aside."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from robot_rl import checkpoint
from robot_rl.checkpoint import CheckpointError
from robot_rl.loops.fit import Fit
from robot_rl.parts import Parts
from robot_rl.run import Run, RunStart
from robot_rl.schedule import Schedule
from robot_rl.types import Metrics, Stateful
from robot_rl.verbs.critic_clips import load_clips


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
