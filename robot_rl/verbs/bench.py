"""The verb bench: measure ours against peers, from a checkout."""

from __future__ import annotations

import inspect
import os
import sys
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from robot_rl.extras import require_foreign
from robot_rl.report import versions
from robot_rl.verbs import answer
from robot_rl.verbs.build import run_folder
from robot_rl.verbs.options import VerbOptions
from robot_rl.words import Refused, near

SUITES = Path(__file__).resolve().parents[2] / "benchmarks"
"""Beside the package in a checkout; the wheel has none."""
FROM_CHECKOUT = "the benchmarks are not part of an installed robot_rl: run robot-rl bench from a checkout of it"
RESUMABLE = (
    *("learning", "language", "advantage_learning", "offline_scores", "pendulum", "decision_interval"),
    *("closed_loop", "iwocs_deep", "her", "recurrent"),
)
"""Suites with one result file per run in the folder `out`; given again, they continue."""


class BenchOptions(VerbOptions):
    """robot-rl bench."""

    suite: str
    """See the list of suites."""
    quick: bool = False
    """Fewer repetitions, for a look."""


def bench(cfg: DictConfig) -> None:
    """Run one suite, print its table, write its JSON."""
    if not (SUITES / "harness.py").is_file():  # a package of that name may lie beside an installed one
        raise Refused(FROM_CHECKOUT)
    suites = [path.stem for path in sorted(SUITES.glob("*.py")) if "\ndef run(" in path.read_text("utf-8")]
    if cfg.suite not in suites:
        raise Refused(f"there is no suite '{cfg.suite}'{near(str(cfg.suite), suites)} (robot-rl bench --help)")
    root = str(SUITES.parent)
    sys.path.insert(0, root)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))  # for its processes
    report = require_foreign("benchmarks.report", FROM_CHECKOUT)
    run = require_foreign(f"benchmarks.{cfg.suite}", FROM_CHECKOUT).run
    known = {"suite", "quick", "debug", "trust", "name", "output"}
    plain: Any = OmegaConf.to_object(cfg)
    given = {key: value for key, value in plain.items() if key not in known}
    extra: dict[str, object] = {key: tuple(value) if isinstance(value, list) else value for key, value in given.items()}
    folder = run_folder(cfg, "bench", str(cfg.suite))
    if cfg.suite in RESUMABLE:
        extra.setdefault("out", str(folder / "runs"))
    if cfg.suite != "learning":
        extra["quick"] = bool(cfg.quick)
    try:
        inspect.signature(run).bind(**extra)
    except TypeError as error:
        takes = [name for name in inspect.signature(run).parameters if name not in ("quick", "out")]
        given = "out" in inspect.signature(run).parameters and cfg.suite not in RESUMABLE
        names = ", ".join(f"+{name}=" for name in [*(["out"] if given else []), *takes])
        raise Refused(f"bench {cfg.suite}: {error}; it takes {names or 'no options'}") from error
    result = run(**extra)
    answer.note(result=result)
    print(report.table(result))
    path = report.write(folder, str(cfg.suite), result, versions())
    answer.note(numbers=str(path))
    print(f"numbers: {path}")
