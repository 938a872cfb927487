"""Something that takes a while beside a session: the robot is watched, keys are heard and the screen goes on."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from robot_rl.human.screen import telemetry
from robot_rl.human.session import Session

T = TypeVar("T")


def meanwhile(session: Session, phase: str, work: Callable[[], T], *, hold: bool = True) -> T:
    """Do `work` in a thread of its own where a person is there, at once elsewhere; its errors are raised here.

    Args:
        session: between two episodes.
        phase: what the screen says.
        work: called once.
        hold: afterwards, too, the robot holds until a person says go; a go that comes now is too early.

    Returns:
        What `work` returns.
    """
    pilot = session.pilot
    if not pilot.realtime:
        return work()
    with ThreadPoolExecutor(1, "meanwhile") as pool:
        done = pool.submit(work)
        while not done.done():
            session.hear(pilot.idle(session.here()))
            if hold:
                pilot.hold()
            pilot.show({**telemetry(session, False, None), "phase": phase, "busy": hold}, session.frame)
            pilot.wait()
        return done.result()


def reset(session: Session, start: Callable[[], object]) -> None:
    """Bring the robot to a start: at once in a simulation, with the person at the seat where it moves.

    Args:
        session: whose robot it is.
        start: resets the environment; raises RuntimeError where that fails.
    """
    if session.pilot.simulates:
        start()
    else:
        meanwhile(session, "the robot goes to its start", start, hold=False)
