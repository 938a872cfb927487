"""What encoders of named points share: found in pictures, triangulated, followed, told as vectors from the tool."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from robot_rl.policies.encoders.points_labels import Places
from robot_rl.policies.nets.heat_maps import HeatMaps, find_points
from robot_rl.policies.nets.pinhole import triangulate
from robot_rl.policies.nets.point_weights import Weights
from robot_rl.types import IOSpec, Metrics, Options, StateDict
from robot_rl.types.frames import Frames
from robot_rl.types.options import Positive

_FAR = 0.1  # metres per unit of a vector to a point
_TURN, _FINE_TURN = 0.3, 0.05  # radians per unit of a turn, and where its fine copy saturates
_TRAIL = 0.9  # of the running estimate's weight that is left after a step
_LEAST = 1e-2  # confidence that counts for every look: powers of it stay numbers
_CHUNK = 256  # frames that are encoded at a time

Trail = tuple[Tensor, Tensor]
"""(N, S, 3) running estimate of what stands still [m], and (N, S) its weight."""


class PointOptions(Options):
    """Of encoders of named points."""

    near: Positive | None = None
    """Metres over which the fine copy of a vector saturates; null: 0.004 where the tool turns, else 0.025."""


class PointEncoder:
    """Sees named points, and tells them as vectors from the tool.

    `see` finds each point in every picture and triangulates them through the cameras' calibration; `follow` keeps a
    running estimate of what stands still, which carries a policy through moments in which the hand hides it; `read`
    makes of both, the state and the tool what a method learns from. Where the nets come from, and whether they learn,
    is up to the encoder.

    Args:
        io: interface with calibrated cameras, "tool" and "state".
        places: the points.
        near: see `PointOptions`.
        nets: of each camera, in the order of the interface.
        device: of the nets.

    Attributes:
        keys: what of a batch `read` needs.
        remembers: it does.
        settle: updates of the method after a fit.
        power: of the confidence, which weighs a look in the running estimate.
        io: what a method sees: "state" alone, the features.
        width: numbers that `see` and `follow` give of a frame, as one row.
        fits: how often it was fitted.

    Source: our design. Heat maps as in Tompson et al. (`HeatMaps`); points as what a policy sees as in Manuelli et al.,
    kPAM.
    """

    keys = ("state", "tool", "sight")
    remembers = True
    settle = 0
    power = 2.0

    def __init__(
        self, io: IOSpec, places: Places, near: float | None, nets: list[HeatMaps], *, device: str = "cpu"
    ) -> None:
        self._device = torch.device(device)
        self._keys = picture_keys(io)
        self._cameras = [io.calibration[key] for key in self._keys]
        self.places = places
        self._near = near or (0.004 if places.turns else 0.025)
        count = len(places.names)
        self._nets = nn.ModuleList(nets).to(self._device)
        self._still = count - int(places.grips)
        self.width = 4 * count + 4 * self._still
        self.fits = 0
        self.io = replace(
            io,
            obs={"state": ((io.obs["state"][0][0] + self._features,), "float32")},
            obs_names=(*io.obs_names, *self._names()),
            obs_units={},
            calibration={},
            seen=None,
        )

    def due(self, updates: int) -> bool:
        """Whether a fit is due after so many updates."""
        return False

    def fit(self, frames: Frames) -> Metrics:
        """Learn from frames; one that does not changes nothing."""
        return {}

    # ------------------------------------------------------------ seeing

    @torch.no_grad()
    def see(self, pictures: Mapping[str, object], tool: Tensor) -> tuple[Tensor, Tensor]:
        """Points in space.

        Args:
            pictures: camera key -> (B, H, W, 3) uint8.
            tool: (B, 4) pose of the tool.

        Returns:
            (B, P, 3) places [m], and (B, P) confidences in (0, 1]: that of the camera that is least sure, as far as
            `believe` leaves it.
        """
        found = [
            find_points(net(torch.as_tensor(pictures[key]).to(self._device)).to(tool.device))
            for key, net in zip(self._keys, self._nets)
        ]
        pixels, mass = zip(*found)
        places = triangulate(self._cameras, tool, pixels, [share.square() for share in mass])
        return places, self.believe(torch.stack(mass).amin(0), places, pixels, tool)

    def believe(self, sure: Tensor, places: Tensor, pixels: Sequence[Tensor], tool: Tensor) -> Tensor:
        """(B, P) confidences after a second thought; here as they are.

        Args:
            sure: (B, P) of the camera that is least sure.
            places: (B, P, 3) of points [m].
            pixels: of each camera (B, P, 2), from which they come.
            tool: (B, 4) pose of the tool.
        """
        return sure

    def follow(self, places: Tensor, sure: Tensor, trail: Trail | None) -> Trail:
        """The running estimate of what stands still, after one more look; None begins an episode."""
        now, weight = places[:, self.places.still], sure[:, self.places.still].clamp_min(_LEAST).pow(self.power)
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
                turns.append(_wrap(torch.atan2(along[:, 1], along[:, 0]) - tool[:, 3])[:, None])
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

    # ------------------------------------------------------------ frames

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

    def state_dict(self) -> StateDict:
        """Weights, and how often they were fitted."""
        weights = {key: value.detach().clone() for key, value in self._nets.state_dict().items()}
        return {"nets": weights, "fits": self.fits}

    def load_state_dict(self, state: StateDict) -> None:
        """Copy in place."""
        self.load_weights(state["nets"])
        self.fits = int(state["fits"])

    def load_weights(self, weights: dict[str, Tensor]) -> None:
        """Take the nets' weights alone: to act, not to go on learning."""
        self._nets.load_state_dict(weights)


def picture_keys(io: IOSpec) -> list[str]:
    """Keys of an interface's pictures."""
    return [key for key in io.obs if key.startswith("image.")]


def places_of(io: IOSpec, lift: float = 0.0) -> Places:
    """Which points matter to a robot, by what it can do.

    Args:
        io: its interface.
        lift: see `Places`.
    """
    return Places(io.action_names[-1] == "gripper_opening", "tip_dyaw" in io.action_names, lift)


def starting_nets(path: Path, io: IOSpec, places: Places) -> list[HeatMaps]:
    """Nets of a file, one for each camera of an interface, in its order.

    Raises:
        ValueError: none for such a camera or size of picture, or a file that is none of weights; says what to do.
    """
    weights, kind = Weights(path), kind_of(places.turns)
    for key in picture_keys(io):
        weights.check_size(key, io.obs[key][0])
    return [weights.net(f"{kind}.{io.calibration[key].mount}", places.names) for key in picture_keys(io)]


def kind_of(turns: bool) -> str:
    """What a net looks for: "hole" where the tool turns, "ball" elsewhere."""
    return "hole" if turns else "ball"


def check_interface(io: IOSpec, name: str) -> None:
    """Refuse an interface that names no place in a picture.

    Args:
        io: the interface.
        name: of the encoder that asks.

    Raises:
        ValueError: says what is missing and how to get it.
    """
    keys = picture_keys(io)
    if not keys:
        raise ValueError(f"encoder={name} looks at pictures: add cameras=own, or a list such as [front,side]")
    blind = [key.removeprefix("image.") for key in keys if key not in io.calibration]
    if blind:
        raise ValueError(
            f"encoder={name} needs to know where a point falls in a picture, and nothing says that of the cameras "
            f"{blind}: their calibration is unknown. Worlds of ours with action 'ee' tell it (env=pick, insert, reach),"
            " and the card of a robot once robot-rl robot calibrate has found its cameras"
        )
    if "tool" not in io.obs or "state" not in io.obs:
        raise ValueError(
            f"encoder={name} tells where things are from the tool, and this environment does not observe its tool "
            "in metres; choose a world whose actions move the tip (env.world.action=ee), and cameras=own"
        )


def _wrap(angle: Tensor) -> Tensor:
    """An angle in [-pi, pi)."""
    return torch.remainder(angle + math.pi, 2.0 * math.pi) - math.pi
