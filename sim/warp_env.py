"""The GPU engine: any world, N copies on MuJoCo Warp, everything a batched tensor on the device.

The contract is that of the CPU engine (`sim.mujoco_env`): same seeds and draws, same episodes, same `info`, tensors in
place of NumPy arrays. Nothing is copied to the host in a step. On a GPU the step is a row of CUDA graphs: terms before
the physics, the physics, terms after it. Without a GPU it runs on Warp's CPU device, for tests and to try models out.
"""

from __future__ import annotations

from collections.abc import Sequence

from robot_rl.sim.randomize import SCALED, Randomize
from robot_rl.sim.scene import check_scene
from robot_rl.sim.tensor_env import TensorVectorEnv, refuse, torch_device
from robot_rl.sim.world import World
from robot_rl.types.options import Count, Whole


def make(
    num_envs: int,
    seed: int,
    device: str = "cpu",
    *,
    world: World,
    num_threads: Count | None = None,
    cameras: Sequence[str] = (),
    camera_size: Sequence[Count] = (84, 84),
    camera_quality: str = "full",
    camera_every: Count = 1,
    state: bool = True,
    randomize: Randomize | None = None,
    render_mode: str | None = None,
    render_size: Sequence[Count] = (480, 640),
    render_camera: str | None = None,
    crash_dir: str | None = None,
    max_contacts: Count | None = None,
    max_constraints: Count | None = None,
    check_every: Whole = 100,
) -> TensorVectorEnv:
    """Make N copies of a world; the arguments of the CPU engine, and a few of its own.

    Args:
        num_envs: N.
        seed: of resets, randomisation and noise; the draws are those of the CPU engine.
        device: "cuda", "cuda:1" ... or "cpu", where observations, rewards and the simulation live.
        world: the task.
        num_threads: of the CPU engine; here it must stay None.
        cameras: of the CPU engine; here it must stay empty (pictures would leave the device).
        camera_size: of the CPU engine.
        camera_quality: of the CPU engine.
        camera_every: of the CPU engine.
        state: must be True.
        randomize: domain randomisation and observation noise. Factors
            that change the model `per: episode` cost one look at the device per step; `per: environment` is free.
        render_mode: "rgb_array" or None.
        render_size: (height, width) of `render()`.
        render_camera: camera of `render()`; None takes the world's first camera, or a free one.
        crash_dir: of the CPU engine; a diverged copy is reported here without a file.
        max_contacts: room for contacts per copy (shared); None takes mujoco_warp's guess.
        max_constraints: room for constraint rows per copy; None takes twice mujoco_warp's guess.
        check_every: steps between looks at the error flags on a GPU; on the CPU device every step is looked at.

    Raises:
        ImportError: mujoco-warp or warp-lang is not installed; says how to install them.
        ValueError: an option that this engine does not have, or a device that is not there.
    """
    from robot_rl.sim.warp_physics import WarpPhysics  # it needs the extra; this signature is read without

    options = randomize or Randomize()
    where = torch_device(device)
    refuse(
        "Warp",
        num_envs,
        world,
        num_threads=num_threads,
        cameras=cameras,
        state=state,
        render_mode=render_mode,
        render_camera=render_camera,
        check_every=check_every,
    )
    physics = WarpPhysics(
        world.mjcf(),
        num_envs,
        world.control_hz,
        device=where,
        max_contacts=max_contacts,
        max_constraints=max_constraints,
        scaled=tuple(key for key in SCALED if getattr(options, key) is not None),
        latency=options.latency is not None,
    )
    check_scene(world, physics.model)
    return TensorVectorEnv(
        num_envs,
        seed,
        world=world,
        physics=physics,
        device=where,
        randomize=options,
        render_mode=render_mode,
        render_size=render_size,
        render_camera=render_camera,
        check_every=check_every,
    )
