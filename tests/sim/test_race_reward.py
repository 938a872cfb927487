"""The simple driving reward: a lap pays 100, nothing is paid twice, factors and timers by hand."""
# pyright: reportOperatorIssue=false, reportAttributeAccessIssue=false, reportArgumentType=false, reportCallIssue=false

from __future__ import annotations

from typing import Any

import array_api_compat.numpy as xnp
import numpy as np
import pytest

from robot_rl.sim.check import check
from robot_rl.sim.engine_options import EngineOptions
from robot_rl.sim.mujoco_env import make
from robot_rl.sim.worlds.driving_reward import DrivingLimits, SimpleReward
from robot_rl.sim.worlds.race import Race

DT = 0.05
QUIET = DrivingLimits(
    brake=-1e9, accelerate=1e9, side=1e9, jerk_along=1e9, jerk=1e9, yaw_rate=1e9, yaw_acceleration=1e9, speed=1e9
)  # fmt: skip


def drive(limits: DrivingLimits, steps: Any, n: int = 1) -> tuple[np.ndarray, dict[str, Any]]:
    """Rewards (T, n) of steps {best, along, side, yaw_rate, offset}, each a number or (n,)."""
    simple = SimpleReward(50.0, DT, limits)
    task = {"best": np.zeros(n), **simple.start(np.zeros(n), xnp)}
    rewards = []
    for step in steps:
        values = {name: np.zeros(n) + step.get(name, 0.0) for name in ("along", "side", "yaw_rate", "offset")}
        task["best"] = np.maximum(task["best"], np.zeros(n) + step.get("best", 0.0))
        simple.update(task, xnp, **values)
        rewards.append(simple.value(task, np.zeros(n, bool) | step.get("left", False), xnp))
    return np.stack(rewards), task


def test_lap_without_penalties_pays_a_hundred() -> None:
    rewards, _ = drive(QUIET, [{"best": x} for x in np.linspace(0, 50.0, 37)])
    assert rewards.sum() == pytest.approx(100.0)


def test_piece_driven_twice_pays_once() -> None:
    rewards, _ = drive(QUIET, [{"best": x} for x in (5.0, 3.0, 5.0, 6.0)])
    assert rewards[:, 0].tolist() == pytest.approx([10.0, 0.0, 0.0, 2.0])


def test_leaving_the_track_costs_one_whatever_was_gained() -> None:
    rewards, _ = drive(QUIET, [{"best": 5.0, "left": True}])
    assert rewards[0, 0] == -1.0


@pytest.mark.parametrize(("speed", "factor"), [(2.0, 1.0), (3.5, 0.5), (9.0, 0.0)])
def test_speeding_factor(speed: float, factor: float) -> None:
    from dataclasses import replace

    rewards, _ = drive(replace(QUIET, speed=3.0, speed_margin=1.0), [{"best": 1.0, "along": speed}])
    assert rewards[0, 0] == pytest.approx(2.0 * factor)


def test_comfort_factor_counts_exceeded_limits() -> None:
    """From rest to 0.1 m/s in a step: 2 m/s^2 are allowed, the jerk of 40 m/s^3 is beyond both limits: 1 - 2/12. At
    constant speed nothing is exceeded; with 3.5 rad/s of yaw rate at 1 m/s the yaw rate and its change are (and the
    jerk of the lateral acceleration that begins with it)."""
    from dataclasses import replace

    limits = replace(DrivingLimits(), speed=1e9)
    rewards, task = drive(limits, [{"best": 0.5, "along": 0.1}])
    assert rewards[0, 0] == pytest.approx(1.0 - 2 / 12)
    steady = [{"along": 1.0} for _ in range(5)]
    rewards, task = drive(limits, [*steady, {"along": 1.0, "best": 0.5}])
    assert rewards[-1, 0] == pytest.approx(1.0)
    rewards, task = drive(limits, [*steady, {"along": 1.0, "best": 0.5, "yaw_rate": 3.5}])
    assert task["factor"][0] == pytest.approx(1.0 - 3 / 12)


def test_timers_belong_to_their_environment() -> None:
    """The named defect: one environment off centre for long halves its own reward and nobody else's; back on the line
    the timer begins anew."""
    off = [{"best": 0.5 * (t + 1), "offset": np.array([0.5, 0.0])} for t in range(25)]
    back = [{"best": 13.0, "offset": 0.0}, {"best": 13.5, "offset": np.array([0.5, 0.0])}]
    rewards, _ = drive(QUIET, [*off, *back], n=2)
    late = int(3.0 / 10**0.5 / DT) + 1
    assert rewards[: late - 1, 0] == pytest.approx(1.0)
    assert rewards[late:25, 0] == pytest.approx(0.5)
    assert rewards[:, 1] == pytest.approx(1.0)
    assert rewards[25:, 0] == pytest.approx(1.0)


def test_world_with_the_simple_reward_keeps_the_contract_and_pays_the_expert() -> None:
    env = make(4, 0, world=Race(reward="simple"), options=EngineOptions(num_threads=1))
    assert check(env, steps=900) == []
    obs, _ = env.reset(seed=1)
    total = np.zeros(4)
    for _ in range(200):
        obs, reward, terminated, _, _ = env.step(env.expert(obs))
        total += reward
        assert not terminated.any()
    best = np.asarray(env.world.length)
    assert (total > 5.0).all()
    assert (total < 100.0 * 200 * DT * 4.0 / best).all()


def test_unknown_reward_is_refused() -> None:
    with pytest.raises(ValueError, match="'progress' or 'simple'"):
        Race(reward="dense")
