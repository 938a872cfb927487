"""A run that was interrupted, killed or broke is as good as one that was not."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from robot_rl import checkpoint
from robot_rl.data.buffer import ReplayBuffer
from robot_rl.track import read_metrics

ROOT = Path(__file__).resolve().parents[2]
CLI_TINY = [
    *("env=reach", "policy.hidden=[16,16]", "policy.batch_size=16", "num_envs=2", "learning_starts=60", "log_every=50"),
    *("eval_every=0", "final_episodes=2", "video_episodes=0", "track.tensorboard=false", "threads=1"),
]


def differing(a: Any, b: Any, path: str = "") -> list[str]:
    """Paths at which two nested states are not bitwise equal."""
    if isinstance(a, dict) and isinstance(b, dict):
        keys = sorted(a.keys() | b.keys(), key=str)
        return [p for k in keys for p in differing(a.get(k, "absent"), b.get(k, "absent"), f"{path}/{k}")]
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)) and len(a) == len(b):
        return [p for i, (x, y) in enumerate(zip(a, b)) for p in differing(x, y, f"{path}/{i}")]
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        same = a.dtype == b.dtype and torch.equal(a, b)
    elif isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        same = a.dtype == b.dtype and np.array_equal(a, b)
    else:
        same = type(a) is type(b) and a == b
    return [] if same else [path]


def states(run: Path) -> dict[str, Any]:
    """Everything in the newest checkpoint, the buffer as its content (how it is cut into files may differ)."""
    folder = checkpoint.find(run)
    out: dict[str, Any] = {path.name: checkpoint.load_state(path) for path in folder.glob("*.pt")}
    if (folder / "buffer").exists():
        settings = checkpoint.read_meta(folder)["settings"]
        extras = json.loads((folder / "buffer/meta.json").read_text())["extras"]
        buffer = ReplayBuffer(
            checkpoint.read_io(folder),
            settings["total_steps"] + settings["num_envs"],
            num_envs=settings["num_envs"],
            n_step=settings["n_step"],
            gamma=settings["gamma"],
            extras={name: tuple(shape) for name, shape in extras.items()},
        )
        buffer.load(folder / "buffer")
        out["buffer"] = buffer.state_dict()
    return out


def without_times(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if not name.startswith("time/")} for row in rows]


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        ["demos=2", "n_step=3"],
        ["policy=online/rlpd", "policy.hidden=[16,16]", "policy.batch_size=16", "policy.utd=2"],
        ["policy=online/ppo", "policy.rollout_steps=40", "policy.minibatch=20", "policy.epochs=2"],
        ["policy=online/her", "env.world.reward=sparse", "demos=2"],
        ["env=gym", "id=InvertedPendulum-v5"],
        ["env.randomize={mass: [0.9, 1.1], latency: [0.0, 0.05]}"],
    ],
    ids=["sac", "demos_nstep", "rlpd", "ppo", "her", "gym", "randomised"],
)
def test_train_interrupted_and_resumed_equals_uninterrupted(make_job, tmp_path: Path, overrides: list[str]) -> None:
    whole = make_job(tmp_path / "whole", *overrides)
    whole.run()

    first = make_job(tmp_path / "cut", *overrides)
    log = first.tracker.log

    def interrupt_at_120(metrics: dict[str, float], step: int) -> None:
        log(metrics, step)
        if step >= 120:
            os.kill(os.getpid(), signal.SIGINT)  # what Ctrl-C sends

    first.tracker.log = interrupt_at_120
    with pytest.raises(KeyboardInterrupt):
        first.run()
    second = make_job(tmp_path / "cut", *overrides, resume=True)
    assert 120 <= second.resume_step < 240
    second.run()

    assert not differing(states(tmp_path / "whole"), states(tmp_path / "cut"))
    rows = [without_times(read_metrics(tmp_path / name / "metrics.jsonl")) for name in ("whole", "cut")]
    assert rows[0] == rows[1]


@pytest.mark.parametrize(("steps", "told"), [(40, False), (200, True)])
def test_train_says_where_one_rollout_is_longer_than_the_run(make_job, tmp_path: Path, steps: int, told: bool) -> None:
    job = make_job(
        tmp_path / "run", "policy=online/ppo", f"policy.rollout_steps={steps}", "num_envs=2", "total_steps=300"
    )
    assert any(f"one rollout is {2 * steps} steps" in line for line in job._run.notes) == told


def test_train_asked_to_stop_does_so_after_the_step_and_not_at_the_next_row(make_job, tmp_path: Path) -> None:
    overrides = ["policy=online/sac", "log_every=100000", "checkpoint_every=0"]
    make_job(tmp_path / "whole", *overrides).run()
    first = make_job(tmp_path / "cut", *overrides)
    update = first.learner.update

    def asked(batches):
        if first.loop.updates == 50:
            os.kill(os.getpid(), signal.SIGTERM)
        return update(batches)

    first.learner.update = asked
    with pytest.raises(KeyboardInterrupt):
        first.run()
    second = make_job(tmp_path / "cut", *overrides, resume=True)
    assert second.resume_step < 240
    second.run()
    assert not differing(states(tmp_path / "whole"), states(tmp_path / "cut"))


def test_train_demonstrations_are_written_once_and_linked_by_later_checkpoints(make_job, tmp_path) -> None:
    periods = ["log_every=1000", "checkpoint_every=60", "eval_every=0", "keep_checkpoints=9"]
    make_job(tmp_path / "run", "demos=2", *periods, "total_steps=180").run()
    folders = checkpoint.complete(tmp_path / "run" / "checkpoints")
    assert len(folders) == 3
    rows = [sorted((folder / "demos").glob("*.npy")) for folder in folders]
    assert rows[0]
    assert len({tuple((path.name, path.stat().st_ino) for path in found) for found in rows}) == 1
    drawn = [np.load(folder / "demos" / "small.npz")["generator"] for folder in folders]
    assert not np.array_equal(drawn[0], drawn[1])  # where the sampling stands is each checkpoint's own
    assert checkpoint.load_state(folders[0] / "sampler.pt")["parts"] == {}


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        [
            *("policy=online/fast_sac", "policy.batch_size=16", "policy.actor_hidden=[8]", "policy.critic_hidden=[8]"),
            *("policy.updates=1", "updates_per_step=1"),
        ],
        ["policy=online/sb3", "+policy.learning_starts=20"],
    ],
    ids=["sac", "device", "sb3"],
)
def test_train_checkpoints_and_evaluations_come_when_they_are_asked_for(make_job, tmp_path, overrides) -> None:
    """Periods below log_every are kept; 30 is the first multiple of two copies' steps at or past 30, and so on."""
    periods = ["log_every=1000", "checkpoint_every=30", "eval_every=50", "keep_checkpoints=9"]
    make_job(tmp_path / "run", *overrides, *periods, "total_steps=120").run()
    folders = checkpoint.complete(tmp_path / "run" / "checkpoints")
    assert [int(folder.name[5:]) for folder in folders] == [30, 60, 90, 120]
    rows = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert [row["step"] for row in rows if "eval/return" in row] == [50, 100, 120]
    found = checkpoint.read_io(folders[-1]).seen
    assert found is not None
    assert found.count == 120
    assert all(-1.0 <= low <= high <= 1.0 for low, *_, high in found.action)


def test_train_leaves_curve_numbers_and_report(make_job, tmp_path: Path) -> None:
    summary = make_job(tmp_path / "run").run()
    for name in ("metrics.jsonl", "curve.png", "report.html", "evaluation.json", "config.yaml"):
        assert (tmp_path / "run" / name).stat().st_size > 0
    numbers = json.loads((tmp_path / "run" / "evaluation.json").read_text())
    assert numbers["steps"] == summary["steps"] == 240
    assert len(numbers["returns"]) == 2
    meta = checkpoint.read_meta(checkpoint.find(tmp_path / "run"))
    assert meta["step"] == 240
    assert meta["seed"] == 0


def test_train_film_is_written(make_job, tmp_path: Path) -> None:
    summary = make_job(tmp_path / "run", "video_episodes=1", "total_steps=80").run()
    if summary["video"].startswith("not made"):
        pytest.skip(summary["video"])
    assert Path(summary["video"]).read_bytes()[4:8] == b"ftyp"


def test_train_finished_run_goes_on_for_more_steps(make_job, tmp_path: Path) -> None:
    make_job(tmp_path / "run", "total_steps=120").run()
    longer = make_job(tmp_path / "run", "total_steps=240", resume=True)
    assert longer.resume_step == 120
    longer.run()
    assert read_metrics(tmp_path / "run" / "metrics.jsonl")[-1]["step"] == 240


def test_train_resume_into_another_world_lists_differences(make_job, tmp_path: Path) -> None:
    make_job(tmp_path / "run", "total_steps=80").run()
    with pytest.raises(checkpoint.CheckpointError, match=r"env\.world\.name=double_pendulum \(the run has reach\)"):
        make_job(tmp_path / "run", "env=double_pendulum", resume=True)


def test_train_killed_run_resumes_to_the_same_result(tmp_path: Path, robot_rl, make_job) -> None:
    """kill -9 in mid-run loses the time since the last checkpoint and nothing else."""
    command = [*CLI_TINY, "total_steps=1000", "checkpoint_every=50", "updates_per_step=0.25", "name=killed"]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, "-m", "robot_rl", "train", *command], cwd=tmp_path, env=env, stderr=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 120
    while not list(tmp_path.glob("runs/train/*/checkpoints/step_*")):
        assert process.poll() is None, "the run ended before its first checkpoint"
        assert time.monotonic() < deadline
        time.sleep(0.05)
    time.sleep(0.1)
    process.send_signal(signal.SIGKILL)
    process.wait()
    run = next(tmp_path.glob("runs/train/*_killed"))
    assert checkpoint.find(run)
    done = robot_rl("train", f"resume={run}")
    assert done.returncode == 0, done.stderr
    whole = robot_rl("train", *command[:-1], "name=whole")
    assert whole.returncode == 0, whole.stderr
    other = next(tmp_path.glob("runs/train/*_whole"))
    assert not differing(states(run), states(other))


def test_resume_takes_options_that_the_method_of_the_run_has_and_the_default_method_has_not(tmp_path, robot_rl) -> None:
    small = ("env=reach", "policy.hidden=[16]", "eval_every=0", "final_episodes=1", "video_episodes=0", "name=ppo")
    first = robot_rl("train", "policy=online/ppo", *small, "policy.rollout_steps=32", "total_steps=64")
    assert first.returncode == 0, first.stderr
    run = next(tmp_path.glob("runs/train/*_ppo"))
    wrong = robot_rl("train", f"resume={run}", "policy.epoch=3")
    assert wrong.returncode == 2
    assert "epochs" in wrong.stderr, wrong.stderr
    more = robot_rl("train", f"resume={run}", "total_steps=128", "policy.epochs=3")
    assert more.returncode == 0, more.stderr
    assert checkpoint.find(run).name == "step_000000128"


def test_train_ctrl_c_saves_and_says_how_to_resume(tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, "-m", "robot_rl", "train", *CLI_TINY, "total_steps=1000000", "name=stopped"],
        cwd=tmp_path,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 120
    while not list(tmp_path.glob("runs/train/*_stopped/metrics.jsonl")) and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    out, error = process.communicate(timeout=60)
    assert process.returncode == 130, error
    run = next(tmp_path.glob("runs/train/*_stopped"))
    assert f"robot-rl train resume={run.relative_to(tmp_path)}" in out
    assert checkpoint.find(run)
    assert "Traceback" not in error


def test_train_full_disk_is_one_paragraph_and_keeps_the_last_checkpoint(tmp_path: Path, robot_rl) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)], capture_output=True).returncode:
        pytest.skip("mounting a tmpfs needs root")
    try:
        done = robot_rl(
            "train",
            *CLI_TINY,
            "total_steps=20000",
            "updates_per_step=0.05",
            "checkpoint_every=200",
            "keep_checkpoints=1",
            f"output={disk}",
        )
        assert done.returncode == 1
        assert "free space there" in done.stderr
        assert "Traceback" not in done.stderr
        run = next(disk.glob("train/*"))
        for path in checkpoint.find(run).glob("*.pt"):
            checkpoint.load_state(path)
    finally:
        subprocess.run(["umount", str(disk)], check=True)


BROKEN_WORLD = """
import gymnasium, numpy as np

class Broken(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-9, 9, (3,), np.float32)
    action_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    count = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(3, np.float32), {}

    def step(self, action):
        Broken.count += 1
        value = np.nan if Broken.count == 150 else 0.5
        return np.array([0.5, value, 0.5], np.float32), 1.0, False, Broken.count % 20 == 0, {}

gymnasium.register("Broken-v0", Broken)
"""


def test_train_nan_from_the_environment_is_one_paragraph_and_loses_nothing(tmp_path: Path, robot_rl) -> None:
    (tmp_path / "broken_world.py").write_text(BROKEN_WORLD)
    overrides = [item for item in CLI_TINY if not item.startswith(("env=", "num_envs="))]
    command = ["train", "env=gym", "id=broken_world:Broken-v0", "num_envs=1", *overrides, f"output={tmp_path}"]
    done = robot_rl(*command, "total_steps=1000", "checkpoint_every=100", path=tmp_path)
    assert done.returncode == 1, done.stderr
    last = done.stderr.strip().splitlines()[-1]
    for part in ("environment 0", "nan", "component 1", "expected finite"):
        assert part in last, done.stderr
    assert "Traceback" not in done.stderr
    folder = checkpoint.find(next(tmp_path.glob("train/*")))
    assert folder.name == "step_000000100"
    for path in folder.glob("*.pt"):
        checkpoint.load_state(path)


def test_eval_in_another_world_is_refused_with_every_difference(make_job, tmp_path: Path, robot_rl) -> None:
    make_job(tmp_path / "run", "total_steps=80").run()
    fine = robot_rl("eval", f"path={tmp_path / 'run'}", "episodes=2", "video_episodes=0")
    assert fine.returncode == 0, fine.stderr
    assert "return" in fine.stdout
    refused = robot_rl("eval", f"path={tmp_path / 'run'}", "env=double_pendulum", "episodes=2", "video_episodes=0")
    assert refused.returncode == 2
    for part in ("do not fit", "'state'", "action", "Hz here"):
        assert part in refused.stderr
    assert "Traceback" not in refused.stderr


def test_errors_are_one_paragraph(tmp_path: Path, robot_rl) -> None:
    for arguments, expected in (
        (["fly"], "there is no verb 'fly'"),
        (["eval", "path=nowhere"], "no checkpoint at nowhere"),
        (["train", "resume=nowhere"], "holds no config.yaml"),
        (["bench", "nothing"], "there is no suite 'nothing'"),
        (["data", "info", "nowhere.hdf5"], "nowhere.hdf5"),
    ):
        done = robot_rl(*arguments)
        assert done.returncode != 0
        assert expected in done.stderr, done.stderr
        assert "Traceback" not in done.stderr


def test_help_is_shown_for_every_verb(robot_rl) -> None:
    for verb, words in (("train", "env=pick"), ("eval", "path=runs/train"), ("collect", "out="), ("bench", "suite")):
        done = robot_rl(verb, "--help")
        assert done.returncode == 0
        assert words in done.stdout
