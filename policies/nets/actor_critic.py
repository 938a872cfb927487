"""Actor and critic of one input on one flat parameter vector, which know their gradients.

For plain networks at PPO's small minibatches, autograd spends more time on bookkeeping than on arithmetic. Here actor
and critic are stacked, so that most calls serve both, all intermediate results live in buffers that are made once, and
gradients go into one flat vector, so that clipping and Adam are few calls. A loss of what they put out hands its
gradients to `backward_from`; on other devices, and as the reference, torch differentiates the same network.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from robot_rl.advantage.backends import backend
from robot_rl.policies.nets.image import EncoderShape, features_of
from robot_rl.state import Saved
from robot_rl.types.io import ArrayT

ACTIVATIONS = ("tanh", "relu", "elu")
LOG_STD_RANGE = (-5.0, 2.0)
_HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)
_BETA1, _BETA2 = 0.9, 0.999
_ZERO, _ONE, _TINY = np.float32(0.0), np.float32(1.0), np.float32(1e-6)


class ActorCriticLayout:
    """Where the weights of actor and critic lie in one flat vector.

    Hidden layers are stacked (2, in, out): index 0 is the actor, 1 the critic. `x @ weight` needs no transpose.

    Args:
        obs_dim: S.
        action_dim: A.
        hidden: widths of the hidden layers, the same for both networks.
        state_std: the actor's head gives a log standard deviation per state too; otherwise it is a free vector.
        more: P, further inputs behind those S, which the critic alone reads.
        eye: of pictures, whose features are the first of those S; its weights lie in the same vector, and both networks
            train it. None where there are no pictures.

    Raises:
        ValueError: further inputs, and no hidden layer that would take them.
    """

    def __init__(
        self,
        obs_dim: int,
        action_dim: int,
        hidden: tuple[int, ...],
        state_std: bool,
        more: int = 0,
        eye: EncoderShape | None = None,
    ) -> None:
        widths = (obs_dim, *hidden)
        self.obs_dim, self.more, self.eye = obs_dim, more, eye
        self.action_dim, self.state_std, self.depth = action_dim, state_std, len(hidden)
        if more and not hidden:
            raise ValueError("hidden is empty; a critic that reads more than the actor needs at least one hidden layer")
        self.shapes: dict[str, tuple[int, ...]] = {}
        for i in range(self.depth):
            self.shapes[f"weight{i}"] = (2, widths[i], widths[i + 1])
            self.shapes[f"bias{i}"] = (2, 1, widths[i + 1])
        self.shapes["actor_weight"] = (widths[-1], action_dim * (2 if state_std else 1))
        self.shapes["actor_bias"] = self.shapes["actor_weight"][1:]
        self.shapes["critic_weight"] = (widths[-1],)
        self.shapes["critic_bias"] = (1,)
        if more:
            self.shapes["critic_more"] = (more, widths[1])
        self.shapes |= {} if eye is None else eye.shapes()
        if not state_std:
            self.shapes["log_std"] = (action_dim,)
        self.size = sum(math.prod(shape) for shape in self.shapes.values())

    def views(self, flat: ArrayT) -> dict[str, ArrayT]:
        """Named views into a flat array or tensor of `size` elements."""
        views, start = {}, 0
        for name, shape in self.shapes.items():
            end = start + math.prod(shape)
            views[name] = flat[start:end].reshape(shape)
            start = end
        return views

    def actor_table(self) -> np.ndarray:
        """(L, 4) int64 for each layer of the actor, its head last: start of weight and bias, inputs, outputs."""
        starts = dict(zip(self.shapes, np.cumsum([0, *(math.prod(shape) for shape in self.shapes.values())])))
        rows = [(starts[f"weight{i}"], starts[f"bias{i}"], *self.shapes[f"weight{i}"][1:]) for i in range(self.depth)]
        return np.array([*rows, (starts["actor_weight"], starts["actor_bias"], *self.shapes["actor_weight"])], np.int64)

    def fill(self, flat: np.ndarray, rng: np.random.Generator, activation: str, log_std: float) -> None:
        """Orthogonal weights (hidden gain sqrt(2), 1 for elu; policy head 0.01, value head 1) and zero biases.

        Source: Huang et al., The 37 Implementation Details of PPO, details 2 and 3.
        """
        flat[:] = 0.0
        views = self.views(flat)
        for i in range(self.depth):
            gain = 1.0 if activation == "elu" else math.sqrt(2.0)
            for network in views[f"weight{i}"]:
                network[:] = _orthogonal(network.shape, rng) * gain
            if i == 0 and self.more:  # all inputs of the critic together
                whole = _orthogonal((self.obs_dim + self.more, views["critic_more"].shape[1]), rng) * gain
                views["weight0"][1], views["critic_more"][:] = whole[: self.obs_dim], whole[self.obs_dim :]
        views["actor_weight"][:] = _orthogonal(views["actor_weight"].shape, rng) * 0.01
        views["critic_weight"][:] = _orthogonal((len(views["critic_weight"]), 1), rng)[:, 0]
        if self.state_std:
            views["actor_bias"][self.action_dim :] = log_std
        else:
            views["log_std"][:] = log_std
        if self.eye is not None:
            drawn = torch.Generator().manual_seed(int(rng.integers(2**63)))
            self.eye.fill({name: torch.from_numpy(view) for name, view in views.items()}, drawn)


class _Buffers(NamedTuple):
    """What passes over one number of rows write into; layers, deltas and slopes are (2, B, H): actor, critic."""

    layers: list[np.ndarray]
    deltas: list[np.ndarray]
    slopes: list[np.ndarray]
    head: np.ndarray
    value: np.ndarray
    ones: np.ndarray
    row: np.ndarray


class ExplicitActorCritic:
    """Forward and backward in NumPy, on the CPU.

    Outputs and gradients are "mean" (B, A), "log_std" (A,), or (B, A) where the head gives it, and "value" (B,), arrays
    of float32. Outputs lie in buffers that the next call of the same B writes over.

    Args:
        layout: where weights lie.
        params: (layout.size,) float32; read at every call.
        activation: "tanh", "relu" or "elu".
    """

    def __init__(self, layout: ActorCriticLayout, params: Tensor, activation: str) -> None:
        self.grad = torch.zeros_like(params)
        self._layout, self._activation = layout, activation
        self._p, self._g = layout.views(params.numpy()), layout.views(self.grad.numpy())
        self._weights = [tuple(self._p[f"weight{i}"]) for i in range(layout.depth)]
        self._biases = [self._p[f"bias{i}"] for i in range(layout.depth)]
        self._weight_grads = [tuple(self._g[f"weight{i}"]) for i in range(layout.depth)]
        self._bias_grads = [self._g[f"bias{i}"] for i in range(layout.depth)]
        self._buffers: dict[int, _Buffers] = {}
        self._last: tuple[np.ndarray, _Buffers] | None = None

    def __call__(self, x: np.ndarray) -> dict[str, np.ndarray]:
        """Outputs of (B, S + P) inputs."""
        p, dims = self._p, self._layout.action_dim
        b = self._buffers.get(len(x)) or self._allocate(len(x))
        self._last = x, b
        actor, critic = self._forward(x, b.layers)
        head, value = b.head, b.value
        np.dot(actor, p["actor_weight"], out=head)
        head += p["actor_bias"]
        np.dot(critic, p["critic_weight"], out=value)
        value += p["critic_bias"]
        if self._layout.state_std:
            return {"mean": head[:, :dims], "log_std": head[:, dims:], "value": value}
        return {"mean": head, "log_std": p["log_std"], "value": value}

    def backward_from(self, outputs: Mapping[str, np.ndarray], gradients: Mapping[str, np.ndarray]) -> None:
        """Write the gradient by the parameters into `grad`.

        Args:
            outputs: of the last call.
            gradients: of a loss by them.

        Raises:
            RuntimeError: other outputs than those of the last call, whose buffers have been written over.
        """
        if self._last is None or outputs["value"] is not self._last[1].value:
            raise RuntimeError("these outputs are not those of the network's last call; call it again on their input")
        (x, b), p, g = self._last, self._p, self._g
        d_head, d_value = gradients["mean"], gradients["value"]
        if self._layout.state_std:
            d_head = np.concatenate([d_head, gradients["log_std"]], axis=1)
        else:
            g["log_std"][:] = gradients["log_std"]
        layers = b.layers
        actor, critic = (layers[-1][0], layers[-1][1]) if layers else (x, x)
        np.dot(actor.T, d_head, out=g["actor_weight"])
        np.dot(b.ones, d_head, out=g["actor_bias"])
        np.dot(d_value, critic, out=g["critic_weight"])
        g["critic_bias"][0] = d_value.sum()
        if layers:
            top = b.deltas[-1]
            np.dot(d_head, p["actor_weight"].T, out=top[0])
            np.multiply(d_value[:, None], p["critic_weight"], out=top[1])
            self._backward(x, b)

    def _forward(self, x: np.ndarray, out: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """Last hidden layers of actor and critic."""
        seen, more = x[:, : self._layout.obs_dim], x[:, self._layout.obs_dim :]
        below = (seen, seen)
        for i, h in enumerate(out):
            actor, critic = self._weights[i]
            # Two plain products: NumPy's stacked matmul is twice as slow here.
            np.dot(below[0], actor, out=h[0])
            np.dot(below[1], critic, out=h[1])
            if i == 0 and self._layout.more:
                h[1] += np.dot(more, self._p["critic_more"])
            h += self._biases[i]
            activate(h, self._activation)
            below = (h[0], h[1])
        return below

    def _backward(self, x: np.ndarray, b: _Buffers) -> None:
        layers, seen = b.layers, x[:, : self._layout.obs_dim]
        for i in range(len(layers) - 1, -1, -1):
            h, delta, slope = layers[i], b.deltas[i], b.slopes[i]
            if self._activation == "tanh":
                np.multiply(h, h, out=slope)
                np.subtract(1.0, slope, out=slope)
            elif self._activation == "relu":
                np.greater(h, 0.0, out=slope)
            else:
                np.minimum(h, 0.0, out=slope)
                slope += 1.0
            delta *= slope
            below, grad = (layers[i - 1] if i else (seen, seen)), self._weight_grads[i]
            np.dot(below[0].T, delta[0], out=grad[0])
            np.dot(below[1].T, delta[1], out=grad[1])
            np.matmul(b.row, delta, out=self._bias_grads[i])
            if i == 0 and self._layout.more:
                np.dot(x[:, self._layout.obs_dim :].T, delta[1], out=self._g["critic_more"])
            if i:
                (actor, critic), lower = self._weights[i], b.deltas[i - 1]
                np.dot(delta[0], actor.T, out=lower[0])
                np.dot(delta[1], critic.T, out=lower[1])

    def _allocate(self, count: int) -> _Buffers:
        shapes = self._layout.shapes
        stacks = [(2, count, shapes[f"weight{i}"][2]) for i in range(self._layout.depth)]
        layers, deltas, slopes = ([np.empty(s, np.float32) for s in stacks] for _ in range(3))
        head, value = np.empty((count, shapes["actor_weight"][1]), np.float32), np.empty(count, np.float32)
        ones = np.ones(count, np.float32)
        b = _Buffers(layers, deltas, slopes, head, value, ones, ones[None])
        return self._buffers.setdefault(count, b)


class AutogradActorCritic:
    """The same through autograd, on any device; arguments, outputs and gradients as there, tensors."""

    def __init__(self, layout: ActorCriticLayout, params: Tensor, activation: str) -> None:
        self.grad = torch.zeros_like(params)
        self._layout, self._activation = layout, activation
        self._leaves: dict[str, Tensor] = {}
        for (name, view), grad in zip(layout.views(params).items(), layout.views(self.grad).values()):
            self._leaves[name] = leaf = view.detach().requires_grad_()  # shares its memory with the flat vector
            leaf.grad = grad

    def __call__(self, x: Tensor | None, images: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
        """Outputs of (B, S + P) inputs; where there are pictures, their features come first and `x` behind them."""
        parts = [] if x is None else [x]
        if self._layout.eye is not None and images is not None:
            parts.insert(0, features_of(self._layout.eye, self._leaves, images))
        x = parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)
        return torch_outputs(self._leaves, self._layout, x, self._activation)

    def backward_from(self, outputs: Mapping[str, Tensor], gradients: Mapping[str, Tensor]) -> None:
        """As `ExplicitActorCritic.backward_from`."""
        self.grad.zero_()
        backward_from(outputs, gradients)


def backward_from(outputs: Mapping[str, Tensor], gradients: Mapping[str, Tensor]) -> None:
    """Hand gradients by a network's outputs to what autograd recorded of them; they add up in its leaves."""
    torch.autograd.backward([outputs[name] for name in gradients], list(gradients.values()))


ActorCritic = ExplicitActorCritic | AutogradActorCritic


def build_actor_critic(layout: ActorCriticLayout, params: Tensor, activation: str, *, explicit: bool) -> ActorCritic:
    """Gradients written out, or by torch (always where there are pictures); arguments as of `ExplicitActorCritic`."""
    return (ExplicitActorCritic if explicit else AutogradActorCritic)(layout, params, activation)


class Adam(Saved):
    """Adam on one flat vector, in place, after clipping the gradient to a norm.

    A gradient that is not finite (one row of an absurd observation is enough) is no step: weights and moments stay.

    Args:
        params: (P,) float32 tensor; NumPy arrays may share its memory.
        lr: step size.
        max_norm: largest norm of the gradient.
        eps: added to the root of the second moment.

    Attributes:
        lr: may be changed between steps.

    Source: Kingma and Ba, Adam, algorithm 1.
    """

    saved = ("_first", "_second", "_count")

    def __init__(self, params: Tensor, lr: float, max_norm: float, eps: float = 1e-5) -> None:
        self.lr, self._max_norm, self._params, self._eps = lr, max_norm, params, eps
        self._first, self._second = torch.zeros_like(params), torch.zeros_like(params)
        self._root = torch.empty_like(params)
        self._compiled = compile_kernel(adam) if params.device.type == "cpu" else None
        # on a device a tensor: whether a step counts is known only there
        self._count: int | Tensor = 0 if self._compiled else torch.zeros((), dtype=torch.float64, device=params.device)
        self._arrays = [x.numpy() for x in (params, self._first, self._second)] if self._compiled else []

    def step(self, grad: Tensor) -> float | Tensor:
        """Move the parameters against the (P,) gradient, which may be scaled; its norm before clipping."""
        if self._compiled is not None:
            self._count += 1
            rate = self.lr / (1.0 - _BETA1**self._count)
            root_scale = 1.0 / math.sqrt(1.0 - _BETA2**self._count)
            numbers = np.array([self._max_norm, rate, root_scale, self._eps, _BETA1, _BETA2], np.float32)
            norm = self._compiled(grad.numpy(), *self._arrays, numbers)
            self._count -= not math.isfinite(norm)
            return norm
        norm = torch.linalg.vector_norm(grad)  # stays on the device: no wait in the loop
        sound = torch.isfinite(norm)
        grad.mul_((self._max_norm / (norm + 1e-6)).clamp_(max=1.0)).masked_fill_(~sound, 0.0)
        share = sound.to(grad.dtype)
        self._count += share
        count = self._count.clamp_min(1.0)
        rate, root_scale = self.lr / (1.0 - _BETA1**count), (1.0 - _BETA2**count).rsqrt()
        self._first.lerp_(grad, (1.0 - _BETA1) * share)
        self._second.lerp_(grad.square(), (1.0 - _BETA2) * share)
        root = torch.sqrt(self._second, out=self._root)
        root.mul_(root_scale).add_(self._eps)
        self._params.sub_(self._first / root * (rate * share))
        return norm


def adam(grad: np.ndarray, params: np.ndarray, first: np.ndarray, second: np.ndarray, numbers: np.ndarray) -> float:
    """Clip the gradient to a norm and take one step in place; plain Python, to be compiled.

    Args:
        grad: (P,), read only.
        params: (P,).
        first: (P,) running mean of the gradient.
        second: (P,) running mean of its square.
        numbers: (6,) float32 largest norm, step size over the first bias correction, inverse root of the second bias
            correction, eps, beta1, beta2.

    Returns:
        The norm before clipping; where it is not finite nothing was changed.
    """
    largest, rate, root_scale, eps, beta1, beta2 = numbers
    square = _ZERO
    for i in range(len(grad)):
        square += grad[i] * grad[i]
    norm = math.sqrt(square)
    if not norm < math.inf:
        return norm
    scale = largest / (norm + _TINY) if norm > largest else _ONE
    for i in range(len(grad)):
        g = grad[i] * scale
        m = first[i] + (_ONE - beta1) * (g - first[i])
        v = beta2 * second[i] + (_ONE - beta2) * g * g
        first[i] = m
        second[i] = v
        params[i] -= rate * m / (math.sqrt(v) * root_scale + eps)
    return norm


@cache
def _compile(function: Callable[..., object]) -> Callable[..., Any]:
    from robot_rl.advantage.backends.compiled import njit

    # Sums may be reordered for vector units; NaN and infinity keep their meaning.
    return njit(error_model="numpy", fastmath={"reassoc", "contract", "nsz"})(function)


def compile_kernel(function: Callable[..., object]) -> Callable[..., Any] | None:
    """The function compiled, or None where the core computes in NumPy: numba is not installed or not wanted."""
    return _compile(function) if backend("cpu") == "numba" else None


def activate(x: np.ndarray, activation: str) -> None:
    """Apply "tanh", "relu" or "elu" in place."""
    if activation == "tanh":
        np.tanh(x, out=x)
    elif activation == "relu":
        np.maximum(x, 0.0, out=x)
    else:
        np.maximum(np.expm1(np.minimum(x, 0.0)), x, out=x)


def torch_outputs(
    views: Mapping[str, Tensor], layout: ActorCriticLayout, x: Tensor, activation: str
) -> dict[str, Tensor]:
    """Outputs as of `ExplicitActorCritic` of (B, S + P) inputs, in torch; of (B, S) the value is none."""
    function = {"tanh": torch.tanh, "relu": torch.relu, "elu": torch.nn.functional.elu}[activation]
    seen, more = x[:, : layout.obs_dim], x[:, layout.obs_dim :]
    h = seen.expand(2, *seen.shape)
    for i in range(layout.depth):
        h = torch.baddbmm(views[f"bias{i}"], h, views[f"weight{i}"])
        if i == 0 and more.shape[1]:
            h = torch.stack([h[0], torch.addmm(h[1], more, views["critic_more"])])
        h = function(h)
    head = torch.addmm(views["actor_bias"], h[0], views["actor_weight"])
    dims = layout.action_dim
    log_std = head[:, dims:] if layout.state_std else views["log_std"]
    return {"mean": head[:, :dims], "log_std": log_std, "value": h[1] @ views["critic_weight"] + views["critic_bias"]}


def gaussian_logp(action: Tensor, mean: Tensor, log_std: Tensor) -> Tensor:
    """(B,) log density of a diagonal Gaussian."""
    z = (action - mean) * torch.exp(-log_std)
    return (-0.5 * z * z - log_std - _HALF_LOG_2PI).sum(-1)


def _orthogonal(shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    rows, columns = shape
    q, r = np.linalg.qr(rng.standard_normal((max(rows, columns), min(rows, columns))))
    q *= np.sign(np.diag(r))
    return (q if rows >= columns else q.T).astype(np.float32)
