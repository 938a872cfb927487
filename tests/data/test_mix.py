from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from robot_rl.data.mix import Mix, merge
from robot_rl.types import Transitions


class Constant:
    """A sampler whose rows all carry one number."""

    def __init__(self, number: float, length: int = 5, extras: tuple[str, ...] = (), width: int = 2) -> None:
        self.number, self.length, self.extras, self.width = number, length, extras, width
        self.drawn = 0

    def __len__(self) -> int:
        return self.length

    def batches(self, size: int) -> Iterator[Transitions]:
        while True:
            assert self.length > 0
            self.drawn += 1
            column = torch.full((size,), self.number)
            flag = torch.zeros(size, dtype=torch.bool)
            obs = {"state": column[:, None].expand(size, self.width)}
            extras = dict.fromkeys(self.extras, column)
            yield Transitions(obs, column[:, None], column, column, obs, flag, flag, flag, ~flag, extras)

    def state_dict(self) -> dict[str, int]:
        return {"drawn": self.drawn}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.drawn = state["drawn"]


def counts(mix: Mix, size: int, batches: int) -> list[list[int]]:
    stream = mix.batches(size)
    rows = []
    for _ in range(batches):
        batch = next(stream)
        assert len(batch.reward) == size
        assert torch.equal(batch.extras["source"].float(), batch.reward)
        rows.append(torch.bincount(batch.extras["source"], minlength=len(mix.parts)).tolist())
    return rows


def test_mix_halves_every_even_batch_is_split_exactly() -> None:
    for seed in range(5):
        mix = Mix({"online": (Constant(0.0), 0.5), "demos": (Constant(1.0), 0.5)}, seed=seed)
        assert counts(mix, 256, 4) == [[128, 128]] * 4


def test_mix_small_share_comes_up_and_is_exact_over_time() -> None:
    # 0.01 of 16 rows is one row in 6.25 batches: 16 in 100 batches.
    mix = Mix({"a": (Constant(0.0), 0.99), "b": (Constant(1.0), 0.01)})
    total = [sum(column) for column in zip(*counts(mix, 16, 100))]
    assert abs(total[1] - 16) <= 1
    assert sum(total) == 1600


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 50), min_size=1, max_size=5), st.integers(1, 40), st.integers(0, 99))
def test_mix_any_shares_no_part_falls_behind(weights: list[int], size: int, seed: int) -> None:
    mix = Mix({str(i): (Constant(float(i)), w) for i, w in enumerate(weights)}, seed=seed)
    given_rows = [0] * len(weights)
    for n, rows in enumerate(counts(mix, size, 40), 1):
        given_rows = [a + b for a, b in zip(given_rows, rows)]
        for weight, got in zip(weights, given_rows):
            assert abs(got - n * size * weight / sum(weights)) < 2


def test_mix_empty_part_cedes_its_rows_and_gets_no_credit_later() -> None:
    empty = Constant(2.0, length=0)
    mix = Mix({"a": (Constant(0.0), 0.5), "b": (Constant(1.0), 0.25), "c": (empty, 0.25)})
    # 2 : 1 of 12 rows while c is empty, then 6, 3, 3.
    assert counts(mix, 12, 5) == [[8, 4, 0]] * 5
    empty.length = 1
    assert counts(mix, 12, 5) == [[6, 3, 3]] * 5


def test_mix_all_parts_empty_says_so() -> None:
    mix = Mix({"a": (Constant(0.0, 0), 0.5), "b": (Constant(1.0, 0), 0.5)})
    with pytest.raises(ValueError, match="every part of the mix is empty"):
        mix.sample(4)


@pytest.mark.parametrize("share", [0.0, -1.0, float("nan")])
def test_mix_bad_share_is_refused(share: float) -> None:
    with pytest.raises(ValueError, match="positive"):
        Mix({"a": (Constant(0.0), share)})


def test_mix_length_is_the_sum() -> None:
    assert len(Mix({"a": (Constant(0.0, 3), 1), "b": (Constant(1.0, 4), 1)})) == 7


def test_mix_state_continues_the_carried_rounding_and_the_parts() -> None:
    def build() -> Mix:
        return Mix({"a": (Constant(0.0), 0.7), "b": (Constant(1.0), 0.3)}, seed=3)

    one, two = build(), build()
    counts(one, 5, 7)
    two.load_state_dict(one.state_dict())
    assert counts(one, 5, 9) == counts(two, 5, 9)
    assert two.parts["a"].drawn == one.parts["a"].drawn  # pyright: ignore[reportAttributeAccessIssue]


def test_mix_state_of_other_parts_is_refused() -> None:
    state = Mix({"a": (Constant(0.0), 1)}).state_dict()
    with pytest.raises(ValueError, match="parts"):
        Mix({"z": (Constant(0.0), 1)}).load_state_dict(state)


def test_merge_keeps_only_shared_extras() -> None:
    batch = Mix({"a": (Constant(0.0, extras=("logp", "x")), 1), "b": (Constant(1.0, extras=("x",)), 1)}).sample(4)
    assert set(batch.extras) == {"x", "source"}
    assert batch.extras["x"].tolist() == [0, 0, 1, 1]


def test_merge_different_shapes_names_them() -> None:
    with pytest.raises(ValueError, match=r"obs.state.*\(2,\).*\(3,\)"):
        merge({"a": next(Constant(0.0).batches(2)), "b": next(Constant(1.0, width=3).batches(2))})
