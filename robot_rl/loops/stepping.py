"""One step of N environments as a `Step`: the only code that knows how environments reset themselves."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium.vector import AutoresetMode

from robot_rl.types import Array, Obs, StateDict, Step, StepEnv
from robot_rl.types.data import all_finite

_DOUBLE = (np.dtype(np.float64), torch.float64)


class NonFiniteError(RuntimeError):
    """An environment returned NaN or infinity; the message names the environment, the key and the saved state."""


class Stepper:
    """Steps one vector environment and remembers what the next step needs: the current observation and, with
    next-step autoreset, which rows are about to reset.

    The environment must not write again into arrays that it has returned.

    Args:
        env: gymnasium VectorEnv in any autoreset mode; actions enter in [-1, 1].
        reset_ended: with autoreset disabled, reset ended rows at once. False leaves that to the caller
            (`reset_rows`), for instance until an operator has put a robot back.
        save_to: folder that receives the environment's state when it returns NaN or infinity; None saves nothing.
    """

    def __init__(self, env: Any, *, reset_ended: bool = True, save_to: str | Path | None = None) -> None:
        self.env = env
        self.obs: Obs = {}
        self._reset_ended = reset_ended
        self._save_to = save_to
        self._mode = autoreset_mode(env)
        self._ended: Array | None = None

    def reset(self, seed: int | None = None) -> Obs:
        """Reset every row and return the first observation."""
        raw, _ = self.env.reset(seed=seed)
        self.obs = as_obs(raw)
        self._ended = None
        if not _finite(self.obs):
            _report(self.env, "reset", self.obs, None, self.obs, None, self._save_to)
        return self.obs

    def reset_rows(self, rows: Array) -> Obs:
        """Reset the rows of a (N,) bool mask, with autoreset disabled only, and return the observation to act on."""
        if self._mode is not AutoresetMode.DISABLED:
            raise ValueError(f"reset_rows on an environment with autoreset {self._mode.value}: it resets by itself")
        self.obs = _reset_rows(self.env, self.obs, rows)
        return self.obs

    def step(self, action: Array, *, proposed: Array | None = None) -> Step:
        """Execute one action in N environments and return the transition.

        Args:
            action: (N, A); clipped to [-1, 1].
            proposed: (N, A) what the policy asked for; None means `action` before clipping.

        Returns:
            With next-step autoreset a row that ended in the step before resets now and ignores its action: its `valid`
            is False. `current` can be acted on, unless rows that ended are left to `reset_rows`.

        Raises:
            NonFiniteError: the environment returned NaN or infinity.
            ValueError: the action has the wrong shape or is not finite, or the environment breaks the autoreset
                contract.
        """
        env, mode = self.env, self._mode
        executed = clip_action(action, env.num_envs)
        raw, reward, terminated, truncated, info = env.step(executed)
        current = as_obs(raw)
        reward = reward.astype(np.float32) if isinstance(reward, np.ndarray) else reward.float()
        if not (_finite(current) and _finite_array(reward)):
            _report(env, "step", self.obs, executed, current, reward, self._save_to)
        next_obs, valid = current, None
        if mode is AutoresetMode.NEXT_STEP:
            if self._ended is not None:
                valid = ~self._ended
            self._ended = terminated | truncated
        elif _any(terminated) or _any(truncated):
            over = terminated | truncated
            if mode is AutoresetMode.SAME_STEP:
                next_obs = _successor(info, current, over)
                info = _episode_info(info, over)
                if not _finite(next_obs):
                    _report(env, "step", self.obs, executed, next_obs, reward, self._save_to)
            elif self._reset_ended:
                current = _reset_rows(env, current, over)
                if not _finite(current):
                    _report(env, "reset", self.obs, executed, current, reward, self._save_to)
        if valid is None:  # a robot's fault makes a step that nobody should learn from
            valid = info.get("valid")
        obs, self.obs = self.obs, current
        return Step(
            obs,
            info.get("executed", executed),
            reward,
            next_obs,
            terminated,
            truncated,
            current,
            _full(reward, True) if valid is None else valid,
            info["intervened"] if "intervened" in info else _full(reward, False),
            action if proposed is None else proposed,
            info,
        )

    def state_dict(self) -> StateDict:
        """Environment state, current observation and pending resets.

        Raises:
            TypeError: the environment cannot save its state.
        """
        if not self.env.parts.saves:
            raise TypeError(
                f"{type(self.env).__name__} has no state_dict(), so a run on it cannot be saved exactly; "
                "use an environment of robot_rl.sim, or resume without the environment's state"
            )
        return {"env": self.env.state_dict(), "obs": dict(self.obs), "ended": self._ended}

    def load_state_dict(self, state: StateDict) -> None:
        """Continue exactly where `state_dict` was taken; `obs` is empty where the environment begins new episodes."""
        self.env.load_state_dict(state["env"])
        if not goes_on(state["env"]):  # what was seen last belongs to an episode that is gone
            self.obs, self._ended = {}, None
            return
        self.obs = {key: _like_env(value, self.env) for key, value in state["obs"].items()}
        self._ended = None if state["ended"] is None else _like_env(state["ended"], self.env)


def goes_on(env_state: StateDict) -> bool:
    """Whether an environment that loads this state goes on with the saved episodes; else it begins new ones."""
    return bool(np.all(env_state.get("exact", True)))


def begins_anew(env: StepEnv, loop: StateDict | None) -> str:
    """Why a run that was restored does not go on where its environments stood, or "".

    Args:
        env: of the run.
        loop: state of the loop after it was restored, or None for one that keeps none.
    """
    kept = None if loop is None else loop.get("stepper") or loop.get("world")
    if kept and goes_on(kept["env"]):
        return ""
    return (
        f"resumed with new episodes: the state of {type(env).__name__} cannot be saved, so this run is as good as one "
        "that was never stopped, and not equal to it"
    )


def autoreset_mode(env: Any) -> AutoresetMode:
    """How the environment resets ended rows, from its metadata.

    Raises:
        ValueError: the metadata does not say.
    """
    value = env.metadata.get("autoreset_mode")
    try:
        return value if isinstance(value, AutoresetMode) else AutoresetMode(value)
    except ValueError:
        names = [mode.value for mode in AutoresetMode]
        raise ValueError(
            f"{type(env).__name__}.metadata['autoreset_mode'] is {value!r}, expected one of {names}; "
            "set it, or wrong transitions would be learned at the end of episodes"
        ) from None


def as_obs(raw: Any) -> Obs:
    """Observation dictionary: a bare array becomes {"state": array}, float64 becomes float32."""
    if not isinstance(raw, dict):
        raw = {"state": raw}
    for value in raw.values():
        if value.dtype in _DOUBLE:
            return {key: _float32(item) for key, item in raw.items()}
    return raw


def clip_action(action: Array, num_envs: int, dim: int | None = None) -> Array:
    """The action inside [-1, 1].

    Args:
        action: (N, A).
        num_envs: expected N.
        dim: expected A, or None to accept any.

    Raises:
        ValueError: wrong shape, NaN or infinity.
    """
    if action.ndim != 2 or action.shape[0] != num_envs or (dim is not None and action.shape[1] != dim):
        expected = f"({num_envs}, {'A' if dim is None else dim})"
        raise ValueError(f"action has shape {tuple(action.shape)}, expected {expected}: one row per environment")
    if isinstance(action, np.ndarray) and action.dtype == object:  # utterances: nothing to clip
        return action
    if not _finite_array(action):
        row, column = (int(i) for i in _first_bad(action))
        raise ValueError(
            f"action of environment {row}, dimension {column} is {float(action[row, column])}, expected a number in "
            "[-1, 1]; the policy diverged: lower its learning rate or resume from an earlier checkpoint"
        )
    if isinstance(action, torch.Tensor):
        return action.clamp(-1.0, 1.0)
    return np.minimum(np.maximum(action, -1.0), 1.0)


def _reset_rows(env: StepEnv, obs: Obs, rows: Array) -> Obs:
    mask = rows.cpu().numpy() if isinstance(rows, torch.Tensor) else np.asarray(rows)
    raw, _ = env.reset(options={"reset_mask": mask})
    return _where(rows, as_obs(raw), obs)


def _successor(info: Mapping[str, object], current: Obs, over: Array) -> Obs:
    """True successor of every row: final observations where an episode ended, the current observation elsewhere."""
    final = info.get("final_obs")
    if final is None:
        raise ValueError(
            "the environment says same-step autoreset but its info has no 'final_obs' at an episode's end; "
            "without it the true successor is lost"
        )
    if isinstance(final, dict):
        return _where(over, as_obs(final), current)
    if isinstance(final, np.ndarray) and final.dtype == object:  # gymnasium's own: one entry per ended row, else None
        merged = {key: value.copy() for key, value in current.items()}
        for row in np.flatnonzero(over):
            for key, value in as_obs(final[row]).items():
                merged[key][row] = value
        return merged
    return _where(over, as_obs(final), current)


def _episode_info(info: dict[str, Any], over: Array) -> dict[str, Any]:
    """The ended episode's last info in place of the next episode's first; gymnasium keeps it apart in `final_info`."""
    final = info.get("final_info")
    if not isinstance(final, dict):
        return info
    merged = {key: value for key, value in info.items() if key != "final_info"}
    for key, value in final.items():
        before = merged.get(key)
        if isinstance(value, np.ndarray) and value.shape[:1] == over.shape:
            if isinstance(before, np.ndarray) and before.shape == value.shape:
                chosen = before.copy()
                chosen[over] = value[over]
                merged[key] = chosen
            else:
                merged[key] = value
    return merged


def _where(rows: Array, chosen: Obs, otherwise: Obs) -> Obs:
    merged = {}
    for key, value in otherwise.items():
        if isinstance(value, torch.Tensor):
            mask = torch.as_tensor(rows, device=value.device).view(-1, *[1] * (value.ndim - 1))
            merged[key] = torch.where(mask, chosen[key], value)
        else:
            merged[key] = value.copy()
            merged[key][rows] = chosen[key][rows]
    return merged


def _float32(value: Array) -> Array:
    if isinstance(value, np.ndarray):
        return value.astype(np.float32) if value.dtype == np.float64 else value
    return value.float() if value.dtype == torch.float64 else value


def _like_env(value: Array, env: StepEnv) -> Array:
    """A saved array in the kind that the environment hands over: tensors where it names a device, also on the CPU."""
    device = env.parts.device
    if device is not None:
        return torch.as_tensor(value, device=device)
    return value.numpy() if isinstance(value, torch.Tensor) else value


def _full(like: Array, value: bool) -> Array:
    if isinstance(like, torch.Tensor):
        return torch.full(like.shape, value, dtype=torch.bool, device=like.device)
    return np.ones(like.shape, bool) if value else np.zeros(like.shape, bool)


def _any(flags: Array) -> bool:
    if isinstance(flags, np.ndarray):  # several times cheaper than any() on small arrays
        return bool(np.count_nonzero(flags))
    return bool(flags.any())


def _finite_array(value: Array) -> bool:
    if isinstance(value, torch.Tensor):
        return not value.is_floating_point() or bool(torch.isfinite(value).all())
    return value.dtype.kind != "f" or all_finite(value)


def _finite(obs: Obs) -> bool:
    return all(_finite_array(value) for value in obs.values())


def _first_bad(value: Array) -> np.ndarray:
    array = value.detach().cpu().numpy() if isinstance(value, torch.Tensor) else value
    return np.argwhere(~np.isfinite(array))[0]


def _report(
    env: StepEnv, call: str, obs: Obs, action: object, result: Obs, reward: object, folder: str | Path | None
) -> None:
    bad = {**{f"observation '{key}'": value for key, value in result.items()}, "the reward": reward}
    name, value = next((name, value) for name, value in bad.items() if value is not None and not _finite_array(value))
    index = [int(i) for i in _first_bad(value)]
    number = float(value[tuple(index)])
    place = f"environment {index[0]}" + (f", component {index[1:]}" if len(index) > 1 else "")
    saved = _save_state(env, {"obs": obs, "action": action, "result": result, "reward": reward}, folder)
    raise NonFiniteError(
        f"{type(env).__name__}.{call} returned {number} in {name} of {place}, expected finite numbers; {saved}. "
        "Usual causes: an unstable simulation (smaller timestep, softer contacts) or a broken observation term"
    )


def _save_state(env: Any, around: Mapping[str, object], folder: str | Path | None) -> str:
    if folder is None:
        return "its state was not saved (no folder was given)"
    try:
        state = env.state_dict() if env.parts.saves else None
        path = Path(folder) / "nonfinite_step.pt"
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save(_tensors({"env": state, **around}), path)
    except Exception as error:  # the NaN is the news: no failure to save may hide it
        return f"its state could not be saved ({type(error).__name__}: {error})"
    kind = "its state, the action and the observations" if state is not None else "the action and the observations"
    return f"{kind} are in {path} (torch.load with weights_only=True)"


def _tensors(value: object) -> object:
    if isinstance(value, dict):
        return {key: _tensors(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_tensors(item) for item in value]
    if isinstance(value, np.ndarray):
        return torch.from_numpy(np.array(value)) if value.dtype.kind in "biufc" else value.tolist()
    return value.item() if isinstance(value, np.generic) else value
