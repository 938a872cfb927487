"""`robot-rl deploy … propose=true` as its user runs it: nothing moves, what is wrong is said, and who may drive."""
# pyright: reportOptionalMemberAccess=false, reportOptionalSubscript=false, reportArgumentType=false

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
from ros_harness import ROOT, Station, wait
from toy_policies import save_expert

from robot_rl import card, policy_card
from robot_rl.real.graph import find_file
from robot_rl.real.ros.doctor import examine
from tests.real.legs_world import G1, g1_card, needs_g1
from tests.real.shadow_starts import reach_of

pytestmark = [pytest.mark.ros, pytest.mark.timeout(280)]
JOINTS = ("waist", "shoulder", "elbow", "forearm_roll", "wrist_pitch", "wrist_roll")


class Proposing:
    """A deployment whose policy proposes, with --json, and who watches it."""

    def __init__(self, folder, *arguments):
        self.station, self.said, self.places = Station(), [], []
        env = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{Path(__file__).parent}"}
        words = ["deploy", f"policy_path={folder}", "trust=true", *arguments]
        words += [] if any(word.startswith("robot_spec=") for word in arguments) else ["robot_spec=desk_arm"]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "robot_rl", *words, f"flight={folder}/flight", "--json"],
            env=env,
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.reader = threading.Thread(target=lambda: self.said.extend(self.process.stderr), daemon=True)
        self.reader.start()

    def hears(self, words, limit=90.0):
        wait(lambda: any(words in line for line in list(self.said)), limit, f"{words!r} among {self.said}")

    def place(self):
        wait(lambda: self.station.joints, 90.0, "joint states")
        return np.array([self.station.joints[name] for name in JOINTS])

    def end(self):
        """Ctrl-C; exit status and document."""
        self.process.send_signal(signal.SIGINT)
        text = self.process.stdout.read()
        return self.process.wait(20.0), json.loads(text)

    def close(self):
        with contextlib.suppress(psutil.NoSuchProcess):
            for one in [*psutil.Process(self.process.pid).children(recursive=True), self.process]:
                one.kill()
        self.station.close()


@pytest.fixture
def run(tmp_path):
    """A run of the world's expert whose io.json tells what training saw."""
    save_expert(tmp_path)
    [path] = tmp_path.rglob("io.json")
    table = json.loads(path.read_text())
    path.write_text(json.dumps({**table, "seen": reach_of("desk_arm")[2].to_dict()}))
    return tmp_path


@pytest.fixture
def proposing(run):
    made = []

    def make(*arguments):
        made.append(Proposing(run, *arguments))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_a_healthy_arm_that_somebody_wiggles_comes_out_clean_and_its_policy_moves_nothing(proposing, run):
    made = proposing("world=reach", "propose=true")
    made.hears("shadow: not yet checked: scale, joint order, sign, velocity")
    before = made.place()
    time.sleep(2.0)
    assert np.abs(made.place() - before).max() < 1e-4
    assert made.station.executed == []
    wrong = made.station.set("sim_robot", inject__gaps='[{"name": "joint_sign", "joints": [9]}]')
    assert "the robot has 6 joints, numbered from 0" in wrong[0]
    nobody = made.station.node.get_publishers_info_by_topic("robot_rl/command/policy")
    assert {one.node_name for one in nobody} <= {"policy"}  # the station's own, which is called so
    assert len(nobody) == 1
    made.station.node.destroy_publisher(made.station.policy)  # else it is a stranger beside the wiggle
    found = examine(find_file("desk_arm"), listen=2.0, timing=False, wiggle=True)
    assert [line for line in found.problems if line.startswith("wiggle")] == [], found.problems
    made.hears("shadow: everything fits after", 60.0)
    assert "policy" not in made.station.authority
    status, told = made.end()
    assert status == 0
    assert (told["verb"], told["clean"], told["wrong"], told["open"], told["unknown"]) == ("deploy", True, [], [], [])
    assert {"scale", "joint order", "sign", "velocity", "delay", "range"} == set(told["fits"])
    assert told["moved_seconds"] > 5.0
    report = json.loads(Path(told["report"]).read_text())
    assert report == {key: value for key, value in told.items() if key not in ("verb", "report")}
    assert Path(told["report"]).parent == run / "flight"
    assert list((run / "flight").glob("*_policy.mcap"))  # beside its flight


def test_degrees_are_named_nothing_moves_and_the_leave_is_not_given(proposing, run, tmp_path):
    params = tmp_path / "degrees.yaml"
    params.write_text('/**/sim_robot:\n  ros__parameters: {inject.gaps: \'[{"name": "joint_scale"}]\'}\n')
    made = proposing("world=reach", "propose=true", f"params_file={params}")
    made.hears("shadow: WRONG: scale:")
    [line] = [line for line in made.said if "WRONG: scale:" in line]
    assert "the joint states are in degrees; let the driver tell radians" in line
    assert made.station.executed == []
    status, told = made.end()
    assert status == 1
    assert told["wrong"][0]["check"] == "scale"
    later = proposing("sim=false")  # the real one: other than clean, and it says what
    later.hears("the policy may not drive yet")
    assert "is not clean: scale:" in " ".join(later.said)
    assert later.process.wait(30.0) == 2


def test_a_real_robot_is_driven_only_by_a_policy_that_was_compared_or_where_a_person_says_otherwise(proposing):
    made = proposing("sim=false")
    made.hears("no policy has been shadowed on desk_arm yet")
    assert made.process.wait(30.0) == 2
    unchecked = proposing("sim=false", "checked=false")
    unchecked.hears("policy: started")
    wait(lambda: "policy: policy" in unchecked.station.diagnostics, 60.0, "a policy that waits for its robot")
    unchecked.process.send_signal(signal.SIGINT)
    assert unchecked.process.wait(20.0) == 0


@pytest.mark.slow
@needs_g1
def test_legs_that_hang_are_wiggled_and_swung_until_nothing_is_left_to_check(run, proposing, tmp_path):
    shutil.copy(G1 / "policy.pt", run)
    policy_card.write(G1 / "policy.yaml", run / "policy.pt", g1_card())
    card.write(g1_card(), run / "g1.yaml")
    made = proposing(f"robot_spec={run}/g1.yaml", "propose=true")
    made.hears("shadow: not yet checked: scale, joint order, sign, velocity, gravity frame, angular velocity")
    made.station.node.destroy_publisher(made.station.policy)
    made.station.inject(hoist=0.1, sway=0.15)
    time.sleep(6.0)
    made.station.inject(sway=0.0)
    found = examine(run / "g1.yaml", listen=2.0, timing=False, wiggle=True)
    assert [line for line in found.problems if line.startswith("wiggle")] == [], found.problems
    made.hears("shadow: everything fits after", 60.0)
    made.station.inject(gaps='[{"name": "quaternion_order"}]')
    made.hears("WRONG: quaternion order: the IMU:", 120.0)
    status, told = made.end()
    assert status == 1
    assert [note["check"] for note in told["unknown"]] == ["range"]
