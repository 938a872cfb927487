"""Every configuration composes, instantiates a real class, and repeats the defaults of its signature."""

import importlib
import inspect
from pathlib import Path
from typing import Any

import pytest
import yaml
from hydra import compose, initialize_config_module

ROOT = Path(__file__).resolve().parents[2]
VERBS = (
    "train",
    "offline",
    "hil",
    "classify",
    "eval",
    "ope",
    "fas",
    "latency",
    "collect",
    "bench",
    "data",
    "deploy",
    "critic",
    "check",
    "prefer",
    "design",
)
GROUPS = sorted(
    p.relative_to(ROOT / "configs")
    for p in (ROOT / "configs").rglob("*.yaml")
    if p.parent != ROOT / "configs" and "experiment" not in p.parts
)


def target(path: str) -> Any:
    module, name = path.rsplit(".", 1)
    return getattr(importlib.import_module(module), name)


def check(node: dict[str, Any], where: str) -> None:
    function = target(node["_target_"])
    signature = inspect.signature(function)
    for key, value in node.items():
        if key in ("_target_", "_partial_"):
            continue
        assert key in signature.parameters, f"{where}: {node['_target_']} has no argument '{key}'"
        if isinstance(value, dict) and "_target_" in value:
            check(value, f"{where}.{key}")
            continue
        if isinstance(value, str) and value.startswith("${"):
            continue  # a shared top-level key
        default = signature.parameters[key].default
        if default is inspect.Parameter.empty or value == "???":
            continue
        same = list(default) == value if isinstance(default, tuple) else default == value
        assert same, f"{where}: {key} is {value!r}, the signature says {default!r}"


@pytest.mark.parametrize("path", GROUPS, ids=str)
def test_config_group_agrees_with_signature(path: Path) -> None:
    node = yaml.safe_load((ROOT / "configs" / path).read_text())
    assert "_target_" in node, f"{path} has no _target_"
    if path.with_suffix("").as_posix() in PRESETS:
        target(node["_target_"])  # a preset of another method's class: its values differ from the defaults on purpose
        return
    for key in BUILT.get(path.with_suffix("").as_posix(), ()):
        del node[key]
    check(node, str(path))


BUILT = {"rewarder/critic": ("combine", "caution", "reference", "reference_frames")}
"""Keys that `robot_rl.verbs.build` uses up while it makes an argument of the class."""
PRESETS = {"env/tabletop_shown", "policy/online/sac", "policy/online/rlpd", "policy/sequence/srl_model"}
PRESETS |= {"behaviour/bc", "critic/success_only"}


@pytest.mark.parametrize("verb", VERBS)
def test_config_of_verb_composes(verb: str) -> None:
    with initialize_config_module("robot_rl.configs", version_base="1.3"):
        cfg = compose(verb)
    assert "debug" in cfg


@pytest.mark.parametrize("path", [p for p in GROUPS if p.parts[0] in ("env", "policy", "track")], ids=str)
def test_config_group_composes_into_train(path: Path) -> None:
    group, option = path.parts[0], "/".join(path.with_suffix("").parts[1:])
    with initialize_config_module("robot_rl.configs", version_base="1.3"):
        cfg = compose("train", overrides=[f"{group}={option}"])
    assert cfg[group]["_target_"]


@pytest.mark.parametrize("path", sorted((ROOT / "configs/experiment").glob("*.yaml")), ids=lambda p: p.stem)
def test_experiment_composes(path: Path) -> None:
    with initialize_config_module("robot_rl.configs", version_base="1.3"):
        cfg = compose("train", overrides=[f"experiment={path.stem}"])
    assert cfg.total_steps > 0


@pytest.mark.parametrize("engine", sorted(p.stem for p in (ROOT / "configs/engine").glob("*.yaml")))
@pytest.mark.parametrize("verb", ["train", "eval", "offline", "hil", "collect"])
def test_engine_changes_the_factory_and_leaves_the_world(verb: str, engine: str) -> None:
    with initialize_config_module("robot_rl.configs", version_base="1.3"):
        plain = compose(verb, overrides=["env=quadruped"])
        cfg = compose(verb, overrides=["env=quadruped", f"engine={engine}"])
    node = yaml.safe_load((ROOT / f"configs/engine/{engine}.yaml").read_text())
    assert cfg.env == {**plain.env, "_target_": node["_target_"]}
