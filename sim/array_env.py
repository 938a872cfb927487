"""Worlds that are arrays and no physics - grids, points - as N copies behind the vector-environment interface."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol, runtime_checkable

import gymnasium
import numpy as np

from robot_rl.sim import interface
from robot_rl.sim.draw import seed_list
from robot_rl.types import EnvParts, IOSpec, StateDict
from robot_rl.types.io import PRIVILEGED

State = dict[str, np.ndarray]
Reward = np.ndarray | dict[str, np.ndarray]
"""(N,), or terms by name, whose sum it is: then a run records each."""


class ArrayWorld(Protocol):
    """One task, written for N rows at once.

    Attributes:
        io: interface; one observation "state".
        episode_steps: steps after which an episode is truncated.
        expert: observations (N, S) -> actions (N, A) of a scripted expert; None where one observation does not tell it.
    """

    io: IOSpec
    episode_steps: int

    @property
    def expert(self) -> Callable[[np.ndarray], np.ndarray] | None:
        """See above."""
        ...

    def start(self, rng: np.random.Generator) -> State:
        """Arrays of one new episode, without a row axis."""
        ...

    def step(self, state: State, action: np.ndarray) -> tuple[Reward, np.ndarray, np.ndarray]:
        """Move on in place: actions (N, A) -> reward, or its named terms, terminated, success, (N,) each."""
        ...

    def observe(self, state: State) -> np.ndarray:
        """(N, S) float32."""
        ...

    def picture(self, state: State, row: int) -> np.ndarray:
        """(H, W, 3) uint8."""
        ...


@runtime_checkable
class TellingWorld(Protocol):
    """An `ArrayWorld` that tells critics and teachers more than its policy sees."""

    def privileged(self, state: State) -> dict[str, np.ndarray]:
        """Name -> (N,): all that is known of N rows."""
        ...


class ArrayVectorEnv(gymnasium.vector.VectorEnv):
    """N copies of an `ArrayWorld` with same-step autoreset; row i depends on the seed and i alone.

    Args:
        world: the task.
        num_envs: N.
        seed: of every start.
        render_mode: taken as it is; pictures are drawn when they are asked for.
        critic_state: Whether to observe all that the world knows as "privileged": for critics alone.
        teacher_state: Whether "state" is all of that: for a teacher (policy=online/distill).

    Raises:
        ValueError: num_envs below 1, or a world that tells no more than its policy sees.

    Attributes:
        at_end: called before ended rows begin anew, for a last picture.
    """

    at_end: Callable[[], None] | None = None

    def __init__(
        self,
        world: ArrayWorld,
        num_envs: int,
        seed: int,
        render_mode: str | None = None,
        *,
        critic_state: bool = False,
        teacher_state: bool = False,
    ) -> None:
        if num_envs < 1:
            raise ValueError(f"num_envs is {num_envs}, expected 1 or more")
        self.world, self.num_envs, self.io, self.render_mode = world, num_envs, world.io, render_mode
        self._critic, self._teacher = critic_state, teacher_state
        if critic_state or teacher_state:
            if not isinstance(world, TellingWorld):
                raise ValueError(
                    f"{type(world).__name__} shows its policy all that it knows, so that a critic or a teacher could "
                    "read no more; leave critic_state and teacher_state out, or give the world a method privileged"
                )
            names = tuple(world.privileged({key: x[None] for key, x in world.start(np.random.default_rng(0)).items()}))
            size = ((len(names),), "float32")
            self.io = replace(
                world.io,
                obs={"state": size if teacher_state else world.io.obs["state"]}
                | ({PRIVILEGED: size} if critic_state else {}),
                obs_names=names if teacher_state else world.io.obs_names,
            )
        interface.introduce(self, self.io, num_envs)
        self._seed(seed)

    def _seed(self, seed: int | Sequence[int]) -> None:
        if isinstance(seed, (int, np.integer)):
            self._words = np.array([(int(seed), i) for i in range(self.num_envs)], np.uint64)
        else:
            self._words = np.array([(item, 0) for item in seed_list(seed, self.num_envs)], np.uint64)
        self._episode = np.zeros(self.num_envs, np.int64)
        rows = [self._start(i) for i in range(self.num_envs)]
        self.state: State = {key: np.stack([row[key] for row in rows]) for key in rows[0]}
        self._tick = np.zeros(self.num_envs, np.int64)

    def _start(self, row: int) -> State:
        """The next episode of a row: drawn from the seed, the row and the episode's number."""
        self._episode[row] += 1
        return self.world.start(np.random.default_rng([*self._words[row].tolist(), int(self._episode[row])]))

    def _renew(self, rows: np.ndarray) -> None:
        for i in rows.tolist():
            for key, value in self._start(i).items():
                self.state[key][i] = value
        self._tick[rows] = 0

    def _obs(self) -> dict[str, np.ndarray]:
        obs = {} if self._teacher else {"state": self.world.observe(self.state)}
        if isinstance(self.world, TellingWorld) and (self._critic or self._teacher):
            known = np.stack(list(self.world.privileged(self.state).values()), 1).astype(np.float32)
            obs |= ({PRIVILEGED: known} if self._critic else {}) | ({"state": known} if self._teacher else {})
        return obs

    def reset(self, *, seed: Any = None, options: dict[str, object] | None = None) -> tuple[dict, dict]:
        """Start anew: all rows, or those of options["reset_mask"] (N,) bool."""
        if seed is not None:
            self._seed(seed)
        else:
            mask = (options or {}).get("reset_mask", np.ones(self.num_envs, bool))
            self._renew(np.flatnonzero(np.asarray(mask)))
        return self._obs(), {}

    def step(self, actions: np.ndarray) -> tuple[dict, np.ndarray, np.ndarray, np.ndarray, dict]:
        """One step of every row; ended ones begin anew.

        Raises:
            ValueError: an action that is not finite, or of another shape.
        """
        wanted = (self.num_envs, self.io.action_dim)
        if np.shape(actions) != wanted or not np.isfinite(actions).all():
            raise ValueError(f"actions of shape {np.shape(actions)}, expected finite numbers of shape {wanted}")
        executed = np.clip(actions, -1.0, 1.0).astype(np.float32)
        paid, terminated, success = self.world.step(self.state, executed)
        terms = paid if isinstance(paid, dict) else {}
        reward = sum(terms.values(), np.zeros(self.num_envs)) if isinstance(paid, dict) else paid
        self._tick += 1
        truncated = (self._tick >= self.world.episode_steps) & ~terminated
        info = {"success": success.copy(), "executed": executed, "intervened": np.zeros(self.num_envs, bool)}
        info["reward_terms"] = {name: term.astype(np.float32) for name, term in terms.items()}
        obs, over = self._obs(), terminated | truncated
        if over.any():
            info["final_obs"] = obs
            if self.at_end is not None:
                self.at_end()
            self._renew(np.flatnonzero(over))
            obs = self._obs()
        return obs, reward.astype(np.float32), terminated, truncated, info

    def expert(self, obs: dict[str, np.ndarray]) -> np.ndarray:
        """(N, A) actions of the world's expert.

        Raises:
            ValueError: it has none.
        """
        if self.world.expert is None:
            raise ValueError(f"{type(self.world).__name__} has no scripted expert")
        seen = self.world.observe(self.state) if self._teacher else obs["state"]
        return self.world.expert(np.asarray(seen))

    @property
    def parts(self) -> EnvParts:
        """The world's expert, and exact states."""
        return EnvParts(expert=None if self.world.expert is None else self.expert, saves=True)

    def render(self) -> tuple[np.ndarray, ...]:
        """A picture of every row."""
        return tuple(self.world.picture(self.state, i) for i in range(self.num_envs))

    def state_dict(self) -> StateDict:
        """Arrays, ticks, and where the stream of episodes stands."""
        state = {f"state.{key}": value.copy() for key, value in self.state.items()}
        return {**state, "tick": self._tick.copy(), "seed": self._words.copy(), "episode": self._episode.copy()}

    def load_state_dict(self, state: StateDict) -> None:
        """Continue exactly where `state_dict` was taken.

        Raises:
            ValueError: saved from another number of copies, or before copies had seeds of their own.
        """
        words = np.array(state["seed"], np.uint64)
        if words.shape != (self.num_envs, 2):
            raise ValueError(
                f"the saved environment has seeds of shape {words.shape}, expected {(self.num_envs, 2)}: it is of "
                "another number of copies or of an earlier version; start a new run"
            )
        self.state = {key: np.array(state[f"state.{key}"]) for key in self.state}
        self._tick, self._episode = np.array(state["tick"]), np.array(state["episode"])
        self._words = words
