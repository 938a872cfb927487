"""The policy node as a process: swapped, stalled, ended, killed; the row of the fault list is in each name.

One process serves as many tests as it survives: starting one takes seconds.
"""

import signal
import threading
import time

import numpy as np
import pytest
from ros_harness import RT, SLACK, STOP, wait

pytestmark = [pytest.mark.ros, pytest.mark.timeout(240)]
TOY = (RT, "autostart:=true")
START = 90.0  # seconds until a policy drives; importing torch takes long on a busy machine


def start(graph, processes, *parameters):
    for name in ("good", "back", "slow", "corrupt", "wrong", "nan", "narrow"):
        (processes.folder / name).mkdir(exist_ok=True)
    processes.start("policy_node", *TOY, f"policy_path:={processes.folder / 'good'}", *parameters)
    graph.wait_state("ACTIVE", limit=START)


@pytest.fixture
def driven(graph, processes):
    """A robot that a policy drives, ACTIVE, holding at 0.5 rad."""
    graph.quiet()
    process = processes.running.get("policy_node")
    if process is None or process.poll() is not None:
        graph.ready()
        start(graph, processes)
    elif not graph.last.trace.startswith("good."):
        swap(graph, processes, "good")
    wait(lambda: np.allclose(graph.last.value, 0.5, atol=0.02), limit=20.0, what="the first target")
    graph.states.clear()
    graph.executed.clear()
    wait(lambda: graph.executed)
    return graph


def swap(graph, processes, name):
    said = []

    def accepted():  # one load at a time
        said[:] = graph.set("policy", policy_path=str(processes.folder / name))
        return not said

    wait(accepted, limit=20.0, what=f"a swap ({said})")


def press_again(process):
    """What a terminal and a launcher do together: SIGINT until the process is gone."""
    while process.poll() is None:
        process.send_signal(signal.SIGINT)
        time.sleep(0.02)


def moving(graph, processes):
    swap(graph, processes, "back")
    wait(lambda: np.abs(graph.last.velocity).max() > 0.2, limit=20.0, what="motion")


def test_36_good_policy_is_swapped_in_between_ticks(driven, processes):
    swap(driven, processes, "back")
    wait(lambda: np.allclose(driven.last.value, -0.5, atol=0.02), limit=20.0, what="the second target")
    assert set(driven.states) <= {"ACTIVE"}
    assert driven.last.trace.startswith("back.")  # recordings know who acted
    driven.check_limits()


def test_policy_of_another_range_commands_its_own_radians(driven, processes):
    swap(driven, processes, "narrow")
    wait(lambda: np.allclose(driven.last.value, 0.25, atol=0.001), limit=20.0, what="a quarter of a radian")
    assert driven.last.trace.startswith("narrow.")
    driven.check_limits()


@pytest.mark.parametrize(
    ("name", "reason"), [("corrupt", "cannot be read"), ("wrong", "does not fit"), ("nan", "not finite")]
)
def test_36_bad_policy_is_refused_and_the_old_one_goes_on(driven, processes, name, reason):
    swap(driven, processes, name)
    wait(lambda: reason in driven.diagnostic("policy: policy")[1], what=f"refusal of {name}")
    assert set(driven.states) <= {"ACTIVE"}
    assert driven.last.trace.startswith("good.")
    assert driven.set("policy", policy_path=str(processes.folder / "nowhere"))


def test_36_slow_load_keeps_the_old_policy_driving(driven, processes):
    driven.executed.clear()
    begin = time.monotonic()
    swap(driven, processes, "slow")
    wait(lambda: driven.last.trace.startswith("slow."), limit=30.0, what="the slow policy")
    assert time.monotonic() - begin > 5.0  # the load takes six
    assert sum(item.trace.startswith("good.") for _, item in list(driven.executed)) > 300
    assert set(driven.states) <= {"ACTIVE"}
    assert float(driven.diagnostic("policy: loop")[2].get("rate", 0.0)) > 70.0


def test_02_policy_stopped_for_a_second_goes_on_without_a_jump(driven, processes):
    moving(driven, processes)
    process = processes.running["policy_node"]
    process.send_signal(signal.SIGSTOP)
    since = time.monotonic()
    driven.stopped_after(since)
    time.sleep(max(0.0, 1.0 - (time.monotonic() - since)))
    process.send_signal(signal.SIGCONT)
    driven.wait_state("ACTIVE")
    wait(lambda: np.allclose(driven.last.value, -0.5, atol=0.02), limit=20.0, what="the target")
    driven.check_limits()


def test_42_policy_lets_go_and_ends_with_zero(driven, processes):
    moving(driven, processes)
    since = time.monotonic()
    process = processes.running["policy_node"]
    ending = threading.Thread(target=press_again, args=(process,))
    ending.start()
    assert processes.end("policy_node", signal.SIGINT, limit=10.0) == 0  # though Ctrl-C comes more than once
    ending.join()
    driven.stopped_after(since, STOP + 3 * SLACK)
    driven.wait_state("ARMED")
    driven.check_limits()


def test_01_policy_killed_while_moving_then_another_without_reset(driven, processes):
    moving(driven, processes)
    since = time.monotonic()
    processes.end("policy_node", signal.SIGKILL)
    driven.stopped_after(since)
    driven.wait_state("ARMED")
    start(driven, processes, "chunk_steps:=4")  # and now one that speaks in chunks
    wait(lambda: np.allclose(driven.last.value, 0.5, atol=0.03), limit=20.0, what="the target")
    wait(lambda: any("r" in item.flags for _, item in list(driven.executed)), what="a chunk that replaced another")
    assert processes.end("policy_node", signal.SIGTERM, limit=5.0) == 0  # row 42
    driven.check_limits()
