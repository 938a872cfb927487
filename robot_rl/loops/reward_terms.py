"""A reward term by term, as environments name them in `info["reward_terms"]`: what each paid since it was read last."""

from __future__ import annotations

import numpy as np
import torch

from robot_rl.types import Array, Metrics, StateDict, Step

BLOCK = 256
"""Steps that are added up at a time: a step costs a list's append."""


class RewardTerms:
    """Mean, least and most of every named term over the steps since the last reading."""

    def __init__(self) -> None:
        self._kept: list[tuple[dict[str, Array], Array]] = []
        self._sums: dict[str, tuple[float, float, float, float]] = {}  # count, sum, least, most

    def add(self, step: Step) -> None:
        """Count one step of every environment; rows with `valid` False are left out."""
        terms = step.info.get("reward_terms")
        if terms:
            self._kept.append((terms, step.valid))
            if len(self._kept) >= BLOCK:
                self._sum_up()

    def metrics(self) -> Metrics:
        """`reward/<term>`, the mean of a step, and its least and most, `reward_low/<term>` and `reward_high/<term>`."""
        self._sum_up()
        row: Metrics = {}
        for name, (count, total, low, high) in self._sums.items():
            row |= {f"reward/{name}": total / count, f"reward_low/{name}": low, f"reward_high/{name}": high}
        self._sums = {}
        return row

    def state_dict(self) -> StateDict:
        """Sums since the last reading."""
        self._sum_up()
        return {name: list(sums) for name, sums in self._sums.items()}

    def load_state_dict(self, state: StateDict) -> None:
        """Continue from `state_dict`."""
        self._kept, self._sums = [], {name: (sums[0], sums[1], sums[2], sums[3]) for name, sums in state.items()}

    def _sum_up(self) -> None:
        kept, self._kept = self._kept, []
        found: dict[str, list[np.ndarray]] = {}
        for terms, valid in kept:
            rows = to_numpy(valid)
            for name, term in terms.items():
                found.setdefault(name, []).append(to_numpy(term)[rows])
        for name, parts in found.items():
            values = np.concatenate(parts).astype(np.float64)
            if len(values):
                count, total, low, high = self._sums.get(name, (0.0, 0.0, np.inf, -np.inf))
                low, high = min(low, float(values.min())), max(high, float(values.max()))
                self._sums[name] = (count + len(values), total + float(values.sum()), low, high)


def to_numpy(value: Array) -> np.ndarray:
    """An array on the host."""
    return value.cpu().numpy() if isinstance(value, torch.Tensor) else np.asarray(value)
