"""The batch of copies against `mj_step` in a loop over one `MjData` per copy: equal bit for bit."""

import importlib

import numpy as np
import pytest

from robot_rl.sim.engine_options import EngineOptions
from robot_rl.sim.mujoco_env import make
from robot_rl.sim.mujoco_physics import Physics, check_version, mujoco
from robot_rl.sim.randomize import factor_sizes
from robot_rl.sim.worlds.imitate import Imitate, ImitateOptions

FULL = int(mujoco.mjtState.mjSTATE_INTEGRATION)
WORLDS = ("reach", "pick", "insert", "transfer", "quadruped", "halfcheetah", "imitate", "double_pendulum")
BALLS = """<mujoco><option timestep="0.005"/><worldbody><geom type="plane" size="5 5 1"/>
<body pos="0 0 0.15"><freejoint/><geom size="0.1" mass="1"/><site name="s" size="0.2"/></body>
<body pos="0 0 0.5"><joint name="turn" damping="0.1"/><geom size="0.05" pos="0.2 0 0" mass="0.5"/></body></worldbody>
<actuator><position joint="turn" kp="3"/></actuator>
<sensor><touch name="touch" site="s"/><accelerometer name="accelerometer" site="s"/><framepos name="place"
objtype="site" objname="s"/></sensor></mujoco>"""


def world(name):
    if name == "imitate":
        return Imitate(ImitateOptions())
    module = importlib.import_module(f"robot_rl.sim.worlds.{name}")
    return getattr(module, name.title().replace("_", "").replace("Halfcheetah", "HalfCheetah"))()


def loop(model, states):
    """One MjData per row of (N, nstate) states."""
    copies = [mujoco.MjData(model) for _ in states]
    for data, state in zip(copies, states):
        mujoco.mj_setState(model, data, state, FULL)
    return copies


def state_of(model, data):
    out = np.zeros(mujoco.mj_stateSize(model, FULL))
    mujoco.mj_getState(model, data, out, FULL)
    return out


def sensors_of(model, data):
    """Sensor values of the state that a step has left, by another MjData, so that the simulation goes on untouched."""
    fresh = mujoco.MjData(model)
    mujoco.mj_setState(model, fresh, state_of(model, data), FULL)
    mujoco.mj_forward(model, fresh)
    return fresh.sensordata.copy()


def balls(count, threads=1):
    physics = Physics(BALLS, count, 50.0, num_threads=threads)
    qpos = np.tile(physics.model.qpos0, (count, 1))
    qpos[:, 2] += np.linspace(-0.06, 0.1, count)  # some in the ground, some above
    physics.place(np.arange(count), qpos, np.zeros((count, 7)), np.zeros((count, 1)))
    return physics


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("name", WORLDS)
def test_worlds_equal_a_loop_of_mj_step_bit_for_bit(name, threads):
    env = make(5, 3, world=world(name), options=EngineOptions(num_threads=threads))
    env.reset()
    physics, model = env.physics, env.physics.model
    reference = loop(model, physics.state)
    rng = np.random.default_rng(0)
    for _ in range(12):
        before = physics.ctrl.copy()
        control = before + 0.3 * rng.standard_normal(before.shape)
        physics.step(control)
        for data, row in zip(reference, control):
            data.ctrl[:] = row
            mujoco.mj_step(model, data, physics.substeps)
    for i, data in enumerate(reference):
        assert np.array_equal(physics.state[i], state_of(model, data))
        assert np.array_equal(
            np.concatenate([[0.0], *(v[i] for v in physics.sensors.values())]),
            np.concatenate([[0.0], sensors_of(model, data)]),
        )


def test_accelerations_and_contacts_are_those_of_the_state_and_leave_it_alone():
    physics = balls(6, threads=2)
    reference = loop(physics.model, physics.state)
    for _ in range(20):
        physics.step(np.full((6, 1), 0.4))
        for data in reference:
            data.ctrl[:] = 0.4
            mujoco.mj_step(physics.model, data, 4)
    values = np.concatenate([physics.sensors[x] for x in ("touch", "accelerometer", "place")], axis=1)
    for i, data in enumerate(reference):
        assert np.array_equal(physics.state[i], state_of(physics.model, data))
        assert np.array_equal(values[i], sensors_of(physics.model, data))
    assert (physics.sensors["touch"] > 0).any()


def test_a_control_per_physics_step_equals_the_loop():
    physics = balls(4)
    reference = loop(physics.model, physics.state)
    control = np.random.default_rng(1).standard_normal((4, 4, 1))
    physics.step(control)
    for i, data in enumerate(reference):
        for row in control[i]:
            data.ctrl[:] = row
            mujoco.mj_step(physics.model, data)
        assert np.array_equal(physics.state[i], state_of(physics.model, data))
        assert np.array_equal(physics.sensors["place"][i], sensors_of(physics.model, data)[-3:])
    assert np.array_equal(physics.controls(2), control[2])


def test_some_rows_are_placed_and_the_others_stay():
    physics = balls(4)
    physics.step(np.full((4, 1), 0.4))
    before = physics.state.copy()
    height = physics.sensors["place"].copy()
    qpos = np.tile(physics.model.qpos0, (2, 1))
    qpos[:, 2] = 2.0
    physics.place(np.array([1, 3]), qpos, np.zeros((2, 7)), np.zeros((2, 1)))
    assert np.array_equal(physics.state[[0, 2]], before[[0, 2]])
    assert np.array_equal(physics.sensors["place"][[0, 2]], height[[0, 2]])
    assert physics.sensors["place"][[1, 3], 2].tolist() == [2.0, 2.0]
    assert physics.time.tolist() == [0.02, 0.0, 0.02, 0.0]


def test_scaled_copies_equal_models_that_are_changed_and_set_up_again():
    physics, rng = balls(3), np.random.default_rng(2)
    factors = {
        name: rng.uniform(0.5, 2.0, (3, size)).astype(np.float32) for name, size in factor_sizes(physics.model).items()
    }
    physics.scale(np.arange(3), factors)
    start = physics.state.copy()
    for _ in range(10):
        physics.step(np.full((3, 1), 0.4))
    for i in range(3):
        model = mujoco.MjModel.from_xml_string(BALLS)
        model.opt.disableflags = physics.model.opt.disableflags
        model.body_mass[:] *= factors["mass"][i]
        model.body_inertia[:] *= factors["mass"][i][:, None]
        model.geom_friction[:] *= factors["friction"][i]
        model.dof_damping[:] *= factors["damping"][i]
        model.actuator_gainprm[:, :3] *= factors["gain"][i][:, None]
        model.actuator_biasprm[:, :3] *= factors["gain"][i][:, None]
        mujoco.mj_setConst(model, mujoco.MjData(model))
        saved = np.zeros(mujoco.mj_sizeModel(model), np.uint8)
        mujoco.mj_saveModel(model, None, saved)
        assert np.array_equal(physics.model_bytes(i), saved)
        data = loop(model, start[i : i + 1])[0]
        data.ctrl[:] = 0.4
        mujoco.mj_step(model, data, 40)
        assert np.array_equal(physics.state[i], state_of(model, data))


def test_a_copy_that_diverged_is_whole_again_when_it_is_placed():
    physics = balls(3)
    physics.qvel[1] = np.inf
    physics.step(np.zeros((3, 1)))
    assert physics.broken().tolist() == [1]
    qpos = physics.model.qpos0[None]
    physics.place(np.array([1]), qpos, np.zeros((1, 7)), np.zeros((1, 1)))
    physics.step(np.zeros((3, 1)))
    assert not len(physics.broken())


def test_a_closed_engine_says_so():
    physics = balls(2)
    physics.close()
    with pytest.raises(RuntimeError, match="the environment is closed; make a new one"):
        physics.step(np.zeros((2, 1)))


@pytest.mark.parametrize("version", ["3.3.7", "3.16.0", "2.9"])
def test_an_older_mujoco_is_refused_by_its_version(version):
    with pytest.raises(
        ImportError, match=rf"MuJoCo {version} is installed.*came with 3.17: pip install 'mujoco>=3.17'"
    ):
        check_version(version)


@pytest.mark.parametrize("version", ["3.17.0", "4.0.0", "3.18.0rc1"])
def test_a_newer_mujoco_is_taken(version):
    check_version(version)
