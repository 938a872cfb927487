"""Policies as ONNX graphs, ours or of others: run by ONNX Runtime, which needs no torch in the robot's process."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Generic, Protocol, TypeAlias, TypeVar

import numpy as np

from robot_rl import extras
from robot_rl.tables import read_table
from robot_rl.types import Action, Array, IOSpec, Loaded, Obs, Policy, PolicyParts, Port
from robot_rl.types.options import Count, Positive

FILE = "policy.onnx"
"""In an exported folder; io.json lies beside it, and config.yaml and meta.json where it was ours."""
FILES = (FILE, "policy.pt", "io.json", "config.yaml", "meta.json")
"""Of a checkpoint or an exported folder, where they are there: what makes its policy what it is."""
KINDS = {"tensor(float)": "float32", "tensor(uint8)": "uint8"}
IN, OUT = "_in", "_out"
"""Ends of the names of an input and an output that are one memory: rsl_rl's convention (h_in, h_out)."""
_LARGEST = 2**31  # bytes: what one file of the format can hold


K = TypeVar("K")
MakePort: TypeAlias = Callable[[Mapping[str, object], tuple[str, ...]], Port]
"""(options of a world, names of the joints) -> port of that world."""


class OnnxEnd(Protocol):
    """An input or an output of a graph, as ONNX Runtime tells it.

    Attributes:
        name: of it.
        type: such as "tensor(float)".
        shape: a number for each axis, or a name or None where any size will do.
    """

    name: str
    type: str
    shape: list[int | str | None]


class OnnxGraph(Protocol):
    """What is used of `onnxruntime.InferenceSession`."""

    def get_inputs(self) -> list[OnnxEnd]:
        """What it takes."""
        ...

    def get_outputs(self) -> list[OnnxEnd]:
        """What it gives."""
        ...

    def run(self, output_names: list[str], input_feed: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """The outputs of these names."""
        ...


def graph_of(path: Path) -> Path | None:
    """The graph that a path stands for: the file itself, or `policy.onnx` in a folder; None where it is neither."""
    if path.suffix == ".onnx" and path.is_file():
        return path
    return path / FILE if (path / FILE).is_file() else None


class RowMemory(Generic[K]):
    """What each row of a batch remembers; another number of rows begins anew for all.

    Args:
        start: name -> value at the begin of an episode.
    """

    def __init__(self, start: Mapping[K, np.ndarray]) -> None:
        self._start = dict(start)
        self._rows: list[dict[K, np.ndarray]] = []

    def __bool__(self) -> bool:
        return bool(self._start)

    def forget(self, rows: Array | None) -> None:
        """Begin anew in these rows ((N,) bool mask); None: in all."""
        if rows is None:
            self._rows = []
        elif len(rows) == len(self._rows):
            self._rows = [dict(self._start) if gone else row for gone, row in zip(np.asarray(rows), self._rows)]

    def of(self, count: int) -> list[dict[K, np.ndarray]]:
        """The memories of `count` rows, to be changed in place."""
        if len(self._rows) != count:
            self._rows = [dict(self._start) for _ in range(count)]
        return self._rows


class ForeignPolicy(ABC, Generic[K]):
    """What policies out of files of other programs share: observations in, the best action out, a memory for each row.

    Attributes:
        io: interface that it acts in.
    """

    io: IOSpec
    _keys: tuple[str, ...]
    """Of the observations that it takes."""
    _memory: RowMemory[K]
    _largest: float
    """Output that stands for 1."""

    @property
    def parts(self) -> PolicyParts:
        """Whether it remembers."""
        return PolicyParts(remembers=bool(self._memory))

    def reset(self, rows: Array | None = None) -> None:
        """Forget what these rows saw; None: all."""
        self._memory.forget(rows)

    def act(self, obs: Obs, *, deterministic: bool = False) -> Action:
        """The best actions (B, A) in [-1, 1] of observations (B, ...); NumPy in, NumPy out, torch in, torch out."""
        given = {key: x if isinstance(x := obs[key], np.ndarray) else x.cpu().numpy() for key in self._keys}
        value, first = self._act(given), obs[self._keys[0]]
        return Action(value if isinstance(first, np.ndarray) else torch_like(value, first))

    def _act(self, obs: Mapping[str, np.ndarray]) -> np.ndarray:
        return np.clip(self._answer(obs) / self._largest, -1.0, 1.0)

    @abstractmethod
    def _answer(self, obs: Mapping[str, np.ndarray]) -> np.ndarray:
        """(B, A) float32, as the file has it."""


class OnnxPolicy(ForeignPolicy[str]):
    """An ONNX graph as a policy: every input is an observation or a memory, the output the best action.

    Inputs carry the names of observations ("state", "image.<camera>"); the only one of a policy that sees "state" alone
    may have any name. The output is "action" or the only one: (B, A), normalised to [-1, 1]. It draws no noise. An
    input `<name>_in` and an output `<name>_out` of the same shape are a memory, which begins as zeros: what the output
    gives in one step the input gets in the next. Rows of a policy with a memory are computed one by one.
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
        self._session = open_graph(read_file(file), file, device, threads)
        self._memory, self._links = _memory(self._session)
        self._inputs = _match(self._session, self.io, file, self._links)
        self._keys = tuple(self._inputs)
        outputs = [item.name for item in self._session.get_outputs() if item.name not in self._links.values()]
        self._output = pick_action(outputs, file)
        sizes = [item.shape[0] if item.shape else None for item in self._session.get_inputs()]
        self._single = 1 in sizes or bool(self._links)  # written for one row at a time, or rows that remember
        self._try(file)

    def _answer(self, obs: Mapping[str, np.ndarray]) -> np.ndarray:
        feed = {name: np.asarray(obs[key], kind) for key, (name, kind) in self._inputs.items()}
        count = len(next(iter(feed.values())))
        if not self._single:
            value = self._session.run([self._output], feed)[0]
        else:
            rows = [{name: x[i : i + 1] for name, x in feed.items()} for i in range(count)]
            value = np.concatenate([self._one(row, memory) for row, memory in zip(rows, self._memory.of(count))])
        return np.asarray(value, np.float32)

    def _one(self, row: dict[str, np.ndarray], memory: dict[str, np.ndarray]) -> np.ndarray:
        value, *after = self._session.run([self._output, *self._links.values()], {**row, **memory})
        memory.update(zip(self._links, after))
        return value

    def _try(self, file: Path) -> None:
        """Two rows through the graph, one where it was written for one."""
        rows = 1 if self._single else 2
        zeros = {key: np.zeros((rows, *self.io.obs[key][0]), kind) for key, (_, kind) in self._inputs.items()}
        try:
            answer = self._act(zeros)
            self._memory.forget(None)
        except Exception as error:  # its runtime raises classes of its own
            raise ValueError(f"{file} does not run on zeros of its own sizes: {first_line(error)}") from error
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


def load_for_robot(path: str, *, device: str, threads: int, make_port: MakePort) -> Loaded:
    """A graph for the policy node, without torch.

    Args:
        path: folder or file.
        device: where it computes.
        threads: of ONNX Runtime.
        make_port: makes the port of the world that the policy was trained in.

    Raises:
        ValueError: no graph, or one that does not fit its io.json.
    """
    return read_export(OnnxPolicy(path, device=device, threads=threads), Path(path).expanduser(), FILES, make_port)


def read_export(policy: Policy, path: Path, files: tuple[str, ...], make_port: MakePort) -> Loaded:
    """A policy that was read from an exported folder, or from a file of others with its io.json, for the policy node.

    Args:
        policy: in [-1, 1] of its own interface.
        path: folder or file.
        files: names of those in the folder that make the policy what it is.
        make_port: makes the port of the world that the policy was trained in.
    """
    folder = path if path.is_dir() else path.parent
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
        tuple(str(folder / name) for name in files if (folder / name).is_file()),
    )


def read_file(file: Path) -> bytes:
    """A graph or another part of a policy; from memory on it cannot change any more.

    Raises:
        ValueError: it cannot be read, or is larger than an ONNX file can be.
    """
    try:
        if (size := file.stat().st_size) > _LARGEST:
            raise ValueError(f"{file} has {size:,} bytes; an ONNX file holds at most 2 GiB")
        return file.read_bytes()
    except OSError as error:
        raise ValueError(f"{file} cannot be read: {error.strerror or error}") from error


def open_graph(data: bytes, file: Path, device: str, threads: int) -> OnnxGraph:
    """A session of ONNX Runtime; of the graph nothing but the graph is loaded.

    Args:
        data: the graph.
        file: where it is from, for messages.
        device: "cpu", or "cuda" where ONNX Runtime has it.
        threads: that it uses.

    Raises:
        ValueError: no graph, damaged, in need of operators or files of its own, or no such device.
        ImportError: ONNX Runtime is absent.
    """
    runtime = extras.require("onnxruntime")
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
        return runtime.InferenceSession(data, options, providers=[provider])
    except Exception as error:  # its runtime raises classes of its own
        raise ValueError(f"{file} cannot be read as an ONNX graph: {first_line(error)}") from error


def _memory(session: OnnxGraph) -> tuple[RowMemory[str], dict[str, str]]:
    """What a graph remembers: its begin, and input -> output."""
    outputs = {item.name: item for item in session.get_outputs()}
    start, links = {}, {}
    for item in session.get_inputs():
        after = outputs.get(item.name.removesuffix(IN) + OUT)
        if item.name.endswith(IN) and after is not None and _alike(item, after) and item.type in KINDS:
            sizes = [size if isinstance(size, int) else 1 for size in item.shape]  # a named size is that of the batch
            start[item.name], links[item.name] = np.zeros(sizes, KINDS[item.type]), after.name
    return RowMemory(start), links


def _alike(a: OnnxEnd, b: OnnxEnd) -> bool:
    """Whether two ends have one type and, where they have numbers, one shape."""
    sizes = len(a.shape) == len(b.shape) and all(
        x == y for x, y in zip(a.shape, b.shape) if {type(x), type(y)} == {int}
    )
    return sizes and a.type == b.type


def _match(session: OnnxGraph, io: IOSpec, file: Path, memory: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Key of an observation -> (name of the input, its type)."""
    inputs = {item.name: item for item in session.get_inputs() if item.name not in memory}
    odd = {name: item.type for name, item in inputs.items() if item.type not in KINDS}
    names = match_inputs(
        io,
        file,
        {name: item.shape[1:] for name, item in inputs.items()},
        faults=[f"{name} is {kind}, expected one of {', '.join(KINDS)}" for name, kind in odd.items()],
        hint=f". A memory is an input <name>{IN} with an output <name>{OUT} of the same type and shape",
    )
    return {key: (name, KINDS[inputs[name].type]) for key, name in names.items()}


def match_inputs(
    io: IOSpec,
    file: Path,
    rows: Mapping[str, Sequence[int | str | None]],
    *,
    spell: Callable[[str], str] = str,
    faults: Sequence[str] = (),
    hint: str = "",
) -> dict[str, str]:
    """Key of an observation -> name of the input that takes it.

    Args:
        io: interface with the observations.
        file: with the inputs.
        rows: input -> its shape without the batch; sizes that are no numbers fit any.
        spell: an observation's key as inputs are called.
        faults: what is wrong with the inputs by themselves.
        hint: end of what is said.

    Raises:
        ValueError: they do not fit; every difference is listed.
    """
    if len(rows) == 1 and set(io.obs) == {"state"}:
        names = {"state": next(iter(rows))}
    else:
        names = {key: spell(key) for key in io.obs if spell(key) in rows}
    wrong = [f"its input {name} is no observation here" for name in rows if name not in names.values()]
    for key, name in names.items():
        shape, sizes = io.obs[key][0], rows[name]
        if len(sizes) != len(shape) or any(isinstance(a, int) and a != b for a, b in zip(sizes, shape)):
            wrong.append(f"{name} has the shape {list(sizes)} per row, the observation {key} {list(shape)}")
    if wrong or faults or not names:
        raise ValueError(
            f"{file} does not fit: {'; '.join([*wrong, *faults]) or 'it has no inputs'}. Observations here: "
            f"{', '.join(f'{key} {list(shape)}' for key, (shape, _) in io.obs.items())}{hint}"
        )
    return names


def pick_action(outputs: Sequence[str], file: Path) -> str:
    """The output that is the action: the one called so, or the only one.

    Raises:
        ValueError: neither is there.
    """
    if "action" not in outputs and len(outputs) != 1:
        names = ", ".join(outputs) or "(none)"
        raise ValueError(f"{file} has the outputs {names}; expected one called action, or only one")
    return "action" if "action" in outputs else outputs[0]


def torch_like(value: np.ndarray, like: Array) -> Array:
    """A float32 tensor on the device of another one, which may hold pictures; imports torch, which is there then."""
    import torch

    return torch.as_tensor(value, dtype=torch.float32, device=like.device)


def first_line(error: Exception) -> str:
    """What an error of somebody else's library says, as far as one line of it goes."""
    return str(error).strip().splitlines()[0][:300] if str(error).strip() else type(error).__name__
