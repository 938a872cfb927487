"""BARFI: the implicit gradient against the exact one, bandits with helpful and misleading hints, saving."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from robot_rl.policies.contrib.barfi import Barfi, BarfiOptions, implicit_gradient
from robot_rl.types import IOSpec, Rollout

IO = IOSpec({"state": ((1,), "float32")}, ("x",), (-1.0,), (1.0,), ("1",), 10.0, obs_names=("level",))
SMALL: dict[str, Any] = {"hidden": 8, "rollout_steps": 1, "inner": 1, "lr": 0.02, "epochs": 3}


@pytest.mark.parametrize(("solver", "terms"), [("neumann", 400), ("cg", 10)])
def test_implicit_gradient_of_a_quadratic_is_exact(solver: str, terms: int) -> None:
    """J_phi = -theta A theta / 2 + theta B phi has theta* = A^-1 B phi; J = -|theta - c|^2 / 2."""
    g = torch.Generator().manual_seed(0)
    root = torch.randn(4, 4, generator=g, dtype=torch.float64)
    a = root @ root.T + torch.eye(4)
    b, c = torch.randn(4, 3, generator=g, dtype=torch.float64), torch.randn(4, generator=g, dtype=torch.float64)
    phi = torch.randn(3, generator=g, dtype=torch.float64, requires_grad=True)
    theta = torch.linalg.solve(a, b @ phi).detach().requires_grad_(True)
    inner = -0.5 * theta @ a @ theta + theta @ b @ phi
    outer = -0.5 * (theta - c).square().sum()
    step = 0.9 / float(torch.linalg.eigvalsh(a).max())
    (found,) = implicit_gradient(outer, inner, [theta], [phi], solver=solver, terms=terms, step=step, damping=0.0)
    exact = -(theta.detach() - c) @ torch.linalg.solve(a, b)
    torch.testing.assert_close(found, exact, rtol=1e-4, atol=1e-6)
    # and the same by finite differences of the converged inner solution
    for i in range(3):
        ends = []
        for sign in (1, -1):
            moved = phi.detach().clone()
            moved[i] += sign * 1e-5
            ends.append(-0.5 * (torch.linalg.solve(a, b @ moved) - c).square().sum())
        assert float(found[i]) == pytest.approx(float((ends[0] - ends[1]) / 2e-5), rel=1e-3)


def bandit(learner: Barfi, rows: int = 64) -> Rollout:
    """One step: 1 where the action is above 0."""
    obs = {"state": np.zeros((rows, 1), np.float32)}
    action = learner.policy.act(obs)
    raw, ends = torch.as_tensor(action.extras["raw"])[None], torch.ones(1, rows, dtype=torch.bool)
    zero = torch.zeros(1, rows)
    return Rollout(
        {"state": torch.zeros(1, rows, 1)}, raw, torch.as_tensor(action.logp)[None], zero, (raw[..., 0] > 0).float(),
        zero, ends, ~ends, ends, ends,
    )  # fmt: skip


def run(updates: int = 60, **options: Any) -> tuple[Barfi, float]:
    learner = Barfi(BarfiOptions(**{**SMALL, "aux_action": (1.0,), **options}), IO)
    for _ in range(updates):
        learner.update(iter([bandit(learner)]))
    return learner, float(np.mean([bandit(learner).reward.mean() for _ in range(5)]))


def test_misleading_hint_is_turned_down_and_a_helpful_one_is_kept() -> None:
    helpful, earned = run()
    assert helpful.reward.phi[2].item() > 0.0
    assert earned > 0.9
    misled, earned = run(aux_scale=-3.0)
    assert misled.reward.phi[2].item() <= 0.0
    assert earned > 0.9


def test_naive_sum_follows_a_misleading_hint() -> None:
    """What the outer step is for: with phi fixed at (0, 1, 1) a hint as large as the reward leads astray."""
    learner, earned = run(aux_scale=-3.0, learn_reward=False)
    assert learner.reward.phi.tolist() == [0.0, 1.0, 1.0]
    assert earned < 0.7


def test_weight_of_the_primary_reward_stays_at_least_zero() -> None:
    learner = Barfi(BarfiOptions(**SMALL), IO)
    learner.reward.climb(torch.tensor([0.0, -100.0, 0.0]), None, 5.0)
    assert learner.reward.phi.tolist() == [0.0, 0.0, 1.0]


def test_auxiliary_reward_is_the_configured_one() -> None:
    parts = {"aux_state": (2.0,), "aux_action": (0.5,), "aux_distance": ("level",), "aux_scale": -1.0}
    learner = Barfi(BarfiOptions.model_validate({**SMALL, **parts}), IO)
    found = learner.auxiliary(torch.tensor([[-3.0]]), torch.tensor([[4.0]]))
    assert found.item() == pytest.approx(-(2.0 * -3.0 + 0.5 * 1.0 - 3.0))  # actions count as executed: clipped
    with pytest.raises(ValueError, match="no component 'height'"):
        Barfi(BarfiOptions(aux_distance=("height",)), IO)


def test_returns_end_with_their_episode() -> None:
    """A reward behind the end of an episode is no reason for what was done before it."""
    learner = Barfi(BarfiOptions(**{**SMALL, "rollout_steps": 2}), IO)
    state, action = torch.zeros(2, 4, 1), torch.randn(2, 4, 1)
    columns = {"logp": learner.net.log_prob(state, action).detach(), "valid": torch.ones(2, 4)}
    reward = torch.tensor([[0.0] * 4, [1.0, 2.0, 3.0, 5.0]])
    grads = []
    for go_on in (0.0, 1.0):
        columns["go_on"] = torch.stack([torch.full((4,), go_on), torch.zeros(4)])
        loss = learner._surrogate(state, action, columns, reward, torch.tensor(0.9))
        ratio_of_first = torch.autograd.grad(loss, learner.net.log_std)[0]
        grads.append(ratio_of_first)
    assert not torch.allclose(grads[0], grads[1])
    columns["go_on"] = torch.zeros(2, 4)
    first = {name: value[:1] for name, value in columns.items()}
    assert learner._surrogate(state[:1], action[:1], first, reward[:1], torch.tensor(0.9)).item() == 0.0


def test_rows_that_are_no_steps_change_nothing() -> None:
    """Every second row only resets: whatever stands there, in state or reward, the update is the same."""
    told = []
    for absurd in (0.0, 100.0):
        learner = Barfi(BarfiOptions(**{**SMALL, "aux_state": (1.0,), "inner": 1}), IO)
        rollout = bandit(learner, 8)
        valid = (torch.arange(8) % 2 == 0)[None]
        state = torch.where(valid, rollout.reward, absurd)[..., None]
        reward = torch.where(valid, rollout.reward, absurd)
        told.append(learner.update(iter([replace(rollout, obs={"state": state}, reward=reward, valid=valid)])))
    assert told[0] == told[1]


def test_save_load_update_equals_update() -> None:
    options = {**SMALL, "aux_action": (1.0,), "learn_gamma": True, "gamma_cost": 0.1}
    one, other = Barfi(BarfiOptions(**options), IO, seed=1), Barfi(BarfiOptions(**options), IO, seed=2)
    data = [bandit(one) for _ in range(5)]
    for rollout in data[:3]:
        one.update(iter([rollout]))
    other.load_state_dict(one.state_dict())
    for rollout in data[3:]:
        assert one.update(iter([rollout])) == other.update(iter([rollout]))
    obs = {"state": np.ones((3, 1), np.float32)}
    np.testing.assert_array_equal(one.policy.act(obs).value, other.policy.act(obs).value)
