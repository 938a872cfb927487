import logging

import numpy as np
import pytest
import torch

from robot_rl.advantage import reverse_linear_scan, scan
from robot_rl.advantage.backends import available, backend, select, torch_scan, use_backend

BACKENDS = [name for name in ("numpy", "numba", "torch") if name in available()]


@np.errstate(invalid="ignore")
def reference(x, a):
    """y_t = x_t + a_t y_{t+1} row by row in double."""
    y = np.array(x, np.float64)
    for t in range(len(y) - 2, -1, -1):
        y[t] += np.where(a[t] == 0, 0.0, np.asarray(a[t], np.float64) * y[t + 1])
    return y


def data(shape, dtype, seed=0, cuts=0.1):
    rng = np.random.default_rng(seed)
    a = rng.uniform(0, 1, shape) * (rng.random(shape) > cuts)
    return rng.standard_normal(shape).astype(dtype), a.astype(dtype)


SHAPES = [(1,), (2,), (95,), (97,), (1000,), (64 * 97 + 5,), (1, 1), (5, 3), (33, 4), (200, 7), (50, 2500), (700, 1)]
SHAPES += [(9, 3, 2), (4001, 3)]


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", SHAPES)
def test_scan_of_any_shape_equals_the_row_by_row_recursion(name, dtype, shape):
    x, a = data(shape, dtype)
    before = x.copy(), a.copy()
    with use_backend(name):
        y = reverse_linear_scan(x, a)
    assert y.dtype == dtype
    np.testing.assert_allclose(y, reference(x, a), rtol=1e-5, atol=2e-5 if dtype == np.float32 else 1e-11)
    np.testing.assert_array_equal(x, before[0])
    np.testing.assert_array_equal(a, before[1])


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("shape", [(300,), (300, 4), (20, 2100)])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_scan_nan_spoils_only_rows_that_depend_on_it(name, shape, bad):
    x, a = data(shape, np.float64, cuts=0.2)
    column = (slice(None),) + (1,) * (len(shape) - 1)
    t = shape[0] // 2
    x[(t, *column[1:])] = bad
    expected = reference(x, a)
    with use_backend(name):
        y = reverse_linear_scan(x, a)
    np.testing.assert_array_equal(np.isfinite(y), np.isfinite(expected))
    fine = np.isfinite(expected)
    np.testing.assert_allclose(y[fine], expected[fine], rtol=1e-9)
    assert fine.any()
    assert not fine.all()


@pytest.mark.parametrize("name", BACKENDS)
def test_scan_last_coefficient_is_ignored_and_nan_there_harmless(name):
    x, a = data((40,), np.float64)
    a[-1] = 5.0
    with use_backend(name):
        assert reverse_linear_scan(x, a)[-1] == x[-1]


def test_scan_empty_input_gives_empty_output():
    for name in BACKENDS:
        with use_backend(name):
            assert reverse_linear_scan(np.zeros(0), np.zeros(0)).shape == (0,)
            assert reverse_linear_scan(np.zeros((0, 3)), np.zeros((0, 3))).shape == (0, 3)
            assert reverse_linear_scan(np.zeros((3, 0)), np.zeros((3, 0))).shape == (3, 0)


def test_scan_coefficients_broadcast_over_trailing_axes():
    x, _ = data((30, 4, 2), np.float64)
    a = np.linspace(0, 0.9, 30 * 4).reshape(30, 4)
    np.testing.assert_allclose(reverse_linear_scan(x, a), reference(x, a[:, :, None]), rtol=1e-10)
    np.testing.assert_allclose(reverse_linear_scan(x[:, :, 0], a[:, 0]), reference(x[:, :, 0], a[:, :1]), rtol=1e-10)


def test_scan_carries_double_through_a_long_float32_sum():
    x, a = np.ones(20_000, np.float32), np.full(20_000, np.float32(0.9375))  # 15/16 is exact in binary
    exact = 16.0
    with use_backend("numpy"):
        assert abs(float(reverse_linear_scan(x, a)[0]) - exact) < 1e-6
        column = reverse_linear_scan(x[:, None], a[:, None])[0, 0]
        assert abs(float(column) - exact) < 1e-6


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: reverse_linear_scan(np.ones(3, int), np.ones(3)), "int64, expected float32 or float64"),
        (lambda: reverse_linear_scan(np.ones((3, 2)), np.ones((4, 2))), r"a has shape \(4, 2\)"),
        (lambda: scan(torch.ones(2, 3), torch.ones(5)), r"trace has shape \(5,\)"),
        (lambda: use_backend("fortran").__enter__(), "unknown advantage backend 'fortran'"),
    ],
)
def test_scan_wrong_call_says_what_is_wrong(call, words):
    with pytest.raises(ValueError, match=words):
        call()


@pytest.mark.parametrize("name", BACKENDS)
def test_dense_scan_runs_along_the_last_axis(name):
    x, a = data((6, 5, 40), np.float64)
    expected = np.moveaxis(reference(np.moveaxis(x, -1, 0), np.moveaxis(a, -1, 0)), 0, -1)
    with use_backend(name):
        np.testing.assert_allclose(scan(x, a), expected, rtol=1e-10)
        np.testing.assert_allclose(scan(torch.from_numpy(x), torch.from_numpy(a)).numpy(), expected, rtol=1e-10)
        np.testing.assert_allclose(scan(x[0, 0], a[0, 0]), expected[0, 0], rtol=1e-10)
        assert scan(np.zeros((3, 0)), np.zeros((3, 0))).shape == (3, 0)
        grown = scan(torch.from_numpy(x).requires_grad_(), torch.from_numpy(a))
        np.testing.assert_allclose(grown.detach().numpy(), expected, rtol=1e-10)


@pytest.mark.parametrize("name", BACKENDS)
def test_scan_gradient_matches_finite_differences_twice(name):
    x, a = (torch.from_numpy(y).requires_grad_() for y in data((7, 2), np.float64, cuts=0.0))
    with use_backend(name):
        assert torch.autograd.gradcheck(reverse_linear_scan, (x, a))
        assert torch.autograd.gradgradcheck(reverse_linear_scan, (x, a))


def test_scan_adjoint_is_the_forward_scan():
    x, a = (torch.from_numpy(y).requires_grad_() for y in data((30,), np.float64))
    upstream = torch.randn(30, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    y = reverse_linear_scan(x, a)
    y.backward(upstream)
    z = np.zeros(30)
    for t in range(30):
        z[t] = upstream[t] + (a.detach()[t - 1] * z[t - 1] if t else 0.0)
    assert x.grad is not None
    assert a.grad is not None
    np.testing.assert_allclose(x.grad.numpy(), z, rtol=1e-10)
    ahead = np.append(y.detach().numpy()[1:], 0.0)
    np.testing.assert_allclose(a.grad.numpy(), z * ahead, rtol=1e-10)


def test_scan_tensors_stay_tensors_and_share_memory_without_gradients():
    x, a = (torch.from_numpy(y) for y in data((30,), np.float32))
    y = reverse_linear_scan(x, a)
    assert isinstance(y, torch.Tensor)
    assert y.dtype == torch.float32
    with torch.no_grad():
        assert not reverse_linear_scan(x.clone().requires_grad_(), a).requires_grad


def test_torch_doubling_needs_no_power_of_two_length():
    for steps in (1, 2, 3, 17, 64, 65):
        x, a = data((steps, 3), np.float64)
        y = torch_scan.scan(torch.from_numpy(x), torch.from_numpy(a)).numpy()
        np.testing.assert_allclose(y, reference(x, a), rtol=1e-10)


def test_backend_choice_environment_and_block(monkeypatch, caplog):
    monkeypatch.delenv(select.VARIABLE, raising=False)
    assert backend("cpu") == available()[0]
    monkeypatch.setenv(select.VARIABLE, "numpy")
    assert backend("cpu") == "numpy"
    with use_backend("torch"):
        assert backend("cpu") == "torch"
    assert backend("cuda") in ("triton", "torch")  # NumPy cannot serve the device: the automatic choice does
    monkeypatch.setenv(select.VARIABLE, "abacus")
    with pytest.raises(ValueError, match="abacus"):
        backend("cpu")
    monkeypatch.setenv(select.VARIABLE, "numpy")
    select._logged.discard("numpy")
    with caplog.at_level(logging.INFO):
        backend("cpu")
        backend("cpu")
    assert sum("numpy backend" in line for line in caplog.messages) == 1


def test_backend_missing_package_names_the_remedy(monkeypatch):
    monkeypatch.setattr(select.importlib.util, "find_spec", lambda name: None)
    select.available.cache_clear()
    assert available() == ("numpy", "torch")
    with pytest.raises(ImportError, match="pip install numba"), use_backend("numba"):
        pass
    monkeypatch.undo()
    select.available.cache_clear()
