from __future__ import annotations

import io
import json
from pathlib import Path

import h5py
import numpy as np
import pytest

from robot_rl.data import formats, minari
from robot_rl.data.read_options import ReadOptions
from robot_rl.types import Episode


def episode(number: int, steps: int, end: str, keys: tuple[str, ...] = ("state",)) -> Episode:
    rng = np.random.default_rng(number)
    obs: dict[str, np.ndarray] = {}
    for key in keys:
        if key.startswith("image"):
            obs[key] = rng.integers(0, 255, (steps + 1, 6, 5, 3), dtype=np.uint8)
        else:
            obs[key] = rng.normal(size=(steps + 1, 3)).astype(np.float32)
    return Episode(
        obs=obs,
        action=rng.uniform(-1, 1, (steps, 2)).astype(np.float32),
        proposed=rng.uniform(-1, 1, (steps, 2)).astype(np.float32),
        reward=rng.normal(size=steps).astype(np.float32),
        terminated=end == "terminated",
        truncated=end == "truncated",
        intervened=rng.random(steps) < 0.5,
        stamp=np.arange(steps + 1) * 0.05,
        meta={"seed": number, "columns": {"success": rng.random(steps) < 0.5}},
    )


@pytest.mark.parametrize("keys", [("state",), ("state", "image.wrist", "goal")])
def test_write_then_read_is_the_same(tmp_path: Path, keys: tuple[str, ...]) -> None:
    ends = ["terminated", "truncated", "cut"] * 4
    written = [episode(i, 2 + i, end, keys) for i, end in enumerate(ends)]
    minari.write(tmp_path / "test-v0", written, dataset_id="robot/test-v0", author=["me"])
    logs = minari.read(tmp_path / "test-v0", ReadOptions(infos=True))
    assert logs.findings == []
    assert len(logs.episodes) == 12  # episode_10 is the eleventh, not the third
    for a, b in zip(written, logs.episodes):
        assert a.obs.keys() == b.obs.keys()
        for key in keys:
            assert a.obs[key].dtype == b.obs[key].dtype
            np.testing.assert_array_equal(a.obs[key], b.obs[key])
        for name in ("action", "proposed", "reward", "intervened", "stamp", "terminated"):
            np.testing.assert_array_equal(getattr(a, name), getattr(b, name))
        assert b.truncated == a.truncated  # a column of ours tells of cut recordings
        np.testing.assert_array_equal(a.meta["columns"]["success"], b.meta["columns"]["success"])
        assert b.meta["seed"] == a.meta["seed"]


def test_written_dataset_loads_in_minari(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = pytest.importorskip("minari", reason="the minari package is not installed")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    (tmp_path / "robot").mkdir()
    (tmp_path / "robot" / "namespace_metadata.json").write_text("{}")
    written = [episode(i, 3 + i, "terminated", ("state", "image.wrist")) for i in range(3)]
    minari.write(tmp_path / "robot" / "test-v0", written, dataset_id="robot/test-v0")
    dataset = package.load_dataset("robot/test-v0")
    assert dataset.total_episodes == 3
    for a, b in zip(written, dataset.iterate_episodes()):
        np.testing.assert_array_equal(a.obs["image.wrist"], b.observations["image.wrist"])
        np.testing.assert_array_equal(a.action, b.actions)
        assert b.terminations[-1]


def raw(path: Path, **metadata: object) -> Path:
    folder = path / "d-v0" / "data"
    folder.mkdir(parents=True)
    with h5py.File(folder / "main_data.hdf5", "w") as file:
        group = file.create_group("episode_0")
        group["observations/observation"] = np.zeros((4, 2))
        group["observations/nested/_index_0"] = np.ones((4, 1))
        group["actions"] = np.zeros((3, 1))
        group["rewards"] = np.arange(3.0)
        group["terminations"] = [False, False, True]
        group["truncations"] = [False, False, True]
        group.attrs["rewards_sum"] = 7.0
    (folder / "metadata.json").write_text(json.dumps({"data_format": "hdf5", "total_steps": 4, **metadata}))
    return path / "d-v0"


def edit(path: Path, key: str, value: object) -> None:
    with h5py.File(path / "data" / "main_data.hdf5", "a") as file:
        del file[f"episode_0/{key}"]
        if value is not None:
            file[f"episode_0/{key}"] = value


def test_read_nested_spaces_and_findings(tmp_path: Path) -> None:
    logs = minari.read(raw(tmp_path))
    episode = logs.episodes[0]
    assert {key: value.shape for key, value in episode.obs.items()} == {
        "observation": (4, 2),
        "nested/_index_0": (4, 1),
    }
    assert (episode.terminated, episode.truncated) == (True, False)
    text = "\n".join(map(str, logs.findings))
    for line in (
        "total_steps 4, the data has 3",
        "terminated and truncated at once",
        "rewards_sum 7, its rewards sum to 3",
    ):
        assert line in text


def test_read_missing_dataset_is_named(tmp_path: Path) -> None:
    path = raw(tmp_path)
    edit(path, "rewards", None)
    with pytest.raises(ValueError, match="'episode_0/rewards' is missing"):
        minari.read(path)


def test_read_different_lengths_are_refused(tmp_path: Path) -> None:
    path = raw(tmp_path)
    edit(path, "observations/observation", np.zeros((3, 2)))
    with pytest.raises(ValueError, match=r"observations/observation has 3 rows, expected 4 \(3 actions\)"):
        minari.read(path)


def test_read_nan_is_refused_or_reported(tmp_path: Path) -> None:
    path = raw(tmp_path)
    edit(path, "rewards", [0.0, np.nan, 1.0])
    with pytest.raises(ValueError, match="step 1"):
        formats.load(path)
    assert np.isnan(formats.load(path, allow_nan=True).episodes[0].reward[1])


def test_read_unknown_format_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="'zarr' format, expected 'hdf5' or 'arrow'"):
        minari.read(raw(tmp_path, data_format="zarr"))


def arrow(path: Path, lengths: tuple[int, ...]) -> Path:
    """A data set as Minari's Arrow storage lays it out: padded columns, flat boxes, structs."""
    pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    import pyarrow.dataset as ds

    def box(value: np.ndarray) -> object:
        flat = np.ascontiguousarray(value.reshape(len(value), -1))
        return pa.FixedSizeListArray.from_arrays(pa.array(flat.reshape(-1)), flat.shape[1])

    data = path / "a-v0" / "data"
    data.mkdir(parents=True)
    for number, steps in enumerate(lengths):
        rows = np.arange(steps + 1, dtype=np.float64)
        obs = [box(rows[:, None] + [0.0, 10.0 * number]), box(rows[:, None, None] * np.ones((1, 2, 3)))]
        ends = np.arange(steps + 1) == steps - 1
        batch = pa.RecordBatch.from_pydict(
            {
                "episode_id": np.full(steps + 1, number, np.int32),
                "observations": pa.StructArray.from_arrays(obs, names=["pose", "grid"]),
                "actions": box(np.append(rows[:-1], 0.0)[:, None]),
                "rewards": np.append(rows[:-1] / 2, 0.0),
                "terminations": ends if number % 2 else np.zeros(steps + 1, bool),
                "truncations": np.zeros(steps + 1, bool) if number % 2 else ends,
            }
        )
        ds.write_dataset(
            batch, data, format="arrow", partitioning=["episode_id"], existing_data_behavior="overwrite_or_ignore"
        )
        (data / str(number) / "metadata.json").write_text(json.dumps({"id": number, "total_steps": steps, "seed": 5}))
    below = {"pose": {"type": "Box", "shape": [2]}, "grid": {"type": "Box", "shape": [2, 3]}}
    spaces = {
        "observation_space": json.dumps({"type": "Dict", "subspaces": below}),
        "action_space": json.dumps({"type": "Box", "shape": [1]}),
    }
    facts = {"data_format": "arrow", "total_steps": sum(lengths), "total_episodes": len(lengths), **spaces}
    (data / "metadata.json").write_text(json.dumps(facts))
    return path / "a-v0"


def test_read_arrow_in_order_without_the_padding(tmp_path: Path) -> None:
    path = arrow(tmp_path, (3,) * 11 + (2,))
    logs = minari.read(path)
    assert not logs.findings
    assert [len(e) for e in logs.episodes] == [3] * 11 + [2]  # episode 10 comes behind episode 9
    third = logs.episodes[2]
    np.testing.assert_array_equal(third.obs["pose"], [[0, 20], [1, 21], [2, 22], [3, 23]])
    assert third.obs["grid"].shape == (4, 2, 3)
    np.testing.assert_array_equal(third.action, [[0], [1], [2]])
    np.testing.assert_array_equal(third.reward, [0, 0.5, 1])
    assert (third.terminated, third.truncated) == (False, True)
    assert (logs.episodes[3].terminated, logs.episodes[3].meta["seed"]) == (True, 5)
    assert formats.detect(path) == "minari"


def test_read_arrow_damaged_episode_is_named(tmp_path: Path) -> None:
    path = arrow(tmp_path, (3, 3))
    part = next((path / "data" / "1").glob("*.arrow"))
    part.write_bytes(part.read_bytes()[:-20])
    with pytest.raises(ValueError, match="data/1 cannot be read"):
        minari.read(path)


def test_read_cut_file_says_so(tmp_path: Path) -> None:
    path = raw(tmp_path)
    file = path / "data" / "main_data.hdf5"
    data = file.read_bytes()
    file.write_bytes(data[:-10])
    with pytest.raises(ValueError, match="cut short"):
        minari.read(path)


def test_read_jpeg_by_pillow(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image", reason="pillow is not installed")
    path = raw(tmp_path, jpeg_encoding=True)
    picture = np.full((8, 8, 3), 100, np.uint8)
    buffer = io.BytesIO()
    image.fromarray(picture).save(buffer, "JPEG")
    with h5py.File(path / "data" / "main_data.hdf5", "a") as file:
        vlen = file.create_dataset("episode_0/observations/image", (4,), dtype=h5py.vlen_dtype(np.uint8))
        for i in range(4):
            vlen[i] = np.frombuffer(buffer.getvalue(), np.uint8)
    logs = minari.read(path)
    assert logs.episodes[0].obs["image"].shape == (4, 8, 8, 3)
    assert np.abs(logs.episodes[0].obs["image"].astype(int) - 100).max() <= 2


def test_read_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"main_data.hdf5"):
        minari.read(tmp_path)


def test_texts_are_left_out_and_a_seed_that_is_none_is_none(tmp_path: Path) -> None:
    path = tmp_path / "x-v0"
    minari.write(path, [episode(1, 3, "terminal"), episode(2, 3, "terminal")], dataset_id="x-v0")
    with h5py.File(path / "data/main_data.hdf5", "r+") as file:
        for group in file.values():
            group.attrs["seed"] = "None"  # as Minari 0.3 did
            state = group["observations"][()]
            del group["observations"]
            group["observations/state"], group["observations/mission"] = state, ["go to the door"] * len(state)
    logs = minari.read(path)
    assert [sorted(e.obs) for e in logs.episodes] == [["state"], ["state"]]
    assert "seed" not in logs.episodes[0].meta
    assert [str(f) for f in logs.findings if f.case == "text"] == [
        f"{path}/data/main_data.hdf5: observations that are text are left out: mission"
    ]
