"""The pendulum's table: estimates are ordered against the twin's returns."""

import json
from pathlib import Path

from benchmarks.pendulum import summarise


def cell(folder: Path, policy: str, truth: float, fqe: float, mb: float) -> None:
    bounds = {name: {"value": v, "low": v - 1, "high": v + 1} for name, v in (("fqe", fqe), ("mb", mb))}
    found = {
        "robot": "acrobot",
        "policy": policy,
        "twin": {"0.0": {"return": truth, "success": 0.5}},
        "ope": {"estimates": bounds, "outside_support": 0.25},
    }
    (folder / f"acrobot_{policy}.json").write_text(json.dumps(found))


def test_rank_correlation_and_regret_by_hand(tmp_path: Path) -> None:
    for policy, truth, fqe, mb in (("a", 1.0, 10.0, 3.0), ("b", 2.0, 20.0, 2.0), ("c", 5.0, 30.0, 1.0)):
        cell(tmp_path, policy, truth, fqe, mb)
    rows = summarise(tmp_path)
    assert rows[0]["success@0.0"] == 0.5
    assert rows[0]["fqe"] == "10 [9, 11]"
    assert "order by fqe, twin@0.0: Spearman 1.00, regret 0" in rows[3]["policy"]
    assert "order by mb, twin@0.0: Spearman -1.00, regret 4" in rows[4]["policy"]
