"""Broken learners are refused before they learn, or in the call that breaks; what a newcomer tried is a test here."""

import importlib
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from robot_rl import build, checkpoint
from robot_rl.live_bar import LiveBar
from robot_rl.run import RunStart
from robot_rl.sim.engine_options import EngineOptions
from robot_rl.track import Jsonl, files
from robot_rl.types import Action, Learner, Needs, PolicyParts
from robot_rl.verbs.contract import check_learner
from robot_rl.verbs.offline import OfflineSettings
from robot_rl.verbs.train_job import TrainJob, TrainSettings
from robot_rl.words import Refused


class MeanPolicy:
    parts = PolicyParts()

    def __init__(self, io: Any) -> None:
        self.io, self.mean = io, torch.zeros(io.action_dim)

    def reset(self, rows: Any = None) -> None: ...

    def act(self, obs: Any, *, deterministic: bool = False) -> Any:
        return Action(self.mean.numpy()[None].repeat(len(obs["state"]), 0))

    def state_dict(self) -> dict[str, Any]:
        return {"mean": self.mean.clone()}

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        self.mean.copy_(state["mean"])


class Mean(Learner[Any, Any]):
    """The learner of docs/add_a_method.md; tests break one thing of it."""

    def __init__(self, io: Any, **broken: Any) -> None:
        self.asked = {"rows": 8, **broken.pop("needs", {})}
        super().__init__(self.asked, io)  # type: ignore[arg-type]
        self.policy, self.result, self.state = MeanPolicy(io), {"train/x": 1.0}, {}
        for name, value in broken.items():
            setattr(self, name, value)

    @classmethod
    def needs(cls, options: Any, io: Any) -> Needs:
        return Needs(**options)

    def update(self, batches: Any, /) -> Any:
        next(batches)
        return self.result

    def state_dict(self) -> dict[str, Any]:
        return {"policy": self.policy.state_dict(), **self.state}

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        self.policy.load_state_dict(state["policy"])


def make_env(num_envs: int, seed: int, render: bool) -> Any:
    world = importlib.import_module("robot_rl.sim.worlds.reach").Reach()
    return importlib.import_module("robot_rl.sim.mujoco_env").make(
        num_envs, seed, world=world, options=EngineOptions(num_threads=1)
    )


def job(folder: Path, **broken: Any) -> TrainJob:
    settings = TrainSettings(
        num_envs=2, total_steps=80, learning_starts=20, log_every=20, final_episodes=2, eval_envs=2, video_episodes=0
    )
    return TrainJob(
        settings,
        RunStart(folder, "", lambda place, step: files(place, resume_step=step, tensorboard=False)),
        make_env=make_env,
        make_learner=lambda io: Mean(io, **broken),  # type: ignore[arg-type,return-value]
    )


def test_the_unbroken_one_trains(tmp_path: Path) -> None:
    assert job(tmp_path).run()["steps"] == 80


@pytest.mark.parametrize(
    ("broken", "kind", "message"),
    [
        (
            {"needs": {"feeds": "transition"}},
            ValueError,
            r"a learner is fed 'transition', expected one of transitions, rollout",
        ),
        ({"needs": {"rows": None}}, ValueError, "Mean needs batches of None rows, expected a number"),
        ({"needs": {"rows": 0}}, ValueError, "Mean needs batches of 0 rows"),
        (
            {"state": {"rng": [random.Random(0)]}},
            TypeError,
            r"Mean.state_dict\(\)\['rng'\]\[0\] is a Random; checkpoints",
        ),
    ],
)
def test_refused_before_the_first_update(tmp_path: Path, broken: Any, kind: Any, message: str) -> None:
    with pytest.raises(kind, match=message):
        job(tmp_path, **broken)
    assert not (tmp_path / "checkpoints").exists()


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ({"result": None}, "Mean.update returned NoneType, expected a dict of metrics"),
        ({"result": {"train/x": torch.ones(())}}, "metric train/x is a Tensor, expected a number"),
    ],
)
def test_refused_in_the_call(tmp_path: Path, broken: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        job(tmp_path, **broken).run()


def test_policy_without_declared_parts_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(MeanPolicy, "parts")
    with pytest.raises(TypeError, match=r"Mean.policy is a MeanPolicy, and no policy: .*PolicyParts\(\)"):
        job(tmp_path)


def test_policy_that_answers_with_an_array_is_named(tmp_path: Path) -> None:
    made = job(tmp_path)
    made.learner.policy.act = lambda obs, *, deterministic=False: np.zeros((2, 3))  # type: ignore[method-assign]
    with pytest.raises(TypeError, match=r"MeanPolicy.act returned ndarray, expected robot_rl.types.Action"):
        made.run()


def test_metric_that_is_lost_is_told_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job(tmp_path, result={"train/x": float("nan")}).run()
    assert capsys.readouterr().err.count("WARNING: train/x is nan at step 2") == 1


def test_numpy_numbers_are_metrics(tmp_path: Path) -> None:
    log = Jsonl(tmp_path)
    log.log({"a": np.float64(1.0)}, 1)  # type: ignore[dict-item]
    log.close()


def test_bar_follows_a_loop_that_does_not_report(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("robot_rl.live_bar.FILE_EVERY_S", 0.01)
    done = [0]
    with LiveBar(100, 0, "step", lambda: done[0]) as bar:
        done[0] = 40
        for _ in range(500):
            if bar._bar.n == 40:
                break
            bar._over.wait(0.01)
        assert bar._bar.n == 40
        bar.to(30)  # never back
        assert bar._bar.n == 40


def test_check_learner_takes_ours(tmp_path: Path) -> None:
    io = make_env(1, 0, False).io
    for name in ("online/sac", "online/ppo", "offline/iql", "sequence/qc"):
        check_learner(build.make("policy", {"name": name}, io, seed=0, device="cpu", gamma=0.99))


def test_damaged_and_foreign_files_are_told_without_advice_to_trust_them(tmp_path: Path) -> None:
    torch.save({"rng": random.Random(0)}, tmp_path / "learner.pt")
    with pytest.raises(checkpoint.CheckpointError, match="it holds other objects") as info:
        checkpoint.load_state(tmp_path / "learner.pt")
    assert "trust" not in str(info.value)


@pytest.mark.parametrize("settings", [TrainSettings, OfflineSettings])
@pytest.mark.parametrize("name", ["eval_episodes", "final_episodes", "eval_envs"])
def test_a_run_that_could_not_be_evaluated_at_its_end_is_refused_before_it_begins(settings: Any, name: str) -> None:
    options: dict[str, Any] = {"data": "log.hdf5"} if settings is OfflineSettings else {"total_steps": 1}
    options[name] = 0
    with pytest.raises(Refused, match=f"^{name} is 0, expected a whole number of at least 1"):
        build.check(settings, options, "", "the run")
