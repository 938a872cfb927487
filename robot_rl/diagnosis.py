"""Why a run does not learn: checks of its recorded figures, the likeliest cause first.

A check reads rows of metrics.jsonl and the run's configuration and gives a `Cause`, or None where it sees nothing
wrong. Their order in `CHECKS` is that of the answer: what is sure and what causes other signs stands before what may
follow from it. What they name, and miss: `docs/howto/why_it_does_not_learn.md`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

SOLVED = 0.8
"""Success rate from which on a run is past blaming its options."""


@dataclass(frozen=True)
class Cause:
    """What keeps a run from learning: its name, a sentence of evidence in figures, and what to try."""

    cause: str
    evidence: str
    advice: str

    def __str__(self) -> str:
        return f"{self.cause}: {self.evidence}. Try: {self.advice}."


class RunFigures:
    """What a run has left.

    Args:
        rows: of metrics.jsonl, in order.
        config: of the run.
    """

    def __init__(self, rows: Sequence[Mapping[str, Any]], config: Mapping[str, Any]) -> None:
        self.rows, self.config = rows, config
        self.policy: Mapping[str, Any] = config.get("policy") or {}

    def all(self, name: str) -> list[float]:
        """Every recorded value of a metric, in order."""
        return [float(row[name]) for row in self.rows if row.get(name) is not None]

    def mean(self, name: str, *, first: float = 0.0, last: float = 1.0) -> float | None:
        """Mean over a part of the run (shares of its rows); None where it was never recorded."""
        values = self.all(name)
        part = values[int(first * len(values)) : max(math.ceil(last * len(values)), int(first * len(values)) + 1)]
        return float(np.mean(part)) if part else None

    @property
    def terms(self) -> list[str]:
        """Names of the reward's terms."""
        names = (key.removeprefix("reward/") for row in self.rows for key in row if key.startswith("reward/"))
        return list(dict.fromkeys(names))

    @property
    def success(self) -> float | None:
        """The newest success rate; None where the world has no notion of it."""
        for name in ("eval/success", "rollout/success"):
            if self.all(name):
                return self.all(name)[-1]
        return None

    @property
    def returns(self) -> tuple[float, float] | None:
        """Mean return of training episodes in the first and in the last row."""
        values = self.all("rollout/return")
        return (values[0], values[-1]) if len(values) > 1 else None

    @property
    def rose(self) -> bool:
        """Whether the return rose by more than a twentieth of its size."""
        ends = self.returns
        return ends is not None and ends[1] - ends[0] > 0.05 * max(abs(ends[0]), abs(ends[1]))

    @property
    def solved(self) -> bool:
        """Whether the world says that its task is done."""
        return self.success is not None and self.success >= SOLVED

    @property
    def story(self) -> str:
        """The return from beginning to end, and the success rate, as far as they are known."""
        ends, success = self.returns, self.success
        said = [] if ends is None else [f"the return of training episodes went from {ends[0]:.4g} to {ends[1]:.4g}"]
        said += [] if success is None else [f"success is {success:.0%} at the end"]
        return " and ".join(said) or "no two rows have a return to compare"


Check = Callable[[RunFigures], "Cause | None"]


def step_size(r: RunFigures) -> Cause | None:
    """A step size ten times beyond what these methods bear."""
    lr = max([float(r.policy[name]) for name in ("lr", "actor_lr") if r.policy.get(name)], default=0.0)
    if lr < 0.005:
        return None
    signs = {"train/kl": "KL divergence per update", "train/clip_fraction": "clipped share"}
    signs |= {"train/gradient_norm": "gradient norm", "train/critic_loss": "critic loss", "train/q": "mean Q"}
    seen = ", ".join(f"{words} {r.all(name)[-1]:.3g}" for name, words in signs.items() if r.all(name))
    return Cause("step size too large", f"lr is {lr:g} ({seen}); {r.story}", "policy.lr=3e-4")


def horizon(r: RunFigures) -> Cause | None:
    """A discount that looks ahead much less far than an episode lasts."""
    gamma, length = r.config.get("gamma"), r.mean("rollout/length", last=0.5)
    if gamma is None or length is None or float(gamma) >= 1.0:
        return None
    ahead = 1.0 / (1.0 - float(gamma))
    blind = (ahead <= 4.0 and length >= 20.0) or (ahead * 10.0 < length and not r.rose and not r.solved)
    if not blind:
        return None
    evidence = f"gamma={float(gamma):g} looks {ahead:.3g} steps ahead, and an episode lasts {length:.4g}; {r.story}"
    return Cause("discount too low", evidence, "gamma=0.99, or n_step above 1")


def batch(r: RunFigures) -> Cause | None:
    """Gradients of a handful of rows."""
    size = r.policy.get("batch_size") or r.policy.get("minibatch")
    if size is None or int(size) >= 16:
        return None
    name = "batch_size=256" if r.policy.get("batch_size") else "minibatch=64"
    return Cause("batch too small", f"a gradient is of {size} rows; {r.story}", f"policy.{name}")


def exploration(r: RunFigures) -> Cause | None:
    """Actions that hardly vary from the beginning on: an entropy below -3.4 per component, where a uniform one has 0.7
    and SAC aims at -1; or an option that asks for that, also in a run that was lucky with it."""
    entropy, actions = r.mean("train/entropy", last=0.34), r.mean("steps/actions")
    if entropy is None or not actions or entropy / actions > -3.4:
        return None
    target = r.policy.get("target_entropy")  # a word names one that is no extreme
    asked = isinstance(target, (int, float)) and target / actions <= -4.0
    if r.solved and not asked and float(r.policy.get("log_std_init") or 0.0) > -4.0:
        return None
    evidence = f"entropy in the first third of the run is {entropy / actions:.2g} per action component; {r.story}"
    return Cause("no exploration", evidence, "a larger policy.target_entropy or policy.log_std_init; their defaults")


def replay_ratio(r: RunFigures) -> Cause | None:
    """Ten or more critic steps per transition (PPO: 50 passes over a rollout) and nothing against overfitting."""
    ratio = float(r.policy.get("utd") or 0) * float(r.config.get("updates_per_step") or 1.0)
    guarded = r.policy.get("layer_norm") or int(r.policy.get("critics") or 2) > 2 or r.policy.get("target_kl")
    if guarded:
        return None
    if int(r.policy.get("epochs") or 0) >= 50:
        evidence = f"{r.policy['epochs']} passes over each rollout; {r.story}"
        return Cause("too many updates per step", evidence, "policy.epochs=10, or policy.target_kl=0.02")
    if ratio < 10.0:
        return None
    q = r.all("train/q")
    evidence = f"{ratio:g} critic steps per transition, two critics, no LayerNorm{f', mean Q {q[-1]:.4g}' if q else ''}"
    advice = "policy=online/rlpd (LayerNorm, ten critics), or policy.utd=1"
    return Cause("too many updates per step", f"{evidence}; {r.story}", advice)


def clipped(r: RunFigures) -> Cause | None:
    """A reward with many values that sits at its least or most in a large share of steps."""
    found = [row["steps/reward_at_edge"] for row in r.rows if row.get("steps/reward_dense")]
    share = float(np.mean(found)) if len(found) >= 2 else 0.0
    if share < 0.3:
        return None
    ends = min(r.all("steps/reward_low")), max(r.all("steps/reward_high"))
    evidence = f"{share:.0%} of steps were paid exactly the least or the most there is ({ends[0]:.4g} to {ends[1]:.4g})"
    return Cause("reward clipped", evidence, "scale the reward instead of clipping it")


def late(r: RunFigures) -> Cause | None:
    """A reward that tells of what was done some steps before, and less of its own step."""
    found = [row for row in r.rows if None not in (row.get("steps/fit_late"), row.get("steps/fit_now"))]
    later = [row for row in found if row["steps/fit_late"] > max(row["steps/fit_now"] + 0.1, 0.15)]
    then, fit = r.mean("steps/fit_late") or 0.0, r.mean("steps/fit") or 0.0
    if not found or len(later) < 0.5 * len(found) or then < fit:
        return None
    lag = float(np.median([row["steps/late"] for row in later]))
    now, then = (float(np.mean([row[f"steps/{name}"] for row in later])) for name in ("fit_now", "fit_late"))
    evidence = f"what was done about {lag:g} steps before explains {then:.0%} of the reward, the step itself {now:.0%}"
    return Cause("reward delayed", evidence, "pay in the step that earned it, or put what is pending into the state")


def noisy(r: RunFigures) -> Cause | None:
    """A reward with many values that neither the step, nor a step before, nor the reward before tells."""
    names = ("steps/fit", "steps/fit_late", "steps/smooth")
    best = [max(row[name] for name in names) for row in r.rows if None not in map(row.get, names)]
    spread = r.mean("steps/reward_spread")
    if not best or float(np.mean(best)) > 0.15 or not spread or not any(r.all("steps/reward_dense")):
        return None
    evidence = f"actions, observations and the reward before explain {np.mean(best):.0%} of its variance"
    return Cause("reward noisy", f"{evidence} (deviation {spread:.3g} per step)", "a reward of the state alone")


def scale(r: RunFigures) -> Cause | None:
    """Rewards that learners without reward normalisation cannot represent soon."""
    size, spread = r.mean("steps/reward"), r.mean("steps/reward_spread")
    scaled = r.policy.get("normalize_reward") or r.all("train/reward_scale")
    if size is None or spread is None or scaled or max(abs(size), spread) < 20.0:
        return None
    q = r.all("train/q")
    told = f", and mean Q has come to {q[-1]:.4g}" if q else ""
    evidence = f"a step pays {size:.4g} on average (deviation {spread:.3g}){told}"
    return Cause("reward too large", evidence, "divide the reward so that a step pays about 1")


def flat(r: RunFigures) -> Cause | None:
    """All steps were paid the same and no episode ended early, in a world without a notion of success."""
    sizes, spreads = r.all("steps/reward"), r.all("steps/reward_spread")
    if r.success is not None or not sizes or any(spreads) or len(set(sizes)) > 1 or r.mean("steps/terminated"):
        return None
    evidence = (
        f"every step of {r.all('rollout/episodes')[-1]:.0f} episodes was paid {sizes[0]:.4g}, and none ended early"
    )
    return Cause("reward never varied", evidence, "explore wider or longer, easier starts, a reward that leads there")


def constant(r: RunFigures) -> Cause | None:
    """Most of the reward does not depend on what is done, where no episode can end by failing."""
    if r.mean("steps/terminated") and not (r.success or 0.0) > 0.0:
        return None  # staying alive is what it pays for
    sizes = {name: abs(r.mean(f"reward/{name}") or 0.0) for name in r.terms}
    for name in r.terms:
        values = {value for end in ("low", "high") for value in r.all(f"reward_{end}/{name}")}
        if len(values) == 1 and sizes[name] > 0.5 * sum(sizes.values()):
            evidence = f"term {name} paid {values.pop():.4g} in every step, {sizes[name] / sum(sizes.values()):.0%}"
            return Cause("constant bonus", f"{evidence} of the reward", f"leave {name} out")
    size, spread = r.mean("steps/reward"), r.mean("steps/reward_spread")
    if size and spread and abs(size) > 20.0 * spread:
        evidence = f"a step pays {size:.4g}, and deviates by {spread:.3g} from that"
        return Cause("constant bonus", evidence, "take off what every step is paid")
    return None


def penalty(r: RunFigures) -> Cause | None:
    """One penalty was most of the reward at first; it fell as actions became small, and others gained little."""
    first = {name: r.mean(f"reward/{name}", last=0.01) or 0.0 for name in r.terms}
    after = {name: r.mean(f"reward/{name}", first=0.67) or 0.0 for name in r.terms}
    if len(first) < 2 or r.solved:
        return None
    worst = min(first, key=lambda name: first[name])
    share = -first[worst] / max(sum(map(abs, first.values())), 1e-12)
    others = [name for name in first if name != worst]
    gained = sum(after[name] - first[name] for name in others)
    begun, left = r.mean("steps/action_spread", last=0.01), r.mean("steps/action_spread", first=0.67)
    still = begun is not None and left is not None and left < 0.6 * begun
    if share < 0.6 or after[worst] < 0.5 * first[worst] or gained > 0.1 * (after[worst] - first[worst]) or not still:
        return None
    evidence = f"{worst} was {share:.0%} of the reward at first and fell from {first[worst]:.3g} to {after[worst]:.3g}"
    evidence += f" per step, while {', '.join(others)} gained {gained:.2g} together; {r.story}"
    return Cause("dominating penalty", evidence, f"a weight of {worst} ten times smaller")


def dead_term(r: RunFigures) -> Cause | None:
    """A term that was 0 in every step."""
    ends = {name: [*r.all(f"reward_low/{name}"), *r.all(f"reward_high/{name}")] for name in r.terms}
    dead = [name for name, values in ends.items() if not any(values)]
    if not dead:
        return None
    evidence = f"{', '.join(dead)} {'was' if len(dead) == 1 else 'were'} 0 in all {r.rows[-1]['step']} steps"
    return Cause("dead term", f"{evidence}; {r.story}", "check its condition, units and weight, or leave it out")


def _success_pays(r: RunFigures) -> tuple[float, float]:
    """Steps with success, and what they paid above the others, in deviations."""
    found = [
        (row["steps/success_steps"], row["steps/success_pays"])
        for row in r.rows
        if row.get("steps/success_pays") is not None
    ]
    count = sum(steps for steps, _ in found)
    return count, sum(steps * pays for steps, pays in found) / max(count, 1.0)


def sign(r: RunFigures) -> Cause | None:
    """Steps with success pay less than others; or episodes that end early pay more, where no end is a success."""
    count, pays = _success_pays(r)
    if pays * count**0.5 < -3.0 and pays < -2.5 and not r.solved:
        evidence = f"steps with success paid {-pays:.1f} deviations less than others ({count:.0f} such steps)"
        return Cause("reward of the wrong sign", f"{evidence}; {r.story}", "turn the sign of the reward")
    lengths, ends, size = r.all("rollout/length"), r.mean("steps/terminated", last=0.01), r.mean("steps/reward")
    quick = len(lengths) > 1 and bool(ends) and lengths[-1] <= lengths[0] and ends * lengths[0] > 0.5
    if quick and r.rose and size is not None and size < 0.0 and not r.success:
        evidence = f"every step costs ({size:.3g}), and episodes went from {lengths[0]:.4g} to {lengths[-1]:.4g} steps"
        return Cause("reward of the wrong sign", f"{evidence}; {r.story}", "pay for staying, charge for failing")
    return None


_RISEN = 0.3
"""Success rate from which a rising reward is taken for one of the task that success asks for."""


def other_task(r: RunFigures) -> Cause | None:
    """The reward rose, success did not, and steps with success paid hardly more than others."""
    count, pays = _success_pays(r)
    if count < 2 or pays > 1.0 or not r.rose or (r.success or 0.0) > _RISEN:
        return None
    evidence = f"steps with success paid {pays:+.1f} deviations beside others ({count:.0f} such steps)"
    return Cause(
        "reward for something else",
        f"{evidence}; {r.story}",
        "check what the reward reads (object, goal), and its sign",
    )


def endless(r: RunFigures) -> Cause | None:
    """No episode has ended: returns, lengths and success of training are not known then."""
    if r.all("rollout/episodes")[-1] > 0.0:
        return None
    evidence = f"none in {r.all('step')[-1]:.0f} steps" if r.all("step") else "none at all"
    return Cause("no episode ended", evidence, "a time limit, env.episode_steps=200 (env=gym), or a longer run")


def never_success(r: RunFigures) -> Cause | None:
    """Success was never seen: not in training, not in evaluation."""
    episodes, met = r.all("rollout/episodes")[-1], any(r.all("rollout/success") + r.all("eval/success"))
    if r.success is None or not episodes or met or _success_pays(r)[0]:
        return None
    evidence = f"no step of {episodes:.0f} training episodes was a success; {r.story}"
    return Cause(
        "success never seen",
        evidence,
        "check the condition of success, and that the reward leads there; easier starts, demonstrations",
    )


def idle_action(r: RunFigures) -> Cause | None:
    """Components of the action that no observation answers to."""
    idle, actions = r.mean("steps/idle_actions", last=0.5), r.mean("steps/actions")
    if not idle or idle < 0.75 or r.solved:
        return None
    return Cause("dead action", f"{idle:.2g} of {actions:.0f} action components move nothing", "check the actuators")


def stuck_observation(r: RunFigures) -> Cause | None:
    """Observations that sit at their limit in most steps, or are far too large for a network that takes them as they
    are."""
    stuck, largest = r.mean("steps/obs_stuck", last=0.5), r.mean("steps/obs_largest")
    if r.solved or (r.rose and r.success is None):
        return None
    if stuck and stuck >= 0.75:
        return Cause("saturated observation", f"{stuck:.2g} components are at a limit in most steps", "widen limits")
    tamed = r.policy.get("normalize_obs") or r.all("train/centred")
    if largest is not None and largest > 100.0 and not tamed:
        return Cause("observation too large", f"one is {largest:.4g}", "policy.normalize_obs=true, or other units")
    return None


def overestimation(r: RunFigures) -> Cause | None:
    """A mean Q above what the largest reward ever seen, paid for ever, would give; or above twice what steps earn now,
    mean reward / (1 - gamma (1 - share of steps that end for good)); with the entropy bonus."""
    q, gamma, high = r.all("train/q"), r.config.get("gamma"), r.all("steps/reward_high")
    if not q or gamma is None or not high or float(gamma) >= 1.0 or r.solved:
        return None
    bonus = (r.mean("train/alpha", first=0.67) or 0.0) * max(r.mean("train/entropy", first=0.67) or 0.0, 0.0)
    ends, paid = r.mean("steps/terminated", first=0.67) or 0.0, r.mean("steps/reward", first=0.67) or 0.0
    top = max(high) if not ends else max(*high, 0.0)
    most = (top + bonus) / (1.0 - float(gamma))
    earned = (paid + bonus) / (1.0 - float(gamma) * (1.0 - ends))
    slack = 0.2 * (max(high) - min(r.all("steps/reward_low"))) / (1.0 - float(gamma))  # a young critic's
    if q[-1] <= most + slack and (paid <= 0.0 or q[-1] <= 2.0 * earned):
        return None
    evidence = f"mean Q is {q[-1]:.4g}, steps earn {earned:.4g} discounted, and no return can exceed {most:.4g}"
    return Cause("overestimated values", evidence, "policy.lr lower, policy.layer_norm=true, or more critics")


_EARLY = 10
"""Rows below which updates of PPO are too few to be judged."""


def clip_share(r: RunFigures) -> Cause | None:
    """Policy updates that are cut off, or a critic of PPO that explains nothing, where ten of them taught nothing."""
    if r.solved or r.rose or len(r.all("train/clip_fraction")) + len(r.all("train/explained_variance")) < _EARLY:
        return None
    share, explained = r.mean("train/clip_fraction"), r.mean("train/explained_variance", first=0.5)
    if share is not None and share > 0.5:
        return Cause("updates too large", f"{share:.0%} of rows were clipped; {r.story}", "lower policy.lr or epochs")
    if explained is not None and explained < 0.05:
        evidence = f"the critic explains {explained:.0%} of the returns; {r.story}"
        return Cause("critic learns nothing", evidence, "look at observations and reward: what tells the return?")
    return None


def saturated_actions(r: RunFigures) -> Cause | None:
    """A policy that drives everything to its limits and earns nothing by it."""
    share = r.mean("steps/action_edge", first=0.5)
    if share is None or share < 0.95 or r.solved or r.rose:
        return None
    return Cause("saturated actions", f"{share:.0%} of actions are at their limits; {r.story}", "a lower policy.lr")


CHECKS: tuple[Check, ...] = (
    *(step_size, horizon, batch, exploration, replay_ratio),
    *(clipped, late, noisy, penalty, flat, constant, scale, dead_term, sign, other_task, endless, never_success),
    *(idle_action, stuck_observation, overestimation, clip_share, saturated_actions),
)
"""In the order of the answer."""

OF_REWARD = {horizon, clipped, late, noisy, penalty, flat, constant, scale, dead_term, sign, other_task}
"""Checks that blame the reward or its discount, which keep no learner from learning that reads neither."""


def diagnose(rows: Sequence[Mapping[str, object]], config: Mapping[str, object]) -> list[Cause]:
    """What keeps a run from learning, the likeliest first; empty where nothing is seen.

    Args:
        rows: of metrics.jsonl.
        config: of the run, as its config.yaml holds it.
    """
    record = RunFigures(rows, config)
    if not record.all("rollout/episodes"):
        return []  # a run that steps no environment, or has not begun
    unread = OF_REWARD if record.all("rollout/rewardless") else set()
    return [found for check in CHECKS if check not in unread and (found := check(record)) is not None]
