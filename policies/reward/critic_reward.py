"""From what a progress critic says to a reward: potentials, deltas, and a "done" that one lucky frame cannot trigger.

Source: potential-based shaping: Ng, Harada & Russell, Policy Invariance Under Reward Transformations, 1999. "delta" is
the reward of VLAC (arXiv 2509.15937).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np

from robot_rl.policies.nets.progress import U_MIN
from robot_rl.policies.vla.interface import FLAT
from robot_rl.types import Options, StateDict
from robot_rl.types.options import Count, NotNegative, Number, Share

MODES = ("potential", "delta", "dlogw", "absolute")
CAVEATS = {
    "delta": "a policy gains by going back at once and forth in small steps: shares of a closed loop do not cancel",
    "absolute": "a policy gains by standing still near the goal instead of reaching it",
}
"""What a mode can be exploited by; shown when it is chosen."""


def progress_reward(
    values: np.ndarray,
    deltas: np.ndarray,
    *,
    mode: str = "potential",
    gamma: float = 0.99,
    steps: int | np.ndarray = 1,
    terminated: bool = False,
    kappa: float = 1.0,
) -> np.ndarray:
    """Reward of the n decisions of one episode.

    "potential": gamma^k phi' - phi with phi the value; at a true end phi' is 0, so the last reward is -phi: credit was
    paid on the way, and the discounted sum of an episode is minus the first potential whatever the policy did. At a
    time limit phi' stays. "delta": the share c. "dlogw": its log form, cut to [-1, 1]. "absolute": the value.

    Args:
        values: (n + 1,) progress after 0, ..., n decisions.
        deltas: (n,) shares; NaN (no answer) gives 0.
        mode: one of `MODES`.
        gamma: per control step.
        steps: control steps of each decision.
        terminated: the last decision ended the episode for good.
        kappa: factor.

    Returns:
        (n,) float64.

    Raises:
        ValueError: unknown mode, or lengths that do not fit.
    """
    values, deltas = np.asarray(values, np.float64), np.asarray(deltas, np.float64)
    if mode not in MODES:
        raise ValueError(f"mode is '{mode}', expected one of {', '.join(MODES)}")
    if len(values) != len(deltas) + 1:
        raise ValueError(f"{len(values)} values and {len(deltas)} deltas, expected one value more than deltas")
    if mode == "potential":
        after = values[1:].copy()
        if terminated and len(after):
            after[-1] = 0.0
        reward = np.power(gamma, steps) * after - values[:-1]
    elif mode == "absolute":
        reward = values[1:].copy()
    else:
        share = np.nan_to_num(deltas)
        if mode == "dlogw":
            share = np.clip(-np.sign(share) * np.log1p(-np.minimum(np.abs(share), 1.0 - 1e-9)), -1.0, 1.0)
        reward = share
    return kappa * reward


def done_events(
    done: np.ndarray, values: np.ndarray, *, threshold: float = 0.9, held: int = 3, value: Share = 0.8
) -> np.ndarray:
    """Where a goal counts as met: P(done) above `threshold` for `held` answers on end, and progress above `value`.

    Args:
        done: (n,) P(done), in order; NaN counts as no.
        values: (n,) progress.
        threshold: for P(done).
        held: answers on end.
        value: progress needed at the last of them.

    Returns:
        (n,) bool.
    """
    run, found = 0, np.zeros(len(done), bool)
    for i, (p, v) in enumerate(zip(np.asarray(done), np.asarray(values))):
        run = run + 1 if p > threshold else 0
        found[i] = run >= held and v > value
    return found


class CriticRewardOptions(Options):
    """How what a critic says becomes a reward."""

    camera: str = "front"
    """Which pictures it is shown; for whoever feeds it."""
    instruction: str | None = None
    """The sentence for all rows; null takes what the world asks of each; for whoever feeds it."""
    every: Count = 2
    """Control steps between looks; the critic knows the gaps that it was trained with."""
    mode: Literal["potential", "delta", "dlogw", "absolute"] = "potential"
    """What progress pays; see `CriticReward`."""
    kappa: NotNegative = 1.0
    """Factor of the progress reward."""
    done_reward: Number = 1.0
    """For a goal that is met."""
    on_done: Literal["end", "pay"] = "end"
    """Whether a goal that is met ends the episode, or pays at every control step while it is met."""
    threshold: Share = 0.9
    """P(done) that counts as met; see `done_events`."""
    held: Count = 3
    """Answers on end for which it has to."""
    value: Share = 0.8
    """Progress that is needed besides."""
    anchor: Share = 0.2
    """How far each look pulls u towards the absolute value: against drift; 0 adds up pairs alone."""


@runtime_checkable
class JudgeEnsemble(Protocol):
    """Several progress critics, and how what they say is joined.

    Attributes:
        members: of it.
    """

    members: tuple[Any, ...]

    def join(self, rows: np.ndarray, *, chance: bool = False) -> np.ndarray:
        """Levels or probabilities of the members (M, ...) -> (...)."""
        ...


class CriticReward:
    """The reward of N running episodes from what a critic says, one control step at a time.

    The critic looks every `every` control steps and at an episode's end; in between its progress is held. With u what
    `dlogw` adds up to since the first picture, and u_abs the same from the critic's absolute value where it has one,

        u <- u + dlogw, then u <- u + anchor (u_abs - u), u >= ln .5, v = 1 - e^-u

    "potential" pays gamma v' - v at every control step, so that it adds up to minus the first potential whatever
    `every` is; the other modes pay at looks. Shaping alone makes no policy better than another: the goal itself pays
    `done_reward` where `done_events` says that it is met, once with on_done="end", which ends the episode, and at every
    control step while it is met with "pay".

    Args:
        options: how what the critic says becomes a reward.
        judge: a `ProgressCritic`: two pictures and a sentence per row. One with `members` and `join` (`CriticEnsemble`)
            keeps a u of each member, and what they come to is the level that pays. In a configuration: a run of critic
            train, or a list of runs.
        gamma: per control step.
    """

    def __init__(self, options: CriticRewardOptions, judge: Any, *, gamma: float = 0.99) -> None:
        self.o, self.judge, self.gamma = options, judge, gamma
        self.camera, self.instruction = options.camera, options.instruction
        self._members = judge.members if isinstance(judge, JudgeEnsemble) else (judge,)
        self._sentences: list[str] = []
        self._pictures = np.zeros((0, 0, 0, 3), np.uint8)

    @property
    def progress(self) -> np.ndarray:
        """(N,) v at the last look."""
        return -np.expm1(-self._level(self._u))

    def start(self, rows: np.ndarray, pictures: np.ndarray, sentences: Sequence[str]) -> None:
        """Episodes begin.

        Args:
            rows: (N,) bool, which; all of them at the first call.
            pictures: (N, H, W, 3) uint8, the first ones.
            sentences: N, what is asked of each.
        """
        count = len(rows)
        if len(self._sentences) != count:
            self._sentences, self._pictures = list(sentences), np.array(pictures)
            self._u, self._from = np.zeros((2, len(self._members), count))
            self._share = np.zeros(count)
            self._age, self._run = np.zeros(count, np.int64), np.zeros(count, np.int64)
            self._met = np.zeros(count, bool)
            rows = np.ones(count, bool)
        which = np.flatnonzero(rows)
        if len(which) == 0:
            return
        for i in which.tolist():
            self._sentences[i] = sentences[i]
        self._u[:, which], self._age[which], self._run[which], self._met[which] = 0.0, 0, 0, False
        self._begin(which, pictures)

    def step(
        self, pictures: np.ndarray, terminated: np.ndarray, ended: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """One control step of all rows.

        Args:
            pictures: (N, H, W, 3) uint8 after it, of the episode that it belongs to; read where a look is due.
            terminated: (N,) bool, the environment ended the episode for good.
            ended: (N,) bool, it ended for whatever reason.

        Returns:
            reward (N,) float64; (N,) bool, the goal is met; (N,) bool, the episode is over for good, with
            on_done="end" also because the goal is met.
        """
        before = self.progress
        self._age += 1
        self._share[:] = 0.0
        due = np.flatnonzero((self._age % self.o.every == 0) | ended)
        if len(due):
            self._look(due, pictures)
        over = terminated | (self._met if self.o.on_done == "end" else False)
        after = self.progress
        if self.o.mode == "potential":
            reward = self.gamma * np.where(over, 0.0, after) - before
        elif self.o.mode == "absolute":
            reward = np.zeros(len(after))
            reward[due] = after[due]
        else:
            step = np.clip(self._share, -1.0, 1.0)
            reward = step if self.o.mode == "dlogw" else np.sign(self._share) * -np.expm1(-np.abs(self._share))
        return self.o.kappa * reward + self.o.done_reward * self._met, self._met.copy(), over

    def _begin(self, rows: np.ndarray, pictures: np.ndarray) -> None:
        """Take these pictures for the first ones."""
        self._pictures[rows] = pictures[rows]
        if self.o.anchor:
            self._from[:, rows] = np.stack([_log_progress(said.value) for said in self._ask(rows, pictures)])

    def _ask(self, rows: np.ndarray, pictures: np.ndarray) -> list[Any]:
        """Every member's answer."""
        sentences = [self._sentences[i] for i in rows]
        return [member(self._pictures[rows], pictures[rows], sentences) for member in self._members]

    def _level(self, u: np.ndarray) -> np.ndarray:
        """What the members' u (M, ...) come to."""
        return np.maximum(u[0] if len(self._members) == 1 else self.judge.join(u), U_MIN)

    def _look(self, rows: np.ndarray, pictures: np.ndarray) -> None:
        said = self._ask(rows, pictures)
        valid = np.stack([np.asarray(one.valid, bool) for one in said]).all(0)
        step = np.stack([np.nan_to_num(np.asarray(one.dlogw, np.float64)) for one in said])
        before = self._u[:, rows]
        step = np.where(valid, step, 0.0)
        u = before + step
        self._share[rows] = step[0] if len(said) == 1 else self.judge.join(u) - self.judge.join(before)
        absolute = np.stack([_log_progress(one.value) for one in said]) - self._from[:, rows]
        u = np.where(valid & np.isfinite(absolute), u + self.o.anchor * (np.nan_to_num(absolute) - u), u)
        self._u[:, rows] = np.maximum(u, U_MIN)
        done = np.stack([np.asarray(one.done, np.float64) for one in said])
        done = done[0] if len(said) == 1 else self.judge.join(done, chance=True)
        self._run[rows] = np.where(valid & (done > self.o.threshold), self._run[rows] + 1, 0)
        self._met[rows] = (self._run[rows] >= self.o.held) & (self.progress[rows] > self.o.value)
        seen = rows[valid]
        self._pictures[seen] = pictures[seen]  # after a covered lens the next pair begins at the last answer
        lost = rows[~valid]
        blank = lost[self._pictures[lost].std(axis=(1, 2, 3)) < FLAT]
        if len(blank):  # a first picture that shows nothing has no answer with any other
            self._begin(blank, pictures)

    def state_dict(self) -> StateDict:
        """Exact continuation."""
        arrays = {
            "u": self._u, "from": self._from, "share": self._share, "age": self._age, "run": self._run,
            "met": self._met, "pictures": self._pictures,
        }  # fmt: skip
        return {**{name: value.copy() for name, value in arrays.items()}, "sentences": list(self._sentences)}

    def load_state_dict(self, state: StateDict) -> None:
        """Continue exactly."""
        self._u, self._from, self._share, self._age, self._run, self._met, self._pictures = (
            np.array(state[name]) for name in ("u", "from", "share", "age", "run", "met", "pictures")
        )
        self._u, self._from = np.atleast_2d(self._u), np.atleast_2d(self._from)  # one row each before ensembles
        self._sentences = list(state["sentences"])


def _log_progress(value: object) -> np.ndarray:
    """u of absolute values; NaN where there is none."""
    return -np.log(np.maximum(1.0 - np.asarray(value, np.float64), 1e-3))


class Audit:
    """Compares the critic's successes with true ones, where these are known.

    Args:
        window: episodes of one comparison.
        margin: share of episodes by which the critic may be too kind.
        windows: comparisons on end that make a finding.
    """

    def __init__(self, window: int = 20, margin: float = 0.15, windows: int = 3) -> None:
        self.window, self.margin, self.windows = window, margin, windows
        self._now: list[tuple[bool, bool]] = []
        self._bad = 0

    def add(self, said: bool, true: bool) -> str | None:
        """One finished episode; a sentence where the reward is being exploited, else None."""
        self._now.append((bool(said), bool(true)))
        if len(self._now) < self.window:
            return None
        critic, truth = np.mean(self._now, axis=0)
        self._now = []
        self._bad = self._bad + 1 if critic - truth > self.margin else 0
        if self._bad < self.windows:
            return None
        return (
            f"reward exploited: in the last {self.window} episodes the critic saw {critic:.0%} successes and the "
            f"simulator {truth:.0%}, for the {self._bad}th time on end; train the critic on failures of this kind"
        )
