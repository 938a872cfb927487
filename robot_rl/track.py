"""Where metrics go: JSON lines and TensorBoard by default, Weights & Biases on request."""

from __future__ import annotations

import errno
import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from robot_rl.atomic import write_bytes
from robot_rl.extras import require
from robot_rl.types import Metrics, Tracker

METRICS_FILE = "metrics.jsonl"

R = TypeVar("R")


class Jsonl:
    """One JSON object per line in `metrics.jsonl`; each is written at once, so a killed run keeps its rows.

    On a full disk rows wait, and are written with the next one for which there is room.
    """

    def __init__(self, folder: str | Path, *, resume_step: int | None = None) -> None:
        """Open for appending.

        Args:
            folder: the run folder.
            resume_step: rows after this step are removed, since the resumed run writes them again.
        """
        self.path = Path(folder) / METRICS_FILE
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if resume_step is not None and self.path.exists():
            rows = [row for row in read_metrics(self.path) if row["step"] <= resume_step]
            write_bytes(self.path, "".join(json.dumps(row) + "\n" for row in rows).encode())
        self._file, self._waiting = self.path.open("ab", buffering=0), b""

    def log(self, metrics: Metrics, step: int) -> None:
        """Append one row; numbers that JSON cannot hold become null."""
        for name, value in metrics.items():
            if not isinstance(value, (int, float)):  # NumPy's float64 is a float
                raise TypeError(f"metric {name} is a {type(value).__name__}, expected a number; use float(...)")
        row = {name: (value if math.isfinite(value) else None) for name, value in metrics.items()}
        self._waiting += (json.dumps({"step": int(step), **row}) + "\n").encode()
        try:
            while self._waiting:
                self._waiting = self._waiting[self._file.write(self._waiting) :]
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class TensorBoard:
    """Scalars for TensorBoard in `<folder>/tensorboard`."""

    def __init__(self, folder: str | Path, *, resume_step: int | None = None) -> None:
        module = require("torch.utils.tensorboard")
        purge = None if resume_step is None else resume_step + 1
        self._writer = module.SummaryWriter(str(Path(folder) / "tensorboard"), purge_step=purge)

    def log(self, metrics: Metrics, step: int) -> None:
        """Write one row of scalars."""
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Flush and close."""
        self._writer.close()


class Wandb:
    """Weights & Biases; `mode` is "online", "offline", "disabled", or None for what WANDB_MODE says (else online)."""

    def __init__(
        self,
        folder: str | Path,
        *,
        project: str = "robot_rl",
        name: str | None = None,
        mode: str | None = "offline",
        config: Mapping[str, object] | None = None,
    ) -> None:
        if mode not in (None, "online", "offline", "disabled"):
            raise ValueError(f"track.mode is '{mode}', expected online, offline or disabled")
        wandb = require("wandb")
        os.environ.setdefault("WANDB_SILENT", "true")
        place = Path(folder).resolve()  # runs of a sweep are called 0, 1, …, in each sweep
        name_of_run = f"{place.parent.name}_{place.name}" if place.name.isdigit() else place.name
        run_id = name_of_run.replace(" ", "_")[-64:]
        try:
            self._run = wandb.init(
                project=project,
                name=name,
                mode=mode or os.environ.get("WANDB_MODE"),
                config=config,
                dir=str(folder),
                id=run_id,
                resume="allow",
            )
        except wandb.errors.Error as error:  # no key, no account, no way to the server
            raise ValueError(f"track=wandb: {error} track.mode=offline keeps the numbers in the run folder") from error

    def log(self, metrics: Metrics, step: int) -> None:
        """Write one row."""
        self._run.log(dict(metrics), step=step)

    def close(self) -> None:
        """Finish the run."""
        self._run.finish()


class Many:
    """Hands every row to several trackers. The first is the run's record; one of the others that fails is left out.

    Attributes:
        failures: names of trackers that were left out -> why.
    """

    def __init__(self, trackers: Sequence[Tracker]) -> None:
        self.trackers = list(trackers)
        self.failures: dict[str, str] = {}

    def add(self, name: str, make: Callable[[], Tracker]) -> None:
        """One more; if it cannot be made, that is a line in `failures`."""
        made = self._try(name, make)
        if made is not None:
            self.trackers.append(made)

    def log(self, metrics: Metrics, step: int) -> None:
        """Write one row everywhere."""
        for place, tracker in list(enumerate(self.trackers)):
            if place == 0:
                tracker.log(metrics, step)
            else:
                self._try(type(tracker).__name__.lower(), lambda tracker=tracker: tracker.log(metrics, step), tracker)

    def close(self) -> None:
        """Close all."""
        for tracker in self.trackers:
            self._try(type(tracker).__name__.lower(), tracker.close)

    def _try(self, name: str, call: Callable[[], R], tracker: Tracker | None = None) -> R | None:
        try:
            return call()
        except Exception as error:  # a server that is gone, a full disk, a missing package: the run goes on
            self.failures[name] = f"{type(error).__name__}: {error}".splitlines()[0]
            if tracker is not None:
                self.trackers.remove(tracker)
            return None


def files(folder: str, *, resume_step: int | None = None, tensorboard: bool = True) -> Many:
    """The default: `metrics.jsonl`, and TensorBoard unless switched off."""
    out = Many([Jsonl(folder, resume_step=resume_step)])
    if tensorboard:
        out.add("tensorboard", lambda: TensorBoard(folder, resume_step=resume_step))
    return out


def wandb(
    folder: str,
    *,
    resume_step: int | None = None,
    tensorboard: bool = False,
    project: str = "robot_rl",
    run_name: str | None = None,
    mode: str | None = None,
    config: Mapping[str, object] | None = None,
) -> Many:
    """`metrics.jsonl` and Weights & Biases."""
    out = files(folder, resume_step=resume_step, tensorboard=tensorboard)
    out.trackers.append(Wandb(folder, project=project, name=run_name, mode=mode, config=config))
    return out


def read_metrics(path: str | Path) -> list[dict[str, Any]]:
    """Rows of a metrics file; a last line cut off by a kill is skipped."""
    rows = []
    for line in Path(path).read_text().splitlines():
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return rows
