"""From the command line: a critic that is shown its goal judges clips, labels a log and pays a policy."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

SMALL = ("video_episodes=0", "track.tensorboard=false", "final_episodes=2", "eval_every=0", "eval_envs=2")


def test_critic_is_shown_its_goal_and_says_why_not(tmp_path: Path, robot_rl) -> None:
    for name, count, seed in (("clips", 48, 0), ("fresh", 24, 5)):  # two clips at least show each goal
        made = robot_rl(
            "critic", "clips", f"out={name}", f"count={count}", "chunk=48", f"seed={seed}", "shares={success:7,drop:1}"
        )
        assert made.returncode == 0, made.stderr
    small = ("critic.steps=2", "critic.items=2", "critic.width=32", "calibration=0.3")
    made = robot_rl("critic", "train", "data=clips", "critic=in_context", *small)
    assert made.returncode == 0, made.stderr
    (run,) = (tmp_path / "runs" / "critic").iterdir()
    judged = robot_rl("critic", "eval", f"path={run}", "data=fresh")
    assert judged.returncode == 0, judged.stderr
    assert "trap, right sentence wrong reference: false done" in judged.stdout
    report = json.loads((run / "report_held_out.json").read_text())
    assert list(report["conditions"]) == ["sentence", "reference", "both", "picture"]

    log = robot_rl(
        "collect", "env=tabletop", "env.cameras=[front]", "env.camera_size=[48,48]", "env.camera_every=2",
        "env.world.seconds=1", "episodes=3", "num_envs=1", "out=log",
    )  # fmt: skip
    assert log.returncode == 0, log.stderr
    with np.load(tmp_path / "clips" / "clips_0000.npz") as arrays:
        good = int(np.flatnonzero(arrays["kind"] == 0)[0])
    label = ("critic", "label", "data=log", "stride=2", f"path={run}")
    done = robot_rl(*label, f"reference=clips:{good}", "out=labelled")
    assert done.returncode == 0, done.stderr
    refused = robot_rl(*label, "reference=log:0", "out=refused")  # a second is too short for the task
    assert refused.returncode == 2, refused.stdout
    assert "log:0 fails, and only a success shows its goal; successes are none of this log" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert not (tmp_path / "refused").exists()

    trained = robot_rl(
        "train", "env=tabletop", "env.world.seconds=2", "policy=online/sac", "policy.hidden=[16,16]",
        "policy.batch_size=8", "num_envs=2", "total_steps=40", "learning_starts=20", "updates_per_step=0.1",
        "log_every=20", "rewarder=critic", f"rewarder.judge={run}", f"rewarder.reference=clips:{good}", *SMALL,
    )  # fmt: skip
    assert trained.returncode == 0, trained.stderr
