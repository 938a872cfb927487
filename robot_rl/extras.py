"""Optional packages: one clear error that says which extra to install."""

from __future__ import annotations

import importlib
from types import ModuleType


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
