"""Does the diagnosis name the cause? Ten sabotaged rewards and five bad options on two tasks, beside healthy twins.

    python -m benchmarks.why cells=docs/results/why seeds=0 tasks=reach,Pendulum methods=sac
    python -m benchmarks.why table       the table of all cells

Thresholds of `robot_rl.diagnosis` were set on reach, seeds 0 and 1, and Pendulum, seed 1; other seeds are the proof.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch

from robot_rl import build
from robot_rl.data.buffer import ReplayBuffer
from robot_rl.diagnosis import SOLVED, diagnose
from robot_rl.loops.contract import every
from robot_rl.loops.evaluate import evaluate
from robot_rl.loops.off_policy import OffPolicy
from robot_rl.loops.on_policy import OnPolicy

CELLS = Path(__file__).resolve().parents[1] / "docs" / "results" / "why"
CAUSES = {
    "sign": "reward of the wrong sign",
    "scale": "reward too large",
    "bonus": "constant bonus",
    "unreachable": "success never seen",
    "other": "reward for something else",
    "dead": "dead term",
    "penalty": "dominating penalty",
    "delay": "reward delayed",
    "clip": "reward clipped",
    "noise": "reward noisy",
    "lr": "step size too large",
    "gamma": "discount too low",
    "batch": "batch too small",
    "explore": "no exploration",
    "utd": "too many updates per step",
}
"""Fault -> the cause that has to be named first."""
STEPS = {"sac": 5000, "ppo": 40_000}
TWIN: dict[str, dict[str, Any]] = {
    "sac": {"hidden": [64, 64], "batch_size": 64, "lr": 1e-3, "init_alpha": 0.1},
    "ppo": {"rollout_steps": 512},
}
"""Options of the healthy twin: networks that learn these tasks in half a minute."""
OPTIONS: dict[str, dict[str, dict[str, Any]]] = {
    "sac": {
        "lr": {"lr": 0.1},
        "batch": {"batch_size": 4},
        "explore": {"target_entropy": -20.0, "init_alpha": 1e-4},
        "utd": {"utd": 20},
    },
    "ppo": {"lr": {"lr": 0.03}, "batch": {"minibatch": 4}, "explore": {"log_std_init": -5.0}, "utd": {"epochs": 200}},
}
LATE = 10
"""Steps by which a delayed reward comes late; what is pending at an episode's end is lost."""
SIZES = {"reach": 0.5, "Pendulum": 6.0}
"""About what a step pays."""
CLIP = {"reach": (0.0, 0.1), "Pendulum": (-1.0, 1.0)}


class Sabotaged(gymnasium.Env):
    """A task that names its reward's terms and says success, with one fault.

    Args:
        task: "reach" or "Pendulum".
        fault: of the reward, or "".
    """

    def __init__(self, task: str, fault: str = "", render_mode: str | None = None) -> None:
        id = {"reach": "robot_rl.envs:robot_rl/Reach-v0", "Pendulum": "Pendulum-v1"}[task]
        self._env = gymnasium.make(id, render_mode=render_mode)
        self._task, self._fault, self._pending = task, fault, list[float]()
        self.observation_space, self.action_space = self._env.observation_space, self._env.action_space
        self._largest = float(self._env.action_space.high.max())  # type: ignore[attr-defined]
        self._noise = np.random.default_rng(7)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """A new episode."""
        self._pending = [0.0] * LATE
        return self._env.reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """One step; info holds "reward_<term>" and "is_success"."""
        obs, _, terminated, truncated, info = self._env.step(action)
        read = _reach if self._task == "reach" else _pendulum
        terms, success = read(obs, action, info, self._fault == "other")
        terms = self._spoilt(terms, float(np.mean(np.square(action / self._largest))))
        told = {f"reward_{name}": float(value) for name, value in terms.items()}
        told |= {"is_success": success and self._fault != "unreachable"}
        return obs, sum(terms.values()), terminated, truncated, told

    def _spoilt(self, terms: dict[str, float], effort: float) -> dict[str, float]:
        size, main = SIZES[self._task], next(iter(terms))
        if self._fault == "sign":
            return {name: -value for name, value in terms.items()}
        if self._fault == "scale":
            return {name: 100.0 * value for name, value in terms.items()}
        if self._fault == "bonus":
            return {**terms, "alive": 10.0 * size}
        if self._fault == "dead":
            return {**terms, main: 0.0}
        if self._fault == "penalty":
            return {**terms, "effort": -40.0 * size * effort}
        if self._fault == "delay":
            self._pending.append(sum(terms.values()))
            return {"shaped": self._pending.pop(0)}
        if self._fault == "clip":
            return {"clipped": float(np.clip(sum(terms.values()), *CLIP[self._task]))}
        if self._fault == "noise":
            return {**terms, main: terms[main] + 3.0 * size * self._noise.normal()}
        return terms

    def close(self) -> None:
        """Let go of the task."""
        self._env.close()


def _reach(obs: np.ndarray, action: np.ndarray, info: dict[str, Any], other: bool) -> tuple[dict[str, float], bool]:
    """Terms of reach, or of another object at a place that does not move."""
    terms = {name: float(info[f"reward_{name}"]) for name in ("way", "precise")}
    if other:
        distance = 0.15 * float(np.linalg.norm(obs[:3] - np.array([-0.6, 0.6, -0.6])))
        terms = {"way": 0.5 - 0.5 * np.tanh(distance / 0.2), "precise": 0.5 - 0.5 * np.tanh(distance / 0.03)}
    return terms, bool(info["success"])


def _pendulum(obs: np.ndarray, action: np.ndarray, info: dict[str, Any], other: bool) -> tuple[dict[str, float], bool]:
    """Terms of Pendulum-v1, of where the step led, or of hanging still; success: it stands upright."""
    angle = np.arctan2(obs[1], obs[0])
    off = np.pi - abs(angle) if other else angle
    terms = {"angle": -(off**2), "speed": -0.1 * obs[2] ** 2, "torque": -0.001 * float(action[0]) ** 2}
    return {name: float(value) for name, value in terms.items()}, bool(abs(angle) < 0.3 and abs(obs[2]) < 1.0)


if "Sabotaged-v0" not in gymnasium.registry:
    gymnasium.register("Sabotaged-v0", "benchmarks.why:Sabotaged", max_episode_steps=1000)


def run(algorithm: str, task: str, fault: str, seed: int) -> tuple[list[dict[str, float]], dict[str, Any]]:
    """Train one cell.

    Returns:
        Rows as metrics.jsonl holds them, and the run's configuration.
    """
    bad = OPTIONS[algorithm].get(fault, {})
    place = {"task": task, "fault": "" if fault in ("healthy", "gamma", *OPTIONS[algorithm]) else fault}
    env, judge = (
        build.make(
            "engine",
            {"engine": "gym", "id": "Sabotaged-v0", "kwargs": place},
            num_envs=4 if many else 1,
            seed=at,
            device="cpu",
        )
        for at, many in ((seed, algorithm == "ppo"), (10_000, False))
    )
    gamma, steps, rows = 0.5 if fault == "gamma" else 0.99, STEPS[algorithm], list[dict[str, float]]()
    words = {"name": f"online/{algorithm}", **TWIN[algorithm], **bad}
    more: dict[str, Any] = {"gamma": gamma} if algorithm == "ppo" else {}
    learner = build.make("policy", words, env.io, seed=seed, device="cpu", **more)

    def tick(step: int, metrics: dict[str, float]) -> bool:
        rows.append({"step": step, **metrics})
        return False

    if algorithm == "ppo":
        OnPolicy(env, learner, seed=seed).run(steps, tick)
    else:
        buffer = ReplayBuffer(env.io, steps + 1, gamma=gamma, seed=seed)
        loop = OffPolicy(env, learner, buffer, batch_size=learner.need.rows, seed=seed)
        loop.run(steps, tick, due=every(500))
    rows.append({"step": steps, **evaluate(judge, learner.policy, episodes=10).metrics()})
    env.close()
    judge.close()
    return rows, {"gamma": gamma, "policy": learner.o.model_dump(mode="json")}


def fill(algorithm: str, task: str, fault: str, seed: int, folder: Path) -> dict[str, Any]:
    """Run one cell unless it is there, and diagnose it anew."""
    path = folder / f"{algorithm}_{task}_{fault}_{seed}.json"
    if path.exists():
        cell = json.loads(path.read_text())
    else:
        rows, config = run(algorithm, task, fault, seed)
        kept = [{name: float(f"{value:.6g}") for name, value in row.items()} for row in rows]
        cell = {"algorithm": algorithm, "task": task, "fault": fault, "seed": seed, "config": config, "rows": kept}
    found = diagnose(cell["rows"], cell["config"])
    cell["found"] = [str(finding) for finding in found]
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(cell) + "\n")
    return cell


def right(cell: dict[str, Any]) -> bool:
    """Whether the cause stands first, or nothing for a healthy twin."""
    wanted = CAUSES.get(cell["fault"])
    return not cell["found"] if wanted is None else bool(cell["found"]) and cell["found"][0].startswith(wanted)


def table(folder: Path) -> str:
    """What was named first, by fault: misses in bold, and which runs solved their task all the same."""
    cells = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    for cell in cells:
        cell["found"] = [str(cause) for cause in diagnose(cell["rows"], cell["config"])]
    columns = sorted({(c["algorithm"], c["task"], c["seed"]) for c in cells})
    by = {(c["algorithm"], c["task"], c["seed"], c["fault"]): c for c in cells}
    head = [f"{a.upper()}, {t}, seed {s}" for a, t, s in columns]
    lines = [f"| fault | {' | '.join(head)} |", "|---" * (len(head) + 1) + "|"]
    for fault in ("healthy", *CAUSES):
        words = list[str]()
        for column in columns:
            cell = by.get((*column, fault))
            first = "" if cell is None else cell["found"][0].partition(":")[0] if cell["found"] else "nothing"
            solved = cell is not None and cell["rows"][-1].get("eval/success", 0.0) >= SOLVED
            words.append((first if cell is None or right(cell) else f"**{first}**") + " (solved)" * solved)
        lines.append(f"| {fault} | {' | '.join(words)} |")
    counts = [[right(by[(*column, fault)]) for fault in CAUSES if (*column, fault) in by] for column in columns]
    lines.append(f"| named first | {' | '.join(f'{sum(found)} of {len(found)}' for found in counts)} |")
    return "\n".join(lines) + "\n"


def main(words: list[str]) -> None:
    """Fill cells, or print the table."""
    said = dict(word.split("=", 1) for word in words if "=" in word)
    folder = Path(said.get("cells", CELLS))
    if "table" not in words:
        torch.set_num_threads(1)
        for algorithm in said.get("methods", "sac").split(","):
            for task in said.get("tasks", "reach,Pendulum").split(","):
                for seed in said.get("seeds", "0").split(","):
                    for fault in said.get("faults", ",".join(("healthy", *CAUSES))).split(","):
                        cell = fill(algorithm, task, fault, int(seed), folder)
                        found = "; ".join(cell["found"]) or "nothing"
                        sys.stderr.write(f"{algorithm} {task} {fault} {seed} {'' if right(cell) else 'MISS '}{found}\n")
    sys.stdout.write(table(folder))


if __name__ == "__main__":
    main(sys.argv[1:])
