"""Learners, policies and environments declare what they have (`Needs`, `PolicyParts`, `EnvParts`): nobody asks."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("robot_rl", "sim", "real", "policies")
DECLARED = {"learner", "policy", "env", "actor", "stepper"}
"""Names under which learners, policies and environments go; also with an underscore before them."""
FOREIGN = {
    "sim/check.py",  # takes an environment of anybody's and says what it lacks
    "sim/gym_env.py",  # Gymnasium's environments, which declare nothing
    "sim/gym_state.py",
    "sim/isaac_lab_env.py",
}
MOST = 40
"""Calls of getattr and hasattr and handlers of AttributeError that ship; lower it where one goes, never raise it."""


@cache
def probes() -> list[tuple[str, int, str]]:
    """(file, line, what is asked; "" for a handler of AttributeError) of everything that ships."""
    found = []
    for room in ROOMS:
        for path in sorted((ROOT / room).rglob("*.py")):
            file = path.relative_to(ROOT)
            if path.resolve() != path and path.resolve().relative_to(ROOT) != file:  # rooms are also seen as links
                continue
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                if isinstance(node, ast.ExceptHandler) and node.type is not None:
                    if "AttributeError" in ast.unparse(node.type):
                        found.append((str(file), node.lineno, ""))
                elif (
                    isinstance(node, ast.Call)
                    and len(node.args) > 1
                    and ast.unparse(node.func).rpartition(".")[2] in ("getattr", "hasattr")
                ):
                    found.append((str(file), node.lineno, ast.unparse(node.args[0])))
    return found


def test_learners_policies_and_environments_are_never_probed() -> None:
    asked = [
        f"{file}:{line} asks {of}"
        for file, line, of in probes()
        if file not in FOREIGN and any(part.lstrip("_") in DECLARED for part in of.split("."))
    ]
    assert not asked, "declare it in Needs, PolicyParts or EnvParts (robot_rl/types): " + "; ".join(asked)


def test_probes_become_fewer() -> None:
    found = probes()
    assert found, "the rooms were not found"
    assert len(found) <= MOST, f"{len(found)} probes ship, and there were {MOST}: declare what is asked for instead"
