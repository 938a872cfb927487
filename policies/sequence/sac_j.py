"""SAC-j: soft actor-critic that decides every j ticks and holds its action in between; the baseline of SRL."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any, Literal

import torch

from robot_rl.chunks import ChunkedPolicy, Execution, Held, Horizons, chunk_rows
from robot_rl.policies.nets.rows import as_windows, map_columns
from robot_rl.policies.online.sac import Sac, SacOptions
from robot_rl.types import IOSpec, Learner, Metrics, Needs, StateDict, Transitions
from robot_rl.types.options import Count


class SacJOptions(SacOptions):
    """Of SAC-j; those of SAC count decisions for steps."""

    interval: Count = 4
    """j control steps per decision; 1 is SAC."""
    discounting: Literal["turn", "step"] = "turn"
    """turn (the source's): plain sum of rewards, gamma per decision; step: sum gamma^i r_i and gamma^k, so that values
    do not depend on j."""


class SacJ(Learner[SacJOptions, Transitions]):
    """`Sac` on decisions of `interval` control steps.

    One transition per decision: the state where it began, the action held, the rewards summed, the state where it
    ended. Decisions that an episode's end cuts short are whole transitions of k < j steps.

    The replay keeps control steps and where decisions began. A batch is drawn as windows of j steps, of which those
    that begin with a decision are used, so the loop draws j times `batch_size` of them.

    Source: the baseline of Patel and Siegelmann, Overcoming Slow Decision Frequencies in Continuous Control
    (dee0512/Sequence-Reinforcement-Learning): rewards summed without discount, gamma per decision. Where we differ:
    one update per control step by default, as for SRL, not per decision (updates_per_step=1/j is the source's work).
    """

    method = "SAC-j"

    def __init__(
        self, options: SacJOptions, io: IOSpec, *, seed: int = 0, device: str = "cpu", gamma: float = 0.99
    ) -> None:
        """Build networks for `io`.

        Args:
            options: of the method.
            io: one vector observation "state".
            seed: of initial weights and noise.
            device: torch device.
            gamma: discount: per decision where `discounting` is "turn"; else the data's `discount` is what is used.
        """
        super().__init__(options, io, seed=seed, device=device)
        self.sac, self.gamma, j = Sac(options, io, seed=seed, device=device), gamma, options.interval
        held = Held(self.sac.policy, j)
        self.policy = ChunkedPolicy(io, held, Execution(Horizons(j, j, j), io.action_dim), mean=held.mean)

    @classmethod
    def needs(cls, options: SacJOptions, io: IOSpec) -> Needs:
        """Windows of a decision, and where decisions began."""
        return Needs(
            rows=options.batch_size * options.interval,
            window=options.interval,
            columns={"decision_start": (1,)},
            decision_interval=options.interval,
        )

    def calm(self) -> None:
        """Halve SAC's step sizes."""
        self.sac.calm()

    def set_progress(self, share: float) -> None:
        """For SAC's step sizes."""
        self.sac.set_progress(share)

    def update(self, batches: Iterator[Transitions], /) -> Metrics:
        """`utd` steps of the critics on `batch_size` decisions each, and one of actor and temperature on the last.

        Returns:
            Those of `Sac`.

        Raises:
            ValueError: the batch does not say where decisions began.
            FloatingPointError: a metric is not finite.
        """
        return self.sac.update(self.decisions(batches) for _ in itertools.count())

    def decisions(self, batches: Iterator[Transitions]) -> Transitions:
        """`batch_size` decisions (action (B, A)) out of windows; where too few begin in one batch, out of several.

        Raises:
            ValueError: no "decision_start" in the batch, or hardly any decision in sixteen batches.
        """
        found: list[Transitions] = []
        count = 0
        for _ in range(16):
            part = self._of(as_windows(next(batches), self.o.interval))
            found.append(part)
            count += len(part.reward)
            if count >= self.o.batch_size:
                break
        if not count:
            raise ValueError("no decision begins in sixteen batches; the replay holds steps of another policy")
        return _join(found, self.o.batch_size)

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
        # one that neither the next decision nor the episode's end has ended yet, at the newest row, is not known
        ended = ((window.terminated | window.truncated) & mask).any(1)
        over = mask.all(1) | ended | (start & window.mask)[:, 1:].any(1)
        keep = start[:, 0] & mask[:, 0] & over
        own = map_columns(dataclasses.replace(window, mask=mask, extras={}), lambda x: x[keep])
        rows = chunk_rows(own)
        reward, discount = rows.reward, rows.discount
        if self.o.discounting == "turn":
            reward = rows.extras["rewards"].sum(1)
            discount = torch.where(rows.terminated, torch.zeros_like(discount), torch.full_like(discount, self.gamma))
        return dataclasses.replace(
            rows, action=rows.action[:, 0], reward=reward, discount=discount, mask=rows.mask[:, 0], extras={}
        )

    def state_dict(self) -> StateDict:
        """Those of `Sac`."""
        return self.sac.state_dict()

    def load_state_dict(self, state: StateDict, /) -> None:
        """Copy in place.

        Raises:
            ValueError: the state belongs to a learner of other sizes.
        """
        self.sac.load_state_dict(state)


def _join(parts: list[Transitions], size: int) -> Transitions:
    """The first `size` rows of several batches, repeated where there are fewer."""
    values: dict[str, Any] = {}
    for field in dataclasses.fields(Transitions):
        own = [vars(part)[field.name] for part in parts]
        if isinstance(own[0], dict):
            values[field.name] = {key: torch.cat([x[key] for x in own]) for key in own[0]}
        else:
            values[field.name] = torch.cat(own)
    index = torch.arange(size, device=values["reward"].device) % len(values["reward"])
    return map_columns(Transitions(**values), lambda x: x[index])
