"""What a learner has to be, checked before it learns, and the replay that it asks for."""

from __future__ import annotations

from robot_rl.checkpoint import check_state
from robot_rl.data.buffer import ReplayBuffer
from robot_rl.data.hindsight import HindsightReplay
from robot_rl.loops.contract import rows_per_batch
from robot_rl.types import AnyLearner, Learner, StepEnv, TrainedPolicy


def check_learner(learner: AnyLearner) -> None:
    """Refuse a learner that would train and then could not be saved, or would be fed what it does not expect.

    Raises:
        ValueError: it is fed by no loop that there is, or asks for no positive number of rows.
        TypeError: it is no `Learner`, or its state holds what a checkpoint does not.
    """
    name = type(learner).__name__
    if not isinstance(learner, Learner):
        raise TypeError(f"{name} is no learner; a method inherits from robot_rl.types.Learner (docs/add_a_method.md)")
    if not isinstance(learner.policy, TrainedPolicy):
        raise TypeError(
            f"{name}.policy is a {type(learner.policy).__name__}, and no policy: it needs io, reset, act, state_dict, "
            "load_state_dict and parts, which is robot_rl.types.PolicyParts() where it offers nothing else "
            "(docs/add_a_method.md)"
        )
    feeds = learner.need.feeds
    if feeds.endswith("transitions"):
        rows_per_batch(learner)
    if feeds != "environment":  # such a learner may have no networks before it has seen its environment
        check_state(learner.state_dict(), f"{name}.state_dict()")
        check_state(learner.policy.state_dict(), f"{name}.policy.state_dict()")


def make_replay(
    env: StepEnv, learner: AnyLearner, capacity: int, *, num_envs: int, n_step: int, gamma: float, seed: int
) -> ReplayBuffer:
    """An empty replay for one learner in one environment.

    Args:
        env: where its steps come from.
        learner: what it feeds.
        capacity: transitions kept.
        num_envs: rows of every step.
        n_step: control steps of a return.
        gamma: discount per control step.
        seed: of the sampling.

    Raises:
        ValueError: `n_step` or goals of hindsight that do not go with the learner or the environment.
    """
    need = learner.need
    if need.window > 1 and n_step != 1:
        raise ValueError(
            f"n_step is {n_step}, and this policy sums over chunks of {need.window} steps itself; use n_step=1"
        )
    if not need.hindsight:
        return ReplayBuffer(
            env.io,
            capacity,
            num_envs=num_envs,
            n_step=n_step,
            gamma=gamma,
            window=need.window,
            seed=seed,
            extras=dict(need.columns),
        )
    name = type(learner).__name__
    if env.parts.goals is None:
        raise ValueError(
            f"{name} replays steps under goals that were reached later, and this environment does not say what a step "
            "earns under another goal; take a Gymnasium task with compute_reward (env=gym id=FetchReach-v4; that of a "
            "class of your own, compute_reward(achieved_goal, desired_goal, info), is asked with an empty info), "
            "env=reach, or env=pick env.world.reward=sparse, with its whole state and without pictures, rewarder and "
            "engine; or another policy, such as online/sac"
        )
    if n_step != 1 or need.window != 1:
        steps = f"n_step={n_step}" if n_step != 1 else f"windows of {need.window} steps"
        raise ValueError(
            f"{name} changes the goal of single steps, and {steps} would add up rewards of several; use n_step=1"
        )
    return HindsightReplay(
        env.io,
        capacity,
        goals=env.parts.goals,
        hindsight=need.hindsight,
        num_envs=num_envs,
        gamma=gamma,
        seed=seed,
        extras=dict(need.columns),
    )
