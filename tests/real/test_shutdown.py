"""What the last command of a supervisor that ends is: the robot goes on with it when nobody sends any more."""

import numpy as np
import pytest

FAR = np.full(3, 1.5)


def test_42_shutdown_brakes_then_publishes_nothing(make_loop):
    loop = make_loop().moving()
    loop.safety.shutdown()
    loop.run(0.5, FAR)
    assert loop.safety.state == "STARTUP" or not loop.verdict.publish
    assert (loop.safety.limiter.velocity == 0.0).all()
    loop.check_limits()


def until_quiet(loop):
    """Tick until nothing is sent any more; the process ends soon after."""
    for _ in range(150):
        loop.tick()
        if not loop.verdict.publish:
            return
    pytest.fail("it sends on")


@pytest.mark.parametrize("mode", ["forward_position", "forward_velocity"])
def test_shutdown_near_rest_ends_with_a_command_that_stands(make_loop, make_arm, mode):
    """Slower than 1e-4 rad/s nothing counts as motion, and yet the last velocity that is sent would stay."""
    loop = make_loop(spec=make_arm(command_mode=mode, controller_timeout=0.1, dead_time=0.0)).active()
    creep = np.full(3, 5e-5)
    place = loop.robot.position.copy()
    for tick in range(20):
        at = place + creep * 0.01 * tick if mode == "forward_position" else creep
        loop.tick(lambda at=at: loop.command(at))
    assert loop.safety.limiter.velocity == pytest.approx(creep, rel=1e-3)
    loop.safety.shutdown()
    until_quiet(loop)
    last = loop.sent[-1] if mode == "forward_velocity" else loop.sent[-1] - loop.sent[-2]
    assert not last.any()


def test_shutdown_of_a_robot_that_is_held_by_an_effort_ends_with_none(make_loop, make_arm):
    """It is at rest because of the effort: what is sent last would push it for ever."""
    loop = make_loop(spec=make_arm(command_mode="forward_effort", controller_timeout=0.1)).active()
    loop.robot.blocked[:] = True  # leaning on something
    loop.run(0.5, np.full(3, 2.0))
    assert loop.sent[-1] == pytest.approx([2.0] * 3)
    assert np.abs(loop.robot.velocity).max() < 0.02
    loop.safety.shutdown()
    until_quiet(loop)
    assert not loop.sent[-1].any()
