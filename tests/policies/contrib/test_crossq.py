"""CrossQ: batch renormalisation by hand, known values, no target network, saving, and learning on reach."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from robot_rl.data.buffer import ReplayBuffer
from robot_rl.loops.evaluate import evaluate
from robot_rl.loops.off_policy import OffPolicy
from robot_rl.policies.contrib.crossq import CrossQ, CrossQOptions
from robot_rl.policies.contrib.crossq_norm import Renorm, RenormCritic
from robot_rl.sim.mujoco_env import make
from robot_rl.sim.worlds.reach import Reach
from robot_rl.types import IOSpec, Transitions

IO = IOSpec({"state": ((2,), "float32")}, ("x",), (-1.0,), (1.0,), ("1",), 10.0)
SMALL: dict[str, Any] = {"hidden": (32,), "actor_hidden": (32,), "batch_size": 32, "metrics_every": 1}


def rows(count: int, *, terminated: bool, seed: int = 0) -> Transitions:
    draw = torch.Generator().manual_seed(seed)
    flags = torch.full((count,), terminated)
    return Transitions(
        {"state": torch.randn(count, 2, generator=draw)},
        torch.rand(count, 1, generator=draw) * 2 - 1,
        torch.ones(count),
        torch.full((count,), 0.0 if terminated else 0.5),
        {"state": torch.randn(count, 2, generator=draw)},
        flags,
        ~flags,
        torch.zeros(count, dtype=torch.bool),
        torch.ones(count, dtype=torch.bool),
    )


def critic(warm: int) -> RenormCritic:
    return RenormCritic(2, 3, (8,), Renorm(0.9, warm), generator=torch.Generator().manual_seed(0))


def test_warm_passes_are_plain_batch_normalisation() -> None:
    net, x = critic(10), torch.randn(64, 3, generator=torch.Generator().manual_seed(1)) * 4 + 2
    out = net._normal(x.expand(2, -1, -1), 0, True)
    torch.testing.assert_close(out.mean(1), torch.zeros(2, 3), atol=1e-5, rtol=0)
    torch.testing.assert_close(out.std(1, correction=0), torch.ones(2, 3), atol=1e-3, rtol=0)
    torch.testing.assert_close(net.mean[0][0], 0.1 * x.mean(0))
    torch.testing.assert_close(net.square[0][0], 0.9 + 0.1 * x.var(0, correction=0))


def test_renormalisation_is_by_running_moments_within_the_limits() -> None:
    """r and d undo the batch's moments as long as they are within [1/3, 3] and [-5, 5]."""
    net, x = critic(0), torch.randn(64, 3, generator=torch.Generator().manual_seed(1)) * 1.5 + 0.5
    torch.testing.assert_close(net._normal(x.expand(2, -1, -1), 0, True)[0], x / (1.0 + 1e-3) ** 0.5)
    far = critic(0)
    out = far._normal((x * 100 + 1000).expand(2, -1, -1), 0, True)
    torch.testing.assert_close(out.std(1, correction=0), torch.full((2, 3), 3.0), atol=1e-2, rtol=0)
    torch.testing.assert_close(out.mean(1), torch.full((2, 3), 5.0), atol=1e-2, rtol=0)


def test_evaluation_leaves_the_moments_alone_and_equals_running_normalisation() -> None:
    net, x = critic(0), torch.randn(5, 3)
    before = [m.clone() for m in net.mean]
    single = net.forward(x[:1], train=False)
    torch.testing.assert_close(single, net.forward(x, train=False)[:, :1])  # a row does not see the others
    assert all(torch.equal(a, b) for a, b in zip(before, net.mean))


@pytest.mark.parametrize(("terminated", "value"), [(True, 1.0), (False, 2.0)])
def test_time_limit_bootstraps_and_a_true_end_does_not(terminated: bool, value: float) -> None:
    """Reward 1 at every step, discount 0.5, no entropy: 1 at a true end, 2 for ever, without target networks."""
    learner = CrossQ(CrossQOptions(**SMALL, lr=3e-3, init_alpha=1e-6, actor_delay=1000), IO)
    batch = rows(64, terminated=terminated)
    batch = replace(batch, next_obs=batch.obs)
    for _ in range(400):
        metrics = learner.update(iter([batch]))
    assert metrics["train/q"] == pytest.approx(value, abs=0.2)  # pyright: ignore[reportPossiblyUnboundVariable]


def test_actor_learns_in_every_third_update_only() -> None:
    learner = CrossQ(CrossQOptions(**SMALL), IO)
    moved = []
    for i in range(6):
        before = learner.actor.params.flat.clone()
        learner.update(iter([rows(32, terminated=True, seed=i)]))
        moved.append(not torch.equal(before, learner.actor.params.flat))
    assert moved == [False, False, True, False, False, True]


def test_save_load_update_equals_update() -> None:
    one, other = (CrossQ(CrossQOptions(warm=2, **SMALL), IO, seed=seed) for seed in (1, 2))
    data = [rows(32, terminated=bool(i % 2), seed=i) for i in range(8)]
    for batch in data[:4]:
        one.update(iter([batch]))
    other.load_state_dict(one.state_dict())
    for batch in data[4:]:
        assert one.update(iter([batch])) == other.update(iter([batch]))
    assert torch.equal(one.critic.params.flat, other.critic.params.flat)
    obs = {"state": np.ones((3, 2), np.float32)}
    np.testing.assert_array_equal(one.policy.act(obs).value, other.policy.act(obs).value)
    assert np.isfinite(one.update(iter([rows(1, terminated=True)]))["train/q"])


@pytest.mark.slow
def test_learns_reach() -> None:
    """1500 steps of 0.1 s: more than three times the return of acting at random (1.95)."""
    env = make(1, 0, world=Reach(seconds=2.0))
    options: dict[str, Any] = {"hidden": (128, 128), "actor_hidden": (64, 64), "batch_size": 64}
    learner = CrossQ(CrossQOptions(**options, init_alpha=0.05, actor_delay=1), env.io)
    buffer = ReplayBuffer(env.io, 2000, gamma=0.95, seed=0)
    loop = OffPolicy(env, learner, buffer, batch_size=64, learning_starts=200)
    loop.run(1500, lambda step, metrics: False)
    result = evaluate(make(10, 1, world=Reach(seconds=2.0)), learner.policy, episodes=20)
    assert np.mean(result.returns) > 6.0
