"""Worst-case search with networks: SAC for one dynamics, for random ones, and IWOCS, each in its own worst dynamics.

The search trains a default policy on random dynamics, then an expert for the nominal dynamics, then one for the worst
dynamics of what it has, until a stop criterion holds. Every trained network and every finished cell is a file in `out`
and is not made again, so the bench can be interrupted.
"""

from __future__ import annotations

import importlib
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from robot_rl.checkpoint import load_state, save_state, write_json
from robot_rl.data.buffer import ReplayBuffer
from robot_rl.loops.evaluate import evaluate
from robot_rl.loops.off_policy import OffPolicy
from robot_rl.loops.worst_case import Point, worst_case
from robot_rl.types import PolicyParts, Step
from robot_rl.version import VERSION

METHODS = ("iwocs", "randomised", "nominal")
_CALIBRATION, _SEARCH, _TEST = 10_000, 20_000, 30_000
"""Seeds of the episodes that set a radius, of those that the search sees, and of those that are reported."""


def run(
    out: str,
    quick: bool = False,
    *,
    world: str = "robot_rl.sim.worlds.pendulum.Pendulum",
    box: Mapping[str, Any] | None = None,
    nominal: Mapping[str, float] | None = None,
    fixed: Mapping[str, Any] | None = None,
    methods: tuple[str, ...] = METHODS,
    seeds: tuple[int, ...] = (0, 1, 2),
    steps: int = 6000,
    experts: int = 3,
    points: int = 5,
    refine: int = 1,
    episodes: int = 10,
    test_episodes: int = 20,
    tolerance: float = 0.05,
    quantile: float = 0.99,
    calibrate: int = 3,
    retest: str = "step",
    lr: float = 1e-3,
    hidden: tuple[int, ...] = (64, 64),
    batch_size: int = 64,
    learning_starts: int = 500,
    model_steps: int = 3000,
    gamma: float = 0.99,
    minutes: float | None = None,
) -> dict[str, Any]:
    """Train and judge the cells that are missing, then the table of all cells in `out`.

    Args:
        out: folder: one JSON file per cell, one file of tensors per trained network, `<cell>_policy.pt` of IWOCS.
        quick: a tenth of the steps, one seed, two experts, three points, no refinement.
        world: class of an array world whose arguments named in `box` take a number or a pair (low, high) to draw from.
        box: parameter -> [low, high]; None: length 0.7 to 1.3 m, wind -1 to 1 N*m.
        nominal: dynamics of the first expert; None is the middle of the box.
        fixed: further arguments of the world, the same for all.
        methods: names in `METHODS`. "randomised" and "nominal" are SAC with as many steps as IWOCS can use.
        seeds: of every method.
        steps: environment steps of the default policy and of each expert.
        experts: at most so many.
        points: of the grid, per parameter.
        refine: rounds around the grid's worst.
        episodes: per dynamics in the search, of equal starts in all dynamics; at least 10.
        test_episodes: per dynamics in what is reported, of other starts.
        tolerance: relative; the search stops where the worst discounted return is what the values promised, or the
            worst return differs by less than that from the one before.
        quantile: of held-out model residuals that is the radius of validity.
        calibrate: fresh episodes of each expert in its own dynamics whose residuals give the radius; 0 takes held-out
            steps of its training, whose early ones are wild: the radius is then several times as large.
        retest: "step" or "episode": whether an expert that did not explain a step may act again in the episode.
        lr, hidden, batch_size, learning_starts: of SAC.
        model_steps: gradient steps of each dynamics model.
        gamma: discount.
        minutes: begin no cell after so long.

    Returns:
        {"rows": one per method: return in the worst dynamics (mean over seeds, each seed, where), mean over the grid,
        in the nominal dynamics; "open": how many cells are missing}.

    Raises:
        ValueError: an unknown method, an option out of range, or cells in `out` made with other options.
    """
    wrong = [name for name in methods if name not in METHODS]
    if wrong or experts < 1 or episodes < 10 or calibrate < 0:
        raise ValueError(
            f"methods, experts, episodes, calibrate are {methods}, {experts}, {episodes}, {calibrate}; expected "
            f"names of {', '.join(METHODS)}, at least 1 expert, at least 10 episodes (fewer give luck), 0 or more"
        )
    if quick:
        steps, learning_starts, seeds, experts = steps // 10, learning_starts // 10, tuple(seeds)[:1], min(experts, 2)
        points, refine, model_steps = 3, 0, model_steps // 10
    limits = _limits(box or {"length": (0.7, 1.3), "wind": (-1.0, 1.0)})
    options = {
        **{"world": world, "box": {k: list(v) for k, v in limits.items()}, "nominal": nominal and dict(nominal)},
        "fixed": fixed and dict(fixed),
        **{"steps": steps, "experts": experts, "points": points, "refine": refine, "episodes": episodes},
        **{"test_episodes": test_episodes, "tolerance": tolerance, "quantile": quantile, "retest": retest},
        **{"calibrate": calibrate, "lr": lr},
        **{"hidden": list(hidden), "batch_size": batch_size, "learning_starts": learning_starts},
        **{"model_steps": model_steps, "gamma": gamma},
    }
    folder, begin, missing = Path(out), time.monotonic(), 0
    folder.mkdir(parents=True, exist_ok=True)
    _same(folder, options)
    job = _Job(folder, options, limits)
    for seed in seeds:
        for name in methods:
            cell = folder / f"{name}_seed{seed}.json"
            if cell.exists():
                continue
            if minutes is not None and time.monotonic() - begin > 60.0 * minutes:
                missing += 1
                continue
            found = job.iwocs(seed) if name == "iwocs" else job.plain(name, seed)
            write_json(cell, {"method": name, "seed": seed, "version": VERSION, **found})
    return {"rows": summarise(folder), "open": missing}


def _limits(box: Mapping[str, Any]) -> dict[str, tuple[float, float]]:
    for name, bounds in box.items():
        if isinstance(bounds, str) or not hasattr(bounds, "__len__") or len(bounds) != 2 or not bounds[0] < bounds[1]:
            raise ValueError(f"box is {dict(box)}: '{name}' is {bounds}, expected [low, high] with low below high")
    return {name: (float(low), float(high)) for name, (low, high) in box.items()}


def _plain(value: Any) -> Any:
    return [float(x) for x in value] if isinstance(value, (list, tuple)) else float(value)


def _same(folder: Path, options: dict[str, Any]) -> None:
    path = folder / "options.json"
    if not path.exists():
        write_json(path, options)
    kept = json.loads(path.read_text())
    now = json.loads(json.dumps(options))
    differing = [f"{key}: {kept.get(key)!r} there, {now[key]!r} now" for key in now if kept.get(key) != now[key]]
    if differing:
        raise ValueError(f"{folder} holds cells of other options ({'; '.join(differing)}); give another out=")


class _Log:
    """Hands steps on to replay and keeps them one by one: a model is judged on rows that it was not trained on."""

    def __init__(self, buffer: ReplayBuffer) -> None:
        self._buffer, self.capacity, self.batches = buffer, buffer.capacity, buffer.batches
        self.rows: list[tuple[np.ndarray, ...]] = []

    def __len__(self) -> int:
        return len(self._buffer)

    def add(self, step: Step) -> None:
        self._buffer.add(step)
        keep = np.asarray(step.valid)
        parts = (step.obs["state"], step.action, step.next_obs["state"], step.reward)
        self.rows.append(tuple(np.array(part)[keep] for part in parts))

    def tensors(self) -> list[torch.Tensor]:
        return [torch.as_tensor(np.concatenate(part)) for part in zip(*self.rows)]


class _Counted:
    """A policy, and how often each expert of it acted (-1: the default)."""

    parts = PolicyParts()

    def __init__(self, policy: Any) -> None:
        self.io, self.reset, self._act = policy.io, policy.reset, policy.act
        self.counts: dict[int, int] = {}

    def act(self, obs: Any, *, deterministic: bool = False) -> Any:
        action = self._act(obs, deterministic=deterministic)
        for index, count in zip(*np.unique(action.extras["expert"], return_counts=True)):
            self.counts[int(index)] = self.counts.get(int(index), 0) + int(count)
        return action


class _Job:
    """The parts of one comparison: worlds, training, judging."""

    def __init__(self, folder: Path, options: dict[str, Any], box: dict[str, tuple[float, float]]) -> None:
        self.folder, self.options, self.box = folder, options, box
        self.nominal: Point = dict(options["nominal"] or {k: (low + high) / 2 for k, (low, high) in box.items()})
        self._methods = importlib.import_module("robot_rl.policies.contrib.iwocs_deep")
        self._array_env = importlib.import_module("robot_rl.sim.array_env")
        module, _, name = options["world"].rpartition(".")
        self._world = getattr(importlib.import_module(module), name)

    def env(self, dynamics: Mapping[str, Any], rows: int, seed: int) -> Any:
        """Worlds of these dynamics; episodes of one seed start alike in all of them."""
        return self._array_env.ArrayVectorEnv(self._world(**(self.options["fixed"] or {}), **dynamics), rows, seed)

    def learner(self, io: Any, seed: int) -> Any:
        o = self.options
        stated = self._methods.ExpertOptions(hidden=tuple(o["hidden"]), lr=o["lr"], batch_size=o["batch_size"])
        return self._methods.Expert(stated, io, seed=seed)

    def train(self, title: str, dynamics: Mapping[str, Any], steps: int, seed: int) -> Any:
        """A learner from its file, or trained and written; with its dynamics model, which a default does not use."""
        o, path = self.options, self.folder / f"{title}.pt"
        env = self.env(dynamics, 1, seed)
        learner = self.learner(env.io, seed)
        if path.exists():
            saved = load_state(path)
            if saved["dynamics"] != {key: _plain(value) for key, value in dynamics.items()}:
                raise ValueError(f"{path} was trained for {saved['dynamics']}, not for {dict(dynamics)}; delete it")
            learner.take(saved)
            return learner
        buffer = ReplayBuffer(env.io, steps, gamma=o["gamma"], seed=seed)
        log = _Log(buffer)
        job: Any = log  # stands in for the buffer where steps go in
        sizes = {"batch_size": o["batch_size"], "learning_starts": o["learning_starts"]}
        OffPolicy(env, learner, job, seed=seed, **sizes).run(steps, lambda _step, _metrics: False)
        how = self._methods.ModelFit(steps=o["model_steps"], quantile=o["quantile"])
        learner.fit_model(*log.tensors(), how, seed=seed)
        kept = {**learner.acting_state(), "dynamics": {key: _plain(value) for key, value in dynamics.items()}}
        save_state(path.with_suffix(".tmp"), kept)
        path.with_suffix(".tmp").replace(path)
        return learner

    def returns(self, policy: Any, dynamics: Point, seed: int, episodes: int) -> tuple[list[float], float]:
        """Returns of episodes that start alike in all dynamics, and the mean discounted return."""
        discounted, power, gamma = np.zeros(episodes), np.ones(episodes), self.options["gamma"]

        def add(step: Step) -> None:  # one row per episode: what follows its end counts no more
            nonlocal power
            discounted[:] += power * step.reward
            power = np.where(step.terminated | step.truncated, 0.0, power * gamma)

        found = evaluate(self.env(dynamics, episodes, seed), policy, episodes=episodes, seed=seed, on_step=add)
        return found.returns, float(discounted.mean())

    def worst(self, policy: Any, seed: int, episodes: int) -> tuple[Point, float, list[tuple[Point, float]]]:
        o = self.options
        return worst_case(
            lambda point, start: self.returns(policy, point, start, episodes)[0],
            self.box, points=o["points"], refine=o["refine"], seed=seed,
        )  # fmt: skip

    def judge(self, policy: Any) -> dict[str, Any]:
        """What is reported: episodes that no search has seen, the policy's own worst dynamics."""
        episodes = self.options["test_episodes"]
        point, value, seen = self.worst(policy, _TEST, episodes)
        nominal = float(np.mean(self.returns(policy, self.nominal, _TEST, episodes)[0]))
        grid = [mean for _, mean in seen[: self.options["points"] ** len(self.box)]]
        return {"worst": value, "where": point, "mean": float(np.mean(grid)), "nominal": nominal, "seen": seen}

    def plain(self, name: str, seed: int) -> dict[str, Any]:
        """SAC on the nominal or on random dynamics with all the steps that IWOCS can use."""
        total = self._steps(self.options["experts"])
        dynamics = self.nominal if name == "nominal" else self.box
        learner = self.train(f"{name}_seed{seed}", dynamics, total, seed)
        return {**self.judge(learner.policy), "env_steps": total}

    def iwocs(self, seed: int) -> dict[str, Any]:
        """The search; the policy is that of the iteration with the best worst return."""
        o, title = self.options, f"iwocs_seed{seed}"
        default = self.train(f"{title}_default", self.box, o["steps"], seed)
        policy = self._methods.IwocsPolicy(default.io, default.policy, retest=o["retest"])
        history: list[dict[str, Any]] = []
        point, solved, stop = self.nominal, [], ""
        while len(solved) < o["experts"]:
            expert = self.train(f"{title}_expert{len(solved)}", point, o["steps"], seed + 1000 * (1 + len(solved)))
            if o["calibrate"]:
                self.calibrate(expert, point, _CALIBRATION + seed)
            solved.append(point)
            policy.add(expert)
            worst, value, _ = self.worst(policy, _SEARCH, o["episodes"])
            _, earned = self.returns(policy, worst, _SEARCH, o["episodes"])
            start, _ = self.env(worst, o["episodes"], _SEARCH).reset(seed=_SEARCH)
            promised = float(policy.promise(torch.as_tensor(start["state"])).mean())
            history.append(
                {"solved": point, "radius": expert.radius, "worst": worst, "return": value, "promised": promised,
                 "earned": earned}
            )  # fmt: skip
            stop = self._stop(history, solved)
            if stop:
                break
            point = worst
        best = 1 + int(np.argmax([entry["return"] for entry in history]))
        used, policy = policy.experts[:best], self._methods.IwocsPolicy(default.io, default.policy, retest=o["retest"])
        for expert in used:
            policy.add(expert)
        save_state(self.folder / f"{title}_policy.pt", policy.state_dict())
        found, counted = self.judge(policy), _Counted(policy)
        self.returns(counted, found["where"], _TEST, o["test_episodes"])
        total = sum(counted.counts.values())
        return {
            **found,
            "history": history,
            "stop": stop or "number of experts",
            "used": best,
            "acted": {str(index): count / total for index, count in sorted(counted.counts.items())},
            "first_expert": self.judge(used[0].policy),
            "default": self.judge(default.policy),
            "env_steps": self._steps(len(solved)),
        }

    def _steps(self, experts: int) -> int:
        """Environment steps of a default policy and so many experts, calibration included; the search's are not."""
        o = self.options
        episode = self._world(**(o["fixed"] or {})).episode_steps
        return o["steps"] * (1 + experts) + o["calibrate"] * episode * experts

    def calibrate(self, expert: Any, dynamics: Point, seed: int) -> None:
        """Set the radius by steps of the expert, with its exploration, that no model was trained on."""
        count, found = self.options["calibrate"], []

        def add(step: Step) -> None:
            parts = (step.obs["state"], step.action, step.next_obs["state"])
            found.append(expert.residual(*(torch.as_tensor(np.asarray(part)) for part in parts)))

        evaluate(
            self.env(dynamics, count, seed), expert.policy, episodes=count, seed=seed, deterministic=False, on_step=add
        )
        expert.radius = self._methods.validity_radius(torch.cat(found), self.options["quantile"])

    def _stop(self, history: list[dict[str, Any]], solved: list[Point]) -> str:
        """Why the search is over, or nothing."""
        now, tolerance = history[-1], self.options["tolerance"]
        if abs(now["earned"] - now["promised"]) <= tolerance * abs(now["promised"]):
            return "promise kept"
        if any(np.allclose(list(now["worst"].values()), list(point.values())) for point in solved):
            return "worst was solved before"
        if len(history) > 1 and abs(now["return"] - history[-2]["return"]) <= tolerance * abs(history[-2]["return"]):
            return "worst return unchanged"
        return ""


def summarise(folder: Path) -> list[dict[str, Any]]:
    """Rows per method over the seeds that are done; the parts of IWOCS alone, too."""
    cells = [json.loads(path.read_text()) for path in sorted(folder.glob("*_seed*.json"))]
    groups: dict[str, list[dict[str, Any]]] = {}
    for cell in cells:
        groups.setdefault(cell["method"], []).append(cell)
        if cell["method"] == "iwocs":
            groups.setdefault("its default alone", []).append(cell["default"])
            groups.setdefault("its first expert alone", []).append(cell["first_expert"])
    return [
        {
            "method": name,
            "worst": float(np.mean([cell["worst"] for cell in group])),
            "seeds": " ".join(f"{cell['worst']:.0f}" for cell in group),
            "in": "; ".join(",".join(f"{k}={v:.2g}" for k, v in cell["where"].items()) for cell in group),
            "mean": float(np.mean([cell["mean"] for cell in group])),
            "nominal": float(np.mean([cell["nominal"] for cell in group])),
        }
        for name, group in groups.items()
    ]
