"""Train a success classifier from recordings, say what it is worth, and judge old recordings with it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from omegaconf import DictConfig, OmegaConf
from pydantic import model_validator
from tqdm import tqdm
from typing_extensions import Self

from robot_rl import build
from robot_rl.checkpoint import CheckpointError, load_state, save_state, write_bytes, write_json
from robot_rl.data.recorder import Recording
from robot_rl.human.judge import Judge
from robot_rl.human.log import episode_key, read_corrections
from robot_rl.human.success_labels import Frames, LabelRules, false_alarms, frames, pick_threshold, quality
from robot_rl.types import Episode, IOSpec, Obs, Options
from robot_rl.types.options import Count, Part, Whole
from robot_rl.verbs import answer
from robot_rl.verbs.build import choice, run_folder, saved_config, settings_of, threads
from robot_rl.verbs.options import Machine
from robot_rl.verbs.reading import plain
from robot_rl.words import Refused


class Classifier(Protocol):
    """See `robot_rl.policies.reward.success.SuccessClassifier`."""

    io: IOSpec
    steps: int
    keys: tuple[str, ...]

    def fit(self, obs: Obs, label: np.ndarray, hard: np.ndarray | None = None) -> Any:
        """Train; yields losses."""
        ...

    def calibrate(self, obs: Obs, label: np.ndarray) -> float:
        """Fit the temperature."""
        ...

    def probability(self, obs: Obs) -> np.ndarray:
        """(N,)."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Tensors."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Copy in place."""
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


def read(paths: Sequence[str | Path]) -> tuple[list[Episode], list[dict[str, Any]]]:
    """Episodes and a person's corrections of several runs."""
    if not paths:
        raise ValueError("logs is empty; give run folders of robot-rl hil, e.g. logs=[runs/hil/<run>]")
    episodes: list[Episode] = []
    corrections: list[dict[str, Any]] = []
    for path in paths:
        folder = log_folder(path)
        episodes += list(Recording(folder))
        corrections += read_corrections(folder)
    keys = [episode_key(episode.meta) for episode in episodes]
    if len(set(keys)) < len(keys):
        raise ValueError("two of the recordings hold episodes of the same name; give runs with different seeds")
    return episodes, corrections


def train(
    settings: ClassifySettings,
    logs: Sequence[str],
    folder: Path,
    make: Callable[[IOSpec], Classifier],
    config: str,
) -> dict[str, Any]:
    """Train, calibrate, measure, save.

    Args:
        settings: numbers.
        logs: run folders of robot-rl hil.
        folder: where classifier and report go.
        make: (io) -> classifier.
        config: the composed configuration as YAML.

    Returns:
        The report: confusion on episodes that nothing was fitted on, calibration, false alarms, what to record next.

    Raises:
        ValueError: no recordings, of different robots, or without both kinds of labels.
    """
    episodes, corrections = read(logs)
    io = episodes[0].meta["io"]
    for episode in episodes:
        differences = io.differences(episode.meta["io"])
        if differences:
            raise ValueError("the recordings are of different robots:\n  - " + "\n  - ".join(differences))
    model = make(io)
    data = frames(episodes, model.keys, LabelRules(settings.margin, settings.after), corrections)
    shares = [1 - settings.calibrate_share - settings.test_share, settings.calibrate_share, settings.test_share]
    taught, fitted, tested = data.split(shares, settings.seed)
    for name, part in (("training", taught), ("calibration", fitted), ("test", tested)):
        if not part.label.any() or part.label.all():
            raise ValueError(
                f"the {name} part has {int(part.label.sum())} positives among {len(part)} observations of "
                f"{len(np.unique(part.episode))} episodes; record more successes and failures, or change its share"
            )
    for _ in tqdm(model.fit(taught.obs, taught.label, taught.hard), total=model.steps, unit="step", file=sys.stderr):
        pass
    temperature = model.calibrate(fitted.obs, fitted.label)
    length = int(max(data.step) + 1)
    chosen = model.probability(fitted.obs)
    threshold = pick_threshold(chosen, fitted.label, length, settings.most_false_alarms)
    p = model.probability(tested.obs)
    measured = quality(p, tested.label, threshold)
    alarms, count = false_alarms(p, tested, threshold, settings.in_a_row)
    everything = model.probability(data.obs)
    report: dict[str, Any] = {
        "observations": len(data),
        "positives": int(data.label.sum()),
        "corrected": int(data.hard.sum()),
        "episodes": len(data.names),
        "temperature": temperature,
        "threshold": threshold,
        "in_a_row": settings.in_a_row,
        **measured,
        "false_alarm_episodes": alarms,
        "test_episodes": count,
        "advice": advice(data, measured, length, settings),
        "hard_negatives": examples(everything, data, False, settings.examples),
        "hard_positives": examples(everything, data, True, settings.examples),
        "curve": reliability(p, tested.label),
    }
    folder.mkdir(parents=True, exist_ok=True)
    save_state(folder / "classifier.pt", model.state_dict())
    write_json(folder / "io.json", io.to_dict())
    write_bytes(folder / "config.yaml", config.encode())
    write_json(folder / "classifier.json", report)
    return report


def load(folder: Path, make: Callable[[IOSpec], Classifier]) -> tuple[Classifier, dict[str, Any]]:
    """A trained classifier and its report.

    Raises:
        CheckpointError: the folder holds none.
    """
    try:
        io = IOSpec.from_dict(json.loads((folder / "io.json").read_text()))
        report = json.loads((folder / "classifier.json").read_text())
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"{folder} holds no classifier ({error}); expected a folder of robot-rl classify"
        ) from error
    model = make(io)
    model.load_state_dict(load_state(folder / "classifier.pt"))
    return model, report


def rescore(model: Classifier, report: dict[str, Any], logs: Sequence[str], out: Path) -> dict[str, Any]:
    """Judge recordings anew: probability of every step, and what the classifier would have said about every episode.

    Args:
        model: trained.
        report: of its training.
        logs: run folders.
        out: JSON-lines file: one episode per line.
    """
    episodes, corrections = read(logs)
    fixes = {episode_key(line): bool(line["success"]) for line in corrections}
    lines: list[dict[str, Any]] = []
    for episode in episodes:
        key = episode_key(episode.meta)
        p = model.probability({name: np.array(episode.obs[name][1:]) for name in model.keys})
        above = p >= report["threshold"]
        run, said = 0, False
        for yes in above:
            run = run + 1 if yes else 0
            said = said or run >= report["in_a_row"]
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
    return {"episodes": len(lines), "agree": agree, "scores": str(out)}


def examples(probability: np.ndarray, data: Frames, positive: bool, count: int) -> list[dict[str, Any]]:
    """The observations of one kind that the classifier is least sure of, at most one per episode."""
    rows = np.flatnonzero(data.label == positive)
    order = rows[np.argsort(probability[rows] * (1 if positive else -1))]
    seen: set[int] = set()
    out: list[dict[str, Any]] = []
    for row in order:
        if int(data.episode[row]) in seen or len(out) == count:
            continue
        seen.add(int(data.episode[row]))
        where = {"episode": data.names[data.episode[row]], "step": int(data.step[row])}
        out.append({**where, "probability": round(float(probability[row]), 4)})
    return out


def reliability(probability: np.ndarray, label: np.ndarray, bins: int = 10) -> list[dict[str, float]]:
    """Per bin of predicted probability: its mean, the share of successes, how many."""
    place = np.minimum((probability * bins).astype(int), bins - 1)
    found = [(b, place == b) for b in range(bins) if (place == b).any()]
    return [
        {"said": float(probability[rows].mean()), "was": float(label[rows].mean()), "n": int(rows.sum())}
        for _, rows in found
    ]


def advice(data: Frames, measured: dict[str, float], length: int, settings: ClassifySettings) -> list[str]:
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


class ClassifyOptions(Machine, ClassifySettings):
    """robot-rl classify."""

    logs: tuple[str, ...] = ()
    """Run folders of robot-rl hil."""
    path: str | None = None
    """A folder of this verb: judge the logs with it instead of training."""


def load_classifier(folder: Path, device: str) -> tuple[Any, dict[str, Any]]:
    """A success classifier of robot-rl classify, and its report."""
    if not (folder / "config.yaml").exists():
        raise Refused(f"{folder} holds no classifier; expected a folder of robot-rl classify")
    made: Any = OmegaConf.load(folder / "config.yaml")
    return load(folder, lambda io: build.make("classifier", plain(made.classifier), io, seed=made.seed, device=device))


def judge_factory(cfg: DictConfig) -> Callable[[Any], Any]:
    """(io) -> the classifier named in the configuration, on duty."""

    def make(io: Any) -> Any:
        model, report = load_classifier(Path(cfg.judge), str(cfg.device))
        differences = [f"'{key}'" for key in model.keys if model.io.obs[key] != io.obs.get(key)]
        if differences:
            raise Refused(f"the classifier looks at {', '.join(differences)}, which this robot has not, or otherwise")
        return Judge(model.probability, float(report["threshold"]), int(report["in_a_row"]))

    return make


def classify(cfg: DictConfig) -> None:
    """Train a success classifier from recordings, or judge recordings with one."""
    threads(cfg)
    logs = [str(path) for path in cfg.logs]
    if cfg.path is not None:
        model, report = load_classifier(Path(cfg.path), str(cfg.device))
        folder = run_folder(cfg, "classify", "scores")
        answer.table(rescore(model, report, logs, folder / "scores.jsonl"))
        return
    folder = run_folder(cfg, "classify", f"{choice('classifier').split('/')[-1]}_seed{cfg.seed}")
    settings = settings_of(ClassifySettings, cfg)

    def make(io: Any) -> Any:
        return build.make("classifier", plain(cfg.classifier), io, seed=cfg.seed, device=str(cfg.device))

    answer.run_folder_is(folder)
    report = train(settings, logs, folder, make, saved_config(cfg))
    hidden = ("advice", "hard_negatives", "hard_positives", "curve")
    answer.table({name: value for name, value in report.items() if name not in hidden})
    for kind in ("hard_negatives", "hard_positives"):
        found = [f"{row['episode']}@{row['step']} ({row['probability']:.2f})" for row in report[kind][:5]]
        print(f"  {kind.replace('_', ' ')}: {', '.join(found)}")
    print("".join(f"  next: {line}\n" for line in report["advice"]), end="")
