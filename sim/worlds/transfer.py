"""Transfer: one instrument picks up a rod, hands it to the other in the air, and that one takes it to its place."""

from __future__ import annotations

from types import ModuleType
from typing import ClassVar

import array_api_compat

from robot_rl.sim.arm import norm, shorten, span, time_cost
from robot_rl.sim.arrays import constant
from robot_rl.sim.world import Draw, Reset, View, asset
from robot_rl.types import Array
from robot_rl.types.options import Positive

_LOW, _HIGH = (-0.16, -0.20, 0.009), (0.16, 0.20, 0.24)
_HALF = 0.008  # half the rod's thickness, as in the model, m
_REACH = 0.024  # from the rod's middle to where an instrument holds it
_OPEN = 0.04  # largest distance of the fingers, as in the model, m
_SPEED, _LEASH = 0.25, 0.04  # m/s at action 1; m that the command may be ahead of the instrument
_MEET = (0.0, 0.0, 0.11)  # where the rod is handed over
_TIP, _NEAR, _LAG, _FAR, _RATE = 0.1, 0.05, 0.02, 0.15, 0.3  # units of the state


class Transfer:
    """Two instruments hand a rod over; success within 2 cm of the goal, in the right one alone.

    The rod lies on the left, the goal is on the right, further than the left instrument goes.

    Args:
        control_hz: decisions per second: 10, 20 or 25.
        seconds: length of an episode.
        reward: "dense", in [0, 1] per step and near 1 at the goal, or "sparse", 1 where successful.
        terminate_on_success: end the episode at success. The dense reward is then lowered by 1, so that every step
            costs and finishing early never loses reward.

    Raises:
        ValueError: an option outside these values.
    """

    name: str = "transfer"
    cameras: tuple[str, ...] = ("front", "left_wrist", "right_wrist")
    markers: ClassVar[dict[str, str]] = {"goal": "goal"}
    radius = 0.02
    left_edge = -0.03
    """The left instrument stays on this side (y, m), the right one on the other side of its negative."""

    action_names: tuple[str, ...] = (
        *(f"{name}_d{axis}" for name in ("left", "right") for axis in "xyz"),
        "left_gripper_opening",
        "right_gripper_opening",
    )
    action_units: tuple[str, ...] = ("m",) * 8
    obs_names: tuple[str, ...] = (
        *(f"{name}_{axis}" for name in ("left", "right") for axis in "xyz"),
        *(f"{name}_velocity_{axis}" for name in ("left", "right") for axis in "xyz"),
        *(f"{name}_lag_{axis}" for name in ("left", "right") for axis in "xyz"),
        "left_opening",
        "right_opening",
        *(f"{name}_to_rod_{axis}" for name in ("left", "right") for axis in "xyz"),
        *(f"rod_axis_{axis}" for axis in "xyz"),
        *(f"rod_to_goal_{axis}" for axis in "xyz"),
        *(f"rod_{axis}" for axis in "xyz"),
    )

    def __init__(
        self,
        control_hz: Positive = 10.0,
        seconds: Positive = 10.0,
        reward: str = "dense",
        terminate_on_success: bool = False,
    ) -> None:
        if reward not in ("dense", "sparse"):
            raise ValueError(f"reward is '{reward}', expected 'dense' or 'sparse'")
        if control_hz not in (10, 20, 25):
            raise ValueError(f"control_hz is {control_hz:g}, expected 10, 20 or 25")
        self._dense, self._terminate = reward == "dense", terminate_on_success
        self.control_hz = float(control_hz)
        self.episode_steps = round(seconds * control_hz)
        step = _SPEED / self.control_hz
        self.action_low, self.action_high = (-step,) * 6 + (0.0,) * 2, (step,) * 6 + (_OPEN,) * 2
        self._low = (*_LOW[:1], self.left_edge, _LOW[2], *_LOW)
        self._high = (*_HIGH, _HIGH[0], -self.left_edge, _HIGH[2])

    def mjcf(self) -> str:
        """The model: table, two instruments, a rod, and a ball where the goal is."""
        return asset("transfer/transfer.xml")

    def reset(self, draw: Draw, n: int, xp: ModuleType) -> Reset:
        """Instruments apart and open; rod on the left, turned by at most 0.2 rad; goal in the air on the right."""
        unit = draw.uniform(12)
        left = span(unit[:, :3], (-0.05, 0.08, 0.10), (0.05, 0.15, 0.16))
        right = span(unit[:, 3:6], (-0.05, -0.15, 0.10), (0.05, -0.08, 0.16))
        place = span(unit[:, 6:8], (-0.06, 0.07), (0.06, 0.13))
        half_turn = span(unit[:, 8:9], (-0.1,), (0.1,))
        goal = span(unit[:, 9:12], (-0.06, -0.16, 0.05), (0.06, -0.10, 0.14))
        zero = xp.zeros_like(half_turn)
        fingers = xp.concat([zero + 0.5 * _OPEN, zero + 0.5 * _OPEN], axis=1)
        robot = xp.concat([left, fingers, right, fingers], axis=1)
        rod = xp.concat([place, zero + _HALF, xp.cos(half_turn), zero, zero, xp.sin(half_turn)], axis=1)
        qpos = xp.concat([robot, rod], axis=1)
        command = xp.concat([left, right], axis=1)
        task = {"goal": goal, "command": command}
        return Reset(qpos=qpos, qvel=xp.zeros_like(qpos[:, 1:]), ctrl=robot, task=task)

    def control(self, view: View, action: Array) -> Array:
        """Positions of slides and fingers."""
        xp = view.xp
        command = view.task["command"]
        action = xp.astype(action, command.dtype)
        measured = xp.astype(_tips(view), command.dtype)
        target = command + action[:, :6] * (_SPEED / self.control_hz)
        target = xp.minimum(xp.maximum(target, measured - _LEASH), measured + _LEASH)
        low, high = constant(self._low, command), constant(self._high, command)
        command[...] = xp.minimum(xp.maximum(target, low), high)
        left, right = ((action[:, i : i + 1] + 1.0) * (0.25 * _OPEN) for i in (6, 7))
        return xp.concat([command[:, :3], left, left, command[:, 3:], right, right], axis=1)

    def update(self, view: View) -> None:
        """Nothing to remember."""

    def tool(self, view: View) -> dict[str, Array]:
        """Places and limits of the two instruments [m], and their openings in units of the actions."""
        low, high = (constant(limit, view.qpos) for limit in (self._low, self._high))
        speed = view.xp.concat([view.qvel[:, :3], view.qvel[:, 5:8]], axis=1)
        grip = view.xp.stack(_openings(view), axis=1) * (2.0 / _OPEN) - 1.0
        return {"position": _tips(view), "velocity": speed, "low": low, "high": high, "gripper": grip}

    def observe(self, view: View) -> Array:
        """The instruments, the vectors from each to the end of the rod that it holds, the rod's axis, rod and goal."""
        xp, tips, rod = view.xp, _tips(view), view.qpos[:, 10:13]
        axis = _axis(view)
        speed = xp.concat([view.qvel[:, :3], view.qvel[:, 5:8]], axis=1)
        openings = xp.stack(_openings(view), axis=1) * (2.0 / _OPEN) - 1.0
        parts = [
            (tips - constant((0.0, 0.1, 0.1, 0.0, -0.1, 0.1), tips)) / _TIP,
            speed / _RATE,
            (view.task["command"] - tips) / _LAG,
            openings,
            (rod + _REACH * axis - tips[:, :3]) / _NEAR,
            (rod - _REACH * axis - tips[:, 3:]) / _NEAR,
            axis,
            (view.task["goal"] - rod) / _FAR,
            (rod - constant(_MEET, rod)) / _FAR,
        ]
        return xp.astype(xp.concat(parts, axis=1), xp.float32)

    def reward(self, view: View) -> Array:
        """Dense: 0.1 for the left one at the rod, 0.2 for lifting, 0.2 for the right one at it, 0.2 for handing over,
        0.3 for the way to the goal; stages behind count in full."""
        xp = view.xp
        if not self._dense:
            return view.total({"success": xp.astype(self.success(view), xp.float32)})
        rod, tips, axis = view.qpos[:, 10:13], _tips(view), _axis(view)
        left = norm(rod + _REACH * axis - tips[:, :3])
        right = norm(rod - _REACH * axis - tips[:, 3:])
        near_left, near_right = 1.0 - xp.tanh(left / 0.05), 1.0 - xp.tanh(right / 0.05)
        up = xp.astype(rod[:, 2] > 0.03, left.dtype)
        alone = xp.astype(self._alone(view), left.dtype)
        far = norm(view.task["goal"] - rod)
        way = 1.0 - 0.5 * xp.tanh(far / 0.15) - 0.5 * xp.tanh(far / 0.04)
        one = xp.ones_like(left)
        terms = {"left_at_rod": 0.1 * xp.where(alone > 0, one, near_left), "lift": 0.2 * up}
        terms["right_at_rod"] = 0.2 * up * xp.where(alone > 0, one, near_right)
        terms |= {"hand_over": 0.2 * alone, "carry": 0.3 * alone * way}
        return view.total(terms | time_cost(left) if self._terminate else terms)

    def terminated(self, view: View) -> Array:
        """Success, when asked to end there."""
        done = self.success(view)
        return done if self._terminate else view.xp.zeros_like(done)

    def success(self, view: View) -> Array:
        """The rod is within 2 cm of the goal, in the right instrument and not in the left."""
        return self._alone(view) & (norm(view.task["goal"] - view.qpos[:, 10:13]) < self.radius)

    def expert(self, state: Array) -> Array:
        """Left: grasp, lift to the meeting point, let go once the right one holds, withdraw. Right: wait, grasp,
        carry."""
        xp = array_api_compat.array_namespace(state)
        lag, opening = state[:, 12:18] * _LAG, (state[:, 18:20] + 1.0) * (0.5 * _OPEN)
        to_left, to_right = state[:, 20:23] * _NEAR, state[:, 23:26] * _NEAR
        to_goal, rod = state[:, 29:32] * _FAR, state[:, 32:35] * _FAR
        right_tip = state[:, 3:6] * _TIP + constant((0.0, -0.1, 0.1), state)
        thick = 2 * _HALF
        held = [(opening[:, i] < thick + 0.004) & (norm(way) < 0.016) for i, way in enumerate((to_left, to_right))]
        left_holds, right_holds = held
        at = [norm(way) < 0.007 for way in (to_left, to_right)]
        let_go = opening[:, 0] > thick + 0.012
        met = norm(rod) < 0.012
        # left: to the rod; with it to the meeting point; away when the right one has it
        away = xp.zeros_like(to_left) + constant((0.0, 0.08, 0.02), state)
        left = xp.where(left_holds[:, None], -rod, _funnel(xp, to_left))
        left = xp.where(right_holds[:, None], xp.where(let_go[:, None], away, xp.zeros_like(away)), left)
        # right: beside the meeting point; to the rod once it is there; to the goal once the left one has let go
        wait = constant((0.0, -0.09, 0.13), state) - right_tip
        free = right_holds & let_go & (norm(to_left) > 0.03)
        right = xp.where((left_holds & met)[:, None], _funnel(xp, to_right), wait)
        right = xp.where(right_holds[:, None], xp.where(free[:, None], to_goal, xp.zeros_like(to_goal)), right)
        wide, shut = xp.zeros_like(opening[:, 0]) + _OPEN, xp.zeros_like(opening[:, 0])
        grip_left = xp.where((at[0] | left_holds) & ~right_holds, shut, wide)
        grip_right = xp.where((at[1] & left_holds & met) | right_holds, shut, wide)
        move = (xp.concat([left, right], axis=1) - lag) / (_SPEED / self.control_hz)
        move = xp.concat([shorten(move[:, :3]), shorten(move[:, 3:])], axis=1)
        grips = xp.stack([grip_left, grip_right], axis=1) * (2.0 / _OPEN) - 1.0
        return xp.clip(xp.concat([move, grips], axis=1), -1.0, 1.0)

    def _alone(self, view: View) -> Array:
        """(N,) the right instrument holds the rod off the table, and the left one does not touch it."""
        rod, tips, axis = view.qpos[:, 10:13], _tips(view), _axis(view)
        left, right = _openings(view)
        near = norm(rod - _REACH * axis - tips[:, 3:]) < 0.02
        free = (left > 2 * _HALF + 0.008) | (norm(rod + _REACH * axis - tips[:, :3]) > 0.04)
        return near & (right < 2 * _HALF + 0.006) & free & (rod[:, 2] > _HALF + 0.01)


def _tips(view: View) -> Array:
    """(N, 6) places of both instruments."""
    return view.xp.concat([view.qpos[:, :3], view.qpos[:, 5:8]], axis=1)


def _openings(view: View) -> tuple[Array, Array]:
    """(N,) distances of the fingers of both."""
    return view.qpos[:, 3] + view.qpos[:, 4], view.qpos[:, 8] + view.qpos[:, 9]


def _axis(view: View) -> Array:
    """(N, 3) the rod's long axis, from its right end to its left."""
    w, x, y, z = (view.qpos[:, 13 + i] for i in range(4))
    return view.xp.stack([2.0 * (x * y - w * z), 1.0 - 2.0 * (x * x + z * z), 2.0 * (y * z + w * x)], axis=1)


def _funnel(xp: ModuleType, way: Array) -> Array:
    """Over the place first, then down: open fingers come down around the rod, never on it."""
    aside = norm(way[:, :2])
    above = xp.clip(4.0 * (aside - 0.006), 0.0, 0.05)
    return xp.concat([way[:, :2], (way[:, 2] + above)[:, None]], axis=1)
