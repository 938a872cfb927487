"""Models that look at pictures and answer in text: an endpoint on this machine, an object of the user, a folder.

All have one method, `answer(pictures, text) -> text`; see `policies.nets.picture_labels.VisionModel`.
"""

from __future__ import annotations

import base64
import http.client
import inspect
import ipaddress
import json
import struct
import urllib.error
import urllib.parse
import urllib.request
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from robot_rl import extras
from robot_rl.policies.nets.picture_labels import VisionModel, check_picture
from robot_rl.types.option_words import near

_LARGEST = 1 << 20  # bytes of an answer


def png(picture: np.ndarray) -> bytes:
    """(H, W, 3) uint8 as a PNG file.

    Raises:
        TypeError: not uint8.
        ValueError: not (H, W, 3).
    """
    check_picture(picture)
    height, width = picture.shape[:2]
    rows = np.concatenate([np.zeros((height, 1), np.uint8), picture.reshape(height, -1)], axis=1).tobytes()

    def part(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + part(b"IHDR", head) + part(b"IDAT", zlib.compress(rows, 6)) + part(b"IEND", b"")


class EndpointError(RuntimeError):
    """An endpoint did not answer, or not as expected."""


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *args: object, **kwargs: object) -> None:
        """Never: pictures go where they were sent and nowhere else."""


class ChatEndpoint:
    """An endpoint in the form of chat completions, as local servers of vision-language models offer it.

    Pictures go as PNG in data URLs, before the text. Only this machine is asked unless `remote`; redirects are not
    followed and proxies of the environment are not used for it.

    Args:
        url: such as http://127.0.0.1:8000/v1/chat/completions.
        model: name that the endpoint wants.
        timeout: seconds for one answer.
        attempts: in all, where nothing answers or the endpoint is busy (429, 5xx).
        tokens: longest answer.
        remote: allow another machine. What the cameras see goes there.

    Raises:
        ValueError: not http or https, another machine without `remote`, or an option out of range.
    """

    def __init__(
        self, url: str, *, model: str = "default", timeout: float = 60.0, attempts: int = 2, tokens: int = 300,
        remote: bool = False,
    ) -> None:  # fmt: skip
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"'{url}' is no endpoint; expected http://127.0.0.1:<port>/v1/chat/completions")
        if timeout <= 0 or attempts < 1 or tokens < 1:
            raise ValueError(f"timeout, attempts, tokens are {timeout}, {attempts}, {tokens}; expected > 0, >= 1, >= 1")
        if not remote and not _is_here(parts.hostname):
            raise ValueError(
                f"'{parts.hostname}' is another machine, and pictures would be sent there; allow it with "
                "model_options.remote=true, or serve the model on 127.0.0.1"
            )
        self.url, self.model, self.timeout, self.attempts, self.tokens = url, model, timeout, attempts, tokens
        handlers: list[urllib.request.BaseHandler] = (
            [_NoRedirect()] if remote else [_NoRedirect(), urllib.request.ProxyHandler({})]
        )
        self._opener = urllib.request.build_opener(*handlers)

    def answer(self, pictures: Sequence[np.ndarray], text: str) -> str:
        """See `VisionModel`.

        Raises:
            EndpointError: no answer in time, an error of the endpoint, or something else than a completion.
        """
        parts: list[dict[str, object]] = []
        for picture in pictures:
            data = base64.b64encode(png(picture)).decode()
            parts.append({"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}})
        parts.append({"type": "text", "text": text})
        message = {"role": "user", "content": parts}
        body = {"model": self.model, "messages": [message], "temperature": 0, "max_tokens": self.tokens}
        request = urllib.request.Request(
            self.url, json.dumps(body).encode(), {"Content-Type": "application/json"}, method="POST"
        )
        raw, why = b"", ""
        for _ in range(self.attempts):
            try:
                with self._opener.open(request, timeout=self.timeout) as reply:
                    raw = reply.read(_LARGEST + 1)
                break
            except urllib.error.HTTPError as error:
                why = f"it answered {error.code} {error.reason}: {error.read(200).decode(errors='replace')}"
                if error.code != 429 and error.code < 500:
                    raise EndpointError(f"{self.url}: {why}") from error
            except (TimeoutError, urllib.error.URLError, ConnectionError, http.client.HTTPException) as error:
                reason = error.reason if isinstance(error, urllib.error.URLError) else error
                late = isinstance(reason, TimeoutError)
                why = f"no answer within {self.timeout:g} s" if late else f"nothing answers ({reason}); is it running?"
        else:
            raise EndpointError(f"{self.url}: {why} ({self.attempts} attempts)")
        if len(raw) > _LARGEST:
            raise EndpointError(f"{self.url}: the answer is longer than {_LARGEST} bytes")
        try:
            said = json.loads(raw)["choices"][0]["message"]["content"]
        except (ValueError, KeyError, IndexError, TypeError, RecursionError) as error:
            raise EndpointError(f"{self.url}: not a chat completion: {raw[:200]!r}") from error
        if not isinstance(said, str):
            raise EndpointError(f"{self.url}: the completion holds {type(said).__name__}, expected text")
        return said


def _is_here(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False  # a name may lead anywhere


def user_object(path: str, options: Mapping[str, object] | None = None) -> Any:
    """The object of "python:<module>:<name>"; a class or a function is called with the options.

    Raises:
        ValueError: not of this form, no such module or name in it, or nobody allowed it (`extras.allow`).
    """
    parts = path.removeprefix("python:").split(":")
    if not path.startswith("python:") or len(parts) != 2 or not all(parts):
        raise ValueError(f"'{path}' is not of the form python:<module>:<object>")
    made = extras.own(":".join(parts), "python:")
    return made(**(options or {})) if isinstance(made, type) or type(made).__name__ == "function" else made


def open_model(name: str, options: Mapping[str, Any] | None = None) -> VisionModel:
    """A model by name.

    Args:
        name: "http://..." (`ChatEndpoint`), "python:<module>:<object>", or the folder of a vision-language model
            (`policies.vla.vlm_text.LocalModel`).
        options: of the class.

    Raises:
        ValueError: none of these, an option that it does not have, or an object without `answer`.
        FileNotFoundError: no such folder.
    """
    options = dict(options or {})
    if name.startswith(("http://", "https://")):
        return ChatEndpoint(name, **_check_options(options, ChatEndpoint))
    if name.startswith("python:"):
        made = user_object(name, options)
        if not isinstance(made, VisionModel):
            raise ValueError(f"'{name}' has no method answer(pictures, text) -> text")
        return made
    if not Path(name).is_dir():
        raise FileNotFoundError(
            f"model is '{name}', expected http://127.0.0.1:<port>/..., python:<module>:<object>, or a model's folder"
        )
    from robot_rl.policies.vla.vlm_text import LocalModel

    return LocalModel(Path(name), **_check_options(options, LocalModel))


def _check_options(options: dict[str, Any], kind: type) -> dict[str, Any]:
    names = [name for name, x in inspect.signature(kind).parameters.items() if x.kind is x.KEYWORD_ONLY]
    unknown = [name for name in options if name not in names]
    if unknown:
        raise ValueError(f"model_options has '{unknown[0]}'{near(unknown[0], names)}; there are {', '.join(names)}")
    return options
