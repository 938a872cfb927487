"""Intrinsic reward from messages that a slow model labels while the policy goes on learning."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol, TextIO, runtime_checkable

import numpy as np
import torch
from pydantic import Field
from torch import nn

from robot_rl.expression import Expression, observables
from robot_rl.policies.nets.picture_labels import VisionModel, read_label
from robot_rl.policies.reward.annotator_worker import LabelWorker
from robot_rl.policies.vla.text_models import open_model, user_object
from robot_rl.types import IOSpec, Options, StateDict
from robot_rl.types.options import Count, NotNegative, Part, Positive

_ONE = 'The goal is: "{goal}".\nThe robot reports: {first}\nDoes this help? Answer with one integer alone: 1 yes, 0 no.'
_TWO = (
    'The goal is: "{goal}".\nA robot reported, in two situations:\n0: {first}\n1: {second}\nWhich is nearer to the '
    "goal? Answer with one integer alone: 0, 1, or -1 if it is not clear."
)


class Messages(Protocol):
    """What the robot reports of a situation."""

    def bind(self, io: IOSpec) -> None:
        """Find what messages are made of."""
        ...

    def __call__(self, seen: Mapping[str, object]) -> list[str]:
        """N messages."""
        ...


@runtime_checkable
class LearnableMessages(Messages, Protocol):
    """Messages that a network can read, for the modes that learn."""

    def features(self, message: str) -> np.ndarray:
        """(k,) numbers."""
        ...


class ObservableCells:
    """Messages out of observables: their values in steps of `size`, such as "tip_to_goal=0,-2,1".

    Args:
        names: observables, see `observables`.
        size: width of a cell, in units of the state.

    Raises:
        ValueError: no names, or a size that is not above 0.
    """

    def __init__(self, names: Sequence[str], size: float) -> None:
        if not names or not size > 0:
            raise ValueError(
                f"names are {list(names)} and size is {size}; expected the observables that a message is made of, "
                "rewarder.names=[<name>,<name>], and a size above 0"
            )
        self._names, self._size, self._columns = list(names), float(size), []

    def bind(self, io: IOSpec) -> None:
        """Find the observables.

        Raises:
            ValueError: there are none of these names in the state.
        """
        found = observables(io.obs_names, io.obs["state"][0][0], ()) if "state" in io.obs else {}
        there = {name: columns for name, (kind, columns) in found.items() if kind == "state"}
        unknown = [name for name in self._names if name not in there]
        if unknown:
            raise ValueError(f"the state has no {', '.join(unknown)}; it has {', '.join(sorted(there))}")
        self._columns = [there[name] for name in self._names]

    def __call__(self, seen: Mapping[str, object]) -> list[str]:
        """N messages."""
        cells = np.rint(np.asarray(seen["state"], np.float64) / self._size).astype(int)
        return [
            " ".join(
                f"{name}={','.join(str(row[i]) for i in columns)}" for name, columns in zip(self._names, self._columns)
            )
            for row in cells
        ]

    def features(self, message: str) -> np.ndarray:
        """(k,) the cell's centre."""
        return np.array([float(x) for x in re.findall(r"-?\d+(?=[,\s]|$)", message)]) * self._size


class ProgramAnnotator:
    """A `VisionModel` in place of a large one: a program over the centre of the reported cell.

    Asked about one message it says 1 where the program is not 0; about two, which has the larger value.

    Args:
        code: see `Expression`; its names are the observables of the messages.
        size: of the cells.
    """

    def __init__(self, code: str, size: float) -> None:
        self._code, self._size = code, size

    def answer(self, pictures: Sequence[np.ndarray], text: str) -> str:
        """See `VisionModel`."""
        reported = text.rpartition('".\n')[2]  # behind the goal, whose words may look like a message
        lines = [line for line in reported.splitlines() if re.search(r"\w+=-?\d", line)]
        values = []
        for line in lines:
            cells = {name: np.array([[float(x) for x in row.split(",")]]) * self._size
                     for name, row in re.findall(r"(\w+)=(-?\d+(?:,-?\d+)*)", line)}  # fmt: skip
            values.append(float(Expression(self._code, {k: v.shape[1] for k, v in cells.items()})(cells)[0]))
        if len(values) == 1:
            return str(int(values[0] != 0))
        return "-1" if values[0] == values[1] else str(int(values[1] > values[0]))


class LabelOptions(Options):
    """How labels of messages become a reward."""

    mode: Literal["retrieval", "classification", "ranking"] = "retrieval"
    """What pays: the label of the message, a network learnt from labels, or one learnt from pairs."""
    goal: str = ""
    """In words, for the labeller."""
    scale: Positive = 0.4
    """Factor of the label."""
    beta: NotNegative = 3.0
    """How fast a message that comes again in an episode pays less."""
    keep: NotNegative = 1.0
    """Factor of the environment's reward."""
    queue: Count = 256
    """Messages that wait at most; the oldest is dropped and may come again."""
    inline: bool = False
    """Label at once, without a thread."""
    fit_every: Count = 32
    """New labels between two fits of the network."""
    quantile: Part = 0.5
    """Of "ranking": what is below it pays nothing."""
    save: str | None = None
    """File for the table; a number is appended where it is there already."""
    replay: str | None = None
    """A saved table, in place of a labeller."""


class AsyncLabelReward:
    """keep * the environment's reward + scale * label(message) / count^beta; for `rewarder=annotator`.

    `count` is how often the message came in this episode. A message that is new is queued for the labeller, which works
    in a thread; answers become visible between control steps alone, each with a version and the step at which it did.
    "retrieval": the label 1 or 0 of the message, 0 while it has none. "classification": a network learnt from labels,
    > .5. "ranking": a network learnt from pairs of messages (Bradley-Terry), standardised over the messages met, 0
    below the `quantile`. Unreadable answers are 0, or no preference.

    With `replay` no labeller is asked: the rows of a saved table become visible at the same steps, so that a run is
    repeated exactly.

    Args:
        options: how labels become a reward.
        messages: what is reported; `LearnableMessages` for the modes that learn.
        labeler: with `answer(pictures, text)`; None with `replay`.
        seed: of the network and of the pairs.

    Raises:
        ValueError: messages without features in a mode that learns, nobody who labels, or a table of another mode.
        FileNotFoundError: no such table.

    Source: Zheng et al., Online Intrinsic Rewards for Decision Making Agents from LLM Feedback (ONI): the three modes,
    scale .4, labels 1 and 0. Written from the paper's description; beta 3 is recalled.
    """

    cameras: tuple[str, ...] = ()

    def __init__(
        self, options: LabelOptions, messages: Messages, labeler: VisionModel | None, *, seed: int = 0
    ) -> None:
        if (labeler is None) == (options.replay is None):
            raise ValueError("expected either a model that labels or replay=<table>")
        self._features: Callable[[str], np.ndarray] | None = None
        if options.mode != "retrieval":
            if not isinstance(messages, LearnableMessages):
                raise ValueError(f"mode={options.mode} learns from features(message), which the messages do not have")
            self._features = messages.features
        self.o, self._messages, self._model = options, messages, labeler
        self._rng, self._seed = np.random.default_rng(seed), seed
        self._worker = None if labeler is None else LabelWorker(self._answer, most=options.queue, inline=options.inline)
        self._replay = None if options.replay is None else read_table(Path(options.replay))
        ranked = options.mode == "ranking"
        if any((row["other"] is not None) != ranked for row in self._replay or ()):
            raise ValueError(
                f"{options.replay} holds labels of {'single messages' if ranked else 'pairs'}, and mode={options.mode} "
                f"reads those of {'pairs' if ranked else 'single messages'}; give the mode of its run"
            )
        self._file: TextIO | None = None
        self.rows: list[dict[str, Any]] = []
        """The table: step, version, key, other (of "ranking", else None), label."""
        self.steps, self.unreadable = 0, 0
        self._labels: dict[str, float] = {}
        self._met: dict[str, None] = {}  # in order of appearance
        self._counts: list[Counter[str]] = []
        self._net: Callable[[Sequence[str]], np.ndarray] | None = None
        self._fitted = 0

    def bind(self, io: IOSpec) -> None:
        """Find what messages are made of."""
        self._messages.bind(io)

    def start(self, rows: np.ndarray, seen: Mapping[str, object]) -> None:
        """Episodes of `rows` (N,) bool begin: their messages are counted from 0."""
        if len(self._counts) != len(rows):
            self._counts = [Counter() for _ in range(len(rows))]
        for i in np.flatnonzero(rows):
            self._counts[i] = Counter()

    def step(self, seen: Mapping[str, Any], ended: np.ndarray) -> np.ndarray:
        """(N,) reward after a control step.

        Raises:
            RuntimeError: the labeller failed five times on end.
        """
        self.steps += 1
        messages = self._messages(seen)
        for message in messages:
            self._meet(message)
        self._take()
        for count, message in zip(self._counts, messages):
            count[message] += 1
        often = np.array([count[message] for count, message in zip(self._counts, messages)], np.float64)
        return self.o.keep * seen["env_reward"] + self.o.scale * self._value(messages) / often**self.o.beta

    def _meet(self, message: str) -> None:
        if message in self._met:
            return
        if self._worker is not None:
            other = None
            if self.o.mode == "ranking":
                if self._met:
                    known = list(self._met)
                    other = known[int(self._rng.integers(len(known)))]
                else:
                    self._met[message] = None
                    return  # the first message has nothing to be compared with yet
            lost = self._worker.ask((message, other))
            if lost is not None:
                self._met.pop(lost[0], None)
        self._met[message] = None

    def _answer(self, question: tuple[str, str | None]) -> int | None:
        assert self._model is not None
        message, other = question
        ask = _ONE.format(goal=self.o.goal, first=message) if other is None else ""
        ask = ask or _TWO.format(goal=self.o.goal, first=message, second=other)
        return read_label(self._model.answer([], ask))

    def _take(self) -> None:
        """Make visible what was answered, and learn from it."""
        new: list[dict[str, Any]] = []
        if self._replay is not None:
            place = len(self.rows)
            while place < len(self._replay) and self._replay[place]["step"] <= self.steps:
                new.append(self._replay[place])
                place += 1
        elif self._worker is not None:
            for (message, other), label in self._worker.fetch():
                self.unreadable += label is None
                said = label if label is not None else (0 if other is None else -1)
                version = len(self.rows) + len(new) + 1
                new.append({"step": self.steps, "version": version, "key": message, "other": other, "label": said})
        for row in new:
            self.rows.append(row)
            if row["other"] is None:
                self._labels[row["key"]] = float(row["label"] == 1)
            self._met.setdefault(row["key"], None)
            self._write(row)
        if self.o.mode != "retrieval" and len(self.rows) - self._fitted >= self.o.fit_every:
            self._fit(len(self.rows))

    def _value(self, messages: Sequence[str]) -> np.ndarray:
        if self.o.mode == "retrieval":
            return np.array([self._labels.get(message, 0.0) for message in messages])
        if self._net is None:
            return np.zeros(len(messages))
        return self._net(messages)

    def _fit(self, count: int) -> None:
        """A network from the first `count` rows; the same rows give the same network."""
        features = self._features
        assert features is not None  # the modes that learn have them
        self._fitted = count
        rows = [row for row in self.rows[:count] if row["other"] is None or row["label"] != -1]
        if not rows:
            return
        one = torch.from_numpy(np.stack([features(row["key"]) for row in rows])).float()
        label = torch.tensor([float(row["label"] == 1) for row in rows])
        mean, std = one.mean(0), one.std(0, correction=0).clamp_min(1e-3)
        ranked = rows[0]["other"] is not None
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self._seed)
            net = nn.Sequential(nn.Linear(one.shape[1], 32), nn.Tanh(), nn.Linear(32, 1))
        other = None
        if ranked:
            other = (torch.from_numpy(np.stack([features(row["other"]) for row in rows])).float() - mean) / std
        step = torch.optim.Adam(net.parameters(), 1e-2, weight_decay=1e-4)
        for _ in range(200):
            logit = net((one - mean) / std)[:, 0]
            if other is not None:
                logit = net(other)[:, 0] - logit
            loss = nn.functional.binary_cross_entropy_with_logits(logit, label)
            step.zero_grad()
            loss.backward()
            step.step()

        @torch.no_grad()
        def raw(messages: Sequence[str]) -> np.ndarray:
            x = torch.from_numpy(np.stack([features(message) for message in messages])).float()
            return net((x - mean) / std)[:, 0].double().numpy()

        if not ranked:
            self._net = lambda messages: (raw(messages) > 0).astype(np.float64)
            return
        known = raw(sorted({row[key] for row in rows for key in ("key", "other")}))
        middle, wide = float(known.mean()), max(float(known.std()), 1e-6)
        floor = float(np.quantile((known - middle) / wide, self.o.quantile))

        def ranks(messages: Sequence[str]) -> np.ndarray:
            value = (raw(messages) - middle) / wide
            return np.where(value < floor, 0.0, value)

        self._net = ranks

    def _write(self, row: Mapping[str, object]) -> None:
        if self.o.save is None:
            return
        if self._file is None:
            first, number = Path(self.o.save), 2
            path = first
            while path.exists():
                path, number = first.with_name(f"{first.stem}-{number}{first.suffix}"), number + 1
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = open(path, "w", encoding="utf-8")  # noqa: SIM115  (open as long as the run)
            for earlier in self.rows[:-1]:  # of a run that was continued: a table is whole
                self._file.write(json.dumps(earlier) + "\n")
        self._file.write(json.dumps(row) + "\n")
        self._file.flush()

    def close(self) -> None:
        """End the thread and the file."""
        if self._worker is not None:
            self._worker.close()
        if self._file is not None:
            self._file.close()
            self._file = None

    def state_dict(self) -> StateDict:
        """Exact continuation, but for what the labeller is working on: that is asked again."""
        done = {row["key"] for row in self.rows}
        first = next(iter(self._met), None)  # of "ranking": never asked about by itself
        kept = [m for m in self._met if m in done or (self.o.mode == "ranking" and m == first) or self._worker is None]
        return {
            "rows": json.dumps(self.rows), "met": json.dumps(kept), "steps": self.steps,
            "fitted": self._fitted, "unreadable": self.unreadable, "rng": json.dumps(self._rng.bit_generator.state),
            "counts": json.dumps([dict(count) for count in self._counts]),
        }  # fmt: skip

    def load_state_dict(self, state: StateDict) -> None:
        """Continue."""
        self.rows, self._met = json.loads(state["rows"]), dict.fromkeys(json.loads(state["met"]))
        self.steps, self.unreadable = int(state["steps"]), int(state["unreadable"])
        self._rng.bit_generator.state = json.loads(state["rng"])
        self._counts = [Counter(count) for count in json.loads(state["counts"])]
        self._labels = {row["key"]: float(row["label"] == 1) for row in self.rows if row["other"] is None}
        if int(state["fitted"]):
            self._fit(int(state["fitted"]))


class AnnotatorOptions(LabelOptions):
    """Of `rewarder=annotator`."""

    model: str | None = None
    """Who labels: "program:<expression>" (`ProgramAnnotator`), or whatever `open_model` opens; null with `replay`."""
    model_options: Mapping[str, object] = Field(default_factory=dict)
    """Of the model."""
    names: tuple[str, ...] = ()
    """Observables that a message is made of; see `ObservableCells`."""
    size: Positive = 0.5
    """Width of a cell, in units of the state."""
    messages: str | None = None
    """"python:<module>:<object>" in place of cells."""


def annotator(options: AnnotatorOptions, *, seed: int = 0) -> AsyncLabelReward:
    """`AsyncLabelReward` from plain values, for `rewarder=annotator`.

    Args:
        options: who labels what, and how it pays.
        seed: of the network and of the pairs.

    Raises:
        ValueError: nobody who labels, or no messages.
    """
    o, own = options, options.messages
    keys = ObservableCells(o.names, o.size) if own is None else user_object(own)
    labeler: VisionModel | None = None
    if o.replay is None and o.model is not None:
        script = o.model.startswith("program:")
        labeler = (
            ProgramAnnotator(o.model.removeprefix("program:"), o.size)
            if script
            else open_model(o.model, o.model_options)
        )
    return AsyncLabelReward(options, keys, labeler, seed=seed)


def read_table(path: Path) -> list[dict[str, Any]]:
    """Rows of a saved table.

    Raises:
        FileNotFoundError: no such file.
        ValueError: a line is no row, or steps go back.
    """
    rows: list[dict[str, object]] = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            row = json.loads(line)
            made = {"step": int(row["step"]), "version": int(row["version"]), "key": str(row["key"]),
                    "other": row["other"], "label": int(row["label"])}  # fmt: skip
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path}, line {number} is no label ({error})") from error
        if rows and made["step"] < rows[-1]["step"]:
            raise ValueError(f"{path}, line {number}: steps go back from {rows[-1]['step']} to {made['step']}")
        rows.append(made)
    return rows
