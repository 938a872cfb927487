"""Episodes on disk survive kills: nothing lost, nothing twice."""
# pyright: reportArgumentType=false

import random
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from robot_rl.data import d4rl, formats
from robot_rl.data.convert import convert
from robot_rl.data.hil_episode import EpisodeDraft, EpisodeRules, to_steps, valid_pieces
from robot_rl.data.hil_record import EndReason, Invalid
from robot_rl.data.hil_words import episode_key
from robot_rl.data.read_options import ReadOptions
from robot_rl.human.log import MANIFEST, HilLog, read_manifest
from tests.human import traces

ROOT = Path(__file__).resolve().parents[2]


def record(log, trace="ppHHp", reason=EndReason.TIMEOUT, base=0, commit=True):
    log.begin()
    out = EpisodeDraft(EpisodeRules(), 10.0)
    moment = base
    for letter in trace:
        if letter != "-":
            source = {"p": traces.Source.POLICY, "H": traces.Source.HUMAN}[letter]
            out.add(traces.step(moment, source=source))
            log.journal(out.steps[-1])
        moment += 1
    if commit:
        out.close(reason)
        return log.commit(out)
    return None


def test_log_gives_back_what_was_recorded(tmp_path):
    log = HilLog(tmp_path, traces.io(), run_id=7, actor_id=2)
    stored = record(log, reason=EndReason.SUCCESS)
    record(log, base=100)
    log.close()
    assert stored is not None
    again = HilLog(tmp_path, traces.io(), run_id=7, actor_id=2)
    first, second = list(again.episodes())
    np.testing.assert_array_equal(first.obs["state"], stored.obs["state"])
    assert first.meta["success"]
    assert episode_key(second.meta).episode_id == 1
    assert again.next_episode == 2
    assert [line["end_reason"] for line in again.manifest] == ["success", "timeout"]
    assert again.manifest[0]["human_steps"] == 2
    assert again.steps == 10


def test_open_episode_of_a_killed_process_is_closed_as_truncated(tmp_path):
    log = HilLog(tmp_path, traces.io())
    record(log)
    record(log, "ppHH", base=50, commit=False)  # killed here
    log.close()
    again = HilLog(tmp_path, traces.io())
    assert [key.episode_id for key in again.recovered] == [1]
    steps = to_steps(list(again.episodes())[1])
    assert [s.valid for s in steps] == [True, True, True, False]
    assert steps[3].invalid_reason == Invalid.RECOVERED
    assert steps[2].truncated
    assert not any(s.terminated for s in steps)
    assert again.next_episode == 2  # keys go on
    assert not (tmp_path / "open").exists()
    assert HilLog(tmp_path, traces.io()).recovered == []


def test_kill_between_append_and_clean_up_gives_no_second_copy(tmp_path):
    log = HilLog(tmp_path, traces.io())
    log.begin()
    out = EpisodeDraft(EpisodeRules(), 10.0)
    for t in range(4):
        out.add(traces.step(t))
        log.journal(out.steps[-1])
    out.close(EndReason.TIMEOUT)
    log._append(out.episode(log.facts(log._open)))  # the kill comes before the journal is removed
    log.close()
    again = HilLog(tmp_path, traces.io())
    assert again.recovered == []
    assert len(list(again.episodes())) == 1


def test_torn_manifest_line_is_rebuilt_from_the_segments(tmp_path):
    log = HilLog(tmp_path, traces.io())
    record(log)
    record(log, base=20)
    log.close()
    before = read_manifest(tmp_path)
    text = (tmp_path / MANIFEST).read_text()
    (tmp_path / MANIFEST).write_text(text[: len(text) - 30])
    again = HilLog(tmp_path, traces.io())
    assert [line["episode_id"] for line in again.manifest] == [0, 1]
    assert again.manifest[1]["sha256"] == before[1]["sha256"]


def test_other_interface_is_refused(tmp_path):
    log = HilLog(tmp_path, traces.io())
    record(log)
    log.close()
    with pytest.raises(ValueError, match="another robot"):
        HilLog(tmp_path, traces.io(images=True))


def test_full_disk_at_commit_keeps_the_journal(tmp_path, monkeypatch):
    log = HilLog(tmp_path, traces.io())
    log.begin()
    out = EpisodeDraft(EpisodeRules(), 10.0)
    for t in range(4):
        out.add(traces.step(t))
        log.journal(out.steps[-1])
    out.close(EndReason.TIMEOUT)

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(log._recorder, "append", full)
        with pytest.raises(OSError, match="No space"):
            log.commit(out)
    log.commit(out)  # there is room again
    assert len(list(log.episodes())) == 1


def test_export_to_d4rl_keeps_truncation_and_interventions(tmp_path):
    log = HilLog(tmp_path / "log", traces.io())
    record(log, "ppHHp", EndReason.SUCCESS)
    record(log, "pH-p", EndReason.TIMEOUT, base=30)
    d4rl.write(tmp_path / "out.hdf5", [piece for episode in log.episodes() for piece in valid_pieces(episode)])
    first, second, third = d4rl.read(tmp_path / "out.hdf5", ReadOptions(infos=True)).episodes
    assert (first.terminated, first.truncated) == (True, False)
    assert (second.terminated, second.truncated) == (False, True)
    assert first.intervened.tolist() == [False, False, True, True, False]
    assert first.meta["columns"]["infos/intv_id"].tolist() == [-1, -1, 0, 0, -1]
    assert [len(second), len(third)] == [2, 1]  # the gap row is not exported, and nothing bootstraps across it
    assert third.truncated


@pytest.mark.parametrize("to", ["d4rl", "lerobot", "store"])
def test_convert_keeps_ends_and_interventions_and_leaves_out_what_nobody_may_learn_from(tmp_path, to):
    """robot-rl data convert on a run folder: pieces as learners see them, whatever the format."""
    if to == "lerobot":
        pytest.importorskip("pyarrow", reason="needs pyarrow (extra `logs`)")
    log = HilLog(tmp_path / "run" / "log", traces.io())
    record(log, "ppHHp", EndReason.SUCCESS)
    record(log, "pH-p", EndReason.TIMEOUT, base=30)
    log.begin()
    away = traces.draft("HHH")
    away.close(EndReason.HUMAN_STOP)
    log.commit(away, {"discarded": True})
    out = tmp_path / ("out.hdf5" if to == "d4rl" else "out")
    findings = convert(tmp_path / "run", out, to=to)
    assert {f.case: f.count for f in findings if f.severity == "note"}.items() >= {"invalid": 1, "discarded": 1}.items()
    first, second, third = formats.load(out, **({"infos": True} if to == "d4rl" else {})).episodes
    assert [(e.terminated, e.truncated) for e in (first, second, third)] == [
        (True, False),
        (False, True),
        (False, True),
    ]
    assert first.intervened.tolist() == [False, False, True, True, False]
    assert second.obs["state"][:, 0].tolist() == [30.0, 31.0, 32.0]  # the true successor, not the next row
    assert third.obs["state"][:, 0].tolist() == [33.0, 34.0]


def test_convert_counts_the_last_word_about_an_episode(tmp_path):
    """Labelled anew, taken back, and a demonstration that was called a success afterwards: as the memory has them."""
    log = HilLog(tmp_path / "run" / "log", traces.io(), rules=EpisodeRules(gamma=0.97))
    record(log, "ppp", EndReason.TIMEOUT)
    record(log, "ppp", EndReason.SUCCESS, base=10)
    for marks, facts in (("HH", {"discarded": True, "shown": True}), ("HHH", {"demo": True, "shown": True})):
        log.begin()
        draft = traces.draft(marks)
        draft.close(EndReason.TIMEOUT)
        log.commit(draft, facts)
    log.correct(0, True)
    log.correct(1, True)
    log.correct(1, False)
    log.correct(2, True)
    log.correct(3, False)
    findings = convert(tmp_path / "run", tmp_path / "out.hdf5")
    assert "4 episodes" in next(f.message for f in findings if f.case == "corrected")
    found = formats.load(tmp_path / "out.hdf5").episodes
    assert [(len(e), e.terminated, e.reward.tolist()) for e in found] == [
        (3, True, [0.0, 0.0, 1.0]),
        (3, True, [0.0, 0.0, 0.0]),
        (2, True, [0.0, 1.0]),
    ]


def write_until_killed(folder: Path, say: Callable[..., None]) -> None:
    log = HilLog(folder, traces.io())
    while True:
        key = log.begin()
        out = EpisodeDraft(EpisodeRules(), 10.0)
        for t in range(6):
            out.add(traces.step(1000 * key.episode_id + t))
            log.journal(out.steps[-1])
            say(key.episode_id, t)
        out.close(EndReason.TIMEOUT)
        log.commit(out)


def test_killed_writers_lose_and_double_no_step(tmp_path, fork):
    """kill -9 at random moments: every step whose journalling was reported is there, once."""
    rng, reported = random.Random(0), set()
    for _ in range(4):
        writer = fork(partial(write_until_killed, tmp_path))
        lines = [writer.stdout.readline() for _ in range(rng.randint(3, 60))]
        time.sleep(rng.random() * 0.01)
        code, rest = writer.wait(signal.SIGKILL)
        assert code == -signal.SIGKILL
        reported |= {tuple(int(x) for x in line.split()) for line in [*lines, *rest.splitlines()] if " " in line}
    log = HilLog(tmp_path, traces.io())
    found = []
    for episode in log.episodes():
        number = episode_key(episode.meta).episode_id
        found += [(number, int(s.obs["state"][0]) - 1000 * number) for s in to_steps(episode)]
    assert len(found) == len(set(found))
    assert reported <= set(found)
    assert len(log.manifest) == len({line["episode_id"] for line in log.manifest})
