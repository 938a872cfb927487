"""The human-in-the-loop job: folder, demonstrations, loop, evaluation blocks, checkpoints and report."""

from __future__ import annotations

import gc
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from pydantic import Field
from tqdm import tqdm

from robot_rl import checkpoint, lineage
from robot_rl.checkpoint import CheckpointError
from robot_rl.data.hil_episode import EpisodeRules, to_steps
from robot_rl.data.mix import Mix, Shares
from robot_rl.data.seen import measure_seen
from robot_rl.human.adviser import Adviser
from robot_rl.human.attended import AttendedTrials
from robot_rl.human.devices.teleop import Camera, Frame
from robot_rl.human.elicitor import Elicitor
from robot_rl.human.judge import Judge
from robot_rl.human.log import HilLog
from robot_rl.human.loop import HumanInTheLoop
from robot_rl.human.memory import HilMemory
from robot_rl.human.new_steps import NewSteps
from robot_rl.human.options import SessionOptions
from robot_rl.human.painter import Painter
from robot_rl.human.pilot import LiveRobot
from robot_rl.human.recovery import Recovery, of_environment
from robot_rl.human.session import Helpers, Records, batch_rows
from robot_rl.human.stats import Trials, count_stops
from robot_rl.human.trials import trials
from robot_rl.human.waiting import meanwhile
from robot_rl.loops.contract import batches_for
from robot_rl.parts import Parts
from robot_rl.run import Run, RunStart
from robot_rl.schedule import Schedule
from robot_rl.types import AnyLearner, IOSpec, Metrics, Needs, Stateful
from robot_rl.types.options import Count, Discount, NotNegative, Share, Whole
from robot_rl.verbs.build import EnvMaker, MakeEnv


class HilSettings(SessionOptions):
    """Numbers of a run."""

    total_steps: Count = 20_000
    """Own steps in all; demonstrations are not counted."""
    seed: Whole = 0
    """Of everything; evaluation uses its own fixed seeds."""
    gamma: Discount = 0.97
    """Discount per control step."""
    demos: Whole = 20
    """Successful demonstrations that the person drives first."""
    elicit: Whole = 0
    """After this many, later ones that contradict them are asked for again; 0 = take all."""
    advise: Share = 0.0
    """Share of the policy's steps in which help is asked for; 0 = never. Needs a learner with critics."""
    demo_share: Annotated[float, Field(ge=0, lt=1)] = 0.5
    """Their share (and that of the person's steps) of every batch; 0 uses no demonstrations."""
    buffer_size: Count = 200_000
    """Steps kept in memory; the disk keeps all."""
    learn_from: Literal["cmd", "exec"] = "cmd"
    """Which action counts: cmd (before safety) or exec (after it)."""
    dup_human: bool = True
    """Human steps also count as demonstrations."""
    store_human: Literal["all", "last", "none"] = "all"
    """Which of the person's steps are kept."""
    reaction_ms: NotNegative = 200.0
    """How long the person takes to press a key for a label, ms."""
    stop_is_end: bool = False
    """Stops are true ends instead of cuts."""
    recover: bool = False
    """A robot that is stuck backs out by itself, where its world knows how; see `Recovery`."""
    eval_every: Whole = 2000
    """Own steps between evaluation blocks; 0 = only at the end."""
    eval_episodes: Count = 20
    """Trials of a block in mid-run."""
    final_episodes: Count = 100
    """Trials of the block at the end."""
    use_best: bool = True
    """The trials at the end are of the policy that did best in a block in mid-run, or in one more block now; those have
    other starts. It is the one that `path=<run>` stands for."""
    stop_success: Share | None = None
    """Stop once a block over `final_episodes` reaches this rate; None = never."""
    gate: Share = 0.9
    """Lower bound of the success rate that unattended operation needs."""
    checkpoint_every: Whole = 2000
    """Own steps between checkpoints; 0 = only at the end."""
    keep_checkpoints: Count = 3
    """How many stay."""
    realtime: Annotated[int, Field(ge=0, le=98)] | None = None
    """With role=actor and a person at the seat: SCHED_FIFO priority of the control loop, where the system allows it,
    and one less of this process's other threads; 0 = ordinary, None = 20."""

    def rules(self) -> EpisodeRules:
        """Rewards and ends."""
        return EpisodeRules(gamma=self.gamma, reaction_ms=self.reaction_ms, stop_is_end=self.stop_is_end)


def make_memory(settings: HilSettings, io: IOSpec, need: Needs) -> tuple[HilMemory, Mix | NewSteps]:
    """An empty memory, and batches of it at the shares that the settings want, for a learner that needs this.

    Raises:
        ValueError: it needs goals of hindsight.
    """
    if need.hindsight:
        raise ValueError(
            "this policy replays steps under goals that were reached later, which a session with a person does not "
            "record; use policy=human/imitation_sac, or robot-rl train for this one"
        )
    memory = HilMemory(
        io,
        settings.buffer_size,
        learn_from=settings.learn_from,
        dup_human=settings.dup_human,
        store_human=settings.store_human,
        seed=settings.seed,
        keys=need.keys if need.sight else None,
        sight=need.sight,
    )
    if need.feeds == "episodes":
        return memory, NewSteps(memory, settings.demo_share)
    views = memory.views
    parts: Any = {"online": (views["online"], 1.0 - settings.demo_share)}
    if settings.demo_share > 0.0:
        parts["demo"] = (views["demo"], settings.demo_share)
    return memory, Mix(parts, seed=settings.seed)


@dataclass(frozen=True)
class HilMakers:
    """What builds the parts of a run.

    Attributes:
        env: (num_envs, seed, render) -> vector environment.
        learner: (io) -> learner.
        pilot: (env, with person) -> pilot.
        pictures: the person's screen shows the environment.
        drawn: makes what is drawn for that screen, where that is not the environment itself.
        judge: (io) -> success classifier on duty.
        clones: (states, actions, control_hz=) of the first demonstrations -> what later ones are compared with; used
            with `HilSettings.elicit`.
    """

    env: MakeEnv
    learner: Callable[[IOSpec], AnyLearner]
    pilot: Callable[[Any, bool], Any]
    pictures: bool = False
    drawn: MakeEnv | None = None
    judge: Callable[[IOSpec], Judge] | None = None
    clones: Callable[..., Any] | None = None

    @property
    def plain(self) -> MakeEnv:
        """Makes the environment as `EnvMaker.plain` does, for trials."""
        return self.env.plain if isinstance(self.env, EnvMaker) else self.env


class HilJob:
    """One run in one folder, one process: `log/` holds every step that was ever driven, `checkpoints/` the learner.

    Args:
        settings: numbers.
        start: where the run begins.
        makers: what builds the parts.

    Raises:
        CheckpointError: nothing to resume from, or it does not fit.
        InUse: another process runs in the folder that is to be resumed.
    """

    actor_id = 0

    def __init__(
        self,
        settings: HilSettings,
        start: RunStart,
        makers: HilMakers,
    ) -> None:
        self.settings, self._makers = settings, makers
        if (settings.task_reward == "classifier") != (makers.judge is not None):
            raise ValueError(
                "task_reward=classifier and judge=<folder of robot-rl classify> belong together; give both or neither"
            )
        folder = start.folder
        if start.resume and not (checkpoint.complete(folder / "checkpoints") or (folder / "log").is_dir()):
            raise CheckpointError(f"{folder} holds neither checkpoints nor a log; expected a folder of robot-rl hil")
        pictures = makers.pictures
        self.env = makers.env(1, settings.seed, pictures)
        self._painter: Painter | None = None
        if pictures and self.env.parts.saves and makers.env is makers.plain:
            drawn = makers.drawn or makers.env
            self._painter = Painter(lambda: drawn(1, settings.seed, True))  # before anything draws here
        self.judge = None if makers.judge is None else makers.judge(self.env.io)
        self.elicitor: Elicitor | None = None
        fit_clones = makers.clones
        if settings.elicit and fit_clones is not None:
            hz = self.env.io.control_hz
            self.elicitor = Elicitor(
                lambda states, actions: fit_clones(states, actions, control_hz=hz),
                base=settings.elicit,
                control_hz=hz,
                say=lambda line: tqdm.write(line, file=sys.stderr),
            )
        self.learner: AnyLearner = makers.learner(self.env.io)
        self.pilot = makers.pilot(self.env, True)
        self.memory: HilMemory | None = None
        self.sampler: Mix | NewSteps | None = None
        self._trial_parts = None
        self._ending = False  # the block at the end is due: its starts are its own
        self._chosen: dict[str, Any] = {}
        claim = start.claim()
        self.folder = claim.folder
        with claim.building():
            self.log = HilLog(
                self.folder / "log", self.env.io, run_id=settings.seed, actor_id=self.actor_id, rules=settings.rules()
            )
            live = self._films(pictures)
            self.loop = self._make_loop(self._picture if pictures and not live else None)
            self._run = Run(
                start,
                claim,
                Schedule.of(settings, settings.total_steps),  # its loop calls after every episode
                self._parts(),
                count=lambda: self.loop.env_steps,
                evaluate=self.evaluate,
                on_interrupt=self.loop.stop,
            )
            self._run.goes_on = True  # a person drives, and the log has every step
            if start.resume:
                self._restore()
            self._run.begin()
        self.resume_step, self.tracker = self._run.step, self._run.tracker

    def _films(self, pictures: bool) -> bool:
        """Whether the screen has the robot's own cameras, at their own rate."""
        env, human = self.env, self.pilot.human
        if not pictures or human is None or not isinstance(env, LiveRobot):
            return False
        human.film(lambda: {name: Frame(*found) for name, found in env.pictures().items()})
        return True

    def _parts(self) -> Parts:
        """What a checkpoint holds; the memory is filled from the log, which holds every step."""
        states: dict[str, Stateful] = {"learner": self.learner, "loop": self.loop}
        if self.sampler is not None:
            states["sampler"] = Shares(self.sampler)
        return Parts(
            states,
            policy=self.learner.policy,
            io=self.env.io,
            facts={"seed": self.settings.seed, "settings": self.settings.model_dump(mode="json")},
            seen=lambda: measure_seen(self.memory, self.env.io),
        )

    def _make_loop(self, picture: Camera | None) -> HumanInTheLoop:
        """Memory, batches and the loop that uses them."""
        settings = self.settings
        self.memory, self.sampler = make_memory(settings, self.env.io, self.learner.need)
        self.learner.take_frames(self.memory)
        return HumanInTheLoop(
            self.env,
            self.learner,
            self.pilot,
            Records(self.log, self.memory, self.sampler, settings.rules()),
            options=settings,
            seed=settings.seed,
            helpers=replace(self._helpers(picture), adviser=self._make_adviser()),
        )

    def _helpers(self, picture: Camera | None) -> Helpers:
        """Who looks on, beside the adviser, which asks the learner."""
        return Helpers(frame=picture, judge=self.judge, elicitor=self.elicitor, recovery=self._make_recovery())

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
        try:
            self._run.follow(self._drive)
            with self._run.interrupt:  # in the last block too a first Ctrl-C lets the robot come to a hold
                self._settle()
                self._choose()
                return self._run.finish(calls={"log": self._hash_log}, more=self._summary)
        finally:
            gc.unfreeze()
            self._run.close()
            if self._painter is not None:
                self._painter.close()
            self.pilot.close()
            self.log.close()

    def stop(self) -> None:
        """End as after a Ctrl-C, everything saved; from any thread."""
        self._run.interrupt.ask()

    def _is_interrupted(self) -> bool:
        return self._run.interrupt.asked

    def _drive(self) -> None:
        s, loop = self.settings, self.loop
        if self.pilot.realtime:  # what is there now is left out of later collections, of which one takes 0.1 s and more
            gc.collect()
            gc.freeze()
        if s.demos > loop.demos:
            with tqdm(total=s.demos, initial=loop.demos, unit="demo", file=sys.stderr, dynamic_ncols=True) as bar:
                loop.collect_demos(s.demos, lambda done: bar.update(done - bar.n))
        self._prepare()
        if loop.env_steps < s.total_steps and not self._run.interrupt.asked:
            loop.run(s.total_steps, self._tick)

    def _tick(self, step: int, metrics: Metrics) -> bool:
        try:
            return self._run.tick(step, metrics)
        finally:
            self.loop.unsaved = self._run.unsaved

    def evaluate(self, episodes: int) -> Trials:
        """A block of autonomous trials from natural starts, through the safety layer.

        Where a person is there they start it and may stop it; see `AttendedTrials`. A robot exists once; in simulation
        the trials have an environment of their own.
        """
        attended, robot = self.pilot.realtime, not self.pilot.simulates
        if self._trial_parts is None:
            pictures = attended and self.loop.frame is not None
            env = self.env if robot else self._makers.plain(1, self.settings.seed + 10_000, pictures)
            self._trial_parts = env, self.pilot if attended else self._makers.pilot(env, False)
        env, pilot = self._trial_parts
        seed = 10_000 if self._ending or not self.settings.use_best else 20_000
        if not attended:
            return trials(
                env,
                self.learner.policy,
                pilot,
                episodes=episodes,
                seed=seed,
                stopped=self._is_interrupted,
                judge=self.judge,
                overrules=False,
            )
        frame = None if self.loop.frame is None else lambda quality: self._draw(env, quality)
        block = AttendedTrials(self.loop, env, episodes=episodes, seed=seed, stopped=self._is_interrupted, frame=frame)
        return block.run()

    def _prepare(self) -> None:
        """Learners that start from demonstrations do so now, once."""
        assert self.memory is not None
        views = self.memory.views
        if self.loop.prepared or self._run.interrupt.asked:
            return
        self.loop.prepared = True
        if not len(views["demo"]):
            return
        batches = batches_for(self.learner, views["demo"].batches(batch_rows(self.learner)))
        metrics = meanwhile(self.loop, "learning the demonstrations", lambda: self.learner.pretrain(batches))
        self.tracker.log(metrics, self.loop.env_steps)

    def _choose(self) -> None:
        """The policy for the last block: the best one so far, where the newest does worse in a block of its own."""
        s, kept = self.settings, self._run.checkpoints
        if s.use_best and s.eval_every and kept.best() and not self._is_interrupted():
            self._run.result = None  # a block that chose is not the one that is reported, however long it was
            now = self.evaluate(s.eval_episodes).metrics()["eval/success"]
            if self._is_interrupted():  # cut short by whoever wants to stop: it chooses nothing
                return
            best = kept.best()
            kept.choose_best(now < best["rank"][0])
            if now < best["rank"][0]:
                folder = kept.root / checkpoint.BEST
                self.learner.policy.load_state_dict(checkpoint.load_state(folder / "policy.pt"))
                self._run.keeps_best = False  # it is kept already, with its own step and learner
                self._chosen = {
                    "policy": f"{folder} (step {best['step']}: {best['rank'][0]:.2f}, the newest {now:.2f})"
                }
        self._ending = True

    def _settle(self) -> None:
        """Before the last block: nothing to wait for, where driving and learning take turns."""

    def _further(self) -> dict[str, object]:
        """More lines of the summary."""
        return {}

    def _picture(self, quality: int) -> Frame | None:
        return self._draw(self.env, quality)

    def _draw(self, env: Any, quality: int) -> Frame | None:
        """For the screen: a simulation is drawn elsewhere, a robot's camera is there already."""
        if self._painter is None or self._painter.dead:
            return Frame(env.render()[0], time.monotonic() - 1e-3 * self.loop.watch.age_ms)
        return self._painter.turn(env.state_dict, quality)

    def _restore(self) -> None:
        """The newest checkpoint that can be read; what was driven since then comes from the log."""
        demos = self.loop.restore_memory()
        if checkpoint.complete(self.folder / "checkpoints"):
            self._run.restore()
        else:  # killed before the first checkpoint
            self.loop.catch_up(0)
            self._run.step = self.loop.env_steps
        self.loop.demos = demos
        if self.elicitor is not None:
            self.elicitor.restore(to_steps(episode) for episode in self.log.episodes() if episode.meta.get("demo"))

    def _summary(self) -> dict[str, Any]:
        """What the evaluation block is set against."""
        loop, block = self.loop, self._run.result
        assert isinstance(block, Trials)
        stats = loop.stats
        against = block.gate(self.settings.gate, stats.tick(99), 1e3 / self.env.io.control_hz)
        return {
            "human_seconds": stats.human_seconds,
            "demonstrations": loop.demos,
            **({} if loop.adviser is None else {"help_asked_steps": loop.adviser.asked}),
            **({} if loop.recovery is None else {"recoveries": loop.recovery.count}),
            **({} if self.elicitor is None else {"demonstrations_asked_for_again": self.elicitor.refused}),
            "interventions_steps": stats.human_steps,
            "ends": json.dumps(stats.reasons),
            **({"stopped_by": count_stops(stats.stops)} if stats.stops else {}),
            "unattended": "allowed" if not against else "no: " + "; ".join(against),
            **self._chosen,
            **self._further(),
        }

    def _hash_log(self) -> str:
        lineage.add(self.folder, "log", lineage.digest(self.folder / "log"))
        return str(self.folder / "log")
