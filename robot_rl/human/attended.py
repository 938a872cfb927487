"""Autonomous trials at a robot with a person at the console: they start it, may stop it, and what they touch failed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from robot_rl.arbiter import Driver, Press
from robot_rl.human.devices.teleop import Camera
from robot_rl.human.labels import WORDS
from robot_rl.human.pilot import Driven
from robot_rl.human.screen import telemetry, views
from robot_rl.human.session import Session
from robot_rl.human.stats import Trials
from robot_rl.human.trials import tell
from robot_rl.human.waiting import begin, reset
from robot_rl.loops.stepping import NonFiniteError, Stepper
from robot_rl.types import Obs, Step, VecEnv


@dataclass
class AttendedTrial:
    """One trial.

    Attributes:
        success: as it counts.
        steps: driven.
        touched: a person took over, held or stopped it, or the safety layer did: it has failed, whatever is said.
        counts: False where it is driven once more.
        recorded: success before anybody said anything.
        label: key that ended it.
    """

    success: bool = False
    steps: int = 0
    touched: bool = False
    counts: bool = True
    recorded: bool = False
    label: str = ""


class AttendedTrials:
    """A block of trials through the session's own pilot: its device, its arbiter, its safety layer.

    The robot holds until a person says go. A trial in which they take over, hold, stop or press failure has failed,
    and the robot holds again; one that was lost with the link, the cameras or the robot is driven once more. A stop
    stays latched until a person unlocks it. Success is what the world says, or the classifier where the world cannot
    tell, or a key.

    Args:
        session: between two episodes.
        env: to drive in: the session's own on a robot, one with natural starts in simulation.
        episodes: how many trials.
        seed: of the first reset in simulation.
        stopped: asked at every tick; True ends the block.
        frame: see `Session`.
    """

    def __init__(
        self,
        session: Session,
        env: VecEnv,
        *,
        episodes: int,
        seed: int,
        stopped: Callable[[], bool],
        frame: Camera | None = None,
    ) -> None:
        self._session, self._pilot, self._env = session, session.pilot, env
        self._wanted, self._stopped, self._frame = episodes, stopped, frame
        self._stepper, self._seed, self._problem = Stepper(env, reset_ended=session.live is None), seed, ""
        self._last: AttendedTrial | None = None
        self.found = Trials(deterministic=True)

    def run(self) -> Trials:
        """Drive them; fewer when `stopped` says so. The robot holds before and after."""
        pilot, found = self._pilot, self.found
        own = self._env is self._session.env
        try:
            pilot.hold()
            if self._session.live is None:
                self._reset(None if own else self._seed)
            if not own:
                pilot.move_to(self._env)
            while len(found.successes) < self._wanted and self._ready():
                trial = self._trial()
                pilot.end()
                self._last = trial if trial.counts else None
                if trial.counts:
                    found.successes.append(trial.success)
                    found.steps.append(trial.steps)
            return found
        finally:
            pilot.hold()
            if own:
                self._session.stepper.obs = {}  # its episode went another way: begin with a reset
            else:
                pilot.move_to(self._session.env)

    def _ready(self) -> bool:
        """Hold until a person says go; False when the block is to end."""
        pilot = self._pilot
        while not self._stopped():
            refused = begin(self._session, self._stepper, self._broken)
            if refused is None:
                return True
            self._hear(pilot.idle(self._here()))
            if pilot.driver == Driver.HUMAN.value:
                pilot.hold()  # a hand on the device is no go
            self._show(None, "; ".join(refused))
            pilot.wait()
        return False

    def _trial(self) -> AttendedTrial:
        session, pilot, policy, self._problem = self._session, self._pilot, self._session.learner.policy, ""
        policy.reset()
        session.watch.begin()
        if session.judge is not None:
            session.judge.begin()
        trial, seen, ended = AttendedTrial(), {}, False
        while True:
            if self._stopped():
                trial.counts = False
                break
            obs = self._here()
            proposal = np.asarray(policy.act(self._stepper.obs, deterministic=True).value[0], np.float32)
            driven = pilot.drive(obs, proposal, blind=session.watch.look(obs, seen))
            tell(policy, driven.executed)
            self._show(driven)
            if self._person_ends(trial, driven):
                break
            try:
                row = self._stepper.step(driven.executed[None])
            except NonFiniteError as error:
                self._broken("the robot's observation is not finite", error)
                trial.counts = False
                break
            pilot.wait()
            trial.steps, seen = trial.steps + 1, row.info
            ended = bool(row.terminated[0] or row.truncated[0])
            trial.success = self._success(row)
            if ended and not bool(row.valid[0]) and not trial.success:  # the robot's own doing: it does not count
                self._problem, trial.counts = f"the robot ended it: {row.info.get('robot', {}).get('fault', '')}", False
                pilot.hold()
            if trial.success or ended:
                break
        trial.recorded = trial.success
        if trial.label:
            trial.success = trial.label == "success"
            session.labels.said = f"{trial.label}, trial {len(self.found.successes) + 1}"
        session.scene.over()
        if session.live is not None:
            self._stepper.obs = {}
        elif not ended and self._stepper.obs:
            self._reset()
        return trial

    def _person_ends(self, trial: AttendedTrial, driven: Driven) -> bool:
        """What happened to the robot goes before what was said in the same tick: a stop is never a success."""
        words = [press for press in driven.presses if press.episode >= 0 or press.kind == "undo"]
        self._hear(tuple(words))  # about what is over
        kinds = [press.kind for press in driven.presses if press not in words]
        if driven.stopped:
            self.found.stops += [] if driven.pressed else [driven.stopped_by]
            trial.touched = True
        elif driven.lost or self._session.watch.lost or "rerecord" in kinds:
            trial.counts = False
            self._pilot.hold()
        elif driven.human or driven.driver == Driver.HOLD.value:
            trial.touched = True
            self._pilot.hold()
        elif "failure" in kinds or "abort" in kinds:
            trial.label = "failure"
        elif "success" in kinds and trial.steps:
            trial.label = "success"
        else:
            return False
        return True

    def _success(self, row: Step) -> bool:
        judge = self._session.judge
        asked = judge is not None and self._session.live is not None  # a robot's topics do not know better
        if "success" in row.info and not asked and self._session.options.task_reward != "labels":
            return bool(row.info["success"][0])
        if judge is None:
            return False
        after = {name: value[0] for name, value in row.next_obs.items()}
        return judge(after, 0.5 / self._session.env.io.control_hz).success

    def _hear(self, presses: tuple[Press, ...]) -> None:
        """A word about the last trial, between two of them; one about an episode goes where it always goes."""
        for press in presses:
            if press.episode >= 0 or press.kind not in WORDS:  # of the scene, too
                self._session.hear((press,))
                continue
            last, said = self._last, WORDS[press.kind]
            number = len(self.found.successes)
            if last is None:
                told = "nothing to label: " + ("the last trial is driven again" if number else "no trial yet")
            elif said and last.touched:
                told = f"trial {number} stays failed: it was stopped, held or taken over"
            else:
                last.success = last.recorded if said is None else said
                self.found.successes[-1] = last.success
                told = "label taken back" if said is None else press.kind
                told += f", trial {number}"
            self._session.labels.said = told

    def _here(self) -> Obs:
        return {name: np.array(value[0]) for name, value in self._stepper.obs.items()}

    def _reset(self, seed: int | None = None) -> bool:
        return reset(self._session, self._stepper, self._broken, seed)

    def _broken(self, what: str, error: RuntimeError) -> None:
        if self._pilot.simulates:
            raise error
        self._problem = f"{what} ({error}); put the robot right and press go"
        self._stepper.obs = {}
        self._pilot.hold()

    def _show(self, driven: Driven | None, problem: str = "") -> None:
        done, good = len(self.found.successes), sum(self.found.successes)
        rules = (
            f"{self._wanted - done} trials without you: taking over, hold or stop fails one" if driven is None else ""
        )
        shown = telemetry(self._session, False, driven, problem or self._problem or rules)
        shown |= {"phase": f"trial {min(done + 1, self._wanted)} of {self._wanted}, {good} good"}
        self._pilot.show(shown, self._frame, views(self._stepper.obs))
