"""Every sampled row against a slow reference that remembers each environment's episodes as plain lists."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from robot_rl.data import buffer as buffer_module
from robot_rl.data.arrays import DeviceArrays
from robot_rl.data.buffer import ReplayBuffer
from robot_rl.types import Episode, IOSpec, Step, Transitions

GAMMA = 0.9


def spec(images: bool) -> IOSpec:
    obs: dict[str, tuple[tuple[int, ...], str]] = {"state": ((2,), "float32"), "goal": ((1,), "float32")}
    if images:
        obs["image.wrist"] = ((3, 5, 1), "uint8")
    return IOSpec(obs, ("a", "b"), (-1.0, -1.0), (1.0, 1.0), ("1", "1"), 10.0)


def look(serial: np.ndarray, images: bool) -> dict[str, Any]:
    """An observation that carries its serial number in every key."""
    serial = np.asarray(serial)
    obs: dict[str, Any] = {
        "state": np.stack((serial, -serial), -1).astype(np.float32),
        "goal": (serial[..., None] * 0.5).astype(np.float32),
    }
    if images:
        digits = np.stack([(serial // 256**i) % 256 for i in range(3)], -1).astype(np.uint8)
        obs["image.wrist"] = np.repeat(digits[..., :, None], 5, axis=-1)[..., None]
    return obs


def serial_of(obs: dict[str, torch.Tensor], images: bool) -> np.ndarray:
    """The serial numbers of a batch of observations; every key has to agree."""
    state = obs["state"].numpy()
    assert np.array_equal(state[..., 0], -state[..., 1])
    assert np.array_equal(obs["goal"].numpy()[..., 0], state[..., 0] * 0.5)
    if images:
        pixels = obs["image.wrist"].numpy()[..., 0].astype(int)
        assert (pixels == pixels[..., :1]).all()
        assert np.array_equal(sum(pixels[..., i, 0] * 256**i for i in range(3)), state[..., 0])
    return state[..., 0].astype(int)


@dataclass
class Row:
    here: int
    successor: int
    action: float
    reward: float
    terminated: bool
    truncated: bool
    intervened: bool
    onward: Row | None = None


@dataclass
class World:
    """Feeds a buffer with a random pattern of steps and keeps every row it should hold."""

    num_envs: int
    images: bool
    rng: np.random.Generator
    rows: list[Row] = field(default_factory=list)
    serial: int = 1

    def __post_init__(self) -> None:
        self.now = self.fresh(self.num_envs)
        self.open: list[Row | None] = [None] * self.num_envs

    def fresh(self, n: int) -> np.ndarray:
        self.serial += n
        return np.arange(self.serial - n, self.serial)

    def step(self, ends: float, gaps: float, skip: bool) -> Step:
        n, rng = self.num_envs, self.rng
        successor = self.fresh(n)
        terminated = rng.random(n) < ends
        truncated = ~terminated & (rng.random(n) < ends)
        valid = rng.random(n) >= gaps
        intervened = rng.random(n) < 0.2
        reward = rng.integers(-8, 8, n).astype(np.float32)
        action = np.stack((self.now / 2**20, -self.now / 2**20), 1).astype(np.float32)
        after = np.where(terminated | truncated, self.fresh(n), successor)
        step = Step(
            obs=look(self.now, self.images),
            action=action,
            reward=reward,
            next_obs=look(successor, self.images),
            terminated=terminated,
            truncated=truncated,
            current=look(after, self.images),
            valid=valid,
            intervened=intervened,
            proposed=action * 0.5,
            info={"level": -reward},
        )
        for e in range(n):
            if skip or not valid[e]:
                self.open[e] = None
                continue
            row = Row(
                int(self.now[e]), int(successor[e]), float(action[e, 0]), float(reward[e]),
                bool(terminated[e]), bool(truncated[e]), bool(intervened[e]),
            )  # fmt: skip
            previous = self.open[e]
            if previous is not None:
                previous.onward = row
            self.rows.append(row)
            self.open[e] = None if terminated[e] or truncated[e] else row
        self.now = after
        return step

    def episode(self, length: int) -> Episode:
        rng, serial = self.rng, self.fresh(length + 1)
        end = rng.integers(3)
        episode = Episode(
            obs=look(serial, self.images),
            action=np.stack((serial[:-1] / 2**20, -serial[:-1] / 2**20), 1).astype(np.float32),
            proposed=np.zeros((length, 2), np.float32),
            reward=rng.integers(-8, 8, length).astype(np.float32),
            terminated=bool(end == 1),
            truncated=bool(end == 2),
            intervened=rng.random(length) < 0.2,
            stamp=np.arange(length + 1.0),
            meta={"columns": {"valid": rng.random(length) < 0.9}},
        )
        previous = None
        for t in range(length):
            if not episode.meta["columns"]["valid"][t]:
                previous = None
                continue
            last = t == length - 1
            row = Row(
                int(serial[t]), int(serial[t + 1]), float(episode.action[t, 0]), float(episode.reward[t]),
                last and end == 1, bool(last and end == 2), bool(episode.intervened[t]),
            )  # fmt: skip
            if previous is not None:
                previous.onward = row
            self.rows.append(row)
            previous = row
        return episode


def expected(row: Row, n_step: int) -> tuple[float, float, Row]:
    """(reward, discount, last row) of the n-step sample from `row`, by definition."""
    reward, k, last = row.reward, 1, row
    while k < n_step and last.onward is not None:
        last = last.onward
        reward += GAMMA**k * last.reward
        k += 1
    return reward, GAMMA**k * (not last.terminated), last


def check(batch: Transitions, alive: dict[int, Row], n_step: int, window: int, images: bool) -> None:
    """Compare a whole batch with the reference rows."""
    here, successor = serial_of(batch.obs, images), serial_of(batch.next_obs, images)
    fields = [getattr(batch, name).numpy() for name in ("reward", "discount", "terminated", "truncated", "intervened")]
    mask, action = batch.mask.numpy(), batch.action.numpy()
    if window == 1:
        here, successor, mask, action = here[:, None], successor[:, None], mask[:, None], action[:, None]
        fields = [x[:, None] for x in fields]
    reward, discount, terminated, truncated, intervened = fields
    for b in range(len(here)):
        row: Row | None = alive[here[b, 0]]
        for j in range(window):
            assert mask[b, j] == (row is not None)
            if row is None:
                assert reward[b, j] == 0
                assert discount[b, j] == 0
                continue
            r, d, last = expected(row, n_step)
            assert (here[b, j], successor[b, j]) == (row.here, last.successor)
            assert action[b, j, 0] == np.float32(row.action)
            np.testing.assert_allclose((reward[b, j], discount[b, j]), (r, d), rtol=1e-5, atol=1e-5)
            assert (terminated[b, j], truncated[b, j]) == (last.terminated, last.truncated)
            assert intervened[b, j] == row.intervened
            row = row.onward


patterns = st.fixed_dictionaries(
    {
        "num_envs": st.integers(1, 4),
        "capacity": st.one_of(st.integers(4, 7), st.integers(4, 40)),
        "n_step": st.integers(1, 5),
        "window": st.integers(1, 6),
        "ends": st.sampled_from([0.0, 0.05, 0.3, 0.9]),
        "gaps": st.sampled_from([0.0, 0.1, 0.6]),
        "skips": st.sampled_from([0.0, 0.1]),
        "episodes": st.sampled_from([0.0, 0.15]),
        "steps": st.integers(1, 70),
        "images": st.booleans(),
        "device": st.booleans(),
        "tensors": st.booleans(),
        "seed": st.integers(0, 2**20),
    }
)


def as_tensors(step: Step) -> Step:
    def convert(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: convert(item) for key, item in value.items()}
        return torch.from_numpy(value)

    return Step(**{name: convert(getattr(step, name)) for name in Step.__dataclass_fields__})


@settings(max_examples=150, deadline=None)
@given(patterns)
def test_buffer_random_streams_no_sample_crosses_an_end_a_gap_or_the_wrap(p: dict[str, Any]) -> None:
    rng = np.random.default_rng(p["seed"])
    with pytest.MonkeyPatch.context() as patch:
        if p["device"]:  # the code path of accelerators, on the CPU
            patch.setattr(buffer_module, "arrays_for", DeviceArrays)
        buffer = ReplayBuffer(
            spec(p["images"]), p["capacity"], num_envs=p["num_envs"], n_step=p["n_step"], gamma=GAMMA,
            window=p["window"], seed=p["seed"],
        )  # fmt: skip
    world = World(p["num_envs"], p["images"], rng)
    for _ in range(p["steps"]):
        skip = rng.random() < p["skips"]  # a step that nobody adds: the gap has to be noticed
        step = world.step(p["ends"], p["gaps"], skip)
        if not skip:
            buffer.add(as_tensors(step) if p["tensors"] else step)
        if rng.random() < p["episodes"]:
            buffer.add_episode(world.episode(int(rng.integers(1, 12))))
        stored = len(buffer)
        assert stored <= min(len(world.rows), p["capacity"])
        if not p["images"]:
            assert stored == min(len(world.rows), p["capacity"])
        if stored:
            alive = {row.here: row for row in world.rows[len(world.rows) - stored :]}
            check(buffer.sample(8), alive, p["n_step"], p["window"], p["images"])
    if len(buffer):
        seen = buffer.sample(400 * len(buffer)).obs["state"][..., 0].reshape(-1).unique()
        assert {row.here for row in world.rows[len(world.rows) - len(buffer) :]} == set(seen.int().tolist())
