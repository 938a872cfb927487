"""A session with a person: its parts and counters, what they say about episodes, and what continues it exactly."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Sized
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from robot_rl.arbiter import Press
from robot_rl.data.hil_episode import EpisodeRules
from robot_rl.data.hil_record import ControlStep
from robot_rl.human.adviser import Adviser
from robot_rl.human.devices.teleop import Camera
from robot_rl.human.elicitor import Elicitor
from robot_rl.human.grippers import Grippers
from robot_rl.human.improver import Improver
from robot_rl.human.judge import Judge
from robot_rl.human.labels import WORDS, Labels
from robot_rl.human.log import HilLog
from robot_rl.human.memory import HilMemory
from robot_rl.human.options import SessionOptions
from robot_rl.human.pilot import LiveRobot, Pilot
from robot_rl.human.recovery import Recovery
from robot_rl.human.scene import Scene
from robot_rl.human.stats import HilStats
from robot_rl.human.watch import Watch
from robot_rl.loops.stepping import Stepper
from robot_rl.types import AnyLearner, Learner, Obs, Sampler, StateDict, Transitions, VecEnv


class StepMemory(Protocol):
    """Keeps steps of the episode under way, such as `HilMemory`; an actor's hands them on instead."""

    @property
    def count(self) -> int:
        """Rows that it was given so far."""
        ...

    @property
    def views(self) -> Mapping[str, Sized]:
        """Name -> what batches are drawn from."""
        ...

    def extend(self, steps: Sequence[ControlStep], *, demo: bool = False) -> int:
        """Store the valid ones among settled steps of one episode; returns how many."""
        ...

    def forget(self, rows: Sequence[int]) -> None:
        """Take rows out of every view."""
        ...

    def amend(self, row: int, step: ControlStep) -> bool:
        """The outcome of this row is another by now; False when it is not kept."""
        ...

    def promote(self, rows: Sequence[int]) -> None:
        """Rows of an unaided success join the demonstrations."""
        ...

    def state_dict(self) -> StateDict:
        """What the log does not hold."""
        ...

    def load_state_dict(self, state: StateDict) -> None:
        """Continue."""
        ...


@dataclass(frozen=True)
class Records:
    """Where what is driven goes, and what is learned from it.

    Attributes:
        log: where episodes go.
        memory: where batches come from.
        sampler: of the memory's views, e.g. a `Mix`.
        rules: rewards and ends.
    """

    log: HilLog
    memory: StepMemory
    sampler: Sampler
    rules: EpisodeRules


@dataclass(frozen=True)
class Helpers:
    """Who looks on; None where there is none.

    Attributes:
        frame: where the picture for the person's screen comes from.
        judge: says whether an observation shows success; needed for task_reward="classifier".
        elicitor: looks at demonstrations as they come.
        adviser: tells the person when help is wanted.
        recovery: backs out where the robot is stuck; its steps are stored and never learned from.
    """

    frame: Camera | None = None
    judge: Judge | None = None
    elicitor: Elicitor | None = None
    adviser: Adviser | None = None
    recovery: Recovery | None = None


ALONE = Helpers()


def batch_rows(learner: AnyLearner) -> int:
    """Rows of a batch: as many as the learner asks for, 256 where it leaves that open."""
    return learner.need.rows or 256


class Session:
    """What driving, trials and the screen have in common.

    Args:
        env: vector environment of one copy.
        learner: improves its policy from transitions.
        pilot: everything between proposal and robot.
        records: where what is driven goes, and what is learned from it.
        options: numbers.
        seed: of the environment's first reset and of random proposals.
        helpers: who looks on.
    """

    def __init__(
        self,
        env: VecEnv,
        learner: Learner[Any, Transitions],
        pilot: Pilot,
        records: Records,
        *,
        options: SessionOptions,
        seed: int = 0,
        helpers: Helpers = ALONE,
    ) -> None:
        if (options.task_reward == "classifier") != (helpers.judge is not None):
            raise ValueError("task_reward=classifier and a classifier belong together; give both or neither")
        self.judge, self.elicitor, self.adviser = helpers.judge, helpers.elicitor, helpers.adviser
        self.recovery, self.frame = helpers.recovery, helpers.frame
        self.env, self.learner, self.pilot = env, learner, pilot
        self.log, self.memory, self.sampler = records.log, records.memory, records.sampler
        self.rules, self.options, self.seed = records.rules, options, seed
        self.stats = HilStats(env.io.control_hz)
        self.env_steps = self.demos = self.version = 0
        self.prepared = False
        """The demonstrations have been learned, if there were any."""
        self._whole = learner.need.feeds == "episodes"  # learns between episodes, from what the same weights drove
        rate = options.updates_per_step / (learner.need.rollout_steps if self._whole else 1)
        self.improver = Improver(
            learner, self.sampler.batches(batch_rows(learner)), rate, most_credit=50.0 * max(rate, 1.0)
        )
        self._trouble, self._full = "", False  # what a person has to put right; it is the disk
        self._stopped_by = ""  # the limit or fault that ended the last episode
        self.unsaved = ""
        """Why the last checkpoint was not written, or ""."""
        self.rng = np.random.default_rng(seed)
        self.live = env if isinstance(env, LiveRobot) else None
        self.stepper = Stepper(env, reset_ended=self.live is None)  # a robot's way to its start takes its time
        self._aside = ThreadPoolExecutor(1, "learner")
        self.scene = Scene(options, self.log.path)
        if self.scene.asks and not pilot.realtime:
            raise ValueError(f"scene={options.scene} waits for a person, and nobody is there; leave scene out")
        if options.scene == "check" and not any(name.startswith("image.") for name in env.io.obs):
            raise ValueError("scene=check compares pictures, and this environment has no cameras; use scene=ask")
        self.updated_ns = pilot.now_ns()
        self._acts = 0, self.updated_ns  # version of the policy that proposed last, and when it was made
        self._stop = self._world_ended = False
        self.watch = Watch(env.io.control_hz, options.max_hold_steps)
        self._seen: dict[str, object] = {}
        self._before = 0  # updates when the episode began
        self._sight: np.ndarray | None = None  # what the policy's encoder saw in the observation that it acted on
        self.grippers = Grippers(env.io, options.grip_penalty)
        self._open_steps = 0  # as many of the newest are not handed on
        self._rows: list[int] = []  # of the memory, before each step of the episode that was handed on
        memory = self.memory if isinstance(self.memory, HilMemory) else None
        self.labels = Labels(self.log, memory, self.rules, promote=options.promote_success)
        self.episode_began_ns: int | None = None
        self.probability = math.nan
        """Of success, as the classifier sees it; nan where there is none."""
        self._late: list[Press] = []  # keys that came while the episode that they are about was being written

    @property
    def updates(self) -> int:
        """Of the learner so far."""
        return self.improver.updates

    @property
    def problem(self) -> str:
        """What a person should know, or ""."""
        words = len(self.log.unwritten)
        kept = f"{words} words about episodes wait for room on the disk; free some space" if words else ""
        stop = self._stopped_by and f"the safety layer stopped the robot: {self._stopped_by}"
        troubles = (self._trouble, kept, self.unsaved, self.watch.problem, self.grippers.problem, self.improver.problem)
        return next(filter(None, (*troubles, stop)), "")

    def here(self) -> Obs:
        """What the robot sees now, without a batch axis."""
        return {name: np.array(value[0]) for name, value in self.stepper.obs.items()}

    def glance(self, obs: Obs) -> Obs:
        """What the robot sees while it stands: fresh where it is a live one, else `obs`, the last observation."""
        return self.live.look() if self.live is not None else obs

    def hear(self, presses: Sequence[Press]) -> None:
        """Labels of episodes that are over, and that the scene is put back."""
        if self.log.unwritten:
            self.log.write_words()
        for press in presses:
            if press.kind == "scene":
                self.scene.say()
            if press.kind in WORDS:
                self.demos += self.labels.apply(press.kind, press.episode)

    def restore_memory(self) -> int:
        """Fill the memory from the log, with what was said about the episodes since.

        Returns:
            Demonstrations that count now, whatever a checkpoint says that is older.
        """
        return self.labels.restore()

    def state_dict(self) -> StateDict:
        """All that continuation needs besides learner, sampler and log; between episodes."""
        stepper = self.stepper
        return {
            "kind": "hil",
            "env_steps": self.env_steps,
            "updates": self.updates,
            "demos": self.demos,
            "version": self.version,
            "prepared": self.prepared,
            "rollbacks": self.improver.rollbacks,
            "credit": self.improver.credit,
            "updated_ns": self.updated_ns,
            "rng": self.rng.bit_generator.state,
            "stats": self.stats.state_dict(),
            "pilot": self.pilot.state_dict(),
            "episodes": len(self.log.manifest),
            "rows": self.memory.count,
            "memory": self.memory.state_dict(),
            "recovery": None if self.recovery is None else self.recovery.state_dict(),
            "adviser": None if self.adviser is None else self.adviser.state_dict(),
            "stepper": stepper.state_dict() if self.env.parts.saves and stepper.obs else None,
        }

    def load_state_dict(self, state: StateDict) -> None:
        """Continue. Episodes that were recorded after the checkpoint are kept and count as own steps.

        Raises:
            ValueError: a state of another loop.
        """
        if state.get("kind") != "hil":
            raise ValueError(f"this state is of a '{state.get('kind')}' loop, expected hil")
        for name in ("env_steps", "demos", "version"):
            setattr(self, name, int(state[name]))
        self.improver.resume(state)
        self.prepared = bool(state.get("prepared", self.updates))
        self.improver.credit = float(state["credit"])
        self.updated_ns = int(state["updated_ns"])
        self.rng.bit_generator.state = state["rng"]
        self.stats.load_state_dict(state["stats"])
        self.pilot.load_state_dict(state["pilot"])
        self.memory.load_state_dict(state["memory"])
        if self.recovery is not None and state.get("recovery"):
            self.recovery.load_state_dict(state["recovery"])
        if self.adviser is not None and state.get("adviser"):
            self.adviser.load_state_dict(state["adviser"])
        if state["stepper"] is not None:
            self.stepper.reset(seed=self.seed)
            self.stepper.load_state_dict(state["stepper"])
        self.catch_up(int(state["episodes"]))

    def catch_up(self, known: int) -> None:
        """Count the log's episodes behind the first `known` ones, which no checkpoint knows, and go on elsewhere."""
        later = self.log.manifest[known:]
        self.env_steps += self.labels.recount(self.stats, later)
        if later and self.live is None:  # what was driven since must not be driven again from the same starts
            self.stepper.reset(seed=self.seed + 1 + len(self.log.manifest))
