"""Implicit Q-learning: numbers by hand, the limit of large expectiles, and a log of random actions."""

import math
from operator import attrgetter

import pytest
import torch

from robot_rl.policies.offline.bc import Bc
from robot_rl.policies.offline.demo_kl import DemoKl
from robot_rl.policies.offline.edac import Edac
from robot_rl.policies.offline.iql import Iql, expectile_loss
from robot_rl.policies.offline.mopo import Mopo
from robot_rl.policies.offline.rebrac import ReBrac
from robot_rl.policies.offline.sac_n import SacN
from robot_rl.policies.offline.td3_bc import Td3Bc


def test_expectile_at_one_half_is_half_the_squared_error():
    diff = torch.tensor([-2.0, 0.5, 3.0])
    torch.testing.assert_close(expectile_loss(diff, 0.5), 0.5 * diff.square())


def test_expectile_weighs_positive_differences():
    loss = expectile_loss(torch.tensor([2.0, -2.0]), 0.7)
    torch.testing.assert_close(loss, torch.tensor([2.8, 1.2]))  # 0.7 * 4, 0.3 * 4


def test_expectile_towards_one_finds_the_maximum_of_a_bandit():
    q = torch.tensor([0.0, 1.0, 2.0, 5.0])
    v = torch.zeros(1, requires_grad=True)
    for step in range(4000):
        (slope,) = torch.autograd.grad(expectile_loss(q - v, 0.999).mean(), v)
        v.data -= 2.0 / (1 + step / 100) * slope
    assert v.item() == pytest.approx(5.0, abs=0.05)


@pytest.mark.parametrize(("discount", "expected"), [(0.0, 1.5), (0.9, 1.5 + 0.9 * 0.25)])
def test_target_bootstraps_from_the_value_unless_terminated(io, batch, discount, expected, make):
    """V is 0.25 everywhere: y = 1.5 where terminated, 1.5 + 0.9 * 0.25 where running or truncated; critics that say y
    already have no error."""
    learner = make(Iql, io, hidden=(8,), batch_size=4, metrics_every=1, lr=1e-30)
    for net, value in ((learner.value, 0.25), (learner.critic, expected)):
        net.params.flat.zero_()
        net.params.view["bias1"].fill_(value)
    data = batch(
        4,
        reward=torch.full((4,), 1.5),
        discount=torch.full((4,), discount),
        truncated=torch.tensor([True, False, False, False]),
    )
    assert learner.update(iter([data]))["train/critic_loss"] == pytest.approx(0.0, abs=1e-12)


def test_losses_equal_plain_torch(io, batch, make):
    """One update against the paper's losses written with torch's own modules: value, actor, then critics."""
    learner = make(Iql, io, hidden=(8, 8), batch_size=16, normalize=False, metrics_every=1, lr=1e-30)
    learner.actor.params.view["log_std"].uniform_(-1, 0)
    generator = torch.Generator().manual_seed(1)
    for part in (learner.value, learner.critic, learner.target, learner.actor):  # fresh values are nearly flat
        part.params.flat.add_(torch.randn(part.params.flat.shape, generator=generator), alpha=0.2)
    data = batch(16)
    state, action = data.obs["state"], data.action
    views = {
        name: {key: v.detach().clone().requires_grad_() for key, v in getattr(learner, name).params.view.items()}
        for name in ("value", "critic", "target", "actor")
    }

    def net(name, x, member=0):
        view = views[name]
        for i in range(2):
            x = (x @ view[f"weight{i}"][member] + view[f"bias{i}"][member]).relu()
        return x @ view["weight2"][member] + view["bias2"][member]

    x = torch.cat([state, action], 1)
    q = torch.min(net("target", x, 0), net("target", x, 1))[:, 0].detach()
    value, after = net("value", state)[:, 0], net("value", data.next_obs["state"])[:, 0]
    error = q - value
    weight = (3.0 * error).exp().clamp(max=100.0).detach()
    normal = torch.distributions.Normal(net("actor", state).tanh(), views["actor"]["log_std"][0].exp())
    target = (data.reward + data.discount * after).detach()
    losses = {
        "value": (torch.where(error < 0, 0.3, 0.7) * error.square()).mean(),
        "actor": -(weight * normal.log_prob(action).sum(-1)).mean(),
        "critic": sum(0.5 * (net("critic", x, e)[:, 0] - target).square().mean() for e in range(2)),
    }
    metrics = learner.update(iter([data]))
    assert metrics["train/weight"] == pytest.approx(weight.mean().item(), rel=1e-5)
    for name, loss in losses.items():
        loss.backward()
        for key, leaf in views[name].items():
            found = getattr(learner, name).params.grad_view[key]
            torch.testing.assert_close(found, leaf.grad, rtol=1e-4, atol=1e-6, msg=f"{name}.{key}")


@pytest.mark.parametrize(
    ("kind", "actor", "options"),
    [
        (Iql, "actor.params", {}),
        (Bc, "actor.params", {}),
        (Td3Bc, "actor.params", {"policy_every": 1}),
        (ReBrac, "actor.params", {"policy_every": 1, "lr": 3e-4, "critic_penalty": 0.0}),
        (SacN, "actor.params", {"critics": 2}),
        (Edac, "actor.params", {"critics": 2}),
    ],
)
def test_actor_step_size_falls_as_a_cosine(io, batch, monkeypatch, make, kind, actor, options):
    learner = make(kind, io, hidden=(8,), batch_size=4, actor_decay=4, **options)
    seen = []
    monkeypatch.setattr(attrgetter(actor)(learner), "adam", lambda lr, **_: seen.append(lr))
    for _ in range(6):
        learner.update(iter([batch(4)]))
    expected = [3e-4 * 0.5 * (1 + math.cos(math.pi * min(i / 4, 1))) for i in range(6)]
    assert seen == pytest.approx(expected)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (Mopo, {"model_updates": 6, "model_hidden": (8,), "rollout_batch": 8, "rollout_every": 4, "horizon": 2}),
        (DemoKl, {"clone_updates": 6}),
    ],
)
def test_updates_of_a_model_or_a_clone_do_not_lower_the_step_size(io, batch, monkeypatch, make, kind, options):
    """With 50,000 of them and actor_decay=20000 the actor never moved."""
    learner = make(kind, io, hidden=(8,), batch_size=4, actor_decay=4, **options)
    seen = []
    monkeypatch.setattr(learner.actor.params, "adam", lambda lr, **_: seen.append(lr))
    for _ in range(6 + 6):
        learner.update(iter(lambda: batch(4), None))
    assert seen == pytest.approx([3e-4 * 0.5 * (1 + math.cos(math.pi * min(i / 4, 1))) for i in range(6)])


def test_seeds_side_by_side_are_independent_runs(io, batch, make):
    """Seed 0 of three learns what a single run with the same weights and rows learns."""
    many, one = (make(Iql, io, seeds=seeds, hidden=(8, 8), batch_size=4) for seeds in (3, 1))
    for name in ("value", "critic", "actor", "target"):
        for key, view in getattr(one, name).params.view.items():
            view.copy_(getattr(many, name).params.view[key][: len(view)])
    for i in range(5):
        data = batch(12, seed=i)
        many.update(iter([data]))
        one.update(iter([batch(12, seed=i).__class__(**{**data.__dict__, **_head(data, 4)})]))
    for key, view in one.actor.params.view.items():
        torch.testing.assert_close(view, many.actor.params.view[key][: len(view)], msg=key)


def _head(data, size):
    cut = {name: getattr(data, name)[:size] for name in ("action", "reward", "discount", "terminated", "truncated")}
    cut |= {name: getattr(data, name)[:size] for name in ("intervened", "mask")}
    cut |= {name: {k: v[:size] for k, v in getattr(data, name).items()} for name in ("obs", "next_obs", "extras")}
    return cut


def test_learns_to_walk_home_from_random_actions(point, make):
    options = {"lr": 2e-3, "tau": 0.02, "expectile": 0.9, "beta": 10.0, "actor_decay": 0}
    learner = make(Iql, point.io, hidden=(32, 32), batch_size=128, **options)
    assert point.train(learner, 1200) > -3.5
