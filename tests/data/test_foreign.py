"""Files of others: what reaches beyond them, and what claims more than it holds."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import resource
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))
from broken import d4rl_columns, episode, hdf5

from robot_rl import plain_pickle
from robot_rl.data import foreign, formats, lerobot_write, npz, video
from robot_rl.data.convert import convert
from robot_rl.data.findings import BadData
from robot_rl.data.recorder import Recorder
from robot_rl.data.store import open_store, write_store


def refused(path: Path, **options: Any) -> str:
    """The one message about a file that cannot be converted; nothing is written."""
    before = sorted(path.parent.rglob("*"))
    with pytest.raises(BadData) as caught:
        convert(path, path.parent / "out.store", **options)
    assert sorted(path.parent.rglob("*")) == before
    text = str(caught.value)
    assert path.name in text
    return text


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """A file beside the data set that no output may hold."""
    path = tmp_path / "secret"
    path.write_bytes(np.full(2000, 777.25, "<f4").tobytes())
    with h5py.File(tmp_path / "secret.hdf5", "w") as file:
        file["x"] = np.full((600, 2), 777.25, np.float32)
    return path


@pytest.mark.parametrize("how", ["external", "link", "virtual"])
def test_hdf5_that_reaches_into_another_file_is_refused(tmp_path: Path, secret: Path, how: str) -> None:
    path = hdf5(tmp_path / "log.hdf5", {**d4rl_columns(), "actions": None})
    with h5py.File(path, "r+") as file:
        if how == "external":
            file.create_dataset("actions", (600, 2), "<f4", external=[(str(secret), 0, 4800)])
        elif how == "link":
            file["actions"] = h5py.ExternalLink(str(tmp_path / "secret.hdf5"), "x")
        else:
            layout = h5py.VirtualLayout((600, 2), "<f4")
            layout[:] = h5py.VirtualSource(str(tmp_path / "secret.hdf5"), "x", (600, 2))
            file.create_virtual_dataset("actions", layout)
    assert "'actions'" in refused(path)


def test_hdf5_links_within_the_file_are_read_but_no_group_twice(tmp_path: Path) -> None:
    path = hdf5(tmp_path / "log.hdf5", d4rl_columns())
    with h5py.File(path, "r+") as file:
        file["infos/copy"] = h5py.SoftLink("/rewards")
        file["infos/gone"] = h5py.SoftLink("/nowhere")
    assert len(formats.load(path, infos=True).episodes) == 6
    with h5py.File(path, "r+") as file:
        file["infos/loop"] = file["infos"]
    assert "second name of a group" in refused(path)


def test_hdf5_that_claims_two_billion_rows_is_refused_before_anything_is_allocated(tmp_path: Path) -> None:
    path = tmp_path / "log.hdf5"
    with h5py.File(path, "w") as file:
        for key, shape in (("observations", (3,)), ("actions", (2,)), ("rewards", ()), ("terminals", ())):
            file.create_dataset(key, (2_000_000_000, *shape), "f4", chunks=(1000, *shape))
    assert path.stat().st_size < 10_000
    assert "claims 56,000,000,000 bytes" in refused(path)


def test_more_than_half_of_the_free_memory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "log"
    path.write_bytes(bytes(1 << 20))
    foreign.room(path, 200 << 20, "x")
    monkeypatch.setattr(foreign, "free_memory", lambda: 300 << 20)
    foreign.room(path, 150 << 20, "x")
    with pytest.raises(BadData, match="needs 209,715,200 bytes of memory, at most half of the 314,572,800 free"):
        foreign.room(path, 200 << 20, "x")


def test_free_memory_knows_the_limit_of_the_process(fork) -> None:
    def limited(say: Callable[..., None]) -> None:
        held = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        resource.setrlimit(resource.RLIMIT_AS, (held + (1 << 30), -1))
        say(foreign.free_memory())

    assert 0 < int(fork(limited).wait()[1]) <= 1 << 30


@pytest.mark.parametrize(
    "template",
    [
        "../secret{chunk_index:.0f}{file_index:.0f}",
        "{chunk_index.__class__}/{file_index}",
        "/etc/passwd",
        "../{chunk_index}{file_index}.parquet",
        "data/{password}.parquet",
        "{chunk_index:>1000000000}",
        7,
    ],
)
def test_lerobot_paths_stay_in_the_folder_and_format_nothing_else(tmp_path: Path, template: Any) -> None:
    path = tmp_path / "set"
    lerobot_write.write(path, [episode(i, 12) for i in range(2)], fps=20)
    (path / "data/chunk-000/file-000.parquet").rename(tmp_path / "00.parquet")  # what ".." would lead to
    info = json.loads((path / "meta/info.json").read_text())
    (path / "meta/info.json").write_text(json.dumps({**info, "data_path": template}))
    text = refused(path)
    assert "outside of its folder" in text or "template" in text


def test_links_out_of_a_data_set_are_refused_and_links_within_are_read(tmp_path: Path) -> None:
    path = tmp_path / "set"
    lerobot_write.write(path, [episode(i, 12) for i in range(2)], fps=20)
    file = path / "data/chunk-000/file-000.parquet"
    file.rename(path / "blob")
    file.symlink_to(path / "blob")
    assert len(formats.load(path).episodes) == 2
    (path / "blob").rename(tmp_path / "blob")
    file.unlink()
    file.symlink_to(tmp_path / "blob")
    assert "outside of its folder" in refused(path)


@pytest.mark.parametrize("change", ["file", "dtype", "link"])
def test_store_columns_are_numbers_in_its_own_folder(tmp_path: Path, secret: Path, change: str) -> None:
    path = tmp_path / "x.store"
    write_store(path, [episode(0, 1000)])
    meta = json.loads((path / "meta.json").read_text())
    column = meta["columns"]["action"]
    if change == "file":
        column["file"] = "../secret"
    elif change == "dtype":
        column["dtype"] = "O"
    else:
        (path / column["file"]).unlink()
        (path / column["file"]).symlink_to(secret)
    (path / "meta.json").write_text(json.dumps(meta))
    with pytest.raises(ValueError, match=r"outside of its folder|expected numbers"):
        open_store(path).column("action")
    assert refused(path)


def test_recordings_are_not_linked_from_elsewhere(tmp_path: Path) -> None:
    with Recorder(tmp_path / "other") as recorder:
        recorder.append(episode(0, 5))
    (tmp_path / "rec").mkdir()
    (tmp_path / "rec/segment-000000.episodes").symlink_to(tmp_path / "other/segment-000000.episodes")
    assert "outside of its folder" in refused(tmp_path / "rec")


def _packed(claim: bytes) -> bytes:
    return b"\x80\x05" + claim + (2**39).to_bytes(8, "little") + b"x."


CLAIMS = (
    _packed(b"\x8e"),
    _packed(b"\x96"),
    _packed(b"\x95"),
    b"\x80\x04Nr\xff\xff\xff\xff.",
    b"cnumpy\nndarray\n(I68719476736\ntR.",
    b"cnumpy\nndarray\n(I68719476736\nt\x81.",
    pickle.dumps(np.zeros(3)).replace(b"K\x03\x85", b"J\xff\xff\xff\x7f\x85"),
)


def test_pickles_that_claim_gigabytes_are_refused_within_little_memory(tmp_path: Path, fork) -> None:
    def load(say: Callable[..., None]) -> None:
        for i, content in enumerate(CLAIMS):
            path = tmp_path / f"log{i}.pkl"
            path.write_bytes(content)
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            with pytest.raises(BadData, match=path.name):
                npz.read(path)
            say(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)

    code, said = fork(load).wait()
    assert code == 0
    grown = [int(line) for line in said.split()]  # kB
    assert len(grown) == len(CLAIMS)
    assert max(grown) < 50_000


@pytest.mark.parametrize("protocol", range(6))
def test_pickled_arrays_come_back_as_they_were(tmp_path: Path, protocol: int) -> None:
    said = {
        "rows": np.arange(12.0).reshape(3, 4),
        "fortran": np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3)),
        "empty": np.zeros((0, 3)),
        "big": np.arange(3, dtype=">i4"),
        "flags": np.array([True, False]),
        "every_other": np.arange(10)[::2],
        "scalar": np.float32(2.5),
        "plain": [1, 2.5, "x", b"y", None, (True,)],
    }
    path = tmp_path / "x.pkl"
    path.write_bytes(pickle.dumps(said, protocol))
    found = plain_pickle.load(path)
    assert found["plain"] == said["plain"]
    for key in said.keys() - {"plain"}:
        assert type(found[key]) is type(said[key])
        assert found[key].dtype == said[key].dtype
        np.testing.assert_array_equal(found[key], said[key])
    found["rows"][0, 0] = 5.0  # they can be written, as pickle's own can


def test_table_that_unpacks_to_gigabytes_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "log.csv.gz"
    row = b"0,0\n" * (1 << 18)
    with gzip.open(path, "wb") as file:
        file.write(b"x,u\n")
        for _ in range(200):
            file.write(row)
    plan = {"state": [{"column": "x"}], "action": [{"column": "u"}]}
    assert "claims" in refused(path, map=plan)


def test_archive_that_claims_more_than_it_holds_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "log.npz"
    header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (68719476736,), }"
    header += b" " * (118 - len(header) - 1) + b"\n"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("observations.npy", b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)
    assert "claims 68,719,476,736 numbers" in refused(path)


def test_parquet_of_one_value_two_billion_times_is_refused(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow", reason="needs pyarrow (extra `logs`)")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "x.parquet"
    one = pa.table({"action": pa.DictionaryArray.from_arrays(pa.array(np.zeros(1 << 20, np.int8)), pa.array([0.5]))})
    with parquet.ParquetWriter(path, pa.schema({"action": pa.float64()}), compression="zstd") as writer:
        for _ in range(40):
            writer.write_table(one.cast(pa.schema({"action": pa.float64()})))
    assert path.stat().st_size < 200_000
    with pytest.raises(BadData, match="claims 335,544,320 bytes"):
        foreign.parquet(path, "rows", numeric=True)


def test_yaml_aliases_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "map.yaml"
    path.write_text("a: &a [x, x]\nb: &b [*a, *a]\nstate: [*b, *b]\n")
    with pytest.raises(BadData, match=r"map\.yaml uses YAML aliases"):
        foreign.read_yaml(path)


@pytest.mark.parametrize(
    "plan",
    [
        {"state": [{"column": "x", "scale": 0}], "action": [{"column": "u"}]},
        {"state": [{"column": "x", "scale": "a"}], "action": [{"column": "u"}]},
        {"state": "x", "action": [{"column": "u"}]},
        {"state": [{"column": "x"}], "action": [{"column": "u"}], "control_hz": 1e300},
        {"state": [{"column": "x"}], "action": [{"column": "u"}], "variants": [1]},
        {"state": [{"column": "x"}], "action": [{"column": "u"}], "reward": "().__class__"},
    ],
)
def test_maps_of_wrong_values_are_refused(tmp_path: Path, plan: dict[str, Any]) -> None:
    path = tmp_path / "log.csv"
    path.write_text("x,u\n0,0\n1,1\n2,2\n")
    assert refused(path, map=plan)


def test_playlists_are_no_videos(tmp_path: Path, secret: Path) -> None:
    pytest.importorskip("av", reason="needs PyAV (extra `logs`)")
    path = tmp_path / "film.mp4"
    path.write_text(f"#EXTM3U\n#EXT-X-MEDIA-SEQUENCE:0\n#EXTINF:10.0,\nfile://{secret}\n#EXT-X-ENDLIST\n")
    with pytest.raises(BadData, match="begins like none of MP4"):
        video.frames(path)


def test_bag_of_views_is_refused(tmp_path: Path) -> None:
    import sqlite3

    pytest.importorskip("rosbags", reason="needs rosbags (extra `logs`)")
    path = tmp_path / "bag.db3"
    with sqlite3.connect(path) as base:
        base.execute("CREATE TABLE topics (id, name, type, serialization_format, offered_qos_profiles)")
        base.execute(
            "CREATE VIEW messages AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i FROM n) SELECT i FROM n"
        )
    base.close()
    assert "computes messages" in refused(path)


def test_chunk_that_unpacks_to_more_than_it_says_is_refused(tmp_path: Path) -> None:
    zstd = pytest.importorskip("backports.zstd", reason="needs rosbags (extra `logs`)")
    path = tmp_path / "bag.mcap"
    packed = zstd.compress(bytes(1 << 28))
    head = (0).to_bytes(16, "little") + (100).to_bytes(8, "little") + bytes(4) + (4).to_bytes(4, "little") + b"zstd"
    body = head + len(packed).to_bytes(8, "little") + packed
    path.write_bytes(b"\x89MCAP0\r\n" + b"\x06" + len(body).to_bytes(8, "little") + body)
    assert "stand for 268,435,456, told are 100" in refused(path)


def test_command_line_answers_a_hostile_file_in_one_paragraph_with_code_2(
    tmp_path: Path, secret: Path, robot_rl
) -> None:
    path = hdf5(tmp_path / "log.hdf5", {**d4rl_columns(), "actions": None})
    with h5py.File(path, "r+") as file:
        file.create_dataset("actions", (600, 2), "<f4", external=[(str(secret), 0, 4800)])
    child = robot_rl("data", "convert", "log.hdf5", "out=x.store")
    assert child.returncode == 2
    assert "Traceback" not in child.stderr
    assert len(child.stderr.splitlines()) <= 3
    assert "log.hdf5: 'actions' keeps its numbers in another file" in child.stderr
    assert not list(tmp_path.glob("*.store"))
