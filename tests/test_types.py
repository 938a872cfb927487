"""IOSpec tells every difference; Episode refuses ragged input."""

import json
from dataclasses import replace

import numpy as np
import pytest

from robot_rl.types import Episode, IOSpec

IO = IOSpec(
    obs={"state": ((3,), "float32"), "image.front": ((8, 8, 3), "uint8")},
    action_names=("x", "grip"),
    action_low=(-0.1, 0.0),
    action_high=(0.1, 0.08),
    action_units=("m", "m"),
    control_hz=10.0,
    obs_names=("a", "b", "c"),
)


def test_io_spec_check_equal_passes_and_json_round_trips() -> None:
    IO.check(IOSpec.from_dict(json.loads(json.dumps(IO.to_dict()))))


def test_io_spec_check_lists_every_difference() -> None:
    other = replace(
        IO,
        obs={"state": ((4,), "float32"), "image.wrist": ((8, 8, 3), "uint8")},
        action_names=("x", "gripper"),
        action_high=(0.2, 0.08),
        action_units=("rad", "m"),
        control_hz=20.0,
        obs_names=("a", "q", "c"),
    )
    with pytest.raises(ValueError, match="do not fit") as error:
        IO.check(other)
    text = str(error.value)
    for part in (
        "'image.front' uint8[8, 8, 3] is missing",
        "'image.wrist' uint8[8, 8, 3] is unknown",
        "'state' is float32[3] here and float32[4] there",
        "first at 1: 'b' against 'q'",
        "action 1 is 'grip' here and 'gripper' there",
        "action 0 (x) is in m here and rad there",
        "action 0 (x) spans [-0.1, 0.1] here and [-0.1, 0.2] there",
        "10 Hz here and 20 Hz there",
    ):
        assert part in text
    assert text.count("\n  - ") == 8


def test_io_spec_check_action_count_differs() -> None:
    short = replace(IO, action_names=("x",), action_low=(-0.1,), action_high=(0.1,), action_units=("m",))
    assert IO.differences(short) == ["action has 2 dimensions here and 1 there"]


def test_io_spec_ragged_action_fields_are_refused() -> None:
    with pytest.raises(ValueError, match="differ in length"):
        replace(IO, action_low=(0.0,))


def test_io_spec_from_dict_missing_field_is_named() -> None:
    raw = IO.to_dict()
    del raw["action_low"]
    with pytest.raises(ValueError, match="action_low"):
        IOSpec.from_dict(raw)


def test_episode_ragged_columns_are_refused() -> None:
    good = {
        "obs": {"state": np.zeros((4, 2))},
        "action": np.zeros((3, 1)),
        "proposed": np.zeros((3, 1)),
        "reward": np.zeros(3),
        "terminated": False,
        "truncated": True,
        "intervened": np.zeros(3, bool),
        "stamp": np.arange(4.0),
    }
    assert len(Episode(**good)) == 3
    with pytest.raises(ValueError, match=r"Episode.obs\['state'\] has 3 rows, expected 4"):
        Episode(**{**good, "obs": {"state": np.zeros((3, 2))}})
    with pytest.raises(ValueError, match="both terminated and truncated"):
        Episode(**{**good, "terminated": True})
