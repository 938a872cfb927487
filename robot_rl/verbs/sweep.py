"""The verb sweep: combinations of values, run at once."""

from __future__ import annotations

import sys
from datetime import datetime
from pathlib import Path
from typing import Any

from robot_rl.verbs import answer
from robot_rl.verbs.compose import read_words
from robot_rl.verbs.options import SweepOptions
from robot_rl.words import Refused

USAGE = """robot-rl sweep <train|offline> key=a,b,c [key=value ...] [options]    every combination, many at once

  --folder=<path>   of the sweep; given again, finished trials are kept and interrupted ones resumed
                    (default runs/sweeps/<date>; on a cluster: on a file system that all machines share)
  --cpus=1          processors per trial
  --gpus=0          devices per trial, also 0.5
  --retries=2       how often a trial is begun again when its machine is lost

Runs on this machine, or on the cluster that RAY_ADDRESS names. Needs Ray: pip install "robot_rl[cluster]".
Example: robot-rl sweep train env=reach policy=online/sac,online/ppo seed=0,1,2 total_steps=20000"""


def sweep(arguments: list[str]) -> int:
    """Run a sweep from the command line; returns the exit code."""
    from robot_rl.jobs import sweep as job

    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE)
        return 0
    folder = Path(f"runs/sweeps/{datetime.now():%Y-%m-%d_%H-%M-%S}")
    try:
        if arguments[0] not in ("train", "offline"):
            raise Refused(f"a sweep is of train or offline, not of '{arguments[0]}': robot-rl sweep train seed=0,1,2")
        given = [item[2:] for item in arguments if item.startswith("--")]
        options = read_words(SweepOptions, given, "sweep")
        folder = Path(options.folder or folder)
        plain = [item for item in arguments[1:] if not item.startswith("--")]
        count = len(job.trials(plain))
        print(f"sweep folder: {folder}   {count} trials")
        rows = job.run(
            arguments[0],
            plain,
            folder,
            cpus=options.cpus,
            gpus=options.gpus,
            retries=options.retries,
            on_done=lambda row: print(_line(row), flush=True),
        )
    except (Refused, ValueError) as error:
        answer.error(str(error))
        return 2
    except ImportError as error:
        answer.error(str(error))
        return 1
    except KeyboardInterrupt:
        print(f"\ninterrupted; continue with the same command and --folder={folder}", file=sys.stderr)
        return 130
    failed = sum("error" in row for row in rows)
    answer.note(folder=str(folder), trials=rows)
    print(f"{len(rows) - failed} of {len(rows)} trials done; numbers: {folder / 'sweep.json'}")
    return 1 if failed else 0


def _line(row: dict[str, Any]) -> str:
    if "error" in row:
        return f"  {row['trial']}  failed: {row['error'].splitlines()[0] if row['error'] else 'no message'}"
    numbers = [f"{key} {row[key]:.4g}" for key in ("return", "success") if isinstance(row.get(key), (int, float))]
    return f"  {row['trial']}  {'  '.join(numbers)}  {row['folder']}"
