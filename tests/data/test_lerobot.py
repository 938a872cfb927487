"""LeRobot data sets: what the reader believes, what it refuses, and the real ones."""

from __future__ import annotations

import io
import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))
from broken import episode, hashes

from robot_rl.data import lerobot, lerobot_write, video
from robot_rl.data.convert import validate
from robot_rl.data.findings import BadData, exit_code
from robot_rl.data.read_options import ReadOptions
from robot_rl.types import Episode

pa = pytest.importorskip("pyarrow", reason="needs pyarrow (extra `logs`)")
parquet = pytest.importorskip("pyarrow.parquet")
G1 = next((p for p in (up / "shared/data/lerobot_g1" for up in Path(__file__).parents) if p.exists()), Path("absent"))
real = pytest.mark.skipif(not G1.exists(), reason="the folder shared/data/lerobot_g1 is absent")


def made(path: Path, count: int = 3, **options: object) -> Path:
    episodes = [episode(i, 10 + i, success=i != 1) for i in range(count)]
    lerobot_write.write(path, episodes, fps=20, **options)  # pyright: ignore[reportArgumentType]
    return path


def rewrite(path: Path, change: object) -> None:
    rows = parquet.read_table(path).to_pylist()
    parquet.write_table(pa.Table.from_pylist(change(rows)), path)  # pyright: ignore[reportCallIssue]


def messages(path: Path, code: int, **options: object) -> str:
    before = hashes(path)
    findings = validate(path, **options)  # pyright: ignore[reportArgumentType]
    assert exit_code(findings) == code, [str(f) for f in findings]
    assert hashes(path) == before
    return "\n".join(str(f) for f in findings)


def test_rewards_and_ends_come_from_where_they_are_asked_for(tmp_path: Path) -> None:
    path = made(tmp_path / "s")
    none = lerobot.read(path)
    assert all(not e.reward.any() for e in none.episodes)
    assert any("TD learning needs reward=" in str(f) for f in none.findings)
    column = lerobot.read(path, ReadOptions(reward="column")).episodes
    np.testing.assert_array_equal(column[2].reward, episode(2, 12).reward)
    end = lerobot.read(path, ReadOptions(reward="success_at_end")).episodes
    assert [e.reward.sum() for e in end] == [1, 0, 1]
    assert [(e.terminated, e.truncated) for e in end] == [(True, False), (False, True), (True, False)]


def test_done_alone_is_no_true_end(tmp_path: Path) -> None:
    """`next.done` marks time limits too: without a success flag the end is a cut."""
    path = made(tmp_path / "s")
    file = path / "data/chunk-000/file-000.parquet"
    parquet.write_table(
        parquet.read_table(file).drop_columns(["next.success", "next.terminated", "next.truncated"]), file
    )
    assert [(e.terminated, e.truncated) for e in lerobot.read(path, ReadOptions(reward="column")).episodes] == [
        (False, True)
    ] * 3


def test_gap_in_the_episode_index_is_refused(tmp_path: Path) -> None:
    path = made(tmp_path / "s")
    rewrite(path / "meta/episodes/chunk-000/file-000.parquet", lambda rows: [rows[0], rows[2]])
    assert "episode_index is not 0 ... 1: row 1 of the list is episode 2" in messages(path, 2)


def test_lengths_shapes_and_stamps_are_checked(tmp_path: Path) -> None:
    path = made(tmp_path / "s")
    rewrite(path / "meta/episodes/chunk-000/file-000.parquet", lambda rows: [{**r, "length": 11} for r in rows])
    assert "episode 0 has 10 rows, its list says 11" in messages(path, 2)
    path = made(tmp_path / "t")
    info = json.loads((path / "meta/info.json").read_text())
    info["features"]["action"]["shape"] = [7]
    (path / "meta/info.json").write_text(json.dumps(info))
    assert "'action' has 2 numbers per row, info.json says [7]" in messages(path, 2)
    path = made(tmp_path / "u")
    info = json.loads((path / "meta/info.json").read_text())
    (path / "meta/info.json").write_text(json.dumps({**info, "fps": 25}))
    assert "30 time stamps differ from frame_index / 25, at most by 0.11 s" in messages(path, 1)


def test_truncated_parquet_names_its_episodes_and_is_salvaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lerobot_write, "_FILE_BYTES", 700)  # a file per episode
    path = made(tmp_path / "s")
    assert len(list((path / "data/chunk-000").iterdir())) == 3
    file = path / "data/chunk-000/file-001.parquet"
    file.write_bytes(file.read_bytes()[:-30])
    text = messages(path, 2)
    assert (
        "file-001.parquet (episodes 1) cannot be read: its footer is missing, so it is cut short; salvage=true" in text
    )
    logs = lerobot.read(path, ReadOptions(salvage=True))
    assert [len(e) for e in logs.episodes] == [10, 12]
    assert any("the others are numbered anew" in str(f) for f in logs.findings)


def film(path: Path, lossless: bool = True) -> list[Episode]:
    rng = np.random.default_rng(0)
    episodes = []
    for i in range(3):
        one = episode(i, 6 + i)
        frames = rng.integers(0, 256, (7 + i, 16, 24, 3), dtype=np.uint8)
        episodes.append(replace(one, obs={**one.obs, "image.top": frames}))
    lerobot_write.write(path, episodes, fps=20, lossless=lossless)
    return episodes


def test_videos_of_many_episodes_in_one_file_come_back(tmp_path: Path) -> None:
    pytest.importorskip("av", reason="needs PyAV (extra `logs`)")
    episodes = film(tmp_path / "s")
    back = lerobot.read(tmp_path / "s", ReadOptions(videos=True)).episodes
    for a, b in zip(episodes, back):
        np.testing.assert_array_equal(a.obs["image.top"][:-1], b.obs["image.top"][:-1])
    assert lerobot.read(tmp_path / "s", ReadOptions(videos=True, image_size=(8, 12))).episodes[0].obs[
        "image.top"
    ].shape[1:3] == (
        8,
        12,
    )
    assert "image.top" not in lerobot.read(tmp_path / "s").episodes[0].obs


def test_absent_short_and_unreadable_video_is_explained(tmp_path: Path) -> None:
    pytest.importorskip("av", reason="needs PyAV (extra `logs`)")
    film(tmp_path / "s")
    file = tmp_path / "s/videos/observation.images.top/chunk-000/file-000.mp4"
    data = file.read_bytes()
    assert exit_code(validate(tmp_path / "s")) < 2
    file.write_bytes(data[: len(data) // 2])
    text = messages(tmp_path / "s", 2, videos=True)
    assert "no frame can be decoded (codec" in text
    assert "decoder tried: PyAV/FFmpeg" in text
    file.unlink()
    assert "file-000.mp4 is not there; copy the videos, or leave images out (videos=false)" in messages(
        tmp_path / "s", 2, videos=True
    )
    video.write(file, np.zeros((10, 16, 24, 3), np.uint8), fps=20)
    assert "s of video for" in messages(tmp_path / "s", 2, videos=True)


def test_lag_between_action_and_state_is_found() -> None:
    rng = np.random.default_rng(0)
    action = np.cumsum(rng.normal(0, 0.1, (200, 2)), 0).astype(np.float32)
    state = np.concatenate((np.zeros((5, 2), np.float32), action))[:201]
    one = replace(episode(1, 200, size=2), obs={"state": state}, action=action, proposed=action)
    assert lerobot.action_lag([one]) == 5
    assert lerobot.action_lag([episode(1, 200)]) is None  # other sizes


def test_unknown_version_and_broken_metadata(tmp_path: Path) -> None:
    path = made(tmp_path / "s")
    info = json.loads((path / "meta/info.json").read_text())
    (path / "meta/info.json").write_text(json.dumps({**info, "codebase_version": "v9.0"}))
    with pytest.raises(BadData, match=r"version v9\.0"):
        lerobot.read(path)
    (path / "meta/info.json").write_text("{")
    with pytest.raises(BadData, match="is no JSON"):
        lerobot.read(path)


@real
def test_real_g1_set_says_what_is_missing() -> None:
    logs = lerobot.read(G1)
    text = "\n".join(map(str, logs.findings))
    assert len(logs.episodes) == 30
    assert "70 of 100 episodes are missing: 30-99" in text
    assert len(logs.episodes[0]) == 479
    assert logs.episodes[0].meta["task"] == "Pick up the yellow bottle on the table."
    assert logs.io.action_names[0] == "kLeftShoulderPitch"
    assert logs.io.control_hz == 30
    assert 7 <= next(int(str(f).split()[4]) for f in logs.findings if f.case == "lag") <= 9


@real
def test_real_av1_video_is_decoded() -> None:
    pytest.importorskip("av", reason="needs PyAV (extra `logs`)")
    path = G1 / "videos/chunk-000/observation.images.cam_high/episode_000001.mp4"
    seconds, count, codec = video.facts(path)
    assert (count, "av1" in codec or "dav1d" in codec) == (393, True)
    frames = video.frames(path, begin_s=2.0, count=3, size=(60, 80))
    assert frames.shape == (3, 60, 80, 3)
    assert frames.std() > 10  # a picture, not a blank
    np.testing.assert_allclose(frames[0], video.frames(path, count=61, size=(60, 80))[60], atol=2)
    assert seconds == pytest.approx(13.1)


@real
def test_real_v21_set_with_absent_videos_explains(tmp_path: Path) -> None:
    root = tmp_path / "g1"
    (root / "data/chunk-000").mkdir(parents=True)
    shutil.copytree(G1 / "meta", root / "meta")
    shutil.copy(G1 / "data/chunk-000/episode_000000.parquet", root / "data/chunk-000/episode_000000.parquet")
    with pytest.raises(BadData, match=r"episode_000000.mp4 is not there; copy the videos"):
        lerobot.read(root, ReadOptions(videos=True))


def test_whole_numbers_and_flags_are_observations_too(tmp_path: Path) -> None:
    path = made(tmp_path / "s", count=1)
    file, told = next(path.glob("data/**/*.parquet")), path / "meta/info.json"
    rewrite(file, lambda rows: [{**row, "observation.gripper": [i % 3]} for i, row in enumerate(rows)])
    info = json.loads(told.read_text())
    info["features"]["observation.gripper"] = {"dtype": "int64", "shape": [1], "names": None}
    told.write_text(json.dumps(info))
    (one,) = lerobot.read(path).episodes
    assert one.obs["gripper"].dtype == np.float32
    assert one.obs["gripper"][:-1, 0].tolist() == [i % 3 for i in range(len(one))]


def change_column(path: Path, name: str, values: object) -> None:
    file = path / "data/chunk-000/file-000.parquet"
    table = parquet.read_table(file)
    parquet.write_table(table.set_column(table.schema.get_field_index(name), name, values), file)


def test_an_episode_whose_begin_was_cut_off_keeps_its_time(tmp_path: Path) -> None:
    path = made(tmp_path / "s", 1)
    file = path / "data/chunk-000/file-000.parquet"
    change_column(path, "frame_index", pa.array(np.arange(10) + 3))
    parquet.write_table(parquet.read_table(file).drop_columns(["stamp"]), file)
    np.testing.assert_allclose(lerobot.read(path).episodes[0].stamp, np.arange(3, 14) / 20)


@pytest.mark.parametrize("odd", [None, [1.0, 2.0]])
def test_rows_without_all_their_numbers_are_refused(tmp_path: Path, odd: list[float] | None) -> None:
    path = made(tmp_path / "s", 1)
    rows: list[list[float] | None] = [[1.0, 2.0, 3.0]] * 10
    rows[2:4] = [odd, [3.0, 1.0, 2.0, 3.0]]  # with two of them, numbers would move to other rows
    change_column(path, "observation.state", pa.array(rows, pa.list_(pa.float32())))
    with pytest.raises(BadData, match=r"'observation\.state' has rows of different lengths, or without numbers"):
        lerobot.read(path)


def test_pictures_in_the_table_are_read_as_those_of_videos(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    path, file = made(tmp_path / "s", 2), tmp_path / "s/data/chunk-000/file-000.parquet"
    shown = np.random.default_rng(0).integers(0, 255, (21, 4, 6, 3)).astype(np.uint8)
    packed = []
    for one in shown:
        image.fromarray(one).save(data := io.BytesIO(), "PNG")
        packed.append({"bytes": data.getvalue(), "path": "frame.png"})
    parquet.write_table(parquet.read_table(file).append_column("observation.images.top", pa.array(packed)), file)
    info = json.loads((path / lerobot.INFO).read_text())
    info["features"]["observation.images.top"] = {"dtype": "image", "shape": [4, 6, 3], "names": None}
    (path / lerobot.INFO).write_text(json.dumps(info))
    first, second = lerobot.read(path, ReadOptions(videos=True)).episodes
    np.testing.assert_array_equal(first.obs["image.top"][:-1], shown[:10])
    np.testing.assert_array_equal(second.obs["image.top"][:-1], shown[10:])
    small = lerobot.read(path, ReadOptions(videos=True, image_size=(2, 3))).episodes[0]
    assert small.obs["image.top"].shape == (11, 2, 3, 3)


def test_pictures_that_h264_does_not_take_are_refused(tmp_path: Path) -> None:
    one = episode(1, 4)
    one = replace(one, obs={**one.obs, "image.top": np.zeros((5, 5, 8, 3), np.uint8)})
    with pytest.raises(ValueError, match=r"images 'image\.top' have 5 x 8 pixels, expected even numbers"):
        lerobot_write.write(tmp_path / "s", [one])
