"""What continues an object is named once, and put back exactly."""

from collections import deque
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from robot_rl.checkpoint import load_state, save_state
from robot_rl.state import Saved


class _Inner(Saved):
    saved = ("_sum",)

    def __init__(self) -> None:
        self._sum = torch.zeros(2)


class _Whole(Saved):
    kind = "whole"
    saved = (
        "_weights",
        "seen",
        "_draw",
        "_noise",
        "net",
        "_optimiser",
        "_inner",
        "updates",
        "last",
        "_window",
        "_carry",
        "_rows",
    )

    def __init__(self, size: int = 3) -> None:
        self._weights, self.seen = torch.zeros(size, requires_grad=True), np.zeros(2, np.uint64)
        self._draw, self._noise = np.random.default_rng(0), torch.Generator().manual_seed(0)
        self.net = nn.Linear(2, 1)
        self._optimiser = torch.optim.Adam(self.net.parameters())
        self._inner, self.updates, self.last = _Inner(), 0, dict[str, float]()
        self._window: deque[float] = deque(maxlen=2)
        self._carry: torch.Tensor | None = None
        self._rows = np.zeros((0, 4))
        self.doubled = 0.0

    def after_load(self) -> None:
        self.doubled = 2.0 * self.updates

    def work(self) -> list[float]:
        self._optimiser.zero_grad()
        self.net(torch.ones(2)).sum().backward()
        self._optimiser.step()
        with torch.no_grad():
            self._weights += torch.rand(len(self._weights), generator=self._noise)
        self._inner._sum += 1.0
        self.seen += np.uint64(2**63)
        self.updates += 1
        self.last = {"loss": float(self._draw.random())}
        self._window.append(self.last["loss"])
        self._carry, self._rows = self._weights.detach() * 2.0, np.full((self.updates, 4), 7.0)
        return [self.last["loss"], *self._weights.tolist(), *self.net.weight.flatten().tolist(), *self._carry.tolist()]


def test_an_object_goes_on_exactly_from_a_file(tmp_path: Path) -> None:
    one, other = _Whole(), _Whole()
    for _ in range(3):
        one.work()
    save_state(tmp_path / "whole.pt", one.state_dict())
    view, array = other._weights[1:], other.seen
    other.load_state_dict(load_state(tmp_path / "whole.pt"))
    assert torch.equal(view, one._weights[1:])
    assert np.array_equal(array, one.seen)
    assert other.doubled == 6.0
    assert other._window == one._window
    assert other._window.maxlen == 2
    assert other._rows.shape == (3, 4)
    assert torch.equal(other._inner._sum, torch.full((2,), 3.0))
    assert one.work() == other.work()


def test_a_state_is_a_copy() -> None:
    one = _Whole()
    state = one.state_dict()
    one.work()
    again = _Whole()
    again.load_state_dict(state)
    assert again.updates == 0
    assert not again._weights.any()
    assert again._inner._sum.tolist() == [0.0, 0.0]
    again.work()  # and what was loaded shares nothing with the state: moments of two optimisers stay apart
    third = _Whole()
    third.load_state_dict(state)
    assert not third._optimiser.state_dict()["state"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"kind": "other"}, "of a 'other', expected whole"),
        ({"weights": torch.zeros(4)}, r"Whole's weights was saved with shape \(4,\), here it is \(3,\)"),
        ({"net": {"weight": torch.zeros(2, 2)}}, "Whole's net does not fit"),
        ({"inner": 3}, "Whole's inner was saved as a int"),
        ({"more": 1}, "the saved Whole has more besides"),
    ],
)
def test_what_does_not_fit_is_refused_in_words(change: dict[str, object], words: str) -> None:
    one = _Whole()
    with pytest.raises(ValueError, match=words):
        one.load_state_dict({**one.state_dict(), **change})


def test_a_part_that_the_options_leave_out_has_no_entry() -> None:
    class Policy(Saved):
        def __init__(self, norm: _Inner | None) -> None:
            self.norm = norm

        def saved_parts(self) -> dict[str, object]:
            return {"weights": torch.ones(1), "norm": self.norm}

    assert sorted(Policy(None).state_dict()) == ["weights"]
    with pytest.raises(ValueError, match="the saved Policy has norm besides"):
        Policy(None).load_state_dict(Policy(_Inner()).state_dict())
