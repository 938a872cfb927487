"""The human-in-the-loop loop: one robot, one person, one learner, in one process."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping

import numpy as np

from robot_rl.arbiter import Press
from robot_rl.data.hil_episode import EpisodeDraft, is_unaided
from robot_rl.data.hil_record import ControlStep, EndReason, Invalid, RewardSource, Source
from robot_rl.human.labels import WORDS, total_reward
from robot_rl.human.log import FULL
from robot_rl.human.pilot import Driven
from robot_rl.human.screen import telemetry, views
from robot_rl.human.session import Session
from robot_rl.human.stats import EpisodeFacts
from robot_rl.human.trials import tell
from robot_rl.human.waiting import begin, meanwhile, reset
from robot_rl.loops.stepping import NonFiniteError
from robot_rl.types import Episode, Metrics, Obs, Step

Hook = Callable[[int, Metrics], bool]
LEARNING_S = 10.0
"""How long a learner whose updates do not fit between two ticks may work between two episodes [s]."""


class HumanInTheLoop(Session):
    """Drives, records, learns: a `Session`, and takes its arguments. Between episodes it can be saved and continued."""

    def stop(self) -> None:
        """End after the episode under way (from a signal handler)."""
        self._stop = True

    def collect_demos(self, wanted: int, on_demo: Callable[[int], object] | None = None, tries: int = 5) -> None:
        """The person drives until `wanted` successful demonstrations are stored.

        Raises:
            RuntimeError: too few successes in `tries * wanted` episodes.
        """
        for _ in range(tries * wanted):
            if self.demos >= wanted or self._stop:
                break
            self._episode(demo=True)
            if on_demo is not None:
                on_demo(self.demos)
        self.pilot.hold()  # the policy waits for go
        if self.demos < wanted and not self._stop:
            raise RuntimeError(
                f"only {self.demos} of {tries * wanted} demonstrations ended in success, wanted {wanted}; ask for "
                "fewer, or for a better person (human.skill, human.noise)"
            )

    def run(self, total_steps: int, hook: Hook) -> None:
        """Drive and learn until `total_steps` own steps, the hook says stop, or `stop()`.

        Args:
            total_steps: driven steps, demonstrations not counted.
            hook: called after every episode with (steps so far, metrics); True stops.
        """
        mark, steps = time.perf_counter(), self.env_steps
        while self.env_steps < total_steps and not self._stop:
            facts = self._episode(demo=False)
            if facts is None:
                continue
            now = time.perf_counter()
            speed = (self.env_steps - steps) / max(now - mark, 1e-9)
            mark, steps = now, self.env_steps
            effective = self.updates / max(self.env_steps, 1)
            extra = {"time/sps": speed, "train/updates": float(self.updates), "train/updates_per_step": effective}
            extra |= {f"rollout/tick_ms_p{q}": self.stats.tick(q) for q in (50, 99)}
            row = {**self.improver.metrics, **facts.metrics(), **self.stats.metrics(), **extra}
            row |= {f"buffer/{name}": float(len(view)) for name, view in self.memory.views.items()}
            if hook(self.env_steps, row):
                return

    # ------------------------------------------------------------ one episode

    def _episode(self, demo: bool) -> EpisodeFacts | None:
        """One episode; None when it could not begin."""
        if not self._ready(demo):
            return None
        key, self._world_ended, self._trouble, self._stopped_by = self.log.begin(teaching=demo), False, "", ""
        draft = EpisodeDraft(self.rules, self.env.io.control_hz, self._open_steps)
        facts, held, discard, first_row = EpisodeFacts(), 0, False, self.memory.count
        patience = self.options.hold_steps(self.env.io.control_hz, self.pilot.realtime)
        self.learner.policy.reset()
        for part in (self.watch, self.grippers, self.adviser, self.judge, self.recovery):
            if part is not None:
                part.begin()
        self._rows, self._seen = [], {}
        self._before, self._lasted = self.updates, 0
        self.episode_began_ns = self.pilot.now_ns()
        while draft.end_reason == EndReason.NONE:
            begun, t_obs = time.perf_counter(), self.pilot.now_ns()
            obs = self.here()
            self._acts, proposal = (self.version, self.updated_ns), self._propose(demo)
            blind = self.watch.look(obs, self._seen) or self.grippers.blind
            out = None if demo or self.recovery is None else self.recovery.look()
            wish = proposal if out is None else out
            driven = self.pilot.drive(obs, wish, blind=blind, grip=self.grippers.wanted)
            if driven.human and self.recovery is not None:
                self.recovery.begin()
            discard = self._keys(draft, driven.presses) or discard
            if draft.end_reason != EndReason.NONE:
                break
            if driven.lost:
                draft.close(EndReason.COMMS)
                break
            if driven.stopped:
                draft.close(EndReason.HUMAN_STOP if driven.pressed else EndReason.SAFETY_STOP)
                if not driven.pressed:
                    facts.stopped_by = self._stopped_by = driven.stopped_by
                break
            t_cmd = self.pilot.now_ns()
            try:
                row = self._advance(driven.executed[None], proposal[None], demo)
            except NonFiniteError as error:
                self._broken("the robot's observation is not finite", error)
                draft.close(EndReason.FAULT)
                break
            self._seen = row.info
            tell(self.learner.policy, driven.executed)
            self.pilot.wait()
            self._world_ended = bool(row.terminated[0] or row.truncated[0])
            step, over = self._record(obs, proposal, driven, row, (t_obs, t_cmd, self.pilot.now_ns()))
            if draft.steps:
                draft.steps[-1].next_sight = self._sight
            draft.add(step)
            self._note(step)
            facts.count(step, driven)
            held = held + 1 if not (driven.moving or demo or self.watch.blind or self.grippers.blind) else 0
            void = self.grippers.look(len(draft) - 1, driven.executed, driven.gripper)
            if void is not None:
                self._void(draft, void)
            if self.watch.lost or self.grippers.lost:
                self.pilot.hold()
                draft.close(EndReason.FAULT)
            if over != EndReason.NONE:
                draft.close(over)
            elif held >= (patience if driven.driver == "HOLD" else self.options.max_hold_steps):
                draft.close(EndReason.HUMAN_STOP)
            if not demo:
                self.env_steps += 1
                self._hand_on(draft.take_settled())
                if not self.pilot.realtime:
                    self._learn()
            facts.tick_ms.append(1e3 * (time.perf_counter() - begun))
            self._show(demo, driven, key.episode_id)
        self.pilot.end()
        return self._finish(draft, facts, demo, discard, first_row)

    def _advance(self, action: np.ndarray, proposal: np.ndarray, demo: bool) -> Step:
        """One step of the environment; in real time the learner has what is left until the next tick."""
        if demo or not self.pilot.realtime:
            return self.stepper.step(action, proposed=proposal)
        if self.live is None:
            row = self.stepper.step(action, proposed=proposal)
            self._learn()
            return row
        learning = self._aside.submit(self._learn)  # a robot's step lasts until its next tick
        try:
            return self.stepper.step(action, proposed=proposal)
        finally:
            learning.result()

    def _ready(self, demo: bool) -> bool:
        """Reset the robot, and wait until a person lets it move."""
        if not self.stepper.obs and self.live is None:
            self._reset(self.seed)
            self.learner.policy.reset()
        while not self._stop:
            refused = begin(self, self.stepper, self._broken, demo=demo)
            if refused is None:
                return True
            self.hear(self.pilot.idle(self.here()))
            self.pilot.show(self._telemetry(demo, None, "; ".join(refused)), self.frame, views(self.stepper.obs))
            self.pilot.wait()
            if not self.pilot.realtime and (refused or self.pilot.driver in ("HOLD", "STOPPED")):
                why = f" ({'; '.join(refused)})" if refused else ""
                raise RuntimeError(f"the robot is in {self.pilot.driver} and nobody is there to resume{why}")
        return False

    def _propose(self, demo: bool = False) -> np.ndarray:
        if self.env_steps < self.options.random_steps:
            self._sight = self._look(self.stepper.obs)
            return self.rng.uniform(-1.0, 1.0, self.env.io.action_dim).astype(np.float32)
        action = self.learner.policy.act(self.stepper.obs)
        proposal = np.asarray(action.value[0], np.float32)
        looks = self.learner.policy.parts.look is not None
        self._sight = np.asarray(action.extras["sight"][0], np.float32) if looks else None
        if self.adviser is not None and not demo and np.isfinite(proposal).all():
            self.pilot.advise(self.adviser.look(self.stepper.obs, proposal))
        return proposal

    def _look(self, obs: Obs) -> np.ndarray | None:
        """What the policy's encoder sees in an observation (1, ...) for which nobody asks it for an action."""
        look = self.learner.policy.parts.look
        return None if look is None else np.asarray(look(obs)[0], np.float32)

    def _keys(self, draft: EpisodeDraft, presses: tuple[Press, ...]) -> bool:
        """Labels of the person; True when the episode is to be thrown away."""
        for press in presses:
            over = draft.end_reason != EndReason.NONE
            running = press.episode < 0 and not over and draft.ran_at(round(press.time * 1e9))
            if press.kind in ("success", "failure") and running:
                draft.label(press.kind == "success", round(press.time * 1e9))
            elif press.kind in WORDS and press.episode < 0 and over:
                self._late.append(press)  # about this episode, once it is written
            elif press.kind in WORDS:
                self.hear((press,))
            elif press.kind in ("abort", "rerecord"):
                draft.close(EndReason.HUMAN_STOP)
                return press.kind == "rerecord"
        return False

    def _record(
        self, obs: Obs, proposal: np.ndarray, driven: Driven, row: Step, times: tuple[int, int, int]
    ) -> tuple[ControlStep, EndReason]:
        """The step as it is stored, and whether the world ended the episode."""
        t_obs, t_cmd, t_next = times
        success = bool(row.info["success"][0]) if "success" in row.info else False
        terminated, truncated = bool(row.terminated[0]), bool(row.truncated[0])
        verdict = None
        if self.judge is not None:
            patience = 0.5 / self.env.io.control_hz if self.pilot.realtime else math.inf
            verdict = self.judge({name: value[0] for name, value in row.next_obs.items()}, patience)
            success, self.probability = verdict.success, verdict.probability
        self._lasted = self._lasted + 1 if success else 0
        lasts = self._lasted > self.options.success_s * self.env.io.control_hz
        reward, over = self.options.outcome(float(row.reward[0]), success, terminated, truncated, lasts=lasts)
        source = Source.HUMAN if driven.human else Source.POLICY if driven.moving else Source.HOLD
        if source == Source.POLICY and driven.driver == "RETURN":
            source = Source.BLEND
        if source == Source.POLICY and self.recovery is not None and self.recovery.driving:
            source = Source.RECOVERY
        valid, invalid = driven.moving, Invalid.NONE if driven.moving else Invalid.SOURCE
        if bool(row.intervened[0]):  # somebody else drove, through the robot's own supervisor
            valid, invalid = False, Invalid.SOURCE
        if not bool(row.valid[0]):
            valid, invalid = False, Invalid.FAULT
            over = self._fault(row) if truncated else over
        self.improver.poisoned |= not np.isfinite(proposal).all()
        if self.watch.blind or self.grippers.blind:
            valid, invalid = False, Invalid.CAMERA if self.watch.blind else Invalid.GRIPPER
        if not driven.finite:
            valid, invalid = False, Invalid.NONFINITE
            proposal = np.nan_to_num(proposal, nan=0.0, posinf=0.0, neginf=0.0)
        reward_source = RewardSource.NONE if self.options.task_reward == "labels" else RewardSource.ENV
        if verdict is not None:
            reward_source = RewardSource.CLASSIFIER
            if not verdict.known:
                reward_source, valid = RewardSource.NONE, False
                invalid = Invalid.REWARD if invalid == Invalid.NONE else invalid
        command = np.nan_to_num(np.clip(driven.command, -1.0, 1.0))
        step = ControlStep(
            obs=obs,
            next_obs={name: np.array(value[0]) for name, value in row.next_obs.items()},
            action_policy=proposal,
            action_human=driven.human_action,
            action_cmd=command.astype(np.float32),
            action_exec=np.asarray(row.action[0], np.float32),
            source=source,
            t_obs=t_obs,
            t_cmd=t_cmd,
            t_next=t_next,
            human_valid=driven.human_valid,
            intv_start=driven.started,
            deadman=driven.enable,
            input_norm=driven.norm,
            reward_task=reward,
            reward_source=reward_source,
            reward_prob=math.nan if verdict is None else verdict.probability,
            policy_version=self._acts[0],  # newer ones may have been made during the step
            policy_lag_ms=(t_obs - self._acts[1]) * 1e-6,
            safety_bits=driven.bits,
            clip_frac=driven.clip_frac,
            cam_age_ms=self.watch.age_ms,
            sight=self._sight,
            valid=valid,
            invalid_reason=invalid,
        )
        self.grippers.charge(step)
        return step, over

    def _fault(self, row: Step) -> EndReason:
        """Why a robot ended its episode by itself; it holds, and a person has to see to it."""
        if self.pilot.safety.stopped:
            return EndReason.HUMAN_STOP
        why = row.info.get("robot", {}).get("fault", "")
        self._trouble = f"the robot ended the episode ({why or 'a fault'}); put it right and press go"
        self.pilot.hold()
        return EndReason.FAULT

    def _hand_on(self, steps: list[ControlStep], *, demo: bool = False) -> None:
        """Settled steps to the memory."""
        for step in steps:
            self._rows.append(self.memory.count)
            self.memory.extend([step], demo=demo)

    def _outcome(self, draft: EpisodeDraft) -> int:
        """Row of the last valid step, with the outcome that it has by now; -1 where that was not kept."""
        last = draft.last_valid()
        if last is None or last >= len(self._rows):
            return -1
        row, after = [*self._rows, self.memory.count][last : last + 2]
        if row == after:
            return -1
        self.memory.amend(row, draft.steps[last])
        return row

    def _void(self, draft: EpisodeDraft, index: int) -> None:
        """From this step on nothing is learned from: the gripper did not do what was recorded."""
        for step in draft.steps[index:]:
            if step.valid:
                step.valid, step.invalid_reason = False, Invalid.GRIPPER
        if index < len(self._rows):
            self.memory.forget(range(self._rows[index], self.memory.count))

    def _note(self, step: ControlStep) -> None:
        try:
            self.log.journal(step)
        except OSError as error:
            if error.errno not in FULL:
                raise
            self._full = True
            self._trouble = f"the journal cannot be written ({error}); free some space. The episode is kept in memory"

    def _finish(
        self, draft: EpisodeDraft, facts: EpisodeFacts, demo: bool, discard: bool, first_row: int
    ) -> EpisodeFacts:
        reason = draft.end_reason
        facts.success = reason == EndReason.SUCCESS
        facts.end_reason = reason.name.lower()
        facts.autonomous = is_unaided(facts.human_steps, reason)
        facts.returned = total_reward(draft.steps)
        facts.disagreement = float(np.mean(facts.gaps)) if facts.gaps else math.nan
        useful = demo and facts.success and not discard and any(step.valid for step in draft.steps)
        if useful and self.elicitor is not None:
            useful = self.elicitor.offer(draft.steps)
        if draft.steps and draft.steps[-1].next_sight is None:  # of the last observation nobody asked for an action
            last = draft.steps[-1]
            last.next_sight = self._look({name: value[None] for name, value in last.next_obs.items()})
        steps = draft.take_settled()
        if useful or not demo:
            self._hand_on(steps, demo=demo)
        final = self._outcome(draft)
        if discard:
            self.memory.forget(range(first_row, self.memory.count))
        number, rows = self.log.next_episode, list(range(first_row, self.memory.count))
        shown = demo and not discard
        facts.number = number if len(draft) else -1
        fate = {"demo": useful, "discarded": discard or (demo and not useful), "shown": shown, "teaching": demo}
        self._commit(draft, fate)
        if len(draft) and not discard:
            self.labels.add(number, draft.steps, facts, demo=demo, useful=useful, rows=rows, final=final)
        late, self._late = self._late, []
        self.hear(late)
        if useful:
            self.demos += 1
        if demo:
            self.stats.add_demo(facts.human_steps)
        else:
            self.stats.add(facts)
            if self.options.promote_success and facts.success and facts.autonomous:
                self.memory.promote(rows)
        if not demo:
            if self._whole:
                meanwhile(self, "learning", lambda: self._learn(ended=True))
            elif self.pilot.realtime and self.improver.credit >= 1.0 and not self._keeps_up:
                meanwhile(self, "learning", lambda: self._learn(ended=True), hold=False)
            if self.learner.works_between:
                meanwhile(self, "learning what to look at", self.improver.work_between)
            self.improver.mark()
        self.scene.over()
        if self.live is not None:
            self.stepper.obs = {}  # it goes to its start before the next episode, unless a person holds it
        elif not self._world_ended:  # a label, a stop or a success ended it: the world did not reset by itself
            self._reset()
        return facts

    def _reset(self, seed: int | None = None) -> bool:
        """Reset the robot; False when a real one could not be reset: it holds, and a person has to see to it."""
        return reset(self, self.stepper, self._broken, seed)

    def _broken(self, what: str, error: RuntimeError) -> None:
        """A real robot holds until a person says go on; a simulation ends with the error."""
        if not self.pilot.realtime:
            raise error
        self._trouble = f"{what} ({error}); put the robot right and press go"
        self.stepper.obs = {}
        self.pilot.hold()

    def _commit(self, draft: EpisodeDraft, facts: Mapping[str, object]) -> Episode | None:
        """To disk; with a full disk the robot holds until there is room: nothing is dropped silently."""
        while True:
            try:
                episode = self.log.commit(draft, facts)
                self._trouble = "" if self._full else self._trouble
                self._full = False
                return episode
            except OSError as error:
                if error.errno not in FULL or self._stop or not self.pilot.realtime:
                    raise
                self._full = True
                self._trouble = f"the episode cannot be written ({error}); the robot holds until there is room"
                self.pilot.hold()  # nobody is surprised by a robot that moves because there is room again
                self._late += self.pilot.idle(self.here())
                self.pilot.show({**self._telemetry(False, None, self._trouble), "busy": True}, self.frame)
                self.pilot.wait()

    @property
    def _fits(self) -> bool:
        """An update is known to be over within a period."""
        return 0.0 < self.improver.took <= 1.0 / self.env.io.control_hz

    @property
    def _keeps_up(self) -> bool:
        """Updates go on between ticks: they fit, and some were made there in this episode."""
        return self._fits and self.updates > self._before

    def _learn(self, ended: bool = False) -> None:
        if len(self.memory.views["online"]) < max(self.options.learning_starts, 1):
            return
        if not ended:
            self.improver.earn()
        if self._whole:
            if not ended or not len(self.sampler):  # what was driven may have been thrown away
                return
            self.improver.credit -= max(int(self.improver.credit) - 1, 0)  # one update takes all that was driven
        end, keeps_up = time.monotonic() + LEARNING_S, self._keeps_up

        def go_on() -> bool:
            if not self.pilot.realtime or (ended and self._whole):
                return True
            if ended:
                return time.monotonic() < end and not keeps_up
            return self._fits and self.pilot.spare() > self.improver.took

        if self.improver.spend(go_on):
            self.version, self.updated_ns = self.updates, self.pilot.now_ns()

    # ------------------------------------------------------------ screen

    def _telemetry(self, demo: bool, driven: Driven | None, problem: str = "") -> dict[str, object]:
        return telemetry(self, demo, driven, problem)

    def _show(self, demo: bool, driven: Driven, episode: int) -> None:
        if self.pilot.realtime:
            self.pilot.show({**self._telemetry(demo, driven), "episode": episode}, self.frame, views(self.stepper.obs))
