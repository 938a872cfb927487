"""Fitted Q evaluation on chains with exact values."""

import numpy as np
import pytest
import torch

from robot_rl.policies.offline.fqe import Fqe, FqeOptions
from robot_rl.types import Action, IOSpec, LogFacts, PolicyParts, Transitions


class Constant:
    """Always the same action; stochastic: uniform in [-1, 1]."""

    parts = PolicyParts()

    def __init__(self, io: IOSpec, action: float) -> None:
        self.io, self.action = io, action

    def reset(self, rows=None):
        """No memory."""

    def act(self, obs, *, deterministic=False):
        size = len(obs["state"])
        if deterministic:
            return Action(torch.full((size, 1), self.action))
        return Action(torch.rand(size, 1) * 2 - 1)


def chain_io() -> IOSpec:
    return IOSpec({"state": ((5,), "float32")}, ("a",), (-1.0,), (1.0,), ("1",), 10.0)


def chain_batches(size: int, gamma: float, members: int, truncated_end: bool = False):
    """Five states in a row, one-hot; action > 0 moves right with reward 1, else stays with reward 0; the step out of
    the last state terminates (or, truncated, leads to itself)."""
    rng = np.random.default_rng(0)
    eye = torch.eye(5)
    while True:
        n = size * members
        place = torch.from_numpy(rng.integers(0, 5, n))
        action = torch.from_numpy(rng.uniform(-1, 1, (n, 1)).astype(np.float32))
        right = action[:, 0] > 0
        after = torch.where(right, (place + 1).clamp(max=4), place)
        done = right & (place == 4)
        no = torch.zeros(n, dtype=torch.bool)
        yield Transitions(
            obs={"state": eye[place]},
            action=action,
            reward=right.float(),
            discount=gamma * (~done if not truncated_end else torch.ones(n)).float(),
            next_obs={"state": eye[after]},
            terminated=done if not truncated_end else no,
            truncated=no if not truncated_end else done,
            intervened=no,
            mask=~no,
        )


def fit(policy: Constant, updates: int = 2000, truncated_end: bool = False, deterministic: bool = True) -> Fqe:
    options = FqeOptions(members=2, hidden=(32, 32), batch_size=64, lr=2e-3, tau=0.05, samples=4, normalize=False)
    learner = Fqe(options, chain_io(), policy, deterministic=deterministic)
    learner.prepare(LogFacts(np.zeros(5), np.ones(5), 0.0, 1.0, 0.9, 20))
    batches = chain_batches(64, 0.9, 2, truncated_end)
    for _ in range(updates):
        learner.update(batches)
    return learner


def test_fqe_equals_the_exact_values_of_a_chain_of_five():
    """Always right: V(s_i) = sum of 0.9^k over the 5 - i steps that are left."""
    learner = fit(Constant(chain_io(), 0.9), 2000)
    exact = torch.tensor([sum(0.9**k for k in range(5 - i)) for i in range(5)])
    for member in learner.state_values(torch.eye(5)):
        torch.testing.assert_close(member, exact, atol=0.05, rtol=0)
    torch.testing.assert_close(learner.state_values(torch.eye(5)).mean(0), exact, atol=0.03, rtol=0)


def test_fqe_truncation_bootstraps_and_termination_does_not():
    """The same steps, but the last state leads to itself: the value is 1 / (1 - 0.9) everywhere."""
    learner = fit(Constant(chain_io(), 0.9), 1500, truncated_end=True)
    values = learner.state_values(torch.eye(5))
    assert bool((values > 6.5).all())
    assert bool((values < 10.5).all())


def test_fqe_of_a_stochastic_policy_averages_over_its_actions():
    """Half the steps move: V(s_4) = 0.5 (1 + 0) + 0.5 * 0.9 V(s_4) = 0.5 / 0.55."""
    learner = fit(Constant(chain_io(), 0.0), 1500, deterministic=False)
    torch.manual_seed(0)
    state = torch.eye(5)[4:].expand(400, 5)
    assert learner.state_values(state).mean().item() == pytest.approx(0.5 / 0.55, abs=0.06)


def test_fqe_targets_stay_inside_what_rewards_allow():
    learner = Fqe(FqeOptions(members=1, hidden=(8,), batch_size=4), chain_io(), Constant(chain_io(), 0.5))
    learner.prepare(LogFacts(np.zeros(5), np.ones(5), -1.0, 2.0, 0.9, 20))
    assert learner.limits == pytest.approx((-10.0, 20.0))


def test_fqe_divergence_is_named():
    options = FqeOptions(members=1, hidden=(8,), batch_size=4, metrics_every=1)
    learner = Fqe(options, chain_io(), Constant(chain_io(), 0.5))
    learner.prepare(LogFacts(np.zeros(5), np.ones(5), 0.0, 1.0, 0.9, 20))
    learner.q.params.view["bias1"].fill_(1e5)
    with pytest.raises(FloatingPointError, match="FQE diverged"):
        learner.update(chain_batches(4, 0.9, 1))
