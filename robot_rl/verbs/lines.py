"""Slips of the hand on a command line, before Hydra reads it: flags with dashes, commas, empty values, positions."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Sequence

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
