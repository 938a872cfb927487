"""What the robot sees, what time it is, resets that fail; and a person who drives badly."""
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false

import numpy as np
import pytest

from robot_rl.data.hil_episode import EpisodeRules
from robot_rl.data.hil_record import Invalid, Source
from robot_rl.data.mix import Mix
from robot_rl.human.devices.scripted import ScriptedHuman, ScriptedOptions
from robot_rl.human.log import HilLog
from robot_rl.human.loop import HumanInTheLoop
from robot_rl.human.memory import HilMemory
from robot_rl.human.options import SessionOptions
from robot_rl.human.pilot import simulated_pilot
from robot_rl.human.session import Records
from robot_rl.human.trials import trials
from robot_rl.human.watch import Watch
from robot_rl.policies.human.hg_dagger import HgDagger, HgDaggerOptions
from robot_rl.policies.human.rlif import Rlif, RlifOptions
from robot_rl.types import IOSpec
from tests.human.line_world import LineEnv
from tests.human.test_loop import Fixed, Script, build, episode


@pytest.mark.slow
def test_rlif_ends_above_hg_dagger_with_a_person_who_drives_badly(tmp_path):
    """A hand that drifts by 0.8 and a good eye: cloning the hand cannot reach the goal from one side, heeding the eye
    can. It takes a person who judges what was done (else the penalty falls on the step before the bad one) and rewards
    of 0 for one human step per span at most (else bad actions of the person count as good)."""
    success = {}
    for kind in ("rlif", "hg_dagger"):
        results = []
        for seed in (0, 1):
            env = LineEnv(seed=seed)
            eye = {"sees": "motion", "threshold": 0.3, "patience_s": 0.2, "drive_s": 0.3, "window_s": 0.1}
            human = ScriptedHuman(ScriptedOptions(bias=0.8, **eye), env.io, expert=env.expert, seed=seed)
            common = {"hidden": (32, 32), "batch_size": 64, "utd": 1, "lr": 1e-3}
            if kind == "rlif":
                learner = Rlif(RlifOptions(critics=2, **common), env.io, seed=seed)
            else:
                learner = HgDagger(HgDaggerOptions(**common), env.io, seed=seed)
            memory = HilMemory(env.io, 5000, seed=seed, store_human="last" if kind == "rlif" else "all")
            views = memory.views
            parts = {"online": (views["online"], 0.5), "demo": (views["demo"], 0.5)}
            loop = HumanInTheLoop(
                env,
                learner,
                simulated_pilot(env, human, takeover={"blend_ticks": 0}),
                Records(
                    HilLog(tmp_path / f"{kind}{seed}", env.io),
                    memory,
                    Mix({"online": parts["online"]} if kind == "rlif" else parts, seed=seed),
                    EpisodeRules(gamma=0.9, min_span=1),
                ),
                options=SessionOptions(learning_starts=10),
                seed=seed,
            )
            loop.run(2400, lambda *_: False)
            world = LineEnv(seed=99)
            block = trials(world, learner.policy, simulated_pilot(world, None), episodes=50, seed=99)
            results.append(block.metrics()["eval/success"])
        success[kind] = results
    assert min(success["rlif"]) > max(success["hg_dagger"]) + 0.1, success


class Camera(LineEnv):
    """The line with a camera that can stall or freeze at a step of the first episode."""

    def __init__(self, stall_at=-1, freeze_at=-1, ticks=2, **more):
        super().__init__(**more)
        obs = {**self.io.obs, "image.front": ((8, 8, 3), "uint8")}
        self.io = IOSpec(obs, ("tip_dx",), (-0.1,), (0.1,), ("m",), 10.0)
        self.stall_at, self.freeze_at, self.ticks, self.total = stall_at, freeze_at, ticks, 0

    def _obs(self):
        at = self.freeze_at if 0 <= self.freeze_at <= self.total < self.freeze_at + self.ticks else self.total
        return {**super()._obs(), "image.front": np.full((1, 8, 8, 3), at % 250, np.uint8)}

    def step(self, action):
        self.total += 1
        obs, reward, terminated, truncated, info = super().step(action)
        late = self.stall_at <= self.total < self.stall_at + self.ticks
        info["cam_age_ms"] = {"front": np.array([250.0 if late and self.stall_at >= 0 else 20.0])}
        return obs, reward, terminated, truncated, info


def test_fault_camera_stall_holds_for_three_ticks_and_then_ends_the_episode(tmp_path):
    env = Camera(stall_at=4, ticks=2)
    loop = build(tmp_path / "short", None, env=env, learner=Fixed(env.io, 0.01))
    loop._episode(demo=False)
    steps = episode(loop)
    blind = [i for i, step in enumerate(steps) if step.invalid_reason == Invalid.CAMERA]
    assert blind == [4, 5]
    assert len(steps) == 30  # and the episode went on
    assert all(float(abs(steps[i].action_cmd[0])) == 0.0 and steps[i].source == Source.HOLD for i in blind)
    assert steps[4].cam_age_ms == pytest.approx(250.0)

    env = Camera(stall_at=4, ticks=20)
    loop = build(
        tmp_path / "long", None, env=env, learner=Fixed(env.io, 0.01), options=SessionOptions(learning_starts=10)
    )
    facts = loop._episode(demo=False)
    assert facts is not None
    assert facts.end_reason == "fault"
    steps = episode(loop)
    assert len(steps) <= 8
    assert not steps[-1].valid
    assert [step for step in steps if step.valid][-1].truncated
    assert "250 ms late" in loop.problem


def test_fault_camera_frozen_while_the_robot_moves_is_noticed(tmp_path):
    env = Camera(freeze_at=3, ticks=40)
    loop = build(tmp_path, None, env=env, learner=Fixed(env.io, 0.02))
    loop._episode(demo=False)
    steps = episode(loop)
    blind = [i for i, step in enumerate(steps) if step.invalid_reason == Invalid.CAMERA]
    assert blind[0] == 7  # the picture of moment 3 for the fifth time
    assert "again and again" in loop.problem


def test_camera_that_shows_a_robot_at_rest_is_not_frozen(tmp_path):
    env = Camera(freeze_at=0, ticks=40)
    loop = build(tmp_path, None, env=env, learner=Fixed(env.io, 0.0))
    loop._episode(demo=False)
    assert all(step.valid for step in episode(loop))


class Stubborn(LineEnv):
    """Resets that fail, and an observation that is not finite, when asked."""

    failing, nan_at_step = 0, -1

    def reset(self, *, seed=None, options=None):
        if self.failing > 0:
            self.failing -= 1
            raise RuntimeError("the arm is 4 cm from home after two tries")
        return super().reset(seed=seed, options=options)

    def step(self, action):
        obs, reward, terminated, truncated, info = super().step(action)
        if self.time == self.nan_at_step:
            self.nan_at_step = -1
            obs = {"state": np.full((1, 2), np.nan, np.float32)}
        return obs, reward, terminated, truncated, info


def test_fault_reset_failed_holds_until_a_person_has_seen_to_it(tmp_path):
    env = Stubborn()
    loop = build(tmp_path, Script([{"press": ("resume",)}, {}, {}, {}] * 4), env=env, learner=Fixed(env.io, 0.01))
    loop.pilot.realtime = True
    loop.stats.add_demo(0)
    env.failing = 2
    seen = []
    loop.pilot.show = lambda telemetry, frame=None, views=None: seen.append(telemetry["problem"])
    facts = loop._episode(demo=False)
    assert facts is not None
    assert env.failing == 0
    assert any("4 cm from home" in text and "press go" in text for text in seen)
    assert len(loop.log.manifest) == 1  # no episode was opened before the robot was in place


def test_fault_observation_that_is_not_finite_ends_the_episode_and_holds(tmp_path):
    env = Stubborn()
    env.nan_at_step = 5
    loop = build(tmp_path, Script([{}] * 6), env=env, learner=Fixed(env.io, 0.01))
    loop.pilot.realtime = True
    facts = loop._episode(demo=False)
    assert facts is not None
    assert facts.end_reason == "fault"
    assert loop.pilot.driver == "HOLD"
    steps = episode(loop)
    assert len(steps) == 4  # the fifth has no successor that could be stored
    assert not steps[-1].valid
    assert steps[-2].truncated
    assert np.isfinite([step.obs["state"] for step in steps]).all()

    env = Stubborn()
    env.nan_at_step = 5
    simulated_loop = build(tmp_path / "sim", None, env=env, learner=Fixed(env.io, 0.01))
    with pytest.raises(RuntimeError, match=r"NaN|finite"):
        simulated_loop._episode(demo=False)


def test_fault_clock_jump_is_told_and_changes_no_stamp():
    wall, steady = [1000.0], [5.0]
    watch = Watch(10.0, wall=lambda: wall[0], steady=lambda: steady[0])
    for _ in range(100):  # a clock that is put right slowly
        wall[0] += 0.101
        steady[0] += 0.1
        assert not watch.look({"state": np.zeros(1)}, {})
    assert watch.jumps == 0
    wall[0] -= 3600.0
    assert not watch.look({"state": np.zeros(1)}, {})
    assert watch.jumps == 1
    assert "-3600" in watch.problem
