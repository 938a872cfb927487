"""Where a robot may go: states that were demonstrated, and states that lead there; and a model of the next steps."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Annotated

import torch
from pydantic import Field, field_validator
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from robot_rl.policies.nets.dynamics import Dynamics
from robot_rl.policies.nets.imitation import human_rows
from robot_rl.policies.nets.normalizer import RunningNorm
from robot_rl.state import Saved
from robot_rl.types import Options, Transitions
from robot_rl.types.options import Count, Mixing, Positive, Rate


class SafeSetOptions(Options):
    """Of a safe set and its model."""

    hidden: tuple[Count, ...] = (128, 128)
    """Widths of all networks."""
    members: Count = 3
    """Of the model's ensemble."""
    decay: Annotated[float, Field(ge=0, lt=1)] = 0.8
    """How nearly a state belongs to the set that leads into it."""
    spread: tuple[Positive, Positive] = (1.0, 4.0)
    """Least and largest distance of the noise that makes negatives, in standard deviations of the demonstrated states
    (root mean square over components)."""
    lr: Rate = 1e-3
    """Of all networks."""
    tau: Mixing = 0.02
    """Of the slow copy of the classifier in the targets."""

    @field_validator("spread")
    @classmethod
    def check_spread(cls, value: tuple[float, float]) -> tuple[float, float]:
        """Refuse distances that fall."""
        if value[0] > value[1]:
            raise ValueError("expected two distances that rise")
        return value


class SafeSet(Saved):
    """P(safe | s), learnt from demonstrations and widened by experience.

    Targets of the classifier f:

        1                          states that a person showed or drove through, and the ends of successes
        0                          a true end without success; states thrown off the data by noise
        decay * f(s')              every other state: what leads into the set nearly belongs to it

    so that steps of the policy which come back widen the set, and steps which end in a failure narrow it.

    Source: recursive labels after Wilcox et al., LS3: Latent Space Safe Sets for Long-Horizon Visuomotor Control of
    Sparse Reward Iterative Tasks (recalled), who learn them in an image's code and plan with them. Ours: states instead
    of codes, and noise off the data as negatives, since a few demonstrations hold no unsafe ones.
    """

    saved = ("net", "_slow", "_optimiser", "_norm", "model")

    def __init__(self, options: SafeSetOptions, state: int, action: int, *, generator: torch.Generator) -> None:
        """Build classifier and model.

        Args:
            options: of both.
            state: width of the state.
            action: width of the action.
            generator: of weights, noise and samples.
        """
        o = options
        members, hidden, decay, spread, lr, tau = o.members, o.hidden, o.decay, o.spread, o.lr, o.tau
        self._generator, self._decay, self._spread, self._tau, self._lr = generator, decay, spread, tau, lr
        self.model = Dynamics(state, action, generator=generator, members=members, elites=members, hidden=hidden, lr=lr)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(torch.randint(2**31, (), generator=generator, device=generator.device)))
            self.net = mlp(state, hidden, 1).to(generator.device)
        self._slow = copy.deepcopy(self.net).requires_grad_(False)
        self._optimiser = torch.optim.Adam(self.net.parameters(), lr)
        self._norm = RunningNorm(state, max_scale=1e3, device=generator.device)  # of demonstrated states

    @property
    def known(self) -> bool:
        """Demonstrations have been seen."""
        return bool(self._norm.count)

    @property
    def acting(self) -> dict[str, object]:
        """What `prob` and `ahead` read, by name: tensors alone, nothing that only learning needs."""
        model = self.model
        norms = {"norm": self._norm, "model_input": model.input_norm, "model_target": model.target_norm}
        return {"net": self.net, "model": model.net, **norms}

    def prob(self, state: Tensor) -> Tensor:
        """(B, S) -> (B,) P(safe)."""
        with torch.no_grad():
            return torch.sigmoid(self.net(self.standardise(state))[:, 0])

    def ahead(self, state: Tensor, action: Tensor, act: Callable[[Tensor], Tensor], steps: int) -> Tensor:
        """Least P(safe) of the predicted next states, mean over the model's members.

        Args:
            state: (B, S).
            action: (B, A) of the first step.
            act: (B, S) -> (B, A) of the later ones.
            steps: h.

        Returns:
            (B,).
        """
        members = self.model.members
        here = state.expand(members, *state.shape)
        least = torch.ones(members, len(state), device=state.device)
        for step in range(steps):
            if step:
                action = act(here.flatten(0, 1)).unflatten(0, (members, len(state)))
            delta, _ = self.model.predict(here, action.expand(members, *action.shape[-2:]))
            here = here + delta[..., : state.shape[1]]
            least = torch.minimum(least, self.prob(here.flatten(0, 1)).unflatten(0, (members, len(state))))
        return least.mean(0)

    def learn(self, batch: Transitions) -> dict[str, float]:
        """One step of classifier and model; mean P(safe) of demonstrated and of noisy rows, and the model's error."""
        state, after, action = batch.obs["state"], batch.next_obs["state"], batch.action
        shown = human_rows(batch) > 0
        if shown.any():
            self._norm.observe(state[shown])
        self.model.observe(state, action, after, batch.reward)
        picks = torch.randint(
            len(state), (self.model.members, len(state)), generator=self._generator, device=state.device
        )
        error = self.model.fit(state[picks], action[picks], after[picks], batch.reward[picks])
        if not self.known:
            return {"safe/model_error": float(error)}
        done = batch.terminated.to(state.dtype)
        good = (batch.reward > 0).to(state.dtype)
        with torch.no_grad():
            slow = torch.sigmoid(self._slow(self.standardise(after))[:, 0])
            led = done * good + (1.0 - done) * self._decay * slow
            target = torch.where(shown, torch.ones_like(led), led)
            noisy = self.standardise(state[shown]) if shown.any() else self.standardise(state)
            noise = torch.randn(noisy.shape, generator=self._generator, device=state.device)
            low, high = self._spread
            radius = low + (high - low) * torch.rand(len(noisy), 1, generator=self._generator, device=state.device)
            noisy = noisy + radius * noise / noise.square().mean(1, keepdim=True).sqrt()
        logits = self.net(torch.cat([self.standardise(state), noisy]))[:, 0]
        known, off = logits[: len(state)], logits[len(state) :]
        loss = binary_cross_entropy_with_logits(known, target)
        loss = loss + binary_cross_entropy_with_logits(off, torch.zeros_like(off))
        self._optimiser.zero_grad()
        loss.backward()
        self._optimiser.step()
        with torch.no_grad():
            for slow_part, part in zip(self._slow.parameters(), self.net.parameters()):
                slow_part.lerp_(part, self._tau)
            inside = torch.sigmoid(known[shown]).mean() if shown.any() else torch.tensor(float("nan"))
        return {
            "safe/demonstrated": float(inside),
            "safe/noise": float(torch.sigmoid(off.detach()).mean()),
            "safe/model_error": float(error),
        }

    def standardise(self, state: Tensor) -> Tensor:
        """States (..., S) in standard deviations of the demonstrated ones."""
        return self._norm(state).clamp(-10.0, 10.0)


def mlp(inputs: int, hidden: tuple[int, ...], outputs: int) -> nn.Sequential:
    """Linear layers with ReLU between them."""
    layers: list[nn.Module] = []
    for width in hidden:
        layers += [nn.Linear(inputs, width), nn.ReLU()]
        inputs = width
    return nn.Sequential(*layers, nn.Linear(inputs, outputs))
