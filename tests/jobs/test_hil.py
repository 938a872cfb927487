"""robot-rl hil as its user runs it: folder, numbers, resume."""

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
from hydra import compose, initialize_config_module
from hydra.core.global_hydra import GlobalHydra
from omegaconf import OmegaConf

import robot_rl as rr
from robot_rl import build, checkpoint, cli
from robot_rl.human.judge import Judge
from robot_rl.human.log import read_manifest
from robot_rl.human.stats import Trials
from robot_rl.loops.evaluate import FilmCamera
from robot_rl.run import RunStart
from robot_rl.verbs import hil_job
from robot_rl.verbs.build import settings_of
from robot_rl.verbs.hil_eval import evaluate_as_run, unknown_success
from robot_rl.verbs.hil_job import HilJob, HilMakers, HilSettings
from robot_rl.verbs.reading import ends_at_success, plain, stored_config

TINY = [
    "env=insert",
    "human=scripted",
    "demos=2",
    "total_steps=120",
    "learning_starts=40",
    "updates_per_step=0.5",
    "policy.hidden=[16,16]",
    "policy.batch_size=16",
    "policy.bc_steps=20",
    "policy.critics=2",
    "policy.utd=1",
    "eval_every=60",
    "eval_episodes=1",
    "final_episodes=1",
    "checkpoint_every=60",
    "track.tensorboard=false",
    "name=tiny",
]


def make(folder: Path, *overrides: str, resume: bool = False) -> HilJob:
    """The job as the command line builds it."""
    with initialize_config_module("robot_rl.configs", version_base="1.3"):
        cfg = compose("hil", overrides=[*TINY, *overrides])

    def make_pilot(env: Any, with_person: bool) -> Any:
        human = None
        if with_person:
            human = build.make("human", plain(cfg.human), io=env.io, expert=env.expert, seed=cfg.seed)
        return build.make("pilot", plain(cfg.pilot), env=env, human=human)

    return HilJob(
        settings_of(HilSettings, cfg),
        RunStart(
            folder,
            OmegaConf.to_yaml(cfg, resolve=True),
            lambda place, step: build.make("track", plain(cfg.track), place, resume_step=step),
            resume,
        ),
        HilMakers(
            lambda n, seed, render: build.make("engine", plain(cfg.env), num_envs=n, seed=seed, device="cpu"),
            lambda io: build.make("policy", plain(cfg.policy), io, seed=cfg.seed, device="cpu", gamma=cfg.gamma),
            make_pilot,
        ),
    )


def test_hil_runs_reports_and_continues(tmp_path, robot_rl, monkeypatch):
    run = tmp_path / "run"
    summary = make(run).run()
    for name in ("report.html", "curve.png", "metrics.jsonl", "evaluation.json", "log/manifest.jsonl", "config.yaml"):
        assert (run / name).exists(), name
    assert ends_at_success(stored_config(run))  # so `eval` judges it as its trials did
    told = json.loads((run / "evaluation.json").read_text())
    again = rr.evaluate(run, episodes=len(told["successes"]))
    assert (again.successes, again.lengths) == (told["successes"], told["lengths"])
    done = robot_rl("eval", "compare", f"path=[{run},{run}/]", "episodes=1", f"output={tmp_path}")
    assert done.returncode == 0, done.stderr
    (path,) = tmp_path.glob("compare/*/compare.json")
    assert json.loads(path.read_text())[str(run)]["returns"] == again.returns[:1]
    env = build.make("engine", plain(stored_config(run).env), num_envs=1, seed=0, device="cpu")
    monkeypatch.setattr(env, "render", lambda: np.zeros((1, 8, 8, 3), np.uint8))  # what is drawn does not matter here
    film = FilmCamera(env, 1000.0)
    filmed = evaluate_as_run(stored_config(run), env, rr.load(run, env=env), episodes=1, seed=10_000, film=film)
    assert (filmed.returns, len(film.frames)) == (again.returns[:1], again.lengths[0])
    env.close()
    lines = read_manifest(run / "log")
    assert sum(line["demo"] for line in lines) == 2
    steps = sum(line["steps"] for line in lines if not line["demo"])
    assert json.loads((run / "evaluation.json").read_text())["steps"] == summary["steps"] == steps >= 120
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    episode = next(row for row in rows if "hil/human_steps" in row)
    for name in ("rollout/intervention_rate", "rollout/autonomous_low", "hil/human_seconds", "rollout/tick_ms_p99"):
        assert name in episode, name
    make(run, "total_steps=160", resume=True).run()
    assert len(read_manifest(run / "log")) > len(lines)

    # the newest checkpoint is damaged: the one before serves, and what was driven since then is kept
    newest = sorted((run / "checkpoints").glob("step_*"))[-1]
    (newest / "learner.pt").write_bytes(b"torn")
    before = read_manifest(run / "log")
    job = make(run, "total_steps=180", resume=True)
    assert job.loop.env_steps == sum(line["steps"] for line in before if not line["demo"])
    job.run()
    assert read_manifest(run / "log")[: len(before)] == before


def test_a_session_that_goes_on_before_its_first_update_does_not_clone_again(tmp_path):
    short = "total_steps=20", "learning_starts=500", "eval_every=0", "checkpoint_every=0"
    first = make(tmp_path / "run", *short)
    first.run()
    assert first.loop.updates == 0
    job = make(tmp_path / "run", *short, resume=True)
    job.run()
    assert torch.equal(job.learner.policy.state_dict()["actor"], first.learner.policy.state_dict()["actor"])


@pytest.mark.timeout(600)
def test_killed_run_loses_nothing_that_was_reported(tmp_path, robot_rl):
    root = Path(__file__).resolve().parents[2]
    env = {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "robot_rl", "hil", *TINY[:3], "total_steps=100000", *TINY[4:]]
    process = subprocess.Popen(
        command, cwd=tmp_path, env=env, stderr=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    run = tmp_path / process.stdout.readline().split(": ")[1].strip()
    manifest = run / "log" / "manifest.jsonl"
    end = time.monotonic() + 300
    while time.monotonic() < end and not (manifest.exists() and len(read_manifest(run / "log")) >= 6):
        time.sleep(0.1)
    process.send_signal(signal.SIGKILL)
    process.wait()
    before = read_manifest(run / "log")
    assert len(before) >= 6
    saved: Any = OmegaConf.load(run / "config.yaml")  # as a version without these keys would have left it
    for key in ("role", "link", "judge", "elicit", "advise", "compatibility"):
        saved.pop(key)
    (run / "config.yaml").write_text(OmegaConf.to_yaml(saved))
    resumed = robot_rl("hil", f"resume={run}", "total_steps=200")
    assert resumed.returncode == 0, resumed.stderr
    after = read_manifest(run / "log")
    assert after[: len(before)] == before
    keys = [line["episode_id"] for line in after]
    assert keys == sorted(set(keys))


@pytest.mark.timeout(600)
def test_hil_refuses_a_world_without_an_expert(robot_rl):
    out = robot_rl("hil", "env=gym", "id=Pendulum-v1", "demos=0")
    assert out.returncode == 2
    assert "scripted expert" in out.stderr
    assert "Traceback" not in out.stderr


def test_the_last_trials_are_of_the_best_policy_from_starts_of_their_own(tmp_path, monkeypatch):
    """Blocks in mid-run give 0.5 and then 0.0, and so does the newest policy: the first one comes back, gives 1.0 in
    the last trials, and stays what it was, with its own step."""
    blocks: list[tuple[int, torch.Tensor]] = []

    def fake_trials(env: Any, policy: Any, pilot: Any, *, seed: int, **_: Any) -> Trials:
        blocks.append((seed, policy.state_dict()["actor"].clone()))
        won = [True] if seed == 10_000 else [len(blocks) == 1, False]
        return Trials(successes=won, steps=[5] * len(won))

    monkeypatch.setattr(hil_job, "trials", fake_trials)
    run = tmp_path / "run"
    summary = make(run).run()
    seeds, weights = [seed for seed, _ in blocks], [actor for _, actor in blocks]
    assert seeds[-1] == 10_000
    assert set(seeds[:-1]) == {20_000}  # what is chosen by is not what is reported
    assert torch.equal(weights[-1], weights[0])
    assert not torch.equal(weights[-2], weights[0])
    assert "best" in summary["policy"]
    assert checkpoint.find(run) == run / "checkpoints" / "best"  # what deploy, eval and export take
    newest = checkpoint.read_meta(checkpoint.complete(run / "checkpoints")[-1])
    best = checkpoint.read_meta(checkpoint.find(run))
    assert best["step"] < newest["step"]
    assert best["rank"] == [0.5]
    assert torch.equal(checkpoint.load_state(run / "checkpoints" / "best" / "policy.pt")["actor"], weights[0])


def test_a_block_that_is_cut_short_chooses_no_policy(tmp_path, monkeypatch):
    job, driven = make(tmp_path / "run"), []

    def fake_trials(*_: Any, **__: Any) -> Trials:
        if driven:
            job.stop()  # a Ctrl-C in the block that chooses
        return Trials() if driven else Trials(successes=[True], steps=[5])

    monkeypatch.setattr(hil_job, "trials", fake_trials)
    monkeypatch.setattr(job, "_settle", lambda: driven.append(True))
    with pytest.raises(KeyboardInterrupt):
        job.run()
    assert checkpoint.find(job.folder) == checkpoint.complete(job.folder / "checkpoints")[-1]


def test_what_a_person_called_success_is_unknown_to_an_evaluation_unless_a_judge_knows(tmp_path, monkeypatch, capsys):
    run = tmp_path / "run"
    make(run, "task_reward=labels", "demos=0", "demo_share=0", "total_steps=30", "env.world.seconds=2").run()
    capsys.readouterr()
    line = ["robot-rl", "eval", f"path={run}", "episodes=2", "video_episodes=0", f"output={tmp_path}"]
    monkeypatch.setattr("sys.argv", line)
    GlobalHydra.instance().clear()
    cli.main()
    told = " ".join(capsys.readouterr().out.split())
    assert "0/2" not in told
    assert "a person said what a success is" in told
    assert f"robot-rl hil resume={run})" in told
    written = json.loads(next((tmp_path / "eval").rglob("evaluation.json")).read_text())
    assert "success" not in written
    assert written["successes"] == []
    config = stored_config(run)
    env = build.make("engine", plain(config.env), num_envs=1, seed=0, device="cpu")
    judge = Judge(lambda obs: np.ones(1), 0.5, in_a_row=3)
    found = evaluate_as_run(config, env, rr.load(run, env=env), judge=judge, episodes=2, seed=0)
    assert found.successes == [True, True]
    assert found.lengths == [3, 3]
    assert not unknown_success(config, str(run), found)


def test_a_checkpoint_that_a_full_disk_refuses_is_told_and_tried_again(tmp_path, capsys):
    run = tmp_path / "run"
    job = make(run, "checkpoint_every=10", "eval_every=0", "keep_checkpoints=2", "env.world.seconds=2")
    disk, tick, seen = run / "checkpoints", job._tick, []
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(disk)], capture_output=True).returncode:
        pytest.skip("mounting a tmpfs needs root")
    try:

        def between(step: int, metrics: Any) -> bool:
            over = tick(step, metrics)
            whole = checkpoint.complete(disk)
            seen.append((len(whole), job.loop.problem))
            if len(seen) == 1:  # the first is written; from now on there is no room
                free = os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize
                (disk / "filler").write_bytes(b"0" * (free - 8192))
            elif "free some space" in job.loop.problem and len(seen) > 3:
                for path in whole[-1].glob("*.pt"):
                    checkpoint.load_state(path)
                (disk / "filler").unlink(missing_ok=True)
            return over

        job._tick = between
        job.run()
        assert seen[0] == (1, "")
        troubled = [problem for _, problem in seen if problem]
        assert troubled
        assert all("no checkpoint could be written" in problem for problem in troubled)
        assert seen[-1] == (2, "")  # written as soon as there was room
        told = capsys.readouterr().err
        assert told.count("free space there") == 1
        assert "could not be written is there now" in told
    finally:
        subprocess.run(["umount", str(disk)], check=True)
