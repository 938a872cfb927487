"""Minari's Arrow format: one folder of IPC files per episode, as the arrays that its HDF5 format would hold.

Every column has a row per observation; actions, rewards and flags are padded by one row at the end. Boxes are lists of
fixed size whose shape is told by the spaces in metadata.json, dictionaries and tuples are structs.

Source: Farama-Foundation/Minari minari/dataset/_storages/arrow_storage.py (0.5.x).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from robot_rl.data import foreign
from robot_rl.data.findings import BadData, refusal
from robot_rl.extras import require


class Group(dict[str, object]):
    """Named arrays and groups with `attrs`, in the place of an HDF5 group."""

    def __init__(self, items: Mapping[str, object], attrs: Mapping[str, object] | None = None) -> None:
        super().__init__(items)
        self.attrs = dict(attrs or {})


def folders(data: Path) -> list[Path]:
    """The episodes' folders, by number."""
    return sorted((p for p in data.iterdir() if p.is_dir() and p.name.isdigit()), key=lambda p: int(p.name))


def episodes(data: Path, metadata: Mapping[str, object]) -> Iterator[tuple[str, Group]]:
    """Names ("episode_<id>") and groups of a data folder.

    Args:
        data: holds metadata.json and a folder per episode.
        metadata: what metadata.json says; the spaces tell the shapes.

    Raises:
        ValueError: there is no episode, one cannot be read, or a column is missing.
        ImportError: pyarrow is not installed.
    """
    dataset = require("pyarrow.dataset")
    spaces = {name: _space(metadata, name) for name in ("observation", "action")}
    found = folders(data)
    if not found:
        raise refusal("missing_key", f"{data} holds no episode folders (0, 1, ...)", "copy the data set again")
    for folder in found:
        try:
            ignored = ["_", ".", "metadata.json"]
            for file in folder.iterdir():
                foreign.inside(data, file.relative_to(data))
            table = dataset.dataset(str(folder), format="ipc", ignore_prefixes=ignored).to_table().combine_chunks()
            table.validate(full=True)
        except (OSError, ValueError, MemoryError) as problem:
            if isinstance(problem, BadData):
                raise
            repair = "copy or download the episode again"
            raise refusal("truncated", f"{folder} cannot be read ({problem})", repair) from problem
        columns = {name: table.column(name).combine_chunks() for name in table.column_names}
        items: dict[str, object] = {}
        if "observations" in columns:
            items["observations"] = _decode(columns["observations"], spaces["observation"])
        if "actions" in columns:
            items["actions"] = _cut(_decode(columns["actions"], spaces["action"]))
        for name in ("rewards", "terminations", "truncations"):
            if name in columns:
                items[name] = _plain(columns[name])[:-1]
        facts = folder / "metadata.json"
        yield f"episode_{folder.name}", Group(items, foreign.read_json(facts) if facts.is_file() else {})


def _space(metadata: Mapping[str, object], name: str) -> dict[str, Any]:
    given = metadata.get(f"{name}_space")
    return foreign.parse(Path("metadata.json"), given) if isinstance(given, str) else {}


def _plain(column: Any) -> np.ndarray:
    return column.to_numpy(zero_copy_only=False)


def _decode(column: Any, space: Mapping[str, Any]) -> Any:
    """An array (T, ...) or a group of them."""
    arrow = require("pyarrow")
    kind = column.type
    if arrow.types.is_struct(kind):
        below = space.get("subspaces", {})
        named = below if isinstance(below, Mapping) else {str(i): one for i, one in enumerate(below)}
        fields = [kind.field(i).name for i in range(kind.num_fields)]
        tuples = space.get("type") == "Tuple"
        return Group(
            {
                f"_index_{name}" if tuples else name: _decode(column.field(i), named.get(name, {}))
                for i, name in enumerate(fields)
            }
        )
    if arrow.types.is_fixed_size_list(kind):
        value = column.flatten().to_numpy(zero_copy_only=False).reshape(len(column), kind.list_size)
        shape = space.get("shape")
        return value if shape is None else value.reshape(len(value), *shape)
    return _plain(column)


def _cut(value: Any) -> Any:
    """Without the padded last row."""
    return Group({name: _cut(one) for name, one in value.items()}) if isinstance(value, Group) else value[:-1]
