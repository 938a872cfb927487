"""IOSpec tells every difference; Episode refuses ragged input."""

import json
from dataclasses import replace

import numpy as np
import pytest

from robot_rl.types import Episode, IOSpec, Learner, Seen

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


def test_io_spec_unknown_bounds_are_never_the_same() -> None:
    """Two logs that say nothing of their range do not agree by that."""
    unknown = replace(IO, action_low=(None, 0.0), action_high=(None, 0.08))
    assert not unknown.knows_bounds
    with pytest.raises(ValueError, match=r"physical range of x, .*action_low=… action_high=…, or action=normalised"):
        unknown.bounds  # noqa: B018
    line = "action 0 (x) spans an unknown range here and an unknown range there"
    assert unknown.differences(unknown) == [line]
    assert unknown.differences(IO) == ["action 0 (x) spans an unknown range here and [-0.1, 0.1] there"]
    assert IOSpec.from_dict(json.loads(json.dumps(unknown.to_dict()))) == unknown


def test_io_spec_observation_units_count_where_both_are_known() -> None:
    mine, theirs = (replace(IO, obs_units={"state": (unit, "m", "m")}) for unit in ("rad", "deg"))
    assert mine.differences(IO) == []
    assert mine.differences(theirs) == [
        "observation 'state' is in ['rad', 'm', 'm'] here and in ['deg', 'm', 'm'] there"
    ]
    assert IOSpec.from_dict(json.loads(json.dumps(mine.to_dict()))) == mine


def test_seen_quantiles_travel_with_the_interface_and_are_no_part_of_it() -> None:
    """Of 0, 1, ... 1000 the quantiles .001 .01 .5 .99 .999 are 1, 10, 500, 990 and 999."""
    rows = np.arange(1001.0)[:, None]
    seen = Seen.of({"state": rows}, -rows, count=1001, rate=20.0)
    np.testing.assert_allclose(seen.obs["state"], [[1, 10, 500, 990, 999]])
    np.testing.assert_allclose(seen.action, [[-999, -990, -500, -10, -1]])
    io = replace(IO, seen=seen)
    io.check(IO)
    assert io == IO
    again = IOSpec.from_dict(json.loads(json.dumps(io.to_dict())))
    assert again.seen == seen
    assert IOSpec.from_dict(IO.to_dict()).seen is None


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


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ({"rewardles": True}, "Mine.rewardles is no part of the contract of a learner; did you mean rewardless"),
        ({"rewardless": True}, r"Mine.rewardless = True is read by nobody: .* returns Needs\(rewardless=...\)"),
        ({"window": 4, "__annotations__": {"window": int}}, "Mine.window = 4 is read by nobody"),
    ],
)
def test_what_no_loop_reads_of_a_learner_is_refused(written, message):
    with pytest.raises(TypeError, match=message):
        type("Mine", (Learner,), written)


def test_learner_that_states_no_needs_is_named():
    class Mine(Learner):
        def __init__(self):
            pass

    with pytest.raises(TypeError, match=r"Mine.__init__ did not state what it needs: call super\(\).__init__"):
        _ = Mine().need
