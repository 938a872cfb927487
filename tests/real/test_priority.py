"""Real-time priority of a process: who gets which, and that it ends."""

import os
import sys
import threading
from pathlib import Path

import pytest

from robot_rl.human.pilot import Pilot
from robot_rl.real.core.priority import lift_priority
from tests.human.line_world import LineEnv

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux alone has it")


def priority_of(thread: int) -> tuple[int, int]:
    return os.sched_getscheduler(thread), os.sched_getparam(thread).sched_priority


def test_the_control_thread_comes_first_and_the_others_of_its_process_before_everybody_else():
    end = threading.Event()
    other = threading.Thread(target=end.wait)
    other.start()
    try:
        with lift_priority(20) as told:
            if told.startswith("not allowed"):
                pytest.skip(told)
            assert priority_of(0) == (os.SCHED_FIFO, 20)
            assert priority_of(other.native_id or -1) == (os.SCHED_FIFO, 19)
        assert priority_of(0) == priority_of(other.native_id or -1) == (os.SCHED_OTHER, 0)
    finally:
        end.set()
        other.join()


def test_what_spins_until_another_thread_has_done_its_work_comes_behind_that_one():
    end, begun = threading.Event(), threading.Event()

    def resend() -> None:
        Path("/proc/thread-self/comm").write_text("dds.asyn.0.0")
        begun.set()
        end.wait()

    other = threading.Thread(target=resend)
    other.start()
    try:
        begun.wait()
        for priority, expected in ((20, 18), (2, 1)):
            with lift_priority(priority) as told:
                if told.startswith("not allowed"):
                    pytest.skip(told)
                assert priority_of(other.native_id or -1) == (os.SCHED_FIFO, expected)
            assert priority_of(other.native_id or -1) == (os.SCHED_OTHER, 0)
    finally:
        end.set()
        other.join()


def test_without_a_person_nothing_is_lifted():
    with Pilot(LineEnv().io, None).lift_priority(20) as told:  # simulated time waits for nobody
        assert told == "off"
        assert priority_of(0) == (os.SCHED_OTHER, 0)


def test_who_may_not_have_it_is_told_and_goes_on(monkeypatch):
    def refuse(*_):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "sched_setscheduler", refuse)
    with lift_priority(20) as told:
        assert told.startswith("not allowed")
        assert "Operation not permitted" in told
