"""A policy judged as the run that made it judged it: runs of `robot-rl hil` try theirs through their safety layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig

from robot_rl import build
from robot_rl.loops.evaluate import Evaluation
from robot_rl.loops.evaluate import evaluate as run_evaluation
from robot_rl.types import Policy
from robot_rl.verbs.reading import ends_at_success, plain
from robot_rl.words import Refused

if TYPE_CHECKING:
    from robot_rl.human.judge import Judge


def evaluate_as_run(
    config: DictConfig | None,
    env: Any,
    policy: Policy,
    *,
    judge: Judge | None = None,
    film: Callable[[], object] = lambda: None,
    first_success: bool | None = None,
    **how: Any,
) -> Evaluation:
    """Episodes of a policy, as its run counts them.

    Args:
        config: of the run that made the policy; None of a policy that comes without one.
        env: what it is tried in.
        policy: what acts.
        film: called before every step.
        first_success: episodes end at their first success; None: if those of the run do. Trials always do.
        judge: success classifier that says what a success is, in place of the environment.
        how: episodes, seed, deterministic and on_episode of `loops.evaluate.evaluate`.

    Raises:
        Refused: several copies of the environment of a run whose trials pass a safety layer, which watches one robot.
        ValueError: policy and environment do not fit.
    """
    ends = config is not None and ends_at_success(config)
    piloted = config is not None and config.get("pilot") is not None
    if judge is not None and not piloted:
        raise Refused(
            "judge= says what a success is in trials of a run of robot-rl hil, which this is not; leave it out"
        )
    if config is None or not piloted or not (judge or ends):
        ends = ends if first_success is None else first_success
        return run_evaluation(env, policy, film=film, first_success=ends, **how)
    from robot_rl.human.trials import trials  # the safety layer: only for runs that have one

    if env.num_envs != 1:
        raise Refused(
            f"this run tried its policy through a safety layer, which watches one robot, and here are {env.num_envs} "
            "copies of the environment: num_envs=1 (rr.make(..., num_envs=1))"
        )
    policy.io.check(env.io)
    pilot = build.make("pilot", plain(config.pilot), env=env, human=None)
    block = trials(env, policy, pilot, judge=judge, on_tick=film, **how)
    return Evaluation(block.returns, block.steps, block.successes, cut=block.cut)


def unknown_success(config: DictConfig | None, run: str, result: Evaluation) -> str:
    """What to say of a run whose successes a person named, where the environment saw none and may know none; or "".

    Args:
        config: of the run.
        run: its folder.
        result: of the evaluation.
    """
    if config is None or config.get("task_reward") not in ("labels", "classifier") or any(result.successes):
        return ""
    count = len(result.returns)
    seen = f"it said so in none of {count} episodes, and may not know" if result.successes else "it does not know"
    return (
        f"unknown: in this run a person said what a success is (task_reward={config.task_reward}), and here only the "
        f"environment could: {seen}. Label trials of it (robot-rl hil resume={run}), or ask a "
        f"classifier that learned from labels (judge={config.get('judge') or '<folder of robot-rl classify>'})"
    )
