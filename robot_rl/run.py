"""One run in one folder: what is due at a step, what a checkpoint holds, and what is left at the end.

A verb builds its parts, claims the folder, and hands both to a `Run`. Its loop calls `tick` when something is `due`;
evaluation, checkpoints, metrics and stopping are done there, once, for every verb.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import yaml
from tqdm import tqdm

from robot_rl import checkpoint, lineage, parallel, report
from robot_rl.atomic import write_bytes
from robot_rl.checkpoint import CheckpointError, DoesNotFit, leaves, write_json
from robot_rl.claim import Claim, claim_existing, claim_new
from robot_rl.diagnosis import Cause, diagnose
from robot_rl.interrupt import Interrupt
from robot_rl.live_bar import LiveBar
from robot_rl.loops.evaluate import LONGEST
from robot_rl.parts import Checkpoints, Parts
from robot_rl.schedule import Result, Schedule
from robot_rl.stopwatch import Stopwatch
from robot_rl.track import METRICS_FILE, Many, read_metrics
from robot_rl.types import Callback, Metrics

R = TypeVar("R")


@dataclass(frozen=True)
class RunStart:
    """Where and how a run begins.

    Attributes:
        folder: the run folder; a new run takes the next free name if it is a run's already.
        config: the composed configuration as YAML.
        make_tracker: (folder, step where it resumes or None) -> where metrics go.
        resume: go on from the newest checkpoint in `folder`.
    """

    folder: Path
    config: str
    make_tracker: Callable[[str, int | None], Many]
    resume: bool = False

    def claim(self) -> Claim:
        """Take the folder.

        Raises:
            InUse: another process runs in the folder that is to be resumed.
        """
        return claim_existing(self.folder) if self.resume else claim_new(self.folder)


class Run:
    """A run from its claim to its report.

    Args:
        start: where it begins.
        claim: of its folder; released by `close`.
        schedule: when what is due.
        parts: what checkpoints hold.
        count: () -> how far the loop is, a plain number.
        evaluate: (episodes) -> what they gave; None: nothing is evaluated.
        on_interrupt: called on the first Ctrl-C or SIGTERM, for loops that wait for somebody.

    Attributes:
        folder: the run folder.
        step: where it was resumed; None for a new run.
        notes: sentences that whoever reads the report should know.
        failures: what was to be made at the end and could not be -> why.
        result: of the final evaluation.
        tracker: where metrics go, from `begin` on.
        pictures: heading -> PNG, for the report.
        numbers: further lines of evaluation.json.
        findings: what may have kept it from learning, after `finish`.
    """

    def __init__(
        self,
        start: RunStart,
        claim: Claim,
        schedule: Schedule,
        parts: Parts,
        *,
        count: Callable[[], int],
        evaluate: Callable[[int], Result] | None = None,
        on_interrupt: Callable[[], None] = lambda: None,
    ) -> None:
        self.claim, self.schedule, self.folder = claim, schedule, claim.folder
        self.checkpoints = Checkpoints(claim.folder, parts, config=start.config, keep=schedule.keep_checkpoints)
        self._main = parallel.rank() == 0  # which alone writes what is for people
        self._count, self._start, self._evaluate = count, start, evaluate
        self.step: int | None = None
        self.notes: list[str] = []
        self.failures: dict[str, str] = {}
        self.result: Result | None = None
        self.tracker: Many = Many([])
        self.pictures: dict[str, Path] = {}
        self.summary: dict[str, Any] = {}
        self.numbers: dict[str, object] = {}
        self.findings: list[Cause] = []
        self.interrupt = Interrupt(on_interrupt)
        self._watch = Stopwatch()
        self._last = self._evaluated_at = -1
        self._saved_at: int | None = None
        self._best: list[float] | None = None
        self._callback: Callback = lambda step, metrics: None
        self.keeps_best = True
        """Whether a better evaluation than all before keeps the policy; not where an earlier one is tried again."""
        self.goes_on = False
        """A checkpoint on the way that cannot be written is told and tried again at the next tick, and ends nothing."""
        self.unsaved = ""
        """Why the last one was not written, or ""."""
        if claim.note:
            self.note(claim.note)

    # --- the beginning

    @classmethod
    def open(
        cls,
        start: RunStart,
        schedule: Schedule,
        parts: Parts,
        *,
        sources: Mapping[str, Mapping[str, object]],
        skip: Sequence[str] = (),
        **how: Any,
    ) -> Run:
        """Take the folder, go on from its newest checkpoint where that is asked for, and begin.

        Args:
            start: where it begins.
            schedule: when what is due.
            parts: what checkpoints hold.
            sources: what a new run comes from, see `begin`.
            skip: see `restore`.
            how: `count`, `evaluate` and `on_interrupt` of the class.

        Raises:
            InUse: another process runs in the folder that is to be resumed.
            CheckpointError: no checkpoint can be read, or it does not fit.
        """
        claim = start.claim()
        with claim.building():
            run = cls(start, claim, schedule, parts, **how)
            if start.resume:
                run.restore(skip=skip)
            run.begin(sources=sources)
        return run

    def restore(self, *, skip: Sequence[str] = ()) -> None:
        """Continue from the newest checkpoint that can be read; see `Checkpoints.restore`.

        Args:
            skip: states that are left as they are.

        Raises:
            CheckpointError: there is none that can be read and fits.
        """
        try:
            lines = self.checkpoints.restore(skip)
        except DoesNotFit as error:
            changed = self._changes()
            if not changed:
                raise
            raise DoesNotFit(
                f"{self.folder} does not go on with other settings than it began with: {', '.join(changed)}. Leave "
                "these out to go on as it began, or begin a new run; where the networks stay as they are, "
                f"init={self.folder} gives it what was learned"
            ) from error
        for line in lines:
            self.note(line)
        self.step = self._saved_at = self._count()

    def _changes(self) -> list[str]:
        """Settings that are not those that the run in this folder began with, its length aside."""
        before, now = leaves(checkpoint.read_config(self.folder)), leaves(yaml.safe_load(self._start.config))
        return [
            f"{key}={value} (the run has {before[key]})"
            for key, value in now.items()
            if key in before and before[key] != value and key != "total_steps"
        ]

    def begin(
        self,
        *,
        sources: Mapping[str, Mapping[str, object]] | None = None,
        checks: Mapping[str, Callable[[], str]] | None = None,
    ) -> None:
        """Write what a run begins with; from here on the folder is a run's.

        Args:
            sources: of a new run; see `lineage.begin`.
            checks: what the end will need beside a report -> () -> why that is missing, or "".
        """
        if not self._main:
            return
        for name, check in {"report": report.missing, **(checks or {})}.items():
            try:
                missing = check()
            except Exception as error:  # a renderer raises anything
                missing = reason(error)
            if missing:
                self.note(f"{name} will be missing at the end: {missing}")
        self._best = self.checkpoints.best().get("rank")
        self.tracker = self._start.make_tracker(str(self.folder), self.step)  # refused, it leaves no run
        write_bytes(self.folder / "config.yaml", self._start.config.encode())
        if self.step is None:
            lineage.begin(self.folder, sources or {})
        else:
            lineage.add(self.folder, "continued", {"from": self.step})

    def note(self, line: str) -> None:
        """Say something now, and in the report."""
        if line not in self.notes:
            self.notes.append(line)
            self.say(f"NOTE: {line}")

    def say(self, line: str) -> None:
        """To whoever watches, above the progress bar."""
        if self._main:
            tqdm.write(line, sys.stderr)

    # --- on the way

    def follow(self, work: Callable[[], None]) -> None:
        """Do the work that calls `tick`, and save what came of it.

        Raises:
            CheckpointError: a checkpoint could not be written.
            KeyboardInterrupt: after a Ctrl-C or SIGTERM, once everything is saved.
        """
        begun, s = self._count(), self.schedule
        with self.interrupt, LiveBar(s.total, begun, s.unit, self._count, disable=not self._main) as self._bar:
            self._last = begun
            self._watch.resume()
            work()
        if self._saved_at != self._count():
            self.save()
        if self.interrupt.asked:
            raise KeyboardInterrupt(str(self.folder))

    def play(
        self,
        work: Callable[[], None],
        *,
        calls: Mapping[str, Callable[[], object]] | None = None,
        more: Callable[[], Mapping[str, object]] = dict,
        callback: Callback | None = None,
    ) -> dict[str, object]:
        """`follow`, `finish` and, whatever happens, `close`; the summary."""
        self._callback = callback or self._callback
        try:
            self.follow(work)
            return self.finish(calls=calls, more=more)
        finally:
            self.close()

    def due(self, before: int, after: int) -> bool:
        """Whether a loop that went from `before` to `after` has to call `tick`; cheap, for every step."""
        s = self.schedule
        # several processes have to stop at the same step, and each hears of a signal at another
        asked = self.interrupt.asked and parallel.size() == 1
        return asked or any(
            s.has_passed(every, before, after) for every in (s.log_every, s.eval_every, s.checkpoint_every)
        )

    def tick(self, step: int, metrics: Metrics) -> bool:
        """Do what is due: evaluation, a row of metrics, a checkpoint. With several processes all of them call it.

        Args:
            step: how far the loop is.
            metrics: of it.

        Returns:
            Whether to stop, the same for all processes.
        """
        s = self.schedule
        self._watch.pause()
        wall, cpu = self._watch.read()
        metrics = {**metrics, "time/train_s": wall, "time/train_cpu_s": cpu}
        self._bar.to(step)
        stop = False
        if self._evaluate is not None and self._main and s.has_passed(s.eval_every, self._last, step):
            stop, found = self._look(step)
            metrics |= found
        self._bar.note(metrics)
        self.tracker.log(metrics, step)
        stop |= self._callback(step, metrics) is False
        if self.unsaved or s.has_passed(s.checkpoint_every, self._last, step):
            self._on_the_way(self.save)
        self._last = step
        self._watch.resume()
        return parallel.agree(stop or self.interrupt.asked)

    def _look(self, step: int) -> tuple[bool, Metrics]:
        """An evaluation in mid-run: whether it is good enough to stop, and its metrics."""
        s = self.schedule
        result, metrics = self._measure(s.eval_episodes)
        final, stop = step >= s.total and s.eval_episodes == s.final_episodes, False
        if s.stop_success is not None and metrics.get("eval/success", 0.0) >= s.stop_success:
            result, metrics = self._measure(s.final_episodes)  # sure of it only on the full number of episodes
            stop = metrics.get("eval/success", 0.0) >= s.stop_success
        if stop or (final and metrics):
            self.result, self._evaluated_at = result, step
        return stop, metrics

    def _measure(self, episodes: int) -> tuple[Result, Metrics]:
        assert self._evaluate is not None
        result = self._evaluate(episodes)
        metrics = result.metrics()
        if self.interrupt.asked and metrics.get("eval/episodes", episodes) < episodes:
            return result, {}  # cut short by whoever wants to stop: it says nothing
        if metrics.get("eval/cut"):
            self.note(
                f"{metrics['eval/cut']:.0f} of {episodes} episodes of an evaluation did not end by themselves and were "
                f"cut after {LONGEST} steps: give the environment a time limit, env.episode_steps=200 of env=gym"
            )
        rank = [metrics[name] for name in ("eval/success", "eval/score", "eval/return") if name in metrics]
        if rank and self.keeps_best and (self._best is None or rank >= self._best):  # as good, and newer
            facts = {"rank": rank, "evaluation": metrics}
            if self._on_the_way(lambda: self.checkpoints.save_best(self._count(), facts)):
                self._best = rank
        return result, metrics

    def _on_the_way(self, save: Callable[[], object]) -> bool:
        """Write a checkpoint, or tell why not and go on, where this run does; whether it was written."""
        try:
            save()
        except CheckpointError as error:
            if not self.goes_on:
                raise
            if not self.unsaved:
                self.say(f"NOTE: {error} The session goes on and tries again after every episode")
            self.unsaved = f"no checkpoint could be written, which is tried again: free some space ({error})"
            return False
        if self.unsaved:
            self.say("the checkpoint that could not be written is there now")
        self.unsaved = ""
        return True

    def save(self) -> None:
        """Write a checkpoint of now.

        Raises:
            CheckpointError: disk full or folder not writable.
        """
        step = self._count()
        self.checkpoints.save(step)
        self._saved_at = step

    # --- the end

    def finish(
        self,
        *,
        calls: Mapping[str, Callable[[], object]] | None = None,
        more: Callable[[], Mapping[str, object]] = dict,
    ) -> dict[str, object]:
        """Evaluate, write evaluation.json, then make what is for the eye; none of that can fail the run.

        Args:
            calls: name -> makes something after the numbers are written; a path or sentence is kept under the name, a
                dict is taken as further lines. What raises is a line that says why.
            more: further lines of the summary, asked for after the evaluation.

        Returns:
            The summary, by name; of other processes than the first their rank alone.
        """
        if not self._main:
            return {"rank": parallel.rank()}
        step = self._count()
        self.summary = {f"{self.schedule.unit}s": step}
        if self._evaluate is not None:
            if self._evaluated_at != step or self.result is None:
                self.result, complete = self._measure(self.schedule.final_episodes)
                if not complete:
                    raise KeyboardInterrupt(str(self.folder))
            found = self.result.metrics()
            self.tracker.log(found, step)
            self.numbers |= self.result.numbers()
            self.summary |= {name.removeprefix("eval/"): value for name, value in found.items()}
        self.summary |= more()
        self.summary["checkpoint"] = str(self.checkpoints.root / f"step_{step:09d}")
        self._weights(step)
        self._write_numbers()
        made = {
            "curve": self._curve,
            "reward terms": self._reward_terms,
            "diagnosis": self._diagnose,
            **(calls or {}),
            "tensorboard": self._finish_tracker,
            "report": self.report,
        }
        for name, call in made.items():
            value = self._try(name, call)
            if isinstance(value, dict):
                self.summary |= value
            elif value:
                self.summary[name] = str(value)
            self._write_numbers()
        return self.summary

    def report(self) -> Path:
        """Write report.html of what is known by now."""
        missing = [f"{name} was not made: {why}" for name, why in self.failures.items()]
        return report.write_report(
            self.folder,
            title=self.folder.name,
            summary=self.summary,
            config=self._start.config,
            curve=self.folder / "curve.png",
            video=self.folder / "eval.mp4",
            pictures=self.pictures,
            warnings=[*map(str, self.findings), *self.notes, *missing],
        )

    def close(self) -> None:
        """Let go of tracker and folder; always, also after an error."""
        self._try("tensorboard", self.tracker.close)
        self.claim.release()

    def _curve(self) -> Path:
        rows = read_metrics(self.folder / METRICS_FILE)
        unit = "environment step" if self.schedule.unit == "step" else self.schedule.unit
        return report.write_curve(self.folder / "curve.png", rows, title=self.folder.name, unit=unit)

    def _reward_terms(self) -> dict[str, str]:
        """Which terms the reward consisted of, for the summary; drawn for the report."""
        rows = self._rows()
        picture = report.write_terms(self.folder / "reward_terms.png", rows)
        if picture is not None:
            self.pictures["The reward, term by term"] = picture
        return report.rank_terms(rows)

    def _diagnose(self) -> None:
        """What may have kept it from learning, for the report and evaluation.json."""
        self.findings = diagnose(self._rows(), yaml.safe_load(self._start.config) or {})
        self.numbers["diagnosis"] = [asdict(finding) for finding in self.findings]

    def _rows(self) -> list[dict[str, object]]:
        metrics = self.folder / METRICS_FILE
        return read_metrics(metrics) if metrics.exists() else []  # a caller's own tracker keeps none there

    def _finish_tracker(self) -> None:
        self.failures |= self.tracker.failures
        self.summary |= {name: f"not made: {why}" for name, why in self.tracker.failures.items()}

    def _weights(self, step: int) -> None:
        weights = self.checkpoints.root / f"step_{step:09d}" / "policy.pt"
        if weights.exists():
            lineage.add(self.folder, "weights", {"step": step, **lineage.digest(weights)})

    def _write_numbers(self) -> None:
        found = {**self.summary, **self.numbers, "notes": self.notes, "failures": self.failures}
        write_json(self.folder / "evaluation.json", found)

    def _try(self, name: str, call: Callable[[], R]) -> R | str:
        """What a call makes; what it raises becomes a line of `failures` and the answer."""
        try:
            return call()
        except Exception as error:  # whatever decorates fails on its own, and a renderer raises anything
            self.failures[name] = reason(error)
            return f"not made: {self.failures[name]}"


def reason(error: Exception) -> str:
    """The first line of an error, or its kind where it says nothing."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
