"""Short rollouts of a policy in a model, begun at logged states, and batches that mix them with logged rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from robot_rl.types import StateDict, Transitions

Model = Callable[[Tensor, Tensor], tuple[Tensor, Tensor, Tensor, Tensor]]
"""(state (B, n), action (B, A)) -> next_state, reward (B,), aleatoric (B,), disagreement (B,)."""


@dataclass(frozen=True)
class Doubt:
    """How simulated rewards are lowered.

    Attributes:
        penalty: lambda of reward - lambda * uncertainty.
        uncertainty: "aleatoric" or "disagreement".
        drop_top: share of the rows of every step with the highest predicted reward that is thrown away; the policy is
            then trained on the lower tail.
    """

    penalty: float = 0.0
    uncertainty: str = "aleatoric"
    drop_top: float = 0.0


TERMINATIONS = ("never", "halfcheetah", "hopper", "walker2d", "ant")


def terminated(kind: str, state: Tensor) -> Tensor:
    """(B,) bool: does a state (B, n) end the episode in Gymnasium's task of that name?

    Source: Farama-Foundation/Gymnasium mujoco environments; Yu et al., MOPO (same rules).
    """
    z = state[:, 0]
    finite = torch.isfinite(state).all(1)
    if kind in ("never", "halfcheetah"):
        return torch.zeros_like(finite)
    if kind == "hopper":
        return ~(finite & (state[:, 1:].abs() < 100).all(1) & (z > 0.7) & (state[:, 1].abs() < 0.2))
    if kind == "walker2d":
        return ~((z > 0.8) & (z < 2.0) & (state[:, 1].abs() < 1.0))
    if kind == "ant":
        return ~(finite & (z >= 0.2) & (z <= 1.0))
    raise ValueError(f"termination is '{kind}', expected one of {', '.join(TERMINATIONS)}")


class Branches:
    """Ring of simulated rows [s | a | s' | r | discount | edge].

    A row's edge is 1 where its next state was never itself acted in: the end of a branch. Values are bootstrapped from
    there and never corrected (Sims et al., The Edge-of-Reach Problem in Offline Model-Based RL).
    """

    def __init__(
        self, state: int, action: int, capacity: int, *, gamma: float, generator: torch.Generator, termination: str
    ) -> None:
        """Room for `capacity` rows.

        Raises:
            ValueError: unknown termination rule.
        """
        terminated(termination, torch.zeros(1, max(state, 2)))
        self._n, self._a, self._gamma, self._generator = state, action, gamma, generator
        self._termination = termination
        self.rows = torch.zeros(capacity, 2 * state + action + 3, device=generator.device)
        self.count = 0

    def __len__(self) -> int:
        return min(self.count, len(self.rows))

    @torch.no_grad()
    def roll(
        self,
        start: Tensor,
        act: Callable[[Tensor], Tensor],
        model: Model,
        *,
        horizon: int,
        doubt: Doubt,
    ) -> dict[str, Tensor]:
        """Add branches of at most `horizon` steps.

        Args:
            start: (B, n) logged states.
            act: states -> actions, sampled from the current policy.
            model: of the world.
            horizon: steps per branch.
            doubt: what lowers the rewards.

        Returns:
            Metrics: mean predicted reward, mean uncertainty, share of edges.
        """
        state, alive = start, []
        rewards, doubts = [], []
        for i in range(horizon):
            action = act(state)
            after, reward, aleatoric, disagreement = model(state, action)
            unsure = aleatoric if doubt.uncertainty == "aleatoric" else disagreement
            done = terminated(self._termination, after)
            rewards.append(reward.mean())
            doubts.append(unsure.mean())
            reward = reward - doubt.penalty * unsure
            discount = self._gamma * (~done).to(reward.dtype)
            edge = torch.full_like(reward, float(i == horizon - 1))
            rows = torch.cat([state, action, after, reward[:, None], discount[:, None], edge[:, None]], dim=1)
            if doubt.drop_top > 0.0:
                keep = max(1, round((1.0 - doubt.drop_top) * len(rows)))
                rows = rows[reward.argsort()[:keep]]
            self._add(rows)
            alive.append(len(rows))
            state = after[~done]
            if not len(state):
                break
        held = self.rows[: len(self)]
        return {
            "model_reward": torch.stack(rewards).mean(),
            "model_doubt": torch.stack(doubts).mean(),
            "edge_share": held[:, -1].mean(),
        }

    def _add(self, rows: Tensor) -> None:
        rows = rows[-len(self.rows) :]
        place = (torch.arange(len(rows), device=rows.device) + self.count) % len(self.rows)
        self.rows[place] = rows
        self.count += len(rows)

    def mix(self, batches: Iterator[Transitions], size: int, real: float) -> Iterator[Transitions]:
        """Batches of `size` rows, the first round(real * size) of them logged, from all over one of `batches`, each of
        which has as many and may lie source by source."""
        logged = round(real * size)
        spread = torch.arange(logged, device=self.rows.device) * size // max(logged, 1)
        while True:
            batch = next(batches)
            index = torch.randint(len(self), (size - logged,), generator=self._generator, device=self.rows.device)
            drawn = self.rows[index]
            n, a = self._n, self._a
            no = torch.zeros(size, dtype=torch.bool, device=drawn.device)

            def join(real_part: Tensor, model_part: Tensor) -> Tensor:
                return torch.cat([real_part[spread], model_part])

            yield Transitions(
                obs={"state": join(batch.obs["state"], drawn[:, :n])},
                action=join(batch.action, drawn[:, n : n + a]),
                reward=join(batch.reward, drawn[:, -3]),
                discount=join(batch.discount, drawn[:, -2]),
                next_obs={"state": join(batch.next_obs["state"], drawn[:, n + a : 2 * n + a])},
                terminated=no,
                truncated=no,
                intervened=no,
                mask=~no,
            )

    def state_dict(self) -> StateDict:
        """The rows and where the next goes."""
        return {"rows": self.rows[: len(self)].clone(), "count": self.count}

    def load_state_dict(self, state: StateDict) -> None:
        """Continue with the saved rows."""
        self.count = int(state["count"])
        self.rows[: len(state["rows"])] = state["rows"]
