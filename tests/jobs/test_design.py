"""Programs are proposed, trained, ranked and proposed again; what failed goes back too, and a search continues."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from robot_rl.expression import Expression, ProgramError
from robot_rl.policies.reward.program_proposer import Listed, ModelProposer, programs
from robot_rl.verbs.design import Attempt, TrainRun, _interface, by_person, by_score, refuse_other_search, search
from robot_rl.words import Refused

WIDTHS = {"x": 1, "v": 2}


def check(code: str) -> str:
    try:
        Expression(code, WIDTHS)
    except ProgramError as error:
        return str(error)
    return ""


def train(code: str, name: str) -> tuple[float, dict[str, list[float]], str]:
    """The best policy of three is the one that the program prefers; the task wants x to be 2."""
    values = Expression(code, WIDTHS)({"x": np.array([[0.0], [1.0], [2.0]]), "v": np.zeros((3, 2))})
    score = float(np.argmax(values)) / 2.0
    return score, {"eval/success": [0.0, score]}, f"runs/{name}"


class Writer:
    """A model that learns from what it reads: it turns the sign of the best program round once it is shown to fail."""

    def __init__(self) -> None:
        self.prompts: list[str] = []

    def answer(self, pictures: Sequence[np.ndarray], text: str) -> str:
        self.prompts.append(text)
        if "best program" not in text:
            return "I try:\n```python\n-x\n```\n```\nx.real\n```"
        return "Turned round:\n```\nx\n```" if "[0, 0]" in text else "```\nx + 0 * norm(v)\n```"


def test_loop_finds_the_reward_and_tells_the_model_what_came_of_it(tmp_path: Path) -> None:
    model = Writer()
    seen: list[Attempt] = []
    found = search(
        ModelProposer(model, "make x large", WIDTHS), check, train, by_score, tmp_path, rounds=2, each=1,
        on_attempt=seen.append,
    )  # fmt: skip
    assert [item.code for item in found if not item.error] == ["x", "-x"]
    assert [item.rank for item in found if not item.error] == [0, 1]
    assert found[0].score == 1.0
    assert "make x large" in model.prompts[0]
    assert "v: 2" in model.prompts[0]
    assert "eval/success: [0, 0]" in model.prompts[1]
    assert json.loads((tmp_path / "attempts.json").read_text())[0]["code"] == "-x"


def test_programs_that_cannot_be_used_are_told_and_asked_for_again(tmp_path: Path) -> None:
    class Slow:
        asked: tuple[Any, ...] = ()

        def propose(self, attempts: Sequence[Attempt], count: int) -> list[str]:
            self.asked += (([item.error for item in attempts], count),)
            return ["y", "x", "x", "norm(v)"][len(self.asked) - 1 :][:1]

    proposer = Slow()

    def fails(code: str, name: str) -> Any:
        if code == "norm(v)":
            raise RuntimeError("the arm fell off")
        return train(code, name)

    found = search(proposer, check, fails, by_score, tmp_path, rounds=2, each=1)
    assert "no observable 'y'" in found[-1].error or "no observable 'y'" in found[1].error
    assert proposer.asked[1][1] == 1
    assert {item.error for item in found if item.error} >= {"this program was tried before", "the arm fell off"}
    with pytest.raises(ValueError, match="none of 2 programs could be trained"):
        search(Listed(["y", "z.w"]), check, train, by_score, tmp_path / "b", rounds=1, each=2)


def test_search_continues_where_it_stopped(tmp_path: Path) -> None:
    count = 0

    def stops(code: str, name: str) -> Any:
        nonlocal count
        count += 1
        if count == 3:
            raise KeyboardInterrupt
        return train(code, name)

    codes = Listed(["-x", "x", "x * 2", "1"])
    with pytest.raises(KeyboardInterrupt):
        search(codes, check, stops, by_score, tmp_path, rounds=2, each=2)
    found = search(codes, check, stops, by_score, tmp_path, rounds=2, each=2)
    assert count == 5  # the third once more, and the fourth
    assert [item.round for item in sorted(found, key=lambda item: item.run)] == [0, 0, 1, 1]


def test_a_search_goes_on_with_the_training_that_it_began_with(tmp_path: Path) -> None:
    words = ["env=reach", "total_steps=60"]
    with pytest.raises(Refused, match="holds no search of robot-rl design"):
        refuse_other_search(tmp_path, words)
    (tmp_path / "config.yaml").write_text("rounds: 1\ntrain:\n- env=reach\n- total_steps=60\n")
    refuse_other_search(tmp_path, words[::-1])
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.yaml").write_text("seed: 0\n")  # of another verb
    with pytest.raises(Refused, match="holds no search"):
        refuse_other_search(tmp_path / "other", words)
    with pytest.raises(Refused, match="trains with 'env=reach total_steps=60', not with 'env=pick'"):
        refuse_other_search(tmp_path, ["env=pick"])


def test_a_person_ranks(tmp_path: Path) -> None:
    said = iter(["2", "1 1", "2, 1"])
    attempts = [Attempt("a", 0, run="r1"), Attempt("b", 0, run="r2")]
    assert by_person(lambda _: next(said))(attempts) == [1, 0]
    with pytest.raises(ValueError, match=r"ranking is \[1\], expected an order"):
        search(Listed(["x"]), check, train, lambda _: [1], tmp_path, rounds=1, each=1)


def test_programs_are_read_out_of_blocks() -> None:
    assert programs("```python\na\nb\n``` and ``` c ``` ``` ```") == ["a\nb", "c"]
    with pytest.raises(ValueError, match="goal is empty"):
        ModelProposer(Writer(), " ", WIDTHS)


def test_rewards_are_designed_for_a_task_of_the_users_own(tmp_path: Path) -> None:
    (tmp_path / "my_task.py").write_text(
        "import gymnasium, numpy as np\n"
        "class MyTask(gymnasium.Env):\n"
        "    observation_space, action_space = (gymnasium.spaces.Box(-1, 1, (n,), np.float32) for n in (3, 2))\n"
    )
    io = _interface([f"env={tmp_path / 'my_task.py'}:MyTask"])
    assert io.obs["state"][0] == (3,)
    assert io.action_dim == 2


def test_a_run_whose_return_is_no_number_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "train" / "2026-01-01_x"
    folder.mkdir(parents=True)
    (folder / "evaluation.json").write_text('{"return": null}')
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: subprocess.CompletedProcess([], 0))
    with pytest.raises(RuntimeError, match=r"the return at the end of .*2026-01-01_x is not finite"):
        TrainRun([], tmp_path, timeout=1.0)("0", "x")
    (folder / "evaluation.json").write_text('{"return": 1.0}')
    (folder / "metrics.jsonl").write_text('{"step": 1, "eval/return": null}\n{"step": 2, "eval/return": 1.0}\n')
    score, curves, _ = TrainRun([], tmp_path, timeout=1.0)("0", "x")
    assert score == pytest.approx(5e-4)
    assert curves == {"eval/return": [1.0]}


def test_search_from_the_command_line(tmp_path: Path, robot_rl: Any) -> None:
    small = (
        "env=reach", "policy=online/sac", "policy.hidden=[8,8]", "policy.batch_size=8", "total_steps=60",
        "learning_starts=20", "updates_per_step=0.1", "log_every=20", "eval_every=0", "final_episodes=1",
        "video_episodes=0", "checkpoint_every=0", "track.tensorboard=false",
    )  # fmt: skip
    codes = 'codes=["d = norm(tip_to_goal); 1 - tanh(d)","velocity","-norm(before_tip_to_goal)"]'
    done = robot_rl("design", codes, "rounds=1", "each=3", "name=d", "--", *small)
    assert done.returncode == 0, done.stderr
    (folder,) = (tmp_path / "runs" / "design").iterdir()
    rows = json.loads((folder / "attempts.json").read_text())
    assert [bool(row["error"]) for row in rows] == [False, True, False]
    assert "no observable 'velocity'" in rows[1]["error"]
    assert rows[0]["curves"]["rollout/return"]
    assert "best first" in done.stdout
    for wrong, words in (
        (("codes=[x]", "--", "rewarder=critic"), "sets rewarder"),
        (("--", "env=reach"), "who proposes"),
    ):
        refused = robot_rl("design", *wrong)
        assert refused.returncode == 2
        assert words in refused.stderr
