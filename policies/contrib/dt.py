"""Decision transformer: what was done in trajectories that went on to earn so much."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from robot_rl.policies.nets.attention import draw_weights
from robot_rl.policies.nets.learner import RowLearner, RowOptions
from robot_rl.policies.nets.module_step import DrawnDropout, ModuleStep
from robot_rl.policies.nets.normalizer import FixedNorm
from robot_rl.policies.nets.rows import as_windows, state_size
from robot_rl.policies.nets.trajectory import TrajectoryMemory, TrajectoryNet
from robot_rl.state import Saved
from robot_rl.types import Action, Array, IOSpec, LogFacts, Metrics, Needs, Obs, PolicyParts, Transitions
from robot_rl.types.options import Count, NotNegative, Number, Positive, Rate, Whole


@dataclass
class Returns(Saved):
    """What returns to go mean: their scale, the range that the log holds, and the one that is aimed at.

    Attributes:
        target: return that an episode should earn; NaN until it is known.
        scale: returns are divided by it.
        low: smallest return to go that was trained on.
        high: largest.
        reward_scale: of the environment's rewards, to those of the log as it was read.
        reward_bias: added behind it.
    """

    saved = ("target", "scale", "low", "high", "reward_scale", "reward_bias")

    target: float
    scale: float
    low: float = math.inf
    high: float = -math.inf
    reward_scale: float = 1.0
    reward_bias: float = 0.0


class ReturnOptions(RowOptions):
    """Of sequence models of returns."""

    batch_size: Count = 64
    """Windows per update."""
    context: Count = 20
    """K steps that the model sees."""
    width: Count = 128
    """Of the tokens."""
    layers: Count = 3
    """Blocks of the transformer."""
    heads: Count = 1
    """Of attention."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.1
    """Of tokens and of what blocks add."""
    max_steps: Count = 1000
    """Times with an embedding of their own: at least the longest episode."""
    target_return: Number | Literal["best"] = "best"
    """Undiscounted return to ask for; best: the best episode's of the log. `robot-rl eval target_return=` asks for
    another."""
    return_scale: Positive | Literal["auto"] = "auto"
    """Returns are divided by it (1000 in the source); auto: the log's largest |return|."""
    rtg_mode: Literal["observed", "bootstrap"] = "observed"
    """observed: what the log still earned, also where the recording was cut; bootstrap: an episode that no terminal
    ends and that is shorter than the longest goes on at its mean reward until then."""
    clip_return: bool = True
    """Keep returns to go inside the range of the log while acting."""
    lr: Rate = 1e-4
    """Step size (AdamW)."""
    weight_decay: NotNegative = 1e-4
    """Of AdamW."""
    warm_up: Whole = 10_000
    """Updates of linear warm-up."""
    grad_clip: NotNegative = 0.25
    """Bound of the gradient's norm; 0 for none."""
    normalize: bool = True
    """Standardise states by the data's moments."""


R = TypeVar("R", bound=ReturnOptions)


class ReturnConditioned(RowLearner[R]):
    """Base of sequence models of (return to go, state, action) from a log.

    Attributes:
        net: the transformer and what is read off its tokens.
        returns: what returns to go mean.
    """

    net: Any

    def __init__(self, options: R, io: IOSpec, *, seed: int = 0, device: str = "cpu") -> None:
        """Build the network for `io`.

        Args:
            options: of the method.
            io: one vector observation "state".
            seed: of initial weights and dropout.
            device: torch device.

        Raises:
            ValueError: images, or no "state".
        """
        super().__init__(options, io, seed=seed, device=device)
        o, self.size = options, state_size(io, self.method)
        self.norm = FixedNorm(self.size, device=device)
        self.returns = Returns(
            math.nan if isinstance(o.target_return, str) else o.target_return,
            1.0 if isinstance(o.return_scale, str) else o.return_scale,
        )
        self._drop = DrawnDropout(o.dropout, self.generator)
        self.net = self.build().to(device)
        draw_weights(self.net, self.generator)
        self.net_step = ModuleStep(self.net, lr=o.lr, weight_decay=o.weight_decay, warm_up=o.warm_up, clip=o.grad_clip)
        self.policy = self.make_policy()
        self.state.include({"net": self.net_step, "policy": self.policy})

    @classmethod
    def needs(cls, options: R, io: IOSpec) -> Needs:
        """Windows of a log with undiscounted returns to go and times."""
        return Needs(
            rows=options.batch_size,
            window=options.context,
            extras=("return_to_go", "step"),
            return_gamma=1.0,
            return_bootstrap=options.rtg_mode == "bootstrap",
        )

    def build(self) -> nn.Module:
        """The network, its weights still to be drawn."""
        raise NotImplementedError(f"{type(self).__name__}.build is missing")

    def make_policy(self) -> ReturnPolicy:
        """What acts with the network."""
        o = self.o
        return ReturnPolicy(self.io, self.net, self.norm, self.returns, context=o.context, clip=o.clip_return)

    def prepare(self, facts: LogFacts) -> None:
        """Take over the data's moments and returns; called once, before the first update.

        Raises:
            ValueError: the log's episodes are longer than `max_steps`, or none of them tells a return to aim at.
        """
        if facts.horizon > self.o.max_steps:
            raise ValueError(
                f"the longest episode has {facts.horizon} steps, max_steps is {self.o.max_steps}: set "
                f"policy.max_steps={facts.horizon} (or the environment's limit, if that is longer)"
            )
        if self.o.normalize:
            self.norm.set(facts.state_mean, facts.state_std)
        target, scale = (isinstance(x, str) for x in (self.o.target_return, self.o.return_scale))
        if (target or scale) and not math.isfinite(facts.return_high):
            raise ValueError("the log tells no returns; set policy.target_return and policy.return_scale")
        if target:
            self.returns.target = facts.return_high
        if scale:
            self.returns.scale = max(abs(facts.return_high), abs(facts.return_low)) or 1.0
        self.returns.reward_scale, self.returns.reward_bias = facts.reward_scale, facts.reward_bias

    def update(self, batches: Iterator[Transitions], /) -> Metrics:
        """One step on one batch of windows.

        Returns:
            The latest metrics: train/loss, train/action_loss (mean squared error per component), train/gradient (norm),
            train/return_to_go (mean of the batch), and of methods that extend this their own.

        Raises:
            FloatingPointError: a metric is not finite.
            ValueError: the batch lacks returns to go or the steps' times.
        """
        batch = as_windows(next(batches), self.o.context)
        missing = [name for name in self.need.extras if name not in batch.extras]
        if missing:
            raise ValueError(
                f"{self.method} reads extras {', '.join(missing)}, the batch has {sorted(batch.extras)}; train it with "
                "robot-rl offline, or draw from LogDataset(return_to_go=True, return_gamma=1, extras=('step',))"
            )
        goal, time = batch.extras["return_to_go"], batch.extras["step"]
        goal, time = goal.view(batch.reward.shape), time.view(batch.reward.shape)
        if not bool(batch.mask.any()):
            raise ValueError("every row of the batch is masked out; expected at least one valid step")
        valid = goal[batch.mask]
        self.returns.low = min(self.returns.low, float(valid.min()))
        self.returns.high = max(self.returns.high, float(valid.max()))
        columns = {
            "goal": goal / self.returns.scale,
            "state": self.norm(batch.obs["state"]),
            "action": batch.action,
            "time": time,
        }
        # masked steps repeat the last existing one and stand behind it: a causal model never shows them to it
        columns = {
            name: torch.where(_like(batch.mask, x), x, torch.zeros_like(x)) for name, x in columns.items()
        }  # fmt: skip
        loss, found = self.loss(columns, batch)
        norm = self.net_step(loss)
        return self.metrics(**found, loss=loss, gradient=norm, return_to_go=valid)

    def loss(self, x: dict[str, Tensor], batch: Transitions) -> tuple[Tensor, dict[str, Tensor]]:
        """() what is descended, and metrics, of columns "goal", "state", "action" and "time"."""
        raise NotImplementedError(f"{type(self).__name__}.loss is missing")


class DecisionTransformer(ReturnConditioned[ReturnOptions]):
    """Sequence model of (return to go, state, action) from a log; acts by asking for a return.

    Windows of `context` steps are tokens R_t, s_t, a_t with an embedding of the time t; a causal transformer reads the
    action off the state's token, a_t = tanh(W h), and the loss is the mean of |a_t - action|^2 over existing steps.
    Acting, R begins at the target and is reduced by every reward. No values, no bootstrapping, no pessimism: good
    where the log holds good trajectories and says which they are, blind to stitching.

    Source: Chen et al., Decision Transformer: Reinforcement Learning via Sequence Modeling (kzl/decision-transformer,
    gym). Where we differ: windows are filled from the front, not padded at their beginning (the same to a causal
    model); no dropout on attention weights; returns to go are clipped to the range of the log; the scale of returns
    is the log's largest return unless given.
    """

    method = "decision transformer"

    def build(self) -> nn.Module:
        """The transformer and an action off every state's token."""
        o = self.o
        return ActionHead(self.size, self.actions, width=o.width, layers=o.layers, heads=o.heads, times=o.max_steps)

    def loss(self, x: dict[str, Tensor], batch: Transitions) -> tuple[Tensor, dict[str, Tensor]]:
        """Squared error of the actions."""
        predicted = self.net(x["goal"], x["state"], x["action"], x["time"], drop=self._drop)
        loss = masked_error(predicted, x["action"], batch.mask)
        return loss, {"action_loss": loss}


class ActionHead(nn.Module):
    """The transformer and an action off every state's token."""

    def __init__(self, state: int, actions: int, *, width: int, layers: int, heads: int, times: int) -> None:
        """Sizes as in `TrajectoryNet`."""
        super().__init__()
        self.trunk = TrajectoryNet(state, actions, width=width, layers=layers, heads=heads, times=times)
        self.head = nn.Linear(width, actions)

    def forward(self, goal: Tensor, state: Tensor, action: Tensor, time: Tensor, drop: object = None) -> Tensor:
        """(B, L, A) in [-1, 1]; arguments as in `TrajectoryNet.forward`."""
        return self.head(self.trunk(goal, state, action, time, drop=drop)[:, :, 1]).tanh()


class ReturnPolicy(Saved):
    """Acts as trajectories did that earned the return that is asked for; remembers the last `context` steps.

    The loop tells it rewards through `earned`. Where nobody does (a robot), the return to go stays at the target, and
    the policy goes on asking for it.

    """

    def __init__(
        self, io: IOSpec, net: nn.Module, norm: FixedNorm, returns: Returns, *, context: int, clip: bool
    ) -> None:
        """Share the learner's parameters."""
        self.io, self.norm, self.returns, self._clip = io, norm, returns, clip
        self.net: Any = net
        self._device = norm.shift.device
        self.memory = TrajectoryMemory(context, io.obs["state"][0][0], io.action_dim, device=self._device)
        self._owed = torch.zeros(0, device=self._device)

    @property
    def parts(self) -> PolicyParts:
        """It hears what was done and earned, and asks for a return."""
        return PolicyParts(executed=self.executed, earned=self.earned, set_target_return=self.aim, remembers=True)

    def aim(self, target_return: float) -> None:
        """Ask for another return, from the next episode on."""
        self.returns.target = float(target_return)

    def reset(self, rows: Array | None = None) -> None:
        """A new episode begins in these rows ((N,) bool); None: in all."""
        self.memory.forget(rows)
        if rows is None:
            self._owed.fill_(self.returns.target)
        elif len(rows) == len(self._owed):
            self._owed[torch.as_tensor(rows, device=self._device).bool()] = self.returns.target

    @torch.no_grad()
    def act(self, obs: Obs, *, deterministic: bool = False) -> Action:
        """Choose actions: "state" (B, S) -> (B, A) in [-1, 1]; another number of rows begins anew for all.

        Raises:
            ValueError: no return was named and none is known from a log.
        """
        if not math.isfinite(self.returns.target):
            raise ValueError("no return to ask for: train from a log first, or set target_return")
        state = torch.as_tensor(obs["state"]).to(self._device, torch.float32)
        if len(state) != len(self._owed):
            self.memory.begin(len(state))
            self._owed = torch.full((len(state),), self.returns.target, device=self._device)
        goal = self._owed
        if self._clip and self.returns.low <= self.returns.high:
            goal = goal.clamp(self.returns.low, self.returns.high)
        place, length = self.memory.see(self.norm(state), goal / self.returns.scale)
        action = self._choose(place, length, deterministic).clamp(-1.0, 1.0)
        self.memory.note(self.memory.action, action)
        return Action(action.cpu().numpy() if isinstance(obs["state"], np.ndarray) else action)

    def _choose(self, place: Tensor, length: int, deterministic: bool) -> Tensor:
        goal, state, action, time, _ = self.memory.columns(length)
        return self.net(goal, state, action, time)[torch.arange(len(place), device=self._device), place]

    def executed(self, action: Array) -> None:
        """(N, A) what was executed in the last tick, where it is not what `act` answered."""
        if len(action) == len(self.memory.count):
            self.memory.note(self.memory.action, torch.as_tensor(action).to(self._device, torch.float32))

    def earned(self, reward: Array) -> None:
        """(N,) rewards of the last tick: they are owed no more."""
        if len(reward) == len(self._owed):
            own = torch.as_tensor(reward).to(self._device, torch.float32)
            self._owed = self._owed - (own * self.returns.reward_scale + self.returns.reward_bias)

    def saved_parts(self) -> dict[str, object]:
        """Weights, moments and the returns; what was seen is not kept."""
        return {"net": self.net, "norm": self.norm, "returns": self.returns}

    def after_load(self) -> None:
        """Forget what was seen."""
        self.memory.begin(0)
        self._owed = self._owed.new_zeros(0)


def masked_error(predicted: Tensor, wanted: Tensor, mask: Tensor) -> Tensor:
    """() mean over valid steps and components of (predicted - wanted)^2.

    Args:
        predicted: (B, L, D).
        wanted: (B, L, D).
        mask: (B, L) bool.
    """
    weight = mask.to(predicted)
    return ((predicted - wanted).square().mean(-1) * weight).sum() / weight.sum().clamp_min(1.0)


def _like(mask: Tensor, x: Tensor) -> Tensor:
    return mask.view(*mask.shape, *[1] * (x.dim() - mask.dim()))
