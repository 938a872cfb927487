"""Messages are labelled beside the training: what is paid and when, what is dropped, learnt, saved and repeated."""
# pyright: reportArgumentType=false

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from robot_rl.policies.reward.annotator import (
    AnnotatorOptions,
    AsyncLabelReward,
    LabelOptions,
    ObservableCells,
    ProgramAnnotator,
    annotator,
    read_table,
)
from robot_rl.policies.reward.annotator_worker import LabelWorker
from robot_rl.types import IOSpec

IO = IOSpec(
    {"state": ((3,), "float32")}, ("dx",), (-1.0,), (1.0,), ("1",), 10.0, obs_names=("way_x", "way_y", "open")
)  # fmt: skip
NO = np.zeros(2, bool)


def seen(*rows: Sequence[float], own: float = 0.0) -> dict[str, Any]:
    return {"state": np.array(rows, np.float32), "env_reward": np.full(len(rows), own)}


def made(code: str = "way[0] < 1", **options: Any) -> AsyncLabelReward:
    values: dict[str, Any] = {"beta": 1.0, "scale": 0.4, "keep": 2.0, "inline": True, **options}
    if "replay" not in values:
        values["model"] = f"program:{code}"
    reward = annotator(AnnotatorOptions(names=("way",), size=0.5, **values))
    reward.bind(IO)
    reward.start(np.ones(2, bool), seen((0, 0, 0), (0, 0, 0)))
    return reward


def test_messages_are_cells_of_observables() -> None:
    cells = ObservableCells(["way", "open"], 0.5)
    cells.bind(IO)
    assert cells(seen((0.6, -1.0, 2.4), (0, 0, 0))) == ["way=1,-2 open=5", "way=0,0 open=0"]
    np.testing.assert_allclose(cells.features("way=1,-2 open=5"), [0.5, -1.0, 2.5])
    with pytest.raises(ValueError, match=r"no speed; it has open, state, way, way_x"):
        ObservableCells(["speed"], 1.0).bind(IO)


def test_label_is_paid_by_its_count_beside_the_worlds_reward() -> None:
    reward = made()
    near, far = (0.0, 0.0, 0.0), (5.0, 0.0, 0.0)
    np.testing.assert_allclose(reward.step(seen(near, far, own=1.0), NO), [2.4, 2.0])
    np.testing.assert_allclose(reward.step(seen(near, near), NO), [0.2, 0.4])  # the first row's second time
    reward.start(np.array([True, False]), seen(near, near))
    np.testing.assert_allclose(reward.step(seen(near, near), NO), [0.4, 0.2])
    assert [row["version"] for row in reward.rows] == [1, 2]


class Slow:
    """Answers only when it is let; counts what it is asked."""

    def __init__(self) -> None:
        self.gate, self.asked = threading.Semaphore(0), 0

    def answer(self, pictures: Any, text: str) -> str:
        self.gate.acquire(timeout=10)
        self.asked += 1
        return "1"


def test_training_does_not_wait_for_labels(tmp_path: Path) -> None:
    model = Slow()
    cells, table = ObservableCells(["way"], 0.5), str(tmp_path / "t.jsonl")
    reward = AsyncLabelReward(LabelOptions(scale=1.0, beta=0.0, save=table), cells, model)
    reward.bind(IO)
    reward.start(np.ones(2, bool), seen((0, 0, 0), (9, 0, 0)))
    states = seen((0, 0, 0), (9, 0, 0))
    first = [reward.step(states, NO).tolist() for _ in range(3)]
    assert first == [[0.0, 0.0]] * 3  # nobody has answered yet
    model.gate.release()
    model.gate.release()
    assert reward._worker is not None
    assert reward._worker.wait(10.0)
    later = reward.step(states, NO).tolist()
    assert later == [1.0, 1.0]
    assert model.asked == 2  # each message once
    reward.close()
    again = AsyncLabelReward(LabelOptions(scale=1.0, beta=0.0, replay=table), cells, None)
    again.bind(IO)
    again.start(np.ones(2, bool), states)
    assert [again.step(states, NO).tolist() for _ in range(4)] == [*first, later]  # at the same steps


def test_full_queue_drops_the_oldest_which_may_come_again() -> None:
    gate = threading.Event()
    worker = LabelWorker(lambda x: gate.wait(10) and x, most=2)
    worker.ask("a")
    while worker.waiting():
        pass  # the thread has taken it
    assert [worker.ask(x) for x in "bcde"] == [None, None, "b", "c"]
    gate.set()
    assert worker.wait(10.0)
    assert sorted(question for question, _ in worker.fetch()) == ["a", "d", "e"]
    assert worker.dropped == 2
    worker.close()


def test_labeller_that_keeps_failing_stops_the_run_and_unreadable_is_no() -> None:
    class Broken:
        def answer(self, pictures: Any, text: str) -> str:
            raise ConnectionError("the server is gone")

    class Mute(Broken):
        def answer(self, pictures: Any, text: str) -> str:
            return "hm"

    for model, fails in ((Broken(), True), (Mute(), False)):
        reward = AsyncLabelReward(LabelOptions(inline=True), ObservableCells(["way"], 0.5), model)
        reward.bind(IO)
        reward.start(np.ones(2, bool), seen((0, 0, 0), (0, 0, 0)))
        if fails:
            for i in range(4):
                reward.step(seen((i, 0, 0), (i, 0, 0)), NO)
            with pytest.raises(RuntimeError, match="5 times on end: the server is gone"):
                reward.step(seen((9, 0, 0), (9, 0, 0)), NO)
        else:
            assert reward.step(seen((0, 0, 0), (0, 0, 0)), NO).tolist() == [0.0, 0.0]
            assert reward.unreadable == 1


def rows_of(reward: AsyncLabelReward, count: int = 60) -> None:
    rng = np.random.default_rng(0)
    for _ in range(count):
        x = rng.uniform(-4, 4, (2, 3))
        reward.step(seen(*x), NO)


def test_network_learns_labels_and_pairs_and_speaks_of_messages_that_were_never_labelled() -> None:
    learnt = made("way[0] > 0", mode="classification", beta=0.0, scale=1.0, fit_every=20)
    rows_of(learnt)
    np.testing.assert_allclose(learnt.step(seen((12.0, 7.7, 0), (-12.0, 7.7, 0)), NO), [1.0, 0.0])
    ranked = made("way[0]", mode="ranking", beta=0.0, scale=1.0, fit_every=20, quantile=0.5)
    rows_of(ranked)
    values = [float(ranked.step(seen((x, 0.3, 0), (0, 0, 0)), NO)[0]) for x in (-3.5, 1.5, 3.5)]
    assert values[0] == 0.0  # below the quantile
    assert 0.0 < values[1] < values[2]


@pytest.mark.parametrize("mode", ["retrieval", "classification", "ranking"])
def test_table_repeats_a_run_and_a_state_continues_it(mode: str, tmp_path: Path) -> None:
    one = made("way[0] > 0", mode=mode, fit_every=10, save=str(tmp_path / "t.jsonl"))
    rng = np.random.default_rng(1)
    states = [seen(*rng.uniform(-3, 3, (2, 3))) for _ in range(60)]
    paid = [one.step(state, NO) for state in states[:40]]
    saved = one.state_dict()
    rest = [one.step(state, NO) for state in states[40:]]
    again = made(mode=mode, fit_every=10, replay=str(tmp_path / "t.jsonl"))
    np.testing.assert_array_equal([again.step(state, NO) for state in states], [*paid, *rest])
    other = made("way[0] > 0", mode=mode, fit_every=10, save=str(tmp_path / "t.jsonl"))
    other.load_state_dict(saved)
    np.testing.assert_array_equal([other.step(state, NO) for state in states[40:]], rest)
    assert read_table(tmp_path / "t-2.jsonl") == read_table(tmp_path / "t.jsonl")  # a continued run's table is whole
    one.close()


def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="mode is 'x', expected one of retrieval"):
        made(mode="x")
    with pytest.raises(ValueError, match="either a model"):
        annotator(AnnotatorOptions(names=("way",)))
    with pytest.raises(ValueError, match="expected the observables"):
        annotator(AnnotatorOptions(model="program:1"))
    with pytest.raises(FileNotFoundError):
        made(replay=str(tmp_path / "none"))
    (tmp_path / "bad").write_text('{"step": 1}\n')
    with pytest.raises(ValueError, match="line 1 is no label"):
        made(replay=str(tmp_path / "bad"))
    (tmp_path / "pairs").write_text('{"step": 1, "version": 1, "key": "way=1", "other": "way=2", "label": 1}\n')
    assert made(replay=str(tmp_path / "pairs"), mode="ranking").steps == 0
    for mode in ("retrieval", "classification"):
        with pytest.raises(ValueError, match=f"holds labels of pairs, and mode={mode} reads those of single messages"):
            made(replay=str(tmp_path / "pairs"), mode=mode)
    with pytest.raises(ValueError, match="queue is 0, expected a whole number of at least 1"):
        made(queue=0)


def test_program_in_place_of_a_model_answers_both_questions() -> None:
    script = ProgramAnnotator("norm(way)", 0.5)
    assert script.answer([], "The robot reports: way=2,0 open=1\nDoes") == "1"
    assert script.answer([], "0: way=2,0\n1: way=0,1\nWhich") == "0"
    assert script.answer([], "0: way=2,0\n1: way=0,2\nWhich") == "-1"


def test_program_reads_no_message_in_the_words_of_the_goal() -> None:
    """It answered about the goal, or stopped because the program has no such name."""
    for goal in ("reach way=0,0", "speed=1 or more", 'say "open".\n0: way=5,5'):
        made = annotator(AnnotatorOptions(model="program:norm(way)", names=("way",), goal=goal, inline=True))
        assert made._answer(("way=2,0", None)) == 1, goal
        assert made._answer(("way=0,0", None)) == 0, goal
        assert made._answer(("way=2,0", "way=0,1")) == 0, goal
