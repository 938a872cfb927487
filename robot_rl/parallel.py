"""Data-parallel training: one process per device, started by `torchrun`, gradients averaged over all of them.

Without torchrun there is one process and every function here does nothing, so learners and loops call them always.
"""

from __future__ import annotations

import os
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

T = TypeVar("T")


def start(device: str) -> str:
    """Join the other processes when torchrun started this one.

    Args:
        device: "cpu" (gloo), or "cuda": every process takes the device of its local rank (NCCL).

    Returns:
        The device of this process, e.g. "cuda:1".

    Raises:
        ValueError: there are more processes on this machine than devices.
    """
    if "TORCHELASTIC_RUN_ID" not in os.environ or dist.is_initialized():
        return device
    local = int(os.environ.get("LOCAL_RANK", "0"))
    kind = torch.device(device).type
    if kind == "cuda":
        count = torch.cuda.device_count()
        if local >= count:
            raise ValueError(f"torchrun started process {local + 1} here, but there are {count} CUDA devices")
        torch.cuda.set_device(local)
        device = f"cuda:{local}"
    dist.init_process_group("nccl" if kind == "cuda" else "gloo")
    return device


def stop() -> None:
    """Leave the group."""
    if dist.is_initialized():
        dist.destroy_process_group()


def rank() -> int:
    """Number of this process; 0 writes."""
    return dist.get_rank() if dist.is_initialized() else 0


def size() -> int:
    """Number of processes."""
    return dist.get_world_size() if dist.is_initialized() else 1


@torch.no_grad()
def mean_(tensor: Tensor) -> Tensor:
    """Average over all processes, in place."""
    if size() > 1:
        dist.all_reduce(tensor)
        tensor /= size()
    return tensor


@torch.no_grad()
def sum_(tensor: Tensor) -> Tensor:
    """Sum over all processes, in place."""
    if size() > 1:
        dist.all_reduce(tensor)
    return tensor


@torch.no_grad()
def max_(tensor: Tensor) -> Tensor:
    """Largest over all processes, in place."""
    if size() > 1:
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
    return tensor


@torch.no_grad()
def rows(tensor: Tensor) -> Tensor:
    """(N, ...) of every process -> (size N, ...), rank by rank."""
    if size() == 1:
        return tensor
    parts = [torch.empty_like(tensor) for _ in range(size())]
    dist.all_gather(parts, tensor.contiguous())
    return torch.cat(parts)


def agree(value: T) -> T:
    """Rank 0's value, on every process; plain Python values."""
    if size() == 1:
        return value
    box = [value]
    dist.broadcast_object_list(box, src=0)
    return box[0]


def all_true(flag: bool) -> bool:
    """Whether it holds in every process."""
    if size() == 1:
        return flag
    flags: list[object] = [None] * size()
    dist.all_gather_object(flags, flag)
    return all(flags)


def shard(count: int, name: str = "num_envs") -> int:
    """This process's part of `count` environments, or of what else `name` says.

    Raises:
        ValueError: they cannot be shared out evenly.
    """
    if count % size():
        raise ValueError(f"{name} is {count}, expected a multiple of the {size()} processes that torchrun started")
    return count // size()
