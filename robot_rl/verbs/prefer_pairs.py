"""A reward from preferences: pairs of pieces of a log, or of pictures of it, who is asked, and the log relabelled."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import torch

from robot_rl import build
from robot_rl.data import d4rl, recorder
from robot_rl.figure import panels, save
from robot_rl.run import RunStart
from robot_rl.stats import rank_correlation
from robot_rl.types import StateDict
from robot_rl.types.options import Count
from robot_rl.verbs.critic_clips import picture_key, without_pictures
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


_PATIENCE = 20  # pairs after which a model that is never understood is given up


class PictureSettings(PairSettings):
    """Numbers of a run about pictures under goals."""

    labels: str = "vlm"
    """vlm (a model that sees pictures), or a pairs.jsonl of an earlier run."""
    camera: str = "front"
    """Which pictures the model sees."""
    goal: str | None = None
    """The sentence; null takes that of each episode of the log."""
    truth: str = "reward"
    """Column that the labels are measured against."""
    keep_ties: bool = False
    """Ties count as one half; false leaves them out."""
    pictures: bool = False
    """Keep the pictures in the relabelled log."""


class PictureJob(PreferenceJob):
    """Pairs of pictures, which a model that sees has an opinion of.

    The reward of a step is that of the picture after it. Pairs are drawn among frames of episodes that were asked the
    same, whatever happened in them.
    """

    smoothing = (0.02, 200)
    form = (
        '{"first": [episode, frame], "second": [episode, frame], "goal": "<a sentence of the log>", '
        '"answer": 0, 1 or -1}'
    )

    def __init__(
        self,
        settings: PictureSettings,
        start: RunStart,
        *,
        make_reward: Callable[[list[str], tuple[int, int]], Any],
        make_labeller: Callable[[Callable[[np.ndarray, str], float]], Any],
    ) -> None:
        """Open the log.

        Args:
            settings: numbers.
            start: where the run begins.
            make_reward: (goals, image size) -> reward, such as `policies.reward.picture_preference.PictureReward`.
            make_labeller: (truth of a picture under a goal) -> labeller with `label` and `counts`; a model of its own
                does not look at the truth.

        Raises:
            ValueError: no such pictures or truth in the log, or no goal.
            FileNotFoundError: no log.
        """
        self._look, self._known = settings, None
        self.store = store = open_log(settings.data)
        self._key = picture_key(settings.camera, store.io.obs)
        height, width = (int(size) for size in store.io.obs[self._key][0][:2])
        said = [settings.goal or store.episode_meta(e).get("instruction") for e in range(len(store))]
        if not all(said):
            raise ValueError("episodes of the log name no instruction; add goal='<sentence>'")
        self.goals = sorted({str(text) for text in said})
        self._goal = np.array([self.goals.index(str(text)) for text in said])
        name = settings.truth if settings.truth in store.names else f"info/{settings.truth}"
        if name not in store.names:
            raise ValueError(f"the log has no column '{settings.truth}' for truth; it has {sorted(store.names)}")
        self._truth = np.asarray(store.column(name), np.float64)
        self._model = make_labeller(self._of_picture)
        super().__init__(settings, store, make=lambda: make_reward(self.goals, (height, width)))
        self._facts |= {"goals": self.goals, "image_size": [height, width]}
        self._open(start)

    def _picture(self, frame: Place) -> np.ndarray:
        return np.asarray(self.store.obs(self._key)[int(self.store.start_obs[frame[0]]) + frame[1]])

    def _true(self, frame: Place) -> float:
        return float(self._truth[int(self.store.start_step[frame[0]]) + frame[1] - 1])

    def _of_picture(self, picture: np.ndarray, goal: str) -> float:
        """Truth of a picture by its content; for scripts."""
        if self._known is None:
            self._known = {}
            for e in range(len(self.store)):
                mark = self.goals[self._goal[e]].encode()
                for t in range(1, int(self.store.length[e]) + 1):
                    self._known[mark + self._picture((e, t)).tobytes()] = self._true((e, t))
        return self._known[goal.encode() + np.ascontiguousarray(picture).tobytes()]

    def _usable(self) -> list[LabelledPair]:
        decided = [pair for pair in self.answers if pair.said != TIE]
        if len(decided) < 10:
            raise ValueError(f"{len(decided)} of {len(self.answers)} answers are decided, expected 10 or more")
        return self.answers if self._look.keep_ties else decided

    def _draw(self, count: int, rng: np.random.Generator | None = None) -> list[LabelledPair]:
        """Pairs of frames: an episode by its length, another that was asked the same, and a frame of each."""
        rng, length = rng or self._rng, np.asarray(self.store.length, np.float64)
        first = rng.choice(len(length), count, p=length / length.sum())
        found = []
        for e in first.tolist():
            same = np.flatnonzero((self._goal == self._goal[e]) & (length > 0))
            other = int(rng.choice(same))
            frames = [(k, int(rng.integers(1, int(length[k]) + 1))) for k in (e, other)]
            found.append(LabelledPair(frames[0], frames[1], int(self._goal[e])))
        return found

    def _labeller(self) -> Callable[[LabelledPair, bool], int | None]:
        counts = self._model.counts

        def label(pair: LabelledPair, there: bool) -> int | None:
            if there:
                return None
            said = self._model.label(self._picture(pair.first), self._picture(pair.second), self.goals[pair.goal])
            if counts.asked >= _PATIENCE and counts.unreadable > 0.5 * counts.asked:
                raise ValueError(
                    f"{counts.unreadable} of {counts.asked} answers were not one integer 0, 1 or -1; this model does "
                    "not do what it is asked: try it by hand, or take another"
                )
            return said

        return label

    def _row(self, pair: LabelledPair) -> dict[str, object]:
        row = {"first": pair.first, "second": pair.second, "goal": self.goals[pair.goal], "answer": pair.said}
        return {**row, "truth": [self._true(pair.first), self._true(pair.second)]}

    def _check_place(self, place: Place) -> str:
        episode, frame = place
        there = 0 <= episode < len(self.store) and 1 <= frame <= self.store.length[episode]
        return "" if there else f"the log has no frame {frame} of episode {episode}"

    def _goal_of(self, row: dict[str, Any]) -> int:
        return self.goals.index(row["goal"])

    def _pairs(self, pairs: list[LabelledPair]) -> Any:
        frames = sorted({frame for pair in pairs for frame in (pair.first, pair.second)})
        place = {frame: i for i, frame in enumerate(frames)}
        return build.tool("policies.reward.picture_preference:PicturePairs")(
            torch.from_numpy(np.stack([self._picture(frame) for frame in frames])),
            torch.tensor([place[pair.first] for pair in pairs]),
            torch.tensor([place[pair.second] for pair in pairs]),
            torch.tensor([pair.goal for pair in pairs]),
            chance_of(pairs),
        )

    def _measure(self, test: list[LabelledPair]) -> dict[str, object]:
        """Answers against the truth, where it differs."""

        def better(pair: LabelledPair) -> bool:
            return self._true(pair.second) > self._true(pair.first)

        def clear(pairs: list[LabelledPair]) -> list[LabelledPair]:
            return [pair for pair in pairs if self._true(pair.first) != self._true(pair.second)]

        decided = clear([pair for pair in self.answers if pair.said != TIE])
        return {
            "goals": len(self.goals),
            "skipped": self._model.counts.skipped,
            "unreadable": self._model.counts.unreadable,
            "label_accuracy": float(np.mean([(p.said == 1) == better(p) for p in decided])) if decided else None,
            "accuracy_truth": self._accuracy(clear(test), better),
        }

    def state_dict(self) -> StateDict:
        """Of the rounds, and what became of the questions."""
        return {**super().state_dict(), "counts": asdict(self._model.counts)}

    def load_state_dict(self, state: StateDict, /) -> None:
        """Continue."""
        super().load_state_dict(state)
        for name, value in state["counts"].items():
            setattr(self._model.counts, name, value)

    def _relabel(self) -> dict[str, object]:
        """The log with learnt rewards, without pictures unless they are kept, and how they rank with the truth."""
        store, s, model = self.store, self._look, self.model
        # a generator of its own: labels that are asked for and labels that are read again are calibrated alike
        probe = [(a.first, a.second) for a in self._draw(1000, np.random.default_rng([s.seed, 1]))]
        model.calibrate(torch.from_numpy(np.stack([self._picture(frame) for pair in probe for frame in pair])))
        out, sums, frames = self.folder / "relabelled", [], ([], [])
        shutil.rmtree(out, ignore_errors=True)  # of a run that was stopped while it wrote
        with recorder.Recorder(out) as writer:
            for e, episode in enumerate(store.episodes()):
                if not len(episode):
                    continue
                pictures = torch.from_numpy(np.array(episode.obs[self._key][1:]))
                reward = model.reward(pictures, self.goals[self._goal[e]]).numpy().astype(np.float32)
                true = self._truth[int(store.start_step[e]) :][: len(episode)]
                sums.append((float(reward.sum(dtype=np.float64)), float(true.sum())))
                frames[0].append(reward)
                frames[1].append(true)
                columns = {**episode.meta.get("columns", {})}
                columns.setdefault("env_reward", np.array(episode.reward, np.float32))
                meta, obs = {**episode.meta, "columns": columns, "instruction": self.goals[self._goal[e]]}, episode.obs
                if not s.pictures and any(not key.startswith("image.") for key in obs):
                    obs = {key: value for key, value in obs.items() if not key.startswith("image.")}
                    meta = without_pictures(meta)
                writer.append(replace(episode, obs=obs, reward=reward, meta=meta))
        learnt, true = np.array(sums).T
        lengths = np.array([len(part) for part in frames[0]])
        goals = self._goal[np.flatnonzero(store.length)]
        return {
            "rank_correlation": _within(goals, learnt, true),
            "rank_correlation_frames": _within(np.repeat(goals, lengths), *(np.concatenate(part) for part in frames)),
            "relabelled": str(out),
        }


def _within(goal: np.ndarray, a: np.ndarray, b: np.ndarray) -> float | None:
    """Rank correlation under each goal, averaged over goals: nothing says how rewards of two goals compare."""
    found = [spearman(a[goal == g], b[goal == g]) for g in np.unique(goal)]
    known = [value for value in found if value is not None]
    return float(np.mean(known)) if known else None
