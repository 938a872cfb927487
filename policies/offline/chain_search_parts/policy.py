"""What acts on a chain: a searched swing-up of a few features until a linear-quadratic regulator can catch it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from robot_rl.policies.offline.chain_search_parts.log import StateLayout
from robot_rl.policies.offline.chain_search_parts.mechanics import Columns, HingeChain, linearise, regulator, running
from robot_rl.types import Action, Array, IOSpec, Obs, PolicyParts, StateDict

_SIGN_SPEED = 0.1


def feature_count(joints: int) -> int:
    """Numbers that `features` gives."""
    return 5 * joints


def features(chain: HingeChain, top: Tensor, driven: int, q: Columns, v: Columns, speed: float) -> Columns:
    """Odd functions of the state, each of the order of one, whose weighted sum is the swing-up's action.

    The classic pump is the lack of energy times the speed of the driven joint; the other terms couple the links and
    act as springs and dampers.

    Args:
        chain: of the learnt model.
        top: energy at rest in the goal.
        driven: joint of the action.
        q: (n) joint angles.
        v: (n) speeds.
        speed: what speeds are divided by [rad/s].

    Source: Spong, The Swing Up Control Problem for the Acrobot (energy pump); the set is that of the scripted expert of
    `robot_rl.sim.worlds.double_pendulum`, whose weights were searched in the twin. Here all numbers come from logs.
    """
    scale = 2.0 * sum(g.abs() for g in chain.gravity)
    lack = ((chain.energy(q, v) - top) / scale).clamp(-2.0, 2.0)
    slow = [x / speed for x in v]
    out = [lack * x for x in slow]
    out += [torch.sin(t) for t in running(q)]
    out += [torch.sin(x) for x in q[1:]]
    out += slow
    out.append(lack * torch.tanh(v[driven] / _SIGN_SPEED))
    out += [lack * torch.sin(x) for x in q]
    return out


@dataclass(frozen=True)
class SwingUp:
    """Swing-up and regulator of one model, for any weights; see `ChainPolicy` for the entries."""

    chain: HingeChain
    top: Tensor
    goal: Tensor
    driven: tuple[int, ...]
    speed: float
    gain: Tensor
    cost: Tensor
    region: float

    def command(self, q: Columns, v: Columns, weights: Tensor) -> Columns:
        """Actions in [-1, 1] of one shape S at states of shape S.

        Args:
            q: (n) joint angles.
            v: (n) speeds.
            weights: (A * F + 1, ...) broadcasting with S: those of the features; the log of the cost-to-go below which
                the regulator acts, less that at which it asks for full torque.
        """
        n, count = len(q), feature_count(len(q))
        away = torch.stack(q) - self.goal.view(-1, *[1] * q[0].ndim)
        error = torch.cat([torch.remainder(away + math.pi, 2.0 * math.pi) - math.pi, torch.stack(v)])
        flat = error.view(2 * n, -1)
        near = ((self.cost @ flat) * flat).sum(0).view(q[0].shape) < (weights[-1] + self.region).exp()
        holds = -(self.gain @ flat)
        out = []
        for k, joint in enumerate(self.driven):
            parts = torch.stack(features(self.chain, self.top, joint, q, v, self.speed))
            swing = (weights[k * count : (k + 1) * count] * parts).sum(0)
            out.append(torch.where(near, holds[k].view(q[0].shape), swing).clamp(-1.0, 1.0))
        return out


class ChainPolicy:
    """Swing-up and balance, a function of the present state alone.

    Everything it needs travels in its state: the chain's constants, the goal, the regulator and the searched weights.
    Before the model is fitted it answers 0.
    """

    parts = PolicyParts()

    def __init__(self, io: IOSpec, layout: StateLayout, actions: int) -> None:
        n = layout.joints
        self.io, self.layout = io, layout
        double = torch.float64
        self.constants = {
            "numbers": torch.zeros(HingeChain.sizes(n), dtype=double),
            "friction": torch.zeros(n, dtype=double),
            "scale": torch.ones(n, dtype=double),
            "goal": torch.zeros(n, dtype=double),
            "driven": torch.zeros(actions, dtype=torch.int64),
            "speed": torch.ones((), dtype=double),
            "gain": torch.zeros(actions, 2 * n, dtype=double),
            "cost": torch.zeros(2 * n, 2 * n, dtype=double),
            "region": torch.zeros((), dtype=double),
            "weights": torch.zeros(actions * feature_count(n) + 1, dtype=double),
            "ready": torch.zeros((), dtype=torch.int64),
        }

    def equip(
        self,
        numbers: Tensor,
        friction: Tensor,
        *,
        scale: Tensor,
        goal: Sequence[float],
        driven: Sequence[int],
        speed: float,
        costs: tuple[float, float, float],
    ) -> None:
        """Take over a model and compute the regulator at its goal.

        Args:
            numbers: (D,) constants of the chain.
            friction: (n).
            scale: (n) rad/s per unit of the state's speeds.
            goal: (n) joint angles.
            driven: joint of every action.
            speed: what features divide speeds by.
            costs: of squared angles, speeds and actions in the regulator.

        Raises:
            ValueError: the goal cannot be balanced in this model.
        """
        chain, n, c = HingeChain.unpack(numbers, list(friction)), len(friction), self.constants
        a, b = linearise(chain, goal, driven, 1.0 / self.io.control_hz)
        state_cost = torch.diag(torch.tensor([costs[0]] * n + [costs[1]] * n, dtype=torch.float64))
        gain, cost = regulator(a, b, state_cost, torch.eye(len(driven), dtype=torch.float64) * costs[2])
        for name, value in (("numbers", numbers), ("friction", friction), ("scale", scale), ("gain", gain)):
            c[name].copy_(value)
        c["cost"].copy_(cost)
        c["goal"].copy_(torch.tensor(goal, dtype=torch.float64))
        c["driven"].copy_(torch.tensor(driven))
        c["speed"].fill_(speed)
        # log of the largest cost-to-go within which the regulator never asks for more than full torque
        c["region"].fill_(-float((gain @ torch.linalg.solve(cost, gain.T)).diagonal().max().log()))
        c["ready"].fill_(1)

    def bound(self, dtype: torch.dtype = torch.float64) -> SwingUp:
        """What acts, for any weights, in a precision."""
        c = {name: x.to(dtype) if x.is_floating_point() else x for name, x in self.constants.items()}
        chain = HingeChain.unpack(c["numbers"], list(c["friction"]))
        return SwingUp(
            chain=chain,
            top=chain.energy(list(c["goal"]), [torch.zeros_like(x) for x in c["goal"]]),
            goal=c["goal"],
            driven=tuple(self.constants["driven"].tolist()),
            speed=float(c["speed"]),
            gain=c["gain"],
            cost=c["cost"],
            region=float(c["region"]),
        )

    def reset(self, rows: Array | None = None) -> None:
        """No memory."""

    def act(self, obs: Obs, *, deterministic: bool = False) -> Action:
        """Actions of a batch of states; there is no noise, so that `deterministic` changes nothing."""
        given = obs["state"]
        state = torch.as_tensor(given)
        x, c = state.double().cpu(), self.constants
        if int(c["ready"]):
            angles = self.layout.angles(x)
            speeds = x[:, list(self.layout.speed)] * c["scale"]
            n = self.layout.joints
            parts = self.bound().command(
                [angles[:, i] for i in range(n)], [speeds[:, i] for i in range(n)], c["weights"][:, None]
            )
            value = torch.stack(parts, 1).float()
        else:
            value = torch.zeros(len(x), len(c["driven"]))
        return Action(value.to(state.device) if isinstance(given, Tensor) else np.asarray(value))

    def state_dict(self) -> StateDict:
        """Constants of model, goal, regulator and weights."""
        return {name: value.clone() for name, value in self.constants.items()}

    def load_state_dict(self, state: StateDict, /) -> None:
        """Copy in place.

        Raises:
            ValueError: the state belongs to another chain.
        """
        for name, value in self.constants.items():
            if name not in state or state[name].shape != value.shape:
                raise ValueError(f"the saved policy's '{name}' does not fit a chain of {self.layout.joints} joints")
            value.copy_(state[name])
