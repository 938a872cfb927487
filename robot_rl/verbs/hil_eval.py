"""A policy judged as the run that made it judged it: runs of `robot-rl hil` try theirs through their safety layer."""

from __future__ import annotations

from typing import Any

from omegaconf import DictConfig

from robot_rl import build
from robot_rl.loops.evaluate import Evaluation
from robot_rl.loops.evaluate import evaluate as run_evaluation
from robot_rl.types import Policy
from robot_rl.verbs.reading import ends_at_success, plain
from robot_rl.words import Refused


def evaluate_as_run(config: DictConfig | None, env: Any, policy: Policy, **how: Any) -> Evaluation:
    """Episodes of a policy, as its run counts them.

    Args:
        config: of the run that made the policy; None of a policy that comes without one.
        env: what it is tried in.
        policy: what acts.
        how: episodes, seed, deterministic and on_episode of `loops.evaluate.evaluate`.

    Raises:
        Refused: several copies of the environment of a run whose trials pass a safety layer, which watches one robot.
        ValueError: policy and environment do not fit.
    """
    if config is None or not ends_at_success(config) or config.get("pilot") is None:
        return run_evaluation(env, policy, first_success=config is not None and ends_at_success(config), **how)
    from robot_rl.human.trials import trials  # the safety layer: only for runs that have one

    if env.num_envs != 1:
        raise Refused(
            f"this run tried its policy through a safety layer, which watches one robot, and here are {env.num_envs} "
            "copies of the environment: num_envs=1 (rr.make(..., num_envs=1))"
        )
    policy.io.check(env.io)
    block = trials(env, policy, build.make("pilot", plain(config.pilot), env=env, human=None), **how)
    return Evaluation(block.returns, block.steps, block.successes, cut=block.cut)
