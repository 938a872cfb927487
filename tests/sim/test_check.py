import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from robot_rl.sim.check import check
from robot_rl.sim.engine_options import EngineOptions
from robot_rl.sim.gym_env import make as make_gym
from robot_rl.sim.mujoco_env import make
from robot_rl.sim.randomize import Randomize
from robot_rl.types import EnvParts, IOSpec


class Broken:
    """An environment with one thing wrong: attributes in `fields`, functions over what reset and step return."""

    def __init__(self, env, *, reset=None, step=None, **fields):
        self._env, self._reset, self._step, self._fields = env, reset, step, fields

    def __getattr__(self, name):
        if name in self._fields:
            if self._fields[name] is AttributeError:
                raise AttributeError(name)
            return self._fields[name]
        return getattr(self._env, name)

    def reset(self, *, seed=None, options=None):
        if self._reset is not None:
            return self._reset(self._env, seed, options)
        return self._env.reset(seed=seed, options=options)

    def step(self, actions):
        if self._step is None:
            return self._env.step(actions)
        return self._step(self._env, actions)


@pytest.fixture
def env(slider):
    return make(3, 0, world=slider())


def changed(position, change):
    """A step that changes one of its five results."""

    def step(env, actions):
        out = list(env.step(actions))
        out[position] = change(out[position])
        return tuple(out)

    return step


def only(findings, text):
    assert len(findings) == 1, findings
    assert text in findings[0]


def test_a_world_without_a_scripted_controller_is_fine_and_says_that_it_has_none(slider):
    class Mute(slider):
        expert = None

    env = make(2, 0, world=Mute())
    assert check(env) == []
    assert env.parts.expert is None
    with pytest.raises(ValueError, match="no scripted controller"):
        env.expert()


def test_our_engines_are_fine(slider):
    options = Randomize(mass=(0.5, 2), latency=(0, 0.1), noise=0.1)
    assert check(make(3, 0, world=slider())) == []
    assert check(make(3, 0, world=slider(), options=EngineOptions(randomize=options))) == []
    assert check(make_gym(2, 0, id="Pendulum-v1")) == []


def test_missing_passport(env):
    only(check(Broken(env, io=None)), "env.io is NoneType, expected robot_rl.types.IOSpec")


def test_observation_space_that_is_no_dict(env):
    only(
        check(Broken(env, single_observation_space=gymnasium.spaces.Box(-1, 1, (5,)))), "expected a Dict with the keys"
    )


def test_observation_space_against_passport(env):
    space = gymnasium.spaces.Dict({"state": gymnasium.spaces.Box(-1, 1, (5,), np.float64)})
    only(check(Broken(env, single_observation_space=space)), "is float64[5], io.obs says float32[5]")
    space = gymnasium.spaces.Dict({"position": gymnasium.spaces.Box(-1, 1, (5,))})
    only(check(Broken(env, single_observation_space=space)), "has ['position'], io.obs has ['state']")


def passport(env, **fields):
    return IOSpec.from_dict({**env.io.to_dict(), **fields})


def test_kinds_of_observations(env):
    io = passport(env, obs={"state": {"shape": [5, 1], "dtype": "float32"}}, obs_names=[])
    space = gymnasium.spaces.Dict({"state": gymnasium.spaces.Box(-1, 1, (5, 1))})
    only(check(Broken(env, io=io, single_observation_space=space)), "expected float32 (S,); flatten it")
    io = passport(env, obs={"image.top": {"shape": [3, 8, 8], "dtype": "uint8"}}, obs_names=[])
    space = gymnasium.spaces.Dict({"image.top": gymnasium.spaces.Box(0, 255, (3, 8, 8), np.uint8)})
    only(check(Broken(env, io=io, single_observation_space=space)), "expected uint8 pictures (H, W, 3)")


def test_names_and_rate_of_the_passport(env):
    only(check(Broken(env, io=passport(env, obs_names=["x"]))), "has 1 names for 5 components")
    only(check(Broken(env, io=passport(env, control_hz=0.0))), "io.control_hz is 0.0")


def test_action_space_in_physical_units(env):
    only(check(Broken(env, single_action_space=gymnasium.spaces.Box(-10, 10, (1,)))), "scale to physical units inside")


def test_missing_autoreset_mode(env):
    only(check(Broken(env, metadata={})), "metadata['autoreset_mode'] is None")


def test_wrong_dtype_and_nan_of_observations(env):
    step = changed(0, lambda obs: {"state": obs["state"].astype(np.float64)})
    only(check(Broken(env, step=step)), "step() observation['state'] is float64[3, 5], expected float32[3, 5]")

    def poison(obs):
        obs["state"][1, 2] = np.nan
        return obs

    findings = check(Broken(env, step=changed(0, poison)))
    assert any("of environment 1 is nan at [2], expected finite numbers" in line for line in findings)
    only(check(Broken(env, step=changed(0, lambda obs: obs["state"])))[:1], "expected a dict with ['state']")


def test_wrong_reset_observation(env):
    def reset(env, seed, options):
        obs, info = env.reset(seed=seed, options=options)
        return {"state": obs["state"].astype(np.float16)}, info

    only(check(Broken(env, reset=reset)), "reset() observation['state'] is float16[3, 5]")


def test_observation_that_is_overwritten(env):
    buffer = {"state": np.zeros((3, 5), np.float32)}

    def write(obs):
        buffer["state"][:] = obs["state"]
        return dict(buffer)

    def reset(env, seed, options):
        obs, info = env.reset(seed=seed, options=options)
        return write(obs), info

    findings = check(Broken(env, reset=reset, step=changed(0, write)))
    assert any("step() overwrites the observation that was returned before" in line for line in findings)


def test_wrong_reward_and_flags(env):
    only(
        check(Broken(env, step=changed(1, lambda reward: reward[:, None]))),
        "reward is float32[3, 1], expected float32[3]",
    )
    only(
        check(Broken(env, step=changed(1, lambda reward: reward + np.inf))),
        "reward of environment 0 is inf, expected finite",
    )
    findings = check(Broken(env, step=changed(2, lambda flag: flag.astype(int))))
    assert "terminated is int64[3], expected bool[3]; convert it" in findings


def test_missing_and_misshapen_info(env):
    def without(name):
        return lambda info: {key: value for key, value in info.items() if key != name}

    only(check(Broken(env, step=changed(4, without("executed")))), "info['executed'] is missing")
    assert not check(Broken(env, step=changed(4, without("success"))))  # many tasks have no notion of success
    only(
        check(Broken(env, step=changed(4, lambda info: {**info, "intervened": np.zeros((3, 1), bool)}))),
        "info['intervened'] is bool[3, 1], expected bool[3]",
    )


def test_terminated_and_truncated_together(env):
    def step(env, actions):
        obs, reward, terminated, truncated, info = env.step(actions)
        return obs, reward, terminated | truncated, truncated, info

    only(check(Broken(env, step=step)), "terminated and truncated are both True")


def test_reset_observation_as_successor(env):
    def step(env, actions):
        obs, reward, terminated, truncated, info = env.step(actions)
        return obs, reward, terminated, truncated, {**info, "final_obs": obs}

    only(check(Broken(env, step=step)), "equals the observation after the reset; expected the true successor")


def test_missing_successor(env):
    def without(info):
        return {key: value for key, value in info.items() if key != "final_obs"}

    only(check(Broken(env, step=changed(4, without))), "info['final_obs'] is missing where an episode ended")


def test_successor_that_differs_within_an_episode(env):
    def shift(info):
        return {**info, "final_obs": {"state": info["final_obs"]["state"] + 1}}

    only(check(Broken(env, step=changed(4, shift))), "differs from its observation though its episode goes on")


def test_time_limit_that_is_not_reset(env):
    clock = {"step": 0}

    def step(env, actions):
        obs, reward, terminated, truncated, info = env.step(actions)
        clock["step"] += 1
        late = clock["step"] % 20 in (7, 0)
        if late and not truncated.any():
            fresh = env.reset(options={"reset_mask": np.ones(3, bool)})[0]
            return fresh, reward, terminated & False, ~terminated & True, {**info, "final_obs": obs}
        return obs, reward, terminated & False, truncated, info

    findings = check(Broken(env, step=step))
    assert any("expected always the same number; reset the step counter" in line for line in findings)


def test_episode_without_end(slider):
    world = slider(limit=1e9)
    world.episode_steps = 10**9
    only(check(make(2, 0, world=world), steps=30), "no episode ended within 30 steps")


def test_executed_action_that_is_not_clipped(env):
    def step(env, actions):
        out = env.step(actions)
        out[4]["executed"] = np.asarray(actions, np.float32)
        return out

    only(check(Broken(env, step=step)), "leaves [-1, 1] for actions outside")


def test_nan_action_that_is_accepted(env):
    def step(env, actions):
        return env.step(np.nan_to_num(actions))

    only(check(Broken(env, step=step)), "a NaN action was accepted")


def test_random_numbers_that_no_seed_decides(env):
    rng = np.random.default_rng()
    step = changed(1, lambda reward: reward + rng.normal(size=3).astype(np.float32))
    findings = check(Broken(env, step=step))
    assert any(
        "two runs with reset(seed=0) and the same actions differ, first in reward at step 0" in f for f in findings
    )


def test_seed_that_is_ignored(env):
    def reset(env, seed, options):
        return env.reset(seed=None if seed is None else 4, options=options)

    only(check(Broken(env, reset=reset)), "reset(seed=0) and reset(seed=1) start equally")


def test_environments_that_share_a_stream(env):
    def reset(env, seed, options):
        return env.reset(seed=None if seed is None else [seed] * 3, options=options)

    only(check(Broken(env, reset=reset)), "all environments start equally")


def test_reset_of_one_environment_that_disturbs_the_others(env):
    def reset(env, seed, options):
        return env.reset(seed=seed)  # ignores the mask

    findings = check(Broken(env, reset=reset))
    only(findings, "an extra reset of environment 0 alone")


def test_missing_and_incomplete_saved_state(env):
    only(check(Broken(env, parts=EnvParts())), "has no state_dict() and load_state_dict()")

    def forgetful():
        state = env.state_dict()
        return {**state, "step": np.zeros_like(state["step"])}

    only(check(Broken(env, state_dict=forgetful)), "after load_state_dict(state_dict()) the run goes on differently")
    only(check(Broken(env, state_dict=lambda: {"env": env})), "holds Python objects under ['env']")


def test_dark_camera(slider):
    xml = slider().xml.replace('<camera name="front" pos="0 -3 0"', '<camera name="front" pos="0 -900 0"')
    try:
        env = make(2, 0, world=slider(xml=xml), options=EngineOptions(cameras=("front",)))
        env.reset()
    except RuntimeError as error:
        pytest.skip(f"no renderer here: {error}")
    findings = check(env)
    assert any("is 0 everywhere; aim the camera" in line for line in findings)


def test_environment_that_raises_is_a_finding(env):
    def step(env, actions):
        raise KeyError("lost")

    findings = check(Broken(env, step=step))
    assert any("the environment raised KeyError: 'lost'; expected no error" in line for line in findings)


def test_autoreset_mode_of_our_engines(env):
    assert env.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP


@pytest.mark.parametrize("answer", [np.zeros((3, 2)), np.full((3, 1), np.nan)])
def test_expert_that_answers_with_something_else(slider, answer):
    env = make(3, 0, world=slider())
    env.expert = lambda obs=None: answer
    only(check(env), "expert gives float64")


def test_one_fault_that_stops_several_parts_is_told_once_and_with_its_place(slider):
    world = slider()
    world.reward = lambda view: view.sensors["tpi"][:, 0]
    found = [finding for finding in check(make(2, 0, world=world)) if "no sensor 'tpi'" in finding]
    assert len(found) == 1
    assert "(raised at scene.py:" in found[0]
