"""Writes the best action of a policy as files of other programs: an ONNX graph, a LEAPP bundle."""

from __future__ import annotations

import contextlib
import io as text_io
import logging
import re
import shutil
import warnings
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from robot_rl import extras
from robot_rl.onnx_policy import IN, OUT
from robot_rl.types import IOSpec, Policy
from robot_rl.words import Refused

NODE = "actor"
"""Of the only part of a bundle of ours."""


class Graph(nn.Module):
    """What is written: observations in the order of `keys`, then what is remembered -> best action, and that anew."""

    def __init__(self, policy: Policy, keys: list[str]) -> None:
        super().__init__()
        self._policy, self._keys, self._recurrence = policy, keys, policy.parts.recurrence
        self.start = {} if self._recurrence is None else dict(self._recurrence.start)

    def forward(self, *values: Tensor) -> Tensor | tuple[Tensor, ...]:
        """The action, with what is remembered behind it where there is something."""
        obs, memory = dict(zip(self._keys, values)), dict(zip(self.start, values[len(self._keys) :]))
        if self._recurrence is not None:
            action, after = self._recurrence.step(obs, memory)
            return (action, *(after[name] for name in self.start))
        graph = self._policy.parts.graph
        action = self._policy.act(obs, deterministic=True).value if graph is None else graph(obs)
        assert isinstance(action, Tensor)
        return action


def write_onnx(policy: Policy, rows: dict[str, np.ndarray], io: IOSpec, file: Path) -> None:
    """An ONNX graph of any number of rows; or of one, whose memory is inputs `<name>_in` and outputs `<name>_out`.

    Args:
        policy: whose best action is written.
        rows: two observations.
        io: of it.
        file: to write.

    Raises:
        Refused: it cannot be traced, or its memory does not begin as zeros, which is what a graph begins with.
    """
    keys, graph = list(rows), Graph(policy, list(rows)).eval()
    if odd := [name for name, value in graph.start.items() if value.any()]:
        raise Refused(f"what {type(policy).__name__} remembers as {odd[0]} does not begin as zeros; say format=leapp")
    count, batch = (1, None) if graph.start else (2, {0: torch.export.Dim("batch")})
    values = [torch.as_tensor(rows[key][:count]) for key in keys] + list(graph.start.values())
    with _trace(policy):
        torch.onnx.export(
            graph,
            tuple(values),
            str(file),
            input_names=[*keys, *(name + IN for name in graph.start)],
            output_names=["action", *(name + OUT for name in graph.start)],
            dynamic_shapes=(tuple(batch for _ in values),),
            external_data=False,
            dynamo=True,
            verbose=False,
        )


def write_leapp(policy: Policy, rows: dict[str, np.ndarray], io: IOSpec, file: Path) -> None:
    """A LEAPP bundle of one ONNX part, written by the package of that name; what is remembered is fed back in it.

    Args:
        policy: whose best action is written.
        rows: two observations; a bundle is for one.
        io: of it: names of components, rate.
        file: the description to write; its parts come to lie beside it.

    Raises:
        Refused: it cannot be traced.
    """
    leapp = leapp_package()
    graph, folder = Graph(policy, list(rows)).eval(), file.parent / "bundle"
    obs = {key: torch.as_tensor(x[:1]) for key, x in rows.items()}
    folder.mkdir()
    with _trace(policy):
        # the package follows plain operators alone, which is what an exported program has left
        program: Any = torch.export.export(graph, (*obs.values(), *graph.start.values())).run_decompositions().module()
        leapp.start(file.stem, save_path=str(folder))
        try:
            seen = leapp.annotate.input_tensors(NODE, [_name(leapp, key, x, io) for key, x in obs.items()])
            state = leapp.annotate.state_tensors(NODE, graph.start) if graph.start else ()
            answer = program(*_many(seen), *_many(state))
            action, *after = _many(answer)
            if after:
                leapp.annotate.update_state(NODE, dict(zip(graph.start, after)))
            told = leapp.TensorSemantics("action", action, element_names=list(io.action_names))
            leapp.annotate.output_tensors(NODE, told, export_with="onnx")
        finally:
            leapp.stop()
        leapp.compile_graph(visualize=False, graph_configs=leapp.GraphConfigs(frequency=io.control_hz))
    for path in (folder / file.stem).iterdir():
        if path.name != "log.txt":
            shutil.move(path, file.parent / path.name)
    shutil.rmtree(folder)


def leapp_package() -> Any:
    """The package leapp, which is in no lock of ours.

    Raises:
        ImportError: it is absent; the message holds the command that installs it.
    """
    return extras.require_foreign("leapp", f"Install it with: {extras.remedy('leapp')}")


def _name(leapp: Any, key: str, value: Tensor, io: IOSpec) -> Any:
    names = list(io.obs_names) if key == "state" and io.obs_names else None
    return leapp.TensorSemantics(key.replace(".", "_"), value, element_names=names)


def _many(values: Any) -> tuple[Any, ...]:
    return tuple(values) if isinstance(values, (tuple, list)) else (values,)


@contextlib.contextmanager
def _trace(policy: Policy) -> Iterator[None]:
    """Tracing in silence; what goes wrong is one sentence."""
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    silent = text_io.StringIO()
    try:
        with warnings.catch_warnings(), redirect_stdout(silent), redirect_stderr(silent), torch.no_grad():
            warnings.simplefilter("ignore")
            yield
    except Exception as error:  # what cannot be traced raises anything
        raise Refused(
            f"{type(policy).__name__} cannot be written as a graph ({_why(error)}); policies that compute outside of "
            "torch, or decide step by step, have none"
        ) from error
    finally:
        log = logging.getLogger("leapp")  # its handlers hold a file and this silence
        for handler in list(log.handlers):
            log.removeHandler(handler)
            handler.close()


def _why(error: Exception) -> str:
    """The one line that tells something: the exporter puts its own advice and colours around the error."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", str(error)).strip()
    found = re.search(r"^<class '([\w.]+)'>: (.+)$", text, re.MULTILINE)
    return (f"{found[1]}: {found[2]}" if found else text.partition("\n")[0])[:200] or type(error).__name__
