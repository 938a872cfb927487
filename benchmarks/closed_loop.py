"""A critic as the only reward of a whole run, beside the true reward and a critic that was shown successes alone.

For each reward and seed: the same scripted episodes, labelled by that reward, give a policy to begin with (IQL, few
updates); it goes on online with that reward alone. Each of the two sentences asks for a block that lies further from
its plate than another block does, so a reward that does not look at which block it is pulls away from what was asked.
What is trained is then filmed in the plain world: what the simulator says, what the critic says, and whether another
goal than the one that was asked is met.

Every cell is made by verbs that anyone can call, and a cell with a file is skipped, so the bench can be interrupted.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from robot_rl import child
from robot_rl.checkpoint import write_json
from robot_rl.curves import plot
from robot_rl.data import formats
from robot_rl.types import Episode
from robot_rl.version import VERSION

REWARDS = ("truth", "critic", "success_only")
_WORLD = ("env=tabletop", "env.world.layout=fixed", "env.world.hand_spread=0.3", "env.world.seconds=3.5")
_CAMERA = ("env.cameras=[front]", "env.camera_size=[48,48]", "env.camera_every=2")
_START = (
    *("policy=offline/iql", "policy.beta=10", "policy.hidden=[128,128]", "policy.lr=1e-3", "policy.actor_decay=0"),
    *("policy.matmul=bf16", "eval_every=0", "final_episodes=100", "estimate=0", "checkpoint_every=0"),
)
_ONLINE = (
    *("log_share=0.25", "num_envs=8", "updates_per_step=1", "log_every=500", "eval_every=2000", "eval_episodes=48"),
    *("eval_envs=24", "final_episodes=100", "checkpoint_every=2000", "keep_checkpoints=1"),
)
_QUIET = ("video_episodes=0", "track.tensorboard=false")
_ON_PLATE, _UNIT = 0.035, 0.1  # m: a block's centre this near a plate's is on it; one unit of the state's vectors
_BLOCKS, _PLATES = ("red", "green", "blue"), ("yellow", "purple")


def run(
    out: str,
    quick: bool = False,
    *,
    critics: Sequence[str],
    success_only: Sequence[str] = (),
    only: Sequence[str] = ("green on yellow", "blue on purple"),
    rewards: Sequence[str] = REWARDS,
    episodes: int = 96,
    updates: int = 2000,
    steps: int = 12_000,
    gamma: float = 0.97,
    film: int = 100,
    minutes: float | None = None,
) -> dict[str, Any]:
    """Label, begin offline, go on online, film, compare; one seed for each critic.

    Args:
        out: folder of logs, runs and results.
        quick: a tenth of updates and steps, one seed.
        critics: runs of `robot-rl critic train`; the i-th pays in seed i.
        success_only: the same with `critic=success_only`.
        only: goals that are asked, "<block> on <plate>".
        rewards: which of `REWARDS`; "success_only" needs `success_only`.
        episodes: scripted ones, seven in ten of them wrong on purpose.
        updates: offline, before the first step online.
        steps: online; 0 stops after the offline part and judges that.
        gamma: discount per control step.
        film: episodes in which the trained policy is judged, beside the 100 of its own evaluation.
        minutes: begin no cell after so long.

    Returns:
        {"rows": one per reward and seed: before (success after the offline start), success (100 episodes at the end),
        each sentence's success, called done (by the critic), another goal met (in the filmed ones); "share": mean
        success with each reward over that with the true one; "open": how many cells are missing}.

    Raises:
        ValueError: an unknown reward, or critics are missing.
        RuntimeError: a verb failed.
    """
    unknown = [name for name in rewards if name not in REWARDS]
    if unknown:
        raise ValueError(f"unknown reward {', '.join(unknown)}; expected some of {', '.join(REWARDS)}")
    if not critics or ("success_only" in rewards and len(success_only) < len(critics)):
        raise ValueError(
            "give runs of robot-rl critic train as +critics=[<run of seed 0>,...] and as many of "
            "critic=success_only as +success_only=[...], or +rewards=[truth,critic] without those"
        )
    seeds = range(1 if quick else len(critics))
    if quick:
        updates, steps = updates // 10, steps // 10
    folder, begin, missing = Path(out), time.monotonic(), 0
    folder.mkdir(parents=True, exist_ok=True)
    world = (*_WORLD, f"env.world.only=[{','.join(only)}]")
    judges = {"truth": critics, "critic": critics, "success_only": success_only}
    for seed in seeds:
        for reward in rewards:
            cell = folder / f"{reward}_s{seed}.json"
            if cell.exists():
                continue
            if minutes is not None and time.monotonic() - begin > 60.0 * minutes:
                missing += 1
                continue
            judge = str(Path(judges[reward][seed]).resolve())
            log = _log(folder, world, reward, seed, judge, episodes, gamma)
            own = [f"seed={seed}", f"gamma={gamma}", f"output={folder}", *world, *_QUIET]
            start = _offline(folder, f"start_{reward}_s{seed}", [f"data={log}", *_START, f"updates={updates}", *own])
            pays = [] if reward == "truth" else ["rewarder=critic", f"rewarder.judge={judge}", "rewarder.on_done=pay"]
            last = start
            if steps:
                online = [f"init={start}", f"log={log}", *_ONLINE, f"total_steps={steps}", *pays, *own]
                last = _online(folder, f"{reward}_s{seed}", online)
            filmed = _film(folder, f"{reward}_s{seed}", world, last, judge, film, seed, gamma)
            numbers = {"reward": reward, "seed": seed, "version": VERSION, **_numbers(start, last), **filmed}
            write_json(cell, numbers)
    result = summarise(folder)
    _picture(folder)
    return {**result, "open": missing}


def _call(folder: Path, *arguments: str) -> None:
    command = child.command("robot_rl", *arguments)
    done = subprocess.run(command, capture_output=True, text=True)
    with (folder / "commands.log").open("a") as file:
        file.write(f"robot-rl {' '.join(arguments)}\n{done.stdout}{done.stderr}\n")
    if done.returncode:
        raise RuntimeError(f"robot-rl {' '.join(arguments)} failed:\n{done.stderr[-1500:]}")


def _log(folder: Path, world: Sequence[str], reward: str, seed: int, judge: str, episodes: int, gamma: float) -> Path:
    """The scripted episodes with this reward; the same episodes for all."""
    scripted = [*world, f"episodes={episodes}", "num_envs=24", "noise=0.1", "mistakes=0.7", "seed=1"]
    if reward == "truth":
        path = folder / "log_truth"
        if not path.exists():
            _call(folder, "collect", *scripted, f"out={path}")
        return path
    filmed, path = folder / "log", folder / f"log_{reward}_s{seed}"
    if not filmed.exists():
        _call(folder, "collect", *scripted, *_CAMERA, f"out={filmed}")
    if not path.exists():
        _label(folder, judge, filmed, path, gamma)
    return path


def _label(folder: Path, judge: str, data: Path, out: Path, gamma: float) -> None:
    options = ("stride=2", "pictures=false", f"gamma={gamma}")
    _call(folder, "critic", "label", f"path={judge}", f"data={data}", f"out={out}", *options)


def _offline(folder: Path, name: str, options: list[str]) -> Path:
    if not list(folder.glob(f"offline/*_{name}/evaluation.json")):
        _call(folder, "offline", *options, f"name={name}")
    return sorted(folder.glob(f"offline/*_{name}/evaluation.json"))[-1].parent


def _online(folder: Path, name: str, options: list[str]) -> Path:
    """Begin or continue; the finished run."""
    if not list(folder.glob(f"train/*_{name}/evaluation.json")):
        begun = sorted(path.parent for path in folder.glob(f"train/*_{name}/checkpoints") if any(path.iterdir()))
        _call(folder, "train", *([f"resume={begun[-1]}"] if begun else [*options, f"name={name}"]))
    return sorted(folder.glob(f"train/*_{name}/evaluation.json"))[-1].parent


def _film(
    folder: Path, name: str, world: Sequence[str], last: Path, judge: str, film: int, seed: int, gamma: float
) -> dict[str, Any]:
    """The trained policy in the plain world, and what the critic says of the film."""
    filmed, judged = folder / f"film_{name}", folder / f"film_{name}_judged"
    if not filmed.exists():
        options = (f"path={last}", f"episodes={film}", "num_envs=20", "deterministic=true", f"seed={100 + seed}")
        _call(folder, "collect", *world, *_CAMERA, *options, f"out={filmed}")
    if not judged.exists():
        _label(folder, judge, filmed, judged, gamma)
    return judged_film(formats.load(judged).episodes)


def judged_film(episodes: Sequence[Episode]) -> dict[str, Any]:
    """What became of filmed episodes.

    Args:
        episodes: with the state's components named in the interface, "instruction" and "success" in `meta`, and the
            column "critic_done".

    Returns:
        "sentences": {sentence: [successes, episodes]}; "called done", "another goal met": shares of all. Another goal
        is met where a block lies on a plate that are not the two of the sentence, and the sentence's do not.
    """
    sentences: dict[str, list[int]] = {}
    called, other = [], []
    for episode in episodes:
        asked, won = str(episode.meta["instruction"]), bool(episode.meta["success"])
        counts = sentences.setdefault(asked, [0, 0])
        counts[0], counts[1] = counts[0] + won, counts[1] + 1
        called.append(float(episode.meta["columns"]["critic_done"][-1]) > 0.5)
        other.append(not won and any(pair not in asked for pair in on_plates(episode)))
    return {
        "sentences": sentences,
        "called done": float(np.mean(called)),
        "another goal met": float(np.mean(other)),
    }


def on_plates(episode: Episode) -> list[str]:
    """Which block lies on which plate at the end, as "<block> block on the <plate> plate"."""
    io = episode.meta["io"]
    names = list(io["obs_names"] if isinstance(io, dict) else io.obs_names)
    last = dict(zip(names, np.asarray(episode.obs["state"][-1], np.float64)))
    found = []
    for block in _BLOCKS:
        for plate in _PLATES:
            away = [last[f"tip_to_{block}_{axis}"] - last[f"tip_to_{plate}_plate_{axis}"] for axis in "xy"]
            if np.hypot(*away) * _UNIT < _ON_PLATE:
                found.append(f"{block} block on the {plate} plate")
    return found


def _numbers(start: Path, last: Path) -> dict[str, Any]:
    end = json.loads((last / "evaluation.json").read_text())
    before = json.loads((start / "evaluation.json").read_text())["success"]
    rows = [json.loads(line) for line in (last / "metrics.jsonl").read_text().splitlines()]
    curve = [[0, before], *([row["step"], row["eval/success"]] for row in rows if "eval/success" in row)]
    keys = ("rollout/success", "rollout/critic_success")
    own = {key: [[row["step"], row[key]] for row in rows if key in row] for key in keys}
    return {
        "before": before,
        "success": end["success"],
        "steps": end.get("steps", 0),
        "curve": curve,
        "rollout": own,
        "cpu_seconds": max(row.get("time/train_cpu_s", 0.0) for row in rows),
    }


def _cells(folder: Path) -> list[dict[str, Any]]:
    found = [json.loads(path.read_text()) for path in folder.glob("*_s[0-9]*.json")]
    return sorted(found, key=lambda cell: (REWARDS.index(cell["reward"]), cell["seed"]))


def summarise(folder: Path) -> dict[str, Any]:
    """The rows of the table, and each reward's mean success as a share of that with the true reward."""
    rows, means = [], {}
    for cell in _cells(folder):
        rows.append(
            {
                "reward": cell["reward"],
                "seed": cell["seed"],
                "before": cell["before"],
                "success": cell["success"],
                **{asked: won / max(count, 1) for asked, (won, count) in sorted(cell["sentences"].items())},
                "called done": cell["called done"],
                "another goal met": cell["another goal met"],
            }
        )
        means.setdefault(cell["reward"], []).append(cell["success"])
    truth = float(np.mean(means["truth"])) if "truth" in means else 0.0
    share = {name: float(np.mean(values)) / truth for name, values in means.items() if truth > 0 and name != "truth"}
    return {"rows": rows, "share": share}


def _picture(folder: Path) -> None:
    """Success over steps with each reward; beside it what a success-only critic believed of its own run."""
    cells = _cells(folder)
    panels: dict[str, dict[str, list[Any]]] = {"success in the simulator": {}, "episodes of training": {}}
    for cell in cells:
        line = tuple(zip(*cell["curve"]))
        panels["success in the simulator"].setdefault(cell["reward"], []).append(line)
        if cell["reward"] == "truth" or not cell["steps"]:
            continue
        for key, what in (("rollout/critic_success", "as it says"), ("rollout/success", "in truth")):
            if cell["rollout"][key]:
                line = tuple(zip(*cell["rollout"][key]))
                panels["episodes of training"].setdefault(f"{cell['reward']}: {what}", []).append(line)
    plot(folder / "closed_loop.png", {k: v for k, v in panels.items() if v}, x="steps", y="success")
