"""Names of classes and modules: each stands once, and only two files import by a name."""

from __future__ import annotations

import ast
from collections import defaultdict
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("robot_rl", "sim", "real", "policies")


@cache
def trees() -> dict[str, ast.Module]:
    """File -> syntax tree of everything that ships."""
    found = {}
    for room in ROOMS:
        for path in sorted((ROOT / room).rglob("*.py")):
            file = path.relative_to(ROOT)
            if path.resolve().relative_to(ROOT) == file:  # rooms are also seen as links
                found[str(file)] = ast.parse(path.read_text("utf-8"))
    assert len(found) > 500, "the rooms were not found"
    return found


def test_public_class_names_stand_once() -> None:
    places = defaultdict(list)
    for file, tree in trees().items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(file)
    twice = {name: files for name, files in places.items() if len(files) > 1}
    assert not twice, f"one of each has to take another name: {twice}"


def test_only_two_files_import_by_a_name() -> None:
    calls = {"import_module", "__import__", "get_class", "get_object", "get_method"}
    found = {
        file
        for file, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in calls
    }
    assert found == {"robot_rl/build.py", "robot_rl/extras.py"}, (
        "import it plainly, let build.py choose it, or ask extras.require or extras.require_foreign for it"
    )
