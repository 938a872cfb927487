"""Search of a swing-up policy in the mechanics of a chain of hinges, identified from logs alone."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Annotated, Any

import torch
from pydantic import Field, field_validator
from torch import Tensor

from robot_rl.policies.nets.learner_state import LearnerState
from robot_rl.policies.nets.rows import state_size
from robot_rl.policies.offline.chain_search_parts.cross_entropy import CrossEntropy
from robot_rl.policies.offline.chain_search_parts.fit import ChainFit, find_driven, open_loop
from robot_rl.policies.offline.chain_search_parts.log import MARGIN, Signals, StateLayout, Windows, signals
from robot_rl.policies.offline.chain_search_parts.mechanics import HingeChain
from robot_rl.policies.offline.chain_search_parts.policy import ChainPolicy
from robot_rl.policies.offline.chain_search_parts.trials import (
    SwingTrial,
    Variants,
    best_rest,
    fit_reward,
    lowest_rest,
    worth,
)
from robot_rl.types import IOSpec, Learner, Metrics, Needs, Options, StateDict, Transitions
from robot_rl.types.options import Count, Mixing, NotNegative, Part, Positive, Share, Whole

Several = Annotated[int, Field(ge=2)]

_CHECKS = (0.2, 0.5, 1.0)
"""Seconds after which the model's prediction is compared with held-out recordings."""


class ChainModelOptions(Options):
    """What of the log is read, and how the mechanics are fitted."""

    batch_size: Count = 64
    """Windows per batch while the log is read."""
    sine: tuple[Whole, ...] | None = None
    """Columns of sin q_i; null for [sin q1, cos q1, ..., sin qn, cos qn, v1 ... vn]."""
    cosine: tuple[Whole, ...] | None = None
    """Columns of cos q_i."""
    speed: tuple[Whole, ...] | None = None
    """Columns of the speeds, in any unit."""
    driven: tuple[Whole, ...] | None = None
    """Joint of every action, from 0; null finds the assignment that explains the log best."""
    assist: tuple[str, ...] = ()
    """Columns of the log's info with the torques of the other joints, in the unit of the action."""
    windows: Several = 640
    """How many windows are kept."""
    window: Count = 115
    """Steps of each; over 1 s so that predictions of 1 s can be judged."""
    reach: Several = 30
    """Steps of the simulated stretches that the model is fitted on."""
    hold_out: Whole = 5
    """Every so-maniest recording judges the model and is not fitted; 0 for none."""
    fit_steps: Count = 16
    """Gauss-Newton steps of the model."""
    members: Whole = 4
    """Bootstrap models besides it."""
    member_steps: Count = 3
    """Gauss-Newton steps of each."""
    metrics_every: Whole = 1
    """Metrics are computed in every n-th update."""

    @field_validator("hold_out")
    @classmethod
    def check_hold_out(cls, value: int) -> int:
        """Refuse to judge by all recordings."""
        if value == 1:
            raise ValueError("expected 0, or at least 2: by 1 every recording would judge the model and none be fitted")
        return value


class ChainSearchOptions(ChainModelOptions):
    """Of the search of a policy in the fitted mechanics."""

    population: Several = 96
    """Candidates of a generation."""
    variants: Several = 16
    """Of the robot that each candidate is tried in."""
    elites: Part = 0.125
    """Share of the candidates that the search moves to."""
    smooth: Mixing = 0.5
    """How far it moves."""
    first_std: Positive = 1.0
    """Deviation of the weights while screening."""
    screens: Count = 8
    """Generations that only screen: as many trials, but of more candidates in `screen_variants` of the robot; the
    search then begins at the best of theirs."""
    screen_variants: Count = 2
    """See `screens`."""
    second_std: Positive = 0.3
    """Deviation with which the search begins there."""
    region: Annotated[tuple[float, ...], Field(min_length=1)] = (3.0, 0.0)
    """First guesses of where the regulator acts, one search after the other: log of the cost-to-go at the border, less
    that at which it asks for full torque."""
    generations: Count = 40
    """Of one search. It is judged then in four times as many variants, the best search so far is what acts, and another
    begins with screening."""
    trial_s: Positive = 6.0
    """Seconds of a trial."""
    start_spread: NotNegative = 0.05
    """Trials begin at the lowest rest, every angle [rad] and speed [rad/s] up to this much off."""
    spread: NotNegative = 0.05
    """Relative deviation of inertia and gravity between variants, besides that of the members."""
    friction_range: tuple[NotNegative, NotNegative] = (0.1, 0.8)
    """Variants have a random recording's dry friction times a number from this range."""
    most_delay: Whole = 1
    """Variants have 0 ... this many steps between command and torque."""
    angle_noise: NotNegative = 0.001
    """Of measured angles [rad]."""
    speed_noise: NotNegative = 0.03
    """Of measured speeds [rad/s]."""
    hold_level: Share = 0.95
    """How good a step has to be to count as held: 0 is the reward of the lowest rest, 1 of the goal."""
    regulator: tuple[Positive, Positive, Positive] = (100.0, 1.0, 25.0)
    """Costs of squared angles [rad^-2], speeds [s^2/rad^2] and actions."""


class ChainSearch(Learner[ChainSearchOptions, Transitions]):
    """Model-based policy search for planar chains of hinges (pendulum, cart-less double pendulum, acrobot, pendubot).

    Every update is one of: a batch of windows read from the log; a step of fitting the mechanics (inertia, gravity,
    damping, and per recording dry friction and command delay); the same for one of several bootstrap models; one
    generation of a cross-entropy search, in which candidates swing up in random variants of those models. The reward is
    fitted to the log's; the goal is that rest of the chain which earns most, held by a linear-quadratic regulator of
    the learnt model.

    Source: Deisenroth and Rasmussen, PILCO; Amadio et al., MC-PILCO (policy search by Monte Carlo in a model of the
    logs); Chua et al., PETS (ensemble). Mechanics in place of Gaussian processes, and the search without gradients, are
    ours.
    """

    method = "chain search"

    def __init__(self, options: ChainSearchOptions, io: IOSpec, *, seed: int = 0, device: str = "cpu") -> None:
        """Prepare for logs of `io`.

        Args:
            options: of fit and search.
            io: one vector observation "state" with sine and cosine of every joint angle and the joint speeds.
            seed: of bootstrap, variants and search.
            device: "cpu"; the problem is too small for another.

        Raises:
            ValueError: options that do not fit together or the interface, or no such columns.
        """
        super().__init__(options, io, seed=seed, device=device)
        o, layout = options, StateLayout.of(state_size(io, self.method), options.sine, options.cosine, options.speed)
        if o.window < o.reach + 3 * MARGIN:
            raise ValueError(f"policy.window is {o.window}, expected at least policy.reach + {3 * MARGIN} steps")
        _check_joints(o, io.action_dim, layout.joints)
        self._layout, self._driven = layout, o.driven
        self._trial_steps = max(10, round(o.trial_s * io.control_hz))
        self._generator = torch.Generator().manual_seed(seed)
        self._windows = Windows(io, layout, o.assist, o.windows, o.window)
        self.policy = ChainPolicy(io, layout, io.action_dim)
        self._log: Signals | None = None
        self._fits: list[ChainFit] = []
        self._search: CrossEntropy | None = None
        self._task: dict[str, Any] = {}
        self._state = LearnerState(
            self.method,
            metrics_every=o.metrics_every,
            parts={"policy": self.policy, "generator": self._generator, "windows": self._windows, "work": _Work(self)},
        )

    @classmethod
    def needs(cls, options: ChainSearchOptions, io: IOSpec) -> Needs:
        """Windows of a log, and the torques that its info names."""
        return Needs(rows=options.batch_size, window=options.window, extras=("episode", *options.assist))

    def update(self, batches: Iterator[Transitions], /) -> Metrics:
        """Read, fit or search, whichever is next.

        Returns:
            While it is fitted train/model_loss; from then on the errors of its predictions on held-out recordings
            [rad], train/error_1.0s and so on, beside those of constant speed, train/still_1.0s; while it is searched
            train/trial_return (mean reward per step of the search's mean) and train/trial_held; at the end of a search
            train/search_return, search_held, and the best sum of both so far, kept_score.

        Raises:
            FloatingPointError: a metric is not finite.
            ValueError: the log is not of such a chain; says what does not fit.
        """
        wanted = self._state.tick()
        if not self._windows.full:
            self._windows.add(next(batches))
            metrics = {"windows": float(sum(len(part["episode"]) for part in self._windows.rows))}
        else:
            fitted = sum(f.steps for f in self._fits)
            if fitted < self.o.fit_steps or len(self._fits) <= self.o.members or self._behind():
                metrics = {"model_loss": self._fit()}
            else:
                metrics = self._generation()
        return self._state.report({k: torch.tensor(v) for k, v in metrics.items()} if wanted else None)

    def _behind(self) -> bool:
        return len(self._fits) > 1 and self._fits[-1].steps < self.o.member_steps

    @property
    def _signals(self) -> Signals:
        if self._log is None:
            self._log = signals(self._windows)
        return self._log

    def _judges(self) -> Tensor:
        """(E,) bool: recordings that are not fitted."""
        index = torch.arange(len(self._signals.episodes))
        if self.o.hold_out < 1 or len(index) < 2:
            return torch.zeros(len(index), dtype=torch.bool)
        return index % self.o.hold_out == self.o.hold_out - 1 if len(index) >= self.o.hold_out else index == 0

    def _fit(self) -> float:
        """One step of the model, or of the bootstrap model that is next."""
        log, judges = self._signals, self._judges()
        if not self._fits:
            if self._driven is None:
                self._driven, explained = find_driven(log, self.io.action_dim, (~judges).double())
                if explained < 0.2:
                    raise ValueError(
                        f"the motion of a chain explains only {explained:.0%} of the logged actions; this method is "
                        "for planar chains of hinges whose actions are joint torques"
                    )
            self._fits.append(self._new_fit((~judges).double()))
        whole = self._fits[0]
        if whole.steps < self.o.fit_steps:
            if whole.steps in (self.o.fit_steps // 3, 2 * self.o.fit_steps // 3):
                whole.choose_delays()
            return whole.step()
        if not self._behind():
            chosen = (~judges).nonzero()[:, 0]
            drawn = chosen[torch.randint(len(chosen), (len(chosen),), generator=self._generator)]
            weight = torch.zeros(len(judges), dtype=torch.float64).index_add(0, drawn, torch.ones(len(drawn)).double())
            self._fits.append(whole.again(weight))
        return self._fits[-1].step()

    def _new_fit(self, weight: Tensor) -> ChainFit:
        assert self._driven is not None
        return ChainFit(self._signals, self._driven, weight, reach=self.o.reach)

    def _equip(self) -> None:
        """Reward, goal and regulator of the fitted model, and the first Gaussian of the search."""
        log, whole, judges = self._signals, self._fits[0], self._judges()
        joints, actions = self._layout.joints, self.io.action_dim
        reward, explained = fit_reward(log)
        if explained < 0.5:
            raise ValueError(
                f"angles, speeds and actions explain only {explained:.0%} of the logged rewards; expected a reward of "
                "the posture: give one when converting the log (the map's reward)"
            )
        goal = best_rest(reward, joints, actions)
        friction = whole.friction[~judges].median(0).values
        spread = float(log.v[torch.arange(log.v.shape[1])[None] < log.length[:, None]].std())
        assert self._driven is not None
        self.policy.equip(
            whole.numbers,
            friction,
            scale=log.scale,
            goal=goal,
            driven=self._driven,
            speed=spread,
            costs=self.o.regulator,
        )
        low = lowest_rest(whole.chain())
        high, ground = worth(reward, goal, actions), worth(reward, low, actions)
        self._search = self._new_search()
        about = {"reward_explained": explained}
        if bool(judges.any()):
            for seconds in _CHECKS:
                steps = round(seconds * self.io.control_hz)
                ours, still = open_loop(whole, log, judges, steps)
                if math.isfinite(ours):
                    about |= {f"error_{seconds}s": ours, f"still_{seconds}s": still}
        self._task = {
            "reward": reward,
            "low": torch.tensor(low, dtype=torch.float64),
            "bar": ground + self.o.hold_level * (high - ground),
            "fastest": 1.2 * float(log.v.abs().max()),
            "about": about,
        }

    def _new_search(self) -> CrossEntropy:
        o = self.o
        mean = torch.zeros_like(self.policy.constants["weights"])
        mean[-1] = self.o.region[int(self._task.get("searches", 0)) % len(self.o.region)]
        return CrossEntropy(mean, torch.full_like(mean, o.first_std), self._generator, elites=o.elites, smooth=o.smooth)

    def _draw(self, count: int) -> Variants:
        """Random variants of the models."""
        g, double = self._generator, torch.float64
        joints, judges = self._layout.joints, self._judges()
        which = torch.randint(len(self._fits), (count,), generator=g).tolist()
        numbers = torch.stack([self._fits[i].numbers for i in which], 1)
        known = [f.friction[(f.weight > 0) & ~judges] for f in self._fits]
        rows = [int(torch.randint(len(known[i]), (), generator=g)) for i in which]
        friction = torch.stack([known[i][row] for i, row in zip(which, rows)], 1)
        low, high = self.o.friction_range
        friction = friction * (low + (high - low) * torch.rand(joints, count, generator=g, dtype=double))
        offset = (2.0 * torch.rand(2 * joints, count, generator=g, dtype=double) - 1.0) * self.o.start_spread
        rest = self._task["low"][:, None]
        delay = torch.randint(self.o.most_delay + 1, (count,), generator=g)
        return Variants(
            HingeChain.vary(numbers, self.o.spread, g), friction, rest + offset[:joints], offset[joints:], delay
        )

    def _try(self, candidates: Tensor, variants: int) -> tuple[Tensor, Tensor]:
        """(P,) mean reward per step and share held of (D, P) candidates."""
        assert self._driven is not None
        single, swing = candidates.float()[:, None, :], self.policy.bound(torch.float32)
        trial = SwingTrial(
            self._task["reward"],
            self._driven,
            steps=self._trial_steps,
            period=1.0 / self.io.control_hz,
            fastest=self._task["fastest"],
            level=self._task["bar"],
            noise=(self.o.angle_noise, self.o.speed_noise),
        )
        total, held = trial.run(
            lambda q, v: swing.command(q, v, single),
            self._draw(variants).to(torch.float32),
            policies=candidates.shape[1],
            generator=self._generator,
        )
        return total.mean(0).nan_to_num(-1e9).double(), held.mean(0).double()

    def _screen(self) -> Tensor:
        """Best of many candidates in few variants; after the last time, the search begins at the best of all."""
        assert self._search is not None
        screens, few = self.o.screens, min(self.o.screen_variants, self.o.variants)
        many = self._search.ask(max(self.o.population, self.o.population * self.o.variants // few))
        total, held = self._try(many, few)
        kept = many[:, (total + held).topk(max(2, self.o.population // screens)).indices]
        pool = torch.cat([self._task["pool"], kept], 1) if "pool" in self._task else kept
        self._task |= {"pool": pool, "screened": self._task.get("screened", 0) + 1}
        if self._task["screened"] >= screens:
            total, held = self._try(pool, self.o.variants)
            self._search.mean.copy_(pool[:, int((total + held).argmax())])
            self._search.restart(self.o.second_std)
        return kept[:, :1]

    def _generation(self) -> dict[str, float]:
        """One generation of screening or of a search; what acts is the best search so far, or the first one's mean."""
        if self._search is None:
            self._equip()
        assert self._search is not None
        kept = self._task.get("kept")
        if self._task.get("screened", 0) < self.o.screens:
            best = self._screen()
            total, held = self._try(best, self.o.variants)
            if kept is None:
                self.policy.constants["weights"].copy_(best[:, 0])
            return {**self._task["about"], "trial_return": float(total), "trial_held": float(held)}
        candidates = self._search.ask(self.o.population)
        total, held = self._try(candidates, self.o.variants)
        about = {"trial_return": float(total[0]), "trial_held": float(held[0])}
        best = int((total + held).argmax())
        about |= {"best_return": float(total[best]), "best_held": float(held[best])}
        self._search.tell(candidates, total + held)
        about["search_std"] = float(self._search.std.mean())
        if kept is None:
            self.policy.constants["weights"].copy_(self._search.mean)
        self._task["generation"] = int(self._task.get("generation", 0)) + 1
        if self._task["generation"] >= self.o.generations:
            about |= self._judge()
        return {**self._task["about"], **about}

    def _judge(self) -> dict[str, float]:
        """Keep the best search so far, and begin another."""
        assert self._search is not None
        total, held = self._try(self._search.mean[:, None], 4 * self.o.variants)
        score = float(total + held)
        kept = self._task.get("kept")
        if kept is None or score > kept["score"]:
            self._task["kept"] = {"score": score, "weights": self._search.mean.clone()}
        self.policy.constants["weights"].copy_(self._task["kept"]["weights"])
        self._task |= {"searches": int(self._task.get("searches", 0)) + 1, "generation": 0, "screened": 0}
        self._task.pop("pool", None)
        self._search = self._new_search()
        return {
            "search_return": float(total),
            "search_held": float(held),
            "kept_score": float(self._task["kept"]["score"]),
            "searches": float(self._task["searches"]),
        }

    def state_dict(self) -> StateDict:
        """Windows, models, search, policy, generator and counters: tensors and numbers."""
        return self._state.state_dict()

    def load_state_dict(self, state: StateDict, /) -> None:
        """Copy in place.

        Raises:
            ValueError: the state belongs to a learner of other sizes.
        """
        self._state.load_state_dict(state)


def _check_joints(o: ChainModelOptions, actions: int, joints: int) -> None:
    """Raises ValueError where `driven` or `assist` does not fit a chain of so many joints."""
    named = joints if o.driven is None else len(set(o.driven) & set(range(joints)))
    if actions > joints or (o.driven is not None and not named == len(o.driven) == actions):
        raise ValueError(
            f"driven is {o.driven} for {actions} actions and {joints} joints; expected one joint of 0 ... "
            f"{joints - 1} for every action, or null"
        )
    if len(o.assist) > joints - actions:
        raise ValueError(f"assist names {len(o.assist)} columns, but only {joints - actions} joints are not driven")


class _Work:
    """Models and search of a learner, as a part that is saved; the windows they come from are loaded before."""

    def __init__(self, learner: ChainSearch) -> None:
        self._of = learner

    def state_dict(self) -> StateDict:
        of = self._of
        search = of._search
        return {
            "driven": list(of._driven) if of._driven is not None and of._fits else [],
            "log": {} if of._log is None else {"scale": of._log.scale.clone(), "lag": of._log.lag.clone()},
            "task": dict(of._task),
            "fits": {str(i): fit.state_dict() for i, fit in enumerate(of._fits)},
            "search": {} if search is None else search.state_dict(),
        }

    def load_state_dict(self, state: StateDict) -> None:
        of = self._of
        of._log, of._fits, of._search, of._task = None, [], None, dict(state["task"])
        if not state["fits"]:
            return
        of._driven = tuple(int(i) for i in state["driven"])
        of._log = signals(of._windows, (state["log"]["scale"].clone(), state["log"]["lag"].clone()))
        for i in range(len(state["fits"])):
            saved = state["fits"][str(i)]
            fit = of._fits[0].again(saved["weight"]) if i else of._new_fit(saved["weight"])
            fit.load_state_dict(saved)
            of._fits.append(fit)
        if state["search"]:
            of._search = of._new_search()
            of._search.load_state_dict(state["search"])
