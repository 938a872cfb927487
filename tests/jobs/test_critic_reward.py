"""From the command line: clips, a critic, a policy that it pays, and a log that it labels and a policy learns from."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from robot_rl.data import formats
from robot_rl.verbs import critic
from robot_rl.verbs.packaged import compose_config
from robot_rl.words import Refused

SMALL = ("video_episodes=0", "track.tensorboard=false", "final_episodes=2", "eval_every=0", "eval_envs=2")


def test_a_log_that_cannot_be_labelled_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(critic, "load_judge", lambda *_: None)
    monkeypatch.setattr(formats, "load", lambda _: SimpleNamespace(episodes=[SimpleNamespace(meta={})]))
    cfg = compose_config("critic", ["what=label", "path=c", "data=log", f"out={tmp_path / 'labelled'}"])
    with pytest.raises(Refused, match="the log names no instruction"):
        critic.critic(cfg)
    assert not list(tmp_path.iterdir())


def test_critic_pays_a_policy_and_labels_a_log(tmp_path: Path, robot_rl) -> None:
    clips = robot_rl("critic", "clips", "out=clips", "count=12", "chunk=6", "shares={success:2,drop:1}")
    assert clips.returncode == 0, clips.stderr
    made = robot_rl(
        "critic",
        "train",
        "data=clips",
        "critic.steps=3",
        "critic.items=2",
        "critic.width=32",
        "calibration=0.5",
        "name=c",
    )
    assert made.returncode == 0, made.stderr
    (run,) = (tmp_path / "runs" / "critic").iterdir()

    options = (
        "train", "env=tabletop", "env.world.seconds=2", "env.world.only=[red on yellow]", "policy=online/sac",
        "policy.hidden=[16,16]", "policy.batch_size=8", "num_envs=2", "total_steps=60", "learning_starts=20",
        "updates_per_step=0.1", "log_every=20", "rewarder=critic", f"rewarder.judge={run}", *SMALL,
    )  # fmt: skip
    trained = robot_rl(*options, "rewarder.on_done=pay")
    assert trained.returncode == 0, trained.stderr
    (folder,) = (tmp_path / "runs" / "train").iterdir()
    io = json.loads(next(folder.rglob("io.json")).read_text())
    assert list(io["obs"]) == ["state"]  # the critic looks, the policy does not
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert any("rollout/critic_success" in row for row in rows)
    assert any("eval/success" in row for row in rows)

    again = robot_rl("train", f"resume={folder}", "total_steps=80")
    assert again.returncode == 0, again.stderr
    other = robot_rl("train", f"resume={folder}", "rewarder=critic")
    assert other.returncode == 2
    assert "keeps its" in other.stderr
    missing = robot_rl(*options[:-6], "rewarder=critic", "rewarder.judge=nowhere")
    assert missing.returncode == 2
    assert "run folder of critic train" in missing.stderr
    mixed = robot_rl("hil", "env=tabletop", "rewarder=critic", f"rewarder.judge={run}")
    assert mixed.returncode == 2
    assert "task_reward" in mixed.stderr

    log = robot_rl(
        "collect", "env=tabletop", "env.cameras=[front]", "env.camera_size=[48,48]", "env.camera_every=2",
        "env.world.seconds=1", "episodes=4", "num_envs=2", "mistakes=0.5", "out=log",
    )  # fmt: skip
    assert log.returncode == 0, log.stderr
    both = ("critic", "label", f"path=[{run},{run}]", "combine=uwo", "data=log", "out=labelled")
    labelled = robot_rl(*both, "stride=2", "pictures=false")
    assert labelled.returncode == 0, labelled.stderr
    learned = robot_rl(
        "offline", "data=labelled", "env=tabletop", "env.world.seconds=1", "policy=offline/iql", "updates=4",
        "policy.hidden=[16,16]", "estimate=0", "eval_episodes=2", *SMALL,
    )  # fmt: skip
    assert learned.returncode == 0, learned.stderr
