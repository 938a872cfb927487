"""From episodes of a log to what learners read: rewards transformed, good episodes chosen, further columns added."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from robot_rl.types import Episode, LogFacts

REWARDS = ("none", "minus_one", "scale_bias", "return_range")
COLUMNS = {"next_action": "A", "next_action_valid": "1", "return_to_go": "1"}
_EDGE = 1e-5


@dataclass(frozen=True)
class RewardMap:
    """r -> scale r + bias, the same for logged and for later online transitions."""

    scale: float = 1.0
    bias: float = 0.0

    def __call__(self, reward: np.ndarray) -> np.ndarray:
        """(T,) -> (T,) float32."""
        return (reward * self.scale + self.bias).astype(np.float32)


@dataclass(frozen=True)
class Prepared:
    """Episodes ready for a sampler.

    Attributes:
        episodes: with "next_action" (T, A), "next_action_valid" (T,) and "return_to_go" (T,) in `meta["columns"]`.
        facts: for `learner.prepare`.
        reward: the transformation that was applied.
        findings: what was changed or looks wrong, one line each.
        fingerprint: of the logged numbers, so that a run is not resumed on other data.
    """

    episodes: list[Episode]
    facts: LogFacts
    reward: RewardMap
    findings: list[str]
    fingerprint: str


def reward_map(
    episodes: Sequence[Episode], kind: str, *, scale: float = 1.0, bias: float = 0.0
) -> tuple[RewardMap, list[str]]:
    """The transformation by name, and findings.

    Args:
        episodes: the log.
        kind: "none"; "minus_one" (r - 1: AntMaze, with terminals that are success); "scale_bias" (scale r + bias);
            "return_range" (1000 r / (largest - smallest return), over complete episodes; locomotion).
        scale: of "scale_bias".
        bias: of "scale_bias".

    Raises:
        ValueError: unknown name.

    Source: CORL iql.py (return_range, minus_one), cql.py (scale and bias).
    """
    if kind not in REWARDS:
        raise ValueError(f"reward is '{kind}', expected one of {', '.join(REWARDS)}")
    if kind == "none":
        return RewardMap(), []
    if kind == "minus_one":
        return RewardMap(1.0, -1.0), []
    if kind == "scale_bias":
        return RewardMap(scale, bias), []
    whole = [e for e in episodes if e.terminated or e.truncated] or list(episodes)
    returns = np.array([float(e.reward.sum(dtype=np.float64)) for e in whole])
    span = float(returns.max() - returns.min())
    if span == 0.0:
        return RewardMap(), ["all complete episodes have the same return: reward=return_range leaves rewards unchanged"]
    return RewardMap(1000.0 / span), []


def top_episodes(episodes: Sequence[Episode], fraction: float, *, unit: str = "episodes") -> list[Episode]:
    """The episodes of highest undiscounted return, in their original order; ties go to the earlier one.

    Args:
        episodes: the log.
        fraction: in (0, 1].
        unit: "episodes": max(1, floor(fraction E)) of them; "steps": the best until `fraction` of all steps is reached.

    Raises:
        ValueError: fraction or unit out of range.

    Source: Chen et al., Decision Transformer (%BC); "steps" is the rule of its code.
    """
    if not 0.0 < fraction <= 1.0 or unit not in ("episodes", "steps"):
        raise ValueError(f"top_fraction is {fraction} of {unit}, expected (0, 1] of 'episodes' or 'steps'")
    if fraction == 1.0:
        return list(episodes)
    returns = np.array([float(e.reward.sum(dtype=np.float64)) for e in episodes])
    order = np.argsort(-returns, kind="stable")
    if unit == "episodes":
        count = max(1, int(np.floor(fraction * len(episodes) + 1e-9)))
    else:
        steps = np.cumsum([len(episodes[i]) for i in order])
        count = int(np.searchsorted(steps, fraction * steps[-1])) + 1
    return [episodes[i] for i in sorted(order[:count])]


def return_to_go(episode: Episode, gamma: float, *, failure: float | None = None) -> np.ndarray:
    """(T,) discounted sum of the rewards from each step to the end of the recording.

    Args:
        episode: rewards already transformed.
        gamma: discount per step.
        failure: the reward of a step without success in a sparse task; an episode of nothing else is worth
            failure / (1 - gamma) at every step, as if it went on forever.

    Source: Nakamoto et al., Cal-QL, and its code (sparse episodes).
    """
    reward = episode.reward.astype(np.float64)
    if failure is not None and failure < 0 and bool((episode.reward == np.float32(failure)).all()):
        return np.full(len(reward), failure / (1.0 - gamma), np.float32)
    out = np.empty(len(reward))
    total = 0.0
    for t in range(len(reward) - 1, -1, -1):
        total = reward[t] + gamma * total
        out[t] = total
    return out.astype(np.float32)


def next_actions(episode: Episode) -> tuple[np.ndarray, np.ndarray]:
    """(T, A) action of the next step and (T,) 1.0 where there is one in the same episode."""
    after = np.concatenate((episode.action[1:], np.zeros_like(episode.action[:1])))
    valid = np.ones(len(episode), np.float32)
    valid[-1:] = 0.0
    return after, valid


def prepare(
    episodes: Sequence[Episode],
    *,
    gamma: float,
    reward: str = "none",
    reward_scale: float = 1.0,
    reward_bias: float = 0.0,
    sparse: bool = False,
    top_fraction: float = 1.0,
    top_unit: str = "episodes",
    action_clip: bool = False,
) -> Prepared:
    """Everything between a reader and a sampler.

    Args:
        episodes: with a vector observation "state".
        gamma: discount per step.
        reward: name of the transformation; see `reward_map`.
        reward_scale: of reward="scale_bias".
        reward_bias: of reward="scale_bias".
        sparse: the task gives one reward on success and another everywhere else; see `return_to_go`.
        top_fraction: keep only the best share of the episodes.
        top_unit: "episodes" or "steps".
        action_clip: clip actions to [-1, 1] where they exceed it.

    Raises:
        ValueError: no steps, actions outside [-1, 1], or an option out of range.
    """
    episodes = [e for e in episodes if len(e)]
    if not episodes:
        raise ValueError("the log holds no step; look at it with robot-rl data info")
    if "state" not in episodes[0].obs:
        raise ValueError(f"the log has observations {sorted(episodes[0].obs)}, expected one vector called 'state'")
    mark = hashlib.blake2b(digest_size=16)
    for e in episodes:
        mark.update(np.ascontiguousarray(e.action).tobytes() + np.ascontiguousarray(e.reward).tobytes())
    findings: list[str] = []
    episodes = _bounded(episodes, action_clip, findings)
    mapping, more = reward_map(episodes, reward, scale=reward_scale, bias=reward_bias)
    findings += more
    if top_fraction < 1.0:
        count = len(episodes)
        episodes = top_episodes(episodes, top_fraction, unit=top_unit)
        findings.append(f"{len(episodes)} of {count} episodes kept (top_fraction={top_fraction:g} of {top_unit})")
    episodes = [replace(e, reward=mapping(e.reward)) for e in episodes]
    rewards = np.concatenate([e.reward for e in episodes])
    if rewards.min() == rewards.max():
        findings.append(f"every reward is {rewards[0]:g}: value learning has nothing to learn from")
    failure = float(rewards.min()) if sparse else None
    done = []
    for e in episodes:
        after, valid = next_actions(e)
        columns = {
            **e.meta.get("columns", {}),
            "next_action": after,
            "next_action_valid": valid,
            "return_to_go": return_to_go(e, gamma, failure=failure),
        }
        done.append(replace(e, meta={**e.meta, "columns": columns}))
    mean, std = _moments(done)
    facts = LogFacts(
        mean, std, float(rewards.min()), float(rewards.max()), gamma, max(len(episode) for episode in done)
    )
    return Prepared(done, facts, mapping, findings, mark.hexdigest())


def _bounded(episodes: list[Episode], clip: bool, findings: list[str]) -> list[Episode]:
    worst = max(float(np.abs(e.action).max()) for e in episodes)
    if worst <= 1.0 + _EDGE:
        return episodes
    share = float(np.mean(np.concatenate([(np.abs(e.action) > 1.0).ravel() for e in episodes])))
    if not clip:
        raise ValueError(
            f"{share:.1%} of the action components lie outside [-1, 1], worst {worst:.3g}; add action_clip=true if "
            "the robot clipped them anyway, or rescale the log first"
        )
    findings.append(f"{share:.1%} of the action components clipped to [-1, 1], worst was {worst:.3g}")
    return [replace(e, action=np.clip(e.action, -1.0, 1.0)) for e in episodes]


def _moments(episodes: Sequence[Episode]) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of the observations that actions were taken in, float64."""
    count = sum(len(e) for e in episodes)
    mean = sum(e.obs["state"][:-1].sum(0, dtype=np.float64) for e in episodes) / count
    square = sum(np.square(e.obs["state"][:-1] - mean).sum(0) for e in episodes)
    return np.asarray(mean), np.sqrt(np.asarray(square) / count)
