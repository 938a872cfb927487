"""Steps out of messages: hand-worked rows, and the live file against the one made from its bag."""

import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest

from robot_rl.data import d4rl, session
from robot_rl.real.cameras import compressed_pixels
from robot_rl.real.core.assembler import Assembler, StepRules
from robot_rl.real.core.recording import Feeder, RecordSettings, SessionRecorder, convert, topic_table

bag = pytest.importorskip("robot_rl.data.bag")
pytest.importorskip("rosbags")


# ---------------------------------------------------------------- assembler


def test_a_command_that_lacks_a_joint_is_counted_and_the_recording_goes_on(make_arm) -> None:
    feeder, stamp = Feeder(Assembler(make_arm(), StepRules()), make_arm()), SimpleNamespace(sec=0, nanosec=0)
    point = SimpleNamespace(positions=[0.1, 0.2], velocities=[], effort=[])
    header = SimpleNamespace(stamp=stamp, frame_id="somebody/1")
    feeder.feed("command:teleop", SimpleNamespace(header=header, joint_names=["j0", "j1"], points=[point]), 0.0)
    assert feeder.broken == 1


def test_a_twist_without_a_header_is_recorded_as_a_sensor(make_arm) -> None:
    linear, angular = SimpleNamespace(x=0.5, y=0.0, z=0.0), SimpleNamespace(x=0.0, y=0.0, z=-0.2)
    feeder = Feeder(Assembler(make_arm(), StepRules()), make_arm())
    feeder.feed("sensor:where_to", SimpleNamespace(linear=linear, angular=angular), 0.0)
    assert feeder.broken == 0
    np.testing.assert_array_equal(feeder.assembler._sensors["where_to"], [0.5, 0.0, 0.0, 0.0, 0.0, -0.2])


@pytest.mark.parametrize("age", [0.001, 0.0092])
@pytest.mark.parametrize("offset", [0.0, 0.3])
def test_a_step_has_the_state_that_its_sender_saw_however_late_the_recorder_is(make_arm, age, offset) -> None:
    """States every 10 ms; commands from the newest of them, `age` old; the recorder takes each 0.4 to 8 ms late."""
    late, base = np.random.default_rng(0).uniform(0.0004, 0.008, (200, 3)), 1000.0

    def header(stamp, frame=""):
        whole, rest = divmod(round(1e9 * (base + stamp)), 10**9)
        return SimpleNamespace(stamp=SimpleNamespace(sec=whole, nanosec=rest), frame_id=frame)

    def point(value):
        return [SimpleNamespace(positions=np.full(3, value), velocities=[], effort=[])]

    feeder, names = Feeder(Assembler(make_arm(), StepRules(ticks="command")), make_arm()), ["j0", "j1", "j2"]
    told = []
    for k, (first, second, third) in enumerate(late):
        value, now = 0.001 * k, 0.01 * k
        state = {"name": names, "position": np.full(3, value), "velocity": np.zeros(3), "effort": []}
        told.append((now + first, "joints:arm", SimpleNamespace(header=header(now + offset), **state)))
        rows = {"joint_names": names, "points": point(value)}
        sent = SimpleNamespace(header=header(now + age, f"p/{k}"), **rows)
        done = SimpleNamespace(header=header(now + age + 0.0005, f"policy|p/{k}|"), **rows)
        told += [(now + age + second, "command:policy", sent), (now + age + max(second, third), "executed", done)]
    for when, role, message in sorted(told, key=lambda item: item[0]):
        feeder.feed(role, message, base + when)
    columns = feeder.assembler.end()
    assert feeder.broken == 0
    assert columns is not None
    seen, asked = columns["infos/qpos"][20:, 0], columns["infos/command"][20:, 0]
    assert (np.round(1000 * seen) == np.round(1000 * asked)).mean() > 0.98


def feed(assembler, time, position, velocity=0.0):
    assembler.joints(time, ["j0", "j1", "j2"], np.full(3, float(position)), np.full(3, float(velocity)), None)


def test_assembler_joins_efforts_of_several_senders(make_arm) -> None:
    a = Assembler(make_arm(observation=["joint_efforts"]), StepRules(tolerance=1.0))
    for time_, lift in ((0.0, 0.0), (0.1, 1.0)):
        a.joints(time_, ["j2", "j0"], np.zeros(2), np.zeros(2), np.array([3.0, 1.0]) + lift)
        a.joints(time_, ["j1"], np.zeros(1), np.zeros(1), np.array([2.0]) + lift)
    for k in range(2):
        a.add_executed(0.2 + 0.1 * k, np.zeros(3), "policy", f"p/{k}", "")
    c = a.end()
    np.testing.assert_array_equal((c or {})["observations"], [[2.0, 3.0, 4.0]])


def test_a_recording_has_the_wrench_whatever_its_sensor_is_called(make_arm) -> None:
    sensors = {"ft": {"topic": "ft/raw", "type": "geometry_msgs/WrenchStamped"}}
    a = Assembler(make_arm(observation=["wrench"], sensors=sensors), StepRules(tolerance=1.0))
    a.sensor("ft", np.arange(6.0))
    feed(a, 0.0, 0.0)
    for k in range(2):
        a.add_executed(0.1 + 0.1 * k, np.zeros(3), "policy", f"p/{k}", "")
    np.testing.assert_array_equal((a.end() or {})["observations"], [np.arange(6.0)])


def test_assembler_executed_ticks_by_hand(make_arm) -> None:
    """States at 0.00 and 0.10 s; executed at 0.01, 0.11, 0.21: the first executed message only says where it stands."""
    a = Assembler(make_arm(), StepRules(ticks="executed", rate=10.0, end_on_success=True))
    feed(a, 0.00, 0.1)
    a.add_executed(0.01, np.full(3, 0.0), "policy", "p/1", "")
    feed(a, 0.10, 0.2)
    a.add_executed(0.11, np.full(3, 0.99), "policy", "p/2", "c")
    a.reward(2.0)  # in the period of the step that began at 0.11
    feed(a, 0.20, 0.3)
    a.add_executed(0.21, np.full(3, 1.98), "human", "t/1", "")
    a.success(True)
    c = a.end()
    assert c is not None
    np.testing.assert_allclose(c["observations"][:, 0], [0.2, 0.3])
    np.testing.assert_allclose(c["next_observations"][:, 0], [0.3, 0.3])
    np.testing.assert_allclose(c["actions"][:, 0], [0.5, 1.0])
    np.testing.assert_array_equal(c["rewards"], [2.0, 0.0])
    np.testing.assert_array_equal(c["terminals"], [False, True])
    np.testing.assert_array_equal(c["timeouts"], [False, False])
    np.testing.assert_array_equal(c["infos/intervened"], [False, True])
    np.testing.assert_array_equal(c["infos/clipped"], [True, False])
    assert c["infos/policy_id"].tolist() == [b"p", b"t"]
    np.testing.assert_allclose(c["infos/obs_age"], 0.01, atol=1e-9)


def test_a_step_keeps_its_state_however_long_it_lasts(make_arm) -> None:
    """Ticks at 0.5 and 2.5 s, a state every millisecond, and the end at 5 s: far more than the newest that are kept."""
    a = Assembler(make_arm(), StepRules(ticks="executed", rate=0.5))
    for k in range(5000):
        feed(a, 0.001 * k, 1e-4 * k)
        if k in (1, 500, 2500):
            a.add_executed(0.001 * k + 0.0005, np.zeros(3), "policy", f"p/{k}", "")
    c = a.end()
    assert c is not None
    np.testing.assert_allclose(c["observations"][:, 0], [0.05, 0.25])
    np.testing.assert_allclose(c["next_observations"][:, 0], [0.25, 0.4999])
    np.testing.assert_allclose(c["infos/obs_age"], 0.0005)


def test_assembler_stores_every_picture_once_though_steps_are_faster(make_arm) -> None:
    a = Assembler(make_arm(), StepRules(ticks="executed", rate=10.0))
    for k in range(6):
        feed(a, 0.1 * k, 0.1 * k)
        if k in (2, 4):  # two equal pictures are two pictures
            a.image("wrist", bytes(bytearray(b"jpeg")))
        a.add_executed(0.1 * k + 0.01, np.full(3, 0.1 * k), "policy", f"p/{k}", "")
    columns = a.end()
    assert columns is not None
    assert columns["images/wrist"] == [b"jpeg", b"jpeg"]
    assert columns["infos/picture_wrist"].tolist() == [-1, 0, 0, 1, 1]


def test_recorder_keeps_raw_pictures_without_loss(tmp_path, make_arm) -> None:
    camera = {"wrist": {"topic": "camera/wrist/image_raw", "type": "sensor_msgs/Image"}}
    stream = Stream(make_arm(cameras=camera))
    pixels = np.random.default_rng(0).integers(0, 256, (6, 8, 3), np.uint8)
    picture = stream.raw(
        "camera:wrist", height=6, width=8, encoding="rgb8", is_bigendian=0, step=24, data=pixels.reshape(-1)
    )
    recorder = SessionRecorder(stream.spec, stream.table, RecordSettings(str(tmp_path), bags=False))
    recorder.put("camera:wrist", picture)
    recorder.start().result(5)
    stream.play(recorder, 10)
    recorder.stop().result(5)
    recorder.close()
    columns, _ = session.read(session.episodes(tmp_path)[0])
    assert len(columns["images/wrist"]) == 1
    np.testing.assert_array_equal(compressed_pixels(columns["images/wrist"][0]), pixels)
    assert set(columns["infos/picture_wrist"].tolist()) == {0}


def test_assembler_success_is_a_level_unless_it_ends_the_episode(make_arm) -> None:
    a = Assembler(make_arm(), StepRules(rate=10.0))
    feed(a, 0.0, 0.0)
    for k, outcome in enumerate((None, None, True, None, False, None)):
        if outcome is not None:
            a.success(outcome)
        feed(a, 0.1 * k, 0.0)
        a.add_executed(0.1 * k, np.zeros(3), "policy", "p/1", "")
    c = a.end()
    assert c is not None
    # rows begin at 0.1 ... 0.5 s; success came within the first, went within the third
    np.testing.assert_array_equal(c["infos/success"], [True, True, False, False, False])
    np.testing.assert_array_equal(c["rewards"], [1, 1, 0, 0, 0])
    assert not c["terminals"].any()
    assert c["timeouts"][-1]


def test_assembler_rate_ticks_join_several_executed_messages(make_arm) -> None:
    """10 Hz steps of a 100 Hz supervisor: the action is what was commanded by the end of the step."""
    a = Assembler(make_arm(action={"mapping": "delta", "scale": [0.1]}), StepRules(ticks="rate", rate=10.0))
    for k in range(41):
        feed(a, k * 0.01, 0.001 * k)
        a.add_executed(k * 0.01 + 0.002, np.full(3, 0.001 * k), "policy", "p/1", "")
    c = a.end()
    assert c is not None
    assert len(c["actions"]) == 4
    # 0.001 rad per 10 ms is 0.01 rad per step; full scale is 0.1 rad
    np.testing.assert_allclose(c["actions"][:3], 0.1, atol=1e-6)


def test_assembler_old_state_and_latched_fault_make_steps_invalid(make_arm) -> None:
    a = Assembler(make_arm(), StepRules(rate=10.0))
    feed(a, 0.0, 0.0)
    for k, when in enumerate((0.0, 0.1, 0.4, 0.5)):  # nothing of the robot after 0 s: 0.4 s is older than 1.5 periods
        if k == 3:
            feed(a, 0.5, 0.0)
            a.safety("FAULT")
        a.add_executed(when, np.zeros(3), "policy", "p/1", "")
    c = a.end()
    assert c is not None
    np.testing.assert_array_equal(c["infos/valid"], [True, False, False])


def test_assembler_command_ticks_see_the_state_at_the_command_stamp(make_arm) -> None:
    """A decision made on the state of 1.00 s is executed at 1.03 s, when a newer state has come already."""
    a = Assembler(make_arm(), StepRules(ticks="command", rate=10.0))
    a.add_executed(0.9, np.zeros(3), "policy", "p/0", "")
    feed(a, 1.00, 0.5)
    a.command("p/1", 1.01, 1.0, np.full(3, 0.99))
    feed(a, 1.02, 0.6)
    a.add_executed(1.03, np.full(3, 0.2), "policy", "p/1", "")
    a.add_executed(1.04, np.full(3, 0.3), "policy", "p/1", "")
    c = a.end()
    assert c is not None
    np.testing.assert_allclose(c["observations"][0, 0], 0.5)
    np.testing.assert_allclose(c["infos/action_requested"][0], 0.5)
    np.testing.assert_allclose(c["infos/command"][0], 0.3)
    np.testing.assert_allclose(c["infos/latency"], 0.03, atol=1e-9)


# ---------------------------------------------------------------- recorder


class Stream:
    """Raw messages of a short session: two publishers with parts of the joints, a policy, rewards."""

    def __init__(self, spec) -> None:
        self.types, self.spec = bag.typestore(), spec
        self.table = topic_table(spec)

    def raw(self, role, **fields):
        kind = self.table[role][1]
        return bytes(self.types.serialize_cdr(self.make(kind, fields), kind))

    def make(self, kind, fields):
        t = self.types.types
        if "JointState" in kind:
            full = {"position": np.zeros(0), "velocity": np.zeros(0), "effort": np.zeros(0), **fields}
            return t[kind](header=self.header(full.pop("stamp", 0.0)), **full)
        if "JointTrajectory" in kind:
            point = t["trajectory_msgs/msg/JointTrajectoryPoint"](
                positions=fields["value"],
                velocities=np.zeros(0),
                accelerations=np.zeros(0),
                effort=np.zeros(0),
                time_from_start=t["builtin_interfaces/msg/Duration"](sec=0, nanosec=0),
            )
            return t[kind](
                header=self.header(fields["stamp"], fields["frame"]), joint_names=list(self.spec.names), points=[point]
            )
        return t[kind](header=self.header(0.0), **fields) if kind.endswith("Image") else t[kind](data=fields["data"])

    def header(self, stamp, frame=""):
        t = self.types.types
        sec = int(stamp)
        time_ = t["builtin_interfaces/msg/Time"](sec=sec, nanosec=int((stamp - sec) * 1e9))
        return t["std_msgs/msg/Header"](stamp=time_, frame_id=frame)

    def play(self, recorder, steps=60, start=0):
        rng = np.random.default_rng(3)
        for k in range(start, start + steps):
            q = rng.normal(size=3)
            recorder.put("joints", self.raw("joints", name=["j2", "j0"], position=q[:2]))
            recorder.put("joints", self.raw("joints", name=["j1"], position=q[2:], velocity=q[:1]))
            value = rng.uniform(-1.5, 1.5, 3)
            stamp = 1e-9 * recorder.now()
            recorder.put("command:policy", self.raw("command:policy", value=value, stamp=stamp, frame=f"p/{k}"))
            frame = f"policy|p/{k}|{'c' if k % 3 else ''}"
            recorder.put("executed", self.raw("executed", value=value * 0.9, stamp=stamp, frame=frame))
            if k % 5 == 0:
                recorder.put("reward", self.raw("reward", data=float(k)))
            time.sleep(0.0005)


@pytest.mark.parametrize("ticks", ["executed", "rate", "command"])
def test_bag_converts_to_the_online_file(tmp_path, make_arm, ticks) -> None:
    spec = make_arm(observation=["joint_positions", "joint_velocities", "last_action"])
    rules = StepRules(ticks=ticks, rate=500.0, end_on_success=True)
    stream = Stream(spec)
    recorder = SessionRecorder(spec, stream.table, RecordSettings(str(tmp_path), rules=rules))
    stream.play(recorder, 20)  # before the episode: what is known then belongs to its first step
    recorder.start().result(5)
    stream.play(recorder, 60, start=20)
    recorder.put("success", stream.raw("success", data=True))
    found = recorder.stop().result(10)
    recorder.close()
    assert recorder.report.broken == recorder.report.dropped == 0, recorder.report
    assert "episode_000000.hdf5" in found
    count = convert(tmp_path / "bags/episode_000000", tmp_path / "again.hdf5", spec, rules)
    online, facts = session.read(tmp_path / "episode_000000.hdf5")
    offline, _ = session.read(tmp_path / "again.hdf5")
    assert count == len(online["actions"]) > 5
    assert online["terminals"][-1]
    assert facts["robot_spec"]["name"] == "arm"
    assert online.keys() == offline.keys()
    for key in online:
        np.testing.assert_array_equal(online[key], offline[key], err_msg=key)
    assert len(d4rl.read(tmp_path / "again.hdf5").episodes) == 1


def test_a_long_episode_in_several_files_has_the_steps_of_one(tmp_path, make_arm) -> None:
    spec = make_arm(observation=["joint_positions", "last_action"])
    stream, rules = Stream(spec), StepRules(tolerance=1.0)
    recorder = SessionRecorder(spec, stream.table, RecordSettings(str(tmp_path), max_steps=4, rules=rules))
    recorder.start().result(5)
    recorder.put("success", stream.raw("success", data=True))
    stream.play(recorder, 12)
    recorder.stop().result(5)
    recorder.close()
    parts = [session.read(path)[0] for path in session.episodes(tmp_path)]
    assert [len(part["actions"]) for part in parts] == [4, 4, 3]
    assert [part["timeouts"].sum() for part in parts] == [1, 1, 1]
    convert(tmp_path / "bags" / "episode_000000", tmp_path / "one.hdf5", spec, rules)
    whole = session.read(tmp_path / "one.hdf5")[0]
    for key in ("observations", "next_observations", "actions", "infos/success", "infos/t_obs"):
        np.testing.assert_array_equal(np.concatenate([part[key] for part in parts]), whole[key], err_msg=key)


def test_a_robot_with_a_calibrated_camera_is_recorded(tmp_path, calibrated) -> None:
    recorder = SessionRecorder(calibrated, topic_table(calibrated), RecordSettings(str(tmp_path)))
    recorder.start().result(5)
    Stream(calibrated).play(recorder, 5)
    recorder.stop().result(5)
    recorder.close()
    kept = session.read(session.episodes(tmp_path)[0])[1]["robot_spec"]
    assert kept["cameras"]["top"]["calibration"]["focal"] == [500.0, 500.0]


def test_an_episode_that_cannot_be_written_whatever_is_wrong_leaves_the_recorder_alive(
    tmp_path, make_arm, monkeypatch
) -> None:
    stream = Stream(make_arm())
    recorder = SessionRecorder(make_arm(), stream.table, RecordSettings(str(tmp_path), bags=False))
    monkeypatch.setattr(session, "write", lambda *_: {}["absent"])
    recorder.start().result(5)
    stream.play(recorder, 5)
    with pytest.raises(KeyError):
        recorder.stop().result(5)
    monkeypatch.undo()
    recorder.start().result(5)
    stream.play(recorder, 5)
    recorder.stop().result(5)
    recorder.close()
    assert len(session.episodes(tmp_path)) == 1


def test_recorder_discard_leaves_nothing_and_stop_without_start_says_so(tmp_path, make_arm) -> None:
    stream = Stream(make_arm())
    recorder = SessionRecorder(make_arm(), stream.table, RecordSettings(str(tmp_path)))
    assert recorder.stop().result(5) == "nothing was being recorded"
    recorder.start().result(5)
    stream.play(recorder, 10)
    assert recorder.discard().result(5) == "discarded"
    recorder.close()
    assert not session.episodes(tmp_path)
    assert not list((tmp_path / "bags").iterdir())


def test_recorder_slow_disk_drops_and_counts_without_blocking(tmp_path, make_arm, monkeypatch) -> None:
    stream = Stream(make_arm())
    recorder = SessionRecorder(make_arm(), stream.table, RecordSettings(str(tmp_path), queue=50))
    recorder.start().result(5)
    gate = threading.Event()
    monkeypatch.setattr(recorder, "_message", lambda *_: gate.wait(5))
    raw = stream.raw("reward", data=1.0)
    begin = time.monotonic()
    for _ in range(500):
        recorder.put("reward", raw)
    assert time.monotonic() - begin < 0.5  # never waits for the disk
    assert 440 <= recorder.report.dropped <= 450
    gate.set()
    recorder.close()


def test_recorder_disk_error_ends_the_episode_and_keeps_the_finished_ones(tmp_path, make_arm, monkeypatch) -> None:
    stream = Stream(make_arm())
    recorder = SessionRecorder(make_arm(), stream.table, RecordSettings(str(tmp_path)))
    recorder.start().result(5)
    stream.play(recorder, 10)
    recorder.stop().result(5)
    recorder.start().result(5)
    stream.play(recorder, 10)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(bag.BagWriter, "write", full)
    stream.play(recorder, 10, start=10)
    recorder.stop().result(5)
    assert "No space left" in recorder.report.error
    monkeypatch.undo()
    recorder.start().result(5)  # room again: the recorder goes on
    stream.play(recorder, 10)
    recorder.stop().result(5)
    recorder.close()
    paths = session.episodes(tmp_path)
    assert len(paths) == 2
    assert all(len(session.read(path)[0]["actions"]) == 9 for path in paths)
    assert not list(tmp_path.glob(".*.part"))


def test_a_further_topic_is_of_the_bag_alone_and_its_type_is_known_before_the_first_message(tmp_path, make_arm) -> None:
    stream, settings = Stream(make_arm()), RecordSettings(str(tmp_path))
    with pytest.raises(
        ValueError, match="/mode has type ur_dashboard_msgs/msg/RobotMode, which is no standard message"
    ):
        SessionRecorder(
            make_arm(), {**stream.table, "extra:/mode": ("/mode", "ur_dashboard_msgs/msg/RobotMode")}, settings
        )
    recorder = SessionRecorder(make_arm(), {**stream.table, "extra:/tf": ("/tf", "tf2_msgs/msg/TFMessage")}, settings)
    recorder.start().result(5)
    recorder.put("extra:/tf", b"\x00\x01")  # nothing reads it here
    stream.play(recorder, 5)
    recorder.stop().result(5)
    recorder.close()
    assert (recorder.report.broken, recorder.report.steps) == (0, 4)


def test_recorder_garbage_bytes_are_counted(tmp_path, make_arm) -> None:
    stream = Stream(make_arm())
    recorder = SessionRecorder(make_arm(), stream.table, RecordSettings(str(tmp_path), bags=False))
    recorder.start().result(5)
    stream.play(recorder, 5)
    recorder.put("executed", b"\x00\x01garbage")
    recorder.put("joints", stream.raw("joints", name=["j0", "j0"], position=np.zeros(2)))
    recorder.put("executed", stream.raw("executed", value=np.zeros(3), stamp=1.0, frame="no tags"))
    stream.play(recorder, 5, start=5)
    recorder.stop().result(5)
    recorder.close()
    assert recorder.report.broken == 2
    assert len(session.read(session.episodes(tmp_path)[0])[0]["actions"]) == 9


def test_foreign_bag_with_a_topic_map_converts(tmp_path, make_arm) -> None:
    """A third party's bag: other names, plain Float64MultiArray commands, topics in any order, no stamps of ours."""
    spec, types = make_arm(), bag.typestore()
    stream = Stream(spec)
    layout = types.types["std_msgs/msg/MultiArrayLayout"](dim=[], data_offset=0)
    kind = "std_msgs/msg/Float64MultiArray"
    writer = bag.BagWriter(tmp_path / "foreign", storage="sqlite3")
    for k in range(12):
        when = 1_000_000_000 + k * 10_000_000
        data = types.types[kind](layout=layout, data=np.full(3, 0.1 * k))
        writer.write("/cmd", kind, bytes(types.serialize_cdr(data, kind)), when + 1_000_000)
        state = stream.raw("joints", name=["j0", "j1", "j2"], position=np.full(3, 0.1 * k), velocity=np.zeros(3))
        writer.write("/js", "sensor_msgs/msg/JointState", state, when)
    writer.close()
    rules = StepRules(rate=100.0)
    with pytest.raises(ValueError, match=r"lacks joints \(/joint_states\), executed"):
        convert(tmp_path / "foreign", tmp_path / "x.hdf5", spec, rules)
    rows = convert(tmp_path / "foreign", tmp_path / "x.hdf5", spec, rules, topics={"joints": "/js", "executed": "/cmd"})
    columns, _ = session.read(tmp_path / "x.hdf5")
    assert rows == 11
    np.testing.assert_allclose(columns["observations"][:, 0], 0.1 * np.arange(1, 12), rtol=1e-6)
    np.testing.assert_allclose(columns["infos/command"][:, 0], 0.1 * np.arange(1, 12))
    assert columns["timeouts"][-1]


@pytest.mark.parametrize("trace", ["größe@1.ab/7", ""])
def test_whatever_is_wrong_with_the_steps_the_bag_is_whole(tmp_path, make_arm, monkeypatch, trace) -> None:
    stream = Stream(make_arm())
    recorder = SessionRecorder(make_arm(), stream.table, RecordSettings(str(tmp_path)))
    recorder.start().result(5)
    if trace:  # a run may have such a name
        header = stream.header
        monkeypatch.setattr(stream, "header", lambda stamp, frame="": header(stamp, frame and f"policy|{trace}|"))
    else:
        monkeypatch.setattr(recorder, "_write_episode", lambda: int("no number"))
    stream.play(recorder, 20)
    if trace:
        recorder.stop().result(5)
        [path] = session.episodes(tmp_path)
        assert set(session.read(path)[0]["infos/policy_id"]) == {b"gr??e@1.ab"}
    else:
        assert isinstance(recorder.stop().exception(5), ValueError)
    assert (next((tmp_path / "bags").iterdir()) / "metadata.yaml").is_file()
    monkeypatch.undo()
    recorder.close()


def test_a_damaged_message_in_a_bag_is_counted_and_the_others_are_read(tmp_path, make_arm) -> None:
    stream = Stream(make_arm())
    recorder = SessionRecorder(make_arm(), stream.table, RecordSettings(str(tmp_path)))
    recorder.start().result(5)
    stream.play(recorder, 10)
    recorder.put("joints", stream.raw("joints", name=["j0"], position=np.zeros(1))[:20])
    stream.play(recorder, 10, start=10)
    recorder.stop().result(5)
    recorder.close()
    live, _ = session.read(tmp_path / "episode_000000.hdf5")
    steps = convert(tmp_path / "bags/episode_000000", tmp_path / "again.hdf5", make_arm(), StepRules())
    assert steps == len(live["actions"])
    assert session.read(tmp_path / "again.hdf5")[1]["broken_messages"] == recorder.report.broken == 1
