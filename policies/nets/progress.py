"""Progress as a share of remaining work: labels of pairs of frames, and how pair deltas add up to a value.

Remaining work W > 0 (metres or seconds, with a floor) turns into progress v = 1 - W / W_0 and its additive form
u = -ln(1 - v) = ln W_0 - ln W. The signed share c(a -> b) of the work done between two frames is antisymmetric, and
u_b - u_a = -sign(c) ln(1 - |c|) exactly, so deltas of a closed loop of frames add up to nothing.

The forms published with VLAC (Zhai et al., "A Vision-Language-Action-Critic Model for Robotic Real-World Reinforcement
Learning", arXiv 2509.15937, and the utilities released with it) stand beside ours: `accumulate` with "simple",
"inverse" and "mix_f".
"""

from __future__ import annotations

import numpy as np

CLIP = 0.02
"""Labels stay this far from -1 and 1."""
U_MIN = float(np.log(0.5))
"""Floor of accumulated u: v >= -1, so that moving away is visible and cannot run off."""
FORMS = ("log", "simple", "inverse", "mix_f")


def work_share(before: np.ndarray, after: np.ndarray, *, clip: float = CLIP) -> np.ndarray:
    """Signed share of the remaining work done between two frames: 1 - W_b / W_a, or -(1 - W_a / W_b) when W grew.

    Args:
        before: (...) W_a > 0.
        after: (...) W_b > 0, of the same unit.
        clip: results are cut to [-1 + clip, 1 - clip].

    Returns:
        (...) float64 in (-1, 1); c(b -> a) = -c(a -> b) exactly.

    Raises:
        ValueError: work that is not positive.
    """
    before, after = np.asarray(before, np.float64), np.asarray(after, np.float64)
    if np.any(~(before > 0)) or np.any(~(after > 0)):
        raise ValueError("remaining work must be > 0 in every frame; give it a floor (a goal that is met keeps w_min)")
    forward = 1.0 - np.minimum(before, after) / np.maximum(before, after)
    return np.clip(np.where(after <= before, forward, -forward), -1.0 + clip, 1.0 - clip)


def log_delta(share: np.ndarray) -> np.ndarray:
    """The additive form of a share: -sign(c) ln(1 - |c|)."""
    share = np.asarray(share, np.float64)
    return -np.sign(share) * np.log1p(-np.abs(share))


def share_of_log(delta: np.ndarray) -> np.ndarray:
    """Inverse of `log_delta`."""
    delta = np.asarray(delta, np.float64)
    return np.sign(delta) * -np.expm1(-np.abs(delta))


def accumulate(deltas: np.ndarray, form: str = "log", *, start: float = 0.0) -> np.ndarray:
    """Values of a clip from the deltas of its consecutive pairs.

    Args:
        deltas: (n,) shares c in [-1, 1] for every form.
        form: "log": u adds up, v = 1 - exp(-u), u at least `U_MIN`. Published: "simple": v' = v + (1 - v) c for either
            sign; "inverse": the exact inverse of the forward rule for c < 0, v' = 1 - (1 - v) / (1 + c) with at least
            one percent remaining; "mix_f": that inverse, at least .1, above v = .5, and v + v c below.
        start: v_0.

    Returns:
        (n + 1,) values, the first of them `start`.

    Raises:
        ValueError: unknown form.
    """
    if form not in FORMS:
        raise ValueError(f"form is '{form}', expected one of {', '.join(FORMS)}")
    values = [float(start)]
    if form == "log":
        u = -float(np.log1p(-start))
        for step in log_delta(np.clip(deltas, -1.0 + 1e-9, 1.0 - 1e-9)):
            u = max(u + float(step), U_MIN)
            values.append(-float(np.expm1(-u)))
        return np.array(values)
    for c in np.asarray(deltas, np.float64):
        v = values[-1]
        if c >= 0 or form == "simple":
            values.append(v + (1.0 - v) * c)
            continue
        # c = -1 divides by zero in the published code; the value it tends to, cut off at -99, stands in.
        inverse = 1.0 - max(1.0 - v, 0.01) / max(1.0 + c, 1e-2)
        if form == "inverse":
            values.append(inverse)
        else:
            values.append(max(0.1, inverse) if v > 0.5 else v + v * c)
    return np.array(values)


def add_up(
    log_deltas: np.ndarray, absolute: np.ndarray | None = None, *, anchor: float = 0.0
) -> tuple[np.ndarray, np.ndarray]:
    """u and values of a clip from its steps of u, pulled towards an absolute u where there is one.

    u <- u + step, then u <- u + anchor (absolute - u): errors of the steps fade instead of adding up.

    Args:
        log_deltas: (n,) steps of u.
        absolute: (n + 1,) u of each frame from an absolute value, 0 at the first; None or NaN: none.
        anchor: share of the difference that one step takes away, 0 to 1.

    Returns:
        (n + 1,) u from 0, at least `U_MIN`, and (n + 1,) values v = 1 - exp(-u).
    """
    u = [0.0]
    for i, step in enumerate(np.asarray(log_deltas, np.float64), start=1):
        here = u[-1] + float(step)
        if absolute is not None and np.isfinite(absolute[i]):
            here += anchor * (float(absolute[i]) - here)
        u.append(max(here, U_MIN))
    return np.array(u), -np.expm1(-np.array(u))


def true_values(work: np.ndarray) -> np.ndarray:
    """(T + 1,) remaining work -> (T + 1,) values since the first frame, at least -1."""
    work = np.asarray(work, np.float64)
    return np.maximum(1.0 - work / work[0], -1.0)
