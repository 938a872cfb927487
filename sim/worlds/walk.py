"""Walk: any robot on legs with a card follows a velocity command on a plane."""

from __future__ import annotations

import math
from functools import cached_property
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

from robot_rl.sim.arrays import constant
from robot_rl.sim.velocity_task import FALL_PENALTY, VelocityTask, gravity, tracking_error, trunk_velocity
from robot_rl.sim.world import Draw, Reset, View
from robot_rl.types import Array
from robot_rl.types.card import Card
from robot_rl.types.card_model import find_model, need_model, with_model
from robot_rl.types.options import Interval, NotNegative, Positive
from robot_rl.types.policy_card import PolicyCard, Term

if TYPE_CHECKING:
    from robot_rl.sim.legs_scene import LegsScene
    from robot_rl.sim.legs_trot import Trot

_UPRIGHT = 0.5
"""Fallen: cosine of the tilt below this."""


class Walk(VelocityTask):
    """Walk with a commanded forward speed, side speed and turning, on the card's own gains.

    The state is what the policy node of a real robot makes of an IMU, joint states and a velocity command
    (`robot_rl.legs.observe` with `policy_card`): nothing in it that a robot does not measure. Targets are the card's
    home pose and up to `reach` beside it.

    Reward per step: exp(-|v - v*|^2 / 0.0625) + 0.5 exp(-(w - w*)^2 / 0.0625), velocity and turning of the trunk, less
    2 vz^2, 0.05 |roll and pitch rate|^2, 2 |tilt|^2 (horizontal part of the unit gravity vector), 2e-4 |torque|^2 over
    the number of joints and effort scale (torque as shares of the largest, times 20), 0.01 |change of action|^2,
    0.1 |joints - home|^2, 30 sum (z - z*)^2 of the feet, whose height above the ground z* follows the gait's clock,
    0.1 |slip|^2 of feet that should stand, and less 5 for a fall, which ends the episode.
    Success: at the end of the full 10 s the mean of |v - v*| over the episode is below 0.15 m/s and that of |w - w*|
    below 0.25 rad/s.

    Args:
        forward: range of the commanded forward speed [m/s].
        side: range of the commanded speed to the left [m/s].
        turn: range of the commanded turning [rad/s].
        reach: largest distance of a joint's target from home [rad].
        period: of the gait's clock [s].
        lift: how high feet are to be lifted [m].
        robot: the card of the robot (robot=<card> on the command line).

    Raises:
        ValueError: a range is not two numbers in order, no card, or one that does not fit its model.

    Source: reward terms after Rudin et al., Learning to Walk in Minutes (2021), table 4, and Siekmann et al.,
    Sim-to-Real Learning of All Common Bipedal Gaits (2021), for the clock; weights ours.
    """

    name: str = "walk"
    bounds = (0.15, 0.25)
    low = 0.55
    """Fallen: trunk lower above the ground than this share of its height when standing."""
    sharp = 0.25
    """Errors of the velocity [m/s] and of the yaw rate [rad/s] at which 37 % of their reward is left: half of what is
    asked at most. Twice as wide, an error of .12 m/s cost 6 % and PPO kept it."""
    clock = 30.0
    """Weight of the squares of the feet's distances [m] from the height that the clock asks for."""
    cameras: tuple[str, ...] = ("track",)

    def __init__(
        self,
        forward: Interval = (0.0, 0.5),
        side: Interval = (-0.15, 0.15),
        turn: Interval = (-0.4, 0.4),
        reach: Positive = 0.7,
        period: Positive = 0.4,
        lift: NotNegative = 0.06,
        robot: Card | None = None,
    ) -> None:
        super().__init__(forward, side, turn)
        if robot is None:
            raise ValueError(
                f"{self.name} needs the card of a robot on legs: robot=go2 for one that comes with the package, or "
                "robot-rl robot new <model.urdf> name=my_legs, then robot=my_legs"
            )
        self.card = own = Card.model_validate(robot)
        self._period, self._lift = float(period), float(lift)
        largest = tuple(max(abs(low), abs(high), 1e-3) for low, high in (forward, side, turn))
        self.policy_card = PolicyCard(
            format="onnx",
            sha256="",
            source=f"env={self.name} robot={own.name}",
            control_hz=self.control_hz,
            joints=tuple(joint.name for joint in own.joints),
            default=own.home,
            kp=tuple(joint.kp or 1.0 for joint in own.joints),
            kd=tuple(joint.kd or 1.0 for joint in own.joints),
            action_scale=reach,
            action_clip=1.0,
            observation=(
                Term(term="angular_velocity", scale=0.25),
                Term(term="gravity"),
                Term(term="velocity_command", scale=(2.0, 2.0, 1.0)),
                Term(term="joint_positions"),
                Term(term="joint_velocities", scale=0.05),
                Term(term="last_action"),
                Term(term="gait_phase", period=period),
            ),
            largest_command=(largest[0], largest[1], largest[2]),
        )
        names = self.policy_card.joints
        self._count = len(names)
        self.action_names = tuple(f"{name}_target" for name in names)
        self.action_units = ("rad",) * self._count
        self.action_low = tuple(value - reach for value in own.home)
        self.action_high = tuple(value + reach for value in own.home)
        self.obs_names = tuple(
            f"{term.term}_{i}"
            for term, size in zip(self.policy_card.observation, self.policy_card.sizes())
            for i in range(size)
        )
        self._reach = float(reach)
        self._effort = np.array(own.limit("effort"))
        self._kp, self._kd = np.array(self.policy_card.kp), np.array(self.policy_card.kd)

    @cached_property
    def scene(self) -> LegsScene:
        """Of the card; a robot's own computer, which only observes and acts, needs no model."""
        from robot_rl.sim.legs_scene import scene  # loads MuJoCo, which other engines do without

        path = find_model(self.card.model.path)  # the card in a shipped policy names no place
        return scene(need_model(with_model(self.card, path)))

    @cached_property
    def _offset(self) -> np.ndarray:
        """(F,) of each foot's phase: diagonal feet step together, and a left foot against a right one."""
        x, y = self.scene.feet[:, 0], self.scene.feet[:, 1]
        front = x - x.mean() > -0.05
        return np.where(front == (y > 0.0), 0.0, 0.5)

    @cached_property
    def _trot(self) -> Trot:
        from robot_rl.sim.legs_trot import Trot  # loads MuJoCo, as above

        return Trot(self.card, self.scene, self._offset, lift=self._lift, period=self._period)

    def mjcf(self) -> str:
        """The robot on a plane."""
        return self.scene.xml

    def reset(self, draw: Draw, n: int, xp: ModuleType) -> Reset:
        """Stand at home, joints up to 0.1 rad off, a push, any heading, a new command and gait phase.

        Args:
            draw: random numbers of the environments that reset.
            n: how many those are.
            xp: array namespace.

        Returns:
            Initial states.
        """
        command, chance = draw.uniform(3), draw.uniform(2)
        noise = draw.uniform(self._count, low=-0.1, high=0.1)
        push = draw.uniform(6, low=-0.3, high=0.3)
        stand = constant(self.scene.stand, noise)
        return self._start(xp, command, chance, stand[None, 7:] + noise, stand[2] + 0.01, push)

    def control(self, view: View, action: Array) -> Array:
        """(N, J) joint targets [rad] of (N, J) actions in [-1, 1]."""
        return constant(self.card.home, action)[None, :] + self._reach * view.xp.clip(action, -1.0, 1.0)

    def observe(self, view: View) -> Array:
        """(N, S) float32: the terms of `policy_card`, as `robot_rl.legs.observe` has them."""
        xp = view.xp
        phase = 2.0 * math.pi * self._phase(view)
        terms = {
            "angular_velocity": view.qvel[:, 3:6],
            "gravity": gravity(view),
            "velocity_command": view.task["command"],
            "joint_positions": view.qpos[:, 7:] - constant(self.card.home, view.qpos)[None, :],
            "joint_velocities": view.qvel[:, 6:],
            "last_action": view.action,
            "gait_phase": xp.stack([xp.sin(phase), xp.cos(phase)], axis=1),
        }
        parts = []
        for term in self.policy_card.observation:
            scale = constant(np.atleast_1d(np.asarray(term.scale, float)), terms[term.term])[None, :]
            parts.append(xp.astype(terms[term.term] * scale, xp.float32))
        return xp.concat(parts, axis=1)

    def privileged_names(self) -> tuple[str, ...]:
        """Names of what `privileged` tells."""
        return ("vx", "vy", "vz", "height", *(f"foot_{i}_height" for i in range(len(self.scene.feet))))

    def privileged(self, view: View) -> Array:
        """(N, 4 + F): velocity of the trunk in its own frame [m/s], its height and those of the feet [m]."""
        from robot_rl.sim.legs_scene import HEIGHT

        places = [view.qpos[:, :3], *(view.sensors[f"{HEIGHT}{i}"] for i in range(len(self.scene.feet)))]
        return view.xp.concat([trunk_velocity(view), *(self.above(place)[:, None] for place in places)], axis=1)

    def reward_terms(self, view: View) -> dict[str, Array]:
        """The weighted parts of the reward, name -> (N,)."""
        xp = view.xp
        speed, turn = tracking_error(view)
        error = view.ctrl - view.qpos[:, 7:]
        kp, kd, most = (constant(value, view.qpos)[None, :] for value in (self._kp, self._kd, self._effort))
        torque = xp.clip((kp * error - kd * view.qvel[:, 6:]) / most, -1.0, 1.0)
        tilt, sag = gravity(view)[:, :2], view.qpos[:, 7:] - constant(self.card.home, view.qpos)[None, :]
        foot, slip = self._feet(view)
        return {
            "velocity": xp.exp(-((speed / self.sharp) ** 2)),
            "yaw_rate": 0.5 * xp.exp(-((turn / self.sharp) ** 2)),
            "bounce": -2.0 * trunk_velocity(view)[:, 2] ** 2,
            "roll_pitch_rate": -0.05 * xp.sum(view.qvel[:, 3:5] ** 2, axis=1),
            "tilt": -2.0 * xp.sum(tilt**2, axis=1),
            "torque": -0.08 * xp.sum(torque**2, axis=1),
            "action_rate": -0.01 * xp.sum((view.action - view.previous_action) ** 2, axis=1),
            "pose": -0.1 * xp.sum(sag**2, axis=1),
            "gait": -self.clock * foot,
            "slip": -0.1 * slip,
            "fall": -FALL_PENALTY * xp.astype(self.terminated(view), view.qpos.dtype),
        }

    def terminated(self, view: View) -> Array:
        """(N,) bool, fallen: tilted by more than 60 degrees, or the trunk at `low` of its height."""
        low = self.low * float(self.scene.stand[2])
        return (self.above(view.qpos[:, :3]) < low) | (-gravity(view)[:, 2] < _UPRIGHT)

    def above(self, place: Array) -> Array:
        """(N,) how high places (N, 3) are above the ground [m]."""
        return place[:, 2]

    def miss(self, height: Array, wanted: Array) -> Array:
        """(N,) how far a foot is [m] from the height above the ground that the clock asks for."""
        return height - wanted

    def expert(self, state: Array) -> Array:
        """(N, J) actions of a scripted trot on four legs of three joints; zeros, which stand, for all others."""
        return self._trot.act(state, self._reach)

    def _phase(self, view: View) -> Array:
        """(N,) of the gait's clock [periods]."""
        xp = view.xp
        return view.task["phase"] + xp.astype(view.step, xp.float32) / (self._period * self.control_hz)

    def _feet(self, view: View) -> tuple[Array, Array]:
        """(N,) sum of squares of how far feet are from the height that the clock asks for, and of slip [m2/s2]."""
        from robot_rl.sim.legs_scene import HEIGHT, SPEED

        xp, offset, rest = view.xp, self._offset, float(self.scene.feet[:, 2].min())
        foot, slip = 0.0, 0.0
        for i in range(len(offset)):
            wave = xp.sin(2.0 * math.pi * (self._phase(view) + float(offset[i])))
            height = self.above(view.sensors[f"{HEIGHT}{i}"]) - rest
            foot = foot + self.miss(height, self._lift * xp.clip(wave, 0.0, None)) ** 2
            speed = xp.sum(view.sensors[f"{SPEED}{i}"][:, :2] ** 2, axis=1)
            slip = slip + xp.where(wave < 0.0, speed, xp.zeros_like(speed))
        return foot, slip  # type: ignore[return-value]
