"""Tables are built where the reward lies: nothing is copied to the host, and the numbers are those of the host."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from robot_rl.advantage.batch import TurnBatch, make_batch
from robot_rl.advantage.builders import from_chunks, from_tokens, from_vector_rollout, to_rollout
from robot_rl.advantage.clock import compact, foreign_cut, perspective
from tests.advantage.away import AWAY, Away, AwayDevice


def flat(place: Callable[[Any], Any], **options: Any) -> TurnBatch:
    """Two episodes of three rows, an observation row in the first, the value of a cut and a NaN reward."""
    columns = {
        "reward": np.array([1, 0.5, 2, 0, np.nan, -1.0]),
        "terminated": np.array([0, 0, 0, 0, 0, 1], bool),
        "truncated": np.array([0, 0, 1, 0, 0, 0], bool),
        "episode_id": np.array([0, 0, 0, 1, 1, 1]),
        "turn_id": np.array([0, -1, 1, 2, 3, 3]),
        "clock": np.array([1, 0, 1, 1, 1, 1], bool),
        "value": np.array([0.5, 1, 0.2, 0.4, 0.3, 0.6]),
        "next_value": np.array([9, 9, 0.7, 9, 9, np.nan]),
        "discount": np.array([0.9, 0.8, 0.9, 0.9, 0.9, 0.9]),
        "segment_id": np.array([0, 0, 0, 1, 1, 2]),
    }
    turn = {"actor_id": place(np.array([0, 1, 1, 0])), "turn_reward": place(np.array([0, 0.5, 0.25, 0]))}
    return make_batch(**{name: place(x) for name, x in columns.items()}, turn=turn, **options)


def rollout(place: Callable[[Any], Any], autoreset: str) -> TurnBatch:
    """Three steps of two environments."""
    reward, value = np.arange(6.0).reshape(3, 2), np.arange(6.0).reshape(3, 2) / 10
    terminated, truncated = np.zeros((3, 2), bool), np.zeros((3, 2), bool)
    truncated[1, 0] = terminated[0, 1] = True
    final = np.full((3, 2), 7.0)
    given = [place(x) for x in (reward, value, terminated, truncated, final, np.array([5.0, 6.0]))]
    columns = {"logp_behaviour": place(-reward), "camera": place(np.zeros((3, 2, 4)))}
    return from_vector_rollout(
        *given, columns=columns, autoreset=autoreset, valid=place(reward != 4.0),
        starts_with_reset=place(np.array([False, True])),
    )  # fmt: skip


def chunks(place: Callable[[Any], Any]) -> TurnBatch:
    """Three decisions, two episodes."""
    end = np.array([False, True, False])
    given = (np.ones(3), np.array([2, 1, 4]), end, ~end & False, np.array([0, 0, 0.5]))
    return from_chunks(*map(place, given), value=place(np.ones(3)))


def tokens(place: Callable[[Any], Any]) -> TurnBatch:
    """Two conversations with an observation, a teacher and a cut."""
    role, foreign = np.array([1, 1, 0, 0, 1, 0], bool), np.array([0, 0, 0, 1, 0, 0], bool)
    given = (np.arange(6.0), role, np.array([[0, 1], [3, 3], [4, 5]]), np.array([4, 2]))
    return from_tokens(
        *map(place, given), foreign=place(foreign), truncated=place(np.array([False, True])),
        next_value=place(np.array([0, 2.0])), value=place(np.ones(6)), tokens=place(np.arange(6)),
    )  # fmt: skip


BUILD: dict[str, Callable[[Any], Any]] = {
    "flat": flat,
    "same_step": lambda place: rollout(place, "same_step"),
    "next_step": lambda place: rollout(place, "next_step"),
    "chunks": chunks,
    "tokens": tokens,
    "zero": lambda place: flat(place, missing_bootstrap="zero"),
    "compact": lambda place: compact(flat(place)).batch,
    "add": lambda place: compact(flat(place), "add").batch,
    "perspective": lambda place: perspective(flat(place), 1),
}


def columns_of(batch: TurnBatch) -> dict[str, Any]:
    """Every column of every table by name."""
    tables = {"steps": batch.steps, "turns": batch.turns, "episodes": batch.episodes, "segments": batch.segments}
    found = {
        f"{table}.{name}": x for table, rows in tables.items() if rows is not None for name, x in vars(rows).items()
    }
    extras = found.pop("steps.extras")
    return {name: x for name, x in {**found, **extras}.items() if x is not None}


@pytest.mark.parametrize("name", list(BUILD))
def test_tables_stay_on_the_device_and_equal_those_of_the_host(name: str) -> None:
    expected = columns_of(BUILD[name](lambda x: x))
    with AwayDevice():
        found = BUILD[name](lambda x: torch.as_tensor(x).as_subclass(Away))
        assert all(x.device == AWAY for x in columns_of(found).values())
    assert columns_of(found).keys() == expected.keys()
    for key, x in columns_of(found).items():
        here = x.as_subclass(torch.Tensor).numpy()
        np.testing.assert_array_equal(here, expected[key], err_msg=key)
        assert here.dtype == expected[key].dtype, key


def test_results_come_back_to_the_rollout_and_the_rows_on_the_device() -> None:
    with AwayDevice():
        batch = rollout(lambda x: torch.as_tensor(x).as_subclass(Away), "same_step")
        back = to_rollout(batch.steps.reward, batch, (3, 2))
        small = compact(flat(lambda x: torch.as_tensor(x).as_subclass(Away)))
        wide = small.expand(small.batch.steps.reward, fill=small.original.steps.value)
        cut = foreign_cut(small.batch)
        assert back.device == wide.device == cut.device == AWAY
    np.testing.assert_array_equal(back.as_subclass(torch.Tensor), [[0, 1], [2, 3], [0, 5]])
    np.testing.assert_array_equal(wide.as_subclass(torch.Tensor), [1.5, 1, 2, 0, 0, -1])


def test_the_played_device_refuses_what_a_device_refuses() -> None:
    x = torch.ones(2).as_subclass(Away)
    for wrong in (
        lambda: x.numpy(),
        lambda: x.cpu(),
        lambda: x.to("cpu"),
        lambda: np.asarray(x),
        lambda: x + torch.ones(2),
    ):
        with AwayDevice(), pytest.raises((AssertionError, TypeError)):
            wrong()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", list(BUILD))
def test_tables_on_a_cuda_device(name: str) -> None:
    expected = columns_of(BUILD[name](lambda x: x))
    for key, x in columns_of(BUILD[name](lambda x: torch.as_tensor(x).cuda())).items():
        assert x.is_cuda, key
        np.testing.assert_array_equal(x.cpu(), expected[key], err_msg=key)
