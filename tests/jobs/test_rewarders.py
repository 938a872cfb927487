"""Rewards beside the environment, from the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from robot_rl.policies.vla.picture_text import TinyEncoder
from robot_rl.verbs.packaged import compose_config
from robot_rl.verbs.pictures import put_pictures
from robot_rl.verbs.rewarders import rewarded_factory


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
    assert wrong.returncode == 2
    assert "no observable 'speed'" in wrong.stderr


def test_two_sentences_pay_from_the_command_line(tmp_path: Path, robot_rl: Any) -> None:
    encoder = TinyEncoder(16, 64, seed=0)  # not trained: which of the two is nearer is chance, and the same each time
    encoder.save(tmp_path / "tiny.pt")
    options = (
        "train", "env=tabletop", "env.world.seconds=1", "policy=online/sac", "policy.hidden=[8,8]",
        "policy.batch_size=8", "num_envs=2", "total_steps=40", "learning_starts=20", "updates_per_step=0.1",
        "log_every=20", "eval_every=0", "final_episodes=1", "video_episodes=0", "track.tensorboard=false",
        "env.camera_size=[32,32]", "rewarder=contrast", "rewarder.encoder=tiny.pt", "rewarder.calibration=5",
        "rewarder.every=2", 'rewarder.terms=["1 - tanh(norm(tip_to_yellow_plate))"]',
    )  # fmt: skip
    sentences = ["the block lies on the plate", "an empty plate"]
    found = [
        robot_rl(*options, f"rewarder.good='{sentences[i]}'", f"rewarder.bad='{sentences[1 - i]}'", f"name=c{i}")
        for i in range(2)
    ]
    assert sorted(done.returncode for done in found) == [0, 2]
    (right,), (wrong,) = ([done for done in found if done.returncode == code] for code in (0, 2))
    assert "z_max" in right.stdout
    assert "find hardly any of them bad" in wrong.stderr
    (folder,) = (item for item in (tmp_path / "runs" / "train").iterdir() if list(item.rglob("io.json")))
    assert list(json.loads(next(folder.rglob("io.json")).read_text())["obs"]) == ["state"]  # the policy does not look


def test_a_reward_looks_through_a_camera_beside_those_that_the_world_takes_for_the_policy(tmp_path: Path) -> None:
    TinyEncoder(16, 64, seed=0).save(tmp_path / "tiny.pt")
    pays = ("good=a", "bad=b", "z_max=1", "camera=wrist", f"encoder={tmp_path / 'tiny.pt'}")
    words = ["env=pick", "cameras=own", "image_size=32", "rewarder=contrast", *(f"rewarder.{word}" for word in pays)]
    cfg = compose_config("train", words)
    OmegaConf.set_struct(cfg, False)
    put_pictures(cfg)
    env = rewarded_factory(cfg)(1, 0, False)
    obs, _ = env.reset(seed=0)
    assert {key for key in obs if key.startswith("image.")} == {"image.front", "image.side"}
    env.close()
