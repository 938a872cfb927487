"""The world walk on a robot with a card: what its policies see, where feet are, what is paid, and the scripted trot."""
# pyright: reportPossiblyUnboundVariable=false, reportArgumentType=false, reportAttributeAccessIssue=false

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from robot_rl import card
from robot_rl.legs import Body, observe
from robot_rl.real.legged_port import COMMAND, IMU, LeggedPort
from robot_rl.sim.engine_options import EngineOptions
from robot_rl.sim.legs_card import new_legs_card
from robot_rl.sim.legs_scene import scene
from robot_rl.sim.mujoco_env import make
from robot_rl.sim.robot_model import mujoco
from robot_rl.sim.worlds.walk import Walk
from robot_rl.types.card import Card
from robot_rl.types.card_model import MODELS

ROBOTS = next((p for p in (up / "shared/data/robots" for up in Path(__file__).parents) if p.exists()), Path("absent"))
pytestmark = pytest.mark.skipif(not ROBOTS.exists(), reason="the folder shared/data/robots is absent")


@pytest.fixture(autouse=True)
def _models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MODELS, str(ROBOTS))


@pytest.fixture
def go2() -> Card:
    return card.read("go2")


def turned(q: np.ndarray) -> np.ndarray:
    """MuJoCo's w, x, y, z as x, y, z, w."""
    return np.array([q[1], q[2], q[3], q[0]])


def test_a_state_is_what_the_policy_node_makes_of_imu_and_joints(go2: Card) -> None:
    world = Walk(robot=go2)
    env = make(3, 0, world=world, options=EngineOptions(num_threads=1))
    obs, _ = env.reset(seed=0)
    action = np.random.default_rng(0).uniform(-1, 1, (3, 12)).astype(np.float32)
    for _ in range(4):
        obs, *_ = env.step(action)
    view = env._view
    for row in range(3):
        q, v = view.qpos[row], view.qvel[row]
        phase = float(view.task["phase"][row]) + 4 / (0.4 * 50.0)
        body = Body(
            orientation=turned(q[3:7]), angular_velocity=v[3:6], command=view.task["command"][row], position=q[7:],
            velocity=v[6:], last_action=action[row], time=0.4 * phase,
        )  # fmt: skip
        assert obs["state"][row] == pytest.approx(observe(world.policy_card, body), abs=1e-5)


def test_an_action_is_the_same_target_in_the_world_and_at_the_port(go2: Card) -> None:
    world = Walk(robot=go2)
    names = tuple(joint.name for joint in go2.joints)
    port = LeggedPort(world.policy_card, names)
    task = {IMU: np.array([0, 0, 0, 1.0, *np.zeros(6)]), COMMAND: np.zeros(3)}
    port.reset(np.zeros(12), np.zeros(12), task)
    assert port.act(np.full((1, 12), 0.5)) == pytest.approx(np.array(go2.home) + 0.35)  # half of 0.7 rad
    assert port.io.action_low == pytest.approx(world.action_low)
    assert port.io.obs_names == world.obs_names


def test_feet_are_the_ends_of_the_legs_and_stand_on_the_floor(go2: Card) -> None:
    found = scene(go2)
    signs = [(x > 0, y > 0) for x, y, _ in found.feet]
    assert signs == [(True, True), (True, False), (False, True), (False, False)]  # FL, FR, RL, RR as in the card
    assert found.feet[:, 2].min() == pytest.approx(0.022, abs=1e-4)  # radius of a foot: it touches
    biped = scene(card.read("g1"))
    assert len(biped.feet) == 2
    assert biped.feet[0, 1] == pytest.approx(-biped.feet[1, 1], abs=1e-6)
    model = mujoco.MjModel.from_xml_string(found.xml)
    assert model.opt.timestep == 0.004
    assert model.actuator_gainprm[:, 0] == pytest.approx(40.0)


def test_standing_pays_for_standing_and_a_trunk_on_its_side_has_fallen(go2: Card) -> None:
    world = Walk(robot=go2, forward=(0.0, 0.0), side=(0.0, 0.0), turn=(0.0, 0.0), lift=0.0)
    env = make(2, 0, world=world, options=EngineOptions(num_threads=1))
    env.reset(seed=0)
    for _ in range(50):
        _, reward, terminated, *_ = env.step(np.zeros((2, 12), np.float32))
    assert not terminated.any()
    assert (reward > 1.2).all()  # of 1.5 for velocity and turning
    view = env._view
    view.qpos[0, 3:7] = [np.cos(np.pi / 4), np.sin(np.pi / 4), 0.0, 0.0]  # rolled by 90 degrees
    assert world.terminated(view).tolist() == [True, False]


def test_critics_are_told_how_fast_the_trunk_goes_and_how_high_feet_are(go2: Card) -> None:
    env = make(2, 0, world=Walk(robot=go2), options=EngineOptions(critic_state=True))
    try:
        env.reset(seed=0)
        for _ in range(20):
            obs = env.step(env.expert())[0]
        width = obs["state"].shape[1]
        assert np.array_equal(obs["privileged"][:, :width], obs["state"])
        velocity, height, feet = np.split(obs["privileged"][:, width:], [3, 4], axis=1)
        for row in range(2):
            turn = np.zeros(9)
            mujoco.mju_quat2Mat(turn, env.physics.qpos[row, 3:7])
            assert velocity[row] == pytest.approx(turn.reshape(3, 3).T @ env.physics.qvel[row, :3], abs=1e-5)
        assert height[:, 0] == pytest.approx(env.physics.qpos[:, 2])
        assert feet.shape == (2, 4)
        assert (feet > -0.01).all()
        assert (feet < 0.15).all()
    finally:
        env.close()


def test_the_scripted_trot_follows_commands(go2: Card) -> None:
    env = make(20, 0, world=Walk(robot=go2), options=EngineOptions(num_threads=2))
    obs, _ = env.reset(seed=1)
    for _ in range(499):
        obs, *_ = env.step(env.expert(obs))
    task = env._view.task
    assert np.mean((task["speed_error"] < 0.25 * 499) & (task["turn_error"] < 0.4 * 499)) >= 0.85


def test_legs_of_another_kind_stand() -> None:
    world = Walk(robot=card.read("g1"))
    assert not world.expert(np.ones((2, len(world.obs_names)), np.float32)).any()


def test_the_trot_leaves_an_arm_on_the_back_where_it_is(tmp_path: Path) -> None:
    link = "<geom type='capsule' size='.02' fromto='0 0 0 {0} 0 -.2'/>"
    leg = (
        "<body pos='{x} {y} 0'><joint name='{i}a' axis='1 0 0' range='-60 60'/>" + link.format("0") + "<body>"
        "<joint name='{i}b' axis='0 1 0' range='-90 90'/>" + link.format(".1") + "<body pos='.1 0 -.2'>"
        "<joint name='{i}c' axis='0 1 0' range='-150 90'/>" + link.format("-.1") + "</body></body></body>"
    )
    legs = "".join(leg.format(i=i, x=0.2 * (1 - i // 2 * 2), y=0.1 * (1 - i % 2 * 2)) for i in range(4))
    arm = "<body pos='0 0 .1'><joint name='arm' axis='0 1 0' range='-90 90'/><geom size='.03'/></body>"
    (tmp_path / "dog.xml").write_text(
        "<mujoco><worldbody><body name='trunk' pos='0 0 .5'><freejoint/><geom type='box' size='.2 .1 .04'/>"
        f"{legs}{arm}</body></worldbody></mujoco>"
    )
    made = new_legs_card(str(tmp_path / "dog.xml"), "dog")
    assert made is not None
    world = Walk(robot=made[0])
    action = world.expert(np.full((2, len(world.obs_names)), 0.3, np.float32))
    assert action.shape == (2, 13)
    assert action[:, :12].any()
    assert not action[:, 12].any()


def test_what_cannot_walk_is_told_in_one_sentence(go2: Card) -> None:
    with pytest.raises(ValueError, match="walk needs the card of a robot on legs: robot=go2"):
        Walk()
    with pytest.raises(ValueError, match="is that of a robot without legs"):
        Walk(robot=card.read("fr3")).mjcf()
    weak = go2.joints[0].model_copy(update={"kp": 0.0})
    with pytest.raises(ValueError, match="kp and kd of FL_hip_joint"):
        Walk(robot=go2.model_copy(update={"joints": (weak, *go2.joints[1:])})).mjcf()
    with pytest.raises(ValueError, match=r"forward is \[1\.0, 0\.0\]"):
        Walk(robot=go2, forward=(1.0, 0.0))
