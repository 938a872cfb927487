"""Verbs that measure and record: check, eval, eval fas, eval ope, collect, bench."""

from __future__ import annotations

import importlib
import inspect
import json
import shutil
import sys
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from robot_rl import build
from robot_rl.verbs import answer
from robot_rl.verbs.build import (
    choice,
    env_factory,
    foreign,
    load_policy,
    run_folder,
    said_of_actions,
    settings_of,
    threads,
)
from robot_rl.verbs.compose import plain
from robot_rl.words import Refused, near


def check(cfg: DictConfig) -> None:
    """Run an environment through the contract, and its expert through an episode of each copy."""
    import numpy as np

    from robot_rl.jobs.collect import ExpertPolicy
    from robot_rl.loops.evaluate import evaluate as run_evaluation

    if cfg.get("env") is None:
        raise Refused("say which environment: robot-rl check env=reach")
    env = env_factory(cfg)(cfg.num_envs, cfg.seed, False)
    findings = build.tool("check")(env, steps=cfg.steps, seed=cfg.seed)
    for number, finding in enumerate(findings, 1):
        print(f"{number}. {finding}")
    if hasattr(env, "expert") and not findings:
        result = run_evaluation(env, ExpertPolicy(env), episodes=cfg.num_envs, seed=cfg.seed)
        success = result.metrics().get("eval/success", float("nan"))
        print(f"expert: return {np.mean(result.returns):.4g}, success {success:.2f}")
    env.close()
    answer.note(findings=list(findings))
    if findings:
        raise Refused(f"{choice('env')} breaks the contract of environments in {len(findings)} places")
    print(f"{choice('env')} keeps the contract of environments")


def _source(path: Path) -> str:
    """Run and step of a checkpoint, or the name of a file."""
    if path.parent.name != "checkpoints":
        return path.stem
    return f"{path.parent.parent.name}_{path.name.removeprefix('step_').lstrip('0') or '0'}"


def evaluate(cfg: DictConfig) -> None:
    """Evaluate a checkpoint or a foreign policy."""
    from tqdm import tqdm

    from robot_rl import checkpoint
    from robot_rl.checkpoint import write_json
    from robot_rl.jobs.train import record_video
    from robot_rl.loops.evaluate import LONGEST, by_task
    from robot_rl.loops.evaluate import evaluate as run_evaluation

    threads(cfg)
    path = Path(cfg.path)
    run_config: Any = None
    if cfg.get("policy") is None:
        path = checkpoint.find(path)
        run_config = OmegaConf.load(path / "config.yaml")
        if not choice("env"):  # the run's own, perhaps on another engine
            own = OmegaConf.merge(run_config.get("env") or {}, cfg.get("env") or {})
            cfg = OmegaConf.merge(cfg, {"env": own if run_config.get("env") else None})  # type: ignore[assignment]
        if cfg.get("env") is None:
            raise Refused("this run was trained without an environment; add env=…, or use robot-rl eval ope")
    elif cfg.get("env") is None:
        raise Refused(f"policy={choice('policy')} brings no environment; add env=…, e.g. env=gym id=HalfCheetah-v4")
    make_env = env_factory(cfg)
    env = make_env(cfg.num_envs, cfg.seed, False)
    if cfg.get("policy") is None:
        policy = load_policy(cfg, run_config, path, env.io)
    else:
        policy = foreign(cfg, str(path), env.io)
    if cfg.student is not None:
        if not hasattr(policy, "choose"):
            raise Refused(
                f"student={cfg.student} is for a diffusion policy with a student, not {type(policy).__name__}"
            )
        policy.choose(student=bool(cfg.student))
    if cfg.target_return is not None:
        if not hasattr(policy, "aim"):
            raise Refused(
                f"target_return={cfg.target_return} is for a policy that is conditioned on returns "
                f"(policy=contrib/dt, contrib/modt), not {type(policy).__name__}"
            )
        policy.aim(float(cfg.target_return))
    with tqdm(total=cfg.episodes, unit="episode", file=sys.stderr, dynamic_ncols=True) as bar:
        result = run_evaluation(
            env,
            policy,
            episodes=cfg.episodes,
            seed=cfg.seed + 10_000,
            deterministic=cfg.deterministic,
            on_episode=lambda done: bar.update(done - bar.n),
        )
    folder = run_folder(cfg, "eval", _source(path))
    folder.mkdir(parents=True, exist_ok=True)
    video = record_video(make_env, policy, folder / "eval.mp4", cfg.video_episodes, cfg.seed)
    summary = {name.removeprefix("eval/"): value for name, value in result.metrics().items()}
    tasks = by_task(result, getattr(env, "task_names", ()))
    lines = {f"success, {name}": _with_interval(won, count) for name, (won, count) in tasks.items() if count}
    write_json(
        folder / "evaluation.json",
        {**summary, "returns": result.returns, "successes": result.successes, "tasks": tasks},
    )
    if result.cut:
        lines["cut"] = (
            f"{result.cut} of {len(result.returns)} episodes had no end after {LONGEST:,} steps: no time limit?"
        )
    if result.successes:
        lines["success in all"] = _with_interval(sum(result.successes), len(result.successes))
    answer.note(returns=result.returns, successes=result.successes)
    answer.table({**summary, **lines, "video": str(video), "numbers": str(folder / "evaluation.json")})


def _with_interval(won: int, count: int) -> str:
    from robot_rl.stats import wilson

    low, high = wilson(won, count)
    return f"{won}/{count} = {won / count:.2f} (95 %: {low:.2f} to {high:.2f})"


def evaluate_intervals(cfg: DictConfig) -> None:
    """Evaluate runs at 1, 2, 4, ..., 30 control steps per decision: the frequency-averaged score."""
    from tqdm import tqdm

    from robot_rl import checkpoint
    from robot_rl.bench import curves
    from robot_rl.checkpoint import write_json
    from robot_rl.loops import fas

    threads(cfg)
    paths = [cfg.path] if isinstance(cfg.path, str) else list(cfg.path)
    found, lines = {}, []
    for given in paths:
        path = checkpoint.find(Path(given))
        run_config: Any = OmegaConf.load(path / "config.yaml")
        env_config = run_config.get("env") if cfg.get("env") is None else cfg.env
        if env_config is None:
            raise Refused("this run was trained without an environment; add env=…")
        here: Any = OmegaConf.merge(cfg, {"env": env_config})
        largest, offset = _scale_of(here)
        env = env_factory(here)(cfg.num_envs, cfg.seed, False)
        policy = load_policy(here, run_config, path, env.io)
        with tqdm(total=len(fas.INTERVALS), unit="interval", file=sys.stderr, dynamic_ncols=True) as bar:
            result = fas.frequency_averaged_score(
                env, policy, largest=largest, offset=offset, episodes=cfg.episodes, seed=cfg.seed + 10_000,
                on_interval=lambda _, bar=bar: bar.update(1),
            )  # fmt: skip
        env.close()
        found[str(given)] = {**vars(result), "largest": largest, "offset": offset}
        lines.append((result.intervals, result.returns))
        answer.note(fas_of=found)
        answer.table({"run": given, "fas": result.fas, "fas_norm": result.fas_norm, "held": result.held})
        answer.table({f"return at {k}": value for k, value in zip(result.intervals, result.returns)})
    folder = run_folder(cfg, "fas", Path(paths[0]).name)
    folder.mkdir(parents=True, exist_ok=True)
    scores = [item["fas"] for item in found.values()]
    mean = sum(scores) / len(scores)
    spread = (sum((x - mean) ** 2 for x in scores) / len(scores)) ** 0.5
    write_json(folder / "fas.json", {"runs": found, "fas_mean": mean, "fas_std": spread})
    curves.plot(
        folder / "fas.png", {"return at fewer decisions": {"policy": lines}}, x="control steps per decision", y="return"
    )
    answer.table(
        {"fas_mean": mean, "fas_std": spread, "numbers": str(folder / "fas.json"), "plot": str(folder / "fas.png")}
    )


def _scale_of(cfg: Any) -> tuple[float, float]:
    """Largest return and offset of the task: as given, or by the name of the Gymnasium task."""
    from robot_rl.loops.fas import SCALES

    if cfg.largest is not None:
        return float(cfg.largest), float(cfg.offset)
    name = str(cfg.env.get("id", "") or "").split("-")[0]
    if name not in SCALES:
        raise Refused(f"the score needs the largest return of the task: add largest=…; known are {', '.join(SCALES)}")
    return SCALES[name]


def evaluate_offline(cfg: DictConfig) -> None:
    """Estimate a policy's value from a log alone."""
    from robot_rl import checkpoint
    from robot_rl.checkpoint import write_json
    from robot_rl.data.bounds import NORMALISED
    from robot_rl.data.units import meaning_of
    from robot_rl.jobs import ope

    threads(cfg)
    path = checkpoint.find(Path(cfg.path))
    policy = load_policy(cfg, OmegaConf.load(path / "config.yaml"), path)  # type: ignore[arg-type]
    settings = settings_of(ope.OpeSettings, cfg)
    shared = {"seed": cfg.seed, "device": cfg.device, "gamma": cfg.gamma}
    meta = checkpoint.read_meta(path)
    io, known = meaning_of(checkpoint.read_io(path), meta.get("action"), said_of_actions(cfg))

    def alike(store: Any) -> bool:
        both = known == store.meta.get("action") == NORMALISED
        return both or store.fingerprint == meta.get("data_fingerprint")

    report = ope.run(
        settings,
        policy,
        io,
        alike=alike,
        make_fqe=lambda io, target, **how: build.make("ope", plain(cfg.ope), io, target, **shared, **how),
        make_behaviour=lambda io: build.make("policy", plain(cfg.behaviour), io, where="behaviour", **shared),
        make_model=lambda io, target, **how: build.make(
            "ope", plain(cfg.model), io, target, where="model", **shared, **how
        ),
    )
    folder = run_folder(cfg, "ope", path.parent.parent.name)
    write_json(folder / "ope.json", ope.plain_numbers(report))
    print(f"discounted value (gamma {cfg.gamma:g}), {cfg.confidence:.0%} intervals")
    answer.table({**ope.table(report), "numbers": str(folder / "ope.json")})
    answer.note(warnings=list(report.warnings))
    print("\n".join(f"  {warning}" for warning in report.warnings))


FILES = {".csv", ".json", ".jsonl", ".mat", ".mcap", ".npy", ".npz", ".parquet", ".pkl", ".pickle", ".txt", ".zip"}
"""Ends of names that say a format which `collect` does not write."""


def collect(cfg: DictConfig) -> None:
    """Record episodes to a file or folder."""
    from tqdm import tqdm

    from robot_rl import checkpoint
    from robot_rl.data import d4rl
    from robot_rl.jobs.collect import BesidePictures, ExpertPolicy, begin_work, keep_steps

    threads(cfg)
    out = Path(cfg.out)
    if out.suffix in FILES:
        raise Refused(
            f"out={out} is no name of what collect writes: a .hdf5 file, or a folder (data convert makes others)"
        )
    if out.exists():
        raise Refused(f"{out} exists already; choose another name or remove it first (nothing is overwritten)")
    if cfg.path is not None and cfg.get("policy") is None:
        path = checkpoint.find(Path(cfg.path))
        run_config: Any = OmegaConf.load(path / "config.yaml")
        env = env_factory(cfg)(cfg.num_envs, cfg.seed, False)
        own = checkpoint.read_io(path).obs  # a camera that the policy does not know is for whoever watches
        watched = [key for key in env.io.obs if key.startswith("image.") and key not in own]
        shown = {key: value for key, value in env.io.obs.items() if key not in watched}
        policy = load_policy(cfg, run_config, path, replace(env.io, obs=shown))
        if watched:
            policy = BesidePictures(policy, env.io)
    else:
        env = env_factory(cfg)(cfg.num_envs, cfg.seed, False)
        if cfg.get("policy") is None:
            policy = ExpertPolicy(
                env,
                noise=cfg.noise,
                noise_time=cfg.noise_time,
                pauses=cfg.pauses,
                pause_time=cfg.pause_time,
                mistakes=cfg.mistakes,
                seed=cfg.seed,
            )
        else:
            policy = foreign(cfg, str(cfg.path), env.io)
    if cfg.level is not None:
        _collect_level(cfg, env, policy, out)
        return
    work = out.with_name(f".{out.name}.work")  # every episode as it ends; the same call goes on from there
    settings: Any = OmegaConf.to_container(cfg, resolve=True)
    plain = {key: value for key, value in settings.items() if key not in ("out", "device", "threads", "debug")}
    begin_work(work, json.loads(json.dumps(plain, default=str)))
    with tqdm(total=cfg.episodes, unit="episode", file=sys.stderr, dynamic_ncols=True) as bar:
        episodes = keep_steps(
            env,
            policy,
            episodes=cfg.episodes,
            seed=cfg.seed + 30_000,
            only_success=cfg.only_success,
            per_task=cfg.per_task,
            deterministic=cfg.deterministic,
            on_episode=lambda done: bar.update(done - bar.n),
            work=work,
        )
    if out.suffix in (".hdf5", ".h5"):
        d4rl.write(out, episodes, metadata={"control_hz": env.io.control_hz}, io=env.io)
        shutil.rmtree(work)
    else:
        (work / "state.json").unlink()
        work.rename(out)
    successes = [bool(episode.meta["success"]) for episode in episodes if "success" in episode.meta]
    answer.table(
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
            medium = foreign(cfg, str(path), env.io)
        else:
            path = checkpoint.find(path)
            medium = load_policy(cfg, OmegaConf.load(path / "config.yaml"), path, env.io)  # type: ignore[arg-type]
    facts: dict[str, Any] = {
        "env": str(cfg.id or choice("env")),
        "agent": Path(str(cfg.path)).name if cfg.path else "expert",
        "control_hz": env.io.control_hz,
    }
    facts["medium_agent"] = Path(str(cfg.medium_path)).name if cfg.medium_path else None
    with tqdm(total=cfg.steps, unit="step", file=sys.stderr, dynamic_ncols=True) as bar:

        def collected(done: int) -> None:
            bar.set_description(None, refresh=False)
            bar.update(min(done, cfg.steps) - bar.n)

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
            medium_by=cfg.medium_by,
            replay_by=cfg.replay_by,
            agent_noise=cfg.noise,
            agent_sample=cfg.sample,
            facts=facts,
            on_steps=collected,
            on_note=bar.set_description,
        )
    rows: dict[str, Any] = {"file": str(out)}
    for name, (episodes, steps, mean) in summary.parts.items():
        rows[name] = f"{episodes} episodes, {steps:,} steps, mean return {mean:.4g}"
    if summary.noise is not None:
        what = "truncated Gaussian noise" if cfg.medium_by == "noise" else "a fixed wrong function of the state"
        rows["medium is"] = f"the agent with {what} of {summary.noise:.3g} on its actions"
    answer.table(rows)


RESUMABLE = (
    *("learning", "language", "advantage_learning", "offline_scores", "pendulum", "decision_interval"),
    *("closed_loop", "iwocs_deep"),
)
"""Suites with one result file per run in the folder `out`; given again, they continue."""


def bench(cfg: DictConfig) -> None:
    """Run one suite, print its table, write its JSON."""
    from robot_rl.bench import report as bench_report
    from robot_rl.report import versions

    folder_of_suites = resources.files("robot_rl.bench")
    files = [item for item in folder_of_suites.iterdir() if item.name.endswith(".py")]
    suites = [item.name.removesuffix(".py") for item in files if "\ndef run(" in item.read_text("utf-8")]
    if cfg.suite not in suites:
        raise Refused(f"there is no suite '{cfg.suite}'{near(str(cfg.suite), suites)} (robot-rl bench --help)")
    run = importlib.import_module(f"robot_rl.bench.{cfg.suite}").run
    known = {"suite", "quick", "debug", "trust", "name", "output"}
    plain: Any = OmegaConf.to_object(cfg)
    given = {key: value for key, value in plain.items() if key not in known}
    extra: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in given.items()}
    folder = run_folder(cfg, "bench", str(cfg.suite))
    if cfg.suite in RESUMABLE:
        extra.setdefault("out", str(folder / "runs"))
    if cfg.suite != "learning":
        extra["quick"] = bool(cfg.quick)
    try:
        inspect.signature(run).bind(**extra)
    except TypeError as error:
        takes = [name for name in inspect.signature(run).parameters if name not in ("quick", "out")]
        given = "out" in inspect.signature(run).parameters and cfg.suite not in RESUMABLE
        names = ", ".join(f"+{name}=" for name in [*(["out"] if given else []), *takes])
        raise Refused(f"bench {cfg.suite}: {error}; it takes {names or 'no options'}") from error
    result = run(**extra)
    answer.note(result=result)
    print(bench_report.table(result))
    path = bench_report.write(folder, str(cfg.suite), result, versions())
    answer.note(numbers=str(path))
    print(f"numbers: {path}")
