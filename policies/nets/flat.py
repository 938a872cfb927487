"""All parameters of a network in one flat tensor, so that Adam and target averaging are one fused call each."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from robot_rl.types import StateDict

_ALIGN = 16  # floats: every view starts on a 64-byte line


class FlatParams:
    """Named views into one flat tensor, with gradients of the same layout and Adam's moments.

    Gaps between views (alignment) stay zero: their gradient is zero, so Adam leaves them alone.

    Attributes:
        flat: (P,) parameters.
        view: name -> parameter of its own shape, sharing memory with `flat`.
        grad: (P,) gradient; `grad_view` are its named parts. Absent (empty) when `trainable` is False.
    """

    def __init__(
        self,
        shapes: Mapping[str, tuple[int, ...]],
        *,
        device: str | torch.device = "cpu",
        dtype: torch.dtype = torch.float32,
        trainable: bool = True,
    ) -> None:
        """Allocate zeros.

        Args:
            shapes: name -> shape of each parameter.
            device: torch device.
            dtype: type of parameters, gradients and moments.
            trainable: whether gradients and moments are needed (False for target networks).
        """
        self.shapes = {name: tuple(shape) for name, shape in shapes.items()}
        self.slices: dict[str, slice] = {}
        size = 0
        for name, shape in self.shapes.items():
            count = math.prod(shape)
            self.slices[name] = slice(size, size + count)
            size += -(-count // _ALIGN) * _ALIGN
        self.flat = torch.zeros(size, device=device, dtype=dtype)
        self.view = self._views(self.flat)
        self.trainable = trainable
        self.grad = torch.zeros_like(self.flat) if trainable else self.flat.new_zeros(0)
        self.grad_view = self._views(self.grad) if trainable else {}
        self.first = torch.zeros_like(self.grad)
        self.second = torch.zeros_like(self.grad)
        self.step = torch.zeros((), device=device, dtype=torch.float32)

    def _views(self, flat: Tensor) -> dict[str, Tensor]:
        return {name: flat[part].view(self.shapes[name]) for name, part in self.slices.items()}

    def twin(self) -> FlatParams:
        """A copy of the parameters without gradients or moments: a target network's storage."""
        other = FlatParams(self.shapes, device=self.flat.device, dtype=self.flat.dtype, trainable=False)
        other.flat.copy_(self.flat)
        return other

    def require_grad(self) -> None:
        """Make every view an autograd leaf (used by networks that run through autograd)."""
        for view in self.view.values():
            view.requires_grad_(True)

    @torch.no_grad()
    def adam(self, lr: float, *, beta1: float = 0.9, beta2: float = 0.999, eps: float = 1e-8) -> None:
        """One step of Adam with the gradient in `grad`, without weight decay.

        Source: Kingma and Ba, Adam, algorithm 1 (the same fused kernel as torch.optim.Adam(fused=True)).
        """
        self.step += 1
        torch.ops.aten._fused_adam_(
            [self.flat],
            [self.grad],
            [self.first],
            [self.second],
            [],
            [self.step],
            lr=lr,
            beta1=beta1,
            beta2=beta2,
            weight_decay=0.0,
            eps=eps,
            amsgrad=False,
            maximize=False,
        )
        torch.autograd.graph.increment_version(self.flat)  # the fused kernel writes without telling autograd

    @torch.no_grad()
    def blend(self, source: FlatParams, tau: float) -> None:
        """Move towards `source`: flat <- (1 - tau) * flat + tau * source (Polyak averaging of a target network)."""
        self.flat.lerp_(source.flat, tau)

    def state_dict(self) -> StateDict:
        """Copies of parameters and, when trainable, of moments and step count."""
        state = {"flat": self.flat.detach().clone()}
        if self.trainable:
            state |= {"first": self.first.clone(), "second": self.second.clone(), "step": self.step.clone()}
        return state

    @torch.no_grad()
    def load_state_dict(self, state: StateDict) -> None:
        """Copy in place, so that every view and every sharer sees the loaded values.

        Raises:
            ValueError: the stored tensor has another size: the networks differ.
        """
        own = {"flat": self.flat}
        if self.trainable:
            own |= {"first": self.first, "second": self.second, "step": self.step}
        for name, tensor in own.items():
            if name not in state:
                raise ValueError(f"saved parameters lack '{name}'; expected {sorted(own)}, got {sorted(state)}")
            if state[name].shape != tensor.shape:
                raise ValueError(
                    f"saved '{name}' has {tuple(state[name].shape)} entries, this network has {tuple(tensor.shape)}; "
                    "build the learner with the sizes that it was saved with"
                )
        for name, tensor in own.items():
            tensor.copy_(state[name])
