"""The squashed Gaussian against torch.distributions and autograd."""

import pytest
import torch
from torch.distributions import Normal, TransformedDistribution
from torch.distributions.transforms import TanhTransform

from robot_rl.policies.nets.distributions import squash, squash_grad


def test_log_density_equals_torch_distributions():
    torch.manual_seed(0)
    # far from saturation, where the reference itself loses digits in log(1 - a^2)
    raw = 0.5 * torch.randn(50, 6, dtype=torch.float64)
    noise = torch.randn(50, 3, dtype=torch.float64).clamp(-2, 2)
    sample = squash(raw, noise)
    mean, std = raw[:, :3], raw[:, 3:].clamp(-20, 2).exp()
    reference = TransformedDistribution(Normal(mean, std), TanhTransform(cache_size=1))
    torch.testing.assert_close(sample.action, torch.tanh(mean + std * noise))
    torch.testing.assert_close(sample.logp, reference.log_prob(sample.action).sum(-1), rtol=1e-6, atol=1e-6)


def test_log_density_is_finite_where_tanh_saturates():
    # u = 30: a is 1 to the last bit, log(1 - a^2) = 2 (log 2 - 30 - softplus(-60)) = -58.613706, N(30; 30, 1) at its
    # mean is -0.918939, so logp = 57.694767
    sample = squash(torch.tensor([[30.0, 0.0]]), torch.zeros(1, 1))
    assert sample.logp.item() == pytest.approx(57.694767, abs=1e-4)


def log_slope(u):
    """log(1 - tanh(u)^2) as -2 log cosh(u), by exponentials that neither overflow nor cancel."""
    return -2 * (u.abs() + torch.log1p(torch.exp(-2 * u.abs()))) + 2 * torch.log(torch.tensor(2.0, dtype=u.dtype))


def test_closed_form_gradient_equals_autograd():
    torch.manual_seed(0)
    raw = torch.randn(40, 8, dtype=torch.float64)
    raw[0, 4:] = 3.0  # log-std beyond its limit: no gradient
    raw[1, 4:] = -25.0
    raw.requires_grad_(True)
    noise = torch.randn(40, 4, dtype=torch.float64)
    d_action, d_logp = torch.randn(40, 4, dtype=torch.float64), torch.randn(40, 1, dtype=torch.float64)
    mean, log_std = raw[:, :4], raw[:, 4:].clamp(-20, 2)
    u = mean + log_std.exp() * noise
    logp = (Normal(mean, log_std.exp()).log_prob(u) - log_slope(u)).sum(-1, keepdim=True)
    loss = (torch.tanh(u) * d_action).sum() + (logp * d_logp).sum()
    (expected,) = torch.autograd.grad(loss, raw)
    got = squash_grad(squash(raw.detach(), noise), d_action, d_logp)
    torch.testing.assert_close(got, expected, rtol=1e-6, atol=1e-8)
    assert bool((got[0, 4:] == 0).all())
