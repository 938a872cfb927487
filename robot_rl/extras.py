"""What is imported by name from outside: optional packages, and classes of the user's own that the user has named."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

_allowed: set[str] = set()
_all = False


def require(module: str, *, extra: str) -> ModuleType:
    """Import an optional module.

    Args:
        module: dotted module name.
        extra: the extra of this package that brings it.

    Raises:
        ImportError: the module is absent; the message holds the command that installs it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(
            f"'{module}' is needed here and could not be imported ({error}). "
            f'Install it with: pip install "robot_rl[{extra}]" (or `make setup` in a checkout).'
        ) from error


def allow(*names: str, everything: bool = False) -> None:
    """Names of code that the user gave on the command line; `everything` is `trust=true`."""
    global _all
    _allowed.update(names)
    _all = _all or everything


def allowed(name: str, where: str) -> str:
    """`name`, if the user gave it.

    Raises:
        ValueError: it comes from a file; says how to trust it.
    """
    if not (_all or name in _allowed):
        raise ValueError(
            f"{where}{name} names code outside robot_rl and comes from a file, not from this command line; if you "
            f"trust whoever wrote it, add trust=true (it runs with your rights) or give {where}{name} yourself"
        )
    return name


def own(name: str, where: str = "") -> Any:
    """An object of the user's own: "module:Name" of an installed module, or "./file.py:Name".

    Raises:
        ValueError: nobody allowed it, or there is no such file, module or name.
    """
    place, _, path = allowed(name, where).rpartition(":")
    try:
        module = _of_file(Path(place)) if place.endswith(".py") else importlib.import_module(place)
    except ModuleNotFoundError as error:
        raise ValueError(f"there is no module '{place}' on the Python path ({error})") from error
    found: Any = module
    for part in path.split("."):
        if part not in vars(found):
            raise ValueError(f"{place} has no '{path}'; give {where}<module or file>:<name>")
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


def check_hash(name: str, stored: Any) -> None:
    """Refuse code that is no longer what a run was made with, unless the user names it again.

    Raises:
        ValueError: the file has changed since.
    """
    if stored and name not in _allowed and file_hash(name) != stored:
        raise ValueError(
            f"{name} has changed since this run was made (another SHA-256); give it on the command line to use it "
            "as it is"
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
