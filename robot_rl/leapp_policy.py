"""LEAPP bundles as policies: ONNX parts run in ONNX Runtime, without torch; TorchScript parts only where trusted."""

from __future__ import annotations

import io as bytes_io
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from robot_rl.leapp_bundle import TORCHSCRIPT, Bundle, BundlePart, End, bundle_of, read_bundle
from robot_rl.onnx_policy import ForeignPolicy, RowMemory, first_line, match_inputs, open_graph, pick_action, read_io
from robot_rl.types import Array, IOSpec, PolicyParts
from robot_rl.types.options import Count, Positive

Step = Callable[[list[np.ndarray]], list[np.ndarray]]
"""A part: its inputs in order -> its outputs in order."""


class PartRunner:
    """Runs the parts of a bundle in order, one row at a time.

    Args:
        bundle: read and checked.
        device: "cpu", or "cuda".
        threads: of ONNX Runtime.
        trust: run TorchScript parts: they are programs.

    Raises:
        ValueError: a part is absent, altered, damaged, not what the description says of it, or a program that is not
            trusted.
        ImportError: what a part needs is not installed.
    """

    def __init__(self, bundle: Bundle, *, device: str, threads: int, trust: bool) -> None:
        if bundle.programs and not trust:
            raise ValueError(
                f"{bundle.file} has TorchScript parts ({', '.join(bundle.programs)}), programs that run with your "
                "rights; if you trust whoever wrote them, add trust=true, or ask for an export with ONNX parts"
            )
        self.bundle = bundle
        self._begin: list[Callable[[], None]] = []
        self._steps = [
            (part, self._program(part, device) if part.backend == TORCHSCRIPT else _graph(part, device, threads))
            for part in bundle.parts
        ]

    @property
    def one_row(self) -> bool:
        """Whether parts remember in buffers of their own, so that no two rows can be told apart."""
        return bool(self._begin)

    def reset(self) -> None:
        """Give such buffers the values that were in the files."""
        for begin in self._begin:
            begin()

    def step(self, given: Mapping[End, np.ndarray], memory: dict[End, np.ndarray]) -> dict[End, np.ndarray]:
        """Every output of every part, and in `memory`, in place, what the next step gets.

        Args:
            given: input from outside -> value in its shape.
            memory: input that is fed back -> value of this step.
        """
        values, later, found = {**memory, **given}, dict(memory), {}
        for part, run in self._steps:
            for tensor, value in zip(part.outputs, run([values[part.name, x.name] for x in part.inputs])):
                found[part.name, tensor.name] = value
                for target in self.bundle.wires.get((part.name, tensor.name), ()):
                    (later if target in memory else values)[target] = value
        memory.update(later)
        return found

    def _program(self, part: BundlePart, device: str) -> Step:
        import torch

        try:
            module = torch.jit.load(bytes_io.BytesIO(part.read()), map_location=device).eval()
        except RuntimeError as error:
            raise ValueError(f"{part.file} is no TorchScript that can be read: {first_line(error)}") from error
        start = {name: buffer.detach().clone() for name, buffer in module.named_buffers()}

        def begin() -> None:
            with torch.inference_mode():
                for name, buffer in module.named_buffers():  # of now: a program may have put another one in its place
                    buffer.copy_(start[name])

        def run(values: list[np.ndarray]) -> list[np.ndarray]:
            with torch.inference_mode():  # on copies, both ways: a program may change what it was given
                answer = module(*(torch.tensor(x, device=device) for x in values))
            many = answer if isinstance(answer, (tuple, list)) else (answer,)
            return [np.array(x.cpu()) for x in many]

        if start:
            self._begin.append(begin)
        return run


class LeappPolicy(ForeignPolicy[End]):
    """A LEAPP bundle as a policy; what it remembers is kept for every row and begins as the bundle says.

    Its inputs from outside carry the names of observations (a "." of those as "_"); the only one of a policy that sees
    "state" alone may have any name. It draws no noise.

    Args:
        path: the description, or a folder with one.
        io: interface to act in; None: that of `io.json` beside the description.
        outputs: that are the action, one behind the other; none: the one called action, or the only one.
        largest: output that stands for 1.
        device: "cpu", or "cuda".
        threads: of ONNX Runtime.
        trust: run TorchScript parts: they are programs.

    Attributes:
        first: name -> every output for zeros at the begin of an episode, of which gains are constant.

    Raises:
        ValueError: no bundle, damaged, altered, one that does not fit the interface, or a program that is not trusted.
        ImportError: what a part needs is not installed.
    """

    def __init__(
        self,
        path: str,
        io: IOSpec | None = None,
        *,
        outputs: tuple[str, ...] = (),
        largest: Positive = 1.0,
        device: str = "cpu",
        threads: Count = 1,
        trust: bool = False,
    ) -> None:
        file = bundle_of(Path(path).expanduser())
        if file is None:
            raise ValueError(f"{path} is no LEAPP bundle; expected its YAML description or the folder of one")
        self.io = read_io(file.parent) if io is None else io
        self.bundle, self._largest = read_bundle(file), largest
        rows = {name: tensor.row for name, (_, tensor) in self.bundle.inputs.items()}
        names = match_inputs(self.io, self.bundle.file, rows, spell=lambda key: key.replace(".", "_"))
        self._inputs, self._keys = {key: self.bundle.inputs[name] for key, name in names.items()}, tuple(names)
        answers = outputs or (pick_action(list(self.bundle.outputs), self.bundle.file),)
        self._outputs = [self.bundle.outputs[name][0] for name in answers]
        self._pipeline = PartRunner(self.bundle, device=device, threads=threads, trust=trust)
        self._memory = RowMemory(self.bundle.memory)
        self.first = self._try()

    @property
    def parts(self) -> PolicyParts:
        """Whether it remembers."""
        return PolicyParts(remembers=bool(self._memory) or self._pipeline.one_row)

    def reset(self, rows: Array | None = None) -> None:
        """Forget what these rows saw; None: all."""
        super().reset(rows)
        if rows is None or np.asarray(rows).any():
            self._pipeline.reset()

    def _answer(self, obs: Mapping[str, np.ndarray]) -> np.ndarray:
        """(B, A) float32, as the bundle has it.

        Raises:
            ValueError: more than one row for a bundle whose parts remember by themselves.
        """
        count = len(next(iter(obs.values())))
        if count > 1 and self._pipeline.one_row:
            raise ValueError(
                f"{self.bundle.file} remembers inside its TorchScript parts, and there are {count} rows; it acts in "
                "one (num_envs=1)"
            )
        memories = self._memory.of(count)
        rows = [self._step({key: x[i] for key, x in obs.items()}, memory) for i, memory in enumerate(memories)]
        return np.stack([self._join(row) for row in rows])

    def _step(self, row: Mapping[str, np.ndarray], memory: dict[End, np.ndarray]) -> dict[End, np.ndarray]:
        given = {
            port: np.ascontiguousarray(row[key], tensor.dtype).reshape(tensor.shape)
            for key, (port, tensor) in self._inputs.items()
        }
        return self._pipeline.step(given, memory)

    def _join(self, answers: Mapping[End, np.ndarray]) -> np.ndarray:
        return np.concatenate([np.asarray(answers[port], np.float32).ravel() for port in self._outputs])

    def _try(self) -> dict[str, np.ndarray]:
        zeros = {key: np.zeros(tensor.row, tensor.dtype) for key, (_, tensor) in self._inputs.items()}
        try:
            answers = self._step(zeros, dict(self.bundle.memory))
            size = self._join(answers).size
        except Exception as error:  # runtimes raise classes of their own
            raise ValueError(
                f"{self.bundle.file} does not run on zeros of its own sizes: {first_line(error)}"
            ) from error
        self._pipeline.reset()
        for port, tensor in self.bundle.outputs.values():
            if answers[port].shape != tensor.shape:
                raise ValueError(
                    f"{self.bundle.file} answers {'/'.join(port)} with the shape {list(answers[port].shape)}, and says "
                    f"{list(tensor.shape)}"
                )
        if size != self.io.action_dim:
            raise ValueError(
                f"{self.bundle.file} answers with {size} numbers, expected {self.io.action_dim}: the actions "
                f"{', '.join(self.io.action_names)}"
            )
        return {name: answers[port] for name, (port, _) in self.bundle.outputs.items()}


def _graph(part: BundlePart, device: str, threads: int) -> Step:
    session = open_graph(part.read(), part.file, device, threads)
    inputs, outputs = [x.name for x in part.inputs], [x.name for x in part.outputs]
    for end, told, has in (("inputs", inputs, session.get_inputs()), ("outputs", outputs, session.get_outputs())):
        if sorted(told) != sorted(item.name for item in has):
            raise ValueError(
                f"{part.file} has the {end} {', '.join(item.name for item in has)}, and its description says "
                f"{', '.join(told)}"
            )
    return lambda values: session.run(outputs, dict(zip(inputs, values)))
