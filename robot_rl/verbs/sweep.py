"""Many runs at once on Ray, on this machine or a cluster: one process per trial, resumed where a machine was lost."""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from robot_rl import child
from robot_rl.checkpoint import write_json
from robot_rl.curves import LEAST, Line, over_seeds, plot
from robot_rl.extras import require
from robot_rl.loops.cluster import start
from robot_rl.track import METRICS_FILE, read_metrics
from robot_rl.types import Options
from robot_rl.types.options import NotNegative, Positive, Whole
from robot_rl.verbs import answer
from robot_rl.verbs.items import names_code, split_values
from robot_rl.verbs.option_rows import words_page
from robot_rl.verbs.reading import read_words
from robot_rl.words import Refused

VERBS = ("train", "offline")


class SweepOptions(Options):
    """robot-rl sweep, with two dashes each."""

    folder: str | None = None
    """Of the sweep (null: runs/sweeps/<date>); given again, finished trials are kept and interrupted ones resumed."""
    cpus: Positive = 1
    """Processors per trial."""
    gpus: NotNegative = 0
    """Devices per trial, also 0.5."""
    retries: Whole = 2
    """How often a trial is begun again when its machine is lost."""


@dataclass(frozen=True)
class SweepTrial:
    """One run of a sweep.

    Attributes:
        name: of its folder, from the values that differ between trials.
        arguments: key=value, without commas to choose from.
    """

    name: str
    arguments: tuple[str, ...]


def trials(arguments: list[str]) -> list[SweepTrial]:
    """Every combination of the comma-separated values.

    Args:
        arguments: key=value or key=a,b,c; commas inside of brackets, braces and quotes do not separate.

    Raises:
        Refused: an argument that is no key=value, a key twice, or two trials that would have one folder.
    """
    keys, choices = [], []
    for item in arguments:
        key, equals, value = item.partition("=")
        if not equals or not key:
            raise Refused(f"'{item}' is no key=value; expected e.g. seed=0,1,2 or policy=online/sac,online/ppo")
        if key in keys:
            raise Refused(f"'{key}' is given twice; give its values in one argument: {key}=a,b")
        keys.append(key)
        choices.append(split_values(value))
    many = [i for i, values in enumerate(choices) if len(values) > 1]
    found = []
    for combination in itertools.product(*choices):
        pairs = [f"{key}={value}" for key, value in zip(keys, combination)]
        name = re.sub(r"[^\w.=-]+", "-", "_".join(pairs[i] for i in many)) or "only"
        found.append(SweepTrial(name, tuple(pairs)))
    names = [trial.name for trial in found]
    if alike := next((name for name in names if names.count(name) > 1), None):
        raise Refused(f"two trials of this sweep would lie in one folder, {alike}: give every value once")
    return found


def claim_folders(folder: Path, verb: str, wanted: list[SweepTrial]) -> None:
    """Say in each trial's folder what it is, before anything runs.

    Raises:
        Refused: a trial of that name lies there whose words were others: what it found would pass for this one's.
    """
    owns = {folder / trial.name / "trial.json": [verb, *sorted(trial.arguments)] for trial in wanted}
    for file, own in owns.items():  # all are looked at before one is written
        before = json.loads(file.read_text()) if file.is_file() else own
        if before != own:
            was, now = (" ".join(word for word in a if word not in b) for a, b in ((before, own), (own, before)))
            raise Refused(
                f"{file.parent} holds a trial with {was or 'fewer words'}, not {now}; give --folder=<another>"
            )
    for file, own in owns.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        write_json(file, own)


def run_trial(verb: str, trial: SweepTrial, folder: str, variables: dict[str, str]) -> dict[str, object]:
    """Run one trial in a process of its own, or what is left of it; returns its summary.

    A trial that has finished is not run again, one that was interrupted is resumed from its newest checkpoint.

    Raises:
        RuntimeError: the run failed; the message holds the end of its log.
    """
    place = Path(folder) / trial.name
    done = sorted(place.glob(f"{verb}/*/evaluation.json"))
    if not done:
        begun = sorted(path.parent for path in place.glob(f"{verb}/*/checkpoints") if any(path.glob("step_*")))
        # whoever began the sweep named the code that its runs do
        trust = ["trust=true"] if any(map(names_code, trial.arguments)) else []
        arguments = [f"resume={begun[-1]}", *trust] if begun else [*trial.arguments, f"output={place}"]
        place.mkdir(parents=True, exist_ok=True)
        with (place / "log.txt").open("ab") as log:
            code = subprocess.run(
                child.command("robot_rl", verb, *arguments),
                env={**os.environ, **variables},
                stdout=log,
                stderr=subprocess.STDOUT,
            ).returncode
        done = sorted(place.glob(f"{verb}/*/evaluation.json"))
        if code or not done:
            end = (place / "log.txt").read_text(errors="replace").strip()[-800:]
            raise RuntimeError(f"trial {trial.name} ended with code {code}; the end of {place / 'log.txt'}:\n{end}")
    summary = json.loads(done[-1].read_text())
    return {"trial": trial.name, "folder": str(done[-1].parent), **{k: v for k, v in summary.items() if _plain(v)}}


def run(
    verb: str,
    arguments: list[str],
    folder: Path,
    options: SweepOptions,
    *,
    on_done: Callable[[dict[str, Any]], object] = lambda _: None,
) -> list[dict[str, Any]]:
    """Run all trials, as many at once as the cluster has room for.

    Args:
        verb: "train" or "offline".
        arguments: see `trials`.
        folder: of the sweep, on a file system that all machines share; given again, only what is missing is run.
        options: what a trial needs of a machine; their folder is not read.
        on_done: called with every result.

    Returns:
        One row per trial: its summary, or its name and "error".

    Raises:
        ImportError: Ray is not installed.
        Refused: a verb or an argument that a sweep cannot run, or a folder that holds other trials of these names.
    """
    wanted = trials(arguments)
    ray = require("ray")
    claim_folders(folder, verb, wanted)
    own = start(ray, 1)
    variables = {"OMP_NUM_THREADS": str(max(int(options.cpus), 1))}
    if "RAY_ADDRESS" not in os.environ:
        variables["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    settings = {"num_cpus": options.cpus, "num_gpus": options.gpus, "max_retries": options.retries}
    remote = ray.remote(**settings)(run_trial)
    home = str(folder.absolute())
    waiting = {remote.remote(verb, trial, home, variables): trial for trial in wanted}
    results: list[dict[str, Any]] = []
    try:
        while waiting:
            (reference,), _ = ray.wait(list(waiting), num_returns=1)
            trial = waiting.pop(reference)
            try:
                row = ray.get(reference)
            except ray.exceptions.RayTaskError as error:  # one failed trial does not end the others
                row = {"trial": trial.name, "error": str(error.cause).strip()}
            except Exception as error:
                row = {"trial": trial.name, "error": str(error).strip()}
            results.append(row)
            write_json(folder / "sweep.json", {"verb": verb, "arguments": arguments, "rows": results})
            on_done(row)
    finally:
        if own:
            ray.shutdown()
    order = {trial.name: i for i, trial in enumerate(wanted)}
    return sorted(results, key=lambda row: order[row["trial"]])


def _plain(value: object) -> bool:
    return isinstance(value, (int, float, str)) and not isinstance(value, bool)


USAGE = """robot-rl sweep <train|offline> key=a,b,c [key=value ...] [options]    every combination, many at once

$OPTIONS

Runs on this machine, or on the cluster that RAY_ADDRESS names. Needs Ray: pip install "robot_rl[cluster]".
Example: robot-rl sweep train env=reach policy=online/sac,online/ppo seed=0,1,2 total_steps=20000"""


@answer.code_of
def sweep(arguments: list[str]) -> int:
    """Run a sweep from the command line; returns the exit code."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(words_page(USAGE, SweepOptions))
        return 0
    if arguments[0] not in VERBS:
        raise Refused(f"a sweep is of train or offline, not of '{arguments[0]}': robot-rl sweep train seed=0,1,2")
    options = read_words(SweepOptions, [item[2:] for item in arguments if item.startswith("--")], "sweep")
    folder = Path(options.folder or f"runs/sweeps/{datetime.now():%Y-%m-%d_%H-%M-%S}")
    answer.note(folder=str(folder))
    plain = [item for item in arguments[1:] if not item.startswith("--")]
    print(f"sweep folder: {folder}   {len(trials(plain))} trials")
    rows = run(arguments[0], plain, folder, options, on_done=lambda row: print(_line(row), flush=True))
    words = {trial.name: trial.arguments for trial in trials(plain)}
    conclude({Path(row["folder"]): words[row["trial"]] for row in rows if "error" not in row}, folder)
    failed = sum("error" in row for row in rows)
    answer.note(trials=rows)
    print(f"{len(rows) - failed} of {len(rows)} trials done; numbers: {folder / 'sweep.json'}")
    return 1 if failed else 0


def _line(row: dict[str, Any]) -> str:
    if "error" in row:
        return f"  {row['trial']}  failed: {row['error'].splitlines()[0] if row['error'] else 'no message'}"
    numbers = [f"{key} {row[key]:.4g}" for key in ("return", "success") if isinstance(row.get(key), (int, float))]
    return f"  {row['trial']}  {'  '.join(numbers)}  {row['folder']}"


PANELS = {"return": ("eval/return", "rollout/return"), "success": ("eval/success", "rollout/success")}
"""Title -> where its curve is read, the first that has two points."""


def groups(runs: Mapping[Path, Sequence[str]]) -> dict[str, list[Path]]:
    """Run folders by what differs between them.

    Args:
        runs: folder of each run -> its words, key=value.

    Returns:
        Name -> folders of its seeds; the name is every key=value that is not the same for all runs, seed left out.
    """
    words = {folder: dict(word.split("=", 1) for word in items if "=" in word) for folder, items in runs.items()}
    keys = sorted({key for options in words.values() for key in options} - {"seed"})
    differ = [key for key in keys if len({options.get(key) for options in words.values()}) > 1]
    found: dict[str, list[Path]] = {}
    for folder, options in words.items():
        name = "  ".join(f"{key}={options[key]}" for key in differ if key in options)
        found.setdefault(name or ("as given" if differ else "all runs"), []).append(folder)
    return found


def table(named: Mapping[str, Sequence[Path]]) -> list[str]:
    """A line for each name: the evaluation at the end over its seeds."""
    lines = []
    for name, folders in named.items():
        ends = [json.loads(path.read_text()) for folder in folders if (path := folder / "evaluation.json").is_file()]
        parts = []
        for what in PANELS:
            values = [float(end[what]) for end in ends if isinstance(end.get(what), (int, float))]
            if values and (what == "return" or any(values)):
                found = over_seeds(values)
                spread = f" [{found.low:.4g}, {found.high:.4g}]" if len(values) >= LEAST else ""
                parts.append(f"{what} {found.value:.4g}{spread}")
        lines.append(f"  {name}   {'   '.join(parts) or 'no evaluation'}   {len(ends)} seed{'s' * (len(ends) != 1)}")
    return lines


def draw(named: Mapping[str, Sequence[Path]], path: Path) -> Path | None:
    """Write a PNG of returns, and of successes where there are any.

    Args:
        named: see `groups`.
        path: of the picture.

    Returns:
        The path, or None where no run has a curve.

    Raises:
        ImportError: matplotlib is not installed.
    """
    rows = {name: [read_metrics(folder / METRICS_FILE) for folder in folders] for name, folders in named.items()}
    panels: dict[str, dict[str, list[Line]]] = {}
    for title, metrics in PANELS.items():
        curves = {name: [_curve(run, metrics) for run in runs] for name, runs in rows.items()}
        found = {name: lines for name, each in curves.items() if (lines := [line for line in each if line])}
        if found and (title == "return" or any(max(line[1]) > 0.0 for lines in found.values() for line in lines)):
            panels[title] = found
    return plot(path, panels, x="steps", y="")


def _curve(rows: Sequence[Mapping[str, float]], names: Sequence[str]) -> Line | None:
    for name in names:
        points = {int(row["step"]): float(row[name]) for row in rows if row.get(name) is not None}
        if len(points) > 1:
            return list(points), list(points.values())
    return None


def conclude(runs: Mapping[Path, Sequence[str]], folder: Path) -> None:
    """Print the table of several runs and draw their curves into a folder; one run alone has its own curve."""
    if len(runs) < 2:
        return
    named = groups(runs)
    print("over seeds (interquartile mean, 95 % interval):", *table(named), sep="\n")
    try:
        picture = draw(named, folder / "sweep.png")
    except ImportError as error:
        print(f"no curves: {error}")
    else:
        print(f"curves: {picture or 'no run has any'}")
