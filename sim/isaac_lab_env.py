"""Isaac Lab tasks through their Gymnasium interface, in the same process: tensors pass by reference, nothing is copied.

Isaac Lab resets ended environments inside `step` and returns the observation after it. The true successor, which
learners bootstrap from, is observed in the moment before: the environment's `_reset_idx` is called through a function
of ours that first looks.

Source: Isaac Lab, `isaaclab.envs.DirectRLEnv.step` and `ManagerBasedRLEnv.step`, `isaaclab.app.AppLauncher`,
`isaaclab_tasks.utils.parse_env_cfg`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

import gymnasium
import torch
from gymnasium.vector import VectorEnv
from torch import Tensor

from robot_rl.extras import require_foreign
from robot_rl.sim import interface
from robot_rl.types import EnvParts, IOSpec, Obs, StateDict
from robot_rl.types.options import Positive

_APPS: list[object] = []
"""The running Omniverse application: one per process, and it must outlive every environment."""


def require_lab(module: str) -> ModuleType:
    """A module of Isaac Lab.

    Raises:
        ImportError: Isaac Lab is not installed in this interpreter; says how to install it.
    """
    return require_foreign(
        module,
        "Isaac Lab comes from NVIDIA's package index and fixes its own Python and torch: give it an environment of its "
        "own and install robot_rl there:\n"
        '  pip install "isaaclab[isaacsim,all]" --extra-index-url https://pypi.nvidia.com && pip install robot_rl\n'
        "and check it with: robot-rl doctor isaac id=Isaac-Cartpole-v0",
    )


def make(
    num_envs: int,
    seed: int,
    device: str = "cuda",
    *,
    id: str,
    action_scale: Positive = 1.0,
    group: str = "policy",
    overrides: Mapping[str, object] | None = None,
    render_mode: str | None = None,
) -> IsaacLabVectorEnv:
    """Make N copies of a task of Isaac Lab.

    Args:
        num_envs: N.
        seed: of the simulation, as Isaac Lab's configuration takes it.
        device: "cuda", "cuda:1" ... or "cpu".
        id: Gymnasium id, such as "Isaac-Velocity-Flat-Anymal-C-v0".
        action_scale: what an action of 1 means to the task.
        group: group of observations that becomes "state".
        overrides: attributes of the task's configuration by dotted path, such as {"episode_length_s": 10.0}.
        render_mode: "rgb_array" or None.

    Raises:
        ImportError: Isaac Lab is not installed in this interpreter; says how to install it.
        ValueError: no such id, or observations of another kind than one vector per environment.
    """
    launcher = require_lab("isaaclab.app")
    if not _APPS:
        options: dict[str, object] = {"headless": True, "device": device, "enable_cameras": render_mode is not None}
        _APPS.append(launcher.AppLauncher(options))
    require_lab("isaaclab_tasks")  # registers the ids
    parse = require_lab("isaaclab_tasks.utils").parse_env_cfg
    if id not in gymnasium.registry:
        known = sorted(name for name in gymnasium.registry if str(name).startswith("Isaac-"))
        raise ValueError(f"there is no task '{id}' in Isaac Lab; expected one of {known}")
    config = parse(id, device=device, num_envs=num_envs)
    config.seed = seed
    for path, value in (overrides or {}).items():
        *parents, last = path.split(".")
        target = config
        for name in parents:
            target = getattr(target, name)
        if not hasattr(target, last):
            raise ValueError(f"the configuration of '{id}' has no '{path}'")
        setattr(target, last, value)
    env = gymnasium.make(id, cfg=config, render_mode=render_mode)
    return IsaacLabVectorEnv(env, action_scale=action_scale, group=group)


class IsaacLabVectorEnv(VectorEnv):
    """The contract of `sim.mujoco_env` around an environment of Isaac Lab; its state cannot be saved exactly.

    Args:
        env: what `gymnasium.make` returns for a task of Isaac Lab.
        action_scale: what an action of 1 means to the task.
        group: group of observations that becomes "state".

    Raises:
        ValueError: the group is absent or no vector.
    """

    def __init__(self, env: Any, *, action_scale: Positive = 1.0, group: str = "policy") -> None:
        self.env, self._scale, self._group = env, float(action_scale), group
        inner: Any = env.unwrapped
        self._inner = inner
        self.num_envs, self.device = int(inner.num_envs), torch.device(inner.device)
        space = inner.single_observation_space
        if group not in space.spaces or len(space[group].shape or ()) != 1:
            raise ValueError(
                f"the task's observations are {space}; expected the group '{group}' with one vector per environment"
            )
        size, actions = int(space[group].shape[0]), int(inner.single_action_space.shape[0])
        self.io = IOSpec(
            obs={"state": ((size,), "float32")},
            action_names=tuple(f"action_{i}" for i in range(actions)),
            action_low=(-self._scale,) * actions,
            action_high=(self._scale,) * actions,
            action_units=("1",) * actions,
            control_hz=1.0 / float(inner.step_dt),
        )
        interface.introduce(self, self.io, self.num_envs)
        self.render_mode = env.render_mode
        self._last: Tensor | None = None
        self._final: Tensor | None = None
        self._reset_idx = inner._reset_idx
        inner._reset_idx = self._look_and_reset

    def reset(
        self, *, seed: int | Sequence[int] | None = None, options: dict[str, object] | None = None
    ) -> tuple[Obs, dict[str, Any]]:
        """Start new episodes in all environments.

        Args:
            seed: one int; Isaac Lab has one stream for all environments.
            options: nothing; Isaac Lab resets single environments inside `step` only.

        Raises:
            ValueError: a seed per environment, or a mask.
        """
        if seed is not None and not isinstance(seed, int):
            raise ValueError("Isaac Lab has one stream for all environments; give one int as the seed")
        mask = (options or {}).get("reset_mask")
        if mask is not None and self._last is not None and not bool(torch.as_tensor(mask).all()):
            raise ValueError("Isaac Lab resets single environments inside step() only; reset them all")
        obs, _ = self.env.reset(seed=seed)
        self._last = self._state(obs)
        none = torch.zeros(self.num_envs, dtype=torch.bool, device=self.device)
        return self.observe(), {"success": none}

    def step(self, actions: Any) -> tuple[Obs, Any, Any, Any, dict[str, Any]]:
        """Advance all environments by one control step.

        Raises:
            ValueError: wrong shape.
            RuntimeError: before the first reset.
        """
        if self._last is None:
            raise RuntimeError("step() before the first reset(); call reset() once")
        action = torch.as_tensor(actions, dtype=torch.float32, device=self.device)
        interface.check_shape(action.shape, self.num_envs, self.io)
        executed = action.detach().clamp(-1.0, 1.0)
        if self.device.type == "cpu" and bool(executed.isnan().any()):
            index = int(executed.isnan().any(dim=1).nonzero()[0])
            raise ValueError(f"action of environment {index} is nan, expected numbers in [-1, 1]")
        self._final = None
        obs, reward, terminated, truncated, _ = self.env.step(executed * self._scale)
        current = self._state(obs)
        terminated = terminated.bool().clone()
        truncated = truncated.bool() & ~terminated
        done = terminated | truncated
        final = current if self._final is None else torch.where(done[:, None], self._final, current)
        self._last = current
        info = {
            "final_obs": {"state": final},
            "_final_obs": done,
            "executed": executed,
            "intervened": torch.zeros_like(done),
        }
        return self.observe(), reward.float().clone(), terminated, truncated, info

    def observe(self) -> Obs:
        """The current observation again."""
        if self._last is None:
            raise RuntimeError("observe() before the first reset(); call reset() once")
        return {"state": self._last}

    def state_dict(self) -> StateDict:
        """Nothing but a note: Isaac Lab's state cannot be saved, a resumed run begins new episodes."""
        return {"exact": False, "started": self._last is not None, "num_envs": self.num_envs}

    def load_state_dict(self, state: StateDict) -> None:
        """Begin new episodes where the saved environment was in the middle of some.

        Raises:
            ValueError: saved from another number of environments.
        """
        if int(state["num_envs"]) != self.num_envs:
            raise ValueError(f"saved from {int(state['num_envs'])} environments, expected {self.num_envs}")
        if bool(state["started"]):
            self.reset()

    @property
    def parts(self) -> EnvParts:
        """A device; a resumed run begins new episodes."""
        return EnvParts(saves=True, device=self.device)

    def render(self) -> Any:
        """What Isaac Lab renders: one picture of the scene, as a tuple."""
        return None if self.render_mode is None else (self.env.render(),)

    def close_extras(self, **kwargs: object) -> None:
        """Close the environment; the application stays for the next one."""
        self._inner._reset_idx = self._reset_idx
        self.env.close()

    def _look_and_reset(self, env_ids: object) -> None:
        """Observe what is about to be reset, then reset it."""
        if self._last is not None:
            manager = getattr(self._inner, "observation_manager", None)
            obs = self._inner._get_observations() if manager is None else manager.compute()
            self._final = self._state(obs)
        self._reset_idx(env_ids)

    def _state(self, obs: Obs) -> Tensor:
        """The group as a float32 tensor of its own: the task writes into its buffers again."""
        return obs[self._group].detach().float().clone()
