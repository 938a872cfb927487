import mujoco
import numpy as np
import pytest
import torch

from robot_rl import build
from robot_rl.sim.engine_options import EngineOptions
from robot_rl.sim.mujoco_env import make
from robot_rl.sim.randomize import Randomize, Randomizer
from robot_rl.sim.randomize_torch import TorchRandomizer
from robot_rl.sim.world import Reset
from robot_rl.words import Refused


def pushed(env, steps=1, push=1.0):
    """Velocities after pushing all cars from rest."""
    env.reset()
    obs = [env.step(np.full((env.num_envs, 1), push))[0] for _ in range(steps)][-1]
    return obs["state"][:, 1].astype(float)


def test_mass_changes_the_acceleration(slider):
    env = make(6, 0, world=slider(), options=EngineOptions(randomize=Randomize(mass=(0.5, 2.0))))
    speed = pushed(env)
    factor = env.state_dict()["random.factor.mass"][:, 2]  # bodies: world, goal, car
    assert len(np.unique(factor)) == 6
    assert speed == pytest.approx(10.0 / (2.0 * factor) * 0.04, rel=1e-5)  # 10 N for 40 ms


def test_gain_changes_the_force(slider):
    env = make(6, 0, world=slider(), options=EngineOptions(randomize=Randomize(gain=(0.5, 2.0))))
    speed = pushed(env)
    factor = env.state_dict()["random.factor.gain"][:, 0]
    assert speed == pytest.approx(10.0 * factor / 2.0 * 0.04, rel=1e-5)


def test_gain_keeps_the_rest_point_of_a_position_servo(slider):
    class Servo(slider):
        episode_steps = 400

        def control(self, view, action):
            return 0.3 + 0.0 * action

    xml = slider().xml.replace('<motor joint="x" gear="1"/>', '<position joint="x" kp="50" kv="20"/>')
    env = make(3, 0, world=Servo(xml=xml), options=EngineOptions(randomize=Randomize(gain=(0.5, 2.0))))
    env.reset()
    obs = [env.step(np.zeros((3, 1)))[0] for _ in range(200)][-1]
    assert obs["state"][:, 0] == pytest.approx(0.3, abs=1e-3)


def test_damping_changes_the_decay(slider):
    xml = slider().xml.replace('axis="1 0 0"', 'axis="1 0 0" damping="4"')
    env = make(4, 0, world=slider(xml=xml), options=EngineOptions(randomize=Randomize(damping=(0.5, 2.0))))
    speed = pushed(env)
    factor = env.state_dict()["random.factor.damping"][:, 0]
    expected = np.zeros(4)
    for _ in range(4):  # Euler with implicit damping: (m + h d) v' = m v + h F
        expected = (2.0 * expected + 0.01 * 10.0) / (2.0 + 0.01 * 4.0 * factor)
    assert speed == pytest.approx(expected, rel=1e-5)


def test_friction_changes_the_sliding_distance(slider):
    """A car that slides on a plane decelerates with mu * g."""
    xml = slider().xml.replace('gravity="0 0 0"', 'gravity="0 0 -10"')
    xml = xml.replace(
        '<joint name="x" type="slide" axis="1 0 0"/>',
        '<joint name="x" type="slide" axis="1 0 0"/><joint type="slide" axis="0 0 1"/>',
    )
    xml = xml.replace("</worldbody>", '<geom type="plane" size="5 5 1" pos="0 0 -0.1"/></worldbody>')

    class Sliding(slider):
        def reset(self, draw, n, xp):
            start = super().reset(draw, n, xp)
            start.qpos = xp.concat([start.qpos, xp.zeros((n, 1))], axis=1)
            start.qvel = xp.concat([xp.ones((n, 1)), xp.zeros((n, 1))], axis=1)
            return start

        def observe(self, view):
            return view.xp.concat([view.qpos[:, :1], view.qvel[:, :1], view.qpos, view.qvel[:, 1:]], axis=1)

    env = make(4, 0, world=Sliding(xml=xml), options=EngineOptions(randomize=Randomize(friction=(0.2, 0.6))))
    speed = pushed(env, steps=5, push=0.0)  # 0.2 s
    factor = env.state_dict()["random.factor.friction"][:, 0]
    assert (speed > 0).all()
    lost = 1.0 - speed
    # nominal sliding friction is 1: mu = factor; the soft contact settles within a few steps
    assert lost == pytest.approx(factor * 10.0 * 0.2, rel=0.15)
    assert np.array_equal(np.argsort(lost), np.argsort(factor))


def test_latency_of_whole_control_steps_delays_the_effect(slider):
    env = make(
        2, 0, world=slider(), options=EngineOptions(randomize=Randomize(latency=(0.08, 0.08)))
    )  # two control steps
    assert pushed(env, 2) == pytest.approx([0.0, 0.0])
    assert pushed(env, 3) == pytest.approx([0.2, 0.2])  # 5 m/s^2 for 40 ms


def test_latency_of_physics_steps_delays_within_a_control_step(slider):
    env = make(
        2, 0, world=slider(), options=EngineOptions(randomize=Randomize(latency=(0.05, 0.05)))
    )  # one control step and 10 ms
    assert pushed(env, 1) == pytest.approx([0.0, 0.0])
    assert pushed(env, 2) == pytest.approx([0.15, 0.15])  # 30 ms of 5 m/s^2
    assert pushed(env, 3) == pytest.approx([0.35, 0.35])


def test_latency_range_gives_each_environment_its_own_delay(slider):
    env = make(40, 0, world=slider(), options=EngineOptions(randomize=Randomize(latency=(0.0, 0.08))))
    speed = pushed(env, 2)
    steps = env.state_dict()["random.factor.latency"]
    assert set(steps.tolist()) == set(range(9))  # 0 to 8 physics steps of 10 ms
    assert speed == pytest.approx(0.05 * (8 - steps), abs=1e-6)


def test_latency_starts_anew_with_the_episode(slider):
    world = slider()
    world.episode_steps = 3
    env = make(1, 0, world=world, options=EngineOptions(randomize=Randomize(latency=(0.08, 0.08))))
    env.reset()
    speeds = [float(env.step([[1.0]])[4]["final_obs"]["state"][0, 1]) for _ in range(6)]
    assert speeds == pytest.approx([0, 0, 0.2, 0, 0, 0.2])


def test_noise_is_added_to_the_observation_alone(slider):
    quiet = make(400, 0, world=slider())
    noisy = make(400, 0, world=slider(), options=EngineOptions(randomize=Randomize(noise=(0.1, 0.0, 0.0, 0.0, 0.0))))
    difference = noisy.reset()[0]["state"] - quiet.reset()[0]["state"]
    assert difference[:, 0].std() == pytest.approx(0.1, rel=0.12)  # 400 numbers: standard error 3.5 %
    assert (difference[:, 1:] == 0).all()
    push = np.zeros((400, 1))
    again = noisy.step(push)[0]["state"] - quiet.step(push)[0]["state"]
    assert again[:, 0].std() == pytest.approx(0.1, rel=0.12)
    assert abs(np.corrcoef(difference[:, 0], again[:, 0])[0, 1]) < 0.2  # drawn anew
    assert np.array_equal(noisy.physics.qpos, quiet.physics.qpos)


def test_factors_per_episode_change_and_per_environment_stay(slider):
    for options, same in (
        (Randomize(mass=(0.5, 2.0), per="episode"), False),
        (Randomize(mass=(0.5, 2.0), per="environment"), True),
    ):
        env = make(3, 0, world=slider(), options=EngineOptions(randomize=options))
        env.reset()
        first = env.state_dict()["random.factor.mass"]
        env.reset()
        assert np.array_equal(env.state_dict()["random.factor.mass"], first) == same
        env.reset(seed=0)
        assert np.array_equal(env.state_dict()["random.factor.mass"], first)


def test_factors_do_not_depend_on_the_number_of_environments(slider):
    options = Randomize(mass=(0.5, 2.0), latency=(0.0, 0.1))
    few, many = (
        make(2, 1, world=slider(), options=EngineOptions(randomize=options)),
        make(5, 1, world=slider(), options=EngineOptions(randomize=options)),
    )
    assert np.array_equal(pushed(few, 4), pushed(many, 4)[:2])


def test_saved_randomised_environment_continues_bit_for_bit(slider):
    options = Randomize(mass=(0.5, 2), gain=(0.5, 2), damping=(0.5, 2), friction=(0.5, 2), latency=(0, 0.1), noise=0.05)
    env, other = (make(3, seed, world=slider(), options=EngineOptions(randomize=options)) for seed in (0, 9))
    actions = np.random.default_rng(0).uniform(-1, 1, (60, 3, 1))
    env.reset()
    for action in actions[:7]:
        env.step(action)
    other.load_state_dict(env.state_dict())
    for action in actions:
        assert np.array_equal(env.step(action)[0]["state"], other.step(action)[0]["state"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mass": (2.0, 1.0)}, "the first is above the second"),
        ({"mass": (0.0, 1.0)}, "removes the body"),
        ({"latency": (-0.1, 0.1)}, "0 <= low <= high"),
        ({"per": "step"}, "expected episode or environment"),
        ({"noise": -1.0}, "expected standard deviations"),
    ],
)
def test_impossible_ranges_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Randomize(**options)


def test_options_come_from_a_configuration_as_a_mapping():
    node = {"engine": "mujoco", "world": {"name": "halfcheetah"}, "randomize": {"mass": [3.0, 3.0]}}
    env = build.make("engine", node, num_envs=1, seed=0, device="cpu")
    plain = build.make("engine", {**node, "randomize": None}, num_envs=1, seed=0, device="cpu")
    push = np.ones((1, 6), np.float32)
    assert env.reset()[0]["state"].tolist() == plain.reset()[0]["state"].tolist()
    heavy, light = (float(np.abs(one.step(push)[0]["state"][0, 8:]).mean()) for one in (env, plain))
    assert heavy < light
    with pytest.raises(Refused, match=r"env\.randomize\.masss is no option of env\.randomize; did you mean mass"):
        build.make("engine", {**node, "randomize": {"masss": [1.0, 1.0]}}, num_envs=1, seed=0, device="cpu")


def test_saved_state_of_other_options_is_refused(slider):
    saved = make(2, 0, world=slider(), options=EngineOptions(randomize=Randomize(latency=(0.0, 0.1)))).state_dict()
    with pytest.raises(ValueError, match=r"history of shape \(2, 4, 1\), expected \(2, 1, 1\)"):
        make(2, 0, world=slider()).load_state_dict(saved)


FREE = """
<mujoco><option timestep="0.01" gravity="0 0 0"/>
  <worldbody><body name="car"><freejoint/><geom type="box" size="0.1 0.1 0.1" mass="2"/></body></worldbody>
  <actuator><motor site="s" gear="1 0 0 0 0 0"/></actuator>
</mujoco>
""".replace("</body>", '<site name="s"/></body>')


class Ship:
    """A body that floats, at 25 Hz."""

    name, control_hz, episode_steps, cameras = "ship", 25.0, 100_000, ()
    action_names, action_low, action_high, action_units = ("push",), (-1.0,), (1.0,), ("N",)
    obs_names = ("vx", "vy")

    def mjcf(self):
        return FREE

    def reset(self, draw, n, xp):
        qpos = xp.zeros((n, 7))
        qpos[:, 3] = 1.0
        return Reset(qpos, xp.zeros((n, 6)), xp.zeros((n, 1)), {})

    def control(self, view, action):
        return 0.0 * action

    def update(self, view):
        """Nothing to remember."""

    def observe(self, view):
        return view.qvel[:, :2]

    def reward(self, view):
        return 0.0 * view.qvel[:, 0]

    def terminated(self, view):
        return view.qvel[:, 0] > 1e9

    success = terminated


def test_pushes_come_every_four_seconds_in_any_direction_with_the_speed_asked_for():
    env = make(50, 0, world=Ship(), options=EngineOptions(randomize=Randomize(push=(0.2, 0.4))))
    obs, _ = env.reset()
    before, changes = obs["state"], []
    for _ in range(200):  # 8 s
        now = env.step(np.zeros((50, 1)))[0]["state"]
        changes.append(now - before)
        before = now
    size = np.linalg.norm(np.concatenate(changes), axis=1)
    pushed_rows = size > 1e-6
    assert pushed_rows.sum() == pytest.approx(50 * 8 / 4, abs=4 * 10)  # four deviations of a count of 100
    assert size[pushed_rows].min() >= 0.2 - 1e-5
    assert size.max() <= 0.4 + 1e-5
    assert np.abs(np.concatenate(changes)[pushed_rows].mean(0)).max() < 0.1  # no direction is preferred
    saved, following = env.state_dict(), env.step(np.zeros((50, 1)))[0]["state"]
    env.load_state_dict(saved)
    assert np.array_equal(env.step(np.zeros((50, 1)))[0]["state"], following)


def test_pushes_of_a_robot_that_stands_fast_are_refused(slider):
    with pytest.raises(ValueError, match="pushes a trunk that is free to move"):
        make(2, 0, world=slider(), options=EngineOptions(randomize=Randomize(push=(0.2, 0.4))))


def test_pushes_are_the_same_on_tensors():
    model = mujoco.MjModel.from_xml_string(FREE)
    options = Randomize(push=(0.2, 0.4))
    arrays = Randomizer(options, 40, 3, model, 4)
    tensors = TorchRandomizer(options, 40, 3, model, 4, device=torch.device("cpu"))
    pushes = np.array([arrays.push() for _ in range(50)])
    assert pushes.any(axis=(1, 2)).sum() > 5
    twins = torch.stack([found for found in (tensors.push() for _ in range(50)) if found is not None])
    assert twins.numpy() == pytest.approx(pushes, abs=1e-6)


def test_noise_of_another_length_is_refused(slider):
    with pytest.raises(ValueError, match=r"noise has 7 numbers, and the state of world '.*' has [0-9]+ components"):
        make(1, 0, world=slider(), options=EngineOptions(randomize=Randomize(noise=(0.1,) * 7)))
