"""Networks that a loss is written with: call them, write the loss as the paper does, and step.

The kernels below (`mlp.py`) know their gradients; one autograd node per forward pass hands them over. What a loss may
do and what is refused stands at `step`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from robot_rl.policies.nets.flat import FlatParams
from robot_rl.policies.nets.kernels.batched_mlp import BatchedMlp
from robot_rl.policies.nets.mlp import Dropout, Mlp, MlpShape, build_mlp
from robot_rl.policies.nets.step_size import StepSize
from robot_rl.types import StateDict

Rate = float | Callable[[], float]
Draw = Callable[[MlpShape, FlatParams, torch.Generator], None]


def mean_rows(x: Tensor) -> Tensor:
    """Mean over rows, the last axis; sum over members and seeds, so that a seed side by side is a run of its own.

    Args:
        x: (..., B) loss of every row.

    Returns:
        () what `step` takes.
    """
    return x.sum() * (1.0 / x.shape[-1])


def step(loss: Tensor, *nets: Leaves) -> None:
    """One step of Adam of the named networks, and of nothing else.

    The loss may run through any other network: it is differentiated by its inputs only, and its gradients and weights
    stay as they are. Several forward passes of a network add up. A forward pass serves one backward pass.

    Args:
        loss: () that depends on every network named.
        nets: which learn.

    Raises:
        ValueError: the loss is not one number, or does not depend on one of the networks.
        RuntimeError: a pass of the loss was used up, or its network has changed since.
    """
    if loss.dim():
        raise ValueError(f"the loss has shape {tuple(loss.shape)}, expected one number: wrap it in mean_rows")
    if not loss.requires_grad:
        raise ValueError("the loss depends on no network; compute it outside torch.no_grad, without detach")
    for net in nets:
        net.open()
    try:
        loss.backward(inputs=[leaf for net in nets for leaf in net.leaves])
    finally:
        for net in nets:
            net.wanted = False
    missing = [net.name for net in nets if not net.has_gradients()]
    if missing:
        raise ValueError(
            f"the loss does not depend on {', '.join(missing)}; step only networks that it runs through, and call them "
            "outside torch.no_grad"
        )
    for net in nets:
        net.apply()


class Leaves:
    """Named parameters that a loss reads as they are: a temperature, the multiplier of a penalty.

    Attributes:
        name: for messages.
        params: values, gradients and moments.
        lr: step size, or what gives it at each step.
        wanted: whether a backward pass is to write this network's gradients now.
        leaves: what autograd differentiates by.
        max_norm: largest norm of a gradient; None for no limit.
        beta1: of Adam.
    """

    max_norm: float | None = None
    beta1: float = 0.9

    def __init__(self, name: str, params: FlatParams, *, lr: Rate, free: Sequence[str]) -> None:
        """Bind to parameters.

        Args:
            name: for messages.
            params: hold the values.
            lr: step size, or what gives it at each step.
            free: which of them are read as `leaves[name]`; a perceptron's are not.
        """
        self.name, self.params, self.lr, self.wanted = name, params, lr, False
        self._free: dict[str, Tensor] = {}
        for key in free if params.trainable else ():  # gradients add up in the flat gradient, where Adam reads them
            self._free[key] = leaf = params.view[key].detach().requires_grad_()
            leaf.grad = params.grad_view[key]
        self.leaves = list(self._free.values())

    def __getitem__(self, name: str) -> Tensor:
        """A parameter that a loss may read and autograd follows."""
        return self._free[name]

    def step(self, loss: Tensor) -> None:
        """`step(loss, self)`."""
        step(loss, self)

    def open(self) -> None:
        """Before a backward pass that is to write gradients."""
        self.wanted = True
        for name in self._free:
            self.params.grad_view[name].zero_()

    def has_gradients(self) -> bool:
        """Whether the backward pass reached this network; parameters that stand alone are not watched."""
        return True

    def apply(self) -> None:
        """Adam, with the gradients that the backward pass wrote."""
        if self.max_norm is not None:
            self.params.grad.mul_((self.max_norm / (self.params.grad.norm() + 1e-12)).clamp(max=1.0))
        self.params.adam(self.lr() if callable(self.lr) else self.lr, beta1=self.beta1)
        self.refresh()

    def refresh(self) -> None:
        """Make anew what is derived from the values, which have changed."""

    def halve_lr(self) -> None:
        """From now on steps are half as long: after a divergence."""
        lr = self.lr
        if isinstance(lr, StepSize):  # which is also what is reported
            lr.value *= 0.5
        else:
            self.lr = (lambda: 0.5 * lr()) if callable(lr) else 0.5 * lr

    def state_dict(self) -> StateDict:
        """Values, and Adam's moments of what learns."""
        return self.params.state_dict()

    def load_state_dict(self, state: StateDict) -> None:
        """Copy in place."""
        self.params.load_state_dict(state)
        self.refresh()


@dataclass(frozen=True)
class NetShape:
    """Sizes of a network.

    Attributes:
        inputs: width of all parts of its input together.
        outputs: width of the output; None for one number without an axis (a value).
        hidden: widths of the hidden layers.
        members: E of an ensemble; None for a single network.
        seeds: S, how many independent copies there are, each with rows of its own.
        layer_norm: normalise every hidden layer before its ReLU.
        more: further parameters -> shape, zeros at first; read as `net[name]`.
    """

    inputs: int
    outputs: int | None = None
    hidden: tuple[int, ...] = (256, 256)
    members: int | None = None
    seeds: int = 1
    layer_norm: bool = False
    more: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def mlp(self) -> MlpShape:
        """Of the kernel, whose members are those of the first seed, then of the second."""
        return MlpShape(self.seeds * (self.members or 1), self.inputs, self.hidden, self.outputs or 1, self.layer_norm)


class Net(Leaves):
    """An ensemble of perceptrons for each of S seeds, and what stands beside its output (a log standard deviation).

    Called with the parts of its input it gives (S, B, outputs), or (S, B) where `outputs` is None, with E in front
    where it is an ensemble, and without S where the parts are (B, width).
    """

    def __init__(
        self,
        name: str,
        sizes: NetShape,
        *,
        lr: Rate = 0.0,
        generator: torch.Generator | None = None,
        draw: Draw = MlpShape.initialise,
        params: FlatParams | None = None,
        kernel: str = "auto",
        matmul: str = "float32",
    ) -> None:
        """Draw a network on the generator's device, or bind to weights that exist.

        Args:
            name: for messages, and of its saved state.
            sizes: of the network.
            lr: step size, or what gives it at each step.
            generator: draws the weights; needed where `params` is None.
            draw: how; torch's own default for linear layers.
            params: weights that exist: those of a target network have no gradients.
            kernel: "auto", "explicit" or "autograd".
            matmul: "float32", "bf16" or "auto".
        """
        self.sizes, self.shape, self._kernel = sizes, sizes.mlp(), (kernel, matmul)
        if params is None:
            assert generator is not None
            params = FlatParams({**self.shape.shapes(), **sizes.more}, device=generator.device)
            draw(self.shape, params, generator)
        super().__init__(name, params, lr=lr, free=list(sizes.more))
        self.kernel: Mlp = build_mlp(self.shape, params, kernel=kernel, matmul=matmul)
        last = next(reversed(self.shape.shapes()))
        self._written = slice(0, params.slices[last].stop)  # of the flat gradient, by the kernel; `more` lies behind
        self._filled = False
        self._twice: BatchedMlp | None = None
        self._token = torch.empty(0, requires_grad=True)  # holds nothing: autograd records where an input asks for it
        if params.trainable:
            self.leaves.append(self._token)

    def __call__(
        self, *parts: Tensor, member: int | Sequence[int] | None = None, drop: Dropout | None = None
    ) -> Tensor:
        """Outputs, recorded for `step` unless under torch.no_grad.

        Args:
            parts: (S, B, width) or (B, width), side by side the input.
            member: which of every seed's E: one (the axis E is left out) or several; None for all.
            drop: leaves out hidden units (while training).

        Returns:
            ([E,] [S,] B [, outputs]).

        Raises:
            ValueError: a target network is asked for the gradient by its input.
        """
        if not torch.is_grad_enabled():
            return self.answer(parts, member, drop)[0]
        if self.params.trainable:
            return _Pass.apply(self._token, self, member, drop, *parts)
        if any(part.requires_grad for part in parts):
            raise ValueError(
                f"{self.name} is a target network, which no gradient passes, but its input asks for one; compute "
                "targets under torch.no_grad"
            )
        return self.answer(parts, member, drop)[0]

    def answer(
        self, parts: tuple[Tensor, ...], member: int | Sequence[int] | None, drop: Dropout | None
    ) -> tuple[Tensor, Tensor]:
        """Outputs as `__call__` gives them, and the input that the kernel read."""
        x = parts[0] if len(parts) == 1 else torch.cat(parts, -1)
        count, chosen = self.sizes.members or 1, None
        if isinstance(member, int):
            chosen = range(member, self.shape.members, count)
        elif member is not None:
            chosen = [first + m for first in range(0, self.shape.members, count) for m in member]
        out = self.kernel.forward(x, chosen, drop)
        if self.sizes.outputs is None:
            out = out[..., 0]
        if self.sizes.members is None or isinstance(member, int):
            return (out if x.dim() == 3 else out[0]), x
        return (out.view(len(x), -1, *out.shape[1:]).transpose(0, 1) if x.dim() == 3 else out), x

    def pull(self, d: Tensor, saved: _Saved, columns: slice | None) -> Tensor | None:
        """The backward pass of a forward pass; gradients of weights add up where they are wanted.

        Args:
            d: gradient of the loss by what `answer` gave.
            saved: what the forward pass kept.
            columns: of the input whose gradient is asked for.

        Returns:
            ([S,] B, columns).
        """
        if self.sizes.members is None or isinstance(saved.member, int):
            d = d if saved.x.dim() == 3 else d[None]
        elif saved.x.dim() == 3:
            d = d.transpose(0, 1).flatten(0, 1)
        d = (d[..., None] if self.sizes.outputs is None else d).contiguous()
        self.kernel.restore(saved.kept)
        if not self.wanted:
            return self.kernel.backward(d, weights=False, inputs=columns)
        grad = self.params.grad[self._written]
        before = grad.clone() if self._filled else None  # a kernel overwrites
        if saved.member is not None:
            grad.zero_()  # it writes those of its members only
        found = self.kernel.backward(d, inputs=columns)
        if before is not None:
            grad += before
        self._filled = True
        return found

    def with_slopes(self, *parts: Tensor) -> tuple[Tensor, Tensor]:
        """Values and their gradient by the last part, recorded for a loss of both: one that asks how values slope.

        One such pass may be open at a time; it needs one seed, one output and no LayerNorm.

        Args:
            parts: (1, B, width) or (B, width), side by side the input.

        Returns:
            ([E,] [1,] B) values and ([E,] [1,] B, width of the last part) slopes.

        Raises:
            ValueError: several seeds.
        """
        if self.shape.members != (self.sizes.members or 1):
            raise ValueError(f"{self.name} has {self.sizes.seeds} seeds side by side; slopes are written out for one")
        if self._twice is None:
            self._twice = BatchedMlp(self.shape, self.params, matmul=self._kernel[1])
        x = torch.cat(parts, -1)
        value, slope = _SlopePass.apply(self._token, self, x.view(-1, x.shape[-1]), parts[-1].shape[-1])
        value, slope = (found.view(-1, *x.shape[:-1], *found.shape[2:]) for found in (value, slope))
        return (value, slope) if self.sizes.members is not None else (value[0], slope[0])

    def slope_pass(self, x: Tensor, columns: slice) -> tuple[Tensor, Tensor]:
        """(E, B) values and (E, B, columns) slopes by columns of the input (B, n)."""
        assert self._twice is not None
        self._twice.refresh()
        return self._twice.forward(x)[..., 0], self._twice.slopes(columns)

    def pull_slopes(self, d: Tensor, d_slope: Tensor, columns: slice) -> None:
        """The backward pass of the last `slope_pass`, where gradients of weights are wanted."""
        assert self._twice is not None
        if not self.wanted:
            return
        grad = self.params.grad[self._written]
        before = grad.clone() if self._filled else None  # a kernel overwrites
        self._twice.backward_slopes(d[..., None], d_slope, columns)
        if before is not None:
            grad += before
        self._filled = True

    def open(self) -> None:
        """Before a backward pass that is to write gradients.

        Raises:
            ValueError: this is a target network.
        """
        if not self.params.trainable:
            raise ValueError(f"{self.name} is a target network: it moves by soft_update, not by a step")
        super().open()
        self._filled = False

    def has_gradients(self) -> bool:
        """Whether the backward pass wrote gradients."""
        return self._filled

    def refresh(self) -> None:
        """What the kernel derives from the weights."""
        self.kernel.refresh()

    def target_copy(self, name: str) -> Net:
        """A network of the same weights that no loss trains: it follows by `soft_update`."""
        kernel, matmul = self._kernel
        return Net(name, self.sizes, params=self.params.twin(), kernel=kernel, matmul=matmul)

    def soft_update(self, source: Net, tau: float) -> None:
        """Move towards `source`: weights <- (1 - tau) weights + tau weights of the source."""
        self.params.blend(source.params, tau)
        self.refresh()


class _Saved:
    """What a forward pass keeps for its backward pass; the kernel gets its buffers back when the graph dies."""

    def __init__(self, net: Net, x: Tensor, member: int | Sequence[int] | None) -> None:
        self.net, self.x, self.member, self.kept = net, x, member, net.kernel.take()
        self._versions = net.params.flat._version, x._version

    def __del__(self) -> None:
        self.net.kernel.release(self.kept)

    def check(self) -> None:
        """Refuse a backward pass through what has changed."""
        if (self.net.params.flat._version, self.x._version) == self._versions:
            return
        if self.x._version != self._versions[1]:
            raise RuntimeError(f"the input of {self.net.name} was changed in place after its pass; change a copy")
        raise RuntimeError(
            f"the weights of {self.net.name} changed after this forward pass, so its gradients would be wrong: step "
            "with every loss that needs the pass at once, or call the network again after its step"
        )


class _Pass(torch.autograd.Function):
    """One forward pass of a network as one node of autograd's graph."""

    @staticmethod
    def forward(
        ctx: Any, token: Tensor, net: Net, member: int | Sequence[int] | None, drop: Dropout | None, *parts: Tensor
    ) -> Tensor:
        out, x = net.answer(parts, member, drop)
        ctx.net, ctx.saved, ctx.widths = net, _Saved(net, x, member), [part.shape[-1] for part in parts]
        return out

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        (d,) = grad_outputs
        net, saved, widths, ctx.saved = ctx.net, ctx.saved, ctx.widths, None
        if torch.is_grad_enabled():
            raise RuntimeError(
                f"a second derivative through {net.name} is not written out; a loss of slopes calls with_slopes"
            )
        if saved is None:
            raise RuntimeError(
                f"this forward pass of {net.name} has had its backward pass: add up the losses and step once, or call "
                "the network again"
            )
        saved.check()
        needs = ctx.needs_input_grad[4:]
        if True not in needs:
            net.pull(d, saved, None)
            return (None,) * (4 + len(needs))
        first, last = needs.index(True), len(needs) - needs[::-1].index(True)
        found = net.pull(d, saved, slice(sum(widths[:first]), sum(widths[:last])))
        assert found is not None
        return (None,) * (4 + first) + torch.split(found, widths[first:last], -1) + (None,) * (len(needs) - last)


class _SlopePass(torch.autograd.Function):
    """Values and slopes of a network as one node of autograd's graph."""

    @staticmethod
    def forward(ctx: Any, token: Tensor, net: Net, x: Tensor, width: int) -> tuple[Tensor, Tensor]:
        ctx.net, ctx.columns, ctx.version = net, slice(x.shape[-1] - width, None), net.params.flat._version
        value, slope = net.slope_pass(x, ctx.columns)
        ctx.set_materialize_grads(False)
        ctx.shapes = value.shape, slope.shape
        return value, slope

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor | None) -> tuple[None, None, None, None]:
        net = ctx.net
        if net.params.flat._version != ctx.version:
            raise RuntimeError(
                f"the weights of {net.name} changed after this pass: call with_slopes again after its step"
            )
        d, d_slope = (
            net.params.flat.new_zeros(shape) if grad is None else grad.contiguous()
            for grad, shape in zip(grad_outputs, ctx.shapes)
        )
        net.pull_slopes(d, d_slope, ctx.columns)
        return None, None, None, None
