"""Train any Stable-Baselines3 algorithm on our environments, and act with what it learned."""

from __future__ import annotations

import inspect
import time
import warnings
from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeVar

import gymnasium
import numpy as np
import torch
from pydantic import ConfigDict
from torch import Tensor

from robot_rl.data.seen import StepSample
from robot_rl.extras import require
from robot_rl.types import Action, Array, IOSpec, Metrics, Obs, Options, OwnLoop, PolicyParts, StateDict, StepEnv
from robot_rl.types.option_words import near

if TYPE_CHECKING:
    from stable_baselines3.common.policies import BasePolicy

V = TypeVar("V")
Tick = Callable[[int, Metrics], bool]
Due = Callable[[int, int], bool]

sb3 = require("stable_baselines3")
_base = require("stable_baselines3.common.base_class")
_callbacks = require("stable_baselines3.common.callbacks")
_vec_env = require("stable_baselines3.common.vec_env")


CONTRIB = ("CrossQ", "TQC", "TRPO")
"""Algorithms of sb3_contrib, which is installed apart, for continuous actions and without a memory."""
_SMALLEST = 36
"""Pixels along an edge of which its three convolutions leave one."""


class Sb3Options(Options):
    """Of a Stable-Baselines3 algorithm; every further name is a keyword of its class, e.g. `learning_rate`."""

    model_config = ConfigDict(extra="allow")

    algorithm: str = "SAC"
    """A class of stable_baselines3 such as SAC or PPO, or of sb3_contrib such as TQC."""


class Sb3(OwnLoop[Sb3Options, None]):
    """A Stable-Baselines3 algorithm behind our learner's verbs; it brings its own loop.

    `attach` an environment, then `run`. Saving keeps networks, optimisers and the step count; SB3's replay buffer and
    generators are not part of it, so a resumed run continues learning but does not equal an uninterrupted one.

    Args:
        options: algorithm and its keywords.
        io: interface of the environment.
        seed: of SB3, which seeds Python, NumPy and torch globally.
        device: torch device.
        gamma: discount per step.

    Raises:
        ValueError: there is no such algorithm, or it has no such keyword; or pictures are too small for its networks.
        ImportError: stable_baselines3 is not installed.
    """

    def __init__(
        self, options: Sb3Options, io: IOSpec, *, seed: int = 0, device: str = "cpu", gamma: float = 0.99
    ) -> None:
        super().__init__(options, io, seed=seed, device=device)
        self._class = _algorithm(options.algorithm)
        given = dict(options.model_extra or {})
        known = set(inspect.signature(self._class).parameters) - {"policy", "env", "_init_setup_model"}
        for name in given:
            if name not in known:
                raise ValueError(f"{options.algorithm} of stable-baselines3 has no option '{name}'{near(name, known)}")
        for name, (shape, _) in io.obs.items():
            if name.startswith("image.") and min(shape[:2]) < _SMALLEST:
                size, least = f"{shape[1]} x {shape[0]}", f"{_SMALLEST} x {_SMALLEST}"
                raise ValueError(f"{name} has {size} pixels; stable-baselines3's convolutions take {least} or more")
        self._options = {"seed": seed, "device": device, "gamma": gamma, "verbose": 0, **given}
        self.seen_rows: StepSample = StepSample()
        with warnings.catch_warnings():  # SB3's advice is about an environment, which comes with `attach`
            warnings.simplefilter("ignore", UserWarning)
            self._model = self._build(VectorEnvForSb3(None, io))
        self._actor = Sb3LivePolicy(io, self._model.policy)
        self.policy = self._actor
        self._env: VectorEnvForSb3 | None = None

    def attach(self, env: StepEnv) -> None:
        """Set the vector environment that `run` trains on.

        Raises:
            ValueError: it differs from the interface that the learner was made for, or is not same-step autoreset.
        """
        self.io.check(env.io)
        weights, steps = self.state_dict(), self.env_steps
        self._env = VectorEnvForSb3(env, self.io, self.seen_rows)
        # SB3 sizes its buffers by the number of environments, so the model is made anew and keeps its weights.
        self._model = self._build(self._env)
        self._actor.follow(self._model.policy)
        self._restore(weights, steps)

    def run(self, total_steps: int, tick: Tick | None = None, *, due: Due | None = None) -> None:
        """Train until `env_steps` reaches `total_steps` in all.

        Args:
            total_steps: transitions of all environments together.
            tick: called with the number of transitions and the metrics when it is due and at the end; True stops.
            due: (steps before, steps after) -> whether something is due, asked after every step of all copies; None:
                every 1000 steps.

        Raises:
            ValueError: no environment is attached.
        """
        if self._env is None:
            raise ValueError("Sb3 has no environment to train on; call attach(env) first")
        missing = total_steps - self.env_steps
        if missing > 0:
            self._model.learn(
                missing,
                callback=_Callback(self, tick, due or _every_1000, total_steps, self._env),
                log_interval=None,
                reset_num_timesteps=False,
            )
            self.env_steps = int(self._model.num_timesteps)

    def train(self, env: StepEnv, total_steps: int, tick: Tick | None = None, *, due: Due | None = None) -> None:
        """`attach` and `run` in one call."""
        self.attach(env)
        self.run(total_steps, tick, due=due)

    def state_dict(self) -> StateDict:
        """Networks, optimisers, temperature, step count, and rows of what was seen."""
        state_dicts, variables = self._model._get_torch_save_params()
        names = [*state_dicts, *(variables or [])]
        parts = {name: attrgetter(name)(self._model) for name in names}
        state = {name: part.detach() if isinstance(part, Tensor) else part.state_dict() for name, part in parts.items()}
        return {"parts": state, "env_steps": self.env_steps, "rows": self.seen_rows.state_dict()}

    def load_state_dict(self, state: StateDict, /) -> None:
        """Continue learning with saved networks and optimisers; SB3 starts with an empty replay buffer."""
        self._restore(state, int(state["env_steps"]))
        self.seen_rows.load_state_dict(state["rows"])

    def _restore(self, state: StateDict, steps: int) -> None:
        for name, saved in state["parts"].items():
            part = attrgetter(name)(self._model)
            if isinstance(part, Tensor):
                with torch.no_grad():
                    part.copy_(torch.as_tensor(saved))
            else:
                part.load_state_dict(saved)
        self.env_steps = self._model.num_timesteps = steps
        if steps and "learning_starts" in vars(self._model):  # fill the new buffer a little before the next update
            self._model.learning_starts = steps + int(self._options.get("learning_starts", 100))

    def _build(self, env: VectorEnvForSb3) -> Any:
        name = "MultiInputPolicy" if isinstance(env.observation_space, gymnasium.spaces.Dict) else "MlpPolicy"
        return self._class(name, env, **self._options)


class Sb3LivePolicy:
    """The policy of a model in training.

    Args:
        io: interface.
        policy: SB3's policy module.
    """

    parts = PolicyParts()

    def __init__(self, io: IOSpec, policy: BasePolicy) -> None:
        self.io, self._policy = io, policy

    def follow(self, policy: BasePolicy) -> None:
        """Act with another SB3 policy module from now on."""
        self._policy = policy

    def reset(self, rows: Array | None = None) -> None:
        """Nothing to forget."""

    def act(self, obs: Obs, *, deterministic: bool = False) -> Action:
        """Actions (B, A) in [-1, 1], in the kind of the observations."""
        first = next(iter(obs.values()))
        arrays = {key: value.cpu().numpy() if isinstance(value, Tensor) else value for key, value in obs.items()}
        value, _ = self._policy.predict(_for_sb3(arrays), deterministic=deterministic)
        value = np.clip(value, -1.0, 1.0)
        return Action(torch.as_tensor(value, device=first.device) if isinstance(first, Tensor) else value)

    def state_dict(self) -> dict[str, Tensor]:
        """SB3's policy tensors by their names."""
        return self._policy.state_dict()

    def load_state_dict(self, state: StateDict) -> None:
        """Inverse of `state_dict`."""
        self._policy.load_state_dict(state)


class VectorEnvForSb3(_vec_env.VecEnv):
    """Our vector environment as SB3 wants it; without one, only its spaces.

    Args:
        env: vector environment with same-step autoreset, or None.
        io: its interface.
        rows: gets what was acted on and the actions, or None.

    Raises:
        ValueError: another autoreset mode.
    """

    def __init__(self, env: Any, io: IOSpec, rows: StepSample | None = None) -> None:
        if env is not None:
            mode = env.metadata.get("autoreset_mode")
            if mode is not gymnasium.vector.AutoresetMode.SAME_STEP:
                raise ValueError(
                    f"the environment's autoreset is {mode}, expected same-step, which is what SB3 assumes"
                )
        self._inner: Any = env
        self._rows, self._obs = rows, dict[str, object]()
        boxes = _for_sb3({key: _box(shape, dtype) for key, (shape, dtype) in io.obs.items()})
        space = gymnasium.spaces.Dict(boxes) if isinstance(boxes, dict) else boxes
        count = 1 if env is None else env.num_envs
        super().__init__(count, space, gymnasium.spaces.Box(-1.0, 1.0, (io.action_dim,), np.float32))
        self._action = np.zeros((count, io.action_dim), np.float32)
        self._return, self._length = np.zeros(count), np.zeros(count, np.int64)

    def reset(self) -> Obs | np.ndarray:
        """First observations."""
        seed = self._seeds[0]
        obs, _ = self._inner.reset(seed=seed)
        self._obs = _numpy(obs)
        self._reset_seeds()
        self._return[:], self._length[:] = 0.0, 0
        return _for_sb3(self._obs)

    def step_async(self, actions: np.ndarray) -> None:
        """Keep the action for `step_wait`."""
        self._action = actions

    def step_wait(self) -> tuple[Obs | np.ndarray, np.ndarray, np.ndarray, list[dict[str, object]]]:
        """One step; ended rows carry SB3's `terminal_observation`, `TimeLimit.truncated`, `episode`, `is_success`."""
        if self._rows is not None:
            self._rows.step(self._obs, self._action)
        obs, reward, terminated, truncated, info = self._inner.step(self._action)
        obs, info = _numpy(obs), _numpy(info)
        self._obs = obs
        reward, terminated, truncated = (np.asarray(x) for x in (reward, terminated, truncated))
        done = terminated | truncated
        self._return += reward
        self._length += 1
        infos: list[dict[str, object]] = [{} for _ in range(self.num_envs)]
        for row in np.flatnonzero(done):
            final = {key: value[row] for key, value in info["final_obs"].items()}
            infos[row] = {
                "terminal_observation": _for_sb3(final),
                "TimeLimit.truncated": bool(truncated[row] and not terminated[row]),
                "episode": {"r": float(self._return[row]), "l": int(self._length[row]), "t": 0.0},
            }
            if "success" in info:
                infos[row]["is_success"] = bool(info["success"][row])
        self._return[done], self._length[done] = 0.0, 0
        return _for_sb3(obs), reward.astype(np.float32), done, infos

    def close(self) -> None:
        """Leave the inner environment to its owner."""

    def get_attr(self, attr_name: str, indices: object = None) -> list[object]:
        """`render_mode` only."""
        if attr_name != "render_mode":
            raise AttributeError(attr_name)
        return [None] * (1 if self._inner is None else self._inner.num_envs)

    def set_attr(self, attr_name: str, value: object, indices: object = None) -> None:
        """Refused."""
        raise AttributeError(f"{attr_name} cannot be set through the adapter")

    def env_method(self, method_name: str, *args: object, indices: object = None, **kwargs: object) -> list[object]:
        """Refused."""
        raise AttributeError(f"{method_name} cannot be called through the adapter")

    def env_is_wrapped(self, wrapper_class: type, indices: object = None) -> list[bool]:
        """Episode statistics are already in `info`, as with a Monitor."""
        return [wrapper_class.__name__ == "Monitor"] * self.num_envs


def _every_1000(before: int, after: int) -> bool:
    return after // 1000 > before // 1000


class _Callback(_callbacks.BaseCallback):
    """Calls `tick` where something is due."""

    def __init__(self, learner: Sb3, tick: Tick | None, due: Due, total: int, env: VectorEnvForSb3) -> None:
        super().__init__()
        self._learner = learner
        self._tick, self._due, self._total, self._copies = tick, due, total, env.num_envs
        self._time, self._steps = time.perf_counter(), 0

    def _on_training_start(self) -> None:
        self._time, self._steps = time.perf_counter(), self.num_timesteps

    def _on_step(self) -> bool:
        done = self._learner.env_steps = self.num_timesteps
        if self._tick is None or (done < self._total and not self._due(done - self._copies, done)):
            return True
        now = time.perf_counter()
        metrics = {key: float(x) for key, x in self.logger.name_to_value.items() if not isinstance(x, str)}
        metrics["time/sps"] = (self.num_timesteps - self._steps) / (now - self._time)
        episodes = list(self.model.ep_info_buffer or ())
        if episodes:
            metrics["rollout/return"] = float(np.mean([episode["r"] for episode in episodes]))
            metrics["rollout/length"] = float(np.mean([episode["l"] for episode in episodes]))
        if self.model.ep_success_buffer:
            metrics["rollout/success"] = float(np.mean(self.model.ep_success_buffer))
        stop = self._tick(self.num_timesteps, metrics)
        self._time, self._steps = time.perf_counter(), self.num_timesteps
        return not stop


def _algorithm(name: str) -> Any:
    kind = _base.BaseAlgorithm
    known = {key: value for key, value in vars(sb3).items() if isinstance(value, type) and issubclass(value, kind)}
    known.pop("DQN", None)  # chooses among actions
    if name in known:
        return known[name]
    if name in CONTRIB:
        try:
            import sb3_contrib
        except ImportError as error:
            raise ImportError(
                f"algorithm {name} is of sb3_contrib, which is not installed: pip install sb3-contrib"
            ) from error
        return vars(sb3_contrib)[name]
    raise ValueError(f"there is no algorithm {name!r}; expected one of {', '.join([*sorted(known), *CONTRIB])}")


def _box(shape: tuple[int, ...], dtype: str) -> gymnasium.spaces.Space:
    low, high = (0, 255) if dtype == "uint8" else (-np.inf, np.inf)
    return gymnasium.spaces.Box(low, high, shape, np.dtype(dtype).type)


def _for_sb3(obs: dict[str, V]) -> dict[str, V] | V:
    """SB3's form: the bare array of a lone "state", else a dictionary whose keys may name torch modules."""
    if list(obs) == ["state"]:
        return obs["state"]
    return {key.replace(".", "_"): value for key, value in obs.items()}


def _numpy(value: object) -> Any:
    if isinstance(value, dict):
        return {key: _numpy(item) for key, item in value.items()}
    return value.cpu().numpy() if isinstance(value, Tensor) else value
