"""Pictures of a simulation, drawn and encoded in a process of their own; the control loop never waits for them."""

from __future__ import annotations

import io
import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from robot_rl.extras import require
from robot_rl.human.devices.teleop import Frame


class Painter:
    """Holds a copy of a simulated environment in a child process that draws what it is told.

    One state is on its way at a time; what comes meanwhile is left out, so a slow renderer shows fewer pictures and
    delays nobody. Make it before anything draws in this process: the child is forked, and graphics do not survive that.

    Args:
        make_env: () -> environment of one copy with `load_state_dict` and `render`.
    """

    def __init__(self, make_env: Callable[[], object]) -> None:
        require("PIL.Image")
        context = multiprocessing.get_context("fork")
        self._pipe, theirs = context.Pipe()
        self._child = context.Process(target=_paint, args=(make_env, theirs, self._pipe), daemon=True)
        self._child.start()
        theirs.close()
        self._busy, self._asked = False, 0.0
        self.dead = False
        """There will be no more pictures from here; somebody else has to draw."""

    def turn(self, state: Callable[[], dict[str, object]], quality: int = 75) -> Frame | None:
        """Ask for a picture of the present state when the child is free.

        Args:
            state: () -> state of the environment.
            quality: of the JPEG, 1 to 95.

        Returns:
            A JPEG that was asked for earlier and has come since, as old as the asking; None while there is no new one.
        """
        picture = None
        try:
            if self._busy and self._pipe.poll(0):
                picture, self._busy = Frame(self._pipe.recv(), self._asked), False
            if not self._busy:
                self._asked = time.monotonic()
                self._pipe.send((state(), quality))
                self._busy = True
        except (EOFError, OSError, TypeError):  # the child is gone, or this environment cannot say its state
            self.dead = True
        return picture

    def close(self) -> None:
        """End the child."""
        self._pipe.close()
        self._child.join(2.0)
        if self._child.is_alive():
            self._child.kill()
            self._child.join(2.0)


def _paint(make_env: Callable[[], Any], pipe: Connection, theirs: Connection) -> None:
    theirs.close()  # else the pipe would never end
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C is for the session, which ends us
    os.nice(5)  # control and learning come first
    image = require("PIL.Image")
    env = make_env()
    env.reset()
    try:
        while True:
            state, quality = pipe.recv()
            env.load_state_dict(state)
            out = io.BytesIO()
            image.fromarray(env.render()[0]).save(out, "JPEG", quality=quality)
            pipe.send(out.getvalue())
    except (EOFError, OSError):
        pass
