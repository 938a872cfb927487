"""Verbs about logs: data info, validate, convert, plot and session."""

from __future__ import annotations

import os
import re
import signal
import sys
from dataclasses import fields
from typing import Any, Literal

from omegaconf import DictConfig, OmegaConf

from robot_rl import build
from robot_rl.types.options import Bound, Count, Number, Pixels, Positive
from robot_rl.verbs import answer
from robot_rl.verbs.options import VerbOptions
from robot_rl.words import Refused

_READING = (
    "episode_length", "antmaze_terminal", "maze2d_shift", "terminals", "shuffled", "salvage", "infos", "keys", "filter",
    "success_reward", "map", "ros_distro", "reward", "videos", "image_size", "control_hz", "rows",
)  # fmt: skip


class DataOptions(VerbOptions):
    """robot-rl data; null = the format's default."""

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
    dataset: str | None = None
    """Name such as hopper-medium-v2, which tells limits, sizes and scores."""
    episode_length: Count | None = None
    """D4RL without ends: steps of an episode."""
    antmaze_terminal: Literal["keep", "first_hit"] | None = None
    """D4RL: what ends an episode."""
    maze2d_shift: Literal["none", "fix"] | None = None
    """D4RL: rewards one row late."""
    terminals: Literal["auto", "terminal", "timeout"] | None = None
    """D4RL: what its terminals mean."""
    shuffled: bool = False
    """D4RL: rows in no order, read as single transitions."""
    salvage: bool = False
    """Read what is whole in a damaged file."""
    infos: bool | None = None
    """Also read further columns."""
    keys: tuple[str, ...] | None = None
    """robomimic: observations to keep."""
    filter: str | None = None
    """robomimic: mask such as train."""
    success_reward: Number | None = None
    """robomimic: reward that means success."""
    map: str | None = None
    """CSV and rosbag2: YAML that says which columns or topics are what."""
    ros_distro: str | None = None
    """rosbag2 without type definitions: who recorded it."""
    reward: Literal["none", "column", "success_at_end"] | None = None
    """LeRobot: where rewards come from."""
    videos: bool | None = None
    """LeRobot: decode the cameras."""
    image_size: Pixels | None = None
    """LeRobot: [height,width] to scale frames to."""
    control_hz: Positive | None = None
    """Rate that the file does not tell."""
    rows: Count | None = None
    """Run folder: only this many of the oldest steps of its replay buffer."""
    action: Literal["clip", "rescale", "keep", "normalised"] | None = None
    """convert: what is done to actions; normalised: -1 and +1 are the bounds of the robot (docs/data.md)."""
    action_low: Bound | None = None
    """convert: lower bound of the actions where the log does not tell, a number or a list."""
    action_high: Bound | None = None
    """convert: upper bound."""
    drop_bad_episodes: bool = False
    """convert: leave out episodes with NaN or infinity."""
    dedupe: bool = False
    """convert: keep one of several equal episodes."""
    trust_terminals: bool = False
    """convert: keep terminals at the time limit as true ends."""
    split_gaps: bool = False
    """convert: cut episodes where time stamps do not run on."""


def data(cfg: DictConfig) -> None:
    """Look at a log, validate it, convert it, plot it."""
    from robot_rl.data import convert as conversion
    from robot_rl.data import formats, info
    from robot_rl.data.findings import BadData, Finding, exit_code
    from robot_rl.data.repairs import Repairs

    given: Any = OmegaConf.to_container(cfg, resolve=True)
    options = {key: given[key] for key in _READING if given[key] not in (None, False)}
    if given["dataset"] is not None:
        options["name"] = given["dataset"]

    def show(findings: list[Finding]) -> None:
        for item in findings:
            print(f"  {item.severity:<8} {item.message}")
            if item.repair:
                print(f"  {'':<8}   -> {item.repair}")

    try:
        if cfg.what == "info":
            facts = info.info(cfg.path, **options)
            answer.note(**facts)
            print(info.report(facts))
        elif cfg.what == "validate":
            said = {"action": given["action"], "low": given["action_low"], "high": given["action_high"]}
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
            chosen = {field.name: given[field.name] for field in fields(Repairs)}
            findings = conversion.convert(cfg.path, cfg.out, to=cfg.to, mend=Repairs(**chosen), **options)
            show(findings)
            answer.note(findings=[item.to_dict() for item in findings], written=str(cfg.out))
            print(f"  written  {cfg.out} ({cfg.to or formats.guess_writer(cfg.out)})")
        else:
            from robot_rl.data import plot

            picture = plot.plot(formats.load(cfg.path, allow_nan=True, **options), cfg.out or "data.png")
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
        found.append(item if key is None else f"{key}='{item}'")
    return found


def session(arguments: list[str]) -> int:
    """Recorded robot sessions: robot-rl data session convert|join|recover …"""
    try:
        tools = build.tool("session_tools")
        print(tools.main(arguments[0] if arguments else "", arguments[1:]))
    except (OSError, ValueError) as error:
        answer.error(str(error))
        return 2
    except ImportError as error:
        answer.error(str(error))
        return 1
    return 0
