"""Data model: building, validation with the offending index, views with exact inverses."""

from typing import Any

import numpy as np
import pytest
import torch

from robot_rl.advantage.batch import make_batch
from robot_rl.advantage.tables import dense_ids
from tests.advantage.row_layout import RowLayout


def columns(**changes: Any) -> Any:
    """Two episodes of three rows: the first cut, the second terminated; turns (0, 0, 1), (2, 3, 3)."""
    base = {
        "reward": np.array([1, 0, 2, 0, 1, -1.0]),
        "terminated": np.array([0, 0, 0, 0, 0, 1], bool),
        "truncated": np.array([0, 0, 1, 0, 0, 0], bool),
        "episode_id": np.array([0, 0, 0, 1, 1, 1]),
        "turn_id": np.array([0, 0, 1, 2, 3, 3]),
        "value": np.array([0.5, 1, 0.2, 0.4, 0.3, 0.6]),
        "next_value": np.array([9, 9, 0.7, 9, 9, np.nan]),
    }
    return base | changes


def test_batch_tables_follow_from_the_ids():
    batch = make_batch(**columns(), turn={"actor_id": np.array([0, 1, 0, 0])}, segment_id=np.array([0, 0, 0, 1, 1, 2]))
    np.testing.assert_array_equal(batch.steps.boundary, [0, 0, 1, 0, 0, 1])
    np.testing.assert_array_equal(batch.turns.start, [0, 2, 3, 4])
    np.testing.assert_array_equal(batch.turns.end, [1, 2, 3, 5])
    np.testing.assert_array_equal(batch.turns.episode_id, [0, 0, 1, 1])
    np.testing.assert_array_equal(batch.turns.turn_index, [0, 1, 0, 1])
    np.testing.assert_array_equal(batch.turns.own_turn_index, [0, 0, 0, 1])
    np.testing.assert_array_equal(batch.episodes.start, [0, 3])
    np.testing.assert_array_equal(batch.episodes.end, [2, 5])
    np.testing.assert_array_equal(batch.episodes.n_turns, [2, 2])
    np.testing.assert_array_equal(batch.episodes.outcome, [3, 0])
    np.testing.assert_array_equal(batch.episodes.group_id, [-1, -1])
    assert batch.segments is not None
    np.testing.assert_array_equal(batch.segments.end, [2, 4, 5])
    assert batch.report.turns_given
    assert len(batch) == 6


def test_batch_own_turn_index_counts_each_actor():
    one = columns(turn_id=np.arange(6))
    batch = make_batch(**one, turn={"actor_id": np.array([0, 1, 0, 1, 1, 0])})
    np.testing.assert_array_equal(batch.turns.own_turn_index, [0, 0, 1, 0, 1, 0])


def test_batch_without_turns_makes_every_clock_row_one_and_says_so():
    clock = np.array([1, 0, 1, 1, 1, 1], bool)
    batch = make_batch(**columns(turn_id=None), clock=clock)
    np.testing.assert_array_equal(batch.steps.turn_id, [0, -1, 1, 2, 3, 4])
    assert not batch.report.turns_given


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"episode_id": np.array([0, 0, 1, 0, 1, 1])}, "episode_id is 0 at row 3"),
        ({"episode_id": np.array([5, 5, 5, 6, 6, 6])}, "episode_id is 5 at row 0"),
        ({"episode_id": np.array([0, 0, 0, 2, 2, 2])}, "episode_id is 2 at row 3"),
        ({"episode_id": np.array(["a", "a", "a", "b", "b", "b"])}, r"factorise names once .* \(dense_ids\)"),
        ({"turn_id": np.array([0, 1, 0, 2, 3, 3])}, "turn_id is 0 at row 2 after 1: turns overlap"),
        ({"turn_id": np.array([1, 1, 1, 2, 3, 3])}, "turn_id is 1 at row 0 after the start"),
        ({"turn_id": np.array([0, 0, 1, 1, 2, 2])}, "turn 1 continues into another episode at row 3"),
        ({"turn_id": np.array([0, 0, -1, 1, 2, 2])}, "row 2 is a clock row outside any turn"),
        ({"turn_id": np.array([-7, 0, 1, 2, 3, 3])}, "row 0 is a clock row outside any turn"),
        ({"terminated": np.array([0, 1, 0, 0, 0, 1], bool)}, "row 1 ends its episode 0, which goes on to row 2"),
        ({"next_value": None}, "next_value is missing at row 2, where episode 0 was cut"),
        ({"next_value": np.full(6, np.nan)}, "next_value is missing at row 2"),
        ({"value": np.array([0, 0, 0, 0, np.nan, 0])}, "value is nan at row 4"),
        ({"reward": np.array([0, np.inf, 0, 0, 0, 0])}, "reward is inf at row 1"),
        ({"k": np.array([1, 1, 1, 0, 1, 1])}, "k is 0 at row 3"),
        ({"k": np.ones(6)}, "expected integers"),
        ({"discount": np.full(6, 0.5), "gamma": 0.9}, "discount is 0.5 at row 0"),
        ({"value": np.zeros(5)}, r"value has shape \(5,\), expected \(6,\)"),
        ({"reward": np.zeros((6, 1))}, r"reward has shape \(6, 1\), expected \(N,\)"),
        ({"missing_bootstrap": "guess"}, "missing_bootstrap is 'guess'"),
        ({"velocity": np.zeros(6)}, "unknown step column 'velocity'"),
        ({"turn": {"colour": np.zeros(4)}}, "unknown turn column 'colour'"),
        ({"turn": {"void": np.zeros(3)}}, r"turn column 'void' has shape \(3,\), expected \(4,\)"),
        ({"episode": {"n_turns": np.zeros(2)}}, "unknown episode column 'n_turns'"),
        ({"clock": np.array([1, 1, 1, 0, 0, 0], bool)}, "episode 1 has no clock row"),
        ({"segment_id": np.array([0, 0, 0, 0, 1, 1])}, "segment 0 reaches into another episode at row 3"),
        ({"segment_id": np.array([0, 0, 0, 2, 2, 2])}, "segment_id is 2 at row 3"),
        ({"extras": {"tokens": np.zeros(5)}}, r"extras\['tokens'\] has shape \(5,\)"),
    ],
)
def test_batch_broken_rule_names_the_first_offending_index(changes, words):
    with pytest.raises(ValueError, match=words):
        make_batch(**columns(**changes))


def test_batch_empty_is_refused():
    nothing = np.zeros(0)
    with pytest.raises(ValueError, match="at least one row"):
        make_batch(nothing, nothing, nothing, nothing.astype(int))


def test_batch_missing_bootstrap_named_replaces_and_counts():
    zero = make_batch(**columns(next_value=None), missing_bootstrap="zero")
    assert zero.steps.next_value is not None
    assert zero.steps.next_value[2] == 0
    own = make_batch(**columns(next_value=None), missing_bootstrap="last_value")
    assert own.steps.next_value is not None
    assert own.steps.value is not None
    assert own.steps.next_value[2] == own.steps.value[2]
    assert (zero.report.missing_bootstrap, own.report.missing_bootstrap) == (1, 1)


def test_batch_both_end_flags_count_as_terminated():
    batch = make_batch(**columns(terminated=np.array([0, 0, 1, 0, 0, 1], bool), next_value=None))
    assert batch.report.both_flags == 1
    assert not batch.steps.truncated.any()


def test_batch_nan_reward_makes_the_episode_unscorable():
    batch = make_batch(**columns(reward=np.array([1, np.nan, 2, 0, 1, -1.0])))
    assert batch.report.unscorable == 1
    assert np.isnan(batch.episodes.outcome[0])
    assert batch.episodes.outcome[1] == 0
    np.testing.assert_array_equal(batch.steps.loss_mask, [0, 0, 0, 1, 1, 1])
    assert np.isfinite(batch.steps.reward).all()
    turns = make_batch(**columns(), turn={"turn_reward": np.array([0, np.nan, 0.5, 0.5])})
    np.testing.assert_array_equal(turns.episodes.outcome, [np.nan, 1.0])
    assert turns.turns.turn_reward is not None
    assert np.isfinite(turns.turns.turn_reward).all()


def test_batch_tensors_in_tensors_out_without_copy():
    given: Any = {name: torch.from_numpy(x) for name, x in columns().items()}
    batch = make_batch(**given)
    assert isinstance(batch.steps.reward, torch.Tensor)
    assert batch.steps.reward.data_ptr() == given["reward"].data_ptr()
    arrays = batch.numpy()
    assert isinstance(arrays.turns.start, np.ndarray)
    again = arrays.to("cpu")
    assert arrays.steps.value is not None
    assert again.steps.value is not None
    assert again.steps.value.data_ptr() == arrays.steps.value.ctypes.data
    assert batch.steps.reward.dtype == torch.float64


def test_batch_integer_reward_becomes_float32():
    assert make_batch(**columns(reward=np.arange(6))).steps.reward.dtype == np.float32


def test_dense_ids_number_any_keys_by_first_appearance():
    np.testing.assert_array_equal(dense_ids(["b", "a", "b", "c"]), [0, 1, 0, 2])
    np.testing.assert_array_equal(dense_ids([10**12, -5, 10**12]), [0, 1, 0])
    assert dense_ids([3]).dtype == np.int32


@pytest.mark.parametrize("tensors", [False, True])
@pytest.mark.parametrize("lengths", [[3, 1, 5], [4, 4], [1]])
def test_views_are_exact_inverses_and_pad_with_zero(lengths, tensors):
    lengths = np.array(lengths)
    start = np.concatenate(([0], np.cumsum(lengths)[:-1]))
    layout = RowLayout(start, lengths, int(lengths.sum()))
    for shape in ((lengths.sum(),), (lengths.sum(), 2)):
        x = np.arange(1.0, 1 + np.prod(shape)).reshape(shape)
        x = torch.from_numpy(x) if tensors else x
        padded = layout.padded(x)
        assert tuple(padded.shape[:2]) == (len(lengths), lengths.max())
        assert (np.asarray(padded)[~layout.valid] == 0).all()
        np.testing.assert_array_equal(layout.from_padded(padded), x)
        np.testing.assert_array_equal(layout.from_time_major(layout.time_major(x)), x)
        packed, cu = layout.packed(x)
        assert packed is x
        np.testing.assert_array_equal(cu, [0, *np.cumsum(lengths)])
        assert cu.dtype == np.int32


def test_views_of_equal_lengths_share_memory():
    x = np.arange(12.0)
    layout = RowLayout(np.array([0, 4, 8]), np.array([4, 4, 4]), 12)
    assert np.shares_memory(layout.time_major(x), x)
    assert layout.time_major(x).shape == (4, 3)


def test_views_wrong_shapes_are_refused():
    layout = RowLayout(np.array([0, 4]), np.array([4, 2]), 6)
    with pytest.raises(ValueError, match="column has 5 rows, expected 6"):
        layout.padded(np.zeros(5))
    with pytest.raises(ValueError, match=r"expected \(2, 4 or more"):
        layout.from_padded(np.zeros((2, 3)))
    with pytest.raises(ValueError, match="add up to 6, expected 7"):
        RowLayout(np.array([0, 4]), np.array([4, 2]), 7)
