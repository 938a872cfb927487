"""Policies as ONNX graphs, ours or of others: run by ONNX Runtime, which needs no torch in the robot's process."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from robot_rl import extras
from robot_rl.tables import read_table
from robot_rl.types import Action, Array, IOSpec, Loaded, Obs, PolicyParts
from robot_rl.types.options import Count, Positive

FILE = "policy.onnx"
"""In an exported folder; io.json lies beside it, and config.yaml and meta.json where it was ours."""
FILES = (FILE, "policy.pt", "io.json", "config.yaml", "meta.json")
"""Of a checkpoint or an exported folder, where they are there: what makes its policy what it is."""
KINDS = {"tensor(float)": "float32", "tensor(uint8)": "uint8"}
_LARGEST = 2**31  # bytes: what one file of the format can hold


def graph_of(path: Path) -> Path | None:
    """The graph that a path stands for: the file itself, or `policy.onnx` in a folder; None where it is neither."""
    if path.suffix == ".onnx" and path.is_file():
        return path
    return path / FILE if (path / FILE).is_file() else None


class OnnxPolicy:
    """A feed-forward ONNX graph as a policy: every input is an observation, the output the best action.

    Inputs carry the names of observations ("state", "image.<camera>"); the only input of a policy that sees "state"
    alone may have any name. The output is "action" or the only one: (B, A), normalised to [-1, 1]. It draws no noise.
    The graph is data: custom operators and files beside it (external data) are not loaded.

    Args:
        path: an .onnx file, or a folder with `policy.onnx`.
        io: interface to act in; None: that of `io.json` beside the graph.
        largest: output that stands for 1.
        device: "cpu", or "cuda" where ONNX Runtime has it.
        threads: of ONNX Runtime.

    Raises:
        ValueError: no graph, damaged, or one that does not fit the interface; every difference is listed.
        ImportError: ONNX Runtime is absent.
    """

    def __init__(
        self, path: str, io: IOSpec | None = None, *, largest: Positive = 1.0, device: str = "cpu", threads: Count = 1
    ) -> None:
        file = graph_of(Path(path).expanduser())
        if file is None:
            raise ValueError(f"{path} is no ONNX policy; expected an .onnx file or a folder with {FILE}")
        self.io = read_io(file.parent) if io is None else io
        self._largest = largest
        self._session = _open(file, device, threads)
        self._inputs = _match(self._session, self.io, file)
        outputs = [output.name for output in self._session.get_outputs()]
        if "action" not in outputs and len(outputs) != 1:
            raise ValueError(f"{file} has the outputs {', '.join(outputs)}; expected one called action, or only one")
        self._output = "action" if "action" in outputs else outputs[0]
        sizes = [item.shape[0] if item.shape else None for item in self._session.get_inputs()]
        self._single = 1 in sizes  # written for one row at a time
        self._try(file)

    @property
    def parts(self) -> PolicyParts:
        """None: it only acts."""
        return PolicyParts()

    def reset(self, rows: Array | None = None) -> None:
        """Nothing to forget."""

    def act(self, obs: Obs, *, deterministic: bool = False) -> Action:
        """The best actions (B, A) in [-1, 1] of observations (B, ...); NumPy in, NumPy out, torch in, torch out."""
        given = {key: obs[key] for key in self._inputs}
        first = next(iter(given.values()))
        if not isinstance(first, np.ndarray):
            answer = self._run({key: value.cpu().numpy() for key, value in given.items()})
            return Action(first.new_tensor(answer, dtype=None).to(first.device).float())
        return Action(self._run(given))

    def _run(self, obs: dict[str, np.ndarray]) -> np.ndarray:
        feed = {name: np.asarray(obs[key], kind) for key, (name, kind) in self._inputs.items()}
        count = len(next(iter(feed.values())))
        if not self._single or count == 1:
            value = self._session.run([self._output], feed)[0]
        else:
            rows = [{name: x[i : i + 1] for name, x in feed.items()} for i in range(count)]
            value = np.concatenate([self._session.run([self._output], row)[0] for row in rows])
        return np.clip(np.asarray(value, np.float32) / self._largest, -1.0, 1.0)

    def _try(self, file: Path) -> None:
        """Two rows through the graph, one where it was written for one."""
        rows = 1 if self._single else 2
        zeros = {key: np.zeros((rows, *self.io.obs[key][0]), kind) for key, (_, kind) in self._inputs.items()}
        try:
            answer = self._run(zeros)
        except Exception as error:  # its runtime raises classes of its own
            raise ValueError(f"{file} does not run on zeros of its own sizes: {_first_line(error)}") from error
        if answer.shape != (rows, self.io.action_dim):
            raise ValueError(
                f"{file} answers {rows} observations with shape {answer.shape}, expected {(rows, self.io.action_dim)}: "
                f"the actions {', '.join(self.io.action_names)}"
            )


def read_io(folder: Path) -> IOSpec:
    """The interface beside a graph.

    Raises:
        ValueError: there is none, or it is damaged.
    """
    try:
        return IOSpec.from_dict(json.loads((folder / "io.json").read_text(encoding="utf-8")))
    except FileNotFoundError as error:
        raise ValueError(
            f"{folder} has no io.json: it says what a graph sees and commands; robot-rl export writes it, and for a "
            "graph of somebody else docs/howto/onnx.md says what stands in it"
        ) from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{folder / 'io.json'} cannot be read: {error}") from error


def load_for_robot(path: str, *, device: str, threads: int, make_port: Callable[[Any, tuple[str, ...]], Any]) -> Loaded:
    """A graph for the policy node, without torch.

    Args:
        path: folder or file.
        device: where it computes.
        threads: of ONNX Runtime.
        make_port: (options of a world, names of the joints) -> port of that world.

    Raises:
        ValueError: no graph, or one that does not fit its io.json.
    """
    policy = OnnxPolicy(path, device=device, threads=threads)
    folder = Path(path).expanduser() if Path(path).expanduser().is_dir() else Path(path).expanduser().parent
    facts = json.loads((folder / "meta.json").read_text()) if (folder / "meta.json").is_file() else {}
    world = None
    if (folder / "config.yaml").is_file():
        env = read_table(folder / "config.yaml").get("env")
        world = env.get("world") if isinstance(env, dict) else None
    return Loaded(
        policy,
        policy.io,
        None if world is None else lambda joints: make_port(world, joints),
        str(facts.get("identity") or folder.resolve().name).replace("/", "_"),
        facts.get("action"),
        tuple(str(folder / name) for name in FILES if (folder / name).is_file()),
    )


def _open(file: Path, device: str, threads: int) -> Any:
    runtime = extras.require("onnxruntime")
    size = os.path.getsize(file)
    if size > _LARGEST:
        raise ValueError(f"{file} has {size:,} bytes; an ONNX file holds at most 2 GiB")
    provider = "CUDAExecutionProvider" if device.startswith("cuda") else "CPUExecutionProvider"
    if provider not in runtime.get_available_providers():
        raise ValueError(f"device is {device}, and this ONNX Runtime has no {provider}; use device=cpu")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 4  # what goes wrong is raised, and said once
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # the robot needs its processors
    try:
        # from memory: a graph that keeps its weights in other files names paths of its own
        return runtime.InferenceSession(file.read_bytes(), options, providers=[provider])
    except Exception as error:  # its runtime raises classes of its own
        raise ValueError(f"{file} cannot be read as an ONNX graph: {_first_line(error)}") from error


def _match(session: Any, io: IOSpec, file: Path) -> dict[str, tuple[str, str]]:
    """Key of an observation -> (name of the input, its type)."""
    inputs = {item.name: item for item in session.get_inputs()}
    if len(inputs) == 1 and set(io.obs) == {"state"}:
        names = {"state": next(iter(inputs))}
    else:
        names = {key: key for key in io.obs if key in inputs}
    wrong = [f"its input {name} is no observation here" for name in inputs if name not in names.values()]
    found: dict[str, tuple[str, str]] = {}
    for key, name in names.items():
        shape, _ = io.obs[key]
        kind, sizes = KINDS.get(inputs[name].type), tuple(inputs[name].shape[1:])
        if kind is None:
            wrong.append(f"{name} is {inputs[name].type}, expected one of {', '.join(KINDS)}")
        elif len(sizes) != len(shape) or any(isinstance(a, int) and a != b for a, b in zip(sizes, shape)):
            wrong.append(f"{name} has the shape {list(sizes)} per row, the observation {key} {list(shape)}")
        found[key] = (name, kind or "float32")
    if wrong or not found:
        raise ValueError(
            f"{file} does not fit: {'; '.join(wrong) or 'it has no inputs'}. Observations here: "
            f"{', '.join(f'{key} {list(shape)}' for key, (shape, _) in io.obs.items())}. A graph with a memory "
            "(recurrent, with states as inputs) is not supported"
        )
    return found


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0][:300] if str(error).strip() else type(error).__name__
