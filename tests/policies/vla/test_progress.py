"""Labels, accumulation, metrics and rewards against numbers worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from robot_rl.policies.nets.critic_scores import (
    auc,
    calibration_error,
    fit_platt,
    kendall,
    precision_recall,
    voc,
    voc_f1,
)
from robot_rl.policies.nets.progress import (
    U_MIN,
    accumulate,
    add_up,
    log_delta,
    share_of_log,
    true_values,
    work_share,
)
from robot_rl.policies.nets.value_heads import hl_gauss_head
from robot_rl.policies.reward.critic_reward import done_events, progress_reward
from robot_rl.stats import rank_correlation, ranks


def test_work_label_is_antisymmetric_and_adds_up_in_logs() -> None:
    # .8 m to .5 m: 3/8 of the work, and back.
    assert work_share(np.array(0.8), np.array(0.5)) == pytest.approx(0.375)
    assert work_share(np.array(0.5), np.array(0.8)) == pytest.approx(-0.375)
    work = np.array([0.7, 0.4, 0.55, 0.2, 0.7])  # a closed loop
    steps = log_delta(work_share(work[:-1], work[1:]))
    assert steps.sum() == pytest.approx(0.0, abs=1e-12)
    np.testing.assert_allclose(steps, -np.diff(np.log(work)))
    np.testing.assert_allclose(share_of_log(steps), work_share(work[:-1], work[1:]))
    assert work_share(np.array(1.0), np.array(1e-9)) == pytest.approx(0.98)  # cut
    with pytest.raises(ValueError, match="> 0"):
        work_share(np.array(0.0), np.array(1.0))


def test_accumulation_of_five_deltas_in_every_form() -> None:
    deltas = np.array([0.2, 0.3, -0.1, 0.5, -0.2])
    expected = {
        "simple": [0.2, 0.44, 0.384, 0.692, 0.6304],
        "inverse": [0.2, 0.44, 0.377778, 0.688889, 0.611111],
        "log": [0.2, 0.44, 0.377778, 0.688889, 0.611111],
        "mix_f": [0.2, 0.44, 0.396, 0.698, 0.6225],
    }
    for form, values in expected.items():
        np.testing.assert_allclose(accumulate(deltas, form)[1:], values, atol=1e-6, err_msg=form)
    u, values = add_up(log_delta(deltas))
    np.testing.assert_allclose(values[1:], expected["log"], atol=1e-6)
    assert u[0] == 0.0
    with pytest.raises(ValueError, match="form is"):
        accumulate(deltas, "vlac")


def test_accumulation_survives_a_full_loss_in_every_form() -> None:
    for form in ("log", "simple", "inverse", "mix_f"):
        values = accumulate(np.array([0.5, -1.0, -1.0, 0.5]), form)
        assert np.isfinite(values).all(), form
    assert accumulate(np.array([-0.9, -0.9]), "log")[-1] == pytest.approx(-1.0)  # the floor: half as far again
    assert pytest.approx(math.log(0.5)) == U_MIN


def test_raw_shares_of_a_cycle_gain_and_their_logs_do_not() -> None:
    # 20 frames: ten single steps up from 0, one jump back. 1/20 + ... + 1/11 - 10/20 = .169.
    up, back = [1 / (20 - i) for i in range(10)], -0.5  # of 20 frames
    assert sum(up) + back == pytest.approx(0.1688, abs=1e-4)
    assert float(log_delta(np.array([*up, back])).sum()) == pytest.approx(0.0, abs=1e-12)


def test_true_values_start_at_zero_and_stop_at_minus_one() -> None:
    np.testing.assert_allclose(true_values(np.array([0.5, 0.25, 0.6, 2.0])), [0.0, 0.5, -0.2, -1.0])


def test_rank_correlations_of_a_clip_with_a_tie() -> None:
    values = np.array([0.0, 0.2, 0.1, 0.4, 0.4, 0.9])
    np.testing.assert_allclose(ranks(values), [1, 3, 2, 4.5, 4.5, 6])
    assert voc(values) == pytest.approx(0.927634, abs=1e-6)
    assert voc(values, ties="argsort") == pytest.approx(0.942857, abs=1e-6)
    assert kendall(values, np.arange(6)) == pytest.approx(0.8)
    assert kendall(values, np.arange(6), kind="b") == pytest.approx(0.828079, abs=1e-6)


def test_constant_critic_has_no_order_and_no_f1() -> None:
    assert math.isnan(voc(np.full(5, 0.3)))
    assert voc_f1(0.0, 0.0) == 0.0
    # "regress" to everything orders the reversed clip perfectly and the clip itself backwards
    falling = voc(accumulate(np.full(5, -0.05)))
    assert falling == pytest.approx(-1.0)
    assert voc_f1(falling, 1.0) == 0.0
    assert voc_f1(0.5, 1.0) == pytest.approx(2 / 3)
    with pytest.raises(ValueError, match="at least 2"):
        voc(np.array([1.0]))


def test_auc_counts_ties_half() -> None:
    # pairs (.9,.1) (.9,.5) (.5,.1) win, (.5,.5) ties: 3.5 of 4
    assert auc(np.array([0.9, 0.5]), np.array([0.1, 0.5])) == pytest.approx(0.875)
    assert rank_correlation(np.array([1.0, 2, 3]), np.array([3.0, 2, 1])) == pytest.approx(-1.0)


def test_calibration_error_by_hand() -> None:
    # bin .0-.1: mean .05, share 0 -> .05 (two rows); bin .9-1: mean .95, share .5 -> .45 (two rows)
    p, y = np.array([0.05, 0.05, 0.95, 0.95]), np.array([0, 0, 1, 0])
    assert calibration_error(p, y) == pytest.approx(0.25)
    precision, recall = precision_recall(p, y)
    assert (precision, recall) == (0.5, 1.0)
    assert math.isnan(precision_recall(np.array([0.1]), np.array([0]))[0])


def test_platt_repairs_a_head_that_never_passes_one_half() -> None:
    random = np.random.default_rng(0)
    truth = random.random(4000) < 0.3
    logit = np.where(truth, -2.0, -4.0) + random.normal(0, 0.7, 4000)  # ranks well, all below 0
    before = 1 / (1 + np.exp(-logit))
    assert precision_recall(before, truth)[1] < 0.02
    fitted = fit_platt(logit, truth)
    assert calibration_error(fitted(logit), truth) < 0.03
    assert precision_recall(fitted(logit), truth)[1] > 0.8
    # two normals of std .7 at -2 and -4, prior .3: slope 2 / .49, boundary where both weigh the same
    assert fitted.slope == pytest.approx(2 / 0.49, rel=0.15)
    with pytest.raises(ValueError, match="both classes"):
        fit_platt(logit, np.ones(4000, bool))


def test_platt_of_separable_scores_stays_within_its_bounds() -> None:
    fitted = fit_platt(np.array([-5.0, -4.0, 4.0, 5.0] * 10), np.array([False, False, True, True] * 10))
    assert 0.05 <= fitted.slope <= 20.0
    assert fitted(np.array(4.0)) > 0.9


def test_categorical_target_of_a_share() -> None:
    # five centres on [-1, 1], sigma .75 * .5, target .3
    head = hl_gauss_head(-1.25, 1.25, 5, sigma_ratio=0.75)
    p = head.spread(torch.tensor([0.3]))[0]
    np.testing.assert_allclose(p.numpy(), [0.00255, 0.06907, 0.37787, 0.44046, 0.11004], atol=1e-5)
    assert float(p @ head.centres) == pytest.approx(0.293188, abs=1e-5)


def test_potential_reward_by_hand() -> None:
    phi = np.array([0.0, 0.3, 0.2, 0.9])
    none = np.zeros(3)
    open_end = progress_reward(phi, none, gamma=0.99, kappa=0.1)
    np.testing.assert_allclose(open_end, [0.0297, -0.0102, 0.0691], atol=1e-9)
    ended = progress_reward(phi, none, gamma=0.99, kappa=0.1, terminated=True)
    np.testing.assert_allclose(ended, [0.0297, -0.0102, -0.02], atol=1e-9)


def test_potential_reward_telescopes_over_decisions_of_any_length() -> None:
    random = np.random.default_rng(1)
    for terminated in (True, False):
        phi, steps = random.random(9), random.integers(1, 6, 8)
        reward = progress_reward(phi, np.zeros(8), gamma=0.97, steps=steps, terminated=terminated)
        at = np.concatenate([[0], np.cumsum(steps)])
        total = float((0.97 ** at[:-1] * reward).sum())
        end = 0.0 if terminated else 0.97 ** at[-1] * phi[-1]
        assert total == pytest.approx(end - phi[0])


def test_cycling_gains_with_deltas_and_nothing_with_potentials() -> None:
    # up in ten small steps, back in one jump, over and over
    up, back = [1 / (20 - i) for i in range(10)], -0.5  # of 20 frames
    deltas = np.array([*up, back] * 5, np.float64)
    values = accumulate(deltas)
    assert progress_reward(values, deltas, mode="delta").sum() == pytest.approx(5 * 0.1688, abs=1e-3)
    assert progress_reward(values, deltas, mode="potential", gamma=1.0).sum() == pytest.approx(0.0, abs=1e-9)
    with pytest.raises(ValueError, match="mode is"):
        progress_reward(values, deltas, mode="progress")


def test_unreadable_answers_are_worth_nothing() -> None:
    reward = progress_reward(np.array([0.0, 0.0, 0.1]), np.array([np.nan, 0.1]), mode="dlogw")
    np.testing.assert_allclose(reward, [0.0, -np.log(0.9)])


def test_done_needs_three_answers_on_end_and_progress() -> None:
    done = np.array([0.95, 0.95, 0.2, 0.95, 0.95, 0.95, 0.95])
    assert done_events(done, np.full(7, 0.9)).tolist() == [False] * 5 + [True, True]
    assert not done_events(done, np.full(7, 0.7)).any()
    assert not done_events(np.full(5, np.nan), np.full(5, 0.9)).any()
