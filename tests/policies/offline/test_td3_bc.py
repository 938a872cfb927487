"""TD3+BC: numbers by hand and a log of random actions."""

import pytest
import torch

from robot_rl.policies.offline.bc import Bc
from robot_rl.policies.offline.td3_bc import Td3Bc


@pytest.mark.parametrize(("discount", "expected"), [(0.0, 1.5), (0.9, 1.5 + 0.9 * 0.25)])
def test_target_takes_the_smaller_target_critic(io, batch, discount, expected, make):
    """Target critics say 0.25 and 4 everywhere; a critic that already says y has no error."""
    learner = make(Td3Bc, io, hidden=(8,), batch_size=4, metrics_every=1)
    learner.critic_target.params.flat.zero_()
    learner.critic_target.params.view["bias1"][:, 0] = torch.tensor([0.25, 4.0])
    learner.critic.params.flat.zero_()
    learner.critic.params.view["bias1"][:, 0] = expected
    metrics = learner.update(iter([batch(4, reward=torch.full((4,), 1.5), discount=torch.full((4,), discount))]))
    assert metrics["train/target"] == pytest.approx(expected)
    assert metrics["train/critic_loss"] == pytest.approx(0.0, abs=1e-10)


def test_actor_loss_equals_plain_torch(io, batch, make):
    learner = make(Td3Bc, io, hidden=(8, 8), batch_size=16, normalize=False, policy_every=1, lr=1e-30)
    data = batch(16)
    state, action = data.obs["state"], data.action
    view = {name: v.detach().clone().requires_grad_() for name, v in learner.actor.params.view.items()}

    def net(x, params):
        for i in range(2):
            x = (x @ params[f"weight{i}"][0] + params[f"bias{i}"][0]).relu()
        return x @ params["weight2"][0] + params["bias2"][0]

    pi = net(state, view).tanh()
    q = net(torch.cat([state, pi], 1), learner.critic.params.view)
    loss = -2.5 / q.abs().mean().detach() * q.mean() + (pi - action).square().mean()
    loss.backward()
    learner.update(iter([data]))
    for name, leaf in view.items():
        torch.testing.assert_close(learner.actor.params.grad_view[name], leaf.grad, rtol=1e-4, atol=1e-6)


def test_targets_move_at_every_second_update_only(io, batch, make):
    learner = make(Td3Bc, io, hidden=(8,), batch_size=4)
    before = learner.critic_target.params.flat.clone()
    learner.update(iter([batch(4)]))
    assert torch.equal(before, learner.critic_target.params.flat)
    learner.update(iter([batch(4)]))
    assert not torch.equal(before, learner.critic_target.params.flat)


def test_alpha_zero_is_behaviour_cloning(io, batch, make):
    learner = make(Td3Bc, io, hidden=(8, 8), batch_size=16, alpha=0.0, policy_every=1)
    clone = make(Bc, io, hidden=(8, 8), batch_size=16)
    clone.actor.params.flat.copy_(learner.actor.params.flat)
    for i in range(4):
        learner.update(iter([batch(16, seed=i)]))
        clone.update(iter([batch(16, seed=i)]))
    torch.testing.assert_close(learner.actor.params.flat, clone.actor.params.flat)


def test_learns_to_walk_home_from_random_actions(point, make):
    learner = make(Td3Bc, point.io, hidden=(32, 32), batch_size=128, lr=2e-3, tau=0.02, alpha=10.0)
    assert point.train(learner, 1200) > -3.0


def test_bc_learns_the_mean_action_and_stands_still(point, make):
    learner = make(Bc, point.io, hidden=(32, 32), batch_size=128, lr=2e-3)
    assert point.train(learner, 500) == pytest.approx(-8.0, abs=1.2)


def test_gaussian_bc_finds_mean_and_spread(point, make):
    """Actions are uniform in [-1, 1]: standard deviation sqrt(1/3) = 0.577."""
    learner = make(Bc, point.io, hidden=(32, 32), batch_size=128, lr=2e-3, gaussian=True)
    point.train(learner, 800)
    torch.testing.assert_close(learner.policy._std(), torch.full((2,), 0.577), atol=0.05, rtol=0)
