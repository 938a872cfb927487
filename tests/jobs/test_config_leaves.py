"""Every place of a stored configuration filled with what would name code: nothing of it runs, each gets a sentence."""

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

EVIL = 'from pathlib import Path\nPath("was_run").write_text("yes")\nclass Evil:\n    pass\n'
HOSTILE: dict[str, Any] = {
    "class": {"_target_": "evil.Evil"},
    "function": {"_target_": "pathlib.Path.write_text", "_args_": ["was_run", "x"]},
    "node": {"name": "evil:Evil"},
    "module": "evil:Evil",
    "file": "./evil.py:Evil",
    "dotted": "evil.Evil",
    "environment": "${oc.env:HOME}",
    "resolver": "${evil.Evil:1}",
}
RUNS = {
    "sac": ("env=reach", "policy=online/sac"),
    "person": ("env=reach", "policy=human/safe_set"),
    "gym": ("env=gym", "id=Pendulum-v1", "policy=online/ppo"),
}


def leaves(node: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, value in items:
        yield (*path, key)
        yield from leaves(value, (*path, key))


def check(
    line: tuple[str, ...],
    thorough: bool,
    folder: Path,
    robot_rl: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    """Train, then evaluate for each leaf of the configuration and each value; or every third leaf, values in turn."""
    (folder / "evil.py").write_text(EVIL)
    first = robot_rl("train", *line, "total_steps=60", "video_episodes=0", "output=out")
    assert not first.returncode, first.stderr
    made = next(folder.glob("out/train/*"))
    kept = {path: path.read_text() for path in made.rglob("config.yaml")}
    wrong: list[str] = []
    places = list(leaves(yaml.safe_load(next(iter(kept.values())))))
    for number, leaf in enumerate(places if thorough else places[::3]):
        for kind in HOSTILE if thorough else [[*HOSTILE][number % (len(HOSTILE) - 1)]]:
            for path, text in kept.items():
                config = node = yaml.safe_load(text)
                for part in leaf[:-1]:
                    node = node[part]
                node[leaf[-1]] = HOSTILE[kind]
                path.write_text(yaml.safe_dump(config))
            found = robot_rl("eval", f"path={made}", "episodes=1", "num_envs=1", "video_episodes=0", path=folder)
            code, said = found.returncode, found.stderr
            refused = code == 2 or (code == 1 and said.count("robot-rl:") == 1)
            if (folder / "was_run").exists() or "Traceback" in said or not (code == 0 or refused):
                wrong.append(f"{leaf} {kind}: {code} {said[-200:]}")
            if refused and len(said.strip().splitlines()) > 6:
                wrong.append(f"{leaf} {kind}: {len(said.strip().splitlines())} lines")
            if kind in ("environment", "resolver") and not refused:
                wrong.append(f"{leaf} {kind}: resolved")
            shutil.rmtree(made / "eval", ignore_errors=True)
    assert not wrong


def test_a_hostile_value_in_every_third_place_of_a_run_names_no_code(
    tmp_path: Path, robot_rl: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    check(RUNS["sac"], False, tmp_path, robot_rl)


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_every_hostile_value_in_every_place_of_a_run_names_no_code(
    name: str, tmp_path: Path, robot_rl: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    check(RUNS[name], True, tmp_path, robot_rl)
