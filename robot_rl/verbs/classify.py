"""Train a success classifier from recordings, say what it is worth, and judge old recordings with it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from omegaconf import DictConfig
from pydantic import model_validator
from typing_extensions import Self

from robot_rl import build, checkpoint
from robot_rl.atomic import write_bytes
from robot_rl.checkpoint import CheckpointError
from robot_rl.data.hil_words import episode_key, read_corrections
from robot_rl.data.recorder import Recording
from robot_rl.human.judge import Judge
from robot_rl.human.success_labels import LabelledFrames, LabelRules, false_alarms, frames, pick_threshold, quality
from robot_rl.loops.fit import Fit
from robot_rl.parts import Parts
from robot_rl.run import Run, RunStart
from robot_rl.schedule import Schedule
from robot_rl.stats import upper_bound
from robot_rl.types import Episode, IOSpec, Metrics, Obs, Options, Stateful
from robot_rl.types.options import Count, Part, Whole
from robot_rl.verbs import answer
from robot_rl.verbs.build import begin, choice, run_folder, settings_of, start_of, threads
from robot_rl.verbs.classify_features import Features
from robot_rl.verbs.options import Machine, Resume
from robot_rl.verbs.reading import plain, stored_config
from robot_rl.words import Refused


class Classifier(Stateful, Protocol):
    """See `robot_rl.policies.reward.success.SuccessClassifier`."""

    io: IOSpec
    steps: int
    keys: tuple[str, ...]

    def prepare(self, obs: Obs, label: np.ndarray, hard: np.ndarray | None = None) -> None:
        """Take what it is trained on."""
        ...

    def update(self) -> Metrics:
        """One step."""
        ...

    def calibrate(self, obs: Obs, label: np.ndarray) -> float:
        """Fit the temperature."""
        ...

    def probability(self, obs: Obs) -> np.ndarray:
        """(N,)."""
        ...


class ClassifySettings(Options):
    """Numbers of a training run."""

    seed: Whole = 0
    """Of the split."""
    margin: Whole = 2
    """Steps before a labelled success that count as neither."""
    after: bool = True
    """What was seen while the finger was on its way to the key counts as success."""
    calibrate_share: Part = 0.2
    """Share of the episodes that calibration and threshold are fitted on."""
    test_share: Part = 0.2
    """Share of the episodes that is only measured on."""
    in_a_row: Count = 2
    """Observations above the threshold that count as success."""
    most_false_alarms: Part = 0.01
    """Wanted probability of a false alarm in an episode."""
    examples: Whole = 12
    """How many doubtful observations are listed."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.calibrate_share + self.test_share >= 0.9:
            raise ValueError(
                f"calibrate_share and test_share are {self.calibrate_share:g} and {self.test_share:g}, expected a sum "
                "below 0.9, so that something is left to train on"
            )
        return self


def log_folder(path: str | Path) -> Path:
    """The recording in a run folder of robot-rl hil, or the folder itself.

    Raises:
        ValueError: there is none.
    """
    for folder in (Path(path) / "log", Path(path)):
        if list(folder.glob("segment-*.episodes")):
            return folder
    raise ValueError(f"{path} holds no recording; expected a run folder of robot-rl hil")


def read(
    paths: Sequence[str | Path], features: Features | None = None
) -> tuple[list[Episode], list[dict[str, object]]]:
    """Episodes, as `features` sees them, and a person's corrections of several runs."""
    if not paths:
        raise ValueError("logs is empty; give run folders of robot-rl hil, e.g. logs=[runs/hil/<run>]")
    episodes: list[Episode] = []
    corrections: list[dict[str, object]] = []
    for path in paths:
        folder = log_folder(path)
        episodes += list(Recording(folder))
        corrections += read_corrections(folder)
    keys = [episode_key(episode.meta) for episode in episodes]
    if len(set(keys)) < len(keys):
        raise ValueError("two of the recordings hold episodes of the same name; give runs with different seeds")
    if features is not None:
        for episode in episodes:
            features.check(episode.meta["io"])
        episodes = features.episodes(episodes)
    return episodes, corrections


class ClassifyJob:
    """Trains on recordings, calibrates, measures, and says what to record next."""

    def __init__(
        self,
        settings: ClassifySettings,
        logs: Sequence[str],
        start: RunStart,
        *,
        make: Callable[[IOSpec], Classifier],
        features: Features | None = None,
    ) -> None:
        """Read the recordings, build the classifier, or restore it.

        Args:
            settings: numbers.
            logs: run folders of robot-rl hil.
            start: where the run begins.
            make: (io) -> classifier.
            features: what it looks at, in place of the observations.

        Raises:
            ValueError: no recordings, of different robots, or without both kinds of labels.
            CheckpointError: nothing to resume from, or the run began with other recordings.
            InUse: another process runs in the folder that is to be resumed.
        """
        episodes, corrections = read(logs, features)
        io = episodes[0].meta["io"]
        for episode in episodes:
            differences = io.differences(episode.meta["io"])
            if differences:
                raise ValueError("the recordings are of different robots:\n  - " + "\n  - ".join(differences))
        self._settings, self._fit, self.model = settings, Fit(), make(io)
        rules = LabelRules(settings.margin, settings.after)
        self._data = data = frames(episodes, self.model.keys, rules, corrections)
        shares = [1 - settings.calibrate_share - settings.test_share, settings.calibrate_share, settings.test_share]
        train, self._calibration, self._test = data.split(shares, settings.seed)
        for name, part in (("training", train), ("calibration", self._calibration), ("test", self._test)):
            if not part.label.any() or part.label.all():
                raise ValueError(
                    f"the {name} part has {int(part.label.sum())} positives among {len(part)} observations of "
                    f"{len(np.unique(part.episode))} episodes; record more successes and failures, or change its share"
                )
        self.model.prepare(train.obs, train.label, train.hard)
        mark = hashlib.sha256(repr(data.names).encode() + data.label.tobytes() + data.hard.tobytes()).hexdigest()[:16]
        if start.resume and checkpoint.read_meta(checkpoint.find(start.folder))["recordings"] != mark:
            raise CheckpointError("logs are not the recordings that the run began with; give the original")
        self._facts: dict[str, Any] = {"recordings": mark, "in_a_row": settings.in_a_row}
        self._run = Run.open(
            start,
            Schedule(total=self.model.steps, log_every=50, keep_checkpoints=1, unit="update"),
            Parts({"learner": self.model, "loop": self._fit}, io=io, facts=self._facts),
            count=lambda: self._fit.updates,
            sources={"recordings": {"paths": list(logs), "hash": mark}},
        )
        self.folder = self._run.folder

    def run(self) -> dict[str, Any]:
        """Do it all.

        Returns:
            The report: confusion on episodes that nothing was fitted on, calibration, false alarms, what to record
            next.

        Raises:
            CheckpointError: a checkpoint could not be written.
            KeyboardInterrupt: after a Ctrl-C, once everything is saved.
        """
        return self._run.play(self._train, more=self._measure) | self._run.numbers

    def _train(self) -> None:
        if not self._fit.run(self.model.update, self.model.steps, self._run.tick, due=self._run.due):
            return
        fitted, most = self._calibration, self._settings.most_false_alarms
        self._facts["temperature"] = self.model.calibrate(fitted.obs, fitted.label)
        chosen = self.model.probability(fitted.obs)
        self._facts["threshold"] = pick_threshold(chosen, fitted.label, self._length, most)
        self._run.save()

    @property
    def _length(self) -> int:
        """Steps of the longest episode."""
        return int(max(self._data.step) + 1)

    def _measure(self) -> dict[str, object]:
        """On the episodes that nothing was fitted on."""
        s, data, tested, threshold = self._settings, self._data, self._test, float(self._facts["threshold"])
        p = self.model.probability(tested.obs)
        measured = quality(p, tested.label, threshold)
        alarms, count = false_alarms(p, tested, threshold, s.in_a_row)
        everything = self.model.probability(data.obs)
        self._run.numbers |= {
            "advice": advice(data, measured, self._length, s),
            "hard_negatives": examples(everything, data, False, s.examples),
            "hard_positives": examples(everything, data, True, s.examples),
            "reliability": reliability(p, tested.label),
        }
        return {
            "observations": len(data),
            "positives": int(data.label.sum()),
            "corrected": int(data.hard.sum()),
            "episodes": len(data.names),
            "temperature": self._facts["temperature"],
            "threshold": threshold,
            "in_a_row": s.in_a_row,
            **measured,
            "false_alarm_episodes": alarms,
            "test_episodes": count,
        }


def load(folder: Path, make: Callable[[IOSpec], Classifier]) -> tuple[Classifier, dict[str, Any]]:
    """A trained classifier, with its threshold and how often in a row it has to be above it.

    Args:
        folder: of its run, or of a checkpoint.
        make: (io) -> classifier.

    Raises:
        CheckpointError: the folder holds none, or one that is not calibrated yet.
    """
    found = checkpoint.find(folder)
    facts = checkpoint.read_meta(found)
    if "threshold" not in facts:
        more = "its training did not reach its end: resume it" if "recordings" in facts else "it is of another verb"
        raise CheckpointError(f"{folder} holds no finished run of robot-rl classify; {more}")
    model = make(checkpoint.read_io(found))
    model.load_state_dict(checkpoint.load_state(found / "learner.pt"))
    return model, facts


def rescore(
    model: Classifier, facts: dict[str, Any], logs: Sequence[str], out: Path, features: Features | None = None
) -> dict[str, Any]:
    """Judge recordings anew: probability of every step, and what the classifier would have said about every episode.

    Args:
        model: trained.
        facts: threshold and in_a_row.
        logs: run folders.
        out: JSON-lines file: one episode per line.
        features: what the classifier looks at, in place of the observations.
    """
    episodes, corrections = read(logs, features)
    fixes = {episode_key(line): bool(line["success"]) for line in corrections}
    lines: list[dict[str, object]] = []
    for episode in episodes:
        key = episode_key(episode.meta)
        p = model.probability({name: np.array(episode.obs[name][1:]) for name in model.keys})
        above = p >= facts["threshold"]
        needed = int(facts["in_a_row"])
        said = any(above[begin : begin + needed].all() for begin in range(len(above) - needed + 1))
        truth = fixes.get(key, bool(episode.meta["success"]))
        lines.append(
            {
                "run_id": key.run_id,
                "actor_id": key.actor_id,
                "episode_id": key.episode_id,
                "recorded": truth,
                "classifier": said,
                "probability": [round(float(x), 4) for x in p],
            }
        )
    write_bytes(out, "".join(json.dumps(line) + "\n" for line in lines).encode())
    agree = sum(line["recorded"] == line["classifier"] for line in lines)
    return {
        "episodes": len(lines),
        "agree": agree,
        **_against_labels(model, facts, episodes, corrections),
        "scores": str(out),
    }


def _against_labels(
    model: Classifier, facts: dict[str, Any], episodes: Sequence[Episode], corrections: Sequence[object]
) -> dict[str, float]:
    """What it is worth on recordings that hold labels: as training measures it, with the margin of the default."""
    try:
        data = frames(episodes, model.keys, LabelRules(), corrections)
    except ValueError:  # nobody labelled anything
        return {}
    p, threshold = model.probability(data.obs), float(facts["threshold"])
    alarms, count = false_alarms(p, data, threshold, int(facts["in_a_row"]))
    return {
        **quality(p, data.label, threshold),
        "false_alarm_episodes": alarms,
        "false_alarm_high": upper_bound(alarms, count),
        "labelled_episodes": count,
    }


def examples(probability: np.ndarray, data: LabelledFrames, positive: bool, count: int) -> list[dict[str, object]]:
    """The observations of one kind that the classifier is least sure of, at most one per episode."""
    rows = np.flatnonzero(data.label == positive)
    order = rows[np.argsort(probability[rows] * (1 if positive else -1))]
    _, first = np.unique(data.episode[order], return_index=True)
    return [
        {
            "episode": data.names[data.episode[row]],
            "step": int(data.step[row]),
            "probability": round(float(probability[row]), 4),
        }
        for row in order[np.sort(first)][:count]
    ]


def reliability(probability: np.ndarray, label: np.ndarray, bins: int = 10) -> list[dict[str, float]]:
    """Per bin of predicted probability: its mean, the share of successes, how many."""
    place = np.minimum((probability * bins).astype(int), bins - 1)
    found = [(b, place == b) for b in range(bins) if (place == b).any()]
    return [
        {"said": float(probability[rows].mean()), "was": float(label[rows].mean()), "n": int(rows.sum())}
        for _, rows in found
    ]


def advice(data: LabelledFrames, measured: dict[str, float], length: int, settings: ClassifySettings) -> list[str]:
    """What to record next, in words."""
    out = []
    positives, negatives = int(data.label.sum()), int((~data.label).sum())
    if positives < 200:
        out.append(f"{positives} positive observations; 200 are a good number: record more successes")
    if negatives < 2 * positives:
        out.append(f"{negatives} negative observations for {positives} positive ones; 2 to 3 times as many are better")
    wanted = 1.0 - (1.0 - settings.most_false_alarms) ** (1.0 / length)
    if measured["false_positive_high"] > wanted:
        out.append(
            f"at most {wanted:.2g} false positives per observation are wanted, up to "
            f"{measured['false_positive_high']:.2g} cannot be excluded on {int(measured['true_negatives'])} test "
            "negatives: drive to what looks almost like success, press 0, and train again"
        )
    if measured["recall"] < 0.9:
        out.append(f"only {measured['recall']:.0%} of the successes are seen: record them from more places")
    return out


class ClassifyOptions(Machine, Resume, ClassifySettings):
    """robot-rl classify."""

    logs: tuple[str, ...] = ()
    """Run folders of robot-rl hil."""
    features: str | None = None
    """A run of robot-rl hil with encoder=: the classifier looks at what that run's policy sees, not at pictures."""
    path: str | None = None
    """A run of this verb: judge the logs with it instead of training."""


def load_classifier(folder: Path, device: str) -> tuple[Classifier, dict[str, Any]]:
    """A success classifier of robot-rl classify, and the facts of `load`."""
    made = stored_config(checkpoint.find(folder))
    return load(folder, lambda io: build.make("classifier", plain(made.classifier), io, seed=made.seed, device=device))


def features_of(folder: Path, device: str) -> Features | None:
    """What a classifier of robot-rl classify looks at in place of the observations; None where it does not."""
    run = stored_config(checkpoint.find(folder)).get("features")
    return None if run is None else Features(str(run), device)


def judge_factory(cfg: DictConfig) -> Callable[[IOSpec], Judge]:
    """(io) -> the classifier named in the configuration, on duty."""

    def make(io: IOSpec) -> Judge:
        folder, device = Path(cfg.judge), str(cfg.device)
        model, facts = load_classifier(folder, device)
        threshold, in_a_row = float(facts["threshold"]), int(facts["in_a_row"])
        features = features_of(folder, device)
        if features is not None:
            features.check(io)
            return Judge(lambda obs: model.probability(features(obs)), threshold, in_a_row, begin=features.begin)
        differences = [f"'{key}'" for key in model.keys if model.io.obs[key] != io.obs.get(key)]
        if differences:
            raise Refused(f"the classifier looks at {', '.join(differences)}, which this robot has not, or otherwise")
        return Judge(model.probability, threshold, in_a_row)

    return make


def classify(cfg: DictConfig) -> None:
    """Train a success classifier from recordings, or judge recordings with one."""
    threads(cfg)
    if cfg.path is not None:
        model, facts = load_classifier(Path(cfg.path), str(cfg.device))
        features = features_of(Path(cfg.path), str(cfg.device))
        folder = run_folder(cfg, "classify", "scores")
        answer.table(rescore(model, facts, [str(path) for path in cfg.logs], folder / "scores.jsonl", features))
        return
    name = f"{choice('classifier').split('/')[-1]}_seed{cfg.seed}"
    cfg, folder = begin(cfg, "classify", ClassifyOptions, ("classifier", "track"), name)
    if cfg.features is not None:  # it is read again by who uses the classifier, from wherever that stands
        cfg.features = str(Path(cfg.features).resolve())
    job = ClassifyJob(
        settings_of(ClassifySettings, cfg),
        [str(path) for path in cfg.logs],
        start_of(cfg, folder),
        make=lambda io: build.make("classifier", plain(cfg.classifier), io, seed=cfg.seed, device=str(cfg.device)),
        features=None if cfg.features is None else Features(str(cfg.features), str(cfg.device)),
    )
    found = answer.run(job, "classify")
    lists = ("advice", "hard_negatives", "hard_positives", "reliability")
    answer.table({name: value for name, value in found.items() if name not in lists})
    answer.note(**{name: found[name] for name in lists})
    for kind in ("hard_negatives", "hard_positives"):
        rows = [f"{row['episode']}@{row['step']} ({row['probability']:.2f})" for row in found[kind][:5]]
        print(f"  {kind.replace('_', ' ')}: {', '.join(rows)}")
    print("".join(f"  next: {line}\n" for line in found["advice"]), end="")
