"""From what a progress critic says to a reward: potentials, deltas, and a "done" that one lucky frame cannot trigger.

Source: potential-based shaping: Ng, Harada & Russell, Policy Invariance Under Reward Transformations, 1999. "delta" is
the reward of VLAC (arXiv 2509.15937).
"""

from __future__ import annotations

import numpy as np

MODES = ("potential", "delta", "dlogw", "absolute")
CAVEATS = {
    "delta": "a policy gains by going back slowly and forth fast, since shares of a closed loop do not cancel",
    "absolute": "a policy gains by standing still near the goal instead of reaching it",
}
"""What a mode can be exploited by; shown when it is chosen."""


def progress_reward(
    values: np.ndarray,
    deltas: np.ndarray,
    *,
    mode: str = "potential",
    gamma: float = 0.99,
    steps: int | np.ndarray = 1,
    terminated: bool = False,
    kappa: float = 1.0,
) -> np.ndarray:
    """Reward of the n decisions of one episode.

    "potential": gamma^k phi' - phi with phi the value; at a true end phi' is 0, so the last reward is -phi: credit was
    paid on the way, and the discounted sum of an episode is minus the first potential whatever the policy did. At a
    time limit phi' stays. "delta": the share c. "dlogw": its log form, cut to [-1, 1]. "absolute": the value.

    Args:
        values: (n + 1,) progress after 0, ..., n decisions.
        deltas: (n,) shares; NaN (no answer) gives 0.
        mode: one of `MODES`.
        gamma: per control step.
        steps: control steps of each decision.
        terminated: the last decision ended the episode for good.
        kappa: factor.

    Returns:
        (n,) float64.

    Raises:
        ValueError: unknown mode, or lengths that do not fit.
    """
    values, deltas = np.asarray(values, np.float64), np.asarray(deltas, np.float64)
    if mode not in MODES:
        raise ValueError(f"mode is '{mode}', expected one of {', '.join(MODES)}")
    if len(values) != len(deltas) + 1:
        raise ValueError(f"{len(values)} values and {len(deltas)} deltas, expected one value more than deltas")
    if mode == "potential":
        after = values[1:].copy()
        if terminated and len(after):
            after[-1] = 0.0
        reward = np.power(gamma, steps) * after - values[:-1]
    elif mode == "absolute":
        reward = values[1:].copy()
    else:
        share = np.nan_to_num(deltas)
        if mode == "dlogw":
            share = np.clip(-np.sign(share) * np.log1p(-np.minimum(np.abs(share), 1.0 - 1e-9)), -1.0, 1.0)
        reward = share
    return kappa * reward


def done_events(
    done: np.ndarray, values: np.ndarray, *, threshold: float = 0.9, held: int = 3, value: float = 0.8
) -> np.ndarray:
    """Where a goal counts as met: P(done) above `threshold` for `held` answers on end, and progress above `value`.

    Args:
        done: (n,) P(done), in order; NaN counts as no.
        values: (n,) progress.
        threshold: for P(done).
        held: answers on end.
        value: progress needed at the last of them.

    Returns:
        (n,) bool.
    """
    run, found = 0, np.zeros(len(done), bool)
    for i, (p, v) in enumerate(zip(np.asarray(done), np.asarray(values))):
        run = run + 1 if p > threshold else 0
        found[i] = run >= held and v > value
    return found
