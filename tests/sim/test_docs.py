"""The example of docs/add_a_world.md is complete: it runs as written."""

import inspect
import re
import sys
import types
from pathlib import Path

import yaml

from robot_rl.sim import mujoco_env

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


def test_example_config_holds_the_arguments_of_make():
    config = yaml.safe_load(blocks("yaml")[0])
    parameters = inspect.signature(mujoco_env.make).parameters
    assert set(config) - {"_target_"} == set(parameters) - {"num_envs", "seed", "device", "render_mode"}
