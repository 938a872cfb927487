"""The robot's cameras over ROS: subscriptions that keep the newest picture and watch that it stays alive."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from rclpy.node import Node

from robot_rl.real.cameras import (
    Camera,
    PictureError,
    compressed_pixels,
    need_colours,
    raw_pixels,
    resize_picture,
    straighten,
)
from robot_rl.real.core.spec import CameraSpec
from robot_rl.real.ros.io import CompressedImage, Image
from robot_rl.real.ros.node_base import Health, subscribe
from robot_rl.real.ros.sender_clocks import SenderClocks


class CameraInputs(Mapping[str, Camera]):
    """Camera name -> `Camera`, fed by the topics of a RobotSpec.

    Args:
        node: that owns the subscriptions.
        health: hears of QoS mismatches.
        cameras: of the RobotSpec that are subscribed to at once.
        freeze_time: seconds of identical pictures that count as a frozen camera; 0 = not watched.
        eager: decode on receipt, in the thread of the callbacks, so that no control tick ever waits for it.
    """

    def __init__(
        self,
        node: Node,
        health: Health,
        cameras: Mapping[str, CameraSpec],
        *,
        freeze_time: float = 1.0,
        eager: bool = False,
    ) -> None:
        self._node, self._health, self._freeze, self._eager = node, health, freeze_time, eager
        self._clocks = SenderClocks(node)
        self._cameras: dict[str, Camera] = {}
        for name, sensor in cameras.items():
            self.add(name, sensor)

    def add(self, name: str, sensor: CameraSpec) -> None:
        """Subscribe to one more camera; one that is there already stays as it is."""
        if name in self._cameras:
            return
        compressed = "Compressed" in sensor.type
        read = (lambda message: compressed_pixels(message.data)) if compressed else raw_pixels
        decode = lambda message: need_colours(read(message))  # noqa: E731
        camera = Camera(
            name,
            decode if sensor.calibration is None else straighten(decode, sensor.calibration),
            lambda message: message.data,
            timeout=sensor.timeout,
            freeze_time=self._freeze,
            eager=self._eager,
        )

        def keep(message: object, info: object) -> None:
            receipt = self._clocks.receipt(info, time.monotonic(), sensor.clock)
            camera.take(message, self._clocks.acquisition_time(name, message, receipt))

        subscribe(self._node, CompressedImage if compressed else Image, sensor.topic, keep, "image", self._health)
        self._cameras[name] = camera

    def __getitem__(self, name: str) -> Camera:
        return self._cameras[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._cameras)

    def __len__(self) -> int:
        return len(self._cameras)

    def films(self) -> dict[str, tuple[np.ndarray | bytes, float]]:
        """Camera -> its newest picture, a JPEG as it came or (H, W, 3) uint8, and when it was taken; from any thread.

        Cameras that have sent nothing, or nothing that can be shown, are left out.
        """
        found: dict[str, tuple[np.ndarray | bytes, float]] = {}
        for name, camera in self._cameras.items():
            newest = camera.newest
            if newest is None:
                continue
            with contextlib.suppress(PictureError, TypeError):
                found[name] = _for_browser(newest[0]), newest[1]
        return found

    def look(self, now: float, names: Iterable[str]) -> tuple[dict[str, np.ndarray], str]:
        """Newest pictures of the cameras `names`, and the first reason not to act on them.

        Args:
            now: [s of the steady clock].
            names: of cameras that are subscribed to.

        Returns:
            Camera -> (H, W, 3) or (H, W) uint8, and "" or what is wrong with a camera.
        """
        found: dict[str, np.ndarray] = {}
        for name in names:
            camera = self[name]
            problem, pixels = camera.problem(now), camera.picture(now)
            if problem or pixels is None:
                return found, problem or f"camera {name} has sent nothing"
            found[name] = pixels
        return found, ""


def _for_browser(message: Any) -> np.ndarray | bytes:
    """What a browser is given of a message: a JPEG stays as it is."""
    if isinstance(message, CompressedImage):
        data = bytes(message.data)
        return data if data[:2] == b"\xff\xd8" else compressed_pixels(data)
    pixels = raw_pixels(message)
    return resize_picture(pixels, *pixels.shape[:2])
