"""Batches out of a store, straight from its mapped files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from robot_rl.data.chains import all_true, check_sizes, sum_ahead
from robot_rl.data.normalize import DataNorm
from robot_rl.data.seen import MOST_PICTURES, space_rows
from robot_rl.data.store import Store
from robot_rl.types import Batches, Obs, StateDict, Transitions

_BLOCK = 1 << 15
"""Indices drawn at once."""
_TABLE = 1 << 26
"""Up to this many steps there is a table of the segment of each."""
_VIRTUAL = ("row", "episode", "step")


@dataclass(frozen=True)
class LogView:
    """What a row drawn from a log holds.

    Attributes:
        n_step: primitive steps summed into one reward, fewer at the end of an episode.
        gamma: discount per step.
        window: steps per sample.
        next_action: also `extras["next_action"]` (B, A) and `extras["next_action_valid"]` (B,) bool: the action of the
            step that follows the n-step return in the same episode; where there is none, or it is no transition, zeros
            and False.
        return_to_go: also `extras["return_to_go"]` (B,): discounted sum of rewards to the end of the episode.
        return_gamma: discount of that sum; `gamma` when None, 1 for undiscounted returns.
        return_bootstrap: an episode that no terminal ends and that is shorter than the longest earns, for that sum, its
            mean reward until it were as long: what a recording cut off is not worth 0.
        extras: further float columns "info/<name>" of the store by <name>, or "proposed"; and "row", "episode", "step"
            (int64): place in the store, episode, step inside it.
        reward_scale: rewards are multiplied by this; "return_range" is 1000 / (largest - smallest return of a complete
            episode), or 1 with a warning in `notes` when all returns are equal.
        reward_bias: added to rewards afterwards.
        action_clip: bound of |action|, or None; 1 - 1e-5 keeps atanh finite.
        require_next: leave out steps without a recorded successor.

    Raises:
        ValueError: a number is out of range.
    """

    n_step: int = 1
    gamma: float = 0.99
    window: int = 1
    next_action: bool = False
    return_to_go: bool = False
    return_gamma: float | None = None
    return_bootstrap: bool = False
    extras: Sequence[str] = ()
    reward_scale: float | str = 1.0
    reward_bias: float = 0.0
    action_clip: float | None = None
    require_next: bool = True

    def __post_init__(self) -> None:
        check_sizes(self.gamma, n_step=self.n_step, window=self.window)


class LogDataset:
    """Uniform sampling, with replacement, over the steps of a store; a `Sampler`.

    A step can be sampled unless its successor was never recorded (the last of an episode with `final_obs_valid` False)
    and it is no terminal; with `require_next=False` those count too (behaviour cloning). Steps whose column "valid" is
    False are left out, and neither n-step returns nor windows reach across them. `next_obs` of a terminal whose final
    observation was not recorded repeats its observation: its discount is 0.

    With `window` L > 1 every field has (B, L) in place of (B,): the sampled step and those that follow it in its
    episode; `mask` (B, L) tells which exist, the others repeat the last one with reward and discount 0.

    With `seeds` S > 1 a batch of S * B rows holds, one behind another, the rows that S data sets of B rows with the
    seeds `seed`, `seed` + 1, ... would have given.

    Batches lie in memory of their own. Columns stay in the mapped files and only sampled rows are read, so that data
    may exceed memory.

    Args:
        store: the data.
        view: what a sampled row holds.
        seed: of the sampling.
        seeds: independent streams in one batch.
        episodes: indices of the episodes to use, or a mask (E,); None for all.
        keys: observations to read; None for all.
        derived: further observations: key -> (M, ...) rows that are not in the store, one for each observation row of
            it (what a frozen reader made of its pictures, see `robot_rl.data.features`).

    Raises:
        ValueError: an argument is out of range, names an unknown column, or no step is left to sample.

    Source: Tarasov et al., CORL (return_range, from D4RL's boundaries instead of "terminal or 1000 rows").
    """

    def __init__(
        self,
        store: Store,
        view: LogView | None = None,
        *,
        seed: int = 0,
        seeds: int = 1,
        episodes: Sequence[int] | np.ndarray | None = None,
        keys: Sequence[str] | None = None,
        derived: Mapping[str, np.ndarray] | None = None,
    ) -> None:
        view = view or LogView()
        if seeds < 1:
            raise ValueError(f"seeds is {seeds}, expected at least 1")
        self.store, self.io, self.gamma = store, store.io, view.gamma
        self.n_step, self.window, self.seeds, self.seed = view.n_step, view.window, seeds, seed
        self.keys = tuple(store.obs_keys if keys is None else keys)
        unknown = [key for key in self.keys if key not in store.obs_keys]
        unknown += [x for x in view.extras if x not in (*_VIRTUAL, "proposed") and f"info/{x}" not in store.names]
        if unknown:
            raise ValueError(f"{store.path} has no {', '.join(unknown)}; its columns are {', '.join(store.names)}")
        self.notes: list[str] = []
        """What the user should know about this selection."""
        self.episodes = _episode_numbers(episodes, len(store))
        """(E',) indices of the episodes in use."""
        self._segments(view.require_next)
        self.reward_scale = self._scale(view.reward_scale)
        self.reward_bias, self._clip = float(view.reward_bias), view.action_clip
        self._held: dict[str, np.ndarray] = {}  # columns that are not in the store
        self.derived = dict(derived or {})
        self._add_derived()
        self._next_action, self._extras = view.next_action, tuple(view.extras)
        self._powers = (view.gamma ** np.arange(view.n_step)).astype(np.float32)
        if view.return_to_go:
            gamma = view.gamma if view.return_gamma is None else view.return_gamma
            self._held["return_to_go"] = self.returns_to_go(gamma, view.return_bootstrap)
        self._streams = [_Stream(seed + i, self._length) for i in range(seeds)]

    def __len__(self) -> int:
        """Number of steps that can be sampled."""
        return self._length

    @property
    def horizon(self) -> int:
        """Steps of the longest episode in use."""
        return int(self.store.length[self.episodes].max())

    def batches(self, size: int) -> Batches:
        """Endless batches of `size` rows."""
        return Batches(self.sample, size)

    def sample(self, size: int) -> Transitions:
        """One batch of `size` rows.

        Raises:
            ValueError: `size` is no multiple of `seeds`.
        """
        if size % self.seeds:
            raise ValueError(f"the batch has {size} rows, expected a multiple of {self.seeds} seeds")
        drawn = [stream.take(size // self.seeds) for stream in self._streams]
        return self._collect(drawn[0] if len(drawn) == 1 else np.concatenate(drawn))

    def in_order(self, size: int) -> Iterator[Transitions]:
        """Every step once, in the order of the store, `size` rows at a time (the last batch may be smaller)."""
        for begin in range(0, self._length, size):
            yield self._collect(np.arange(begin, min(begin + size, self._length)))

    def moments(self, key: str = "state") -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation (float64) of an observation over the steps of the episodes in use.

        Raises:
            KeyError: the observation is no vector of floats.
        """
        if len(self.episodes) == len(self.store):
            return self.store.moments(key)
        rows, norm = self.store.obs(key), DataNorm(self.store.obs(key).shape[1:])
        for episode in self.episodes:
            begin = int(self.store.start_obs[episode])
            norm.update(rows[begin : begin + int(self.store.length[episode])])
        return norm.mean, norm.deviation

    def reward_range(self) -> tuple[float, float]:
        """Smallest and largest reward of one step after scale and bias."""
        reward = self.store.column("reward")
        low, high = np.inf, -np.inf
        for begin, count in zip(self._begin.tolist(), np.diff(self._before, append=self._length).tolist()):
            part = reward[begin : begin + count]
            low, high = min(low, float(part.min())), max(high, float(part.max()))
        ends = [self.reward_scale * x + self.reward_bias for x in (low, high)]
        return min(ends), max(ends)

    def returns_to_go(self, gamma: float, bootstrap: bool = False) -> np.ndarray:
        """(N,) float32 over the whole store: sum of gamma^i r_{t+i} to the end of each step's episode.

        With `bootstrap`, cut episodes go on at their mean reward up to the length of the longest.

        Rewards are scaled and shifted as in batches. Doubling: a sum over 2^k steps is one over 2^(k-1) and another
        that begins 2^(k-1) later, so a million steps cost twenty passes and no loop over rows.
        """
        store = self.store
        total = np.asarray(store.column("reward"), np.float64) * self.reward_scale + self.reward_bias
        ends = np.repeat(store.start_step + store.length, store.length)
        place = np.arange(store.steps)
        reach = 1
        while reach < (store.length.max() if len(store) else 0):
            inside = place[: store.steps - reach] + reach < ends[: store.steps - reach]
            total[: store.steps - reach] += np.where(inside, gamma**reach * total[reach:], 0.0)
            reach *= 2
        if bootstrap and len(store):
            rewards = store.returns() * self.reward_scale / np.maximum(store.length, 1) + self.reward_bias
            missing = np.where(self._terminated, 0, store.length.max() - store.length)
            tail = missing if gamma == 1.0 else (1.0 - gamma**missing) / (1.0 - gamma)
            total += gamma ** (ends - place) * np.repeat(np.where(store.length > 0, rewards, 0.0) * tail, store.length)
        return total.astype(np.float32)

    def initial_obs(self) -> dict[str, Tensor]:
        """First observation of every episode in use, (E', ...) per key."""
        rows = self.store.start_obs[self.episodes]
        return {key: self._read(f"obs/{key}", rows) for key in self.keys}

    def look(self, most: int) -> tuple[Obs, Any, int]:
        """Observations and actions of evenly spaced steps of those in use, and how many; see `data.seen.Looked`."""
        index = space_rows(self._length, most)
        run, row = self._place(index)
        first = row + self._episode.take(run)
        obs = {key: self.store.obs(key)[first] for key in self.store.obs_keys if self.store.obs(key).ndim == 2}
        few = first[space_rows(len(first), MOST_PICTURES)]
        obs |= {key: self.store.obs(key)[few] for key in self.store.obs_keys if key.startswith("image.")}
        return obs, self._actions(row).numpy(), self._length

    def state_dict(self) -> StateDict:
        """Position in the stream of samples."""
        return {"streams": [stream.state_dict() for stream in self._streams], "data": self.store.fingerprint}

    def load_state_dict(self, state: StateDict) -> None:
        """Continue exactly as the saved data set would have.

        Raises:
            ValueError: it read other data, or had another number of seeds.
        """
        if state["data"] != self.store.fingerprint:
            raise ValueError(
                f"the run was trained on other data (fingerprint {state['data'][:12]}) than {self.store.path} "
                f"({self.store.fingerprint[:12]}); name the store it began with"
            )
        if len(state["streams"]) != self.seeds:
            raise ValueError(f"the saved data set had {len(state['streams'])} seeds, this one has {self.seeds}")
        for stream, saved in zip(self._streams, state["streams"]):
            stream.load_state_dict(saved)

    def _add_derived(self) -> None:
        rows = int((self.store.length + 1).sum())
        for key, value in self.derived.items():
            if len(value) != rows or key in self.store.obs_keys:
                raise ValueError(
                    f"derived observation '{key}' has {len(value)} rows, the store {rows}; expected one for each, and "
                    f"a name that is not among {', '.join(self.store.obs_keys)}"
                )
            self._held[f"obs/{key}"] = value
        self.keys = (*self.keys, *self.derived)

    def _segments(self, require_next: bool) -> None:
        """Runs of steps that can be sampled, none across an episode: begin, length, episode."""
        store, chosen = self.store, self.episodes
        begin, length = store.start_step[chosen], store.length[chosen].copy()
        # An end can only be the last step of its episode, so that tables of episodes replace columns of steps.
        self._last = store.start_step + store.length - 1
        kept = np.maximum(self._last, 0)
        self._terminated = store.column("terminal").take(kept) & (store.length > 0)
        self._truncated = store.column("truncated").take(kept) & (store.length > 0)
        self._human = bool(store.column("intervened").any())
        if require_next:
            lost = (length > 0) & ~(store.final_obs_valid | self._terminated)[chosen]
            length[lost] -= 1
            if lost.any():
                self.notes.append(
                    f"{int(lost.sum()):,} last steps have no recorded successor: left out of transition batches"
                )
        episode = chosen
        self._valid: np.ndarray | None = None  # (N,) where some steps are no transitions
        if "info/valid" in store.names:
            valid = np.asarray(store.column("info/valid"), bool)
            if not valid.all():
                self._valid = valid
                begin, length, episode = _valid_runs(valid, begin, length, episode)
                self.notes.append(f"{int((~valid).sum()):,} steps are marked as no transitions: left out")
        used = length > 0
        self._begin, self._run_length, self._episode = begin[used], length[used], episode[used]
        self._before = np.concatenate(([0], np.cumsum(self._run_length)[:-1])) if used.any() else np.zeros(0, np.int64)
        self._length = int(self._run_length.sum())
        self._run_of: np.ndarray | None = None
        if self._length <= _TABLE:  # one gather is far cheaper than a binary search
            self._run_of = np.repeat(np.arange(len(self._begin), dtype=np.int32), self._run_length)
        if not self._length:
            raise ValueError(
                f"{store.path} has no step that can be sampled in the {len(chosen)} chosen episodes: a step without a "
                "recorded successor is no transition, unless it is terminal. Cloning needs none (policy=offline/bc); "
                "for others write next_observations into the log"
            )

    def _scale(self, wanted: float | str) -> float:
        if not isinstance(wanted, str):
            return float(wanted)
        if wanted != "return_range":
            raise ValueError(f"reward_scale is '{wanted}', expected a number or 'return_range'")
        returns = self.store.returns()[self.episodes][self.store.complete[self.episodes]]
        spread = float(returns.max() - returns.min()) if len(returns) else 0.0
        if not spread > 0:
            self.notes.append("reward_scale=return_range: all complete episodes have one return; rewards unchanged")
            return 1.0
        return 1000.0 / spread

    def _collect(self, index: np.ndarray) -> Transitions:
        run, row = self._place(index)
        end, episode = self._begin.take(run) + self._run_length.take(run), self._episode.take(run)
        mask = None
        if self.window > 1:
            row = row[:, None] + np.arange(self.window)
            end, episode = end[:, None], episode[:, None]
            mask = row < end
            row = np.minimum(row, end - 1)
        reward, steps, final = sum_ahead(
            self._reward(row), row, self._powers, lambda place: place + 1 < end, self._reward
        )
        at_end = final == self._last.take(episode)
        terminated = at_end & self._terminated.take(episode)
        discount = self._powers.take(steps) * np.float32(self.gamma) * ~terminated
        if mask is not None:
            reward, discount = reward * mask, discount * mask
        first, after = row + episode, final + episode + 1
        return Transitions(
            obs={key: self._read(f"obs/{key}", first) for key in self.keys},
            action=self._actions(row),
            reward=torch.from_numpy(reward),
            discount=torch.from_numpy(discount),
            next_obs={key: self._read(f"obs/{key}", after) for key in self.keys},
            terminated=torch.from_numpy(terminated),
            truncated=torch.from_numpy(at_end & self._truncated.take(episode)),
            intervened=self._read("intervened", row) if self._human else torch.zeros(row.shape, dtype=torch.bool),
            mask=all_true(len(row), torch.device("cpu")) if mask is None else torch.from_numpy(mask),
            extras=self._more(row, final, episode),
        )

    def _place(self, index: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Segments and rows of steps by their numbers among those that can be sampled."""
        if self._run_of is not None:
            run = self._run_of.take(index)
        else:
            run = np.searchsorted(self._before, index, "right") - 1
        return run, self._begin.take(run) + index - self._before.take(run)

    def _reward(self, row: np.ndarray) -> np.ndarray:
        reward = self.store.column("reward").take(row)
        if self.reward_scale == 1.0 and self.reward_bias == 0.0:
            return reward
        return reward * np.float32(self.reward_scale) + np.float32(self.reward_bias)

    def _more(self, row: np.ndarray, final: np.ndarray, episode: np.ndarray) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        if self._next_action:
            last = self._last.take(episode)
            valid, after = final < last, np.minimum(final + 1, last)
            if self._valid is not None:
                valid &= self._valid.take(after)
            found["next_action_valid"] = torch.from_numpy(valid)
            found["next_action"] = self._actions(after) * found["next_action_valid"][..., None]
        if "return_to_go" in self._held:
            found["return_to_go"] = self._read("return_to_go", row)
        for name in self._extras:
            if name in _VIRTUAL:
                full = np.broadcast_to(episode, row.shape)
                value = {"row": row, "episode": full, "step": row - self.store.start_step[full]}[name]
                found[name] = torch.from_numpy(np.array(value, np.int64))
            else:
                found[name] = self._read(name if name == "proposed" else f"info/{name}", row).float()
        return found

    def _actions(self, row: np.ndarray) -> Tensor:
        action = self._read("action", row)
        return action if self._clip is None else action.clamp_(-self._clip, self._clip)

    def _read(self, name: str, index: np.ndarray) -> Tensor:
        """Rows of a column, copied."""
        column = self._held[name] if name in self._held else self.store.column(name)
        return torch.from_numpy(column.take(index, 0))


class _Stream:
    """Uniform integers below `high`, drawn in blocks; the sequence does not depend on how it is cut into batches."""

    def __init__(self, seed: int, high: int) -> None:
        self._high, self._generator = high, torch.Generator().manual_seed(seed)
        self._block = np.zeros(0, np.int64)
        self._before = self._generator.get_state()
        self._next = 0

    def take(self, size: int) -> np.ndarray:
        parts: list[np.ndarray] = []
        while size:
            if self._next == len(self._block):
                self._before = self._generator.get_state()
                self._draw()
                self._next = 0
            part = self._block[self._next : self._next + size]
            self._next += len(part)
            size -= len(part)
            parts.append(part)
        return parts[0] if len(parts) == 1 else np.concatenate(parts) if parts else np.zeros(0, np.int64)

    def _draw(self) -> None:
        self._block = torch.randint(self._high, (_BLOCK,), generator=self._generator).numpy()

    def state_dict(self) -> StateDict:
        return {"generator": self._before.clone(), "next": self._next, "drawn": len(self._block)}

    def load_state_dict(self, state: StateDict) -> None:
        self._generator.set_state(state["generator"].cpu())
        self._before, self._next = self._generator.get_state(), int(state["next"])
        self._block = np.zeros(0, np.int64)
        if state["drawn"]:
            self._draw()


def _episode_numbers(episodes: Sequence[int] | np.ndarray | None, count: int) -> np.ndarray:
    if episodes is None:
        return np.arange(count)
    chosen = np.asarray(episodes)
    if chosen.dtype == bool:
        if chosen.shape != (count,):
            raise ValueError(f"the mask of episodes has shape {chosen.shape}, expected ({count},)")
        chosen = np.flatnonzero(chosen)
    if not len(chosen) or chosen.min() < 0 or chosen.max() >= count:
        raise ValueError(f"episodes are {chosen.tolist()[:8]}, expected at least one index in 0 ... {count - 1}")
    return np.unique(chosen).astype(np.int64)


def _valid_runs(
    valid: np.ndarray, begin: np.ndarray, length: np.ndarray, episode: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Cut the segments at the steps that are not valid."""
    owner = np.full(len(valid) + 1, -1)  # segment of each step that may be drawn
    for i, (a, n) in enumerate(zip(begin.tolist(), length.tolist())):
        owner[a : a + n] = np.where(valid[a : a + n], i, -1)
    edges = np.flatnonzero(np.diff(owner, prepend=-1))
    opens = np.flatnonzero(owner[edges] >= 0)
    first = edges[opens]
    return first, edges[opens + 1] - first, episode[owner[first]]
