"""The scene before an episode: a person says that it was put back, and it is compared with a good start."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path

import numpy as np

from robot_rl.atomic import write_bytes
from robot_rl.human.options import SessionOptions
from robot_rl.human.pilot import Pilot

PARTS = 16
"""Tiles along each side of a picture that are compared: small enough for a cube, large enough that noise is nothing."""
LEVELS = 20.0
"""Mean difference of a tile in grey levels, in any colour, above which it is another."""
SCREEN = "screen"
ASKS = "Put the scene back, then press 'scene is put back' (N)."


class Scene:
    """Asks a person to put the scene back before every episode, and tells how far it is from a good start.

    A good start is the first that the person says is put back; its pictures are kept in the log's folder. The robot
    holds while hands may be in its way: it has gone to its start before, and what frees it is the person's word.

    Args:
        options: `scene` and `scene_tolerance`.
        folder: where the good start is kept.
    """

    def __init__(self, options: SessionOptions, folder: Path) -> None:
        self._how, self._tolerance, self._path = options.scene, options.scene_tolerance, folder / "scene.npz"
        self._start: dict[str, np.ndarray] = {}
        self._asked = self._said = self._ready = self._refused = self._shown = False
        self.told = ""
        """How the start of this episode differs from a good one, or ""."""
        if self._how != "free" and self._path.exists():
            with np.load(self._path, allow_pickle=False) as kept:
                self._start = dict(kept)

    @property
    def asks(self) -> bool:
        """Somebody has to put the scene back before every episode."""
        return self._how != "free"

    def say(self) -> None:
        """The person: it is put back. Before they are asked it says nothing: the robot was still on its way."""
        self._said = self._asked

    def over(self) -> None:
        """An episode has ended: whatever was said is about the past."""
        self._asked = self._said = self._ready = self._refused = False

    def gate(self, pilot: Pilot, views: Mapping[str, np.ndarray]) -> str:
        """What stands between the robot at its start and the next episode, or "".

        Args:
            pilot: which is held until the person's word, and goes on with it.
            views: name -> (H, W, 3) uint8, what the policy's cameras see now.
        """
        if not self.asks or self._ready:
            return ""
        if not self._shown and self._start:
            self._show(pilot)
        found = self.differences(views)
        far = {name: share for name, share in found.items() if share > 0.0}
        self.told = "; ".join(f"{100 * share:.0f} % of {name} is not as at a good start" for name, share in far.items())
        said, self._said = self._said, False
        if said and self._how == "check":
            self._refused = max(found.values(), default=0.0) > self._tolerance
        if not said or self._refused:
            self._asked = True
            pilot.hold()
            allowed = f"Not begun, {100 * self._tolerance:g} % may differ. " if self._refused else ""
            return f"{allowed}{ASKS} {self.told}".strip()
        if not self._start:
            self._keep(pilot, views)
        self._ready = True
        pilot.go_on()
        return ""

    def differences(self, views: Mapping[str, np.ndarray]) -> dict[str, float]:
        """Camera -> share of its picture that is not as at a good start; empty before there is one."""
        return {
            name: float(np.mean(np.abs(_tiles(view) - _tiles(self._start[name])).max(axis=-1) > LEVELS))
            for name, view in views.items()
            if name in self._start and self._start[name].shape == np.shape(view)
        }

    def _keep(self, pilot: Pilot, views: Mapping[str, np.ndarray]) -> None:
        self._start = {name: np.array(view) for name, view in views.items()}
        screen = None if pilot.human is None else pilot.human.newest()
        if screen is not None:
            self._start[SCREEN] = np.frombuffer(screen, np.uint8)
        packed = BytesIO()
        np.savez(packed, **self._start)  # pyright: ignore[reportArgumentType]
        write_bytes(self._path, packed.getvalue())  # whole or not at all: it is read when the session is resumed
        self._show(pilot)

    def _show(self, pilot: Pilot) -> None:
        self._shown = True
        if pilot.human is not None:
            screen = self._start.get(SCREEN)
            views = {name: view for name, view in self._start.items() if name != SCREEN}
            pilot.human.ghost(None if screen is None else screen.tobytes(), views)


def _tiles(view: np.ndarray) -> np.ndarray:
    """(PARTS, PARTS, C) means of the tiles of (H, W, C), fewer where there are fewer pixels."""
    for axis in (0, 1):
        edges = np.linspace(0, view.shape[axis], min(PARTS, view.shape[axis]) + 1).astype(int)
        parts = [np.take(view, range(a, b), axis).mean(axis, dtype=float) for a, b in itertools.pairwise(edges)]
        view = np.stack(parts, axis)
    return view
