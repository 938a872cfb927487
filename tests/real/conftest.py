"""One small arm and a loop around it: supervisor, fake robot and a clock that the test turns."""
# pyright: reportArgumentType=false
# (garbage is handed over on purpose)

import numpy as np
import pytest

from robot_rl.real.core.clock import ManualClock
from robot_rl.real.core.settings import SafetySettings
from robot_rl.real.core.spec import RobotSpec
from robot_rl.real.core.supervisor import SafetySupervisor
from robot_rl.real.fake_robot import FakeOptions, FakeRobot
from robot_rl.real.robot import Command, RobotState, StaleState

PERIOD = 0.01


def arm(**changes) -> RobotSpec:
    joint = {"lower": -2.0, "upper": 2.0, "velocity": 1.0, "acceleration": 5.0, "effort": 10.0}
    raw = {"name": "arm", "joints": [{"name": f"j{i}", **joint} for i in range(3)], "home": [0.0, 0.0, 0.0]}
    return RobotSpec.from_dict({**raw, **changes})


class Loop:
    """Ticks of 10 ms; keeps every command that was sent with its verdict."""

    def __init__(self, spec=None, settings=None, forward=None, **robot) -> None:
        self.spec = spec or arm()
        self.settings = settings or SafetySettings()
        self.clock = ManualClock(100.0)
        seed = robot.pop("seed", 0)
        self.robot = FakeRobot(self.spec, FakeOptions(**{"physics_dt": 0.005, **robot}), clock=self.clock, seed=seed)
        self.safety = SafetySupervisor(self.spec, self.settings, forward=forward)
        self.sent, self.verdicts, self.times = [], [], []
        self.seq = 0
        self.alter = lambda state: state

    @property
    def now(self) -> float:
        return self.clock.now()

    @property
    def verdict(self):
        return self.verdicts[-1]

    def command(self, value, stamp=None) -> Command:
        self.seq += 1
        return Command(self.now if stamp is None else stamp, np.asarray(value, float), "policy", self.seq)

    def state(self) -> RobotState | None:
        try:
            return self.alter(self.robot.read())
        except StaleState:
            return None

    def tick(self, command=None, state="read", dt=PERIOD):
        self.clock.advance(dt)
        if callable(command):
            command = command()
        out, verdict = self.safety.filter(command, self.state() if state == "read" else state, self.now)
        if verdict.publish:
            self.robot.write(out)
            self.sent.append(out.value)
            self.times.append(self.now)
        self.verdicts.append(verdict)
        return out, verdict

    def run(self, seconds, target=None):
        """Tick with a fresh command to `target` (J,) or function of time, None = silent source."""
        for _ in range(round(seconds / PERIOD)):
            value = target(self.now) if callable(target) else target
            self.tick(None if value is None else (lambda value=value: self.command(value)))
        return self

    def active(self):
        """Start up, enable and follow a command at rest."""
        self.run(0.6)
        assert self.safety.enable() == []
        self.run(0.05, self.robot.position.copy())
        assert self.safety.state == "ACTIVE"
        return self

    def moving(self, target=1.5):
        """Active, at full speed on the way to `target`."""
        self.active().run(0.5, np.full(3, target))
        assert np.allclose(self.safety.limiter.velocity, np.sign(target))
        return self

    def check_limits(self) -> None:
        """No command left position, velocity or acceleration limits (10 ms ticks only)."""
        q = np.array(self.sent)
        lower, upper = self.spec.bounds()
        assert (q <= upper + 1e-9).all()
        assert (q >= lower - 1e-9).all()
        v = np.diff(q, axis=0) / PERIOD
        assert (np.abs(v) <= 1.0 + 1e-9).all()
        assert (np.abs(np.diff(v, axis=0)) / PERIOD <= 5.0 + 1e-7).all()

    def stops_within(self, seconds) -> None:
        """From here on with a silent source: commanded velocity is zero after `seconds`."""
        start = len(self.sent)
        self.run(seconds + 0.1)
        q = np.array(self.sent[start:])
        moved = np.abs(np.diff(q, axis=0)).max(axis=1) > 1e-12
        last = np.flatnonzero(moved)[-1] + 1 if moved.any() else 0
        assert last * PERIOD <= seconds + 1e-9, f"moved for {last * PERIOD} s"


@pytest.fixture
def make_loop():
    return Loop


@pytest.fixture
def make_arm():
    return arm


@pytest.fixture
def calibrated():
    """Of an arm: a camera whose place is known."""
    place = {"mount": "world", "position": [0.0, 0.0, 1.0], "rotation": [1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0]}
    lens = {"height": 480, "width": 640, "focal": [500.0, 500.0], "centre": [320.0, 240.0]}
    found = {**lens, **place, "residual": 0.1, "views": 20}
    return arm(cameras={"top": {"topic": "top/image", "type": "sensor_msgs/Image", "calibration": found}})


@pytest.fixture
def run_folder(tmp_path):
    """A folder that looks like a run with a checkpoint; what is in it is read by nobody here."""
    step = tmp_path / "run" / "checkpoints" / "step_000000000100"
    step.mkdir(parents=True)
    for name in ("meta.json", "policy.pt"):
        (step / name).write_text("{}")
    return tmp_path / "run"
