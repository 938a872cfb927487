"""Imitation under goals that another camera shows: own pictures and a picture of the finished task in, chunks out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from robot_rl.policies.vla.imitation import PROPRIO, VlaImitation
from robot_rl.types import IOSpec
from robot_rl.types.options import Count, NotNegative, Positive, Rate, Share, Whole


class CrossViewImitation(VlaImitation):
    """`VlaImitation` whose goal is a picture by a camera that is not among its own.

    The log has both cameras. In training "image.<goal_camera>" of every row is replaced by what that camera saw at the
    end of the same episode (`data.goal_pictures`), and the sentence says nothing; when it acts, the environment puts
    there a picture of another scene in which the task is done (`loops.shown_goal`). Many tasks are learned from one
    log that needs neither sentences nor rewards.

    Source: Andrychowicz et al., Hindsight Experience Replay; Lynch et al., Learning Latent Plans from Play. The goal by
    another camera, of another scene, and the network (one set of convolutions for all views) are ours.
    """

    def __init__(
        self,
        io: IOSpec,
        *,
        seed: int = 0,
        device: str = "cpu",
        gamma: float = 0.99,
        goal_camera: str = "front",
        last: Share = 0.8,
        cameras: Sequence[str] | None = None,
        batch_size: Count = 64,
        head: str = "gaussian",
        head_options: dict[str, Any] | None = None,
        horizon_pred: Count = 10,
        horizon_exec: Count = 5,
        proprio: Sequence[str] = PROPRIO,
        backbone: dict[str, Any] | None = None,
        trunk: Sequence[Count] = (256, 256),
        lr: Rate = 1e-3,
        warmup: Whole = 50,
        decay_updates: Whole = 0,
        weight_decay: NotNegative = 1e-4,
        grad_norm: Positive = 1.0,
        average: Share = 0.99,
        metrics_every: Whole = 50,
    ) -> None:
        """Build the policy for `io`.

        Args:
            io: with "image.<goal_camera>" and "instruction".
            seed: see `VlaImitation`, as for everything that is not named below.
            device: torch device.
            gamma: part of every learner's signature.
            goal_camera: whose pictures are goals.
            last: share of goals that are the last picture of an episode; the rest is any later one.
            cameras: own pictures; None = all but the goal's, [] = none (own state and goal picture alone).
            batch_size: windows per update.
            head: "gaussian", "token" or "flow".
            head_options: of the head.
            horizon_pred: H actions in a chunk.
            horizon_exec: actions executed before the next decision.
            proprio: components of "state" that the policy sees.
            backbone: see `Recipe`; one set of weights reads all pictures, the goal's too.
            trunk: widths of the layers behind it.
            lr: step size.
            warmup: updates over which it rises.
            decay_updates: updates at which a cosine brings it to 0; 0 keeps it.
            weight_decay: of AdamW.
            grad_norm: gradients are cut at this norm.
            average: decay of the average of the weights that acts.
            metrics_every: metrics are computed in every n-th update.

        Raises:
            ValueError: the goal's camera is missing, or is among the policy's own.
        """
        there = [key.removeprefix("image.") for key in io.obs if key.startswith("image.")]
        if goal_camera not in there:
            raise ValueError(
                f"the environment has no pictures of the goal's camera '{goal_camera}'; it has {there}: add it to "
                "env.cameras"
            )
        own = tuple(name for name in there if name != goal_camera) if cameras is None else tuple(cameras)
        if goal_camera in own:
            raise ValueError(f"'{goal_camera}' shows the goal and cannot show the scene; cameras are {list(own)}")
        super().__init__(
            io, seed=seed, device=device, gamma=gamma, batch_size=batch_size, head=head, head_options=head_options,
            horizon_pred=horizon_pred, horizon_exec=horizon_exec, cameras=(*own, goal_camera), proprio=proprio,
            backbone=backbone, trunk=trunk, lr=lr, warmup=warmup, decay_updates=decay_updates,
            weight_decay=weight_decay, grad_norm=grad_norm, average=average, metrics_every=metrics_every,
        )  # fmt: skip
        self.reads = ("episode", "step")
        self.goal_pictures = {"camera": goal_camera, "last": last}
