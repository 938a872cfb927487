"""Parts of the device learners: projection, twin targets, towers, reward scale, steps."""

import numpy as np
import pytest
import torch

from robot_rl.policies.nets.device_critic import DeviceCritic, DeviceCriticOptions, DeviceRewardScale, descend
from robot_rl.policies.nets.device_mlp import Tower, freeze, leaves
from robot_rl.policies.nets.device_step import DeviceMetrics, Repeated, resolve_accelerate, resolve_amp
from robot_rl.policies.nets.flat import FlatParams
from robot_rl.policies.nets.mlp import MlpShape
from robot_rl.policies.nets.value_heads import RewardScale, project


def critic(**options):
    return DeviceCritic(
        DeviceCriticOptions(critic_hidden=(8,), **options), 2, 1, generator=torch.Generator().manual_seed(0)
    )


def test_projection_by_hand():
    # support 0, 1, 2; mass .5 at 0.25 -> .375 and .125 on 0 and 1; .3 at 2 stays; .2 at 5 is clamped to 2
    out = project(torch.tensor([[0.25, 2.0, 5.0]]), torch.tensor([[0.5, 0.3, 0.2]]), 0.0, 2.0)
    torch.testing.assert_close(out, torch.tensor([[0.375, 0.125, 0.5]]))


def test_projection_keeps_mass_and_mean_and_equals_a_loop():
    rng = np.random.default_rng(0)
    low, high, m = -3.0, 5.0, 17
    atoms = rng.uniform(low, high, (6, m))
    p = rng.dirichlet(np.ones(m), 6)
    expected = np.zeros((6, m))
    delta = (high - low) / (m - 1)
    for i in range(6):
        for j in range(m):
            b = (atoms[i, j] - low) / delta
            lower = min(int(b), m - 2)
            expected[i, lower] += p[i, j] * (1 - (b - lower))
            expected[i, lower + 1] += p[i, j] * (b - lower)
    out = project(torch.from_numpy(atoms), torch.from_numpy(p), low, high).numpy()
    np.testing.assert_allclose(out, expected, atol=1e-12)
    np.testing.assert_allclose(out.sum(1), 1.0)
    grid = np.linspace(low, high, m)
    np.testing.assert_allclose(out @ grid, (atoms * p).sum(1), atol=1e-12)


def test_twin_target_takes_the_distribution_with_the_smaller_mean_of_every_row():
    made = critic(bins=11, value_range=(-5.0, 5.0))
    feature, action = torch.randn(32, 2), torch.rand(32, 1)
    reward, discount = torch.zeros(32), torch.ones(32)
    logits = made.tower(freeze(made.target), torch.cat([feature, action], 1))
    means = logits.softmax(-1) @ made.atoms
    out = made.target_distribution(feature, action, reward, discount)
    torch.testing.assert_close(out @ made.atoms, means.amin(0))  # reward 0, discount 1: nothing moves
    both = critic(bins=11, value_range=(-5.0, 5.0), reduce="mean").target_distribution(
        feature, action, reward, discount
    )
    torch.testing.assert_close(both @ made.atoms, means.mean(0))
    assert 0 < (means[0] < means[1]).sum() < 32  # both members win somewhere


@pytest.mark.parametrize("head", ["c51", "hlgauss"])
def test_target_is_reward_plus_discounted_value_minus_cost(head):
    made = critic(value_head=head, bins=201, value_range=(-5.0, 5.0), reduce="mean")
    feature, action = torch.randn(16, 2), torch.rand(16, 1)
    value = (made.tower(freeze(made.target), torch.cat([feature, action], 1)).softmax(-1) @ made.atoms).mean(0)
    reward, discount = torch.linspace(-1, 1, 16), torch.tensor([0.0, 0.5] * 8)
    cost = torch.full((16,), 0.4)
    out = made.target_distribution(feature, action, reward, discount, cost)
    # discount 0 (a true end): neither value nor cost of what follows
    torch.testing.assert_close(out @ made.atoms, reward + discount * (value - cost), atol=2e-3, rtol=0)


def test_tower_equals_torch_modules_and_backward_fills_the_flat_gradient():
    shape = MlpShape(2, 3, (5, 4), 6, True, "x.")
    params = FlatParams(shape.shapes(), dtype=torch.float64)
    shape.initialise(params, torch.Generator().manual_seed(0))
    tower, x = Tower(shape, "silu"), torch.randn(7, 3, dtype=torch.float64)
    view = leaves(params)
    out = tower(view, x)
    for e in range(2):
        h = x
        for i, width in enumerate((5, 4)):
            h = h @ params.view[f"x.weight{i}"][e] + params.view[f"x.bias{i}"][e]
            h = torch.nn.functional.silu(torch.nn.functional.layer_norm(h, (width,)))
        torch.testing.assert_close(out[e], h @ params.view["x.weight2"][e] + params.view["x.bias2"][e])
    out.square().sum().backward()
    assert params.grad_view["x.weight0"].abs().sum() > 0
    before = params.flat.clone()
    descend(params, 0.1, DeviceCriticOptions())
    assert not params.grad.any()
    # the first step of Adam moves every parameter with a gradient by the step size
    moved = (params.flat - before).abs()
    torch.testing.assert_close(moved[moved > 0], torch.full_like(moved[moved > 0], 0.1), atol=1e-3, rtol=0)


def test_weight_decay_shrinks_by_lr_times_decay_and_the_norm_of_a_gradient_is_limited():
    params = FlatParams({"a": (2,)})
    params.view["a"].fill_(1.0)
    descend(params, 0.1, DeviceCriticOptions(weight_decay=0.5))
    torch.testing.assert_close(params.view["a"], torch.full((2,), 0.95))
    params.grad_view["a"].copy_(torch.tensor([3.0, 4.0]))
    descend(params, 0.0, DeviceCriticOptions(max_grad_norm=1.0))
    torch.testing.assert_close(params.first[:2], 0.1 * torch.tensor([0.6, 0.8]))


def test_reward_scale_without_waiting_equals_the_waiting_one():
    ours, other = DeviceRewardScale(5.0, device=torch.device("cpu")), RewardScale(5.0)
    generator = torch.Generator().manual_seed(0)
    for _ in range(3):
        reward = torch.randn(32, generator=generator)
        discount = torch.full((32,), 0.9)
        ours.observe(reward, discount, torch.ones(32))
        other.observe(reward, discount)
    assert float(ours.scale) == pytest.approx(other.scale, rel=1e-6)
    before = ours.scale.clone()
    ours.observe(torch.full((4,), 1e6), torch.ones(4), torch.zeros(4))  # rows of weight 0 do not count
    assert torch.equal(ours.scale, before)


def test_options_that_cannot_be_are_refused():
    cpu = torch.device("cpu")
    assert resolve_accelerate("auto", cpu) == (False, False)
    assert resolve_accelerate("auto", torch.device("cuda")) == (True, True)
    assert resolve_amp("auto", torch.device("cuda"))
    assert not resolve_amp("auto", cpu)
    with pytest.raises(ValueError, match="captures CUDA graphs"):
        resolve_accelerate("graph", cpu)
    with pytest.raises(ValueError, match="expected one of auto, eager"):
        resolve_accelerate("fast", cpu)
    with pytest.raises(ValueError, match="the first is not below the second"):
        critic(value_range=(1.0, 1.0))


def test_repeated_step_runs_once_per_call():
    calls = []
    step = Repeated(lambda: calls.append(1), graph=False)
    step()
    step()
    assert len(calls) == 2


def test_metrics_are_means_since_the_last_reading_and_keep_what_was_not_added():
    metrics = DeviceMetrics(("a", "b"), torch.device("cpu"))
    metrics.add(a=torch.tensor(1.0), b=torch.tensor(7.0))
    metrics.add(a=torch.tensor(3.0))
    assert metrics.read("x", 1) == {"train/a": 2.0, "train/b": 7.0}
    metrics.add(a=torch.tensor(5.0))
    assert metrics.read("x", 2) == {"train/a": 5.0, "train/b": 7.0}
    metrics.add(a=torch.tensor(float("nan")))
    with pytest.raises(FloatingPointError, match="train/a not finite"):
        metrics.read("FastSAC", 3)
