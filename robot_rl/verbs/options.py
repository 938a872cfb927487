"""What every verb may be told, and several of them: names, types, ranges, defaults and a line each, stated once.

What one verb takes besides, its own file says (`robot_rl.verbs.train.TrainOptions`). The YAML of a verb holds the
groups that it chooses from, and its page of help.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, model_validator
from typing_extensions import Self

from robot_rl.data.bounds import check_ends
from robot_rl.types import Options
from robot_rl.types.options import Bound, Count, Device, Meaning, Whole

Folders = Annotated[str | tuple[str, ...], Meaning("a folder, or a list [folder,folder]")]


class VerbOptions(Options):
    """What every verb may be told."""

    model_config = ConfigDict(coerce_numbers_to_str=True)  # name=5 is a name

    name: str | None = None
    """Last part of the run folder's name."""
    output: str = "runs"
    """Where run folders go."""
    trust: bool | Literal["changed"] = False
    """true: run code that a run folder names, with your rights; changed: as its file is today."""
    debug: bool = False
    """Show tracebacks of errors."""


class Machine(VerbOptions):
    """Where a verb computes."""

    seed: Whole = 0
    """Of everything random."""
    device: Device = "cpu"
    """Where networks live."""
    threads: Whole = 1
    """CPU threads of torch (one is fastest for small networks); 0 = one per core."""


class Env(Options):
    """A task of Gymnasium, or one for a robot of the user's own."""

    id: str | None = None
    """Gymnasium id, for env=gym."""
    robot: str | None = None
    """Card of the robot, for env=reach, pick (with a gripper), walk, terrain (legs) and ros2_world: a name or a path;
    robot-rl robot new writes one."""


class Pictures(Options):
    """What a policy sees of a world of ours: pictures, and what its robot feels of itself."""

    cameras: str | tuple[str, ...] | None = None
    """Learn from pictures of these cameras, e.g. [front,side], with goals and objects hidden; own: those that the world
    takes for policies; null: from states."""
    proprio: str | tuple[str, ...] | None = None
    """Beside pictures: what the robot feels of itself, e.g. [tip,opening]; null, own: all of it."""
    image_size: Count = 64
    """Height and width of these pictures in pixels; each is drawn at twice that, and averaged."""
    critic_state: bool = False
    """Critics learn from all that the simulator knows, goals and objects behind pictures included; what acts does not
    see it (docs/asymmetric.md)."""


class Resume(Options):
    """A run that goes on."""

    resume: str | None = None
    """A run folder: continue it."""


class ActionMeaning(Options):
    """What a person says of a log's actions where the log does not tell (docs/data.md)."""

    action: Literal["normalised"] | None = None
    """normalised: -1 and +1 of the log are the bounds of the robot."""
    action_low: Bound | None = None
    """Lower bound of the log's actions, a number or a list."""
    action_high: Bound | None = None
    """Upper bound."""

    @model_validator(mode="after")
    def _both(self) -> Self:
        check_ends(self.action_low, self.action_high)
        return self


class SubjectOptions(Machine, Env, ActionMeaning):
    """What is told of a policy that acts in an environment."""
