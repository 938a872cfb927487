"""Items of a command line, before Hydra reads them: names of the user's own code, signs that have to be quoted."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Sequence
from pathlib import Path

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

from robot_rl import build, extras
from robot_rl.words import Refused

OWN = "own"
"""Choice of a group that stands for a class of the user's own."""
OWN_NAMES: dict[str, str] = {}
"""`<kind>=own` -> name of the class, of this process's command line."""


def as_policy_option(item: str) -> str:
    """`advantage=NAME` as the option of the policy that it is, so that a policy without one refuses it."""
    return f"policy.{item}" if item.startswith("advantage=") else item


def train_words(items: Sequence[str]) -> list[str]:
    """What robot-rl train is given, as Hydra reads it.

    Raises:
        Refused, ValueError: see `take_own`.
    """
    return quote_signs(take_own([as_policy_option(item) for item in items]))


def names_code(item: str) -> bool:
    """Whether an argument `key=value` names code of the user's own: "module:Name" or a Python file."""
    _, equals, value = item.partition("=")
    plain = value.strip("'\"")
    foreign = plain.startswith(("http://", "https://", "[", "{"))
    return bool(equals) and not foreign and (":" in plain or plain.endswith(".py"))


def take_own(items: Sequence[str]) -> list[str]:
    """Arguments in which names of the user's own code are allowed and stand under a name that Hydra can look up.

    `policy=./my_method.py:MyLearner` becomes `policy=own`, `env=./my_world.py` (or `…:MyWorld`) `env=own`, where that
    is a class of Gymnasium's or a function `env=gym id=<file>:<name>`; `id=module:Name-v0` and every other value with a
    colon that names code stays as it is.

    Raises:
        Refused, ValueError: a method or world of the user's own that there is not, or that is none.
    """
    found = []
    for item in items:
        key, _, value = item.partition("=")
        plain = value.strip("'\"")
        if names_code(item) and ":" in plain:
            extras.allow(plain, plain.removeprefix("python:"))
        if key == "id" and plain.rpartition(":")[0].endswith(".py"):
            plain = _resolve(plain)
            extras.allow(plain)
            item = f"id='{plain}'"
        if key == "env" and (":" in plain or plain.endswith(".py")):
            key, plain = "world", _resolve(plain if ":" in plain else f"{plain}:{_class_of(plain)}")
            item = f"env={OWN}"
        if key in build.ROOMS and ":" in plain and plain[0] not in "[{":
            name = _resolve(plain)
            extras.allow(name)
            found_class = build.find(key, name)
            if key == "world" and (_is_task(found_class) or inspect.isfunction(found_class)):
                found += ["env=gym", f"id='{name}'"]
                continue
            OWN_NAMES[f"{key}={OWN}"] = name
            item = f"env={OWN}" if item == f"env={OWN}" else f"{key}={OWN}"
        found.append(item)
    return found


def quote_signs(items: Sequence[str]) -> list[str]:
    """The same items; words with signs that Hydra's grammar lacks and names of files have (ü, &, #) stand in quotes."""
    found = []
    for item in items:
        key, _, value = item.partition("=")
        quoted = _WORD.sub(lambda word: word[0] if _PLAIN.fullmatch(word[0]) else f"'{word[0]}'", value)
        mended = not _is_readable(item) and _is_readable(f"{key}={quoted}")
        found.append(f"{key}={quoted}" if mended else item)
    return found


_WORD = re.compile(r"""[^\s,:=\[\]{}()'"][^,:=\[\]{}()'"]*""")
_PLAIN = re.compile(r"[\w/\-\\+.$%*@?| ]*", re.ASCII)


def _is_readable(item: str) -> bool:
    if "=" not in item or item.startswith("--"):
        return True
    try:
        OverridesParser.create().parse_override(item)
    except (HydraException, ValueError):
        return False
    return True


def find_unreadable(items: Sequence[str]) -> str:
    """What is wrong with the first item that Hydra's grammar cannot read, or ""."""
    for item in items:
        if not _is_readable(item):  # Hydra's message counts tokens
            key, _, value = item.partition("=")
            quoted = "'\"" + value.strip("'\"") + "\"'"
            return f"{item} cannot be read: quotes or brackets do not match, or a sign has to be quoted: {key}={quoted}"
    return ""


def _class_of(file: str) -> str:
    """The world of a file: its only class, or the one that has the file's name.

    Raises:
        Refused: no such file, or no such class.
    """
    path = Path(file).expanduser()
    if not path.is_file():
        raise Refused(f"env={file}: there is no such file")
    try:
        body = ast.parse(path.read_text(encoding="utf-8")).body
    except SyntaxError as error:
        raise Refused(f"env={file}: line {error.lineno} is no Python: {error.msg}") from error
    classes = [item.name for item in body if isinstance(item, ast.ClassDef)]
    own = [name for name in classes if name.lower() == path.stem.replace("_", "").lower()] or classes
    if len(own) != 1:
        raise Refused(
            f"say which class of {file} is the world: env={file}:<class>; it has {', '.join(classes) or 'none'}"
        )
    return own[0]


def _is_task(found: object) -> bool:
    """Whether this is a class of Gymnasium's, told without loading Gymnasium: whoever made such a class has."""
    names = [f"{base.__module__}.{base.__qualname__}" for base in found.__mro__] if isinstance(found, type) else []
    return "gymnasium.core.Env" in names


def _resolve(name: str) -> str:
    """A file's name with its whole path: a run may be looked at from elsewhere."""
    place, _, path = name.rpartition(":")
    return f"{Path(place).expanduser().resolve()}:{path}" if place.endswith(".py") else name
