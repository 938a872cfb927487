"""FollowJointTrajectory through the supervisor, with control_msgs' own types and rclpy's own action client."""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false, reportOptionalMemberAccess=false
# (control_msgs has no wheel; fields of messages are lists in truth, rclpy's stubs say less)

import os
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("control_msgs", reason="control_msgs has no wheel: build_control_msgs.py builds it")

import control_msgs.action
from action_msgs.msg import GoalStatus
from control_msgs.action import FollowJointTrajectory
from control_msgs.msg import JointTolerance
from rclpy.action.client import ActionClient
from trajectory_msgs.msg import JointTrajectory, JointTrajectoryPoint

from robot_rl.real.ros.io import duration_message

harness = pytest.importorskip("ros_harness")
NAMES, wait = harness.NAMES, harness.wait


class Client:
    """Sends goals and keeps what comes back."""

    def __init__(self, node):
        self.action = ActionClient(node, FollowJointTrajectory, "follow_trajectory/follow_joint_trajectory")
        self.feedback = []
        assert self.action.wait_for_server(20.0)

    def send(self, *points, names=None, tolerance=None):
        """The goal's handle."""
        table = JointTrajectory(joint_names=names or NAMES)
        for when, row in points:
            point = JointTrajectoryPoint(positions=list(map(float, row)), time_from_start=duration_message(when))
            table.points.append(point)
        goal = FollowJointTrajectory.Goal(trajectory=table)
        if tolerance is not None:
            goal.path_tolerance = [JointTolerance(name=name, position=tolerance) for name in NAMES]
        answer = self.action.send_goal_async(goal, lambda message: self.feedback.append(message.feedback))
        wait(answer.done, 5.0, "an answer")
        return answer.result()

    def begin(self, *points, **more):
        """As `send`, once the supervisor may be moved: it brakes after what was before."""
        handles = [self.send(*points, **more)]
        wait(lambda: handles[-1].accepted or handles.append(self.send(*points, **more)), 20.0, "accepted")
        return handles[-1]

    @staticmethod
    def end(handle, limit=15.0):
        """Status and result."""
        answer = handle.get_result_async()
        wait(answer.done, limit, "a result")
        return answer.result().status, answer.result().result


@pytest.fixture
def client(live, processes, another):
    places = (harness.ROOT, Path(control_msgs.action.__file__).parents[2])
    processes.start("follow_trajectory_node", environment={"PYTHONPATH": os.pathsep.join(map(str, places))})
    yield Client(another("client"))
    processes.end("follow_trajectory_node")


def test_goals_move_the_robot_and_end_as_they_should(client, live):
    home = live.position.copy()
    backwards = [NAMES[2], NAMES[0], NAMES[1]]
    handle = client.begin((1.5, (0.1, 0.3, -0.2)), names=backwards)  # joints by name
    status, result = client.end(handle)
    assert (status, result.error_code) == (GoalStatus.STATUS_SUCCEEDED, FollowJointTrajectory.Result.SUCCESSFUL)
    np.testing.assert_allclose(live.position, [0.3, -0.2, 0.1], atol=0.05)
    assert client.feedback[-1].joint_names == NAMES
    middle = [list(message.desired.positions) for message in client.feedback]
    assert min(abs(row[0] - 0.5 * (home[0] + 0.3)) for row in middle) < 0.05  # it went through

    assert not client.send((1.0, (0.0, 0.0, 9.0))).accepted  # outside of its limits
    assert not client.send((1.0, (0.0, 0.0)), names=NAMES[:2]).accepted

    handle = client.begin((4.0, (1.0, 0.0, 0.0)))
    wait(lambda: live.position[0] > 0.4, 10.0, "on its way")
    asked = handle.cancel_goal_async()
    status, result = client.end(handle)
    assert asked.done()
    assert status == GoalStatus.STATUS_CANCELED
    stood = live.position.copy()
    assert stood[0] < 0.8

    first = client.begin((4.0, (1.0, 0.0, 0.0)))
    second = client.begin((1.5, (stood[0], 0.1, 0.0)))  # takes over
    assert client.end(first)[0] == GoalStatus.STATUS_ABORTED
    assert client.end(second)[0] == GoalStatus.STATUS_SUCCEEDED

    handle = client.begin((0.2, (-1.0, 0.0, 0.0)), tolerance=0.05)  # the supervisor does not let it go as fast as that
    status, result = client.end(handle)
    assert status == GoalStatus.STATUS_ABORTED
    assert result.error_code == FollowJointTrajectory.Result.PATH_TOLERANCE_VIOLATED
    assert result.error_string.startswith("j0 is ")  # how far depends on when it is looked at
    assert "the supervisor held the command back" in result.error_string

    handle = client.begin((4.0, (0.5, 0.5, 0.5)))
    live.estop.publish(harness.Bool(data=True))
    status, result = client.end(handle)
    assert (status, result.error_string) == (GoalStatus.STATUS_ABORTED, "the supervisor is ESTOP")
    assert not client.send((2.0, (0.0, 0.0, 0.0))).accepted
