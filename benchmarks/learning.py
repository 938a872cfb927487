"""Learning curves against stable-baselines3: same task, same steps, same evaluation, one process per run.

Each run is its own process with a fixed number of threads, writes one JSON file (curve, wall and CPU seconds) and is
skipped when that file exists, so a long comparison can be interrupted and continued.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from statistics import mean
from typing import Any

from robot_rl import child
from robot_rl.checkpoint import write_json
from robot_rl.stopwatch import Stopwatch
from robot_rl.track import read_metrics
from robot_rl.version import VERSION

PEER = {"sac": "SAC", "ppo": "PPO"}


def run(
    out: str,
    *,
    algorithm: str = "sac",
    env_id: str = "HalfCheetah-v5",
    steps: int = 100_000,
    seeds: tuple[int, ...] = (0, 1, 2),
    threads: int = 1,
    who: tuple[str, ...] = ("peer", "ours"),
    overrides: tuple[str, ...] = (),
    label: str = "ours",
    variant: str = "",
    eval_every: int = 0,
    eval_episodes: int = 10,
) -> dict[str, Any]:
    """Train every (seed, contestant) that has no result yet, then summarise all results in `out`.

    Args:
        out: folder of the JSON files.
        algorithm: "sac" or "ppo".
        env_id: a Gymnasium id.
        steps: environment steps of each run.
        seeds: seeds of both contestants.
        threads: threads of each process.
        who: which contestants run now.
        overrides: command line overrides of our run, e.g. ("policy.matmul=float32",).
        variant: another configuration of our learner, such as "sac_mean".
        label: file label of our runs, so that variants stand side by side.
        eval_every: steps between evaluations; 0 means a tenth of `steps`.
        eval_episodes: deterministic episodes per evaluation, on seeds 10_000 and up for both.

    Returns:
        Rows per contestant: final returns by seed, wall and CPU seconds, and the ratios to the peer.
    """
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    every = eval_every or max(steps // 10, 1)
    env = {**os.environ, "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    for seed in seeds:  # alternate contestants, so that slow phases of the machine hit both
        for contestant in who:
            name = "sb3" if contestant == "peer" else label
            path = folder / f"{algorithm}_{name}_{env_id}_seed{seed}.json"
            if path.exists():
                continue
            job = {
                "out": str(path),
                "algorithm": algorithm,
                "env_id": env_id,
                "steps": steps,
                "seed": seed,
                "threads": threads,
                "every": every,
                "episodes": eval_episodes,
                "overrides": list(overrides),
                "variant": variant,
            }
            if contestant == "peer":
                subprocess.run(child.command("benchmarks.learning_peer", json.dumps(job)), check=True, env=env)
            else:
                _train_ours(job, folder / f"{path.stem}_run", env)
    return summarise(folder, algorithm, env_id)


def _train_ours(job: dict[str, Any], folder: Path, env: dict[str, str]) -> None:
    """Run `robot-rl train` as a user would, and read the curve from its metrics."""
    command = [
        *child.command("robot_rl", "train", "env=gym", f"id={job['env_id']}"),
        *(f"policy=online/{job['variant'] or job['algorithm']}", f"seed={job['seed']}", f"total_steps={job['steps']}"),
        *(f"threads={job['threads']}", f"eval_every={job['every']}", f"eval_episodes={job['episodes']}"),
        *(f"final_episodes={job['episodes']}", f"log_every={min(1000, job['every'])}", "checkpoint_every=0"),
        *("video_episodes=0", f"output={folder}", "track.tensorboard=false", *job["overrides"]),
    ]
    subprocess.run(command, check=True, env=env)
    metrics = sorted(folder.glob("train/*/metrics.jsonl"))[-1]
    rows = [row for row in read_metrics(metrics) if "eval/return" in row]
    curve = [{"step": r["step"], "return_mean": r["eval/return"], "wall_s": r.get("time/train_s")} for r in rows]
    last = next(row for row in reversed(read_metrics(metrics)) if "time/train_s" in row)
    write_json(
        Path(job["out"]),
        {
            **job,
            "command": command[1:],
            "curve": curve,
            "wall_s": last["time/train_s"],
            "cpu_s": last["time/train_cpu_s"],
            "versions": {"robot_rl": VERSION},
        },
    )


def summarise(folder: Path, algorithm: str, env_id: str) -> dict[str, Any]:
    """Collect all result files of one comparison: final return per seed, seconds, ratios to the peer."""
    rows: dict[str, dict[str, Any]] = {}
    for path in sorted(folder.glob(f"{algorithm}_*_{env_id}_seed*.json")):
        result = json.loads(path.read_text())
        name = path.stem.removeprefix(f"{algorithm}_").rpartition(f"_{env_id}_seed")[0]
        row = rows.setdefault(name, {"seeds": [], "returns": [], "wall_s": [], "cpu_s": []})
        row["seeds"].append(result["seed"])
        row["returns"].append(result["curve"][-1]["return_mean"])
        row["wall_s"].append(result["wall_s"])
        row["cpu_s"].append(result["cpu_s"])
    for row in rows.values():
        row["return_mean"] = mean(row["returns"])
        if "sb3" in rows:
            row["wall_ratio"] = mean(row["wall_s"]) / mean(rows["sb3"]["wall_s"])
            row["cpu_ratio"] = mean(row["cpu_s"]) / mean(rows["sb3"]["cpu_s"])
    return {"algorithm": algorithm, "env": env_id, "rows": rows}


def write_peer(job: dict[str, Any], curve: list[dict[str, Any]], watch: Stopwatch, versions: dict[str, str]) -> None:
    """Write a peer's run atomically."""
    result = {**job, "curve": curve, "wall_s": watch.read()[0], "cpu_s": watch.read()[1], "versions": versions}
    write_json(Path(job["out"]), result)
