"""What a log declares of its actions' range travels into the store; it is never guessed where it is known."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))
from broken import d4rl_columns, episode, hdf5

from robot_rl.data import formats, minari
from robot_rl.data.bounds import read_declared
from robot_rl.data.convert import convert, validate
from robot_rl.data.findings import BadData, exit_code
from robot_rl.data.repairs import Repairs
from robot_rl.data.store import open_store


def torques(path: Path) -> Path:
    """A Minari set of torques in [-2, 2] N*m of which only [-0.9, 0.9] was used."""
    minari.write(path, [episode(i, 300) for i in range(2)], dataset_id="t-v0")
    file = path / "data/metadata.json"
    facts = json.loads(file.read_text())
    space = {**json.loads(facts["action_space"]), "low": [-2.0, -2.0], "high": [2.0, 2.0]}
    file.write_text(json.dumps({**facts, "action_space": json.dumps(space)}))
    return path


def attributes(path: Path) -> Path:
    hdf5(path, d4rl_columns())
    with h5py.File(path, "r+") as file:
        file["actions"].attrs.update({"low": [-2.0, -2.0], "high": [2.0, 2.0]})
        file.attrs["action_units"] = ["N*m", "N*m"]
    return path


@pytest.mark.parametrize(("make", "name", "units"), [(torques, "t-v0", None), (attributes, "t.hdf5", ["N*m", "N*m"])])
def test_declared_range_is_what_rescale_uses_and_what_the_store_says(
    tmp_path: Path, make: Any, name: str, units: list[str] | None
) -> None:
    """0.5 N*m of 2 is a quarter, wherever the data's own range ends."""
    path = make(tmp_path / name)
    before = np.concatenate([e.action for e in formats.load(path).episodes])
    convert(path, tmp_path / "x.store", mend=Repairs(action="rescale"))
    store = open_store(tmp_path / "x.store")
    np.testing.assert_allclose(store.column("action"), before / 2.0, atol=1e-6)
    assert store.io.bounds == ((-2.0, -2.0), (2.0, 2.0))
    assert list(store.io.action_units) == (units or ["1", "1"])
    again = formats.load(tmp_path / "x.store")
    assert again.bounds is not None
    assert again.bounds.normalised
    convert(tmp_path / "x.store", tmp_path / "y.store", mend=Repairs(action="rescale"))  # once is enough
    np.testing.assert_array_equal(open_store(tmp_path / "y.store").column("action"), store.column("action"))
    assert open_store(tmp_path / "y.store").io.action_high == (2.0, 2.0)


def test_narrow_log_in_physical_units_is_read_by_its_declared_range(tmp_path: Path) -> None:
    """All of it lies within [-1, 1], so that nothing but the declared range can tell that 0.5 is a quarter."""
    path = torques(tmp_path / "t-v0")
    findings = validate(path)
    assert exit_code(findings) == 0
    assert any("scaled from their declared range, -2 to 2" in str(f) for f in findings)
    assert not any("action=rescale" in str(f) for f in findings)
    before = np.concatenate([e.action for e in formats.load(path).episodes])
    convert(path, tmp_path / "x.store")
    np.testing.assert_allclose(open_store(tmp_path / "x.store").column("action"), before / 2.0, atol=1e-6)
    convert(path, tmp_path / "kept.store", mend=Repairs(action="keep"))  # 1 is one unit
    kept = open_store(tmp_path / "kept.store")
    np.testing.assert_array_equal(kept.column("action"), before)
    assert kept.io.bounds == ((-1.0, -1.0), (1.0, 1.0))
    convert(path, tmp_path / "parts.store", mend=Repairs(action="normalised"))  # parts of the declared range
    parts = open_store(tmp_path / "parts.store")
    np.testing.assert_array_equal(parts.column("action"), before)
    assert parts.io.bounds == ((-2.0, -2.0), (2.0, 2.0))


def test_actions_beyond_the_declared_range_are_never_rescaled_by_their_own(tmp_path: Path) -> None:
    path = hdf5(tmp_path / "t.hdf5", {**d4rl_columns(), "actions": np.linspace(-3, 3, 1200).reshape(600, 2)})
    with h5py.File(path, "r+") as file:
        file["actions"].attrs.update({"low": -2.0, "high": 2.0})
    with pytest.raises(BadData, match=r"outside the declared range.*action=clip") as error:
        convert(path, tmp_path / "x.store")
    assert "action=rescale" not in str(error.value)
    convert(path, tmp_path / "x.store", mend=Repairs(action="clip"))
    assert open_store(tmp_path / "x.store").io.action_high == (2.0, 2.0)
    assert open_store(tmp_path / "x.store").column("action").max() == 1.0


def test_unknown_range_stays_unknown_and_is_asked_for(tmp_path: Path) -> None:
    found = convert(hdf5(tmp_path / "log.hdf5", d4rl_columns()), tmp_path / "x.store")
    assert any("action_low=… action_high=…" in str(f) and "action=normalised" in str(f) for f in found)
    assert not open_store(tmp_path / "x.store").io.knows_bounds
    convert(tmp_path / "log.hdf5", tmp_path / "y.store", mend=Repairs(action_low=-2, action_high=(2, 4)))
    told = open_store(tmp_path / "y.store")
    assert told.io.bounds == ((-2.0, -2.0), (2.0, 4.0))
    raw = d4rl_columns()["actions"]
    np.testing.assert_allclose(told.column("action"), raw / [2, 3] - [0, 1 / 3], atol=1e-6)
    with pytest.raises(ValueError, match=r"action_low is -2\.0 and action_high None, expected for both"):
        convert(tmp_path / "log.hdf5", tmp_path / "z.store", mend=Repairs(action_low=-2))


def test_scale_of_a_map_is_the_range(tmp_path: Path) -> None:
    """u / 5 + 1/10 is in [-1, 1] for u from -5.5 to 4.5 N*m."""
    (tmp_path / "log.csv").write_text("x,u\n" + "".join(f"{i},{i % 4}\n" for i in range(300)))
    action = {"column": "u", "scale": 0.2, "offset": 0.1, "unit": "N*m"}
    convert(tmp_path / "log.csv", tmp_path / "x.store", map={"state": [{"column": "x"}], "action": [action]})
    io = open_store(tmp_path / "x.store").io
    np.testing.assert_allclose(io.bounds, [[-5.5], [4.5]])
    assert io.action_units == ("N*m",)


@pytest.mark.parametrize("to", ["d4rl", "minari", "lerobot", "recording", "store"])
def test_range_survives_every_format_that_is_written(tmp_path: Path, to: str) -> None:
    source = attributes(tmp_path / "t.hdf5")
    for name, given in (("told", {}), ("normalised", {"action": "normalised", "action_low": -3, "action_high": 3})):
        out = tmp_path / f"{name}-{to}{'.hdf5' if to == 'd4rl' else '-v0'}"
        convert(source, out, to=to, mend=Repairs(**given))
        convert(out, tmp_path / f"{name}.store")
        again, first = open_store(tmp_path / f"{name}.store"), tmp_path / f"{name}-first.store"
        convert(source, first, mend=Repairs(**given))
        np.testing.assert_allclose(again.column("action"), open_store(first).column("action"), atol=1e-6)
        assert again.io.bounds == open_store(first).io.bounds
        assert again.io.action_units == ("N*m", "N*m")


@pytest.mark.parametrize("to", ["d4rl", "minari", "lerobot", "recording", "store"])
def test_what_is_unknown_is_unknown_in_every_format_that_is_written(tmp_path: Path, to: str) -> None:
    source = hdf5(tmp_path / "log.hdf5", d4rl_columns())
    out = tmp_path / f"a-{to}{'.hdf5' if to == 'd4rl' else '-v0'}"
    convert(source, out, to=to)
    convert(out, tmp_path / "a.store")
    assert not open_store(tmp_path / "a.store").io.knows_bounds
    assert open_store(tmp_path / "a.store").meta["action"] is None


@pytest.mark.parametrize(
    ("low", "high"), [(None, 1), (-np.inf, np.inf), ([0, 0], [1, 0]), ("a", "b"), ([0] * 3, 1), ({}, 1)]
)
def test_what_is_no_range_is_unknown(low: Any, high: Any) -> None:
    assert read_declared(low, high, 2) is None
