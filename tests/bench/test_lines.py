"""The lines `robot-rl bench …` of README and docs: their options are options, of a suite that there is."""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path

import pytest

from robot_rl.verbs.bench import SUITES
from robot_rl.verbs.compose import ClassSource

ROOT = Path(__file__).resolve().parents[2]
OF_THE_VERB = {"quick", "name", "output"}


def lines() -> list[tuple[str, str]]:
    """(suite, its words) of every line, those that go on behind a backslash joined."""
    found = set()
    for path in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")):
        text = re.sub(r"\\\n\s*", " ", path.read_text(encoding="utf-8"))
        for words in re.findall(r"(?:robot-rl|`)\s?bench ([a-z_]+[^\n`#|;]*)", text):
            suite, _, rest = words.partition(" ")
            if (SUITES / f"{suite}.py").is_file():
                found.add((suite, rest.strip()))
    return sorted(found)


LINES = lines()


@pytest.mark.parametrize(("suite", "words"), LINES, ids=[f"{suite} {words}"[:60] for suite, words in LINES])
def test_options_of_a_line_are_taken_by_its_suite(suite: str, words: str) -> None:
    takes = set(inspect.signature(importlib.import_module(f"benchmarks.{suite}").run).parameters)
    words = re.sub(r"\[[^\]]*\]|<[^>]*>", "", words)  # lists and what stands for something else
    for plus, key in re.findall(r"(?:^|[\s\"'])(\+{0,2})([a-z_]+)=", words):
        if plus:
            assert key in takes, f"bench {suite} takes {sorted(takes)}"
            # Hydra would look for a file of that name in a group of ours
            assert not ClassSource("robot_rl", "classes://options").is_group(key), f"{key} is a group"
        else:
            assert key in OF_THE_VERB, f"bench {suite} {key}= wants a plus"


def test_lines_are_found() -> None:
    assert len(LINES) > 40
    assert any(suite == "edge" and "+task=hold" in words for suite, words in LINES)
