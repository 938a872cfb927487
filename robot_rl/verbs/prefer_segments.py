"""A reward from preferences: ask which of two pieces of a log is better, fit an ensemble, relabel the whole log."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from tqdm import tqdm

from robot_rl.checkpoint import save_state, write_bytes, write_json
from robot_rl.data import d4rl
from robot_rl.data.store import Store
from robot_rl.extras import require
from robot_rl.stats import rank_correlation
from robot_rl.types import Options
from robot_rl.types.options import Count, NotNegative, Share, Whole
from robot_rl.verbs.logs import open_log

Piece = tuple[int, int]
"""(episode, first step)."""
TIE = -1
_PROMPT = "which is better? 1 first, 2 second, 0 equal, q enough: "


class Ensemble(Protocol):
    """See `robot_rl.policies.reward.preference.RewardEnsemble`."""

    def update(self, pairs: Any) -> dict[str, float]:
        """One step; loss and accuracy."""
        ...

    def probabilities(self, pairs: Any) -> Tensor:
        """(E, P) P(second better)."""
        ...

    def calibrate(self, state: Tensor, action: Tensor) -> None:
        """Bring members to one scale."""
        ...

    def reward(self, state: Tensor, action: Tensor) -> Tensor:
        """(N,)."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Tensors."""
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


class PreferSettings(PairSettings):
    """Numbers of a run about pieces of a log."""

    length: Count = 50
    """Steps of a piece."""


@dataclass
class Answers:
    """Pairs of pieces and what was said: 0 first, 1 second, -1 equal."""

    first: list[Piece]
    second: list[Piece]
    said: list[int]

    def __len__(self) -> int:
        return len(self.said)


class PreferJob:
    """Ask, fit, measure, relabel. What is answered is on disk at once; labels=<that file> goes on with it."""

    def __init__(
        self,
        settings: PreferSettings,
        folder: Path,
        *,
        make: Callable[[int, int], Ensemble],
        tools: Mapping[str, Any],
        config: str,
        ask: Callable[[str], str] = input,
    ) -> None:
        """Open the log.

        Args:
            settings: numbers.
            folder: where everything goes.
            make: (state width, action width) -> ensemble.
            tools: "Pairs", "Scripted" and "query" of the preference module.
            config: the composed configuration as YAML.
            ask: reads a person's answer to a prompt.

        Raises:
            ValueError: the log has no vector "state", or no episode is long enough.
            FileNotFoundError: there is no log.
        """
        self._s, self._folder, self._make, self._tools = settings, folder, make, tools
        self._config, self._ask = config, ask
        self.store = open_log(settings.data)
        if set(self.store.io.obs) != {"state"} or len(self.store.io.obs["state"][0]) != 1:
            raise ValueError(f"the log has {sorted(self.store.io.obs)}, expected one vector observation 'state'")
        self._room = np.maximum(self.store.length - settings.length + 1, 0)
        if not self._room.any():
            raise ValueError(
                f"no episode has {settings.length} steps, the longest has {int(self.store.length.max(initial=0))}; "
                "choose a smaller length"
            )
        self._rng = np.random.default_rng(settings.seed)

    def run(self) -> dict[str, Any]:
        """Do it all.

        Returns:
            pairs, ties, accuracy on training and on held-out pairs (ties left out), rank correlation of learnt and
            logged returns of the episodes, and the relabelled file.

        Raises:
            ValueError: fewer than ten answers, or all of them ties.
        """
        s = self._s
        self._folder.mkdir(parents=True, exist_ok=True)
        write_bytes(self._folder / "config.yaml", self._config.encode())
        width = [self.store.io.obs["state"][0][0], self.store.io.action_dim]
        answers, model = Answers([], [], []), self._make(*width)
        given = s.labels not in ("return", "ask")
        train = test = np.zeros(0, int)
        rounds = 1 if given or s.rule == "uniform" else s.rounds
        if given:
            answers = read_answers(Path(s.labels), self.store, s.length)
        for i in range(rounds):
            if not given:
                wanted = s.pairs * (i + 1) // rounds - len(answers)
                self._label(self._choose(wanted, model if i else None), answers)
            decided = sum(said != TIE for said in answers.said)
            if len(answers) < 10 or not decided:
                raise ValueError(f"{len(answers)} answers, {decided} of them decided; expected ten and at least one")
            train, test = self._split(len(answers))
            model = self._make(*width)
            self._fit(model, self._pairs(answers, train), f"round {i + 1}/{rounds}")
        report = self._relabel(model)
        report = {
            "pairs": len(answers),
            "ties": sum(said == TIE for said in answers.said),
            "accuracy_train": self._right(model, answers, train),
            "accuracy_test": self._right(model, answers, test),
            **report,
        }
        save_state(self._folder / "reward.pt", model.state_dict())
        write_json(self._folder / "report.json", report)
        return report

    def _draw(self, count: int) -> list[Piece]:
        """Pieces, uniformly over all that fit."""
        edges = np.cumsum(self._room)
        spot = self._rng.integers(0, edges[-1], count)
        episode = np.searchsorted(edges, spot, side="right")
        return [(int(e), int(x - (edges[e] - self._room[e]))) for e, x in zip(episode, spot)]

    def _choose(self, count: int, model: Ensemble | None) -> Answers:
        many = count if model is None else count * self._s.candidates
        found = Answers(self._draw(many), self._draw(many), [TIE] * many)
        if model is None:
            return found
        chance = model.probabilities(self._pairs(found, np.arange(many)))
        best = self._tools["query"](chance, many, count, rule=self._s.rule)
        return Answers([found.first[k] for k in best], [found.second[k] for k in best], [TIE] * len(best))

    def _label(self, wanted: Answers, answers: Answers) -> None:
        s = self._s
        script = self._tools["Scripted"](self._score, error=s.error, tie=s.tie, seed=s.seed + len(answers))
        with open(self._folder / "pairs.jsonl", "a", encoding="utf-8") as file:
            for first, second in zip(wanted.first, wanted.second):
                said = script.label(first, second, "") if s.labels == "return" else self._person(first, second)
                if said is None:
                    return
                for kept, value in zip((answers.first, answers.second, answers.said), (first, second, said)):
                    kept.append(value)  # type: ignore[arg-type]
                file.write(json.dumps({"first": first, "second": second, "answer": said, "by": s.labels}) + "\n")
                file.flush()

    def _score(self, piece: Piece) -> float:
        begin = int(self.store.start_step[piece[0]]) + piece[1]
        return float(self.store.column("reward")[begin : begin + self._s.length].sum(dtype=np.float64))

    def _person(self, first: Piece, second: Piece) -> int | None:
        """A person's answer; None to stop."""
        shown = "".join(
            f"\n{name}: {self._describe(piece)}\n" for name, piece in (("first", first), ("second", second))
        )
        shown += self._draw_curves(first, second)
        while True:
            try:
                said = self._ask(f"{shown}{_PROMPT}").strip().lower()
            except EOFError:
                return None
            if said in ("q", "1", "2", "0"):
                return {"q": None, "1": 0, "2": 1, "0": TIE}[said]

    def _draw_curves(self, first: Piece, second: Piece) -> str:
        """States and actions of both pieces as pair.png; a line that says so, or nothing without matplotlib."""
        try:
            require("matplotlib").use("Agg")
            plt = require("matplotlib.pyplot")
        except ImportError:
            return ""
        figure, axes = plt.subplots(2, 2, figsize=(9, 5), sharex=True, sharey="row")
        for column, (name, piece) in enumerate((("first", first), ("second", second))):
            for axis, label, rows in zip(axes[:, column], ("state", "action"), self._rows(piece)):
                axis.plot(rows)
                axis.set_ylabel(label)
            axes[0, column].set_title(f"{name}: episode {piece[0]} from step {piece[1]}", fontsize=9)
        figure.tight_layout()
        figure.savefig(self._folder / "pair.png", dpi=80)
        plt.close(figure)
        return f"\ncurves of both: {self._folder / 'pair.png'}\n"

    def _describe(self, piece: Piece) -> str:
        state, action = self._rows(piece)
        meta = self.store.episode_meta(piece[0])
        where = meta.get("path") or meta.get("name") or ""
        numbers = "\n".join(
            f"  {label}: {np.array2string(row, precision=2, suppress_small=True, max_line_width=110)}"
            for label, row in (("begins", state[0]), ("ends", state[-1]), ("mean |action|", np.abs(action).mean(0)))
        )
        return f"episode {piece[0]} {where}, steps {piece[1]} to {piece[1] + self._s.length - 1}\n{numbers}"

    def _rows(self, piece: Piece) -> tuple[np.ndarray, np.ndarray]:
        o, a = int(self.store.start_obs[piece[0]]) + piece[1], int(self.store.start_step[piece[0]]) + piece[1]
        end = self._s.length
        return np.asarray(self.store.obs("state")[o : o + end]), np.asarray(self.store.column("action")[a : a + end])

    def _pairs(self, answers: Answers, index: np.ndarray) -> Any:
        both = [(self._rows(answers.first[i]), self._rows(answers.second[i])) for i in index]
        state, action = (
            torch.from_numpy(np.stack([np.stack([piece[k] for piece in pair]) for pair in both]).astype(np.float32))
            for k in (0, 1)
        )
        said = torch.tensor([0.5 if answers.said[i] == TIE else float(answers.said[i]) for i in index])
        return self._tools["Pairs"](state, action, said)

    def _split(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        order = np.random.default_rng(self._s.seed).permutation(count)
        out = max(1, round(self._s.test_share * count))
        return order[out:], order[:out]

    def _fit(self, model: Ensemble, pairs: Any, title: str) -> None:
        smooth, bar = 0.0, tqdm(range(self._s.updates), desc=title, unit="update", file=sys.stderr)
        for i in bar:
            smooth += 0.05 * (model.update(pairs)["accuracy"] - smooth)
            if i % 20 == 0:
                bar.set_postfix(accuracy=f"{smooth:.3f}")
            if i > 100 and smooth >= self._s.accuracy:
                break
        bar.close()

    def _right(self, model: Ensemble, answers: Answers, index: np.ndarray) -> float | None:
        """Share of the decided pairs that the ensemble orders as labelled; None where none is decided."""
        index = np.array([i for i in index if answers.said[i] != TIE], int)
        if not len(index):
            return None
        said = np.array([answers.said[i] for i in index])
        chance = model.probabilities(self._pairs(answers, index)).mean(0).numpy()
        return float(((chance > 0.5) == (said > 0)).mean())

    def _relabel(self, model: Ensemble) -> dict[str, Any]:
        """The log with learnt rewards, and how its episodes rank by them."""
        store = self.store
        some = np.random.default_rng([self._s.seed, 1]).permutation(len(store))[:200]  # whether asked or read again
        parts = [store.episode(int(e)) for e in some if store.length[e]]
        state = torch.from_numpy(np.concatenate([np.asarray(e.obs["state"][:-1], np.float32) for e in parts]))
        model.calibrate(state, torch.from_numpy(np.concatenate([np.asarray(e.action, np.float32) for e in parts])))
        episodes, learnt, logged = [], [], []
        for episode in store.episodes():
            if not len(episode):
                continue
            rows = (np.array(episode.obs["state"][:-1], np.float32), np.array(episode.action, np.float32))
            reward = model.reward(*map(torch.from_numpy, rows)).numpy()
            learnt.append(float(reward.sum(dtype=np.float64)))
            logged.append(float(np.sum(episode.reward, dtype=np.float64)))
            columns = {**episode.meta.get("columns", {}), "logged_reward": np.array(episode.reward, np.float32)}
            meta = {**episode.meta, "columns": columns}
            episodes.append(replace(episode, reward=reward.astype(np.float32), meta=meta))
        path = self._folder / "relabelled.hdf5"
        d4rl.write(
            path,
            episodes,
            metadata={"reward": "learnt from preferences"},
            io=self.store.io,
            said=self.store.meta.get("action"),
        )
        return {"rank_correlation": spearman(np.array(learnt), np.array(logged)), "relabelled": str(path)}


def spearman(a: np.ndarray, b: np.ndarray) -> float | None:
    """Rank correlation; None where one side is constant."""
    found = rank_correlation(a, b)
    return found if math.isfinite(found) else None


def read_answers(path: Path, store: Store, length: int) -> Answers:
    """Answers of an earlier run.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: a line is no answer, or speaks of steps that the log does not have.
    """
    if not path.is_file():
        raise FileNotFoundError(f"labels is '{path}', expected return, ask, or a pairs.jsonl of an earlier run")
    answers = Answers([], [], [])
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            row = json.loads(line)
            first, second = ((int(row[k][0]), int(row[k][1])) for k in ("first", "second"))
            said = int(row["answer"])
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise ValueError(
                f'{path}, line {number} is no answer ({error}); expected {{"first": [episode, step], "second": '
                '[episode, step], "answer": 0, 1 or -1}'
            ) from error
        for episode, step in (first, second):
            if not 0 <= episode < len(store) or not 0 <= step <= store.length[episode] - length:
                raise ValueError(
                    f"{path}, line {number}: episode {episode} has no {length} steps from {step} on; were the answers "
                    "given for this log and this length?"
                )
        if said not in (0, 1, TIE):
            raise ValueError(f"{path}, line {number}: the answer is {said}, expected 0, 1 or -1")
        answers.first.append(first)
        answers.second.append(second)
        answers.said.append(said)
    return answers
