"""Ensemble of probabilistic dynamics models: [s, a] -> Gaussian of [s' - s, r]."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import softplus

from robot_rl.policies.nets.flat import FlatParams
from robot_rl.policies.nets.mlp import MlpShape, build_mlp
from robot_rl.policies.nets.normalizer import RunningNorm

_DECAY = (2.5e-5, 5e-5, 7.5e-5, 7.5e-5, 1e-4)


class Dynamics:
    """Members with weights of their own, each trained on rows of its own; the best ones on held-out rows predict.

    Loss per member: mean((mu - y)^2 exp(-logvar)) + mean(logvar), plus 0.01 (sum of upper - sum of lower limits of
    logvar, which are learnt) and weight decay per layer.

    Source: Chua et al., Deep RL in a Handful of Trials (PETS); sizes, limits and decay of Yu et al., MOPO, as in
    OfflineRL-Kit. Where we differ: ReLU in place of Swish; targets are standardised too.
    """

    def __init__(
        self,
        state: int,
        action: int,
        *,
        generator: torch.Generator,
        members: int = 7,
        elites: int = 5,
        hidden: tuple[int, ...] = (200, 200, 200, 200),
        lr: float = 1e-3,
        kernel: str = "auto",
    ) -> None:
        """Build the ensemble.

        Args:
            state: width of the state.
            action: width of the action.
            generator: of weights and samples.
            members: how many models.
            elites: how many of them predict.
            hidden: widths of the hidden layers.
            lr: step size.
            kernel: "auto", "explicit" or "autograd".
        """
        device = generator.device
        self.state, self.outputs, self.members, self.elites = state, state + 1, members, min(elites, members)
        self._lr, self._generator = lr, generator
        self._shape = MlpShape(members, state + action, tuple(hidden), 2 * self.outputs, False, "model.")
        limits = {"upper": (members, self.outputs), "lower": (members, self.outputs)}
        self.params = FlatParams({**self._shape.shapes(), **limits}, device=device)
        self._shape.initialise(self.params, generator)
        self.params.view["upper"].fill_(0.5)
        self.params.view["lower"].fill_(-10.0)
        self.net = build_mlp(self._shape, self.params, kernel=kernel, matmul="float32")
        self.input_norm = RunningNorm(state + action, device=device)
        self.target_norm = RunningNorm(self.outputs, device=device)
        self.order = torch.arange(members, device=device)
        self.best = torch.full((members,), torch.inf, device=device)
        self._kept = self.params.twin()

    def parts(self) -> dict[str, Any]:
        """What a learner saves of it."""
        return {
            "model": self.params,
            "model_kept": self._kept,
            "model_in": self.input_norm,
            "model_out": self.target_norm,
        }

    @torch.no_grad()
    def observe(self, state: Tensor, action: Tensor, next_state: Tensor, reward: Tensor) -> None:
        """Merge rows (B, ...) into the moments of inputs and targets."""
        self.input_norm.observe(torch.cat([state, action], -1))
        self.target_norm.observe(torch.cat([next_state - state, reward[..., None]], -1))

    def _limited(self, raw: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Log-variance (E, B, D) between the learnt limits, and the two slopes on the way."""
        upper, lower = self.params.view["upper"].detach()[:, None], self.params.view["lower"].detach()[:, None]
        below = upper - softplus(upper - raw)
        return lower + softplus(below - lower), torch.sigmoid(upper - raw), torch.sigmoid(below - lower)

    @torch.no_grad()
    def fit(self, state: Tensor, action: Tensor, next_state: Tensor, reward: Tensor) -> Tensor:
        """One step on rows (E, B, ...), one group per member; () mean squared error in standardised units."""
        x = self.input_norm(torch.cat([state, action], -1))
        y = self.target_norm(torch.cat([next_state - state, reward[..., None]], -1))
        out = self.net.forward(x)
        mu, raw = out[..., : self.outputs], out[..., self.outputs :]
        logvar, slope_up, slope_low = self._limited(raw)
        precision = (-logvar).exp()
        diff = mu - y
        count = diff.shape[1] * self.outputs
        d_logvar = (1.0 - diff.square() * precision) / count
        d_out = torch.cat([2.0 * diff * precision / count, d_logvar * slope_up * slope_low], -1)
        self.net.backward(d_out)
        grad, view = self.params.grad_view, self.params.view
        grad["upper"].copy_((d_logvar * slope_low * (1.0 - slope_up)).sum(1) + 0.01)
        grad["lower"].copy_((d_logvar * (1.0 - slope_low)).sum(1) - 0.01)
        layers = len(self._shape.hidden) + 1
        for i in range(layers):
            decay = _DECAY[-1] if i == layers - 1 else _DECAY[min(i, len(_DECAY) - 2)]
            grad[f"model.weight{i}"].add_(view[f"model.weight{i}"].detach(), alpha=2.0 * decay)
        self.params.adam(self._lr)
        self.net.refresh()
        return diff.square().mean()

    @torch.no_grad()
    def validate(self, state: Tensor, action: Tensor, next_state: Tensor, reward: Tensor) -> bool:
        """Keep the weights of members that got more than 1 % better on held-out rows (B, ...); whether any did."""
        x = self.input_norm(torch.cat([state, action], -1))
        y = self.target_norm(torch.cat([next_state - state, reward[..., None]], -1))
        error = (self.net.forward(x)[..., : self.outputs] - y).square().mean((1, 2))
        better = error < self.best * 0.99
        for name in self.params.shapes:
            self._kept.view[name][better] = self.params.view[name].detach()[better]
        self.best = torch.where(better, error, self.best)
        return bool(better.any())

    @torch.no_grad()
    def settle(self) -> None:
        """Go back to the best weights and rank the members."""
        self.params.flat.copy_(self._kept.flat)
        self.net.refresh()
        self.order = self.best.argsort()

    @torch.no_grad()
    def predict(self, state: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """What every member says of [s' - s, r]: mean and standard deviation (E, B, n + 1).

        Args:
            state: (B, n), the same for all members, or (E, B, n), each its own.
            action: (B, A) or (E, B, A).
        """
        out = self.net.forward(self.input_norm(torch.cat([state, action], -1)))
        mu, (logvar, _, _) = out[..., : self.outputs], self._limited(out[..., self.outputs :])
        scale = 1.0 / self.target_norm.scale
        return mu * scale + self.target_norm.shift, (0.5 * logvar).exp() * scale

    @torch.no_grad()
    def step(self, state: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Sample successors, each row from a random elite.

        Returns:
            next_state (B, n), reward (B,), aleatoric (B,) largest norm of the standard deviations over members,
            disagreement (B,) largest distance of an elite's mean from the mean of all elites.
        """
        mean, std = self.predict(state, action)
        chosen = self.order[: self.elites]
        pick = chosen[torch.randint(self.elites, (len(state),), generator=self._generator, device=state.device)]
        rows = torch.arange(len(state), device=state.device)
        noise = torch.randn(len(state), self.outputs, generator=self._generator, device=state.device)
        delta = mean[pick, rows] + std[pick, rows] * noise
        elite = mean[chosen]
        spread = (elite - elite.mean(0)).norm(dim=-1).amax(0)
        return state + delta[:, :-1], delta[:, -1], std.norm(dim=-1).amax(0), spread

    def state_dict(self) -> dict[str, Any]:
        """Ranking of the members; weights and moments are `parts`."""
        return {"order": self.order.clone(), "best": self.best.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue with the saved ranking."""
        self.order, self.best = state["order"].clone(), state["best"].clone()
