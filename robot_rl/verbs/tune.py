"""Search for options with Optuna: a process per run, hopeless runs stopped early, resumed after any end."""

from __future__ import annotations

import fcntl
import json
import math
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import IntervalSweep, Override
from hydra.errors import HydraException

from robot_rl import child
from robot_rl.checkpoint import write_json
from robot_rl.extras import require
from robot_rl.interrupt import Interrupt
from robot_rl.track import METRICS_FILE, read_metrics
from robot_rl.types import Options
from robot_rl.types.options import Count, Whole
from robot_rl.verbs import answer
from robot_rl.verbs.items import names_code
from robot_rl.verbs.option_rows import words_page
from robot_rl.verbs.reading import read_words
from robot_rl.verbs.tune_plot import draw
from robot_rl.words import Refused

if TYPE_CHECKING:
    from optuna import Study, Trial
    from optuna.samplers import BaseSampler
    from optuna.trial import BaseTrial, FrozenTrial, TrialState

VERBS = ("train", "offline")
PATIENCE = 120.0
"""Seconds that a run has to save and end after it was asked to."""
AGAIN = "taken up again"
"""The error of a trial that an earlier call left unfinished: another trial goes on with its folder."""


class TuneOptions(Options):
    """robot-rl tune, with two dashes each."""

    trials: Count = 20
    """Sets of options to try, those of earlier calls with the same folder counted."""
    seeds: Count = 1
    """Runs of each set, with seed=0, 1, …; the mean over them counts, and a set is dropped by its first run alone."""
    at_once: Count = 1
    """Runs side by side."""
    metric: Literal["return", "success"] = "return"
    """What is maximised, of the evaluation at the end; on the way what eval_every measures."""
    sampler: Literal["tpe", "random"] = "tpe"
    """Who proposes: a tree-structured Parzen estimator (Bergstra et al. 2011), or chance."""
    pruner: Literal["median", "hyperband", "none"] = "median"
    """Which runs are stopped early: those below the median of the earlier ones at the same step, or by Hyperband (Li et
    al. 2018)."""
    startup: Whole = 5
    """Sets that are drawn by chance and not dropped, before sampler and pruner begin."""
    seed: Whole = 0
    """Of the sampler."""
    folder: str | None = None
    """Of the search (null: runs/tune/<date>); given again, it goes on."""


@dataclass(frozen=True)
class Space:
    """What is fixed and what is searched.

    Attributes:
        verb: "train" or "offline".
        words: key=value, as they were given.
        fixed: those of `words` that are the same for all.
        searched: key -> what Hydra's grammar says of its values.
    """

    verb: str
    words: tuple[str, ...]
    fixed: tuple[str, ...]
    searched: dict[str, Override]

    def ask(self, trial: BaseTrial) -> tuple[str, ...]:
        """Words of one set of options, proposed by the trial of a study."""
        return tuple(f"{key}={self._suggest(trial, key, override)}" for key, override in self.searched.items())

    def _suggest(self, trial: BaseTrial, key: str, override: Override) -> object:
        value = override.value()
        if not isinstance(value, IntervalSweep):
            return trial.suggest_categorical(key, list(override.sweep_string_iterator()))
        low, high, log = value.start, value.end, "log" in value.tags
        assert low is not None  # `read_space` asks for both
        assert high is not None
        if isinstance(low, int) and isinstance(high, int):
            return trial.suggest_int(key, low, high, log=log)
        return f"{trial.suggest_float(key, low, high, log=log):.6g}"


def read_space(words: Sequence[str]) -> Space:
    """The space that a command line names, in the words of Hydra's grammar for sweeps.

    Args:
        words: the verb, then key=value; `interval(a,b)`, `int(interval(a,b))`, `tag(log,interval(a,b))`,
            `choice(a,b)`, `range(a,b)` or `a,b` where a key is searched.

    Raises:
        Refused: another verb, a word that cannot be read, or nothing to search.
    """
    if not words or words[0] not in VERBS:
        raise Refused(f"a search is of train or offline, not of '{words[0] if words else ''}': robot-rl tune train …")
    parser, fixed, searched = OverridesParser.create(), [], {}
    for word in words[1:]:
        try:
            override = parser.parse_override(word)
        except HydraException as error:
            raise Refused(f"'{word}' cannot be read: {str(error).splitlines()[0]}") from None
        key = override.get_key_element().lstrip("+")
        if key in ("resume", "output", "name"):
            raise Refused(f"{key} belongs to a single run; every run of a search has a folder of its own")
        if not override.is_sweep_override():
            fixed.append(word)
            continue
        value = override.value()
        if isinstance(value, IntervalSweep):
            low, high = value.start, value.end
            if low is None or high is None or low >= high:
                raise Refused(f"'{word}': the first end is not below the second")
            if "log" in value.tags and low <= 0:
                raise Refused(f"'{word}' is searched on a logarithmic scale, so its ends have to be above 0")
        searched[key] = override
    if not searched:
        raise Refused(
            "nothing is searched; give a key several values, such as 'policy.lr=tag(log,interval(1e-4,1e-2))', "
            "'policy.batch_size=choice(64,256)' or 'policy.utd=range(1,5)' (in quotes: the shell reads brackets)"
        )
    return Space(words[0], tuple(words[1:]), tuple(fixed), searched)


@dataclass
class OptionCandidate:
    """One set of options on its way.

    Attributes:
        trial: of the study.
        words: of its options.
        place: folder of its runs.
        seeds: how many runs it has.
        values: of the runs that are done.
        told: step of the last evaluation that the study knows.
    """

    trial: Trial
    words: tuple[str, ...]
    place: Path
    seeds: int
    values: list[float] = field(default_factory=list)
    told: int = -1
    process: subprocess.Popen[bytes] | None = None

    @property
    def home(self) -> Path:
        """Folder of the present run."""
        return self.place / f"seed={len(self.values)}" if self.seeds > 1 else self.place

    def run_folder(self, verb: str) -> Path | None:
        """Where the present run writes, once it does: the newest, as one killed early begins anew beside it."""
        return max(self.home.glob(f"{verb}/*/"), default=None)

    def start(self, space: Space, variables: dict[str, str]) -> None:
        """Begin the present run, or go on with what is there of it.

        A call that was killed leaves its run alone in the world: while that one lives, nothing is started here.
        """
        self.process = None
        self.home.mkdir(parents=True, exist_ok=True)
        with (self.home / "log.txt").open("ab") as log:
            try:
                fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the run inherits it and holds it until it ends
            except BlockingIOError:
                return
            except OSError:  # a file system without locks keeps no two calls apart
                pass
            made = self.run_folder(space.verb)
            if made is not None and any(made.glob("checkpoints/step_*")):
                words = (f"resume={made}",)
                if any(map(names_code, (*space.fixed, *self.words))):  # this command names the code that the run does
                    words += ("trust=true",)
            else:
                seed = (f"seed={len(self.values)}",) if self.seeds > 1 else ()
                words = (*space.fixed, *self.words, *seed, f"output={self.home}")
            self.process = subprocess.Popen(
                child.command("robot_rl", space.verb, *words),
                env={**os.environ, **variables},
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is ours to hand on, once
            )

    def stop(self) -> None:
        """Ask the run to save and end, and wait for it."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    def tell(self, verb: str, metric: str) -> None:
        """Report the evaluations that came since the last call."""
        made = self.run_folder(verb)
        if made is None or self.values or not (made / METRICS_FILE).exists():
            return
        for row in read_metrics(made / METRICS_FILE):
            value = row.get(f"eval/{metric}")
            if value is not None and row["step"] > self.told:
                self.told = int(row["step"])
                self.trial.report(float(value), self.told)

    def last_words(self) -> str:
        """The end of what its run has said."""
        lines = (self.home / "log.txt").read_text(errors="replace").strip().splitlines()
        said = [line.partition("robot-rl: ")[2] for line in lines if "robot-rl: " in line]  # also behind a progress bar
        return " ".join(said[-1:] or lines[-1:])


class OptionSearch:
    """A search in one folder.

    Args:
        space: what is searched.
        options: how.
        folder: of the search; its study is kept there, and what was begun is finished.
        on_done: called with a row for every set of options that is finished, dropped or failed.

    Raises:
        ImportError: Optuna is not installed.
        Refused: the folder holds the search of another command line.
    """

    def __init__(
        self, space: Space, options: TuneOptions, folder: Path, on_done: Callable[[dict[str, object]], object]
    ) -> None:
        self.space, self.options, self.folder, self.on_done = space, options, folder, on_done
        optuna = require("optuna")
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.states: type[TrialState] = optuna.trial.TrialState
        folder.mkdir(parents=True, exist_ok=True)
        backend = optuna.storages.journal.JournalFileBackend(str(folder / "study.journal"))
        startup = options.startup
        samplers = {
            "tpe": lambda seed: optuna.samplers.TPESampler(n_startup_trials=startup, seed=seed),
            "random": lambda seed: optuna.samplers.RandomSampler(seed=seed),
        }
        self.sampler: Callable[[int], BaseSampler] = samplers[options.sampler]
        pruners = {
            "median": lambda: optuna.pruners.MedianPruner(n_startup_trials=startup),
            "hyperband": optuna.pruners.HyperbandPruner,
            "none": optuna.pruners.NopPruner,
        }
        self.study: Study = optuna.create_study(
            storage=optuna.storages.JournalStorage(backend),
            study_name="search",
            direction="maximize",
            pruner=pruners[options.pruner](),
            load_if_exists=True,
        )
        line = {"verb": space.verb, "words": sorted(space.words), "metric": options.metric, "seeds": options.seeds}
        before = self.study.user_attrs.get("line")
        if before not in (None, line):
            raise Refused(f"{folder} holds another search, {json.dumps(before)}; give --folder=<another>")
        self.study.set_user_attr("line", line)
        self.variables = {}
        if options.at_once > 1:
            self.variables["OMP_NUM_THREADS"] = str(max((os.cpu_count() or 1) // options.at_once, 1))

    def run(self) -> list[dict[str, Any]]:
        """Try until there are as many trials as wanted; one row each, the best first.

        Raises:
            Refused: the first run of this call does not accept its options.
            KeyboardInterrupt: after the runs have saved.
        """
        self._take_up()
        running: list[OptionCandidate] = []
        proven = False  # that runs accept what is fixed
        try:
            with Interrupt() as interrupt:  # SIGTERM too, and where a shell's background job is deaf to SIGINT
                while not interrupt.asked:
                    while len(running) < self.options.at_once and self._has_left(len(running)):
                        running.append(self._begin())
                    if not running:
                        break
                    time.sleep(0.2)
                    for candidate in list(running):
                        if self._advance(candidate, proven):
                            running.remove(candidate)
                            proven = True
            if interrupt.asked:
                raise KeyboardInterrupt
        finally:
            for candidate in running:
                candidate.stop()
            rows = self.rows()
            write_json(self.folder / "tune.json", {**self.study.user_attrs["line"], "rows": rows})
        return rows

    def rows(self) -> list[dict[str, Any]]:
        """One per set of options that was tried, the best first, those without a value last."""
        rows = [self._row(trial) for trial in self.study.trials if trial.state.is_finished()]
        rows = [row for row in rows if row["error"] != AGAIN]
        return sorted(rows, key=lambda row: (row["value"] is None, -(row["value"] or 0.0)))

    def _take_up(self) -> None:
        """What an earlier call left running is asked for again, with its folder."""
        for trial in self.study.trials:
            if trial.state == self.states.RUNNING:
                self.study.tell(trial.number, state=self.states.FAIL)
                if "place" in trial.user_attrs:  # else its options were not all proposed yet
                    kept = {key: trial.user_attrs[key] for key in ("number", "place")}
                    self.study.enqueue_trial(trial.params, user_attrs=kept)

    def _has_left(self, running: int) -> bool:
        done = {self.states.COMPLETE, self.states.PRUNED}
        counted = [t for t in self.study.trials if t.state in done or t.user_attrs.get("error")]
        return len(counted) + running < self.options.trials

    def _begin(self) -> OptionCandidate:
        number = len({t.user_attrs["number"] for t in self.study.trials if "place" in t.user_attrs})
        # its own numbers for every set: one generator, begun anew by each call, would propose the first ones again
        state = np.random.SeedSequence([self.options.seed, number]).generate_state(1)
        self.study.sampler = self.sampler(int(state[0]))
        trial = self.study.ask()
        number = trial.user_attrs.get("number", number)
        trial.set_user_attr("number", number)
        words = self.space.ask(trial)
        place = Path(trial.user_attrs.get("place") or self.folder / f"trial_{number:03d}")
        trial.set_user_attr("place", str(place))
        trial.set_user_attr("words", list(words))
        candidate = OptionCandidate(trial, words, place, self.options.seeds)
        candidate.start(self.space, self.variables)
        return candidate

    def _advance(self, candidate: OptionCandidate, proven: bool) -> bool:
        """Look after a trial; whether it has ended."""
        candidate.tell(self.space.verb, self.options.metric)
        if candidate.process is None:
            candidate.start(self.space, self.variables)
            return False
        code = candidate.process.poll()
        if code is None:
            if not candidate.values and candidate.trial.should_prune():
                candidate.stop()
                return self._end(candidate, self.states.PRUNED)
            return False
        value = self._value(candidate) if code == 0 else None
        if value is None:
            said = candidate.last_words()
            if code == 2 and not proven:
                self.study.tell(candidate.trial, state=self.states.FAIL)
                raise Refused(said)
            candidate.trial.set_user_attr("error", said)
            return self._end(candidate, self.states.FAIL)
        candidate.values.append(value)
        if len(candidate.values) < candidate.seeds:
            candidate.start(self.space, self.variables)
            return False
        return self._end(candidate, self.states.COMPLETE)

    def _value(self, candidate: OptionCandidate) -> float | None:
        """What the run's final evaluation says."""
        made = candidate.run_folder(self.space.verb)
        if made is None or not (made / "evaluation.json").exists():
            return None
        value = json.loads((made / "evaluation.json").read_text()).get(self.options.metric)
        if value is None:
            raise Refused(f"the evaluation at the end of {made} has no {self.options.metric}; set --metric")
        return float(value) if math.isfinite(value) else None

    def _end(self, candidate: OptionCandidate, state: TrialState) -> bool:
        complete = state == self.states.COMPLETE
        mean = sum(candidate.values) / len(candidate.values) if complete else None
        self.study.tell(candidate.trial, mean, state=None if complete else state)
        rows = {row["trial"]: row for row in self.rows()}
        self.on_done(rows[candidate.trial.user_attrs["number"]])
        return True

    def _row(self, trial: FrozenTrial) -> dict[str, object]:
        curve = sorted(trial.intermediate_values.items())
        return {
            "trial": trial.user_attrs.get("number", trial.number),
            "state": {"COMPLETE": "complete", "PRUNED": "dropped", "FAIL": "failed"}[trial.state.name],
            "value": trial.value if trial.state == self.states.COMPLETE else None,
            "curve": [[step, value] for step, value in curve],
            "params": trial.params,
            "words": trial.user_attrs.get("words", []),
            "folder": trial.user_attrs.get("place", ""),
            "error": trial.user_attrs.get("error", AGAIN if trial.state == self.states.FAIL else ""),
        }


USAGE = """robot-rl tune <train|offline> key=value ... key=<values> ... [options]    search for options with Optuna

  policy.lr=tag(log,interval(1e-4,1e-2))   a number between two, on a logarithmic scale
  policy.tau=interval(0.001,0.05)          a number between two
  policy.utd=int(interval(1,8))            a whole number between two
  policy.batch_size=choice(64,256)         one of these; policy.batch_size=64,256 is the same

$OPTIONS

Needs Optuna: pip install "robot_rl[tune]". Quotes keep the shell from reading brackets.
Example: robot-rl tune train env=pendulum policy=online/sac total_steps=3000 eval_every=1000 \\
           'policy.lr=tag(log,interval(1e-4,1e-2))' 'policy.tau=interval(0.002,0.05)' --trials=20"""


@answer.code_of
def tune(arguments: list[str]) -> int:
    """Search from the command line; returns the exit code."""
    if not arguments or {"-h", "--help"} & set(arguments):
        print(words_page(USAGE, TuneOptions))
        return 0
    options = read_words(TuneOptions, [item[2:] for item in arguments if item.startswith("--")], "tune")
    space = read_space([item for item in arguments if not item.startswith("--")])
    if options.seeds > 1 and any(word.startswith("seed=") for word in space.words):
        raise Refused("--seeds gives every set of options the seeds 0, 1, …; leave seed= out")
    folder = Path(options.folder or f"runs/tune/{datetime.now():%Y-%m-%d_%H-%M-%S}")
    answer.note(folder=str(folder))
    search = OptionSearch(space, options, folder, lambda row: print(_line(row), flush=True))
    print(f"search folder: {folder}   {options.trials} trials of {', '.join(space.searched)}", flush=True)
    rows = search.run()
    answer.note(trials=rows)
    best = next((row for row in rows if row["value"] is not None), None)
    if best is None:
        answer.error(f"no run came to its end; the first one said: {rows[0]['error']}")
        return 1
    try:
        print(f"pictures: {draw(rows, options.metric, folder / 'tune.png')}")
    except Exception as error:  # a picture never fails a search
        print(f"tune.png was not made: {error}", file=sys.stderr)
    print(f"best {options.metric}: {best['value']:.4g}, of trial {best['trial']}; the same options again:")
    print("  " + shlex.join(["robot-rl", space.verb, *space.fixed, *best["words"]]))
    return 0


def _line(row: dict[str, Any]) -> str:
    value = f"{row['value']:.4g}" if row["value"] is not None else row["state"]
    curve = f"at {row['curve'][-1][1]:.4g} after {row['curve'][-1][0]} steps" if row["state"] == "dropped" else ""
    return f"  {row['trial']:3d}  {value:>9}  {' '.join(row['words'])}  {curve or row['error']}".rstrip()
