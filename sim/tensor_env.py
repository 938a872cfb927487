"""A world on an engine whose state lies in tensors, behind Gymnasium's `VectorEnv`.

The contract is that of the CPU engine (`sim.mujoco_env`): same seeds and draws, same episodes, same `info`, tensors in
place of NumPy arrays. What a host would be told at once is kept as flags on a GPU and looked at every `check_every`
steps: values that are not finite, actions that are not numbers, and what the engine itself has to report.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from gymnasium.vector import VectorEnv
from torch import Tensor

from robot_rl.sim import crash, interface
from robot_rl.sim.arrays import host
from robot_rl.sim.engine_options import TensorOptions
from robot_rl.sim.episodes_torch import BAD_ACTION, BAD_STATE, Episodes, TensorPhysics
from robot_rl.sim.eyes import Painters
from robot_rl.sim.interface import part
from robot_rl.sim.randomize import Randomize
from robot_rl.sim.world import World
from robot_rl.types import Array, EnvParts, Obs, StateDict

DEFAULTS = TensorOptions()


class TensorVectorEnv(VectorEnv):
    """N copies of a world; every array that it hands over is a tensor on `device`.

    Args:
        num_envs: N.
        seed: of resets, randomisation and noise; the draws are those of the CPU engine.
        world: the task.
        physics: the engine.
        device: of all tensors.
        options: randomisation, what `render()` draws, how often the error flags are looked at.
        render_mode: "rgb_array" or None.

    Attributes:
        io: names, shapes and units of what goes in and out.
        episodes: what lies on the device.
    """

    def __init__(
        self,
        num_envs: int,
        seed: int,
        *,
        world: World,
        physics: TensorPhysics,
        device: torch.device,
        options: TensorOptions = DEFAULTS,
        render_mode: str | None = None,
    ) -> None:
        self.num_envs, self.world, self.physics, self.device = num_envs, world, physics, device
        self._host = device.type == "cpu"
        self._check_every = 1 if self._host else options.check_every
        self.episodes = Episodes(
            world, physics, num_envs, seed, options=options.randomize or Randomize(), device=device
        )
        self._size, self._quality = options.render_size, options.render_quality
        self._camera = options.render_camera or (world.cameras[0] if world.cameras else None)
        self.render_mode, self._painters = render_mode, Painters(physics.model, self.episodes.offers.markers)
        self.io = interface.world_io(world, world.obs_names)
        interface.introduce(self, self.io, num_envs)
        self._started, self._unchecked = False, 0

    def reset(
        self, *, seed: int | Sequence[int] | None = None, options: dict[str, object] | None = None
    ) -> tuple[Obs, dict[str, Any]]:
        """Start new episodes.

        Args:
            seed: starts all streams anew; one int, or one per environment; None continues them.
            options: {"reset_mask": (N,) bool} resets these environments only.

        Returns:
            Observation and info with "success" (N,) bool, False.
        """
        episodes = self.episodes
        if seed is not None:
            episodes.streams.seed(seed)
            episodes.random.seed(seed)
        given = (options or {}).get("reset_mask")
        mask = episodes.everyone
        if given is not None and self._started:
            mask = torch.as_tensor(given, dtype=torch.bool, device=self.device)
        episodes.start(mask)
        self._started = True
        self._raise_flags()
        return self.observe(), {"success": torch.zeros_like(episodes.done)}

    def step(self, actions: Any) -> tuple[Obs, Any, Any, Any, dict[str, Any]]:
        """Advance all environments by one control step.

        Raises:
            ValueError: wrong shape; or NaN (found within `check_every` steps on a GPU).
            UnstableSimulationError: a value that is not finite (found within `check_every` steps on a GPU).
            RuntimeError: the engine reports trouble, such as full contact buffers.
        """
        if not self._started:
            raise RuntimeError("step() before the first reset(); call reset() once")
        episodes = self.episodes
        action = torch.as_tensor(actions, dtype=torch.float32, device=self.device)
        interface.check_shape(action.shape, self.num_envs, self.io)
        if self._host:  # nothing to wait for: refuse before anything moves
            action = torch.from_numpy(interface.check_actions(action.detach().numpy(), self.num_envs, self.io))
        episodes.wish.copy_(action.detach())
        episodes.step()
        self._unchecked += 1
        if self._unchecked >= self._check_every:
            self._raise_flags()
        info = {
            "final_obs": {"state": episodes.final.clone()},
            "_final_obs": episodes.done.clone(),
            "success": episodes.success.clone(),
            "executed": episodes.wish.clone(),
            "intervened": torch.zeros_like(episodes.done),
            "reward_terms": {name: term.clone() for name, term in episodes.paid.items()},
        }
        ends = episodes.terminated.clone(), episodes.truncated.clone()
        return self.observe(), episodes.reward.clone(), *ends, info

    def observe(self) -> Obs:
        """The current observation again, for example after `load_state_dict`."""
        if not self._started:
            raise RuntimeError("observe() before the first reset(); call reset() once")
        return {"state": self.episodes.state.clone()}

    def expert(self, obs: Obs | None = None) -> Array:
        """The world's scripted controller: (N, A) actions in [-1, 1], of the kind of the observation.

        Args:
            obs: an observation; None takes the environment's own state.
        """
        state = self.episodes.state if obs is None else obs["state"]
        with self.episodes.terms():
            action = self.episodes.offers.ask_expert(state)
        return action.float().clamp(-1.0, 1.0) if isinstance(action, Tensor) else np.clip(action, -1.0, 1.0)

    @property
    def parts(self) -> EnvParts:
        """Expert and tool of the world, exact states, and the device."""
        offers = self.episodes.offers
        tool = None if offers.tool is None else self._tool
        expert = None if offers.expert is None else self.expert
        return EnvParts(expert=expert, tool=tool, saves=True, device=self.device)

    def _tool(self) -> dict[str, np.ndarray]:
        assert self.episodes.offers.tool is not None
        with self.episodes.terms():
            found = self.episodes.offers.tool(self.episodes.view)
        return {key: np.array(host(value), float) for key, value in found.items()}

    def render(self) -> tuple[np.ndarray, ...] | None:
        """One (height, width, 3) uint8 frame per environment, drawn on the host, or None without render_mode."""
        if self.render_mode is None:
            return None
        task = {key: host(value) for key, value in self.episodes.task.items()}
        qpos, camera = host(self.physics.qpos).astype(np.float64), self._camera
        return tuple(self._painters.paint(qpos, task, (camera,), self._size, quality=self._quality)[camera])

    def close_extras(self, **kwargs: object) -> None:
        """Free the graphs and the renderer."""
        self.episodes.close()
        self.physics.close()
        self._painters.close()

    def state_dict(self) -> StateDict:
        """All that the next steps depend on, as NumPy arrays; `load_state_dict` continues from there."""
        episodes = self.episodes
        out: dict[str, object] = {key: host(value).copy() for key, value in self._tensors().items()}
        out["started"] = self._started
        out |= {f"task.{key}": host(value).copy() for key, value in episodes.task.items()}
        out |= {f"stream.{key}": value for key, value in episodes.streams.state_dict().items()}
        out |= {f"random.{key}": value for key, value in episodes.random.state_dict().items()}
        return out

    def load_state_dict(self, state: StateDict) -> None:
        """Continue as the saved environment would have.

        Raises:
            ValueError: saved from another world, engine, number of environments or other randomisation options.
        """
        episodes, kept = self.episodes, self._tensors()
        interface.check_saved(state, kept, self.world, self.num_envs)
        for key, target in kept.items():
            if not key.startswith("physics."):
                target.copy_(torch.as_tensor(state[key]))
        self.physics.load_state_dict({key: torch.as_tensor(value) for key, value in part(state, "physics.").items()})
        episodes.adopt({key: torch.as_tensor(value) for key, value in part(state, "task.").items()})
        episodes.streams.load_state_dict(part(state, "stream."))
        episodes.random.load_state_dict(part(state, "random."))
        if episodes.random.options.needs_models:
            self.physics.scale(episodes.everyone, episodes.random.factors)
        self._started = bool(state["started"])

    def _tensors(self) -> dict[str, Tensor]:
        e = self.episodes
        out = {"action": e.action, "previous_action": e.previous, "step": e.count, "state": e.state}
        return out | {f"physics.{key}": value for key, value in self.physics.state_dict().items()}

    def _raise_flags(self) -> None:
        """Look at the error flags; waits for the device."""
        self._unchecked = 0
        name, trouble = self.world.name, self.physics.trouble()
        if trouble is not None:
            raise RuntimeError(f"{name}: {trouble}")
        flags = host(self.episodes.flags)
        if not flags.any():
            return
        index = int(np.flatnonzero(flags)[0])
        bits = int(flags[index])
        self.episodes.flags.zero_()
        if bits & BAD_ACTION:
            raise ValueError(
                f"action of environment {index} is nan, expected numbers in [-1, 1]; the policy has diverged"
            )
        key = "state" if bits & BAD_STATE else "reward"
        raise crash.UnstableSimulationError(
            f"{name}: environment {index} diverged within the last {self._check_every} steps: its {key} is not finite. "
            "Take a smaller timestep, softer gains or narrower randomisation; the CPU engine (engine=mujoco) saves the "
            "step for repetition",
            index,
            key,
            None,
        )


def torch_device(name: str) -> torch.device:
    """The device of that name.

    Raises:
        ValueError: it is not there, or neither a CPU nor a CUDA device.
    """
    device = torch.device(name)
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise ValueError(f"device is '{name}', but torch sees no CUDA device here; use device=cpu")
        return torch.device("cuda", torch.cuda.current_device() if device.index is None else device.index)
    if device.type != "cpu":
        raise ValueError(f"device is '{name}', expected cpu or cuda")
    return device


def refuse(engine: str, num_envs: int, world: World, options: TensorOptions, render_mode: str | None) -> None:
    """Refuse what the world does not have, or only the CPU engine has.

    Raises:
        ValueError: says which, and what to do.
    """
    if options.num_threads is not None:
        raise ValueError(f"num_threads is {options.num_threads}; the {engine} engine has no thread pool, leave it null")
    knows = options.critic_state or options.teacher_state
    if options.cameras or not options.state or options.proprio is not None or knows:
        raise ValueError(
            f"cameras is {options.cameras}, state {options.state}, proprio {options.proprio}, critic_state "
            f"{options.critic_state} and teacher_state {options.teacher_state}: the {engine} engine observes the whole "
            "state only, since pictures would be drawn on the host; use the CPU engine (engine=mujoco) for these"
        )
    if options.look is not None:
        raise ValueError(f"look changes what cameras see, and the {engine} engine draws no pictures; leave it out")
    interface.check_options(options, (), num_envs, world, render_mode)
