"""A policy or a log on the scale of actions of another environment or robot: the same in physical units."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from robot_rl.data.bounds import HOW, NORMALISED, STATED, Scale, bounds_of_io, one_unit, read_stated, scale_between
from robot_rl.types import Action, Array, IOSpec, Obs, Policy, PolicyParts

if TYPE_CHECKING:
    from torch import Tensor

LAST_ACTION = "last_action"
"""Begin of the names of the components of "state" that are the action executed last, in [-1, 1]."""
_EDGE = 1e-5


def meaning_of(io: IOSpec, known: str | None, options: Mapping[str, Any]) -> tuple[IOSpec, str | None]:
    """What -1 and +1 of a policy mean once a person has said something of the log that it was made from.

    Args:
        io: of its checkpoint.
        known: what the checkpoint says of its actions beside it, see `bounds.ActionBounds.statement`.
        options: `action`, `action_low` and `action_high` where they are given.

    Returns:
        The interface, and what is known beside it.

    Raises:
        ValueError: the bounds are none.
    """
    given = {"action": options.get("action"), "low": options.get("action_low"), "high": options.get("action_high")}
    bounds = read_stated(bounds_of_io(io, known), io.action_dim, **given)
    if bounds is None or bounds.low is None or bounds.high is None:
        return io, None if bounds is None else bounds.statement
    if bounds.normalised:
        return replace(io, action_low=bounds.low, action_high=bounds.high), bounds.statement
    low, high = one_unit(io.action_dim)  # its log was taken as it was: what it answers is in physical units
    return replace(io, action_low=low, action_high=high), bounds.statement


def in_units(policy: Policy, io: IOSpec, here: IOSpec, known: str | None, say: Callable[[str], object]) -> Policy:
    """A policy as an environment or a robot takes it: itself where -1 and +1 are the same there, else `InUnits`.

    Args:
        policy: what was trained.
        io: its interface, as `meaning_of` gives it.
        here: of the environment or robot.
        known: of its actions, as `meaning_of` gives it.
        say: is told once that an action was clipped to what the robot can do.

    Raises:
        ValueError: they do not fit, or nobody knows what the actions mean; see `agree`.
    """
    meant = agree(io, here, known)
    return policy if meant is here else InUnits(policy, scale_between(meant, here), here, say)


def agree(log: IOSpec, env: IOSpec, said: str | None = None) -> IOSpec:
    """What the actions of a log mean in an environment: its interface, with the log's own bounds.

    A log that names nothing fits when sizes agree; any other has to agree in everything but the range of its actions.

    Args:
        log: interface of the log, or of a policy that was made from one.
        env: of the environment.
        said: what is known of the actions beside it, see `bounds.ActionBounds.statement`.

    Returns:
        `env` itself where -1 and +1 are its own bounds, else a new interface; `bounds.scale_between` it
        and `env` leads from one scale to the other.

    Raises:
        ValueError: they do not fit, listing every difference; or nobody knows what the actions mean.
    """
    if log.action_names != tuple(f"a{i}" for i in range(log.action_dim)):
        alike = log
        if log.action_dim == env.action_dim:
            alike = replace(log, action_low=env.action_low, action_high=env.action_high, action_units=_units(log, env))
        alike.check(env)
    mine = {key: tuple(shape) for key, (shape, _) in log.acting.obs.items()}
    theirs = {key: tuple(shape) for key, (shape, _) in env.acting.obs.items()}
    if mine != theirs or log.action_dim != env.action_dim:
        raise ValueError(
            f"the log has observations {mine} and {log.action_dim} actions, the environment {theirs} and "
            f"{env.action_dim}; choose the environment that the log was made in"
        )
    here = describe_span(env)
    one = env.knows_bounds and np.allclose(env.bounds, one_unit(env.action_dim))
    if not log.knows_bounds:
        if env.knows_bounds and (said == NORMALISED or one):  # in a world of [-1, 1] both answers are the same
            return env
        raise ValueError(
            f"nothing says what the log's actions mean, and those of what is to run them go from {here}, so that the "
            f"same number could be another action: {HOW}"
        )
    if not env.knows_bounds:
        raise ValueError(f"the log's actions go from {describe_span(log)}, and nobody knows the environment's range")
    if _units(log, env) != env.action_units:
        wrong = [i for i, unit in enumerate(_units(log, env)) if unit != env.action_units[i]]
        names = ", ".join(f"{env.action_names[i]} ({log.action_units[i]}, {env.action_units[i]})" for i in wrong)
        raise ValueError(f"the log's actions are in other units than the environment's: {names}; convert the log")
    if not scale_between(log, env).changes:
        return env
    bare = np.allclose(log.bounds, one_unit(log.action_dim)) and set(log.action_units) == {"1"}
    if bare and said != STATED and set(env.action_units) != {"1"}:
        raise ValueError(
            f"the log declares actions from -1 to 1 without a unit, and the environment's go from {here}: whether 1 is "
            f"one unit or the whole range cannot be told; {HOW}"
        )
    return replace(env, action_low=log.action_low, action_high=log.action_high)


class InUnits:
    """A policy whose [-1, 1] means other bounds than the environment's.

    What the environment cannot do is clipped to its bounds, and told once. Anything else that a policy has (memory,
    chunks, goals) is the inner policy's.

    Args:
        policy: the inner one.
        scale: of its actions to the environment's.
        io: the environment's.
        say: told once, in words, that an action was clipped.
    """

    def __init__(self, policy: Policy, scale: Scale, io: IOSpec, say: Callable[[str], object]) -> None:
        self.policy, self.io = policy, io
        self._scale, self._back, self._say = scale, scale.inverse, say
        self._told = False
        last = [name.startswith(LAST_ACTION) for name in io.obs_names]
        self._last = np.flatnonzero(last) if sum(last) == io.action_dim else np.zeros(0, np.int64)

    @property
    def parts(self) -> PolicyParts:
        """The inner policy's, which hears and judges actions on its own scale."""
        inner: PolicyParts = self.policy.parts
        ask = inner.at_interval
        return replace(
            inner,
            executed=None if inner.executed is None else self._tell_executed,
            log_prob=None if inner.log_prob is None else self._log_prob,
            at_interval=None if ask is None else lambda steps: self.around(ask(steps)),
        )

    def reset(self, rows: Array | None = None) -> None:
        """Forget memory and chunks of these rows."""
        self.policy.reset(rows)

    def act(self, obs: Obs, *, deterministic: bool = False) -> Action:
        """The inner policy's action, in [-1, 1] of the environment; its log-density is that on the new scale."""
        found: Action = self.policy.act(self._read(obs), deterministic=deterministic)
        value = self._scale_tensor(found.value, self._scale)
        beyond = abs(value) > 1.0 + _EDGE
        if not self._told and bool(beyond.any()):
            self._told = True
            which = beyond.reshape(-1, beyond.shape[-1]).any(0)
            names = ", ".join(name for name, out in zip(self.io.action_names, which) if out)
            self._say(f"NOTE: the policy commands more than the environment can do ({names}): clipped to its bounds")
        logp = None if found.logp is None else found.logp - self._scale.log_volume
        return Action(value.clip(-1.0, 1.0), logp, found.extras)

    def _tell_executed(self, action: Array) -> None:
        told = self.policy.parts.executed
        assert told is not None
        told(self._scale_tensor(action, self._back))

    def _log_prob(self, obs: Obs, action: Tensor) -> Tensor:
        density = self.policy.parts.log_prob
        assert density is not None
        return density(self._read(obs), self._scale_tensor(action, self._back)) - self._scale.log_volume

    def around(self, policy: Policy) -> InUnits:
        """Another policy that answers on the same scale as the inner one."""
        return InUnits(policy, self._scale, self.io, self._say)

    def _read(self, obs: Obs) -> Obs:
        """What the inner policy sees: the last action, where it is part of the state, on its own scale."""
        if not len(self._last):
            return obs
        state = np.array(obs["state"]) if isinstance(obs["state"], np.ndarray) else obs["state"].clone()
        state[..., self._last] = self._scale_tensor(state[..., self._last], self._back)
        return {**obs, "state": state}

    @staticmethod
    def _scale_tensor(value: Any, scale: Scale) -> Any:
        if isinstance(value, np.ndarray):
            return scale(value)
        return value * value.new_tensor(scale.gain) + value.new_tensor(scale.shift)


def _units(log: IOSpec, env: IOSpec) -> tuple[str, ...]:
    """Units of the log's actions; the environment's where one of them names none."""
    return tuple(b if "1" in (a, b) else a for a, b in zip(log.action_units, env.action_units))


def describe_span(io: IOSpec) -> str:
    """From where to where actions go, for messages."""
    if not io.knows_bounds:
        return "nobody knows where to where"
    units = {unit for unit in io.action_units if unit != "1"}
    (low, *_), (high, *_) = io.bounds
    alike = len(set(io.bounds[0])) == len(set(io.bounds[1])) == 1
    ends = f"{low:.4g} to {high:.4g}" if alike else " to ".join(str([round(x, 4) for x in end]) for end in io.bounds)
    return ends + (f" {units.pop()}" if len(units) == 1 else "")
