"""A progress bar that moves although its loop reports rarely, and that says when a metric is lost."""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Callable, Mapping

from tqdm import tqdm

EVERY_S = 1.0
FILE_EVERY_S = 30.0  # where nobody watches, each move is a line of a file
SHOWN = (  # beside the bar: the first of the metrics that there is
    ("return", "rollout/return"),
    ("success", "rollout/success"),
    ("help", "rollout/intervention_rate"),
    ("loss", "train/loss"),
    ("q", "train/q"),
    ("eval", "eval/success", "eval/score", "eval/return"),
)


class LiveBar:
    """tqdm beside a thread that looks how far the loop is; loops call back only every `log_every` steps.

    Args:
        total: steps at the end.
        initial: steps already done.
        unit: name of a step.
        count: () -> steps so far; read from another thread, so a plain number.
        disable: show nothing.
    """

    def __init__(self, total: int, initial: int, unit: str, count: Callable[[], int], *, disable: bool = False) -> None:
        self._count, self._disable = count, disable
        self._bar = tqdm(total=total, initial=initial, unit=unit, dynamic_ncols=True, disable=disable, file=sys.stderr)
        self._lock, self._over = threading.Lock(), threading.Event()
        self._thread: threading.Thread | None = None
        self._lost: set[str] = set()

    def __enter__(self) -> LiveBar:
        if not self._disable:
            self._thread = threading.Thread(target=self._look, name="progress", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()
        self.to(self._count())
        self._bar.close()

    def to(self, step: int) -> None:
        """Move to a step."""
        with self._lock:
            self._bar.update(max(step - self._bar.n, 0))

    def note(self, metrics: Mapping[str, float]) -> None:
        """Show some numbers, and tell once of each learner's metric that is not finite."""
        found = {name: next((metrics[key] for key in keys if key in metrics), math.nan) for name, *keys in SHOWN}
        short = {name: f"{value:.3g}" for name, value in found.items() if math.isfinite(value)}
        lost = [name for name, value in metrics.items() if name.startswith("train/") and not math.isfinite(value)]
        with self._lock:
            for name in lost:
                if name not in self._lost:
                    self._lost.add(name)
                    tqdm.write(
                        f"WARNING: {name} is {metrics[name]} at step {self._bar.n}; training goes on", sys.stderr
                    )
            self._bar.set_postfix(short)

    def _look(self) -> None:
        pause = EVERY_S if sys.stderr.isatty() else FILE_EVERY_S
        while not self._over.wait(pause):
            self.to(self._count())
