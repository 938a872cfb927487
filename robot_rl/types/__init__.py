"""Every contract of the project: dataclasses, Protocols and one base class, no logic beyond validation.

Arrays: CPU simulators and robots hand over NumPy arrays, GPU simulators hand over tensors. Whatever acts on
observations (a `Policy`) takes either kind and returns the same kind; whatever learns (a `Learner`) gets tensors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from robot_rl.types.data import Array, Batches, Episode, LogFacts, Metrics, Obs, Rollout, Sampler, Step, Transitions
    from robot_rl.types.env import EnvParts, Goals, StepEnv, VecEnv
    from robot_rl.types.io import IOSpec, Seen, action_of, choice_of
    from robot_rl.types.learner import (
        AnyLearner,
        DeviceResident,
        Learner,
        Needs,
        OffPolicyDeviceLearner,
        OnPolicyDeviceLearner,
        OnPolicyLearner,
        OuterLearner,
        OwnLoop,
        StaleLearner,
    )
    from robot_rl.types.options import Options
    from robot_rl.types.policy import (
        OF_ACTING,
        Action,
        Critic,
        Loaded,
        Policy,
        PolicyParts,
        Port,
        ProgressCritic,
        Recurrence,
        TrainedPolicy,
    )
    from robot_rl.types.state import StateDict, Stateful
    from robot_rl.types.track import Callback, Tracker

__all__ = [
    "OF_ACTING",
    "Action",
    "AnyLearner",
    "Array",
    "Batches",
    "Callback",
    "Critic",
    "DeviceResident",
    "EnvParts",
    "Episode",
    "Goals",
    "IOSpec",
    "Learner",
    "Loaded",
    "LogFacts",
    "Metrics",
    "Needs",
    "Obs",
    "OffPolicyDeviceLearner",
    "OnPolicyDeviceLearner",
    "OnPolicyLearner",
    "Options",
    "OuterLearner",
    "OwnLoop",
    "Policy",
    "PolicyParts",
    "Port",
    "ProgressCritic",
    "Recurrence",
    "Rollout",
    "Sampler",
    "Seen",
    "StaleLearner",
    "StateDict",
    "Stateful",
    "Step",
    "StepEnv",
    "Tracker",
    "TrainedPolicy",
    "Transitions",
    "VecEnv",
    "action_of",
    "choice_of",
]


def __getattr__(name: str) -> Any:
    """A contract, loaded on first use: most name tensors, and the safety supervisor loads no torch."""
    if name not in __all__:
        raise AttributeError(f"module 'robot_rl.types' has no attribute '{name}'")
    from robot_rl.types import data, env, io, learner, options, policy, state, track

    for module in (data, env, io, learner, options, policy, state, track):
        globals().update({key: value for key, value in vars(module).items() if key in __all__})
    return globals()[name]
