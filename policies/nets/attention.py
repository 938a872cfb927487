"""A small transformer: pre-norm blocks of attention and a network of one hidden layer."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, relu, scaled_dot_product_attention

Drop = Callable[[Tensor], Tensor]
"""Dropout with a generator of its owner's; torch's own draws from the global one."""


class Block(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, width: int, heads: int, rectified: bool = False) -> None:
        """`width` is a multiple of `heads`; `rectified`: ReLU in place of GELU."""
        super().__init__()
        self.heads, self.bend = heads, relu if rectified else gelu
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mix, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor, *, causal: bool, drop: Drop | None = None) -> Tensor:
        """(B, L, width) -> the same.

        Args:
            x: tokens.
            causal: no position sees a later one.
            drop: applied to what either half adds.
        """
        size, length, width = x.shape
        query, key, value = self._split(x)
        seen = scaled_dot_product_attention(query, key, value, is_causal=causal)
        more = self.out(seen.transpose(1, 2).reshape(size, length, width))
        x = x + (more if drop is None else drop(more))
        more = self.down(self.bend(self.up(self.after(x))))
        return x + (more if drop is None else drop(more))

    def _split(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values (B, heads, L, width / heads)."""
        size, length, width = x.shape
        split = self.mix(self.before(x)).view(size, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        return split[0], split[1], split[2]

    def weights(self, x: Tensor, *, causal: bool) -> Tensor:
        """(B, heads, L, L) how much every position attends to every other; rows sum to 1."""
        query, key, _ = self._split(x)
        score = query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5
        if causal:
            score = score.masked_fill(torch.ones(score.shape[-2:], dtype=torch.bool).triu(1).to(x.device), -torch.inf)
        return score.softmax(-1)


class Transformer(nn.Module):
    """Blocks and a last norm over embedded tokens (B, L, width)."""

    def __init__(self, width: int, layers: int, heads: int, *, causal: bool, rectified: bool = False) -> None:
        """Build the blocks; `rectified`: ReLU in place of GELU.

        Raises:
            ValueError: the width is no multiple of the heads.
        """
        if width % heads:
            raise ValueError(f"width is {width}, expected a multiple of the {heads} heads")
        super().__init__()
        self.causal = causal
        self.blocks = nn.ModuleList([Block(width, heads, rectified) for _ in range(layers)])
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor, drop: Drop | None = None) -> Tensor:
        """(B, L, width) -> the same."""
        for block in self.blocks:
            x = block(x, causal=self.causal, drop=drop)
        return self.norm(x)

    @torch.no_grad()
    def entropy(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """(layers, heads) mean entropy of attention [nats]: 0 = one position decides, log L = all count alike.

        Args:
            x: (B, L, width).
            mask: (B, L) bool, positions whose rows count; None: all.
        """
        found = []
        for block in self.blocks:
            assert isinstance(block, Block)
            share = block.weights(x, causal=self.causal)
            rows = -(share * share.clamp_min(1e-12).log()).sum(-1)
            weight = torch.ones_like(x[..., 0]) if mask is None else mask.to(x)
            found.append((rows * weight[:, None]).sum((0, 2)) / weight.sum().clamp_min(1.0))
            x = block(x, causal=self.causal)
        return torch.stack(found)


def draw_weights(module: nn.Module, generator: torch.Generator) -> None:
    """Weights N(0, 0.02), biases 0, norms 1, from a generator: torch's own would come from the global one.

    Source: Radford et al., Improving Language Understanding by Generative Pre-Training (0.02), as in kzl/decision-
    transformer.
    """
    with torch.no_grad():
        for name, value in module.named_parameters():
            if value.dim() > 1:
                value.normal_(0.0, 0.02, generator=generator)
            else:
                value.fill_(1.0 if name.endswith("weight") else 0.0)
