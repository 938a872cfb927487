"""The replay buffer of a run as a log, against the episodes that went into it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from robot_rl.data import d4rl, formats, replay_log
from robot_rl.data.buffer import ReplayBuffer
from robot_rl.data.device_replay import DeviceReplay
from robot_rl.data.episode import EpisodeBuilder
from robot_rl.data.findings import BadData
from robot_rl.data.read_options import ReadOptions
from robot_rl.types import Episode, IOSpec, Step


def spec(pictures: bool) -> IOSpec:
    obs: dict[str, tuple[tuple[int, ...], str]] = {"state": ((2,), "float32")}
    if pictures:
        obs["image.wrist"] = ((3, 5, 1), "uint8")
    return IOSpec(obs, ("a", "b"), (-1.0, -1.0), (1.0, 1.0), ("1", "1"), 10.0)


def filled(capacity: int, steps: int, pictures: bool = False) -> tuple[ReplayBuffer, list[Episode]]:
    """A buffer of three environments with ends of both kinds and gaps, and the episodes of an independent builder."""
    rng, n = np.random.default_rng(0), 3
    buffer = ReplayBuffer(spec(pictures), capacity, num_envs=n, gamma=0.9, extras={"mark": (1,)})
    builder, episodes = EpisodeBuilder(n, columns=("mark",)), []

    def look(rows: int) -> dict[str, np.ndarray]:
        obs = {"state": rng.normal(size=(rows, 2)).astype(np.float32)}
        return {**obs, "image.wrist": rng.integers(0, 256, (rows, 3, 5, 1), np.uint8)} if pictures else obs

    obs = look(n)
    for t in range(steps):
        after, fresh, action = look(n), look(n), rng.uniform(-1, 1, (n, 2)).astype(np.float32)
        terminated = rng.random(n) < 0.1
        truncated = (rng.random(n) < 0.1) & ~terminated
        over = terminated | truncated
        current = {k: np.where(over.reshape(-1, *[1] * (v.ndim - 1)), fresh[k], v) for k, v in after.items()}
        step = Step(
            obs=obs, action=action, proposed=action, reward=rng.normal(size=n).astype(np.float32), next_obs=after,
            current=current, terminated=terminated, truncated=truncated, intervened=np.zeros(n, bool),
            valid=rng.random(n) > 0.05, info={"mark": np.full((n, 1), t, np.float32)},
        )  # fmt: skip
        buffer.add(step)
        episodes += builder.add(step)
        obs = current
    return buffer, episodes + builder.flush()


def assert_same(mine: Episode, other: Episode) -> None:
    for key in other.obs:
        np.testing.assert_array_equal(mine.obs[key], other.obs[key])
    for name in ("action", "reward", "intervened"):
        np.testing.assert_array_equal(getattr(mine, name), getattr(other, name))
    assert (mine.terminated, mine.truncated) == (other.terminated, other.truncated)
    np.testing.assert_array_equal(mine.meta["columns"]["mark"], other.meta["columns"]["mark"])


@pytest.mark.parametrize("pictures", [False, True])
def test_a_buffer_gives_back_the_episodes_that_went_in(pictures: bool) -> None:
    buffer, episodes = filled(1000, 200, pictures)
    mine = sorted(buffer.episodes(), key=lambda e: e.action.tobytes())
    assert len(mine) == len(episodes)
    for one, other in zip(mine, sorted(episodes, key=lambda e: e.action.tobytes())):
        assert_same(one, other)


@pytest.mark.parametrize("pictures", [False, True])
def test_a_full_buffer_gives_the_newest_rows_and_nothing_across_the_seam(pictures: bool) -> None:
    buffer, episodes = filled(100, 200, pictures)
    tails = {e.action.tobytes()[-8:]: e for e in episodes}
    found = buffer.episodes()
    assert sum(len(e) for e in found) == len(buffer)
    for one in found:
        whole = tails[one.action.tobytes()[-8:]]
        np.testing.assert_array_equal(one.action, whole.action[-len(one) :])
        np.testing.assert_array_equal(one.obs["state"], whole.obs["state"][-len(one) - 1 :])
        assert (one.terminated, one.truncated) == (whole.terminated, whole.truncated)


def test_rows_is_the_buffer_as_it_was() -> None:
    """Of a buffer that goes on, `rows` takes what one that stopped there holds."""
    late, _ = filled(1000, 200)
    early, _ = filled(1000, 60)
    mine, other = late.episodes(early.rows_taken), early.episodes()
    assert len(mine) == len(other)
    for one, two in zip(mine, other):
        assert_same(one, two)


def test_a_buffer_of_a_device_is_a_log_without_the_rows_that_are_no_transitions(tmp_path: Path) -> None:
    """Two environments, six steps, a ring of five; the second gives no transition at t=3 and ends at t=4."""
    io, folder = spec(False), tmp_path / "step_000000012"
    replay, off = DeviceReplay(io, 5, num_envs=2, gamma=0.9), torch.zeros(2, dtype=torch.bool)
    for t in range(6):
        state, second = torch.tensor([[t, 0.0], [t, 1.0]]), torch.tensor([False, True])
        after, action = state + torch.tensor([1.0, 0.0]), torch.full((2, 2), 0.1 * t)
        over, valid = second & (t == 4), ~(second & (t == 3))
        reward = torch.full((2,), float(t))
        replay.add(
            Step({"state": state}, action, reward, {"state": after}, over, off, {"state": after}, valid, off, action)
        )
    replay.save(folder / "buffer")
    (folder / "meta.json").write_text("{}")
    (folder / "io.json").write_text(json.dumps(io.to_dict()))
    logs = replay_log.read(tmp_path)
    found = [(e.obs["state"][:, 1].tolist(), e.reward.tolist(), e.terminated) for e in logs.episodes]
    assert found == [
        ([0.0] * 6, [1.0, 2.0, 3.0, 4.0, 5.0], False),
        ([1.0] * 3, [1.0, 2.0], False),
        ([1.0] * 2, [4.0], True),
        ([1.0] * 2, [5.0], False),
    ]
    for episode in logs.episodes:  # every step has its own successor
        np.testing.assert_array_equal(np.diff(episode.obs["state"][:, 0]), 1.0)
    (folder / "io.json").write_text(json.dumps(spec(True).to_dict()))
    with pytest.raises(BadData, match="another interface"):
        replay_log.read(tmp_path)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, robot_rl_in) -> Path:
    out = tmp_path_factory.mktemp("runs")
    options = ["total_steps=500", "learning_starts=490", "policy.hidden=[8,8]", "eval_every=0", "final_episodes=1"]
    done = robot_rl_in(out, "train", "env=gym", "id=Pendulum-v1", "policy=online/sac", *options, "video_episodes=0")
    assert done.returncode == 0, done.stderr
    return next((out / "runs/train").iterdir())


def test_a_run_folder_is_a_log(run: Path, tmp_path: Path, robot_rl) -> None:
    assert formats.detect(run) == "replay"
    logs = formats.load(run)
    assert [len(e) for e in logs.episodes] == [200, 200, 100]
    assert [(e.terminated, e.truncated) for e in logs.episodes] == [(False, True), (False, True), (False, False)]
    assert logs.io.control_hz == pytest.approx(20.0)
    np.testing.assert_allclose(np.diff(logs.episodes[0].stamp), 0.05)
    assert [(f.case, f.count) for f in logs.findings] == [("cut", 1)]
    out = tmp_path / "pendulum.hdf5"
    assert robot_rl("data", "convert", run, f"out={out}", "rows=300").returncode == 0
    back = d4rl.read(out).episodes
    assert [len(e) for e in back] == [200, 100]
    for one, other in zip(back, logs.episodes):
        np.testing.assert_array_equal(one.obs["state"][:100], other.obs["state"][:100])


def test_what_is_no_replay_is_refused_with_words(run: Path, tmp_path: Path) -> None:
    with pytest.raises(BadData, match="off-policy"):
        replay_log.read(tmp_path)
    with pytest.raises(ValueError, match="at least 1"):
        replay_log.read(run, ReadOptions(rows=0))
    meta = next(run.glob("checkpoints/step_*/buffer/meta.json"))
    text = meta.read_text()
    try:
        meta.write_text(json.dumps({**json.loads(text), "format": 99}))
        with pytest.raises(BadData, match="cannot be read"):
            replay_log.read(run)
        meta.write_text("[]")
        with pytest.raises(BadData, match="cannot be read"):
            replay_log.read(run)
    finally:
        meta.write_text(text)
