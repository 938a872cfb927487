"""The verb eval fas: runs at fewer decisions."""

from __future__ import annotations

from pathlib import Path

from omegaconf import DictConfig

from robot_rl import curves
from robot_rl.checkpoint import write_json
from robot_rl.loops import fas
from robot_rl.types.options import Count, Number, Positive
from robot_rl.verbs import answer
from robot_rl.verbs.build import load_subject, run_folder, threads
from robot_rl.verbs.options import Folders, SubjectOptions
from robot_rl.words import Refused


class FasOptions(SubjectOptions):
    """robot-rl eval fas."""

    path: Folders
    """A run or checkpoint folder, or a list of them (one per seed)."""
    largest: Positive | None = None
    """Return that counts as 1; null = by the task's name (Pendulum, Hopper ...)."""
    offset: Number = 0.0
    """Added to returns, with largest."""
    episodes: Count = 10
    """Per interval."""
    num_envs: Count = 10
    """Copies of the environment."""


def evaluate_intervals(cfg: DictConfig) -> None:
    """Evaluate runs at 1, 2, 4, ..., 30 control steps per decision: the frequency-averaged score."""

    threads(cfg)
    paths = [cfg.path] if isinstance(cfg.path, str) else list(cfg.path)
    found, lines = {}, []
    for given in paths:
        here, _, env, policy = load_subject(cfg, Path(given))
        largest, offset = _scale_of(here)
        with answer.bar(len(fas.INTERVALS), "interval") as bar:
            result = fas.frequency_averaged_score(
                env, policy, largest=largest, offset=offset, episodes=cfg.episodes, seed=cfg.seed + 10_000,
                on_interval=lambda k, bar=bar: bar(fas.INTERVALS.index(k) + 1),
            )  # fmt: skip
        env.close()
        found[str(given)] = {**vars(result), "largest": largest, "offset": offset}
        lines.append((result.intervals, result.returns))
        answer.note(fas_of=found)
        answer.table({"run": given, "fas": result.fas, "fas_norm": result.fas_norm, "held": result.held})
        answer.table({f"return at {k}": value for k, value in zip(result.intervals, result.returns)})
    folder = run_folder(cfg, "fas", Path(paths[0]).name)
    scores = [item["fas"] for item in found.values()]
    mean = sum(scores) / len(scores)
    spread = (sum((x - mean) ** 2 for x in scores) / len(scores)) ** 0.5
    write_json(folder / "fas.json", {"runs": found, "fas_mean": mean, "fas_std": spread})
    curves.plot(
        folder / "fas.png", {"return at fewer decisions": {"policy": lines}}, x="control steps per decision", y="return"
    )
    answer.table(
        {"fas_mean": mean, "fas_std": spread, "numbers": str(folder / "fas.json"), "plot": str(folder / "fas.png")}
    )


def _scale_of(cfg: DictConfig) -> tuple[float, float]:
    """Largest return and offset of the task: as given, or by the name of the Gymnasium task."""
    if cfg.largest is not None:
        return float(cfg.largest), float(cfg.offset)
    name = str(cfg.env.get("id", "") or "").split("-")[0]
    if name not in fas.SCALES:
        raise Refused(
            f"the score needs the largest return of the task: add largest=…; known are {', '.join(fas.SCALES)}"
        )
    return fas.SCALES[name]
