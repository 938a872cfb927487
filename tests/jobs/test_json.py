"""--json: one document on stdout, whatever a verb does; what people read goes to stderr."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from robot_rl import cli
from robot_rl.verbs.answer import bar, document, note

Run = Any


@pytest.fixture
def answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> tuple[int, dict[str, Any]]:
        monkeypatch.setattr(sys, "argv", ["robot-rl", *words, "--json"])
        code: Any = 0
        try:
            cli.main()
        except SystemExit as end:
            code = end.code or 0
        return code, json.loads(capfd.readouterr().out, parse_constant=pytest.fail)  # NaN is no JSON

    return run


def test_what_is_not_finite_is_null(capsys: pytest.CaptureFixture[str]):
    with document("x"):
        note(length=float("nan"), found={"low": np.float32(-np.inf), "row": np.array([1.5, np.nan])}, folder=Path("a"))
    told = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert told == {"verb": "x", "length": None, "found": {"low": None, "row": [1.5, None]}, "folder": "a"}


SHORT = ("env=pendulum", "total_steps=150", "final_episodes=2", "video_episodes=0", "eval_every=0")


def test_train_and_eval_answer_with_numbers_and_folders(answer: Run):
    code, found = answer("train", *SHORT)
    assert (code, found["verb"]) == (0, "train")
    numbers = json.loads((Path(found["folder"]) / "evaluation.json").read_text())
    assert found["return"] == numbers["return"]
    code, judged = answer("eval", f"path={found['folder']}", "episodes=2", "video_episodes=0")
    assert code == 0
    assert len(judged["returns"]) == 2
    assert judged["return"] == pytest.approx(np.mean(judged["returns"]))


def test_a_run_that_goes_wrong_says_why_and_its_folder_says_it_again(answer: Run):
    words = ("policy=online/ppo", "policy.lr=0.05", "policy.rollout_steps=512", "total_steps=2048")
    code, found = answer("train", *SHORT, *words)
    assert code == 0
    first = found["diagnosis"][0]
    assert first["cause"] == "step size too large"
    assert "lr is 0.05" in first["evidence"]
    folder = Path(found["folder"])
    assert "step size too large: lr is 0.05" in (folder / "report.html").read_text()
    assert json.loads((folder / "evaluation.json").read_text())["diagnosis"] == found["diagnosis"]
    code, again = answer("doctor", "run", str(folder))
    assert code == 1
    assert again["diagnosis"][0]["cause"] == "step size too large"
    code, none = answer("doctor", "run", str(folder.parent))
    assert code == 2
    assert "metrics.jsonl" in none["error"]


def test_every_run_of_several_has_its_place(answer: Run):
    code, found = answer("train", "-m", "seed=0,1", *SHORT)
    assert code == 0
    assert len(found["runs"]) == 2
    assert found["runs"][0]["folder"] != found["runs"][1]["folder"]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("train", "env=pendulm"), "pendulum"),
        (("train", "env=pendulum", "total_steps=-3"), "total_steps"),
        (("eval", "path=nowhere"), "nowhere"),
        (("trxin",), "train"),
        (("data", "info", "nothing.hdf5"), "nothing.hdf5"),
    ],
)
def test_a_refusal_is_a_document_too(answer: Run, words: tuple[str, ...], text: str):
    code, found = answer(*words)
    assert code == 2
    assert text in found["error"]


def test_what_is_refused_behind_a_run_of_the_same_process_is_a_refusal_all_the_same(answer: Run):
    assert answer("train", *SHORT)[0] == 0
    code, found = answer("train", "env=pendulum", "total_steps=-3")
    assert code == 2
    assert "total_steps" in found["error"]


def test_logs_tell_facts_and_findings(answer: Run, tmp_path: Path):
    with h5py.File(tmp_path / "log.hdf5", "w") as file:
        file["observations"] = np.zeros((20, 3), np.float32)
        file["actions"] = np.full((20, 2), 0.5, np.float32)
        file["rewards"] = np.zeros(20, np.float32)
        file["terminals"] = np.zeros(20, bool)
        file["timeouts"] = np.arange(1, 21) % 10 == 0
    code, found = answer("data", "info", "log.hdf5")
    assert (code, found["episodes"], found["steps"]) == (0, 2, 20)
    _, found = answer("data", "validate", "log.hdf5")
    assert {"severity", "message"} <= found["findings"][0].keys()


def test_doctor_and_check(answer: Run):
    code, found = answer("check", "env=pendulum")
    assert (code, found["findings"]) == (0, [])
    code, found = answer("doctor")
    assert found["healthy"] is (code == 0)


def test_a_process_that_leaves_at_once_has_written_its_document():
    lines = ("print('seen')", "answer.note(robot='arm')", "answer.leave()")
    words = "from robot_rl.verbs import answer\nwith answer.document('deploy'):\n    " + "; ".join(lines)
    done = subprocess.run([sys.executable, "-c", words], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "seen\n")
    assert json.loads(done.stdout) == {"verb": "deploy", "robot": "arm"}


def test_a_bar_of_at_most_so_many_ends_full(capsys: pytest.CaptureFixture[str]) -> None:
    with bar(600, "frame", "film") as tell:
        tell(200)
    assert "200/200" in capsys.readouterr().err.splitlines()[-1]
