"""The squashed Gaussian against torch.distributions and autograd."""

import pytest
import torch
from torch.distributions import Normal, TransformedDistribution
from torch.distributions.transforms import TanhTransform

from robot_rl.policies.nets.distributions import squash, squash_grad, squashed_sample


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


@pytest.mark.parametrize("times", [(), (3,)])
def test_squashed_sample_has_the_gradients_of_torchs_distribution(times):
    g = torch.Generator().manual_seed(0)
    raw = torch.randn(5, 4, generator=g, dtype=torch.float64).requires_grad_()
    with torch.no_grad():
        raw[0, 2] = 3.0  # above the limit of the log-std: clamped, without a gradient
    noise = torch.randn(*times, 5, 2, generator=g, dtype=torch.float64)
    mean, log_std = raw.chunk(2, -1)
    plain = torch.distributions.Normal(mean, log_std.clamp(-20.0, 2.0).exp())
    u = mean + log_std.clamp(-20.0, 2.0).exp() * noise
    known = (plain.log_prob(u) - torch.log1p(-u.tanh().square())).sum(-1)
    weight = torch.randn(u.shape, generator=g, dtype=torch.float64)
    (expected,) = torch.autograd.grad((u.tanh() * weight).sum() + known.square().sum(), raw, retain_graph=True)
    action, logp = squashed_sample(raw, noise)
    torch.testing.assert_close(logp, known)
    (found,) = torch.autograd.grad((action * weight).sum() + logp.square().sum(), raw)
    torch.testing.assert_close(found, expected)
    assert float(found[0, 2]) == 0.0
    for part in (0, 1):  # the other one may be unused
        mine, theirs = squashed_sample(raw, noise)[part].sum(), (u.tanh(), known)[part].sum()
        (found,) = torch.autograd.grad(mine, raw)
        torch.testing.assert_close(found, torch.autograd.grad(theirs, raw, retain_graph=True)[0])


def test_squashed_sample_refuses_a_second_derivative():
    raw = torch.zeros(1, 2, requires_grad=True)
    with pytest.raises(RuntimeError, match="second derivative"):
        torch.autograd.grad(squashed_sample(raw, torch.ones(1, 1))[1].sum(), raw, create_graph=True)
