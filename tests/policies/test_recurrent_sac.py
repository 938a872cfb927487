"""SAC with a memory: an update against plain torch, what windows teach, that acting remembers as training does."""

from __future__ import annotations

from itertools import repeat
from typing import Any

import numpy as np
import pytest
import torch

from robot_rl.data.buffer import ReplayBuffer
from robot_rl.loops.evaluate import evaluate
from robot_rl.loops.off_policy import OffPolicy
from robot_rl.policies.online.recurrent_sac import RecurrentSac, RecurrentSacOptions
from robot_rl.sim.array_env import ArrayVectorEnv
from robot_rl.sim.worlds.pendulum import Pendulum
from robot_rl.types import IOSpec, Transitions

SMALL = {"history": 4, "width": 8, "hidden": (16,), "batch_size": 6, "metrics_every": 1}
IO = Pendulum(velocity=False).io


def make(io: IOSpec = IO, seed: int = 0, **options: Any) -> RecurrentSac:
    return RecurrentSac(RecurrentSacOptions(**{**SMALL, **options}), io, seed=seed)


def windows(size=6, length=4, seed=0, discount=0.9, **changes):
    """Random windows whose steps follow each other."""
    draw = torch.Generator().manual_seed(seed)
    state = torch.randn(size, length + 1, 2, generator=draw)
    no = torch.zeros(size, length, dtype=torch.bool)
    fields = {
        "obs": {"state": state[:, :-1]},
        "action": torch.rand(size, length, 1, generator=draw) * 2 - 1,
        "reward": torch.randn(size, length, generator=draw),
        "discount": torch.full((size, length), discount),
        "next_obs": {"state": state[:, 1:]},
        **dict.fromkeys(("terminated", "truncated", "intervened"), no),
        "mask": ~no,
        **changes,
    }
    return Transitions(**fields)


def gru(encoder) -> torch.nn.GRU:
    """The same memory in torch's own layer."""
    view = encoder.params.view
    found = torch.nn.GRU(3, encoder.width, batch_first=True)
    names = {
        "weight_ih_l0": "gate_in",
        "weight_hh_l0": "gate_hidden",
        "bias_ih_l0": "in_bias",
        "bias_hh_l0": "hidden_bias",
    }
    with torch.no_grad():
        for name, own in names.items():
            getattr(found, name).copy_(view[own])
    return found


def mlp(net, member=0) -> torch.nn.Sequential:
    """The same perceptron in torch's own layers."""
    view = net.params.view
    layers: list[torch.nn.Module] = []
    for i in range(len(net.shape.hidden) + 1):
        weight, bias = view[f"weight{i}"][member], view[f"bias{i}"][member]
        linear = torch.nn.Linear(*weight.shape)
        with torch.no_grad():
            linear.weight.copy_(weight.T)
            linear.bias.copy_(bias)
        layers += [linear, torch.nn.ReLU()]
    return torch.nn.Sequential(*layers[:-1])


def gaussian(raw, noise):
    mean, log_std = raw.chunk(2, -1)
    u = mean + log_std.clamp(-20, 2).exp() * noise
    logp = torch.distributions.Normal(mean, log_std.clamp(-20, 2).exp()).log_prob(u) - torch.log1p(-u.tanh().square())
    return u.tanh(), logp.sum(-1)


def test_one_update_is_that_of_plain_torch():
    learner = make()
    sight, memory, slow = (gru(x) for x in (learner.sight, learner.memory, learner.slow))
    actor, critics = mlp(learner.actor), [mlp(learner.critic, i) for i in range(2)]
    targets = [mlp(learner.target, i) for i in range(2)]
    noise = torch.Generator()
    noise.set_state(learner.generator.get_state())
    batch = windows(mask=torch.tensor([[True] * 4, [True] * 2 + [False] * 2] * 3))
    metrics = learner.update(repeat(batch))

    share = batch.mask.float() / batch.mask.sum()
    seen = torch.cat([batch.obs["state"][:, :1], batch.next_obs["state"]], 1)
    x = torch.cat([seen, torch.cat([torch.zeros(6, 1, 1), batch.action], 1)], -1)
    z, known = sight(x)[0], memory(x)[0][:, :-1]
    with torch.no_grad():
        after, logp = gaussian(actor(z[:, 1:]), torch.randn(24, 1, generator=noise).view(6, 4, 1))
        ahead = torch.cat([slow(x)[0][:, 1:], after], -1)
        y = batch.reward + 0.9 * (torch.minimum(*(q(ahead)[..., 0] for q in targets)) - logp)  # temperature 1
    both = [q(torch.cat([known, batch.action], -1))[..., 0] for q in critics]
    loss = torch.stack([((q - y).square() * share).sum() for q in both]).mean()
    parts = [*memory.parameters(), *(p for q in critics for p in q.parameters())]
    adam = torch.optim.Adam(parts, lr=1e-3)
    loss.backward()
    adam.step()
    chosen, logp = gaussian(actor(z[:, :-1]), torch.randn(24, 1, generator=noise).view(6, 4, 1))
    # the memory before its step, the critics after it
    low = torch.minimum(*(q(torch.cat([known.detach(), chosen], -1))[..., 0] for q in critics))
    actor_loss = ((logp - low) * share).sum()
    actor.zero_grad()
    sight.zero_grad()
    second = torch.optim.Adam([*sight.parameters(), *actor.parameters()], lr=1e-3)
    actor_loss.backward()
    second.step()
    assert metrics["train/critic_loss"] == pytest.approx(loss.item(), rel=1e-4)
    assert metrics["train/actor_loss"] == pytest.approx(actor_loss.item(), rel=1e-4, abs=1e-6)
    assert metrics["train/entropy"] == pytest.approx(-(logp * share).sum().item(), rel=1e-4, abs=1e-6)
    pairs = [(gru(learner.sight), sight), (gru(learner.memory), memory), (mlp(learner.actor), actor)]
    pairs += [(mlp(learner.critic, i), critics[i]) for i in range(2)]
    for mine, theirs in pairs:
        for a, b in zip(mine.parameters(), theirs.parameters()):
            torch.testing.assert_close(a, b, atol=2e-5, rtol=1e-3)
    followed = {n: 0.995 * a + 0.005 * b for (n, a), (_, b) in zip(slow.named_parameters(), memory.named_parameters())}
    for name, weight in gru(learner.slow).named_parameters():
        torch.testing.assert_close(weight, followed[name], atol=2e-5, rtol=1e-3)
    # the temperature falls where the entropy is above -1, with Adam's first step of 1e-3
    assert learner.temperature["log_alpha"].item() == pytest.approx(-1e-3, rel=1e-3)


def test_critics_value_what_was_seen_before_and_a_true_end_is_worth_nothing_more():
    """A sign is shown in the first step and paid in the last: there Q is the sign, and discount 0 ends it."""
    learner = make(history=3, lr=3e-3, batch_size=32)
    draw = torch.Generator().manual_seed(0)

    def batches():
        while True:
            sign = torch.randint(0, 2, (32, 1), generator=draw) * 2.0 - 1.0
            state = torch.cat([sign[:, None, :].expand(32, 1, 2), torch.zeros(32, 3, 2)], 1)
            reward = torch.cat([torch.zeros(32, 2), sign], 1)
            obs, after = {"state": state[:, :-1]}, {"state": state[:, 1:]}
            yield windows(32, 3, discount=0.0, obs=obs, next_obs=after, reward=reward)

    stream = batches()
    for _ in range(300):
        learner.update(stream)
    for sign in (1.0, -1.0):
        seen = torch.tensor([[[sign, sign], [0.0, 0.0], [0.0, 0.0]]])
        z = learner.memory(seen, torch.zeros(1, 3, 1))
        q = learner.critic(z[:, 2], torch.zeros(1, 1))
        assert q[:, 0].tolist() == pytest.approx([sign, sign], abs=0.1)


def test_acting_remembers_what_training_unrolls_and_what_was_executed():
    learner = make(history=3)
    draw = torch.Generator().manual_seed(1)
    states, executed = torch.randn(2, 3, 2, generator=draw), torch.rand(2, 3, 1, generator=draw) - 0.5
    policy = learner.policy
    policy.reset()
    found = []
    for i in range(3):
        found.append(policy.act({"state": states[:, i]}, deterministic=True).value)
        policy.parts.executed(executed[:, i].numpy())
    before = torch.cat([torch.zeros(2, 1, 1), executed[:, :2]], 1)
    z = learner.sight(states, before)[:, -1]
    torch.testing.assert_close(found[-1], learner.actor(z)[:, :1].tanh().detach())
    policy.reset(np.array([True, False]))
    fresh = policy.act({"state": states[:, 0]}, deterministic=True).value
    alone = learner.sight(states[:1, :1], torch.zeros(1, 1, 1))[:, 0]
    torch.testing.assert_close(fresh[:1], learner.actor(alone)[:, :1].tanh().detach())


def test_a_run_that_goes_on_equals_one_that_was_not_cut():
    def loop(learner, buffer):
        env = ArrayVectorEnv(Pendulum(velocity=False, steps=25), 2, 0)
        return OffPolicy(env, learner, buffer, batch_size=6, learning_starts=20)

    def buffer():
        return ReplayBuffer(IO, 500, num_envs=2, gamma=0.9, window=4, seed=0)

    whole, first, second = (make() for _ in range(3))
    rows = [buffer() for _ in range(3)]
    loop(whole, rows[0]).run(90, lambda *_: False)
    half = loop(first, rows[1])
    half.run(60, lambda *_: False)
    rest = loop(second, rows[2])
    second.load_state_dict(first.state_dict())
    rows[2].load_state_dict(rows[1].state_dict())
    rest.load_state_dict(half.state_dict())
    rest.run(90, lambda *_: False)
    for part in ("sight", "memory", "actor", "critic"):
        assert torch.equal(getattr(whole, part).params.flat, getattr(second, part).params.flat), part


@pytest.mark.slow
def test_the_pendulum_without_its_velocity_is_held_upright():
    torch.set_num_threads(1)
    env = ArrayVectorEnv(Pendulum(velocity=False), 1, 0)
    learner = RecurrentSac(RecurrentSacOptions(), env.io, seed=0)
    buffer = ReplayBuffer(env.io, 6000, gamma=0.99, window=10)
    OffPolicy(env, learner, buffer, batch_size=32).run(6000, lambda *_: False)
    assert (
        np.mean(evaluate(ArrayVectorEnv(Pendulum(velocity=False), 10, 7), learner.policy, episodes=20).returns) > -300
    )
