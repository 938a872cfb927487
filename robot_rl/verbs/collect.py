"""The verb collect: record episodes to a file or folder."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from tqdm import tqdm

from robot_rl import checkpoint
from robot_rl.data import d4rl
from robot_rl.types import Policy, VecEnv
from robot_rl.types.options import Count
from robot_rl.verbs import answer
from robot_rl.verbs.build import choice, env_factory, foreign, in_env_of, load_policy, settings_of, threads
from robot_rl.verbs.collect_episodes import (
    BesidePictures,
    ExpertPolicy,
    KeepOptions,
    OperatorOptions,
    begin_work,
    keep_steps,
)
from robot_rl.verbs.collect_levels import LevelOptions, Nobody, collect_level
from robot_rl.verbs.options import SubjectOptions
from robot_rl.verbs.reading import plain, stored_config
from robot_rl.words import Refused

FILES = {".csv", ".json", ".jsonl", ".mat", ".mcap", ".npy", ".npz", ".parquet", ".pkl", ".pickle", ".txt", ".zip"}
"""Ends of names that say a format which `collect` does not write."""


class CollectOptions(SubjectOptions, LevelOptions, OperatorOptions, KeepOptions):
    """robot-rl collect."""

    out: str
    """A new .hdf5 file (D4RL layout) or a folder (our recordings)."""
    path: str | None = None
    """A run or checkpoint folder; null = the world's scripted expert."""
    medium_path: str | None = None
    """With level: a weaker agent (zip) or an earlier checkpoint; null = noise on the agent."""
    num_envs: Count = 8
    """Copies of the environment."""


GRADED = {"medium_path", *LevelOptions.model_fields} - {"level", "noise", "seed"}
"""Options that go with level= alone."""
OPERATED = set(OperatorOptions.model_fields) - {"seed"}
"""Options of the scripted expert."""


def refuse_idle(cfg: DictConfig) -> None:
    """Refuse what was set and would do nothing.

    Raises:
        Refused: names the option and what it goes with.
    """
    fields = CollectOptions.model_fields
    changed = [name for name, field in fields.items() if name in cfg and plain(cfg[name]) != field.default]
    if cfg.level is not None:
        kept, said = (OPERATED - {"noise"}) | set(KeepOptions.model_fields), "has no effect with level="
    elif cfg.path is not None or cfg.get("policy") is not None:
        kept, said = OPERATED | GRADED, "is of the scripted expert or goes with level=, and a policy acts here"
    else:
        kept, said = GRADED, "has no effect without level="
    if idle := [name for name in changed if name in kept]:
        raise Refused(f"{idle[0]} {said}; leave it out")


def collect(cfg: DictConfig) -> None:
    """Record episodes to a file or folder."""

    threads(cfg)
    refuse_idle(cfg)
    out = Path(cfg.out)
    if out.suffix in FILES:
        raise Refused(
            f"out={out} is no name of what collect writes: a .hdf5 file, or a folder (data convert makes others)"
        )
    if out.exists():
        raise Refused(f"{out} exists already; choose another name or remove it first (nothing is overwritten)")
    if cfg.path is not None and cfg.get("policy") is None:
        path = checkpoint.find(Path(cfg.path))
        run_config = stored_config(path)
        cfg = in_env_of(cfg, run_config)
        env = env_factory(cfg)(cfg.num_envs, cfg.seed, False)
        own = checkpoint.read_io(path).obs  # a camera that the policy does not know is for whoever watches
        watched = [key for key in env.io.obs if key.startswith("image.") and key not in own]
        shown = {key: value for key, value in env.io.obs.items() if key not in watched}
        policy = load_policy(cfg, run_config, path, replace(env.io, obs=shown))
        if watched:
            policy = BesidePictures(policy, env.io)
    else:
        if cfg.get("env") is None:
            raise Refused("say which environment: robot-rl collect env=reach out=<file>")
        env = env_factory(cfg)(cfg.num_envs, cfg.seed, False)
        if cfg.get("policy") is None and cfg.level == "random":
            policy = Nobody(env.io)
        elif cfg.get("policy") is None:
            policy = ExpertPolicy(env, settings_of(OperatorOptions, cfg))
        else:
            policy = foreign(cfg, str(cfg.path), env.io)
    if cfg.level is not None:
        _collect_level(cfg, env, policy, out)
        return
    work = out.with_name(f".{out.name}.work")  # every episode as it ends; the same call goes on from there
    settings: Any = OmegaConf.to_container(cfg, resolve=True)
    facts = {key: value for key, value in settings.items() if key not in ("out", "device", "threads", "debug")}
    begin_work(work, json.loads(json.dumps(facts, default=str)))
    try:
        with answer.bar(cfg.episodes, "episode") as bar:
            episodes = keep_steps(
                env,
                policy,
                settings_of(KeepOptions, cfg),
                seed=cfg.seed + 30_000,
                on_episode=bar,
                work=work,
            )
    except KeyboardInterrupt:
        print(f"\nepisodes that have ended are in {work}; the same command goes on from there", file=sys.stderr)
        raise
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


def _collect_level(cfg: DictConfig, env: VecEnv, policy: Policy, out: Path) -> None:

    if out.suffix not in (".hdf5", ".h5"):
        raise Refused(f"level={cfg.level} writes a D4RL file; name it out=<file>.hdf5, not {out}")
    medium = None
    if cfg.medium_path is not None:
        path = Path(cfg.medium_path)
        if path.suffix == ".zip":
            medium = foreign(cfg, str(path), env.io)
        else:
            path = checkpoint.find(path)
            medium = load_policy(cfg, stored_config(path), path, env.io)
    facts: dict[str, object] = {
        "env": str(cfg.id or choice("env")),
        "agent": Path(str(cfg.path)).name if cfg.path else "expert",
        "control_hz": env.io.control_hz,
    }
    facts["medium_agent"] = Path(str(cfg.medium_path)).name if cfg.medium_path else None
    with tqdm(total=cfg.steps, unit="step", file=sys.stderr, dynamic_ncols=True) as bar:

        def show_steps(done: int) -> None:
            bar.set_description(None, refresh=False)
            bar.update(min(done, cfg.steps) - bar.n)

        summary = collect_level(
            env,
            policy,
            out,
            settings_of(LevelOptions, cfg).model_copy(update={"seed": cfg.seed + 30_000}),
            medium=medium,
            facts=facts,
            on_steps=show_steps,
            on_note=bar.set_description,
        )
    rows: dict[str, object] = {"file": str(out)}
    for name, (episodes, steps, mean) in summary.parts.items():
        rows[name] = f"{episodes} episodes, {steps:,} steps, mean return {mean:.4g}"
    if summary.noise is not None:
        what = "truncated Gaussian noise" if cfg.medium_by == "noise" else "a fixed wrong function of the state"
        rows["medium is"] = f"the agent with {what} of {summary.noise:.3g} on its actions"
    answer.table(rows)
