"""Q-chunking, QC-FQL and FQL: known values, gradients, saving, and a task where the best action is known."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from robot_rl.chunks import critic_action
from robot_rl.data.buffer import ReplayBuffer
from robot_rl.policies.nets.flow import ChunkFlow
from robot_rl.policies.nets.net import Net, NetShape
from robot_rl.policies.sequence.fql import Fql, FqlOptions
from robot_rl.policies.sequence.qc import Qc, QcOptions
from robot_rl.policies.sequence.qc_fql import QcFql, QcFqlOptions
from robot_rl.types import Episode, IOSpec, Transitions

IO = IOSpec({"state": ((2,), "float32")}, ("x",), (-1.0,), (1.0,), ("1",), 10.0)
SMALL: dict[str, Any] = {"hidden": (32, 32), "batch_size": 32, "flow_steps": 3, "metrics_every": 1}
KINDS = {
    "qc": (Qc, QcOptions, {"samples": 3}),
    "qc hlgauss": (Qc, QcOptions, {"samples": 2, "value_head": "hlgauss"}),
    "qc c51 min": (Qc, QcOptions, {"samples": 2, "value_head": "c51", "q_reduce": "min"}),
    "qc_fql": (QcFql, QcFqlOptions, {}),
    "qc_fql quantile": (QcFql, QcFqlOptions, {"value_head": "quantile", "bins": 8, "normalize_q": True}),
    "fql": (Fql, FqlOptions, {}),
}


def episode(length: int, *, terminated: bool, reward: str = "end", seed: int = 0) -> Episode:
    rng = np.random.default_rng(seed)
    t = np.arange(length + 1) / length
    action = rng.uniform(-0.9, 0.9, (length, 1)).astype(np.float32)
    gain = np.ones(length, np.float32) if reward == "each" else np.eye(length, dtype=np.float32)[-1]
    return Episode(
        obs={"state": np.stack([t, np.ones_like(t)], 1).astype(np.float32)},
        action=action,
        proposed=action,
        reward=gain,
        terminated=terminated,
        truncated=not terminated,
        intervened=np.zeros(length, bool),
        stamp=np.arange(length + 1.0),
    )


def buffer_of(window: int, episodes: list[Episode], gamma: float = 0.9) -> ReplayBuffer:
    buffer = ReplayBuffer(IO, 4096, gamma=gamma, window=window, seed=0)
    for item in episodes:
        buffer.add_episode(item)
    return buffer


def build(name: str, seed: int = 0, **options: Any) -> Any:
    kind, stated, own = KINDS[name]
    return kind(stated.model_validate({**SMALL, **own, **options}), IO, seed=seed)


def differing(a: Any, b: Any, path: str = "") -> list[str]:
    if isinstance(a, dict):
        return [line for key in a for line in differing(a[key], b[key], f"{path}/{key}")]
    same = torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b
    return [] if same else [path]


@pytest.mark.parametrize("name", KINDS)
def test_save_load_update_equals_update(name: str) -> None:
    one, other = build(name, 1), build(name, 2)
    batches = buffer_of(one.need.window, [episode(9, terminated=True, seed=i) for i in range(4)]).batches(32)
    data = [next(batches) for _ in range(5)]
    for b in data[:3]:
        one.update(iter([b]))
    other.load_state_dict(one.state_dict())
    for b in data[3:]:
        assert one.update(iter([b])) == other.update(iter([b]))
    assert not differing(one.state_dict(), other.state_dict())
    one.policy.reset()
    other.policy.reset()
    obs = {"state": np.zeros((3, 2), np.float32)}
    np.testing.assert_array_equal(one.policy.act(obs).value, other.policy.act(obs).value)


@pytest.mark.parametrize("name", KINDS)
def test_batch_of_one_and_actions_in_bounds(name: str) -> None:
    learner = build(name, batch_size=1)
    batches = buffer_of(learner.need.window, [episode(3, terminated=True)]).batches(1)
    for _ in range(3):
        metrics = learner.update(batches)
    assert np.isfinite(list(metrics.values())).all()  # pyright: ignore[reportPossiblyUnboundVariable]
    for _ in range(7):
        action = learner.policy.act({"state": np.full((4, 2), 50.0, np.float32)}).value
        assert action.shape == (4, 1)
        assert np.abs(action).max() <= 1.0


def test_window_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match="windows of 3 steps, expected 5"):
        build("qc").update(buffer_of(3, [episode(9, terminated=True)]).batches(32))


def trained(learner: Any, buffer: ReplayBuffer, updates: int) -> Any:
    batches: Iterator[Transitions] = buffer.batches(learner.need.rows)
    for _ in range(updates):
        learner.update(batches)
    return learner


def values(learner: Any, states: np.ndarray, chunk: np.ndarray, mask: np.ndarray) -> np.ndarray:
    x = torch.cat(
        [learner.see(torch.as_tensor(states)), critic_action(torch.as_tensor(chunk), torch.as_tensor(mask))], 1
    )
    return learner.head.value(learner.critic(x)).detach().mean(0).numpy()


def test_every_start_of_a_chain_is_valued_partial_chunks_too() -> None:
    """Seven steps, reward 1 at the end, gamma 0.9, h = 3: a chunk from t is worth 0.9^(6 - t), whatever its length."""
    log = episode(7, terminated=True)
    learner = build("qc", samples=1, flow_steps=1, horizon=3, lr=3e-3, tau=0.05, hidden=(64,))
    trained(learner, buffer_of(3, [log]), 400)
    start = np.arange(7)
    at = np.minimum(start[:, None] + np.arange(3), 6)
    found = values(learner, log.obs["state"][:7], log.action[at], np.ones((7, 3), bool))
    np.testing.assert_allclose(found, 0.9 ** (6 - start), atol=0.1)


def test_time_limit_bootstraps_and_a_true_end_does_not() -> None:
    """Reward 1 per step: worth 1 / (1 - gamma) = 5 if the limit bootstraps, less near a true end."""
    last = np.array([[1.0, 1.0]], np.float32) * [[0.75, 1.0]]
    found = {}
    for terminated in (True, False):
        log = episode(4, terminated=terminated, reward="each")
        learner = build("fql", lr=3e-3, tau=0.05, hidden=(64,), alpha=1.0)
        trained(learner, buffer_of(1, [log], gamma=0.8), 300)
        found[terminated] = values(learner, last.astype(np.float32), log.action[None, 3:4], np.ones((1, 1), bool))[0]
    assert found[True] == pytest.approx(1.0, abs=0.15)
    assert found[False] > 3.0


def test_best_of_many_samples_has_the_higher_value() -> None:
    learner = build("qc", samples=16)
    trained(learner, buffer_of(5, [episode(9, terminated=True, seed=i) for i in range(4)]), 5)
    state, generator = torch.rand(64, 2), torch.Generator().manual_seed(0)
    best = learner.choose(state, generator)
    plain = learner.flow.sample(state, learner.flow.noise(64, generator))
    value = [learner.head.value(learner.outputs(learner.critic, state, chunk)).mean() for chunk in (best, plain)]
    assert value[0] > value[1]


def test_critic_step_leaves_the_target_to_polyak_and_the_actor_alone() -> None:
    learner = build("qc_fql", tau=0.25)
    batches = buffer_of(5, [episode(9, terminated=True)]).batches(32)
    before = learner.target.params.flat.clone()
    learner.update(batches)
    expected = before + 0.25 * (learner.critic.params.flat - before)
    torch.testing.assert_close(learner.target.params.flat, expected)
    frozen = build("qc_fql")
    kept = frozen.critic.params.flat.clone()
    frozen.actor_step(torch.zeros(4, 2))
    assert torch.equal(frozen.critic.params.flat, kept)  # the actor's step moves no critic


def test_clone_loss_is_the_mean_over_executed_entries() -> None:
    """One executed entry of four: the source divides by all four."""
    sizes = NetShape(2 + 4 + 1, 4, (8,))
    net = Net("flow", sizes, generator=torch.Generator(), draw=lambda shape, params, draw: None)
    flow = ChunkFlow(net, 4, 1)  # zero weights: v = 0, so the loss is mean (chunk - noise)^2 of the entry
    chunk, mask = torch.tensor([[[0.5], [0.0], [0.0], [0.0]]]), torch.tensor([[True, False, False, False]])
    noise = torch.randn(1, 4, generator=torch.Generator().manual_seed(7))
    loss = flow.clone_loss(torch.zeros(1, 2), chunk, mask, torch.Generator().manual_seed(7))
    net.step(loss)
    assert loss.item() == pytest.approx((0.5 - noise[0, 0].item()) ** 2, rel=1e-5)
    bias = net.params.grad_view["bias1"][0]
    assert bias[0].item() == pytest.approx(-2.0 * (0.5 - noise[0, 0].item()), rel=1e-5)
    assert bias[1:].abs().sum() == 0.0


def bandit(horizon: int, *, size: int = 400) -> list[Episode]:
    """Episodes of `horizon` steps whose reward, at the end, is 1 - mean (a - 0.5)^2; actions uniform."""
    found = []
    for i in range(size):
        log = episode(horizon, terminated=True, seed=i)
        log.reward[:] = 0.0
        log.reward[-1] = 1.0 - float(((log.action - 0.5) ** 2).mean())
        found.append(log)
    return found


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("fql", {"alpha": 0.03, "normalize_q": True}),
        ("qc_fql", {"alpha": 0.03, "normalize_q": True, "horizon": 2}),
        ("qc", {"samples": 24, "horizon": 2}),
    ],
)
def test_actor_goes_where_the_reward_is(name: str, options: dict[str, Any]) -> None:
    learner = build(name, lr=1e-3, tau=0.02, batch_size=64, **options)
    trained(learner, buffer_of(learner.need.window, bandit(2), gamma=1.0), 400)
    start = {"state": np.tile(np.array([[0.0, 1.0]], np.float32), (200, 1))}
    actions = np.concatenate([learner.policy.act(start).value[:, 0] for _ in range(learner.need.window)])
    assert abs(float(actions.mean()) - 0.5) < 0.2
    assert float(actions.std()) < 0.35  # the data's is 0.52


@pytest.mark.slow
def test_strong_distillation_keeps_the_actor_at_the_data() -> None:
    learner = build("fql", lr=1e-3, alpha=1000.0, batch_size=64, flow_steps=5)
    trained(learner, buffer_of(1, bandit(2), gamma=1.0), 400)
    start = {"state": np.tile(np.array([[0.0, 1.0]], np.float32), (500, 1))}
    actions = learner.policy.act(start).value[:, 0]
    assert abs(float(actions.mean())) < 0.15
    assert float(actions.std()) > 0.35
