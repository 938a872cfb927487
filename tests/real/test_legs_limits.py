"""Command mode pd: what leaves the supervisor, whatever comes in."""
# pyright: reportOptionalMemberAccess=false, reportOptionalSubscript=false

from __future__ import annotations

import numpy as np
import pytest

from robot_rl.real.core.limiter_effort import Moment
from robot_rl.real.core.limiter_pd import PdLimiter, torque
from robot_rl.real.core.spec import RobotSpec, SpecError
from robot_rl.real.core.supervisor import SafetySupervisor
from robot_rl.real.robot import Command, RobotState

PERIOD = 0.01
IMU = {"imu": {"topic": "imu", "type": "sensor_msgs/Imu"}}
UPRIGHT = np.array([0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 9.81])


def legs(**changes) -> RobotSpec:
    joint = {"lower": -1.0, "upper": 1.0, "velocity": 5.0, "acceleration": 100.0, "effort": 10.0, "kp": 50.0, "kd": 1.0}
    raw = {
        "name": "legs",
        "joints": [{"name": "j0", **joint}],
        "command_mode": "pd",
        "controller_timeout": 0.1,
        "home": [0.2],
        "legs": {"stop": "damp", "stand_seconds": 1.0, "stop_seconds": 1.0},
        "sensors": IMU,
    }
    return RobotSpec.from_dict({**raw, **changes})


def step(target: float, q: float, qd: float) -> tuple[float, float, float, float]:
    """Target, kp, kd and the torque that they imply."""
    limiter = PdLimiter(legs(), period=PERIOD)
    at, speed = np.array([q]), np.array([qd])
    out = limiter.step([target], at, speed)
    return out[0], *limiter.gains[:, 0], torque(out, limiter.gains, at, speed)[0]


# kp 50, kd 1, effort 10, range [-1, 1], velocity 5: by hand
@pytest.mark.parametrize(
    ("target", "q", "qd", "expected"),
    [
        (0.1, 0.0, 0.0, (0.1, 50.0, 1.0, 5.0)),  # as asked: 50 * 0.1
        (0.9, 0.0, 0.0, (0.2, 50.0, 1.0, 10.0)),  # 10 = 50 (t - 0)
        (0.9, 0.0, 2.0, (0.24, 50.0, 1.0, 10.0)),  # 10 = 50 t - 2
        (-0.9, 0.0, 2.0, (-0.16, 50.0, 1.0, -10.0)),  # -10 = 50 t - 2
        (1.5, 0.95, 0.0, (1.0, 50.0, 1.0, 2.5)),  # the range is nearer than the torque: 50 * 0.05
        (0.0, 1.5, 0.0, (1.0, 20.0, 0.4, -10.0)),  # outside: 50 (1 - 1.5) = -25, so both gains times 10 / 25
        (0.9, 0.0, 6.0, (0.12, 50.0, 1.0, 0.0)),  # too fast upwards: 0 = 50 t - 6 is the most
        (-0.9, 0.0, -6.0, (-0.12, 50.0, 1.0, 0.0)),
        (-0.9, 0.0, 6.0, (-0.08, 50.0, 1.0, -10.0)),  # against its motion all torque is there: -10 = 50 t - 6
        (1e300, 0.0, 0.0, (0.2, 50.0, 1.0, 10.0)),
    ],
)
def test_pd_target_is_moved_to_where_torque_and_range_hold_by_hand(target, q, qd, expected) -> None:
    assert step(target, q, qd) == pytest.approx(expected)


def test_pd_joint_without_a_finite_target_is_damped_within_its_effort() -> None:
    target, kp, kd, tau = step(np.nan, 0.3, 20.0)
    assert (target, kp, kd, tau) == pytest.approx((0.3, 0.0, 0.5, -10.0))  # kd 1 would be 20 N m


@pytest.mark.parametrize("seed", range(5))
def test_pd_implied_torque_and_range_hold_whatever_comes_in(seed: int) -> None:
    rng, count = np.random.default_rng(seed), 40
    joints = [
        {
            "name": f"j{i}", "lower": -rng.uniform(0.1, 3.0), "upper": rng.uniform(0.1, 3.0), "acceleration": 100.0,
            "velocity": rng.uniform(1.0, 40.0), "effort": 10 ** rng.uniform(-1, 2.5), "kp": 10 ** rng.uniform(-1, 3),
            "kd": 10 ** rng.uniform(-2, 1.5),
        }
        for i in range(count)
    ]  # fmt: skip
    spec = RobotSpec.from_dict(
        {"name": "legs", "joints": joints, "command_mode": "pd", "home": [0.0] * count, "sensors": IMU, "legs": {}}
    )  # fmt: skip
    lower, upper = spec.hard_bounds()
    effort, speed = spec.array("effort"), spec.array("velocity")
    limiter = PdLimiter(spec, period=PERIOD)
    for _ in range(2000):
        wild = rng.choice([np.nan, np.inf, -np.inf, 1e300, -1e300, 0.0], count)
        target = np.where(rng.random(count) < 0.2, wild, rng.normal(0.0, 3.0, count))
        q, qd = rng.normal(0.0, 2.0, count), rng.normal(0.0, 1.0, count) * 10 ** rng.uniform(-1, 2, count)
        state = RobotState(0.0, q, qd)
        what = rng.random()
        if what < 0.8:
            limiter.step(target, q, qd)
        elif what < 0.9:
            limiter.stop(Moment(state, False, armed=True), PERIOD)
        else:
            limiter.stop(Moment(state, False), PERIOD)
        tau = torque(limiter.target, limiter.gains, q, qd)
        assert (np.abs(tau) <= effort * (1.0 + 1e-9)).all()
        assert ((limiter.target >= lower) & (limiter.target <= upper)).all()
        assert ((limiter.gains[0] <= spec.array("kp")) & (limiter.gains[1] <= spec.array("kd"))).all()
        assert (limiter.gains >= 0.0).all()
        fast = np.abs(qd) > speed
        assert (tau[fast] * qd[fast] <= 1e-6).all()  # nothing drives on what is too fast


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"legs": None}, "pd mode needs legs"),
        ({"home": []}, "pose `home`"),
        ({"legs": {"stop": "brake"}}, "expected damp or sit"),
        ({"legs": {"stop": "sit"}}, "rest is missing"),
        ({"legs": {"stand_seconds": 0.0}}, "legs.stand_seconds"),
        ({"sensors": {}}, "legs.tilt needs a sensor"),
        ({"joints": [{"name": "j0", "lower": -1, "upper": 1, "velocity": 1, "acceleration": 1, "effort": 1}]}, "no kp"),
    ],
)
def test_pd_spec_that_cannot_work_is_refused(changes, words) -> None:
    with pytest.raises(SpecError, match=words):
        legs(**changes)


def test_pd_untimed_driver_is_refused() -> None:
    with pytest.raises(ValueError, match="controller_timeout > 0"):
        SafetySupervisor(legs(controller_timeout=0.0))


class Rig:
    """One joint whose place and speed the test says."""

    def __init__(self, **changes) -> None:
        self.safety = SafetySupervisor(legs(**changes))
        self.now, self.q, self.qd, self.imu = 10.0, 0.0, 0.0, UPRIGHT
        self.out = self.verdict = None

    def tick(self, target: float | None = None, *, state: bool = True):
        self.now += PERIOD
        found = RobotState(self.now, np.array([self.q]), np.array([self.qd]), None, None, {"imu": self.imu})
        command = None if target is None else Command(self.now, np.array([target]), "policy", int(self.now * 1000))
        self.out, self.verdict = self.safety.filter(command, found if state else None, self.now)
        return self

    def run(self, seconds: float, target: float | None = None, **more):
        for _ in range(round(seconds / PERIOD)):
            self.tick(target, **more)
        return self

    def move(self, to: float):
        """Go there at 4 rad/s; faster would be a jump."""
        while abs(to - self.q) > 1e-9:
            self.q += float(np.clip(to - self.q, -0.04, 0.04))
            self.tick()
        return self

    def active(self):
        self.run(0.7)
        assert self.safety.enable() == []
        self.move(0.2).run(2.1, 0.2)
        assert self.verdict.state == "ACTIVE"
        return self

    @property
    def damped(self) -> bool:
        return self.verdict.publish and not self.out.gains[0].any() and bool((self.out.gains[1] > 0.0).all())


def test_pd_enable_stands_up_within_its_time_and_only_then_follows() -> None:
    rig = Rig()
    assert rig.run(0.7).damped  # IDLE: limp
    assert rig.safety.enable() == []
    rig.run(0.5, 0.9)
    assert rig.verdict.state == "ARMED"
    assert "start_mismatch" in rig.verdict.reasons
    assert rig.out.value[0] == pytest.approx(0.1)  # half of the second from 0 to home = 0.2
    rig.move(-0.15).run(0.6, 0.9)
    assert rig.verdict.state == "ARMED"  # it did not get there: 0.35 rad from home
    assert rig.move(0.15).tick(0.36).verdict.state == "ARMED"  # 50 * 0.21 is more than 10
    assert rig.tick(0.34).verdict.state == "ACTIVE"
    assert rig.tick(0.9).out.value[0] == pytest.approx(0.35)  # a lead of 0.2 rad is all there is, and no fault
    assert rig.run(1.0, 0.9).verdict.state == "ACTIVE"


def test_pd_lost_command_damps_latches_and_does_not_stand_up_again() -> None:
    rig = Rig().active()
    rig.run(0.15)
    assert (rig.verdict.fault, rig.damped) == ("cmd_timeout", True)
    rig.qd = 1.0
    assert rig.run(3.0, 0.5).damped
    assert rig.verdict.state == "FAULT"


def test_pd_policy_that_lets_go_is_let_down_and_has_to_be_enabled() -> None:
    rig = Rig().active()
    rig.now += PERIOD
    state = RobotState(rig.now, np.array([rig.q]), np.array([0.0]), None, None, {"imu": UPRIGHT})
    rig.out, rig.verdict = rig.safety.filter(Command(rig.now, np.zeros(0), "policy", 10**6), state, rig.now)
    assert rig.damped
    assert rig.run(0.1, 0.2).verdict.state == "IDLE"


@pytest.mark.parametrize("cause", ["estop", "fallen", "state_stale", "velocity_measured", "acceleration_measured"])
def test_pd_faults_damp(cause: str) -> None:
    rig = Rig().active()
    if cause == "estop":
        rig.safety.estop()
    elif cause == "fallen":
        rig.imu = np.array([np.sin(0.6), 0.0, 0.0, np.cos(0.6), *np.zeros(6)])  # 1.2 rad about x, allowed 1
    elif cause == "velocity_measured":
        rig.qd = 7.6  # 1.5 times 5
    elif cause == "acceleration_measured":
        rig.qd = 3.2  # in 20 ms: 160 rad/s2, allowed 1.5 times 100
    rig.run(0.2 if cause == "state_stale" else 0.02, 0.5, state=cause != "state_stale")
    assert rig.verdict.fault == ("estop_operator" if cause == "estop" else cause)
    assert rig.damped
    assert rig.run(1.0, 0.5, state=cause != "state_stale").damped


def test_pd_lying_robot_is_not_enabled() -> None:
    rig = Rig()
    rig.imu = np.array([1.0, 0.0, 0.0, 0.0, *np.zeros(6)])
    rig.run(0.7)
    assert "fallen" in rig.safety.enable()


def test_pd_sitting_goes_to_rest_with_gains_and_ends_damped() -> None:
    rig = Rig(rest=[-0.8], legs={"stop": "sit", "stop_seconds": 1.0}).active()
    rig.safety.estop()
    rig.run(0.5, 0.9)
    # half of the way from 0.2 to -0.8 is -0.3; the joint is held at 0.2, and 10 N m are 0.2 rad
    assert rig.out.value[0] == pytest.approx(0.0)
    assert rig.out.gains[:, 0] == pytest.approx([50.0, 1.0])
    rig.move(-0.3)  # 13 ticks
    assert rig.tick(0.9).out.value[0] == pytest.approx(0.2 - 0.64)
    assert rig.run(0.6, 0.9).damped
    assert rig.verdict.state == "ESTOP"


@pytest.mark.parametrize("stop", ["damp", "sit"])
def test_pd_last_command_of_the_process_is_damping(stop: str) -> None:
    rig = Rig(rest=[-0.8], legs={"stop": stop}).active()
    rig.qd = 1.0
    rig.safety.shutdown()
    last = rig.tick(0.5)
    for _ in range(600):
        if not rig.tick(0.5).verdict.publish:
            break
        assert rig.damped
    assert last.verdict.state == "STARTUP"
    assert not rig.out.gains[0].any()


def test_pd_frozen_driver_is_noticed_while_it_walks() -> None:
    rig = Rig().active()
    rig.qd = 0.5
    rig.run(0.5, 0.2)
    assert rig.verdict.fault == "state_frozen"
    assert rig.damped
