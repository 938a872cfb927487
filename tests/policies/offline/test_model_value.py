"""The model-based estimator on worlds whose values are known exactly."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from robot_rl.policies.offline.model_value import ModelValue, ModelValueOptions
from robot_rl.types import Action, IOSpec, LogFacts, PolicyParts, Transitions


class Push:
    """Always the same action."""

    parts = PolicyParts()

    def __init__(self, io, action):
        self.io, self.action = io, action

    def reset(self, rows=None):
        """No memory."""

    def act(self, obs, *, deterministic=False):
        return Action(torch.full((len(obs["state"]), 1), self.action))


def line_batches(size, gamma, ends):
    """x' = x + 0.2 a, reward x; where `ends`, the episode ends when x' passes 0.95."""
    g = torch.Generator().manual_seed(0)
    while True:
        x = torch.rand(size, 1, generator=g) * 2 - 1
        a = torch.rand(size, 1, generator=g) * 2 - 1
        after = x + 0.2 * a
        done = (after[:, 0] > 0.95) if ends else torch.zeros(size, dtype=torch.bool)
        no = torch.zeros(size, dtype=torch.bool)
        yield Transitions({"state": x}, a, x[:, 0], gamma * (~done).float(), {"state": after}, done, no, no, ~no)


@pytest.mark.parametrize("ends", [False, True])
def test_value_of_a_straight_walk_is_the_sum_worked_by_hand(ends):
    gamma = 0.8
    io = IOSpec({"state": ((1,), "float32")}, ("a",), (-1.0,), (1.0,), ("1",), 10.0)
    options = ModelValueOptions(members=2, hidden=(32, 32), batch_size=64, rollouts=4, lr=3e-3)
    learner = ModelValue(options, io, Push(io, 0.5 if ends else 0.0), gamma=gamma)
    batches = line_batches(learner.need.rows, gamma, ends)
    for _ in range(900):
        learner.update(batches)
    value = learner.state_values(torch.tensor([[0.5]]))
    if ends:  # 0.5, 0.6, 0.7, 0.8, 0.9, then x' = 1.0 is the end
        truth = sum(gamma**t * (0.5 + 0.1 * t) for t in range(5))
    else:  # standing still at 0.5; the tail beyond gamma^t = 0.01 is 1 % of it
        truth = 0.5 / (1 - gamma)
    assert value.shape == (2, 1)
    assert value.mean() == pytest.approx(truth, rel=0.12)


def test_same_seed_same_values_and_resume_is_exact():
    io = IOSpec({"state": ((1,), "float32")}, ("a",), (-1.0,), (1.0,), ("1",), 10.0)

    def make():
        options = ModelValueOptions(members=2, hidden=(8,), batch_size=16, rollouts=2)
        return ModelValue(options, io, Push(io, 0.0), gamma=0.8)

    one, other = make(), make()
    batches = [next(line_batches(32, 0.8, True)) for _ in range(6)]
    for b in batches[:4]:
        one.update(iter([b]))
    other.load_state_dict(one.state_dict())
    for learner in (one, other):
        for b in batches[4:]:
            learner.update(iter([b]))
    start = torch.tensor([[0.1], [0.2]])
    assert torch.equal(one.state_values(start), other.state_values(start))


def test_limits_of_states_lie_where_the_networks_do():
    """Without a GPU: on the device that knows shapes alone."""
    io = IOSpec({"state": ((1,), "float32")}, ("a",), (-1.0,), (1.0,), ("1",), 10.0)
    learner = ModelValue(ModelValueOptions(members=2, hidden=(8,)), io, Push(io, 0.0))
    vars(learner)["generator"] = SimpleNamespace(device=torch.device("meta"))
    learner.prepare(LogFacts(np.zeros(1), np.ones(1), 0.0, 1.0, 0.9, 20))
    assert learner._low.device == learner._high.device == torch.device("meta")
