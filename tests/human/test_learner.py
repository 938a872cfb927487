"""The learning half by itself: what it owes, what it waits for, and exact continuation."""
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportGeneralTypeIssues=false

from dataclasses import asdict

import numpy as np
import pytest
import torch

from robot_rl.checkpoint import load_state, save_state
from robot_rl.data.hil_episode import EpisodeRules
from robot_rl.data.hil_record import EndReason
from robot_rl.data.mix import Mix
from robot_rl.human.actor import tensors_of
from robot_rl.human.learner import HilLearner
from robot_rl.human.log import HilLog
from robot_rl.human.memory import HilMemory
from robot_rl.human.options import SessionOptions
from robot_rl.human.pieces import Inbox, Outbox
from robot_rl.policies.human.imitation_sac import ImitationSac, ImitationSacOptions
from tests.human import traces


class Wire:
    """A link that brings what it was given, at once."""

    dropped = nonsense = 0
    finished = False

    def __init__(self, pieces=()):
        self.pieces, self.published, self.places = list(pieces), [], {}
        self.said = {}

    def words(self):
        return {0: self.said}

    def drain(self, timeout):
        came, self.pieces = self.pieces, []
        return came

    def confirm(self, places):
        self.places = dict(places)

    def publish(self, version, tensors):
        self.published.append((version, {name: tensor.clone() for name, tensor in tensors.items()}))

    def alive(self):
        return []

    def complete(self):
        return not self.pieces

    def is_served(self):
        return True

    def close(self):
        pass


def record(folder, traces_of, demos=(), ends=None):
    log = HilLog(folder, traces.io())
    outbox, place, out = Outbox(log), (0, 0), []
    for number, letters in enumerate(traces_of):
        log.begin()
        draft = traces.draft(letters)
        draft.close((ends or {}).get(number, EndReason.SUCCESS))
        outbox.finish(number, log.commit(draft, {"demo": number in demos}))
    while (found := outbox.piece(place, 7)) is not None:
        out.append((asdict(found[0]), found[1]))
        place = found[0].after
    return out


def build(folder, wire, *, demos=1, starts=5, per_step=1.0, **more):
    learner = ImitationSac(
        ImitationSacOptions(hidden=(8,), critics=2, utd=1, batch_size=16, bc_steps=5, metrics_every=1),
        traces.io(),
        seed=3,
    )
    memory = HilMemory(traces.io(), 1000, seed=0)
    views = memory.views
    mix = Mix({"online": (views["online"], 0.5), "demo": (views["demo"], 0.5)}, seed=0)
    loop = HilLearner(
        learner,
        wire,
        inbox=Inbox(folder, traces.io()),
        memory=memory,
        sampler=mix,
        rules=EpisodeRules(),
        options=SessionOptions(learning_starts=starts, updates_per_step=per_step, **more),
        demos=demos,
    )
    return loop


def test_learner_waits_for_the_demonstrations_and_owes_an_update_per_step_after_the_start(tmp_path):
    pieces = record(tmp_path / "log", ["p" * 20, "H" * 9], demos=(1,))
    wire = Wire(pieces[:3])
    loop = build(tmp_path / "rows", wire)
    loop.receive()
    loop._prepare()
    assert not loop.prepared  # own steps alone are nothing to begin with
    assert wire.published == []
    wire.pieces = pieces[3:]
    assert loop.run(lambda *_: False)
    assert (loop.rows, loop.demos) == (20, 1)
    # 7 steps came at once and were already more than the start of 5, so each of the 20 earned its update
    assert loop.improver.updates == 20
    assert wire.published[0][0] == 1  # the cloned policy
    loop.finish(0.1)
    assert wire.published[-1][0] == 21
    assert wire.finished
    current = tensors_of(loop.learner.policy)
    assert all(torch.equal(current[name], tensor) for name, tensor in wire.published[-1][1].items())
    assert wire.places == {0: (2, 0)}


def final_row(memory, row):
    batch = memory.take(np.array([row]))
    return float(batch.reward[0]), bool(batch.terminated[0]), float(batch.discount[0])


def test_what_a_person_says_after_an_episode_reaches_a_learner_elsewhere(tmp_path):
    """It stayed in the actor's log, and the learner went on with what the world had said."""
    pieces = record(tmp_path / "log", ["p" * 10, "p" * 10, "H" * 6], demos=(2,))
    deaf = build(tmp_path / "deaf", Wire(pieces))
    deaf.receive()
    recorded = final_row(deaf.memory, 9)
    assert recorded == final_row(deaf.memory, 19) != (1.0, True, 0.0)
    wire = Wire(pieces[:2])  # the first episode, 7 and 3 steps
    wire.said = {0: (True, False), 1: (True, False)}  # the second word is there before its episode
    loop = build(tmp_path / "rows", wire)
    loop.receive()
    assert final_row(loop.memory, 9) == (1.0, True, 0.0)
    wire.pieces = pieces[2:]
    loop.receive()
    assert final_row(loop.memory, 19) == (1.0, True, 0.0)
    # taken back; and the demonstration was none
    wire.said = {0: (recorded[0] > 0, True), 1: (True, False), 2: (False, False)}
    demos = len(loop.memory.views["demo"])
    loop.receive()
    assert loop.demos == 0
    assert demos - len(loop.memory.views["demo"]) == 6
    assert final_row(loop.memory, 9) == recorded
    wire.said[2] = True, False  # but it was
    loop.receive()
    assert (loop.demos, len(loop.memory.views["demo"])) == (1, demos)
    again = build(tmp_path / "rows", Wire())  # killed and resumed: the next sign of life says it all again
    again.link.said = {0: (True, False), 2: (True, False)}
    again.receive()
    assert final_row(again.memory, 9) == (1.0, True, 0.0)
    assert (again.demos, len(again.memory.views["demo"])) == (1, demos)


def test_discarded_demonstrations_are_kept_on_disk_and_not_learned_from(tmp_path):
    log = HilLog(tmp_path / "log", traces.io())
    outbox = Outbox(log)
    log.begin()
    draft = traces.draft("HHHH")
    draft.close(EndReason.HUMAN_STOP)
    outbox.finish(0, log.commit(draft, {"discarded": True}))
    head, body = outbox.piece((0, 0))
    loop = build(tmp_path / "rows", Wire([(asdict(head), body)]), demos=0)
    loop.receive()
    assert len(loop.memory) == 0
    assert len(Inbox(tmp_path / "rows", traces.io()).take_restored()[0].steps) == 4


def test_thrown_away_episode_is_forgotten_and_the_one_before_it_is_not(tmp_path):
    pieces = record(tmp_path / "log", ["p" * 10, "p" * 10, "p" * 10])
    middle = [(head, body) for head, body in pieces if head["episode"] == 1]
    for late in (True, False):  # known with the last piece, or (sent again later) with every one
        told = [({**head, "discarded": head["final"] or not late}, body) for head, body in middle]
        others = {0: [p for p in pieces if p[0]["episode"] == 0], 2: [p for p in pieces if p[0]["episode"] == 2]}
        loop = build(tmp_path / f"rows{late}", Wire([*others[0], *told, *others[2]]), demos=0)
        loop.receive()
        rows = loop.memory.views["online"].rows()
        assert len(rows) == 20
        first = loop.memory.take(rows).obs["state"]
        whole = build(tmp_path / f"whole{late}", Wire([*others[0], *told[:0]]), demos=0)
        whole.receive()
        assert torch.equal(first[:10], whole.memory.take(whole.memory.views["online"].rows()).obs["state"])


def test_unaided_successes_are_promoted_across_pieces(tmp_path):
    pieces = record(tmp_path / "log", ["p" * 10, "pppHHppppp"])
    loop = build(tmp_path / "rows", Wire(pieces), demos=0, promote_success=True)
    loop.receive()
    demo = loop.memory.views["demo"].rows().tolist()
    assert demo[:10] == list(range(10))  # all of the first, whose pieces had 7 and 3 steps
    assert demo[10:] == [13, 14]  # of the second the person's steps alone
    loop.link.said = {0: (False, False), 1: (True, False)}  # the first was none after all
    loop.receive()
    assert loop.memory.views["demo"].rows().tolist() == [13, 14]
    loop.link.said = {0: (True, False), 1: (True, False)}
    loop.receive()
    assert loop.memory.views["demo"].rows().tolist() == demo


def test_an_episode_that_a_person_stopped_is_not_promoted_by_a_word_about_it(tmp_path):
    """Called a success later it counts as one, and stays out of the demonstrations, as where the learner is at hand."""
    pieces = record(tmp_path / "log", ["p" * 10, "p" * 10], ends={0: EndReason.HUMAN_STOP, 1: EndReason.TIMEOUT})
    loop = build(tmp_path / "rows", Wire(pieces), demos=0, promote_success=True)
    loop.link.said = {0: (True, False), 1: (True, False)}
    loop.receive()
    assert loop.memory.views["demo"].rows().tolist() == list(range(10, 20))


def test_damaged_piece_is_refused_and_the_rest_goes_on(tmp_path):
    pieces = record(tmp_path / "log", ["p" * 10])
    (head, body), second = pieces
    loop = build(tmp_path / "rows", Wire([(head, body[:-1]), ({"actor": 0}, b""), (head, body), second]), demos=0)
    loop.receive()
    assert loop.refused == 2
    assert loop.rows == 10


def test_resumed_learner_makes_the_same_updates_bit_for_bit(tmp_path):
    """Stopped after 12 updates, restored from checkpoint and its own disk: the next 18 are those of one that ran on."""
    pieces = record(tmp_path / "log", ["p" * 30, "H" * 9], demos=(1,))
    whole = build(tmp_path / "whole", Wire(pieces))
    whole.run(lambda *_: False)

    first = build(tmp_path / "part", Wire(pieces))
    first.receive()
    first._prepare()
    budget = iter(range(12))
    first.improver.spend(lambda: next(budget, None) is not None)
    assert first.improver.updates == 12
    state = {"learner": first.learner.state_dict(), "loop": first.state_dict(), "sampler": first.sampler.state_dict()}
    save_state(tmp_path / "state.pt", {**state, "sampler": {**state["sampler"], "parts": {}}})
    first.inbox.close()

    second = build(tmp_path / "part", Wire())
    saved = load_state(tmp_path / "state.pt")
    second.learner.load_state_dict(saved["learner"])
    second.load_state_dict(saved["loop"])
    second.sampler.load_state_dict(saved["sampler"])
    assert second.improver.credit == 18.0
    second.run(lambda *_: False)
    assert second.improver.updates == whole.improver.updates == 30
    a, b = tensors_of(second.learner.policy), tensors_of(whole.learner.policy)
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_state_of_another_loop_is_refused(tmp_path):
    loop = build(tmp_path, Wire())
    with pytest.raises(ValueError, match="expected hil_learner"):
        loop.load_state_dict({"kind": "hil"})
    assert np.isfinite(loop.metrics()["train/updates_due"])
