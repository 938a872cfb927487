"""SB3 zips as policies: equal to SB3's own predictions, nothing executed, every misfit listed."""

from __future__ import annotations

import base64
import json
import os
import pickle
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from robot_rl.policies.online.sb3_zip import Sb3Policy
from robot_rl.types import IOSpec

sb3 = pytest.importorskip("stable_baselines3", reason="needs stable-baselines3 (extra `baselines`)")
ZOO = next((p for p in (up / "shared/data/sb3_zoo" for up in Path(__file__).parents) if p.exists()), Path("absent"))
OBS = np.random.default_rng(0).standard_normal((5, 4)).astype(np.float32)


def make_io(obs=4, low=(-1.0, -1.0), high=(1.0, 1.0)):
    return IOSpec(
        obs={"state": ((obs,), "float32")},
        action_names=tuple(f"a{i}" for i in range(len(low))),
        action_low=low,
        action_high=high,
        action_units=("N*m",) * len(low),
        control_hz=10.0,
    )


class Blank(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (4,), np.float32)

    def __init__(self, low=(-1.0, -1.0), high=(1.0, 1.0), space=None):
        box = gymnasium.spaces.Box(np.array(low, np.float32), np.array(high, np.float32))
        self.action_space = box if space is None else space

    def reset(self, *, seed=None, options=None):
        return np.zeros(4, np.float32), {}

    def step(self, action):
        return np.zeros(4, np.float32), 0.0, False, False, {}


def saved(tmp_path, algorithm, env=None, **options) -> tuple[Any, str]:
    model = getattr(sb3, algorithm)("MlpPolicy", env or Blank(), seed=0, device="cpu", **options)
    with torch.no_grad():
        for parameter in model.policy.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0)))
    path = tmp_path / f"{algorithm}.zip"
    model.save(path)
    return model, str(path)


@pytest.mark.parametrize("algorithm", ["SAC", "TD3", "DDPG", "PPO", "A2C"])
@pytest.mark.parametrize("activation", [None, torch.nn.ELU])
def test_sb3_policy_equals_sb3_predictions(tmp_path, algorithm, activation):
    options = {} if activation is None else {"policy_kwargs": {"activation_fn": activation, "net_arch": [16, 8, 8]}}
    model, path = saved(tmp_path, algorithm, **options)
    policy = Sb3Policy(path, make_io())
    expected, _ = model.predict(OBS, deterministic=True)
    np.testing.assert_allclose(policy.act({"state": OBS}, deterministic=True).value, expected, atol=1e-6)
    tensor = policy.act({"state": torch.from_numpy(OBS)}, deterministic=True).value
    assert isinstance(tensor, torch.Tensor)
    np.testing.assert_allclose(tensor.numpy(), expected, atol=1e-6)


@pytest.mark.parametrize("algorithm", ["SAC", "PPO"])
def test_sb3_policy_physical_action_bounds_become_normalised(tmp_path, algorithm):
    low, high = (-2.0, 0.0), (2.0, 3.0)
    model, path = saved(tmp_path, algorithm, Blank(low, high))
    value = Sb3Policy(path, make_io(low=low, high=high)).act({"state": OBS}, deterministic=True).value
    expected, _ = model.predict(OBS, deterministic=True)  # physical units, clipped to the bounds
    physical = np.array(low) + (value + 1.0) / 2.0 * (np.array(high) - np.array(low))
    np.testing.assert_allclose(physical, expected, atol=1e-5)


@pytest.mark.parametrize("algorithm", ["SAC", "PPO"])
def test_sb3_policy_state_dependent_exploration(tmp_path, algorithm):
    model, path = saved(tmp_path, algorithm, use_sde=True)
    policy = Sb3Policy(path, make_io())
    expected, _ = model.predict(OBS, deterministic=True)
    np.testing.assert_allclose(policy.act({"state": OBS}, deterministic=True).value, expected, atol=1e-6)
    with pytest.raises(ValueError, match="gSDE"):
        policy.act({"state": OBS})


@pytest.mark.parametrize("name", ["actor.latent_pi.3.ra_mean", "actor.latent_pi.2.weight"])
def test_sb3_policy_with_layers_that_are_not_read_is_refused(tmp_path, name):
    _, path = saved(tmp_path, "SAC", policy_kwargs={"net_arch": [8, 8]})
    with zipfile.ZipFile(path) as archive:
        weights = torch.load(archive.open("policy.pth"), weights_only=True)
    with zipfile.ZipFile(path, "w") as archive, archive.open("policy.pth", "w") as file:
        torch.save({**weights, name: torch.ones(8)}, file)  # as a normalisation has it
    with pytest.raises(ValueError, match=rf"{name} .* are not read"):
        Sb3Policy(path, make_io())


def test_sb3_policy_without_hidden_layers_reads_its_statistics(tmp_path):
    model, path = saved(tmp_path, "PPO", policy_kwargs={"net_arch": []})
    np.savez(tmp_path / "moments.npz", mean=np.full(4, 0.5), var=np.full(4, 4.0))
    policy = Sb3Policy(path, make_io(), vecnormalize=str(tmp_path / "moments.npz"))
    expected, _ = model.predict((OBS - 0.5) / 2.0, deterministic=True)
    np.testing.assert_allclose(policy.act({"state": OBS}, deterministic=True).value, expected, atol=1e-6)


def test_sb3_policy_samples_have_the_agents_spread(tmp_path):
    model, path = saved(tmp_path, "PPO", policy_kwargs={"log_std_init": -2.0})
    policy = Sb3Policy(path, make_io())
    many = np.repeat(OBS[:1], 4000, axis=0)
    mean = np.asarray(policy.act({"state": OBS[:1]}, deterministic=True).value)
    sample = np.asarray(policy.act({"state": many}).value)
    spread = model.policy.log_std.exp().detach().numpy()
    inside = np.abs(mean[0]) < 0.5  # far from the bounds clipping does not narrow the spread
    assert inside.any()
    np.testing.assert_allclose(sample.std(axis=0)[inside], spread[inside], rtol=0.1)


def choices_io(*counts):
    return replace(make_io(low=(-1.0,) * len(counts), high=(1.0,) * len(counts)), action_choices=counts)


@pytest.mark.parametrize(
    ("algorithm", "counts"), [("PPO", (3,)), ("A2C", (2,)), ("DQN", (4,)), ("PPO", (3, 2))], ids=lambda x: str(x)
)
def test_sb3_policy_chooses_as_sb3_does(tmp_path, algorithm, counts):
    """Choice k of n is the action -1 + 2 k / (n - 1)."""
    spaces = gymnasium.spaces
    space = spaces.Discrete(counts[0]) if len(counts) == 1 else spaces.MultiDiscrete(counts)
    model, path = saved(tmp_path, algorithm, Blank(space=space), policy_kwargs={"net_arch": [6]})
    policy = Sb3Policy(path, choices_io(*counts))
    states = np.random.default_rng(1).standard_normal((64, 4)).astype(np.float32) * 3
    choice = np.asarray(model.predict(states, deterministic=True)[0]).reshape(64, len(counts))
    assert len(np.unique(choice)) > 1
    expected = -1.0 + 2.0 * choice / (np.array(counts) - 1)
    assert policy.act({"state": states}, deterministic=True).value == pytest.approx(expected)
    graph = policy.parts.graph
    assert graph is not None
    assert graph({"state": torch.as_tensor(states)}).numpy() == pytest.approx(expected)


def test_sb3_policy_draws_choices_as_often_as_sb3_expects(tmp_path):
    model, path = saved(tmp_path, "PPO", Blank(space=gymnasium.spaces.Discrete(3)))
    many = np.repeat(OBS[:1], 4000, axis=0)
    drawn = Sb3Policy(path, choices_io(3)).act({"state": many})
    expected = model.policy.get_distribution(torch.as_tensor(OBS[:1])).distribution.probs[0].detach().numpy()
    shares = [(drawn.value == value).mean() for value in (-1.0, 0.0, 1.0)]
    assert shares == pytest.approx(expected, abs=0.03)
    index = np.rint(np.asarray(drawn.value)[:, 0] + 1).astype(int)
    assert np.asarray(drawn.logp) == pytest.approx(np.log(expected)[index], abs=1e-5)


def test_sb3_policy_of_choices_that_do_not_fit_says_so(tmp_path):
    _, path = saved(tmp_path, "DQN", Blank(space=gymnasium.spaces.Discrete(4)))
    with pytest.raises(ValueError, match=r"chooses among 4, the choices here are \[3\]"):
        Sb3Policy(path, choices_io(3))
    with pytest.raises(ValueError, match="chooses among 4, the choices here are any number"):
        Sb3Policy(path, make_io())
    _, path = saved(tmp_path, "PPO")
    with pytest.raises(ValueError, match=r"gives numbers, and the actions here are choices: \[3\]"):
        Sb3Policy(path, choices_io(3))
    _, path = saved(tmp_path, "PPO", Blank(space=gymnasium.spaces.MultiBinary(3)))
    with pytest.raises(ValueError, match="MultiBinary"):
        Sb3Policy(path, choices_io(3))


def test_zip_with_its_interface_beside_it_is_what_the_policy_node_runs(tmp_path):
    """Positions and velocities in, deltas out, through the port of the robot's own specification."""
    from robot_rl.real.core.spec import RobotSpec
    from robot_rl.real.graph import GraphArgs, GraphError, graph
    from robot_rl.real.policy_runner import fit_policy
    from robot_rl.verbs.robot_policy import load_robot_policy

    joint = {"lower": -1.0, "upper": 1.0, "velocity": 1.0, "acceleration": 9.0, "effort": 9.0}
    table = {"name": "two", "command_mode": "jtc", "joints": [{"name": name, **joint} for name in ("a0", "a1")]}
    model, path = saved(tmp_path, "SAC")
    file = tmp_path / "robot.yaml"
    file.write_text(json.dumps({**table, "action": {"mapping": "delta", "scale": [0.1]}}))
    with pytest.raises(GraphError, match=r"needs the io\.json of its interface beside it"):
        graph(GraphArgs(str(file), policy_path=path))
    names = ("a0_delta", "a1_delta")
    io = replace(make_io(low=(-0.1, -0.1), high=(0.1, 0.1)), action_names=names, action_units=("rad", "rad"))
    (tmp_path / "io.json").write_text(json.dumps(io.to_dict()))
    graph(GraphArgs(str(file), policy_path=path))
    policy, port = fit_policy(
        load_robot_policy(path, device="cpu", threads=1, trust=False), RobotSpec.load(file), {}, print
    )
    obs = port.observe(np.array([0.2, -0.1]), np.array([0.0, 0.5]), {})
    expected = model.predict(np.array([[0.2, -0.1, 0.0, 0.5]], np.float32), deterministic=True)[0]
    assert policy.act(obs, deterministic=True).value == pytest.approx(expected, abs=1e-6)


class Bomb:
    """Unpickling this writes a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


def test_sb3_policy_samples_come_with_the_log_density_that_sb3_gives_them(tmp_path):
    model, path = saved(tmp_path, "SAC")
    policy = Sb3Policy(path, make_io(), seed=3)
    sampled = policy.act({"state": OBS})
    mean, log_std, _ = model.actor.get_action_dist_params(torch.from_numpy(OBS))
    theirs = model.actor.action_dist.proba_distribution(mean, log_std)
    expected = theirs.log_prob(torch.from_numpy(sampled.value)).detach().numpy()
    inside = np.abs(np.asarray(sampled.value)).max(1) < 0.999  # theirs is cut off where tanh saturates
    assert inside.sum() >= 3
    np.testing.assert_allclose(np.asarray(sampled.logp)[inside], expected[inside], atol=1e-3)
    assert policy.act({"state": OBS}, deterministic=True).logp is None
    policy.reseed(3)
    np.testing.assert_array_equal(policy.act({"state": OBS}).value, sampled.value)


def rewritten(source, target, **replace):
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        for name in old.namelist():
            new.writestr(name, replace.get(name.replace(".", "_"), old.read(name)))
    return str(target)


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
def test_sb3_policy_malicious_pickles_are_not_executed(tmp_path):
    _, path = saved(tmp_path, "SAC")
    mark = tmp_path / "executed"
    evil = base64.b64encode(pickle.dumps(Bomb(mark))).decode()
    with zipfile.ZipFile(path) as archive:
        data = json.loads(archive.read("data"))
    data = {key: {":type:": "x", ":serialized:": evil} for key in data}
    changed = rewritten(path, tmp_path / "data.zip", data=json.dumps(data))
    Sb3Policy(changed, make_io()).act({"state": OBS}, deterministic=True)
    assert not mark.exists()

    torch.save({"weights": Bomb(mark)}, tmp_path / "evil.pth")
    changed = rewritten(path, tmp_path / "weights.zip", policy_pth=(tmp_path / "evil.pth").read_bytes())
    with pytest.raises(ValueError, match="not plain weights"):
        Sb3Policy(changed, make_io())
    changed = rewritten(path, tmp_path / "raw.zip", policy_pth=pickle.dumps(Bomb(mark)))
    with pytest.raises(ValueError, match="not plain weights"):
        Sb3Policy(changed, make_io())
    assert not mark.exists()


def test_sb3_policy_misfit_lists_every_difference(tmp_path):
    _, path = saved(tmp_path, "SAC", Blank((-2.0, -2.0), (2.0, 2.0)))
    with pytest.raises(ValueError, match=r"4 components in the file and \(7,\) here") as caught:
        Sb3Policy(path, make_io(obs=7))
    assert "action spans [-2.0, -2.0]" in str(caught.value)
    with pytest.raises(ValueError, match="2 dimensions in the file and 3 here"):
        Sb3Policy(path, make_io(low=(-1.0,) * 3, high=(1.0,) * 3))


def test_sb3_policy_foreign_files_are_refused(tmp_path):
    (tmp_path / "text.zip").write_text("no zip")
    with pytest.raises(ValueError, match="cannot be read"):
        Sb3Policy(str(tmp_path / "text.zip"), make_io())
    with pytest.raises(ValueError, match="there is no file"):
        Sb3Policy(str(tmp_path / "absent.zip"), make_io())
    with zipfile.ZipFile(tmp_path / "other.zip", "w") as archive:
        archive.writestr("readme", "hello")
    with pytest.raises(ValueError, match=r"expected 'policy\.pth'"):
        Sb3Policy(str(tmp_path / "other.zip"), make_io())
    torch.save({"q_net.weight": torch.zeros(1)}, tmp_path / "dqn.pth")
    with zipfile.ZipFile(tmp_path / "dqn.zip", "w") as archive:
        archive.writestr("policy.pth", (tmp_path / "dqn.pth").read_bytes())
    with pytest.raises(ValueError, match="expected an actor"):
        Sb3Policy(str(tmp_path / "dqn.zip"), make_io())


def normaliser(mean: np.ndarray, var: np.ndarray, **options: Any) -> Any:
    env = sb3.common.vec_env.DummyVecEnv([lambda: gymnasium.make("Pendulum-v1")])
    env.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (len(mean),))
    wrapper = sb3.common.vec_env.VecNormalize(env, **options)
    if wrapper.norm_obs:
        wrapper.obs_rms.mean, wrapper.obs_rms.var = mean, var
    return wrapper


@pytest.mark.parametrize("place", ["beside", "folder", "flat", "named", "npz"])
def test_sb3_policy_sees_what_vecnormalize_showed_the_agent(tmp_path, place):
    model, path = saved(tmp_path, "PPO")
    mean, var = np.arange(4.0), np.full(4, 4.0)
    wrapper = normaliser(mean, var, clip_obs=1.5)
    folder = Path(path).with_suffix("")
    folder.mkdir()
    places = {
        "beside": tmp_path / "vecnormalize.pkl",
        "folder": folder / "vecnormalize.pkl",
        "flat": Path(path).with_suffix(".vecnormalize.pkl"),
        "named": tmp_path / "statistics.pkl",
        "npz": tmp_path / "statistics.npz",
    }
    file = places[place]
    if place == "npz":
        np.savez(file, mean=mean, var=var, epsilon=wrapper.epsilon, clip_obs=wrapper.clip_obs)
    else:
        wrapper.save(str(file))
    policy = Sb3Policy(path, make_io(), vecnormalize=str(file) if place in ("named", "npz") else None)
    expected, _ = model.predict(wrapper.normalize_obs(OBS), deterministic=True)
    np.testing.assert_allclose(policy.act({"state": OBS}, deterministic=True).value, expected, atol=1e-6)


def test_sb3_policy_executes_nothing_of_a_vecnormalize_pickle(tmp_path):
    _, path = saved(tmp_path, "PPO")
    file = tmp_path / "vecnormalize.pkl"
    file.write_bytes(pickle.dumps(Bomb(tmp_path / "executed")))
    with pytest.raises(ValueError, match=r"no observation statistics.*nothing of it was executed"):
        Sb3Policy(path, make_io())
    file.write_bytes(b"\x80\x04not a pickle")
    with pytest.raises(ValueError, match="no readable pickle"):
        Sb3Policy(path, make_io())
    normaliser(np.zeros(3), np.ones(3)).save(str(file))
    with pytest.raises(ValueError, match=r"mean \(3,\).*expected \(4,\)"):
        Sb3Policy(path, make_io())
    normaliser(np.full(4, np.nan), np.ones(4)).save(str(file))
    with pytest.raises(ValueError, match="not finite"):
        Sb3Policy(path, make_io())
    assert not (tmp_path / "executed").exists()


def test_sb3_policy_with_vecnormalize_for_rewards_alone_sees_plain_observations(tmp_path):
    model, path = saved(tmp_path, "PPO")
    normaliser(np.zeros(4), np.ones(4), norm_obs=False).save(str(tmp_path / "vecnormalize.pkl"))
    expected, _ = model.predict(OBS, deterministic=True)
    policy = Sb3Policy(path, make_io())
    np.testing.assert_allclose(policy.act({"state": OBS}, deterministic=True).value, expected, atol=1e-6)


@pytest.mark.skipif(not ZOO.exists(), reason="the folder shared/data/sb3_zoo is absent")
@pytest.mark.parametrize(
    ("name", "low", "high"), [("tqc-HalfCheetah", 11947 - 600, 11947 + 600), ("sac-Hopper", 1097 - 60, 1097 + 60)]
)
def test_sb3_policy_zoo_agents_reach_their_published_returns(name, low, high):
    pytest.importorskip("mujoco", reason="needs mujoco")
    task = name.split("-")[1]
    env = gymnasium.make(f"{task}-v4")
    box: Any = env.action_space
    dims = {"HalfCheetah": 17, "Hopper": 11}
    policy = Sb3Policy(
        str(ZOO / f"{name}-v3.zip"), make_io(dims[task], tuple(box.low.tolist()), tuple(box.high.tolist()))
    )
    obs, _ = env.reset(seed=10_000)
    total, over = 0.0, False
    while not over:
        action = policy.act({"state": np.asarray(obs, np.float32)[None]}, deterministic=True).value[0]
        obs, reward, terminated, truncated, _ = env.step(action)
        total += float(reward)
        over = terminated or truncated
    assert low < total < high


@pytest.mark.parametrize("algorithm", ["SAC", "PPO"])
def test_zip_is_exported_as_a_graph_that_acts_as_sb3_does(tmp_path: Path, robot_rl: Any, algorithm: str) -> None:
    pytest.importorskip("onnxruntime")
    from robot_rl.onnx_policy import OnnxPolicy

    model, path = saved(tmp_path, algorithm, gymnasium.make("Pendulum-v1"))
    words = ("policy=sb3", f"path={path}", "env=gym", "id=Pendulum-v1", "out=graph")
    done = robot_rl("export", *words)
    assert done.returncode == 0, done.stderr
    obs = np.random.default_rng(0).uniform(-1, 1, (6, 3)).astype(np.float32)
    theirs = model.predict(obs, deterministic=True)[0] / 2.0  # Pendulum's torque goes to 2 N m
    assert OnnxPolicy(str(tmp_path / "graph")).act({"state": obs}).value == pytest.approx(theirs, abs=1e-5)
    done = robot_rl("export", "policy=sb3", f"path={path}", "out=other")
    assert done.returncode == 2
    assert "brings no environment" in done.stderr
