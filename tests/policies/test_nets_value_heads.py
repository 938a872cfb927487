"""Value heads: golden numbers, edges, gradients, automatic support."""

import math

import pytest
import torch

from robot_rl.policies.nets.value_heads import (
    C51Head,
    CategoricalHead,
    QuantileHead,
    RewardScale,
    build_head,
    hl_gauss_head,
    symexp,
    symlog,
    two_hot_head,
)


def test_hl_gauss_golden_numbers():
    # y = .3 on [-2, 2], 4 bins of width 1, sigma .75: differences of the normal distribution function, computed apart
    head = hl_gauss_head(-2, 2, 4, sigma_ratio=0.75)
    p = head.spread(torch.tensor([0.3]))[0]
    torch.testing.assert_close(p, torch.tensor([0.040960, 0.306986, 0.486317, 0.165738]), atol=1e-6, rtol=0)
    assert float(p @ head.centres) == pytest.approx(0.276833, abs=1e-6)


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (0.3, [0, 0, 0.7, 0.3, 0]),
        (2.0, [0, 0, 0, 0, 1]),
        (-2.0, [1, 0, 0, 0, 0]),
        (1.0, [0, 0, 0, 1, 0]),
        (99.0, [0, 0, 0, 0, 1]),
        (-99.0, [1, 0, 0, 0, 0]),
    ],
)
def test_two_hot_golden_numbers(target, expected):
    p = two_hot_head(-2, 2, 5).spread(torch.tensor([target]))[0]
    torch.testing.assert_close(p, torch.tensor(expected, dtype=torch.float32), atol=1e-6, rtol=0)


@pytest.mark.parametrize("kind", ["twohot", "hlgauss"])
def test_categorical_target_far_outside_still_has_mass_one_and_a_gradient(kind):
    head = build_head(kind, low=-1.0, high=1.0, bins=11)
    assert isinstance(head, CategoricalHead)
    p = head.spread(torch.tensor([1e6, -1e6, 0.5]))
    torch.testing.assert_close(p.sum(-1), torch.ones(3))
    out = torch.zeros(1, 3, 11, requires_grad=True)
    (grad,) = torch.autograd.grad(head.loss(out, torch.tensor([1e6, -1e6, 0.5])), out)
    assert bool((grad.abs().sum(-1) > 0.1).all())


def test_hl_gauss_mean_is_nearly_unbiased_inside():
    # ratio .75 on [-10, 10] with 101 bins: bias below 1e-6 in exact arithmetic; float32 erf adds some 1e-6
    head = hl_gauss_head(-10, 10, 101)
    y = torch.linspace(-8, 8, 77)
    assert float((head.spread(y) @ head.centres - y).abs().max()) < 1e-5


@pytest.mark.parametrize("kind", ["mse", "twohot", "hlgauss", "c51", "quantile"])
def test_rows_weigh_in_the_loss(kind):
    head = build_head(kind, low=-3.0, high=3.0, bins=9)
    out, target = torch.randn(2, 6, head.outputs), torch.randn(6)
    weight = torch.tensor([0.0, 2.0, 0.0, 0.0, 0.0, 4.0])
    alone = [head.loss(out[:, i : i + 1], target[i : i + 1]) for i in (1, 5)]
    torch.testing.assert_close(head.loss(out, target, weight), (2.0 * alone[0] + 4.0 * alone[1]) / 6)


def test_cross_entropy_minimum_says_the_target():
    head = two_hot_head(-2.0, 2.0, 5)
    p = head.spread(torch.tensor([0.3]))
    assert float(head.value((p + 1e-9).log()[None])[0, 0]) == pytest.approx(0.3, abs=1e-5)


def test_diagnostics_count_clamped_targets_and_edge_mass():
    head = build_head("twohot", low=-1.0, high=1.0, bins=4)
    signs = head.diagnostics(torch.zeros(1, 4, 4), torch.tensor([0.0, 2.0, 0.5, -3.0]))
    assert float(signs["head_clamped"]) == 0.5  # two of four
    assert float(signs["head_edge_mass"]) == pytest.approx(0.5)  # uniform over four bins: two are ends


def test_reward_scale_endless_reward_fits_the_support():
    # |r| = 2 for ever at gamma .99: |return| = 200, with headroom 2 the scale is 400 / 5
    scale = RewardScale(5.0)
    scale.observe(torch.full((64,), -2.0), torch.full((64,), 0.99))
    assert scale.scale == pytest.approx(80.0, rel=1e-4)


def test_reward_scale_knows_terminations():
    # reward 1 on the last of 50 steps, which terminates: E|r| = .02, E(1 - discount) = (49 * .01 + 1) / 50 = .0298,
    # so E|G| = .671; times 2 = 1.342 beats the largest reward 1
    reward, discount = torch.zeros(50), torch.full((50,), 0.99)
    reward[-1], discount[-1] = 1.0, 0.0
    scale = RewardScale(5.0)
    scale.observe(reward, discount)
    assert scale.scale == pytest.approx(2 * 0.02 / 0.0298 / 5, rel=1e-3)


def test_reward_scale_without_reward_stays_positive():
    scale = RewardScale(5.0)
    scale.observe(torch.zeros(8), torch.full((8,), 0.99))
    assert scale.scale > 0
    assert math.isfinite(1 / scale.scale)


def test_unknown_head_and_empty_support_are_refused():
    with pytest.raises(ValueError, match="mse, twohot, hlgauss"):
        build_head("c52", low=0.0, high=1.0)
    with pytest.raises(ValueError, match="low < high"):
        build_head("twohot", low=1.0, high=1.0)


def test_c51_projection_golden_numbers():
    # z = -1, -.5, 0, .5, 1; r .5, gamma .9: mean .5 before clamping, .46 after
    head = build_head("c51", low=-1.0, high=1.0, bins=5)
    assert isinstance(head, C51Head)
    p = head.project(torch.tensor([[0.1, 0.2, 0.4, 0.2, 0.1]]), torch.tensor([0.5]), torch.tensor([0.9]))
    torch.testing.assert_close(p, torch.tensor([[0, 0.08, 0.2, 0.44, 0.28]]), atol=1e-6, rtol=0)
    assert head.scalar(p).item() == pytest.approx(0.46)


@pytest.mark.parametrize("reward", [-1.0, -0.5, 0.0, 0.5, 1.0, 7.0, -7.0])
def test_c51_keeps_all_mass_on_atoms_edges_and_outside(reward):
    """An integer position loses its mass in the naive floor / ceil form (both weights are zero)."""
    head = build_head("c51", low=-1.0, high=1.0, bins=5)
    assert isinstance(head, C51Head)
    p = head.project(torch.full((1, 5), 0.2), torch.tensor([reward]), torch.zeros(1))
    assert float(p.sum()) == pytest.approx(1.0)
    assert head.scalar(p).item() == pytest.approx(min(max(reward, -1.0), 1.0))


def test_c51_of_twins_takes_the_distribution_with_the_smaller_mean_of_each_row():
    head = build_head("c51", low=-1.0, high=1.0, bins=3)
    out = torch.full((2, 2, 3), -20.0)
    out[0, 0, 0] = out[1, 0, 2] = out[0, 1, 2] = out[1, 1, 1] = 20.0
    zero, one = torch.zeros(2), torch.ones(2)
    torch.testing.assert_close(head.backup(out, zero, one), torch.tensor([[1.0, 0, 0], [0, 1.0, 0]]))
    torch.testing.assert_close(head.scalar(head.backup(out, zero, one, reduce="mean")), torch.tensor([0.0, 0.5]))
    torch.testing.assert_close(
        head.scalar(head.backup(out, zero, one, torch.tensor([0.0, 0.5]))), torch.tensor([-1.0, -0.5])
    )


def test_scalar_heads_take_the_minimum_of_values_before_projecting():
    head = build_head("mse", low=0, high=0)
    out = torch.tensor([[[3.0]], [[1.0]]])
    target = head.backup(out, torch.tensor([0.5]), torch.tensor([0.9]), torch.tensor([0.2]))
    assert target.item() == pytest.approx(0.5 + 0.9 * 0.8)
    ended = head.backup(out, torch.tensor([0.5]), torch.tensor([0.0]))
    assert ended.item() == pytest.approx(0.5)


def test_quantile_head_learns_the_quantiles_of_noise():
    head, out = QuantileHead(5), torch.zeros(1, 256, 5)
    generator = torch.Generator().manual_seed(0)
    theta = torch.zeros(5)
    for _ in range(3000):
        leaf = theta.clone().requires_grad_()
        loss = head.loss(out + leaf, torch.randn(256, generator=generator) * 10.0)
        theta -= 0.5 * torch.autograd.grad(loss, leaf)[0]
    normal = torch.distributions.Normal(0.0, 10.0)
    torch.testing.assert_close(theta, normal.icdf(head.midpoint), atol=1.0, rtol=0)


def test_symlog_golden_numbers_and_inverse():
    x = torch.tensor([10.0, -1000.0, 0.0])
    torch.testing.assert_close(symlog(x), torch.tensor([2.397895, -6.908755, 0.0]), atol=1e-6, rtol=0)
    torch.testing.assert_close(symexp(symlog(x)), x, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["twohot", "hlgauss"])
def test_symlog_head_reads_back_large_values(kind):
    head = build_head(kind, low=-10.0, high=10.0, bins=101, symlog=True)
    assert isinstance(head, CategoricalHead)
    y = torch.tensor([500.0, -3.0, 0.0])
    torch.testing.assert_close(head.value(head.spread(y).clamp_min(1e-30).log()[None])[0], y, rtol=2e-3, atol=2e-3)
