"""Transitions as D4RL's own reader makes them, for peers that learn from them and for published numbers."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from robot_rl.data import scores
from robot_rl.data.d4rl import limit_rows
from robot_rl.data.d4rl_table import load


def qlearning_dataset(
    path: str | os.PathLike[str], *, episode_length: int | None = None, terminate_on_end: bool = False
) -> dict[str, np.ndarray]:
    """The transitions that D4RL's own `qlearning_dataset` makes, to reproduce published numbers.

    s' is the next row, also where that row begins another episode: on terminal rows (masked by the terminal) and, with
    `terminate_on_end`, on timeout rows, which D4RL keeps unmasked and we mark as terminal. The last row of the file is
    left out.

    Args:
        path: the HDF5 file.
        episode_length: limit for files without `timeouts`.
        terminate_on_end: keep timeout rows instead of leaving them out.

    Returns:
        observations, actions, next_observations, rewards and terminals, (N', ...).

    Source: Farama-Foundation/D4RL d4rl/__init__.py, qlearning_dataset.
    """
    path = Path(path)
    table = load(path, infos=False)
    count = len(table)
    if "timeouts" in table.column:
        final = table["timeouts"].copy()
    else:
        limit = episode_length or scores.episode_limit(path.stem) or 0
        if not limit:
            raise ValueError(f"{path} has no 'timeouts' and names no known task; give episode_length")
        final = limit_rows(table["terminals"], limit) == limit - 1
    terminal = table["terminals"]
    kept: np.ndarray | None = None
    if terminate_on_end:
        terminal = terminal | final
    elif final[:-1].any():
        kept = np.flatnonzero(~final[:-1])

    def rows(value: np.ndarray, shift: int = 0) -> np.ndarray:
        value = value[shift : count - 1 + shift]
        return value if kept is None else value.take(kept, 0)

    return {
        "observations": rows(table["observations"]),
        "actions": rows(table["actions"]),
        "next_observations": rows(table["observations"], 1),
        "rewards": rows(table["rewards"]),
        "terminals": rows(terminal),
    }
