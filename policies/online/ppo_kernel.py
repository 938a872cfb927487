"""Actor and critic of PPO on one flat parameter vector, with forward and backward written out in NumPy.

For plain networks at PPO's small minibatches, autograd spends more time on bookkeeping than on arithmetic. Here actor
and critic are stacked, so that most calls serve both, all intermediate results live in buffers that are made once, and
gradients go into one flat vector, so that clipping and Adam are few calls. The gradients are tested against autograd.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

ACTIVATIONS = ("tanh", "relu", "elu")
LOG_STD_RANGE = (-5.0, 2.0)
_LOG_2PI = math.log(2.0 * math.pi)
_BETA1, _BETA2 = 0.9, 0.999


@dataclass(frozen=True)
class Loss:
    """Coefficients of the PPO loss.

    Attributes:
        clip: the ratio is clipped to [1 - clip, 1 + clip].
        value_clip: the value may move this far from its old estimate; None means without limit.
        value_coef: weight of the squared value error.
        entropy_coef: weight of the entropy bonus.
    """

    clip: float
    value_clip: float | None
    value_coef: float
    entropy_coef: float


@dataclass
class Minibatch:
    """Rows that one gradient is computed from: arrays for `gradient`, tensors for `autograd_loss`.

    Attributes:
        obs: (B, S) normalised observations.
        action: (B, A) samples before clipping.
        logp: (B,) under the policy that acted.
        advantage: (B,).
        target: (B,) value targets.
        value: (B,) old values; read with value clipping only.
    """

    obs: Any
    action: Any
    logp: Any
    advantage: Any
    target: Any
    value: Any


class Layout:
    """Where the weights of actor and critic lie in one flat vector.

    Hidden layers are stacked (2, in, out): index 0 is the actor, 1 the critic. `x @ weight` needs no transpose.

    Args:
        obs_dim: S.
        action_dim: A.
        hidden: widths of the hidden layers, the same for both networks.
        state_std: the actor's head gives a log standard deviation per state too; otherwise it is a free vector.
    """

    def __init__(self, obs_dim: int, action_dim: int, hidden: tuple[int, ...], state_std: bool) -> None:
        widths = (obs_dim, *hidden)
        self.action_dim, self.state_std, self.depth = action_dim, state_std, len(hidden)
        self.shapes: dict[str, tuple[int, ...]] = {}
        for i in range(self.depth):
            self.shapes[f"weight{i}"] = (2, widths[i], widths[i + 1])
            self.shapes[f"bias{i}"] = (2, 1, widths[i + 1])
        self.shapes["actor_weight"] = (widths[-1], action_dim * (2 if state_std else 1))
        self.shapes["actor_bias"] = self.shapes["actor_weight"][1:]
        self.shapes["critic_weight"] = (widths[-1],)
        self.shapes["critic_bias"] = (1,)
        if not state_std:
            self.shapes["log_std"] = (action_dim,)
        self.size = sum(math.prod(shape) for shape in self.shapes.values())

    def views(self, flat: Any) -> dict[str, Any]:
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
            for network in views[f"weight{i}"]:
                network[:] = _orthogonal(network.shape, rng) * (1.0 if activation == "elu" else math.sqrt(2.0))
        views["actor_weight"][:] = _orthogonal(views["actor_weight"].shape, rng) * 0.01
        views["critic_weight"][:] = _orthogonal((len(views["critic_weight"]), 1), rng)[:, 0]
        if self.state_std:
            views["actor_bias"][self.action_dim :] = log_std
        else:
            views["log_std"][:] = log_std


class Kernel:
    """Forward, loss and backward of one minibatch on a flat parameter vector.

    Args:
        layout: where weights lie.
        params: (layout.size,) float32; read at every call.
        activation: "tanh", "relu" or "elu".
        loss: coefficients.
        rows: `loss_rows`, here or compiled.
    """

    def __init__(
        self, layout: Layout, params: np.ndarray, activation: str, loss: Loss, rows: Callable[..., None] | None = None
    ) -> None:
        self.grad = np.zeros_like(params)
        self._layout, self._activation, self._loss_rows = layout, activation, rows or loss_rows
        limit = -1.0 if loss.value_clip is None else loss.value_clip
        self._coefficients = np.array([loss.clip, limit, loss.value_coef, loss.entropy_coef], np.float32)
        self._p, self._g = layout.views(params), layout.views(self.grad)
        self._weights = [tuple(self._p[f"weight{i}"]) for i in range(layout.depth)]
        self._biases = [self._p[f"bias{i}"] for i in range(layout.depth)]
        self._weight_grads = [tuple(self._g[f"weight{i}"]) for i in range(layout.depth)]
        self._bias_grads = [self._g[f"bias{i}"] for i in range(layout.depth)]
        none = np.empty(0, np.float32)
        self._free_std, self._free_std_grad = self._p.get("log_std", none), self._g.get("log_std", none)
        self._buffers: dict[int, dict[str, Any]] = {}

    def gradient(self, batch: Minibatch, log_ratio: np.ndarray, value: np.ndarray) -> None:
        """Write the gradient of the loss into `grad`.

        Args:
            batch: B rows.
            log_ratio: (B,) receives log pi(a|s) - logp, clipped to [-20, 20].
            value: (B,) receives the critic's values.
        """
        p, g = self._p, self._g
        b = self._buffers.get(len(batch.obs)) or self._allocate(len(batch.obs))
        layers = self._forward(batch.obs, b["layers"])
        actor, critic = (layers[-1][0], layers[-1][1]) if layers else (batch.obs, batch.obs)
        head, d_head, d_value = b["head"], b["d_head"], b["d_value"]
        np.dot(actor, p["actor_weight"], out=head)
        head += p["actor_bias"]
        np.dot(critic, p["critic_weight"], out=value)
        value += p["critic_bias"]
        self._loss_rows(
            head,
            self._free_std,
            batch.action,
            batch.logp,
            batch.advantage,
            batch.target,
            batch.value,
            value,
            self._coefficients,
            d_head,
            self._free_std_grad,
            d_value,
            log_ratio,
        )
        np.dot(actor.T, d_head, out=g["actor_weight"])
        np.dot(b["ones"], d_head, out=g["actor_bias"])
        np.dot(d_value, critic, out=g["critic_weight"])
        g["critic_bias"][0] = d_value.sum()
        if layers:
            top = b["deltas"][-1]
            np.dot(d_head, p["actor_weight"].T, out=top[0])
            np.multiply(d_value[:, None], p["critic_weight"], out=top[1])
            self._backward(batch.obs, layers, b)

    def _forward(self, x: np.ndarray, out: list[np.ndarray]) -> list[np.ndarray]:
        for i, h in enumerate(out):
            (actor, critic), below = self._weights[i], (x, x) if i == 0 else x
            # Two plain products: NumPy's stacked matmul is twice as slow here.
            np.dot(below[0], actor, out=h[0])
            np.dot(below[1], critic, out=h[1])
            h += self._biases[i]
            activate(h, self._activation)
            x = h
        return out

    def _backward(self, obs: np.ndarray, layers: list[np.ndarray], b: dict[str, Any]) -> None:
        for i in range(len(layers) - 1, -1, -1):
            h, delta, slope = layers[i], b["deltas"][i], b["slopes"][i]
            if self._activation == "tanh":
                np.multiply(h, h, out=slope)
                np.subtract(1.0, slope, out=slope)
            elif self._activation == "relu":
                np.greater(h, 0.0, out=slope)
            else:
                np.minimum(h, 0.0, out=slope)
                slope += 1.0
            delta *= slope
            below, grad = (layers[i - 1] if i else (obs, obs)), self._weight_grads[i]
            np.dot(below[0].T, delta[0], out=grad[0])
            np.dot(below[1].T, delta[1], out=grad[1])
            np.matmul(b["row"], delta, out=self._bias_grads[i])
            if i:
                (actor, critic), lower = self._weights[i], b["deltas"][i - 1]
                np.dot(delta[0], actor.T, out=lower[0])
                np.dot(delta[1], critic.T, out=lower[1])

    def _allocate(self, count: int) -> dict[str, Any]:
        shapes = self._layout.shapes
        stacks = [(2, count, shapes[f"weight{i}"][2]) for i in range(self._layout.depth)]
        b: dict[str, Any] = {name: [np.empty(s, np.float32) for s in stacks] for name in ("layers", "deltas", "slopes")}
        b["head"], b["d_head"] = (np.empty((count, shapes["actor_weight"][1]), np.float32) for _ in range(2))
        b["d_value"], b["ones"] = np.empty(count, np.float32), np.ones(count, np.float32)
        b["row"] = b["ones"][None]
        self._buffers[count] = b
        return b


def loss_rows(
    head: np.ndarray,
    free_std: np.ndarray,
    action: np.ndarray,
    logp: np.ndarray,
    advantage: np.ndarray,
    target: np.ndarray,
    old_value: np.ndarray,
    value: np.ndarray,
    coefficients: np.ndarray,
    d_head: np.ndarray,
    d_free_std: np.ndarray,
    d_value: np.ndarray,
    log_ratio: np.ndarray,
) -> None:
    """Gradient of the PPO loss with respect to what the networks put out.

    Args:
        head: (B, A) means, or (B, 2 A) means and log standard deviations.
        free_std: (A,) log standard deviations for all states, or (0,).
        action: (B, A) samples before clipping.
        logp: (B,) under the policy that acted.
        advantage: (B,).
        target: (B,) value targets.
        old_value: (B,) values of the policy that acted.
        value: (B,) values now.
        coefficients: (4,) float32 clip, value clip (negative: none), value weight, entropy weight.
        d_head: shape of `head`, receives the gradient.
        d_free_std: shape of `free_std`, receives the gradient.
        d_value: (B,) receives the gradient.
        log_ratio: (B,) receives log pi(a|s) - logp, clipped to [-20, 20].
    """
    count, dims = action.shape
    clip, value_clip, value_coef, entropy_coef = (float(x) for x in coefficients)
    raw = free_std if len(free_std) else head[:, dims:]
    log_std = np.minimum(np.maximum(raw, LOG_STD_RANGE[0]), LOG_STD_RANGE[1])
    inv_std = np.exp(-log_std)
    z = (action - head[:, :dims]) * inv_std
    square = z * z
    np.sum(square, axis=1, out=log_ratio)
    log_ratio *= -0.5
    log_ratio -= log_std.sum(-1) + 0.5 * dims * _LOG_2PI
    log_ratio -= logp
    np.minimum(np.maximum(log_ratio, -20.0, out=log_ratio), 20.0, out=log_ratio)

    # d loss / d logp: the clipped branch has no gradient.
    ratio = np.exp(log_ratio)
    bounded = np.minimum(np.maximum(ratio, 1.0 - clip), 1.0 + clip)
    ratio *= advantage
    bounded *= advantage
    ratio *= bounded >= ratio
    ratio *= -1.0 / count
    delta = ratio[:, None]
    d_std = (square - 1.0) * delta
    inside = (raw >= LOG_STD_RANGE[0]) & (raw <= LOG_STD_RANGE[1])
    if len(free_std):
        np.sum(d_std, axis=0, out=d_free_std)
        d_free_std -= entropy_coef
        d_free_std *= inside
    else:
        d_std -= entropy_coef / count
        np.multiply(d_std, inside, out=d_head[:, dims:])
    z *= inv_std
    np.multiply(z, delta, out=d_head[:, :dims])

    np.subtract(value, target, out=d_value)
    if value_clip >= 0.0:
        # Larger of two squared errors; where the clipped one is larger, the value is beyond its limit: constant.
        moved = value - old_value
        near = old_value + np.minimum(np.maximum(moved, -value_clip), value_clip) - target
        d_value *= (near * near <= d_value * d_value) | (np.abs(moved) <= value_clip)
    d_value *= 2.0 * value_coef / count


class Adam:
    """Adam on one flat vector, in place, after clipping the gradient to a norm.

    Args:
        params: (P,) float32 tensor; NumPy arrays may share its memory.
        lr: step size.
        max_norm: largest norm of the gradient.
        eps: added to the root of the second moment.
        compiled: `ppo_numba.adam`, for parameters on the CPU; None uses torch.

    Source: Kingma and Ba, Adam, algorithm 1.
    """

    def __init__(
        self,
        params: Tensor,
        lr: float,
        max_norm: float,
        eps: float = 1e-5,
        compiled: Callable[..., float] | None = None,
    ) -> None:
        self._lr, self._max_norm, self._params, self._eps = lr, max_norm, params, eps
        self._first, self._second = torch.zeros_like(params), torch.zeros_like(params)
        self._root = torch.empty_like(params)
        self._compiled, self._count = compiled, 0

    def step(self, grad: Tensor) -> float | Tensor:
        """Move the parameters against the (P,) gradient, which may be scaled; its norm before clipping."""
        self._count += 1
        rate = self._lr / (1.0 - _BETA1**self._count)
        root_scale = 1.0 / math.sqrt(1.0 - _BETA2**self._count)
        if self._compiled is not None:
            numbers = np.array([self._max_norm, rate, root_scale, self._eps, _BETA1, _BETA2], np.float32)
            arrays = (x.numpy() for x in (self._params, grad, self._first, self._second))
            return self._compiled(*arrays, numbers)
        norm = torch.linalg.vector_norm(grad)  # stays on the device: no wait in the loop
        grad.mul_((self._max_norm / (norm + 1e-6)).clamp_(max=1.0))
        self._first.lerp_(grad, 1.0 - _BETA1)
        self._second.mul_(_BETA2).addcmul_(grad, grad, value=1.0 - _BETA2)
        root = torch.sqrt(self._second, out=self._root)
        root.mul_(root_scale).add_(self._eps)
        self._params.addcdiv_(self._first, root, value=-rate)
        return norm

    def state_dict(self) -> dict[str, Any]:
        """Moments and step count."""
        return {"first": self._first.clone(), "second": self._second.clone(), "count": self._count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Copy in place."""
        self._first.copy_(state["first"])
        self._second.copy_(state["second"])
        self._count = int(state["count"])


def activate(x: np.ndarray, activation: str) -> None:
    """Apply "tanh", "relu" or "elu" in place."""
    if activation == "tanh":
        np.tanh(x, out=x)
    elif activation == "relu":
        np.maximum(x, 0.0, out=x)
    else:
        np.maximum(np.expm1(np.minimum(x, 0.0)), x, out=x)


def torch_forward(views: dict[str, Tensor], layout: Layout, x: Tensor, activation: str) -> tuple[Tensor, ...]:
    """Mean (B, A), log standard deviation (B, A) or (A,), and value (B,) of (B, S) normalised observations."""
    function = {"tanh": torch.tanh, "relu": torch.relu, "elu": torch.nn.functional.elu}[activation]
    h = x.expand(2, *x.shape)
    for i in range(layout.depth):
        h = function(torch.baddbmm(views[f"bias{i}"], h, views[f"weight{i}"]))
    head = torch.addmm(views["actor_bias"], h[0], views["actor_weight"])
    raw = head[:, layout.action_dim :] if layout.state_std else views["log_std"]
    value = h[1] @ views["critic_weight"] + views["critic_bias"]
    return head[:, : layout.action_dim], raw.clamp(*LOG_STD_RANGE), value


def gaussian_logp(action: Tensor, mean: Tensor, log_std: Tensor) -> Tensor:
    """(B,) log density of a diagonal Gaussian."""
    z = (action - mean) * torch.exp(-log_std)
    return (-0.5 * z * z - log_std - 0.5 * _LOG_2PI).sum(-1)


def autograd_loss(
    views: dict[str, Tensor], layout: Layout, activation: str, loss: Loss, batch: Minibatch
) -> tuple[Tensor, Tensor, Tensor]:
    """The same loss on tensors, for devices other than the CPU and as the reference of `Kernel`.

    Returns:
        loss (), log ratio (B,), value (B,); the latter two without gradient.

    Source: Schulman et al., Proximal Policy Optimization Algorithms, equations 7 and 9.
    """
    mean, log_std, value = torch_forward(views, layout, batch.obs, activation)
    log_ratio = (gaussian_logp(batch.action, mean, log_std) - batch.logp).clamp(-20.0, 20.0)
    ratio = log_ratio.exp()
    bounded = ratio.clamp(1.0 - loss.clip, 1.0 + loss.clip)
    policy = -torch.minimum(ratio * batch.advantage, bounded * batch.advantage).mean()
    error = (value - batch.target).square()
    if loss.value_clip is not None:
        near = batch.value + (value - batch.value).clamp(-loss.value_clip, loss.value_clip)
        error = torch.maximum(error, (near - batch.target).square())
    entropy = log_std.sum(-1).mean()
    total = policy + loss.value_coef * error.mean() - loss.entropy_coef * entropy
    return total, log_ratio.detach(), value.detach()


def _orthogonal(shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    rows, columns = shape
    q, r = np.linalg.qr(rng.standard_normal((max(rows, columns), min(rows, columns))))
    q *= np.sign(np.diag(r))
    return (q if rows >= columns else q.T).astype(np.float32)
