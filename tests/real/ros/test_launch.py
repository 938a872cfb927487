"""The launch files under the real ROS 2 launch: every argument, every combination of choices, every refusal."""

# pyright: reportAttributeAccessIssue=false, reportOptionalMemberAccess=false, reportArgumentType=false
# (launch is not installed where types are checked)

import importlib.util
import itertools
from dataclasses import fields
from pathlib import Path

import pytest

pytest.importorskip("launch", reason="ROS 2's launch is not on PyPI; docs/ros2.md says how to get it")
pytest.importorskip("launch_ros", reason="ROS 2's launch_ros is not on PyPI")

from launch.actions import DeclareLaunchArgument, ExecuteProcess, OpaqueFunction
from launch_ros.actions import Node

from launch import LaunchContext
from robot_rl.real.graph import EXECUTABLES, TELEOP, GraphArgs, GraphError, find_file, from_strings, graph
from robot_rl.real.ros.launching import descriptions

FILES = sorted((Path(__file__).parents[3] / "launch").glob("*.launch.py"))
FIXED = {"deploy": set(), "sim": {"sim"}, "hil": {"policy_path", "teleop"}, "record": {"record"}}


def described(path):
    found = importlib.util.spec_from_file_location(path.name.split(".")[0], path)
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module.generate_launch_description()


def declared(description):
    return {item.name: item for item in description.entities if isinstance(item, DeclareLaunchArgument)}


def nodes(description, **values):
    """What would be started: name -> action."""
    context = LaunchContext()
    for item in declared(description).values():
        default = "".join(part.perform(context) for part in item.default_value or ())
        context.launch_configurations[item.name] = values.get(item.name, default)
    for item in description.entities:
        if isinstance(item, DeclareLaunchArgument):
            item.execute(context)  # refuses what is no choice
    (make,) = [item for item in description.entities if isinstance(item, OpaqueFunction)]
    return {item._Node__node_name: item for item in make.execute(context) if isinstance(item, Node)}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_argument_of_the_graph_is_declared_and_described(path):
    found = declared(described(path))
    stem = path.name.split(".")[0]
    session = found.pop("hil", None)
    assert (session is not None) == (stem == "hil")
    assert set(found) == {item.name for item in fields(GraphArgs)} - FIXED[stem]
    for name, item in found.items():
        assert item.description.startswith(descriptions()[name])  # launch adds the choices
        assert len(item.description) > len(name)
    assert stem == "hil" or tuple(found["teleop"].choices) == TELEOP


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_combination_of_choices_starts_the_graph_or_is_refused_for_its_reason(path, run_folder):
    description, stem = described(path), path.name.split(".")[0]
    options = {
        "sim": ("true", "false"),
        "teleop": TELEOP,
        "record": ("true", "false"),
        "auto_arm": ("true", "false"),
        "follow_trajectory": ("true", "false"),
        "use_sim_time": ("true", "false"),
        "world": ("", "reach"),
        "policy_path": ("", str(run_folder)),
    }
    options = {name: values for name, values in options.items() if name not in FIXED[stem]}
    started, refused = 0, 0
    for values in itertools.product(*options.values()):
        chosen = dict(zip(options, values))
        chosen["robot_spec"] = "desk_arm"
        want = {"sim": "true", "record": "true", "policy_path": "", **chosen}
        try:
            expected = [node.name for node in graph(from_strings(want))]
        except GraphError as error:
            refused += 1
            with pytest.raises(GraphError, match=str(error)[:20]):
                nodes(description, **chosen)
            continue
        made = nodes(description, **chosen)
        started += 1
        assert list(made) == expected
        for name, action in made.items():
            assert action.node_executable == EXECUTABLES[name]
    assert started > 10
    assert refused > 0 or stem == "sim"


def test_wrong_choice_missing_file_and_missing_folder_are_one_clear_line(tmp_path):
    description = described(FILES[0])
    with pytest.raises(RuntimeError, match=r"teleop.*kayboard.*none"):
        nodes(description, robot_spec="desk_arm", teleop="kayboard")
    for values, words in (
        ({"robot_spec": "/no/arm.yaml"}, "robot_spec is /no/arm.yaml, which is no file"),
        ({"policy_path": "/no/run"}, "policy_path is /no/run, which is no folder"),
        ({"rate": "fast"}, "rate is 'fast', expected a number"),
        ({"world": "reach", "model": str(find_file("desk_arm"))}, "not both"),
    ):
        with pytest.raises(GraphError) as error:
            nodes(description, **{"robot_spec": "desk_arm", **values})
        assert words in str(error.value)
        assert "\n" not in str(error.value)


def test_a_session_is_started_on_the_robot_of_the_graph():
    context = LaunchContext()
    description = described(next(path for path in FILES if path.name == "hil.launch.py"))
    values = {"robot_spec": "desk_arm", "namespace": "left", "hil": "human=browser 'env.image_size=[32, 32]'"}
    for item in declared(description).values():
        default = "".join(part.perform(context) for part in item.default_value or ())
        context.launch_configurations[item.name] = values.get(item.name, default)
    (make,) = [item for item in description.entities if isinstance(item, OpaqueFunction)]
    started = [item for item in make.execute(context) if type(item) is ExecuteProcess]
    words = ["".join(part.perform(context) for part in word) for word in started[0].cmd]
    place = ("env=ros2", "env.robot_spec=desk_arm", "env.namespace=left", "env.arm=true")
    assert words[words.index("robot_rl") :] == ["robot_rl", "hil", *place, "human=browser", "env.image_size=[32, 32]"]


def test_namespace_parameters_respawn_and_shutdown_rules_reach_the_actions(run_folder):
    chosen = {"robot_spec": "desk_arm", "namespace": "left", "teleop": "joy", "policy_path": str(run_folder)}
    made = nodes(described(FILES[0]), **chosen)
    plain = {node.name: node for node in graph(GraphArgs(robot_spec="desk_arm", namespace="left", teleop="joy"))}
    assert set(made) == {"sim_robot", "safety_supervisor", "policy", "teleop"}
    for name, node in plain.items():
        assert made[name]._Node__node_namespace == "left"
        assert bool(made[name]._ExecuteLocal__respawn) is (node.restart == "failure")
        assert bool(made[name]._ExecuteLocal__on_exit) is node.essential
