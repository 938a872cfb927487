"""Imitation of demonstrations by a vision-language-action policy: pictures, own state and a sentence in, chunks out."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal, TypeVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from robot_rl.advantage.regression import awr_weight
from robot_rl.chunks import chunk_rows
from robot_rl.policies.vla.imitation_weights import mean_one, progress_weights, top_share
from robot_rl.policies.vla.interface import PROPRIO, VLAObs
from robot_rl.policies.vla.player import Recipe, VlaPlanner, VlaPlayer, limit_stats, save_folder
from robot_rl.state import set_generator
from robot_rl.types import IOSpec, Learner, LogFacts, Metrics, Needs, Options, StateDict, Transitions
from robot_rl.types.options import Count, NotNegative, Positive, Rate, Whole

_SEEN = 20_000
MARKS = (", advantage negative", ", advantage positive")
"""What stands behind the sentence of a chunk with weights=recap; the policy acts on the second."""
_SHARE, _DROPPED = 0.3, 0.1


class VlaImitationOptions(Options):
    """Of imitation by a vision-language-action policy."""

    batch_size: Count = 64
    """Windows per update."""
    head: Literal["gaussian", "token", "flow"] = "gaussian"
    """What puts out a chunk."""
    head_options: dict[str, object] | None = None
    """Of the head, see `policies.nets.vla_heads`."""
    horizon_pred: Count = 10
    """H actions in a chunk."""
    horizon_exec: Count = 5
    """Actions executed before the next decision."""
    cameras: tuple[str, ...] | None = None
    """Names; null = all that there are, [] = none."""
    proprio: tuple[str, ...] = PROPRIO
    """Components of "state" that the policy sees; "lag_*" means all that begin so."""
    backbone: dict[str, object] | None = None
    """See `Recipe`; null is the small one of this repository, which knows the places of features."""
    trunk: tuple[Count, ...] = (256, 256)
    """Widths of the layers behind it."""
    lr: Rate = 1e-3
    """Step size."""
    warmup: Whole = 50
    """Updates over which it rises."""
    decay_updates: Whole = 0
    """Updates at which a cosine brings it to 0; 0 keeps it."""
    weight_decay: NotNegative = 1e-4
    """Of AdamW."""
    grad_norm: Positive = 1.0
    """Gradients are cut at this norm."""
    average: Annotated[float, Field(ge=0, lt=1)] = 0.99
    """Decay of the average of the weights that acts; 0 = the weights themselves."""
    weights: Literal["none", "awr", "ra_bc", "recap"] = "none"
    """awr: min(exp(A / (beta std A)), 20); ra_bc: by the progress made during the chunk; recap: the best 30 % of
    advantages are marked in the sentence, the rest are marked too, one mark in ten is left out, and the policy acts on
    the good one. A = return to go - V(o), V a head on the reading."""
    beta: Positive = 1.0
    """Of awr."""
    kappa: NotNegative = 0.01
    """Of ra_bc: progress from which a chunk counts whole."""
    progress: str = "critic_progress"
    """Of ra_bc: column of the log with the progress after each step (robot-rl critic label writes it)."""
    metrics_every: Whole = 50
    """Metrics are computed in every n-th update."""


V = TypeVar("V", bound=VlaImitationOptions)


class ChunkCloning(Learner[V, Transitions]):
    """What `VlaImitation` shares with the method whose goals are pictures."""

    def __init__(self, options: V, io: IOSpec, *, seed: int = 0, device: str = "cpu") -> None:
        """Build the policy for `io`.

        Args:
            options: of the method.
            io: with the observation "instruction"; "image.<camera>" for the cameras.
            seed: of weights and draws.
            device: torch device.

        Raises:
            ValueError: something that `io` lacks.
        """
        super().__init__(options, io, seed=seed, device=device)
        o = options
        self._scale, self._skipped = 1.0, 0
        there = tuple(key.removeprefix("image.") for key in io.obs if key.startswith("image."))
        seen = there if o.cameras is None else o.cameras
        size = io.obs[f"image.{seen[0]}"][0][:2] if seen and f"image.{seen[0]}" in io.obs else (8, 8)
        recipe = Recipe(
            cameras=seen,
            image_size=(int(size[0]), int(size[1])),
            proprio=o.proprio,
            horizon=o.horizon_pred,
            exec_len=o.horizon_exec,
            head=o.head,
            head_options=dict(o.head_options or {}),
            trunk=o.trunk,
            backbone=dict(o.backbone or {"kind": "tiny", "places": bool(seen)}),
            suffix=MARKS[1] if o.weights == "recap" else "",
        )
        planner = VlaPlanner(io, recipe, seed=seed, device=device)
        recipe = Recipe.from_dict({**recipe.to_dict(), "proprio": list(planner.sight.proprio)})
        planner = VlaPlanner(io, recipe, seed=seed, device=device)
        self.policy = VlaPlayer(io, planner)
        self.model = copy.deepcopy(planner.model)
        """What is trained; the policy's own is its average."""
        self._draw = torch.Generator(device=device).manual_seed(seed + 1)
        self._optimiser = torch.optim.AdamW(self.model.parameters(), lr=o.lr, weight_decay=o.weight_decay)
        self._device, self._updates = device, 0
        self._actions = np.zeros((0, io.action_dim), np.float32)
        self._metrics: Metrics = {}

    def prepare(self, facts: LogFacts) -> None:
        """The size of returns; states come in units of their own, actions in those of the environment."""
        ends = [abs(x) for x in (facts.return_low, facts.return_high) if math.isfinite(x)]
        self._scale = max(min([facts.return_bound, max(ends, default=math.inf)]), 1e-6)

    def update(self, batches: Iterator[Transitions], /) -> Metrics:
        """One gradient step on one batch of windows.

        Returns:
            The latest metrics: train/loss, and train/action_error, the mean absolute error of the mode in [-1, 1]; with
            weights also train/weight, mean before normalisation (recap: share of good marks), train/weight_zero, share
            of rows that are left out, train/skipped, batches without any row to copy, and of awr and recap
            train/value_error, in units of the largest return.

        Raises:
            ValueError: windows of another length.
            FloatingPointError: the loss is not finite.
        """
        rows = chunk_rows(next(batches))
        if rows.mask.shape[1] != self.o.horizon_pred:
            raise ValueError(f"the batch holds windows of {rows.mask.shape[1]} steps, expected {self.o.horizon_pred}")
        if len(self._actions) < _SEEN:
            first = rows.action[:, 0].cpu().numpy()
            self._actions = np.concatenate([self._actions, first])[:_SEEN]
        planner = self.policy.planner
        seen, goal = planner.sight(rows.obs, self._device)
        goals = planner.to_robot(rows.action)
        self._updates += 1
        for group in self._optimiser.param_groups:
            group["lr"] = self._lr()
        weight, goal, extra, found = self._weigh(rows, seen, goal)
        mask = rows.mask if weight is None else rows.mask * weight[:, None]
        loss = self.model.imitation_loss(seen, goal, goals, mask=mask, generator=self._draw)
        loss = loss if extra is None else loss + extra
        if weight is not None and not bool(weight.any()) and extra is None:  # nothing to copy: AdamW would still move
            self._skipped += 1
            return dict(self._metrics)
        self._optimiser.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), self.o.grad_norm)
        self._optimiser.step()
        self._follow()
        every = self.o.metrics_every
        if every and self._updates % every == 0:
            value = float(loss.detach())
            if not math.isfinite(value):
                raise FloatingPointError(f"imitation diverged at update {self._updates}: lower lr, or look at the data")
            with torch.no_grad():
                mode = planner.model.act(seen, goal, generator=self._draw, deterministic=True).env_actions
            error = ((planner.to_env(mode) - rows.action).abs() * rows.mask[..., None]).sum()
            count = rows.mask.sum() * self.io.action_dim
            self._metrics = {"train/loss": value, "train/action_error": float(error / count), **found}
        return dict(self._metrics)

    def _weigh(
        self, rows: Transitions, seen: VLAObs, goal: list[str]
    ) -> tuple[Tensor | None, list[str], Tensor | None, Metrics]:
        """Weights (B,) of the rows with mean 1 or None, sentences, the loss of the value or None, and metrics."""
        if self.o.weights == "none":
            return None, goal, None, {}
        there = rows.mask.any(1)
        if self.o.weights == "ra_bc":
            gained = (rows.next_obs["progress"] - rows.obs["progress"])[:, 0].to(there.device)
            raw = progress_weights(gained, there, kappa=self.o.kappa)
            return mean_one(raw, there), goal, None, self._weight_metrics(raw, there)
        value = self.model.critic(self.model.read(seen, goal).detach())[:, 0]
        target = rows.extras["return_to_go"].to(value) / self._scale
        error = (value - target).square()[there].mean()
        advantage = (target - value).detach()
        if self.o.weights == "awr":
            spread = advantage[there].std(unbiased=False).clamp_min(1e-6)
            raw = awr_weight(advantage / spread, beta=self.o.beta, mask=there)
            return (
                mean_one(raw, there),
                goal,
                error,
                {**self._weight_metrics(raw, there), "train/value_error": float(error.detach())},
            )
        good = top_share(advantage, there, _SHARE)
        kept = torch.rand(len(goal), generator=self._draw, device=value.device) >= _DROPPED
        marked = [text + MARKS[int(g)] if k else text for text, g, k in zip(goal, good.tolist(), kept.tolist())]
        return None, marked, error, self._weight_metrics(good.float(), there, error)

    def _weight_metrics(self, raw: Tensor, there: Tensor, error: Tensor | None = None) -> Metrics:
        some = raw[there]
        return {
            "train/weight": float(some.mean()), "train/weight_zero": float((some == 0).float().mean()),
            "train/skipped": float(self._skipped),
            **({} if error is None else {"train/value_error": float(error.detach())}),
        }  # fmt: skip

    def _lr(self) -> float:
        lr, warmup, decay = self.o.lr, self.o.warmup, self.o.decay_updates
        rate = lr * min(1.0, self._updates / max(1, warmup))
        return rate * 0.5 * (1.0 + math.cos(math.pi * min(1.0, self._updates / decay))) if decay else rate

    @torch.no_grad()
    def _follow(self) -> None:
        """Move the acting weights towards the trained ones."""
        keep = min(self.o.average, self._updates / (self._updates + 10.0))
        for mean, own in zip(self.policy.planner.model.parameters(), self.model.parameters()):
            mean.lerp_(own, 1.0 - keep)

    def export(self, folder: Path) -> Path:
        """Write the acting policy as a folder of the guard: safetensors, card and the statistics of the data.

        Raises:
            FileExistsError: the folder exists.
        """
        planner = self.policy.planner
        planner.model.stats = limit_stats(self.io, self._actions if len(self._actions) > 1 else None)
        return save_folder(folder, planner, frozen=("critic",))

    def state_dict(self) -> StateDict:
        """Weights, their average, optimiser, generators and counters."""
        return {
            "kind": "vla_imitation",
            "policy": self.policy.state_dict(),
            "model": {name: x.detach().clone() for name, x in self.model.state_dict().items()},
            "optimiser": copy.deepcopy(self._optimiser.state_dict()),
            "draws": [self._draw.get_state(), self.policy.planner.draws],
            "actions": torch.as_tensor(self._actions.copy()),
            "updates": self._updates,
            "weights": [self._scale, float(self._skipped)],
            "metrics": dict(self._metrics),
        }

    def load_state_dict(self, state: StateDict, /) -> None:
        """Copy in place.

        Raises:
            ValueError: the state is of another learner or another recipe.
        """
        if state.get("kind") != "vla_imitation":
            raise ValueError("the saved state is of another learner than policy=vla/imitation")
        before = self.policy.planner.recipe
        self.policy.load_state_dict(state["policy"])
        if self.policy.planner.recipe != before:
            raise ValueError("the saved policy is built otherwise; give the same head, horizons, cameras and backbone")
        self.model.load_state_dict(state["model"])
        self._optimiser.load_state_dict(copy.deepcopy(state["optimiser"]))
        own, acting = state["draws"]
        set_generator(self._draw, own)
        self.policy.planner.draws = acting
        self._actions = torch.as_tensor(state["actions"]).cpu().numpy().copy()
        self._updates = int(state["updates"])
        self._scale, skipped = (float(x) for x in state.get("weights", (1.0, 0.0)))
        self._skipped = int(skipped)
        self._metrics = {name: float(value) for name, value in state["metrics"].items()}


class VlaImitation(ChunkCloning[VlaImitationOptions]):
    """Clones chunks of demonstrations.

    Losses: "gaussian" minus log-likelihood, "token" cross-entropy, "flow" squared error of the velocity, each over the
    existing entries of the chunk. The policy that acts has an average of the weights.

    On a log of mixed quality `weights` says which chunks are copied: "awr", "ra_bc" and "recap" differ only in a weight
    for each row or in words behind its sentence; heads, losses and policies are the same.

    Source: Zhao et al., ACT (chunks); Kim et al., OpenVLA-OFT (tokens in parallel); Black et al., pi0 (flow); Peng et
    al., Advantage-Weighted Regression; huggingface/lerobot (RA-BC); Physical Intelligence, pi*0.6 (RECAP). Backbone and
    sizes are ours, for a CPU.
    """

    @classmethod
    def needs(cls, options: VlaImitationOptions, io: IOSpec) -> Needs:
        """Windows; returns or a column of progress where rows are weighed by them."""
        o, valued = options, options.weights in ("awr", "recap")
        return Needs(
            rows=o.batch_size,
            window=o.horizon_pred,
            extras=("return_to_go",) if valued else (),
            rewardless=not valued,
            progress=o.progress if o.weights == "ra_bc" else None,
        )
