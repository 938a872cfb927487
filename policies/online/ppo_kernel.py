"""Actor and critic of PPO on one flat parameter vector, with forward and backward written out in NumPy.

For plain networks at PPO's small minibatches, autograd spends more time on bookkeeping than on arithmetic. Here actor
and critic are stacked, so that most calls serve both, all intermediate results live in buffers that are made once, and
gradients go into one flat vector, so that clipping and Adam are few calls. The gradients are tested against autograd.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

ACTIVATIONS = ("tanh", "relu", "elu")
LOG_STD_RANGE = (-5.0, 2.0)
_LOG_2PI = math.log(2.0 * math.pi)


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
    """

    def __init__(self, layout: Layout, params: np.ndarray, activation: str, loss: Loss) -> None:
        self.grad = np.zeros_like(params)
        self._layout, self._loss, self._activation = layout, loss, activation
        self._p, self._g = layout.views(params), layout.views(self.grad)
        self._weights = [tuple(self._p[f"weight{i}"]) for i in range(layout.depth)]
        self._biases = [self._p[f"bias{i}"] for i in range(layout.depth)]
        self._weight_grads = [tuple(self._g[f"weight{i}"]) for i in range(layout.depth)]
        self._bias_grads = [self._g[f"bias{i}"] for i in range(layout.depth)]
        self._buffers: dict[int, dict[str, Any]] = {}

    def gradient(self, batch: Minibatch, log_ratio: np.ndarray, value: np.ndarray) -> None:
        """Write the gradient of the loss into `grad`.

        Args:
            batch: B rows.
            log_ratio: (B,) receives log pi(a|s) - logp, clipped to [-20, 20].
            value: (B,) receives the critic's values.
        """
        p, g, loss = self._p, self._g, self._loss
        count, dims = len(batch.obs), self._layout.action_dim
        b = self._buffers.get(count) or self._allocate(count)
        layers = self._forward(batch.obs, b["layers"])
        actor, critic = (layers[-1][0], layers[-1][1]) if layers else (batch.obs, batch.obs)

        head = np.dot(actor, p["actor_weight"], out=b["head"])
        head += p["actor_bias"]
        np.dot(critic, p["critic_weight"], out=value)
        value += p["critic_bias"]
        raw = head[:, dims:] if self._layout.state_std else p["log_std"]
        log_std = np.minimum(np.maximum(raw, LOG_STD_RANGE[0]), LOG_STD_RANGE[1])
        inv_std = np.exp(-log_std)
        z = np.subtract(batch.action, head[:, :dims], out=b["z"])
        z *= inv_std
        square = np.multiply(z, z, out=b["square"])
        np.dot(square, b["ones"][:dims], out=log_ratio)
        log_ratio *= -0.5
        log_ratio -= log_std.sum(-1) + 0.5 * dims * _LOG_2PI
        log_ratio -= batch.logp
        np.minimum(np.maximum(log_ratio, -20.0, out=log_ratio), 20.0, out=log_ratio)

        # d loss / d logp: the clipped branch has no gradient.
        ratio = np.exp(log_ratio, out=b["ratio"])
        bounded = np.minimum(np.maximum(ratio, 1.0 - loss.clip), 1.0 + loss.clip)
        ratio *= batch.advantage
        bounded *= batch.advantage
        ratio *= bounded >= ratio
        ratio *= -1.0 / count
        delta = ratio[:, None]

        d_head = b["d_head"]
        d_std = np.subtract(square, 1.0, out=square)
        d_std *= delta
        if self._layout.state_std:
            d_std -= loss.entropy_coef / count
            d_std *= (raw >= LOG_STD_RANGE[0]) & (raw <= LOG_STD_RANGE[1])
            d_head[:, dims:] = d_std
        else:
            np.dot(b["ones"][:count], d_std, out=g["log_std"])
            g["log_std"] -= loss.entropy_coef
            g["log_std"] *= (raw >= LOG_STD_RANGE[0]) & (raw <= LOG_STD_RANGE[1])
        z *= inv_std
        np.multiply(z, delta, out=d_head[:, :dims])
        np.dot(actor.T, d_head, out=g["actor_weight"])
        np.dot(b["ones"][:count], d_head, out=g["actor_bias"])

        d_value = self._value_gradient(batch, value, b)
        np.dot(d_value, critic, out=g["critic_weight"])
        g["critic_bias"][0] = d_value.sum()
        if layers:
            top = b["deltas"][-1]
            np.dot(d_head, p["actor_weight"].T, out=top[0])
            np.multiply(d_value[:, None], p["critic_weight"], out=top[1])
            self._backward(batch.obs, layers, b)

    def _value_gradient(self, batch: Minibatch, value: np.ndarray, b: dict[str, Any]) -> np.ndarray:
        error = np.subtract(value, batch.target, out=b["error"])
        limit = self._loss.value_clip
        if limit is not None:
            # Larger of two squared errors; where the clipped one is larger, the value is beyond its limit: constant.
            moved = value - batch.value
            clipped = batch.value + np.minimum(np.maximum(moved, -limit), limit) - batch.target
            error *= (clipped * clipped <= error * error) | (np.abs(moved) <= limit)
        error *= 2.0 * self._loss.value_coef / len(value)
        return error

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
        dims, head = self._layout.action_dim, shapes["actor_weight"][1]
        b: dict[str, Any] = {name: [np.empty(s, np.float32) for s in stacks] for name in ("layers", "deltas", "slopes")}
        for name, shape in {"head": (count, head), "d_head": (count, head), "z": (count, dims)}.items():
            b[name] = np.empty(shape, np.float32)
        b["square"] = np.empty((count, dims), np.float32)
        b["ratio"], b["error"] = np.empty(count, np.float32), np.empty(count, np.float32)
        b["ones"] = np.ones(max(count, dims), np.float32)
        b["row"] = b["ones"][:count][None]
        self._buffers[count] = b
        return b


class Adam:
    """Adam on one flat vector, in place.

    Args:
        params: (P,) float32 tensor; NumPy arrays may share its memory.
        lr: step size.
        eps: added to the root of the second moment.

    Source: Kingma and Ba, Adam, algorithm 1.
    """

    def __init__(self, params: Tensor, lr: float, eps: float = 1e-5, beta1: float = 0.9, beta2: float = 0.999) -> None:
        self.lr, self._params, self._eps, self._betas = lr, params, eps, (beta1, beta2)
        self._first, self._second = torch.zeros_like(params), torch.zeros_like(params)
        self._root = torch.empty_like(params)
        self.count = 0

    def step(self, grad: Tensor) -> None:
        """Move the parameters against the (P,) gradient."""
        beta1, beta2 = self._betas
        self.count += 1
        self._first.lerp_(grad, 1.0 - beta1)
        self._second.mul_(beta2).addcmul_(grad, grad, value=1.0 - beta2)
        root = torch.sqrt(self._second, out=self._root)
        root.mul_(1.0 / math.sqrt(1.0 - beta2**self.count)).add_(self._eps)
        self._params.addcdiv_(self._first, root, value=-self.lr / (1.0 - beta1**self.count))

    def state_dict(self) -> dict[str, Any]:
        """Moments and step count."""
        return {"first": self._first.clone(), "second": self._second.clone(), "count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Copy in place."""
        self._first.copy_(state["first"])
        self._second.copy_(state["second"])
        self.count = int(state["count"])


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
