"""Checks any environment against the contract of the project and says what is wrong.

    findings = check(make(num_envs=4, seed=0, world=Reach()))
    assert not findings, "\\n".join(findings)

Works on every vector environment with an `.io`: our engines, Gymnasium ids, a robot's environment with its fake.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode

from robot_rl.sim.arrays import host
from robot_rl.types import IOSpec, Obs


def check(env: Any, *, steps: int = 1200, seed: int = 0) -> list[str]:
    """Run an environment through the contract; it is reset and stepped, not closed.

    Args:
        env: at least two environments let the seeding of each be checked, too.
        steps: an episode has to end within this many steps, so that its end can be checked.
        seed: of the actions and resets.

    Returns:
        Findings, each with what is wrong, what was expected and how to mend it; empty means fine.
    """
    found = list(_spaces(env))
    if found:
        return found  # the rest would only repeat it in other words
    run = _Run(env, seed)
    raised: set[str] = set()
    for part in (_first_step, _episode, _actions, _determinism, _seeding, _restore, _expert):
        try:
            found += part(run, steps)
        except Exception as error:  # a broken environment may raise anything; the rest is still worth knowing
            text = f"the environment raised {type(error).__name__}: {error}"
            if text not in raised:  # one fault stops several parts
                found.append(f"{part.__name__[1:]}: {text}; expected no error{_place(error)}")
            raised.add(text)
    return list(dict.fromkeys(found))


def _place(error: BaseException) -> str:
    """Where the error arose, for those who write the environment."""
    trace = traceback.extract_tb((error.__cause__ or error).__traceback__)
    return f" (raised at {Path(trace[-1].filename).name}:{trace[-1].lineno}, {trace[-1].name})" if trace else ""


class _Run:
    """The environment, its sizes and a source of actions."""

    def __init__(self, env: Any, seed: int) -> None:
        self.env, self.seed = env, seed
        self.io: IOSpec = env.io
        self.count = int(env.num_envs)
        self._random = np.random.default_rng(seed)

    def action(self) -> np.ndarray:
        """Uniform random actions."""
        return self._random.uniform(-1.0, 1.0, (self.count, self.io.action_dim)).astype(np.float32)

    def play(self, actions: list[np.ndarray]) -> list[dict[str, np.ndarray]]:
        """What comes back for these actions."""
        return [_record(*self.env.step(action)) for action in actions]


def _record(obs: Obs, reward: object, terminated: object, truncated: object, info: object) -> dict[str, np.ndarray]:
    out = {f"obs['{key}']": host(value).copy() for key, value in obs.items()}
    return out | {"reward": host(reward).copy(), "terminated": host(terminated), "truncated": host(truncated)}


def _spaces(env: Any) -> Iterator[str]:
    io = getattr(env, "io", None)
    if not isinstance(io, IOSpec):
        yield f"env.io is {type(io).__name__}, expected robot_rl.types.IOSpec; describe observations and actions in it"
        return
    space = env.single_observation_space
    if not isinstance(space, gymnasium.spaces.Dict):
        yield f"single_observation_space is {space}, expected a Dict with the keys of io.obs {sorted(io.obs)}"
        return
    if set(space.spaces) != set(io.obs):
        yield f"single_observation_space has {sorted(space.spaces)}, io.obs has {sorted(io.obs)}; make them agree"
    for key in io.obs.keys() & space.spaces.keys():
        shape, dtype = io.obs[key]
        if tuple(space[key].shape or ()) != tuple(shape) or np.dtype(space[key].dtype) != np.dtype(dtype):
            yield (
                f"single_observation_space['{key}'] is {space[key].dtype}{list(space[key].shape or ())}, io.obs says "
                f"{dtype}{list(shape)}; make them agree"
            )
    for key, (shape, dtype) in io.obs.items():
        if key.startswith("image.") and (dtype != "uint8" or len(shape) != 3 or shape[2] != 3):
            yield f"io.obs['{key}'] is {dtype}{list(shape)}, expected uint8 pictures (H, W, 3)"
        if key == "state" and (dtype != "float32" or len(shape) != 1):
            yield f"io.obs['state'] is {dtype}{list(shape)}, expected float32 (S,); flatten it"
        if key == "state" and io.obs_names and len(io.obs_names) != shape[0]:
            yield f"io.obs_names has {len(io.obs_names)} names for {shape[0]} components; name each one"
    wanted = gymnasium.spaces.Box(-1.0, 1.0, (io.action_dim,), np.float32)
    if env.single_action_space != wanted:
        yield (
            f"single_action_space is {env.single_action_space}, expected {wanted}; scale to physical units inside the "
            "environment"
        )
    mode = env.metadata.get("autoreset_mode")
    if not isinstance(mode, AutoresetMode):
        yield f"metadata['autoreset_mode'] is {mode}, expected a gymnasium AutoresetMode; loops depend on it"
    if not (np.isfinite(io.control_hz) and io.control_hz > 0):
        yield f"io.control_hz is {io.control_hz}, expected decisions per second > 0"


def _array(name: str, value: np.ndarray, shape: tuple[int, ...], dtype: str) -> Iterator[str]:
    if value.shape != shape or value.dtype != np.dtype(dtype):
        yield f"{name} is {value.dtype}{list(value.shape)}, expected {dtype}{list(shape)}; convert it"
    elif not np.isfinite(value).all():
        row, *place = np.argwhere(~np.isfinite(value))[0].tolist()
        yield (
            f"{name} of environment {row} is {value[(row, *place)]}{f' at {place}' if place else ''}, expected finite "
            "numbers; find the division or root that fails"
        )


def _arrays(run: _Run, where: str, obs: Obs) -> Iterator[str]:
    if not isinstance(obs, dict) or set(obs) != set(run.io.obs):
        keys = sorted(obs) if isinstance(obs, dict) else type(obs).__name__
        yield f"{where} gives {keys}, expected a dict with {sorted(run.io.obs)}"
        return
    for key, (shape, dtype) in run.io.obs.items():
        value = host(obs[key])
        yield from _array(f"{where}['{key}']", value, (run.count, *shape), dtype)
        if key.startswith("image.") and value.size and value.min() == value.max():
            yield f"{where}['{key}'] is {value.flat[0]} everywhere; aim the camera at the scene and add a light"


def _first_step(run: _Run, steps: int) -> Iterator[str]:
    obs, _ = run.env.reset(seed=run.seed)
    yield from _arrays(run, "reset() observation", obs)
    kept = {key: host(value).copy() for key, value in obs.items()}
    next_obs, reward, terminated, truncated, info = run.env.step(run.action())
    yield from _arrays(run, "step() observation", next_obs)
    if any(not np.array_equal(kept[key], host(obs[key]), equal_nan=kept[key].dtype.kind == "f") for key in kept):
        yield "step() overwrites the observation that was returned before; return copies, buffers keep them"
    yield from _array("reward", host(reward), (run.count,), "float32")
    yield from _array("terminated", host(terminated), (run.count,), "bool")
    yield from _array("truncated", host(truncated), (run.count,), "bool")
    for key, shape, dtype in (
        ("success", (run.count,), "bool"),
        ("intervened", (run.count,), "bool"),
        ("executed", (run.count, run.io.action_dim), "float32"),
    ):
        value = host(info.get(key, np.zeros(0)))
        if key not in info and key != "success":  # tasks without a notion of success leave it out
            yield f"info['{key}'] is missing, expected an array of shape {shape}; loops and recorders read it"
        elif key in info and (value.shape != shape or value.dtype.kind != dtype[0]):
            yield f"info['{key}'] is {value.dtype}{list(value.shape)}, expected {dtype}{list(shape)}"


def _episode(run: _Run, steps: int) -> Iterator[str]:
    """The end of episodes: successors, flags, lengths."""
    env = run.env
    mode = env.metadata["autoreset_mode"]
    env.reset(seed=run.seed)
    length = np.zeros(run.count, int)
    limits: list[int] = []
    ended = False
    for _ in range(steps):
        obs, _, terminated, truncated, info = env.step(run.action())
        terminated, truncated = host(terminated), host(truncated)
        length += 1
        found = []
        if (terminated & truncated).any():
            found.append(
                "terminated and truncated are both True; a true end is no time limit, set truncated & ~terminated"
            )
        done = terminated | truncated
        if mode is AutoresetMode.SAME_STEP and (done.any() or "final_obs" in info):
            found += _successor(run, obs, info, done)
        if found:
            yield from found
            return
        limits += length[truncated].tolist()
        ended = ended or bool(done.any())
        if mode is AutoresetMode.DISABLED and done.any():
            env.reset(options={"reset_mask": done})
        length[done] = -1 if mode is AutoresetMode.NEXT_STEP else 0
        if ended and (len(limits) > run.count or not limits):
            break
    if len(set(limits)) > 1:
        yield (
            f"episodes were truncated after {sorted(set(limits))} steps, expected always the same number; reset the "
            "step counter of an environment with its episode"
        )
    if not ended:
        yield f"no episode ended within {steps} steps; set a time limit, or raise `steps` of the check"


def _successor(run: _Run, obs: Obs, info: Any, done: np.ndarray) -> list[str]:
    if "final_obs" not in info:
        return ["info['final_obs'] is missing where an episode ended; give the true successors as a dict like obs"]
    final = info["final_obs"]
    found = list(_arrays(run, "info['final_obs']", final))
    if found:
        return found
    same = np.ones(run.count, bool)
    for key in obs:
        equal = host(obs[key]) == host(final[key])
        same &= equal.reshape(run.count, -1).all(axis=1)
    for wrong, told in (
        (
            same & done,
            "equals the observation after the reset; expected the true successor, observed before the reset: "
            "bootstrapping from a reset observation is wrong",
        ),
        (~same & ~done, "differs from its observation though its episode goes on; expected the same"),
    ):
        if wrong.any():
            return [f"info['final_obs'] of environment {int(np.flatnonzero(wrong)[0])} {told}"]
    return []


def _actions(run: _Run, steps: int) -> Iterator[str]:
    """Values outside [-1, 1] are clipped, NaN is refused."""
    run.env.reset(seed=run.seed)
    wide = 3.0 * np.ones((run.count, run.io.action_dim), np.float32)
    info = run.env.step(wide)[4]
    if "executed" in info and np.abs(host(info["executed"])).max() > 1.0:
        yield "info['executed'] leaves [-1, 1] for actions outside; expected the clipped action that was executed"
    try:
        run.env.step(np.nan * wide)
    except ValueError:
        return
    yield "a NaN action was accepted, expected ValueError with the environment's index; check actions in step()"


def _expert(run: _Run, steps: int) -> Iterator[str]:
    """A scripted expert answers like a policy."""
    expert = run.env.parts.expert
    if expert is None:
        return
    action = host(expert(run.env.reset(seed=run.seed)[0]))
    wanted = (run.count, run.io.action_dim)
    if action.shape != wanted or not np.isfinite(action).all():
        yield f"expert gives {action.dtype}{list(action.shape)}, expected finite numbers of shape {list(wanted)}"


def _difference(first: list[dict[str, np.ndarray]], second: list[dict[str, np.ndarray]], rows: Any) -> str | None:
    for step, (a, b) in enumerate(zip(first, second)):
        for key, value in a.items():
            if not np.array_equal(value[rows], b[key][rows], equal_nan=value.dtype.kind == "f"):
                return f"{key} at step {step}"
    return None


def _determinism(run: _Run, steps: int) -> Iterator[str]:
    actions = [run.action() for _ in range(min(steps, 50))]
    run.env.reset(seed=run.seed)
    first = run.play(actions)
    run.env.reset(seed=run.seed)
    if where := _difference(first, run.play(actions), slice(None)):
        yield (
            f"two runs with reset(seed={run.seed}) and the same actions differ, first in {where}; draw every random "
            "number from a generator that reset(seed) starts anew, and reset all state"
        )


def _seeding(run: _Run, steps: int) -> Iterator[str]:
    """Streams differ between environments and between seeds, and one environment's reset leaves the others alone."""
    obs = {key: host(value).copy() for key, value in run.env.reset(seed=run.seed)[0].items()}
    other = {key: host(value) for key, value in run.env.reset(seed=run.seed + 1)[0].items()}
    if all(np.array_equal(obs[key], other[key]) for key in obs):
        yield (
            f"reset(seed={run.seed}) and reset(seed={run.seed + 1}) start equally; expected different initial states "
            "drawn from the seed"
        )
        return
    if run.count < 2:
        return
    if all((value == value[:1]).all() for value in obs.values()):
        yield "all environments start equally; give each environment a random stream of its own"
        return
    mask = np.zeros(run.count, bool)
    mask[0] = True
    actions = [run.action() for _ in range(min(steps, 20))]
    trials = []
    for extra in (False, True):
        run.env.reset(seed=run.seed)
        if extra:
            run.env.reset(options={"reset_mask": mask})
        played = run.play(actions)
        run.env.reset(options={"reset_mask": ~mask})
        trials.append([*played, *run.play(actions[:1])])
    if where := _difference(trials[0], trials[1], slice(1, None)):
        yield (
            f"an extra reset of environment 0 alone (options={{'reset_mask': ...}}) changes the others, first in "
            f"{where}; reset only the masked rows and draw for each environment from its own stream"
        )


def _restore(run: _Run, steps: int) -> Iterator[str]:
    if not run.env.parts.saves:
        yield "the environment has no state_dict() and load_state_dict(); a run could not be resumed exactly"
        return
    run.env.reset(seed=run.seed)
    run.play([run.action() for _ in range(7)])
    state = run.env.state_dict()
    if odd := [key for key, value in state.items() if np.asarray(value).dtype == object]:
        yield f"state_dict() holds Python objects under {odd}; expected arrays, numbers and texts"
        return
    if not np.all(state.get("exact", True)):
        yield (
            "it cannot be saved, as its state is in objects other than arrays, numbers and texts: a resumed run goes "
            "on with new episodes; of a task of your own keep the state in attributes of these kinds"
        )
        return
    actions = [run.action() for _ in range(min(steps, 50))]
    first = run.play(actions)
    run.env.load_state_dict(state)
    if where := _difference(first, run.play(actions), slice(None)):
        yield (
            f"after load_state_dict(state_dict()) the run goes on differently, first in {where}; save physics, "
            "counters, generators, the world's variables and copies rather than views"
        )
