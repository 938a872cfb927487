"""What joint states show of order, sign, unit, velocity and delay, beside what was commanded and what the card says."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import numpy as np

DEGREES = 180.0 / math.pi
MOVED = 0.004
"""Range of a joint from which on it has moved [rad or m]; the wiggle's is 0.01."""
LAGS = np.arange(0.0, 0.5, 0.02)
"""Delays that are tried [s]."""
SLOW = 0.008
"""Below this a joint's speed is not compared [rad/s or m/s]: encoders are not that fine."""
ALONE = 0.02
"""Range of a target that moved alone from which on the joint is judged [rad]."""
FITS = 0.2
"""Share of a joint's variance that may be left when its command explains it."""


@dataclass(frozen=True)
class Followed:
    """What one joint did beside what was commanded.

    Args:
        kind: `fine`, `wrong`, or `open`: not told yet.
        check: `scale`, `joint order`, `sign` or `following`, of what is wrong.
        text: what it is.
        lag: from a command to the joint's following it [s].
        gain: of it.
    """

    kind: str
    check: str = ""
    text: str = ""
    lag: float = math.nan
    gain: float = math.nan


def in_limits(position: np.ndarray, lower: np.ndarray, upper: np.ndarray) -> np.ndarray:
    """(J,) bool: whether positions lie in their limits, or a tenth of the range outside."""
    slack = np.where(np.isfinite(upper - lower), 0.1 * (upper - lower), np.inf)
    return (position >= lower - slack) & (position <= upper + slack)


def follow(
    names: tuple[str, ...], states: tuple[np.ndarray, np.ndarray], sent: tuple[np.ndarray, np.ndarray]
) -> list[Followed]:
    """Compare every joint with what every joint was told, of position servos, which go where they are told.

    A joint that follows its own command moves as far as it, some time later; it is judged only if no other joint's
    command tells the same story.

    Args:
        names: of the joints.
        states: (n,) times [s] and (n, J) positions.
        sent: (m,) times and (m, J) commanded positions.
    """
    found = [Followed("open", text="nothing was commanded") for _ in names]
    if len(sent[0]) < 10:
        return found
    near = np.abs(states[0] - sent[0][np.searchsorted(sent[0], states[0]).clip(0, len(sent[0]) - 1)]) < 0.1
    at, place = states[0][near], states[1][near]
    if len(at) < 50:
        return found
    moved, told = np.ptp(place, axis=0), np.ptp(sent[1], axis=0)
    shape = _Shapes(at, place, sent)
    for i in range(len(names)):
        if max(moved[i], told[i]) < MOVED:
            found[i] = Followed("open", text="has not moved")
        else:
            found[i] = shape.judge(i, names, bool(moved[i] >= 0.25 * MOVED))
    return found


def follow_alone(
    names: tuple[str, ...], states: tuple[np.ndarray, np.ndarray], sent: tuple[np.ndarray, np.ndarray]
) -> list[Followed]:
    """The same for joints that ask for torque by targets, of the times when one of them alone was told to move.

    Legs that walk do not go where their targets are; a leg that hangs moves a joint that is told to, and the right way.
    """
    found = [Followed("open", text="was not moved alone") for _ in names]
    if len(sent[0]) < 10:
        return [Followed("open", text="nothing was commanded") for _ in names]
    pace = np.abs(np.gradient(sent[1], sent[0], axis=0))
    at, place = states
    for i in range(len(names)):
        others = np.delete(pace, i, axis=1).max(1, initial=0.0)
        alone = sent[0][(pace[:, i] > 0.02) & (pace[:, i] > 5.0 * others)]
        if len(alone) < 20:
            continue
        # with the time after it, in which joints still follow, and without that of others
        rows = (_since(alone, at) < 0.4) & (_since(sent[0][others > 0.02], at) > 0.3)
        told = np.interp(at, sent[0], sent[1][:, i])
        if rows.sum() < 30 or np.ptp(told[rows]) < ALONE:
            continue
        moved = place[rows] - place[rows].mean(0)
        reach = np.abs(moved).max(0)
        best, lag, gain = 0.0, 0.0, 0.0
        which = int(reach.argmax())
        for late in LAGS:
            x = np.interp(at[rows] - late, sent[0], sent[1][:, i])
            x -= x.mean()
            went = moved[:, which]
            alike = float(x @ went) / math.sqrt(float(x @ x) * float(went @ went) + 1e-18)
            if abs(alike) > abs(best):
                best, lag, gain = alike, float(late), float(x @ went / (x @ x))
        told_by = partial(Followed, lag=lag, gain=gain)
        if np.delete(reach, which).max(initial=0.0) > 0.6 * reach[which] > 0.01 * np.ptp(told[rows]):
            found[i] = told_by("open", text="was not all that moved: hold the robot still meanwhile")
        elif reach[which] < 0.1 * np.ptp(told[rows]) or abs(best) < 0.7:
            found[i] = told_by("wrong", "following", "was told to move and did not")
        elif which != i:
            found[i] = told_by("wrong", "joint order", f"was told to move, and {names[which]} did")
        elif best < 0.0:
            found[i] = told_by("wrong", "sign", "moves the other way than it is told")
        elif gain > 10.0:
            found[i] = told_by("wrong", "scale", f"moves {gain:.3g} times as far as it is told")
        else:
            found[i] = told_by("fine")
    return found


def _since(events: np.ndarray, at: np.ndarray) -> np.ndarray:
    """(n,) seconds from the last of the events (m,) to each time (n,); infinite before the first."""
    index = np.searchsorted(events, at, "right") - 1
    return np.where(index >= 0, at - np.append(events, 0.0)[index], np.inf)


class _Shapes:
    """Residuals of all pairs of joints over all lags, from covariances alone."""

    def __init__(self, at: np.ndarray, place: np.ndarray, sent: tuple[np.ndarray, np.ndarray]) -> None:
        count = place.shape[1]
        d = place - place.mean(0)
        self.own = d.var(0) + 1e-12
        cross, power = [], []
        for lag in LAGS:
            x = np.stack([np.interp(at - lag, sent[0], sent[1][:, j]) for j in range(count)], axis=1)
            x -= x.mean(0)
            cross.append(d.T @ x / len(d))
            power.append(x.var(0))
        self.cross, self.power = np.array(cross), np.array(power)[:, None, :] + 1e-12  # (L, J, J), (L, 1, J)

    def unexplained(self, gain: float) -> np.ndarray:
        """(L, J, J) share of joint i's variance that gain times the command of j leaves."""
        own = self.own[None, :, None]
        return (own + gain * gain * self.power - 2.0 * gain * self.cross) / own

    def judge(self, i: int, names: tuple[str, ...], moves: bool) -> Followed:
        right = self.unexplained(1.0)[:, i].min(0)  # (J,)
        lag = int(self.unexplained(1.0)[:, i, i].argmin())
        gain = float(self.cross[lag, i, i] / self.power[lag, 0, i])
        told_by = partial(Followed, lag=float(LAGS[lag]), gain=gain)
        others = np.delete(np.arange(len(names)), i)
        if right[i] < FITS:
            rival = others[right[others].argmin()] if len(others) else i
            if rival != i and right[rival] < max(4.0 * right[i], 0.005):
                text = f"moves as {names[i]} and as {names[rival]} were told alike: move them one after the other"
                return told_by("open", "", text)
            return told_by("fine")
        if not moves:
            return told_by("wrong", "following", "was told to move and did not")
        for check, sign, scale in (("sign", -1.0, 1.0), ("scale", 1.0, DEGREES), ("scale", -1.0, DEGREES)):
            if self.unexplained(sign * scale)[:, i, i].min() < FITS:
                text = "moves the other way than it is told" if check == "sign" else "moves 57 times as far as told"
                return told_by("wrong", check, text)
        for scale in (1.0, -1.0):
            left = self.unexplained(scale)[:, i].min(0)
            rival = int(left.argmin())
            if rival != i and left[rival] < FITS:
                return told_by("wrong", "joint order", f"moves as {names[rival]} is told")
        alike = float(self.cross[lag, i, i] ** 2 / (self.own[i] * self.power[lag, 0, i]))
        if alike > 0.8:
            return told_by("wrong", "scale", f"moves {gain:.3g} times as far as it is told")
        return told_by("wrong", "following", "does not move as it is told, nor as any other joint is")


def derivative(times: np.ndarray, position: np.ndarray, velocity: np.ndarray) -> tuple[str, str]:
    """Whether the velocity of one joint is how its position changes.

    Args:
        times: (n,) [s].
        position: (n,).
        velocity: (n,).

    Returns:
        `fine`, `wrong` or `open`, and what is wrong.
    """
    step = 10
    if len(times) <= 2 * step or np.ptp(position) < MOVED:
        return "open", "has not moved"
    span = times[step:] - times[:-step]
    slope = (position[step:] - position[:-step]) / np.maximum(span, 1e-6)
    good = (span > 0.0) & (span < 0.5) & (np.abs(slope) > SLOW)
    if good.sum() < 15:
        return "open", "has hardly moved"
    mean = np.convolve(velocity, np.array([0.5, *np.ones(step - 1), 0.5]) / step, "valid")[good]
    slope = slope[good]
    power = float(slope @ slope) + 1e-12
    if float(mean @ mean) < 0.01 * power:
        return "wrong", "is zero while it moves"

    def unexplained(factor: float) -> float:
        return float(np.square(mean - factor * slope).sum()) / (factor * factor * power)

    if unexplained(1.0) < 0.5:
        return "fine", ""
    if unexplained(DEGREES) < 0.5:
        return "wrong", "is 57 times what the position says: degrees per second"
    if unexplained(1.0 / DEGREES) < 0.5:
        return "wrong", "is a 57th of what the position says: the position is in degrees"
    if unexplained(-1.0) < 0.5:
        return "wrong", "has the other sign than the position's change"
    return "wrong", "is not how the position changes"
