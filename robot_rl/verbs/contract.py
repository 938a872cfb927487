"""What a learner has to be, checked before it learns."""

from __future__ import annotations

from robot_rl.checkpoint import check_state
from robot_rl.loops.contract import rows_per_batch
from robot_rl.types import AnyLearner, Learner, TrainedPolicy


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
