"""Frames out of video files, and into them.

OpenCV's wheels open AV1 files and return no frame without an error; PyAV decodes them. Where neither gives a first
frame, the codec and the decoders that were tried are named.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from robot_rl import extras
from robot_rl.data.findings import BadData, error


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
        raise BadData(
            error("video_missing", f"{path} is not there", "copy the videos, or leave images out (videos=false)")
        )
    av = extras.require("av")
    found: list[np.ndarray] = []
    codec = "unknown codec"
    try:
        with av.open(str(path)) as container:
            stream = container.streams.video[0]
            codec = stream.codec_context.name
            stream.thread_type = "AUTO"
            half = 0.5 / float(stream.average_rate or 30)
            if begin_s > half:
                container.seek(int(begin_s / stream.time_base), stream=stream)
            for frame in container.decode(stream):
                if frame.time is not None and frame.time < begin_s - half:
                    continue
                if size is not None:
                    frame = frame.reformat(width=size[1], height=size[0])
                found.append(frame.to_ndarray(format="rgb24"))
                if count is not None and len(found) == count:
                    break
    except (OSError, ValueError, IndexError) as problem:  # PyAV's errors derive from these
        if not found:
            raise _unreadable(path, codec, str(problem)) from problem
    if not found:
        raise _unreadable(path, codec, "no frame came out")
    return np.stack(found)


def facts(path: Path) -> tuple[float, int, str]:
    """(seconds, frames, codec) by the file's header.

    Raises:
        BadData: it cannot be opened.
    """
    av = extras.require("av")
    try:
        with av.open(str(path)) as container:
            stream = container.streams.video[0]
            length = float(stream.duration * stream.time_base) if stream.duration else (container.duration or 0) / 1e6
            return length, stream.frames, stream.codec_context.name
    except (OSError, ValueError, IndexError) as problem:
        raise _unreadable(path, "unknown codec", str(problem)) from problem


def write(
    path: Path, images: Iterable[np.ndarray], *, fps: int, codec: str = "libx264", lossless: bool = False
) -> None:
    """Encode (H, W, 3) uint8 images of even height and width.

    Args:
        path: the file.
        images: one after another.
        fps: frames per second.
        codec: of FFmpeg.
        lossless: keep every value (H.264 in RGB, which few players show).
    """
    av = extras.require("av")
    options = {"crf": "0", "preset": "veryfast"} if lossless else {"crf": "18", "preset": "veryfast"}
    name, pixels = ("libx264rgb", "rgb24") if lossless else (codec, "yuv420p")
    with av.open(str(path), "w") as container:
        stream = container.add_stream(name, rate=fps, options=options)
        stream.pix_fmt = pixels
        for image in images:
            if not stream.width or stream.codec_context.width != image.shape[1]:
                stream.height, stream.width = image.shape[:2]
            for packet in stream.encode(av.VideoFrame.from_ndarray(np.ascontiguousarray(image), format="rgb24")):
                container.mux(packet)
        for packet in stream.encode():
            container.mux(packet)


def _unreadable(path: Path, codec: str, problem: str) -> BadData:
    return BadData(
        error(
            "video_unreadable",
            f"{path}: no frame can be decoded (codec {codec}; decoder tried: PyAV/FFmpeg; {problem})",
            "copy the file again, or write it as H.264; videos=false leaves images out",
        )
    )
