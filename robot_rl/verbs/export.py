"""The verb export: a trained policy as an ONNX graph or a LEAPP bundle, which run without torch and outside of this
project."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Literal

import numpy as np
from omegaconf import DictConfig

from robot_rl import checkpoint, extras
from robot_rl.atomic import new_folder, write_json
from robot_rl.leapp_bundle import DESCRIPTION
from robot_rl.leapp_policy import LeappPolicy
from robot_rl.onnx_policy import FILE, OnnxPolicy
from robot_rl.types import IOSpec, Policy
from robot_rl.verbs import answer
from robot_rl.verbs.build import env_factory, foreign, load_trained, saved_config
from robot_rl.verbs.export_files import leapp_package, write_leapp, write_onnx
from robot_rl.verbs.options import Env, Machine
from robot_rl.verbs.reading import run_of
from robot_rl.version import VERSION
from robot_rl.words import Refused

TOLERANCE = 1e-4
"""Largest difference of an action between the policy and its graph, of a range of 2."""
ROWS = 256
FILES = {"onnx": FILE, "leapp": DESCRIPTION}
"""What an exported folder of each format begins with."""


class ExportOptions(Machine, Env):
    """robot-rl export."""

    path: str
    """A run folder, a checkpoint, or (policy=sb3) a zip."""
    out: str
    """The folder to write: policy.onnx or policy.yaml with its parts, io.json, config.yaml, meta.json."""
    format: Literal["onnx", "leapp"] = "onnx"
    """One ONNX graph, or a bundle of NVIDIA's LEAPP with a description of its tensors and its memory."""


def export(cfg: DictConfig) -> None:
    """Write the best action of a policy as a graph and prove that it gives the same.

    Raises:
        CheckpointError: no checkpoint.
        Refused: the policy remembers what cannot be told apart, or does what a graph cannot; nothing is written then.
    """
    kind = str(cfg.get("format") or "onnx")
    for module in ("onnx", "onnxscript", "onnxruntime"):
        extras.require(module)
    if kind == "leapp":
        leapp_package()
    out, file = Path(cfg.out), FILES[kind]
    if out.exists() and not (out / file).exists():
        raise Refused(f"{out} is there and holds no {file}; give a new folder, or that of an earlier export")
    policy, spec, config, facts = _foreign(cfg) if cfg.get("policy") is not None else _of_run(cfg)
    parts = policy.parts
    if parts.recurrence is None and (parts.remembers or parts.meter is not None or parts.executed is not None):
        raise Refused(
            f"{type(policy).__name__} decides from more than the present observation (chunks drawn with noise, a "
            "gripper's last command, a history that torch alone does not hold), and the graph would forget that"
        )
    if parts.set_dither is not None and parts.set_dither(0.0):
        print("the policy keeps some of its noise where it acts alone; the file acts by the mean")
    rows = _observations(spec)
    with new_folder(out) as temporary:
        write = write_leapp if kind == "leapp" else write_onnx
        write(policy, {key: x[:2] for key, x in rows.items()}, spec, temporary / file)
        write_json(temporary / "io.json", spec.to_dict())
        (temporary / "config.yaml").write_text(config, encoding="utf-8")
        reader = LeappPolicy if kind == "leapp" else OnnxPolicy
        worst = _difference(policy, reader(str(temporary)), rows)
        if not worst <= TOLERANCE:
            raise Refused(
                f"the graph of {type(policy).__name__} differs from the policy by up to {worst:.2g} of an action; at "
                f"most {TOLERANCE:g} is admitted, so nothing was written"
            )
        digest = hashlib.sha256((temporary / file).read_bytes()).hexdigest()
        write_json(temporary / "meta.json", {**facts, "sha256": digest, "largest_difference": worst})
    size = sum(path.stat().st_size for path in out.iterdir())
    answer.table({"graph": str(out / file), "bytes": size, "largest difference": worst})


def _of_run(cfg: DictConfig) -> tuple[Policy, IOSpec, str, dict[str, object]]:
    """Policy, interface, configuration and facts of a run of ours."""
    if cfg.get("env") is not None:
        raise Refused("env= and robot= are for a policy of another project (policy=sb3); a run has its own environment")
    folder = checkpoint.find(Path(cfg.path))
    if any((folder / file).exists() for file in FILES.values()):
        raise Refused(f"{folder} is an export already")
    policy = load_trained(folder)
    meta = checkpoint.read_meta(folder)
    run = run_of(folder).name
    facts = {key: meta[key] for key in ("version", "git_commit", "step", "action") if key in meta}
    facts["identity"] = f"{run}@{meta['step']}.onnx"
    return policy, checkpoint.read_io(folder), (folder / "config.yaml").read_text(encoding="utf-8"), facts


def _foreign(cfg: DictConfig) -> tuple[Policy, IOSpec, str, dict[str, object]]:
    """The same of a policy of another project, in the environment that was asked for."""
    if cfg.get("env") is None:
        raise Refused("a policy of another project brings no environment; add env=…, e.g. env=reach robot=my_arm")
    env = env_factory(cfg)(1, int(cfg.seed), False)
    policy: Policy = foreign(cfg, str(cfg.path), env.io)
    io = env.io
    env.close()
    return policy, io, saved_config(cfg), {"version": VERSION, "identity": f"{Path(cfg.path).stem}.onnx"}


def _observations(io: IOSpec) -> dict[str, np.ndarray]:
    """(ROWS, ...) observations in the range that training saw, or standard normal."""
    rng = np.random.default_rng(0)
    found: dict[str, np.ndarray] = {}
    for key, (shape, kind) in io.obs.items():
        if kind == "uint8":
            found[key] = rng.integers(0, 256, (ROWS, *shape), np.uint8)
            continue
        value = rng.standard_normal((ROWS, *shape))
        if io.seen is not None and key in io.seen.obs and len(shape) == 1:
            ends = np.asarray(io.seen.obs[key])
            value = ends[:, 0] + (ends[:, -1] - ends[:, 0]) * rng.random((ROWS, *shape))
        found[key] = value.astype(kind)
    return found


def _difference(policy: Policy, graph: Policy, rows: dict[str, np.ndarray]) -> float:
    """Largest difference of an action; inf where one is not finite.

    All rows together and some alone; of a policy that remembers as an episode of two rows, one row of which ends in its
    middle.
    """
    if policy.parts.recurrence is None:
        alone = [({k: v[i : i + 1] for k, v in rows.items()}, None) for i in range(8)]
        steps = [(rows, None), *alone]
    else:
        first = np.array([True, False])
        pairs = [{k: v[i : i + 2] for k, v in rows.items()} for i in range(0, ROWS, 2)]
        steps = [(pair, first if i == ROWS // 4 else None) for i, pair in enumerate(pairs)]
    worst = 0.0
    policy.reset()
    for obs, ended in steps:
        if ended is not None:
            policy.reset(ended)
            graph.reset(ended)
        expected, found = (np.asarray(one.act(obs, deterministic=True).value) for one in (policy, graph))
        worst = max(worst, float(np.abs(found - expected).max()))
        if not np.isfinite(worst):
            return float("inf")
    return worst
