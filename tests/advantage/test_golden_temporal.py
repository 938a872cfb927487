"""Golden numbers of the temporal estimators (worked by hand, six digits), in every dtype, layout, kind and backend."""

import dataclasses

import numpy as np
import pytest
import torch

from robot_rl.advantage.backends import available, use_backend
from robot_rl.advantage.gae import macro_reward, rollout_gae
from robot_rl.advantage.hierarchy import OptionRows, hae
from robot_rl.advantage.rows import RolloutRows
from robot_rl.advantage.turns import bilevel_gae, turn_gae
from robot_rl.advantage.zoo.archer import archer_advantage, archer_q_target
from robot_rl.advantage.zoo.temporal import monte_carlo, n_step, retrace, upgo, vtrace
from tests.advantage.row_layout import RowLayout

BACKENDS = [name for name in ("numpy", "numba", "torch") if name in available()]
nan = float("nan")


@pytest.fixture(params=BACKENDS, autouse=True)
def _backend(request):
    with use_backend(request.param):
        yield


@pytest.fixture(params=["float64", "float32"])
def dtype(request):
    return np.dtype(request.param)


@pytest.fixture(params=["flat", "time_major", "padded_wide"])
def run(request, dtype):
    """Call an estimator on flat columns in some layout and kind; give back flat float64 results."""

    def call(function, *columns, boundary, valid_name="valid", tensors=False, **options):
        ends = np.flatnonzero(boundary)
        start = np.concatenate(([0], ends[:-1] + 1))
        layout = RowLayout(start, ends - start + 1, len(boundary))

        def place(x):
            if not isinstance(x, np.ndarray):
                return x
            x = x.astype(dtype) if x.dtype.kind == "f" else x
            if request.param != "flat":
                padding = 7 if x.dtype.kind == "f" else (-1 if x.dtype.kind == "i" else 1)
                y = layout.time_major(x).copy()
                y[~layout.valid.T] = padding
                if request.param == "padded_wide":
                    y = np.concatenate((y, np.full((3, y.shape[1]), padding, y.dtype)))
                x = np.ascontiguousarray(y)
            return torch.from_numpy(x.copy()) if tensors else x

        if request.param != "flat" and valid_name:
            options[valid_name] = np.ones(len(boundary), bool)
        placed = {name: place(x) for name, x in options.items()}
        if valid_name in placed and request.param != "flat":
            mask = layout.valid.T
            if request.param == "padded_wide":
                mask = np.concatenate((mask, np.zeros((3, mask.shape[1]), bool)))
            placed[valid_name] = torch.from_numpy(mask.copy()) if tensors else mask
        given = [place(x) for x in columns]
        # the first columns are the record that an estimator reads, with what the options say of its rows
        record, count = (OptionRows, 9) if function is hae else (RolloutRows, 5)
        names = [field.name for field in dataclasses.fields(record)]
        rows = record(*given[:count], **{name: placed.pop(name) for name in names[count:] if name in placed})
        results = function(rows, *given[count:], **placed)
        out = []
        for y in results:
            assert isinstance(y, torch.Tensor) == tensors
            y = np.asarray(y)
            assert y.dtype == dtype
            out.append(np.asarray(layout.from_time_major(y) if request.param != "flat" else y, np.float64))
        return out

    return call


def close(actual, expected, dtype):
    tolerance = 1e-6 if dtype == np.float64 else 1e-5
    np.testing.assert_allclose(actual, expected, rtol=0, atol=tolerance)


E1 = {
    "r": np.array([1, 0, 2, 0, 1, -1.0]),
    "v": np.array([0.5, 1, 0.2, 0.4, 0.3, 0.6]),
    "nv": np.array([nan, nan, 0.7, nan, nan, nan]),
    "e": np.array([0, 0, 0, 0, 0, 1], bool),
    "b": np.array([0, 0, 1, 0, 0, 1], bool),
}
E1_ROWS = tuple(E1.values())


@pytest.mark.parametrize("tensors", [False, True])
def test_e1_gae_truncated_fragment_bootstraps_from_its_successor(run, dtype, tensors):
    advantage, target = run(rollout_gae, *E1_ROWS, boundary=E1["b"], tensors=tensors, gamma=0.9, gae_lambda=0.8)
    close(advantage, [2.069312, 0.9296, 2.43, -0.06664, 0.088, -1.6], dtype)
    close(target, [2.569312, 1.9296, 2.63, 0.33336, 0.388, -1], dtype)


def test_e1_gae_is_neither_of_the_two_common_errors(run, dtype):
    as_termination = [1.74272, 0.476, 1.8, -0.06664, 0.088, -1.6]
    own_state = [1.836032, 0.6056, 1.98, -0.06664, 0.088, -1.6]
    advantage, _ = run(rollout_gae, *E1_ROWS, boundary=E1["b"], gamma=0.9, gae_lambda=0.8)
    assert np.abs(advantage - as_termination).max() > 0.1
    assert np.abs(advantage - own_state).max() > 0.1
    # The errors are what they are called: terminating at the cut, and bootstrapping with V(s_t), give exactly them.
    wrong, _ = run(rollout_gae, *E1_ROWS[:3], E1["b"], E1["b"], boundary=E1["b"], gamma=0.9, gae_lambda=0.8)
    close(wrong, as_termination, dtype)
    rows = (E1["r"], E1["v"], np.where(E1["b"], E1["v"], nan), E1["e"], E1["b"])
    wrong, _ = run(rollout_gae, *rows, boundary=E1["b"], gamma=0.9, gae_lambda=0.8)
    close(wrong, own_state, dtype)


@pytest.mark.parametrize("tensors", [False, True])
def test_e1_monte_carlo_and_two_step(run, dtype, tensors):
    _, target = run(monte_carlo, *E1_ROWS, boundary=E1["b"], tensors=tensors, gamma=0.9)
    close(target, [3.1303, 2.367, 2.63, 0.09, 0.1, -1], dtype)
    advantage, target = run(n_step, *E1_ROWS, boundary=E1["b"], tensors=tensors, gamma=0.9, n=2)
    close(target, [1.162, 2.367, 2.63, 1.386, 0.1, -1], dtype)
    close(advantage, target - E1["v"], dtype)


E2 = (
    np.array([1, 0.5, 2]),
    np.array([0.5, 0.4, 0.3]),
    np.zeros(3),
    np.array([0, 0, 1], bool),
    np.array([0, 0, 1], bool),
)


def test_e2_smdp_gae(run, dtype):
    k = np.array([2, 1, 3])
    advantage, target = run(rollout_gae, *E2, boundary=E2[4], gamma=0.9, gae_lambda=0.95, duration=k)
    close(advantage, [2.227183, 1.8235, 1.7], dtype)
    close(target, [2.727183, 2.2235, 2], dtype)
    tick = {"gamma": 0.9, "gae_lambda": 0.95, "duration": k, "lambda_unit": "tick"}
    close(run(rollout_gae, *E2, boundary=E2[4], **tick)[0], [2.157024, 1.8235, 1.7], dtype)
    given = run(rollout_gae, *E2, boundary=E2[4], gae_lambda=0.95, discount=np.array([0.81, 0.9, 0.729]))
    close(given[0], [2.227183, 1.8235, 1.7], dtype)


def test_e2_macro_reward(dtype):
    # 0.4 + 0.9 * 0.666667 = 1
    close(macro_reward(np.array([0.4, 0.666667], dtype), 0.9), 1.0, dtype)
    close(macro_reward(torch.tensor([0.4, 0.666667, 0.0]), 0.9).numpy(), 1.0, np.float32)


E3 = {
    "r": np.array([0, 0.5, 0, 0, 1]),
    "v": np.array([0.2, 0.1, 0.6, 0.4, 0.9]),
    "nv": np.full(5, nan),
    "e": np.array([0, 0, 0, 0, 1], bool),
    "b": np.array([0, 0, 0, 0, 1], bool),
    "turn": np.array([0, 0, 1, 1, 1]),
}


@pytest.mark.parametrize("tensors", [False, True])
def test_e3_turn_gae(run, dtype, tensors):
    options = {"boundary": E3["b"], "valid_name": "", "tensors": tensors, "gamma": 0.95, "gae_lambda": 0.9}
    advantage, target, weight = run(turn_gae, *E3.values(), **options)
    close(advantage, [1.212, 1.212, 0.4, 0.4, 0.4], dtype)
    close(target, [1.412, 1.412, 1, 1, 1], dtype)
    close(weight, [1, 0, 1, 0, 0], dtype)


@pytest.mark.parametrize("tensors", [False, True])
def test_e4_bilevel_gae(run, dtype, tensors):
    options = {"boundary": E3["b"], "valid_name": "", "tensors": tensors, "gamma": 0.95, "gae_lambda": 0.9}
    advantage, target, _ = run(bilevel_gae, *E3.values(), **options)
    close(advantage, [1.10645, 1.3405, 0.331, 0.59, 0.1], dtype)
    close(target, advantage + E3["v"], dtype)


@pytest.mark.parametrize("tensors", [False, True])
def test_e5_hae(run, dtype, tensors):
    low, high = np.array([0.3, 0.4, 0.5, 0.6, 0.8]), np.array([0.25, 9, 0.45, 9, 9])
    term, nothing, ends = np.array([0.28, 0.35, 0.5, 0.55, 0.7]), np.full(5, nan), np.array([0, 0, 0, 0, 1], bool)
    columns = (np.array([0, 0.2, 0, 0, 1]), low, high, term, nothing, nothing, ends, ends, np.array([0, 0, 1, 1, 1]))
    options = {"gamma": 0.9, "lambda_low": 0.8, "lambda_high": 0.7, "tensors": tensors}
    credit = run(hae, *columns, boundary=ends, valid_name="", **options)
    close(credit[0], [0.2076, 0.205, 0.23008, 0.264, 0.2], dtype)
    close(credit[1], [0.49862, 0, 0.36, 0, 0], dtype)
    close(credit[2], [0.2645, 0.255, 0.31, 0.35, 0.3], dtype)
    close(credit[3], credit[0] + low, dtype)
    # High targets: A_hi + V_hi; segment rewards 0.18 and 0.81 and the successor's 0.45 give 0.74862 and 0.81.
    close(credit[4], [0.74862, 0, 0.81, 0, 0], dtype)
    close(credit[5], [0.5445, 0.605, 0.81, 0.9, 1], dtype)
    close(credit[6], [1, 0, 1, 0, 0], dtype)


E13 = {
    "r": np.array([1, 0, 2.0]),
    "v": np.array([0.5, 1, 0.2]),
    "nv": np.array([1, 0.2, 0.7]),
    "e": np.zeros(3, bool),
    "b": np.array([0, 0, 1], bool),
    "log_ratio": np.log([0.5, 2, 1.5]),
}


@pytest.mark.parametrize("tensors", [False, True])
def test_e13_vtrace(run, dtype, tensors):
    advantage, target = run(vtrace, *E13.values(), boundary=E13["b"], tensors=tensors, gamma=0.9)
    close(target, [1.81515, 2.367, 2.63], dtype)
    # Row 0: min(1, 0.5) (1 + 0.9 * 2.367 - 0.5) = 0.5 * 2.6303.
    close(advantage, [1.31515, 1.367, 2.43], dtype)


@pytest.mark.parametrize("tensors", [False, True])
def test_e14_upgo(run, dtype, tensors):
    advantage, _ = run(upgo, *E13.values(), boundary=E13["b"], tensors=tensors, gamma=0.9)
    close(advantage, [0.7, 1.367, 2.43], dtype)
    plain, target = run(upgo, *tuple(E13.values())[:5], boundary=E13["b"], gamma=0.9, gae_lambda=1.0)
    close(plain + E13["v"], [1.9, 2.367, 2.63], dtype)
    close(target, run(monte_carlo, *tuple(E13.values())[:5], boundary=E13["b"], gamma=0.9)[1], dtype)


@pytest.mark.parametrize("tensors", [False, True])
def test_e15_retrace(run, dtype, tensors):
    q, expected = np.array([0.6, 0.9, 0.3]), np.array([0.8, 0.25, 0.65])
    columns = (E13["r"], q, expected, E13["e"], E13["b"], E13["log_ratio"])
    _, target = run(retrace, *columns, boundary=E13["b"], tensors=tensors, gamma=0.9, trace_decay=0.9)
    close(target, [2.672439, 2.07585, 2.585], dtype)


def test_e35_archer(dtype):
    target = archer_q_target(np.full(2, 0.5, dtype), np.array([False, True]), np.array([[0.8, 0.8], [0.6, 0.6]], dtype))
    close(target, [[1.22, 0.5], [1.04, 0.5]], dtype)
    q, value = np.array([[1.2], [1.0]], dtype), np.array([[0.7], [0.9]], dtype)
    close(archer_advantage(q, value), [0.3], dtype)
    close(archer_advantage(torch.from_numpy(q), torch.from_numpy(value)).numpy(), [0.3], dtype)
    close(archer_advantage(q, value, np.array([[0.1, 0.2]], dtype)), [[0.2, 0.1]], dtype)
