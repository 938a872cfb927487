"""Pictures of a log are labelled by a model, a reward is learnt, and the log is written anew with it."""
# pyright: reportArgumentType=false

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from robot_rl.checkpoint import CheckpointError
from robot_rl.data import formats, recorder
from robot_rl.policies.nets.picture_labels import ScriptedJudge, TwoStage
from robot_rl.policies.reward.picture_preference import PictureOptions, PictureReward
from robot_rl.run import RunStart
from robot_rl.track import Many
from robot_rl.types import Episode, IOSpec
from robot_rl.verbs.prefer_pairs import PictureJob, PictureSettings

IO = IOSpec({"state": ((1,), "float32"), "image.front": ((48, 48, 3), "uint8")}, ("dx",), (-1.0,), (1.0,), ("1",), 10.0)
GOALS = ("go right", "go left")


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """24 episodes of 8 steps: a red square on a line that is pushed about; the logged reward is how far it has come."""
    rng = np.random.default_rng(0)
    with recorder.Recorder(tmp_path / "log") as writer:
        for e in range(24):
            moves = rng.uniform(-1, 1, 8) + rng.choice([-0.5, 0.5])
            place = np.clip(20 + 5 * np.concatenate([[0], np.cumsum(moves)]), 0, 40)
            pictures = np.zeros((9, 48, 48, 3), np.uint8) + 40
            for picture, x in zip(pictures, place.astype(int)):
                picture[20:28, x : x + 8] = (220, 60, 60)
            reward = place[1:] / 40 * (1 if e % 2 == 0 else -1)
            action = np.clip(moves, -1, 1)[:, None].astype(np.float32)
            obs = {"state": place[:, None].astype(np.float32), "image.front": pictures}
            no = np.zeros(8, bool)
            meta = {"io": IO.to_dict(), "instruction": GOALS[e % 2]}
            writer.append(
                Episode(obs, action, action, reward.astype(np.float32), False, True, no, np.arange(9.0), meta)
            )
    return tmp_path / "log"


def job(log: Path, out: Path, model: Any = None, *, resume: bool = False, **options: Any) -> PictureJob:
    values: dict[str, Any] = {"pairs": 150, "updates": 120, **options}
    return PictureJob(
        PictureSettings(data=str(log), **values),
        RunStart(out, "", lambda *_: Many([]), resume),
        make_reward=lambda goals, size: PictureReward(PictureOptions(members=2, lr=2e-3, batch_size=32), goals, size),
        make_labeller=lambda truth: TwoStage(model or ScriptedJudge(truth, error=values.get("error", 0.0))),
    )


class FirstPlace:
    """Prefers picture 1 whatever it shows, and dies at a question."""

    def __init__(self, last: int = 10**9) -> None:
        self.left = last

    def answer(self, pictures: Any, text: str) -> str:
        self.left -= 1
        if not self.left:
            raise MemoryError("killed")
        return "0"


def test_killed_while_asking_it_goes_on_with_the_pairs_and_orders_that_were_to_come(log: Path, tmp_path: Path) -> None:
    """A model that prefers a place is told apart from one that sees only by the drawn order of the pictures."""
    with pytest.raises(MemoryError):
        job(log, tmp_path / "parts", FirstPlace(last=80)).run()
    asked = len((tmp_path / "parts/pairs.jsonl").read_text().splitlines())
    assert 30 <= asked < 150
    for folder, resume in (("parts", True), ("whole", False)):
        job(log, tmp_path / folder, FirstPlace(), resume=resume).run()
    assert (tmp_path / "parts/pairs.jsonl").read_text() == (tmp_path / "whole/pairs.jsonl").read_text()


def test_resume_with_another_log_is_refused(log: Path, tmp_path: Path) -> None:
    job(log, tmp_path / "run").run()
    other = recorder.Recording(log)
    with recorder.Recorder(tmp_path / "other") as writer:
        for episode in list(other)[:-1]:
            writer.append(episode)
    with pytest.raises(CheckpointError, match="not the log that the run began with"):
        job(tmp_path / "other", tmp_path / "run", resume=True)


def test_labels_become_a_reward_that_ranks_as_the_truth(log: Path, tmp_path: Path) -> None:
    report = job(log, tmp_path / "a").run()
    assert report["goals"] == 2
    assert report["label_accuracy"] == 1.0
    assert report["accuracy_truth"] > 0.85
    assert report["rank_correlation"] > 0.8
    assert report["unreadable"] == 0
    old, new = (formats.load(path).episodes for path in (log, Path(report["relabelled"])))
    assert len(new) == len(old) == 24
    for a, b in zip(old, new):
        assert list(b.obs) == ["state"]  # pictures are left out unless they are kept
        np.testing.assert_array_equal(a.action, b.action)
        np.testing.assert_allclose(b.meta["columns"]["env_reward"], a.reward)
    assert abs(np.mean([e.reward.mean() for e in new])) < 0.3
    again = job(log, tmp_path / "b", labels=str(tmp_path / "a/pairs.jsonl")).run()
    other = dict.fromkeys(("relabelled", "skipped", "checkpoint", "curve", "report"))
    assert {**again, **other} == {**report, **other}


def test_wrong_labels_are_measured_and_pictures_are_kept_where_asked(log: Path, tmp_path: Path) -> None:
    report = job(log, tmp_path / "a", error=0.3, updates=3, pictures=True).run()
    assert 0.6 < report["label_accuracy"] < 0.8
    assert "image.front" in formats.load(Path(report["relabelled"])).episodes[0].obs


def test_pairs_are_chosen_by_every_rule(log: Path, tmp_path: Path) -> None:
    for rule in ("disagreement", "entropy"):
        report = job(log, tmp_path / rule, rule=rule, rounds=2, pairs=40, updates=5, candidates=3).run()
        rows = [json.loads(line) for line in (tmp_path / rule / "pairs.jsonl").read_text().splitlines()]
        assert report["pairs"] == len(rows) == 40
        assert {row["goal"] for row in rows} == set(GOALS)


class Mute:
    def answer(self, pictures: Any, text: str) -> str:
        return "I cannot tell"


def test_model_that_is_not_understood_is_given_up(log: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="20 of 20 answers were not one integer"):
        job(log, tmp_path / "a", model=Mute()).run()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"camera": "top"}, r"holds no 'image\.top'; it holds \['image\.front'\]"),
        ({"truth": "nothing"}, "no column 'nothing'"), ({"rule": "best"}, "rule is 'best', expected one of"),
        ({"pairs": 3}, "whole number of at least 10"), ({"labels": "nobody.jsonl"}, "vlm or a pairs"),
        ({"error": 0.7}, r"error is 0\.7, expected a number in \[0, 0\.5\]"),
    ],
)  # fmt: skip
def test_wrong_input_is_explained(log: Path, tmp_path: Path, options: dict[str, Any], words: str) -> None:
    with pytest.raises((ValueError, FileNotFoundError), match=words):
        job(log, tmp_path / "a", **options).run()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "line 1 is no answer"), ('{"first": [0, 1], "second": [1, 1], "goal": "fly", "answer": 1}', "no answer"),
        ('{"first": [0, 0], "second": [1, 1], "goal": "go left", "answer": 1}', "no frame 0 of episode 0"),
        ('{"first": [0, 1], "second": [99, 1], "goal": "go left", "answer": 1}', "no frame 1 of episode 99"),
        ('{"first": [0, 1], "second": [1, 1], "goal": "go left", "answer": 4}', "the answer is 4"),
    ],
)  # fmt: skip
def test_foreign_answers_are_refused(log: Path, tmp_path: Path, line: str, words: str) -> None:
    (tmp_path / "pairs.jsonl").write_text(line + "\n")
    with pytest.raises(ValueError, match=words):
        job(log, tmp_path / "a", labels=str(tmp_path / "pairs.jsonl")).run()


def test_from_the_command_line_to_a_policy(log: Path, tmp_path: Path, robot_rl: Any) -> None:
    done = robot_rl(
        "prefer", f"data={log}", "labels=vlm", "model=scripted", "pairs=30", "updates=3",
        "pictures_reward.members=1", "name=p",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (run,) = (tmp_path / "runs" / "prefer").iterdir()
    assert "label_accuracy" in done.stdout
    learned = robot_rl(
        "offline", f"data={run}/relabelled", "policy=offline/iql", "updates=3", "policy.hidden=[8,8]",
        "policy.batch_size=8", "estimate=0", "eval_every=0", "track.tensorboard=false",
    )  # fmt: skip
    assert learned.returncode == 0, learned.stderr
    for wrong, words in (
        (("labels=vlm",), "labels=vlm needs a model"),
        (("labels=vlm", "model=http://example.com/v1"), "another machine"),
        (("labels=vlm", "model=nowhere", "error=0.1"), "of model=scripted"),
    ):
        refused = robot_rl("prefer", f"data={log}", *wrong)
        assert refused.returncode == 2
        assert words in refused.stderr
