"""The half of human-in-the-loop learning that drives: robot, person, safety and log; the learner is elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence, Sized
from typing import Any, NoReturn

from torch import Tensor

from robot_rl.data.hil_episode import EpisodeDraft
from robot_rl.data.hil_record import ControlStep
from robot_rl.human.loop import HumanInTheLoop
from robot_rl.human.pieces import Outbox
from robot_rl.human.stats import EpisodeFacts
from robot_rl.human.waiting import meanwhile
from robot_rl.link import ActorLink
from robot_rl.types import (
    OF_ACTING,
    AnyLearner,
    Episode,
    IOSpec,
    Metrics,
    Needs,
    Options,
    Policy,
    StateDict,
    TrainedPolicy,
)


class OutboxMemory:
    """Stands where a learner's memory would be: settled steps go out instead.

    Args:
        outbox: of the log.
    """

    def __init__(self, outbox: Outbox) -> None:
        self.outbox = outbox
        self.count = 0
        self.views: dict[str, Sized] = {}

    def extend(self, steps: Sequence[ControlStep], *, demo: bool = False) -> int:
        """Hand settled steps on; a demonstration goes out as a whole, once the log has it."""
        if not demo:
            self.outbox.rows(steps)
        return len(steps)

    def forget(self, rows: Sequence[int]) -> None:
        """The learner does that too, for episodes that are thrown away."""

    def amend(self, row: int, step: ControlStep) -> bool:
        """Nothing is kept here."""
        return False

    def promote(self, rows: Sequence[int]) -> None:
        """The learner does that, from the episode's facts."""

    def state_dict(self) -> StateDict:
        """Nothing: the log is what is sent."""
        return {}

    def load_state_dict(self, state: StateDict) -> None:
        """Nothing."""


class Follower(AnyLearner):
    """A policy that somebody else improves, where a loop expects a learner.

    Args:
        policy: acts; gets new weights between episodes.
    """

    def __init__(self, policy: Policy) -> None:
        super().__init__(Options(), policy.io)
        self.policy = policy

    @classmethod
    def needs(cls, options: Options, io: IOSpec) -> Needs:
        """Single rows, which are never drawn."""
        return Needs(rows=1)

    def update(self, batches: object, /) -> Metrics:
        """Nothing to do here."""
        return {}

    def state_dict(self) -> StateDict:
        """The policy's."""
        return {"policy": self.policy.state_dict()}

    def load_state_dict(self, state: StateDict, /) -> None:
        """Copy in place."""
        self.policy.load_state_dict(state["policy"])


class NoRows:
    """Sampler of an actor: it has no memory."""

    def batches(self, size: int) -> Iterator[NoReturn]:
        """Never drawn from."""
        return iter(())

    def __len__(self) -> int:
        return 0

    def state_dict(self) -> StateDict:
        """Nothing."""
        return {}

    def load_state_dict(self, state: StateDict) -> None:
        """Nothing."""


class HilActor(HumanInTheLoop):
    """Drives and records; learns nothing, and never waits for the learner while it drives.

    Args:
        link: to the learner.
        outbox: what is sent.
        drive_untrained: let the untrained policy drive when there are no weights after `patience_s`; False holds.
        collect_without_learner: begin episodes while the learner is away.
        most_waiting: rows on disk that the learner lacks, above which no episode begins.
        speed: of a simulated robot, as a multiple of its control rate; a person's clock paces a real one.
        patience_s: wait for the first weights, with the robot on hold.
        parts: arguments of `HumanInTheLoop`; its memory is an `OutboxMemory`.
    """

    def __init__(
        self,
        *parts: Any,
        link: ActorLink,
        outbox: Outbox,
        drive_untrained: bool = False,
        collect_without_learner: bool = True,
        most_waiting: int = 100_000,
        speed: float = 1.0,
        patience_s: float = 60.0,
        **more: Any,
    ) -> None:
        super().__init__(*parts, **more)
        self.link, self.outbox = link, outbox
        self._collect_alone, self._most, self._patience = collect_without_learner, most_waiting, patience_s
        self._untrained = drive_untrained
        self._open_steps = self.grippers.notices  # what has been sent is not taken back
        self._period, self._next = 1.0 / (self.env.io.control_hz * speed), time.monotonic()

    def wait_for_weights(self) -> bool:
        """Before the first own episode: hold until the learner has made something of the demonstrations."""
        end, said = time.monotonic() + self._patience, ""
        while self.version == 0 and not self._stop:
            self._check_admission()
            self._follow()
            if self.version or (self._untrained and time.monotonic() > end):
                break
            why = self.link.standing or "the learner is there; its first weights are not"
            if why != said:
                sys.stderr.write(f"\nhold: {why}\n")
                said = why
            self.hear(self.pilot.idle(self.here()))
            self.pilot.hold()  # a go that comes now is too early
            self.pilot.show({**self._telemetry(False, None, why), "busy": True}, self.frame)
            time.sleep(min(self._period, 0.05))
        return self.version > 0

    def finish(self) -> bool:
        """Nothing more is driven: wait for the last weights; False when the learner is gone for too long."""
        self.link.done = True
        self.link.notify()
        begun = time.monotonic()

        def wait() -> None:
            while not self.link.finished and not self._stop:
                if min(self.link.silence, time.monotonic() - begun) > self._patience:
                    break
                time.sleep(0.05)

        meanwhile(self, "the learner finishes", wait)
        self._follow()
        return self.link.finished

    def _ready(self, demo: bool) -> bool:
        """New weights first; then as always, but hold while the learner is away for too long."""
        said = False
        while not self._stop:
            self._check_admission()
            self._follow()
            why = self._obstacle()
            if not why:
                break
            if not said:
                sys.stderr.write(f"\nhold: {why}\n")
                said = True
            if self.stepper.obs or self.live is not None:
                self.hear(self.pilot.idle(self.here()))  # the robot is watched
            self.pilot.hold()  # nobody is surprised by a robot that moves because the learner is back
            self.pilot.show({**self._telemetry(demo, None, why), "busy": True}, self.frame)
            time.sleep(0.05)
        if not super()._ready(demo):
            return False
        if not demo:
            self.outbox.begin(self.log.next_episode)
        self._next = time.monotonic()
        return True

    def _check_admission(self) -> None:
        if self.link.refused:
            raise ValueError(f"the learner refuses this actor, they were started differently: {self.link.refused}")

    def _obstacle(self) -> str:
        if not self._collect_alone and not self.link.alive:
            return "the learner is away (link.collect_without_learner is false)"
        waiting = self.outbox.waiting(self.link.acked)
        return f"{waiting} rows wait for the learner (link.most_waiting)" if waiting > self._most else ""

    def _follow(self) -> None:
        """Put the newest weights in place, at an episode's boundary; the noise of acting stays the actor's own."""
        found = self.link.take()
        if found is None:
            return
        self.version, tensors = found
        policy = self.learner.policy
        load_tensors(policy, tensors)
        self.updated_ns = self.pilot.now_ns()

    def _learn(self, ended: bool = False) -> None:
        """Send what is settled, and keep a simulated robot at its pace."""
        self.link.notify()
        if not self.pilot.realtime:
            self._next += self._period
            left = self._next - time.monotonic()
            if left > 0:
                time.sleep(left)
            else:
                self._next = time.monotonic()

    def _finish(
        self, draft: EpisodeDraft, facts: EpisodeFacts, demo: bool, discard: bool, first_row: int
    ) -> EpisodeFacts:
        facts = super()._finish(draft, facts, demo, discard, first_row)
        self.link.notify()
        facts.link = {
            "link/behind": float(self.outbox.waiting(self.link.acked)),
            "link/sent": float(self.link.sent),
            "link/resent": float(self.link.resent),
            "link/rejected_weights": float(self.link.rejected),
            "link/learner_silence_s": min(self.link.silence, 1e6),
            "link/version": float(self.version),
        }
        return facts

    def _commit(self, draft: EpisodeDraft, facts: Mapping[str, object]) -> Episode | None:
        number = self.log.next_episode
        episode = super()._commit(draft, facts)
        self.outbox.finish(number, episode)
        return episode

    @property
    def updates(self) -> int:
        """Of the learner, as many as the weights that drive have had; version n + 1 is the policy after n."""
        return max(self.version - 1, 0)

    @property
    def problem(self) -> str:
        """What a person should know, or ""."""
        return super().problem or self.link.alarm or self.link.standing


def tensors_of(policy: TrainedPolicy) -> dict[str, Tensor]:
    """The weights of a policy by name, without what it remembers of its own acting."""
    return dict(_flat(policy.state_dict()))


def load_tensors(policy: TrainedPolicy, tensors: Mapping[str, Tensor]) -> None:
    """Put weights by name into a policy; generators and held grippers stay as they are."""
    state = policy.state_dict()
    for name, tensor in tensors.items():
        place = state
        *path, last = name.split("/")
        for part in path:
            place = place[part]
        place[last] = tensor
    policy.load_state_dict(state)


def _flat(state: Mapping[str, object], prefix: str = "") -> list[tuple[str, Tensor]]:
    found: list[tuple[str, Tensor]] = []
    for name, value in state.items():
        if name in OF_ACTING:  # of a policy around another one, too
            continue
        if isinstance(value, Mapping):
            found += _flat(value, f"{prefix}{name}/")
        elif isinstance(value, Tensor):
            found.append((f"{prefix}{name}", value))
        else:
            raise ValueError(f"the policy's state holds '{prefix}{name}', {type(value).__name__}; expected tensors")
    return found
