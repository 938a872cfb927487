"""Whether the controller that was asked for its joints is the one that listens now."""

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("rclpy", reason="needs rclpy (extra `ros`)")
from rcl_interfaces.msg import ParameterType, ParameterValue
from rcl_interfaces.srv import GetParameters

from robot_rl.real.core.spec import RobotSpec
from robot_rl.real.ros.controller_check import ControllerCheck, controller_name
from tests.real.ros.ros_harness import SPEC


class Answered:
    """A question that was answered at once."""

    def __init__(self, *texts):
        value = ParameterValue(type=ParameterType.PARAMETER_STRING_ARRAY, string_array_value=list(texts))
        self._answer = GetParameters.Response(values=[value])

    def done(self):
        return True

    def result(self):
        return self._answer


class Graph:
    """A node that sees who listens, and a controller that answers at once."""

    def __init__(self, joints):
        self.joints, self.here = joints, []

    def resolve_topic_name(self, name):
        return f"/{name.lstrip('/')}"

    def get_subscriptions_info_by_topic(self, topic):
        return [SimpleNamespace(node_namespace="/", node_name=name[1:], endpoint_gid=gid) for name, gid in self.here]

    def create_client(self, kind, name):
        def call(request):
            return Answered(*(self.joints if request.names == ["joints"] else ["position"]))

        return SimpleNamespace(service_is_ready=lambda: True, call_async=call)


def test_a_controller_that_comes_before_the_old_one_is_known_to_be_gone_is_asked_anew(tmp_path):
    (tmp_path / "arm.yaml").write_text(SPEC.format(mode="forward_position", timeout=0.0))
    spec = RobotSpec.load(tmp_path / "arm.yaml")
    graph: Any = Graph(list(spec.names))
    name = controller_name(graph, spec)
    graph.here = [(name, b"1")]
    check = ControllerCheck(graph, spec)
    for _ in range(2):
        check.look()
    assert check.problem == ""

    graph.here.append(("/recorder", b"2"))  # it listens, and moves nothing
    check.look()
    assert check.problem == ""

    graph.here.append((name, b"3"))
    graph.joints = list(reversed(spec.names))
    check.look()
    assert "is not known" in check.problem
    check.look()
    assert "other joints would move" in check.problem
