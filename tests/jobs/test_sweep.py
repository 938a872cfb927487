"""Sweeps: combinations, finished and interrupted trials, failures (Ray itself in the slow test)."""

import json

import pytest

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
    with pytest.raises(ValueError, match=words):
        sweep.trials(arguments)


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
    assert "2 of 2 trials done" in capsys.readouterr().out
    rows = json.loads((tmp_path / "sweep.json").read_text())["rows"]
    assert {row["trial"] for row in rows} == {"seed=0", "seed=1"}
    assert all(row["steps"] == 120 for row in rows)
    assert verb(command) == 0  # nothing left to do
