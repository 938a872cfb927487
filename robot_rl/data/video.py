"""Frames out of video files, and into them, and single pictures.

OpenCV's wheels open AV1 files and return no frame without an error; PyAV decodes them. Where neither gives a first
frame, the codec and the decoders that were tried are named.
"""

from __future__ import annotations

import io
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from robot_rl import extras
from robot_rl.data import foreign
from robot_rl.data.findings import BadData, refusal

_KINDS = ((4, b"ftyp", "mp4"), (0, b"\x1aE\xdf\xa3", "matroska"), (0, b"RIFF", "avi"))
_RATIO = 100_000
"""Bytes of pictures that one byte of video can stand for: a picture that stands still costs next to nothing."""


def frames(
    path: Path, *, begin_s: float = 0.0, count: int | None = None, size: tuple[int, int] | None = None
) -> np.ndarray:
    """(T, H, W, 3) uint8 RGB.

    Args:
        path: the file.
        begin_s: time of the first frame that is wanted.
        count: how many; all from there on when None.
        size: (height, width) to scale to.

    Raises:
        BadData: there is no such file, or it cannot be decoded; names the codec.
    """
    if not path.is_file():
        raise refusal("video_missing", f"{path} is not there", "copy the videos, or leave images out (videos=false)")
    found: list[np.ndarray] = []
    codec = "unknown codec"
    try:
        with _open(path) as container:
            stream = container.streams.video[0]
            codec = stream.codec_context.name
            height, width = size or (stream.codec_context.height, stream.codec_context.width)
            foreign.room(path, 3 * height * width * (count or stream.frames), "its frames", ratio=_RATIO)
            stream.thread_type = "AUTO"
            half = 0.5 / float(stream.average_rate or 30)
            if begin_s > half:
                container.seek(int(begin_s / stream.time_base), stream=stream)
            for frame in container.decode(stream):
                if frame.time is not None and frame.time < begin_s - half:
                    continue
                if size is not None:
                    frame = frame.reformat(width=size[1], height=size[0])
                if found and found[0].shape[:2] != (frame.height, frame.width):
                    raise ValueError(f"frames change their size to {frame.width} x {frame.height}")
                found.append(frame.to_ndarray(format="rgb24"))
                foreign.room(path, len(found) * found[0].nbytes, "its frames", ratio=_RATIO)
                if count is not None and len(found) == count:
                    break
    except BadData:
        raise
    except (OSError, ValueError, IndexError) as problem:  # PyAV's errors derive from these
        if not found:
            raise _unreadable_error(path, codec, str(problem)) from problem
    if not found:
        raise _unreadable_error(path, codec, "no frame came out")
    return np.stack(found)


def picture(data: bytes, size: tuple[int, int] | None = None) -> np.ndarray:
    """PNG or JPEG bytes -> (H, W, C) uint8.

    Args:
        data: of one picture.
        size: (height, width) to scale to, in RGB.
    """
    # no other decoder sees bytes of others
    image = extras.require("PIL.Image").open(io.BytesIO(data), formats=("PNG", "JPEG"))
    return np.asarray(image if size is None else image.convert("RGB").resize(size[::-1]))


def facts(path: Path) -> tuple[float, int, str]:
    """(seconds, frames, codec) by the file's header.

    Raises:
        BadData: it cannot be opened.
    """
    try:
        with _open(path) as container:
            stream = container.streams.video[0]
            length = float(stream.duration * stream.time_base) if stream.duration else (container.duration or 0) / 1e6
            return length, stream.frames, stream.codec_context.name
    except (OSError, ValueError, IndexError) as problem:
        raise _unreadable_error(path, "unknown codec", str(problem)) from problem


def write(path: Path, images: Iterable[np.ndarray], *, fps: int, lossless: bool = False) -> None:
    """Encode (H, W, 3) uint8 images of even height and width.

    Args:
        path: the file.
        images: one after another.
        fps: frames per second.
        lossless: keep every value (H.264 in RGB, which few players show).
    """
    av = extras.require("av")
    name, pixels, loss = ("libx264rgb", "rgb24", "0") if lossless else ("libx264", "yuv420p", "18")
    with av.open(str(path), "w") as container:
        stream = container.add_stream(name, rate=fps, options={"crf": loss, "preset": "veryfast"})
        stream.pix_fmt = pixels
        for image in images:
            if not stream.width or stream.codec_context.width != image.shape[1]:
                stream.height, stream.width = image.shape[:2]
            for packet in stream.encode(av.VideoFrame.from_ndarray(np.ascontiguousarray(image), format="rgb24")):
                container.mux(packet)
        for packet in stream.encode():
            container.mux(packet)


def _open(path: Path) -> Any:
    """A container of one file; formats that name other files (playlists, lists to join) are not even tried."""
    with open(path, "rb") as file:
        head = file.read(16)
    kind = next((kind for at, mark, kind in _KINDS if head[at : at + len(mark)] == mark), None)
    if kind is None:
        raise ValueError("it begins like none of MP4, Matroska, WebM and AVI")
    options = {"protocol_whitelist": "file"}
    return extras.require("av").open(str(path), format=kind, container_options=options)


def _unreadable_error(path: Path, codec: str, problem: str) -> BadData:
    message = f"{path}: no frame can be decoded (codec {codec}; decoder tried: PyAV/FFmpeg; {problem})"
    repair = "copy the file again, or write it as H.264; videos=false leaves images out"
    return refusal("video_unreadable", message, repair)
