"""A live graph over DDS on loopback: simulated robot and supervisor as processes; see ros_harness."""

import os
import sys
from pathlib import Path

import pytest

pytest.importorskip("rclpy", reason="rclpy is not installed")

worker = sum(map(ord, os.environ.get("PYTEST_XDIST_WORKER", "")))
os.environ["ROS_AUTOMATIC_DISCOVERY_RANGE"] = "LOCALHOST"
os.environ["ROS_DOMAIN_ID"] = str(1 + (os.getpid() * 37 + worker) % 101)
sys.path.insert(0, str(Path(__file__).parent))

from ros_harness import RT, SUPERVISOR, Processes, Station  # noqa: E402

ALONE = ("test_launch.py", "test_messages.py")


def pytest_collection_modifyitems(items):
    """What starts processes here is live; the rest runs with the other tests."""
    here = Path(__file__).parent
    for item in items:
        if item.path.parent == here and item.path.name not in ALONE:
            item.add_marker("live")


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
