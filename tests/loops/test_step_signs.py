"""What steps tell: traces whose reward, actions and observations are known by construction."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from robot_rl.loops.step_signs import LENGTH, SHORTEST, StepSigns
from robot_rl.types import Step

EPISODE = 50


def trace(steps: int = 800, *, pay=lambda state, action, past: -(state[0] ** 2), idle: bool = False, seed: int = 0):
    """A point (3 coordinates) that two actions push; episodes of 50 steps."""
    rng, signs = np.random.default_rng(seed), StepSigns()
    past: list[float] = []
    state = np.zeros(3)
    for t in range(steps):
        action = rng.uniform(-1, 1, 2)
        state = 0.9 * state + np.array([action[0], 0.0 if idle else action[1], rng.normal()])
        past.append(-(state[0] ** 2))
        add(signs, state, action, pay(state, action, past), over=t % EPISODE == EPISODE - 1)
        if t % EPISODE == EPISODE - 1:
            state, past = rng.normal(size=3), []
    return signs


def add(signs: StepSigns, state, action, reward, *, over=False, success=False, valid=True) -> None:
    row = {"state": np.asarray(state, np.float32)[None]}
    a, no = np.asarray(action, np.float32)[None], np.zeros(1, bool)
    info = {"success": np.array([success])}
    paid = np.array([reward], np.float32)
    signs.add(Step(row, a, paid, row, no, np.array([over]), row, np.array([valid]), no, a, info))


def test_a_reward_of_the_step_is_told_by_it() -> None:
    found = trace().metrics()
    assert found["steps/fit"] > 0.99  # a square is among the features
    assert found["steps/fit_late"] < found["steps/fit_now"]
    assert found["steps/idle_actions"] == 0.0
    assert found["steps/actions"] == 2.0
    assert 0.4 < found["steps/action_spread"] < 0.7  # uniform on [-1, 1]: 0.577


def test_a_reward_that_comes_late_is_found_with_its_delay() -> None:
    found = trace(pay=lambda state, action, past: past[-9] if len(past) > 8 else 0.0).metrics()
    assert found["steps/late"] == 8.0
    assert found["steps/fit_late"] > 0.99
    assert found["steps/fit_now"] < 0.3


def test_progress_that_ends_in_a_rare_prize_is_no_noise() -> None:
    def pay(state, action, past):  # of a shaped reward: how much nearer, and 100 now and then
        return (past[-1] - past[-2] if len(past) > 1 else 0.0) + (100.0 if len(past) == EPISODE else 0.0)

    assert trace(pay=pay).metrics()["steps/fit"] > 0.7


def test_noise_is_told_by_nothing() -> None:
    rng = np.random.default_rng(1)
    found = trace(pay=lambda state, action, past: past[-1] + 30.0 * rng.normal()).metrics()
    assert max(found["steps/fit"], found["steps/fit_late"], abs(found["steps/smooth"])) < 0.1


@pytest.mark.parametrize("dead", [False, True])
def test_a_choice_whose_numbers_mean_no_order_is_no_dead_action(dead: bool) -> None:
    rng, signs, state = np.random.default_rng(0), StepSigns(), np.zeros(3)
    for _ in range(800):
        choice = int(rng.integers(4))
        push = 0.0 if dead else (0.0, 1.0, 1.0, 0.0)[choice]  # uncorrelated with the number of the choice
        state = 0.9 * state + np.array([push, 0.0, rng.normal()])
        add(signs, state, [choice / 1.5 - 1.0], 0.0)
    assert signs.metrics()["steps/idle_actions"] == float(dead)


@pytest.mark.parametrize("dead", [False, True])
def test_steps_between_places_are_no_dead_action_though_no_mean_tells_them(dead: bool) -> None:
    rng, signs, place = np.random.default_rng(0), StepSigns(), 0
    for _ in range(800):  # a ring of twelve places, seen as flags: left, stay, right
        choice = int(rng.integers(3))
        place = (place + (int(rng.integers(3)) if dead else choice) - 1) % 12
        add(signs, np.eye(12)[place], [choice - 1.0], 0.0)
    assert signs.metrics()["steps/idle_actions"] == float(dead)


def test_more_places_than_steps_can_tell_are_no_dead_action() -> None:
    rng, signs, place = np.random.default_rng(0), StepSigns(), 0
    for _ in range(800):
        choice = int(rng.integers(3))
        place = (place + choice - 1) % 300
        add(signs, np.eye(300)[place], [choice - 1.0], 0.0)
    assert signs.metrics()["steps/idle_actions"] == 0.0


@pytest.mark.parametrize("costs", [False, True])
def test_an_action_that_only_the_reward_sees_is_no_dead_one_but_its_effort_is_no_answer(costs: bool) -> None:
    rng, signs, state = np.random.default_rng(0), StepSigns(), np.zeros(3)
    for _ in range(800):
        action = rng.uniform(-1, 1, 2)
        pays = -(action[1] ** 2) if costs else -((action[1] - state[2]) ** 2)  # to say what was seen, or to do nothing
        state = 0.9 * state + np.array([action[0], 0.0, rng.normal()])
        add(signs, state, action, pays)
    assert signs.metrics()["steps/idle_actions"] == float(costs)


def test_the_first_and_the_last_of_two_choices_are_no_limits() -> None:
    signs = StepSigns(choices=True)
    for t in range(SHORTEST):
        add(signs, [t], [1.0 - 2.0 * (t % 2)], float(t))
    found = signs.metrics()
    assert "steps/action_edge" not in found
    assert found["steps/action_spread"] == 1.0


def test_an_action_that_moves_nothing_is_counted() -> None:
    assert trace(idle=True).metrics()["steps/idle_actions"] == 1.0


def test_rewards_at_their_bound_and_observations_at_theirs() -> None:
    signs = StepSigns()
    for t in range(SHORTEST):  # a quarter of the steps is below the bound, each at a place of its own
        add(signs, [min(t, 50), t % 2], [1.0], -1.0 - (t + 1) / 1000 if t % 4 == 0 else -1.0)
    found = signs.metrics()
    assert found["steps/reward_at_edge"] == 0.75
    assert found["steps/obs_stuck"] == 1.0  # the second is a flag
    assert found["steps/action_edge"] == 1.0
    assert found["steps/obs_largest"] == 50.0


def test_a_sparse_reward_is_no_clipped_one() -> None:
    signs = StepSigns()
    for t in range(SHORTEST):
        add(signs, [t], [0.0], float(t == 7))
    found = signs.metrics()
    assert (found["steps/reward_dense"], found["steps/reward_at_edge"]) == (0.0, 0.0)


def test_what_success_pays_is_counted_in_deviations_by_hand() -> None:
    signs = StepSigns()
    for t in range(SHORTEST):  # half of the steps with success are paid 3, the others 1: mean 2, deviation 1
        add(signs, [t], [0.0], 3.0 if t % 2 else 1.0, success=bool(t % 2))
    found = signs.metrics()
    assert found["steps/success_steps"] == SHORTEST / 2
    assert found["steps/success_pays"] == pytest.approx(2.0)
    assert (found["steps/reward"], found["steps/reward_spread"]) == (2.0, 1.0)


def test_it_waits_for_enough_steps_leaves_out_resets_and_continues_from_its_state() -> None:
    signs, other = trace(SHORTEST - 1), StepSigns()
    assert signs.metrics() == {}
    add(signs, [0, 0, 0], [0, 0], 0.0, valid=False)
    assert signs.metrics() == {}
    other.load_state_dict({name: value.clone() for name, value in signs.state_dict().items()})
    for each in (signs, other):
        add(each, [0, 0, 0], [0, 0], 0.0)
    found = signs.metrics()
    assert found == other.metrics() != {}
    assert signs.metrics() == {}
    signs.load_state_dict({})
    assert signs.state_dict() == {}


def test_pictures_and_devices_are_not_traced() -> None:
    signs = StepSigns()
    a, no = torch.zeros(1, 1), torch.zeros(1, dtype=torch.bool)
    for obs in ({"image.front": np.zeros((1, 2, 2, 3), np.uint8)}, {"state": torch.zeros(1, 2)}):
        signs.add(Step(obs, a, torch.zeros(1), obs, no, no, obs, ~no, no, a))
    assert signs.state_dict() == {}
    long = trace(LENGTH + 300)
    assert len(long.state_dict()["reward"]) == LENGTH
