"""Damaged and hostile files of every format through `validate`, `info` and `convert`.

A program of its own, so that its memory is its own:

    python tests/data/fuzz.py <empty folder> <seed> <cases per format>

Prints one JSON line per case: format, case, what came of it ("read", "refused" or what went wrong), milliseconds, and
memory in bytes: RssAnon before and after, and how far all memory rose in between.
"""

from __future__ import annotations

import gzip
import json
import pickle
import random
import shutil
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import yaml

sys.path.insert(0, str(Path(__file__).parent))
import broken

from robot_rl.data import formats, lerobot_write, minari
from robot_rl.data.buffer import ReplayBuffer
from robot_rl.data.convert import convert, validate
from robot_rl.data.episode import unnamed_io
from robot_rl.data.findings import BadData
from robot_rl.data.info import info
from robot_rl.data.recorder import Recorder
from robot_rl.data.repairs import Repairs
from robot_rl.data.store import write_store

CSV_MAP = {"time": "t", "control_hz": 20, "state": [{"column": "x"}], "action": [{"column": "u", "scale": 0.5}]}
BAG_MAP: dict[str, Any] = {
    "clock": 20,
    "observation": [{"topic": "/state", "field": "data"}],
    "action": {"topic": "/command", "field": "data"},
}
WRONG: list[Any] = [
    None, -1, 0, True, 2**62, 1e308, float("nan"), "", "x" * 300, "../../../../etc/passwd", "/etc/passwd", [], {}, [[]],
    "{0.__class__.__mro__}", "\x1b[2J\0", {"a": {"b": []}},
]  # fmt: skip


def secret(folder: Path) -> Path:
    """What no case may bring into its output."""
    path = folder / "secret.bin"
    if not path.exists():
        path.write_bytes(np.full(4096, 777.25, "<f4").tobytes())
    return path


def d4rl(folder: Path) -> None:
    broken.hdf5(folder / "log.hdf5", broken.d4rl_columns(60, 20), compression="gzip", chunks=True)


def robomimic(folder: Path) -> None:
    broken.robomimic(folder / "demo.hdf5", [broken.episode(i, 8) for i in range(3)])


def minari_hdf5(folder: Path) -> None:
    minari.write(folder / "m-v0", broken.toy()[:2], dataset_id="m-v0")


def minari_arrow(folder: Path) -> None:
    import pyarrow as pa

    box = {"type": "Box", "dtype": "float32", "low": [-1.0] * 2, "high": [1.0] * 2, "shape": [2]}
    for i in range(2):
        rows = pa.array(np.arange(10, dtype=np.float32))
        table = pa.table(
            {
                "observations": pa.FixedSizeListArray.from_arrays(rows, 2),
                "actions": pa.FixedSizeListArray.from_arrays(rows, 2),
                "rewards": np.arange(5.0),
                "terminations": np.zeros(5, bool),
                "truncations": np.arange(5) == 3,
            }
        )
        part = folder / f"a-v0/data/{i}/part-0.arrow"
        part.parent.mkdir(parents=True)
        with pa.ipc.new_file(str(part), table.schema) as file:
            file.write_table(table)
    facts = {"data_format": "arrow", "observation_space": json.dumps(box), "action_space": json.dumps(box)}
    (folder / "a-v0/data/metadata.json").write_text(json.dumps(facts))


def lerobot(folder: Path) -> None:
    lerobot_write.write(folder / "le", [broken.episode(i, 10 + i, success=True) for i in range(3)], fps=20)


def lerobot_film(folder: Path) -> None:
    episodes = []
    for i in range(2):
        one = broken.episode(i, 10)
        frames = np.full((11, 32, 32, 3), 40 * i, np.uint8)
        episodes.append(replace(one, obs={**one.obs, "image.front": frames}))
    lerobot_write.write(folder / "le", episodes, fps=20)


def rosbag(folder: Path, mcap: bool = True) -> None:
    from rosbags.rosbag2 import StoragePlugin, Writer
    from rosbags.typesys import Stores, get_typestore

    types = get_typestore(Stores.ROS2_HUMBLE)
    array, layout = types.types["std_msgs/msg/Float64MultiArray"], types.types["std_msgs/msg/MultiArrayLayout"]
    plugin = StoragePlugin.MCAP if mcap else StoragePlugin.SQLITE3
    with Writer(folder / "bag", version=9, storage_plugin=plugin) as writer:
        for topic in ("/state", "/command"):
            connection = writer.add_connection(topic, "std_msgs/msg/Float64MultiArray", typestore=types)
            for i in range(40):
                message = array(layout([], 0), np.array([0.01 * i, 0.5]))
                raw = types.serialize_cdr(message, "std_msgs/msg/Float64MultiArray")
                writer.write(connection, 10**18 + i * 50_000_000, raw)
    (folder / "map.yaml").write_text(yaml.safe_dump(BAG_MAP))


def rosbag_sqlite(folder: Path) -> None:
    rosbag(folder, mcap=False)


def csv(folder: Path, suffix: str = ".csv") -> None:
    text = "t,x,u\n" + "".join(f"{i / 20},{i * 0.01},{(i % 7) * 0.1}\n" for i in range(60))
    path = folder / f"log{suffix}"
    path.write_bytes(gzip.compress(text.encode()) if suffix == ".csv.gz" else text.encode())
    (folder / "map.yaml").write_text(yaml.safe_dump(CSV_MAP))


def csv_gz(folder: Path) -> None:
    csv(folder, ".csv.gz")


def npz(folder: Path) -> None:
    np.savez_compressed(folder / "log.npz", **broken.d4rl_columns(60, 20))


def pickled(folder: Path) -> None:
    (folder / "log.pkl").write_bytes(pickle.dumps([broken.d4rl_columns(20, 20) for _ in range(2)]))


def store(folder: Path) -> None:
    write_store(folder / "x.store", [broken.episode(i, 9) for i in range(3)])


def recording(folder: Path) -> None:
    with Recorder(folder / "rec", sync=False) as recorder:
        for i in range(3):
            recorder.append(broken.episode(i, 9))


def replay(folder: Path) -> None:
    one = broken.episode(0, 30)
    io = unnamed_io(one.obs, 2, 20.0)
    buffer = ReplayBuffer(io, 64)
    buffer.add_episode(one)
    step = folder / "run/checkpoints/step_000000030"
    step.mkdir(parents=True)
    buffer.save(step / "buffer")
    (step / "io.json").write_text(json.dumps(io.to_dict()))
    (step / "meta.json").write_text("{}")


MAKERS: dict[str, Callable[[Path], None]] = {
    "d4rl": d4rl, "robomimic": robomimic, "minari": minari_hdf5, "minari_arrow": minari_arrow, "lerobot": lerobot,
    "lerobot_film": lerobot_film,
    "rosbag_mcap": rosbag, "rosbag_sqlite": rosbag_sqlite, "csv": csv, "csv_gz": csv_gz, "npz": npz, "pickle": pickled,
    "store": store, "recording": recording, "replay": replay,
}  # fmt: skip


def damage(folder: Path, rng: random.Random) -> str:
    """Change one file below `folder`; returns what was done."""
    files = sorted(p for p in folder.rglob("*") if p.is_file() and p.name != "secret.bin")
    file = rng.choice(files)
    special = {".json": wrong_json, ".jsonl": wrong_json, ".yaml": wrong_yaml, ".hdf5": wrong_hdf5, ".npz": wrong_npz}
    special |= {".pkl": wrong_pickle, ".csv": wrong_csv}
    ways: list[Callable[[Path, random.Random], str]] = [cut, flip, huge, other]
    if file.suffix in special:
        ways += [special[file.suffix]] * 4
    if len(files) > 1:
        ways.append(linked)
    return f"{file.name}: {rng.choice(ways)(file, rng)}"


def cut(file: Path, rng: random.Random) -> str:
    data = file.read_bytes()
    keep = rng.randrange(len(data) + 1)
    file.write_bytes(data[:keep])
    return f"cut to {keep} of {len(data)}"


def flip(file: Path, rng: random.Random) -> str:
    data = bytearray(file.read_bytes() or b"\0")
    places = [rng.randrange(len(data)) for _ in range(rng.choice((1, 2, 8, 64)))]
    for at in places:
        data[at] ^= 1 << rng.randrange(8)
    file.write_bytes(data)
    return f"bits flipped in {places[:4]}"


def huge(file: Path, rng: random.Random) -> str:
    data = bytearray(file.read_bytes() or b"\0")
    at, value = rng.randrange(len(data)), rng.choice((2**39, 2**31 - 1, 2**62, 2**64 - 1, 2**32))
    data[at : at + 8] = value.to_bytes(8, "little")
    file.write_bytes(data)
    return f"{value} at {at}"


def other(file: Path, rng: random.Random) -> str:
    content = rng.choice(
        (b"", b"\0" * 100, b"\x89HDF\r\n\x1a\n", b"PK\x03\x04", b"PAR1" * 9, b"[" * 90_000, b"null", b"-")
    )
    file.write_bytes(content)
    return f"replaced by {content[:8]!r}"


def linked(file: Path, rng: random.Random) -> str:
    file.unlink()
    file.symlink_to(file.parents[len(file.relative_to(ROOT).parts) - 1] / "secret.bin")
    return "a link out of the folder"


def wrong_value(value: Any, rng: random.Random) -> Any:
    """A nested value with one leaf or branch replaced."""
    if isinstance(value, dict) and value and rng.random() < 0.85:
        key = rng.choice(sorted(value))
        return {**value, key: wrong_value(value[key], rng)}
    if isinstance(value, list) and value and rng.random() < 0.85:
        at = rng.randrange(len(value))
        return [*value[:at], wrong_value(value[at], rng), *value[at + 1 :]]
    return rng.choice(WRONG)


def wrong_json(file: Path, rng: random.Random) -> str:
    lines = [file.read_text()] if file.suffix == ".json" else file.read_text().splitlines() or ["{}"]
    at = rng.randrange(len(lines))
    lines[at] = json.dumps(wrong_value(json.loads(lines[at]), rng))
    file.write_text("\n".join(lines))
    return f"a wrong value in {lines[at][:80]!r}"


def wrong_yaml(file: Path, rng: random.Random) -> str:
    content = wrong_value(yaml.safe_load(file.read_text()), rng)
    file.write_text(yaml.safe_dump(content, allow_unicode=True))
    return f"a wrong value in {str(content)[:80]!r}"


def wrong_hdf5(file: Path, rng: random.Random) -> str:
    with h5py.File(file, "r+") as h:
        names: list[str] = []
        h.visititems(lambda name, item: names.append(name) if isinstance(item, h5py.Dataset) else None)
        name = rng.choice(sorted(names))
        del h[name]
        what = rng.choice(("external", "link", "virtual", "claim", "text", "scalar", "group", "vlen", "gone", "loop"))
        if what == "external":
            h.create_dataset(name, (60,), "f4", external=[(str(ROOT / "secret.bin"), 0, 240)])
        elif what == "link":
            h[name] = h5py.ExternalLink(str(ROOT / "secret.hdf5"), "/x")
        elif what == "virtual":
            layout = h5py.VirtualLayout((60, 2), "f4")
            layout[:] = h5py.VirtualSource(str(ROOT / "secret.hdf5"), "x", (60, 2))
            h.create_virtual_dataset(name, layout)
        elif what == "claim":
            h.create_dataset(name, (2_000_000_000, 3), "f4", chunks=(1000, 3))
        elif what == "text":
            h[name] = np.array([b"abc"] * 60)
        elif what == "scalar":
            h[name] = rng.choice((np.float32(1), h5py.Empty("f4"), np.zeros((60, 0)), np.zeros((60, 2, 2, 2))))
        elif what == "vlen":
            h.create_dataset(name, (60,), h5py.vlen_dtype(np.float32))
        elif what == "group":
            h.create_group(name)
        elif what == "loop":
            h[name] = h["/"]
    return f"{name}: {what}"


def wrong_npz(file: Path, rng: random.Random) -> str:
    with np.load(file) as archive:
        arrays: dict[str, Any] = dict(archive)
    name = rng.choice(sorted(arrays))
    wrong = [
        np.zeros((60, 2, 2)),
        np.array("x"),
        np.array(["x"] * 60),
        np.zeros(60, "c8"),
        np.zeros((0, 3)),
        np.zeros(5),
    ]
    arrays[name] = wrong[rng.randrange(len(wrong))]
    np.savez(file, **arrays)
    return f"{name} is {arrays[name].dtype}{arrays[name].shape}"


class Evil:
    """Would write a file when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (exec, (f"open({str(ROOT / 'ran')!r}, 'w')",))


def wrong_pickle(file: Path, rng: random.Random) -> str:
    cases: dict[str, bytes] = {
        "code": pickle.dumps({"observations": Evil()}),
        "512 GiB of bytes": b"\x80\x04\x8e" + (2**39).to_bytes(8, "little") + b"ab.",
        "512 GiB of bytearray": b"\x80\x05\x96" + (2**39).to_bytes(8, "little") + b"ab.",
        "a frame of 512 GiB": b"\x80\x04\x95" + (2**39).to_bytes(8, "little") + b"N.",
        "a memo of 64 GiB": b"\x80\x04Nr\xff\xff\xff\xff.",
        "an array of 512 GiB": b"cnumpy\nndarray\n(I68719476736\ntR.",
        "an empty array of 2**62 rows": (
            b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(I4611686018427387904\ntS'b'\ntR."
        ),
        "objects": pickle.dumps([{"observations": np.array([None] * 20, object)}]),
        "nested": b"\x80\x04" + b"(" * 5000 + b"l" * 5000 + b".",
        "text": pickle.dumps("x"),
        "lists": pickle.dumps([{"obs": [[0.0]] * 20, "action": [["a"]] * 20, "reward": [0.0] * 20}]),
    }
    inner: Any = 0.0
    for _ in range(12):
        inner = [inner] * 10
    cases["a list that stands for 10**12 numbers"] = pickle.dumps({"obs": inner, "action": inner, "reward": inner})
    name = rng.choice(sorted(cases))
    file.write_bytes(cases[name])
    return name


def wrong_csv(file: Path, rng: random.Random) -> str:
    rows = [line.split(",") for line in file.read_text().splitlines()]
    at = rng.randrange(len(rows))
    rows[at][rng.randrange(len(rows[at]))] = word = rng.choice(
        ("", "x", "nan", "1e308", "1e999", '"', "é", "0,0", "-1e9")
    )
    file.write_text("\n".join(map(",".join, rows)))
    return f"{word!r} in row {at}"


def memory() -> tuple[int, int, int]:
    """(RssAnon, resident, peak of the latter) in bytes."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    anon, resident, peak = (int(status[key].split()[0]) << 10 for key in ("RssAnon", "VmRSS", "VmHWM"))
    return anon, resident, peak


def tried(path: Path, options: dict[str, Any], out: Path) -> str:
    """What came of it; anything but "read" and "refused" is a fault."""
    before = sorted(p for p in ROOT.rglob("*"))
    try:
        validate(path, **options)
        info(path, **options)
    except (BadData, FileNotFoundError):
        pass
    except Exception as problem:
        return f"validate or info: {type(problem).__name__}: {problem}"
    try:
        convert(path, out, to="store", mend=Repairs(action="keep", drop_bad_episodes=True), **options)
    except BadData as bad:
        text = str(bad)
        if not text:
            return "refused without a word"
        if sorted(ROOT.rglob("*")) != before:
            return "refused, and something was written"
        return "refused" if path.name in text or str(options.get("map")) in text else f"does not name the file: {text}"
    except FileNotFoundError:
        return "refused" if sorted(ROOT.rglob("*")) == before else "refused, and something was written"
    except Exception as problem:
        return f"{type(problem).__name__}: {problem}"
    logs = formats.load(out)
    values = (*logs.episodes[0].obs.values(), logs.episodes[0].action, logs.episodes[0].reward)
    leaked = any((np.asarray(v) == 777.25).any() for v in values)
    return "the secret is in the output" if leaked else "read"


def main(seed: int, count: int, chosen: list[str]) -> None:
    warnings.simplefilter("ignore")
    with h5py.File(ROOT / "secret.hdf5", "w") as file:
        file["x"] = np.full((60, 2), 777.25, "f4")
    for name in chosen or list(MAKERS):
        sound = ROOT / "sound" / name
        sound.mkdir(parents=True)
        MAKERS[name](sound)
        for number in range(count + 1):
            case = ROOT / "case"
            shutil.copytree(sound, case)
            secret(ROOT)
            path, options = located(name, case)
            what = damage(case, random.Random(f"{name} {seed} {number}")) if number else "nothing"
            told({"format": name, "number": number, "case": what, "result": "began"})
            anon, resident, _ = memory()
            Path("/proc/self/clear_refs").write_text("5")
            began = time.perf_counter()
            result = tried(path, options, ROOT / "out.store")
            took = (time.perf_counter() - began) * 1e3
            after, _, peak = memory()
            if (ROOT / "ran").exists():
                result = "code of the file ran"
            row = {"format": name, "number": number, "case": what, "result": result, "ms": round(took, 1)}
            told({**row, "before": anon, "after": after, "peak": peak - resident})
            shutil.rmtree(ROOT / "out.store", ignore_errors=True)
            shutil.rmtree(case)


def told(row: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(row) + "\n")
    sys.stdout.flush()


def located(name: str, case: Path) -> tuple[Path, dict[str, Any]]:
    """Path and options of a copy of what a maker made."""
    places = {
        "d4rl": "log.hdf5", "robomimic": "demo.hdf5", "minari": "m-v0", "minari_arrow": "a-v0", "lerobot": "le",
        "lerobot_film": "le", "rosbag_mcap": "bag", "rosbag_sqlite": "bag", "csv": "log.csv", "csv_gz": "log.csv.gz",
        "npz": "log.npz", "pickle": "log.pkl", "store": "x.store", "recording": "rec", "replay": "run",
    }  # fmt: skip
    options: dict[str, Any] = {"map": case / "map.yaml"} if (case / "map.yaml").exists() else {}
    if name.startswith("lerobot"):
        options |= {"reward": "column", "videos": name == "lerobot_film"}
    if name == "rosbag_sqlite":
        options["ros_distro"] = "humble"
    return case / places[name], options


if __name__ == "__main__":
    ROOT = Path(sys.argv[1]).resolve()
    main(int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
