"""ArCHer: utterance-level critics whose differences are the advantages of the tokens."""

from __future__ import annotations

import torch

from robot_rl.advantage.arrays import check_unit, same_kind
from robot_rl.advantage.kinds import Array


@same_kind
def archer_q_target(
    reward: Array, terminated: Array, next_value: Array, *, gamma: float = 0.9, discount: Array | None = None
) -> Array:
    """Targets of the twin Q heads: r + gamma (1 - e) V_i(o') with the slow copies of the twin V heads.

    The targets of the V heads are the slow Q heads at an action freshly sampled from the policy, unchanged.

    Args:
        reward: (B,) of the utterance or chunk.
        terminated: (B,) bool.
        next_value: (2, B) slow V heads at the next observation.
        gamma: discount per turn.
        discount: (B,) in place of gamma (gamma^k of a chunk), or None.

    Returns:
        (2, B).

    Source: Zhou et al., ArCHer, eq. 2-4; the release uses done where this uses terminated.
    """
    check_unit(gamma=gamma)
    g = gamma if discount is None else discount
    ahead = torch.where(terminated.bool(), 0.0, g * next_value)
    return reward + ahead


@same_kind
def archer_advantage(q: Array, value: Array, baseline: Array | None = None) -> Array:
    """Advantage of a freshly sampled utterance: min(Q1, Q2) - min(V1, V2), less an optional baseline per token.

    Args:
        q: (2, B) Q heads at the sampled utterance.
        value: (2, B) V heads.
        baseline: (B, L) token baseline regressed to the advantage, or None.

    Returns:
        (B,), or (B, L) weights with a baseline.

    Source: Zhou et al., ArCHer, actor loss; release for the twin minimum.
    """
    advantage = torch.minimum(q[0], q[1]) - torch.minimum(value[0], value[1])
    return advantage if baseline is None else advantage[:, None] - baseline
