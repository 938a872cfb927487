"""What a policy of `encoder=selftrained` or `robot` sees, against the truth, and what looking and learning cost.

The policy drives fresh episodes by itself. Distances are of the points that its method learns from: the object as it
looks now, the goal as the running estimate has it. On `insert` they are measured across the hole, where the peg's end
is within 6 mm of its axis.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from omegaconf import OmegaConf

from robot_rl import build, checkpoint
from robot_rl.policies.encoders.points import places_of
from robot_rl.types import Transitions
from robot_rl.verbs.build import learner_factory, load_policy
from robot_rl.verbs.reading import plain, stored_config

NEAR = 0.006
"""Metres from the hole's axis within which its distance counts."""


def run(path: str = "", episodes: int = 20, seed: int = 5000, quick: bool = False) -> dict[str, Any]:
    """Drive, look, compare.

    Args:
        path: run folder of `robot-rl hil encoder=…`, env=pick, insert or reach.
        episodes: driven.
        seed: of the first; the next ones count up.
        quick: 3 episodes.

    Returns:
        {"rows": one row: successes, median and 90th percentile of each distance, ms of processor time per look and
        action, and updates per second of processor time at the run's batch size}.

    Raises:
        CheckpointError: no run there.
    """
    torch.set_num_threads(1)
    folder = checkpoint.find(Path(path))
    cfg = stored_config(folder)
    env = build.make("engine", plain(cfg.env), num_envs=1, seed=seed, device="cpu")
    policy = load_policy(OmegaConf.create({"device": "cpu"}), cfg, folder)
    found: dict[str, list[float]] = {}
    spent, won, count = [], 0, min(episodes, 3) if quick else episodes
    for number in range(count):
        obs, _ = env.reset(seed=seed + number)
        policy.reset()
        for _ in range(env.world.episode_steps):
            begun = time.process_time()
            action = policy.act(obs, deterministic=True)
            spent.append(time.process_time() - begun)
            points = cfg.policy.encoder.name in ("selftrained", "robot")  # others see no named points
            for name, far in (distances(env, obs, np.asarray(action.extras["sight"][0])) if points else {}).items():
                found.setdefault(name, []).append(far)
            obs, _, _, truncated, info = env.step(action.value)
            won += bool(info["success"][0])
            if info["success"][0] or truncated[0]:
                break
    row: dict[str, Any] = {"run": Path(path).name, "successes": f"{won} of {count}"}
    for name, values in found.items():
        row |= {name: float(np.median(values)), f"{name}, p90": float(np.percentile(values, 90))}
    learner = learner_factory(OmegaConf.merge(cfg, {"device": "cpu"}))(checkpoint.read_io(folder))  # type: ignore[arg-type]
    return {"rows": [{**row, "act_ms": 1e3 * float(np.median(spent)), "updates_per_s": speed(learner, quick)}]}


def distances(env: Any, obs: dict[str, np.ndarray], sight: np.ndarray) -> dict[str, float]:
    """How far what was seen (W,) is from what is, in mm and mrad."""
    places, marks = places_of(env.io), {key: value[0] for key, value in env.world.landmarks(env._view).items()}
    first = 4 * len(places.names)  # the running estimate of the goal is behind what is seen now
    goal = marks["goal"]
    if not places.turns:
        out = {"goal_mm": 1e3 * float(np.linalg.norm(sight[first : first + 3] - goal[:3]))}
        if places.grips:
            out["object_mm"] = 1e3 * float(np.linalg.norm(sight[:3] - marks["object"][:3]))
        return out
    if np.linalg.norm(obs["tool"][0, :2] - goal[:2]) > NEAR:
        return {}
    hole, before, behind = sight[first : first + 9].reshape(3, 3)
    along = before - behind
    wrong = math.remainder(math.atan2(along[1], along[0]) - goal[3], 2.0 * math.pi)
    return {"hole_mm": 1e3 * float(np.linalg.norm(hole[:2] - goal[:2])), "turn_mrad": 1e3 * abs(wrong)}


class _Frames:
    """Frames that nobody looks at again."""

    encoded, unseen = 0, False


def speed(learner: Any, quick: bool) -> float:
    """Updates per second of processor time on random rows."""
    rows, actions = learner.need.rows or 256, learner.io.action_dim
    shapes = {"state": learner.io.obs["state"][0], "tool": (4,), "sight": (learner.need.sight,)}

    def batches() -> Iterator[Transitions]:
        off = torch.zeros(rows, dtype=torch.bool)
        while True:
            obs, after = ({key: torch.rand(rows, *shape) + 0.1 for key, shape in shapes.items()} for _ in range(2))
            yield Transitions(
                obs=obs,
                action=torch.rand(rows, actions) * 2.0 - 1.0,
                reward=torch.zeros(rows),
                discount=torch.full((rows,), 0.97),
                next_obs=after,
                terminated=off,
                truncated=off,
                intervened=~off,
                mask=~off,
                extras={"imitate": torch.ones(rows), "grip_penalty": torch.zeros(rows)},
            )

    learner.take_frames(_Frames())
    given, count = batches(), 20 if quick else 100
    for _ in range(3):
        learner.update(given)
    begun = time.process_time()
    for _ in range(count):
        learner.update(given)
    return count / (time.process_time() - begun)
