"""`Ros2Env` on a live graph: simulated robot and supervisor as processes, over DDS on loopback."""
# pyright: reportPossiblyUnboundVariable=false

import threading
import time

import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from std_msgs.msg import Bool
from std_srvs.srv import Trigger
from trajectory_msgs.msg import JointTrajectory

from robot_rl.real.core.spec import RobotSpec
from robot_rl.real.ros.env import EnvClosed, Ros2Options
from robot_rl.real.ros.env_reset import ResetBlocked, ResetFailed, RobotUnavailable, quintic_seconds
from robot_rl.real.ros.env_vector import make
from robot_rl.real.ros.io import qos

harness = pytest.importorskip("ros_harness")
open_env, wait = harness.open_env, harness.wait
INFO = {
    "t_obs", "t_act", "obs_age", "period", "missed_ticks", "deadline_miss", "action_requested", "action_executed",
    "clipped", "authority", "intervened", "safety_state", "fault", "valid", "latency_mode",
}  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def patience(graph):
    """Two processes may take a minute to start on a busy machine."""
    wait(graph.services["sim_robot/set_parameters"].service_is_ready, 120.0, "the simulated robot")
    wait(lambda: graph.state not in ("", "STARTUP"), 120.0, "the supervisor")


def spec(processes, **changes) -> RobotSpec:
    import yaml

    raw = yaml.safe_load((processes.folder / "arm.yaml").read_text())
    return RobotSpec.from_dict({**raw, "action": {"mapping": "delta", "scale": [0.03]}, **changes})


@pytest.fixture
def env(live, processes):
    made = open_env(spec(processes), rate=20.0, arm=True, realtime=39, episode_seconds=3.0, state_timeout=0.3)
    yield made
    made.close()


@pytest.mark.timing
def test_env_episode_executed_actions_close_the_loop_in_real_time(env, live) -> None:
    obs, info = env.reset(seed=0)
    assert info.keys() >= INFO
    assert obs["state"].shape == (6,)
    assert env.observation_space.contains(obs)
    np.testing.assert_allclose(obs["state"], 0.0, atol=0.06)
    begin = time.monotonic()
    moves, stamps = [], [info["t_obs"]]
    for _ in range(30):
        obs, reward, terminated, truncated, info = env.step(np.array([0.5, -0.5, 0.0]))
        moves.append(info["action_executed"])
        stamps.append(info["t_obs"])
        assert info["fault"] == ""
        assert info["valid"]
        assert reward == 0.0
        assert not terminated
        assert not truncated
    spent = time.monotonic() - begin
    assert spent == pytest.approx(30 * 0.05, abs=0.25)  # absolute deadlines: no drift over 30 steps
    assert (np.diff(stamps) > 0.0).all()
    # 0.5 * 0.03 rad per step: after the start, what was executed is what was asked for
    np.testing.assert_allclose(np.mean(moves[3:], axis=0), [0.5, -0.5, 0.0], atol=0.1)
    assert obs["state"][0] > 0.3
    live.check_limits()


def test_env_time_limit_truncates_and_then_needs_a_reset(env) -> None:
    with pytest.raises(ResetNeeded, match="not been called"):
        env.step(np.zeros(3))
    env.reset()
    for k in range(60):
        *_, terminated, truncated, info = env.step(np.zeros(3))
        assert truncated == (k == 59), info
        assert not terminated
    assert info["fault"] == ""
    with pytest.raises(ResetNeeded, match="episode has ended"):
        env.step(np.zeros(3))


@pytest.mark.timing
def test_38_env_sleeping_learner_is_truncated_and_the_robot_stands(env, live) -> None:
    said = []
    heard = live.node.create_subscription(JointTrajectory, "robot_rl/command/policy", said.append, qos("command"))
    # the station's own stub, and the environment's publisher, which is as new as this subscription
    wait(lambda: heard.get_publisher_count() == 2, what="discovery of a new process, up to 3 s")
    env.reset()
    for _ in range(10):
        *_, info = env.step(np.full(3, 1.0))
    assert info["fault"] == ""
    said.clear()
    time.sleep(2.0)  # a long update inside the training step
    assert said[-1].points == []  # let go, which may happen as often as it likes; lost commands are a fault in the end
    assert 10 < len(said) < 60
    live.node.destroy_subscription(heard)
    obs, reward, terminated, truncated, info = env.step(np.full(3, 1.0))
    assert (truncated, terminated, reward) == (True, False, 0.0)
    assert info["fault"] == "learner_stall"
    assert not info["valid"]
    assert live.state == "ARMED"
    assert np.abs(obs["state"][3:]).max() < 0.02
    obs, _ = env.reset()
    np.testing.assert_allclose(obs["state"][:3], 0.0, atol=0.06)
    *_, truncated, info = env.step(np.zeros(3))
    assert not truncated
    live.check_limits()


@pytest.mark.timing
def test_env_estop_truncates_with_its_cause_and_blocks_resets_until_the_operator(env, live) -> None:
    env.reset()
    for _ in range(5):
        env.step(np.full(3, 1.0))
    live.estop.publish(Bool(data=True))
    for _ in range(20):
        *_, reward, terminated, truncated, info = env.step(np.full(3, 1.0))
        if truncated:
            break
    assert not terminated
    assert info["fault"] == "estop_topic"
    assert not info["valid"]
    assert reward == 0.0
    with pytest.raises(ResetBlocked, match="remove the cause") as blocked:
        env.reset()
    assert blocked.value.cause == "estop_topic"
    with pytest.raises(ResetBlocked):  # still pressed: asking once changes nothing
        env.reset(options={"operator_reset": True})
    live.estop.publish(Bool(data=False))
    time.sleep(0.7)
    obs, info = env.reset(options={"operator_reset": True})
    np.testing.assert_allclose(obs["state"][:3], 0.0, atol=0.06)


def test_env_stop_of_a_person_latches_the_supervisor_during_a_reset_until_they_unlock(env, live) -> None:
    env.reset()
    for _ in range(10):
        env.step(np.full(3, 1.0))
    failed: list[BaseException] = []

    def reset() -> None:
        try:
            env.reset()
        except ResetBlocked as error:
            failed.append(error)

    thread = threading.Thread(target=reset)
    thread.start()
    time.sleep(0.05)
    env.stop()
    thread.join(10.0)
    assert not thread.is_alive()
    assert "estop_topic" in str(failed[0])
    with pytest.raises(ResetBlocked):
        env.reset()
    env.unlock()
    time.sleep(0.7)
    obs, _ = env.reset()  # asks the supervisor once, because a person has unlocked it
    np.testing.assert_allclose(obs["state"][:3], 0.0, atol=0.06)


def test_41_env_second_thread_is_refused_and_close_during_step_brakes(live, processes) -> None:
    env = open_env(spec(processes), rate=2.0, arm=True, realtime=39, state_timeout=0.3, reset_mode="none")
    env.reset()
    found: list[BaseException] = []

    def drive() -> None:
        try:
            for _ in range(10):
                env.step(np.full(3, 1.0))
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=drive)
    thread.start()
    time.sleep(0.2)
    with pytest.raises(RuntimeError, match="one robot has one driver"):
        env.step(np.zeros(3))
    with pytest.raises(RuntimeError, match="one robot has one driver"):
        env.reset()
    begin = time.monotonic()
    env.close()
    assert time.monotonic() - begin < 3.0
    thread.join(3.0)
    assert not thread.is_alive()
    assert isinstance(found[0], EnvClosed)
    live.wait_state("IDLE", "ARMED")
    env.close()
    with pytest.raises(EnvClosed):
        env.reset()


def test_env_manual_reset_waits_for_continue_and_labels_end_the_episode(live, processes) -> None:
    env = open_env(spec(processes), rate=20.0, arm=True, realtime=39, state_timeout=0.3, reset_mode="manual",
        terminate_on_success=True,
    )  # fmt: skip
    try:
        cont = live.node.create_client(Trigger, "robot_env/continue")
        label = live.node.create_client(Trigger, "robot_env/label_success")
        wait(cont.service_is_ready)
        timer = threading.Timer(1.0, lambda: cont.call_async(Trigger.Request()))
        timer.start()
        begin = time.monotonic()
        env.reset()
        assert time.monotonic() - begin > 0.9
        env.step(np.zeros(3))
        label.call_async(Trigger.Request())
        for _ in range(20):
            _, reward, terminated, truncated, info = env.step(np.zeros(3))
            if terminated:
                break
        assert terminated
        assert not truncated
        assert info["success"]
        assert reward == 1.0
    finally:
        env.close()


def test_env_without_arming_says_who_has_to_act(live, processes) -> None:
    live.enable(False)
    live.wait_state("IDLE")
    env = open_env(spec(processes), rate=20.0, reset_timeout=0.5, state_timeout=0.3)
    try:
        with pytest.raises(ResetFailed, match="operator has to call safety_supervisor/enable"):
            env.reset()
    finally:
        env.close()


def test_env_missing_robot_is_named(processes) -> None:
    with pytest.raises(RobotUnavailable) as found:
        open_env(spec(processes), namespace="/nowhere", connect_timeout=0.5)
    assert "j0, j1, j2 on joint_states" in str(found.value)
    assert "no safety supervisor" in str(found.value)


def test_vector_env_views_share_the_robot_and_cut_each_other(live, processes) -> None:
    path = processes.folder / "arm_delta.yaml"
    path.write_text((processes.folder / "arm.yaml").read_text() + "action: {mapping: delta, scale: [0.03]}\n")
    options = Ros2Options(robot_spec=str(path), rate=20.0, arm=True, realtime=39, reset_mode="none")
    train, evaluation = make(options, 1, 0), make(options, 1, 1)
    try:
        with pytest.raises(ValueError, match="one robot"):
            make(options, 2, 0)
        train.reset()
        obs, _, _, truncated, info = train.step(np.zeros((1, 3), np.float32))
        assert obs["state"].shape == (1, 6)
        assert info["valid"].all()
        assert info["executed"].shape == (1, 3)
        evaluation.reset()
        evaluation.step(np.zeros((1, 3), np.float32))
        *_, truncated, info = train.step(np.zeros((1, 3), np.float32))
        assert truncated.all()
        assert not info["valid"].any()
        assert "another view" in info["robot"]["fault"]
    finally:
        train.close()
        evaluation.close()


def test_quintic_seconds_respects_both_limits() -> None:
    velocity, acceleration = np.array([1.0, 1.0]), np.array([5.0, 1e6])
    for distance in (np.array([0.1, 0.0]), np.array([2.0, 1.0])):
        seconds = quintic_seconds(distance, velocity, acceleration)
        s = np.linspace(0.0, 1.0, 2001)
        way = (s**3 * (10 - 15 * s + 6 * s**2))[:, None] * distance
        speed = np.gradient(way, s * seconds, axis=0)
        assert np.abs(speed).max() <= 1.0
        assert np.abs(np.gradient(speed[:, 0], s * seconds)).max() <= 5.0
