"""Ensemble of probabilistic dynamics models: [s, a] -> Gaussian of [s' - s, r]."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import softplus

from robot_rl.policies.nets.net import Net, NetShape, mean_rows
from robot_rl.policies.nets.normalizer import RunningNorm
from robot_rl.state import Saved

_DECAY = (2.5e-5, 5e-5, 7.5e-5, 7.5e-5, 1e-4)
"""Of half the squared weights, first layer to last; with fewer layers the last one keeps its own."""


class _Decayed(Net):
    """A network half of whose squared weights join the loss, layer by layer."""

    @torch.no_grad()
    def apply(self) -> None:
        """Adam, with the gradient of the decay."""
        last = len(self.shape.hidden)
        for i in range(last + 1):
            decay = _DECAY[-1] if i == last else _DECAY[min(i, len(_DECAY) - 2)]
            name = f"weight{i}"
            self.params.grad_view[name].add_(self.params.view[name].detach(), alpha=decay)
        super().apply()


class Dynamics(Saved):
    """Members with weights of their own, each trained on rows of its own; the best ones on held-out rows predict.

    Loss per member: mean((mu - y)^2 exp(-logvar) + logvar), plus 0.01 (sum of upper - sum of lower limits of logvar,
    which are learnt) and half the squared weights of every layer times its decay.

    Source: Chua et al., Deep RL in a Handful of Trials (PETS); sizes, limits and decay of Yu et al., MOPO, as in
    OfflineRL-Kit. Where we differ: ReLU in place of Swish; targets are standardised too.
    """

    saved = ("net", "_kept", "input_norm", "target_norm", "order", "best")

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
        self.outputs, self.members, self.elites = state + 1, members, min(elites, members)
        self._generator = generator
        limits = {"upper": (members, self.outputs), "lower": (members, self.outputs)}
        shape = NetShape(state + action, 2 * self.outputs, hidden, seeds=members, more=limits)
        self.net = _Decayed("model", shape, lr=lr, generator=generator, kernel=kernel)
        with torch.no_grad():
            self.net.params.view["upper"].fill_(0.5)
            self.net.params.view["lower"].fill_(-10.0)
        self.input_norm = RunningNorm(state + action, device=device)
        self.target_norm = RunningNorm(self.outputs, device=device)
        self.order = torch.arange(self.members, device=device)
        self.best = torch.full((self.members,), torch.inf, device=device)
        self._kept = self.net.target_copy("kept")

    @torch.no_grad()
    def observe(self, state: Tensor, action: Tensor, next_state: Tensor, reward: Tensor) -> None:
        """Merge rows (B, ...) into the moments of inputs and targets."""
        self.input_norm.observe(torch.cat([state, action], -1))
        self.target_norm.observe(torch.cat([next_state - state, reward[..., None]], -1))

    def gaussian(self, state: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log-variance (E, B, n + 1) of standardised targets, the latter between its learnt limits.

        Args:
            state: (B, n), the same for all members, or (E, B, n), each its own.
            action: (B, A) or (E, B, A).
        """
        x = self.input_norm(torch.cat([state, action], -1))
        mean, raw = self.net(x.expand(self.members, *x.shape[-2:])).chunk(2, -1)
        upper, lower = self.net["upper"][:, None], self.net["lower"][:, None]
        below = upper - softplus(upper - raw)
        return mean, lower + softplus(below - lower)

    @torch.enable_grad()
    def fit(self, state: Tensor, action: Tensor, next_state: Tensor, reward: Tensor) -> Tensor:
        """One step on rows (E, B, ...), one group per member; () mean squared error in standardised units."""
        target = self.target_norm(torch.cat([next_state - state, reward[..., None]], -1))
        mean, logvar = self.gaussian(state, action)
        error = (mean - target).square()
        likelihood = (error * (-logvar).exp() + logvar).mean(-1)
        self.net.step(mean_rows(likelihood) + 0.01 * (self.net["upper"].sum() - self.net["lower"].sum()))
        return error.detach().mean()

    @torch.no_grad()
    def validate(self, state: Tensor, action: Tensor, next_state: Tensor, reward: Tensor) -> bool:
        """Keep the weights of members that got more than 1 % better on held-out rows (B, ...); whether any did."""
        target = self.target_norm(torch.cat([next_state - state, reward[..., None]], -1))
        error = (self.gaussian(state, action)[0] - target).square().mean((1, 2))
        better = error < self.best * 0.99
        for name, kept in self._kept.params.view.items():
            kept[better] = self.net.params.view[name].detach()[better]
        self.best = torch.where(better, error, self.best)
        return bool(better.any())

    def settle(self) -> None:
        """Go back to the best weights and rank the members."""
        self.net.soft_update(self._kept, 1.0)
        self.order = self.best.argsort()

    @torch.no_grad()
    def predict(self, state: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """What every member says of [s' - s, r]: mean and standard deviation (E, B, n + 1); arguments of `gaussian`."""
        mean, logvar = self.gaussian(state, action)
        scale = 1.0 / self.target_norm.scale
        return mean * scale + self.target_norm.shift, (0.5 * logvar).exp() * scale

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
