"""XQL: implicit Q-learning with Gumbel regression, whose optimum is the soft maximum itself."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from torch import Tensor

from robot_rl.policies.nets.rows import Rows
from robot_rl.policies.offline.iql import ImplicitOptions, ImplicitQ
from robot_rl.types.options import Count, Positive


def gumbel_loss(diff: Tensor, beta: float, clip: float) -> Tensor:
    """Gumbel regression (linex) loss of diff = Q - V, scaled against overflow.

    z = min(diff / beta, clip), m = max(-1, max of z over the last axis), loss = exp(z - m) - z exp(-m) - exp(-m), m
    held constant. Its minimiser over V is beta log mean exp(Q / beta): the maximum as beta -> 0, the mean as beta ->
    infinity.

    Args:
        diff: (..., B).
        beta: temperature.
        clip: upper limit of z.

    Source: Garg et al., Extreme Q-Learning: MaxEnt RL without Entropy, equation 9; stabilisation of Div99/XQL.
    """
    z = (diff / beta).clamp(max=clip)
    m = z.detach().amax(-1, keepdim=True).clamp(min=-1.0)
    scale = (-m).exp()
    return (z - m).exp() - z * scale - scale


class XqlOptions(ImplicitOptions):
    """Of XQL."""

    batch_size: Count = 1024
    """Rows per update of one seed; 1024, but 256 for small sets and AntMaze umaze and medium."""
    gumbel: Positive = 2.0
    """Temperature of the regression; 1 halfcheetah, 2 to 5 hopper, 2 to 10 walker2d, 0.55 to 2 AntMaze, 2 to 8 kitchen.
    Too small for the scale of the values, it diverges."""
    gumbel_clip: Positive = 7.0
    """Upper limit of (Q - V) / gumbel; 5 or 7."""
    random_actions: Annotated[int, Field(ge=0)] = 0
    """Uniform actions per row that join the value batch."""
    value_norm: bool = True
    """LayerNorm in the value network."""
    huber: Positive | None = 20.0
    """Threshold of a Huber loss for the critics; null for squared error."""


class Xql(ImplicitQ[XqlOptions]):
    """Extreme Q-learning, offline.

    Source: Garg et al., Extreme Q-Learning: MaxEnt RL without Entropy; defaults of Div99/XQL (LayerNorm in V, Huber
    loss with threshold 20 for the critics, policy as IQL). Their `--double` and `--max_clip` are always on.
    """

    method = "XQL"

    def value_rows(self, b: Rows, q: Tensor) -> tuple[Tensor, Tensor]:
        """With random actions beside the log's."""
        return self.with_random_actions(b, q, self.o.random_actions)

    def value_loss(self, diff: Tensor) -> Tensor:
        """Gumbel regression."""
        return gumbel_loss(diff, self.o.gumbel, self.o.gumbel_clip)
