"""Grippers: the cost of opening and closing them, and whether they follow."""

from __future__ import annotations

import numpy as np

from robot_rl.data.hil_record import ControlStep
from robot_rl.types import IOSpec


class Grippers:
    """Watches the actions whose names speak of a gripper, which are the last ones.

    A gripper does not follow when it was told to go somewhere and a second later has not gone a tenth of the way. (One
    that closes on an object has; one that is told something else all the time is not judged.) Then nobody drives: it is
    let go for half a second and told once more; if it still does not follow after another second, the episode is over
    (`lost`).

    Args:
        io: interface of the robot.
        cost: of a real switch between open and closed, see `ControlStep.grip_penalty`.
    """

    patience_s, pause_s = 1.0, 0.5
    least = 0.1
    """Share of the way that counts as following."""
    change = 0.2
    """Difference of commands that makes a new order; a gap below it is none."""

    def __init__(self, io: IOSpec, cost: float) -> None:
        self._cost, self._count = cost, 0
        for name in reversed(io.action_names):
            if "grip" not in name:
                break
            self._count += 1
        self._names = io.action_names[io.action_dim - self._count :]
        self._patience = max(round(self.patience_s * io.control_hz), 1)
        self._pause = max(round(self.pause_s * io.control_hz), 1)
        self.begin()

    def begin(self) -> None:
        """A new episode: open, and nothing asked yet."""
        self._held = np.ones(self._count)  # last discrete commands; open at the start
        self._order: np.ndarray | None = None
        self._from = np.zeros(self._count)
        self._age = np.zeros(self._count, int)
        self._since = np.zeros(self._count, int)
        self._follows = np.ones(self._count, bool)
        self._trying = -1  # ticks since somebody noticed, or -1
        self.lost = False
        """It did not follow the second time either: the episode has to end."""
        self.problem = ""
        self.wanted: np.ndarray | None = None
        """(G,) command while nobody drives because of a gripper."""

    @property
    def blind(self) -> bool:
        """Nobody drives in this tick because of a gripper."""
        return self._trying >= 0

    @property
    def notices(self) -> int:
        """Steps after which it is known whether a command was followed; 0 without a gripper."""
        return self._patience + 1 if self._count else 0

    def charge(self, step: ControlStep) -> None:
        """What becomes of the grippers, and its cost: once per real switch, whoever drives.

        A command that says again what was said before stays, as a policy that chooses to stay does.
        """
        for i in range(self._count):
            command = float(step.action_cmd[len(step.action_cmd) - self._count + i])
            told = (command > 0.5) - (command < -0.5)
            switched = told not in (0, self._held[i])
            step.grip_action = told if switched else 0
            if switched:
                step.grip_penalty -= self._cost
                self._held[i] = told

    def look(self, index: int, executed: np.ndarray, measured: np.ndarray | None) -> int | None:
        """After a step.

        Args:
            index: of the step in the episode.
            executed: (A,) its action.
            measured: (G,) where the fingers stood before it, in units of the action; None or nan: not measured.

        Returns:
            Index of the step from which on the gripper's part of the episode is void; None while all is well.
        """
        if not self._count or measured is None or not np.isfinite(measured).all():
            return None
        place, command = np.asarray(measured, float), np.asarray(executed, float)[-self._count :]
        order = self._order
        if order is None:
            self._order = order = command.copy()
            self._from, self._follows = place.copy(), np.abs(command - place) < self.change
        if self.blind:
            return self._again(place)
        differs = np.abs(command - order) > self.change
        # fingers around an object that are told to close less, or more, are told nothing new
        same_way = (np.sign(command - place) == np.sign(order - place)) & (np.abs(order - place) >= self.change)
        fresh = differs & ~same_way
        self._order = order = np.where(differs, command, order)
        self._from, self._since = np.where(fresh, place, self._from), np.where(fresh, index, self._since)
        self._age = np.where(fresh, 0, self._age + 1)
        self._follows = np.where(fresh, False, self._follows) | self._went(place)
        stuck = ~self._follows & (self._age >= self._patience)
        if not stuck.any():
            return None
        self._trying, self.wanted = 0, np.where(stuck, place, order)
        names = ", ".join(name for name, bad in zip(self._names, stuck) if bad)
        self.problem = f"{names} does not follow: no motion for {self.patience_s:g} s after a command; trying again"
        return int(self._since[stuck].min())

    def _again(self, place: np.ndarray) -> None:
        """The second try: let go, ask again, wait."""
        assert self._order is not None
        self._trying += 1
        if self._trying < self._pause:
            return
        self.wanted = self._order
        self._follows |= self._went(place)
        if self._follows.all():
            self._trying, self.wanted, self.problem = -1, None, ""
            self._age[...] = 0
        elif self._trying >= self._pause + self._patience:
            self.lost = True
            self.problem = self.problem.replace("trying again", "see to it and press go")

    def _went(self, place: np.ndarray) -> np.ndarray:
        assert self._order is not None
        way = self._order - self._from
        return (np.abs(place - self._order) < self.change) | (
            (place - self._from) * np.sign(way) > self.least * abs(way)
        )
