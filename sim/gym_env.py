"""Any Gymnasium environment behind the contract of our engines, in this process or in worker processes.

Observations: a plain box becomes "state"; a Dict or Tuple is flattened into "state" in the order of its space (goal
environments: "observation", "desired_goal", then what else there is; both goals stand in `info`); uint8 boxes
(H, W, 3), (H, W, 1) or (3, H, W) become "image.<key>" as (H, W, 3), without a leading "pixels." in the key, and a stack
of them (K, H, W, 3) K pictures; Discrete and MultiDiscrete leaves become one-hot columns. Actions: the environment's
finite box is flattened and mapped from [-1, 1] once, here; the n choices of a Discrete space, and those of each action
of a MultiDiscrete or MultiBinary one, lie evenly in [-1, 1] (`IOSpec.action_choices`); other action spaces are refused
with the reason.

Episodes that end are reset within the same step; `info` holds what `mujoco_env` describes. Environment i is seeded with
`seeds(seed, num_envs)[i]`, or with the i-th of a sequence of seeds as it is.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import multiprocessing
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import gymnasium
import numpy as np
from gymnasium.vector import VectorEnv

from robot_rl.sim import crash, gym_copies, gym_own, interface
from robot_rl.sim.draw import seed_list
from robot_rl.sim.gym_copies import Copies, SharedRows
from robot_rl.sim.gym_goals import gym_goals
from robot_rl.sim.interface import check_actions
from robot_rl.types import EnvParts, IOSpec, Obs, StateDict, action_of, choice_of
from robot_rl.types.data import all_finite
from robot_rl.types.options import Count, Positive, Whole

if TYPE_CHECKING:
    from mujoco import MjModel

R = TypeVar("R")


def seeds(seed: int, num_envs: int, restart: int = 0) -> list[int]:
    """The seeds of N environments; those of different `seed` do not overlap, unlike seed, seed + 1, ...

    Args:
        seed: of all, >= 0.
        num_envs: N.
        restart: other seeds for the same `seed`, for episodes that start anew after a resume.
    """
    words = (seed,) if not restart else (seed, restart)
    return [int(np.random.SeedSequence((*words, i)).generate_state(1)[0]) for i in range(num_envs)]


class GymVectorEnv(VectorEnv):
    """N copies of a Gymnasium environment; see the module for the mapping.

    Args:
        num_envs: N.
        seed: environment i depends on the seed and i alone.
        device: where the learner runs; this engine hands over NumPy arrays whatever it is.
        id: for example "HalfCheetah-v5", "FetchPickAndPlace-v4", "gym_hil/PandaPickCubeBase-v0", "module:Name-v0", or
            "./my_task.py:MyTask" for a class or function of a file.
        kwargs: arguments of the environment.
        workers: processes that share the copies; 0 steps them all here, which is the faster choice for cheap
            environments: handing over a step costs about as much as simulating a small robot.
        episode_steps: time limit; None takes the one registered for the id.
        control_hz: decisions per second; None takes the environment's `dt`, else its frame rate, else 1.
        render_mode: passed to the environment, "rgb_array" for `render()`.
        crash_dir: folder for the saved state of a diverged simulation; None is the system's temporary folder.

    Raises:
        ValueError: unknown id, or spaces that do not fit the contract.
        ImportError: the package of the id is missing.

    Attributes:
        io: names, shapes and units of what goes in and out.
    """

    def __init__(
        self,
        num_envs: int,
        seed: int,
        device: str = "cpu",
        *,
        id: str,
        kwargs: Mapping[str, object] | None = None,
        workers: Whole = 0,
        episode_steps: Count | None = None,
        control_hz: Positive | None = None,
        render_mode: str | None = None,
        crash_dir: str | None = None,
    ) -> None:
        if num_envs < 1 or not workers >= 0:
            raise ValueError(f"num_envs is {num_envs} and workers {workers}; expected at least 1 and at least 0")
        kwargs = dict(kwargs or {})
        first = gym_copies.make_one(id, kwargs, render_mode)
        box = gym_copies.action_box(first.action_space, id)
        layout = gym_copies.layout(first.observation_space)
        self.id, self.num_envs, self.render_mode, self._crash_dir = id, num_envs, render_mode, crash_dir
        actions = int(box.shape[0])
        obs: dict[str, tuple[tuple[int, ...], str]] = {}
        if layout.state_names:
            obs["state"] = ((len(layout.state_names),), "float32")
        obs |= {key: (shape, "uint8") for key, shape in layout.images.items()}
        self.io = IOSpec(
            obs=obs,
            action_names=_action_names(first, actions),
            action_low=tuple(float(x) for x in box.low),
            action_high=tuple(float(x) for x in box.high),
            action_units=("1",) * actions,
            control_hz=control_hz or _control_hz(first),
            obs_names=layout.state_names,
            action_choices=gym_copies.action_choices(first.action_space),
        )
        interface.introduce(self, self.io, num_envs)

        if episode_steps is None and not gym_own.is_file(id):
            episode_steps = gymnasium.spec(id.rpartition(":")[2]).max_episode_steps
        options = {"id": id, "kwargs": kwargs, "episode_steps": episode_steps, "render_mode": render_mode}
        shapes = _shapes(num_envs, actions, obs, layout.goal)
        self._notes = gym_own.find_moments(first)
        self._goals, self._tells_goals = gym_goals(first, layout), bool(layout.goal)
        self._workers: list[_Worker] = []
        self._copies: Copies | None = None
        if workers:
            first.close()
            self._start(min(workers, num_envs), options, shapes)
        else:
            self._copies = Copies(count=num_envs, envs=[first], **options)
            self._arrays = {key: np.zeros(shape, dtype) for key, (shape, dtype) in shapes.items()}
            self._copies.bind({key: value for key, value in self._arrays.items() if key != "action"})
        self._seeds: list[int] | None = seeds(seed, num_envs)
        self._seed, self._count = seed, 0
        self._images = tuple(layout.images)
        self._has_state = bool(layout.state_names)
        self._started = False
        self._terms: tuple[str, ...] | None = None  # of the reward; known from the first step on

    def reset(
        self, *, seed: int | Sequence[int] | None = None, options: dict[str, object] | None = None
    ) -> tuple[Obs, dict[str, Any]]:
        """Start new episodes.

        Args:
            seed: one int, or one per environment used as it is; None continues the environments' generators.
            options: {"reset_mask": (N,) bool} resets these environments only.
        """
        if isinstance(seed, (int, np.integer)):
            self._seeds = seeds(int(seed), self.num_envs)
            self._seed, self._count = int(seed), 0
        elif seed is not None:
            self._seeds = seed_list(seed, self.num_envs)
        mask = (options or {}).get("reset_mask")
        rows = range(self.num_envs) if mask is None or not self._started else np.flatnonzero(np.asarray(mask))
        chosen, self._seeds = self._seeds, None
        self._call(Copies.reset, [(int(i), chosen[i] if chosen else None) for i in rows])
        self._started = True
        known = self._arrays["knows_success"].any()
        return self.observe(), {"success": np.zeros(self.num_envs, bool)} if known else {}

    def step(self, actions: Any) -> tuple[Obs, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Advance all environments by one step; see `mujoco_env` for the contents of `info`.

        Raises:
            ValueError: wrong shape or a value that is not finite.
            UnstableSimulationError: an environment gave a value that is not finite.
        """
        if not self._started:
            raise RuntimeError("step() before the first reset(); call reset() once")
        action = check_actions(actions, self.num_envs, self.io)
        for i, count in enumerate(self.io.action_choices):  # what is recorded is what is done
            action[:, i] = action_of(choice_of(action[:, i], count), count)
        arrays = self._arrays
        if self._copies is not None:
            ended = self._copies.step(action)
        else:
            arrays["action"][...] = action
            for worker in self._workers:
                worker.pipe.send_bytes(b"step")
            for worker in self._workers:
                worker.wait()
            ended = True
        self._count += 1
        obs = self.observe()
        terminated, truncated = arrays["terminated"].copy(), arrays["truncated"].copy()
        done = terminated | truncated
        final = obs
        if ended:
            final = {key: np.where(_column(done, value), arrays[f"final.{key}"], value) for key, value in obs.items()}
        reward = arrays["reward"].copy()
        found = (reward, final["state"], obs["state"]) if self._has_state else (reward,)
        if not all(all_finite(value) for value in found):
            self._report(reward, final.get("state"), obs.get("state"))
        info = {
            "final_obs": final,
            "_final_obs": done,
            "executed": action,
            "intervened": np.zeros(self.num_envs, bool),
        }
        if self._tells_goals:
            info |= {key: arrays[key].copy() for key in ("achieved_goal", "desired_goal")}
        if arrays["knows_success"].any():  # most Gymnasium tasks have no notion of success: then none is reported
            info["success"] = arrays["success"].copy()
        if self._terms is None:
            self._terms = tuple(self._each(Copies.term_names)[0])
        if self._terms:
            found = arrays["terms"].T.copy()
            info["reward_terms"] = dict(zip(self._terms, found))
        return dict(obs), reward, terminated, truncated, info

    def observe(self) -> Obs:
        """The current observation again, for example after `load_state_dict`."""
        obs: Obs = {"state": self._arrays["state"].copy()} if self._has_state else {}
        for key in self._images:
            obs[key] = self._arrays[key].copy()
        return obs

    @property
    def parts(self) -> EnvParts:
        """States are saved: exactly for MuJoCo tasks, else a resumed run begins new episodes; goals of goal tasks."""
        return EnvParts(saves=True, goals=self._goals, notes=self._notes)

    def render(self) -> tuple[Any, ...] | None:
        """One frame per environment, or None without render_mode."""
        if self.render_mode is None:
            return None
        return tuple(frame for frames in self._each(Copies.frames) for frame in frames)

    def state_dict(self) -> StateDict:
        """Arrays and texts from which `load_state_dict` continues.

        Exact for MuJoCo environments and for those whose attributes are plain data (classic control). Others cannot be
        saved: there "exact" is False for the environment and its episode starts anew, with a seed that depends on the
        first seed and the steps so far, so that a resumed run is valid, repeatable, but not equal.
        """
        out: dict[str, object] = {"id": self.id, "started": self._started}
        out |= {"seed": self._seed, "count": self._count}
        out |= {key: value.copy() for key, value in self._arrays.items() if not key.startswith("final.")}
        pending = self._seeds
        out["pending_seeds"] = np.array(pending if pending is not None else [], np.int64)
        states = [state for part in self._each(Copies.save) for state in part]
        out["exact"] = np.array([state is not None for state in states])
        for i, state in enumerate(states):
            out |= {f"env{i}.{key}": value for key, value in (state or {}).items()}
        return out

    def load_state_dict(self, state: StateDict) -> None:
        """Continue as the saved environment would have; see `state_dict` for where that is exact.

        Raises:
            ValueError: saved from another id or another number of environments.
        """
        exact = np.asarray(state["exact"], bool)
        if state["id"] != self.id or len(exact) != self.num_envs:
            raise ValueError(
                f"saved environment state is of {len(exact)} copies of '{state['id']}', expected {self.num_envs} of "
                f"'{self.id}'"
            )
        own: list[dict[str, object]] = [{} for _ in range(self.num_envs)]
        for key, value in state.items():
            if key.startswith("env"):
                index, _, name = key[3:].partition(".")
                own[int(index)][name] = value
        self._call(Copies.load, [(i, own[i]) for i in np.flatnonzero(exact).tolist()])
        for key, array in self._arrays.items():
            if key in state:
                array[...] = state[key]
        pending = [int(item) for item in np.asarray(state["pending_seeds"])]
        self._seeds = pending or None
        self._started = bool(state["started"])
        self._seed, self._count = int(state["seed"]), int(state["count"])
        if self._started:
            restart = seeds(self._seed, self.num_envs, self._count + 1)
            self._call(Copies.reset, [(i, restart[i]) for i in np.flatnonzero(~exact).tolist()])

    def close_extras(self, **kwargs: object) -> None:
        """Close the environments and end the workers."""
        if self._copies is not None:
            self._copies.close()
        for worker in self._workers:
            worker.close()
        self._workers = []

    def _start(self, count: int, options: dict[str, object], shapes: dict[str, tuple[tuple[int, ...], str]]) -> None:
        method = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
        context: object = multiprocessing.get_context(method)
        if method == "forkserver":
            context.set_forkserver_preload(["robot_rl.sim.gym_copies"])
        shared = {
            key: (context.RawArray("B", math.prod(shape) * np.dtype(dtype).itemsize), dtype, shape)
            for key, (shape, dtype) in shapes.items()
        }
        self._arrays = gym_copies.view(shared)
        edges = [self.num_envs * k // count for k in range(count + 1)]
        for rows in itertools.pairwise(edges):
            self._workers.append(_Worker(context, rows, shared, options))
        for worker in self._workers:
            worker.wait()

    def _call(self, method: Callable[..., object], calls: list[tuple[Any, ...]]) -> None:
        """Call a method of `Copies` whose first argument is the row."""
        for row, *rest in calls:
            if self._copies is not None:
                method(self._copies, row, *rest)
            else:
                worker = self._worker_of(row)
                worker.ask(method, (row - worker.rows[0], *rest))

    def _worker_of(self, row: int) -> _Worker:
        return next(worker for worker in self._workers if worker.rows[0] <= row < worker.rows[1])

    def _each(self, method: Callable[[Copies], R]) -> list[R]:
        if self._copies is not None:
            return [method(self._copies)]
        return [worker.ask(method, ()) for worker in self._workers]

    def _report(self, reward: np.ndarray, *states: np.ndarray | None) -> None:
        for key, values in [("state", state) for state in states if state is not None] + [("reward", reward[:, None])]:
            bad = np.argwhere(~np.isfinite(values))
            if not len(bad):
                continue
            row, column = int(bad[0][0]), int(bad[0][1])
            if self._copies is not None:
                content = self._copies.crash(row)
            else:
                worker = self._worker_of(row)
                content = worker.ask(Copies.crash, (row - worker.rows[0],))
            name = f" ('{self.io.obs_names[column]}')" if key == "state" else ""
            told = f"environment {row} gave {values[row, column]} in component {column}{name} of {key}"
            raise crash.report(f"{self.id}: {told}, expected finite numbers", row, key, self._crash_dir, content)


class _Worker:
    """A process and the pipe to it."""

    def __init__(
        self,
        context: Any,
        rows: tuple[int, int],
        shared: dict[str, SharedRows],
        options: dict[str, object],
    ) -> None:
        self.rows = rows
        self.pipe, theirs = context.Pipe()
        self._process = context.Process(target=gym_copies.work, args=(theirs, shared, rows, options), daemon=True)
        self._process.start()
        theirs.close()

    def wait(self) -> None:
        """Until the command is done; raises what went wrong over there."""
        try:
            answer = self.pipe.recv_bytes()
        except EOFError:
            self._process.join(5)
            raise RuntimeError(
                f"the worker of environments {self.rows[0]} to {self.rows[1] - 1} died with exit code "
                f"{self._process.exitcode}; run with workers=0 to see why"
            ) from None
        if answer:
            raise RuntimeError(f"environments {self.rows[0]} to {self.rows[1] - 1}:\n{answer.decode()}")

    def ask(self, method: Callable[..., R], arguments: tuple[object, ...]) -> R:
        """Call a method of `Copies` on the worker's."""
        self.pipe.send_bytes(b"call")
        self.pipe.send((method, arguments))
        self.wait()
        return self.pipe.recv()

    def close(self) -> None:
        """Ask it to end, and end it where it does not."""
        with contextlib.suppress(OSError):
            self.pipe.send_bytes(b"close")
        self._process.join(5)
        if self._process.is_alive():
            self._process.terminate()
        self.pipe.close()


def _column(mask: np.ndarray, like: np.ndarray) -> np.ndarray:
    return mask.reshape(-1, *(1,) * (like.ndim - 1))


def _shapes(
    num_envs: int, actions: int, obs: dict[str, tuple[tuple[int, ...], str]], goal: int
) -> dict[str, tuple[tuple[int, ...], str]]:
    """Arrays shared with the copies: action, state, image.<key>, the same with "final.", and one column per result."""
    seen = {"state": ((0,), "float32")} | obs
    out: dict[str, tuple[tuple[int, ...], str]] = {"action": ((num_envs, actions), "float32")}
    for key, (shape, dtype) in seen.items():
        out[key] = out[f"final.{key}"] = ((num_envs, *shape), dtype)
    if goal:
        out |= dict.fromkeys(("achieved_goal", "desired_goal"), ((num_envs, goal), "float32"))
    out["reward"] = ((num_envs,), "float32")
    out["terms"] = ((num_envs, gym_copies.MOST_TERMS), "float32")
    for key in ("terminated", "truncated", "success", "knows_success"):
        out[key] = ((num_envs,), "bool")
    return out


def _action_names(env: gymnasium.Env, actions: int) -> tuple[str, ...]:
    model: MjModel | None = getattr(env.unwrapped, "model", None)
    if model is not None and getattr(model, "nu", None) == actions:
        names = [model.actuator(i).name for i in range(actions)]
        if all(names) and len(set(names)) == actions:
            return tuple(names)
    return tuple(f"action[{i}]" for i in range(actions))


def _control_hz(env: gymnasium.Env) -> float:
    dt = getattr(env.unwrapped, "dt", None)
    if dt:
        return round(1.0 / float(dt), 6)
    return float((env.unwrapped.metadata or {}).get("render_fps", 1.0))


make = GymVectorEnv
