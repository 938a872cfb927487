"""Scores of the offline learners on graded locomotion sets, each with its published settings, all seeds kept.

Every cell is a `robot-rl offline` process and writes one JSON file; a cell with a file is skipped and an interrupted
one is resumed, so the table can be made in pieces of a few minutes. The sets are made first, by `robot-rl collect`.
"""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from robot_rl import child
from robot_rl.atomic import write_bytes
from robot_rl.checkpoint import write_json
from robot_rl.data import d4rl, scores
from robot_rl.stats import iqm, stratified_mean
from robot_rl.version import VERSION


@dataclass(frozen=True)
class Method:
    """A learner and what its authors set for the sets.

    Attributes:
        policy: config group choice.
        batched: trains all seeds in one process.
        always: overrides on every set.
        per_set: set -> further overrides.
        decays: the actor's step size falls to 0 as a cosine over the run. The authors of IQL and f-DVL do so; for BC,
            TD3+BC, ReBRAC and EDAC held to the log it is ours, because the last iterate is what counts and these runs
            are short.
    """

    policy: str
    batched: bool = True
    decays: bool = True
    always: tuple[str, ...] = ()
    per_set: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def _rebrac(actor: float, critic: float) -> tuple[str, ...]:
    return (f"policy.actor_penalty={actor}", f"policy.critic_penalty={critic}")


def _edac(critics: int, eta: float) -> tuple[str, ...]:
    return (f"policy.critics={critics}", f"policy.eta={eta}")


# Sources: the papers' tables per data set as CORL's configurations list them. Differs: batches of 256 for every method
# (f-DVL's and ReBRAC's authors take 1024, four times the work of an update), and ReBRAC's penalties and standardised
# states. Its authors' weights (0.01 to 0.1 for the actor) suit a million updates: early on Q is small beside what it
# will be, the actor's loss divides by its mean, and slopes that are still wrong weigh several times what they will.
METHODS = {
    "bc": Method("offline/bc"),
    "bc10": Method("offline/bc", always=("top_fraction=0.1",)),
    "td3_bc": Method("offline/td3_bc"),
    "iql": Method("offline/iql", always=("reward=return_range",)),
    "f_dvl": Method("offline/f_dvl", always=("reward=return_range", "policy.batch_size=256")),
    "rebrac": Method(
        "offline/rebrac",
        always=("policy.batch_size=256", "policy.normalize=true"),
        per_set={
            "halfcheetah-medium-expert": _rebrac(0.1, 0.01),
            "halfcheetah-medium-replay": _rebrac(0.05, 0.01),
            "hopper-medium-expert": _rebrac(0.3, 0.01),
            "hopper-medium-replay": _rebrac(0.1, 0.01),
            "walker2d-medium-expert": _rebrac(0.1, 0.01),
            "walker2d-medium-replay": _rebrac(0.1, 0.01),
        },
    ),
    "edac": Method(
        "offline/edac",
        batched=False,
        decays=False,
        per_set={
            "halfcheetah-medium-expert": _edac(10, 5.0),
            "halfcheetah-medium-replay": _edac(10, 1.0),
            "hopper-medium-expert": _edac(50, 1.0),
            "hopper-medium-replay": _edac(50, 1.0),
            "walker2d-medium-expert": _edac(10, 5.0),
            "walker2d-medium-replay": _edac(10, 1.0),
        },
    ),
    "edac_bc": Method(  # ours: held to the log, one setting for all sets
        "offline/edac",
        batched=False,
        always=("policy.normalize=true", "policy.critics=10", "policy.eta=5", "policy.clone_weight=0.1"),
    ),
}
ENVS = {"halfcheetah": "HalfCheetah", "hopper": "Hopper", "walker2d": "Walker2d"}
SETS = tuple(f"{env}-{level}" for level in ("medium-expert", "medium-replay") for env in ENVS)


def run(
    out: str,
    quick: bool = False,
    *,
    zoo: str | None = None,
    expert: Mapping[str, str] | None = None,
    medium: Mapping[str, str] | None = None,
    medium_bias: Mapping[str, float] | None = None,
    sets: tuple[str, ...] = SETS,
    methods: tuple[str, ...] = tuple(METHODS),
    seeds: int = 3,
    updates: int = 20_000,
    steps: int = 200_000,
    noise: float | None = None,
    replay_by: str = "uniform",
    batch_size: int | None = None,
    matmul: str = "bf16",
    overrides: tuple[str, ...] = (),
    label: str = "",
    minutes: float | None = None,
) -> dict[str, Any]:
    """Make the sets and the cells that are missing, then the table of all cells in `out`.

    Args:
        out: folder: data/<set>.hdf5, one JSON file per cell, runs/.
        quick: a twentieth of updates and steps, one seed.
        zoo: folder with tqc-<Env>-v3.zip of the Stable-Baselines3 zoo; needed while a set is missing.
        expert: environment -> zip or checkpoint of the expert in place of the zoo's TQC agent.
        medium: environment (e.g. "halfcheetah") -> checkpoint or zip of the medium agent; where none is given the zoo's
            agent is spoilt by a fixed function of the state.
        medium_bias: environment -> amplitude of a fixed wrong function of the state on its medium agent's actions, for
            agents that are too good.
        sets: which.
        methods: names in `METHODS`.
        seeds: of every cell.
        updates: of every run.
        steps: of a medium-expert set; a medium-replay set has half as many.
        noise: of the agents' actions in the sets; None: they are sampled from the agents' own policies, as D4RL's were.
        replay_by: what fills a medium-replay set: "uniform" (medium with ever fewer uniform actions) or "agents" (ever
            less spoilt agents, evenly spaced in return).
        batch_size: rows per update where it should not be the method's own.
        matmul: "bf16" or "float32" matrix products.
        overrides: further options of `robot-rl offline`, for variants; give them a `label`.
        label: appended to the method's name in files and table.
        minutes: stop cleanly after so long; the same call continues.

    Returns:
        {"rows": one per cell: set, method, score (mean over seeds), iqm, low, high, seeds (score of each), updates},
        and "open": how many cells are missing or unfinished.

    Raises:
        ValueError: unknown set or method, or a set is missing and no zoo given.
        RuntimeError: a run failed; its log is named.
    """
    unknown = [name for name in (*sets, *methods) if name not in (*SETS, *METHODS)]
    if unknown:
        raise ValueError(f"unknown {', '.join(unknown)}; sets are {', '.join(SETS)}; methods are {', '.join(METHODS)}")
    if quick:
        updates, steps, seeds = updates // 20, steps // 20, 1
    folder = Path(out)
    (folder / "data").mkdir(parents=True, exist_ok=True)
    clock = _Clock(minutes)
    for name in sets:
        if not (folder / "data" / f"{name}.hdf5").exists() and not clock.over:
            env = name.split("-")[0]
            best = (expert or {}).get(env) or (zoo and str(Path(zoo) / f"tqc-{ENVS[env]}-v3.zip"))
            _collect(
                folder,
                name,
                best,
                (medium or {}).get(env),
                (medium_bias or {}).get(env),
                steps,
                noise,
                clock,
                replay_by,
            )
    missing = 0
    for name in sets:
        for method in methods:
            kind = METHODS[method]
            shared = [f"updates={updates}", f"policy.matmul={matmul}", *kind.always, *kind.per_set.get(name, ())]
            if kind.decays:
                shared.append(f"policy.actor_decay={updates}")
            if batch_size is not None:
                shared.append(f"policy.batch_size={batch_size}")
            runs = [(0, [f"policy.seeds={seeds}"])] if kind.batched else [(seed, []) for seed in range(seeds)]
            for seed, own in runs:
                cell = f"{name}_{method}{label}" + ("" if kind.batched else f"_seed{seed}")
                if not (folder / f"{cell}.json").exists():
                    options = [f"policy={kind.policy}", f"seed={seed}", *shared, *own, *overrides]
                    missing += not _train(folder, cell, name, options, clock)
    return {"rows": summarise(folder), "open": missing}


class _Clock:
    """Time left of `minutes`, or no limit."""

    def __init__(self, minutes: float | None) -> None:
        self._end = None if minutes is None else time.monotonic() + 60.0 * minutes

    @property
    def left(self) -> float | None:
        """Seconds, not below zero; None without a limit."""
        return None if self._end is None else max(self._end - time.monotonic(), 0.0)

    @property
    def over(self) -> bool:
        return self.left is not None and self.left <= 0.0


def _call(command: list[str], log: Path, clock: _Clock) -> bool:
    """Run a verb; at the end of time it is interrupted, saves, and False is returned."""
    with log.open("a") as file:
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT)
        try:
            process.wait(clock.left)
        except (subprocess.TimeoutExpired, KeyboardInterrupt) as stop:
            process.send_signal(signal.SIGINT)
            process.wait()
            if isinstance(stop, KeyboardInterrupt):
                raise
            return False
    if process.returncode:
        raise RuntimeError(f"{' '.join(command[3:])} failed; see {log}:\n{log.read_text()[-1500:]}")
    return True


def _collect(
    folder: Path,
    name: str,
    expert: str | None,
    medium: str | None,
    bias: float | None,
    steps: int,
    noise: float | None,
    clock: _Clock,
    replay_by: str,
) -> None:
    env, level = name.split("-", 1)
    if expert is None:
        raise ValueError(
            f"{folder}/data/{name}.hdf5 does not exist; name the agents it is made from with +zoo=<folder> or "
            f"+expert.{env}=<zip>"
        )
    command = [
        *child.command("robot_rl", "collect", "env=gym", f"id={ENVS[env]}-v4", "policy=sb3"),
        *(
            f"path={expert}",
            f"level={level}",
            "sample=true" if noise is None else f"noise={noise}",
            "num_envs=10",
        ),
        f"steps={steps if level == 'medium-expert' else steps // 2}",
        f"out={folder}/data/{name}.hdf5",
        "medium_by=bias",
        f"replay_by={replay_by}",
        *([f"medium_path={medium}"] if medium else []),
        *([] if bias is None else [f"medium_noise={bias}"]),
    ]
    _call(command, folder / "data" / f"{name}.log", clock)


def _train(folder: Path, cell: str, name: str, options: list[str], clock: _Clock) -> bool:
    """Begin or continue one run; whether it is finished."""
    if clock.over:
        return False
    begun = [path.parent for path in sorted((folder / "runs").glob(f"offline/*_{cell}/checkpoints"))]
    begun = [path for path in begun if any((path / "checkpoints").iterdir())]
    _same_options(folder / f"{cell}.options.txt", options, bool(begun))
    command = child.command("robot_rl", "offline")
    updates = int(next(o for o in options if o.startswith("updates=")).split("=")[1])
    if begun:
        command.append(f"resume={begun[-1]}")
    else:
        command += [
            *(f"data={folder}/data/{name}.hdf5", "env=gym", f"id={ENVS[name.split('-')[0]]}-v4"),
            *(f"name={cell}", f"output={folder}/runs", "estimate=0", "video_episodes=0", "track.tensorboard=false"),
            *(f"eval_every={max(updates // 4, 1)}", "checkpoint_every=0", *options),
        ]
    if not _call(command, folder / f"{cell}.log", clock):
        return False
    last = sorted((folder / "runs").glob(f"offline/*_{cell}"))[-1]
    result = json.loads((last / "evaluation.json").read_text())
    rows = [json.loads(line) for line in (last / "metrics.jsonl").read_text().splitlines()]
    write_json(
        folder / f"{cell}.json",
        {
            "set": name,
            "method": cell.removeprefix(f"{name}_").split("_seed")[0],
            "options": options,
            "updates": result["updates"],
            "returns": result["returns"],
            "curve": [[row["step"], row["eval/score"]] for row in rows if "eval/score" in row],
            "cpu_seconds": max(row.get("time/train_cpu_s", 0.0) for row in rows),
            "version": VERSION,
        },
    )
    return True


def _same_options(record: Path, options: list[str], begun: bool) -> None:
    """Write down with what a run begins; one that goes on keeps that, so other options are refused, not ignored.

    Raises:
        ValueError: the run was begun with other options.
    """
    if not begun:
        write_bytes(record, "\n".join(options).encode())
        return
    was = record.read_text().splitlines() if record.exists() else options
    if was != options:
        before, now = (", ".join(o for o in a if o not in b) for a, b in ((was, options), (options, was)))
        raise ValueError(
            f"{record.name.removesuffix('.options.txt')} was begun with {before} and now has {now}: go on with the "
            f"same options, name another +label= or +out=, or remove its folder in {record.parent / 'runs' / 'offline'}"
        )


def summarise(folder: Path) -> list[dict[str, Any]]:
    """Rows of the table: the data, then every cell, with the normalised score of each seed (mean of its episodes)."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for path in sorted(folder.glob("*.json")):
        cell = json.loads(path.read_text())
        row = found.setdefault((cell["set"], cell["method"]), {"seeds": [], "updates": cell["updates"], "cpu": 0.0})
        row["seeds"] += [scores.normalized_score(cell["set"], float(np.mean(episodes))) for episodes in cell["returns"]]
        row["cpu"] += cell["cpu_seconds"]
    rows: list[dict[str, Any]] = []
    for name in sorted({key[0] for key in found}):
        path = folder / "data" / f"{name}.hdf5"
        if path.exists():
            whole = [e for e in d4rl.read(path).episodes if e.terminated or e.truncated]
            data = [scores.normalized_score(name, float(e.reward.sum(dtype=np.float64))) for e in whole]
            row = {"set": name, "method": "(data)", "score": float(np.mean(data)), "low": min(data), "high": max(data)}
            rows.append(row)
        for (owner, method), row in found.items():
            if owner == name:
                interval = stratified_mean([row["seeds"]])
                rows.append(
                    {
                        "set": name,
                        "method": method,
                        "score": float(np.mean(row["seeds"])),
                        "iqm": iqm(np.array(row["seeds"])),
                        "low": interval.low,
                        "high": interval.high,
                        "seeds": [round(score, 1) for score in row["seeds"]],
                        "updates": row["updates"],
                        "cpu_minutes": row["cpu"] / 60.0,
                    }
                )
    return rows
