"""The verb eval compare: several runs on the same episodes, each against the first."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import DictConfig
from tqdm import tqdm

from robot_rl import checkpoint
from robot_rl.checkpoint import write_json
from robot_rl.stats import Paired, bootstrap, pairs_to_tell
from robot_rl.types.options import Count
from robot_rl.verbs import answer
from robot_rl.verbs.build import env_factory, in_env_of, load_policy, run_folder, threads
from robot_rl.verbs.hil_eval import evaluate_as_run
from robot_rl.verbs.options import Folders, SubjectOptions
from robot_rl.verbs.reading import ends_at_success, stored_config
from robot_rl.words import Refused


class CompareOptions(SubjectOptions):
    """robot-rl eval compare."""

    path: Folders
    """Run or checkpoint folders; each is compared with the first."""
    episodes: Count = 50
    """Of each run, on the same seeds."""


def compare(cfg: DictConfig) -> None:
    """Evaluate runs under the same seeds, episode by episode, and say of each whether it is better than the first."""
    threads(cfg)
    given = [cfg.path] if isinstance(cfg.path, str) else [str(path) for path in cfg.path]
    if len(given) < 2:
        raise Refused('compare takes two runs or more, the first being the one to beat: "path=[<run>,<run>]"')
    paths = [checkpoint.find(Path(path)) for path in given]
    configs = [stored_config(path) for path in paths]
    cfg = in_env_of(cfg, configs[0])
    env = env_factory(cfg).plain(1, cfg.seed, False)
    policies = [load_policy(cfg, config, path, env.io) for config, path in zip(configs, paths)]
    ends = any(ends_at_success(config) for config in configs)
    found: list[dict[str, list[Any]]] = [{"returns": [], "successes": []} for _ in given]
    trials = [partial(evaluate_as_run, config, first_success=ends) for config in configs]
    for episode in tqdm(range(cfg.episodes), unit="episode", file=sys.stderr, dynamic_ncols=True):
        for trial, policy, row in zip(trials, policies, found):
            result = trial(env, policy, episodes=1, seed=cfg.seed + 10_000 + episode)
            row["returns"] += result.returns
            row["successes"] += result.successes
    env.close()
    rows: dict[str, Any] = {}
    for name, row in zip(given, found):
        rows[name] = {**row, **describe_run(row), **({} if name == given[0] else compare_to_first(found[0], row))}
        answer.table({"run": name, **{key: value for key, value in rows[name].items() if isinstance(value, str)}})
    folder = run_folder(cfg, "compare", Path(given[0]).name)
    write_json(folder / "compare.json", rows)
    answer.note(compared=rows)
    answer.table({"numbers": str(folder / "compare.json")})


def describe_run(row: dict[str, list[Any]]) -> dict[str, Any]:
    """Mean return and success of a run with 95 % intervals, as lines."""
    returns = np.array(row["returns"])
    mean = bootstrap(len(returns), lambda i: float(returns[i].mean()))
    lines = {"return": f"{mean.value:.4g} (95 %: {mean.low:.4g} to {mean.high:.4g})"}
    if row["successes"]:
        lines["success"] = answer.rate(sum(row["successes"]), len(row["successes"]))
    return lines


def compare_to_first(first: dict[str, list[Any]], row: dict[str, list[Any]]) -> dict[str, Any]:
    """A run against the first on the same episodes: by success where it differs in one of them, else by return."""
    gain = np.array(row["returns"]) - np.array(first["returns"])
    mean = bootstrap(len(gain), lambda i: float(gain[i].mean()))
    out: dict[str, object] = {"return gained": f"{mean.value:+.4g} (95 %: {mean.low:+.4g} to {mean.high:+.4g})"}
    noun, pairs = "return", Paired.of(first["returns"], row["returns"])
    if row["successes"] and row["successes"] != first["successes"]:  # else success cannot tell them apart
        noun, pairs = "success", Paired.of(first["successes"], row["successes"])
    out |= {"gained": pairs.gained, "lost": pairs.lost, "p": pairs.p, "evidence": pairs.evidence}
    out["episodes"] = f"better in {pairs.gained} and worse in {pairs.lost} of {pairs.pairs} by {noun}, p {pairs.p:.3g}"
    return {**out, "verdict": describe_evidence(pairs)}


def describe_evidence(pairs: Paired) -> str:
    """Whether it is better than the first; if that cannot be told, how many more episodes would probably tell.

    The number takes the shares seen so far for the true ones, at 5 % error and 80 % power.
    """
    if pairs.p <= 0.05:
        return "better than the first" if pairs.gained > pairs.lost else "worse than the first"
    if not pairs.gained + pairs.lost:
        return "the same return as the first in every episode"
    need = pairs_to_tell(pairs.gained / pairs.pairs, pairs.lost / pairs.pairs)
    if need is None:
        return "no difference to be seen: as many episodes better as worse"
    more = max(need - pairs.pairs, 1)
    return f"cannot be told apart yet; if it goes on like this, about {more:,} more episodes would tell"
