"""The one place where files of others are opened: nothing of them runs or is believed, nothing beside them is read.

What a file claims (rows, shapes, lengths, uncompressed bytes) is compared with its size and with free memory before it
is allocated. Names in a file lead to files below its own folder, or nowhere. HDF5 may not reach into other files. What
a library raises over a damaged file becomes one finding that names the file.
"""

from __future__ import annotations

import gzip
import json
import math
import os
import re
import resource
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from csv import reader
from dataclasses import replace
from io import BufferedReader
from pathlib import Path
from types import ModuleType
from typing import IO, Any

import h5py
import numpy as np
import psutil

from robot_rl import extras, plain_pickle
from robot_rl.data import sources
from robot_rl.data.findings import BadData, refusal
from robot_rl.tables import TableError, read_table

SMALL = 1 << 26
"""Bytes that anything may claim."""
RATIO = 1100
"""Bytes that one byte of a file can stand for: deflate reaches 1032."""
_TEXT = 1 << 28
_FIELD = re.compile(r"\{(\w+)(?::0?(\d{1,2})d)?\}")
_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "FLOAT": 4, "INT64": 8, "DOUBLE": 8, "INT96": 12}


@contextmanager
def reading(path: str | os.PathLike[str]) -> Iterator[None]:
    """Turn whatever goes wrong with a file into one finding that names it.

    Raises:
        BadData: in the place of everything but `FileNotFoundError` and `ImportError`.
    """
    try:
        yield
    except BadData as bad:
        name = Path(path).name
        mute = [f for f in bad.findings if f.severity == "error" and name not in f.message]
        if not mute:
            raise
        named = [replace(f, message=f"{path}: {f.message}") if f in mute else f for f in bad.findings]
        raise BadData(named) from bad.__cause__
    except (FileNotFoundError, ImportError):
        raise
    except MemoryError as problem:
        raise refusal("memory", f"{path} needs more memory than there is", "read a part of it") from problem
    except Exception as problem:
        why = " ".join(str(problem).split()) or "no reason given"
        text = why if isinstance(problem, (ValueError, OSError)) else f"{type(problem).__name__}: {why}"
        raise refusal("unreadable", f"{path} cannot be read: {text[:400]}", sources.AGAIN) from problem


def free_memory() -> int:
    """Bytes that this process can still have: of the machine, of its control group, of its own limit."""
    free = [psutil.virtual_memory().available]
    for limit, used in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ):
        with suppress(OSError, ValueError):  # no such group, or one without a limit ("max")
            free.append(max(int(Path(limit).read_text()) - int(Path(used).read_text()), 0))
    most_here = resource.getrlimit(resource.RLIMIT_AS)[0]
    if most_here != resource.RLIM_INFINITY:
        free.append(max(most_here - psutil.Process().memory_info().vms, 0))
    return min(free)


def room(path: Path, claimed: int, what: str, *, ratio: int = RATIO, size: int | None = None) -> None:
    """Refuse a claim that the file cannot back, or that half of the free memory cannot hold.

    Args:
        path: the file.
        claimed: bytes that are to be allocated.
        what: for them, in words.
        ratio: bytes that one byte of this kind of file can stand for.
        size: bytes that there are; those of the file when None.

    Raises:
        BadData: with both sizes.
    """
    if claimed <= SMALL:
        return
    size = path.stat().st_size if size is None else size
    if claimed > ratio * size:
        message = f"{path}: {what} claims {claimed:,} bytes, but the file has {size:,}"
        raise refusal("claim", message, "the file is damaged or not what it says; " + sources.AGAIN)
    free = free_memory()
    if claimed > free // 2:
        message = f"{path}: {what} needs {claimed:,} bytes of memory, at most half of the {free:,} free ones"
        raise refusal("memory", message, "read a part of it, or use a machine with more memory")


def inside(root: Path, name: str | os.PathLike[str]) -> Path:
    """A file that a data set names, with links followed.

    Raises:
        BadData: it lies outside of the data set's folder.
    """
    path = root / name
    try:
        found = path.resolve()
    except (OSError, ValueError, RuntimeError) as problem:  # loops of links, a NUL in the name
        raise refusal("outside", f"{root} names {str(name)[:200]!r}: {problem}") from problem
    if not found.is_relative_to(root.resolve()):
        message = f"{root} leads to '{str(name)[:200]}', which lies outside of its folder ({found}): not read"
        raise refusal("outside", message, "copy the files themselves into the folder (cp -rL)")
    return path


def fill(template: object, **values: object) -> str:
    """A name from a data set's template such as "data/chunk-{chunk_index:03d}.parquet"; only these fields, no others.

    Raises:
        BadData: the template holds anything else in braces.
    """
    if not isinstance(template, str) or set("{}") & set(_FIELD.sub("", template)):
        raise refusal("template", f"{str(template)[:200]!r} is no template of file names")
    unknown = {match[1] for match in _FIELD.finditer(template)} - values.keys()
    if unknown:
        message = f"the template {template[:200]!r} has the fields {sorted(unknown)}, known are {sorted(values)}"
        raise refusal("template", message, "export the data set again")

    def one(match: re.Match[str]) -> str:
        value = values[match[1]]
        return str(value) if match[2] is None else f"{int(value):0{int(match[2])}d}"  # pyright: ignore[reportArgumentType]

    return _FIELD.sub(one, template)


def text(path: Path, most: int = _TEXT) -> str:
    """A text file of limited size.

    Raises:
        BadData: it is larger, or no UTF-8.
    """
    size = path.stat().st_size
    if size > most:
        raise refusal("claim", f"{path} has {size:,} bytes, expected at most {most:,} of text")
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as problem:
        raise refusal("unreadable", f"{path} is no text ({problem})", sources.AGAIN) from problem


def parse(path: Path, content: str) -> Any:
    """A JSON object that stood in `path`.

    Raises:
        BadData: it is none.
    """
    try:
        value = json.loads(content)
    except (ValueError, RecursionError) as problem:
        raise refusal("metadata", f"{path} is no JSON ({problem})", sources.AGAIN) from problem
    if not isinstance(value, dict):
        raise refusal("metadata", f"{path} holds a {type(value).__name__}, expected a dict")
    return value


def read_json(path: Path) -> dict[str, Any]:
    """A JSON file that holds an object; see `parsed`."""
    return parse(path, text(path))


def json_lines(path: Path) -> list[dict[str, Any]]:
    """The objects of a file with one in every line; none where there is no file."""
    if not path.is_file():
        return []
    return [parse(path, line) for line in text(path).splitlines() if line.strip()]


def read_yaml(path: Path) -> dict[str, Any]:
    """A YAML file that holds a mapping of plain values; see `tables.read_table`.

    Raises:
        BadData: it is no such file.
    """
    try:
        return read_table(path)
    except TableError as problem:
        raise refusal("metadata", str(problem)) from problem


@contextmanager
def hdf5(path: Path) -> Iterator[h5py.File]:
    """An HDF5 file that keeps to itself: no external storage, no links or virtual data sets into other files.

    Raises:
        FileNotFoundError: there is no such file.
        BadData: it is none, reaches into another file, or claims more than it can hold.
    """
    sources.check_file(path)
    try:
        file = h5py.File(path, "r")
    except OSError as problem:
        raise sources.explain(path, problem) from problem
    with file:
        try:
            _keep_to_itself(path, file)
        except (OSError, RuntimeError, KeyError, TypeError) as problem:
            message = f"{path}: its list of keys cannot be read ({problem})"
            raise refusal("damaged", message, sources.AGAIN) from problem
        yield file


def _keep_to_itself(path: Path, file: h5py.File) -> None:
    h5: Any = h5py  # whose low-level parts have no types
    links: list[tuple[bytes, int, int]] = []
    file.id.links.visit(lambda name, info: links.append((name, info.type, info.u)), info=True)
    groups = {h5.h5o.get_info(file.id).addr}
    total = 0
    for name, kind, address in links:  # by the low-level interface, which costs a fifth of the other
        shown = name.decode("utf-8", "replace")[:200]
        if kind not in (h5.h5l.TYPE_HARD, h5.h5l.TYPE_SOFT):
            raise _leaves(path, f"'{shown}' is a link into another file")
        try:
            item = h5.h5o.open(file.id, name)
        except (KeyError, OSError):
            continue  # leads nowhere: who needs it will miss it
        if isinstance(item, h5.h5g.GroupID):
            if kind == h5.h5l.TYPE_SOFT or address in groups:
                message = f"{path}: '{shown}' is a second name of a group: it could lie in itself"
                raise refusal("links", message, "write the groups out (h5repack, h5copy)")
            groups.add(address)
        elif isinstance(item, h5.h5d.DatasetID):
            made = item.get_create_plist()
            if made.get_layout() == h5.h5d.CONTIGUOUS and made.get_external_count():
                raise _leaves(path, f"'{shown}' keeps its numbers in another file")
            if made.get_layout() == h5.h5d.VIRTUAL and any(
                made.get_virtual_filename(i) not in (".", "") for i in range(made.get_virtual_count())
            ):
                raise _leaves(path, f"'{shown}' is put together from other files")
            total += math.prod(item.shape) * item.get_type().get_size()
    room(path, total, "all of its keys together")


def _leaves(path: Path, what: str) -> BadData:
    message = f"{path}: {what}: not read, because it could be any file of this machine"
    return refusal("outside", message, "ask its owner for a file that holds its own data (h5repack, h5copy)")


def take(path: Path, item: object) -> np.ndarray:
    """All of a data set as an array, once there is room for it.

    Raises:
        BadData: it is no data set, or too large.
        OSError: it is damaged there.
    """
    if isinstance(item, np.ndarray):
        return item
    if not isinstance(item, h5py.Dataset) or item.shape is None:
        what = item.name if isinstance(item, h5py.HLObject) else type(item).__name__
        raise refusal("types", f"{path}: {what} holds no array", "write the file again")
    room(path, math.prod(item.shape) * item.dtype.itemsize, f"'{item.name}'")
    return np.asarray(item[()])


def dataset(path: Path, group: h5py.Group, key: str) -> h5py.Dataset:
    """The array of that name in a group of a file; nothing of it is read.

    Raises:
        BadData: there is none, or the name is that of a group.
    """
    item = group.get(key)
    if not isinstance(item, h5py.Dataset) or item.shape is None:
        raise refusal("types", f"{path}: {group.name}/{key} is no array", "write the file again")
    return item


def npz(path: Path) -> dict[str, np.ndarray]:
    """The arrays of an archive, every claim compared with what lies in the archive.

    Raises:
        BadData: it is none, damaged, or holds Python objects.
    """
    found: dict[str, np.ndarray] = {}
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
            if len({m.filename for m in members}) != len(members):
                raise refusal("unreadable", f"{path} holds two arrays of one name", sources.AGAIN)
            room(path, sum(m.file_size for m in members), "all of its arrays together")
            for member in members:
                key = member.filename.removesuffix(".npy")
                with archive.open(member) as file:
                    found[key] = _npy(path, key, file, member.file_size)
    except (zipfile.BadZipFile, zipfile.LargeZipFile, OSError, EOFError, KeyError, NotImplementedError) as problem:
        raise refusal("unreadable", f"{path} is no readable NPZ archive: {problem}", sources.AGAIN) from problem
    except RuntimeError as problem:  # encrypted
        raise refusal("unreadable", f"{path} cannot be unpacked: {problem}") from problem
    return found


def _npy(path: Path, key: str, file: IO[bytes], size: int) -> np.ndarray:
    try:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = read(file)
        if dtype.hasobject:
            repair = "write it again with one plain array per key: numpy.savez(path, observations=..., ...)"
            message = f"{path}: '{key}' is an array of Python objects, which can run code when loaded"
            raise refusal("object_array", message, repair)
        count = math.prod(shape)
        if count < 0 or count * dtype.itemsize > size:
            message = f"{path}: '{key}' claims {count:,} numbers of {dtype}, the archive holds {size:,} bytes of it"
            raise refusal("claim", message, sources.AGAIN)
        data = file.read(count * dtype.itemsize)
        flat = np.frombuffer(bytearray(data), dtype, count) if count else np.zeros(0, dtype)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError) as problem:
        if isinstance(problem, BadData):
            raise
        raise refusal("unreadable", f"{path}: '{key}' is no array: {problem}", sources.AGAIN) from problem
    return flat.reshape(shape, order="F" if fortran else "C")


def unpickle(path: Path) -> Any:
    """Content of a pickle of arrays; see `plain_pickle`.

    Raises:
        BadData: it holds anything else, or claims more than it has.
    """
    try:
        room(path, path.stat().st_size, "the file")
        return plain_pickle.load(path)
    except plain_pickle.NotPlain as problem:
        message = f"{path} asks for '{problem}', which is neither an array nor a plain container: not loaded"
        repair = "write the arrays with numpy.savez instead; a pickle can run any code"
        raise refusal("pickle_global", message, repair, where=str(problem)) from problem
    except plain_pickle.BROKEN as problem:
        if isinstance(problem, BadData):
            raise
        raise refusal("unreadable", f"{path} is no readable pickle: {problem}", sources.AGAIN) from problem


def numbers(path: Path, value: object) -> np.ndarray:
    """An array, or lists of numbers as one, if they are no larger than their file allows.

    Raises:
        BadData: they are.
    """
    size, inner = 8, value
    while isinstance(inner, (list, tuple)) and inner:
        size, inner = size * len(inner), inner[0]
    if not isinstance(value, np.ndarray):
        room(path, size * (inner.size if isinstance(inner, np.ndarray) else 1), "a list of numbers")
    return np.asarray(value)


def csv(path: Path) -> tuple[list[str], np.ndarray, list[str]]:
    """Names in the first line, the rows (N, columns) below it, and names of columns left out; `.gz` is unpacked.

    Between the numbers stand commas, or semicolons or tabs, with which a comma in a number is a decimal one. Columns
    whose first value is a word are left out.

    Raises:
        OSError: it cannot be unpacked.
        ValueError: it holds other things than numbers; says where.
        BadData: it unpacks to more than there is room for.
    """
    with _binary(path) as file:
        first = file.readline(1 << 22)
    try:
        header = first.decode("utf-8-sig").strip("\r\n")
    except UnicodeDecodeError as problem:
        repair = "save it as CSV in UTF-8, or name it as what it is"
        raise refusal("bad_csv", f"{path} is no text in UTF-8", repair) from problem
    between = max(",;\t", key=header.count)
    lines = signs = longest = since = 0
    with _binary(path) as file:
        while block := file.read(1 << 20):
            lines, signs = lines + block.count(b"\n"), signs + block.count(between.encode())
            room(path, 8 * (lines + signs), "its table")
            since = since + len(block) if b"\n" not in block else len(block) - block.rindex(b"\n")
            longest = max(longest, since)
            if longest > 1 << 22:
                raise refusal("bad_csv", f"{path} has a line of more than 4 MB, expected rows of numbers")
    names = [name.strip().strip('"') for name in header.split(between)]
    with _binary(path) as file:
        file.readline()
        cells = next(reader([file.readline().decode("utf-8", "replace")], delimiter=between), [])
        told = [i for i, cell in enumerate(cells) if not _WORDS.match(cell)]
        file.seek(len(first))
        rows = file if between == "," else (line.replace(b",", b".") for line in file)
        try:
            if len(told) == len(cells) or len(cells) != len(names):
                return names, np.loadtxt(rows, delimiter=between, ndmin=2), []
            table = np.loadtxt(rows, delimiter=between, ndmin=2, usecols=told, quotechar='"')
            return [names[i] for i in told], table, [name for i, name in enumerate(names) if i not in told]
        except ValueError as problem:
            text = re.search(r"convert string (.*) to float64 at row (\d+), column (\d+)", str(problem))
            if text is None or int(text[3]) > len(names):
                raise ValueError(str(problem).partition("; use `usecols`")[0] + " below the names") from problem
            where = f"row {int(text[2]) + 1} below the names, column {names[int(text[3]) - 1]}"
            raise ValueError(f"{where}: {text[1]} is no number (without a value, write nan)") from problem


_WORDS = re.compile(r"\s*\"?(?!nan|inf)[^\W\d]{2}", re.IGNORECASE)
"""A cell that begins with two letters is a word; a single one is more probably a number that was mistyped."""


def _binary(path: Path) -> gzip.GzipFile | BufferedReader:
    return gzip.open(path, "rb") if path.suffix.lower() == ".gz" else open(path, "rb")


def parquet(path: Path, what: str, *, numeric: bool = False) -> Any:
    """A parquet file as a table.

    Args:
        path: the file.
        what: it holds, in words.
        numeric: only columns of numbers, and of lists of them.

    Raises:
        BadData: it is damaged, or its columns claim more than there is room for.
    """
    sources.check_file(path)
    module = extras.require("pyarrow.parquet")
    pa = extras.require("pyarrow")
    try:
        with module.ParquetFile(path) as file:
            keep = [f.name for f in file.schema_arrow if not numeric or _is_numeric(pa, f.type)]
            facts, total = file.metadata, 0
            for group in range(facts.num_row_groups):
                for i in range(facts.num_columns):
                    column = facts.row_group(group).column(i)
                    if column.path_in_schema.split(".")[0] in keep:
                        width = _WIDTHS.get(column.physical_type, 1)
                        total += max(column.num_values * width, column.total_uncompressed_size)
            room(path, total, "its table")
            if numeric:
                return file.read(columns=keep)
            batches, held = [], 0
            for batch in file.iter_batches(batch_size=256):  # texts may repeat: their size shows only now
                held += batch.nbytes
                room(path, 4 * held, "its table")
                batches.append(batch)
            return pa.Table.from_batches(batches, file.schema_arrow)
    except BadData:
        raise
    except (OSError, ValueError, KeyError, NotImplementedError, MemoryError) as problem:  # pyarrow's derive from these
        why = "its footer is missing, so it is cut short" if "footer" in str(problem) else str(problem)
        raise refusal("bad_parquet", f"{path} ({what}) cannot be read: {why}", sources.AGAIN) from problem


def _is_numeric(pa: ModuleType, kind: Any) -> bool:
    while pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        kind = kind.value_type
    return pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
