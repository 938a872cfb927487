"""Rounds of asking which of two is better and of fitting a reward to the answers, as one run in one folder."""

from __future__ import annotations

import json
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from tqdm import tqdm

from robot_rl import build, checkpoint
from robot_rl.checkpoint import CheckpointError
from robot_rl.data.store import Store
from robot_rl.loops.fit import Fit
from robot_rl.parts import Parts
from robot_rl.run import Run, RunStart
from robot_rl.schedule import Schedule
from robot_rl.types import Metrics, Options, StateDict, Stateful
from robot_rl.types.options import Count, NotNegative, Share, Whole

Place = tuple[int, int]
"""(episode, step or observation of it)."""
TIE = -1
ANSWERS = "pairs.jsonl"


class LearntReward(Stateful, Protocol):
    """See `robot_rl.policies.reward.preference.RewardEnsemble`."""

    def update(self, pairs: object) -> Metrics:
        """One step; loss and accuracy."""
        ...

    def probabilities(self, pairs: object) -> Tensor:
        """(E, P) P(second better)."""
        ...

    def calibrate(self, *rows: object) -> None:
        """Bring members to one scale."""
        ...

    def reward(self, rows: object, other: object, /) -> Tensor:
        """(N,) of states and actions, or of pictures and a goal."""
        ...


class PairSettings(Options):
    """Which pairs are asked for, who answers, and how a reward is fitted to the answers."""

    data: str
    """The log, as `robot-rl offline` reads it."""
    labels: str = "return"
    """Who answers: return (a script that compares logged returns), ask (a person at the terminal), vlm (a model that
    sees pictures), or a pairs.jsonl of an earlier run."""
    pairs: Annotated[int, Field(ge=10)] = 500
    """How many pairs in all."""
    error: Annotated[float, Field(ge=0, le=0.5)] = 0.0
    """Share of answers that the script turns round."""
    tie: NotNegative = 0.0
    """Difference of returns below which the script finds two pieces equal."""
    rule: Literal["uniform", "disagreement", "entropy"] = "uniform"
    """Which pairs are asked for: any, or, from the second round on, those with the largest disagreement between members
    or the largest entropy."""
    rounds: Count = 4
    """Of asking and fitting; 1 with rule=uniform."""
    candidates: Count = 10
    """Pairs among which a rule chooses, for each that is asked for."""
    updates: Count = 2000
    """Most updates of the ensemble in a round."""
    accuracy: Share = 0.97
    """Running accuracy on training pairs at which it stops."""
    test_share: Annotated[float, Field(gt=0, lt=0.9)] = 0.2
    """Share of the pairs that is only measured on."""
    seed: Whole = 0
    """Of pieces, split and wrong answers."""


@dataclass(frozen=True)
class LabelledPair:
    """Two places of the log under a goal and what was said: 0 first, 1 second, -1 neither."""

    first: Place
    second: Place
    goal: int = 0
    said: int = TIE


@dataclass
class Progress:
    """How far the rounds are; saved with the rest, so that a resumed run asks what it would have asked.

    Attributes:
        round: from 0.
        asking: whether its pairs are still asked for.
        answered: answers before it.
        began: updates before its fit.
        accuracy: running, of its fit.
    """

    round: int = 0
    asking: bool = True
    answered: int = 0
    began: int = 0
    accuracy: float = 0.0


class PreferenceJob(ABC):
    """Ask, fit, measure, relabel. What is answered is on disk at once; labels=<that file> begins another run with it.

    Attributes:
        folder: of the run.
        store: the log.
        answers: so far.
    """

    form = '{"first": [episode, step], "second": [episode, step], "answer": 0, 1 or -1}'
    """Of a line of answers."""
    smoothing = (0.05, 100)
    """Weight of an update in the running accuracy, and after how many it may end a fit."""

    def __init__(
        self,
        settings: PairSettings,
        store: Store,
        *,
        make: Callable[[], LearntReward],
    ) -> None:
        """Take what the rounds are about; `_open` follows when all is known to fit.

        Args:
            settings: numbers.
            store: the log.
            make: () -> a reward to fit; every round begins with a new one.
        """
        self._s, self.store, self._make = settings, store, make
        self._given = settings.labels not in ("return", "ask", "vlm")
        self._rounds = 1 if self._given or settings.rule == "uniform" else settings.rounds
        self.answers: list[LabelledPair] = []
        self._waits = False  # for a person
        self._rng = np.random.default_rng(settings.seed)
        self._before = self._rng.bit_generator.state  # of the round: its pairs can be drawn again
        self._progress, self._fit, self.model = Progress(), Fit(), make()
        self._facts: dict[str, object] = {"data": settings.data, "fingerprint": store.fingerprint}

    def _open(self, start: RunStart) -> None:
        """Claim the folder; read the answers that there are, of another run or of this one.

        Raises:
            CheckpointError: nothing to resume from, or the run began with another log.
        """
        s = self._s
        if self._given:
            self.answers = self._read(Path(s.labels))
        if start.resume and _fingerprint(start.folder) != self.store.fingerprint:
            raise CheckpointError(f"{s.data} is not the log that the run began with; give the original")
        if start.resume and not self._given and (start.folder / ANSWERS).exists():
            self.answers = self._read(start.folder / ANSWERS)
        self._states: dict[str, Stateful] = {"learner": self.model, "loop": self}
        self._run = Run.open(
            start,
            Schedule(total=self._rounds * s.updates, log_every=50, keep_checkpoints=1, unit="update"),
            Parts(self._states, facts=self._facts),
            sources={"log": {"path": s.data, "fingerprint": self.store.fingerprint}},
            count=lambda: self._fit.updates,
            on_interrupt=self._wake,
        )
        self.folder = self._run.folder

    def run(self) -> dict[str, Any]:
        """Do it all; the report.

        Raises:
            ValueError: too few answers, or too few that are decided.
            CheckpointError: a checkpoint could not be written.
            KeyboardInterrupt: after a Ctrl-C, once everything is saved.
        """
        found: dict[str, Any] = {}
        return self._run.play(lambda: found.update(self._play()), more=lambda: found)

    def _play(self) -> dict[str, Any]:
        """All rounds, and what came of them; nothing where it was interrupted."""
        p = self._progress
        while p.round < self._rounds:
            if p.asking:
                if not self._given and not self._ask_for_all():
                    return {}
                self._split()  # says what is wrong with the answers before a fit
                self.model = self._states["learner"] = self._make()
                p.asking, p.began, p.accuracy = False, self._fit.updates, 0.0
            data = self._pairs(self._split()[0])
            end = p.began + self._s.updates
            done = self._fit.run(
                lambda data=data: self.model.update(data), end, self._run.tick, due=self._run.due, enough=self._enough
            )
            if done:
                p.round, p.asking, p.answered = p.round + 1, True, len(self.answers)
                self._before = self._rng.bit_generator.state
            if not done or self._run.interrupt.asked:
                return {}
        self._run.save()  # whatever the log brings, the reward is not lost
        train, test = self._split()
        found = self._relabel()
        self._run.save()  # its scale as well
        return {
            "pairs": len(self.answers),
            "ties": sum(pair.said == TIE for pair in self.answers),
            "accuracy_train": self._accuracy(train),
            "accuracy_test": self._accuracy(test),
            **self._measure(test),
            **found,
        }

    def _ask_for_all(self) -> bool:
        """Ask for the round's pairs that are not answered yet; whether to go on."""
        s, p = self._s, self._progress
        self._run.save()
        self._rng.bit_generator.state = self._before
        wanted = s.pairs * (p.round + 1) // self._rounds - p.answered
        label = self._labeller()
        with open(self.folder / ANSWERS, "a", encoding="utf-8") as file:
            quick = s.labels != "vlm"  # a script is at once, and a person counts alone
            for number, pair in enumerate(
                tqdm(self._choose(wanted), "asking", unit="pair", file=sys.stderr, leave=False, disable=quick)
            ):
                there = number < len(self.answers) - p.answered  # before a resume
                said = label(pair, there)
                if there:
                    continue
                if said is None:  # that was enough
                    break
                self.answers.append(replace(pair, said=said))
                file.write(json.dumps(self._row(self.answers[-1])) + "\n")
                file.flush()
                if self._run.interrupt.asked:
                    break
        return not self._run.interrupt.asked

    def _choose(self, count: int) -> list[LabelledPair]:
        if not self._progress.round:
            return self._draw(count)
        found = self._draw(count * self._s.candidates)
        chance = self.model.probabilities(self._pairs(found))
        query = build.tool("policies.nets.preferences:query")
        return [found[k] for k in query(chance, len(found), count, rule=self._s.rule)]

    def _enough(self, metrics: Metrics) -> bool:
        weight, least = self.smoothing
        self._progress.accuracy += weight * (metrics["accuracy"] - self._progress.accuracy)
        return self._fit.updates - self._progress.began > least and self._progress.accuracy >= self._s.accuracy

    def _split(self) -> tuple[list[LabelledPair], list[LabelledPair]]:
        """Pairs to fit to, and pairs that are only measured on."""
        kept = self._usable()
        order = np.random.default_rng(self._s.seed).permutation(len(kept))
        out = max(1, round(self._s.test_share * len(kept)))
        return [kept[k] for k in order[out:]], [kept[k] for k in order[:out]]

    def _accuracy(
        self, pairs: list[LabelledPair], wanted: Callable[[LabelledPair], bool] | None = None
    ) -> float | None:
        """Share of decided pairs that the reward orders as they were labelled, or as `wanted`; None without any."""
        rows = pairs if wanted is not None else [pair for pair in pairs if pair.said != TIE]
        if not rows:
            return None
        chance = self.model.probabilities(self._pairs(rows)).mean(0).numpy()
        return float(((chance > 0.5) == np.array([(wanted or _second)(pair) for pair in rows])).mean())

    def _wake(self) -> None:
        """Called on the first Ctrl-C, which does not wait for a person's answer."""
        if self._waits:
            raise KeyboardInterrupt

    @abstractmethod
    def _draw(self, count: int) -> list[LabelledPair]:
        """Pairs to ask for, from `self._rng`."""

    @abstractmethod
    def _labeller(self) -> Callable[[LabelledPair, bool], int | None]:
        """(pair, whether it was answered before) -> the answer, or None for enough."""

    @abstractmethod
    def _row(self, pair: LabelledPair) -> dict[str, object]:
        """A line of the file of answers."""

    @abstractmethod
    def _check_place(self, place: Place) -> str:
        """What is wrong with a place that an answer speaks of, or ""."""

    def _goal_of(self, row: dict[str, Any]) -> int:
        """Under which goal the answer of a line was given."""
        return 0

    def _read(self, path: Path) -> list[LabelledPair]:
        """Answers of a file.

        Raises:
            FileNotFoundError: there is no such file.
            ValueError: a line is no answer, or speaks of what the log does not have.
        """
        if not path.is_file():
            raise FileNotFoundError(f"labels is '{path}', expected return, ask, vlm or a pairs.jsonl of an earlier run")
        answers = []
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            try:
                row = json.loads(line)
                first, second = ((int(row[k][0]), int(row[k][1])) for k in ("first", "second"))
                pair = LabelledPair(first, second, self._goal_of(row), int(row["answer"]))
            except (ValueError, KeyError, TypeError, IndexError) as error:
                message = f"{path}, line {number} is no answer about this log ({error}); expected {self.form}"
                raise ValueError(message) from error
            wrong = next(filter(None, map(self._check_place, (first, second))), "")
            if pair.said not in (0, 1, TIE):
                wrong = f"the answer is {pair.said}, expected 0, 1 or -1"
            if wrong:
                raise ValueError(f"{path}, line {number}: {wrong}")
            answers.append(pair)
        return answers

    @abstractmethod
    def _usable(self) -> list[LabelledPair]:
        """Answers to learn from.

        Raises:
            ValueError: there are too few.
        """

    @abstractmethod
    def _pairs(self, pairs: list[LabelledPair]) -> Any:
        """What the reward is updated with."""

    @abstractmethod
    def _relabel(self) -> dict[str, object]:
        """Write the log with learnt rewards, and how they rank."""

    def _measure(self, test: list[LabelledPair]) -> dict[str, object]:
        """Further lines of the report."""
        return {}

    def state_dict(self) -> StateDict:
        """How far the rounds are."""
        state = self._before if self._progress.asking else self._rng.bit_generator.state
        return {"progress": asdict(self._progress), "fit": self._fit.state_dict(), "rng": state}

    def load_state_dict(self, state: StateDict, /) -> None:
        """Continue exactly, but for what a person, a model or a script that stands for one answers."""
        self._progress = Progress(**state["progress"])
        self._fit.load_state_dict(state["fit"])
        self._rng.bit_generator.state = self._before = state["rng"]


def _fingerprint(folder: Path) -> str:
    return checkpoint.read_meta(checkpoint.find(folder))["fingerprint"]


def _second(pair: LabelledPair) -> bool:
    return pair.said == 1


def chance_of(pairs: list[LabelledPair]) -> Tensor:
    """(P,) probability that the second is better: 0, 1, or one half for a tie."""
    return torch.tensor([0.5 if pair.said == TIE else float(pair.said) for pair in pairs])
