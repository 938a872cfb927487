"""The verb that turns preferences into rewards."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from hydra.utils import get_object, instantiate
from omegaconf import DictConfig

from robot_rl.verbs.build import choice, run_folder, saved_config, table, threads


def prefer(cfg: DictConfig) -> None:
    """Learn a reward from preferences and relabel a log with it."""
    from robot_rl.jobs.prefer import PreferJob, PreferSettings

    threads(cfg)
    settings = PreferSettings(**{f.name: cfg[f.name] for f in fields(PreferSettings)})
    folder = run_folder(cfg, "prefer", f"{choice('preference').split('/')[-1]}_seed{cfg.seed}")

    def make(state: int, action: int) -> Any:
        return instantiate(cfg.preference, _partial_=True)(state, action, seed=cfg.seed, device=cfg.device)

    tools = {name: get_object(f"robot_rl.policies.nets.preferences.{name}") for name in ("Pairs", "Scripted", "query")}
    job = PreferJob(settings, folder, make=make, tools=tools, config=saved_config(cfg))
    print(f"run folder: {folder}")
    report = job.run()
    table(report)
    print(f"next: robot-rl offline data={report['relabelled']} policy=offline/iql")
