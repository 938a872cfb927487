"""Autonomous trials at a robot with a person at the console: they start it, may stop it, and what they touch failed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from robot_rl.arbiter import Press
from robot_rl.human.pilot import Driven
from robot_rl.human.screen import telemetry, views
from robot_rl.human.session import Session
from robot_rl.human.stats import Trials
from robot_rl.human.trials import tell
from robot_rl.loops.stepping import NonFiniteError, Stepper
from robot_rl.types import Obs, Step


class AttendedTrials:
    """A block of trials through the session's own pilot: its device, its arbiter, its safety layer.

    The robot holds until a person says go. A trial in which they take over, hold, stop or press failure has failed,
    and the robot holds again; one that was lost with the link or the cameras is driven once more. A stop stays latched
    until a person unlocks it. Success is what the world says, or the classifier where the world cannot tell, or a key.

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
        env: Any,
        *,
        episodes: int,
        seed: int,
        stopped: Callable[[], bool],
        frame: Callable[[int], Any] | None = None,
    ) -> None:
        self._session, self._pilot, self._env = session, session.pilot, env
        self._wanted, self._stopped, self._frame = episodes, stopped, frame
        self._stepper, self._seed, self._problem = Stepper(env), seed, ""
        self.found = Trials(deterministic=True)

    def run(self) -> Trials:
        """Drive them; fewer when `stopped` says so. The robot holds before and after."""
        pilot, found = self._pilot, self.found
        own = self._env is self._session.env
        try:
            pilot.hold()
            self._reset(None if own else self._seed)
            if not own:
                pilot.move_to(self._env)
            while len(found.successes) < self._wanted and self._ready():
                outcome, steps = self._trial()
                pilot.end()
                if outcome is not None:
                    found.successes.append(outcome)
                    found.steps.append(steps)
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
            refused: list[str] = []
            if self._stepper.obs:
                pilot.restart()
            if pilot.driver not in ("HOLD", "STOPPED") and (self._stepper.obs or self._reset()):
                refused = pilot.begin()
                if not refused:
                    return True
            self._hear(pilot.idle(self._here()))
            self._show(None, "; ".join(refused))
            pilot.wait()
        return False

    def _trial(self) -> tuple[bool | None, int]:
        """(success, or None when it does not count; steps)."""
        session, pilot, policy = self._session, self._pilot, self._session.learner.policy
        policy.reset()
        session.watch.begin()
        if session.judge is not None:
            session.judge.begin()
        steps, seen, ended = 0, {}, False
        outcome: bool | None = False
        while not self._stopped():
            obs = self._here()
            proposal = np.asarray(policy.act(self._stepper.obs, deterministic=True).value[0], np.float32)
            driven = pilot.drive(obs, proposal, blind=session.watch.look(obs, seen))
            tell(policy, driven.executed)
            self._show(driven)
            kinds = [press.kind for press in driven.presses]
            if "success" in kinds and steps:
                outcome = True
                break
            if "failure" in kinds or "abort" in kinds:
                break
            if driven.stopped:
                self.found.stops += "estop" not in kinds
                break
            if driven.lost or session.watch.lost or "rerecord" in kinds:
                outcome = None
                pilot.hold()
                break
            if driven.human or driven.driver == "HOLD":
                pilot.hold()
                break
            try:
                row = self._stepper.step(driven.executed[None])
            except NonFiniteError as error:
                self._broken("the robot's observation is not finite", error)
                break
            pilot.wait()
            steps, seen = steps + 1, row.info
            ended = bool(row.terminated[0] or row.truncated[0])
            outcome = self._success(row)
            if outcome or ended:
                break
        else:
            outcome = None
        if not ended and self._stepper.obs:
            self._reset()
        return outcome, steps

    def _success(self, row: Step) -> bool:
        judge = self._session.judge
        if "success" in row.info and self._session.options.task_reward != "labels":
            return bool(row.info["success"][0])
        if judge is None:
            return False
        after = {name: value[0] for name, value in row.next_obs.items()}
        return judge(after, 0.5 / self._session.env.io.control_hz).success

    def _hear(self, presses: tuple[Press, ...]) -> None:
        """A word about the last trial, between two of them; one about an episode goes where it always goes."""
        for press in presses:
            if press.episode >= 0 or press.kind not in ("success", "failure"):
                self._session.hear((press,))
            elif self.found.successes:
                self.found.successes[-1] = press.kind == "success"
                self._session.labels.said = f"{press.kind}, trial {len(self.found.successes)}"

    def _here(self) -> Obs:
        return {name: np.array(value[0]) for name, value in self._stepper.obs.items()}

    def _reset(self, seed: int | None = None) -> bool:
        try:
            self._stepper.reset(seed=seed)
        except RuntimeError as error:
            self._broken("the reset failed", error)
            return False
        return True

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
