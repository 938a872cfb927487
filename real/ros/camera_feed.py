"""The simulated robot's cameras: renders what stands behind it and publishes pictures as camera drivers do."""

from __future__ import annotations

import array
import contextlib
import os
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Annotated, Any

import numpy as np
from pydantic import Field
from rclpy.node import Node

from robot_rl.extras import require
from robot_rl.gaps import Gap, Measured, apply_gaps
from robot_rl.real.core.spec import SensorSpec
from robot_rl.real.plant import Photographer, Plant
from robot_rl.real.ros.io import CompressedImage, Image, time_message
from robot_rl.real.ros.node_base import Health, publisher
from robot_rl.types.options import NotNegative, Options, Pixels, Positive, Whole

FAULTS = ("", "silent", "repeat", "garbage")
"""Values of the parameter `inject.camera`."""


class FeedOptions(Options):
    """Of the pictures of a simulated robot."""

    rate: Positive
    """Pictures per second of every camera."""
    size: Pixels
    """(height, width)."""
    quality: Annotated[int, Field(ge=1, le=100)] = 90
    """Of JPEG."""
    noise: NotNegative = 1.0
    """Standard deviation of the sensor's noise in grey levels. A picture that never changes is what a broken driver
    sends, so without noise a robot at rest looks like one."""
    seed: Whole = 0
    """Of the noise."""


class CameraFeed:
    """Publishes the cameras of a RobotSpec, each the model's camera of the same name.

    Rendering has a thread of its own with ordinary priority: physics and joint states do not wait for it. In lockstep,
    where runs repeat themselves exactly, the physics calls `shoot` instead.

    Args:
        node: that owns the publishers.
        cameras: of the RobotSpec; raw (`sensor_msgs/Image`, rgb8) or JPEG (`sensor_msgs/CompressedImage`).
        plant: whose model is rendered.
        lock: held while the plant changes.
        stamp: gives the time of a picture [s].
        health: hears of QoS mismatches.
        options: rate, size and noise of the pictures.

    Raises:
        ValueError: a camera that the model has not.

    Attributes:
        fault: one of FAULTS.
        gaps: of pictures, which are changed so before they are sent.
        sent: pictures so far.
        problem: why the last picture could not be made, "".
    """

    def __init__(
        self,
        node: Node,
        cameras: Mapping[str, SensorSpec],
        plant: Plant,
        lock: AbstractContextManager[bool],
        stamp: Callable[[], float],
        health: Health,
        options: FeedOptions,
    ) -> None:
        missing = sorted(set(cameras) - set(plant.cameras))
        if missing:
            has = ", ".join(plant.cameras) or "none"
            raise ValueError(f"the simulated robot has no camera {', '.join(missing)}; its cameras are: {has}")
        self._plant, self._lock, self._stamp = plant, lock, stamp
        self.o = options
        self._rng = np.random.default_rng(options.seed)
        self._raw = {name: "Compressed" not in sensor.type for name, sensor in cameras.items()}
        self._out = {
            name: publisher(node, Image if self._raw[name] else CompressedImage, sensor.topic, "image", health)
            for name, sensor in cameras.items()
        }
        self._photographer: Photographer | None = None
        self._last: dict[str, Any] = {}
        self.fault, self.sent, self.problem = "", 0, ""
        self.gaps: tuple[Gap, ...] = ()
        self._over, self._tried = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, patience: float = 30.0) -> None:
        """Begin to publish at the rate; returns when the first pictures are out or have failed.

        Opening the renderer holds the interpreter for a third of a second: do it before the control loop begins.
        Rendering itself lets other threads run.
        """
        self._thread = threading.Thread(target=self._work, name="cameras", daemon=True)
        self._thread.start()
        self._tried.wait(patience)

    def stop(self) -> None:
        """End; callable more than once. Without a thread of its own, from the thread that shoots."""
        self._over.set()
        if self._thread is not None:
            self._thread.join(2.0)
        else:
            self._close()

    def shoot(self) -> None:
        """One picture of every camera, now; always from the same thread, to which the OpenGL context belongs."""
        if self.fault == "silent":
            return
        with self._lock:
            stamp, scene = self._stamp(), self._plant.scene()
        self.publish(stamp, scene)

    def publish(self, stamp: float, scene: object) -> None:
        """Render a scene of the plant and send it."""
        if self._photographer is None:
            self._photographer = self._plant.photographer(*self.o.size)
        shots = {} if self.fault == "repeat" and self._last else self._photographer.take(scene, tuple(self._out))
        shots = apply_gaps(self.gaps, Measured(stamp, np.zeros(0), np.zeros(0), None, shots)).pictures
        for name, out in self._out.items():
            if name in shots:
                self._last[name] = self._noisy(shots[name])
            message = self._message(name, self._last[name])
            message.header.stamp, message.header.frame_id = time_message(stamp), name
            out.publish(message)
        self.sent += 1

    def _noisy(self, pixels: np.ndarray) -> np.ndarray:
        if not self.o.noise:
            return pixels
        wave = self._rng.standard_normal(pixels.shape, np.float32) * self.o.noise
        return np.clip(np.rint(pixels + wave), 0, 255).astype(np.uint8)

    def _message(self, name: str, pixels: np.ndarray) -> Any:
        height, width = pixels.shape[:2]
        if self._raw[name]:
            data = b"?" * 7 if self.fault == "garbage" else pixels.tobytes()
            return Image(height=height, width=width, encoding="rgb8", step=3 * width, data=array.array("B", data))
        cv2 = require("cv2")
        done, coded = cv2.imencode(".jpg", pixels[..., ::-1], [cv2.IMWRITE_JPEG_QUALITY, self.o.quality])
        if not done:
            raise RuntimeError(f"picture of {width} x {height} could not be written as JPEG")
        data = b"no picture" if self.fault == "garbage" else coded.tobytes()
        return CompressedImage(format="rgb8; jpeg compressed bgr8", data=array.array("B", data))

    def _work(self) -> None:
        due = time.monotonic()
        while not self._over.wait(max(due - time.monotonic(), 0.0)):
            due = max(due + 1.0 / self.o.rate, time.monotonic())
            with contextlib.suppress(OSError, AttributeError):  # the control loop lifts all threads of the process
                os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
            try:
                self.shoot()
                self.problem = ""
            except Exception as error:  # no renderer, no OpenGL: joints go on, and the diagnostics say why it is dark
                self.problem = f"{type(error).__name__}: {error}"
                due = time.monotonic() + 1.0
            self._tried.set()
        self._close()

    def _close(self) -> None:
        photographer, self._photographer = self._photographer, None
        if photographer is not None:
            with contextlib.suppress(Exception):  # the process ends; OpenGL may have gone before
                photographer.close()
