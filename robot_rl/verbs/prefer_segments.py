"""A reward from preferences between pieces of a log: what a piece is, who answers, and the log relabelled."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from robot_rl import build
from robot_rl.data import d4rl
from robot_rl.figure import panels, save
from robot_rl.run import RunStart
from robot_rl.stats import rank_correlation
from robot_rl.types.options import Count
from robot_rl.verbs.logs import open_log
from robot_rl.verbs.prefer_rounds import TIE, LabelledPair, PairSettings, Place, PreferenceJob, chance_of

_PROMPT = "which is better? 1 first, 2 second, 0 equal, q enough: "


class PreferSettings(PairSettings):
    """Numbers of a run about pieces of a log."""

    length: Count = 50
    """Steps of a piece."""


class SegmentJob(PreferenceJob):
    """Pairs of pieces, which a script, a person or a file has an opinion of."""

    def __init__(
        self,
        settings: PreferSettings,
        start: RunStart,
        *,
        make: Callable[[int, int], Any],
        ask: Callable[[str], str] = input,
    ) -> None:
        """Open the log.

        Args:
            settings: numbers.
            start: where the run begins.
            make: (state width, action width) -> ensemble, such as `policies.reward.preference.RewardEnsemble`.
            ask: reads a person's answer to a prompt.

        Raises:
            ValueError: the log has no vector "state", or no episode is long enough.
            FileNotFoundError: there is no log.
        """
        store = open_log(settings.data)
        if set(store.io.obs) != {"state"} or len(store.io.obs["state"][0]) != 1:
            raise ValueError(f"the log has {sorted(store.io.obs)}, expected one vector observation 'state'")
        self._room = np.maximum(store.length - settings.length + 1, 0)
        if not self._room.any():
            raise ValueError(
                f"no episode has {settings.length} steps, the longest has {int(store.length.max(initial=0))}; "
                "choose a smaller length"
            )
        self._steps, self._ask = settings.length, ask
        widths = store.io.obs["state"][0][0], store.io.action_dim
        super().__init__(settings, store, make=lambda: make(*widths))
        self._open(start)

    def _usable(self) -> list[LabelledPair]:
        decided = sum(pair.said != TIE for pair in self.answers)
        if len(self.answers) < 10 or not decided:
            raise ValueError(f"{len(self.answers)} answers, {decided} of them decided; expected ten and at least one")
        return self.answers

    def _draw(self, count: int) -> list[LabelledPair]:
        """Pieces, uniformly over all that fit."""
        edges = np.cumsum(self._room)
        sides = []
        for _ in range(2):
            spot = self._rng.integers(0, edges[-1], count)
            episode = np.searchsorted(edges, spot, side="right")
            sides.append([(int(e), int(x - (edges[e] - self._room[e]))) for e, x in zip(episode, spot)])
        return [LabelledPair(first, second) for first, second in zip(*sides)]

    def _labeller(self) -> Callable[[LabelledPair, bool], int | None]:
        s = self._s
        if s.labels == "return":
            seed = s.seed + self._progress.answered
            script = build.tool("policies.nets.preferences:Scripted")(self._score, error=s.error, tie=s.tie, seed=seed)
            return lambda pair, there: script.label(pair.first, pair.second, "")  # also again: its errors are drawn
        return lambda pair, there: None if there else self._person(pair.first, pair.second)

    def _row(self, pair: LabelledPair) -> dict[str, object]:
        return {"first": pair.first, "second": pair.second, "answer": pair.said, "by": self._s.labels}

    def _check_place(self, place: Place) -> str:
        episode, step = place
        if 0 <= episode < len(self.store) and 0 <= step <= self.store.length[episode] - self._steps:
            return ""
        return (
            f"episode {episode} has no {self._steps} steps from {step} on; were the answers given for this log and "
            "this length?"
        )

    def _score(self, piece: Place) -> float:
        begin = int(self.store.start_step[piece[0]]) + piece[1]
        return float(self.store.column("reward")[begin : begin + self._steps].sum(dtype=np.float64))

    def _person(self, first: Place, second: Place) -> int | None:
        """A person's answer; None to stop."""
        shown = "".join(
            f"\n{name}: {self._describe(piece)}\n" for name, piece in (("first", first), ("second", second))
        )
        shown += self._draw_curves(first, second)
        self._waits = True
        try:
            while not self._run.interrupt.asked:
                said = self._ask(f"{shown}{_PROMPT}").strip().lower()
                if said in ("q", "1", "2", "0"):
                    return {"q": None, "1": 0, "2": 1, "0": TIE}[said]
        except (EOFError, KeyboardInterrupt):
            pass
        finally:
            self._waits = False
        return None

    def _draw_curves(self, first: Place, second: Place) -> str:
        """States and actions of both pieces as pair.png; a line that says so, or nothing without matplotlib."""
        try:
            figure, axes = panels(2, 2, width=4.5, height=2.5, sharex=True, sharey="row")
        except ImportError:
            return ""
        for column, (name, piece) in enumerate((("first", first), ("second", second))):
            for axis, label, rows in zip(axes[:, column], ("state", "action"), self._rows(piece)):
                axis.plot(rows)
                axis.set_ylabel(label)
            axes[0, column].set_title(f"{name}: episode {piece[0]} from step {piece[1]}", fontsize=9)
        save(figure, self.folder / "pair.png", dpi=80)
        return f"\ncurves of both: {self.folder / 'pair.png'}\n"

    def _describe(self, piece: Place) -> str:
        state, action = self._rows(piece)
        meta = self.store.episode_meta(piece[0])
        where = meta.get("path") or meta.get("name") or ""
        numbers = "\n".join(
            f"  {label}: {np.array2string(row, precision=2, suppress_small=True, max_line_width=110)}"
            for label, row in (("begins", state[0]), ("ends", state[-1]), ("mean |action|", np.abs(action).mean(0)))
        )
        return f"episode {piece[0]} {where}, steps {piece[1]} to {piece[1] + self._steps - 1}\n{numbers}"

    def _rows(self, piece: Place) -> tuple[np.ndarray, np.ndarray]:
        o, a = int(self.store.start_obs[piece[0]]) + piece[1], int(self.store.start_step[piece[0]]) + piece[1]
        end = self._steps
        return np.asarray(self.store.obs("state")[o : o + end]), np.asarray(self.store.column("action")[a : a + end])

    def _pairs(self, pairs: list[LabelledPair]) -> Any:
        both = [(self._rows(pair.first), self._rows(pair.second)) for pair in pairs]
        state, action = (
            torch.from_numpy(np.stack([np.stack([piece[k] for piece in pair]) for pair in both]).astype(np.float32))
            for k in (0, 1)
        )
        return build.tool("policies.nets.preferences:Pairs")(state, action, chance_of(pairs))

    def _relabel(self) -> dict[str, object]:
        """The log with learnt rewards, and how its episodes rank by them."""
        store, model = self.store, self.model
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
        path = self.folder / "relabelled.hdf5"
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
