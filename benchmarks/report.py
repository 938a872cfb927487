"""Print and write what a bench suite measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from robot_rl.checkpoint import write_json


def write(folder: Path, suite: str, result: dict[str, Any], versions: dict[str, str]) -> Path:
    """Write `<folder>/<suite>.json` with the versions beside the numbers."""
    path = folder / f"{suite}.json"
    write_json(path, {"suite": suite, "versions": versions, **result})
    return path


def table(result: dict[str, Any]) -> str:
    """Rows of a result as an aligned text table; other entries as lines below it.

    Args:
        result: {"rows": [{column: value}] or {name: {column: value}}, ...}.
    """
    rows = result.get("rows")
    if rows is None:  # a suite may name its rows at the top
        rows = {name: row for name, row in result.items() if isinstance(row, dict)}
        result = {name: value for name, value in result.items() if name not in rows}
    if isinstance(rows, dict):
        rows = [{"name": name, **row} for name, row in rows.items()]
    columns: list[str] = []
    for row in rows:
        columns += [name for name in row if name not in columns]
    cells = [columns, *([_cell(row.get(name, "")) for name in columns] for row in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(columns))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() for line in cells]
    if len(lines) > 1:
        lines.insert(1, "  ".join("-" * width for width in widths))
    lines += [f"{name}: {_cell(value)}" for name, value in result.items() if name != "rows"]
    return "\n".join(lines)


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, dict):
        return ", ".join(f"{name} {_cell(item)}" for name, item in value.items())
    if isinstance(value, (list, tuple)):
        return " ".join(_cell(item) for item in value)
    return str(value)
