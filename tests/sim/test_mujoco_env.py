from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, VectorEnv

from robot_rl.sim import crash
from robot_rl.sim.engine_options import EngineOptions
from robot_rl.sim.mujoco_env import make
from robot_rl.sim.mujoco_physics import mujoco


def actions(count, num_envs=3, seed=0):
    return np.random.default_rng(seed).uniform(-1, 1, (count, num_envs, 1)).astype(np.float32)


def test_spaces_and_passport_describe_the_world(slider):
    env = make(3, 0, world=slider())
    assert isinstance(env, VectorEnv)
    assert env.io.obs == {"state": ((5,), "float32")}
    assert env.io.obs_names == ("x", "v", "tip", "goal", "previous push")
    assert (env.io.action_low, env.io.action_high, env.io.action_units) == ((-10.0,), (10.0,), ("N",))
    assert env.io.control_hz == 25.0
    assert env.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    obs, info = env.reset()
    assert env.observation_space.contains(obs)
    assert obs["state"].dtype == np.float32
    assert info["success"].tolist() == [False] * 3


def test_step_follows_newton_with_semi_implicit_euler(slider):
    env = make(1, 0, world=slider())
    x, v = float(env.reset()[0]["state"][0, 0]), 0.0
    obs = env.step([[0.5]])[0]
    for _ in range(4):  # 5 N on 2 kg for 4 steps of 10 ms
        v += 2.5 * 0.01
        x += v * 0.01
    assert obs["state"][0, :2] == pytest.approx([x, v], abs=1e-6)


def test_sensors_belong_to_the_state_after_steps_and_resets(slider):
    env = make(4, 0, world=slider())
    obs, _ = env.reset()
    for action in actions(45, 4):  # episodes of 20 steps: resets included
        state = obs["state"]
        assert state[:, 2] == pytest.approx(state[:, 0] + 0.5, abs=1e-6)  # the site is half a metre ahead
        obs, *_, info = env.step(action)
        final = info["final_obs"]["state"]
        assert final[:, 2] == pytest.approx(final[:, 0] + 0.5, abs=1e-6)


def test_truncated_episode_returns_the_true_successor_and_a_fresh_observation(slider):
    env, twin = make(2, 0, world=slider(limit=9.0)), make(2, 0, world=slider(limit=9.0))
    setattr(twin.world, "episode_steps", 10**6)  # noqa: B010  (read-only in the contract)
    env.reset()
    twin.reset()
    obs: Any = None
    info: Any = None
    for step, action in enumerate(actions(20, 2), 1):
        obs, _, terminated, truncated, info = env.step(action)
        onward = twin.step(action)[0]  # the same physics without the time limit
        assert np.array_equal(info["final_obs"]["state"], onward["state"])
        assert truncated.tolist() == [step == 20] * 2
        assert not terminated.any()
    assert not np.array_equal(obs["state"], info["final_obs"]["state"])
    assert (obs["state"][:, 1] == 0).all()  # a fresh episode stands still
    assert (obs["state"][:, 4] == 0).all()  # and has no previous action


def test_termination_wins_over_the_time_limit(slider):
    world = slider(spread=0.0, limit=0.5)
    world.episode_steps = 15
    env = make(1, 0, world=world)
    env.reset()
    terminated: Any = None
    truncated = obs = info = terminated
    # 5 m/s^2 from rest: 0.5 m after about sqrt(2 * 0.5 / 5) = 0.447 s = 11.2 control steps
    for step in range(1, 13):
        obs, _, terminated, truncated, info = env.step([[1.0]])
        assert terminated[0] == (step == 12)
    assert not truncated[0]
    assert info["final_obs"]["state"][0, 0] > 0.5
    assert obs["state"][0, 0] == 0.0


def test_only_ended_environments_are_reset(slider):
    env = make(2, 0, world=slider(spread=0.0, limit=0.5))
    env.reset()
    obs, _, terminated, _, info = [env.step([[1.0], [0.1]]) for _ in range(12)][-1]
    assert terminated.tolist() == [True, False]
    assert obs["state"][1, 0] > 0
    assert np.array_equal(obs["state"][1], info["final_obs"]["state"][1])
    assert info["_final_obs"].tolist() == [True, False]


def test_success_comes_from_the_updated_variables(slider):
    env = make(8, 0, world=slider(spread=0.3))
    obs, _ = env.reset()
    near = np.zeros(8, int)
    for _ in range(19):
        obs, _, _, _, info = env.step(env.expert(obs))
        near = (near + 1) * (np.abs(obs["state"][:, 0] - obs["state"][:, 3]) < 0.1)
        assert info["success"].tolist() == (near >= 2).tolist()
    assert near.max() >= 2


def test_executed_is_the_clipped_action(slider):
    env = make(2, 0, world=slider())
    env.reset()
    info = env.step([[3.0], [-0.25]])[4]
    assert info["executed"].tolist() == [[1.0], [-0.25]]
    assert info["executed"].dtype == np.float32
    assert info["intervened"].tolist() == [False, False]


def test_bad_actions_name_the_environment_and_the_actuator(slider):
    env = make(3, 0, world=slider())
    with pytest.raises(RuntimeError, match="before the first reset"):
        env.step(np.zeros((3, 1)))
    env.reset()
    with pytest.raises(ValueError, match=r"environment 1 is nan at 0 \('push'\)"):
        env.step([[0.0], [np.nan], [0.0]])
    with pytest.raises(ValueError, match=r"shape \(3,\), expected \(3, 1\)"):
        env.step(np.zeros(3))


def test_trajectory_of_an_environment_depends_neither_on_the_number_nor_on_the_threads(slider):
    played = []
    for count, threads in ((5, 1), (2, 1), (5, 2)):
        env = make(count, 3, world=slider(), options=EngineOptions(num_threads=threads))
        states = [env.reset()[0]["state"][:2]]
        states += [env.step(action[:count])[0]["state"][:2] for action in actions(70, 5)]
        played.append(np.array(states))
    assert np.array_equal(played[0], played[1])
    assert np.array_equal(played[0], played[2])


def test_reset_with_a_seed_repeats_and_without_continues(slider):
    env = make(3, 5, world=slider())
    first, second = env.reset()[0]["state"], env.reset()[0]["state"]
    assert not np.array_equal(first, second)
    assert np.array_equal(env.reset(seed=5)[0]["state"], first)
    assert np.array_equal(env.reset()[0]["state"], second)
    assert not np.array_equal(env.reset(seed=6)[0]["state"], first)
    assert np.array_equal(env.reset(seed=[4, 8, 4])[0]["state"][0], env.reset(seed=[4, 9, 9])[0]["state"][0])


def test_reset_mask_resets_these_rows_only(slider):
    env = make(3, 0, world=slider())
    env.reset()
    before = env.step(actions(1)[0])[0]["state"]
    after = env.reset(options={"reset_mask": np.array([False, True, False])})[0]["state"]
    assert np.array_equal(before[[0, 2]], after[[0, 2]])
    assert after[1, 1] == 0


def test_state_dict_continues_bit_for_bit_in_a_new_environment(slider):
    env = make(3, 0, world=slider())
    env.reset()
    for action in actions(13):
        env.step(action)
    saved = {key: np.array(value, copy=True) for key, value in env.state_dict().items()}
    assert not any(value.dtype == object for value in saved.values())
    expected = [env.step(action) for action in actions(40, seed=1)]
    other = make(3, 77, world=slider())
    other.load_state_dict(saved)
    for action, (obs, reward, _, truncated, info) in zip(actions(40, seed=1), expected):
        obs2, reward2, _, truncated2, info2 = other.step(action)
        assert np.array_equal(obs["state"], obs2["state"])
        assert np.array_equal(reward, reward2)
        assert np.array_equal(truncated, truncated2)
        assert np.array_equal(info["final_obs"]["state"], info2["final_obs"]["state"])


def test_state_dict_gives_back_the_current_observation(slider):
    env = make(2, 0, world=slider())
    env.reset()
    obs = env.step(actions(1, 2)[0])[0]
    saved = env.state_dict()
    env.step(actions(1, 2)[0])
    env.load_state_dict(saved)
    assert np.array_equal(env.observe()["state"], obs["state"])


def test_state_dict_of_another_number_of_environments_is_refused(slider):
    saved = make(2, 0, world=slider()).state_dict()
    with pytest.raises(ValueError, match=r"\(2, 31\) for 'physics', expected \(3, 31\)"):
        make(3, 0, world=slider()).load_state_dict(saved)


def test_diverging_physics_is_reported_and_can_be_repeated(slider, tmp_path):
    class Bomb(slider):
        def control(self, view, action):
            return np.where(action > 0.9, 1e9, action)

    world = Bomb(xml=slider().xml.replace('gear="1"', 'gear="1e6"'))  # MuJoCo warns from 1e10 m/s^2 on
    env = make(2, 0, world=world, options=EngineOptions(crash_dir=str(tmp_path)))
    env.reset()
    env.step([[0.0], [0.0]])
    x = env.physics.qpos[1, 0]
    with pytest.raises(crash.UnstableSimulationError, match="slider: environment 1 diverged at step 2") as caught:
        env.step([[0.0], [1.0]])
    assert (caught.value.index, caught.value.key) == (1, "physics")
    states = crash.repeat(str(caught.value.path))
    assert states.shape == (4, 3)
    assert states[0, 1] - x == pytest.approx(5e14 * 0.01**2)  # 1e15 N on 2 kg: the first step throws the car away


def test_nan_from_a_term_names_the_observation(slider, tmp_path):
    class Root(slider):
        def observe(self, view):
            state = super().observe(view)
            state[:, 1] = np.sqrt(state[:, 1])  # NaN as soon as the car moves backwards
            return state

    env = make(2, 0, world=Root(), options=EngineOptions(crash_dir=str(tmp_path)))
    env.reset()
    with (
        np.errstate(invalid="ignore"),
        pytest.raises(crash.UnstableSimulationError, match="component 1 of state") as caught,
    ):
        env.step([[1.0], [-1.0]])
    assert caught.value.index == 1
    assert crash.repeat(str(caught.value.path))[-1, 2] == pytest.approx(-0.2)  # -5 m/s^2 for 40 ms


def test_wrong_shapes_from_a_world_name_the_term(slider):
    class Narrow(slider):
        def reset(self, draw, n, xp):
            start = super().reset(draw, n, xp)
            start.qpos = start.qpos[:, 0]
            return start

    with pytest.raises(ValueError, match=r"slider.reset returned qpos of shape \(2,\), expected \(2, 1\)"):
        make(2, 0, world=Narrow()).reset()


def test_options_that_do_not_fit_say_what_does(slider):
    with pytest.raises(ValueError, match=r"no camera 'back'; it has \['front'\]"):
        make(1, 0, world=slider(), options=EngineOptions(cameras=("back",)))
    with pytest.raises(ValueError, match="nothing to observe"):
        make(1, 0, world=slider(), options=EngineOptions(state=False))
    world = slider()
    world.control_hz = 30.0
    with pytest.raises(ValueError, match=r"gives 3\.33333 physics steps per control step, expected a whole number"):
        make(1, 0, world=world)
    with pytest.raises(ValueError, match="num_threads is 0"):
        make(1, 0, world=slider(), options=EngineOptions(num_threads=0))


def test_a_world_that_keeps_a_view_of_the_state_keeps_its_values(slider):
    class Keeper(slider):
        def update(self, view):
            super().update(view)
            view.task["goal"][:, 1] = view.task["goal"][:, 2]
            view.task["goal"][:, 2] = view.qpos[:, 0]
            view.task["last"] = view.qpos[:, 0]

        def reset(self, draw, n, xp):
            start = super().reset(draw, n, xp)
            start.task["last"] = xp.zeros((n,))
            return start

        def observe(self, view):
            state = super().observe(view)
            state[:, 3] = view.task["last"] - view.task["goal"][:, 2]
            return state

    env = make(1, 0, world=Keeper())
    env.reset()
    for _ in range(3):
        assert env.step([[1.0]])[0]["state"][0, 3] == 0.0


def test_closed_environment_says_so(slider):
    env = make(1, 0, world=slider())
    env.reset()
    env.close()
    with pytest.raises(RuntimeError, match="closed"):
        env.step([[0.0]])


def test_equals_plain_mujoco_stepping_with_contacts(slider):
    """Falling ball on a plane: the pool's trajectory against mj_step in a loop."""
    ground = '<geom type="plane" size="5 5 1" pos="0 0 -0.3"/>'
    ball = '<body pos="3 0 0"><freejoint/><geom size="0.1"/></body>'
    xml = slider().xml.replace('gravity="0 0 0"', 'gravity="0 0 -9.81"')
    xml = xml.replace("</worldbody>", f"{ground}{ball}</worldbody>")

    class Ball(slider):
        def reset(self, draw, n, xp):
            start = super().reset(draw, n, xp)
            pose = xp.tile(xp.asarray([3.0, 0, 0.1, 1, 0, 0, 0]), (n, 1))
            start.qpos = xp.concat([start.qpos, pose], axis=1)
            start.qvel = xp.zeros((n, 7))
            return start

        def observe(self, view):
            return view.xp.concat([view.qpos[:, :1], view.qvel[:, :1], view.qpos[:, 3:4], view.qpos[:, :2]], axis=1)

    env = make(2, 0, world=Ball(xml=xml))
    env.reset()
    model = mujoco.MjModel.from_xml_string(xml)
    data = mujoco.MjData(model)
    data.qpos[:] = env.physics.qpos[1]
    for action in actions(19, 2):
        env.step(action)
        data.ctrl[:] = 10.0 * action[1]
        mujoco.mj_step(model, data, 4)
    assert data.ncon > 0
    assert np.array_equal(env.physics.qpos[1], data.qpos)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("cameras", ("frnt",), r"names the cameras \['frnt'\]; its model has \['"),
        ("markers", {"nobody": "goal"}, "'nobody' is not a mocap body"),
        ("markers", {"goal": "gaol"}, "at the variable 'gaol', and reset returned"),
        ("episode_steps", 0, "episode_steps is 0, expected at least 1"),
    ],
)
def test_names_that_the_model_has_not_are_told_at_the_start(slider, name, value, message):
    world = slider()
    setattr(world, name, value)
    with pytest.raises(ValueError, match=message):
        make(2, 0, world=world).reset()


@pytest.mark.parametrize("term", ["success", "terminated"])
def test_score_in_place_of_a_flag_is_refused(slider, term):
    world = slider()
    setattr(world, term, lambda view: abs(view.qpos[:, 0]))
    env = make(2, 0, world=world)
    env.reset()
    with pytest.raises(TypeError, match=rf"{term} returned float.*compare with a threshold"):
        env.step(np.zeros((2, 1), np.float32))


def test_mistyped_sensor_is_answered_with_those_that_there_are(slider):
    world = slider()
    world.reward = lambda view: view.sensors["tpi"][:, 0]
    env = make(2, 0, world=world)
    env.reset()
    with pytest.raises(ValueError, match=r"no sensor 'tpi'; it has \["):
        env.step(np.zeros((2, 1), np.float32))


def test_reward_that_is_not_finite_is_not_blamed_on_the_physics(slider, tmp_path):
    world = slider()
    world.reward = lambda view: view.qpos[:, 0] * np.nan
    env = make(2, 0, world=world, options=EngineOptions(crash_dir=str(tmp_path)))
    env.reset()
    with pytest.raises(crash.UnstableSimulationError, match=r"physics is finite, so .*reward made it"):
        env.step(np.zeros((2, 1), np.float32))
