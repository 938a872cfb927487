"""Critics that see more, and students of teachers that do: training runs of the command line, with and without.

    robot-rl bench privileged "+arms=[ppo_wind]" "+seeds=[0,1,2]" +out=docs/results/privileged

A cell is an arm, a side and a seed, is one `robot-rl train`, and writes one JSON file with its command when it ends;
cells that are there are skipped.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage
from typing import Any

from benchmarks.her import versions
from benchmarks.online.matrix import commit

WINDY = "env=pendulum env.world.wind=[-1.5,1.5] env.world.mass=[0.5,1.5]"
LEGS = "env=quadruped num_envs=16 policy.rollout_steps=128 policy.minibatch=512 policy.log_std_init=-1"
MEMORIES = {"memory": "", "no memory": "policy.memory=0"}
HOME = Path("runs/privileged")
SIDES = {"blind": "", "seeing": "critic_state=true"}
ARMS: dict[str, tuple[str, dict[str, str]]] = {
    "ppo_wind": (f"{WINDY} policy=online/ppo total_steps=100000", SIDES),
    "sac_wind": (f"{WINDY} policy=online/sac total_steps=8000", SIDES),
    "memory": ("env=pendulum env.world.velocity=false policy=online/recurrent_ppo total_steps=45000", SIDES),
    "ppo_legs": (f"{LEGS} env.proprio=own policy=online/ppo total_steps=400000", SIDES),
    "distill_pendulum": (
        f"{WINDY} env.world.velocity=false critic_state=true policy=online/distill num_envs=8 total_steps=100000",
        MEMORIES,
    ),
    "distill_legs": (
        "env=quadruped env.proprio=own env.randomize={noise:0.05} critic_state=true policy=online/distill num_envs=16 "
        "policy.rollout_steps=100 policy.epochs=5 total_steps=32000",
        MEMORIES,
    ),
}
"""Name -> words of all its runs, and side -> words of that side."""
TEACHERS = {
    "distill_pendulum": [
        f"train {WINDY} env.teacher_state=true policy=online/ppo total_steps=300000 policy.lr_schedule=linear",
    ],
    "distill_legs": [
        f"collect env=quadruped episodes=100 num_envs=20 out={HOME}/legs.hdf5",
        f"offline data={HOME}/legs.hdf5 env=quadruped policy=offline/bc updates=15000 estimate=0",
    ],
}
"""Arm -> commands that make its teacher, the last one a run."""
JUDGE = "eval_every=0 final_episodes=100 eval_envs=10 video_episodes=0 threads=1"


def run(
    out: str,
    *,
    quick: bool = False,
    arms: tuple[str, ...] = tuple(ARMS),
    seeds: tuple[int, ...] = (0, 1, 2),
    sides: tuple[str, ...] = (),
) -> dict[str, Any]:
    """Train every cell that has no file yet.

    Args:
        out: folder of the files.
        quick: 2,000 steps each.
        arms: of `ARMS`.
        seeds: of training.
        sides: of the arms; none for all.

    Returns:
        A row for each cell: return, success and seconds.
    """
    folder = Path(out)
    for place in (folder, HOME):
        place.mkdir(parents=True, exist_ok=True)
    for seed in seeds:
        for arm in arms:
            words, each = ARMS[arm]
            words += f" policy.teacher={teacher(arm)}" if arm in TEACHERS else ""
            for side, more in each.items():
                path = folder / f"{arm}_{side.replace(' ', '_')}_{seed}.json"
                if not path.exists() and (not sides or side in sides):
                    line = f"train {words} {more} {JUDGE} seed={seed}" + (" total_steps=2000" if quick else "")
                    about = {"arm": arm, "side": side, "seed": seed, "command": f"robot-rl {' '.join(line.split())}"}
                    path.write_text(
                        json.dumps({**about, **train(line), "versions": versions(), "commit": commit()}) + "\n"
                    )
    cells = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    return {
        "rows": [{key: cell[key] for key in ("arm", "side", "seed", "return", "success", "cpu_s")} for cell in cells]
    }


def teacher(arm: str) -> Path:
    """Folder of an arm's teacher, made where it is not there yet."""
    found = list(HOME.glob(f"*/*_{arm}"))
    if not found:
        *before, last = TEACHERS[arm]
        for line in before:
            call(line, "")
        found = [call(f"{last} {JUDGE} seed=0", arm)]
    return found[0]


def call(line: str, name: str) -> Path:
    """Run robot-rl with these words; the folder of the run of that name, or that of all runs."""
    words = [sys.executable, "-m", "robot_rl", *line.split(), f"output={HOME}", *([f"name={name}"] if name else [])]
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return next(HOME.glob(f"*/*_{name}")) if name else HOME


def train(line: str) -> dict[str, Any]:
    """One run: final return and success, seconds."""
    wall, cpu = time.monotonic(), getrusage(RUSAGE_CHILDREN)
    folder = call(line, f"{time.time_ns()}")
    used = getrusage(RUSAGE_CHILDREN)
    summary = json.loads((folder / "evaluation.json").read_text())
    return {
        **{key: summary[key] for key in ("return", "return_std", "success", "episodes", "steps")},
        "wall_s": round(time.monotonic() - wall, 1),
        "cpu_s": round(used.ru_utime + used.ru_stime - cpu.ru_utime - cpu.ru_stime, 1),
    }
