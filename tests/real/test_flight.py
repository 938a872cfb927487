"""The flight recorder: incidents again in another process, bit for bit, and what would have been with other limits."""

import json
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from robot_rl.data.exact import pack, unpack
from robot_rl.data.flight import FlightWriter
from robot_rl.data.flight_read import AlteredFlight, Record, read, write
from robot_rl.real import flight_tools
from robot_rl.real.core.flight import RecordedSupervisor, spec_table, tell_model
from robot_rl.real.core.flight_replay import Changes, SupervisorReplay, change_limits
from robot_rl.real.core.intake import CommandMessage
from robot_rl.real.core.pipeline import CommandPipeline, Controller, PipelineOptions
from robot_rl.real.core.settings import SafetySettings
from robot_rl.real.core.spec import RobotSpec
from robot_rl.real.flight_tools import Question, join
from robot_rl.real.policy_runner import RunnerOptions, fit_policy
from robot_rl.real.port import SpecPort
from robot_rl.real.robot import Command, RobotState
from robot_rl.real.runner_flight import RecordedRunner, digests
from robot_rl.types import Action, IOSpec, Loaded, PolicyParts
from tests.real.flight_incidents import INCIDENTS, record, robot
from tests.real.test_legs_limits import legs

ROOT = Path(__file__).resolve().parents[2]
FAULTS = {
    "estop_pressed": "estop_topic",
    "estop_service": "estop_service",
    "heartbeat_silent": "estop_heartbeat",
    "state_stale": "state_stale",
    "positions_frozen": "state_frozen",
    "state_nan": "state_nonfinite",
    "state_jump": "state_jump",
    "joint_blocked": "tracking",
    "pushed": "limit_measured",
    "controller_gone": "controller_gone",
    "second_publisher": "duplicate_publisher",
    "late_and_back": "clock_jump",
}
"""What the incident is to end in; the others end in a soft stop or are borne."""
ANOTHER_PROCESS = """
import json, sys
from robot_rl.data.flight_read import read
from robot_rl.real.core.flight_replay import SupervisorReplay
for path in sys.argv[1:]:
    flight = read(path)
    found = SupervisorReplay().run(flight.records)
    print(json.dumps([flight.closed, found.ticks, found.calls, found.others, list(found.faults[1])]))
"""


def replayed_elsewhere(paths: list[Path]) -> list[list]:
    """closed, ticks, calls, differences and faults of each flight, from a process of its own."""
    words = [sys.executable, "-c", ANOTHER_PROCESS, *map(str, paths)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


# ---------------------------------------------------------------- bit for bit


def test_twenty_incidents_are_the_same_in_another_process(tmp_path: Path) -> None:
    flown = {name: record(tmp_path / f"{name}.mcap", name, 4.0) for name in INCIDENTS}
    assert len(flown) == 20
    rows = replayed_elsewhere([tmp_path / f"{name}.mcap" for name in flown])
    for (name, cell), (closed, ticks, calls, others, faults) in zip(flown.items(), rows):
        assert (closed, others) == (True, 0), name
        assert ticks >= 390, name
        assert calls >= 3, name  # enable, reset, enable
        assert "ACTIVE" in cell.states, name
        if name in FAULTS:
            assert FAULTS[name] in cell.faults, name
            assert faults, name


@pytest.mark.slow
@pytest.mark.parametrize("incident", INCIDENTS)
def test_incidents_of_five_minutes_at_100_hz_are_the_same_in_another_process(tmp_path: Path, incident: str) -> None:
    cell = record(tmp_path / "flight.mcap", incident, 300.0)
    ((closed, ticks, calls, others, faults),) = replayed_elsewhere([tmp_path / "flight.mcap"])
    assert (closed, others) == (True, 0)
    assert ticks >= 29_000
    assert calls > 200
    assert faults or incident not in FAULTS  # soft stops, too, are a fault when there are many in a minute
    assert {"ACTIVE", "IDLE"} <= cell.states


def test_a_supervisor_that_was_handed_garbage_is_the_same_again(tmp_path: Path, make_loop) -> None:
    loop = make_loop()
    flight = FlightWriter(tmp_path / "a.mcap", clock=lambda: loop.now)
    loop.safety = RecordedSupervisor(loop.spec, loop.settings, flight=flight)
    loop.moving()
    for value in (
        [np.nan] * 3,
        ["a", "b", "c"],
        [1.0],
        np.zeros((3, 3)),
        None,
        [1e300, -np.inf, 0.0],
        np.array([1, 1, 1], np.float32),
    ):
        given: Any = value
        loop.safety.filter(Command(loop.now, given), RobotState(loop.now, given, given), loop.now)
        loop.run(0.5)
        loop.safety.rearm()
        loop.safety.enable()
        loop.run(0.1, np.zeros(3))
    nonsense: Any = object()
    loop.safety.filter(nonsense, None, loop.now)
    loop.safety.filter(None, None, float("nan"))
    loop.safety.adopt(SafetySettings(command_timeout=0.05))
    loop.safety.shutdown()
    loop.run(0.1)
    flight.close()
    assert "internal" in loop.safety.faults
    found = SupervisorReplay().run(read(tmp_path / "a.mcap").records)
    assert (found.others, found.first) == (0, None)
    assert found.calls >= 16


def test_legs_with_gains_imu_and_effort_are_the_same_again(tmp_path: Path) -> None:
    now, upright = 10.0, np.array([0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 9.81])
    spec = legs(legs={"stop": "sit", "stand_seconds": 0.3, "stop_seconds": 0.5, "tilt": 0.7}, rest=[-0.5])
    flight = FlightWriter(tmp_path / "a.mcap", clock=lambda: now)
    safety = RecordedSupervisor(spec, SafetySettings(), flight=flight)
    place, seen = 0.0, set()
    for k in range(400):
        now = 10.0 + 0.01 * k
        if k == 70:
            assert safety.enable() == []
        imu = upright if k < 250 else np.array([0.5, 0.0, 0.0, 0.8, *upright[4:]])  # it falls
        state = RobotState(now, np.array([place]), np.zeros(1), np.ones(1, np.float32), np.ones(6), {"imu": imu})
        sent, verdict = safety.filter(Command(now, np.array([0.3])), state, now)
        place += float(np.clip(sent.value[0] - place, -0.02, 0.02))
        seen.add(verdict.state)
    flight.close()
    assert {"ARMED", "ACTIVE", "FAULT"} <= seen
    assert safety.faults == ("fallen",)
    found = SupervisorReplay().run(read(tmp_path / "a.mcap").records)
    assert (found.ticks, found.others) == (400, 0)
    weak = SupervisorReplay().run(read(tmp_path / "a.mcap").records, Changes(limits={"effort": 0.5}))
    assert weak.first is not None  # 1 N m was told, allowed 1.5 * 0.5: it would never have been ready
    assert ("in IDLE" in weak.first.recorded, "in STARTUP" in weak.first.replayed) == (True, True)


MODEL = """<mujoco><worldbody><body name="a"><joint name="j0" axis="0 0 1"/><geom size=".1"/>
<body name="b" pos="1 0 0"><joint name="j1" axis="0 0 1"/><geom size=".1"/>
<body name="c" pos="1 0 0"><joint name="j2" axis="0 0 1"/><geom size=".1"/><site name="tip" pos="1 0 0"/>
</body></body></body></worldbody></mujoco>"""


def test_a_workspace_is_kept_again_with_the_model_that_it_was_kept_with(tmp_path: Path, make_arm) -> None:
    tool = pytest.importorskip("robot_rl.sim.tool")
    model, now = tmp_path / "arm.xml", 100.0
    model.write_text(MODEL)
    spec = make_arm(workspace={"lower": [-4, -4, -1], "upper": [4, 0.5, 1], "ee_site": "tip"})
    flight = FlightWriter(tmp_path / "a.mcap", clock=lambda: now)
    flight.put("facts", now, tell_model(str(model), "tip"))
    assert tell_model(str(model), "tip")["sha256"] == digests([str(model)])["arm.xml"]
    assert tell_model("menagerie:my_arm", "tip")["sha256"] == ""
    forward = tool.tool_position(str(model), "tip", spec.names)
    safety = RecordedSupervisor(spec, SafetySettings(), flight=flight, forward=forward)
    place, reasons = np.zeros(3), set()
    for k in range(250):
        now = 100.0 + 0.01 * k
        if k == 60:
            assert safety.enable() == []
        wanted = place + np.clip(0.6 - place, 0.0, 0.03)
        sent, verdict = safety.filter(Command(now, wanted), RobotState(now, place, np.zeros(3)), now)
        reasons |= set(verdict.reasons)
        place = sent.value.copy()
    flight.close()
    assert "workspace" in reasons  # the tip would be at y = 3 sin 0.6
    paths, question = [str(tmp_path / "a.mcap")], Question()
    ask = (question, lambda *_: pytest.fail("no policy"), tool.tool_position, print)
    assert flight_tools.replay(paths, *ask).same
    model.write_text(MODEL.replace("1 0 0", "1.01 0 0"))
    with pytest.raises(ValueError, match="that file is not there as it was"):
        flight_tools.replay(paths, *ask)


def test_a_policy_that_raises_raises_again(tmp_path: Path, sway) -> None:
    spec, load, path = sway
    policy, port = fit_policy(load(path, "cpu", 1), spec, {}, print)
    flight = FlightWriter(tmp_path / "a.mcap", clock=lambda: 1.0)
    facts = {"path": path, "files": digests([f"{path}/policy.txt"]), "said": {}, "spec": spec_table(spec)}
    facts |= {"device": "cpu", "threads": 1}
    runner = RecordedRunner(policy, port, RunnerOptions(rate=100.0), identity="p", flight=flight, facts=facts)
    for k in range(10):
        rows = np.zeros(3) if k != 4 else np.zeros((3, 1))
        with suppress(ValueError):
            runner.tick(rows, np.zeros(3), {})
    flight.close()
    answer = again(tmp_path / "a.mcap", load)
    assert answer.policy is not None
    assert (answer.policy.ticks, answer.policy.others) == (10, 0)
    assert [one.value[0] for one in read(tmp_path / "a.mcap").records[1:]].count("raise") == 1


@pytest.mark.parametrize("mode", ["jtc", "forward_velocity", "forward_effort"])
def test_a_robot_is_made_again_from_its_table(mode: str) -> None:
    spec = robot(mode)
    assert RobotSpec.from_dict(spec_table(spec)) == spec
    assert "jerk" not in spec_table(spec)["joints"][0]  # what is at its default is left out


def test_a_base_and_legs_are_made_again_from_their_tables() -> None:
    axes = [{"name": "linear_x", "velocity": 1.0, "acceleration": 2.0}]
    odometry = {"odom": {"topic": "odom", "type": "nav_msgs/Odometry"}}
    raw = {"name": "base", "joints": axes, "command_mode": "twist", "controller_timeout": 0.5, "sensors": odometry}
    for spec in (RobotSpec.from_dict(raw), legs()):
        assert RobotSpec.from_dict(spec_table(spec)) == spec


def test_robots_that_come_with_the_package_are_made_again_from_their_tables() -> None:
    spec = RobotSpec.load(ROOT / "launch" / "params" / "desk_arm.yaml")
    assert RobotSpec.from_dict(spec_table(spec)) == spec


def test_a_robot_with_a_calibrated_camera_is_made_again_from_its_table(calibrated) -> None:
    assert RobotSpec.from_dict(unpack(pack(spec_table(calibrated)))) == calibrated  # as a flight keeps it


def test_a_verdict_that_was_changed_before_it_was_written_is_found(tmp_path: Path) -> None:
    """The recorder is not believed either: a replay compares what stands there with what a supervisor says."""
    record(tmp_path / "a.mcap", "quiet", 2.0)
    records = read(tmp_path / "a.mcap").records
    place = [k for k, one in enumerate(records) if one.topic == "tick"][150]
    now, command, state, sent, verdict = records[place].value
    value = np.array(sent[1])
    value[4] = np.nextafter(value[4], 9.0)  # the last bit
    changed = pack((now, command, state, (sent[0], value, *sent[2:]), verdict))
    records[place] = Record("tick", records[place].when, memoryview(changed))
    write(tmp_path / "b.mcap", records)
    found = SupervisorReplay().run(read(tmp_path / "b.mcap").records)
    assert found.others == 1
    assert found.first is not None
    assert (found.first.tick, found.first.what) == (150, "command")
    assert found.at[1] == "j4"


def test_records_of_no_supervisor_are_refused(tmp_path: Path) -> None:
    facts: tuple[str, Any] = ("facts", {"of": "supervisor", "spec": spec_table(robot()), "settings": {}})
    for records, words in (
        ([("tick", (1.0, None, None, (), ()))], "before the facts"),
        ([("facts", {"of": "supervisor"})], "makes no sense"),
        ([facts, ("call", ("fly", (), None))], "'fly'"),
        ([facts, ("tick", (1.0, 2))], "makes no sense"),
    ):
        write(tmp_path / "x.mcap", [Record(topic, 0, memoryview(pack(value))) for topic, value in records])
        with pytest.raises(AlteredFlight, match=words):
            SupervisorReplay().run(read(tmp_path / "x.mcap").records)
        (tmp_path / "x.mcap").unlink()


# ---------------------------------------------------------------- what if


def test_a_lower_speed_limit_gives_the_hand_worked_way(tmp_path: Path, make_arm) -> None:
    # Acceleration 5 rad/s2: the speed grows by 0.05 rad/s a tick and the way by 0.0005 k rad in the k-th. The first
    # command only arms, a target 1 rad away being too far to begin: start_tolerance is raised with the limits. At
    # 0.5 rad/s, tick 10, it stops growing: ticks 11 to 15 are short of 0.0005 (1 + 2 + 3 + 4 + 5) = 0.0075 rad.
    spec = make_arm()
    settings = SafetySettings(start_tolerance=2.0)
    now = 100.0
    flight = FlightWriter(tmp_path / "a.mcap", clock=lambda: now)
    safety = RecordedSupervisor(spec, settings, flight=flight)
    zero = sent = np.zeros(3)
    for k in range(75):
        now = 100.0 + 0.01 * k
        if k == 60:
            assert safety.enable() == []
        command = Command(now, np.ones(3)) if k >= 60 else None
        sent = safety.filter(command, RobotState(now, zero, zero), now)[0].value
    flight.close()
    np.testing.assert_allclose(sent, 0.0005 * 120)
    records = read(tmp_path / "a.mcap").records
    assert SupervisorReplay().run(records).same
    found = SupervisorReplay().run(records, Changes(limits={"velocity": 0.5}))
    assert found.largest == pytest.approx(0.0075, abs=1e-9)
    assert found.at[0] == 74  # the last of 60 + 15
    one = SupervisorReplay().run(records, Changes(limits={"j1.velocity": 0.5}))
    assert one.largest == pytest.approx(0.0075, abs=1e-9)
    assert one.at == (74, "j1")
    # at 2.5 rad/s2 the way after 15 ticks is half: 0.00025 * 120 = 0.03 rad
    slow = SupervisorReplay().run(records, Changes(limits={"acceleration": 2.5}))
    assert slow.largest == pytest.approx(0.03, abs=1e-9)
    # another robot whose j0 ends at 0.03 rad, of which a margin of 0.02 is kept free: it stands at 0.01
    narrow = replace(spec, joints=(replace(spec.joints[0], upper=0.03), *spec.joints[1:]))
    found = SupervisorReplay().run(records, Changes(spec=narrow))
    assert found.at[1] == "j0"
    assert found.largest == pytest.approx(0.06 - 0.01, abs=1e-6)


def test_a_shorter_patience_stops_where_it_is_counted(tmp_path: Path, make_arm) -> None:
    # Commands every 10 ms until 0.05 s after enabling, then none for 60 ms: fresh enough for 0.1 s, too old for 0.045 s
    # in the 5th tick without one.
    now = 100.0
    flight = FlightWriter(tmp_path / "a.mcap", clock=lambda: now)
    safety = RecordedSupervisor(make_arm(), SafetySettings(), flight=flight)
    zero, states = np.zeros(3), []
    for k in range(75):
        now = 100.0 + 0.01 * k
        if k == 60:
            assert safety.enable() == []
        command = Command(now, zero) if 60 < k <= 65 or k > 71 else None
        states.append(safety.filter(command, RobotState(now, zero, zero), now)[1].state)
    flight.close()
    assert set(states[61:]) == {"ACTIVE"}
    records = read(tmp_path / "a.mcap").records
    found = SupervisorReplay().run(records, Changes(limits={"command_timeout": 0.045}))
    assert found.first is not None
    assert (found.first.tick, found.first.what) == (70, "verdict")
    assert found.first.recorded == "OK in ACTIVE"
    assert found.first.replayed.startswith("HOLD in ARMED (stale_command")


def test_limits_that_there_are_not_are_named(make_arm) -> None:
    spec, settings = make_arm(), SafetySettings()
    with pytest.raises(ValueError, match=r"limits\.velocit is no limit of this robot; did you mean velocity"):
        change_limits(spec, settings, {"velocit": 1.0})
    with pytest.raises(ValueError, match="velocity is -1"):
        change_limits(spec, settings, {"velocity": -1.0})
    changed, times = change_limits(spec, settings, {"j2.upper": 1.0, "margin": 0.0, "lead_soft": 0.05})
    assert [joint.upper for joint in changed.joints] == [2.0, 2.0, 1.0]
    assert (changed.margin, times.lead_soft) == (0.0, 0.05)
    _, times = change_limits(spec, settings, {"lead_soft": 0.4, "lead_fault": 0.6})  # in any order
    assert (times.lead_soft, times.lead_fault) == (0.4, 0.6)


# ---------------------------------------------------------------- policies


class Sway:
    """Goes to a place and remembers how often it was asked."""

    def __init__(self, io: IOSpec, place: float) -> None:
        self.io, self.place, self.asked, self.parts = io, place, 0, PolicyParts(remembers=True)

    def reset(self, rows=None) -> None:
        self.asked = 0

    def act(self, obs, *, deterministic=False) -> Action:
        self.asked += 1
        state = np.asarray(obs["state"], np.float32)
        return Action(np.tanh(0.3 * state[:, :3] + self.place / 1.98 + 1e-3 * self.asked).astype(np.float32))


def flown(tmp_path: Path, spec: RobotSpec, load, path: str) -> Path:
    """A policy under a supervisor for 3 s on a robot that does as it is told, in one flight."""
    now, place = 100.0, np.zeros(3)
    flight = FlightWriter(tmp_path / "one.mcap", clock=lambda: now)
    loaded = load(path, "cpu", 1)
    policy, port = fit_policy(loaded, spec, {}, print)
    facts = {"path": path, "files": digests(loaded.files), "said": {}, "spec": spec_table(spec)}
    facts |= {"device": "cpu", "threads": 1}
    options = RunnerOptions(rate=100.0)
    runner = RecordedRunner(policy, port, options, identity="sway", flight=flight, facts=facts)
    pipe = CommandPipeline(spec, SafetySettings(), PipelineOptions(), start=now, flight=flight)
    pipe.controller(Controller(1))
    for k in range(300):
        now = 100.0 + 0.01 * (k + 1)
        if k == 70:
            assert pipe.enable() == []
        if pipe.door.authority != "policy":
            runner.restart()
        wanted = runner.tick(place, np.zeros(3), {})
        assert wanted is not None
        message = CommandMessage("policy", "policy:p", k, spec.names, now, wanted.times, {"positions": wanted.values})
        pipe.offer(message, now)
        sent = pipe.tick(now, RobotState(now, place.copy(), np.zeros(3)))
        place = sent.value.copy()
    assert pipe.safety.state == "ACTIVE"
    flight.close()
    return tmp_path / "one.mcap"


@pytest.fixture
def sway(tmp_path: Path, make_arm):
    spec = make_arm()
    io = SpecPort(spec, 50.0).io
    for name, place in (("a", 0.02), ("b", 0.05), ("nan", 0.0)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "policy.txt").write_text(str(place))

    def load(path: str, device: str, threads: int) -> Loaded:
        file = Path(path) / "policy.txt"
        return Loaded(Sway(io, float(file.read_text())), io, None, Path(path).name, files=(str(file),))

    return spec, load, str(tmp_path / "a")


def again(path: Path, load, **question):
    return flight_tools.replay(
        [str(path)], Question(**question), load, lambda *_: pytest.fail("no model"), lambda _: None
    )


def test_a_policy_and_its_supervisor_in_one_file_are_the_same_again(tmp_path: Path, sway) -> None:
    spec, load, path = sway
    answer = again(flown(tmp_path, spec, load, path), load)
    assert answer.same
    assert answer.policy is not None
    assert answer.supervisor is not None
    assert (answer.policy.ticks, answer.supervisor.ticks) == (300, 300)
    assert 100 < answer.policy.asked < 300  # at 50 Hz once it drives, each time anew before
    assert (answer.changed, answer.machines) == (False, {})


def test_another_policy_says_other_things_and_the_supervisor_hears_them(tmp_path: Path, sway) -> None:
    # b is the same but for its place, 0.05 in place of 0.02, divided by 1.98 inside of a tanh whose slope is below 1
    spec, load, path = sway
    answer = again(flown(tmp_path, spec, load, path), load, other=str(tmp_path / "b"))
    assert (answer.same, answer.changed) == (False, True)
    assert answer.policy is not None
    assert answer.policy.largest == pytest.approx(0.03 / 1.98, rel=0.05)
    assert answer.policy.largest_command == pytest.approx(0.03, rel=0.05)
    assert answer.policy.first is not None
    assert answer.policy.first.what == "action"
    assert (answer.told, answer.untold) == (300, 0)
    assert answer.supervisor is not None
    assert 0.03 < answer.supervisor.largest < 0.05  # a limiter that has to catch up with a step overshoots it
    both = again(tmp_path / "one.mcap", load, other=str(tmp_path / "b"), limits={"start_tolerance": 0.02})
    assert both.supervisor is not None
    # half-way to its first target a is 0.011 rad from where the robot stands, b 0.026, which is too far now: b never
    # drives, and the robot of the flight leaves its place
    assert both.supervisor.first is not None
    assert (both.supervisor.first.tick, both.supervisor.first.replayed) == (70, "[0.0, 0.0, 0.0]")
    assert both.supervisor.faults[0] == {}
    assert list(both.supervisor.faults[1]) == ["left_place"]


def test_weights_that_did_not_fly_are_no_replay(tmp_path: Path, sway) -> None:
    spec, load, path = sway
    file = flown(tmp_path, spec, load, path)
    moved = tmp_path / "moved"
    Path(path).rename(moved)
    with pytest.raises(FileNotFoundError, match="nothing is there now; give policy="):
        again(file, load)
    assert again(file, load, policy=False).same
    assert again(file, load, other=str(moved)).same  # the same files elsewhere
    Path(path).mkdir()
    (Path(path) / "policy.txt").write_text("0.02000001")
    with pytest.raises(ValueError, match="are not the files that flew"):
        again(file, load)


def test_two_parts_become_one_file_with_the_same_answers(tmp_path: Path, sway) -> None:
    spec, load, path = sway
    whole = read(flown(tmp_path, spec, load, path))
    kinds = {"policy": [], "supervisor": []}
    for one in whole.records:
        policy = one.topic == "policy" or (one.topic == "facts" and one.value["of"] == "policy")
        kinds["policy" if policy else "supervisor"].append(one)
    for name, records in kinds.items():
        write(tmp_path / f"{name}.mcap", records)
    parts = [read(tmp_path / f"{name}.mcap") for name in kinds]
    join([str(part.path) for part in parts], tmp_path / "joined.mcap")
    answer = again(tmp_path / "joined.mcap", load)
    assert answer.same
    assert answer.policy is not None
    assert answer.supervisor is not None
    assert (answer.policy.ticks, answer.supervisor.ticks) == (300, 300)
    told = read(tmp_path / "joined.mcap").records[0].value
    assert told["digests"] == tuple(part.digest for part in parts)


def test_questions_that_the_flight_cannot_answer_are_refused(tmp_path: Path, sway, make_arm) -> None:
    spec, load, path = sway
    file = flown(tmp_path, spec, load, path)
    record(tmp_path / "arm.mcap", "quiet", 1.0)
    with pytest.raises(ValueError, match="another policy is a question to a policy's part"):
        again(tmp_path / "arm.mcap", load, other=str(tmp_path / "b"))
    (tmp_path / "long.yaml").write_text(json.dumps(spec_table(robot())))
    with pytest.raises(ValueError, match="has 7 joints in position mode, and the flight is of arm with 3"):
        again(file, load, robot=str(tmp_path / "long.yaml"), policy=False)
    with pytest.raises(FileNotFoundError, match="there is no flight at"):
        again(tmp_path / "none", load)
