"""Batches drawn from several sources at fixed shares, such as half online experience and half demonstrations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from robot_rl.types import Sampler, StateDict, Stateful, Transitions


class Mix:
    """Sampler of batches with exact shares.

    Each batch gets the whole rows due to every part; what rounding leaves is carried over, so that after any number of
    batches every part has had its share to within one row, and small shares come up every few batches instead of never.
    A part that is empty cedes its rows to the others in proportion to their shares, and gets no credit for the time
    that it was empty. Rows lie in the order of the parts; `extras["source"]` (B,) int64 is the part's position. Only
    extras that all drawn parts have are kept.

    Args:
        parts: name -> (sampler, share); shares are positive and are scaled to sum to one.
        seed: which part gets the odd row first.

    Raises:
        ValueError: no parts, or a share that is not positive.

    Source: Ball et al., Efficient Online RL with Offline Data (symmetric sampling), for shares of one half.
    """

    def __init__(self, parts: Mapping[str, tuple[Sampler, float]], *, seed: int = 0) -> None:
        if not parts:
            raise ValueError("Mix got no parts, expected at least one name -> (sampler, share)")
        bad = {name: share for name, (_, share) in parts.items() if not share > 0}
        if bad:
            raise ValueError(f"Mix got shares {bad}, expected positive numbers; leave out a part that is not wanted")
        self.parts = {name: sampler for name, (sampler, _) in parts.items()}
        total = sum(share for _, share in parts.values())
        self.share = {name: share / total for name, (_, share) in parts.items()}
        """Wanted fractions; they sum to one."""
        phase = np.random.default_rng(seed).random(len(parts)) * 0.5
        self._credit = dict(zip(parts, (phase - phase.mean()).tolist()))  # rows due to each part; sums to zero

    def __len__(self) -> int:
        return sum(len(part) for part in self.parts.values())

    def batches(self, size: int) -> Iterator[Transitions]:
        """Endless batches of `size` rows.

        Raises:
            ValueError: every part is empty, or the parts' fields do not fit together.
        """
        streams: dict[tuple[str, int], Iterator[Transitions]] = {}
        while True:
            drawn = {}
            for name, rows in self._quota(size).items():
                if rows:
                    if (name, rows) not in streams:
                        streams[name, rows] = self.parts[name].batches(rows)
                    drawn[name] = next(streams[name, rows])
            yield merge(drawn, tuple(self.parts))

    def sample(self, size: int) -> Transitions:
        """One batch of `size` rows."""
        return next(self.batches(size))

    def state_dict(self) -> StateDict:
        """The carried-over rounding, and the state of every part."""
        return {"credit": dict(self._credit), "parts": {name: part.state_dict() for name, part in self.parts.items()}}

    def load_state_dict(self, state: StateDict) -> None:
        """Continue exactly as the saved mix would have.

        Raises:
            ValueError: the saved mix had other parts.
        """
        if state["credit"].keys() != self._credit.keys():
            raise ValueError(f"the saved mix has the parts {list(state['credit'])}, this one has {list(self._credit)}")
        self._credit = dict(state["credit"])
        for name, saved in state["parts"].items():
            self.parts[name].load_state_dict(saved)

    def _quota(self, size: int) -> dict[str, int]:
        """Rows of each part in the next batch."""
        filled = [name for name, part in self.parts.items() if len(part) > 0]
        if not filled:
            raise ValueError(f"every part of the mix is empty ({', '.join(self.parts)}); add data before sampling")
        if len(filled) < len(self.parts):
            lost = sum(self._credit[name] for name in filled) / len(filled)
            self._credit = {name: self._credit[name] - lost if name in filled else 0.0 for name in self.parts}
        total = sum(self.share[name] for name in filled)
        due = {name: self._credit[name] + size * self.share[name] / total for name in filled}
        rows = {name: max(0, int(due[name] + 1e-9)) for name in filled}
        missing = size - sum(rows.values())
        step = 1 if missing > 0 else -1
        for _ in range(abs(missing)):
            able = [name for name in filled if rows[name] + step >= 0]
            rows[max(able, key=lambda name: step * (due[name] - rows[name]))] += step
        self._credit |= {name: due[name] - rows[name] for name in filled}
        return rows


class Shares:
    """The state of a sampler without those of its parts that a checkpoint holds elsewhere, or that a log fills again.

    Args:
        sampler: a `Mix`, or one that draws from a memory.
        kept: names of the parts whose state belongs here.
    """

    def __init__(self, sampler: Stateful, *kept: str) -> None:
        self._sampler, self._kept = sampler, kept

    def state_dict(self) -> StateDict:
        """Of the sampler and the parts that are kept here."""
        state = self._sampler.state_dict()
        parts = state.get("parts", {})
        return {**state, "parts": {name: parts[name] for name in self._kept if name in parts}}

    def load_state_dict(self, state: StateDict, /) -> None:
        """Continue."""
        self._sampler.load_state_dict(state)


def refuse_seeds(seeds: int, source: str) -> None:
    """Refuse two sources for runs side by side: a batch is cut into a part per run, and lies source by source.

    Args:
        seeds: runs side by side.
        source: the setting that brings the second source.

    Raises:
        ValueError: several runs.
    """
    if seeds > 1:
        raise ValueError(
            f"{source} joins rows of its own to every batch, and of policy.seeds={seeds} runs side by side each would "
            "learn from one source alone; use policy.seeds=1 and one run per seed (-m seed=0,1)"
        )


def merge(parts: dict[str, Transitions], names: tuple[str, ...] | None = None) -> Transitions:
    """One batch out of several, row after row.

    Args:
        parts: name -> batch; at least one.
        names: order that numbers the parts in `extras["source"]`; that of `parts` when None.

    Returns:
        The batch, with the extras that all parts have and "source" (B,) int64.

    Raises:
        ValueError: the parts differ in observation keys or shapes.
    """
    batches = list(parts.values())
    names = tuple(parts) if names is None else names
    first = batches[0]
    source = [torch.full((len(b.reward),), names.index(n), device=b.reward.device) for n, b in parts.items()]
    if len(batches) == 1:
        return replace(first, extras={**first.extras, "source": source[0]})
    shared = set.intersection(*(set(batch.extras) for batch in batches)) - {"source"}
    for name, batch in parts.items():
        if batch.obs.keys() != first.obs.keys():
            raise ValueError(
                f"part '{name}' observes {sorted(batch.obs)}, expected {sorted(first.obs)} as in '{next(iter(parts))}'"
            )

    def join(label: str, pieces: list[Tensor]) -> Tensor:
        shapes = {name: tuple(piece.shape[1:]) for name, piece in zip(parts, pieces)}
        if len(set(shapes.values())) > 1:
            raise ValueError(f"'{label}' has different shapes per row: {shapes}; expected the same in every part")
        return torch.cat(pieces)

    columns = [batch.columns() for batch in batches]
    extras = {name: join(name, [batch.extras[name] for batch in batches]) for name in sorted(shared)}
    return Transitions(
        obs={key: join(f"obs.{key}", [batch.obs[key] for batch in batches]) for key in first.obs},
        next_obs={key: join(f"next_obs.{key}", [batch.next_obs[key] for batch in batches]) for key in first.obs},
        **{name: join(name, [column[name] for column in columns]) for name in columns[0]},
        extras={**extras, "source": torch.cat(source)},
    )
