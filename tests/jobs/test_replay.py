"""robot-rl replay: a trained policy and its supervisor again, in another process and by the command line."""

import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from hydra.core.global_hydra import GlobalHydra

from robot_rl import cli
from robot_rl.data.flight import FlightWriter
from robot_rl.real.core.flight import spec_table
from robot_rl.real.core.intake import CommandMessage
from robot_rl.real.core.pipeline import CommandPipeline, Controller, PipelineOptions
from robot_rl.real.core.settings import SafetySettings
from robot_rl.real.core.spec import RobotSpec
from robot_rl.real.graph import find_file
from robot_rl.real.policy_runner import RunnerOptions, fit_policy
from robot_rl.real.robot import RobotState
from robot_rl.real.runner_flight import RecordedRunner, digests
from robot_rl.verbs.robot_policy import load_robot_policy

ROOT = Path(__file__).resolve().parents[2]
SAID: dict[str, object] = {}


def fly(folder: Path, run: Path) -> tuple[Path, Path]:
    """Two seconds of the arm on the desk, which does as it is told: the supervisor's file and the policy's."""
    now, spec = 50.0, RobotSpec.load(find_file("desk_arm"))
    flights = [FlightWriter(folder / f"flight_{what}.mcap", clock=lambda: now) for what in ("supervisor", "policy")]
    loaded = load_robot_policy(str(run), device="cpu", threads=1, trust=False)
    policy, port = fit_policy(loaded, spec, SAID, print)
    facts = {"path": str(run), "files": digests(loaded.files), "said": SAID, "spec": spec_table(spec)}
    facts |= {"device": "cpu", "threads": 1}
    options = RunnerOptions(rate=100.0, mode=spec.mode)
    runner = RecordedRunner(policy, port, options, identity="p", flight=flights[1], facts=facts)
    pipe = CommandPipeline(spec, SafetySettings(), PipelineOptions(), start=now, flight=flights[0])
    pipe.controller(Controller(1))
    place, rest, goal = np.array(spec.home), np.zeros(len(spec.joints)), np.array([0.3, 0.1, 0.2])
    for k in range(200):
        now = 50.0 + 0.01 * (k + 1)
        if k % 20 == 0:
            time.sleep(0.05)  # the writer makes a chunk of what came so far
        if k == 60:
            assert pipe.enable() == []
        if pipe.door.authority != "policy":
            runner.restart()
        wanted = runner.tick(place, rest, {"goal": goal})
        assert wanted is not None
        message = CommandMessage("policy", "policy:p", k, spec.names, now, wanted.times, {"positions": wanted.values})
        pipe.offer(message, now)
        sent = pipe.tick(now, RobotState(now, place.copy(), rest))
        place = sent.value.copy()
    assert pipe.safety.state == "ACTIVE"
    for flight in flights:
        flight.close()
    return flights[0].path, flights[1].path


@pytest.fixture(scope="module")
def flight(tmp_path_factory):
    return tmp_path_factory.mktemp("flight")


@pytest.fixture
def flown(flight: Path, make_job, monkeypatch: pytest.MonkeyPatch):
    """(supervisor's file, policy's file, another run); made once, in many pieces."""
    monkeypatch.setattr("robot_rl.data.flight.EVERY", 0.01)
    if not (flight / "b").exists():
        for name, seed in (("a", 0), ("b", 1)):
            make_job(flight / name, f"seed={seed}", "total_steps=80", "final_episodes=1", "eval_every=0").run()
        fly(flight, flight / "a")
    return flight / "flight_supervisor.mcap", flight / "flight_policy.mcap", flight / "b"


def ask(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """Exit code, what is printed, and what is said of a refusal."""
    monkeypatch.setattr("sys.argv", ["robot-rl", "replay", *words])
    GlobalHydra.instance().clear()
    code = 0
    try:
        cli.main()
    except SystemExit as ended:
        code = int(ended.code or 0)
    out, err = capsys.readouterr()
    return code, out, err


def test_another_process_gives_the_same_actions_and_verdicts(flown) -> None:
    supervisor, policy, _ = flown
    words = [sys.executable, "-m", "robot_rl", "replay", f"path=[{supervisor},{policy}]", "--json"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["same"]
    assert (answer["supervisor"]["ticks"], answer["policy"]["ticks"]) == (200, 200)
    assert answer["policy"]["asked"] > 60
    assert answer["policy"]["largest"] == 0.0


def test_another_policy_and_other_limits_are_told_and_end_with_1(flown, monkeypatch, capsys) -> None:
    supervisor, policy, other = flown
    code, out, _ = ask(monkeypatch, capsys, f"path=[{supervisor},{policy}]", f"policy={other}")
    assert code == 1
    assert "largest difference of an action" in out
    assert "200 messages were given to the supervisor as the other policy's, 0 (chunks" in out
    code, out, _ = ask(monkeypatch, capsys, f"path={supervisor}", "limits.velocity=0.01")
    assert code == 1
    assert "fault velocity_measured: not at all in the flight, in tick" not in out  # this robot tells no velocity
    assert "now            [" in out
    code, out, _ = ask(monkeypatch, capsys, f"path={supervisor}", "limits.velocity=0.01", "--json")
    assert (code, json.loads(out)["what_if"]) == (1, True)


def test_one_file_of_both_and_an_altered_one(flown, tmp_path, monkeypatch, capsys) -> None:
    supervisor, policy, _ = flown
    code, out, _ = ask(monkeypatch, capsys, f"path=[{supervisor},{policy}]", f"out={tmp_path / 'one.mcap'}")
    assert (code, "the same, bit for bit" in out) == (0, True)
    code, out, _ = ask(monkeypatch, capsys, f"path={tmp_path / 'one.mcap'}")
    assert code == 0
    assert "policy: 200 ticks" in out
    assert "supervisor: 200 ticks" in out
    data = bytearray((tmp_path / "one.mcap").read_bytes())
    data[len(data) // 2] ^= 1
    (tmp_path / "two.mcap").write_bytes(data)
    code, out, err = ask(monkeypatch, capsys, f"path={tmp_path / 'two.mcap'}", f"out={tmp_path / 'three.mcap'}")
    assert code == 2
    assert "is not as it was written: at piece" in err
    assert out == ""
    assert not (tmp_path / "three.mcap").exists()
    code, _, err = ask(monkeypatch, capsys, f"path={supervisor}", f"out={tmp_path / 'one.mcap'}")
    assert (code, "nothing is overwritten" in err) == (2, True)


def test_a_flight_that_was_killed_is_replayed_up_to_there(flown, tmp_path, monkeypatch, capsys) -> None:
    supervisor, _, _ = flown
    data = supervisor.read_bytes()
    (tmp_path / "cut.mcap").write_bytes(data[: len(data) - 3000])
    code, out, _ = ask(monkeypatch, capsys, f"path={tmp_path / 'cut.mcap'}")
    assert code == 0
    assert "its process was killed" in out


def test_a_policy_that_is_gone_or_another_is_refused(flown, tmp_path, monkeypatch, capsys) -> None:
    _, policy, other = flown
    run = other.parent / "a"
    run.rename(tmp_path / "a")
    try:
        code, _, err = ask(monkeypatch, capsys, f"path={policy}")
        assert (code, "nothing is there now; give policy=" in err) == (2, True)
        code, out, _ = ask(monkeypatch, capsys, f"path={policy}", f"policy={tmp_path / 'a'}")
        assert (code, "the same, bit for bit" in out) == (0, True)
        other.rename(run)
        code, _, err = ask(monkeypatch, capsys, f"path={policy}")
        assert (code, "are not the files that flew" in err) == (2, True)
        run.rename(other)
    finally:
        (tmp_path / "a").rename(run)
