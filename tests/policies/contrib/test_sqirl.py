"""SQIRL: tables with known depths, turns of a rollout, and a task that needs two steps of planning."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from robot_rl.policies.contrib.sqirl import Sqirl, SqirlOptions, effective_depth, random_values, turns
from robot_rl.types import IOSpec, Rollout

IO = IOSpec({"state": ((3,), "float32")}, ("x",), (-1.0,), (1.0,), ("1",), 10.0)
SMALL: dict[str, Any] = {
    "horizon": 2, "episodes": 256, "bins": 2, "repeat": 1, "rollout_steps": 2, "hidden": (32,), "epochs": 20,
    "lr": 1e-2,
}  # fmt: skip

# State 0: action 0 to state 1, action 1 to state 2. State 1 pays 0.4 whatever is done; state 2 pays -1 or 1.
STEP = np.array([[1, 2], [1, 1], [2, 2]])
PAYS = np.array([[0.0, 0.0], [0.4, 0.4], [-1.0, 1.0]])


def tables() -> tuple[np.ndarray, np.ndarray]:
    return np.eye(3)[STEP], PAYS


def lock(length: int) -> tuple[np.ndarray, np.ndarray]:
    """Action 1 goes on, action 0 falls out for good; 1 for opening: long, and still greedy on random values."""
    out = length
    step = np.array([[out, i + 1] for i in range(length)] + [[out, out]])
    step[length - 1, 1] = out
    pays = np.zeros((length + 1, 2))
    pays[length - 1, 1] = 1.0
    return np.eye(length + 1)[step], pays


def test_values_of_the_random_policy_and_their_backup() -> None:
    transition, reward = tables()
    np.testing.assert_allclose(random_values(transition, reward, 2, 1)[0, 0], [0.4, 0.0])
    np.testing.assert_allclose(random_values(transition, reward, 2, 2)[0, 0], [0.4, 1.0])


def test_depth_of_a_trap_is_two_and_of_a_long_lock_one() -> None:
    assert effective_depth(*tables(), horizon=2) == 2
    assert effective_depth(*lock(6), horizon=6) == 1


def test_deep_enough_planning_is_value_iteration() -> None:
    rng = np.random.default_rng(0)
    transition = rng.dirichlet(np.ones(5), (5, 3))
    reward = rng.normal(size=(5, 3))
    q = np.zeros((5, 3))
    for _ in range(4):
        q = reward + transition @ q.max(1)
    np.testing.assert_allclose(random_values(transition, reward, 4, 4)[0], q)
    assert 1 <= effective_depth(transition, reward, horizon=4) <= 4


def played(learner: Sqirl, rows: int) -> Rollout:
    """One episode of two steps in every row."""
    state, columns = np.zeros(rows, np.int64), []
    learner.policy.reset()
    for t in range(2):
        obs = {"state": np.eye(3, dtype=np.float32)[state]}
        action = learner.policy.act(obs)
        chosen = (np.asarray(action.value)[:, 0] > 0).astype(np.int64)
        columns.append((obs["state"], action, PAYS[state, chosen].astype(np.float32), np.full(rows, t == 1)))
        state = STEP[state, chosen]
    extras = {name: torch.as_tensor(np.stack([c[1].extras[name] for c in columns])) for name in learner.need.record}
    end = torch.as_tensor(np.stack([c[3] for c in columns]))
    nothing = torch.zeros(2, rows)
    return Rollout(
        {"state": torch.as_tensor(np.stack([c[0] for c in columns]))},
        torch.as_tensor(np.stack([c[1].value for c in columns])), nothing, nothing,
        torch.as_tensor(np.stack([c[2] for c in columns])), nothing, torch.zeros_like(end), end, end,
        torch.ones_like(end), extras,
    )  # fmt: skip


@pytest.mark.parametrize(("depth", "pays"), [(1, 0.4), (2, 1.0)])
def test_learner_finds_what_its_depth_can_see(depth: int, pays: float) -> None:
    """The same answer as the tables: greedy on random values takes the safe 0.4, one backup more finds the 1."""
    learner = Sqirl(SqirlOptions(depth=depth, **SMALL), IO, gamma=1.0)
    fixed = []
    while learner.progress.decision < 2:
        fixed.append(learner.update(iter([played(learner, 128)]))["train/decision"])
    assert fixed == [0.0, 1.0, 1.0, 2.0]  # 256 episodes each
    rollout = played(learner, 16)
    np.testing.assert_allclose(rollout.reward.sum(0), pays)
    assert learner.policy.act({"state": np.eye(3, dtype=np.float32)[[0]]}, deterministic=True).value.shape == (1, 1)


def test_turns_sum_held_steps_and_leave_out_cut_episodes() -> None:
    """Two environments, four steps, decisions of two steps, gamma 0.5; the second begins in mid-episode."""
    reward = torch.tensor([[1.0, 9.0], [2.0, 9.0], [4.0, 5.0], [8.0, 7.0]])
    over = torch.tensor([[False, False], [False, True], [False, False], [True, False]])
    time = torch.tensor([[0, 3], [0, 3], [1, 0], [1, 0]])
    start = torch.tensor([[True, False], [False, False], [True, True], [False, False]])
    nothing = torch.zeros(4, 2)
    state = torch.arange(8.0).view(4, 2, 1)
    extras = {"choice": time, "time": time, "chunk_start": start}
    rollout = Rollout(
        {"state": state}, nothing[..., None], nothing, nothing, reward, nothing, torch.zeros_like(over), over,
        over, torch.ones_like(over), extras,
    )  # fmt: skip
    rows, episodes = turns(rollout, 0.5)
    assert episodes == 1  # the other environment's first has no beginning, its second no end
    assert rows["reward"].tolist() == [2.0, 8.0]
    assert rows["discount"].tolist() == [0.25, 0.0]
    assert rows["tail"].tolist() == [4.0, 8.0]
    assert rows["state"].flatten().tolist() == [0.0, 4.0]
    assert rows["after"].flatten().tolist() == [4.0, 4.0]


def test_a_row_that_only_resets_is_no_turn() -> None:
    """Two episodes of two decisions with such a row, of reward 9, behind the first: it joins neither."""
    over = torch.tensor([False, True, False, False, True])[:, None]
    valid = torch.tensor([True, True, False, True, True])[:, None]
    time = torch.tensor([0, 1, 0, 0, 1])[:, None]
    reward, state = torch.tensor([1.0, 2.0, 9.0, 4.0, 8.0])[:, None], torch.arange(5.0).view(5, 1, 1)
    nothing = torch.zeros(5, 1)
    extras = {"choice": time, "time": time, "chunk_start": torch.ones_like(over)}
    rollout = Rollout(
        {"state": state}, nothing[..., None], nothing, nothing, reward, nothing, over, torch.zeros_like(over), over,
        valid, extras,
    )  # fmt: skip
    rows, episodes = turns(rollout, 0.5)
    assert episodes == 2
    assert rows["state"].flatten().tolist() == [0.0, 1.0, 3.0, 4.0]
    assert rows["tail"].tolist() == [2.0, 2.0, 8.0, 8.0]
    assert rows["after"].flatten().tolist() == [1.0, 1.0, 4.0, 4.0]


def test_decisions_that_no_episode_reaches_stay_random() -> None:
    """Episodes of two decisions, four asked for: two are learnt, and the run goes on."""
    learner = Sqirl(SqirlOptions(**{**SMALL, "horizon": 4, "epochs": 1}), IO, gamma=1.0)
    found = [learner.update(iter([played(learner, 256)])) for _ in range(4)]
    assert [metrics["train/decision"] for metrics in found] == [1.0, 2.0, 2.0, 2.0]
    assert learner.q.params.flat.isfinite().all()


def test_save_load_update_equals_update() -> None:
    one, other = (Sqirl(SqirlOptions(**SMALL), IO, seed=seed, gamma=1.0) for seed in (1, 2))
    data = [played(one, 128) for _ in range(4)]
    for rollout in data[:1]:
        one.update(iter([rollout]))
    other.load_state_dict(one.state_dict())
    for rollout in data[1:]:
        assert one.update(iter([rollout])) == other.update(iter([rollout]))
    assert torch.equal(one.progress.fixed, other.progress.fixed)
    obs = {"state": np.eye(3, dtype=np.float32)}
    one.policy.reset()
    other.policy.reset()
    np.testing.assert_array_equal(one.policy.act(obs).value, other.policy.act(obs).value)


def test_too_many_candidates_are_refused() -> None:
    names = tuple("abcdefgh")
    wide = IOSpec({"state": ((3,), "float32")}, names, (-1.0,) * 8, (1.0,) * 8, ("1",) * 8, 10.0)
    with pytest.raises(ValueError, match="6561 candidates"):
        Sqirl(SqirlOptions(bins=3), wide)
