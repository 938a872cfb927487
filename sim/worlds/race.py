"""Lap a closed track with a small RC car: four wheels in contact, ideal differential, Ackermann steering.

Everything about the track is relative to the car, as a localised real car knows it. The place along the track is
followed in a window about the last one, so that neither a short cut across the infield nor a neighbouring lane counts:
checkpoints fall one after the other or not at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType

import array_api_compat
import numpy as np

from robot_rl.sim.world import Draw, Reset, View, asset, heading
from robot_rl.sim.worlds.driving_reward import DrivingLimits, SimpleReward
from robot_rl.sim.worlds.race_track import centre_line, load_points, track_meshes
from robot_rl.types import Array
from robot_rl.types.options import Count, Positive

STEER = 0.45
"""Largest steering angle [rad]."""
SLOWEST, FASTEST = -1.0, 4.0
"""Wheel speeds [m/s] that the throttle actions -1 and 1 ask for."""
WHEELBASE, TRACK_WIDTH, WHEEL_RADIUS = 0.30, 0.22, 0.05
HALF_LENGTH, HALF_BREADTH = 0.20, 0.135
"""Half the footprint [m] of the car, wheels included."""
COLLISION_PENALTY = 5.0
LAP_BONUS = 5.0
STEER_COST = 0.05
"""Reward terms: see `Race.reward`."""

_SPACING = 0.1
_WINDOW = 8  # samples to each side in which the car's place is sought: 0.8 m, four times what it drives in a step
_CURVATURE_AT = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0)  # metres ahead
_POINTS_AT = (0.5, 1.0, 1.5, 2.5)
_AHEAD = tuple(round(x / _SPACING) for x in _CURVATURE_AT)
_POINTS = tuple(round(x / _SPACING) for x in _POINTS_AT)


class Race:
    """Drive laps without touching the border.

    Reward per step: metres of progress along the centre line (backwards is negative), less 0.05 (change of the
    steering action)^2, less 5 on a collision (the car's footprint crosses the border; ends the episode), plus 5 once
    when the lap is complete. Success: all checkpoints since the start passed in order, that is one full lap.

    Args:
        track: file name in assets/race without its ending: control points of the centre line.
        half_width: half of the driveable width [m].
        checkpoints: how many, at equal distances along the track; the car starts at a random one.
        practice: start again at the last checkpoint passed, after a collision or the time limit (uninterrupted
            practice on one real track, where nobody carries the car elsewhere).

    Raises:
        ValueError: unknown track, or a width or count out of range.

    Source: the practice option follows Stachowicz et al., FastRLAP (2023), section III.
    """

    name = "race"
    control_hz = 20.0
    episode_steps = 800
    action_names: tuple[str, ...] = ("steering", "wheel_speed")
    action_low: tuple[float, ...] = (-STEER, SLOWEST)
    action_high: tuple[float, ...] = (STEER, FASTEST)
    action_units: tuple[str, ...] = ("rad", "m/s")
    obs_names: tuple[str, ...] = (
        *("forward_speed/4", "side_speed/4", "yaw_rate/4", "steering/0.45", "offset/half_width"),
        *("sin_heading_error", "cos_heading_error", "lap_left"),
        *(f"curvature_{x:g}m" for x in _CURVATURE_AT),
        *(f"point_{x:g}m.{axis}/{x:g}" for x in _POINTS_AT for axis in "xy"),
        *("previous_steering", "previous_wheel_speed"),
    )
    cameras: tuple[str, ...] = ("chase", "onboard", "overview")
    eval_options: Mapping[str, object] = {"practice": False}
    way_out: tuple[float | None, ...] = (None, -1.0)
    """Back out of where the car is stuck, with any steering."""

    def __init__(
        self,
        track: str = "club",
        half_width: Positive = 0.6,
        checkpoints: Count = 12,
        practice: bool = False,
        reward: str = "progress",
        speed_limit: Positive = 3.0,
    ) -> None:
        if reward not in ("progress", "simple"):
            raise ValueError(f"reward is '{reward}', expected 'progress' or 'simple'")
        line = centre_line(load_points(track), _SPACING)
        tightest = 1.0 / float(np.abs(line["curvature"]).max())
        if not HALF_LENGTH < half_width < tightest:
            raise ValueError(
                f"half_width is {half_width} m, expected more than the car's half length {HALF_LENGTH} and less than "
                f"the tightest radius of track {track!r}, {tightest:.2f} m"
            )
        if not 3 <= checkpoints <= len(line["xy"]) // 10:
            raise ValueError(f"checkpoints is {checkpoints}, expected 3 to {len(line['xy']) // 10} on this track")
        self.half_width, self.checkpoints, self.practice = half_width, checkpoints, practice
        self.length = float(line["length"])
        self._line = line
        self._samples = len(line["xy"])
        self._spacing = self.length / self._samples
        self._columns: dict[tuple[str, str, str], Array] = {}
        self._simple: SimpleReward | None = None
        if reward == "simple":
            limits = DrivingLimits(speed=speed_limit, off_centre=0.5 * half_width)
            self._simple = SimpleReward(self.length, 1.0 / self.control_hz, limits)

    def mjcf(self) -> str:
        """The model as one MJCF string, the drawn track included."""
        meshes, geoms = track_meshes(self._line, self.half_width)
        return asset("race/car.xml").replace("<!--TRACK_ASSET-->", meshes).replace("<!--TRACK_GEOM-->", geoms)

    def reset(self, draw: Draw, n: int, xp: ModuleType) -> Reset:
        """Stand at a random checkpoint, up to 0.2 m to the side and 0.2 rad askew.

        Args:
            draw: random numbers of the environments that reset.
            n: how many those are.
            xp: array namespace.

        Returns:
            Initial states; task "gate": (n,) int64 the checkpoint of the start, "index": (n,) int64 sample of the
            centre line nearest to the car, "place": (n,) metres along the track, "progress": (n,) metres since the
            start, "best": (n,) the most of it so far, "advance": (n,) metres of the last step, "lap": (n,) bool a lap
            is complete, "finished": (n,) bool it became complete in the last step.
        """
        gate = xp.astype(xp.floor(draw.uniform(1)[:, 0] * self.checkpoints), xp.int64) % self.checkpoints
        return self._start(draw, gate, xp)

    def reset_after(self, draw: Draw, view: View) -> Reset:
        """Initial states that follow episodes which have just ended.

        Args:
            draw: random numbers of the environments that reset.
            view: the final state of these n environments.

        Returns:
            With `practice` and no complete lap, a start at the last checkpoint passed; else as `reset`.
        """
        xp, task = view.xp, view.task
        fresh = self.reset(draw, len(view.step), xp)
        if not self.practice:
            return fresh
        passed = xp.astype(xp.floor(task["best"] / self._gate_distance), xp.int64)
        last = (task["gate"] + passed) % self.checkpoints
        return self._start(draw, xp.where(task["lap"], fresh.task["gate"], last), xp)

    def place(self, view: View) -> Array:
        """(N, 2) where the cars are [m]."""
        return view.qpos[:, :2]

    def control(self, view: View, action: Array) -> Array:
        """Steering angles of both front wheels (Ackermann) [rad] and mean wheel speed [rad/s].

        Args:
            view: state of N environments.
            action: (N, 2) steering and wheel speed in [-1, 1].

        Returns:
            (N, 3).
        """
        xp = view.xp
        action = xp.clip(action, -1.0, 1.0)
        slope = xp.tan(action[:, 0] * STEER)
        # The inner wheel turns more: both axes meet the rear axle's line in one point.
        left = xp.atan(slope / (1.0 - slope * (0.5 * TRACK_WIDTH / WHEELBASE)))
        right = xp.atan(slope / (1.0 + slope * (0.5 * TRACK_WIDTH / WHEELBASE)))
        speed = 0.5 * (FASTEST + SLOWEST) + 0.5 * (FASTEST - SLOWEST) * action[:, 1]
        return xp.stack([left, right, speed / WHEEL_RADIUS], axis=1)

    def update(self, view: View) -> None:
        """Follow the car along the track: place, progress, checkpoints and lap.

        Args:
            view: state of N environments; `view.task` is advanced.
        """
        xp, task = view.xp, view.task
        steps = xp.arange(-_WINDOW, _WINDOW + 1, device=array_api_compat.device(view.qpos))
        window = (task["index"][:, None] + steps[None, :]) % self._samples
        shape = window.shape
        near = xp.reshape(xp.take(self._column("xy", view.qpos), xp.reshape(window, (-1,)), axis=0), (*shape, 2))
        gap = xp.sum((near - view.qpos[:, None, :2]) ** 2, axis=2)
        task["index"] = (task["index"] + xp.argmin(gap, axis=1) - _WINDOW) % self._samples
        along, offset = self._offset(view)
        place = xp.astype(xp.astype(task["index"], along.dtype) * self._spacing + along, task["place"].dtype)
        moved = place - task["place"]
        moved = moved - self.length * xp.round(moved / self.length)
        task["place"], task["advance"] = place, moved
        task["progress"] = task["progress"] + moved
        task["best"] = xp.maximum(task["best"], task["progress"])
        lap = task["best"] >= self.length
        task["finished"] = lap & ~task["lap"]
        task["lap"] = lap
        if self._simple is not None:
            ahead, side = _turn_back(xp, heading(view), view.qvel)
            self._simple.update(task, xp, along=ahead, side=side, yaw_rate=view.qvel[:, 5], offset=offset)

    def observe(self, view: View) -> Array:
        """What a localised car knows: its motion, its place across the track, the track ahead, its last action.

        Args:
            view: state of N environments.

        Returns:
            (N, 24) float32 in the order of `obs_names`: speeds over 4 m/s, yaw rate over 4 rad/s, steering over its
            largest angle, offset from the centre line over half the width (positive left), heading error as sine and
            cosine, part of the lap still to go, curvature [1/m] at 0 to 3 m ahead, points of the centre line in the
            car's frame over their distance, and the previous action.
        """
        xp, task = view.xp, view.task
        yaw = heading(view)
        along, side = _turn_back(xp, yaw, view.qvel)
        _, offset = self._offset(view)
        error = self._heading_error(view)
        columns = [along / 4.0, side / 4.0, view.qvel[:, 5] / 4.0, view.qpos[:, 7] / STEER]
        columns += [offset / self.half_width, xp.sin(error), xp.cos(error)]
        columns += [1.0 - xp.clip(task["best"] / self.length, 0.0, 1.0)]
        columns += [self._look_up("curvature", task["index"] + k, view.qpos) for k in _AHEAD]
        for k, distance in zip(_POINTS, _POINTS_AT):
            point = self._look_up("xy", task["index"] + k, view.qpos)
            columns += [part / distance for part in _turn_back(xp, yaw, point - view.qpos[:, :2])]
        columns += [view.action[:, 0], view.action[:, 1]]
        return xp.stack([xp.astype(column, xp.float32) for column in columns], axis=1)

    def reward(self, view: View) -> Array:
        """Progress [m] - 0.05 (change of steering action)^2 - 5 on collision + 5 when the lap is complete.

        With `reward="simple"`: new route completion [%] times penalty factors, -1 off the track; see `SimpleReward`.

        Args:
            view: state of N environments.

        Returns:
            (N,) float32.
        """
        xp, task = view.xp, view.task
        if self._simple is not None:
            return xp.astype(self._simple.value(task, self.terminated(view), xp), xp.float32)
        progress = task["advance"]
        return view.total(
            {
                "progress": progress,
                "steering": -STEER_COST * (view.action[:, 0] - view.previous_action[:, 0]) ** 2,
                "collision": -COLLISION_PENALTY * xp.astype(self.terminated(view), progress.dtype),
                "lap": LAP_BONUS * xp.astype(task["finished"], progress.dtype),
            }
        )

    def terminated(self, view: View) -> Array:
        """A corner of the car's footprint is beyond the border.

        Args:
            view: state of N environments.

        Returns:
            (N,) bool.
        """
        xp, error = view.xp, self._heading_error(view)
        _, offset = self._offset(view)
        reach = HALF_LENGTH * xp.abs(xp.sin(error)) + HALF_BREADTH * xp.abs(xp.cos(error))
        return xp.abs(offset) + reach > self.half_width

    def success(self, view: View) -> Array:
        """A full lap since the start is complete; stays true.

        Args:
            view: state of N environments.

        Returns:
            (N,) bool.
        """
        return view.task["lap"] & True

    def expert(self, state: Array) -> Array:
        """Pure pursuit of the centre line, as fast as the bends ahead allow.

        Args:
            state: (N, 24) as `observe` gives it.

        Returns:
            (N, 2) action in [-1, 1].

        Source: Coulter, Implementation of the Pure Pursuit Path Tracking Algorithm (1992).
        """
        xp = array_api_compat.array_namespace(state)
        speed = state[:, 0] * 4.0
        first = 8 + len(_AHEAD)
        near_x, near_y = state[:, first + 2] * _POINTS_AT[1], state[:, first + 3] * _POINTS_AT[1]
        # The rear axle follows the arc through the point: curvature 2 y / d^2 seen from that axle.
        near_x = near_x + 0.5 * WHEELBASE
        steer = xp.atan(WHEELBASE * 2.0 * near_y / (near_x**2 + near_y**2 + 1e-6))
        # Highest speed in a bend of curvature k with sideways acceleration a is sqrt(a / k); before it, braking at b
        # over the distance d allows sqrt(v^2 + 2 b d).
        allowed = [
            xp.sqrt(SIDE_ACCELERATION / (xp.abs(state[:, 8 + i]) + 0.05) + 2.0 * BRAKING * max(distance - 0.3, 0.0))
            for i, distance in enumerate(_CURVATURE_AT)
        ]
        target = xp.clip(xp.min(xp.stack(allowed, axis=1), axis=1), 0.5, CRUISE)
        target = speed + xp.clip(target - speed, -1.0, 0.6)
        throttle = (target - 0.5 * (FASTEST + SLOWEST)) / (0.5 * (FASTEST - SLOWEST))
        return xp.stack([xp.clip(steer / STEER, -1.0, 1.0), xp.clip(throttle, -1.0, 1.0)], axis=1)

    @property
    def _gate_distance(self) -> float:
        return self.length / self.checkpoints

    def _start(self, draw: Draw, gate: Array, xp: ModuleType) -> Reset:
        noise = draw.uniform(2, low=-0.2, high=0.2)
        place = xp.astype(gate, noise.dtype) * self._gate_distance
        index = xp.astype(xp.round(place / self._spacing), xp.int64) % self._samples
        course, spot = (xp.astype(self._look_up(name, index, noise), noise.dtype) for name in ("heading", "xy"))
        yaw, zero = course + noise[:, 1], xp.zeros_like(noise[:, 0])
        x = spot[:, 0] - xp.sin(course) * noise[:, 0]
        y = spot[:, 1] + xp.cos(course) * noise[:, 0]
        quaternion = [xp.cos(0.5 * yaw), zero, zero, xp.sin(0.5 * yaw)]
        columns = [x, y, zero + WHEEL_RADIUS, *quaternion, *([zero] * 6)]
        place = xp.astype(index, noise.dtype) * self._spacing
        no = zero > 1.0
        return Reset(
            qpos=xp.stack(columns, axis=1),
            qvel=xp.stack([zero] * 12, axis=1),
            ctrl=xp.stack([zero] * 3, axis=1),
            task={
                **{"gate": gate, "index": index, "place": place, "progress": zero, "best": zero, "advance": zero},
                **{"lap": no, "finished": no},
                **({} if self._simple is None else self._simple.start(zero, xp)),
            },
        )

    def _offset(self, view: View) -> tuple[Array, Array]:
        """The car relative to its sample of the centre line: metres along it and to its left, each (N,)."""
        course, spot = (self._look_up(name, view.task["index"], view.qpos) for name in ("heading", "xy"))
        return _turn_back(view.xp, course, view.qpos[:, :2] - spot)

    def _heading_error(self, view: View) -> Array:
        """(N,) how far the cars are turned to the left of the centre line [rad], not wrapped."""
        return heading(view) - self._look_up("heading", view.task["index"], view.qpos)

    def _look_up(self, name: str, index: Array, like: Array) -> Array:
        """Rows of a column of the centre line, which goes round."""
        xp = array_api_compat.array_namespace(like)
        return xp.take(self._column(name, like), index % self._samples, axis=0)

    def _column(self, name: str, like: Array) -> Array:
        """Of the centre line, of the kind and on the device of `like`, made once for each."""
        xp, device = array_api_compat.array_namespace(like), array_api_compat.device(like)
        key = name, xp.__name__, str(device)
        if key not in self._columns:
            self._columns[key] = xp.asarray(self._line[name], dtype=xp.float64, device=device)
        return self._columns[key]


SIDE_ACCELERATION, BRAKING, CRUISE = 4.5, 3.0, 3.4
"""Limits of the scripted driver: m/s^2 sideways, m/s^2 when braking, m/s on the straight."""


def _turn_back(xp: ModuleType, angle: Array, vector: Array) -> tuple[Array, Array]:
    """(N,) each: vectors (N, 2 or more) along a direction [rad], and to its left."""
    c, s = xp.cos(angle), xp.sin(angle)
    return c * vector[:, 0] + s * vector[:, 1], c * vector[:, 1] - s * vector[:, 0]
