"""A device that is none, to find tensors of the CPU that meet tensors of a device on machines without a GPU.

`load()` compiles `pretend_device.cpp` once (10 s, kept beside other extensions of torch) and registers the device
"pretend" in this process, for good: threads of autograd start with it, so a process that goes on to fork others should
let a fork do this. What is asked of "cuda" alone (graphs, streams, pinned memory, compiled steps, Triton) takes the
path of every other device here. Unlike CUDA, operations end before the next begins, `torch.autocast` changes nothing,
numbers are those of the CPU, and `Module.to` makes new parameters, so that tied weights come apart.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
import types
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils import backend_registration, cpp_extension

SOURCE = Path(__file__).with_suffix(".cpp")
_CELLS: list[Any] = []


def missing() -> str:
    """What is missing to compile it; "" for nothing."""
    compiler = os.environ.get("CXX", "g++")
    return "" if shutil.which(compiler) else f"no C++ compiler ({compiler}), which the pretend device is made with"


def build() -> Path:
    """The compiled device; made anew where its source or torch has changed.

    Raises:
        RuntimeError: it does not compile.
    """
    mark = hashlib.sha256(SOURCE.read_bytes() + torch.__version__.encode()).hexdigest()[:16]
    folder = Path(cpp_extension.get_default_build_root()) / "pretend_device"
    out = folder / f"{mark}.so"
    if out.exists():
        return out
    folder.mkdir(parents=True, exist_ok=True)
    own = folder / f"{mark}_{os.getpid()}.so"
    include = [f"-I{path}" for path in cpp_extension.include_paths()]
    library = Path(torch.__file__).parent / "lib"
    abi = f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"
    command = [os.environ.get("CXX", "g++"), "-std=c++20", "-O0", "-shared", "-fPIC", "-w", abi, *include, str(SOURCE)]
    command += ["-o", str(own), f"-L{library}", "-ltorch", "-ltorch_cpu", "-lc10"]
    made = subprocess.run(command, capture_output=True, text=True)
    if made.returncode:
        raise RuntimeError(f"the pretend device does not compile:\n{made.stderr[-3000:]}")
    own.replace(out)
    return out


@cache
def load() -> torch.device:
    """Register the device in this process."""
    torch.ops.load_library(str(build()))
    backend_registration.rename_privateuse1_backend("pretend")
    module: Any = types.ModuleType("pretend")
    module.is_available = module.is_initialized = lambda: True
    module.device_count, module.current_device = lambda: 1, lambda: 0
    module._is_in_bad_fork = lambda: False
    module.device = lambda device: contextlib.nullcontext()
    module.manual_seed_all = lambda seed: None
    module.get_amp_supported_dtype = lambda: [torch.bfloat16, torch.float16]
    torch._register_device_module("pretend", module)
    backend_registration.generate_methods_for_privateuse1_backend()
    cells = torch.library.Library("aten", "IMPL")
    cells.impl("_thnn_fused_gru_cell", _gru_cell, "PrivateUse1")
    cells.impl("_thnn_fused_gru_cell_backward", _gru_cell_backward, "PrivateUse1")
    _CELLS.append(cells)  # what it registers ends with it
    return torch.device("pretend")


def _gru_cell(
    gates: Tensor, hidden: Tensor, before: Tensor, bias: Tensor | None = None, hidden_bias: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Devices have one kernel for a cell, the CPU has none."""
    i = (gates if bias is None else gates + bias).chunk(3, 1)
    h = (hidden if hidden_bias is None else hidden + hidden_bias).chunk(3, 1)
    reset, keep = (i[0] + h[0]).sigmoid(), (i[1] + h[1]).sigmoid()
    fresh = (i[2] + reset * h[2]).tanh()
    return fresh + keep * (before - fresh), torch.cat([reset, keep, fresh, before, h[2]], 1)


def _gru_cell_backward(grad: Tensor, saved: Tensor, biased: bool) -> tuple[Tensor | None, ...]:
    reset, keep, fresh, before, hidden = saved.chunk(5, 1)
    to_keep, to_fresh = grad * (before - fresh) * keep * (1 - keep), grad * (1 - keep) * (1 - fresh * fresh)
    to_reset = to_fresh * hidden * reset * (1 - reset)
    gates = torch.cat([to_reset, to_keep, to_fresh], 1)
    of_hidden = torch.cat([to_reset, to_keep, to_fresh * reset], 1)
    return gates, of_hidden, grad * keep, gates.sum(0) if biased else None, of_hidden.sum(0) if biased else None
