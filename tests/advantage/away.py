"""A device that this machine lacks, played on the host: a copy to the host, or a mix with host arrays, raises."""

from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

AWAY = torch.device("cuda", 0)
_TO_HOST = {torch.Tensor.numpy, torch.Tensor.cpu, torch.Tensor.tolist, torch.Tensor.__array__}
_DEVICE = torch.Tensor.device.__get__  # another object at each look, equal to the others


class Away(torch.Tensor):
    """A tensor that says it lies on `AWAY`; what is made of it does so too."""


class AwayDevice(TorchFunctionMode):
    """Inside, new tensors of `device=AWAY` can be made; single numbers may be read, as they may on a device."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = [x for x in pytree.tree_leaves((args, kwargs or {})) if isinstance(x, torch.Tensor)]
        away = any(isinstance(x, Away) for x in given)
        if func == _DEVICE:
            return AWAY if away else func(*args)
        if away and func in _TO_HOST:
            raise AssertionError(f"{func} copies a column to the host")
        if away and func is not torch.Tensor.to and any(not isinstance(x, Away) and x.dim() for x in given):
            raise AssertionError(f"{func} mixes tensors of the device with tensors of the host")
        places = [x for x in pytree.tree_leaves((args, kwargs or {})) if isinstance(x, torch.device)]
        if away and func is torch.Tensor.to and ("cpu" in args or any(place != AWAY for place in places)):
            raise AssertionError("to() copies a column to the host")
        here = pytree.tree_map_only(torch.device, lambda _: torch.device("cpu"), (args, kwargs or {}))
        out = func(*here[0], **here[1])
        return out.as_subclass(Away) if AWAY in places and isinstance(out, torch.Tensor) else out
