"""QC-FQL: Q-chunking whose actor answers in one step, kept near the cloned flow by distillation."""

from __future__ import annotations

import torch
from torch import Tensor

from robot_rl.chunks import critic_action
from robot_rl.policies.nets.flat import FlatParams
from robot_rl.policies.nets.mlp import MlpShape, build_mlp
from robot_rl.policies.sequence.qc import Qc
from robot_rl.types import IOSpec
from robot_rl.types.options import Bins, Count, Mixing, NotNegative, Positive, Rate, Support, Whole


class QcFql(Qc):
    """A one-step actor mu(s, z), z ~ N(0, I), on chunks.

    Its loss is alpha mean |mu(s, z) - flow(s, z)|^2 - mean Q(s, clip mu(s, z)): the flow clones the data, the actor
    copies the flow from the same noise where Q has nothing to say, and leaves it where Q has.

    Source: Park et al., Flow Q-Learning; Li et al., Reinforcement Learning with Action Chunking (QC-FQL). Where we
    differ: as in `Qc`.
    """

    method = "QC-FQL"

    def __init__(
        self,
        io: IOSpec,
        *,
        seed: int = 0,
        device: str = "cpu",
        gamma: float = 0.99,
        batch_size: Count = 256,
        horizon: Count = 5,
        alpha: NotNegative = 100.0,
        normalize_q: bool = False,
        hidden: tuple[Count, ...] = (512, 512, 512, 512),
        critics: Count = 2,
        layer_norm: bool = True,
        flow_steps: Count = 10,
        q_reduce: str = "mean",
        lr: Rate = 3e-4,
        tau: Mixing = 0.005,
        value_head: str = "mse",
        value_range: Support = (0.0, 1.0),
        bins: Bins = 101,
        sigma_ratio: Positive = 0.75,
        normalize: bool = True,
        mode: str = "open",
        metrics_every: Whole = 100,
    ) -> None:
        """As `Qc`, and:

        Args:
            io, seed, device, gamma, batch_size, horizon, hidden, critics, layer_norm, flow_steps, q_reduce, lr, tau,
                value_head, value_range, bins, sigma_ratio, normalize, mode, metrics_every: as in `Qc`.
            alpha: weight of the distillation; 100 at h = 5, 10 at h = 1 (3 to 1000 over the source's tasks).
            normalize_q: divide the Q loss by mean |Q|; alpha then in 0.03 ... 10.
        """
        super().__init__(
            io,
            seed=seed,
            device=device,
            gamma=gamma,
            batch_size=batch_size,
            horizon=horizon,
            hidden=hidden,
            critics=critics,
            layer_norm=layer_norm,
            samples=1,
            flow_steps=flow_steps,
            q_reduce=q_reduce,
            lr=lr,
            tau=tau,
            value_head=value_head,
            value_range=value_range,
            bins=bins,
            sigma_ratio=sigma_ratio,
            normalize=normalize,
            mode=mode,
            metrics_every=metrics_every,
        )
        if alpha < 0:
            raise ValueError(f"alpha is {alpha}, expected 0 or more")
        self._alpha, self._normalize_q = alpha, normalize_q
        shape = MlpShape(1, self._size + self._flat, tuple(hidden), self._flat, False, "actor.")
        self._actor_params = FlatParams(shape.shapes(), device=device)
        shape.initialise(self._actor_params, self._generator)
        self._actor = build_mlp(shape, self._actor_params, matmul="float32")
        self._state.include({"actor": self._actor_params}, (self._actor,))

    def _choose(self, state: Tensor, generator: torch.Generator) -> Tensor:
        noise = self.flow.noise(len(state), generator)
        return self._actor.forward(torch.cat([state, noise], dim=1))[0].clamp(-1.0, 1.0)

    def _actor_step(self, state: Tensor) -> dict[str, Tensor]:
        noise = self.flow.noise(len(state), self._generator)
        copied = self.flow.sample(state, noise)
        raw = self._actor.forward(torch.cat([state, noise], dim=1))[0]
        chunk = raw.clamp(-1.0, 1.0)
        code = critic_action(chunk.view(len(chunk), self.window, -1))
        out = self._critic.forward(torch.cat([state, code], dim=1))
        value = self._head.value(out)
        q = value.mean(0)
        scale = 1.0 / max(float(q.abs().mean()), 1e-6) if self._normalize_q else 1.0
        d_value = torch.full_like(value, -scale / value.numel())
        columns = slice(self._size, self._size + self._flat)
        d_chunk = self._critic.backward(self._head.value_grad(out, d_value), weights=False, inputs=columns)
        assert d_chunk is not None
        gap = raw - copied
        inside = (raw == chunk).to(raw.dtype)  # the clip passes no gradient outside
        self._actor.backward((d_chunk * inside + gap * (2.0 * self._alpha / gap.numel()))[None])
        self._actor_params.adam(self._lr)
        self._actor.refresh()
        return {"distill_loss": gap.square().mean(), "actor_q": q.mean()}

    def acting_parts(self) -> dict[str, FlatParams]:
        """Parameters that acting needs."""
        return {"actor": self._actor_params}

    def refresh(self) -> None:
        """Parameters were loaded."""
        super().refresh()
        self._actor.refresh()
