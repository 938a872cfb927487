"""Command lines in README and in the tutorials: marked ones run in a short version, all others compose.

A block of a page is marked by a comment that readers do not see, `<!-- runs: total_steps=90 -->`: its lines run with
these options added. What an earlier line has left is there for the later ones; `<run>` is the newest run of its folder.
"""

import contextlib
import re
import shlex
import shutil
import sys
from pathlib import Path

import pytest

from robot_rl import cli

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs/tutorials").glob("*.md")),
    *sorted((ROOT / "docs/howto").glob("*.md")),
]
BLOCK = re.compile(r"(?:<!-- runs:(?P<short>[^>]*)-->\n+)?```bash\n(?P<lines>.*?)```", re.DOTALL)


def commands(page: Path, short: bool) -> list[list[str]]:
    """Words behind `robot-rl` of the lines that are marked (with the options of the mark), or of those that are not."""
    found = []
    for block in BLOCK.finditer(page.read_text()):
        marked = block["short"] is not None
        for line in block["lines"].replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if words[:1] == ["robot-rl"] and marked == short:
                found.append(words[1:] + shlex.split(block["short"] or ""))
    return found


def newest(word: str, folder: Path) -> str:
    """`path=runs/train/<run>` with the newest run of that folder."""
    match = re.search(r"(runs/\w+)/<run>", word)
    if match is None:
        return word
    runs = sorted((folder / match[1]).iterdir(), key=lambda path: path.stat().st_mtime)
    return word.replace("<run>", runs[-1].name)


def test_marked_lines_of_the_pages_run_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for model in (ROOT / "docs/howto").glob("*.urdf"):
        shutil.copy(model, tmp_path)
    world = re.search(r"```python\n(.*?)```", (ROOT / "docs/add_a_world.md").read_text(), re.DOTALL)
    assert world is not None
    (tmp_path / "line.py").write_text(world[1])
    lines = [tuple(words) for page in PAGES for words in commands(page, True)]
    for words in dict.fromkeys(lines):  # what a tutorial repeats of README runs once
        monkeypatch.setattr(sys, "argv", ["robot-rl", *(newest(word, tmp_path) for word in words)])
        code: object = None
        try:  # in this process: a new one costs as much as the line itself
            cli.main()
        except SystemExit as end:
            code = end.code
        assert not code, f"robot-rl {shlex.join(words)}\n{capfd.readouterr().err[-2000:]}"


UNMARKED = [(page.stem, words) for page in PAGES for words in commands(page, False)]


@pytest.mark.parametrize("words", [words for _, words in UNMARKED], ids=[f"{p} {' '.join(w[:3])}" for p, w in UNMARKED])
def test_line_of_a_page_composes(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # no configuration of theirs is composed
    if words[0] in ("doctor", "sweep", "tune", "robot") or words[:2] == ["data", "session"]:
        assert f"  {words[0]} " in cli.USAGE
        return
    at = 1 if "--" in words else len(words)  # flags stand before all options or behind them
    shown = [*words[:at], "--cfg=job", *words[at:]]
    monkeypatch.setattr(sys, "argv", ["robot-rl", *(re.sub(r"<(\w+)>", r"\1", word) for word in shown)])
    with contextlib.suppress(SystemExit):  # Hydra's refusal of the line; what is printed then is no configuration
        cli.main()
    said = capsys.readouterr()
    assert "output: runs" in said.out, said.err
