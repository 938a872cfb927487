"""A reward from preferences between pictures of a log: whom a model is asked about, and the log relabelled."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import torch

from robot_rl import build
from robot_rl.data import recorder
from robot_rl.run import RunStart
from robot_rl.types import StateDict
from robot_rl.verbs.critic_clips import without_pictures
from robot_rl.verbs.logs import open_log
from robot_rl.verbs.prefer_rounds import TIE, LabelledPair, PairSettings, Place, PreferenceJob, chance_of
from robot_rl.verbs.prefer_segments import spearman

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
        self._key = f"image.{settings.camera}"
        if self._key not in store.io.obs:
            found = [name for name in store.io.obs if name.startswith("image.")]
            raise ValueError(f"the log holds no '{self._key}'; it holds {found or 'no pictures'}")
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
