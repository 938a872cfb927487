"""The actor half of soft actor-critic methods: squashed Gaussian, its policy, and the temperature."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from robot_rl.policies.nets.distributions import LOG_STD_MIN, SquashedSample, squash, squash_grad
from robot_rl.policies.nets.flat import FlatParams
from robot_rl.policies.nets.mlp import MlpShape, build_mlp
from robot_rl.policies.nets.normalizer import FixedNorm
from robot_rl.policies.nets.squashed_policy import SquashedGaussianPolicy
from robot_rl.types import IOSpec


class SoftActor:
    """A squashed Gaussian that climbs a critic against its own entropy; nothing waits for the device.

    Attributes:
        shape: of the network; parameters may be initialised anew after construction.
        params: of the network.
        policy: what acts.
        lr: step size of the network, for schedules.
    """

    def __init__(
        self,
        io: IOSpec,
        size: int,
        hidden: tuple[int, ...],
        *,
        generator: torch.Generator,
        seed: int,
        norm: FixedNorm | None = None,
        lr: float = 3e-4,
        alpha_lr: float = 3e-4,
        target_entropy: float | None = None,
        init_alpha: float = 1.0,
        log_std_min: float = LOG_STD_MIN,
        kernel: str = "auto",
        matmul: str = "float32",
    ) -> None:
        """Build network, policy and temperature.

        Args:
            io: what the policy sees and does.
            size: width of the state.
            hidden: widths of the hidden layers.
            generator: of initial weights and samples; shared with the learner.
            seed: of the acting policy's noise.
            norm: of the state, shared.
            lr: step size of the network.
            alpha_lr: step size of the temperature; 0 keeps it fixed.
            target_entropy: None means -A.
            init_alpha: temperature at the start.
            log_std_min: lower limit of the log-std.
            kernel: "auto", "explicit" or "autograd".
            matmul: "float32", "bf16" or "auto".
        """
        device = generator.device
        self.shape = MlpShape(1, size, tuple(hidden), 2 * io.action_dim, False, "actor.")
        self.params = FlatParams(self.shape.shapes(), device=device)
        self.shape.initialise(self.params, generator)
        self.network = build_mlp(self.shape, self.params, kernel=kernel, matmul=matmul)
        self._alpha = FlatParams({"log_alpha": (1,)}, device=device)
        self._alpha.flat[0] = math.log(init_alpha)
        self.lr, self._alpha_lr, self._low, self._generator = lr, alpha_lr, log_std_min, generator
        self._target = -float(io.action_dim) if target_entropy is None else target_entropy
        self._actions = io.action_dim
        self.policy = SquashedGaussianPolicy(
            io, self.shape, self.params, seed=seed, normalizer=norm, log_std_min=log_std_min
        )

    @property
    def alpha(self) -> Tensor:
        """() the temperature, on the device."""
        return self._alpha.flat[0].exp()

    def parts(self) -> dict[str, Any]:
        """What a learner saves of it."""
        return {"actor": self.params, "alpha": self._alpha, "policy": self.policy}

    @torch.no_grad()
    def raw(self, state: Tensor) -> Tensor:
        """(B, 2A) mean and log-std; kept for the step that follows."""
        return self.network.forward(state)[0]

    @torch.no_grad()
    def draw(self, raw: Tensor, *times: int) -> SquashedSample:
        """One sample per row, or (times, B, ...) of them."""
        shape = (*times, raw.shape[0], self._actions)
        noise = torch.randn(shape, generator=self._generator, device=raw.device)
        return squash(raw, noise, log_std_min=self._low)

    @torch.no_grad()
    def step(self, sample: SquashedSample, d_action: Tensor, alpha: Tensor, *, rows: slice | None = None) -> None:
        """Descend mean(alpha log pi) plus a loss of the action.

        Args:
            sample: of the last `raw`, or of its `rows`.
            d_action: (B, A) gradient of the other loss by the action, batch mean included.
            alpha: () temperature.
            rows: rows of the last `raw` that the sample speaks of.
        """
        weight = (alpha / len(d_action)).expand(len(d_action), 1)
        self.descend(squash_grad(sample, d_action, weight), rows=rows)

    @torch.no_grad()
    def descend(self, d_raw: Tensor, *, rows: slice | None = None) -> None:
        """One step against a gradient by `raw` (B, 2A)."""
        self.network.backward(d_raw[None], rows=rows)
        self.params.adam(self.lr)
        self.network.refresh()

    @torch.no_grad()
    def temper(self, logp: Tensor) -> None:
        """Move the temperature so that the entropy -logp (B,) nears its target: loss -log_alpha (logp + target)."""
        if self._alpha_lr:
            self._alpha.grad[0] = -(logp.mean() + self._target)
            self._alpha.adam(self._alpha_lr)
