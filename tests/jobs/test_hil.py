"""robot-rl hil as its user runs it: folder, numbers, resume."""

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from robot_rl.data.hil_log import read_manifest

TINY = [
    "env=insert",
    "human=scripted",
    "demos=2",
    "total_steps=120",
    "learning_starts=40",
    "updates_per_step=0.5",
    "policy.hidden=[16,16]",
    "policy.batch_size=16",
    "policy.bc_steps=20",
    "policy.critics=2",
    "policy.utd=1",
    "eval_every=60",
    "eval_episodes=1",
    "final_episodes=1",
    "checkpoint_every=60",
    "track.tensorboard=false",
    "name=tiny",
]


def only(folder: Path) -> Path:
    (run,) = folder.iterdir()
    return run


def test_hil_runs_reports_and_continues(robot_rl, tmp_path):
    done = robot_rl("hil", *TINY)
    assert done.returncode == 0, done.stderr
    assert "human_seconds" in done.stdout
    run = only(tmp_path / "runs/hil")
    for name in ("report.html", "curve.png", "metrics.jsonl", "evaluation.json", "log/manifest.jsonl", "config.yaml"):
        assert (run / name).exists(), name
    lines = read_manifest(run / "log")
    assert sum(line["demo"] for line in lines) == 2
    steps = sum(line["steps"] for line in lines if not line["demo"])
    summary = json.loads((run / "evaluation.json").read_text())
    assert summary["steps"] == steps >= 120
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    episode = next(row for row in rows if "hil/human_steps" in row)
    for name in ("rollout/intervention_rate", "rollout/autonomous_low", "hil/human_seconds", "hil/tick_ms_p99"):
        assert name in episode, name
    again = robot_rl("hil", f"resume={run}", "total_steps=160")
    assert again.returncode == 0, again.stderr
    assert len(read_manifest(run / "log")) > len(lines)
    assert robot_rl("eval", f"path={run}", "episodes=2", "video_episodes=0").returncode == 0

    # the newest checkpoint is damaged: the one before serves
    newest = sorted((run / "checkpoints").glob("step_*"))[-1]
    (newest / "learner.pt").write_bytes(b"torn")
    assert robot_rl("hil", f"resume={run}", "total_steps=180").returncode == 0


def test_killed_run_loses_nothing_that_was_reported(tmp_path):
    import os

    root = Path(__file__).resolve().parents[2]
    env = {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "robot_rl", "hil", *TINY[:3], "total_steps=100000", *TINY[4:]]
    process = subprocess.Popen(
        command, cwd=tmp_path, env=env, stderr=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    run = tmp_path / process.stdout.readline().split(": ")[1].strip()
    manifest = run / "log" / "manifest.jsonl"
    import time

    end = time.monotonic() + 150
    while time.monotonic() < end and not (manifest.exists() and len(read_manifest(run / "log")) >= 6):
        time.sleep(0.1)
    process.send_signal(signal.SIGKILL)
    process.wait()
    before = read_manifest(run / "log")
    assert len(before) >= 6
    resumed = subprocess.run(
        [*command[:4], f"resume={run}", "total_steps=200"],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert resumed.returncode == 0, resumed.stderr
    after = read_manifest(run / "log")
    assert after[: len(before)] == before
    keys = [line["episode_id"] for line in after]
    assert keys == sorted(set(keys))
    shutil.rmtree(run)


def test_hil_refuses_a_world_without_an_expert(robot_rl):
    out = robot_rl("hil", "env=gym", "id=Pendulum-v1", "demos=0")
    assert out.returncode == 1
    assert "scripted expert" in out.stderr
    assert "Traceback" not in out.stderr
