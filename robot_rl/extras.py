"""Which package brings which module: the base install, and the extras of `pip install "robot_rl[extra]"`."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import NamedTuple


class Package(NamedTuple):
    """A distribution that this project uses.

    Attributes:
        name: of the distribution.
        extra: of ours that brings it, "" for the base install.
        purpose: what is missing without it.
    """

    name: str
    extra: str
    purpose: str


PACKAGES = {
    "torch": Package("torch", "", "learning"),
    "numpy": Package("numpy", "", "everything"),
    "gymnasium": Package("gymnasium", "", "environments"),
    "mujoco": Package("mujoco", "", "our worlds and Gymnasium's MuJoCo tasks"),
    "array_api_compat": Package("array-api-compat", "", "worlds on arrays and tensors"),
    "hydra": Package("hydra-core", "", "the command line"),
    "pydantic": Package("pydantic", "", "options"),
    "h5py": Package("h5py", "", "recorded episodes, D4RL and Minari files"),
    "tqdm": Package("tqdm", "", "progress bars"),
    "psutil": Package("psutil", "", "memory and processors"),
    "yaml": Package("pyyaml", "", "robot specifications"),
    "tensorboard": Package("tensorboard", "", "track.tensorboard"),
    "matplotlib": Package("matplotlib", "", "learning curves"),
    "jinja2": Package("jinja2", "", "report.html"),
    "av": Package("av", "", "evaluation videos"),
    "PIL": Package("pillow", "", "pictures"),
    "pygame": Package("pygame", "", "videos of Gymnasium's classic control, gamepads"),
    "gymnasium_robotics": Package("gymnasium-robotics", "sim", "Fetch, hand, Adroit and Kitchen tasks"),
    "stable_baselines3": Package("stable-baselines3", "sim", "policy=online/sb3, comparisons"),
    "numba": Package("numba", "fast", "fastest advantage and PPO kernels"),
    "pyarrow": Package("pyarrow", "logs", "LeRobot and Minari data sets"),
    "rosbags": Package("rosbags", "logs", "ROS bags"),
    "aiohttp": Package("aiohttp", "robot", "the console in the browser"),
    "cv2": Package("opencv-python-headless", "robot", "cameras"),
    "zenoh": Package("eclipse-zenoh", "robot", "a learner on another machine"),
    "safetensors": Package("safetensors", "robot", "a learner on another machine"),
    "wandb": Package("wandb", "track", "track=wandb"),
    "transformers": Package("transformers", "language", "the language agent"),
    "mujoco_warp": Package("mujoco-warp", "gpu", "engine=warp: our worlds on a GPU"),
    "warp": Package("warp-lang", "gpu", "engine=warp: our worlds on a GPU"),
    "ray": Package("ray", "cluster", "rollout workers and sweeps on several machines"),
    "rclpy": Package("ros-rclpy", "ros", "ROS 2 robots, unless a ROS is sourced"),
}
"""Module -> what brings it."""
_WITHIN = {"llvmlite": "numba", "lz4": "rosbags", "backports": "rosbags"}
"""Modules that come with another one."""


def remedy(module: str) -> str:
    """The command that installs what a module needs.

    Args:
        module: dotted module name; its package is in `PACKAGES`.
    """
    top = module.partition(".")[0]
    extra = PACKAGES[_WITHIN.get(top, top)].extra
    return f'pip install "robot_rl[{extra}]"' if extra else "pip install robot_rl"


def require(module: str) -> ModuleType:
    """Import an optional module.

    Args:
        module: dotted module name; its package is in `PACKAGES`.

    Raises:
        ImportError: the module is absent; the message holds the command that installs it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(
            f"'{module}' is needed here and could not be imported ({error}). "
            f"Install it with: {remedy(module)} (or `make setup` in a checkout)."
        ) from error
