"""Observation rows, foreign rows and the view of one player."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from robot_rl.advantage.batch import make_batch
from robot_rl.advantage.clock import compact, foreign_cut, perspective
from robot_rl.advantage.gae import rollout_gae
from robot_rl.advantage.rows import RolloutRows


def gae_of(batch, **options):
    s = batch.steps
    columns = {name: options.pop(name) for name in ("duration", "discount") if name in options}
    return rollout_gae(RolloutRows(s.reward, s.value, s.next_value, s.terminated, s.boundary, **columns), **options)


def e29(dtype, **changes):
    clock = np.array([1, 1, 0, 1, 1], bool)
    base = {
        "reward": np.array([0, 0, 0.3, 0, 1], dtype),
        "terminated": np.array([0, 0, 0, 0, 1], bool),
        "truncated": np.zeros(5, bool),
        "episode_id": np.zeros(5, int),
        "turn_id": np.array([0, 0, -1, 1, 1]),
        "value": np.array([0.2, 0.4, 9, 0.5, 0.6], dtype),
        "clock": clock,
    }
    return make_batch(**(base | changes))


@pytest.mark.parametrize("tensors", [False, True])
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-6), (np.float32, 1e-5)])
def test_e29_compaction_keeps_the_reward_of_observation_rows(dtype, tolerance, tensors):
    batch = e29(dtype)
    batch = batch.to("cpu") if tensors else batch
    small = compact(batch)
    advantage, target = gae_of(small.batch, gamma=0.9, gae_lambda=0.8)
    expected = [0.582035, 0.58616, 0.328, 0.4]
    np.testing.assert_allclose(advantage, expected, atol=tolerance)
    for wrong in ([0.366035, 0.28616, 0.328, 0.4], [0.227705, 0.094035, 0.328, 0.4]):
        assert np.abs(np.asarray(advantage) - wrong).max() > 0.1
    whole = small.expand(advantage)
    np.testing.assert_allclose(whole, np.insert(expected, 2, 0.0), atol=tolerance)
    assert isinstance(whole, torch.Tensor) == tensors
    # A removed row receives its own value as the return.
    np.testing.assert_allclose(small.expand(target, fill=batch.steps.value)[2], 9)
    np.testing.assert_array_equal(batch.steps.loss_mask, [1, 1, 0, 1, 1])
    np.testing.assert_array_equal(small.batch.turns.start, [0, 2])
    np.testing.assert_array_equal(small.batch.turns.end, [1, 3])


def test_compaction_without_observation_rows_is_the_batch_itself():
    batch = e29(np.float64, clock=None, turn_id=None)
    assert compact(batch).batch is batch


def test_compaction_moves_leading_rewards_forward_and_late_ends_back():
    clock = np.array([0, 1, 0, 0, 1, 0], bool)
    batch = make_batch(
        np.array([1.0, 2, 4, 8, 16, 32]),
        np.array([0, 0, 0, 0, 0, 0], bool),
        np.array([0, 0, 0, 1, 0, 0], bool),
        np.array([0, 0, 0, 0, 1, 1]),
        clock=clock,
        value=np.ones(6),
        next_value=np.array([9, 9, 9, 0.5, 9, 0.25]),
        k=np.array([1, 2, 3, 4, 5, 6]),
        segment_id=np.array([0, 0, 0, 0, 1, 1]),
        discount=0.9 ** np.array([1.0, 2, 3, 4, 5, 6]),
        extras={"token": np.arange(6)},
    )
    small = compact(batch).batch
    np.testing.assert_array_equal(small.steps.reward, [15, 48])
    np.testing.assert_array_equal(small.steps.truncated, [1, 0])
    np.testing.assert_array_equal(small.steps.next_value, [0.5, 0.25])
    np.testing.assert_array_equal(small.steps.k, [2, 5])
    np.testing.assert_array_equal(small.steps.extras["token"], [1, 4])
    np.testing.assert_array_equal(small.episodes.start, [0, 1])
    np.testing.assert_array_equal(small.episodes.end, [0, 1])
    assert small.segments is not None
    np.testing.assert_array_equal(small.segments.end, [0, 1])
    added = compact(batch, "add").batch
    np.testing.assert_array_equal(added.steps.k, [10, 11])
    assert added.steps.discount is not None
    np.testing.assert_allclose(added.steps.discount, [0.9**10, 0.9**11])
    with pytest.raises(ValueError, match="clock_gap is 'skip'"):
        compact(batch, "skip")


def test_observation_span_anywhere_changes_nothing_and_its_reward_counts_as_the_preceding_rows():
    rng = np.random.default_rng(0)
    reward, value = rng.standard_normal((2, 8))
    ends = np.array([0, 0, 0, 1, 0, 0, 0, 1], bool)
    episode = np.array([0, 0, 0, 0, 1, 1, 1, 1])
    plain = make_batch(reward, ends, ~ends & False, episode, value=value)
    expected = gae_of(plain)[0]
    for place in range(1, 9):
        for c in (0.0, 0.7):

            def put(x, filler, place=place):
                return np.insert(x, place, [filler, filler])

            flags = put(ends, False)
            if ends[place - 1]:  # the end moves behind the observation that follows the last decision
                flags[place - 1], flags[place + 1] = False, True
            spread = put(reward, 0.0)
            spread[place] = c
            clock = put(np.ones(8, bool), False)
            batch = make_batch(
                spread, flags, flags & False, put(episode, episode[place - 1]), clock=clock, value=put(value, 5.0)
            )
            shifted = reward.copy()
            shifted[place - 1] += c
            wanted = gae_of(make_batch(shifted, ends, ends & False, episode, value=value))[0] if c else expected
            np.testing.assert_allclose(gae_of(compact(batch).batch)[0], wanted, atol=1e-6)


@pytest.mark.parametrize("tensors", [False, True])
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-6), (np.float32, 1e-5)])
def test_e32_trace_does_not_pass_into_a_foreign_row(dtype, tolerance, tensors):
    batch = make_batch(
        np.array([0, 0.1, 0, 1], dtype),
        np.array([0, 0, 0, 1], bool),
        np.zeros(4, bool),
        np.zeros(4, int),
        value=np.array([0.4, 0.5, 0.3, 0.6], dtype),
        own=np.array([1, 1, 0, 1], bool),
    )
    batch = batch.to("cpu") if tensors else batch
    cut = gae_of(batch, gamma=0.9, gae_lambda=0.8, cut=foreign_cut(batch))[0]
    np.testing.assert_allclose(cut, [-0.0436, -0.13, 0.528, 0.4], atol=tolerance)
    keep = gae_of(batch, gamma=0.9, gae_lambda=0.8)[0]
    np.testing.assert_allclose(keep, [0.230115, 0.25016, 0.528, 0.4], atol=tolerance)
    np.testing.assert_array_equal(batch.steps.loss_mask, [1, 1, 0, 1])
    # A take-over is no end of the episode.
    np.testing.assert_array_equal(batch.steps.boundary, [0, 0, 0, 1])


def test_perspective_turns_other_players_into_observations():
    batch = make_batch(
        np.array([1.0, 2, 4, 8, 16]),
        np.array([0, 0, 0, 0, 1], bool),
        np.zeros(5, bool),
        np.zeros(5, int),
        np.array([0, 1, 1, 2, 3]),
        value=np.zeros(5),
        turn={"actor_id": np.array([0, 1, 0, 1])},
    )
    seen = perspective(batch, 0)
    np.testing.assert_array_equal(seen.steps.clock, [1, 0, 0, 1, 0])
    np.testing.assert_array_equal(seen.turns.own_turn_index, [0, 1])
    small = compact(seen).batch
    np.testing.assert_array_equal(small.steps.reward, [7, 24])
    np.testing.assert_array_equal(small.steps.terminated, [0, 1])
    np.testing.assert_array_equal(small.steps.boundary, [0, 1])
    np.testing.assert_array_equal(compact(perspective(batch.to("cpu"), 1)).batch.steps.reward, [3, 12, 16])
    earned = replace(batch, turns=replace(batch.turns, turn_reward=np.array([32.0, 64, 128, 256])))
    small = compact(perspective(earned, 0)).batch
    np.testing.assert_array_equal(small.steps.reward, [7 + 64, 24 + 256])
    np.testing.assert_array_equal(small.turns.turn_reward, [32, 128])
    with pytest.raises(ValueError, match="actor 3 has no turn in episode 0"):
        perspective(batch, 3)
