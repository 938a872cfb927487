"""What estimators remember between batches: role baselines, scales per task, success rates, entropies, group scores.

The state belongs to the checkpoint. With several workers each calls `collect` on its episodes, the lists are exchanged,
`reduce` puts the samples of all workers into one fixed order and `apply` updates every copy identically: one worker or
four give the same bits. State lives on the CPU in float64; results return to the kind and device of the input.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from robot_rl.advantage.arrays import check_unit, host, in_torch
from robot_rl.advantage.kinds import Array, match_dtype, require_option
from robot_rl.advantage.normalise import EdgeRules, normalise
from robot_rl.advantage.returns import linear_recurrence
from robot_rl.advantage.segments import factorise, seg_count, seg_mean, stable_order


class Samples(NamedTuple):
    """Scores of episodes with their place in the global order; columns of equal length.

    Attributes:
        place: (n,) global position of the episode in the batch, unique over workers.
        key: (n,) state entry that the episode reads and updates.
        score: (n,) float64 outcome, NaN = unscorable.
        group: (n,) group id, or zeros where groups do not matter.
    """

    place: np.ndarray
    key: np.ndarray
    score: np.ndarray
    group: np.ndarray


def reduce(updates: Sequence[Samples]) -> Samples:
    """The samples of all workers in the order of their place.

    Args:
        updates: one entry per worker.

    Raises:
        ValueError: no update, or a place occurs twice.
    """
    if not updates:
        raise ValueError("updates is empty, expected the samples of at least one worker")
    columns = [np.concatenate(column) for column in zip(*updates)]
    order = np.argsort(columns[0], kind="stable")
    merged = Samples(*(column[order] for column in columns))
    twice = np.flatnonzero(merged.place[1:] == merged.place[:-1])
    if len(twice):
        raise ValueError(f"index {merged.place[twice[0]]} occurs twice; number the episodes over all workers")
    return merged


def _samples(score: Array, key: np.ndarray, group: Array, index: Array) -> Samples:
    score = host(score).astype(np.float64)
    n = len(score)
    index = np.arange(n) if index is None else host(index).astype(np.int64)
    group = np.zeros(n, dtype=np.int64) if group is None else host(group).astype(np.int64)
    for name, column in (("key", key), ("index", index), ("group", group)):
        if column.shape != (n,):
            raise ValueError(f"{name} has shape {column.shape}, expected ({n},): one per episode, like score")
    return Samples(index, key.astype(np.int64), score, group)


class _Keyed:
    """Rows of float64 per integer key, sorted by key: what the estimators below remember."""

    def __init__(self, width: int, decay: float) -> None:
        check_unit(decay=decay)
        self.decay = decay
        self._keys = np.zeros(0, dtype=np.int64)
        self._values = np.zeros((0, width))

    reduce = staticmethod(reduce)

    def _rows(self, keys: np.ndarray, default: float) -> np.ndarray:
        """(n, width) entries, `default` where a key is new."""
        out = np.full((len(keys), self._values.shape[1]), default)
        if len(self._keys):
            at = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
            known = self._keys[at] == keys
            out[known] = self._values[at[known]]
        return out

    def _write(self, keys: np.ndarray, rows: np.ndarray) -> None:
        """Set the entries of distinct keys."""
        every = np.union1d(self._keys, keys)
        values = self._rows(every, 0.0)
        values[np.searchsorted(every, keys)] = rows
        self._keys, self._values = every, values

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Tensors for the checkpoint."""
        return {"keys": torch.from_numpy(self._keys.copy()), "values": torch.from_numpy(self._values.copy())}

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        """Inverse of `state_dict`."""
        self._keys = host(state["keys"]).astype(np.int64).copy()
        self._values = host(state["values"]).astype(np.float64).copy()


class RoleBaseline(_Keyed):
    """Running mean outcome per game and role, the baseline of self-play (RAE): A = R - b, then b follows R.

    Source: Liu et al., SPIRAL, role-conditioned advantage estimation; the release keeps one state per process.
    """

    def __init__(self, decay: float = 0.95, *, key: str = "game_role") -> None:
        """Baselines start at 0.

        Args:
            decay: share of the old baseline that stays at each episode.
            key: "game_role" (shared by all workers), or "player_process" (the release: per player and actor process).

        Raises:
            ValueError: decay outside [0, 1] or unknown key.
        """
        require_option("key", key, ["game_role", "player_process"])
        super().__init__(1, decay)
        self.key = key

    def collect(
        self,
        score: Array,
        *,
        role: Array,
        game: Array | None = None,
        process: Array | None = None,
        index: Array | None = None,
    ) -> Samples:
        """Samples of this worker's episodes, one per episode and role.

        Args:
            score: (n,) outcome of the role, NaN = unscorable.
            role: (n,) role or player ids.
            game: (n,) game ids, for key "game_role".
            process: (n,) actor process ids, for key "player_process".
            index: (n,) global episode order; default 0, 1, ...

        Raises:
            ValueError: the ids of the key are missing or shapes differ.
        """
        outer, name = (game, "game") if self.key == "game_role" else (process, "process")
        if outer is None:
            raise ValueError(f"{name} is missing: the state is kept per {self.key.replace('_', ' and ')}")
        return _samples(score, host(outer).astype(np.int64) << 20 | host(role).astype(np.int64), None, index)

    def apply(self, samples: Samples) -> np.ndarray:
        """Advantages in the order of the samples, and the update of the state.

        Args:
            samples: from `reduce`, or from `collect` with one worker.

        Returns:
            (n,) float64; 0 for unscorable samples, which do not move the baseline.
        """
        if len(samples.score) == 0:
            return np.zeros(0)
        cells, _ = factorise(samples.key)
        order = stable_order(cells)
        ids, score = cells[order], samples.score[order]
        ok = ~np.isnan(score)
        known = np.where(ok, score, 0.0)
        start = self._rows(samples.key[order], 0.0)[:, 0]
        first = np.concatenate(([True], ids[1:] != ids[:-1]))
        keep = np.where(ok, self.decay, 1.0)
        # Within a key: b after = keep · b before + (1 - keep) · R, the first one from the stored baseline.
        after = linear_recurrence((1.0 - keep) * known + first * keep * start, np.where(first, 0.0, keep))
        before = np.where(first, start, np.concatenate(([0.0], after[:-1])))
        out = np.zeros(len(score))
        out[order] = np.where(ok, known - before, 0.0)
        last = np.concatenate((ids[1:] != ids[:-1], [True]))
        self._write(samples.key[order][last], after[last][:, None])
        return out

    @in_torch
    def advantage(self, score: Array, *, role: Array, game: Array | None = None, process: Array | None = None) -> Array:
        """`apply` on the episodes of a single worker, in their order; see `collect` for the arguments."""
        return match_dtype(
            torch.from_numpy(self.apply(self.collect(score, role=role, game=game, process=process))).to(score.device),
            score,
        )

    def baseline(self, *, role: int, game_or_process: int) -> float:
        """Present baseline of a role."""
        return float(self._rows(np.array([game_or_process << 20 | role]), 0.0)[0, 0])


class EmaScale(_Keyed):
    """Score minus group mean over a deviation that is averaged per task over batches (EMA-GRPO).

    Source: OneThinker, EMA-GRPO; tulerfeng/OneThinker (the release updates first, its docstring says the opposite).
    """

    def __init__(
        self,
        decay: float = 0.99,
        *,
        order: str = "update_then_use",
        std_floor: float = 1e-3,
        eps: float = 1e-6,
        max_advantage: float = 5.0,
    ) -> None:
        """No task known yet; the first batch of a task sets its moments.

        Args:
            decay: share of the old moments that stays at each batch.
            order: "update_then_use" (the release) or "use_then_update".
            std_floor: smallest deviation.
            eps: added to the deviation.
            max_advantage: a group with a larger |advantage| uses its own deviation (ddof 0) instead.

        Raises:
            ValueError: decay outside [0, 1] or unknown order.
        """
        require_option("order", order, ["update_then_use", "use_then_update"])
        super().__init__(2, decay)
        self.order = order
        self.std_floor, self.eps, self.max_advantage = std_floor, eps, max_advantage

    def collect(self, score: Array, *, group: Array, task: Array, index: Array | None = None) -> Samples:
        """Samples of this worker's episodes.

        Args:
            score: (n,) outcomes, NaN = unscorable.
            group: (n,) group ids, the same on every worker.
            task: (n,) task type ids.
            index: (n,) global episode order; default 0, 1, ...

        Raises:
            ValueError: shapes differ.
        """
        return _samples(score, host(task), group, index)

    def apply(self, samples: Samples) -> np.ndarray:
        """Advantages in the order of the samples, and the update of the state.

        Args:
            samples: from `reduce`, or from `collect` with one worker.

        Returns:
            (n,) float64; 0 for unscorable and single members.
        """
        if len(samples.score) == 0:
            return np.zeros(0)
        task, count = factorise(samples.key)
        ok = ~np.isnan(samples.score)
        keys = np.zeros(count, dtype=np.int64)
        keys[task] = samples.key
        batch = np.stack([seg_mean(x, task, count, mask=ok) for x in (samples.score, samples.score**2)], 1)
        old = self._rows(keys, float("nan"))
        new = np.where(np.isnan(old), batch, np.where(np.isnan(batch), old, 0.0))
        both = ~np.isnan(old) & ~np.isnan(batch)
        new = np.where(both, self.decay * old + (1.0 - self.decay) * batch, new)
        used = new if self.order == "update_then_use" else np.where(np.isnan(old), new, old)
        std = np.maximum(np.sqrt(np.maximum(used[:, 1] - used[:, 0] ** 2, 0.0)), self.std_floor)[task]
        centered, valid = normalise(samples.score, samples.group, scale="none")
        out = np.where(valid, centered / (std + self.eps), 0.0)
        group, groups = factorise(samples.group)
        wild = seg_count(group, groups, mask=np.abs(out) > self.max_advantage) > 0
        if wild.any():
            own, _ = normalise(
                samples.score, samples.group, rules=EdgeRules(ddof=0, eps=self.eps, std_floor=self.std_floor)
            )
            out = np.where(wild[group], own, out)
        known = ~np.isnan(new[:, 0])
        self._write(keys[known], new[known])
        return out

    @in_torch
    def advantage(self, score: Array, group: Array, task: Array) -> Array:
        """`apply` on the episodes of a single worker; see `collect` for the arguments."""
        return match_dtype(
            torch.from_numpy(self.apply(self.collect(score, group=group, task=task))).to(score.device), score
        )

    def moments(self, task: int) -> tuple[float, float]:
        """Present (mean, mean square) of a task; NaN if unknown."""
        mean, square = self._rows(np.array([task]), float("nan"))[0]
        return float(mean), float(square)


class ExperimentalDifficulty(_Keyed):
    """Weight of a task by its running failure rate (DGRPO): clip((1 - p) / batch mean of (1 - p)) times `grpo`.

    Source: difficulty-aware GRPO (VITAL); no formula was published, this one is a reconstruction and off by default.
    """

    def __init__(self, decay: float = 0.9, *, bounds: tuple[float, float] = (0.5, 2.0)) -> None:
        """No task known yet; the first batch of a task sets its success rate.

        Args:
            decay: share of the old rate that stays at each batch.
            bounds: of the weight.

        Raises:
            ValueError: decay outside [0, 1].
        """
        super().__init__(1, decay)
        self.bounds = bounds

    def collect(self, success: Array, *, task: Array, index: Array | None = None) -> Samples:
        """Samples of this worker's episodes.

        Args:
            success: (n,) 1 or 0, NaN = unknown.
            task: (n,) task ids.
            index: (n,) global episode order; default 0, 1, ...

        Raises:
            ValueError: shapes differ.
        """
        return _samples(success, host(task), None, index)

    def apply(self, samples: Samples) -> np.ndarray:
        """Weights in the order of the samples, after the update of the state.

        Args:
            samples: from `reduce`, or from `collect` with one worker.

        Returns:
            (n,) float64 in `bounds`; 1 where nothing is known.
        """
        if len(samples.score) == 0:
            return np.zeros(0)
        task, count = factorise(samples.key)
        keys = np.zeros(count, dtype=np.int64)
        keys[task] = samples.key
        batch = seg_mean(samples.score, task, count, mask=~np.isnan(samples.score))
        old = self._rows(keys, float("nan"))[:, 0]
        mixed = self.decay * old + (1.0 - self.decay) * batch
        rate = np.where(np.isnan(old), batch, np.where(np.isnan(batch), old, mixed))
        known = ~np.isnan(rate)
        self._write(keys[known], rate[known][:, None])
        failure = 1.0 - rate[task]
        seen = failure[~np.isnan(failure)]
        mean = seen.mean() if len(seen) else 0.0
        weight = np.clip(failure / mean if mean > 0 else np.ones_like(failure), *self.bounds)
        return np.where(np.isnan(weight), 1.0, weight)

    @in_torch
    def weight(self, success: Array, task: Array) -> Array:
        """`apply` on the episodes of a single worker; see `collect` for the arguments."""
        return match_dtype(torch.from_numpy(self.apply(self.collect(success, task=task))).to(success.device), success)
