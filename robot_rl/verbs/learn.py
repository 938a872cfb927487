"""Verbs that train: train, offline, hil."""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from robot_rl import build
from robot_rl.verbs import answer
from robot_rl.verbs.build import (
    begin,
    choice,
    env_factory,
    judge_factory,
    learner_factory,
    load_classifier,
    rewarded_factory,
    run_folder,
    saved_config,
    settings_of,
    threads,
    tracker_factory,
)
from robot_rl.verbs.compose import plain, read_options
from robot_rl.words import Refused

if TYPE_CHECKING:
    from robot_rl.jobs.offline import OfflineJob
    from robot_rl.jobs.train import TrainJob


def learner_of_init(cfg: DictConfig) -> str:
    """Where a run goes on from an offline run (`init`), that run's own learner takes the policy's place in `cfg`.

    Returns:
        The method's name, or "" where the chosen policy stays.

    Raises:
        CheckpointError: there is no such run.
    """
    from robot_rl import checkpoint

    own = build.find("policy", str(cfg.policy.name)) if cfg.init is not None and cfg.resume is None else None
    if own is not None and not getattr(own, "from_policy", False):  # the offline run's own learner goes on
        cfg.policy = OmegaConf.load(checkpoint.find(Path(cfg.init)) / "config.yaml").policy  # type: ignore[union-attr]
        for name in ("actor_decay", "decay"):  # the schedule has ended with the log: nothing would move any more
            if cfg.policy.get(name):
                cfg.policy[name] = 0
        return str(cfg.policy.name).rpartition("/")[2]
    return ""


def train_job(cfg: DictConfig, folder: Path, *, config: str) -> TrainJob:
    """A training run as its configuration says, new or resumed (`resume`).

    Args:
        cfg: checked.
        folder: of the run.
        config: what the run keeps of `cfg`.
    """
    from robot_rl.jobs.train import TrainJob, TrainSettings

    threads(cfg)
    return TrainJob(
        settings_of(TrainSettings, cfg),
        folder,
        make_env=rewarded_factory(cfg),
        make_learner=learner_factory(cfg),
        make_tracker=tracker_factory(cfg),
        config=config,
        resume=cfg.resume is not None,
        make_actor=learner_factory(cfg, device="cpu"),
    )


def offline_job(cfg: DictConfig, folder: Path) -> OfflineJob:
    """An offline run as its configuration says, new or resumed (`resume`).

    Args:
        cfg: checked.
        folder: of the run.
    """
    from robot_rl.jobs.offline import OfflineJob, OfflineSettings
    from robot_rl.jobs.offline_judge import Judges

    threads(cfg)
    shared = {"seed": cfg.seed, "device": cfg.device, "gamma": cfg.gamma}
    judges = None
    if cfg.get("ope") is not None and cfg.get("behaviour") is not None:  # else ~ope on the command line: no estimate
        judges = Judges(
            lambda io, policy, **how: build.make("ope", plain(cfg.ope), io, policy, **shared, **how),
            lambda io: build.make("policy", plain(cfg.behaviour), io, where="behaviour", **shared),
        )
    return OfflineJob(
        settings_of(OfflineSettings, cfg),
        folder,
        make_env=None if cfg.get("env") is None else env_factory(cfg),
        make_learner=learner_factory(cfg),
        make_tracker=tracker_factory(cfg),
        config=saved_config(cfg),
        env_name=str(cfg.id or ""),
        judges=judges,
        resume=cfg.resume is not None,
    )


def train(cfg: DictConfig) -> None:
    """Train a policy; Ctrl-C saves and says how to go on."""
    from robot_rl import parallel

    device = parallel.start(str(cfg.device))
    method = learner_of_init(cfg)
    cfg, folder = begin(cfg, "train", ("env", "engine", "policy", "rewarder", "track", "experiment"), method)
    folder = parallel.agree(folder)  # its name holds the time, which differs between processes
    config, cfg.device = saved_config(cfg), device
    main = parallel.rank() == 0
    job = train_job(cfg, folder, config=config)
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


def offline(cfg: DictConfig) -> None:
    """Train a policy from a log; Ctrl-C saves and says how to go on."""
    cfg, folder = begin(cfg, "offline", ("env", "engine", "policy", "track"))
    job = offline_job(cfg, folder)
    folder = job.folder
    answer.run_folder_is(folder)
    for line in job.findings:
        print(f"  log: {line}")
    try:
        summary = job.run()
    except KeyboardInterrupt:
        answer.leave_interrupted("offline", folder)
    answer.table(summary)
    print("".join(f"  {line}\n" for line in job.warnings), end="")


def classify(cfg: DictConfig) -> None:
    """Train a success classifier from recordings, or judge recordings with one."""
    from robot_rl.jobs.classify import ClassifySettings, rescore
    from robot_rl.jobs.classify import train as train_classifier

    threads(cfg)
    logs = [str(path) for path in cfg.logs]
    if cfg.path is not None:
        model, report = load_classifier(Path(cfg.path), str(cfg.device))
        folder = run_folder(cfg, "classify", "scores")
        answer.table(rescore(model, report, logs, folder / "scores.jsonl"))
        return
    folder = run_folder(cfg, "classify", f"{choice('classifier').split('/')[-1]}_seed{cfg.seed}")
    settings = settings_of(ClassifySettings, cfg)

    def make(io: Any) -> Any:
        return build.make("classifier", plain(cfg.classifier), io, seed=cfg.seed, device=str(cfg.device))

    answer.run_folder_is(folder)
    report = train_classifier(settings, logs, folder, make, saved_config(cfg))
    hidden = ("advice", "hard_negatives", "hard_positives", "curve")
    answer.table({name: value for name, value in report.items() if name not in hidden})
    for kind in ("hard_negatives", "hard_positives"):
        found = [f"{row['episode']}@{row['step']} ({row['probability']:.2f})" for row in report[kind][:5]]
        print(f"  {kind.replace('_', ' ')}: {', '.join(found)}")
    print("".join(f"  next: {line}\n" for line in report["advice"]), end="")


def hil(cfg: DictConfig) -> None:
    """Teach a robot with a person in the loop; Ctrl-C saves and says how to go on."""
    from robot_rl.jobs.hil import HilJob, HilSettings
    from robot_rl.jobs.hil_link import HilActorJob, HilLearnerJob
    from robot_rl.link import LinkSettings

    resume = cfg.resume is not None
    if resume:
        folder = Path(cfg.resume)
        saved = folder / "config.yaml"
        if not saved.exists():
            raise Refused(f"{folder} holds no config.yaml; expected a run folder such as runs/hil/<run>")
        changes = [item for item in HydraConfig.get().overrides.task if not item.startswith("resume=")]
        groups_kept = ("env", "engine", "policy", "human", "rewarder", "track")
        groups = [item for item in changes if item.split("=")[0].lstrip("+~") in groups_kept]
        if groups:
            raise Refused(
                f"{groups[0]}: a resumed run keeps its env, engine, policy, human, rewarder and track; start a new run"
            )
        # a run of an earlier version may lack keys: those have their defaults
        kept: Any = OmegaConf.load(saved)
        newer = OmegaConf.masked_copy(cfg, [str(key) for key in cfg if key not in kept and key != "resume"])
        cfg = OmegaConf.merge(newer, kept, OmegaConf.from_dotlist(changes))  # type: ignore[assignment]
        read_options("hil", cfg)
    else:
        name = f"{choice('env')}_{choice('policy').split('/')[-1]}_{choice('human')}_seed{cfg.seed}"
        part = "" if cfg.role == "both" else f"_{cfg.role}"
        folder = run_folder(cfg, "hil", name + part)
    if cfg.get("rewarder") is not None and cfg.task_reward != "env":
        raise Refused(f"rewarder= pays through the environment, and task_reward is '{cfg.task_reward}'; set it to env")
    threads(cfg)
    settings = settings_of(HilSettings, cfg)
    config = OmegaConf.to_yaml(OmegaConf.masked_copy(cfg, [str(key) for key in cfg if key != "resume"]), resolve=True)
    everything: Any = OmegaConf.to_container(cfg, resolve=True)
    link: Any = None
    if cfg.role != "both":
        secret = os.environ.get("ROBOT_RL_LINK_PASSWORD")
        given = {**everything["link"], "password": everything["link"]["password"] or secret}
        link = build.check(LinkSettings, given, "link", "the link")

    def make_pilot(env: Any, with_person: bool) -> Any:
        human = None
        if with_person:
            expert = getattr(env, "expert", None)
            human = build.make("human", plain(cfg.human), io=env.io, expert=expert, seed=cfg.seed)
        return build.make("pilot", plain(cfg.pilot), env=env, human=human)

    make_pilot.pictures = cfg.human.name == "browser"  # type: ignore[attr-defined]

    make_tracker = tracker_factory(cfg)
    job: Any
    if cfg.role == "learner":
        job = HilLearnerJob(
            settings,
            folder,
            link=link,
            policy=everything["policy"],
            make_learner=learner_factory(cfg),
            make_tracker=make_tracker,
            config=config,
            resume=resume,
        )
    else:
        kind: Any = HilJob if cfg.role == "both" else HilActorJob
        job = kind(
            settings,
            folder,
            make_env=rewarded_factory(cfg),
            make_learner=learner_factory(cfg),
            make_pilot=make_pilot,
            make_tracker=make_tracker,
            config=config,
            resume=resume,
            make_judge=None if cfg.judge is None else judge_factory(cfg),
            fit_clones=partial(build.prepare("compatibility", plain(cfg.compatibility)), seed=cfg.seed),
            **({} if cfg.role == "both" else {"link": link, "policy": everything["policy"]}),
        )
    folder = job.folder
    answer.run_folder_is(folder)
    try:
        summary = job.run()
    except KeyboardInterrupt:
        answer.leave_interrupted("hil", folder)
    answer.table(summary)
