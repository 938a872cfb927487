"""The verb bench: measure ours against peers."""

from __future__ import annotations

import importlib
import inspect
from importlib import resources
from typing import Any

from omegaconf import DictConfig, OmegaConf

from robot_rl.bench import report as bench_report
from robot_rl.report import versions
from robot_rl.verbs import answer
from robot_rl.verbs.build import run_folder
from robot_rl.verbs.options import VerbOptions
from robot_rl.words import Refused, near

RESUMABLE = (
    *("learning", "language", "advantage_learning", "offline_scores", "pendulum", "decision_interval"),
    *("closed_loop", "iwocs_deep"),
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

    folder_of_suites = resources.files("robot_rl.bench")
    files = [item for item in folder_of_suites.iterdir() if item.name.endswith(".py")]
    suites = [item.name.removesuffix(".py") for item in files if "\ndef run(" in item.read_text("utf-8")]
    if cfg.suite not in suites:
        raise Refused(f"there is no suite '{cfg.suite}'{near(str(cfg.suite), suites)} (robot-rl bench --help)")
    run = importlib.import_module(f"robot_rl.bench.{cfg.suite}").run
    known = {"suite", "quick", "debug", "trust", "name", "output"}
    plain: Any = OmegaConf.to_object(cfg)
    given = {key: value for key, value in plain.items() if key not in known}
    extra: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in given.items()}
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
    print(bench_report.table(result))
    path = bench_report.write(folder, str(cfg.suite), result, versions())
    answer.note(numbers=str(path))
    print(f"numbers: {path}")
