"""Pairs of segments with a preference, as tensors; labels from a person, a script or a vision-language model."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

TIE = -1


@dataclass(frozen=True)
class Pairs:
    """P pairs of segments of K steps.

    Attributes:
        state: (P, 2, K, n).
        action: (P, 2, K, A).
        preferred: (P,) probability that the second segment is the better one: 0, 1, or 0.5 for a tie.
    """

    state: Tensor
    action: Tensor
    preferred: Tensor

    def __len__(self) -> int:
        return len(self.preferred)

    def draw(self, size: int, generator: torch.Generator) -> Pairs:
        """`size` pairs, with replacement, on the generator's device."""
        place = generator.device
        index = torch.randint(len(self), (size,), generator=generator, device=place).to(self.preferred.device)
        return Pairs(*(x[index].to(place) for x in (self.state, self.action, self.preferred)))


class Labeller(Protocol):
    """Whoever says which of two things is better: a person, a script, a vision-language model."""

    def label(self, first: object, second: object, goal: str) -> int:
        """0: the first is better, 1: the second, -1: neither."""
        ...


class Scripted:
    """An oracle that compares scores, wrong with probability `error`, undecided within `tie`."""

    def __init__(self, score: Callable[[Any], float], *, error: float = 0.0, tie: float = 0.0, seed: int = 0) -> None:
        """`score` of a segment or picture; larger is better."""
        self._score, self._error, self._tie = score, error, tie
        self._rng = np.random.default_rng(seed)

    def label(self, first: object, second: object, goal: str) -> int:
        """See `Labeller`."""
        gap = self._score(second) - self._score(first)
        if abs(gap) <= self._tie:
            return TIE
        answer = int(gap > 0)
        return 1 - answer if self._rng.random() < self._error else answer


class Careful:
    """A labeller asked in both orders, with a memory: contradictions and pictures that hardly differ are ties.

    Source: Wang et al., RL-VLM-F (parsing, dropping of equal pictures); asking both orders is ours.
    """

    def __init__(self, inner: Labeller, *, name: str = "", least_difference: float = 1e-3) -> None:
        """Wrap `inner`; `name` (of the model) enters the memory's keys."""
        self._inner, self._name, self._least = inner, name, least_difference
        self._memory: dict[str, int] = {}

    def label(self, first: object, second: object, goal: str) -> int:
        """See `Labeller`."""
        a, b = np.asarray(first), np.asarray(second)
        if a.shape == b.shape and float(np.linalg.norm(a.astype(np.float64) - b.astype(np.float64))) < self._least:
            return TIE
        key = hashlib.blake2b(a.tobytes() + b"|" + b.tobytes() + f"|{goal}|{self._name}".encode()).hexdigest()
        if key not in self._memory:
            there, back = self._inner.label(first, second, goal), self._inner.label(second, first, goal)
            self._memory[key] = there if TIE not in (there, back) and there != back else TIE
        return self._memory[key]


def parse_answer(text: str) -> int:
    """The label in a model's last line; anything that is not 0, 1 or -1 is a tie.

    Source: Wang et al., RL-VLM-F: the model describes both pictures and then answers in one line.
    """
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    answer = lines[-1].rstrip(".") if lines else ""
    return int(answer) if answer in ("0", "1", "-1") else TIE


def make_pairs(
    segments: list[tuple[np.ndarray, np.ndarray]],
    index: np.ndarray,
    labeller: Labeller,
    *,
    goal: str = "",
    view: Callable[[tuple[np.ndarray, np.ndarray]], Any] = lambda segment: segment,
    keep_ties: bool = True,
) -> Pairs:
    """Label pairs of segments.

    Args:
        segments: of (states (K, n), actions (K, A)), equal lengths.
        index: (P, 2) which pairs to ask for.
        labeller: who answers.
        goal: what is asked.
        view: what the labeller sees of a segment.
        keep_ties: ties count as one half; else they are left out. In human data 19 to 64 % of pairs are ties, and they
            are information.

    Raises:
        ValueError: no pair is left.
    """
    rows, preferred = [], []
    for a, b in index.tolist():
        answer = labeller.label(view(segments[a]), view(segments[b]), goal)
        if answer == TIE and not keep_ties:
            continue
        rows.append((a, b))
        preferred.append(0.5 if answer == TIE else float(answer))
    if not rows:
        raise ValueError(f"all {len(index)} pairs are ties; ask for other pairs, or keep_ties=True")
    states, actions = (
        torch.from_numpy(np.stack([[np.asarray(segments[i][k], np.float32) for i in pair] for pair in rows]))
        for k in (0, 1)
    )
    return Pairs(states, actions, torch.tensor(preferred))


def query(probabilities: Tensor | None, count: int, choose: int, *, rule: str = "uniform", seed: int = 0) -> np.ndarray:
    """Which candidate pairs to ask about.

    Args:
        probabilities: (E, C) P(second better) of every ensemble member for C candidates; None with "uniform".
        count: C.
        choose: how many.
        rule: "uniform", "disagreement" (largest standard deviation over members) or "entropy" (of the mean).
        seed: of "uniform".

    Raises:
        ValueError: unknown rule, or probabilities are missing.
    """
    if rule == "uniform":
        return np.random.default_rng(seed).permutation(count)[:choose]
    if probabilities is None or rule not in ("disagreement", "entropy"):
        raise ValueError(f"rule is '{rule}', expected uniform, or disagreement or entropy with probabilities")
    if rule == "disagreement":
        score = probabilities.std(0, correction=0)
    else:
        p = probabilities.mean(0).clamp(1e-6, 1 - 1e-6)
        score = -(p * p.log() + (1 - p) * (1 - p).log())
    return score.argsort(descending=True)[:choose].numpy()
