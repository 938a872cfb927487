"""setup.py and robot_rl/extras.py name the same packages; what the code asks for stands there."""

import ast
import re
from pathlib import Path
from typing import Any

import pytest

from robot_rl import build, extras

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


def test_absent_package_of_nobodys_extra_says_how_to_get_it() -> None:
    with pytest.raises(ImportError, match=r"'no_such_package.part' is needed here .*\. Ask its maker\.$"):
        extras.require_foreign("no_such_package.part", "Ask its maker.")


def test_faults_of_modules_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "breaks_at_import.py").write_text("raise OSError('no driver')\n")
    monkeypatch.syspath_prepend(tmp_path)
    found = [extras.find_fault(name) for name in ("json", "no_such_package", "breaks_at_import")]
    assert found == ["", "missing", "broken (OSError: no driver)"]


def test_world_that_there_is_not_is_answered_with_the_near_name() -> None:
    assert build.make_world({"name": "reach"}).name == "reach"
    with pytest.raises(ValueError, match="there is no world 'raech'; did you mean reach"):
        build.make_world("raech")
