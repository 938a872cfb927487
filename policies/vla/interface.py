"""The two contracts of this family: a critic that says how far a goal has come, and a policy that acts on a sentence.

Small models of this repository and large pretrained ones meet the same contracts, so that a loop, a report or a robot
does not know which one it holds. Pictures are uint8 RGB, height x width x 3, always: floats are refused rather than
guessed at.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from robot_rl.policies.nets.reference import RefClip
from robot_rl.types import Array
from robot_rl.types import ProgressCritic as Scorer

PROPRIO = ("tip_x", "tip_y", "tip_z", "lag_*", "opening")
"""Of the tabletop's state: what a robot knows of itself. Vectors to the blocks and the goal are not among it."""
FLAT = 1.0
"""A picture whose pixels have a smaller standard deviation shows nothing (lens covered, camera off)."""


@dataclass(frozen=True)
class CriticMeta:
    """What a critic is.

    Attributes:
        name: of the model.
        kind: "pairwise_head", "siamese" or "text".
        image_size: (height, width) that it takes, pixels.
        views: pictures of one moment.
        delta_gap_s: seconds between the frames of a pair, shortest and longest that it was trained on.
        goal_kinds: "text", "image" or both.
        unit: of `CriticOutput.delta`.
    """

    name: str
    kind: str
    image_size: tuple[int, int]
    views: int = 1
    delta_gap_s: tuple[float, float] = (0.2, 5.0)
    goal_kinds: tuple[str, ...] = ("text",)
    unit: str = "share of remaining work"

    def to_dict(self) -> dict[str, object]:
        """Plain values."""
        return {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()}


@dataclass(frozen=True)
class CriticOutput:
    """Answers for B pairs of moments, all (B,), float32 unless said.

    Attributes:
        delta: in (-1, 1), signed share of the remaining work done between them.
        dlogw: its additive form, -sign(c) ln(1 - |c|).
        done: P(the goal is met in the second).
        value: absolute progress of the second in [0, 1), NaN without such a head.
        match: P(the pair has anything to do with the goal), NaN without such a head.
        sigma: standard deviation of `dlogw` over an ensemble, NaN with one member.
        valid: bool; False where there is no answer (unreadable text, an empty picture); never replaced by 0.
    """

    delta: Tensor
    dlogw: Tensor
    done: Tensor
    value: Tensor
    match: Tensor
    sigma: Tensor
    valid: Tensor

    @classmethod
    def of(cls, dlogw: Tensor, done: Tensor, valid: Tensor, *, value: Tensor | None = None) -> CriticOutput:
        """Fill in what follows from the rest: NaN deltas and done 0 where not valid, NaN for absent heads."""
        nan = torch.full_like(dlogw, float("nan"))
        dlogw = torch.where(valid, dlogw, nan)
        delta = torch.sign(dlogw) * -torch.expm1(-dlogw.abs())
        value = nan if value is None else torch.where(valid, value, nan)
        return cls(delta, dlogw, torch.where(valid, done, torch.zeros_like(done)), value, nan, nan, valid)


@dataclass(frozen=True)
class Trajectory:
    """A clip scored from its first frame on.

    Attributes:
        deltas: (n,) shares of consecutive frames used.
        u: (n + 1,) accumulated, from 0.
        values: (n + 1,) 1 - exp(-u).
        done: (n + 1,) P(goal met).
        index: (n + 1,) int64, which frames were used; always the last one.
        absolute: (n + 1,) progress from the absolute head, NaN without one.
        valid: (n,) bool.
    """

    deltas: np.ndarray
    u: np.ndarray
    values: np.ndarray
    done: np.ndarray
    index: np.ndarray
    absolute: np.ndarray
    valid: np.ndarray


class MomentCritic(Scorer, Protocol):
    """Two moments and a goal in, progress out. `score` is the short form that loops know (`robot_rl.types`)."""

    meta: CriticMeta

    def __call__(self, images_t0: Array, images_t1: Array, goal: Sequence[str]) -> CriticOutput:
        """Pairs (B, H, W, 3) or (B, V, H, W, 3) uint8, B sentences -> B answers.

        Raises:
            TypeError: pictures are not uint8.
            ValueError: shapes that do not fit each other or the model; an empty sentence; counts that differ.
        """
        ...

    def trajectory(self, frames: Array, goal: str, *, stride: int = 1) -> Trajectory:
        """Score frames (T + 1, H, W, 3), every `stride`-th of them and always the last.

        Raises:
            ValueError: fewer than two frames.
        """
        ...

    def score(self, clip: Tensor, instruction: Sequence[str]) -> Tensor:
        """(B, T, H, W, 3) uint8 and B sentences -> (B, T) progress in [0, 1] since each first frame."""
        rows = [self.trajectory(frames.numpy(), text).values for frames, text in zip(clip, instruction)]
        return torch.as_tensor(np.stack(rows), dtype=torch.float32).clamp(0.0, 1.0)


class ReferenceCritic(MomentCritic, Protocol):
    """One whose goal may be shown."""

    def with_reference(self, reference: RefClip | None) -> MomentCritic:
        """The same critic, shown a clip of its goal, or none."""
        ...


@dataclass(frozen=True)
class PolicyMeta:
    """What a policy is: everything that has to agree before its actions may reach a robot.

    Attributes:
        codec: how actions are made: "token", "gaussian", "flow" or "regression".
        horizon: H, actions in a chunk.
        exec_len: how many of them run before the next decision.
        action_names: (A,).
        semantics: (A,) "delta" or "absolute".
        frame: frame of the moves, such as "base" or "tool".
        gripper: (A,) 0 for no gripper, 1 when larger opens, -1 when larger closes.
        cameras: names, in the order in which the model sees them.
        image_size: (height, width), pixels.
        rotated: pictures are turned by 180 degrees before the model.
        channels: "rgb" or "bgr".
        state_dim: 0 without.
        control_hz: actions per second.
        latency_offset: control steps between the observation and the first action, as trained.
        logp_layout: "token", "step" or "chunk": what one entry of `logp` is.
        norm: "quantile", "mean_std", "min_max" or "identity".
        tokenizer: name, size and fingerprint of the tokenizer.
    """

    codec: str
    horizon: int
    exec_len: int
    action_names: tuple[str, ...]
    semantics: tuple[str, ...]
    frame: str
    gripper: tuple[int, ...]
    cameras: tuple[str, ...]
    image_size: tuple[int, int]
    rotated: bool = False
    channels: str = "rgb"
    state_dim: int = 0
    control_hz: float = 10.0
    latency_offset: int = 0
    logp_layout: str = "step"
    norm: str = "quantile"
    tokenizer: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, object]:
        """Plain values."""
        return {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()}

    @classmethod
    def from_dict(cls, plain: Mapping[str, object]) -> PolicyMeta:
        """Inverse of `to_dict`."""
        found: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in plain.items()
        }
        return cls(**found)


@dataclass(frozen=True)
class VLAObs:
    """What a policy sees: B moments.

    Attributes:
        images: camera -> (B, H, W, 3) uint8.
        state: (B, S) float32 or None.
    """

    images: dict[str, Tensor]
    state: Tensor | None


@dataclass(frozen=True)
class ActionChunk:
    """H actions for each of B moments.

    Attributes:
        actions: (B, H, A) float32, in the codec's normalised units.
        env_actions: (B, H, A) float32, robot units, within limits.
        logp: (B, L) float32, one entry for each random element; see `PolicyMeta.logp_layout`.
        value: (B,) or NaN.
        trace: what `evaluate` needs to compute `logp` again.
    """

    actions: Tensor
    env_actions: Tensor
    logp: Tensor
    value: Tensor
    trace: dict[str, Tensor]


def checked_images(images: Array, size: tuple[int, int], *, views: int = 1, name: str = "images") -> Tensor:
    """Pictures as a uint8 tensor (B, V, H, W, 3), or an error that says what is wrong with them.

    Raises:
        TypeError: not uint8.
        ValueError: another rank, channel order, number of views or size.
    """
    tensor = torch.as_tensor(np.ascontiguousarray(images)) if isinstance(images, np.ndarray) else images
    if tensor.dtype != torch.uint8:
        raise TypeError(f"{name} have dtype {tensor.dtype}, expected uint8 RGB (0 to 255); the range is never guessed")
    shape = tuple(tensor.shape)
    if tensor.ndim == 4:
        tensor = tensor[:, None]
    if tensor.ndim != 5:
        raise ValueError(f"{name} have shape {shape}, expected (B, H, W, 3) or (B, V, H, W, 3)")
    if tensor.shape[-1] != 3:
        hint = "; channels come last" if 3 in shape[1:] else ""
        raise ValueError(f"{name} have shape {shape}, expected 3 channels at the end{hint}")
    if tensor.shape[1] != views:
        raise ValueError(f"{name} have {tensor.shape[1]} views, the model takes {views}")
    if tuple(tensor.shape[2:4]) != tuple(size):
        raise ValueError(
            f"{name} are {shape[-3]} x {shape[-2]} pixels, the model takes {size[0]} x {size[1]}; resize them first"
        )
    return tensor


def checked_pair(images_t0: Array, images_t1: Array, size: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """First and second pictures of B pairs as `checked_images` gives them.

    Raises:
        ValueError: more of one than of the other.
    """
    first, second = checked_images(images_t0, size, name="images_t0"), checked_images(images_t1, size, name="images_t1")
    if len(first) != len(second):
        raise ValueError(f"{len(first)} first and {len(second)} second pictures, expected as many of each")
    return first, second


def stride_frames(frames: Array, stride: int) -> tuple[np.ndarray, Tensor]:
    """Every `stride`-th frame and the last: their numbers (n,), and they themselves.

    Raises:
        ValueError: fewer than two frames.
    """
    count = len(frames)
    if count < 2:
        raise ValueError(f"{count} frames, expected at least 2")
    index = np.unique(np.concatenate([np.arange(0, count, stride), [count - 1]]))
    return index, torch.as_tensor(np.ascontiguousarray(np.asarray(frames)[index]))


def checked_goal(goal: Sequence[str], count: int) -> list[str]:
    """B sentences, NFC-normalised and stripped.

    Raises:
        ValueError: another number of them, or an empty one.
    """
    if isinstance(goal, str):
        raise ValueError("goal is one string, expected a list with one sentence for each item of the batch")
    found = [unicodedata.normalize("NFC", text).strip() for text in goal]
    if len(found) != count:
        raise ValueError(f"goal holds {len(found)} sentences, expected {count}: one for each item of the batch")
    for index, text in enumerate(found):
        if not text:
            raise ValueError(f"goal {index} is empty; expected a sentence")
    return found


def shows_something(images: Tensor) -> Tensor:
    """(B, V, H, W, 3) uint8 -> (B,) bool: every view has pixels that differ."""
    flat = images.flatten(2).to(torch.float32)
    return (flat.std(dim=2) >= FLAT).all(dim=1)


NORMS = ("quantile", "mean_std", "min_max", "identity")


@dataclass(frozen=True)
class ActionStats:
    """How normalised actions become robot units.

    Attributes:
        norm: "quantile" (q01 and q99 are -1 and 1), "mean_std", "min_max" (low and high are -1 and 1) or "identity".
        key: name of the data that they are of.
        mean, std, q01, q99, low, high: (A,) float64, robot units.
        mask: (A,) bool; dimensions that are False pass unchanged.
    """

    norm: str
    key: str
    mean: np.ndarray
    std: np.ndarray
    q01: np.ndarray
    q99: np.ndarray
    low: np.ndarray
    high: np.ndarray
    mask: np.ndarray

    @classmethod
    def of(cls, actions: np.ndarray, *, norm: str = "quantile", key: str = "data") -> ActionStats:
        """From actions (n, A) in robot units.

        Raises:
            ValueError: unknown norm.
        """
        if norm not in NORMS:
            raise ValueError(f"norm is '{norm}', expected one of {', '.join(NORMS)}")
        x = np.asarray(actions, np.float64)
        q01, q99 = np.quantile(x, [0.01, 0.99], axis=0)
        return cls(norm, key, x.mean(0), x.std(0), q01, q99, x.min(0), x.max(0), np.ones(x.shape[1], bool))

    def scale(self) -> tuple[np.ndarray, np.ndarray]:
        """(A,) middle and (A,) robot units per normalised unit.

        Raises:
            ValueError: unknown norm.
        """
        if self.norm == "mean_std":
            middle, unit = self.mean, self.std
        elif self.norm in ("quantile", "min_max"):
            first, last = (self.q01, self.q99) if self.norm == "quantile" else (self.low, self.high)
            middle, unit = 0.5 * (first + last), 0.5 * (last - first)
        elif self.norm == "identity":
            middle, unit = np.zeros_like(self.mean), np.ones_like(self.mean)
        else:
            raise ValueError(f"norm is '{self.norm}', expected one of {', '.join(NORMS)}")
        return np.where(self.mask, middle, 0.0), np.where(self.mask, unit, 1.0)

    def to_robot(self, actions: Tensor) -> Tensor:
        """(..., A) normalised -> robot units."""
        middle, unit = (torch.as_tensor(x, dtype=actions.dtype, device=actions.device) for x in self.scale())
        return actions * unit + middle

    def from_robot(self, actions: Tensor) -> Tensor:
        """(..., A) robot units -> normalised."""
        middle, unit = (torch.as_tensor(x, dtype=actions.dtype, device=actions.device) for x in self.scale())
        return (actions - middle) / unit


class Backbone(Protocol):
    """What reads pictures and a sentence into one vector; a `torch.nn.Module` with these besides."""

    width: int
    image_size: tuple[int, int]

    @property
    def vocabulary(self) -> int:
        """Words that it knows."""
        ...

    def __call__(self, images: Tensor, goal: Sequence[str]) -> Tensor:
        """(B, V, H, W, 3) uint8 and B sentences -> (B, width) float32."""
        ...

    def fingerprint(self) -> dict[str, Any]:
        """Name, size and digest of the tokenizer."""
        ...

    def roles(self) -> dict[str, list[torch.nn.Parameter]]:
        """Parameters of "vision" and "language", together all of them."""
        ...
