"""The recorder as a process beside a live graph: what is on the disk afterwards, whatever happens to it."""

import resource
import signal
import time

import numpy as np
import pytest
import torch
from recorder_process import Recorder

from robot_rl.data import d4rl, session
from robot_rl.real.core.assembler import StepRules
from robot_rl.real.core.recording import convert
from robot_rl.real.core.spec import RobotSpec

bag = pytest.importorskip("robot_rl.data.bag")
pytest.importorskip("rosbags")
wait = pytest.importorskip("ros_harness").wait


@pytest.fixture(scope="module", autouse=True)
def patience(graph):
    """Two processes may take a minute to start on a busy machine."""
    wait(graph.services["sim_robot/set_parameters"].service_is_ready, 120.0, "the simulated robot")
    wait(lambda: graph.state not in ("", "STARTUP"), 120.0, "the supervisor")


@pytest.fixture
def recorder(live, processes, tmp_path):
    made = []

    def make(*parameters):
        made.append(Recorder(processes, live, tmp_path / f"session{len(made)}", *parameters))
        return made[-1]

    yield make
    for item in made:
        item.end(signal.SIGKILL)


def wander(station):
    """A policy of the state alone that never comes to rest: round a circle in two joints, the third leans on them."""

    def policy(q):
        place = q[:2] - np.array([0.3, 0.0])  # home lies on the way, not in the centre
        radius = np.hypot(*place) + 1e-6
        out = 0.06 * np.tanh(3.0 * (0.5 - radius)) * place / radius
        round_ = 0.06 * np.array([-place[1], place[0]]) / radius
        return np.array([*(out + round_), 0.06 * np.sin(2.0 * q[0]) - 0.1 * q[2]])

    def value(_):
        q = station.position
        return q + policy(q)

    return policy, value


def test_session_becomes_data_on_which_behaviour_cloning_reproduces_the_policy(live, processes, recorder) -> None:
    """Record a policy at work, convert the bag, fit a small network, compare it with the policy on later states."""
    policy, value = wander(live)
    spec = RobotSpec.load(processes.folder / "arm.yaml")
    record = recorder("ticks:=command", "rate:=100.0")
    record.ask("start")
    live.active(value)
    time.sleep(14.0)
    answer = record.ask("stop")
    assert answer.success, answer.message
    live.quiet()
    online = session.read(session.episodes(record.folder)[0])[0]
    path = record.folder / "bags/episode_000000"
    rows = convert(path, record.folder / "again.hdf5", spec, StepRules(ticks="command", rate=100.0))
    offline = session.read(record.folder / "again.hdf5")[0]
    assert rows == len(online["actions"]) > 300
    for key in online:
        np.testing.assert_array_equal(online[key], offline[key], err_msg=key)
    assert len(d4rl.read(record.folder / "again.hdf5").episodes) == 1
    assert online["infos/valid"].mean() > 0.5
    assert (np.char.startswith(online["infos/policy_id"], b"stub")).all()

    keep = online["infos/valid"] & np.isfinite(online["infos/action_requested"]).all(axis=1)
    upper = spec.bounds()[1]
    state = torch.as_tensor(online["observations"][keep])
    move = torch.as_tensor(online["infos/action_requested"][keep] * upper) - state[:, :3]
    inputs = state[:, :3]
    split = int(0.7 * len(inputs))
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Linear(3, 64), torch.nn.Tanh(), torch.nn.Linear(64, 64), torch.nn.Tanh(), torch.nn.Linear(64, 3)
    )
    optimiser = torch.optim.Adam(net.parameters(), 3e-3)
    for _ in range(500):
        loss = ((net(inputs[:split]) - move[:split]) ** 2).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    with torch.no_grad():
        guess = net(inputs[split:]).numpy()
    truth = np.stack([policy(q) for q in inputs[split:].numpy()])
    left = ((guess - truth) ** 2).sum() / ((truth - truth.mean(0)) ** 2).sum()
    assert left < 0.15, f"the clone leaves {left:.0%} of the policy unexplained"


def test_40_kill_in_mid_episode_costs_that_episode_and_control_goes_on(live, recorder) -> None:
    record = recorder()
    record.ask("start")
    _, value = wander(live)
    live.active(value)
    time.sleep(4.0)  # after many other tests discovery takes a while
    assert record.ask("stop").success
    record.ask("start")
    time.sleep(1.0)
    assert record.end(signal.SIGKILL) == -signal.SIGKILL
    assert live.state == "ACTIVE"  # control does not notice
    paths = session.episodes(record.folder)
    assert [path.name for path in paths] == ["episode_000000.hdf5"]
    assert len(session.read(paths[0])[0]["actions"]) > 20
    assert len(list(bag.read(record.folder / "bags/episode_000000", "/joint_states".__eq__))) > 20
    with pytest.raises(ValueError, match="its recorder was killed"):
        next(bag.read(record.folder / "bags/episode_000001"))
    live.check_limits()


def test_40_full_disk_stops_the_recording_and_nothing_else(live, recorder) -> None:
    record = recorder()
    record.ask("start")
    _, value = wander(live)
    live.active(value)
    time.sleep(4.0)  # after many other tests discovery takes a while
    assert record.ask("stop").success
    record.ask("start")
    soft = 5_000
    resource.prlimit(record.process.pid, resource.RLIMIT_FSIZE, (soft, resource.RLIM_INFINITY))  # as a full disk does
    time.sleep(1.0)
    answer = record.ask("stop")
    assert not answer.success
    wait(lambda: record.diagnostic()[0] == 2, what="an ERROR of the recorder")
    assert "too large" in record.diagnostic()[1] or "No space" in record.diagnostic()[1]
    assert live.state == "ACTIVE"
    assert len(session.episodes(record.folder)) == 1
    assert not list(record.folder.glob(".*.part"))
    resource.prlimit(record.process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    record.ask("start")  # room again
    time.sleep(0.5)
    assert record.ask("stop").success
    assert len(session.episodes(record.folder)) == 2


def test_42_sigterm_finishes_the_episode(live, recorder) -> None:
    record = recorder("storage:=sqlite3")
    record.ask("start")
    _, value = wander(live)
    live.active(value)
    time.sleep(4.0)
    assert record.end(signal.SIGTERM) == 0
    columns = session.read(session.episodes(record.folder)[0])[0]
    assert columns["timeouts"][-1]
    assert len(list(bag.read(record.folder / "bags/episode_000000"))) > 50


def test_recorder_publishes_nothing_but_diagnostics(live, recorder) -> None:
    """It cannot disturb control."""
    record = recorder()
    record.ask("start")
    topics = {
        name
        for name, _ in live.node.get_publisher_names_and_types_by_node(record.name, "/")
        if name not in ("/diagnostics", "/rosout", "/parameter_events")
    }
    assert topics == set()
    assert record.end(signal.SIGINT) == 0  # row 42
