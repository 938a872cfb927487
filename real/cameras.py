"""Camera pictures: decoding of raw and compressed images, and watching for cameras that freeze.

No ROS here: images are read by the fields that sensor_msgs/Image and CompressedImage share with what `rosbags` reads.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Annotated, Generic, Protocol, TypeVar

import numpy as np
from pydantic import AfterValidator
from typing_extensions import Buffer

from robot_rl.extras import require
from robot_rl.types.card import CalibrationCard
from robot_rl.types.options import Number

M = TypeVar("M")
LARGEST = 32 * 1024 * 1024
"""Bytes of a message above which it is refused."""
MOST_PIXELS = 8192 * 8192
ENCODINGS: dict[str, tuple[type, int]] = {
    "rgb8": (np.uint8, 3),
    "bgr8": (np.uint8, 3),
    "mono8": (np.uint8, 1),
    "16UC1": (np.uint16, 1),
    "32FC1": (np.float32, 1),
}
"""Raw encoding -> number type and channels."""


def _inside(crop: tuple[float, float, float, float]) -> tuple[float, float, float, float]:
    left, top, right, bottom = crop
    if not (0.0 <= left < right <= 1.0 and 0.0 <= top < bottom <= 1.0):
        raise ValueError(
            "expected (left, top, right, bottom) as shares of width and height, 0 <= left < right <= 1 and "
            "0 <= top < bottom <= 1, such as [0.25,0.1,0.75,0.9]; the console's crop tool gives them"
        )
    return crop


Crop = Annotated[tuple[Number, Number, Number, Number], AfterValidator(_inside)]
"""Left, top, right, bottom of a part of a picture, as shares of its width and height."""
WHOLE = (0.0, 0.0, 1.0, 1.0)
"""The crop that leaves a picture as it is."""


class RawImage(Protocol):
    """Fields of sensor_msgs/Image."""

    height: int
    width: int
    encoding: str
    is_bigendian: int
    step: int
    data: Buffer


class PictureError(ValueError):
    """A picture that cannot be used; the message says what it holds and what it should hold."""


def raw_pixels(message: RawImage) -> np.ndarray:
    """Pixels of a raw image: (H, W, 3) uint8 RGB for colour, (H, W) uint8, uint16 or float32 otherwise.

    Rows are cut to their pixels (`step` may be longer) and the byte order of the sender is honoured.

    Raises:
        PictureError: unknown encoding, more than 32 MB, or fewer bytes than the header promises.
    """
    if message.encoding not in ENCODINGS:
        raise PictureError(f"encoding is {message.encoding!r}, expected one of {', '.join(ENCODINGS)}")
    kind, channels = ENCODINGS[message.encoding]
    height, width, step = int(message.height), int(message.width), int(message.step)
    row, promised = width * channels * np.dtype(kind).itemsize, height * step
    if promised > LARGEST:
        raise PictureError(f"image of {width} x {height} has {promised} bytes, expected at most {LARGEST}")
    data = np.frombuffer(memoryview(message.data), np.uint8)
    if not row or step < row or len(data) < promised or not promised:
        raise PictureError(
            f"image of {width} x {height} {message.encoding} has step {step} and {len(data)} bytes, expected a step "
            f"of at least {row} and height * step bytes"
        )
    lines = np.ascontiguousarray(data[:promised].reshape(height, step)[:, :row])
    pixels = lines.view(np.dtype(kind).newbyteorder(">" if message.is_bigendian else "<")).astype(kind)
    pixels = pixels.reshape(height, width, channels)
    if message.encoding == "bgr8":
        pixels = np.ascontiguousarray(pixels[..., ::-1])
    return pixels if channels == 3 else pixels[..., 0]


def compressed_pixels(data: Buffer) -> np.ndarray:
    """(H, W, 3) uint8 RGB of a JPEG or PNG.

    Raises:
        PictureError: not a picture, more than 32 MB, or more pixels than any camera of ours has.
    """
    cv2 = require("cv2")
    raw = np.frombuffer(memoryview(data), np.uint8)
    if not 0 < len(raw) <= LARGEST:
        raise PictureError(f"picture has {len(raw)} bytes, expected 1 to {LARGEST}")
    given = raw.tobytes()
    size = jpeg_size(given) or png_size(given)
    if size is None:
        raise PictureError(f"picture of {len(raw)} bytes is neither JPEG nor PNG, or is damaged")
    if size[0] * size[1] > MOST_PIXELS:  # refused before gigabytes are allocated for it
        raise PictureError(f"picture is {size[0]} x {size[1]}, expected at most {MOST_PIXELS} pixels")
    try:
        image = cv2.imdecode(raw, cv2.IMREAD_COLOR)
    except cv2.error as error:
        raise PictureError(f"picture of {len(raw)} bytes cannot be decoded: {error}") from error
    if image is None:
        raise PictureError(f"picture of {len(raw)} bytes is neither JPEG nor PNG, or is damaged")
    return np.ascontiguousarray(image[..., ::-1])


def png(pixels: np.ndarray) -> bytes:
    """PNG, which loses nothing, of (H, W, 3) RGB or (H, W) grey pixels, uint8 or uint16."""
    cv2 = require("cv2")
    turned = pixels[..., ::-1] if pixels.ndim == 3 else pixels
    done, coded = cv2.imencode(".png", turned, [cv2.IMWRITE_PNG_COMPRESSION, 1])
    if not done:
        raise PictureError(f"pixels of shape {pixels.shape} cannot be written as PNG")
    return coded.tobytes()


def straighten(decode: Callable[[M], np.ndarray], calibration: CalibrationCard) -> Callable[[M], np.ndarray]:
    """`decode` with what the lens bends made straight, so that a pinhole of the same matrix describes the pictures.

    Args:
        decode: message -> pixels; raises `PictureError` from then on for pictures of another size than the
            calibration's, in which nobody knows where points fall.
        calibration: of the camera.

    Source: OpenCV's initUndistortRectifyMap and remap.
    """
    cv2, (height, width) = require("cv2"), (calibration.height, calibration.width)
    matrix = np.array([[calibration.focal[0], 0, calibration.centre[0] - 0.5],
                       [0, calibration.focal[1], calibration.centre[1] - 0.5], [0, 0, 1.0]])  # fmt: skip
    bend = np.array(calibration.distortion, float)
    maps = cv2.initUndistortRectifyMap(matrix, bend, None, matrix, (width, height), cv2.CV_16SC2) if bend.any() else ()

    def look(message: M) -> np.ndarray:
        pixels = decode(message)
        if pixels.shape[:2] != (height, width):
            raise PictureError(
                f"picture is {pixels.shape[1]} x {pixels.shape[0]}, and the camera was calibrated with pictures of "
                f"{width} x {height}; set the driver to that size, or calibrate again (robot-rl robot calibrate)"
            )
        how = cv2.INTER_LINEAR if pixels.ndim == 3 else cv2.INTER_NEAREST  # depths of two things have no mean
        return cv2.remap(pixels, *maps, how) if maps else pixels

    return look


def png_size(data: bytes) -> tuple[int, int] | None:
    """(width, height) that a PNG's header claims; None when it has none.

    Source: ISO/IEC 15948, 11.2.2 IHDR.
    """
    if data[:8] != b"\x89PNG\r\n\x1a\n" or data[12:16] != b"IHDR":
        return None
    return int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big")


def jpeg_size(data: bytes) -> tuple[int, int] | None:
    """(width, height) that a JPEG's frame header claims; None when it has none.

    Source: ITU-T T.81, B.2.2 frame header.
    """
    if data[:2] != b"\xff\xd8":
        return None
    offset = 2
    while offset + 9 < len(data) and data[offset] == 0xFF:
        if data[offset + 1] == 0xFF:  # a fill byte
            offset += 1
            continue
        marker, length = data[offset + 1], int.from_bytes(data[offset + 2 : offset + 4], "big")
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            height, width = data[offset + 5 : offset + 7], data[offset + 7 : offset + 9]
            return int.from_bytes(width, "big"), int.from_bytes(height, "big")
        offset += 2 + length
    return None


def crop_pixels(pixels: np.ndarray, crop: tuple[float, float, float, float]) -> np.ndarray:
    """Part of (H, W, ...) pixels, at least one of them.

    Args:
        pixels: of a camera.
        crop: left, top, right, bottom as shares of width and height.
    """
    height, width = pixels.shape[:2]
    left, top = min(round(crop[0] * width), width - 1), min(round(crop[1] * height), height - 1)
    right, bottom = max(round(crop[2] * width), left + 1), max(round(crop[3] * height), top + 1)
    return pixels[top:bottom, left:right]


def need_colours(pixels: np.ndarray) -> np.ndarray:
    """The pixels, if they are 8 bit colours or greys.

    Raises:
        PictureError: other numbers, such as distances.
    """
    if pixels.dtype != np.uint8:
        raise PictureError(f"the picture has numbers of type {pixels.dtype}, such as distances, expected 8 bit colours")
    return pixels


def resize_picture(pixels: np.ndarray, height: int, width: int) -> np.ndarray:
    """(height, width, 3) uint8 of a colour picture, or of a grey one repeated in all channels.

    Raises:
        PictureError: other numbers, such as distances.
    """
    if need_colours(pixels).ndim == 2:
        pixels = np.repeat(pixels[..., None], 3, axis=2)
    if pixels.shape[:2] != (height, width):
        cv2 = require("cv2")
        pixels = cv2.resize(pixels, (width, height), interpolation=cv2.INTER_AREA)
    return np.ascontiguousarray(pixels)


class Camera(Generic[M]):
    """The newest picture of one camera, decoded when it is asked for, and whether the camera still lives.

    A camera that sends the same picture again and again is frozen: sensors have noise, so identical bytes for
    `freeze_time` mean a driver that repeats its buffer. Feed from any one thread; read from one.

    Args:
        name: of the camera.
        decode: message -> pixels; `raw_pixels`, or `compressed_pixels` of its data.
        payload: message -> its bytes, whose checksum tells whether the picture changes.
        timeout: largest age of a picture [s].
        freeze_time: seconds of identical pictures that count as frozen; 0 = not watched.
        eager: decode in `take`, so that the reader never waits for it.
    """

    def __init__(
        self,
        name: str,
        decode: Callable[[M], np.ndarray],
        payload: Callable[[M], Buffer],
        *,
        timeout: float = 0.5,
        freeze_time: float = 1.0,
        eager: bool = False,
    ) -> None:
        self.name, self.timeout, self.freeze_time, self.eager = name, timeout, freeze_time, eager
        self.errors = 0
        self.last_error = ""
        self._decode, self._payload = decode, payload
        self._newest: tuple[M, float] | None = None
        self._shown: tuple[float, np.ndarray] | None = None
        self._failed_at = -np.inf
        self._print = -1
        self._changed = np.nan

    def take(self, message: M, arrival: float) -> None:
        """Store a message; decode it at once only if `eager`.

        Args:
            message: as it came.
            arrival: when the picture was taken, or at least when it came [s of the steady clock].
        """
        self._newest = (message, arrival)
        if self.eager:
            self._look()

    @property
    def newest(self) -> tuple[M, float] | None:
        """The newest message as it came, and when; None before the first. Callable from any thread."""
        return self._newest

    def picture(self, now: float) -> np.ndarray | None:
        """Newest picture that could be decoded, None before the first; call once per control tick.

        Args:
            now: [s of the steady clock].
        """
        if not self.eager:
            self._look()
        return None if self._shown is None else self._shown[1]

    def _look(self) -> None:
        if self._newest is not None:
            message, arrival = self._newest
            if arrival != self._failed_at and (self._shown is None or self._shown[0] != arrival):
                try:
                    mark = zlib.adler32(self._payload(message))
                    if mark != self._print:
                        self._print, self._changed = mark, arrival
                    self._shown = (arrival, self._decode(message))
                except (PictureError, TypeError) as error:
                    self.errors += 1
                    self.last_error, self._failed_at = str(error), arrival

    def age(self, now: float) -> float:
        """Seconds since the picture shown was taken; infinite before the first."""
        return np.inf if self._shown is None else now - self._shown[0]

    def is_frozen(self, now: float) -> bool:
        """Whether pictures come but do not change."""
        self.picture(now)
        return bool(self.freeze_time and self._shown is not None and now - self._changed > self.freeze_time)

    def problem(self, now: float) -> str:
        """What is wrong with this camera at `now`, "" when nothing is."""
        self.picture(now)
        if self._newest is None:
            return f"camera {self.name} has sent nothing"
        if self.age(now) > self.timeout:
            why = f"; last error: {self.last_error}" if self.last_error and self.errors else ""
            return f"camera {self.name} has no usable picture for {min(self.age(now), 9999.0):.2f} s{why}"
        if self.is_frozen(now):
            return f"camera {self.name} is frozen: the same picture for {now - self._changed:.1f} s"
        return ""
