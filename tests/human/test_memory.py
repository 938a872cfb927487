"""Nothing that is sampled crosses a gap, an episode's end or the ring's seam."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from robot_rl.data.hil_episode import EpisodeRules
from robot_rl.data.hil_record import EndReason
from robot_rl.data.mix import Mix
from robot_rl.data.seen import measure_seen
from robot_rl.human.memory import HilMemory
from tests.human import traces

REASONS = [EndReason.TIMEOUT, EndReason.SUCCESS, EndReason.FAULT, EndReason.SAFETY_STOP, EndReason.COMMS]


def fill(memory, trace, base, reason, images=False, demo=False, gamma=0.9):
    """One episode whose moments start at `base`; returns the truth: action -> (moment, successor, discount)."""
    out, rows = traces.EpisodeDraft(EpisodeRules(gamma=gamma), 10.0), []

    def hand_on():
        for step in out.take_settled():
            rows.append(memory.count)
            memory.extend([step], demo=demo)

    moment = base
    for letter in trace:
        if letter != "-":
            out.add(traces.step(moment, source=traces.SOURCES[letter], images=images))
            hand_on()  # as they settle, not at the end
        moment += 1
    out.close(reason)
    hand_on()
    last = out.last_valid()
    if last is not None:  # as a session does: what came behind it may have turned out to be void
        row, after = [*rows, memory.count][last : last + 2]
        if row < after:
            memory.amend(row, out.steps[last])
    return out.steps


def check(memory, view, truth, images=False):
    rows = memory.views[view].rows()
    if not len(rows):
        return
    batch = memory.take(rows)
    for i in range(len(rows)):
        moment = float(batch.obs["state"][i, 0])
        step = truth[int(moment)]
        assert step.valid
        assert float(batch.next_obs["state"][i, 0]) == moment + 1  # every step lasts one moment: no other successor
        assert float(batch.action[i, 0]) == pytest.approx((int(moment) % 1000) / 1000.0)
        assert float(batch.discount[i]) == pytest.approx(0.0 if step.terminated else 0.9)
        assert bool(batch.terminated[i]) == step.terminated
        assert bool(batch.truncated[i]) == step.truncated
        assert bool(batch.intervened[i]) == (step.source in (traces.Source.HUMAN, traces.Source.BLEND))
        if images:
            assert int(batch.obs["image.front"][i, 0, 0, 0]) == int(moment) % 251
            assert int(batch.next_obs["image.front"][i, 0, 0, 0]) == (int(moment) + 1) % 251


@settings(max_examples=60, deadline=None)
@given(
    episodes=st.lists(
        st.tuples(st.text("pHHbr-", min_size=1, max_size=30), st.sampled_from(REASONS)), min_size=1, max_size=8
    ),
    capacity=st.integers(2, 60),
    images=st.booleans(),
)
def test_no_sample_bootstraps_across_a_gap_an_episode_end_or_the_ring_seam(episodes, capacity, images):
    # LeRobot's optimize_memory and HIL-SERL's memory-efficient buffer give 1/L of the human samples of spans of L
    # steps an unrelated successor; here every sample of every view must be the logged one.
    memory = HilMemory(traces.io(images), capacity)
    truth, base = {}, 0
    for trace, reason in episodes:
        for step in fill(memory, trace, base, reason, images):
            if step.valid:
                truth[int(step.obs["state"][0])] = step
        base += len(trace) + 1
        for view in ("online", "human", "demo"):
            check(memory, view, truth, images)
    valid = sorted(truth)
    kept = [int(m) for m in memory.take(memory.views["online"].rows()).obs["state"][:, 0]] if len(memory) else []
    assert kept == valid[len(valid) - len(kept) :]  # the newest, each once
    assert len(kept) >= min(len(valid), capacity // 2)


@pytest.mark.parametrize("length", [3, 5, 10, 20])
def test_human_spans_keep_their_own_successors(length):
    memory = HilMemory(traces.io(), 5000)
    base = 0
    for _ in range(20):
        fill(memory, "p" * 5 + "H" * length, base, EndReason.TIMEOUT)
        base += length + 6
    batch = memory.views["human"].sample(2000)
    wrong = (batch.next_obs["state"][:, 0] - batch.obs["state"][:, 0]) != 1.0
    assert int(wrong.sum()) == 0  # LeRobot: 1 / length of them


def test_views_share_the_rows_of_human_steps():
    memory = HilMemory(traces.io(), 100)
    fill(memory, "ppHHp", 0, EndReason.TIMEOUT)
    fill(memory, "pp", 50, EndReason.SUCCESS, demo=True)
    assert len(memory) == 7
    assert memory.views["online"].rows().tolist() == [0, 1, 2, 3, 4]
    assert memory.views["human"].rows().tolist() == [2, 3]
    assert memory.views["demo"].rows().tolist() == [2, 3, 5, 6]
    memory.promote([0, 1, 2])
    assert memory.views["demo"].rows().tolist() == [0, 1, 2, 3, 5, 6]


@pytest.mark.parametrize(("store", "moments"), [("all", [0, 1, 2, 3, 4, 5]), ("last", [0, 3, 5]), ("none", [0, 5])])
def test_store_human_keeps_what_it_says(store, moments):
    memory = HilMemory(traces.io(), 100, store_human=store)
    fill(memory, "pHHHbp", 0, EndReason.TIMEOUT)
    assert memory.take(np.arange(len(memory))).obs["state"][:, 0].tolist() == moments  # the last is no mixed one


def test_imitation_weights_are_low_at_the_handover_and_zero_for_the_policy():
    memory = HilMemory(traces.io(), 100)
    fill(memory, "pHHHbpHp", 0, EndReason.FAILURE)
    batch = memory.take(np.arange(8))
    # the blended step is half the policy's, and a span of one step a glitch of the device
    assert batch.extras["imitate"].tolist() == pytest.approx([0.0, 0.3, 0.3, 1.0, 0.0, 0.0, 0.0, 0.0])


def test_learn_from_exec_trains_on_what_the_safety_layer_let_through():
    for learn_from, expected in (("cmd", 0.8), ("exec", 0.2)):
        memory = HilMemory(traces.io(), 10, learn_from=learn_from)
        step = traces.step(0)
        step.action_cmd, step.action_exec = np.array([0.8], np.float32), np.array([0.2], np.float32)
        memory.extend([step])
        assert memory.take(np.array([0])).action[0, 0] == pytest.approx(expected)


def test_rows_that_are_promoted_after_older_ones_were_overwritten_are_seen():
    memory = HilMemory(traces.io(), 10)
    fill(memory, "p" * 8, 0, EndReason.SUCCESS, demo=True)
    fill(memory, "p" * 8, 100, EndReason.TIMEOUT)
    fill(memory, "pp", 200, EndReason.SUCCESS, demo=True)
    assert memory.oldest == 8
    memory.promote([12])  # nobody has looked at the view since its first rows were overwritten
    assert memory.views["demo"].rows().tolist() == [12, 16, 17]


def test_views_over_many_turns_of_the_ring_hold_what_a_set_would():
    rng, memory, seen = np.random.default_rng(0), HilMemory(traces.io(), 1500), set()
    for i in range(60):
        before, demo = memory.count, i % 3 == 0
        fill(memory, "p" * int(rng.integers(40, 120)), 1000 * i, EndReason.SUCCESS, demo=demo)
        seen |= set(range(before, memory.count)) if demo else set()
        rows = rng.integers(memory.oldest, memory.count, 30)
        memory.promote(rows.tolist())
        gone = rng.integers(memory.oldest, memory.count, 5).tolist()
        memory.forget(gone)
        seen = {row for row in (seen | set(rows.tolist())) - set(gone) if row >= memory.oldest}
        if rng.random() < 0.5:  # else the view is not read in between
            assert memory.views["demo"].rows().tolist() == sorted(seen)
    assert memory.views["demo"].rows().tolist() == sorted(seen)


def test_symmetric_minibatches_have_exactly_their_offline_rows():
    memory = HilMemory(traces.io(), 500)
    fill(memory, "p" * 100, 0, EndReason.TIMEOUT)
    fill(memory, "p" * 30, 1000, EndReason.SUCCESS, demo=True)
    mix = Mix({"online": (memory.views["online"], 0.5), "demo": (memory.views["demo"], 0.5)})
    batches = mix.batches(256)
    for _ in range(20):  # U minibatches: each is half offline, none is all of one kind
        assert int((next(batches).extras["source"] == 1).sum()) == 128


def test_overwritten_rows_are_refused():
    memory = HilMemory(traces.io(), 4)
    fill(memory, "p" * 10, 0, EndReason.TIMEOUT)
    with pytest.raises(ValueError, match="kept"):
        memory.take(np.array([0]))


def test_sampling_continues_from_its_state():
    memory = HilMemory(traces.io(), 50)
    fill(memory, "p" * 30, 0, EndReason.TIMEOUT)
    saved = memory.state_dict()
    first = memory.views["online"].sample(8).obs["state"]
    memory.load_state_dict(saved)
    assert (memory.views["online"].sample(8).obs["state"] == first).all()


def test_what_was_seen_is_of_the_rows_that_are_kept():
    """Moments 0 to 4 are the first component of the states: their median is 2."""
    memory = HilMemory(traces.io(), 100)
    fill(memory, "ppHHp", 0, EndReason.TIMEOUT)
    found = measure_seen(memory, traces.io())
    assert found is not None
    assert found.count == 5
    assert found.obs["state"][0][2] == 2.0
    assert len(found.action) == traces.io().action_dim


def seen_steps(trace, base, reason, memory, demo=False):
    """An episode whose steps carry what an encoder saw: the moment, so that a frame tells whether it is its own."""
    out = traces.EpisodeDraft(EpisodeRules(gamma=0.9), 10.0)
    for moment, letter in enumerate(trace, base):
        step = traces.step(moment, source=traces.SOURCES[letter], images=True)
        step.sight, step.next_sight = np.array([moment], np.float32), np.array([moment + 1], np.float32)
        step.reward_task = float(reason == EndReason.SUCCESS and moment == base + len(trace) - 1)
        out.add(step)
    out.close(reason)
    memory.extend(out.take_settled(), demo=demo)


def test_what_an_encoder_saw_is_kept_beside_its_frame_and_pictures_stay_out_of_batches():
    memory = HilMemory(traces.io(images=True), 100, keys=("state", "sight"), sight=1)
    seen_steps("ppHp", 0, EndReason.SUCCESS, memory)
    seen_steps("pprpp", 10, EndReason.TIMEOUT, memory)  # nobody drove in the middle: two runs of frames
    batch = memory.take(memory.views["online"].rows())
    for obs in (batch.obs, batch.next_obs):
        assert sorted(obs) == ["sight", "state"]
        assert np.array_equal(obs["sight"][:, 0], obs["state"][:, 0])  # both are the moment
    runs = memory.runs()
    assert [(run.last - run.first, run.success) for run in runs] == [(4, True), (2, False), (2, False)]
    for run in runs:
        moments = memory.read("state", np.arange(run.first, run.last + 1))[:, 0]
        assert np.array_equal(np.diff(moments), np.ones(len(moments) - 1))
    memory.write(runs[1].first, np.array([[7.0], [8.0], [9.0]], np.float32))
    assert memory.take(np.array([4])).obs["sight"].tolist() == [[7.0]]
    assert memory.take(np.array([4])).next_obs["sight"].tolist() == [[8.0]]


def test_an_episode_that_nobody_may_learn_from_is_no_success():
    memory = HilMemory(traces.io(images=True), 100, sight=1)
    seen_steps("ppp", 0, EndReason.SUCCESS, memory, demo=True)
    assert [run.success for run in memory.runs()] == [True]
    memory.forget(range(3))
    assert [run.success for run in memory.runs()] == [False]


def test_frames_that_come_without_what_an_encoder_saw_are_told():
    memory = HilMemory(traces.io(images=True), 100, sight=1)
    seen_steps("pp", 0, EndReason.TIMEOUT, memory)
    memory.encoded = 3
    state = memory.state_dict()
    again = HilMemory(traces.io(images=True), 100, sight=1)
    fill(again, "pp", 0, EndReason.TIMEOUT, images=True)  # as from the log
    assert (again.encoded, again.unseen) == (-1, True)
    again.load_state_dict(state)
    assert (again.encoded, again.unseen) == (3, False)
    assert again.read("sight", np.arange(3)).tolist() == [[0.0], [1.0], [2.0]]
    fill(again, "p", 10, EndReason.TIMEOUT, images=True)
    assert (again.encoded, again.unseen) == (3, True)
    assert np.isnan(again.read("sight", np.arange(3, 5))).all()
    again.load_state_dict(state)  # other frames than those of the state: nothing can be taken over
    assert again.encoded == -1
