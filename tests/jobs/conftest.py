"""Build train jobs the way the command line does, small enough for tests."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_module
from omegaconf import OmegaConf

from robot_rl import build
from robot_rl.run import RunStart
from robot_rl.verbs.build import settings_of
from robot_rl.verbs.compose import register
from robot_rl.verbs.reading import plain
from robot_rl.verbs.train_job import TrainJob, TrainSettings

register()  # as the command line does: a file of these tests may run alone

TINY = [
    "env=reach",
    "policy=online/sac",
    "policy.hidden=[16,16]",
    "policy.batch_size=16",
    "num_envs=2",
    "total_steps=240",
    "learning_starts=60",
    "updates_per_step=0.5",
    "log_every=40",
    "eval_every=80",
    "eval_episodes=2",
    "eval_envs=2",
    "final_episodes=2",
    "checkpoint_every=0",
    "video_episodes=0",
    "track.tensorboard=false",
    "threads=1",
]

WITHOUT_REPLAY = ("policy=online/ppo", "policy=online/sb3", "policy=online/fast_ppo", "policy=contrib/set_ppo")


@pytest.fixture
def make_job() -> Callable[..., TrainJob]:
    """(folder, *overrides, resume=False) -> TrainJob."""

    def make(folder: Path, *overrides: str, resume: bool = False) -> TrainJob:
        with initialize_config_module("robot_rl.configs", version_base="1.3"):
            other = [item for item in overrides if item.startswith("policy=")]
            lacks = {"policy=online/ppo": "policy.batch_size", "policy=online/fast_sac": "policy.hidden"}
            lack = "policy." if "policy=online/sb3" in other else next((lacks[x] for x in other if x in lacks), "none")
            tiny = [item for item in TINY if not item.startswith(lack)]
            if other and other[-1].startswith(WITHOUT_REPLAY):
                tiny = [item for item in tiny if not item.startswith(("learning_starts", "updates_per_step"))]
            cfg = compose("train", overrides=[*tiny, *overrides])

        def make_env(num_envs: int, seed: int, render: bool) -> Any:
            extra = {"render_mode": "rgb_array"} if render else {}
            return build.make("engine", plain(cfg.env), num_envs=num_envs, seed=seed, device="cpu", **extra)

        return TrainJob(
            settings_of(TrainSettings, cfg),
            RunStart(
                folder,
                OmegaConf.to_yaml(cfg, resolve=True),
                lambda place, step: build.make("track", plain(cfg.track), place, resume_step=step),
                resume,
            ),
            make_env=make_env,
            make_learner=lambda io: build.make(
                "policy", plain(cfg.policy), io, seed=cfg.seed, device="cpu", gamma=cfg.gamma
            ),
        )

    return make
