"""The pendulum world: Gymnasium's own, its parameters, equal starts, and bad input."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest

from robot_rl.sim.array_env import ArrayVectorEnv
from robot_rl.sim.worlds.pendulum import Pendulum


def test_pendulum_nominal_equals_gymnasium_step_by_step() -> None:
    theirs = gymnasium.make("Pendulum-v1")
    theirs.reset(seed=0)
    inner, world, rng = theirs.unwrapped, Pendulum(), np.random.default_rng(1)
    state = {key: value[None] for key, value in world.start(rng).items()}
    inner.state = np.array([state["angle"][0], state["velocity"][0]])  # type: ignore[attr-defined]
    for _ in range(150):
        action = rng.uniform(-1.0, 1.0, (1, 1))
        obs, reward, *_ = theirs.step((2.0 * action[0]).astype(np.float64))
        mine, *_ = world.step(state, action)
        np.testing.assert_allclose(world.observe(state)[0], obs, atol=1e-5)
        assert isinstance(mine, dict)  # its terms
        assert sum(float(term[0]) for term in mine.values()) == pytest.approx(float(reward), abs=1e-6)


def test_pendulum_length_and_wind_by_hand() -> None:
    """From horizontal (sin 1) at rest: 15 / 2 + 3 / (0.5 * 4) * (0 + 1) = 9 rad/s^2, times 0.05 s."""
    world = Pendulum(mass=0.5, length=2.0, wind=1.0)
    state = {key: value[None] for key, value in world.start(np.random.default_rng(0)).items()}
    state["angle"], state["velocity"] = np.array([np.pi / 2]), np.zeros(1)
    world.step(state, np.zeros((1, 1)))
    assert state["velocity"][0] == pytest.approx(0.45)


def test_pendulum_ranges_are_drawn_anew_and_starts_are_those_of_any_dynamics() -> None:
    wide = ArrayVectorEnv(Pendulum(length=(0.7, 1.3), wind=(-1.0, 1.0)), 64, 3)
    assert 0.7 <= wide.state["length"].min() < 0.8
    assert 1.2 < wide.state["length"].max() <= 1.3
    assert wide.state["mass"].tolist() == [1.0] * 64
    before = wide.state["wind"].copy()
    wide.reset()
    assert (wide.state["wind"] != before).all()
    windy, calm = (ArrayVectorEnv(Pendulum(wind=w), 64, 3).reset(seed=5)[0]["state"] for w in (1.0, 0.0))
    np.testing.assert_array_equal(windy, calm)
    np.testing.assert_array_equal(windy, wide.reset(seed=5)[0]["state"])


def test_pendulum_expert_swings_up_and_the_picture_shows_it() -> None:
    env = ArrayVectorEnv(Pendulum(), 8, 0, "rgb_array")
    obs, _ = env.reset(seed=0)
    info = {}
    for _ in range(199):
        obs, *_, info = env.step(env.expert(obs))
    assert info["success"].mean() >= 0.75
    upright = np.argmax(info["success"])
    red = (env.render()[upright] == (190, 70, 70)).all(-1)
    assert red[:60].sum() > 5 * red[70:].sum()


def test_pendulum_bad_input_is_refused() -> None:
    with pytest.raises(ValueError, match="wind is"):
        Pendulum(wind=(1.0, -1.0))
    with pytest.raises(ValueError, match="length is"):
        Pendulum(length=(0.1, 0.2, 0.3))
    with pytest.raises(ValueError, match="positive kilograms"):
        Pendulum(mass=0.0)
    with pytest.raises(ValueError, match="at least 1 step"):
        Pendulum(steps=0)


def test_one_seed_per_row():
    both, one = (ArrayVectorEnv(Pendulum(), n, 0) for n in (2, 1))
    seen = both.reset(seed=[5, 9])[0]["state"]
    for row, seed in enumerate((5, 9)):
        np.testing.assert_array_equal(seen[row], one.reset(seed=seed)[0]["state"][0])
    with pytest.raises(ValueError, match="seed has 1 entries, expected 2"):
        both.reset(seed=[1])


def test_a_state_of_another_number_of_copies_is_refused():
    state = ArrayVectorEnv(Pendulum(), 2, 0).state_dict()
    with pytest.raises(ValueError, match=r"seeds of shape \(2, 2\), expected \(3, 2\)"):
        ArrayVectorEnv(Pendulum(), 3, 0).load_state_dict(state)
