"""The console bench measures what it says."""

import pytest

pytest.importorskip("aiohttp", reason="needs aiohttp (extra `console`)")
from benchmarks.console import run


def test_inputs_arrive_within_a_few_ticks_and_every_picture_does():
    (row,) = run(seconds=1.5, rates=(20.0,), size=(64, 96))["rows"]
    assert row["inputs"] >= 20
    assert 0.0 < row["input_ms_p50"] <= row["input_ms_p95"] < 1000.0
    assert row["input_ms_p95"] > row["mean_wait_for_a_tick_ms"]  # most inputs wait for a tick
    assert row["pictures_per_s"] > 8.0
    assert row["picture_age_ms_p50"] < 500.0
