"""`Ros2Env` with a robot that is made up: what it sends and tells when others move the robot; no graph."""
# pyright: reportArgumentType=false
# (a made-up link stands in for the real one)

import threading
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import yaml

from robot_rl.real.core.sensor_spec import CameraSpec
from robot_rl.real.core.spec import RobotSpec
from robot_rl.real.graph import find_file
from robot_rl.real.robot import RobotState
from robot_rl.real.ros import camera_inputs
from robot_rl.real.ros import env as module
from robot_rl.real.ros.env import Ros2Env, Ros2Options
from robot_rl.real.ros.env_link import EnvLink
from robot_rl.real.ros.env_reset import StartOptions, StartWay
from robot_rl.real.ros.env_vector import Ros2VectorEnv, _Robot
from robot_rl.real.ros.io import Executed, Image
from robot_rl.types import IOSpec

pytestmark = pytest.mark.ros
SPEC = {**yaml.safe_load(Path(find_file("desk_arm")).read_text()), "action": {"mapping": "delta", "scale": [0.03]}}


class Link:
    """Of a robot that is at once where it was told to be; a person may hold it somewhere."""

    def __init__(self, spec: RobotSpec, **options: object) -> None:
        self.spec, self.place, self.held = spec, np.array(spec.home), None
        self.state, self.fault, self.authority, self.flags = "ARMED", "", "none", set()
        self.human, self.rewarded, self.label, self.success, self.cameras = False, False, None, None, {}
        self.targets: list[np.ndarray] = []
        self.executed: tuple[Executed, float] | None = None

    def hold(self, place: np.ndarray | None) -> None:
        """A person holds the robot there; None: lets go."""
        self.held, self.human = place, self.human or place is not None

    def latest(self) -> RobotState:
        self.authority = "policy" if self.held is None else "human"
        self.place = self.place if self.held is None else self.held
        sent = Executed(0.0, self.place, self.spec.names, self.authority, "", "", np.zeros(6), 0.01)
        self.executed = sent, time.monotonic()
        return RobotState(time.monotonic(), self.place.copy(), np.zeros(6))

    def aim(self, start: np.ndarray, target: np.ndarray, *times: float) -> None:
        self.state, self.place = "ACTIVE", target.copy()
        self.targets.append(target.copy())

    def setpoint(self, now: float) -> np.ndarray:
        return self.targets[-1]

    def last_command(self, state: RobotState) -> np.ndarray:
        return self.place.copy()

    def variables(self, state: RobotState) -> dict[str, np.ndarray]:
        return {}

    def take_reward(self) -> tuple[float, bool | None]:
        return 0.0, None

    def missing(self) -> list[str]:
        return []

    def camera_fault(self) -> str:
        return ""

    def release(self) -> None:
        self.state = "ARMED"

    def close(self) -> None:
        pass


@pytest.fixture
def env(monkeypatch):
    monkeypatch.setattr(module, "EnvLink", Link)
    made = Ros2Env(Ros2Options(robot_spec="", rate=50.0, reset_mode="none"), robot=RobotSpec.from_dict(SPEC))
    yield made
    made.close()


def test_moves_go_on_from_where_a_person_left_the_robot(env):
    """Else the next command lies where the policy was before, which the supervisor does not take up."""
    env.reset()
    env.step(np.zeros(6))
    for k in range(4):
        env.link.hold(np.array(SPEC["home"]) + 0.1 * (k + 1))
        *_, info = env.step(np.zeros(6))
        assert info["intervened"]
    env.link.hold(None)
    *_, info = env.step(np.full(6, 0.5))
    np.testing.assert_allclose(env.link.targets[-1], np.array(SPEC["home"]) + 0.4 + 0.015)
    *_, info = env.step(np.full(6, 0.5))
    assert not info["intervened"]
    np.testing.assert_allclose(env.link.targets[-1], np.array(SPEC["home"]) + 0.4 + 0.03)


def test_a_joint_that_turns_for_ever_goes_home_the_short_way(env):
    joints = [{**joint, "continuous": k == 0} for k, joint in enumerate(SPEC["joints"])]
    link = Link(RobotSpec.from_dict({**SPEC, "joints": joints}))
    link.place = link.place + np.array([6.0, 0.0, 0.0, 0.0, 0.0, 0.0])
    way = StartWay(link, StartOptions(reset_timeout=1.0), closing=threading.Event(), home=link.spec.home, policy=None)
    way.bring("home", operator_reset=False, rng=np.random.default_rng(0))
    assert link.place[0] == pytest.approx(2 * np.pi)
    assert min(target[0] for target in link.targets) > 5.99


def test_what_training_saw_of_a_picture_travels_with_its_interface(monkeypatch):
    """Whoever deploys the policy cuts the pictures as they were cut in training."""
    monkeypatch.setattr(module, "EnvLink", Link)
    spec = RobotSpec.from_dict({**SPEC, "cameras": {"front": {"topic": "front", "type": "sensor_msgs/Image"}}})
    made = Ros2Env(Ros2Options(robot_spec="", rate=50.0, crop={"front": (0.5, 0.0, 1.0, 1.0)}), robot=spec)
    assert IOSpec.from_dict(made.io.to_dict()).crop == {"image.front": (0.5, 0.0, 1.0, 1.0)}
    made.close()


def test_a_camera_of_distances_is_named_before_anything_moves(monkeypatch):
    kept = []
    clocks = SimpleNamespace(
        receipt=lambda info, now, clock: now, acquisition_time=lambda name, message, receipt: receipt
    )
    monkeypatch.setattr(camera_inputs, "subscribe", lambda node, kind, topic, keep, *rest: kept.append(keep))
    monkeypatch.setattr(camera_inputs, "SenderClocks", lambda node: clocks)
    cameras = camera_inputs.CameraInputs(None, None, {"depth": CameraSpec("depth/raw", "sensor_msgs/Image")})
    kept[0](Image(height=2, width=2, encoding="16UC1", step=4, data=bytes(8)), None)
    link = SimpleNamespace(
        spec=SimpleNamespace(cameras={"depth": CameraSpec("depth/raw", "sensor_msgs/Image")}), cameras=cameras,
        latest=lambda: 0, variables=lambda state: {}, external=(), state="IDLE", health=SimpleNamespace(mismatches={}),
        _out=SimpleNamespace(topic_name="/robot_rl/command/policy", get_subscription_count=lambda: 1),
    )  # fmt: skip
    assert EnvLink.missing(link) == [
        "no picture of camera depth on depth/raw: the picture has numbers of type uint16, such as distances, expected "
        "8 bit colours"
    ]
    link._out.get_subscription_count = lambda: 0
    assert EnvLink.missing(link)[-1] == "nobody listens on /robot_rl/command/policy"


def test_success_stands_until_the_next_message_and_a_label_is_of_one_step():
    """As in recordings: a world tells it when it changes."""
    told = SimpleNamespace(reward=2.0, success=True, label=None)
    assert [EnvLink.take_reward(told) for _ in range(2)] == [(2.0, True), (0.0, True)]
    told.label = False
    assert [EnvLink.take_reward(told) for _ in range(2)] == [(0.0, False), (0.0, True)]


def test_a_view_whose_turn_was_taken_is_cut_and_brings_the_robot_to_a_start_once(env, monkeypatch):
    """A person who puts the scene back by hand is not asked twice."""
    robot, asked = _Robot(env, ("", "")), []
    train, evaluation = Ros2VectorEnv(robot, 0), Ros2VectorEnv(robot, 1)
    bring = env._way.bring
    monkeypatch.setattr(env._way, "bring", lambda mode, **rest: (asked.append(mode), bring(mode, **rest)))
    for view in (train, evaluation):
        view.reset()
        view.step(np.zeros((1, 6)))
    _, reward, terminated, truncated, info = train.step(np.zeros((1, 6)))
    assert (reward, terminated, truncated, info["valid"]) == ([0.0], [False], [True], [False])
    train.reset()
    train.step(np.zeros((1, 6)))
    assert len(asked) == 3
    for view in (train, evaluation):
        view.close()


def test_a_reset_of_no_environment_resets_nothing(env):
    view = Ros2VectorEnv(_Robot(env, ("", "")), 0)
    view.reset()
    view.step(np.full((1, 6), 0.5))
    obs, _ = view.reset(options={"reset_mask": np.array([False])})
    np.testing.assert_allclose(obs["state"][0, :6], np.array(SPEC["home"]) + 0.015, rtol=1e-6)
    assert env._steps == 1
    view.step(np.full((1, 6), 0.5))
    view.close()
