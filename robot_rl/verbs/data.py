"""Verbs about logs: data info, validate, convert, plot and session."""

from __future__ import annotations

import os
import re
import signal
import sys
from typing import Any, Literal

from omegaconf import DictConfig, OmegaConf

from robot_rl import build
from robot_rl.data.read_options import ReadOptions
from robot_rl.data.repairs import Repairs
from robot_rl.types.options import Count
from robot_rl.verbs import answer
from robot_rl.verbs.build import settings_of
from robot_rl.verbs.options import VerbOptions
from robot_rl.words import Refused


class DataOptions(VerbOptions, ReadOptions, Repairs):
    """robot-rl data."""

    what: Literal["info", "validate", "convert", "plot"]
    """info, validate, convert or plot."""
    path: str
    """File or folder of any known format."""
    out: str | None = None
    """convert: what to write; plot: the picture."""
    to: Literal["store", "d4rl", "minari", "lerobot", "recording"] | None = None
    """convert: the format; null = by the name of out."""
    batch: Count = 256
    """validate: rows per training batch."""


def data(cfg: DictConfig) -> None:
    """Look at a log, validate it, convert it, plot it."""
    from robot_rl.data import actions, formats, info
    from robot_rl.data import convert as conversion
    from robot_rl.data.findings import BadData, Finding, exit_code

    given: Any = OmegaConf.to_container(cfg, resolve=True)
    options = {key: given[key] for key, field in ReadOptions.model_fields.items() if given[key] != field.default}

    def show(findings: list[Finding]) -> None:
        for item in findings:
            print(f"  {item.severity:<8} {item.message}")
            if item.repair:
                print(f"  {'':<8}   -> {item.repair}")

    try:
        said = {"action": given["action"], "low": given["action_low"], "high": given["action_high"]}
        if cfg.what == "info":
            facts = info.info(cfg.path, said=said, **options)
            answer.note(**facts)
            print(info.report(facts))
        elif cfg.what == "validate":
            findings = conversion.validate(cfg.path, batch=cfg.batch, said=said, **options)
            answer.note(findings=[item.to_dict() for item in findings])
            print(cfg.path)
            show(findings)
            count = {kind: sum(f.severity == kind for f in findings) for kind in ("error", "warning", "note")}
            print(f"  {count['error']} errors, {count['warning']} warnings, {count['note']} notes")
            sys.exit(exit_code(findings))
        elif cfg.what == "convert":
            if cfg.out is None:
                raise Refused("convert needs out=<name>; a name without .hdf5 becomes a store, see --help")
            for number in (signal.SIGTERM, signal.SIGHUP):  # what was begun vanishes, as it does on Ctrl-C
                signal.signal(number, lambda number, _: sys.exit(128 + number))
            findings = conversion.convert(cfg.path, cfg.out, to=cfg.to, mend=settings_of(Repairs, cfg), **options)
            show(findings)
            answer.note(findings=[item.to_dict() for item in findings], written=str(cfg.out))
            print(f"  written  {cfg.out} ({cfg.to or formats.guess_writer(cfg.out)})")
        else:
            from robot_rl.data import plot

            logs, _ = actions.settle(formats.load(cfg.path, allow_nan=True, **options), **said)
            picture = plot.plot(logs, cfg.out or "data.png")
            answer.note(picture=str(picture))
            print(f"  picture  {picture}")
    except BadData as bad:
        answer.error(f"{cfg.path} cannot be used as it is:")
        answer.note(findings=[str(item) for item in bad.findings])
        for item in bad.findings:
            print(f"  {item.severity:<8} {item}", file=sys.stderr)
        sys.exit(2)


def name_positions(arguments: list[str]) -> list[str]:
    """`info file key=value` as `what=info path=file key=value`."""
    named = iter(("what", "path"))
    found = []
    for item in arguments:
        free = not item.startswith("-") and (os.path.exists(item) or not re.match(r"[+~]*\w+=", item))
        key = next(named, None) if free else None
        # Hydra's grammar gives braces, commas and equals signs a meaning; quoted text has none
        mark = '"' if "'" in item else "'"
        found.append(item if key is None else f"{key}={mark}{item}{mark}")
    return found


@answer.code_of
def session(arguments: list[str]) -> None:
    """Recorded robot sessions: robot-rl data session convert|join|recover …"""
    print(build.tool("real.session_tools").main(arguments[0] if arguments else "", arguments[1:]))
