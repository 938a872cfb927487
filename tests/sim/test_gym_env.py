import sys
from functools import cached_property
from typing import Any, cast

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from omegaconf import OmegaConf

from robot_rl.sim import crash, gym_copies, gym_state
from robot_rl.sim.check import check
from robot_rl.sim.gym_env import make, seeds
from robot_rl.verbs.compose import compose_verb


class Puzzle(gym.Env):
    """Observations of every kind; the state counts steps since the reset."""

    metadata = {"render_fps": 12}  # noqa: RUF012
    action_space = spaces.Box(np.array([0.0, -4.0]), np.array([1.0, 4.0]), dtype=np.float64)

    def __init__(self, gray=False, bad_step=None):
        shape = (4, 5, 1) if gray else (3, 4, 5)
        self.observation_space = spaces.Dict(
            {
                "pixels": spaces.Dict({"front": spaces.Box(0, 255, shape, np.uint8)}),
                "arm": spaces.Box(-1, 1, (2,), np.float64),
                "choice": spaces.Discrete(3, start=1),
            }
        )
        self.shape, self.gray, self.bad_step = shape, gray, bad_step

    def look(self):
        picture = np.zeros(self.shape, np.uint8)
        picture[0 if not self.gray else ...] = 10 + self.count
        arm = np.array([self.count, self.start])
        if self.count == self.bad_step:
            arm[1] = np.nan
        return {"pixels": {"front": picture}, "arm": arm, "choice": 1 + self.count % 3}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count, self.start = 0, self.np_random.random()
        return self.look(), {}

    def step(self, action):
        self.count += 1
        return self.look(), float(action[1]), self.count == 4, False, {"is_success": self.count == 3}


class Goal(gym.Env):
    observation_space = spaces.Dict(
        {key: spaces.Box(-9, 9, (1,)) for key in ("achieved_goal", "desired_goal", "observation")}
    )
    action_space = spaces.Box(-1, 1, (1,))

    def reset(self, *, seed=None, options=None):
        return {"achieved_goal": [1.0], "desired_goal": [2.0], "observation": [3.0]}, {}


class Opaque(gym.Env):
    """Holds an object that cannot be saved."""

    observation_space = spaces.Box(-9, 9, (1,))
    action_space = spaces.Box(-1, 1, (1,))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.thing = {"engine": self}
        self.x = self.np_random.random()
        return np.array([self.x]), {}

    def step(self, action):
        self.x += 1
        return np.array([self.x]), 0.0, False, False, {}


class Whole(Opaque):
    """Takes whole numbers, of which it gives the first as the reward; what `answers` holds it answers instead."""

    action_space = spaces.Box(0, 10, (1,), np.int64)
    answers = None

    def step(self, action):
        if isinstance(self.answers, BaseException):
            raise self.answers
        return self.answers or (np.array([self.x]), float(action[0]), False, False, {})


KINDS = (("Puzzle", Puzzle, 6), ("Goal", Goal, None), ("Opaque", Opaque, 50), ("Whole", Whole, 50))
for name, kind, limit in cast(Any, KINDS):
    gym.register(f"{name}-v0", kind, max_episode_steps=limit)


def test_dict_observations_are_flattened_in_the_order_of_the_space():
    env = make(2, 0, id="Puzzle-v0")
    # gymnasium sorts the keys of a Dict: arm, choice, pixels
    assert env.io.obs == {"state": ((5,), "float32"), "image.front": ((4, 5, 3), "uint8")}
    assert env.io.obs_names == ("arm[0]", "arm[1]", "choice=1", "choice=2", "choice=3")
    obs, _ = env.reset()
    assert obs["state"][:, [0, 2, 3, 4]].tolist() == [[0, 1, 0, 0]] * 2
    obs = env.step(np.zeros((2, 2)))[0]
    assert obs["state"][:, [0, 2, 3, 4]].tolist() == [[1, 0, 1, 0]] * 2
    assert obs["image.front"][1, :, :, 0].tolist() == [[11] * 5] * 4  # planes came first
    assert (obs["image.front"][1, :, :, 1:] == 0).all()
    assert env.io.control_hz == 12.0


def test_choice_below_the_first_is_refused_and_not_counted_from_the_end(monkeypatch):
    env, look = make(1, 0, id="Puzzle-v0"), Puzzle.look
    monkeypatch.setattr(Puzzle, "look", lambda self: {**look(self), "choice": 0})
    with pytest.raises(gym_copies.EnvironmentFailed, match=r"the choice 0 is none of the 3 from 1 on .* in Dict"):
        env.reset()


def test_gray_pictures_get_three_equal_channels():
    obs, _ = make(1, 0, id="Puzzle-v0", kwargs={"gray": True}).reset()
    assert obs["image.front"].shape == (1, 4, 5, 3)
    assert (obs["image.front"] == 10).all()


def test_goal_environments_give_observation_then_desired_goal():
    env = make(1, 0, id="Goal-v0")
    assert env.io.obs_names == ("observation[0]", "desired_goal[0]")
    assert env.reset()[0]["state"].tolist() == [[3.0, 2.0]]


def test_actions_are_scaled_once_and_clipped():
    env = make(3, 0, id="Puzzle-v0")
    env.reset()
    _, reward, _, _, info = env.step([[0, -1], [0, 0.25], [0, 7.0]])
    assert reward.tolist() == [-4.0, 1.0, 4.0]  # the second action spans [-4, 4]
    assert info["executed"][:, 1].tolist() == [-1.0, 0.25, 1.0]
    assert (env.io.action_low, env.io.action_high) == ((0.0, -4.0), (1.0, 4.0))


def test_whole_numbers_are_the_nearest_to_the_action():
    env = make(3, 0, id="Whole-v0")
    env.reset()
    assert env.step([[-0.85], [0.11], [0.95]])[1].tolist() == [1.0, 6.0, 10.0]  # 0.75, 5.55 and 9.75


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        (ArithmeticError("a motor"), r"Whole-v0, step\(\): ArithmeticError: a motor \(raised at test_gym_env\.py"),
        (SystemExit(3), r"SystemExit: 3 \(raised at"),
        (([0.0], 0.0, False, {}), r"ValueError: not enough .* truncated, info\) of step\(\), one number"),
        (([0.0], [0.0, 1.0], False, False, {}), r"one number as the reward, observations in Box\(-9"),
        (([0.0, 1.0], 0.0, False, False, {}), r"broadcast .* observations in Box\(-9"),
    ],
)
def test_what_an_environment_does_wrong_is_told_with_its_name(answers, said, monkeypatch):
    env = make(1, 0, id="Whole-v0")
    env.reset()
    monkeypatch.setattr(Whole, "answers", answers)
    with pytest.raises(gym_copies.EnvironmentFailed, match=said):
        env.step([[0.0]])


@pytest.mark.parametrize("workers", [0, 2])
def test_ended_episodes_return_successor_and_reset(workers):
    env = make(3, 0, id="HalfCheetah-v5", workers=workers, episode_steps=3)
    obs, _ = env.reset()
    plain = gym.make("HalfCheetah-v5").unwrapped
    first, _ = plain.reset(seed=seeds(0, 3)[2])
    assert obs["state"][2] == pytest.approx(first, abs=1e-6)
    actions = np.random.default_rng(0).uniform(-1, 1, (4, 3, 6)).astype(np.float32)
    for step in range(3):
        obs, reward, terminated, truncated, info = env.step(actions[step])
        onward, score, *_ = plain.step(actions[step, 2])
        assert info["final_obs"]["state"][2] == pytest.approx(onward, rel=1e-6)
        assert reward[2] == pytest.approx(score, rel=1e-6)
        assert truncated.tolist() == [step == 2] * 3
        assert not terminated.any()
    fresh, _ = plain.reset()  # the generator goes on
    assert obs["state"][2] == pytest.approx(fresh, abs=1e-6)
    env.close()


def test_tasks_without_a_notion_of_success_report_none():
    env = make(1, 0, id="HalfCheetah-v5")
    _, info = env.reset()
    assert "success" not in info
    assert "success" not in env.step(np.zeros((1, 6)))[4]
    env.close()


def test_termination_and_success_are_reported():
    env = make(2, 0, id="Puzzle-v0")
    env.reset()
    seen = [env.step(np.zeros((2, 2))) for _ in range(5)]
    assert [step[2].tolist() for step in seen] == [[k == 3] * 2 for k in range(5)]
    assert not any(step[3].any() for step in seen)
    assert [step[4]["success"].tolist() for step in seen] == [[k == 2] * 2 for k in range(5)]
    assert seen[3][4]["final_obs"]["state"][:, 0].tolist() == [4.0, 4.0]
    assert seen[3][0]["state"][:, 0].tolist() == [0.0, 0.0]
    assert (seen[3][4]["final_obs"]["image.front"][0, :, :, 0] == 14).all()
    assert (seen[3][0]["image.front"][0, :, :, 0] == 10).all()


def test_termination_on_the_last_step_is_no_truncation():
    env = make(1, 0, id="Puzzle-v0", episode_steps=4)
    env.reset()
    *_, terminated, truncated, _ = [env.step(np.zeros((1, 2))) for _ in range(4)][-1]
    assert (terminated.tolist(), truncated.tolist()) == ([True], [False])


def test_environment_i_depends_on_the_seed_and_i_alone():
    few, many = make(2, 3, id="Pendulum-v1"), make(4, 3, id="Pendulum-v1")
    assert np.array_equal(few.reset()[0]["state"], many.reset()[0]["state"][:2])
    assert not set(seeds(0, 50)) & set(seeds(1, 50))
    own = many.reset(seed=[9, 8, 7, 9])[0]["state"]
    assert np.array_equal(own[0], own[3])
    assert own[0] == pytest.approx(gym.make("Pendulum-v1").reset(seed=9)[0])
    with pytest.raises(ValueError, match="2 entries, expected 4"):
        many.reset(seed=[1, 2])


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("id", ["HalfCheetah-v5", "Ant-v5", "Pendulum-v1"])
def test_state_dict_continues_bit_for_bit_in_a_new_environment(id, workers):
    env, other = make(2, 0, id=id, workers=workers, episode_steps=30), make(2, 5, id=id, episode_steps=30)
    actions = np.random.default_rng(0).uniform(-1, 1, (70, 2, env.io.action_dim))
    env.reset()
    for action in actions[:13]:
        env.step(action)
    saved = env.state_dict()
    assert saved["exact"].tolist() == [True, True]
    assert not any(np.asarray(value).dtype == object for value in saved.values())
    other.load_state_dict(saved)
    assert np.array_equal(other.observe()["state"], env.observe()["state"])
    for action in actions:  # two episode ends included
        a, b = env.step(action), other.step(action)
        assert np.array_equal(a[0]["state"], b[0]["state"])
        assert np.array_equal(a[1], b[1])
        assert np.array_equal(a[3], b[3])
    env.close()


def test_a_state_between_contacts_is_restored():
    """MuJoCo has arrays of the bodies that touch, which are there after `mj_forward` and were not when it was saved."""
    env, other = make(1, 2, id="HalfCheetah-v5"), make(1, 2, id="HalfCheetah-v5")
    env.reset(seed=3)
    other.reset(seed=3)
    for action in np.random.default_rng(0).uniform(-1, 1, (60, 1, 6)):
        env.step(action)
        other.step(action)
        env.load_state_dict(env.state_dict())
        assert np.array_equal(env.observe()["state"], other.observe()["state"])


def test_state_dict_before_the_first_reset_keeps_the_seed():
    env, other = make(2, 0, id="Pendulum-v1"), make(2, 5, id="Pendulum-v1")
    other.load_state_dict(env.state_dict())
    assert np.array_equal(other.reset()[0]["state"], env.reset()[0]["state"])


def test_environment_that_cannot_be_saved_restarts_its_episode():
    env, other = make(2, 0, id="Opaque-v0"), make(2, 1, id="Opaque-v0")
    env.reset()
    for _ in range(5):
        env.step(np.zeros((2, 1)))
    saved = env.state_dict()
    assert saved["exact"].tolist() == [False, False]
    other.load_state_dict(saved)
    first = other.observe()["state"]
    assert (first < 1.0).all()  # a fresh episode starts in [0, 1)
    other.load_state_dict(saved)
    assert np.array_equal(other.observe()["state"], first)  # repeatable


def test_state_of_another_environment_is_refused():
    saved = make(2, 0, id="Pendulum-v1").state_dict()
    with pytest.raises(ValueError, match="2 copies of 'Pendulum-v1', expected 3 of 'Pendulum-v1'"):
        make(3, 0, id="Pendulum-v1").load_state_dict(saved)


def test_nan_names_environment_and_component():
    env = make(2, 0, id="Puzzle-v0", kwargs={"bad_step": 2})
    env.reset()
    env.step(np.zeros((2, 2)))
    with pytest.raises(
        crash.UnstableSimulationError, match=r"environment 0 gave nan in component 1 \('arm\[1\]'\)"
    ) as e:
        env.step(np.zeros((2, 2)))
    assert (e.value.index, e.value.key, e.value.path) == (0, "state", None)


def test_nan_from_mujoco_environment_leaves_a_state_to_repeat(tmp_path):
    env = make(2, 0, id="HalfCheetah-v5", crash_dir=str(tmp_path))
    env.reset()
    action = np.full((2, 6), 0.3, np.float32)
    env.step(action)
    cheetah = cast(Any, env._copies).envs[1].unwrapped
    cheetah._forward_reward_weight = np.nan
    before = cheetah.data.qpos.copy()
    with pytest.raises(crash.UnstableSimulationError, match="environment 1 gave nan in component 0 of reward") as e:
        env.step(action)
    states = crash.repeat(str(e.value.path))
    assert states.shape == (5, 1 + 9 + 9)  # frame skip 5
    assert np.array_equal(states[-1, 1:10], cheetah.data.qpos)
    assert not np.array_equal(states[-1, 1:10], before)


def test_a_warning_of_mujoco_leaves_no_file_where_the_command_is_run(tmp_path, monkeypatch, capfd):
    env = make(1, 0, id="HalfCheetah-v5", crash_dir=str(tmp_path / "crash"))
    env.reset()
    monkeypatch.chdir(tmp_path)
    task = cast(Any, env._copies).envs[0].unwrapped
    task.data.qvel[0] = 1e30
    task.do_simulation(np.zeros(6), 1)
    assert "QVEL" in capfd.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_nan_action_names_the_environment():
    env = make(2, 0, id="HalfCheetah-v5")
    env.reset()
    with pytest.raises(ValueError, match=r"environment 1 is nan at 2 \('bfoot'\)"):
        env.step(np.where(np.arange(12).reshape(2, 6) == 8, np.nan, 0.0))
    assert np.isfinite(env.step(np.full((2, 6), np.inf))[1]).all()  # clipped


@pytest.mark.parametrize(
    ("id", "message"),
    [
        ("HalfCheeta-v5", "no Gymnasium environment 'HalfCheeta-v5'; similar: .*HalfCheetah-v5"),
    ],
)
def test_ids_that_do_not_fit_say_why(id, message):
    with pytest.raises(ValueError, match=message):
        make(1, 0, id=id)


def test_spaces_that_do_not_fit_say_why():
    with pytest.raises(ValueError, match="unbounded actions"):
        gym_copies.action_box(spaces.Box(-np.inf, np.inf, (2,)), "X-v0")
    with pytest.raises(ValueError, match="actions from Dict"):
        gym_copies.action_box(spaces.Dict({"a": spaces.Discrete(2)}), "X-v0")
    with pytest.raises(ValueError, match="observation 'words' is Text"):
        gym_copies.layout(spaces.Dict({"words": spaces.Text(3)}))
    with pytest.raises(ValueError, match=r"expected \(H, W, 3\)"):
        gym_copies.layout(spaces.Box(0, 255, (8, 8, 4), np.uint8))


def test_error_in_a_worker_arrives_with_its_traceback():
    env = make(2, 0, id="HalfCheetah-v5", workers=1)
    with pytest.raises(RuntimeError, match="step"):
        env.step(np.zeros((2, 6)))
    with pytest.raises(RuntimeError, match="IndexError"):
        env._workers[0].ask(gym_copies.Copies.reset, (7, 0))
    env.close()


def test_render_gives_frames():
    env = make(2, 0, id="Puzzle-v0")
    assert env.render() is None
    env.close()


ROBOTICS = ["FetchReach-v4", "FetchPickAndPlace-v4", "HandReach-v3", "HandManipulateBlock-v1", "FrankaKitchen-v1"]


class Remembers(gym.Env):
    """Observes twice its seed, which it computes once an episode and keeps, as Meta-World keeps bounds of its goal."""

    observation_space, action_space = spaces.Box(-1e9, 1e9, (1,), np.float64), spaces.Box(-1.0, 1.0, (1,), np.float64)
    start = 0.0

    @cached_property
    def twice(self):
        return spaces.Box(2.0 * self.start, 2.0 * self.start, (1,), np.float64)

    def reset(self, *, seed=None, options=None):
        self.start = float(seed or 0)
        vars(self).pop("twice", None)
        return self.twice.low, {}


def test_what_an_environment_keeps_of_its_state_is_made_anew_when_it_is_restored():
    one, other = Remembers(), Remembers()
    assert one.reset(seed=3)[0] == 6.0
    assert other.reset(seed=5)[0] == 10.0
    state = gym_state.save(one, gym_state.nominal_model(one))
    assert state is not None
    gym_state.load(other, gym_state.nominal_model(other), state)
    assert other.start == 3.0
    assert other.twice.low == 6.0


def test_tables_with_keys_of_any_plain_kind_are_saved_also_of_tasks_on_mujoco():
    one, other = (gym.make("InvertedPendulum-v5").unwrapped for _ in range(2))
    table = {1: 0.5, (2, 3): [np.float32(4.0)], "name": {5: None}}
    vars(one)["table"] = table
    state = gym_state.save(one, gym_state.nominal_model(one))
    assert state is not None
    gym_state.load(other, gym_state.nominal_model(other), state)
    assert vars(other)["table"] == table


FOREIGN = {
    "Meta-World/MT1": ("metaworld", {"env_name": "pick-place-v3", "seed": 1}),
    "dm_control/walker-walk-v0": ("shimmy", {}),
    "robot_rl/Robosuite-v0": ("robosuite", {"task": "Lift"}),
}
"""Id -> the package that brings it, and arguments."""


def foreign(id, num_envs=2, seed=0, **options):
    """Copies of it, or a skip where package and MuJoCo do not fit."""
    package, kwargs = FOREIGN.get(id, ("gymnasium_robotics", {}))
    pytest.importorskip(package)
    try:
        return make(num_envs, seed, id=id, kwargs=kwargs, **options)
    except ImportError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("id", [*ROBOTICS, "AdroitHandDoor-v1", "Meta-World/MT1"])
def test_robotics_environments_run_and_continue_bit_for_bit(id):
    env, other = (foreign(id, 2, seed, episode_steps=20) for seed in (0, 1))
    actions = np.random.default_rng(0).uniform(-1, 1, (50, 2, env.io.action_dim))
    env.reset()
    for action in actions[:7]:
        env.step(action)
    other.load_state_dict(env.state_dict())
    for action in actions:
        a, b = env.step(action), other.step(action)
        assert np.array_equal(a[0]["state"], b[0]["state"])
        assert np.array_equal(a[1], b[1])


@pytest.mark.parametrize("id", FOREIGN)
def test_suites_of_others_start_as_their_seed_says_and_run(id):
    env = foreign(id, 2, 0, episode_steps=5)
    first = env.reset(seed=3)[0]["state"].copy()
    again, others = env.reset(seed=3)[0]["state"].copy(), env.reset(seed=4)[0]["state"].copy()
    assert np.array_equal(first, again)
    assert not np.allclose(first, others)
    assert not np.allclose(first[0], first[1])
    steps = [env.step(np.zeros((2, env.io.action_dim))) for _ in range(5)]
    for obs, reward, *_ in steps:
        assert np.isfinite(obs["state"]).all()
        assert (reward >= 0.0).all()
    assert [bool(truncated.all()) for *_, truncated, _ in steps] == [False] * 4 + [True]
    assert not any(terminated.any() for *_, terminated, _, _ in steps)


@pytest.mark.parametrize(("id", "actions"), [("LunarLander-v3", 1), ("BipedalWalker-v3", 4)])
def test_tasks_of_box2d_run_and_say_that_they_cannot_be_saved(id, actions):
    env = make(2, 0, id=id)
    assert env.io.action_dim == actions
    first = env.reset(seed=3)[0]["state"].copy()
    assert np.isfinite(env.step(np.zeros((2, actions)))[0]["state"]).all()
    assert np.array_equal(env.reset(seed=3)[0]["state"], first)
    [said] = check(make(2, 0, id=id), steps=120)
    assert said.startswith("it cannot be saved")


@pytest.mark.parametrize(
    ("preset", "id", "expected"),
    [
        ("fetch", "Push", {"id": "FetchPush-v4"}),
        ("dm_control", "cheetah-run", {"id": "dm_control/cheetah-run-v0"}),
        ("metaworld", "reach-v3", {"id": "Meta-World/MT1", "kwargs": {"env_name": "reach-v3", "seed": 1}}),
        ("robosuite", "Lift", {"id": "robot_rl/Robosuite-v0", "kwargs": {"task": "Lift", "robot": "Panda"}}),
    ],
)
def test_a_preset_names_the_task_of_a_suite(preset, id, expected):
    cfg = compose_verb("train", {"env": preset}, {"id": id})
    found: Any = OmegaConf.to_container(cfg.env, resolve=True)
    assert {key: found[key] for key in expected} == expected


def test_a_suite_that_is_not_installed_is_told_with_the_line_that_brings_it(monkeypatch):
    lines = {
        "metaworld": "pip install metaworld",
        "shimmy": r"shimmy\[dm-control\]",
        "robosuite": "pip install robosuite",
    }
    for id, (package, _) in FOREIGN.items():
        monkeypatch.setitem(sys.modules, package, None)
        with pytest.raises(ImportError, match=lines[package]):
            make(1, 0, id=id)


def test_stacked_frames_are_saved():
    def stacked(**options):
        return gym.wrappers.FrameStackObservation(gym.make("InvertedPendulum-v5", **options).unwrapped, 3)

    gym.register("StackedPole-v0", entry_point=stacked, max_episode_steps=50)
    one, other = (make(1, seed, id="StackedPole-v0") for seed in (1, 2))
    one.reset()
    for _ in range(5):
        one.step(np.zeros((1, 1)))
    other.load_state_dict(one.state_dict())
    np.testing.assert_array_equal(*(env.step(np.zeros((1, 1)))[0]["state"] for env in (one, other)))
