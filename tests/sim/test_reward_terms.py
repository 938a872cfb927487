"""Rewards term by term: what engines report adds up to the reward, of every world that names its terms."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from robot_rl import report
from robot_rl.loops.reward_terms import BLOCK, RewardTerms
from robot_rl.sim import array_env, gym_env, mujoco_env
from robot_rl.sim.world import add_terms
from robot_rl.sim.worlds.double_pendulum import DoublePendulum
from robot_rl.sim.worlds.halfcheetah import HalfCheetah
from robot_rl.sim.worlds.insert import Insert
from robot_rl.sim.worlds.pendulum import Pendulum
from robot_rl.sim.worlds.pick import Pick
from robot_rl.sim.worlds.quadruped import Quadruped
from robot_rl.sim.worlds.race import Race
from robot_rl.sim.worlds.reach import Reach
from robot_rl.sim.worlds.transfer import Transfer
from robot_rl.types import Step

ENVS: dict[str, tuple[Any, set[str]]] = {
    "reach": (lambda: mujoco_env.make(3, 0, world=Reach()), {"way", "precise"}),
    "reach, ends": (lambda: mujoco_env.make(3, 0, world=Reach(terminate_on_success=True)), {"way", "precise", "time"}),
    "reach, sparse": (lambda: mujoco_env.make(3, 0, world=Reach(reward="sparse")), {"success"}),
    "pick": (lambda: mujoco_env.make(3, 0, world=Pick()), {"near", "grasp", "lift", "carry"}),
    "insert": (lambda: mujoco_env.make(3, 0, world=Insert()), set()),
    "transfer": (
        lambda: mujoco_env.make(3, 0, world=Transfer()),
        {"left_at_rod", "lift", "right_at_rod", "hand_over", "carry"},
    ),
    "quadruped": (lambda: mujoco_env.make(3, 0, world=Quadruped()), set()),
    "halfcheetah": (lambda: mujoco_env.make(3, 0, world=HalfCheetah()), {"forward", "control"}),
    "double_pendulum": (lambda: mujoco_env.make(3, 0, world=DoublePendulum()), {"height", "effort"}),
    "race": (lambda: mujoco_env.make(3, 0, world=Race()), {"progress", "steering", "collision", "lap"}),
    "pendulum": (lambda: array_env.ArrayVectorEnv(Pendulum(), 3, 0), {"angle", "speed", "torque"}),
    "gymnasium": (lambda: gym_env.make(3, 0, id="HalfCheetah-v5"), {"forward", "ctrl"}),
}


@pytest.mark.parametrize("name", ENVS)
def test_terms_add_up_to_the_reward(name: str) -> None:
    make, names = ENVS[name]
    env, rng = make(), np.random.default_rng(0)
    env.reset(seed=0)
    for _ in range(20):
        _, reward, _, _, info = env.step(rng.uniform(-1, 1, (3, env.io.action_dim)).astype(np.float32))
        terms = info["reward_terms"]
        assert len(terms) > 1 or names == {"success"}
        assert not names or set(terms) == names
        np.testing.assert_allclose(sum(terms.values()), reward, rtol=1e-5, atol=1e-5)
    env.close()


def step(valid: list[bool], **terms: list[float]) -> Step:
    none: Any = None
    values = {name: torch.tensor(term) for name, term in terms.items()}
    info = {"reward_terms": values} if terms else {}
    return Step({}, none, none, {}, none, none, {}, np.array(valid), none, none, info)


def test_means_and_extremes_are_of_the_valid_steps_since_the_last_reading() -> None:
    terms = RewardTerms()
    terms.add(step([True, True], near=[1.0, 3.0], cost=[0.0, -1.0]))
    terms.add(step([True, False], near=[5.0, 100.0]))
    terms.add(step([True, True]))  # an environment that names none
    saved, other = terms.state_dict(), RewardTerms()
    other.load_state_dict(saved)
    wanted = {"reward/near": 3.0, "reward_low/near": 1.0, "reward_high/near": 5.0}
    wanted |= {"reward/cost": -0.5, "reward_low/cost": -1.0, "reward_high/cost": 0.0}
    assert terms.metrics() == other.metrics() == wanted
    assert terms.metrics() == {}
    for i in range(2 * BLOCK + 3):
        terms.add(step([True], near=[float(i)]))
    assert terms.metrics()["reward/near"] == pytest.approx(BLOCK + 1)


def test_terms_are_ranked_and_what_was_never_paid_is_named(tmp_path: Path) -> None:
    def row(at: int, **terms: tuple[float, float, float]) -> dict[str, float]:
        ends = ("reward", "reward_low", "reward_high")
        return {"step": at} | {f"{end}/{name}": v for name, each in terms.items() for end, v in zip(ends, each)}

    rows = [
        row(10, near=(0.1, 0.0, 0.2), lift=(0.3, 0.0, 1.0), grasp=(0.0, 0.0, 0.0), jerk=(-0.81, -2.0, 0.0)),
        row(20, near=(0.3, 0.0, 0.4), lift=(0.9, 0.0, 1.0), grasp=(0.0, 0.0, 0.0), torque=(-0.19, -1.0, 0.0)),
    ]
    found = report.rank_terms(rows)
    assert found == {"reward": "lift 75%, near 25%", "penalties": "jerk 81%, torque 19%", "always 0": "grasp"}
    assert report.write_terms(tmp_path / "terms.png", rows) == tmp_path / "terms.png"
    assert (tmp_path / "terms.png").read_bytes()[:4] == b"\x89PNG"
    assert report.rank_terms([{"step": 1}]) == {}
    assert report.write_terms(tmp_path / "none.png", [{"step": 1}]) is None


def test_a_reward_without_a_term_is_refused() -> None:
    with pytest.raises(ValueError, match="no term; expected at least one name"):
        add_terms({}, np)
