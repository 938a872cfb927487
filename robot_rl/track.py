"""Where metrics go: JSON lines and TensorBoard by default, Weights & Biases on request."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from robot_rl.checkpoint import write_bytes
from robot_rl.extras import require
from robot_rl.types import Metrics, Tracker

METRICS_FILE = "metrics.jsonl"


class Jsonl:
    """One JSON object per line in `metrics.jsonl`; each line is flushed, so a killed run keeps its rows."""

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
        self._file = self.path.open("a")

    def log(self, metrics: Metrics, step: int) -> None:
        """Append one row; numbers that JSON cannot hold become null."""
        for name, value in metrics.items():
            if not isinstance(value, (int, float)):  # NumPy's float64 is a float
                raise TypeError(f"metric {name} is a {type(value).__name__}, expected a number; use float(...)")
        row = {name: (value if math.isfinite(value) else None) for name, value in metrics.items()}
        self._file.write(json.dumps({"step": int(step), **row}) + "\n")
        self._file.flush()

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
    """Weights & Biases; `mode` is "online", "offline" or "disabled"."""

    def __init__(
        self,
        folder: str | Path,
        *,
        project: str = "robot_rl",
        name: str | None = None,
        mode: str = "offline",
        config: dict[str, Any] | None = None,
    ) -> None:
        if mode not in ("online", "offline", "disabled"):
            raise ValueError(f"track.mode is '{mode}', expected online, offline or disabled")
        wandb = require("wandb")
        os.environ.setdefault("WANDB_SILENT", "true")
        run_id = Path(folder).resolve().name.replace(" ", "_")[-64:]
        self._run = wandb.init(
            project=project, name=name, mode=mode, config=config, dir=str(folder), id=run_id, resume="allow"
        )

    def log(self, metrics: Metrics, step: int) -> None:
        """Write one row."""
        self._run.log(dict(metrics), step=step)

    def close(self) -> None:
        """Finish the run."""
        self._run.finish()


class Many:
    """Hands every row to several trackers."""

    def __init__(self, trackers: Sequence[Tracker]) -> None:
        self.trackers = list(trackers)

    def log(self, metrics: Metrics, step: int) -> None:
        """Write one row everywhere."""
        for tracker in self.trackers:
            tracker.log(metrics, step)

    def close(self) -> None:
        """Close all."""
        for tracker in self.trackers:
            tracker.close()


def files(folder: str, *, resume_step: int | None = None, tensorboard: bool = True) -> Many:
    """The default: `metrics.jsonl`, and TensorBoard unless switched off."""
    trackers: list[Tracker] = [Jsonl(folder, resume_step=resume_step)]
    if tensorboard:
        trackers.append(TensorBoard(folder, resume_step=resume_step))
    return Many(trackers)


def wandb(
    folder: str,
    *,
    resume_step: int | None = None,
    tensorboard: bool = False,
    project: str = "robot_rl",
    run_name: str | None = None,
    mode: str = "online",
    config: dict[str, Any] | None = None,
) -> Many:
    """`metrics.jsonl` and Weights & Biases."""
    base = files(folder, resume_step=resume_step, tensorboard=tensorboard)
    return Many([*base.trackers, Wandb(folder, project=project, name=run_name, mode=mode, config=config)])


def read_metrics(path: str | Path) -> list[dict[str, Any]]:
    """Rows of a metrics file; a last line cut off by a kill is skipped."""
    rows = []
    for line in Path(path).read_text().splitlines():
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return rows
