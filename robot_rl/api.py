"""The verbs from Python: `make`, `train`, `offline`, `resume`, `load`, `evaluate`.

Names, options, checks and run folders are those of the command line, so that what one door began the other goes on
with: `robot-rl eval path=<folder>` evaluates what `train` returned. Bad input raises `robot_rl.words.Refused`
or a ValueError with one readable paragraph.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from omegaconf import DictConfig, OmegaConf

from robot_rl import build, checkpoint, extras
from robot_rl.loops.evaluate import Evaluation
from robot_rl.types import Action, AnyLearner, Array, Callback, Obs, Policy, PolicyParts, VecEnv
from robot_rl.verbs.build import for_evaluation, load_trained, start_of
from robot_rl.verbs.compose import choices, compose_verb, groups_of
from robot_rl.verbs.hil_eval import evaluate_as_run
from robot_rl.verbs.offline import offline_job
from robot_rl.verbs.pictures import put_pictures
from robot_rl.verbs.reading import plain, read_options, refuse_other_verb, run_of, stored_config
from robot_rl.verbs.robot import put_card
from robot_rl.verbs.table import OPTIONS
from robot_rl.verbs.train import learner_of_init, train_job
from robot_rl.words import Refused, near

EnvLike = str | VecEnv
"""A name, or an environment of `make`."""
PathLike = str | os.PathLike[str]
GYM_ID = re.compile(r".+-v\d+")

_nodes: WeakKeyDictionary[VecEnv, dict[str, object]] = WeakKeyDictionary()  # environment of `make` -> its options


@dataclass(frozen=True)
class RunResult:
    """What a finished run left behind; stands for its folder wherever a path is asked for.

    Attributes:
        folder: the run folder.
        summary: numbers of its end, "return" and "success" among them.
    """

    folder: Path
    summary: Mapping[str, Any] = field(repr=False)

    def __fspath__(self) -> str:
        return str(self.folder)


def make(name: str, num_envs: int = 1, *, seed: int = 0, render: bool = False, **options: object) -> VecEnv:
    """N copies of a world or a Gymnasium task behind Gymnasium's `VectorEnv`.

    Args:
        name: of a world (`robot-rl train --help` lists them), or a Gymnasium id such as "HalfCheetah-v5".
        num_envs: N.
        seed: of everything random in it.
        render: whether `render()` draws RGB pictures.
        options: of the environment; those of the world as `world={...}`, `engine="warp"` for another engine,
            `robot="my_arm"` for the robot of a card (`robot-rl robot new`).

    Returns:
        Observations are dicts of (N, ...) arrays, actions (N, A) in [-1, 1], episodes that end are reset in the same
        step; `.io` tells names, bounds and units.

    Raises:
        Refused: no such name or option.
    """
    if not isinstance(num_envs, int) or isinstance(num_envs, bool):
        raise Refused(f"num_envs is {num_envs!r}, expected a whole number of at least 1")
    node = _env_node(name, options)
    extra = {"render_mode": "rgb_array"} if render else {}
    env = build.make("engine", node, num_envs=num_envs, seed=seed, device="cpu", **extra)
    _nodes[env] = node
    return env


def train(
    policy: str | type[AnyLearner],
    env: EnvLike,
    *,
    steps: int = 100_000,
    options: Mapping[str, object] | None = None,
    folder: PathLike | None = None,
    callback: Callback | None = None,
    **settings: object,
) -> RunResult:
    """Train a policy in simulation, with evaluations, checkpoints, learning curve, video and report in a run folder.

    Args:
        policy: a method or preset such as "online/sac", "./my_method.py:MyLearner", or a class of an importable module.
        env: a name as `make` takes it, or an environment of `make`: the run makes its own copies with the same options,
            as many as it has.
        steps: environment steps (transitions) in all; `total_steps` says the same.
        options: of the method.
        folder: of the run; default: a new one below `output`.
        callback: (step, metrics) -> anything, called with every row of metrics.jsonl; False ends the run there,
            evaluated and saved as at its end.
        settings: everything else that `robot-rl train` takes: seed, device, eval_every, demos, log, rewarder …

    Raises:
        Refused: an unknown name or option, or a value outside its range.
        KeyboardInterrupt: after a Ctrl-C, once everything is saved; `resume` goes on.
    """
    node = _node_of(env)
    if not isinstance(env, str):
        settings.setdefault("num_envs", env.num_envs)
    values = {"total_steps": steps, **settings, "env": node}
    cfg = _compose("train", _policy_name(policy), options, values)
    learner_of_init(cfg)
    return _run("train", cfg, _folder(folder, cfg, "train"), callback)


def offline(
    policy: str | type[AnyLearner],
    log: PathLike,
    *,
    updates: int = 1_000_000,
    env: EnvLike | None = None,
    options: Mapping[str, object] | None = None,
    folder: PathLike | None = None,
    callback: Callback | None = None,
    **settings: object,
) -> RunResult:
    """Train a policy from a log.

    Args:
        policy: a method or preset such as "offline/iql"; see `train`.
        log: a file or folder in any format that `robot-rl data` reads.
        updates: of the learner, in all.
        env: where it is evaluated; None: nowhere.
        options: of the method.
        folder: of the run; default: a new one below `output`.
        callback: (step, metrics) -> anything, called with every row of metrics.jsonl; False ends the run there,
            evaluated and saved as at its end.
        settings: everything else that `robot-rl offline` takes; estimate=0 leaves out the estimate from the log alone.

    Raises:
        Refused: an unknown name or option, a value outside its range, or a log that cannot be used.
        KeyboardInterrupt: after a Ctrl-C, once everything is saved; `resume` goes on.
    """
    values = {**settings, "env": None if env is None else _node_of(env), "data": str(log), "updates": updates}
    cfg = _compose("offline", _policy_name(policy), options, values)
    return _run("offline", cfg, _folder(folder, cfg, "offline"), callback)


def resume(run: PathLike, *, callback: Callback | None = None, **settings: object) -> RunResult:
    """Go on with an interrupted run of `train` or `offline`, exactly where its newest checkpoint stands.

    Args:
        run: its folder, or a checkpoint in it.
        callback: as of `train`.
        settings: what changes, such as total_steps or updates.

    Raises:
        CheckpointError: there is nothing to resume from.
        Refused: a run of another verb, an unknown option, one that a run keeps, or a value outside its range.
    """
    folder = run_of(Path(run))
    kept = stored_config(folder)
    verb = refuse_other_verb(kept, folder, "train", "offline")
    groups = groups_of(verb)
    known = {*groups, *OPTIONS[verb]().model_fields}
    for key, value in settings.items():
        if key not in known:
            raise Refused(f"robot_rl has no option '{key}' here{near(key, known)}")
        if key in (*groups, "robot", "id") and not isinstance(value, Mapping):
            raise Refused(f"{key}={value}: a resumed run keeps its {key}; start a new run")
    cfg: Any = OmegaConf.merge(kept, settings, {"resume": str(folder)})
    _trust(cfg)
    read_options(OPTIONS[verb](), cfg, verb)
    return _run(verb, cfg, folder, callback)


def load(run: PathLike, *, env: VecEnv | None = None, device: str = "cpu", trust: bool = False) -> LoadedPolicy:
    """The policy of a run: `load(folder).act(obs)`.

    Args:
        run: run folder or checkpoint, or what `train` returned.
        env: where it is to act; a policy that learned in other units of action commands the same physical action.
        device: where it computes.
        trust: run code that the folder names, with your rights.

    Raises:
        CheckpointError: no complete checkpoint there.
        Refused: it names code that is not trusted, or does not fit `env`.
    """
    return LoadedPolicy(_load(run, env, device, trust))


def _load(run: PathLike, env: VecEnv | None = None, device: str = "cpu", trust: bool = False) -> Policy:
    _trust(OmegaConf.create({"trust": trust}))
    return load_trained(run, device=device, trust=trust, world=None if env is None else env.io)


def evaluate(
    run: PathLike | Policy,
    env: EnvLike | None = None,
    *,
    episodes: int = 20,
    seed: int = 0,
    deterministic: bool = True,
    trust: bool = False,
) -> Evaluation:
    """Returns, lengths and successes of whole episodes, the same ones for the same seed.

    Args:
        run: run folder, checkpoint or what `train` returned; or anything that acts (`robot_rl.types.Policy`).
        env: a name, or an environment of `make`, which is reset; None: the one that the run was trained in.
        episodes: in all.
        seed: of the episodes; `robot-rl eval` with the same seed runs the same.
        deterministic: as the policy acts alone (`Policy.act`) instead of samples.
        trust: run code that the folder names, with your rights.

    Raises:
        Refused: no environment is known, it is no policy, or policy and environment do not fit.
    """
    if not isinstance(run, str | os.PathLike | Policy):
        raise Refused(
            f"{type(run).__name__} is no policy; expected a run folder, or an object with io (that of the "
            "environment), parts (PolicyParts()), reset(rows) and act(obs, deterministic=...) -> Action, as "
            "robot_rl.types.Policy says. Agents of stable-baselines3: save the zip, then robot-rl eval policy=sb3 "
            "path=agent.zip env=gym id=..."
        )
    if env is not None and not isinstance(env, str):
        world = env
    else:
        _trust(OmegaConf.create({"trust": trust}))
        node = _world_of(run) if env is None else _env_node(env, {})
        world = build.make("engine", for_evaluation(node), num_envs=1, seed=seed, device="cpu")
    try:
        given = run.policy if isinstance(run, LoadedPolicy) else run
        policy = _load(given, world, trust=trust) if isinstance(given, str | os.PathLike) else given
        ours = stored_config(checkpoint.find(Path(run))) if isinstance(run, str | os.PathLike) else None
        return evaluate_as_run(
            ours,
            world,
            policy,
            episodes=episodes,
            seed=seed + 10_000,
            deterministic=deterministic,
        )
    finally:
        if world is not env:
            world.close()


def _run(verb: str, cfg: DictConfig, folder: Path, callback: Callback | None) -> RunResult:
    job = offline_job(cfg, folder) if verb == "offline" else train_job(cfg, start_of(cfg, folder))
    return RunResult(job.folder, job.run(callback))


def _compose(verb: str, policy: str, options: Mapping[str, object] | None, values: Mapping[str, object]) -> DictConfig:
    """The configuration that the command line would have made, checked."""
    cfg = compose_verb(verb, {"policy": policy}, {**values, "policy": dict(options or {})})
    _trust(cfg)
    read_options(OPTIONS[verb](), cfg, verb)
    put_card(cfg)
    put_pictures(cfg)
    return cfg


def _trust(cfg: DictConfig) -> None:
    extras.allow(everything=cfg.get("trust") is True, changed=cfg.get("trust") == "changed")


def _policy_name(policy: str | type[AnyLearner]) -> str:
    if isinstance(policy, str):
        return policy
    if policy.__module__ == "__main__":  # a run folder has to find it again
        raise Refused(
            f"{policy.__qualname__} stands in the script itself; put it into a module of its own and import it"
        )
    return f"{policy.__module__}:{policy.__qualname__}"


_OWN_TASK = (
    "a world, a Gymnasium id (of a task of your own: gymnasium.register(id, entry_point=...) in an importable module, "
    "then 'module:Id-v0'), or './my_task.py:MyTask' for a class of a file"
)


def _env_node(name: str, options: Mapping[str, object]) -> dict[str, object]:
    """Engine, world and options that a name means."""
    if not isinstance(name, str):
        raise Refused(f"{name!r} is no name of an environment; {_OWN_TASK}")
    gym = GYM_ID.fullmatch(name) and name not in choices("env")
    values: dict[str, object] = {"env": {key: value for key, value in options.items() if key != "robot"}}
    if "robot" in options:
        values["robot"] = str(options["robot"])
    if gym:
        extras.allow(name)  # "module:Name-v0" stands in the user's own program
        values["id"] = name
    cfg = compose_verb("check", {"env": "gym" if gym else name}, values)
    put_card(cfg)
    put_pictures(cfg)
    return plain(cfg.env)


def _node_of(env: EnvLike) -> dict[str, object]:
    if isinstance(env, str):
        return _env_node(env, {})
    if env not in _nodes:
        name = env.__name__ if isinstance(env, type) else type(env).__name__
        raise Refused(
            f"{name} was not made by robot_rl.make, so that a run could not make it again; give its name: {_OWN_TASK}"
        )
    return _nodes[env]


def _world_of(run: PathLike | Policy) -> dict[str, object]:
    if not isinstance(run, str | os.PathLike):
        raise Refused("say where: evaluate(policy, env)")
    node = stored_config(checkpoint.find(Path(run))).get("env")
    if node is None:
        raise Refused(f"{os.fspath(run)} was trained without an environment; say where: evaluate(run, env)")
    return plain(node)


def _folder(given: PathLike | None, cfg: DictConfig, verb: str) -> Path:
    if given is not None:
        return Path(given)
    method = re.sub(r"\W+", "-", str(cfg.name or cfg.policy.name).rpartition("/")[2])
    return Path(cfg.output) / verb / f"{datetime.now():%Y-%m-%d_%H-%M-%S}_{method}_seed{cfg.seed}"


class LoadedPolicy:
    """What `load` returns: the policy of a run, which says what it expects where an observation is none of its.

    Args:
        policy: the policy itself.
    """

    def __init__(self, policy: Policy) -> None:
        self.policy, self.io = policy, policy.io

    @property
    def parts(self) -> PolicyParts:
        """The policy's."""
        return self.policy.parts

    def reset(self, rows: Array | None = None) -> None:
        """Forget memory and chunks of these rows."""
        self.policy.reset(rows)

    def act(self, obs: Obs, *, deterministic: bool = False) -> Action:
        """Choose actions (B, A) in [-1, 1] for a batch.

        Raises:
            Refused: the observation is no dict of (B, ...) arrays of the shapes of `io.obs`.
        """
        if not isinstance(obs, Mapping):
            arrays = isinstance(obs, np.ndarray | torch.Tensor)
            first = next(iter(self.io.obs.values()))[0]
            got = f"an array of shape {tuple(obs.shape)}" if arrays else f"a {type(obs).__name__}"
            raise Refused(self._expectation(got, batch=arrays and tuple(obs.shape[1:]) == tuple(first)))
        for key, (shape, _) in self.io.obs.items():
            if key in obs and tuple(obs[key].shape[1:]) != tuple(shape):
                raise Refused(self._expectation(f"'{key}' of shape {tuple(obs[key].shape)}"))
        try:
            return self.policy.act(obs, deterministic=deterministic)
        except KeyError as error:
            if missing := [key for key in self.io.obs if key not in obs]:
                raise Refused(self._expectation(f"no {', '.join(map(repr, missing))}")) from error
            raise

    def _expectation(self, got: str, batch: bool = False) -> str:
        wanted = ", ".join(
            f"'{key}': ({', '.join(map(str, ('B', *shape)))}) {kind}" for key, (shape, kind) in self.io.obs.items()
        )
        first = next(iter(self.io.obs))
        line = f"'{first}': obs}}).value" if batch else f"'{first}': obs[None]}}).value[0] for one observation"
        return (
            f"this policy acts on a dict of arrays whose first axis is the batch, {{{wanted}}}, and got {got}. Write "
            f"policy.act({{{line}; the answer is in [-1, 1], from policy.io.action_low to policy.io.action_high of the "
            "task. What rr.make(...) makes gives such dicts and takes such actions"
        )
