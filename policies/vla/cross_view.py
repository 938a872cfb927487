"""Imitation under goals that another camera shows: own pictures and a picture of the finished task in, chunks out."""

from __future__ import annotations

from pydantic import field_validator

from robot_rl.policies.vla.imitation import ChunkCloning, VlaImitationOptions
from robot_rl.types import IOSpec, Needs
from robot_rl.types.options import Share


class CrossViewOptions(VlaImitationOptions):
    """Of imitation under goals that another camera shows; `cameras` are the policy's own."""

    goal_camera: str = "front"
    """Whose pictures are goals."""
    last: Share = 0.8
    """Share of goals that are the last picture of an episode; the rest is any later one."""

    @field_validator("weights")
    @classmethod
    def check_weights(cls, weights: str) -> str:
        """Refuse weights: a goal that was reached is a good one."""
        if weights != "none":
            raise ValueError("expected none: every chunk leads to the picture that was seen behind it")
        return weights


class CrossViewImitation(ChunkCloning[CrossViewOptions]):
    """`VlaImitation` whose goal is a picture by a camera that is not among its own.

    The log has both cameras. In training "image.<goal_camera>" of every row is replaced by what that camera saw at the
    end of the same episode (`data.goal_pictures`), and the sentence says nothing; when it acts, the environment puts
    there a picture of another scene in which the task is done (`loops.shown_goal`). Many tasks are learned from one
    log that needs neither sentences nor rewards.

    Source: Andrychowicz et al., Hindsight Experience Replay; Lynch et al., Learning Latent Plans from Play. The goal by
    another camera, of another scene, and the network (one set of convolutions for all views) are ours.
    """

    def __init__(self, options: CrossViewOptions, io: IOSpec, *, seed: int = 0, device: str = "cpu") -> None:
        """Build the policy for `io`.

        Args:
            options: of the method.
            io: with "image.<goal_camera>" and "instruction".
            seed: of weights and draws.
            device: torch device.

        Raises:
            ValueError: the goal's camera is missing, or is among the policy's own.
        """
        goal_camera, cameras = options.goal_camera, options.cameras
        there = [key.removeprefix("image.") for key in io.obs if key.startswith("image.")]
        if goal_camera not in there:
            raise ValueError(
                f"the environment has no pictures of the goal's camera '{goal_camera}'; it has {there}: add it to "
                "env.cameras"
            )
        own = tuple(name for name in there if name != goal_camera) if cameras is None else tuple(cameras)
        if goal_camera in own:
            raise ValueError(f"'{goal_camera}' shows the goal and cannot show the scene; cameras are {list(own)}")
        seen = options.model_copy(update={"cameras": (*own, goal_camera)})
        super().__init__(seen, io, seed=seed, device=device)

    @classmethod
    def needs(cls, options: CrossViewOptions, io: IOSpec) -> Needs:
        """Windows with a picture of a goal each: a log without rewards will do."""
        pictures = {"camera": options.goal_camera, "last": options.last}
        return Needs(
            rows=options.batch_size,
            window=options.horizon_pred,
            extras=("episode", "step"),
            rewardless=True,
            goal_pictures=pictures,
        )
