"""Recorded episodes are what happened."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode

from robot_rl.data import formats
from robot_rl.data.recorder import Recording
from robot_rl.policies.offline.bc import Bc, BcOptions
from robot_rl.sim.engine_options import EngineOptions
from robot_rl.sim.mujoco_env import make
from robot_rl.sim.worlds.reach import Reach
from robot_rl.sim.worlds.tabletop import BLOCKS, PLATES, Tabletop
from robot_rl.types import Action, EnvParts, Episode, IOSpec, PolicyParts
from robot_rl.verbs.collect_episodes import (
    BesidePictures,
    ExpertPolicy,
    KeepOptions,
    OperatorOptions,
    begin_work,
    episodes_of,
    keep_steps,
)

ONE_THREAD = EngineOptions(num_threads=1)


def test_keep_steps_successful_expert_episodes_only() -> None:
    env = make(4, 0, world=Reach())
    episodes = keep_steps(env, ExpertPolicy(env), KeepOptions(episodes=5, only_success=True), seed=3)
    assert len(episodes) == 5
    for episode in episodes:
        assert episode.meta["success"]
        assert episode.truncated
        assert len(episode) == env.world.episode_steps
        np.testing.assert_allclose(np.diff(episode.stamp), 1 / env.io.control_hz, rtol=1e-9)


def test_keep_steps_same_seed_same_episodes() -> None:
    def record() -> list:
        env = make(2, 0, world=Reach())
        return keep_steps(env, ExpertPolicy(env, OperatorOptions(noise=0.1, seed=1)), KeepOptions(episodes=2), seed=3)

    for a, b in zip(record(), record()):
        np.testing.assert_array_equal(a.obs["state"], b.obs["state"])
        np.testing.assert_array_equal(a.action, b.action)


def test_keep_steps_per_task_counts_the_tasks_that_are_asked() -> None:
    names = [f"{block} on {plate}" for block, plate in (("red", "yellow"), ("blue", "purple"))]
    env = make(8, 0, world=Tabletop(only=names, layout="fixed", seconds=2.4))
    assert len(env.parts.task_names) == 6
    kept = keep_steps(env, ExpertPolicy(env), KeepOptions(episodes=99, only_success=True, per_task=2), seed=0)
    counts = np.bincount([int(episode.meta["task"]) for episode in kept], minlength=6)
    assert sorted(counts.tolist()) == [0, 0, 0, 0, 2, 2]
    with pytest.raises(RuntimeError, match=r"not enough for 40 of each task: .* block on .* plate lacks \d+"):
        keep_steps(
            env, ExpertPolicy(env), KeepOptions(episodes=99, only_success=True, per_task=40), seed=0, max_rounds=1
        )


def test_keep_steps_without_success_gives_up_with_a_count() -> None:
    env = make(2, 0, world=Reach())

    class Still(ExpertPolicy):
        def act(self, obs, *, deterministic=False):
            action = super().act(obs)
            return type(action)(np.zeros_like(action.value))

    with pytest.raises(RuntimeError, match=r"only 0 of \d+ episodes ended in success, wanted 2"):
        keep_steps(env, Still(env), KeepOptions(episodes=2, only_success=True), seed=0, max_rounds=2)


def test_short_episodes_are_not_preferred() -> None:
    """Environment 0 ends every 2 steps, environment 1 every 10: two episodes are one of each."""

    class Uneven:
        num_envs = 2
        io = IOSpec({"state": ((1,), "float32")}, ("a",), (-1.0,), (1.0,), ("1",), 10.0)
        metadata: ClassVar[dict] = {"autoreset_mode": AutoresetMode.SAME_STEP}

        parts = EnvParts()

        def reset(self, *, seed=None, options=None):
            self.t = np.zeros(2, int)
            return {"state": np.zeros((2, 1), np.float32)}, {}

        def step(self, action):
            self.t += 1
            cut = self.t >= np.array([2, 10])
            self.t[cut] = 0
            obs = {"state": np.zeros((2, 1), np.float32)}
            info = {"final_obs": obs, "_final_obs": cut}
            return obs, np.ones(2, np.float32), np.zeros(2, bool), cut, info

    class Still:
        io, parts = Uneven.io, PolicyParts()

        def reset(self, rows=None):
            pass

        def act(self, obs, *, deterministic=False):
            return Action(np.zeros((2, 1), np.float32))

    assert sorted(len(e) for e in episodes_of(Uneven(), Still(), episodes=2, seed=0)) == [2, 10]


def test_expert_without_one_says_what_to_do() -> None:
    with pytest.raises(ValueError, match="no scripted expert"):
        ExpertPolicy(SimpleNamespace(parts=EnvParts()))


def test_collect_then_data_info_reads_both_formats(tmp_path: Path, robot_rl) -> None:
    for out in ("demos.hdf5", "demos"):
        done = robot_rl("collect", "env=reach", "episodes=3", "num_envs=2", f"out={out}")
        assert done.returncode == 0, done.stderr
        again = robot_rl("collect", "env=reach", "episodes=3", f"out={out}")
        assert again.returncode == 2
        assert "exists already" in again.stderr
        shown = robot_rl("data", "info", out)
        assert shown.returncode == 0, shown.stderr
        assert "episodes" in shown.stdout
        assert json.loads(robot_rl("data", "info", out, "--json").stdout)["episodes"] == 3
    assert len(Recording(tmp_path / "demos")) == 3


def test_sampled_actions_are_stored_with_their_log_density() -> None:
    env = make(4, 0, world=Reach())
    learner = Bc(BcOptions(gaussian=True, hidden=(8,), normalize=False), env.io)
    episodes = keep_steps(env, learner.policy, KeepOptions(episodes=4), seed=0)
    for episode in episodes:
        obs = {"state": torch.from_numpy(episode.obs["state"][:-1])}
        expected = learner.policy.log_prob(obs, torch.from_numpy(episode.action)).detach().numpy()
        np.testing.assert_allclose(episode.meta["columns"]["action_log_probs"], expected, rtol=1e-4, atol=1e-4)
    plain = keep_steps(env, learner.policy, KeepOptions(episodes=1, deterministic=True), seed=0)
    assert "action_log_probs" not in plain[0].meta.get("columns", {})


def test_pictures_beside_what_a_policy_reads_are_recorded_and_not_shown_to_it() -> None:
    blind = make(2, 0, world=Tabletop(seconds=0.5))
    learner = Bc(BcOptions(gaussian=True, hidden=(8,), normalize=False), blind.io)
    filmed = make(2, 0, world=Tabletop(seconds=0.5), options=EngineOptions(cameras=("front",), camera_size=(16, 16)))
    plain = keep_steps(blind, learner.policy, KeepOptions(episodes=2, deterministic=True), seed=0)
    episodes = keep_steps(
        filmed, BesidePictures(learner.policy, filmed.io), KeepOptions(episodes=2, deterministic=True), seed=0
    )
    for alone, beside in zip(plain, episodes):
        assert beside.obs["image.front"].shape == (6, 16, 16, 3)
        np.testing.assert_array_equal(alone.action, beside.action)
    drawn = keep_steps(filmed, BesidePictures(learner.policy, filmed.io), KeepOptions(episodes=1), seed=0)
    assert "action_log_probs" in drawn[0].meta["columns"]


class _Steady:
    """An environment's worth of an expert that always moves by 0.2 and opens to 0.7."""

    io = IOSpec(
        {"state": ((1,), "float32")},
        ("x", "gripper_opening"),
        (-1.0, 0.0),
        (1.0, 1.0),
        ("m", "m"),
        50.0,
    )

    @property
    def parts(self) -> EnvParts:
        return EnvParts(expert=self.expert)

    @staticmethod
    def expert(obs: dict[str, np.ndarray]) -> np.ndarray:
        return np.tile(np.array([[0.2, 0.7]], np.float32), (len(obs["state"]), 1))


def _played(policy: ExpertPolicy, ticks: int, rows: int = 64) -> np.ndarray:
    obs = {"state": np.zeros((rows, 1), np.float32)}
    return np.stack([policy.act(obs).value for _ in range(ticks)])


def test_noise_with_a_time_is_as_wide_as_white_noise_and_correlated_by_its_time() -> None:
    """At 50 Hz and 0.1 s the correlation over one tick is e^(-0.2) = 0.819, from the first tick of an episode on."""
    noise = _played(ExpertPolicy(_Steady(), OperatorOptions(noise=0.2, noise_time=0.1, seed=1)), 400)[..., 0] - 0.2
    assert noise.std() == pytest.approx(0.2, rel=0.05)
    assert noise[0].std() == pytest.approx(0.2, rel=0.3)
    assert np.corrcoef(noise[:-1].ravel(), noise[1:].ravel())[0, 1] == pytest.approx(0.819, abs=0.03)
    white = _played(ExpertPolicy(_Steady(), OperatorOptions(noise=0.2, seed=1)), 400)[..., 0] - 0.2
    assert abs(np.corrcoef(white[:-1].ravel(), white[1:].ravel())[0, 1]) < 0.03


def test_noise_begins_anew_with_an_episode() -> None:
    policy = ExpertPolicy(_Steady(), OperatorOptions(noise=0.2, noise_time=100.0, seed=1))
    before = _played(policy, 1)[0, :, 0]
    policy.reset(np.arange(64) < 32)
    after = _played(policy, 1)[0, :, 0]
    assert np.abs(after - before)[32:].max() < 0.02
    assert np.abs(after - before)[:32].max() > 0.1


def test_pauses_stand_still_for_their_share_of_the_time_and_hold_the_gripper() -> None:
    played = _played(ExpertPolicy(_Steady(), OperatorOptions(pauses=0.4, pause_time=0.2, seed=3)), 500)
    still = played[..., 0] == 0.0
    assert still.mean() == pytest.approx(0.4, abs=0.05)
    starts = (still[1:] & ~still[:-1]).sum()
    assert still.sum() / starts == pytest.approx(10.0, rel=0.2)  # 0.2 s at 50 Hz
    assert (played[..., 1] == np.float32(0.7)).all()


def test_pauses_out_of_range_are_refused() -> None:
    with pytest.raises(ValueError, match="pauses is 1"):
        ExpertPolicy(_Steady(), OperatorOptions(pauses=1.0))


def test_episodes_say_what_was_asked_and_mistakes_do_something_else() -> None:
    env = make(4, 0, world=Tabletop(), options=ONE_THREAD)
    good = episodes_of(env, ExpertPolicy(env), episodes=8, seed=0)
    assert all(episode.meta["success"] for episode in good)
    for episode in good:
        goal = episode.obs["state"][0, 20:]
        block, plate = BLOCKS[int(goal[:3].argmax())], PLATES[int(goal[3:].argmax())]
        assert episode.meta["instruction"] == f"put the {block} block on the {plate} plate"
    wrong = episodes_of(env, ExpertPolicy(env, OperatorOptions(mistakes=1.0, seed=1)), episodes=8, seed=0)
    assert not any(episode.meta["success"] for episode in wrong)
    assert [e.meta["instruction"] for e in wrong] == [e.meta["instruction"] for e in good]
    moved = [np.abs(e.obs["state"][-1, 7:16] - e.obs["state"][0, 7:16]).max() for e in wrong]
    assert min(moved) > 0.3  # something was carried all the same
    env.close()


def test_mistakes_where_only_one_thing_is_asked_are_refused() -> None:
    env = make(1, 0, world=Reach())
    with pytest.raises(ValueError, match="mistakes=0"):
        ExpertPolicy(env, OperatorOptions(mistakes=0.5))
    with pytest.raises(ValueError, match="mistakes is 2"):
        ExpertPolicy(env, OperatorOptions(mistakes=2))


class _Cut(Exception):
    """A kill, as far as the recorded episodes can tell."""


def test_collect_goes_on_where_it_was_stopped_and_keeps_the_same_episodes(tmp_path: Path) -> None:
    """Seven episodes, stopped after the third: the folder holds three, and the rest are those of a run without a stop.

    The order of episodes inside a round may differ, their number and content not.
    """

    def run(work: Path | None, stop: int = 99) -> list[Episode]:
        def told(done: int) -> None:
            if done == stop:
                raise _Cut

        env = make(2, 0, world=Reach(), options=ONE_THREAD)
        try:
            expert = ExpertPolicy(env, OperatorOptions(noise=0.3, seed=5))
            return keep_steps(
                env, expert, KeepOptions(episodes=7, only_success=True), seed=3, on_episode=told, work=work
            )
        finally:
            env.close()

    whole = run(tmp_path / "whole")
    work = tmp_path / "cut"
    with pytest.raises(_Cut):
        run(work, stop=3)
    assert len(Recording(work)) == 3
    resumed = run(work)
    assert len(resumed) == len(Recording(work)) == 7
    expected = {e.action.tobytes() for e in whole}
    assert {e.action.tobytes() for e in resumed} == expected
    assert len(expected) == 7


def test_collect_of_another_call_does_not_go_on_in_its_folder(tmp_path: Path) -> None:
    begin_work(tmp_path / "w", {"seed": 0, "env": "reach"})
    assert begin_work(tmp_path / "w", {"seed": 0, "env": "reach"})["settings"]["seed"] == 0
    with pytest.raises(ValueError, match="interrupted work with another seed"):
        begin_work(tmp_path / "w", {"seed": 1, "env": "reach"})


_KILLED = """
import os, signal, sys
from robot_rl.cli import main
from robot_rl.data.recorder import Recorder
append = Recorder.append
def killed(self, episode):
    path = append(self, episode)
    if self.episodes == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return path
Recorder.append = killed
main()
"""


@pytest.mark.parametrize("name", ["demos.hdf5", "demos"])
def test_killed_collect_keeps_its_episodes_and_goes_on(tmp_path: Path, robot_rl, name: str) -> None:
    """SIGKILL when the third episode has ended; the same command line then writes all eight."""
    line = ["collect", "env=reach", "episodes=8", "num_envs=2", f"out={name}"]
    child = subprocess.run([sys.executable, "-c", _KILLED, *line], cwd=tmp_path, capture_output=True, timeout=200)
    assert child.returncode == -signal.SIGKILL
    kept = {e.action.tobytes() for e in Recording(tmp_path / f".{name}.work")}
    assert len(kept) == 3
    assert not (tmp_path / name).exists()
    assert robot_rl(*line).returncode == 0
    episodes = formats.load(tmp_path / name).episodes
    assert len({e.action.tobytes() for e in episodes}) == len(episodes) == 8
    assert kept <= {e.action.tobytes() for e in episodes}
    assert sorted(p.name for p in tmp_path.iterdir() if name in p.name) == [name]
