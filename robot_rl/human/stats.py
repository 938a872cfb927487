"""What a human-in-the-loop run reports: per episode, rolling, and over blocks of autonomous trials."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from robot_rl.data.hil_record import ControlStep
from robot_rl.stats import wilson
from robot_rl.types import Metrics, StateDict

if TYPE_CHECKING:
    from robot_rl.human.pilot import Driven

COUNTS = ("episodes", "demo_steps", "human_steps", "steps")
"""What `HilStats` counts over a whole run."""
TICKS = 1000
"""Newest ticks of which the 99th percentile is told: an episode alone has too few for one."""
LATE_MS = 5.0
"""How late a tick may be for unattended operation: a real robot's ticks last a period, not less."""


def count_stops(stops: Sequence[str]) -> str:
    """Safety stops in words: each limit or fault, how often, and the numbers of the last time."""
    last = {stop.partition(" (")[0]: stop for stop in stops}
    times = Counter(stop.partition(" (")[0] for stop in stops)
    return ", ".join(f"{times[code]} x {stop}" for code, stop in last.items())


@dataclass
class EpisodeFacts:
    """One episode in numbers.

    Attributes:
        success: it ended in success.
        end_reason: why it ended.
        stopped_by: the limit or fault behind a safety stop, with its numbers.
        autonomous: no human step.
        steps: driven steps.
        returned: undiscounted task reward.
        human_steps: of them driven by the person.
        spans: interventions.
        first_span: step of the first intervention, -1 without one.
        disagreement: mean over the first steps of the interventions, nan without one.
        clipped: steps that the safety layer changed.
        clip_frac: mean share that it cut.
        held: steps in which nobody drove.
        policy_lag_ms: age of the parameters, mean.
        grip_switches: changes of the gripper command.
        tick_ms: how long every tick lasted; with a person at the seat that is a period at least, else what it computed.
        gaps: disagreement at the first step of every intervention.
        link: further numbers, of the link to a learner elsewhere.
        number: of the episode in the log, -1 where it is not there.
    """

    success: bool = False
    end_reason: str = "none"
    stopped_by: str = ""
    autonomous: bool = True
    steps: int = 0
    returned: float = 0.0
    human_steps: int = 0
    spans: int = 0
    first_span: int = -1
    disagreement: float = math.nan
    clipped: int = 0
    clip_frac: float = 0.0
    held: int = 0
    policy_lag_ms: float = 0.0
    grip_switches: int = 0
    tick_ms: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    link: Metrics = field(default_factory=dict)
    number: int = -1

    def count(self, step: ControlStep, driven: Driven) -> None:
        """Add a step, and what the pilot said about it."""
        self.steps += 1
        self.human_steps += step.human
        self.held += not driven.moving
        self.grip_switches += step.grip_penalty < 0
        self.clipped += step.clip_frac > 1e-3
        self.clip_frac += (step.clip_frac - self.clip_frac) / self.steps
        self.policy_lag_ms += (step.policy_lag_ms - self.policy_lag_ms) / self.steps
        if step.intv_start:
            self.first_span = self.steps - 1 if self.spans == 0 else self.first_span
            self.spans += 1
            if math.isfinite(driven.disagreement):
                self.gaps.append(driven.disagreement)

    def metrics(self) -> Metrics:
        """hil/... of this episode."""
        row = {
            "hil/success": float(self.success),
            "hil/autonomous": float(self.autonomous),
            "hil/episode_steps": float(self.steps),
            "hil/return": self.returned,
            "hil/human_steps": float(self.human_steps),
            "hil/spans": float(self.spans),
            "hil/clipped": float(self.clipped),
            "hil/clip_frac": self.clip_frac,
            "hil/held": float(self.held),
            "hil/grip_switches": float(self.grip_switches),
            "hil/policy_lag_ms": self.policy_lag_ms,
            **self.link,
        }
        if self.spans:
            row["hil/first_span"] = float(self.first_span)
            row["hil/disagreement"] = self.disagreement
            row["hil/mean_span"] = self.human_steps / self.spans
        if self.tick_ms:
            for q in (50, 95, 99):
                row[f"hil/tick_ms_p{q}"] = float(np.percentile(self.tick_ms, q))
        return row


class HilStats:
    """Rolling numbers of a run.

    Args:
        control_hz: decisions per second, for the human seconds.
        window: episodes looked back at.
    """

    def __init__(self, control_hz: float, window: int = 20) -> None:
        self._hz = control_hz
        self._last: deque[EpisodeFacts] = deque(maxlen=window)
        self.episodes = 0
        self.demo_steps = 0
        """Steps that the person drove for demonstrations."""
        self.human_steps = 0
        """Steps that the person drove as interventions."""
        self.steps = 0
        self._ticks: deque[float] = deque(maxlen=TICKS)
        self.reasons: dict[str, int] = {}
        self.stops: list[str] = []
        """What latched each safety stop, with its numbers."""

    @property
    def last(self) -> list[EpisodeFacts]:
        """The episodes that are looked back at."""
        return list(self._last)

    @property
    def human_seconds(self) -> float:
        """Time that the person drove, demonstrations included: the cost axis."""
        return (self.human_steps + self.demo_steps) / self._hz

    def add(self, facts: EpisodeFacts) -> None:
        """Count an episode that is no demonstration."""
        self._last.append(facts)
        self._ticks.extend(facts.tick_ms)
        self.episodes += 1
        self.human_steps += facts.human_steps
        self.steps += facts.steps
        self.reasons[facts.end_reason] = self.reasons.get(facts.end_reason, 0) + 1
        self.stops += [facts.stopped_by] if facts.stopped_by else []

    def tick(self, percentile: float) -> float:
        """How long ticks lasted, a percentile of the newest ones of this process [ms]; 0 before the first."""
        return float(np.percentile(self._ticks, percentile)) if self._ticks else 0.0

    def add_demo(self, steps: int) -> None:
        """Count a demonstration."""
        self.demo_steps += steps

    def alone(self) -> tuple[float, float, float, int] | None:
        """Success among the unaided of the last episodes with its 95 % interval, and their number; None without any."""
        alone = [facts for facts in self._last if facts.autonomous]
        good = sum(facts.success for facts in alone)
        return (good / len(alone), *wilson(good, len(alone)), len(alone)) if alone else None

    def metrics(self) -> Metrics:
        """rollout/... over the window and totals."""
        last = list(self._last)
        row: Metrics = {
            "hil/human_seconds": self.human_seconds,
            "hil/robot_minutes": (self.steps + self.demo_steps) / self._hz / 60.0,
            "hil/episodes": float(self.episodes),
        }
        if not last:
            return row
        steps, human = sum(f.steps for f in last), sum(f.human_steps for f in last)
        spans = sum(f.spans for f in last)
        alone = [f for f in last if f.autonomous]
        low, high = wilson(sum(f.success for f in alone), len(alone))
        row |= {
            "rollout/success": float(np.mean([f.success for f in last])),
            "rollout/autonomous_success": sum(f.success and f.autonomous for f in last) / len(last),
            "rollout/autonomous_low": low,
            "rollout/autonomous_high": high,
            "rollout/intervention_rate": human / max(steps, 1),
            "rollout/spans": spans / len(last),
            "rollout/return": float(np.mean([f.returned for f in last])),
            "rollout/seconds_between_interventions": steps / self._hz / max(spans, 1),
        }
        cycle = [f.steps for f in last if f.success]
        if cycle:
            row["rollout/cycle_s"] = float(np.mean(cycle)) / self._hz
        return row

    def state_dict(self) -> StateDict:
        """Plain numbers."""
        kept = [{**asdict(facts), "tick_ms": [], "gaps": []} for facts in self._last]
        counts = {name: vars(self)[name] for name in COUNTS}
        return {**counts, "reasons": dict(self.reasons), "stops": list(self.stops), "last": kept}

    def load_state_dict(self, state: StateDict) -> None:
        """Continue."""
        for name in COUNTS:
            setattr(self, name, int(state[name]))
        self.reasons, self.stops = dict(state["reasons"]), list(state.get("stops", []))
        self._last.clear()
        self._last.extend(EpisodeFacts(**facts) for facts in state["last"])


@dataclass
class Trials:
    """A block of autonomous trials with frozen weights: natural starts, no help.

    Attributes:
        successes: one entry per trial.
        steps: length of each.
        deterministic: as it acts alone, not samples.
        stops: one entry per safety stop: the limit or fault, with its numbers.
        cut: trials that did not end by themselves.
        returns: undiscounted return of each, where they were counted.
    """

    successes: list[bool] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    deterministic: bool = True
    stops: list[str] = field(default_factory=list)
    cut: int = 0
    returns: list[float] = field(default_factory=list)

    def metrics(self) -> Metrics:
        """eval/success with its 95 % interval, n, longest run of successes, mean length of the successes."""
        good = [n for n, success in zip(self.steps, self.successes) if success]
        low, high = wilson(sum(self.successes), len(self.successes))
        streak = best = 0
        for success in self.successes:
            streak = streak + 1 if success else 0
            best = max(best, streak)
        return {
            "eval/success": sum(self.successes) / max(len(self.successes), 1),
            "eval/success_low": low,
            "eval/success_high": high,
            "eval/episodes": float(len(self.successes)),
            "eval/streak": float(best),
            "eval/safety_stops": float(len(self.stops)),
            "eval/length": float(np.mean(good)) if good else math.nan,
            **({"eval/cut": float(self.cut)} if self.cut else {}),
        }

    def numbers(self) -> dict[str, list]:
        """Of every trial."""
        return {"successes": self.successes, "lengths": self.steps}

    def gate(self, threshold: float, tick_p99_ms: float, period_ms: float) -> list[str]:
        """What stands against unattended operation; empty when nothing does.

        Args:
            threshold: of the lower bound of the success rate.
            tick_p99_ms: 99th percentile of a tick, which lasts a period in real time.
            period_ms: control period.
        """
        low = wilson(sum(self.successes), len(self.successes))[0]
        out = []
        if len(self.successes) < 20:
            out.append(f"{len(self.successes)} trials, expected at least 20")
        if low < threshold:
            out.append(f"lower bound of success {low:.3f}, expected at least {threshold:g}")
        if self.stops:
            out.append(f"safety stops, expected none: {count_stops(self.stops)}")
        if tick_p99_ms > period_ms + LATE_MS:
            most = f"at most {LATE_MS:g} ms above the period of {period_ms:.1f} ms"
            out.append(f"p99 of the tick is {tick_p99_ms:.1f} ms, expected {most}")
        return out
