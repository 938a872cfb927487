"""The guard on loading: a checkpoint that would act wrongly without a word is refused with one clear reason.

A checkpoint is a folder: `model.safetensors`, `config.json` (what to build), `card.json` (what the model is: actions,
cameras, tokenizer, digests) and `stats.npz` (action statistics). Nothing in it is executed. Each check answers a way in
which published checkpoints were loaded wrongly and still ran: the wrong statistics, an inverted gripper, another camera
order, a padded vocabulary, half of the weights.
"""

from __future__ import annotations

import hashlib
import json
import os
import uuid
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import torch
from torch import Tensor, nn

from robot_rl.extras import require
from robot_rl.policies.nets.critic_scores import voc
from robot_rl.policies.vla.chunk_policy import ChunkPolicy
from robot_rl.policies.vla.interface import NORMS, ActionStats, MomentCritic, PolicyMeta

CHECKS = (
    "files", "keys", "finite", "untouched", "digest", "class", "tokenizer", "vocabulary", "image_size", "channels",
    "rotation", "cameras", "state", "horizon", "control_hz", "actions", "semantics", "frame", "gripper", "stats_shape",
    "stats_finite", "stats_spread", "stats_norm", "stats_key", "stats_identity", "stats_data", "limits", "probe",
)  # fmt: skip
PROBE_TOLERANCE = 1e-4
_FILES = ("model.safetensors", "config.json", "card.json", "stats.npz")
_ARRAYS = ("mean", "std", "q01", "q99", "low", "high", "mask")


class WeightsError(RuntimeError):
    """A checkpoint was refused.

    Attributes:
        findings: what is wrong, in the order of the checks.
    """

    def __init__(self, folder: Path, findings: list[Mismatch]) -> None:
        self.findings = findings
        lines = "\n".join(f"  {item}" for item in findings)
        super().__init__(
            f"{folder} was refused:\n{lines}\nA check that you know better than is passed by accept=[name]."
        )


@dataclass(frozen=True)
class Mismatch:
    """One mismatch."""

    check: str
    message: str

    def __str__(self) -> str:
        return f"{self.check}: {self.message}"


@dataclass(frozen=True)
class RobotFacts:
    """What the actions will reach and what the model will see; None where it is not known, and is then not checked.

    Attributes:
        action_names: in the order in which the robot takes them.
        semantics: "delta" or "absolute" for each.
        frame: of the moves.
        gripper: 0, 1 (larger opens) or -1 (larger closes) for each.
        low, high: limits, robot units.
        cameras: names, in the order in which the pictures come.
        image_size: (height, width), pixels.
        channels: "rgb" or "bgr".
        rotated: whether the pictures are turned by 180 degrees.
        control_hz: actions per second.
        state_dim: of the state vector.
        demonstrations: (n, A) actions of this robot, robot units; statistics are held against them.
        stats_key: name of the statistics that are meant.
    """

    action_names: tuple[str, ...] | None = None
    semantics: tuple[str, ...] | None = None
    frame: str | None = None
    gripper: tuple[int, ...] | None = None
    low: tuple[float, ...] | None = None
    high: tuple[float, ...] | None = None
    cameras: tuple[str, ...] | None = None
    image_size: tuple[int, int] | None = None
    channels: str | None = "rgb"
    rotated: bool | None = False
    control_hz: float | None = None
    state_dim: int | None = None
    demonstrations: np.ndarray | None = None
    stats_key: str | None = None


@dataclass(frozen=True)
class Inspection:
    """What was checked on loading, and what was found and accepted."""

    checked: tuple[str, ...]
    accepted: tuple[Mismatch, ...] = ()
    skipped: tuple[str, ...] = ()


Probe = Callable[[ChunkPolicy], np.ndarray]
"""The model's answers to fixed observations, as one flat array."""


def save(
    folder: Path, policy: ChunkPolicy, config: Mapping[str, object], *, probe: Probe, frozen: Collection[str] = ()
) -> None:
    """Write a checkpoint folder; it appears whole or not at all.

    Args:
        folder: to write; must not exist.
        policy: to be written.
        config: plain values from which `build` of `load` makes the same module.
        probe: answers that are kept on the card.
        frozen: name prefixes of parameters that training leaves at their initial values.

    Raises:
        FileExistsError: the folder exists.
        ValueError: weights that are not finite.
    """
    tensors = require("safetensors.torch")
    if folder.exists():
        raise FileExistsError(f"{folder} exists; a checkpoint is never written over another")
    state = {name: value.detach().cpu().contiguous().clone() for name, value in policy.state_dict().items()}
    bad = [name for name, value in state.items() if value.is_floating_point() and not torch.isfinite(value).all()]
    if bad:
        raise ValueError(f"{bad[0]} holds NaN or infinity; such weights are not saved")
    with torch.no_grad():
        answers = np.asarray(probe(policy), np.float64)
    card = {
        "format": 1,
        "class": _class_of(policy),
        "versions": {"torch": torch.__version__.split("+")[0]},
        "policy": policy.meta.to_dict(),
        "stats": {"norm": policy.stats.norm, "key": policy.stats.key},
        "weights": {name: _digest(value) for name, value in state.items()},
        "frozen": sorted(frozen),
        "probe": answers.ravel().tolist(),
    }
    temporary = folder.with_name(f".{folder.name}.{uuid.uuid4().hex[:8]}.part")
    temporary.mkdir(parents=True)
    tensors.save_file(state, str(temporary / "model.safetensors"))
    (temporary / "config.json").write_text(json.dumps(dict(config), indent=1))
    (temporary / "card.json").write_text(json.dumps(card, indent=1))
    arrays: dict[str, Any] = {name: np.asarray(vars(policy.stats)[name]) for name in _ARRAYS}
    np.savez(temporary / "stats.npz", **arrays)
    os.replace(temporary, folder)


def load(
    folder: Path,
    build: Callable[[dict[str, object], PolicyMeta, ActionStats], ChunkPolicy],
    robot: RobotFacts,
    *,
    probe: Probe,
    accept: Collection[str] = (),
) -> tuple[ChunkPolicy, Inspection]:
    """Read a checkpoint folder and refuse it if anything on it does not fit the robot or itself.

    Args:
        folder: written by `save`, or made by an importer.
        build: config, meta and statistics -> a module with fresh weights.
        robot: what the actions will reach.
        probe: the same as in `save`.
        accept: names from `CHECKS` whose findings are let through; the report lists them.

    Returns:
        The module with its weights, and the report.

    Raises:
        WeightsError: at least one check failed; the message names each with what was expected and found.
        ValueError: an unknown name in `accept`.
    """
    unknown = sorted(set(accept) - set(CHECKS))
    if unknown:
        raise ValueError(f"accept holds {unknown}, expected names from {', '.join(CHECKS)}")
    tensors = require("safetensors.torch")
    guard = _Guard(folder, frozenset(accept))
    missing = [name for name in _FILES if not (folder / name).exists()]
    if missing:
        guard.fail("files", f"{', '.join(missing)} missing; expected {', '.join(_FILES)}")
        raise guard.refusal()
    config = guard.read_json("config.json")
    card = guard.read_json("card.json")
    try:
        state: dict[str, Tensor] = tensors.load_file(str(folder / "model.safetensors"))
    except Exception as error:  # safetensors raises its own kinds for damaged files
        guard.fail("files", f"model.safetensors cannot be read ({error}); copy it again")
        raise guard.refusal() from error
    try:
        with np.load(folder / "stats.npz", allow_pickle=False) as found:
            arrays = {name: found[name] for name in _ARRAYS}
        stats = ActionStats(card["stats"]["norm"], card["stats"]["key"], **arrays)
        meta = PolicyMeta.from_dict(card["policy"])
        kept = np.asarray(card.get("probe", []), np.float64)
        _check_stats(guard, stats, meta, robot)
        _check_meta(guard, meta, robot)
        guard.stop()  # a module cannot be built on these
        policy = build(config, meta, stats)
        _check_tokenizer(guard, policy, meta)
    except (AttributeError, BadZipFile, EOFError, LookupError, TypeError, ValueError) as error:
        what = "card.json, config.json or stats.npz is damaged, lacks an entry or holds another kind of value"
        guard.fail("files", f"{what}: {type(error).__name__}: {error}")
        raise guard.refusal() from error
    if _class_of(policy) != card.get("class"):
        guard.fail("class", f"the card is of {card.get('class')}, this builds {_class_of(policy)}")
    _check_weights(guard, policy, state, card)
    guard.stop()
    own = policy.state_dict()  # what does not fit was accepted, and stays fresh
    fitting = {name: value for name, value in state.items() if name in own and own[name].shape == value.shape}
    policy.load_state_dict(fitting, strict=False)
    with torch.no_grad():
        answers = np.asarray(probe(policy), np.float64).ravel()
    if answers.shape != kept.shape:
        guard.fail("probe", f"the card keeps {kept.size} answers, this model gives {answers.size}")
    elif not (worst := float(np.abs(answers - kept).max(initial=0.0))) <= PROBE_TOLERANCE:
        guard.fail(
            "probe",
            f"answers to fixed observations are up to {worst:.3g} from those kept (tolerance {PROBE_TOLERANCE:g})",
        )
    guard.stop()
    return policy, Inspection(CHECKS, tuple(guard.passed), tuple(guard.skipped))


def check_critic(critic: MomentCritic, frames: np.ndarray, goal: str, other: str) -> list[Mismatch]:
    """A critic's self-test on one stored success.

    Args:
        critic: just loaded.
        frames: (T + 1, H, W, 3) of a clip in which `goal` is met.
        goal: its sentence.
        other: a sentence that the clip does not meet.

    Returns:
        Findings "critic_flat" (says nothing), "critic_order" (values do not rise with the clip), "critic_reverse" (nor
        fall with it reversed), "critic_goal" (the wrong goal ends no lower); empty means fine.
    """
    forward, wrong = critic.trajectory(frames, goal), critic.trajectory(frames, other)
    backward = critic.trajectory(frames[::-1].copy(), goal)
    found, spread = [], float(np.std(forward.deltas))
    order = voc(forward.values)
    if spread < 0.01:
        found.append(
            Mismatch("critic_flat", f"deltas of a success have a spread of {spread:.2g}, expected 0.01 or more")
        )
    elif not order > 0.8:
        found.append(Mismatch("critic_order", f"values of a success have VOC {order:.2f}, expected more than 0.8"))
    if not backward.values[-1] < 0.0:
        found.append(
            Mismatch("critic_reverse", f"the reversed success ends at {backward.values[-1]:.2f}, expected less than 0")
        )
    right = float(forward.values[-1])
    if not wrong.values[-1] < right:
        found.append(
            Mismatch("critic_goal", f"'{other}' ends at {wrong.values[-1]:.2f}, no lower than '{goal}' at {right:.2f}")
        )
    return found


@dataclass
class _Guard:
    folder: Path
    accept: frozenset[str]
    findings: list[Mismatch] = field(default_factory=list)
    passed: list[Mismatch] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)

    def fail(self, check: str, message: str) -> None:
        finding = Mismatch(check, message)
        (self.passed if check in self.accept else self.findings).append(finding)

    def compare(self, check: str, found: object, expected: object, hint: str) -> None:
        """One value of the card against the robot's; unknown on the robot's side is no mismatch."""
        if expected is None:
            self.skipped.append(check)
        elif found != expected:
            self.fail(check, f"the checkpoint has {_short(found)}, the robot {_short(expected)}; {hint}")

    def refusal(self) -> WeightsError:
        """What cannot be accepted, since nothing could be loaded without it."""
        return WeightsError(self.folder, self.findings or self.passed)

    def stop(self) -> None:
        if self.findings:
            raise self.refusal()

    def read_json(self, name: str) -> dict[str, Any]:
        try:
            return json.loads((self.folder / name).read_text())
        except ValueError as error:
            self.fail("files", f"{name} is no JSON ({error})")
            raise self.refusal() from error


def _check_meta(guard: _Guard, meta: PolicyMeta, robot: RobotFacts) -> None:
    if not 0 < meta.exec_len <= meta.horizon:
        guard.fail("horizon", f"{meta.exec_len} of {meta.horizon} actions run in a chunk; expected 1 to {meta.horizon}")
    width = len(meta.action_names)
    for name in ("semantics", "gripper"):
        count = len(vars(meta)[name])
        if count != width:
            guard.fail(name, f"{count} entries for {width} actions")
    if robot.action_names is not None and sorted(meta.action_names) == sorted(robot.action_names):
        hint = "the same actions in another order: map them before they reach the robot"
    else:
        hint = "another robot or another controller"
    guard.compare("actions", meta.action_names, robot.action_names, hint)
    guard.compare("semantics", meta.semantics, robot.semantics, "a delta taken for a position moves to the wrong place")
    guard.compare("frame", meta.frame, robot.frame, "moves would point elsewhere")
    guard.compare(
        "gripper", meta.gripper, robot.gripper, "1: larger opens, -1: larger closes; it would do the opposite"
    )
    guard.compare("control_hz", meta.control_hz, robot.control_hz, "actions would run at another speed")
    if robot.cameras is not None and sorted(meta.cameras) == sorted(robot.cameras):
        hint = "the same cameras in another order"
    else:
        hint = "name the robot's pictures as the model knows them"
    guard.compare("cameras", meta.cameras, robot.cameras, hint)
    guard.compare("image_size", tuple(meta.image_size), robot.image_size, "resize the pictures as in training")
    guard.compare("channels", meta.channels, robot.channels, "red and blue would be exchanged")
    guard.compare("rotation", meta.rotated, robot.rotated, "the pictures would be upside down")
    guard.compare("state", meta.state_dim, robot.state_dim, "the state vector is another one")


def _check_stats(guard: _Guard, stats: ActionStats, meta: PolicyMeta, robot: RobotFacts) -> None:
    width = len(meta.action_names)
    arrays = {name: vars(stats)[name] for name in _ARRAYS}
    wrong = {name: np.shape(value) for name, value in arrays.items() if np.shape(value) != (width,)}
    if wrong:
        guard.fail("stats_shape", f"{wrong}, expected ({width},): one number for each of {list(meta.action_names)}")
        return
    numbers = {name: np.asarray(value, np.float64) for name, value in arrays.items() if name != "mask"}
    bad = [name for name, value in numbers.items() if not np.isfinite(value).all()]
    if bad:
        guard.fail("stats_finite", f"{', '.join(bad)} hold NaN or infinity")
        return
    if stats.norm not in NORMS or stats.norm != meta.norm:
        guard.fail("stats_norm", f"norm is '{stats.norm}', the card's policy was trained with '{meta.norm}'")
    mask = np.asarray(stats.mask, bool)
    for low, high, what in (("q01", "q99", "q99 > q01"), ("low", "high", "high > low")):
        flat = np.flatnonzero(mask & ~(numbers[high] > numbers[low]))
        if len(flat):
            guard.fail("stats_spread", f"action '{meta.action_names[flat[0]]}': expected {what}; or mask the dimension")
    flat = np.flatnonzero(mask & ~(numbers["std"] > 0))
    if len(flat):
        guard.fail("stats_spread", f"action '{meta.action_names[flat[0]]}': std is 0; mask it if it never moves")
    guard.compare("stats_key", stats.key, robot.stats_key, "statistics of other data")
    if any(item.check.startswith("stats") for item in guard.findings):
        return
    middle, unit = stats.scale()
    if stats.norm != "identity" and np.allclose(middle, 0.0) and np.allclose(unit, 1.0):
        guard.fail("stats_identity", f"norm '{stats.norm}' changes nothing: the statistics are of normalised actions")
    outside = np.flatnonzero((numbers["mean"] < numbers["low"]) | (numbers["mean"] > numbers["high"]))
    if len(outside):
        guard.fail("stats_spread", f"action '{meta.action_names[outside[0]]}': the mean lies outside low and high")
    if robot.low is not None and robot.high is not None and len(robot.low) == width:
        _check_limits(guard, numbers, meta, robot)
    else:
        guard.skipped.append("limits")
    if robot.demonstrations is not None:
        _check_data(guard, numbers, meta, np.asarray(robot.demonstrations, np.float64))
    else:
        guard.skipped.append("stats_data")


def _check_limits(guard: _Guard, numbers: dict[str, np.ndarray], meta: PolicyMeta, robot: RobotFacts) -> None:
    low, high = np.array(robot.low, np.float64), np.array(robot.high, np.float64)
    room = 0.05 * (high - low)
    for i, name in enumerate(meta.action_names):
        if numbers["q01"][i] < low[i] - room[i] or numbers["q99"][i] > high[i] + room[i]:
            guard.fail(
                "limits",
                f"action '{name}': statistics span {numbers['q01'][i]:.4g} to {numbers['q99'][i]:.4g}, the robot takes "
                f"{low[i]:.4g} to {high[i]:.4g}; other units, or another robot",
            )


def _check_data(guard: _Guard, numbers: dict[str, np.ndarray], meta: PolicyMeta, data: np.ndarray) -> None:
    if data.ndim != 2 or data.shape[1] != len(meta.action_names):
        guard.fail("stats_data", f"demonstrations have shape {data.shape}, expected (n, {len(meta.action_names)})")
        return
    mean, std = data.mean(0), data.std(0)
    for i, name in enumerate(meta.action_names):
        if std[i] <= 0:
            continue
        ratio = numbers["std"][i] / std[i]
        apart = abs(numbers["mean"][i] - mean[i]) / std[i]
        if not 0.2 <= ratio <= 5.0 or apart > 2.0:
            guard.fail(
                "stats_data",
                f"action '{name}': mean {numbers['mean'][i]:.4g}, std {numbers['std'][i]:.4g}; demonstrations have "
                f"{mean[i]:.4g} and {std[i]:.4g} (allowed: 2 std apart, a factor 5 in scale)",
            )


def _check_tokenizer(guard: _Guard, policy: ChunkPolicy, meta: PolicyMeta) -> None:
    here = policy.backbone.fingerprint()
    if here != meta.tokenizer:
        guard.fail("tokenizer", f"the model was trained with {meta.tokenizer}, this one reads with {here}")
    needed, there = int(meta.tokenizer.get("size", 0)), policy.backbone.vocabulary
    if needed > there:
        guard.fail("vocabulary", f"the tokenizer gives numbers up to {needed - 1}, the model knows {there}")


def _check_weights(guard: _Guard, policy: nn.Module, state: dict[str, Tensor], card: dict[str, Any]) -> None:
    own = policy.state_dict()
    missing, extra = sorted(set(own) - set(state)), sorted(set(state) - set(own))
    shapes = [name for name in own if name in state and own[name].shape != state[name].shape]
    for names, what in ((missing, "missing from the file"), (extra, "in the file but not in the model")):
        if names:
            guard.fail("keys", f"{len(names)} weights {what}, first {names[0]}")
    if shapes:
        name = shapes[0]
        guard.fail(
            "keys", f"{name} is {tuple(state[name].shape)} in the file and {tuple(own[name].shape)} in the model"
        )
    bad = [n for n, value in state.items() if value.is_floating_point() and not torch.isfinite(value).all()]
    if bad:
        guard.fail("finite", f"{len(bad)} weights hold NaN or infinity, first {bad[0]}")
    kept = card.get("weights", {})
    changed = [n for n, value in state.items() if n in kept and kept[n] != _digest(value)]
    if changed:
        guard.fail("digest", f"{len(changed)} weights are not those that the card was written for, first {changed[0]}")
    frozen = tuple(card.get("frozen", ()))
    trained = {name for name, _ in policy.named_parameters()}
    same = [
        name
        for name in trained & set(state)
        if own[name].shape == state[name].shape
        and state[name].numel() > 1
        and torch.equal(own[name].cpu(), state[name])
        and float(state[name].float().std()) > 0  # zeros and ones are what biases and norms begin with
        and not name.startswith(frozen or ("\0",))
    ]
    if same:
        guard.fail(
            "untouched", f"{len(same)} weights equal their fresh values, first {sorted(same)[0]}: never trained?"
        )


def _digest(value: Tensor) -> str:
    raw = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return hashlib.sha256(str((value.dtype, tuple(value.shape))).encode() + raw).hexdigest()[:16]


def _class_of(policy: nn.Module) -> str:
    parts = [policy, *(part for name, part in policy.named_children() if name == "backbone")]
    return " on ".join(f"{type(part).__module__}.{type(part).__name__}" for part in parts)


def _short(value: object) -> str:
    text = str(list(value)) if isinstance(value, tuple) else str(value)
    return text if len(text) < 120 else text[:117] + "..."
