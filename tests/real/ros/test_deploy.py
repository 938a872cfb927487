"""`robot-rl deploy` as its user runs it: starts everything, drives, ends in order and leaves nobody behind."""
# pyright: reportOptionalMemberAccess=false, reportOptionalSubscript=false, reportArgumentType=false

import contextlib
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import onnx
import psutil
import pytest
from ros_harness import ROOT, SLACK, Station, wait
from std_msgs.msg import Float64MultiArray
from toy_policies import save_expert

from benchmarks.ros_soak import soak
from robot_rl.data import bag, d4rl
from robot_rl.nodes import NODES
from robot_rl.real.graph import GraphArgs, find_file, graph
from robot_rl.real.processes import Launcher, Relay
from robot_rl.sim.port import WorldPort
from robot_rl.sim.worlds.reach import Reach

pytestmark = [pytest.mark.ros, pytest.mark.timeout(280)]
JOINTS = ("waist", "shoulder", "elbow", "forearm_roll", "wrist_pitch", "wrist_roll")
HERE = str(Path(__file__).parent)


def deploy(*arguments):
    env = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{HERE}"}
    command = [sys.executable, "-m", "robot_rl", "deploy", "robot_spec=desk_arm", *arguments]
    return subprocess.Popen(command, env=env, cwd=ROOT, stderr=subprocess.PIPE, text=True)


class Deployed:
    """A deployment of the simulated desk arm with the world's expert as its policy, and who watches it."""

    def __init__(self, *arguments):
        self.station = Station()
        self.process = deploy("world=reach", *arguments)
        self.said, self.left = [], []
        self.reader = threading.Thread(target=lambda: self.said.extend(self.process.stderr), daemon=True)
        self.reader.start()

    def child(self, name):
        """Process id of a node that has been started."""
        return wait(lambda: self._child(name), limit=60.0, what=f"the start of {name}")

    def _child(self, name):
        started = [re.search(rf"\] {name}: started, process (\d+)", line) for line in list(self.said)]
        return next((int(found[1]) for found in started if found), None)

    def interrupt(self):
        """Ctrl-C; seconds until the last process is gone."""
        nodes = family(self.process)
        since = time.monotonic()
        self.process.send_signal(signal.SIGINT)
        assert self.process.wait(20.0) == 0
        took = time.monotonic() - since
        self.left = psutil.wait_procs(nodes, timeout=1.0)[1]
        return took

    def close(self):
        for one in [*(family(self.process) if self.process.poll() is None else []), self.process, *self.left]:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
        self.station.close()


@pytest.fixture
def deployed():
    made = []

    def make(*arguments):
        made.append(Deployed(*arguments))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.mark.parametrize(
    "state", ["starting", "loading", "IDLE", "ARMED", "ACTIVE", "HOLD", "FAULT", "ESTOP", "recording"]
)
def test_ctrl_c_ends_everything_within_two_seconds_in_every_state_and_the_robot_stands(
    deployed, experts, state, tmp_path
):
    policy = [f"policy_path={experts.parent}", "trust=true", f"params_file={experts}"]
    made = deployed(
        *(policy if state != "IDLE" else []),
        *(["auto_arm=true"] if state not in ("loading", "IDLE", "ARMED") else []),  # else IDLE may be over unheard
        *(["record=true", f"record_folder={tmp_path}/record"] if state == "recording" else []),
    )
    station = made.station
    made.child("safety_supervisor")
    if state == "starting":
        time.sleep(0.3)
    elif state == "loading":
        station.wait_state("IDLE", limit=90.0)  # torch takes longer than the rest
    elif state == "IDLE":
        station.wait_state("IDLE", limit=90.0)
        time.sleep(1.0)
    elif state == "ARMED":
        station.wait_state("IDLE", limit=90.0)
        os.kill(made.child("policy"), signal.SIGSTOP)
        wait(lambda: station.enable().success, what="enable")
        station.wait_state("ARMED")
        os.kill(made.child("policy"), signal.SIGCONT)
    else:
        station.wait_state("ACTIVE", limit=90.0)
        wait(lambda: np.abs(station.last.velocity).max() > 0.05, limit=30.0, what="motion")
    if state == "recording":
        time.sleep(1.0)
        station.call("sim_robot/next_task")  # by now it may have arrived
        wait(lambda: np.abs(station.last.velocity).max() > 0.05, limit=10.0, what="motion")
    if state == "HOLD":  # lost commands: it brakes and holds
        os.kill(made.child("policy"), signal.SIGSTOP)
        station.wait_state("ARMED", limit=5.0)
    if state == "FAULT":
        os.kill(made.child("sim_robot"), signal.SIGSTOP)
        station.wait_state("FAULT", limit=5.0)
    if state == "ESTOP":
        station.call("safety_supervisor/estop")
        station.wait_state("ESTOP", limit=2.0)
    took = made.interrupt()
    assert took < 2.0, (took, made.said)
    left = psutil.wait_procs(made.left, timeout=10.0)[1] if state == "recording" else made.left
    assert not left  # a recorder may finish what it writes
    if state == "recording":  # all that was executed is in the episode, and the bag can be read
        [episode] = d4rl.read(next((tmp_path / "record").rglob("*.hdf5"))).episodes
        assert len(episode) > 20
        assert sum(1 for _ in bag.read(next((tmp_path / "record").glob("bags/*")))) > 100
    if state in ("ARMED", "ACTIVE", "HOLD", "FAULT", "ESTOP", "recording"):
        assert np.abs(station.last.velocity).max() == 0.0


def test_a_folder_without_a_checkpoint_and_an_empty_path_start_no_robot(tmp_path):
    for argument, words in (
        (f"policy_path={tmp_path}", "holds no complete checkpoint; give a run folder"),
        ("policy_path=", "policy_path= is empty"),
    ):
        process = deploy(argument)
        _, said = process.communicate(timeout=60)
        assert process.returncode == 2
        assert words in said.strip().splitlines()[-1]
        assert "started" not in said


def test_a_policy_that_cannot_be_loaded_ends_the_deployment(tmp_path):
    (tmp_path / "meta.json").write_text("{}")
    (tmp_path / "policy.pt").write_bytes(b"no weights")
    process = deploy("world=reach", f"policy_path={tmp_path}")
    _, said = process.communicate(timeout=120)
    assert process.returncode == 2
    assert "policy could not be started; ending the others" in said
    assert "Traceback" not in said


def test_a_run_folder_that_names_code_moves_nothing_until_it_is_trusted(tmp_path):
    save_expert(tmp_path)
    params = tmp_path / "params.yaml"  # a file of parameters cannot name code either
    params.write_text("/**/policy:\n  ros__parameters: {loader: 'toy_policies:load'}\n")
    for more, words in (
        ((), "toy_policies.py:Expert names code outside robot_rl and comes from a file"),
        ((f"params_file={params}",), "loader is no parameter of policy"),
    ):
        process = deploy("world=reach", f"policy_path={tmp_path}", *more)
        _, said = process.communicate(timeout=120)
        assert process.returncode == 2
        assert words in said


def describe(file, size):
    """The LEAPP description of a graph from "obs" to "actions"."""
    ends = ([{"name": n, "dtype": "float32", "shape": [1, k]}] for n, k in (("obs", size), ("actions", 3)))
    part = dict(zip(("inputs", "outputs"), ends))
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    part["parameters"] = {"backend": "onnx", "model_path": file.name, "sha256sum": digest}
    pipeline = {"inputs": {"pushes": ["obs"]}, "outputs": {"pushes": ["actions"]}}
    return f"models:\n  pushes: {json.dumps(part)}\npipeline:\n  {json.dumps(pipeline)}\n"


@pytest.mark.parametrize("format", ["onnx", "leapp"])
def test_a_graph_of_somebody_else_drives_and_its_process_has_no_torch(deployed, tmp_path, format):
    """Full speed along the first axis: the tool leaves its place, and the supervisor stops nothing."""
    io = WorldPort(Reach(), JOINTS).io
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    gain, push = np.zeros((io.obs["state"][0][0], 3), np.float32), np.array([[1.0, 0.0, 0.0]], np.float32)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["obs", "gain"], ["none"]), helper.make_node("Add", ["none", "push"], ["actions"])],
        "pushes",
        [helper.make_tensor_value_info("obs", kind, ["batch", len(gain)])],
        [helper.make_tensor_value_info("actions", kind, ["batch", 3])],
        [onnx.numpy_helper.from_array(gain, "gain"), onnx.numpy_helper.from_array(push, "push")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    file = tmp_path / {"onnx": "policy.onnx", "leapp": "pushes.onnx"}[format]
    file.write_bytes(model.SerializeToString())
    if format == "leapp":
        (tmp_path / "pushes.yaml").write_text(describe(file, len(gain)))
    (tmp_path / "io.json").write_text(json.dumps(io.to_dict()))
    (tmp_path / "config.yaml").write_text("env: {world: {name: reach}}\n")
    made = deployed(f"policy_path={tmp_path}", "auto_arm=true")
    made.station.wait_state("ACTIVE", limit=90.0)
    wait(lambda: np.abs(made.station.last.velocity).max() > 0.05, limit=30.0, what="motion")
    libraries = Path(f"/proc/{made.child('policy')}/maps").read_text()
    assert "onnxruntime" in libraries
    assert "libtorch" not in libraries
    assert made.interrupt() < 2.0


@pytest.mark.parametrize("executable", sorted(NODES))
def test_every_node_refuses_a_parameter_that_it_does_not_have(executable, tmp_path):
    command = [sys.executable, "-m", "robot_rl.nodes", executable, "--ros-args"]
    command += ["-p", f"robot_spec:={find_file('desk_arm')}", "-p", f"folder:={tmp_path}", "-p", "realtme:=0"]
    if executable != "recorder_node":  # whose folder it is
        del command[-4:-2]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert "realtme is no parameter of" in done.stderr
    assert "did you mean realtime?" in done.stderr


def family(process):
    return psutil.Process(process.pid).children(recursive=True)


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_42_end_of_the_launcher_leaves_no_process(sign):
    process = deploy("teleop=joy")
    try:
        children = wait(lambda: len(family(process)) == 3 and family(process), limit=90.0, what="three processes")
        if sign is not signal.SIGKILL:
            time.sleep(5.0)  # handlers are in place; the other tests end nodes that drive
        process.send_signal(sign)
        code = process.wait(60.0)
        _, alive = psutil.wait_procs(children, timeout=40.0)
        assert not alive
        if sign is not signal.SIGKILL:
            said = process.stderr.read()
            assert code == 0
            # "ended", or on a machine too busy to load them in time "killed"; told in this order
            order = [said.rindex(f"{name}: ") for name in ("teleop", "safety_supervisor", "sim_robot")]
            assert order == sorted(order)
    finally:
        process.kill()


def test_arguments_that_make_no_sense_are_one_clear_line():
    process = deploy("sim=false", "auto_arm=true")
    _, said = process.communicate(timeout=60)
    assert process.returncode == 2
    assert said.strip().splitlines()[-1].startswith("robot-rl: auto_arm is for simulation only")


def test_essential_process_that_ends_ends_the_rest_and_teleop_is_restarted():
    lines = []
    nodes = graph(GraphArgs(robot_spec=find_file("desk_arm"), teleop="joy"))
    codes = {"sim_robot": "time.sleep(60)", "safety_supervisor": "time.sleep(3); sys.exit(7)", "teleop": "sys.exit(1)"}
    launcher = Launcher(
        nodes,
        say=lines.append,
        command=lambda node: [sys.executable, "-S", "-c", f"import sys, time; {codes[node.name]}"],
    )
    assert launcher.run() == 7
    assert sum("teleop: started" in line for line in lines) == 6  # once, and five times after failures
    assert any("not restarted" in line for line in lines)
    assert not launcher.children


def test_the_robot_goes_on_until_the_supervisor_has_braked(tmp_path):
    """Whoever drives the motors is told to end when the supervisor has ended; both at once would drop the brake."""
    ends = "import pathlib, signal, sys, time; file = pathlib.Path(sys.argv[1]); "
    ends += "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT}); file.touch(); signal.sigwait({signal.SIGINT}); "
    ends += "file.with_suffix('.told').write_text(str(time.monotonic())); "
    ends += "time.sleep(.3); file.write_text(str(time.monotonic()))"
    launcher = Launcher(
        graph(GraphArgs(robot_spec=find_file("desk_arm"), teleop="joy")),
        say=lambda line: None,
        command=lambda node: [sys.executable, "-S", "-c", ends, str(tmp_path / node.name)],
    )
    thread = threading.Thread(target=launcher.run)
    thread.start()
    wait(lambda: len(list(tmp_path.iterdir())) == 3, what="three processes")
    launcher.stop()
    thread.join(30.0)
    when = {file.name: float(file.read_text() or "nan") for file in tmp_path.iterdir()}
    assert when["sim_robot.told"] > when["safety_supervisor"]
    assert when["safety_supervisor.told"] < when["teleop"]


def full_pipe():
    """(reader, writer) of a pipe that takes nothing more: a terminal that is held."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with contextlib.suppress(BlockingIOError):
        while os.write(writer, b"x" * 4096):
            pass
    os.set_blocking(writer, True)
    return os.fdopen(reader, "rb", 0), os.fdopen(writer, "wb", 0)


def test_a_recorder_on_a_slow_disk_is_neither_waited_for_nor_killed(tmp_path):
    """It needs 4 s to write what it has; the deployment ends within 2."""
    nodes = graph(GraphArgs(robot_spec=find_file("desk_arm"), record=True))
    writing = "import pathlib, signal, sys, time; signal.signal(signal.SIGINT, lambda *_: None); "
    writing += "pathlib.Path(sys.argv[1] + '/begun').touch(); signal.pause(); time.sleep(4); "
    writing += "pathlib.Path(sys.argv[1] + '/written').touch()"
    said = []
    launcher = Launcher(
        [node for node in nodes if node.name == "recorder"],
        say=said.append,
        command=lambda _: [sys.executable, "-S", "-c", writing, str(tmp_path)],
    )
    thread = threading.Thread(target=launcher.run)
    thread.start()
    wait(lambda: (tmp_path / "begun").exists(), what="the recorder")
    begin = time.monotonic()
    launcher.stop()
    thread.join(30.0)
    assert time.monotonic() - begin < 2.0 + SLACK
    assert "still writing" in said[-1]
    wait(lambda: (tmp_path / "written").exists(), limit=30.0, what="what was recorded")


def test_a_terminal_that_takes_nothing_stops_neither_a_process_nor_the_end():
    """With stderr inherited the supervisor would stand still in its first warning, and Ctrl-C would wait for it."""
    reader, writer = full_pipe()
    relay = Relay(writer, room=50)
    nodes = graph(GraphArgs(robot_spec=find_file("desk_arm")))
    code = "import sys, time; [print('x' * 99, file=sys.stderr) for _ in range(9999)]; sys.exit(7)"
    launcher = Launcher(
        nodes[:1],
        say=lambda line: relay.put(f"{line}\n".encode()),
        command=lambda _: [sys.executable, "-S", "-c", code],
        relay=relay,
    )
    assert launcher.run() == 7
    relay.close(0.2)
    assert not launcher.children

    def drain():
        while reader.read(1 << 16):
            pass

    threading.Thread(target=drain, daemon=True).start()


def test_relay_tells_how_many_lines_it_left_out():
    reader, writer = full_pipe()
    relay = Relay(writer, room=10)
    for i in range(100):
        relay.put(b"%d\n" % i)
    seen = b""
    while not seen.endswith(b"end\n"):
        seen += reader.read(1 << 16)
        if b"9\n" in seen and not seen.endswith(b"end\n"):
            relay.put(b"end\n")
    kept = [int(line) for line in seen.split(b"x")[-1].split(b"\n")[:-1] if line.isdigit()]
    assert kept == list(range(len(kept)))
    assert f"{100 - len(kept)} lines left out".encode() in seen
    relay.close()


@pytest.fixture
def experts(tmp_path):
    """A run of the world's expert, and parameters with which a busy machine is no fault."""
    save_expert(tmp_path)
    params = tmp_path / "params.yaml"
    params.write_text(
        "/**/safety_supervisor:\n  ros__parameters: {overrun_ticks: 40, state_timeout: 0.3, command_timeout: 0.3}\n"
    )
    return params


@pytest.mark.parametrize("minutes", [1.0, pytest.param(20.0, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])])
def test_43_soak_memory_and_pace_are_flat_and_ctrl_c_brakes_and_leaves_nobody(tmp_path, experts, minutes, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{HERE}")
    options = ("trust=true", f"params_file={experts}")
    found = soak(minutes, str(tmp_path), task_seconds=3.0, record_seconds=6.0, options=options)
    assert set(found["rows"]) == {"launcher", "sim_robot", "safety_supervisor", "policy", "teleop", "recorder"}
    for name, row in found["rows"].items():
        assert abs(row["rss_end_mb"] - row["rss_start_mb"]) < 5.0, (name, row)
    first, second = found["period_p99_ms"]
    assert abs(second - first) < 2.0
    assert found["executed_hz"] > 99.0
    assert found["faults"] == 0
    end = found["end"]
    assert (end["status"], end["left"]) == (0, 0)
    assert end["velocity_moving"] > 0.1
    assert end["velocity_last"] == 0.0
    assert end["order"] == ["policy", "teleop", "safety_supervisor", "sim_robot", "recorder"]


@pytest.mark.smoke
@pytest.mark.timing
def test_three_processes_reach_goals_at_100_hz(tmp_path, experts):
    """Simulated arm, supervisor, policy (the world's expert); a trained policy: docs/ros2.md."""
    station = Station()
    from robot_rl.sim.arm import scene
    from robot_rl.sim.tool import Tool

    tool = Tool(scene(), "tip", JOINTS)
    goal = [np.zeros(3)]
    station.node.create_subscription(
        Float64MultiArray, "robot_rl/task/goal", lambda m: goal.__setitem__(0, np.array(m.data)), 1
    )
    process = deploy("world=reach", "auto_arm=true", f"policy_path={tmp_path}", "trust=true", f"params_file={experts}")

    def distance():
        joints = station.joints
        place = np.array([joints[name] for name in JOINTS])
        return float(np.linalg.norm(tool.position(place) - goal[0]))

    try:
        station.wait_state("ACTIVE", limit=90.0)
        for _ in range(3):
            wait(lambda: station.joints and distance() < 0.02, limit=20.0, what="the goal")
            station.call("sim_robot/next_task")
        assert station.state == "ACTIVE"
    finally:
        nodes = family(process)
        process.send_signal(signal.SIGINT)
        try:
            assert process.wait(30.0) == 0
        finally:  # what is left would drive the robot of the tests that follow
            for one in psutil.wait_procs(nodes, timeout=0.0)[1]:
                one.kill()
            station.close()
