"""What learns: a base class whose hooks do nothing, and what it asks of whoever feeds it."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

from robot_rl.types.data import LogFacts, Metrics, Obs
from robot_rl.types.env import StepEnv
from robot_rl.types.frames import Frames
from robot_rl.types.io import PRIVILEGED, IOSpec
from robot_rl.types.options import Options
from robot_rl.types.policy import Policy
from robot_rl.types.state import StateDict

if TYPE_CHECKING:
    import torch
    from torch import Tensor

FEEDS = ("transitions", "rollout", "stale_rollout", "episodes", "device_transitions", "device_rollout", "environment")
"""Ways of feeding, one loop each: replayed rows, fresh rollouts, rollouts of somewhat older weights, whole episodes
with a person in the loop, the first two on a device, and a learner's own loop (`OwnLoop`)."""

OptionsT = TypeVar("OptionsT", bound=Options)
Data_contra = TypeVar("Data_contra", contravariant=True)


@dataclass(frozen=True)
class Needs:
    """What a learner asks of what feeds it, known from its options and interface alone.

    Attributes:
        feeds: which loop feeds it, one of `FEEDS`; logs are transitions.
        then: the same for `robot-rl train init=...`, which goes on behind a log, where it is another; "" for `feeds`.
        rows: of one sample, over all seeds; 0 where the loop decides.
        window: steps per sample; above 1, batches are windows, fields (B, window) for (B,).
        seeds: runs side by side in one learner.
        columns: name -> shape of further columns that the buffer keeps: "previous_action", the action executed before
            (zeros after a reset), and "decision_start" (1,), 1 on the first tick of a decision.
        record: names of `Action.extras` that a rollout stores. "memory" and "next_memory", what is remembered before
            and behind a step, are shown to `value` beside the observations, as "memory".
        extras: columns of a log: "next_action", "return_to_go", "episode", "step", or info columns by name.
        keys: observations that are read; None for all.
        sight: width of `Action.extras["sight"]`, which is recorded at every step and kept beside the frames, as an
            observation "sight"; 0 for none.
        return_gamma: discount of "return_to_go" where it is not that of the run; 1 for undiscounted returns.
        return_bootstrap: "return_to_go" goes on behind a cut, see `data.LogDataset`.
        rewardless: no reward is read: a log without rewards will do.
        expert: a log of demonstrations beside the log is needed.
        progress: name of a log's column with a task's progress, or None.
        goals: options of `data.goals.GoalDataset`, for a learner that wants extras["goal"].
        hindsight: k goals of hindsight for each row that keeps its own, see `data.hindsight.HindsightReplay`; 0: none.
        goal_pictures: options of `data.goal_pictures.GoalPictures`, for one that reads goals as pictures.
        decision_interval: ticks for which a random action is held before the policy acts.
        rollout_steps: per environment and update, for the on-policy loops.
    """

    feeds: str = "transitions"
    then: str = ""
    rows: int = 0
    window: int = 1
    seeds: int = 1
    columns: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    record: tuple[str, ...] = ()
    extras: tuple[str, ...] = ()
    keys: tuple[str, ...] | None = None
    sight: int = 0
    return_gamma: float | None = None
    return_bootstrap: bool = False
    rewardless: bool = False
    expert: bool = False
    progress: str | None = None
    goals: Mapping[str, Any] | None = None
    hindsight: int = 0
    goal_pictures: Mapping[str, Any] | None = None
    decision_interval: int = 1
    rollout_steps: int = 1

    def __post_init__(self) -> None:
        for name in (self.feeds, *((self.then,) if self.then else ())):
            if name not in FEEDS:
                raise ValueError(f"a learner is fed '{name}', expected one of {', '.join(FEEDS)}")
        for name, value in (
            ("window", self.window),
            ("seeds", self.seeds),
            ("decision_interval", self.decision_interval),
            ("rollout_steps", self.rollout_steps),
        ):
            if value < 1:
                raise ValueError(f"Needs.{name} is {value}, expected 1 or more")


_DESCRIPTORS = (property, cached_property, classmethod, staticmethod)


class Learner(Generic[OptionsT, Data_contra]):
    """Turns data into a better policy; one class per file in policies/.

    A method states its options (`Options`), what it needs (`needs`) and its loss (`update`). Hooks have bodies that do
    nothing, so that a loop calls them without asking whether they exist.

    Args:
        options: of the method.
        io: interface of what is controlled.
        seed: of initial weights and of every draw.
        device: where networks live.

    Attributes:
        policy: what acts, a `TrainedPolicy`; its `state_dict` holds tensors only.
        device: where networks live; loops hand over batches that lie there.
    """

    policy: Any
    device: Any = "cpu"
    method: str = ""
    """The method's name in messages."""
    chooses: bool = False
    """Acts where actions are choices (`IOSpec.action_choices`); other methods act with continuous numbers."""
    privileged: bool = False
    """Its critics or its teacher read the observation that no policy sees, where there is one (`critic_state=true`)."""
    from_policy: bool = False
    """`robot-rl train init=...` starts from the policy of another method's run, not from this learner's own state."""
    reader: Any = None
    """A frozen network that makes columns of a log's pictures and sentences once, before training."""
    works_between: bool = False
    """Something is due that takes longer than a control step: `work_between` is to be called after this episode."""
    notes: tuple[str, ...] = ()
    """Lines that a run says at its start: what settings that say `auto` have chosen."""

    def __init__(self, options: OptionsT, io: IOSpec, *, seed: int = 0, device: str = "cpu") -> None:
        if io.action_choices and not self.chooses:
            raise ValueError(
                f"{self.method or type(self).__name__} acts with continuous numbers, and here an action is one of "
                f"{', '.join(map(str, io.action_choices))} choices; use policy=online/ppo"
                f"{' or policy=contrib/dqn' if len(io.action_choices) == 1 else ''}"
            )
        if PRIVILEGED in io.obs and not self.privileged:
            raise ValueError(
                f"{self.method or type(self).__name__} has no critics that read more than its policy sees; leave "
                "critic_state out, or use policy=online/sac, online/rlpd, online/ppo, human/imitation_sac or "
                "human/hil_serl"
            )
        self.o, self.io, self.device = options, io, device
        self._need = self.needs(options, io)

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        declared = {name for base in cls.__mro__[1:] for name in (*vars(base), *vars(base).get("__annotations__", {}))}
        asked = {item.name for item in fields(Needs)}
        for name, value in vars(cls).items():
            if name.startswith("_") or name.isupper() or callable(value) or isinstance(value, _DESCRIPTORS):
                continue  # a method, a property or a constant of the class's own
            if name in asked and name not in declared:
                raise TypeError(
                    f"{cls.__name__}.{name} = {value!r} is read by nobody: what a learner asks of what feeds it is "
                    f"stated by its `needs`, which returns Needs({name}=...)"
                )
            if name not in declared:
                known = sorted(x for x in declared | asked if not x.startswith("_"))
                stated = name in cls.__annotations__ if "__annotations__" in vars(cls) else False
                near = difflib.get_close_matches(name, known, 1, cutoff=0.85 if stated else 0.6)
                if stated and not near:
                    continue  # an attribute that the class states with its type as its own
                hint = f"; did you mean {near[0]}?" if near else ""
                raise TypeError(f"{cls.__name__}.{name} is no part of the contract of a learner{hint}")

    @classmethod
    def needs(cls, options: OptionsT, io: IOSpec) -> Needs:
        """What a learner with these options asks of what feeds it, before anything is built."""
        return Needs()

    @property
    def need(self) -> Needs:
        """What this learner asks of what feeds it."""
        try:
            return vars(self)["_need"]
        except KeyError:
            raise TypeError(
                f"{type(self).__name__}.__init__ did not state what it needs: call super().__init__(options, io)"
            ) from None

    def update(self, batches: Iterator[Data_contra], /) -> Metrics:
        """Draw as many batches as the method needs (UTD, epochs) and improve the policy."""
        raise NotImplementedError(f"{type(self).__name__}.update is missing: a method is a loss")

    def state_dict(self) -> StateDict:
        """All that the next update depends on: weights, optimisers, generators, counters; tensors and numbers."""
        raise NotImplementedError(f"{type(self).__name__}.state_dict is missing")

    def load_state_dict(self, state: StateDict, /) -> None:
        """Copy in place: optimisers keep their parameters."""
        raise NotImplementedError(f"{type(self).__name__}.load_state_dict is missing")

    def prepare(self, facts: LogFacts) -> None:
        """Called once before the first update on a log."""

    def pretrain(self, batches: Iterator[Data_contra], /) -> Metrics:
        """Called once with demonstrations before a person and the policy drive; metrics of what was learnt."""
        return {}

    def take_frames(self, frames: Frames) -> None:
        """Called once, before anything is driven, with the frames that a session with a person keeps."""

    def work_between(self, batches: Iterator[Data_contra], /) -> Metrics:
        """Called between two episodes where `works_between`; metrics of what was done."""
        return {}

    def features_changed(self) -> None:
        """Called where an encoder was fitted anew, so that the same pictures look different from here on."""

    def calm(self) -> None:
        """Called where updates diverge: halve step sizes."""

    def set_progress(self, share: float) -> None:
        """Called before an update with the share of the run's steps that are over, 0 to 1."""

    def values(self, obs: Obs, action: Any) -> Any:
        """(N,) what actions are worth in these observations; None where a method has no such estimate."""
        return None

    @property
    def judges(self) -> bool:
        """Whether `values` has an answer."""
        return type(self).values is not Learner.values

    def export(self, folder: Path) -> Path | None:
        """Write the policy in a format of other projects below a run's folder; None where there is none."""
        return None


AnyLearner: TypeAlias = Learner[Any, Any]
"""A learner of whatever options and data."""


class OuterLearner(Learner[OptionsT, Data_contra]):
    """A learner around another: what a loop asks is answered by the inner one.

    Attributes:
        learner: the inner one.
    """

    learner: AnyLearner

    @property
    def need(self) -> Needs:
        """What the inner learner needs."""
        return self.learner.need

    @property
    def judges(self) -> bool:
        """Whether the inner learner's `values` has an answer."""
        return self.learner.judges

    def features_changed(self) -> None:
        """The inner one's."""
        self.learner.features_changed()

    def calm(self) -> None:
        """Halve the inner learner's step sizes."""
        self.learner.calm()

    def set_progress(self, share: float) -> None:
        """Tell the inner learner how much of the run is over."""
        self.learner.set_progress(share)


class OnPolicyLearner(Learner[OptionsT, Data_contra]):
    """A learner of fresh rollouts: the loop asks it for values to bootstrap with."""

    @classmethod
    def needs(cls, options: OptionsT, io: IOSpec) -> Needs:
        """Fresh rollouts."""
        return Needs(feeds="rollout")

    def value(self, obs: Obs) -> Tensor:
        """(N,) state values."""
        raise NotImplementedError(f"{type(self).__name__}.value is missing")


class StaleLearner(OnPolicyLearner[OptionsT, Data_contra]):
    """A learner that corrects for rollouts of older policies.

    Attributes:
        lag: act with the policy of this many updates ago, without a thread; None = collect in a thread.
        queue: finished rollouts that may wait.
        updates: updates so far: the version of the weights.
    """

    lag: int | None
    queue: int
    updates: int

    @classmethod
    def needs(cls, options: OptionsT, io: IOSpec) -> Needs:
        """Rollouts of somewhat older weights."""
        return Needs(feeds="stale_rollout")

    def actor(self) -> Policy:
        """A policy with weights of its own, for the collecting side."""
        raise NotImplementedError(f"{type(self).__name__}.actor is missing")


class DeviceResident(Learner[OptionsT, Data_contra]):
    """A learner that never leaves its device.

    Attributes:
        device: of its tensors.
        updates: made so far.
    """

    device: torch.device
    updates: int

    def read_metrics(self) -> Metrics:
        """Metrics since the last reading; waits for the device, which `update` does not."""
        raise NotImplementedError(f"{type(self).__name__}.read_metrics is missing")


class OffPolicyDeviceLearner(DeviceResident[OptionsT, Data_contra]):
    """Of replayed rows; `batch_size` are rows per batch of this process."""

    @classmethod
    def needs(cls, options: OptionsT, io: IOSpec) -> Needs:
        """Replayed rows on its device."""
        return Needs(feeds="device_transitions")

    def explore(self, obs: Obs, ended: Tensor) -> Tensor:
        """(N, A) actions to learn from; `ended` (N,) bool marks rows in which an episode has just begun."""
        raise NotImplementedError(f"{type(self).__name__}.explore is missing")


class OnPolicyDeviceLearner(DeviceResident[OptionsT, Data_contra]):
    """Of rollouts; `rollout_steps` are steps T of every environment between updates."""

    @classmethod
    def needs(cls, options: OptionsT, io: IOSpec) -> Needs:
        """Rollouts on its device."""
        return Needs(feeds="device_rollout")

    def explore(self, obs: Obs) -> tuple[Tensor, Tensor, Tensor]:
        """Samples before clipping (N, A), log-probabilities (N,), values (N,)."""
        raise NotImplementedError(f"{type(self).__name__}.explore is missing")

    def value(self, obs: Obs) -> Tensor:
        """(B,) the critic's estimates."""
        raise NotImplementedError(f"{type(self).__name__}.value is missing")


class OwnLoop(Learner[OptionsT, Data_contra]):
    """A learner that brings its own loop: stable-baselines3, language agents, policies improved by trying.

    Attributes:
        env_steps: transitions so far.
        seen_rows: what it saw, as `data.seen.Looked`; None where observations are no vectors.
    """

    env_steps: int = 0
    seen_rows: Any = None

    @classmethod
    def needs(cls, options: OptionsT, io: IOSpec) -> Needs:
        """An environment."""
        return Needs(feeds="environment")

    def attach(self, env: StepEnv) -> None:
        """Take the environment."""
        raise NotImplementedError(f"{type(self).__name__}.attach is missing")

    def run(
        self,
        total_steps: int,
        tick: Callable[[int, Metrics], bool] | None = None,
        *,
        due: Callable[[int, int], bool] | None = None,
    ) -> None:
        """Learn until `env_steps` reaches `total_steps`.

        `tick(env_steps, metrics)` is called where `due(steps before, steps after)` says so; its True ends the run.
        """
        raise NotImplementedError(f"{type(self).__name__}.run is missing")

    def update(self, batches: Iterator[Data_contra], /) -> Metrics:
        """Refused: it draws its own batches.

        Raises:
            TypeError: always.
        """
        raise TypeError(f"{type(self).__name__} brings its own loop; use attach(env) and run(total_steps)")
