"""Waves of episodes from chosen starts, chunk by chunk: what group-relative learning compares."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from robot_rl.data.seen import StepSample
from robot_rl.policies.vla.interface import ActionChunk, VLAObs
from robot_rl.policies.vla.player import VlaPlanner
from robot_rl.types import Array, Obs, StepEnv


@dataclass(frozen=True)
class Wave:
    """K decisions of N episodes, decisions first.

    Attributes:
        obs: name -> (K, N, ...) what the policy read: "image.<camera>" uint8, "state" its own components.
        goal: N sentences.
        trace: name -> (K, N, ...) what the head needs to score a chunk again.
        logp: (K, N, L) of the chunks when they were drawn.
        value: (K, N).
        executed: (K, N, H) bool, actions of the chunk that ran before the episode ended.
        success: (N,) bool at the end of the episode.
        reward: (K, N) sum of the environment's rewards during the chunk.
        group: (N,) episodes with the same start and sentence.
        steps: environment steps in all.
    """

    obs: dict[str, Tensor]
    goal: list[str]
    trace: dict[str, Tensor]
    logp: Tensor
    value: Tensor
    executed: Tensor
    success: np.ndarray
    reward: np.ndarray
    group: np.ndarray
    steps: int

    @property
    def decisions(self) -> np.ndarray:
        """(N,) decisions of each episode."""
        return self.executed.any(-1).sum(0).cpu().numpy()


def play(
    env: StepEnv,
    planner: VlaPlanner,
    seeds: np.ndarray,
    *,
    generator: torch.Generator,
    expert: Callable[[Obs], Array] | None = None,
    rows: StepSample | None = None,
) -> Wave:
    """One episode per copy of the environment, from the start that its seed names.

    Args:
        env: vector environment; `reset(seed=[...])` puts rows with one seed in one start.
        planner: the policy; with `expert` it only looks.
        seeds: (N,).
        generator: of the draws.
        expert: observations -> actions (N, A) in place of the policy's.
        rows: gets what was acted on and the actions, or None.

    Raises:
        ValueError: the environment does not tell success.
    """
    count, k = env.num_envs, planner.recipe.exec_len
    raw = env.reset(seed=[int(seed) for seed in seeds])[0]
    over, success = np.zeros(count, bool), np.zeros(count, bool)
    goal: list[str] = []
    looks: list[VLAObs] = []
    chunks: list[ActionChunk] = []
    executions: list[Tensor] = []
    gains: list[np.ndarray] = []
    steps = 0
    while not over.all():
        seen, texts = planner.sight(raw, planner.device)
        goal = goal or texts
        chunk = planner.model.act(seen, goal, generator=generator)
        action = planner.to_env(chunk.env_actions).clamp(-1.0, 1.0).cpu().numpy()
        executed, gained = np.zeros((count, planner.recipe.horizon), bool), np.zeros(count, np.float32)
        for j in range(k):
            executed[:, j] = ~over
            steps += int((~over).sum())
            move = action[:, j] if expert is None else np.asarray(expert(raw))
            if rows is not None:
                rows.step(raw, move, ~over)
            raw, reward, terminated, truncated, info = env.step(move)
            if "success" not in info:
                raise ValueError("this environment does not tell success, which group-relative learning compares")
            gained += np.where(over, 0.0, np.asarray(reward))
            ended = (np.asarray(terminated) | np.asarray(truncated)) & ~over
            success = np.where(ended, np.asarray(info["success"]), success)
            over |= ended
            if over.all():
                break
        looks.append(seen)
        chunks.append(chunk)
        executions.append(torch.as_tensor(executed, device=planner.device))
        gains.append(gained)
    obs = {f"image.{name}": torch.stack([x.images[name] for x in looks]) for name in looks[0].images}
    if looks[0].state is not None:
        obs["state"] = torch.stack([x.state for x in looks if x.state is not None])
    return Wave(
        obs=obs,
        goal=goal,
        trace={name: torch.stack([chunk.trace[name] for chunk in chunks]) for name in chunks[0].trace},
        logp=torch.stack([chunk.logp for chunk in chunks]),
        value=torch.stack([chunk.value for chunk in chunks]),
        executed=torch.stack(executions),
        success=success,
        reward=np.stack(gains),
        group=np.unique(seeds, return_inverse=True)[1].astype(np.int64),
        steps=steps,
    )


def moments(obs: dict[str, Tensor], rows: Tensor) -> VLAObs:
    """Some rows of observations (R, ...) as the policy reads them."""
    images = {key.removeprefix("image."): x[rows] for key, x in obs.items() if key.startswith("image.")}
    state = obs["state"][rows] if "state" in obs else None
    return VLAObs(images, state)
