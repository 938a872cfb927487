"""Several progress critics as one that is cautious where they disagree.

Caution lies on levels, not on steps: with u_m what critic m has added up since the first frame, the ensemble's is

    mean: mean_m u_m      wco: min_m u_m      uwo: mean_m u_m - c var_m u_m

and P(done) likewise. A minimum over the steps themselves would make every loop of frames lose progress; the level taken
cautiously is still one number per frame (and its past), so what a policy gains on a way out it loses on the way back.

Source: worst-case and uncertainty-weighted optimisation: Coste et al., Reward Model Ensembles Help Mitigate
Overoptimization, 2023. On levels: ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from robot_rl.policies.nets.cautious import combine
from robot_rl.policies.nets.progress import U_MIN, share_of_log
from robot_rl.policies.nets.reference import RefClip
from robot_rl.policies.vla.critic import TinyCritic
from robot_rl.policies.vla.interface import CriticOutput, MomentCritic, Trajectory
from robot_rl.types import Array


class CriticEnsemble(MomentCritic):
    """Critics of one picture size behind the contract `ProgressCritic`.

    Args:
        members: critics, at least one; from different seeds, or trained on different clips.
        how: "mean", "wco" or "uwo".
        caution: c of "uwo", per nat of u and per unit of probability.

    Raises:
        ValueError: no members, members of different picture sizes or views, unknown combination, negative caution.
    """

    def __init__(self, members: Sequence[TinyCritic], how: str = "mean", caution: float = 1.0) -> None:
        if not members:
            raise ValueError("an ensemble needs at least one critic")
        shapes = {(member.meta.image_size, member.meta.views) for member in members}
        if len(shapes) > 1:
            raise ValueError(f"the critics take pictures of different sizes or views: {sorted(shapes)}")
        combine(torch.zeros(1), how, caution=caution)  # refuses what it does not know
        self.members, self.how, self.caution = tuple(members), how, float(caution)
        gaps = [member.meta.delta_gap_s for member in members]
        self.meta = replace(
            members[0].meta,
            name=f"{how} of {len(members)} {members[0].meta.name}",
            delta_gap_s=(max(low for low, _ in gaps), min(high for _, high in gaps)),
        )

    def join(self, rows: np.ndarray, *, chance: bool = False) -> np.ndarray:
        """One of M: levels or probabilities of the members, (M, ...) -> (...) float64.

        Args:
            rows: of the members.
            chance: they are probabilities: the result stays within [0, 1].
        """
        one = combine(torch.as_tensor(np.asarray(rows, np.float64)), self.how, caution=self.caution).numpy()
        return np.clip(one, 0.0, 1.0) if chance else one

    def __call__(self, images_t0: Array, images_t1: Array, goal: Sequence[str]) -> CriticOutput:
        """See `ProgressCritic`: the members' mean step, sigma their disagreement; value and done are cautious.

        A pair has no past, so caution about what was added up before it is left to `trajectory` and to whoever keeps
        the members' levels apart. An answer is valid where all members' are.
        """
        said = [member(images_t0, images_t1, goal) for member in self.members]
        valid = torch.stack([one.valid for one in said]).all(0)
        steps = torch.stack([one.dlogw for one in said])
        done = torch.stack([one.done for one in said])
        value = torch.stack([one.value for one in said])
        u = -torch.log1p(-value.clamp(max=1.0 - 1e-6))
        out = CriticOutput.of(
            steps.mean(0),
            self._combine(done).clamp(0.0, 1.0),
            valid,
            value=-torch.expm1(-self._combine(u)),
        )
        spread = steps.std(0, correction=0) if len(said) > 1 else torch.full_like(out.dlogw, float("nan"))
        return replace(out, sigma=torch.where(valid, spread, torch.full_like(spread, float("nan"))))

    def trajectory(self, frames: Array, goal: str, *, stride: int = 1) -> Trajectory:
        """See `ProgressCritic`; the deltas are those of the cautious level."""
        told = [member.trajectory(frames, goal, stride=stride) for member in self.members]
        u = np.maximum(self.join(np.stack([one.u for one in told])), U_MIN)
        done = self.join(np.stack([one.done for one in told]), chance=True)
        absolute = np.stack([one.absolute for one in told])
        level = self.join(-np.log1p(-np.minimum(absolute, 1.0 - 1e-6)))
        return Trajectory(
            share_of_log(np.diff(u)),
            u,
            -np.expm1(-u),
            done,
            told[0].index,
            -np.expm1(-level),
            np.all([one.valid for one in told], axis=0),
        )

    def with_reference(self, reference: RefClip | None) -> CriticEnsemble:
        """The ensemble whose members are all shown a goal; see `TinyCritic.with_reference`."""
        return CriticEnsemble([member.with_reference(reference) for member in self.members], self.how, self.caution)

    def _combine(self, rows: Tensor) -> Tensor:
        return combine(rows, self.how, caution=self.caution)
