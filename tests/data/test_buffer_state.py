"""What a replay buffer keeps over a checkpoint, and what it refuses."""

from __future__ import annotations

import io
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from robot_rl.data.buffer import ReplayBuffer
from robot_rl.data.mix import Mix
from robot_rl.types import Episode, IOSpec, Step, Transitions


def spec(images: bool) -> IOSpec:
    obs: dict[str, tuple[tuple[int, ...], str]] = {"state": ((2,), "float32")}
    if images:
        obs["image.top"] = ((2, 2, 3), "uint8")
    return IOSpec(obs, ("a",), (-1.0,), (1.0,), ("1",), 10.0)


class Feed:
    """Endless steps of two environments with episodes of random length."""

    def __init__(self, images: bool, seed: int = 0) -> None:
        self.images, self.rng = images, np.random.default_rng(seed)
        self.now = self.look()

    def look(self) -> dict[str, np.ndarray]:
        obs: dict[str, np.ndarray] = {"state": self.rng.normal(size=(2, 2)).astype(np.float32)}
        if self.images:
            obs["image.top"] = self.rng.integers(0, 255, (2, 2, 2, 3), dtype=np.uint8)
        return obs

    def __call__(self) -> Step:
        rng, after, fresh = self.rng, self.look(), self.look()
        ends = rng.random(2) < 0.1
        keep = {key: ends.reshape(2, *[1] * (value.ndim - 1)) for key, value in after.items()}
        current = {key: np.where(keep[key], fresh[key], after[key]) for key in after}
        action = rng.uniform(-1, 1, (2, 1)).astype(np.float32)
        reward, no = rng.normal(size=2).astype(np.float32), np.zeros(2, bool)
        step = Step(self.now, action, reward, after, ends, no, current, ~no, no, action * 2, {"logp": reward * 3})
        self.now = current
        return step


def fill(buffer: ReplayBuffer, feed: Feed, steps: int) -> ReplayBuffer:
    for _ in range(steps):
        buffer.add(feed())
    return buffer


def equal(a: Transitions, b: Transitions) -> bool:
    for name in Transitions.__dataclass_fields__:
        x, y = getattr(a, name), getattr(b, name)
        if not isinstance(x, dict):
            x, y = {name: x}, {name: y}
        if x.keys() != y.keys() or not all(torch.equal(x[key], y[key]) for key in x):
            return False
    return True


def assert_continue_alike(a: ReplayBuffer, b: ReplayBuffer, images: bool) -> None:
    one, two = Feed(images, 7), Feed(images, 7)
    for _ in range(60):
        a.add(one())
        b.add(two())
        assert len(a) == len(b)
        assert equal(a.sample(16), b.sample(16))


@pytest.mark.parametrize("images", [False, True])
@pytest.mark.parametrize("steps", [3, 20, 57])  # of 2 rows, into 40: nearly empty, just full, well past the wrap
@pytest.mark.parametrize("way", ["state", "torch", "disk"])
def test_buffer_saved_and_loaded_continues_exactly(images: bool, steps: int, way: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"num_envs": 2, "n_step": 3, "extras": {"proposed": (1,), "logp": ()}}
    feed = Feed(images)
    first = fill(ReplayBuffer(spec(images), 40, seed=1, **options), feed, steps)
    first.sample(8)
    second = ReplayBuffer(spec(images), 40, seed=99, **options)
    if way == "state":
        second.load_state_dict(first.state_dict())
    elif way == "torch":
        file = io.BytesIO()
        torch.save(first.state_dict(), file)
        file.seek(0)
        second.load_state_dict(torch.load(file, weights_only=True))
    else:
        first.save(tmp_path / "replay")
        second.load(tmp_path / "replay")
    # the stream goes on inside the same episodes
    for _ in range(10):
        step = feed()
        first.add(step)
        second.add(step)
        assert equal(first.sample(32), second.sample(32))
    assert_continue_alike(first, second, images)


def test_buffer_state_dict_is_no_copy() -> None:
    buffer = fill(ReplayBuffer(spec(True), 40, num_envs=2), Feed(True), 30)
    state = buffer.state_dict()
    again = buffer.state_dict()
    assert state["record"].data_ptr() == again["record"].data_ptr()
    assert state["frames"]["image.top"].data_ptr() == again["frames"]["image.top"].data_ptr()


@pytest.mark.parametrize("images", [False, True])
def test_buffer_second_save_writes_only_what_is_new(images: bool, tmp_path: Path) -> None:
    feed = Feed(images)
    buffer = fill(ReplayBuffer(spec(images), 1000, num_envs=2), feed, 300)
    buffer.save(tmp_path / "a")
    fill(buffer, feed, 10)
    buffer.save(tmp_path / "b", base=tmp_path / "a")
    old = {p.name: p.stat().st_ino for p in (tmp_path / "a").glob("*.npy")}
    new = {p.name: p for p in (tmp_path / "b").glob("*.npy")}
    assert old.keys() < new.keys()
    assert all(new[name].stat().st_ino == inode for name, inode in old.items())
    fresh = [np.load(path) for name, path in new.items() if name not in old and "record" in name]
    assert [len(rows) for rows in fresh] == [20]
    for path in (tmp_path / "a").iterdir():  # the older save may go
        path.unlink()
    other = ReplayBuffer(spec(images), 1000, num_envs=2)
    other.load(tmp_path / "b")
    assert_continue_alike(buffer, other, images)


@pytest.mark.parametrize("images", [False, True])
def test_buffer_many_saves_over_the_wrap_stay_exact_and_bounded(images: bool, tmp_path: Path) -> None:
    feed, base = Feed(images), None
    buffer = ReplayBuffer(spec(images), 64, num_envs=2, n_step=2)
    for i in range(12):
        fill(buffer, feed, 9)
        buffer.save(tmp_path / str(i), base=base)
        base = tmp_path / str(i)
        other = ReplayBuffer(spec(images), 64, num_envs=2, n_step=2)
        other.load(base)
        assert equal(other.sample(200), other_sample(buffer, base))
        rows = sum(len(np.load(path)) for path in base.glob("rows.record.*"))
        assert rows <= 64 + 18  # at most one segment more than what lives


def other_sample(buffer: ReplayBuffer, path: Path) -> Transitions:
    """The batch that `buffer` would draw next, without disturbing it."""
    state = {key: value for key, value in buffer.state_dict().items() if key == "generator"}["generator"].clone()
    batch = buffer.sample(200)
    buffer._generator.set_state(state)
    return batch


def test_buffer_save_of_another_branch_is_not_taken_for_its_own(tmp_path: Path) -> None:
    feed = Feed(False)
    trunk = fill(ReplayBuffer(spec(False), 100, num_envs=2), feed, 10)
    trunk.save(tmp_path / "trunk")
    left, right = (ReplayBuffer(spec(False), 100, num_envs=2) for _ in range(2))
    for branch, seed in ((left, 1), (right, 2)):
        branch.load(tmp_path / "trunk")
        fill(branch, Feed(False, seed), 10)
    left.save(tmp_path / "left", base=tmp_path / "trunk")
    right.save(tmp_path / "right", base=tmp_path / "left")  # the same row numbers, other rows
    again = ReplayBuffer(spec(False), 100, num_envs=2)
    again.load(tmp_path / "right")
    assert equal(right.sample(300), again.sample(300))


def test_buffer_failed_save_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = fill(ReplayBuffer(spec(False), 100, num_envs=2), Feed(False), 10)
    buffer.save(tmp_path / "replay")
    before = {p.name: p.read_bytes() for p in (tmp_path / "replay").iterdir()}
    fill(buffer, Feed(False, 3), 5)

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        buffer.save(tmp_path / "replay")
    monkeypatch.undo()
    assert [p.name for p in tmp_path.iterdir()] == ["replay"]
    assert {p.name: p.read_bytes() for p in (tmp_path / "replay").iterdir()} == before
    buffer.save(tmp_path / "replay")
    other = ReplayBuffer(spec(False), 100, num_envs=2)
    other.load(tmp_path / "replay")
    assert equal(buffer.sample(50), other.sample(50))


def test_buffer_load_of_another_buffer_lists_the_differences(tmp_path: Path) -> None:
    buffer = fill(ReplayBuffer(spec(False), 100, num_envs=2), Feed(False), 10)
    buffer.save(tmp_path / "replay")
    other = ReplayBuffer(spec(True), 10, num_envs=2, gamma=0.5)
    for call in (lambda: other.load(tmp_path / "replay"), lambda: other.load_state_dict(buffer.state_dict())):
        with pytest.raises(ValueError, match=r"(?s)capacity: 100 saved, 10 here.*gamma.*obs"):
            call()
    assert len(other) == 0


@pytest.mark.parametrize("images", [False, True])
def test_buffer_continues_in_a_smaller_one_that_holds_all_of_it(images: bool, tmp_path: Path) -> None:
    saved = fill(ReplayBuffer(spec(images), 90, num_envs=2, seed=0), Feed(images), 19)
    saved.save(tmp_path / "b")
    small = ReplayBuffer(spec(images), 40, num_envs=2, seed=5)
    small.load(tmp_path / "b")
    whole = fill(ReplayBuffer(spec(images), 40, num_envs=2, seed=0), Feed(images), 19)
    for buffer in (small, whole):
        fill(buffer, Feed(images, seed=1), 20)
    assert equal(small.sample(64), whole.sample(64))


@pytest.mark.parametrize("images", [False, True])
def test_buffer_that_was_never_full_continues_in_a_larger_one(images: bool, tmp_path: Path) -> None:
    feed, more = Feed(images), Feed(images, seed=1)
    saved = fill(ReplayBuffer(spec(images), 40, num_envs=2, seed=0), feed, 19)
    saved.save(tmp_path / "b")
    large = ReplayBuffer(spec(images), 90, num_envs=2, seed=5)
    large.load(tmp_path / "b")
    whole = fill(ReplayBuffer(spec(images), 90, num_envs=2, seed=0), Feed(images), 19)
    for buffer, steps in ((large, more), (whole, Feed(images, seed=1))):
        fill(buffer, steps, 20)
    assert equal(large.sample(64), whole.sample(64))
    over = fill(ReplayBuffer(spec(images), 20, num_envs=2, seed=0), Feed(images), 19)  # has been round once
    over.save(tmp_path / "c")
    with pytest.raises(ValueError, match="capacity: 20 saved, 90 here"):
        large.load(tmp_path / "c")


def test_buffer_load_of_a_damaged_folder_says_so(tmp_path: Path) -> None:
    buffer = fill(ReplayBuffer(spec(False), 100, num_envs=2), Feed(False), 10)
    buffer.save(tmp_path / "replay")
    (record,) = (tmp_path / "replay").glob("rows.record.*")
    record.write_bytes(record.read_bytes()[:-8])
    with pytest.raises(ValueError, match="missing or damaged"):
        ReplayBuffer(spec(False), 100, num_envs=2).load(tmp_path / "replay")
    with pytest.raises(ValueError, match="holds no saved replay buffer"):
        buffer.load(tmp_path)


def test_mix_of_buffers_saved_and_loaded_continues_exactly() -> None:
    def build() -> tuple[ReplayBuffer, ReplayBuffer, Mix]:
        a, b = (ReplayBuffer(spec(False), 100, num_envs=2, seed=s) for s in (1, 2))
        return a, b, Mix({"online": (a, 0.7), "demos": (b, 0.3)})

    a, b, mix = build()
    fill(a, Feed(False, 1), 20)
    fill(b, Feed(False, 2), 5)
    for _ in range(3):
        mix.sample(7)
    _, _, other = build()
    other.load_state_dict(mix.state_dict())
    for _ in range(5):
        assert equal(mix.sample(7), other.sample(7))


def test_buffer_extras_come_out_with_their_row() -> None:
    feed = Feed(False)
    buffer = fill(ReplayBuffer(spec(False), 50, num_envs=2, extras={"proposed": (1,), "logp": ()}), feed, 20)
    batch = buffer.sample(64)
    assert torch.equal(batch.extras["proposed"], batch.action * 2)
    assert torch.equal(batch.extras["logp"], batch.reward * 3)


def test_buffer_missing_extra_is_named() -> None:
    buffer = ReplayBuffer(spec(False), 50, num_envs=2, extras={"value": ()})
    with pytest.raises(ValueError, match=r"extra 'value'.*Step.info has only \['logp'\]"):
        buffer.add(Feed(False)())


def test_buffer_long_episode_keeps_its_end_and_unrecorded_final_step_is_left_out() -> None:
    steps = 12
    episode = Episode(
        obs={"state": np.arange(2.0 * (steps + 1), dtype=np.float32).reshape(-1, 2)},
        action=np.zeros((steps, 1), np.float32),
        proposed=np.zeros((steps, 1), np.float32),
        reward=np.arange(steps, dtype=np.float32),
        terminated=False,
        truncated=True,
        intervened=np.zeros(steps, bool),
        stamp=np.arange(steps + 1.0),
        meta={"final_obs_valid": False},
    )
    buffer = ReplayBuffer(spec(False), 5, gamma=1.0)
    buffer.add_episode(episode)
    batch = buffer.sample(200)
    assert sorted(set(batch.reward.tolist())) == [6, 7, 8, 9, 10]
    assert not batch.truncated.any()
    assert bool((batch.discount == 1).all())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"capacity": 1, "num_envs": 2}, "capacity is 1"),
        ({"capacity": 9, "n_step": 0}, "n_step is 0"),
        ({"capacity": 9, "window": 0}, "window is 0"),
        ({"capacity": 9, "gamma": 1.5}, "gamma is 1.5"),
        ({"capacity": 9, "extras": {"reward": ()}}, "has the name of a field"),
    ],
)
def test_buffer_bad_arguments_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ReplayBuffer(spec(False), **options)


def test_buffer_empty_and_wrong_rows_are_refused() -> None:
    buffer = ReplayBuffer(spec(False), 9, num_envs=3)
    with pytest.raises(ValueError, match="empty"):
        buffer.sample(1)
    with pytest.raises(ValueError, match="expected num_envs=3"):
        buffer.add(Feed(False)())


def test_buffer_observations_that_would_be_repeated_to_fit_are_refused() -> None:
    """A camera of one colour where the interface has three: NumPy would store it in all of them."""
    buffer, step = ReplayBuffer(spec(True), 9, num_envs=2), Feed(True)()
    grey = {**step.next_obs, "image.top": step.next_obs["image.top"][..., :1]}
    with pytest.raises(
        ValueError,
        match=r"next_obs\['image.top'\] has shape \(2, 2, 2, 1\), expected num_envs=2 rows of shape \(2, 2, 3\)",
    ):
        buffer.add(replace(step, next_obs=grey))
    assert len(buffer) == 0
    buffer.add(step)


def test_buffer_discount_by_hand() -> None:
    """Rewards 1, 2, 4 and a termination; gamma 0.5, three steps."""
    buffer = ReplayBuffer(spec(False), 9, n_step=3, gamma=0.5)
    obs = np.arange(8, dtype=np.float32).reshape(4, 2)
    zeros = np.zeros((3, 1), np.float32)
    reward = np.array([1, 2, 4], np.float32)
    buffer.add_episode(Episode({"state": obs}, zeros, zeros, reward, True, False, np.zeros(3, bool), np.arange(4.0)))
    batch = buffer.sample(100)
    got = {
        (float(s), float(r), float(d), float(n))
        for s, r, d, n in zip(batch.obs["state"][:, 0], batch.reward, batch.discount, batch.next_obs["state"][:, 0])
    }
    # 1 + 2/2 + 4/4 = 3;  2 + 4/2 = 4;  4. All reach the end, none bootstraps.
    assert got == {(0, 3, 0, 6), (2, 4, 0, 6), (4, 4, 0, 6)}
    assert bool(batch.terminated.all())


@pytest.mark.parametrize("images", [False, True])
def test_buffer_equal_observations_do_not_hide_an_end(images: bool) -> None:
    """A reset observation that equals the successor before it: only the flags tell that an episode ended."""
    buffer = ReplayBuffer(spec(images), 50, n_step=4, gamma=1.0)
    obs: dict[str, np.ndarray] = {"state": np.zeros((1, 2), np.float32)}
    if images:
        obs["image.top"] = np.zeros((1, 2, 2, 3), np.uint8)
    action, no = np.zeros((1, 1), np.float32), np.zeros(1, bool)
    for t in range(40):  # episodes of 5 steps, cut and terminated in turn; the reward counts the steps to the end
        end = t % 5 == 4
        terminated, truncated = np.array([end and t % 2 == 0]), np.array([end and t % 2 == 1])
        reward = np.array([5.0 - t % 5], np.float32)
        buffer.add(Step(obs, action, reward, obs, terminated, truncated, obs, ~no, no, action))
    got = {(float(r), bool(a or b)) for batch in [buffer.sample(500)]
           for r, a, b in zip(batch.reward, batch.terminated, batch.truncated)}  # fmt: skip
    # 5+4+3+2, 4+3+2+1, 3+2+1, 2+1, 1
    assert got == {(14, False), (10, True), (6, True), (3, True), (1, True)}


@pytest.mark.parametrize("images", [False, True])
def test_buffer_barely_larger_than_one_step_links_no_overwritten_row(images: bool) -> None:
    """Three environments, four slots: most continued rows are overwritten by the very step that continues them."""
    buffer = ReplayBuffer(spec(images), 4, num_envs=3, n_step=3, gamma=1.0)
    no = np.zeros(3, bool)

    def look(t: int) -> dict[str, np.ndarray]:
        obs: dict[str, np.ndarray] = {"state": np.stack((np.arange(3) + 10 * t, np.zeros(3)), 1).astype(np.float32)}
        if images:
            obs["image.top"] = np.broadcast_to(obs["state"][:, :1, None, None].astype(np.uint8), (3, 2, 2, 3))
        return obs

    for t in range(12):
        action, reward = np.zeros((3, 1), np.float32), 10.0 ** np.arange(3, dtype=np.float32)
        buffer.add(Step(look(t), action, reward, look(t + 1), no, no, look(t + 1), ~no, no, action))
        batch = buffer.sample(100)
        env, steps = batch.obs["state"][:, 0] % 10, (batch.next_obs["state"][:, 0] - batch.obs["state"][:, 0]) / 10
        assert torch.equal(batch.next_obs["state"][:, 0] % 10, env)
        assert torch.equal(batch.reward, steps * 10.0**env)


def test_buffer_equal_observations_do_not_hide_a_gap() -> None:
    """Rewards 1, 2, 4, 8 with an invalid step between the second and the third, observations that never change."""
    buffer = ReplayBuffer(spec(False), 50, num_envs=2, n_step=4, gamma=1.0)
    obs, action, no = {"state": np.zeros((2, 2), np.float32)}, np.zeros((2, 1), np.float32), np.zeros(2, bool)
    for reward, valid in ((1, True), (2, True), (0, False), (4, True), (8, True)):
        rewards = np.array([reward, 100], np.float32)
        buffer.add(Step(obs, action, rewards, obs, no, no, obs, np.array([valid, True]), no, action))
    # environment 0: 1 + 2 | 2 | 4 + 8 | 8;  environment 1 runs through: 400, 400, 300, 200, 100
    assert set(buffer.sample(800).reward.tolist()) == {3, 2, 12, 8, 400, 300, 200, 100}
