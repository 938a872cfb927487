"""Row losses, ratios and importance weights against loops, finite differences and their own promises."""

import math

import numpy as np
import pytest
import torch

from robot_rl.advantage import entropy, importance, kl, losses, ratios, regression, value_losses
from tests.advantage.ragged import both

close = np.testing.assert_allclose
F64 = torch.float64


@pytest.fixture
def batch():
    """Three episodes of three rows as (B, T): log-probabilities, advantages (equal per episode), a mask."""
    rng = np.random.default_rng(3)
    logp = rng.normal(-1, 0.4, (3, 3))
    return {
        "logp": logp,
        "old": logp + rng.normal(0, 0.3, (3, 3)),
        "advantage": np.repeat(rng.normal(0, 1, (3, 1)), 3, axis=1),
        "mask": np.array([[1, 1, 1], [1, 0, 1], [1, 1, 0]], bool),
    }


def ppo_loop(ratio, a, low, high, dual=None, delta=None):
    free = ratio if delta is None else min(ratio, delta)
    loss = -min(free * a, min(max(ratio, 1 - low), 1 + high) * a)
    return min(loss, -dual * a) if dual is not None and a < 0 else loss


@pytest.mark.parametrize("seed", range(3))
def test_ppo_family_equals_its_loop(seed):
    rng = np.random.default_rng(seed)
    ratio, a = np.exp(rng.normal(0, 0.6, 40)), rng.normal(size=40)
    for dual, delta in ((None, None), (3.0, None), (None, 1.5), (2.0, 4.0)):
        got = both(losses.ppo_rows, ratio, a, clip=(0.2, 0.3), dual_clip=dual, delta=delta)
        close(got, [ppo_loop(r, x, 0.2, 0.3, dual, delta) for r, x in zip(ratio, a)])
    # The value of aepo is that of ppo; only its gradient differs.
    close(both(losses.aepo_rows, ratio, a, clip=0.2), [ppo_loop(r, x, 0.2, 0.2) for r, x in zip(ratio, a)])
    logp = rng.normal(-1, 1, 40)
    want = [-min(max(r, 0.0), 5.0) * x * p for r, x, p in zip(ratio, a, logp)]
    close(both(losses.cispo_rows, logp, ratio, a), want)
    tau = [1.0 if x > 0 else 1.05 for x in a]
    want = [-4 / t / (1 + math.exp(-t * (r - 1))) * x for t, r, x in zip(tau, ratio, a)]
    close(both(losses.sapo_rows, ratio, a), want)
    close(both(losses.reinforce_rows, logp, a), -a * logp)


def test_sequence_units_equal_their_loop(batch):
    step = batch["logp"] - batch["old"]
    for unit in ("sequence", "sequence_geo"):
        got = both(lambda x, m, u=unit: ratios.unit_log_ratio(x, u, mask=m), step, batch["mask"])
        for i in range(3):
            mine = step[i][batch["mask"][i]]
            close(got[i], mine.sum() if unit == "sequence" else mine.mean())
    turn = np.array([[0, 0, 1], [0, 1, 1], [-1, 0, 0]])
    for unit in ("turn", "turn_geo"):
        got = both(lambda x, t, m, u=unit: ratios.unit_log_ratio(x, u, turn=t, mask=m), step, turn, batch["mask"])
        for i in range(3):
            for j in range(3):
                rows = [k for k in range(3) if turn[i, k] == turn[i, j] and batch["mask"][i, k]]
                values = [step[i, k] for k in rows]
                want = 0.0 if turn[i, j] == -1 or not rows else sum(values) / (len(rows) if "geo" in unit else 1)
                assert got[i, j] == pytest.approx(want)
    assert ratios.unit_log_ratio(step, "step") is step
    flat = ratios.unit_log_ratio(step.ravel(), "sequence", episode=np.repeat([4, 9, 2], 3), mask=batch["mask"].ravel())
    close(flat.reshape(3, 3), ratios.unit_log_ratio(step, "sequence", mask=batch["mask"]))
    fragments = ratios.unit_log_ratio(step, "sequence", episode=np.array([1, 1, 2]))
    close(fragments[0], step[:2].sum())
    by_turn = ratios.unit_log_ratio(step.ravel(), "turn", turn=np.arange(9) // 2)
    close(by_turn[8], step.ravel()[8])


def test_ratio_is_clamped_and_clean_below_the_mask():
    logp, old = np.array([50.0, np.nan]), np.array([0.0, 1.0])
    mask = np.array([True, False])
    assert ratios.log_ratio(logp, old, mask=mask).tolist() == [20.0, 0.0]
    assert ratios.policy_ratio(logp, old, mask=mask)[1] == 1.0
    with pytest.raises(ValueError, match="old_logp has shape"):
        ratios.log_ratio(logp, old[:1])
    with pytest.raises(ValueError, match="ratio_unit is 'chunk'"):
        ratios.unit_log_ratio(logp, "chunk")
    with pytest.raises(ValueError, match="flat rows need the episode id"):
        ratios.unit_log_ratio(logp, "sequence")
    with pytest.raises(ValueError, match="turn is missing"):
        ratios.unit_log_ratio(logp, "turn")
    with pytest.raises(ValueError, match="episode has shape"):
        ratios.unit_log_ratio(logp, "sequence", episode=np.zeros(3, int))


def test_unequal_advantages_of_a_unit_are_averaged_and_counted(batch):
    advantage = np.array([[1.0, 3.0, 9.0], [2, 2, 2]])
    mask = np.array([[1, 1, 0], [1, 1, 1]], bool)
    got, unequal = both(lambda a, m: ratios.unit_advantage(a, "sequence", mask=m), advantage, mask)
    assert got.tolist() == [[2, 2, 2], [2, 2, 2]]
    assert unequal == 1
    same, none = ratios.unit_advantage(advantage)
    assert same is advantage
    assert none == 0


@pytest.mark.parametrize("kind", ["ppo", "gspo", "gmpo", "cispo", "sapo", "aepo", "reinforce"])
def test_policy_loss_of_every_kind_is_the_mean_of_its_rows(kind, batch):
    clip = {"gspo": (3e-4, 4e-4), "gmpo": 0.4, "cispo": (1.0, 4.0)}.get(kind, 0.2)
    got = both(lambda p, o, a, m: losses.policy_loss(p, o, a, mask=m, kind=kind), *batch.values())
    total = 0.0
    for i in range(3):
        rows = np.flatnonzero(batch["mask"][i])
        step = (batch["logp"] - batch["old"])[i]
        for t in rows:
            a, ratio, p = batch["advantage"][i, t], math.exp(step[t]), batch["logp"][i, t]
            if kind == "gspo":
                total += ppo_loop(math.exp(step[rows].mean()), a, *clip)
            elif kind == "gmpo":
                kept = [min(s, 0.4) if a >= 0 else max(s, -0.4) for s in step[rows]]
                total += -a * math.exp(sum(kept) / len(kept))
            elif kind == "cispo":
                total += -min(ratio, 5.0) * a * p
            elif kind == "sapo":
                tau = 1.0 if a > 0 else 1.05
                total += -4 / tau / (1 + math.exp(-tau * (ratio - 1))) * a
            elif kind == "reinforce":
                total += -a * p
            else:
                total += ppo_loop(ratio, a, clip, clip)
    assert float(got) == pytest.approx(total / batch["mask"].sum())


def finite_difference(function, x, step=1e-6):
    grad = np.zeros_like(x)
    for i in np.ndindex(*x.shape):
        up, down = x.copy(), x.copy()
        up[i] += step
        down[i] -= step
        grad[i] = (float(function(up)) - float(function(down))) / (2 * step)
    return grad


def gradient(function, x):
    leaf = torch.tensor(x, dtype=F64, requires_grad=True)
    function(leaf).backward()
    assert leaf.grad is not None
    return leaf.grad.numpy()


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("ppo", {}),
        ("ppo", {"dual_clip": 1.3}),
        ("ppo", {"delta": 1.2}),
        ("ppo", {"ratio_unit": "sequence"}),
        ("gspo", {}),
        ("gmpo", {}),
        ("sapo", {}),
    ],
)
def test_gradient_equals_finite_differences(kind, options, batch):
    rest = (batch["old"], batch["advantage"])

    def numpy_loss(x):
        return losses.policy_loss(x, *rest, mask=batch["mask"], kind=kind, **options)

    def torch_loss(x):
        old, a = (torch.from_numpy(r) for r in rest)
        return losses.policy_loss(x, old, a, mask=torch.from_numpy(batch["mask"]), kind=kind, **options)

    got = gradient(torch_loss, batch["logp"])
    close(got, finite_difference(numpy_loss, batch["logp"]), atol=1e-7)
    assert (got[~batch["mask"]] == 0).all()


def test_detached_parts_have_no_gradient(batch):
    old, a = torch.from_numpy(batch["old"]), torch.from_numpy(batch["advantage"])
    leaf = torch.tensor(batch["logp"], requires_grad=True)
    # cispo: the gradient is -clip(r)·A / n, as if the weight were a constant.
    losses.policy_loss(leaf, old, a, kind="cispo").backward()
    close(leaf.grad, -np.clip(np.exp(batch["logp"] - batch["old"]), 0, 5) * batch["advantage"] / 9)
    # Everything but logp is detached, even if it asks for a gradient.
    others = [t.clone().requires_grad_() for t in (old, a, old + 0.1)]
    weight = torch.ones_like(old).requires_grad_()
    loss = losses.decoupled_policy_loss(leaf, others[0], others[2], others[1], cap=2.0, w_mode="clamp")
    (loss + losses.policy_loss(leaf, others[0], others[1], weight=weight)).backward()
    assert all(t.grad is None for t in (*others, weight))


def test_aepo_keeps_the_gradient_above_the_bound():
    leaf = torch.tensor([1.0, 1.0], dtype=F64, requires_grad=True)
    losses.policy_loss(leaf, torch.zeros(2, dtype=F64), torch.tensor([1.0, -1.0]), kind="aepo").backward()
    # Ratio e > 1.2 with A = 1: value 1.2, gradient 1.2·grad(logp), over two rows. A = -1: unclipped, gradient e.
    close(leaf.grad, [-0.6, math.e / 2])
    flat = torch.tensor([1.0, 1.0], dtype=F64, requires_grad=True)
    losses.policy_loss(flat, torch.zeros(2, dtype=F64), torch.tensor([1.0, -1.0])).backward()
    close(flat.grad, [0, math.e / 2])


def test_nan_below_the_mask_does_not_poison_value_or_gradient():
    logp = torch.tensor([[0.1, float("nan")]], requires_grad=True)
    old = torch.tensor([[0.0, float("nan")]])
    advantage = torch.tensor([[1.0, float("nan")]])
    mask = torch.tensor([[True, False]])
    for kind in ("ppo", "gspo", "gmpo", "cispo", "sapo", "aepo", "reinforce"):
        leaf = logp.detach().clone().requires_grad_()
        loss = losses.policy_loss(leaf, old, advantage, mask=mask, kind=kind, clip=0.5)
        loss.backward()
        assert torch.isfinite(loss)
        assert leaf.grad is not None
        assert torch.isfinite(leaf.grad).all()
        assert leaf.grad[0, 1] == 0


def test_single_clip_setting_sets_both_sides():
    ratio, a = np.array([1.5, 0.5]), np.array([1.0, -1.0])
    assert losses.ppo_rows(ratio, a, clip=0.1).tolist() == [-1.1, 0.9]
    assert losses.clip_bounds(0.3) == (0.3, 0.3)
    with pytest.raises(ValueError, match="widths >= 0"):
        losses.clip_bounds((0.2, -0.1))


def test_decoupled_weight_is_applied_without_extra_options():
    logp, prox, behaviour, a = (np.array([v]) for v in (0.0, 0.0, -0.5, 1.0))
    # Ratio to proximal 1, weight e^.5.
    assert float(losses.decoupled_policy_loss(logp, prox, behaviour, a)) == pytest.approx(-math.exp(0.5))


def test_wrong_loss_options_are_refused(batch):
    x = batch["logp"]
    for options, message in (
        ({"kind": "trpo"}, "kind is 'trpo'"),
        ({"kind": "sapo", "dual_clip": 3.0}, "belong to 'ppo'"),
        ({"kind": "gspo", "ratio_unit": "step"}, "defined on 'sequence_geo'"),
        ({"dual_clip": 0.5}, "dual_clip is 0.5"),
        ({"aggregation": "const"}, "max_length is None"),
        ({"aggregation": "sum"}, "mode is 'sum'"),
        ({"mask": np.ones((3, 2), bool)}, "mask has shape"),
    ):
        with pytest.raises(ValueError, match=message):
            losses.policy_loss(x, x, x, **options)
    with pytest.raises(ValueError, match="advantage has shape"):
        losses.policy_loss(x, x, x[:2])
    with pytest.raises(ValueError, match="temperatures"):
        losses.sapo_rows(x, x, tau_positive=0.0)


def test_metrics_by_hand():
    logp, old = np.log(np.array([1.5, 0.5, 4.0, 1.0])), np.zeros(4)
    a, mask = np.array([1.0, -1.0, -2.0, 9.0]), np.array([1, 1, 1, 0], bool)
    got = losses.policy_metrics(logp, old, a, mask=mask, clip=0.2, dual_clip=3.0)
    want = {
        "ratio_max": 4.0,
        "clip_low_fraction": 1 / 3,
        "clip_high_fraction": 1 / 3,
        "clip_dual_fraction": 1 / 3,
        "advantage_mean": -2 / 3,
        "advantage_std": np.std([1, -1, -2], ddof=1),
        "advantage_max": 2.0,
        "mask_share": 0.75,
        "unequal_units": 0.0,
    }
    assert {k: float(v) for k, v in got.items()} == pytest.approx(want)


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
    assert kl.kl_reward(reward, logp, ref, 0.1, mask=mask).tolist() == [0.95, 0.0]
    assert kl.kl_reward(reward, logp, None, 0.0) is reward
    for kind in ("k2", "k3", "k3+"):
        with pytest.raises(ValueError, match="biased as a reward"):
            kl.kl_reward(reward, logp, ref, 0.1, kind=kind)
    assert kl.kl_loss_rows(logp, None, 0.0).tolist() == [0, 0]
    close(kl.kl_loss_rows(logp, ref, 0.1, mask=mask, ratio=np.array([2.0, 1.0])), [0.1 * 0.125 * 2, 0])
    with pytest.raises(ValueError, match="run the reference policy"):
        kl.kl_loss_rows(logp, None, 0.1)
    with pytest.raises(ValueError, match="kind is 'k4'"):
        kl.kl_rows(logp, ref, "k4")
    got = kl.kl_metrics(np.array([0.0, 30.0, -9.0]), np.array([-0.3, 0.0, 0.0]), mask=np.array([1, 1, 0], bool))
    assert {k: float(v) for k, v in got.items()} == pytest.approx(
        {"k1": 10.15, "k2": (0.045 + 200) / 2, "k3": (0.0408182 + 10) / 2, "clamped_fraction": 0.5}, rel=1e-5
    )


def test_distribution_divergence():
    p, q = np.array([[0.5, 0.5, 0.0]]), np.array([[0.25, 0.5, 0.25]])
    with np.errstate(divide="ignore"):
        got = both(kl.distribution_kl, np.log(p), np.log(q))
    close(got, [0.5 * math.log(2)])
    with pytest.raises(ValueError, match="teacher_log_prob has shape"):
        kl.distribution_kl(p, q[0])


# Importance weights --------------------------------------------------------------------------------------------------


def test_masks_against_the_behaviour_policy():
    prox = np.zeros((3, 2))
    behaviour = np.array([[0.1, -0.1], [10.0, 0.0], [0.0, 0.0]])
    mask = np.array([[1, 1], [1, 1], [1, 0]], bool)
    weight = importance.importance_weight(prox, behaviour, mode="none", mask=mask)
    got = both(lambda w, m: importance.veto_mask(w, mask=m), weight, mask)
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
        kept = both(lambda p, b, m, o=options: importance.rejection_mask(p, b, mask=m, **o), prox, behaviour, mask)
        assert kept.tolist() == (mask & np.array(keep, bool)[:, None]).tolist()


def test_unrecorded_behaviour_falls_back_to_weight_one():
    prox, behaviour = np.full((2, 2), -1.0), np.array([[0.0, 0.0], [-1.0, -2.0]])
    got = importance.importance_weight(prox, behaviour, mode="clamp", cap=1.0, zero_fallback=True)
    assert got.tolist() == [[1, 1], [1, 1]]
    got = importance.importance_weight(prox, behaviour, mode="none", zero_fallback=True)
    close(got, [[1, 1], [1, math.e]])


def test_bounds_and_sample_size_edges():
    with pytest.raises(ValueError, match="cap is 0.5"):
        importance.bounded_weight(np.ones(1), "mask", cap=0.5, floor=1.0)
    with pytest.raises(ValueError, match="mode is 'crop'"):
        importance.bounded_weight(np.ones(1), "crop")
    assert importance.effective_sample_size(np.zeros(3)) == 0
    assert importance.effective_sample_size(np.array([2.0, 2.0, 7.0]), np.array([1, 1, 0], bool)) == 2
    with pytest.raises(ValueError, match="tau is -1"):
        importance.m2po_mask(np.zeros(2), tau=-1)


@pytest.mark.parametrize("seed", range(3))
def test_m2po_equals_dropping_one_by_one(seed):
    rng = np.random.default_rng(seed)
    step, mask = rng.normal(0, 0.3, 30), rng.random(30) < 0.8
    kept = set(np.flatnonzero(mask))
    while kept and np.mean([step[i] ** 2 for i in kept]) > 0.04:
        kept.remove(max(kept, key=lambda i: step[i] ** 2))
    got = both(lambda s, m: importance.m2po_mask(s, mask=m), step, mask)
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
    close(h.grad, [-0.05, 0, 0.05, 0])
    metric = entropy.epo_release_penalty(h, history)
    assert not metric.requires_grad
    assert float(metric) == 0.5
    with pytest.raises(ValueError, match="history has shape"):
        entropy.epo_penalty_rows(h, history[:2])
    with pytest.raises(ValueError, match="epochs is 0"):
        entropy.epo_weight(1, epochs=0)


def test_entropy_bonus_lowers_the_loss_of_the_masked_rows():
    got = entropy.entropy_bonus_rows(np.array([0.5, np.nan]), 0.1, mask=np.array([True, False]))
    close(got, [-0.05, 0])
    close(entropy.entropy_bonus_rows(torch.ones(2), 0.1), [-0.1, -0.1])


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
    close(both(lambda p, q, x, m: regression.a_lol_rows(p, q, x, mask=m), logp, ref, a, mask), want)
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
    close(both(lambda p, s, m: regression.sign_weighted_rows(p, s, mask=m), logp, score, mask), want)
    with pytest.raises(ValueError, match=r"score at row 1 is 0\.5"):
        regression.sign_weighted_rows(logp[:2], np.array([1, 0.5]))
    with pytest.raises(ValueError, match="eta is 0"):
        regression.pair_regression(a, a, eta=0)
    with pytest.raises(ValueError, match="reward has shape"):
        regression.refuel_loss(logp, ref, np.zeros(12, int), mask, a)


def test_rover_target_stops_at_the_episode_end():
    q, mean_q = np.array([0.5, 0.2, 0.1]), np.array([9.0, 0.4, 0.3])
    got = both(regression.rover_rows, q, mean_q, np.array([0.1, 0.2, 0.3]), np.array([0, 0, 1]))
    close(got, [(0.5 - 0.1 - 0.4) ** 2, 0, (0.1 - 0.3) ** 2], atol=1e-15)
    leaf = torch.tensor(q, requires_grad=True)
    other = torch.tensor(mean_q, requires_grad=True)
    regression.rover_rows(leaf, other, torch.zeros(3, dtype=F64), torch.tensor([0, 0, 1])).sum().backward()
    assert other.grad is None


def test_pacs_gradient_respects_the_mask():
    leaf = torch.tensor([0.1, float("nan"), 0.3], requires_grad=True)
    mask = torch.tensor([True, False, True])
    logit = regression.pacs_logit(
        leaf, torch.zeros(3), torch.tensor([0, 0, 1]), torch.tensor([5, 5]), beta=2.0, mask=mask
    )
    # Totals .2 and .6: leave-one-out ∓.4.
    close(logit.detach(), [-0.4, 0.4], rtol=1e-6)
    regression.pacs_loss(logit, torch.tensor([1, 0])).sum().backward()
    assert leaf.grad is not None
    assert leaf.grad[1] == 0
    assert torch.isfinite(leaf.grad).all()
    assert regression.pacs_logit(np.array([1.0]), np.array([0.0]), np.array([0]), np.array([3])).tolist() == [0]


def test_filtered_resampling():
    score = np.array([1.0, -2.0, 0.0, np.nan])
    close(both(regression.pf_weight, score), [0.2, 0.8, 0, 0])
    close(regression.pf_weight(score, "max_min"), [0.5, 0.5, 0, 0])
    close(regression.pf_weight(score, "max_random"), [0.4 / 0.6, 0.1 / 0.6, 0.1 / 0.6, 0])
    close(regression.pf_weight(np.zeros(2)), [0.5, 0.5])
    index = regression.resample(torch.tensor([0.0, 1.0, 0.0]), 5, generator=np.random.default_rng(0))
    assert index.tolist() == [1] * 5
    counts = np.bincount(regression.resample(np.array([1.0, 3.0]), 4000, generator=np.random.default_rng(0)))
    assert counts[1] / 4000 == pytest.approx(0.75, abs=0.03)
    with pytest.raises(ValueError, match="all weights are 0"):
        regression.resample(np.zeros(2), 1, generator=np.random.default_rng(0))
