"""The half of human-in-the-loop learning that learns: rows come in from an actor elsewhere, weights go out."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from robot_rl.data.hil_episode import EpisodeRules
from robot_rl.data.hil_record import Invalid
from robot_rl.human.actor import tensors_of
from robot_rl.human.improver import Improver
from robot_rl.human.labels import Kept, last_word, store
from robot_rl.human.memory import HilMemory
from robot_rl.human.options import SessionOptions
from robot_rl.human.pieces import Inbox, PieceHead, Received
from robot_rl.human.session import batch_rows
from robot_rl.link import LearnerLink
from robot_rl.loops.contract import batches_for
from robot_rl.types import Learner, Metrics, Sampler, StateDict, Transitions

Hook = Callable[[int, Metrics], bool]


Word = tuple[bool, bool]
"""(success, taken back); with the second what counts is how the episode was recorded."""


PUBLISH_EVERY = 20
"""Updates between two publications of the weights."""


class HilLearner:
    """Receives, stores, learns, publishes; ends when the actors are done and every row has had its updates.

    Args:
        learner: to improve.
        link: to the actors.
        inbox: what was received, on disk.
        memory: where batches come from; filled from the inbox.
        sampler: of the memory's views.
        rules: rewards and ends; the actors' too.
        options: numbers; those of driving are not used.
        demos: demonstrations to wait for before anything is learned.
    """

    def __init__(
        self,
        learner: Learner[Any, Transitions],
        link: LearnerLink,
        *,
        inbox: Inbox,
        memory: HilMemory,
        sampler: Sampler,
        rules: EpisodeRules,
        options: SessionOptions,
        demos: int,
    ) -> None:
        self.learner, self.link = learner, link
        self.inbox, self.memory, self.sampler = inbox, memory, sampler
        self.improver = Improver(learner, sampler.batches(batch_rows(learner)), options.updates_per_step)
        self._wanted, self._starts, self._promote = demos, max(options.learning_starts, 1), options.promote_success
        self.rows = self.demos = self.refused = 0
        """Own steps and demonstrations that came; pieces that were damaged or of another robot."""
        self.prepared = False
        """The demonstrations have been learned."""
        self.trouble = ""
        self._stop = False
        self._rules = rules
        self._open: dict[int, tuple[int, Kept]] = {}  # actor -> its episode, where it lies
        self._whole: dict[tuple[int, int], Kept] = {}  # (actor, episode) -> the same, once all of it is here
        self._heard: dict[tuple[int, int], Word] = {}
        for received in inbox.take_restored():
            self._learn_of(received)
        self.improver.poisoned = False  # what was proposed in an earlier life was dealt with there
        self._sent = -1

    def stop(self) -> None:
        """End soon (from a signal handler)."""
        self._stop = True

    def run(self, hook: Hook, every: int = 200) -> bool:
        """Until the actors are done, the hook says stop, or `stop()`; True when everything was learned.

        Args:
            hook: called after about `every` updates, or once a second, with (own steps so far, metrics).
            every: see hook.
        """
        self.link.confirm(self.inbox.places)
        told, updates, mark = time.monotonic(), self.improver.updates, (time.monotonic(), self.improver.updates)
        while not self._stop:
            busy = self.improver.credit >= 1.0
            self.receive(0.0 if busy else 0.05)
            self._prepare()
            if self.prepared:
                until = time.monotonic() + 0.1
                self.improver.spend(lambda end=until: time.monotonic() < end and not self._stop)
                self._publish()
            done = self.link.complete() and self.prepared and self.improver.credit < 1.0
            now = time.monotonic()
            if self.improver.updates - updates >= every or now - told > 1.0 or done:
                speed = (self.improver.updates - mark[1]) / max(now - mark[0], 1e-9)
                told, updates, mark = now, self.improver.updates, (now, self.improver.updates)
                if self.prepared:
                    self.improver.mark()
                if hook(self.rows, {**self.metrics(), "time/updates_per_s": speed}):
                    return False
            if done:
                self._hear()  # what came with the word that the actor is done
                return True
        return False

    def receive(self, timeout: float = 0.0) -> int:
        """Take what came, keep it, confirm it; returns how many pieces were new."""
        new = 0
        came = self.link.drain(timeout)
        for values, body in came:
            try:
                received = self.inbox.take(PieceHead.parse(values), body)
            except ValueError as error:
                self.refused += 1
                self.trouble = f"rows were refused: {error}"
                continue
            except OSError as error:
                self.trouble = f"rows cannot be written ({error}); the actor keeps them. Free some space"
                break
            if received is not None:
                new += 1
                self._learn_of(received)
        if came:
            self.link.confirm(self.inbox.places)
        self._hear()
        return new

    def metrics(self) -> Metrics:
        """Counters and the learner's own."""
        row = {
            **self.improver.metrics,
            "train/updates": float(self.improver.updates),
            "train/updates_per_step": self.improver.updates / max(self.rows, 1),
            "train/updates_due": self.improver.credit,
            "link/rows": float(self.rows),
            "link/demonstrations": float(self.demos),
            "link/actors": float(len(self.link.alive())),
            "link/doubled": float(self.inbox.doubled),
            "link/early": float(self.inbox.early),
            "link/dropped": float(self.link.dropped),
            "link/refused": float(self.refused + self.link.nonsense),
        }
        return row | {f"buffer/{name}": float(len(view)) for name, view in self.memory.views.items()}

    def finish(self, patience_s: float) -> bool:
        """Publish the last weights and wait until every living actor has them."""
        self._publish(last=True)
        self.link.finished = True
        self.link.confirm(self.inbox.places)
        end = time.monotonic() + patience_s
        while time.monotonic() < end and not self._stop:
            if self.link.is_served():
                return True
            time.sleep(0.05)
        return False

    def state_dict(self) -> StateDict:
        """Counters; the rows are in the inbox. Credit is counted anew from them."""
        return {
            "kind": "hil_learner",
            "updates": self.improver.updates,
            "rollbacks": self.improver.rollbacks,
            "prepared": self.prepared,
            "memory": self.memory.state_dict(),
        }

    def load_state_dict(self, state: StateDict) -> None:
        """Continue: what was driven since the checkpoint has earned its updates already, in the constructor.

        Raises:
            ValueError: a state of another loop.
        """
        if state.get("kind") != "hil_learner":
            raise ValueError(f"this state is of a '{state.get('kind')}' loop, expected hil_learner")
        self.improver.resume(state)
        self.improver.credit -= self.improver.updates
        self.prepared = bool(state["prepared"])
        self.memory.load_state_dict(state["memory"])

    def _learn_of(self, received: Received) -> None:
        """Into the memory, and into the count of updates that are due."""
        head = received.head
        number, kept = self._open.get(head.actor, (-1, Kept([], -1, False, False)))
        if number != head.episode:
            kept = Kept([], -1, head.demo or head.discarded, head.demo)
        self._open[head.actor] = head.episode, kept
        if head.final:
            self._whole[head.actor, head.episode] = kept
        if head.discarded:  # known with the last piece; what came before it is forgotten
            self.memory.forget(kept.rows)
            kept.rows, kept.final, kept.shown = [], -1, True
            return
        rows, final = store(self.memory, received.steps, demo=head.demo)
        kept.rows += rows
        kept.final = final if any(step.valid for step in received.steps) else kept.final
        if head.demo:
            self.demos += head.final
            return
        for step in received.steps:
            self.rows += 1
            if len(self.memory.views["online"]) >= self._starts:
                self.improver.earn()
            self.improver.poisoned |= step.invalid_reason == Invalid.NONFINITE
        kept.alone = head.alone  # read once the episode is whole: before that nobody knows
        if self._promote and head.success:
            kept.promote(self.memory, True)

    def _hear(self) -> None:
        """What people said about episodes after their end, once all of such an episode is here."""
        for actor, words in self.link.words().items():
            for episode, word in words.items():
                key = actor, episode
                if self._heard.get(key) != word and key in self._whole:
                    self._heard[key] = word
                    self._amend(key, self._whole[key], *word)

    def _amend(self, key: tuple[int, int], kept: Kept, success: bool, undone: bool) -> None:
        steps = self.inbox.steps(*key)
        final = last_word(steps, self._rules, None if undone else success)
        if final is not None:
            self.demos += kept.amend(self.memory, steps, final, success=success, promotes=self._promote)

    def _prepare(self) -> None:
        """Learn the demonstrations once they are all here."""
        if self.prepared or self.demos < self._wanted:
            return
        demo = self.memory.views["demo"]
        if len(demo) and not self.improver.updates:
            batches = batches_for(self.learner, demo.batches(batch_rows(self.learner)))
            self.improver.metrics.update(self.learner.pretrain(batches))
        self.prepared = True
        self._publish(last=True)

    def _publish(self, last: bool = False) -> None:
        """Weights as they are now; version 0 is the untrained policy, so n updates make version n + 1."""
        version = self.improver.updates + 1
        if version != self._sent and (last or self._sent < 0 or version - self._sent >= PUBLISH_EVERY):
            self.link.publish(version, tensors_of(self.learner.policy))
            self._sent = version
