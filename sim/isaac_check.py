"""What a user with Isaac Gym or Isaac Lab runs to see whether it works here: `robot-rl doctor isaac`.

Isaac Gym: the interpreter starts and imports it; the world is built in it and keeps the contract (`sim.check`); its
first observations are those of the CPU engine for the same seed; and the scripted expert of the world does about as
well on both. Isaac Lab: the task named by `id` keeps the contract.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from robot_rl import child
from robot_rl.sim import isaac_env, isaac_lab_env, mujoco_env
from robot_rl.sim.arrays import host
from robot_rl.sim.check import check
from robot_rl.sim.world import World

_VERSION = "import sys, isaacgym, torch; print(sys.version.split()[0], torch.__version__, torch.cuda.is_available())"
_KNOWN = "after load_state_dict"
"""What PhysX keeps beside positions and velocities cannot be saved: no fault of the installation."""
_CLOSE = 0.25
"""Expert returns of two physics engines may differ by this share of the larger one."""


def diagnose(
    *, world: Callable[[], World], num_envs: int = 16, device: str | None = None, id: str | None = None
) -> tuple[str, bool]:
    """Look at this machine.

    Args:
        world: makes one to build in Isaac Gym.
        num_envs: copies.
        device: "cuda" or "cpu"; None takes CUDA where torch sees one.
        id: a task of Isaac Lab to check, or None.

    Returns:
        The text to print, and whether all that was tried works (a missing Isaac is no success).
    """
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    lines = [f"Isaac Gym (world={world().name}, {num_envs} copies on {device})"]
    gym = _part(lines, lambda: _gym(world, num_envs, device))
    lines += ["", f"Isaac Lab ({id or 'no id= given'})"]
    lab = _part(lines, lambda: _lab(id, num_envs, device))
    return "\n".join(lines), gym and lab if id else gym


def _part(lines: list[str], run: Callable[[], tuple[list[str], bool]]) -> bool:
    try:
        found, healthy = run()
    except Exception as error:  # whatever breaks in a vendor's package is what the user wants to read
        found, healthy = [f"{type(error).__name__}: {error}"], False
    lines += ["  " + line for text in found for line in text.splitlines()]
    return healthy


def _gym(world: Callable[[], World], num_envs: int, device: str) -> tuple[list[str], bool]:
    python = isaac_env.interpreter()
    probe = subprocess.run(child.program(_VERSION, python), capture_output=True, text=True, timeout=300)
    if probe.returncode:
        return [f"{python} does not import isaacgym:", probe.stderr.strip()[-500:]], False
    lines = [f"{python}: python, torch, CUDA: {probe.stdout.strip().splitlines()[-1]}"]
    ours = isaac_env.make(num_envs, 0, device, world=world())
    try:
        found, healthy = compare(ours, mujoco_env.make(num_envs, 0, world=world()))
    finally:
        ours.close()
    return lines + found, healthy


def compare(ours: Any, reference: Any) -> tuple[list[str], bool]:
    """An engine against the CPU engine: the contract, first observations, and the expert's returns over one episode.

    Args:
        ours: environment on the engine under test.
        reference: the same world and number of copies on `sim.mujoco_env`.
    """
    episode = int(reference.world.episode_steps)
    findings = check(ours, steps=episode + 10)
    bad = [finding for finding in findings if not finding.startswith(_KNOWN)]
    lines = [f"contract: {finding}" for finding in findings] or ["contract: kept"]
    first = np.abs(host(ours.reset(seed=5)[0]["state"]) - reference.reset(seed=5)[0]["state"]).max()
    lines.append(f"first observations: at most {first:.2g} from the CPU engine's")
    mine, his = (_expert_return(env, episode) for env in (ours, reference))
    close = abs(mine - his) <= _CLOSE * max(abs(mine), abs(his))
    lines.append(f"expert's return: {mine:.4g} here, {his:.4g} on the CPU engine ({'close' if close else 'not close'})")
    return lines, not bad and bool(first < 1e-3) and close


def _expert_return(env: Any, steps: int) -> float:
    obs, _ = env.reset(seed=6)
    total = np.zeros(env.num_envs)
    alive = np.ones(env.num_envs, bool)
    for _ in range(steps):
        obs, reward, terminated, truncated, _ = env.step(env.expert(obs))
        total += np.where(alive, host(reward), 0.0)
        alive &= ~(host(terminated) | host(truncated))
    return float(total.mean())


def _lab(id: str | None, num_envs: int, device: str) -> tuple[list[str], bool]:
    if id is None:
        isaac_lab_env.require_lab("isaaclab")
        return ["importable; give id=Isaac-Cartpole-v0 to check a task"], True
    env = isaac_lab_env.make(num_envs, 0, device, id=id)
    try:
        findings = check(env, steps=int(env.env.unwrapped.max_episode_length) + 10)
    finally:
        env.close()
    bad = [finding for finding in findings if not finding.startswith(("seeding:", _KNOWN))]
    return [f"contract: {finding}" for finding in findings] or ["contract: kept"], not bad
