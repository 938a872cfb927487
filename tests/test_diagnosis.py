"""The diagnosis: rows that have one fault name it first, rows of a run that learns name nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from robot_rl.diagnosis import CHECKS, diagnose

HEALTHY: dict[str, Any] = {
    **{"rollout/return": 10.0, "rollout/length": 40.0, "rollout/success": 0.9, "rollout/episodes": 100.0},
    **{"train/q": 8.0, "train/alpha": 0.01, "train/entropy": -3.0, "train/critic_loss": 0.1},
    **{"reward/way": 0.3, "reward_low/way": 0.0, "reward_high/way": 0.5},
    **{"reward/effort": -0.02, "reward_low/effort": -0.1, "reward_high/effort": 0.0},
    **{"steps/reward": 0.28, "steps/reward_spread": 0.2, "steps/reward_low": -0.1, "steps/reward_high": 0.5},
    **{"steps/reward_dense": 1.0, "steps/reward_at_edge": 0.01, "steps/terminated": 0.0},
    **{"steps/fit": 0.8, "steps/fit_now": 0.8, "steps/fit_late": 0.5, "steps/late": 2.0, "steps/smooth": 0.9},
    **{"steps/success_steps": 20.0, "steps/success_pays": 2.0},
    **{"steps/action_edge": 0.1, "steps/action_spread": 0.5, "steps/idle_actions": 0.0, "steps/actions": 3.0},
    **{"steps/obs_stuck": 0.0, "steps/obs_largest": 4.0},
}
SAC = {"gamma": 0.99, "updates_per_step": 1.0, "policy": {"lr": 3e-4, "batch_size": 256, "utd": 1, "critics": 2}}
PPO = {"gamma": 0.99, "policy": {"lr": 3e-4, "minibatch": 64, "epochs": 10, "normalize_reward": True}}
LOST = {"rollout/success": 0.0, "steps/success_steps": 0.0}


def rows(*changes: dict[str, Any], n: int = 10) -> list[dict[str, Any]]:
    """A run whose return rises from 2 to 11; `changes` hold in all rows, those of None are left out."""
    out = []
    for i in range(n):
        row = {"step": 500 * (i + 1), **HEALTHY, "rollout/return": 2.0 + i}
        for change in changes:
            row |= change
        out.append({key: value for key, value in row.items() if value is not None})
    return out


def causes(found: list[dict[str, Any]], config: Any = SAC) -> list[str]:
    return [finding.cause for finding in diagnose(found, config)]


@pytest.mark.parametrize("config", [SAC, PPO])
def test_a_run_that_learns_is_left_in_peace(config: Any) -> None:
    assert causes(rows(), config) == []
    assert causes(rows({"rollout/success": None, "steps/success_pays": None}), config) == []  # no notion of success
    bare = {key: None for key in HEALTHY if key.startswith(("steps/", "reward"))}
    assert causes(rows(bare), config) == []  # a loop on a device, which traces no steps
    assert causes([], config) == []
    assert causes([{"step": 5, "train/critic_loss": 0.1}], config) == []  # from a log


NO_SUCCESS = {"rollout/success": 0.0, "steps/success_steps": None, "steps/success_pays": None}
REWARDS = {
    "reward clipped": {"steps/reward_at_edge": 0.6},
    "reward delayed": {"steps/fit": 0.4, "steps/fit_now": 0.3, "steps/fit_late": 0.9, "steps/late": 8.0},
    "reward noisy": {"steps/fit": 0.02, "steps/fit_now": 0.0, "steps/fit_late": 0.05, "steps/smooth": 0.0},
    "reward too large": {"steps/reward": 30.0, "steps/reward_spread": 12.0},
    "constant bonus": {"reward/alive": 5.0, "reward_low/alive": 5.0, "reward_high/alive": 5.0},
    "reward never varied": {
        **{"rollout/success": None, "steps/success_pays": None, "reward/way": None, "reward/effort": None},
        **{"steps/reward": -1.0, "steps/reward_spread": 0.0},
    },
    "dead term": {**LOST, "reward/grasp": 0.0, "reward_low/grasp": 0.0, "reward_high/grasp": 0.0},
    "reward of the wrong sign": {"rollout/success": 0.0, "steps/success_pays": -3.0},
    "reward for something else": {"rollout/success": 0.1, "steps/success_pays": 0.1},
    "success never seen": NO_SUCCESS,
    "dead action": {"rollout/success": 0.2, "steps/idle_actions": 1.0},
    "saturated observation": {"rollout/success": 0.2, "steps/obs_stuck": 2.0},
    "observation too large": {"rollout/success": 0.2, "steps/obs_largest": 5000.0},
    "overestimated values": {"rollout/success": 0.2, "train/q": 100.0},  # 0.5 / (1 - 0.99) = 50 is the most
}


@pytest.mark.parametrize("cause", REWARDS)
def test_a_fault_is_named_first(cause: str) -> None:
    assert causes(rows(REWARDS[cause]))[0] == cause


@pytest.mark.parametrize("cause", [cause for cause in REWARDS if "reward" in cause or cause == "dead term"])
def test_a_reward_that_the_learner_does_not_read_is_not_blamed(cause: str) -> None:
    """A student that is told by a teacher: what else is wrong is still named."""
    unread = {"rollout/rewardless": 1.0, "steps/idle_actions": 1.0, "rollout/success": 0.0, "steps/success_pays": None}
    assert set(causes(rows(REWARDS[cause], unread))) == {"dead action", "success never seen"}


def test_success_that_rises_with_the_reward_is_what_the_reward_is_for() -> None:
    # walk pays for each step, and success is told in the last one alone
    assert causes(rows({"rollout/success": 0.65, "steps/success_steps": 6.0, "steps/success_pays": 0.4})) == []


@pytest.mark.parametrize(
    ("cause", "config"),
    [
        ("step size too large", {**SAC, "policy": {**SAC["policy"], "lr": 0.03}}),
        ("batch too small", {**SAC, "policy": {**SAC["policy"], "batch_size": 4}}),
        ("batch too small", {**PPO, "policy": {**PPO["policy"], "minibatch": 4}}),
        ("too many updates per step", {**SAC, "policy": {**SAC["policy"], "utd": 20}}),
        ("too many updates per step", {**SAC, "updates_per_step": 20.0}),
        ("too many updates per step", {**PPO, "policy": {**PPO["policy"], "epochs": 200}}),
        ("discount too low", {**SAC, "gamma": 0.5}),
    ],
)
def test_options_that_are_far_off_are_named_also_in_a_run_that_bore_them(cause: str, config: Any) -> None:
    assert causes(rows({"rollout/success": 0.3}), config)[0] == cause
    assert causes(rows(), config)[0] == cause


def test_large_rewards_that_the_learner_scales_are_no_finding() -> None:
    assert causes(rows({**REWARDS["reward too large"], "train/reward_scale": 12.0})) == []


def test_a_large_component_that_the_learner_has_moved_is_no_finding() -> None:
    assert causes(rows({**REWARDS["observation too large"], "train/centred": 1.0})) == []


def test_regularised_critics_bear_many_updates() -> None:
    rlpd = {"lr": 3e-4, "batch_size": 256, "utd": 20, "critics": 10, "layer_norm": True}
    assert causes(rows({"rollout/success": 0.3}), {**SAC, "policy": rlpd}) == []


def test_no_exploration_is_told_from_the_entropy_of_the_beginning() -> None:
    assert causes(rows({"train/entropy": -12.0, "rollout/success": 0.1}))[0] == "no exploration"
    found = rows({"rollout/success": 0.1})
    for row in found[5:]:  # a policy may become sure of itself
        row["train/entropy"] = -12.0
    assert "no exploration" not in causes(found)
    sure = rows({"train/entropy": -12.0})  # it began from a policy that knew its task
    assert "no exploration" not in causes(sure)
    for asked in ({"target_entropy": -20.0}, {"log_std_init": -5.0}):
        assert causes(sure, {**SAC, "policy": {**SAC["policy"], **asked}})[0] == "no exploration"
    for word in ("auto", "half"):  # soft actor-critic's own default, as config.yaml holds it
        assert causes(sure, {**SAC, "policy": {**SAC["policy"], "target_entropy": word}}) == []


def test_an_environment_whose_episodes_never_end_is_named() -> None:
    endless = {"rollout/episodes": 0.0, "rollout/return": None, "rollout/length": None, "rollout/success": None}
    found = diagnose(rows(endless, {"eval/success": 0.0, "steps/success_steps": None, "steps/success_pays": None}), SAC)
    assert [cause.cause for cause in found] == ["no episode ended"]
    assert "5000 steps" in found[0].evidence


def test_a_penalty_that_was_all_that_was_learnt_is_named_with_its_share() -> None:
    found = rows({"rollout/success": 0.0, "steps/success_pays": 2.0})
    for i, row in enumerate(found):
        row["reward/effort"] = -2.7 + 0.26 * i
        row["steps/action_spread"] = 0.6 - 0.05 * i
        row["reward/way"] = 0.3
    first = diagnose(found, SAC)[0]
    assert first.cause == "dominating penalty"
    assert "effort was 90% of the reward" in first.evidence  # 2.7 of 3.0
    for i, row in enumerate(found):
        row["reward/way"] = 0.3 + 0.05 * i  # the task is learnt beside it
    assert causes(found) == []


def test_episodes_that_end_early_because_every_step_costs() -> None:
    short = {"rollout/success": None, "steps/success_pays": None, "steps/terminated": 0.1, "steps/reward": -10.0}
    found = rows(short, {"reward/way": -9.0, "steps/reward_high": -9.0, "steps/reward_low": -11.0, "train/q": -20.0})
    for i, row in enumerate(found):
        row |= {"rollout/length": 10.0 - 0.5 * i, "rollout/return": -100.0 + 5.0 * i}
    assert causes(found)[0] == "reward of the wrong sign"
    for row in found:  # MountainCar: only a limit ends the episodes of the beginning
        row["steps/terminated"] = 0.0
    assert "reward of the wrong sign" not in causes(found)


@pytest.mark.parametrize(
    ("change", "cause"),
    [({"train/clip_fraction": 0.7}, "updates too large"), ({"train/explained_variance": 0.0}, "critic learns nothing")],
)
def test_updates_of_ppo_that_go_nowhere(change: dict[str, float], cause: str) -> None:
    still = {"rollout/success": None, "steps/success_pays": None, "rollout/return": 2.0, "train/q": None}
    assert causes(rows(still, change), PPO)[0] == cause
    assert causes(rows(still, change, n=4), PPO) == []  # a run that has hardly begun
    assert causes(rows(still), PPO) == []


def test_actions_at_their_limits() -> None:
    found = rows({"rollout/success": 0.1, "rollout/return": 2.0, "steps/action_edge": 0.99})
    assert causes(found)[0] == "saturated actions"


def test_a_run_of_one_row_says_that_there_is_nothing_to_compare() -> None:
    one = {"rollout/success": None, "steps/success_pays": None, "rollout/return": 2.0, "steps/action_edge": 0.99}
    (found,) = (cause for cause in diagnose(rows(one, n=1), SAC) if cause.cause == "saturated actions")
    assert found.evidence == "99% of actions are at their limits; no two rows have a return to compare"


def test_every_check_says_what_it_looks_for_and_the_page_names_every_cause() -> None:
    page = (Path(__file__).parents[1] / "docs" / "howto" / "why_it_does_not_learn.md").read_text()
    source = Path(diagnose.__code__.co_filename).read_text()
    assert all(check.__doc__ for check in CHECKS)
    named = {piece.split('"')[1] for piece in source.split("Cause(")[1:] if piece.startswith('"')}
    assert len(named) >= 18
    assert [cause for cause in named if cause not in page] == []
