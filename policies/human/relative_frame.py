"""Any method in the frame of the tool's start pose."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from robot_rl.policies.human.relative_frame_start import StartFrame
from robot_rl.types import (
    Action,
    AnyLearner,
    Array,
    IOSpec,
    Metrics,
    Obs,
    Options,
    OuterLearner,
    PolicyParts,
    StateDict,
    TrainedPolicy,
    Transitions,
)


class RelativeFrameOptions(Options):
    """Of a method in the frame of the start."""

    method: Callable[..., AnyLearner]
    """(io, seed=, device=, gamma=) -> learner."""


class RelativeFrame(OuterLearner[RelativeFrameOptions, Transitions]):
    """Gives a method observations and actions as seen from the tool's pose at the start of the episode.

    Log, safety layer and person stay in the robot's base: batches are turned on their way to the method, its actions on
    their way to the robot. The frame of a row is in the row itself (`start_x ...`), so nothing depends on the order of
    rows, and the policy works wherever the state tells the start.

    Source: Luo et al., HIL-SERL (relative observation and action frames); see `StartFrame` for where we differ.
    """

    def __init__(
        self, options: RelativeFrameOptions, io: IOSpec, *, seed: int = 0, device: str = "cpu", gamma: float = 0.97
    ) -> None:
        """Build the method for the turned interface.

        Args:
            options: the method.
            io: interface of the robot; its state tells the start (`env.world.start_pose=true`).
            seed: of the method.
            device: of the method.
            gamma: discount per step.
        """
        super().__init__(options, io, seed=seed, device=device)
        self.frame = StartFrame(io)
        self.learner = options.method(self.frame.io, seed=seed, device=device, gamma=gamma)
        self.policy = RelativePolicy(io, self.frame, self.learner.policy)

    def update(self, batches: Iterator[Transitions], /) -> Metrics:
        """The method's own, on turned batches."""
        return self.learner.update(map(self.turn, batches))

    def pretrain(self, batches: Iterator[Transitions], /) -> Metrics:
        """The method's own where it has one."""
        return self.learner.pretrain(map(self.turn, batches))

    def values(self, obs: Obs, action: np.ndarray) -> np.ndarray:
        """(E, B) values of observations and actions of the robot; for advice.

        Raises:
            AttributeError: the method has no critics that can be asked.
        """
        state = np.asarray(obs["state"])
        return self.learner.values({"state": self.frame.observe(state)}, self.frame.from_base(action, state))

    def turn(self, batch: Transitions) -> Transitions:
        """A batch as the method sees it."""
        state = batch.obs["state"]
        return replace(
            batch,
            obs={"state": self.frame.observe(state)},
            next_obs={"state": self.frame.observe(batch.next_obs["state"])},
            action=self.frame.from_base(batch.action, state),
        )

    def state_dict(self) -> StateDict:
        """The method's."""
        return self.learner.state_dict()

    def load_state_dict(self, state: StateDict, /) -> None:
        """The method's."""
        self.learner.load_state_dict(state)


class RelativePolicy:
    """A policy of the start's frame in front of the robot.

    Args:
        io: interface of the robot.
        frame: between the two.
        policy: of the method.
    """

    def __init__(self, io: IOSpec, frame: StartFrame, policy: TrainedPolicy) -> None:
        self.io, self._frame, self._policy = io, frame, policy
        self._state: np.ndarray | None = None

    @property
    def parts(self) -> PolicyParts:
        """Those of the method's policy that do not ask what it would do by itself."""
        inner = self._policy.parts
        return inner.around(None if inner.executed is None else self.executed)

    def reset(self, rows: Array | None = None) -> None:
        """The method's policy forgets."""
        self._policy.reset(rows)

    def act(self, obs: Obs, *, deterministic: bool = False) -> Action:
        """Actions for the robot; extras as the method's policy gives them."""
        state = obs["state"]
        self._state = state
        found = self._policy.act({"state": self._frame.observe(state)}, deterministic=deterministic)
        return replace(found, value=self._frame.to_base(found.value, state))

    def executed(self, action: np.ndarray) -> None:
        """What the robot did, for policies that remember it."""
        tell = self._policy.parts.executed
        if tell is not None and self._state is not None:
            tell(self._frame.from_base(np.asarray(action), np.asarray(self._state)))

    def state_dict(self) -> StateDict:
        """The method's policy."""
        return self._policy.state_dict()

    def load_state_dict(self, state: StateDict, /) -> None:
        """The method's policy."""
        self._policy.load_state_dict(state)
