"""Chunk policies through the jobs: windows out of logs, and who may not judge them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from robot_rl import checkpoint
from robot_rl.data.store import write_store
from robot_rl.policies.sequence.qc_fql import QcFql, QcFqlOptions
from robot_rl.types import Episode, IOSpec, Needs
from robot_rl.verbs import logs, ope
from robot_rl.verbs.logs import LogSettings

IO = IOSpec({"state": ((2,), "float32")}, ("a0",), (-1.0,), (1.0,), ("1",), 10.0)


def store_of(folder: Path) -> Any:
    def episode(seed: int) -> Episode:
        rng = np.random.default_rng(seed)
        action = rng.uniform(-1, 1, (7, 1)).astype(np.float32)
        return Episode(
            {"state": rng.normal(size=(8, 2)).astype(np.float32)}, action, action, np.eye(7, dtype=np.float32)[-1],
            True, False, np.zeros(7, bool), np.arange(8.0),
        )  # fmt: skip

    return write_store(folder / "log.store", [episode(i) for i in range(5)], io=IO)


def test_log_gives_windows_to_a_learner_of_chunks(tmp_path: Path) -> None:
    learner = QcFql(QcFqlOptions(hidden=(16,), batch_size=16, flow_steps=2, metrics_every=1), IO)
    data, _ = logs.sampler(store_of(tmp_path), LogSettings(data="x"), seed=0, need=Needs(window=learner.need.window))
    learner.prepare(logs.facts(data))
    batches = data.batches(16)
    metrics = [learner.update(batches) for _ in range(5)][-1]
    assert np.isfinite(metrics["train/q"])
    shares = [float((~next(batches).mask[:, -1]).float().mean()) for _ in range(40)]
    assert np.mean(shares) == pytest.approx(4 / 7, abs=0.1)  # of 7 starts, 4 have fewer than 5 steps to the end


def test_estimators_from_logs_refuse_a_chunk_policy(tmp_path: Path) -> None:
    learner = QcFql(QcFqlOptions(hidden=(16,), batch_size=16, flow_steps=2), IO)
    none: Any = None
    settings = ope.OpeSettings(data=str(store_of(tmp_path).path))
    with pytest.raises(ValueError, match="plays chunks"):
        ope.run(settings, learner.policy, IO, ope.Judges(none, none))


def test_rl100_goes_from_a_log_to_the_task_and_its_student_is_evaluated(tmp_path: Path, robot_rl: Any) -> None:
    """Three stages on the command line: batches of a log first, rollouts after `init=`, then the student."""
    quiet = ["video_episodes=0", "track.tensorboard=false", "eval_every=0", "final_episodes=2"]
    world = ["env=reach", "env.world.seconds=1", "env.world.reward=sparse", "env.world.terminate_on_success=true"]
    done = robot_rl("collect", *world, "episodes=6", "out=log.hdf5")
    assert done.returncode == 0, done.stderr
    small = ["policy.hidden=[16,16]", "policy.judge_hidden=[16,16]", "policy.members=2", "policy.batch_size=16"]
    stages = ["policy.clone_updates=10", "policy.judge_updates=5", "policy.gate_every=5", "policy.distill_from=2"]
    offline = ["data=log.hdf5", *world, "policy=sequence/rl100", *small, *stages, "updates=25", "estimate=0", "name=a"]
    done = robot_rl("offline", *offline, *quiet)
    assert done.returncode == 0, done.stderr
    run = next(tmp_path.glob("runs/offline/*_a"))
    saved = checkpoint.load_state(checkpoint.find(run) / "learner.pt")
    assert int(saved["memory"]["counts"].sum()) == 2  # two visits at the gate
    online = [*world, f"init={run}", "num_envs=2", "total_steps=512", "name=b"]
    done = robot_rl("train", *online, *quiet)
    assert done.returncode == 0, done.stderr
    tuned = next(tmp_path.glob("runs/train/*_b"))
    after = checkpoint.load_state(checkpoint.find(tuned) / "learner.pt")
    assert int(after["memory"]["counts"][2]) == 2  # rollouts of 128 steps in two environments
    shown = robot_rl("eval", f"path={tuned}", "episodes=2", "student=true", "video_episodes=0")
    assert shown.returncode == 0, shown.stderr
