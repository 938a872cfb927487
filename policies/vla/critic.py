"""A small progress critic: how much of the remaining work was done between two pictures, and is the goal met.

Labels are shares of the remaining work under any goal of the scene, failures included; pair deltas are read out
antisymmetrically, so that a frame compared with itself gives exactly 0 and a pair and its reversal cancel. One scalar
per frame (minus log remaining work) is trained beside the pair head: its differences are free of gain along any loop of
frames, and it is the absolute value.

Source: pair deltas, done and the success-only recipe: Zhai et al., VLAC, arXiv 2509.15937. Categorical targets:
Farebrother et al., Stop Regressing, 2024. Remaining work as label, goal on feature maps, one scalar per frame: ours.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from robot_rl.policies.nets.critic_scores import Platt, fit_platt
from robot_rl.policies.nets.progress import CLIP, add_up, log_delta, share_of_log
from robot_rl.policies.nets.progress_net import BINS, CriticNet
from robot_rl.policies.nets.reference import RefClip
from robot_rl.policies.nets.value_heads import hl_gauss_head
from robot_rl.policies.vla.critic_clips import Clips, ClipSampler, DrawOptions, FrameBatch
from robot_rl.policies.vla.critic_report import CriticReport, evaluate
from robot_rl.policies.vla.interface import (
    CriticMeta,
    CriticOutput,
    MomentCritic,
    Trajectory,
    checked_goal,
    checked_images,
    checked_pair,
    shows_something,
    stride_frames,
)
from robot_rl.types import Array, Metrics, StateDict
from robot_rl.types.options import Count, NotNegative, Pixels, Rate, Share

_EDGE = 1.0 + 1.0 / (BINS - 1)  # centres at -1, -.95, ..., 1
READOUTS = ("pairwise", "siamese")


@dataclass(frozen=True)
class ReadFrames:
    """Frames read under one goal each: everything that pairs of them need. n is the number of frames."""

    reading: Tensor  # (n, width)
    s: Tensor  # (n,) minus log of remaining work over the reference work
    done: Tensor  # (n,) logits
    images: Tensor  # (n, 1, H, W, 3) uint8


class TinyCritic(MomentCritic):
    """The trained network behind the contract `ProgressCritic`.

    Args:
        net: the network.
        readout: "pairwise" (antisymmetrised pair head) or "siamese" (difference of one scalar per frame).
        platt: calibration of done.
        gap_s: seconds between the frames of training pairs, shortest and longest.
        name: for reports.
        anchor: how far each frame of a trajectory pulls its value towards the absolute one; see `add_up`.

    Raises:
        ValueError: unknown read-out.
    """

    def __init__(
        self,
        net: CriticNet,
        *,
        readout: str = "pairwise",
        platt: Platt | None = None,
        gap_s: tuple[float, float] = (0.2, 5.0),
        name: str = "tiny_critic",
        anchor: float = 0.2,
    ) -> None:
        if readout not in READOUTS:
            raise ValueError(f"readout is '{readout}', expected one of {', '.join(READOUTS)}")
        self.net, self.readout, self.platt, self.anchor = net, readout, platt or Platt(), anchor
        kind = "pairwise_head" if readout == "pairwise" else "siamese"
        self.meta = CriticMeta(name, kind, net.size, delta_gap_s=gap_s)
        self._centres = hl_gauss_head(-_EDGE, _EDGE, BINS, sigma_ratio=1.5).centres

    @torch.no_grad()
    def __call__(self, images_t0: Array, images_t1: Array, goal: Sequence[str]) -> CriticOutput:
        """See `ProgressCritic`. An empty picture gives valid=False; a pair of equal pictures delta 0 exactly."""
        first, second = checked_pair(images_t0, images_t1, self.meta.image_size)
        texts = self._check_goal(goal, len(first))
        if not texts:
            nothing = torch.zeros(0)
            return CriticOutput.of(nothing, nothing, nothing.bool(), value=nothing)
        both = self.moments(torch.cat([first, second]), [*texts, *texts])
        count = len(first)
        before, after = _rows(both, slice(0, count)), _rows(both, slice(count, None))
        return self.compare(before, after)

    @torch.no_grad()
    def moments(self, images: Array, goal: Sequence[str]) -> ReadFrames:
        """Read n frames (n, H, W, 3), each under its sentence, in blocks that keep memory small."""
        frames = checked_images(images, self.meta.image_size)
        texts = self._check_goal(goal, len(frames))
        device = next(self.net.parameters()).device
        unique = list(dict.fromkeys(texts))
        sentences = self._codes(unique)
        which = torch.tensor([unique.index(text) for text in texts], device=device)
        readings = [
            self.net.frames(frames[i : i + 256, 0].to(device), sentences[which[i : i + 256]])
            for i in range(0, len(frames), 256)
        ]
        reading = torch.cat(readings)
        s, done = self.net.moments(reading)
        return ReadFrames(reading.cpu(), s.cpu(), done.cpu(), frames.cpu())

    @torch.no_grad()
    def compare(self, before: ReadFrames, after: ReadFrames) -> CriticOutput:
        """Pairs of frames that were read before, row by row."""
        if self.readout == "siamese":
            dlogw = after.s - before.s
        else:
            device = next(self.net.parameters()).device
            a, b = before.reading.to(device), after.reading.to(device)
            share = 0.5 * (self._mean(self.net.pairs(a, b)) - self._mean(self.net.pairs(b, a))).cpu()
            dlogw = torch.as_tensor(log_delta(share.clamp(-1 + CLIP, 1 - CLIP).numpy()), dtype=torch.float32)
        same = (before.images == after.images).flatten(1).all(dim=1)
        # 0 exactly, whatever the rounding of a matrix product
        dlogw = torch.where(same, torch.zeros_like(dlogw), dlogw)
        valid = shows_something(before.images) & shows_something(after.images)
        return CriticOutput.of(
            dlogw, self._calibrate(after.done), valid, value=1.0 - torch.exp(-after.s).clamp(max=2.0)
        )

    def trajectory(self, frames: Array, goal: str, *, stride: int = 1) -> Trajectory:
        """See `ProgressCritic`."""
        index, taken = stride_frames(frames, stride)
        return self.follow(self.moments(taken, [goal] * len(index)), index)

    def follow(self, moments: ReadFrames, index: np.ndarray | None = None) -> Trajectory:
        """`trajectory` of frames that were read before; backwards by giving their rows in that order."""
        out = self.compare(_rows(moments, slice(0, -1)), _rows(moments, slice(1, None)))
        steps = torch.nan_to_num(out.dlogw).numpy().astype(np.float64)
        since = (moments.s - moments.s[0]).numpy().astype(np.float64)
        u, values = add_up(steps, since, anchor=self.anchor)
        absolute = 1.0 - np.exp(-since)
        valid = out.valid.numpy()
        shown = shows_something(moments.images)
        done = torch.where(shown, self._calibrate(moments.done), torch.zeros(len(shown))).numpy()
        place = np.arange(len(values)) if index is None else index
        return Trajectory(share_of_log(steps), u, values, done, place, np.maximum(absolute, -1.0), valid)

    def with_reference(self, reference: RefClip | None) -> TinyCritic:
        """This critic with a goal that is shown; it knows none.

        Raises:
            ValueError: there is a reference.
        """
        if reference is not None:
            raise ValueError(
                f"{self.meta.name} was trained on sentences alone and cannot be shown a goal; train one that can: "
                "robot-rl critic train data=<clips> critic=in_context"
            )
        return self

    def _check_goal(self, goal: Sequence[str], count: int) -> list[str]:
        return checked_goal(goal, count)

    def _codes(self, texts: list[str]) -> Tensor:
        """(n, 64) of n sentences."""
        device = next(self.net.parameters()).device
        ids, length = self.net.tokens(texts)
        return self.net.sentence(torch.as_tensor(ids, device=device), torch.as_tensor(length, device=device))

    def _calibrate(self, logit: Tensor) -> Tensor:
        return torch.as_tensor(self.platt(logit.numpy()), dtype=torch.float32)

    def _mean(self, logits: Tensor) -> Tensor:
        return logits.softmax(-1) @ self._centres.to(logits.device)


def _rows(moments: ReadFrames, rows: slice) -> ReadFrames:
    return ReadFrames(moments.reading[rows], moments.s[rows], moments.done[rows], moments.images[rows])


class CriticTraining(DrawOptions):
    """What every critic is trained with."""

    size: Pixels = (48, 48)
    """(height, width) of the pictures."""
    steps: Count = 2500
    """Batches of the whole training."""
    lr: Rate = 2e-3
    """Peak of the cycle of the step size."""
    weight_decay: NotNegative = 1e-4
    """Of AdamW."""
    width: Count = 128
    """Of the reading."""
    readout: Literal["pairwise", "siamese"] = "pairwise"
    """Of the finished critic; see `TinyCritic`."""
    anchor: Share = 0.2
    """Of the finished critic; see `TinyCritic`."""
    done_weight: NotNegative = 0.5
    """w_done."""
    scalar_weight: NotNegative = 1.0
    """w_scalar."""


class TinyCriticOptions(CriticTraining):
    """What a critic of sentences is trained with."""

    labels: Literal["work", "vlac"] = "work"
    """Remaining work of the simulator, or time, as published; see `ClipSampler`."""
    successes_only: bool = False
    """Leave failures out."""
    conditioning: Literal["maps", "pooled"] = "maps"
    """Where the sentence meets the picture; see `CriticNet`."""


OptionsT = TypeVar("OptionsT", bound=CriticTraining)
NetT = TypeVar("NetT", bound=CriticNet)
BatchT = TypeVar("BatchT", bound=FrameBatch)


class CriticTrainer(ABC, Generic[OptionsT, NetT, BatchT]):
    """Trains a `CriticNet` on labelled clips.

    L = L_pair + w_done L_done + w_scalar (Huber of s + Huber of its differences). L_pair is the cross-entropy of the
    share over 41 centres on [-1, 1] with Gaussian targets (sigma .075); L_done weighs met and unmet frames of a batch
    alike. AdamW, one cycle of the learning rate.

    Args:
        options: of the training.
        seed: of weights and draws.
        device: for the network.
    """

    def __init__(self, options: OptionsT, *, seed: int = 0, device: str = "cpu") -> None:
        self.o, self.seed, self.device, self.steps, self.done_steps = options, seed, device, options.steps, 0
        torch.manual_seed(seed)
        self.net = self.network().to(device)
        self._head = hl_gauss_head(-_EDGE, _EDGE, BINS, sigma_ratio=1.5, device=device)
        self._optimizer = torch.optim.AdamW(self.net.parameters(), lr=options.lr, weight_decay=options.weight_decay)
        self._schedule = torch.optim.lr_scheduler.OneCycleLR(
            self._optimizer, max_lr=options.lr, total_steps=max(options.steps, 2), pct_start=0.15, div_factor=10.0
        )
        self.platt = Platt()
        self.gap_s = (0.2, 5.0)

    @abstractmethod
    def network(self) -> NetT:
        """What is trained, with its first weights."""

    @abstractmethod
    def sampler(self, clips: Clips) -> Iterator[BatchT]:
        """Batches of these clips by the options; the critic remembers the gaps between their frames."""

    @abstractmethod
    def goals(self, batch: BatchT) -> tuple[Tensor, dict[str, tuple[float, Tensor]]]:
        """Codes (I G, 64) of a batch's goals, and losses of their own: name -> (weight, value)."""

    @abstractmethod
    def calibrate(self, clips: Clips) -> Platt:
        """Fit slope and bias of done on clips that no update saw."""

    @abstractmethod
    def critic(self, readout: str | None = None) -> TinyCritic:
        """The critic with the present weights (shared, not copied)."""

    def update(self, batch: BatchT) -> Metrics:
        """One step on one batch.

        Returns:
            loss and its parts; "pair_mae" of the share, "done_accuracy".
        """
        net, device = self.net, self.device
        clips, count = batch.images.shape[:2]
        items = len(batch.ids)  # a clip under one goal each
        codes, aside = self.goals(batch)
        sentence = codes.view(clips, items // clips, -1)
        reading = net.under(batch.images.flatten(0, 1).to(device), sentence.repeat_interleave(count, dim=0))
        reading = reading.view(clips, count, items // clips, -1).transpose(1, 2).reshape(items * count, -1)
        s, done = (x.view(items, count) for x in net.moments(reading))
        reading = reading.view(items, count, -1)
        first = reading[:, :, None].expand(-1, -1, count, -1)
        logits = net.pairs(first.flatten(0, 2), first.transpose(1, 2).flatten(0, 2))
        keep = batch.pair_mask.flatten().to(device)
        share = batch.share.flatten().to(device)[keep]
        pair = self._head.loss(logits[keep], share)

        steps = torch.sign(share) * -torch.log1p(-share.abs())
        difference = (s[:, None, :] - s[:, :, None]).flatten()[keep]
        scalar = F.huber_loss(difference, steps)
        known = batch.log_mask.to(device)
        if known.any():
            scalar = scalar + F.huber_loss(s[known], -batch.log_work.to(device)[known])

        label, seen = batch.done.to(device), batch.done_mask.to(device)
        each = F.binary_cross_entropy_with_logits(done, label, reduction="none")
        finished = _balance(each, label > 0.5, seen)

        loss = pair + self.o.done_weight * finished + self.o.scalar_weight * scalar
        for weight, value in aside.values():
            loss = loss + weight * value
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        self._optimizer.step()
        if self.done_steps < self.steps - 1:
            self._schedule.step()
        self.done_steps += 1
        with torch.no_grad():
            error = (self._head.value(logits[keep]) - share).abs().mean()
            right = ((done > 0) == (label > 0.5))[seen].float().mean()
        return {
            "loss": float(loss.detach()),
            "pair_loss": float(pair.detach()),
            "done_loss": float(finished.detach()),
            "scalar_loss": float(scalar.detach()),
            "pair_mae": float(error),
            "done_accuracy": float(right),
            **{name: float(value.detach()) for name, (_, value) in aside.items()},
        }

    def clips(self, arrays: Mapping[str, np.ndarray], facts: Mapping[str, object]) -> Clips:
        """Arrays and facts of a generator as this learner's data; see `Clips.of`."""
        return Clips.of(arrays, facts)

    def state_dict(self) -> StateDict:
        """Tensors and plain values; exact continuation."""
        return {
            "net": self.net.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "schedule": {k: v for k, v in self._schedule.state_dict().items() if not callable(v)},
            "steps": self.done_steps,
            "platt": [self.platt.slope, self.platt.bias],
            "gap_s": list(self.gap_s),
        }

    def load_state_dict(self, state: StateDict) -> None:
        """Continue exactly."""
        self.net.load_state_dict(state["net"])
        self._optimizer.load_state_dict(state["optimizer"])
        self._schedule.load_state_dict(state["schedule"])
        self.done_steps = int(state["steps"])
        self.platt = Platt(*state["platt"])
        self.gap_s = (float(state["gap_s"][0]), float(state["gap_s"][1]))


class CriticLearner(CriticTrainer[TinyCriticOptions, CriticNet, FrameBatch]):
    """A critic of sentences; see `CriticTrainer`."""

    def __init__(self, options: TinyCriticOptions, *, seed: int = 0, device: str = "cpu") -> None:
        super().__init__(options, seed=seed, device=device)

    def network(self) -> CriticNet:
        """See `CriticTrainer`."""
        return CriticNet(self.o.size, width=self.o.width, conditioning=self.o.conditioning)

    def sampler(self, clips: Clips) -> ClipSampler:
        """See `CriticTrainer`."""
        self.gap_s, o = clips.gap_s, self.o
        return ClipSampler(
            clips, o, labels=o.labels, successes_only=o.successes_only, words=self.net.tokens.size, seed=self.seed
        )

    def goals(self, batch: FrameBatch) -> tuple[Tensor, dict[str, tuple[float, Tensor]]]:
        """See `CriticTrainer`; a sentence has no loss of its own."""
        return self.net.sentence(batch.ids.to(self.device), batch.length.to(self.device)), {}

    def calibrate(self, clips: Clips) -> Platt:
        """Fit slope and bias of done on clips that no update saw.

        With labels "work": every frame under the clip's goal and two others. With "vlac", which knows neither: the
        early and late frames of successes, by time.
        """
        critic = self.critic()
        logit, label = [], []
        by_time = self.o.labels == "vlac"
        if by_time:
            clips = clips.part(np.flatnonzero(clips.meets_goal()))
        owner = np.repeat(np.arange(len(clips)), np.diff(clips.start))
        for shift in (0,) if by_time else (0, 1, 2):
            goal = (clips.goal[owner] + shift) % len(clips.phrasings)
            texts = [clips.phrasings[g][int(i) % len(clips.phrasings[g])] for g, i in zip(goal, owner)]
            logit.append(critic.moments(clips.frames, texts).done.numpy())
            label.append(clips.done[np.arange(len(goal)), goal])
        scores, met = np.concatenate(logit), np.concatenate(label)
        if by_time:
            share = (np.arange(len(owner)) - clips.start[owner]) / (np.diff(clips.start)[owner] - 1)
            known = (share < 0.8) | (share > 0.95)
            scores, met = scores[known], (share > 0.95)[known]
        self.platt = fit_platt(scores, met)
        return self.platt

    def evaluate(
        self, clips: Clips, *, phrasing: str = "held_out", on_clip: Callable[[int], None] | None = None
    ) -> CriticReport:
        """The report of `critic_report.evaluate` on the present weights."""
        return evaluate(self.critic(), clips, phrasing=phrasing, on_clip=on_clip)

    def critic(self, readout: str | None = None) -> TinyCritic:
        """The critic with the present weights (shared, not copied)."""
        return TinyCritic(
            self.net, readout=readout or self.o.readout, platt=self.platt, gap_s=self.gap_s, anchor=self.o.anchor
        )


def _balance(loss: Tensor, positive: Tensor, mask: Tensor) -> Tensor:
    """Mean loss with both classes of equal total weight n / 2; a class alone counts as it is."""
    good, bad = loss[mask & positive], loss[mask & ~positive]
    if good.numel() == 0 or bad.numel() == 0:
        return loss[mask].mean() if mask.any() else loss.sum() * 0.0
    return 0.5 * (good.mean() + bad.mean())
