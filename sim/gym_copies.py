"""Copies of one Gymnasium environment that write what they see straight into batch arrays.

Used in the process of the caller or in a worker process over shared memory (`work`). Imports neither torch nor the
contracts, so that a worker starts quickly.
"""

from __future__ import annotations

import ctypes
import difflib
import signal
import sys
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from robot_rl.extras import allow, require_foreign
from robot_rl.sim import gym_mujoco, gym_own, gym_state, robosuite_env
from robot_rl.sim.headless import load_mujoco, prefer_headless
from robot_rl.types import StateDict

SUCCESS = ("success", "is_success", "succeed")
"""Names under which environments report success in their info."""
TERM = "reward_"
"""How the names of a reward's terms begin in the info of Gymnasium's own tasks, such as "reward_ctrl"."""
MOST_TERMS = 16
"""Terms that are kept, those that an environment names first."""

_PACKAGES = {
    "gym_hil/": "gym_hil",
    "Meta-World/": "metaworld",
    "dm_control/": "shimmy",
    robosuite_env.ID: "robosuite",
    **dict.fromkeys(("Fetch", "Adroit", "Hand", "Franka", "AntMaze", "PointMaze"), "gymnasium_robotics"),
    **dict.fromkeys(("BipedalWalker", "LunarLander", "CarRacing"), "Box2D"),
}
"""Start of an id -> package that registers it."""

SharedRows = tuple["ctypes.Array[ctypes.c_ubyte]", str, tuple[int, ...]]
"""Memory that processes share, its dtype and its shape."""


@dataclass(frozen=True)
class Part:
    """Where one leaf of the observation goes.

    Attributes:
        path: keys and places that lead to the leaf, () for an observation that is a plain array.
        key: "state" or "image.<name>".
        start, size: columns of the state, 0 for images.
        kind: "vector", "onehot", "image", "gray" (one channel) or "planes" (channels first).
        counts, first: of "onehot": how many choices each number has, and the number of the first one.
    """

    path: tuple[str | int, ...]
    key: str
    start: int
    size: int
    kind: str
    counts: tuple[int, ...] = ()
    first: tuple[int, ...] = ()


@dataclass(frozen=True)
class Layout:
    """How observations and actions of one environment map to arrays.

    Attributes:
        parts: leaves of the observation in the order in which the state is laid out.
        state_names: names of the state's columns.
        images: key -> (H, W, 3).
        goal: numbers of a goal, of environments that say what was achieved and what is desired; 0 for others.
    """

    parts: tuple[Part, ...]
    state_names: tuple[str, ...]
    images: dict[str, tuple[int, int, int]]
    goal: int = 0


def make_one(id: str, kwargs: Mapping[str, object], render_mode: str | None) -> gymnasium.Env:
    """The environment without the wrappers whose work is done here: order check, step check, time limit.

    Raises:
        ValueError: the id is unknown; lists similar ones.
        ImportError: the id's package is missing.
    """
    prefer_headless()
    package = next((name for prefix, name in _PACKAGES.items() if id.startswith(prefix)), None)
    if package:
        wanted = '"shimmy[dm-control]"' if package == "shimmy" else package.replace("_", "-")
        module = require_foreign(package, f"'{id}' is one of its tasks: pip install {wanted}")
        if package in ("gymnasium_robotics", "shimmy"):
            gymnasium.register_envs(module)
        elif package in ("gym_hil", "robosuite"):
            gym_mujoco.refuse_new_mujoco(package)
        elif package == "metaworld":
            gym_mujoco.mend_meta_world()
        gym_mujoco.mend_enumerations()
    options = dict(kwargs)
    if render_mode is not None:
        options["render_mode"] = render_mode
    env = gym_own.make(id, options) if gym_own.is_file(id) else _make_registered(id, options)
    absent = sorted({"observation_space", "action_space"} - set(dir(env)))
    if absent:
        raise ValueError(
            f"{id} has no {' and no '.join(absent)}; set what it shows and takes, spaces of gymnasium.spaces"
        )
    return env


def _make_registered(id: str, options: dict[str, object]) -> gymnasium.Env:
    if ":" not in id and id not in gymnasium.registry:  # also an id without its version, which would be the newest one
        short = id.split("-")[0].split("/")[-1][:5].lower()
        close = [name for name in gymnasium.registry if short in name.lower()]
        shown = ", ".join(difflib.get_close_matches(id, close, 6, cutoff=0.0)) or "none that are installed"
        raise ValueError(f"no Gymnasium environment '{id}'; similar: {shown}")
    try:
        env = gymnasium.make(id, max_episode_steps=-1, disable_env_checker=True, **options)
    except gymnasium.error.UnregisteredEnv as error:
        raise ValueError(f"no Gymnasium environment '{id}': {error}") from error
    except ModuleNotFoundError as error:
        place, cause = id.rpartition(":")[0], error.__cause__
        if not isinstance(cause, ModuleNotFoundError) or cause.name != place:  # a task whose own imports fail
            raise ModuleNotFoundError(f"id={id} needs a package that is not here: {error}", name=error.name) from error
        raise ValueError(
            f"id={id}: there is no module '{place}' on the Python path; where {place}.py lies here, put PYTHONPATH=. "
            f"before the command, or name the class of a task: env=./{place}.py:<class>"
        ) from error
    if "mujoco" in sys.modules:  # a task that simulates with it has imported it by now
        load_mujoco()
    return env.env if type(env) is gymnasium.wrappers.OrderEnforcing else env


def layout(space: spaces.Space) -> Layout:
    """Lay out an observation space: first goal environments' "observation" and "desired_goal", else the space's order.

    Raises:
        ValueError: a leaf is neither a box of numbers, a picture, nor a discrete choice, or there is nothing to see.
    """
    parts: list[Part] = []
    names: list[str] = []
    images: dict[str, tuple[int, int, int]] = {}

    def visit(leaf: spaces.Space, path: tuple[str | int, ...]) -> None:
        name = ".".join(map(str, path)) or "observation"
        if isinstance(leaf, spaces.Dict):
            goal = leaf.spaces.keys() >= _GOAL
            first = ("observation", "desired_goal") if goal else ()
            for key in (*first, *(key for key in leaf.spaces if not goal or key not in _GOAL)):
                visit(leaf.spaces[key], (*path, key))
        elif isinstance(leaf, spaces.Tuple):
            for i, part in enumerate(leaf.spaces):
                visit(part, (*path, i))
        elif isinstance(leaf, spaces.Box) and leaf.dtype == np.uint8 and len(leaf.shape) == 4:  # stacked frames
            for i in range(leaf.shape[0]):
                visit(spaces.Box(leaf.low[i], leaf.high[i], dtype=np.uint8), (*path, i))
        elif isinstance(leaf, spaces.Box) and leaf.dtype == np.uint8 and len(leaf.shape) == 3:
            short = (
                ".".join(map(str, path[1:] if len(path) > 1 and path[0] in ("pixels", "images") else path)) or "pixels"
            )
            kind, shape = _picture(leaf.shape, name)
            images[f"image.{short}"] = shape
            parts.append(Part(path, f"image.{short}", 0, 0, kind))
        elif isinstance(leaf, (spaces.Box, spaces.MultiBinary)):
            size = int(np.prod(leaf.shape))
            if size > 1024 and len(leaf.shape) == 3 and {leaf.shape[0], leaf.shape[2]} & {1, 3}:
                raise ValueError(
                    f"observation '{name}' looks like a picture of {leaf.dtype}, {leaf.shape}: wrap the environment so "
                    "that it gives uint8 from 0 to 255, or flattens it where these are numbers"
                )
            parts.append(Part(path, "state", len(names), size, "vector"))
            names.extend(f"{name}[{i}]" for i in range(size))
        elif isinstance(leaf, spaces.Discrete):
            parts.append(Part(path, "state", len(names), int(leaf.n), "onehot", (int(leaf.n),), (int(leaf.start),)))
            names.extend(f"{name}={int(leaf.start) + i}" for i in range(int(leaf.n)))
        elif isinstance(leaf, spaces.MultiDiscrete):
            counts, first = (tuple(int(x) for x in np.ravel(values)) for values in (leaf.nvec, leaf.start))
            parts.append(Part(path, "state", len(names), sum(counts), "onehot", counts, first))
            names.extend(f"{name}[{k}]={low + i}" for k, (n, low) in enumerate(zip(counts, first)) for i in range(n))
        else:
            raise ValueError(
                f"observation '{name}' is {leaf}; expected a Box, Dict, Tuple, Discrete, MultiDiscrete or MultiBinary "
                "space. Wrap the environment so that it gives numbers or uint8 pictures"
            )

    visit(space, ())
    if not names and not images:
        raise ValueError(f"the observation space {space} holds no number; a policy needs something to see")
    return Layout(tuple(parts), tuple(names), images, _goal_width(space))


_GOAL = {"observation", "desired_goal", "achieved_goal"}


def _goal_width(space: spaces.Space) -> int:
    """G of a goal environment whose goals are vectors, else 0."""
    if not isinstance(space, spaces.Dict) or not space.spaces.keys() >= _GOAL:
        return 0
    shapes = {space.spaces[key].shape for key in ("achieved_goal", "desired_goal")}
    shape = shapes.pop()
    return int(shape[0]) if not shapes and shape is not None and len(shape) == 1 else 0


def _picture(shape: tuple[int, ...], name: str) -> tuple[str, tuple[int, int, int]]:
    if shape[2] == 3:
        return "image", (shape[0], shape[1], 3)
    if shape[2] == 1:
        return "gray", (shape[0], shape[1], 3)
    if shape[0] == 3:
        return "planes", (shape[1], shape[2], 3)
    raise ValueError(
        f"picture '{name}' has shape {shape}, expected (H, W, 3), (H, W, 1), (3, H, W) or a stack of these, "
        "(K, H, W, 3); wrap the environment with gymnasium.wrappers.TransformObservation"
    )


_CHOICES = spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary


def action_choices(space: spaces.Space) -> tuple[int, ...]:
    """How many choices each action has; empty where actions are numbers."""
    if not isinstance(space, _CHOICES):
        return ()
    box = action_box(space, "")
    return tuple(int(count) for count in box.high - box.low + 1)


def action_box(space: spaces.Space, id: str) -> spaces.Box:
    """The action space as a bounded box of one axis; choices are their whole numbers.

    Raises:
        ValueError: it is neither numbers nor choices, or none of them.
    """
    if isinstance(space, spaces.Discrete):
        first = int(space.start)
        return spaces.Box(first, first + int(space.n) - 1, (1,), np.int64)
    if isinstance(space, spaces.MultiDiscrete):
        start = np.ravel(space.start).astype(np.int64)
        return spaces.Box(start, start + np.ravel(space.nvec).astype(np.int64) - 1, dtype=np.int64)
    if isinstance(space, spaces.MultiBinary):
        return spaces.Box(0, 1, (int(np.prod(space.shape)),), np.int64)
    if not isinstance(space, spaces.Box):
        raise ValueError(
            f"'{id}' takes actions from {space}; expected a Box, Discrete, MultiDiscrete or MultiBinary space. Wrap "
            "the environment so that it takes one of them (gymnasium.ActionWrapper)"
        )
    if len(space.shape) != 1:
        return action_box(spaces.flatten_space(space), id)
    if not (np.isfinite(space.low).all() and np.isfinite(space.high).all()):
        raise ValueError(
            f"'{id}' has unbounded actions {space}; [-1, 1] cannot be scaled to them. Wrap it with finite bounds"
        )
    if not space.shape[0]:
        raise ValueError(f"'{id}' has the action space {space}, which holds no number; there is nothing to learn")
    return space


class EnvironmentFailed(RuntimeError):
    """A Gymnasium environment raised, or gave what its interface does not allow; the message says where."""


class Copies:
    """Some copies of an environment in this process.

    Args:
        id: Gymnasium id, also "module:Name-v0".
        kwargs: arguments of the environment.
        count: n copies.
        episode_steps: time limit in steps, or None.
        render_mode: passed to the environment.
        envs: environments made already, taken first.
    """

    def __init__(
        self,
        id: str,
        kwargs: Mapping[str, object],
        count: int,
        episode_steps: int | None,
        render_mode: str | None,
        envs: Sequence[gymnasium.Env] = (),
    ) -> None:
        self.id = id
        self.envs = [*envs, *(make_one(id, kwargs, render_mode) for _ in range(count - len(envs)))]
        first = self.envs[0]
        found = layout(first.observation_space)
        self.parts, self._goal = found.parts, bool(found.goal)
        box = action_box(first.action_space, id)
        low, high = box.low.astype(np.float64), box.high.astype(np.float64)
        self._one = isinstance(first.action_space, spaces.Discrete)
        self._action_space = first.action_space
        self._unit = not isinstance(first.action_space, _CHOICES) and bool((low == -1.0).all() and (high == 1.0).all())
        self._scale, self._offset = (high - low) / 2.0, (high + low) / 2.0
        self._dtype = np.int64 if self._one else first.action_space.dtype
        self._whole = bool(np.issubdtype(box.dtype, np.integer))
        self._steps = [env.step for env in self.envs]
        self._plain = len(self.parts) == 1 and self.parts[0].kind == "vector" and not self.parts[0].path
        self._flat = self._plain and len(first.observation_space.shape or ()) == 1
        self._limit = episode_steps or 0
        self.elapsed = [0] * count
        self.nominal = [gym_state.nominal_model(env) for env in self.envs]
        self._before = [gym_state.Before(env) for env in self.envs if gym_state.mujoco_parts(env)]
        self.arrays: dict[str, np.ndarray] = {}
        self.terms: tuple[str, ...] | None = None  # of the reward, once an info was seen

    def term_names(self) -> tuple[str, ...]:
        """Names of the columns of "terms" without their beginning, as of the first info that said anything."""
        return tuple(name.removeprefix(TERM) for name in self.terms or ())

    def bind(self, arrays: dict[str, np.ndarray]) -> None:
        """Write from now on into these arrays: see `GymVectorEnv` for their names."""
        self.arrays = arrays

    def reset(self, index: int, seed: int | None = None) -> None:
        """Start an episode of one copy and write its observation."""
        try:
            obs, _ = self.envs[index].reset(seed=seed)
            self.elapsed[index] = 0
            if self._flat and np.shape(obs) != self.envs[index].observation_space.shape:  # one number would fill a row
                raise ValueError(f"the observation has shape {np.shape(obs)}")
            self._write(index, obs)
        except (Exception, SystemExit) as error:  # exit() in a task would end the command without a word
            raise self._failure("reset()", error) from error

    def step(self, actions: np.ndarray) -> bool:
        """Step all copies with (n, A) actions in [-1, 1]; reset those that end, keeping their last observation.

        Returns:
            Whether any ended.
        """
        if self._whole:
            actions = np.rint(actions * self._scale + self._offset).astype(self._dtype)
            actions = actions[:, 0] if self._one else actions
        elif not self._unit:
            actions = (actions * self._scale + self._offset).astype(self._dtype)
        elif actions.dtype != self._dtype:
            actions = actions.astype(self._dtype)
        if not self._one and len(self._action_space.shape or ()) != 1:
            actions = actions.reshape(-1, *(self._action_space.shape or ()))
        for before in self._before:
            before.keep()
        try:
            return self._step_all(actions)
        except EnvironmentFailed:
            raise
        except (Exception, SystemExit) as error:
            raise self._failure("step()", error) from error

    def _step_all(self, actions: np.ndarray) -> bool:
        """Step all copies with actions of their own space."""
        ended = False
        arrays, elapsed, limit, flat = self.arrays, self.elapsed, self._limit, self._flat
        state, reward = arrays["state"], arrays["reward"]
        terminated, truncated, success = arrays["terminated"], arrays["truncated"], arrays["success"]
        known = arrays["knows_success"]
        for i, step in enumerate(self._steps):
            obs, reward[i], end, cut, info = step(actions[i])
            elapsed[i] += 1
            if flat:
                state[i] = obs
            else:
                self._write(i, obs)
            if self._goal:  # of this step: what a reset begins comes behind it
                arrays["achieved_goal"][i], arrays["desired_goal"][i] = obs["achieved_goal"], obs["desired_goal"]
            if elapsed[i] == limit:
                cut = True
            terminated[i] = end
            truncated[i] = cut and not end
            success[i] = False
            if info:
                if told := [bool(info[name]) for name in SUCCESS if name in info]:
                    known[i], success[i] = True, any(told)
                if self.terms is None:
                    self.terms = _terms(info)
                for column, name in enumerate(self.terms):
                    arrays["terms"][i, column] = info.get(name, 0.0)
            if end or cut:
                ended = True
                for key, array in arrays.items():
                    if key.startswith("final."):
                        array[i] = arrays[key[6:]][i]
                self.reset(i)
        return ended

    def _failure(self, what: str, error: BaseException) -> EnvironmentFailed:
        """What an error in one of the environments is told as: ours where it gave something of another form."""
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"raised at {Path(last.filename).name}:{last.lineno}"
        if last.filename == __file__:
            where = (
                "expected (observation, info) of reset(), (observation, reward, terminated, truncated, info) of step()"
                f", one number as the reward, observations in {self.envs[0].observation_space}"
            )
        return EnvironmentFailed(f"{self.id}, {what}: {type(error).__name__}: {error} ({where})")

    def _write(self, i: int, obs: Any) -> None:
        for part in self.parts:
            value = obs
            for key in part.path:
                value = value[key]
            if part.kind == "vector":
                self.arrays["state"][i, part.start : part.start + part.size] = np.ravel(value)
            elif part.kind == "onehot":
                row = self.arrays["state"][i, part.start : part.start + part.size]
                row[:] = 0.0
                start = 0
                for choice, count, first in zip(np.ravel(value), part.counts, part.first, strict=True):
                    if not 0 <= int(choice) - first < count:
                        raise IndexError(f"the choice {choice} is none of the {count} from {first} on")
                    row[start + int(choice) - first] = 1.0
                    start += count
            else:  # one channel broadcasts to three
                self.arrays[part.key][i] = np.moveaxis(value, 0, -1) if part.kind == "planes" else value

    def frames(self) -> list[Any]:
        """`render()` of every copy."""
        return [env.render() for env in self.envs]

    def save(self) -> list[dict[str, object] | None]:
        """`gym_state.save` of every copy, with its elapsed steps."""
        states = [gym_state.save(env, nominal) for env, nominal in zip(self.envs, self.nominal)]
        for state, elapsed in zip(states, self.elapsed):
            if state is not None:
                state["elapsed"] = elapsed
        return states

    def crash(self, index: int) -> dict[str, np.ndarray] | None:
        """What `crash.save` needs to repeat the last step of one copy, or None where it does not run on MuJoCo."""
        return self._before[index].content() if self._before else None

    def load(self, index: int, state: StateDict) -> None:
        """Restore one copy."""
        self.elapsed[index] = int(state["elapsed"])
        gym_state.load(self.envs[index], self.nominal[index], state)

    def close(self) -> None:
        """Close every copy."""
        for env in self.envs:
            env.close()


def _terms(info: Mapping[str, object]) -> tuple[str, ...]:
    """Names in an info that hold a term of the reward: numbers whose name begins with "reward_"."""
    numbers = (int, float, np.integer, np.floating)
    found = [name for name, value in info.items() if name.startswith(TERM) and isinstance(value, numbers)]
    return tuple(found[:MOST_TERMS])


def work(pipe: Connection, shared: dict[str, SharedRows], rows: tuple[int, int], options: dict) -> None:
    """Body of a worker process: serve commands for rows [first, end) of the shared arrays until the pipe closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    first, end = rows
    allow(options["id"])  # whoever started this process was allowed to make it
    try:
        copies = Copies(count=end - first, **options)
        arrays = view(shared)
        action = arrays.pop("action")[first:end]
        copies.bind({key: value[first:end] for key, value in arrays.items()})
        pipe.send_bytes(b"")
        while True:
            command = pipe.recv_bytes()
            if command == b"step":
                copies.step(action.copy())
                pipe.send_bytes(b"")
            elif command == b"close":
                copies.close()
                return
            else:
                method, arguments = pipe.recv()
                answer = method(copies, *arguments)
                pipe.send_bytes(b"")
                pipe.send(answer)
    except (EOFError, BrokenPipeError):
        return
    except EnvironmentFailed as error:
        pipe.send_bytes(str(error).encode())
    except Exception:
        pipe.send_bytes(traceback.format_exc().encode())


def view(shared: dict[str, SharedRows]) -> dict[str, np.ndarray]:
    """Arrays over shared memory: name -> (buffer, dtype, shape)."""
    return {
        key: np.frombuffer(memoryview(buffer), dtype).reshape(shape) for key, (buffer, dtype, shape) in shared.items()
    }
