"""Soft actor-critic regularised towards a policy cloned from demonstrations."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from robot_rl.policies.nets.distributions import SquashedSample, squash_grad
from robot_rl.policies.nets.rows import Rows, split
from robot_rl.policies.nets.soft_actor import SoftActor
from robot_rl.policies.offline.sac_n import SacN
from robot_rl.types import IOSpec, Metrics, Transitions

_LOW, _HIGH = -5.0, 2.0


def gaussian_kl(raw: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    """KL(pi || other) of two squashed Gaussians, and its gradient by `raw`.

    tanh is one-to-one, so the divergence is that of the Gaussians below it: no samples are needed.

    Args:
        raw: (B, 2A) mean and log-std of pi.
        other: (B, 2A) of the reference.

    Returns:
        (B,) divergence, (B, 2A) gradient.
    """
    mean, wide = raw.chunk(2, -1)
    mean0, wide0 = other.chunk(2, -1)
    log_std, log_std0 = wide.clamp(_LOW, _HIGH), wide0.clamp(_LOW, _HIGH)
    precision = (-2.0 * log_std0).exp()
    ratio = (2.0 * log_std).exp() * precision
    gap = mean - mean0
    kl = (log_std0 - log_std + 0.5 * (ratio + gap.square() * precision - 1.0)).sum(-1)
    inside = (log_std == wide).to(raw.dtype)
    return kl, torch.cat([gap * precision, (ratio - 1.0) * inside], -1)


def squashed_nll_grad(raw: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
    """Negative log-density (B,) under the squashed Gaussian, without its tanh term, and its gradient by `raw`."""
    mean, wide = raw.chunk(2, -1)
    log_std = wide.clamp(_LOW, _HIGH)
    u = torch.atanh(action.clamp(-1 + 1e-3, 1 - 1e-3))
    z = (u - mean) * (-log_std).exp()
    inside = (log_std == wide).to(raw.dtype)
    return (0.5 * z.square() + log_std).sum(-1), torch.cat([-z * (-log_std).exp(), (1.0 - z.square()) * inside], -1)


class DemoKl(SacN):
    """Demonstration-regularised reinforcement learning.

    The first `clone_updates` updates fit pi_BC to the demonstrations (the rows with extras "source" 0; all rows of a
    log without that column). Then the actor minimises alpha log pi - min Q + lambda KL(pi || pi_BC) with lambda falling
    to 0 over `decay_updates`.

    Source: Tiapkin et al., Demonstration-Regularized RL (KL to a cloned policy); soft actor-critic of `SacN`.
    """

    method = "demo-KL"

    def __init__(
        self,
        io: IOSpec,
        *,
        seed: int = 0,
        device: str = "cpu",
        gamma: float = 0.99,
        batch_size: int = 256,
        hidden: tuple[int, ...] = (256, 256),
        critics: int = 2,
        weight: float = 1.0,
        decay_updates: int = 0,
        clone_updates: int = 5000,
        lr: float = 3e-4,
        tau: float = 0.005,
        normalize: bool = True,
        matmul: str = "float32",
        kernel: str = "auto",
        metrics_every: int = 100,
    ) -> None:
        """Build networks for `io`.

        Args:
            io: one vector observation "state".
            seed: of initial weights and samples.
            device: torch device.
            gamma: part of every learner's signature; the data's `discount` is what is used.
            batch_size: rows per update.
            hidden: widths of all networks.
            critics: N of the soft actor-critic.
            weight: lambda at the start.
            decay_updates: updates after cloning over which lambda falls linearly to 0; 0 keeps it.
            clone_updates: updates that fit the cloned policy.
            lr: step size of everything.
            tau: Polyak rate of the target critics.
            normalize: standardise states by the data's moments.
            matmul: "float32", "bf16" or "auto".
            kernel: "auto", "explicit" or "autograd".
            metrics_every: metrics are computed in every n-th update.

        Raises:
            ValueError: an option outside its range.
        """
        if weight < 0 or min(decay_updates, clone_updates) < 0:
            raise ValueError(
                f"weight {weight}, decay_updates {decay_updates}, clone_updates {clone_updates}; expected >= 0"
            )
        super().__init__(
            io,
            seed=seed,
            device=device,
            gamma=gamma,
            batch_size=batch_size,
            hidden=hidden,
            critics=critics,
            lr=lr,
            tau=tau,
            normalize=normalize,
            matmul=matmul,
            kernel=kernel,
            metrics_every=metrics_every,
        )
        self._weight, self._fade, self._clone_updates = weight, decay_updates, clone_updates
        self._clone = SoftActor(
            io,
            self._size,
            hidden,
            generator=self._generator,
            seed=seed + 2,
            norm=self.norm,
            lr=lr,
            log_std_min=_LOW,
            kernel=kernel,
            matmul=matmul,
        )
        self._state.include({"clone": self._clone.params}, [self._clone.network])

    @property
    def weight(self) -> float:
        """lambda of the coming update."""
        done = max(self._state.updates - self._clone_updates, 0)
        return self._weight * (max(0.0, 1.0 - done / self._fade) if self._fade else 1.0)

    @torch.no_grad()
    def update(self, batches: Iterator[Transitions], /) -> Metrics:
        """One step of the cloned policy, or, once that is fitted, one of SAC; metrics of `SacN` and train/kl.

        Raises:
            FloatingPointError: a metric is not finite or the values diverge.
        """
        if self._state.updates >= self._clone_updates:
            return super().update(batches)
        wanted = self._state.tick()
        rows = split(next(batches), 1, self.norm)
        keep = torch.ones_like(rows.reward[0])
        if "source" in rows.extras:
            keep = (rows.extras["source"][0] == 0).to(keep.dtype)
        keep = keep / keep.sum().clamp_min(1.0)
        nll, d_raw = squashed_nll_grad(self._clone.raw(rows.state[0]), rows.action[0])
        self._clone.descend(d_raw * keep[:, None])
        if self._state.updates == self._clone_updates:  # the actor begins as the clone
            self._actor.params.flat.copy_(self._clone.params.flat)
            self._actor.network.refresh()
        return self._state.report({"clone_loss": (nll * keep).sum()} if wanted else None)

    def _actor_step(
        self, rows: Rows, raw: Tensor, sample: SquashedSample, d_action: Tensor, alpha: Tensor
    ) -> dict[str, Tensor]:
        size = len(raw)
        kl, d_kl = gaussian_kl(raw, self._clone.raw(rows.state[0]))
        d_raw = squash_grad(sample, d_action, (alpha / size).expand(size, 1))
        self._actor.descend(d_raw + d_kl * (self.weight / size))
        return {"kl": kl.mean()}
