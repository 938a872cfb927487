"""Procedure cloning: imitate how the expert found its action - a search, layer by layer - and not the action alone."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, one_hot

from robot_rl.policies.nets.initial import draw_uniform
from robot_rl.policies.nets.learner import RowLearner, RowOptions
from robot_rl.policies.nets.module_policy import ModulePolicy
from robot_rl.policies.nets.module_step import ModuleStep
from robot_rl.policies.nets.rows import state_size
from robot_rl.types import Action, IOSpec, Metrics, Needs, Obs, Transitions
from robot_rl.types.options import Count, Positive, Rate

MOVES = ((-1, 0), (1, 0), (0, -1), (0, 1))
"""(row, column) of the actions: up, down, left, right."""


class ProcedureCloningOptions(RowOptions):
    """Of procedure cloning."""

    batch_size: Count = 32
    """Rows per update."""
    procedure: bool = True
    """False: clone the action alone with the same network, the baseline."""
    channels: Count = 256
    """Of the convolutions."""
    layers: Count = 5
    """3 x 3 convolutions."""
    frontier_weight: Positive = 10.0
    """Of cells that change between two layers, 1 for the others."""
    noise: Annotated[float, Field(ge=0, lt=1)] = 0.05
    """Share of the input's labels that are replaced by random ones in training."""
    most_layers: Count = 100
    """Iterations after which the policy gives up and acts at random."""
    lr: Rate = 1e-3
    """Step size."""


class ProcedureCloning(RowLearner[ProcedureCloningOptions]):
    """Learns the expert's breadth-first search on a map, and acts by running the learnt search.

    The intermediate computation is a map of labels: 0 = not visited, 1 + i = "from here, action i leads back to the
    goal". It begins at the goal; every layer labels the unvisited neighbours of visited cells. A convolutional network
    learns p(layer l + 1 | layer l, map): softmax per cell, cross-entropy over all cells, those of the frontier weighing
    more. Acting, it is iterated on its own output until the agent's cell has a label, which is the action.

    The log has observations; the search that its expert made is run again on them, from the goal, so that the agent's
    cell ends with the action. Ties between actions go to the lowest number.

    Source: Yang et al., Chain of Thought Imitation with Procedure Cloning (google-research procedure_cloning, maze).
    Where we differ: frontier cells weigh more, labels are flipped at random in training (our design; the source runs on
    its own output unprepared), and a goal cell is labelled visited by an action that is never read.
    """

    method = "procedure cloning"

    def __init__(self, options: ProcedureCloningOptions, io: IOSpec, *, seed: int = 0, device: str = "cpu") -> None:
        """Build the network for `io`.

        Args:
            options: of the method.
            io: "state" of three square planes, flattened - walls, agent, goal - and four actions, the largest counts.
            seed: of weights, layers, noise and random actions.
            device: torch device.

        Raises:
            ValueError: another kind of observation or action.
        """
        super().__init__(options, io, seed=seed, device=device)
        size = state_size(io, self.method)
        side = round((size / 3) ** 0.5)
        if 3 * side * side != size or io.action_dim != len(MOVES):
            raise ValueError(
                f"{self.method} reads three square planes (walls, agent, goal) as 'state' and answers with 4 numbers, "
                f"got {size} components and {io.action_dim} actions; use env=grid_maze or a world alike"
            )
        o, self.side, labels = options, side, 1 + len(MOVES)
        self.net = _Cells(3 + labels, o.channels, o.layers, labels, self.generator).to(device)
        self.net_step = ModuleStep(self.net, lr=o.lr)
        self.policy = SearchPolicy(options, io, self.net, side, seed=seed + 1)
        self.state.include({"net": self.net_step, "policy": self.policy})

    @classmethod
    def needs(cls, options: ProcedureCloningOptions, io: IOSpec) -> Needs:
        """Rows without rewards."""
        return Needs(rows=options.batch_size, rewardless=True)

    def update(self, batches: Iterator[Transitions], /) -> Metrics:
        """One step on one batch.

        Returns:
            The latest metrics: train/loss, and train/frontier_accuracy (of cells that change; of the action, without
            the procedure).

        Raises:
            FloatingPointError: a metric is not finite.
            ValueError: every row is masked out, or a map without a goal.
        """
        batch = next(batches)
        if not bool(batch.mask.any()):
            raise ValueError("every row of the batch is masked out; expected at least one valid transition")
        planes = batch.obs["state"][batch.mask].view(-1, 3, self.side, self.side)
        if not self.o.procedure:
            logits = at_agent(self.net(planes, torch.zeros_like(planes[:, 0]).long()), planes)[:, 1:]
            target = batch.action[batch.mask].argmax(1)
            loss, right = cross_entropy(logits, target), (logits.argmax(1) == target).float().mean()
        else:
            search = search_labels(planes)
            # as many layers as the search of a row has, drawn evenly
            last = (search[1:] != search[:-1]).flatten(2).any(-1).sum(0)
            draw = torch.rand(len(planes), generator=self.generator, device=planes.device)
            layer = (draw * last.clamp_min(1)).long()
            rows = torch.arange(len(planes), device=planes.device)
            before, after = search[layer, rows], search[(layer + 1).clamp_max(len(search) - 1), rows]
            changed = before != after
            logits = self.net(planes, self._shake(before))
            weight = torch.where(changed, self.o.frontier_weight, 1.0)
            loss = (cross_entropy(logits, after, reduction="none") * weight).sum() / weight.sum()
            hits = (logits.argmax(1) == after) & changed
            right = hits.sum() / changed.sum().clamp_min(1)
        self.net_step(loss)
        return self.metrics(loss=loss, frontier_accuracy=right)

    def _shake(self, labels: Tensor) -> Tensor:
        if not self.o.noise:
            return labels
        flip = torch.rand(labels.shape, generator=self.generator, device=labels.device) < self.o.noise
        other = torch.randint(1 + len(MOVES), labels.shape, generator=self.generator, device=labels.device)
        return torch.where(flip, other, labels)


class _Cells(nn.Module):
    """3 x 3 convolutions from planes and labels to label logits per cell."""

    def __init__(self, inputs: int, channels: int, layers: int, labels: int, generator: torch.Generator) -> None:
        super().__init__()
        self.labels = labels
        widths = [inputs, *[channels] * (layers - 1), labels]
        self.layers = nn.ModuleList([nn.Conv2d(a, b, 3, padding=1) for a, b in itertools.pairwise(widths)])
        for layer in self.layers:
            assert isinstance(layer, nn.Conv2d)
            assert layer.bias is not None
            draw_uniform(layer.weight, (layer.weight[0].numel()) ** -0.5 * 3.0**0.5 * 2.0**0.5, generator)  # He
            nn.init.zeros_(layer.bias)

    def forward(self, planes: Tensor, labels: Tensor) -> Tensor:
        """(B, 3, n, n) and (B, n, n) int64 -> (B, labels, n, n)."""
        h = torch.cat([planes, one_hot(labels, self.labels).movedim(-1, 1).to(planes)], 1)
        for layer in self.layers[:-1]:
            h = layer(h).relu()
        return self.layers[-1](h)


class SearchPolicy(ModulePolicy[nn.Module]):
    """Runs the learnt search from the goal until it reaches the agent; at random where it does not."""

    def __init__(self, options: ProcedureCloningOptions, io: IOSpec, net: nn.Module, side: int, *, seed: int) -> None:
        """Share the learner's network."""
        super().__init__(io, net, seed)
        self.o, self._side = options, side

    @torch.no_grad()
    def act(self, obs: Obs, *, deterministic: bool = False) -> Action:
        """(B, 4): 1 for the action, -1 for the others; extras "layers" (B,), how many the search took (0: it failed).

        Args:
            obs: "state" (B, 3 n^2).
            deterministic: changes nothing but that failed rows act at random all the same: there is no answer.
        """
        planes = self.see(obs).view(-1, 3, self._side, self._side)
        count = len(planes)
        used = torch.zeros(count, dtype=torch.int64, device=self._device)
        if not self.o.procedure:
            choice = at_agent(self._net(planes, torch.zeros_like(planes[:, 0]).long()), planes)[:, 1:].argmax(1)
            used += 1
        else:
            labels, choice = begun(planes), torch.full((count,), -1, device=self._device)
            for layer in range(1, self.o.most_layers + 1):
                open_rows = torch.nonzero(choice < 0)[:, 0]
                if not len(open_rows):
                    break
                before = labels[open_rows]
                labels[open_rows] = self._net(planes[open_rows], before).argmax(1)
                here = at_agent(labels[open_rows][:, None], planes[open_rows])[:, 0]
                found = open_rows[here > 0]
                choice[found], used[found] = here[here > 0] - 1, layer
                if torch.equal(labels[open_rows], before):  # the same for ever
                    break
            lost = torch.nonzero(choice < 0)[:, 0]
            if len(lost):
                draw = torch.randint(len(MOVES), (len(lost),), generator=self._generator, device=self._device)
                choice[lost] = draw
        action = one_hot(choice, len(MOVES)).float() * 2.0 - 1.0
        return self.answer(obs, action, layers=used)


def begun(planes: Tensor) -> Tensor:
    """(B, n, n) int64 labels before the first layer: only the goal is visited (label 1).

    Raises:
        ValueError: a map without a goal.
    """
    goal = planes[:, 2] > 0.5
    if not bool(goal.flatten(1).any(1).all()):
        raise ValueError("a map has no goal; expected plane 2 of 'state' to be 1 in one cell")
    return goal.long()


def search_labels(planes: Tensor) -> Tensor:
    """(L + 1, B, n, n) int64: the labels of a breadth-first search from the goal, layer by layer, until none changes.

    A cell's label 1 + i says that action i leads to a cell that was visited one layer before; of several the lowest i.

    Args:
        planes: (B, 3, n, n) walls, agent, goal.
    """
    free = planes[:, 0] < 0.5
    labels = begun(planes)
    found = [labels]
    while True:
        seen = found[-1] > 0
        new = found[-1]
        for i, (dy, dx) in reversed(list(enumerate(MOVES))):
            # the cell that action i leads to, seen from each cell; the border counts as not visited
            there = torch.zeros_like(seen)
            there[:, max(0, -dy) : seen.shape[1] - max(0, dy), max(0, -dx) : seen.shape[2] - max(0, dx)] = seen[
                :, max(0, dy) : seen.shape[1] - max(0, -dy), max(0, dx) : seen.shape[2] - max(0, -dx)
            ]
            new = torch.where(~seen & free & there, torch.full_like(new, 1 + i), new)
        if torch.equal(new, found[-1]):
            return torch.stack(found)
        found.append(new)


def at_agent(maps: Tensor, planes: Tensor) -> Tensor:
    """(B, C) what maps (B, C, n, n) hold where the agent is."""
    agent = (planes[:, 1] > 0.5).to(maps.dtype)
    return (maps * agent[:, None]).sum((2, 3))
