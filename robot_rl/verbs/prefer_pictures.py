"""A reward from preferences between pictures of a log: ask, fit, measure, relabel."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from robot_rl.checkpoint import save_state, write_bytes, write_json
from robot_rl.data import recorder
from robot_rl.verbs.critic_clips import without_pictures
from robot_rl.verbs.logs import open_log
from robot_rl.verbs.prefer_segments import TIE, PairSettings, spearman

Frame = tuple[int, int]
"""(episode, observation)."""
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


@dataclass(frozen=True)
class Answer:
    """Two frames under a goal and what was said: 0 first, 1 second, -1 neither."""

    first: Frame
    second: Frame
    goal: int
    said: int = TIE


class PictureJob:
    """Ask about pictures, fit a reward, measure it against the truth of the log, relabel every step.

    The reward of a step is that of the picture after it. Pairs are drawn among frames of episodes that were asked the
    same, whatever happened in them.

    Args:
        settings: numbers.
        folder: where everything goes.
        make_reward: (goals, image size) -> reward, such as `policies.reward.picture_preference.PictureReward`.
        make_labeller: (truth of a picture under a goal) -> labeller with `label` and `counts`; a model of its own does
            not look at the truth.
        tools: "PicturePairs" and "query".
        config: the composed configuration as YAML.

    Raises:
        ValueError: no such pictures or truth in the log, or no goal.
        FileNotFoundError: no log.
    """

    def __init__(
        self,
        settings: PictureSettings,
        folder: Path,
        *,
        make_reward: Callable[[list[str], tuple[int, int]], Any],
        make_labeller: Callable[[Callable[[np.ndarray, str], float]], Any],
        tools: Mapping[str, Any],
        config: str,
    ) -> None:
        self._s, self._folder, self._make, self._tools, self._config = settings, folder, make_reward, tools, config
        self.store = store = open_log(settings.data)
        self._key = f"image.{settings.camera}"
        if self._key not in store.io.obs:
            found = [name for name in store.io.obs if name.startswith("image.")]
            raise ValueError(f"the log holds no '{self._key}'; it holds {found or 'no pictures'}")
        height, width = store.io.obs[self._key][0][:2]
        self._size = (int(height), int(width))
        said = [settings.goal or store.episode_meta(e).get("instruction") for e in range(len(store))]
        if not all(said):
            raise ValueError("episodes of the log name no instruction; add goal='<sentence>'")
        self.goals = sorted({str(text) for text in said})
        self._goal = np.array([self.goals.index(str(text)) for text in said])
        name = settings.truth if settings.truth in store.names else f"info/{settings.truth}"
        if name not in store.names:
            raise ValueError(f"the log has no column '{settings.truth}' for truth; it has {sorted(store.names)}")
        self._truth = np.asarray(store.column(name), np.float64)
        self._labeller = make_labeller(self._of_picture)
        self._rng = np.random.default_rng(settings.seed)
        self._known: dict[bytes, float] | None = None

    def run(self) -> dict[str, Any]:
        """Do it all.

        Returns:
            pairs, ties, what was skipped and unreadable, label_accuracy (decided answers against the truth, where it
            differs), accuracy of the reward on training and held-out answers and on the truth of the held-out pairs,
            rank correlation with the truth over frames and over episodes' sums (within goals), and the log.

        Raises:
            ValueError: too few answers, or a model whose answers cannot be read.
        """
        s = self._s
        self._folder.mkdir(parents=True, exist_ok=True)
        write_bytes(self._folder / "config.yaml", self._config.encode())
        given = s.labels != "vlm"
        answers = read_answers(Path(s.labels), self.store, self.goals) if given else []
        rounds = 1 if given or s.rule == "uniform" else s.rounds
        model, train, test = None, [], []
        for i in range(rounds):
            if not given:
                self._ask(self._choose(s.pairs * (i + 1) // rounds - len(answers), model), answers)
            decided = [a for a in answers if a.said != TIE]
            if len(decided) < 10:
                raise ValueError(f"{len(decided)} of {len(answers)} answers are decided, expected 10 or more")
            kept = answers if s.keep_ties else decided
            order = np.random.default_rng(s.seed).permutation(len(kept))
            out = max(1, round(s.test_share * len(kept)))
            train, test = [kept[k] for k in order[out:]], [kept[k] for k in order[:out]]
            model = self._make(self.goals, self._size)
            self._fit(model, self._pairs(train), f"round {i + 1}/{rounds}")
        clear = [a for a in answers if a.said != TIE and self._true(a.first) != self._true(a.second)]
        counts = self._labeller.counts
        report = {
            "goals": len(self.goals),
            "pairs": len(answers),
            "ties": sum(a.said == TIE for a in answers),
            "skipped": counts.skipped,
            "unreadable": counts.unreadable,
            "label_accuracy": _mean([(a.said == 1) == (self._true(a.second) > self._true(a.first)) for a in clear]),
            "accuracy_train": self._right(model, train),
            "accuracy_test": self._right(model, test),
            "accuracy_truth": self._right(model, test, truth=True),
            **self._relabel(model),
        }
        save_state(self._folder / "reward.pt", model.state_dict())  # type: ignore[union-attr]
        write_json(self._folder / "goals.json", {"goals": self.goals, "image_size": list(self._size)})
        write_json(self._folder / "report.json", report)
        return report

    def _picture(self, frame: Frame) -> np.ndarray:
        return np.asarray(self.store.obs(self._key)[int(self.store.start_obs[frame[0]]) + frame[1]])

    def _true(self, frame: Frame) -> float:
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

    def _draw(self, count: int, rng: np.random.Generator | None = None) -> list[Answer]:
        """Pairs of frames: an episode by its length, another that was asked the same, and a frame of each."""
        rng, length = rng or self._rng, np.asarray(self.store.length, np.float64)
        first = rng.choice(len(length), count, p=length / length.sum())
        found = []
        for e in first.tolist():
            same = np.flatnonzero((self._goal == self._goal[e]) & (length > 0))
            other = int(rng.choice(same))
            frames = [(k, int(rng.integers(1, int(length[k]) + 1))) for k in (e, other)]
            found.append(Answer(frames[0], frames[1], int(self._goal[e])))
        return found

    def _choose(self, count: int, model: Any) -> list[Answer]:
        if model is None:
            return self._draw(count)
        found = self._draw(count * self._s.candidates)
        chance = model.probabilities(self._pairs(found))
        return [found[k] for k in self._tools["query"](chance, len(found), count, rule=self._s.rule)]

    def _ask(self, wanted: list[Answer], answers: list[Answer]) -> None:
        counts = self._labeller.counts
        with open(self._folder / "pairs.jsonl", "a", encoding="utf-8") as file:
            for pair in tqdm(wanted, desc="asking", unit="pair", file=sys.stderr, dynamic_ncols=True):
                said = self._labeller.label(
                    self._picture(pair.first), self._picture(pair.second), self.goals[pair.goal]
                )
                answers.append(replace(pair, said=said))
                row = {"first": pair.first, "second": pair.second, "goal": self.goals[pair.goal], "answer": said}
                file.write(json.dumps({**row, "truth": [self._true(pair.first), self._true(pair.second)]}) + "\n")
                file.flush()
                if counts.asked >= _PATIENCE and counts.unreadable > 0.5 * counts.asked:
                    raise ValueError(
                        f"{counts.unreadable} of {counts.asked} answers were not one integer 0, 1 or -1; this model "
                        "does not do what it is asked: try it by hand, or take another"
                    )

    def _pairs(self, answers: list[Answer]) -> Any:
        frames = sorted({frame for a in answers for frame in (a.first, a.second)})
        place = {frame: i for i, frame in enumerate(frames)}
        said = [0.5 if a.said == TIE else float(a.said) for a in answers]
        return self._tools["PicturePairs"](
            torch.from_numpy(np.stack([self._picture(frame) for frame in frames])),
            torch.tensor([place[a.first] for a in answers]),
            torch.tensor([place[a.second] for a in answers]),
            torch.tensor([a.goal for a in answers]),
            torch.tensor(said),
        )

    def _fit(self, model: Any, pairs: Any, title: str) -> None:
        smooth, bar = 0.0, tqdm(range(self._s.updates), desc=title, unit="update", file=sys.stderr, dynamic_ncols=True)
        for i in bar:
            smooth += 0.02 * (model.update(pairs)["accuracy"] - smooth)
            if i % 20 == 0:
                bar.set_postfix(accuracy=f"{smooth:.3f}")
            if i > 200 and smooth >= self._s.accuracy:
                break
        bar.close()

    def _right(self, model: Any, answers: list[Answer], truth: bool = False) -> float | None:
        """Share of pairs that the reward orders as labelled, or as the truth; None where none is decided."""
        if truth:
            rows = [a for a in answers if self._true(a.first) != self._true(a.second)]
            wanted = [self._true(a.second) > self._true(a.first) for a in rows]
        else:
            rows = [a for a in answers if a.said != TIE]
            wanted = [a.said == 1 for a in rows]
        if not rows:
            return None
        chance = model.probabilities(self._pairs(rows)).mean(0).numpy()
        return float(((chance > 0.5) == np.array(wanted)).mean())

    def _relabel(self, model: Any) -> dict[str, Any]:
        """The log with learnt rewards, without pictures unless they are kept, and how they rank with the truth."""
        store, s = self.store, self._s
        # a generator of its own: labels that are asked for and labels that are read again are calibrated alike
        probe = [(a.first, a.second) for a in self._draw(1000, np.random.default_rng([s.seed, 1]))]
        model.calibrate(torch.from_numpy(np.stack([self._picture(frame) for pair in probe for frame in pair])))
        out, sums, frames = self._folder / "relabelled", [], ([], [])
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


def _mean(rows: list[bool]) -> float | None:
    return float(np.mean(rows)) if rows else None


def read_answers(path: Path, store: Any, goals: list[str]) -> list[Answer]:
    """Answers of an earlier run.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: a line is no answer, or speaks of frames or goals that the log does not have.
    """
    if not path.is_file():
        raise FileNotFoundError(f"labels is '{path}', expected vlm or a pairs.jsonl of an earlier run")
    found = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            row = json.loads(line)
            frames = [(int(row[k][0]), int(row[k][1])) for k in ("first", "second")]
            answer = Answer(frames[0], frames[1], goals.index(row["goal"]), int(row["answer"]))
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise ValueError(
                f'{path}, line {number} is no answer about this log ({error}); expected {{"first": [episode, frame], '
                '"second": [episode, frame], "goal": "<a sentence of the log>", "answer": 0, 1 or -1}'
            ) from error
        for episode, frame in frames:
            if not 0 <= episode < len(store) or not 1 <= frame <= store.length[episode]:
                raise ValueError(f"{path}, line {number}: the log has no frame {frame} of episode {episode}")
        if answer.said not in (0, 1, TIE):
            raise ValueError(f"{path}, line {number}: the answer is {answer.said}, expected 0, 1 or -1")
        found.append(answer)
    return found
