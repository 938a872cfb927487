"""Steps on their way to a learner: every one once, whatever order, repetition and damage they meet."""
# pyright: reportArgumentType=false, reportOptionalIterable=false, reportGeneralTypeIssues=false
# pyright: reportOptionalSubscript=false, reportOptionalMemberAccess=false

import random
from dataclasses import asdict, replace

import pytest

from robot_rl.data.hil_episode import EpisodeRules, to_steps
from robot_rl.data.hil_record import EndReason, Invalid
from robot_rl.data.recorder import pack, unpack
from robot_rl.human.log import HilLog
from robot_rl.human.pieces import Inbox, Outbox, PieceHead
from tests.human import traces


def record(folder, letters=("ppHHp", "pppp", "HHH"), demo=()):
    """A log with one episode per string, and an outbox on it."""
    log = HilLog(folder, traces.io())
    outbox = Outbox(log, keep=1)
    for number, trace in enumerate(letters):
        log.begin()
        draft = traces.draft(trace)
        draft.close(EndReason.SUCCESS)
        outbox.finish(number, log.commit(draft, {"demo": number in demo}))
    return log, outbox


def everything(outbox, most=2):
    place, out = (0, 0), []
    while (found := outbox.piece(place, most)) is not None:
        out.append(found)
        place = found[0].after
    return out


def keys(inbox):
    return [(r.head.episode, r.head.first + i) for r in inbox.take_restored() for i in range(len(r.steps))]


def test_pieces_in_any_order_and_repeated_arrive_once_in_order(tmp_path):
    log, outbox = record(tmp_path / "log", demo=(2,))
    pieces, rng = everything(outbox), random.Random(3)
    inbox, got = Inbox(tmp_path / "rows", traces.io()), []
    while inbox.place(0) != outbox.end():
        received = inbox.take(*rng.choice(pieces))
        if received is not None:
            got += [(received.head.episode, received.head.first + i, s) for i, s in enumerate(received.steps)]
    expected = [(n, i, s) for n, e in enumerate(log.episodes()) for i, s in enumerate(to_steps(e))]
    assert [(n, i) for n, i, _ in got] == [(n, i) for n, i, _ in expected]
    for (_, _, mine), (_, _, theirs) in zip(got, expected):
        assert (mine.obs["state"] == theirs.obs["state"]).all()
        assert (mine.reward, mine.discount, mine.terminated) == (theirs.reward, theirs.discount, theirs.terminated)
        assert mine.intv_start == theirs.intv_start
    assert inbox.doubled > 0
    assert inbox.early > 0
    inbox.close()
    again = Inbox(tmp_path / "rows", traces.io())  # what was taken is on the disk
    assert again.place(0) == outbox.end()
    assert keys(again) == [(n, i) for n, i, _ in expected]


def test_pieces_with_pictures_stay_small(tmp_path, monkeypatch):
    monkeypatch.setattr("robot_rl.human.pieces.LARGEST_PIECE", 200)
    log = HilLog(tmp_path, traces.io(images=True))
    outbox = Outbox(log)
    log.begin()
    draft = traces.draft("p" * 10, images=True)
    draft.close(EndReason.SUCCESS)
    outbox.finish(0, log.commit(draft))
    head, _ = outbox.piece((0, 0))
    assert head.count == 200 // (4 * 4 * 3 + 8)  # the pictures' bytes and the state's


def test_piece_that_overlaps_is_cut_to_what_is_new(tmp_path):
    _, outbox = record(tmp_path / "log")
    inbox = Inbox(tmp_path / "rows", traces.io())
    inbox.take(*outbox.piece((0, 0), 2))
    received = inbox.take(*outbox.piece((0, 0), 4))
    assert received.head.first == 2
    assert [float(s.obs["state"][0]) for s in received.steps] == [2.0, 3.0]


def test_steps_go_out_while_the_episode_lasts_and_demonstrations_at_its_end(tmp_path):
    log = HilLog(tmp_path / "log", traces.io())
    outbox = Outbox(log)
    outbox.begin(0)
    log.begin()
    draft = traces.draft("pppppp")
    outbox.rows(draft.take_settled())
    head, _ = outbox.piece((0, 0))
    assert (head.count, head.final) == (3, False)  # the newest three may still change
    assert outbox.piece((0, 3)) is None
    assert outbox.end() == (0, 3)
    draft.close(EndReason.SUCCESS)
    outbox.finish(0, log.commit(draft))
    head, _ = outbox.piece((0, 3))
    assert (head.first, head.count, head.final, head.success) == (3, 3, True, True)
    log.begin()  # a demonstration: nobody called begin() of the outbox
    demo = traces.draft("HHH")
    assert outbox.piece((1, 0)) is None
    demo.close(EndReason.SUCCESS)
    outbox.finish(1, log.commit(demo, {"demo": True}))
    assert outbox.piece((1, 0))[0].demo


def test_row_that_was_sent_before_a_kill_equals_the_row_of_the_recovered_episode(tmp_path):
    rules = EpisodeRules(gamma=0.9)
    log = HilLog(tmp_path, traces.io(), rules=rules)
    log.begin()
    draft = traces.draft("ppHHHp-pp", rules)
    for step in draft.steps:
        log.journal(step)
    sent = draft.take_settled()
    assert any(step.invalid_reason == Invalid.GAP for step in draft.steps)
    log = HilLog(tmp_path, traces.io(), rules=rules)  # the process was killed; this is the next one
    found = to_steps(log.read(0))
    assert len(found) == len(draft.steps)
    for a, b in zip(sent, found):
        assert (a.reward, a.reward_rlif, a.discount) == pytest.approx((b.reward, b.reward_rlif, b.discount))
        assert (a.valid, a.intv_id) == (b.valid, b.intv_id)
    assert found[1].reward_rlif == -1.0
    assert found[0].discount == pytest.approx(0.9)
    assert found[-1].invalid_reason == Invalid.RECOVERED


def test_learner_that_has_more_of_an_episode_than_the_log_goes_on_with_the_next(tmp_path):
    """Power was lost before the journal was on the actor's disk."""
    _, outbox = record(tmp_path / "log", ("ppp", "pp"))
    inbox = Inbox(tmp_path / "rows", traces.io())
    longer = HilLog(tmp_path / "other", traces.io())
    other = Outbox(longer)
    other.begin(0)
    other.rows(traces.draft("ppppp").steps)
    inbox.take(*other.piece((0, 0)))
    assert inbox.place(0) == (0, 5)
    head, body = outbox.piece((0, 5))
    assert (head.count, head.final, body) == (0, True, b"")
    inbox.take(head, body)
    inbox.take(*outbox.piece((1, 0)))
    inbox.close()
    assert Inbox(tmp_path / "rows", traces.io()).place(0) == outbox.end() == (2, 0)


def test_nothing_from_the_wire_breaks_or_enters_unnoticed(tmp_path):
    _, outbox = record(tmp_path / "log")
    head, body = outbox.piece((0, 0))
    inbox = Inbox(tmp_path / "rows", traces.io())
    rng = random.Random(0)
    for _ in range(200):
        bad = bytearray(body)
        for _ in range(rng.randint(1, 8)):
            bad[rng.randrange(len(bad))] = rng.randrange(256)
        bad = bytes(bad)[: rng.choice((len(bad), rng.randrange(len(bad))))]
        if bad != body:
            with pytest.raises(ValueError, match=r"."):
                inbox.take(head, bad)
    with pytest.raises(ValueError, match="says that it has 4"):
        inbox.take(replace(head, count=4), body)
    other = unpack(body)
    other.meta["io"] = traces.io(images=True)
    with pytest.raises(ValueError, match="another robot"):
        inbox.take(head, pack(other))
    for values in ({}, {**asdict(head), "first": "x"}, {**asdict(head), "episode": -1}, [], None):
        with pytest.raises(ValueError, match="piece"):
            PieceHead.parse(values)
    assert inbox.place(0) == (0, 0)
    assert inbox.take(head, body) is not None
