"""The toy of three ends goes through every format and comes back as the same columns."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))
from broken import robomimic, toy

from robot_rl.data import formats
from robot_rl.data import robomimic as robomimic_reader
from robot_rl.data.bounds import ActionBounds
from robot_rl.data.convert import convert
from robot_rl.data.episode import Logs, success_of, unnamed_io
from robot_rl.data.findings import BadData
from robot_rl.data.read_options import ReadOptions
from robot_rl.data.store import Store, write_store
from robot_rl.types import Episode

COLUMNS = ("obs/state", "action", "reward", "terminal", "truncated", "intervened", "stamp")
PER_EPISODE = ("start_obs", "start_step", "length", "final_obs_valid", "complete")


def rich() -> list[Episode]:
    """The toy with corrections by a human, stamps of its own and a further column."""
    made = []
    for i, e in enumerate(toy()):
        rng = np.random.default_rng(i)
        meta = {**e.meta, "task": "walk", "columns": {"logp": rng.normal(size=len(e))}}
        proposed = rng.uniform(-1, 1, e.action.shape).astype(np.float32)
        stamp = np.arange(len(e) + 1) / 20 + 0.001 * rng.random(len(e) + 1)
        made.append(replace(e, proposed=proposed, intervened=rng.random(len(e)) < 0.5, stamp=stamp, meta=meta))
    return made


def same(a: Store, b: Store, columns: tuple[str, ...] = (*COLUMNS, "proposed")) -> None:
    for name in PER_EPISODE:
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name), err_msg=name)
    for name in columns:
        np.testing.assert_array_equal(a.column(name), b.column(name), err_msg=name)
        assert a.column(name).dtype == b.column(name).dtype


@pytest.mark.parametrize("episodes", [toy, rich], ids=["toy", "rich"])
@pytest.mark.parametrize("to", formats.WRITERS)
def test_toy_comes_back_exactly(tmp_path: Path, to: str, episodes: Any) -> None:
    if to == "lerobot":
        pytest.importorskip("pyarrow", reason="needs pyarrow (extra `logs`)")
    made = episodes()
    want = write_store(tmp_path / "want.store", made)
    name = {"d4rl": "robot.hdf5", "minari": "robot-v0"}.get(to, f"robot.{to}")
    logs = Logs(made, [], unnamed_io(made[0].obs, 2, 50.0))
    formats.write(tmp_path / name, logs, to)
    assert formats.detect(tmp_path / name) == to
    options: dict[str, Any] = {"reward": "column"} if to == "lerobot" else {}
    back = formats.load(tmp_path / name, infos=True, **options)
    assert (back.meta["format"], back.io.control_hz) == (to, 50.0)
    got = write_store(tmp_path / "got.store", back.episodes)
    same(want, got)
    if episodes is rich:
        column = next(n for n in got.names if n.endswith("logp"))
        np.testing.assert_array_equal(got.column(column), want.column("info/logp"))


def test_robomimic_toy_comes_back(tmp_path: Path) -> None:
    """The format marks every demonstration's end alike: success tells the true ones."""
    first, second, third = toy()
    first.reward[-1] = 1.5
    second.reward[-1] = third.reward[-1] = 0.0
    # components in the order of their names: object (2), robot0_eef_pos (1)
    path = robomimic(tmp_path / "demo.hdf5", [first, second])
    assert formats.detect(path) == "robomimic"
    logs = formats.load(path)
    turned = [replace(e, obs={"state": e.obs["state"][:, [1, 2, 0]]}) for e in (first, second)]
    same(write_store(tmp_path / "want", turned), write_store(tmp_path / "got", logs.episodes))
    assert logs.meta["order"] == ["object", "robot0_eef_pos"]
    assert logs.meta["env_args"]["env_name"] == "Lift"
    with h5py.File(path, "a") as file:
        demos: Any = file["data"]
        for demo in demos.values():
            demo["obs/object_pose"] = np.tile(np.eye(4), (len(demo["actions"]), 1, 1))  # no picture of 4 x 4
    poses = formats.load(path, keys=["object_pose"]).episodes
    np.testing.assert_array_equal(poses[0].obs["state"][0], np.eye(4).ravel())
    straight = formats.load(path, keys=["robot0_eef_pos", "object"]).episodes
    np.testing.assert_array_equal(straight[0].obs["state"], first.obs["state"])
    cut = formats.load(robomimic(tmp_path / "cut.hdf5", [third], final=False))
    assert [e.meta.get("final_obs_valid", True) for e in cut.episodes] == [False]


def test_robomimic_filter_order_and_images(tmp_path: Path) -> None:
    many = [replace(e, meta={}) for e in toy()[:2] * 6]
    path = robomimic(tmp_path / "demo.hdf5", many, images=True)
    logs = robomimic_reader.read(path, ReadOptions(keys=("object", "agentview_image")))
    assert [e.meta["name"] for e in logs.episodes] == [f"demo_{i}" for i in range(12)]  # demo_10 is the eleventh
    assert {k: v.shape[1:] for k, v in logs.episodes[0].obs.items()} == {"state": (2,), "image.agentview": (8, 8, 3)}
    train = robomimic_reader.read(path, ReadOptions(filter="train", keys=("object",))).episodes
    assert [e.meta["name"] for e in train] == ["demo_0", "demo_10"]
    with pytest.raises(ValueError, match="no filter 'valid'; it has train"):
        robomimic_reader.read(path, ReadOptions(filter="valid"))


def test_d4rl_file_of_ours_loads_by_the_rules_of_their_reader(tmp_path: Path) -> None:
    """D4RL's get_dataset wants every key to have one row per step, and these keys to exist."""
    import h5py

    formats.write(tmp_path / "x.hdf5", Logs(toy(), [], unnamed_io(toy()[0].obs, 2, 20.0)), "d4rl")
    found: dict[str, Any] = {}
    with h5py.File(tmp_path / "x.hdf5") as file:
        file.visititems(lambda name, item: found.update({name: item[()]}) if isinstance(item, h5py.Dataset) else None)
    assert found.pop("metadata/control_hz") == 20.0  # theirs reads it as it does the metadata of its own files
    assert {"observations", "actions", "rewards", "terminals", "timeouts"} <= found.keys()
    assert {len(value) for value in found.values()} == {16}
    assert found["rewards"].shape == (16,)
    assert found["observations"].dtype == np.float32
    assert found["terminals"].dtype == bool


@pytest.mark.parametrize("to", ["d4rl", "minari", "lerobot", "recording", "store"])
def test_an_episode_without_steps_changes_no_other(tmp_path: Path, to: str) -> None:
    if to == "lerobot":
        pytest.importorskip("pyarrow")
    first, second, _ = toy()
    empty = Episode(
        obs={"state": np.zeros((1, 3), np.float32)}, action=np.zeros((0, 2), np.float32),
        proposed=np.zeros((0, 2), np.float32), reward=np.zeros(0, np.float32), terminated=False, truncated=True,
        intervened=np.zeros(0, bool), stamp=np.zeros(1),
    )  # fmt: skip
    path = tmp_path / ("x.hdf5" if to == "d4rl" else "x-v0")
    formats.write(path, Logs([first, empty, second], [], unnamed_io(first.obs, 2, 20.0)), to)
    back = [e for e in formats.load(path).episodes if len(e)]
    assert [(len(e), e.terminated, e.truncated) for e in back] == [(5, True, False), (7, False, True)]


@pytest.mark.parametrize("to", ["d4rl", "minari", "lerobot", "recording", "store"])
def test_columns_that_a_format_cannot_hold_are_named_and_left_out(tmp_path: Path, to: str) -> None:
    if to == "lerobot":
        pytest.importorskip("pyarrow")
    first, second, _ = toy()
    columns = {"mode": np.array(["walk"] * 5), "width": np.zeros((5, 2)), "force": np.ones(5), "more": np.ones(5)}
    first = replace(first, meta={"columns": columns})
    second = replace(second, meta={"columns": {"width": np.zeros((7, 3)), "force": np.ones(7)}})
    with h5py.File(tmp_path / "log.hdf5", "w") as file:
        file["nothing"] = 0
    log = tmp_path / "log.hdf5"
    logs = Logs([first, second], [], unnamed_io(first.obs, 2, 20.0), {"path": str(log), "format": "d4rl"})
    path = tmp_path / ("x.hdf5" if to == "d4rl" else "x-v0")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(formats, "load", lambda *_, **__: logs)
        findings = convert(log, path, to=to)
    lost = ["mode"] if to in ("minari", "recording") else ["mode", "width", "more"]
    assert f"not in every episode in one form, left out: {', '.join(lost)}" in "\n".join(map(str, findings))
    back = formats.load(path, infos=True).episodes[0].meta["columns"]
    assert {name.removeprefix("infos/") for name in back} >= {"force"}


def test_robomimic_names_the_key_whose_rows_are_missing(tmp_path: Path) -> None:
    path = robomimic(tmp_path / "demo.hdf5", toy()[:1])
    with h5py.File(path, "a") as file:
        rewards = np.array(file["data/demo_0/rewards"])[:-1]
        del file["data/demo_0/rewards"]
        file["data/demo_0/rewards"] = rewards
    with pytest.raises(BadData, match=r"data/demo_0/rewards has \d+ rows, expected \d+ \(actions\)"):
        robomimic_reader.read(path)


def test_robomimic_tells_its_rate(tmp_path: Path) -> None:
    path = robomimic(tmp_path / "demo.hdf5", toy()[:1])
    with h5py.File(path, "r+") as file:
        file["data"].attrs["env_args"] = '{"env_name": "Lift", "env_kwargs": {"control_freq": 10}}'
    assert robomimic_reader.read(path).io.control_hz == 10.0
    assert robomimic_reader.read(path, ReadOptions(control_hz=5.0)).io.control_hz == 5.0


@pytest.mark.parametrize("to", ["d4rl", "minari", "lerobot", "recording", "store"])
def test_success_rate_and_what_actions_mean_come_back(tmp_path: Path, to: str) -> None:
    if to == "lerobot":
        pytest.importorskip("pyarrow")
    episodes = [replace(e, meta={**e.meta, "success": i == 1}) for i, e in enumerate(toy())]
    path = tmp_path / ("x.hdf5" if to == "d4rl" else "x-v0")
    bounds = ActionBounds(None, None, normalised=True)
    formats.write(path, Logs(episodes, [], unnamed_io(episodes[0].obs, 2, 12.5), bounds=bounds), to)
    logs = formats.load(path)
    assert [success_of(e.meta) for e in logs.episodes] == [False, True, False]
    assert logs.io.control_hz == 12.5
    assert logs.bounds == bounds


def test_robomimic_demonstration_without_observations_is_named(tmp_path: Path) -> None:
    path = robomimic(tmp_path / "demo.hdf5", toy()[:2])
    with h5py.File(path, "r+") as file:
        del file["data/demo_1/obs"]
    with pytest.raises(BadData, match="key 'data/demo_1/obs/object' is missing; the file has: nothing"):
        robomimic_reader.read(path)
