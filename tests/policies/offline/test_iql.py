"""Implicit Q-learning: numbers by hand, the limit of large expectiles, and a log of random actions."""

import math
from operator import attrgetter

import pytest
import torch

from robot_rl.policies.offline.bc import Bc
from robot_rl.policies.offline.edac import Edac
from robot_rl.policies.offline.iql import Iql, expectile_loss
from robot_rl.policies.offline.rebrac import ReBrac
from robot_rl.policies.offline.sac_n import SacN
from robot_rl.policies.offline.td3_bc import Td3Bc


def test_expectile_at_one_half_is_half_the_squared_error():
    diff = torch.tensor([-2.0, 0.5, 3.0])
    loss, slope = expectile_loss(diff, 0.5)
    torch.testing.assert_close(loss, 0.5 * diff.square())
    torch.testing.assert_close(slope, diff)


def test_expectile_weighs_positive_differences():
    loss, slope = expectile_loss(torch.tensor([2.0, -2.0]), 0.7)
    torch.testing.assert_close(loss, torch.tensor([2.8, 1.2]))  # 0.7 * 4, 0.3 * 4
    torch.testing.assert_close(slope, torch.tensor([2.8, -1.2]))  # 2 * 0.7 * 2, 2 * 0.3 * -2


def test_expectile_towards_one_finds_the_maximum_of_a_bandit():
    q = torch.tensor([0.0, 1.0, 2.0, 5.0])
    v = torch.zeros(1)
    for step in range(4000):
        v += 2.0 / (1 + step / 100) * expectile_loss(q - v, 0.999)[1].mean()
    assert v.item() == pytest.approx(5.0, abs=0.05)


@pytest.mark.parametrize(("discount", "expected"), [(0.0, 1.5), (0.9, 1.5 + 0.9 * 0.25)])
def test_target_bootstraps_from_the_value_unless_terminated(io, batch, discount, expected, monkeypatch):
    """V is 0.25 everywhere: y = 1.5 where terminated, 1.5 + 0.9 * 0.25 where running or truncated."""
    learner = Iql(io, hidden=(8,), batch_size=4)
    learner._value_params.flat.zero_()
    learner._value_params.view["value.bias1"].fill_(0.25)
    monkeypatch.setattr(learner._value_params, "adam", lambda lr: None)
    seen = []
    monkeypatch.setattr(learner, "_critic_step", lambda x, target: seen.append(target) or torch.zeros(1))
    data = batch(
        4,
        reward=torch.full((4,), 1.5),
        discount=torch.full((4,), discount),
        truncated=torch.tensor([True, False, False, False]),
    )
    learner.update(iter([data]))
    torch.testing.assert_close(seen[0], torch.full((1, 4), expected))


def test_gradients_equal_autograd(io, batch):
    """One actor gradient against the textbook loss -mean(w log pi), written with torch.distributions."""
    learner = Iql(io, hidden=(8, 8), batch_size=16, normalize=False)
    learner._actor_params.view["log_std"].uniform_(-1, 0)
    data = batch(16)
    weight = torch.rand(1, 16) * 3
    view = {name: v.detach().clone().requires_grad_() for name, v in learner._actor_params.view.items()}
    h = data.obs["state"]
    for i in range(2):
        h = (h @ view[f"actor.weight{i}"][0] + view[f"actor.bias{i}"][0]).relu()
    mean = (h @ view["actor.weight2"][0] + view["actor.bias2"][0]).tanh()
    logp = torch.distributions.Normal(mean, view["log_std"][0].exp()).log_prob(data.action).sum(-1)
    loss = -(weight[0] * logp).mean()
    loss.backward()
    from robot_rl.policies.nets.rows import split

    ours = learner._actor_step(split(data, 1, None), weight).mean()
    torch.testing.assert_close(ours, loss.detach())
    for name, leaf in view.items():
        torch.testing.assert_close(learner._actor_params.grad_view[name], leaf.grad, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("kind", "actor", "options"),
    [
        (Iql, "_actor_params", {}),
        (Bc, "_params", {}),
        (Td3Bc, "_actor_params", {"policy_every": 1}),
        (ReBrac, "_actor_params", {"policy_every": 1, "lr": 3e-4, "critic_penalty": 0.0}),
        (SacN, "_actor.params", {"critics": 2}),
        (Edac, "_actor.params", {"critics": 2}),
    ],
)
def test_actor_step_size_falls_as_a_cosine(io, batch, monkeypatch, kind, actor, options):
    learner = kind(io, hidden=(8,), batch_size=4, actor_decay=4, **options)
    seen = []
    monkeypatch.setattr(attrgetter(actor)(learner), "adam", lambda lr: seen.append(lr))
    for _ in range(6):
        learner.update(iter([batch(4)]))
    expected = [3e-4 * 0.5 * (1 + math.cos(math.pi * min(i / 4, 1))) for i in range(6)]
    assert seen == pytest.approx(expected)


def test_seeds_side_by_side_are_independent_runs(io, batch):
    """Seed 0 of three learns what a single run with the same weights and rows learns."""
    many, one = Iql(io, seeds=3, hidden=(8, 8), batch_size=4), Iql(io, hidden=(8, 8), batch_size=4)
    for name in ("_value_params", "_critic_params", "_actor_params", "_target_params"):
        for key, view in getattr(one, name).view.items():
            view.copy_(getattr(many, name).view[key][: len(view)])
    for i in range(5):
        data = batch(12, seed=i)
        many.update(iter([data]))
        one.update(iter([batch(12, seed=i).__class__(**{**data.__dict__, **_head(data, 4)})]))
    for key, view in one._actor_params.view.items():
        torch.testing.assert_close(view, many._actor_params.view[key][: len(view)], msg=key)


def _head(data, size):
    cut = {name: getattr(data, name)[:size] for name in ("action", "reward", "discount", "terminated", "truncated")}
    cut |= {name: getattr(data, name)[:size] for name in ("intervened", "mask")}
    cut |= {name: {k: v[:size] for k, v in getattr(data, name).items()} for name in ("obs", "next_obs", "extras")}
    return cut


def test_learns_to_walk_home_from_random_actions(point):
    learner = Iql(
        point.io, hidden=(32, 32), batch_size=128, lr=2e-3, tau=0.02, expectile=0.9, beta=10.0, actor_decay=0, seed=0
    )
    assert point.train(learner, 1200) > -3.5
