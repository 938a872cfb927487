"""ReCOIL and the divergence from demonstrations: numbers, and one expert among many random episodes."""

import numpy as np
import pytest
import torch

from robot_rl.data.log_dataset import LogDataset, LogView
from robot_rl.data.mix import Mix
from robot_rl.data.store import write_store
from robot_rl.policies.nets.rows import split
from robot_rl.policies.offline.bc import Bc
from robot_rl.policies.offline.demo_kl import DemoKl, gaussian_kl, squashed_nll
from robot_rl.policies.offline.recoil import Recoil


def test_recoil_critic_loss_is_the_derived_one(io, batch, make):
    learner = make(Recoil, io, hidden=(8, 8), batch_size=8, normalize=False, lr=1e-30)
    data = batch(8)
    rows, target = split(data, 1, None), torch.randn(1, 8)
    x = torch.cat([data.obs["state"], data.action], 1)[None]
    view = {name: v.detach().clone().requires_grad_() for name, v in learner.critic.params.view.items()}
    total = torch.zeros(())
    for e in range(2):
        h = x[0]
        for i in range(2):
            h = (h @ view[f"weight{i}"][e] + view[f"bias{i}"][e]).relu()
        q = (h @ view["weight2"][e] + view["bias2"][e])[:, 0]
        total = total - 0.5 * q[4:].mean() + 0.25 * (target[0] - q).square().mean()
    total.backward()
    learner.critic.step(learner.critic_loss(learner.critic(x), target, rows))
    for name, leaf in view.items():
        torch.testing.assert_close(learner.critic.params.grad_view[name], leaf.grad, rtol=1e-4, atol=1e-6)


def test_recoil_implied_reward_is_twice_the_share_of_the_expert(io, batch):
    """A critic with one free constant per kind of row: Q = discount V + 2 beta p_E / p_mix = 2 * 0.5 / 0.5 = 2."""
    q = torch.zeros(2)  # expert's rows, the others' rows; they do not overlap, p_E / p_mix = 2 on the expert's
    for _ in range(500):
        grad_expert = 0.5 * q[0] / 2 - 0.5  # the quarter term over half of the mix, beta times the expert's mean
        grad_other = 0.5 * q[1] / 2
        q -= torch.tensor([grad_expert, grad_other])
    assert q.tolist() == pytest.approx([2.0, 0.0], abs=1e-3)


def test_recoil_batches_without_source_are_explained(io, batch, make):
    with pytest.raises(ValueError, match="needs expert=<log>"):
        make(Recoil, io, hidden=(8,), batch_size=8).update(iter([batch(8, extras={})]))


def test_gaussian_kl_equals_torch_and_is_zero_for_equal_policies():
    raw = torch.randn(5, 4, dtype=torch.float64).clamp(-1.5, 1.5).requires_grad_()
    other = torch.randn(5, 4, dtype=torch.float64).clamp(-1.5, 1.5)
    pair = [torch.distributions.Normal(x[:, :2], x[:, 2:].exp()) for x in (raw, other)]
    expected = torch.distributions.kl_divergence(*pair).sum(-1)
    (slope,) = torch.autograd.grad(expected.sum(), raw, retain_graph=True)
    kl = gaussian_kl(raw, other)
    torch.testing.assert_close(kl, expected)
    torch.testing.assert_close(torch.autograd.grad(kl.sum(), raw)[0], slope)
    same = gaussian_kl(other, other)
    torch.testing.assert_close(same, torch.zeros_like(same))


def test_cloning_loss_is_torchs_log_density_but_for_constants():
    raw = torch.randn(5, 4, dtype=torch.float64).clamp(-1.5, 1.5)  # inside the limits of the log-std
    action = torch.rand(5, 2, dtype=torch.float64) * 1.6 - 0.8
    normal = torch.distributions.Normal(raw[:, :2], raw[:, 2:].exp())
    expected = -normal.log_prob(torch.atanh(action)).sum(-1) - np.log(2 * np.pi)  # A / 2 log 2 pi with A = 2
    torch.testing.assert_close(squashed_nll(raw, action), expected)


def test_kl_weight_decays_to_zero_after_cloning(io, batch, make):
    learner = make(DemoKl, io, hidden=(8,), batch_size=8, weight=2.0, clone_updates=2, decay_updates=4)
    seen = []
    for _ in range(8):
        seen.append(learner.weight)
        learner.update(iter([batch(8)]))
    assert seen == pytest.approx([2.0, 2.0, 2.0, 1.5, 1.0, 0.5, 0.0, 0.0])


def test_the_clone_is_of_the_second_part_of_a_mix(io, batch, make):
    """As everywhere: what `expert=` adds to a log, and `demos=` to a run's own steps."""
    learner, data = (
        make(DemoKl, io, hidden=(8,), batch_size=8, clone_updates=2, normalize=False, metrics_every=1),
        batch(8),
    )
    with torch.no_grad():
        expected = squashed_nll(learner.clone(data.obs["state"][None])[0], data.action)[4:].mean()
    assert learner.update(iter([data]))["train/clone_loss"] == pytest.approx(float(expected))


@pytest.fixture(scope="module")
def expert(point, tmp_path_factory):
    """Three episodes of somebody who walks home."""
    rng = np.random.default_rng(5)
    episodes = [
        point.episode(rng.uniform(-1, 1, 2), lambda x: np.clip(-x / 0.3, -0.95, 0.95).astype(np.float32))
        for _ in range(3)
    ]
    return write_store(tmp_path_factory.mktemp("expert") / "expert.store", episodes, io=point.io)


def mix(point, expert):
    demos = LogDataset(expert, LogView(gamma=point.gamma), seed=1)
    return Mix({"other": (point.sampler(), 0.5), "expert": (demos, 0.5)}).batches(128)


def test_recoil_with_few_demonstrations_beats_cloning_everything(point, expert, make):
    options = {"hidden": (32, 32), "batch_size": 128, "lr": 2e-3}
    learner = make(Recoil, point.io, **options, tau=0.02, actor_decay=0, beta=6.0)
    learner.prepare(point.facts)
    batches = mix(point, expert)
    for _ in range(900):
        learner.update(batches)
    everything = make(Bc, point.io, **options)
    everything.prepare(point.facts)
    batches = mix(point, expert)
    for _ in range(500):
        everything.update(batches)
    ours, clone = point.score(learner.policy), point.score(everything.policy)
    assert ours > clone + 0.3
    assert ours > -3.5


def test_demo_kl_stays_near_the_demonstrations_and_walks_home(point, expert, make):
    options = {"hidden": (32, 32), "batch_size": 128, "lr": 2e-3, "tau": 0.02, "weight": 0.5}
    learner = make(DemoKl, point.io, clone_updates=400, **options)
    learner.prepare(point.facts)
    batches = mix(point, expert)
    for _ in range(900):
        learner.update(batches)
    assert point.score(learner.policy) > -3.0
