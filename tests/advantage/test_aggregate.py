"""Aggregation: every mode against counting, and invariance to micro-batches, workers and padding."""

import numpy as np
import pytest
import torch

from robot_rl.advantage import RowIds
from robot_rl.advantage.aggregate import MODES, BatchTotals, aggregate, batch_totals, row_weight, weighted_sum
from robot_rl.advantage.losses import policy_loss
from tests.advantage import reference_groups as slow
from tests.advantage.ragged import both, grad_of

close = np.testing.assert_allclose


def batch(seed):
    rng = np.random.default_rng(seed)
    length = rng.integers(1, 7, 9)
    episode = np.repeat(np.arange(9), length)
    turn = np.concatenate([np.arange(k) // 2 for k in length])
    turn[rng.random(len(turn)) < 0.15] = -1
    mask = rng.random(len(episode)) < 0.8
    group = rng.integers(0, 3, 9)[episode]
    return episode, turn, mask, group, rng.normal(size=len(episode))


def unique_turns(episode, turn):
    return np.where(turn >= 0, episode * 10 + turn, -1)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("seed", range(3))
def test_every_mode_equals_counting(mode, seed):
    episode, turn, mask, group, loss = batch(seed)
    want = slow.row_weights(mask, mode, episode, unique_turns(episode, turn), group, 8)

    def run(m, e, t, g):
        return row_weight(m, mode, RowIds(turn=t, episode=e, group=g), max_length=8)

    close(both(run, mask, episode, turn, group), want, atol=1e-15)
    got = aggregate(loss, mask, mode, ids=RowIds(turn=turn, episode=episode, group=group), max_length=8)
    assert float(got) == pytest.approx((np.array(want) * loss).sum())


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("parts", [1, 2, 7])
def test_micro_batches_give_the_value_and_gradient_of_the_whole(mode, parts):
    episode, turn, mask, group, loss = (torch.from_numpy(x) for x in batch(5))
    whole = loss.clone().requires_grad_()
    value = aggregate(whole, mask, mode, ids=RowIds(turn=turn, episode=episode, group=group), max_length=8)
    value.backward()
    weight = row_weight(mask, mode, RowIds(turn=turn, episode=episode, group=group), max_length=8)
    leaf = loss.clone().requires_grad_()
    total = torch.zeros((), dtype=torch.float64)
    for rows in np.array_split(np.random.default_rng(0).permutation(len(loss)), parts):
        part = weighted_sum(leaf[torch.from_numpy(rows)], weight[torch.from_numpy(rows)])
        part.backward()
        total = total + part.detach()
    close(total, value.detach(), rtol=1e-6)
    close(grad_of(leaf), grad_of(whole), rtol=1e-6)


@pytest.mark.parametrize("mode", MODES)
def test_workers_give_the_value_of_one(mode):
    episode, turn, mask, group, loss = batch(6)
    mask[:] = True
    want = float(aggregate(loss, mask, mode, RowIds(turn, episode, group), max_length=8, n_groups=3))
    shares = [np.isin(episode, e) for e in ([0, 3, 4], [1], [2, 5, 6, 7, 8])]
    with_turn = "turn" in mode

    def own(rows):
        return RowIds(turn[rows] if with_turn else None, episode[rows], group[rows])

    parts = [batch_totals(mask[rows], own(rows), n_groups=3) for rows in shares]
    totals = parts[0] + parts[1] + parts[2]
    assert isinstance(totals, BatchTotals)
    got = sum(
        float(weighted_sum(loss[r], row_weight(mask[r], mode, own(r), max_length=8, totals=totals, n_groups=3)))
        for r in shares
    )
    assert got == pytest.approx(want)


@pytest.mark.parametrize(
    "mode", ["token_mean", "seq_mean_token_mean", "seq_mean_token_sum", "const", "traj_turn_token"]
)
@pytest.mark.parametrize("width", [6, 11])
def test_padding_width_and_content_do_not_matter(mode, width):
    episode, turn, mask, _, loss = batch(7)
    want = aggregate(loss, mask, mode, ids=RowIds(turn=turn, episode=episode), max_length=8)
    padded, use, turns = np.full((9, width), np.nan), np.zeros((9, width), bool), np.full((9, width), 3)
    for e in range(9):
        rows = np.flatnonzero(episode == e)
        padded[e, : len(rows)], use[e, : len(rows)], turns[e, : len(rows)] = loss[rows], mask[rows], turn[rows]
    assert float(aggregate(padded, use, mode, ids=RowIds(turn=turns), max_length=8)) == pytest.approx(float(want))


def test_const_and_masked_weights_keep_the_original_denominator():
    loss, original = np.array([1.0, 2.0, 3.0, 6.0]), np.ones(4, bool)
    kept, episode = np.array([1, 0, 1, 0], bool), np.array([0, 0, 1, 2])
    assert float(aggregate(loss, kept, denominator_mask=original)) == 1.0
    assert float(aggregate(loss, kept)) == 2.0
    # Episode 2 has lost its only row: the original denominator still counts three episodes.
    got = aggregate(loss, kept, "const", ids=RowIds(episode=episode), max_length=2, denominator_mask=original)
    assert float(got) == pytest.approx(4 / 6)
    assert float(aggregate(loss, kept, "const", ids=RowIds(episode=episode), max_length=2)) == 1.0
    assert float(aggregate(loss, kept, "const", ids=RowIds(episode=episode), max_length=2, n_episodes=4)) == 0.5
    # An importance weight of 0 inside policy_loss does the same.
    zero = np.zeros(2)
    assert float(policy_loss(zero, zero, np.array([1.0, 5.0]), weight=np.array([1.0, 0.0]))) == -0.5


def test_empty_batches_give_zero_not_nan():
    loss, none = torch.ones(2, 3, requires_grad=True), torch.zeros(2, 3, dtype=torch.bool)
    turn, group = torch.zeros(2, 3, dtype=torch.int64), torch.tensor([0, 1])
    for mode in MODES:
        got = aggregate(loss, none, mode, ids=RowIds(turn=turn, group=group), max_length=3)
        assert got == 0
    assert aggregate(np.ones(3), None, "group_balanced", ids=RowIds(group=np.array([-1, 4, 4]))) == 1


def test_missing_ids_are_named():
    loss = np.ones(3)
    with pytest.raises(ValueError, match="episode is missing"):
        aggregate(loss, None, "seq_mean_token_mean")
    with pytest.raises(ValueError, match="turn is missing"):
        aggregate(loss, None, "turn_mean")
    with pytest.raises(ValueError, match="group is missing"):
        aggregate(loss, None, "group_balanced")
    with pytest.raises(ValueError, match="max_length is 0"):
        aggregate(loss, None, "const", ids=RowIds(episode=np.zeros(3, int)), max_length=0)
    with pytest.raises(ValueError, match="loss has shape"):
        weighted_sum(loss, np.ones(2))


def test_design_example_of_a_language_agent():
    # One outcome for every token of a line, clip-higher, mask from turn ids: worked by hand.
    logp = torch.log(torch.tensor([[1.5, 1.0], [0.5, 1.0]])).requires_grad_()
    advantage = torch.tensor([1.0, -1.0])[:, None].expand_as(logp)
    turn = torch.tensor([[0, 0], [0, -1]])
    loss = policy_loss(logp, torch.zeros(2, 2), advantage, mask=turn >= 0, clip=(0.2, 0.28))
    assert loss.item() == pytest.approx((-1.28 - 1.0 + 0.8) / 3)
    loss.backward()
    close(grad_of(logp), [[0, -1 / 3], [0, 0]], atol=1e-7)
