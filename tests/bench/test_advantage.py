"""The speed suite runs, agrees with its peers and says what it skipped. Times themselves are not tested."""

import importlib
import json

import torch

from benchmarks import advantage
from robot_rl.advantage import entries


def test_bench_rows_agree_with_their_peers_and_every_estimator_is_timed():
    threads = torch.get_num_threads()
    result = advantage.run(quick=True)
    assert torch.get_num_threads() == threads
    json.dumps(result)
    peers = {row["peer"] for row in result["rows"]} | set(result["skipped"])
    assert peers == {"stable-baselines3", "cleanrl-like", "verl-like", "torchrl", "tianshou"}
    assert {"cleanrl-like", "verl-like"} <= {row["peer"] for row in result["rows"]}
    for row in result["rows"]:
        assert row["agrees"], row
        assert row["ours_ms"] > 0
        assert row["spread"][0] <= row["ratio"] <= row["spread"][1]
    timed = {item["name"] for item in result["estimators"]}
    assert timed == {item.name for item in entries() if item.kind != "redistribute"}


def test_bench_missing_peer_is_skipped_with_its_reason(monkeypatch):
    real = importlib.import_module

    def without_torchrl(name, *rest):
        if name.startswith("torchrl"):
            raise ImportError("No module named 'torchrl'")
        return real(name, *rest)

    monkeypatch.setattr(advantage.importlib, "import_module", without_torchrl)
    skipped = {}
    rows = advantage._peers(16, 4, "numpy", 1, skipped)
    assert skipped["torchrl"] == "No module named 'torchrl'"
    assert "torchrl" not in {row["peer"] for row in rows}
