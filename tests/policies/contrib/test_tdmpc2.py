"""TD-MPC2: SimNorm and returns by hand, ends and masks, gradients, plans kept and forgotten, saving, learning."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from robot_rl.data.buffer import ReplayBuffer
from robot_rl.loops.evaluate import evaluate
from robot_rl.loops.off_policy import OffPolicy
from robot_rl.policies.contrib.tdmpc2 import Tdmpc2, Tdmpc2Options
from robot_rl.policies.contrib.tdmpc2_model import Stack, sim_norm
from robot_rl.policies.nets.rows import map_columns
from robot_rl.sim.mujoco_env import make
from robot_rl.sim.worlds.reach import Reach
from robot_rl.types import IOSpec, Transitions

IO = IOSpec({"state": ((3,), "float32")}, ("x", "y"), (-1.0,) * 2, (1.0,) * 2, ("1",) * 2, 10.0)
SMALL: dict[str, Any] = {
    "latent": 16, "hidden": 16, "samples": 12, "elites": 4, "prior_samples": 3, "iterations": 2, "critics": 3,
    "batch_size": 8, "metrics_every": 1,
}  # fmt: skip


def rows(size: int = 8, steps: int = 3, seed: int = 0, *, terminated: bool = False, known: int = 3) -> Transitions:
    g = torch.Generator().manual_seed(seed)
    state = torch.randn(size, steps + 1, 3, generator=g)
    end = torch.full((size, steps), terminated)
    mask = (torch.arange(steps) < known).expand(size, steps)
    return Transitions(
        {"state": state[:, :-1]}, torch.rand(size, steps, 2, generator=g) * 2 - 1, torch.ones(size, steps),
        torch.full((size, steps), 0.0 if terminated else 0.9), {"state": state[:, 1:]}, end, ~end, ~mask & mask, mask,
    )  # fmt: skip


def learner(seed: int = 0, gamma: float = 0.99, **options: Any) -> Tdmpc2:
    return Tdmpc2(Tdmpc2Options(**{**SMALL, **options}), IO, seed=seed, gamma=gamma)


def test_sim_norm_is_a_softmax_per_group() -> None:
    out = sim_norm(torch.tensor([[0.0, 0.0, 1.0, 0.0]]), 2)
    share = float(torch.tensor(1.0).sigmoid())
    torch.testing.assert_close(out, torch.tensor([[0.5, 0.5, share, 1.0 - share]]))


def test_members_are_independent_and_a_last_layer_of_zero_says_nothing() -> None:
    stack = Stack(2, (3, 8, 4), torch.Generator().manual_seed(0), zero=True)
    assert not stack(torch.randn(5, 3)).any()
    stack = Stack(2, (3, 8, 4), torch.Generator().manual_seed(0))
    x = torch.randn(5, 3)
    before = stack(x)
    with torch.no_grad():
        stack.weights[0][1] += 1.0
    assert torch.equal(stack(x)[0], before[0])
    assert not torch.equal(stack(x)[1], before[1])


def constant(one: Tdmpc2, reward: float, value: float) -> None:
    """Model that always says these numbers: all mass on the two bins around them."""
    big = 1e4
    with torch.no_grad():
        for stack, number in ((one.model.reward, reward), (one.model.critics, value)):
            stack.biases[-1][:] = (one.head.spread(torch.tensor([number])) + 1e-12).log().clamp_min(-big)


def test_returns_are_discounted_rewards_and_a_value_behind_the_horizon() -> None:
    """1 + 0.9 + 0.81 + 0.729 * 5 = 6.355."""
    one = learner(gamma=0.9)
    constant(one, 1.0, 5.0)
    found = one.policy.returns(torch.zeros(4, 16), torch.zeros(4, 3, 2))
    torch.testing.assert_close(found, torch.full((4,), 6.355), atol=1e-3, rtol=0)


def test_target_bootstraps_by_discount_alone() -> None:
    one = learner()
    constant(one, 0.0, 5.0)
    one.target.soft_update(1.0)
    z, reward = torch.zeros(2, 16), torch.tensor([1.0, 1.0])
    found = one._target(z, reward, torch.tensor([0.9, 0.0]))
    torch.testing.assert_close(found, torch.tensor([5.5, 1.0]), atol=1e-3, rtol=0)


def test_masked_steps_teach_nothing() -> None:
    """Whatever stands behind the end of an episode, the update is the same."""
    one, other = learner(), learner()
    data = rows(known=2)
    one.update(iter([data]))
    noise = rows(seed=5, known=2)
    for field in (data.obs, data.next_obs):
        field["state"] = field["state"].clone()
    data.obs["state"][:, 2], data.next_obs["state"][:, 2] = noise.obs["state"][:, 2], noise.next_obs["state"][:, 2]
    data.reward[:, 2], data.action[:, 2] = 7.0, noise.action[:, 2]
    other.update(iter([data]))
    for a, b in zip(one.model.parameters(), other.model.parameters()):
        torch.testing.assert_close(a, b)


def test_every_part_learns_and_the_target_only_follows() -> None:
    one = learner()
    before = {name: value.clone() for name, value in one.model.named_parameters()}
    prior = [value.clone() for value in one.prior.parameters()]
    old = [value.clone() for value in one.target.module.parameters()]
    for i in range(3):  # last layers begin at 0, so that those before them learn from the second update on
        one.update(iter([rows(seed=i)]))
    assert all((value != before[name]).any() for name, value in one.model.named_parameters())
    assert any((a != b).any() for a, b in zip(prior, one.prior.parameters()))
    for a, b, c in zip(old, one.target.module.parameters(), one.model.critics.parameters()):
        assert (b - a).norm() <= 0.1 * (c - a).norm()


def test_known_value_with_and_without_an_end() -> None:
    """Reward 1 for ever at discount 0.5 is worth 2; where every step is the last it is worth 1."""
    worth = {}
    for terminated in (False, True):
        one = learner(lr=1e-2, tau=0.5, encoder_lr_scale=0.1)
        data = rows(16, terminated=terminated)
        data.discount.mul_(0.5 / 0.9)
        for _ in range(200):
            one.update(iter([data]))
        z = one.model.encoder(data.obs["state"][:, 0])[0]
        q = one.head.value(one.model.critics(torch.cat([z, data.action[:, 0]], -1)))
        worth[terminated] = q.mean().item()
    assert worth[False] == pytest.approx(2.0, abs=0.25)
    assert worth[True] == pytest.approx(1.0, abs=0.1)


def test_plan_finds_the_best_action_of_a_known_model() -> None:
    """Reward is the first action; all else is worth nothing."""
    one = learner(samples=64, elites=8, iterations=4, temperature=5.0)

    def returns(z: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
        return -(actions[:, 0] - torch.tensor([0.6, -0.3])).square().sum(-1)

    one.policy.returns = returns  # type: ignore[method-assign]
    action = one.policy.act({"state": np.zeros((4, 3), np.float32)}, deterministic=True).value
    assert isinstance(action, np.ndarray)
    np.testing.assert_allclose(action, np.tile([0.6, -0.3], (4, 1)), atol=0.25)


def test_plans_are_kept_and_forgotten_row_by_row() -> None:
    policy = learner().policy
    policy.act({"state": np.zeros((3, 3), np.float32)})
    assert policy._plan.abs().sum((1, 2)).gt(0).all()
    kept = policy._plan.clone()
    policy.reset(np.array([False, True, False]))
    assert not policy._plan[1].any()
    assert torch.equal(policy._plan[0], kept[0])
    policy.reset(np.array([True, False]))  # of two environments, where plans are of three: the next call begins anew
    assert torch.equal(policy._plan[0], kept[0])
    policy.reset()
    assert len(policy._plan) == 0


def test_a_planner_without_the_prior_draws_all_of_its_sequences() -> None:
    """Means and spreads of the planner alone, 12 sequences of 3 steps each for 2 rows."""
    policy, seen = learner(prior_samples=0).policy, list[tuple[int, ...]]()
    own = policy.returns
    policy.returns = lambda z, actions: (seen.append(tuple(actions.shape)), own(z, actions))[1]
    assert policy.act({"state": np.zeros((2, 3), np.float32)}).value.shape == (2, 2)
    assert seen == [(24, 3, 2)] * 2


def test_a_window_of_one_step_is_a_row_of_the_replay() -> None:
    """A replay that draws no windows gives (B,) columns; they are windows (B, 1)."""
    one, other = learner(1, horizon=1), learner(1, horizon=1)
    single = map_columns(rows(steps=1, known=1), lambda x: x[:, 0])
    assert one.update(iter([single])) == other.update(iter([rows(steps=1, known=1)]))


def test_arrays_and_tensors_get_the_same_answer() -> None:
    one, other = learner().policy, learner().policy
    state = np.random.default_rng(0).normal(size=(2, 3)).astype(np.float32)
    a, b = one.act({"state": state}).value, other.act({"state": torch.as_tensor(state)}).value
    assert isinstance(a, np.ndarray)
    assert isinstance(b, torch.Tensor)
    np.testing.assert_array_equal(a, b.numpy())
    assert (np.abs(a) <= 1).all()


def test_save_load_update_equals_update() -> None:
    one, other = learner(1), learner(2)
    state = {"state": np.ones((2, 3), np.float32)}
    one.policy.act(state)
    for i in range(2):
        one.update(iter([rows(seed=i)]))
    other.load_state_dict(one.state_dict())
    for i in range(2, 4):
        assert one.update(iter([rows(seed=i)])) == other.update(iter([rows(seed=i)]))
    np.testing.assert_array_equal(np.asarray(one.policy.act(state).value), np.asarray(other.policy.act(state).value))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"latent": 12}, "divisor of latent"),
        ({"elites": 20}, "elites <= samples"),
        ({"critics": 1}, "at least 2"),
    ],
)
def test_wrong_options_say_what_was_expected(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        learner(**options)


@pytest.mark.slow
def test_learns_reach() -> None:
    env = make(1, 0, world=Reach(seconds=2.0))
    one = Tdmpc2(Tdmpc2Options(), env.io, gamma=0.95)
    buffer = ReplayBuffer(env.io, 2000, window=one.need.window, gamma=0.95)
    OffPolicy(env, one, buffer, batch_size=64, learning_starts=200).run(1000, lambda *_: False)
    result = evaluate(make(10, 1, world=Reach(seconds=2.0)), one.policy, episodes=20)
    assert np.mean(result.returns) > 6.0  # acting at random: 1.95
