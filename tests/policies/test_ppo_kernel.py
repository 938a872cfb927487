"""PPO's written-out gradients against autograd, and its Adam against torch's."""

from __future__ import annotations

import importlib
from importlib.util import find_spec

import numpy as np
import pytest
import torch

from robot_rl.policies.online import ppo_kernel
from robot_rl.policies.online.ppo import Ppo
from robot_rl.policies.online.ppo_kernel import Adam, Kernel, Layout, Loss, Minibatch, autograd_loss
from robot_rl.types import IOSpec

OBS, ACT, ROWS = 5, 3, 16
NUMBA = pytest.mark.skipif(not find_spec("numba"), reason="needs numba (extra `fast`)")
BACKENDS = ["numpy", pytest.param("numba", marks=NUMBA)]


def compiled():
    return importlib.import_module("robot_rl.policies.online.ppo_numba")


def loss_rows(backend):
    return compiled().loss_rows if backend == "numba" else ppo_kernel.loss_rows


def problem(hidden=(8, 7), state_std=False, seed=0, spread=0.3):
    rng = np.random.default_rng(seed)
    layout = Layout(OBS, ACT, hidden, state_std)
    params = (rng.standard_normal(layout.size) * spread).astype(np.float32)

    def draw(*shape):
        return rng.standard_normal(shape).astype(np.float32)

    batch = Minibatch(draw(ROWS, OBS), draw(ROWS, ACT), draw(ROWS) - 4.0, draw(ROWS), draw(ROWS), draw(ROWS) * 0.3)
    return layout, params, batch


def reference(layout, params, batch, activation, loss):
    flat = torch.from_numpy(params.copy()).double().requires_grad_()
    tensors = Minibatch(*(torch.from_numpy(x).double() for x in vars(batch).values()))
    total, log_ratio, value = autograd_loss(layout.views(flat), layout, activation, loss, tensors)
    total.backward()
    assert flat.grad is not None
    return flat.grad.numpy(), log_ratio.numpy(), value.numpy()


@pytest.mark.parametrize("activation", ["tanh", "relu", "elu"])
@pytest.mark.parametrize("state_std", [False, True])
@pytest.mark.parametrize("value_clip", [None, 0.2])
@pytest.mark.parametrize("hidden", [(), (8,), (8, 7)])
@pytest.mark.parametrize("backend", BACKENDS)
def test_kernel_gradient_equals_autograd(backend, activation, state_std, value_clip, hidden):
    layout, params, batch = problem(hidden, state_std)
    loss = Loss(clip=0.2, value_clip=value_clip, value_coef=0.7, entropy_coef=0.01)
    kernel = Kernel(layout, params, activation, loss, loss_rows(backend))
    log_ratio, value = np.empty(ROWS, np.float32), np.empty(ROWS, np.float32)
    for _ in range(2):  # twice: buffers are used again
        kernel.gradient(batch, log_ratio, value)
    grad, expected_ratio, expected_value = reference(layout, params, batch, activation, loss)
    np.testing.assert_allclose(kernel.grad, grad, atol=2e-5)
    np.testing.assert_allclose(log_ratio, expected_ratio, atol=1e-5)
    np.testing.assert_allclose(value, expected_value, atol=1e-5)
    assert np.abs(grad).max() > 1e-3


def test_kernel_one_row_and_changing_batch_sizes():
    layout, params, batch = problem()
    loss = Loss(0.2, None, 0.5, 0.0)
    kernel = Kernel(layout, params, "tanh", loss)
    for count in (ROWS, 1, ROWS, 3):
        part = Minibatch(*(x[:count] for x in vars(batch).values()))
        kernel.gradient(part, np.empty(count, np.float32), np.empty(count, np.float32))
        np.testing.assert_allclose(kernel.grad, reference(layout, params, part, "tanh", loss)[0], atol=2e-5)


@pytest.mark.parametrize("backend", BACKENDS)
def test_kernel_clipped_rows_give_the_actor_no_gradient(backend):
    layout, params, batch = problem()
    batch.logp = np.full(ROWS, -60.0, np.float32)  # every ratio far above 1.2 ...
    batch.advantage = np.ones(ROWS, np.float32)  # ... where a positive advantage must not push further
    kernel = Kernel(layout, params, "tanh", Loss(0.2, None, 0.5, 0.0), loss_rows(backend))
    kernel.gradient(batch, np.empty(ROWS, np.float32), np.empty(ROWS, np.float32))
    views = layout.views(kernel.grad)
    assert not views["actor_weight"].any()
    assert not views["weight0"][0].any()
    assert not views["log_std"].any()
    assert views["critic_weight"].any()
    assert views["weight0"][1].any()


@pytest.mark.parametrize("backend", BACKENDS)
def test_kernel_value_clip_stops_the_critic_outside_the_limit(backend):
    layout, params, batch = problem()
    kernel = Kernel(layout, params, "tanh", Loss(0.2, 0.1, 0.5, 0.0), loss_rows(backend))
    value = np.empty(ROWS, np.float32)
    kernel.gradient(batch, np.empty(ROWS, np.float32), value)
    # Values moved from 0.5 below the estimate towards a target far above: the clipped error is larger, so no gradient.
    batch.value, batch.target = value - 0.5, value + 3.0
    kernel.gradient(batch, np.empty(ROWS, np.float32), value)
    assert not layout.views(kernel.grad)["critic_weight"].any()
    # The same move away from the target keeps its gradient.
    batch.target = value - 3.0
    kernel.gradient(batch, np.empty(ROWS, np.float32), value)
    assert layout.views(kernel.grad)["critic_weight"].any()


@pytest.mark.parametrize("backend", BACKENDS)
def test_adam_with_clipping_equals_torch(backend):
    rng = np.random.default_rng(0)
    start = torch.from_numpy(rng.standard_normal(50).astype(np.float32))
    ours, theirs = start.clone(), torch.nn.Parameter(start.clone())
    adam = Adam(ours, 1e-2, 2.0, compiled=compiled().adam if backend == "numba" else None)
    peer = torch.optim.Adam([theirs], 1e-2, eps=1e-5)
    for i in range(20):
        grad = torch.from_numpy(rng.standard_normal(50).astype(np.float32)) * (0.1 if i % 2 else 3.0)
        norm = float(grad.norm())
        theirs.grad = grad.clone()
        torch.nn.utils.clip_grad_norm_([theirs], 2.0)
        assert float(adam.step(grad)) == pytest.approx(norm, rel=1e-5)
        peer.step()
    torch.testing.assert_close(ours, theirs.detach(), atol=1e-6, rtol=1e-5)


@NUMBA
@pytest.mark.parametrize("activation", ["tanh", "relu", "elu"])
@pytest.mark.parametrize("log_std", ["free", "state"])
@pytest.mark.parametrize("hidden", [(), (8, 7)])
@pytest.mark.parametrize("normalize_obs", [False, True])
def test_compiled_acting_equals_numpy_acting(activation, log_std, hidden, normalize_obs):
    io = IOSpec(
        obs={"state": ((OBS,), "float32")},
        action_names=("a", "b", "c"),
        action_low=(-1.0,) * ACT,
        action_high=(1.0,) * ACT,
        action_units=("1",) * ACT,
        control_hz=10.0,
    )
    options = {"activation": activation, "log_std": log_std, "hidden": hidden, "normalize_obs": normalize_obs}
    policies = [Ppo(io, seed=0, kernel=kernel, **options)._actor for kernel in ("numpy", "numba")]
    rng = np.random.default_rng(0)
    seen = torch.from_numpy(rng.standard_normal((30, OBS)) * 3 + 1)
    obs = {"state": (rng.standard_normal((4, OBS)) * 20).astype(np.float32)}
    for policy in policies:
        policy.observe(seen)
    for deterministic in (True, False):
        one, two = (policy.act(obs, deterministic=deterministic) for policy in policies)
        np.testing.assert_allclose(two.value, one.value, atol=1e-5)
        np.testing.assert_allclose(two.extras["raw"], one.extras["raw"], atol=1e-5)
        assert (one.logp is None) == deterministic == (two.logp is None)
    np.testing.assert_allclose(np.asarray(two.logp), np.asarray(one.logp), atol=1e-5)


def test_layout_initial_weights_are_orthogonal_and_the_policy_head_is_small():
    layout = Layout(OBS, ACT, (8, 8), True)
    flat = np.empty(layout.size, np.float32)
    layout.fill(flat, np.random.default_rng(0), "tanh", -1.0)
    views = layout.views(flat)
    square = views["weight1"][0]
    np.testing.assert_allclose(square.T @ square, 2.0 * np.eye(8), atol=1e-5)  # gain sqrt(2)
    assert np.abs(views["actor_weight"]).max() <= 0.01
    assert views["actor_bias"].tolist() == [0.0] * ACT + [-1.0] * ACT
