"""The verb eval latency: what late answers of a chunk policy cost, with and without an action queue."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from omegaconf import DictConfig

from robot_rl.checkpoint import write_json
from robot_rl.chunks import ChunkedPolicy, DelayedPolicy, DelayOptions, Horizons, LatencyModel
from robot_rl.data.units import InUnits
from robot_rl.loops.evaluate import evaluate
from robot_rl.stats import Paired, wilson
from robot_rl.types.options import Count, Meaning, NotNegative, Share, Whole
from robot_rl.verbs import answer
from robot_rl.verbs.build import load_subject, run_folder, threads
from robot_rl.verbs.options import SubjectOptions
from robot_rl.words import Refused

Way = Literal["queue", "naive", "wait", "rtc"]
Ways = Annotated[tuple[Way, ...] | Way, Meaning("queue, naive, wait or rtc, or a list of them")]


class LatencyOptions(SubjectOptions):
    """robot-rl eval latency."""

    path: str
    """A run folder, a checkpoint folder, or (policy=vla/folder) a model folder."""
    latency_ms: NotNegative = 300.0
    """From the observation to the answer."""
    latency_kind: Literal["const", "uniform", "lognormal"] = "const"
    """How it is spread: uniform reaches to latency_ms + latency_jitter_ms."""
    latency_jitter_ms: NotNegative = 0.0
    """Width of the spread."""
    latency_drop: Share = 0.0
    """Probability that no answer comes."""
    compensation: Ways = ("queue", "naive", "wait")
    """Ways to deal with it; rtc for flow policies."""
    horizon_exec: Count | None = None
    """Actions between two requests; null = as trained."""
    margin: Whole = 1
    """Control steps that a chunk is asked for earlier than the measured delay says."""
    blend: Whole = 0
    """Control steps over which a new chunk fades in."""
    episodes: Count = 200
    """Per way."""
    num_envs: Count = 20
    """Copies of the environment."""


def evaluate_latency(cfg: DictConfig) -> None:
    """Evaluate a policy of chunks without latency, and with it for each way to deal with it, on the same episodes."""

    threads(cfg)
    cfg, path, env, policy = load_subject(cfg, Path(cfg.path))
    chunks = policy.policy if isinstance(policy, InUnits) else policy
    if not isinstance(chunks, ChunkedPolicy):
        raise Refused(f"{type(chunks).__name__} decides at every step; latency is made up for by policies of chunks")
    lengths = chunks.execution.horizons
    if cfg.horizon_exec is not None:
        lengths = Horizons(lengths.pred, int(cfg.horizon_exec), int(cfg.horizon_exec))
    ways = [cfg.compensation] if isinstance(cfg.compensation, str) else [*cfg.compensation]
    found: dict[str, Any] = {}
    first: list[bool] = []
    for name, latency_ms, way in [("no latency", 0.0, "queue"), *((way, float(cfg.latency_ms), way) for way in ways)]:
        model = LatencyModel(
            cfg.latency_kind if latency_ms else "const",
            base_ms=latency_ms,
            jitter_ms=float(cfg.latency_jitter_ms) if latency_ms else 0.0,
            drop_p=float(cfg.latency_drop) if latency_ms else 0.0,
            seed=int(cfg.seed),
        )
        acting = DelayedPolicy(
            chunks.io,
            chunks.planner,
            lengths,
            model,
            DelayOptions(compensation=way, margin=int(cfg.margin), blend=int(cfg.blend)),
            idle=chunks.execution.idle,
        )
        played = policy.around(acting) if isinstance(policy, InUnits) else acting
        with answer.bar(cfg.episodes, "episode", name) as bar:
            result = evaluate(env, played, episodes=cfg.episodes, seed=cfg.seed + 10_000, on_episode=bar)
        if not result.successes:
            raise Refused("this environment does not say whether an episode was a success")
        won = sum(result.successes)
        low, high = wilson(won, len(result.successes))
        row: dict[str, object] = {"successes": result.successes, "low": low, "high": high, **acting.facts()}
        line = answer.rate(won, len(result.successes))
        if not first:
            first = result.successes
        else:
            pairs = Paired.of(first, result.successes)
            low, high = pairs.interval.low, pairs.interval.high
            row |= {"change": pairs.change, "change_low": low, "change_high": high, "mcnemar_p": pairs.p}
            line += f", change {100 * pairs.change:+.1f} points (95 %: {100 * low:+.1f} to {100 * high:+.1f}), "
            line += f"dry {row['dry_share']:.1%}"
        found[name] = {**row, "line": line}
    env.close()
    folder = run_folder(cfg, "latency", path.parent.parent.name if cfg.get("policy") is None else path.name)
    write_json(folder / "latency.json", found)
    print(f"success of {lengths.exec} of {lengths.pred} actions per decision, {cfg.latency_ms:g} ms of latency")
    answer.table({**{name: row["line"] for name, row in found.items()}, "numbers": str(folder / "latency.json")})
