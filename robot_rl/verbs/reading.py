"""Options of a verb out of a composed configuration or words, checked against the class that states them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
from omegaconf import DictConfig, OmegaConf

from robot_rl import build
from robot_rl.checkpoint import read_config
from robot_rl.types import Options
from robot_rl.words import Refused, near

PLAIN = (
    "policy", "encoder", "human", "track", "compatibility", "classifier", "preference", "pictures_reward", "ope",
    "critic", "clips", "rewarder",
)  # fmt: skip
"""Groups whose options are those of classes and need no file."""
READ = [group for group in PLAIN if group != "rewarder"]
"""Groups whose options are read before anything is made; a world is made before anything is written."""
S = TypeVar("S", bound=Options)


def stored_config(folder: Path) -> DictConfig:
    """The configuration that a run or checkpoint folder was made with; see `checkpoint.read_config`."""
    return OmegaConf.create(read_config(folder))


_MARKS = {
    "hil": "human",
    "offline": "top_fraction",
    "critic": "critic",
    "classify": "classifier",
    "prefer": "preference",
    "train": "init",
}
"""Verb -> what its configuration alone has, of those before it."""


def refuse_other_verb(config: DictConfig, folder: Path, *verbs: str) -> str:
    """Which of the verbs goes on with a run.

    Args:
        config: of the run.
        folder: of it.
        verbs: that may.

    Raises:
        Refused: it is a run of another one.
    """
    made = next((verb for verb, mark in _MARKS.items() if mark in config), verbs[0])
    if made not in verbs:
        verb = "critic train" if made == "critic" else made
        raise Refused(f"{folder} is a run of robot-rl {verb}, and goes on with robot-rl {verb} resume={folder}")
    return made


def run_of(path: str | Path) -> Path:
    """The run folder that a checkpoint folder lies in; any other folder is its own."""
    given = Path(path)
    return given.parent.parent if given.parent.name == "checkpoints" else given


def ends_at_success(config: DictConfig) -> bool:
    """Whether an episode of the run that this is the configuration of ended at its first success, as hil's do."""
    return config.get("task_reward") == "success"


def robot_file(name: str) -> str:
    """The path of a robot's file, by its name or path.

    Raises:
        Refused: there is none.
    """
    path = Path(build.tool("real.graph:find_file")(name)).expanduser()
    if not path.is_file():
        raise Refused(f"there is no robot '{name}'{near(name, ['desk_arm'])} (or give the path of its YAML)")
    return str(path)


def read_options(model: type[Options], cfg: DictConfig, verb: str) -> None:
    """Check the options of a verb, its groups aside, and keep them as they were read: 1e3 is 1000.

    Args:
        model: class of its options.
        cfg: composed; changed in place.
        verb: what it is called.

    Raises:
        Refused: a value of another type or outside its range, one that is missing, a device that is not here, or a task
            by id in an environment that has none.
    """
    given: Any = OmegaConf.to_container(cfg, resolve=False)
    values = {key: given[key] for key in model.model_fields if given.get(key, "???") != "???"}
    options = build.check(model, values, "", f"robot-rl {verb}")
    for key, value in options:
        cfg[key] = build.plain(value)
    task, env = given.get("id"), str(given.get("env"))
    if task is not None and not given.get("resume") and "${id}" not in env and str(task) not in env:
        raise Refused(
            f"id={task} is the task of env=gym, dm_control, fetch, metaworld, robosuite or isaac_lab, and none of them "
            "is chosen: add env=gym, or leave id out"
        )
    if "device" in values:
        _check_device(str(values["device"]))
    for kind in READ:
        node = given.get(kind)
        if isinstance(node, dict):
            build.look(kind, plain(cfg[kind], missing=True))


def _check_device(device: str) -> None:
    kind, _, number = device.partition(":")
    if kind == "cuda" and not torch.cuda.is_available():
        raise Refused(f"device is '{device}', and torch sees no CUDA device here; use device=cpu (see robot-rl doctor)")
    if kind == "cuda" and number and int(number) >= torch.cuda.device_count():
        raise Refused(f"device is '{device}', and there are {torch.cuda.device_count()} here; they are counted from 0")


def plain(cfg: Any, *, missing: bool = False) -> Any:
    """Values without OmegaConf; `missing` leaves those out that have still to be given."""
    if not OmegaConf.is_config(cfg):
        return cfg
    if missing:
        cfg = OmegaConf.masked_copy(cfg, [key for key in cfg if not OmegaConf.is_missing(cfg, key)])
    return OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True)


def read_words(model: type[S], words: Sequence[str], verb: str) -> S:
    """Options of a verb without a configuration, from `key=value` words.

    Raises:
        Refused: a word without a value, an unknown name, or a value of another type or outside its range.
    """
    values: dict[str, object] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals:
            raise Refused(f"'{word}' is no option of {verb}, expected key=value; {_list_options(model)}")
        values[key] = value
    return build.check(model, values, "", verb)


def read_named(model: type[S], words: Sequence[str], verb: str, say: str) -> tuple[str, S]:
    """The one word among the others that names something, and the options of a verb.

    Args:
        model: class of its options.
        words: behind the verb.
        verb: what it is called.
        say: how it is asked, where there is no such word or more than one.

    Raises:
        Refused: that, and see `read_words`.
    """
    names = [word for word in words if "=" not in word]
    if len(names) != 1:
        raise Refused(f"say which {say}")
    return names[0], read_words(model, [word for word in words if "=" in word], verb)


def _list_options(model: type[Options]) -> str:
    return "its options are " + ", ".join(f"{key}=" for key in model.model_fields)
