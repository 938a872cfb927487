"""How the state of an object is taken and put back: what continues it is named once."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from robot_rl.types import StateDict, Stateful


class Saved:
    """An object that continues exactly from the attributes that it names.

    A state has an entry for each of `saved`, without a leading underscore. Tensors and arrays are copied in place, so
    that views and optimisers that share them see the loaded values (empty ones are replaced); parts load their own
    state; numbers, texts and collections of them are replaced. What is no attribute of the object's own is given by
    `saved_parts`.

    Attributes:
        saved: names of attributes.
        kind: what it is, in its state; a state of another kind is refused. "" for no such entry.
    """

    saved: tuple[str, ...] = ()
    kind: str = ""

    def saved_parts(self) -> dict[str, object]:
        """Key in the state -> tensor, array, generator, part with a state of its own, or plain value.

        Plain values can be put back where their key is that of an attribute in `saved`. Another part that is None has
        no entry: the options decide whether it is there.
        """
        return {name.lstrip("_"): vars(self)[name] for name in self.saved}

    def state_dict(self) -> StateDict:
        """Copies of all parts: tensors, arrays and plain values only."""
        kind = {"kind": self.kind} if self.kind else {}
        return {**kind, **take(self._there())}

    def load_state_dict(self, state: StateDict, /) -> None:
        """Continue exactly as the saved object would have.

        Raises:
            ValueError: the state is of another kind, of other parts or of other sizes.
        """
        what = type(self).__name__.lstrip("_")
        if self.kind and state.get("kind") != self.kind:
            raise ValueError(f"this state is of a '{state.get('kind')}', expected {self.kind}")
        own = {name.lstrip("_"): name for name in self.saved}
        given = {key: value for key, value in state.items() if key != "kind"} if self.kind else state
        for key, value in put_back(self._there(), given, what).items():
            vars(self)[own[key]] = value
        self.after_load()

    def _there(self) -> dict[str, object]:
        own = {name.lstrip("_") for name in self.saved}
        return {key: part for key, part in self.saved_parts().items() if part is not None or key in own}

    def after_load(self) -> None:
        """Called behind `load_state_dict`: forget or make anew what was derived from the older values."""


@dataclass(frozen=True)
class Calls:
    """A part of a state that two functions of its owner take and put back."""

    state_dict: Callable[[], StateDict]
    load_state_dict: Callable[[StateDict], None]


def take(parts: Mapping[str, object]) -> StateDict:
    """Copies of the states of parts by their names."""
    return {name: _take(part) for name, part in parts.items()}


def put_back(parts: Mapping[str, object], state: Mapping[str, object], what: str) -> StateDict:
    """Load a state of `take` into the same parts; returns the plain values, which cannot be changed in place.

    Args:
        parts: as given to `take`.
        state: what it returned, or what a checkpoint made of it.
        what: name of the whole, for messages.

    Raises:
        ValueError: an entry is missing, unknown (and not None) or of another size.
    """
    lacks = sorted(parts.keys() - state.keys())
    more = sorted(key for key in state.keys() - parts.keys() if state[key] is not None)
    if lacks or more:
        told = [f"lacks {', '.join(lacks)}"] * bool(lacks) + [f"has {', '.join(more)} besides"] * bool(more)
        raise ValueError(
            f"the saved {what} {' and '.join(told)}; build it with the method and options that it was saved with"
        )
    for name, part in parts.items():  # all sizes before the first change: a refused state leaves everything as it was
        _check_size(part, state[name], f"{what}'s {name}")
    plain: StateDict = {}
    for name, part in parts.items():
        value = _put_back(part, state[name], f"{what}'s {name}")
        if value is not part:
            plain[name] = value
    return plain


def set_generator(generator: torch.Generator, saved: object) -> None:
    """Go on with saved draws; a generator of another kind of device than the saved one is left as it is."""
    given = torch.as_tensor(saved).cpu()
    if given.numel() == generator.get_state().numel():
        generator.set_state(given)


def _take(part: object) -> object:
    if isinstance(part, torch.Generator):
        return part.get_state()
    if isinstance(part, np.random.Generator):
        return copy.deepcopy(part.bit_generator.state)
    if isinstance(part, Tensor):
        return part.detach().clone()
    if isinstance(part, np.ndarray):
        return part.copy()
    if isinstance(part, nn.Module):
        return {name: value.detach().clone() for name, value in part.state_dict().items()}
    if isinstance(part, torch.optim.Optimizer):
        return copy.deepcopy(part.state_dict())
    if isinstance(part, Stateful):
        return part.state_dict()
    if isinstance(part, Mapping):
        return {key: _take(value) for key, value in part.items()}
    if isinstance(part, (list, tuple, deque)):
        return [_take(value) for value in part]
    return part


def _check_size(part: object, saved: object, where: str) -> None:
    if not isinstance(part, (Tensor, np.ndarray)) or not isinstance(saved, (Tensor, np.ndarray)):
        return
    if part.shape != saved.shape and not _has_no_size_yet(part):
        raise ValueError(
            f"{where} was saved with shape {tuple(saved.shape)}, here it is {tuple(part.shape)}; build it with the "
            "sizes and the number of environments that it was saved with"
        )


def _has_no_size_yet(part: Tensor | np.ndarray) -> bool:
    """Whether it is empty: rows that come with the first episode, for instance; it is replaced."""
    return 0 in part.shape


def _put_back(part: object, saved: object, where: str) -> object:
    """The part itself where it was changed in place, else what takes its place."""
    if isinstance(part, torch.Generator):
        set_generator(part, saved)
    elif isinstance(part, np.random.Generator):
        part.bit_generator.state = dict(_mapping(saved, where))
    elif isinstance(part, Tensor) and _has_no_size_yet(part) and saved is not None:
        return torch.as_tensor(saved).to(part.device, copy=True)
    elif isinstance(part, np.ndarray) and _has_no_size_yet(part):
        return _take(saved)
    elif isinstance(part, Tensor) and saved is not None:
        with torch.no_grad():
            part.copy_(torch.as_tensor(saved))
    elif isinstance(part, np.ndarray) and saved is not None:
        np.copyto(part, np.asarray(saved), casting="same_kind")
    elif isinstance(part, nn.Module):
        try:
            part.load_state_dict(_mapping(saved, where))
        except RuntimeError as error:
            raise ValueError(f"{where} does not fit; build it as it was saved: {error}") from error
    elif isinstance(part, torch.optim.Optimizer):  # it keeps the tensors that it is given: two would share moments
        part.load_state_dict(copy.deepcopy(dict(_mapping(saved, where))))
    elif isinstance(part, Stateful):
        part.load_state_dict(dict(_mapping(saved, where)))
    else:
        return _plain(part, saved)
    return part


def _plain(part: object, saved: object) -> object:
    if part is None or saved is None:
        return _take(saved)
    if isinstance(saved, (list, tuple)):
        items = [_take(item) for item in saved]
        if isinstance(part, deque):
            return deque(items, part.maxlen)
        return tuple(items) if isinstance(part, tuple) else items
    if isinstance(part, Mapping) and isinstance(saved, Mapping):
        return {key: _plain(part.get(key), value) for key, value in saved.items()}
    if isinstance(saved, (Tensor, np.ndarray)) and isinstance(part, (int, float)):
        return saved.item()  # a number that was kept as a tensor of no dimensions
    return _take(saved)


def _mapping(saved: object, where: str) -> Mapping[str, object]:
    if not isinstance(saved, Mapping):
        raise ValueError(f"{where} was saved as a {type(saved).__name__}, expected a state of its own")
    return saved
