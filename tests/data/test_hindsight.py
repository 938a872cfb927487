"""Goals of hindsight: which later step they come from, what a row earns under them, and where they never come from."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from robot_rl.data.hindsight import HindsightReplay
from robot_rl.types import Goals, IOSpec, Step, Transitions

GAMMA = 0.9
ASKED = -1.0
IO = IOSpec({"state": ((2,), "float32")}, ("a",), (-1.0,), (1.0,), ("1",), control_hz=10.0)


def show(state: np.ndarray, asked: np.ndarray, goal: np.ndarray) -> np.ndarray:
    """The second component shows the goal."""
    np.testing.assert_array_equal(state[:, 1:], asked)
    return np.concatenate([state[:, :1], goal], axis=1)


def met(achieved: np.ndarray, goal: np.ndarray) -> np.ndarray:
    return achieved[:, 0] == goal[:, 0]


def pay(achieved: np.ndarray, goal: np.ndarray) -> np.ndarray:
    return np.where(met(achieved, goal), 0.0, -1.0)


class Line:
    """N environments that count their own steps: environment e is at 1000 e, 1000 e + 1, ... and never goes back.

    What is achieved is where it stands, and twice that as a second fact which is no part of the goal.
    """

    def __init__(self, envs: int, capacity: int, *, ends: bool = False, **options: Any) -> None:
        self.at = 1000.0 * np.arange(envs)
        goals = Goals(1, 2, show, pay, met if ends else None)
        self.replay = HindsightReplay(IO, capacity, goals=goals, num_envs=envs, gamma=GAMMA, **options)

    def step(
        self, cut: tuple[int, ...] = (), *, terminated: tuple[int, ...] = (), missing: tuple[int, ...] = ()
    ) -> None:
        """One step of all environments; those in `cut` end, and begin anew a hundred further on."""
        n = len(self.at)
        flags = {name: np.isin(np.arange(n), rows) for name, rows in (("cut", cut), ("over", terminated))}
        after = self.at + 1.0
        goal = np.full((n, 1), ASKED, np.float32)
        here, there = (np.stack([x, goal[:, 0]], 1).astype(np.float32) for x in (self.at, after))
        off = np.zeros(n, bool)
        self.at = np.where(flags["cut"] | flags["over"], after + 100.0, after)
        info = {"achieved_goal": np.stack([after, 2 * after], 1).astype(np.float32), "desired_goal": goal}
        self.replay.add(
            Step(
                {"state": here}, np.zeros((n, 1), np.float32), np.full(n, -1.0, np.float32), {"state": there},
                flags["over"], flags["cut"], {"state": there}, ~np.isin(np.arange(n), missing), off,
                np.zeros((n, 1), np.float32), info,
            )
        )  # fmt: skip


def rows_of(mask: np.ndarray) -> tuple[int, ...]:
    return tuple(np.flatnonzero(mask).tolist())


def drawn(batch: Transitions) -> dict[float, Counter[float]]:
    """Where a row stood -> how often it was given which goal."""
    found: dict[float, Counter[float]] = defaultdict(Counter)
    for here, goal in batch.obs["state"].tolist():
        if goal != ASKED:
            found[here][goal] += 1
    return found


def test_hindsight_goals_are_reached_by_the_row_or_a_later_one_of_its_episode() -> None:
    line = Line(2, 100)
    for cut in ((), (), (0,), (1,), ()):
        line.step(cut)
    # Environment 0 went 0 1 2 | 103 104, environment 1 went 1000 .. 1003 | 1104; the last two episodes go on.
    batch = line.replay.sample(5000)
    assert {here: set(goals) for here, goals in drawn(batch).items()} == {
        **{0: {1, 2, 3}, 1: {2, 3}, 2: {3}, 103: {104, 105}, 104: {105}},
        **{1000 + t: {1001.0 + u for u in range(t, 4)} for t in range(4)},
        1104: {1105},
    }
    counts = drawn(batch)[0]
    assert min(counts.values()) > 0.8 * max(counts.values())  # each about a third
    np.testing.assert_array_equal(batch.extras["desired_goal"], batch.obs["state"][:, 1:])
    np.testing.assert_array_equal(batch.next_obs["state"][:, 1:], batch.obs["state"][:, 1:])


def test_hindsight_changes_its_share_of_a_batch_and_leaves_the_rest() -> None:
    line = Line(1, 50)
    for _ in range(10):
        line.step()
    batch = line.replay.sample(500)
    own = batch.obs["state"][:, 1] == ASKED
    assert int(own.sum()) == 100  # k = 4: one row in five
    # A row is paid 0 where it stands at the goal behind its step, and -1 elsewhere; nothing ends.
    here, goal = batch.obs["state"].T
    np.testing.assert_allclose(batch.reward, torch.where(here + 1 == goal, 0.0, -1.0))
    assert bool((batch.reward[own] == -1.0).all())
    assert 0.2 < float((batch.reward[~own] == 0.0).float().mean()) < 0.4  # mean of 1/1 .. 1/10 is .293
    assert not batch.terminated.any()
    np.testing.assert_allclose(batch.discount, torch.full((500,), GAMMA))
    sizes = [int((line.replay.sample(3).obs["state"][:, 1] != ASKED).sum()) for _ in range(400)]
    assert set(sizes) == {2, 3}  # 2.4 rows of 3 on average
    assert np.mean(sizes) == pytest.approx(2.4, abs=0.1)


def test_hindsight_ends_the_episode_where_the_environment_would() -> None:
    line = Line(1, 50, ends=True)
    for over in ((), (), (0,), (), ()):
        line.step(terminated=over)
    batch = line.replay.sample(4000)
    here, goal = batch.obs["state"].T
    # The end of row 2 had another reason than the goal that was asked, so it stays; that of the others is their goal.
    over = (here + 1 == goal) | (here == 2)
    np.testing.assert_allclose(batch.terminated, over)
    np.testing.assert_allclose(batch.discount, torch.where(over, 0.0, GAMMA))


def test_hindsight_in_a_full_ring_uses_no_step_that_was_overwritten() -> None:
    line = Line(2, 9)  # four steps and a half: rows of one step are overwritten one after the other
    for t in range(30):
        line.step((0,) if t % 7 == 6 else (1,) if t == 27 else ())
        if t < 5:
            continue
        rows = {
            float(episode.obs["state"][i, 0]): episode
            for episode in line.replay.episodes()
            for i in range(len(episode))
        }
        for here, goals in drawn(line.replay.sample(600)).items():
            later = rows[here].obs["state"][1:, 0]
            assert set(goals) == set(later[later > here].tolist()), f"step {t}"


@pytest.mark.parametrize("seed", range(3))
def test_hindsight_follows_episodes_as_the_replay_itself_does(seed: int) -> None:
    rng = np.random.default_rng(seed)
    line = Line(3, 37)
    for _ in range(12):
        for _ in range(int(rng.integers(1, 25))):
            ended = rng.random(3) < 0.15
            line.step(rows_of(ended & (rng.random(3) < 0.5)), terminated=rows_of(ended))
        found, ends = drawn(line.replay.sample(3000)), {}
        for episode in line.replay.episodes():
            state = episode.obs["state"][:, 0]
            ends |= dict.fromkeys(state[:-1].tolist(), float(state[-1]))
        assert {here: max(goals) for here, goals in found.items()} == ends
        assert all(min(goals) == here + 1 for here, goals in found.items())


def test_hindsight_takes_no_goal_from_behind_a_gap() -> None:
    line = Line(2, 50)
    for missing in ((), (), (1,), (), ()):
        line.step(missing=missing)
    found = drawn(line.replay.sample(4000))
    assert set(found[1000]) == {1001, 1002}  # the step at 1002 was never stored
    assert set(found[1003]) == {1004, 1005}
    assert set(found[3]) <= {4, 5}
    assert set(found[0]) <= {1, 2, 3, 4, 5}


@pytest.mark.parametrize("way", ["folder", "state"])
def test_hindsight_saved_and_loaded_draws_and_goes_on_the_same(way: str, tmp_path: Path) -> None:
    one, other = Line(2, 21), Line(2, 21, seed=5)
    for t in range(40):
        one.step((t % 2,) if t % 5 == 0 else ())
        if t % 9 == 0:
            one.replay.sample(16)
    for _ in range(25):  # what it held before is forgotten
        other.step()
    other.replay.sample(16)
    if way == "folder":
        one.replay.save(tmp_path / "replay")
        other.replay.load(tmp_path / "replay")
    else:
        other.replay.load_state_dict(one.replay.state_dict())
    other.at = one.at.copy()
    for t in range(30):
        for line in (one, other):
            line.step((t % 2,) if t % 4 == 0 else ())
        a, b = one.replay.sample(32), other.replay.sample(32)
        assert torch.equal(a.obs["state"], b.obs["state"])
        assert torch.equal(a.reward, b.reward)


def test_hindsight_never_changes_what_is_stored() -> None:
    line = Line(2, 40)
    for _ in range(15):
        line.step()
    before = line.replay.state_dict()["record"].clone()
    line.replay.sample(200)
    assert torch.equal(line.replay.state_dict()["record"], before)


def test_hindsight_refuses_what_it_cannot_replay() -> None:
    goals = Goals(1, 2, show, pay)
    with pytest.raises(ValueError, match="hindsight is 0, expected at least 1"):
        HindsightReplay(IO, 10, goals=goals, hindsight=0)
    pictures = IOSpec(
        {"state": ((2,), "float32"), "image.a": ((4, 4, 3), "uint8")}, ("a",), (-1.0,), (1.0,), ("1",), 10.0
    )
    with pytest.raises(ValueError, match="a 'state' alone"):
        HindsightReplay(pictures, 10, goals=goals)
    with pytest.raises(ValueError, match="a goal of 3 numbers cannot be taken from the first of 2"):
        Goals(3, 2, show, pay)
    line = Line(1, 10)
    line.replay.goals = Goals(1, 2, show, lambda achieved, goal: achieved)
    line.step()
    with pytest.raises(ValueError, match=r"reward under other goals has shape \(\d, 2\), expected \(\d,\)"):
        line.replay.sample(4)
