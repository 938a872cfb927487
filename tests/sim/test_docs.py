"""The example of docs/add_a_world.md is complete: it runs as written."""

import re
import sys
import types
from pathlib import Path

import yaml

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "add_a_world.md").read_text()


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def test_example_world_passes_the_check_and_its_expert_succeeds(monkeypatch):
    world, check = blocks("python")
    module = types.ModuleType("robot_rl.sim.worlds.line")
    exec(compile(world, "line.py", "exec"), module.__dict__)
    monkeypatch.setitem(sys.modules, module.__name__, module)  # as if the file lay where the page puts it
    scope = {}
    exec(compile(check, "check.py", "exec"), scope)  # asserts inside
    assert scope["findings"] == []


def test_example_config_builds_on_the_engine_and_the_world():
    config = yaml.safe_load(blocks("yaml")[0])
    assert config == {"defaults": ["/simulator/mujoco@_here_", "/world_defaults/line@world", "_self_"]}
