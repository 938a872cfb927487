"""The verb that looks for a reward program."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_module
from hydra.core.global_hydra import GlobalHydra
from hydra.utils import get_object, instantiate
from omegaconf import DictConfig, OmegaConf

from robot_rl.verbs.build import Refused, run_folder, saved_config, table


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
    found = get_object("robot_rl.policies.reward.program.places")(io)
    widths = {name: len(columns) for name, (_, columns) in found.items()}
    options: Any = OmegaConf.to_container(cfg.model_options, resolve=True)
    models, programs = "robot_rl.policies.vla.text_models", "robot_rl.policies.reward.program_proposer"
    if cfg.codes is not None:
        proposer = get_object(f"{programs}.Listed")(list(cfg.codes))
    else:
        model = get_object(f"{models}.open_model")(str(cfg.model), options)
        proposer = get_object(f"{programs}.ModelProposer")(model, str(cfg.goal), widths)
    ranks = {"score": job.by_score, "ask": job.by_person()}
    rank = ranks.get(str(cfg.rank))
    if rank is None:
        rank = get_object(str(cfg.rank).removeprefix("python:").replace(":", "."))

    def check(code: str) -> str:
        try:
            get_object("robot_rl.policies.nets.expression.Expression")(code, widths)
        except ValueError as error:
            return str(error)
        return ""

    print(f"run folder: {folder}")
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
    table(job.table_of(attempts))


def _interface(overrides: list[str]) -> Any:
    """The passport of the world that would be trained in."""
    GlobalHydra.instance().clear()
    with initialize_config_module("robot_rl.configs", version_base="1.3"):
        made = compose("train", overrides=overrides)
    env = instantiate(made.env, num_envs=1, seed=0, device="cpu")
    try:
        return env.io
    finally:
        env.close()
