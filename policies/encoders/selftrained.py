"""An encoder that a robot's own successes train: named points in pictures, found by heat maps and triangulation."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import smooth_l1_loss

from robot_rl.policies.encoders.selftrained_geometry import project, triangulate
from robot_rl.policies.encoders.selftrained_heat import HeatMaps, disturb, find_points, heat_loss
from robot_rl.policies.encoders.selftrained_labels import Places
from robot_rl.types import IOSpec, Metrics, Options, StateDict
from robot_rl.types.frames import Frames
from robot_rl.types.options import Count, NotNegative, Number, Positive, Rate, Whole

_FAR = 0.1  # metres per unit of a vector to a point
_TURN, _FINE_TURN = 0.3, 0.05  # radians per unit of a turn, and where its fine copy saturates
_SPACE = 0.03  # metres per unit of the loss in space
_TRAIL = 0.9  # of the running estimate's weight that is left after a step
_CHUNK = 256  # frames that are encoded at a time

Trail = tuple[Tensor, Tensor]
"""(N, S, 3) running estimate of what stands still [m], and (N, S) its weight."""


class SelfTrainedOptions(Options):
    """Of the encoder; null stands for a value that depends on the robot: on whether its tool turns, as for fitting."""

    first_steps: Count = 700
    """Steps of the first fit, after the demonstrations."""
    refit_every: Whole = 500
    """Updates between two fits on all successes so far; 0 = never."""
    refit_steps: Count | None = None
    """Steps of each; null: 300 where the tool turns, else 200."""
    freeze_after: Whole = 2500
    """Updates after which it stays as it is: every fit moves the features under the policy."""
    settle: Whole = 200
    """Updates of the method right after a fit, before anything else is driven or tried."""
    batch: Count = 32
    """Frames per step of a fit."""
    lr: Rate = 2e-3
    """Step size at the beginning of a fit; it falls to 0 as a cosine. Later fits take half."""
    shift: Whole = 6
    """Pictures are moved by up to so many pixels while it learns, and labels with them."""
    near: Positive | None = None
    """Metres over which the fine copy of a vector saturates; null: 0.004 where the tool turns, else 0.025."""
    space_weight: NotNegative | None = None
    """Of the error in space beside that in the pictures; null: 5 where the tool turns, else 0."""
    lift: Number | None = None
    """Metres that the goal lies above the tip at success, such as the mouth of a hole; null: what the world says, or
    0."""


class SelfTrained:
    """Sees named points where the tool has been in successes, and tells them as vectors from the tool.

    `see` finds each point in every picture and triangulates them through the cameras' calibration; `follow` keeps a
    running estimate of what stands still, which carries a policy through moments in which the hand hides it; `read`
    makes of both, the state and the tool what a method learns from. `fit` learns from all successes so far, without a
    label that a robot does not have: see `Places`.

    Args:
        options: of the encoder.
        io: interface with calibrated cameras, "tool" and "state".
        seed: of weights and draws.
        device: of the nets.

    Attributes:
        keys: what of a batch `read` needs.
        remembers: it does.
        io: what a method sees: "state" alone, the features.
        width: numbers that `see` and `follow` give of a frame, as one row.

    Raises:
        ValueError: no cameras, no calibration, or no pose of the tool; says what to do.

    Source: our design. Heat maps as in Tompson et al. (`HeatMaps`); points as what a policy sees as in Manuelli et al.,
    kPAM; labels from the robot's own hand as in Levine et al., End-to-End Training of Deep Visuomotor Policies (pose
    pretraining), but from successes instead of a held object.
    """

    keys = ("state", "tool", "sight")
    remembers = True

    def __init__(self, options: SelfTrainedOptions, io: IOSpec, *, seed: int = 0, device: str = "cpu") -> None:
        self.o, self._device = options, torch.device(device)
        keys = [key for key in io.obs if key.startswith("image.")]
        check_interface(io, keys)
        self._keys, self._cameras = keys, [io.calibration[key] for key in keys]
        grips = io.action_names[-1] == "gripper_opening"
        turns = "tip_dyaw" in io.action_names
        self.places = Places(grips, turns, options.lift or 0.0)
        self._opening = io.obs_names.index("opening") if grips else -1
        self._near = options.near or (0.004 if turns else 0.025)
        self._space = (5.0 if turns else 0.0) if options.space_weight is None else options.space_weight
        self._refit = options.refit_steps or (300 if turns else 200)
        count = len(self.places.names)
        self._generator = torch.Generator().manual_seed(seed)
        self._nets = nn.ModuleList([HeatMaps(count, self._generator) for _ in keys]).to(self._device)
        self._still = count - int(grips)
        self.width = 4 * count + 4 * self._still
        self.fits = 0
        """How often it was fitted."""
        self.io = replace(
            io,
            obs={"state": ((io.obs["state"][0][0] + self._features,), "float32")},
            obs_names=(*io.obs_names, *self._names()),
            obs_units={},
            calibration={},
            seen=None,
        )

    # ------------------------------------------------------------ seeing

    @torch.no_grad()
    def see(self, pictures: Mapping[str, object], tool: Tensor) -> tuple[Tensor, Tensor]:
        """Points in space.

        Args:
            pictures: camera key -> (B, H, W, 3) uint8.
            tool: (B, 4) pose of the tool.

        Returns:
            (B, P, 3) places [m], and (B, P) confidences in (0, 1]: that of the camera that is least sure.
        """
        found = [
            find_points(net(torch.as_tensor(pictures[key]).to(self._device)))
            for key, net in zip(self._keys, self._nets)
        ]
        pixels, mass = zip(*found)
        places = triangulate(self._cameras, tool, pixels, [share.square() for share in mass])
        return places, torch.stack(mass).amin(0)

    def follow(self, places: Tensor, sure: Tensor, trail: Trail | None) -> Trail:
        """The running estimate of what stands still, after one more look; None begins an episode."""
        now, weight = places[:, self.places.still], sure[:, self.places.still].square()
        if trail is None:
            return now, weight
        kept = _TRAIL * trail[1]
        total = kept + weight
        return (kept[..., None] * trail[0] + weight[..., None] * now) / total[..., None], total

    def look(self, obs: Mapping[str, object], trail: Trail | None) -> tuple[Tensor, Trail]:
        """(B, W) rows of what is seen now, and the running estimate after it; one of another batch is begun anew."""
        tool = torch.as_tensor(obs["tool"]).float()
        places, sure = self.see(obs, tool)
        trail = self.follow(places, sure, trail if trail is not None and len(trail[1]) == len(tool) else None)
        return self.row(places, sure, trail), trail

    def forget(self, trail: Trail, rows: Tensor) -> Trail:
        """The running estimate without that of these rows (B,) bool: their next look begins it."""
        return trail[0], torch.where(rows[:, None].to(trail[1].device), 0.0, trail[1])

    def due(self, updates: int) -> bool:
        """Whether a fit is due after so many updates."""
        every = self.o.refit_every
        return bool(every) and updates % every == 0 and updates <= self.o.freeze_after

    @property
    def settle(self) -> int:
        """Updates of the method after a fit."""
        return self.o.settle

    def row(self, places: Tensor, sure: Tensor, trail: Trail) -> Tensor:
        """(B, W) one row of what was seen."""
        return torch.cat([places.flatten(1), sure, trail[0].flatten(1), trail[1]], 1)

    def read(self, sight: Tensor, state: Tensor, tool: Tensor) -> Tensor:
        """What a method learns from.

        Args:
            sight: (B, W) rows of what was seen.
            state: (B, S) what the robot feels.
            tool: (B, 4) pose of the tool.

        Returns:
            (B, F): the state; vectors from the tip to the points as they look now, and to the running estimate of what
            stands still, in units of 10 cm and as a fine copy that saturates; turns likewise; logarithms of the
            confidences.
        """
        count, still = len(self.places.names), self._still
        places, sure, trail, _ = sight.split((3 * count, count, 3 * still, still), 1)
        now, later = places.unflatten(1, (count, 3)), trail.unflatten(1, (still, 3))
        parts, turns = [state], []
        goal = int(self.places.grips)
        for points in (now[:, : goal + 1], later[:, :1]):
            vector = (points - tool[:, None, :3]).flatten(1)
            parts += [(vector / _FAR).clamp(-5.0, 5.0), (vector / self._near).tanh()]
        if self.places.turns:
            for before, behind in ((now[:, goal + 1], now[:, goal + 2]), (later[:, 1], later[:, 2])):
                along = before - behind
                turns.append(_wrapped(torch.atan2(along[:, 1], along[:, 0]) - tool[:, 3])[:, None])
            turn = torch.cat(turns, 1)
            parts += [turn / _TURN, (turn / _FINE_TURN).tanh()]
        return torch.cat([*parts, 0.3 * sure.clamp_min(1e-2).log()], 1)

    @property
    def _features(self) -> int:
        return len(self._names())

    def _names(self) -> tuple[str, ...]:
        goal = [*(("object",) if self.places.grips else ()), "goal"]
        names = []
        for points in (goal, ["goal_mean"]):
            for kind in ("", "_fine"):
                names += [f"{point}{kind}_{axis}" for point in points for axis in "xyz"]
        if self.places.turns:
            names += ["turn", "turn_mean", "turn_fine", "turn_mean_fine"]
        return (*names, *(f"{name}_sure" for name in self.places.names))

    # ------------------------------------------------------------ learning

    def fit(self, frames: Frames) -> Metrics:
        """Learn from all successes among the frames; the first time longer. Without any, nothing changes.

        Returns:
            encoder/loss (mean of the last quarter of the steps), encoder/frames, encoder/error_mm: median distance of
            triangulated points from their labels.
        """
        numbers, places, known = self._labels(frames)
        if not len(numbers):
            return {}
        tool = torch.from_numpy(frames.read("tool", numbers)).float()
        marks = [project(camera, tool, places) for camera in self._cameras]
        steps = self._refit if self.fits else self.o.first_steps
        first = self.o.lr * (0.5 if self.fits else 1.0)
        optimiser = torch.optim.Adam(self._nets.parameters(), lr=first, weight_decay=0.0)
        losses = []
        for step in range(steps):
            for group in optimiser.param_groups:
                group["lr"] = first * 0.5 * (1.0 + math.cos(math.pi * step / steps))
            pick = torch.randint(len(numbers), (min(self.o.batch, len(numbers)),), generator=self._generator)
            loss, pixels, mass = torch.zeros((), device=self._device), [], []
            for key, net, (mark, inside) in zip(self._keys, self._nets, marks):
                pictures = torch.from_numpy(frames.read(key, numbers[pick.numpy()]))
                moved, shift = disturb(pictures, self.o.shift, self._generator)
                logits = net(moved.to(self._device))
                loss = loss + heat_loss(logits, mark[pick] + shift[:, None], inside[pick], known[pick])
                if self._space:
                    pixel, share = find_points(logits)
                    pixels.append(pixel - shift[:, None])
                    mass.append(share.detach().square())
            if self._space:
                found = triangulate(self._cameras, tool[pick], pixels, mass)
                far = smooth_l1_loss(found / _SPACE, places[pick] / _SPACE, reduction="none").mean(-1)
                loss = loss + self._space * (far * known[pick]).sum() / known[pick].sum().clamp_min(1.0)
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(self._nets.parameters(), 5.0)
            optimiser.step()
            losses.append(float(loss.detach()))
        self.fits += 1
        return {
            "encoder/loss": float(np.mean(losses[-max(steps // 4, 1) :])),
            "encoder/frames": float(len(numbers)),
            "encoder/error_mm": self._error(frames, numbers, places, known),
        }

    def encode(self, frames: Frames) -> None:
        """Look at the frames that are kept, in order, and write what was seen beside them.

        Where this fit has looked at them already it looks again only at runs in which one came without.
        """
        known = frames.encoded == self.fits
        for run in frames.runs():
            numbers = np.arange(run.first, run.last + 1)
            if known and not np.isnan(frames.read("sight", numbers)).any():
                continue
            places, sure = self._see_frames(frames, numbers)
            trail: Trail | None = None
            rows = []
            for i in range(len(numbers)):
                trail = self.follow(places[i : i + 1], sure[i : i + 1], trail)
                rows.append(self.row(places[i : i + 1], sure[i : i + 1], trail))
            frames.write(run.first, torch.cat(rows).numpy())
        frames.encoded, frames.unseen = self.fits, False

    def _see_frames(self, frames: Frames, numbers: np.ndarray) -> tuple[Tensor, Tensor]:
        """(n, P, 3) and (n, P) of frames (n,)."""
        places, sure = [], []
        for at in range(0, len(numbers), _CHUNK):
            some = numbers[at : at + _CHUNK]
            pictures = {key: torch.from_numpy(frames.read(key, some)) for key in self._keys}
            found = self.see(pictures, torch.from_numpy(frames.read("tool", some)).float())
            places.append(found[0])
            sure.append(found[1])
        return torch.cat(places), torch.cat(sure)

    def _labels(self, frames: Frames) -> tuple[np.ndarray, Tensor, Tensor]:
        """Numbers of the frames of successes (n,), where the points were (n, P, 3), and which are known (n, P)."""
        numbers, places, known = [np.zeros(0, np.int64)], [], []
        for run in frames.runs():
            if not run.success:
                continue
            some = np.arange(run.first, run.last + 1)
            opening = frames.read("state", some)[:, self._opening] if self.places.grips else None
            there, sure = self.places.label(frames.read("tool", some), opening)
            numbers.append(some)
            places.append(torch.from_numpy(there).float())
            known.append(torch.from_numpy(sure).float())
        if not places:
            return numbers[0], torch.zeros(0), torch.zeros(0)
        return np.concatenate(numbers), torch.cat(places), torch.cat(known)

    def _error(self, frames: Frames, numbers: np.ndarray, places: Tensor, known: Tensor) -> float:
        some = np.linspace(0, len(numbers) - 1, min(len(numbers), 200)).astype(np.int64)
        found, _ = self._see_frames(frames, numbers[some])
        far = (found - places[some]).norm(dim=-1)[known[some] > 0.0]
        return float(far.median()) * 1e3

    def state_dict(self) -> StateDict:
        """Weights, generator and count."""
        weights = {key: value.detach().clone() for key, value in self._nets.state_dict().items()}
        return {"nets": weights, "generator": self._generator.get_state(), "fits": self.fits}

    def load_state_dict(self, state: StateDict) -> None:
        """Copy in place."""
        self.load_weights(state["nets"])
        self._generator.set_state(state["generator"].cpu())
        self.fits = int(state["fits"])

    def load_weights(self, weights: dict[str, Tensor]) -> None:
        """Take the nets' weights alone: to act, not to go on learning."""
        self._nets.load_state_dict(weights)


def check_interface(io: IOSpec, keys: list[str]) -> None:
    """Refuse an interface that names no place in a picture.

    Raises:
        ValueError: says what is missing and how to get it.
    """
    if not keys:
        raise ValueError("encoder=selftrained learns from pictures: add cameras=own, or a list such as [front,side]")
    blind = [key.removeprefix("image.") for key in keys if key not in io.calibration]
    if blind:
        raise ValueError(
            f"encoder=selftrained needs to know where a point falls in a picture, and nothing says that of the cameras "
            f"{blind}: their calibration is unknown. Worlds of ours with action 'ee' tell it (env=pick, insert, reach),"
            " and the card of a robot once robot-rl robot calibrate has found its cameras"
        )
    if "tool" not in io.obs or "state" not in io.obs:
        raise ValueError(
            "encoder=selftrained learns from where the tool has been, and this environment does not observe its tool "
            "in metres; choose a world whose actions move the tip (env.world.action=ee), and cameras=own"
        )
    if io.action_names[-1] == "gripper_opening" and "opening" not in io.obs_names:
        raise ValueError(
            "encoder=selftrained tells by the opening of the fingers where an object was; add opening to proprio"
        )


def _wrapped(angle: Tensor) -> Tensor:
    """An angle in [-pi, pi)."""
    return torch.remainder(angle + math.pi, 2.0 * math.pi) - math.pi
