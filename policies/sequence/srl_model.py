"""The model along which SRL values a sequence: next state, how far members disagree, whether the episode goes on."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from robot_rl.policies.nets.flat import FlatParams
from robot_rl.policies.nets.learner import RowOptions
from robot_rl.policies.nets.mlp import AutogradMlp, MlpShape
from robot_rl.policies.nets.normalizer import RunningNorm
from robot_rl.types.options import Count


class RecallModelOptions(RowOptions):
    """Of the model; Patel and Siegelmann's has one member and nothing else, the options are ours."""

    model_hidden: tuple[Count, ...] = (400, 300)
    """Widths of the model."""
    members: Count = 1
    """Of an ensemble of models, whose mean goes on; all learn from the same rows and differ by their first weights."""
    model_delta: bool = False
    """The model predicts s' - s."""
    model_normalize: bool = False
    """The model reads and predicts in units of running deviations; implies `model_delta`."""
    end_head: bool = False
    """The model predicts true ends too, and a step weighs as much as the episode is likely to get there."""
    model_smooth: bool = False
    """SiLU in place of ReLU and a linear path beside it in the model: most of what a short step of physics changes is
    linear in state and action, the rest is smooth."""
    model_loss: Literal["mse", "l1"] = "mse"
    """Of the model's errors in its own units; l1 fits the many plain steps closely where the few rough ones (a fall, a
    stop) would take up the squares."""


class RecallModel:
    """An ensemble of perceptrons (s, a) -> s', and optionally the logit of a true end, with a slowly following copy.

    Args:
        options: of the model.
        state: S.
        actions: A.
        device: torch device.

    Source: Patel and Siegelmann, Overcoming Slow Decision Frequencies in Continuous Control.
    """

    def __init__(self, options: RecallModelOptions, state: int, actions: int, device: str) -> None:
        o, ends, smooth, normalize = options, options.end_head, options.model_smooth, options.model_normalize
        self.delta, self.ends, self.smooth, self._loss = o.model_delta or normalize, ends, smooth, o.model_loss
        shape = MlpShape(o.members, state + actions, o.model_hidden, state + ends, False, "model.")
        shapes = shape.shapes()
        if smooth:
            shapes["model.linear_weight"] = (o.members, state + actions, state + ends)
        self.params = FlatParams(shapes, device=device)
        self.target = self.params
        self._shape = shape
        self.net = AutogradMlp(shape, self.params)
        self.net_old = self.net
        # Small components count as much as large ones here; 1e4 still keeps rounding noise of constants small.
        sizes = (state + actions, state) if normalize else ()
        norms = [RunningNorm(n, max_scale=1e4, device=device) for n in sizes]
        self.norms = (norms[0], norms[1]) if norms else None

    def freeze(self) -> None:
        """Begin the slowly following copy; call once the weights are drawn."""
        self.target = self.params.twin()
        self.net_old = AutogradMlp(self._shape, self.target)

    def outputs(self, net: AutogradMlp, state: Tensor, action: Tensor) -> tuple[Tensor, Tensor | None]:
        """What the members say: (M, B, S) raw predictions, and (M, B) logits of an end."""
        x = torch.cat([state, action], 1)
        if self.norms is not None:
            x = self.norms[0](x)
        out = self._smooth(net.params, x) if self.smooth else net.compute(x)
        return (out[..., :-1], out[..., -1]) if self.ends else (out, None)

    def _smooth(self, params: FlatParams, x: Tensor) -> Tensor:
        view, last = params.view, len(self._shape.hidden)
        x = x.expand(self._shape.members, *x.shape)
        h = x
        for i in range(last):
            h = functional.silu(torch.baddbmm(view[f"model.bias{i}"][:, None], h, view[f"model.weight{i}"]))
        straight = torch.baddbmm(view[f"model.bias{last}"][:, None], x, view["model.linear_weight"])
        return torch.baddbmm(straight, h, view[f"model.weight{last}"])

    def next(self, raw: Tensor, state: Tensor) -> Tensor:
        """(M, B, S) next states of raw predictions."""
        if self.norms is not None:
            raw = raw / self.norms[1].scale + self.norms[1].shift
        return state + raw if self.delta else raw

    def loss(self, state: Tensor, action: Tensor, after: Tensor, ended: Tensor) -> Tensor:
        """Mean square (or absolute) error of the members, summed over them, plus the cross entropy of ends (B,)."""
        if self.norms is not None:
            self.norms[0].observe(torch.cat([state, action], 1))
            self.norms[1].observe(after - state)
        raw, logits = self.outputs(self.net, state, action)
        if self.norms is not None:
            error = raw - self.norms[1](after - state)
        else:
            error = (state + raw if self.delta else raw) - after
        loss = (error.abs() if self._loss == "l1" else error.square()).mean((1, 2)).sum()
        if logits is not None:
            truth = ended.to(logits.dtype).expand_as(logits)
            loss = loss + functional.binary_cross_entropy_with_logits(logits, truth, reduction="none").mean(1).sum()
        return loss

    @torch.no_grad()
    def ahead(self, state: Tensor, action: Tensor, reference: float) -> tuple[Tensor, Tensor | None]:
        """One step of the copy: the members' mean next state (B, S), and the weight (B,) that recall keeps over it.

        The weight is P(the episode goes on) exp(-u / reference), u the members' deviation about their mean in units of
        the deviation of s' - s (so `reference` > 0 wants `normalize`), averaged over components.
        """
        raw, logits = self.outputs(self.net_old, state, action)
        after = self.next(raw, state)
        weight = None if logits is None else torch.sigmoid(-logits).mean(0)
        if reference > 0:
            spread = (raw - raw.mean(0)).square_().mean(0).sqrt_()  # std(0), which is slow over so few members
            doubt = torch.exp(-spread.mean(-1) / reference)
            weight = doubt if weight is None else weight * doubt
        return after.mean(0), weight
