"""Hindsight experience replay: stored steps, drawn as if what was reached later had been asked for."""

from __future__ import annotations

import numpy as np
import torch

from robot_rl.data.arrays import Store
from robot_rl.data.buffer import ReplayBuffer
from robot_rl.data.chains import draw_between
from robot_rl.types import Goals, IOSpec, Transitions

ACHIEVED, DESIRED = "achieved_goal", "desired_goal"
"""Columns of the replay, by the names of `Step.info` that they are taken from."""


class HindsightReplay(ReplayBuffer):
    """Replay of single steps in which a share of every batch is given a goal that its episode reached later.

    For k = `hindsight`, the first k / (k + 1) of a batch's rows are relabelled when they are drawn; nothing is stored
    twice. (Where that is no whole number of rows, a draw decides between the two next to it.) A row gets the goal that
    was reached by itself or by a later row of its episode, each equally likely (strategy "future"); its state, its
    successor, reward, `terminated` and discount become what they would have been under that goal.

    Only steps that are in the replay count: of an episode that goes on, those so far, and never those of another
    episode or of another environment. Of steps that arrive by `add`, an episode is followed as long as all
    environments give a valid step; where one of them skips a step, goals behind the gap are not used.

    What decides is drawn from the replay's generator, and where episodes lie is found anew from the links between
    rows, so saving and loading are those of `ReplayBuffer`, bit for bit.

    Args:
        io: interface of the environments, a "state" alone.
        capacity: transitions kept.
        goals: of the environments.
        hindsight: k, at least 1.
        num_envs: rows of every `Step`.
        gamma: discount per step.
        seed: of the sampling.
        extras: further columns, see `ReplayBuffer`.

    Raises:
        ValueError: observations beside "state", or a number out of range.

    Source: Andrychowicz et al., Hindsight Experience Replay, algorithm 1 and section 4.5 (strategy "future", k = 4).
    """

    def __init__(
        self,
        io: IOSpec,
        capacity: int,
        *,
        goals: Goals,
        hindsight: int = 4,
        num_envs: int = 1,
        gamma: float = 0.99,
        seed: int = 0,
        extras: dict[str, tuple[int, ...]] | None = None,
    ) -> None:
        if hindsight < 1:
            raise ValueError(f"hindsight is {hindsight}, expected at least 1 goal of hindsight per goal that was asked")
        if set(io.obs) != {"state"}:
            raise ValueError(f"hindsight replays a 'state' alone under other goals, and there is {sorted(io.obs)}")
        columns = {ACHIEVED: (goals.reached,), DESIRED: (goals.width,)}
        super().__init__(io, capacity, num_envs=num_envs, gamma=gamma, seed=seed, extras={**(extras or {}), **columns})
        self.goals, self.share = goals, hindsight / (hindsight + 1.0)
        self._start = np.zeros(capacity, np.int64)  # number of the first row of each row's episode, as far as known
        self._found = 0  # rows whose start is known
        self._longest = 0  # steps between two rows of an episode, at most

    def _collect(self, index: Store) -> Transitions:
        batch = super()._collect(index)
        draw = torch.rand(len(index) + 1, generator=self._generator, dtype=torch.float64).numpy()
        rows = min(int(self.share * len(index) + draw[-1]), len(index))
        if rows:
            self._relabel(batch, index[:rows], self._draw_later(index[:rows], draw[:rows]))
        return batch

    def _relabel(self, batch: Transitions, index: np.ndarray, later: np.ndarray) -> None:
        """Give the batch's first rows, which lie in the slots `index`, the goals that the slots `later` reached.

        The batch's tensors are views of a copy of the records that nobody else holds, so they are written in place.
        """
        goals, rows = self.goals, len(index)
        goal = self._ring.record[later, self._layout.extras[ACHIEVED][1]][:, : goals.width]
        reached, asked = (batch.extras[name].numpy()[:rows] for name in (ACHIEVED, DESIRED))
        for state in (batch.obs["state"].numpy(), batch.next_obs["state"].numpy()):
            state[:rows] = goals.show(state[:rows], asked, goal)
        batch.reward.numpy()[:rows] = _rows_of(goals.reward(reached, goal), rows, "reward")
        if goals.ends is not None:
            # A step that met the goal that was asked is the last one, so the goal that it is given now is its own.
            terminated = batch.terminated.numpy()[:rows]
            terminated |= _rows_of(goals.ends(reached, goal), rows, "end").astype(bool)
            batch.truncated.numpy()[:rows] &= ~terminated
            batch.discount.numpy()[:rows] = np.where(terminated, 0.0, self.gamma)
        asked[:] = goal

    def _draw_later(self, index: np.ndarray, draw: np.ndarray) -> np.ndarray:
        """(B,) slots, each uniform over the slot `index` (B,) itself and those that continue its episode.

        Args:
            index: slots of living rows.
            draw: (B,) in [0, 1).
        """
        self._find_starts()
        ring, envs = self._ring, self.num_envs
        number = ring.oldest + (index - ring.oldest) % ring.capacity
        start = self._start[index]
        left = np.zeros(len(index), np.int64)
        jump = 1 << self._longest.bit_length()
        while jump := jump >> 1:  # the rows of an episode lie together, so the last one is found by bisection
            further = number + (left + jump) * envs
            same = (further < ring.count) & (self._start[further % ring.capacity] == start)
            left += jump * same
        return (number + draw_between(np.zeros_like(left), left, draw) * envs) % ring.capacity

    def _find_starts(self) -> None:
        """Bring `_start` up to date: a row continues the one a step before if the ring links them."""
        ring, envs, capacity = self._ring, self.num_envs, self._ring.capacity
        living = max(ring.count - capacity, 0)
        first = max(self._found, living)
        if first == ring.count:
            return
        number = np.arange(first, ring.count)
        before = number - envs
        onward = ring.onward[before % capacity].astype(np.int64)
        linked = (before >= living) & (onward != 0) & (onward % capacity == envs % capacity)
        start = np.where(linked, -1, number)
        head = slice(0, min(envs, len(number)))  # what these continue was found before
        known = linked[head] & (before[head] < first)
        start[head] = np.where(known, self._start[before[head] % capacity], start[head])
        # Rows of one environment lie `envs` apart: in a table of that width, down each column, the largest so far.
        rows = -(-len(start) // envs)
        table = np.full((rows, envs), -1, np.int64)
        table.reshape(-1)[: len(start)] = start
        found = np.maximum.accumulate(table, axis=0).reshape(-1)[: len(start)]
        self._start[number % capacity] = found
        self._longest = max(self._longest, int((number - found).max()) // envs)
        self._found = ring.count

    def _restore(self, small: dict[str, np.ndarray]) -> None:
        super()._restore(small)
        self._found = self._longest = 0


def _rows_of(value: object, rows: int, what: str) -> np.ndarray:
    """(B,) of an environment's answer.

    Raises:
        ValueError: another shape.
    """
    found = np.asarray(value)
    if found.shape != (rows,):
        raise ValueError(
            f"the environment's {what} under other goals has shape {found.shape}, expected ({rows},): one number per "
            "row of achieved and desired goals; compute it along the last axis"
        )
    return found
