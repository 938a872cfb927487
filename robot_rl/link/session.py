"""Where actor and learner meet, how they trust each other, and weights as bytes."""

from __future__ import annotations

import ipaddress
import json
import os
import secrets
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import torch
from pydantic import model_validator
from torch import Tensor
from typing_extensions import Self

from robot_rl.extras import require
from robot_rl.types import Options
from robot_rl.types.options import Count, NotNegative, Positive, Whole

if TYPE_CHECKING:
    import zenoh

Place = tuple[int, int]
"""(episode, step) of the next row that is wanted."""


class LinkSettings(Options):
    """How actor and learner find and trust each other."""

    endpoint: str = "tcp/127.0.0.1:7447"
    """Where the learner listens and the actor connects, in Zenoh's words: tcp/127.0.0.1:7447,
    tls/learner.local:7447, quic/..."""
    name: str = "hil"
    """Of the run; several runs may share a Zenoh network under different names."""
    actor_id: Whole = 0
    """Of the actor; unique among those of a learner."""
    heartbeat_s: Positive = 0.25
    """Between signs of life."""
    lost_s: Positive = 5.0
    """Silence after which the other side counts as dead."""
    resend_s: Positive = 1.0
    """Without progress, rows are sent again after this time."""
    window: Count = 1024
    """Rows on the way that the learner has not confirmed."""
    patience_s: NotNegative = 60.0
    """How long an actor waits for a learner where waiting moves nothing: at the start, for the first weights, and
    for the last ones at the end."""
    drive_untrained: bool = False
    """True lets the untrained policy drive when no weights came within `patience_s`; False holds."""
    collect_without_learner: bool = True
    """Begin new episodes while the learner is away; False holds between episodes."""
    most_waiting: Count = 100_000
    """Rows that may wait for the learner on the actor's disk before it holds between episodes."""
    speed: Positive = 1.0
    """Driven steps of a simulated actor per second, as a multiple of its control rate; a robot keeps its own."""
    authority: str | None = None
    """PEM file of the certificate authority, for tls/ and quic/."""
    certificate: str | None = None
    """PEM file of this side's certificate; the learner needs one, the actor as well if it is to be known to the
    learner (`mutual`)."""
    key: str | None = None
    """PEM file of its private key."""
    mutual: bool = False
    """The learner admits only actors whose certificate the authority signed; with TLS it needs this or a password."""
    user: str | None = None
    """With `password` the name that both sides have to give; robot_rl where only a password is given."""
    password: str | None = None
    """See user; also from the variable ROBOT_RL_LINK_PASSWORD, which no run folder keeps. Without one, and without
    TLS, both sides take the token of `own_token`."""
    config: str | None = None
    """A Zenoh configuration file (JSON5) for all that is not named here; what is named here goes on top."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if "/" not in self.endpoint or not self.name or set(self.name) & set("/*$?#"):
            raise ValueError(
                f"endpoint is '{self.endpoint}' and name '{self.name}', expected e.g. tcp/127.0.0.1:7447 and a word"
            )
        if self.user and not self.password:
            raise ValueError("a user needs a password; give both, or a password alone, or neither")
        words = self.user or "", self.password or ""
        if ":" in words[0] or any(word != word.strip() or "\n" in word for word in words):  # of lines of user:password
            raise ValueError("the link's user has a colon, or user or password white space at its ends: choose another")
        if not self.secret and (self.mutual or self.authority or self.certificate or self.key):
            raise ValueError(
                f"{self.endpoint} speaks no TLS, so authority, certificate, key and mutual would mean nothing; give a "
                "tls/ or quic/ endpoint, or leave them out"
            )
        if not self.secret and not _loopback(self.endpoint) and self.config is None:
            raise ValueError(
                f"the link would run unprotected over {self.endpoint}: anybody there could drive what the robot "
                "learns. Give authority, certificate and key with a tls/ endpoint, or a Zenoh file in config, or use a "
                "tunnel (ssh -L 7447:127.0.0.1:7447 learner)"
            )
        return self

    @property
    def secret(self) -> bool:
        """The endpoint speaks TLS."""
        return self.endpoint.split("/")[0] in ("tls", "quic")

    @property
    def names(self) -> tuple[str, str] | None:
        """(user, password) that both sides have to give; None where certificates or a Zenoh file decide."""
        if self.password:
            return self.user or "robot_rl", self.password
        return None if self.secret or self.config is not None else ("robot_rl", own_token())

    @property
    def address(self) -> tuple[str, int] | None:
        """(host, port) of an endpoint that can be tried, else None."""
        found = urlsplit(f"//{self.endpoint.split('/', 1)[1].split('#')[0].split('?')[0]}")
        with suppress(ValueError):
            if self.endpoint.split("/")[0] in ("tcp", "tls") and found.hostname and found.port:
                return found.hostname, found.port
        return None


def open_session(settings: LinkSettings, *, listen: bool) -> zenoh.Session:
    """A Zenoh session: one peer that listens, or one that connects and keeps trying.

    Raises:
        ImportError: Zenoh is not installed.
        ValueError: the settings do not fit together.
        RuntimeError: the address is taken or cannot be reached.
    """
    zenoh = require("zenoh")
    try:
        config = zenoh.Config.from_file(settings.config) if settings.config else zenoh.Config()
    except zenoh.ZError as error:
        raise ValueError(
            f"link.config={settings.config} is no Zenoh file: {str(error).partition(' at /')[0]}"
        ) from error
    forever = {"timeout_ms": -1, "exit_on_failure": False}
    retry = {"period_init_ms": 200, "period_max_ms": 1000, "period_increase_factor": 2}
    values: dict[str, Any] = {
        "mode": "peer",
        "scouting/multicast/enabled": False,
        "scouting/gossip/enabled": False,
        "listen/endpoints": [settings.endpoint] if listen else [],
        "connect": {"endpoints": [] if listen else [settings.endpoint], **forever, "retry": retry},
    }
    if settings.secret:
        needed = [settings.certificate, settings.key] if listen else [settings.authority]
        if None in needed:
            raise ValueError(f"{settings.endpoint} needs " + ("certificate and key" if listen else "authority"))
        if listen and not (settings.mutual or settings.password or settings.config):
            raise ValueError(
                f"whoever reaches {settings.endpoint} could send rows, and so drive what the robot learns: TLS alone "
                "proves who the learner is, not who the actor is. Add link.mutual=true and an authority, with a "
                "certificate for the actor, or give both sides the same ROBOT_RL_LINK_PASSWORD"
            )
        if settings.mutual and settings.authority is None:
            raise ValueError("link.mutual needs link.authority, which signs the certificates of both sides")
        side = "listen" if listen else "connect"
        values |= {
            "transport/link/tls/root_ca_certificate": _path(settings.authority),
            f"transport/link/tls/{side}_certificate": _path(settings.certificate),
            f"transport/link/tls/{side}_private_key": _path(settings.key),
            "transport/link/tls/enable_mtls": settings.mutual,
        }
    if settings.names is not None:
        user, password = settings.names
        values["transport/auth/usrpwd/user"] = user
        values["transport/auth/usrpwd/password"] = password
        if listen:
            values["transport/auth/usrpwd/dictionary_file"] = _dictionary(user, password)
    try:
        for name, value in values.items():
            if value is not None:
                config.insert_json5(name, json.dumps(value))
        return zenoh.open(config)
    except zenoh.ZError as error:
        what = "listen on" if listen else "connect to"
        raise RuntimeError(f"the link cannot {what} {settings.endpoint}: {error}") from error
    finally:
        names = values.get("transport/auth/usrpwd/dictionary_file")
        if names is not None:
            Path(names).unlink(missing_ok=True)


def token_path() -> Path:
    """Where the token of this user lies: $XDG_CONFIG_HOME/robot_rl/link_token, by default in ~/.config."""
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "robot_rl" / "link_token"


def own_token() -> str:
    """The secret that actors and learners of one user share on one machine; made by whoever asks first.

    Raises:
        ValueError: others can read it, or it cannot be kept; says how to mend that.
    """
    path = token_path()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            fresh = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
            with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                file.write(secrets.token_urlsafe(24))
            with suppress(FileExistsError):  # the other side was quicker: its token counts
                os.link(fresh, path)
            fresh.unlink()
        facts = path.stat()
        if facts.st_uid != os.geteuid() or facts.st_mode & 0o077:
            raise ValueError(f"{path} holds the link's token and others can read it; run: chmod 600 {path}")
        return path.read_text().strip()
    except OSError as error:
        raise ValueError(
            f"the link's token cannot be kept in {path} ({error}); set XDG_CONFIG_HOME to a folder of yours, or give "
            "both sides ROBOT_RL_LINK_PASSWORD"
        ) from error


def dump_weights(tensors: Mapping[str, Tensor]) -> bytes:
    """Named tensors as safetensors."""
    save = require("safetensors.torch").save
    return save({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()})


def load_weights(blob: bytes, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Named tensors out of safetensors; nothing in them is executed.

    Args:
        blob: from anywhere.
        like: names, shapes and types that are expected.

    Raises:
        ValueError: they do not fit, or hold values that are not finite.
    """
    load = require("safetensors.torch").load
    try:
        found: dict[str, Tensor] = load(blob)
    except Exception as error:  # the library has its own kinds
        raise ValueError(f"{len(blob)} bytes are no safetensors: {error}") from error
    if found.keys() != like.keys():
        raise ValueError(f"weights named {sorted(found)}, expected {sorted(like)}")
    for name, tensor in found.items():
        if tensor.shape != like[name].shape or tensor.dtype != like[name].dtype:
            raise ValueError(
                f"weights '{name}' are {tuple(tensor.shape)} {tensor.dtype}, expected {tuple(like[name].shape)} "
                f"{like[name].dtype}; actor and learner were started with different policies"
            )
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise ValueError(f"weights '{name}' are not finite")
    return found


def _loopback(endpoint: str) -> bool:
    host = urlsplit(f"//{endpoint.split('/', 1)[1].split('#')[0].split('?')[0]}").hostname or ""
    if endpoint.startswith(("unixsock", "unixpipe")) or host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _path(file: str | None) -> str | None:
    if file is None:
        return None
    if not Path(file).is_file():
        raise ValueError(f"{file} is no file; expected a PEM file for the link's TLS")
    return str(Path(file).resolve())


def _dictionary(user: str, password: str) -> str:
    """Zenoh reads the names that it admits from a file."""
    import tempfile

    with tempfile.NamedTemporaryFile("w", suffix=".txt", delete=False) as file:  # mode 0600
        file.write(f"{user}:{password}\n")
    return file.name
