"""What a learner has besides its loss: networks, optimisers, normaliser, saved state, metrics; never the update."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import torch
from pydantic import StrictBool
from torch import Tensor

from robot_rl.policies.nets.flat import FlatParams
from robot_rl.policies.nets.image import EncoderShape, ImageEncoder, random_shift
from robot_rl.policies.nets.learner_state import LearnerState
from robot_rl.policies.nets.mean_policy import MeanPolicy
from robot_rl.policies.nets.mlp import MlpShape
from robot_rl.policies.nets.net import Draw, Leaves, Net, NetShape
from robot_rl.policies.nets.normalizer import Centre, FixedNorm, RunningNorm
from robot_rl.policies.nets.rows import Rows, split, state_size, valid_rows
from robot_rl.policies.nets.squashed_policy import SquashedGaussianPolicy
from robot_rl.policies.nets.step_size import LrSchedule, StepSize
from robot_rl.types import IOSpec, Learner, LogFacts, Metrics, Needs, Obs, Options, StateDict, Transitions
from robot_rl.types.io import PRIVILEGED
from robot_rl.types.options import Count, Mixing, Rate, Whole


class StateOptions(Options):
    """What every learner with a saved state may be told."""

    lr: Rate = 3e-4
    """Step size of everything that has none of its own."""
    metrics_every: Whole = 100
    """Metrics are computed in every n-th update, other calls return the latest; 0 for never."""


class RowOptions(StateOptions):
    """What every learner of rows may be told."""

    batch_size: Count = 256
    """Rows per update of one seed; of one critic step where an update makes several."""


class NetOptions(RowOptions):
    """What every learner of perceptrons may be told."""

    hidden: tuple[Count, ...] = (256, 256)
    """Widths of the hidden layers of all networks."""
    matmul: Literal["float32", "bf16", "auto"] = "float32"
    """Type of the square products; auto: bf16 where native."""
    kernel: Literal["auto", "explicit", "autograd"] = "auto"
    """Gradients written out, or by torch's own operators (the reference)."""


class LogOptions(NetOptions):
    """What every learner from logs may be told."""

    seeds: Count = 1
    """How many independent runs are trained side by side, each on rows of its own."""
    actor_decay: Whole = 0
    """Updates over which the actor's step size falls to 0 as a cosine; 0 keeps it."""
    normalize: bool = True
    """Standardise states by the data's moments."""


class TdOptions(NetOptions):
    """What every learner of replayed rows may be told."""

    tau: Mixing = 0.005
    """Polyak rate of the targets, after each critic step."""
    utd: Count = 1
    """Critic steps per update, each on a batch of its own."""
    normalize_obs: StrictBool | Literal["auto"] = False
    """Standardise "state" with running moments, stored in the policy; auto: where its components have no names of their
    own but places ("observation[3]"), as those of Gymnasium tasks, whose units vary. Worlds that name theirs have
    scaled them, and standardising what hardly varies slows learning."""
    encoder_channels: tuple[Count, ...] = (32, 32, 32, 32)
    """Channels of the image encoder's convolutions."""
    encoder_strides: tuple[Count, ...] = (2, 2, 1, 1)
    """Strides of them."""
    latent: Count = 50
    """Features per camera."""
    shift_pad: Whole = 4
    """Random-shift augmentation of images in pixels; 0 for none."""


P = TypeVar("P", bound=StateOptions)
R = TypeVar("R", bound=RowOptions)
Data_contra = TypeVar("Data_contra", contravariant=True)
OptionsT = TypeVar("OptionsT", bound=NetOptions)
L = TypeVar("L", bound=LogOptions)
T = TypeVar("T", bound=TdOptions)


class StateLearner(Learner[P, Data_contra]):
    """Base of learners with one generator, one saved state of named parts, metrics when they are due.

    Attributes:
        actions: number of actions.
        generator: of weights and noise.
        state: what is saved, counted and measured.
    """

    method = "this method"

    def __init__(self, options: P, io: IOSpec, *, seed: int = 0, device: str = "cpu") -> None:
        super().__init__(options, io, seed=seed, device=device)
        self.seed, self.actions = seed, io.action_dim
        self.generator = torch.Generator(device=device).manual_seed(seed)
        self.state = LearnerState(self.method, metrics_every=options.metrics_every, parts={"generator": self.generator})

    def noise(self, shape: tuple[int, ...]) -> Tensor:
        """Standard normal numbers of the learner's own generator."""
        return torch.randn(shape, generator=self.generator, device=self.generator.device)

    @property
    def next_update(self) -> int:
        """Number of the update that is being made, from 1."""
        return self.state.updates + 1

    @property
    def due(self) -> bool:
        """Whether this update's metrics are read."""
        every = self.o.metrics_every
        return every > 0 and self.next_update % every == 0

    def metrics(self, **values: Tensor) -> Metrics:
        """Count the update; the means of what it gives as train/<name>, computed when they are due.

        Raises:
            FloatingPointError: a value is not finite, or "q" is beyond what the rewards allow.
        """
        due = self.state.tick()
        return self.state.report(
            {name: value.detach().float().mean() for name, value in values.items()} if due else None
        )

    def state_dict(self) -> StateDict:
        """Networks, optimisers, generators and counters: tensors and numbers."""
        return self.state.state_dict()

    def load_state_dict(self, state: StateDict, /) -> None:
        """Copy in place.

        Raises:
            ValueError: the state belongs to a learner of other sizes.
        """
        self.state.load_state_dict(state)


class RowLearner(StateLearner[R, Transitions]):
    """Base of learners of rows."""

    @classmethod
    def needs(cls, options: R, io: IOSpec) -> Needs:
        """Rows, as many as a batch has."""
        return Needs(rows=options.batch_size)


class NetLearner(RowLearner[OptionsT]):
    """Base of learners whose networks are `Net`s.

    A method says in `build` which networks it has and what acts (`self.policy`), and writes `update`.
    """

    def __init__(self, options: OptionsT, io: IOSpec, *, seed: int = 0, device: str = "cpu") -> None:
        super().__init__(options, io, seed=seed, device=device)
        self.seeds, self._leaves, self._rates = self.need.seeds, list[Leaves](), list[StepSize]()

    @property
    def prelude(self) -> int:
        """Updates before the method's own: of a model, or of a clone."""
        return 0

    def build(self) -> None:
        """Make networks and `self.policy`."""
        raise NotImplementedError(f"{type(self).__name__}.build is missing")

    def net(
        self,
        name: str,
        inputs: int,
        outputs: int | None = None,
        *,
        members: int | None = None,
        layer_norm: bool = False,
        more: Mapping[str, tuple[int, ...]] | None = None,
        hidden: tuple[int, ...] | None = None,
        lr: float | None = None,
        decay: int = 0,
        draw: Draw = MlpShape.initialise,
    ) -> Net:
        """A network that is saved under its name.

        Args:
            name: of the network.
            inputs: width of all parts of its input.
            outputs: width of its output; None for one number without an axis (a value).
            members: E of an ensemble; None for one network.
            layer_norm: in its hidden layers.
            more: further parameters -> shape.
            hidden: widths of its hidden layers; None for those of the options.
            lr: its step size; None for that of the options.
            decay: updates after the prelude over which its step size falls to 0 as a cosine; 0 keeps it.
            draw: its first weights.
        """
        o, state = self.o, self.state
        sizes = NetShape(inputs, outputs, hidden or o.hidden, members, self.seeds, layer_norm, more or {})
        first = o.lr if lr is None else lr
        rate = (lambda: state.falling(first, decay, first=self.prelude)) if decay else first
        net = Net(name, sizes, lr=rate, generator=self.generator, draw=draw, kernel=o.kernel, matmul=o.matmul)
        return self.keep(net)

    def number(self, name: str, value: float, *, lr: float) -> Leaves:
        """One number that a loss may move, read as `result[name]` (1,) and saved under its name."""
        params = FlatParams({name: (1,)}, device=self.generator.device)
        params.flat[0] = value
        return self.keep(Leaves(name, params, lr=lr, free=[name]))

    def target_copy(self, name: str, net: Net) -> Net:
        """A network that follows another and is saved under its name."""
        copy = net.target_copy(name)
        self.state.include({name: copy})
        return copy

    def keep(self, part: LeavesT) -> LeavesT:
        """Save what learns under its name."""
        self.state.include({part.name: part})
        self._leaves.append(part)
        return part

    def schedule(self, kind: LrSchedule) -> None:
        """From now on step sizes change over the run, of all that learns at a fixed one; see `StepSize`."""
        for part in self._leaves if kind != "constant" else ():
            if part.lr and not callable(part.lr):
                part.lr = rate = StepSize(part.lr, kind)
                self._rates.append(rate)

    def set_progress(self, share: float) -> None:
        """For the step sizes that change over the run."""
        for rate in self._rates:
            rate.progress = share

    def metrics(self, **values: Tensor) -> Metrics:
        """As everywhere, and train/lr of the first network where step sizes change over the run."""
        return super().metrics(**values, **({"lr": torch.tensor(self._rates[0]())} if self._rates else {}))

    def calm(self) -> None:
        """Halve all step sizes: after a divergence."""
        for part in self._leaves:
            part.halve_lr()


LeavesT = TypeVar("LeavesT", bound=Leaves)


class Standardised:
    """What learners have that read states in units of the data's deviations (`norm`), or as they are (None)."""

    norm: FixedNorm | None
    state: LearnerState

    def prepare(self, facts: LogFacts) -> None:
        """Take over the data's moments and bounds; called once, before the first update on a log."""
        if self.norm is not None:
            self.norm.set(facts.state_mean, facts.state_std)
        self.state.bound = facts.return_bound

    def see(self, state: Tensor) -> Tensor:
        """Normalised state."""
        return state if self.norm is None else self.norm(state)


class LogLearner(Standardised, NetLearner[L]):
    """Base of learners from logs of one vector observation "state".

    Attributes:
        size: width of the state.
        norm: of states, or None.
    """

    def __init__(self, options: L, io: IOSpec, *, seed: int = 0, device: str = "cpu") -> None:
        """Build the networks for `io`.

        Args:
            options: of the method.
            io: one vector observation "state".
            seed: of weights and noise.
            device: torch device.

        Raises:
            ValueError: images, or no "state".
        """
        super().__init__(options, io, seed=seed, device=device)
        self.size = state_size(io, self.method)
        self.norm = FixedNorm(self.size, device=device) if options.normalize else None
        self.build()
        self.state.include({"policy": self.policy})

    @classmethod
    def needs(cls, options: L, io: IOSpec) -> Needs:
        """Transitions of a log, the rows of all seeds at once."""
        return Needs(rows=options.batch_size * options.seeds, seeds=options.seeds)

    def mean_policy(self, actor: Net, **options: Any) -> MeanPolicy:
        """What acts by the tanh of an actor's output; `options` as of `MeanPolicy`."""
        return MeanPolicy(self.io, actor, seed=self.seed + 1, normalizer=self.norm, **options)

    def rows(self, batch: Transitions) -> Rows:
        """A batch, seeds first: (S, B, ...)."""
        return split(batch, self.o.seeds, self.norm)


@dataclass(frozen=True)
class TdRows:
    """A batch as the networks of an actor-critic read it.

    Attributes:
        state: (B, F) features of s; where there are images, the loss trains the encoder through them.
        judged: (B, C) what critics read of s: the same, and the privileged state where there is one.
        action: (B, A).
        reward: (B,).
        discount: (B,) gamma^k (1 - terminated): the only bootstrap multiplier.
        next_state: (B, F) features of s'.
        next_target: (B, C) what target critics read of s', by the target encoder.
        batch: where they come from.
    """

    state: Tensor
    judged: Tensor
    action: Tensor
    reward: Tensor
    discount: Tensor
    next_state: Tensor
    next_target: Tensor
    batch: Transitions


class TdLearner(NetLearner[T]):
    """Base of learners of replayed rows of "state", of images, or of both.

    Attributes:
        features: width F of what networks read.
        judged: width C of what critics read, at least F.
        norm: of states, or None.
        encoders: the image encoder, which learns by the critics' loss; empty without cameras.
    """

    _centres = False  # whether components of a state taken as it is are moved where they stay far from 0

    def __init__(self, options: T, io: IOSpec, *, seed: int = 0, device: str = "cpu") -> None:
        """Build the networks for `io`.

        Args:
            options: of the method.
            io: observation "state" and or "image.<camera>".
            seed: of weights, noise and augmentation.
            device: torch device.

        Raises:
            ValueError: neither state nor images.
        """
        super().__init__(options, io, seed=seed, device=device)
        cameras = {key: shape for key, (shape, _) in io.obs.items() if key.startswith("image.")}
        size = io.obs["state"][0][0] if "state" in io.obs else 0
        if not size and not cameras:
            raise ValueError(f"{self.method} reads 'state' and 'image.<camera>', got only {sorted(io.obs)}")
        auto = all(name.endswith("]") for name in io.obs_names)
        wanted = auto if options.normalize_obs == "auto" else options.normalize_obs
        if options.normalize_obs == "auto" and size:
            chosen = "standardised: its components have no names" if auto else "taken as it is: its world has scaled it"
            self.notes = (f"normalize_obs=auto: the state is {chosen}",)
        self.norm: RunningNorm | Centre | None = RunningNorm(size, device=device) if wanted and size else None
        if self._centres and size and not wanted:
            self.norm = Centre(size, device=device)
        self.eye: EncoderShape | None = None
        self.encoders: list[ImageEncoder] = []
        self._target_encoders: list[ImageEncoder] = []
        if cameras:
            self.eye = EncoderShape(cameras, options.encoder_channels, options.encoder_strides, options.latent)
            params = FlatParams(self.eye.shapes(), device=device)
            self.eye.initialise(params, self.generator)
            self.encoders.append(self.keep(ImageEncoder(self.eye, params, lr=options.lr)))
            self._target_encoders.append(ImageEncoder(self.eye, params.twin()))
            self.state.include({"target_encoder": self._target_encoders[0]})
        self._sized = bool(size)
        self.features = size + (self.eye.outputs if self.eye else 0)
        more = io.obs[PRIVILEGED][0][0] if PRIVILEGED in io.obs else 0
        self.judged = self.features + more
        self._critic_norm = RunningNorm(more, device=device) if wanted and more else None
        if self._critic_norm is not None:
            self.state.include({"critic_norm": self._critic_norm})
        self.build()
        self.state.include({"policy": self.policy})

    def gaussian_policy(self, params: FlatParams, actor: Net, dither: float = 0.0) -> SquashedGaussianPolicy:
        """What acts by weights of the actor's sizes; `dither` as `SquashedGaussianPolicy` takes it."""
        policy = SquashedGaussianPolicy(
            self.io.acting,
            actor.shape,
            params,
            seed=self.seed + 1,
            normalizer=self.norm,
            encoder_shape=self.eye,
            dither=dither,
        )
        for encoder in self.encoders:
            policy.follow_encoder(encoder.params)
        return policy

    def rows(self, batch: Transitions) -> TdRows:
        """A batch as networks read it; states are counted into the moments, images are shifted.

        Raises:
            ValueError: every row is masked out.
        """
        batch = valid_rows(batch)
        state = self.look(batch.obs)
        next_obs = self._shift(batch.next_obs)
        with torch.no_grad():
            next_state = next_target = self.see(next_obs, self.encoders)
            if self.encoders:
                next_target = self.see(next_obs, self._target_encoders)
        judged, next_target = self.judge(state, batch.obs), self.judge(next_target, batch.next_obs)
        return TdRows(state, judged, batch.action, batch.reward, batch.discount, next_state, next_target, batch)

    def look(self, obs: Obs) -> Tensor:
        """(B, F) features of observations to learn from: states are counted into the moments, images are shifted."""
        if self.norm is not None:
            self.norm.observe(obs["state"])
        if self._critic_norm is not None:
            self._critic_norm.observe(obs[PRIVILEGED])
        return self.see(self._shift(obs), self.encoders)

    def see(self, obs: Obs, encoders: list[ImageEncoder]) -> Tensor:
        """(B, F) features of observations."""
        parts = [encoder(obs) for encoder in encoders]
        if self._sized:
            parts.append(obs["state"] if self.norm is None else self.norm(obs["state"]))
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)

    def judge(self, state: Tensor, obs: Obs) -> Tensor:
        """(B, C) what critics read: features (B, F), and the privileged state where there is one.

        Source: Pinto et al., Asymmetric Actor Critic for Image-Based Robot Learning.
        """
        if self.judged == self.features:
            return state
        more = obs[PRIVILEGED]
        return torch.cat([state, more if self._critic_norm is None else self._critic_norm(more)], dim=1)

    def _shift(self, obs: Obs) -> Obs:
        if self.eye is None:
            return obs
        pad, draw = self.o.shift_pad, self.generator
        return {**obs, **{key: random_shift(obs[key], pad, draw) for key in self.eye.cameras}}

    def metrics(self, **values: Tensor) -> Metrics:
        """As everywhere, and train/centred, how many components of the state are moved, where some are."""
        if isinstance(self.norm, Centre) and self.norm.active:
            values["centred"] = self.norm.shift.count_nonzero()
        return super().metrics(**values)

    def load_state_dict(self, state: StateDict, /) -> None:
        """Copy in place; what has learned already keeps its states where they are."""
        super().load_state_dict(state)
        if isinstance(self.norm, Centre):
            self.norm.open = not self.state.updates

    def settle_encoders(self) -> None:
        """The target encoder takes over the encoder: before critics learn from either."""
        for slow, fast in zip(self._target_encoders, self.encoders):
            slow.params.blend(fast.params, 1.0)

    def follow(self, target: Net, net: Net) -> None:
        """A target network and the target encoder move towards what they follow, by `tau`."""
        target.soft_update(net, self.o.tau)
        for slow, fast in zip(self._target_encoders, self.encoders):
            slow.params.blend(fast.params, self.o.tau)
