"""The comparison of learning curves: variants stand side by side, and both sides are judged at the last step."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.learning import summarise


def result(seed: int, value: float) -> dict[str, Any]:
    return {"seed": seed, "curve": [{"return_mean": value}], "wall_s": 2.0, "cpu_s": 2.0}


def test_labels_with_an_underscore_are_rows_of_their_own(tmp_path: Path) -> None:
    for label, value in (("sb3", 1.0), ("ours", 2.0), ("ours_bf16", 3.0), ("ours_float32", 4.0)):
        (tmp_path / f"sac_{label}_Pendulum-v1_seed0.json").write_text(json.dumps(result(0, value)))
    rows = summarise(tmp_path, "sac", "Pendulum-v1")["rows"]
    assert {name: row["return_mean"] for name, row in rows.items()} == {
        "sb3": 1.0,
        "ours": 2.0,
        "ours_bf16": 3.0,
        "ours_float32": 4.0,
    }


def test_the_peer_is_judged_at_its_last_step_too(tmp_path: Path) -> None:
    pytest.importorskip("stable_baselines3")
    from benchmarks.learning_peer import main

    job = {"algorithm": "sac", "env_id": "Pendulum-v1", "steps": 50, "seed": 0, "threads": 1, "every": 20}
    main({**job, "episodes": 1, "out": str(tmp_path / "peer.json")})
    curve = json.loads((tmp_path / "peer.json").read_text())["curve"]
    assert [row["step"] for row in curve] == [20, 40, 50]
