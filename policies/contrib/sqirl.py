"""Shallow Q-iteration from random rollouts: explore at random, look a few steps ahead, fix decision by decision."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from robot_rl.advantage import to_turns
from robot_rl.policies.nets.net import Net, NetShape
from robot_rl.policies.nets.normalizer import RunningNorm
from robot_rl.policies.nets.rollout_learner import RolloutLearner, RolloutOptions
from robot_rl.policies.nets.rows import state_size
from robot_rl.state import set_generator
from robot_rl.types import Action, Array, IOSpec, Metrics, Needs, Obs, PolicyParts, Rollout, StateDict
from robot_rl.types.options import Count, Positive, Rate

_MOST = 4096  # candidate actions


class SqirlOptions(RolloutOptions):
    """Of SQIRL."""

    horizon: Count = 8
    """T, decisions of an episode that are learnt; later ones stay random."""
    depth: Count = 1
    """k, the planning depth: 1 is greedy on the random policy's values."""
    episodes: Count = 64
    """Whole episodes per decision, of those that get there."""
    bins: Annotated[int, Field(ge=2)] = 3
    """Values per action dimension, evenly from -1 to 1."""
    repeat: Count = 5
    """Control steps that a decision holds its action."""
    rollout_steps: Count = 40
    """Steps of every environment per update; a multiple of the episode's length wastes nothing: episodes that a rollout
    cuts are left out."""
    hidden: tuple[Count, ...] = (64, 64)
    """Widths."""
    epochs: Count = 10
    """Passes over the rows of one decision."""
    minibatch: Count = 128
    """Rows per step."""
    lr: Rate = 1e-3
    """Step size."""
    max_grad_norm: Positive = 10.0
    """Largest norm of the gradient."""


class Sqirl(RolloutLearner[SqirlOptions]):
    """For t = 0, 1, ... of an episode: act greedily before decision t and at random from t on, in `episodes` episodes;
    regress Q^1 on the random tail's return, Q^2 ... Q^k each on one backup of the one before; decision t is then
    argmax Q^k for good.

    Works where the random policy's values, looked ahead k steps, already rank actions well: the effective horizon of
    the task is then small, however long it lasts. `effective_depth` tells k of a task given as tables.

    Actions are a grid of `bins` values per dimension, each held for `repeat` control steps: a decision is a turn with
    the reward sum gamma^i r_i and the discount gamma^k, so that T is short. The end of an episode is an end, a time
    limit too: time is part of this method's state.

    Source: Laidlaw et al., The Effective Horizon Explains Deep RL Performance in Stochastic Environments (SQIRL;
    cassidylaidlaw/effective-horizon). Where we differ: candidates and turns (our design); perceptrons on states; the
    network of decision t begins at that of t - 1.
    """

    method = "SQIRL"

    def __init__(
        self, options: SqirlOptions, io: IOSpec, *, seed: int = 0, device: str = "cpu", gamma: float = 0.99
    ) -> None:
        """Build networks for `io`.

        Args:
            options: of the method.
            io: one vector observation "state".
            seed: of weights, of random actions and of the order of rows.
            device: torch device.
            gamma: discount per control step.

        Raises:
            ValueError: too many candidates, or no "state".
        """
        super().__init__(options, io, seed=seed, device=device)
        o, size = options, state_size(io, self.method)
        if o.bins**io.action_dim > _MOST:
            raise ValueError(
                f"{o.bins} bins in {io.action_dim} dimensions are {o.bins**io.action_dim} candidates, expected at most "
                f"{_MOST}: take fewer bins, or a world with fewer actions"
            )
        self.gamma = gamma
        values = np.linspace(-1.0, 1.0, o.bins, dtype=np.float32)
        self.candidates = torch.tensor(list(itertools.product(values, repeat=io.action_dim)), device=device)
        self.norm = RunningNorm(size, device=device)
        sizes = NetShape(size, len(self.candidates), o.hidden, members=o.depth)
        self.q = Net("q", sizes, lr=o.lr, generator=self.generator)
        self.q.max_norm = o.max_grad_norm
        self.fixed = self.q.target_copy("fixed")
        self.progress = _Progress(o.horizon, self.q.params.flat)
        self.policy = SqirlPolicy(self, seed + 1)
        self.state.include({"q": self.q, "progress": self.progress, "policy": self.policy, "norm": self.norm})

    @classmethod
    def needs(cls, options: SqirlOptions, io: IOSpec) -> Needs:
        """Rollouts that say which decision a step belongs to."""
        record = ("choice", "time", "chunk_start")
        return replace(super().needs(options, io), record=record)

    def update(self, batches: Iterator[Rollout], /) -> Metrics:
        """Keep the whole episodes of a rollout; with enough of them, fit and fix the next decision.

        Returns:
            The latest metrics: train/decision (fixed so far), train/episodes (kept for the next), train/loss1 ...
            (mean squared error of each head at the last fit, in units of the running mean of its own).

        Raises:
            ValueError: no rollout holds a whole episode.
        """
        o = self.o
        rows, kept = turns(next(batches), self.gamma)
        memory = self.progress
        if kept == 0 and memory.count == 0 and self.next_update > 2:
            raise ValueError(
                f"no episode fits into {o.rollout_steps} steps; make rollout_steps the episode's length or more"
            )
        if memory.decision < o.horizon:
            reached = int((rows["time"] == memory.decision).sum())  # shorter episodes tell nothing of this decision
            memory.add({name: x[rows["time"] >= memory.decision] for name, x in rows.items()}, reached)
        found: dict[str, Tensor] = {}
        if memory.count >= o.episodes and memory.decision < o.horizon:
            found = self._fit(memory.rows)
            memory.fix(self.q.params.flat)
        found |= {"decision": torch.tensor(memory.decision), "episodes": torch.tensor(memory.count)}
        return self.metrics(**found)

    def _fit(self, rows: dict[str, Tensor]) -> dict[str, Tensor]:
        o, device = self.o, self.generator.device
        rows = {name: x.to(device) for name, x in rows.items()}
        if self.progress.decision == 0:
            self.norm.observe(rows["state"])
        state, after = self.norm(rows["state"]), self.norm(rows["after"])
        scale, total = torch.ones(o.depth, device=device), torch.zeros(o.depth, device=device)
        for moment in (self.q.params.first, self.q.params.second, self.q.params.step):
            moment.zero_()
        for _ in range(o.epochs):
            total.zero_()
            for part in torch.randperm(len(state), generator=self.generator, device=device).split(o.minibatch):
                with torch.no_grad():  # Q^1 predicts the random tail, Q^(i+1) looks one step ahead with Q^i
                    ahead = self.q(after[part])[:-1].amax(-1)
                    backed = rows["reward"][part] + rows["discount"][part] * ahead
                    target = torch.cat([rows["tail"][part][None], backed])
                index = rows["choice"][part].long()[None, :, None].expand(o.depth, -1, 1)
                error = (self.q(state[part]).gather(-1, index)[..., 0] - target).square().mean(1)
                scale = 0.99 * scale + 0.01 * error.detach()
                self.q.step((error / scale.clamp_min(1e-8)).mean())
                total += error.detach() * len(part) / len(state)
        return {f"loss{i + 1}": total[i] for i in range(o.depth)}

    @torch.no_grad()
    def rank(self, state: Tensor, decision: int) -> Tensor:
        """(B, candidates) Q^k of a fixed decision."""
        self.fixed.params.flat.copy_(self.progress.fixed[decision])
        self.fixed.kernel.refresh()
        return self.fixed(self.norm(state), member=self.o.depth - 1)


class _Progress:
    """Decisions fixed so far, their weights, and the rows kept for the next one."""

    def __init__(self, horizon: int, flat: Tensor) -> None:
        self.decision, self.count = 0, 0
        self.fixed = flat.detach().new_zeros(horizon, len(flat))
        self.rows: dict[str, Tensor] = {}

    def add(self, rows: dict[str, Tensor], episodes: int) -> None:
        """Keep rows of so many episodes."""
        self.rows = {k: torch.cat([self.rows[k], v]) if self.rows else v for k, v in rows.items()}
        self.count += episodes

    def fix(self, flat: Tensor) -> None:
        """The next decision is made by these weights; rows are collected anew."""
        self.fixed[self.decision].copy_(flat.detach())
        self.decision, self.count, self.rows = self.decision + 1, 0, {}

    def state_dict(self) -> StateDict:
        """Copies."""
        rows = {name: x.clone() for name, x in self.rows.items()}
        return {"decision": self.decision, "count": self.count, "fixed": self.fixed.clone(), "rows": rows}

    def load_state_dict(self, state: StateDict, /) -> None:
        """Take over.

        Raises:
            ValueError: another number of decisions, or other networks.
        """
        if state["fixed"].shape != self.fixed.shape:
            raise ValueError(
                f"the saved state has decisions and weights {tuple(state['fixed'].shape)}, this learner "
                f"{tuple(self.fixed.shape)}; build it alike"
            )
        self.decision, self.count = int(state["decision"]), int(state["count"])
        self.fixed.copy_(state["fixed"])
        self.rows = {name: x.to(self.fixed.device, copy=True) for name, x in state["rows"].items()}


class SqirlPolicy:
    """Counts the decisions of every row's episode: fixed ones greedily, later ones at random.

    Ties are broken at random while exploring.
    """

    parts = PolicyParts()

    def __init__(self, learner: Sqirl, seed: int) -> None:
        self.io, self._learner = learner.io, learner
        self._generator = torch.Generator().manual_seed(seed)
        self._tick = np.zeros(0, np.int64)
        self._choice = np.zeros(0, np.int64)

    def reset(self, rows: Array | None = None) -> None:
        """An episode begins in these rows ((N,) bool), or in all."""
        if rows is None:
            self._tick = np.zeros(0, np.int64)
        elif len(rows) == len(self._tick):
            self._tick = np.where(np.asarray(rows.cpu() if isinstance(rows, Tensor) else rows, bool), 0, self._tick)

    @torch.no_grad()
    def act(self, obs: Obs, *, deterministic: bool = False) -> Action:
        """The held action of every row, (B, A); extras "choice", "time" (decision) and "chunk_start"."""
        own, given = self._learner, obs["state"]
        if len(self._tick) != len(given):
            self._tick, self._choice = np.zeros(len(given), np.int64), np.zeros(len(given), np.int64)
        time, start = self._tick // own.o.repeat, self._tick % own.o.repeat == 0
        state = torch.as_tensor(given).to(own.generator.device, torch.float32)
        for decision in np.unique(time[start]).tolist():
            rows = np.flatnonzero(start & (time == decision))
            if decision >= own.progress.decision:
                count = len(own.candidates)
                self._choice[rows] = torch.randint(count, (len(rows),), generator=self._generator).numpy()
                continue
            q = own.rank(state[torch.as_tensor(rows)], decision)
            if not deterministic:
                tie = torch.rand(q.shape, generator=self._generator).to(q)
                q = torch.where(q == q.amax(1, keepdim=True), 1.0 + tie, 0.0)
            self._choice[rows] = q.argmax(1).cpu().numpy()
        self._tick = self._tick + 1
        action = own.candidates[torch.as_tensor(self._choice)]
        out: dict[str, Any] = {"choice": self._choice.copy(), "time": time, "chunk_start": start}
        value: Any = action.cpu().numpy()
        logp: Any = np.zeros(len(given), np.float32)
        if isinstance(given, Tensor):
            value, logp = action.to(given.device), torch.zeros(len(given), device=given.device)
            out = {name: torch.as_tensor(x, device=given.device) for name, x in out.items()}
        return Action(value, logp, out)

    def state_dict(self) -> StateDict:
        """Fixed decisions, moments of the states, and the generator; decisions under way are not kept."""
        own = self._learner
        return {
            "fixed": own.progress.fixed.clone(),
            "decision": torch.tensor(own.progress.decision),
            "norm": own.norm.state_dict(),
            "generator": self._generator.get_state(),
        }

    def load_state_dict(self, state: StateDict, /) -> None:
        """Copy in place.

        Raises:
            ValueError: the state belongs to a policy of other sizes.
        """
        own = self._learner
        if "fixed" not in state or state["fixed"].shape != own.progress.fixed.shape:
            raise ValueError(
                f"the saved policy is not one of {tuple(own.progress.fixed.shape)} weights; build it alike"
            )
        own.progress.fixed.copy_(state["fixed"])
        own.progress.decision = int(state["decision"])
        own.norm.load_state_dict(state["norm"])
        set_generator(self._generator, state["generator"])
        self.reset()


def turns(rollout: Rollout, gamma: float) -> tuple[dict[str, Tensor], int]:
    """Decisions of the whole episodes of a rollout, and the number of these episodes.

    Args:
        rollout: extras "choice", "time", "chunk_start".
        gamma: per control step.

    Returns:
        (U, ...) "state", "choice", "time", "reward" sum gamma^i r_i, "discount" gamma^k (0 at the end of the episode),
        "after" state of the next decision, "tail" discounted return from here to the end.
    """

    def flat(x: Tensor) -> Tensor:
        return x.transpose(0, 1).reshape(-1, *x.shape[2:])

    steps, device = len(rollout.reward), rollout.reward.device
    # A row that is no step ends what went before, as a turn of its own that opens and ends no episode.
    valid, time = flat(rollout.valid), flat(rollout.extras["time"])
    over = flat(rollout.terminated | rollout.truncated) | ~valid
    start = flat(rollout.extras["chunk_start"]).bool() | ~valid
    first = torch.arange(len(over), device=device) % steps == 0
    begins = start | first
    begins = begins | torch.cat([torch.ones_like(over[:1]), over[:-1]])
    head = torch.nonzero(begins)[:, 0]
    end = torch.cat([head[1:], head.new_tensor([len(begins)])]) - 1
    turn = begins.long().cumsum(0) - 1
    place = torch.arange(len(turn), device=device) - head[turn]
    reward = to_turns(flat(rollout.reward).double() * gamma**place, turn, turns=len(head)).float()
    length, last = (end - head + 1).float(), over[end]
    state = flat(rollout.obs["state"])
    cut = torch.cat([torch.ones_like(last[:1]), last[:-1] | first[head[1:]]])
    episode = cut.long().cumsum(0) - 1
    whole = torch.zeros(int(episode[-1]) + 1, dtype=torch.bool, device=device)
    whole[episode[last & valid[end]]] = True
    opens = torch.zeros_like(whole)
    opens[episode[cut & (time[head] == 0) & start[head]]] = True
    keep = (whole & opens)[episode]
    tail = reward.clone()
    for i in range(len(head) - 2, -1, -1):
        if not last[i] and episode[i] == episode[i + 1]:
            tail[i] = reward[i] + gamma ** float(length[i]) * tail[i + 1]
    following = torch.cat([head[1:], head[-1:]])
    rows = {
        "state": state[head], "choice": flat(rollout.extras["choice"])[head], "time": time[head], "reward": reward,
        "discount": gamma**length * ~last, "after": torch.where(last[:, None], state[head], state[following]),
        "tail": tail,
    }  # fmt: skip
    return {name: x[keep] for name, x in rows.items()}, int((whole & opens).sum())


def random_values(transition: np.ndarray, reward: np.ndarray, horizon: int, depth: int) -> np.ndarray:
    """Q^k_t of a task given as tables: k - 1 optimal backups on the random policy's values.

    Args:
        transition: (S, A, S) probabilities.
        reward: (S, A).
        horizon: T steps, no discount.
        depth: k >= 1.

    Returns:
        (T, S, A): Q^1_t is r + the value of acting at random from t + 1 on; Q^{j+1}_t = r + max Q^j_{t+1}.
    """
    states, actions = reward.shape
    q = np.zeros((horizon + 1, states, actions))
    for t in range(horizon - 1, -1, -1):
        q[t] = reward + transition @ q[t + 1].mean(1)
    for _ in range(depth - 1):
        q[:horizon] = reward + np.einsum("sap,tp->tsa", transition, q[1:].max(2))
    return q[:horizon]


def effective_depth(transition: np.ndarray, reward: np.ndarray, horizon: int, start: int = 0) -> int:
    """Smallest k whose greedy policy is optimal from the first state: below T, the task is easier than it is long.

    Args:
        transition: (S, A, S) probabilities.
        reward: (S, A).
        horizon: T.
        start: first state.

    Returns:
        k in 1 ... T; T always suffices. Ties count as lost unless every tied action is as good.
    """
    best = random_values(transition, reward, horizon, horizon)[0, start].max()
    for depth in range(1, horizon + 1):
        q = random_values(transition, reward, horizon, depth)
        value = np.zeros(reward.shape[0])
        for t in range(horizon - 1, -1, -1):
            after = reward + transition @ value
            tied = q[t] >= q[t].max(1, keepdims=True) - 1e-9
            value = np.where(tied, after, np.inf).min(1)
        if value[start] >= best - 1e-9:
            return depth
    return horizon
