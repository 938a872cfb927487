"""`robot-rl data session`: what a user types and what he reads."""

import numpy as np
import pytest

from robot_rl.data import session
from robot_rl.real.session_tools import main

bag = pytest.importorskip("robot_rl.data.bag")
pytest.importorskip("rosbags")


def foreign(path):
    """Twelve states and commands of a third party's desk arm at 100 Hz."""
    types = bag.typestore()
    t = types.types
    layout = t["std_msgs/msg/MultiArrayLayout"](dim=[], data_offset=0)
    names = ["waist", "shoulder", "elbow", "forearm_roll", "wrist_pitch", "wrist_roll"]
    writer = bag.BagWriter(path)
    for k in range(12):
        when = 1_000_000_000 + k * 10_000_000
        stamp = t["builtin_interfaces/msg/Time"](sec=0, nanosec=0)
        header = t["std_msgs/msg/Header"](stamp=stamp, frame_id="")
        state = t["sensor_msgs/msg/JointState"](
            header=header, name=names, position=np.full(6, 0.01 * k), velocity=np.zeros(6), effort=np.zeros(0)
        )
        command = t["std_msgs/msg/Float64MultiArray"](layout=layout, data=np.full(6, 0.01 * k))
        for topic, kind, message, late in (
            ("/js", "sensor_msgs/msg/JointState", state, 0),
            ("/cmd", "std_msgs/msg/Float64MultiArray", command, 1_000_000),
        ):
            writer.write(topic, kind, bytes(types.serialize_cdr(message, kind)), when + late)
    writer.close()


def test_session_convert_and_join_as_typed(tmp_path) -> None:
    foreign(tmp_path / "b")
    arguments = [str(tmp_path / "b"), str(tmp_path / "a.hdf5"), "robot_spec=desk_arm", "joints=/js", "executed=/cmd"]
    assert main("convert", arguments).startswith("11 steps written")
    assert main("join", [str(tmp_path / "a.hdf5"), str(tmp_path / "all.hdf5")]).startswith("11 steps")
    columns, facts = session.read(tmp_path / "all.hdf5")
    assert facts["robot"] == "desk_arm"
    np.testing.assert_allclose(columns["infos/command"][:, 0], 0.01 * np.arange(1, 12))


@pytest.mark.parametrize(
    ("verb", "arguments", "words"),
    [
        ("", [], "expected one of convert, join, recover"),
        ("convert", ["a", "b"], "robot_spec="),
        ("convert", ["a", "b", "robot_spec=desk_arm", "ticks=hours"], "expected one of executed, rate or command"),
        ("convert", ["a", "b", "robot_spec=desk_arm", "rate=fast"], "expected a number"),
        ("convert", ["a", "b", "robot_spec=desk_arm", "speed=3"], "no option"),
        ("convert", ["a", "b.hdf5", "robot_spec=desk_arm"], "no rosbag2 folder"),
        ("recover", ["a", "b"], "no .mcap file"),
        ("join", ["nowhere", "out.hdf5"], "."),
    ],
)
def test_session_wrong_request_says_what_to_do(verb, arguments, words, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises((ValueError, OSError), match=words):
        main(verb, arguments)
