"""Explicit gradients against autograd, bfloat16 against float32, and the fused optimiser against torch's."""
# pyright: reportOptionalSubscript=false, reportOptionalMemberAccess=false

import importlib
from importlib.util import find_spec

import pytest
import torch

from robot_rl.policies.nets.flat import FlatParams
from robot_rl.policies.nets.kernels import gemm
from robot_rl.policies.nets.kernels.batched_mlp import BatchedMlp
from robot_rl.policies.nets.kernels.gemm import affine, mask_by, resolve_precision, times_transposed, weight_grad
from robot_rl.policies.nets.kernels.half_mlp import HalfMlp
from robot_rl.policies.nets.mlp import Dropout, MlpShape, build_mlp

needs_numba = pytest.mark.skipif(not find_spec("numba"), reason="needs numba (extra `fast`)")


def network(kernel, shape, *, dtype=torch.float64, matmul="float32", seed=0):
    params = FlatParams(shape.shapes(), dtype=dtype)
    generator = torch.Generator().manual_seed(seed)
    shape.initialise(params, generator)
    with torch.no_grad():  # no bias, scale or shift may hide behind a neutral value
        params.flat.add_(torch.randn(params.flat.shape, generator=generator, dtype=dtype), alpha=0.1)
    return build_mlp(shape, params, kernel=kernel, matmul=matmul), params


@pytest.mark.parametrize("layer_norm", [False, True])
@pytest.mark.parametrize("outputs", [1, 5])
@pytest.mark.parametrize("hidden", [(7,), (8, 6), (5, 6, 7)])
@pytest.mark.parametrize("members", [None, [2, 0]])
def test_explicit_gradients_equal_autograd(layer_norm, outputs, hidden, members):
    shape = MlpShape(3, 4, hidden, outputs, layer_norm)
    explicit, own = network("explicit", shape)
    reference, theirs = network("autograd", shape)
    x = torch.randn(9, 4, dtype=torch.float64)
    out, expected = explicit.forward(x, members), reference.forward(x, members)
    torch.testing.assert_close(out, expected, rtol=1e-10, atol=1e-12)
    d = torch.randn(out.shape, dtype=torch.float64)
    d_x, d_expected = explicit.backward(d, inputs=slice(1, 4)), reference.backward(d, inputs=slice(1, 4))
    torch.testing.assert_close(d_x, d_expected, rtol=1e-9, atol=1e-11)
    for name, grad in own.grad_view.items():
        torch.testing.assert_close(grad, theirs.grad_view[name], rtol=1e-9, atol=1e-11, msg=name)


@pytest.mark.parametrize("layer_norm", [False, True])
@pytest.mark.parametrize("groups", [None, 3])
def test_explicit_gradients_equal_autograd_with_dropout(layer_norm, groups):
    shape = MlpShape(3, 4, (8, 6), 2, layer_norm)
    explicit, own = network("explicit", shape)
    reference, theirs = network("autograd", shape)
    x = torch.randn(*(() if groups is None else (groups,)), 9, 4, dtype=torch.float64)
    drops = [Dropout(0.3, torch.Generator().manual_seed(7)) for _ in "ab"]
    out, expected = explicit.forward(x, drop=drops[0]), reference.forward(x, drop=drops[1])
    torch.testing.assert_close(out, expected, rtol=1e-10, atol=1e-12)
    assert not torch.allclose(out, explicit.forward(x, drop=drops[0]))  # other units the next time
    assert torch.equal(explicit.forward(x), network("explicit", shape)[0].forward(x))  # and none without
    explicit.forward(x, drop=Dropout(0.3, torch.Generator().manual_seed(7)))
    d = torch.randn(out.shape, dtype=torch.float64)
    inputs = slice(1, 4)
    torch.testing.assert_close(explicit.backward(d, inputs=inputs), reference.backward(d, inputs=inputs))
    for name, grad in own.grad_view.items():
        torch.testing.assert_close(grad, theirs.grad_view[name], rtol=1e-9, atol=1e-11, msg=name)


@pytest.mark.parametrize("matmul", ["float32", "bf16"])
def test_dropout_leaves_the_mean_of_hidden_units(matmul):
    """One layer of units that are all 1 and summed: kept ones grow, so that the mean stays 100."""
    shape = MlpShape(1, 1, (100,), 1)
    net, params = network("explicit", shape, dtype=torch.float32, matmul=matmul)
    params.flat.zero_()
    params.view["bias0"].fill_(1.0)
    params.view["weight1"].fill_(1.0)
    net.refresh()
    out = net.forward(torch.zeros(2000, 1), drop=Dropout(0.2, torch.Generator().manual_seed(0)))[0, :, 0]
    assert out.mean().item() == pytest.approx(100.0, rel=0.01)
    assert out.std().item() == pytest.approx((100 * 0.2 / 0.8) ** 0.5, rel=0.1)  # binomial


@pytest.mark.parametrize("kernel", ["explicit", "autograd"])
def test_groups_of_rows_are_read_by_their_own_members(kernel):
    shape = MlpShape(4, 3, (7, 6), 2)
    net, params = network(kernel, shape)
    x, d = torch.randn(2, 5, 3, dtype=torch.float64), torch.randn(4, 5, 2, dtype=torch.float64)
    out = net.forward(x)
    d_x = net.backward(d, inputs=slice(0, 2))
    grad = params.grad.clone()
    for group in range(2):
        own = slice(2 * group, 2 * group + 2)
        torch.testing.assert_close(out[own], net.forward(x[group])[own])
        masked = torch.zeros_like(d)
        masked[own] = d[own]
        torch.testing.assert_close(d_x[group], net.backward(masked, inputs=slice(0, 2)))
        for name, part in params.slices.items():
            mine = grad[part].view(4, -1)[own]
            torch.testing.assert_close(mine, params.grad[part].view(4, -1)[own], msg=name)


def test_input_gradient_alone_leaves_parameter_gradients_untouched():
    net, params = network("explicit", MlpShape(2, 3, (6, 5), 1))
    net.forward(torch.randn(4, 3, dtype=torch.float64))
    params.grad.fill_(7.0)
    net.backward(torch.ones(2, 4, 1, dtype=torch.float64), weights=False, inputs=slice(None))
    assert bool((params.grad == 7.0).all())


@pytest.mark.parametrize("layer_norm", [False, True])
@pytest.mark.parametrize("batch", [1, 200])
def test_float32_and_bf16_products_stay_close_to_float64(layer_norm, batch):
    """Mean errors over draws where a batch is one row: one unit that switches weighs much in its gradient."""
    torch.manual_seed(0)
    shape, draws = MlpShape(2, 23, (256, 256), 1, layer_norm), 10 if batch == 1 else 1
    exact, exact_params = network("explicit", shape)
    nets = {kind: network("explicit", shape, dtype=torch.float32, matmul=kind) for kind in ("float32", "bf16")}
    errors = {kind: dict.fromkeys(("out", "inputs", *exact_params.grad_view), 0.0) for kind in nets}
    for net, params in nets.values():
        params.flat.copy_(exact_params.flat)
        net.refresh()
    for _ in range(draws):
        x = torch.randn(batch, 23, dtype=torch.float64)
        d = torch.randn(2, batch, 1, dtype=torch.float64)
        out = exact.forward(x)
        d_x = exact.backward(d, inputs=slice(17, 23))
        for kind, (net, params) in nets.items():
            got = net.forward(x.float())
            assert got.dtype == torch.float32
            errors[kind]["out"] += relative(got, out) / draws
            errors[kind]["inputs"] += relative(net.backward(d.float(), inputs=slice(17, 23)), d_x) / draws
            for name, grad in params.grad_view.items():
                errors[kind][name] += relative(grad, exact_params.grad_view[name]) / draws
    assert max(errors["float32"].values()) < 1e-5, errors
    assert max(errors["bf16"].values()) < 0.1, errors  # units near zero switch


def relative(a, b):
    return float((a.double() - b).norm() / b.norm())


def test_bf16_keeps_the_precision_of_observations():
    # 0.5 and 0.5 + 1e-4 are one number in bfloat16 (spacing 2^-8 = 4e-3 there): the first layer must not see that
    net, params = network("explicit", MlpShape(1, 1, (64, 64), 1), dtype=torch.float32, matmul="bf16")
    with torch.no_grad():
        params.view["weight0"].mul_(100.0)
        params.view["bias0"].copy_(-0.5 * params.view["weight0"][:, 0])
    net.refresh()
    out = net.forward(torch.tensor([[0.5], [0.5001]]))
    assert float((out[0, 0] - out[0, 1]).abs()) > 1e-5


def test_refresh_makes_bf16_copies_current():
    net, params = network("explicit", MlpShape(3, 2, (64, 64), 1), dtype=torch.float32, matmul="bf16")
    x = torch.randn(5, 2)
    before = net.forward(x)
    with torch.no_grad():
        params.view["weight1"][1].mul_(2.0)
    net.refresh()
    assert torch.equal(net.forward(x, [0]), before[:1])
    after = net.forward(x)
    assert not torch.equal(before[1], after[1])
    assert torch.equal(before[[0, 2]], after[[0, 2]])


def test_fused_adam_equals_torch_adam():
    params = FlatParams({"a": (3, 5), "b": (7,)})
    params.flat.normal_()
    plain = [torch.nn.Parameter(params.view[name].clone()) for name in ("a", "b")]
    optimiser = torch.optim.Adam(plain, lr=1e-2)
    for _ in range(5):
        for name, parameter in zip(("a", "b"), plain):
            parameter.grad = torch.randn(parameter.shape)
            params.grad_view[name].copy_(parameter.grad)
        params.adam(1e-2)
        optimiser.step()
    for name, parameter in zip(("a", "b"), plain):
        torch.testing.assert_close(params.view[name], parameter.detach())


def test_flat_params_load_of_another_size_is_refused():
    with pytest.raises(ValueError, match=r"16.*entries.*32"):
        FlatParams({"a": (20,)}).load_state_dict(FlatParams({"a": (3,)}).state_dict())


def test_twin_shares_no_memory_and_blends():
    params = FlatParams({"a": (4,)})
    params.flat.fill_(1.0)
    target = params.twin()
    params.flat.fill_(3.0)
    target.blend(params, 0.25)
    assert target.view["a"].tolist() == [1.5] * 4  # 0.75 * 1 + 0.25 * 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("size", [(3, 4, 5), (80, 96, 128)])
def test_products_equal_plain_torch(dtype, size):
    rows, wide_in, wide_out = size
    x, w, d = torch.randn(rows, wide_in), torch.randn(wide_in, wide_out), torch.randn(rows, wide_out)
    bias = torch.randn(wide_out)
    rtol, atol = (2e-2, 0.5) if dtype == torch.bfloat16 else (1e-4, 1e-4)
    low = (x.to(dtype), w.to(dtype), d.to(dtype))
    expected = torch.relu(x @ w + bias)
    torch.testing.assert_close(
        affine(low[0], low[1], bias.to(dtype), relu=True).float(), expected, rtol=rtol, atol=atol
    )
    torch.testing.assert_close(times_transposed(low[2], low[1]).float(), d @ w.T, rtol=rtol, atol=atol)
    out = torch.empty(wide_in, wide_out, dtype=torch.float64 if dtype == torch.float64 else torch.float32)
    weight_grad(low[0], low[2], out)
    torch.testing.assert_close(out.float(), x.T @ d, rtol=rtol, atol=atol)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_relu_mask_is_zero_at_zero_and_below(dtype):
    h = torch.tensor([0.0, -0.0, 1e-30, 5.0], dtype=dtype)
    d = torch.tensor([1.0, 2.0, -3.0, 4.0], dtype=dtype)
    assert mask_by(d, h).tolist() == [0.0, 0.0, -3.0, 4.0]


def test_unknown_precision_or_kernel_is_refused():
    with pytest.raises(ValueError, match="float32, bf16, auto"):
        resolve_precision("half", "cpu")
    shape = MlpShape(1, 1, (2,), 1)
    with pytest.raises(ValueError, match="auto, explicit, autograd"):
        build_mlp(shape, FlatParams(shape.shapes()), kernel="fast")
    with pytest.raises(ValueError, match="at least one hidden layer"):
        MlpShape(1, 1, (), 1)


@pytest.mark.parametrize("layer_norm", [False, True])
@pytest.mark.parametrize("outputs", [1, 5])
@pytest.mark.parametrize("members", [None, [2, 0], range(0, 4, 2)])
@pytest.mark.parametrize("groups", [None, 2])
def test_batched_gradients_equal_autograd(layer_norm, outputs, members, groups):
    shape = MlpShape(4, 4, (8, 6), outputs, layer_norm)
    reference, theirs = network("autograd", shape)
    own = FlatParams(shape.shapes(), dtype=torch.float64)
    own.flat.copy_(theirs.flat)
    batched = BatchedMlp(shape, own, matmul="float32")
    x = torch.randn(*(() if groups is None else (groups,)), 9, 4, dtype=torch.float64)
    out, expected = batched.forward(x, members), reference.forward(x, members)
    torch.testing.assert_close(out, expected, rtol=1e-10, atol=1e-12)
    d = torch.randn(out.shape, dtype=torch.float64)
    inputs = slice(1, 4)
    torch.testing.assert_close(batched.backward(d, inputs=inputs), reference.backward(d, inputs=inputs))
    for name, grad in own.grad_view.items():
        torch.testing.assert_close(grad, theirs.grad_view[name], rtol=1e-9, atol=1e-11, msg=name)
    drops = [Dropout(0.3, torch.Generator().manual_seed(7)) for _ in "ab"]
    torch.testing.assert_close(batched.forward(x, members, drops[0]), reference.forward(x, members, drops[1]))
    torch.testing.assert_close(batched.backward(d, inputs=inputs), reference.backward(d, inputs=inputs))
    for name, grad in own.grad_view.items():
        torch.testing.assert_close(grad, theirs.grad_view[name], rtol=1e-9, atol=1e-11, msg=name)


@pytest.mark.parametrize("hidden", [(7,), (8, 6), (5, 6, 7)])
@pytest.mark.parametrize("inputs", [slice(2, None), slice(0, 3)])
def test_gradients_of_a_loss_of_slopes_equal_double_autograd(hidden, inputs):
    shape = MlpShape(3, 5, hidden, 1)
    reference, theirs = network("autograd", shape)
    own = FlatParams(shape.shapes(), dtype=torch.float64)
    own.flat.copy_(theirs.flat)
    net = BatchedMlp(shape, own, matmul="float32")
    x = torch.randn(9, 5, dtype=torch.float64)
    target = torch.randn(9, dtype=torch.float64)

    wide = x.expand(3, 9, 5).clone().requires_grad_()
    q = reference.compute(wide)[..., 0]  # pyright: ignore[reportAttributeAccessIssue]
    (slope,) = torch.autograd.grad(q.sum(), wide, create_graph=True)
    (slope[..., inputs].pow(3).sum() + (q - target).square().sum()).backward()

    out = net.forward(x)[..., 0]
    got = net.slopes(inputs)
    torch.testing.assert_close(got, slope[..., inputs].detach())
    net.backward_slopes((2.0 * (out - target))[..., None], 3.0 * got.square(), inputs)
    for name, grad in own.grad_view.items():
        expected = theirs.view[name].grad
        torch.testing.assert_close(grad, expected, rtol=1e-9, atol=1e-11, msg=name)


@pytest.mark.parametrize("layer_norm", [False, True])
@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=needs_numba)])
def test_many_bf16_members_stay_close_to_float64_and_follow_the_masters(layer_norm, compiled, monkeypatch):
    torch.manual_seed(0)
    if not compiled:
        monkeypatch.setattr("robot_rl.policies.nets.mlp.find_spec", lambda name: None)
    shape = MlpShape(6, 23, (64, 64), 1, layer_norm)
    exact, exact_params = network("explicit", shape)
    net, params = network("explicit", shape, dtype=torch.float32, matmul="bf16")
    assert isinstance(net, HalfMlp if compiled else BatchedMlp)
    x, d = torch.randn(200, 23, dtype=torch.float64), torch.randn(6, 200, 1, dtype=torch.float64)
    for _ in range(2):
        params.flat.copy_(exact_params.flat)
        net.refresh()
        assert relative(net.forward(x.float()), exact.forward(x)) < 0.02
        inputs = slice(17, 23)
        assert relative(net.backward(d.float(), inputs=inputs), exact.backward(d, inputs=inputs)) < 0.1
        for name, grad in params.grad_view.items():
            assert relative(grad, exact_params.grad_view[name]) < 0.1, name
        exact_params.flat.mul_(1.5)


def test_slopes_of_normalised_layers_are_refused():
    shape = MlpShape(2, 3, (4,), 1, True)
    net = BatchedMlp(shape, FlatParams(shape.shapes()), matmul="float32")
    net.forward(torch.zeros(1, 3))
    with pytest.raises(ValueError, match="no LayerNorm"):
        net.slopes(slice(0, 1))


@needs_numba
@pytest.mark.parametrize("layer_norm", [False, True])
@pytest.mark.parametrize("outputs", [1, 5])
@pytest.mark.parametrize(("members", "groups"), [(None, None), ([2, 0], None), (range(0, 4, 2), 2)])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_compiled_bf16_steps_are_as_exact_as_torchs(layer_norm, outputs, members, groups, dropout):
    """All of it: members, groups, dropout; the masters change, and another batch size comes in between."""
    torch.manual_seed(0)
    shape = MlpShape(4, 5, (96, 64, 80), outputs, layer_norm)
    exact, exact_params = network("explicit", shape)
    stores = [FlatParams(shape.shapes()) for _ in "ab"]
    nets = [HalfMlp(shape, stores[0]), BatchedMlp(shape, stores[1], matmul="bf16")]
    group = () if groups is None else (groups,)

    def near(parts, right):
        mine, torchs = (relative(part, right) for part in parts)
        assert mine < max(2.0 * torchs, 0.1)  # units near zero switch; dropout rounds once more

    for _ in range(2):
        exact_params.flat.mul_(1.1)
        for net, params in zip(nets, stores):
            params.flat.copy_(exact_params.flat)
            net.refresh()
            net.forward(torch.randn(*group, 7, 5))
        x = torch.randn(*group, 150, 5, dtype=torch.float64)
        drops = [type_(dropout, torch.Generator().manual_seed(7)) for type_ in (Dropout, Dropout, Same)]
        out = exact.forward(x, members, drops[2] if dropout else None)
        near([net.forward(x.float(), members, drop if dropout else None) for net, drop in zip(nets, drops)], out)
        d, inputs = torch.randn(*out.shape, dtype=torch.float64), slice(2, 5)
        d_x = exact.backward(d, inputs=inputs)
        near([net.backward(d.float(), inputs=inputs) for net in nets], d_x)
        for name, grad in exact_params.grad_view.items():
            near([params.grad_view[name] for params in stores], grad)
        before = stores[0].grad.clone()
        nets[0].backward(2.0 * d.float(), weights=False, inputs=inputs)
        assert torch.equal(before, stores[0].grad)


class Same(Dropout):
    """Float32's draws in float64."""

    def factors(self, shape, members, like):
        return [factor.double() for factor in Dropout.factors(self, shape, members, like.float())]


@needs_numba
def test_compiled_rounding_is_torchs_and_nan_stays():
    steps = importlib.import_module("robot_rl.policies.nets.kernels.half_numba")
    z = torch.cat([torch.randn(7, 33) * 10.0 ** torch.randint(-30, 30, (7, 33)), torch.zeros(1, 33)])
    z[0, 0], z[0, 1], z[0, 2] = float("nan"), float("inf"), 1.00390625  # the last one is a tie
    out = torch.empty(8, 33, dtype=torch.bfloat16)
    steps.relu_first(z[None].numpy(), torch.zeros(1, 33).numpy(), out[None].view(torch.int16).numpy())
    torch.testing.assert_close(out, z.relu().bfloat16(), rtol=0, atol=0, equal_nan=True)


@needs_numba
@pytest.mark.parametrize("layer_norm", [False, True])
def test_compiled_members_that_share_a_call_compute_what_each_does_alone(layer_norm):
    """Six members of three groups: blocks span groups, and the last one is short."""
    torch.manual_seed(0)
    shape = MlpShape(6, 5, (32, 48), 1, layer_norm)
    params = FlatParams(shape.shapes())
    shape.initialise(params, torch.Generator().manual_seed(1))
    net, x, d = HalfMlp(shape, params), torch.randn(3, 20, 5), torch.randn(6, 20, 1)
    out = net.forward(x)
    d_x = net.backward(d, inputs=slice(0, 5))
    together = params.grad.clone()
    parts = []
    for e in range(6):
        torch.testing.assert_close(net.forward(x[e // 2], [e])[0], out[e])
        parts.append(net.backward(d[e : e + 1], inputs=slice(0, 5)))
    torch.testing.assert_close(torch.stack(parts).view(3, 2, 20, 5).sum(1), d_x)
    torch.testing.assert_close(params.grad, together)


@pytest.mark.parametrize("relu", [False, True])
def test_bf16_products_work_where_onednn_has_no_kernel_for_them(monkeypatch, relu):
    """On processors with AVX2 alone the fused operator refuses bfloat16: plain products stand in for it."""
    monkeypatch.setattr(gemm, "_TYPES", {torch.float32})
    generator = torch.Generator().manual_seed(0)
    x, weight = (torch.randn(shape, generator=generator) for shape in ((9, 5), (5, 7)))
    bias = torch.randn(7, generator=generator)
    out = gemm.affine(x.bfloat16(), weight.bfloat16(), bias, relu=relu)
    expected = x.bfloat16().float() @ weight.bfloat16().float() + bias
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.float(), expected.relu() if relu else expected, rtol=0.02, atol=0.02)


def test_bf16_is_warned_about_and_not_chosen_where_it_is_emulated(monkeypatch):
    for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"):
        monkeypatch.setattr(torch.cpu, name, lambda: False, raising=False)
    assert gemm.resolve_precision("auto", "cpu") == "float32"
    with pytest.warns(UserWarning, match="use matmul=float32 or auto"):
        assert gemm.resolve_precision("bf16", "cpu") == "bf16"
