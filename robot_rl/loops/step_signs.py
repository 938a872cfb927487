"""What steps tell about a run that does not learn: the reward's size and makeup, actions, observations, success.

A trace of the newest steps of a few environments is kept; its figures are read with the other metrics, from which
`robot_rl.diagnosis` tells causes.
"""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

import numpy as np
import torch

from robot_rl.types import Metrics, StateDict, Step

ROWS = 4
"""Environments that are traced, the first ones."""
LENGTH, SHORTEST = 1000, 200
"""Steps that are kept, and how many transitions a reading needs; with fewer it waits for more."""
LATE = (2, 4, 8, 16, 32)
"""Steps after which a reward is looked for; one step before is where many tasks read the state that they pay for."""
BLOCK = 50
"""Rewards that a fit is made on, or tested on, by turns."""
TAILS = (5, 95)
"""Percentiles at which rewards are cut where a fit is to tell those of most steps."""
EDGE = 0.99
"""From here on an action counts as at its limit."""
CHOICES = 20
"""A component of the action that took no more values may be a choice."""
TELLS = 0.02
"""Share of a variance that something has to tell of steps that it was not fitted to."""
VALUES, PAID = 20, 5
"""An observation that took fewer values is a flag or a count, a reward is sparse: their extremes are no limits."""


class _Traced(NamedTuple):
    """Of T steps of K environments: action (T, K, A), next_obs (T, K, S), the others (T, K)."""

    action: np.ndarray
    next_obs: np.ndarray
    reward: np.ndarray
    terminated: np.ndarray
    over: np.ndarray
    success: np.ndarray


class StepSigns:
    """Figures `steps/<name>` of the steps since the last reading; of vectors "state" in main memory only.

    - reward, reward_spread, reward_low, reward_high: of a step, in the environment's units.
    - reward_dense: 1 where many values occur; reward_at_edge: then the share of steps that were paid exactly the most,
      or exactly the least, else 0.
    - fit: share of the reward's variance that a quadratic form of the action and of where it led explains on steps that
      it was not fitted to, or one of where it began and of the change as well, of the reward without its tails.
    - fit_late, fit_now, late: the former for what was done some of `LATE` steps before, for the step itself among the
      same rewards, and how many steps before; those where the former gains most.
    - smooth: correlation of a reward with the one before it.
    - action_edge, action_spread: share of actions at their limits, where actions are numbers (the first and the last of
      some choices are no limits); the least deviation of a component.
    - idle_actions: components that neither an observation nor the reward nor an end answers to, of `actions`. What a
      number costs alike in both directions is no answer: effort is paid where nothing moves, too.
    - obs_stuck, obs_largest: components that are at an extreme in most steps; the largest size of one.
    - terminated: share of steps that ended an episode for good.
    - success_steps, success_pays: steps with success, and what they paid above the others, in deviations; only where
      both were seen.

    Args:
        choices: whether an action is one of several choices, rather than a number.
    """

    def __init__(self, choices: bool = False) -> None:
        self._choices = choices
        self._trace: deque[tuple[object, ...]] = deque(maxlen=LENGTH)

    def add(self, step: Step) -> None:
        """Trace one step; rows with `valid` False are no steps, so a step with one is left out."""
        state = step.next_obs.get("state")
        if not isinstance(state, np.ndarray) or state.ndim != 2 or not isinstance(step.reward, np.ndarray):
            return
        row = step.action, state, step.reward, step.terminated, step.truncated, step.info.get("success"), step.valid
        # what an environment has returned stays as it is: of a few rows no copy is needed, and many would fill memory
        kept = row if len(state) <= 2 * ROWS else [None if x is None else np.array(x[:ROWS]) for x in row]
        self._trace.append(tuple(kept))

    def metrics(self) -> Metrics:
        """See the class; empty until there are `SHORTEST` transitions."""
        if len(self._trace) * ROWS < SHORTEST or (trace := self._stack()) is None:
            return {}
        if trace.reward.size < SHORTEST:
            return {}
        self._trace.clear()
        found = {**_reward(trace), **_fits(trace), **_actions(trace), **_observations(trace)}
        if self._choices:
            del found["action_edge"]
        return {f"steps/{name}": float(value) for name, value in found.items()}

    def _stack(self) -> _Traced | None:
        rows: list[tuple[Any, ...]] = [
            tuple(None if x is None else np.asarray(x)[:ROWS] for x in row) for row in self._trace
        ]
        rows = [row for row in rows if row[-1].all()]
        if not rows:
            return None
        action, state, reward, terminated, truncated, success, _ = zip(*rows)
        none = np.zeros(len(reward[0]), bool)
        columns = action, state, reward, terminated, [a | b for a, b in zip(terminated, truncated)]
        won = [none if x is None else x for x in success]
        return _Traced(*(np.stack(column).astype(np.float64) for column in (*columns, won)))

    def state_dict(self) -> StateDict:
        """The trace, as tensors."""
        trace = self._stack()
        return {} if trace is None else {name: torch.from_numpy(x) for name, x in trace._asdict().items()}

    def load_state_dict(self, state: StateDict) -> None:
        """Continue from `state_dict`."""
        self._trace.clear()
        for row in zip(*(np.asarray(state[name]) for name in _Traced._fields)) if state else ():
            t = _Traced(*row)
            flags = [x.astype(bool) for x in (t.terminated, t.over, t.success)]
            self._trace.append((t.action, t.next_obs, t.reward, *flags, np.ones(len(t.reward), bool)))


def _reward(trace: _Traced) -> dict[str, float]:
    reward, won = trace.reward, trace.success > 0
    spread, low, high = float(reward.std()), float(reward.min()), float(reward.max())
    edge = max(float((reward == low).mean()), float((reward == high).mean()))
    found = {"reward": float(reward.mean()), "reward_spread": spread, "reward_low": low, "reward_high": high}
    found["reward_dense"] = dense = float(len(np.unique(reward)) >= PAID)
    found["reward_at_edge"] = edge * dense
    found["terminated"] = float(trace.terminated.mean())
    if won.any() and not won.all() and spread > 0.0:
        found["success_steps"] = float(won.sum())
        found["success_pays"] = float(reward[won].mean() - reward[~won].mean()) / spread
    return found


def _fits(trace: _Traced) -> dict[str, float]:
    """How much of the reward the step tells, and a step before it."""
    reward, steps = trace.reward, len(trace.reward)
    if float(reward.std()) < 1e-9:
        return {}
    x = _features(trace.action, trace.next_obs)
    episode = np.cumsum(trace.over, axis=0) - trace.over  # number of the episode that a step belongs to
    found = {}
    for lag in (lag for lag in LATE if lag < steps // 4):
        same = episode[lag:] == episode[: steps - lag]
        paid = reward[lag:][same]
        found[lag] = _explained_share(x[: steps - lag][same], paid), _explained_share(x[lag:][same], paid)
    late = max(found, key=lambda lag: found[lag][0] - found[lag][1])
    same = episode[1:] == episode[:-1]
    before, after = reward[:-1][same], reward[1:][same]
    flat = len(before) < 2 or before.std() < 1e-9 or after.std() < 1e-9
    smooth = 0.0 if flat else float(np.corrcoef(before, after)[0, 1])
    told = {"fit_late": found[late][0], "fit_now": found[late][1], "late": late, "smooth": smooth}
    # progress, such as a shaped reward pays, is told by the change; rare large payments would hide what most steps tell
    usual, ends, starts = np.clip(reward, *np.percentile(reward, TAILS)), trace.next_obs[1:], trace.next_obs[:-1]
    moved = _features(trace.action[1:], ends, starts, ends - starts)[same]
    fits = _explained_share(x.reshape(-1, x.shape[-1]), reward.reshape(-1)), _explained_share(moved, usual[1:][same])
    return {"fit": max(fits), **told}


def _features(*parts: np.ndarray) -> np.ndarray:
    """(T, N, P) each -> standardised, their squares and 1."""
    x = np.concatenate(parts, axis=-1)
    x = (x - x.mean((0, 1))) / np.maximum(x.std((0, 1)), 1e-6)
    return np.concatenate([x, x * x, np.ones((*x.shape[:2], 1))], axis=-1)


def _explained_share(x: np.ndarray, y: np.ndarray) -> float:
    """R^2 of ridge regression (M, P) -> (M,) on the half that it was not fitted to; 0 where it is useless."""
    test = np.arange(len(y)) // BLOCK % 2 == 1
    if test.sum() < x.shape[1] // 2 or (~test).sum() < x.shape[1] // 2 or float(y[test].std()) < 1e-9:
        return 0.0
    middle = y[~test].mean()
    square = x[~test].T @ x[~test] + (0.01 * (~test).sum()) * np.eye(x.shape[1])
    weight = np.linalg.solve(square, x[~test].T @ (y[~test] - middle))
    left = y[test] - middle - x[test] @ weight
    return max(1.0 - float((left**2).sum()) / float(((y[test] - y[test].mean()) ** 2).sum()), 0.0)


def _actions(trace: _Traced) -> dict[str, float]:
    action = trace.action.reshape(-1, trace.action.shape[-1])
    moves = trace.next_obs[1:] - trace.next_obs[:-1]
    same = trace.over[:-1] == 0
    a, d = trace.action[1:][same], moves[same]
    effect = np.array([_follows(_as_columns(component), d) if len(a) > 1 else 0.0 for component in a.T])
    # one that hardly moves tells nothing of what it does, nor do episodes of one step
    driven = (action.std(0) > 0.05) & (len(a) >= SHORTEST // 2)
    idle = list(np.flatnonzero(driven & (effect < 3.5 / np.sqrt(max(len(a), 1)))))
    if idle:
        before = trace.next_obs[:-1][same]
        answers = np.stack([trace.reward[1:][same], trace.terminated[1:][same]], 1)
        idle = [i for i in idle if _idle(a[:, i], before, d, answers)]
    return {
        "action_edge": float((np.abs(action) >= EDGE).mean()),
        "action_spread": float(action.std(0).min()),
        "idle_actions": float(len(idle)),
        "actions": float(action.shape[-1]),
    }


def _idle(component: np.ndarray, before: np.ndarray, moves: np.ndarray, answers: np.ndarray) -> bool:
    """Whether nothing hangs on (M,) an action in a way that differs with (M, S) the observation it was taken in.

    Moves (M, O) are looked at where observations are coarse, one of some places each: a step to the right leaves as
    many places as it enters, so that no mean tells it. Where there are too many places for the steps nothing is told.
    """
    moving = before.std(0) > 1e-9
    coarse = all(len(np.unique(column)) < VALUES for column in before[:, moving].T)
    columns = _as_columns(component).astype(np.float64)
    number = columns.shape[1] == 1
    columns -= columns.mean(0)
    seen = (before[:, moving] - before[:, moving].mean(0)) / np.maximum(before[:, moving].std(0), 1e-6)
    odd = [columns, *(columns[:, i : i + 1] * seen for i in range(columns.shape[1]))]
    without = _features(before[:, None], *((np.abs(component)[:, None, None],) if number else ()))[:, 0]
    if without.shape[1] + sum(x.shape[1] for x in odd) > len(component) // 4:
        return not coarse
    both = np.concatenate([without, *odd], axis=1)
    told = np.concatenate([answers, moves], axis=1) if coarse else answers
    return all(_explained_share(both, y) - _explained_share(without, y) < TELLS for y in told.T if y.std() > 1e-9)


def _as_columns(component: np.ndarray) -> np.ndarray:
    """(M,) of an action -> (M, 1), or (M, choices) of 0, 1 where it took few values, whose order need mean nothing."""
    values = np.unique(component)
    return component[:, None] if len(values) > CHOICES else np.stack([component == value for value in values], 1)


def _follows(a: np.ndarray, d: np.ndarray) -> float:
    """The largest correlation of a column of (M, P) with one of (M, O); 0 where none varies."""
    a, d = a - a.mean(0), d - d.mean(0)
    size = np.outer(np.sqrt((a**2).sum(0)), np.sqrt((d**2).sum(0)))
    return float(np.where(size > 1e-9, np.abs(a.T @ d) / np.maximum(size, 1e-9), 0.0).max())


def _observations(trace: _Traced) -> dict[str, float]:
    obs = trace.next_obs.reshape(-1, trace.next_obs.shape[-1])
    at = np.maximum((obs == obs.min(0)).mean(0), (obs == obs.max(0)).mean(0))
    stuck = [i for i in np.flatnonzero(at > 0.5) if len(np.unique(obs[:, i])) >= VALUES]
    return {"obs_stuck": float(len(stuck)), "obs_largest": float(np.abs(obs).max())}
