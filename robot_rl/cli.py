"""robot-rl <verb> [key=value ...]: the command line; with cli_build.py the only file that knows Hydra."""

from __future__ import annotations

import importlib
import os
import re
import sys
import traceback
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import hydra
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from robot_rl import __version__
from robot_rl.cli_build import (
    Refused,
    begin,
    choice,
    env_factory,
    learner_factory,
    load_policy,
    run_folder,
    saved_config,
    threads,
    tracker_factory,
)

USAGE = """robot-rl <verb> [key=value ...]

  train      train a policy in simulation              robot-rl train env=pick policy=online/rlpd demos=20
  offline    train a policy from a log                 robot-rl offline data=log.hdf5 policy=offline/iql
  eval       evaluate a trained policy, film it        robot-rl eval path=runs/train/<run> episodes=100
  eval ope   estimate its value from a log alone       robot-rl eval ope path=runs/offline/<run> data=log.hdf5
  collect    record episodes                           robot-rl collect env=pick out=pick.hdf5
  data       info, validate, convert or plot a log     robot-rl data info pick.hdf5
  bench      measure ours against peers                robot-rl bench sac
  doctor     versions, devices, what is missing        robot-rl doctor

robot-rl <verb> --help lists every choice and key. --debug shows the traceback of an error."""


def _table(rows: dict[str, Any]) -> None:
    width = max((len(name) for name in rows), default=0)
    for name, value in rows.items():
        print(f"  {name:<{width}}  {value:.4g}" if isinstance(value, float) else f"  {name:<{width}}  {value}")


# ---------------------------------------------------------------- verbs


def train(cfg: DictConfig) -> None:
    """Train a policy; Ctrl-C saves and says how to go on."""
    from robot_rl import checkpoint
    from robot_rl.jobs.train import TrainJob, TrainSettings

    cfg, folder = begin(cfg, "train", ("env", "policy", "track", "experiment"))
    if cfg.init is not None and cfg.resume is None:  # the offline run's own learner goes on
        cfg.policy = OmegaConf.load(checkpoint.find(Path(cfg.init)) / "config.yaml").policy  # type: ignore[union-attr]
    threads(cfg)
    settings = TrainSettings(**{f.name: cfg[f.name] for f in fields(TrainSettings)})
    print(f"run folder: {folder}")
    job = TrainJob(
        settings,
        folder,
        make_env=env_factory(cfg),
        make_learner=learner_factory(cfg),
        make_tracker=tracker_factory(cfg, folder),
        config=saved_config(cfg),
        resume=cfg.resume is not None,
    )
    try:
        summary = job.run()
    except KeyboardInterrupt:
        print(f"\ninterrupted and saved; continue with: robot-rl train resume={folder}")
        sys.exit(130)
    _table(summary)


def offline(cfg: DictConfig) -> None:
    """Train a policy from a log; Ctrl-C saves and says how to go on."""
    from robot_rl.jobs.offline import OfflineJob, OfflineSettings

    cfg, folder = begin(cfg, "offline", ("env", "policy", "track"))
    threads(cfg)
    settings = OfflineSettings(**{f.name: cfg[f.name] for f in fields(OfflineSettings)})
    print(f"run folder: {folder}")
    job = OfflineJob(
        settings,
        folder,
        make_env=None if cfg.get("env") is None else env_factory(cfg),
        make_learner=learner_factory(cfg),
        make_tracker=tracker_factory(cfg, folder),
        config=saved_config(cfg),
        env_name=str(cfg.id or ""),
        resume=cfg.resume is not None,
    )
    for line in job.findings:
        print(f"  log: {line}")
    try:
        summary = job.run()
    except KeyboardInterrupt:
        print(f"\ninterrupted and saved; continue with: robot-rl offline resume={folder}")
        sys.exit(130)
    _table(summary)


def evaluate(cfg: DictConfig) -> None:
    """Evaluate a checkpoint or a foreign policy."""
    from tqdm import tqdm

    from robot_rl import checkpoint
    from robot_rl.checkpoint import write_json
    from robot_rl.jobs.train import record_video
    from robot_rl.loops.evaluate import evaluate as run_evaluation

    threads(cfg)
    path = Path(cfg.path)
    run_config: Any = None
    if cfg.get("policy") is None:
        path = checkpoint.find(path)
        run_config = OmegaConf.load(path / "config.yaml")
        if cfg.get("env") is None:
            cfg = OmegaConf.merge(cfg, {"env": run_config.get("env")})  # type: ignore[assignment]
        if cfg.get("env") is None:
            raise Refused("this run was trained without an environment; add env=…, or use robot-rl eval ope")
    elif cfg.get("env") is None:
        raise Refused(f"policy={choice('policy')} brings no environment; add env=…, e.g. env=gym id=HalfCheetah-v4")
    make_env = env_factory(cfg)
    env = make_env(cfg.num_envs, cfg.seed, False)
    if cfg.get("policy") is None:
        policy = load_policy(cfg, run_config, path, env.io)
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
    folder = run_folder(cfg, "eval", path.stem)
    folder.mkdir(parents=True, exist_ok=True)
    video = record_video(make_env, policy, folder / "eval.mp4", cfg.video_episodes, cfg.seed)
    summary = {name.removeprefix("eval/"): value for name, value in result.metrics().items()}
    write_json(folder / "evaluation.json", {**summary, "returns": result.returns, "successes": result.successes})
    _table({**summary, "video": str(video), "numbers": str(folder / "evaluation.json")})


def evaluate_offline(cfg: DictConfig) -> None:
    """Estimate a policy's value from a log alone."""
    from robot_rl import checkpoint
    from robot_rl.checkpoint import write_json
    from robot_rl.jobs import ope

    threads(cfg)
    path = checkpoint.find(Path(cfg.path))
    policy = load_policy(cfg, OmegaConf.load(path / "config.yaml"), path)  # type: ignore[arg-type]
    settings = ope.settings_of(OmegaConf.to_object(cfg))  # type: ignore[arg-type]
    shared = {"seed": cfg.seed, "device": cfg.device, "gamma": cfg.gamma}
    report = ope.run(
        settings,
        policy,
        checkpoint.read_io(path),
        make_fqe=lambda io, target: instantiate(cfg.ope, _partial_=True)(io, target, **shared),
        make_behaviour=lambda io: instantiate(cfg.behaviour, _partial_=True)(io, **shared),
    )
    folder = run_folder(cfg, "ope", path.parent.parent.name)
    write_json(folder / "ope.json", ope.plain_numbers(report))
    print(f"discounted value (gamma {cfg.gamma:g}), {cfg.confidence:.0%} intervals")
    _table({**ope.table(report), "numbers": str(folder / "ope.json")})
    print("\n".join(f"  {warning}" for warning in report.warnings))


def collect(cfg: DictConfig) -> None:
    """Record episodes to a file or folder."""
    from tqdm import tqdm

    from robot_rl import checkpoint
    from robot_rl.data import d4rl, recorder
    from robot_rl.jobs.collect import ExpertPolicy, keep_steps

    threads(cfg)
    out = Path(cfg.out)
    if out.exists():
        raise Refused(f"{out} exists already; choose another name or remove it first (nothing is overwritten)")
    if cfg.path is not None and cfg.get("policy") is None:
        path = checkpoint.find(Path(cfg.path))
        run_config: Any = OmegaConf.load(path / "config.yaml")
        env = env_factory(cfg)(cfg.num_envs, cfg.seed, False)
        policy = load_policy(cfg, run_config, path, env.io)
    else:
        env = env_factory(cfg)(cfg.num_envs, cfg.seed, False)
        if cfg.get("policy") is None:
            policy = ExpertPolicy(env, noise=cfg.noise, seed=cfg.seed)
        else:
            policy = instantiate(cfg.policy, _partial_=True)(path=str(cfg.path), io=env.io, device=cfg.device)
    if cfg.level is not None:
        _collect_level(cfg, env, policy, out)
        return
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


def _collect_level(cfg: DictConfig, env: Any, policy: Any, out: Path) -> None:
    from tqdm import tqdm

    from robot_rl import checkpoint
    from robot_rl.jobs.levels import collect_level

    if out.suffix not in (".hdf5", ".h5"):
        raise Refused(f"level={cfg.level} writes a D4RL file; name it out=<file>.hdf5, not {out}")
    medium: Any = None
    if cfg.medium_path is not None:
        path = Path(cfg.medium_path)
        if path.suffix == ".zip":
            medium = instantiate(cfg.policy, _partial_=True)(path=str(path), io=env.io, device=cfg.device)
        else:
            path = checkpoint.find(path)
            medium = load_policy(cfg, OmegaConf.load(path / "config.yaml"), path)  # type: ignore[arg-type]
    facts = {"env": str(cfg.id or choice("env")), "agent": Path(str(cfg.path)).name if cfg.path else "expert"}
    facts["medium_agent"] = Path(str(cfg.medium_path)).name if cfg.medium_path else None
    with tqdm(total=cfg.steps, unit="step", file=sys.stderr, dynamic_ncols=True) as bar:
        summary = collect_level(
            env,
            policy,
            out,
            level=cfg.level,
            steps=cfg.steps,
            seed=cfg.seed + 30_000,
            medium=medium,
            medium_fraction=cfg.medium_fraction,
            medium_noise=cfg.medium_noise,
            facts=facts,
            on_steps=lambda done: bar.update(min(done, cfg.steps) - bar.n),
        )
    rows: dict[str, Any] = {"file": str(out)}
    for name, (episodes, steps, mean) in summary.parts.items():
        rows[name] = f"{episodes} episodes, {steps:,} steps, mean return {mean:.4g}"
    if summary.noise is not None:
        rows["medium is"] = f"the agent with Gaussian noise of {summary.noise:.3g} on its actions"
    _table(rows)


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
    folder = run_folder(cfg, "bench", str(cfg.suite))
    if cfg.suite == "learning":
        extra.setdefault("out", str(folder / "runs"))
    else:
        extra["quick"] = bool(cfg.quick)
    result = run(**extra)
    print(bench_report.table(result))
    path = bench_report.write(folder, str(cfg.suite), result, versions())
    print(f"numbers: {path}")


_READING = (
    "episode_length", "antmaze_terminal", "maze2d_shift", "terminals", "shuffled", "salvage", "infos", "keys", "filter",
    "success_reward", "map", "ros_distro", "reward", "videos", "image_size", "control_hz",
)  # fmt: skip
_DATA = ("info", "validate", "convert", "plot")


def data(cfg: DictConfig) -> None:
    """Look at a log, validate it, convert it, plot it."""
    import json

    from robot_rl.data import convert as conversion
    from robot_rl.data import formats, info
    from robot_rl.data.findings import BadData, Finding, exit_code
    from robot_rl.data.repairs import Repairs

    if cfg.what not in _DATA:
        raise Refused(f"there is no 'data {cfg.what}'; choose {', '.join(_DATA)}")
    plain: dict[str, Any] = OmegaConf.to_container(cfg, resolve=True)  # type: ignore[assignment]
    options = {key: plain[key] for key in _READING if plain[key] not in (None, False)}
    if plain["dataset"] is not None:
        options["name"] = plain["dataset"]

    def show(findings: list[Finding]) -> None:
        for item in findings:
            print(f"  {item.severity:<8} {item.message}")
            if item.repair:
                print(f"  {'':<8}   -> {item.repair}")

    try:
        if cfg.what == "info":
            facts = info.info(cfg.path, **options)
            print(json.dumps(facts, indent=1) if cfg.json else info.report(facts))
        elif cfg.what == "validate":
            findings = conversion.validate(cfg.path, batch=cfg.batch, **options)
            if cfg.json:
                print(json.dumps([item.to_dict() for item in findings], indent=1))
            else:
                print(cfg.path)
                show(findings)
                count = {kind: sum(f.severity == kind for f in findings) for kind in ("error", "warning", "note")}
                print(f"  {count['error']} errors, {count['warning']} warnings, {count['note']} notes")
            sys.exit(exit_code(findings))
        elif cfg.what == "convert":
            if cfg.out is None:
                raise Refused("convert needs out=<name>; a name without .hdf5 becomes a store, see --help")
            chosen = {field.name: plain[field.name] for field in fields(Repairs)}
            findings = conversion.convert(cfg.path, cfg.out, to=cfg.to, mend=Repairs(**chosen), **options)
            show(findings)
            print(f"  written  {cfg.out} ({cfg.to or formats.guess_writer(cfg.out)})")
        else:
            from robot_rl.data import plot

            picture = plot.plot(formats.load(cfg.path, allow_nan=True, **options), cfg.out or "data.png")
            print(f"  picture  {picture}")
    except BadData as bad:
        print(f"robot-rl: {cfg.path} cannot be used as it is:", file=sys.stderr)
        for item in bad.findings:
            print(f"  {item.severity:<8} {item}", file=sys.stderr)
        sys.exit(2)


VERBS: dict[str, tuple[str, Callable[[DictConfig], None]]] = {
    "train": ("train", train),
    "offline": ("offline", offline),
    "eval": ("eval", evaluate),
    "eval ope": ("ope", evaluate_offline),
    "collect": ("collect", collect),
    "bench": ("bench", bench),
    "data": ("data", data),
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


def _positional(arguments: list[str]) -> list[str]:
    """`info file key=value` as `what=info path=file key=value`."""
    named = iter(("what", "path"))
    found = []
    for item in arguments:
        free = not item.startswith("-") and (os.path.exists(item) or not re.match(r"[+~]*\w+=", item))
        key = next(named, None) if free else None
        # Hydra's grammar gives braces, commas and equals signs a meaning; quoted text has none
        found.append(item if key is None else f"{key}='{item}'")
    return found


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
    if verb == "eval" and rest[:1] == ["ope"]:
        verb, rest = "eval ope", rest[1:]
    if verb not in VERBS:
        print(f"robot-rl: there is no verb '{verb}'\n\n{USAGE}", file=sys.stderr)
        sys.exit(2)
    config_name, function = VERBS[verb]
    if verb == "bench" and rest and "=" not in rest[0] and not rest[0].startswith("-"):
        rest[0] = f"suite={rest[0]}"
    if verb == "data":
        rest = _positional(rest)
    if debug:
        os.environ["HYDRA_FULL_ERROR"] = "1"
    sys.argv = [f"robot-rl {verb}", *rest]
    hydra.main(config_path="pkg://robot_rl.configs", config_name=config_name, version_base="1.3")(
        _guarded(function, debug)
    )()


if __name__ == "__main__":
    main()
