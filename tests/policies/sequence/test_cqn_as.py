"""CQN-AS: known values of every slot, ends of episodes, what values per dimension cannot tell, saving."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from robot_rl.chunks import Execution, Horizons
from robot_rl.data.buffer import ReplayBuffer
from robot_rl.policies.sequence.cqn_as import CqnAs, CqnAsOptions
from robot_rl.types import Episode, IOSpec

SMALL: dict[str, Any] = {"hidden": 32, "batch_size": 32, "levels": 2, "bins": 3, "metrics_every": 1, "lr": 3e-3}


def interface(dims: int) -> IOSpec:
    names = tuple("xyz"[:dims])
    return IOSpec({"state": ((2,), "float32")}, names, (-1.0,) * dims, (1.0,) * dims, ("1",) * dims, 10.0)


def episode(action: np.ndarray, reward: np.ndarray, *, terminated: bool = True) -> Episode:
    length = len(action)
    t = np.arange(length + 1) / length
    state = np.stack([t, np.ones_like(t)], 1).astype(np.float32)
    action = action.astype(np.float32)
    flags = (terminated, not terminated, np.zeros(length, bool), np.arange(length + 1.0))
    return Episode({"state": state}, action, action, reward.astype(np.float32), *flags, {})


def buffer_of(io: IOSpec, window: int, episodes: list[Episode], gamma: float = 0.9) -> ReplayBuffer:
    buffer = ReplayBuffer(io, 8192, gamma=gamma, window=window, seed=0)
    for item in episodes:
        buffer.add_episode(item)
    return buffer


def trained(learner: CqnAs, buffer: ReplayBuffer, updates: int) -> CqnAs:
    batches = buffer.batches(learner.need.rows)
    for _ in range(updates):
        learner.update(batches)
    return learner


def values(learner: CqnAs, state: np.ndarray, action: np.ndarray) -> np.ndarray:
    """(B, L, T, D) values of the slots of chunks (B, T, D)."""
    code = learner.codes.encode(torch.as_tensor(action, dtype=torch.float32)).transpose(1, 2)
    found = []
    with torch.no_grad():
        for level in range(learner.codes.levels):
            middle = learner._middle(code[:, :level])
            out = learner.critic.compute(learner.see(torch.as_tensor(state)), middle, level)
            value = learner.head.value(out)
            found.append(value.gather(-1, code[:, level, ..., None])[..., 0])
    return torch.stack(found, 1).numpy()


@pytest.mark.parametrize("options", [{}, {"value_head": "c51", "value_range": (-0.5, 1.5)}])
def test_every_slot_of_a_chain_is_valued_near_its_end_too(options: dict[str, Any]) -> None:
    """Seven steps, reward 1 at the end, gamma 0.9, T = 3: every slot of a chunk from t is worth 0.9^(6 - t).

    Chunks padded with the last action, as in the source, would give later steps of the last states values that no data
    ever corrects.
    """
    io, rng = interface(1), np.random.default_rng(0)
    logs = [episode(rng.uniform(-0.9, 0.9, (7, 1)), np.eye(7)[-1]) for _ in range(30)]
    learner = CqnAs(CqnAsOptions(**SMALL, horizon=3, tau=0.1, demo_weight=0.0, **options), io)
    trained(learner, buffer_of(io, 3, logs), 300)
    start = np.arange(7)
    for seed in range(3):  # any chunk, also behind the end
        chunk = np.random.default_rng(seed).uniform(-0.9, 0.9, (7, 3, 1))
        found = values(learner, logs[0].obs["state"][:7], chunk)
        expected = np.broadcast_to(0.9 ** (6 - start)[:, None, None, None], found.shape)
        assert np.abs(found - expected).mean() < 0.07
        np.testing.assert_allclose(found, expected, atol=0.3)


def test_time_limit_bootstraps_and_a_true_end_does_not() -> None:
    io, found = interface(1), {}
    for terminated in (True, False):
        log = episode(np.zeros((4, 1)), np.ones(4), terminated=terminated)
        learner = CqnAs(CqnAsOptions(**SMALL, horizon=1, tau=0.1, demo_weight=0.0), io)
        trained(learner, buffer_of(io, 1, [log], gamma=0.8), 200)
        found[terminated] = values(learner, log.obs["state"][3:4], np.zeros((1, 1, 1))).mean()
    assert found[True] == pytest.approx(1.0, abs=0.15)
    assert found[False] > 3.0


def test_nstep_bootstraps_before_the_chunk_ends_and_is_played_that_far() -> None:
    """Reward 1 per step, T = 4, n = 2, no bootstrap where the episode ends inside."""
    io = interface(1)
    learner = CqnAs(CqnAsOptions(**SMALL, horizon=4, value_semantics="nstep", n_step=2, demo_weight=0.0), io)
    assert isinstance(learner.policy.execution, Execution)
    assert learner.policy.execution.horizons == Horizons(4, 4, 2)
    batch = next(buffer_of(io, 4, [episode(np.zeros((6, 1)), np.arange(6.0))]).batches(64))
    seen = {}

    def record(after: torch.Tensor, reward: torch.Tensor, discount: torch.Tensor) -> torch.Tensor:
        seen.update(after=after, reward=reward, discount=discount)
        return CqnAs._targets(learner, after, reward, discount)

    learner._targets = record  # type: ignore[method-assign]
    learner.update(iter([batch]))
    t = torch.round(batch.obs["state"][:, 0, 0] * 6)
    inside = t < 4
    torch.testing.assert_close(seen["reward"][inside], (t + 0.9 * (t + 1))[inside])
    torch.testing.assert_close(seen["discount"], torch.where(inside, 0.81, 0.0))
    torch.testing.assert_close(seen["after"][inside][:, 0], ((t + 2) / 6)[inside])
    with pytest.raises(ValueError, match="windows hold no more steps"):
        CqnAs(CqnAsOptions(**SMALL, horizon=2, value_semantics="nstep", n_step=3), io)


def test_actor_goes_where_the_reward_is() -> None:
    """Reward at the end -2 sum (a - 0.66)^2 over two steps, uniform data."""
    io, rng = interface(1), np.random.default_rng(0)
    logs = []
    for _ in range(400):
        action = rng.uniform(-1, 1, (2, 1))
        logs.append(episode(action, np.array([0.0, -2.0 * ((action - 0.66) ** 2).sum()])))
    learner = CqnAs(CqnAsOptions(**SMALL, horizon=2, demo_weight=0.0), io)
    trained(learner, buffer_of(io, 2, logs, gamma=1.0), 250)
    acted = learner.policy.act({"state": np.array([[0.0, 1.0]], np.float32)}, deterministic=True).value
    assert acted[0, 0] == pytest.approx(0.66, abs=0.34)


def test_values_per_dimension_cannot_tell_two_ways_of_acting_apart() -> None:
    """x and y alike pay 1, opposite 0: the first digits by themselves are worth 0.5 (ARSQ's test, failed)."""
    io, rng = interface(2), np.random.default_rng(0)
    logs = []
    for _ in range(600):
        x, y = rng.choice([-0.66, 0.66], 2)
        logs.append(episode(np.array([[x, y]]), np.array([float(x == y)])))
    learner = CqnAs(CqnAsOptions(**SMALL, horizon=1, demo_weight=0.0), io)
    trained(learner, buffer_of(io, 1, logs), 150)
    state = np.array([[0.0, 1.0]] * 2, np.float32)
    found = values(learner, state, np.array([[[0.66, 0.66]], [[0.66, -0.66]]]))[:, 0]
    np.testing.assert_allclose(found, 0.5, atol=0.15)


def test_demonstrated_bins_lead_by_the_margin() -> None:
    io = interface(1)
    learner = CqnAs(CqnAsOptions(**SMALL, horizon=1, demo_margin=0.2, demo_weight=10.0), io)
    batches = buffer_of(io, 1, [episode(np.full((1, 1), 0.66), np.zeros(1))]).batches(32)
    for _ in range(200):
        batch = next(batches)
        batch.extras["step"] = torch.zeros(32, dtype=torch.int64)  # a log
        metrics = learner.update(iter([batch]))
    assert metrics["train/demo_loss"] < 0.05  # pyright: ignore[reportPossiblyUnboundVariable]
    acted = learner.policy.act({"state": np.array([[0.0, 1.0]], np.float32)}, deterministic=True).value
    assert acted[0, 0] == pytest.approx(0.66, abs=0.12)


@pytest.mark.parametrize("options", [{}, {"value_head": "c51"}, {"value_semantics": "nstep", "n_step": 1}])
def test_save_load_update_equals_update(options: dict[str, Any]) -> None:
    io, rng = interface(1), np.random.default_rng(0)
    one, other = (CqnAs(CqnAsOptions(**SMALL, horizon=3, **options), io, seed=i) for i in (1, 2))
    batches = buffer_of(io, 3, [episode(rng.uniform(-1, 1, (9, 1)), np.ones(9)) for _ in range(4)]).batches(32)
    data = [next(batches) for _ in range(5)]
    for b in data[:3]:
        one.update(iter([b]))
    other.load_state_dict(one.state_dict())
    for b in data[3:]:
        assert one.update(iter([b])) == other.update(iter([b]))
    obs = {"state": np.ones((3, 2), np.float32)}
    np.testing.assert_array_equal(one.policy.act(obs).value, other.policy.act(obs).value)
    single = next(buffer_of(io, 3, [episode(np.zeros((1, 1)), np.ones(1))]).batches(1))
    assert np.isfinite(one.update(iter([single]))["train/q"])


def test_step_size_falls_as_a_cosine_and_ends_at_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    io, rng, seen = interface(1), np.random.default_rng(0), []
    learner = CqnAs(CqnAsOptions(**SMALL, horizon=3, decay=4), io)
    monkeypatch.setattr(learner.critic.params, "adam", lambda lr, beta1: seen.append(lr))
    trained(learner, buffer_of(io, 3, [episode(rng.uniform(-1, 1, (9, 1)), np.ones(9)) for _ in range(4)]), 6)
    assert seen == pytest.approx([3e-3 * share for share in (1.0, 0.853553, 0.5, 0.146447, 0.0, 0.0)], abs=1e-8)
    with pytest.raises(ValueError, match="decay"):
        CqnAs(CqnAsOptions(**SMALL, decay=-1), io)
