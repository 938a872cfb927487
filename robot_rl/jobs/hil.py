"""The human-in-the-loop job: folder, demonstrations, loop, evaluation blocks, checkpoints and report."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from tqdm import tqdm

from robot_rl import checkpoint, report
from robot_rl.checkpoint import CheckpointError, write_bytes, write_json
from robot_rl.data.hil_episode import EpisodeRules
from robot_rl.data.hil_log import HilLog
from robot_rl.data.hil_memory import HilMemory
from robot_rl.data.mix import Mix
from robot_rl.loops.hil import HumanInTheLoop
from robot_rl.loops.hil_adviser import Adviser
from robot_rl.loops.hil_elicit import Elicitor
from robot_rl.loops.hil_episodes import NewSteps
from robot_rl.loops.hil_judge import Judge
from robot_rl.loops.hil_options import HilOptions
from robot_rl.loops.hil_painter import Painter
from robot_rl.loops.hil_recovery import Recovery, of_environment
from robot_rl.loops.hil_stats import Trials
from robot_rl.loops.hil_trials import AttendedTrials
from robot_rl.loops.trials import trials
from robot_rl.stopwatch import Stopwatch
from robot_rl.track import METRICS_FILE, read_metrics
from robot_rl.types import IOSpec, Learner, Metrics, Tracker


@dataclass(frozen=True)
class HilSettings:
    """Numbers of a run; the top-level keys of configs/hil.yaml.

    Attributes:
        total_steps: own steps in all; demonstrations are not counted.
        seed: of everything; evaluation uses its own fixed seeds.
        gamma: discount per control step.
        demos: successful demonstrations that the person drives first.
        elicit: after this many, later ones that contradict them are asked for again; 0 = take all.
        advise: share of the policy's steps in which help is asked for; 0 = never. Needs a learner with critics.
        demo_share: their share (and that of the person's steps) of every batch; 0 uses no demonstrations.
        buffer_size: steps kept in memory; the disk keeps all.
        task_reward: "success", "env", "labels" or "classifier"; see `HilOptions`.
        learn_from: "cmd" or "exec"; see `HilMemory`.
        dup_human: human steps also count as demonstrations.
        store_human: "all", "last" or "none".
        promote_success: unaided successes join the demonstrations.
        reaction_ms: of the person's labels.
        stop_is_end: stops are true ends instead of cuts.
        recover: a robot that is stuck backs out by itself, where its world knows how; see `Recovery`.
        hold_s: a person may hold the robot so long before the episode is given up.
        learning_starts: own steps before the first update.
        random_steps: own steps with random proposals.
        updates_per_step: learner updates per own step.
        eval_every: own steps between evaluation blocks; 0 = only at the end.
        eval_episodes: trials of a block in mid-run.
        final_episodes: trials of the block at the end.
        stop_success: stop once a block over `final_episodes` reaches this rate; None = never.
        gate: lower bound of the success rate that unattended operation needs.
        checkpoint_every: own steps between checkpoints; 0 = only at the end.
        keep_checkpoints: how many stay.
    """

    total_steps: int
    seed: int = 0
    gamma: float = 0.97
    demos: int = 20
    elicit: int = 0
    advise: float = 0.0
    demo_share: float = 0.5
    buffer_size: int = 200_000
    task_reward: str = "success"
    learn_from: str = "cmd"
    dup_human: bool = True
    store_human: str = "all"
    promote_success: bool = False
    reaction_ms: float = 200.0
    stop_is_end: bool = False
    recover: bool = False
    hold_s: float = 30.0
    learning_starts: int = 100
    random_steps: int = 0
    updates_per_step: float = 1.0
    eval_every: int = 2000
    eval_episodes: int = 20
    final_episodes: int = 100
    stop_success: float | None = None
    gate: float = 0.9
    checkpoint_every: int = 2000
    keep_checkpoints: int = 3

    def __post_init__(self) -> None:
        if not 0.0 <= self.demo_share < 1.0 or self.demos < 0:
            raise ValueError(f"demo_share is {self.demo_share} and demos {self.demos}, expected in [0, 1) and >= 0")

    def rules(self) -> EpisodeRules:
        """Rewards and ends."""
        return EpisodeRules(gamma=self.gamma, reaction_ms=self.reaction_ms, stop_is_end=self.stop_is_end)

    def options(self) -> HilOptions:
        """Numbers of the loop."""
        names = [item.name for item in fields(HilOptions) if hasattr(self, item.name)]
        return HilOptions(**{name: getattr(self, name) for name in names})


def make_memory(settings: HilSettings, io: IOSpec, *, in_order: bool = False) -> tuple[HilMemory, Mix | NewSteps]:
    """An empty memory, and batches of it at the shares that the settings want; `in_order` for on-policy learners."""
    memory = HilMemory(
        io,
        settings.buffer_size,
        learn_from=settings.learn_from,
        dup_human=settings.dup_human,
        store_human=settings.store_human,
        seed=settings.seed,
    )
    if in_order:
        return memory, NewSteps(memory, settings.demo_share)
    views = memory.views
    parts: Any = {"online": (views["online"], 1.0 - settings.demo_share)}
    if settings.demo_share > 0.0:
        parts["demo"] = (views["demo"], settings.demo_share)
    return memory, Mix(parts, seed=settings.seed)


class HilJob:
    """One run in one folder, one process: `log/` holds every step that was ever driven, `checkpoints/` the learner.

    Args:
        settings: numbers.
        folder: the run folder.
        make_env: (num_envs, seed, render) -> vector environment.
        make_learner: (io) -> learner.
        make_pilot: (env, with person) -> pilot.
        make_tracker: (resume step or None) -> tracker.
        config: the composed configuration as YAML.
        resume: continue in `folder`.
        make_judge: (io) -> success classifier on duty.
        fit_clones: (states, actions, control_hz=) of the first demonstrations -> what later ones are compared with;
            used with `settings.elicit`.

    Raises:
        CheckpointError: nothing to resume from, or it does not fit.
    """

    actor_id = 0

    def __init__(
        self,
        settings: HilSettings,
        folder: Path,
        *,
        make_env: Callable[..., Any],
        make_learner: Callable[[Any], Any],
        make_pilot: Callable[[Any, bool], Any],
        make_tracker: Callable[[int | None], Tracker],
        config: str,
        resume: bool = False,
        make_judge: Callable[[IOSpec], Judge] | None = None,
        fit_clones: Callable[..., Any] | None = None,
    ) -> None:
        self.settings, self.folder, self.config = settings, folder, config
        self.root = folder / "checkpoints"
        if (settings.task_reward == "classifier") != (make_judge is not None):
            raise ValueError(
                "task_reward=classifier and judge=<folder of robot-rl classify> belong together; give both or neither"
            )
        found = self._found(folder) if resume else None
        folder.mkdir(parents=True, exist_ok=True)
        write_bytes(folder / "config.yaml", config.encode())
        self._make_env, self._make_pilot = make_env, make_pilot
        pictures = getattr(make_pilot, "pictures", False)
        self.env = make_env(1, settings.seed, pictures)
        self._painter: Painter | None = None
        if pictures and hasattr(self.env, "load_state_dict") and not hasattr(make_env, "plain"):
            self._painter = Painter(lambda: make_env(1, settings.seed, True))  # before anything draws here
        self.judge = None if make_judge is None else make_judge(self.env.io)
        self.elicitor: Elicitor | None = None
        if settings.elicit and fit_clones is not None:
            hz = self.env.io.control_hz
            self.elicitor = Elicitor(
                lambda states, actions: fit_clones(states, actions, control_hz=hz),
                base=settings.elicit,
                control_hz=hz,
                say=lambda line: tqdm.write(line, file=sys.stderr),
            )
        self.learner: Learner[Any, Any] = make_learner(self.env.io)
        self.pilot = make_pilot(self.env, True)
        self.log = HilLog(
            folder / "log", self.env.io, run_id=settings.seed, actor_id=self.actor_id, rules=settings.rules()
        )
        self.memory: HilMemory | None = None
        self.sampler: Mix | NewSteps | None = None
        self.loop = self._make_loop(self._picture if pictures else None)
        self.resume_step: int | None = None
        if resume:
            self._restore(found)
        self.tracker = make_tracker(self.resume_step)
        self._watch = Stopwatch()
        self._trial_parts: Any = None
        self._last_hook = self.loop.env_steps
        self._saved_at = self.resume_step
        self._interrupted = False
        self.trials: Trials | None = None
        self._tick_p99 = 0.0

    def _make_loop(self, picture: Callable[[int], Any] | None) -> HumanInTheLoop:
        """Memory, batches and the loop that uses them."""
        settings = self.settings
        self.memory, self.sampler = make_memory(settings, self.env.io, in_order=self.learner.need.feeds == "episodes")
        return HumanInTheLoop(
            self.env,
            self.learner,
            self.pilot,
            log=self.log,
            memory=self.memory,
            sampler=self.sampler,
            rules=settings.rules(),
            options=settings.options(),
            batch_size=self.learner.need.rows or 256,
            seed=settings.seed,
            frame=picture,
            judge=self.judge,
            elicitor=self.elicitor,
            adviser=self._make_adviser(),
            recovery=self._make_recovery(),
        )

    def _make_recovery(self) -> Recovery | None:
        if not self.settings.recover:
            return None
        self.env.reset()  # a place to ask for
        return of_environment(self.env, self.settings.seed)

    def _make_adviser(self) -> Adviser | None:
        share = self.settings.advise
        if not share:
            return None
        if not self.learner.judges:
            raise ValueError(
                f"advise={share:g} needs a learner whose critics can be asked: policy=human/imitation_sac or human/rlif"
            )
        return Adviser(self.learner.values, self.env.io.control_hz, share=share)

    def run(self) -> dict[str, Any]:
        """Demonstrations, loop, final block, report; returns the summary.

        Raises:
            KeyboardInterrupt: after a Ctrl-C, once everything is saved.
        """
        s, loop = self.settings, self.loop
        previous = signal.getsignal(signal.SIGINT)
        try:
            signal.signal(signal.SIGINT, self._on_interrupt)
        except ValueError:  # not the main thread
            previous = None
        try:
            if s.demos > loop.demos:
                with tqdm(total=s.demos, initial=loop.demos, unit="demo", file=sys.stderr, dynamic_ncols=True) as bar:
                    loop.collect_demos(s.demos, lambda done: bar.update(done - bar.n))
            self._prepare()
            total, begun = s.total_steps, loop.env_steps
            with tqdm(total=total, initial=begun, unit="step", file=sys.stderr, dynamic_ncols=True) as bar:
                self._bar = bar
                self._watch.resume()
                if loop.env_steps < s.total_steps and not self._interrupted:
                    loop.run(s.total_steps, self._hook)
            if self._saved_at != loop.env_steps:
                self._save()
            if self._interrupted:
                raise KeyboardInterrupt(str(self.folder))
            self._settle()
            if self._interrupted:
                raise KeyboardInterrupt(str(self.folder))
            return self._finish()
        finally:
            if previous is not None:
                signal.signal(signal.SIGINT, previous)
            self.tracker.close()
            if self._painter is not None:
                self._painter.close()
            self.pilot.close()
            self.log.close()

    def evaluate(self, episodes: int) -> Trials:
        """A block of autonomous trials from natural starts, through the safety layer.

        Where a person is there they start it and may stop it; see `AttendedTrials`. A robot exists once; in simulation
        the trials have an environment of their own.
        """
        plain = getattr(self._make_env, "plain", self._make_env)
        attended, robot = self.pilot.realtime, not self.pilot.simulates
        if self._trial_parts is None:
            pictures = attended and self.loop.frame is not None
            env = self.env if robot else plain(1, self.settings.seed + 10_000, pictures)
            self._trial_parts = env, self.pilot if attended else self._make_pilot(env, False)
        env, pilot = self._trial_parts
        if not attended:
            return trials(
                env, self.learner.policy, pilot, episodes=episodes, seed=10_000, stopped=lambda: self._interrupted
            )
        frame = None if self.loop.frame is None else lambda quality: self._draw(env, quality)
        block = AttendedTrials(
            self.loop, env, episodes=episodes, seed=10_000, stopped=lambda: self._interrupted, frame=frame
        )
        return block.run()

    def _prepare(self) -> None:
        """Learners that start from demonstrations do so now, once."""
        assert self.memory is not None
        views = self.memory.views
        if self.loop.updates > 0 or not len(views["demo"]) or self._interrupted:
            return
        batches = views["demo"].batches(self.learner.need.rows or 256)
        metrics = self.loop.meanwhile("learning the demonstrations", lambda: self.learner.pretrain(batches))
        self.tracker.log(metrics, self.loop.env_steps)

    def _settle(self) -> None:
        """Before the last block: nothing to wait for, where driving and learning take turns."""

    def _further(self) -> dict[str, Any]:
        """More lines of the summary."""
        return {}

    def _hook(self, step: int, metrics: Metrics) -> bool:
        s = self.settings
        self._watch.pause()
        wall, cpu = self._watch.read()
        metrics = {**metrics, "time/train_s": wall, "time/train_cpu_s": cpu}
        self._tick_p99 = max(0.9 * self._tick_p99, metrics.get("hil/tick_ms_p99", 0.0))
        self._bar.update(step - self._bar.n)
        stop, before = False, self._last_hook
        if s.eval_every and step // s.eval_every > before // s.eval_every:
            block = self.evaluate(s.eval_episodes)
            metrics |= {} if self._interrupted else block.metrics()  # a block that was cut says nothing
            if s.stop_success is not None and metrics.get("eval/success", 0.0) >= s.stop_success:
                block = self.evaluate(s.final_episodes)  # sure of it only on the full number of trials
                metrics |= {} if self._interrupted else block.metrics()
                stop = metrics["eval/success"] >= s.stop_success
                self.trials = block if stop else None
        names = {"success": "rollout/success", "help": "rollout/intervention_rate", "eval": "eval/success"}
        self._bar.set_postfix({short: f"{metrics[name]:.2f}" for short, name in names.items() if name in metrics})
        self.tracker.log(metrics, step)
        if s.checkpoint_every and step // s.checkpoint_every > before // s.checkpoint_every:
            self._save()
        self._last_hook = step
        self._watch.resume()
        return stop or self._interrupted

    def _on_interrupt(self, *_: Any) -> None:
        if self._interrupted:  # asked twice: leave at once
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            raise KeyboardInterrupt
        self._interrupted = True
        self.loop.stop()

    def _picture(self, quality: int) -> Any:
        return self._draw(self.env, quality)

    def _draw(self, env: Any, quality: int) -> Any:
        """For the screen: a simulation is drawn elsewhere, a robot's camera is there already."""
        if self._painter is None or self._painter.dead:
            return env.render()[0]
        return self._painter.turn(env.state_dict, quality)

    def _save(self) -> None:
        loop = self.loop
        state: dict[str, Any] = {"loop": loop.state_dict()}
        if self.sampler is not None:
            state["sampler"] = {**self.sampler.state_dict(), "parts": {}}
        checkpoint.save(
            self.root,
            loop.env_steps,
            policy=self.learner.policy.state_dict(),
            learner=self.learner.state_dict(),
            loop=state,
            io=self.env.io,
            config=self.config,
            meta={"seed": self.settings.seed, "settings": asdict(self.settings), "log": len(self.log.manifest)},
            keep=self.settings.keep_checkpoints,
        )
        self._saved_at = loop.env_steps

    @staticmethod
    def _found(folder: Path) -> list[Path]:
        """Checkpoints, newest first; none is fine when there is a log."""
        found = list(reversed(checkpoint.complete(folder / "checkpoints")))
        if not found and not (folder / "log").is_dir():
            raise CheckpointError(f"{folder} holds neither checkpoints nor a log; expected a folder of robot-rl hil")
        return found

    def _restore(self, found: list[Path] | None) -> None:
        """The newest checkpoint that can be read; what was driven since then comes from the log."""
        self.loop.restore_memory()
        for path in found or []:
            differences = checkpoint.read_io(path).differences(self.env.io)
            if differences:
                raise CheckpointError(
                    f"the checkpoint {path} was made for another interface:\n  - " + "\n  - ".join(differences)
                )
            try:
                learner = checkpoint.load_state(path / "learner.pt")
                state = checkpoint.load_state(path / "loop.pt")
            except CheckpointError:
                continue  # damaged: the one before
            self.learner.load_state_dict(learner)
            self.loop.load_state_dict(state["loop"])
            if self.sampler is not None:
                self.sampler.load_state_dict(state["sampler"])
            break
        else:  # killed before the first checkpoint
            self.loop.demos = sum(line["demo"] for line in self.log.manifest)
            self.loop.env_steps = sum(line["steps"] for line in self.log.manifest if not line["demo"])
        self.resume_step = self.loop.env_steps

    def _finish(self) -> dict[str, Any]:
        s, loop = self.settings, self.loop
        block = self.trials or self.evaluate(s.final_episodes)
        if self._interrupted:
            raise KeyboardInterrupt(str(self.folder))
        final = block.metrics()
        self.tracker.log(final, loop.env_steps)
        rows = read_metrics(self.folder / METRICS_FILE)
        curve = report.write_curve(self.folder / "curve.png", rows, title=self.folder.name)
        stats = loop.stats
        against = block.gate(s.gate, self._tick_p99, 1e3 / self.env.io.control_hz)
        summary: dict[str, Any] = {
            "steps": loop.env_steps,
            **{name.removeprefix("eval/"): value for name, value in final.items()},
            "human_seconds": stats.human_seconds,
            "demonstrations": loop.demos,
            **({} if loop.adviser is None else {"help_asked_steps": loop.adviser.asked}),
            **({} if loop.recovery is None else {"recoveries": loop.recovery.count}),
            **({} if self.elicitor is None else {"demonstrations_asked_for_again": self.elicitor.refused}),
            "interventions_steps": stats.human_steps,
            "ends": json.dumps(stats.reasons),
            "unattended": "allowed" if not against else "no: " + "; ".join(against),
            **self._further(),
            "log": str(self.folder / "log"),
            "checkpoint": str(self.root / f"step_{loop.env_steps:09d}"),
            "curve": str(curve),
            "report": str(self.folder / "report.html"),
        }
        write_json(self.folder / "evaluation.json", {**summary, "successes": block.successes, "lengths": block.steps})
        report.write_report(
            self.folder, title=self.folder.name, summary=summary, config=self.config, curve=curve, video=None
        )
        return summary
