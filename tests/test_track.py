"""Metrics survive kills and resumes; wandb works offline with the real package."""

import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from robot_rl import report, track


def test_jsonl_rows_read_back_and_cut_line_is_skipped(tmp_path: Path) -> None:
    log = track.Jsonl(tmp_path)
    log.log({"a": 1.0, "b": float("nan")}, 10)
    log.log({"a": 2.0}, 20)
    log.close()
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 30, "a"')
    assert track.read_metrics(tmp_path / "metrics.jsonl") == [
        {"step": 10, "a": 1.0, "b": None},
        {"step": 20, "a": 2.0},
    ]


def test_jsonl_resume_drops_rows_after_the_checkpoint(tmp_path: Path) -> None:
    log = track.Jsonl(tmp_path)
    for step in (10, 20, 30):
        log.log({"a": float(step)}, step)
    log.close()
    again = track.Jsonl(tmp_path, resume_step=20)
    again.log({"a": 31.0}, 30)
    again.close()
    assert [(r["step"], r["a"]) for r in track.read_metrics(again.path)] == [(10, 10.0), (20, 20.0), (30, 31.0)]


def test_rows_wait_while_the_disk_is_full_and_come_whole_and_in_order(tmp_path: Path) -> None:
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(tmp_path)], capture_output=True
    ).returncode:
        pytest.skip("mounting a tmpfs needs root")
    try:
        log, filler = track.Jsonl(tmp_path), tmp_path / "filler"
        log.log({"a": 1.0}, 0)
        filler.write_bytes(b"0" * 15 * 4096)  # all but the page in which the rows begin
        for step in range(1, 600):  # 20 bytes and more each: two pages and a half would be needed
            log.log({"a": 1.0}, step)
        kept = len(track.read_metrics(log.path))
        assert 100 < kept < 600
        filler.unlink()
        log.log({"a": 1.0}, 600)
        log.close()
        assert [row["step"] for row in track.read_metrics(log.path)] == list(range(601))
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def test_files_writes_tensorboard_events(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="the extra [track] is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    log = track.files(str(tmp_path))
    log.log({"eval/return": 3.0}, 7)
    log.close()
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [(e.step, e.value) for e in events.Scalars("eval/return")] == [(7, 3.0)]


@pytest.mark.parametrize("mode", ["offline", "disabled"])
def test_wandb_without_network_writes_its_run(tmp_path: Path, mode: str) -> None:
    pytest.importorskip("wandb", reason="the extra [track] is not installed")
    log = track.wandb(str(tmp_path), mode=mode, config={"seed": 1})
    log.log({"eval/return": 3.0}, 7)
    log.close()
    assert track.read_metrics(tmp_path / "metrics.jsonl") == [{"step": 7, "eval/return": 3.0}]
    files = list((tmp_path / "wandb").rglob("*.wandb")) if (tmp_path / "wandb").exists() else []
    assert bool(files) == (mode == "offline")


def test_wandb_heeds_its_variable_and_says_how_to_go_without_a_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wandb: Any = pytest.importorskip("wandb", reason="the extra [track] is not installed")
    monkeypatch.setenv("WANDB_MODE", "offline")
    track.wandb(str(tmp_path)).close()
    assert list((tmp_path / "wandb").rglob("*.wandb"))

    def refuse(**_: object) -> None:
        raise wandb.errors.UsageError("No API key configured.")

    monkeypatch.setattr(wandb, "init", refuse)
    with pytest.raises(ValueError, match=r"No API key configured\. track\.mode=offline keeps the numbers"):
        track.wandb(str(tmp_path))


def test_runs_of_two_sweeps_are_two_runs_of_wandb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb, ids = pytest.importorskip("wandb", reason="the extra [track] is not installed"), []
    monkeypatch.setattr(wandb, "init", lambda **how: ids.append(how["id"]))
    for folder in ("2026-01-01/0", "2026-01-02/0", "2026-01-02/0", "2026_reach"):
        track.Wandb(tmp_path / folder)
    assert ids == ["2026-01-01_0", "2026-01-02_0", "2026-01-02_0", "2026_reach"]


def test_wandb_unknown_mode_lists_the_valid_ones(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="online, offline or disabled"):
        track.Wandb(tmp_path, mode="on")


def test_video_frames_come_back(tmp_path: Path) -> None:
    av = pytest.importorskip("av", reason="the extra [report] is not installed")
    frames = [np.full((33, 48, 3), shade, np.uint8) for shade in (0, 120, 240)]
    path = report.write_video(tmp_path / "x.mp4", frames, fps=10)
    with av.open(str(path)) as container:
        back = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    assert len(back) == 3
    assert back[0].shape == (32, 48, 3)
    for frame, shade in zip(back, (0, 120, 240)):
        assert abs(float(frame.mean()) - shade) < 6
    with pytest.raises(ValueError, match="no frames"):
        report.write_video(tmp_path / "y.mp4", [], fps=10)


def test_report_page_holds_numbers_curve_video_and_escapes(tmp_path: Path) -> None:
    rows = [{"step": s, "eval/success": s / 30, "rollout/return": 1.0 * s} for s in (10, 20, 30)]
    curve = report.write_curve(tmp_path / "curve.png", rows)
    assert curve.read_bytes()[:4] == b"\x89PNG"
    (tmp_path / "eval.mp4").write_bytes(b"x")
    page = report.write_report(
        tmp_path,
        title="<run>",
        summary={"success": 0.97},
        config="seed: 1",
        curve=curve,
        video=tmp_path / "eval.mp4",
    ).read_text()
    assert "&lt;run&gt;" in page
    assert "0.97" in page
    assert 'src="eval.mp4"' in page
    assert "data:image/png;base64," in page
    assert json.dumps("seed: 1").strip('"') in page
