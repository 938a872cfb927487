"""MuJoCo as this package loads it: with a renderer that needs no screen, and without a log in the user's folder.

MuJoCo reads MUJOCO_GL once, at import, and without it asks for a window system. Environments that open its renderer on
their own (gym_hil, gymnasium's `render_mode="rgb_array"`) then fail on a machine without a display.
"""

from __future__ import annotations

import ctypes.util
import os
import sys
from types import ModuleType

from robot_rl.extras import require

_chosen: list[str] = []


def prefer_headless() -> None:
    """Set MUJOCO_GL to egl or osmesa, whichever library is there, unless it is set or there is a display."""
    environment = os.environ
    if sys.platform != "linux" or environment.get("MUJOCO_GL") or environment.get("DISPLAY"):
        return
    for kind, library in (("egl", "EGL"), ("osmesa", "OSMesa")):
        if ctypes.util.find_library(library):
            environment["MUJOCO_GL"] = kind
            _chosen.append(kind)
            return


def load_mujoco() -> ModuleType:
    """MuJoCo, whose warnings stand on the console and leave no MUJOCO_LOG.TXT wherever a command is run.

    Raises:
        ImportError: it is missing.
    """
    prefer_headless()
    mujoco = require("mujoco")
    if "MjLogConfig" in vars(mujoco):  # from 3.17 on
        config = mujoco.MjLogConfig.get()
        config.logto_file = False
        config.set()
    return mujoco


def wanted_renderer() -> str:
    """The renderer that the user asked for with MUJOCO_GL, or "" where the choice is ours."""
    value = os.environ.get("MUJOCO_GL", "").lower()
    return "" if value in _chosen else value
