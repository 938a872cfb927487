"""Runs on the same episodes: what is said of them, worked out by hand, and a run against itself."""

import json
from pathlib import Path

from robot_rl.stats import Paired, pairs_to_tell
from robot_rl.verbs.eval_compare import compare_to_first, describe_evidence, describe_run


def test_a_run_alone_tells_success_and_return_with_intervals():
    lines = describe_run({"returns": [1.0, 3.0], "successes": [True, False]})
    assert lines["return"] == "2 (95 %: 1 to 3)"
    assert lines["success"].startswith("1/2 = 0.50 (95 %: 0.09")
    assert "success" not in describe_run({"returns": [1.0], "successes": []})


def test_success_decides_where_it_differs_else_the_return():
    first = {"returns": [1.0, 1.0, 1.0], "successes": [True, False, False]}
    found = compare_to_first(first, {"returns": [0.0, 0.0, 0.0], "successes": [True, True, False]})
    assert found["episodes"] == "better in 1 and worse in 0 of 3 by success, p 1"
    found = compare_to_first(first, {"returns": [2.0, 0.0, 2.0], "successes": [True, False, False]})
    assert found["episodes"] == "better in 2 and worse in 1 of 3 by return, p 1"
    assert found["return gained"].startswith("+0.3333")


def test_the_verdict_says_better_worse_or_how_many_more():
    assert describe_evidence(Paired(6, 0, 20)) == "better than the first"  # p = 2 / 2^6 = 0.031
    assert describe_evidence(Paired(0, 6, 20)) == "worse than the first"
    assert describe_evidence(Paired(2, 2, 20)) == "no difference to be seen: as many episodes better as worse"
    assert describe_evidence(Paired(0, 0, 20)) == "the same return as the first in every episode"
    need = pairs_to_tell(3 / 20, 1 / 20)
    assert need is not None
    assert describe_evidence(Paired(3, 1, 20)).endswith(f"about {need - 20} more episodes would tell")


def test_a_run_against_itself_wins_and_loses_nothing(make_job, tmp_path: Path, robot_rl) -> None:
    make_job(tmp_path / "run", "total_steps=80").run()
    run = str(tmp_path / "run")
    done = robot_rl("eval", "compare", f"path=[{run},{run}/]", "episodes=3", f"output={tmp_path}")
    assert done.returncode == 0, done.stderr
    assert "the same return as the first in every episode" in done.stdout
    (path,) = tmp_path.glob("compare/*/compare.json")
    rows = json.loads(path.read_text())
    first, second = rows[run], rows[f"{run}/"]
    assert len(first["returns"]) == 3
    assert first["returns"] == second["returns"]
    assert len(set(first["returns"])) == 3  # a seed of its own for every episode
