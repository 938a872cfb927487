"""Modules of torch that a learner trains: one optimiser, warm-up, a bound on the gradient, and a state of its own."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from robot_rl.state import Saved
from robot_rl.types import StateDict


class ModuleStep(Saved):
    """AdamW on the parameters of a module; saved and loaded as one part of a learner.

    Args:
        module: what learns.
        lr: step size.
        weight_decay: of AdamW.
        warm_up: updates over which the step size grows linearly to `lr`; 0 for none.
        clip: bound of the gradient's norm; 0 for none.
        betas: of AdamW.

    Attributes:
        lr: may be changed between steps.
    """

    saved = ("module", "_optimiser", "_steps")

    def __init__(
        self,
        module: nn.Module,
        *,
        lr: float,
        weight_decay: float = 0.0,
        warm_up: int = 0,
        clip: float = 0.0,
        betas: tuple[float, float] = (0.9, 0.999),
    ) -> None:
        self.module, self.lr, self._warm_up, self._clip = module, lr, warm_up, clip
        self._optimiser = torch.optim.AdamW(module.parameters(), lr=lr, weight_decay=weight_decay, betas=betas)
        self._steps = 0

    def __call__(self, loss: Tensor) -> Tensor:
        """One step down `loss`; () norm of the gradient before it was bounded."""
        self._optimiser.zero_grad()
        loss.backward()
        return self.apply()

    def alone(self, loss: Tensor) -> Tensor:
        """One step down a loss that runs through other modules too, whose gradients stay as they are; () norm."""
        self._optimiser.zero_grad()
        loss.backward(inputs=list(self.module.parameters()))
        return self.apply()

    def apply(self) -> Tensor:
        """One step with the gradients that the parameters hold; () their norm."""
        self._steps += 1
        for group in self._optimiser.param_groups:
            group["lr"] = self.lr * min(1.0, self._steps / self._warm_up) if self._warm_up else self.lr
        norm = nn.utils.clip_grad_norm_(self.module.parameters(), self._clip or torch.inf)
        self._optimiser.step()
        return norm


class SlowCopy:
    """A copy of a module that follows it slowly and that no loss trains; saved and loaded as one part of a learner.

    Args:
        source: what it follows.
    """

    def __init__(self, source: nn.Module) -> None:
        self._source, self.module = source, copy.deepcopy(source).requires_grad_(False)

    def __call__(self, x: Tensor) -> Tensor:
        """What the copy puts out."""
        return self.module(x)

    @torch.no_grad()
    def soft_update(self, tau: float) -> None:
        """weights <- (1 - tau) weights + tau weights of the source."""
        for mine, theirs in zip(self.module.parameters(), self._source.parameters()):
            mine.lerp_(theirs, tau)

    def state_dict(self) -> StateDict:
        """Copies of the weights."""
        return module_state(self.module)

    def load_state_dict(self, state: StateDict, /) -> None:
        """Copy in place.

        Raises:
            ValueError: the weights are of other sizes.
        """
        load_module(self.module, state)


def module_state(module: nn.Module) -> dict[str, Tensor]:
    """Copies of a module's weights: what a later update leaves alone."""
    return {name: value.detach().clone() for name, value in module.state_dict().items()}


def load_module(module: nn.Module, state: dict[str, Tensor]) -> None:
    """Copy weights in place.

    Raises:
        ValueError: they are of another module.
    """
    try:
        module.load_state_dict(state)
    except RuntimeError as error:
        raise ValueError(f"saved weights do not fit; build it as it was saved: {error}") from error


class DrawnDropout:
    """DrawnDropout that draws from its owner's generator.

    Args:
        rate: share that is dropped.
        generator: where it draws.
    """

    def __init__(self, rate: float, generator: torch.Generator) -> None:
        if not 0.0 <= rate < 1.0:
            raise ValueError(f"dropout is {rate}, expected a share in [0, 1)")
        self.rate, self._generator = rate, generator

    def __call__(self, x: Tensor) -> Tensor:
        """Drop entries and scale up the others."""
        if not self.rate:
            return x
        keep = torch.rand(x.shape, generator=self._generator, device=x.device) >= self.rate
        return x * keep / (1.0 - self.rate)
