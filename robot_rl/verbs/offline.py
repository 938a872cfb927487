"""The offline job: a log in, a policy out, with evaluation, checkpoints, progress and report around the loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
from omegaconf import DictConfig

from robot_rl import checkpoint, report
from robot_rl.checkpoint import CheckpointError
from robot_rl.data import scores
from robot_rl.data.goal_pictures import GoalPictures
from robot_rl.data.goals import GoalDataset
from robot_rl.data.mix import Mix, refuse_seeds
from robot_rl.data.seen import measure_seen
from robot_rl.loops.evaluate import Evaluation, evaluate
from robot_rl.loops.offline import Offline
from robot_rl.parts import Parts
from robot_rl.run import Run, RunStart
from robot_rl.schedule import Schedule
from robot_rl.stats import iqm, stratified_mean
from robot_rl.types import AnyLearner, Callback, IOSpec, Metrics, VecEnv
from robot_rl.types.options import Count, Whole
from robot_rl.verbs import answer, logs, ope
from robot_rl.verbs.build import (
    EnvMaker,
    begin,
    env_factory,
    learner_factory,
    run_name,
    settings_of,
    start_of,
    threads,
)
from robot_rl.verbs.contract import check_learner
from robot_rl.verbs.logs import LogSettings
from robot_rl.verbs.offline_judge import judge, judges_of, updates_of
from robot_rl.verbs.options import Env, Machine, Resume
from robot_rl.verbs.train_job import film


class OfflineSettings(LogSettings):
    """Numbers of an offline run, beside those of its log."""

    updates: Count = 1_000_000
    """Learner updates in all."""
    seed: Whole = 0
    """Of everything; evaluation uses its own fixed seeds."""
    expert: str | None = None
    """A second log, of demonstrations, for methods that imitate; half of every batch comes from it."""
    score: str = "auto"
    """Dataset whose reference scores normalise the returns; "auto" tries the log's name and the environment's."""
    log_every: Whole = 1000
    """Updates between metric rows."""
    eval_every: Whole = 5000
    """Updates between evaluations; 0 means only at the end."""
    eval_episodes: Count = 10
    """Episodes of an evaluation in mid-run."""
    eval_envs: Count = 10
    """Copies of the evaluation environment."""
    final_episodes: Count = 10
    """Episodes of the evaluation at the end."""
    estimate: Whole | Literal["auto"] = "auto"
    """Updates of fitted Q evaluation at the end, which says from the log alone how good the policy is; "auto" = a
    tenth of `updates`, yet 10,000 where there are as many, 50,000 at most; 0 = no estimate."""
    checkpoint_every: Whole = 50_000
    """Updates between checkpoints; 0 means only at the end and on interruption."""
    keep_checkpoints: Count = 2
    """How many stay on disk."""
    video_episodes: Whole = 1
    """Episodes in the final video; 0 = no video."""
    allow_data_change: bool = False
    """Resume although the log is not the one that the run began with."""


@dataclass(frozen=True)
class SeedEvaluations:
    """Evaluations of policies that were trained side by side, one per seed.

    Attributes:
        results: of each seed.
        score: dataset whose reference scores normalise the returns, or None.
    """

    results: Sequence[Evaluation]
    score: str | None

    def metrics(self) -> Metrics:
        """Mean over seeds of the usual numbers, the normalised score, and the spread over seeds."""
        rows = [result.metrics() for result in self.results]
        out = {name: float(np.mean([row.get(name, 0.0) for row in rows])) for name in {**rows[0], **rows[-1]}}
        per_seed = [row["eval/return"] for row in rows]
        if self.score is not None:
            per_seed = [scores.normalized_score(self.score, value) for value in per_seed]
            out["eval/score"] = float(np.mean(per_seed))
            out["eval/score_std"] = scores.normalized_std(self.score, out["eval/return_std"])
        if len(rows) > 1:
            interval = stratified_mean([per_seed])
            out["eval/seeds_std"] = float(np.std(per_seed))
            out["eval/seeds_iqm"] = iqm(np.array(per_seed))
            out["eval/seeds_low"], out["eval/seeds_high"] = interval.low, interval.high
        return out

    def numbers(self) -> dict[str, object]:
        """Of every episode of every seed."""
        return {"returns": [result.returns for result in self.results]}


class OfflineJob:
    """One offline run in one folder, resumable from its newest checkpoint."""

    def __init__(
        self,
        settings: OfflineSettings,
        start: RunStart,
        *,
        make_env: Callable[..., VecEnv] | None,
        make_learner: Callable[[Any], Any],
        judges: ope.Judges | None = None,
    ) -> None:
        """Read the log, build learner and loop, and restore them when resuming.

        Args:
            settings: numbers of the run.
            start: where the run begins.
            make_env: (num_envs, seed, render) -> vector environment to evaluate in, or None; an `EnvMaker` tells a name
                that may have a reference score.
            make_learner: (io) -> learner.
            judges: what estimates the policy's value at the end, or None for no estimate.

        Raises:
            CheckpointError: nothing to resume from, or it does not fit.
            InUse: another process runs in the folder that is to be resumed.
            ValueError: the log cannot be read, or log and environment do not fit.
        """
        self.settings, self.make_env = settings, make_env
        self._judges, self._estimate_updates = judges, updates_of(settings.estimate, settings.updates)
        found = checkpoint.find(start.folder) if start.resume else None
        store = logs.read_log(settings)
        name = str(store.meta.get("name", Path(settings.data).stem))
        self._eval_env: Any = None
        if make_env is not None:
            self._eval_env = make_env(settings.eval_envs, settings.seed + 10_000, False)
        self.io: IOSpec = store.io if self._eval_env is None else self._eval_env.io
        scaled: list[str] = []
        if self._eval_env is not None:
            store, scaled = logs.fit(store, self.io)
        self._said = store.meta.get("action")
        self.learner: AnyLearner = make_learner(self.io)
        check_learner(self.learner)
        need = self.learner.need
        if need.hindsight:
            raise ValueError(
                f"{type(self.learner).__name__} replays a run's own steps under goals that it reached, and a log does "
                "not say what they earn there; use policy=offline/goal_bc, or robot-rl train"
            )
        reader = self.learner.reader
        reading = settings.model_copy(update={"action_clip": settings.action_clip or bool(scaled)})
        self.sampler, self.findings = logs.sampler(store, reading, seed=settings.seed, need=need, reader=reader)
        self.findings += scaled
        if not need.rewardless:
            logs.check_rewards(self.sampler)
        self.source = self.sampler
        if need.goals is not None:
            self.source = GoalDataset(self.sampler, seed=settings.seed, **need.goals)
        if need.goal_pictures is not None:
            self.source = GoalPictures(self.sampler, seed=settings.seed, **need.goal_pictures)
        if settings.expert is not None:
            refuse_seeds(need.seeds, "expert")
            shown = logs.read_log(settings, settings.expert)
            shown, scaled = logs.fit(shown, store.io) if store.io.knows_bounds or shown.io.knows_bounds else (shown, [])
            other = {"data": settings.expert, "top_fraction": 1.0, "action_clip": settings.action_clip or bool(scaled)}
            reading = settings.model_copy(update=other)
            alone = replace(need, seeds=1)
            demos, notes = logs.sampler(shown, reading, seed=settings.seed + 1, need=alone, reader=reader)
            self.findings += [*notes, *scaled]
            self.source = Mix({"other": (self.sampler, 0.5), "expert": (demos, 0.5)}, seed=settings.seed)
        elif need.expert:
            raise ValueError("this method imitates: add expert=<log of demonstrations> beside data=<log>")
        self.loop = Offline(self.learner, self.source, batch_size=need.rows)
        self._score = self._find_score(settings.score, (name, make_env.name if isinstance(make_env, EnvMaker) else ""))
        same = found is None or self._same_log(found)
        if found is None:
            self.learner.prepare(logs.facts(self.sampler))
        sources: dict[str, Any] = {"log": {"path": settings.data, "fingerprint": store.fingerprint}}
        if settings.expert is not None:
            marks = {"path": settings.expert, "fingerprint": logs.open_log(settings.expert).fingerprint}
            sources["demonstrations"] = marks
        self._run = Run.open(
            start,
            Schedule.of(settings, settings.updates, "update"),
            self._parts(),
            count=lambda: self.loop.updates,
            evaluate=None if self._eval_env is None else self.evaluate,
            sources=sources,
            skip=() if same else ("sampler",),  # another log is drawn from anew
        )
        self.folder = self._run.folder
        self.resume_step, self.tracker = self._run.step, self._run.tracker
        self.warnings: list[str] = []

    def _parts(self) -> Parts:
        """What a checkpoint holds."""
        return Parts(
            {"learner": self.learner, "loop": self.loop, "sampler": self.source},
            policy=self.learner.policy,
            io=self.io,
            facts={
                "seed": self.settings.seed,
                "settings": self.settings.model_dump(mode="json"),
                "action": self._said,
                "data_fingerprint": self.sampler.store.fingerprint,
                "reward": {"scale": self.sampler.reward_scale, "bias": self.sampler.reward_bias},
            },
            seen=cache(lambda: measure_seen(self.sampler, self.io)),
        )

    def _same_log(self, found: Path) -> bool:
        """Whether the run began with this log.

        Raises:
            CheckpointError: it did not, and that is not allowed.
        """
        same = checkpoint.read_meta(found).get("data_fingerprint") == self.sampler.store.fingerprint
        if not same and not self.settings.allow_data_change:
            raise CheckpointError(
                f"the log {self.settings.data} is not the one that the run began with; give the original, or add "
                "allow_data_change=true to go on with this one"
            )
        return same

    @staticmethod
    def _find_score(wanted: str, names: tuple[str, ...]) -> str | None:
        if wanted != "auto":
            scores.reference_scores(wanted)
            return wanted
        for name in names:
            try:
                scores.reference_scores(name)
            except ValueError:
                continue
            return name
        return None

    def run(self, callback: Callback | None = None) -> dict[str, object]:
        """Train, evaluate, write curve, video and report; returns the summary.

        Args:
            callback: hears of every row of metrics.

        Raises:
            CheckpointError: a checkpoint could not be written.
            KeyboardInterrupt: after a Ctrl-C, once everything is saved.
        """
        calls: dict[str, Callable[[], Any]] = {"model": self._model, "video": self._video}
        if self._judges is not None and self._estimate_updates:  # minutes: what is known already comes first
            calls |= {"report so far": self._report_so_far, "value, from the log alone": self._estimate}
        self._run.numbers |= {"score_of": self._score, "findings": self.findings, "estimate": None}
        more = {"transitions": len(self.sampler)}
        return self._run.play(self._learn, calls=calls, more=lambda: more, callback=callback)

    def _learn(self) -> None:
        if self.loop.updates < self.settings.updates:
            self.loop.run(self.settings.updates, self._run.tick, due=self._run.due)

    def _activate(self, number: int) -> None:
        """Let this one act of the policies that were trained side by side."""
        choose = self.learner.policy.parts.activate
        if choose is not None:
            choose(number)

    def evaluate(self, episodes: int) -> SeedEvaluations:
        """Deterministic evaluation, one per seed that the learner trains side by side."""
        policy, results = self.learner.policy, []
        for number in range(policy.parts.seeds):
            self._activate(number)
            results.append(evaluate(self._eval_env, policy, episodes=episodes, seed=10_000))
        self._activate(0)
        return SeedEvaluations(results, self._score)

    def _model(self) -> Path | None:
        return report.export_model(self.learner, self.folder / f"model_{self.loop.updates:09d}")

    def _video(self) -> Path | str:
        if self.make_env is None:
            return "no environment to film in; add env=…"
        s = self.settings
        return film(self.make_env, self.learner.policy, self.folder / "eval.mp4", s.video_episodes, s.seed)

    def _report_so_far(self) -> None:
        self._run.say(
            f"report so far: {self._run.report()}\nnow estimating the policy's value from the log alone "
            f"({self._estimate_updates} updates, after cloning its behaviour); estimate=0 leaves that out"
        )

    def _estimate(self) -> dict[str, object] | str:
        """The policy's value from the log alone, and where it leaves the data."""
        assert self._judges is not None
        self._activate(0)
        s = self.settings
        judged, why = judge(s, self.learner.policy, self.io, self._judges, updates=self._estimate_updates, seed=s.seed)
        if judged is None:
            return f"- ({why})" if why else ""
        self.warnings = [line for line in judged.warnings if line.startswith("WARNING")]
        self._run.notes += self.warnings
        self._run.numbers["estimate"] = ope.plain_numbers(judged)
        support = report.write_support(self.folder / "support.png", judged.support)
        self._run.pictures["Where the policy leaves the data"] = support
        return {
            "value, from the log alone": ope.line(judged.estimates[0]),
            "value of the logged policy": ope.line(ope.OpeEstimate("", judged.behaviour)),
            "actions outside the data": f"{judged.outside:.1%}",
        }


class OfflineOptions(Machine, Env, Resume, OfflineSettings):
    """robot-rl offline."""


def offline_job(cfg: DictConfig, folder: Path) -> OfflineJob:
    """An offline run as its configuration says, new or resumed (`resume`).

    Args:
        cfg: checked.
        folder: of the run.
    """
    threads(cfg)
    estimates = cfg.get("ope") is not None and cfg.get("behaviour") is not None  # else ~ope on the command line
    maker = None if cfg.get("env") is None else env_factory(cfg)
    return OfflineJob(
        settings_of(OfflineSettings, cfg),
        start_of(cfg, folder),
        make_env=maker and replace(maker, make=maker.plain),
        make_learner=learner_factory(cfg),
        judges=judges_of(cfg) if estimates else None,
    )


def offline(cfg: DictConfig) -> None:
    """Train a policy from a log; Ctrl-C saves and says how to go on."""
    name = f"{Path(str(cfg.data)).stem}_{run_name(cfg)}" if cfg.resume is None else ""
    cfg, folder = begin(cfg, "offline", OfflineOptions, ("env", "engine", "policy", "track"), name)
    job = offline_job(cfg, folder)
    for line in job.findings:
        print(f"  log: {line}")
    answer.table(answer.run(job, "offline"))
    print("".join(f"  {line}\n" for line in job.warnings), end="")
