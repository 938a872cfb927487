"""robot-rl hil role=actor and role=learner: two processes that are killed, and two networks."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("zenoh", reason="needs Zenoh (extra `link`)")
from robot_rl.data.hil_episode import to_steps
from robot_rl.data.hil_record import Source
from robot_rl.data.hil_words import episode_key
from robot_rl.data.recorder import Recording

ROOT = Path(__file__).resolve().parents[2]
SMALL = [
    "env=insert",
    "demos=2",
    "learning_starts=20",
    "updates_per_step=1",
    "policy.hidden=[16,16]",
    "policy.batch_size=16",
    "policy.bc_steps=30",
    "policy.critics=2",
    "policy.utd=1",
    "eval_every=0",
    "final_episodes=2",
    "checkpoint_every=40",
    "track.tensorboard=false",
    "link.patience_s=60",
    "link.lost_s=2",
]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


class Run:
    """A robot-rl process whose output is read as it comes."""

    def __init__(self, folder: Path, *arguments: str, prefix: tuple[str, ...] = ()):
        env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        command = [*prefix, sys.executable, "-m", "robot_rl", "hil", *arguments]
        self.log = (folder / f"out{time.monotonic_ns()}.txt").open("w+")
        self.process = subprocess.Popen(command, cwd=folder, env=env, stdout=self.log, stderr=subprocess.STDOUT)

    def text(self) -> str:
        self.log.flush()
        return Path(self.log.name).read_text()

    def folder(self, root: Path) -> Path:
        assert wait(lambda: "run folder: " in self.text(), 90, self), self.text()
        return root / self.text().split("run folder: ")[1].splitlines()[0].strip()

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def done(self, seconds: float = 150) -> str:
        self.process.wait(seconds)
        assert self.process.returncode == 0, self.text()
        return self.text()


def wait(condition, seconds: float, *alive: Run) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        assert all(run.process.poll() is None for run in alive), [run.text() for run in alive]
        time.sleep(0.1)
    return False


def recorded(folder: Path) -> dict[tuple[int, int], np.ndarray]:
    """(episode, step) -> observation, of an actor's log."""
    out: dict[tuple[int, int], np.ndarray] = {}
    if list(folder.glob("segment-*.episodes")):
        for episode in Recording(folder):
            number = episode_key(episode.meta).episode_id
            for i, step in enumerate(to_steps(episode)):
                assert (number, i) not in out
                out[number, i] = np.array(step.obs["state"])
    return out


def received(folder: Path) -> dict[tuple[int, int], np.ndarray]:
    """The same of a learner's copy."""
    out: dict[tuple[int, int], np.ndarray] = {}
    if list(folder.glob("segment-*.episodes")):
        for episode in Recording(folder):
            piece = episode.meta["piece"]
            for i, step in enumerate(to_steps(episode)):
                assert (piece["episode"], piece["first"] + i) not in out
                out[piece["episode"], piece["first"] + i] = np.array(step.obs["state"])
    return out


@pytest.mark.timeout(400)
def test_actor_and_learner_are_killed_in_mid_run_and_nothing_is_lost_or_doubled(tmp_path):
    both = [*SMALL, f"link.endpoint=tcp/127.0.0.1:{free_port()}", "total_steps=260", "link.speed=3"]
    learner = Run(tmp_path, "role=learner", "name=learner", *both)
    actor = Run(tmp_path, "role=actor", "name=actor", *both)
    a, b = actor.folder(tmp_path), learner.folder(tmp_path)
    assert wait(lambda: len(received(b / "rows")) > 120, 120, actor, learner), actor.text() + learner.text()
    learner.kill()
    before = len(recorded(a / "log"))
    assert wait(lambda: len(recorded(a / "log")) > before, 60, actor)  # the actor goes on alone
    actor.kill()
    learner = Run(tmp_path, f"resume={b}")
    actor = Run(tmp_path, f"resume={a}")
    actor.done()
    learner.done()
    sent, got = recorded(a / "log"), received(b / "rows")
    assert sent.keys() == got.keys()
    assert all(np.array_equal(sent[key], got[key]) for key in sent)
    summary = json.loads((b / "evaluation.json").read_text())
    lines = [json.loads(line) for line in (a / "log" / "manifest.jsonl").read_text().splitlines()]
    own = sum(line["steps"] for line in lines if not line["demo"])
    assert summary["rows"] == own >= 260
    assert summary["updates"] == pytest.approx(own, abs=45)  # one per step after learning_starts, however often killed
    evaluation = json.loads((a / "evaluation.json").read_text())
    assert evaluation["weights"] == f"version {summary['updates'] + 1}"
    assert evaluation["rows_confirmed"] == "all"
    steps = [step for episode in Recording(a / "log") for step in to_steps(episode)]
    versions = [step.policy_version for step in steps if step.source == Source.POLICY]
    assert max(versions) > 20  # weights went back while the robot drove
    assert all(step.policy_lag_ms >= 0.0 for step in steps)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_actor_without_a_learner_drives_if_it_was_told_to_records_and_says_so(tmp_path):
    out = Run(
        tmp_path,
        "role=actor",
        "name=actor",
        *SMALL,
        "total_steps=40",
        "link.speed=50",
        "link.patience_s=1",
        "link.drive_untrained=true",
        f"link.endpoint=tcp/127.0.0.1:{free_port()}",
    ).done()
    assert "no weights from a learner" in out
    assert "rows_confirmed       not all" in out
    (folder,) = (tmp_path / "runs" / "hil").glob("*_actor")
    assert len(recorded(folder / "log")) >= 40


def _networks() -> str:
    """Why two network namespaces cannot be had, or ""."""
    if shutil.which("ip") is None or shutil.which("unshare") is None:
        return "needs ip (iproute2) and unshare (util-linux)"
    script = "ip link add a0 type veth peer name b0 && ip netns list >/dev/null"
    out = subprocess.run(["unshare", "-rn", "sh", "-c", script], capture_output=True, text=True)
    return "" if out.returncode == 0 else f"this process may not create network namespaces: {out.stderr.strip()[:80]}"


NETWORKS = """
set -e
ip link set lo up
unshare -n sleep 400 & inner=$!
sleep 0.5
ip link add a0 type veth peer name b0
ip link set b0 netns $inner
ip addr add 10.77.0.1/24 dev a0; ip link set a0 up
nsenter -t $inner -n sh -c 'ip link set lo up; ip addr add 10.77.0.2/24 dev b0; ip link set b0 up'
("$@" role=learner name=learner; echo "learner $?") > learner.txt 2>&1 &
learner=$!
set +e
nsenter -t $inner -n "$@" role=actor name=actor > actor.txt 2>&1
echo "actor $?"
wait $learner
kill $inner
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_actor_and_learner_in_two_networks(tmp_path):
    reason = _networks()
    if reason:
        pytest.skip(reason)
    (tmp_path / "zenoh.json5").write_text("{}")
    words = [sys.executable, "-m", "robot_rl", "hil", *SMALL, "total_steps=60", "link.speed=20"]
    words += ["link.endpoint=tcp/10.77.0.1:7447", f"link.config={tmp_path / 'zenoh.json5'}"]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    out = subprocess.run(
        ["unshare", "-rn", "sh", "-c", NETWORKS, "sh", *words],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        timeout=240,
    )
    texts = [(tmp_path / name).read_text() for name in ("actor.txt", "learner.txt")]
    assert "actor 0" in out.stdout, (out, texts)
    assert "learner 0" in texts[1], texts
    folders = {path.name.split("_")[-1]: path for path in (tmp_path / "runs" / "hil").iterdir()}
    assert recorded(folders["actor"] / "log").keys() == received(folders["learner"] / "rows").keys()
    assert json.loads((folders["actor"] / "evaluation.json").read_text())["rows_confirmed"] == "all"
