"""The quickstart pages word for word: their commands run in their order, in a new folder with a space in its name."""
# pyright: reportOptionalMemberAccess=false, reportOptionalSubscript=false

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
from ros_harness import ROOT, Station, wait

from tests.jobs.test_pages import newest

ROBOTS = next((p for p in (up / "shared/data/robots" for up in Path(__file__).parents) if p.exists()), Path("absent"))
pytestmark = [
    pytest.mark.ros,
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not ROBOTS.exists(), reason="the folder shared/data/robots is absent"),
]


def commands(page):
    """Its lines, each as one command."""
    blocks = re.findall(r"```bash\n(.*?)```", (ROOT / "docs/howto" / page).read_text(), re.DOTALL)
    return [line for block in blocks for line in block.splitlines() if line]


class Reader:
    """Somebody at two terminals: a deployment goes on while the next lines are tried in the second one."""

    def __init__(self, folder):
        self.folder, self.graph, self.said = folder, None, {}

    def start(self, line, **more):
        words = [newest(word, self.folder) for word in shlex.split(line)]
        assert words[0] == "robot-rl"
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        return subprocess.Popen(
            [sys.executable, "-m", "robot_rl", *words[1:]], cwd=self.folder, env=env, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **more,
        )  # fmt: skip

    def run(self, line):
        done = self.start(line)
        out, _ = done.communicate(timeout=1200)
        assert done.returncode == 0, f"{line}\n{out[-3000:]}"
        return out

    def deploy(self, line):
        self.log = open(self.folder / "deployment", "w+")  # noqa: SIM115  # closed with the process
        words = [newest(word, self.folder) for word in shlex.split(line)]
        self.graph = subprocess.Popen(
            [sys.executable, "-m", "robot_rl", *words[1:]], cwd=self.folder, stdout=self.log, stderr=self.log,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip

    def interrupt(self):
        """Ctrl-C."""
        if self.graph is not None:
            self.graph.send_signal(signal.SIGINT)
            assert self.graph.wait(20.0) == 0, (self.folder / "deployment").read_text()[-3000:]
            self.graph = None
            self.log.close()

    def close(self):
        if self.graph is not None:
            self.graph.kill()


@pytest.fixture
def reader(tmp_path):
    folder = tmp_path / "a new folder"
    for robot in ("fr3", "go2"):
        shutil.copytree(ROBOTS / robot, folder / "my robots" / robot)
    made = Reader(folder)
    yield made
    made.close()


def test_an_arm_reaches_in_the_rehearsal_after_the_commands_of_its_page(reader):
    lines = commands("quickstart_arm.md")
    assert len(lines) <= 10
    station = None
    try:
        for line in lines:
            if " deploy " in line:
                reader.deploy(line)
                station = Station()
                station.wait_state("ACTIVE", limit=120.0)
                for _ in range(5):  # a target, and four others
                    wait(partial(any, station.success), 20.0, f"the target: {station.states}")
                    station.success.clear()
                    assert station.call("sim_robot/next_task").success
                continue
            if "data info" in line:
                reader.interrupt()
                wait((reader.folder / "runs/record/episode_000000.hdf5").is_file, 30.0, "the recording")
            out = reader.run(line)
            if " check " in line:
                assert "success 1.00" in out
            if " eval " in line:
                assert float(re.search(r"success +([\d.]+)", out)[1]) >= 0.9
            if " doctor " in line:
                assert "no problems found" in out
            if "data info" in line:
                assert float(re.search(r"return +([\d.]+)", out)[1]) > 100  # 100 steps a second
    finally:
        if station is not None:
            station.close()


def test_a_quadruped_walks_in_the_rehearsal_after_the_commands_of_its_page(reader):
    lines = commands("quickstart_legs.md")
    assert len(lines) <= 10
    moved = []
    for line in lines:
        if " deploy " in line:
            reader.deploy(line)
            continue
        out = reader.run(line)
        if " train " in line:
            (run,) = (reader.folder / "runs/train").iterdir()
            assert json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])["step"] >= 20_000
        if " eval " in line:
            assert float(re.search(r"success +([\d.]+)", out)[1]) >= 0.8
        if " steer " in line:
            asked, went = (
                [float(x) for x in re.findall(r"(-?[\d.]+) (?:m/s|rad/s|$)|turning (-?[\d.]+)", row)[0:1][0] if x]
                for row in re.findall(r"(?:asked|went) +(.*)", out)
            )
            assert went[0] == pytest.approx(asked[0], abs=0.12)
            moved.append(float(re.search(r"moved +([\d.]+) m", out)[1]))
            assert "ACTIVE" in out
    assert moved[0] > 3.5  # metres in 10 s
    reader.interrupt()


@pytest.mark.timeout(3600)
def test_the_shipped_walk_is_trained_again_by_what_its_card_says(reader):
    card = json.loads((ROOT / "policies/zoo/walk-go2/card.json").read_text())
    shutil.copytree(ROBOTS / "go2", reader.folder / "go2")
    begin = time.monotonic()
    for line in card["trained"].split("; "):
        reader.run(line)
    out = reader.run("robot-rl eval path=runs/train/<run> episodes=100 video_episodes=0")
    assert float(re.search(r"success +([\d.]+)", out)[1]) >= 0.95
    assert time.monotonic() - begin < 7200.0
