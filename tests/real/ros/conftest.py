"""A live graph over DDS on loopback: simulated robot and supervisor as processes; see ros_harness."""

import contextlib
import fcntl
import gc
import os
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from robot_rl.real.ros.transport import spare_shared_memory

pytest.importorskip("rclpy", reason="rclpy is not installed")


def _domain():
    """A domain that nobody else's tests on this machine use: a stranger's nodes are faults here, and rightly so."""
    for number in range(1, 102):
        domain = 1 + (os.getpid() * 37 + number) % 101
        lock = open(Path(tempfile.gettempdir()) / f"ros_domain_{domain}.lock", "a")  # noqa: SIM115
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # until this process ends
        except OSError:
            lock.close()
            continue
        return domain, lock
    raise RuntimeError("all ROS domains from 1 to 101 are used by tests on this machine")


domain, lock = _domain()
os.environ["ROS_AUTOMATIC_DISCOVERY_RANGE"] = "LOCALHOST"
spare_shared_memory()  # as docs/driver.md asks of a driver: ours live in this process
os.environ["ROS_DOMAIN_ID"] = str(domain)
sys.path.insert(0, str(Path(__file__).parent))

import rclpy  # noqa: E402
from foreign_cell import Cell  # noqa: E402
from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor  # noqa: E402
from rclpy.node import Node  # noqa: E402
from rclpy.signals import SignalHandlerOptions  # noqa: E402
from ros_harness import RT, SUPERVISOR, Processes, Station  # noqa: E402

ALONE = tuple(
    f"test_{name}.py"
    for name in ("controller_check", "env_alone", "executor", "launch", "messages", "node_base", "wiggle")
)
"""Their tests start no graph."""


STATIONS = pytest.StashKey[list[Station]]()
"""Of a test: those that heard the supervisors of its foreign robots."""


def pytest_collection_modifyitems(items):
    """What starts processes here is live; the rest runs with the other tests, which every change sees."""
    here = Path(__file__).parent
    for item in items:
        if item.path.parent == here and item.path.name not in ALONE:
            item.add_marker("live")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """Beside a failure: what the supervisor said last."""
    report = yield
    if report.failed:
        own = getattr(item, "funcargs", {}).get("station")
        for station in ([] if own is None else [own]) + item.stash.get(STATIONS, []):
            said = f"{station.states[-6:]}, now {station.diagnostic('safety_supervisor: safety')}"
            report.sections.append(("supervisor", said))
    return report


@pytest.fixture(scope="module", autouse=True)
def short_collections():
    """Robots of these tests live in this process, and are silent while it collects garbage.

    With all that other tests have imported a full collection takes 0.3 s, and states of 0.1 s are a fault.
    """
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(scope="module")
def processes(tmp_path_factory):
    made = Processes(tmp_path_factory.mktemp("graph"))
    yield made
    made.close()


@pytest.fixture(scope="module")
def station(processes):
    made = Station()
    yield made
    made.close()


@pytest.fixture(scope="module")
def graph(processes, station):
    """Simulated robot and supervisor; tests that end one of them start it again."""
    processes.start("sim_robot_node", RT)
    processes.start("safety_supervisor_node", *SUPERVISOR)
    return station


@pytest.fixture
def live(graph, processes):
    """The graph, ARMED at home; whoever is missing is started first."""
    for module, parameters in (("sim_robot_node", (RT,)), ("safety_supervisor_node", SUPERVISOR)):
        process = processes.running.get(module)
        if process is None or process.poll() is not None:
            graph.states.clear()
            processes.start(module, *parameters)
    yield graph.ready()
    graph.quiet()


@pytest.fixture
def cell(processes, request):
    made = []

    def make(**options):
        made.append(Cell(processes, **options))
        request.node.stash[STATIONS] = [item.station for item in made]
        return made[0]

    yield make
    for item in made:
        item.close()


@pytest.fixture
def another():
    """Another node in a process of its own as far as DDS can tell: its own context."""
    made = []

    def spin(executor, context):
        with contextlib.suppress(ExternalShutdownException):
            while context.ok():
                executor.spin_once(timeout_sec=0.1)

    def make(name):
        context = rclpy.Context()
        rclpy.init(context=context, signal_handler_options=SignalHandlerOptions.NO)
        node = Node(name, context=context, enable_rosout=False)
        executor = SingleThreadedExecutor(context=context)
        executor.add_node(node)
        made.append((context, node, executor))
        threading.Thread(target=spin, args=(executor, context), daemon=True).start()
        return node

    yield make
    for context, node, executor in made:
        executor.shutdown(1.0)
        node.destroy_node()
        with contextlib.suppress(RuntimeError):
            rclpy.try_shutdown(context=context)
