"""The language bench: what counts as reached, what is skipped, what the table holds."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("transformers", reason="needs transformers (extra `language`)")
pytest.importorskip("matplotlib", reason="needs matplotlib (extra `report`)")
from benchmarks import language
from robot_rl.sim.text import TextVectorEnv
from robot_rl.sim.worlds.text_guess import TextGuess
from robot_rl.sim.worlds.text_tools import TextTools


def curve(*greedy: float) -> list[dict[str, float]]:
    return [{"turns": 10.0 * i, "cpu_s": float(i), "greedy": g, "sampled": g - 0.1} for i, g in enumerate(greedy)]


def test_reached_means_to_stay_at_90_percent():
    found = language.first_enough(curve(0.5, 0.95, 0.8, 0.91, 0.97))
    assert found is not None
    assert found["turns"] == 30
    assert language.first_enough(curve(0.5, 0.95, 0.8)) is None


def test_summary_has_one_row_per_world_and_method(tmp_path):
    for seed, values in enumerate([(0.4, 0.9, 1.0), (0.6, 0.7, 0.8)]):
        job: dict[str, Any] = {"world": "maze", "method": "gigpo", "seed": seed, "curve": curve(*values)}
        (tmp_path / f"maze_gigpo_seed{seed}.json").write_text(json.dumps(job))
    row = language.summarise(tmp_path)["rows"][0]
    assert row["imitation"] == pytest.approx(0.5)
    assert row["greedy"] == pytest.approx(0.9)
    assert row["greedy_by_seed"] == [1.0, 0.8]
    assert row["turns_to_90"] == [10, "-"]
    assert (tmp_path / "language.png").stat().st_size > 1000


def test_runs_once_and_continues(tmp_path, monkeypatch):
    small = {"hidden": 16, "heads": 2, "groups": 2, "group_size": 2, "warmup_dialogues": 2, "warmup_steps": 1}
    task = language.Task("robot_rl.sim.worlds.text_guess.TextGuess", {"numbers": 2}, 8, small, ("rloo", "grpo"))
    monkeypatch.setitem(language.TASKS, "guess", task)
    options: dict[str, Any] = {"worlds": ("guess",), "seeds": (0,), "tasks": 2, "evaluations": 1}
    rows = language.run(str(tmp_path), methods=("rloo",), **options)["rows"]
    assert [row["method"] for row in rows] == ["rloo"]
    done = (tmp_path / "guess_rloo_seed0.json").read_bytes()
    rows = language.run(str(tmp_path), **options)["rows"]
    assert [row["method"] for row in rows] == ["grpo", "rloo"]
    assert (tmp_path / "guess_rloo_seed0.json").read_bytes() == done  # not run again
    result = json.loads(done)
    assert result["curve"][0]["turns"] == 0
    assert result["curve"][-1]["turns"] >= 8


@pytest.mark.parametrize("world", sorted(language.TASKS))
def test_all_estimators_of_a_world_are_compared_with_one_loss(world):
    task = language.TASKS[world]
    env = TextVectorEnv(TextGuess(), 1, 0)
    for method in (*task.methods, "gigpo", "grpo", "trloo", "rloo", "turn_gae", "bilevel"):
        agent = language.make_agent(task, env, method, seed=0)
        assert agent.pipeline.loss_options == {"clip": (0.2, 0.28), "aggregation": "token_mean"}
        stage = agent.pipeline.estimators[0][0]
        assert stage.name == method
        if method in ("gigpo", "trloo", "turn_gae", "bilevel"):
            assert stage.options["gamma"] == task.agent.get("gamma", 0.99)
        if world == "errand" and method in ("turn_gae", "bilevel"):
            assert stage.options["gae_lambda"] == 0.9


def test_the_errand_is_long_and_its_optimum_known():
    world = TextTools(**language.TASKS["errand"].options)
    world.reset(0)
    assert world.optimum == pytest.approx(6 * 0.9)
    assert world.max_turns == 24


def test_wrong_use_is_refused(tmp_path):
    with pytest.raises(ValueError, match="no world 'chess'"):
        language.run(str(tmp_path), worlds=("chess",))
    with pytest.raises(ValueError, match="out is empty"):
        language.run()
