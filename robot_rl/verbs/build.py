"""Objects, folders and tables out of configuration: what the verbs share."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar

import torch
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from robot_rl import build, checkpoint, extras
from robot_rl.checkpoint import CheckpointError
from robot_rl.chunks import ChunkedPolicy
from robot_rl.claim import InUse
from robot_rl.data.units import agree, in_units, meaning_of
from robot_rl.leapp_bundle import bundle_of
from robot_rl.leapp_policy import LeappPolicy
from robot_rl.onnx_policy import FILES, OnnxPolicy, graph_of, read_export, read_io
from robot_rl.run import RunStart
from robot_rl.track import Many
from robot_rl.types import AnyLearner, IOSpec, Loaded, Options, Policy, Port, VecEnv
from robot_rl.verbs.reading import plain, read_options, refuse_other_verb, run_of, stored_config
from robot_rl.words import Refused

REFUSALS = (Refused, ValueError, FileNotFoundError, CheckpointError, InUse)
"""What says that a request cannot be carried out as it is; anything else failed on the way."""
S = TypeVar("S", bound=Options)


MakeEnv = Callable[[int, int, bool], VecEnv]


@dataclass(frozen=True)
class EnvMaker:
    """(num_envs, seed, render) -> environment.

    Attributes:
        make: makes it.
        plain: makes it for evaluation: with its own reward, whatever pays in training, and without what only helps to
            learn (`for_evaluation`).
        name: of the task, where it has one that is known elsewhere.
    """

    make: MakeEnv
    plain: MakeEnv
    name: str = ""

    def __call__(self, num_envs: int, seed: int, render: bool) -> VecEnv:
        """The environment."""
        return self.make(num_envs, seed, render)


def env_factory(cfg: DictConfig) -> EnvMaker:
    """Makes the environment that is configured."""
    node = plain(cfg.env)
    if node.get("engine") == "gym" and node.get("id") is None:
        raise Refused("say which task: id=<Gymnasium id>, such as id=Pendulum-v1")

    def plain_make(num_envs: int, seed: int, render: bool) -> VecEnv:
        return make_env(cfg, for_evaluation(node, _asked_of_eval()), num_envs, seed, render)

    return EnvMaker(partial(make_env, cfg, node), plain_make, str(cfg.get("id") or ""))


def make_env(cfg: DictConfig, node: Mapping[str, object], num_envs: int, seed: int, render: bool) -> VecEnv:
    """The environment of a node, on the configured device."""
    extra = {"render_mode": "rgb_array"} if render else {}
    return build.make("engine", node, num_envs=num_envs, seed=seed, device=str(cfg.device), **extra)


def for_evaluation(node: dict[str, Any], asked: Collection[str] = ()) -> dict[str, Any]:
    """An environment's options as evaluations have them, but for options `asked` for by name; no world is made."""
    world = node.get("world")
    if not isinstance(world, Mapping):
        return node
    build.prepare("world", world, where="env.world")  # a file that has changed is refused before it runs
    off = getattr(build.find("world", str(world["name"])), "eval_options", {})
    return {**node, "world": {**world, **{name: value for name, value in off.items() if name not in asked}}}


def _asked_of_eval() -> set[str]:
    """Options of the world that the command line of `robot-rl eval` gives; other verbs give them for training."""
    if not HydraConfig.initialized() or HydraConfig.get().job.config_name not in ("eval", "compare", "fas"):
        return set()
    keys = (item.partition("=")[0].lstrip("+") for item in HydraConfig.get().overrides.task)
    return {key.removeprefix("env.world.") for key in keys if key.startswith("env.world.")}


def learner_factory(cfg: DictConfig, device: str | None = None) -> Callable[[IOSpec], AnyLearner]:
    """(io) -> learner, on the configured device or another."""
    node, place = plain(cfg.policy), str(cfg.device) if device is None else device
    more = {"load": load_trained} if "teacher" in node else {}
    return partial(build.prepare("policy", node), seed=cfg.seed, device=place, gamma=cfg.gamma, **more)


def foreign(cfg: DictConfig, path: str, io: IOSpec) -> Policy:
    """A policy of another project, `policy=sb3 path=...`.

    Raises:
        ValueError: what an interface that lies beside a graph says does not fit the environment.
    """
    graph = graph_of(Path(path).expanduser())
    own = read_io(graph.parent) if graph is not None and (graph.parent / "io.json").is_file() else io
    if own.action_choices != io.action_choices:
        here, there = (list(one.action_choices) or "numbers" for one in (own, io))
        raise ValueError(f"the graph at {path} acts with choices {here} and this environment takes {there}")
    policy = build.make("policy", plain(cfg.policy), path=path, io=io, device=str(cfg.device), seed=int(cfg.seed))
    if not (own.knows_bounds and io.knows_bounds):
        return policy
    return in_units(policy, own, io, None, _tell)


def load_policy(cfg: DictConfig, run_config: DictConfig, path: Path, world: IOSpec | None = None) -> Policy:
    """The policy of a checkpoint, for its own interface or, where that names nothing, for `world`'s."""
    own, known = checkpoint.read_io(path), checkpoint.read_meta(path).get("action")
    io = own
    if world is not None:  # a policy from a log that names nothing fits any world of its sizes
        own, known = meaning_of(own, known, read_action_meaning(cfg))
        io = agree(own, world, known)
    if graph_of(path):
        policy: Policy = OnnxPolicy(str(path), io, device=str(cfg.device))
    elif bundle_of(path):
        policy = LeappPolicy(str(path), io, device=str(cfg.device), trust=cfg.get("trust") is True)
    else:
        _tell_newer_options(plain(run_config.policy), path, own)
        made = OmegaConf.merge(run_config, {"device": cfg.device})
        learner = learner_factory(made)(io.acting)  # type: ignore[arg-type]
        learner.policy.load_state_dict(checkpoint.load_state(path / "policy.pt", device=cfg.device))
        policy = learner.policy
    if world is None:
        return policy
    return in_units(policy, own, world, known, _tell)


def _tell(line: str) -> None:
    print(line, file=sys.stderr)


def _tell_newer_options(node: Mapping[str, Any], path: Path, io: IOSpec) -> None:
    """Say which options came after a run: its weights were learned without them, and they act now."""
    name = str(node["name"])
    if ":" in name:  # somebody's own
        return
    options = build.options_of("policy", build.find("policy", name))
    own = options.pictures_only if issubclass(options, Options) else frozenset[str]()
    idle = frozenset[str]() if any(key.startswith("image.") for key in io.obs) else own
    fields = {key: field for key, field in options.model_fields.items() if key not in node and key not in idle}
    newer = {key: field.default for key, field in fields.items() if not field.is_required()}
    if newer:
        values = ", ".join(f"{key}={value}" for key, value in newer.items())
        print(
            f"{path}: {name} has options that came after this run, at their defaults: {values}. If it acts "
            "otherwise than it did, write what it was trained with into the policy of its config.yaml, or train anew.",
            file=sys.stderr,
        )


def load_trained(
    path: str | PathLike[str], *, device: str = "cpu", trust: bool = False, world: IOSpec | None = None
) -> Policy:
    """The policy of a run or checkpoint; see `load_policy`.

    Raises:
        CheckpointError: there is none.
    """
    folder = checkpoint.find(Path(path))
    return load_policy(OmegaConf.create({"device": device, "trust": trust}), stored_config(folder), folder, world)


def load_subject(cfg: DictConfig, path: Path) -> tuple[DictConfig, Path, VecEnv, Policy]:
    """What an evaluation is of: `path` as a run of ours, or, with `policy=`, as a policy of another project.

    Returns:
        The configuration with the environment, where the policy lies, environment, policy.

    Raises:
        CheckpointError: there is no run.
        Refused: no environment.
    """
    if cfg.get("policy") is None:
        path = checkpoint.find(path)
        run_config = stored_config(path)
        cfg = in_env_of(cfg, run_config)
        env = env_factory(cfg).plain(cfg.num_envs, cfg.seed, False)
        return cfg, path, env, load_policy(cfg, run_config, path, env.io)
    if cfg.get("env") is None:
        raise Refused(f"policy={choice('policy')} brings no environment; add env=…, e.g. env=gym id=HalfCheetah-v4")
    env = env_factory(cfg).plain(cfg.num_envs, cfg.seed, False)
    return cfg, path, env, foreign(cfg, str(path), env.io)


def read_action_meaning(cfg: DictConfig) -> dict[str, Any]:
    """What the command line says of the actions of a log: `action`, `action_low` and `action_high`."""
    names = [name for name in ("action", "action_low", "action_high") if cfg.get(name) is not None]
    given: Any = OmegaConf.to_container(cfg, resolve=True)
    return {name: given[name] for name in names}


_planned: list[Path] = []  # folders of runs that this process began; a refused one is taken away again


def clear_refused() -> bool:
    """Remove the folders of runs that were refused while they were built: those that hold a config.yaml and no more.

    Returns:
        Whether a run had begun: its folder holds more, and stays.
    """
    for folder in _planned:
        files = [path for path in folder.rglob("*") if not path.is_dir()]
        if folder.is_dir() and files == [folder / "config.yaml"]:
            shutil.rmtree(folder)
        for empty in (folder.parent, folder.parent.parent):  # runs/train, and runs
            with suppress(OSError):
                empty.rmdir()
    begun = any(folder.is_dir() for folder in _planned)
    _planned.clear()
    return begun


def keep_planned() -> None:
    """A run is done: whatever is refused next, in a sweep, has nothing to do with its folder."""
    _planned.clear()


def run_folder(cfg: DictConfig, verb: str, default_name: str) -> Path:
    """A new folder for a run, not made yet."""
    if HydraConfig.get().mode == RunMode.MULTIRUN:
        return Path(HydraConfig.get().runtime.output_dir)
    name = re.sub(r"[^\w.=-]+", "-", str(cfg.name or default_name))
    stem = Path(cfg.output) / verb / f"{datetime.now():%Y-%m-%d_%H-%M-%S}_{name}"
    folder, number = stem, 2
    while folder.exists():
        folder, number = stem.with_name(f"{stem.name}-{number}"), number + 1
    _planned.append(folder)
    return folder


def choice(group: str) -> str:
    """Which option of a group was chosen, or ""."""
    return str(HydraConfig.get().runtime.choices.get(group) or "")


def env_name(cfg: DictConfig) -> str:
    """Which environment was chosen, or ""; a world of the user's own by its class."""
    chosen = choice("env")
    return str(cfg.env.world.name).rpartition(":")[2].lower() if chosen == "own" else chosen


def threads(cfg: DictConfig) -> None:
    """Set torch's threads."""
    if cfg.threads:
        torch.set_num_threads(int(cfg.threads))


def begin(
    cfg: DictConfig, verb: str, options: type[Options], groups: tuple[str, ...], name: str
) -> tuple[DictConfig, Path]:
    """Configuration and folder of a new run, or of the one that `resume` names.

    Args:
        cfg: composed.
        verb: whose folder it is in.
        options: of the verb.
        groups: what a resumed run keeps.
        name: of a new run.

    Raises:
        Refused: no run there, or a change of what it keeps.
    """
    if cfg.resume is None:
        return cfg, run_folder(cfg, verb, name)

    folder = run_of(cfg.resume)
    kept = stored_config(folder)
    refuse_other_verb(kept, folder, verb)
    changes = [item.lstrip("+") for item in HydraConfig.get().overrides.task if not item.startswith("resume=")]
    groups = (*groups, "robot", "id")
    fixed = [item for item in changes if item.split("=")[0].lstrip("~") in groups]
    if fixed:
        names = ", ".join(groups[:-1]) + " and " + groups[-1]
        raise Refused(f"{fixed[0]}: a resumed run keeps its {names}; start a new run")
    # options that are newer than the run have their defaults
    newer = OmegaConf.masked_copy(cfg, [key for key in options.model_fields if key in cfg and key not in kept])
    merged = OmegaConf.merge(newer, kept, OmegaConf.from_dotlist(changes), {"resume": str(folder)})
    read_options(options, merged, verb)  # type: ignore[arg-type]
    return merged, folder  # type: ignore[return-value]


def run_name(cfg: DictConfig, method: str = "") -> str:
    """World, method (instead of the chosen one) and seed."""
    task = str(cfg.id or "").rpartition(":")[2]  # without the file or module of its class
    world = [f"{env_name(cfg)}{'-' + task if task else ''}"] if choice("env") else []
    return "_".join([*world, method or choice("policy").split("/")[-1], f"seed{cfg.seed}"])


def saved_config(cfg: DictConfig) -> str:
    """The composed configuration as a run keeps it."""
    return OmegaConf.to_yaml(OmegaConf.masked_copy(cfg, [str(key) for key in cfg if key != "resume"]), resolve=True)


def settings_of(kind: type[S], cfg: DictConfig) -> S:
    """What a job takes, out of the options of its verb."""
    return kind(**plain(OmegaConf.masked_copy(cfg, list(kind.model_fields))))


def start_of(cfg: DictConfig, folder: Path) -> RunStart:
    """Where and how the run of a configuration begins."""
    return RunStart(folder, saved_config(cfg), tracker_factory(cfg), cfg.resume is not None)


def tracker_factory(cfg: DictConfig) -> Callable[[str, int | None], Many]:
    """(run folder, resume step or None) -> tracker."""
    everything = OmegaConf.to_container(cfg, resolve=True)

    def make(folder: str, resume_step: int | None) -> Many:
        return build.make("track", plain(cfg.track), folder, resume_step=resume_step, config=everything)

    return make


def in_env_of(cfg: DictConfig, run_config: DictConfig) -> DictConfig:
    """What was asked, in the environment of a run unless another one was chosen, perhaps on another engine.

    Args:
        cfg: of the verb.
        run_config: of the run.

    Raises:
        Refused: the run was trained without an environment, and none is given.
    """
    if not choice("env"):
        own = OmegaConf.merge(run_config.get("env") or {}, cfg.get("env") or {})
        cfg = OmegaConf.merge(cfg, {"env": own if run_config.get("env") else None})  # type: ignore[assignment]
    if cfg.get("env") is None:
        raise Refused("this run was trained without an environment; add env=…, or use robot-rl eval ope")
    return cfg


def load_for_robot(path: str, *, device: str = "cpu", threads: int = 1, trust: bool = False) -> Loaded:
    """A trained policy for the robot: what the policy node runs.

    Args:
        path: run or checkpoint folder, or a zip of stable-baselines3 with its io.json.
        device: where the policy computes.
        threads: CPU threads of torch.
        trust: run a method of somebody's own that the folder names.

    Raises:
        CheckpointError: no complete checkpoint there.
        ValueError: the folder names code, and it is not trusted.
    """
    torch.set_num_threads(threads)
    if Path(path).suffix == ".zip":
        file = Path(path)
        agent = build.make("policy", {"name": "sb3"}, path=path, io=read_io(file.parent), device=device, seed=0)
        names = (file.name, "io.json", "config.yaml", "vecnormalize.pkl")
        return replace(read_export(agent, file, names, build.world_port), identity=file.stem)
    extras.allow(everything=trust)
    folder = checkpoint.find(Path(path))
    run_config = stored_config(folder)
    policy = load_policy(OmegaConf.create({"device": device}), run_config, folder)
    io = checkpoint.read_io(folder)
    if isinstance(policy, ChunkedPolicy):
        policy.patience = 0.25 / io.control_hz  # a chunk that takes longer must not delay a command
    world = OmegaConf.select(run_config, "env.world")
    make_port: Callable[[tuple[str, ...]], Port] | None = None
    if world is not None:
        node = plain(world)

        def of_world(joints: tuple[str, ...]) -> Port:
            # whoever is to drive is proven against it, pictures included; who learned from pictures saw no goal
            return build.world_port(node, joints, proprio=io.obs_names if "tool" in io.obs else None)

        make_port = of_world

    run = folder.parent.parent.name if folder.parent.name == "checkpoints" else folder.parent.name
    meta = checkpoint.read_meta(folder)
    files = tuple(str(folder / name) for name in FILES if (folder / name).is_file())
    return Loaded(policy, io, make_port, f"{run}@{meta['step']}".replace("/", "_"), meta.get("action"), files)
