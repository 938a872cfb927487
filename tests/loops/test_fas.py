"""The frequency-averaged score: golden numbers, and what each kind of policy does between decisions."""

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from robot_rl.chunks import ChunkedPolicy, Execution, Horizons, Plan
from robot_rl.loops.evaluate import evaluate
from robot_rl.loops.fas import INTERVALS, at_interval, frequency_averaged_score, score
from robot_rl.types import Action, EnvParts, IOSpec, PolicyParts

IO = IOSpec({"state": ((1,), "float32")}, ("x",), (-1.0,), (1.0,), ("1",), 10.0)


def test_intervals_are_the_published_sixteen() -> None:
    assert INTERVALS == (1, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30)


def test_score_golden_numbers() -> None:
    assert score([7.0] * 16, 7.0)[0] == pytest.approx(0.966667, abs=1e-6)  # 29 / 30: the published divisor
    assert score([7.0] * 16, 7.0)[1] == pytest.approx(1.0)
    assert score([1.0 / k for k in INTERVALS], 1.0)[0] == pytest.approx(0.117830, abs=1e-6)
    assert score([-200.0] * 16, 1350.0, 1550.0)[0] == pytest.approx(0.966667, abs=1e-6)
    assert score([-10.0] * 16, 5.0)[0] < 0.0  # nothing is clipped


def test_score_refuses_a_wrong_count_and_scale() -> None:
    with pytest.raises(ValueError, match="expected 16"):
        score([1.0] * 15, 1.0)
    with pytest.raises(ValueError, match="positive"):
        score([1.0] * 16, 0.0)


class Clock(gymnasium.vector.VectorEnv):
    """State = time; reward 1 where the action is a tenth of the time; 30 steps."""

    parts = EnvParts()

    def __init__(self, num_envs: int) -> None:
        self.num_envs, self.io = num_envs, IO
        self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}

    def obs(self) -> dict[str, np.ndarray]:
        return {"state": self.t[:, None].astype(np.float32)}

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.t = np.zeros(self.num_envs, np.int64)
        return self.obs(), {}

    def step(self, actions: Any) -> Any:
        reward = (np.abs(np.asarray(actions)[:, 0] - self.t / 30.0) < 1e-4).astype(np.float32)
        self.t = self.t + 1
        over, final = self.t >= 30, self.obs()
        self.t = np.where(over, 0, self.t)
        return self.obs(), reward, np.zeros(self.num_envs, bool), over, {"final_obs": final}


class Steps:
    """A policy of single ticks that says a thirtieth of the time that it sees."""

    io = IO

    parts = PolicyParts()

    def reset(self, rows: Any = None) -> None: ...

    def act(self, obs: Any, *, deterministic: bool = False) -> Action:
        return Action(obs["state"] / 30.0)


class Sequence:
    """Plans the right actions for the next H ticks."""

    def __init__(self, horizon: int) -> None:
        self.horizon = horizon

    def plan(self, obs: Any, *, deterministic: bool, context: Any) -> Plan:
        return Plan(((obs["state"] + np.arange(self.horizon)) / 30.0)[..., None])

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any], /) -> None: ...


def test_held_action_is_right_once_per_decision() -> None:
    result = frequency_averaged_score(Clock(2), Steps(), largest=30.0, episodes=2)
    assert result.held
    assert result.returns == [float(-(-30 // k)) for k in INTERVALS]


class Counting(Steps):
    """Says a thirtieth of how often it was asked in this episode: its memory ends with an episode."""

    parts = PolicyParts(remembers=True)
    asked = 0

    def reset(self, rows: Any = None) -> None:
        self.asked = 0

    def act(self, obs: Any, *, deterministic: bool = False) -> Action:
        self.asked += 1
        return Action(np.full((len(obs["state"]), 1), (self.asked - 1) / 30.0, np.float32))


def test_a_memory_ends_with_its_episode() -> None:
    result = frequency_averaged_score(Clock(1), Counting(), largest=30.0, episodes=3)
    assert result.episode_returns[0] == [30.0] * 3
    with pytest.raises(ValueError, match="num_envs=1"):
        frequency_averaged_score(Clock(2), Counting(), largest=30.0, episodes=2)


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP])
def test_no_chunk_goes_on_behind_a_reset(mode: AutoresetMode) -> None:
    """Episodes of 30 steps and chunks of 8: the fourth chunk of an episode is cut, the next begins with the episode."""

    class Late(Clock):
        def step(self, actions: Any) -> Any:
            if mode is AutoresetMode.SAME_STEP:
                return super().step(actions)
            if (self.t >= 30).any():  # the reset comes with the next step, whatever the action
                self.t = np.zeros(self.num_envs, np.int64)
                no = np.zeros(self.num_envs, bool)
                return self.obs(), np.zeros(self.num_envs, np.float32), no, no, {}
            reward = (np.abs(np.asarray(actions)[:, 0] - self.t / 30.0) < 1e-4).astype(np.float32)
            self.t = self.t + 1
            return self.obs(), reward, np.zeros(self.num_envs, bool), self.t >= 30, {}

    env = Late(1)
    env.metadata = {"autoreset_mode": mode}
    policy = ChunkedPolicy(IO, Sequence(8), Execution(Horizons(8, 8, 8), 1))
    assert evaluate(env, policy, episodes=3).returns == [30.0] * 3


def test_chunk_policy_plays_its_chunk_and_holds_behind_its_end() -> None:
    policy = ChunkedPolicy(IO, Sequence(6), Execution(Horizons(6, 6, 6), 1))
    assert at_interval(policy, 6)[1] is False
    assert at_interval(policy, 8)[1] is True
    result = frequency_averaged_score(Clock(1), policy, largest=30.0, episodes=1)
    assert result.returns[:4] == [30.0] * 4  # 1, 2, 4, 6
    assert result.returns[INTERVALS.index(10)] == 18.0  # six of every ten
