"""Digi-Q: its choice by hand, values with a known answer, and a policy better than what it was cloned from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from robot_rl.chunks import chunk_rows
from robot_rl.data.features import features
from robot_rl.data.log_dataset import LogDataset, LogView
from robot_rl.data.store import write_store
from robot_rl.policies.vla.context import ContextCriticOptions, ContextLearner
from robot_rl.policies.vla.critic import CriticLearner, TinyCriticOptions
from robot_rl.policies.vla.digi_q import DigiQ, DigiQOptions, best_candidate
from robot_rl.policies.vla.frozen import FrozenReader
from robot_rl.policies.vla.imitation import VlaImitation, VlaImitationOptions
from robot_rl.sim.engine_options import EngineOptions
from robot_rl.sim.mujoco_env import make
from robot_rl.sim.worlds.tabletop import Tabletop
from robot_rl.types import Episode, IOSpec, LogFacts, Transitions

IO = IOSpec(
    {"state": ((3,), "float32"), "image.top": ((16, 16, 3), "uint8"), "instruction": ((12,), "uint8")},
    ("tip_dx", "tip_dy"), (-0.03, -0.03), (0.03, 0.03), ("m", "m"), 10.0, ("tip_x", "tip_y", "goal"),
)  # fmt: skip
SMALL: dict[str, Any] = {
    "proprio": ["tip_*"], "batch_size": 64, "hidden": [64, 64], "candidates": 6, "flow_steps": 4, "lr": 2e-3,
    "tau": 0.05, "clone_updates": 150, "metrics_every": 1, "reader": {"kind": "tiny", "width": 6},
}  # fmt: skip


def new(io: IOSpec = IO, seed: int = 0, **changes: Any) -> DigiQ:
    return DigiQ(DigiQOptions(**{**SMALL, **changes}), io, seed=seed)


def made(io: IOSpec = IO, seed: int = 0, **changes: Any) -> DigiQ:
    learner = new(io, seed, **changes)
    width = learner.reader.width
    learner.prepare(
        LogFacts(
            np.zeros(3),
            np.ones(3),
            0.0,
            1.0,
            0.9,
            10,
            0.0,
            1.0,
            derived={"features": (np.zeros(width), np.ones(width))},
        )
    )
    return learner


def batches(
    horizon: int = 2, *, size: int = 64, seed: int = 0, reward: float | None = None, ends: str = "terminated"
) -> Iterator[Transitions]:
    """One decision per episode. Half of the chunks go to the right, which pays 1, half to the left, which pays 0."""
    draw = torch.Generator().manual_seed(seed)
    while True:
        right = torch.rand(size, generator=draw) < 0.5
        action = torch.randn(size, horizon, 2, generator=draw) * 0.05
        action[..., 0] += torch.where(right, 0.7, -0.7)[:, None]
        pay = torch.zeros(size, horizon)
        pay[:, -1] = right.float() if reward is None else reward
        obs = {
            "state": torch.randn(size, horizon, 3, generator=draw) * 0.1,
            "features": torch.randn(size, horizon, 6, generator=draw) * 0.1,
        }
        over = torch.zeros(size, horizon, dtype=torch.bool)
        over[:, -1] = True
        no = torch.zeros_like(over)
        stop = over if ends == "terminated" else no
        yield Transitions(
            obs, action, pay, 0.9 * (~stop).float(), obs, stop, no if ends == "terminated" else over, no, ~no
        )


def seen(size: int) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(5)
    return {
        "state": draw.normal(0.0, 0.1, (size, 3)).astype(np.float32),
        "image.top": draw.integers(0, 256, (size, 16, 16, 3)).astype(np.uint8),
        "instruction": np.zeros((size, 12), np.uint8) + np.frombuffer(b"go right now", np.uint8),
    }


def test_choice_is_the_one_worked_out_by_hand() -> None:
    q = torch.tensor([[0.2, 0.5, 0.3], [0.1, 0.14, float("nan")], [0.9, 9.0, 0.0], [float("nan")] * 3])
    value = torch.tensor([0.3, 0.1, 0.5, 0.0])
    best, chosen, advantage = best_candidate(q, value, threshold=0.05)
    assert best.tolist()[:3] == [1, 1, 1]
    assert chosen.tolist() == [True, False, True, False]  # .2; .04 is too little; 8.5 counts as 1; nothing readable
    torch.testing.assert_close(advantage, torch.tensor([0.2, 0.04, 1.0, 0.0]), atol=1e-6, rtol=0)
    _, scaled, _ = best_candidate(q, value, scale=10.0, threshold=0.05)
    assert scaled.tolist() == [False, False, True, False]


@pytest.mark.parametrize(("ends", "value"), [("terminated", 1.0), ("truncated", 10.0)])
@pytest.mark.parametrize("aggregate", ["min", "max"])
def test_value_of_a_constant_reward_bootstraps_through_a_time_limit_alone(
    ends: str, value: float, aggregate: str
) -> None:
    learner = made(horizon=1, clone_updates=10_000, aggregate=aggregate, hidden=[32, 32], tau=0.2)
    data = batches(1, reward=1.0, ends=ends)
    metrics: dict[str, float] = {}
    for _ in range(500):
        metrics = learner.update(data)
    assert metrics["train/q"] == pytest.approx(value, rel=0.12)
    assert metrics["train/value"] == pytest.approx(value, rel=0.12)


@pytest.mark.slow
def test_policy_is_better_than_its_clone_on_two_kinds_of_behaviour() -> None:
    learner, clone = made(horizon=2), made(horizon=2, acts="clone")
    metrics: dict[str, float] = {}
    data, same = batches(), batches()
    for _ in range(700):
        metrics = learner.update(data)
        clone.update(same)
    assert metrics["train/value"] == pytest.approx(0.45, abs=0.12)  # half of the chunks earn .9 behind one step
    assert 0.2 < metrics["train/chosen"] <= 1.0
    obs = seen(200)
    right = [float((x.policy.act(obs).value[:, 0] > 0.3).mean()) for x in (clone, learner)]
    assert 0.3 < right[0] < 0.7
    assert right[1] > 0.9


def test_frozen_weights_stay_and_continued_learner_is_the_learner_bit_for_bit() -> None:
    one, data = made(horizon=2, clone_updates=2), batches()
    before = one.reader.digest
    for _ in range(4):
        one.update(data)
    other = made(horizon=2, clone_updates=2, seed=7, reader=SMALL["reader"])
    other.load_state_dict(one.state_dict())
    for learner in (one, other):
        learner.update(batches(seed=9))
    a, b = one.state_dict(), other.state_dict()
    for name in ("critic", "value", "clone", "actor", "target_critic", "target_value"):
        assert torch.equal(a[name]["flat"], b[name]["flat"]), name
    obs = seen(3)
    np.testing.assert_array_equal(
        one.policy.act(obs, deterministic=True).value, other.policy.act(obs, deterministic=True).value
    )
    assert FrozenReader(IO, SMALL["reader"]).digest == before
    assert not any(p.requires_grad for p in one.reader._model.parameters())


def test_masked_rows_and_batch_of_one() -> None:
    learner = made(horizon=2, clone_updates=0, batch_size=1)
    batch = next(batches(size=1))
    cut = replace(batch, mask=torch.tensor([[True, False]]))
    learner.update(iter([cut]))
    assert np.isfinite(learner.update(iter([batch]))["train/q"])


def test_policy_refuses_features_of_another_reader() -> None:
    one, other = made(), made(reader={"kind": "tiny", "width": 6, "seed": 1})
    with pytest.raises(ValueError, match="features of another reader"):
        other.policy.load_state_dict(one.policy.state_dict())


def test_reader_reads_the_trunk_of_a_critic_and_of_a_policy(tmp_path: Path) -> None:
    critic = CriticLearner(TinyCriticOptions(size=(16, 16), width=24))
    (tmp_path / "checkpoints/step_000000001").mkdir(parents=True)
    torch.save(critic.state_dict(), tmp_path / "checkpoints/step_000000001/learner.pt")
    reader = FrozenReader(IO, {"kind": "critic", "path": str(tmp_path)})
    obs = seen(4)
    out = reader(obs)
    assert out.shape == (4, 24 + 36)  # the reading, and where 12 pointers look
    net = critic.critic()
    direct = net.moments(obs["image.top"], ["go right now"] * 4).reading
    np.testing.assert_allclose(out[:, :24], direct.numpy(), atol=1e-5)
    assert (np.abs(out[:, 24:].reshape(4, 12, 3)[..., :2]) <= 1.0).all()  # places in the picture
    large = replace(IO, obs={**IO.obs, "image.top": ((32, 32, 3), "uint8")})
    with pytest.raises(ValueError, match="pictures of another size"):
        FrozenReader(large, {"kind": "critic", "path": str(tmp_path)})
    for state in (ContextLearner(ContextCriticOptions(size=(16, 16))).state_dict(), {"kind": "another learner"}):
        torch.save(state, tmp_path / "checkpoints/step_000000001/learner.pt")
        with pytest.raises(ValueError, match="no critic of sentences"):
            FrozenReader(IO, {"kind": "critic", "path": str(tmp_path)})
    imitation = VlaImitation(
        VlaImitationOptions(backbone={"kind": "tiny", "width": 10}, proprio=("tip_*",), trunk=(16,)), IO
    )
    imitation._actions = np.random.default_rng(0).uniform(-1, 1, (50, 2)).astype(np.float32)
    folder = imitation.export(tmp_path / "model")
    reader = FrozenReader(IO, {"kind": "policy", "path": str(folder)})
    wanted = imitation.policy.planner.model.backbone(torch.as_tensor(obs["image.top"])[:, None], ["go right now"] * 4)
    np.testing.assert_allclose(reader(obs), wanted.detach().numpy(), atol=1e-5)


def test_reader_reads_a_vision_language_model() -> None:
    pytest.importorskip("transformers")
    from tests.policies.vla.tiny_models import tiny_config

    io = replace(IO, obs={**IO.obs, "image.top": ((64, 64, 3), "uint8")})
    learner = new(io, reader={"kind": "transformers", "config": tiny_config("smolvlm")})
    obs = {**seen(2), "image.top": np.random.default_rng(0).integers(0, 256, (2, 64, 64, 3)).astype(np.uint8)}
    assert learner.reader(obs).shape == (2, learner.reader.width)
    assert learner.policy.act(obs).value.shape == (2, 2)
    with pytest.raises(ValueError, match="64 x 64"):
        FrozenReader(IO, {"kind": "transformers", "config": tiny_config("smolvlm")})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"aggregate": "mean"}, "expected min or max"),
        ({"candidates": 1}, "expected a whole number of at least 2"),
        ({"value_scale": 0.0}, "expected a number above 0"),
        ({"reader": {"kind": "cloud"}}, "expected one of tiny"),
        ({"reader": {"kind": "transformers"}}, "option of 'transformers' is wrong: 'config'"),
        ({"cameras": ["side"]}, "no pictures of"),
        ({"cameras": []}, "needs a picture"),
    ],
)
def test_bad_options_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        new(**changes)


def test_missing_run_and_log_without_features_are_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nothing at"):
        new(reader={"kind": "critic", "path": str(tmp_path / "none")})
    learner = new()
    with pytest.raises(ValueError, match="robot-rl offline"):
        learner.prepare(LogFacts(np.zeros(3), np.ones(3), 0.0, 1.0, 0.9, 10))


def test_what_the_networks_read_at_play_is_what_they_read_of_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Same camera, size, held pictures and moments: an episode is played, recorded, and read again as a log."""
    seen = EngineOptions(cameras=("top",), camera_size=(16, 16), camera_every=2, num_threads=1)
    env = make(3, 0, world=Tabletop(sentences="plain", seconds=0.8), options=seen)
    learner = new(env.io, horizon=2, proprio=["tip_*", "opening"])
    rng, width = np.random.default_rng(0), learner.reader.width
    size = env.io.obs["state"][0][0]
    learner.prepare(
        LogFacts(
            rng.normal(size=size), rng.uniform(0.5, 2, size), 0.0, 1.0, 0.9, 8,
            derived={"features": (rng.normal(size=width), rng.uniform(0.5, 2, width))},
        )
    )  # fmt: skip
    read: list[torch.Tensor] = []
    flow = learner.acting()
    monkeypatch.setattr(flow, "sample", lambda state, noise: (read.append(state.clone()), noise * 0.3)[1])
    obs, _ = env.reset(seed=0)
    rows, actions, info = [], [], {}
    for _ in range(8):
        rows.append({key: value.copy() for key, value in obs.items()})
        actions.append(np.asarray(learner.policy.act(obs).value))
        obs, _, _, _, info = env.step(actions[-1])
    rows.append(info["final_obs"])
    env.close()
    episodes = [
        Episode(
            obs={key: np.stack([row[key][i] for row in rows]) for key in rows[0]},
            action=np.stack(actions)[:, i], proposed=np.stack(actions)[:, i], reward=np.zeros(8, np.float32),
            terminated=False, truncated=True, intervened=np.zeros(8, bool), stamp=np.arange(9) * 0.1,
        )
        for i in range(3)
    ]  # fmt: skip
    store = write_store(tmp_path / "log.store", episodes, io=env.io)
    data = LogDataset(store, LogView(window=2), keys=("state",), derived={"features": features(store, learner.reader)})
    log = learner._rows(chunk_rows(next(data.in_order(24))).obs).view(3, 8, -1)
    assert len(read) == 4  # decisions of two steps, and a new picture for each
    for decision, seen_at_play in enumerate(read):
        torch.testing.assert_close(seen_at_play, log[:, 2 * decision], atol=1e-5, rtol=1e-5)
    assert not torch.allclose(log[:, 0], log[:, 6])


def test_mode_begins_at_zero_noise_and_leaves_the_draws_alone() -> None:
    learner = made(horizon=2)
    obs = seen(4)
    before = learner.policy.planner.state_dict()["noise"]
    one = learner.policy.act(obs, deterministic=True).value
    learner.policy.reset()
    np.testing.assert_array_equal(one, learner.policy.act(obs, deterministic=True).value)
    assert torch.equal(before, learner.policy.planner.state_dict()["noise"])
    learner.policy.reset()
    assert not np.allclose(one, learner.policy.act(obs).value)


def test_step_size_falls_as_a_cosine() -> None:
    learner = made(decay_updates=4, horizon=2)
    rates = []
    data = batches()
    for _ in range(4):
        assert callable(learner.critic.lr)
        rates.append(learner.critic.lr() / 2e-3)
        learner.update(data)
    np.testing.assert_allclose(rates, [1.0, 0.8535534, 0.5, 0.1464466], atol=1e-6)
