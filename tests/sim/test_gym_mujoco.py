"""MuJoCo's enumerations beside NumPy's integers, and what is refused."""

import mujoco
import numpy as np
import pytest

from robot_rl.sim import gym_mujoco


class Kind:
    """An enumeration that compares as MuJoCo's do: with integers of Python, not of NumPy."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __int__(self) -> int:
        return self.number

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        return not isinstance(other, np.integer) and self.number == getattr(other, "number", other)


def test_an_enumeration_equals_numpy_integers_and_what_it_equalled() -> None:
    Kind.__members__ = {"THREE": Kind(3)}  # type: ignore[attr-defined]
    three = Kind(3)
    assert three != np.int32(3)
    gym_mujoco._compare_with_numpy(Kind)
    assert three == np.int32(3)
    assert not (three != np.int64(3))  # noqa: SIM202
    assert three != np.int32(2)
    assert three == 3
    assert three != 2
    assert three == Kind(3)
    assert three != None  # noqa: E711


def test_every_enumeration_of_mujoco_compares_both_ways() -> None:
    gym_mujoco.mend_enumerations()
    kinds = [kind for kind in vars(mujoco).values() if isinstance(kind, type) and hasattr(kind, "__members__")]
    assert len(kinds) > 50
    for kind in kinds:
        for member in kind.__members__.values():  # type: ignore[attr-defined]
            number = np.int32(int(member))
            assert member == number
            assert number == member
            assert member != number + 1
            assert number in (member,)


def test_gym_hil_is_refused_with_the_version_that_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gym_mujoco.metadata, "version", lambda name: "0.1.13")
    if hasattr(vars(mujoco)["MjData"], "qM"):
        gym_mujoco.refuse_new_mujoco("gym_hil")
    else:
        with pytest.raises(ImportError, match=r"mujoco<3\.9"):
            gym_mujoco.refuse_new_mujoco("gym_hil")
