"""Bags made here with known signals, and the real ones: what comes out, and what is explained."""

from __future__ import annotations

import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))
from broken import hashes

from robot_rl.data import bag as recorded
from robot_rl.data import rosbag
from robot_rl.data.actions import settle
from robot_rl.data.convert import validate
from robot_rl.data.findings import BadData, exit_code
from robot_rl.data.log_map import check_map
from robot_rl.data.read_options import ReadOptions

rosbag2 = pytest.importorskip("rosbags.rosbag2", reason="needs rosbags (extra `logs`)")
typesys = pytest.importorskip("rosbags.typesys")
STORE = typesys.get_typestore(typesys.Stores.ROS2_HUMBLE)
BAGS = next((p for p in (up / "shared/data/rosbag2" for up in Path(__file__).parents) if p.exists()), Path("absent"))
real = pytest.mark.skipif(not BAGS.exists(), reason="the folder shared/data/rosbag2 is absent")

MAP: dict[str, Any] = {
    "clock": 20,
    "observation": [
        {"topic": "/joint_states", "field": "position", "joints": ["a", "b"]},
        {"topic": "/joint_states", "field": "velocity", "joints": ["b"]},
    ],
    "action": {"topic": "/command", "field": "data"},
    "max_age_s": 0.06,
}


def stamp(at: float) -> Any:
    time = STORE.types["builtin_interfaces/msg/Time"]
    return time(sec=int(at), nanosec=round((at - int(at)) * 1e9))


def joints(at: float, turned: bool, stamped: float | None = None) -> Any:
    """a(t) = t, b(t) = 10 t; the order of the joints changes from message to message."""
    names, position, velocity = ["a", "b"], [at, 10 * at], [1.0, 10.0]
    if turned:
        names, position, velocity = names[::-1], position[::-1], velocity[::-1]
    header = STORE.types["std_msgs/msg/Header"](stamp=stamp(at if stamped is None else stamped), frame_id="")
    kind = STORE.types["sensor_msgs/msg/JointState"]
    return kind(header, names, np.array(position), np.array(velocity), np.zeros(2))


def bag(path: Path, mcap: bool = True, gap: tuple[float, float] = (9e9, 9e9), late: float = 0.0, **change: Any) -> Path:
    """Three seconds: joints at 50 Hz (times of reception `late` behind), commands floor(t / 0.5) every 0.5 s."""
    plugin = rosbag2.StoragePlugin.MCAP if mcap else rosbag2.StoragePlugin.SQLITE3
    with rosbag2.Writer(path, version=9, storage_plugin=plugin) as writer:
        state = writer.add_connection("/joint_states", "sensor_msgs/msg/JointState", typestore=STORE)
        command = writer.add_connection("/command", "std_msgs/msg/Float64MultiArray", typestore=STORE)
        layout = STORE.types["std_msgs/msg/MultiArrayLayout"](dim=[], data_offset=0)
        rows: list[tuple[float, Any, Any]] = []
        for i in range(151):
            at = 100.0 + i * 0.02
            if not gap[0] < at - 100 < gap[1]:
                rows.append((at + late, state, joints(at, i % 2 == 1, change.get("stamped"))))
        for i in range(7):
            array = STORE.types["std_msgs/msg/Float64MultiArray"](layout, np.array([i / 10]))
            rows.append((100.0 + i * 0.5, command, array))
        for at, connection, message in sorted(rows, key=lambda row: row[0]):
            kind = connection.msgtype
            writer.write(connection, round(at * 1e9), STORE.serialize_cdr(message, kind))
    return path


def text(path: Path, code: int, **options: Any) -> str:
    before = hashes(path)
    findings = validate(path, **options)
    assert exit_code(findings) == code, [str(f) for f in findings]
    assert hashes(path) == before
    return "\n".join(map(str, findings))


@pytest.mark.parametrize("mcap", [True, False])
def test_known_signals_are_resampled(tmp_path: Path, mcap: bool) -> None:
    (one,) = rosbag.read(bag(tmp_path / "b", mcap, late=0.007), ReadOptions(map=MAP, ros_distro="humble")).episodes
    # the clock begins when both topics have spoken and runs at 20 Hz to the end: 3 s
    assert len(one) == 60
    t = one.stamp - 100.0
    np.testing.assert_allclose(np.diff(one.stamp), 0.05)
    np.testing.assert_allclose(one.obs["state"][:, 0], 100 + t, atol=1e-4)  # header stamps, not times of reception
    np.testing.assert_allclose(one.obs["state"][:, 1], 10 * (100 + t), atol=1e-3)  # by name, whatever the order
    np.testing.assert_allclose(one.obs["state"][:, 2], 10.0)
    # the command in force over [t, t + dt): the last one at or before t
    np.testing.assert_allclose(one.action[:, 0], np.floor((t[:-1] + 1e-9) / 0.5) / 10, atol=1e-6)
    assert (one.terminated, one.truncated) == (False, True)


def test_stale_source_cuts_the_episode(tmp_path: Path) -> None:
    path = bag(tmp_path / "b", gap=(1.0, 1.5))
    logs = rosbag.read(path, ReadOptions(map=MAP, ros_distro="humble"))
    assert len(logs.episodes) == 2
    assert logs.episodes[0].meta["cut"]
    assert any("have an observation older than 0.06 s" in str(f) for f in logs.findings)
    longer = rosbag.read(path, ReadOptions(map={**MAP, "max_age_s": 1.0}, ros_distro="humble"))
    assert len(longer.episodes) == 1


def test_stamps_of_zero_fall_back_to_reception(tmp_path: Path) -> None:
    path = bag(tmp_path / "b", stamped=0.0)
    logs = rosbag.read(path, ReadOptions(map=MAP, ros_distro="humble"))
    assert len(logs.episodes[0]) == 60  # no message of this topic has a stamp: reception throughout
    mixed = tmp_path / "m"
    with rosbag2.Writer(mixed, version=9, storage_plugin=rosbag2.StoragePlugin.MCAP) as writer:
        state = writer.add_connection("/joint_states", "sensor_msgs/msg/JointState", typestore=STORE)
        for i in range(100):
            at = 100 + i * 0.02
            message = joints(at, False, 0.0 if i == 50 else at - 5.0)
            writer.write(state, round(at * 1e9), STORE.serialize_cdr(message, state.msgtype))
    plan = {**MAP, "action": {"topic": "/joint_states", "field": "effort"}}
    logs = rosbag.read(mixed, ReadOptions(map=plan, ros_distro="humble"))
    assert any("1 stamps are 0 and 1 run backwards: times of reception are used" in str(f) for f in logs.findings)
    assert logs.episodes[0].stamp[0] == pytest.approx(100.0)


def test_bounds_of_the_map_become_one(tmp_path: Path) -> None:
    plan = {**MAP, "action_low": 0.0, "action_high": [0.5], "action_units": "N*m"}
    logs, _ = settle(rosbag.read(bag(tmp_path / "b"), ReadOptions(map=plan, ros_distro="humble")))
    assert (logs.episodes[0].action[0, 0], logs.episodes[0].action[-1, 0]) == (-1.0, 1.0)
    assert (logs.io.action_low, logs.io.action_high, logs.io.action_units) == ((0.0,), (0.5,), ("N*m",))
    for ends in ({"action_low": 0.0}, {"action_low": 0.5, "action_high": 0.0}, {"action_low": "x", "action_high": 1}):
        with pytest.raises(BadData, match="expected for both a number or a list of 1"):
            rosbag.read(tmp_path / "b", ReadOptions(map={**MAP, **ends}, ros_distro="humble"))


def test_slerp_aligns_signs_and_follows_the_arc() -> None:
    half = np.sqrt(0.5)
    turn = np.array([[0, 0, 0, 1], [0, 0, -half, -half]])  # 90 degrees about z, second with its sign turned
    (middle,) = rosbag.slerp(np.array([0.0, 1.0]), turn, np.array([0.5]))
    np.testing.assert_allclose(middle, [0, 0, np.sin(np.pi / 8), np.cos(np.pi / 8)], atol=1e-12)


def test_angles_are_unwrapped_before_interpolation() -> None:
    value = rosbag._resample("angle", np.array([0.0, 1.0]), np.array([[3.1], [-3.1]]), np.array([0.5]))
    assert value[0, 0] == pytest.approx(np.pi, abs=1e-9)


def test_maps_are_checked(tmp_path: Path) -> None:
    path = bag(tmp_path / "b")
    assert "/joint_states (sensor_msgs/msg/JointState, 151)" in text(path, 0, ros_distro="humble")
    with pytest.raises(BadData, match="nothing says what they are; give map="):
        rosbag.read(path, ReadOptions(ros_distro="humble"))
    with pytest.raises(ValueError, match="clocks is no option of a map; did you mean clock"):
        rosbag.read(path, ReadOptions(map={"clocks": 3}))
    with pytest.raises(BadData, match="has no topic /cmd; it has /command, /joint_states"):
        rosbag.read(path, ReadOptions(map={**MAP, "action": {"topic": "/cmd", "field": "data"}}, ros_distro="humble"))
    plan = {**MAP, "observation": [{"topic": "/joint_states", "field": "position", "joints": ["c"]}]}
    with pytest.raises(BadData, match="has no joint c; it has a, b"):
        rosbag.read(path, ReadOptions(map=plan, ros_distro="humble"))
    with pytest.raises(BadData, match="has no field 'angle'; it has header"):
        rosbag.read(
            path,
            ReadOptions(
                map={**MAP, "observation": [{"topic": "/joint_states", "field": "angle"}]}, ros_distro="humble"
            ),
        )
    with pytest.raises(ValueError, match="ros_distro is 'noetical'"):
        rosbag.read(path, ReadOptions(map=MAP, ros_distro="noetical"))


def test_truncated_mcap_is_explained_and_salvaged(tmp_path: Path) -> None:
    path = bag(tmp_path / "b")
    (file,) = path.glob("*.mcap")
    data = file.read_bytes()
    file.write_bytes(data[: len(data) * 6 // 10])
    assert "is cut short" in text(path, 2, map=MAP)
    assert "ros2 bag reindex`, or salvage=true" in text(path, 2, map=MAP)
    logs = rosbag.read(path, ReadOptions(map=MAP, salvage=True))
    (one,) = logs.episodes
    assert 10 < len(one) < 60
    np.testing.assert_allclose(one.obs["state"][:, 0], one.stamp, atol=1e-4)
    assert any("messages before the break are read (salvage)" in str(f) for f in logs.findings)


def test_malformed_database(tmp_path: Path) -> None:
    path = bag(tmp_path / "b", mcap=False)
    (file,) = path.glob("*.db3")
    file.write_bytes(file.read_bytes()[:10_000])
    assert "its database is malformed" in text(path, 2, map=MAP, ros_distro="humble")


def test_bag_without_metadata_offers_the_file(tmp_path: Path) -> None:
    path = bag(tmp_path / "b")
    (path / "metadata.yaml").unlink()
    (file,) = path.glob("*.mcap")
    assert f"has no metadata.yaml; name {file.name} itself, or run `ros2 bag reindex`" in text(path, 2)
    assert len(rosbag.read(file, ReadOptions(map=MAP, ros_distro="humble")).episodes[0]) == 60


def test_bag_without_type_definitions_asks_for_the_distribution(tmp_path: Path) -> None:
    path = bag(tmp_path / "b", mcap=False)
    import sqlite3

    (file,) = path.glob("*.db3")
    with sqlite3.connect(file) as database:  # as older recorders wrote it
        database.execute("DELETE FROM message_definitions")
    assert "contains no type definitions; give ros_distro=" in text(path, 2, map=MAP)
    assert len(rosbag.read(path, ReadOptions(map=MAP, ros_distro="humble")).episodes[0]) == 60


@real
def test_real_bag_with_a_foreign_serialisation_is_explained() -> None:
    assert "wrong_format" in text(BAGS / "mcap/wrong_rmw_test", 2)


@real
@pytest.mark.parametrize("name", ["mcap/talker", "mcap/cdr_test", "sqlite3/talker"])
def test_real_good_bags_open(name: str) -> None:
    assert "has the topics" in text(BAGS / name, 0, ros_distro="humble")


@real
def test_real_truncated_talker(tmp_path: Path) -> None:
    shutil.copytree(BAGS / "mcap/talker", tmp_path / "t")
    file = tmp_path / "t/talker.mcap"
    data = file.read_bytes()
    file.chmod(0o644)
    file.write_bytes(data[: len(data) * 2 // 3])
    assert "is cut short (File end magic is invalid.)" in text(tmp_path / "t", 2)


@dataclass
class Said:
    data: np.ndarray


def test_an_episode_that_is_begun_anew_before_its_stop_ends_there() -> None:
    def topic(times: Any, value: Any = float) -> rosbag._Topic:
        made = rosbag._Topic()
        for at in times:
            made.received.append(float(at))
            made.stamped.append(0.0)
            made.message.append(Said(np.array([value(at)])))
        return made

    topics = {"/s": topic(np.arange(0, 30, 0.1), np.sin), "/c": topic(np.arange(0, 30, 0.1), np.cos)}
    topics |= {"/start": topic([1, 5, 20]), "/stop": topic([10, 25])}
    plan = {
        "clock": 10,
        "observation": [{"topic": "/s", "field": "data"}],
        "action": {"topic": "/c", "field": "data"},
        "episode": {"start": "/start", "stop": "/stop"},
    }
    found = rosbag._convert(Path("log.mcap"), rosbag.BagMap(**plan), topics, []).episodes
    assert [(round(e.stamp[0]), round(e.stamp[-1]), "cut" in e.meta) for e in found] == [
        (1, 5, True), (5, 10, False), (20, 25, False),
    ]  # fmt: skip


def spoken(times: Any) -> rosbag._Topic:
    """A topic that tells at each time just this time."""
    made = rosbag._Topic()
    for at in np.asarray(times, float).tolist():
        made.received.append(at)
        made.stamped.append(0.0)
        made.message.append(Said(np.array([at])))
    return made


def test_a_gap_leaves_out_what_no_topic_had_told_yet_and_cuts_between_signals() -> None:
    plan: dict[str, Any] = {
        "clock": 10,
        "observation": [{"topic": "/s", "field": "data"}],
        "action": {"topic": "/c", "field": "data"},
        "episode": {"gap_s": 2.0},
    }
    topics = {"/s": spoken(np.r_[0:1:0.1, 10:20:0.1]), "/c": spoken(np.arange(10.5, 20, 0.1))}
    (one,) = rosbag._convert(Path("log.mcap"), rosbag.BagMap(**plan), topics, []).episodes
    np.testing.assert_allclose(one.action[:3, 0], [10.5, 10.6, 10.7], rtol=1e-6)  # no command of later
    times = np.r_[0:5:0.1, 10:15:0.1]
    topics = {"/s": spoken(times), "/c": spoken(times), "/start": spoken([1.0]), "/stop": spoken([14.0])}
    plan["episode"] = {"start": "/start", "stop": "/stop", "gap_s": 2.0}
    found = rosbag._convert(Path("log.mcap"), rosbag.BagMap(**plan), topics, []).episodes
    assert [(round(e.stamp[0], 1), round(e.stamp[-1], 1), "cut" in e.meta) for e in found] == [
        (1.0, 4.9, True), (10.0, 14.0, False),
    ]  # fmt: skip


def test_steps_keep_their_distance_at_times_since_1970() -> None:
    begin = 1.7e9
    plan = {**MAP, "clock": 1000, "observation": [{"topic": "/s", "field": "data"}]}
    plan["action"] = {"topic": "/c", "field": "data"}
    topics = {name: spoken(begin + np.arange(100_001) / 1000) for name in ("/s", "/c")}
    (one,) = rosbag._convert(Path("log.mcap"), rosbag.BagMap(**plan), topics, []).episodes
    assert len(one) == 100_000
    assert one.stamp[-1] == begin + 100.0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"episode": {"stop": "/stop"}}, "expected start .a topic., with it stop, and gap_s"),
        ({"episode": {"gap": 2.0}}, "episode.gap is no key of a map"),
        ({"reward": "high"}, "reward.number: Input should be a valid number"),
        (
            {"action": {"topic": "/command", "field": "data", "latency": 0.1}},
            "action.latency is no key of a map",
        ),
        (
            {"action": {"topic": "/command", "field": "data", "kind": "linear"}},
            "action.kind: Input should be 'zoh'",
        ),
        (
            {"observation": [{"topic": "/joint_states", "field": "position", "joint": ["a"]}]},
            "observation.0.joint is no key of a map; did you mean joints",
        ),
    ],
)
def test_what_a_map_says_in_vain_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(BadData, match=message):
        check_map("the map", {**MAP, **change}, rosbag.BagMap)


def test_topics_that_do_not_meet_and_joints_without_numbers_are_named(tmp_path: Path) -> None:
    topics = {"/joint_states": spoken([1.0, 2.0]), "/command": spoken([5.0, 6.0])}
    plan = {**MAP, "observation": [{"topic": "/joint_states", "field": "data"}]}
    with pytest.raises(
        BadData, match=r"no time at which every topic speaks: /joint_states from 1.000 to 2.000 s, /comm"
    ):
        rosbag._convert(Path("log.mcap"), rosbag.BagMap(**plan), topics, [])
    silent = joints(1.0, False)
    silent.velocity = np.zeros(0)  # as drivers without velocities send it
    topic = rosbag._Topic(message=[silent])
    with pytest.raises(BadData, match="has no joint b; it has none in 'velocity'"):
        rosbag._values(topic, rosbag.BagMap(**MAP).observation[1])


def test_a_field_that_is_called_stamp_and_is_a_number_is_no_time() -> None:
    @dataclass
    class Counted:
        stamp: float

    assert rosbag._stamp(Counted(3.0)) == 0.0


def test_parts_of_a_recording_are_read_whatever_its_name_and_their_number(tmp_path: Path) -> None:
    raw = bytes(STORE.serialize_cdr(STORE.types["std_msgs/msg/Float64"](1.0), "std_msgs/msg/Float64"))
    for name in ("run[1]", "run[1]_002", "run[1]_1000"):
        writer = recorded.BagWriter(tmp_path / name)
        writer.write("/x", "std_msgs/msg/Float64", raw, 1 + len(name))
        writer.close()
    assert len(list(recorded.read(tmp_path / "run[1]"))) == 3
