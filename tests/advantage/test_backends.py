"""The kernels of the backends: compiled ones as plain Python too, wide, narrow, dense, strided and spoiled data."""

import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch

from robot_rl.advantage import rollout_gae
from robot_rl.advantage.backends import available, numpy_scan, use_backend
from robot_rl.advantage.rows import RolloutRows
from tests.advantage import reference_temporal as ref

CPU = [name for name in ("numpy", "numba") if name in available()]


def rollout(steps, width, density, seed=0, dtype: Any = np.float64) -> tuple[Any, Any, Any, Any, Any]:
    rng = np.random.default_rng(seed)
    reward, value, following = rng.standard_normal((3, steps, width)).astype(dtype)
    boundary = rng.random((steps, width)) < density
    terminated = boundary & (rng.random((steps, width)) < 0.5)
    following = np.where(boundary & ~terminated, following, np.nan)
    following[-1] = np.where(terminated[-1], np.nan, 0.7)
    return reward, value, following, terminated, boundary


def reference(columns, gamma, lam):
    out = [np.zeros(columns[0].shape), np.zeros(columns[0].shape)]
    for j in range(columns[0].shape[1]):
        one = [x[:, j] for x in columns]
        ones = np.ones(len(one[0]))
        parts = ref.gae(one[0], one[1], one[2], one[3], one[4], gamma * ones, lam * ones)
        for whole, part in zip(out, parts):
            whole[:, j] = part
    return out


@pytest.mark.parametrize("name", CPU)
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize(
    ("steps", "width", "density"),
    [(100, 2100, 0.02), (40, 2100, 0.3), (90, 8, 0.05), (90, 13, 0.6), (1, 3, 0.0), (50, 1, 0.1)],
)
def test_fused_gae_of_every_shape_equals_the_twin(name, dtype, steps, width, density):
    columns = rollout(steps, width, density, dtype=dtype)
    few = [x[:, :20] for x in columns]
    with use_backend(name):
        results = rollout_gae(RolloutRows(*columns), gamma=0.97, gae_lambda=0.9)
    for actual, expected in zip(results, reference(few, 0.97, 0.9)):
        np.testing.assert_allclose(actual[:, :20], expected, atol=1e-5 if dtype == np.float32 else 1e-10)


@pytest.mark.parametrize("name", CPU)
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("width", [2100, 8])
@pytest.mark.parametrize("steps", [1, 3, 66])
def test_fused_gae_takes_nothing_from_a_finite_successor_of_a_terminal_row(name, dtype, width, steps):
    """By hand: reward 1 and value 0.5 everywhere, successors worth 100 that must not count where rows are terminal;
    with lambda 0 the return of a step inside the episode is 1 + 0.9 * 0.5, that of a terminal one is 1, at the end of
    the rollout as in its middle; a row that is only cut earns 1 + 0.9 * 100."""
    reward, value, following = (np.full((steps, width), x, dtype) for x in (1.0, 0.5, 100.0))
    terminated, boundary = np.zeros((2, steps, width), bool)
    terminated[-1, ::2] = True
    terminated[steps // 2, 1] = boundary[steps // 2, 1] = True
    expected = np.full((steps, width), 1.45)
    expected[-1] = 91.0
    expected[-1, ::2] = 1.0
    expected[steps // 2, 1] = 1.0
    with use_backend(name):
        advantage, target = rollout_gae(
            RolloutRows(reward, value, following, terminated, boundary), gamma=0.9, gae_lambda=0.0
        )
    np.testing.assert_allclose(target, expected, rtol=1e-6)
    np.testing.assert_allclose(advantage, expected - 0.5, rtol=1e-6)


@pytest.mark.parametrize("name", CPU)
@pytest.mark.parametrize("width", [2100, 8])
def test_fused_gae_a_nan_reward_stays_in_its_episode(name, width):
    columns = rollout(40, width, 0.1)
    columns[0][20, 3] = np.nan
    with use_backend(name):
        advantage, target = rollout_gae(RolloutRows(*columns), gamma=0.97, gae_lambda=0.9)
    expected = reference([x[:, :8] for x in columns], 0.97, 0.9)
    np.testing.assert_array_equal(np.isnan(advantage[:, :8]), np.isnan(expected[0]))
    np.testing.assert_allclose(target[:, :8], expected[1], atol=1e-9)
    assert np.isnan(advantage).any()


@pytest.mark.parametrize("name", [*CPU, "torch"])
def test_fused_gae_writes_to_given_arrays(name):
    columns = rollout(30, 6, 0.1)
    expected = rollout_gae(RolloutRows(*columns))
    out = (np.zeros((30, 6)), np.zeros((30, 6)))
    strided = (np.zeros((6, 30)).T, np.zeros((6, 30)).T)
    tensors = (torch.zeros(30, 6, dtype=torch.float64), torch.zeros(30, 6, dtype=torch.float64))
    with use_backend(name):
        assert np.shares_memory(rollout_gae(RolloutRows(*columns), out=out)[0], out[0])
        rollout_gae(RolloutRows(*columns), out=strided)
        rollout_gae(RolloutRows(*(torch.from_numpy(x) for x in columns)), out=tensors)
        with pytest.raises(ValueError, match=r"out\[0\] has shape \(3,\)"):
            rollout_gae(RolloutRows(*columns), out=(np.zeros(3), np.zeros(3)))
    for i in range(2):
        for place in (out, strided, tensors):
            np.testing.assert_allclose(np.asarray(place[i]), expected[i], atol=1e-12)


@pytest.mark.parametrize("name", CPU)
def test_fused_gae_takes_strided_mixed_and_integer_inputs(name):
    columns = rollout(30, 6, 0.1)
    expected = rollout_gae(RolloutRows(*columns))
    strided = [np.asfortranarray(x) for x in columns]
    numbers = [columns[0], columns[1].astype(np.float32), *columns[2:3], *(x.astype(np.int8) for x in columns[3:])]
    with use_backend(name):
        np.testing.assert_allclose(rollout_gae(RolloutRows(*strided))[0], expected[0], atol=1e-12)
        np.testing.assert_allclose(rollout_gae(RolloutRows(*numbers))[0], expected[0], atol=1e-5)
        cube = [x.reshape(30, 3, 2) for x in columns]
        np.testing.assert_allclose(rollout_gae(RolloutRows(*cube))[0].reshape(30, 6), expected[0], atol=1e-12)
        nothing = [x[:0] for x in columns]
        assert rollout_gae(RolloutRows(*nothing))[0].shape == (0, 6)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"gamma": 1.1}, "gamma is 1.1, expected a number in"),
        ({"gae_lambda": -0.1}, "gae_lambda is -0.1"),
        ({"lambda_unit": "hour"}, "lambda_unit is 'hour'"),
        ({"cut": np.ones(3, bool)}, r"cut has shape \(3,\), expected \(30, 6\)"),
    ],
)
def test_fused_gae_wrong_call_is_refused(changes, words):
    with pytest.raises(ValueError, match=words):
        rollout_gae(RolloutRows(*rollout(30, 6, 0.1)), **changes)


def test_rollout_rows_column_of_another_shape_is_refused():
    with pytest.raises(ValueError, match=r"duration has shape \(3,\), expected \(30, 6\)"):
        rollout_gae(RolloutRows(*rollout(30, 6, 0.1), duration=np.ones(3, int)))


def test_fused_gae_half_precision_is_refused():
    columns = rollout(4, 2, 0.1)
    with pytest.raises(ValueError, match="float16, expected float32 or float64"):
        rollout_gae(RolloutRows(columns[0].astype(np.float16), *columns[1:]))


@pytest.mark.skipif("numba" not in available(), reason="needs numba (pip install numba)")
def test_compiled_kernels_are_the_python_they_are_written_in():
    from robot_rl.advantage.backends import numba_scan

    for width in (8, 5):
        columns = rollout(20, width, 0.2)
        compiled = numba_scan.gae(*columns, 0.97, 0.9)
        out = (np.zeros((20, width)), np.zeros((20, width)))
        word = np.uint64 if width == 8 else np.uint8
        ends, done = columns[4].view(word), columns[3].view(word)
        gae_rows: Any = numba_scan._gae_rows
        gae_flat: Any = numba_scan._gae_flat
        gae_rows.py_func(*columns[:4], ends, done, 0.97, 0.97 * 0.9, *out)
        for actual, expected in zip(out, compiled):
            np.testing.assert_allclose(actual, expected, atol=1e-12)
        x, a = columns[0], np.where(columns[4], 0.0, 0.9)
        y = np.zeros_like(x)
        numba_scan._scan_rows.py_func(x, a, y)
        np.testing.assert_allclose(y, numpy_scan.scan(x, a), atol=1e-12)
        for j in range(width):
            line, flat = np.zeros(20), [np.ascontiguousarray(c[:, j]) for c in columns]
            numba_scan._scan_flat.py_func(x[:, j], a[:, j], line)
            np.testing.assert_allclose(line, y[:, j], atol=1e-12)
            one = (np.zeros(20), np.zeros(20))
            gae_flat.py_func(*(*flat, 0.97, 0.97 * 0.9, *one))
            np.testing.assert_allclose(one[0], compiled[0][:, j], atol=1e-12)


@pytest.mark.skipif("triton" not in available(), reason="needs triton (pip install triton)")
def test_triton_kernel_in_the_interpreter():
    code = (
        "import torch\n"
        "from robot_rl.advantage.backends import torch_scan, triton_scan\n"
        "x, a = torch.randn(20, 1030), torch.rand(20, 1030)\n"
        "a[7] = 0; x[9, 3] = float('nan')\n"
        "y, z = triton_scan.scan(x, a), torch_scan.scan(x.double(), a.double())\n"
        "assert torch.allclose(y.double(), z, atol=1e-5, equal_nan=True)\n"
        "assert torch.equal(triton_scan.scan(x[:, 0], a[:, 0]), torch_scan.scan(x[:, 0], a[:, 0]))\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "TRITON_INTERPRET": "1"})


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_tensors_stay_on_their_device():
    for width in (4, 2048):
        columns = rollout(40, width, 0.1)
        expected = rollout_gae(RolloutRows(*columns, duration=np.full((40, width), 2)))
        device = [torch.from_numpy(x).cuda() for x in columns]
        results = rollout_gae(RolloutRows(*device, duration=torch.full((40, width), 2, device="cuda")))
        for actual, number in zip(results, expected):
            assert actual.is_cuda
            np.testing.assert_allclose(actual.cpu().numpy(), number, atol=1e-9)


def test_numba_compiles_where_nothing_can_be_kept_on_disk() -> None:
    pytest.importorskip("numba")
    code = (
        "import numpy as np; from numba.core import caching; caching.CacheImpl._locator_classes = []\n"
        "from robot_rl.advantage.backends import numba_loss, numba_scan as scan\n"
        "y = np.zeros(3); scan._scan_flat(np.ones(3), np.full(3, 0.5), y); print(y.tolist())"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert out.stdout.strip() == "[1.75, 1.5, 1.0]", out.stderr
