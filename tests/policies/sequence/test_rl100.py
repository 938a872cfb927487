"""RL-100: densities along the chain, decisions of a rollout, the gate, and each stage on a task with a known answer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from robot_rl.data.buffer import ReplayBuffer
from robot_rl.policies.nets.diffusion import NoiseSchedule
from robot_rl.policies.sequence.rl100 import Chains, Rl100, Rl100Options, decisions
from robot_rl.policies.sequence.rl100_chain import DenoisingChain, chain_loss
from robot_rl.types import Episode, IOSpec, Rollout

IO = IOSpec({"state": ((2,), "float32")}, ("x",), (-1.0,), (1.0,), ("1",), 10.0)
SMALL: dict[str, Any] = {
    "horizon_pred": 2, "horizon_exec": 2, "hidden": (48, 48), "batch_size": 64, "noise_steps": 8, "sample_steps": 4,
    "tuned_steps": 4, "judge_hidden": (32, 32), "members": 2, "lr": 2e-3, "warmup": 0, "average_max": 0.98,
    "judge_lr": 3e-3, "tau": 0.05, "improve_lr": 1e-3, "gate_every": 10, "gate_decisions": 1, "gate_states": 128,
    "clone_updates": 250, "judge_updates": 150, "metrics_every": 1,
}  # fmt: skip


def log(count: int = 300) -> ReplayBuffer:
    """Episodes of two steps from one state; reward at the end 1 - sum (a - 0.5)^2, actions uniform in [-0.8, 0.8]."""
    buffer, rng = ReplayBuffer(IO, 4096, gamma=1.0, window=2, seed=0), np.random.default_rng(0)
    state = np.array([[0.0, 1.0], [0.5, 1.0], [1.0, 1.0]], np.float32)
    for _ in range(count):
        action = rng.uniform(-0.8, 0.8, (2, 1)).astype(np.float32)
        reward = np.array([0.0, 1.0 - ((action - 0.5) ** 2).sum()], np.float32)
        times = (np.zeros(2, bool), np.arange(3.0))
        buffer.add_episode(Episode({"state": state}, action, action, reward, True, False, *times, {}))
    return buffer


def mean_action(learner: Rl100, rows: int = 400) -> float:
    state = learner.see(torch.tensor([[0.0, 1.0]]).expand(rows, -1))
    noise = torch.randn(rows, 2, generator=torch.Generator().manual_seed(5))
    return float(learner.teacher(state, noise).mean())


def test_what_is_left_behind_the_improvement_teaches_the_student_alone() -> None:
    options = {**SMALL, "clone_updates": 60, "judge_updates": 10, "improve_updates": 10, "distill_from": 1}
    learner = Rl100(Rl100Options(**options), IO, seed=0)
    batches = log().batches(64)
    for _ in range(80):
        learner.update(batches)

    def lag() -> float:
        state = learner.see(torch.tensor([[0.0, 1.0]]).expand(400, -1))
        noise = torch.randn(400, 2, generator=torch.Generator().manual_seed(5))
        student = learner.student_net(state, noise)
        return float((student - learner.teacher(state, noise)).square().mean().detach())

    teacher, before, metrics = learner.acting.params.flat.clone(), lag(), {}
    for _ in range(150):
        metrics = learner.update(batches)
    assert torch.equal(learner.acting.params.flat, teacher)
    assert "train/distill_loss" in metrics
    assert lag() < 0.5 * before
    with pytest.raises(ValueError, match="a student to teach"):
        Rl100(Rl100Options(**{**options, "distill_from": 0}), IO)


def test_density_along_the_chain_is_that_of_the_draws() -> None:
    """A network that always predicts noise 0: every step is a Gaussian around a multiple of x, worked by hand."""
    schedule = NoiseSchedule.cosine(4)
    chain = DenoisingChain(schedule, 2, 1, eta=1.0, floor=0.1)
    state, draw = torch.zeros(3, 1), torch.Generator().manual_seed(0)
    start = torch.randn(3, 2, generator=draw) * 0.1
    latents = chain.sample(lambda s, x, t: torch.zeros_like(x), state, start, draw)
    assert latents.shape == (3, 2, 2)  # one tuned step: what it reads and what it gives
    level = schedule.level(0)  # the last step begins at index 0 and ends without noise: deviation 0, so the floor
    mean = (latents[:, 0] / level**0.5).clamp(-1, 1)
    executed = torch.tensor([[1.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
    expected = torch.distributions.Normal(mean, 0.1).log_prob(latents[:, 1]).clamp(-5, 2) * executed
    found = chain.log_density(torch.zeros(3, 1, 2), latents, executed)
    torch.testing.assert_close(found[:, 0], expected.sum(1) / executed.sum(1))
    total = DenoisingChain(schedule, 2, 1, eta=1.0, floor=0.1, reduce="sum").log_density(
        torch.zeros(3, 1, 2), latents, executed
    )
    torch.testing.assert_close(total[:, 0], expected.sum(1))


def test_a_chain_without_density_is_refused() -> None:
    with pytest.raises(ValueError, match="no density"):
        DenoisingChain(NoiseSchedule.cosine(4), 2, 2, floor=0.0)
    with pytest.raises(ValueError, match="tuned is 3"):
        DenoisingChain(NoiseSchedule.cosine(4), 2, 3)


def test_loss_stops_at_the_clip_range_of_each_step_and_weighs_noisy_steps_less() -> None:
    old = torch.zeros(1, 2)
    clip = torch.tensor([0.1, 0.3])
    for shift, sign, moves in ((0.2, 1.0, [0.0, 1.0]), (0.2, -1.0, [1.0, 1.0]), (-0.2, -1.0, [0.0, 1.0])):
        logp = torch.full((1, 2), shift, requires_grad=True)
        loss, _ = chain_loss(logp, old, torch.tensor([sign]), clip, 0.5)
        loss.backward()
        ratio = np.exp(shift)
        expected = [-sign * ratio * w / 2 * m for w, m in zip((0.5, 1.0), moves)]
        assert logp.grad is not None
        np.testing.assert_allclose(logp.grad, [expected], rtol=1e-5)


def rollout(*, terminated: bool) -> Rollout:
    """Chunks with rewards [1, 0, 2], [0, 1], [3] of one environment, values 1, 0.5, 2 at their starts, then 4."""
    reward = torch.tensor([1.0, 0.0, 2.0, 0.0, 1.0, 3.0])[:, None]
    start = torch.tensor([1, 0, 0, 1, 0, 1]).bool()[:, None]
    value = torch.tensor([1.0, 9.0, 9.0, 0.5, 9.0, 2.0])[:, None]
    end = torch.tensor([False] * 5 + [True])[:, None]
    nothing = torch.zeros(6, 1)
    return Rollout(
        {"state": torch.zeros(6, 1, 2)}, nothing[..., None], nothing, value, reward, torch.full((6, 1), 4.0),
        end & terminated, end & (not terminated), end, torch.ones(6, 1, dtype=torch.bool),
        {"chunk_start": start, "chain": torch.arange(6.0).view(6, 1, 1, 1)},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("terminated", "advantage"), [(True, [3.540478, 2.668, 1.0]), (False, [4.900967, 5.0008, 4.6])]
)
def test_decisions_of_a_rollout_have_the_golden_advantages(terminated: bool, advantage: list[float]) -> None:
    rows = decisions(rollout(terminated=terminated), 0.9, 0.8)
    np.testing.assert_allclose(rows["advantage"], advantage, atol=1e-5)
    assert rows["duration"].tolist() == [3, 2, 1]
    assert rows["chain"].flatten().tolist() == [0.0, 3.0, 5.0]
    np.testing.assert_allclose(rows["target"], np.array(advantage) + np.array([1.0, 0.5, 2.0]), atol=1e-5)


def test_a_row_that_only_resets_is_no_decision() -> None:
    """Two episodes with such a row between them, of absurd reward and value: the golden advantages twice."""
    one = rollout(terminated=True)
    between = {"reward": 1e6, "value": 1e6, "next_value": 1e6}

    def twice(name: str, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x, torch.full_like(x[:1], between.get(name, name == "chunk_start")), x])

    columns = {name: twice(name, x) for name, x in vars(one).items() if isinstance(x, torch.Tensor)}
    extras = {name: twice(name, x) for name, x in one.extras.items()}
    rows = decisions(Rollout(obs={"state": twice("state", one.obs["state"])}, extras=extras, **columns), 0.9, 0.8)
    np.testing.assert_allclose(rows["advantage"], [3.540478, 2.668, 1.0] * 2, atol=1e-5)
    assert rows["duration"].tolist() == [3, 2, 1] * 2
    assert rows["chain"].flatten().tolist() == [0.0, 3.0, 5.0] * 2


@pytest.fixture(scope="module")
def judged() -> tuple[Rl100, dict[str, Any]]:
    """A learner whose imitation and judge are done, and its state."""
    learner, batches = Rl100(Rl100Options(**SMALL), IO, gamma=1.0), log().batches(64)
    for _ in range(400):
        learner.update(batches)
    return learner, learner.state_dict()


def again(judged: tuple[Rl100, dict[str, Any]]) -> Rl100:
    learner = Rl100(Rl100Options(**SMALL), IO, gamma=1.0)
    learner.load_state_dict(judged[1])
    return learner


def test_judge_knows_which_chunks_are_better(judged: tuple[Rl100, dict[str, Any]]) -> None:
    learner = again(judged)
    state = learner.see(torch.tensor([[0.0, 1.0]] * 3))
    q = learner.judge.q(state, torch.tensor([[0.5, 0.5], [0.0, 0.0], [-0.7, -0.7]]))
    assert q[0] > q[1] > q[2]
    assert q[0].item() == pytest.approx(1.0, abs=0.3)


def test_chunks_on_which_the_models_disagree_count_as_poor_ones(judged: tuple[Rl100, dict[str, Any]]) -> None:
    learner = again(judged)
    state, chunk = learner.see(torch.tensor([[0.0, 1.0]] * 3)), torch.tensor([[0.5, 0.5], [0.0, 0.0], [-0.7, -0.7]])
    assert learner.judge.range.spread > 0
    learner.judge.range.spread.fill_(1e9)
    free, _, known = learner.judge.careful(state, chunk)
    assert known.all()
    torch.testing.assert_close(free, learner.judge.q(state, chunk))
    learner.judge.range.spread.fill_(0.0)
    value, _, known = learner.judge.careful(state, chunk)
    assert not known.any()
    torch.testing.assert_close(value, free.clamp_max(learner.judge.range.low))
    assert learner.judge.range.low < free[0]


def test_gate_refuses_a_harmful_candidate_and_throws_it_away(judged: tuple[Rl100, dict[str, Any]]) -> None:
    """The candidate is pushed towards action -0.7, the worst of the log: the policy that acts stays, bit for bit."""
    learner = again(judged)
    before = learner.acting.params.flat.clone()
    state = learner.see(torch.tensor([[0.0, 1.0]]).expand(64, -1))
    learner.restart()
    for _ in range(60):  # clone the worst action into the candidate
        latents = learner.propose(state)
        worst = -(latents[:, -1] + 0.7).square().mean(1)
        executed = torch.ones(64, 2)
        old = learner.log_density(learner.teacher_net, state, latents, executed).detach()
        gain = (worst - worst.mean()) / worst.std()
        learner.ppo_step(Chains(state, latents, executed, old, gain), torch.full((4,), 10.0), 1.0, 3e-3)
    assert not torch.equal(learner.teacher_net.params.flat, before)
    found = learner.consider(state)
    assert found["candidate_score"] < found["score"]
    assert learner.memory.counts.tolist() == [0, 1, 0]
    assert torch.equal(learner.acting.params.flat, before)
    assert torch.equal(learner.teacher_net.params.flat, before)


def test_offline_stage_improves_through_the_gate(judged: tuple[Rl100, dict[str, Any]]) -> None:
    learner, batches = again(judged), log().batches(64)
    before = mean_action(learner)
    assert abs(before) < 0.2  # the mean of the log
    for _ in range(150):
        metrics = learner.update(batches)
    assert metrics["train/accepted"] >= 3  # pyright: ignore[reportPossiblyUnboundVariable]
    assert mean_action(learner) > before + 0.15  # towards 0.5


def test_online_stage_goes_where_the_reward_is(judged: tuple[Rl100, dict[str, Any]]) -> None:
    """64 environments of one decision; PPO over the chain, V from the log as critic."""
    fast = {"online_lr": 1e-3, "clip_high": 0.05, "clip_low": 0.02, "epochs": 4}
    learner = Rl100(Rl100Options(**{**SMALL, **fast}), IO, gamma=1.0)
    learner.load_state_dict(judged[1])
    obs = {"state": np.array([[0.0, 1.0]] * 64, np.float32)}
    learner.policy.reset()
    before = mean_action(learner)
    for _ in range(20):
        first = learner.policy.act(obs)
        second = learner.policy.act(obs)
        action = np.stack([first.value, second.value])
        assert first.logp is not None
        reward = torch.zeros(2, 64)
        reward[1] = torch.as_tensor(1.0 - ((action - 0.5) ** 2).sum((0, 2)))
        end = torch.tensor([[False], [True]]).expand(2, 64)
        start = torch.as_tensor(np.stack([first.extras["chunk_start"], second.extras["chunk_start"]]))
        chain = torch.as_tensor(np.stack([first.extras["chain"], second.extras["chain"]]))
        assert start[0].all()
        assert not start[1].any()
        state = torch.as_tensor(np.stack([obs["state"]] * 2))
        value = learner.value(obs).expand(2, -1)
        learner.update(
            iter(
                [
                    Rollout(
                        {"state": state}, torch.as_tensor(action), torch.zeros(2, 64), value, reward,
                        torch.zeros(2, 64), end, torch.zeros_like(end), end, torch.ones_like(end),
                        {"chunk_start": start, "chain": chain},
                    )
                ]
            )
        )  # fmt: skip
    assert mean_action(learner) > before + 0.15


def test_save_load_update_equals_update(judged: tuple[Rl100, dict[str, Any]]) -> None:
    one, other = again(judged), Rl100(Rl100Options(**SMALL), IO, seed=3, gamma=1.0)
    batches = log(30).batches(64)
    data = [next(batches) for _ in range(24)]
    for b in data[:12]:
        one.update(iter([b]))
    other.load_state_dict(one.state_dict())
    for b in data[12:]:
        one.update(iter([b]))
        other.update(iter([b]))
    assert torch.equal(one.teacher_net.params.flat, other.teacher_net.params.flat)
    assert torch.equal(one.acting.params.flat, other.acting.params.flat)
