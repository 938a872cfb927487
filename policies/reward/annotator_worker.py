"""Questions that a slow model answers in a thread of its own; answers arrive only where they are fetched."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

Q = TypeVar("Q")
A = TypeVar("A")


class LabelWorker(Generic[Q, A]):
    """A bounded queue of questions in front of one thread.

    Where the queue is full the oldest question is dropped: what the policy does now matters more. Five errors on end
    are raised in the caller's thread by `fetch`.

    Args:
        answer: question -> answer; called in the thread.
        most: questions that wait at most.
        inline: answer in `ask` itself, without a thread.

    Raises:
        ValueError: most below 1.
    """

    def __init__(self, answer: Callable[[Q], A], *, most: int = 256, inline: bool = False) -> None:
        if most < 1:
            raise ValueError(f"most is {most}, expected 1 or more")
        self._answer, self._most, self._inline = answer, most, inline
        self._waiting: deque[Q] = deque()
        self._done: list[tuple[Q, A | None]] = []
        self._change = threading.Condition()
        self._busy, self._stop, self._failed = False, False, 0
        self._error: Exception | None = None
        self._thread: threading.Thread | None = None
        self.dropped = 0
        """Questions that were dropped."""

    def ask(self, question: Q) -> Q | None:
        """Queue a question; returns the one that was dropped for it, or None."""
        lost = None
        if self._inline:
            self._work(question)
            return None
        with self._change:
            if len(self._waiting) >= self._most:
                lost = self._waiting.popleft()
                self.dropped += 1
            self._waiting.append(question)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, daemon=True, name="annotator")
                self._thread.start()
            self._change.notify_all()
        return lost

    def fetch(self) -> list[tuple[Q, A | None]]:
        """(question, answer) of all that was answered since the last call.

        Raises:
            RuntimeError: five errors on end, with the last one.
        """
        with self._change:
            done, self._done = self._done, []
            if self._failed >= 5:
                raise RuntimeError(f"the annotator failed {self._failed} times on end: {self._error}") from self._error
        return done

    def wait(self, timeout: float) -> bool:
        """Until nothing waits; False where that took longer than `timeout` seconds."""
        with self._change:
            return self._change.wait_for(lambda: not self._waiting and not self._busy, timeout)

    def waiting(self) -> list[Q]:
        """Questions without an answer, the one in work left out."""
        with self._change:
            return list(self._waiting)

    def close(self) -> None:
        """End the thread after the question that it works on."""
        with self._change:
            self._stop = True
            self._change.notify_all()

    def _run(self) -> None:
        while True:
            with self._change:
                self._change.wait_for(lambda: self._waiting or self._stop)
                if self._stop:
                    return
                question = self._waiting.popleft()
                self._busy = True
            self._work(question)
            with self._change:
                self._busy = False
                self._change.notify_all()

    def _work(self, question: Q) -> None:
        try:
            answer = self._answer(question)
        except Exception as error:  # whatever a model of the user raises is told where it can be read
            with self._change:
                self._failed, self._error = self._failed + 1, error
                self._done.append((question, None))
            return
        with self._change:
            self._failed = 0
            self._done.append((question, answer))
