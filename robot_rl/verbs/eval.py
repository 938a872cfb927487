"""The verb eval: a policy in an environment, with a film."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

from omegaconf import DictConfig

from robot_rl.checkpoint import write_json
from robot_rl.loops.evaluate import LONGEST, by_task
from robot_rl.types.option_words import Meaning
from robot_rl.types.options import Count, Number, Share, Whole
from robot_rl.verbs import answer
from robot_rl.verbs.build import env_factory, load_subject, run_folder, threads
from robot_rl.verbs.classify import judge_factory
from robot_rl.verbs.hil_eval import evaluate_as_run, unknown_success
from robot_rl.verbs.options import SubjectOptions
from robot_rl.verbs.reading import ends_at_success, run_of, stored_config
from robot_rl.verbs.train_job import record_video
from robot_rl.words import Refused


class EvalOptions(SubjectOptions):
    """robot-rl eval."""

    path: Annotated[str, Meaning("one path (robot-rl eval compare takes several)")]
    """A run folder, a checkpoint folder, or (policy=sb3) a zip."""
    episodes: Count = 20
    """To measure over."""
    num_envs: Count = 1
    """Copies of the environment."""
    deterministic: bool = True
    """The policy's best action; false draws one."""
    dither: Share | None = None
    """Share of its noise that SAC's policy and its kin keep all the same (docs/imitation_sac.md); null = as trained."""
    student: bool | None = None
    """Whether the one-step student of a diffusion policy acts; null = as trained."""
    target_return: Number | None = None
    """Return to ask for, of a decision transformer; null = as trained."""
    judge: str | None = None
    """A folder of robot-rl classify that says what a success is, in place of the environment; of runs of hil."""
    video_episodes: Whole = 1
    """Episodes in the film; 0 = no film."""


def _source(path: Path) -> str:
    """Run and step of a checkpoint, or the name of a file."""
    if path.parent.name != "checkpoints":
        return path.stem
    return f"{path.parent.parent.name}_{path.name.removeprefix('step_').lstrip('0') or '0'}"


def evaluate(cfg: DictConfig) -> None:
    """Evaluate a checkpoint or a foreign policy."""

    threads(cfg)
    cfg, path, env, policy = load_subject(cfg, Path(cfg.path))
    make_env = env_factory(cfg).plain
    parts = policy.parts
    for name, change, whose in (
        ("dither", parts.set_dither, "that is a squashed Gaussian (policy=online/sac, human/imitation_sac)"),
        ("student", parts.use_student, "of diffusion with a student"),
        ("target_return", parts.set_target_return, "conditioned on returns (policy=contrib/dt, contrib/modt)"),
    ):
        if cfg[name] is None:
            continue
        if change is None:
            raise Refused(f"{name}={cfg[name]} is for a policy {whose}, not {type(policy).__name__}")
        change(cfg[name])
    config = stored_config(path) if cfg.get("policy") is None else None
    first_success = config is not None and ends_at_success(config)
    judge = None if cfg.judge is None else judge_factory(cfg)(env.io)
    trial = partial(evaluate_as_run, config, judge=judge)
    with answer.bar(cfg.episodes, "episode") as bar:
        result = trial(
            env,
            policy,
            episodes=cfg.episodes,
            seed=cfg.seed + 10_000,
            deterministic=cfg.deterministic,
            on_episode=bar,
        )
    folder = run_folder(cfg, "eval", _source(path))
    folder.mkdir(parents=True, exist_ok=True)
    video = record_video(make_env, policy, folder / "eval.mp4", cfg.video_episodes, cfg.seed, trial=trial)
    summary = {name.removeprefix("eval/"): value for name, value in result.metrics().items()}
    unknown = "" if cfg.judge is not None else unknown_success(config, str(run_of(path)), result)
    if unknown:  # no file says that none succeeded
        summary.pop("success", None)
        result = replace(result, successes=[])
    tasks = by_task(result, env.parts.task_names)
    lines = {f"success, {name}": answer.rate(won, count) for name, (won, count) in tasks.items() if count}
    write_json(
        folder / "evaluation.json",
        {**summary, "returns": result.returns, "successes": result.successes, "tasks": tasks},
    )
    if result.cut:
        lines["cut"] = (
            f"{result.cut} of {len(result.returns)} episodes had no end after {LONGEST:,} steps: no time limit?"
        )
    if unknown:
        lines["success in all"] = unknown
    elif result.successes:
        first = first_success or cfg.judge is not None
        ends = " in episodes that end at the first success, as in the run" if first else ""
        ends += f", which {cfg.judge} judges" if cfg.judge is not None else ""
        lines["success in all"] = answer.rate(sum(result.successes), len(result.successes)) + ends
    answer.note(returns=result.returns, successes=result.successes)
    answer.table({**summary, **lines, "video": str(video), "numbers": str(folder / "evaluation.json")})
