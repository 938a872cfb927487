"""Environment steps per second on a GPU, against other GPU environments; the learners' part is `bench.gpu_learn`.

    robot-rl bench gpu                                            everything, 4096 and 16384 copies
    robot-rl bench gpu +worlds=[quadruped] +copies=[4096]         a part of it
    robot-rl bench gpu +parts=[environment] quick=true            without a GPU: small, on Warp's CPU device

A step is one decision of one copy: terms, physics, rewards, resets. Actions are random and lie on the device. The
device is waited for once at the end of each round, so that what is queued and not done does not count. Peers step
robots of the same class at their own control rate and physics step; physics steps per second are given beside.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import torch

from benchmarks.env import load

WORLDS = {
    "quadruped": "robot_rl.sim.worlds.quadruped.Quadruped",
    "pick": "robot_rl.sim.worlds.pick.Pick",
    "reach": "robot_rl.sim.worlds.reach.Reach",
}
PLAYGROUND = {"quadruped": "Go1JoystickFlatTerrain", "pick": "PandaPickCube"}
MJLAB = {"quadruped": "Mjlab-Velocity-Flat-Unitree-Go1"}
PARTS = {"environment": "benchmarks.gpu.environments", "learner": "benchmarks.gpu_learn.run"}
"""Name of a part -> function (device=, quick=, **options) -> {"rows": by name or as a list, ...}."""


def run(
    quick: bool = False,
    *,
    device: str | None = None,
    parts: Sequence[str] = tuple(PARTS),
    worlds: Sequence[str] = ("quadruped", "pick"),
    copies: Sequence[int] | None = None,
    cpu: bool = True,
) -> dict[str, Any]:
    """Measure.

    Args:
        quick: fewer and shorter rounds.
        device: "cuda" or "cpu"; None takes CUDA where torch sees one.
        parts: of `PARTS`.
        worlds: of `WORLDS`, for the environment part.
        copies: numbers of copies; None is 4096 and 16384 on a GPU, 16 and 64 on the CPU.
        cpu: whether to measure the CPU engine beside.

    Returns:
        {"rows": {name: {column: value}}, "device": name}. A part, engine or peer that cannot run here has
        {"missing": reason}.

    Raises:
        ValueError: an unknown part or world.
    """
    for kind, given, known in (("part", parts, PARTS), ("world", worlds, WORLDS)):
        unknown = [name for name in given if name not in known]
        if unknown:
            raise ValueError(f"there is no {kind} {unknown[0]!r}, expected some of {sorted(known)}")
    where = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    result: dict[str, Any] = {"rows": {}}
    for part in parts:
        options: dict[str, Any] = {"device": str(where), "quick": quick}
        if part == "environment":
            options |= {"worlds": worlds, "copies": copies, "cpu": cpu}
        try:
            found = load(PARTS[part])(**options)
        except ImportError as error:
            result["rows"][part] = {"missing": _short(error)}
            continue
        result["rows"] |= _by_name(found.pop("rows"))
        result |= found
    result["device"] = torch.cuda.get_device_name(where) if where.type == "cuda" else "cpu"
    return result


def _by_name(rows: dict[str, Any] | list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Rows of a part by name; a list is named by its columns of text."""
    if isinstance(rows, dict):
        return rows
    named: dict[str, dict[str, Any]] = {}
    for row in rows:
        words = [str(row[key]) for key in ("what", "contestant") if key in row]
        named[" ".join(words) or f"row {len(named)}"] = {
            key: value for key, value in row.items() if key not in ("what", "contestant")
        }
    return named


def environments(
    *,
    device: str,
    quick: bool = False,
    worlds: Sequence[str] = ("quadruped", "pick"),
    copies: Sequence[int] | None = None,
    cpu: bool = True,
) -> dict[str, Any]:
    """Rows "<who> <world> <N>": steps and physics steps per second, medians over the rounds."""
    on_gpu = torch.device(device).type == "cuda"
    counts = tuple(copies) if copies is not None else (4096, 16384) if on_gpu else (16, 64)
    rounds, seconds = (3, 0.5) if quick else (7, 2.0)
    rows: dict[str, dict[str, Any]] = {}
    makers: dict[str, Callable[[str, int, str], _Stepped]] = {"warp": _warp}
    if cpu:
        makers["mujoco (cpu)"] = _mujoco
    if on_gpu:  # peers on a CPU would measure their compilers
        makers |= {"mjlab": _mjlab, "mujoco_playground": _playground}
    for world in worlds:
        for count in counts:
            for name, maker in makers.items():
                key = f"{name} {world} {count}"
                try:
                    stepped = maker(world, count, device)
                except ImportError as error:
                    rows[key] = {"missing": _short(error)}
                    continue
                rate = _rate(stepped, rounds, seconds)
                stepped.close()
                rows[key] = {"steps_per_s": rate * count, "physics_per_s": rate * count * stepped.substeps}
    return {"rows": rows}


class _Stepped:
    """Something that steps N copies once and can be waited for."""

    def __init__(
        self, step: Callable[[], Any], wait: Callable[[], Any], close: Callable[[], Any], substeps: int
    ) -> None:
        self.step, self.wait, self.close, self.substeps = step, wait, close, substeps


def _rate(stepped: _Stepped, rounds: int, seconds: float) -> float:
    """Calls per second: median over rounds of about `seconds`, kernels and graphs made before."""
    for _ in range(5):
        stepped.step()
    stepped.wait()
    start = time.perf_counter()
    for _ in range(3):
        stepped.step()
    stepped.wait()
    calls = max(3, int(3 * seconds / (time.perf_counter() - start)))
    rates = []
    for _ in range(rounds):
        start = time.perf_counter()
        for _ in range(calls):
            stepped.step()
        stepped.wait()
        rates.append(calls / (time.perf_counter() - start))
    return median(rates)


def _warp(world: str, count: int, device: str) -> _Stepped:
    env = load("robot_rl.sim.warp_env.make")(count, 0, device, world=load(WORLDS[world])())
    env.reset()
    _spread(env)
    generator = torch.Generator(device).manual_seed(0)
    actions = [2 * torch.rand((count, env.io.action_dim), device=device, generator=generator) - 1 for _ in range(8)]
    turn = iter(range(1 << 62))
    wait = torch.cuda.synchronize if torch.device(device).type == "cuda" else _nothing
    return _Stepped(lambda: env.step(actions[next(turn) % 8]), wait, env.close, env.physics.substeps)


def _mujoco(world: str, count: int, device: str) -> _Stepped:
    env = load("robot_rl.sim.mujoco_env.make")(count, 0, world=load(WORLDS[world])())
    env.reset()
    _spread(env)
    actions = 2 * torch.rand((8, count, env.io.action_dim), generator=torch.Generator().manual_seed(0)).numpy() - 1
    turn = iter(range(1 << 62))
    return _Stepped(lambda: env.step(actions[next(turn) % 8]), _nothing, env.close, env.physics.substeps)


def _spread(env: Any) -> None:
    """Episode clocks at equal distances, so that resets come evenly."""
    state, count, episode = env.state_dict(), env.num_envs, env.world.episode_steps
    state["step"] = (torch.arange(count) * episode // count).numpy()
    env.load_state_dict(state)


def _mjlab(world: str, count: int, device: str) -> _Stepped:
    """mjlab's velocity task of a quadruped: the same physics engine below another environment."""
    if world not in MJLAB:
        raise ImportError(f"mjlab has no task like '{world}'")
    importlib.import_module("mjlab.tasks")  # registers the tasks
    config = importlib.import_module("mjlab.tasks.registry").load_env_cfg(MJLAB[world])
    config.scene.num_envs = count
    env = importlib.import_module("mjlab.envs").ManagerBasedRlEnv(cfg=config, device=device)
    env.reset()
    actions = [2 * torch.rand((count, env.action_manager.total_action_dim), device=device) - 1 for _ in range(8)]
    turn = iter(range(1 << 62))
    substeps = int(config.decimation)
    return _Stepped(lambda: env.step(actions[next(turn) % 8]), torch.cuda.synchronize, env.close, substeps)


def _playground(world: str, count: int, device: str) -> _Stepped:
    """mujoco_playground's task of the same class, jitted and vectorised by JAX."""
    if world not in PLAYGROUND:
        raise ImportError(f"mujoco_playground has no task like '{world}'")
    registry = importlib.import_module("mujoco_playground").registry
    jax = importlib.import_module("jax")
    env = registry.load(PLAYGROUND[world])
    keys = jax.random.split(jax.random.PRNGKey(0), count)
    state = [jax.jit(jax.vmap(env.reset))(keys)]
    step = jax.jit(jax.vmap(env.step))
    actions = jax.random.uniform(jax.random.PRNGKey(1), (count, env.action_size), minval=-1.0, maxval=1.0)

    def once() -> None:
        state[0] = step(state[0], actions)

    return _Stepped(once, lambda: jax.block_until_ready(state[0].reward), _nothing, int(env.n_substeps))


def _nothing() -> None:
    """A CPU has done its work when the call returns."""


def _short(error: BaseException) -> str:
    return str(error).splitlines()[0][:120]
