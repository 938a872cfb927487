"""The agents that are shipped: small, tensors and tables alone, and as good as their cards say."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from robot_rl import cli, zoo
from robot_rl.data import formats

NAMES = zoo.names()
ROBOTS = next((p for p in (up / "shared/data/robots" for up in Path(__file__).parents) if p.exists()), Path("absent"))


def test_they_are_small_and_hold_nothing_but_an_actor():
    assert NAMES
    files = [path for path in zoo.FOLDER.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= 5e6
    assert {path.name for path in files} == {"policy.pt", "io.json", "config.yaml", "meta.json", "card.json"}
    for name in NAMES:
        torch.load(zoo.find(name) / "policy.pt", weights_only=True)


@pytest.mark.parametrize("name", [x if x == "Pendulum-v1" else pytest.param(x, marks=pytest.mark.slow) for x in NAMES])
def test_an_evaluation_gives_the_returns_of_the_card(name: str, robot_rl: Any, monkeypatch: pytest.MonkeyPatch):
    if name.endswith("-go2"):
        if not ROBOTS.exists():
            pytest.skip("the folder shared/data/robots is absent")
        monkeypatch.setenv("ROBOT_RL_MODELS", str(ROBOTS))
    card = json.loads((zoo.FOLDER / name / "card.json").read_text())
    assert card["evaluated"] == f"robot-rl eval preset={name}"
    done = robot_rl("eval", f"preset={name}", "video_episodes=0", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    # another processor adds in another order, and where legs hit the ground a last digit grows into another episode
    assert found["return"] == pytest.approx(card["return"], rel=0.02)


def test_they_load_from_python():
    import robot_rl as rr

    agent = rr.load(zoo.find("Pendulum-v1"))
    assert len(rr.evaluate(agent, env=rr.make("Pendulum-v1"), episodes=2).returns) == 2


def test_a_name_that_is_none_is_told_with_the_nearest(robot_rl: Any):
    done = robot_rl("eval", "preset=Pendulum-v2")
    assert done.returncode == 2
    assert "did you mean Pendulum-v1?" in done.stderr
    assert "\n" not in done.stderr.strip()


def test_each_was_trained_with_a_preset_that_comes_with_it():
    presets = {path.stem for path in (Path(__file__).parents[2] / "configs/preset").glob("*.yaml")}
    for name in NAMES:
        (preset,) = re.findall(r"preset=(\S+)", json.loads((zoo.FOLDER / name / "card.json").read_text())["trained"])
        assert preset in presets
        assert preset == name or name == f"{preset}-go2"


def test_an_agent_from_before_an_option_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    import robot_rl as rr

    shutil.copytree(zoo.find("Pendulum-v1"), tmp_path / "old")
    config = tmp_path / "old/config.yaml"
    lines = [line for line in config.read_text().splitlines() if "obs_spread" not in line]
    config.write_text("\n".join(lines))
    rr.load(zoo.find("Pendulum-v1"))
    assert capsys.readouterr().err == ""
    rr.load(tmp_path / "old")
    said = capsys.readouterr().err
    assert "online/ppo has options that came after this run, at their defaults: obs_spread=2.0." in said


@pytest.mark.parametrize("verb", ["eval", "eval fas", "collect"])
def test_the_environment_of_a_run_is_changed_by_its_options(verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    words = {
        "eval": ["episodes=1", "video_episodes=0"],
        "eval fas": ["episodes=1", "num_envs=1"],
        "collect": ["episodes=1", "num_envs=1", "out=log.hdf5"],
    }[verb]
    monkeypatch.setattr("sys.argv", ["robot-rl", *verb.split(), "preset=Pendulum-v1", "env.episode_steps=7", *words])
    cli.main()
    if verb == "eval":
        (numbers,) = tmp_path.rglob("evaluation.json")
        assert json.loads(numbers.read_text())["length"] == 7
    if verb == "collect":
        assert len(formats.load(tmp_path / "log.hdf5").episodes[0]) == 7
