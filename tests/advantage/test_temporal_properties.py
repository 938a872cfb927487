"""Temporal estimators against their float64 twins on random ragged batches, and the identities that join them."""

from typing import Any

import numpy as np
import pytest
import torch

from robot_rl.advantage.backends import available, use_backend
from robot_rl.advantage.gae import gae, rollout_gae
from robot_rl.advantage.hierarchy import OptionRows, hae
from robot_rl.advantage.rows import RolloutRows
from robot_rl.advantage.turns import bilevel_gae, turn_gae
from robot_rl.advantage.zoo.temporal import monte_carlo, n_step, retrace, upgo, vtrace
from tests.advantage import reference_temporal as ref
from tests.advantage.row_layout import RowLayout

BACKENDS = [name for name in ("numpy", "numba", "torch") if name in available()]


class Ragged:
    """Random episodes of random length, ended in all three ways, with NaN wherever nothing may be read."""

    def __init__(self, seed, rows=200):
        rng = np.random.default_rng(seed)
        self.rng = rng
        self.b: Any = rng.random(rows) < 0.15
        self.b[-1] = True
        self.e = self.b & (rng.random(rows) < 0.5)
        self.r, self.v, self.q, self.expected = rng.standard_normal((4, rows))
        self.nv = np.where(self.b & ~self.e, rng.standard_normal(rows), np.nan)
        self.log_ratio = 0.5 * rng.standard_normal(rows)
        self.w = np.exp(self.log_ratio)
        self.k: Any = rng.integers(1, 6, rows)
        self.turn = np.cumsum(rng.random(rows) < 0.4)
        self.g = 0.93**self.k
        ends = np.flatnonzero(self.b)
        start = np.concatenate(([0], ends[:-1] + 1))
        self.layout = RowLayout(start, ends - start + 1, rows)

    @property
    def rows(self) -> tuple[Any, Any, Any, Any, Any]:
        return self.r, self.v, self.nv, self.e, self.b


SEEDS = range(4)
TOLERANCE = {"float64": 1e-9, "float32": 1e-5}


def columns_of(c, o, **more):
    return RolloutRows(*c[:5], valid=o.pop("valid", None), **more)


ESTIMATORS = {
    "gae": (
        lambda d, *c, **o: rollout_gae(columns_of(c, o, duration=d.k), gamma=0.93, gae_lambda=0.9, **o),
        lambda d: d.rows,
    ),
    "gae_plain": (lambda d, *c, **o: rollout_gae(columns_of(c, o), gamma=0.93, gae_lambda=0.9, **o), lambda d: d.rows),
    "monte_carlo": (lambda d, *c, **o: monte_carlo(columns_of(c, o, duration=d.k), gamma=0.93, **o), lambda d: d.rows),
    "reinforce": (lambda d, *c, **o: monte_carlo(columns_of(c, o), gamma=0.93, bootstrap=False, **o), lambda d: d.rows),
    "n_step": (lambda d, *c, **o: n_step(columns_of(c, o, duration=d.k), n=3, gamma=0.93, **o), lambda d: d.rows),
    "n_ticks": (
        lambda d, *c, **o: n_step(columns_of(c, o, duration=d.k), n_ticks=7, gamma=0.93, **o),
        lambda d: d.rows,
    ),
    "vtrace": (
        lambda d, *c, **o: vtrace(
            columns_of(c, o, duration=d.k), *c[5:], gamma=0.93, trace_decay=0.9, rho_max=1.3, c_max=1.1, **o
        ),
        lambda d: (*d.rows, d.log_ratio),
    ),
    "upgo": (
        lambda d, *c, **o: upgo(columns_of(c, o, duration=d.k), *c[5:], gamma=0.93, **o),
        lambda d: (*d.rows, d.log_ratio),
    ),
    "retrace": (
        lambda d, *c, **o: retrace(columns_of(c, o, duration=d.k), *c[5:], gamma=0.93, trace_decay=0.9, **o),
        lambda d: (d.r, d.q, d.expected, d.e, d.b, d.log_ratio),
    ),
}


def twin(name, d: Ragged):
    g, ones = d.g, np.ones(len(d.r))
    if name == "gae":
        return ref.gae(*d.rows, g, 0.9 * ones)
    if name == "gae_plain":
        return ref.gae(*d.rows, 0.93 * ones, 0.9 * ones)
    if name in ("monte_carlo", "reinforce"):
        plain = name == "reinforce"
        target = ref.monte_carlo(*d.rows, 0.93 * ones if plain else g, bootstrap=not plain)
        return target - d.v, target
    if name in ("n_step", "n_ticks"):
        options = {"n": 3} if name == "n_step" else {"n_ticks": 7}
        target = ref.n_step(*d.rows, g, d.k, **options)
        return target - d.v, target
    if name == "vtrace":
        return ref.vtrace(*d.rows, g, d.w, 0.9, 1.3, 1.1, 1.0)
    if name == "upgo":
        gain = np.minimum(1.0, d.w) * (ref.upgo(*d.rows, g) - d.v)
        return gain, ref.gae(*d.rows, g, 0.95 * ones)[1]
    target = ref.retrace(d.r, d.q, d.expected, d.e, d.b, g, 0.9 * np.minimum(1.0, d.w))
    return target - d.q, target


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", list(ESTIMATORS))
def test_estimator_equals_its_float64_twin_on_ragged_batches(name, dtype, backend):
    function, columns = ESTIMATORS[name]
    for seed in SEEDS:
        d = Ragged(seed)
        narrow = [x.astype(dtype) if x.dtype.kind == "f" else x for x in columns(d)]
        if dtype == "float32":  # the twin gets the same rounded numbers: UPGO compares them
            d.r, d.v, d.nv, d.q, d.expected, d.log_ratio = (
                x.astype(dtype).astype(float) for x in (d.r, d.v, d.nv, d.q, d.expected, d.log_ratio)
            )
        before = [x.copy() for x in narrow]
        with use_backend(backend):
            results = function(d, *narrow)
        for actual, expected in zip(results, twin(name, d)):
            assert actual.dtype == dtype
            np.testing.assert_allclose(actual, expected, rtol=0, atol=TOLERANCE[dtype])
        for x, y in zip(narrow, before):
            np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("name", list(ESTIMATORS))
def test_padding_of_any_width_and_content_changes_nothing(name):
    function, columns = ESTIMATORS[name]
    d = Ragged(11)
    flat = function(d, *columns(d))
    valid = d.layout.valid.T
    k = d.k
    for width, junk in ((0, np.nan), (1, 1e30), (5, -3.0)):
        mask = np.concatenate((valid, np.zeros((width, valid.shape[1]), bool)))

        def place(x, mask=mask, junk=junk, width=width):
            y = d.layout.time_major(x)
            y = np.concatenate((y, np.zeros((width, *y.shape[1:]), y.dtype)))
            filler = (
                junk if y.dtype.kind == "f" else (1 if y.dtype.kind == "i" else np.random.default_rng(0).random() < 0.5)
            )
            return np.where(mask, y, np.asarray(filler, y.dtype))

        d.k = place(k)
        results = function(d, *(place(x) for x in columns(d)), valid=mask)
        d.k = k
        for actual, expected in zip(results, flat):
            assert (actual[~mask] == 0).all()
            np.testing.assert_allclose(d.layout.from_time_major(actual), expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", list(ESTIMATORS))
def test_layouts_agree_on_one_backend(name):
    # Equal lengths: flat, time-major, and one column at a time are the same numbers in the same order of operations.
    function, columns = ESTIMATORS[name]
    d = Ragged(3, rows=120)
    d.b = np.arange(120) % 20 == 19
    d.e = d.b & (np.arange(120) // 20 % 2 == 0)
    d.nv = np.where(d.b & ~d.e, 0.7, np.nan)
    flat = function(d, *columns(d))
    k = d.k
    d.k = k.reshape(6, 20).T
    wide = function(d, *(x.reshape(6, 20).T for x in columns(d)))
    for actual, expected in zip(wide, flat):
        np.testing.assert_allclose(actual.T.reshape(-1), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", list(ESTIMATORS))
def test_tensors_give_tensors_with_the_same_numbers_and_gradients_flow(name):
    function, columns = ESTIMATORS[name]
    d = Ragged(5)
    expected = function(d, *columns(d))
    k = d.k
    d.k = torch.from_numpy(d.k)
    plain = [torch.from_numpy(x) for x in columns(d)]
    for actual, number in zip(function(d, *plain), expected):
        np.testing.assert_allclose(actual.numpy(), number, rtol=0, atol=1e-12)
    grown = [plain[0].clone().requires_grad_(), *plain[1:]]
    results = function(d, *grown)
    for actual, number in zip(results, expected):
        np.testing.assert_allclose(actual.detach().numpy(), number, rtol=0, atol=1e-9)
    results[0].sum().backward()
    slope = grown[0].grad
    assert slope is not None
    assert torch.isfinite(slope).all()
    assert (slope != 0).any()
    d.k = k


@pytest.mark.parametrize("name", list(ESTIMATORS))
def test_permuting_episodes_permutes_results(name):
    function, columns = ESTIMATORS[name]
    d = Ragged(7)
    expected = function(d, *columns(d))
    order = np.random.default_rng(1).permutation(len(d.layout.start))
    rows = np.concatenate([d.layout.start[i] + np.arange(int(d.layout.length[i])) for i in order])
    k, d.k = d.k, d.k[rows]
    moved = function(d, *(x[rows] for x in columns(d)))
    d.k = k
    for actual, number in zip(moved, expected):
        np.testing.assert_allclose(actual, number[rows], rtol=0, atol=1e-12)


def test_splitting_an_episode_equals_cutting_the_trace_there():
    d = Ragged(13)
    inside = np.flatnonzero(~d.b)
    for t in inside[::17]:
        b, nv = d.b.copy(), d.nv.copy()
        b[t], nv[t] = True, d.v[t + 1]
        cut = np.zeros(len(b), bool)
        cut[t] = True
        split = rollout_gae(RolloutRows(d.r, d.v, nv, d.e, b), gamma=0.93, gae_lambda=0.9)
        whole = rollout_gae(RolloutRows(*d.rows), gamma=0.93, gae_lambda=0.9, cut=cut)
        np.testing.assert_allclose(split[0], whole[0], atol=1e-12)
        zero = rollout_gae(RolloutRows(d.r, d.v, nv, d.e, b), gamma=0.93, gae_lambda=0.0)
        np.testing.assert_allclose(
            zero[0], rollout_gae(RolloutRows(*d.rows), gamma=0.93, gae_lambda=0.0)[0], atol=1e-12
        )
        n = n_step(RolloutRows(d.r, d.v, nv, d.e, b), gamma=0.93, n=3)[1]
        unsplit = n_step(RolloutRows(*d.rows), gamma=0.93, n=3)[1]
        clear = np.ones(len(b), bool)
        clear[max(t - 1, 0) : t + 1] = False  # windows of 3 that would cross the cut start at t-1 and t
        np.testing.assert_allclose(n[clear], unsplit[clear], atol=1e-12)


@pytest.mark.parametrize("backend", BACKENDS)
def test_limits_of_gae(backend):
    d = Ragged(17)
    with use_backend(backend):
        advantage, target = rollout_gae(RolloutRows(*d.rows), gamma=0.93, gae_lambda=0.9)
        np.testing.assert_allclose(target, advantage + d.v, atol=1e-12)
        mc = monte_carlo(RolloutRows(*d.rows), gamma=0.93)
        np.testing.assert_allclose(rollout_gae(RolloutRows(*d.rows), gamma=0.93, gae_lambda=1.0), mc, atol=1e-9)
        for n in (200, 10_000):
            np.testing.assert_allclose(n_step(RolloutRows(*d.rows), gamma=0.93, n=n), mc, atol=1e-9)
        one = n_step(RolloutRows(*d.rows), gamma=0.93, n=1)
        np.testing.assert_allclose(rollout_gae(RolloutRows(*d.rows), gamma=0.93, gae_lambda=0.0), one, atol=1e-12)
        np.testing.assert_allclose(
            n_step(RolloutRows(*d.rows, duration=d.k), gamma=0.93, n_ticks=1)[1].shape, one[1].shape
        )
        ones = np.ones_like(d.k)
        smdp = rollout_gae(RolloutRows(*d.rows, duration=ones), gamma=0.93, gae_lambda=0.9, lambda_unit="tick")
        np.testing.assert_allclose(smdp[0], advantage, atol=1e-12)
        for gamma in (0.0, 1e-9):
            tiny = rollout_gae(RolloutRows(*d.rows), gamma=gamma, gae_lambda=0.9)
            np.testing.assert_allclose(tiny[1], d.r, atol=1e-7)
        np.testing.assert_allclose(rollout_gae(RolloutRows(*d.rows), gamma=0.93, gae_lambda=1e-9)[0], one[0], atol=1e-7)


def test_vtrace_and_retrace_on_policy_are_monte_carlo():
    d = Ragged(19)
    mc = monte_carlo(RolloutRows(*d.rows), gamma=0.93)
    v = vtrace(RolloutRows(*d.rows), np.zeros(200), gamma=0.93)
    np.testing.assert_allclose(v[1], mc[1], atol=1e-9)
    # E_pi Q(s_{t+1}) = Q(s_{t+1}, a_{t+1}) inside, the successor's value at the ends.
    expected = ref.successors(d.v, d.nv, d.e, d.b)
    q = retrace(RolloutRows(d.r, d.v, expected, d.e, d.b), np.zeros(200), gamma=0.93)
    np.testing.assert_allclose(q[1], mc[1], atol=1e-9)


def test_tree_backup_and_peng_use_their_traces():
    d = Ragged(23)
    probability = d.rng.random(200)
    tree = retrace(RolloutRows(d.r, d.q, d.expected, d.e, d.b), probability=probability, gamma=0.93, trace_decay=0.9)
    ones = np.full(200, 0.93)
    np.testing.assert_allclose(tree[1], ref.retrace(d.r, d.q, d.expected, d.e, d.b, ones, 0.9 * probability), atol=1e-9)
    peng = retrace(RolloutRows(d.r, d.q, d.expected, d.e, d.b), gamma=0.93, trace_decay=0.9, expected_q=d.v)
    target = ref.retrace(d.r, d.q, d.expected, d.e, d.b, ones, np.full(200, 0.9))
    np.testing.assert_allclose(peng[1], target, atol=1e-9)
    np.testing.assert_allclose(peng[0], target - d.v, atol=1e-9)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("steps", "gamma", "bound"), [(20_000, 0.999, 1e-4), (40_000, 0.9999, 1e-3)])
def test_long_unit_reward_return_keeps_its_digits_in_float32(backend, steps, gamma, bound):
    exact = (1 - gamma**steps) / (1 - gamma)
    ones, zeros = np.ones(steps, np.float32), np.zeros(steps, np.float32)
    end = np.arange(steps) == steps - 1
    with use_backend(backend):
        for shape in ((steps,), (steps, 1)):
            columns = [x.reshape(shape) for x in (ones, zeros, zeros, end, end)]
            assert abs(float(monte_carlo(RolloutRows(*columns), gamma=gamma)[1].reshape(-1)[0]) - exact) < bound
            assert (
                abs(float(rollout_gae(RolloutRows(*columns), gamma=gamma, gae_lambda=1.0)[1].reshape(-1)[0]) - exact)
                < bound
            )


@pytest.mark.parametrize("backend", BACKENDS)
def test_dense_gae_equals_the_rollout_form(backend):
    d = Ragged(29, rows=60)
    ahead = ref.successors(d.v, d.nv, d.e, d.b)
    discount = np.where(d.e, 0.0, 0.93)
    trace = np.where(d.b, 0.0, 0.93 * 0.9)
    with use_backend(backend):
        expected = rollout_gae(RolloutRows(*d.rows), gamma=0.93, gae_lambda=0.9)
        for columns in ((d.r, discount, d.v, np.where(d.e, np.nan, ahead), trace),):
            np.testing.assert_allclose(gae(*columns), expected, atol=1e-9)
            stacked = gae(*(np.stack((x, x)) for x in columns))
            np.testing.assert_allclose(stacked[0][1], expected[0], atol=1e-9)
            tensors = gae(*(torch.from_numpy(x) for x in columns))
            np.testing.assert_allclose(tensors[1].numpy(), expected[1], atol=1e-9)


@pytest.mark.parametrize("anchor", ["start", "end"])
@pytest.mark.parametrize("unit", ["per_turn", "per_tick"])
def test_turn_gae_equals_its_twin(anchor, unit):
    for seed in SEEDS:
        d = Ragged(seed)
        groups = ref.turn_rows(d.turn, d.b)
        extra = d.rng.standard_normal(len(groups))
        options = {"gamma": 0.95, "gae_lambda": 0.9, "inner_gamma": 0.97, "anchor": anchor, "unit": unit}
        credit = turn_gae(RolloutRows(*d.rows, duration=d.k), d.turn, turn_reward=extra, **options)
        k = d.k if unit == "per_tick" else None
        total = np.array([sum(0.97 ** d.k[rows[0] : t].sum() * d.r[t] for t in rows) for rows in groups]) + extra
        place = [rows[0 if anchor == "start" else -1] for rows in groups]
        ends = [rows[-1] for rows in groups]
        duration = np.array([d.k[rows].sum() for rows in groups]) if k is not None else np.ones(len(groups))
        expected = ref.gae(total, d.v[place], d.nv[ends], d.e[ends], d.b[ends], 0.95**duration, np.full(len(ends), 0.9))
        for u, rows in enumerate(groups):
            np.testing.assert_allclose(credit.advantage[rows], expected[0][u], atol=1e-9)
            np.testing.assert_allclose(credit.target[rows], expected[1][u], atol=1e-9)
        np.testing.assert_array_equal(np.flatnonzero(credit.weight), place)


def test_bilevel_equals_its_twin_and_one_row_turns_are_gae():
    for seed in SEEDS:
        d = Ragged(seed)
        penalty = d.rng.standard_normal(200)
        credit = bilevel_gae(
            RolloutRows(*d.rows),
            d.turn,
            gamma=0.95,
            gae_lambda=0.9,
            inner_gamma=0.99,
            inner_lambda=0.8,
            step_reward=penalty,
        )
        expected = ref.bilevel(*d.rows, d.turn, gamma=0.95, lam=0.9, inner=0.99, inner_lam=0.8, step=penalty)
        np.testing.assert_allclose(credit.advantage, expected, atol=1e-9)
        np.testing.assert_allclose(credit.target, expected + d.v, atol=1e-9)
        single = bilevel_gae(RolloutRows(*d.rows), np.arange(200), gamma=0.95, gae_lambda=0.9, inner_gamma=0.95)
        np.testing.assert_allclose(
            single.advantage, rollout_gae(RolloutRows(*d.rows), gamma=0.95, gae_lambda=0.9)[0], atol=1e-9
        )


def test_hae_equals_its_twin_and_its_two_limits():
    numbers: Any = {"gamma": 0.95, "lambda_low": 0.8, "lambda_high": 0.7}
    for seed in SEEDS:
        d = Ragged(seed)
        low, high, term, next_low = d.v, d.q, d.expected, d.nv
        next_high = np.where(d.b, d.nv + 0.3, np.nan)
        running = d.rng.random(200) < 0.5
        columns = (d.r, low, high, term, next_low, next_high, d.e, d.b, d.turn)
        credit = hae(OptionRows(*columns, running_at_cut=running), **numbers)
        expected = ref.hierarchical(*columns, running, **numbers)
        for actual, number in zip((credit.low, credit.high, credit.switch, credit.switch_target), expected):
            np.testing.assert_allclose(actual, number, atol=1e-9)
        plain = rollout_gae(RolloutRows(*d.rows), gamma=0.95, gae_lambda=0.7)
        single = hae(OptionRows(d.r, d.v, d.v, d.v, d.nv, d.nv, d.e, d.b, np.arange(200)), **numbers)
        np.testing.assert_allclose(single.high, plain[0], atol=1e-9)
        whole = hae(
            OptionRows(d.r, d.v, d.v, d.v, d.nv, d.nv, d.e, d.b, np.zeros(200, int), np.ones(200, bool)),
            **numbers,
        )
        np.testing.assert_allclose(
            whole.low, rollout_gae(RolloutRows(*d.rows), gamma=0.95, gae_lambda=0.8)[0], atol=1e-9
        )


def test_one_fragment_of_a_million_rows_needs_linear_scratch():
    import tracemalloc

    count = 1 << 20
    rng = np.random.default_rng(0)
    r, v = rng.standard_normal((2, count)).astype(np.float32)
    end = np.zeros(count, bool)
    for name in [x for x in BACKENDS if x != "torch"]:
        with use_backend(name):
            rollout_gae(RolloutRows(r[:99], v[:99], v[:99], end[:99], end[:99]))  # compile before measuring
            tracemalloc.start()
            rollout_gae(RolloutRows(r, v, v, end, end))
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        assert peak < 10 * r.nbytes
