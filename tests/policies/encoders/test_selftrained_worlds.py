"""How well 20 demonstrations teach `encoder=selftrained` to see, on worlds of ours; the truth is the simulator's."""

from typing import Any

import numpy as np
import pytest
import torch

from robot_rl import api
from robot_rl.policies.encoders.selftrained import SelfTrained, SelfTrainedOptions
from robot_rl.types.frames import Run


class Demonstrations:
    """Frames of episodes that a scripted expert drives to success, and what was true in each."""

    def __init__(self, env: Any, episodes: int, seed: int) -> None:
        self.frames: list[dict[str, np.ndarray]] = []
        self.truth: list[dict[str, np.ndarray]] = []
        self.marks: list[Run] = []
        self.encoded, self.unseen = -1, False
        for number in range(episodes):
            obs, _ = env.reset(seed=seed + number)
            first, won = len(self.frames), False
            for _ in range(env.world.episode_steps):
                self._note(env, obs)
                obs, _, _, _, info = env.step(env.parts.expert(obs))
                won = bool(info["success"][0])
                if won:
                    break
            self._note(env, obs)
            self.marks.append(Run(first, len(self.frames) - 1, won))
        self.sight = np.zeros((len(self.frames), 64), np.float32)

    def _note(self, env: Any, obs: dict[str, np.ndarray]) -> None:
        self.frames.append({key: value[0].copy() for key, value in obs.items()})
        if env.world.name == "insert":
            socket = env.physics.qpos[0, 8:11]
            self.truth.append({"goal": np.array([*socket[:2], 0.04]), "yaw": socket[2:].copy()})
        else:
            self.truth.append({"goal": env._view.task["goal"][0].copy(), "object": env.physics.qpos[0, 8:11].copy()})

    def runs(self):
        return self.marks

    def read(self, key, numbers):
        return np.stack([self.frames[i][key] for i in numbers])

    def write(self, first, sight):
        self.sight[first : first + len(sight), : sight.shape[1]] = sight


def fitted(world: str, lift: float = 0.0) -> tuple[SelfTrained, Demonstrations]:
    torch.set_num_threads(1)
    env: Any = api.make(
        world, 1, seed=0, cameras="own", proprio="own", camera_size=[64, 64], camera_quality="fast", supersample=2
    )
    encoder = SelfTrained(SelfTrainedOptions(lift=lift), env.io, seed=0)
    encoder.fit(Demonstrations(env, 20, seed=100))
    fresh = Demonstrations(env, 10, seed=900)
    encoder.encode(fresh)
    env.close()
    return encoder, fresh


def distances(fresh: Demonstrations, name: str, point: int) -> np.ndarray:
    """(n, 3) how far a point was seen from where it was, m."""
    return fresh.sight[:, 3 * point : 3 * point + 3] - np.stack([truth[name] for truth in fresh.truth])


@pytest.mark.slow
def test_on_pick_it_sees_cube_and_goal():
    """Within 1.5 cm and 2 cm in the median: the tip is held above the cube, and goals are labelled short."""
    _, fresh = fitted("pick")
    assert np.median(np.linalg.norm(distances(fresh, "object", 0), axis=1)) < 0.015
    assert np.median(np.linalg.norm(distances(fresh, "goal", 1), axis=1)) < 0.02


@pytest.mark.slow
def test_on_insert_it_sees_the_hole_to_a_millimetre_where_it_matters():
    _, fresh = fitted("insert", lift=0.025)
    aside = np.linalg.norm(distances(fresh, "goal", 0)[:, :2], axis=1)
    tips = np.stack([frame["tool"][:2] for frame in fresh.frames])
    near = np.linalg.norm(tips - np.stack([truth["goal"][:2] for truth in fresh.truth]), axis=1) < 0.006
    assert near.sum() > 50
    assert np.median(aside[near]) < 0.0015  # after the first fit alone; refits halve it
