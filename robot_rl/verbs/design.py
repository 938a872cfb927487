"""Rewards in code, found by trying: propose programs, train on each, rank what came out, propose again."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

from omegaconf import DictConfig, OmegaConf
from pydantic import Field

from robot_rl import build, checkpoint, child, extras
from robot_rl.atomic import write_bytes
from robot_rl.checkpoint import write_json
from robot_rl.expression import Expression
from robot_rl.track import METRICS_FILE, read_metrics
from robot_rl.types.options import Count, Positive
from robot_rl.verbs import answer
from robot_rl.verbs.build import run_folder, saved_config
from robot_rl.verbs.items import train_words
from robot_rl.verbs.options import VerbOptions
from robot_rl.verbs.packaged import compose_config
from robot_rl.verbs.pictures import put_pictures
from robot_rl.verbs.reading import plain, read_options
from robot_rl.verbs.robot import put_card
from robot_rl.verbs.train import TrainOptions
from robot_rl.words import Refused

ATTEMPTS, CONFIG_FILE = "attempts.json", "config.yaml"
_TRIES = 3  # rounds of asking for programs that can be read, in each round of training


@dataclass
class Attempt:
    """One program and what came of it.

    Attributes:
        code: the program.
        round: in which it was proposed, from 0.
        error: why it could not be read or trained; "" where it was.
        score: the task's own score of the policy, larger is better; None where there is none.
        curves: name -> values over training, such as "eval/success".
        run: folder of its training.
        rank: place among all that were trained, 0 the best; None before the first ranking.
    """

    code: str
    round: int
    error: str = ""
    score: float | None = None
    curves: dict[str, list[float]] = field(default_factory=dict)
    run: str = ""
    rank: int | None = None


class Proposer(Protocol):
    """Whoever writes programs: a language model, a person, a list."""

    def propose(self, attempts: Sequence[Attempt], count: int) -> list[str]:
        """Up to `count` new programs, in the light of all attempts so far; none ends the search."""
        ...


def search(
    proposer: Proposer,
    check: Callable[[str], str],
    train: Callable[[str, str], tuple[float | None, dict[str, list[float]], str]],
    rank: Callable[[Sequence[Attempt]], Sequence[int]],
    folder: Path,
    *,
    rounds: int,
    each: int,
    on_attempt: Callable[[Attempt], object] = lambda _: None,
) -> list[Attempt]:
    """Search. Every attempt is on disk at once, and a folder with attempts is continued.

    Args:
        proposer: writes programs.
        check: program -> what is wrong with it, or "".
        train: (program, name) -> score, curves, folder of the run. A RuntimeError is an attempt that failed.
        rank: attempts that were trained -> their order, best first.
        folder: holds attempts.json.
        rounds: of proposing.
        each: programs trained in a round.
        on_attempt: called after each attempt.

    Returns:
        All attempts, best first; those that could not be trained last.

    Raises:
        ValueError: the ranking is no order of what was ranked, or nothing could be trained.

    Source: ICPL: programs from a language model, a person's ranking of the policies and the best and worst as context.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / ATTEMPTS
    attempts = [Attempt(**row) for row in json.loads(path.read_text())] if path.exists() else []

    def keep(attempt: Attempt) -> None:
        attempts.append(attempt)
        write_json(path, [asdict(item) for item in attempts])
        on_attempt(attempt)

    def usable() -> list[Attempt]:
        return [item for item in attempts if not item.error]

    for number in range(rounds):
        for _ in range(_TRIES):
            wanted = each - sum(item.round == number for item in usable())
            codes = proposer.propose(attempts, wanted) if wanted > 0 else []
            for code in codes[:wanted]:
                wrong = check(code)
                if any(item.code == code for item in attempts):
                    wrong = "this program was tried before"
                if wrong:
                    keep(Attempt(code, number, error=wrong))
                    continue
                name = f"program_{number}_{len(attempts)}"
                try:
                    score, curves, run = train(code, name)
                except RuntimeError as error:
                    keep(Attempt(code, number, error=str(error)))
                    continue
                keep(Attempt(code, number, score=score, curves=curves, run=run))
            if not codes:
                break
        found = usable()
        if not found:
            raise ValueError(
                f"none of {len(attempts)} programs could be trained; the last was refused: "
                f"{attempts[-1].error if attempts else 'nothing was proposed'}"
            )
        if any(item.round == number or item.rank is None for item in found):
            order = [int(i) for i in rank(found)]
            if sorted(order) != list(range(len(found))):
                raise ValueError(f"the ranking is {order}, expected an order of 0 to {len(found) - 1}")
            for place, i in enumerate(order):
                found[i].rank = place
            write_json(path, [asdict(item) for item in attempts])
    return sorted(attempts, key=lambda item: (item.rank is None, item.rank or 0))


def by_score(attempts: Sequence[Attempt]) -> list[int]:
    """Best first by the task's own score; without one last."""
    scores = [-1e30 if item.score is None else item.score for item in attempts]
    return sorted(range(len(scores)), key=lambda i: -scores[i])


def by_person(ask: Callable[[str], str] = input) -> Callable[[Sequence[Attempt]], list[int]]:
    """A person at the terminal orders the runs, whose videos and curves lie in their folders."""

    def rank(attempts: Sequence[Attempt]) -> list[int]:
        shown = "\n".join(f"{i + 1}: {item.run}\n   {item.code}" for i, item in enumerate(attempts))
        while True:
            said = ask(f"\n{shown}\nbest to worst, such as 2 1 3: ").replace(",", " ").split()
            if sorted(said) == sorted(str(i + 1) for i in range(len(attempts))):
                return [int(word) - 1 for word in said]

    return rank


class TrainRun:
    """Trains with a program in a process of its own: `robot-rl train <overrides> rewarder=program`.

    The score is the success of the final evaluation, which is made in the world itself, plus a thousandth of where its
    return stands: return / (1 + |return|).

    Args:
        overrides: of robot-rl train.
        folder: where the runs go.
        timeout: seconds for one run.
    """

    def __init__(self, overrides: Sequence[str], folder: Path, *, timeout: float = 3600.0) -> None:
        self._overrides, self._folder, self._timeout = list(overrides), folder, timeout

    def __call__(self, code: str, name: str) -> tuple[float | None, dict[str, list[float]], str]:
        """See `search`.

        Raises:
            RuntimeError: the run failed, with its last line, or took too long.
        """
        quoted = code.replace("\\", "\\\\").replace("'", "\\'")
        given = ["rewarder=program", f"rewarder.code='{quoted}'", f"output={self._folder}", f"name={name}"]
        command = child.command("robot_rl", "train", *self._overrides, *given)
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=self._timeout)
        except subprocess.TimeoutExpired as error:
            raise RuntimeError(f"training took longer than {self._timeout:g} s") from error
        if done.returncode:
            raise RuntimeError(f"training failed: {(done.stderr.strip().splitlines() or ['no message'])[-1]}")
        run = max((self._folder / "train").glob(f"*_{name}*"), key=lambda item: item.stat().st_mtime)
        result = json.loads((run / "evaluation.json").read_text())
        if result["return"] is None:  # JSON has no other word for what is not finite
            raise RuntimeError(f"the return at the end of {run} is not finite")
        gained = float(result["return"])
        score = float(result.get("success", 0.0)) + 1e-3 * gained / (1.0 + abs(gained))
        curves: dict[str, list[float]] = {}
        for row in read_metrics(run / METRICS_FILE):
            for key, value in row.items():
                if value is not None and key in ("eval/success", "eval/return", "rollout/success", "rollout/return"):
                    curves.setdefault(key, []).append(float(value))
        return score, curves, str(run)


def table_of(attempts: Sequence[Attempt]) -> dict[str, object]:
    """Rows to print: place -> score and program."""
    rows = {}
    for i, item in enumerate(attempts):
        said = f"refused: {item.error}" if item.error else "no score" if item.score is None else f"{item.score:.3f}"
        rows[f"{i + 1}"] = f"{said}  {item.code.replace(chr(10), '; ')}"
    return rows


class DesignOptions(VerbOptions):
    """robot-rl design."""

    train: tuple[str, ...] = ()
    """What robot-rl train is given: stands behind --."""
    goal: str = ""
    """The task in words, for a model."""
    model: str | None = None
    """Who proposes: http://127.0.0.1:<port>/v1/chat/completions, a folder, or python:<module>:<object>."""
    model_options: dict[str, object] = Field(default_factory=dict)
    """Of the model, such as {timeout: 30}."""
    codes: tuple[str, ...] | None = None
    """Programs to try in place of a model's."""
    rank: str = "score"
    """score (the task's own, in the final evaluation), ask (a person), python:<module>:<function>."""
    rounds: Count = 3
    """Of proposing and training."""
    each: Count = 4
    """Programs trained in a round."""
    timeout: Positive = 3600
    """Seconds for one training."""
    path: str | None = None
    """A folder of an earlier search: continue it."""


def design(cfg: DictConfig) -> None:
    """Propose programs, train on each, rank, propose again; print them with the best first."""
    if cfg.model is None and cfg.codes is None:
        raise Refused("who proposes? give model=<...> with goal='<the task>', or codes=[<program>,<program>]")
    overrides = [str(item) for item in cfg.train]
    own = [item for item in overrides if item.split("=")[0].split(".")[0] in ("rewarder", "output", "name", "resume")]
    if own:
        raise Refused(f"{own[0]}: the search sets rewarder, output and name itself")
    folder = Path(cfg.path) if cfg.path is not None else run_folder(cfg, "design", "design")
    if cfg.path is not None:
        refuse_other_search(folder, overrides)
    text = saved_config(cfg)
    io = _interface(overrides)
    found = build.tool("policies.reward.program:places")(io)
    widths = {name: len(columns) for name, (_, columns) in found.items()}
    options = OmegaConf.to_container(cfg.model_options, resolve=True)
    if cfg.codes is not None:
        proposer = build.tool("policies.reward.program_proposer:Listed")(list(cfg.codes))
    else:
        model = build.tool("policies.vla.text_models:open_model")(str(cfg.model), options)
        proposer = build.tool("policies.reward.program_proposer:ModelProposer")(model, str(cfg.goal), widths)
    ranks = {"score": by_score, "ask": by_person()}
    rank = ranks.get(str(cfg.rank))
    if rank is None:
        rank = extras.own(str(cfg.rank).removeprefix("python:"), "rank=")

    def check(code: str) -> str:
        try:
            Expression(code, widths)
        except ValueError as error:
            return str(error)
        return ""

    answer.run_folder_is(folder)
    folder.mkdir(parents=True, exist_ok=True)
    write_bytes(folder / CONFIG_FILE, text.encode())
    attempts = search(
        proposer,
        check,
        TrainRun(overrides, folder, timeout=float(cfg.timeout)),
        rank,
        folder,
        rounds=int(cfg.rounds),
        each=int(cfg.each),
        on_attempt=lambda item: print(f"  {item.error or f'score {item.score}'}  {item.code}", flush=True),
    )
    print("best first:")
    answer.table(table_of(attempts))


def refuse_other_search(folder: Path, overrides: Sequence[str]) -> None:
    """Refuse to rank what another training earned beside what this one earns.

    Raises:
        Refused: the folder holds no search, or one whose runs were trained with other words.
        CheckpointError: its configuration cannot be read.
    """
    stored = checkpoint.read_config(folder) if (folder / CONFIG_FILE).is_file() else {}
    if not isinstance(stored.get("train"), list):
        raise Refused(f"{folder} holds no search of robot-rl design; leave path= out to begin one")
    before = [str(word) for word in stored["train"]]
    if sorted(before) != sorted(overrides):
        raise Refused(
            f"the search in {folder} trains with '{' '.join(before)}', not with '{' '.join(overrides)}', and their "
            "scores do not compare; leave path= out to begin another"
        )


def _interface(overrides: list[str]) -> Any:
    """The passport of the world that would be trained in."""
    made = compose_config("train", train_words(overrides))
    OmegaConf.set_struct(made, False)
    read_options(TrainOptions, made, "train")
    put_card(made)
    put_pictures(made)
    with closing(build.make("engine", plain(made.env), num_envs=1, seed=0, device="cpu")) as env:
        return env.io
