"""Practice on a track: after a crash the car starts again at the checkpoint that it had reached; not in evaluations."""
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportOptionalMemberAccess=false

from types import SimpleNamespace

import numpy as np
import pytest

from robot_rl.data.hil_episode import EpisodeRules
from robot_rl.human.log import HilLog
from robot_rl.human.loop import HumanInTheLoop
from robot_rl.human.memory import HilMemory
from robot_rl.human.options import SessionOptions
from robot_rl.human.pilot import simulated_pilot
from robot_rl.human.session import Records
from robot_rl.sim.mujoco_env import make
from robot_rl.sim.worlds.race import Race
from robot_rl.types import Learner, Options, PolicyParts
from robot_rl.verbs.build import env_factory, for_evaluation
from robot_rl.verbs.compose import compose_verb


class Left(Learner):
    """Full speed, hard to the left: into the border before the next checkpoint."""

    @property
    def parts(self):
        return PolicyParts()

    def __init__(self, io):
        super().__init__(Options(), io)
        self.policy = self

    def reset(self, rows=None):
        pass

    def act(self, obs, *, deterministic=False):
        return SimpleNamespace(value=np.ones((1, 2), np.float32))


@pytest.mark.parametrize("practice", [True, False])
def test_practice_goes_on_at_the_last_checkpoint_through_the_whole_stack(tmp_path, practice):
    env = make(1, 0, world=Race(practice=practice))
    memory = HilMemory(env.io, 5000)
    loop = HumanInTheLoop(
        env,
        Left(env.io),
        simulated_pilot(env, None),
        Records(HilLog(tmp_path, env.io), memory, memory.views["online"], EpisodeRules()),
        options=SessionOptions(task_reward="env", learning_starts=10**6),
    )
    gates = []
    for _ in range(5):
        facts = loop._episode(demo=False)
        assert facts.end_reason == "failure"
        gates.append(int(env._view.task["gate"][0]))
    assert (len(set(gates)) == 1) == practice
    batch = memory.take(memory.views["online"].rows())
    assert int(batch.terminated.sum()) == 5  # a crash is a true end: nothing is bootstrapped into the next start
    assert (batch.discount[batch.terminated] == 0).all()
    env.close()


def test_evaluations_have_no_practice():
    cfg = compose_verb("check", {"env": "race"}, {"env": {"world": {"practice": True}}})
    maker = env_factory(cfg)
    assert maker(1, 0, False).world.practice
    assert not maker.plain(1, 0, False).world.practice
    there = {"engine": "mujoco", "world": {"name": "race", "practice": True, "checkpoints": 6}}
    assert for_evaluation(there) == {"engine": "mujoco", "world": {"name": "race", "practice": False, "checkpoints": 6}}
    assert for_evaluation(there, {"practice"}) == there
    assert for_evaluation({"engine": "gym", "id": "Pendulum-v1"}) == {"engine": "gym", "id": "Pendulum-v1"}
