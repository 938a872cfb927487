"""Flights as files: values bit for bit, a chain that notices every change, and an end that a kill may cost."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from robot_rl.data import flight, flight_read, mcap_salvage
from robot_rl.data.exact import Garbage, Unreadable, pack, unpack
from robot_rl.data.flight import FlightWriter
from robot_rl.data.flight_read import AlteredFlight, Record

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Pair:
    left: float
    right: np.ndarray


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flight, "EVERY", 0.02)


def written(path: Path, count: int = 40, *, close: bool = True) -> FlightWriter:
    """A flight of several pieces; time runs on by 10 ms."""
    writer = FlightWriter(path, clock=lambda: 5.0)
    for k in range(count):
        writer.put("tick", 5.0 + 0.01 * k, (k, np.arange(3.0) + k, "word"))
        if k % 10 == 9:
            until = time.monotonic() + 5.0
            while writer._waiting and time.monotonic() < until:
                time.sleep(0.01)
    if close:
        writer.close()
    return writer


# ---------------------------------------------------------------- values


def test_values_come_back_with_every_bit() -> None:
    odd = np.array([0x7FF8000000000123, 0x8000000000000000, 1], np.uint64).view(np.float64)  # a NaN's payload, -0.0
    given = (
        None,
        True,
        3,
        -(10**20),
        0.1,
        float("inf"),
        "wörd",
        b"\x00",
        odd,
        np.array([1.5], np.float32),
        {"a": [1, ()]},
    )
    found = unpack(pack(given))
    assert found[:8] == given[:8]
    assert found[8].tobytes() == odd.tobytes()
    assert (found[9].dtype, found[9].tolist()) == (np.float32, [1.5])
    assert found[10] == {"a": (1, ())}
    assert pack(found) == pack(given)


def test_arrays_keep_their_shape_and_a_view_its_order() -> None:
    array = np.arange(24.0).reshape(2, 3, 4).transpose(2, 0, 1)
    found = unpack(pack(array))
    assert found.shape == (4, 2, 3)
    np.testing.assert_array_equal(found, array)
    assert unpack(pack(np.zeros((0, 3)))).shape == (0, 3)


def test_a_dataclass_is_the_tuple_of_its_fields_and_garbage_stays_garbage() -> None:
    found = unpack(pack((Pair(1.0, np.zeros(2)), object(), np.array([object()]), 1 << 200)))
    assert found[0][0] == 1.0
    assert all(isinstance(item, Garbage) for item in found[1:])
    assert pack(found) == pack((Pair(1.0, np.zeros(2)), object(), np.array([object()]), 1 << 200))
    with pytest.raises(TypeError, match="no array: object"):
        np.asarray(found[1], float)


def test_bytes_that_are_no_value_are_refused_and_claim_no_memory() -> None:
    for data in (
        b"",
        b"z",
        b"f\x00",
        b"s\xff\xff\xff\xffa",
        b"t\xff\xff\xff\xff",
        b"ad\x02\xff\xff\xff\xff\xff\xff\xff\xff",
    ):
        with pytest.raises(Unreadable):
            unpack(data)
    with pytest.raises(Unreadable, match="stand behind"):
        unpack(pack(1.0) + b"N")
    nested = b"t\x01\x00\x00\x00" * 100_000 + b"N"
    with pytest.raises(Unreadable):
        unpack(nested)
    rng = np.random.default_rng(0)
    whole = pack((1, 2.0, "three", np.arange(5), {"a": (None, True)}))
    for _ in range(2000):  # whatever was changed, it is a value or it is refused
        data = bytearray(whole)
        data[rng.integers(len(data))] = rng.integers(256)
        with suppress(Unreadable):
            unpack(bytes(data))


# ---------------------------------------------------------------- the file


def test_a_flight_comes_back_in_order_and_says_that_it_is_whole(tmp_path: Path) -> None:
    writer = written(tmp_path / "a.mcap")
    found = flight_read.read(tmp_path / "a.mcap")
    assert found.closed
    assert found.digest == writer.digest.hex()
    assert [one.value[0] for one in found.records] == list(range(40))
    assert found.seconds == pytest.approx(0.39)
    assert os.path.getsize(tmp_path / "a.mcap") == writer.written


def test_times_that_are_none_leave_the_one_before(tmp_path: Path) -> None:
    writer = FlightWriter(tmp_path / "a.mcap", clock=lambda: 2.0)
    for when in (float("nan"), 3.0, float("inf"), 1e300, -5.0, -1e300):
        writer.put("tick", when, when)
    writer.close()
    found = flight_read.read(tmp_path / "a.mcap")
    assert [one.when for one in found.records] == [2 * 10**9, 3 * 10**9, 3 * 10**9, 3 * 10**9, 0, 0]
    assert [repr(one.value) for one in found.records] == ["nan", "3.0", "inf", "1e+300", "-5.0", "-1e+300"]


def test_readers_of_others_read_the_same_messages(tmp_path: Path) -> None:
    path = tmp_path / "a.mcap"
    written(path)
    ours = [(f"flight/{one.topic}", one.when, bytes(one.data)) for one in flight_read.read(path).records]
    salvaged = [(raw.topic, raw.received_ns, raw.data) for raw in mcap_salvage.messages(path)]
    assert [one for one in salvaged if one[0] not in ("flight/chain", "flight/end")] == ours
    mcap = pytest.importorskip("rosbags.rosbag2.storage_mcap")
    data = path.read_bytes()
    size = 9 + int.from_bytes(data[9:17], "little")  # of the header record behind the magic number
    text = data[8 + 9 + 4 :][: size - 9 - 4]
    body = b"\x04\x00\x00\x00ros2" + text  # that library reads files of the profile ros2 only
    bag = tmp_path / "b.mcap"
    bag.write_bytes(data[:8] + b"\x01" + len(body).to_bytes(8, "little") + body + data[8 + size :])
    reader = mcap.McapReader(bag)
    reader.open()
    found = [(one.topic, when, bytes(raw)) for one, when, raw in reader.messages_scan(reader.connections)]
    reader.close()
    assert [one for one in found if one[0] not in ("flight/chain", "flight/end")] == ours


def test_every_altered_byte_is_refused(tmp_path: Path) -> None:
    """Every byte of the frames of file and pieces, and every 7th of the rest."""
    path, other = tmp_path / "a.mcap", tmp_path / "b.mcap"
    written(path, 20)
    data = path.read_bytes()
    for at in sorted({*range(0, len(data), 7), *range(700), *range(len(data) - 200, len(data))}):
        changed = bytearray(data)
        changed[at] ^= 1 << (at % 8)
        other.write_bytes(changed)
        with pytest.raises(AlteredFlight) as refused:
            flight_read.read(other)
        assert "\n" not in str(refused.value), at


def pieces(data: bytes) -> list[bytes]:
    """Beginning, chunks, end."""
    at = data.index(b"\x06", len(flight.head(bytes(16))) - 1)
    found = [data[:at]]
    while data[at] == 6:
        size = 9 + int.from_bytes(data[at + 1 : at + 9], "little")
        found.append(data[at : at + size])
        at += size
    return [*found, data[at:]]


def test_pieces_taken_out_doubled_or_exchanged_are_refused(tmp_path: Path) -> None:
    written(tmp_path / "a.mcap")
    written(tmp_path / "o.mcap")
    parts, others = (pieces((tmp_path / name).read_bytes()) for name in ("a.mcap", "o.mcap"))
    assert len(parts) >= 6
    for wrong in (
        [*parts[:2], *parts[3:]],
        [*parts[:1], *parts[2:]],
        [*parts[:-2], parts[-1]],  # the piece that holds the end
        [*parts[:3], parts[2], *parts[3:]],
        [parts[0], parts[2], parts[1], *parts[3:]],
        [*parts[:2], others[2], *parts[3:]],
        [*parts, b"more"],
        [*parts[:-1], parts[-1][:-1] + b"\x00"],
    ):
        (tmp_path / "b.mcap").write_bytes(b"".join(wrong))
        with pytest.raises(AlteredFlight):
            flight_read.read(tmp_path / "b.mcap")


def test_a_cut_end_is_no_alteration_but_a_changed_length_before_it_is(tmp_path: Path) -> None:
    written(tmp_path / "a.mcap")
    data, other = (tmp_path / "a.mcap").read_bytes(), tmp_path / "b.mcap"
    parts = pieces(data)
    begins = np.cumsum([len(part) for part in parts])
    for keep in range(1, len(parts) - 1):
        for cut in (0, 1, 8, 9, 60, len(parts[keep]) - 1):
            other.write_bytes(data[: begins[keep - 1] + cut])
            found = flight_read.read(other)
            assert not found.closed
            assert [one.value[0] for one in found.records] == list(range(len(found.records)))
            assert len(found.records) == sum(
                1 for part in parts[1:keep] for _ in range(part.count(b"s\x04\x00\x00\x00word"))
            )
    broken = bytearray(data[: begins[-2] - 5])  # a killed one, in which a piece claims to be longer than it is
    broken[begins[1] + 4] = 0x7F
    other.write_bytes(broken)
    with pytest.raises(AlteredFlight):
        flight_read.read(other)


def test_files_that_are_no_flights_are_told_so(tmp_path: Path) -> None:
    for content, words in (
        (b"", "does not begin like an MCAP"),
        (b"hello" * 100, "MCAP"),
        (flight.MAGIC * 20, "another"),
    ):
        (tmp_path / "x.mcap").write_bytes(content)
        with pytest.raises(AlteredFlight, match=words):
            flight_read.read(tmp_path / "x.mcap")


def test_records_written_at_once_are_a_flight_too(tmp_path: Path) -> None:
    for count in (0, 1, 999, 1000, 2500):
        path = tmp_path / f"{count}.mcap"
        digest = flight_read.write(path, [Record("tick", 10 + k, memoryview(pack(k))) for k in range(count)])
        found = flight_read.read(path)
        assert (found.closed, found.digest) == (True, digest)
        assert [one.value for one in found.records] == list(range(count))
    with pytest.raises(FileExistsError):
        flight_read.write(tmp_path / "1.mcap", [])


# ---------------------------------------------------------------- disks and kills


def test_a_writer_that_cannot_write_ends_the_flight_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = written(tmp_path / "a.mcap", 20, close=False)
    monkeypatch.setattr(flight, "ROOM", 1 << 60)  # no disk has so much left
    writer.put("tick", 6.0, "lost")
    until = time.monotonic() + 5.0
    while not writer.problem and time.monotonic() < until:
        time.sleep(0.01)
    writer.put("tick", 6.1, "lost too")
    writer.close()
    assert "MiB are free" in writer.problem
    found = flight_read.read(tmp_path / "a.mcap")
    assert (len(found.records), found.closed) == (20, False)


def test_records_that_wait_too_long_end_the_flight(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flight, "EVERY", 60.0)
    monkeypatch.setattr(flight, "WAITING", 10)
    writer = FlightWriter(tmp_path / "a.mcap")
    for k in range(12):
        writer.put("tick", 0.0, k)
    assert "10 records waited" in writer.problem


def test_old_flights_make_room_for_new_ones_and_nothing_else_goes(tmp_path: Path) -> None:
    for k in range(4):
        (tmp_path / f"flight_{k}.mcap").write_bytes(bytes(1000))
        os.utime(tmp_path / f"flight_{k}.mcap", (1e9 + k, 1e9 + k))
    (tmp_path / "mine.mcap").write_bytes(bytes(9000))
    open_one = FlightWriter(tmp_path / "flight_open.mcap")
    os.utime(tmp_path / "flight_open.mcap", (1e8, 1e8))  # the oldest, by its time
    size = os.path.getsize(tmp_path / "flight_open.mcap")
    gone = flight.make_room(tmp_path, 2500 + size)
    assert [path.name for path in gone] == ["flight_0.mcap", "flight_1.mcap"]
    assert [path.name for path in flight.make_room(tmp_path, 0)] == ["flight_2.mcap", "flight_3.mcap"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["flight_open.mcap", "mine.mcap"]
    open_one.close()
    assert len(flight.make_room(tmp_path, 0)) == 1


KILLED = """
import sys, time, numpy as np
from robot_rl.data.flight import FlightWriter
writer, k = FlightWriter(sys.argv[1]), 0
while True:
    writer.put("tick", time.monotonic(), (k, np.full(60, k)))
    k += 1
    print(time.monotonic(), k, flush=True)
    time.sleep(0.01)
"""


def test_after_kill_9_all_but_the_last_half_second_is_there(tmp_path: Path) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(tmp_path / "a.mcap")], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    child.stdout.readline()
    time.sleep(2.5)
    child.send_signal(signal.SIGKILL)
    rows = child.stdout.read().split("\n")
    child.wait()
    times = [float(row.split()[0]) for row in rows if len(row.split()) == 2]
    found = flight_read.read(tmp_path / "a.mcap")
    assert not found.closed
    numbers = [one.value[0] for one in found.records]
    assert numbers == list(range(len(numbers)))
    lost = times[-1] - times[max(len(numbers) - 2, 0)]
    assert lost < 0.5
