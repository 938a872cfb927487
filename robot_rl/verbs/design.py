"""The verb that looks for a reward program."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_module
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig, OmegaConf

from robot_rl import build, extras
from robot_rl.verbs import answer
from robot_rl.verbs.build import run_folder, saved_config
from robot_rl.verbs.compose import plain
from robot_rl.words import Refused


def design(cfg: DictConfig) -> None:
    """Propose programs, train on each, rank, propose again; print them with the best first."""
    from robot_rl.checkpoint import write_bytes
    from robot_rl.jobs import design as job

    if cfg.model is None and cfg.codes is None:
        raise Refused("who proposes? give model=<...> with goal='<the task>', or codes=[<program>,<program>]")
    if cfg.rounds < 1 or cfg.each < 1:
        raise Refused(f"rounds and each are {cfg.rounds} and {cfg.each}, expected 1 or more")
    overrides = [str(item) for item in cfg.train]
    own = [item for item in overrides if item.split("=")[0].split(".")[0] in ("rewarder", "output", "name", "resume")]
    if own:
        raise Refused(f"{own[0]}: the search sets rewarder, output and name itself")
    folder = Path(cfg.path) if cfg.path is not None else run_folder(cfg, "design", "design")
    text = saved_config(cfg)
    io = _interface(overrides)
    found = build.tool("places")(io)
    widths = {name: len(columns) for name, (_, columns) in found.items()}
    options: Any = OmegaConf.to_container(cfg.model_options, resolve=True)
    if cfg.codes is not None:
        proposer = build.tool("programs_listed")(list(cfg.codes))
    else:
        model = build.tool("open_model")(str(cfg.model), options)
        proposer = build.tool("programs_of_model")(model, str(cfg.goal), widths)
    ranks = {"score": job.by_score, "ask": job.by_person()}
    rank = ranks.get(str(cfg.rank))
    if rank is None:
        rank = extras.own(str(cfg.rank).removeprefix("python:"), "rank=")

    def check(code: str) -> str:
        try:
            build.tool("expression")(code, widths)
        except ValueError as error:
            return str(error)
        return ""

    answer.run_folder_is(folder)
    folder.mkdir(parents=True, exist_ok=True)
    write_bytes(folder / "config.yaml", text.encode())
    attempts = job.design(
        proposer,
        check,
        job.TrainRun(overrides, folder, timeout=float(cfg.timeout)),
        rank,
        folder,
        rounds=int(cfg.rounds),
        each=int(cfg.each),
        on_attempt=lambda item: print(f"  {item.error or f'score {item.score}'}  {item.code}", flush=True),
    )
    print("best first:")
    answer.table(job.table_of(attempts))


def _interface(overrides: list[str]) -> Any:
    """The passport of the world that would be trained in."""
    GlobalHydra.instance().clear()
    with initialize_config_module("robot_rl.configs", version_base="1.3"):
        made = compose("train", overrides=overrides)
    env = build.make("engine", plain(made.env), num_envs=1, seed=0, device="cpu")
    try:
        return env.io
    finally:
        env.close()
