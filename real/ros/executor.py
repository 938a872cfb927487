"""An executor for topics at control rates: messages are taken straight from a wait set that is kept.

For each message rclpy's makes a wait set of all that its nodes have, asks each event of quality of service, makes a
task and wakes once more when that is done: 1.5 ms, half a core at 300 messages a second.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

from rclpy.context import Context
from rclpy.event_handler import EventHandler
from rclpy.exceptions import InvalidHandle
from rclpy.executors import ExternalShutdownException, ShutdownException, SingleThreadedExecutor, TimeoutException
from rclpy.impl.implementation_singleton import rclpy_implementation
from rclpy.subscription import Subscription
from rclpy.waitable import NumberOfEntities

Topic: TypeAlias = Subscription[Any]
EVENTS = 0.2
"""Seconds between two looks at events of quality of service and guards of nodes. Nothing urgent may hang on them:
silence is judged by timeouts, and who listens to the supervisor is counted in every tick."""


class TopicExecutor(SingleThreadedExecutor):
    """As `SingleThreadedExecutor`, with a short way for messages; timers, services and actions go rclpy's own way.

    Callbacks of topics are plain functions: a coroutine function would never run.
    """

    def __init__(self, *, context: Context | None = None) -> None:
        super().__init__(context=context)
        self._set: Any = None  # rclpy's wait set, kept until an entity comes or goes
        self._waited: list[tuple[Callable[[Any], object], Any]] = []  # how to add each of them, and its handle
        self._held = contextlib.ExitStack()  # nothing that the set names is destroyed while it is kept
        self._looked = 0.0
        self._ready: deque[Topic | None] = deque()  # None: rclpy's own way has something to do
        self._spinning = threading.RLock()  # a callback may end the executor

    def spin_once(self, timeout_sec: float | None = None) -> None:
        """Wait until something is ready, and do it.

        Args:
            timeout_sec: seconds to wait at most; it may return before, with nothing done.

        Raises:
            ExternalShutdownException: the context has ended.
            Exception: what a callback raised.
        """
        with self._spinning:
            if self._is_shutdown:
                return
            if not self._context.ok():
                raise ExternalShutdownException
            if any(not task.done() for task, _, _ in self._tasks):
                self._drop_set()  # a coroutine waits, its group lets nobody in meanwhile
                return super().spin_once(timeout_sec)
            if not self._ready:  # otherwise a callback raised, and the others are served before it is again
                self._wait(timeout_sec)
            while self._ready:
                topic = self._ready.popleft()
                if topic is None:
                    self._serve_others()
                else:
                    _take(topic)

    def shutdown(self, timeout_sec: float | None = None) -> bool:
        """End: what was waited for may be destroyed from here on.

        Args:
            timeout_sec: seconds to wait for a thread that spins; None = until it has ended.

        Returns:
            Whether no thread spins any more.
        """
        self._is_shutdown = True
        self.wake()
        if not self._spinning.acquire(timeout=-1.0 if timeout_sec is None or timeout_sec < 0.0 else timeout_sec):
            return False
        try:
            self._ready.clear()
            self._drop_set()
            return super().shutdown(timeout_sec)
        finally:
            self._spinning.release()

    def _serve_others(self) -> None:
        self._looked = time.monotonic()
        self._drop_set()  # rclpy's own way resets the guard that tells of a change
        with contextlib.suppress(ShutdownException, TimeoutException):
            while True:  # until all that was ready is done
                handler, _, _ = self.wait_for_ready_callbacks(0.0)
                handler()
                handler.result()

    def _make_set(self) -> None:
        nodes, guards = self.get_nodes(), [guard for guard in (self._guard, self._sigint_gc) if guard is not None]
        self._topics = {topic.handle.pointer: topic for topic in self._hold(t for n in nodes for t in n.subscriptions)}
        guards = self._hold(guards)
        timers = self._hold(timer for node in nodes for timer in node.timers)
        clients = self._hold(client for node in nodes for client in node.clients)
        services = self._hold(service for node in nodes for service in node.services)
        waitables = [item for node in nodes for item in node.waitables if not isinstance(item, EventHandler)]
        self._actions = [item for item in waitables if _enter(self._held, item)]
        entities = (list(self._topics.values()), guards, timers, clients, services)
        size = sum((item.get_num_entities() for item in self._actions), NumberOfEntities(*map(len, entities)))
        context = self._context.handle
        assert context is not None
        self._held.enter_context(context)
        ready: Any = rclpy_implementation.WaitSet(
            size.num_subscriptions,
            size.num_guard_conditions,
            size.num_timers,
            size.num_clients,
            size.num_services,
            size.num_events,
            context,
        )
        self._set, adds = ready, (ready.add_subscription, ready.add_guard_condition, ready.add_timer)
        adds += (ready.add_client, ready.add_service)
        self._waited = [(add, item.handle) for add, items in zip(adds, entities, strict=True) for item in items]

    def _hold(self, entities: Iterable[Any]) -> list[Any]:
        """Those that still exist, which `_held` keeps."""
        return [entity for entity in list(entities) if _enter(self._held, entity.handle)]

    def _wait(self, seconds: float | None) -> None:
        """Wait, at most until the next look at events, and put into `_ready` what is."""
        due = max(self._looked + EVENTS - time.monotonic(), 0.0)
        if self._set is None:
            self._make_set()
        ready: Any = self._set
        ready.clear_entities()
        for add, handle in self._waited:  # it forgets what was not ready
            add(handle)
        for action in self._actions:
            action.add_to_wait_set(ready)
        ready.wait(int(1e9 * (due if seconds is None else min(due, seconds))))
        found = (self._topics.get(pointer) for pointer in ready.get_ready_entities("subscription"))
        self._ready.extend(topic for topic in found if topic is not None)  # the others are an action's
        others = due == 0.0 or any(ready.get_ready_entities(kind) for kind in ("timer", "client", "service"))
        if others or any(action.is_ready(ready) for action in self._actions):
            self._ready.append(None)
        if ready.get_ready_entities("guard_condition"):  # an entity has come or gone, or a task is done
            self._drop_set()

    def _drop_set(self) -> None:
        self._set, self._waited = None, []
        self._held.close()


def _enter(held: contextlib.ExitStack, handle: Any) -> bool:
    """Whether the handle still exists; `held` keeps it."""
    with contextlib.suppress(InvalidHandle):
        held.enter_context(handle)
        return True
    return False


def _take(topic: Topic) -> None:
    """One message to the topic's callback, if there is one."""
    group = topic.callback_group
    if group is None or not group.beginning_execution(topic):
        return
    try:
        taken = None
        with contextlib.suppress(InvalidHandle), topic.handle:
            taken = topic.handle.take_message(topic.msg_type, topic.raw)
        if taken is not None:
            topic.callback(*(taken[:1] if topic._callback_type is Subscription.CallbackType.MessageOnly else taken))
    finally:
        group.ending_execution(topic)
