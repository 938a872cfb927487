"""Checkpoints: folders that appear whole or not at all, holding tensors and JSON only.

A checkpoint is a folder `step_000100000/` with a file for every part that has a state (`policy.pt`, `learner.pt`,
`loop.pt`; loadable with `weights_only=True`), a folder for every part that stores rows (`buffer/`), `io.json`,
`config.yaml` and `meta.json`. It is written beside its place, flushed to disk and renamed, so a process killed at any
moment leaves the previous one.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from types import NoneType
from typing import Any

import numpy as np
import torch

from robot_rl.atomic import sync_folder, write_bytes
from robot_rl.tables import TableError, read_table
from robot_rl.types import IOSpec
from robot_rl.version import VERSION

_TEMPORARY = ".partial-"
BEST = "best"
"""Name of the checkpoint with the best evaluation so far: policy and learner, nothing to resume from."""
CHOSEN = "chosen"
"""Lies beside it where it is what the run's folder stands for."""
EXPORTS = ("policy.onnx", "policy.yaml")
"""What exported folders hold instead of weights."""


class CheckpointError(RuntimeError):
    """A checkpoint could not be written or read; the message says why and what to do."""


class DoesNotFit(CheckpointError):
    """A whole checkpoint is not of what is to go on from it."""


def write_json(path: Path, value: object) -> None:
    """`write_bytes` of indented JSON, in which numbers may be NaN."""
    write_bytes(path, (json.dumps(value, indent=1, allow_nan=True) + "\n").encode())


_PLAIN = (bool, int, float, complex, str, bytes, torch.Tensor, torch.Size, torch.dtype, torch.device)


def check_state(state: object, name: str) -> None:
    """Refuse what `save_state` could not write, before anything is learned.

    Raises:
        TypeError: with the place of what is neither a tensor, nor an array, nor a plain value.
    """
    _pack(state, name)


def _pack(value: object, where: str = "state") -> Any:
    """Replace NumPy arrays by tensors (marked), since weights-only loading admits tensors and plain values alone."""
    if isinstance(value, np.ndarray):
        if value.dtype == object:
            raise TypeError(f"{where} is a NumPy object array; expected numeric arrays (no pickle in checkpoints)")
        if value.dtype.kind == "U":
            return {"__strings__": value.tolist(), "dtype": str(value.dtype)}
        if value.dtype in (np.uint16, np.uint32, np.uint64):  # torch lacks full support of these: keep the bits
            signed = {2: np.int16, 4: np.int32, 8: np.int64}[int(value.itemsize)]
            raw = np.array(value, copy=True).view(signed)
            return {"__array__": torch.from_numpy(np.ascontiguousarray(raw)), "dtype": str(value.dtype)}
        return {"__array__": torch.from_numpy(np.array(value, copy=True)), "dtype": str(value.dtype)}
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, dict):
        return {key: _pack(item, f"{where}[{key!r}]") for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_pack(item, f"{where}[{i}]") for i, item in enumerate(value))
    if value is None or isinstance(value, _PLAIN):
        return value
    raise TypeError(
        f"{where} is a {type(value).__name__}; checkpoints hold tensors, arrays and plain values alone, since nothing "
        "is unpickled from them. Save what it is made of, of a generator its state (get_state(), bit_generator.state)"
    )


def _unpack(value: object) -> Any:
    if isinstance(value, dict):
        if "__array__" in value:
            return value["__array__"].cpu().numpy().view(np.dtype(value["dtype"]))
        if "__strings__" in value:
            return np.array(value["__strings__"], dtype=value["dtype"])
        return {key: _unpack(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_unpack(item) for item in value)
    return value


def save_state(path: Path, state: object) -> None:
    """Save nested dicts and lists of tensors, NumPy arrays and plain values; flushed to disk."""
    with path.open("wb") as file:
        torch.save(_pack(state), file)
        file.flush()
        os.fsync(file.fileno())


def load_state(path: Path, *, device: str = "cpu") -> Any:
    """Inverse of `save_state`; executes nothing from the file.

    Raises:
        CheckpointError: the file is absent, cut off or holds anything but tensors and plain values.
    """
    try:
        return _unpack(torch.load(path, map_location=device, weights_only=True))
    except FileNotFoundError as error:
        raise CheckpointError(f"{path} is missing; expected a checkpoint written by robot-rl") from error
    except Exception as error:  # torch raises many kinds for damaged files
        # An unpickler's own message recommends to trust the file, which is no advice to pass on.
        why = (
            "it holds other objects"
            if type(error).__name__ == "UnpicklingError"
            else f"{type(error).__name__}: {error}"
        )
        raise CheckpointError(
            f"{path} cannot be read as tensors and plain values ({why.splitlines()[0][:200]}); "
            "use another checkpoint of the run"
        ) from error


def git_commit() -> str:
    """Commit of the checkout this package runs from, or "" outside a checkout."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        root = Path(__file__).resolve().parent.parent
        if (root / ".git").exists():
            out = subprocess.run(["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True, timeout=5)
            return out.stdout.strip()
    return ""


def save(
    root: Path,
    step: int,
    *,
    states: Mapping[str, object],
    io: IOSpec | None,
    config: str,
    meta: Mapping[str, object],
    stores: Mapping[str, Callable[[Path, Path | None], None]] | None = None,
    keep: int = 2,
    name: str = "",
) -> Path:
    """Write `root/step_<step>/` atomically, then remove all but the newest `keep` checkpoints.

    Args:
        root: folder of the run's checkpoints.
        step: environment steps so far.
        states: name -> state of a part ("policy", "learner", "loop" …), tensors and plain values.
        io: the interface that the policy was made for, or None where there is no policy.
        config: the composed configuration as YAML text.
        meta: further facts; version, git commit and step are added.
        stores: name -> writes a part to the path that it is given (not yet there); the second path is the same part in
            the newest checkpoint, or None, so that what that holds already can be linked instead of written again.
        keep: how many checkpoints stay.
        name: of the folder, in place of the step's: such a checkpoint is none of the `keep`.

    Raises:
        CheckpointError: disk full or folder not writable; the previous checkpoint is untouched.
    """
    final = root / (name or f"step_{step:09d}")
    temporary = root / f"{_TEMPORARY}{final.name}-{os.getpid()}"
    try:
        root.mkdir(parents=True, exist_ok=True)
        _sweep(root)
        temporary.mkdir()
        for part, state in states.items():
            save_state(temporary / f"{part}.pt", state)
        if io is not None:
            write_json(temporary / "io.json", io.to_dict())
        write_bytes(temporary / "config.yaml", config.encode())
        earlier = complete(root)
        for part, write in (stores or {}).items():
            write(temporary / part, earlier[-1] / part if earlier else None)
        write_json(temporary / "meta.json", {"version": VERSION, "git_commit": git_commit(), "step": int(step), **meta})
        _sync(temporary)
        if final.exists():  # the same step again, e.g. after a resume, or a better one than the best so far
            _exchange(temporary, final)
            shutil.rmtree(temporary, ignore_errors=True)
        else:
            temporary.rename(final)
        _sync(root)
    except (OSError, RuntimeError) as error:  # torch reports a full disk as RuntimeError
        shutil.rmtree(temporary, ignore_errors=True)
        free = _free(root)
        raise CheckpointError(
            f"the checkpoint {final} could not be written ({error}); free space there: {free}. "
            "Earlier checkpoints are untouched; free some space or choose another folder, then resume the run."
        ) from error
    if not name:
        for old in complete(root)[:-keep]:  # renamed first: killed here, no half of it counts as a checkpoint
            gone = root / f"{_TEMPORARY}old-{old.name}-{os.getpid()}"
            with contextlib.suppress(OSError):
                shutil.rmtree(old.rename(gone), ignore_errors=True)
    return final


def put_aside(path: Path) -> Path:
    """Give a damaged checkpoint another name, under which it is neither found nor counted; returns where it went."""
    aside = path.with_name(f"damaged_{path.name}")
    shutil.rmtree(aside, ignore_errors=True)
    return path.rename(aside)


def complete(root: Path) -> list[Path]:
    """Complete checkpoints of a run, oldest first."""
    found = [path for path in root.glob("step_*") if (path / "meta.json").exists()]
    return sorted(found, key=lambda path: (len(path.name), path.name))  # from 10^9 on steps have more digits


def find(path: Path) -> Path:
    """Resolve a run folder, its checkpoints folder or a checkpoint folder to the checkpoint to act with.

    That is the newest one, unless the run chose an older one for its last trials.

    Raises:
        CheckpointError: there is none.
    """
    path = Path(path)
    if (path / "meta.json").exists() and any(any(path.glob(one)) for one in ("*.pt", *EXPORTS)):
        return path
    for root in (path / "checkpoints", path):
        found = complete(root) if root.is_dir() else []
        if found and (root / CHOSEN).exists() and (root / BEST / "meta.json").exists():
            return root / BEST
        if found:
            return found[-1]
    if (path / "config.yaml").is_file():
        raise CheckpointError(
            f"no checkpoint at {path}: the run ended before its first one (checkpoint_every); start it again"
        )
    reason = "the folder does not exist" if not path.exists() else "it holds no complete checkpoint"
    raise CheckpointError(f"no checkpoint at {path}: {reason}; expected a run folder or a step_… folder")


def read_io(path: Path) -> IOSpec:
    """The interface that a checkpoint's policy was made for."""
    try:
        return IOSpec.from_dict(json.loads((path / "io.json").read_text()))
    except (OSError, json.JSONDecodeError) as error:
        raise CheckpointError(f"{path / 'io.json'} cannot be read: {error}") from error


def read_config(folder: Path) -> dict[str, Any]:
    """The configuration of a run or checkpoint folder: plain values, so that nothing in it is looked up or called.

    Raises:
        CheckpointError: it is not there, no table, or holds what would be resolved or is of another type.
    """
    file = folder / "config.yaml"
    try:
        plain = read_table(file)
    except FileNotFoundError as error:
        raise CheckpointError(
            f"{folder} holds no config.yaml; expected a run folder such as runs/train/<run>"
        ) from error
    except TableError as error:
        raise CheckpointError(str(error)) from error
    for place, value in leaves(plain).items():
        if "${" in str(value):
            raise CheckpointError(
                f"{file}: {place} is {str(value)[:60]!r}; a stored configuration refers to nothing else"
            )
    for name in ("env", "policy", "critic", "classifier"):
        if not isinstance(plain.get(name, {}), dict | NoneType):
            raise CheckpointError(f"{file}: {name} is {str(plain[name])[:60]!r}, expected names with values")
    if type(plain.get("seed", 0)) is not int:
        raise CheckpointError(f"{file}: seed is {str(plain['seed'])[:60]!r}, expected a whole number")
    return plain


def leaves(node: object, at: str = "") -> dict[str, object]:
    """The values of a configuration by their places, such as policy.hidden."""
    if not isinstance(node, Mapping):
        return {at: node}
    parts = [leaves(value, f"{at}.{key}" if at else str(key)) for key, value in node.items()]
    return {place: value for part in parts for place, value in part.items()}


def read_meta(path: Path) -> dict[str, Any]:
    """Version, commit, seed and step of a checkpoint."""
    return json.loads((path / "meta.json").read_text())


def _sweep(root: Path) -> None:
    """Remove what a killed process left half-written."""
    for path in root.glob(f"{_TEMPORARY}*"):
        shutil.rmtree(path, ignore_errors=True)


def _exchange(one: Path, other: Path) -> None:
    """Let two folders trade names in one step, so that a kill leaves each name with a whole folder.

    Where the system or the file system cannot (Linux from glibc 2.28 on can, NFS cannot) it takes two steps, and a kill
    between them leaves `other` beside its place, where the next `save` removes it.
    """
    here, swap = -100, 2  # AT_FDCWD, RENAME_EXCHANGE of renameat2(2)
    try:
        failed = ctypes.CDLL(None).renameat2(here, os.fsencode(one), here, os.fsencode(other), swap)
    except (AttributeError, OSError, TypeError):
        failed = True
    if failed:
        old = other.with_name(f"{_TEMPORARY}old-{other.name}-{os.getpid()}")
        other.rename(old)
        one.rename(other)
        old.rename(one)


def _sync(folder: Path) -> None:
    for path in [folder, *(p for p in folder.rglob("*") if p.is_dir())]:
        sync_folder(path)


def _free(path: Path) -> str:
    with contextlib.suppress(OSError):
        while not path.exists():
            path = path.parent
        return f"{shutil.disk_usage(path).free / 2**20:.0f} MiB"
    return "unknown"
