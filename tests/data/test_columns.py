"""Columns as a ring: which rows are there, where they lie, and what another ring takes over."""

import numpy as np
import pytest
import torch

from robot_rl.data.arrays import DeviceArrays, HostArrays
from robot_rl.data.chains import all_true, check_sizes, sum_ahead
from robot_rl.data.columns import ColumnRing

KINDS = {"number": ((), "int64"), "pair": ((2,), "float32")}


def fill(columns: ColumnRing, pieces: list[int]) -> ColumnRing:
    for size in pieces:
        number = np.arange(columns.count, columns.count + size)
        first = columns.append({"number": number, "pair": np.stack((number, -number), 1).astype(np.float32)}, size)
        assert first == number[0]
    return columns


def read(columns: ColumnRing) -> list[int]:
    """Numbers of the rows that are there, oldest first; every column has to agree."""
    oldest = max(0, columns.count - columns.capacity)
    slots = np.arange(oldest, columns.count) % columns.capacity
    number, pair = (columns.arrays.host(columns.store[name])[slots] for name in KINDS)
    assert np.array_equal(pair, np.stack((number, -number), 1))
    return number.tolist()


@pytest.mark.parametrize("arrays", [HostArrays(), DeviceArrays("cpu")])
@pytest.mark.parametrize("room", [None, 1, 2, 5, 99])
@pytest.mark.parametrize("pieces", [[3], [5], [2, 2, 2, 2], [1] * 13, [4, 5, 4]])
def test_ring_keeps_the_newest_rows_whatever_room_it_began_with(arrays, room, pieces):
    columns = fill(ColumnRing(arrays, KINDS, 5, room), pieces)
    total = sum(pieces)
    assert columns.count == total
    assert read(columns) == list(range(max(0, total - 5), total))


def test_room_doubles_up_to_the_capacity_and_no_further():
    columns, rooms = ColumnRing(HostArrays(), KINDS, 7, room=2), []
    for _ in range(9):
        fill(columns, [1])
        rooms.append(len(columns.store["pair"]))
    assert rooms == [2, 2, 4, 4, 7, 7, 7, 7, 7]


@pytest.mark.parametrize(("ours", "kept"), [(5, [3, 4, 5, 6, 7]), (3, [5, 6, 7]), (12, [3, 4, 5, 6, 7])])
def test_state_is_taken_over_with_its_numbers_by_a_ring_of_any_size(ours, kept):
    saved = fill(ColumnRing(HostArrays(), KINDS, 5), [4, 4])
    other = ColumnRing(DeviceArrays("cpu"), KINDS, ours)
    other.load_state_dict(saved.state_dict())
    assert other.count == 8
    assert read(other)[-len(kept) :] == kept
    fill(other, [1])
    assert read(other)[-1] == 8


def test_state_is_a_view_and_of_an_empty_ring_nothing():
    columns = fill(ColumnRing(HostArrays(), KINDS, 5), [3])
    state = columns.state_dict()
    assert len(state["pair"]) == 3
    columns.store["pair"][0] = 9.0
    assert state["pair"][0].tolist() == [9.0, 9.0]
    empty = ColumnRing(HostArrays(), KINDS, 4)
    columns.load_state_dict(empty.state_dict())
    assert (columns.count, read(columns)) == (0, [])


def test_sums_follow_the_links_and_stop_where_none_is_left():
    """Rewards 1, 2, 4, 8, 16 at rows 0 to 4; 0 -> 2 -> 3 and 1 -> 4; discount 1/2, three steps."""
    reward, onward = np.array([1.0, 2.0, 4.0, 8.0, 16.0]), np.array([2, 3, 1, 0, 0])
    row = np.array([0, 1, 3])
    total, steps, last = sum_ahead(reward[row], row, 0.5 ** np.arange(3), onward.__getitem__, reward.__getitem__)
    assert total.tolist() == [5.0, 10.0, 8.0]  # 1 + 4/2 + 8/4;  2 + 16/2;  8
    assert steps.tolist() == [2, 1, 0]
    assert last.tolist() == [3, 4, 3]


def test_mask_of_all_rows_takes_one_byte():
    mask = all_true(1000, torch.device("cpu"))
    assert mask.shape == (1000,)
    assert bool(mask.all())
    assert mask.untyped_storage().nbytes() == 1


@pytest.mark.parametrize(("gamma", "rows"), [(0.5, 0), (1.5, 1), (-0.1, 1)])
def test_sizes_out_of_range_are_refused(gamma, rows):
    with pytest.raises(ValueError, match="rows is 0" if rows == 0 else "gamma is"):
        check_sizes(gamma, rows=rows)
