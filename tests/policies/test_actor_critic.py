"""The actor and critic's written-out gradients, fed by the core's loss, against plain torch; Adam against torch's."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
import torch

from robot_rl.advantage import ClipRange, FusedOptions, fused_policy_loss, policy_loss, use_backend
from robot_rl.policies.nets.actor_critic import (
    ActorCriticLayout,
    Adam,
    build_actor_critic,
    gaussian_logp,
    torch_outputs,
)
from robot_rl.policies.online.ppo import Ppo, PpoOptions
from robot_rl.types import IOSpec

OBS, ACT, ROWS = 5, 3, 16
NUMBA = pytest.mark.skipif(not find_spec("numba"), reason="needs numba (extra `fast`)")
BACKENDS = ["numpy", pytest.param("numba", marks=NUMBA)]


def problem(hidden=(8, 7), state_std=False, seed=0, spread=0.3, more=0) -> Any:
    rng = np.random.default_rng(seed)
    layout = ActorCriticLayout(OBS, ACT, hidden, state_std, more)
    params = (rng.standard_normal(layout.size) * spread).astype(np.float32)

    def draw(*shape):
        return rng.standard_normal(shape).astype(np.float32)

    names = ("obs", "action", "logp", "advantage", "target", "value")
    columns = (draw(ROWS, OBS + more), draw(ROWS, ACT), draw(ROWS) - 4.0, draw(ROWS), draw(ROWS), draw(ROWS) * 0.3)
    return layout, params, dict(zip(names, columns))


def gradient(layout, params, batch, activation, options, explicit=True) -> Any:
    """Of the fused loss, handed to the network: (P,) gradient, log-ratios and values."""
    net: Any = build_actor_critic(layout, torch.from_numpy(params), activation, explicit=explicit)
    batch = batch if explicit else {name: torch.from_numpy(x) for name, x in batch.items()}
    outputs = net(batch["obs"])
    _, gradients, log_ratio = fused_policy_loss(outputs, batch, options)
    net.backward_from(outputs, gradients)
    values = outputs["value"] if explicit else outputs["value"].detach().numpy()
    return net.grad.numpy(), np.asarray(log_ratio), values


def reference(layout, params, batch, activation, options):
    """The same in double precision: `policy_loss`, a squared error and an entropy under autograd."""
    flat = torch.from_numpy(params.copy()).double().requires_grad_()
    b = {name: torch.from_numpy(x).double() for name, x in batch.items()}
    outputs = torch_outputs(layout.views(flat), layout, b["obs"], activation)
    log_std = outputs["log_std"].clamp(-5.0, 2.0).expand_as(outputs["mean"])
    logp = gaussian_logp(b["action"], outputs["mean"], log_std)
    error = (outputs["value"] - b["target"]).square()
    if options.value_clip is not None:
        near = b["value"] + (outputs["value"] - b["value"]).clamp(-options.value_clip, options.value_clip)
        error = torch.maximum(error, (near - b["target"]).square())
    policy = policy_loss(logp, b["logp"], b["advantage"], clip=ClipRange(options.clip, dual=options.dual_clip))
    (policy + options.value_coef * error.mean() - options.entropy_coef * log_std.sum(-1).mean()).backward()
    assert flat.grad is not None
    return flat.grad.numpy(), (logp - b["logp"]).clamp(-20.0, 20.0).detach().numpy(), outputs["value"].detach().numpy()


@pytest.mark.parametrize("activation", ["tanh", "relu", "elu"])
@pytest.mark.parametrize("state_std", [False, True])
@pytest.mark.parametrize(("value_clip", "dual_clip"), [(None, None), (0.2, 1.5)])
@pytest.mark.parametrize("hidden", [(), (8,), (8, 7)])
@pytest.mark.parametrize("backend", [*BACKENDS, "autograd"])
def test_gradient_equals_that_of_the_plain_loss(backend, activation, state_std, value_clip, dual_clip, hidden):
    layout, params, batch = problem(hidden, state_std)
    options = FusedOptions(value_clip=value_clip, dual_clip=dual_clip, value_coef=0.7, entropy_coef=0.01)
    expected = reference(layout, params, batch, activation, options)
    with use_backend("auto" if backend == "autograd" else backend):
        found = gradient(layout, params, batch, activation, options, backend != "autograd")
    scale = np.abs(expected[0]).max()
    assert scale > 1e-3
    np.testing.assert_allclose(found[0], expected[0], atol=1e-6 * max(scale, 1.0) * 4)
    np.testing.assert_allclose(found[1], expected[1], atol=1e-5)
    np.testing.assert_allclose(found[2], expected[2], atol=1e-5)


def test_one_row_and_changing_batch_sizes():
    layout, params, batch = problem()
    net: Any = build_actor_critic(layout, torch.from_numpy(params), "tanh", explicit=True)
    for count in (ROWS, 1, ROWS, 3):
        part = {name: x[:count] for name, x in batch.items()}
        outputs = net(part["obs"])
        net.backward_from(outputs, fused_policy_loss(outputs, part).gradients)
        np.testing.assert_allclose(net.grad, reference(layout, params, part, "tanh", FusedOptions())[0], atol=2e-5)


def test_outputs_of_an_earlier_call_are_refused():
    layout, params, batch = problem()
    net: Any = build_actor_critic(layout, torch.from_numpy(params), "tanh", explicit=True)
    outputs = net(batch["obs"])
    found = fused_policy_loss(outputs, batch).gradients
    net(batch["obs"][:3])
    with pytest.raises(RuntimeError, match="last call"):
        net.backward_from(outputs, found)


@pytest.mark.parametrize("backend", BACKENDS)
def test_clipped_rows_give_the_actor_no_gradient(backend):
    layout, params, batch = problem()
    batch["logp"] = np.full(ROWS, -60.0, np.float32)  # every ratio far above 1.2 ...
    batch["advantage"] = np.ones(ROWS, np.float32)  # ... where a positive advantage must not push further
    with use_backend(backend):
        views = layout.views(gradient(layout, params, batch, "tanh", FusedOptions())[0])
    assert not views["actor_weight"].any()
    assert not views["weight0"][0].any()
    assert not views["log_std"].any()
    assert views["critic_weight"].any()
    assert views["weight0"][1].any()


@pytest.mark.parametrize("backend", BACKENDS)
def test_value_clip_stops_the_critic_outside_the_limit(backend):
    layout, params, batch = problem()

    def critic():
        with use_backend(backend):
            grad, _, value = gradient(layout, params, batch, "tanh", FusedOptions(value_clip=0.1))
        return layout.views(grad)["critic_weight"], value

    value = critic()[1]
    # Values moved from 0.5 below the estimate towards a target far above: the clipped error is larger, so no gradient.
    batch["value"], batch["target"] = value - 0.5, value + 3.0
    assert not critic()[0].any()
    # The same move away from the target keeps its gradient.
    batch["target"] = value - 3.0
    assert critic()[0].any()


@pytest.mark.parametrize("backend", BACKENDS)
def test_adam_with_clipping_equals_torch_and_leaves_out_what_is_not_finite(backend):
    rng = np.random.default_rng(0)
    start = torch.from_numpy(rng.standard_normal(50).astype(np.float32))
    ours, theirs = start.clone(), torch.nn.Parameter(start.clone())
    with use_backend(backend):
        adam = Adam(ours, 1e-2, 2.0)
    peer = torch.optim.Adam([theirs], 1e-2, eps=1e-5)
    for i in range(20):
        grad = torch.from_numpy(rng.standard_normal(50).astype(np.float32)) * (0.1 if i % 2 else 3.0)
        norm = float(grad.norm())
        theirs.grad = grad.clone()
        torch.nn.utils.clip_grad_norm_([theirs], 2.0)
        assert float(adam.step(grad)) == pytest.approx(norm, rel=1e-5)
        peer.step()
    torch.testing.assert_close(ours, theirs.detach(), atol=1e-6, rtol=1e-5)
    for wrong in (np.nan, np.inf):
        before = ours.clone(), adam.state_dict()["first"]
        assert not np.isfinite(float(adam.step(torch.full((50,), wrong))))
        assert torch.equal(ours, before[0])
        assert torch.equal(adam.state_dict()["first"], before[1])


@pytest.mark.parametrize("hidden", [(8,), (8, 7)])
@pytest.mark.parametrize("backend", [*BACKENDS, "autograd"])
def test_a_critic_that_reads_more_has_the_gradient_of_plain_layers(backend, hidden):
    """Against the two networks written out: the actor of the first columns, the critic of all."""
    layout, params, batch = problem(hidden, more=2)
    options = FusedOptions(value_coef=0.7, entropy_coef=0.01)
    flat = torch.from_numpy(params.copy()).double().requires_grad_()
    v, x = layout.views(flat), torch.from_numpy(batch["obs"]).double()
    actor = torch.tanh(x[:, :OBS] @ v["weight0"][0] + v["bias0"][0])
    critic = torch.tanh(x @ torch.cat([v["weight0"][1], v["critic_more"]]) + v["bias0"][1])
    for i in range(1, len(hidden)):
        actor = torch.tanh(actor @ v[f"weight{i}"][0] + v[f"bias{i}"][0])
        critic = torch.tanh(critic @ v[f"weight{i}"][1] + v[f"bias{i}"][1])
    mean, value = actor @ v["actor_weight"] + v["actor_bias"], critic @ v["critic_weight"] + v["critic_bias"]
    b = {name: torch.from_numpy(column).double() for name, column in batch.items()}
    policy = policy_loss(gaussian_logp(b["action"], mean, v["log_std"]), b["logp"], b["advantage"], clip=ClipRange(0.2))
    (policy + 0.7 * (value - b["target"]).square().mean() - 0.01 * v["log_std"].sum()).backward()
    with use_backend("auto" if backend == "autograd" else backend):
        found, _, values = gradient(layout, params, batch, "tanh", options, backend != "autograd")
    np.testing.assert_allclose(values, value.detach(), atol=1e-5)
    assert flat.grad is not None
    np.testing.assert_allclose(found, flat.grad, atol=1e-5)
    assert np.abs(layout.views(found)["critic_more"]).max() > 1e-3


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
    options = PpoOptions.model_validate(
        {"activation": activation, "log_std": log_std, "hidden": hidden, "normalize_obs": normalize_obs}
    )
    policies = []
    for name in ("numpy", "numba"):
        with use_backend(name):
            policies.append(Ppo(options, io).policy)
    rng = np.random.default_rng(0)
    seen = torch.from_numpy(rng.standard_normal((30, OBS)) * 3 + 1)
    obs = {"state": (rng.standard_normal((4, OBS)) * 20).astype(np.float32)}
    for policy in policies:
        policy.observe({"state": seen})
    for deterministic in (True, False):
        one, two = (policy.act(obs, deterministic=deterministic) for policy in policies)
        np.testing.assert_allclose(two.value, one.value, atol=1e-5)
        np.testing.assert_allclose(two.extras["raw"], one.extras["raw"], atol=1e-5)
        assert (one.logp is None) == deterministic == (two.logp is None)
    np.testing.assert_allclose(np.asarray(two.logp), np.asarray(one.logp), atol=1e-5)


def test_layout_initial_weights_are_orthogonal_and_the_policy_head_is_small():
    layout = ActorCriticLayout(OBS, ACT, (8, 8), True)
    flat = np.empty(layout.size, np.float32)
    layout.fill(flat, np.random.default_rng(0), "tanh", -1.0)
    views = layout.views(flat)
    square = views["weight1"][0]
    np.testing.assert_allclose(square.T @ square, 2.0 * np.eye(8), atol=1e-5)  # gain sqrt(2)
    assert np.abs(views["actor_weight"]).max() <= 0.01
    assert views["actor_bias"].tolist() == [0.0] * ACT + [-1.0] * ACT
