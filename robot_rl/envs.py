"""Our worlds in Gymnasium's registry: `import robot_rl.envs`, then `gymnasium.make("robot_rl/Pick-v0")` or `make_vec`.

`gymnasium.make("robot_rl.envs:robot_rl/Pick-v0")` needs no import. Options of the environment are keywords:
`gymnasium.make("robot_rl/Reach-v0", cameras=["front"])`. Where a world observes its state alone the observation is that
box, else a dict with "state" and "image.<camera>". Environments pickle and copy exactly where they stand.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import resources
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from robot_rl.types import IOSpec, Obs, StateDict


class _World:
    """N copies of a world of ours, made anew and put where they stood after a copy or a pickle."""

    def __init__(self, name: str, num_envs: int, render_mode: str | None, options: Mapping[str, object]) -> None:
        self.made_of = name, num_envs, render_mode, dict(options)
        self.started = False
        self.last: np.ndarray | None = None
        self._open()

    def _open(self) -> None:
        from robot_rl import api  # Hydra is read when the first world is made, not when ids are registered

        name, num_envs, render_mode, options = self.made_of
        if render_mode not in (None, "rgb_array"):
            raise ValueError(f"render_mode is '{render_mode}', expected 'rgb_array' or None")
        seed = int(np.random.SeedSequence().generate_state(1)[0])  # unseeded episodes differ, as Gymnasium wants it
        self.env: Any = api.make(name, num_envs, seed=seed, render=render_mode is not None, **options)
        if num_envs == 1 and render_mode is not None:
            self.env.at_end = self._keep
        self.io: IOSpec = self.env.io
        space = self.env.single_observation_space
        self.plain = list(space) == ["state"]
        self.space = space["state"] if self.plain else space

    def _keep(self) -> None:
        self.last = self.env.render()[0]

    def of(self, obs: Obs) -> Obs | np.ndarray:
        """The observation as these environments give it."""
        return obs["state"] if self.plain else obs

    def __getstate__(self) -> dict[str, object]:
        state = self.env.state_dict() if self.started else None
        return {"made_of": self.made_of, "started": self.started, "state": state, "last": self.last}

    def __setstate__(self, state: StateDict) -> None:
        self.made_of, self.started, self.last = state["made_of"], state["started"], state["last"]
        self._open()
        if self.started:
            self.env.reset()
            self.env.load_state_dict(state["state"])


class WorldEnv(gymnasium.Env):
    """One copy of a world.

    Args:
        name: of the world, such as "pick".
        render_mode: "rgb_array" or None; Gymnasium shows these pictures itself for "human" (needs pygame).
        options: of the environment.

    Attributes:
        io: names, bounds and units of what goes in and out.
    """

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012  (an instance variable to gymnasium)

    def __init__(self, name: str, render_mode: str | None = None, **options: object) -> None:
        self._world = _World(name, 1, render_mode, options)
        self._begun: Obs | None = None  # first observation behind an episode that has ended
        self.render_mode, self.io = render_mode, self._world.io
        self.observation_space, self.action_space = self._world.space, self._world.env.single_action_space
        self.metadata = {**self.metadata, "render_fps": round(self.io.control_hz)}

    def reset(self, *, seed: int | None = None, options: dict[str, object] | None = None) -> tuple[Any, dict[str, Any]]:
        """A new episode; the same one for the same seed."""
        super().reset(seed=seed)
        obs, self._begun = self._begun, None  # what follows may depend on how the last one ended
        if seed is not None or obs is None:
            obs, _ = self._world.env.reset(seed=seed)
        self._world.started = True
        return self._row(obs), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """One control step; info holds "success", "executed" (A,) and "reward_<term>"."""
        obs, reward, terminated, truncated, info = self._world.env.step(np.asarray(action)[None])
        over = bool(terminated[0] | truncated[0])
        last = info["final_obs"] if over else obs  # the world below has begun its next episode
        self._begun = obs if over else None
        found = {key: info[key][0] for key in ("success", "executed") if key in info}
        found |= {f"reward_{name}": float(term[0]) for name, term in info.get("reward_terms", {}).items()}
        return self._row(last), float(reward[0]), bool(terminated[0]), bool(truncated[0]), found

    def render(self) -> np.ndarray | None:
        """(H, W, 3) uint8, or None without a render_mode; behind an episode's end its last moment."""
        if self.render_mode is None:
            return None
        return self._world.env.render()[0] if self._begun is None else self._world.last

    def close(self) -> None:
        """Let go of the simulator."""
        self._world.env.close()

    def _row(self, obs: Obs) -> Obs | np.ndarray:
        return self._world.of({key: np.array(value[0]) for key, value in obs.items()})


class WorldVectorEnv(VectorEnv):
    """N copies of a world that step at once; episodes that end begin anew in the same step.

    Args:
        name: of the world.
        num_envs: N.
        render_mode: "rgb_array" or None.
        options: of the environment.
    """

    metadata = {"render_modes": ["rgb_array"], "autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012
    autoreset_mode = AutoresetMode.SAME_STEP  # where Gymnasium's own keep it, and TorchRL looks

    def __init__(self, name: str, num_envs: int = 1, render_mode: str | None = None, **options: object) -> None:
        self._world = _World(name, num_envs, render_mode, options)
        self.num_envs, self.render_mode, self.io = num_envs, render_mode, self._world.io
        self.single_observation_space = self._world.space
        self.single_action_space = self._world.env.single_action_space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.metadata = {**self.metadata, "render_fps": round(self.io.control_hz)}

    def reset(self, *, seed: Any = None, options: dict[str, object] | None = None) -> tuple[Any, dict[str, Any]]:
        """New episodes: all, or those of options["reset_mask"] (N,) bool."""
        obs, info = self._world.env.reset(seed=seed, options=options)
        self._world.started = True
        return self._world.of(obs), info

    def step(self, actions: Any) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """One control step of every copy; info["final_obs"] holds the true successors where an episode ended."""
        obs, reward, terminated, truncated, info = self._world.env.step(np.asarray(actions))
        if "final_obs" in info:
            info = {**info, "final_obs": self._world.of(info["final_obs"]), "_final_obs": terminated | truncated}
        return self._world.of(obs), reward, terminated, truncated, info

    def render(self) -> tuple[np.ndarray, ...] | None:
        """N pictures (H, W, 3) uint8, or None without a render_mode."""
        return None if self.render_mode is None else self._world.env.render()

    def close_extras(self, **kwargs: object) -> None:
        """Let go of the simulator."""
        self._world.env.close()


def register() -> list[str]:
    """Register every world of ours that runs on a processor; again is harmless.

    Returns:
        The ids, such as "robot_rl/Pick-v0".
    """
    found = []
    for file in sorted(resources.files("robot_rl.configs").joinpath("env").iterdir(), key=lambda item: item.name):
        if file.name.endswith(".yaml") and re.search(r"/simulator/(mujoco|array)@", file.read_text()):
            name = file.name.removesuffix(".yaml")
            found.append(f"robot_rl/{name.title().replace('_', '')}-v0")
            if found[-1] not in gymnasium.registry:
                gymnasium.register(
                    found[-1],
                    entry_point="robot_rl.envs:WorldEnv",
                    vector_entry_point="robot_rl.envs:WorldVectorEnv",
                    kwargs={"name": name},
                )
    return found


IDS = tuple(register())
"""What is registered."""
