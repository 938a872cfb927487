"""The benchmark of the flight recorder measures what it says."""

from benchmarks import flight


def test_flight_bench_times_both_pipelines_while_commands_are_followed() -> None:
    found = flight.cost(100)
    assert 10.0 < found["without_p50_us"] <= found["without_p99_us"]
    assert 10.0 < found["with_p50_us"] <= found["with_p99_us"]
    assert found["p50"] == found["with_p50_us"] / found["without_p50_us"]
    assert 300.0 < found["bytes_per_tick"] < 2000.0  # an offer, a tick and what was sent, of seven joints
