"""LEAPP bundles as data: what a description says of its parts, wires and tensors. Nothing of a bundle runs here.

A bundle is a folder with a YAML description, a file for each part of the pipeline (ONNX graphs, TorchScript) and,
where the pipeline remembers, the values that its memory begins with. NVIDIA's Isaac Lab writes its policies so, with
what the robot has to measure and to follow named by kind and joint.

Source: https://github.com/nvidia-isaac/leapp, docs/source/generated_configs.rst (package leapp 0.7.2, layout 1.3).
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NoReturn

import numpy as np
from pydantic import BaseModel, Field, ValidationError

from robot_rl import extras
from robot_rl.onnx_policy import first_line, read_file
from robot_rl.tables import TableError, read_table
from robot_rl.types.option_words import file_error

End = tuple[str, str]
"""Part and name of one of its inputs or outputs."""
DESCRIPTION = "policy.yaml"
"""Of an export of ours; the description of a bundle of others has the name of its pipeline."""
ONNX, TORCHSCRIPT = "onnx", "jit"
DTYPES = ("float32", "float64", "int64", "int32", "uint8", "bool")
"""Of the tensors that are passed on."""
_MOST = 1 << 26  # numbers of a tensor that is passed on
_TIME = "__temporal_axis__"
_HEADS = re.compile(r"^(models|pipeline):\s*$", re.MULTILINE)


class Tensor(BaseModel, frozen=True):
    """An input or an output of a part."""

    name: str
    """Within its part."""
    dtype: str
    """As NumPy calls it."""
    shape: tuple[Annotated[int, Field(ge=1)], ...]
    """With the batch axis of 1, where it has one."""
    kind: str = ""
    """What it is on a robot, such as state/joint/position; "" where nobody says."""
    element_names: Any = None
    """Names along its axes, in one of LEAPP's spellings."""
    isaaclab_connection: str = ""
    """Where Isaac Lab reads or writes it, such as state:robot:root_ang_vel_b."""

    @property
    def row(self) -> tuple[int, ...]:
        """Shape without the batch axis."""
        return self.shape[1:] if len(self.shape) > 1 and self.shape[0] == 1 else self.shape

    @property
    def names(self) -> tuple[str, ...]:
        """Of the components of its last axis, or of the only axis that has names; empty where they have none."""
        given = self.element_names if isinstance(self.element_names, list) else []
        lists = [axis for axis in given if isinstance(axis, list)] or [given]
        last = [str(name) for name in lists[-1] if name is not None]
        return tuple(last) if self.shape and len(last) == self.shape[-1] else ()

    @property
    def in_time(self) -> bool:
        """Whether one of its axes is time: a chunk of actions, or a window of what was seen."""
        return isinstance(self.element_names, list) and _TIME in self.element_names


class _Parameters(BaseModel):
    backend: str
    model_path: str
    sha256sum: str


class _Model(BaseModel):
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    parameters: _Parameters


class _Configs(BaseModel):
    frequency: Annotated[float, Field(gt=0, lt=1e5, strict=True)] | None = None


class _Pipeline(BaseModel):
    inputs: dict[str, tuple[str, ...]]
    outputs: dict[str, tuple[str, ...]]
    data_flow: dict[str, tuple[str, ...]] = {}
    feedback_flow: dict[str, tuple[str, ...]] = {}
    initial_values: str | None = None
    configs: _Configs = Field(default_factory=lambda: _Configs())


class _Description(BaseModel):
    models: dict[str, _Model] = Field(min_length=1)
    pipeline: _Pipeline


@dataclass(frozen=True)
class BundlePart:
    """One step of the pipeline.

    Attributes:
        name: of it.
        backend: "onnx", which is data, or "jit", which is TorchScript: a program.
        file: of the part.
        sha256: that the description says of the file.
        inputs: in the part's order.
        outputs: likewise.
    """

    name: str
    backend: str
    file: Path
    sha256: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]

    def read(self) -> bytes:
        """The file, unchanged since it was exported.

        Raises:
            ValueError: it is absent, too large, or another one than the description was written for.
        """
        data = read_file(self.file)
        if hashlib.sha256(data).hexdigest() != self.sha256:
            raise ValueError(
                f"{self.file} is not the file that its description was written for (another SHA-256); export the "
                "bundle again"
            )
        return data


@dataclass(frozen=True)
class Bundle:
    """A pipeline that was checked: every port exists, has one source, and fits what it is wired to.

    Attributes:
        file: the description.
        parts: in the order in which they run.
        wires: output -> inputs that get it, at once or, where they are of the memory, in the next step.
        memory: inputs that get what an output gave in the step before -> what they begin with.
        inputs: name -> input that the pipeline gets from outside.
        outputs: name -> output that it gives.
        hz: steps per second; None where the description does not say.
        files: all of it.
    """

    file: Path
    parts: tuple[BundlePart, ...]
    wires: Mapping[End, tuple[End, ...]]
    memory: Mapping[End, np.ndarray]
    inputs: Mapping[str, tuple[End, Tensor]]
    outputs: Mapping[str, tuple[End, Tensor]]
    hz: float | None
    files: tuple[Path, ...]

    @property
    def programs(self) -> tuple[str, ...]:
        """Names of the files that are programs."""
        return tuple(part.file.name for part in self.parts if part.backend == TORCHSCRIPT)


def bundle_of(path: Path) -> Path | None:
    """The description that a path stands for: the file itself, or the only one in a folder; None where there is none.

    Raises:
        ValueError: a folder holds several.
    """
    files = sorted(path.glob("*.yaml")) if path.is_dir() else [path] if path.suffix in (".yaml", ".yml") else []
    found = [file for file in files if _describes(file)]
    if len(found) > 1:
        names = ", ".join(file.name for file in found)
        raise ValueError(f"{path} holds the descriptions of several LEAPP bundles, {names}; name one of these files")
    return found[0] if found else None


def read_bundle(file: Path) -> Bundle:
    """A bundle from its description; of the parts nothing is read yet.

    Raises:
        ValueError: no description, or one that does not hang together; says what is wrong.
    """
    try:
        table = _Description.model_validate(read_table(file))
    except TableError as error:
        raise ValueError(str(error)) from error
    except OSError as error:
        raise ValueError(f"{file} cannot be read: {error.strerror or error}") from error
    except ValidationError as error:
        said = file_error(error, _Description, "a description")
        raise ValueError(f"{file} is no LEAPP description that can be read: {said}") from error
    return _Reader(file, table).bundle()


class _Reader:
    """Checks a description against itself."""

    def __init__(self, file: Path, table: _Description) -> None:
        self._file, self._table = file, table
        self._rank = {name: i for i, name in enumerate(table.models)}
        self._into = {(name, x.name): x for name, model in table.models.items() for x in model.inputs}
        self._from = {(name, x.name): x for name, model in table.models.items() for x in model.outputs}

    def bundle(self) -> Bundle:
        pipeline = self._table.pipeline
        flow, feedback = self._wires(pipeline.data_flow), self._wires(pipeline.feedback_flow)
        late = [f"{a[0]} to {b[0]}" for a, many in flow.items() for b in many if self._rank[a[0]] >= self._rank[b[0]]]
        if late:
            self._refuse(f"data flows from {late[0]}, which runs before it; only feedback may go back")
        outside = [(part, name) for part, names in pipeline.inputs.items() for name in names]
        given = [*outside, *(port for flow in (flow, feedback) for many in flow.values() for port in many)]
        for port in self._into:
            if given.count(port) != 1:
                self._refuse(f"the input {'/'.join(port)} has {given.count(port)} sources, expected one")
        if unknown := [port for port in outside if port not in self._into]:
            self._refuse(f"pipeline.inputs names {'/'.join(unknown[0])}, which no part has")
        answers = [(part, name) for part, names in pipeline.outputs.items() for name in names]
        if unknown := [port for port in answers if port not in self._from]:
            self._refuse(f"pipeline.outputs names {'/'.join(unknown[0])}, which no part gives")
        wires = {port: (*flow.get(port, ()), *feedback.get(port, ())) for port in (*flow, *feedback)}
        parts = tuple(self._part(name, model) for name, model in self._table.models.items())
        start = (self._beside(pipeline.initial_values),) if pipeline.initial_values else ()
        return Bundle(
            self._file,
            parts,
            wires,
            self._memory([port for many in feedback.values() for port in many]),
            _by_name(outside, self._into),
            _by_name(answers, self._from),
            pipeline.configs.frequency,
            (self._file, *(part.file for part in parts), *start),
        )

    def _wires(self, flow: Mapping[str, tuple[str, ...]]) -> dict[End, tuple[End, ...]]:
        found: dict[End, tuple[End, ...]] = {}
        for source, targets in flow.items():
            ends = [(a, b) for a, _, b in (text.partition("/") for text in (source, *targets))]
            if ends[0] not in self._from or any(end not in self._into for end in ends[1:]):
                self._refuse(f"the wire from {source} to {', '.join(targets)} names what no part has")
            tensor = self._from[ends[0]]
            for end in ends[1:]:
                other = self._into[end]
                if (tensor.shape, tensor.dtype) != (other.shape, other.dtype):
                    self._refuse(
                        f"{source} is {_kind(tensor)} and is wired to {'/'.join(end)}, which is {_kind(other)}"
                    )
            found[ends[0]] = tuple(ends[1:])
        return found

    def _part(self, name: str, model: _Model) -> BundlePart:
        told = model.parameters
        if told.backend not in (ONNX, TORCHSCRIPT):
            self._refuse(
                f"its part {name} is {told.backend!r}; {ONNX} is run, and {TORCHSCRIPT} where it is trusted: export it "
                f'again with export_with="{ONNX}"'
            )
        for tensor in (*model.inputs, *model.outputs):
            if math.prod(tensor.shape) > _MOST:
                self._refuse(f"{name}/{tensor.name} has the shape {list(tensor.shape)}: more numbers than {_MOST:,}")
            if tensor.dtype not in DTYPES:
                self._refuse(f"{name}/{tensor.name} is {tensor.dtype}, expected one of {', '.join(DTYPES)}")
        return BundlePart(
            name, told.backend, self._beside(told.model_path), told.sha256sum, model.inputs, model.outputs
        )

    def _beside(self, name: str) -> Path:
        if Path(name).name != name:  # a description is a stranger's: it opens nothing elsewhere
            self._refuse(f"it names the file {name}; expected the name of a file beside it")
        return self._file.parent / name

    def _memory(self, ports: list[End]) -> dict[End, np.ndarray]:
        """What inputs begin with that are fed back: as the file of initial values says, or zeros."""
        found = {port: np.zeros(self._into[port].shape, self._into[port].dtype) for port in ports}
        name = self._table.pipeline.initial_values
        if not name:
            return found
        file = self._beside(name)
        data = read_file(file)
        reader = extras.require("safetensors.numpy")
        try:
            given: dict[str, np.ndarray] = reader.load(data)
        except Exception as error:  # its library raises classes of its own
            raise ValueError(f"{file} cannot be read as safetensors: {first_line(error)}") from error
        for key, value in given.items():
            part, _, end = key.partition("/")
            if (old := found.get((part, end))) is None:
                self._refuse(f"{name} holds {key}, which is no memory of the pipeline")
            elif (value.shape, value.dtype) != (old.shape, old.dtype):
                self._refuse(
                    f"{name} holds {key} as {value.dtype}{list(value.shape)}, not {old.dtype}{list(old.shape)}"
                )
            else:
                found[part, end] = value
        return found

    def _refuse(self, why: str) -> NoReturn:
        raise ValueError(f"{self._file} does not hang together: {why}")


def _describes(file: Path) -> bool:
    try:
        with file.open(encoding="utf-8", errors="replace") as stream:
            return len(set(_HEADS.findall(stream.read(1 << 24)))) == 2
    except OSError:
        return False


def _by_name(ports: list[End], tensors: Mapping[End, Tensor]) -> dict[str, tuple[End, Tensor]]:
    """By the names of the tensors; with their parts' where two have one name."""
    names = [name for _, name in ports]
    return {
        (name if names.count(name) == 1 else f"{part}_{name}"): ((part, name), tensors[part, name])
        for part, name in ports
    }


def _kind(tensor: Tensor) -> str:
    return f"{tensor.dtype}{list(tensor.shape)}"
