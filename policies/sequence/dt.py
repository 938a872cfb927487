"""Decision transformer: what was done in trajectories that went on to earn so much."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from robot_rl.policies.nets.attention import draw_weights
from robot_rl.policies.nets.learner_state import LearnerState
from robot_rl.policies.nets.module_step import Dropout, ModuleStep, load_module, module_state
from robot_rl.policies.nets.normalizer import FixedNorm
from robot_rl.policies.nets.rows import state_size, windowed
from robot_rl.policies.nets.trajectory import TrajectoryMemory, TrajectoryNet
from robot_rl.types import Action, IOSpec, Learner, LogFacts, Metrics, Obs, Transitions
from robot_rl.types.options import Count, NotNegative, Number, Positive, Rate, Share, Whole

RTG_MODES = ("observed", "bootstrap")


class Returns:
    """What returns to go mean: their scale, the range that the log holds, and the one that is aimed at.

    Attributes:
        target: return that an episode should earn; NaN until it is known.
        scale: returns are divided by it.
        low: smallest return to go that was trained on.
        high: largest.
        reward_scale: of the environment's rewards, to those of the log as it was read.
        reward_bias: added behind it.
    """

    names = ("target", "scale", "low", "high", "reward_scale", "reward_bias")

    def __init__(self, target: float, scale: float) -> None:
        self.target, self.scale, self.low, self.high = target, scale, math.inf, -math.inf
        self.reward_scale, self.reward_bias = 1.0, 0.0

    def state_dict(self) -> dict[str, float]:
        """Plain numbers."""
        return {name: float(getattr(self, name)) for name in self.names}

    def load_state_dict(self, state: dict[str, float], /) -> None:
        """Take over."""
        for name in self.names:
            setattr(self, name, float(state[name]))


class DecisionTransformer(Learner):
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

    consumes = "transitions"
    method = "decision transformer"
    reads = ("return_to_go", "step")
    return_gamma = 1.0

    def __init__(
        self,
        io: IOSpec,
        *,
        seed: int = 0,
        device: str = "cpu",
        gamma: float = 0.99,
        batch_size: Count = 64,
        context: Count = 20,
        width: Count = 128,
        layers: Count = 3,
        heads: Count = 1,
        dropout: Share = 0.1,
        max_steps: Count = 1000,
        target_return: Number | Literal["best"] = "best",
        return_scale: Positive | Literal["auto"] = "auto",
        rtg_mode: str = "observed",
        clip_return: bool = True,
        lr: Rate = 1e-4,
        weight_decay: NotNegative = 1e-4,
        warm_up: Whole = 10_000,
        grad_clip: NotNegative = 0.25,
        normalize: bool = True,
        metrics_every: Whole = 100,
    ) -> None:
        """Build the network for `io`.

        Args:
            io: one vector observation "state".
            seed: of initial weights and dropout.
            device: torch device.
            gamma: part of every learner's signature; returns to go are undiscounted.
            batch_size: windows per update.
            context: K steps that the model sees.
            width: of the tokens.
            layers: blocks of the transformer.
            heads: of attention.
            dropout: of tokens and of what blocks add.
            max_steps: times with an embedding of their own: at least the longest episode.
            target_return: undiscounted return to ask for, or "best": the best episode's of the log. `robot-rl eval
                target_return=` asks for another.
            return_scale: returns are divided by it (1000 in the source), or "auto": the log's largest |return|.
            rtg_mode: "observed": what the log still earned, also where the recording was cut; "bootstrap": an episode
                that no terminal ends and that is shorter than the longest goes on at its mean reward until then.
            clip_return: keep returns to go inside the range of the log while acting.
            lr: step size (AdamW).
            weight_decay: of AdamW.
            warm_up: updates of linear warm-up.
            grad_clip: bound of the gradient's norm.
            normalize: standardise states by the data's moments.
            metrics_every: metrics are computed in every n-th update.

        Raises:
            ValueError: an option outside its range.
        """
        if min(context, batch_size, layers, max_steps) < 1:
            raise ValueError(
                f"context, batch_size, layers, max_steps are {context}, {batch_size}, {layers}, {max_steps}; expected "
                "at least 1"
            )
        if rtg_mode not in RTG_MODES:
            raise ValueError(f"rtg_mode is '{rtg_mode}', expected one of {', '.join(RTG_MODES)}")
        for name, value, word in (("target_return", target_return, "best"), ("return_scale", return_scale, "auto")):
            if isinstance(value, str) and value != word:
                raise ValueError(f"{name} is '{value}', expected a number or '{word}'")
        size = state_size(io, self.method)
        self.io, self.batch_size, self.window = io, batch_size, context
        self.return_bootstrap = rtg_mode == "bootstrap"
        self._generator = generator = torch.Generator(device=device).manual_seed(seed)
        self.norm = FixedNorm(size, device=device)
        self._normalize, self._max_steps = normalize, max_steps
        self._auto_target, self._auto_scale = isinstance(target_return, str), isinstance(return_scale, str)
        self.returns = Returns(
            math.nan if isinstance(target_return, str) else float(target_return),
            1.0 if isinstance(return_scale, str) else float(return_scale),
        )
        if not self.returns.scale > 0:
            raise ValueError(f"return_scale is {return_scale}, expected a positive number")
        self._drop = Dropout(dropout, generator)
        self.net: Any = self._build(size, io.action_dim, width=width, layers=layers, heads=heads, times=max_steps).to(
            device
        )
        draw_weights(self.net, generator)
        self._step = ModuleStep(self.net, lr=lr, weight_decay=weight_decay, warm_up=warm_up, clip=grad_clip)
        self.policy = self._policy(context, clip_return, seed)
        self._state = LearnerState(
            self.method,
            metrics_every=metrics_every,
            parts={"net": self._step, "policy": self.policy, "generator": generator},
        )

    def _build(self, state: int, actions: int, **sizes: int) -> nn.Module:
        return ActionHead(state, actions, **sizes)

    def _policy(self, context: int, clip: bool, seed: int) -> ReturnPolicy:
        return ReturnPolicy(self.io, self.net, self.norm, self.returns, context=context, clip=clip)

    def prepare(self, facts: LogFacts) -> None:
        """Take over the data's moments and returns; called once, before the first update.

        Raises:
            ValueError: the log's episodes are longer than `max_steps`, or none of them tells a return to aim at.
        """
        if facts.horizon > self._max_steps:
            raise ValueError(
                f"the longest episode has {facts.horizon} steps, max_steps is {self._max_steps}: set "
                f"policy.max_steps={facts.horizon} (or the environment's limit, if that is longer)"
            )
        if self._normalize:
            self.norm.set(facts.state_mean, facts.state_std)
        if (self._auto_target or self._auto_scale) and not math.isfinite(facts.return_high):
            raise ValueError("the log tells no returns; set policy.target_return and policy.return_scale")
        if self._auto_target:
            self.returns.target = facts.return_high
        if self._auto_scale:
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
        wanted = self._state.tick()
        batch = windowed(next(batches), self.window)
        missing = [name for name in self.reads if name not in batch.extras]
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
        loss, found = self._loss(columns, batch, wanted)
        norm = self._step(loss)
        if not wanted:
            return self._state.report(None)
        found |= {"loss": loss, "gradient": norm, "return_to_go": valid.mean()}
        return self._state.report({name: torch.as_tensor(x).detach() for name, x in found.items()})

    def _loss(self, x: dict[str, Tensor], batch: Transitions, wanted: bool) -> tuple[Tensor, dict[str, Tensor]]:
        """() what is descended, and metrics."""
        predicted = self.net(x["goal"], x["state"], x["action"], x["time"], drop=self._drop)
        loss = masked_error(predicted, x["action"], batch.mask)
        return loss, {"action_loss": loss}

    def state_dict(self) -> dict[str, Any]:
        """Weights, optimiser, generator and counters: tensors and numbers."""
        return self._state.state_dict()

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Copy in place.

        Raises:
            ValueError: the state belongs to a learner of other sizes.
        """
        self._state.load_state_dict(state)


class ActionHead(nn.Module):
    """The transformer and an action off every state's token."""

    def __init__(self, state: int, actions: int, *, width: int, layers: int, heads: int, times: int) -> None:
        """Sizes as in `TrajectoryNet`."""
        super().__init__()
        self.trunk = TrajectoryNet(state, actions, width=width, layers=layers, heads=heads, times=times)
        self.head = nn.Linear(width, actions)

    def forward(self, goal: Tensor, state: Tensor, action: Tensor, time: Tensor, drop: Any = None) -> Tensor:
        """(B, L, A) in [-1, 1]; arguments as in `TrajectoryNet.forward`."""
        return self.head(self.trunk(goal, state, action, time, drop=drop)[:, :, 1]).tanh()


class ReturnPolicy:
    """Acts as trajectories did that earned the return that is asked for; remembers the last `context` steps.

    The loop tells it rewards through `earned`. Where nobody does (a robot), the return to go stays at the target, and
    the policy goes on asking for it.

    Attributes:
        remembers: True: its answer depends on more than the observation, so estimators of single states refuse it.
    """

    remembers = True

    def __init__(
        self, io: IOSpec, net: nn.Module, norm: FixedNorm, returns: Returns, *, context: int, clip: bool
    ) -> None:
        """Share the learner's parameters."""
        self.io, self.norm, self.returns, self._clip = io, norm, returns, clip
        self.net: Any = net
        self._device = norm.shift.device
        self.memory = TrajectoryMemory(context, io.obs["state"][0][0], io.action_dim, device=self._device)
        self._owed = torch.zeros(0, device=self._device)

    def aim(self, target_return: float) -> None:
        """Ask for another return, from the next episode on."""
        self.returns.target = float(target_return)

    def reset(self, rows: Any = None) -> None:
        """A new episode begins in these rows ((N,) bool); None: in all."""
        self.memory.forget(rows)
        if rows is None:
            self._owed.fill_(self.returns.target)
        elif len(rows) == len(self._owed):
            self._owed[torch.as_tensor(np.asarray(rows), device=self._device).bool()] = self.returns.target

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
        self.memory.note("action", action)
        return Action(action.cpu().numpy() if isinstance(obs["state"], np.ndarray) else action)

    def _choose(self, place: Tensor, length: int, deterministic: bool) -> Tensor:
        goal, state, action, time, _ = self.memory.columns(length)
        return self.net(goal, state, action, time)[torch.arange(len(place), device=self._device), place]

    def executed(self, action: Any) -> None:
        """(N, A) what was executed in the last tick, where it is not what `act` answered."""
        if len(action) == len(self.memory.count):
            self.memory.note("action", torch.as_tensor(action).to(self._device, torch.float32))

    def earned(self, reward: Any) -> None:
        """(N,) rewards of the last tick: they are owed no more."""
        if len(reward) == len(self._owed):
            own = torch.as_tensor(reward).to(self._device, torch.float32)
            self._owed = self._owed - (own * self.returns.reward_scale + self.returns.reward_bias)

    def state_dict(self) -> dict[str, Any]:
        """Weights, moments and the returns; what was seen is not kept."""
        return {"net": module_state(self.net), "norm": self.norm.state_dict(), "returns": self.returns.state_dict()}

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Copy in place.

        Raises:
            ValueError: the state belongs to a policy of other sizes or parts.
        """
        if "net" not in state or "returns" not in state:
            raise ValueError(f"the saved policy has {sorted(state)}, expected net, norm and returns")
        load_module(self.net, state["net"])
        self.norm.load_state_dict(state["norm"])
        self.returns.load_state_dict(state["returns"])
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
