"""What a policy commands is what its log's numbers say, in physical units, whatever format, repair and verb.

Every case is made by hand: a log of an actuator of +-2 N*m, a policy that always answers one number in the log's units,
and an environment of +-4 N*m that writes down what it was commanded.
"""

from __future__ import annotations

import itertools
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "data"))
from broken import episode, robomimic  # pyright: ignore[reportMissingImports]

from robot_rl.data import d4rl, formats, lerobot_write, minari
from robot_rl.data.bounds import Scale, between
from robot_rl.data.convert import convert
from robot_rl.data.findings import BadData
from robot_rl.data.recorder import Recorder
from robot_rl.data.repairs import Repairs
from robot_rl.jobs import logs
from robot_rl.jobs.logs import LogSettings
from robot_rl.jobs.units import InUnits, meaning_of
from robot_rl.types import Action, Episode, IOSpec

ENV = IOSpec({"state": ((3,), "float32")}, ("a", "b"), (-4.0, -4.0), (4.0, 4.0), ("N*m", "N*m"), 20.0)
TORQUE = (0.5, -1.5)  # what the robot is to be commanded, N*m
LOW, HIGH = -2.0, 2.0


def physical() -> list[Episode]:
    """Episodes whose actions are torques within +-2 N*m; the first of all is `TORQUE`."""
    made = []
    for i in range(3):
        one = episode(i, 20)
        action = (one.action * 2.0).astype(np.float32)
        action[0], action[1], action[2] = TORQUE, (LOW, LOW), (HIGH, HIGH)
        made.append(replace(one, action=action, proposed=action))
    return made


def _csv(path: Path, scale: float | None) -> tuple[Path, dict[str, Any]]:
    rows = ["t,x,y,z,u,v"]
    for number, one in enumerate(physical()[:1]):
        for t, (s, a) in enumerate(zip(one.obs["state"], one.action)):
            rows.append(",".join(f"{v:.9g}" for v in (number + t / 20, *s, *a)))
        rows.append(",".join(f"{v:.9g}" for v in (number + 1.0, *one.obs["state"][-1], 0.0, 0.0)))
    path.write_text("\n".join(rows) + "\n")
    action: list[dict[str, Any]] = [{"column": c, "name": n, "unit": "N*m"} for c, n in ("ua", "vb")]
    if scale is not None:
        action = [{**item, "scale": scale} for item in action]
    state = [{"column": c} for c in "xyz"]
    return path, {"map": {"time": "t", "state": state, "action": action}}


def write(kind: str, folder: Path, *, told: bool) -> tuple[Path, dict[str, Any]]:
    """A log of torques in a format, with its range or without; and what its reader is told."""
    episodes, io = physical(), replace(ENV, action_low=(LOW,) * 2, action_high=(HIGH,) * 2)
    if kind == "csv":
        return _csv(folder / "log.csv", 0.5 if told else None)
    if kind == "minari":
        minari.write(folder / "log-v0", episodes, dataset_id="log-v0")
        if told:
            file = folder / "log-v0/data/metadata.json"
            facts = json.loads(file.read_text())
            space = {**json.loads(facts["action_space"]), "low": [LOW] * 2, "high": [HIGH] * 2}
            file.write_text(json.dumps({**facts, "action_space": json.dumps(space)}))
        return folder / "log-v0", {}
    if kind == "lerobot":
        lerobot_write.write(folder / "log", episodes, fps=20)
        file = folder / "log/meta/info.json"
        facts = json.loads(file.read_text())
        if told:  # as LeRobot's own writer: statistics alone
            del facts["action_bounds"]
        file.write_text(json.dumps(facts))
        return folder / "log", {}
    if kind == "npz":
        one = episodes[0]
        arrays: dict[str, Any] = {"obs": one.obs["state"][:-1], "next_obs": one.obs["state"][1:]}
        arrays |= {"action": one.action, "reward": one.reward, "done": np.arange(20) == 19}
        arrays |= {"action_low": LOW, "action_high": HIGH} if told else {}
        np.savez(folder / "log.npz", **arrays)
        return folder / "log.npz", {}
    if kind == "recording":
        scaled = [replace(e, action=e.action / 2, proposed=e.action / 2) if told else e for e in episodes]
        with Recorder(folder / "log") as recorder:
            for one in scaled:
                recorder.append(replace(one, meta={**one.meta, "io": io}) if told else one)
        return folder / "log", {}
    path = folder / "log.hdf5"
    if kind == "robomimic":
        robomimic(path, episodes)
    else:
        d4rl.write(path, episodes)
    if told:
        with h5py.File(path, "r+") as file:
            file.attrs.update({"action_low": LOW, "action_high": HIGH, "action_units": "N*m"})
    return path, {}


class Constant:
    """Answers one action, for ever."""

    def __init__(self, io: IOSpec, value: np.ndarray) -> None:
        self.io, self.value = io, np.asarray(value, np.float32)

    def reset(self, rows: Any = None) -> None: ...

    def act(self, obs: Any, *, deterministic: bool = False) -> Action:
        return Action(np.repeat(self.value[None], len(obs["state"]), 0))


def in_units(io: IOSpec, action: Any) -> np.ndarray:
    """[-1, 1] to physical, by the interface's own definition."""
    low, high = np.array(io.action_low, float), np.array(io.action_high, float)
    return low + (np.asarray(action, float) + 1.0) / 2.0 * (high - low)


def commanded(verb: str, path: Path, given: dict[str, Any]) -> np.ndarray:
    """(2,) N*m that the environment is commanded by the log's first action, or by a policy that always answers it."""
    settings = LogSettings(data=str(path), action_clip=True, **given)
    if verb in ("offline", "train log="):  # the policy learns in the environment's units
        store, _ = logs.fit(logs.read_log(settings), ENV)
        data, _ = logs.sampler(store, settings, seed=0)
        return in_units(ENV, next(iter(data.ordered(1))).action[0].numpy())
    # eval, collect, deploy: the policy was cloned without an environment, on the log's own scale
    own, later = logs.open_log(path), given
    if verb == "given to offline":
        own, later = logs.said(own, **{name.removeprefix("action_"): value for name, value in given.items()}), {}
    io, known = meaning_of(own.io, own.meta.get("action"), later)
    meant = logs.agree(io, ENV, known)
    policy = InUnits(Constant(meant, own.column("action")[0]), between(meant, ENV), ENV, pytest.fail)
    obs = {"state": np.zeros((1, 3), np.float32)}
    return in_units(ENV, policy.act(obs).value[0])


FORMATS = ("d4rl", "minari", "robomimic", "lerobot", "csv", "npz", "recording")
REPAIRS = (None, "clip", "rescale", "keep", "no conversion")
VERBS = ("offline", "train log=", "eval", "given to offline")
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
    np.testing.assert_allclose(commanded(verb, path, given), TORQUE, atol=1e-3)


@pytest.mark.parametrize("kind", FORMATS)
def test_unknown_range_is_asked_for_and_nothing_is_guessed(tmp_path: Path, kind: str) -> None:
    path, reader = write(kind, tmp_path, told=False)
    convert(path, tmp_path / "made.store", mend=Repairs(action="keep"), **reader)
    store = logs.open_log(tmp_path / "made.store")
    with pytest.raises(ValueError, match=r"nothing says what .* mean.*action_low=… action_high=….*action=normalised"):
        logs.fit(store, ENV)
    # both answers: torques, and parts of the environment's own range
    torque, _ = logs.fit(logs.said(store, low=LOW, high=HIGH), ENV)
    np.testing.assert_allclose(in_units(ENV, torque.column("action")[0]), TORQUE, atol=1e-3)
    parts, _ = logs.fit(logs.said(store, action="normalised"), ENV)
    np.testing.assert_allclose(parts.column("action")[0], TORQUE, atol=1e-6)
    # where the environment's range is [-1, 1] both are the same number
    plain = replace(ENV, action_low=(-1.0,) * 2, action_high=(1.0,) * 2)
    assert logs.agree(store.io, plain) is plain


def test_log_rescaled_by_its_own_range_commands_the_same_torque(tmp_path: Path) -> None:
    """Data in [-2, 2] became [-1, 1]: .25 there is half a newton metre, an eighth of the environment's range."""
    path, _ = write("d4rl", tmp_path, told=False)
    convert(path, tmp_path / "made.store", mend=Repairs(action="rescale"))
    store = logs.open_log(tmp_path / "made.store")
    assert store.io.bounds == ((LOW, LOW), (HIGH, HIGH))
    meant = logs.agree(store.io, ENV)
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
    policy = InUnits(Constant(wide, np.array([0.25, 0.75])), between(wide, small), small, heard.append)
    obs = {"state": np.zeros((1, 3), np.float32)}
    for _ in range(3):
        np.testing.assert_allclose(policy.act(obs).value, [[0.5, 1.0]])
    assert len(heard) == 1
    assert "(b): clipped to its bounds" in heard[0]


def test_units_that_differ_and_bare_ones_are_refused() -> None:
    other = replace(ENV, action_units=("rad", "N*m"), action_low=(-2.0,) * 2, action_high=(2.0,) * 2)
    unnamed = replace(other, action_names=("a0", "a1"))
    with pytest.raises(ValueError, match=r"other units .*a \(rad, N\*m\)"):
        logs.agree(unnamed, ENV)
    bare = replace(unnamed, action_units=("1", "1"), action_low=(-1.0,) * 2, action_high=(1.0,) * 2)
    with pytest.raises(ValueError, match="whether 1 is one unit or the whole range cannot be told"):
        logs.agree(bare, ENV)
    assert logs.agree(bare, ENV, "stated").bounds == ((-1.0, -1.0), (1.0, 1.0))


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
    again = store.scaled(Scale(np.full(2, 2.0), np.zeros(2)), store.io)
    np.testing.assert_allclose(again.column(name), 0.0, atol=1e-6)


def test_tensors_are_mapped_as_arrays_are() -> None:
    wide = replace(ENV, action_low=(LOW,) * 2, action_high=(HIGH,) * 2)

    class Torch(Constant):
        def act(self, obs: Any, *, deterministic: bool = False) -> Action:
            return Action(torch.tensor(self.value)[None], torch.zeros(1))

    policy = InUnits(Torch(wide, np.array([0.5, -1.0])), between(wide, ENV), ENV, pytest.fail)
    found = policy.act({"state": torch.zeros(1, 3)})
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
    meant = logs.agree(store.io, ENV)
    policy = InUnits(learner.policy, between(meant, ENV), ENV, pytest.fail)
    for row in store.obs()[:20]:
        found = in_units(ENV, policy.act({"state": row[None]}, deterministic=True).value[0])
        np.testing.assert_allclose(found, TORQUE, atol=0.04)
