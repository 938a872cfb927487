"""The Isaac Gym engine against a strict double: calls with their real parameters, motion that MuJoCo computes."""

import importlib
import importlib.util
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from robot_rl.sim import isaac_env, isaac_model, mujoco_env
from robot_rl.sim.check import check
from robot_rl.sim.engine_options import TensorOptions
from robot_rl.sim.randomize import Randomize
from robot_rl.sim.tensor_env import TensorVectorEnv
from robot_rl.sim.worlds.double_pendulum import DoublePendulum
from robot_rl.sim.worlds.halfcheetah import HalfCheetah
from robot_rl.sim.worlds.insert import Insert
from robot_rl.sim.worlds.pick import Pick
from robot_rl.sim.worlds.quadruped import Quadruped
from robot_rl.sim.worlds.race import Race
from robot_rl.sim.worlds.reach import Reach

mujoco: Any = importlib.import_module("mujoco")
DOUBLE = Path(__file__).with_name("isaac_double.py")
CPU = torch.device("cpu")


def load_double() -> Any:
    spec = importlib.util.spec_from_file_location("isaac_double", DOUBLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def make(world: Any, num_envs: int, **options: Any) -> TensorVectorEnv:
    randomize = Randomize(**options)
    physics = isaac_env.IsaacPhysics(
        mujoco.MjModel.from_xml_string(world.mjcf()),
        num_envs,
        world.control_hz,
        device=CPU,
        latency=randomize.latency is not None,
        command=[sys.executable, str(DOUBLE)],
    )
    o = TensorOptions(randomize=randomize)
    return TensorVectorEnv(num_envs, 0, world=world, physics=physics, device=CPU, options=o)


@pytest.mark.parametrize("world", [Reach, Pick, Insert, Quadruped, HalfCheetah, DoublePendulum])
def test_actors_have_the_inertia_of_the_world(world: Any) -> None:
    """Mass matrix of every tree at a random pose, from the written MJCF and from the whole model."""
    model = mujoco.MjModel.from_xml_string(world().mjcf())
    data = mujoco.MjData(model)
    rng = np.random.default_rng(0)
    data.qpos[:] = model.qpos0 + rng.uniform(-0.3, 0.3, model.nq)
    mujoco.mj_normalizeQuat(model, data.qpos)
    mujoco.mj_forward(model, data)
    whole = np.zeros((model.nv, model.nv))
    mujoco.mj_fullM(model, whole, data.qM) if hasattr(data, "qM") else mujoco.mj_fullM(model, data, whole)
    velocities: list[int] = []
    for actor in isaac_model.actors(model):
        small = mujoco.MjModel.from_xml_string(actor.xml)
        state = mujoco.MjData(small)
        ours: list[int] = []
        if actor.free:
            state.qpos[:7] = data.qpos[actor.qpos : actor.qpos + 7]
            ours += range(actor.qvel, actor.qvel + 6)
        for name, (position, velocity) in actor.joints.items():
            state.qpos[small.joint(name).qposadr[0]] = data.qpos[position]
            ours.append(velocity)
            assert small.joint(name).range.tolist() == pytest.approx(model.joint(name).range.tolist(), rel=1e-6)
        mujoco.mj_forward(small, state)
        mass = np.zeros((small.nv, small.nv))
        mujoco.mj_fullM(small, mass, state.qM) if hasattr(state, "qM") else mujoco.mj_fullM(small, state, mass)
        np.testing.assert_allclose(mass, whole[np.ix_(ours, ours)], rtol=1e-4, atol=1e-5)
        velocities += ours
    assert sorted(velocities) == list(range(model.nv))  # nothing that moves is left out


def test_drives_are_the_actuators_of_the_world() -> None:
    dog = isaac_model.actors(mujoco.MjModel.from_xml_string(Quadruped().mjcf()))[0]
    assert (dog.free, dog.gravity) == (True, True)
    thigh = {drive.joint: drive for drive in dog.drives}["fl_thigh"]
    assert (thigh.mode, thigh.stiffness, thigh.effort, thigh.gear) == ("position", 50.0, 30.0, 1.0)
    car = isaac_model.actors(mujoco.MjModel.from_xml_string(HalfCheetah().mjcf()))[0]
    thigh = {drive.joint: drive for drive in car.drives}["bthigh"]
    assert (thigh.mode, thigh.gear, thigh.low, thigh.high) == ("effort", 120.0, -1.0, 1.0)
    arm, cube = isaac_model.actors(mujoco.MjModel.from_xml_string(Pick().mjcf()))
    assert (arm.free, arm.gravity, cube.free, cube.gravity) == (False, False, True, True)


def test_models_without_counterpart_are_refused_by_name(slider: Any) -> None:
    with pytest.raises(ValueError, match="sensors"):
        isaac_model.actors(mujoco.MjModel.from_xml_string(slider().mjcf()))
    with pytest.raises(ValueError, match="tendons"):  # the differential of the car
        isaac_model.actors(mujoco.MjModel.from_xml_string(Race().mjcf()))
    wall = "<mujoco><worldbody><geom name='wall' type='box' size='1 1 1'/></worldbody></mujoco>"
    with pytest.raises(ValueError, match="wall is fixed to the world"):
        isaac_model.ground(mujoco.MjModel.from_xml_string(wall))
    ball = (
        "<mujoco><worldbody><body name='b'><joint type='ball' name='hip'/><geom size='1'/></body></worldbody></mujoco>"
    )
    with pytest.raises(ValueError, match="hip is a ball joint"):
        isaac_model.actors(mujoco.MjModel.from_xml_string(ball))


def test_arm_moves_as_on_the_cpu_engine() -> None:
    """Same seed, same actions, an episode and a half: joints, drives and gravity are those of the world."""
    ours, theirs = make(Reach(), 2), mujoco_env.make(2, 0, world=Reach())
    a, b = ours.reset()[0], theirs.reset()[0]
    rng = np.random.default_rng(0)
    for step in range(60):
        np.testing.assert_allclose(a["state"].numpy(), b["state"], atol=1e-2, err_msg=f"step {step}")
        action = rng.uniform(-1, 1, (2, 3)).astype(np.float32)
        # gently and upwards: at the force limit a joint's own damping counts, and the table is softer in the double
        action = 0.4 * np.abs(action) * np.array([np.sign(action[0, 0]), np.sign(action[0, 1]), 1.0], np.float32)
        a, reward, *_ = ours.step(torch.from_numpy(action))
        b, other, *_ = theirs.step(action)
        np.testing.assert_allclose(reward.numpy(), other, atol=1e-3)
    ours.close()


def test_quadruped_stands_and_turns_are_told_in_its_own_frame() -> None:
    env, reference = make(Quadruped(), 2, latency=[0.0, 0.01]), mujoco_env.make(2, 0, world=Quadruped())
    obs, first = env.reset()[0]["state"].numpy(), reference.reset()[0]["state"]
    np.testing.assert_allclose(obs, first, atol=1e-5)
    zero = torch.zeros((2, 12))
    for _ in range(50):
        obs, _, terminated, _, _ = env.step(zero)
        assert not terminated.any()
    assert (env.physics.qpos[:, 2] > 0.2).all()
    findings = check(env, steps=20)
    # episodes are longer than that, and what PhysX (or MuJoCo's solver) keeps beside the state is not saved
    assert [text.split(",")[0] for text in findings] == [
        "no episode ended within 20 steps; set a time limit",
        "after load_state_dict(state_dict()) the run goes on differently",
    ]
    env.close()


def test_worker_calls_isaac_gym_in_the_order_that_it_wants() -> None:
    double = load_double()
    gymapi, gymtorch, gym = double.modules()
    model = mujoco.MjModel.from_xml_string(Pick().mjcf())
    actors = isaac_model.actors(model)
    task = {
        "num_envs": 3,
        "device": "cpu",
        "timestep": 0.005,
        "substeps": 2,
        "gravity": [0, 0, -9.81],
        "ground": isaac_model.ground(model),
        "actors": [actor.plain() for actor in actors],
    }
    engine = double.load_worker().Engine(task, gymapi, gymtorch, torch)
    assert len(engine.dofs) == 8
    assert tuple(engine.root.shape) == (3, 2, 13)
    root = torch.zeros(3, 2, 13)
    root[:, :, 6] = 1.0
    root[:, 1, :3] = torch.tensor([0.4, 0.0, 0.5])
    dof = torch.full((3, 8, 2), 0.02)
    engine.place(torch.tensor([1, 0, 1], dtype=torch.uint8), root, dof)
    engine.step(torch.zeros((3, 1, 3, 8)))
    assert engine.root[0, 1, 2] < 0.5  # the cube falls where it was placed ...
    assert abs(engine.root[1, 1, 0]) < 1e-6  # ... and environment 1 was left alone
    engine.close()
    calls = [name for name in gym.calls if name not in ("create_actor", "create_env")]
    assert calls == [
        *("create_sim", "add_ground", "load_asset", "load_asset", "prepare_sim", "acquire_actor_root_state_tensor"),
        *("refresh_actor_root_state_tensor", "acquire_dof_state_tensor", "refresh_dof_state_tensor"),
        *("set_actor_root_state_tensor_indexed", "set_dof_state_tensor_indexed"),
        *("simulate", "fetch_results") * 2,
        *("refresh_actor_root_state_tensor", "refresh_dof_state_tensor", "destroy_sim"),
    ]


def test_worker_that_fails_says_so(tmp_path: Path) -> None:
    script = tmp_path / "worker.py"
    script.write_text("import sys; sys.exit(3)")
    model = mujoco.MjModel.from_xml_string(Reach().mjcf())
    with pytest.raises(RuntimeError, match="exit code 3"):
        isaac_env.IsaacPhysics(model, 1, 10.0, device=CPU, command=[sys.executable, str(script)])
    worker = Path(isaac_env.isaac_worker.__file__).resolve()
    with pytest.raises(RuntimeError, match="No module named 'isaacgym'"):
        isaac_env.IsaacPhysics(model, 1, 10.0, device=CPU, command=[sys.executable, str(worker)])


def test_without_an_interpreter_the_error_says_how_to_get_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(isaac_env.VARIABLE, raising=False)
    with pytest.raises(ImportError, match=r"ISAACGYM_PYTHON is not set.*\n.*conda create -n isaacgym python=3.8"):
        isaac_env.make(1, 0, world=Reach())
    with pytest.raises(ValueError, match="randomize changes the model"):
        isaac_env.make(1, 0, world=Reach(), options=TensorOptions(randomize=Randomize(mass=(0.5, 1.0))))
    monkeypatch.setenv(isaac_env.VARIABLE, "/nowhere/python")
    with pytest.raises(ImportError, match="which is no program"):
        isaac_env.interpreter()


def test_worker_is_written_for_old_pythons() -> None:
    import ast

    ast.parse(Path(isaac_env.isaac_worker.__file__).read_text(), feature_version=(3, 7))
