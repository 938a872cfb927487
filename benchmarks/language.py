"""The language agent on text worlds: from its imitation level towards the known optimum, several estimators and seeds.

Each run writes one JSON file and is skipped when that file exists, so a long comparison can be interrupted and
continued. All runs of a world and seed begin with the same imitated model and take the same number of turns.
"""

from __future__ import annotations

import importlib
import inspect
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import torch

from robot_rl import build
from robot_rl.advantage import presets
from robot_rl.checkpoint import write_json
from robot_rl.curves import plot
from robot_rl.stopwatch import Stopwatch
from robot_rl.version import VERSION

ENV = "robot_rl.sim.text.TextVectorEnv"
FIRST_TEST = 1_000_000
"""Task seeds of the evaluation begin here; training draws its own below 2^31 at random."""
ENOUGH = 0.9
CLIP = (0.2, 0.28)
AGGREGATION = "token_mean"
"""Loss of every estimator: presets bring their own clips and means otherwise, and those would be compared too."""


@dataclass(frozen=True)
class Task:
    """A text world with the size and the effort that the bench spends on it.

    Attributes:
        world: full path of the class.
        options: of the world.
        turns: turns of the policy in a run.
        agent: options of the agent. The imitation is short on purpose: it must leave something to improve.
        methods: estimators that run by default.
        tuned: options of single estimators, e.g. the trace decay of those with a critic.
    """

    world: str
    options: Mapping[str, Any]
    turns: int
    agent: Mapping[str, Any]
    methods: tuple[str, ...]
    tuned: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


SHARED: dict[str, Any] = {"hidden": 48, "layers": 2, "heads": 2, "groups": 16, "group_size": 16, "minibatch": 32}
SHARED |= {"epochs": 1, "lr": 1e-3, "anneal": True, "warmup_steps": 300}
# Dialogues that look alike to the player are compared, whatever the world hides; the entropy keeps utterances in play
# that a short imitation has almost ruled out.
SHARED |= {"group_by": "prompt", "entropy_coef": 0.01}
# One clip bounds the gradients of policy and value together: the value must not fill it.
SHARED |= {"value_coef": 0.05}
# Six questions in one dialogue, 18 turns at best. The dialogues of a task have the same stores and questions, which is
# what a baseline per turn or state needs. What a turn is good for shows at most two turns later: gamma 0.9.
ERRAND = {**SHARED, "groups": 8, "minibatch": 16, "epochs": 2, "group_by": "task", "entropy_coef": 0.0, "gamma": 0.9}
ERRAND |= {"warmup_dialogues": 48, "warmup_steps": 800, "warmup_lr": 3e-3, "warmup_stop": 0.1}
TRACE = {"gae_lambda": 0.9}
TASKS = {
    "guess": Task(
        "robot_rl.sim.worlds.text_guess.TextGuess",
        {"numbers": 8},
        50_000,
        {**SHARED, "warmup_dialogues": 32, "warmup_lr": 4e-3, "warmup_stop": 0.11, "epochs": 2, "minibatch": 64},
        ("gigpo",),
    ),
    "tools": Task(
        "robot_rl.sim.worlds.text_tools.TextTools",
        {"shelves": 5},
        60_000,
        {**SHARED, "warmup_dialogues": 64, "warmup_lr": 3e-3, "warmup_stop": 0.15},
        ("gigpo", "grpo"),
    ),
    "errand": Task(
        "robot_rl.sim.worlds.text_tools.TextTools",
        {"shelves": 5, "items": 6, "max_turns": 24},
        50_000,
        ERRAND,
        ("trloo", "grpo", "turn_gae", "gigpo", "rloo", "bilevel"),
        {"turn_gae": TRACE, "bilevel": TRACE},
    ),
    "maze": Task(
        "robot_rl.sim.worlds.text_maze.TextMaze",
        {"size": 3, "goals": 3, "min_distance": 3, "max_turns": 12},
        50_000,
        {**SHARED, "warmup_dialogues": 64, "warmup_lr": 3e-3, "warmup_stop": 0.12},
        ("turn_gae", "grpo"),
    ),
}


def run(
    out: str = "",
    quick: bool = False,
    *,
    worlds: tuple[str, ...] = ("guess", "maze", "errand"),
    methods: tuple[str, ...] = (),
    seeds: tuple[int, ...] = (0, 1, 2),
    turns: int = 0,
    evaluations: int = 10,
    tasks: int = 48,
    threads: int = 1,
) -> dict[str, Any]:
    """Train every (world, seed, method) that has no result yet, then summarise all results in `out`.

    Args:
        out: folder of the JSON files and of language.png.
        quick: a twentieth of the turns, one seed.
        worlds: names in `TASKS`.
        methods: estimators or presets; empty = those of each world.
        seeds: seeds of weights, tasks and samples.
        turns: turns of the policy in a run; 0 = those of each world.
        evaluations: evaluations along a run, at equal numbers of turns.
        tasks: fixed tasks of an evaluation, played greedily; the sampled share is that of the rollouts in between.
        threads: threads of torch.

    Returns:
        Rows per (world, method): share of the known optimum after the imitation and at the end (mean over seeds, then
        every seed), turns and processor seconds until the greedy share first stayed at 0.9 or above.

    Raises:
        ValueError: an unknown world, or no folder.
    """
    unknown = [name for name in worlds if name not in TASKS]
    if unknown:
        raise ValueError(f"there is no world {unknown[0]!r}, expected some of {sorted(TASKS)}")
    if not out:
        raise ValueError("out is empty, expected the folder of the results: +out=<folder>")
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for seed in seeds[:1] if quick else seeds:
            for world in worlds:
                task = TASKS[world]
                for method in methods or task.methods:
                    path = folder / f"{world}_{method}_seed{seed}.json"
                    if path.exists():
                        continue
                    budget = turns or task.turns
                    job = {"world": world, "method": method, "seed": seed, "tasks": tasks}
                    job["turns"] = budget // 20 if quick else budget
                    result = train(job, max(1, job["turns"] // evaluations))
                    write_json(path, {**result, "versions": {"robot_rl": VERSION, "torch": torch.__version__}})
    finally:
        torch.set_num_threads(before)
    return summarise(folder)


def train(job: Mapping[str, Any], every: int) -> dict[str, Any]:
    """One run: imitation, then `turns` turns with an evaluation every `every` turns.

    Args:
        job: world, method, seed, turns, tasks.
        every: turns between evaluations.

    Returns:
        The job with its curve: rows of turns, processor seconds of training, greedy and sampled share of the optimum.
    """
    task = TASKS[job["world"]]
    env = _at(ENV)(_at(task.world)(**task.options), 1, job["seed"])
    agent = make_agent(task, env, job["method"], job["seed"])
    agent.attach(env)
    test = range(FIRST_TEST, FIRST_TEST + job["tasks"])
    watch, curve = Stopwatch(), []
    recent: list[float] = []

    def measure() -> None:
        watch.pause()
        greedy = share(agent.collect(test, deterministic=True))
        sampled = float(np.mean(recent)) if recent else share(agent.collect(test))
        recent.clear()
        wall, cpu = watch.read()
        curve.append({"turns": agent.env_steps, "cpu_s": cpu, "wall_s": wall, "greedy": greedy, "sampled": sampled})
        sys.stderr.write(
            f"{job['world']} {job['method']} seed {job['seed']}: {agent.env_steps}/{job['turns']} turns, "
            f"{cpu:.0f} s, {greedy:.3f} of the optimum (sampled {sampled:.3f})\n"
        )
        watch.resume()

    def hook(turns: int, metrics: dict[str, float]) -> bool:
        recent.append(metrics["rollout/optimum_share"])
        if turns >= every * len(curve) or turns >= job["turns"]:
            measure()
        return False

    watch.resume()
    agent.warm_up()
    measure()
    agent.run(job["turns"], hook)
    settings = {
        "options": dict(task.options),
        "agent": dict(task.agent),
        "tuned": dict(task.tuned.get(job["method"], {})),
    }
    return {**job, **settings, "curve": curve}


def make_agent(task: Task, env: Any, method: str, seed: int) -> Any:
    """The agent of a run; whatever the estimator, its loss has the same clip and mean.

    Args:
        task: world and effort.
        env: the text environment.
        method: name of the estimator or preset.
        seed: of weights, tasks and samples.
    """
    preset: Any = vars(presets).get(method)
    known = inspect.signature(preset).parameters if callable(preset) else {}
    loss = {"clip_low": CLIP[0], "clip_high": CLIP[1], "aggregation": AGGREGATION}
    options = {**{name: x for name, x in loss.items() if name in known}, **task.tuned.get(method, {})}
    clip = {"clip_low": CLIP[0], "clip_high": CLIP[1]}
    agent = {key: value for key, value in task.agent.items() if key != "gamma"}
    node = {"name": "language/agent", "advantage": method, "advantage_options": options, **clip, **agent}
    discount = {"gamma": task.agent["gamma"]} if "gamma" in task.agent else {}
    return build.make("policy", node, env.io, seed=seed, **discount)


def share(dialogues: Sequence[Any]) -> float:
    """Mean return of some dialogues over the mean of their known optima."""
    return float(np.mean([one.outcome for one in dialogues]) / np.mean([one.optimum for one in dialogues]))


def first_enough(curve: Sequence[Mapping[str, float]]) -> Mapping[str, float] | None:
    """The evaluation from which on the greedy share never fell below 0.9 again; None = it ended below."""
    kept = None
    for row in reversed(curve):
        if row["greedy"] < ENOUGH:
            break
        kept = row
    return kept


def summarise(folder: Path) -> dict[str, Any]:
    """Rows per (world, method) of all result files, and the plot."""
    runs: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for path in sorted(folder.glob("*_seed*.json")):
        result = json.loads(path.read_text())
        runs.setdefault((result["world"], result["method"]), []).append(result)
    rows = []
    for (world, method), results in runs.items():
        reached = [first_enough(result["curve"]) for result in results]
        rows.append(
            {
                "world": world,
                "method": method,
                "imitation": mean(result["curve"][0]["greedy"] for result in results),
                "greedy": mean(result["curve"][-1]["greedy"] for result in results),
                "sampled": mean(result["curve"][-1]["sampled"] for result in results),
                "area": mean(mean(row["sampled"] for row in result["curve"]) for result in results),
                "greedy_by_seed": [round(result["curve"][-1]["greedy"], 3) for result in results],
                "turns_to_90": [row["turns"] if row else "-" for row in reached],
                "cpu_s_to_90": [round(row["cpu_s"]) if row else "-" for row in reached],
                "cpu_s": mean(result["curve"][-1]["cpu_s"] for result in results),
            }
        )
    panels: dict[str, dict[str, list[tuple[list[float], list[float]]]]] = {}
    for (world, method), results in runs.items():
        lines = [([r["turns"] for r in one["curve"]], [r["sampled"] for r in one["curve"]]) for one in results]
        panels.setdefault(f"text/{world}", {})[method] = lines
    plot(folder / "language.png", panels, x="turns", y="share of the optimum (sampled)", level=ENOUGH)
    return {"rows": rows}


def _at(path: str) -> Any:
    """A class by its full path: the bench names concrete rooms but imports none."""
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)
