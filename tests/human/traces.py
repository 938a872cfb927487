"""Hand-made control steps for the human-in-the-loop tests: every observation is a number that names its moment."""
# pyright: reportArgumentType=false

import numpy as np

from robot_rl.data.hil_episode import EpisodeDraft, EpisodeRules
from robot_rl.data.hil_record import ControlStep, Source
from robot_rl.types import IOSpec

TICK = 100_000_000  # 10 Hz in ns
SOURCES = {
    "p": Source.POLICY,
    "H": Source.HUMAN,
    "r": Source.RESET,
    "s": Source.SCRIPTED,
    "b": Source.BLEND,
}


def io(images: bool = False) -> IOSpec:
    obs: dict = {"state": ((2,), "float32")}
    if images:
        obs["image.front"] = ((4, 4, 3), "uint8")
    return IOSpec(obs, ("a",), (-1.0,), (1.0,), ("1",), 10.0)


def observation(moment: float, images: bool = False) -> dict:
    obs = {"state": np.array([moment, -moment], np.float32)}
    if images:
        obs["image.front"] = np.full((4, 4, 3), int(moment) % 251, np.uint8)
    return obs


def step(t: int, *, source: Source = Source.POLICY, moment: float | None = None, images: bool = False, **more):
    """The step from moment t to t + 1; its action is t, so that a sample tells where it came from."""
    moment = t if moment is None else moment
    action = np.array([(t % 1000) / 1000.0], np.float32)
    zero = np.zeros(1, np.float32)
    return ControlStep(
        obs=observation(moment, images),
        next_obs=observation(moment + 1, images),
        action_policy=zero,
        action_human=zero,
        action_cmd=action,
        action_exec=action,
        source=source,
        t_obs=t * TICK,
        t_cmd=t * TICK,
        t_next=(t + 1) * TICK,
        **more,
    )


def draft(trace: str, rules: EpisodeRules | None = None, **more) -> EpisodeDraft:
    """ "ppHbp": policy, policy, human, blend, policy; "|" between two H starts a new span; "-" is a missing moment."""
    rules = rules or EpisodeRules()
    out, moment, fresh = EpisodeDraft(rules, 10.0), 0, False
    for letter in trace:
        if letter == "|":
            fresh = True
            continue
        if letter != "-":
            out.add(step(moment, source=SOURCES[letter], intv_start=fresh, **more))
            fresh = False
        moment += 1
    return out
