"""The flight recorder of the nodes: a robot that a policy drives, its supervisor killed, and both replayed."""

import signal
import time

import numpy as np
import pytest
from ros_harness import RT, SUPERVISOR, wait
from toy_policies import load

from robot_rl.data.flight_read import read
from robot_rl.real.flight_tools import Question, find_flights, replay

pytestmark = [pytest.mark.ros, pytest.mark.timeout(240)]


def test_what_supervisor_and_policy_did_is_the_same_again_after_kill_9(processes, station) -> None:
    folder = processes.folder / "flight"
    (processes.folder / "good").mkdir()
    processes.start("sim_robot_node", RT)
    processes.start("safety_supervisor_node", *SUPERVISOR, f"flight:={folder}")
    station.ready()
    path = processes.folder / "good"
    processes.start("policy_node", RT, "autostart:=true", f"policy_path:={path}", f"flight:={folder}")
    station.wait_state("ACTIVE", limit=90.0)
    wait(lambda: np.allclose(station.last.value, 0.5, atol=0.02), limit=20.0, what="the target")
    time.sleep(1.0)
    processes.end("safety_supervisor_node", signal.SIGKILL)
    killed = time.time()
    processes.end("policy_node")
    found = {path.stem.rsplit("_", 1)[-1]: path for path in find_flights([str(folder)])}
    assert set(found) == {"supervisor", "policy"}
    supervisor, policy = read(found["supervisor"]), read(found["policy"])
    assert (supervisor.closed, policy.closed) == (False, True)
    assert killed - 1e-9 * supervisor.records[-1].when < 0.5 + 0.3  # of which 0.3 s may be this test's own
    facts = {one.value["of"]: one.value for one in supervisor.records if one.topic == "facts"}
    assert facts["card"]["text"] == (processes.folder / "arm.yaml").read_text()

    def of_toys(path: str, device: str, threads: int):
        return load(path, device=device, threads=threads, trust=False)

    answer = replay([str(folder)], Question(), of_toys, lambda *_: pytest.fail("no workspace"), print)
    assert answer.same, (answer.supervisor and answer.supervisor.first, answer.policy and answer.policy.first)
    assert answer.supervisor is not None
    assert answer.policy is not None
    assert answer.supervisor.ticks > 200
    assert answer.policy.asked > 50
    (processes.folder / "back").mkdir()  # another policy, which steps by -0.05 rad from where the robot is, not by 0.05
    question = Question(other=str(processes.folder / "back"))
    other = replay([str(folder)], question, of_toys, lambda *_: pytest.fail("no workspace"), print)
    assert other.supervisor is not None
    assert other.told > 100
    assert other.untold <= 2  # the last messages may have been said and not been heard
    assert other.supervisor.largest > 0.05
