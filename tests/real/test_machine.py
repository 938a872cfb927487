import random

import pytest

from robot_rl.real.core.machine import LATCHED, Event, SafetyMachine, State


def active():
    machine = SafetyMachine()
    for event in (Event.READY, Event.ENABLE, Event.FOLLOW):
        assert machine.handle(event, 0.0) == []
    assert machine.state is State.ACTIVE
    return machine


@pytest.mark.parametrize(
    ("event", "between", "end"),
    [
        (Event.RELEASE, State.STOPPING, State.ARMED),
        (Event.LOST, State.STOPPING, State.ARMED),
        (Event.DISABLE, State.STOPPING, State.IDLE),
        (Event.FAULT, State.STOPPING, State.FAULT),
        (Event.UNTRUSTED, State.FAULT, State.FAULT),
        (Event.ESTOP, State.ESTOP, State.ESTOP),
        (Event.SHUTDOWN, State.STOPPING, State.STARTUP),
        (Event.READY, State.ACTIVE, State.ACTIVE),
        (Event.STOPPED, State.ACTIVE, State.ACTIVE),
        (Event.RESET, State.ACTIVE, State.ACTIVE),
    ],
)
def test_active_goes_where_the_table_says(event, between, end):
    machine = active()
    machine.handle(event, 1.0, code="x")
    assert machine.state is between
    machine.handle(Event.STOPPED, 2.0)
    assert machine.state is end


def test_first_fault_stays_the_cause_and_all_are_listed():
    machine = active()
    machine.handle(Event.FAULT, 1.0, code="tracking")
    machine.handle(Event.UNTRUSTED, 1.0, code="state_stale")
    assert machine.state is State.FAULT
    assert (machine.cause, machine.faults) == ("tracking", ["tracking", "state_stale"])


def test_fault_while_stopping_softly_latches():
    machine = active()
    machine.handle(Event.LOST, 1.0)
    machine.handle(Event.FAULT, 1.1, code="tracking")
    machine.handle(Event.STOPPED, 1.2)
    assert machine.state is State.FAULT


def test_reset_with_blockers_is_refused_with_all_of_them():
    machine = active()
    machine.handle(Event.ESTOP, 1.0, code="estop_topic")
    assert machine.handle(Event.RESET, 2.0, blockers=["a", "b"]) == ["a", "b"]
    assert machine.state is State.ESTOP
    assert machine.handle(Event.ENABLE, 2.0) == ["state is ESTOP", "estop_topic"]
    assert machine.handle(Event.RESET, 2.0) == []
    assert (machine.state, machine.faults) == (State.IDLE, [])


def test_estop_during_startup_latches_when_ready():
    machine = SafetyMachine()
    machine.handle(Event.ESTOP, 0.0, code="estop_topic")
    machine.handle(Event.READY, 1.0)
    assert machine.state is State.ESTOP


def test_lost_commands_count_over_sixty_seconds():
    machine = SafetyMachine(max_rearm_per_minute=2)
    for event in (Event.READY, Event.ENABLE):
        machine.handle(event, 0.0)
    for now, end in ((0.0, State.ARMED), (10.0, State.ARMED), (61.0, State.ARMED), (62.0, State.FAULT)):
        machine.handle(Event.FOLLOW, now)
        machine.handle(Event.LOST, now)
        machine.handle(Event.STOPPED, now)
        assert machine.state is end


def test_random_events_never_leave_a_latch_without_reset_and_enable():
    rng, events = random.Random(0), list(Event)
    visited = set()
    for _ in range(1500):
        machine, cleared, enabled = SafetyMachine(), True, False
        for now in range(200):
            event = rng.choice(events)
            blockers = ["no"] if rng.random() < 0.3 else []
            before = machine.state
            machine.handle(event, float(now), code="x", blockers=blockers)
            after = machine.state
            visited.add(after)
            if before in LATCHED and after not in LATCHED:
                assert event is Event.RESET
                assert not blockers
                assert after is State.IDLE
                cleared, enabled = True, False
            if after in LATCHED:
                cleared = enabled = False
            if event is Event.ENABLE and before is State.IDLE and after is State.ARMED:
                assert not blockers
                enabled = True
            if after in (State.IDLE, State.STARTUP):
                enabled = False
            if after is State.ACTIVE:
                assert cleared
                assert enabled
    assert visited == set(State)
