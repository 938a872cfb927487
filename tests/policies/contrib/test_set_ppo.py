"""Subequivariant transformer: the symmetry to rounding, what must break it, trees, the world of limbs, learning."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from robot_rl.loops.evaluate import evaluate
from robot_rl.loops.on_policy import OnPolicy
from robot_rl.policies.contrib.set_ppo import SetPpo, SetPpoOptions
from robot_rl.policies.contrib.set_ppo_net import Invariants, LimbLayout, SetNet, relations, traversals
from robot_rl.policies.online.ppo import Ppo, PpoOptions
from robot_rl.sim.array_env import ArrayVectorEnv
from robot_rl.sim.check import check
from robot_rl.sim.worlds.limbs import Limbs
from robot_rl.types import IOSpec, Rollout

SMALL: dict[str, Any] = {"columns": 4, "width": 8, "rollout_steps": 4, "minibatch": 6, "epochs": 2}
LAYOUT = LimbLayout.of(Limbs().io)


def about_vertical(angle: float, dtype: torch.dtype = torch.float64) -> Tensor:
    c, s = math.cos(angle), math.sin(angle)
    return torch.tensor([[c, -s, 0.0], [s, c, 0.0], [0.0, 0.0, 1.0]], dtype=dtype)


def about_x(angle: float) -> Tensor:
    c, s = math.cos(angle), math.sin(angle)
    return torch.tensor([[1.0, 0.0, 0.0], [0.0, c, -s], [0.0, s, c]], dtype=torch.float64)


def turned(state: Tensor, turn: Tensor, leave: tuple[str, ...] = ()) -> Tensor:
    """All vectors of "state" rotated, but those in `leave`."""
    out = state.clone()
    for i, name in enumerate(LAYOUT.vector_names):
        if name not in leave:
            at = LAYOUT.vectors[:, i]
            out[:, at] = torch.einsum("xy,bly->blx", turn, state[:, at])
    return out


def learner(seed: int = 0, **options: Any) -> SetPpo:
    return SetPpo(SetPpoOptions(**{**SMALL, "layers": 2, **options}), Limbs().io, seed=seed)


def net(seed: int = 0) -> SetNet:
    """With weights that matter: two layers, in float64."""
    return learner(seed, columns=6, width=16).net.trunk.double()


def states(count: int = 16) -> Tensor:
    env = ArrayVectorEnv(Limbs(heading=(-180, 180)), count, 3)
    env.reset(seed=4)
    rng = np.random.default_rng(0)
    for _ in range(5):
        obs, *_ = env.step(rng.uniform(-1, 1, (count, 4)))
    return torch.as_tensor(obs["state"]).double()  # pyright: ignore[reportPossiblyUnboundVariable]


def test_rotation_about_gravity_leaves_actions_and_values_and_turns_the_vectors() -> None:
    model, state = net(), states()
    mean, value = model(state)
    pushed = model.vectors(state)
    assert mean.std() > 1e-3
    for angle in (0.3, 1.7, math.pi, -2.0):
        other = turned(state, about_vertical(angle))
        again, same = model(other)
        assert (again - mean).abs().max() < 1e-10
        assert (same - value).abs().max() < 1e-10
        expected = torch.einsum("xy,bly->blx", about_vertical(angle), pushed)
        assert (model.vectors(other) - expected).abs().max() < 1e-10


def test_rotation_in_single_precision_is_within_1e_5() -> None:
    model, state = net().float(), states().float()
    other = turned(state, about_vertical(2.2, torch.float32))
    assert (model(other)[0] - model(state)[0]).abs().max() < 1e-5


def test_another_direction_of_gravity_changes_actions_and_value() -> None:
    """Tilting the world under an unchanged gravity, or gravity alone, is another situation."""
    model, state = net(), states()
    mean, value = model(state)
    for other in (
        turned(state, about_x(0.8), leave=("gravity",)),
        turned(state, about_x(0.8), leave=tuple(name for name in LAYOUT.vector_names if name != "gravity")),
    ):
        again, different = model(other)
        assert (again - mean).abs().max() > 1e-3
        assert (different - value).abs().max() > 1e-4


def test_a_bias_on_the_vectors_would_break_the_symmetry() -> None:
    """The test above can fail: one constant vector that does not turn is enough."""
    model, state = net(), states()
    model.embed.bias = torch.nn.Parameter(torch.full((model.embed.out_features,), 0.3, dtype=torch.float64))
    gap = model(turned(state, about_vertical(1.7)))[0] - model(state)[0]
    assert gap.abs().max() > 1e-4


def test_invariants_are_inner_products_with_a_size_of_their_norm_and_one() -> None:
    seen = Invariants(2, 4).double()
    with torch.no_grad():
        seen.turn.weight.copy_(torch.eye(2))
    z = torch.tensor([[[3.0, 0.0], [0.0, 0.0], [0.0, 2.0]]], dtype=torch.float64)
    fixed = torch.tensor([[[0.0, 1.0], [0.0, 0.0], [-1.0, 0.0]]], dtype=torch.float64)
    _, size, joined = seen(z, fixed)
    # columns (3,0,0), (0,0,2), (0,0,-1), (1,0,0): squares of inner products 81+16+1+1 and twice 3^2 + 2^2
    assert size.item() == pytest.approx(math.sqrt(99 + 2 * 13) + 1.0)
    assert joined.shape == (1, 3, 4)


def test_a_limb_without_an_axis_does_nothing() -> None:
    model, state = net(), states()
    assert (model(state)[0].abs() > 1e-6).any(0).all()
    state[:, LAYOUT.vectors[2, LAYOUT.axes[0]]] = 0.0
    mean, _ = model(state)
    assert (mean[:, 2] == 0.0).all()  # limb2.axis0 is the third action
    assert (mean[:, 3] != 0.0).any()


def test_traversals_and_relations_of_a_small_tree() -> None:
    """0 with children 1 and 2, 1 with child 3: pre 0 1 3 2, in 3 1 0 2, post 3 1 2 0."""
    tree = [-1, 0, 0, 1]
    assert traversals(tree) == [[0, 1, 3, 2], [2, 1, 3, 0], [3, 1, 2, 0]]
    assert relations(tree) == [[0, 2, 2, 4], [1, 0, 3, 2], [1, 3, 0, 4], [4, 1, 4, 0]]


def test_every_parameter_learns() -> None:
    one = learner()
    mean, std, value = one.net(states().float())
    (mean.square().sum() + std.sum() + value.square().sum()).backward()
    idle = [name for name, p in one.net.named_parameters() if p.grad is None or not p.grad.abs().any()]
    assert not idle


def rollout(one: SetPpo, steps: int = 4, rows: int = 3, seed: int = 0) -> Rollout:
    g = torch.Generator().manual_seed(seed)
    seen = torch.randn(steps, rows, one.io.obs["state"][0][0], generator=g) * 0.3
    answers = [one.policy.act({"state": state}) for state in seen]
    raw = torch.stack([torch.as_tensor(a.extras["raw"]) for a in answers])
    logp = torch.stack([torch.as_tensor(a.logp) for a in answers])
    values = torch.stack([one.value({"state": state}) for state in seen])
    no = torch.zeros(steps, rows, dtype=torch.bool)
    last = no.clone()
    last[-1] = True
    reward = torch.randn(steps, rows, generator=g)
    return Rollout({"state": seen}, raw, logp, values, reward, values, no, last, last, ~no)


def test_density_is_that_of_a_normal_and_first_ratios_are_one() -> None:
    one = learner(epochs=1, minibatch=100)
    state = states().float()
    answer = one.policy.act({"state": state})
    mean, std, _ = one.net(state)
    expected = torch.distributions.Normal(mean, std).log_prob(torch.as_tensor(answer.extras["raw"])).sum(-1)
    torch.testing.assert_close(torch.as_tensor(answer.logp), expected)
    assert one.update(iter([rollout(one)]))["train/ratio_off"] == 0.0


def test_save_load_update_equals_update() -> None:
    one, other = learner(1), learner(2)
    for i in range(2):
        one.update(iter([rollout(one, seed=i)]))
    other.load_state_dict(one.state_dict())
    for i in range(2, 4):
        data = rollout(one, seed=i)
        assert one.update(iter([data])) == other.update(iter([data]))


def test_arrays_and_tensors_get_the_same_answer_and_a_batch_of_one_is_a_row() -> None:
    one, state = learner(), states().float()
    whole = one.policy.act({"state": state}, deterministic=True).value
    array = one.policy.act({"state": state[:1].numpy()}, deterministic=True).value
    assert isinstance(array, np.ndarray)
    np.testing.assert_allclose(array, whole[:1], atol=1e-6)


def test_worlds_without_limbs_are_refused() -> None:
    io = Limbs().io
    plain = IOSpec({"state": ((2,), "float32")}, ("x",), (-1.0,), (1.0,), ("1",), 10.0, obs_names=("a", "b"))
    with pytest.raises(ValueError, match="limb<i>"):
        SetPpo(SetPpoOptions(), plain)
    with pytest.raises(ValueError, match=r"limb<i>\.axis<j>"):
        SetPpo(SetPpoOptions(), replace(io, action_names=("push", *io.action_names[1:])))
    names = tuple(name.replace("gravity", "down") for name in io.obs_names)
    with pytest.raises(ValueError, match="gravity"):
        SetPpo(SetPpoOptions(), replace(io, obs_names=names))
    with pytest.raises(ValueError, match="earlier one"):
        SetPpo(SetPpoOptions(parents=(-1, 2, 0, 1)), io)


def test_world_keeps_the_contract_and_its_expert_reaches() -> None:
    assert check(ArrayVectorEnv(Limbs(), 3, 0), steps=90) == []
    rates = {}
    for who in ("expert", "random"):
        env, rng = ArrayVectorEnv(Limbs(heading=(-180, 180)), 100, 0), np.random.default_rng(0)
        obs, _ = env.reset(seed=1)
        for _ in range(40):
            action = env.expert(obs) if who == "expert" else rng.uniform(-1, 1, (100, 4))
            obs, _, _, _, info = env.step(action)
        rates[who] = info["success"].mean()  # pyright: ignore[reportPossiblyUnboundVariable]
    assert rates["expert"] > 0.75
    assert rates["random"] < 0.1


def test_world_straight_arm_is_where_it_points_and_its_velocities_are_those_of_its_places() -> None:
    world = Limbs(sag=0.0)
    state = {
        "heading": np.array([math.pi / 2]), "angle": np.zeros((1, 4)), "rate": np.zeros((1, 4)),
        "target": np.array([[0.0, 0.9, 0.4]]),
    }  # fmt: skip
    reward, _, _ = world.step(state, np.zeros((1, 4)))
    assert reward[0] == pytest.approx(-0.4)
    state["angle"][0], state["rate"][0] = [0.1, 0.2, -0.3, 0.4], [1.0, -0.5, 0.7, 0.3]
    before = world.observe(state)
    later = {**state, "angle": state["angle"] + 1e-4 * state["rate"]}
    moved = (world.observe(later) - before)[0, LAYOUT.vectors.numpy()[:, 0]] / 1e-4
    velocity = before[0, LAYOUT.vectors.numpy()[:, LAYOUT.vector_names.index("velocity")]]
    np.testing.assert_allclose(moved, velocity, atol=5e-3)


def test_the_same_episode_in_another_heading_earns_the_same() -> None:
    """Known answer: a policy of this network does in every heading what it does in one, whatever it has learnt."""
    one, plain = learner(3), Ppo(PpoOptions(), Limbs().io, seed=3)
    world, rng = Limbs(), np.random.default_rng(5)
    first = [world.start(rng) for _ in range(8)]
    turn = about_vertical(2.5).numpy()
    gap = {}
    for name, policy in (("set", one.policy), ("mlp", plain.policy)):
        total = []
        for angle, spin in ((0.0, np.eye(3)), (2.5, turn)):
            state = {key: np.stack([row[key] for row in first]) for key in first[0]}
            state["heading"], state["target"] = state["heading"] + angle, state["target"] @ spin.T
            earned = 0.0
            for _ in range(20):
                action = policy.act({"state": world.observe(state)}, deterministic=True).value
                earned = earned + world.step(state, 5 * np.asarray(action))[0]
            total.append(earned)
        gap[name] = np.abs(total[0] - total[1]).max()
    assert gap["set"] < 1e-3
    assert gap["mlp"] > 0.05


@pytest.mark.slow
def test_reaching_learnt_in_one_sector_holds_behind_it() -> None:
    env = ArrayVectorEnv(Limbs(), 64, 0)
    one = SetPpo(SetPpoOptions(), env.io, gamma=0.95)
    OnPolicy(env, one, seed=0).run(64 * 40 * 20)

    def score(low: float, high: float) -> float:
        return float(
            np.mean(evaluate(ArrayVectorEnv(Limbs(heading=(low, high)), 50, 5), one.policy, episodes=50).returns)
        )

    ahead, behind = score(-30, 30), score(150, 210)
    assert ahead > -20.0  # nothing done earns -31
    assert behind == pytest.approx(ahead, abs=2.0)
