"""Events around the supervisor: controller, watchdogs, e-stop sources, dead senders; with an injected clock."""

import numpy as np
import pytest

from robot_rl.real.core.intake import CommandMessage
from robot_rl.real.core.pipeline import CommandPipeline, Controller, PipelineOptions
from robot_rl.real.core.settings import SafetySettings
from robot_rl.real.robot import RobotState

NAMES = ("j0", "j1", "j2")


class Bench:
    """Ticks of 10 ms with a robot that is where it is told to be."""

    def __init__(self, spec, **options):
        own = {name: options.pop(name) for name in list(options) if name in PipelineOptions.model_fields}
        self.pipe = CommandPipeline(spec, SafetySettings(), PipelineOptions(**own), **options)
        self.now, self.seq, self.place = 100.0, 0, np.zeros(3)
        self.pipe.controller(Controller(1))
        self.each = lambda: None
        self.sent = None

    def run(self, seconds, value=None, times=(0.01,)):
        for k in range(round(seconds / 0.01)):
            self.now += 0.01
            self.each()
            if value is not None and (len(times) == 1 or k == 0):
                self.seq += 1
                rows = np.tile(np.asarray(value, float), (len(times), 1))
                message = CommandMessage(
                    "policy", "policy:p", self.seq, NAMES, self.now, np.array(times), {"positions": rows}
                )
                self.pipe.offer(message, self.now)
            self.sent = self.pipe.tick(self.now, RobotState(self.now, self.place.copy(), np.zeros(3)))
            if self.sent.publish:
                self.place = self.sent.value.copy()
        return self

    @property
    def state(self):
        return self.pipe.safety.state

    def active(self):
        self.run(0.6)
        assert self.pipe.enable() == []
        self.run(0.05, np.zeros(3))
        assert self.state == "ACTIVE"
        return self


@pytest.fixture
def bench(make_arm):
    return lambda **options: Bench(make_arm(), **options)


@pytest.mark.parametrize(
    ("view", "word"),
    [
        (Controller(0), "nobody listens"),
        (Controller(2), "2 subscribers"),
        (Controller(1, rivals=("/other",)), "duplicate publisher: /other"),
        (Controller(1, strangers=("/spy on command",)), "/spy"),
    ],
)
def test_12_33_34_platform_conditions_keep_it_in_startup_and_are_named(bench, view, word):
    made = bench()
    made.pipe.controller(view)
    made.run(1.0)
    assert made.state == "STARTUP"
    assert word in "; ".join(made.pipe.enable())
    made.pipe.controller(Controller(1))
    made.run(0.02)
    assert made.state == "IDLE"


@pytest.mark.parametrize(
    ("view", "code"), [(Controller(0), "controller_gone"), (Controller(1, rivals=("/x",)), "duplicate_publisher")]
)
def test_33_34_platform_faults_while_active_latch_and_block_the_reset(bench, view, code):
    made = bench().active()
    made.pipe.controller(view)
    made.run(0.6)
    assert (made.state, made.pipe.safety.faults) == ("FAULT", (code,))
    assert made.pipe.reset()
    made.pipe.controller(Controller(1))
    made.run(0.6)
    assert made.pipe.reset() == []


def test_what_a_look_finds_counts_at_once_beside_all_else_that_stands_against_motion(bench):
    made = bench(watched={"wrench": 0.1}, start=100.0).run(1.0)  # it never came
    assert made.pipe.hinder(Controller(1)) == []
    (said,) = made.pipe.hinder(Controller(0))
    assert said.startswith("nobody listens")
    refused = made.pipe.enable()
    assert said in refused
    assert "wrench: never came" in refused
    made.run(0.01)  # somebody listens again
    assert said not in made.pipe.enable()


@pytest.mark.parametrize(("listeners", "code"), [(0, "controller_gone"), (2, "controller_changed")])
def test_a_controller_that_is_exchanged_while_the_robot_is_stopped_hears_nothing(bench, listeners, code):
    made = bench().active()
    made.pipe.safety.report("temperature")
    made.run(0.3)
    assert (made.state, made.sent.publish) == ("FAULT", True)  # it still says where to stand
    made.pipe.controller(Controller(listeners))
    made.run(0.01)
    assert made.pipe.safety.faults == ("temperature", code)
    assert not made.sent.publish
    made.pipe.controller(Controller(1))
    made.run(0.05)
    assert not made.sent.publish


def test_watched_sensor_that_falls_silent_is_a_fault(bench):
    made = bench(watched={"wrench": 0.1}, start=100.0)
    made.run(0.6)
    assert made.state == "STARTUP"
    assert "wrench: never came" in made.pipe.blocking
    made.each = lambda: made.pipe.alive("wrench", made.now)
    made.active()
    made.each = lambda: None
    made.run(0.2, np.zeros(3))
    assert made.pipe.safety.faults == ("state_stale",)


def test_first_message_timeout_ends_the_patience(bench):
    made = bench(watched={"wrench": 0.1}, first_message_timeout=2.0, start=100.0)
    made.run(1.0)
    assert made.pipe.patient
    assert made.pipe.overdue(made.now) == []
    made.run(1.5)
    assert not made.pipe.patient
    assert made.pipe.overdue(made.now) == ["wrench never came"]


def test_estop_heartbeat_that_stops_is_an_estop_and_its_return_clears_nothing(bench):
    made = bench(estop_heartbeat=0.1, start=100.0)
    made.each = lambda: made.pipe.alive("estop_heartbeat", made.now)
    made.active()
    made.each = lambda: None
    made.run(0.2, np.zeros(3))
    assert (made.state, made.pipe.safety.faults) == ("ESTOP", ("estop_heartbeat",))
    made.each = lambda: made.pipe.alive("estop_heartbeat", made.now)
    made.run(0.3)
    assert made.state == "ESTOP"
    made.run(0.5)
    assert made.pipe.reset() == []


def test_estop_heartbeat_is_watched_by_default_from_its_first_beat_on(bench):
    made = bench()
    made.active()  # nobody sends one
    made.pipe.alive("estop_heartbeat", made.now)
    made.run(0.45, np.zeros(3))
    assert made.state == "ACTIVE"
    made.run(0.1, np.zeros(3))
    assert (made.state, made.pipe.safety.faults) == ("ESTOP", ("estop_heartbeat",))


def test_estop_heartbeat_that_is_required_and_never_came_blocks_the_robot(bench):
    made = bench(estop_required=True).run(1.0)
    assert "estop_heartbeat: never came" in "; ".join(made.pipe.enable())


def test_24_two_estop_sources_must_both_be_released(bench):
    made = bench().active()
    made.pipe.estop("topic", pressed=True)
    made.pipe.estop("button", pressed=True)
    made.run(0.5)
    made.pipe.estop("button", pressed=False)
    made.run(1.0)
    assert "estop is pressed" in made.pipe.reset()
    made.pipe.estop("topic", pressed=False)
    made.run(0.6)
    assert made.pipe.reset() == []


def test_sender_that_dies_in_mid_chunk_is_a_soft_stop(bench):
    made = bench().active()
    made.run(0.3, np.full(3, 0.05), times=tuple(0.5 * np.arange(1, 9)))
    assert made.state == "ACTIVE"
    made.pipe.source_lost("policy")
    made.run(0.3)
    assert made.state == "ARMED"
    assert "s" in made.sent.flags


def test_21_time_jump_is_a_soft_stop(bench):
    made = bench().active()
    made.pipe.soft_stop("clock_jump")
    made.run(0.3)
    assert made.state == "ARMED"


def test_trace_and_flags_tell_whose_command_it_was(bench):
    made = bench().active()
    made.run(0.02, np.full(3, 0.001))
    assert (made.sent.authority, made.sent.trace) == ("policy", f"p/{made.seq}")
    made.run(0.05, np.full(3, 5.0))
    assert "c" in made.sent.flags
    made.run(0.5)
    assert (made.sent.authority, made.sent.trace) == ("none", "supervisor/0")
    assert "h" in made.sent.flags


def test_lowered_timeouts_act_at_once(bench):
    made = bench().active()
    made.pipe.lower({"command_timeout": 0.03, "takeover_timeout": 0.1})
    made.run(0.06)
    assert made.state in ("STOPPING", "ARMED")


@pytest.mark.parametrize("times", [(0.01,), (0.5, 1.0, 2.0)], ids=["step", "chunk"])
@pytest.mark.parametrize("way", ["enable", "estop"])
def test_what_was_asked_of_a_robot_at_rest_does_not_happen_once_it_may_move(bench, times, way):
    made = bench()
    if way == "estop":
        made.active()
        made.pipe.estop_once("service")
    made.run(0.6)
    made.run(0.05, np.full(3, 0.04), times)  # near enough to start from, still fresh, the chunk for two seconds
    assert made.state in ("IDLE", "ESTOP")
    if way == "estop":
        assert made.run(0.6, None).pipe.reset() == []
        made.run(0.05, np.full(3, 0.04), times)
    assert made.pipe.enable() == []
    states = set()
    made.each = lambda: states.add(made.state)
    made.run(0.5)
    assert states == {"ARMED"}
    assert np.abs(made.place).max() < 1e-9
    made.run(0.05, np.full(3, 0.04))  # and a new command is followed
    assert made.state == "ACTIVE"


def test_messages_dropped_while_the_robot_rests_do_not_stop_it_later(bench):
    made = bench().run(0.6)
    old = made.now - 10.0
    for k in range(30):  # stale ones, more than are forgiven in motion
        message = CommandMessage(
            "policy", "policy:p", k + 1, NAMES, old, np.array([0.01]), {"positions": np.ones((1, 3))}
        )
        made.pipe.offer(message, made.now)
        made.run(0.01)
    made.seq = 30
    assert made.pipe.enable() == []
    states = []
    made.each = lambda: states.append(made.state)
    made.run(0.3, np.zeros(3))
    assert "STOPPING" not in states
    assert made.state == "ACTIVE"


def test_first_command_far_from_the_robot_says_so_whoever_spoke_before(bench):
    made = bench().run(0.6)
    assert made.pipe.enable() == []
    made.run(0.1, np.full(3, 0.5))
    assert made.state == "ARMED"
    assert "start_mismatch" in made.sent.verdict.reasons


def test_an_estop_is_not_lost_in_a_flood_and_waits_for_no_tick(bench):
    made = bench().active()
    made.pipe.estop_once("service")
    assert made.state == "ESTOP"  # at once
    flood = CommandMessage("policy", "policy:p", 1, NAMES, made.now, np.array([0.01]), {"positions": np.zeros((1, 3))})
    for _ in range(10_000):
        made.pipe.takeover(False, made.now)
        made.pipe.offer(flood, made.now)
    assert made.run(0.02).state == "ESTOP"


# ---------------------------------------------------------------- the operator of a simulated robot


def test_auto_arm_waits_for_the_first_good_command_and_follows_it(bench):
    made = bench(auto_arm=True)
    made.run(2.0)
    assert made.state == "IDLE"  # nobody drives yet: a gap in the states now is no fault
    made.run(0.05, np.zeros(3))
    assert made.state == "ACTIVE"


def test_auto_arm_takes_a_command_that_is_dropped_for_none(bench):
    made = bench(auto_arm=True).run(1.0)
    made.run(0.3, np.full(3, np.nan))
    assert made.state == "IDLE"


def test_auto_arm_follows_the_very_first_message_where_it_is_the_only_one(bench):
    made = bench(auto_arm=True, allow_external=True)
    made.place = np.full(3, 0.5)  # not where a plan would begin that knows of no robot
    made.run(1.0)
    point = CommandMessage("external", "", 0, NAMES, 0.0, np.array([1.0]), {"positions": np.full((1, 3), 0.7)})
    made.pipe.offer(point, made.now)
    made.run(1.5)
    assert np.allclose(made.place, 0.7, atol=1e-3)


def test_auto_arm_arms_again_after_a_fault_at_rest_and_not_before(bench):
    made = bench(auto_arm=True).run(0.7).run(0.3, np.full(3, 0.05))
    made.pipe.safety.report("temperature", "80 C, allowed 70")
    made.run(0.01)
    assert made.state in ("FAULT", "STOPPING")
    assert made.pipe.safety.numbers == {"temperature": "80 C, allowed 70"}
    made.run(1.5, np.full(3, 0.05))
    assert made.state == "ACTIVE"
    assert made.pipe.auto_arm.resets == 1


def test_auto_arm_leaves_an_estop_and_what_a_person_has_disabled(bench):
    made = bench(auto_arm=True).run(0.7).run(0.3, np.zeros(3))
    assert made.pipe.enable(False) == []
    made.run(1.0, np.zeros(3))
    assert made.state == "IDLE"
    assert made.pipe.enable() == []
    made.run(0.1, np.zeros(3))
    assert made.state == "ACTIVE"
    made.pipe.estop_once("service")
    made.run(2.0, np.zeros(3))
    assert made.state == "ESTOP"
