"""Human-in-the-loop learning in two processes: the actor's job and the learner's, joined by the link."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from robot_rl import checkpoint
from robot_rl.atomic import write_bytes
from robot_rl.checkpoint import CheckpointError, write_json
from robot_rl.data.mix import Shares
from robot_rl.data.seen import measure_seen
from robot_rl.human.actor import Follower, HilActor, NoRows, OutboxMemory, tensors_of
from robot_rl.human.devices.teleop import Camera
from robot_rl.human.learner import HilLearner
from robot_rl.human.pieces import ActorBook, Inbox, Outbox, Place
from robot_rl.human.session import Records
from robot_rl.interrupt import Interrupt
from robot_rl.link import ActorLink, LearnerLink, LinkSettings
from robot_rl.parts import Parts
from robot_rl.run import Run, RunStart
from robot_rl.schedule import Schedule
from robot_rl.types import AnyLearner, IOSpec, Metrics
from robot_rl.verbs.hil_job import HilJob, HilMakers, HilSettings, make_memory

REALTIME = 20
"""Priority of an actor's control loop that a person watches."""
_AGREED = {"seed", "gamma", "demos", "task_reward", "reaction_ms", "stop_is_end"}


def agreement(settings: HilSettings, policy: Mapping[str, object]) -> dict[str, object]:
    """What actor and learner must have in common, as plain values.

    Args:
        settings: of the run.
        policy: its configuration; "device" may differ.
    """
    facts = settings.model_dump(include=_AGREED)
    facts |= {f"policy.{name}": value for name, value in policy.items() if name != "device"}
    return json.loads(json.dumps(facts))


class HilActorJob(HilJob):
    """Drives, records and sends; the folder holds the log and the policy that acted.

    Args:
        settings, start, makers: see `HilJob`.
        link: settings of the link.
        policy: configuration of the policy, which the learner's has to equal.

    Raises:
        ValueError: `advise`; its critics are elsewhere.
    """

    def __init__(
        self,
        settings: HilSettings,
        start: RunStart,
        makers: HilMakers,
        *,
        link: LinkSettings,
        policy: Mapping[str, object],
    ) -> None:
        if settings.advise:
            raise ValueError(
                f"advise={settings.advise:g} asks the critics at every step, and with role=actor they are at the "
                "learner; leave advise out, or use one process (role=both)"
            )
        self._link_settings, self._policy = link, dict(policy)
        self.actor_id = link.actor_id
        self.link: Any = None
        super().__init__(settings, start, makers)

    def _make_loop(self, picture: Camera | None) -> HilActor:
        s, link = self.settings, self._link_settings
        self.learner = Follower(self.learner.policy)
        outbox = Outbox(self.log)

        def rows(place: Place) -> tuple[dict[str, object], bytes, Place] | None:
            found = outbox.piece(place)
            return None if found is None else (asdict(found[0]), found[1], found[0].after)

        facts = {**agreement(s, self._policy), "io": self.env.io.to_dict()}
        like = tensors_of(self.learner.policy)
        self.link = ActorLink(
            link, rows, outbox.end, like, json.loads(json.dumps(facts)), self.log.identity, self.log.words
        )
        return HilActor(
            self.env,
            self.learner,
            self.pilot,
            Records(self.log, OutboxMemory(outbox), NoRows(), s.rules()),
            link=self.link,
            outbox=outbox,
            drive_untrained=link.drive_untrained,
            collect_without_learner=link.collect_without_learner,
            most_waiting=link.most_waiting,
            speed=link.speed,
            patience_s=link.patience_s,
            options=s,
            seed=s.seed,
            helpers=self._helpers(picture),
        )

    def run(self) -> dict[str, object]:
        """As `HilJob.run`; the learner is asked for its last weights before the last block."""
        wanted = REALTIME if self.settings.realtime is None else self.settings.realtime
        try:
            with self.pilot.lift_priority(wanted) as told:
                if told not in ("on", "off"):
                    sys.stderr.write(
                        f"the control loop has ordinary priority, {told}: on a busy machine its ticks come late. Allow "
                        f"rtprio {wanted} for this user in /etc/security/limits.d, or say realtime=0\n"
                    )
                return super().run()
        finally:
            self.link.close()

    def _prepare(self) -> None:
        loop = self.loop
        assert isinstance(loop, HilActor)
        if self._run.interrupt.asked or loop.wait_for_weights():
            return
        sys.stderr.write(
            f"no weights from a learner at {self._link_settings.endpoint} within {self._link_settings.patience_s:g} s; "
            "the policy drives as it is, and what is recorded waits on this disk\n"
        )

    def _settle(self) -> None:
        assert isinstance(self.loop, HilActor)
        if not self.loop.finish():
            sys.stderr.write("the learner is gone; the last block runs with the weights that arrived\n")

    def _further(self) -> dict[str, object]:
        loop = self.loop
        assert isinstance(loop, HilActor)
        return {
            "weights": f"version {loop.version}" + ("" if self.link.finished else ", not the learner's last"),
            "rows_confirmed": "all" if not loop.outbox.waiting(self.link.acked) else "not all: the learner is gone",
        }


class HilLearnerJob:
    """Learns from what actors send; the folder holds a copy of every row, and checkpoints.

    Args:
        settings: numbers; those of driving are not used.
        start: where the run begins.
        link: settings of the link.
        policy: configuration of the policy.
        make_learner: (io) -> learner.

    Raises:
        CheckpointError: nothing to resume from.
        InUse: another process runs in the folder that is to be resumed.
    """

    def __init__(
        self,
        settings: HilSettings,
        start: RunStart,
        *,
        link: LinkSettings,
        policy: Mapping[str, object],
        make_learner: Callable[[IOSpec], AnyLearner],
    ) -> None:
        self.settings, self._start = settings, start
        self._link, self._make_learner = link, make_learner
        self._facts = agreement(settings, policy)
        if start.resume and not (start.folder / "config.yaml").exists():
            raise CheckpointError(
                f"{start.folder} holds no run of a learner; expected a folder of robot-rl hil role=learner"
            )
        self._claim = start.claim()
        self.folder = self._claim.folder
        write_bytes(self.folder / "config.yaml", start.config.encode())
        self.loop: HilLearner | None = None

    def run(self) -> dict[str, object]:
        """Wait for an actor, learn until it is done; returns the summary.

        Raises:
            KeyboardInterrupt: after a Ctrl-C, once everything is saved.
        """
        inbox, link = None, None
        try:
            known = self._known_io()
            inbox = Inbox(self.folder / "rows", known) if known is not None else None
            facts = self._facts if known is None else {**self._facts, "io": json.loads(json.dumps(known.to_dict()))}
            book = ActorBook(self.folder / "actors.json")
            link = LearnerLink(self._link, facts, {} if inbox is None else inbox.places, admit=book.admit)
            sys.stderr.write(f"learner: listening on {self._link.endpoint} as '{self._link.name}'\n")
            if inbox is None:
                with Interrupt() as interrupt:
                    while not link.wait_for_actor(0.2):
                        if interrupt.asked:
                            raise KeyboardInterrupt(str(self.folder))
                write_json(self.folder / "io.json", link.io)
                known = self._known_io()
                assert known is not None
                inbox = Inbox(self.folder / "rows", known)
            assert known is not None
            return self._learn(known, inbox, link)
        finally:
            if inbox is not None:
                inbox.close()
            if link is not None:
                link.close()
            self._claim.release()

    def _learn(self, io: IOSpec, inbox: Inbox, link: LearnerLink) -> dict[str, object]:
        s = self.settings
        learner = self._make_learner(io)
        if learner.need.feeds == "episodes":
            raise ValueError(
                f"{type(learner).__name__} learns from what its newest weights drove and from nothing older; use one "
                "process (role=both), or policy=human/imitation_sac"
            )
        if learner.need.sight:
            raise ValueError("encoder= learns beside the robot, in one process: leave role= out")
        memory, sampler = make_memory(s, io, learner.need)
        self.loop = loop = HilLearner(
            learner,
            link,
            inbox=inbox,
            memory=memory,
            sampler=sampler,
            rules=s.rules(),
            options=s,
            demos=s.demos,
        )
        facts = {"seed": s.seed, "settings": s.model_dump(mode="json"), "role": "learner"}
        states = {"learner": learner, "loop": loop, "sampler": Shares(sampler)}
        run = Run(
            self._start,
            self._claim,
            Schedule.of(s, s.total_steps, "row"),
            Parts(states, policy=learner.policy, io=io, facts=facts, seen=lambda: measure_seen(memory, io)),
            count=lambda: loop.rows,
            on_interrupt=loop.stop,
        )
        run.goes_on = True  # the rows are on the disk, and the actor drives
        if checkpoint.complete(self.folder / "checkpoints"):
            run.restore()  # rows that came since then have their updates still to come
        elif self._start.resume:
            run.step = loop.rows
        run.begin()
        told = loop.rows
        complete = False

        def tick(rows: int, metrics: Metrics) -> bool:
            nonlocal told
            if loop.trouble:
                run.say(loop.trouble)
                loop.trouble = ""
            if rows == told:  # one row of metrics per step at most
                return run.interrupt.asked
            told = rows
            return run.tick(rows, metrics)

        def work() -> None:
            nonlocal complete
            complete = loop.run(tick)

        def summary() -> dict[str, object]:
            return {
                "demonstrations": loop.demos,
                "updates": loop.improver.updates,
                "doubled_pieces": inbox.doubled,
                "complete": str(complete),
                "last_weights_delivered": str(served),
            }

        try:
            run.follow(work)
            served = loop.finish(self._link.patience_s)
            return run.finish(more=summary)
        finally:
            run.close()

    def _known_io(self) -> IOSpec | None:
        path = self.folder / "io.json"
        return IOSpec.from_dict(json.loads(path.read_text())) if path.exists() else None
