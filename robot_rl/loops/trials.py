"""Autonomous trials of a policy through the safety layer, and the interface to what lies between policy and robot."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np

from robot_rl.loops.evaluate import LONGEST
from robot_rl.loops.hil_stats import Trials
from robot_rl.loops.stepping import Stepper
from robot_rl.types import Obs, Policy


class Pilot(Protocol):
    """Device, takeover and safety layer between the policy and the robot; see `robot_rl.real.cockpit`."""

    realtime: bool
    simulates: bool

    @property
    def mode(self) -> str:
        """How a person takes over: deadman, toggle or implicit."""
        ...

    @property
    def driver(self) -> str:
        """Who drives."""
        ...

    def restart(self) -> None:
        """Before `begin`: a simulated robot that was put back is unlocked."""
        ...

    def begin(self, demo: bool = False) -> list[str]:
        """Before an episode; what stands against motion."""
        ...

    def end(self) -> None:
        """After an episode."""
        ...

    def now_ns(self) -> int:
        """The clock."""
        ...

    def drive(self, obs: Obs, proposal: np.ndarray, *, blind: bool = False, grip: np.ndarray | None = None) -> Any:
        """One tick; in a blind one nobody drives, and the grippers go to `grip`."""
        ...

    def move_to(self, env: Any, /) -> None:
        """Drive the robot of another simulation."""
        ...

    def hold(self) -> None:
        """Nobody drives until a person resumes."""
        ...

    def advise(self, wanted: bool) -> None:
        """Help is wanted, or not any more."""
        ...

    def idle(self, obs: Obs) -> tuple[Any, ...]:
        """One tick without motion; the keys, each with kind, time and episode."""
        ...

    def wait(self) -> None:
        """Until the next tick."""
        ...

    def spare(self) -> float:
        """Seconds until then."""
        ...

    def show(
        self,
        telemetry: dict[str, Any],
        frame: Callable[[int], Any] | None = None,
        views: Mapping[str, np.ndarray] | None = None,
    ) -> None:
        """Telemetry for a screen, a picture, and what the policy sees."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Between episodes."""
        ...

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Continue."""
        ...


def tell(policy: Any, executed: np.ndarray) -> None:
    """Policies that remember their last command hear what was really done."""
    call = getattr(policy, "executed", None)
    if call is not None:
        call(executed[None])


def trials(
    env: Any,
    policy: Policy,
    pilot: Pilot,
    *,
    episodes: int,
    seed: int,
    deterministic: bool = True,
    on_trial: Callable[[int], object] | None = None,
    stopped: Callable[[], bool] = lambda: False,
    longest: int = LONGEST,
) -> Trials:
    """Autonomous trials with frozen weights through the same safety layer; a trial ends at its first success.

    Nobody is there; where somebody is, see `hil_trials`.

    Args:
        env: of one copy, natural starts.
        policy: what acts.
        pilot: without a person.
        episodes: how many.
        seed: of the first reset.
        deterministic: the policy's mode.
        on_trial: called with the number of finished trials.
        stopped: asked before every trial; True ends the block.
        longest: steps after which a trial that does not end by itself is cut, as a failure.
    """
    out, stepper = Trials(deterministic=deterministic), Stepper(env)
    stepper.reset(seed=seed)
    for number in range(episodes):
        if stopped():
            break
        pilot.restart()  # a stop cost its own trial and no other
        refused = pilot.begin()
        if refused:
            raise RuntimeError(f"the safety layer does not allow a trial: {', '.join(refused)}")
        policy.reset()
        steps, success, ended = 0, False, False
        while not (ended or success):
            proposal = np.asarray(policy.act(stepper.obs, deterministic=deterministic).value[0], np.float32)
            obs = {name: value[0] for name, value in stepper.obs.items()}
            driven = pilot.drive(obs, proposal)
            tell(policy, driven.executed)
            if driven.stopped:
                out.stops += 1
                break
            row = stepper.step(driven.executed[None])
            pilot.wait()
            steps += 1
            success = bool(row.info["success"][0]) if "success" in row.info else False
            ended = bool(row.terminated[0] or row.truncated[0])
            if steps >= longest and not (ended or success):
                out.cut += 1
                break
        pilot.end()
        if not ended:
            stepper.reset()
        out.successes.append(success)
        out.steps.append(steps)
        if on_trial is not None:
            on_trial(number + 1)
    return out
