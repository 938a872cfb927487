"""Every option of normalise and whiten, the edge rules, and the named traps of other libraries."""

import numpy as np
import pytest
import torch

from robot_rl.advantage import groups
from robot_rl.advantage.combinations import check_combination
from robot_rl.advantage.normalise import EdgeRules, batch_moments, merge_moments, normalise, normalise_units, whiten
from robot_rl.advantage.zoo import groups as zoo_groups
from tests.advantage import reference_groups as slow
from tests.advantage.kind_cases import each_kind
from tests.advantage.ragged import both, ragged

close = np.testing.assert_allclose
nan = float("nan")


def one(x, cells, **options):
    return normalise(np.array(x, float), np.array(cells), **options)[0].tolist()


@pytest.mark.parametrize("seed", range(4))
def test_defaults_and_leave_one_out_equal_their_twins(seed):
    b = ragged(seed)
    close(both(normalise, b.score, b.group)[0], slow.normalise(b.score, b.group), atol=1e-9)
    got = both(normalise, b.score, b.group, rules=EdgeRules(ddof=0, eps=1e-3, std_floor=0.2, min_count=3))[0]
    want = slow.normalise(b.score, b.group, ddof=0, eps=1e-3, floor=0.2, min_count=3)
    close(got, want, atol=1e-9)
    got = both(normalise, b.score, b.group, center="leave_one_out", rules=EdgeRules(scaled_leave_one_out=True))[0]
    close(got, slow.normalise(b.score, b.group, "leave_one_out"), atol=1e-9)


def test_singleton_rules():
    # Cell 0 has one scorable member, cell 1 two.
    x, cells = [0.7, nan, 0.0, 1.0], [0, 0, 1, 1]
    pair = [-0.5, 0.5]
    assert one(x, cells, scale="none") == [0, 0, *pair]
    assert one(x, cells, scale="none", rules=EdgeRules(singleton="raw")) == [0.7, 0, *pair]
    got = one(x, cells, scale="none", rules=EdgeRules(singleton="nan"))
    assert np.isnan(got[0])
    assert got[1:] == [0, *pair]
    with pytest.raises(ValueError, match="row 0 is in a cell with fewer than 2"):
        one(x, cells, rules=EdgeRules(singleton="error"))
    assert one([1.0, 2.0], [0, 0], scale="none", rules=EdgeRules(singleton="error")) == pair


def test_zero_variance_can_be_kept():
    x = [0.3, 0.3 + 1e-7]
    assert one(x, [0, 0], scale="none") == [0, 0]
    close(one(x, [0, 0], scale="none", rules=EdgeRules(zero_var="keep")), [-5e-8, 5e-8], atol=1e-12)


def test_centres_and_scales_by_hand():
    # rms of (3, 4): sqrt(12.5); weights 3 : 1 give the centre 3.25.
    close(one([3, 4], [0, 0], center="none", scale="rms", rules=EdgeRules(eps=0)), np.array([3, 4]) / np.sqrt(12.5))
    assert one([3, 4], [0, 0], center="none", scale="none") == [3, 4]
    close(one([3, 4], [0, 0], center="weighted", weight=np.array([3.0, 1.0]), scale="none"), [-0.25, 0.75])
    # Group mean, deviation of the batch: (0, 1, 2, 5) has deviation 2.160247.
    want = np.array([-0.5, 0.5, -1.5, 1.5]) / (np.std([0, 1, 2, 5], ddof=1) + 1e-6)
    close(one([0, 1, 2, 5], [0, 0, 1, 1], scale_cells="batch"), want)
    close(one([0, 1, 2, 5], [0, 0, 1, 1], scale_cells=np.array([0, 0, 0, 0])), want)
    assert one([1, 2, 9], [0, 0, 0], scale="none", mask=np.array([1, 1, 0], bool)) == [-0.5, 0.5, 0]
    assert normalise(np.array([1.0, 2.0]), "batch", scale="none")[0].tolist() == [-0.5, 0.5]


def test_units_count_once():
    # Episode 0 repeats its score on three rows, episode 1 on one: the mean is .5, not .25.
    x, cells, unit = np.array([0.0, 0, 0, 1]), np.array([4, 4, 4, 4]), np.array([8, 8, 8, 2])
    out, valid = normalise_units(x, cells, unit, scale="none")
    assert out.tolist() == [-0.5, -0.5, -0.5, 0.5]
    assert valid.all()
    out, valid = normalise_units(np.array([0.0, 0, nan, 1]), cells, unit, scale="none")
    assert out.tolist() == [-0.5, -0.5, 0, 0.5]
    assert valid.tolist() == [True, True, False, True]
    weighted = normalise_units(x, cells, unit, center="weighted", weight=np.array([1.0, 1, 1, 3]), scale="none")[0]
    close(weighted, [-0.75, -0.75, -0.75, 0.25])
    masked = normalise_units(x, cells, unit, scale="none", mask=np.array([1, 0, 1, 1], bool))[0]
    assert masked.tolist() == [-0.5, 0, -0.5, 0.5]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"center": "median"}, "center is 'median'"),
        ({"scale": "iqr"}, "scale is 'iqr'"),
        ({"center": "weighted"}, "weight is missing"),
        ({"weight": np.ones(2)}, "weight is given"),
        ({"center": "leave_one_out"}, "leave_one_out with std in the same cells"),
        ({"mask": np.ones(3, bool)}, "mask has shape"),
        ({"scale_cells": "row"}, "cells is 'row'"),
    ],
)
def test_wrong_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        normalise(np.ones(2), np.zeros(2, int), **options)


@pytest.mark.parametrize(
    ("rule", "message"),
    [({"singleton": "drop"}, "singleton is 'drop'"), ({"zero_var": "nan"}, "zero_var"), ({"ddof": 2}, "ddof is 2")],
)
def test_unknown_edge_rules_are_refused(rule, message):
    with pytest.raises(ValueError, match=message):
        EdgeRules(**rule)


def test_ids_must_be_integers_and_not_hashes_below_minus_one():
    with pytest.raises(ValueError, match="group id -5 at row 1"):
        groups.grpo(np.ones(2), np.array([0, -5]))
    with pytest.raises(ValueError, match="group id -5 at row 1"):
        groups.grpo(torch.ones(2), torch.tensor([0, -5]))
    with pytest.raises(ValueError, match="factorise names once"):
        groups.grpo(np.ones(2), np.array(["a", "b"]))
    with pytest.raises(ValueError, match="one dimension"):
        groups.grpo(np.ones((2, 2)), np.zeros((2, 2), int))
    with pytest.raises(ValueError, match="flat, one entry per row"):
        groups.grpo(np.ones(2), np.zeros(3, int))
    with pytest.raises(ValueError, match="leave_one_out"):
        groups.group_advantage(np.ones(2), np.zeros(2, int), baseline="leave_one_out")
    with pytest.raises(ValueError, match="baseline is 'median'"):
        groups.group_advantage(np.ones(2), np.zeros(2, int), baseline="median")


# Named traps ---------------------------------------------------------------------------------------------------------


@each_kind
def test_single_member_group_gives_zero_and_no_nan(kind):
    got = groups.grpo(kind.x([0.7, 0, 1]), kind.i([0, 1, 1]))
    kind.same(got, [0, -0.707106, 0.707106])
    for estimator in (groups.rloo, groups.dr_grpo, groups.lite_ppo, zoo_groups.pass_k):
        assert float(estimator(kind.x([0.7]), kind.i([0]))[0]) == 0.0


@each_kind
def test_seven_of_eight_outcomes_unscorable_give_zero(kind):
    score = kind.x([nan] * 7 + [1])
    for estimator in (groups.grpo, groups.rloo, groups.lite_ppo, zoo_groups.pass_k, zoo_groups.gpg):
        assert estimator(score, kind.i([0] * 8)).tolist() == [0.0] * 8
    assert groups.scorable(score).tolist() == [False] * 7 + [True]
    assert groups.scorable(score, kind.i([7, 0])).tolist() == [True, False]


@each_kind
def test_equal_rewards_with_float_residue_give_exactly_zero(kind):
    score, group = kind.x([0.3, 0.3 + 1e-7, 0.3 - 1e-7]), kind.i([0, 0, 0])
    for estimator in (groups.grpo, groups.rloo, groups.dr_grpo, groups.lite_ppo, zoo_groups.m_grpo):
        assert estimator(score, group).tolist() == [0, 0, 0]


def test_large_sparse_ids_are_factorised():
    got = groups.dr_grpo(np.array([0.0, 1.0, 4.0, 6.0]), np.array([2**62, 2**62, 3, 3]))
    assert got.tolist() == [-0.5, 0.5, -1, 1]


def test_padding_zeros_never_enter_statistics():
    padded = np.array([1.0, 3.0, 0.0, 0.0])
    mask = np.array([1, 1, 0, 0], bool)
    assert groups.group_advantage(padded, np.zeros(4, int), scale="none", mask=mask).tolist() == [-1, 1, 0, 0]
    close(whiten(padded, mask), [-(0.5**0.5), 0.5**0.5, 0, 0], atol=1e-7)


def test_dropped_sample_does_not_shift_other_groups():
    score, group = np.array([0.0, 1.0, 5.0, 7.0]), np.array([0, 0, 1, 1])
    whole = groups.dr_grpo(score, group)
    assert groups.dr_grpo(score[1:], group[1:]).tolist() == [0, *whole[2:].tolist()]


def test_gamma_with_an_outcome_estimator_is_refused():
    with pytest.raises(TypeError, match="gamma"):
        groups.grpo(np.ones(2), np.zeros(2, int), gamma=0.9)


# Whitening -----------------------------------------------------------------------------------------------------------


def test_whiten_uses_the_whole_batch_in_parts():
    rng = np.random.default_rng(0)
    x, mask = rng.normal(3, 2, 50), rng.random(50) < 0.7
    whole = both(whiten, x, mask)
    close(whole[mask].mean(), 0, atol=1e-12)
    close(whole[mask].std(ddof=1), 1)
    assert not whole[~mask].any()
    close(whole, slow.whiten(x, mask), atol=1e-9)
    parts = [slice(0, 11), slice(11, 12), slice(12, 50)]
    moments = merge_moments([batch_moments(x[p], mask[p]) for p in parts])
    close(np.concatenate([whiten(x[p], mask[p], moments=moments) for p in parts]), whole, rtol=1e-12)
    close(whiten(x, mask, center=False)[mask], x[mask] / (x[mask].std(ddof=1) + 1e-8))
    close(whiten(x.reshape(5, 10), mask.reshape(5, 10)).reshape(-1), whole)
    close(whiten(x, ddof=0), (x - x.mean()) / (x.std() + 1e-8))
    with pytest.raises(ValueError, match="at least one worker"):
        merge_moments([])
    with pytest.raises(ValueError, match="mask has shape"):
        whiten(x, mask[:3])


def test_whiten_without_spread_gives_exactly_zero():
    for x in ([0.1] * 7, [0.1, 0.1 + 1e-9], [4.0], []):
        assert whiten(np.array(x)).tolist() == [0.0] * len(x)
    assert whiten(np.array([1.0, nan]), np.array([True, False])).tolist() == [0, 0]


# Forbidden combinations ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pipeline", "message", "key"),
    [
        ({"estimator": "gae", "center": "leave_one_out", "scale": "std"}, "same cells", "leave_one_out_std"),
        ({"estimator": "grpo", "scale": "std"}, "2 times", "std_twice"),
        ({"estimator": "grpo", "whiten": True}, "2 times", "std_twice"),
        ({"estimator": "gae", "scale": "std", "whiten": True}, "2 times", "std_twice"),
        ({"estimator": "rae", "whiten": True}, "whiten after 'rae'", "whiten_rae"),
    ],
)
def test_forbidden_combinations_raise_unless_allowed(pipeline, message, key):
    with pytest.raises(ValueError, match=message):
        check_combination(**pipeline)
    check_combination(**pipeline, allow=[key])


def test_biased_divergences_as_a_reward_are_never_allowed():
    for kind in ("k2", "k3"):
        with pytest.raises(ValueError, match="only k1"):
            check_combination(estimator="gae", kl_reward=kind)
    check_combination(estimator="gae", whiten=True, kl_reward="k1")
    with pytest.raises(ValueError, match="allow has"):
        check_combination(estimator="gae", allow=["everything"])


def test_group_metrics_count_what_happened():
    # Group 1: two equal; group 2: single; group 3: spread; one NaN; one row in no group.
    score = np.array([1.0, 1.0, 5.0, 0.0, 1.0, nan, 3.0])
    got = groups.group_metrics(score, np.array([1, 1, 2, 3, 3, 3, -1]))
    assert {k: round(float(v), 6) for k, v in got.items()} == {
        "groups": 3.0,
        "singleton_fraction": 0.333333,
        "zero_variance_fraction": 0.5,
        "unscorable_fraction": round(2 / 7, 6),
    }
