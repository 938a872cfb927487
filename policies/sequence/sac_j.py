"""SAC-j: soft actor-critic that decides every j ticks and holds its action in between; the baseline of SRL."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, Literal

import torch

from robot_rl.chunks import ChunkedPolicy, Execution, Held, Horizons, chunk_rows
from robot_rl.policies.nets.rows import windowed
from robot_rl.policies.online.sac import Sac, SacOptions
from robot_rl.types import IOSpec, Learner, Metrics, Transitions
from robot_rl.types.options import Count, Mixing, Number, Positive, Rate, Whole

DISCOUNTS = ("turn", "step")


class SacJ(Learner):
    """`Sac` on decisions of `interval` control steps.

    One transition per decision: the state where it began, the action held, the rewards summed, the state where it
    ended. Decisions that an episode's end cuts short are whole transitions of k < j steps.

    The replay keeps control steps and where decisions began. A batch is drawn as windows of j steps, of which those
    that begin with a decision are used, so `batch_size` (what the loop draws) is j times `rows`.

    Source: the baseline of Patel and Siegelmann, Overcoming Slow Decision Frequencies in Continuous Control
    (dee0512/Sequence-Reinforcement-Learning): rewards summed without discount, gamma per decision. Where we differ:
    one update per control step by default, as for SRL, not per decision (updates_per_step=1/j is the source's work).
    """

    consumes = "transitions"
    method = "SAC-j"

    def __init__(
        self,
        io: IOSpec,
        *,
        seed: int = 0,
        device: str = "cpu",
        gamma: float = 0.99,
        interval: Count = 4,
        discounting: str = "turn",
        rows: Count = 256,
        hidden: tuple[Count, ...] = (256, 256),
        lr: Rate = 3e-4,
        tau: Mixing = 0.005,
        init_alpha: Positive = 1.0,
        target_entropy: Number | Literal["auto", "half"] = "auto",
        normalize_obs: bool | str = False,
        metrics_every: Whole = 100,
    ) -> None:
        """Build networks for `io`.

        Args:
            io: one vector observation "state".
            seed: of initial weights and noise.
            device: torch device.
            gamma: discount: per decision where `discounting` is "turn"; else the data's `discount` is what is used.
            interval: j control steps per decision; 1 is SAC.
            discounting: "turn" (the source's): plain sum of rewards, gamma per decision; "step": sum gamma^i r_i and
                gamma^k, so that values do not depend on j.
            rows: decisions per update.
            hidden: widths of actor and critics.
            lr: step size of everything.
            tau: Polyak rate.
            init_alpha: temperature at the start.
            target_entropy: a number, "auto" (-A) or "half", per decision.
            normalize_obs: see `Sac`.
            metrics_every: metrics are computed in every n-th update.

        Raises:
            ValueError: an option outside its range.
        """
        if min(interval, rows) < 1:
            raise ValueError(f"interval, rows are {interval}, {rows}; expected at least 1")
        if discounting not in DISCOUNTS:
            raise ValueError(f"discounting is '{discounting}', expected one of {', '.join(DISCOUNTS)}")
        options = {"init_alpha": init_alpha, "target_entropy": target_entropy, "normalize_obs": normalize_obs}
        options |= {"hidden": hidden, "lr": lr, "tau": tau, "metrics_every": metrics_every}
        self.sac = Sac(SacOptions(batch_size=rows, **options), io, seed=seed, device=device)
        self.io, self.batch_size, self.window, self.decision_interval = io, rows * interval, interval, interval
        self.keeps = {"decision_start": (1,)}
        self._rows, self._turns, self._gamma = rows, discounting == "turn", gamma
        self.policy = ChunkedPolicy(
            io, Held(self.sac.policy, interval), Execution(Horizons(interval, interval, interval), io.action_dim)
        )

    def update(self, batches: Iterator[Transitions], /) -> Metrics:
        """One step of critics, actor and temperature on `rows` decisions.

        Returns:
            Those of `Sac`.

        Raises:
            ValueError: the batch does not say where decisions began.
            FloatingPointError: a metric is not finite.
        """
        return self.sac.update(iter([self.decisions(batches)]))

    def decisions(self, batches: Iterator[Transitions]) -> Transitions:
        """`rows` decisions (action (B, A)) out of windows; where too few begin in one batch, out of several.

        Raises:
            ValueError: no "decision_start" in the batch, or hardly any decision in sixteen batches.
        """
        found: list[Transitions] = []
        count = 0
        for _ in range(16):
            part = self._of(windowed(next(batches), self.window))
            found.append(part)
            count += len(part.reward)
            if count >= self._rows:
                break
        if not count:
            raise ValueError("no decision begins in sixteen batches; the replay holds steps of another policy")
        return _join(found, self._rows)

    def _of(self, window: Transitions) -> Transitions:
        start = window.extras.get("decision_start")
        if start is None:
            raise ValueError(
                f"SAC-j reads extras['decision_start'], the batch has {sorted(window.extras)}; train it with robot-rl "
                "train without log= or demos="
            )
        start = start.reshape(window.reward.shape) > 0.5
        # a decision ends where the next begins: also one that the policy cut short when it took over from random ones
        mask = window.mask & (start.long().cumsum(1) == 1)
        keep = start[:, 0] & mask[:, 0]
        own = _take(dataclasses.replace(window, mask=mask, extras={}), keep)
        rows = chunk_rows(own)
        reward, discount = rows.reward, rows.discount
        if self._turns:
            reward = rows.extras["rewards"].sum(1)
            discount = torch.where(rows.terminated, torch.zeros_like(discount), torch.full_like(discount, self._gamma))
        return dataclasses.replace(
            rows, action=rows.action[:, 0], reward=reward, discount=discount, mask=rows.mask[:, 0], extras={}
        )

    def state_dict(self) -> dict[str, Any]:
        """Those of `Sac`."""
        return self.sac.state_dict()

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Copy in place.

        Raises:
            ValueError: the state belongs to a learner of other sizes.
        """
        self.sac.load_state_dict(state)


def _take(rows: Transitions, keep: torch.Tensor) -> Transitions:
    """The rows of an index or mask."""
    values: dict[str, Any] = {}
    for field in dataclasses.fields(rows):
        value = getattr(rows, field.name)
        values[field.name] = {k: v[keep] for k, v in value.items()} if isinstance(value, dict) else value[keep]
    return Transitions(**values)


def _join(parts: list[Transitions], size: int) -> Transitions:
    """The first `size` rows of several batches, repeated where there are fewer."""
    values: dict[str, Any] = {}
    for field in dataclasses.fields(Transitions):
        own = [getattr(part, field.name) for part in parts]
        if isinstance(own[0], dict):
            values[field.name] = {key: torch.cat([x[key] for x in own]) for key in own[0]}
        else:
            values[field.name] = torch.cat(own)
    count = len(values["reward"])
    return _take(Transitions(**values), torch.arange(size, device=values["reward"].device) % count)
