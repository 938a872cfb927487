"""The command line on a device that is none: what is trained there goes on, is evaluated and is estimated there."""

from __future__ import annotations

import contextlib
import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from robot_rl import cli
from robot_rl.verbs.train_job import TrainJob

sys.path.insert(0, str(Path(__file__).parent))
import pretend_device
from clean_process import CleanProcess

if why := pretend_device.missing():
    pytest.skip(why, allow_module_level=True)

ON = ("device=pretend", "debug=true")
RUN = ("final_episodes=1", "track.tensorboard=false", *ON)
SMALL = ("policy.hidden=[8]", "policy.batch_size=8")
TRAIN = ("train", "env=pendulum", "num_envs=2", "video_episodes=0", *RUN)


def say(*words: str) -> str:
    """What `robot-rl` answers, which has to succeed."""
    sys.argv, out, err = ["robot-rl", *words, "--json"], io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            cli.main()
        except SystemExit as end:
            if end.code:
                raise AssertionError(f"robot-rl {' '.join(words)}\n{err.getvalue()}\n{out.getvalue()}") from end
    return out.getvalue()


def run(folder: Path, *words: str) -> str:
    """The run folder that a verb wrote below `folder`."""
    say(*words, f"output={folder}")
    (found,) = (folder / words[0]).iterdir()
    return str(found)


def log_and_evaluations(folder: Path) -> None:
    sac = run(folder / "sac", *TRAIN, "policy=online/sac", "total_steps=60", "learning_starts=20", *SMALL)
    kept = ("policy=offline/iql", *SMALL, "updates=10", "video_episodes=0", *RUN)
    iql = run(folder / "iql", "offline", f"data={sac}", "env=pendulum", *kept)
    say("offline", f"resume={iql}", "updates=20", "debug=true")
    for path in (sac, iql):
        answers = []
        for device in ("pretend", "cpu"):
            words = ("episodes=1", "video_episodes=0", f"device={device}", f"output={folder}", "debug=true")
            answers.append(json.loads(say("eval", f"path={path}", *words)))
        assert answers[0]["returns"] == pytest.approx(answers[1]["returns"], rel=1e-3)
    few = ("updates=10", "model_updates=5", "behaviour_updates=5", "resamples=10", "ope.hidden=[8]", *ON)
    every = "methods=[fqe,mb,is,wis,pdis,wpdis,dr,wdr]"
    say("eval", "ope", f"path={iql}", f"data={sac}", every, *few, f"output={folder}")
    say("eval", "ope", f"path={iql}", f"data={sac}", "methods=[dr]", "smooth=0.1", *few, f"output={folder}")
    say("collect", "env=pendulum", f"path={iql}", "episodes=1", f"out={folder / 'log'}", *ON)
    run(folder / "init", *TRAIN, f"init={iql}", "total_steps=40", "learning_starts=10")


def resumed(folder: Path) -> None:
    """A run goes on on its own device: it went on on the CPU, without a word."""
    short = ("policy.rollout_steps=16", "policy.minibatch=16", "policy.hidden=[8]")
    ppo = run(folder / "ppo", *TRAIN, "policy=online/ppo", "total_steps=64", *short)
    fast = ("policy=online/fast_sac", "policy.actor_hidden=[8]", "policy.critic_hidden=[8]", "policy.batch_size=8")
    sac = run(folder / "sac", *TRAIN, *fast, "total_steps=64", "learning_starts=20")
    places: list[str] = []
    job = TrainJob.run

    def noted(self: TrainJob, *args: Any) -> dict[str, object]:
        places.append(str(self.learner.device))
        return job(self, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TrainJob, "run", noted)
        for path in (ppo, sac):
            say("train", f"resume={path}", "total_steps=96", "debug=true")
    assert places == ["pretend", "pretend"]


def stages(folder: Path) -> None:
    """A method that begins on a log, is stopped in its second stage, and goes on in the world."""
    say("collect", "env=reach", "episodes=3", f"out={folder / 'log'}", "debug=true")
    few = ("policy.clone_updates=2", "policy.judge_updates=2", "policy.gate_every=2", "policy.judge_hidden=[8]", *SMALL)
    words = (f"data={folder / 'log'}", "env=reach", "policy=sequence/rl100", "updates=6", "video_episodes=0", *few)
    path = run(folder / "rl100", "offline", *words, *RUN)
    say("offline", f"resume={path}", "updates=8", "debug=true")
    rollout = ("policy.rollout_steps=20", "policy.epochs=1", "policy.minibatch=8")
    more = ("policy=sequence/rl100", "total_steps=120", "num_envs=2", "video_episodes=0", *rollout, *RUN)
    run(folder / "world", "train", "env=reach", f"init={path}", *more)


def person(folder: Path) -> None:
    """A session with a person, resumed and tried again."""
    few = ("demos=2", "total_steps=40", "learning_starts=10", "policy.bc_steps=5", "env.world.seconds=3", *SMALL)
    hil = run(folder / "hil", "hil", "env=reach", "human=scripted", *few, *RUN)
    say("hil", f"resume={hil}", "total_steps=60", "debug=true")
    say("eval", f"path={hil}", "episodes=1", "video_episodes=0", f"output={folder}", *ON)


VERBS = ("log_and_evaluations", "resumed", "stages", "person")


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name == "person")) for name in VERBS])
def test_verbs_on_a_device(name: str, tmp_path: Path, clean: CleanProcess) -> None:
    assert not clean.run("verb", name, tmp_path)
