"""XQL: implicit Q-learning with Gumbel regression, whose optimum is the soft maximum itself."""

from __future__ import annotations

from torch import Tensor

from robot_rl.policies.nets.rows import Rows
from robot_rl.policies.offline.iql import Iql
from robot_rl.types import IOSpec


def gumbel_loss(diff: Tensor, beta: float, clip: float) -> tuple[Tensor, Tensor]:
    """Gumbel regression (linex) loss of diff = Q - V, scaled against overflow, and its derivative by `diff`.

    z = min(diff / beta, clip), m = max(-1, max of z over the last axis), loss = exp(z - m) - z exp(-m) - exp(-m).
    Its minimiser over V is beta log mean exp(Q / beta): the maximum as beta -> 0, the mean as beta -> infinity.

    Args:
        diff: (..., B).
        beta: temperature.
        clip: upper limit of z.

    Source: Garg et al., Extreme Q-Learning: MaxEnt RL without Entropy, equation 9; stabilisation of Div99/XQL.
    """
    z = diff / beta
    free = z < clip
    z = z.clamp(max=clip)
    m = z.amax(-1, keepdim=True).clamp(min=-1.0)
    scale = (-m).exp()
    grown = (z - m).exp()
    return grown - z * scale - scale, (grown - scale) / beta * free


class Xql(Iql):
    """Extreme Q-learning, offline.

    Source: Garg et al., Extreme Q-Learning: MaxEnt RL without Entropy; defaults of Div99/XQL (LayerNorm in V, Huber
    loss with threshold 20 for the critics, policy as IQL). Their `--double` and `--max_clip` are always on.
    """

    method = "XQL"

    def __init__(
        self,
        io: IOSpec,
        *,
        seed: int = 0,
        device: str = "cpu",
        gamma: float = 0.99,
        batch_size: int = 1024,
        seeds: int = 1,
        hidden: tuple[int, ...] = (256, 256),
        gumbel: float = 2.0,
        gumbel_clip: float = 7.0,
        random_actions: int = 0,
        beta: float = 3.0,
        weight_clip: float = 100.0,
        lr: float = 3e-4,
        tau: float = 0.005,
        actor_decay: int = 1_000_000,
        order: str = "jax",
        log_std_min: float = -5.0,
        normalize: bool = True,
        matmul: str = "float32",
        kernel: str = "auto",
        metrics_every: int = 100,
        value_norm: bool = True,
        huber: float | None = 20.0,
    ) -> None:
        """Build networks for `io`.

        Args:
            io: one vector observation "state".
            seed: of initial weights.
            device: torch device.
            gamma: part of every learner's signature; the data's `discount` is what is used.
            batch_size: rows per update of one seed; 1024, but 256 for small sets and AntMaze umaze and medium.
            seeds: how many independent runs are trained side by side.
            hidden: widths of all networks.
            gumbel: temperature of the regression; 1 halfcheetah, 2 to 5 hopper, 2 to 10 walker2d, 0.55 to 2 AntMaze, 2
                to 8 kitchen. Too small for the scale of the values, it diverges.
            gumbel_clip: upper limit of (Q - V) / gumbel; 5 or 7.
            random_actions: uniform actions per row that join the value batch.
            beta: inverse temperature of the policy's weights; 3 locomotion, 10 AntMaze.
            weight_clip: upper bound of the weights.
            lr: step size of everything.
            tau: Polyak rate of the target critics.
            actor_decay: updates over which the actor's step size falls to 0 as a cosine; 0 keeps it.
            order: as in `Iql`.
            log_std_min: lower limit of the log standard deviation.
            normalize: standardise states by the data's moments.
            matmul: "float32", "bf16" or "auto".
            kernel: "auto", "explicit" or "autograd".
            metrics_every: metrics are computed in every n-th update.
            value_norm: LayerNorm in the value network.
            huber: threshold of the critics' Huber loss, or None.

        Raises:
            ValueError: an option outside its range.
        """
        if not gumbel > 0 or random_actions < 0:
            raise ValueError(f"gumbel is {gumbel} and random_actions {random_actions}, expected positive and >= 0")
        super().__init__(
            io,
            seed=seed,
            device=device,
            gamma=gamma,
            batch_size=batch_size,
            seeds=seeds,
            hidden=hidden,
            beta=beta,
            weight_clip=weight_clip,
            lr=lr,
            tau=tau,
            actor_decay=actor_decay,
            order=order,
            log_std_min=log_std_min,
            normalize=normalize,
            matmul=matmul,
            kernel=kernel,
            metrics_every=metrics_every,
            value_norm=value_norm,
            huber=huber,
        )
        self._gumbel, self._gumbel_clip, self._random = gumbel, gumbel_clip, random_actions

    def _value_rows(self, rows: Rows, x: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
        return self.with_random_actions(rows, q, self._random)

    def _value_loss(self, q: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        loss, slope = gumbel_loss(q - value, self._gumbel, self._gumbel_clip)
        return loss, slope.neg_()
