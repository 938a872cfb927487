"""D4RL files made by hand, one quirk each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from benchmarks.d4rl_pairs import qlearning_dataset
from robot_rl.data import d4rl, formats
from robot_rl.data.findings import BadData
from robot_rl.data.read_options import ReadOptions
from robot_rl.types import Episode


def columns(n: int = 6, **more: Any) -> dict[str, Any]:
    """Rows numbered 0 ... n - 1 in every key; no ends."""
    rows = np.arange(n, dtype=np.float32)
    base = {
        "observations": np.stack((rows, rows + 0.5), 1),
        "actions": rows[:, None] / 100,
        "rewards": rows.copy(),
        "terminals": np.zeros(n, bool),
        "timeouts": np.zeros(n, bool),
    }
    return {k: v for k, v in {**base, **more}.items() if v is not None}


def marks(n: int, *at: int) -> np.ndarray:
    flags = np.zeros(n, bool)
    flags[list(at)] = True
    return flags


def make(path: Path, data: dict[str, Any], name: str = "hopper-test-v0.hdf5") -> Path:
    path = path / name
    with h5py.File(path, "w") as file:
        for key, value in data.items():
            file[key] = value
    return path


def shape(episodes: list[Episode]) -> list[tuple[int, bool, bool, bool]]:
    return [(len(e), e.terminated, e.truncated, e.meta.get("final_obs_valid", True)) for e in episodes]


def test_read_terminal_and_timeout_delimit_and_the_tail_is_truncated(tmp_path: Path) -> None:
    # rows 0-1 end by terminal, 2-3 by timeout, 4-5 are a tail; no final observation is known
    logs = d4rl.read(make(tmp_path, columns(terminals=marks(6, 1), timeouts=marks(6, 3))))
    assert shape(logs.episodes) == [(2, True, False, False), (2, False, True, False), (2, False, True, False)]
    assert logs.episodes[1].obs["state"][:, 0].tolist() == [2, 3, 3]  # the missing one repeats its last
    assert logs.episodes[1].reward.tolist() == [2, 3]
    assert any("last 2 rows" in str(line) for line in logs.findings)
    assert logs.io.obs == {"state": ((2,), "float32")}


def test_read_next_observations_give_the_final_observation(tmp_path: Path) -> None:
    data = columns(terminals=marks(6, 1), timeouts=marks(6, 3))
    after = data["observations"] + 1
    after[3] = (70, 71)  # the true successor of the timeout row, not row 4
    logs = d4rl.read(make(tmp_path, {**data, "next_observations": after}))
    assert shape(logs.episodes) == [(2, True, False, True), (2, False, True, True), (2, False, True, True)]
    assert logs.episodes[1].obs["state"].tolist() == [[2, 2.5], [3, 3.5], [70, 71]]
    assert logs.episodes[2].obs["state"][:, 0].tolist() == [4, 5, 6]


def test_read_without_timeouts_cuts_at_the_limit_counted_from_each_first_row(tmp_path: Path) -> None:
    # limit 3; a terminal after 2 rows: then 3 + 3 + 2 rows. D4RL's sequence_dataset would cut the second at 2.
    path = make(tmp_path, columns(10, terminals=marks(10, 1), timeouts=None))
    logs = d4rl.read(path, ReadOptions(episode_length=3))
    assert shape(logs.episodes) == [
        (2, True, False, False), (3, False, True, False), (3, False, True, False), (2, False, True, False),
    ]  # fmt: skip
    assert any("no 'timeouts'" in str(line) for line in logs.findings)


def test_read_limit_comes_from_the_name(tmp_path: Path) -> None:
    path = make(tmp_path, columns(250, timeouts=None), "pen-human-v0.hdf5")
    assert [len(e) for e in d4rl.read(path).episodes] == [100, 100, 50]


def test_read_no_boundary_at_all_asks_for_one(tmp_path: Path) -> None:
    path = make(tmp_path, columns(timeouts=None), "mystery.hdf5")
    with pytest.raises(ValueError, match="episode_length"):
        d4rl.read(path)


def test_read_terminal_and_timeout_at_once_terminal_wins(tmp_path: Path) -> None:
    logs = d4rl.read(make(tmp_path, columns(terminals=marks(6, 2), timeouts=marks(6, 2, 5))))
    assert shape(logs.episodes) == [(3, True, False, False), (3, False, True, False)]
    assert any("1 rows are terminal and timeout" in str(line) for line in logs.findings)


def test_read_column_vectors_and_float_flags_are_squeezed(tmp_path: Path) -> None:
    data = columns(terminals=marks(6, 2)[:, None].astype(np.float32), timeouts=marks(6, 5)[:, None])
    data["rewards"] = data["rewards"][:, None]
    logs = d4rl.read(make(tmp_path, data))
    assert logs.episodes[0].reward.shape == (3,)
    assert shape(logs.episodes) == [(3, True, False, False), (3, False, True, False)]
    assert sum("(N, 1)" in str(line) for line in logs.findings) == 3


def test_the_rate_that_a_file_tells_is_the_interfaces(tmp_path: Path) -> None:
    episode = Episode(
        obs={"state": np.zeros((3, 2), np.float32)}, action=np.zeros((2, 1), np.float32),
        proposed=np.zeros((2, 1), np.float32), reward=np.zeros(2, np.float32), terminated=True, truncated=False,
        intervened=np.zeros(2, bool), stamp=np.arange(3) / 100.0,
    )  # fmt: skip
    d4rl.write(tmp_path / "told.hdf5", [episode], metadata={"control_hz": 100.0})
    d4rl.write(tmp_path / "untold.hdf5", [episode])
    d4rl.write(tmp_path / "odd.hdf5", [episode], metadata={"control_hz": "fast"})
    assert d4rl.read(tmp_path / "told.hdf5").io.control_hz == 100.0
    assert d4rl.read(tmp_path / "told.hdf5", ReadOptions(control_hz=50.0)).io.control_hz == 50.0
    assert d4rl.read(tmp_path / "untold.hdf5").io.control_hz == 20.0
    assert d4rl.read(tmp_path / "odd.hdf5").io.control_hz == 20.0


def test_read_metadata_is_skipped_and_infos_are_columns(tmp_path: Path) -> None:
    data = columns(timeouts=marks(6, 2, 5))
    data |= {"infos/qpos": np.arange(12.0).reshape(6, 2)}
    data |= {"metadata/algorithm": b"SAC", "metadata/policy/fc0/weight": np.zeros((3, 3)), "infos/odd": np.zeros(2)}
    path = make(tmp_path, data)
    assert "columns" not in d4rl.read(path).episodes[0].meta
    logs = d4rl.read(path, ReadOptions(infos=True))
    assert list(logs.episodes[1].meta["columns"]) == ["infos/qpos"]
    assert logs.episodes[1].meta["columns"]["infos/qpos"][0].tolist() == [6, 7]
    assert any("infos/odd" in str(line) for line in logs.findings)


def test_read_kitchen_terminal_is_a_cut(tmp_path: Path) -> None:
    path = make(tmp_path, columns(terminals=marks(6, 2, 5), timeouts=None), "kitchen-complete-v0.hdf5")
    assert [(e.terminated, e.truncated) for e in d4rl.read(path).episodes] == [(False, True)] * 2
    assert [e.terminated for e in d4rl.read(path, ReadOptions(terminals="terminal")).episodes] == [True, True]


def test_read_antmaze_terminal_cluster(tmp_path: Path) -> None:
    data = columns(8, terminals=marks(8, 2, 3), timeouts=marks(8, 4, 7))
    data["observations"] /= 10
    path = make(tmp_path, data, "antmaze-umaze-v2.hdf5")
    assert [len(e) for e in d4rl.read(path).episodes] == [3, 1, 1, 3]
    logs = d4rl.read(path, ReadOptions(antmaze_terminal="first_hit"))
    assert shape(logs.episodes) == [(3, True, False, False), (3, False, True, False)]
    assert logs.episodes[1].reward.tolist() == [5, 6, 7]


def test_read_antmaze_jump_is_refused(tmp_path: Path) -> None:
    data = columns(6, timeouts=marks(6, 5))
    data["observations"][3:] += 50
    with pytest.raises(ValueError, match=r"jumps more than 5 m .* after row 2"):
        d4rl.read(make(tmp_path, data, "antmaze-umaze-v0.hdf5"))


def test_read_maze2d_shift_gives_the_reward_of_the_observation_reached(tmp_path: Path) -> None:
    path = make(tmp_path, columns(6, timeouts=marks(6, 2, 5)), "maze2d-umaze-v1.hdf5")
    assert d4rl.read(path).episodes[0].reward.tolist() == [0, 1, 2]
    fixed = d4rl.read(path, ReadOptions(maze2d_shift="fix")).episodes
    assert [e.reward.tolist() for e in fixed] == [[1, 2], [4, 5]]
    assert fixed[0].obs["state"][:, 0].tolist() == [0, 1, 2]
    assert shape(fixed) == [(2, False, True, True)] * 2


def test_read_unmarked_end_is_cut_and_reported(tmp_path: Path) -> None:
    n = 3000
    data = columns(n, timeouts=marks(n, n - 1))
    after = data["observations"] + 1
    after[10] += 5
    logs = d4rl.read(make(tmp_path, {**data, "next_observations": after}))
    assert shape(logs.episodes) == [(11, False, False, True), (n - 11, False, True, True)]
    assert logs.episodes[0].obs["state"][-1, 0] == 16
    assert any("first after row 10" in str(line) for line in logs.findings)


def test_read_shuffled_rows_are_refused(tmp_path: Path) -> None:
    n = 3000
    data = columns(n, timeouts=marks(n, n - 1))
    after = data["observations"] + 1
    after[::7] += 5
    with pytest.raises(ValueError, match="shuffled"):
        d4rl.read(make(tmp_path, {**data, "next_observations": after}))


def test_read_nan_names_the_places(tmp_path: Path) -> None:
    data = columns(timeouts=marks(6, 2, 5))
    data["actions"][4, 0] = np.nan
    path = make(tmp_path, data)
    with pytest.raises(ValueError, match="1 values are not finite: 'action' episode 1 step 1 component 0"):
        formats.load(path)
    assert np.isnan(formats.load(path, allow_nan=True).episodes[1].action[1, 0])


def test_read_missing_key_names_the_nearest(tmp_path: Path) -> None:
    data = columns()
    data["reward"] = data.pop("rewards")
    with pytest.raises(ValueError, match=r"'rewards' is missing.*did you mean 'reward'"):
        d4rl.read(make(tmp_path, data))


def test_read_different_lengths_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="'rewards' has 5 rows, 'actions' has 6"):
        d4rl.read(make(tmp_path, columns(rewards=np.zeros(5, np.float32))))


def test_read_cut_file_says_how_much_is_left(tmp_path: Path) -> None:
    path = make(tmp_path, columns(5000, timeouts=marks(5000, 4999)))
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(ValueError, match=f"cut short: {len(data) // 2:,} of {len(data):,} bytes"):
        d4rl.read(path)


def test_read_damaged_chunk_names_the_key(tmp_path: Path) -> None:
    path = tmp_path / "hopper-x-v0.hdf5"
    noise = np.random.default_rng(0).normal(size=(4000, 2)).astype(np.float32)
    with h5py.File(path, "w") as file:
        for key, value in columns(4000, timeouts=marks(4000, 3999), observations=noise).items():
            file.create_dataset(key, data=value, compression="gzip")
        offset = file["observations"].id.get_chunk_info(0).byte_offset
    data = bytearray(path.read_bytes())
    data[offset : offset + 400] = bytes(400)
    path.write_bytes(data)
    with pytest.raises(ValueError, match="key 'observations' cannot be read"):
        d4rl.read(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "Git LFS pointer"),
        (b"", "is empty"),
        (b"hello" * 100, "not an HDF5 file"),
    ],
)
def test_read_what_is_no_data_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "hopper.hdf5"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        d4rl.read(path)
    assert path.read_bytes() == content


def test_read_missing_file_suggests_a_neighbour(tmp_path: Path) -> None:
    make(tmp_path, columns(), "hopper-medium-v2.hdf5")
    with pytest.raises(FileNotFoundError, match=r"did you mean hopper-medium-v2.hdf5"):
        d4rl.read(tmp_path / "hopper-medum-v2.hdf5")


def test_qlearning_dataset_is_that_of_d4rl(tmp_path: Path) -> None:
    # D4RL's loop by hand: rows 0..8 without the timeout row 5; s' is always the next row, also behind the terminal 2.
    path = make(tmp_path, columns(10, terminals=marks(10, 2), timeouts=marks(10, 5)))
    got = qlearning_dataset(path)
    assert got["observations"][:, 0].tolist() == [0, 1, 2, 3, 4, 6, 7, 8]
    assert got["next_observations"][:, 0].tolist() == [1, 2, 3, 4, 5, 7, 8, 9]
    assert got["terminals"].tolist() == [False, False, True, False, False, False, False, False]
    kept = qlearning_dataset(path, terminate_on_end=True)
    assert np.flatnonzero(kept["terminals"]).tolist() == [2, 5]
    assert len(kept["rewards"]) == 9


def test_qlearning_dataset_without_timeouts_counts_steps(tmp_path: Path) -> None:
    # limit 3, terminal at 1: rows 4 and 7 are the last steps of full episodes.
    path = make(tmp_path, columns(10, terminals=marks(10, 1), timeouts=None))
    got = qlearning_dataset(path, episode_length=3)
    assert got["observations"][:, 0].tolist() == [0, 1, 2, 3, 5, 6, 8]


def episode(number: int, steps: int, end: str) -> Episode:
    rng = np.random.default_rng(number)
    return Episode(
        obs={"state": rng.normal(size=(steps + 1, 3)).astype(np.float32)},
        action=rng.uniform(-1, 1, (steps, 2)).astype(np.float32),
        proposed=rng.uniform(-1, 1, (steps, 2)).astype(np.float32),
        reward=rng.normal(size=steps).astype(np.float32),
        terminated=end == "terminated",
        truncated=end == "truncated",
        intervened=rng.random(steps) < 0.5,
        stamp=np.arange(steps + 1) * 0.05,
        meta={"columns": {"success": rng.random(steps) < 0.5}},
    )


@pytest.mark.parametrize("compress", [True, False])
def test_write_then_read_is_the_same(tmp_path: Path, compress: bool) -> None:
    written = [episode(0, 5, "terminated"), episode(1, 1, "truncated"), episode(2, 7, "cut")]
    d4rl.write(tmp_path / "out" / "mine.hdf5", written, compress=compress)
    logs = d4rl.read(tmp_path / "out" / "mine.hdf5", ReadOptions(infos=True))
    assert logs.findings == []
    # The format knows no cut recordings; a column of ours does.
    assert [(e.terminated, e.truncated) for e in logs.episodes] == [(True, False), (False, True), (False, False)]
    for a, b in zip(written, logs.episodes):
        np.testing.assert_array_equal(a.obs["state"], b.obs["state"])
        for name in ("action", "proposed", "reward", "intervened", "stamp"):
            np.testing.assert_array_equal(getattr(a, name), getattr(b, name))
        np.testing.assert_array_equal(a.meta["columns"]["success"], b.meta["columns"]["infos/success"])
    for a, b in zip(written, d4rl.read(tmp_path / "out" / "mine.hdf5").episodes):  # a person's steps are no extra
        for name in ("proposed", "intervened", "stamp"):
            np.testing.assert_array_equal(getattr(a, name), getattr(b, name))
        assert "columns" not in b.meta
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["mine.hdf5"]


def test_write_images_are_refused_and_nothing_is_left(tmp_path: Path) -> None:
    bad = episode(0, 3, "cut")
    bad.obs["image.top"] = np.zeros((4, 2, 2, 3), np.uint8)
    with pytest.raises(ValueError, match=r"image.top.*one vector"):
        d4rl.write(tmp_path / "x.hdf5", [bad])
    assert list(tmp_path.iterdir()) == []


def test_complex_numbers_and_links_to_nowhere_are_told(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        file["observations"], file["actions"] = np.ones((3, 2)) * 1j, np.zeros((3, 1))
        file["rewards"], file["terminals"] = np.zeros(3), np.array([0, 0, 1], bool)
    with pytest.raises(BadData, match="'observations' is complex128, expected numbers"):
        d4rl.read(tmp_path / "a.hdf5")
    (tmp_path / "b.hdf5").symlink_to("gone.hdf5")
    with pytest.raises(FileNotFoundError, match=r"b\.hdf5 is a link to gone\.hdf5, which does not exist"):
        d4rl.read(tmp_path / "b.hdf5")


@pytest.fixture
def hole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Row 9 of 12 cannot be read."""
    read_table = d4rl.load

    def read_with_hole(path: Path, infos: bool, *, salvage: bool = False) -> d4rl.D4rlTable:
        table = read_table(path, infos, salvage=salvage)
        table.lost = marks(12, 9)
        return table

    monkeypatch.setattr(d4rl, "load", read_with_hole)


@pytest.mark.usefixtures("hole")
@pytest.mark.parametrize(
    ("name", "options"), [("antmaze-x-v2", {"antmaze_terminal": "first_hit"}), ("maze2d-x", {"maze2d_shift": "fix"})]
)
def test_salvage_keeps_the_whole_episodes_whatever_else_is_mended(
    tmp_path: Path, name: str, options: dict[str, Any]
) -> None:
    data = columns(12, terminals=marks(12, 1, 2), timeouts=marks(12, 3, 7, 11))
    found = d4rl.read(make(tmp_path, data, f"{name}.hdf5"), ReadOptions(salvage=True, **options)).episodes
    assert [e.obs["state"][0, 0] for e in found][-1] == 4.0  # 8 to 11 hold the hole
    assert len(found[-1]) == (3 if name.startswith("maze") else 4)


@pytest.mark.usefixtures("hole")
def test_salvage_leaves_lost_rows_out_of_shuffled_ones(tmp_path: Path) -> None:
    data = columns(12, terminals=marks(12, 3))
    data["next_observations"] = data["observations"] + 1.0
    found = d4rl.read(make(tmp_path, data), ReadOptions(salvage=True, shuffled=True)).episodes
    assert [e.obs["state"][0, 0] for e in found] == [*range(9), 10.0, 11.0]
