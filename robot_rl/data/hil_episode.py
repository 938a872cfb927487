"""An episode while it is driven: spans, labels that arrive late, rewards from interventions, and what is settled.

A step can still change for a few ticks after it was driven: a person presses "success" about 200 ms after the fact, an
intervention of a single tick turns out to be a glitch, the next step tells whether this one made somebody take over.
Steps are therefore handed on only once they are settled.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

import numpy as np

from robot_rl.data.hil_record import COLUMNS, ControlStep, EndReason, Invalid, RewardSource, Source
from robot_rl.types import Episode, Options
from robot_rl.types.options import Count, Discount, NotNegative

_DRIVEN = (Source.POLICY, Source.HUMAN, Source.SCRIPTED, Source.BLEND)


class EpisodeRules(Options):
    """How an episode of control steps is turned into rewards and ends.

    Attributes:
        gamma: discount per step.
        min_span: interventions shorter than this many steps are device glitches and cost nothing.
        reaction_ms: a label belongs to the step that was running this long before the key was pressed.
        stop_is_end: human_stop and safety_stop are true ends (the state is absorbing) instead of cuts.

    Source: Luo et al., RLIF: Interactive Imitation Learning as Reinforcement Learning (reward -1 for the step before an
    intervention). Where we differ: a span that begins while a person already drives costs nothing, since the policy did
    not act; spans of one tick are dropped; every step is stored.
    """

    gamma: Discount = 0.99
    min_span: Count = 2
    reaction_ms: NotNegative = 200.0
    stop_is_end: bool = False

    def settle_steps(self, control_hz: float) -> int:
        """How many of the newest steps may still change."""
        return max(1, self.min_span, math.ceil(self.reaction_ms * 1e-3 * control_hz) + 1)


class EpisodeDraft:
    """Collects the control steps of one episode.

    Args:
        rules: rewards and ends.
        control_hz: decisions per second, which decides how long steps stay open.
        open_steps: so many of the newest steps stay open at least.
    """

    def __init__(self, rules: EpisodeRules, control_hz: float, open_steps: int = 0) -> None:
        self.rules = rules
        self.steps: list[ControlStep] = []
        self.end_reason = EndReason.NONE
        self._lag = max(rules.settle_steps(control_hz), open_steps)
        self._given = 0
        self._span = -1

    def __len__(self) -> int:
        return len(self.steps)

    def add(self, step: ControlStep) -> None:
        """Append a step; spans are numbered, and an invalid row is put where observations do not meet.

        Raises:
            ValueError: the episode has ended.
        """
        if self.end_reason != EndReason.NONE:
            raise ValueError(f"the episode ended ({self.end_reason.name}); begin a new one before adding steps")
        last = self.steps[-1] if self.steps else None
        if last is not None and not _meets(last, step):
            last.intv_end |= last.human
            last = _gap(last, step)
            self.steps.append(last)
        if step.source not in _DRIVEN and step.valid:
            step.valid, step.invalid_reason = False, Invalid.SOURCE
        following = last is not None and last.human and not last.intv_end
        if step.human:
            fresh = step.intv_start or not following
            if fresh and following and last is not None:
                last.intv_end = True
            self._span += fresh
            step.intv_start, step.intv_id = fresh, self._span
            step.intv_step = 0 if fresh or last is None else last.intv_step + 1
        else:
            step.intv_start, step.intv_id, step.intv_step = False, -1, -1
            if following and last is not None:
                last.intv_end = True
        self.steps.append(step)

    def take_settled(self) -> list[ControlStep]:
        """Steps that cannot change any more, each handed out once; all that are left after `close`.

        While nobody drives, the last step that somebody drove stays open: a person who holds the robot to think labels
        that one.
        """
        end = len(self.steps)
        if self.end_reason == EndReason.NONE:
            last = self.last_valid()
            end = max(min(end - self._lag, end if last is None else last), self._given)
        begin, self._given = self._given, end
        for index in range(begin, end):
            self._reward(index)
        return self.steps[begin:end]

    def step_at(self, time: int) -> int:
        """Index of the step with t_obs <= time < t_next; the first for earlier times, the last for later ones."""
        return next((i for i in reversed(range(len(self.steps))) if self.steps[i].t_obs <= time), 0)

    def ran_at(self, pressed: int) -> bool:
        """Whether a key pressed then [ns] is about this episode: somebody drove a step of it a reaction time before."""
        first = next((step.t_obs for step in self.steps if step.valid), None)
        return first is not None and first <= pressed - round(self.rules.reaction_ms * 1e6)

    def label(self, success: bool, pressed: int) -> int:
        """A person says how it went; the episode ends at the step that this refers to.

        Args:
            success: or failure.
            pressed: when the key went down [ns, the clock of the steps].

        Returns:
            Index of the step that got the label; later ones are invalid.
        """
        if not self.steps:
            raise ValueError("nothing to label: the episode has no steps yet")
        index = self.step_at(pressed - round(self.rules.reaction_ms * 1e6))
        index = max(index, self._given)  # never a step that was handed out already
        index = min(index, len(self.steps) - 1)
        while index > 0 and not self.steps[index].valid:
            index -= 1
        step = self.steps[index]
        step.reward_task = float(success)
        step.reward_source = RewardSource.HUMAN_KEY
        for later in self.steps[index + 1 :]:
            later.valid, later.invalid_reason = False, Invalid.AFTER_END
        self.close(EndReason.SUCCESS if success else EndReason.FAILURE)
        return index

    def close(self, reason: EndReason) -> None:
        """End the episode; terminated and truncated of its last valid step follow from the reason.

        success and failure are true ends; seen in a step that nobody may learn from, what they pay is paid to the last
        valid one, where a label falls, too. timeout is a cut. human_stop and safety_stop are cuts unless
        `rules.stop_is_end`. fault and comms are cuts, and the last step is invalid.
        """
        if self.end_reason != EndReason.NONE:
            return
        self.end_reason = reason
        if not self.steps:
            return
        last = self.steps[-1]
        if reason in (EndReason.FAULT, EndReason.COMMS):
            last.valid, last.invalid_reason = False, Invalid.COMMS if reason == EndReason.COMMS else Invalid.FAULT
        last.intv_end |= last.human
        index = self.last_valid()
        if index is None:
            return
        final, told = self.steps[index], reason in (EndReason.SUCCESS, EndReason.FAILURE)
        if told and final is not last and last.invalid_reason != Invalid.AFTER_END:
            final.reward_task += last.reward_task
        stops = (EndReason.HUMAN_STOP, EndReason.SAFETY_STOP)
        end = told or (reason in stops and self.rules.stop_is_end)
        final.terminated, final.truncated = end, not end
        final.intv_end |= final.human
        if index < self._given:  # it was handed on before what came later turned out to be void
            self._reward(index)

    def episode(self, meta: Mapping[str, object]) -> Episode:
        """The closed episode as it goes to disk; every step, valid or not.

        Args:
            meta: key, io, versions; `end_reason`, `success` and the columns are added.

        Raises:
            ValueError: it has no steps or is still open.
        """
        if self.end_reason == EndReason.NONE or not self.steps:
            raise ValueError("the episode is still open or has no steps; close it first")
        self.take_settled()
        return to_episode(self.steps, self.end_reason, meta)

    def last_valid(self) -> int | None:
        """Index of the last step that may be learned from, whose outcome is the episode's."""
        return last_valid(self.steps)

    def _reward(self, index: int) -> None:
        """Reward, the one from interventions and the discount of one settled step."""
        step = self.steps[index]
        step.reward_rlif = -1.0 if self._taken_over(index) else 0.0
        step.reward = step.reward_task
        step.discount = 0.0 if step.terminated else self.rules.gamma

    def _taken_over(self, index: int) -> bool:
        """Whether a person takes over at the step after `index`, for long enough to be meant."""
        span = self.steps[index + 1 : index + 1 + self.rules.min_span]
        if not span or self.steps[index].source != Source.POLICY or not (span[0].intv_start and span[0].valid):
            return False
        return len(span) == self.rules.min_span and all(step.intv_id == span[0].intv_id for step in span)


def last_valid(steps: Sequence[ControlStep]) -> int | None:
    """Index of the last step that may be learned from; None where there is none."""
    return next((i for i in reversed(range(len(steps))) if steps[i].valid), None)


def relabel(steps: Sequence[ControlStep], rules: EpisodeRules, success: bool | None) -> ControlStep | None:
    """A person changes their mind about an episode: its last valid step gets the outcome.

    Args:
        steps: of the episode; the one in question is changed in place.
        rules: rewards and ends.
        success: or failure; None takes a label away: how it ended is not known, so it counts as cut there.

    Returns:
        The step, or None when the episode has no valid one.
    """
    index = last_valid(steps)
    if index is None:
        return None
    step = steps[index]
    step.reward_task = float(success or False)
    step.reward_source = RewardSource.NONE if success is None else RewardSource.HUMAN_KEY
    step.reward = step.reward_task
    step.terminated, step.truncated = success is not None, success is None
    step.discount = 0.0 if step.terminated else rules.gamma
    return step


def to_episode(steps: Sequence[ControlStep], reason: EndReason, meta: Mapping[str, object]) -> Episode:
    """Steps whose observations meet, as one `Episode`; the inverse of `to_steps`."""
    keys = steps[0].obs
    columns = {name: np.array([vars(s)[name] for s in steps], dtype) for name, dtype in COLUMNS.items()}
    index = last_valid(steps)
    last = steps[-1 if index is None else index]
    return Episode(
        obs={key: np.stack([*(s.obs[key] for s in steps), steps[-1].next_obs[key]]) for key in keys},
        action=np.array([s.action_exec for s in steps], np.float32),
        proposed=np.array([s.action_policy for s in steps], np.float32),
        reward=np.array([s.reward for s in steps], np.float32),
        terminated=bool(last.terminated),
        truncated=bool(last.truncated),
        intervened=np.array([s.human for s in steps], bool),
        stamp=np.array([*(s.t_obs for s in steps), steps[-1].t_next], np.float64) * 1e-9,
        meta={**meta, "end_reason": int(reason), "success": reason == EndReason.SUCCESS, "columns": columns},
    )


def is_unaided(human_steps: int, reason: EndReason) -> bool:
    """The policy drove an episode alone, to its end."""
    return human_steps == 0 and reason not in (EndReason.HUMAN_STOP, EndReason.COMMS)


def valid_pieces(episode: Episode) -> list[Episode]:
    """The runs of valid steps of a recorded episode, for formats that cannot mark a step as invalid.

    Every piece but one that ends in a true end is a cut (`truncated`), so that nothing is bootstrapped across a gap.
    """
    meta = {k: v for k, v in episode.meta.items() if k not in ("columns", "end_reason", "success")}
    pieces = [list(steps) for valid, steps in groupby(to_steps(episode), lambda step: step.valid) if valid]
    reasons = [*[EndReason.NONE] * (len(pieces) - 1), EndReason(episode.meta["end_reason"])]
    for piece in pieces:
        piece[-1].truncated = not piece[-1].terminated
    return [to_episode(piece, reason, meta) for piece, reason in zip(pieces, reasons)]


def to_steps(episode: Episode) -> list[ControlStep]:
    """The control steps of a recorded episode.

    Raises:
        ValueError: it was not recorded by the human-in-the-loop recorder.
    """
    columns = episode.meta.get("columns", {})
    lacking = sorted(set(COLUMNS) - set(columns))
    if lacking:
        raise ValueError(f"the episode lacks the columns {lacking}; expected one written by robot-rl hil")
    steps: list[ControlStep] = []
    valid = np.flatnonzero(columns["valid"])
    final = int(valid[-1]) if len(valid) else len(episode) - 1
    obs = [{key: value[t] for key, value in episode.obs.items()} for t in range(len(episode) + 1)]
    for t in range(len(episode)):
        values: dict[str, Any] = {name: columns[name][t] for name in COLUMNS}
        values = {name: value if value.ndim else value.item() for name, value in values.items()}
        step = ControlStep(obs[t], obs[t + 1], episode.proposed[t], action_exec=episode.action[t], **values)
        step.reward = float(episode.reward[t])
        step.terminated, step.truncated = (bool(end and t == final) for end in (episode.terminated, episode.truncated))
        steps.append(step)
    return steps


def _meets(last: ControlStep, step: ControlStep) -> bool:
    return all(
        last.next_obs[key] is value or np.array_equal(last.next_obs[key], value) for key, value in step.obs.items()
    )


def _gap(last: ControlStep, step: ControlStep) -> ControlStep:
    """The row that stands for what was not recorded between two steps."""
    zero = np.zeros_like(step.action_exec)
    return replace(
        step,
        obs=last.next_obs,
        next_obs=step.obs,
        action_policy=zero,
        action_human=zero,
        action_cmd=zero,
        action_exec=zero,
        source=Source.HOLD,
        t_obs=last.t_next,
        t_cmd=last.t_next,
        t_next=step.t_obs,
        human_valid=False,
        intv_start=False,
        intv_end=False,
        intv_id=-1,
        intv_step=-1,
        reward=0.0,
        reward_task=0.0,
        reward_source=RewardSource.NONE,
        terminated=False,
        truncated=False,
        valid=False,
        invalid_reason=Invalid.GAP,
    )
