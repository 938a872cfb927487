"""Divergences, importance weights, entropy control, value and regression losses against loops and their promises."""

import math

import numpy as np
import pytest
import torch

from robot_rl.advantage import importance, kl, regression, value_losses
from robot_rl.advantage.zoo import entropy
from robot_rl.advantage.zoo import importance as zoo_importance
from robot_rl.advantage.zoo import kl as zoo_kl
from robot_rl.advantage.zoo import regression as zoo_regression
from tests.advantage.ragged import both, grad_of

close = np.testing.assert_allclose
F64 = torch.float64


def gradient(function, x):
    leaf = torch.tensor(x, dtype=F64, requires_grad=True)
    function(leaf).backward()
    assert leaf.grad is not None
    return leaf.grad.numpy()


def finite_difference(function, x, step=1e-6):
    grad = np.zeros_like(x)
    for i in range(len(x)):
        up, down = x.copy(), x.copy()
        up[i] += step
        down[i] -= step
        grad[i] = (float(function(up).sum()) - float(function(down).sum())) / (2 * step)
    return grad


EPISODE, GROUP, MASK = np.array([0, 0, 1, 1, 2, 2]), np.array([4, 4, 4]), np.array([1, 1, 1, 0, 1, 1], bool)
OTHER, SCORE = np.array([-0.9, -1.2, 0.3, -0.5, 0.1, -2.0]), np.array([1.0, 1, 0, 0, 1, 1])
LOSSES = {
    "value": lambda x, o, s, e, g, m: value_losses.value_loss_rows(x, s, old_value=o, clip=0.2, weight=1.0 * m),
    "refuel": lambda x, o, s, e, g, m: zoo_regression.refuel_loss(x, o, e * 0, e > 0, s[None, :2] * 0.7, mask=m),
    "pacs": lambda x, o, s, e, g, m: zoo_regression.pacs_loss(zoo_regression.pacs_logit(x, o, e, g, mask=m), s[::2]),
    "rover": lambda x, o, s, e, g, m: zoo_regression.rover_rows(x, o, s, e),
    "awr": lambda x, o, s, e, g, m: regression.awr_rows(x, s, mask=m),
    "sign": lambda x, o, s, e, g, m: zoo_regression.sign_weighted_rows(x, s, mask=m),
    "k2": lambda x, o, s, e, g, m: zoo_kl.kl_loss_rows(x, o, 0.3, kind="k2", mask=m),
    "k3": lambda x, o, s, e, g, m: zoo_kl.kl_loss_rows(x, o, 0.3, kind="k3", mask=m),
    "epo": lambda x, o, s, e, g, m: entropy.epo_penalty_rows(x, o, mask=m),
}


@pytest.mark.parametrize("name", LOSSES)
def test_gradient_of_every_loss_equals_finite_differences(name):
    x = np.array([-1.0, -0.4, 0.2, -1.5, -0.7, -0.3])
    fixed = (OTHER, SCORE, EPISODE, GROUP, MASK)
    tensors = [torch.from_numpy(f) for f in fixed]
    got = gradient(lambda leaf: LOSSES[name](leaf, *tensors).sum(), x)
    close(got, finite_difference(lambda v: LOSSES[name](v, *fixed), x), atol=1e-7)
    if name != "rover":  # the only one without a mask
        assert got[3] == 0


# Divergences ---------------------------------------------------------------------------------------------------------


def test_divergences_equal_their_loop_and_their_gradients():
    rng = np.random.default_rng(0)
    logp, ref = rng.normal(-1, 1, 20), rng.normal(-1, 1, 20)
    d = logp - ref
    for kind, want in (("k1", d), ("k2", d * d / 2), ("k3", np.exp(-d) - 1 + d), ("k3+", np.exp(-d) - 1 + d)):
        close(both(kl.kl_rows, logp, ref, kind=kind), np.minimum(want, 10 if kind.startswith("k3") else np.inf))
    slope = {"k1": np.ones(20), "k2": d, "k3": 1 - np.exp(-d), "k3+": d}
    for kind, want in slope.items():
        got = gradient(lambda x, k=kind: kl.kl_rows(x, torch.from_numpy(ref), k, k3_max=None).sum(), logp)
        close(got, want, atol=1e-12)


def test_divergence_as_reward_and_as_loss():
    reward, logp, ref = np.array([1.0, 0.0]), np.array([-1.0, -2.0]), np.array([-1.5, np.nan])
    mask = np.array([True, False])
    assert zoo_kl.kl_reward(reward, logp, ref, 0.1, mask=mask).tolist() == [0.95, 0.0]
    assert np.shares_memory(zoo_kl.kl_reward(reward, logp, None, 0.0), reward)
    for kind in ("k2", "k3", "k3+"):
        with pytest.raises(ValueError, match="biased as a reward"):
            zoo_kl.kl_reward(reward, logp, ref, 0.1, kind=kind)
    assert zoo_kl.kl_loss_rows(logp, None, 0.0).tolist() == [0, 0]
    close(zoo_kl.kl_loss_rows(logp, ref, 0.1, mask=mask, ratio=np.array([2.0, 1.0])), [0.1 * 0.125 * 2, 0])
    with pytest.raises(ValueError, match="run the reference policy"):
        zoo_kl.kl_loss_rows(logp, None, 0.1)
    with pytest.raises(ValueError, match="kind is 'k4'"):
        kl.kl_rows(logp, ref, "k4")
    got = kl.kl_metrics(np.array([0.0, 30.0, -9.0]), np.array([-0.3, 0.0, 0.0]), mask=np.array([1, 1, 0], bool))
    assert {k: float(v) for k, v in got.items()} == pytest.approx(
        {"k1": 10.15, "k2": (0.045 + 200) / 2, "k3": (0.0408182 + 10) / 2, "clamped_fraction": 0.5}, rel=1e-5
    )


# Importance weights --------------------------------------------------------------------------------------------------


def test_masks_against_the_behaviour_policy():
    prox = np.zeros((3, 2))
    behaviour = np.array([[0.1, -0.1], [10.0, 0.0], [0.0, 0.0]])
    mask = np.array([[1, 1], [1, 1], [1, 0]], bool)
    weight = zoo_importance.importance_weight(prox, behaviour, mode="none", mask=mask)
    got = both(lambda w, m: zoo_importance.veto_mask(w, mask=m), weight, mask)
    assert got.tolist() == [[True, True], [False, False], [True, False]]
    # d = behaviour - prox. Means of the log-ratios: 0, -5, 0. k1 sums: 0, 10, 0. Largest k2: .005, 50, 0.
    for options, keep in (
        ({"metric": "ratio", "bounds": (0.999, 1.001)}, [1, 0, 1]),
        ({"metric": "ratio", "reduce": "max", "bounds": (0.0, 1.05)}, [0, 1, 1]),
        ({"metric": "ratio", "reduce": "sum", "bounds": (1e-6, 2.0)}, [1, 1, 1]),
        ({"metric": "k1", "reduce": "sum", "bounds": (-1.0, 1.0)}, [1, 0, 1]),
        ({"metric": "k2", "reduce": "max", "bounds": (0.001, 1.0)}, [1, 0, 0]),
        ({"metric": "k3", "reduce": "mean", "bounds": (-1.0, 1.0)}, [1, 0, 1]),
    ):
        kept = both(lambda p, b, m, o=options: zoo_importance.rejection_mask(p, b, mask=m, **o), prox, behaviour, mask)
        assert kept.tolist() == (mask & np.array(keep, bool)[:, None]).tolist()


def test_unrecorded_behaviour_falls_back_to_weight_one():
    prox, behaviour = np.full((2, 2), -1.0), np.array([[0.0, 0.0], [-1.0, -2.0]])
    got = zoo_importance.importance_weight(prox, behaviour, mode="clamp", cap=1.0, zero_fallback=True)
    assert got.tolist() == [[1, 1], [1, 1]]
    got = zoo_importance.importance_weight(prox, behaviour, mode="none", zero_fallback=True)
    close(got, [[1, 1], [1, math.e]])


def test_bounds_and_sample_size_edges():
    with pytest.raises(ValueError, match=r"cap is 0\.5"):
        importance.bounded_weight(np.ones(1), "mask", cap=0.5, floor=1.0)
    with pytest.raises(ValueError, match="mode is 'crop'"):
        importance.bounded_weight(np.ones(1), "crop")
    assert importance.effective_sample_size(np.zeros(3)) == 0
    assert importance.effective_sample_size(np.array([2.0, 2.0, 7.0]), np.array([1, 1, 0], bool)) == 2
    with pytest.raises(ValueError, match="tau is -1"):
        zoo_importance.m2po_mask(np.zeros(2), tau=-1)


@pytest.mark.parametrize("seed", range(3))
def test_m2po_equals_dropping_one_by_one(seed):
    rng = np.random.default_rng(seed)
    step, mask = rng.normal(0, 0.3, 30), rng.random(30) < 0.8
    kept = set(np.flatnonzero(mask))
    while kept and np.mean([step[i] ** 2 for i in kept]) > 0.04:
        kept.remove(max(kept, key=lambda i: step[i] ** 2))
    got = both(lambda s, m: zoo_importance.m2po_mask(s, mask=m), step, mask)
    assert set(np.flatnonzero(got)) == kept


# Entropy -------------------------------------------------------------------------------------------------------------


def test_covariance_clipping_chooses_the_stated_share_inside_the_band():
    rng = np.random.default_rng(0)
    a, logp = rng.normal(size=1000), rng.normal(size=1000)
    mask = rng.random(1000) < 0.9
    cov = entropy.covariance(a, logp, mask=mask)
    want = (a - a[mask].mean()) * (logp - logp[mask].mean())
    close(cov[mask], want[mask])
    assert not cov[~mask].any()
    chosen = entropy.clip_cov(a, logp, mask=mask, fraction=0.02, generator=np.random.default_rng(1))
    assert chosen.sum() == int(mask.sum() * 0.02)
    assert mask[chosen].all()
    assert ((cov[chosen] >= 1) & (cov[chosen] <= 5)).all()
    again = entropy.clip_cov(
        torch.from_numpy(a),
        torch.from_numpy(logp),
        mask=torch.from_numpy(mask),
        fraction=0.02,
        generator=np.random.default_rng(1),
    )
    assert again.tolist() == chosen.tolist()
    drawn = entropy.clip_cov(
        torch.from_numpy(a), torch.from_numpy(logp), fraction=0.01, generator=torch.Generator().manual_seed(0)
    )
    assert drawn.sum() == 10
    top = entropy.kl_cov(a, logp, mask=mask, fraction=0.01)
    assert set(np.flatnonzero(top)) == set(np.argsort(np.where(mask, -cov, np.inf))[: int(mask.sum() * 0.01)])
    with pytest.raises(ValueError, match="fraction is 2"):
        entropy.kl_cov(a, logp, fraction=2)


def test_entropy_factor_without_spread_is_one():
    assert entropy.aepo_factor(np.array([0.5, 0.5, np.nan]), mask=np.array([1, 1, 0], bool)).tolist() == [1, 1, 1]
    assert entropy.aepo_factor(np.array([0.5])).tolist() == [1]


def test_epo_penalty_has_a_gradient_and_the_released_one_has_none():
    h = torch.tensor([0.2, 0.5, 0.9, 0.1], dtype=F64, requires_grad=True)
    history = torch.tensor([0.5, 0.5, 0.5, float("nan")], dtype=F64)
    entropy.epo_penalty_rows(h, history).sum().backward()
    close(grad_of(h), [-0.05, 0, 0.05, 0])
    metric = entropy.epo_release_penalty(h, history)
    assert not metric.requires_grad
    assert float(metric) == 0.5
    with pytest.raises(ValueError, match="history has shape"):
        entropy.epo_penalty_rows(h, history[:2])
    with pytest.raises(ValueError, match="epochs is 0"):
        entropy.epo_weight(1, epochs=0)


# Values and regression -----------------------------------------------------------------------------------------------


def test_value_loss_weights_and_variance():
    value, target = np.array([1.0, np.nan]), np.array([2.0, 1.0])
    assert value_losses.value_loss_rows(value, target, clip=None, weight=np.array([1.0, 0.0])).tolist() == [0.5, 0]
    old = np.array([1.0, np.nan])
    got = value_losses.value_loss_rows(value, target, old_value=old, weight=np.array([2.0, 0.0]))
    assert got.tolist() == [1.0, 0]
    with pytest.raises(ValueError, match="old_value is missing"):
        value_losses.value_loss_rows(value, target)
    x, y = np.random.default_rng(0).normal(size=(2, 30))
    mask = np.arange(30) < 20
    want = 1 - np.var(y[:20] - x[:20]) / np.var(y[:20])
    assert float(both(lambda a, b, m: value_losses.explained_variance(a, b, mask=m), x, y, mask)) == pytest.approx(want)
    assert float(value_losses.explained_variance(x, np.ones(30))) == 0


def test_weighted_regression_losses_equal_their_loops():
    rng = np.random.default_rng(0)
    logp, ref, a = rng.normal(-1, 0.5, 12), rng.normal(-1, 0.5, 12), rng.normal(size=12)
    mask = rng.random(12) < 0.7
    want = [
        -max(x, 0) * min(max(math.exp(p - q), 0.8), 1.2) * p if m else 0.0 for p, q, x, m in zip(logp, ref, a, mask)
    ]
    close(both(lambda p, q, x, m: zoo_regression.a_lol_rows(p, q, x, mask=m), logp, ref, a, mask), want)
    want = [-min(math.exp(x / 0.3), 20) * p if m else 0.0 for p, x, m in zip(logp, a, mask)]
    close(both(lambda p, x, m: regression.awr_rows(p, x, mask=m, beta=0.3), logp, a, mask), want)
    weight = both(lambda x, m: regression.awr_weight(x, mask=m, softmax=True), a, mask)
    total = sum(math.exp(x) for x, m in zip(a, mask) if m)
    close(weight, [mask.sum() * math.exp(x) / total if m else 0 for x, m in zip(a, mask)])
    assert regression.awr_weight(np.array([1e6])).tolist() == [20]
    with pytest.raises(ValueError, match="beta is 0"):
        regression.awr_weight(a, beta=0)
    score = (a > 0).astype(float)
    want = [(-0.1 * p if s else p) if m else 0.0 for p, s, m in zip(logp, score, mask)]
    close(both(lambda p, s, m: zoo_regression.sign_weighted_rows(p, s, mask=m), logp, score, mask), want)
    with pytest.raises(ValueError, match=r"score at row 1 is 0\.5"):
        zoo_regression.sign_weighted_rows(logp[:2], np.array([1, 0.5]))
    with pytest.raises(ValueError, match="eta is 0"):
        zoo_regression.pair_regression(a, a, eta=0)
    with pytest.raises(ValueError, match="reward has shape"):
        zoo_regression.refuel_loss(logp, ref, np.zeros(12, int), mask, a)


def test_rover_target_stops_at_the_episode_end():
    q, mean_q = np.array([0.5, 0.2, 0.1]), np.array([9.0, 0.4, 0.3])
    got = both(zoo_regression.rover_rows, q, mean_q, np.array([0.1, 0.2, 0.3]), np.array([0, 0, 1]))
    close(got, [(0.5 - 0.1 - 0.4) ** 2, 0, (0.1 - 0.3) ** 2], atol=1e-15)
    leaf = torch.tensor(q, requires_grad=True)
    other = torch.tensor(mean_q, requires_grad=True)
    zoo_regression.rover_rows(leaf, other, torch.zeros(3, dtype=F64), torch.tensor([0, 0, 1])).sum().backward()
    assert other.grad is None


def test_pacs_gradient_respects_the_mask():
    leaf = torch.tensor([0.1, float("nan"), 0.3], requires_grad=True)
    mask = torch.tensor([True, False, True])
    logit = zoo_regression.pacs_logit(
        leaf, torch.zeros(3), torch.tensor([0, 0, 1]), torch.tensor([5, 5]), beta=2.0, mask=mask
    )
    # Totals .2 and .6: leave-one-out ∓.4.
    close(logit.detach(), [-0.4, 0.4], rtol=1e-6)
    zoo_regression.pacs_loss(logit, torch.tensor([1, 0])).sum().backward()
    assert leaf.grad is not None
    assert leaf.grad[1] == 0
    assert torch.isfinite(leaf.grad).all()
    assert zoo_regression.pacs_logit(np.array([1.0]), np.array([0.0]), np.array([0]), np.array([3])).tolist() == [0]


def test_filtered_resampling():
    score = np.array([1.0, -2.0, 0.0, np.nan])
    close(both(zoo_regression.pf_weight, score), [0.2, 0.8, 0, 0])
    close(zoo_regression.pf_weight(score, "max_min"), [0.5, 0.5, 0, 0])
    close(zoo_regression.pf_weight(score, "max_random"), [0.4 / 0.6, 0.1 / 0.6, 0.1 / 0.6, 0])
    assert abs(zoo_regression.pf_weight(score, "max_random").sum() - 1.0) < 1e-15
    close(zoo_regression.pf_weight(np.zeros(2)), [0.5, 0.5])
    index = zoo_regression.resample(torch.tensor([0.0, 1.0, 0.0]), 5, generator=np.random.default_rng(0))
    assert index.tolist() == [1] * 5
    counts = np.bincount(zoo_regression.resample(np.array([1.0, 3.0]), 4000, generator=np.random.default_rng(0)))
    assert counts[1] / 4000 == pytest.approx(0.75, abs=0.03)
    with pytest.raises(ValueError, match="all weights are 0"):
        zoo_regression.resample(np.zeros(2), 1, generator=np.random.default_rng(0))
