"""A policy that is a network's mean, with or without state-free Gaussian noise; several seeds side by side."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from robot_rl.policies.nets.net import Net
from robot_rl.policies.nets.normalizer import FixedNorm
from robot_rl.state import Saved
from robot_rl.types import Action, Array, IOSpec, Obs, PolicyParts


class MeanPolicy(Saved):
    """a = clip(mean(s) + std * noise, -1, 1), sharing the learner's parameters: no copy when weights change.

    The mean is the network's output, through tanh or not. `deterministic` leaves the noise out; so does a policy
    without `log_std`, unless `noise` gives it some.

    Attributes:
        seeds: how many policies the parameters hold.
        active: which of them acts.
    """

    def __init__(
        self,
        io: IOSpec,
        actor: Net,
        *,
        seed: int = 0,
        normalizer: FixedNorm | None = None,
        squash: bool = True,
        log_std: str | None = None,
        log_std_range: tuple[float, float] = (-20.0, 2.0),
        noise: float = 0.0,
    ) -> None:
        """Bind to the actor's parameters.

        Args:
            io: what the policy sees and does.
            actor: one member per seed, outputs A, without LayerNorm; its parameters are shared, never replaced.
            seed: of the noise.
            normalizer: of "state", shared; None for raw observations.
            squash: tanh on the mean.
            log_std: name of the (S, A) log standard deviation in `params`, or None.
            log_std_range: its limits.
            noise: standard deviation of the exploration noise of a policy without `log_std`.
        """
        shape, params = actor.shape, actor.params
        self.io, self.seeds, self.active = io, shape.members, 0
        self._shape, self._params, self._normalizer = shape, params, normalizer
        self._squash, self._log_std, self._range, self._noise = squash, log_std, log_std_range, noise
        self._device = params.flat.device
        self._generator = torch.Generator(device=self._device).manual_seed(seed)
        names = [f"{shape.prefix}{kind}{i}" for i in range(len(shape.hidden) + 1) for kind in ("weight", "bias")]
        views = [params.view[name].detach() for name in names]
        self._layers = list(zip(views[::2], views[1::2]))
        self._arrays = None
        if self._device.type == "cpu":
            self._arrays = [(w.numpy(), b.numpy()) for w, b in self._layers]

    @property
    def parts(self) -> PolicyParts:
        """One policy a seed; a density where actions are sampled."""
        return PolicyParts(
            log_prob=None if self._log_std is None else self.log_prob, seeds=self.seeds, activate=self.activate
        )

    def activate(self, seed: int) -> None:
        """Act as this seed's policy, counted from 0."""
        self.active = seed

    def reset(self, rows: Array | None = None) -> None:
        """Nothing to forget: the policy has no memory."""

    def act(self, obs: Obs, *, deterministic: bool = False) -> Action:
        """Choose actions: "state" (B, S) -> (B, A) in [-1, 1], float32, in the kind of the observation."""
        state = obs["state"]
        if self._arrays is not None and isinstance(state, np.ndarray):
            h = np.asarray(state, np.float32)
            if self._normalizer is not None:
                shift, scale = self._normalizer.numpy()
                h = (h - shift) * scale
            last = len(self._arrays) - 1
            for i, (weight, bias) in enumerate(self._arrays):
                h = h @ weight[self.active] + bias[self.active]
                if i < last:
                    h = np.maximum(h, 0.0)
            mean = np.tanh(h) if self._squash else h
            if not deterministic and (self._log_std is not None or self._noise):
                noise = torch.randn(mean.shape, generator=self._generator).numpy()
                mean = mean + self._std().numpy() * noise
            return Action(np.clip(mean, -1.0, 1.0))
        with torch.no_grad():
            mean = self.mean(torch.as_tensor(state).to(self._device, torch.float32))
            if not deterministic and (self._log_std is not None or self._noise):
                noise = torch.randn(mean.shape, generator=self._generator, device=self._device)
                mean = mean + self._std() * noise
            action = mean.clamp_(-1.0, 1.0)
            return Action(action.cpu().numpy() if isinstance(state, np.ndarray) else action)

    def mean(self, state: Tensor) -> Tensor:
        """(B, A) mean action of the active seed, before clipping."""
        h = state if self._normalizer is None else self._normalizer(state)
        last = len(self._layers) - 1
        for i, (weight, bias) in enumerate(self._layers):
            h = torch.addmm(bias[self.active], h, weight[self.active])
            if i < last:
                h = h.relu_()
        return h.tanh() if self._squash else h

    def _std(self) -> Tensor:
        if self._log_std is None:
            return torch.tensor(self._noise, device=self._device)
        return self._params.view[self._log_std].detach()[self.active].clamp(*self._range).exp()

    def log_prob(self, obs: Obs, action: Tensor) -> Tensor:
        """(B,) log-density of actions (B, A) under the Gaussian before clipping; for off-policy evaluation.

        Raises:
            ValueError: the policy is deterministic.
        """
        if self._log_std is None:
            raise ValueError("a deterministic policy has no density; use FQE, or a policy with log_std")
        std, mean = self._std(), self.mean(torch.as_tensor(obs["state"]).to(self._device, torch.float32))
        z = (action.to(mean) - mean) / std
        return (-0.5 * z.square() - std.log() - 0.9189385332046727).sum(-1)

    def saved_parts(self) -> dict[str, object]:
        """Weights, noise generator and normaliser, where there is one."""
        return {"actor": self._params.flat, "generator": self._generator, "normalizer": self._normalizer}
