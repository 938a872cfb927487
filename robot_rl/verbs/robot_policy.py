"""Policies for a robot, of every kind that there is; torch is loaded only for those that need it."""

from __future__ import annotations

import hashlib
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from robot_rl import build, onnx_policy, policy_card
from robot_rl.leapp_bundle import bundle_of, read_bundle
from robot_rl.leapp_policy import LeappPolicy
from robot_rl.onnx_policy import OnnxPolicy, graph_of, read_export
from robot_rl.types.policy_card import FILE

if TYPE_CHECKING:  # whoever imports this may be a process without torch
    from robot_rl.types import Loaded, Policy


def load_robot_policy(path: str, *, device: str, threads: int, trust: bool) -> Loaded:
    """A policy of others, an export, or a run or checkpoint of ours: what the policy node runs.

    Args:
        path: run or checkpoint folder, exported folder, LEAPP bundle, or the folder or file of a policy with its card.
        device: where it computes.
        threads: CPU threads.
        trust: run a method of somebody's own that the folder names, or TorchScript, which is a program.

    Raises:
        Refused, ValueError, CheckpointError: there is none, or it cannot be used.
    """
    if (walker := load_walker(Path(path), device=device, threads=threads, trust=trust)) is not None:
        return walker
    if graph_of(Path(path)):
        return onnx_policy.load_for_robot(path, device=device, threads=threads, make_port=build.world_port)
    if (file := bundle_of(Path(path))) is not None:
        return load_leapp(file, device=device, threads=threads, trust=trust)
    from robot_rl.verbs.build import load_for_robot  # torch

    return load_for_robot(path, device=device, threads=threads, trust=trust)


def load_walker(path: Path, *, device: str, threads: int, trust: bool = False) -> Loaded | None:
    """A walking policy of others with its card `io.yaml`, as an ONNX graph without torch; None where none lies here.

    Args:
        path: folder, or file of the weights.
        device: where it computes.
        threads: of ONNX Runtime, or of torch.
        trust: run TorchScript, which is a program.

    Raises:
        Refused, ValueError: the card cannot be used, or the weights do not fit it, or are not trusted.
    """
    found = policy_card.read_for(path)
    if found is None:
        return None
    from robot_rl.types import Loaded

    card, weights = found
    port = build.tool("real.legged_port:LeggedPort")
    io, clip = port(card, card.joints).io, card.action_clip
    if card.format == "onnx":
        policy: Policy = OnnxPolicy(str(weights), io, largest=clip, device=device, threads=threads)
    else:
        import torch

        from robot_rl.verbs.torchscript import TorchScriptPolicy

        torch.set_num_threads(threads)
        policy = TorchScriptPolicy(weights, io, clip, device=device, trust=trust)
    identity = f"{weights.parent.name}@{card.sha256[:8]}".replace("/", "_")
    return Loaded(policy, policy.io, partial(port, card), identity, files=(str(weights), str(weights.parent / FILE)))


def load_leapp(file: Path, *, device: str, threads: int, trust: bool) -> Loaded:
    """A LEAPP bundle: with io.json beside it as that says, else as the kinds and names of its tensors say.

    Args:
        file: its description.
        device: where it computes.
        threads: of ONNX Runtime.
        trust: run TorchScript parts, which are programs.

    Raises:
        ValueError: it cannot be used; torch is loaded for TorchScript parts alone.
    """
    own = (file.parent / "io.json").is_file()
    port, bundle = build.tool("real.leapp_port"), read_bundle(file)
    policy = LeappPolicy(
        str(file),
        None if own else port.interface(bundle),
        outputs=() if own else port.targets_of(bundle),
        largest=1.0 if own else port.LARGEST,
        device=device,
        threads=threads,
        trust=trust,
    )
    if own:
        names = (*(path.name for path in bundle.files), *onnx_policy.FILES)
        return read_export(policy, file, names, build.world_port)
    from robot_rl.types import Loaded

    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    return Loaded(
        policy,
        policy.io,
        partial(port.LeappPort, policy.bundle, policy.first),
        f"{file.stem}@{digest[:8]}",
        files=tuple(str(path) for path in bundle.files),
    )
