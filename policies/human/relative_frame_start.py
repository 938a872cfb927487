"""A robot's observations and actions as seen from where its tool was at the start of the episode."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from robot_rl.types import IOSpec


class StartFrame:
    """Rotation about the vertical and shift between the base and the tool's pose at the start.

    The state's columns are known by their names: `start_x, start_y, start_z` (and `start_yaw`) is the pose at the
    start, in the units of `tip_x ...` and `yaw`. From "tip" the start is subtracted; it and every other triple
    `<name>_x, _y, _z` is turned into the start's frame; from `yaw` its yaw is subtracted. The start's own columns are
    left out. Of the actions the pair `tip_dx, tip_dy` is turned; what has no direction in the plane stays.

    Args:
        io: interface of the robot.

    Raises:
        ValueError: the state does not tell the start, or pictures are observed.

    Source: Luo et al., HIL-SERL (T_obs = T_reset^-1 T_now, so that what was learned carries over to a moved target).
    Where we differ: the tool points down, so the frame turns about the vertical alone.
    """

    def __init__(self, io: IOSpec) -> None:
        names = list(io.obs_names)
        if list(io.obs) != ["state"]:
            raise ValueError(
                f"the start's frame is one of vectors, the robot observes {sorted(io.obs)}; set cameras=[]"
            )
        if "start_x" not in names or "tip_x" not in names:
            raise ValueError(
                "the state does not tell where the tip was at the start; use a world that can (reach, pick, insert "
                "with action=ee) and set env.world.start_pose=true"
            )
        if not {"tip_dx", "tip_dy"} <= set(io.action_names):
            raise ValueError(f"the actions are {io.action_names}, expected moves of the tip: env.world.action=ee")
        triples = [n[:-2] for n in names if n.endswith("_x") and {f"{n[:-2]}_y", f"{n[:-2]}_z"} <= set(names)]
        self._planar = [(names.index(f"{t}_x"), names.index(f"{t}_y")) for t in triples if t != "start"]
        self._tip = [names.index(f"tip_{axis}") for axis in "xyz"]
        self._start = [names.index(f"start_{axis}") for axis in "xyz"]
        self._yaw = names.index("yaw") if "yaw" in names else -1
        self._turn = names.index("start_yaw") if "start_yaw" in names else -1
        out = {*self._start, *((self._turn,) if self._turn >= 0 else ())}
        self._kept = [i for i in range(len(names)) if i not in out]
        self._moves = io.action_names.index("tip_dx"), io.action_names.index("tip_dy")
        self.io = replace(
            io, obs={"state": ((len(self._kept),), "float32")}, obs_names=tuple(names[i] for i in self._kept)
        )
        """Interface of a policy that sees this frame."""

    def observe(self, state: Any) -> Any:
        """(B, S) of the robot -> (B, S') in the start's frame; NumPy or torch."""
        out = state.clone() if isinstance(state, Tensor) else np.array(state)
        cosine, sine = self._direction(state)
        out[:, self._tip] = state[:, self._tip] - state[:, self._start]
        for x, y in self._planar:
            a, b = out[:, x] * cosine + out[:, y] * sine, out[:, y] * cosine - out[:, x] * sine
            out[:, x], out[:, y] = a, b
        if self._yaw >= 0 and self._turn >= 0:
            out[:, self._yaw] = state[:, self._yaw] - state[:, self._turn]
        return out[:, self._kept]

    def to_base(self, action: object, state: object) -> Any:
        """(B, A) chosen in the start's frame -> for the robot; a move that leaves [-1, 1] keeps its direction.

        Args:
            action: in [-1, 1].
            state: (B, S) of the robot.
        """
        return self._rotate(action, state, 1.0)

    def from_base(self, action: object, state: object) -> Any:
        """(B, A) that the robot did -> in the start's frame."""
        return self._rotate(action, state, -1.0)

    def _rotate(self, action: Any, state: object, sign: float) -> Any:
        out = action.clone() if isinstance(action, Tensor) else np.array(action)
        cosine, sine = self._direction(state)
        x, y = self._moves
        a = action[:, x] * cosine - sign * action[:, y] * sine
        b = action[:, y] * cosine + sign * action[:, x] * sine
        xp = torch if isinstance(action, Tensor) else np
        longest = xp.maximum(xp.maximum(abs(a), abs(b)), xp.ones_like(a))
        out[:, x], out[:, y] = a / longest, b / longest
        return out

    def _direction(self, state: Any) -> tuple[Any, Any]:
        xp = torch if isinstance(state, Tensor) else np
        turn = state[:, self._turn] if self._turn >= 0 else state[:, 0] * 0.0
        return xp.cos(turn), xp.sin(turn)
