"""The verb train."""

from __future__ import annotations

import sys
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from robot_rl import build, checkpoint, parallel
from robot_rl.run import RunStart
from robot_rl.types import Learner
from robot_rl.verbs import answer
from robot_rl.verbs.build import begin, learner_factory, run_name, settings_of, start_of, threads
from robot_rl.verbs.options import Env, Machine, Pictures, Resume
from robot_rl.verbs.reading import stored_config
from robot_rl.verbs.rewarders import rewarded_factory
from robot_rl.verbs.train_job import TrainJob, TrainSettings
from robot_rl.words import Refused


class TrainOptions(Machine, Env, Pictures, Resume, TrainSettings):
    """robot-rl train."""


def learner_of_init(cfg: DictConfig) -> str:
    """Where a run goes on from an offline run (`init`), that run's own learner takes the policy's place in `cfg`.

    Options that were stated for the same method are changed in it.

    Returns:
        The method's name, or "" where the chosen policy stays.

    Raises:
        CheckpointError: there is no such run.
        Refused: options of another method.
    """
    own = build.find("policy", str(cfg.policy.name)) if cfg.init is not None and cfg.resume is None else None
    begins = isinstance(own, type) and issubclass(own, Learner) and own.from_policy
    if own is not None and not begins:  # the offline run's own learner goes on
        kept = stored_config(checkpoint.find(Path(str(cfg.init)))).policy
        usual = OmegaConf.create(build.defaults("policy", str(cfg.policy.name)))
        stated = {name: value for name, value in cfg.policy.items() if value != usual.get(name)}
        if stated and cfg.policy.name != kept.name:
            raise Refused(
                f"policy.{next(iter(stated))}: with init= the learner of that run goes on; add policy={kept.name} to "
                "change its options"
            )
        cfg.policy = kept
        for name in ("actor_decay", "decay"):  # the schedule has ended with the log: nothing would move any more
            if cfg.policy.get(name):
                cfg.policy[name] = 0
        cfg.policy.update(stated)
        return str(cfg.policy.name).rpartition("/")[2]
    return ""


def train_job(cfg: DictConfig, start: RunStart) -> TrainJob:
    """A training run as its configuration says, new or resumed (`resume`).

    Args:
        cfg: checked.
        start: where the run begins.
    """
    threads(cfg)
    return TrainJob(
        settings_of(TrainSettings, cfg),
        start,
        make_env=rewarded_factory(cfg),
        make_learner=learner_factory(cfg),
        make_actor=learner_factory(cfg, device="cpu"),
    )


def train(cfg: DictConfig) -> None:
    """Train a policy; Ctrl-C saves and says how to go on."""
    method = learner_of_init(cfg)
    groups = ("env", "engine", "policy", "rewarder", "track", "preset")
    cfg, folder = begin(cfg, "train", TrainOptions, groups, run_name(cfg, method))
    device = parallel.start(str(cfg.device))  # of a resumed run its own
    folder = parallel.agree(folder)  # its name holds the time, which differs between processes
    start, cfg.device = start_of(cfg, folder), device
    main = parallel.rank() == 0
    job = train_job(cfg, start)
    folder = job.folder
    if main:
        answer.run_folder_is(folder)
    try:
        summary = job.run()
    except KeyboardInterrupt:
        if main:
            answer.leave_interrupted("train", folder)
        sys.exit(130)
    finally:
        parallel.stop()
    if main:
        answer.table(summary)
        answer.findings(job.findings)
