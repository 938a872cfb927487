"""What a person says about episodes: while they run, when they are over, and again when they change their mind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from robot_rl.data.hil_episode import EpisodeRules, is_unaided, relabel, to_steps
from robot_rl.data.hil_record import ControlStep, EndReason, RewardSource
from robot_rl.data.hil_words import episode_key, read_corrections
from robot_rl.human.log import HilLog
from robot_rl.human.memory import HilMemory
from robot_rl.human.stats import EpisodeFacts, HilStats

WORDS = {"success": True, "failure": False, "undo": None}


@dataclass
class Kept:
    """Where an episode lies in the memory.

    Attributes:
        rows: (n,) of the memory, in order; empty where it was thrown away or failed as a demonstration.
        final: of them the row of its last valid step, -1 where that was not kept.
        shown: it was a demonstration, or thrown away.
        useful: it counts as a demonstration now.
        alone: nobody helped.
    """

    rows: list[int]
    final: int
    shown: bool
    useful: bool
    alone: bool = True

    def amend(
        self,
        memory: HilMemory | None,
        steps: Sequence[ControlStep],
        final: ControlStep,
        *,
        success: bool,
        promotes: bool,
    ) -> int:
        """Hear the last word about it.

        Args:
            memory: that holds it; None where that is elsewhere.
            steps: of the episode, as the word has them.
            final: of them the one that the word is about.
            success: what the episode counts as.
            promotes: see `Labels`.

        Returns:
            Demonstrations that this made (1) or took (-1).
        """
        made = int(success) - int(self.useful) if self.shown else 0
        if memory is not None and not self.shown:
            memory.amend(self.final, final)
            if promotes:
                self.promote(memory, success)
        elif memory is not None and made > 0:
            self.rows, self.final = store(memory, steps, demo=True)
        elif memory is not None and made < 0:
            memory.forget(self.rows)
            self.rows, self.final = [], -1
        self.useful = self.shown and success
        return made

    def promote(self, memory: HilMemory, success: bool) -> None:
        """Whether an episode without help is among the demonstrations follows what is said about it."""
        if self.alone:
            (memory.promote if success else memory.demote)(self.rows)


@dataclass
class Told:
    """One finished episode and what was said about it.

    Attributes:
        number: of the episode.
        facts: of it; a label changes its success, and with it the rolling numbers.
        kept: where it lies in the memory.
        keyed: a key ended it.
        label: what a person said last, "success", "failure" or "".
    """

    number: int
    facts: EpisodeFacts
    kept: Kept
    keyed: bool
    label: str = ""


class Labels:
    """Finished episodes, newest last; a word about one of them reaches log, memory and numbers.

    Args:
        log: of the run.
        memory: of it; None where the learner is elsewhere: it hears of the log's words over the link.
        rules: rewards and ends.
        promote: successes without help join the demonstrations, as long as they count as successes.
        most: episodes that can still be found.
    """

    def __init__(
        self, log: HilLog, memory: HilMemory | None, rules: EpisodeRules, *, promote: bool = False, most: int = 200
    ) -> None:
        self._log, self._memory, self._rules, self._promotes, self._most = log, memory, rules, promote, most
        self._told: dict[int, Told] = {}
        self._driven: dict[int, EpisodeFacts] = {}  # of the log, thrown away or not
        self.said = ""
        """The last word, as it was understood: "success, episode 12"."""

    def add(
        self,
        number: int,
        steps: Sequence[ControlStep],
        facts: EpisodeFacts,
        *,
        demo: bool,
        useful: bool,
        rows: list[int],
        final: int,
    ) -> Told:
        """Episode `number` is over and on the disk; see `Told` for the rest."""
        keyed = any(step.reward_source == RewardSource.HUMAN_KEY for step in steps)
        kept = Kept(rows, final, demo, useful, facts.autonomous)
        self._told[number] = told = Told(number, facts, kept, keyed)
        if keyed:
            told.label = "success" if facts.success else "failure"
            self.said = f"{told.label}, episode {number}"
        for old in sorted(self._told)[: -self._most]:
            del self._told[old]
        return told

    def apply(self, kind: str, number: int = -1) -> int:
        """Say "success", "failure" or "undo" about an episode; -1 is the newest one.

        Returns:
            Demonstrations that this made (1) or took (-1).
        """
        told = self._told.get(max(self._told, default=-1) if number < 0 else number)
        if told is None:
            self.said = "nothing to label: " + (f"episode {number} is not kept" if number >= 0 else "no episode yet")
            return 0
        success = WORDS[kind]
        episode = self._log.read(told.number)
        recorded = bool(episode.meta["success"]) and not told.keyed
        told.label = "" if success is None else kind
        told.facts.success = recorded if success is None else success
        self._log.correct(told.number, told.facts.success, undone=success is None)
        self.said = f"{kind if success is not None else 'label taken back'}, episode {told.number}"
        steps = to_steps(episode)
        final = last_word(steps, self._rules, success)
        if final is None:
            return 0
        told.facts.returned = total_reward(steps)
        return told.kept.amend(self._memory, steps, final, success=told.facts.success, promotes=self._promotes)

    def list(self, most: int = 12) -> list[dict[str, object]]:
        """The newest episodes, newest first, in plain values."""
        return [
            {
                "episode": told.number,
                "end": told.facts.end_reason,
                "success": told.facts.success,
                "label": told.label,
                "steps": told.facts.steps,
                "human": round(told.facts.human_steps / max(told.facts.steps, 1), 2),
                "demo": told.kept.shown,
            }
            for _, told in sorted(self._told.items(), reverse=True)[:most]
        ]

    def restore(self) -> int:
        """Fill the memory from the log: the log is the buffer, and the last word about an episode counts.

        Returns:
            Demonstrations that count.
        """
        made, last = 0, {episode_key(line): line for line in read_corrections(self._log.path)}
        for episode in self._log.episodes():
            key, facts, steps = episode_key(episode.meta), episode.meta, to_steps(episode)
            own = (key.run_id, key.actor_id) == (self._log.run_id, self._log.actor_id)
            human, reason = sum(step.human for step in steps), EndReason(facts["end_reason"])
            success, line, label = bool(facts.get("success")), last.get(key), ""
            seen = EpisodeFacts(success=success, end_reason=reason.name.lower(), steps=len(steps), human_steps=human)
            seen.autonomous, seen.number, seen.returned = is_unaided(human, reason), key.episode_id, total_reward(steps)
            seen.spans = sum(step.intv_start for step in steps)
            if own:
                self._driven[key.episode_id] = seen
            shown = bool(facts.get("shown", facts.get("demo")))
            if facts.get("discarded") and not shown:
                continue
            if line is not None:
                keyed = any(step.reward_source == RewardSource.HUMAN_KEY for step in steps)
                seen.success = success = bool(line["success"])
                label = "" if line.get("undone") else "success" if success else "failure"
                if label or keyed:
                    relabel(steps, self._rules, success if label else None)
                    seen.returned = total_reward(steps)
            useful = shown and (bool(facts.get("demo")) if line is None else success)
            made += useful
            rows, final = [], -1
            if self._memory is not None and (useful or not shown):
                rows, final = store(self._memory, steps, demo=shown)
            if self._memory is not None and self._promotes and success and not shown:
                Kept(rows, final, shown, useful, seen.autonomous).promote(self._memory, True)
            if own:
                told = self.add(
                    key.episode_id, to_steps(episode), seen, demo=shown, useful=useful, rows=rows, final=final
                )
                told.label = told.label if line is None else label
        self.said = ""
        return made

    def recount(self, stats: HilStats, lines: Sequence[Mapping[str, Any]]) -> int:
        """After `restore`: rolling numbers of a checkpoint hear what was said since, and count what was driven since.

        Args:
            stats: of the checkpoint.
            lines: of the manifest, episodes that came after it.

        Returns:
            Own steps in these lines.
        """
        for facts in stats.last:
            told = self._told.get(facts.number)
            if told is not None:
                facts.success, facts.returned = told.facts.success, told.facts.returned
                told.facts = facts
        steps = 0
        for line in lines:
            if line.get("teaching", line["demo"]):  # whatever became of it: thrown away, failed or kept
                stats.add_demo(int(line["human_steps"]))
                continue
            steps += int(line["steps"])
            driven = self._driven.get(int(line["episode_id"]))
            if driven is not None:
                stats.add(driven)
        return steps


def total_reward(steps: Sequence[ControlStep]) -> float:
    """Task reward of the steps that count, undiscounted."""
    return sum(step.reward_task for step in steps if step.valid)


def last_word(steps: Sequence[ControlStep], rules: EpisodeRules, success: bool | None) -> ControlStep | None:
    """The last valid step with the outcome that a person says; None takes back what they had said, a key included."""
    keyed = any(step.reward_source == RewardSource.HUMAN_KEY for step in steps)
    final = relabel(steps, rules, success) if success is not None or keyed else None
    return final or next((step for step in reversed(steps) if step.valid), None)


def store(memory: HilMemory, steps: Sequence[ControlStep], *, demo: bool) -> tuple[list[int], int]:
    """Rows of the steps, and the row of the last valid one or -1."""
    first, final = memory.count, -1
    for step in steps:
        before = memory.count
        memory.extend([step], demo=demo)
        if step.valid:
            final = before if memory.count > before else -1
    return list(range(first, memory.count)), final
