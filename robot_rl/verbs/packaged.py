"""The configurations that lie in the package."""

from __future__ import annotations

from collections.abc import Sequence

from hydra import compose, initialize_config_module
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig


def composed(config: str, items: Sequence[str]) -> DictConfig:
    """A configuration of ours with words of its command line, also where the caller's own program runs in Hydra."""
    there = GlobalHydra.instance().hydra
    GlobalHydra.instance().clear()
    try:
        with initialize_config_module("robot_rl.configs", version_base="1.3"):
            return compose(config, overrides=list(items))
    finally:
        GlobalHydra.instance().hydra = there
