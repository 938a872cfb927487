"""The policy node as a process: killed, stalled, swapped; the row of the fault list is in each name."""

import signal
import time

import numpy as np
import pytest
from ros_harness import RT, SLACK, STOP, wait

pytestmark = pytest.mark.ros
TOY = (RT, "autostart:=true", "loader:=toy_policies:load")


@pytest.fixture
def driven(live, processes, tmp_path_factory):
    """A policy node that drives to 0.5 rad; folders of further policies beside it."""
    folder = processes.folder
    for name in ("good", "back", "slow", "corrupt", "wrong", "nan"):
        (folder / name).mkdir(exist_ok=True)
    processes.end("policy_node")
    processes.start(
        "policy_node", RT, "autostart:=true", "loader:=toy_policies:load", f"policy_path:={folder / 'good'}"
    )
    try:
        live.wait_state("ACTIVE", limit=60.0)
        yield live
    finally:
        processes.end("policy_node")


def loop_rate(live):
    return float(live.diagnostic("policy: loop")[2].get("rate", 0.0))


def test_01_policy_killed_while_moving_then_a_new_one_without_reset(driven, processes):
    wait(lambda: np.abs(driven.last.velocity).max() > 0.2, what="motion")
    since = time.monotonic()
    processes.end("policy_node", signal.SIGKILL)
    driven.stopped_after(since, STOP + SLACK)
    driven.wait_state("ARMED")
    processes.start("policy_node", *TOY, f"policy_path:={processes.folder / 'good'}")
    driven.wait_state("ACTIVE", limit=60.0)
    wait(lambda: np.allclose(driven.last.value, 0.5, atol=0.02), what="the target")
    driven.check_limits()


def test_02_policy_stopped_for_a_second_goes_on_without_a_jump(driven, processes):
    wait(lambda: np.abs(driven.last.velocity).max() > 0.2, what="motion")
    process = processes.running["policy_node"]
    process.send_signal(signal.SIGSTOP)
    since = time.monotonic()
    driven.stopped_after(since, STOP + SLACK)
    time.sleep(max(0.0, 1.0 - (time.monotonic() - since)))
    process.send_signal(signal.SIGCONT)
    driven.wait_state("ACTIVE")
    wait(lambda: np.allclose(driven.last.value, 0.5, atol=0.02), what="the target")
    driven.check_limits()


def test_36_good_policy_is_swapped_in_between_ticks(driven, processes):
    wait(lambda: np.allclose(driven.last.value, 0.5, atol=0.02), what="the first target")
    driven.states.clear()
    assert not driven.set("policy", policy_path=str(processes.folder / "back"))
    wait(lambda: np.allclose(driven.last.value, -0.5, atol=0.02), what="the second target")
    assert set(driven.states) <= {"ACTIVE"}
    assert driven.last.trace.startswith("back.")  # recordings know who acted
    driven.check_limits()


@pytest.mark.parametrize(
    ("name", "reason"), [("corrupt", "cannot be read"), ("wrong", "does not fit"), ("nan", "not finite")]
)
def test_36_bad_policy_is_refused_and_the_old_one_goes_on(driven, processes, name, reason):
    driven.states.clear()
    driven.set("policy", policy_path=str(processes.folder / name))
    wait(lambda: reason in driven.diagnostic("policy: policy")[1], what=f"refusal of {name}")
    assert set(driven.states) <= {"ACTIVE"}
    assert driven.last.trace.startswith("good.")
    assert driven.set("policy", policy_path=str(processes.folder / "nowhere"))


def test_36_slow_load_costs_no_deadline(driven, processes):
    driven.states.clear()
    driven.set("policy", policy_path=str(processes.folder / "slow"))
    time.sleep(3.0)
    assert set(driven.states) <= {"ACTIVE"}
    wait(lambda: driven.last.trace.startswith("slow."), what="the slow policy")
    answer = driven.call("policy/reload", limit=10.0)
    assert answer.success or "loaded" in answer.message
    assert loop_rate(driven) > 70.0


def test_42_policy_lets_go_and_ends_with_zero(driven, processes):
    wait(lambda: np.abs(driven.last.velocity).max() > 0.2, what="motion")
    since = time.monotonic()
    assert processes.end("policy_node", signal.SIGINT, limit=5.0) == 0
    driven.wait_state("ARMED")
    driven.stopped_after(since, STOP + 2 * SLACK)


def test_chunks_of_the_policy_node_drive_the_robot(live, processes):
    processes.end("policy_node")
    (processes.folder / "good").mkdir(exist_ok=True)
    processes.start("policy_node", *TOY, f"policy_path:={processes.folder / 'good'}", "chunk_steps:=4")
    live.wait_state("ACTIVE", limit=60.0)
    wait(lambda: np.allclose(live.last.value, 0.5, atol=0.03), what="the target")
    assert any("r" in item.flags for _, item in live.executed)
    processes.end("policy_node")
    live.check_limits()
