"""Segment statistics and dense ids against plain loops."""

import numpy as np
import pytest
import torch

from robot_rl.advantage import kinds, segments
from tests.advantage.ragged import both

close = np.testing.assert_allclose


@pytest.fixture
def rows():
    rng = np.random.default_rng(0)
    ids = rng.integers(0, 6, 60)
    ids[ids == 4] = 3  # cell 4 is empty
    x = rng.normal(size=60)
    mask = rng.random(60) < 0.6
    x[~mask & (rng.random(60) < 0.5)] = np.nan  # values below the mask may be anything
    return x, ids, mask, rng.random(60)


def members(x, ids, mask, cell):
    return [x[i] for i in range(len(x)) if mask[i] and ids[i] == cell]


def test_statistics_equal_plain_loops(rows):
    x, ids, mask, weight = rows
    for cell in range(6):
        mine = members(x, ids, mask, cell)
        w = members(weight, ids, mask, cell)
        empty = not mine
        values = {
            "sum": (both(lambda *a: segments.seg_sum(a[0], a[1], 6, mask=a[2]), x, ids, mask), sum(mine)),
            "weighted": (
                both(lambda *a: segments.seg_sum(a[0], a[1], 6, mask=a[2], weight=a[3]), x, ids, mask, weight),
                sum(a * b for a, b in zip(mine, w)),
            ),
            "count": (both(lambda *a: segments.seg_count(a[0], 6, mask=a[1]), ids, mask), len(mine)),
            "count_weight": (
                both(lambda *a: segments.seg_count(a[0], 6, mask=a[1], weight=a[2]), ids, mask, weight),
                sum(w),
            ),
            "mean": (
                both(lambda *a: segments.seg_mean(a[0], a[1], 6, mask=a[2]), x, ids, mask),
                np.nan if empty else np.mean(mine),
            ),
            "var": (
                both(lambda *a: segments.seg_var(a[0], a[1], 6, mask=a[2]), x, ids, mask),
                np.var(mine, ddof=1) if len(mine) > 1 else np.nan,
            ),
            "var0": (
                both(lambda *a: segments.seg_var(a[0], a[1], 6, mask=a[2], ddof=0), x, ids, mask),
                np.nan if empty else np.var(mine),
            ),
            "max": (
                both(lambda *a: segments.seg_max(a[0], a[1], 6, mask=a[2]), x, ids, mask),
                -np.inf if empty else max(mine),
            ),
            "first": (
                both(lambda *a: segments.seg_first(a[0], a[1], 6, mask=a[2]), x, ids, mask),
                np.nan if empty else mine[0],
            ),
        }
        for name, (got, want) in values.items():
            assert got[cell] == pytest.approx(want, nan_ok=True), name
        at = both(lambda *a: segments.seg_argmax(a[0], a[1], 6, mask=a[2]), x, ids, mask)[cell]
        assert at == -1 if empty else x[at] == max(mine)


def test_counts_without_mask_and_argmax_takes_the_first_of_a_tie():
    ids = np.array([1, 1, 0, 1])
    assert segments.seg_count(ids, 3).tolist() == [1, 3, 0]
    assert segments.seg_argmax(np.array([2.0, 5.0, 1.0, 5.0]), ids, 3).tolist() == [2, 1, -1]
    assert segments.seg_max(np.array([2.0, 5.0, 1.0, 5.0]), ids, 2).tolist() == [1, 5]


def test_variance_in_two_passes_survives_a_large_offset():
    x = np.array([1e9, 1e9 + 1, 1e9 + 2])
    close(segments.seg_var(x, np.zeros(3, int), 1), [1.0])


def test_spread_gives_zero_outside():
    cell, ids = np.array([5.0, 7.0]), np.array([1, -1, 0, 1])
    assert both(segments.spread, cell, ids).tolist() == [7, 0, 5, 7]
    assert segments.spread(cell, ids, mask=np.array([1, 1, 0, 1], bool)).tolist() == [7, 0, 0, 7]
    assert segments.spread(np.zeros(0), np.array([-1])).tolist() == [0]


def partition(ids):
    cells = {}
    for row, one in enumerate(ids):
        cells.setdefault(int(one), []).append(row)
    return sorted(cells.values())


@pytest.mark.parametrize("dtype", [np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint32, np.uint64])
@pytest.mark.parametrize("many", [False, True])
def test_factorise_is_dense_and_keeps_the_partition(dtype, many):
    rng = np.random.default_rng(1)
    info = np.iinfo(dtype)
    values = rng.integers(info.min, info.max, 40, dtype=dtype, endpoint=True)
    key = rng.choice(values if many else values[:3], 500)
    ids, count = segments.factorise(key)
    assert sorted(set(ids.tolist())) == list(range(count))
    assert partition(ids) == partition(key)


def test_factorise_of_pairs_and_hash_path():
    rng = np.random.default_rng(2)
    a, b = rng.integers(-(2**60), 2**60, 30)[rng.integers(0, 30, 400)], rng.integers(0, 3, 400)
    ids, count = segments.combine_ids(a, b)
    pairs = sorted(set(zip(a.tolist(), b.tolist())))
    assert count == len(pairs)
    assert partition(ids) == partition([pairs.index(p) for p in zip(a.tolist(), b.tolist())])
    tensor_ids, tensor_count = segments.combine_ids(torch.from_numpy(a), torch.from_numpy(b))
    assert tensor_count == count
    assert partition(tensor_ids) == partition(ids)


def test_sort_based_factorise_of_the_device_path():
    a, b = torch.tensor([9, 1, 9, 9, 1]), torch.tensor([0, 0, 0, 1, 0])
    ids = segments._factorise_by_order((a, b))
    assert partition(ids) == [[0, 2], [1, 4], [3]]
    assert set(ids.tolist()) == {0, 1, 2}


def test_stable_order_keeps_equal_ids_in_order():
    ids = np.array([2, 0, 2, 1, 0])
    assert both(segments.stable_order, ids).tolist() == [1, 4, 3, 0, 2]
    assert segments.stable_order(np.array([2**62, 0, 2**62])).tolist() == [1, 0, 2]
    assert segments.stable_order(np.zeros(0, int)).tolist() == []
    assert segments.factorise(np.zeros(0, int))[1] == 0


def test_ids_outside_the_range_name_the_row():
    x = np.ones(3)
    for bad in ([0, 1, 2], [0, -1, 1]):
        with pytest.raises(ValueError, match=r"id -?\d at row \d is outside 0 .. 1"):
            segments.seg_sum(x, np.array(bad), 2)
        with pytest.raises(ValueError, match="outside"):
            segments.seg_sum(torch.ones(3), torch.tensor(bad), 2)
    with pytest.raises(ValueError, match="expected integers"):
        segments.seg_sum(x, x, 2)
    with pytest.raises(ValueError, match="expected integers"):
        segments.seg_sum(torch.ones(2), torch.ones(2), 2)
    with pytest.raises(ValueError, match=r"mask has shape \(2,\)"):
        segments.seg_sum(x, np.zeros(3, int), 1, mask=np.ones(2, bool))
    with pytest.raises(ValueError, match="one dimension"):
        segments.seg_sum(np.ones((2, 2)), np.zeros(2, int), 1)
    with pytest.raises(TypeError, match="one kind"):
        segments.seg_sum(x, torch.zeros(3, dtype=torch.int64), 1)


def test_sums_carry_gradients():
    x = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    segments.seg_sum(x, torch.tensor([0, 1, 0]), 2)[0].backward()
    assert x.grad is not None
    assert x.grad.tolist() == [1, 0, 1]


def test_lists_arrays_and_tensors_come_in_but_no_mixture():
    assert segments.seg_sum([1.0, 2.0], [0, 0], 1).tolist() == [3.0]
    assert isinstance(segments.seg_sum(torch.ones(2), [0, 0], 1), torch.Tensor)
    with pytest.raises(TypeError, match="one kind"):
        segments.seg_sum(np.ones(2), torch.zeros(2, dtype=torch.int64), 1)
    with pytest.raises(TypeError, match="one kind"):
        segments.seg_sum(torch.ones(2), np.zeros(2, int), 1)
    assert kinds.floating(torch.ones(1, dtype=torch.bfloat16)).dtype == torch.float32
    assert kinds.floating(torch.ones(1, dtype=torch.int64)).dtype == torch.float32
    with pytest.raises(ValueError, match="expected one of 'a', 'b'"):
        kinds.require_option("mode", "c", ["a", "b"])
