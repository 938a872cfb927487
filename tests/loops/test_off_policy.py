"""The off-policy loop feeds the learner as it says, and evaluation counts whole episodes."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from robot_rl.data.buffer import ReplayBuffer
from robot_rl.loops.contract import every
from robot_rl.loops.evaluate import evaluate
from robot_rl.loops.off_policy import OffPolicy
from robot_rl.types import Action, EnvParts, IOSpec, Learner, Options, PolicyParts, Transitions

IO = IOSpec(
    obs={"state": ((1,), "float32")},
    action_names=("x",),
    action_low=(-1.0,),
    action_high=(1.0,),
    action_units=("1",),
    control_hz=10.0,
)


class Count(gymnasium.vector.VectorEnv):
    """Environment i counts steps; its episodes have length i + 2, reward 1 a step, success where the length is even."""

    parts = EnvParts()

    def __init__(self, num_envs: int) -> None:
        self.num_envs, self.io = num_envs, IO
        self.single_action_space = gymnasium.spaces.Box(-1, 1, (1,))
        self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}
        self.actions: list[np.ndarray] = []

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.t = np.zeros(self.num_envs, np.int64)
        return {"state": self.t[:, None].astype(np.float32)}, {}

    def step(self, actions: Any) -> Any:
        self.actions.append(np.asarray(actions).copy())
        self.t = self.t + 1
        final = {"state": self.t[:, None].astype(np.float32)}
        length = np.arange(self.num_envs) + 2
        truncated = self.t >= length
        success = truncated & (length % 2 == 0)
        self.t = np.where(truncated, 0, self.t)
        info = {"final_obs": final, "success": success}
        obs = {"state": self.t[:, None].astype(np.float32)}
        return obs, np.ones(self.num_envs, np.float32), np.zeros(self.num_envs, bool), truncated, info


class Half:
    """Always acts 0.5."""

    io = IO

    parts = PolicyParts()

    def __init__(self) -> None:
        self.resets: list[Any] = []

    def reset(self, rows: Any = None) -> None:
        self.resets.append(rows)

    def act(self, obs: Any, *, deterministic: bool = False) -> Action:
        return Action(np.full((len(obs["state"]), 1), 0.5, np.float32))

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        pass


class Recorder(Learner[Any, Transitions]):
    """A learner that only remembers what it was given."""

    def __init__(self) -> None:
        super().__init__(Options(), IO)
        self.policy = Half()
        self.sizes: list[int] = []

    def update(self, batches: Iterator[Transitions], /) -> dict[str, float]:
        self.sizes.append(len(next(batches).reward))
        return {"train/updates_seen": float(len(self.sizes))}

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        pass


def loop(num_envs: int, **options: Any) -> OffPolicy:
    env = Count(num_envs)
    return OffPolicy(env, Recorder(), ReplayBuffer(IO, 100, num_envs=num_envs), batch_size=8, **options)


def counts(run: OffPolicy) -> Count:
    """The environment of `loop`."""
    assert isinstance(run.env, Count)
    return run.env


def test_off_policy_random_steps_come_first_and_updates_follow_the_ratio() -> None:
    run = loop(2, learning_starts=10, updates_per_step=0.25)
    run.run(50, lambda step, metrics: False)
    # 25 vector steps; transitions 2, 4 ... 50; updates begin once 10 are stored: 21 vector steps x 2 x 0.25 = 10.5
    assert run.updates == 10
    assert isinstance(run.learner, Recorder)
    assert run.learner.sizes == [8] * 10
    actions = np.stack(counts(run).actions)[..., 0]
    assert (actions[5:] == 0.5).all()
    assert (actions[:5] != 0.5).all()
    assert len(np.unique(actions[:5])) == 10


def test_off_policy_tick_sees_every_period_and_can_stop() -> None:
    seen = []

    def tick(step: int, metrics: dict[str, float]) -> bool:
        seen.append(step)
        return step >= 30

    loop(3, learning_starts=5).run(100, tick, due=every(10))
    # 3 transitions a step: the first multiples at or after 10, 20, 30
    assert seen == [12, 21, 30]


def test_off_policy_continues_from_its_state() -> None:
    whole = loop(2, learning_starts=10, seed=3)
    whole.run(60, lambda *_: False)
    first = loop(2, learning_starts=10, seed=3)
    first.run(4, lambda *_: False)
    second = loop(2, learning_starts=10, seed=3)
    second.buffer.load_state_dict(first.buffer.state_dict())
    second.load_state_dict(first.state_dict())
    # the environment cannot be saved, so an episode begins anew, but the random actions go on
    second.run(60, lambda *_: False)
    np.testing.assert_array_equal(np.stack(counts(whole).actions)[2:], np.stack(counts(second).actions))


class Opaque(Count):
    """Its state is no state: who loads it begins new episodes."""

    parts = EnvParts(saves=True)

    def state_dict(self) -> dict[str, Any]:
        return {"exact": False}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.reset()


@pytest.mark.parametrize("kind", [Count, Opaque])
def test_no_step_leads_from_the_episodes_before_a_pause_into_new_ones(kind: Any) -> None:
    runs = []
    for _ in range(2):
        env = kind(3)
        buffer = ReplayBuffer(IO, 100, num_envs=3, n_step=2)
        runs.append(OffPolicy(env, Recorder(), buffer, batch_size=8, learning_starts=1000))
    first, second = runs
    first.run(3, lambda *_: True, due=every(3))  # every environment is in the midst of its first episode
    second.load_state_dict(first.state_dict())
    second.buffer.load_state_dict(first.buffer.state_dict())
    second.run(60, lambda *_: False)
    episodes = second.buffer.episodes()
    assert all((np.diff(np.ravel(episode.obs["state"])) == 1).all() for episode in episodes)
    assert [len(episode) for episode in episodes[:3]] == [1, 1, 1]
    assert set(second.stats._lengths) == {2, 3, 4}


def test_off_policy_foreign_state_is_refused() -> None:
    with pytest.raises(ValueError, match="expected off_policy"):
        loop(1).load_state_dict({"kind": "on_policy"})


def test_off_policy_negative_ratio_is_refused() -> None:
    with pytest.raises(ValueError, match="updates_per_step is -1"):
        loop(1, updates_per_step=-1)


def test_evaluate_gives_every_environment_its_share() -> None:
    policy = Half()
    result = evaluate(Count(3), policy, episodes=7)
    # shares 3, 2, 2 of lengths 2, 3, 4: short episodes are not preferred
    assert sorted(result.lengths) == [2, 2, 2, 3, 3, 4, 4]
    assert sorted(result.returns) == [2, 2, 2, 3, 3, 4, 4]
    assert result.metrics()["eval/success"] == pytest.approx(5 / 7)
    assert policy.resets[0] is None
    assert all(isinstance(rows, np.ndarray) for rows in policy.resets[1:])


def test_evaluate_tells_a_policy_what_was_executed() -> None:
    class Thrice(Half):
        def __init__(self) -> None:
            super().__init__()
            self.heard: list[np.ndarray] = []
            self.parts = PolicyParts(executed=self.heard.append)

        def act(self, obs: Any, *, deterministic: bool = False) -> Action:
            return Action(np.full((len(obs["state"]), 1), 3.0, np.float32))

    env, policy = Count(2), Thrice()
    evaluate(env, policy, episodes=2)
    np.testing.assert_array_equal(policy.heard, env.actions)
    assert np.unique(policy.heard).tolist() == [1.0]


def test_evaluate_policy_of_another_interface_is_refused_before_the_first_reset() -> None:
    env, policy = Count(1), Half()
    policy.io = replace(IO, action_names=("y",), control_hz=20.0)
    with pytest.raises(ValueError, match=r"(?s)action 0 is .*control rate is"):
        evaluate(env, policy, episodes=1)
    assert not hasattr(env, "t")  # was neither reset
    assert env.actions == []  # nor moved


def test_evaluate_without_episodes_is_refused() -> None:
    with pytest.raises(ValueError, match="episodes is 0"):
        evaluate(Count(1), Half(), episodes=0)


def test_a_sampler_that_is_still_empty_is_the_one_that_is_asked():
    """An empty buffer has length 0, which is false: it must not be passed over for the one that steps go into."""
    env = Count(1)
    given = ReplayBuffer(IO, 100, num_envs=1)
    made = OffPolicy(env, Recorder(), ReplayBuffer(IO, 100, num_envs=1), batch_size=8, sampler=given)
    assert len(given) == 0
    assert made.sampler is given
