"""HG-DAgger: clone what the person does, demonstrations and interventions alike."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from robot_rl.policies.nets.flat import FlatParams
from robot_rl.policies.nets.imitation import CLONE_EDGE, SWITCH_WEIGHT, check_cloning, human_rows, imitation_grad
from robot_rl.policies.nets.mlp import MlpShape, build_mlp
from robot_rl.policies.nets.normalizer import RunningNorm
from robot_rl.policies.nets.squashed_policy import SquashedGaussianPolicy
from robot_rl.types import IOSpec, Learner, Metrics, Transitions
from robot_rl.types.options import Count, NotNegative, Positive, Rate, Whole


class HgDagger(Learner):
    """Behaviour cloning on the aggregated human actions, trained on while the person gates the robot.

    Rows weigh by `Transitions.extras["imitate"]`: the policy's own steps count nothing.

    Source: Kelly et al., HG-DAgger: Interactive Imitation Learning with Human Experts. Where we differ: no estimate of
    the policy's doubt; a squashed Gaussian instead of a deterministic network.
    """

    consumes = "transitions"

    def __init__(
        self,
        io: IOSpec,
        *,
        seed: int = 0,
        device: str = "cpu",
        gamma: float = 0.97,
        batch_size: Count = 256,
        hidden: tuple[Count, ...] = (256, 256),
        lr: Rate = 3e-4,
        bc_steps: Whole = 1000,
        utd: Count = 2,
        min_std: Positive = 0.1,
        edge: NotNegative = CLONE_EDGE,
        switch_weight: NotNegative = SWITCH_WEIGHT,
        normalize_obs: bool = True,
    ) -> None:
        """Build the policy.

        Args:
            io: observation "state".
            seed: of weights and noise.
            device: torch device.
            gamma: part of every learner's signature; unused.
            batch_size: rows per step.
            hidden: widths.
            lr: of Adam.
            bc_steps: steps on the demonstrations before the first own step.
            utd: steps per update.
            min_std: floor of the standard deviation inside the loss.
            edge: cloned actions are clipped to 1 - edge.
            switch_weight: of rows that open or close a gripper; all others weigh at most 1.
            normalize_obs: standardise the state.

        Raises:
            ValueError: no "state", or a number out of range.
        """
        if "state" not in io.obs or len(io.obs) > 1:
            raise ValueError(f"HG-DAgger reads 'state' alone, got {sorted(io.obs)}; set cameras=[]")
        if min(batch_size, utd) < 1 or bc_steps < 0:
            raise ValueError("batch_size and utd must be at least 1 and bc_steps at least 0")
        check_cloning(min_std, edge, switch_weight)
        self.io, self.batch_size, self._utd, self._bc_steps = io, batch_size, utd, bc_steps
        self._lr, self._min_std, self._edge, self._switch_weight = lr, min_std, edge, switch_weight
        width = io.obs["state"][0][0]
        self._norm = RunningNorm(width, device=device) if normalize_obs else None
        shape = MlpShape(1, width, tuple(hidden), 2 * io.action_dim, False, "actor.")
        self._params = FlatParams(shape.shapes(), device=device)
        shape.initialise(self._params, torch.Generator(device=device).manual_seed(seed))
        self._actor = build_mlp(shape, self._params)
        self.policy = SquashedGaussianPolicy(io, shape, self._params, seed=seed + 1, normalizer=self._norm)
        self.updates = 0

    def pretrain(self, batches: Iterator[Transitions], /) -> Metrics:
        """`bc_steps` on demonstrations; returns pretrain/nll of the last batch."""
        loss = 0.0
        for _ in range(self._bc_steps):
            loss = self._step(next(batches))
        return {"pretrain/nll": loss} if self._bc_steps else {}

    def update(self, batches: Iterator[Transitions], /) -> Metrics:
        """`utd` steps; returns train/il_loss of the last."""
        loss = 0.0
        for _ in range(self._utd):
            loss = self._step(next(batches))
        self.updates += 1
        return {"train/il_loss": loss}

    def _step(self, batch: Transitions) -> float:
        state = batch.obs["state"]
        if self._norm is not None:
            self._norm.observe(state)
            state = self._norm(state)
        with torch.no_grad():
            raw = self._actor.forward(state)[0]
            rows = human_rows(batch, switch_weight=self._switch_weight)
            grad, loss = imitation_grad(raw, batch.action, rows, min_std=self._min_std, edge=self._edge)
            self._actor.backward(grad[None])
            self._params.adam(self._lr)
            self._actor.refresh()
        value = float(loss)
        if value != value:
            raise FloatingPointError("the imitation loss is not finite; look for non-finite states in the log")
        return value

    def state_dict(self) -> dict[str, Any]:
        """Weights, optimiser, moments and generator."""
        return {"actor": self._params.state_dict(), "policy": self.policy.state_dict(), "updates": self.updates}

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Copy in place."""
        self._params.load_state_dict(state["actor"])
        self.policy.load_state_dict(state["policy"])
        self._actor.refresh()
        self.updates = int(state["updates"])
