"""The configurations that lie in the package."""

from __future__ import annotations

from collections.abc import Sequence

from hydra import compose, initialize_config_module
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, open_dict


def compose_config(config: str, items: Sequence[str], *, with_hydra: bool = False) -> DictConfig:
    """A configuration of ours with words of its command line, also where the caller's own program runs in Hydra.

    Args:
        config: of a verb.
        items: the words.
        with_hydra: `HydraConfig` speaks of it too: what was chosen, and which words were given.
    """
    there = GlobalHydra.instance().hydra
    GlobalHydra.instance().clear()
    try:
        with initialize_config_module("robot_rl.configs", version_base="1.3"):
            made = compose(config, overrides=list(items), return_hydra_config=with_hydra)
    finally:
        GlobalHydra.instance().hydra = there
    if with_hydra:
        HydraConfig.instance().set_config(made)
        with open_dict(made):
            del made["hydra"]
    return made
