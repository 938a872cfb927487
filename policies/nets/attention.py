"""A small transformer: pre-norm blocks of attention and a network of one hidden layer."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, scaled_dot_product_attention


class Block(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, width: int, heads: int) -> None:
        """`width` is a multiple of `heads`."""
        super().__init__()
        self.heads = heads
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mix, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor, *, causal: bool) -> Tensor:
        """(B, L, width) -> the same; `causal`: no position sees a later one."""
        size, length, width = x.shape
        split = self.mix(self.before(x)).view(size, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        seen = scaled_dot_product_attention(split[0], split[1], split[2], is_causal=causal)
        x = x + self.out(seen.transpose(1, 2).reshape(size, length, width))
        return x + self.down(gelu(self.up(self.after(x))))


class Transformer(nn.Module):
    """Blocks and a last norm over embedded tokens (B, L, width)."""

    def __init__(self, width: int, layers: int, heads: int, *, causal: bool) -> None:
        """Build the blocks.

        Raises:
            ValueError: the width is no multiple of the heads.
        """
        if width % heads:
            raise ValueError(f"width is {width}, expected a multiple of the {heads} heads")
        super().__init__()
        self.causal = causal
        self.blocks = nn.ModuleList([Block(width, heads) for _ in range(layers)])
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        """(B, L, width) -> the same."""
        for block in self.blocks:
            x = block(x, causal=self.causal)
        return self.norm(x)


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
