"""Rewards beside the environment, from the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def test_from_the_command_line(tmp_path: Path, robot_rl: Any) -> None:
    small = (
        "env=reach", "policy=online/sac", "policy.hidden=[8,8]", "policy.batch_size=8", "num_envs=2", "total_steps=60",
        "learning_starts=20", "updates_per_step=0.1", "log_every=20", "eval_every=0", "final_episodes=1",
        "video_episodes=0", "track.tensorboard=false",
    )  # fmt: skip
    table = tmp_path / "labels.jsonl"
    asked = (
        "rewarder=annotator", "rewarder.names=[tip_to_goal]", "rewarder.size=1", "rewarder.keep=0",
        f"rewarder.save={table}", 'rewarder.model="program:norm(tip_to_goal) < 1.5"',
    )  # fmt: skip
    done = robot_rl("train", *small, *asked, "name=a")
    assert done.returncode == 0, done.stderr
    assert json.loads(table.read_text().splitlines()[0])["key"].startswith("tip_to_goal=")
    again = robot_rl("train", *small, "rewarder=annotator", "rewarder.names=[tip_to_goal]", f"rewarder.replay={table}")
    assert again.returncode == 0, again.stderr
    wrong = robot_rl("train", *small, "rewarder=program", 'rewarder.code="norm(speed)"')
    assert wrong.returncode == 1
    assert "no observable 'speed'" in wrong.stderr
