"""Golden numbers of losses and stabilisers (specification items E23, E24, E26, E27, E31, E34, E36, E37, E40 to E44)."""

import math

import numpy as np
import pytest

from robot_rl.advantage import ClipRange, RowIds, importance, kl, losses, ratios, regression
from robot_rl.advantage.aggregate import aggregate
from robot_rl.advantage.value_losses import value_loss_rows
from robot_rl.advantage.zoo import entropy, replay, rollout, sequential
from robot_rl.advantage.zoo import importance as zoo_importance
from robot_rl.advantage.zoo import kl as zoo_kl
from robot_rl.advantage.zoo import regression as zoo_regression
from robot_rl.advantage.zoo import weights as zoo_weights
from robot_rl.advantage.zoo.histories import GroupHistory
from tests.advantage.kind_cases import each_kind


@each_kind
def test_ppo_and_dual_clip(kind):
    # E23
    advantage, ratio = kind.x([1, 1, -1, -1, -1]), kind.x([1.1, 1.5, 0.5, 1.5, 4])
    kind.same(losses.ppo_rows(ratio, advantage, clip=(0.2, 0.28)), [-1.1, -1.28, 0.8, 1.5, 4])
    kind.same(losses.ppo_rows(ratio, advantage, clip=ClipRange((0.2, 0.28), dual=3.0)), [-1.1, -1.28, 0.8, 1.5, 3])
    kind.same(losses.ppo_rows(ratio, advantage, clip=ClipRange((0.2, 0.28), delta=2.0)), [-1.1, -1.28, 0.8, 1.5, 2])


@each_kind
def test_decoupled_loss_keeps_the_original_denominator(kind):
    # E23: -.624606 would be the denominator 2.
    logp, prox, behaviour = kind.x([-1, -2, -0.5]), kind.x([-1.1, -1.7, -0.5]), kind.x([-1.4, -1.2, -3.5])
    advantage = kind.x([1, -0.5, 2])
    weight = zoo_importance.importance_weight(prox, behaviour, mode="none")
    kind.near(weight, [1.349859, 0.606531, 20.085537])
    masked = losses.decoupled_policy_loss(logp, prox, behaviour, advantage, w_mode="mask", cap=5.0)
    kind.same(masked, -0.416404)
    clamped = losses.decoupled_policy_loss(logp, prox, behaviour, advantage, w_mode="clamp", cap=5.0)
    kind.same(clamped, -3.749737)


@each_kind
def test_loglinear_proximal(kind):
    # E23: alpha = 0, 2/3, 3/4.
    got = zoo_importance.loglinear_proximal(
        kind.x([-1, -2, -0.5]), kind.x([-1.4, -1.2, -3.5]), kind.i([3, 1, 0]), current_version=4
    )
    kind.same(got, [-1.4, -1.733333, -1.25])
    kind.same(zoo_importance.loglinear_proximal(kind.x([-1]), kind.x([-2]), kind.i([4]), 4), [-2])


@each_kind
def test_gspo_and_sapo(kind):
    # E23
    step = kind.x([[0.1, -0.05, 0.2]])
    ratio = np.exp(np.asarray(ratios.unit_log_ratio(step, "sequence_geo")))
    kind.near(ratio, [[1.086904] * 3])
    one = kind.x([1])
    kind.same(-losses.sapo_rows(kind.x([1.5]), one), [2.489837])
    kind.same(losses.sapo_rows(kind.x([1.5]), -one), [2.393585])
    kind.same(-losses.sapo_rows(kind.x([1]), one), [2])


@each_kind
def test_divergence_estimators(kind):
    # E23: d = .3.
    logp, ref = kind.x([-1]), kind.x([-1.3])
    for name, want in (("k1", 0.3), ("k2", 0.045), ("k3", 0.040818), ("k3+", 0.040818)):
        kind.same(kl.kl_rows(logp, ref, name), [want])


@each_kind
def test_refuel_release_and_paper_form(kind):
    # E23: log-ratios .2 and -.1, rewards .8 and .3; two rows per continuation.
    logp, old = kind.x([-0.9, -0.9, -1.05, -1.05]), kind.x([-1, -1, -1, -1])
    pair, second, reward = kind.i([0, 0, 0, 0]), kind.b([0, 0, 1, 1]), kind.x([[0.8, 0.3]])
    kind.same(zoo_regression.refuel_loss(logp, old, pair, second, reward), [0.04])
    kind.same(zoo_regression.refuel_loss(logp, old, pair, second, reward, eta=0.5, paper_form=True), [0.01])


@each_kind
def test_a_lol_and_awr_weights(kind):
    # E23: e^.2 is clipped to 1.2; weight .48, loss -.48 · logp.
    got = zoo_regression.a_lol_rows(kind.x([-1.0]), kind.x([-1.2]), kind.x([0.4]))
    kind.same(got, [0.48])
    kind.same(regression.awr_weight(kind.x([0.5, -0.2, 3]), beta=0.5), [2.718282, 0.67032, 20])


@each_kind
def test_covariance_and_its_candidates(kind):
    # E23: only row 0 lies in [1, 5].
    advantage, logp = kind.x([2, -1, 0.5, -1.5]), kind.x([-0.1, -2, -3, -0.2])
    kind.near(entropy.covariance(advantage, logp), [2.45, 0.675, -0.8375, -1.6875])
    chosen = entropy.clip_cov(advantage, logp, generator=np.random.default_rng(0), fraction=1.0)
    assert chosen.tolist() == [True, False, False, False]


@each_kind
def test_aepo_factor_and_epo_schedule(kind):
    # E23
    kind.same(entropy.aepo_factor(kind.x([0.2, 0.4, 1.2, 0.6])), [0.814836, 0.907418, 1.277746, 1])
    kind.near(np.array([entropy.epo_weight(e) for e in (0, 75, 76, 150)]), [1, 0.827067, 0.768632, 0.03983])


@each_kind
def test_every_aggregation(kind):
    # E24: rows 1, 2, 3 | 4.
    loss, episode, turn = kind.x([1, 2, 3, 4]), kind.i([0, 0, 0, 1]), kind.i([0, 0, 1, 2])
    for mode, want in (
        ("token_mean", 2.5),
        ("seq_mean_token_mean", 3),
        ("seq_mean_token_sum", 5),
        ("const", 0.625),
        ("traj_turn_token", 3.125),
    ):
        kind.same(aggregate(loss, None, mode, ids=RowIds(turn=turn, episode=episode), max_length=8), want)
    # Turn means 1.5, 3, 4; group means: group 0 = (1+2+3)/3, group 1 = 4.
    kind.same(aggregate(loss, None, "turn_mean", ids=RowIds(turn=turn)), 8.5 / 3)
    kind.same(aggregate(loss, None, "group_balanced", ids=RowIds(group=kind.i([5, 5, 5, 9]))), 3)
    # The same rows as a padded batch, padding full of rubbish.
    padded, mask = kind.x([[1, 2, 3], [4, 77, 88]]), kind.b([[1, 1, 1], [1, 0, 0]])
    turns = kind.i([[0, 0, 1], [0, -1, -1]])
    kind.same(aggregate(padded, mask, "traj_turn_token", ids=RowIds(turn=turns)), 3.125)
    kind.same(aggregate(padded, mask, "const", max_length=8), 0.625)


@each_kind
def test_duration_weights_and_seeupo(kind):
    # E26 and E27
    kind.same(zoo_weights.duration_weight(kind.x([1, 2, 9])), [0.25, 0.5, 2.25])
    log_ratios = kind.x(np.log([1.1, 0.9, 1.05]))
    got = sequential.experimental_seeupo_weight(kind.x([0.5, 0.5, 0.5]), log_ratios, kind.i([0, 0, 0]))
    kind.same(got, [0.4725, 0.525, 0.5])


@each_kind
def test_branching_probability(kind):
    # E31
    kind.same(rollout.branch_probability(kind.x([0.2]), p=0.5, weight=0.2), [0.54])


@each_kind
def test_epo_hinge(kind):
    # E34; the derivative is tested in test_loss_gradients.
    got = entropy.epo_penalty_rows(kind.x([0.2, 0.5, 0.9]), kind.x([0.5, 0.5, 0.5]), coefficient=0.05)
    kind.same(got, [0.01, 0, 0.015])


@each_kind
def test_clipped_value_loss(kind):
    # E36
    got = value_loss_rows(kind.x([1, 1, 0]), kind.x([1.2, 1.2, -0.5]), old_value=kind.x([0.5, 0.9, 0.1]), clip=0.2)
    kind.same(got, [0.125, 0.02, 0.125])


@each_kind
def test_spear_recalibration_and_schedule(kind):
    # E37
    history = GroupHistory()
    history.apply(np.array([[0.2, 0.1], [0.5, 0.2], [0.4, 0.3]]))
    advantage, kept = history.recalibrate(kind.x([1, 0.3]))
    kind.same(advantage, [0.6, 0])
    assert kept.tolist() == [True, False]
    # Median deviation .2: .6 / .200001.
    kind.same(history.recalibrate(kind.x([1.0]), scale=True)[0], [0.6 / 0.200001])
    factors = [replay.replay_coefficient(s, 100) for s in (0, 25, 50, 100, 900)]
    kind.near(np.array(factors), [0, 0.146447, 0.5, 1, 1])


@each_kind
def test_distillation_advantage(kind):
    # E40
    kind.same(zoo_kl.experimental_opd_advantage(kind.x([-1, -0.5, -2]), kind.x([-0.8, -1.5, -2])), [0.2, -1, 0])


@each_kind
def test_importance_weights(kind):
    # E41
    prox, behaviour = kind.x([[0.3, -0.1, 0.4]]), kind.x([[0, 0, 0]])

    def weight(**options):
        return zoo_importance.importance_weight(prox, behaviour, **options)

    kind.same(weight(mode="none"), [[1.349859, 0.904837, 1.491825]])
    kind.same(weight(mode="clamp", cap=1.2), [[1.2, 0.904837, 1.2]])
    kind.same(weight(mode="mask", floor=0.5, cap=1.4), [[1.349859, 0.904837, 0]])
    kind.same(weight(level="sequence", mode="none"), [[1.822119] * 3])
    kind.same(weight(level="sequence_geo", mode="none"), [[1.221403] * 3])
    kind.near(importance.effective_sample_size(weight(mode="none")), 2.884359)


@each_kind
def test_m2po_drops_the_largest_squares(kind):
    # E42: mean square .065625 > .04, without .4 it is .034167.
    step = kind.x([-0.1, 0.4, 0.05, -0.3])
    kept = zoo_importance.m2po_mask(step, tau=0.04)
    assert kept.tolist() == [True, False, True, True]
    kind.near((step[kept] ** 2).mean(), 0.034167)


@each_kind
def test_gmpo(kind):
    # E43
    step = kind.x([[0.1, -0.6, 0.5]])
    one = kind.x([[1, 1, 1]])
    kind.same(losses.gmpo_rows(step, one), [[-0.967216] * 3])
    kind.same(losses.gmpo_rows(step, -one), [[1.068939] * 3])


@each_kind
def test_pacs(kind):
    # E44
    total, episode = kind.x([0.3, -0.1, 0.2, 0]), kind.i([0, 1, 2, 3])
    logit = zoo_regression.pacs_logit(total, kind.x([0, 0, 0, 0]), episode, kind.i([0, 0, 0, 0]))
    kind.same(logit, [0.266667, -0.266667, 0.133333, -0.133333])
    loss = zoo_regression.pacs_loss(logit, kind.x([1, 0, 1, 0]))
    kind.same(loss, [0.568677, 0.568677, 0.628701, 0.628701])
    kind.near(loss.mean(), 0.598689)


def test_branching_entropy_by_hand():
    # Two rows with p = (1/2, 1/2) and one impossible third action: entropy ln 2 each, over ln 4.
    top = np.log(np.array([[[0.5, 0.5, 1.0], [0.5, 0.5, 1.0]]]))
    top[..., 2] = -np.inf
    assert rollout.branching_entropy(top, 4)[0] == pytest.approx(2 * math.log(2) / math.log(4))
    assert rollout.branching_entropy(top, 4, max_tokens=1)[0] == pytest.approx(0.5)
