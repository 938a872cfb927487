"""Options of the engines that step our worlds, stated once: what one of them does not have, it refuses aloud."""

from __future__ import annotations

from typing import Literal

from robot_rl.sim.look import Look
from robot_rl.sim.randomize import Randomize
from robot_rl.types.options import Count, Options, Pixels


class EngineOptions(Options):
    """Of every engine; those without pictures or threads take the defaults of these alone."""

    num_threads: Count | None = None
    """Threads of MuJoCo's pool; null takes the processors available to this process."""
    cameras: tuple[str, ...] | str = ()
    """Names of the world's cameras to observe as "image.<name>"; "own" for those that it takes for policies."""
    camera_size: Pixels = (84, 84)
    """(height, width) of these images in pixels."""
    camera_quality: Literal["full", "fast"] = "full"
    """Of these images; fast: no shadows, reflections and multisampling."""
    camera_every: Count = 1
    """Control steps between two pictures of an episode; in between the last one is repeated, as by a camera that is
    slower than the controller (and as cheap)."""
    supersample: Count = 1
    """Each pixel of these images is the mean of so many times so many drawn ones."""
    state: bool = True
    """Whether to observe "state"."""
    proprio: tuple[str, ...] | str | None = None
    """What of the state is observed: names of what the robot feels of itself, or "own" for all of that; goals and
    objects are hidden, and "tool" (4,) tells its tip [m] and turn [rad]. Null observes the whole state."""
    critic_state: bool = False
    """Whether to observe more as "privileged", for critics alone, which no robot needs: the whole state without noise,
    what the world declares beside it, and what `randomize` has drawn."""
    teacher_state: bool = False
    """Whether "state" is all of that: for a teacher (policy=online/distill), which no robot can run."""
    randomize: Randomize | None = None
    """Domain randomisation and observation noise."""
    look: Look | None = None
    """Another look of reach, pick or insert: colours, lights, cameras and sizes, drawn by a seed."""
    render_size: Pixels = (480, 640)
    """(height, width) of `render()`."""
    render_quality: Literal["full", "fast"] = "full"
    """Of `render()`; fast: as of `camera_quality`."""
    render_camera: str | None = None
    """Camera of `render()`; null takes the world's first camera, or a free one."""
    crash_dir: str | None = None
    """Folder for the saved state of a diverged simulation; null is the system's temporary folder."""


class TensorOptions(EngineOptions):
    """Of engines whose states are tensors on a device: without cameras, and a diverged copy leaves no file."""

    check_every: Count = 100
    """Steps between looks at the error flags on a GPU; on the CPU device every step is looked at."""


class WarpOptions(TensorOptions):
    """Of MuJoCo Warp. Factors of `randomize` that change the model per episode cost one look at the device per step;
    per environment they are free."""

    max_contacts: Count | None = None
    """Room for contacts per copy (shared); null takes mujoco_warp's guess."""
    max_constraints: Count | None = None
    """Room for constraint rows per copy; null takes twice mujoco_warp's guess."""
