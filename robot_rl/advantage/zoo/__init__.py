"""Published mechanisms of credit assignment that wait for a learner, each tested against its paper's numbers.

The core (`robot_rl.advantage`) knows their names only: a `Pipeline` builds any of their stages, so that a learner that
takes its estimator by name can be given each. What a learner uses by itself moves up into the core.
"""

from robot_rl.advantage.zoo import entries_group, entries_reward, entries_temporal

__all__ = ["entries_group", "entries_reward", "entries_temporal"]
