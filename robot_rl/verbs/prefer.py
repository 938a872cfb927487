"""The verb prefer: preferences become rewards."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from pydantic import Field

from robot_rl import build
from robot_rl.verbs import answer
from robot_rl.verbs.build import choice, run_folder, saved_config, settings_of, threads
from robot_rl.verbs.options import Machine
from robot_rl.verbs.prefer_pictures import PictureJob, PictureSettings
from robot_rl.verbs.prefer_segments import PreferJob, PreferSettings
from robot_rl.verbs.reading import plain
from robot_rl.words import Refused


class PreferOptions(Machine, PreferSettings, PictureSettings):
    """robot-rl prefer."""

    model: str | None = None
    """labels=vlm: http://127.0.0.1:<port>/v1/chat/completions, a folder, python:<module>:<object>, or scripted."""
    model_options: dict[str, Any] = Field(default_factory=dict)
    """labels=vlm: options of the model, such as {timeout: 30}."""


def prefer(cfg: DictConfig) -> None:
    """Learn a reward from preferences and relabel a log with it."""
    threads(cfg)
    if cfg.labels == "vlm" or _of_pictures(Path(str(cfg.labels))):
        report = _pictures(cfg)
    else:
        report = _segments(cfg)
    answer.table(report)
    print(f"next: robot-rl offline data={report['relabelled']} policy=offline/iql")


def _of_pictures(path: Path) -> bool:
    """Whether a file of answers speaks of pictures under goals."""
    if not path.is_file():
        return False
    with open(path, encoding="utf-8") as file:
        try:
            return "goal" in json.loads(file.readline() or "{}")
        except ValueError:
            return False


def _segments(cfg: DictConfig) -> dict[str, Any]:
    settings = settings_of(PreferSettings, cfg)
    folder = run_folder(cfg, "prefer", f"{choice('preference').split('/')[-1]}_seed{cfg.seed}")

    def make(state: int, action: int) -> Any:
        return build.make("preference", plain(cfg.preference), state, action, seed=cfg.seed, device=str(cfg.device))

    tools = {"Pairs": build.tool("pairs"), "Scripted": build.tool("scripted_answers"), "query": build.tool("query")}
    job = PreferJob(settings, folder, make=make, tools=tools, config=saved_config(cfg))
    answer.run_folder_is(folder)
    return job.run()


def _pictures(cfg: DictConfig) -> dict[str, Any]:
    settings = settings_of(PictureSettings, cfg)
    if settings.labels == "vlm" and cfg.model is None:
        raise Refused(
            "labels=vlm needs a model: model=http://127.0.0.1:<port>/v1/chat/completions, a model's folder, "
            "python:<module>:<object>, or scripted (a judge that reads the log's own rewards)"
        )
    if cfg.model != "scripted" and (settings.error or settings.tie):
        raise Refused("error and tie are of model=scripted; another model errs by itself")
    options: Any = OmegaConf.to_container(cfg.model_options, resolve=True)
    folder = run_folder(cfg, "prefer", f"pictures_seed{cfg.seed}")

    def labeller(truth: Any) -> Any:
        if settings.labels != "vlm" or cfg.model == "scripted":
            script = build.tool("judge_scripted")
            model = script(truth, error=settings.error, tie=settings.tie, seed=cfg.seed)
        else:
            model = build.tool("open_model")(str(cfg.model), options)
        return build.tool("judge_two_stage")(model, seed=cfg.seed)

    def reward(goals: list[str], size: tuple[int, int]) -> Any:
        node = plain(cfg.pictures_reward)
        return build.make("pictures_reward", node, goals, size, seed=cfg.seed, device=str(cfg.device))

    tools = {
        "PicturePairs": build.tool("picture_pairs"),
        "query": build.tool("query"),
    }
    job = PictureJob(
        settings, folder, make_reward=reward, make_labeller=labeller, tools=tools, config=saved_config(cfg)
    )
    answer.run_folder_is(folder)
    return job.run()
