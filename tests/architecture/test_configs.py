"""Every configuration composes, names only things that there are, and a file says only what differs."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from hydra import compose, initialize_config_module
from omegaconf import OmegaConf

from robot_rl import build
from robot_rl.verbs.compose import ClassSource, choices, groups_of

ROOT = Path(__file__).resolve().parents[2]
VERBS = sorted(p.stem for p in (ROOT / "configs").glob("*.yaml") if p.stem != "verb")
FILES = sorted((ROOT / "configs").rglob("*.yaml"))


def composed(verb: str, *overrides: str) -> Any:
    with initialize_config_module("robot_rl.configs", version_base="1.3"):
        return compose(verb, overrides=list(overrides))


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_config_names_no_import_path(path: Path) -> None:
    text = path.read_text()
    assert "_target_" not in text
    assert "robot_rl." not in text


@pytest.mark.parametrize("kind", sorted(build.PLACES))
def test_every_name_of_a_kind_leads_to_something_with_typed_options(kind: str) -> None:
    for name in build.names(kind):
        node = build.defaults(kind, name)
        assert node.pop("engine" if kind == "engine" else "name") == name
        assert "gamma" not in node
        assert "device" not in node


@pytest.mark.parametrize("name", choices("policy"))
def test_every_policy_composes_and_its_options_are_taken(name: str) -> None:
    cfg = composed("train", f"policy={name}")
    node: Any = OmegaConf.to_container(cfg, resolve=True)["policy"]  # type: ignore[index]
    if "???" not in node.values():
        assert build.prepare("policy", node)


@pytest.mark.parametrize("path", sorted((ROOT / "configs/policy").rglob("*.yaml")), ids=lambda p: p.stem)
def test_preset_says_only_what_differs_from_its_method(path: Path) -> None:
    preset = yaml.safe_load(path.read_text())
    base = build.defaults("policy", preset.pop("defaults")[0].removeprefix("/method/").removesuffix("@_here_"))
    assert preset, f"{path.name} differs in nothing; the method needs no file"
    for key, value in preset.items():
        assert key in base, f"{path.name}: {key} is no option"
        assert base[key] != value, f"{path.name}: {key} is {value!r} anyway"


@pytest.mark.parametrize("verb", VERBS)
def test_config_of_verb_composes(verb: str) -> None:
    assert "debug" in composed(verb)


@pytest.mark.parametrize("verb", VERBS)
def test_a_plain_option_of_a_verb_is_no_group_to_hydra(verb: str) -> None:
    source = ClassSource("robot_rl", "classes://options")
    cfg, groups = composed(verb), groups_of(verb)
    plain = [str(key) for key in cfg if key not in groups and not OmegaConf.is_dict(cfg._get_node(key))]
    assert [key for key in plain if source.is_group(key)] == []


def test_deploy_takes_the_name_of_a_world() -> None:
    assert composed("deploy", "robot_spec=desk_arm", "world=reach").world == "reach"


@pytest.mark.parametrize("name", choices("env"))
def test_env_composes_with_an_engine_that_there_is(name: str) -> None:
    assert composed("train", f"env={name}").env.engine in build.names("engine")


@pytest.mark.parametrize("path", sorted((ROOT / "configs/preset").glob("*.yaml")), ids=lambda p: p.stem)
def test_preset_composes(path: Path) -> None:
    assert composed("train", f"preset={path.stem}").total_steps > 0


@pytest.mark.parametrize("engine", choices("engine"))
@pytest.mark.parametrize("verb", ["train", "eval", "offline", "hil", "collect"])
def test_engine_changes_the_factory_and_leaves_the_world(verb: str, engine: str) -> None:
    plain = composed(verb, "env=quadruped")
    assert composed(verb, "env=quadruped", f"engine={engine}").env == {**plain.env, "engine": engine}
