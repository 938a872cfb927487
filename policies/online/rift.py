"""Group-relative training of a choice among driving candidates: all of a state are simulated and learnt."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import log_softmax

from robot_rl.advantage import ClipRange, EdgeRules, group_advantage, policy_loss
from robot_rl.policies.nets.module_policy import ModulePolicy
from robot_rl.policies.nets.module_step import ModuleStep
from robot_rl.policies.nets.rollout_learner import RolloutLearner, RolloutOptions
from robot_rl.policies.nets.tanh_net import TanhNet
from robot_rl.types import Action, IOSpec, Metrics, Needs, Obs, Rollout
from robot_rl.types.options import Count, NotNegative, Positive, Rate

_GRAVITY_SIDE = 4.9  # m/s^2 sideways that tyres hold
_NAMES = ("forward_speed/4", "offset/half_width", "sin_heading_error", "cos_heading_error")


class RiftOptions(RolloutOptions):
    """Of RIFT."""

    offsets: Annotated[tuple[float, ...], Field(min_length=1)] = (-0.5, 0.0, 0.5)
    """Lines to hold, over half the track's width, positive left."""
    speeds: Annotated[tuple[float, ...], Field(min_length=1)] = (1.0, 2.0, 3.0, 4.0)
    """Speeds to hold [m/s]."""
    half_width: Positive = 0.6
    """Of the track [m]."""
    wheelbase: Positive = 0.3
    """Of the car [m]."""
    horizon: Count = 20
    """Simulated control steps."""
    off_track: NotNegative = 5.0
    """What leaving the track costs, in metres of progress."""
    discomfort: NotNegative = 0.05
    """Cost per step of more lateral acceleration than tyres hold, likewise."""
    rollout_steps: Count = 20
    """Steps of every environment per update."""
    hidden: tuple[Count, ...] = (64, 64)
    """Widths."""
    epochs: Count = 3
    """Steps on each rollout."""
    clip: Positive = 0.2
    """Width of the ratio's clip."""
    dual_clip: Annotated[float, Field(gt=1)] = 3.0
    """c: for A < 0 the loss of a candidate is at most c |A|."""
    lr: Rate = 1e-3
    """Step size (Adam)."""


class Rift(RolloutLearner[RiftOptions]):
    """A softmax over R lines x M speeds, trained on the simulated returns of all of them.

    In a state, each of R x M candidates - hold this offset from the centre line at that speed - is driven for `horizon`
    steps in a kinematic model of car and track ahead. Its return G is progress less discomfort and leaving the track.
    The group of all candidates gives A = (G - mean) / (std + 1e-5); the loss is the clipped surrogate over all of them
    against the stored behaviour probabilities, with dual clip: for A < 0 at least 3 A. A single candidate or equal
    returns learn nothing. No KL term, no critic.

    Acting, the chosen candidate's controller drives one step, then the choice is made again.

    Source: Chen et al., RIFT: Closed-Loop RL Fine-Tuning for Realistic and Controllable Traffic Simulation
    (CurryChen77/RIFT) for group, advantage and loss. **Our design**: candidates, model, returns and network; the source
    fine-tunes the mode head of a pre-trained planner among recorded traffic.
    """

    method = "RIFT"

    def __init__(self, options: RiftOptions, io: IOSpec, *, seed: int = 0, device: str = "cpu") -> None:
        """Build the network for `io`.

        Args:
            options: of the method.
            io: "state" with the names of world `race`; actions steering [rad] and wheel speed [m/s].
            seed: of weights and samples.
            device: torch device.

        Raises:
            ValueError: a world without these names.
        """
        super().__init__(options, io, seed=seed, device=device)
        self.model = Candidates(options, io, device)
        widths = (io.obs["state"][0][0], *options.hidden, self.model.count)
        self.net = TanhNet(widths, self.generator, last=0.01).to(device)  # small, so that all are tried
        self.net_step = ModuleStep(self.net, lr=options.lr)
        self.policy = CandidatePolicy(io, self.net, self.model, seed + 1)
        self.state.include({"net": self.net_step, "policy": self.policy})

    @classmethod
    def needs(cls, options: RiftOptions, io: IOSpec) -> Needs:
        """Rollouts with the scores of all candidates."""
        return replace(super().needs(options, io), record=("logits",))

    def update(self, batches: Iterator[Rollout], /) -> Metrics:
        """`epochs` steps on the states of one rollout; rewards of the world are not read.

        Returns:
            The latest metrics: train/loss, train/entropy [nats], train/model_return (of the policy's choice, mean over
            states), train/best_return (of the best candidate), train/off_track (share of candidates that leave).

        Raises:
            FloatingPointError: a metric is not finite.
        """
        o, rollout = self.o, next(batches)
        keep = rollout.valid.flatten()
        state, logits = (x.flatten(0, 1)[keep] for x in (rollout.obs["state"], rollout.extras["logits"]))
        state, old = state.to(self.generator.device), log_softmax(logits.to(self.generator.device), -1)
        returns, left = self.model.simulate(state)
        count = self.model.count
        group = torch.arange(len(state), device=state.device).repeat_interleave(count)
        advantage = group_advantage(returns.flatten(), group, rules=EdgeRules(eps=1e-5, std_floor=0.0)).view(-1, count)
        logp, loss = old, torch.zeros(())
        for _ in range(o.epochs):
            logp = log_softmax(self.net(state), -1)
            clip = ClipRange(o.clip, dual=o.dual_clip)
            loss = policy_loss(logp.flatten(), old.flatten(), advantage.flatten(), clip=clip)
            self.net_step(loss)
        share = logp.detach().exp()
        return self.metrics(
            loss=loss,
            entropy=-(share * logp.detach()).sum(-1),
            model_return=(share * returns).sum(-1),
            best_return=returns.amax(-1),
            off_track=left.float(),
        )


class Candidates:
    """R lines x M speeds: their controller, and what they would earn on the track ahead.

    Kinematic bicycle in the track's own coordinates, v the speed, o the offset, psi the heading error, kappa the
    curvature at the distance driven: s' = v cos psi / (1 - o kappa), o' = v sin psi, psi' = v tan(steer) / wheelbase -
    kappa s'.
    """

    def __init__(self, options: RiftOptions, io: IOSpec, device: str = "cpu") -> None:
        names = list(io.obs_names)
        ahead = [name for name in names if name.startswith("curvature_")]
        missing = [name for name in _NAMES if name not in names]
        if missing or len(ahead) < 2 or io.action_names != ("steering", "wheel_speed"):
            raise ValueError(
                f"RIFT reads {', '.join(_NAMES)} and curvatures ahead and answers steering and wheel_speed; the world "
                f"lacks {', '.join(missing) or 'curvatures or these actions'}; use env=race"
            )
        self._place = [names.index(name) for name in _NAMES]
        self._curves = [names.index(name) for name in ahead]
        at = [float(name.removeprefix("curvature_").removesuffix("m")) for name in ahead]
        self._at, self._end = torch.tensor(at, device=device), at[-1]
        self.o = o = options
        pairs = torch.cartesian_prod(torch.tensor(o.offsets) * o.half_width, torch.tensor(o.speeds)).view(-1, 2)
        pairs = pairs.to(device)
        self.count, self._line, self._speed = len(pairs), pairs[:, 0], pairs[:, 1]
        self._dt = 1.0 / io.control_hz
        low, high = io.bounds
        self._steer = high[0]
        self._slow, self._fast = low[1], high[1]

    def _read(self, state: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """speed, offset, heading error (B,), and curvatures (B, C)."""
        speed, offset, sine, cosine = (state[:, i] for i in self._place)
        return speed * 4.0, offset * self.o.half_width, torch.atan2(sine, cosine), state[:, self._curves]

    def _curve(self, curves: Tensor, along: Tensor) -> Tensor:
        """(B, K) curvature at distances (B, K) ahead, linear between the known ones, the last behind them."""
        index = torch.searchsorted(self._at, along.clamp(0.0, self._end).contiguous(), right=True)
        index = index.clamp(1, len(self._at) - 1)
        low, high = self._at[index - 1], self._at[index]
        part = ((along - low) / (high - low)).clamp(0.0, 1.0)
        return curves.gather(1, index - 1) * (1.0 - part) + curves.gather(1, index) * part

    def _steering(self, curve: Tensor, offset: Tensor, error: Tensor, speed: Tensor) -> Tensor:
        """Steering [rad] towards the candidate's line: the bend itself, and a turn back within about a metre."""
        look = 0.5 + 0.25 * speed.clamp_min(0.0)
        back = torch.atan((self._line - offset) / look)
        bend = curve + 2.0 * torch.sin(back - error) / look
        return torch.atan(self.o.wheelbase * bend).clamp(-self._steer, self._steer)

    def simulate(self, state: Tensor) -> tuple[Tensor, Tensor]:
        """Returns (B, K) of all candidates in metres of progress, and (B, K) bool which leave the track."""
        speed, offset, error, curves = self._read(state)
        speed, offset, error = (x[:, None].expand(-1, self.count) for x in (speed, offset, error))
        along = torch.zeros_like(offset)
        left = torch.zeros_like(offset, dtype=torch.bool)
        cost, dt = torch.zeros_like(offset), self._dt
        for _ in range(self.o.horizon):
            curve = self._curve(curves, along)
            steer = self._steering(curve, offset, error, speed)
            speed = speed + (self._speed - speed).clamp(-4.0 * dt, 4.0 * dt)
            # tyres hold so much: beyond it the car turns less than it is steered
            turn = speed * steer.tan() / self.o.wheelbase
            held = _GRAVITY_SIDE / speed.abs().clamp_min(0.1)
            cost = cost + torch.where(~left & (turn.abs() > held), self.o.discomfort, 0.0)
            turn = torch.maximum(torch.minimum(turn, held), -held)
            ahead = speed * error.cos() / (1.0 - offset * curve).clamp_min(0.2)
            moved = torch.where(left, 0.0, ahead * dt)
            along = along + moved
            offset = offset + speed * error.sin() * dt
            error = error + (turn - curve * ahead) * dt
            left = left | (offset.abs() > 0.8 * self.o.half_width)  # the footprint reaches beyond its middle
        return along - cost - self.o.off_track * left, left

    def drive(self, state: Tensor, choice: Tensor) -> Tensor:
        """(B, 2) actions in [-1, 1] of the chosen candidates (B,)."""
        speed, offset, error, curves = self._read(state)
        steer = self._steering(curves[:, :1], offset[:, None], error[:, None], speed[:, None])
        steer = steer.gather(1, choice[:, None])[:, 0]
        wanted = self._speed[choice]
        throttle = (2.0 * wanted - self._fast - self._slow) / (self._fast - self._slow)
        return torch.stack([steer / self._steer, throttle], 1).clamp(-1.0, 1.0)


class CandidatePolicy(ModulePolicy[nn.Module]):
    """Draws a candidate (the likeliest when deterministic) and drives it for one step."""

    def __init__(self, io: IOSpec, net: nn.Module, model: Candidates, seed: int) -> None:
        """Share the learner's network."""
        super().__init__(io, net, seed)
        self._model = model

    @torch.no_grad()
    def act(self, obs: Obs, *, deterministic: bool = False) -> Action:
        """(B, 2) in [-1, 1]; logp of the choice, extras "logits" (B, K) and "choice" (B,)."""
        state = self.see(obs)
        logits = self._net(state)
        if deterministic:
            choice = logits.argmax(-1)
        else:
            choice = torch.multinomial(logits.softmax(-1), 1, generator=self._generator)[:, 0]
        logp = log_softmax(logits, -1).gather(1, choice[:, None])[:, 0]
        return self.answer(obs, self._model.drive(state, choice), logp, logits=logits, choice=choice)
