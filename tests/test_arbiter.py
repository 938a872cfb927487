"""Who drives: hysteresis, dead-man, blends, lost devices, labels, clutch, frames."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from robot_rl.arbiter import (
    Arbiter,
    Clutch,
    Debounce,
    Driver,
    Press,
    Reading,
    TakeoverSettings,
)

POLICY = np.array([1.0, 1.0], np.float32)
PUSH = np.array([-1.0, 0.0], np.float32)


class Trace:
    """Runs a machine at 10 Hz and remembers the decisions."""

    def __init__(self, **options):
        start = options.pop("start", Driver.POLICY)
        self.machine, self.now = Arbiter(2, TakeoverSettings(**options), start=start), 0.0

    def __call__(self, *, norm=0.0, enable=False, toggles=0, presses=(), age=0.0, connected=True):
        value = PUSH * norm
        presses = tuple(Press(kind, self.now) for kind in presses)
        reading = Reading(self.now - age, value, norm, enable, toggles, presses, connected)
        decision = self.machine.tick(self.now, reading, POLICY)
        self.now += 0.1
        return decision


def test_implicit_takeover_has_hysteresis():
    # on above 0.05, off below 0.02 for 300 ms; HIL-SERL flips back in every tick with a centred device
    run = Trace(mode="implicit")
    norms = [0.0, 0.04, 0.06, 0.03, 0.03, 0.01, 0.01, 0.03, 0.01, 0.01, 0.01, 0.01]
    human = [run(norm=norm).driver is Driver.HUMAN for norm in norms]
    #        off    off    ON    stays            below 0.02 for 100 ms, up again, then 300 ms below: off
    assert human == [False, False, True, True, True, True, True, True, True, True, True, False]


def test_hold_still_is_a_human_action():
    run = Trace(mode="deadman")
    assert run(enable=True, norm=1.0).human
    for _ in range(20):
        decision = run(enable=True, norm=0.0)
        assert decision.human
        assert (decision.action == 0.0).all()


def test_takeover_needs_n_on_ticks():
    run = Trace(mode="implicit", n_on=3)
    drivers = [run(norm=0.5).driver for _ in range(3)]
    assert drivers == [Driver.POLICY, Driver.POLICY, Driver.HUMAN]


def test_toggle_changes_hands_on_the_edge_only():
    run = Trace(mode="toggle", blend_ticks=0)
    drivers = [run(toggles=count).driver for count in (0, 1, 1, 1, 2, 2, 3)]
    p, h = Driver.POLICY, Driver.HUMAN
    assert drivers == [p, h, h, h, p, p, h]


def test_return_blends_and_counts_as_nobodys_until_the_policy_has_all():
    run = Trace(mode="deadman", decay=0.5)
    run(enable=True, norm=1.0)
    out = [run() for _ in range(4)]
    # last command (-1, 0), decayed by 0.5 per tick, policy (1, 1): beta 1/3, 2/3, 1
    np.testing.assert_allclose(out[0].action, [-1 / 3 + 1 / 3, 1 / 3], atol=1e-6)
    np.testing.assert_allclose(out[1].action, [-0.25 / 3 + 2 / 3, 2 / 3], atol=1e-6)
    np.testing.assert_allclose(out[2].action, POLICY)
    assert not any(d.human for d in out)
    assert [d.driver for d in out] == [Driver.RETURN] * 2 + [Driver.POLICY] * 2


def test_return_may_be_taken_over_again():
    run = Trace(mode="deadman")
    run(enable=True)
    run()
    decision = run(enable=True)
    assert decision.driver is Driver.HUMAN
    assert decision.started


def test_shadow_disagreement_is_the_distance_to_the_policy():
    decision = Trace(mode="deadman")(enable=True, norm=1.0)
    assert decision.disagreement == pytest.approx(np.sqrt(4 + 1))
    assert np.isnan(Trace(mode="deadman")().disagreement)


def test_device_lost_in_human_goes_to_hold_and_never_to_the_policy():
    run = Trace(mode="deadman")
    run(enable=True, norm=1.0)
    decision = run(enable=True, norm=1.0, age=0.15)  # 150 ms old
    assert decision.driver is Driver.HOLD
    assert decision.lost
    assert (decision.action == 0).all()
    for _ in range(30):  # it comes back with the enable still held: nothing moves
        decision = run(enable=True, norm=1.0)
        assert decision.driver is Driver.HOLD
        assert not decision.moving
    run(enable=False)
    assert run(enable=True, norm=1.0).driver is Driver.HUMAN  # released and pressed again


def test_device_lost_in_policy_supervised_holds_attended_slows():
    assert Trace(mode="deadman")(connected=False).driver is Driver.HOLD
    decision = Trace(mode="deadman", lost_in_policy="slow")(connected=False)
    assert decision.driver is Driver.POLICY
    np.testing.assert_allclose(decision.action, 0.5 * POLICY)
    assert "lost" in decision.warning


def test_fault_operator_absent_halves_the_speed_and_then_holds_until_somebody_is_there():
    run = Trace(mode="deadman", absent_s=1.0)
    decisions = [run() for _ in range(60)]
    speeds = [float(d.action[0]) for d in decisions]
    assert speeds[:11] == [1.0] * 11
    assert speeds[11:41] == [0.5] * 30  # until four seconds
    assert decisions[11].driver is Driver.POLICY
    assert "operator" in decisions[11].warning
    assert all(d.driver is Driver.HOLD and not d.moving for d in decisions[41:])
    assert decisions[41].lost  # the episode ends
    assert not decisions[42].lost
    assert run(presses=["resume"]).driver is Driver.POLICY
    assert float(run().action[0]) == 1.0
    lazy = Trace(mode="deadman", absent_s=1.0)
    for t in range(60):  # any input counts as being there
        assert float(lazy(presses=["mark"] if t % 9 == 0 else ()).action[0]) == 1.0


def test_hold_is_left_by_a_person_only():
    run = Trace(mode="deadman", start=Driver.HOLD)
    assert all(run().driver is Driver.HOLD for _ in range(20))
    assert run(presses=["resume"]).driver is Driver.POLICY


def test_stop_is_latched_and_needs_reset_and_then_resume():
    run = Trace(mode="deadman")
    assert run(presses=["estop"]).driver is Driver.STOPPED
    run.machine.begin()
    assert run(enable=True, norm=1.0).driver is Driver.STOPPED
    run(enable=False)
    assert run(presses=["resume"]).driver is Driver.STOPPED
    assert run(presses=["reset"]).driver is Driver.HOLD
    assert run(presses=["resume"]).driver is Driver.POLICY


def test_drifting_device_is_ignored_with_a_warning():
    run = Trace(mode="implicit")
    decisions = [run(norm=0.3) for _ in range(60)]
    assert decisions[0].driver is Driver.HUMAN
    assert decisions[-1].driver is Driver.POLICY
    assert "drift" in decisions[-1].warning
    assert run(norm=0.5).driver is Driver.HUMAN  # it moves: somebody is there


def test_presses_are_debounced_per_key():
    keys = Debounce(0.15)
    assert len(keys.take((Press("success", 1.0),))) == 1
    assert keys.take((Press("success", 1.1), Press("failure", 1.1))) == (Press("failure", 1.1),)
    assert keys.take((Press("success", 1.2),)) == ()  # a key that bounces on does not come through in between
    assert len(keys.take((Press("success", 1.4),))) == 1


@settings(max_examples=60, deadline=None)
@given(
    mode=st.sampled_from(["deadman", "toggle", "implicit"]),
    ticks=st.lists(
        st.tuples(
            st.sampled_from([0.0, 0.03, 0.8]),
            st.booleans(),
            st.integers(0, 3),
            st.sampled_from([0.0, 0.5]),
            st.sampled_from([(), ("estop",), ("reset",), ("resume",), ("hold",)]),
        ),
        max_size=60,
    ),
)
def test_machine_never_lets_the_policy_drive_unasked(mode, ticks):
    run = Trace(mode=mode)
    before = Driver.POLICY
    for norm, enable, toggles, age, presses in ticks:
        decision = run(norm=norm, enable=enable, toggles=toggles, age=age, presses=presses)
        policy = decision.driver in (Driver.POLICY, Driver.RETURN)
        if policy and before in (Driver.HOLD, Driver.STOPPED):
            assert "resume" in presses
        if before is Driver.STOPPED:
            assert decision.driver is Driver.STOPPED or "reset" in presses
        if age > 0.1:
            assert decision.driver is not Driver.HUMAN
        assert decision.moving == (decision.driver not in (Driver.HOLD, Driver.STOPPED))
        before = decision.driver


def test_clutch_moves_by_the_leader_and_ramps():
    clutch = Clutch(ramp_s=0.2)
    clutch.engage(np.array([5.0, 1.0]), np.array([0.3, 0.1]), now=10.0)
    np.testing.assert_allclose(clutch.target(np.array([6.0, 1.0]), 10.0), [0.3, 0.1])  # no jump
    np.testing.assert_allclose(clutch.target(np.array([6.0, 1.0]), 10.1), [0.8, 0.1])
    np.testing.assert_allclose(clutch.target(np.array([6.0, 1.0]), 11.0), [1.3, 0.1])


@pytest.mark.parametrize("wrong", [{"mode": "magic"}, {"th_off": 0.1}, {"n_on": 0}, {"lost_in_policy": "run"}])
def test_settings_refuse_nonsense(wrong):
    with pytest.raises(ValueError, match="expected"):
        TakeoverSettings(**wrong)
