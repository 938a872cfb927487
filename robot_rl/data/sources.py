"""What is wrong with a file of any format, said so that its owner can mend it; shared by the readers."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from robot_rl.data.findings import BadData, Finding, error, refusal, warning

LFS = b"version https://git-lfs"
AGAIN = "download or copy it again"


def check_file(path: Path) -> None:
    """Refuse what cannot be data before any library looks at it.

    Raises:
        FileNotFoundError: there is no such file.
        BadData: it is a folder, empty, or a Git LFS pointer.
    """
    if path.is_symlink() and not path.exists():
        raise FileNotFoundError(f"{path} is a link to {path.readlink()}, which does not exist")
    if not path.exists():
        near = difflib.get_close_matches(
            path.name, [p.name for p in path.parent.glob("*")] if path.parent.exists() else []
        )
        hint = f"; did you mean {', '.join(near)}?" if near else ""
        raise FileNotFoundError(f"{path} does not exist{hint}")
    if path.is_dir():
        raise refusal("folder", f"{path} is a folder, expected a file")
    size = path.stat().st_size
    if size == 0:
        raise refusal("empty_file", f"{path} is empty", AGAIN)
    with open(path, "rb") as file:
        if file.read(40).startswith(LFS):
            raise refusal("lfs_pointer", f"{path} is a Git LFS pointer ({size} bytes), not data: run git lfs pull")


def explain(path: Path, problem: Exception) -> BadData:
    """The HDF5 library's complaint as a sentence."""
    text = str(problem)
    cut = re.search(r"truncated file: eof = (\d+).*stored_eof = (\d+)", text)
    if cut:
        return refusal("cut_short", f"{path} is cut short: {int(cut[1]):,} of {int(cut[2]):,} bytes", AGAIN)
    if "signature not found" in text:
        repair = "name a D4RL, Minari or robomimic file, or another format"
        return refusal("not_hdf5", f"{path} is not an HDF5 file", repair)
    return refusal("unreadable", f"{path} cannot be read: {text}", AGAIN)


def unreadable_error(path: Path, key: str, problem: Exception) -> BadData:
    """A dataset that is listed but does not come out."""
    return refusal("damaged", f"{path}: key '{key}' cannot be read ({problem}); the file is damaged there", AGAIN)


def missing_key(path: Path, key: str, present: Iterable[str]) -> BadData:
    """A required key that is not there."""
    present = sorted(present)
    near = difflib.get_close_matches(key, present, n=1, cutoff=0.5)
    hint = f"did you mean '{near[0]}'?" if near else ""
    shown = ", ".join(present[:20]) + (" ..." if len(present) > 20 else "")
    message = f"{path}: key '{key}' is missing; the file has: {shown or 'nothing'}"
    return refusal("missing_key", message, hint, where=key)


def saturation(action: np.ndarray, name: str = "", *, declared: bool = False) -> list[Finding]:
    """Findings about actions (N, A) against [-1, 1]: a few slightly outside are warned of, many are an error.

    Args:
        action: the actions.
        name: of the environment, for the message.
        declared: -1 and +1 are bounds that somebody declared.
    """
    known = np.nan_to_num(action, posinf=0.0, neginf=0.0)
    size = np.abs(known)
    outside = size > 1.0 + 1e-6
    findings = []
    if outside.any():
        share, worst = outside.mean(), float(known.reshape(-1)[int(np.argmax(size))])
        why, repair = "logged before clipping, or in physical units", "simulators clip anyway) or action=rescale; "
        repair += "action_low=… action_high=… where they are in a robot's units and its range is known"
        if declared:
            why = "outside the declared range"
            repair = "robots clip anyway), or the right range: action_low=… action_high=…"
        part = f"{share:.0%} of {name + ' ' if name else ''}action" if share >= 0.01 else f"{share:.2%} of the action"
        text = f"{part} components lie outside [-1, 1], worst {worst:.3g}" + (f" ({why})" if share >= 0.01 else "")
        tell = warning if share < 0.01 and abs(worst) - 1.0 < 0.1 else error
        where = f"row {int(np.argwhere(outside)[0][0])}"
        findings.append(tell("action_bounds", text, f"action=clip ({repair}", count=int(outside.sum()), where=where))
    bound = np.abs(size - 1.0) < 1e-3
    whole = bool(len(action)) and bool((action == np.round(action)).all()) and bool(np.ptp(action))
    if bound.mean() > 0.5 or whole:
        text = f"{bound.mean():.0%} of the action components lie at the bounds: possibly saturated or discrete"
        text = "every action component is a whole number: possibly discrete" if whole else text
        findings.append(warning("action_discrete", text, "check what was logged as the action", count=int(bound.sum())))
    return findings
