"""What a verb answers: lines for people, and with --json one document on stdout, where all else goes to stderr."""

from __future__ import annotations

import errno
import json
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import asdict
from functools import wraps
from pathlib import Path
from typing import Any, NoReturn, Protocol, runtime_checkable

from tqdm import tqdm

from robot_rl import extras
from robot_rl.diagnosis import Cause
from robot_rl.stats import wilson
from robot_rl.words import Refused

_runs: list[dict[str, Any]] = []  # one of every run that this process did; a sweep does several
_write: list[Callable[[], None]] = []  # writes the document, where one is being made


def begin() -> None:
    """A verb, or the next run of a sweep, begins."""
    _runs.append({})


def note(**values: object) -> None:
    """Put values into the document; people see nothing of it."""
    if not _runs:
        begin()
    _runs[-1].update(values)


def table(rows: Mapping[str, object]) -> None:
    """Names and values in two columns, and in the document."""
    note(**rows)
    width = max((len(name) for name in rows), default=0)
    for name, value in rows.items():
        print(f"  {name:<{width}}  {value:.4g}" if isinstance(value, float) else f"  {name:<{width}}  {value}")


def findings(found: Sequence[Cause]) -> None:
    """What looks wrong in a run, the likeliest cause first; nothing where nothing was seen."""
    note(diagnosis=[asdict(finding) for finding in found])
    if found:
        print("what looks wrong, the likeliest cause first (docs/howto/why_it_does_not_learn.md):")
        print("\n".join(f"  {i}. {finding}" for i, finding in enumerate(found, 1)))


def run_folder_is(folder: Path) -> None:
    """Say where a run writes."""
    note(folder=str(folder))
    print(f"run folder: {folder}", flush=True)


def rate(won: int, count: int) -> str:
    """A share of successes with its interval."""
    low, high = wilson(won, count)
    return f"{won}/{count} = {won / count:.2f} (95 %: {low:.2f} to {high:.2f})"


@contextmanager
def bar(total: int, unit: str, what: str | None = None) -> Iterator[Callable[[int], None]]:
    """A bar on stderr, and who is told how many are done; fewer than before begin it anew."""
    with tqdm(total=total, desc=what, unit=unit, file=sys.stderr, dynamic_ncols=True) as shown:

        def tell(done: int) -> None:
            if done < shown.n:
                shown.reset()
            shown.update(done - shown.n)

        yield tell
        shown.total = shown.n  # there may have been fewer than at most


class Job(Protocol):
    """What a verb runs in a folder.

    Attributes:
        folder: of the run.
    """

    folder: Path

    def run(self) -> Any:
        """Do it all."""
        ...


def run(job: Job, verb: str) -> Any:
    """Say where a job writes and do it; after a Ctrl-C say how it goes on, and end with 130."""
    run_folder_is(job.folder)
    try:
        return job.run()
    except KeyboardInterrupt:
        leave_interrupted(verb, job.folder)


def say_how_to_continue(why: str, verb: str, folder: Path) -> None:
    """Say how a run that was stopped and saved goes on."""
    again = f"robot-rl {verb} resume={folder}{' trust=true' if extras.needs_trust() else ''}"
    note(**{"continue": again})
    print(f"\n{why} and saved; continue with: {again}")


def leave_interrupted(verb: str, folder: Path) -> NoReturn:
    """Say how a run goes on after a Ctrl-C, and end with 130."""
    note(interrupted=True)
    say_how_to_continue("interrupted", verb, folder)
    sys.exit(130)


def message_of(error: BaseException) -> str:
    """What an error says to the user."""
    text = str(error).strip()
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        where = f" ({error.filename})" if error.filename is not None else ""
        return (
            f"the disk is full{where}: free some space. What was written before is whole, and an interrupted run goes "
            "on with resume=<its folder>"
        )
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{error.filename}: {error.strerror.lower()}"
    if isinstance(error, OSError) and error.errno is None and text:
        return text
    return (
        text
        if isinstance(error, (Refused, ValueError, RuntimeError, ImportError)) and text
        else (f"{type(error).__name__}: {text or 'no message'} (add --debug for the traceback)")
    )


def code_of(work: Callable[[list[str]], int | None]) -> Callable[[list[str]], int]:
    """What is asked without a configuration, as a verb: its refusals and a Ctrl-C become words and an exit code."""

    @wraps(work)
    def verb(arguments: list[str]) -> int:
        try:
            return work(arguments) or 0
        except BrokenPipeError:  # robot-rl … | head, which `robot_rl.cli` hears of
            raise
        except (Refused, ValueError, OSError, RuntimeError, ImportError) as found:
            error(message_of(found))
            return 1 if isinstance(found, ImportError) else 2
        except KeyboardInterrupt:
            again = "" if folder() is None else f"; continue with the same command and --folder={folder()}"
            print(f"\ninterrupted{again}", file=sys.stderr)
            return 130

    return verb


def folder() -> Path | None:
    """Where the newest run of this process writes; None if it is no run."""
    return Path(_runs[-1]["folder"]) if _runs and "folder" in _runs[-1] else None


def error(text: str) -> None:
    """Say what was wrong, on stderr and in the document."""
    note(error=text)
    print(f"robot-rl: {text}", file=sys.stderr)


@contextmanager
def document(verb: str) -> Iterator[None]:
    """Everything that is printed inside goes to stderr; one JSON document follows on stdout, whatever happens."""
    _runs.clear()
    out = sys.stdout

    def write() -> None:
        found = [run for run in _runs if run]
        content = {"runs": found} if len(found) > 1 else dict(*found)
        json.dump(_plain({"verb": verb, **content}), out, indent=1, allow_nan=False, ensure_ascii=False)
        out.write("\n")
        out.flush()

    _write[:] = [write]
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        _write.pop()()


def leave() -> NoReturn:
    """End this process well, with its document, and at once.

    For processes that a person waits for: the interpreter's own end, with all that the command line has loaded, takes a
    second and more.
    """
    if _write:
        _write.pop()()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


@runtime_checkable
class _Numbers(Protocol):
    """Arrays and scalars of NumPy and torch."""

    def tolist(self) -> object: ...


def _plain(value: object) -> object:
    """What JSON has: arrays and scalars as numbers, what is not finite as null, everything else as text."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, _Numbers):
        return _plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)
