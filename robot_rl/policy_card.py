"""Cards of walking policies as files, and out of the description that came with the weights."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from robot_rl.tables import TableError, read_table, table_text
from robot_rl.types.card import Card
from robot_rl.types.policy_card import FILE, PolicyCard, Term
from robot_rl.words import Refused, file_error, near

LAYOUT = "unitree_rl_gym's deploy/deploy_mujoco/configs"
GAIT = 0.8
"""Seconds of the gait's clock, which stands in that project's deploy_mujoco.py and not in its files."""
_NEEDED = (
    "simulation_dt", "control_decimation", "kps", "kds", "default_angles", "ang_vel_scale", "dof_pos_scale",
    "dof_vel_scale", "action_scale", "cmd_scale", "num_actions", "num_obs",
)  # fmt: skip
_IDLE = ("policy_path", "xml_path", "simulation_duration", "cmd_init")
"""Of that project's own machine and demonstration."""


def read(path: Path) -> PolicyCard:
    """A policy card from its file.

    Raises:
        Refused: not YAML, or a key that is unknown, missing or holds a wrong value.
    """
    try:
        return PolicyCard.model_validate({str(key): value for key, value in read_table(path).items()})
    except TableError as error:
        raise Refused(str(error)) from error
    except ValidationError as error:
        raise Refused(f"{path}: {file_error(error, PolicyCard, 'the card of a policy')}") from error


def read_for(path: Path) -> tuple[PolicyCard, Path] | None:
    """The card of a policy of others, and its weights, where one lies beside them or in the folder; else None.

    Raises:
        Refused: the card cannot be used, or the weights are absent or other ones than it was written for.
    """
    file = (path if path.is_dir() else path.parent) / FILE
    if not file.is_file():
        return None
    card = read(file)
    if Path(card.weights).name != card.weights:  # the card is a stranger's: it opens nothing elsewhere
        raise Refused(f"{file} names the weights {card.weights}; expected the name of a file beside it")
    weights = file.parent / card.weights
    if not weights.is_file():
        raise Refused(f"{file} names the weights {card.weights}, and there is no such file beside it")
    if hashlib.sha256(weights.read_bytes()).hexdigest() != card.sha256:
        raise Refused(f"{weights} is not the file that {file} was written for (another SHA-256); write the card anew")
    return card, weights


def read_description(path: Path) -> dict[str, Any]:
    """The numbers of a description of the layout `LAYOUT`.

    Raises:
        Refused: another layout; names the keys that are missing or not known.
    """
    try:
        table = read_table(path)
    except (OSError, TableError) as error:
        raise Refused(f"{error}; expected a description in the layout of {LAYOUT}") from error
    missing = [key for key in _NEEDED if key not in table]
    if missing:
        raise Refused(
            f"{path} lacks {', '.join(missing)}: the layout that is read is that of {LAYOUT}. For any other write the "
            f"card by hand ({FILE}, docs/howto/your_robot.md)"
        )
    strange = [str(key) for key in table if key not in (*_NEEDED, *_IDLE, "max_cmd")]
    if strange:
        raise Refused(f"{path}: {strange[0]} means nothing in the layout of {LAYOUT}{near(strange[0], _NEEDED)}")
    count = table["num_actions"]
    if type(count) is not int:
        raise Refused(f"{path}: num_actions is {count}, expected a whole number")
    terms = 9 + 3 * count + 2
    for key in ("kps", "kds", "default_angles"):
        if not isinstance(table[key], list) or len(table[key]) != count:
            raise Refused(f"{path}: {key} is {table[key]}, expected {count} numbers: num_actions")
    if table["num_obs"] != terms:
        raise Refused(
            f"{path}: num_obs is {table['num_obs']}, expected {terms}: angular velocity 3, gravity 3, command 3, joint "
            f"positions, velocities and last action {count} each, phase 2. Nobody says what else it holds: write the "
            f"card {FILE} by hand"
        )
    return table


def of_description(table: Mapping[str, Any], joints: tuple[str, ...], sha256: str, source: str) -> PolicyCard:
    """The card of a policy.

    Args:
        table: of `read_description`.
        joints: of the robot, in the order of its model, which is the policy's.
        sha256: of the weights.
        source: what the table was read from.

    Raises:
        Refused: another number of joints, or a value that cannot be.
    """
    if len(joints) != int(table["num_actions"]):
        raise Refused(f"the policy moves {table['num_actions']} joints, the robot's card has {len(joints)}")

    def scale(key: str) -> Any:
        return tuple(table[key]) if isinstance(table[key], list) else table[key]

    try:
        return PolicyCard(
            format="torchscript",  # `write` says otherwise of a graph
            sha256=sha256,
            source=source,
            control_hz=round(1.0 / (float(table["simulation_dt"]) * int(table["control_decimation"])), 6),
            joints=joints,
            default=tuple(table["default_angles"]),
            kp=tuple(table["kps"]),
            kd=tuple(table["kds"]),
            action_scale=scale("action_scale"),
            observation=(
                Term(term="angular_velocity", scale=scale("ang_vel_scale")),
                Term(term="gravity"),
                Term(term="velocity_command", scale=scale("cmd_scale")),
                Term(term="joint_positions", scale=scale("dof_pos_scale")),
                Term(term="joint_velocities", scale=scale("dof_vel_scale")),
                Term(term="last_action"),
                Term(term="gait_phase", period=GAIT),
            ),
            largest_command=tuple(table["max_cmd"]) if "max_cmd" in table else None,
        )
    except ValidationError as error:
        raise Refused(f"{source}: {file_error(error, PolicyCard, 'the card of a policy')}") from error
    except (TypeError, ValueError, ZeroDivisionError) as error:
        raise Refused(f"{source}: {error}") from error


def standing(made: Card, table: Mapping[str, Any]) -> Card:
    """A robot's card with the gains and the standing pose of a policy's description.

    Raises:
        Refused: another number of joints.
    """
    if len(made.joints) != int(table["num_actions"]):
        raise Refused(f"the policy moves {table['num_actions']} joints, the model has {len(made.joints)}")
    joints = tuple(
        joint.model_copy(update={"kp": float(kp), "kd": float(kd)})
        for joint, kp, kd in zip(made.joints, table["kps"], table["kds"])
    )
    home = tuple(float(x) for x in table["default_angles"])
    legs = None if made.legs is None else made.legs.model_copy(update={"gains": "its policy's description"})
    return Card(**{**dict(made), "joints": joints, "home": home, "legs": legs})


def write(description: Path, weights: Path, robot: Card) -> Path:
    """Write the card of a policy beside its weights; returns its path.

    Raises:
        Refused: no weights, a card that stands there, or a description that cannot be used.
    """
    if not weights.is_file():
        raise Refused(f"there are no weights {weights}; say weights=<file of TorchScript or ONNX>")
    file = weights.parent / FILE
    if file.exists():
        raise Refused(f"{file} exists; remove it to write it anew")
    names = tuple(joint.name for joint in robot.joints)
    digest = hashlib.sha256(weights.read_bytes()).hexdigest()
    made = of_description(read_description(description), names, digest, f"{description.name} in the layout of {LAYOUT}")
    kind = "onnx" if weights.suffix == ".onnx" else "torchscript"
    made = made.model_copy(update={"weights": weights.name, "format": kind})
    table = made.model_dump(mode="json", exclude_none=True)
    table["observation"] = table.pop("observation")  # behind the numbers
    warning = "" if kind == "onnx" else " It is a program: deploy runs it with trust=true only."
    partial = file.with_name(file.name + ".part")
    partial.write_text(table_text(f"What {weights.name} sees and does.{warning}", table), encoding="utf-8")
    os.replace(partial, file)
    return file
