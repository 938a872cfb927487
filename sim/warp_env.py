"""The GPU engine: any world, N copies on MuJoCo Warp, everything a batched tensor on the device.

The contract is that of the CPU engine (`sim.mujoco_env`): same seeds and draws, same episodes, same `info`, tensors in
place of NumPy arrays. Nothing is copied to the host in a step. On a GPU the step is a row of CUDA graphs: terms before
the physics, the physics, terms after it. Without a GPU it runs on Warp's CPU device, for tests and to try models out.
"""

from __future__ import annotations

from robot_rl.sim.engine_options import WarpOptions
from robot_rl.sim.randomize import Randomize
from robot_rl.sim.scene import check_scene
from robot_rl.sim.tensor_env import TensorVectorEnv, refuse, torch_device
from robot_rl.sim.world import World

DEFAULTS = WarpOptions()


def make(
    num_envs: int,
    seed: int,
    device: str = "cpu",
    *,
    world: World,
    options: WarpOptions = DEFAULTS,
    render_mode: str | None = None,
) -> TensorVectorEnv:
    """Make N copies of a world; the arguments of the CPU engine, and a few options of its own.

    Args:
        num_envs: N.
        seed: of resets, randomisation and noise; the draws are those of the CPU engine.
        device: "cuda", "cuda:1" ... or "cpu", where observations, rewards and the simulation live.
        world: the task.
        options: randomisation, room for contacts, what `render()` draws; without threads and pictures.
        render_mode: "rgb_array" or None.

    Raises:
        ImportError: mujoco-warp or warp-lang is not installed; says how to install them.
        ValueError: an option that this engine does not have, or a device that is not there.
    """
    from robot_rl.sim.warp_physics import WarpPhysics  # it needs the extra; this signature is read without

    randomize, where = options.randomize or Randomize(), torch_device(device)
    refuse("Warp", num_envs, world, options, render_mode)
    physics = WarpPhysics(
        world.mjcf(),
        num_envs,
        world.control_hz,
        device=where,
        max_contacts=options.max_contacts,
        max_constraints=options.max_constraints,
        scaled=tuple(randomize.factor_ranges),
        latency=randomize.latency is not None,
    )
    check_scene(world, physics.model)
    return TensorVectorEnv(
        num_envs, seed, world=world, physics=physics, device=where, options=options, render_mode=render_mode
    )
