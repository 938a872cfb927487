"""rosbag2 bags (mcap or sqlite3) written and read without ROS, through the `rosbags` package.

A bag is a folder with the messages and a `metadata.yaml` that appears last: a folder without it was being written when
its writer died, and `recover` brings back what had reached the disk.
"""

from __future__ import annotations

import glob
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from robot_rl.extras import require

if TYPE_CHECKING:
    from rosbags.highlevel import AnyReader
    from rosbags.interfaces import Connection

STORAGES = ("mcap", "sqlite3")


def typestore() -> Any:
    """Definitions of the standard messages, with `deserialize_cdr(raw, type)` and `serialize_cdr(message, type)`."""
    require("rosbags")
    from rosbags.typesys import Stores, get_typestore

    return get_typestore(Stores.ROS2_KILTED)


class BagWriter:
    """Writes one bag, or several when it is to be split; not thread-safe.

    Args:
        path: folder of the bag; parts after the first get `_001`, `_002` ... appended.
        storage: `mcap` or `sqlite3`.
        max_bytes: payload after which a new part is begun; 0 = never.
        max_seconds: time after which a new part is begun; 0 = never.

    Raises:
        ValueError: unknown storage, or the folder exists.
        OSError: the disk is full or gone.
    """

    def __init__(
        self, path: str | Path, *, storage: str = "mcap", max_bytes: int = 0, max_seconds: float = 0.0
    ) -> None:
        if storage not in STORAGES:
            raise ValueError(f"storage is {storage!r}, expected one of {', '.join(STORAGES)}")
        self.path, self.storage = Path(path), storage
        self.parts: list[Path] = []
        self.messages = 0
        self._max_bytes, self._max_ns = max_bytes, int(max_seconds * 1e9)
        self._types = typestore()
        self._writer = None
        self._connections: dict[str, Connection] = {}
        self._bytes, self._begun = 0, 0
        self._open()

    def write(self, topic: str, kind: str, raw: bytes, time: int) -> None:
        """Append one message.

        Args:
            topic: absolute name.
            kind: e.g. `sensor_msgs/msg/JointState`.
            raw: CDR bytes, as a raw subscription gives them.
            time: of receipt [ns].

        Raises:
            OSError: the disk is full; the bag is closed without an end, `recover` reads what came before.
            ValueError: unknown message type.
        """
        if self._writer is None:
            raise ValueError(f"the bag {self.path} is closed; open a new one")
        full = self._max_bytes and self._bytes >= self._max_bytes
        if full or (self._max_ns and self._begun and time - self._begun >= self._max_ns):
            self.close()
            self._open()
        try:
            if topic not in self._connections:
                if kind not in self._types.types:
                    raise ValueError(f"{topic} has type {kind}, which is no standard message; it cannot be recorded")
                self._connections[topic] = self._writer.add_connection(topic, kind, typestore=self._types)
            self._writer.write(self._connections[topic], time, raw)
        except OSError:
            self.abort()
            raise
        self._begun = self._begun or time
        self._bytes += len(raw)
        self.messages += 1

    def close(self) -> None:
        """Write index and metadata; what is closed can be read by every ROS 2 tool. A second call does nothing.

        Raises:
            OSError: the disk is full.
        """
        writer, self._writer = self._writer, None
        if writer is None:
            return
        try:
            writer.close()
        except OSError:
            with suppress(Exception):
                writer.abort()
            raise

    def abort(self) -> None:
        """Close without an end."""
        writer, self._writer = self._writer, None
        if writer is not None:
            with suppress(Exception):
                writer.abort()

    def remove(self) -> None:
        """Close and delete all parts."""
        self.abort()
        for part in self.parts:
            shutil.rmtree(part, ignore_errors=True)

    def _open(self) -> None:
        from rosbags.rosbag2 import StoragePlugin, Writer

        number = len(self.parts)
        path = self.path if not number else self.path.with_name(f"{self.path.name}_{number:03d}")
        if path.exists():
            raise ValueError(f"{path} exists already; nothing is overwritten, choose another name")
        path.parent.mkdir(parents=True, exist_ok=True)
        plugin = StoragePlugin.MCAP if self.storage == "mcap" else StoragePlugin.SQLITE3
        self._writer = Writer(path, version=9, storage_plugin=plugin)
        self._writer.open()
        self.parts.append(path)
        self._connections, self._bytes, self._begun = {}, 0, 0


def read(path: str | Path, topics: Callable[[str], bool] | None = None) -> Iterator[tuple[str, str, bytes, int]]:
    """Messages of a bag in the order of their receipt, whatever wrote it: (topic, type, CDR bytes, ns).

    Args:
        path: folder of the bag, or a folder that holds parts `name`, `name_001`, ...
        topics: which topics; all when None.

    Raises:
        ValueError: no bag, or one without its end.
    """
    with _reader(path) as reader:
        wanted = [c for c in reader.connections if topics is None or topics(c.topic)]
        if not wanted:
            return
        for connection, time, raw in reader.messages(connections=wanted):
            yield connection.topic, connection.msgtype, bytes(raw), time


def recover(path: str | Path, out: str | Path) -> int:
    """Bring back the mcap of a recorder that was killed, as a new bag.

    Args:
        path: folder without metadata.yaml.
        out: new folder.

    Returns:
        Messages recovered.

    Raises:
        ValueError: there is no mcap file in it, the new folder exists, or a message is of no standard type.
    """
    from robot_rl.data import mcap_salvage

    path = Path(path)
    files = sorted(path.glob("*.mcap"))
    if not files:
        raise ValueError(f"{path} holds no .mcap file; only mcap recordings can be recovered")
    writer = BagWriter(out)
    try:
        for file in files:
            for raw in mcap_salvage.messages(file):
                writer.write(raw.topic, raw.kind, raw.data, raw.received_ns)
        writer.close()
    except BaseException:
        writer.remove()
        raise
    return writer.messages


def _reader(path: str | Path) -> AnyReader:
    require("rosbags")
    from rosbags.highlevel import AnyReader
    from rosbags.rosbag2.errors import ReaderError

    path = Path(path)
    if not (path / "metadata.yaml").exists():
        if path.is_dir() and any(path.glob("*.mcap")):
            raise ValueError(
                f"{path} has no metadata.yaml: its recorder was killed; robot-rl data session recover {path} <new>"
            )
        raise ValueError(f"{path} is no rosbag2 folder, expected one with a metadata.yaml")
    found = path.parent.glob(f"{glob.escape(path.name)}_[0-9][0-9][0-9]*")
    numbered = [p for p in found if p.name[len(path.name) + 1 :].isdigit() and (p / "metadata.yaml").exists()]
    parts = [path, *sorted(numbered, key=lambda p: (len(p.name), p.name))]
    try:
        return AnyReader(parts, default_typestore=typestore())
    except ReaderError as error:
        raise ValueError(f"{path}: {error}") from error
