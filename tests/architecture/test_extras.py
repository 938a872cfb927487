"""setup.py and robot_rl/extras.py name the same packages; what the code asks for stands there."""

import ast
import re
from pathlib import Path
from typing import Any

import pytest

from robot_rl import extras

ROOT = Path(__file__).resolve().parents[2]


def declared() -> dict[str, str]:
    """Distribution -> extras of setup.py that bring it, "" for the base install."""
    space: dict[str, Any] = {}
    for node in ast.parse((ROOT / "setup.py").read_text()).body:
        names = {
            target.id
            for target in getattr(node, "targets", [getattr(node, "target", None)])
            if isinstance(target, ast.Name)
        }
        if names & {"BASE", "EXTRAS"}:
            exec(compile(ast.Module([node], []), "setup.py", "exec"), space)
    lists = {"": space["BASE"], **space["EXTRAS"]}
    return {re.split(r"[<>=\\[]", item)[0]: extra for extra in reversed(lists) for item in lists[extra]}


@pytest.mark.parametrize("package", extras.PACKAGES.values(), ids=lambda p: p.name)
def test_every_package_is_in_the_extra_that_the_message_names(package: extras.Package) -> None:
    assert declared()[package.name] == package.extra


def test_base_packages_are_all_looked_for_by_doctor() -> None:
    base = {name for name, extra in declared().items() if not extra}
    assert base == {package.name for package in extras.PACKAGES.values() if not package.extra}


def test_every_module_that_the_code_requires_is_known() -> None:
    for room in ("robot_rl", "sim", "real", "policies"):
        for path in (ROOT / room).rglob("*.py"):
            for module in re.findall(r"\brequire\(\"([^\"]+)\"", path.read_text()):
                assert extras.remedy(module).startswith("pip install"), f"{path}: {module}"
