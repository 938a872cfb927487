"""Frequency-averaged score: how much return a policy keeps when it decides less often."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from robot_rl.chunks import ChunkedPolicy, Execution, Held, Horizons
from robot_rl.data.units import InUnits
from robot_rl.loops.evaluate import evaluate
from robot_rl.types import Array, Obs, Policy, PolicyParts, StateDict, StepEnv

INTERVALS = (1, *range(2, 31, 2))
"""1, 2, 4, ..., 30 control steps per decision: 16 lengths."""

SCALES: dict[str, tuple[float, float]] = {
    "Pendulum": (1350.0, 1550.0),
    "LunarLanderContinuous": (300.0, 0.0),
    "Hopper": (3600.0, 0.0),
    "Walker2d": (5000.0, 0.0),
    "Ant": (6500.0, 0.0),
    "HalfCheetah": (17000.0, 0.0),
    "Humanoid": (10500.0, 0.0),
    "InvertedPendulum": (1000.0, 0.0),
    "InvertedDoublePendulum": (9400.0, 0.0),
    "Reacher": (60.0, 65.0),
    "Swimmer": (350.0, 0.0),
}
"""Task -> (largest return, offset added to returns). Source: dee0512/Sequence-Reinforcement-Learning, gym v2 tasks."""


@dataclass
class Fas:
    """What `frequency_averaged_score` measured.

    Attributes:
        intervals: control steps per decision.
        returns: mean return at each.
        fas: trapezoid of (return + offset) over the intervals, by (largest return * 30).
        fas_norm: the same by (largest return * width of the intervals): 1 for the largest return everywhere.
        held: whether an action was held between decisions, for lack of a sequence.
        episode_returns: returns of every episode at each interval.
    """

    intervals: list[int]
    returns: list[float]
    fas: float
    fas_norm: float
    held: bool
    episode_returns: list[list[float]] = field(default_factory=list)


def score(returns: Sequence[float], largest: float, offset: float = 0.0) -> tuple[float, float]:
    """The score of mean returns at `INTERVALS`, as published and normalised.

    The published divisor is 30 although the intervals span 29, so that the largest return everywhere gives 0.9667;
    nothing is clipped: scores below 0 and above 1 exist.

    Args:
        returns: (16,) mean returns.
        largest: of the task.
        offset: added to every return.

    Raises:
        ValueError: wrong number of returns, or a largest return of 0 or less.
    """
    if len(returns) != len(INTERVALS):
        raise ValueError(f"got {len(returns)} returns, expected {len(INTERVALS)}: one per interval {INTERVALS}")
    if largest <= 0:
        raise ValueError(f"the task's largest return is {largest}, expected a positive number")
    y, x = np.asarray(returns, np.float64) + offset, np.asarray(INTERVALS, np.float64)
    area = float(((y[1:] + y[:-1]) * 0.5 * np.diff(x)).sum())
    return area / (largest * 30.0), area / (largest * (x[-1] - x[0]))


def at_interval(policy: Policy, steps: int) -> tuple[Policy, bool]:
    """The policy asked every `steps` ticks, and whether it holds its action in between.

    A policy that can plan any number of steps does; a chunk policy plays its chunk and holds the last action behind
    its end; any other holds its action. One in other units than the environment's stays in its own.
    """
    if isinstance(policy, InUnits):
        played, holds = at_interval(policy.policy, steps)
        return policy.around(played), holds
    if policy.parts.at_interval is not None:
        return policy.parts.at_interval(steps), False
    if isinstance(policy, ChunkedPolicy):
        own = policy.execution.horizons.pred
        return ChunkedPolicy(policy.io, _Stretched(policy.planner, steps), _open(policy, steps)), steps > own
    return _Asked(policy, steps), steps > 1


def _open(policy: Policy, steps: int) -> Execution:
    return Execution(Horizons(steps, steps, steps), policy.io.action_dim)


class _Asked(ChunkedPolicy):
    """A policy of single ticks whose action is held; it hears of new episodes and of what was earned."""

    def __init__(self, policy: Policy, steps: int) -> None:
        self._asked = policy
        super().__init__(policy.io, Held(policy, steps), _open(policy, steps))

    @property
    def parts(self) -> PolicyParts:
        return replace(super().parts, earned=self._asked.parts.earned)

    def reset(self, rows: Array | None = None) -> None:
        super().reset(rows)
        self._asked.reset(rows)


class _Stretched:
    """A planner whose chunks are cut, or continued with their last action, to a length."""

    def __init__(self, planner: Any, steps: int) -> None:
        self._planner, self._steps = planner, steps

    def plan(self, obs: Obs, *, deterministic: bool, context: dict[str, np.ndarray]) -> Any:
        """The planner's chunk, `steps` long."""
        plan = self._planner.plan(obs, deterministic=deterministic, context=context)
        chunk = np.asarray(plan.chunk)[:, : self._steps]
        more = self._steps - chunk.shape[1]
        return replace(plan, chunk=np.concatenate([chunk, chunk[:, -1:].repeat(more, 1)], 1) if more else chunk)

    def state_dict(self) -> StateDict:
        """The planner's."""
        return self._planner.state_dict()

    def load_state_dict(self, state: StateDict, /) -> None:
        """Inverse of `state_dict`."""
        self._planner.load_state_dict(state)


def frequency_averaged_score(
    env: StepEnv,
    policy: Policy,
    *,
    largest: float,
    offset: float = 0.0,
    episodes: int = 10,
    seed: int = 10_000,
    on_interval: Callable[[int], object] | None = None,
) -> Fas:
    """Evaluate a policy at every interval, mean actions, open loop between decisions.

    Args:
        env: vector environment of N copies with `.io`.
        policy: what acts.
        largest: return that counts as 1; see `SCALES`.
        offset: added to returns.
        episodes: per interval.
        seed: of the resets, the same at every interval.
        on_interval: called with each interval when it is done.

    Raises:
        ValueError: a policy that remembers, and several copies, which would be asked apart from each other.

    Source: Patel and Siegelmann, Overcoming Slow Decision Frequencies in Continuous Control (FAS; 10 episodes).
    """
    if policy.parts.remembers and env.num_envs > 1:
        raise ValueError(
            f"{type(policy).__name__} remembers for all copies at once, and {env.num_envs} copies whose episodes end "
            "apart are asked apart; use num_envs=1"
        )
    means, every, held = [], [], False
    for steps in INTERVALS:
        played, holds = at_interval(policy, steps)
        held = held or holds
        returns = evaluate(env, played, episodes=episodes, seed=seed).returns
        means.append(float(np.mean(returns)))
        every.append(returns)
        if on_interval is not None:
            on_interval(steps)
    plain, norm = score(means, largest, offset)
    return Fas(list(INTERVALS), means, plain, norm, held, every)
