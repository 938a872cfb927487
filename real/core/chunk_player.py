"""Plays chunks of future commands with continuous position, velocity and acceleration at every border."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

Array = np.ndarray
SMALL = 1e-12
MOST_KNOTS = 1000


@dataclass(frozen=True)
class Setpoint:
    """Where the player is at one time.

    Args:
        position: (J,).
        velocity: (J,).
        acceleration: (J,).
        underrun: no chunk covers this time; brake with the limiter, then `reseed`.
    """

    position: Array
    velocity: Array
    acceleration: Array
    underrun: bool


@dataclass(frozen=True)
class Piece:
    """A polynomial of time for every joint.

    Args:
        start: when it begins [s].
        end: when it ends.
        powers: (6, J) coefficients of the powers 0 to 5 of (t - start).
    """

    start: float
    end: float
    powers: Array

    def at(self, time: float) -> tuple[Array, Array, Array]:
        """Position, velocity and acceleration (J,) at a time."""
        s = time - self.start
        c = self.powers
        position = c[0] + s * (c[1] + s * (c[2] + s * (c[3] + s * (c[4] + s * c[5]))))
        velocity = c[1] + s * (2 * c[2] + s * (3 * c[3] + s * (4 * c[4] + s * 5 * c[5])))
        acceleration = 2 * c[2] + s * (6 * c[3] + s * (12 * c[4] + s * 20 * c[5]))
        return position, velocity, acceleration


def quintic(start: float, end: float, first: tuple[Array, Array, Array], last: tuple[Array, Array, Array]) -> Piece:
    """The polynomial of degree 5 between two positions, velocities and accelerations (J,)."""
    h = end - start
    (p0, v0, a0), (p1, v1, a1) = first, last
    gap, speed = p1 - p0 - v0 * h - 0.5 * a0 * h * h, (v1 - v0 - a0 * h) * h
    bend = 0.5 * (a1 - a0) * h * h
    c3, c4, c5 = 10 * gap - 4 * speed + bend, -15 * gap + 7 * speed - 2 * bend, 6 * gap - 3 * speed + bend
    return Piece(start, end, np.stack([p0, v0, 0.5 * a0, c3 / h**3, c4 / h**4, c5 / h**5]))


def cubic(start: float, end: float, p0: Array, v0: Array, p1: Array, v1: Array) -> Piece:
    """The polynomial of degree 3 between two positions and velocities (J,)."""
    h = end - start
    slope = (p1 - p0) / h
    zero = np.zeros_like(p0)
    return Piece(
        start, end, np.stack([p0, v0, (3 * slope - 2 * v0 - v1) / h, (v0 + v1 - 2 * slope) / h**2, zero, zero])
    )


def knot_velocities(times: Array, positions: Array, first: Array) -> Array:
    """Slopes of the cubic spline with continuous second derivative, given first slope and zero last acceleration.

    Args:
        times: (n,) [s], increasing, n >= 2.
        positions: (n, J).
        first: (J,) slope at times[0].

    Returns:
        (n, J) slopes.

    Source: the tridiagonal system h_i v_{i-1} + 2 (h_{i-1} + h_i) v_i + h_{i-1} v_{i+1} =
    3 (h_i s_{i-1} + h_{i-1} s_i), with s the secants; natural end v_{n-1} + 2 v_n = 3 s_{n-1}.
    """
    n, h = len(times), np.diff(times)
    secant = np.diff(positions, axis=0) / h[:, None]
    matrix, right = np.zeros((n, n)), np.zeros_like(positions)
    matrix[0, 0], right[0] = 1.0, first
    for i in range(1, n - 1):
        matrix[i, i - 1 : i + 2] = h[i], 2.0 * (h[i - 1] + h[i]), h[i - 1]
        right[i] = 3.0 * (h[i] * secant[i - 1] + h[i - 1] * secant[i])
    matrix[-1, -2:], right[-1] = (1.0, 2.0), 3.0 * secant[-1]
    return np.linalg.solve(matrix, right)


class ChunkPlayer:
    """Joins chunks of position knots into one motion that is twice continuously differentiable.

    A chunk is spliced in at the next tick with the *commanded* state of the running motion, not the measured one: a
    quintic leads to its first knot, a cubic spline through the rest. Behind the last knot the player reports an
    underrun and the caller brakes. When the limiter clips, tell the player with `reseed`, so that the difference does
    not pile up.

    Args:
        joints: J.
        period: one tick [s]; the splice is at the next one, knots before or within half a tick of it are dropped.
        horizon: longest chunk accepted [s].

    Source: specification of the bridge, chunk player.
    """

    def __init__(self, joints: int, *, period: float, horizon: float = 5.0) -> None:
        self.period, self.horizon = period, horizon
        self._joints = joints
        self._pieces: list[Piece] = []
        self._seed_time = -np.inf
        self._seed: tuple[Array, Array, Array] | None = None

    def reseed(self, now: float, position: Array, velocity: Array | None = None) -> None:
        """Drop all chunks and continue from an executed command: after arming, clipping, or braking.

        Args:
            now: time of that command [s].
            position: (J,).
            velocity: (J,), None = at rest. Its acceleration counts as 0: a limiter's braking ends with a step anyway.
        """
        position = np.array(position, float)
        zero = np.zeros_like(position)
        self._pieces = []
        self._seed_time, self._seed = now, (position, zero if velocity is None else np.array(velocity, float), zero)

    def offer(self, now: float, times: Array, knots: Array) -> str:
        """Take over a chunk.

        Args:
            now: time of arrival [s].
            times: (n,) absolute times of the knots [s], increasing.
            knots: (n, J) positions.

        Returns:
            "" when accepted, else the reason: `no seed`, `shape`, `not finite`, `times not increasing`, `too long`,
            `chunk too late`. The running chunk goes on then.
        """
        times, knots = np.asarray(times, float), np.asarray(knots, float)
        if self._seed is None:
            return "no seed"
        n = len(times)
        if not 0 < n <= MOST_KNOTS or times.shape != (n,) or knots.shape != (n, self._joints):
            return "shape"
        if not (np.isfinite(times).all() and np.isfinite(knots).all()):
            return "not finite"
        if (np.diff(times) <= 0.0).any():
            return "times not increasing"
        if times[-1] - now > self.horizon:
            return "too long"
        splice, state = self._splice(now)
        late = times <= now + 1.5 * self.period  # a knot just behind the splice would ask for a jolt
        if late.all():
            return "chunk too late"
        times, knots = times[~late], knots[~late]
        self._pieces = [piece for piece in self._cut(splice) if piece.end > now]
        self._pieces += self._build(splice, state, times, knots)
        return ""

    def at(self, time: float) -> Setpoint:
        """Commanded state at `time` [s]; times may only go forward.

        Raises:
            RuntimeError: nothing to start from; call `reseed` first.
        """
        while len(self._pieces) > 1 and time >= self._pieces[0].end:
            self._pieces.pop(0)
        if self._pieces:
            piece = self._pieces[0]
            if time < piece.start and self._seed is not None:
                return Setpoint(*self._seed, underrun=False)  # at rest until the chunk takes over
            if time <= piece.end + SMALL:
                return Setpoint(*piece.at(time), underrun=False)
            position, velocity, acceleration = piece.at(piece.end)
            return Setpoint(position, velocity, acceleration, underrun=True)
        if self._seed is None:
            raise RuntimeError("the player has no commanded state yet; call reseed(now, position) first")
        return Setpoint(*self._seed, underrun=True)

    def _splice(self, now: float) -> tuple[float, tuple[Array, Array, Array]]:
        """Time and commanded state at which a new chunk takes over."""
        assert self._seed is not None
        soon = now + self.period
        if self._pieces and self._pieces[-1].end >= now:
            when = min(soon, self._pieces[-1].end)
            piece = next(piece for piece in self._pieces if when <= piece.end)
            return when, piece.at(when)
        if self._pieces:  # ran out and was not told what happened since: go on from where it ended
            return self._pieces[-1].end, self._pieces[-1].at(self._pieces[-1].end)
        if np.any(self._seed[1]):
            return self._seed_time, self._seed  # moving: the executed command itself is the border
        return soon, self._seed

    def _cut(self, splice: float) -> list[Piece]:
        kept = []
        for piece in self._pieces:
            if piece.start < splice:
                kept.append(Piece(piece.start, min(piece.end, splice), piece.powers))
        return kept

    def _build(self, splice: float, state: tuple[Array, Array, Array], times: Array, knots: Array) -> list[Piece]:
        zero = np.zeros(self._joints)
        if len(times) == 1:
            return [quintic(splice, times[0], state, (knots[0], (knots[0] - state[0]) / (times[0] - splice), zero))]
        slope = knot_velocities(times, knots, (knots[1] - state[0]) / (times[1] - splice))
        rest = [
            cubic(times[i], times[i + 1], knots[i], slope[i], knots[i + 1], slope[i + 1]) for i in range(len(times) - 1)
        ]
        first = quintic(splice, times[0], state, (knots[0], slope[0], 2.0 * rest[0].powers[2]))
        return [first, *rest]


def play_effort(time: float, times: Array, knots: Array) -> Array:
    """Effort of a chunk of efforts: each knot holds until its time, the first one from the start, zero after the last.

    Args:
        time: [s].
        times: (n,) increasing [s].
        knots: (n, J).

    Returns:
        (J,).
    """
    place = int(np.searchsorted(times, time))
    return np.zeros(knots.shape[1]) if place >= len(times) else knots[place].copy()


def play_velocity(time: float, times: Array, knots: Array) -> Array:
    """Velocity of a chunk of velocities: linear between knots, the first one before them, zero after the last.

    Args:
        time: [s].
        times: (n,) increasing [s].
        knots: (n, J).

    Returns:
        (J,).
    """
    if time > times[-1]:
        return np.zeros(knots.shape[1])
    return np.array([np.interp(time, times, knots[:, j]) for j in range(knots.shape[1])])
