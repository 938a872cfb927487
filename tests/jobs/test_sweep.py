"""Sweeps: combinations, finished and interrupted trials, failures (Ray itself in the slow test)."""

import json
from pathlib import Path

import numpy as np
import pytest

from robot_rl import curves
from robot_rl.stats import iqm
from robot_rl.verbs import sweep
from robot_rl.verbs.sweep import sweep as verb


def test_combinations_of_values_and_names_from_what_differs():
    found = sweep.trials(["env=reach", "seed=0,1", "policy=online/sac,online/ppo", "policy.hidden=[64,64]"])
    assert [trial.name for trial in found] == [
        "seed=0_policy=online-sac",
        "seed=0_policy=online-ppo",
        "seed=1_policy=online-sac",
        "seed=1_policy=online-ppo",
    ]
    assert found[1].arguments == ("env=reach", "seed=0", "policy=online/ppo", "policy.hidden=[64,64]")
    assert sweep.trials(["env=reach"])[0].name == "only"
    assert len(sweep.trials(["policy.hidden=[64,64],[32,32]", "name='a,b'"])) == 2


@pytest.mark.parametrize(("arguments", "words"), [(["reach"], "no key=value"), (["seed=0", "seed=1"], "given twice")])
def test_arguments_that_are_none_are_refused(arguments, words):
    with pytest.raises(sweep.Refused, match=words):
        sweep.trials(arguments)


def test_trials_that_would_share_a_folder_are_refused():
    with pytest.raises(sweep.Refused, match=r"one folder, policy\.lr=1e-3"):
        sweep.trials(["policy.lr=1e-3,1e+3"])
    with pytest.raises(sweep.Refused, match="give every value once"):
        sweep.trials(["seed=0,1,0"])


def test_a_folder_of_other_trials_is_refused_before_anything_runs(tmp_path):
    """What a run of 100 steps found must not pass for what one of 1,000 finds."""
    line = ["env=reach", "seed=0,1", "total_steps=100"]
    sweep.claim_folders(tmp_path, "train", sweep.trials(line))
    sweep.claim_folders(tmp_path, "train", sweep.trials(line[::-1]))  # the order of the words means nothing
    sweep.claim_folders(tmp_path, "train", sweep.trials(["env=reach", "seed=0,1,2", "total_steps=100"]))  # one more
    longer = sweep.trials(["env=reach", "seed=0,1", "total_steps=1000"])
    with pytest.raises(sweep.Refused, match=r"seed=0 holds a trial with total_steps=100, not total_steps=1000; give"):
        sweep.claim_folders(tmp_path, "train", longer)
    more = sweep.trials(["env=reach", "seed=3,0", "total_steps=1000"])
    with pytest.raises(sweep.Refused, match="seed=0 holds a trial"):
        sweep.claim_folders(tmp_path, "train", more)
    assert not (tmp_path / "seed=3").exists()  # refused whole: nothing was claimed for it
    with pytest.raises(sweep.Refused, match=r"holds a trial with fewer words, not policy=online/sac"):
        sweep.claim_folders(tmp_path, "train", sweep.trials([*line, "policy=online/sac"]))


def test_finished_trial_is_not_run_again_and_an_interrupted_one_is_resumed(tmp_path, monkeypatch):
    trial, calls = sweep.SweepTrial("seed=0", ("env=reach", "seed=0")), []
    place = tmp_path / "seed=0" / "train" / "2026_x"

    class Result:
        returncode = 0

    def fake(command, **kwargs):
        calls.append(command[command.index("robot_rl") + 1 :])
        if len(calls) == 2:
            place.joinpath("evaluation.json").write_text(json.dumps({"return": 3.5, "returns": [1, 2]}))
        else:
            (place / "checkpoints" / "step_000000010").mkdir(parents=True)
            Result.returncode = 1
        return Result

    monkeypatch.setattr(sweep.subprocess, "run", fake)
    with pytest.raises(RuntimeError, match="trial seed=0 ended with code 1"):
        sweep.run_trial("train", trial, str(tmp_path), {})
    Result.returncode = 0
    row = sweep.run_trial("train", trial, str(tmp_path), {})
    assert row == {"trial": "seed=0", "folder": str(place), "return": 3.5}
    assert sweep.run_trial("train", trial, str(tmp_path), {}) == row
    assert calls == [["train", "env=reach", "seed=0", f"output={tmp_path / 'seed=0'}"], ["train", f"resume={place}"]]


def test_an_interrupted_trial_may_use_the_code_that_the_sweep_named(tmp_path, monkeypatch):
    told = []
    run = tmp_path / "only" / "train" / "run"
    (run / "checkpoints" / "step_000000010").mkdir(parents=True)
    monkeypatch.setattr(sweep.child, "command", lambda _, *words: told.append(words) or ["false"])
    with pytest.raises(RuntimeError, match="ended with code 1"):
        sweep.run_trial("train", sweep.SweepTrial("only", ("env=./my_task.py:MyTask",)), str(tmp_path), {})
    assert told == [("train", f"resume={run}", "trust=true")]


def test_command_line_says_what_is_wrong(capsys):
    assert verb(["train", "seed=0", "--cpu=2"]) == 2
    assert "cpu is no option of sweep; did you mean cpus?" in capsys.readouterr().err
    assert verb(["deploy", "seed=0"]) == 2
    assert "a sweep is of train or offline" in capsys.readouterr().err
    assert verb([]) == 0


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_trials_run_and_the_sweep_is_continued(tmp_path, capsys):
    pytest.importorskip("ray", reason="Ray is not installed (extra cluster)")
    command = ["train", "env=reach", "policy=online/sac", "seed=0,1", "total_steps=120", "eval_every=0"]
    command += ["final_episodes=1", "video_episodes=0", "policy.hidden=[8,8]", f"--folder={tmp_path}"]
    assert verb(command) == 0
    said = capsys.readouterr().out
    assert "2 of 2 trials done" in said
    assert "  all runs   return " in said
    rows = json.loads((tmp_path / "sweep.json").read_text())["rows"]
    assert {row["trial"] for row in rows} == {"seed=0", "seed=1"}
    assert all(row["steps"] == 120 for row in rows)
    assert verb(command) == 0  # nothing left to do


def test_words_that_differ_name_the_runs_and_seeds_are_one_thing():
    runs = {
        Path(str(i)): ["env=reach", f"seed={seed}", *more]
        for i, (seed, more) in enumerate([(0, []), (1, []), (0, ["policy.lr=1e-4"]), (1, ["policy.lr=1e-4"])])
    }
    assert sweep.groups(runs) == {
        "as given": [Path("0"), Path("1")],
        "policy.lr=1e-4": [Path("2"), Path("3")],
    }
    assert sweep.groups({Path("a"): ["seed=0"], Path("b"): ["seed=1"]}) == {"all runs": [Path("a"), Path("b")]}


def test_middle_of_seeds_is_the_interquartile_mean_where_all_have_a_curve():
    lines = [([0, 10, 20], [0.0, 1.0, 2.0]), ([10, 20, 30], [3.0, 4.0, 9.0]), ([0, 20, 30], [0.0, 8.0, 0.0])]
    steps, middle, low, high = curves.between(lines)
    assert steps.tolist() == [10, 20]
    # of three values the middle one whole and the outer ones by a quarter: (1/4 * 1 + 3 + 1/4 * 4) / 1.5
    assert middle.tolist() == pytest.approx([(0.25 * 1 + 3 + 0.25 * 4) / 1.5, (0.25 * 2 + 4 + 0.25 * 8) / 1.5])
    assert low.tolist() == [1.0, 2.0]  # the worst of three drawn thrice: one draw in 27
    assert high.tolist() == [4.0, 8.0]
    _, middle, low, _ = curves.between(lines[:2])
    assert middle.tolist() == [2.0, 3.0]
    assert np.isnan(low).all()  # of two seeds no interval


def test_runs_of_several_options_end_in_a_table_and_one_picture(tmp_path, robot_rl):
    done = robot_rl(
        "train", "-m", "env=pendulum", "policy=online/sac", "policy.hidden=[8,8]", "policy.batch_size=8", "seed=0,1,2",
        "total_steps=40", "learning_starts=20", "updates_per_step=0.1", "eval_every=20", "eval_episodes=1",
        "final_episodes=1", "video_episodes=0", "track.tensorboard=false",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (row,) = [line.split("   ") for line in done.stdout.splitlines() if line.startswith("  all runs")]
    (folder,) = (tmp_path / "runs" / "sweeps").iterdir()
    assert (folder / "sweep.png").read_bytes()[:4] == b"\x89PNG"
    ends = [json.loads((folder / str(i) / "evaluation.json").read_text())["return"] for i in range(3)]
    assert row[1].startswith(f"return {iqm(np.array(ends)):.4g} [{min(ends):.4g}, {max(ends):.4g}]")
    assert row[-1] == "3 seeds"
