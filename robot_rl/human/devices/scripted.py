"""A person made of code: watches the robot, takes over when it goes wrong, drives well or badly."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Literal

import numpy as np

from robot_rl.arbiter import Press, Reading
from robot_rl.human.devices.teleop import Teleop
from robot_rl.types import IOSpec, Obs, Options
from robot_rl.types.options import NotNegative, Positive, Share


class ScriptedOptions(Options):
    """Of the person."""

    skill: Share = 1.0
    """Probability per tick that the action is the expert's; otherwise the person does something random."""
    delay_s: NotNegative = 0.0
    """Reaction time: actions answer the observation of this long ago."""
    noise: NotNegative = 0.0
    """Standard deviation on the actions."""
    bias: NotNegative = 0.0
    """Constant error on the actions, of this size and of a sign per axis that belongs to the person: a hand that always
    drifts the same way. It is only in what they do; they judge the policy by what should be done."""
    help: Literal["disagreement", "random", "adviser", "never"] = "disagreement"
    """When they take over: when disagreement lasts, at random (same patience, whatever the policy does), when asked by
    `advise`, or never."""
    sees: Literal["proposal", "motion"] = "proposal"
    """What is compared with the expert: what the policy wants to do now, as if it could be seen, or what it did in the
    last step, as a person beside the robot sees it."""
    gap: Literal["max", "rms"] = "max"
    """How far two actions are apart: the largest difference of an axis, or over all axes. Where the reward is made from
    takeovers, "rms" tells a policy about each axis, "max" only once all others are right."""
    threshold: NotNegative = 0.6
    """Mean over `window_s` of that gap above which a person is worried."""
    window_s: Positive = 0.5
    """See threshold."""
    patience_s: NotNegative = 1.5
    """How long the policy may try after the start and after every help."""
    drive_s: Positive = 1.5
    """How long one intervention lasts."""
    attention: Share = 1.0
    """Share of the episodes that are watched at all."""
    random_rate: Share = 0.05
    """Probability per tick of a takeover with help=random."""
    most_s: Positive | None = None
    """Takes over for this long in all, demonstrations not counted; null is a person who never tires."""
    give_up_s: Positive | None = None
    """Presses "failure" after this much time in an episode; null never."""


class ScriptedHuman(Teleop):
    """Takes over when the policy has disagreed with the expert for a while, drives for a while, lets go.

    Args:
        options: of the person.
        io: interface of the policy.
        expert: "state" observations (1, S) -> actions (1, A) in [-1, 1]; None: nobody helps.
        seed: of all randomness.

    Raises:
        ValueError: nobody to drive as, and help wanted.
    """

    realtime = False

    def __init__(
        self,
        options: ScriptedOptions,
        io: IOSpec,
        *,
        expert: Callable[[Obs], np.ndarray] | None = None,
        seed: int = 0,
    ) -> None:
        if expert is None and options.help != "never":
            raise ValueError(
                "this environment has no scripted expert to drive with; choose one of our worlds (env=insert, "
                "env=pick ...), or human=browser, or human=scripted human.help=never"
            )
        self._o, hz = options, io.control_hz
        self._expert, self._actions = expert, io.action_dim
        self._wish: float | None = None  # how far the policy's last action was from the expert's
        self._left = None if options.most_s is None else round(options.most_s * hz)
        self._patience, self._drive = round(options.patience_s * hz), max(round(options.drive_s * hz), 1)
        self._give_up = None if options.give_up_s is None else round(options.give_up_s * hz)
        self._window: deque[float] = deque(maxlen=max(round(options.window_s * hz), 1))
        self._seen: deque[np.ndarray] = deque(maxlen=round(options.delay_s * hz) + 1)
        self._rng = np.random.default_rng(seed)
        signs = np.random.default_rng(seed + 1).choice((-1.0, 1.0), io.action_dim)
        self._bias = (options.bias * signs).astype(np.float32)
        self._tick = self._driving = self._rest = 0
        self._watches = True
        self._demo = self._wanted = False

    def prepare(self, demo: bool) -> None:
        """The next episode is a demonstration: the person drives all of it."""
        self._demo = demo

    def begin(self, now: float) -> None:
        """A new episode."""
        self._window.clear()
        self._seen.clear()
        self._wish = None
        self._wanted = False
        self._tick = self._driving = 0
        self._rest = self._patience
        self._watches = bool(self._rng.random() < self._o.attention)

    def read(self, now: float, obs: Obs, policy: np.ndarray) -> Reading:
        """What the person does now; see `Teleop.read`."""
        self._tick += 1
        value = np.zeros(self._actions, np.float32)
        if self._expert is None or not obs or (self._o.help == "never" and not self._demo):  # or nothing is seen yet
            return Reading(now, value)
        batch = {key: np.asarray(item)[None] for key, item in obs.items()}
        self._seen.append(np.asarray(self._expert(batch), np.float32)[0])
        advice = self._seen[0]
        apart = np.abs(advice - policy)
        gap = float(np.sqrt(np.mean(apart**2)) if self._o.gap == "rms" else apart.max())
        if self._o.sees == "motion":
            gap, self._wish = self._wish, gap if self._driving == 0 else None
        if gap is not None:
            self._window.append(gap)
        if self._demo:
            self._driving = 1
        elif self._driving > 0:
            self._driving -= 1
            if self._driving == 0:
                self._rest = self._patience
                self._window.clear()
                self._wish = None
        elif self._rest > 0:
            self._rest -= 1
        elif self._watches and self._left != 0 and self._wants_to_help():
            self._driving = self._drive if self._left is None else min(self._drive, self._left)
            self._left = None if self._left is None else self._left - self._driving
        value = self._hand(advice)
        driving = self._driving > 0
        norm = float(np.abs(value).max()) if driving else 0.0
        presses: tuple[Press, ...] = ()
        if self._give_up is not None and self._tick == self._give_up:
            presses = (Press("failure", now),)
        return Reading(now, value, norm=norm, enable=driving, presses=presses)

    def state_dict(self) -> dict[str, object]:
        """The generator and what patience is left; between episodes nothing else matters."""
        return {"left": self._left, "rng": self._rng.bit_generator.state}

    def load_state_dict(self, state: dict) -> None:
        """Continue."""
        self._left = state.get("left", self._left)
        self._rng.bit_generator.state = state["rng"]

    def advise(self, wanted: bool) -> None:
        """Somebody says that help is wanted now."""
        self._wanted = wanted

    def _wants_to_help(self) -> bool:
        if self._o.help == "adviser":
            return self._wanted
        if self._o.help == "random":
            return bool(self._rng.random() < self._o.random_rate)
        return len(self._window) == self._window.maxlen and float(np.mean(self._window)) > self._o.threshold

    def _hand(self, advice: np.ndarray) -> np.ndarray:
        action = advice.copy()
        if self._rng.random() >= self._o.skill:
            action = self._rng.uniform(-1.0, 1.0, self._actions).astype(np.float32)
        if self._o.noise:
            action = action + self._rng.normal(0.0, self._o.noise, self._actions).astype(np.float32)
        return np.clip(action + self._bias, -1.0, 1.0)


make = ScriptedHuman
