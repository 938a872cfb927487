"""Pictures of a simulation come from a process of their own, of the state that was asked for, and delay nobody."""

import io
import time

import numpy as np
import pytest

from robot_rl.human.painter import Painter
from tests.human.line_world import LineEnv

image = pytest.importorskip("PIL.Image")


class Slow(LineEnv):
    """Takes a third of a second for a picture: one column per place."""

    def render(self):
        time.sleep(0.3)
        frame = np.zeros((8, 80, 3), np.uint8)
        frame[:, int(39 + 38 * self.place)] = 255
        return (frame,)


def until_picture(painter, env):
    end = time.monotonic() + 20.0
    while time.monotonic() < end:
        picture = painter.turn(env.state_dict, 95)
        if picture is not None:
            assert time.monotonic() - picture.taken > 0.3  # as old as the state that it shows
            return np.asarray(image.open(io.BytesIO(picture.picture)))
        time.sleep(0.01)
    raise AssertionError("no picture came")


def test_a_slow_renderer_delays_nobody_and_draws_what_was_asked():
    painter = Painter(Slow)
    env = Slow()
    env.reset(seed=1)
    try:
        env.place = -0.5
        picture = until_picture(painter, env)
        assert int(picture.mean(axis=(0, 2)).argmax()) == pytest.approx(39 - 19, abs=1)
        env.place = 0.5
        until_picture(painter, env)  # that of the state before may have been on its way
        picture = until_picture(painter, env)
        assert int(picture.mean(axis=(0, 2)).argmax()) == pytest.approx(39 + 19, abs=1)
        spent = time.process_time()
        for _ in range(200):
            painter.turn(env.state_dict, 95)
        assert time.process_time() - spent < 0.3  # less than one picture
    finally:
        painter.close()
    assert not painter._child.is_alive()


def test_a_child_that_died_is_told():
    painter = Painter(Slow)
    env = Slow()
    env.reset(seed=1)
    until_picture(painter, env)
    painter._child.kill()
    painter._child.join(10.0)
    for _ in range(3):
        painter.turn(env.state_dict, 95)
    assert painter.dead
    painter.close()
