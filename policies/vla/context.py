"""A progress critic whose goal may be shown: a reference of the task, done once in another scene, beside the sentence
or instead of it.

The network reads references with the trunk that it reads everything with (`ContextNet`); training gives each goal by a
sentence, by a reference, by both, or by two that differ, which asks for both (`ContextSampler`). The code of a
reference is drawn to that of its task's sentences besides: what was learned of words is not learned again of pictures.

Source: in-context references: Zhai et al., VLAC, arXiv 2509.15937. Codes on feature maps, the aligning loss, both asked
where they differ: ours.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from robot_rl.policies.nets.critic_scores import Platt, fit_platt
from robot_rl.policies.nets.reference import BOTH, SHOWN, TOLD, RefClip
from robot_rl.policies.vla.context_clips import ContextBatch, ContextSampler, ShowOptions
from robot_rl.policies.vla.context_net import TEXT, ContextNet
from robot_rl.policies.vla.context_report import ContextReport, evaluate
from robot_rl.policies.vla.critic import Clips, CriticTrainer, CriticTraining, ReadFrames, TinyCritic
from robot_rl.policies.vla.interface import checked_goal
from robot_rl.types import Array, StateDict
from robot_rl.types.options import NotNegative


class ContextCritic(TinyCritic):
    """`TinyCritic` that can be shown a goal. Without a reference it answers to sentences as that does.

    Args:
        net: the network.
        platts: calibration of done where the goal is told, shown and both.
        options: of `TinyCritic`.

    Attributes:
        reference: what it is shown, or None; see `with_reference`.
    """

    net: ContextNet

    def __init__(self, net: ContextNet, *, platts: Sequence[Platt] = (), **options: object) -> None:
        super().__init__(net, **{"name": "context_critic", **options})
        self.platts = tuple(platts) or (Platt(),) * 3
        self.meta = replace(self.meta, goal_kinds=("text", "image"))
        self.reference: RefClip | None = None
        self._shown = torch.zeros(1, TEXT)

    @torch.no_grad()
    def with_reference(self, reference: RefClip | None) -> ContextCritic:
        """This critic with another reference, or none; the network is shared, and read once with its present weights.

        With a reference, an empty sentence means that the reference alone says the goal.

        Raises:
            TypeError: pictures are not uint8.
            ValueError: a reference that cannot be used; see `RefClip.check`.
        """
        made = ContextCritic(
            self.net, platts=self.platts, readout=self.readout, gap_s=self.meta.delta_gap_s, name=self.meta.name,
            anchor=self.anchor,
        )  # fmt: skip
        if reference is not None:
            reference.check(self.meta.image_size)
            device = next(self.net.parameters()).device
            frames = torch.as_tensor(np.ascontiguousarray(reference.frames), device=device)[None]
            progress = torch.as_tensor(np.asarray(reference.progress), dtype=torch.float32, device=device)[None]
            made.reference = reference
            made._shown = self.net.encode_reference(frames, progress, torch.ones_like(progress, dtype=torch.bool))
        return made

    @torch.no_grad()
    def moments(self, images: Array, goal: Sequence[str]) -> ReadFrames:
        """See `TinyCritic.moments`; the logits of done are calibrated already, by how each goal is given."""
        read = super().moments(images, goal)
        platts = [self.platts[how] for how in self._how(self._check_goal(goal, len(read.done)))]
        slope = torch.tensor([platt.slope for platt in platts])
        bias = torch.tensor([platt.bias for platt in platts])
        return replace(read, done=(read.done * slope + bias).to(read.done.dtype))

    def _how(self, texts: list[str]) -> list[int]:
        if self.reference is None:
            return [TOLD] * len(texts)
        return [BOTH if text else SHOWN for text in texts]

    def _check_goal(self, goal: Sequence[str], count: int) -> list[str]:
        if self.reference is None or isinstance(goal, str):
            return checked_goal(goal, count)
        filled = checked_goal([text.strip() or "-" for text in goal], count)
        return [text if given.strip() else "" for text, given in zip(filled, goal)]

    def _codes(self, texts: list[str]) -> Tensor:
        told = super()._codes([text or "-" for text in texts])
        how = torch.tensor(self._how(texts), device=told.device)
        return self.net.goal(told, self._shown.to(told.device).expand(len(texts), -1), how)


class ContextCriticOptions(CriticTraining, ShowOptions):
    """What a critic that can be shown its goal is trained with."""

    align_weight: NotNegative = 0.5
    """w_align."""


class ContextLearner(CriticTrainer[ContextCriticOptions, ContextNet, ContextBatch]):
    """A critic whose goals are told, shown or both: the losses of `CriticTrainer`, and one that aligns codes.

    L_align = |code of a reference - mean code of its goal's sentences in the batch|^2 over the spread of these means,
    with no gradient to the sentences, is added with weight w_align. Its metric "align_loss" is 1 for codes that do not
    know the goal.
    """

    def __init__(self, options: ContextCriticOptions, *, seed: int = 0, device: str = "cpu") -> None:
        super().__init__(options, seed=seed, device=device)
        self.platts = (Platt(),) * 3

    def network(self) -> ContextNet:
        """See `CriticTrainer`."""
        return ContextNet(self.o.size, width=self.o.width)

    def sampler(self, clips: Clips) -> ContextSampler:
        """See `CriticTrainer`."""
        self.gap_s = clips.gap_s
        return ContextSampler(clips, self.o, words=self.net.tokens.size, seed=self.seed)

    def goals(self, batch: ContextBatch) -> tuple[Tensor, dict[str, tuple[float, Tensor]]]:
        """See `CriticTrainer`."""
        told = self.net.sentence(batch.ids.to(self.device), batch.length.to(self.device))
        device = told.device
        shown = self.net.encode_reference(batch.shown.to(device), batch.progress.to(device), batch.there.to(device))
        codes = self.net.goal(told, shown[batch.which.to(device)], batch.how.to(device))
        said, shows = batch.goal.to(device), batch.shows.to(device)
        names = torch.unique(said)
        member = (said[None] == names[:, None]).to(told.dtype)
        means = (member @ told).detach() / member.sum(dim=1, keepdim=True)
        row = (shows[:, None] == names[None]).to(told.dtype)
        known = row.sum(dim=1) > 0
        if len(names) < 2 or not known.any():
            return codes, {"align_loss": (self.o.align_weight, shown.sum() * 0.0)}
        error = (shown - row @ means)[known].square().mean()
        return codes, {"align_loss": (self.o.align_weight, error / (means.var(dim=0, correction=0).mean() + 1e-4))}

    def calibrate(self, clips: Clips) -> Platt:
        """Fit done where the goal is told, shown and both, each on every frame under the clip's goal and two others.

        References come from the same held-out clips. What there is no reference for keeps the calibration of sentences.
        """
        critic = ContextCritic(self.net, readout=self.o.readout)
        length = self.o.frames_shown
        pool = clips.showing(length)
        logits, labels = ([[], [], []] for _ in range(2))
        for row in range(len(clips)):
            part = slice(int(clips.start[row]), int(clips.start[row + 1]))
            frames = clips.frames[part]
            for shift in (0, 1, 2):
                goal = int((clips.goal[row] + shift) % len(clips.phrasings))
                text = clips.phrasings[goal][row % len(clips.phrasings[goal])]
                asked = [(TOLD, critic, text)]
                others = pool[goal][pool[goal] != row]
                if len(others):
                    judge = critic.with_reference(clips.reference(int(others[row % len(others)]), length))
                    asked += [(SHOWN, judge, ""), (BOTH, judge, text)]
                for how, judge, said in asked:
                    logits[how].append(judge.moments(frames, [said] * len(frames)).done.numpy())
                    labels[how].append(clips.done[part, goal])
        told = fit_platt(np.concatenate(logits[TOLD]), np.concatenate(labels[TOLD]))
        self.platts = tuple(
            fit_platt(np.concatenate(a), np.concatenate(b)) if len(a) and np.concatenate(b).any() else told
            for a, b in zip(logits, labels)
        )
        self.platt = told
        return told

    def evaluate(
        self, clips: Clips, *, phrasing: str = "held_out", on_clip: Callable[[int], None] | None = None
    ) -> ContextReport:
        """The report of `context_report.evaluate` on the present weights."""
        return evaluate(self.critic(), clips, phrasing=phrasing, frames=self.o.frames_shown, on_clip=on_clip)

    def critic(self, readout: str | None = None) -> ContextCritic:
        """The critic with the present weights (shared, not copied), shown nothing yet."""
        return ContextCritic(
            self.net, platts=self.platts, readout=readout or self.o.readout, gap_s=self.gap_s, anchor=self.o.anchor
        )

    def state_dict(self) -> StateDict:
        """Tensors and plain values; exact continuation."""
        return {**super().state_dict(), "platts": [[platt.slope, platt.bias] for platt in self.platts]}

    def load_state_dict(self, state: StateDict) -> None:
        """Continue exactly."""
        super().load_state_dict(state)
        self.platts = tuple(Platt(*pair) for pair in state["platts"])
