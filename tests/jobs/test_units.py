"""What a policy commands is what its log's numbers say, in physical units, whatever format, repair and verb.

Every case is made by hand: a log of an actuator of +-2 N*m, a policy that always answers one number in the log's units,
and an environment of +-4 N*m that writes down what it was commanded.
"""

from __future__ import annotations

import itertools
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
import yaml
from hydra.core.global_hydra import GlobalHydra
from omegaconf import OmegaConf

sys.path.insert(0, str(Path(__file__).parent))
from unit_logs import ENV, FORMATS, HIGH, LOW, TORQUE, physical, write  # pyright: ignore[reportMissingImports]

from robot_rl import checkpoint, cli, extras
from robot_rl.data import d4rl, formats
from robot_rl.data.bounds import Scale, scale_between
from robot_rl.data.convert import convert
from robot_rl.data.findings import BadData
from robot_rl.data.repairs import Repairs
from robot_rl.data.units import InUnits, agree
from robot_rl.loops.evaluate import evaluate
from robot_rl.real.core.spec import RobotSpec
from robot_rl.real.policy_runner import PolicyRunner, RunnerOptions, fit_policy
from robot_rl.sim.array_env import ArrayVectorEnv
from robot_rl.types import Action, IOSpec, PolicyParts
from robot_rl.verbs import logs, ope
from robot_rl.verbs.build import load_for_robot, load_policy
from robot_rl.verbs.collect_episodes import KeepOptions, keep_steps
from robot_rl.verbs.logs import LogSettings
from robot_rl.verbs.ope import OpeSettings

OWN = Path(__file__).parent / "constant.py"
METHOD, CHUNKS, WORLD = (f"{OWN}:{name}" for name in ("Constant", "ConstantChunks", "Bench"))
extras.allow(METHOD, CHUNKS, WORLD)
Bench = extras.own(WORLD)


class Constant:
    """Answers one action, for ever."""

    parts = PolicyParts()

    def __init__(self, io: IOSpec, value: np.ndarray) -> None:
        self.io, self.value = io, np.asarray(value, np.float32)

    def reset(self, rows: Any = None) -> None: ...

    def act(self, obs: Any, *, deterministic: bool = False) -> Action:
        return Action(np.repeat(self.value[None], len(obs["state"]), 0))


ROBOT = RobotSpec.from_dict(
    {
        "name": "bench",
        "joints": [
            {"name": n, "lower": -9.0, "upper": 9.0, "velocity": 9.0, "acceleration": 99.0, "effort": 4.0} for n in "ab"
        ],
        "command_mode": "forward_effort",
        "action": {"mapping": "effort", "scale": [4.0]},
    }
)


def in_units(io: IOSpec, action: Any) -> np.ndarray:
    """[-1, 1] to physical, by the interface's own definition."""
    low, high = np.array(io.action_low, float), np.array(io.action_high, float)
    return low + (np.asarray(action, float) + 1.0) / 2.0 * (high - low)


def made_from(log: Path, folder: Path, said: dict[str, Any], method: str = METHOD, *, bench: bool = False) -> Path:
    """The checkpoint of `offline` without an environment, of a policy that always answers the log's first action.

    Args:
        log: any.
        folder: of the run.
        said: `action_low=… action_high=…` on its command line.
        method: that answers it.
        bench: whether it knows the environment.
    """
    store = logs.read_log(LogSettings(data=str(log), **said))
    config: dict[str, Any] = {"policy": {"name": method}, "seed": 0, "gamma": 0.99, "device": "cpu"}
    config |= {"env": {"engine": "array", "world": {"name": WORLD}}} if bench else {}
    value = torch.tensor(np.array(store.column("action")[0], np.float32))
    states, meta = {"policy": {"value": value}}, {"action": store.meta.get("action")}
    text = yaml.safe_dump(config)
    return checkpoint.save(folder / "checkpoints", 1, states=states, io=store.io, config=text, meta=meta)


def commanded(verb: str, path: Path, given: dict[str, Any], folder: Path) -> np.ndarray:
    """(2,) N*m that are commanded by the log's first action, or by a policy that always answers it.

    Args:
        verb: of `VERBS`; what is said of the log is told to it, or, in "given to offline", to the training.
        path: of the log.
        given: the range, where the log does not tell it.
        folder: for the run.
    """
    settings = LogSettings(data=str(path), action_clip=True, **given)
    if verb in ("offline", "train log="):  # the policy learns in the environment's units
        store, _ = logs.fit(logs.read_log(settings), ENV)
        data, _ = logs.sampler(store, settings, seed=0)
        return in_units(ENV, next(iter(data.in_order(1))).action[0].numpy())
    if verb == "ope":  # the log as a policy of +-4 N*m is judged on it
        store, _ = ope.read(OpeSettings(data=str(path), **given), ENV)
        return in_units(ENV, store.column("action")[0])
    early, late = (given, {}) if verb == "given to offline" else ({}, given)
    made = made_from(path, folder / "run", early)
    if verb == "deploy":
        policy, port = fit_policy(load_for_robot(str(made)), ROBOT, late, pytest.fail)
        sent = PolicyRunner(policy, port, RunnerOptions(rate=20.0, mode=ROBOT.mode), identity="p").tick(
            np.zeros(2), np.zeros(2), {}
        )
        assert sent is not None
        return sent.values[0]
    Bench.commanded.clear()
    env = ArrayVectorEnv(Bench(), 2, 0)
    config = OmegaConf.load(made / "config.yaml")
    policy = load_policy(OmegaConf.create({"device": "cpu", **late}), config, made, env.io)  # type: ignore[arg-type]
    if verb == "collect":  # what is recorded says the same as what is done
        kept = keep_steps(env, policy, KeepOptions(episodes=2), seed=0)
        np.testing.assert_allclose(in_units(ENV, kept[0].action[0]), Bench.commanded[0], atol=1e-5)
    else:
        evaluate(env, policy, episodes=2, seed=0)
    return Bench.commanded[0]


REPAIRS = (None, "clip", "rescale", "keep", "no conversion")
VERBS = ("offline", "train log=", "eval", "collect", "ope", "deploy", "given to offline")
TOLD = ("by the file", "by the command line")
ALL = list(itertools.product(FORMATS, REPAIRS, VERBS, TOLD))


def pairs() -> set[tuple[str, str | None, str, str]]:
    """A part of all combinations in which every two choices meet; greedy."""
    left = {(i, a, j, b) for c in ALL for (i, a), (j, b) in itertools.combinations(enumerate(c), 2)}
    chosen = set()
    while left:
        best = max(ALL, key=lambda c: sum((i, a, j, b) in left for (i, a), (j, b) in _two(c)))
        chosen.add(best)
        left -= {(i, a, j, b) for (i, a), (j, b) in _two(best)}
    return chosen


def _two(choice: tuple[Any, ...]) -> Any:
    return itertools.combinations(enumerate(choice), 2)


PAIRS = pairs()


@pytest.mark.parametrize(
    ("kind", "repair", "verb", "who"),
    [pytest.param(*c, marks=() if c in PAIRS else pytest.mark.slow) for c in ALL],
)
def test_constant_policy_commands_the_torque_of_its_log(
    tmp_path: Path, kind: str, repair: str | None, verb: str, who: str
) -> None:
    told = who == "by the file"
    path, reader = write(kind, tmp_path, told=told)
    given: dict[str, Any] = {} if told else {"action_low": LOW, "action_high": [HIGH, HIGH]}
    if repair != "no conversion" or reader:
        # a CSV file has to be converted: only then is it told its map
        way: Any = None if repair == "no conversion" else repair
        convert(path, tmp_path / "made.store", mend=Repairs(action=way, **given), **reader)
        path, given = tmp_path / "made.store", {}
    np.testing.assert_allclose(commanded(verb, path, given, tmp_path), TORQUE, atol=1e-3)


LINES = (
    ("eval episodes=2 video_episodes=0", METHOD),
    ("eval fas largest=1 episodes=2 num_envs=2", METHOD),
    ("eval latency episodes=4 num_envs=2 latency_ms=0 compensation=queue", CHUNKS),
    ("collect episodes=2 num_envs=2 out=made.hdf5", METHOD),
)


@pytest.mark.parametrize(("line", "method"), LINES, ids=[line.split(" episodes")[0] for line, _ in LINES])
def test_command_lines_take_the_range_of_a_log_that_does_not_tell_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], line: str, method: str
) -> None:
    """Half of every torque, so that as numbers they are within [-1, 1], which is what a policy answers."""
    half = [replace(e, action=e.action / 2, proposed=e.action / 2) for e in physical()]
    d4rl.write(tmp_path / "log.hdf5", half)
    made = made_from(tmp_path / "log.hdf5", tmp_path / "run", {}, method, bench=True)
    monkeypatch.chdir(tmp_path)
    for said, code in (([], 2), (["action_low=-2", "action_high=2"], 0)):
        Bench.commanded.clear()
        GlobalHydra.instance().clear()
        monkeypatch.setattr("sys.argv", ["robot-rl", *line.split(), f"path={made}", *said])
        with pytest.raises(SystemExit) if code else nullcontext():
            cli.main()
        if code:
            assert "action_low=… action_high=…" in capsys.readouterr().err
            assert not Bench.commanded
            continue
        np.testing.assert_allclose(Bench.commanded, np.tile(TORQUE, (len(Bench.commanded), 1)) / 2, atol=1e-3)
        assert len(Bench.commanded) >= 2


@pytest.mark.parametrize("kind", FORMATS)
def test_unknown_range_is_asked_for_and_nothing_is_guessed(tmp_path: Path, kind: str) -> None:
    path, reader = write(kind, tmp_path, told=False)
    convert(path, tmp_path / "made.store", mend=Repairs(action="keep"), **reader)
    store = logs.open_log(tmp_path / "made.store")
    with pytest.raises(ValueError, match=r"nothing says what .* mean.*action_low=… action_high=….*action=normalised"):
        logs.fit(store, ENV)
    # both answers: torques, and parts of the environment's own range
    torque, _ = logs.fit(logs.apply_meaning(store, low=LOW, high=HIGH), ENV)
    np.testing.assert_allclose(in_units(ENV, torque.column("action")[0]), TORQUE, atol=1e-3)
    parts, _ = logs.fit(logs.apply_meaning(store, action="normalised"), ENV)
    np.testing.assert_allclose(parts.column("action")[0], TORQUE, atol=1e-6)
    # where the environment's range is [-1, 1] both are the same number
    plain = replace(ENV, action_low=(-1.0,) * 2, action_high=(1.0,) * 2)
    assert agree(store.io, plain) is plain


def test_log_rescaled_by_its_own_range_commands_the_same_torque(tmp_path: Path) -> None:
    """Data in [-2, 2] became [-1, 1]: .25 there is half a newton metre, an eighth of the environment's range."""
    path, _ = write("d4rl", tmp_path, told=False)
    convert(path, tmp_path / "made.store", mend=Repairs(action="rescale"))
    store = logs.open_log(tmp_path / "made.store")
    assert store.io.bounds == ((LOW, LOW), (HIGH, HIGH))
    meant = agree(store.io, ENV)
    assert meant.bounds == ((LOW, LOW), (HIGH, HIGH))
    assert meant.action_names == ENV.action_names
    fitted, said = logs.fit(store, ENV)
    np.testing.assert_allclose(fitted.column("action")[0], np.array(TORQUE) / 4.0, atol=1e-6)
    assert "-2 to 2 N*m in the log" in said[0]


def test_what_the_environment_cannot_do_is_clipped_and_told_once() -> None:
    """+-2 N*m asked of +-1 N*m."""
    small = replace(ENV, action_low=(-1.0,) * 2, action_high=(1.0,) * 2)
    wide = replace(ENV, action_low=(LOW,) * 2, action_high=(HIGH,) * 2)
    heard: list[str] = []
    policy = InUnits(Constant(wide, np.array([0.25, 0.75])), scale_between(wide, small), small, heard.append)
    obs = {"state": np.zeros((1, 4), np.float32)}
    for _ in range(3):
        np.testing.assert_allclose(policy.act(obs).value, [[0.5, 1.0]])
    assert len(heard) == 1
    assert "(b_effort): clipped to its bounds" in heard[0]


def test_units_that_differ_and_bare_ones_are_refused() -> None:
    other = replace(ENV, action_units=("rad", "N*m"), action_low=(-2.0,) * 2, action_high=(2.0,) * 2)
    unnamed = replace(other, action_names=("a0", "a1"))
    with pytest.raises(ValueError, match=r"other units .*a_effort \(rad, N\*m\)"):
        agree(unnamed, ENV)
    bare = replace(unnamed, action_units=("1", "1"), action_low=(-1.0,) * 2, action_high=(1.0,) * 2)
    with pytest.raises(ValueError, match="whether 1 is one unit or the whole range cannot be told"):
        agree(bare, ENV)
    assert agree(bare, ENV, "stated").bounds == ((-1.0, -1.0), (1.0, 1.0))


def test_densities_follow_the_scale(tmp_path: Path) -> None:
    """Twice as far apart in each of two directions: densities are a quarter."""
    one = physical()[0]
    one = replace(one, meta={"columns": {"action_log_probs": np.zeros(20, np.float32)}})
    d4rl.write(tmp_path / "log.hdf5", [one])
    with h5py.File(tmp_path / "log.hdf5", "r+") as file:
        file.attrs.update({"action_low": LOW, "action_high": HIGH})
    store = logs.open_log(tmp_path / "log.hdf5")  # [-2, 2] became [-1, 1]: half as far apart, densities are 4 times
    name = next(n for n in store.names if n.endswith("action_log_probs"))
    np.testing.assert_allclose(store.column(name), np.log(4.0), atol=1e-6)
    again = store.rescale(Scale(np.full(2, 2.0), np.zeros(2)), store.io)
    np.testing.assert_allclose(again.column(name), 0.0, atol=1e-6)


def test_tensors_are_mapped_as_arrays_are() -> None:
    wide = replace(ENV, action_low=(LOW,) * 2, action_high=(HIGH,) * 2)

    class Torch(Constant):
        def act(self, obs: Any, *, deterministic: bool = False) -> Action:
            return Action(torch.tensor(self.value)[None], torch.zeros(1))

    policy = InUnits(Torch(wide, np.array([0.5, -1.0])), scale_between(wide, ENV), ENV, pytest.fail)
    found = policy.act({"state": torch.zeros(1, 4)})
    torch.testing.assert_close(found.value, torch.tensor([[0.25, -0.5]]))
    assert found.logp is not None
    torch.testing.assert_close(found.logp, torch.full((1,), float(np.log(4.0))))


def test_validator_accepts_every_format_that_tells_its_range(tmp_path: Path) -> None:
    for kind in FORMATS:
        (tmp_path / kind).mkdir()
        path, reader = write(kind, tmp_path / kind, told=True)
        try:
            convert(path, tmp_path / kind / "made.store", **reader)
        except BadData as error:
            pytest.fail(f"{kind}: {error}")
        assert formats.load(tmp_path / kind / "made.store").io.knows_bounds


@pytest.mark.slow
def test_cloned_policy_commands_the_torque_of_its_log(tmp_path: Path) -> None:
    """A log of always `TORQUE`, cloned without an environment: within 1 % of the range of 4 N*m."""
    from robot_rl import build

    same = [
        replace(
            e,
            action=np.tile(np.array(TORQUE, np.float32), (20, 1)),
            proposed=np.tile(np.array(TORQUE, np.float32), (20, 1)),
        )
        for e in physical()
    ]
    d4rl.write(tmp_path / "log.hdf5", same)
    with h5py.File(tmp_path / "log.hdf5", "r+") as file:
        file.attrs.update({"action_low": LOW, "action_high": HIGH})
    settings = LogSettings(data=str(tmp_path / "log.hdf5"))
    store = logs.read_log(settings)
    options = {"name": "offline/bc", "hidden": [32, 32], "batch_size": 64}
    learner = build.make("policy", options, store.io, seed=0, device="cpu", gamma=0.99)
    data, _ = logs.sampler(store, settings, seed=0)
    learner.prepare(logs.facts(data))
    batches = data.batches(64)
    for _ in range(5000):
        learner.update(batches)
    meant = agree(store.io, ENV)
    policy = InUnits(learner.policy, scale_between(meant, ENV), ENV, pytest.fail)
    for row in store.obs()[:20]:
        found = in_units(ENV, policy.act({"state": row[None]}, deterministic=True).value[0])
        np.testing.assert_allclose(found, TORQUE, atol=0.04)
