"""An environment that shows what it asks for: a picture of another scene where it is done, and no sentence."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode

from robot_rl.data.goal_pictures import blank_sentences
from robot_rl.data.store import Store
from robot_rl.loops.hiding import Hiding
from robot_rl.state import Calls
from robot_rl.types import Obs, StateDict, VecEnv

_WORDS = "instruction"


def gallery(store: Store, camera: str) -> dict[bytes, np.ndarray]:
    """Sentence -> (K, H, W, 3) uint8: what the camera saw at the end of each success under that sentence.

    Args:
        store: episodes of the same world, other starts; `robot-rl collect only_success=true` makes one.
        camera: whose pictures.

    Raises:
        ValueError: the log lacks these pictures, sentences, or successes.
    """
    key = f"image.{camera}"
    missing = [name for name in (key, _WORDS) if name not in store.obs_keys]
    if missing:
        raise ValueError(f"the gallery {store.path} has no {missing}; it has {', '.join(store.obs_keys)}")
    success = np.asarray(store.column("episode_success"))
    found: dict[bytes, list[np.ndarray]] = {}
    for row in np.flatnonzero(success == 1):
        begin = int(store.start_obs[row])
        last = begin + int(store.length[row]) - int(not store.final_obs_valid[row])
        said = np.asarray(store.column(f"obs/{_WORDS}")[begin]).tobytes()
        found.setdefault(said, []).append(np.array(store.column(f"obs/{key}")[last]))
    if not found:
        raise ValueError(
            f"no episode of the gallery {store.path} is marked as a success; collect with only_success=true"
        )
    return {said: np.stack(pictures) for said, pictures in found.items()}


class ShownGoal(Hiding):
    """N copies of an environment in which "image.<camera>" is not the scene but a picture of the goal.

    At the start of an episode one picture of the gallery is drawn that was taken under the sentence that the
    environment says; it stays for the episode, and the sentence is replaced by `data.goal_pictures.SENTENCE`.

    Args:
        env: vector environment of ours with "image.<camera>" and "instruction"; same-step autoreset or none.
        pictures: see `gallery`.
        camera: whose pictures are goals.
        mismatched: pictures of another goal than what is asked, for comparison: what success is by chance where the
            policy looks at the picture.
        seed: of the draw.

    Raises:
        ValueError: the environment lacks pictures or sentences, pictures of another size, or a goal without a picture
            (when it is asked).
    """

    def __init__(
        self,
        env: VecEnv,
        pictures: dict[bytes, np.ndarray],
        *,
        camera: str = "front",
        mismatched: bool = False,
        seed: int = 0,
    ) -> None:
        self._key = f"image.{camera}"
        own = Calls(self._own_state, self._load_own_state)
        super().__init__(env, needed=(self._key,), hide=(), own=own)
        if _WORDS not in self.io.obs:
            raise ValueError("the environment says no sentence that names the picture; add env.world.sentences=plain")
        shape = tuple(self.io.obs[self._key][0])
        other = {x.shape[1:] for x in pictures.values()} - {shape}
        if other:
            raise ValueError(
                f"the gallery's pictures are {sorted(other)}, the camera gives {shape}; use one camera_size"
            )
        if mismatched and len(pictures) < 2:
            raise ValueError("mismatched goals need pictures of at least two goals")
        self._pictures, self._mismatched = pictures, mismatched
        self._rng = np.random.default_rng(seed)
        self._shows = np.zeros((env.num_envs, *shape), np.uint8)

    def reset(self, *, seed: Any = None, options: dict[str, object] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start new episodes; a seed is that of the draw as well."""
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        return super().reset(seed=seed, options=options)

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """One control step; the final observation shows the goal of the episode that ended."""
        obs, reward, terminated, truncated, info = self.env.step(actions)
        if "final_obs" in info:
            info = {**info, "final_obs": self._show(info["final_obs"])}
        ended = np.asarray(terminated, bool) | np.asarray(truncated, bool)
        if self._mode is AutoresetMode.SAME_STEP and ended.any():
            self._begin(ended, obs)
        return self._show(obs), reward, terminated, truncated, info

    def _own_state(self) -> dict[str, object]:
        return {"rng": self._rng.bit_generator.state, "shows": self._shows.copy()}

    def _load_own_state(self, state: StateDict) -> None:
        self._rng.bit_generator.state = state["rng"]
        self._shows = np.array(state["shows"], np.uint8)

    def _begin(self, rows: np.ndarray, obs: Obs) -> None:
        said = np.asarray(obs[_WORDS])
        for row in np.flatnonzero(rows):
            asked = said[row].tobytes()
            if asked not in self._pictures:
                text = asked.rstrip(b"\0").decode(errors="replace")
                raise ValueError(f"the gallery has no picture of '{text}'; collect one with the sentences of this env")
            if self._mismatched:
                others = sorted(key for key in self._pictures if key != asked)
                asked = others[int(self._rng.integers(len(others)))]
            choice = self._pictures[asked]
            self._shows[row] = choice[int(self._rng.integers(len(choice)))]

    def _show(self, obs: Obs) -> Obs:
        return {**obs, self._key: self._shows.copy(), _WORDS: blank_sentences(np.asarray(obs[_WORDS]))}
