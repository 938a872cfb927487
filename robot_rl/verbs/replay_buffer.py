"""The replay of a training run: what a learner and an environment ask of it, and what does not go together."""

from __future__ import annotations

from robot_rl.data.buffer import ReplayBuffer
from robot_rl.data.hindsight import HindsightReplay
from robot_rl.types import AnyLearner, StepEnv


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
