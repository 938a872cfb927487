"""SAC-j: decisions out of windows, rewards and discounts by hand, where decisions begin, and SAC for j = 1."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode

from robot_rl.data.buffer import ReplayBuffer
from robot_rl.loops.contract import every
from robot_rl.loops.fas import at_interval
from robot_rl.loops.off_policy import OffPolicy
from robot_rl.policies.online.sac import Sac, SacOptions
from robot_rl.policies.sequence.sac_j import SacJ, SacJOptions
from robot_rl.types import EnvParts, IOSpec, Transitions

IO = IOSpec({"state": ((1,), "float32")}, ("x",), (-1.0,), (1.0,), ("1",), 10.0)


def build(**options: Any) -> SacJ:
    gamma, seed = options.pop("gamma", 0.5), options.pop("seed", 0)
    small = {"hidden": (16, 16), "batch_size": 4, "interval": 3, "metrics_every": 1}
    return SacJ(SacJOptions.model_validate({**small, **options}), IO, seed=seed, gamma=gamma)


def windows(start: list[list[int]], mask: list[list[int]], terminated: list[list[int]]) -> Transitions:
    """Row i, step t: state 10 i + t, reward 2^t, next state 10 i + t + 1, gamma 0.5."""
    begin, there, ended = (torch.tensor(x).bool() for x in (start, mask, terminated))
    size, length = begin.shape
    state = 10.0 * torch.arange(size)[:, None] + torch.arange(length)
    return Transitions(
        obs={"state": state[..., None]}, action=state[..., None] / 100.0,
        reward=2.0 ** torch.arange(length).expand(size, length) * there, discount=0.5 * ~ended * there,
        next_obs={"state": state[..., None] + 1.0}, terminated=ended, truncated=torch.zeros_like(ended),
        intervened=torch.zeros_like(ended), mask=there, extras={"decision_start": begin.float()[..., None]},
    )  # fmt: skip


DATA = windows(
    start=[[1, 0, 0], [0, 0, 1], [1, 0, 1], [1, 0, 0], [1, 1, 0]],
    mask=[[1, 1, 1], [1, 1, 1], [1, 1, 1], [1, 1, 0], [1, 1, 1]],
    terminated=[[0, 0, 0], [0, 0, 0], [0, 0, 0], [0, 1, 1], [0, 0, 0]],
)


@pytest.mark.parametrize(
    ("discounting", "reward", "discount"),
    [
        ("turn", [7.0, 3.0, 3.0, 1.0], [0.5, 0.5, 0.0, 0.5]),
        ("step", [3.0, 2.0, 2.0, 1.0], [0.125, 0.25, 0.0, 0.5]),  # 1 + .5 * 2 + .25 * 4; 1 + .5 * 2; ...
    ],
)
def test_decisions_are_what_was_held(discounting: str, reward: list[float], discount: list[float]) -> None:
    """Whole; begun in mid-decision (left out); cut by the next decision; cut by a terminal; of one step."""
    rows = build(discounting=discounting).decisions(iter([DATA] * 16))
    assert rows.obs["state"].flatten().tolist() == [0.0, 20.0, 30.0, 40.0]
    assert rows.next_obs["state"].flatten().tolist() == [3.0, 22.0, 32.0, 41.0]
    assert rows.action.flatten().tolist() == pytest.approx([0.0, 0.2, 0.3, 0.4])
    assert rows.reward.tolist() == pytest.approx(reward)
    assert rows.discount.tolist() == pytest.approx(discount)


def test_a_decision_that_the_newest_row_leaves_open_is_left_out() -> None:
    """The first goes on behind the newest row, the second is the newest row itself, the third met a time limit."""
    open_ = windows(
        start=[[1, 0, 0], [1, 1, 1], [1, 0, 0]],
        mask=[[1, 1, 0], [1, 0, 0], [1, 1, 0]],
        terminated=[[0, 0, 0]] * 3,
    )
    limit = torch.tensor([[0, 0, 0], [0, 0, 0], [0, 1, 1]]).bool()
    rows = build().decisions(iter([dataclasses.replace(open_, truncated=limit)] * 16))
    assert rows.obs["state"].flatten().tolist() == [20.0] * 4
    assert rows.reward.tolist() == [3.0] * 4


@pytest.mark.parametrize("utd", [1, 3])
def test_interval_of_one_is_sac(utd: int) -> None:
    options: dict[str, Any] = {"hidden": (16, 16), "metrics_every": 1, "utd": utd}
    one = build(interval=1, batch_size=8, gamma=0.9, **options, seed=3)
    other = Sac(SacOptions(batch_size=8, **options), IO, seed=3)
    g = torch.Generator().manual_seed(0)
    no = torch.zeros(8, dtype=torch.bool)
    for _ in range(3):
        state = torch.randn(8, 1, generator=g)
        data = Transitions(
            {"state": state}, torch.rand(8, 1, generator=g), torch.randn(8, generator=g), torch.full((8,), 0.9),
            {"state": state + 1}, no, no, no, ~no, {"decision_start": torch.ones(8, 1)},
        )  # fmt: skip
        assert one.update(iter([data] * 2 * utd)) == other.update(iter([data] * utd))


class Five:
    """Episodes of five steps; remembers what was done."""

    num_envs, io = 1, IO
    metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012

    parts = EnvParts()

    def __init__(self) -> None:
        self.done: list[float] = []

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.t = 0
        return {"state": np.zeros((1, 1), np.float32)}, {}

    def step(self, action: Any) -> Any:
        self.done.append(float(action[0, 0]))
        self.t += 1
        over, final = self.t == 5, {"state": np.full((1, 1), self.t, np.float32)}
        obs = self.reset()[0] if over else final
        return obs, np.ones(1, np.float32), np.zeros(1, bool), np.array([over]), {"final_obs": final}


def test_loop_marks_decisions_of_random_actions_and_of_the_policy() -> None:
    """Held for two ticks, anew after a reset; the policy takes over at tick 8, in the middle of a random decision."""
    env, learner = Five(), build(interval=2)
    buffer = ReplayBuffer(IO, 100, window=2, extras=dict(learner.need.columns))
    loop = OffPolicy(env, learner, buffer, batch_size=8, learning_starts=50, random_steps=8)
    loop.run(15, lambda *_: False)
    column = buffer._layout.extras["decision_start"][1]
    marks = buffer._ring.record[:15, column].astype(int).flatten().tolist()
    assert marks == [1, 0, 1, 0, 1, 1, 0, 1, 1, 0, 1, 0, 1, 0, 1]
    done = np.array(env.done)
    follows = np.flatnonzero(np.array(marks[1:]) == 0) + 1
    np.testing.assert_array_equal(done[follows], done[follows - 1])
    assert len(set(done.tolist())) == 9  # one action per decision


def test_loop_state_continues_a_random_decision() -> None:
    found = []
    for cut in (12, 3):
        env, learner = Five(), build(interval=4)
        loops = [
            OffPolicy(
                env, learner, ReplayBuffer(IO, 100, window=4, extras=dict(learner.need.columns)), learning_starts=50
            )
        ]
        loops[0].run(cut, lambda *_: False)
        if cut < 12:
            state = loops[0].state_dict()
            again = OffPolicy(env, learner, loops[0].buffer, learning_starts=50)
            again.load_state_dict(state)
            again._stepper = loops[0]._stepper
            again.run(12, lambda *_: False)
        found.append(env.done)
    assert found[0] == found[1]


def test_policy_holds_for_j_ticks_and_for_any_other_interval() -> None:
    policy = build().policy
    state = {"state": np.zeros((2, 1), np.float32)}
    policy.reset()
    held = [np.asarray(policy.act(state).value) for _ in range(6)]
    np.testing.assert_array_equal(held[0], held[2])
    assert (held[2] != held[3]).all()
    longer, holds = at_interval(policy, 5)
    longer.reset()
    held = [np.asarray(longer.act(state).value) for _ in range(6)]
    np.testing.assert_array_equal(held[0], held[4])
    assert holds
    assert (held[4] != held[5]).all()


def test_save_load_update_equals_update() -> None:
    one, other = build(seed=1), build(seed=2)
    for _ in range(3):
        one.update(iter([DATA] * 16))
    other.load_state_dict(one.state_dict())
    for _ in range(2):
        assert one.update(iter([DATA] * 16)) == other.update(iter([DATA] * 16))


def test_batch_without_decisions_is_refused() -> None:
    import dataclasses

    with pytest.raises(ValueError, match="decision_start"):
        build().update(iter([dataclasses.replace(DATA, extras={})]))
    none = dataclasses.replace(DATA, extras={"decision_start": torch.zeros(5, 3, 1)})
    with pytest.raises(ValueError, match="no decision begins"):
        build().update(iter([none] * 16))


@pytest.mark.slow
def test_sac_j_swings_up_at_four_steps_per_decision() -> None:
    from robot_rl.loops.evaluate import evaluate
    from robot_rl.sim import gym_env

    env = gym_env.make(1, 0, id="Pendulum-v1")
    learner = SacJ(SacJOptions(hidden=(64, 64), batch_size=64, interval=4, lr=1e-3), env.io)
    buffer = ReplayBuffer(env.io, 20_000, window=4, extras=dict(learner.need.columns))
    loop = OffPolicy(env, learner, buffer, batch_size=learner.need.rows, learning_starts=500, updates_per_step=0.5)
    loop.run(7000, lambda *_: False, due=every(4000))
    result = evaluate(gym_env.make(10, 1, id="Pendulum-v1"), learner.policy, episodes=10)
    assert np.mean(result.returns) > -700.0  # at random: about -1200
