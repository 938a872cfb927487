"""The matrix resumes, runs anew what has come to mean something else, and its report counts pairs by the rule."""

import json

import pytest

pytest.importorskip("stable_baselines3")

from benchmarks.online import matrix, report
from benchmarks.online.cell import resolve


def cell(task: str, method: str, seed: int, value: float) -> dict:
    facts = {"algorithm": "ppo", "task": task, "method": method, "steps": 50, "seed": seed, "return": value}
    options = resolve("ppo", method)
    return {**facts, "curve": [[10, 0.0], [20, value]], "wall_s": 1.0, "cpu_s": 2.0, "options": options}


def test_a_cell_is_run_once_and_anew_when_its_options_meant_something_else(tmp_path):
    what = ("ppo", "Pendulum-v1", "ours rollout_steps=32 epochs=1", 64, 0)
    matrix.fill(*what, folder=tmp_path)
    (path,) = tmp_path.glob("ppo/Pendulum-v1/*.json")
    made = json.loads(path.read_text())
    assert len(made["returns"]) == 10
    assert made["return"] == pytest.approx(sum(made["returns"]) / 10, abs=0.01)
    assert made["options"]["rollout_steps"] == 32
    path.write_text(json.dumps({**made, "return": 7.0}))
    matrix.fill(*what, folder=tmp_path)
    assert json.loads(path.read_text())["return"] == 7.0  # it was there
    path.write_text(json.dumps({**made, "return": 7.0, "options": {**made["options"], "lr": 1.0}}))
    assert matrix.read_known(path) is None
    matrix.fill(*what, folder=tmp_path)
    again = json.loads(path.read_text())
    assert (again["returns"], again["curve"]) == (made["returns"], made["curve"])  # the same seed, the same run


def test_an_unknown_side_or_word_is_refused():
    with pytest.raises(ValueError, match="expected ours or sb3 or sbx"):
        resolve("ppo", "theirs")
    with pytest.raises(SystemExit, match="unknown: task"):
        matrix.main(["task=Pendulum-v1"])


def test_the_report_counts_pairs_and_names_what_falls_below_the_rule(tmp_path):
    """Hopper: 2 of 4 pairs and a tie, too few to judge; Swimmer: 2 and a tie of 25, which is below three."""
    wins = {("Hopper-v5", "ours"): (3, 1), ("Hopper-v5", "sb3"): (2, 1)}
    losses = {("Swimmer-v5", "ours"): (0, 0, 0, 0, 6), ("Swimmer-v5", "sb3"): (5, 5, 6, 7, 7)}
    other = {("Pusher-v5", "ours"): (0,), ("Pusher-v5", "sb3"): (1,)}  # a user's own: no part of the mean over tasks
    for (task, method), values in (wins | losses | other).items():
        for seed, value in enumerate(values):
            path = matrix.path_of("ppo", task, method, 50, seed, tmp_path / "online")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(cell(task, method, seed, float(value))))
    text = report.write(tmp_path / "online")
    assert (tmp_path / "online.md").read_text() == text
    assert "| Hopper-v5 (t) | 2 (3, 1) | 1.5 (2, 1) | 2.5 of 4 |" in text
    assert "| Swimmer-v5 | 1.2 (0, 0, 0, 0, 6) | 6 (5, 5, 6, 7, 7) | 2.5 of 25, **below the rule** |" in text
    assert "probability of improvement 0.36" in text  # (2.5 / 4 + 2.5 / 25) / 2
    assert (tmp_path / "online" / "ppo_50.png").stat().st_size > 1000
