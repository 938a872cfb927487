"""Residual networks of E members side by side: linear, blocks x + mlp(norm(x)), norm, linear."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm


class ResidualNet(nn.Module):
    """h = W x; per block h = h + V relu(U norm(h)) with U four times as wide; out = R norm(h).

    The path from input to output is linear but for the blocks, so that what a small network would say passes through
    a large one: simple functions are what it begins with.

    Source: Lee et al., SimBa: Simplicity Bias for Scaling Up Parameters in Deep RL (recalled).
    """

    def __init__(
        self, members: int, inputs: int, width: int, blocks: int, outputs: int, generator: torch.Generator
    ) -> None:
        """Build and draw weights: orthogonal in and out, He normal in the blocks, biases 0.

        Args:
            members: E, each with weights of its own.
            inputs: width of the input.
            width: d of the residual stream.
            blocks: N.
            outputs: width of the output.
            generator: of the weights.

        Raises:
            ValueError: a size below 1.
        """
        super().__init__()
        if min(members, inputs, width, blocks, outputs) < 1:
            raise ValueError(
                f"members, inputs, width, blocks, outputs are {members}, {inputs}, {width}, {blocks}, {outputs}; "
                "expected at least 1"
            )
        self.blocks, device = blocks, generator.device

        def weight(low: int, high: int, he: bool) -> None:
            value = torch.randn(members, low, high, generator=generator, device=device)
            if he:
                value *= (2.0 / low) ** 0.5
            else:
                tall = value if low >= high else value.transpose(1, 2)
                q, r = torch.linalg.qr(tall)
                q = q * r.diagonal(dim1=1, dim2=2).sign()[:, None]
                value = q if low >= high else q.transpose(1, 2)
            self.weights.append(nn.Parameter(value.contiguous()))
            self.biases.append(nn.Parameter(torch.zeros(members, 1, high, device=device)))

        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        weight(inputs, width, False)
        for _ in range(blocks):
            weight(width, 4 * width, True)
            weight(4 * width, width, True)
        weight(width, outputs, False)
        self.scales, self.shifts = nn.ParameterList(), nn.ParameterList()
        for _ in range(blocks + 1):
            self.scales.append(nn.Parameter(torch.ones(members, 1, width, device=device)))
            self.shifts.append(nn.Parameter(torch.zeros(members, 1, width, device=device)))

    def forward(self, x: Tensor) -> Tensor:
        """(B, inputs), the same for all members, or (E, B, inputs) -> (E, B, outputs)."""
        members = len(self.weights[0])
        h = self._linear(x.expand(members, *x.shape) if x.dim() == 2 else x, 0)
        for i in range(self.blocks):
            inner = self._linear(self._norm(h, i), 2 * i + 1).relu()
            h = h + self._linear(inner, 2 * i + 2)
        return self._linear(self._norm(h, self.blocks), 2 * self.blocks + 1)

    def _linear(self, x: Tensor, i: int) -> Tensor:
        return torch.baddbmm(self.biases[i], x, self.weights[i])

    def _norm(self, x: Tensor, i: int) -> Tensor:
        return torch.addcmul(self.shifts[i], layer_norm(x, x.shape[-1:]), self.scales[i])
