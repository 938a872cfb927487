"""Flow Q-learning: the one-step method of which QC-FQL is the chunked form."""

from __future__ import annotations

from robot_rl.policies.sequence.qc_fql import QcFql
from robot_rl.types import IOSpec
from robot_rl.types.options import Bins, Count, Mixing, NotNegative, Positive, Rate, Support, Whole


class Fql(QcFql):
    """`QcFql` on single actions.

    Source: Park et al., Flow Q-Learning (seohongpark/fql). Where we differ: as in `Qc`.
    """

    method = "FQL"

    def __init__(
        self,
        io: IOSpec,
        *,
        seed: int = 0,
        device: str = "cpu",
        gamma: float = 0.99,
        batch_size: Count = 256,
        alpha: NotNegative = 10.0,
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
        metrics_every: Whole = 100,
    ) -> None:
        """Arguments as in `QcFql` and `Qc`, without horizon and mode."""
        super().__init__(
            io,
            seed=seed,
            device=device,
            gamma=gamma,
            batch_size=batch_size,
            alpha=alpha,
            normalize_q=normalize_q,
            hidden=hidden,
            critics=critics,
            layer_norm=layer_norm,
            flow_steps=flow_steps,
            q_reduce=q_reduce,
            lr=lr,
            tau=tau,
            value_head=value_head,
            value_range=value_range,
            bins=bins,
            sigma_ratio=sigma_ratio,
            normalize=normalize,
            metrics_every=metrics_every,
            horizon=1,
        )
