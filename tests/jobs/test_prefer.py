"""Preferences become a reward: asked of a script or a person, fitted, measured, and the log relabelled with it."""
# pyright: reportArgumentType=false

import json
import signal
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from robot_rl.data import d4rl
from robot_rl.policies.nets.preferences import Pairs
from robot_rl.policies.reward.preference import RewardEnsemble, RewardOptions
from robot_rl.run import RunStart
from robot_rl.track import Many
from robot_rl.types import Episode
from robot_rl.verbs.prefer_pairs import PreferSettings, SegmentJob

PLACES = ("relabelled", "checkpoint", "curve", "report")


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """60 episodes of 20 steps, each of a skill of its own; the reward is the nearness of the action to half of the
    state."""
    rng = np.random.default_rng(0)
    episodes = []
    for _ in range(60):
        state = rng.normal(size=(21, 3)).astype(np.float32)
        action = np.clip(0.5 * state[:-1, :2] + rng.uniform(0, 1) * rng.normal(size=(20, 2)), -1, 1).astype(np.float32)
        reward = -np.abs(action - 0.5 * state[:-1, :2]).sum(1)
        stamp = np.arange(21.0)
        episodes.append(Episode({"state": state}, action, action, reward, False, True, np.zeros(20, bool), stamp=stamp))
    d4rl.write(tmp_path / "log.hdf5", episodes)
    return tmp_path / "log.hdf5"


def job(log: Path, out: Path, *, resume: bool = False, **options: Any) -> SegmentJob:
    ask = options.pop("ask", None)
    values = {"pairs": 200, "length": 10, "updates": 150, **options}
    settings = PreferSettings(data=str(log), **values)  # type: ignore[arg-type]
    return SegmentJob(
        settings,
        RunStart(out, "", lambda *_: Many([]), resume),
        make=lambda *widths: RewardEnsemble(RewardOptions(hidden=(32, 32), lr=3e-3, batch_size=32), *widths),
        **({"ask": ask} if ask else {}),
    )


def test_the_learnt_reward_ranks_episodes_as_the_hidden_one(log, tmp_path):
    report = job(log, tmp_path / "a", pairs=300, updates=300).run()
    assert report["accuracy_test"] > 0.75
    assert report["rank_correlation"] > 0.7
    with h5py.File(report["relabelled"]) as file:
        new = {key: np.asarray(file[key]) for key in ("infos/logged_reward", "rewards", "actions")}
    with h5py.File(log) as file:
        old = {key: np.asarray(file[key]) for key in ("rewards", "actions")}
    np.testing.assert_array_equal(new["infos/logged_reward"], old["rewards"])
    np.testing.assert_array_equal(new["actions"], old["actions"])
    assert not np.allclose(new["rewards"], old["rewards"])
    assert abs(new["rewards"].mean()) < 0.1  # calibrated on the log


def test_wrong_answers_are_counted_and_answers_are_used_again(log, tmp_path):
    first = job(log, tmp_path / "a", error=0.2, tie=0.1).run()
    rows = [json.loads(line) for line in (tmp_path / "a/pairs.jsonl").read_text().splitlines()]
    assert len(rows) == first["pairs"] == 200
    assert 0 < first["ties"] == sum(row["answer"] == -1 for row in rows)
    again = job(log, tmp_path / "b", labels=str(tmp_path / "a/pairs.jsonl")).run()
    same = [name for name in first if name not in PLACES]
    assert {name: again[name] for name in same} == {name: first[name] for name in same}


def test_pairs_on_which_members_differ_are_asked_for(log, tmp_path):
    report = job(log, tmp_path / "a", rule="disagreement", rounds=2, pairs=40, updates=50).run()
    assert report["pairs"] == 40


def test_a_person_answers_and_stops(log, tmp_path):
    said, shown = iter(["x", *["1", "2", "0"] * 5, "q"]), []

    def ask(prompt: str) -> str:
        shown.append(prompt)
        return next(said)

    report = job(log, tmp_path / "a", labels="ask", ask=ask, updates=20).run()
    assert (report["pairs"], report["ties"], len(shown)) == (15, 5, 17)
    rows = [json.loads(line)["answer"] for line in (tmp_path / "a/pairs.jsonl").read_text().splitlines()]
    assert rows == [0, 1, -1] * 5
    assert "episode" in shown[0]
    assert "steps" in shown[0]
    assert (tmp_path / "a/pair.png").stat().st_size > 5000


@pytest.mark.parametrize(
    ("labels", "stop"), [("ask", 5), pytest.param("ask", 15, marks=pytest.mark.slow), ("return", 33)]
)
def test_interrupted_run_asks_what_it_would_have_asked(log, tmp_path, labels: str, stop: int):
    """Ctrl-C at a person's 6th or 16th answer (second round), or in the middle of the second fit."""
    count = 0

    def ask(prompt: str) -> str:
        nonlocal count
        count += 1
        if count == stop + 1 and labels == "ask":
            signal.raise_signal(signal.SIGINT)
        return str(1 + len(prompt) % 2)

    def rounds(folder: str, **options: Any) -> SegmentJob:
        options |= {"labels": labels, "rule": "disagreement", "rounds": 2, "pairs": 24, "updates": 60, "ask": ask}
        return job(log, tmp_path / folder, error=0.2, candidates=3, **options)

    parts = rounds("parts")
    if labels == "return":
        update = RewardEnsemble.update

        def interrupted(self: RewardEnsemble, pairs: Pairs) -> dict[str, float]:
            nonlocal count
            count += 1
            if count == 60 + stop:
                signal.raise_signal(signal.SIGINT)
            return update(self, pairs)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(RewardEnsemble, "update", interrupted)
            with pytest.raises(KeyboardInterrupt):
                parts.run()
    else:
        with pytest.raises(KeyboardInterrupt):
            parts.run()
        assert len((tmp_path / "parts/pairs.jsonl").read_text().splitlines()) == stop
    again, whole = rounds("parts", resume=True).run(), rounds("whole").run()
    assert {**again, **dict.fromkeys(PLACES)} == {**whole, **dict.fromkeys(PLACES)}
    assert (tmp_path / "parts/pairs.jsonl").read_text() == (tmp_path / "whole/pairs.jsonl").read_text()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"length": 21}, "no episode has 21 steps, the longest has 20"),
        ({"rule": "best"}, "expected one of uniform, disagreement or entropy"),
        ({"labels": "ask", "ask": lambda _: "q"}, "0 answers"),
        ({"tie": 1e9}, "0 of them decided"),
        ({"labels": "nobody.jsonl"}, "expected return, ask, vlm or a pairs.jsonl"),
    ],
)
def test_wrong_input_is_explained(log, tmp_path, options, message):
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        job(log, tmp_path / "a", **options).run()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 1 is no answer"),
        ('{"first": [0, 0], "second": [1, 0], "answer": 2}', "the answer is 2"),
        ('{"first": [0, 0], "second": [99, 0], "answer": 1}', "episode 99 has no 10 steps from 0"),
        ('{"first": [0, 11], "second": [1, 0], "answer": 1}', "episode 0 has no 10 steps from 11"),
    ],
)
def test_foreign_answers_are_refused(log, tmp_path, line, message):
    (tmp_path / "pairs.jsonl").write_text(line + "\n")
    with pytest.raises(ValueError, match=message):
        job(log, tmp_path / "a", labels=str(tmp_path / "pairs.jsonl")).run()
