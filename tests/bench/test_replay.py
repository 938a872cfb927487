import pytest

from benchmarks import replay


@pytest.mark.parametrize(("name", "shape", "dtype"), [("state", (17,), "float32"), ("image84", (4, 4, 3), "uint8")])
def test_compare_measures_both_buffers(name: str, shape: tuple[int, ...], dtype: str) -> None:
    pytest.importorskip("stable_baselines3", reason="the peer is not installed")
    result = replay._compare(name, shape, dtype, capacity=300, rounds=3, calls=2)
    assert set(result) == {f"{name}_sample", f"{name}_add"}
    for case in result.values():
        assert case["ours_us"] > 0
        assert case["ratio_low"] <= case["ratio"] <= case["ratio_high"]
    sample = result[f"{name}_sample"]
    assert sample["ours_per_s"] == pytest.approx(replay.BATCH / sample["ours_us"] * 1e6)
