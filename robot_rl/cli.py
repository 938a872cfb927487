"""robot-rl <verb> [key=value ...]: the command line, and the only file that knows Hydra."""

from __future__ import annotations

import importlib
import os
import re
import sys
import traceback
from collections.abc import Callable
from dataclasses import fields
from datetime import datetime
from pathlib import Path
from typing import Any

import hydra
import torch
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from robot_rl import __version__

USAGE = """robot-rl <verb> [key=value ...]

  train      train a policy in simulation              robot-rl train env=pick policy=online/rlpd demos=20
  hil        teach a robot, with a person in the loop   robot-rl hil env=insert human=browser
  eval       evaluate a trained policy, film it        robot-rl eval path=runs/train/<run> episodes=100
  collect    record episodes                           robot-rl collect env=pick out=pick.hdf5
  data info  what is in a log                          robot-rl data info pick.hdf5
  bench      measure ours against peers                robot-rl bench sac
  doctor     versions, devices, what is missing        robot-rl doctor

robot-rl <verb> --help lists every choice and key. --debug shows the traceback of an error."""


class Refused(Exception):
    """The request cannot be carried out; the message is the paragraph that the user reads."""


# ---------------------------------------------------------------- building objects from configuration


def _env_factory(cfg: DictConfig) -> Callable[[int, int, bool], Any]:
    """(num_envs, seed, render) -> environment."""

    def make(num_envs: int, seed: int, render: bool) -> Any:
        extra = {"render_mode": "rgb_array"} if render else {}
        return instantiate(cfg.env, num_envs=num_envs, seed=seed, device=cfg.device, **extra)

    return make


def _learner_factory(cfg: DictConfig) -> Callable[[Any], Any]:
    """(io) -> learner."""

    def make(io: Any) -> Any:
        # the passport is an object, not configuration: a partial keeps OmegaConf away from it
        return instantiate(cfg.policy, _partial_=True)(io, seed=cfg.seed, device=cfg.device, gamma=cfg.gamma)

    return make


def _load_policy(cfg: DictConfig, run_config: DictConfig, path: Path) -> Any:
    from robot_rl import checkpoint

    made = OmegaConf.merge(run_config, {"device": cfg.device})
    learner = _learner_factory(made)(checkpoint.read_io(path))  # type: ignore[arg-type]
    learner.policy.load_state_dict(checkpoint.load_state(path / "policy.pt", device=cfg.device))
    return learner.policy


def _run_folder(cfg: DictConfig, verb: str, default_name: str) -> Path:
    if HydraConfig.get().mode == RunMode.MULTIRUN:
        return Path(HydraConfig.get().runtime.output_dir)
    name = re.sub(r"[^\w.=-]+", "-", str(cfg.name or default_name))
    stem = Path(cfg.output) / verb / f"{datetime.now():%Y-%m-%d_%H-%M-%S}_{name}"
    folder, number = stem, 2
    while folder.exists():
        folder, number = stem.with_name(f"{stem.name}-{number}"), number + 1
    return folder


def _choice(group: str) -> str:
    return str(HydraConfig.get().runtime.choices.get(group) or "")


def _threads(cfg: DictConfig) -> None:
    if cfg.threads:
        torch.set_num_threads(int(cfg.threads))


def _table(rows: dict[str, Any]) -> None:
    width = max((len(name) for name in rows), default=0)
    for name, value in rows.items():
        print(f"  {name:<{width}}  {value:.4g}" if isinstance(value, float) else f"  {name:<{width}}  {value}")


# ---------------------------------------------------------------- verbs


def train(cfg: DictConfig) -> None:
    """Train a policy; Ctrl-C saves and says how to go on."""
    from robot_rl.jobs.train import TrainJob, TrainSettings

    resume = cfg.resume is not None
    if resume:
        folder = Path(cfg.resume)
        if folder.parent.name == "checkpoints":
            folder = folder.parent.parent
        saved = folder / "config.yaml"
        if not saved.exists():
            raise Refused(f"{folder} holds no config.yaml; expected a run folder such as runs/train/<run>")
        changes = [item for item in HydraConfig.get().overrides.task if not item.startswith("resume=")]
        groups = [
            item for item in changes if item.split("=")[0].lstrip("+~") in ("env", "policy", "track", "experiment")
        ]
        if groups:
            raise Refused(f"{groups[0]}: a resumed run keeps its env, policy, track and experiment; start a new run")
        cfg = OmegaConf.merge(OmegaConf.load(saved), OmegaConf.from_dotlist(changes))  # type: ignore[assignment]
    else:
        name = (
            f"{_choice('env')}{'-' + str(cfg.id) if cfg.id else ''}_{_choice('policy').split('/')[-1]}_seed{cfg.seed}"
        )
        folder = _run_folder(cfg, "train", name)
    _threads(cfg)
    settings = TrainSettings(**{f.name: cfg[f.name] for f in fields(TrainSettings)})
    config = OmegaConf.to_yaml(OmegaConf.masked_copy(cfg, [str(key) for key in cfg if key != "resume"]), resolve=True)
    plain = OmegaConf.to_container(cfg, resolve=True)

    def make_tracker(resume_step: int | None) -> Any:
        extra = {"config": plain} if "wandb" in cfg.track._target_ else {}
        return instantiate(cfg.track, _partial_=True)(str(folder), resume_step=resume_step, **extra)

    print(f"run folder: {folder}")
    job = TrainJob(
        settings,
        folder,
        make_env=_env_factory(cfg),
        make_learner=_learner_factory(cfg),
        make_tracker=make_tracker,
        config=config,
        resume=resume,
    )
    try:
        summary = job.run()
    except KeyboardInterrupt:
        print(f"\ninterrupted and saved; continue with: robot-rl train resume={folder}")
        sys.exit(130)
    _table(summary)


def hil(cfg: DictConfig) -> None:
    """Teach a robot with a person in the loop; Ctrl-C saves and says how to go on."""
    from robot_rl.jobs.hil import HilJob, HilSettings

    resume = cfg.resume is not None
    if resume:
        folder = Path(cfg.resume)
        saved = folder / "config.yaml"
        if not saved.exists():
            raise Refused(f"{folder} holds no config.yaml; expected a run folder such as runs/hil/<run>")
        changes = [item for item in HydraConfig.get().overrides.task if not item.startswith("resume=")]
        groups = [item for item in changes if item.split("=")[0].lstrip("+~") in ("env", "policy", "human", "track")]
        if groups:
            raise Refused(f"{groups[0]}: a resumed run keeps its env, policy, human and track; start a new run")
        cfg = OmegaConf.merge(OmegaConf.load(saved), OmegaConf.from_dotlist(changes))  # type: ignore[assignment]
    else:
        name = f"{_choice('env')}_{_choice('policy').split('/')[-1]}_{_choice('human')}_seed{cfg.seed}"
        folder = _run_folder(cfg, "hil", name)
    _threads(cfg)
    settings = HilSettings(**{f.name: cfg[f.name] for f in fields(HilSettings)})
    config = OmegaConf.to_yaml(OmegaConf.masked_copy(cfg, [str(key) for key in cfg if key != "resume"]), resolve=True)
    plain: Any = OmegaConf.to_container(cfg, resolve=True)

    def make_pilot(env: Any, with_person: bool) -> Any:
        human = None
        if with_person:
            human = instantiate(cfg.human, _partial_=True)(io=env.io, expert=getattr(env, "expert", None))
        return instantiate(cfg.pilot, _partial_=True, _convert_="all")(env=env, human=human)

    make_pilot.pictures = "console" in cfg.human._target_  # type: ignore[attr-defined]

    def make_tracker(resume_step: int | None) -> Any:
        extra = {"config": plain} if "wandb" in cfg.track._target_ else {}
        return instantiate(cfg.track, _partial_=True)(str(folder), resume_step=resume_step, **extra)

    print(f"run folder: {folder}", flush=True)
    job = HilJob(
        settings,
        folder,
        make_env=_env_factory(cfg),
        make_learner=_learner_factory(cfg),
        make_pilot=make_pilot,
        make_tracker=make_tracker,
        config=config,
        resume=resume,
    )
    try:
        summary = job.run()
    except KeyboardInterrupt:
        print(f"\ninterrupted and saved; continue with: robot-rl hil resume={folder}")
        sys.exit(130)
    _table(summary)


def evaluate(cfg: DictConfig) -> None:
    """Evaluate a checkpoint or a foreign policy."""
    from tqdm import tqdm

    from robot_rl import checkpoint
    from robot_rl.checkpoint import write_json
    from robot_rl.jobs.train import record_video
    from robot_rl.loops.evaluate import evaluate as run_evaluation

    _threads(cfg)
    path = Path(cfg.path)
    run_config: Any = None
    if cfg.get("policy") is None:
        path = checkpoint.find(path)
        run_config = OmegaConf.load(path / "config.yaml")
        if cfg.get("env") is None:
            cfg = OmegaConf.merge(cfg, {"env": run_config.env})  # type: ignore[assignment]
    elif cfg.get("env") is None:
        raise Refused(f"policy={_choice('policy')} brings no environment; add env=…, e.g. env=gym id=HalfCheetah-v4")
    make_env = _env_factory(cfg)
    env = make_env(cfg.num_envs, cfg.seed, False)
    if cfg.get("policy") is None:
        policy = _load_policy(cfg, run_config, path)
    else:
        policy = instantiate(cfg.policy, _partial_=True)(path=str(path), io=env.io, device=cfg.device)
    with tqdm(total=cfg.episodes, unit="episode", file=sys.stderr, dynamic_ncols=True) as bar:
        result = run_evaluation(
            env,
            policy,
            episodes=cfg.episodes,
            seed=cfg.seed + 10_000,
            deterministic=cfg.deterministic,
            on_episode=lambda done: bar.update(done - bar.n),
        )
    folder = _run_folder(cfg, "eval", path.stem)
    folder.mkdir(parents=True, exist_ok=True)
    video = record_video(make_env, policy, folder / "eval.mp4", cfg.video_episodes, cfg.seed)
    summary = {name.removeprefix("eval/"): value for name, value in result.metrics().items()}
    write_json(folder / "evaluation.json", {**summary, "returns": result.returns, "successes": result.successes})
    _table({**summary, "video": str(video), "numbers": str(folder / "evaluation.json")})


def collect(cfg: DictConfig) -> None:
    """Record episodes to a file or folder."""
    from tqdm import tqdm

    from robot_rl import checkpoint
    from robot_rl.data import d4rl, recorder
    from robot_rl.jobs.collect import ExpertPolicy, keep_steps

    _threads(cfg)
    out = Path(cfg.out)
    if out.exists():
        raise Refused(f"{out} exists already; choose another name or remove it first (nothing is overwritten)")
    if cfg.path is not None and cfg.get("policy") is None:
        path = checkpoint.find(Path(cfg.path))
        run_config: Any = OmegaConf.load(path / "config.yaml")
        env = _env_factory(cfg)(cfg.num_envs, cfg.seed, False)
        policy = _load_policy(cfg, run_config, path)
    else:
        env = _env_factory(cfg)(cfg.num_envs, cfg.seed, False)
        if cfg.get("policy") is None:
            policy = ExpertPolicy(env, noise=cfg.noise, seed=cfg.seed)
        else:
            policy = instantiate(cfg.policy, _partial_=True)(path=str(cfg.path), io=env.io, device=cfg.device)
    with tqdm(total=cfg.episodes, unit="episode", file=sys.stderr, dynamic_ncols=True) as bar:
        episodes = keep_steps(
            env,
            policy,
            episodes=cfg.episodes,
            seed=cfg.seed + 30_000,
            only_success=cfg.only_success,
            deterministic=cfg.deterministic,
            on_episode=lambda done: bar.update(done - bar.n),
        )
    if out.suffix in (".hdf5", ".h5"):
        d4rl.write(out, episodes)
    else:
        with recorder.Recorder(out) as writer:
            for episode in episodes:
                writer.append(episode)
    successes = [bool(episode.meta["success"]) for episode in episodes if "success" in episode.meta]
    _table(
        {
            "file": str(out),
            "episodes": len(episodes),
            "steps": sum(len(episode) for episode in episodes),
            "return": float(sum(float(episode.reward.sum()) for episode in episodes) / len(episodes)),
            **({"success": sum(successes) / len(successes)} if successes else {}),
        }
    )


def bench(cfg: DictConfig) -> None:
    """Run one suite, print its table, write its JSON."""
    from robot_rl.bench import report as bench_report
    from robot_rl.report import versions

    try:
        module = importlib.import_module(f"robot_rl.bench.{cfg.suite}")
        run = module.run
    except (ModuleNotFoundError, AttributeError) as error:
        raise Refused(f"there is no suite '{cfg.suite}'; robot-rl bench --help lists them ({error})") from error
    known = {"suite", "quick", "debug", "name", "output"}
    extra: dict[str, Any] = {key: OmegaConf.to_object(cfg)[key] for key in cfg if key not in known}  # type: ignore[index,call-overload]
    extra = {key: tuple(value) if isinstance(value, list) else value for key, value in extra.items()}
    folder = _run_folder(cfg, "bench", str(cfg.suite))
    if cfg.suite == "learning":
        extra.setdefault("out", str(folder / "runs"))
    else:
        extra["quick"] = bool(cfg.quick)
    result = run(**extra)
    print(bench_report.table(result))
    path = bench_report.write(folder, str(cfg.suite), result, versions())
    print(f"numbers: {path}")


VERBS: dict[str, tuple[str, Callable[[DictConfig], None]]] = {
    "train": ("train", train),
    "hil": ("hil", hil),
    "eval": ("eval", evaluate),
    "collect": ("collect", collect),
    "bench": ("bench", bench),
}


# ---------------------------------------------------------------- dispatch


def _guarded(verb: Callable[[DictConfig], None], debug: bool) -> Callable[[DictConfig], None]:
    """Turn errors into one readable paragraph; --debug keeps the traceback."""

    def task(cfg: DictConfig) -> None:
        OmegaConf.set_struct(cfg, False)  # absent optional groups read as None, and a run's saved groups can be joined
        try:
            verb(cfg)
        except KeyboardInterrupt:
            print("\ninterrupted", file=sys.stderr)
            sys.exit(130)
        except Exception as error:
            if debug or cfg.debug:
                traceback.print_exc()
            print(f"robot-rl: {readable(error)}", file=sys.stderr)
            sys.exit(1)

    return task


def readable(error: BaseException) -> str:
    """The message of the innermost error that speaks to the user, without Hydra's wrapping."""
    while error.__cause__ is not None and type(error).__name__ == "InstantiationException":
        error = error.__cause__
    text = str(error).strip()
    return (
        text
        if isinstance(error, (Refused, ValueError, RuntimeError, ImportError)) and text
        else (f"{type(error).__name__}: {text or 'no message'} (add --debug for the traceback)")
    )


def _data(arguments: list[str]) -> int:
    if len(arguments) != 2 or arguments[0] != "info":
        print("usage: robot-rl data info <file or folder>", file=sys.stderr)
        return 2
    from robot_rl.data import info

    try:
        text = info.report(info.info(Path(arguments[1])))
    except (OSError, ValueError, RuntimeError, ImportError, KeyError) as error:
        print(f"robot-rl: {error}", file=sys.stderr)
        return 1
    print(text)
    return 0


def main() -> None:
    """Entry point of the console script."""
    arguments = sys.argv[1:]
    debug = "--debug" in arguments
    arguments = [item for item in arguments if item != "--debug"]
    verb, rest = (arguments[0], arguments[1:]) if arguments else ("", [])
    if verb in ("", "-h", "--help", "help"):
        print(USAGE)
        return
    if verb in ("--version", "-V"):
        print(f"robot_rl {__version__}")
        return
    if verb == "doctor":
        from robot_rl.jobs.doctor import diagnose

        text, healthy = diagnose()
        print(text)
        sys.exit(0 if healthy else 1)
    if verb == "data":
        sys.exit(_data(rest))
    if verb not in VERBS:
        print(f"robot-rl: there is no verb '{verb}'\n\n{USAGE}", file=sys.stderr)
        sys.exit(2)
    config_name, function = VERBS[verb]
    if verb == "bench" and rest and "=" not in rest[0] and not rest[0].startswith("-"):
        rest[0] = f"suite={rest[0]}"
    if debug:
        os.environ["HYDRA_FULL_ERROR"] = "1"
    sys.argv = [f"robot-rl {verb}", *rest]
    hydra.main(config_path="pkg://robot_rl.configs", config_name=config_name, version_base="1.3")(
        _guarded(function, debug)
    )()


if __name__ == "__main__":
    main()
