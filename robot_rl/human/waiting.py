"""Something that takes a while beside a session: the robot is watched, keys are heard and the screen goes on."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from robot_rl.human.screen import telemetry, views
from robot_rl.human.session import Session
from robot_rl.loops.stepping import Stepper

T = TypeVar("T")
Broken = Callable[[str, RuntimeError], None]
"""Told what went wrong with the robot, and by which error."""


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


def reset(session: Session, stepper: Stepper, broken: Broken, seed: int | None = None) -> bool:
    """Bring the robot to a start: at once in a simulation, with the person at the seat where it moves.

    Args:
        session: whose robot it is.
        stepper: of the environment that is reset.
        broken: told what failed; it may raise, else the robot holds and a person has to see to it.
        seed: of the start.

    Returns:
        False when it failed.
    """
    try:
        if session.pilot.simulates:
            stepper.reset(seed=seed)
        else:
            meanwhile(session, "the robot goes to its start", lambda: stepper.reset(seed=seed), hold=False)
    except RuntimeError as error:
        broken("the reset failed", error)
        return False
    return True


def begin(session: Session, stepper: Stepper, broken: Broken, *, demo: bool = False) -> list[str] | None:
    """Try once to begin an episode.

    Args:
        session: between two episodes.
        stepper: of the environment that is driven.
        broken: as of `reset`.
        demo: nobody but the person drives.

    Returns:
        None when the robot may move, else what keeps it from that, nothing while nobody has said go.
    """
    pilot, held = session.pilot, ("HOLD", "STOPPED")
    if stepper.obs:
        pilot.restart()
    elif pilot.driver in held or not reset(session, stepper, broken):  # a robot that nobody let go stays where it is
        return []
    try:
        stepper.obs = session.glance(stepper.obs)
    except RuntimeError as error:
        broken("the robot cannot be seen", error)
        return []
    waits = session.scene.gate(pilot, views(stepper.obs))
    if waits or pilot.driver in held:
        return [waits] if waits else []
    return pilot.begin(demo) or None
