"""Corrupted checkpoints are refused for the reason they have, clean ones are not."""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from robot_rl.policies.vla import guard
from robot_rl.policies.vla.guard import WeightsError

_spec = importlib.util.spec_from_file_location("vla_cases", Path(__file__).parent / "cases.py")
assert _spec is not None
assert _spec.loader is not None
cases: Any = importlib.util.module_from_spec(_spec)
sys.modules["vla_cases"] = cases
_spec.loader.exec_module(cases)

TINY = {"backbone": "tiny", "size": [48, 48]}


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return cases.checkpoint(tmp_path_factory.mktemp("guard") / "clean", TINY)


def card(change: Callable[[dict[str, Any]], None]) -> Callable[[Path], None]:
    def corrupt(folder: Path) -> None:
        path = folder / "card.json"
        plain = json.loads(path.read_text())
        change(plain)
        path.write_text(json.dumps(plain))

    return corrupt


def policy(**values: Any) -> Callable[[Path], None]:
    return card(lambda plain: plain["policy"].update(values))


def stats(change: Callable[[dict[str, np.ndarray]], None]) -> Callable[[Path], None]:
    def corrupt(folder: Path) -> None:
        with np.load(folder / "stats.npz") as found:
            arrays = {name: found[name].copy() for name in found.files}
        change(arrays)
        np.savez(folder / "stats.npz", **arrays)

    return corrupt


def weights(change: Callable[[dict[str, torch.Tensor]], object]) -> Callable[[Path], None]:
    def corrupt(folder: Path) -> None:
        state = load_file(folder / "model.safetensors")
        change(state)
        save_file(state, folder / "model.safetensors")

    return corrupt


def scaled(names: str, factor: float, dims: slice = slice(None)) -> Callable[[dict[str, np.ndarray]], None]:
    def change(arrays: dict[str, np.ndarray]) -> None:
        for name in names.split():
            arrays[name][dims] *= factor

    return change


def setter(name: str, index: Any, value: float) -> Callable[[dict[str, Any]], None]:
    def change(arrays: dict[str, Any]) -> None:
        arrays[name][index] = value

    return change


def unit(arrays: dict[str, np.ndarray]) -> None:
    arrays["q01"][:], arrays["q99"][:], arrays["mean"][:], arrays["std"][:] = -1.0, 1.0, 0.0, 0.5
    arrays["low"][:], arrays["high"][:] = -1.0, 1.0


def flip_gripper(arrays: dict[str, np.ndarray]) -> None:
    for low, high in (("q01", "q99"), ("low", "high")):
        arrays[low][3], arrays[high][3] = -arrays[high][3], -arrays[low][3]
    arrays["mean"][3] *= -1


def permute(arrays: dict[str, np.ndarray]) -> None:
    for name in arrays:
        arrays[name] = arrays[name][[3, 0, 1, 2]]


def wider(arrays: dict[str, np.ndarray]) -> None:
    for name in arrays:
        arrays[name] = np.concatenate([arrays[name], arrays[name][:1]])


def cut(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:99])


def cut_stats(folder: Path) -> None:
    path = folder / "stats.npz"
    path.write_bytes(path.read_bytes()[:300])


ALL = "mean std q01 q99 low high"
MOVES = slice(0, 3)
SWAPPED = ["tip_dy", "tip_dx", "tip_dz", "gripper"]
WEIGHT, BIAS = "head.mean.weight", "head.mean.bias"
OTHER_TOKENS = {"name": "bytes", "size": 260, "digest": "0"}
CORRUPTIONS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "file missing": ("files", lambda folder: (folder / "stats.npz").unlink()),
    "file cut off": ("files", cut),
    "statistics cut off": ("files", cut_stats),
    "statistics empty": ("files", lambda folder: (folder / "stats.npz").write_bytes(b"")),
    "configuration without entries": ("files", lambda folder: (folder / "config.json").write_text("{}")),
    "a word for a number": ("files", policy(horizon="four")),
    "answers that are no numbers": ("files", card(lambda plain: plain.update(probe="x"))),
    "answers not finite": ("probe", card(lambda plain: plain.update(probe=[float("nan")] * len(plain["probe"])))),
    "weight missing": ("keys", weights(lambda s: s.pop("head.mean.weight"))),
    "weight of another name": ("keys", weights(lambda s: s.update({"module.mean.weight": s.pop("head.mean.weight")}))),
    "weight of another shape": ("keys", weights(lambda s: s.update({BIAS: s[BIAS][:-1].clone()}))),
    "weight not finite": ("finite", weights(setter("head.mean.weight", (0, 0), float("nan")))),
    "weights of another run": ("digest", weights(lambda s: s.update({WEIGHT: s[WEIGHT] + 0.01}))),
    "another tokenizer": ("tokenizer", policy(tokenizer=OTHER_TOKENS)),
    "padded vocabulary": ("vocabulary", policy(tokenizer={"name": "hashed_words", "size": 573, "digest": "0"})),
    "other picture size": ("image_size", policy(image_size=[64, 64])),
    "blue first": ("channels", policy(channels="bgr")),
    "upside down": ("rotation", policy(rotated=True)),
    "cameras exchanged": ("cameras", policy(cameras=["top", "front"])),
    "another state": ("state", policy(state_dim=7)),
    "more executed than predicted": ("horizon", policy(exec_len=9)),
    "another rate": ("control_hz", policy(control_hz=5.0)),
    "actions exchanged": ("actions", policy(action_names=SWAPPED)),
    "delta taken for absolute": ("semantics", policy(semantics=["absolute"] * 4)),
    "tool frame": ("frame", policy(frame="tool")),
    "gripper inverted on the card": ("gripper", policy(gripper=[0, 0, 0, -1])),
    "statistics of another robot's width": ("stats_shape", stats(wider)),
    "statistics not finite": ("stats_finite", stats(setter("q99", 1, float("inf")))),
    "zero spread": ("stats_spread", stats(setter("std", 2, 0.0))),
    "quantiles reversed": ("stats_spread", stats(lambda a: a.update(q01=a["q99"], q99=a["q01"]))),
    "another norm": ("stats_norm", card(lambda plain: plain["stats"].update(norm="mean_std"))),
    "statistics of another data set": ("stats_key", card(lambda plain: plain["stats"].update(key="kitchen"))),
    "statistics of normalised actions": ("stats_identity", stats(unit)),
    "statistics in millimetres": ("stats_data", stats(scaled(ALL, 1000.0, MOVES))),
    "statistics ten times too small": ("stats_data", stats(scaled(ALL, 0.1, MOVES))),
    "gripper inverted in the statistics": ("limits", stats(flip_gripper)),
    "statistics in another order": ("limits", stats(permute)),
    "statistics a little off": ("probe", stats(scaled("q01 q99", 1.05, MOVES))),
}  # fmt: skip


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_corrupted_checkpoint_is_refused_for_its_reason(name: str, clean: Path, tmp_path: Path) -> None:
    check, corrupt = CORRUPTIONS[name]
    folder = Path(shutil.copytree(clean, tmp_path / "bad"))
    corrupt(folder)
    with pytest.raises(WeightsError) as caught:
        guard.load(folder, cases.build, cases.robot(), probe=cases.probe)
    found = {item.check for item in caught.value.findings}
    assert check in found, str(caught.value)
    assert len(str(caught.value.findings[0])) > 30  # names what was found and expected, in words


def test_clean_checkpoint_passes_and_answers_as_before(clean: Path) -> None:
    policy, report = guard.load(clean, cases.build, cases.robot(), probe=cases.probe)
    assert report.accepted == ()
    assert report.skipped == ()
    kept = json.loads((clean / "card.json").read_text())["probe"]
    np.testing.assert_allclose(cases.probe(policy), kept, atol=1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_other_demonstrations_of_the_same_robot_raise_no_alarm(seed: int, clean: Path) -> None:
    random = np.random.default_rng(seed)
    some = cases.demonstrations()[random.permutation(400)[:40]] * random.uniform(0.7, 1.4)
    guard.load(clean, cases.build, cases.robot(demonstrations=some), probe=cases.probe)


@pytest.mark.parametrize("changes", [{"horizon": 8}, {"control_hz": 20.0}, {"rotated": True}, {"channels": "bgr"}])
def test_checkpoint_for_another_robot_passes_there(changes: dict[str, Any], tmp_path: Path) -> None:
    # the demonstrations of `trained` fill chunks of 4: other horizons only need the card and the robot to agree
    if "horizon" in changes:
        stats_of = cases.ActionStats.of(cases.demonstrations(), key="desk")
        made = cases.build(TINY, cases.meta(**changes), stats_of)
        with torch.no_grad():
            for weight in made.parameters():
                weight.add_(0.01)
        guard.save(tmp_path / "x", made, TINY, probe=cases.probe)
    else:
        cases.checkpoint(tmp_path / "x", TINY, **changes)
    there = {key: value for key, value in changes.items() if key != "horizon"}
    guard.load(tmp_path / "x", cases.build, cases.robot(**there), probe=cases.probe)


def test_fresh_weights_are_refused_unless_frozen(tmp_path: Path) -> None:
    fresh = cases.build(TINY, cases.meta(), cases.ActionStats.of(cases.demonstrations(), key="desk"))
    guard.save(tmp_path / "fresh", fresh, TINY, probe=cases.probe)
    with pytest.raises(WeightsError, match=r"untouched: .* never trained"):
        guard.load(tmp_path / "fresh", cases.build, cases.robot(), probe=cases.probe)
    policy, report = guard.load(tmp_path / "fresh", cases.build, cases.robot(), probe=cases.probe, accept=["untouched"])
    assert [item.check for item in report.accepted] == ["untouched"]
    heads = ("backbone", "trunk", "head", "critic")
    guard.save(tmp_path / "frozen", policy, TINY, probe=cases.probe, frozen=heads)
    guard.load(tmp_path / "frozen", cases.build, cases.robot(), probe=cases.probe)


def test_accepted_keys_load_what_fits_and_leave_the_rest_fresh(clean: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(clean, tmp_path / "half"))
    weights(lambda s: s.pop(WEIGHT))(folder)
    policy, report = guard.load(folder, cases.build, cases.robot(), probe=cases.probe, accept=["keys", "probe"])
    assert [item.check for item in report.accepted] == ["keys", "probe"]
    torch.testing.assert_close(policy.state_dict()[BIAS], load_file(folder / "model.safetensors")[BIAS])


def test_unknown_facts_of_the_robot_are_skipped_and_said(clean: Path) -> None:
    _, report = guard.load(clean, cases.build, guard.RobotFacts(), probe=cases.probe)
    assert {"stats_data", "stats_key", "limits", "gripper", "cameras", "control_hz"} <= set(report.skipped)


def test_guard_refuses_bad_calls(clean: Path) -> None:
    with pytest.raises(ValueError, match="accept holds"):
        guard.load(clean, cases.build, cases.robot(), probe=cases.probe, accept=["everything"])
    with pytest.raises(FileExistsError):
        guard.save(clean, cases.trained(TINY), TINY, probe=cases.probe)
    broken = cases.trained(TINY)
    with torch.no_grad():
        broken.head.mean.weight[0, 0] = float("inf")
    with pytest.raises(ValueError, match="NaN or infinity"):
        guard.save(clean.parent / "broken", broken, TINY, probe=cases.probe)
    assert not (clean.parent / "broken").exists()
