"""Words of a command line, before Hydra reads them: names of the user's own code, signs to quote, slips of the hand."""

from __future__ import annotations

import ast
import difflib
import inspect
import re
from collections.abc import Collection, Sequence
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


WORDED = {
    *("-c", "--cfg", "-p", "--package", "-i", "--info", "-cp", "--config-path", "-cn", "--config-name"),
    *("-cd", "--config-dir"),
}
"""What Hydra takes with dashes and a word behind it."""
FLAGS = WORDED | {
    *("-m", "--multirun", "-r", "--run", "--resolve", "--hydra-help", "-sc", "--shell-completion", "-h", "--help"),
}
"""All that it takes with dashes."""

FIRST = {
    **dict.fromkeys(("eval", "eval ope", "eval fas", "eval latency", "collect"), "path"),
    **dict.fromkeys(("offline", "prefer"), "data"),
    **dict.fromkeys(("check", "train", "hil"), "env"),
    "deploy": "robot_spec",
    "replay": "path",
}
"""What a word without a key probably is, where it looks like a file or a name."""

NAMED = ("path", "resume", "init", "data", "out", "log", "judge", "medium_path", "reference", "expert")
"""Options that name a file or folder: an empty one comes from an empty variable of the shell."""


def find_slip(verb: str, items: Sequence[str], keys: Collection[str], groups: Collection[str]) -> str:
    """What is wrong with the first item that is written as no option is, or "".

    Args:
        verb: of the line.
        items: behind it.
        keys: every option, node and group of the verb.
        groups: those of `keys` that are groups.
    """
    many = bool({"-m", "--multirun"} & set(items))
    for place, item in enumerate(items):
        key, equals, value = item.partition("=")
        if item.startswith("-"):
            found = "" if key in FLAGS else _flag(key, equals, value, items[place + 1 :], keys)
        elif item.startswith("~"):
            needed = key[1:] in ("policy", "env") and key[1:] in groups
            found = f"{item}: robot-rl {verb} needs one; choose another with {key[1:]}=…" if needed else ""
        elif not equals:
            found = "" if place and items[place - 1] in WORDED else _word(verb, item, keys)
        elif key.endswith(":"):
            found = f"'{item}' is written for ros2 launch; here it is {key[:-1]}={value}"
        elif "@" in key:
            found = f"'{key}' is no option; a group is chosen by its name alone, {key.split('@')[0]}={value}"
        elif value in ("", "''", '""') and key in NAMED:
            found = f"{key}= is empty (a variable of the shell that is not set?); give a value, or leave it out"
        elif not many and len(split_values(value)) > 1:
            found = _commas(key, value, groups)
        elif key.startswith("+") and verb != "bench" and _top(key) not in keys:
            found = (
                f"robot-rl {verb} has no key '{_top(key)}'{nearest(_top(key), keys)} all keys: robot-rl {verb} --help"
            )
        else:
            found = ""
        if found:
            return found
    return ""


def _flag(key: str, equals: str, value: str, rest: Sequence[str], keys: Collection[str]) -> str:
    name = key.lstrip("-").replace("-", "_")
    known = [*keys, *(flag.lstrip("-") for flag in FLAGS if flag.startswith("--"))]
    close = name if name in known else next(iter(difflib.get_close_matches(name, known, 1)), "")
    if f"--{close}" in FLAGS:
        return f"'{key}' is no flag; did you mean --{close}?"
    shown = value if equals else next((item for item in rest[:1] if "=" not in item and item[0] != "-"), "…")
    return f"'{key}' is no flag; options are written without dashes, as key=value: {close or name}={shown}"


def _word(verb: str, item: str, keys: Collection[str]) -> str:
    """A word without a key, that is none of the keys: probably what a line begins with elsewhere."""
    if item in keys or verb not in FIRST or ("/" not in item and "." not in item):
        return ""
    return f"'{item}' is no option, expected key=value; did you mean {FIRST[verb]}={item}?"


def split_values(text: str) -> list[str]:
    """Parts between commas outside of brackets, braces and quotes: Hydra does one run for each."""
    parts, depth, quote, current = [], 0, "", ""
    for letter in text:
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"":
            quote = letter
        elif letter in "[{(":
            depth += 1
        elif letter in "]})":
            depth -= 1
        elif letter == "," and depth == 0:
            parts.append(current)
            current = ""
            continue
        current += letter
    return [*parts, current]


def _commas(key: str, value: str, groups: Collection[str]) -> str:
    parts, number, one = value.split(","), "", ""
    if all(part.isdigit() for part in parts):
        if all(len(part) == 3 for part in parts[1:]):
            number = f"; a number is written {key}={''.join(parts)}"
        elif len(parts) == 2:
            number = f"; a number is written {key}={'.'.join(parts)}"
    if key not in groups:
        one = f"; a list is written {key}=[{value}]"
    return f"{key}={value} are several values{number}{one}; one run for each needs -m"


def _top(key: str) -> str:
    return key.lstrip("+~").split("@")[0].replace("/", ".").split(".")[0]


def nearest(name: str, keys: Collection[str]) -> str:
    """ "; did you mean …?" with the nearest keys, else ";"."""
    found = difflib.get_close_matches(name, sorted(keys), 2)
    return f"; did you mean {' or '.join(found)}?" if found else ";"
