"""The real double pendulum: policies from its hardware logs alone, judged in the twin, and estimates against the truth.

For each robot: learners on all its logs, and one clone of every logged controller from that controller's logs. Each
policy is run in the twin from random starts, and its value is estimated from the logs alone; what the table ends with
is how well the estimates order the policies. A cell with a result file is skipped, so the bench can be interrupted.
"""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np

from robot_rl import child
from robot_rl.checkpoint import write_json
from robot_rl.ope.ranking import regret_at_k
from robot_rl.stats import rank_correlation
from robot_rl.version import VERSION

CONTROLLERS = {
    "pendubot": ("ilqr_tvlqr_lqr", "mcpilco", "sac_lqr"),
    "acrobot": ("ilqr_tvlqr_lqr", "mcpilco"),
}
LEARNERS = {
    "bc_best": ("policy=offline/bc", "top_fraction=0.33"),
    "td3_bc": ("policy=offline/td3_bc",),
    "iql": ("policy=offline/iql",),
    "chain_search": (
        "policy=offline/chain_search",
        "policy.assist=[tau_passive]",
        "updates=226",
        "checkpoint_every=20",
    ),
}
_OWN_SIZES = ("chain_search",)
"""Learners that take no `overrides`: they have no networks."""
ESTIMATORS = ("fqe", "mb")
# A few minutes of one core per robot. FQE has not settled after so few updates, and says so.
_SMALL = (
    *("updates=2000", "ope.hidden=[64,64]", "ope.members=3", "ope.lr=1e-3", "behaviour_updates=1000"),
    *("model_updates=1500", "model.hidden=[64,64]", "model.members=3", "model.rollouts=5"),
)


def run(
    out: str,
    quick: bool = False,
    *,
    logs: str,
    robots: tuple[str, ...] = tuple(CONTROLLERS),
    learners: tuple[str, ...] = tuple(LEARNERS),
    updates: int = 4000,
    episodes: int = 50,
    gamma: float = 0.998,
    compensation: tuple[float, ...] = (0.0, 0.19),
    overrides: tuple[str, ...] = ("policy.hidden=[128,128]",),
    estimate: tuple[str, ...] = _SMALL,
    minutes: float | None = None,
) -> dict[str, Any]:
    """Train, run in the twin, estimate, compare.

    Args:
        out: folder of stores, runs and results.
        quick: a tenth of the updates, five episodes.
        logs: folder of the hardware logs, one folder per robot and controller.
        robots: which.
        learners: names in `LEARNERS`; clones of the controllers are always made.
        updates: of every run.
        episodes: in the twin, from random starts.
        gamma: discount of learning and estimates.
        compensation: friction compensation of the passive joint in the twin [N*m]; the first is the twin as it is.
        overrides: further options of every learner.
        estimate: further options of the estimates.
        minutes: begin no cell after so long.

    Returns:
        {"rows": one per policy: twin return and success for each compensation, fqe, mb; or one per robot and estimator:
        rank correlation and regret}, and "open": how many cells are missing.
    """
    if quick:
        updates, episodes = updates // 10, 5
    folder, begin, missing = Path(out), time.monotonic(), 0
    folder.mkdir(parents=True, exist_ok=True)
    for robot in robots:
        whole = _store(folder, Path(logs), robot, None)
        cells = {name: (whole, LEARNERS[name]) for name in learners}
        for name in CONTROLLERS[robot]:
            cells[f"clone_{name}"] = (_store(folder, Path(logs), robot, name), ("policy=offline/bc",))
        for name, (store, options) in cells.items():
            result = folder / f"{robot}_{name}.json"
            if result.exists():
                continue
            if minutes is not None and time.monotonic() - begin > 60.0 * minutes:
                missing += 1
                continue
            more = () if name in _OWN_SIZES else overrides
            shared = [f"gamma={gamma}", f"updates={updates}", "action_clip=true", *options, *more]
            numbers = _cell(
                folder, robot, name, store, whole, shared, episodes, compensation, [f"gamma={gamma}", *estimate]
            )
            write_json(result, {"robot": robot, "policy": name, "version": VERSION, **numbers})
    return {"rows": summarise(folder), "open": missing}


def _call(arguments: list[str], log: Path) -> None:
    done = subprocess.run(child.command("robot_rl", *arguments), capture_output=True, text=True)
    with log.open("a") as file:
        file.write(f"{' '.join(arguments)}\n{done.stdout}{done.stderr}\n")
    if done.returncode:
        raise RuntimeError(f"robot-rl {' '.join(arguments)} failed:\n{done.stderr[-1500:]}")


def _store(folder: Path, logs: Path, robot: str, controller: str | None) -> Path:
    """Convert the logs of a robot, or of one of its controllers, once."""
    store = folder / f"{robot}{'_' + controller if controller else ''}.store"
    if not store.exists():
        source = logs / robot if controller is None else logs / robot / controller
        _call(["data", "convert", str(source), f"out={store}", "map=double_pendulum"], folder / "convert.log")
    return store


def _cell(
    folder: Path,
    robot: str,
    name: str,
    store: Path,
    whole: Path,
    options: list[str],
    episodes: int,
    compensation: tuple[float, ...],
    ope: list[str],
) -> dict[str, Any]:
    log, title = folder / f"{robot}_{name}.log", f"{robot}-{name}"
    twin = ["env=double_pendulum", f"env.world.robot={robot}"]
    _call(
        [
            *("offline", f"data={store}", *twin, f"env.world.compensation={compensation[0]}", f"name={title}"),
            *(f"output={folder}/runs", "eval_every=0", f"final_episodes={episodes}", f"eval_envs={episodes}"),
            *("estimate=0", "video_episodes=0", "track.tensorboard=false", *options),
        ],
        log,
    )
    run = sorted((folder / "runs" / "offline").glob(f"*_{title}"))[-1]
    first = json.loads((run / "evaluation.json").read_text())
    found: dict[str, Any] = {"options": options, "twin": {str(compensation[0]): _twin(first["returns"][0], first)}}
    for torque in compensation[1:]:
        _call(
            [
                *("eval", f"path={run}", f"episodes={episodes}", f"num_envs={episodes}", "video_episodes=0"),
                *(*twin, f"env.world.compensation={torque}", f"output={folder}/runs", f"name={title}-{torque}"),
            ],
            log,
        )
        more = sorted((folder / "runs" / "eval").glob(f"*_{title}-{torque}"))[-1]
        numbers = json.loads((more / "evaluation.json").read_text())
        found["twin"][str(torque)] = _twin(numbers["returns"], numbers)
    _call(
        [
            *("eval", "ope", f"path={run}", f"data={whole}", "methods=[fqe,mb]", "action_clip=true", *ope),
            *(f"output={folder}/runs", f"name={title}"),
        ],
        log,
    )
    ope_run = sorted((folder / "runs" / "ope").glob(f"*_{title}"))[-1]
    found["ope"] = json.loads((ope_run / "ope.json").read_text())
    return found


def _twin(returns: list[float], numbers: dict[str, Any]) -> dict[str, Any]:
    return {"return": float(np.mean(returns)), "returns": returns, "success": numbers.get("success")}


def summarise(folder: Path) -> list[dict[str, Any]]:
    """Rows per policy, then per robot and estimator the order that it gives the policies against the twin's."""
    cells = [json.loads(path.read_text()) for path in sorted(folder.glob("*_*.json"))]
    rows: list[dict[str, Any]] = []
    for robot in CONTROLLERS:
        own = [cell for cell in cells if cell["robot"] == robot]
        for cell in own:
            row: dict[str, Any] = {"robot": robot, "policy": cell["policy"]}
            for torque, twin in cell["twin"].items():
                row |= {f"return@{torque}": twin["return"], f"success@{torque}": twin["success"]}
            for name in ESTIMATORS:
                one = cell["ope"]["estimates"][name]
                row[name] = f"{one['value']:.4g} [{one['low']:.4g}, {one['high']:.4g}]"
            row["outside"] = f"{cell['ope']['outside_support']:.0%}"
            rows.append(row)
        if len(own) < 2:
            continue
        for torque in own[0]["twin"]:
            truth = [cell["twin"][torque]["return"] for cell in own]
            for name in ESTIMATORS:
                guess = [cell["ope"]["estimates"][name]["value"] for cell in own]
                order, regret = rank_correlation(guess, truth), regret_at_k(guess, truth)
                rows.append(
                    {
                        "robot": robot,
                        "policy": f"order by {name}, twin@{torque}: Spearman {order:.2f}, regret {regret:.4g}",
                    }
                )
    return rows
