"""The replay buffer of a run as a log: what an agent did while it learnt, as in D4RL's medium-replay sets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from robot_rl.data import foreign
from robot_rl.data.arrays import HostArrays
from robot_rl.data.chains import check_sizes
from robot_rl.data.episode import Logs
from robot_rl.data.findings import note, refusal
from robot_rl.data.layout import RecordLayout
from robot_rl.data.read_options import AS_IT_IS, ReadOptions
from robot_rl.data.ring import TransitionRing
from robot_rl.data.segments import Segments
from robot_rl.types import IOSpec

HEEDS = ("rows",)


def find(path: Path) -> Path | None:
    """Newest complete checkpoint with a replay buffer: of a run folder, of its checkpoints, or `path` itself."""
    for folders in (path.glob("checkpoints/step_*"), path.glob("step_*"), [path]):
        found = [p for p in folders if (p / "meta.json").is_file() and (p / "buffer").is_dir()]
        if found:
            return max(found, key=lambda p: (len(p.name), p.name))
    return None


def read(path: Path, options: ReadOptions = AS_IT_IS) -> Logs:
    """The episodes of the newest replay buffer of a run of `robot-rl train`, oldest first.

    Args:
        path: a run folder or a checkpoint in it.
        options: `rows` reads only so many of the oldest steps that are still there (where nothing was overwritten: the
            buffer as it was after so many); the episodes that this cuts are cut recordings.

    Returns:
        Episodes in which a row that the buffer has already overwritten is missing at the front, and the one that was
        going on is cut.

    Raises:
        BadData: there is none, or it is damaged.
    """
    folder = find(Path(path))
    if folder is None:
        repair = "name a run of robot-rl train with an off-policy method, such as policy=online/sac"
        raise refusal("no_replay", f"{path} holds no checkpoint with a replay buffer", repair)
    try:
        io = IOSpec.from_dict(foreign.read_json(foreign.inside(folder, "io.json")))
        meta = foreign.read_json(foreign.inside(folder, "buffer/meta.json"))
        _check(folder, meta)
        check_sizes(0.0, capacity=meta["capacity"], num_envs=meta["num_envs"])
        layout = RecordLayout(io, {name: tuple(shape) for name, shape in meta["extras"].items()})
        ring = TransitionRing(HostArrays(), layout, meta["capacity"], slack=2 * meta["num_envs"])
        if {name: meta[name] for name in layout.facts()} != layout.facts():
            raise ValueError("it is of another interface than io.json names")
        Segments().load(ring, folder / "buffer", lambda stored: None)
    except (OSError, LookupError, ValueError, TypeError, AttributeError) as problem:
        message = f"{folder}: its replay buffer cannot be read ({problem})"
        raise refusal("damaged", message, "use another checkpoint") from problem
    episodes = ring.episodes(options.rows)
    findings = []
    lost = ring.count - len(ring)
    if lost:
        findings.append(note("overwritten", f"{lost:,} older steps were overwritten in the buffer", count=lost))
    cut = sum(not (e.terminated or e.truncated) for e in episodes)
    if cut:
        findings.append(note("cut", f"{cut} episodes are cut where the buffer ends or has a gap", count=cut))
    facts: dict[str, Any] = {"path": str(path), "format": "replay", "checkpoint": folder.name}
    if io.control_hz:
        for episode in episodes:
            episode.stamp[:] = np.arange(len(episode.stamp)) / io.control_hz
    return Logs(episodes, findings, io, facts)


def _check(folder: Path, meta: dict[str, Any]) -> None:
    """The files lie in the folder, and hold as many rows as are claimed."""
    held = 0
    for file in (folder / "buffer").iterdir():
        held += foreign.inside(folder, file.relative_to(folder)).stat().st_size
    tags = [str(segment["tag"]) for segment in meta["segments"]]
    if not all(tag.isalnum() for tag in tags):
        raise ValueError(f"a segment is called {tags[0]!r}")
    rows = min(int(meta["count"]), int(meta["capacity"]))
    foreign.room(folder, 16 * rows, f"{rows:,} rows", size=held)
    foreign.npz(folder / "buffer/small.npz")
