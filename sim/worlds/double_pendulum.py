"""Swing-up of a torque-limited double pendulum with dry friction: the twin of a real one.

The model and the task follow the hardware of dfki-ric-underactuated-lab/double_pendulum: one of the two joints is
driven (`acrobot`: the elbow, `pendubot`: the shoulder), the arm starts hanging, and after 10 s the tip has to have
been above 0.45 m for half a second. State, action and reward are those of the logged hardware episodes, so that a
policy learned from the logs runs here and the other way round.
"""

from __future__ import annotations

import math
from types import ModuleType

import array_api_compat
import numpy as np

from robot_rl.sim.arrays import constant
from robot_rl.sim.world import Draw, Reset, View, asset
from robot_rl.types import Array
from robot_rl.types.options import NotNegative

LINK1, LINK2 = 0.2, 0.3
"""Lengths [m] from joint to joint and from joint to tip."""
GOAL_HEIGHT = 0.45
"""Height [m] of the tip above the first joint that counts as up (0.5 is the top)."""
HOLD_STEPS = 50
"""Control steps (0.5 s) that the tip has to be up at the end of the episode."""
TORQUE = 5.0
"""Torque limit [N*m] of the driven joint."""
SPEED_SCALE = 20.0
"""Joint speed [rad/s] that the state maps to 1; the hardware logs reach 19.8."""
FULL_TORQUE_SPEED, NO_TORQUE_SPEED = 25.0, 35.0
"""Torque that adds energy is full while both joints are slower than the first speed [rad/s] and none beyond the second:
the hardware stops at such speeds, and nothing would bound a simulated arm of so little damping."""

COMPENSATION_SPEED = 0.1
"""Speed [rad/s] of the passive joint beyond which its friction compensation is nearly whole."""

_M1, _M2, _R1, _R2 = 0.5234602302310271, 0.6255677234174437, 0.2, 0.25569305436052964
_I1, _I2, _ROTOR, _DAMPING, _G = 0.031887199591513114, 0.05086984812807257, 0.002263392, 0.001, 9.81
# Inertias about the joints as in the parameter file: _I1 and _I2 already hold m r^2.
_A1, _A2, _A3 = _I1 + _M2 * LINK1**2, _I2, _M2 * LINK1 * _R2
_G1, _G2 = _G * (_M1 * _R1 + _M2 * LINK1), _G * _M2 * _R2

# Weights of the swing-up features of `expert` and log of the cost below which the balance takes over, one row per
# robot, found by a cross-entropy search over simulated episodes of this model (return + 200 for success).
_SWING_UP = {
    "pendubot": ((-2.206, 0.726, 7.884, -1.563, -0.307, 0.189, -2.162, 0.751, -0.529, -0.349), 4.626),
    "acrobot": ((-2.965, -1.994, -3.465, 4.518, 0.157, -0.338, -2.380, -0.793, -0.034, -2.281), 4.300),
}


class DoublePendulum:
    """Swing up and hold a double pendulum of which one joint is driven.

    Reward per step: h / 0.5 - 0.01 a^2 with h [m] the height of the tip above the first joint and a the action.
    Success: h > 0.45 m during the last 0.5 s of the full 10 s. There are no terminal states.

    Args:
        robot: "pendubot" (first joint driven) or "acrobot" (second joint driven).
        spread: the start is hanging at rest, each angle [rad] and speed [rad/s] off by up to this much.
        compensation: torque [N*m] with which the motor of the passive joint works against its dry friction, as the
            hardware's did while most of the logs were made (docs/worlds/double_pendulum.md); 0 leaves it idle.

    Raises:
        ValueError: unknown robot, or negative spread or compensation.

    Source: https://github.com/dfki-ric-underactuated-lab/double_pendulum (identified model, task, leaderboard).
    """

    name = "double_pendulum"
    control_hz = 100.0
    episode_steps = 1000
    action_names: tuple[str, ...] = ("torque",)
    action_low: tuple[float, ...] = (-TORQUE,)
    action_high: tuple[float, ...] = (TORQUE,)
    action_units: tuple[str, ...] = ("N*m",)
    obs_names: tuple[str, ...] = ("sin_q1", "cos_q1", "sin_q2", "cos_q2", "dq1/20", "dq2/20")
    cameras: tuple[str, ...] = ("front",)

    def __init__(self, robot: str = "pendubot", spread: NotNegative = 0.05, compensation: NotNegative = 0.0) -> None:
        if robot not in _SWING_UP:
            raise ValueError(f"robot is {robot!r}, expected one of {sorted(_SWING_UP)}")
        if spread < 0:
            raise ValueError(f"spread is {spread}, expected a number >= 0 (rad and rad/s)")
        if compensation < 0:
            raise ValueError(f"compensation is {compensation}, expected a torque >= 0 (N*m)")
        self.robot = robot
        self.spread = spread
        self.compensation = compensation
        self._driven = 0 if robot == "pendubot" else 1
        self._gain, self._cost = balance(self._driven, 1.0 / self.control_hz)

    def mjcf(self) -> str:
        """The model as one MJCF string."""
        return asset("double_pendulum/double_pendulum.xml")

    def reset(self, draw: Draw, n: int, xp: ModuleType) -> Reset:
        """Hang at rest, up to `spread` off in every angle [rad] and speed [rad/s].

        Args:
            draw: random numbers of the environments that reset.
            n: how many those are.
            xp: array namespace.

        Returns:
            Initial states; task "held": (n,) int64 control steps that the tip has been up.
        """
        offset = draw.uniform(4, low=-self.spread, high=self.spread)
        zero = xp.zeros_like(offset[:, 0])
        return Reset(
            qpos=offset[:, :2],
            qvel=offset[:, 2:],
            ctrl=xp.zeros_like(offset[:, :2]),
            task={"held": xp.astype(zero, xp.int64)},
        )

    def control(self, view: View, action: Array) -> Array:
        """Torque of the driven joint [N*m], faded out where it would speed up an arm that is too fast already.

        Args:
            view: state of N environments.
            action: (N, 1) in [-1, 1].

        Returns:
            (N, 2) torques of both joints; the passive one gets what compensates its friction.
        """
        xp = view.xp
        torque = xp.clip(action[:, 0], -1.0, 1.0) * TORQUE
        fastest = xp.max(xp.abs(view.qvel), axis=1)
        share = xp.clip((NO_TORQUE_SPEED - fastest) / (NO_TORQUE_SPEED - FULL_TORQUE_SPEED), 0.0, 1.0)
        torque = xp.where(torque * view.qvel[:, self._driven] > 0.0, torque * share, torque)
        passive = self.compensation * xp.tanh(view.qvel[:, 1 - self._driven] / COMPENSATION_SPEED)
        return xp.stack([torque, passive] if self._driven == 0 else [passive, torque], axis=1)

    def update(self, view: View) -> None:
        """Count the control steps that the tip has been up without a break.

        Args:
            view: state of N environments; `view.task["held"]` is advanced.
        """
        held = view.task["held"]
        view.task["held"] = view.xp.where(tip_height(view) > GOAL_HEIGHT, held + 1, view.xp.zeros_like(held))

    def observe(self, view: View) -> Array:
        """The state of the hardware logs.

        Args:
            view: state of N environments.

        Returns:
            (N, 6) float32 [sin q1, cos q1, sin q2, cos q2, dq1 / 20, dq2 / 20], angles 0 hanging, speeds in rad/s.
        """
        xp, q = view.xp, view.qpos
        columns = [xp.sin(q[:, 0]), xp.cos(q[:, 0]), xp.sin(q[:, 1]), xp.cos(q[:, 1])]
        columns += [view.qvel[:, 0] / SPEED_SCALE, view.qvel[:, 1] / SPEED_SCALE]
        return xp.astype(xp.stack(columns, axis=1), xp.float32)

    def reward(self, view: View) -> Array:
        """Height of the tip over its largest value, less a hundredth of the squared action.

        Args:
            view: state of N environments.

        Returns:
            (N,) float32 in [-1.01, 1].
        """
        height = tip_height(view) / (LINK1 + LINK2)
        return view.total({"height": height, "effort": -0.01 * view.action[:, 0] ** 2})

    def terminated(self, view: View) -> Array:
        """Never: the episode lasts its 10 s.

        Args:
            view: state of N environments.

        Returns:
            (N,) bool, all False.
        """
        return view.step < 0

    def success(self, view: View) -> Array:
        """The full 10 s are over and the tip was up during the last 0.5 s.

        Args:
            view: state of N environments.

        Returns:
            (N,) bool.
        """
        return (view.step >= self.episode_steps) & (view.task["held"] >= HOLD_STEPS)

    def expert(self, state: Array) -> Array:
        """Pump energy until a linear-quadratic regulator can catch the arm at the top.

        The swing-up torque is a weighted sum of features: the energy error times the speed of the driven joint (the
        classic pump), terms that couple the links, and a spring and damper; its weights were searched, because dry
        friction of 0.16 and 0.12 N*m rules out the proofs that give them otherwise.

        Args:
            state: (N, 6) as `observe` gives it.

        Returns:
            (N, 1) action in [-1, 1].

        Source: Spong, The Swing Up Control Problem for the Acrobot (1995), for energy pumping followed by an LQR.
        """
        xp = array_api_compat.array_namespace(state)
        s1, c1, s2, c2 = (state[:, i] for i in range(4))
        v1, v2 = state[:, 4] * SPEED_SCALE, state[:, 5] * SPEED_SCALE
        error = xp.stack([xp.atan2(-s1, -c1), xp.atan2(s2, c2), v1, v2], axis=1)
        gain = constant(self._gain, state)
        cost = constant(self._cost, state)
        balance_torque = -(error @ gain)
        far = xp.sum((error @ cost) * error, axis=1)

        s12, c12 = s1 * c2 + c1 * s2, c1 * c2 - s1 * s2
        kinetic = 0.5 * ((_A1 + _A2 + 2.0 * _A3 * c2 + _ROTOR) * v1**2 + (_A2 + _ROTOR) * v2**2)
        kinetic = kinetic + (_A2 + _A3 * c2) * v1 * v2
        lack = xp.clip((kinetic - _G1 * (c1 + 1.0) - _G2 * (c12 + 1.0)) / (_G1 + _G2), -2.0, 2.0)
        driven, passive = (v1, v2) if self._driven == 0 else (v2, v1)
        features = (lack * driven, s1, s2, s12, v1, v2, lack * xp.sign(driven), lack * s2, lack * s1, lack * passive)
        weights, switch = _SWING_UP[self.robot]
        swing = sum(weight * feature for weight, feature in zip(weights, features))
        torque = xp.where(far < math.exp(switch), balance_torque, swing)
        return xp.clip(torque / TORQUE, -1.0, 1.0)[:, None]


def tip_height(view: View) -> Array:
    """Height of the tip above the first joint.

    Args:
        view: state of N environments.

    Returns:
        (N,) [m], from -0.5 (hanging) to 0.5 (upright).
    """
    q1, q2 = view.qpos[:, 0], view.qpos[:, 1]
    return -(LINK1 * view.xp.cos(q1) + LINK2 * view.xp.cos(q1 + q2))


def balance(driven: int, period: float) -> tuple[np.ndarray, np.ndarray]:
    """Linear-quadratic regulator about the upright position, for torques held over one control period.

    Args:
        driven: index of the driven joint, 0 or 1.
        period: control period [s].

    Returns:
        gain (4,) [N*m per rad and per rad/s] and cost-to-go matrix (4, 4), on the error [q1 - pi, q2, dq1, dq2].

    Source: discrete-time Riccati recursion with Q = diag(10, 10, 1, 1) and R = 1, dry friction left out.
    """
    mass = np.array([[_A1 + _A2 + 2 * _A3 + _ROTOR, _A2 + _A3], [_A2 + _A3, _A2 + _ROTOR]])
    gravity = np.array([[_G1 + _G2, _G2], [_G2, _G2]])
    inverse = np.linalg.inv(mass)
    system = np.zeros((5, 5))
    system[:2, 2:4] = np.eye(2)
    system[2:4, :2] = inverse @ gravity
    system[2:4, 2:4] = -_DAMPING * inverse
    system[2:4, 4] = inverse[:, driven]
    # Matrix exponential by its series: the entries times 0.01 s are at most about 2, twenty terms are exact.
    flow, term = np.eye(5), np.eye(5)
    for k in range(1, 21):
        term = term @ system * period / k
        flow = flow + term
    a, b = flow[:4, :4], flow[:4, 4:]
    weight = np.diag([10.0, 10.0, 1.0, 1.0])
    cost, gain = weight, np.zeros((1, 4))
    for _ in range(2000):
        gain = np.linalg.solve(1.0 + b.T @ cost @ b, b.T @ cost @ a)
        cost = weight + a.T @ cost @ (a - b @ gain)
    return gain[0], cost
