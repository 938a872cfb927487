"""A critic as the only reward: what is paid, when an episode is over, whose picture is read, and exact continuation."""
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportPossiblyUnboundVariable=false
# pyright: reportOperatorIssue=false

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, VectorEnv

from robot_rl.loops.episodes import EpisodeStats
from robot_rl.loops.rewarded import Rewarded
from robot_rl.loops.stepping import Stepper
from robot_rl.policies.reward.critic_reward import Audit, CriticReward, CriticRewardOptions, progress_reward
from robot_rl.policies.vla.interface import CriticOutput
from robot_rl.sim import interface
from robot_rl.types import EnvParts, IOSpec

STEPS = 12


class Slider(VectorEnv):
    """A dot on [0, 1] that a picture shows as its grey level; asked is one of the two ends."""

    @property
    def parts(self) -> EnvParts:
        return EnvParts(instructions=self.instructions, saves=True)

    def __init__(self, num_envs: int = 3, mode: AutoresetMode = AutoresetMode.SAME_STEP) -> None:
        self.num_envs, self.random = num_envs, np.random.default_rng(0)
        self.metadata = {"autoreset_mode": mode}
        obs = {"state": ((1,), "float32"), "image.front": ((8, 8, 3), "uint8")}
        self.io = IOSpec(obs, ("dx",), (-1.0,), (1.0,), ("1",), 10.0)
        self.single_observation_space, self.single_action_space = interface.spaces(self.io)
        self.x, self.age = np.zeros(num_envs), np.zeros(num_envs, int)
        self.right = np.zeros(num_envs, bool)

    def instructions(self) -> list[str]:
        return ["go right" if right else "go left" for right in self.right]

    def _obs(self) -> dict[str, np.ndarray]:
        grey = np.round(20 + 200 * self.x).astype(np.uint8)[:, None, None, None]
        picture = np.broadcast_to(grey, (self.num_envs, 8, 8, 3)).copy()
        picture[:, ::2] += 8  # not a covered lens
        return {"state": self.x[:, None].astype(np.float32), "image.front": picture}

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        mask = (options or {}).get("reset_mask")
        rows = np.ones(self.num_envs, bool) if mask is None else mask
        self.x[rows], self.age[rows] = 0.5, 0
        self.right[rows] = self.random.random(int(rows.sum())) < 0.5
        return self._obs(), {}

    def step(self, actions: Any) -> Any:
        self.x = np.clip(self.x + 0.1 * np.asarray(actions)[:, 0], 0.0, 1.0)
        self.age += 1
        final, done = self._obs(), self.age >= STEPS
        success = np.where(self.right, self.x > 0.9, self.x < 0.1)
        info = {"final_obs": final, "_final_obs": done, "success": success}
        obs = final
        if done.any() and self.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP:
            obs, _ = self.reset(options={"reset_mask": done})
        return obs, np.full(self.num_envs, 7.0), np.zeros(self.num_envs, bool), done, info

    def state_dict(self) -> dict[str, Any]:
        return {"x": self.x.copy(), "age": self.age.copy(), "right": self.right.copy()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.x, self.age, self.right = (state[key].copy() for key in ("x", "age", "right"))


class Reader:
    """Knows the answer from the grey level; remaining work is the distance to the end that is asked, at least .05."""

    def __init__(self, absolute: bool = True) -> None:
        self.calls: list[int] = []
        self.absolute = absolute

    @staticmethod
    def work(pictures: np.ndarray, goals: Any) -> np.ndarray:
        x = (pictures[:, 1, 0, 0].astype(float) - 20) / 200
        left = np.where(["right" in goal for goal in goals], 1 - x, x)
        return np.maximum(left, 0.05)

    def __call__(self, images_t0: Any, images_t1: Any, goal: Any) -> CriticOutput:
        self.calls.append(len(goal))
        before, after = self.work(images_t0, goal), self.work(images_t1, goal)
        return CriticOutput.of(
            torch.as_tensor(np.log(before / after), dtype=torch.float32),
            torch.as_tensor(after < 0.08, dtype=torch.float32),
            torch.ones(len(goal), dtype=torch.bool),
            value=torch.as_tensor(1 - after, dtype=torch.float32) if self.absolute else None,
        )


def made(
    num_envs: int = 3, resets: AutoresetMode = AutoresetMode.SAME_STEP, gamma: float = 0.9, **options: Any
) -> tuple[Any, Slider]:
    inner = Slider(num_envs, resets)
    reward = CriticReward(CriticRewardOptions(**{"every": 1, **options}), Reader(), gamma=gamma)
    return Rewarded(inner, reward, hide=True), inner


def toward(inner: Slider, size: float = 1.0) -> np.ndarray:
    return np.where(inner.right, size, -size)[:, None].astype(np.float32)


@pytest.mark.parametrize("every", [1, 2, 5])
@pytest.mark.parametrize("on_done", ["end", "pay"])
def test_potential_adds_up_to_nothing_but_the_goal(every: int, on_done: str) -> None:
    env, inner = made(every=every, on_done=on_done, done_reward=0.0, held=2)
    env.reset(seed=0)
    total, discount, last = np.zeros(3), 1.0, np.zeros(3)
    for _ in range(STEPS):
        _, reward, terminated, truncated, _ = env.step(toward(inner, 0.65))
        total += discount * reward
        discount *= 0.9
        if (terminated | truncated).any():
            break
        last = env._reward.progress
    assert (terminated | truncated).all()
    if on_done == "end":
        assert terminated.all()
        np.testing.assert_allclose(total, 0.0, atol=1e-6)  # -phi of the first frame, which is 0
    else:
        assert truncated.all()
        np.testing.assert_allclose(total, 0.9**STEPS * last, atol=1e-2)  # kept at a time limit


def test_cycling_gains_nothing_by_the_potential_and_something_by_the_share() -> None:
    gains = {}
    for mode in ("potential", "delta"):
        env, inner = made(mode=mode, done_reward=0.0, anchor=0.0, gamma=1.0)
        env.reset(seed=0)
        total = np.zeros(3)
        for step in range(9):  # one long step back, two small ones forth: as often as one likes
            total += env.step(toward(inner, -1.0 if step % 3 == 0 else 0.5))[1]
        gains[mode] = total
    np.testing.assert_allclose(gains["potential"], 0.0, atol=0.02)
    assert (gains["delta"] > 0.02).all()


def test_goal_counts_after_several_looks_and_ends_or_pays() -> None:
    env, inner = made(held=3, every=1, done_reward=5.0)
    env.reset(seed=0)
    ends = [env.step(toward(inner))[2].tolist() for _ in range(7)]
    assert ends == [[False] * 3] * 6 + [[True] * 3]  # at the end after 5 steps, and two more looks there
    assert (inner.age == 0).all()  # they began anew
    env, inner = made(held=3, every=1, done_reward=5.0, on_done="pay")
    env.reset(seed=0)
    rows = [env.step(toward(inner)) for _ in range(STEPS)]
    assert not np.any([row[2] for row in rows])
    np.testing.assert_allclose(rows[8][1], 5.0 + (0.9 - 1.0) * 0.9, atol=0.05)
    assert [bool(row[4]["critic_success"][0]) for row in rows] == [False] * 6 + [True] * 6
    np.testing.assert_allclose(rows[0][4]["env_reward"], 7.0)  # left aside, and told


def test_successor_is_the_last_picture_of_the_episode_that_ended() -> None:
    env, inner = made(done_reward=1.0, held=1)
    stepper = Stepper(env)
    stepper.reset(seed=0)
    for _ in range(5):
        row = stepper.step(toward(inner))
    assert row.terminated.all()
    assert not row.truncated.any()
    assert (np.abs(row.next_obs["state"] - 0.5) > 0.4).all()
    np.testing.assert_allclose(row.current["state"], 0.5)
    assert list(row.current) == ["state"] == list(env.io.obs)  # the policy does not look
    assert row.info["success"].all()
    stats = EpisodeStats(3)
    stats.add(row)
    assert stats.metrics()["rollout/critic_success"] == 1.0
    assert "rollout/critic_success" not in EpisodeStats(3).metrics()


def test_critic_is_asked_only_when_a_look_is_due() -> None:
    env, inner = made(every=4)
    judge = env._reward.judge
    env.reset(seed=0)
    judge.calls.clear()
    for _ in range(8):
        env.step(toward(inner, 0.1))
    assert judge.calls == [3, 3]


def test_looks_of_one_episode_are_the_rewards_of_a_log() -> None:
    env, inner = made(1, done_reward=0.0, anchor=0.0, held=99)
    env.reset(seed=0)
    rewards, values = [], [0.0]
    for _ in range(6):
        rewards.append(float(env.step(toward(inner, 0.5))[1][0]))
        values.append(float(env._reward.progress[0]))
    np.testing.assert_allclose(rewards, progress_reward(np.array(values), np.zeros(6), gamma=0.9), atol=1e-6)


def test_episode_whose_first_picture_shows_nothing_begins_with_the_next() -> None:
    class Careful(Reader):
        def __call__(self, images_t0: Any, images_t1: Any, goal: Any) -> CriticOutput:
            said, count = super().__call__(images_t0, images_t1, goal), len(goal)
            seen = [torch.as_tensor(x.reshape(count, -1).std(1) > 1) for x in (images_t0, images_t1)]
            return CriticOutput.of(said.dlogw, said.done, seen[0] & seen[1], value=said.value)

    def look(*levels: int) -> np.ndarray:
        pictures = np.zeros((len(levels), 4, 4, 3), np.uint8)
        pictures[:, 1] = np.array(levels)[:, None, None]
        return pictures

    reward = CriticReward(CriticRewardOptions(every=1), Careful())
    no = np.zeros(2, bool)
    reward.start(~no, look(0, 60), ["right", "right"])  # a lens that is still covered
    for level in (60, 100, 140):
        reward.step(look(level, level), no, no)
    np.testing.assert_allclose(reward.progress[0], reward.progress[1], atol=1e-6)
    assert reward.progress[0] > 0.3


def test_anchor_pulls_drift_back_and_works_without_an_absolute_value() -> None:
    class Drifting(Reader):
        def __call__(self, images_t0: Any, images_t1: Any, goal: Any) -> CriticOutput:
            said = super().__call__(images_t0, images_t1, goal)
            return CriticOutput.of(said.dlogw + 0.1, said.done, said.valid, value=said.value)

    found = {}
    for anchor in (0.0, 0.2):
        env = Rewarded(Slider(), CriticReward(CriticRewardOptions(anchor=anchor, every=1), Drifting()))
        env.reset(seed=0)
        for _ in range(STEPS - 1):
            env.step(np.zeros((3, 1), np.float32))
        found[anchor] = float(env._reward.progress[0])
    assert found[0.0] > 0.6
    assert found[0.2] < 0.35
    env = Rewarded(Slider(), CriticReward(CriticRewardOptions(), Reader(absolute=False)))
    env.reset(seed=0)
    assert np.isfinite(env.step(np.ones((3, 1), np.float32))[1]).all()


def test_covered_lens_pays_nothing_and_breaks_the_run_of_looks() -> None:
    reward = CriticReward(CriticRewardOptions(every=1, anchor=0.0, done_reward=0.0), Reader())
    inner = Slider(1)
    obs, _ = inner.reset()
    goal, no = inner.instructions(), np.zeros(1, bool)
    reward.start(np.ones(1, bool), obs["image.front"], goal)
    asked = reward.judge

    def blind(a: Any, b: Any, c: Any) -> CriticOutput:
        said = asked(a, b, c)
        nothing = torch.full_like(said.dlogw, torch.nan)
        return CriticOutput.of(nothing, said.done, torch.zeros(1, dtype=torch.bool), value=nothing)

    reward.judge = blind
    paid, met, over = reward.step(obs["image.front"], no, no)
    assert paid.tolist() == [0.0]
    assert not met.any()
    assert not over.any()
    reward.judge = asked
    inner.x[:] = 1.0 if inner.right[0] else 0.0
    assert float(reward.step(inner._obs()["image.front"], no, no)[0][0]) > 0.5  # since the last answer


def test_run_continues_exactly() -> None:
    env, inner = made(every=2)
    env.reset(seed=0)
    for _ in range(3):
        env.step(toward(inner, 0.3))
    state = env.state_dict()
    expected = [env.step(toward(inner, 0.3))[1] for _ in range(4)]
    again, other = made(every=2)
    again.reset(seed=0)
    again.load_state_dict(state)
    np.testing.assert_array_equal(expected, [again.step(toward(other, 0.3))[1] for _ in range(4)])


def test_robot_that_does_not_reset_by_itself() -> None:
    env, inner = made(resets=AutoresetMode.DISABLED, held=1)
    stepper = Stepper(env)
    stepper.reset(seed=0)
    for _ in range(5):
        row = stepper.step(toward(inner))
    assert row.terminated.all()
    np.testing.assert_allclose(row.current["state"], 0.5)  # the loop has reset them
    assert (env._reward.progress == 0).all()


def test_audit_says_when_the_critic_is_too_kind() -> None:
    audit = Audit(window=4, windows=2)
    said = [audit.add(True, i % 4 == 0) for i in range(12)]
    assert [text is not None for text in said] == [False] * 7 + [True] + [False] * 3 + [True]
    assert "critic saw 100% successes and the simulator 25%" in str(said[7])
    honest = Audit(window=4, windows=1)
    assert not any(honest.add(i % 2 == 0, i % 2 == 0) for i in range(12))
    env = Rewarded(
        Slider(), CriticReward(CriticRewardOptions(), Reader()), audit=Audit(window=3, margin=-0.5, windows=1)
    )
    env.reset(seed=0)
    still = np.zeros((3, 1), np.float32)
    for _ in range(STEPS - 1):
        env.step(still)
    with pytest.warns(UserWarning, match="reward exploited"):
        env.step(still)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"camera": "top"}, r"shows no 'image\.top'; it shows \['image\.front'\]"),
        ({"env": Slider(2, AutoresetMode.NEXT_STEP)}, "resets in the same step"),
    ],
)
def test_environment_that_cannot_be_judged_is_refused(change: dict[str, Any], words: str) -> None:
    options = {"env": Slider(2), "reward": CriticReward(CriticRewardOptions(), Reader()), **change}
    with pytest.raises(ValueError, match=words):
        Rewarded(**options)


def test_missing_sentence_and_options_out_of_range_are_refused() -> None:
    class Mute(Slider):
        instructions: Any = None

    with pytest.raises(ValueError, match=r"rewarder\.instruction"):
        Rewarded(Mute(2), CriticReward(CriticRewardOptions(), Reader()))
    Rewarded(Mute(2), CriticReward(CriticRewardOptions(), Reader()), instruction="go left").reset()
    for options, words in (
        ({"mode": "x"}, "mode is 'x', expected one of potential"),
        ({"on_done": "x"}, "on_done"),
        ({"every": 0}, "every"),
    ):
        with pytest.raises(ValueError, match=words):
            CriticRewardOptions(**options)
