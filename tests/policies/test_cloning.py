"""Cloning: what rows weigh, where commands at the bounds pull to, and a gripper that is switched once per episode."""
# pyright: reportArgumentType=false

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from robot_rl.policies.human.hg_dagger import HgDagger, HgDaggerOptions
from robot_rl.policies.nets.imitation import human_rows, imitation_loss
from robot_rl.types import IOSpec
from tests.policies.test_human import batch

RAW = torch.zeros(2, 2)  # mean 0, standard deviation 1, of one action


def test_rows_that_switch_a_gripper_weigh_the_same_at_a_handover_and_nothing_where_nobody_drove():
    row = batch(5, imitate=torch.tensor([1.0, 1.0, 0.3, 0.3, 0.0]))
    row.extras["grip_penalty"] = torch.tensor([0.0, -0.02, -0.02, 0.0, -0.02])
    assert human_rows(row, switch_weight=10.0).tolist() == pytest.approx([1.0, 10.0, 10.0, 0.3, 0.0])
    assert human_rows(row).tolist() == pytest.approx([1.0, 1.0, 0.3, 0.3, 0.0])
    del row.extras["grip_penalty"]  # a log that does not know of grippers
    assert human_rows(row, switch_weight=10.0).tolist() == pytest.approx([1.0, 1.0, 0.3, 0.3, 0.0])


@pytest.mark.parametrize(("edge", "aim"), [(0.05, 0.5 * math.log(1.95 / 0.05)), (1e-4, 0.5 * math.log(1.9999 / 1e-4))])
def test_command_at_the_bound_pulls_to_the_edge(edge, aim):
    # with standard deviation 1 and mean 0 the gradient of -log N(u; m, 1) by m is -u; u = atanh(1 - edge) = 1.83, 4.95
    actions = torch.tensor([[1.0], [-1.0]])
    raw = RAW.clone().requires_grad_()
    loss = imitation_loss(raw, actions, torch.tensor([1.0, 3.0]), min_std=0.1, edge=edge)
    (grad,) = torch.autograd.grad(loss, raw)
    assert grad[:, 0].tolist() == pytest.approx([-aim / 4, 3 * aim / 4], rel=1e-4)
    # -log density of tanh(u): u^2 / 2 + log(2 pi) / 2 + log(1 - tanh(u)^2)
    density = 0.5 * aim**2 + 0.5 * math.log(2 * math.pi) + math.log(1 - (1 - edge) ** 2)
    assert float(loss) == pytest.approx(density, rel=1e-3)
    there = torch.tensor([[aim, 0.0], [-aim, 0.0]], requires_grad=True)  # the pull ends there
    loss_there = imitation_loss(there, actions, torch.ones(2), min_std=0.1, edge=edge)
    (still,) = torch.autograd.grad(loss_there, there)
    assert still[:, 0].abs().max() < 1e-3
    assert 1.0 - math.tanh(aim) ** 2 == pytest.approx(1 - (1 - edge) ** 2)  # the slope that is left: 0.0975, 0.0002


class Claw:
    """Fingers on a line, `apart` from an object: a move of at most 0.1 in a step, closing takes three."""

    io = IOSpec({"state": ((2,), "float32")}, ("dx", "gripper_opening"), (-1.0,) * 2, (1.0,) * 2, ("1",) * 2, 10.0)

    def __init__(self, apart: float) -> None:
        self.apart, self.opening = apart, 1.0

    def state(self) -> np.ndarray:
        return np.array([self.apart, self.opening], np.float32)

    def expert(self) -> np.ndarray:
        """As on `pick`: slower and slower towards the object, closing within 0.01 of it."""
        close = abs(self.apart) < 0.01 or self.opening < 0.9
        return np.array([np.clip(-4.0 * self.apart, -1, 1), -1.0 if close else 1.0], np.float32)

    def step(self, action: np.ndarray) -> bool:
        """Whether the fingers are closed on the object."""
        self.apart += 0.1 * float(np.clip(action[0], -1, 1))
        self.opening = float(np.clip(self.opening + 0.4 * np.clip(action[1], -1, 1), 0.0, 1.0))
        return self.opening < 0.1 and abs(self.apart) < 0.02


def demonstrations(count: int):
    """(state, action, penalty) of episodes that end with the object held."""
    rows, starts = [], np.random.default_rng(0)
    for _ in range(count):
        claw, held, done = Claw(starts.uniform(-1.0, 1.0)), 1.0, False
        while not done:
            state, action = claw.state(), claw.expert()
            rows.append((state, action, -0.02 if action[1] != held else 0.0))
            held, done = action[1], claw.step(action)
    return [torch.from_numpy(np.array(column, np.float32)) for column in zip(*rows)]


def holds(**options) -> float:
    """Share of 50 new starts from which a clone holds the object within five seconds."""
    state, action, penalty = demonstrations(20)
    learner = HgDagger(HgDaggerOptions(bc_steps=600, hidden=(64, 64), batch_size=128, lr=1e-3, **options), Claw.io)
    draw = torch.Generator().manual_seed(0)
    base = batch(128, actions=2, state=2)

    def batches():
        while True:
            index = torch.randint(len(state), (128,), generator=draw)
            extras = {"imitate": torch.ones(128), "grip_penalty": penalty[index]}
            yield replace(base, obs={"state": state[index]}, action=action[index], extras=extras)

    learner.pretrain(batches())
    starts, held = np.random.default_rng(1), 0
    for _ in range(50):
        claw = Claw(starts.uniform(-1.0, 1.0))
        held += any(
            claw.step(learner.policy.act({"state": claw.state()[None]}, deterministic=True).value[0]) for _ in range(50)
        )
    return held / 50


def test_clone_closes_the_gripper_that_a_demonstration_closes_once():
    # without the weight the clone stands at the object with open fingers, as the rows before the switch do
    assert holds(switch_weight=1.0) < 0.2
    assert holds() > 0.9
