"""Demonstrations, imitation, group-relative learning and late answers through the command line, as a user runs them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SUITE = (
    "env=tabletop", "env.world.sentences=plain", "env.world.layout=fixed", "env.world.seconds=1",
    "env.cameras=[top]", "env.camera_size=[16,16]",
)  # fmt: skip


def run(*arguments: str) -> str:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    found = subprocess.run(
        [sys.executable, "-m", "robot_rl", *arguments], env=env, capture_output=True, text=True, timeout=300
    )
    assert found.returncode == 0, found.stderr
    return found.stdout


@pytest.mark.slow
def test_policy_goes_from_demonstrations_to_reinforcement_and_through_the_guard(tmp_path: Path) -> None:
    log, out = tmp_path / "log", tmp_path / "runs"
    said = run("collect", *SUITE, "per_task=1", "num_envs=6", f"out={log}")
    assert "episodes  6" in said
    small = ("policy.trunk=[32]", "policy.horizon_pred=4", "policy.horizon_exec=2", "policy.batch_size=8")
    run(
        "offline", f"data={log}", *SUITE, "policy=vla/imitation", *small, "updates=4", "log_every=2", "eval_every=0",
        "final_episodes=2", "eval_envs=2", "estimate=0", "video_episodes=0", f"output={out}", "name=im",
    )  # fmt: skip
    imitation = next((out / "offline").iterdir())
    run(
        "train", *SUITE, "policy=vla/grpo", "policy.group_size=4", "policy.groups=2", "policy.refills=0",
        "policy.progress=srpo", f"init={imitation}", "num_envs=8", "total_steps=80", "eval_every=0", "eval_envs=2",
        "final_episodes=2", "video_episodes=0", f"output={out}", "name=rl",
    )  # fmt: skip
    learned = next((out / "train").iterdir())
    folder = learned / "model_000000080"
    assert (folder / "model.safetensors").exists()
    said = run("eval", "policy=vla/folder", f"path={folder}", *SUITE, "episodes=6", "num_envs=6", "video_episodes=0",
               f"output={out}")  # fmt: skip
    assert "success in all" in said
    assert "95 %" in said
    run("eval", "latency", f"path={learned}", "latency_ms=200", "episodes=4", "num_envs=2", f"output={out}")
    found = json.loads(next((out / "latency").glob("*/latency.json")).read_text())
    assert list(found) == ["no latency", "queue", "naive", "wait"]
    assert all(len(row["successes"]) == 4 for row in found.values())
