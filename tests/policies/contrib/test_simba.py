"""SimBa: the residual network by hand, known values, gradients where they belong, saving, and learning on reach."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import layer_norm

from robot_rl.data.buffer import ReplayBuffer
from robot_rl.loops.evaluate import evaluate
from robot_rl.loops.off_policy import OffPolicy
from robot_rl.policies.contrib.simba import Simba, SimbaOptions
from robot_rl.policies.contrib.simba_net import ResidualNet
from robot_rl.sim.mujoco_env import make
from robot_rl.sim.worlds.reach import Reach
from robot_rl.types import IOSpec, Transitions

IO = IOSpec({"state": ((2,), "float32")}, ("x",), (-1.0,), (1.0,), ("1",), 10.0)
SMALL: dict[str, Any] = {
    "actor_width": 16, "critic_width": 16, "critic_blocks": 1, "batch_size": 16, "utd": 1, "metrics_every": 1
}  # fmt: skip


def rows(count: int = 16, *, discount: float = 0.5, seed: int = 0) -> Transitions:
    draw = torch.Generator().manual_seed(seed)
    no = torch.zeros(count, dtype=torch.bool)
    state = torch.randn(count, 2, generator=draw) * 3 + 5
    return Transitions(
        {"state": state}, torch.rand(count, 1, generator=draw) * 2 - 1, torch.ones(count),
        torch.full((count,), discount), {"state": state}, no, no, no, ~no,
    )  # fmt: skip


def test_network_is_linear_norm_and_residual_blocks() -> None:
    net = ResidualNet(2, 3, 4, 1, 1, torch.Generator().manual_seed(0))
    x = torch.randn(5, 3)
    for e in range(2):
        w, b = [p[e] for p in net.weights], [p[e] for p in net.biases]
        h = x @ w[0] + b[0]
        h = h + (layer_norm(h, (4,)) @ w[1] + b[1]).relu() @ w[2] + b[2]
        torch.testing.assert_close(net(x)[e], layer_norm(h, (4,)) @ w[3] + b[3])


def test_input_layer_is_orthogonal_and_blocks_are_he() -> None:
    net = ResidualNet(1, 8, 64, 1, 2, torch.Generator().manual_seed(0))
    torch.testing.assert_close(net.weights[0][0] @ net.weights[0][0].T, torch.eye(8), atol=1e-5, rtol=0)
    assert net.weights[1].std().item() == pytest.approx((2 / 64) ** 0.5, rel=0.05)


def test_gradient_reaches_the_actor_and_leaves_critic_and_target_alone() -> None:
    learner = Simba(SimbaOptions(**SMALL), IO)
    before = {n: [p.clone() for p in m.parameters()] for n, m in (("critic", learner.critic), ("actor", learner.actor))}
    learner.target.soft_update = lambda tau: None  # type: ignore[method-assign]
    old = [p.clone() for p in learner.target.module.parameters()]
    learner.update(iter([rows()]))
    assert all(torch.equal(a, b) for a, b in zip(old, learner.target.module.parameters()))
    assert any(not torch.equal(a, b) for a, b in zip(before["actor"], learner.actor.parameters()))
    # with a frozen critic step the actor's own step must not move it
    learner.critic_step = lambda loss: loss  # type: ignore[assignment,method-assign]
    kept = [p.clone() for p in learner.critic.parameters()]
    learner.update(iter([rows()]))
    assert all(torch.equal(a, b) for a, b in zip(kept, learner.critic.parameters()))


@pytest.mark.parametrize(("discount", "value"), [(0.0, 1.0), (0.5, 2.0)])
def test_value_of_a_true_end_and_of_a_state_for_ever(discount: float, value: float) -> None:
    learner = Simba(SimbaOptions(**{**SMALL, "lr": 3e-3, "tau": 0.1, "init_alpha": 1e-8, "batch_size": 64}), IO)
    for i in range(200):
        metrics = learner.update(iter([rows(64, discount=discount, seed=i % 5)]))
    assert metrics["train/q"] == pytest.approx(value, abs=0.15)  # pyright: ignore[reportPossiblyUnboundVariable]


def test_states_are_standardised_by_what_was_seen() -> None:
    learner = Simba(SimbaOptions(**SMALL), IO)
    learner.update(iter([rows(16)]))
    seen = learner.norm(rows(16).obs["state"])
    torch.testing.assert_close(seen.mean(0), torch.zeros(2), atol=1e-5, rtol=0)
    torch.testing.assert_close(seen.std(0, correction=0), torch.ones(2), atol=1e-4, rtol=0)


def test_save_load_update_equals_update_and_masked_rows_do_not_count() -> None:
    one, other = Simba(SimbaOptions(**SMALL), IO, seed=1), Simba(SimbaOptions(**SMALL), IO, seed=2)
    for i in range(3):
        one.update(iter([rows(seed=i)]))
    other.load_state_dict(one.state_dict())
    for i in range(3, 5):
        assert one.update(iter([rows(seed=i)])) == other.update(iter([rows(seed=i)]))
    obs = {"state": np.ones((3, 2), np.float32)}
    np.testing.assert_array_equal(one.policy.act(obs).value, other.policy.act(obs).value)
    mask = torch.arange(16) % 2 == 0
    poisoned = replace(rows(), reward=torch.where(mask, 1.0, torch.nan), mask=mask)
    assert np.isfinite(list(one.update(iter([poisoned])).values())).all()


@pytest.mark.slow
def test_simba_reaches() -> None:
    env = make(1, 0, world=Reach(seconds=2.0))
    options = SimbaOptions(
        actor_width=32, critic_width=64, critic_blocks=1, batch_size=64, utd=1, lr=1e-3, init_alpha=0.05,
        target_entropy="auto",
    )  # fmt: skip
    learner = Simba(options, env.io)
    buffer = ReplayBuffer(env.io, 10_000, gamma=0.95)
    OffPolicy(env, learner, buffer, batch_size=64, learning_starts=200).run(2500, lambda *_: False)
    result = evaluate(make(10, 1, world=Reach(seconds=2.0)), learner.policy, episodes=20)
    assert np.mean(result.returns) > 8.0  # acting at random: 1.95
