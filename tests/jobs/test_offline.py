"""A log becomes a policy; an interrupted run continues bit for bit; wrong input is explained."""
# pyright: reportArgumentType=false

import errno
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from hydra import compose, initialize_config_module
from omegaconf import OmegaConf

from robot_rl import build, checkpoint
from robot_rl.data import d4rl
from robot_rl.data.convert import convert, convert_once
from robot_rl.data.repairs import Repairs
from robot_rl.data.store import open_store
from robot_rl.policies.nets.imitation import demonstration_mask
from robot_rl.run import RunStart
from robot_rl.track import read_metrics
from robot_rl.types import Episode
from robot_rl.verbs.build import settings_of
from robot_rl.verbs.logs import LogSettings, open_log, sampler
from robot_rl.verbs.offline import OfflineJob, OfflineSettings
from robot_rl.verbs.ope import Judges
from robot_rl.verbs.reading import plain
from robot_rl.verbs.train import learner_of_init
from robot_rl.words import Refused

TINY = [
    *("policy.hidden=[16,16]", "policy.batch_size=16", "updates=200", "log_every=50", "eval_every=0", "eval_envs=2"),
    *("final_episodes=2", "checkpoint_every=0", "video_episodes=0", "track.tensorboard=false"),
    *("estimate=0", "ope.hidden=[16,16]", "behaviour.hidden=[16,16]"),
]


def log(
    path: Path,
    *,
    scale: float = 1.0,
    seed: int = 0,
    reach: bool = False,
    reward: float | None = None,
    ends: int = 2,
) -> Path:
    """A D4RL file of 20 random episodes of 10 steps; one in `ends` of them ends by itself, with 0 none."""
    rng = np.random.default_rng(seed)
    width, actions = reach_sizes() if reach else (3, 2)
    episodes = []
    for i in range(20):
        action = rng.uniform(-scale, scale, (10, actions)).astype(np.float32)
        episodes.append(
            Episode(
                obs={"state": rng.normal(size=(11, width)).astype(np.float32)},
                action=action,
                proposed=action,
                reward=np.full(10, float(i) if reward is None else reward, np.float32),
                terminated=bool(ends) and i % ends == 0,
                truncated=not ends or i % ends != 0,
                intervened=np.zeros(10, bool),
                stamp=np.arange(11.0),
            )
        )
    d4rl.write(path, episodes, said="normalised")
    return path


def reach_sizes() -> tuple[int, int]:
    from robot_rl.sim.mujoco_env import make
    from robot_rl.sim.worlds.reach import Reach

    env = make(1, 0, "cpu", world=Reach())
    return env.io.obs["state"][0][0], env.io.action_dim


@pytest.fixture
def make_offline() -> Callable[..., OfflineJob]:
    def make(folder: Path, *overrides: str, resume: bool = False) -> OfflineJob:
        with initialize_config_module("robot_rl.configs", version_base="1.3"):
            cfg = compose("offline", overrides=[*TINY, *overrides])

        def make_env(num_envs: int, seed: int, render: bool) -> Any:
            return build.make("engine", plain(cfg.env), num_envs=num_envs, seed=seed, device="cpu")

        return OfflineJob(
            settings_of(OfflineSettings, cfg),
            RunStart(
                folder,
                OmegaConf.to_yaml(cfg, resolve=True),
                lambda place, step: build.make("track", plain(cfg.track), place, resume_step=step),
                resume,
            ),
            make_env=make_env if cfg.get("env") is not None else None,
            make_learner=lambda io: build.make(
                "policy", plain(cfg.policy), io, seed=cfg.seed, device="cpu", gamma=cfg.gamma
            ),
            judges=Judges(
                lambda io, policy, **how: build.make("ope", plain(cfg.ope), io, policy, **how, gamma=cfg.gamma),
                lambda io: build.make("policy", plain(cfg.behaviour), io, gamma=cfg.gamma),
            ),
        )

    return make


def differing(a: Any, b: Any, path: str = "") -> list[str]:
    if isinstance(a, dict) and isinstance(b, dict):
        return [line for key in {**a, **b} for line in differing(a.get(key), b.get(key), f"{path}/{key}")]
    if isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        return [line for i, (x, y) in enumerate(zip(a, b)) for line in differing(x, y, f"{path}/{i}")]
    same = torch.equal(a, b) if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor) else a == b
    return [] if same else [path]


RESUMED = [
    *(f"policy=offline/{name} policy.seeds={seeds}" for name in ("iql", "td3_bc", "bc") for seeds in (1, 2)),
    "policy=offline/history_iql policy.width=8 policy.history=3",
    "policy=offline/goal_bc policy.clusters=5",
    "policy=offline/oer policy.model_hidden=[8] policy.model_members=2 policy.model_updates=120 policy.keep=20",
]


@pytest.mark.parametrize("chosen", RESUMED)
def test_offline_interrupted_and_resumed_equals_uninterrupted(make_offline, tmp_path, chosen):
    options = [f"data={log(tmp_path / 'log.hdf5')}", *chosen.split()]
    make_offline(tmp_path / "whole", *options).run()
    first = make_offline(tmp_path / "cut", *options)
    write = first.tracker.log

    def interrupt_at_100(metrics: dict[str, float], step: int) -> None:
        write(metrics, step)
        if step == 100:
            os.kill(os.getpid(), signal.SIGINT)  # what Ctrl-C sends

    first.tracker.log = interrupt_at_100
    with pytest.raises(KeyboardInterrupt):
        first.run()
    second = make_offline(tmp_path / "cut", *options, resume=True)
    assert second.resume_step == 100
    second.run()
    states = [
        {path.name: checkpoint.load_state(path) for path in checkpoint.find(tmp_path / name).glob("*.pt")}
        for name in ("whole", "cut")
    ]
    assert states[0].keys() == {"policy.pt", "learner.pt", "loop.pt", "sampler.pt"}
    assert not differing(*states)
    rows = [
        [{k: v for k, v in row.items() if not k.startswith("time/")} for row in read_metrics(path)]
        for path in (tmp_path / "whole/metrics.jsonl", tmp_path / "cut/metrics.jsonl")
    ]
    assert rows[0] == rows[1]


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
def test_offline_asked_to_stop_does_so_after_the_update_and_not_at_the_next_row(make_offline, tmp_path, sign):
    options = [f"data={log(tmp_path / 'log.hdf5')}", "policy=offline/td3_bc", "checkpoint_every=0"]
    make_offline(tmp_path / "whole", *options).run()
    first = make_offline(tmp_path / "cut", *options)
    update, before = first.learner.update, signal.getsignal(sign)

    def asked_in_update_37(batches):
        if first.loop.updates == 36:
            os.kill(os.getpid(), sign)
        return update(batches)

    first.learner.update = asked_in_update_37
    with pytest.raises(KeyboardInterrupt):
        first.run()
    assert signal.getsignal(sign) == before
    second = make_offline(tmp_path / "cut", *options, resume=True)
    assert second.resume_step == 37
    second.run()
    states = [
        {path.name: checkpoint.load_state(path) for path in checkpoint.find(tmp_path / name).glob("*.pt")}
        for name in ("whole", "cut")
    ]
    assert not differing(*states)


def test_offline_evaluates_every_seed_in_the_environment(make_offline, tmp_path):
    path = log(tmp_path / "log.hdf5", reach=True)
    summary = make_offline(
        tmp_path / "run",
        f"data={path}",
        "env=reach",
        "policy.seeds=3",
        "updates=50",
        "eval_every=50",
        "eval_episodes=2",
    ).run()
    numbers = json.loads((tmp_path / "run/evaluation.json").read_text())
    assert [len(returns) for returns in numbers["returns"]] == [2, 2, 2]
    assert summary["return"] == pytest.approx(np.mean(numbers["returns"]))
    assert summary["seeds_low"] <= summary["seeds_iqm"] <= summary["seeds_high"]


def test_offline_run_says_how_good_its_policy_is_and_where_data_end(make_offline, tmp_path):
    path = log(tmp_path / "log.hdf5", reward=1.0, ends=1)
    convert(path, tmp_path / "log.store", mend=Repairs(trust_terminals=True))  # all have one length, as time limits do
    summary = make_offline(tmp_path / "a", f"data={path}", "policy=offline/td3_bc", "estimate=150").run()
    found = json.loads((tmp_path / "a/evaluation.json").read_text())["estimate"]
    truth = float((0.99 ** np.arange(10)).sum())  # every episode ends after ten rewards of 1
    assert found["behaviour"]["value"] == pytest.approx(truth, rel=1e-3)
    assert found["estimates"]["fqe"]["low"] <= found["estimates"]["fqe"]["value"] <= found["estimates"]["fqe"]["high"]
    assert 0.0 <= found["outside_support"] <= 1.0
    assert "value, from the log alone" in summary
    page = (tmp_path / "a/report.html").read_text()
    assert "Where the policy leaves the data" in page
    assert (tmp_path / "a/support.png").stat().st_size > 5_000


def test_offline_policy_that_leaves_the_data_is_warned_of(make_offline, tmp_path):
    path = log(tmp_path / "log.hdf5", scale=0.1)  # logged actions are small, its own are not
    job = make_offline(tmp_path / "a", f"data={path}", "policy=offline/td3_bc", "policy.alpha=1000", "estimate=300")
    act = job.learner.policy.act
    job.learner.policy.act = lambda obs, **options: type(act(obs))(act(obs, **options).value * 0 + 0.95)
    job.run()
    assert any("leaves" in line or "less likely under the data" in line for line in job.warnings)
    assert "less likely under the data" in (tmp_path / "a/report.html").read_text()


def test_offline_resume_on_another_log_is_refused_unless_allowed(make_offline, tmp_path):
    make_offline(tmp_path / "run", f"data={log(tmp_path / 'a.hdf5')}").run()
    other = f"data={log(tmp_path / 'b.hdf5', seed=1)}"
    with pytest.raises(checkpoint.CheckpointError, match="not the one that the run began with"):
        make_offline(tmp_path / "run", other, resume=True)
    job = make_offline(tmp_path / "run", other, "allow_data_change=true", "updates=250", resume=True)
    assert job.run()["updates"] == 250


def test_offline_environment_of_another_size_is_refused(make_offline, tmp_path):
    with pytest.raises(ValueError, match="choose the environment that the log was made in"):
        make_offline(tmp_path / "run", f"data={log(tmp_path / 'a.hdf5')}", "env=reach")


def test_options_stated_beside_init_are_those_of_the_learner_that_goes_on(make_offline, tmp_path):
    run = tmp_path / "run"
    make_offline(run, f"data={log(tmp_path / 'a.hdf5')}", "policy=offline/rebrac", "updates=2").run()

    def begun(*overrides: str) -> Any:
        with initialize_config_module("robot_rl.configs", version_base="1.3"):
            cfg = compose("train", overrides=[f"init={run}", *overrides])
        learner_of_init(cfg)
        return cfg.policy

    tiny = begun()
    assert tiny.hidden == [16, 16]
    assert tiny.critic_penalty == 0.01
    stated = begun("policy=offline/rebrac", "policy.critic_penalty=0")
    assert dict(stated) == {**tiny, "critic_penalty": 0}
    with pytest.raises(Refused, match="add policy=offline/rebrac to change its options"):
        begun("policy.lr=0.01")


def test_offline_expert_beside_several_seeds_is_refused(make_offline, tmp_path):
    """A batch of two seeds would be cut into the expert's rows for the one and all others for the other."""
    both = (f"data={log(tmp_path / 'a.hdf5')}", f"expert={log(tmp_path / 'b.hdf5', seed=1)}", "policy=offline/bc")
    with pytest.raises(ValueError, match=r"expert joins rows .* from one source alone"):
        make_offline(tmp_path / "run", *both, "policy.seeds=2")


def test_offline_expert_is_what_learners_take_for_demonstrations(make_offline, tmp_path):
    both = (f"data={log(tmp_path / 'a.hdf5')}", f"expert={log(tmp_path / 'b.hdf5', seed=1)}", "policy=sequence/arsq")
    job = make_offline(tmp_path / "run", *both)
    shown = next(job.source.parts["expert"].batches(20_000)).action.unique()  # all there are
    batch = next(job.source.batches(64))
    assert torch.isin(batch.action, shown).all(1).float().tolist() == demonstration_mask(batch).tolist()


@pytest.mark.parametrize(("reward", "ends", "refused"), [(0.0, 2, True), (1.0, 0, True), (1.0, 2, False)])
def test_offline_value_learning_without_any_reward_is_refused(make_offline, tmp_path, reward, ends, refused):
    path = log(tmp_path / "log.hdf5", reward=reward, ends=ends)
    if refused:
        with pytest.raises(ValueError, match=r"there is no value to learn.*data convert"):
            make_offline(tmp_path / "a", f"data={path}", "policy=offline/iql")
    else:
        make_offline(tmp_path / "a", f"data={path}", "policy=offline/iql")
    make_offline(tmp_path / "b", f"data={path}", "policy=offline/bc")  # cloning never asks


def test_offline_actions_outside_the_bounds_need_a_decision(tmp_path):
    path = log(tmp_path / "log.hdf5", scale=3.0)
    with pytest.raises(ValueError, match=r"lie outside \[-1, 1\], worst 3"):
        sampler(open_log(path), LogSettings(data=str(path)), seed=0)
    data, notes = sampler(open_log(path), LogSettings(data=str(path), action_clip=True), seed=0)
    assert data.sample(64).action.abs().max() <= 1.0
    assert any("clipped" in line for line in notes)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"reward": "none"}, (0.0, 19.0)),
        ({"reward": "minus_one"}, (-1.0, 18.0)),
        ({"reward": "scale_bias", "reward_scale": 10.0, "reward_bias": -5.0}, (-5.0, 185.0)),
        ({"reward": "return_range"}, (0.0, 19.0 * 1000 / 190)),  # returns are 0 ... 190
        ({"top_fraction": 0.1}, (18.0, 19.0)),  # the best two of twenty
        ({"top_fraction": 0.1, "top_unit": "steps"}, (18.0, 19.0)),
    ],
    ids=str,
)
def test_offline_reward_options(tmp_path, settings, expected):
    path = log(tmp_path / "log.hdf5")
    data, _ = sampler(open_log(path), LogSettings(data=str(path), **settings), seed=0)
    assert data.reward_range() == pytest.approx(expected)
    reward = data.sample(2000).reward
    assert (float(reward.min()), float(reward.max())) == pytest.approx(expected)


def test_offline_second_open_reads_the_store(tmp_path):
    path = log(tmp_path / "log.hdf5")
    first = open_log(path)
    changed = first.path.stat().st_mtime_ns
    assert open_log(path).path.stat().st_mtime_ns == changed
    assert open_log(first.path).fingerprint == first.fingerprint


def test_offline_log_on_a_read_only_mount_gets_a_store_elsewhere(tmp_path, monkeypatch):
    path, why = log(tmp_path / "log.hdf5"), [errno.ENOSPC, errno.EROFS]

    def mounted(path, out, **options):
        if out.parent == tmp_path:
            raise OSError(why[-1], "nothing can be written")
        return convert_once(path, out, **options)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("robot_rl.verbs.logs.convert_once", mounted)
    assert open_log(path).path.parent.name == "stores"
    why.pop()
    with pytest.raises(OSError, match="nothing can be written"):
        open_log(path)


def test_offline_says_that_a_converted_store_is_read_and_never_replaces_it(tmp_path, capsys):
    path = log(tmp_path / "log.hdf5", scale=1.5)
    convert(path, path.with_suffix(".store"), mend=Repairs(action="clip"))
    mended = open_log(path)
    assert np.abs(mended.column("action")).max() <= 1.0
    said = capsys.readouterr().err
    assert f"read from {path.with_suffix('.store')}, which robot-rl data convert made of it" in said
    assert "clip" in said
    log(path, seed=1)
    with pytest.raises(ValueError, match=r"not from log\.hdf5 as it is now"):
        open_log(path)
    assert open_store(mended.path).fingerprint == mended.fingerprint


def write_steps(path: Path, **columns: np.ndarray) -> Path:
    """A D4RL file of 40 steps, with the keys that are asked of one."""
    with h5py.File(path, "w") as file:
        for key, width in (("observations", (40, 3)), ("actions", (40, 2)), ("rewards", (40,))):
            file[key] = np.linspace(-1.0, 1.0, int(np.prod(width)), dtype=np.float32).reshape(width)
        for key, column in ({"terminals": np.zeros(40, bool)} | columns).items():
            file[key] = column
    return path


def test_offline_log_that_needs_a_repair_says_the_line_that_makes_it(tmp_path):
    path = write_steps(tmp_path / "log.hdf5")
    with pytest.raises(Refused, match=r"episode_length=<steps>.* data convert \S+log\.hdf5 out=\S+log\.store …"):
        open_log(path)
    assert not path.with_suffix(".store").exists()


def test_offline_log_of_steps_without_successors_says_why_it_has_none(tmp_path):
    path = write_steps(tmp_path / "log.hdf5", timeouts=np.ones(40, bool))
    with pytest.raises(ValueError, match=r"without a recorded successor .*policy=offline/bc"):
        sampler(open_log(path), LogSettings(data=str(path)), seed=0)


def test_offline_command_line_from_log_to_policy_to_evaluation(tmp_path, robot_rl):
    log(tmp_path / "log.hdf5", reach=True)
    done = robot_rl("offline", "data=log.hdf5", "env=reach", *TINY, "name=x", "policy=offline/td3_bc")
    assert done.returncode == 0, done.stderr
    run = next(tmp_path.glob("runs/offline/*_x"))
    assert (run / "report.html").exists()
    shown = robot_rl("eval", f"path={run}", "episodes=2", "video_episodes=0")
    assert shown.returncode == 0, shown.stderr
    resumed = robot_rl("offline", f"resume={run}", "updates=250")
    assert resumed.returncode == 0, resumed.stderr
    assert "250" in resumed.stdout


def test_offline_without_an_estimator_makes_no_estimate(tmp_path, robot_rl):
    log(tmp_path / "log.hdf5")
    small = [item for item in TINY if not item.startswith(("estimate", "ope.", "updates"))]
    done = robot_rl("offline", "data=log.hdf5", "~ope", *small, "updates=20", "policy=offline/bc")
    assert done.returncode == 0, done.stderr
    assert "from the log alone" not in done.stdout


def test_offline_wrong_learner_and_missing_log_are_one_paragraph(tmp_path, robot_rl):
    log(tmp_path / "log.hdf5")
    for arguments, words in (
        (["data=nowhere.hdf5"], "nowhere.hdf5 does not exist"),
        (["data=log.hdf5", "policy=online/ppo"], "logs are transitions"),
        (["data=log.hdf5", "reward=sparse"], "expected one of none"),
        (["resume=nowhere"], "holds no config.yaml"),
    ):
        done = robot_rl("offline", *arguments)
        assert done.returncode == 2, done.stdout
        assert words in done.stderr
        assert "Traceback" not in done.stderr


def test_offline_run_is_fine_tuned_beside_its_log_and_resumes(tmp_path, robot_rl):
    log(tmp_path / "log.hdf5", reach=True)
    small = [item for item in TINY if not item.startswith(("policy.batch", "updates=", "eval_envs", "final"))]
    small += ["policy.critic_hidden=[16,16]", "policy.samples=2", "policy.batch_size=16", "final_episodes=2"]
    first = robot_rl(
        "offline",
        "data=log.hdf5",
        "env=reach",
        "policy=offline/cal_ql",
        *small,
        "updates=60",
        "reward=minus_one",
        "name=a",
    )
    assert first.returncode == 0, first.stderr
    run = next(tmp_path.glob("runs/offline/*_a"))
    online = ["env=reach", f"init={run}", "log=log.hdf5", "total_steps=80", "learning_starts=20", "log_every=40"]
    online += ["buffer_size=70"]
    online += ["eval_every=0", "final_episodes=2", "video_episodes=0", "track.tensorboard=false"]
    done = robot_rl("train", *online)
    assert done.returncode == 0, done.stderr
    tuned = next(tmp_path.glob("runs/train/*_reach_cal_ql_seed0"))  # named after what learns, not after the default
    before = checkpoint.load_state(checkpoint.find(run) / "learner.pt")
    after = checkpoint.load_state(checkpoint.find(tuned) / "learner.pt")
    assert after["updates"] == 60 + 61  # one per step from the twentieth on
    assert not torch.equal(before["critic"]["flat"], after["critic"]["flat"])
    more = robot_rl("train", f"resume={tuned}", "total_steps=100")
    assert more.returncode == 0, more.stderr


@pytest.mark.parametrize(
    ("policy", "moved"),
    [(("policy=offline/iql",), "actor"), (("policy=sequence/arsq", "policy.decay=40"), "advantage")],
)
def test_actor_moves_on_when_its_step_size_fell_to_zero_over_the_log(tmp_path, robot_rl, policy, moved):
    log(tmp_path / "log.hdf5", reach=True)
    small = [item for item in TINY if not item.startswith(("policy.batch", "updates=", "eval_envs", "final"))]
    small += ["policy.batch_size=16", "final_episodes=2"]
    first = robot_rl("offline", "data=log.hdf5", "env=reach", *policy, *small, "updates=40", "name=a")
    assert first.returncode == 0, first.stderr
    run = next(tmp_path.glob("runs/offline/*_a"))
    done = robot_rl(
        *("train", "env=reach", f"init={run}", "log=log.hdf5", "total_steps=60", "learning_starts=20", "eval_every=0"),
        "name=b",
        *("final_episodes=2", "video_episodes=0", "track.tensorboard=false"),
    )
    assert done.returncode == 0, done.stderr
    tuned = next(tmp_path.glob("runs/train/*_b"))
    before = checkpoint.load_state(checkpoint.find(run) / "learner.pt")[moved]["flat"]
    after = checkpoint.load_state(checkpoint.find(tuned) / "learner.pt")[moved]["flat"]
    assert (after - before).abs().max() > 1e-3


def test_offline_run_without_environment_is_evaluated_in_any_world_of_its_sizes(tmp_path, robot_rl):
    log(tmp_path / "log.hdf5", reach=True)
    small = [item for item in TINY if not item.startswith("updates=")]
    done = robot_rl("offline", "data=log.hdf5", "policy=offline/bc", *small, "updates=20", "name=x")
    assert done.returncode == 0, done.stderr
    run = next(tmp_path.glob("runs/offline/*_x"))
    refused = robot_rl("eval", f"path={run}", "episodes=2")
    assert refused.returncode == 2
    assert "trained without an environment" in refused.stderr
    shown = robot_rl("eval", f"path={run}", "env=reach", "episodes=2", "video_episodes=0")
    assert shown.returncode == 0, shown.stderr
    other = robot_rl("eval", f"path={run}", "env=double_pendulum", "episodes=2", "video_episodes=0")
    assert other.returncode == 2
    assert "choose the environment that the log was made in" in other.stderr
