"""What a run's checkpoints hold, and how the newest one that can be read is found again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from robot_rl import checkpoint, parallel
from robot_rl.atomic import write_bytes
from robot_rl.checkpoint import BEST, CHOSEN, CheckpointError, DoesNotFit
from robot_rl.types import IOSpec, Seen, Stateful
from robot_rl.types.state import OtherSettings


class Stored(Protocol):
    """A part that writes itself to a folder, such as a replay buffer."""

    def save(self, path: Path, base: Path | None = None) -> None:
        """Write to a folder that is not yet there; what `base`, the earlier one, holds already may be linked."""
        ...

    def load(self, path: Path) -> None:
        """Continue exactly."""
        ...


@dataclass(frozen=True)
class Parts:
    """What a checkpoint holds.

    Attributes:
        states: name -> what continues from its state; "learner" and "loop" of most runs.
        stores: name -> what writes itself to a folder.
        policy: saved besides, for whoever only acts; None where there is none.
        io: the interface that it was made for.
        facts: further lines of meta.json.
        seen: () -> what training saw so far, kept in io.json.
    """

    states: Mapping[str, Stateful]
    stores: Mapping[str, Stored] = field(default_factory=dict)
    policy: Stateful | None = None
    io: IOSpec | None = None
    facts: Mapping[str, object] = field(default_factory=dict)
    seen: Callable[[], Seen | None] = lambda: None


class Checkpoints:
    """The checkpoints of one run folder. Every process keeps what is its own; rank 0's are the run's.

    Args:
        folder: the run folder.
        parts: what is saved.
        config: the composed configuration as YAML.
        keep: how many stay.
    """

    def __init__(self, folder: Path, parts: Parts, *, config: str, keep: int) -> None:
        rank = parallel.rank()
        self.folder, self.parts, self._config, self._keep = folder, parts, config, keep
        self.root = folder / ("checkpoints" if rank == 0 else f"ranks/rank{rank}")

    def save(self, step: int) -> Path:
        """Write everything.

        Raises:
            CheckpointError: disk full or folder not writable.
        """
        parts = self.parts
        stores = {name: part.save for name, part in parts.stores.items()}
        return self._write(step, {name: part.state_dict() for name, part in parts.states.items()}, {}, stores)

    def save_best(self, step: int, facts: Mapping[str, object]) -> Path:
        """Write policy and learner as `best`, with further facts of it."""
        states = {name: part.state_dict() for name, part in self.parts.states.items() if name == "learner"}
        return self._write(step, states, facts, {}, name=BEST)

    def best(self) -> dict[str, Any]:
        """The facts of the best one so far, or nothing."""
        path = self.root / BEST
        return checkpoint.read_meta(path) if (path / "meta.json").exists() else {}

    def choose_best(self, best: bool) -> None:
        """Have the run's folder stand for the best one, or for the newest again; see `checkpoint.find`."""
        mark = self.root / CHOSEN
        if best:
            write_bytes(mark, f"{BEST}\n".encode())
        else:
            mark.unlink(missing_ok=True)

    def restore(self, skip: Sequence[str] = ()) -> list[str]:
        """Continue from the newest checkpoint that can be read; damaged ones after it are put aside.

        Args:
            skip: states that are left as they are.

        Returns:
            What was damaged, in words.

        Raises:
            CheckpointError: there is none, or all are damaged, or they are of another interface or number of processes.
        """
        names = parallel.agree([path.name for path in reversed(checkpoint.complete(self.folder / "checkpoints"))])
        if not names:
            checkpoint.find(self.folder)  # says what is missing
        ranks = len(list((self.folder / "ranks").glob("rank*"))) + 1
        if ranks != parallel.size():
            raise CheckpointError(
                f"{self.folder} was trained by {ranks} processes and this is process {parallel.rank() + 1} of "
                f"{parallel.size()}; resume it with torchrun --nproc-per-node={ranks}"
            )
        damaged: dict[str, str] = {}
        for name in names:
            why = self._load(self.root / name, skip)
            if parallel.all_true(not why):
                aside = {old: checkpoint.put_aside(self.root / old).name for old in damaged}
                return [
                    f"the checkpoint {old} is damaged ({why}); it lies in {aside[old]}, and {name} is used"
                    for old, why in damaged.items()
                ]
            damaged[name] = why or "another process cannot read its part"
        raise CheckpointError(f"no checkpoint of {self.folder} can be read; the newest: {damaged[names[0]]}")

    def _load(self, path: Path, skip: Sequence[str]) -> str:
        """Take over a whole checkpoint, or say why it cannot be read; states are used only if everything is there."""
        parts = self.parts
        try:
            io = checkpoint.read_io(path) if parts.io is not None else None
            states = {name: checkpoint.load_state(path / f"{name}.pt") for name in parts.states if name not in skip}
        except CheckpointError as error:
            return str(error)
        # bounds that nobody knows are the same here: it is this run's own log
        differences = io.differences(parts.io) if io is not None and parts.io is not None and io != parts.io else []
        if differences:
            raise DoesNotFit(
                f"the checkpoint {path} was made for another interface than this run:\n  - "
                + "\n  - ".join(differences)
            )
        try:
            for name, part in parts.stores.items():
                part.load(path / name)
        except OtherSettings as error:
            raise DoesNotFit(f"{path} does not go on: {error}") from error
        except (ValueError, OSError) as error:
            return str(error)
        for name, state in states.items():
            try:
                parts.states[name].load_state_dict(state)
            except (LookupError, TypeError, ValueError, RuntimeError) as error:  # torch says RuntimeError for sizes
                raise DoesNotFit(_of_another_version(path, name, error)) from error
        return ""

    def _write(
        self,
        step: int,
        states: Mapping[str, object],
        facts: Mapping[str, object],
        stores: Mapping[str, Callable[[Path, Path | None], None]],
        name: str = "",
    ) -> Path:
        parts = self.parts
        policy = {} if parts.policy is None else {"policy": parts.policy.state_dict()}
        return checkpoint.save(
            self.root,
            step,
            states={**policy, **states},
            io=None if parts.io is None else replace(parts.io.acting, seen=parts.seen()),
            config=self._config,
            meta={**parts.facts, **facts},
            stores=stores,
            keep=self._keep,
            name=name,
        )


def _of_another_version(path: Path, name: str, error: Exception) -> str:
    """What to say of a whole checkpoint that does not continue."""
    meta = checkpoint.read_meta(path)
    why = f"it lacks {error.args[0]!r}" if isinstance(error, KeyError) and error.args else str(error)
    commit, now = str(meta.get("git_commit", "")), checkpoint.git_commit()
    by = f"commit {commit[:12]}" if commit and commit != now else f"version {meta.get('version', 'unknown')}"
    return (
        f"{path / name}.pt does not continue in this version of robot_rl ({why}). The checkpoint is whole and was "
        f"written by {by}: continue it with that code (git checkout, or pip install of it), or begin a new run. What "
        f"was recorded stays readable, and its policy can still be tried: robot-rl eval path={path.parent.parent}"
    )
