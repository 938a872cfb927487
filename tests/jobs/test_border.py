"""A run folder from a stranger: nothing in its config.yaml names code that runs."""

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from robot_rl import build, extras
from robot_rl.words import Refused

EVIL = """
from pathlib import Path
Path("was_run").write_text("yes")
from robot_rl.types import Learner
class Evil(Learner):
    pass
"""

FOREIGN: list[tuple[str, Any]] = [
    ("policy.batch_size", {"_target_": "pathlib.Path.write_text", "self": "x", "data": "y"}),
    ("policy._target_", "evil.Evil"),
    ("policy.name", "evil:Evil"),
    ("policy.name", "./evil.py:Evil"),
    ("policy.name", "os:system"),
    ("policy.name", "online/../../evil"),
    ("policy.name", "robot_rl.atomic.write_bytes"),
    ("policy", {"_target_": "evil.Evil"}),
    ("policy", {"name": "human/safe_set", "method": {"name": "evil:Evil"}}),
    ("policy", {"name": "online/sb3", "algorithm": "evil.Evil"}),
    ("env.engine", "evil:Evil"),
    ("env.engine", "gym"),
    ("env.world.name", "./evil.py:Evil"),
    ("env.world._target_", "evil.Evil"),
    ("env", {"engine": "gym", "id": "evil:Evil-v0"}),
    ("env", {"_target_": "evil.Evil"}),
]


@pytest.fixture
def stranger(tmp_path: Path, make_job, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A finished run beside a module that leaves a mark when it is imported."""
    make_job(tmp_path / "run", "total_steps=60", "video_episodes=0", "eval_every=0").run()
    (tmp_path / "evil.py").write_text(EVIL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(extras, "_allowed", set())
    monkeypatch.setattr(extras, "_all", False)
    monkeypatch.setattr(extras, "_changed", False)
    return tmp_path


def put(config: dict[str, Any], key: str, value: Any) -> None:
    *path, last = key.split(".")
    for part in path:
        config = config[part]
    config[last] = value


@pytest.mark.parametrize(("key", "value"), FOREIGN, ids=lambda x: str(x)[:40])
def test_eval_of_a_folder_that_names_code_runs_nothing(
    stranger: Path, key: str, value: Any, robot_rl: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    for path in (stranger / "run").rglob("config.yaml"):
        config = yaml.safe_load(path.read_text())
        put(config, key, value)
        path.write_text(yaml.safe_dump(config))
    found = robot_rl("eval", "path=run", "episodes=1", "video_episodes=0")
    assert found.returncode in (1, 2)
    said = found.stderr
    assert said.count("robot-rl:") == 1
    assert "Traceback" not in said
    assert not (stranger / "was_run").exists()


def test_a_class_of_the_users_own_runs_when_it_is_named_or_trusted(stranger: Path) -> None:
    with pytest.raises(ValueError, match="trust=true"):
        build.find("policy", "./evil.py:Evil")
    assert not (stranger / "was_run").exists()
    extras.allow("./evil.py:Evil")
    assert build.find("policy", "./evil.py:Evil").__name__ == "Evil"
    assert (stranger / "was_run").exists()
    extras.allow(everything=True)
    assert build.find("policy", "evil:Evil").__name__ == "Evil"
    with pytest.raises(Refused, match="no learner"):
        build.find("policy", "json:JSONDecoder")


def test_a_folder_with_a_hash_imports_nothing_to_compare_it(stranger: Path) -> None:
    package = stranger / "evil_package"
    package.mkdir()
    (package / "__init__.py").write_text(EVIL)
    (package / "part.py").write_text("")
    with pytest.raises(ValueError, match="trust=true"):
        build.prepare("policy", {"name": "evil_package.part:Evil", "sha256": "0" * 64})
    assert not (stranger / "was_run").exists()


def test_code_that_changed_since_the_run_is_refused_until_it_is_wanted_so(stranger: Path) -> None:
    name = f"{stranger}/evil.py:Evil"
    stored = extras.file_hash(name)
    (stranger / "evil.py").write_text(EVIL + "\n# more\n")
    extras.allow(everything=True)
    with pytest.raises(ValueError, match="trust=changed"):
        build.prepare("policy", {"name": name, "sha256": stored})
    assert not (stranger / "was_run").exists()
    extras.allow(changed=True)
    assert build.prepare("policy", {"name": name, "sha256": stored})


@pytest.mark.parametrize(
    ("node", "words"),
    [
        ({"name": "online/sac", "lrr": 1}, "policy.lrr is no option of online/sac; did you mean lr?"),
        ({"name": "online/sac", "gamma": 0.9}, "gamma=… .without policy.. sets it for the whole run"),
        ({"name": "online/sac", "lr": "fast"}, "policy.lr is 'fast', expected a number"),
        ({"name": "online/sca"}, "did you mean online/sac"),
        ({"name": "offline/iql", "expectile": 1.5}, "policy.expectile is 1.5, expected a number in .0, 1."),
        ({"name": "offline/iql", "order": "crol"}, "policy.order is 'crol', expected jax or corl; did you mean corl?"),
        ({}, "policy says no name"),
    ],
)
def test_wrong_options_are_answered_in_one_sentence(node: dict[str, Any], words: str) -> None:
    with pytest.raises(Refused, match=words.replace("?", r"\?")):
        build.prepare("policy", node)
