"""Golden values of the losses: worked out by hand, by a slow reference, or in the limit."""
# pyright: reportArgumentType=false, reportOptionalOperand=false

import math

import numpy as np
import pytest
import torch

from robot_rl.policies.nets.flat import FlatParams
from robot_rl.policies.nets.mlp import AutogradMlp
from robot_rl.policies.nets.rows import split
from robot_rl.policies.offline.awac import Awac
from robot_rl.policies.offline.cal_ql import CalQl
from robot_rl.policies.offline.cql import Cql
from robot_rl.policies.offline.edac import Edac, diversity_loss
from robot_rl.policies.offline.f_dvl import dual_loss
from robot_rl.policies.offline.rebrac import ReBrac
from robot_rl.policies.offline.sac_n import SacN
from robot_rl.policies.offline.xql import gumbel_loss
from robot_rl.types import LogFacts

# ---------------------------------------------------------------- EDAC, SAC-N


def test_edac_identical_critics_have_diversity_loss_n():
    g = torch.randn(1, 6, 2).expand(4, 6, 2)
    assert diversity_loss(g).item() == pytest.approx(4.0)  # 1 * N (N - 1) / (N - 1)


def test_edac_orthogonal_critics_have_none():
    assert diversity_loss(torch.eye(3)[:, None] * 5.0).item() == pytest.approx(0.0, abs=1e-6)


def test_edac_opposite_pair():
    """cos = -1 twice, divided by N - 1 = 1."""
    assert diversity_loss(torch.tensor([[[2.0, 0.0]], [[-0.1, 0.0]]])).item() == pytest.approx(-2.0)


def test_edac_flat_critics_have_a_finite_gradient():
    slope = torch.zeros(2, 3, 2, requires_grad=True)
    diversity_loss(slope).backward()
    assert bool(torch.isfinite(slope.grad).all())


def test_edac_without_eta_takes_the_steps_of_sac_n(io, batch, make):
    a, b = make(Edac, io, hidden=(8, 8), critics=3, eta=0.0), make(SacN, io, hidden=(8, 8), critics=3)
    for i in range(3):
        a.update(iter([batch(seed=i)]))
        b.update(iter([batch(seed=i)]))
    assert torch.equal(a.critic.params.flat, b.critic.params.flat)


@pytest.mark.parametrize("hidden", [(8,), (8, 7)])
def test_edac_gradients_equal_double_autograd(io, batch, make, hidden):
    learner = make(Edac, io, hidden=hidden, critics=3, eta=2.0, lr=1e-30)
    params = learner.critic.params
    reference = AutogradMlp(learner.critic.shape, FlatParams(params.shapes))
    reference.params.flat.detach().copy_(params.flat)
    rows, target = split(batch(6), 1, None), torch.randn(1, 6)
    learner.step_critics(rows, target)
    x = torch.cat([rows.state, rows.action], -1)[0].expand(3, 6, 5).clone().requires_grad_()
    q = reference.compute(x)[..., 0]
    (slope,) = torch.autograd.grad(q.sum(), x, create_graph=True)
    loss = (q - target).square().mean(1).sum() + 2.0 * diversity_loss(slope[..., 3:])
    names = list(params.view)
    grads = torch.autograd.grad(loss, [reference.params.view[name] for name in names])
    for name, grad in zip(names, grads):
        torch.testing.assert_close(params.grad_view[name], grad, rtol=1e-4, atol=1e-6, msg=name)


def test_edac_diversity_falls_when_it_is_trained(io, batch, make):
    learner = make(Edac, io, hidden=(32, 32), critics=4, eta=50.0, metrics_every=1, lr=3e-3)
    seen = [learner.update(iter([batch(64, seed=i)]))["train/diversity"] for i in range(60)]
    assert seen[-1] < seen[0] - 0.5


@pytest.mark.parametrize(("discount", "part"), [(0.0, 0.0), (0.9, 0.9)])
def test_sac_n_target_is_the_minimum_of_all_minus_entropy(io, batch, make, discount, part, monkeypatch):
    learner = make(SacN, io, hidden=(8,), critics=3)
    say(learner.target, [3.0, 1.0, 2.0])
    seen, drawn, sample = [], [], learner.sample
    monkeypatch.setattr(learner, "step_critics", lambda b, target: seen.append(target) or {})
    monkeypatch.setattr(learner, "sample", lambda *a: drawn.append(sample(*a)) or drawn[-1])
    learner.update(iter([batch(8, reward=torch.full((8,), 1.5), discount=torch.full((8,), discount))]))
    torch.testing.assert_close(seen[0], 1.5 + part * (1.0 - learner.alpha * drawn[1][1]))


# ---------------------------------------------------------------- ReBRAC


def say(net, values):
    """Let critics say the same everywhere: (E,) values."""
    net.params.flat.zero_()
    net.params.view["bias1"][:, 0] = torch.tensor(values)


def test_rebrac_penalty_sums_over_dimensions_and_vanishes_at_the_end(io, batch, make):
    """Target actions are tanh(0) = 0, the log took (0.3, 0.4): penalty 0.09 + 0.16, none where no action followed."""
    learner = make(ReBrac, io, hidden=(8,), batch_size=4, critic_penalty=2.0, policy_noise=0.0)
    learner.actor_target.params.flat.zero_()
    say(learner.critic_target, [1.0, 3.0])
    data = batch(
        4,
        reward=torch.zeros(4),
        discount=torch.tensor([0.9, 0.9, 0.9, 0.0]),
        extras={
            "next_action": torch.tensor([[0.3, 0.4]]).expand(4, 2),
            "next_action_valid": torch.tensor([True, True, False, True]),
        },
    )
    target, penalty = learner.bootstrap(split(data, 1, None))
    torch.testing.assert_close(penalty[0], torch.tensor([0.25, 0.25, 0.0, 0.25]))
    torch.testing.assert_close(target[0], torch.tensor([0.45, 0.45, 0.9, 0.0]))  # 0.9 (1 - 2 * 0.25), 0.9, 0


def test_rebrac_online_rows_without_next_action_are_explained(io, batch, make):
    learner = make(ReBrac, io, hidden=(8,), batch_size=4)
    with pytest.raises(ValueError, match="critic_penalty=0"):
        learner.update(iter([batch(4, extras={})]))
    make(ReBrac, io, hidden=(8,), batch_size=4, critic_penalty=0.0).update(iter([batch(4, extras={})]))


def test_rebrac_actor_loss_equals_plain_torch(io, batch, make):
    options = {"actor_penalty": 0.3, "layer_norm": False, "lr": 1e-30}
    learner = make(ReBrac, io, hidden=(8, 8), batch_size=16, **options)
    for part in (learner.actor, learner.critic):
        noise = torch.randn(part.params.flat.shape, generator=torch.Generator().manual_seed(0))
        part.params.flat.add_(noise, alpha=0.3)
    data = batch(16)
    state, action = data.obs["state"], data.action
    view = {name: v.detach().clone().requires_grad_() for name, v in learner.actor.params.view.items()}

    def net(x, params, member):
        for i in range(2):
            x = (x @ params[f"weight{i}"][member] + params[f"bias{i}"][member]).relu()
        return x @ params["weight2"][member] + params["bias2"][member]

    pi = net(state, view, 0).tanh()
    q = torch.stack([net(torch.cat([state, pi], 1), learner.critic.params.view, i) for i in range(2)])
    low = q.amin(0)
    loss = (0.3 * (pi - action).square().sum(-1) - (low / low.abs().mean().detach())[:, 0]).mean()
    loss.backward()
    learner.improve(state[None], action[None])
    for name, leaf in view.items():
        torch.testing.assert_close(learner.actor.params.grad_view[name], leaf.grad, rtol=1e-4, atol=1e-5)


# ---------------------------------------------------------------- AWAC


def test_awac_target_uses_the_smaller_target_critic_and_no_entropy(io, batch, make):
    learner = make(Awac, io, hidden=(8,), batch_size=4, metrics_every=1)
    say(learner.target, [2.0, 0.5])
    metrics = learner.update(iter([batch(4, reward=torch.ones(4), discount=torch.tensor([0.0, 0.9, 0.9, 0.9]))]))
    assert metrics["train/target"] == pytest.approx(1 + 0.75 * 0.9 * 0.5)


def test_awac_equal_values_weigh_every_action_alike(io, batch, make):
    """Critics that ignore the action: advantage 0, weight exp(0) = 1."""
    learner = make(Awac, io, hidden=(8,), batch_size=4, metrics_every=1, lr=1e-30)
    say(learner.critic, [1.0, 2.0])
    metrics = learner.update(iter([batch(4)]))
    assert metrics["train/weight"] == pytest.approx(1.0)
    assert metrics["train/advantage"] == pytest.approx(0.0)


def test_awac_actor_loss_equals_plain_torch(io, batch, make):
    """-mean(w log pi), the mean not squashed; with critics that ignore the action every weight is 1."""
    learner = make(Awac, io, hidden=(8, 8), batch_size=16, lr=1e-30)
    learner.actor.params.view["log_std"].uniform_(-1, 0)
    learner.critic.params.flat.zero_()
    data = batch(16)
    view = {name: v.detach().clone().requires_grad_() for name, v in learner.actor.params.view.items()}
    x = data.obs["state"]
    for i in range(2):
        x = (x @ view[f"weight{i}"][0] + view[f"bias{i}"][0]).relu()
    normal = torch.distributions.Normal(x @ view["weight2"][0] + view["bias2"][0], view["log_std"][0].exp())
    (-normal.log_prob(data.action).sum(-1).mean()).backward()
    learner.update(iter([data]))
    for name, leaf in view.items():
        torch.testing.assert_close(learner.actor.params.grad_view[name], leaf.grad, rtol=1e-4, atol=1e-6)


# ---------------------------------------------------------------- CQL, Cal-QL


def reference_cql(learner, rows, target, action, density, floor=None):
    """The critics' loss by autograd from the sampled actions, as the paper writes it."""
    view = {name: v.detach().clone().requires_grad_() for name, v in learner.critic.params.view.items()}

    def q(state, action):
        h = torch.cat([state, action], -1)
        out = []
        for e in range(2):
            x = h
            for i in range(2):
                x = (x @ view[f"weight{i}"][e] + view[f"bias{i}"][e]).relu()
            out.append((x @ view["weight2"][e] + view["bias2"][e])[..., 0])
        return torch.stack(out)

    state, samples = rows.state, learner.o.samples
    parts = [q(state.expand(samples, *state.shape), part) for part in action.split(samples)]
    if floor is not None:
        parts[1:] = [torch.maximum(part, floor) for part in parts[1:]]
    stacked = torch.cat([p - d for p, d in zip(parts, density.split(samples))], dim=1)
    data = q(state, rows.action)
    loss = (data - target).square().mean(-1).sum()
    loss = loss + learner.o.alpha_cql * (stacked.logsumexp(1) - data).mean(-1).sum()
    loss.backward()
    return view


@pytest.mark.parametrize("kind", [Cql, CalQl])
def test_cql_gradient_equals_autograd_of_the_paper(io, batch, make, kind):
    options = {"critic_hidden": (8, 8)} if kind is CalQl else {}
    learner = make(kind, io, hidden=(8, 8), samples=3, metrics_every=1, lr=1e-30, **options)
    g = torch.Generator().manual_seed(1)
    learner.critic.params.flat.add_(torch.randn(learner.critic.params.flat.shape, generator=g), alpha=0.3)
    rows = split(batch(6), 1, None)
    with torch.no_grad():
        action, density = learner.outside(learner.actor(rows.state), learner.actor(rows.next_state))
    target = torch.randn(1, 6, generator=g)
    floor = rows.extras["return_to_go"] if kind is CalQl else None
    view = reference_cql(learner, rows, target, action, density, floor)
    metrics = learner.step_critics(rows, target, action, density)
    for name, leaf in view.items():
        torch.testing.assert_close(learner.critic.params.grad_view[name], leaf.grad, rtol=1e-4, atol=1e-5, msg=name)
    if kind is CalQl:
        assert 0.0 < metrics["floored"].float().mean() < 1.0  # some values were below the return-to-go, some above


def test_cql_outside_actions_are_uniform_then_at_the_next_state_then_here(io, batch, make):
    """A nearly certain actor: tanh(0.5) at s', tanh(-0.5) at s; the density of a uniform action is 2^-A."""
    learner = make(Cql, io, hidden=(8,), samples=4)
    here, there = (torch.cat([torch.full((1, 3, 2), m), torch.full((1, 3, 2), -12.0)], -1) for m in (-0.5, 0.5))
    action, density = learner.outside(here, there)
    torch.testing.assert_close(action[4:8], torch.full((4, 1, 3, 2), math.tanh(0.5)), rtol=0, atol=1e-4)
    torch.testing.assert_close(action[8:], torch.full((4, 1, 3, 2), math.tanh(-0.5)), rtol=0, atol=1e-4)
    torch.testing.assert_close(density[:4], torch.full((4, 1, 3), -2 * math.log(2.0)))
    assert float(action[:4].std()) > 0.3


def test_cql_conservative_term_of_constant_critics_is_the_log_of_the_volume(io, batch, make):
    """Q = c everywhere: logsumexp over 3k samples of c - log density, less c; with the density 2^-A of uniform actions
    that is log(3k) + A log 2. Without importance the data's action joins: log(3k + 1)."""
    rows, target = split(batch(16), 1, None), torch.zeros(1, 16)
    action, density = torch.rand(15, 1, 16, 2) * 2 - 1, torch.full((15, 1, 16), -2 * math.log(2.0))
    for importance, expected in ((True, math.log(15) + 2 * math.log(2.0)), (False, math.log(16))):
        learner = make(Cql, io, hidden=(8,), samples=5, alpha_cql=1.0, importance=importance)
        say(learner.critic, [5.0, -3.0])
        found = learner.step_critics(rows, target, action, density)
        torch.testing.assert_close(found["conservative"], torch.full((2, 1, 16), expected))


def test_cql_clip_stops_the_gradient_outside(io, batch, make):
    """The difference of fresh critics is far above -1: cut there, only the fit remains."""
    cut, plain = (
        make(Cql, io, hidden=(8,), samples=2, lr=1e-30, **more) for more in ({"clip_high": -1.0}, {"alpha_cql": 0.0})
    )
    for learner in (cut, plain):
        learner.update(iter([batch(8)]))
    torch.testing.assert_close(cut.critic.params.grad, plain.critic.params.grad)


def test_cql_warm_up_copies_the_data(io, batch, make):
    def after(data):
        learner = make(Cql, io, hidden=(8,), samples=2, bc_steps=10)
        for _ in range(3):
            learner.update(iter([batch(8, action=data)]))
        return learner.policy.act({"state": torch.zeros(1, 3)}, deterministic=True).value

    assert not torch.allclose(after(torch.full((8, 2), 0.9)), after(torch.full((8, 2), -0.9)))


def test_cql_lagrange_dual_climbs_while_the_difference_exceeds_the_gap(io, batch, make):
    for gap, rises in ((0.0, True), (100.0, False)):
        learner = make(Cql, io, hidden=(8,), samples=4, lagrange_gap=gap, metrics_every=1)
        first = learner.update(iter([batch(16)]))["train/dual"]
        last = [learner.update(iter([batch(16, seed=i)]))["train/dual"] for i in range(5)][-1]
        assert (last > first) == rises


def test_cql_max_target_backup_takes_the_best_of_the_samples(io, batch, make):
    """Linear target critic Q = 10 a_0: with 200 samples the best is near its upper end."""
    for best in (False, True):
        learner = make(Cql, io, hidden=(8,), samples=200, max_target_backup=best)
        learner.target.params.flat.zero_()
        learner.target.params.view["weight0"][:, 3, 0] = 1.0
        learner.target.params.view["bias0"][:, 0] = 1.0
        learner.target.params.view["weight1"][:, 0, 0] = 10.0  # Q = 10 relu(a_0 + 1)
        rows = split(batch(32, reward=torch.zeros(32), discount=torch.ones(32)), 1, None)
        with torch.no_grad():
            target = learner.bootstrap(rows, learner.actor(rows.next_state), learner.alpha)
        assert (target.mean() > 14) == best


def test_cal_ql_rows_without_return_fall_back_to_cql(io, batch, make):
    learner = make(CalQl, io, hidden=(8,), critic_hidden=(8,), samples=2, metrics_every=1)
    assert "train/floored" not in learner.update(iter([batch(8, extras={})]))
    learner = make(CalQl, io, hidden=(8,), critic_hidden=(8,), samples=2, metrics_every=1)
    assert "train/floored" in learner.update(iter([batch(8)]))


# ---------------------------------------------------------------- XQL, f-DVL


def test_gumbel_with_large_beta_approaches_the_mean():
    q = torch.tensor([0.0, 1.0, 2.0, 5.0])
    v = solve(lambda v: gumbel_loss(q - v, 1000.0, 7.0), rate=1e6)
    assert v == pytest.approx(2.0, abs=0.01)


@pytest.mark.parametrize("beta", [0.5, 1.0, 3.0])
def test_gumbel_minimiser_is_the_log_mean_exp(beta):
    q = torch.tensor([0.0, 1.0, 2.0, 5.0])
    v = solve(lambda v: gumbel_loss(q - v, beta, 50.0) * beta, rate=1.0)
    assert v == pytest.approx(beta * math.log((q / beta).exp().mean()), abs=1e-3)


def test_gumbel_does_not_overflow():
    diff = torch.tensor([-900.0, -1.0, 0.3, 4.0, 900.0], dtype=torch.float64, requires_grad=True)
    loss = gumbel_loss(diff, 2.0, 7.0)
    z = (diff / 2.0).clamp(max=7.0)  # the clip is the maximum of z, held constant in the gradient
    expected = (z - 7.0).exp() - z * math.exp(-7.0) - math.exp(-7.0)
    torch.testing.assert_close(loss, expected)
    (slope,) = torch.autograd.grad(loss.sum(), diff)
    assert bool(torch.isfinite(slope).all())
    assert slope[-1] == 0.0  # beyond the clip


def solve(loss, rate):
    v = torch.zeros(1, requires_grad=True)
    for step in range(4000):
        (slope,) = torch.autograd.grad(loss(v).mean(), v)
        v.data -= rate / (1 + step / 50) * slope
    return v.item()


def slope_by_value(diff, *how):
    """Of `dual_loss` by V, diff = Q - V."""
    diff = diff.clone().requires_grad_()
    (slope,) = torch.autograd.grad(dual_loss(diff, *how).sum(), diff)
    return -slope


def test_f_dvl_chi2_gradient_at_golden_points():
    """By V: (1 - lambda) alone at x = -3; (1 - lambda) - 2 lambda at x = 2."""
    lam = 0.7
    slope = slope_by_value(torch.tensor([-3.0, 2.0]), lam, "chi2")
    torch.testing.assert_close(slope, torch.tensor([1 - lam, (1 - lam) - 2 * lam]))


def test_f_dvl_chi2_is_the_conjugate_over_nonnegative_densities():
    """sup over w >= 0 of w x - (w - 1)^2, on a fine grid."""
    w = torch.linspace(0, 10, 100_001, dtype=torch.float64)
    for x in (-5.0, -2.0, -1.0, 0.0, 1.5, 4.0):
        loss = dual_loss(torch.tensor([x], dtype=torch.float64), 0.5, "chi2")
        conjugate = (loss + 0.5 * x) / 0.5
        assert conjugate.item() == pytest.approx((w * x - (w - 1).square()).max().item(), abs=1e-6)


def test_f_dvl_code_variant_differs_only_below_zero():
    x = torch.tensor([0.5, 3.0, -1.0, -5.0])
    exact, code = slope_by_value(x, 0.7, "chi2"), slope_by_value(x, 0.7, "chi2", "code")
    torch.testing.assert_close(exact[:2], code[:2])
    torch.testing.assert_close(
        code[2:], torch.tensor([0.3, 0.3 - 0.7 * (1 - 2.5)])
    )  # (1 - lambda); pushes V down again


def test_f_dvl_total_variation_slope():
    torch.testing.assert_close(slope_by_value(torch.tensor([-1.0, 2.0]), 0.8, "tv"), torch.tensor([0.2, -0.6]))


def test_clone_weight_adds_the_pull_of_td3_bc_to_the_actor(io, batch, make):
    """-min Q + w mean|min Q| |a - a_log|^2 by autograd, the scale without gradient; a temperature of almost nothing."""
    learner = make(SacN, io, hidden=(8, 8), critics=3, clone_weight=0.7, init_alpha=1e-12, lr=1e-30)
    learner.critic.params.flat.detach().mul_(30.0)  # fresh critics are nearly flat
    rows = batch(seed=1)
    state, generator = rows.obs["state"], torch.Generator()
    generator.set_state(learner.generator.get_state())
    noise = torch.randn(1, len(state), 2, generator=generator)[0]
    critics = AutogradMlp(learner.critic.shape, learner.critic.params.twin())
    actor = AutogradMlp(learner.actor.shape, FlatParams(learner.actor.params.shapes))
    actor.params.flat.detach().copy_(learner.actor.params.flat)
    mean, log_std = actor.compute(state)[0].chunk(2, -1)
    action = (mean + log_std.clamp(-5, 2).exp() * noise).tanh()
    low = critics.compute(torch.cat([state, action], dim=1))[..., 0].amin(0)
    loss = -low + 0.7 * low.detach().abs().mean() * (action - rows.action).square().sum(1)
    names = list(actor.params.view)
    expected = torch.autograd.grad(loss.mean(), [actor.params.view[name] for name in names])
    learner.update(iter([rows]))
    for name, grad in zip(names, expected):
        torch.testing.assert_close(learner.actor.params.grad_view[name], grad, rtol=1e-4, atol=1e-6, msg=name)


@pytest.mark.parametrize("name", ["clone_weight", "actor_decay"])
def test_sac_n_refuses_negative_options(io, make, name):
    with pytest.raises(ValueError, match=f"{name} is -1, expected"):
        make(SacN, io, hidden=(8, 8), **{name: -1})


@pytest.mark.parametrize(
    ("kind", "options", "gamma", "bound"),
    [
        (SacN, {"init_alpha": 0.5}, 0.9, 0.1 + 0.5 * 2 * math.log(2.0) / 0.1),  # two actions, uniform: 2 log 2 a step
        (SacN, {"init_alpha": 0.5}, 1.0, 0.2 + 0.5 * 2 * math.log(2.0) * 20),
        (Cql, {}, 0.9, 0.1),  # its target holds no entropy
        (Cql, {"backup_entropy": True}, 0.9, 0.1 + 2 * math.log(2.0) / 0.1),
    ],
)
def test_soft_values_may_exceed_returns_by_the_entropy(io, make, kind, options, gamma, bound):
    """With small rewards SAC-N of a sound run was stopped as one that diverges: its values are entropy for the most."""
    learner = make(kind, io, hidden=(8,), **options)
    learner.prepare(LogFacts(np.zeros(3), np.ones(3), -0.01, 0.01, gamma, 20))
    assert learner.state.bound == pytest.approx(bound)
