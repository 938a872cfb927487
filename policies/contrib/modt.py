"""Multi-objective decision transformer: predicts states and returns too, actions by way of regions (our design)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import torch
from pydantic import field_validator
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from robot_rl.policies.contrib.dt import ReturnConditioned, ReturnOptions, ReturnPolicy, masked_error
from robot_rl.policies.nets.action_codes import ActionCodes
from robot_rl.policies.nets.trajectory import TrajectoryNet
from robot_rl.types import Metrics, Transitions
from robot_rl.types.options import Count, NotNegative, Whole

_MOST = 64  # regions of kind "code"


class ModtOptions(ReturnOptions):
    """Of MODT."""

    regions: Whole = 16
    """Cells of the action space (kmeans), or bins per dimension (code); 0 leaves the token out, and actions are read
    off the state's token."""
    region_kind: Literal["kmeans", "code"] = "kmeans"
    """kmeans, fitted on the actions of the first batches; code: the product of the coarsest codes of all dimensions (at
    most 64 cells)."""
    region_batches: Count = 8
    """Batches that the cells are fitted on."""
    state_weight: NotNegative = 0.1
    """Of the next state's loss; 0 leaves it out."""
    return_weight: NotNegative = 0.1
    """Of the next return's."""
    region_weight: NotNegative = 0.1
    """Of the region's."""
    weighting: Literal["fixed", "uncertainty", "mgda"] = "fixed"
    """fixed: those; uncertainty: e^-s_m loss_m / 2 + s_m / 2 with learnt s_m; mgda: the convex combination of the
    trunk's gradients with the smallest norm (weights only switch losses off)."""

    @field_validator("regions")
    @classmethod
    def check_regions(cls, value: int) -> int:
        """Refuse a single region."""
        if value == 1:
            raise ValueError("expected 0, or at least 2")
        return value


class Modt(ReturnConditioned[ModtOptions]):
    """`DecisionTransformer` that predicts region, action, next state and next return, each off the token before it.

    Tokens per step: R_t, s_t, g_t, a_t with g_t the region of action space that a_t lies in. Read off:
    s_t -> g_t (cross-entropy); g_t -> a_t as an offset from the region's centre (squared error); a_t -> the normalised
    change of the state and the scaled next return to go (squared errors). Acting: choose the region, then its action.

    The idea - several objectives, regions inside the trajectory - is of the abstract of Multi-Objective Decision
    Transformers for Offline RL; neither its text nor its code was at hand: **every detail here is our design**.
    """

    method = "MODT"

    def build(self) -> nn.Module:
        """The transformer with a head per objective.

        Raises:
            ValueError: too many regions.
        """
        o, self._cells = self.o, self.o.regions
        if o.regions and o.region_kind == "code":
            self._cells = o.regions**self.actions
            if self._cells > _MOST:
                raise ValueError(
                    f"{o.regions} bins in {self.actions} dimensions are {self._cells} regions, expected at most "
                    f"{_MOST}; take fewer bins, or region_kind=kmeans"
                )
        self._weights = {
            "action": 1.0,
            "state": o.state_weight,
            "return": o.return_weight,
            "region": o.region_weight if o.regions else 0.0,
        }
        net = _Heads(
            self.size, self.actions, self._cells, width=o.width, layers=o.layers, heads=o.heads, times=o.max_steps
        )
        if o.regions and o.region_kind == "code":
            digits = torch.cartesian_prod(*[torch.arange(o.regions)] * self.actions).view(self._cells, self.actions)
            net.centres.copy_(ActionCodes(1, o.regions).decode(digits[:, None]))
            net.fitted.fill_(True)
        return net

    def make_policy(self) -> ReturnPolicy:
        """What chooses a region, then the action in it."""
        o = self.o
        return _RegionPolicy(
            self.io, self.net, self.norm, self.returns, context=o.context, clip=o.clip_return, seed=self.seed + 1
        )

    def update(self, batches: Iterator[Transitions], /) -> Metrics:
        """As `DecisionTransformer.update`; the first call fits the regions on batches of its own.

        Returns:
            The latest metrics: those of `DecisionTransformer`, train/state_loss, train/return_loss, train/region_loss
            (nats), train/region_accuracy, train/weight_<objective>, train/attention_entropy_<layer>_<head> (nats).
        """
        if self._cells and not bool(self.net.fitted):
            drawn = [next(batches) for _ in range(self.o.region_batches)]
            action = torch.cat([batch.action[batch.mask] for batch in drawn])
            self.net.centres.copy_(kmeans(action, self._cells, self.generator))
            self.net.fitted.fill_(True)
        return super().update(batches)

    def loss(self, x: dict[str, Tensor], batch: Transitions) -> tuple[Tensor, dict[str, Tensor]]:
        """Actions, regions, next states and returns, joined."""
        mask, net = batch.mask, self.net
        region = net.region_of(x["action"])
        tokens = net.trunk(x["goal"], x["state"], x["action"], x["time"], region, drop=self._drop)
        found = net.read(tokens, region)
        loss = {"action": masked_error(found["action"], x["action"], mask)}
        accuracy = None
        if region is not None:
            rows = mask.flatten()
            logits, own = found["logits"].flatten(0, 1)[rows], region.flatten()[rows]
            loss["region"] = cross_entropy(logits, own)
            accuracy = (logits.argmax(-1) == own).float().mean()
        after = torch.where(mask[..., None], self.norm(batch.next_obs["state"]), x["state"])
        loss["state"] = masked_error(found["state"], after - x["state"], mask)
        # what a cut episode would still have earned is not known: no target there; a terminal's 0 is known
        told = mask & ~batch.truncated
        reward = torch.where(told, batch.reward, torch.zeros_like(batch.reward)) / self.returns.scale
        loss["return"] = masked_error(found["return"], (x["goal"] - reward)[..., None], told)
        wanted = {name: loss[name] for name, weight in self._weights.items() if weight > 0}
        total, weights = self._join(wanted, tokens)
        metrics = {f"{name}_loss": value for name, value in loss.items()}
        metrics |= {f"weight_{name}": value for name, value in weights.items()}
        if accuracy is not None:
            metrics["region_accuracy"] = accuracy
        if self.due:
            embedded = net.trunk.embed(x["goal"], x["state"], x["action"], x["time"], region)
            entropy = net.trunk.body.entropy(embedded, mask.repeat_interleave(net.trunk.tokens, 1))
            for i, layer in enumerate(entropy):
                metrics |= {f"attention_entropy_{i}_{j}": value for j, value in enumerate(layer)}
        return total, metrics

    def _join(self, loss: dict[str, Tensor], tokens: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """() one loss of several, and the weight of each."""
        if self.o.weighting == "uncertainty":
            scale = dict(zip(self._weights, self.net.log_variance))
            total = torch.stack([0.5 * (-scale[n]).exp() * x + 0.5 * scale[n] for n, x in loss.items()]).sum()
            return total, {name: 0.5 * (-scale[name]).exp() for name in loss}
        if self.o.weighting == "mgda":
            # gradients by the trunk's last tokens stand for those by its weights (an upper bound, one pass per loss)
            grads = [torch.autograd.grad(x, tokens, retain_graph=True)[0].flatten() for x in loss.values()]
            weight = min_norm(torch.stack(grads))
            return torch.stack([w * x for w, x in zip(weight, loss.values())]).sum(), dict(zip(loss, weight))
        weights = {name: torch.tensor(self._weights[name]) for name in loss}
        return torch.stack([weights[name].to(x) * x for name, x in loss.items()]).sum(), weights


class _Heads(nn.Module):
    """The transformer and what is read off its tokens.

    Attributes:
        centres: (M, A) of the regions.
        fitted: whether they are known.
    """

    centres: Tensor
    fitted: Tensor

    def __init__(
        self, state: int, actions: int, cells: int, *, width: int, layers: int, heads: int, times: int
    ) -> None:
        super().__init__()
        self.trunk = TrajectoryNet(state, actions, width=width, layers=layers, heads=heads, times=times, regions=cells)
        self.action, self.state, self.goal = nn.Linear(width, actions), nn.Linear(width, state), nn.Linear(width, 1)
        self.region = nn.Linear(width, cells) if cells else None
        self.log_variance = nn.Parameter(torch.zeros(4))
        self.register_buffer("centres", torch.zeros(cells, actions))
        self.register_buffer("fitted", torch.zeros((), dtype=torch.bool))

    def region_of(self, action: Tensor) -> Tensor | None:
        """(...) int64 nearest centre of actions (..., A); None without regions."""
        if self.region is None:
            return None
        return torch.cdist(action.flatten(0, -2), self.centres).argmin(-1).view(action.shape[:-1])

    def read(self, tokens: Tensor, region: Tensor | None) -> dict[str, Tensor]:
        """ "action" (B, L, A), "state" (B, L, S) change, "return" (B, L, 1) and, with regions, "logits" (B, L, M)."""
        last = tokens[:, :, -1]
        found = {"state": self.state(last), "return": self.goal(last)}
        if self.region is None or region is None:
            return {**found, "action": self.action(tokens[:, :, 1]).tanh()}
        action = self.centres[region] + self.action(tokens[:, :, 2])
        return {**found, "logits": self.region(tokens[:, :, 1]), "action": action}


class _RegionPolicy(ReturnPolicy):
    """Chooses a region - the likeliest, or a sample - and then the action in it."""

    def __init__(self, *parts: Any, seed: int, **options: Any) -> None:
        super().__init__(*parts, **options)
        self._generator = torch.Generator(device=self._device).manual_seed(seed)

    def _choose(self, place: Tensor, length: int, deterministic: bool) -> Tensor:
        rows = torch.arange(len(place), device=self._device)
        net, cells = self.net, len(self.net.centres)
        if cells:
            goal, state, action, time, region = self.memory.columns(length)
            logits = net.read(net.trunk(goal, state, action, time, region), region)["logits"][rows, place]
            if deterministic:
                chosen = logits.argmax(-1)
            else:
                chosen = torch.multinomial(logits.softmax(-1), 1, generator=self._generator)[:, 0]
            self.memory.note(self.memory.region, chosen)
        goal, state, action, time, region = self.memory.columns(length)
        known = region if cells else None
        return net.read(net.trunk(goal, state, action, time, known), known)["action"][rows, place]

    def saved_parts(self) -> dict[str, object]:
        """As of `ReturnPolicy`, and the generator."""
        return {**super().saved_parts(), "generator": self._generator}


@torch.no_grad()
def kmeans(points: Tensor, cells: int, generator: torch.Generator, rounds: int = 20) -> Tensor:
    """(M, D) centres of points (N, D); a cell that lost all its points begins anew at the point farthest from its own.

    Args:
        points: at least one; with fewer distinct ones than cells, some centres coincide.
        cells: M.
        generator: of the first centres.
        rounds: of Lloyd's iteration.
    """
    index = torch.randint(len(points), (cells,), generator=generator, device=points.device)
    centres = points[index].clone()
    for _ in range(rounds):
        distance, nearest = torch.cdist(points, centres).min(-1)
        count = torch.bincount(nearest, minlength=cells)
        total = torch.zeros_like(centres).index_add_(0, nearest, points)
        centres = total / count.clamp_min(1)[:, None]
        empty = torch.nonzero(count == 0)[:, 0]
        far = distance.argsort(descending=True)[: len(empty)]
        centres[empty[: len(far)]] = points[far]
    return centres


@torch.no_grad()
def min_norm(grads: Tensor, rounds: int = 50) -> Tensor:
    """(M,) convex weights whose combination of gradients (M, P) has the smallest norm (Frank-Wolfe).

    Source: Sener and Koltun, Multi-Task Learning as Multi-Objective Optimization (MGDA), algorithm 2.
    """
    products = grads @ grads.t()
    weight = torch.full((len(grads),), 1.0 / len(grads), device=grads.device)
    for _ in range(rounds):
        slope = products @ weight
        best = int(slope.argmin())
        toward = -weight.clone()
        toward[best] += 1.0
        # |(w + t d) G|^2 is a parabola in t: its lowest point, inside the simplex
        curve = float(toward @ products @ toward)
        if curve <= 0.0:
            break
        step = min(1.0, max(0.0, -float(toward @ slope) / curve))
        if step < 1e-7:
            break
        weight = weight + step * toward
    return weight
