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
from robot_rl.data.bounds import declared
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
    assert (store.meta["action_low"], store.meta["action_high"]) == ([-2.0, -2.0], [2.0, 2.0])
    assert store.meta["action_units"] == units
    assert store.io.action_high == (2.0, 2.0)
    again = formats.load(tmp_path / "x.store")
    assert again.bounds is not None
    assert again.bounds.normalised
    convert(tmp_path / "x.store", tmp_path / "y.store", mend=Repairs(action="rescale"))  # once is enough
    np.testing.assert_array_equal(open_store(tmp_path / "y.store").column("action"), store.column("action"))
    assert open_store(tmp_path / "y.store").meta["action_high"] == [2.0, 2.0]


def test_narrow_log_in_physical_units_does_not_pass_for_normalised(tmp_path: Path) -> None:
    """All of it lies within [-1, 1], so that nothing but the declared range can tell."""
    path = torques(tmp_path / "t-v0")
    findings = validate(path)
    assert exit_code(findings) == 2
    assert any("declares actions from -2 to 2" in str(f) and "action=rescale" in str(f) for f in findings)
    with pytest.raises(BadData, match="declares actions from -2 to 2"):
        convert(path, tmp_path / "x.store")
    convert(path, tmp_path / "x.store", mend=Repairs(action="keep"))
    assert open_store(tmp_path / "x.store").meta["action_low"] is None


def test_unknown_range_stays_unknown(tmp_path: Path) -> None:
    convert(hdf5(tmp_path / "log.hdf5", d4rl_columns()), tmp_path / "x.store")
    meta = open_store(tmp_path / "x.store").meta
    assert [meta[key] for key in ("action_low", "action_high", "action_units")] == [None, None, None]


def test_scale_of_a_map_is_the_range(tmp_path: Path) -> None:
    """A scale of 0.2 takes 5 N*m for 1."""
    (tmp_path / "log.csv").write_text("x,u\n" + "".join(f"{i},{i % 4}\n" for i in range(300)))
    plan = {"state": [{"column": "x"}], "action": [{"column": "u", "scale": 0.2, "unit": "N*m"}]}
    convert(tmp_path / "log.csv", tmp_path / "x.store", map=plan)
    meta = open_store(tmp_path / "x.store").meta
    assert (meta["action_low"], meta["action_high"], meta["action_units"]) == ([-5.0], [5.0], ["N*m"])


@pytest.mark.parametrize(
    ("low", "high"), [(None, 1), (-np.inf, np.inf), ([0, 0], [1, 0]), ("a", "b"), ([0] * 3, 1), ({}, 1)]
)
def test_what_is_no_range_is_unknown(low: Any, high: Any) -> None:
    assert declared(low, high, 2) is None
