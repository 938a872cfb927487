"""Environments as a device loop sees them: tensors in, tensors out, and no wait where the environment has none."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from gymnasium.vector import AutoresetMode
from torch import Tensor

from robot_rl.loops.stepping import NonFiniteError, Stepper, as_obs, autoreset_mode, goes_on
from robot_rl.state import Saved
from robot_rl.types import Array, Metrics, Obs, StateDict, Step, StepEnv


class DeviceWorld(Protocol):
    """What a device loop steps.

    Attributes:
        obs: (N, ...) tensors to act on next; empty before the first reset.
    """

    obs: Obs

    def reset(self, seed: int) -> Obs:
        """Reset every row."""
        ...

    def step(self, action: Tensor) -> Step:
        """Execute (N, A) actions in [-1, 1]; everything in the result is a tensor on the device."""
        ...

    def check(self) -> None:
        """Raise what went wrong since the last check; waits for the device."""
        ...

    def state_dict(self) -> StateDict:
        """What continues exactly; empty where the environment cannot save itself."""
        ...

    def load_state_dict(self, state: StateDict) -> None:
        """Inverse of `state_dict`; `obs` stays empty where the environment could not be saved."""
        ...


def open_world(env: StepEnv, device: torch.device, save_to: str | Path | None = None) -> DeviceWorld:
    """The environment as tensors on `device`.

    An environment with a device among its parts hands over tensors and is stepped without a wait; any other is bridged
    through NumPy.

    Args:
        env: vector environment.
        device: of the learner.
        save_to: folder for a bridged environment's state if it returns NaN.
    """
    return TensorWorld(env, device) if env.parts.device is not None else HostWorld(env, device, save_to)


class TensorWorld:
    """An environment that lives on the device.

    Its contract is that of `sim/mujoco_env.py` in tensors: same-step autoreset, and `info["final_obs"]` holds the true
    successor of all N rows in every step, so that nobody has to ask whether an episode has ended. Rows with NaN or
    infinity are left out (`valid` False) and remembered on the device until `check`.

    Args:
        env: the environment.
        device: of the learner; where the environment's differs, its tensors are copied.

    Raises:
        ValueError: the environment does not reset itself within the step.
    """

    def __init__(self, env: Any, device: torch.device) -> None:
        mode = autoreset_mode(env)
        if mode is not AutoresetMode.SAME_STEP:
            raise ValueError(
                f"{type(env).__name__} resets in mode {mode.value}, expected {AutoresetMode.SAME_STEP.value}: a loop "
                "on the device does not look at the flags, so the environment has to reset ended rows itself"
            )
        self.env, self.device = env, device
        self.obs: Obs = {}
        self._bad = torch.zeros(env.num_envs, dtype=torch.bool, device=device)

    def reset(self, seed: int) -> Obs:
        """Reset every row."""
        raw, _ = self.env.reset(seed=seed)
        self.obs = self._here(as_obs(raw))
        return self.obs

    def step(self, action: Tensor) -> Step:
        """One step of all rows.

        Raises:
            ValueError: `info` has no "final_obs".
        """
        executed = action.clamp(-1.0, 1.0)
        raw, reward, terminated, truncated, info = self.env.step(executed)
        if "final_obs" not in info:
            raise ValueError(
                f"{type(self.env).__name__}.step gave no info['final_obs']; expected the true successor of all rows in "
                "every step, or the value of truncated episodes would be learned from the next one's first observation"
            )
        current, final = self._here(as_obs(raw)), self._here(as_obs(info["final_obs"]))
        reward = reward.to(self.device, torch.float32)
        finite = torch.isfinite(reward)
        for value in (*current.values(), *final.values()):
            finite = finite & torch.isfinite(value).flatten(1).all(1)
        self._bad |= ~finite
        valid = info["valid"].to(self.device) & finite if "valid" in info else finite
        intervened = info["intervened"] if "intervened" in info else torch.zeros_like(finite)
        obs, self.obs = self.obs, {key: value.nan_to_num(0.0, 0.0, 0.0) for key, value in current.items()}
        return Step(
            obs=obs,
            action=info.get("executed", executed).to(self.device),
            reward=reward.nan_to_num(0.0, 0.0, 0.0),
            next_obs={key: value.nan_to_num(0.0, 0.0, 0.0) for key, value in final.items()},
            terminated=terminated.to(self.device),
            truncated=truncated.to(self.device),
            current=self.obs,
            valid=valid,
            intervened=intervened.to(self.device),
            proposed=action,
            info=info,
        )

    def check(self) -> None:
        """Raise if a row returned NaN or infinity since the last check.

        Raises:
            NonFiniteError: with the rows.
        """
        rows = torch.nonzero(self._bad).flatten().tolist()
        self._bad.zero_()
        if rows:
            raise NonFiniteError(
                f"{type(self.env).__name__} returned NaN or infinity in {len(rows)} environments, first in environment "
                f"{rows[0]}, since the last look; expected finite numbers. Usual causes: an unstable simulation "
                "(smaller timestep, softer contacts) or a broken observation term"
            )

    def state_dict(self) -> StateDict:
        """State of the environment, where it has one, and the observation."""
        if not self.env.parts.saves:
            return {}
        return {"env": self.env.state_dict(), "obs": {key: value.cpu() for key, value in self.obs.items()}}

    def load_state_dict(self, state: StateDict) -> None:
        """Continue; `obs` stays empty where the environment could not be saved."""
        if not state:
            return
        self.env.reset()
        self.env.load_state_dict(state["env"])
        if goes_on(state["env"]):
            self.obs = {key: value.to(self.device) for key, value in state["obs"].items()}

    def _here(self, obs: Obs) -> Obs:
        return {key: value.to(self.device) for key, value in obs.items()}


class HostWorld:
    """A NumPy environment behind the same face; every step copies actions down and observations up.

    Args:
        env: vector environment in any autoreset mode.
        device: of the learner.
        save_to: folder for its state if it returns NaN.
    """

    def __init__(self, env: Any, device: torch.device, save_to: str | Path | None = None) -> None:
        self.device = device
        self.obs: Obs = {}
        self._stepper = Stepper(env, save_to=save_to)

    def reset(self, seed: int) -> Obs:
        """Reset every row."""
        self.obs = self._up(self._stepper.reset(seed))
        return self.obs

    def step(self, action: Tensor) -> Step:
        """One step of all rows."""
        row = self._stepper.step(action.cpu().numpy())
        obs, self.obs = self.obs, self._up(row.current)
        up = self._array
        return Step(
            obs=obs,
            action=up(row.action),
            reward=up(row.reward),
            next_obs=self._up(row.next_obs) if row.next_obs is not row.current else self.obs,
            terminated=up(row.terminated),
            truncated=up(row.truncated),
            current=self.obs,
            valid=up(row.valid),
            intervened=up(row.intervened),
            proposed=action,
            info={key: up(value) for key, value in row.info.items() if key == "success"},
        )

    def check(self) -> None:
        """Nothing to do: the stepper looks at every step."""

    def state_dict(self) -> StateDict:
        """State of the environment, where it has one."""
        return self._stepper.state_dict() if self._stepper.env.parts.saves else {}

    def load_state_dict(self, state: StateDict) -> None:
        """Continue; `obs` stays empty where the environment could not be saved."""
        if state:
            self._stepper.load_state_dict(state)
            self.obs = self._up(self._stepper.obs)

    def _up(self, obs: Obs) -> Obs:
        return {key: self._array(value) for key, value in obs.items()}

    def _array(self, value: Array) -> Tensor:
        return torch.as_tensor(np.asarray(value)).to(self.device, copy=True)  # environments reuse their arrays


class DeviceEpisodeStats(Saved):
    """Mean return, length and success of the episodes that ended since the last reading, added up on the device.

    Args:
        num_envs: N.
        device: of the steps.
    """

    saved = ("_return", "_length", "_sum", "_success", "_episodes", "_last")

    def __init__(self, num_envs: int, device: torch.device) -> None:
        self._return = torch.zeros(num_envs, device=device)
        self._length = torch.zeros(num_envs, device=device)
        # episodes, sum of returns, of lengths, of successes
        self._sum = torch.zeros(4, dtype=torch.float64, device=device)
        self._success = False
        self._episodes, self._last = 0.0, dict[str, float]()

    def begin(self) -> None:
        """New episodes begin everywhere; those under way do not count."""
        self._return.zero_()
        self._length.zero_()

    @torch.no_grad()
    def add(self, step: Step) -> None:
        """Count one step of every environment."""
        whole, reward = torch.as_tensor(step.valid), torch.as_tensor(step.reward)
        valid = whole.float()
        self._return += reward * valid
        self._length += valid
        over = (torch.as_tensor(step.terminated) | torch.as_tensor(step.truncated)) & whole
        success = step.info.get("success")
        self._success = self._success or success is not None
        good = torch.zeros_like(over) if success is None else success.to(over.device) & over
        done = over.float()
        parts = (done, self._return * done, self._length * done, good.float())
        self._sum += torch.stack([part.sum() for part in parts])
        self._return *= 1.0 - done
        self._length *= 1.0 - done

    def metrics(self) -> Metrics:
        """Means since the last reading (waits for the device); the earlier ones while no episode has ended."""
        count, total, length, success = self._sum.tolist()
        self._sum.zero_()
        self._episodes += count
        if count:
            self._last = {"rollout/return": total / count, "rollout/length": length / count}
            if self._success:
                self._last["rollout/success"] = success / count
        return {"rollout/episodes": self._episodes, **self._last}
