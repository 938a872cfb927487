"""Ages and common times of sources whose clocks are not synchronised with ours."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from math import inf, isfinite, isnan, nan
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from robot_rl.real.core.turning import differences

Item = TypeVar("Item")


class Stamping(NamedTuple):
    """What one arrival says about its source.

    Args:
        delay: transport and queue delay above the shortest of the window [s], >= 0; 0 for unstamped samples.
        time: estimated time of acquisition on our clock [s]: arrival - delay.
        fault: `future` or `backwards` when the stamp cannot be believed, else "".
    """

    delay: float
    time: float
    fault: str


class SourceClock:
    """Estimates the offset between a source's stamps and our steady clock.

    The smallest arrival - stamp so far is taken as the offset (plus the shortest transport), so hosts need no common
    time. It rises by no more than two clocks can drift apart: latency that grows faster is told as what it is. A stamp
    that lies in the future after correction or runs backwards is a clock fault: the estimate starts anew and the sample
    counts as fresh on arrival. What no stamp can tell is how old the first sample of a foreign clock is.

    Args:
        drift: by which two clocks may drift apart [s/s]; crystals stay below 100 ppm each.
        period: of the source [s]; a stamp may go back by this much.
        future_tolerance: [s].

    Source: specification of the bridge, time; there the smallest of the last 10 s, which learns a growing latency.
    """

    def __init__(self, *, drift: float = 2e-4, period: float = 0.01, future_tolerance: float = 0.05) -> None:
        self.drift, self.period, self.future_tolerance = drift, period, future_tolerance
        self.faults = 0
        self.reset()

    def arrive(self, arrival: float, stamp: float, *, known: float = nan) -> Stamping:
        """Note one sample.

        Args:
            arrival: time of receipt on our steady clock [s].
            stamp: of the source [s]; 0 = unstamped.
            known: our clock minus the source's [s] where that needs no estimate, e.g. on one host; else nan.
        """
        if stamp == 0.0 or not isfinite(stamp):
            return Stamping(0.0, arrival, "")
        gap, sure = arrival - stamp, isfinite(known)
        floor = known if sure else self.offset + self.drift * max(arrival - self._at, 0.0)
        fault = ""
        if gap - floor < -self.future_tolerance:
            fault = "future"
        elif stamp < self._last - self.period:
            fault = "backwards"
        if fault:
            self.faults += 1
        if fault and not sure:
            floor = nan
        self.offset = floor if sure or floor <= gap else gap
        if not (sure and fault == "future"):  # one wild stamp must not make those that follow look like going back
            self._last = stamp
        self._at = arrival
        delay = 0.0 if fault == "future" else max(gap - self.offset, 0.0)
        return Stamping(delay, arrival - delay, fault)

    def reset(self) -> None:
        """Forget the offset, e.g. when simulated time jumps back or another source speaks."""
        self.offset = nan
        self._at = self._last = -inf


class SimulatedStamps:
    """Stamps of a simulated clock, which runs at a pace of its own, as times of our steady clock.

    Ages are taken in simulated time at the moment of receipt. The simulated time that we know comes in steps and late,
    so what it makes of two stamps in order may be out of order; that is mended here, a stamp that itself goes back is
    not.
    """

    def __init__(self) -> None:
        self._raw = self._steady = -inf

    def steady(self, arrival: float, now: float, stamp: float) -> float:
        """Time of a stamp on our steady clock [s]; 0 stays 0, unstamped.

        Args:
            arrival: time of receipt on our steady clock [s].
            now: simulated time then [s].
            stamp: in simulated time [s].
        """
        if stamp == 0.0:
            return 0.0
        made = arrival - max(now - stamp, 0.0)
        if stamp >= self._raw:
            made = max(made, min(self._steady, arrival))
        self._raw, self._steady = stamp, made
        return made


class Timeline(Generic[Item]):
    """The last samples of one source, looked up by time.

    Args:
        capacity: samples kept.
    """

    def __init__(self, capacity: int = 256) -> None:
        self._times: list[float] = []
        self._items: list[Item] = []
        self._capacity = capacity

    def add(self, time: float, item: Item) -> None:
        """Insert a sample; late ones find their place, of equal times the last inserted is the newest."""
        place = bisect_right(self._times, time)
        self._times.insert(place, time)
        self._items.insert(place, item)
        if len(self._times) > self._capacity:
            del self._times[0], self._items[0]

    def newest(self, time: float) -> tuple[float, Item] | None:
        """Newest sample at or before `time`, with its time; None without one."""
        place = bisect_right(self._times, time) - 1
        return (self._times[place], self._items[place]) if place >= 0 else None

    def oldest(self) -> tuple[float, Item]:
        """Oldest sample kept, with its time.

        Raises:
            IndexError: there is none.
        """
        return self._times[0], self._items[0]

    def __len__(self) -> int:
        return len(self._times)


class JointMerger:
    """Joins joint states of several publishers, each with a subset of the joints in any order.

    Args:
        names: joints wanted, in the order of the RobotSpec.
        turning: of them those that turn for ever, whose positions may go round; () = none.
        cutoff: smoothing time of velocities that have to be differentiated [s].

    Attributes:
        position: per joint [rad]; nan before it was heard.
        velocity: per joint [rad/s]; nan before.
        time: per joint, when it was acquired [s]; -inf before.
        estimated: per joint, whether its velocity was differentiated.
    """

    def __init__(self, names: tuple[str, ...], turning: Sequence[bool] = (), *, cutoff: float = 0.02) -> None:
        self._turning = turning or [False] * len(names)
        self.position, self.velocity = [nan] * len(names), [nan] * len(names)
        self.time, self.estimated = [-inf] * len(names), [False] * len(names)
        self._index = {name: i for i, name in enumerate(names)}
        self._cutoff = cutoff
        self._moved = [-inf] * len(names)  # when a position last changed
        self._places: dict[tuple[str, ...], list[tuple[int, int]] | None] = {}

    def places(self, names: Sequence[str]) -> list[tuple[int, int]] | None:
        """(place in a message with these names, joint) of every joint that is wanted; None of names that come twice.

        Looked up once per sender: a message of the same names is read by numbers.
        """
        key = tuple(names)
        if key not in self._places:
            if len(self._places) >= 64:  # senders come and go
                self._places.clear()
            found = [(k, self._index[name]) for k, name in enumerate(key) if name in self._index]
            self._places[key] = found if len(set(key)) == len(key) else None
        return self._places[key]

    def add(
        self,
        time: float,
        names: Sequence[str],
        position: Sequence[float] | np.ndarray,
        velocity: Sequence[float] | np.ndarray | None = None,
    ) -> str:
        """Take one message; joints that are not wanted are ignored.

        Args:
            time: of acquisition on our clock [s].
            names: of the message.
            position: as many [rad].
            velocity: as many [rad/s]; empty or None = estimated from positions and marked in `estimated`.

        Returns:
            "" or the reason for which the message was dropped: `lengths`, `duplicate`.
        """
        given = velocity is not None and len(velocity) > 0
        if len(position) != len(names) or (velocity is not None and given and len(velocity) != len(names)):
            return "lengths"
        places = self.places(names)
        if places is None:
            return "duplicate"
        for k, i in places:
            if time < self.time[i]:
                continue
            if velocity is not None and given and not isnan(velocity[k]):  # ros2_control: nan where nothing tells it
                self.velocity[i], self.estimated[i] = float(velocity[k]), False
            else:
                self._estimate(i, time, float(position[k]))
            self.position[i], self.time[i] = float(position[k]), time
        return ""

    def _estimate(self, i: int, time: float, position: float) -> None:
        step = time - self.time[i]
        self.estimated[i] = True
        if position != self.position[i]:
            self._moved[i] = time
        if not isfinite(step) or not isfinite(self.velocity[i]) or time - self._moved[i] > 5.0 * self._cutoff:
            self.velocity[i] = 0.0
        elif step > 0.0:
            share = step / (step + self._cutoff)
            way = differences([position], [self.position[i]], [self._turning[i]])[0]
            self.velocity[i] += share * (way / step - self.velocity[i])
