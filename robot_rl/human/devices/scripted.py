"""A person made of code: watches the robot, takes over when it goes wrong, drives well or badly."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import numpy as np

from robot_rl.arbiter import Press, Reading
from robot_rl.human.devices.teleop import Teleop
from robot_rl.types import IOSpec, Obs
from robot_rl.types.options import NotNegative, Positive, Share


class ScriptedHuman(Teleop):
    """Takes over when the policy has disagreed with the expert for a while, drives for a while, lets go.

    Args:
        io: interface of the policy.
        expert: "state" observations (1, S) -> actions (1, A) in [-1, 1]; None: nobody helps.
        control_hz: decisions per second.
        skill: probability per tick that the action is the expert's; otherwise the person does something random. 1 is
            perfect.
        delay_s: reaction time: actions answer the observation of this long ago.
        noise: standard deviation on the actions.
        bias: constant error on the actions, of this size and of a sign per axis that belongs to the person: a hand that
            always drifts the same way. It is only in what they do; they judge the policy by what should be done.
        help: "disagreement" (takes over when it lasts), "random" (same patience, whatever the policy does), "adviser"
            (when asked by `advise`) or "never".
        sees: what is compared with the expert: "proposal" (what the policy wants to do now, as if it could be seen) or
            "motion" (what the policy did in the last step, as a person beside the robot sees it).
        gap: how far two actions are apart: "max", the largest difference of an axis, or "rms", over all axes. Where the
            reward is made from takeovers, "rms" tells a policy about each axis, "max" only once all others are right.
        threshold: mean over `window_s` of that gap above which a person is worried.
        window_s: see threshold.
        patience_s: how long the policy may try after the start and after every help.
        drive_s: how long one intervention lasts.
        attention: share of the episodes that are watched at all.
        random_rate: probability per tick of a takeover with help="random".
        most_s: takes over for this long in all, demonstrations not counted; None is a person who never tires.
        give_up_s: presses "failure" after this much time in an episode; None never.
        seed: of all randomness.

    Raises:
        ValueError: names the argument.
    """

    realtime = False

    def __init__(
        self,
        io: IOSpec,
        *,
        expert: Callable[[Obs], np.ndarray] | None,
        skill: Share = 1.0,
        delay_s: NotNegative = 0.0,
        noise: NotNegative = 0.0,
        bias: NotNegative = 0.0,
        help: str = "disagreement",
        sees: str = "proposal",
        gap: str = "max",
        threshold: Share = 0.6,
        window_s: Positive = 0.5,
        patience_s: Positive = 1.5,
        drive_s: Positive = 1.5,
        attention: Share = 1.0,
        random_rate: Share = 0.05,
        most_s: Positive | None = None,
        give_up_s: Positive | None = None,
        seed: int = 0,
    ) -> None:
        for name, number in (("skill", skill), ("attention", attention), ("random_rate", random_rate)):
            if not 0.0 <= number <= 1.0:
                raise ValueError(f"{name} is {number}, expected a probability in [0, 1]")
        if help not in ("disagreement", "random", "adviser", "never"):
            raise ValueError(f"help is '{help}', expected disagreement, random, adviser or never")
        if sees not in ("proposal", "motion"):
            raise ValueError(f"sees is '{sees}', expected proposal or motion")
        if gap not in ("max", "rms"):
            raise ValueError(f"gap is '{gap}', expected max or rms")
        if min(delay_s, noise, bias, window_s, patience_s, most_s or 0.0) < 0.0 or drive_s <= 0.0:
            raise ValueError("delay_s, noise, bias, window_s, patience_s and most_s must be >= 0 and drive_s > 0")
        if expert is None and help != "never":
            raise ValueError(
                "this environment has no scripted expert to drive with; choose one of our worlds (env=insert, "
                "env=pick ...), or human=browser, or human=scripted human.help=never"
            )
        hz = io.control_hz
        self._expert, self._actions = expert, io.action_dim
        self._skill, self._noise, self._help = skill, noise, help
        self._rms = gap == "rms"
        self._motion = sees == "motion"
        self._wish: float | None = None  # how far the policy's last action was from the expert's
        self._threshold, self._attention, self._rate = threshold, attention, random_rate
        self._left = None if most_s is None else round(most_s * hz)
        self._patience, self._drive = round(patience_s * hz), max(round(drive_s * hz), 1)
        self._give_up = None if give_up_s is None else round(give_up_s * hz)
        self._window: deque[float] = deque(maxlen=max(round(window_s * hz), 1))
        self._seen: deque[np.ndarray] = deque(maxlen=round(delay_s * hz) + 1)
        self._rng = np.random.default_rng(seed)
        signs = np.random.default_rng(seed + 1).choice((-1.0, 1.0), io.action_dim)
        self._bias = (bias * signs).astype(np.float32)
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
        self._watches = bool(self._rng.random() < self._attention)

    def read(self, now: float, obs: Obs, policy: np.ndarray) -> Reading:
        """What the person does now; see `Teleop.read`."""
        self._tick += 1
        value = np.zeros(self._actions, np.float32)
        if self._expert is None or (self._help == "never" and not self._demo):
            return Reading(now, value)
        batch = {key: np.asarray(item)[None] for key, item in obs.items()}
        self._seen.append(np.asarray(self._expert(batch), np.float32)[0])
        advice = self._seen[0]
        apart = np.abs(advice - policy)
        gap = float(np.sqrt(np.mean(apart**2)) if self._rms else apart.max())
        if self._motion:
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
        elif self._watches and self._left != 0 and self._worried():
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
        state = self._rng.bit_generator.state
        return {
            "left": self._left,
            "rng": {**state, "state": {key: int(value) for key, value in state["state"].items()}},
        }

    def load_state_dict(self, state: dict) -> None:
        """Continue."""
        self._left = state.get("left", self._left)
        self._rng.bit_generator.state = state["rng"]

    def advise(self, wanted: bool) -> None:
        """Somebody says that help is wanted now."""
        self._wanted = wanted

    def _worried(self) -> bool:
        if self._help == "adviser":
            return self._wanted
        if self._help == "random":
            return bool(self._rng.random() < self._rate)
        return len(self._window) == self._window.maxlen and float(np.mean(self._window)) > self._threshold

    def _hand(self, advice: np.ndarray) -> np.ndarray:
        action = advice.copy()
        if self._rng.random() >= self._skill:
            action = self._rng.uniform(-1.0, 1.0, self._actions).astype(np.float32)
        if self._noise:
            action = action + self._rng.normal(0.0, self._noise, self._actions).astype(np.float32)
        return np.clip(action + self._bias, -1.0, 1.0)


def make(io: IOSpec, expert: Callable[[Obs], np.ndarray] | None = None, **options: object) -> ScriptedHuman:
    """A scripted person for an environment; see `ScriptedHuman` for the options."""
    return ScriptedHuman(io, expert=expert, **options)  # type: ignore[arg-type]
