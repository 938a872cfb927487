"""A leader arm moves a follower through the whole graph: both simulated down to the bytes, started as users do."""
# pyright: reportOptionalMemberAccess=false

import json
import math
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import yaml

pytest.importorskip("scservo_sdk", reason="ftservo-python-sdk is not installed (extra so101)")

from std_msgs.msg import String
from std_srvs.srv import SetBool, Trigger

from robot_rl import card
from robot_rl.data.hil_episode import to_steps
from robot_rl.data.recorder import Recording
from robot_rl.real.ros.io import JointState, qos
from robot_rl.types.card import MotorCard, ServosCard
from tests.real.servo_sim import page

harness = pytest.importorskip("ros_harness")
TURN = 4096 / (2 * np.pi)
ROBOTS = next((p for p in (up / "shared/data/robots" for up in Path(__file__).parents) if p.exists()), Path("absent"))
SIM = Path(__file__).parents[1] / "servo_sim.py"
NAMES = ("shoulder_pan", "shoulder_lift", "elbow_flex", "wrist_flex", "wrist_roll", "gripper")


class Bus:
    """A bus of servos as a process, and the card of an arm that was calibrated on it."""

    def __init__(self, folder, name):
        command = [sys.executable, str(SIM), str(folder / f"{name}_port")]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        path = self.process.stdout.readline().strip()
        table = yaml.safe_load(card.find("so101").read_text())
        del table["workspace"]  # it needs the model
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(table | {"name": name}, sort_keys=False))
        motors = {joint: MotorCard(id=i, low=0, high=4095, zero=2048.0) for i, joint in enumerate(NAMES, 1)}
        card.put_servos(folder / f"{name}.yaml", ServosCard(port=path, motors=motors))

    def say(self, line=""):
        """(6,) where the joints are [rad], and whether all are driven."""
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()
        told = np.array(self.process.stdout.readline().split(), float).reshape(6, 2)
        return (told[:, 0] - 2048) / TURN, bool(told[:, 1].all())

    def turn(self, angle):
        for number in range(1, 7):
            self.say(f"turn {number} {2048 + angle * TURN}")


@pytest.fixture
def arms(tmp_path):
    made = [Bus(tmp_path, name) for name in ("my_arm", "my_leader")]
    yield made
    for bus in made:
        bus.process.kill()
        bus.process.wait()


@pytest.fixture
def command(tmp_path):
    """Starts a line of the command line in the folder; its output goes to a file."""
    started = []

    def start(name, *words, stdin=subprocess.DEVNULL):
        out = tmp_path / f"{name}.txt"
        with out.open("w") as file:
            line = [sys.executable, "-m", "robot_rl", *words]
            started.append(
                subprocess.Popen(line, cwd=tmp_path, stdin=stdin, stdout=file, stderr=file, start_new_session=True)
            )
        return started[-1], out

    yield start
    for process in started:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
    for process in started:
        process.wait(10.0)


def test_leader_drives_behind_the_space_bar_and_faults_of_servos_stop_the_arm(arms, command, another, robot_rl):
    follower, leader = arms
    for bus in arms:
        bus.turn(0.3)
    keys, terminal = pty.openpty()
    deployed, said = command("deploy", *page("deploy robot_spec=my_arm sim=false teleop=leader record=true"), "flight=")
    command("leader", *page("robot leader my_leader"), stdin=terminal)
    node, states = another("operator"), []
    node.create_subscription(String, "robot_rl/safety/state", lambda m: states.append(m.data), qos("latched"))
    harness.wait(lambda: states and states[-1] == "IDLE", 60.0, "IDLE")
    enable = node.create_client(SetBool, "safety_supervisor/enable")
    assert enable.wait_for_service(10.0)

    def armed():
        answer = enable.call_async(SetBool.Request(data=True))
        harness.wait(answer.done, 5.0)
        return answer.result().success

    assert not follower.say()[1]  # nothing is driven before somebody enables it
    harness.wait(armed, 10.0, "enabled")
    harness.wait(lambda: follower.say()[1], 5.0, "driven")

    def hold(until, seconds=10.0):
        """The space bar, as a terminal repeats it."""
        end = time.monotonic() + seconds
        while not until():
            assert time.monotonic() < end, (follower.say(), states[-1], said.read_text()[-2000:])
            os.write(keys, b" ")
            time.sleep(0.05)

    leader.turn(0.5)
    time.sleep(0.3)  # nobody holds it
    np.testing.assert_allclose(follower.say()[0], 0.3, atol=0.01)
    hold(lambda: np.allclose(follower.say()[0], 0.5, atol=0.01))
    begin = time.monotonic()
    leader.turn(1.4)  # a jump: 0.9 rad at no more than 3 rad/s
    hold(lambda: np.allclose(follower.say()[0], 1.4, atol=0.01))
    assert time.monotonic() - begin > 0.9 / (1.2 * 3.0)
    assert states[-1] == "ACTIVE"
    follower.say("faults 2 32")
    hold(lambda: states[-1] == "FAULT")
    fault = "fault robot_status: status servos is servo 2 (shoulder_lift): it is overloaded"
    harness.wait(lambda: fault in said.read_text(), 5.0, "the fault's sentence")
    follower.process.stdin.write("pull\n")
    follower.process.stdin.flush()
    harness.wait(lambda: "is gone (" in said.read_text(), 5.0, "the sentence of a pulled cable")
    os.close(keys)
    deployed.send_signal(signal.SIGINT)
    assert deployed.wait(20.0) == 0, said.read_text()
    for line in (page("data session convert"), [*page("offline data=mine.hdf5"), "updates=20"]):
        done = robot_rl(*line)
        assert done.returncode == 0, done.stderr


def test_driver_obeys_its_supervisor_alone_and_comes_back_with_its_port(arms, command, another):
    follower, _ = arms
    deployed, said = command("deploy", *page("deploy robot_spec=my_arm sim=false"), "flight=")
    node, states, status = another("operator"), [], []
    node.create_subscription(String, "robot_rl/safety/state", lambda m: states.append(m.data), qos("latched"))
    node.create_subscription(String, "servos/status", lambda m: status.append(m.data), qos("latched"))
    harness.wait(lambda: states and states[-1] == "IDLE", 60.0, "IDLE")
    clients = {SetBool: "enable", Trigger: "reset"}
    clients = {kind: node.create_client(kind, f"safety_supervisor/{name}") for kind, name in clients.items()}

    def granted(request):
        client = clients[SetBool if isinstance(request, SetBool.Request) else Trigger]
        assert client.wait_for_service(10.0)
        answer = client.call_async(request)
        harness.wait(answer.done, 5.0)
        return answer.result().success

    def driven():
        harness.wait(lambda: granted(SetBool.Request(data=True)), 10.0, "enabled")
        harness.wait(lambda: follower.say()[1], 5.0, "driven")
        np.testing.assert_allclose(follower.say()[0], 0.0, atol=0.01)

    driven()
    rival = another("intruder")
    commands = rival.create_publisher(JointState, "joint_command", 1)
    wanted = JointState(name=list(NAMES), position=[0.09] * 6)  # near enough to be followed from a rightful writer

    def sends(until):
        end = time.monotonic() + 10.0
        while not until():
            commands.publish(wanted)
            np.testing.assert_allclose(follower.say()[0], 0.0, atol=0.01)
            assert time.monotonic() < end, (states, status, said.read_text()[-2000:])
            time.sleep(0.01)

    sends(lambda: states[-1] == "FAULT")
    sentence = "/intruder publishes on /joint_command, and this driver obeys /safety_supervisor alone"
    harness.wait(lambda: any(sentence in told for told in status), 5.0, "the sentence")
    begin = time.monotonic()
    sends(lambda: time.monotonic() > begin + 0.5)  # the supervisor is silent by now
    assert not granted(Trigger.Request())
    rival.destroy_publisher(commands)
    harness.wait(lambda: status[-1] == "ok", 10.0, "ok without the intruder")
    harness.wait(lambda: granted(Trigger.Request()), 10.0, "reset")
    driven()
    follower.say("pull")
    harness.wait(lambda: "is gone (" in status[-1], 5.0, "the sentence of a pulled cable")
    follower.say("plug")
    harness.wait(lambda: status[-1] == "ok", 10.0, "ok with the port")
    harness.wait(lambda: granted(Trigger.Request()), 10.0, "reset")
    driven()
    deployed.send_signal(signal.SIGINT)
    assert deployed.wait(20.0) == 0, said.read_text()


@pytest.mark.skipif(not ROBOTS.exists(), reason="the folder shared/data/robots is absent")
def test_leader_takes_over_a_session_in_simulation(arms, command, tmp_path):
    pytest.importorskip("aiohttp", reason="the console needs aiohttp (extra console)")
    leader, path = arms[1], tmp_path / "my_arm.yaml"
    ready, table = yaml.safe_load(card.find("so101").read_text()), yaml.safe_load(path.read_text())
    table |= {"workspace": ready["workspace"], "model": {"path": str(ROBOTS / ready["model"]["path"])}}
    path.write_text(yaml.safe_dump(table, sort_keys=False))
    keys, terminal = pty.openpty()
    _, leads = command("leader", *page("robot leader my_leader"), stdin=terminal)
    session, said = command(
        "hil", *page("hil env=reach robot=my_arm"), "human.port=0", "demos=0", "total_steps=1000",
        "eval_every=0", "policy.hidden=[16,16]", "policy.batch_size=16",
    )  # fmt: skip
    harness.wait(lambda: session.poll() or "0/1000" in said.read_text(), 60.0, "a session")
    assert session.poll() is None, said.read_text()
    harness.wait(lambda: "hold the space bar to drive" in leads.read_text(), 60.0, "a leader")
    began, begin = time.monotonic(), math.inf
    while not any(path.read_text() for path in tmp_path.glob("runs/hil/*/log/manifest.jsonl")):  # the first episode
        assert session.poll() is None, said.read_text()
        assert time.monotonic() < began + 40.0, said.read_text()[-2000:]
        if any(path.stat().st_size for path in tmp_path.glob("runs/hil/*/log/open/segment*")):
            begin = min(begin, time.monotonic())  # it is gripped, and was seen to be, before it moves
        way = min(max(0.2 * (time.monotonic() - begin), 0.0), 0.4)
        leader.say(f"turn 1 {2048 + way * TURN}")
        # a grip that is there when the session begins to listen is none: let go for a second, and grip again
        if way < 0.4 and (begin < math.inf or (time.monotonic() - began) % 4.0 > 1.0):
            os.write(keys, b" ")
        time.sleep(0.05)
    os.close(keys)
    session.send_signal(signal.SIGINT)
    session.wait(20.0)
    (episode, *_) = Recording(next(tmp_path.glob("runs/hil/*/log")))
    steps = to_steps(episode)
    driven = np.array([step.action_exec for step in steps if step.human])
    assert 10 <= len(driven) < len(steps) - 10
    np.testing.assert_allclose(driven[:, 1:], 0.0, atol=1e-6)  # the joints that the leader did not move
    told = json.loads(next(tmp_path.rglob("io.json")).read_text())
    way = told["action_high"][0] * driven[:, 0].sum()
    assert 0.25 < way < 0.41
    assert np.abs([step.action_exec[1:] for step in steps if not step.human]).max() > 0.1


def test_leader_teaches_a_robot_on_its_topics(arms, command, another, tmp_path):
    """`hil env=ros2`: the grip takes over, and the servos go where the leader went, through both supervisors."""
    pytest.importorskip("aiohttp", reason="the console needs aiohttp (extra console)")
    follower, leader = arms
    deployed, said = command("deploy", *page("deploy robot_spec=my_arm sim=false"), "flight=")
    keys, terminal = pty.openpty()
    command("leader", *page("robot leader my_leader"), stdin=terminal)
    session, told = command(
        "hil", *page("hil env=ros2 env.robot_spec=my_arm"), "human.port=0", "env.rate=5", "env.episode_seconds=5",
        "env.state_timeout=0.5", "env.max_hold=2", "demos=0", "total_steps=1000", "learning_starts=1000",
        "eval_every=0", "policy.hidden=[16,16]", "policy.batch_size=16", "+takeover.device_timeout_ms=5000",
        "human.silence_ms=5000", "scene=free",
    )  # fmt: skip
    node, states = another("operator"), []
    node.create_subscription(String, "robot_rl/safety/state", lambda m: states.append(m.data), qos("latched"))
    enable = node.create_client(SetBool, "safety_supervisor/enable")

    def enabled():
        assert (deployed.poll(), session.poll()) == (None, None), said.read_text() + told.read_text()
        answer = enable.call_async(SetBool.Request(data=True)) if enable.service_is_ready() else None
        if answer is not None:
            harness.wait(answer.done, 5.0)
        return answer is not None and answer.result().success

    harness.wait(enabled, 60.0, "enabled")
    harness.wait(lambda: "console: " in told.read_text(), 60.0, "a session")
    home, begin, way = np.array(card.read(str(tmp_path / "my_arm.yaml")).home), time.monotonic(), 0.0
    while not any(log.read_text() for log in tmp_path.glob("runs/hil/*/log/manifest.jsonl")):  # the first episode
        assert session.poll() is None, told.read_text()[-2000:]
        assert time.monotonic() < begin + 40.0, (states, told.read_text()[-2000:])
        if states[-1] == "ACTIVE" or (time.monotonic() - begin) % 4.0 < 2.5:  # gripping takes over, not having gripped
            os.write(keys, b" ")
        # Once it is at its start: what the leader moves before is none of the episode's.
        way = min(way + 0.01, 0.4) if way or np.allclose(follower.say()[0][:5], home, atol=0.01) else 0.0
        leader.say(f"turn 1 {2048 + max(way - 0.1, 0.0) * TURN}")
        time.sleep(0.05)
    stood = follower.say()[0]
    os.close(keys)
    session.send_signal(signal.SIGINT)
    session.wait(30.0)
    (episode, *_) = Recording(next(tmp_path.glob("runs/hil/*/log")))
    moves = np.array([step.action_exec for step in to_steps(episode) if step.human])
    assert len(moves) > 15, (states, said.read_text()[-2000:])
    np.testing.assert_allclose(moves[:, 1:], 0.0, atol=0.02)  # the first ones come from its way to the start
    np.testing.assert_allclose(0.1 * moves[:, 0].sum(), 0.3, atol=0.02)  # of the card: 0.1 rad at 1
    np.testing.assert_allclose(stood[0], 0.3, atol=0.02)
