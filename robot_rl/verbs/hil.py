"""The verb hil."""

from __future__ import annotations

import copy
import os
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from omegaconf import DictConfig, OmegaConf
from pydantic import Field

from robot_rl import build
from robot_rl.link import LinkSettings
from robot_rl.types import VecEnv
from robot_rl.verbs import answer
from robot_rl.verbs.build import (
    EnvMaker,
    begin,
    choice,
    env_factory,
    env_name,
    learner_factory,
    settings_of,
    start_of,
    threads,
)
from robot_rl.verbs.classify import judge_factory
from robot_rl.verbs.hil_job import HilJob, HilMakers, HilSettings
from robot_rl.verbs.hil_link import HilActorJob, HilLearnerJob
from robot_rl.verbs.options import Env, Machine, Pictures, Resume
from robot_rl.verbs.reading import plain
from robot_rl.verbs.rewarders import rewarded_factory
from robot_rl.words import Refused

if TYPE_CHECKING:
    from robot_rl.human.pilot import Pilot


class HilVerbOptions(Machine, Env, Pictures, Resume, HilSettings):
    """robot-rl hil."""

    judge: str | None = None
    """A folder of robot-rl classify, for task_reward=classifier."""
    role: Literal["both", "actor", "learner"] = "both"
    """One process, or the one that drives and records, or the one that learns; see docs/hil_link.md."""
    link: LinkSettings = LinkSettings()
    """Between actor and learner; see docs/hil_link.md."""
    takeover: dict[str, object] = Field(default_factory=lambda: {"mode": "deadman"})
    """How the person takes over: mode=deadman, toggle or implicit; further +takeover.hold_ms=200 ... (docs/hil.md)."""
    safety: dict[str, object] = Field(default_factory=dict)
    """Limits of what is executed: +safety.acceleration=1.0 ... (docs/hil.md)."""


def hil(cfg: DictConfig) -> None:
    """Teach a robot with a person in the loop; Ctrl-C saves and says how to go on."""
    name = f"{env_name(cfg)}_{choice('policy').split('/')[-1]}_{choice('human')}_seed{cfg.seed}"
    part = "" if cfg.role == "both" else f"_{cfg.role}"
    groups = ("env", "engine", "policy", "encoder", "human", "rewarder", "track")
    composed = cfg
    cfg, folder = begin(cfg, "hil", HilVerbOptions, groups, name + part)
    if cfg.get("compatibility") is None:  # a run that is older than it
        cfg.compatibility = composed.compatibility
    if cfg.get("rewarder") is not None and cfg.task_reward != "env":
        raise Refused(f"rewarder= pays through the environment, and task_reward is '{cfg.task_reward}'; set it to env")
    if cfg.task_reward == "labels" and cfg.human.name == "scripted" and cfg.role != "learner":
        raise Refused(
            "task_reward=labels pays what a person says with a key, and a scripted person (human=scripted, the "
            "default) says nothing: nothing would ever succeed. Take human=browser, keyboard, gamepad or ros, or leave "
            "task_reward out where the world knows its success"
        )
    if cfg.get("realtime") is not None and cfg.role != "actor":
        raise Refused(
            f"realtime={cfg.realtime} is for a process that only drives, and with role={cfg.role} the learner would "
            "run at that priority too; take role=actor (docs/hil_link.md), or leave realtime out"
        )
    threads(cfg)
    settings = settings_of(HilSettings, cfg)
    start = start_of(cfg, folder)
    everything: Any = OmegaConf.to_container(cfg, resolve=True)
    link: Any = None
    if cfg.role != "both":
        secret = os.environ.get("ROBOT_RL_LINK_PASSWORD")
        given = {**everything["link"], "password": everything["link"]["password"] or secret}
        link = build.check(LinkSettings, given, "link", "the link")

    def make_pilot(env: VecEnv, with_person: bool) -> Pilot:
        human = None
        if with_person:
            given = {"io": env.io, "expert": env.parts.expert, "seed": cfg.seed, "listen": _listen}
            human = build.make("human", plain(cfg.human), **given)
        return build.make("pilot", plain(cfg.pilot), env=env, human=human)

    job: Any
    if cfg.role == "learner":
        job = HilLearnerJob(
            settings,
            start,
            link=link,
            policy=everything["policy"],
            make_learner=learner_factory(cfg),
        )
    else:
        makers = HilMakers(
            env=rewarded_factory(cfg),
            learner=learner_factory(cfg),
            pilot=make_pilot,
            pictures=cfg.human.name in ("browser", "ros") and _shows(cfg),
            drawn=_drawing_maker(cfg),
            judge=None if cfg.judge is None else judge_factory(cfg),
            clones=partial(build.prepare("compatibility", plain(cfg.compatibility)), seed=cfg.seed),
        )
        if cfg.role == "both":
            job = HilJob(settings, start, makers)
        else:
            job = HilActorJob(settings, start, makers, link=link, policy=everything["policy"])
    answer.table(answer.run(job, "hil"))


def _listen(*device: Any, **topics: Any) -> Any:
    """ROS is loaded by who listens to it."""
    return build.tool("real.ros.hands:RosHands")(*device, **topics)


def _drawing_maker(cfg: DictConfig) -> EnvMaker | None:
    """The environment as it is drawn for a person: without shadows, so that it keeps up with the loop."""
    if "render_quality" not in cfg.env:
        return None
    drawn = copy.deepcopy(cfg)
    drawn.env.render_quality = "fast"
    return env_factory(drawn)


def _shows(cfg: DictConfig) -> bool:
    """There is a picture for the person: a robot may have no cameras, and they look at the robot itself."""
    return cfg.env.engine != "ros2" or bool(build.tool("real.graph:cameras_of")(cfg.env.robot_spec))
