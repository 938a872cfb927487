"""Processes of our own, started so that no file of the current folder stands for a module of Python's.

`python -m` and `python -c` put the current folder first on the path: in a downloaded folder that holds a `random.py`
or a `torch.py` that file would run. `python -P` leaves the folder out, but exists from Python 3.11 on only.
"""

from __future__ import annotations

import importlib.util
import multiprocessing.util
import os
import sys
from pathlib import Path
from typing import Any

# `sys` is built in: nothing is looked up before the entry is gone
_OFF_THE_PATH = "import sys; sys.path[:] = [entry for entry in sys.path if entry]; "
_ABRUPT = "import signal; signal.signal(signal.SIGINT, signal.SIG_DFL); "
_RUN = "import runpy; runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"


def command(module: str, *arguments: object, abrupt: bool = False) -> list[str]:
    """The command line that runs a module as `python -m` would, without the current folder on the path.

    Args:
        module: dotted name; "robot_rl" is the command robot-rl.
        arguments: of the program.
        abrupt: SIGINT ends it at once and without a word, until it handles that signal itself: while it still imports.
    """
    return [*program((_ABRUPT if abrupt else "") + _RUN), module, *(str(item) for item in arguments)]


def program(code: str, python: str = sys.executable) -> list[str]:
    """The command line that runs a piece of code as `python -c` would, without the current folder on the path.

    Args:
        code: the program.
        python: the interpreter, of any version 3.
    """
    return [python, "-c", _OFF_THE_PATH + code]


def shield() -> None:
    """Keep the current folder off the path of the processes that packages start on their own.

    The fork server, the resource tracker and spawned workers of `multiprocessing` begin with a
    `python -c "from multiprocessing …"`. From Python 3.11 on the environment says so to every such child; for Python
    3.10 this mends the two that we know: multiprocessing, and glfw (loaded by mujoco), which tries its library there.
    """
    os.environ["PYTHONSAFEPATH"] = "1"
    if sys.version_info < (3, 11):
        started: Any = multiprocessing.util
        flags = started._args_from_interpreter_flags
        if "-I" not in flags():  # isolated; workers get this process's path by the preparation that follows
            started._args_from_interpreter_flags = lambda: [*flags(), "-I"]
        glfw = importlib.util.find_spec("glfw")
        if glfw and glfw.origin:
            os.environ.setdefault("PYGLFW_LIBRARY", str(Path(glfw.origin).parent / "x11" / "libglfw.so"))
