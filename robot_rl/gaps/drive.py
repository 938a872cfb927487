"""Gaps of the drives: commands that move the joints by more or less, and joints that stick."""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import PrivateAttr

from robot_rl.gaps.contract import Gap
from robot_rl.types.options import Positive


class CommandGain(Gap):
    """Joints that are driven `factor` times as far from zero, as fast or as hard as they are told."""

    name: Literal["command_gain"] = "command_gain"
    """Of the gap."""
    factor: Positive
    """1 = as told."""

    def command(self, value: np.ndarray) -> np.ndarray:
        """The first row of pd mode, or all of another mode."""
        changed = np.array(value, float)
        (changed[:1] if changed.ndim == 2 else changed)[...] *= self.factor
        return changed

    def inverse(self) -> CommandGain:
        """Back."""
        return CommandGain(factor=1.0 / self.factor)


class Stiction(Gap):
    """Joints that stick: their targets follow only what lies further away than `band`, and stay behind by as much.

    Source: the play operator of Prandtl and Ishlinskii (Visintin, Differential Models of Hysteresis, section III.2).
    """

    name: Literal["stiction"] = "stiction"
    """Of the gap."""
    band: Positive
    """[rad or m]."""
    _place: list[np.ndarray] = PrivateAttr(default_factory=list)

    def command(self, value: np.ndarray) -> np.ndarray:
        """Position targets behind the play; of pd mode the first row."""
        changed = np.array(value, float)
        target = changed[0] if changed.ndim == 2 else changed
        if not self._place:
            self._place.append(target.copy())
        place = np.clip(self._place[0], target - self.band, target + self.band)
        self._place[0] = place
        target[...] = place
        return changed
