"""Worst-case search on a windy walk: iterations, values in every wind, against solving one wind or all at once."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np


def run(quick: bool = False, *, winds: int = 25, strongest: float = 0.5, gamma: float = 0.99) -> dict[str, Any]:
    """Table of policies: solved for no wind, for the mean wind, robust to changing wind, and found by the search.

    Args:
        quick: five winds.
        winds: how many between 0 and `strongest`.
        strongest: largest wind.
        gamma: discount.

    Returns:
        {"rows": policy, value in the worst wind, the wind, value without wind; "iterations", "bound": the least of the
        optimal values of all winds, which no policy can beat in the worst case}.
    """
    tables = importlib.import_module("robot_rl.policies.contrib.iwocs")
    strength = np.linspace(0.0, strongest, 5 if quick else winds)
    worlds, start = [tables.windy_walk(float(w)) for w in strength], tables.start_of()
    found = tables.iwocs(worlds, gamma=gamma, start=start)
    policies = {
        "solved without wind": tables.optimal_values(worlds[0], gamma).argmax(1),
        "solved in the mean wind": tables.optimal_values(worlds[len(worlds) // 2], gamma).argmax(1),
        "robust value iteration": tables.robust_values(worlds, gamma).argmax(1),
        "IWOCS": found.policy,
    }
    rows = []
    for name, policy in policies.items():
        value = [float(tables.policy_values(world, policy, gamma)[start]) for world in worlds]
        worst = int(np.argmin(value))
        rows.append(
            {"policy": name, "worst": value[worst], "in wind": round(float(strength[worst]), 3), "no wind": value[0]}
        )
    bound = min(float(tables.optimal_values(world, gamma)[start].max()) for world in worlds)
    return {"rows": rows, "iterations": len(found.history), "solved": len(found.chosen), "bound": bound}
