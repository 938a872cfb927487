"""A flow-matching network over chunks: cloning loss, and sampling by Euler steps."""

from __future__ import annotations

import torch
from torch import Tensor

from robot_rl.policies.nets.net import Net


class ChunkFlow:
    """v(s, x, t) whose integral from t = 0 (standard normal noise) to t = 1 is a chunk.

    Args:
        net: inputs S + H A + 1 (state, x, t), outputs H A.
        horizon: H.
        action_dim: A.
        steps: Euler steps of a sample.

    Source: Lipman et al., Flow Matching for Generative Modeling; Park et al., Flow Q-Learning (straight paths, Euler).
    """

    def __init__(self, net: Net, horizon: int, action_dim: int, *, steps: int = 10) -> None:
        if steps < 1:
            raise ValueError(f"flow_steps is {steps}, expected at least 1")
        self.net, self.horizon, self.action_dim, self.steps = net, horizon, action_dim, steps
        self.width = horizon * action_dim

    def velocity(self, state: Tensor, x: Tensor, t: Tensor) -> Tensor:
        """(B, H A) v of states (B, S), chunks (B, H A) and times (B, 1)."""
        return self.net(state, x, t)

    def clone_loss(self, state: Tensor, chunk: Tensor, mask: Tensor, generator: torch.Generator) -> Tensor:
        """() what trains v to lead from noise to the chunks.

        x_t = (1 - t) x_0 + t chunk, loss = mean over the executed entries of (v - (chunk - x_0))^2. The mean is over
        sum(mask) entries: dividing by all of them would weaken batches with many ends.

        Args:
            state: (B, S).
            chunk: (B, H, A), zero where not executed.
            mask: (B, H) executed entries.
            generator: of noise and t.
        """
        flat = chunk.flatten(1)
        noise = torch.randn(flat.shape, generator=generator, device=flat.device)
        t = torch.rand(len(flat), 1, generator=generator, device=flat.device)
        valid = mask.to(flat.dtype).repeat_interleave(self.action_dim, dim=1)
        diff = (self.velocity(state, torch.lerp(noise, flat, t), t) - (flat - noise)) * valid
        return diff.square().sum() / valid.sum().clamp_min(1.0)

    @torch.no_grad()
    def sample(self, state: Tensor, noise: Tensor) -> Tensor:
        """(B, H A) in [-1, 1] from noise (B, H A)."""
        x = noise
        for i in range(self.steps):
            t = x.new_full((len(x), 1), i / self.steps)
            x = x + self.velocity(state, x, t) / self.steps
        return x.clamp(-1.0, 1.0)

    def noise(self, rows: int, generator: torch.Generator) -> Tensor:
        """(rows, H A) standard normal."""
        return torch.randn(rows, self.width, generator=generator, device=generator.device)
