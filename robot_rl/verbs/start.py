"""A verb from its words: what is wrong with them, what Hydra makes of them, and errors as one readable paragraph."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, MissingMandatoryValue, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from robot_rl import extras
from robot_rl.verbs import answer
from robot_rl.verbs.build import REFUSALS, clear_refused, keep_planned
from robot_rl.verbs.compose import choices, find_wrong_name, find_wrong_value, groups_of, other_keys
from robot_rl.verbs.data import name_positions, session
from robot_rl.verbs.doctor import doctor
from robot_rl.verbs.help import page
from robot_rl.verbs.items import (
    WORDED,
    as_policy_option,
    find_slip,
    find_unreadable,
    nearest,
    quote_signs,
    take_own,
    train_words,
)
from robot_rl.verbs.options import Env
from robot_rl.verbs.packaged import compose_config
from robot_rl.verbs.pictures import put_pictures
from robot_rl.verbs.reading import read_options, run_of, stored_config
from robot_rl.verbs.replay import as_replay_option
from robot_rl.verbs.robot import put_card, robot
from robot_rl.verbs.sweep import VERBS as SWEPT
from robot_rl.verbs.sweep import conclude, sweep
from robot_rl.verbs.table import VERBS, Verb
from robot_rl.verbs.tune import tune
from robot_rl.words import Refused
from robot_rl.zoo import as_path


@dataclass
class _Several:
    """The runs of one -m.

    Attributes:
        folder: of what they have in common.
        words: folder of each run -> what it was told.
    """

    folder: Path = Path()
    words: dict[Path, list[str]] = field(default_factory=dict)

    def add(self, folder: Path | None) -> None:
        """A run is done that wrote there."""
        settings = HydraConfig.get()
        if settings.mode == RunMode.MULTIRUN and folder is not None:
            self.folder = self.folder if self.words else Path(settings.sweep.dir)
            self.words[folder] = list(settings.overrides.task)


def _guard(verb: Verb, debug: bool, several: _Several) -> Callable[[DictConfig], None]:
    """Turn errors into one readable paragraph; --debug keeps the traceback."""

    def task(cfg: DictConfig) -> None:
        OmegaConf.set_struct(cfg, False)  # absent optional groups read as None, and a run's saved groups can be joined
        answer.begin()
        try:
            if cfg.get("resume") is None:  # else with what the run was started with
                read_options(verb.options(), cfg, verb.config)
                if issubclass(verb.options(), Env):
                    put_card(cfg)
                put_pictures(cfg)
            extras.allow(everything=cfg.trust is True, changed=cfg.trust == "changed")
            if verb.config == "design":
                check_training(cfg.train)
            verb.run(cfg)
            several.add(answer.folder())
            keep_planned()
        except KeyboardInterrupt:
            answer.note(interrupted=True)
            print("\ninterrupted", file=sys.stderr)
            sys.exit(130)
        except BrokenPipeError:  # robot-rl … | head, which `robot_rl.cli` hears of
            raise
        except Exception as error:
            if debug or cfg.debug:
                traceback.print_exc()
            missing = missing_options(cfg, error)
            answer.error(missing or answer.message_of(error))
            begun = clear_refused()  # what fails on the way is no wrong request
            sys.exit(2 if missing or (isinstance(error, REFUSALS) and not begun) else 1)

    return task


def missing_options(cfg: DictConfig, error: BaseException | None) -> str:
    """Which options have to be given, where that is what the error is about, else ""."""
    while error is not None and not isinstance(error, MissingMandatoryValue):
        error = error.__cause__ or error.__context__
    if error is None:
        return ""
    name = str(error.full_key or error.key)
    found = [key for key in sorted(OmegaConf.missing_keys(cfg)) if key.split(".")[-1] == name.split(".")[-1]]
    groups = {key.rpartition(".")[0] for key in found}
    all_open = [key for key in sorted(OmegaConf.missing_keys(cfg)) if key.rpartition(".")[0] in groups] or [name]
    verb = "this has" if len(all_open) == 1 else "these have"
    return f"{verb} to be given: {' '.join(f'{key}=<...>' for key in all_open)}"


def add_to_env_of_run(items: list[str]) -> list[str]:
    """`env.KEY=VALUE` as Hydra takes options of the environment that a run brings, where none is chosen."""
    keys = {item.partition("=")[0] for item in items}
    if "path" not in keys or "env" in keys:
        return items
    return [f"+{item}" if item.startswith("env.") else item for item in items]


def join_train_words(items: list[str]) -> list[str]:
    """What stands behind "--" as one list, train=[...]; its brackets and equal signs are not Hydra's affair."""
    if "--" not in items:
        return items
    at = items.index("--")
    quoted = ["'" + item.replace("\\", "\\\\").replace("'", "\\'") + "'" for item in items[at + 1 :]]
    return [*items[:at], f"train=[{','.join(quoted)}]"]


SYNONYMS = {"total_steps": "updates", "updates": "total_steps", "steps": "total_steps", "task": "env"}


def find_unknown(verb: str, overrides: list[str]) -> str:
    """What is wrong with the first key that this verb has not, or with a group that is set to nothing, or "".

    Hydra's advice would be to add the key; to a group's null it answers with a trace.
    """
    config = VERBS[verb].config
    groups = set(groups_of(config))
    keys = {"hydra", *groups, *other_keys(config), *VERBS[verb].options().model_fields}
    written = find_slip(verb, overrides, keys, groups)
    if written:
        return written
    for place, item in enumerate(overrides):
        if place and overrides[place - 1] in WORDED:
            continue
        if "=" not in item and item[:1] not in ("-", "~"):
            word = f"; did you mean {verb} {item}=<...>?" if item in keys else ""
            return f"'{item}' is no option, expected key=value{word or f'; all keys: robot-rl {verb} --help'}"
        if item.startswith("="):
            return f"'{item}' has no name before the equal sign, expected key=value; all keys: robot-rl {verb} --help"
        key = item.split("=")[0].split("@")[0]
        top = key.replace("/", ".").split(".")[0]
        if key in groups and item.partition("=")[2] in ("null", "true", "false"):
            there = choices(key)
            instead = "; estimate=0 for no estimate" if (verb, key) == ("offline", "ope") else ""
            shown = ", ".join(there[:12]) + (" …" if len(there) > 12 else "")
            return f"robot-rl {verb} {item}: {key} is one of {shown}{instead}"
        if "=" not in item or not top.isidentifier() or top in keys:
            continue  # a flag, "+key=", "~key", or known; what lies below a key Hydra knows better
        hint = f"; did you mean {SYNONYMS[top]}?" if SYNONYMS.get(top) in keys else nearest(top, keys)
        return f"robot-rl {verb} has no key '{top}'{hint} all keys: robot-rl {verb} --help"
    return ""


def check_training(items: Sequence[str]) -> None:
    """Refuse what robot-rl train would refuse, before a search that trains with these words begins.

    Raises:
        Refused: with what train would say.
    """
    words = train_words([str(item) for item in items])
    wrong = find_unknown("train", words) or find_unreadable(words) or find_wrong_name("train", words)
    if wrong:
        raise Refused(wrong)


def start(verb: str, rest: list[str], *, debug: bool) -> None:
    """Run a verb and leave the process where something is wrong.

    Args:
        verb: of `robot_rl.cli.NAMES`.
        rest: the words behind it.
        debug: show tracebacks.
    """
    without_configuration = {"doctor": doctor, "robot": robot, "sweep": sweep, "tune": tune}
    if verb in without_configuration:
        sys.exit(without_configuration[verb](rest))
    if verb == "data" and rest[:1] == ["session"]:
        sys.exit(session(rest[1:]))
    config = VERBS[verb].config
    first = {"bench": "suite", "critic": "what"}.get(verb)
    if first and rest and "=" not in rest[0] and not rest[0].startswith("-"):
        rest[0] = f"{first}={rest[0]}"
    if verb == "data":
        rest = name_positions(rest)
    if verb == "train":
        rest = [as_policy_option(item) for item in rest]
    if verb == "replay":
        rest = [as_replay_option(item) for item in rest]
    if verb == "design":
        rest = join_train_words(rest)
    flags, kept = False, None
    try:
        if {"-h", "--help"} & set(rest):
            chosen = [item for item in take_own(rest) if "=" in item]
            wrong = find_unreadable(chosen) or find_wrong_name(config, chosen)
            if wrong:
                _refuse(wrong)
            print(page(config, chosen))
            return
        if verb.startswith("eval") or verb in ("collect", "export", "deploy"):
            rest = add_to_env_of_run([as_path(item, "policy_path" if verb == "deploy" else "path") for item in rest])
        rest = take_own(rest)
        kept, rest = _resume_config(rest), quote_signs(rest)
        flags = any(item.startswith("-") or item.lstrip("+").startswith("hydra") for item in rest)
        wrong = find_unknown(verb, rest) or find_unreadable(rest) or find_wrong_value(config, rest)
        if not wrong and (flags or kept is not None):  # else where Hydra refuses a word, since it composes
            wrong = find_wrong_name(config, rest, kept)
        if kept is not None:  # what Hydra composes are the defaults, which may lack an option that the run has
            rest = [f"++{item}" if "." in item.split("=")[0] and item[0] not in "+-~" else item for item in rest]
    except (Refused, ValueError, ImportError) as error:
        if debug:
            raise
        wrong = str(error)
    if wrong:
        _refuse(wrong)
    os.environ["HYDRA_FULL_ERROR"] = "1"  # its errors are raised, and told below
    sys.argv = [f"robot-rl {verb}", *rest]
    several = _Several()
    task = _guard(VERBS[verb], debug, several)
    try:
        if flags:
            hydra.main(config_path="pkg://robot_rl.configs", config_name=config, version_base="1.3")(task)()
        else:  # Hydra's own program composes twice, the first time to find its mode
            task(compose_config(config, rest, with_hydra=True))
    except (HydraException, OmegaConfBaseException) as error:
        if debug:
            raise
        wrong = "" if flags else find_wrong_name(config, rest, kept)
        _refuse(wrong or f"{' '.join(str(error).split())} (all keys: robot-rl {verb} --help)")  # of "+" and "++"
    if verb in SWEPT:
        conclude(several.words, several.folder)


def _resume_config(items: Sequence[str]) -> DictConfig | None:
    """The configuration of the run that `resume=` names; None without one, or where none can be read (told later)."""
    named = [item.partition("=")[2].strip("'\"") for item in items if item.startswith("resume=")]
    if not named:
        return None
    try:
        return stored_config(run_of(named[-1]))
    except (*REFUSALS, OSError):
        return None


def _refuse(text: str) -> NoReturn:
    answer.error(text)
    sys.exit(2)
