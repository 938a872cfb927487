"""The off-policy evaluation job: how good a policy is, from a log alone, with intervals and a warning of support."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from robot_rl.chunks import ChunkedPolicy
from robot_rl.data.log_dataset import LogDataset, LogView
from robot_rl.data.mix import merge
from robot_rl.data.store import Store
from robot_rl.loops.contract import batches_for, update_learner
from robot_rl.ope import estimators
from robot_rl.ope.estimators import Logged
from robot_rl.report import Support
from robot_rl.stats import Interval, bootstrap, half_samples
from robot_rl.types import AnyLearner, Episode, IOSpec, Obs, Policy, Transitions
from robot_rl.types.options import Count, Part, Positive, Share, Whole
from robot_rl.verbs import logs
from robot_rl.verbs.logs import LogSettings
from robot_rl.verbs.ope_policy import Judged, judge_policy

Method = Literal["fqe", "mb", "is", "wis", "pdis", "wpdis", "dr", "wdr"]
METHODS: tuple[Method, ...] = get_args(Method)
_MOST_STARTS = 256
_LOGP = ("action_log_probs", "infos/action_log_probs")


class OpeSettings(LogSettings):
    """Numbers of an evaluation, beside those of its log."""

    seed: Whole = 0
    """Of everything."""
    methods: tuple[Method, ...] = ("fqe", "wis", "wpdis", "wdr")
    """Which estimators; fqe: fitted Q, mb: dynamics models, the rest: importance sampling and doubly robust."""
    updates: Count = 50_000
    """Of FQE."""
    model_updates: Count = 10_000
    """Of the dynamics models."""
    behaviour_updates: Count = 5_000
    """Of the fitted behaviour policy, where the log holds no log-densities."""
    holdout: Part = 0.2
    """Share of the episodes that the behaviour policy and FQE do not train on; all estimates use them."""
    smooth: Positive | None = None
    """Standard deviation of a Gaussian around a deterministic policy, which gives it a density."""
    resamples: Count = 2000
    """Bootstrap draws."""
    confidence: Part = 0.95
    """Mass of the intervals."""
    support_quantile: Part = 0.01
    """A policy action less likely under the behaviour than this share of logged ones is outside."""
    support_share: Share = 0.1
    """More than this share outside is a warning."""


@dataclass(frozen=True)
class OpeEstimate:
    """One estimator's answer.

    Attributes:
        name: of the estimator.
        interval: value and bounds, or None where it could not be computed.
        note: why not, or how far to trust it.
    """

    name: str
    interval: Interval | None
    note: str = ""


@dataclass(frozen=True)
class OpeReport:
    """What the job found.

    Attributes:
        estimates: one per method.
        behaviour: discounted value of the logged policy itself.
        effective: effective number of episodes behind the ratios, or None without ratios.
        outside: share of the policy's actions outside the data's support.
        warnings: lines for the user.
        td_error: FQE's root mean square temporal-difference error on episodes it did not train on, or None.
        support: what `outside` is made of.
        judged: which policy the estimates speak of: its mode, or as it samples.
    """

    estimates: list[OpeEstimate]
    behaviour: Interval
    effective: float | None
    outside: float
    warnings: list[str]
    td_error: float | None
    support: Support
    judged: str


@dataclass(frozen=True)
class Judges:
    """How to build what judges a policy.

    Attributes:
        make_fqe: (io, policy, deterministic=bool) -> learner of Q with `members` value functions, of the policy's mode
            or of the policy as it samples.
        make_behaviour: (io) -> Gaussian cloning learner.
        make_model: (io, policy, deterministic=bool) -> learner of dynamics with `members`, for method mb.
    """

    make_fqe: Callable[..., Any]
    make_behaviour: Callable[[IOSpec], Any]
    make_model: Callable[..., Any] | None = None


def read(
    settings: OpeSettings, io: IOSpec, alike: Callable[[Store], bool] = lambda store: False
) -> tuple[Store, list[str]]:
    """The log with its actions as the policy of this interface answers them, and what was done to them.

    Args:
        settings: name the log, and what a person says of its actions.
        io: of the policy.
        alike: as in `run`.

    Raises:
        ValueError: they do not fit, or nobody knows what the actions mean.
    """
    store = logs.read_log(settings)
    if alike(store) and not store.io.knows_bounds and not io.knows_bounds:
        return store, []
    return logs.fit(store, io)


def run(
    settings: OpeSettings,
    policy: Policy,
    io: IOSpec,
    judges: Judges,
    *,
    alike: Callable[[Store], bool] = lambda store: False,
) -> OpeReport:
    """Evaluate `policy` on a log.

    Args:
        settings: numbers.
        policy: answers tensors with tensors; with `log_prob` where importance weights are wanted.
        io: its interface.
        judges: what is fitted to the log.
        alike: whether the actions of a log of unknown range are on the policy's scale, as those that it was made from.

    Raises:
        ValueError: unknown method, mb without `judges.make_model`, a policy that plays chunks or remembers, or the log
            does not fit it.
    """
    s = settings
    if "mb" in s.methods and judges.make_model is None:
        raise ValueError("the model-based estimator mb needs a model to learn: Judges(make_model=...)")
    if isinstance(policy, ChunkedPolicy):
        raise ValueError(
            "the policy plays chunks: what it does next depends on the chunk under way and not on the state alone, and "
            "these estimators judge policies of the state; evaluate it in an environment"
        )
    if policy.parts.remembers:
        raise ValueError(
            "the policy remembers: its action depends on more than the state, and these estimators judge policies of "
            "the state; evaluate it in an environment"
        )
    store, scaled = read(s, io, alike)
    if scaled:
        s = s.model_copy(update={"action_clip": True})
    plain = LogSettings(**s.model_dump(include=set(LogSettings.model_fields)))
    data, notes = logs.sampler(store, plain, seed=s.seed)
    notes += scaled
    logs.check_rewards(data)
    inside, held_out = _split(data.episodes, s.holdout, s.seed)
    warnings = list(notes)

    mu = _behaviour(data, inside, s, judges.make_behaviour, io)
    if not mu.column:
        warnings.append("the log holds no log-densities: the behaviour policy is estimated by cloning")
    support = _support(mu, policy, _pick(data, held_out, s), s)
    outside = support.share
    if outside > s.support_share:
        warnings.append(
            f"WARNING: {outside:.0%} of the policy's actions are less likely under the data than "
            f"{s.support_quantile:.0%} of the logged ones; no estimate from this log can be trusted there"
        )
    ratios = bool(set(s.methods) - {"fqe", "mb"})
    subject = judge_policy(policy, ratios=ratios, smooth=s.smooth, seed=s.seed)
    fqe, td_error, seen = None, None, np.zeros((1, 0), bool)
    if {"fqe", "dr", "wdr"} & set(s.methods):
        fqe = judges.make_fqe(io, subject.policy, deterministic=subject.deterministic)
        fqe.prepare(logs.facts(data))
        (batches, seen), start = _halves(data, inside, s, fqe), data.initial_obs()["state"].float()
        _fit(fqe, batches, s.updates - s.updates // 10, "FQE")
        early = float(fqe.state_values(start).mean())
        _fit(fqe, batches, s.updates // 10, "FQE, last tenth")
        late = float(fqe.state_values(start).mean())
        if abs(late - early) > 0.02 * max(abs(late), abs(early)):
            warnings.append(
                f"WARNING: the last tenth of FQE's updates moved its value from {early:.4g} to {late:.4g}; it has not "
                f"settled, so its interval says nothing: raise updates (now {s.updates}) or ope.lr"
            )
        td_error = fqe.td_error(next(batches_for(fqe, _pick(data, held_out, s).in_order(4096))))

    model = None
    if "mb" in s.methods and judges.make_model is not None:
        model = judges.make_model(io, subject.policy, deterministic=subject.deterministic)
        model.prepare(logs.facts(data))
        _fit(model, _halves(data, inside, s, model)[0], s.model_updates, "models")
    logged, reason = _read_logged(data, subject, mu, fqe, seen, s), subject.reason
    estimates = [_estimate(name, logged, reason, model if name == "mb" else fqe, data, s) for name in s.methods]
    effective = None if reason else estimators.effective_sample_size(logged)
    if not reason and estimators.unreliable(logged):
        warnings.append(
            f"WARNING: only {effective:.1f} of {len(logged.length)} episodes count behind the importance weights; "
            "those estimates are unreliable"
        )
    returns = logged.returns
    behaviour = bootstrap(
        len(returns), lambda i: float(returns[i].mean()), resamples=s.resamples, confidence=s.confidence, seed=s.seed
    )
    return OpeReport(estimates, behaviour, effective, outside, warnings, td_error, support, subject.name)


def _split(episodes: np.ndarray, share: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Episodes to train on and episodes held out; a log of one episode is both."""
    if len(episodes) < 2 or share <= 0.0:
        return episodes, episodes
    order = np.random.default_rng(seed).permutation(episodes)
    out = min(max(1, round(share * len(episodes))), len(episodes) - 1)
    return np.sort(order[out:]), np.sort(order[:out])


def _pick(data: LogDataset, episodes: np.ndarray, s: OpeSettings, seed: int = 0) -> LogDataset:
    """The same rewards, other episodes."""
    return LogDataset(
        data.store,
        LogView(
            gamma=s.gamma,
            reward_scale=data.reward_scale,
            reward_bias=data.reward_bias,
            action_clip=1.0 if s.action_clip else None,
        ),
        seed=seed,
        episodes=episodes,
    )


def _halves(data: LogDataset, inside: np.ndarray, s: OpeSettings, fqe: Any) -> tuple[Iterator[Transitions], np.ndarray]:
    """Batches in which every member has rows of its own half of the episodes; (M, N) bool, which of the N it sees.

    The spread between halves is that of the bootstrap (delete-d jackknife with d = n/2; Shao and Wu, A General Theory
    for Jackknife Variance Estimation).
    """
    rng, members = np.random.default_rng(s.seed), fqe.seeds
    parts, seen = [], np.zeros((members, len(data.store.length)), bool)
    for member in range(members):
        half = rng.permutation(inside)[: max(1, (len(inside) + 1) // 2)] if members > 1 else inside
        seen[member, half] = True
        parts.append(_pick(data, half, s, seed=s.seed + member))
    streams = [part.batches(fqe.need.rows // members) for part in parts]

    def join() -> Iterator[Transitions]:
        while True:
            yield merge({str(member): next(stream) for member, stream in enumerate(streams)})

    return join(), seen


def _select_unseen(values: Tensor, seen: np.ndarray) -> np.ndarray:
    """Mean over the members that were not trained on the episode, (M, T) -> (T,); of all where each of them was.

    What a value function was fitted to it explains too well: a doubly robust estimate whose Q has seen the episode
    corrects it by too little, and its interval is too narrow (cross-fitting; Chernozhukov et al., Double/Debiased
    Machine Learning).
    """
    kept = values if seen.all() else values[torch.from_numpy(~seen).to(values.device)]
    return kept.mean(0).double().cpu().numpy()


def _fit(learner: AnyLearner, batches: Iterator[Transitions], updates: int, what: str) -> None:
    with tqdm(total=updates, desc=what, unit="update", file=sys.stderr, dynamic_ncols=True) as bar:
        for i in range(updates):
            metrics = update_learner(learner, batches)
            if (i + 1) % 100 == 0 or i + 1 == updates:
                bar.update(i + 1 - bar.n)
                bar.set_postfix({k.removeprefix("train/"): f"{v:.3g}" for k, v in list(metrics.items())[:2]})


@dataclass(frozen=True)
class _Behaviour:
    """Who drove in the log, as cloned from it.

    Attributes:
        log_prob: (observations, actions (B, A)) -> (B,) log-density.
        column: of the log, with the true log-densities of the logged actions; "" where it has none.
    """

    log_prob: Callable[[Obs, Tensor], Tensor]
    column: str


def _behaviour(
    data: LogDataset,
    inside: np.ndarray,
    s: OpeSettings,
    make: Callable[[IOSpec], Any],
    io: IOSpec,
) -> _Behaviour:
    """Clone the log's actions."""
    learner = make(io)
    learner.prepare(logs.facts(data))
    _fit(learner, _pick(data, inside, s).batches(learner.need.rows), s.behaviour_updates, "behaviour")
    column = next((name for name in _LOGP if f"info/{name}" in data.store.names), "")
    density = learner.policy.parts.log_prob
    assert density is not None  # a Gaussian
    return _Behaviour(density, column)


def _support(mu: _Behaviour, policy: Policy, data: LogDataset, s: OpeSettings) -> Support:
    """Which of the policy's actions the behaviour would hardly have taken."""
    batch = next(iter(data.in_order(4096)))
    state = batch.obs["state"]
    chosen = torch.as_tensor(policy.act({"state": state}, deterministic=True).value)
    limit = torch.quantile(mu.log_prob({"state": state}, batch.action), s.support_quantile)
    outside = mu.log_prob({"state": state}, chosen) < limit
    return Support(*(part.detach().cpu().numpy() for part in (state, batch.action, chosen, outside)))


def _read_logged(
    data: LogDataset, subject: Judged, mu: _Behaviour, fqe: Any, seen: np.ndarray, s: OpeSettings
) -> Logged:
    """Padded episodes; ratios are 1 where `subject` has none.

    Only what the wanted methods read is computed: values of every logged state take longer than FQE itself on a large
    log. `seen` (M, N): the episodes that each of FQE's members was trained on.
    """
    store, chosen = data.store, data.episodes
    ratios, with_model = bool(set(s.methods) - {"fqe", "mb"}), bool({"dr", "wdr"} & set(s.methods))
    count, steps = len(chosen), int(store.length[chosen].max())
    reward = np.zeros((count, steps))
    ratio, q, v = (np.zeros((count, steps) if wanted else (count, 1)) for wanted in (ratios, with_model, with_model))
    ends: dict[int, np.ndarray] = {}  # row -> where an episode was cut
    reason, density = subject.reason, subject.policy.parts.log_prob
    for row, index in enumerate(chosen.tolist()):
        episode = store.episode(index)
        size = len(episode)
        if not size:
            continue
        reward[row, :size] = episode.reward.astype(np.float64) * data.reward_scale + data.reward_bias
        if not episode.terminated and store.final_obs_valid[index]:
            ends[row] = np.array(episode.obs["state"][-1], np.float32)
        if reason and not with_model:
            continue
        state = torch.from_numpy(np.array(episode.obs["state"], np.float32))
        action = torch.from_numpy(np.array(episode.action, np.float32)).clamp(-1.0, 1.0)
        if not reason and density is not None:
            target = density({"state": state[:-1]}, action)
            driven = _density_of_logged(mu, episode, state[:-1], action)
            ratio[row, :size] = (target.cpu() - driven.cpu()).double().numpy()
        if with_model:
            q[row, :size] = _select_unseen(fqe.q_values(state[:-1], action), seen[:, index])
            v[row, :size] = _select_unseen(fqe.state_values(state[:-1]), seen[:, index])
    tail = np.zeros(count)
    if fqe is not None and ends:
        rows = np.array(list(ends))
        value = fqe.state_values(torch.from_numpy(np.stack(list(ends.values())))).mean(0).double().cpu().numpy()
        tail[rows] = s.gamma ** store.length[chosen][rows].astype(np.float64) * value
    logged = Logged(
        reward,
        ratio if ratios else np.zeros((count, steps)),
        np.asarray(store.length[chosen]),
        s.gamma,
        q=q if with_model else None,
        v=v if with_model else None,
        tail=tail if fqe is not None else None,
    )
    return logged


def _density_of_logged(mu: _Behaviour, episode: Episode, state: Tensor, action: Tensor) -> Tensor:
    if not mu.column:
        return mu.log_prob({"state": state}, action)
    return torch.from_numpy(np.array(episode.meta["columns"][mu.column], np.float32))


_ESTIMATORS: dict[str, Callable[[Logged], float]] = {
    "is": estimators.importance_sampling,
    "wis": estimators.weighted_importance_sampling,
    "pdis": estimators.per_decision,
    "wpdis": estimators.weighted_per_decision,
    "dr": lambda logged: estimators.doubly_robust(logged, self_normalised=False),
    "wdr": estimators.doubly_robust,
}


def _estimate(name: str, logged: Logged, reason: str, fqe: Any, data: LogDataset, s: OpeSettings) -> OpeEstimate:
    if name in ("fqe", "mb"):
        start = data.initial_obs()["state"].float()
        if name == "mb" and len(start) > _MOST_STARTS:  # roll-outs take a second per hundred
            start = start[torch.from_numpy(np.random.default_rng(s.seed).permutation(len(start))[:_MOST_STARTS])]
        values = fqe.state_values(start).double().cpu().numpy()  # (M, E)
        interval = half_samples(values, confidence=s.confidence, seed=s.seed)
        what = "value functions" if name == "fqe" else "models"
        return OpeEstimate(name, interval, f"{len(values)} {what}, each from half of the episodes")
    if reason:
        return OpeEstimate(name, None, reason)
    interval = bootstrap(
        len(logged.length),
        lambda index: _ESTIMATORS[name](logged.part(index)),
        resamples=s.resamples,
        confidence=s.confidence,
        seed=s.seed,
    )
    return OpeEstimate(name, interval, "unreliable" if estimators.unreliable(logged) else "")


def line(estimate: OpeEstimate) -> str:
    """For the screen."""
    if estimate.interval is None:
        return f"- ({estimate.note})"
    i = estimate.interval
    note = f"  ({estimate.note})" if estimate.note else ""
    return f"{i.value:.4g}  [{i.low:.4g}, {i.high:.4g}]{note}"


def table(report: OpeReport) -> dict[str, object]:
    """Name -> what the screen shows."""
    return {
        "judged": f"the policy, {report.judged}",
        **{e.name: line(e) for e in report.estimates},
        "logged policy": line(OpeEstimate("", report.behaviour)),
        "effective episodes": "-" if report.effective is None else report.effective,
        "outside support": f"{report.outside:.1%} of actions",
    }


def plain_numbers(report: OpeReport) -> dict[str, object]:
    """For JSON."""

    def bounds(interval: Interval | None) -> dict[str, float] | None:
        return None if interval is None else {"value": interval.value, "low": interval.low, "high": interval.high}

    return {
        "judged": report.judged,
        "estimates": {e.name: {**(bounds(e.interval) or {}), "note": e.note} for e in report.estimates},
        "behaviour": bounds(report.behaviour),
        "effective_episodes": report.effective,
        "outside_support": report.outside,
        "fqe_td_error": report.td_error,
        "warnings": report.warnings,
    }
