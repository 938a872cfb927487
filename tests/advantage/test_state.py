"""State between batches: equal for one and four workers, restored from its state_dict, right against plain loops."""

import math

import numpy as np
import pytest
import torch

from robot_rl.advantage.zoo import histories, replay, state
from tests.advantage import reference_groups as slow
from tests.advantage.ragged import ragged

close = np.testing.assert_allclose
nan = float("nan")


def samples(seed, n=60):
    rng = np.random.default_rng(seed)
    score = rng.normal(size=n)
    score[rng.random(n) < 0.1] = nan
    return {
        "score": score,
        "game": rng.integers(0, 3, n),
        "role": rng.integers(0, 2, n),
        "group": rng.integers(0, 9, n),
    }


@pytest.mark.parametrize("seed", range(3))
def test_role_baseline_equals_a_loop_over_samples(seed):
    rae, known = state.RoleBaseline(0.9), {}
    for step in range(3):
        s = samples(10 * seed + step)
        got = rae.advantage(s["score"], role=s["role"], game=s["game"])
        want = slow.role_baseline(s["score"], list(zip(s["game"], s["role"])), 0.9, known)
        close(got, want, atol=1e-12)
    for (game, role), value in known.items():
        assert rae.baseline(role=role, game_or_process=game) == pytest.approx(value)
    assert rae.baseline(role=1, game_or_process=77) == 0
    assert rae.advantage(np.zeros(0), role=np.zeros(0, int), game=np.zeros(0, int)).shape == (0,)


def test_role_baseline_keys_are_the_game_or_the_process():
    ids = np.array([0, 0])
    release = state.RoleBaseline(key="player_process")
    assert release.advantage(np.array([1.0, 1.0]), role=ids, process=np.array([0, 1])).tolist() == [1, 1]
    with pytest.raises(ValueError, match="process is missing"):
        release.collect(np.ones(2), role=ids, game=ids)
    with pytest.raises(ValueError, match="game is missing"):
        state.RoleBaseline().collect(np.ones(2), role=ids)
    with pytest.raises(ValueError, match=r"decay is 1\.5"):
        state.RoleBaseline(1.5)


def split(index, workers):
    return [np.flatnonzero(index % workers == w) for w in range(workers)]


def test_states_are_identical_for_one_and_four_workers():
    s = samples(3)
    index = np.arange(60)
    pairs = [
        (
            state.RoleBaseline,
            lambda one, i: one.collect(s["score"][i], role=s["role"][i], game=s["game"][i], index=index[i]),
        ),
        (
            state.EmaScale,
            lambda one, i: one.collect(s["score"][i], group=s["group"][i], task=s["game"][i], index=index[i]),
        ),
        (
            state.ExperimentalDifficulty,
            lambda one, i: one.collect(s["score"][i] > 0, task=s["game"][i], index=index[i]),
        ),
    ]
    for make, collect in pairs:
        alone, shared = make(), make()
        for _ in range(2):
            single = alone.apply(alone.reduce([collect(alone, index)]))
            many = shared.apply(shared.reduce([collect(shared, rows) for rows in split(index, 4)]))
            assert single.tolist() == many.tolist()
        for name, tensor in alone.state_dict().items():
            assert torch.equal(tensor, shared.state_dict()[name])


def test_reduce_refuses_nothing_and_doubles():
    rae = state.RoleBaseline()
    one = rae.collect(np.ones(2), role=np.zeros(2, int), game=np.zeros(2, int))
    with pytest.raises(ValueError, match="at least one worker"):
        rae.reduce([])
    with pytest.raises(ValueError, match="index 0 occurs twice"):
        rae.reduce([one, one])
    with pytest.raises(ValueError, match="key has shape"):
        state.EmaScale().collect(np.ones(2), group=np.zeros(2), task=np.zeros(3))


@pytest.mark.parametrize("make", [state.RoleBaseline, state.EmaScale, state.ExperimentalDifficulty])
def test_restart_from_the_checkpoint_gives_the_same_numbers(make):
    def step(one, seed):
        s = samples(seed)
        if make is state.RoleBaseline:
            return one.advantage(s["score"], role=s["role"], game=s["game"])
        if make is state.EmaScale:
            return one.advantage(s["score"], s["group"], s["game"])
        return one.weight((s["score"] > 0).astype(float), s["game"])

    first = make()
    step(first, 0)
    second = make()
    second.load_state_dict(first.state_dict())
    for seed in (1, 2):
        assert step(first, seed).tolist() == step(second, seed).tolist()


@pytest.mark.parametrize("order", ["update_then_use", "use_then_update"])
def test_ema_scale_equals_a_loop(order):
    ema, moments = state.EmaScale(0.8, order=order), {}
    for seed in range(3):
        b = ragged(seed, outside=0)
        task = b.group % 3
        got = ema.advantage(b.score, b.group, task)
        used = {}
        for one in set(task):
            values = [v for v, t in zip(b.score, task) if t == one and not math.isnan(v)]
            if not values:
                used[one] = moments.get(one, (0.0, 0.0))
                continue
            now = (slow.mean(values), slow.mean([v * v for v in values]))
            old = moments.get(one, now)
            moments[one] = tuple(0.8 * o + 0.2 * n for o, n in zip(old, now))
            used[one] = moments[one] if order == "update_then_use" else old
        centred = slow.normalise(b.score, b.group, scale="none")
        want = []
        for c, one in zip(centred, task):
            want.append(c / (max(math.sqrt(max(used[one][1] - used[one][0] ** 2, 0)), 1e-3) + 1e-6))
        wild = {g for g, w in zip(b.group, want) if abs(w) > 5}
        own = slow.normalise(b.score, b.group, ddof=0)
        close(got, [o if g in wild else w for g, o, w in zip(b.group, own, want)], atol=1e-9)


def test_ema_scale_falls_back_to_the_group_when_it_explodes():
    ema = state.EmaScale(0.999)
    zeros = np.zeros(4, int)
    ema.advantage(np.array([0.5, 0.5, 0.5, 0.5]), zeros, zeros)  # deviation 0: floor 1e-3
    got = ema.advantage(np.array([1.0, 0, 0, 1]), zeros, zeros)
    close(got, np.array([1, -1, -1, 1]) * 0.5 / 0.500001)
    assert np.isnan(ema.moments(9)[0])
    assert ema.advantage(np.zeros(0), zeros[:0], zeros[:0]).shape == (0,)


def test_difficulty_weighs_hard_tasks_more():
    one = state.ExperimentalDifficulty(0.5)
    # Rates 1, 0, .5: failures 0, 1, .5 per sample; mean .5 (two samples each): weights 0 -> .5, 2, 1.
    got = one.weight(torch.tensor([1.0, 1, 0, 0, 1, 0]), torch.tensor([0, 0, 1, 1, 2, 2]))
    assert got.tolist() == [0.5, 0.5, 2, 2, 1, 1]
    # Task 0 now fails: rate .5; alone in the batch its weight is 1.
    assert one.weight(np.array([0.0]), np.array([0])).tolist() == [1.0]
    assert one.weight(np.array([nan]), np.array([7])).tolist() == [1.0]
    assert one.weight(np.zeros(0), np.zeros(0, int)).shape == (0,)
    assert state.ExperimentalDifficulty().weight(np.ones(2), np.zeros(2, int)).tolist() == [1, 1]


def test_entropy_history_averages_iterations_not_rows():
    history = histories.EntropyHistory(4)
    assert np.isnan(history.rows(np.array([0]), np.zeros(1)))[0]
    # Iteration 1: turn 0 has 1 and 3 (mean 2), turn 1 masked. Iteration 2: turn 0 has 4; turn 2 has 6.
    first = history.collect(np.array([1.0, 3.0, nan]), np.array([0, 0, 1]), mask=np.array([1, 1, 0], bool))
    history.apply(first)
    assert not history.active()
    parts = [
        history.collect(torch.tensor([4.0]), torch.tensor([0])),
        history.collect(np.array([6.0, 9]), np.array([2, -1])),
    ]
    history.apply(history.reduce(parts))
    assert history.active()
    assert history.rows(np.array([0, 2]), np.zeros(2)).tolist() == [3, 6]
    rows = history.rows(torch.tensor([2, 1, -1]), torch.zeros(3))
    assert rows.dtype == torch.float32
    assert rows[0] == 6
    assert torch.isnan(rows[1:]).all()
    copy = histories.EntropyHistory(4)
    copy.load_state_dict(history.state_dict())
    copy.apply(first)
    history.apply(first)
    assert copy.state_dict()["mean"].tolist() == history.state_dict()["mean"].tolist()
    with pytest.raises(ValueError, match="max_turns is 0"):
        histories.EntropyHistory(0)
    with pytest.raises(ValueError, match="outside"):
        history.collect(np.ones(1), np.array([4]))
    with pytest.raises(ValueError, match="at least one worker"):
        history.reduce([])


def test_group_history_collects_means_and_deviations():
    history = histories.GroupHistory(3)
    with pytest.raises(ValueError, match="empty"):
        history.recalibrate(np.ones(1))
    got = history.collect(np.array([0.0, 1.0, 5.0, nan, 2.0]), np.array([7, 7, 2, 2, -1]))
    assert sorted(got.tolist()) == [[0.5, pytest.approx(0.5**0.5)], [5, 0]]
    assert history.collect(torch.tensor([0.0, 1.0]), torch.tensor([0, 0])).shape == (1, 2)
    history.apply(history.reduce([got, got]))
    assert len(history) == 3
    copy = histories.GroupHistory(3)
    copy.load_state_dict(history.state_dict())
    assert copy.recalibrate(np.array([9.0]))[0] == history.recalibrate(np.array([9.0]))[0]
    with pytest.raises(ValueError, match="at least one worker"):
        history.reduce([])


def test_success_replay_substitutes_the_first_rollout_of_a_failed_group():
    buffer = replay.SuccessReplay(2)
    assert not buffer.add(1, "poor", 0.1)
    for name in ("a", "b", "c"):
        assert buffer.add(1, name, 0.9)
    assert len(buffer) == 2
    # Group 5 (task 1) failed; group 6 (task 1) succeeded; group 8 (task 2) has nothing stored; group 9 is unscorable.
    score = np.array([0, 0, 1, 0, 0, 0, nan])
    group, task = np.array([5, 5, 6, 6, 8, 8, 9]), np.array([1, 1, 1, 1, 2, 2, 1])
    assert buffer.substitutes(score, group, task) == [replay.Substitute(0, "b", 0.9)]
    copy = replay.SuccessReplay(2)
    copy.load_state_dict(buffer.state_dict())
    tensors = [torch.from_numpy(x) for x in (score, group, task)]
    assert copy.substitutes(*tensors) == buffer.substitutes(score, group, task) == [replay.Substitute(0, "c", 0.9)]
    with pytest.raises(ValueError, match="per_task is 0"):
        replay.SuccessReplay(0)


def test_trajectory_buffer_forgets_old_ones():
    buffer = replay.TrajectoryBuffer(3, max_age=2)
    for update in range(5):
        buffer.add({"logp": update}, 0.1 * update, update)
    assert len(buffer) == 3
    kept, score = buffer.fresh(5)
    assert kept == [{"logp": 3}, {"logp": 4}]
    close(score, [0.3, 0.4])
    copy = replay.TrajectoryBuffer(3, max_age=2)
    copy.load_state_dict(buffer.state_dict())
    assert copy.fresh(6)[0] == [{"logp": 4}]
    with pytest.raises(ValueError, match="capacity is 0"):
        replay.TrajectoryBuffer(0)
    assert replay.tool_reward_coefficient(0, 10) == 1
    assert replay.tool_reward_coefficient(10, 10, coefficient=2.0) == 0
    with pytest.raises(ValueError, match="warmup is 0"):
        replay.replay_coefficient(0, 0)
