"""Row losses and ratios against loops, finite differences and their own promises."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from robot_rl.advantage import ClipRange, RowIds, losses, ratios
from tests.advantage.ragged import both, grad_of

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
        got = both(losses.ppo_rows, ratio, a, clip=ClipRange((0.2, 0.3), dual, delta))
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
    assert np.shares_memory(ratios.unit_log_ratio(step, "step"), step)
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
    assert ratios.log_ratio(logp, old, mask=mask)[1] == 0.0
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
    assert np.shares_memory(same, advantage)
    assert none == 0


@pytest.mark.parametrize("kind", ["ppo", "gspo", "gmpo", "cispo", "sapo", "aepo", "reinforce"])
def test_policy_loss_of_every_kind_is_the_mean_of_its_rows_or_sequences(kind, batch):
    clip = {"gspo": (3e-4, 4e-4), "gmpo": 0.4, "cispo": (1.0, 4.0)}.get(kind, 0.2)
    got = both(lambda p, o, a, m: losses.policy_loss(p, o, a, mask=m, kind=kind), *batch.values())
    total, count = 0.0, 3 if kind in ("gspo", "gmpo") else batch["mask"].sum()
    for i in range(3):
        rows = np.flatnonzero(batch["mask"][i])
        sequence = 0.0
        step = (batch["logp"] - batch["old"])[i]
        for t in rows:
            a, ratio, p = batch["advantage"][i, t], math.exp(step[t]), batch["logp"][i, t]
            if kind == "gspo":
                sequence = ppo_loop(math.exp(step[rows].mean()), a, *clip)
            elif kind == "gmpo":
                kept = [min(s, 0.4) if a >= 0 else max(s, -0.4) for s in step[rows]]
                sequence = -a * math.exp(sum(kept) / len(kept))
            elif kind == "cispo":
                total += -min(ratio, 5.0) * a * p
            elif kind == "sapo":
                tau = 1.0 if a > 0 else 1.05
                total += -4 / tau / (1 + math.exp(-tau * (ratio - 1))) * a
            elif kind == "reinforce":
                total += -a * p
            else:
                total += ppo_loop(ratio, a, clip, clip)
        total += sequence
    assert float(got) == pytest.approx(total / count)


def gspo_of_the_paper(logp, old, advantage, length, low, high):
    """-J of Zheng et al., equations 5 and 7: s_i = (pi(y_i) / pi_old(y_i))^(1 / |y_i|), of whole sequences, and
    J = (1 / G) sum_i min(s_i A_i, clip(s_i, 1 - low, 1 + high) A_i)."""
    total = torch.zeros((), dtype=F64)
    for i, n in enumerate(length):
        s = (logp[i, :n].sum() - old[i, :n].sum()).exp() ** (1.0 / n)
        total = total + torch.minimum(s * advantage[i], s.clamp(1 - low, 1 + high) * advantage[i])
    return -total / len(length)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("layout", ["padded", "flat"])
def test_gspo_by_default_is_the_objective_of_its_paper(seed, layout):
    """Lengths from 1 to 40: a mean over tokens would give the longest sequence forty times the weight of the shortest.
    The advantages have both signs and most ratios lie inside the clip, so that value and gradient both tell."""
    generator = torch.Generator().manual_seed(seed)
    length, width = [1, 3, 40, 11], 40
    old = torch.randn(4, width, generator=generator, dtype=F64) - 2
    logp = old + 0.2 * torch.randn(4, width, generator=generator, dtype=F64)
    advantage = torch.randn(4, generator=generator, dtype=F64)
    mask = torch.arange(width) < torch.tensor(length)[:, None]
    ours, paper = logp.clone().requires_grad_(), logp.clone().requires_grad_()
    spread = advantage[:, None].expand(4, width)
    if layout == "padded":
        loss = losses.policy_loss(ours, old, spread, mask=mask, kind="gspo", clip=(0.1, 0.15))
    else:
        episode = torch.arange(4)[:, None].expand(4, width)[mask]
        loss = losses.policy_loss(
            ours[mask], old[mask], spread[mask], kind="gspo", clip=(0.1, 0.15), ids=RowIds(episode=episode)
        )
    expected = gspo_of_the_paper(paper, old, advantage, length, 0.1, 0.15)
    (loss + 0).backward()
    expected.backward()
    assert loss.item() == pytest.approx(expected.item(), abs=1e-12)
    close(grad_of(ours), grad_of(paper), atol=1e-12)
    assert (grad_of(paper) != 0).any()
    tokens = losses.policy_loss(logp, old, spread, mask=mask, kind="gspo", clip=(0.1, 0.15), aggregation="token_mean")
    assert abs(tokens.item() - expected.item()) > 1e-3


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
        ("ppo", {"clip": ClipRange(dual=1.3)}),
        ("ppo", {"clip": ClipRange(delta=1.2)}),
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
    close(grad_of(leaf), -np.clip(np.exp(batch["logp"] - batch["old"]), 0, 5) * batch["advantage"] / 9)
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
    close(grad_of(leaf), [-0.6, math.e / 2])
    flat = torch.tensor([1.0, 1.0], dtype=F64, requires_grad=True)
    losses.policy_loss(flat, torch.zeros(2, dtype=F64), torch.tensor([1.0, -1.0])).backward()
    close(grad_of(flat), [0, math.e / 2])


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
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"kind": "trpo"}, "kind is 'trpo'"),
        ({"kind": "sapo", "clip": ClipRange(dual=3.0)}, "belong to 'ppo'"),
        ({"kind": "gspo", "ratio_unit": "step"}, "defined on 'sequence_geo'"),
        ({"aggregation": "const", "ids": RowIds(episode=np.zeros((3, 3), int))}, "max_length is None"),
        ({"aggregation": "sum"}, "mode is 'sum'"),
        ({"mask": np.ones((3, 2), bool)}, "mask has shape"),
    ]
    for options, message in wrong:
        with pytest.raises(ValueError, match=message):
            losses.policy_loss(x, x, x, **options)
    with pytest.raises(ValueError, match=r"dual is 0\.5"):
        ClipRange(dual=0.5)
    with pytest.raises(ValueError, match="advantage has shape"):
        losses.policy_loss(x, x, x[:2])
    with pytest.raises(ValueError, match="temperatures"):
        losses.sapo_rows(x, x, tau_positive=0.0)


def test_metrics_by_hand():
    logp, old = np.log(np.array([1.5, 0.5, 4.0, 1.0])), np.zeros(4)
    a, mask = np.array([1.0, -1.0, -2.0, 9.0]), np.array([1, 1, 1, 0], bool)
    got = losses.policy_metrics(logp, old, a, mask=mask, clip=ClipRange(0.2, dual=3.0))
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
