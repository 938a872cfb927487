"""Pictures for a calibration from a running robot: one at every new pose in which somebody lets it rest."""

from __future__ import annotations

import contextlib
import csv
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from robot_rl.extras import require

require("rclpy")

from robot_rl.real.calibration.folder import POSES  # noqa: E402  (after the check that rclpy is there)
from robot_rl.real.cameras import png, resize_picture  # noqa: E402
from robot_rl.real.core.spec import CameraSpec, RobotSpec  # noqa: E402
from robot_rl.real.ros.camera_inputs import CameraInputs  # noqa: E402
from robot_rl.real.ros.inputs import RobotInputs  # noqa: E402
from robot_rl.real.ros.node_base import Health, node_beside  # noqa: E402

_REST, _STILL = 0.5, 0.004  # seconds in which no joint moves by more [rad or m]
_APART = 0.08  # how far a joint has to be from where it was in every picture before [rad or m]


def record(
    spec: RobotSpec,
    camera: CameraSpec,
    folder: Path,
    *,
    count: int,
    patience: float = 15.0,
    say: Callable[[str], None] = print,
) -> int:
    """Take pictures while somebody moves the robot; nothing is sent to it. Ctrl-C ends it and keeps what there is.

    Args:
        spec: of the robot, whose joint states are read.
        camera: whose pictures are taken, as they come: a calibration that it has does not straighten them.
        folder: for `poses.csv` and the pictures; made.
        count: how many pictures.
        patience: for the first joint state and picture [s].
        say: told of every picture.

    Returns:
        How many were taken.

    Raises:
        ValueError: the folder has pictures already, or nothing is heard of the joints or the camera; names the topics.
    """
    if (folder / POSES).exists():
        raise ValueError(f"{folder / POSES} exists; take another folder (pictures=), or leave record= out to use it")
    taken: list[np.ndarray] = []
    with node_beside("calibration_recorder") as node, contextlib.suppress(KeyboardInterrupt):
        health = Health(node, spec.name)
        inputs = RobotInputs(node, spec, health)
        eye = CameraInputs(node, health, {"camera": replace(camera, calibration=None)}, freeze_time=0.0)["camera"]
        folder.mkdir(parents=True, exist_ok=True)
        past: deque[tuple[float, np.ndarray]] = deque()
        begun = time.monotonic()
        with (folder / POSES).open("w", newline="", encoding="utf-8") as file:
            lines = csv.writer(file)
            lines.writerow(["picture", *spec.names])
            while len(taken) < count:
                time.sleep(0.02)
                now = time.monotonic()
                state, picture = inputs.latest(now), eye.picture(now)
                if state is None or picture is None:
                    if now - begun > patience:
                        missing = inputs.missing()
                        what = f"the joints {', '.join(missing)}" if missing else eye.problem(now) or camera.topic
                        raise ValueError(
                            f"after {patience:g} s nothing usable is heard of {what} (camera topic {camera.topic}); "
                            "robot-rl doctor ros says what is on the wire"
                        )
                    continue
                past.append((now, state.position))
                while now - past[0][0] > _REST:
                    past.popleft()
                moved = max(float(np.abs(state.position - old).max()) for _, old in past)
                new = all(float(np.abs(state.position - old).max()) > _APART for old in taken)
                rested = now - past[0][0] > 0.9 * _REST and moved < _STILL
                if not (rested and new and max(eye.age(now), now - state.stamp) < 0.4 * _REST):
                    continue
                name = f"{len(taken):03d}.png"
                (folder / name).write_bytes(png(resize_picture(picture, *picture.shape[:2])))
                lines.writerow([name, *(f"{x:.6f}" for x in state.position)])
                file.flush()
                taken.append(state.position)
                say(f"  {len(taken)} of {count}: move the robot on, and let it rest")
    if len(taken) < count:
        say(f"  stopped after {len(taken)} pictures")
    return len(taken)
