"""What a learner has besides its loss: networks, optimisers, normaliser, saved state, metrics; never the update."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor

from robot_rl.policies.nets.learner_state import LearnerState
from robot_rl.policies.nets.mean_policy import MeanPolicy
from robot_rl.policies.nets.mlp import MlpShape
from robot_rl.policies.nets.net import Draw, Net, NetShape
from robot_rl.policies.nets.normalizer import FixedNorm
from robot_rl.policies.nets.rows import Rows, split, state_size
from robot_rl.types import IOSpec, Learner, LogFacts, Metrics, Needs, Options, Transitions
from robot_rl.types.options import Count as Count
from robot_rl.types.options import Positive as Positive
from robot_rl.types.options import Rate, Whole
from robot_rl.types.options import Share as Share


class LogOptions(Options):
    """What every learner from logs may be told."""

    batch_size: Count = 256
    """Rows per update of one seed."""
    seeds: Count = 1
    """How many independent runs are trained side by side, each on rows of its own."""
    hidden: tuple[Count, ...] = (256, 256)
    """Widths of the hidden layers of all networks."""
    lr: Rate = 3e-4
    """Step size of everything."""
    actor_decay: Whole = 0
    """Updates over which the actor's step size falls to 0 as a cosine; 0 keeps it."""
    normalize: bool = True
    """Standardise states by the data's moments."""
    matmul: Literal["float32", "bf16", "auto"] = "float32"
    """Type of the square products."""
    kernel: Literal["auto", "explicit", "autograd"] = "auto"
    """Gradients written out, or by torch's own operators (the reference)."""
    metrics_every: Whole = 100
    """Metrics are computed in every n-th update; 0 for never."""


O_co = TypeVar("O_co", bound=LogOptions, covariant=True)


class LogLearner(Learner[O_co, Transitions]):
    """Base of learners from logs of one vector observation "state".

    A method says in `build` which networks it has and what acts (`self.policy`), and writes `update`.

    Attributes:
        size: width of the state.
        actions: number of actions.
        generator: of weights and noise.
        norm: of states, or None.
    """

    method = "this method"

    def __init__(self, options: O_co, io: IOSpec, *, seed: int = 0, device: str = "cpu") -> None:
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
        self.seed = seed
        self.size, self.actions = state_size(io, self.method), io.action_dim
        self.generator = torch.Generator(device=device).manual_seed(seed)
        self.norm = FixedNorm(self.size, device=device) if options.normalize else None
        self.state = LearnerState(self.method, metrics_every=options.metrics_every, parts={"generator": self.generator})
        self.build()
        self.state.include({"policy": self.policy})

    @classmethod
    def needs(cls, options: Any, io: IOSpec) -> Needs:
        """Transitions of a log, the rows of all seeds at once."""
        return Needs(rows=options.batch_size * options.seeds, seeds=options.seeds)

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
            decay: updates over which its step size falls to 0 as a cosine; 0 keeps it.
            draw: its first weights.
        """
        o, state = self.o, self.state
        sizes = NetShape(inputs, outputs, hidden or o.hidden, members, o.seeds, layer_norm, more or {})
        first = o.lr if lr is None else lr
        rate = (lambda: state.falling(first, decay, first=0)) if decay else first
        net = Net(name, sizes, lr=rate, generator=self.generator, draw=draw, kernel=o.kernel, matmul=o.matmul)
        state.include({name: net})
        return net

    def target_copy(self, name: str, net: Net) -> Net:
        """A network that follows another and is saved under its name."""
        copy = net.target_copy(name)
        self.state.include({name: copy})
        return copy

    def mean_policy(self, actor: Net, **options: Any) -> MeanPolicy:
        """What acts by the tanh of an actor's output; `options` as of `MeanPolicy`."""
        return MeanPolicy(self.io, actor.shape, actor.params, seed=self.seed + 1, normalizer=self.norm, **options)

    def prepare(self, facts: LogFacts) -> None:
        """Take over the data's moments and bounds; called once, before the first update."""
        if self.norm is not None:
            self.norm.set(facts.state_mean, facts.state_std)
        self.state.bound = facts.return_bound

    @property
    def next_update(self) -> int:
        """Number of the update that is being made, from 1."""
        return self.state.updates + 1

    def rows(self, batch: Transitions) -> Rows:
        """A batch, seeds first: (S, B, ...)."""
        return split(batch, self.o.seeds, self.norm)

    def metrics(self, **values: Tensor) -> Metrics:
        """Count the update; the means of what it gives as train/<name>, computed when they are due.

        Raises:
            FloatingPointError: a value is not finite, or "q" is beyond what the rewards allow.
        """
        due = self.state.tick()
        return self.state.report(
            {name: value.detach().float().mean() for name, value in values.items()} if due else None
        )

    def state_dict(self) -> dict[str, Any]:
        """Networks, optimisers, generators and counters: tensors and numbers."""
        return self.state.state_dict()

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Copy in place.

        Raises:
            ValueError: the state belongs to a learner of other sizes.
        """
        self.state.load_state_dict(state)
