"""Labels, ends, spans and rewards from interventions on hand-made traces."""

import numpy as np
import pytest

from robot_rl.data.hil_episode import EpisodeDraft, EpisodeRules, to_episode, to_steps
from robot_rl.data.hil_record import EndReason, Invalid, RewardSource
from tests.human import traces


def closed(trace, rules=None, reason=EndReason.TIMEOUT, **more):
    out = traces.draft(trace, rules, **more)
    out.close(reason)
    out.take_settled()
    return out


@pytest.mark.parametrize(
    ("trace", "expected"),
    [
        ("pppHHHpp", [0, 0, -1, 0, 0, 0, 0, 0]),  # the policy step before the span pays
        ("HHHpp", [0, 0, 0, 0, 0]),  # a span at t = 0 has no step before it
        ("ppHH|HHp", [0, -1, 0, 0, 0, 0, 0]),  # adjacent spans: the second began while a person drove
        ("ppHHH", [0, -1, 0, 0, 0]),  # a span to the end of the episode
        ("ppHpp", [0, 0, 0, 0, 0]),  # one tick: a glitch of the device
        ("pH", [0, 0]),
        ("ppHHpHHp", [0, -1, 0, 0, -1, 0, 0, 0]),
        ("ppHbbpp", [0, 0, 0, 0, 0, 0, 0]),  # a glitch, and the way back from it
        ("ppHHbbp", [0, -1, 0, 0, 0, 0, 0]),
        ("ppHHbHH", [0, -1, 0, 0, 0, 0, 0]),  # the policy had not got the robot back
    ],
)
def test_rlif_labels_on_a_hand_made_trace(trace, expected):
    steps = closed(trace).steps
    assert [step.reward_rlif for step in steps] == expected


def test_rlif_keeps_both_rewards_and_a_method_weighs_them():
    out = traces.draft("ppHH")
    out.steps[1].reward_task = 3.0
    out.close(EndReason.TIMEOUT)
    out.take_settled()
    assert (out.steps[1].reward_task, out.steps[1].reward_rlif, out.steps[1].reward) == (3.0, -1.0, 3.0)


def test_spans_are_numbered_and_closed():
    steps = closed("pHHpHp").steps
    assert [s.intv_id for s in steps] == [-1, 0, 0, -1, 1, -1]
    assert [s.intv_step for s in steps] == [-1, 0, 1, -1, 0, -1]
    assert [s.intv_start for s in steps] == [False, True, False, False, True, False]
    assert [s.intv_end for s in steps] == [False, False, True, False, True, False]


@pytest.mark.parametrize(
    ("reason", "terminated", "discount"),
    [
        (EndReason.TIMEOUT, False, 0.9),  # HIL-SERL returns time limits as done with mask 0
        (EndReason.SUCCESS, True, 0.0),
        (EndReason.FAILURE, True, 0.0),
        (EndReason.HUMAN_STOP, False, 0.9),
        (EndReason.SAFETY_STOP, False, 0.9),
    ],
)
def test_end_reason_decides_whether_the_last_step_bootstraps(reason, terminated, discount):
    last = closed("ppp", EpisodeRules(gamma=0.9), reason).steps[-1]
    assert (last.terminated, last.truncated) == (terminated, not terminated)
    assert last.discount == pytest.approx(discount)


def test_stop_is_an_end_per_config():
    last = closed("pp", EpisodeRules(stop_is_end=True), EndReason.HUMAN_STOP).steps[-1]
    assert last.terminated
    assert not last.truncated
    assert last.discount == 0.0


@pytest.mark.parametrize("reason", [EndReason.FAULT, EndReason.COMMS])
def test_fault_invalidates_the_last_step_and_cuts_before_it(reason):
    steps = closed("ppHH", None, reason).steps
    assert [s.valid for s in steps] == [True, True, True, False]
    assert steps[2].truncated
    assert steps[2].intv_end


def test_label_goes_to_the_step_that_ran_before_the_reaction_time():
    # steps of 100 ms; the key goes down at 850 ms, reaction 200 ms: 650 ms lies in step 6
    out = traces.draft("ppppppppp")
    index = out.label(True, 850_000_000)
    assert index == 6
    steps = out.steps
    assert steps[6].reward_task == 1.0
    assert steps[6].terminated
    assert steps[6].reward_source == RewardSource.HUMAN_KEY
    assert [s.valid for s in steps] == [True] * 7 + [False] * 2
    assert steps[7].invalid_reason == Invalid.AFTER_END
    assert out.end_reason == EndReason.SUCCESS


def test_label_in_the_first_moments_goes_to_the_first_step():
    out = traces.draft("ppp")
    assert out.label(False, 50_000_000) == 0
    assert out.end_reason == EndReason.FAILURE
    assert out.steps[0].reward_task == 0.0


def test_label_never_reaches_a_step_that_was_handed_out():
    out = traces.draft("p" * 12)
    given = len(out.take_settled())
    assert given == 12 - 3  # 200 ms at 10 Hz are 2 steps, plus the one under way
    assert out.label(True, 0) == given


def test_settled_hands_out_every_step_once():
    out = EpisodeDraft(EpisodeRules(), 10.0)
    seen = []
    for t in range(20):
        out.add(traces.step(t))
        seen += out.take_settled()
    out.close(EndReason.TIMEOUT)
    seen += out.take_settled()
    assert [s.t_obs for s in seen] == [t * traces.TICK for t in range(20)]
    assert out.take_settled() == []


def test_gap_becomes_an_invalid_row_and_ends_the_span():
    out = closed("pHH-Hp")
    assert [s.valid for s in out.steps] == [True, True, True, False, True, True]
    assert out.steps[3].invalid_reason == Invalid.GAP
    assert [s.intv_id for s in out.steps] == [-1, 0, 0, -1, 1, -1]
    assert out.steps[2].intv_end
    np.testing.assert_array_equal(out.steps[3].next_obs["state"], out.steps[4].obs["state"])


def test_reset_steps_are_stored_and_never_valid():
    steps = closed("rrpp").steps
    assert [s.valid for s in steps] == [False, False, True, True]
    assert steps[0].invalid_reason == Invalid.SOURCE


def test_episode_and_steps_are_inverse():
    out = closed("ppHH-pp")
    episode = to_episode(out.steps, out.end_reason, {"io": traces.io()})
    assert len(episode) == 7
    again = to_steps(episode)
    for a, b in zip(out.steps, again):
        np.testing.assert_array_equal(a.obs["state"], b.obs["state"])
        np.testing.assert_array_equal(a.action_cmd, b.action_cmd)
        for name in ("source", "valid", "intv_id", "reward", "terminated", "truncated", "t_obs", "invalid_reason"):
            assert getattr(a, name) == getattr(b, name), name
        assert a.discount == pytest.approx(b.discount)


def test_closed_episode_takes_no_more_steps():
    out = closed("pp")
    with pytest.raises(ValueError, match="ended"):
        out.add(traces.step(9))
