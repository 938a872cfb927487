"""Any method on what an encoder makes of pictures: once a step, kept in the replay, made again after every fit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from robot_rl.types import (
    Action,
    AnyLearner,
    Array,
    IOSpec,
    Metrics,
    Needs,
    Obs,
    Options,
    OuterLearner,
    PolicyParts,
    StateDict,
    TrainedPolicy,
    Transitions,
)
from robot_rl.types.frames import Frames
from robot_rl.types.io import PRIVILEGED


class EncodedOptions(Options):
    """Of a method behind an encoder."""

    method: Callable[..., AnyLearner]
    """(io, seed=, device=, gamma=) -> learner."""
    encoder: Callable[..., Any]
    """(io=, seed=, device=) -> encoder; chosen with encoder=<name>."""


class Encoded(OuterLearner[EncodedOptions, Transitions]):
    """Trains an encoder from the robot's successes, and a method on what it sees.

    The encoder is fitted after the demonstrations and again every so many updates, until it is frozen; between two
    episodes, because that takes longer than a control step. After each fit all kept frames are encoded again, and the
    method makes `settle` updates before anything is driven or tried with the new features. What a frame looked like is
    made once, by `policy.act`, and recorded from `Action.extras["sight"]`.

    What critics alone read (`critic_state=true`) goes past the encoder.

    Metrics: those of the method; encoder/loss, encoder/frames and encoder/error_mm of the last fit.
    """

    privileged = True

    def __init__(
        self, options: EncodedOptions, io: IOSpec, *, seed: int = 0, device: str = "cpu", gamma: float = 0.97
    ) -> None:
        """Build encoder and method.

        Args:
            options: of both.
            io: interface of the robot.
            seed: of both.
            device: of both.
            gamma: discount per step.
        """
        super().__init__(options, io, seed=seed, device=device)
        self.encoder = options.encoder(io=io.acting, seed=seed + 17, device=device)
        self._beside = tuple(key for key in io.obs if key == PRIVILEGED)
        seen = {**self.encoder.io.obs, **{key: io.obs[key] for key in self._beside}}
        inner = replace(self.encoder.io, obs=seen)
        self.learner = options.method(inner, seed=seed, device=device, gamma=gamma)
        if self.learner.need.feeds != "transitions" or self.learner.need.window > 1:
            raise ValueError(
                f"an encoder stands before a method of single replayed steps, and {self.learner.method} is fed "
                f"{self.learner.need.feeds}; use policy=human/imitation_sac"
            )
        self.policy = EncodedPolicy(io.acting, self.encoder, self.learner.policy)
        self.updates = 0
        self._frames: Frames | None = None

    @property
    def need(self) -> Needs:
        """The method's, of what the encoder reads."""
        return replace(self.learner.need, keys=self.encoder.keys + self._beside, sight=self.encoder.width)

    def take_frames(self, frames: Frames) -> None:
        """Take the frames that are kept."""
        self._frames = frames

    def pretrain(self, batches: Iterator[Transitions], /) -> Metrics:
        """The first fit, on the demonstrations; then the method's own."""
        found = self._fit()
        return {**found, **self.learner.pretrain(map(self.see, batches))}

    def update(self, batches: Iterator[Transitions], /) -> Metrics:
        """The method's own."""
        frames = self.frames
        if frames.encoded != self.encoder.fits or frames.unseen:
            self.encoder.encode(frames)
        self.updates += 1
        if self.encoder.due(self.updates):
            self.works_between = True
        return self.learner.update(map(self.see, batches))

    def work_between(self, batches: Iterator[Transitions], /) -> Metrics:
        """A fit on all successes so far, all kept frames encoded again, and `settle` updates of the method."""
        self.works_between = False
        found = self._fit()
        if found:
            self.learner.features_changed()
        read = map(self.see, batches)
        for _ in range(self.encoder.settle if found else 0):
            self.learner.update(read)
        return found

    @property
    def frames(self) -> Frames:
        """What is kept.

        Raises:
            ValueError: nobody keeps frames here.
        """
        if self._frames is None:
            raise ValueError("encoder= learns from the successes of a session with a person: use robot-rl hil")
        return self._frames

    def _fit(self) -> Metrics:
        found = self.encoder.fit(self.frames)
        self.encoder.encode(self.frames)
        return found

    def see(self, batch: Transitions) -> Transitions:
        """A batch as the method sees it."""
        return replace(batch, obs=self._features(batch.obs), next_obs=self._features(batch.next_obs))

    def _features(self, obs: Obs) -> Obs:
        with torch.no_grad():
            return {"state": self.encoder.read(obs["sight"], obs["state"], obs.get("tool")), **self._judge(obs)}

    def _judge(self, obs: Obs) -> Obs:
        """What critics alone read."""
        return {key: obs[key] for key in self._beside}

    def values(self, obs: Obs, action: np.ndarray) -> np.ndarray:
        """(E, B) values of actions in what the policy has just looked at; for advice."""
        return self.learner.values({"state": self.policy.features, **self._judge(obs)}, action)

    def state_dict(self) -> StateDict:
        """Of both, and whether a fit is due."""
        parts = {"method": self.learner.state_dict(), "encoder": self.encoder.state_dict()}
        return {**parts, "updates": self.updates, "due": self.works_between}

    def load_state_dict(self, state: StateDict, /) -> None:
        """Copy in place; frames that another fit encoded are encoded again before they are learned from."""
        self.learner.load_state_dict(state["method"])
        self.encoder.load_state_dict(state["encoder"])
        self.updates, self.works_between = int(state["updates"]), bool(state.get("due", False))


class EncodedPolicy:
    """A policy behind an encoder.

    Args:
        io: interface of the robot.
        encoder: shared with the learner.
        policy: of the method.

    Attributes:
        features: (N, F) what the method's policy saw last.
    """

    def __init__(self, io: IOSpec, encoder: Any, policy: TrainedPolicy) -> None:
        self.io, self._encoder, self._policy = io, encoder, policy
        self._trail: Any = None
        self.features = np.zeros((0, 0), np.float32)

    @property
    def parts(self) -> PolicyParts:
        """It looks, and perhaps remembers what stands still."""
        inner = self._policy.parts
        return PolicyParts(
            executed=inner.executed,
            reseed=inner.reseed,
            look=self.look,
            features=lambda obs: self._see(obs)[1].cpu().numpy(),
            remembers=self._encoder.remembers,
            set_dither=inner.set_dither,
        )

    def reset(self, rows: Array | None = None) -> None:
        """Forget what these rows have seen; None means all."""
        if rows is None or self._trail is None:
            self._trail = None
        else:
            self._trail = self._encoder.forget(self._trail, torch.as_tensor(rows))
        self._policy.reset(rows)

    def act(self, obs: Obs, *, deterministic: bool = False) -> Action:
        """Actions (N, A); extras["sight"] (N, W) is what was seen, to be recorded."""
        sight, features = self._see(obs)
        self.features = features.cpu().numpy()
        arrays = isinstance(obs["state"], np.ndarray)
        found = self._policy.act({"state": self.features if arrays else features}, deterministic=deterministic)
        return replace(found, extras={**found.extras, "sight": sight.cpu().numpy() if arrays else sight})

    def look(self, obs: Obs) -> np.ndarray:
        """(N, W) what `act` would record of these observations, without acting."""
        return self._look(obs).cpu().numpy()

    def _see(self, obs: Obs) -> tuple[torch.Tensor, torch.Tensor]:
        """What was seen (N, W), and what the method reads of it (N, F)."""
        sight = self._look(obs)
        state, tool = (torch.as_tensor(obs[key]).to(sight) if key in obs else None for key in ("state", "tool"))
        return sight, self._encoder.read(sight, state, tool)

    def _look(self, obs: Obs) -> torch.Tensor:
        sight, self._trail = self._encoder.look(obs, self._trail)
        return sight

    def state_dict(self) -> StateDict:
        """Of the encoder and of the method's policy: tensors only."""
        return {"encoder": self._encoder.state_dict()["nets"], "method": self._policy.state_dict()}

    def load_state_dict(self, state: StateDict, /) -> None:
        """Copy in place."""
        self._encoder.load_weights(state["encoder"])
        self._policy.load_state_dict(state["method"])
