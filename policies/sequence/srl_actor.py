"""A recurrent actor that emits a sequence of actions from one observation."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from robot_rl.policies.nets.flat import FlatParams
from robot_rl.policies.nets.initial import draw_uniform
from robot_rl.policies.nets.normalizer import RunningNorm

_LOG_STD = (-20.0, 2.0)
_HALF_LOG_TAU = 0.5 * math.log(2 * math.pi)


class RecurrentActor:
    """h_0 = W2 relu(W1 s); h_{i+1} = GRU(a_{i-1}, h_i); u ~ N(mean(h), std(h)); a = tanh u.

    The input of the first inner step is the action executed before the decision, zeros after a reset.

    Args:
        state: S.
        actions: A.
        hidden: width.
        device: torch device.
        generator: of the initial weights (Xavier uniform; biases zero).
        normalize: read the state in units of its running deviation.
    """

    def __init__(
        self, state: int, actions: int, hidden: int, device: str, generator: torch.Generator, *, normalize: bool = False
    ) -> None:
        self.actions = actions
        # As in the model: what is small (the angle of a balanced pole) is what matters, so it is not kept small.
        self.norm = RunningNorm(state, max_scale=1e4, device=device) if normalize else None
        shapes = {
            "first": (hidden, state), "second": (hidden, hidden), "gate_in": (3 * hidden, actions),
            "gate_hidden": (3 * hidden, hidden), "mean": (actions, hidden), "log_std": (actions, hidden),
        }  # fmt: skip
        sizes = {f"{name}_bias": (shape[0],) for name, shape in shapes.items()}
        self.params = FlatParams({**shapes, **sizes}, device=device)
        for name, shape in shapes.items():
            draw_uniform(self.params.view[name], math.sqrt(6.0 / (shape[0] + shape[1])), generator)
        self.params.require_grad()

    def see(self, state: Tensor) -> Tensor:
        """The state (B, S) as the networks read it."""
        return state if self.norm is None else self.norm(state)

    def unroll(
        self, state: Tensor, previous: Tensor, noise: Tensor | None, steps: int, *, along: str = "sample"
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Actions (B, J, A), log-densities (B, J), and the actions (B, J, A) that the sequence went on from.

        Args:
            state: (B, S).
            previous: (B, A) action executed before.
            noise: (B, J, A) standard normal, or None for the mean action.
            steps: J.
            along: what the recurrence reads: the "sample", or the "mean" action, beside which samples are drawn.
        """
        p = self.params.view
        h = torch.relu(torch.addmm(p["first_bias"], self.see(state), p["first"].t()))
        h = torch.addmm(p["second_bias"], h, p["second"].t())
        # One product for both heads, and densities of all steps at once: what waits for the step before is kept short.
        head, bias = torch.cat([p["mean"], p["log_std"]]).t(), torch.cat([p["mean_bias"], p["log_std_bias"]])
        action, actions, played, deviations = previous, [], [], []
        for i in range(steps):
            h = torch.gru_cell(action, h, p["gate_in"], p["gate_hidden"], p["gate_in_bias"], p["gate_hidden_bias"])
            mean, log_std = torch.addmm(bias, h, head).split(self.actions, 1)
            if noise is None:
                action = mean.tanh()
            else:
                deviations.append(log_std.clamp(*_LOG_STD))
                action = torch.addcmul(mean, deviations[-1].exp(), noise[:, i]).tanh()
                if along == "mean":
                    actions.append(action)
                    action = mean.tanh()
            played.append(action)
        plan = torch.stack(played, 1)
        if noise is None:
            return plan, plan.new_zeros(plan.shape[:2]), plan
        chosen = torch.stack(actions, 1) if actions else plan
        density = -0.5 * noise.square() - torch.stack(deviations, 1) - _HALF_LOG_TAU
        return chosen, (density - (1.0 - chosen.square() + 1e-6).log()).sum(-1), plan
