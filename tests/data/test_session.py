"""Episode files of recorded sessions and rosbag2 bags: what is on the disk after a kill, a full disk, a join."""

import os
import resource
import signal

import numpy as np
import pytest

from robot_rl.data import d4rl, session
from robot_rl.data.read_options import ReadOptions

bag = pytest.importorskip("robot_rl.data.bag")


def table(rows=5, **changes):
    last = np.arange(rows) == rows - 1
    columns = {
        "observations": np.arange(2.0 * rows, dtype=np.float32).reshape(rows, 2),
        "actions": np.full((rows, 1), 0.5, np.float32),
        "rewards": np.ones(rows, np.float32),
        "terminals": np.zeros(rows, bool),
        "timeouts": last,
        "next_observations": np.arange(2.0 * rows, dtype=np.float32).reshape(rows, 2) + 2.0,
        "infos/valid": np.ones(rows, bool),
    }
    return {**columns, **changes}


def test_session_round_trip_keeps_columns_pictures_and_attributes(tmp_path) -> None:
    shots = [b"\xff\xd8" + bytes([i]) * (i + 1) for i in range(5)]
    stills = np.arange(5 * 4 * 6 * 3, dtype=np.uint8).reshape(5, 4, 6, 3)
    columns = table(**{"images/wrist": shots, "images/front": stills})
    path = session.write(tmp_path / "a.hdf5", columns, {"rate": 20.0, "spec": {"name": "arm"}})
    back, facts = session.read(path)
    assert back["images/wrist"] == shots
    for key in columns.keys() - {"images/wrist"}:
        np.testing.assert_array_equal(back[key], columns[key])
    assert facts == {"schema": 1, "rate": 20.0, "spec": {"name": "arm"}}


def test_session_pictures_are_stored_once_and_found_again_after_a_join(tmp_path) -> None:
    for number, rows in enumerate((3, 4)):
        shots = [bytes([number, k]) for k in range(2)]
        seen = np.array([-1, 0, 1, 1][:rows], np.int32)
        columns = table(rows, **{"images/wrist": shots, "infos/picture_wrist": seen})
        session.write(session.next_path(tmp_path / "s"), columns, {})
    session.join([tmp_path / "s"], tmp_path / "all.hdf5")
    back, _ = session.read(tmp_path / "all.hdf5")
    assert back["images/wrist"] == [b"\x00\x00", b"\x00\x01", b"\x01\x00", b"\x01\x01"]
    assert back["infos/picture_wrist"].tolist() == [-1, 0, 1, -1, 2, 3, 3]
    assert [len(e) for e in d4rl.read(tmp_path / "all.hdf5").episodes] == [3, 4]


def test_session_refuses_a_row_that_saw_a_picture_that_is_not_there(tmp_path) -> None:
    columns = table(3, **{"images/wrist": [b"a"], "infos/picture_wrist": np.array([0, 0, 1], np.int32)})
    with pytest.raises(ValueError, match="names picture 1, images/wrist has 1"):
        session.write(tmp_path / "a.hdf5", columns, {})


def test_session_is_read_by_the_d4rl_reader(tmp_path) -> None:
    path = session.write(tmp_path / "a.hdf5", table(), {})
    episode = d4rl.read(path, ReadOptions(infos=True)).episodes[0]
    assert episode.truncated
    assert not episode.terminated
    np.testing.assert_array_equal(episode.obs["state"][-1], [10.0, 11.0])
    assert episode.meta["columns"]["infos/valid"].all()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"terminals": np.ones(5, bool)}, "terminal and timeout at once"),
        ({"timeouts": np.zeros(5, bool)}, "only end on its last row"),
        ({"rewards": np.ones(4, np.float32)}, "differ in length"),
    ],
)
def test_session_bad_table_is_refused(tmp_path, change, words) -> None:
    with pytest.raises(ValueError, match=words):
        session.write(tmp_path / "a.hdf5", table(**change), {})
    assert not list(tmp_path.iterdir())


def test_session_joined_episodes_are_one_d4rl_file(tmp_path) -> None:
    for rows in (3, 4):
        session.write(session.next_path(tmp_path / "s"), table(rows), {"robot": "arm"})
    assert session.join([tmp_path / "s"], tmp_path / "all.hdf5") == 7
    episodes = d4rl.read(tmp_path / "all.hdf5").episodes
    assert [len(e) for e in episodes] == [3, 4]
    with pytest.raises(FileExistsError, match="choose another name"):
        session.join([tmp_path / "s"], tmp_path / "all.hdf5")


def test_session_write_on_a_full_disk_leaves_nothing(tmp_path, fork) -> None:
    long = table(2000)
    session.write(tmp_path / "episode_000000.hdf5", long, {})

    def write(_: object) -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
        with pytest.raises(OSError, match=r"."):
            session.write(tmp_path / "episode_000001.hdf5", long, {})

    assert fork(write).wait() == (0, "")
    assert [path.name for path in tmp_path.iterdir()] == ["episode_000000.hdf5"]
    assert len(session.read(tmp_path / "episode_000000.hdf5")[0]["actions"]) == 2000


def messages(count):
    types = bag.typestore()
    kind = "std_msgs/msg/Float64"
    return [(kind, bytes(types.serialize_cdr(types.types[kind](float(i)), kind)), 1_000 + i) for i in range(count)]


@pytest.mark.parametrize("storage", ["mcap", "sqlite3"])
def test_bag_round_trip_keeps_bytes_order_and_times(tmp_path, storage) -> None:
    pytest.importorskip("rosbags")
    writer = bag.BagWriter(tmp_path / "b", storage=storage)
    sent = messages(50)
    for kind, raw, when in sent:
        writer.write("/reward", kind, raw, when)
    writer.close()
    assert [(k, r, t) for _, k, r, t in bag.read(tmp_path / "b")] == sent
    assert {(topic, kind) for topic, kind, _, _ in bag.read(tmp_path / "b")} == {("/reward", "std_msgs/msg/Float64")}
    with pytest.raises(ValueError, match="nothing is overwritten"):
        bag.BagWriter(tmp_path / "b")


def test_bag_split_parts_read_as_one(tmp_path) -> None:
    pytest.importorskip("rosbags")
    writer = bag.BagWriter(tmp_path / "b", max_bytes=100)
    for kind, raw, when in messages(30):
        writer.write("/reward", kind, raw, when)
    writer.close()
    assert len(writer.parts) > 1
    assert [t for *_, t in bag.read(tmp_path / "b")] == list(range(1_000, 1_030))


def test_bag_of_a_killed_writer_is_refused_and_recovered(tmp_path, fork) -> None:
    pytest.importorskip("rosbags")

    def write(_: object) -> None:
        writer = bag.BagWriter(tmp_path / "b")
        for i in range(200_000):
            writer.write("/reward", "std_msgs/msg/Float64", bytes(12), 1000 + i)
        os.kill(os.getpid(), signal.SIGKILL)

    assert fork(write).wait()[0] == -signal.SIGKILL
    with pytest.raises(ValueError, match="data session recover"):
        list(bag.read(tmp_path / "b"))
    count = bag.recover(tmp_path / "b", tmp_path / "c")
    assert count > 150_000  # all but the chunk that was being filled
    assert sum(topic == "/reward" for topic, *_ in bag.read(tmp_path / "c")) == count


def test_a_file_that_somebody_renamed_stops_no_recording(tmp_path):
    (tmp_path / "episode_000003_good.hdf5").touch()
    assert session.next_path(tmp_path).name == "episode_000000.hdf5"
    (tmp_path / "episode_000004.hdf5").touch()
    assert session.next_path(tmp_path).name == "episode_000005.hdf5"


def test_pictures_that_only_some_episodes_number_are_left_out(tmp_path):
    session.write(tmp_path / "s/episode_000000.hdf5", table(4, **{"images/wrist": [b"a"] * 4}), {})
    seen = {"images/wrist": [b"b"], "infos/picture_wrist": np.zeros(4, np.int32)}
    session.write(tmp_path / "s/episode_000001.hdf5", table(4, **seen), {})
    session.join([tmp_path / "s"], tmp_path / "all.hdf5")
    assert {len(column) for column in session.read(tmp_path / "all.hdf5")[0].values()} == {8}


def test_a_recording_that_cannot_be_recovered_leaves_nothing(tmp_path):
    rosbag2 = pytest.importorskip("rosbags.rosbag2")
    types = pytest.importorskip("rosbags.typesys")
    own = types.get_typestore(types.Stores.ROS2_HUMBLE)
    own.register(types.get_types_from_msg("float64 x", "my_msgs/msg/X"))
    with rosbag2.Writer(tmp_path / "b", version=9, storage_plugin=rosbag2.StoragePlugin.MCAP) as writer:
        topic = writer.add_connection("/x", "my_msgs/msg/X", typestore=own)
        writer.write(topic, 1, own.serialize_cdr(own.types["my_msgs/msg/X"](1.0), "my_msgs/msg/X"))
    with pytest.raises(ValueError, match="which is no standard message"):
        bag.recover(tmp_path / "b", tmp_path / "new")
    assert not (tmp_path / "new").exists()
