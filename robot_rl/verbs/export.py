"""The verb export: a trained policy as an ONNX graph, which runs without torch and outside of this project."""

from __future__ import annotations

import hashlib
import io as text_io
import logging
import warnings
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import numpy as np
import torch
from omegaconf import DictConfig, OmegaConf
from torch import Tensor, nn

from robot_rl import checkpoint, extras
from robot_rl.atomic import new_folder, write_json
from robot_rl.onnx_policy import FILE, OnnxPolicy
from robot_rl.types import IOSpec, Policy
from robot_rl.verbs import answer
from robot_rl.verbs.build import env_factory, foreign, load_policy, saved_config
from robot_rl.verbs.options import Env, Machine
from robot_rl.verbs.reading import stored_config
from robot_rl.version import VERSION
from robot_rl.words import Refused

TOLERANCE = 1e-4
"""Largest difference of an action between the policy and its graph, of a range of 2."""
ROWS = 256


class ExportOptions(Machine, Env):
    """robot-rl export."""

    path: str
    """A run folder, a checkpoint, or (policy=sb3) a zip."""
    out: str
    """The folder to write: policy.onnx, io.json, config.yaml, meta.json."""


class _Graph(nn.Module):
    """What is written: observations in the order of `keys` -> the best action."""

    def __init__(self, policy: Policy, keys: list[str]) -> None:
        super().__init__()
        self._policy, self._keys = policy, keys

    def forward(self, *values: Tensor) -> Tensor:
        obs, graph = dict(zip(self._keys, values)), self._policy.parts.graph
        action = self._policy.act(obs, deterministic=True).value if graph is None else graph(obs)
        assert isinstance(action, Tensor)
        return action


def export(cfg: DictConfig) -> None:
    """Write the best action of a policy as a graph and prove that it gives the same.

    Raises:
        CheckpointError: no checkpoint.
        Refused: the policy remembers, or does what a graph cannot; nothing is written then.
    """
    for module in ("onnx", "onnxscript", "onnxruntime"):
        extras.require(module)
    out = Path(cfg.out)
    if out.exists() and not (out / FILE).exists():
        raise Refused(f"{out} is there and holds no {FILE}; give a new folder, or that of an earlier export")
    policy, spec, config, facts = _foreign(cfg) if cfg.get("policy") is not None else _of_run(cfg)
    parts = policy.parts
    if parts.remembers or parts.meter is not None or parts.executed is not None:
        raise Refused(
            f"{type(policy).__name__} decides from more than the present observation (chunks, history, a gripper's "
            "last command), and the graph would forget that; only policies without a memory can be exported"
        )
    rows = _observations(spec)
    with new_folder(out) as temporary:
        _write(policy, rows, temporary / FILE)
        write_json(temporary / "io.json", spec.to_dict())
        (temporary / "config.yaml").write_text(config, encoding="utf-8")
        worst = _difference(policy, OnnxPolicy(str(temporary)), rows)
        if not worst <= TOLERANCE:
            raise Refused(
                f"the graph of {type(policy).__name__} differs from the policy by up to {worst:.2g} of an action; at "
                f"most {TOLERANCE:g} is admitted, so nothing was written"
            )
        digest = hashlib.sha256((temporary / FILE).read_bytes()).hexdigest()
        write_json(temporary / "meta.json", {**facts, "sha256": digest, "largest_difference": worst})
    answer.table({"graph": str(out / FILE), "bytes": (out / FILE).stat().st_size, "largest difference": worst})


def _of_run(cfg: DictConfig) -> tuple[Policy, IOSpec, str, dict[str, object]]:
    """Policy, interface, configuration and facts of a run of ours."""
    if cfg.get("env") is not None:
        raise Refused("env= and robot= are for a policy of another project (policy=sb3); a run has its own environment")
    folder = checkpoint.find(Path(cfg.path))
    if (folder / FILE).exists():
        raise Refused(f"{folder} is an export already")
    policy = load_policy(OmegaConf.create({"device": "cpu"}), stored_config(folder), folder)
    meta = checkpoint.read_meta(folder)
    run = folder.parent.parent.name if folder.parent.name == "checkpoints" else folder.name
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


def _write(policy: Policy, rows: dict[str, np.ndarray], file: Path) -> None:
    keys = list(rows)
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    batch = torch.export.Dim("batch")
    silent = text_io.StringIO()
    try:
        with warnings.catch_warnings(), redirect_stdout(silent), redirect_stderr(silent), torch.no_grad():
            warnings.simplefilter("ignore")
            torch.onnx.export(
                _Graph(policy, keys).eval(),
                tuple(torch.as_tensor(rows[key][:2]) for key in keys),
                str(file),
                input_names=keys,
                output_names=["action"],
                dynamic_shapes=(tuple({0: batch} for _ in keys),),
                external_data=False,
                dynamo=True,
                verbose=False,
            )
    except Exception as error:  # what cannot be traced raises anything
        why = str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__
        raise Refused(
            f"{type(policy).__name__} cannot be written as a graph ({why}); policies that compute outside of torch, or "
            "decide step by step, have none"
        ) from error


def _difference(policy: Policy, graph: Policy, rows: dict[str, np.ndarray]) -> float:
    """Largest difference of an action, each row alone and all together; inf where one is not finite."""
    expected = policy.act(rows, deterministic=True).value
    together = graph.act(rows).value
    alone = np.concatenate([np.asarray(graph.act({k: v[i : i + 1] for k, v in rows.items()}).value) for i in range(8)])
    worst = max(float(np.abs(together - expected).max()), float(np.abs(alone - expected[:8]).max()))
    return worst if np.isfinite(worst) else float("inf")
