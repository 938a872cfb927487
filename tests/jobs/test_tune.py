"""robot-rl tune: what is searched, a search whose best is known, runs that are dropped, a kill, and a real one."""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("optuna", reason="needs Optuna (extra `tune`)")
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import FixedTrial

from robot_rl.verbs import tune
from robot_rl.verbs.tune import OptionSearch, TuneOptions, read_space

RUN = """
import json, pathlib, signal, sys, time
words = dict(word.split("=", 1) for word in sys.argv[2:])
if "resume" in words:
    folder = pathlib.Path(words["resume"])
    words = {**json.loads((folder / "words.json").read_text()), "resumed": "1"}
else:
    folder = pathlib.Path(words["output"]) / sys.argv[1] / "run"
    (folder / "checkpoints" / "step_1").mkdir(parents=True)
    (folder / "words.json").write_text(json.dumps(words))
if "wrong" in words:
    print("robot-rl: wrong is no option")
    sys.exit(2)
x = float(words["x"])
value = -(x - 0.3) ** 2 + 0.001 * float(words.get("seed", 0)) + float(words.get("plus", 0))
signal.signal(signal.SIGINT, lambda *_: sys.exit(130))
if "wait" in words and "resumed" not in words and "trial_000" in str(folder):
    (folder / "waits").touch()
    while not (folder / "go").exists():
        time.sleep(0.05)
with (folder / "metrics.jsonl").open("a") as rows:
    for step in (1, 2, 3):
        rows.write(json.dumps({"step": step, "eval/return": value}) + "\\n")
        rows.flush()
        if value < -0.04:
            time.sleep(float(words.get("slow", 0)))
(folder / "evaluation.json").write_text(json.dumps({"return": value}))
"""  # a run whose return is known: it peaks at x = .3


@pytest.fixture
def search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[dict[str, Any]]]:
    """(*words, **options) -> rows of a search whose runs are `RUN`."""

    def command(module: str, *words: str) -> list[str]:
        return [sys.executable, "-S", "-c", RUN, *words]

    monkeypatch.setattr(tune.child, "command", command)

    def run(*words: str, **options: Any) -> list[dict[str, Any]]:
        return OptionSearch(read_space(["train", *words]), TuneOptions(**options), tmp_path / "f", lambda _: None).run()

    return run


def test_values_are_read_in_the_words_of_hydra() -> None:
    space = read_space(
        ["train", "env=reach", "a=interval(0,1)", "b=int(interval(1,4))", "policy.hidden=[8,8],[16,16]", "c=range(1,4)"]
    )
    assert space.fixed == ("env=reach",)

    trial = FixedTrial({"a": 0.25, "b": 3, "policy.hidden": "[16,16]", "c": "3"})
    assert space.ask(trial) == ("a=0.25", "b=3", "policy.hidden=[16,16]", "c=3")
    assert trial.distributions == {
        "a": FloatDistribution(0.0, 1.0),
        "b": IntDistribution(1, 4),
        "policy.hidden": CategoricalDistribution(["[8,8]", "[16,16]"]),
        "c": CategoricalDistribution(["1", "2", "3"]),
    }


def test_the_best_of_a_known_answer_is_found_and_kept(search, tmp_path: Path) -> None:
    rows = search("x=interval(-1.0,1.0)", trials=14, pruner="none", at_once=2)
    assert len(rows) == 14
    best = rows[0]
    assert best["value"] == max(row["value"] for row in rows)
    assert abs(best["params"]["x"] - 0.3) < 0.15
    assert best["value"] == pytest.approx(-((float(best["words"][0][2:]) - 0.3) ** 2), abs=1e-9)
    assert json.loads((tmp_path / "f/tune.json").read_text())["rows"][0]["trial"] == best["trial"]
    assert len(search("x=interval(-1.0,1.0)", trials=16, pruner="none")) == 16  # goes on
    with pytest.raises(tune.Refused, match="holds another search"):
        search("x=interval(-1.0,2.0)", trials=16)


def test_what_is_below_the_median_is_stopped_early(search) -> None:
    rows = search("x=choice(0.3,0.3,0.9)", "slow=0.8", trials=8, startup=2, sampler="random", seed=3)
    dropped = [row for row in rows if row["state"] == "dropped"]
    assert dropped
    assert {row["words"][0] for row in dropped} == {"x=0.9"}
    assert all(row["curve"][-1][0] < 3 for row in dropped)


def test_the_mean_over_seeds_counts(search, tmp_path: Path) -> None:
    (row,) = search("x=choice(0.3,0.3)", trials=1, seeds=3)
    assert row["value"] == pytest.approx(0.001)
    assert sorted(path.name for path in (tmp_path / "f/trial_000").iterdir()) == ["seed=0", "seed=1", "seed=2"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_search_goes_on_with_the_run_it_had_begun(search, tmp_path: Path, number: int) -> None:
    folder, wait = tmp_path / "f/trial_000", time.sleep

    asked: list[int] = []

    def interrupt(seconds: float) -> None:
        if not asked and (folder / "train/run/waits").exists():
            asked.append(number)
            signal.raise_signal(number)
        wait(seconds)

    line = ("x=interval(0.0,1.0)", "wait=1")
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as in a shell's background job
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(tune.time, "sleep", interrupt)
            with pytest.raises(KeyboardInterrupt):
                search(*line, trials=1)
    finally:
        signal.signal(signal.SIGINT, before)
    begun = json.loads((folder / "train/run/words.json").read_text())
    (row,) = search(*line, trials=1)
    assert row["folder"] == str(folder)
    assert row["value"] == pytest.approx(-((float(begun["x"]) - 0.3) ** 2), abs=1e-9)
    assert [path.name for path in (tmp_path / "f").glob("trial_*")] == ["trial_000"]
    second = next(row for row in search(*line, trials=2) if row["trial"] == 1)
    assert abs(second["params"]["x"] - row["params"]["x"]) > 1e-3  # not the first draw of the same seed again


@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_a_search_in_pieces_proposes_what_one_in_one_piece_does(tmp_path: Path, search, sampler: str) -> None:
    line, options = ("x=interval(0.0,1.0)", "y=choice(1,2,3)"), {"sampler": sampler, "startup": 2, "pruner": "none"}
    for trials in (1, 3, 4):
        pieces = search(*line, trials=trials, **options)
    (tmp_path / "f").rename(tmp_path / "pieces")
    whole = search(*line, trials=4, **options)
    assert [row["params"] for row in pieces] == [row["params"] for row in whole]
    assert len({row["params"]["x"] for row in whole}) == 4


def test_a_run_that_outlived_a_killed_search_is_waited_for_and_counts(search, tmp_path: Path) -> None:
    space = read_space(["train", "x=interval(0.0,1.0)", "wait=1"])
    killed = OptionSearch(space, TuneOptions(trials=1), tmp_path / "f", lambda _: None)._begin()
    run = tmp_path / "f/trial_000/train/run"
    while not (run / "waits").exists():
        time.sleep(0.05)
    threading.Timer(1.0, (run / "go").touch).start()
    (row,) = search("x=interval(0.0,1.0)", "wait=1", trials=1)
    assert killed.process is not None
    assert killed.process.poll() == 0  # by itself
    assert row["state"] == "complete"
    assert row["folder"] == str(tmp_path / "f/trial_000")
    assert [path.name for path in run.parent.iterdir()] == ["run"]


@pytest.mark.parametrize(("env", "trusted"), [("./my_task.py:MyTask", True), ("reach", False)])
def test_a_run_that_is_taken_up_may_use_the_code_that_this_command_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, env: str, trusted: bool
) -> None:
    told: list[tuple[str, ...]] = []
    monkeypatch.setattr(tune.child, "command", lambda _, *words: told.append(words) or [sys.executable, "-S", "-c", ""])
    (tmp_path / "train" / "early").mkdir(parents=True)  # killed before its first checkpoint, and begun anew
    (tmp_path / "train" / "run" / "checkpoints" / "step_1").mkdir(parents=True)
    trial: Any = FixedTrial({"x": 0.5})
    candidate = tune.OptionCandidate(trial, ("x=0.5",), tmp_path, 1)
    candidate.start(read_space(["train", f"env={env}", "x=interval(0,1)"]), {})
    candidate.stop()
    assert told == [("train", f"resume={tmp_path / 'train' / 'run'}", *(["trust=true"] if trusted else []))]


def test_a_run_whose_return_is_no_number_has_failed_and_the_search_goes_on(search) -> None:
    found = {row["params"]["plus"]: row["state"] for row in search("x=0.3", "plus=choice(nan,1)", trials=3, seed=1)}
    assert found == {"nan": "failed", "1": "complete"}


def test_words_that_a_run_refuses_end_the_search_with_its_sentence(search) -> None:
    with pytest.raises(tune.Refused, match="wrong is no option"):
        search("x=interval(0.0,1.0)", "wrong=1", trials=3)


@pytest.mark.slow
def test_a_real_search_names_the_line_that_makes_the_best_run_again(tmp_path: Path) -> None:
    line = "robot-rl tune train env=pendulum policy=online/sac total_steps=300 learning_starts=50 eval_every=100 "
    line += "policy.lr=tag(log,interval(1e-4,1e-2)) video_episodes=0 policy.batch_size=16 --trials=2 --folder=f"
    code = "from robot_rl.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, *shlex.split(line)[1:]], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "robot-rl train env=pendulum" in done.stdout.splitlines()[-1]
    assert (tmp_path / "f" / "tune.png").stat().st_size > 5000
    rows = json.loads((tmp_path / "f" / "tune.json").read_text())["rows"]
    assert [row["state"] for row in rows] == ["complete", "complete"]
    assert [step for step, _ in rows[0]["curve"]] == [100, 200, 300]
