"""The card of a policy that others trained: what its numbers mean, as data beside its weights."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from robot_rl.types.options import Meaning, Options, Positive

FILE = "io.yaml"
"""Name of such a card, in the folder of the weights."""
TermName = Literal[
    "angular_velocity",
    "gravity",
    "velocity_command",
    "joint_positions",
    "joint_velocities",
    "last_action",
    "gait_phase",
]
"""What `robot_rl.legs.observe` computes."""
Scale = Annotated[float | tuple[float, ...], Meaning("a number, or a list of them")]


class Term(Options):
    """One part of an observation vector."""

    term: TermName
    """Which one, see `robot_rl.legs.observe`."""
    scale: Scale = 1.0
    """The policy reads the term times this, one number or one per component."""
    period: Positive | None = None
    """Of the gait [s]; gait_phase alone has one."""

    @model_validator(mode="after")
    def _own_period(self) -> Term:
        if (self.term == "gait_phase") != (self.period is not None):
            raise ValueError(f"term {self.term}: gait_phase needs a period, and no other term has one")
        return self


class PolicyCard(Options):
    """What a legged policy sees and does."""

    format: Literal["torchscript", "onnx"]
    """Of its weights: a TorchScript file is a program, and runs only where it is trusted; an ONNX graph is data."""
    weights: str = "policy.pt"
    """File beside this one."""
    sha256: str
    """Of that file."""
    source: str = ""
    """What the card was made from."""
    control_hz: Positive
    """Decisions per second."""
    joints: Annotated[tuple[str, ...], Field(min_length=1)]
    """In the order of its actions and observations."""
    default: tuple[float, ...]
    """Positions of the joints that action 0 stands for [rad]."""
    kp: tuple[Positive, ...]
    """Gains that it was trained with [N m/rad]; the robot's card has to say the same."""
    kd: tuple[Positive, ...]
    """Their damping [N m s/rad]."""
    action_scale: Scale
    """Target = default + scale * action [rad]."""
    action_clip: Positive = 100.0
    """Actions beyond it are clipped; what legged_gym clips to."""
    observation: Annotated[tuple[Term, ...], Field(min_length=1)]
    """Its parts in order."""
    largest_command: tuple[Positive, Positive, Positive] | None = None
    """Of forward and sideways speed [m/s] and turning [rad/s]; larger ones are clipped; null = not known."""

    @model_validator(mode="after")
    def _lengths(self) -> PolicyCard:
        count = len(self.joints)
        for key in ("default", "kp", "kd"):
            values: tuple[float, ...] = {"default": self.default, "kp": self.kp, "kd": self.kd}[key]
            if len(values) != count:
                raise ValueError(f"{key} has {len(values)} entries, expected {count}: one per joint")
        if isinstance(self.action_scale, tuple) and len(self.action_scale) != count:
            raise ValueError(f"action_scale has {len(self.action_scale)} entries, expected 1 or {count}")
        twice = sorted({name for name in self.joints if self.joints.count(name) > 1})
        if twice:
            raise ValueError(f"joints: the name {twice[0]} occurs more than once, expected unique names")
        sizes = self.sizes()
        for term, size in zip(self.observation, sizes):
            if isinstance(term.scale, tuple) and len(term.scale) != size:
                raise ValueError(f"scale of {term.term} has {len(term.scale)} entries, expected 1 or {size}")
        return self

    def sizes(self) -> list[int]:
        """Length of each part of the observation."""
        count = len(self.joints)
        return [
            count if term.term in ("joint_positions", "joint_velocities", "last_action")
            else 2 if term.term == "gait_phase" else 3
            for term in self.observation
        ]  # fmt: skip
