"""How logs of other formats are read: every option of every reader, stated once."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Literal

import numpy as np

from robot_rl.types import Options
from robot_rl.types.options import Count, Meaning, Number, Pixels, Positive


class ReadOptions(Options):
    """What may be said of a file that does not tell it; a reader's `HEEDS` names those that it takes."""

    dataset: str | None = None
    """Name such as hopper-medium-v2, which tells limits, sizes and scores; null: the file's name."""
    episode_length: Count | None = None
    """D4RL without ends: steps of an episode; null: those of the dataset."""
    antmaze_terminal: Literal["keep", "first_hit"] = "keep"
    """D4RL: keep every terminal row (what published numbers use), or end each trajectory at the first hit."""
    maze2d_shift: Literal["none", "fix"] = "none"
    """D4RL: fix gives each step the reward of the observation that it leads to, which costs every episode its last
    step; none leaves the file's."""
    terminals: Literal["auto", "terminal", "timeout"] = "auto"
    """D4RL: its terminals are true ends, or cuts; auto: cuts for Kitchen."""
    shuffled: bool = False
    """D4RL: rows in no order; every row becomes an episode of its own, good for transitions only."""
    salvage: bool = False
    """Read what is whole in a damaged file instead of refusing it."""
    infos: bool = False
    """Also read further columns, into `meta["columns"]`."""
    keys: tuple[str, ...] | None = None
    """robomimic: observations to keep, in this order; null: all, by name."""
    filter: str | None = None
    """robomimic: mask such as train, valid or 20_percent."""
    success_reward: Number = 1.0
    """robomimic: reward of the last step from which on a demonstration counts as finished."""
    map: Annotated[str | Path | dict[str, object], Meaning("a YAML file, or its content")] | None = None
    """CSV and rosbag2: YAML that says which columns or topics are what."""
    ros_distro: str | None = None
    """rosbag2 without type definitions: the ROS distribution that recorded it, such as humble."""
    reward: Literal["none", "column", "success_at_end"] = "none"
    """LeRobot: none: zeros, for cloning; column: `next.reward`; success_at_end: 1 on the last step of every episode
    that succeeded (`next.success`; where nothing says so all count as demonstrations that did), which then is a
    terminal."""
    videos: bool = False
    """LeRobot: decode the cameras, as "image.<camera>"."""
    image_size: Pixels | None = None
    """LeRobot: [height,width] to scale frames to."""
    control_hz: Positive | None = None
    """Rate for the interface, where the file does not tell; null: what it tells, else 20."""
    rows: Count | None = None
    """Run folder: only this many of the oldest steps of its replay buffer."""


AS_IT_IS = ReadOptions()
RATE = 20.0
"""Decisions per second of a file that does not tell them."""


def rate_of(told: object) -> float:
    """Decisions per second as a file itself says, else `RATE`."""
    rate = float(told) if isinstance(told, (int, float, np.number)) else math.nan
    return rate if math.isfinite(rate) and rate > 0.0 else RATE
