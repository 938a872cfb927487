"""All gaps by name, and lists of them as data."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from robot_rl.gaps.body import GravityFrame, QuaternionOrder, TurnScale
from robot_rl.gaps.contract import Gap
from robot_rl.gaps.drive import CommandGain, Stiction
from robot_rl.gaps.joints import JointOffset, JointOrder, JointScale, JointSign, VelocityMissing
from robot_rl.gaps.pictures import CameraMoved, CamerasSwapped
from robot_rl.gaps.timing import Dropped, Late

_OF_JOINTS = (JointOrder, JointSign, JointScale, JointOffset, VelocityMissing)
_OF_BODIES = (QuaternionOrder, GravityFrame, TurnScale)
_OTHERS = (Late, Dropped, CommandGain, Stiction, CamerasSwapped, CameraMoved)
KINDS: dict[str, type[Gap]] = {kind.model_fields["name"].default: kind for kind in (*_OF_JOINTS, *_OF_BODIES, *_OTHERS)}
"""Name -> gap."""


def read_gaps(tables: Sequence[Mapping[str, object]]) -> tuple[Gap, ...]:
    """Gaps of a list of tables, each with its `name` and options.

    Raises:
        ValueError: an unknown name, or an option that is wrong.
    """
    found = []
    for table in tables:
        kind = KINDS.get(str(table.get("name", "")))
        if kind is None:
            raise ValueError(f"there is no gap {table.get('name')!r}; gaps are {', '.join(KINDS)}")
        found.append(kind(**table))
    return tuple(found)


def read_gaps_text(text: str) -> tuple[Gap, ...]:
    """Gaps of a text in JSON: a list such as [{"name": "joint_sign", "joints": [2]}]; "" is none.

    Raises:
        ValueError: no such list, an unknown name, or an option that is wrong.
    """
    try:
        tables = json.loads(text or "[]")
    except json.JSONDecodeError as error:
        raise ValueError(f"gaps are {text!r}, which is no JSON: {error}") from error
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise ValueError(f'gaps are {text!r}, expected a list such as [{{"name": "velocity_missing"}}]')
    return read_gaps(tables)
