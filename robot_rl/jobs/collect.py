"""Collect episodes with any policy or a world's scripted expert."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from robot_rl.data.episode import EpisodeBuilder
from robot_rl.loops.evaluate import evaluate
from robot_rl.types import Action, Episode, Obs, Policy, Step


class ExpertPolicy:
    """The scripted expert of a world as a `Policy`, with optional exploration noise."""

    def __init__(self, env: Any, *, noise: float = 0.0, seed: int = 0) -> None:
        """Wrap `env.expert`.

        Args:
            env: environment whose world has a scripted expert.
            noise: standard deviation of Gaussian noise on actions in [-1, 1].
            seed: of the noise.

        Raises:
            ValueError: the environment has no scripted expert.
        """
        if not hasattr(env, "expert"):
            raise ValueError(
                "this environment has no scripted expert; choose one of our worlds (env=reach, env=pick ...) "
                "or collect with a trained policy: path=runs/train/<run>"
            )
        self.io = env.io
        self._expert, self._noise, self._rng = env.expert, noise, np.random.default_rng(seed)

    def reset(self, rows: Any = None) -> None:
        """Nothing to forget: experts are memoryless."""

    def act(self, obs: Obs, *, deterministic: bool = False) -> Action:
        """The expert's action, plus noise unless `deterministic`."""
        action = np.asarray(self._expert(obs), np.float32)
        if self._noise and not deterministic:
            action = action + self._rng.normal(0.0, self._noise, action.shape).astype(np.float32)
        return Action(value=np.clip(action, -1.0, 1.0))


def keep_steps(
    env: Any,
    policy: Policy,
    *,
    episodes: int,
    seed: int,
    only_success: bool = False,
    deterministic: bool = False,
    on_episode: Callable[[int], object] | None = None,
    max_rounds: int = 20,
) -> list[Episode]:
    """Run a policy until `episodes` episodes are kept.

    Args:
        env: vector environment.
        policy: what acts.
        episodes: how many to keep.
        seed: of the first reset.
        only_success: keep only episodes that end in success.
        deterministic: the policy's mode instead of samples.
        on_episode: called with the number of kept episodes.
        max_rounds: rounds of `episodes` attempts before giving up.

    Raises:
        RuntimeError: too few successes in all rounds.
    """
    kept: list[Episode] = []
    tried = 0
    for round_ in range(max_rounds):
        finished: list[Episode] = []
        builders: list[EpisodeBuilder] = []

        def store(row: Step, builders: list[EpisodeBuilder] = builders, finished: list[Episode] = finished) -> None:
            if not builders:  # not every environment knows success
                columns = ("success",) if "success" in row.info else ()
                builders.append(EpisodeBuilder(env.num_envs, meta={"io": env.io.to_dict()}, columns=columns))
            done = builders[0].add(row)
            success = row.info.get("success")  # some environments say it at the end of an episode only
            ended = np.flatnonzero((row.terminated | row.truncated) & row.valid)
            known = [None] * len(done) if success is None or len(ended) != len(done) else [success[i] for i in ended]
            finished.extend(_finished(episode, env.io.control_hz, flag) for episode, flag in zip(done, known))

        wanted = episodes - len(kept)
        evaluate(env, policy, episodes=wanted, seed=seed + round_, deterministic=deterministic, on_step=store)
        tried += len(finished)
        for episode in finished:
            if len(kept) < episodes and (not only_success or episode.meta.get("success", False)):
                kept.append(episode)
                if on_episode is not None:
                    on_episode(len(kept))
        if len(kept) >= episodes:
            return kept
    raise RuntimeError(f"only {len(kept)} of {tried} episodes ended in success, wanted {episodes}; ask for fewer")


def _finished(episode: Episode, control_hz: float, success: Any = None) -> Episode:
    """Stamps in seconds, and success at the end of the episode in `meta`."""
    meta = dict(episode.meta)
    column = meta.get("columns", {}).get("success")
    if column is not None:
        meta["success"] = bool(column[-1])
    elif success is not None:
        meta["success"] = bool(success)
    return replace(episode, stamp=episode.stamp / control_hz, meta=meta)
