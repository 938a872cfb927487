"""Text worlds: the contract of a dialogue task, and N copies of it behind the vector-environment interface.

A turn is one utterance of the player and the world's answer. Every world has a closed vocabulary, an outcome that the
world itself verifies, a scripted expert, and a known optimum.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import ClassVar, NamedTuple, NoReturn, Protocol

import numpy as np
from gymnasium.vector import AutoresetMode

from robot_rl.types import EnvParts, IOSpec


class TextWorld(Protocol):
    """One dialogue task.

    Attributes:
        name: short name.
        vocabulary: every word that observations, expert and valid utterances use.
        max_turns: turns after which the dialogue is cut.
    """

    name: str
    vocabulary: tuple[str, ...]
    max_turns: int

    @property
    def optimum(self) -> float:
        """Largest expected sum of rewards from the state that `reset` left, over all that the player cannot know."""
        ...

    @property
    def anchor(self) -> str:
        """What the best next utterance depends on, as text; equal texts are equal states for the player."""
        ...

    @property
    def success(self) -> bool:
        """The task was solved."""
        ...

    def reset(self, seed: int) -> str:
        """Start the task of this seed and return its prompt."""
        ...

    def step(self, utterance: str) -> tuple[str, float, bool, bool]:
        """Take one turn: observation text, reward, terminated, truncated."""
        ...

    def expert(self) -> str:
        """The utterance of an optimal player."""
        ...


class TurnResult(NamedTuple):
    """What the worlds answered to one utterance each.

    Attributes:
        text: observation texts.
        reward: (M,) float32.
        terminated: (M,) bool.
        truncated: (M,) bool.
    """

    text: list[str]
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray


class TextVectorEnv:
    """N copies of a text world, with same-step autoreset.

    Observations are {"text": (N,) array of str objects}: the prompt after a reset, else the answer to the last
    utterance. Actions are (N, 1) arrays of str objects. Beside this interface there is one for learners that choose
    the task of every dialogue: `begin` and `say`, which never reset by themselves.

    Args:
        world: the world; the copies are made from it.
        num_envs: N.
        seed: environment i depends on the seed and i alone.

    Raises:
        ValueError: num_envs below 1.
    """

    metadata: ClassVar[dict[str, object]] = {"autoreset_mode": AutoresetMode.SAME_STEP, "render_modes": []}

    def __init__(self, world: TextWorld, num_envs: int, seed: int) -> None:
        if num_envs < 1:
            raise ValueError(f"num_envs is {num_envs}, expected 1 or more")
        self.world, self.num_envs = world, num_envs
        self.io = IOSpec(
            obs={"text": ((), "str")},
            action_names=("utterance",),
            action_low=(-1.0,),
            action_high=(1.0,),
            action_units=("1",),
            control_hz=1.0,
        )
        self._rows: list[TextWorld] = [copy.deepcopy(world) for _ in range(num_envs)]
        self._free: list[TextWorld] = []
        self._seed(seed)

    @property
    def parts(self) -> EnvParts:
        """Dialogues."""
        return EnvParts(dialogues=True)

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """Words of the world."""
        return self.world.vocabulary

    @property
    def max_turns(self) -> int:
        """Turns after which a dialogue is cut."""
        return self.world.max_turns

    def reset(self, *, seed: int | None = None, options: dict[str, object] | None = None) -> tuple[dict, dict]:
        """Start a new dialogue in every row.

        Args:
            seed: new seed of the stream of tasks; None goes on with the old one.
            options: unused; part of the interface.
        """
        if seed is not None:
            self._seed(seed)
        return {"text": _texts([self._start(i) for i in range(self.num_envs)])}, {}

    def step(self, action: np.ndarray) -> tuple[dict, np.ndarray, np.ndarray, np.ndarray, dict]:
        """One turn in every row; ended rows start their next dialogue.

        Args:
            action: (N, 1) utterances.

        Returns:
            Observation, (N,) reward, (N,) terminated, (N,) truncated and info with "final_obs", "success" (N,) bool and
            "optimum" (N,) of the dialogue that the turn belonged to.

        Raises:
            ValueError: wrong shape.
        """
        if np.shape(action) != (self.num_envs, 1):
            raise ValueError(f"action has shape {np.shape(action)}, expected ({self.num_envs}, 1): one utterance a row")
        result = _say(self._rows, [str(utterance) for utterance in np.asarray(action)[:, 0]])
        success = np.array([world.success for world in self._rows])
        info = {"success": success, "optimum": self._optimum.copy()}
        final = _texts(result.text)
        now = final.copy()
        ended = np.flatnonzero(result.terminated | result.truncated)
        if ended.size:
            info["final_obs"] = {"text": final}
            for i in ended:
                now[i] = self._start(int(i))
        return {"text": now}, result.reward, result.terminated, result.truncated, info

    def begin(self, seeds: Sequence[int]) -> list[str]:
        """Start one dialogue per seed, as many as there are seeds; equal seeds are equal tasks.

        Args:
            seeds: M task seeds.

        Returns:
            M prompts.
        """
        while len(self._free) < len(seeds):
            self._free.append(copy.deepcopy(self.world))
        return [world.reset(int(seed)) for world, seed in zip(self._free, seeds)]

    def say(self, rows: Sequence[int], utterances: Sequence[str]) -> TurnResult:
        """One turn in some of the dialogues that `begin` started.

        Args:
            rows: M indices into the seeds of `begin`.
            utterances: M utterances.
        """
        return _say([self._free[row] for row in rows], utterances)

    def facts(self, row: int) -> TextWorld:
        """The world of a dialogue that `begin` started, for its anchor, optimum, success and expert."""
        return self._free[row]

    def render(self) -> NoReturn:
        """Refused.

        Raises:
            RuntimeError: a text world has no picture.
        """
        raise RuntimeError("a text world has no picture to render; read its dialogues instead")

    def close(self) -> None:
        """Nothing to release."""

    def _seed(self, seed: int) -> None:
        self._draws = [np.random.default_rng([seed, i]) for i in range(self.num_envs)]
        self._optimum = np.zeros(self.num_envs)

    def _start(self, i: int) -> str:
        prompt = self._rows[i].reset(int(self._draws[i].integers(2**31)))
        self._optimum[i] = self._rows[i].optimum
        return prompt


def _say(worlds: Sequence[TextWorld], utterances: Sequence[str]) -> TurnResult:
    answers = [world.step(utterance) for world, utterance in zip(worlds, utterances)]
    text, reward, terminated, truncated = zip(*answers)
    return TurnResult(list(text), np.array(reward, np.float32), np.array(terminated), np.array(truncated))


def _texts(lines: Sequence[str]) -> np.ndarray:
    out = np.empty(len(lines), object)
    out[:] = lines
    return out
