"""The verb prefer: preferences become rewards."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from pydantic import Field

from robot_rl import build
from robot_rl.verbs import answer
from robot_rl.verbs.build import begin, choice, settings_of, start_of, threads
from robot_rl.verbs.options import Machine, Resume
from robot_rl.verbs.prefer_pairs import PictureJob, PictureSettings, PreferSettings, SegmentJob
from robot_rl.verbs.reading import plain
from robot_rl.words import Refused


class PreferOptions(Machine, Resume, PreferSettings, PictureSettings):
    """robot-rl prefer."""

    model: str | None = None
    """labels=vlm: http://127.0.0.1:<port>/v1/chat/completions, a folder, python:<module>:<object>, or scripted."""
    model_options: dict[str, object] = Field(default_factory=dict)
    """labels=vlm: options of the model, such as {timeout: 30}."""


def prefer(cfg: DictConfig) -> None:
    """Learn a reward from preferences and relabel a log with it."""
    threads(cfg)
    name = "pictures" if _of_pictures(cfg) else choice("preference").split("/")[-1]
    groups = ("preference", "pictures_reward", "track")
    cfg, folder = begin(cfg, "prefer", PreferOptions, groups, f"{name}_seed{cfg.seed}")
    job = (_pictures if _of_pictures(cfg) else _segments)(cfg, folder)
    report = answer.run(job, "prefer")
    answer.table(report)
    print(f"next: robot-rl offline data={report['relabelled']} policy=offline/iql")


def _of_pictures(cfg: DictConfig) -> bool:
    """Whether a model is asked, or a file of answers speaks, of pictures under goals."""
    path = Path(str(cfg.labels))
    if cfg.labels == "vlm" or not path.is_file():
        return cfg.labels == "vlm"
    with open(path, encoding="utf-8") as file:
        try:
            return "goal" in json.loads(file.readline() or "{}")
        except ValueError:
            return False


def _segments(cfg: DictConfig, folder: Path) -> SegmentJob:
    node, how = plain(cfg.preference), {"seed": cfg.seed, "device": str(cfg.device)}
    make = partial(build.make, "preference", node, **how)
    return SegmentJob(settings_of(PreferSettings, cfg), start_of(cfg, folder), make=make)


def _pictures(cfg: DictConfig, folder: Path) -> PictureJob:
    settings = settings_of(PictureSettings, cfg)
    if settings.labels == "vlm" and cfg.model is None:
        raise Refused(
            "labels=vlm needs a model: model=http://127.0.0.1:<port>/v1/chat/completions, a model's folder, "
            "python:<module>:<object>, or scripted (a judge that reads the log's own rewards)"
        )
    if cfg.model != "scripted" and (settings.error or settings.tie):
        raise Refused("error and tie are of model=scripted; another model errs by itself")
    options = OmegaConf.to_container(cfg.model_options, resolve=True)

    def labeller(truth: object) -> Any:
        if settings.labels != "vlm" or cfg.model == "scripted":
            script = build.tool("policies.nets.picture_labels:ScriptedJudge")
            model = script(truth, error=settings.error, tie=settings.tie, seed=cfg.seed)
        else:
            model = build.tool("policies.vla.text_models:open_model")(str(cfg.model), options)
        return build.tool("policies.nets.picture_labels:TwoStage")(model, seed=cfg.seed)

    node, how = plain(cfg.pictures_reward), {"seed": cfg.seed, "device": str(cfg.device)}
    reward = partial(build.make, "pictures_reward", node, **how)
    return PictureJob(settings, start_of(cfg, folder), make_reward=reward, make_labeller=labeller)
