"""The supervisor as a lifecycle node: what configuring makes, cleaning up takes away."""

import pytest
import rclpy
from rclpy.signals import SignalHandlerOptions

from robot_rl.real.graph import find_file
from robot_rl.real.ros.safety_supervisor_node import SafetySupervisorNode

pytestmark = [pytest.mark.ros, pytest.mark.timeout(120)]


def test_a_supervisor_that_is_configured_again_hears_and_tells_everything_once():
    context = rclpy.Context()
    words = ["--ros-args", "-p", f"robot_spec:={find_file('desk_arm')}"]
    rclpy.init(args=words, context=context, signal_handler_options=SignalHandlerOptions.NO)
    try:
        node = SafetySupervisorNode(lambda *_: lambda place: place[:3], context=context)

        def there():
            return sorted(f"{type(item).__name__} {id(item)}" for _, items in node._entities() for item in items)

        def kinds():
            return sorted(type(item).__name__ for _, items in node._entities() for item in items)

        before = there()
        assert node.trigger_configure().name == "SUCCESS"
        made = kinds()
        assert len(made) > len(before) + 10
        assert node.trigger_cleanup().name == "SUCCESS"
        assert there() == before
        assert node.trigger_configure().name == "SUCCESS"
        assert kinds() == made
        node.destroy_node()
    finally:
        rclpy.try_shutdown(context=context)
