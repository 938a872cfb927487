"""A robot that is stuck backs out by itself, and nothing of that is learned from."""
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportOptionalMemberAccess=false
# pyright: reportOptionalSubscript=false

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from robot_rl.data.hil_record import Source
from robot_rl.human.recovery import Recovery, of_environment
from robot_rl.sim.mujoco_env import make
from robot_rl.sim.worlds.race import Race
from robot_rl.types import EnvParts
from tests.human.line_world import LineEnv
from tests.human.test_loop import Fixed, Script, build, episode


class Ditch(LineEnv):
    """The line with a ditch at 0.5 that holds whoever drives to the right, until they have backed out to 0.2."""

    @property
    def parts(self):
        return replace(super().parts, way_out=(-1.0,))

    def _draw(self):
        super()._draw()
        self.place, self.goal, self.held = 0.3, 5.0, False

    def step(self, action):
        self.held = (self.held or abs(self.place - 0.5) < 0.06) and self.place > 0.2
        if self.held:
            action = np.minimum(action, 0.0)
        return super().step(action)


def stuck(folder, human=None, steps=90):
    env = Ditch(steps=steps)
    loop = build(folder, human, env=env, learner=Fixed(env.io, 0.6))
    places = lambda: np.array([env.place])  # noqa: E731
    loop.recovery = Recovery(places, env.parts.way_out, env.io.control_hz, patience=10, radius=0.05, drive_s=1.0)
    return loop


def test_stuck_robot_backs_out_and_its_way_out_is_stored_but_never_sampled(tmp_path):
    loop = stuck(tmp_path)
    loop._episode(demo=False)
    steps = episode(loop)
    out = [t for t, step in enumerate(steps) if step.source == Source.RECOVERY]
    assert loop.recovery.count >= 2  # it is driven in again each time: that is for the learner to learn
    assert out[:10] == list(range(out[0], out[0] + 10))  # a second
    assert all(not steps[t].valid and steps[t].action_cmd[0] == -1.0 for t in out)
    assert all(steps[t].action_policy[0] == pytest.approx(0.6) for t in out)  # what the policy wanted is kept
    assert steps[out[9]].next_obs["state"][0] < steps[out[0]].obs["state"][0] - 0.1
    batch = loop.memory.take(loop.memory.views["online"].rows())
    assert len(batch.action) == len(steps) - len(out)
    assert (batch.action > 0).all()
    # the step before the way out ends in the place where it began, not in where it led to
    last = np.flatnonzero(~loop.memory.is_joined(loop.memory.views["online"].rows()))[0]
    assert float(batch.next_obs["state"][last, 0]) == float(steps[out[0]].obs["state"][0])


def test_person_who_takes_over_ends_the_recovery(tmp_path):
    probe = stuck(tmp_path / "probe")
    probe._episode(demo=False)
    first = next(t for t, step in enumerate(episode(probe)) if step.source == Source.RECOVERY)
    ticks = [{}] * (first + 2) + [{"enable": True, "value": -0.5}] * 6 + [{}] * 60
    loop = stuck(tmp_path / "taken", Script(ticks))
    loop._episode(demo=False)
    steps = episode(loop)
    assert [step.source for step in steps[first : first + 4]] == [Source.RECOVERY] * 2 + [Source.HUMAN] * 2
    assert all(step.valid for step in steps[first + 2 : first + 8])


def test_moving_robot_is_left_alone_and_what_is_drawn_continues_exactly():
    place = np.zeros(2)
    watch = Recovery(lambda: place.copy(), (None, -1.0), 20.0, seed=1)
    for _ in range(100):
        place[0] += 0.02
        assert watch.look() is None
    ways = []
    for _ in range(200):
        way = watch.look()
        if way is not None:
            ways.append(way)
    assert watch.count >= 2
    assert all(way[1] == -1.0 for way in ways)
    assert len({float(way[0]) for way in ways}) == watch.count
    again = Recovery(lambda: place.copy(), (None, -1.0), 20.0)
    again.load_state_dict(watch.state_dict())
    watch.begin()
    twins = [(watch.look(), again.look()) for _ in range(40)]
    assert all((a is None) == (b is None) and (a is None or (a == b).all()) for a, b in twins)


def test_car_that_stands_on_the_track_backs_up():
    env = make(1, 0, world=Race())
    env.reset(seed=0)
    recovery = of_environment(env, 0)
    place = env.parts.place
    assert place is not None
    start, driven = place()[0].copy(), []
    for _ in range(60):
        way = recovery.look()
        action = np.array([0.0, -0.6], np.float32) if way is None else way  # -0.6 is 0 m/s
        driven.append(way is not None)
        *_, terminated, _, _ = env.step(action[None])
        if terminated[0]:
            break
    assert driven.index(True) == 29
    assert recovery.count == 1
    assert np.linalg.norm(place()[0] - start) > 0.3
    env.close()


def test_worlds_that_know_no_way_out_are_refused():
    with pytest.raises(ValueError, match="env=race"):
        of_environment(LineEnv(), 0)
    nowhere = SimpleNamespace(parts=EnvParts(way_out=(0.0,)))
    with pytest.raises(ValueError, match="env=race"):
        of_environment(nowhere, 0)
