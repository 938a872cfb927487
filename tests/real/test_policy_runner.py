"""What a policy sees and commands, how a person steers, and what the graph consists of; no ROS."""
# pyright: reportOptionalMemberAccess=false

import ast
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml

from robot_rl.real.graph import (
    EXECUTABLES,
    ORDER,
    GraphArgs,
    GraphError,
    environment,
    find_file,
    from_strings,
    graph,
)
from robot_rl.real.operator import Edge, JointSteer, deadband
from robot_rl.real.policy_runner import PolicyRunner, RunnerOptions, Unfit, fit_policy, prove
from robot_rl.real.port import SpecPort
from robot_rl.types import Action, Loaded, PolicyParts, Seen

ROOT = Path(__file__).resolve().parents[2]


class Constant:
    """A policy with one answer."""

    parts = PolicyParts()

    def __init__(self, io, value):
        self.io, self.value, self.resets = io, np.asarray(value, np.float32), 0

    def reset(self, rows=None):
        self.resets += 1

    def act(self, obs, *, deterministic=False):
        self.seen = obs
        return Action(self.value[None])


def runner(spec, value, **options):
    port = SpecPort(spec, 10.0)
    return PolicyRunner(Constant(port.io, value), port, RunnerOptions(**{"rate": 50.0, **options}), identity="p")


def values(made, ticks, place=(0.0, 0.0, 0.0)):
    found = [made.tick(np.array(place), np.zeros(3), {}) for _ in range(ticks)]
    return [None if item is None else item.values[0, 0] for item in found]


def test_keeps_of_its_noise_what_is_said_or_what_it_was_trained_to(make_arm):
    told = []

    def set_dither(share):
        told.append(share)
        return 0.5

    for said in (None, 0.0, 0.3):
        port = SpecPort(make_arm(), 10.0)
        policy = Constant(port.io, [0.0, 0.0, 0.0])
        policy.parts = PolicyParts(set_dither=set_dither)
        PolicyRunner(policy, port, RunnerOptions(rate=50.0, dither=said), identity="p")
    assert told == [0.0, 0.3]
    with pytest.raises(Unfit, match=r"dither is 0.3, and Constant has no noise to keep"):
        runner(make_arm(), [0.0, 0.0, 0.0], dither=0.3)


def test_goes_straight_from_target_to_target(make_arm):
    # absolute mapping: range -1.98 .. 1.98, so 0.5 is 0.99 rad; five ticks per decision
    made = runner(make_arm(), [0.5, 0.0, 0.0])
    assert values(made, 6) == pytest.approx([0.198, 0.396, 0.594, 0.792, 0.99, 0.99])


def test_without_interpolation_commands_the_target_at_once(make_arm):
    assert values(runner(make_arm(), [0.5, 0.0, 0.0], interpolate=False), 2) == pytest.approx([0.99, 0.99])


def test_chunk_covers_the_decision_and_half_of_the_next(make_arm):
    made = runner(make_arm(), [0.5, 0.0, 0.0], chunk_steps=4)
    first = made.tick(np.zeros(3), np.zeros(3), {})
    assert first.times == pytest.approx([0.025, 0.05, 0.075, 0.1, 0.125, 0.15])
    assert first.values[:, 0] == pytest.approx([0.2475, 0.495, 0.7425, 0.99, 0.99, 0.99])
    assert values(made, 4) == [None] * 4
    assert made.tick(np.zeros(3), np.zeros(3), {}) is not None


def test_swap_fades_over_the_blend(make_arm):
    spec = make_arm()
    old, new = runner(spec, [0.5, 0.0, 0.0]), runner(spec, [-0.5, 0.0, 0.0], blend_steps=3, interpolate=False)
    values(old, 5)
    new.follow(old)
    targets = values(new, 25)[::5]
    # shares of the new policy: 1/4, 2/4, 3/4, then all of it
    assert targets == pytest.approx([0.495, 0.0, -0.495, -0.99, -0.99])


def test_swap_without_a_blend_goes_on_from_the_last_command(make_arm):
    spec = make_arm()
    old, new = runner(spec, [0.5, 0.0, 0.0]), runner(spec, [-0.5, 0.0, 0.0], blend_steps=0)
    assert values(old, 5)[-1] == pytest.approx(0.99)
    new.follow(old)
    assert values(new, 5) == pytest.approx([0.594, 0.198, -0.198, -0.594, -0.99])
    new.restart()
    assert values(new, 1) == pytest.approx([-0.198])  # from where the robot is, at 0


def test_refuses_a_rate_that_does_not_fit(make_arm):
    with pytest.raises(Unfit, match="whole multiple"):
        runner(make_arm(), np.zeros(3), rate=25.0)


def test_prove_refuses_what_must_not_drive(make_arm):
    port = SpecPort(make_arm(), 10.0)
    prove(Constant(port.io, np.zeros(3)), port)
    with pytest.raises(Unfit, match="not finite"):
        prove(Constant(port.io, [0.0, np.nan, 0.0]), port)
    with pytest.raises(Unfit, match="shape"):
        prove(Constant(port.io, [0.0]), port)


def loaded(io, value, *, port=None, known=None):
    return Loaded(Constant(io, value), io, None if port is None else lambda joints: port, "p", known)


def test_policy_of_another_robot_rate_or_unknown_range_is_refused(make_arm):
    spec = make_arm()
    port = SpecPort(spec, 10.0)
    unnamed = replace(port.io, action_names=("a0", "a1", "a2"), obs_names=(), action_units=("1",) * 3)
    unknown = replace(unnamed, action_low=(None,) * 3, action_high=(None,) * 3)
    for io, wrong in (
        (SpecPort(spec, 20.0).io, "20 Hz"),
        (replace(port.io, action_names=("x", "y", "z")), "'x' here and 'j0_absolute' there"),
        (replace(port.io, action_units=("m",) * 3), "in other units|is in m here and rad there"),
        (replace(unnamed, obs={"state": ((5,), "float32")}), "observations"),
        (unknown, "nothing says what the log's actions mean.*action_low=… action_high=…"),
    ):
        with pytest.raises(Unfit, match=wrong):
            fit_policy(loaded(io, np.zeros(3), port=port), spec, {}, pytest.fail)
    for said in ({"action": "normalised"}, {"action_low": -1.0, "action_high": 1.0}):
        fit_policy(loaded(unknown, np.zeros(3), port=port), spec, said, pytest.fail)


def test_policy_of_another_range_commands_what_its_own_numbers_say(make_arm):
    # its 0.5 is 0.5 rad; the arm goes from -1.98 to 1.98 rad
    spec, heard = make_arm(), []
    io = replace(SpecPort(spec, 10.0).io, action_low=(-1.0, -1.0, -4.0), action_high=(1.0, 1.0, 4.0))
    policy, port = fit_policy(loaded(io, [0.5, -0.25, 1.0]), spec, {}, heard.append)
    made = PolicyRunner(policy, port, RunnerOptions(rate=10.0), identity="p")
    np.testing.assert_allclose(made.tick(np.zeros(3), np.zeros(3), {}).values[0], [0.5, -0.25, 1.98], atol=1e-6)
    assert heard == [heard[0]]
    assert "(j2_absolute): clipped" in heard[0]


def test_robot_that_is_where_training_never_was_is_told_once(make_arm):
    port, heard = SpecPort(make_arm(), 10.0), []
    rows = np.random.default_rng(0).uniform(-0.5, 0.5, (1000, 6))
    rows[:, 5] = 0.0  # what never moved tells nothing
    seen = Seen.of({"state": rows}, rows[:, :3], count=1000, rate=10.0)
    still, slow = Constant(port.io, np.zeros(3)), RunnerOptions(rate=10.0)
    made = PolicyRunner(still, port, slow, identity="p", seen=seen, say=heard.append)
    for _ in range(3):
        made.tick(np.array([0.9, 1.8, -1.9]), np.array([0.0, 0.0, 1.0]), {})
    assert len(heard) == 1
    assert "joint_positions_1 is 1.8, training saw -0.4981 to 0.4989" in heard[0]
    assert "joint_positions_2 is -1.9" in heard[0]
    assert "joint_positions_0" not in heard[0]
    assert "joint_velocities" not in heard[0]


def test_policy_that_reads_its_last_action_reads_it_on_its_own_scale(make_arm):
    spec = make_arm(observation=["joint_positions", "last_action"])
    io = replace(SpecPort(spec, 10.0).io, action_low=(-1.0,) * 3, action_high=(1.0,) * 3)
    inner = Constant(io, [0.5, 0.0, 0.0])
    policy, port = fit_policy(Loaded(inner, io, None, "p"), spec, {}, pytest.fail)
    made = PolicyRunner(policy, port, RunnerOptions(rate=10.0), identity="p")
    for _ in range(2):
        made.tick(np.zeros(3), np.zeros(3), {})
    np.testing.assert_allclose(inner.seen["state"][0, 3:], [0.5, 0.0, 0.0], atol=1e-6)


@pytest.mark.parametrize(
    ("action", "mode", "expected"),
    [
        ({"mapping": "delta", "scale": [0.1]}, "forward_position", 0.35),
        ({"mapping": "velocity", "scale": [0.4]}, "forward_position", 0.32),
        ({"mapping": "velocity", "scale": [0.4]}, "forward_velocity", 0.2),
    ],
)
def test_spec_port_maps_actions_hand_worked(make_arm, action, mode, expected):
    # half an action from 0.3 rad: 0.3 + 0.5 * 0.1; 0.3 + 0.5 * 0.4 / 10 Hz; 0.5 * 0.4 rad/s
    port = SpecPort(make_arm(action=action, command_mode=mode, dead_time=0.0), 10.0)
    port.reset(np.array([0.3, 0.0, 0.0]), np.zeros(3), {})
    assert port.act(np.array([[0.5, 0.0, 0.0]]))[0] == pytest.approx(expected)


def test_deadband_cuts_the_middle_and_keeps_the_ends():
    assert deadband(np.array([0.05, -0.03, 1.0, -1.0, 0.525, np.nan])) == pytest.approx([0, 0, 1, -1, 0.5, 0])


def test_edge_counts_a_press_once_and_not_one_from_before():
    edge = Edge()
    assert [edge(x) for x in (True, False, True, True, False, True)] == [False, False, True, False, False, True]


def test_steer_begins_at_the_present_command_and_follows_a_twist(make_arm):
    jacobian = np.zeros((6, 3))
    jacobian[:3] = np.eye(3)
    steer = JointSteer(make_arm(), 50.0, jacobian=lambda q: jacobian, damping=1e-6)
    start = np.array([0.5, 0.0, 0.0])
    assert steer.joints(np.array([0.5, 0.0, 0.0]), start)[0] == pytest.approx(0.51)
    steer.release()
    moved = steer.twist(np.array([0.1, 0.2, 0.0, 0.0, 0.0, 0.0]), start)
    assert moved == pytest.approx([0.502, 0.004, 0.0], abs=1e-6)
    steer.release()  # twice too fast: slower, in the same direction
    assert steer.twist(np.array([2.0, 1.0, 0, 0, 0, 0]), np.zeros(3)) == pytest.approx([0.02, 0.01, 0], abs=1e-6)


def test_steer_does_not_run_away_from_a_robot_that_cannot_follow(make_arm):
    steer = JointSteer(make_arm(), 50.0, lead=0.2)  # joints of 1 rad/s
    held = np.zeros(3)
    commands = [steer.joints(np.array([0.5, 0.0, 0.0]), held) for _ in range(100)]  # two seconds against a limit
    assert commands[-1] == pytest.approx([0.2, 0.0, 0.0])
    assert steer.joints(np.array([-0.5, 0.0, 0.0]), held)[0] == pytest.approx(0.19)  # and back at once


# ---------------------------------------------------------------- graph


@pytest.fixture
def arguments(tmp_path, run_folder):
    (tmp_path / "arm.yaml").write_text("name: arm")
    return {"robot_spec": str(tmp_path / "arm.yaml"), "policy_path": str(run_folder)}


def names(args):
    return [node.name for node in graph(args)]


def test_a_real_robot_asks_for_a_comparison_and_a_rehearsal_does_not(arguments, tmp_path):
    def policy(**more):
        [node] = [node for node in graph(GraphArgs(**arguments, **more)) if node.name == "policy"]
        return {key: node.parameters.get(key) for key in ("propose", "shadow")}

    folder = str(tmp_path / "flight")
    assert policy() == {"propose": None, "shadow": None}
    assert policy(sim=False, flight=folder) == {"propose": False, "shadow": folder}
    assert policy(sim=False, checked=False) == {"propose": None, "shadow": None}
    assert policy(propose=True, flight=folder) == {"propose": True, "shadow": folder}
    for more, words in (
        ({"sim": False, "flight": ""}, "say checked=false to drive a real robot unchecked"),
        ({"propose": True, "flight": ""}, "flight= is empty"),
    ):
        with pytest.raises(GraphError, match=words):
            graph(GraphArgs(**arguments, **more))
    with pytest.raises(GraphError, match="give policy_path=<run folder>"):
        graph(GraphArgs(**{**arguments, "policy_path": ""}, propose=True))


def test_graph_of_every_choice(arguments):
    assert names(GraphArgs(**arguments)) == ["sim_robot", "safety_supervisor", "policy"]
    assert names(GraphArgs(**{**arguments, "policy_path": ""}, sim=False)) == ["safety_supervisor"]
    full = GraphArgs(**arguments, teleop="joy", record=True, namespace="left")
    assert names(full) == ["sim_robot", "safety_supervisor", "policy", "teleop", "recorder"]
    assert all("__ns:=/left" in node.arguments() for node in graph(full))
    # a card with servos in place of sim_robot, other people's goals in place of a policy
    assert (
        {*names(full), "servo_arm", "follow_trajectory"}
        == {name for group in ORDER for name in group}
        == set(EXECUTABLES)
    )
    without = {**arguments, "policy_path": ""}
    assert names(GraphArgs(**without, follow_trajectory=True))[-1] == "follow_trajectory"
    with pytest.raises(GraphError, match="policy_path and follow_trajectory both speak as the policy"):
        graph(GraphArgs(**arguments, follow_trajectory=True))
    with pytest.raises(GraphError, match="auto_arm waits for a first command"):
        graph(GraphArgs(**{**without, "auto_arm": True}, follow_trajectory=True))


def test_graph_flights_of_supervisor_and_policy_go_to_one_folder_or_nowhere(arguments, tmp_path):
    nodes = {node.name: node.parameters for node in graph(GraphArgs(**arguments, flight=str(tmp_path / "f")))}
    assert nodes["safety_supervisor"]["flight"] == nodes["policy"]["flight"] == str(tmp_path / "f")
    assert "flight" not in nodes["sim_robot"]
    default = {node.name: node.parameters for node in graph(GraphArgs(**arguments))}
    assert default["policy"]["flight"] == str(Path("runs/flight").resolve())
    assert all("flight" not in node.parameters for node in graph(GraphArgs(**arguments, flight="")))


def test_graph_the_robot_makes_the_time_and_the_others_follow_it(arguments):
    nodes = {node.name: node.parameters for node in graph(GraphArgs(**arguments, use_sim_time=True))}
    assert nodes["sim_robot"]["publish_clock"]
    assert "use_sim_time" not in nodes["sim_robot"]
    assert nodes["policy"]["use_sim_time"]


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"robot_spec": ""}, "robot_spec is empty"),
        ({"robot_spec": "nothing.yaml"}, "no file"),
        ({"policy_path": "nowhere"}, "no folder"),
        ({"policy_path": "."}, "no complete checkpoint"),
        ({"teleop": "wheel"}, "expected one of none, joy"),
        ({"sim": False, "auto_arm": True}, "simulation only"),
        ({"sim": False, "world": "reach"}, "simulated robot"),
        ({"world": "reach", "model": "arm.xml"}, "not both"),
    ],
)
def test_graph_refuses_what_makes_no_sense(arguments, change, word):
    with pytest.raises(GraphError, match=word):
        graph(GraphArgs(**{**arguments, **change}))


@pytest.mark.parametrize(
    ("teleop", "mode"), [("leader", "forward_velocity"), ("leader", "forward_effort"), ("joy", "forward_effort")]
)
def test_graph_refuses_hands_that_the_robot_would_take_for_something_else(arguments, tmp_path, teleop, mode):
    joints = [{"name": "a", "lower": -1.0, "upper": 1.0, "velocity": 1.0, "acceleration": 5.0, "effort": 9.0}]
    path = tmp_path / "mine.yaml"
    robot = {"name": "r", "joints": joints, "command_mode": mode, "controller_timeout": 0.1, "dead_time": 0.03}
    path.write_text(yaml.safe_dump(robot))
    with pytest.raises(GraphError, match=rf"teleop={teleop} cannot drive command_mode {mode}"):
        graph(GraphArgs(**{**arguments, "robot_spec": str(path), "teleop": teleop}))


def test_arguments_from_texts(arguments):
    made = from_strings({**arguments, "sim": "False", "rate": "200", "chunk_steps": "4"})
    assert (made.sim, made.rate, made.chunk_steps) == (False, 200.0, 4)
    for wrong, word in (({"sim": "yes"}, "true or false"), ({"rate": "fast"}, "a number"), ({"speed": "1"}, "no argu")):
        with pytest.raises(GraphError, match=word):
            from_strings(wrong)


def test_shipped_files_are_found_by_name():
    assert Path(find_file("desk_arm")).name == "desk_arm.yaml"
    assert find_file("nothing") == "nothing"


def test_discovery_stays_on_this_machine_unless_the_user_says_otherwise():
    assert environment({}, sim=True)["ROS_AUTOMATIC_DISCOVERY_RANGE"] == "LOCALHOST"
    assert (
        environment({"ROS_AUTOMATIC_DISCOVERY_RANGE": "SUBNET"}, sim=True)["ROS_AUTOMATIC_DISCOVERY_RANGE"] == "SUBNET"
    )
    # a real robot's driver may run on the robot's computer
    assert "ROS_AUTOMATIC_DISCOVERY_RANGE" not in environment({}, sim=False)


@pytest.mark.parametrize("profile", ["", find_file("fastdds_shm.xml")])
def test_the_supervisor_takes_udp_unless_the_user_has_a_profile(monkeypatch, profile):
    pytest.importorskip("rclpy", reason="rclpy is not installed")
    from robot_rl.real.ros.transport import PROFILES, RANGE, spare_shared_memory

    monkeypatch.setenv(PROFILES[1], "")
    for range_, name in (("LOCALHOST", "fastdds_loopback.xml"), ("", "fastdds_udp.xml")):
        monkeypatch.setenv(PROFILES[0], profile)
        monkeypatch.setenv(RANGE, range_)
        spare_shared_memory()
        assert Path(os.environ[PROFILES[0]]).name == name
        assert os.environ[RANGE] == ("SUBNET" if range_ else "")
        assert "SHM" not in Path(os.environ[PROFILES[0]]).read_text()
    monkeypatch.setenv(PROFILES[0], "/etc/mine.xml")  # the user's own stays
    spare_shared_memory()
    assert os.environ[PROFILES[0]] == "/etc/mine.xml"


def test_wrappers_and_modules_agree_with_the_graph():
    pytest.importorskip("rclpy", reason="rclpy is not installed")
    from robot_rl.nodes import NODES

    assert set(NODES) == set(EXECUTABLES.values())
    for executable in EXECUTABLES.values():
        wrapper = ROOT / "launch" / "bin" / executable
        assert os.access(wrapper, os.X_OK), f"{wrapper} cannot be executed"
        assert wrapper.read_text().endswith(f"import {executable}\n\n{executable}()\n")


@pytest.mark.parametrize("path", sorted((ROOT / "launch").glob("*.launch.py")), ids=lambda p: p.name)
def test_launch_file_parses(path):
    tree = ast.parse(path.read_text())
    assert any(isinstance(n, ast.FunctionDef) and n.name == "generate_launch_description" for n in tree.body)


def test_no_executor_that_deadlocks_or_drops():
    # EventsExecutor deadlocks as soon as a peer publishes, MultiThreadedExecutor drops most messages at 500 Hz
    for path in (ROOT / "real").rglob("*.py"):
        assert not {"EventsExecutor", "MultiThreadedExecutor"} & set(path.read_text().replace("(", " ").split())


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("robot_rl.real", "rclpy"),
        ("robot_rl.real.graph", "rclpy"),
        ("robot_rl.real.core.pipeline", "torch"),
        ("robot_rl.real.ros.safety_supervisor_node", "torch"),
        ("robot_rl.nodes", "torch"),
        ("robot_rl.sim.tool", "torch"),
    ],
)
def test_import_stays_light(module, absent):
    if ".ros." in module or module.endswith(".nodes"):
        pytest.importorskip("rclpy", reason="rclpy is not installed")
    code = f"import sys, {module}; sys.exit('{absent}' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


def test_enclave_gives_every_process_keys_of_its_own(run_folder):
    nodes = graph(GraphArgs(robot_spec=find_file("desk_arm"), policy_path=str(run_folder), enclave="/cell"))
    for node in nodes:
        arguments = node.arguments()
        assert arguments[arguments.index("--enclave") + 1] == f"/cell/{node.name}"
    assert all("--enclave" not in node.arguments() for node in graph(GraphArgs(robot_spec=find_file("desk_arm"))))
