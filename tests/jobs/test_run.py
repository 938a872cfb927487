"""What a run owes whoever waits for it: numbers first, nothing lost, nothing in silence."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import mujoco
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, VectorEnv

from robot_rl import checkpoint, lineage, report
from robot_rl.checkpoint import CheckpointError
from robot_rl.claim import InUse
from robot_rl.loops.evaluate import evaluate
from robot_rl.parts import Parts
from robot_rl.run import Run, RunStart
from robot_rl.schedule import Schedule
from robot_rl.types import Action, EnvParts, IOSpec, PolicyParts

SHORT = ["total_steps=80", "eval_every=0"]


def numbers(run: Path) -> dict[str, Any]:
    return json.loads((run / "evaluation.json").read_text())


def test_a_tracker_that_is_refused_leaves_no_run(tmp_path) -> None:
    def refuse(folder: str, step: int | None) -> Any:
        raise ValueError("No API key configured")

    with pytest.raises(ValueError, match="No API key"):
        Run.open(RunStart(tmp_path / "run", "", refuse), Schedule(total=1), Parts({}), sources={}, count=lambda: 0)
    assert not list(tmp_path.iterdir())


FATAL: Any = mujoco.FatalError  # pyright: ignore[reportAttributeAccessIssue]  # it has no stub


@pytest.mark.parametrize("error", [ImportError("matplotlib is absent"), FATAL("gl"), OSError("disk full")])
def test_what_decorates_fails_alone_and_is_named(make_job, tmp_path, monkeypatch, error) -> None:
    def broken(*_: Any, **__: Any) -> None:
        assert numbers(tmp_path / "run")["return"] is not None  # the numbers are there before anything is drawn
        raise error

    monkeypatch.setattr(report, "write_curve", broken)
    monkeypatch.setattr(report, "write_report", broken)
    summary = make_job(tmp_path / "run", *SHORT).run()
    assert numbers(tmp_path / "run")["failures"] == {"curve": str(error), "report": str(error)}
    assert summary["curve"] == f"not made: {error}"


def test_missing_renderer_is_told_at_the_start_and_fails_nothing(make_job, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setitem(sys.modules, "pygame", None)
    monkeypatch.setitem(sys.modules, "pygame.gfxdraw", None)
    job = make_job(tmp_path / "run", *SHORT, "env=gym", "id=Pendulum-v1", "video_episodes=1")
    assert "video will be missing at the end" in capsys.readouterr().err  # before the first step
    job.run()
    found = numbers(tmp_path / "run")
    assert "pygame" in found["failures"]["video"]
    assert "pygame" in (tmp_path / "run" / "report.html").read_text()


def test_tensorboard_that_fails_is_left_out(make_job, tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    make_job(tmp_path / "run", *SHORT, "track.tensorboard=true").run()
    assert "tensorboard" in numbers(tmp_path / "run")["failures"]


def test_damaged_newest_checkpoint_is_put_aside_for_the_one_before(make_job, tmp_path, capsys) -> None:
    make_job(tmp_path / "run", *SHORT, "checkpoint_every=40").run()
    root = tmp_path / "run" / "checkpoints"
    (root / "step_000000080" / "learner.pt").write_bytes(b"torn")
    job = make_job(tmp_path / "run", *SHORT, resume=True)
    assert job.resume_step == 40
    assert "step_000000080 is damaged" in capsys.readouterr().err
    assert (root / "damaged_step_000000080").is_dir()
    job.run()
    assert "is damaged" in (tmp_path / "run" / "report.html").read_text()


def test_a_checkpoint_of_an_older_learner_is_refused_in_words(make_job, tmp_path) -> None:
    make_job(tmp_path / "run", *SHORT).run()
    path = tmp_path / "run" / "checkpoints" / "step_000000080"
    state = checkpoint.load_state(path / "learner.pt")
    del state["updates"]
    checkpoint.save_state(path / "learner.pt", state)
    meta = json.loads((path / "meta.json").read_text())
    (path / "meta.json").write_text(json.dumps({**meta, "git_commit": "0123456789abcdef"}))
    with pytest.raises(CheckpointError, match=r"does not continue in this version.*updates.*commit 0123456789ab"):
        make_job(tmp_path / "run", *SHORT, resume=True)


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ("gamma=0.5", r"gamma=0\.5 \(the run has 0\.99\)"),
        ("num_envs=3", r"num_envs=3 \(the run has \d\)"),
        ("policy.hidden=[5]", r"policy\.hidden=\[5\] \(the run has \[16, 16\]\)"),
    ],
)
def test_a_resume_with_other_settings_names_them_and_both_ways_on(make_job, tmp_path, changed, told) -> None:
    make_job(tmp_path / "run", *SHORT).run()
    before = (tmp_path / "run" / "config.yaml").read_bytes()
    with pytest.raises(CheckpointError, match=rf"began with: {told}\. Leave these out .*init="):
        make_job(tmp_path / "run", "total_steps=120", "eval_every=0", changed, resume=True)
    assert (tmp_path / "run" / "config.yaml").read_bytes() == before
    assert len(list((tmp_path / "run" / "checkpoints").glob("damaged_*"))) == 0
    make_job(tmp_path / "run", *SHORT, resume=True)


def test_resume_of_a_run_that_is_under_way_is_refused(make_job, tmp_path) -> None:
    make_job(tmp_path / "run", *SHORT).run()
    first = make_job(tmp_path / "run", "total_steps=120", "eval_every=0", resume=True)
    with pytest.raises(InUse, match="belongs to one process"):
        make_job(tmp_path / "run", resume=True)
    first.run()


def test_second_new_run_of_one_name_has_a_folder_of_its_own(make_job, tmp_path) -> None:
    first, second = make_job(tmp_path / "run", *SHORT), make_job(tmp_path / "run", *SHORT)
    assert (first.folder.name, second.folder.name) == ("run", "run-2")
    first.run()
    second.run()
    assert numbers(first.folder)["checkpoint"] != numbers(second.folder)["checkpoint"]


def test_best_checkpoint_and_lineage_are_kept(make_job, tmp_path) -> None:
    make_job(tmp_path / "run", "total_steps=80", "eval_every=40", "demos=1").run()
    root = tmp_path / "run" / "checkpoints"
    best = checkpoint.read_meta(checkpoint.find(root / "best"))
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    ranks = [[row["eval/success"], row["eval/return"]] for row in rows if "eval/return" in row]
    assert best["rank"] == max(ranks)
    facts = json.loads((tmp_path / "run" / lineage.FILE).read_text())
    assert facts["from"]["demonstrations"]["episodes"] == 1
    weights = lineage.digest(root / "step_000000080" / "policy.pt")
    assert facts["weights"][-1]["sha256"] == weights["sha256"]


def test_resume_with_new_episodes_says_so(make_job, tmp_path, monkeypatch) -> None:
    kind = type(make_job(tmp_path / "io", *SHORT).env)
    parts = kind.parts.fget
    monkeypatch.setattr(kind, "parts", property(lambda env: replace(parts(env), saves=False)))
    make_job(tmp_path / "run", *SHORT, "total_steps=40").run()
    job = make_job(tmp_path / "run", *SHORT, resume=True)
    job.run()
    assert any("new episodes" in line for line in numbers(tmp_path / "run")["notes"])


IO = IOSpec({"state": ((1,), "float32")}, ("a",), (-1.0,), (1.0,), ("1",), 20.0)


class Endless(VectorEnv):
    """Two copies of a world that pays 1 a step and ends by itself in one of them alone, after 5 steps."""

    metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012
    io, num_envs = IO, 2
    single_action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)

    parts = EnvParts()

    def __init__(self) -> None:
        self.resets, self.tick = 0, 0

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.resets, self.tick = self.resets + 1, 0
        return {"state": np.zeros((2, 1), np.float32)}, {}

    def step(self, actions: Any) -> Any:
        self.tick += 1
        obs, over = {"state": np.zeros((2, 1), np.float32)}, np.array([self.tick % 5 == 0, False])
        info = {"final_obs": obs} if over.any() else {}
        return obs, np.ones(2, np.float32), over, np.zeros(2, bool), info


class Still:
    io = IO

    parts = PolicyParts()

    def reset(self, rows: Any = None) -> None: ...

    def act(self, obs: Any, *, deterministic: bool = False) -> Action:
        return Action(np.zeros((2, 1), np.float32))


def test_evaluation_of_episodes_that_do_not_end_is_bounded() -> None:
    env = Endless()
    result = evaluate(env, Still(), episodes=4, longest=12)  # type: ignore[arg-type]
    # copy 0 ends at steps 5 and 10; copy 1 is cut at 12, and after a reset of both once more
    assert result.lengths == [5, 5, 12, 12]
    assert result.returns == [5.0, 5.0, 12.0, 12.0]
    assert result.metrics()["eval/cut"] == 2.0
    assert env.resets == 2


class Briefly(Endless):
    """Its first copy is where it should be in its third step alone."""

    def step(self, actions: Any) -> Any:
        *found, info = super().step(actions)
        return (*found, {**info, "success": np.array([self.tick == 3, False])})


def test_an_episode_ends_at_its_first_success_where_it_did_in_training() -> None:
    for first_success, length, won in ((True, 3, True), (False, 5, False)):
        result = evaluate(Briefly(), Still(), episodes=2, longest=12, first_success=first_success)  # type: ignore[arg-type]
        assert result.lengths == [length, 12]
        assert result.returns == [float(length), 12.0]
        assert result.successes == [won, False]
        assert result.cut == 1


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"total": -5}, "total is -5, expected a whole number of at least 1"),
        ({"total": 0}, "total is 0"),
        ({"checkpoint_every": -1}, "checkpoint_every is -1, expected a whole number of at least 0"),
        ({"keep_checkpoints": 0}, "keep_checkpoints is 0, expected a whole number of at least 1"),
    ],
)
def test_schedule_refuses_what_makes_no_run(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Schedule(**{"total": 10, **wrong})
