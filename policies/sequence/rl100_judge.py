"""What judges chunks from a log: implicit Q-learning over decisions, a model of decisions, and a score of policies."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from robot_rl.chunks import critic_action, critic_width
from robot_rl.policies.nets.dynamics import Dynamics
from robot_rl.policies.nets.net import Net, NetShape, mean_rows
from robot_rl.state import Saved
from robot_rl.types import Options
from robot_rl.types.options import Count, Mixing, Part, Rate


class JudgeOptions(Options):
    """Of Q, V and the models."""

    judge_hidden: tuple[Count, ...] = (256, 256)
    """Widths of Q, V and of the models."""
    members: Count = 7
    """Models of the ensemble; their better half predicts."""
    expectile: Part = 0.7
    """Of V."""
    judge_lr: Rate = 3e-4
    """Step size of Q, V and models; of V online too."""
    tau: Mixing = 0.005
    """Polyak rate of the target of Q."""


class ChunkJudge:
    """Q(s, a_1 ... a_k), V(s) and an ensemble s' = s + f(s, a_1 ... a_k), all learnt from executed chunks.

    V is an expectile of min Q', Q regresses on R + discount V(s'): no action outside the log is valued there. What
    a policy proposes may lie outside: where the models disagree more than on nine of ten logged decisions, a chunk
    counts as no better than a poor logged one (the tenth percentile of Q). Without that, critics and models are climbed
    where they know nothing, and the score rises while the policy gets worse.

    Args:
        options: of Q, V and the models.
        state: S, normalised states.
        actions: A.
        horizon: k, executed actions of a decision.
        generator: of weights and draws.

    Source: Kostrikov et al., IQL; RL-100 (chunk form, model rollouts for off-policy evaluation).
    """

    def __init__(
        self, options: JudgeOptions, state: int, actions: int, horizon: int, *, generator: torch.Generator
    ) -> None:
        o, wide = options, critic_width(horizon, actions)
        self.o, self.horizon, self.actions, self._generator = o, horizon, actions, generator
        draw = {"lr": o.judge_lr, "generator": generator}
        self.q_net = Net("q", NetShape(state + wide, None, o.judge_hidden, members=2, layer_norm=True), **draw)
        self.v_net = Net("v", NetShape(state, None, o.judge_hidden, layer_norm=True), **draw)
        self.q_target = self.q_net.target_copy("q_target")
        self.range = _Range(generator.device)
        self.model = Dynamics(
            state,
            wide,
            generator=generator,
            members=o.members,
            elites=max(o.members // 2, 2),
            hidden=o.judge_hidden,
            lr=o.judge_lr,
        )

    def parts(self) -> dict[str, object]:
        """What the learner saves of it."""
        return {"q": self.q_net, "q_target": self.q_target, "v": self.v_net, "model": self.model, "range": self.range}

    def fit(
        self, state: Tensor, action: Tensor, mask: Tensor, reward: Tensor, discount: Tensor, after: Tensor
    ) -> dict[str, Tensor]:
        """One step of V, Q and the models.

        Args:
            state: (B, S).
            action: (B, k, A).
            mask: (B, k).
            reward: (B,) of the executed steps.
            discount: (B,) gamma^k (1 - terminated).
            after: (B, S).
        """
        code = critic_action(action, mask)
        with torch.no_grad():
            best = self.q_target(state, code).amin(0)
        diff = best - (value := self.v_net(state))
        self.v_net.step(mean_rows(torch.where(diff < 0, 1.0 - self.o.expectile, self.o.expectile) * diff.square()))
        with torch.no_grad():
            target = reward + discount * self.v_net(after)
        q = self.q_net(state, code)
        q_loss = (q - target).square()
        self.q_net.step(mean_rows(q_loss))
        self.q_target.soft_update(self.q_net, self.o.tau)
        model = self._fit_model(state, code, after, reward)
        q = q.detach()
        self.range.observe(q.amin(0).quantile(0.1), self._spread(state, code)[1].quantile(0.9))
        return {"q": q, "value": value.detach(), "q_loss": q_loss.detach(), "model_error": model}

    def _fit_model(self, state: Tensor, code: Tensor, after: Tensor, reward: Tensor) -> Tensor:
        self.model.observe(state, code, after, reward)
        g, size = self._generator, (self.model.members, len(state))
        rows = torch.randint(len(state), size, generator=g, device=g.device).to(state.device)
        return self.model.fit(state[rows], code[rows], after[rows], reward[rows])

    @torch.no_grad()
    def value(self, state: Tensor) -> Tensor:
        """(B,) V."""
        return self.v_net(state)

    @torch.no_grad()
    def q(self, state: Tensor, chunk: Tensor) -> Tensor:
        """(B,) smaller of the two target critics, for whole chunks (B, k A)."""
        code = critic_action(chunk.view(len(chunk), self.horizon, self.actions))
        return self.q_target(state, code).amin(0)

    @torch.no_grad()
    def _spread(self, state: Tensor, code: Tensor) -> tuple[Tensor, Tensor]:
        """(B, S) mean next state of the elites, and (B,) how far they are apart."""
        mean, _ = self.model.predict(state, code)
        elite = mean[self.model.order[: self.model.elites]]
        centre = elite.mean(0)
        return state + centre[:, :-1], (elite - centre).norm(dim=-1).amax(0)

    def careful(self, state: Tensor, chunk: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Value of whole chunks (B, k A), no better than a poor logged one where the models disagree.

        Returns:
            (B,) value, (B, S) next state, (B,) bool whether the models agree.
        """
        code = critic_action(chunk.view(len(chunk), self.horizon, self.actions))
        after, spread = self._spread(state, code)
        known, q = spread <= self.range.spread, self.q(state, chunk)
        return torch.where(known, q, q.clamp_max(self.range.low)), after, known

    def advantage(self, state: Tensor, chunk: Tensor) -> Tensor:
        """(B,) careful value - V."""
        return self.careful(state, chunk)[0] - self.value(state)

    def fit_value(self, state: Tensor, target: Tensor) -> Tensor:
        """One step of V towards returns (B,), for what goes on with real rollouts; () mean squared error."""
        loss = mean_rows((self.v_net(state) - target).square())
        self.v_net.step(loss)
        return loss.detach()

    @torch.no_grad()
    def score(self, state: Tensor, choose: Callable[[Tensor], Tensor], decisions: int) -> Tensor:
        """() how good a policy is, without the world: mean careful value along model rollouts from logged states.

        A rollout goes on where the mean of the elites says, and counts no further behind a decision on which they
        disagree.

        Args:
            state: (B, S) logged.
            choose: (B, S) -> (B, k A), with the same draws for every policy that is compared.
            decisions: length of a rollout.
        """
        total, count = state.new_zeros(()), state.new_zeros(())
        going = torch.ones(len(state), dtype=torch.bool, device=state.device)
        for _ in range(decisions):
            value, state, known = self.careful(state, choose(state))
            total += (value * going).sum()
            count += going.sum()
            going = going & known
            if not bool(going.any()):
                break
        return total / count


class _Range(Saved):
    """What logged decisions look like, as running means; a saved part.

    Attributes:
        low: () tenth percentile of min Q.
        spread: () ninth decile of how far the models are apart.
    """

    saved = ("low", "spread", "count")

    def __init__(self, device: torch.device) -> None:
        self.low, self.spread = torch.zeros((), device=device), torch.zeros((), device=device)
        self.count = torch.zeros((), device=device)

    def observe(self, low: Tensor, spread: Tensor) -> None:
        """Those of one batch; a mean at first, then over the last hundred or so."""
        self.count += 1
        weight = 1.0 / self.count.clamp_max(100.0)
        self.low += weight * (low - self.low)
        self.spread += weight * (spread - self.spread)
