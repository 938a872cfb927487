"""The train job: loop, evaluation, checkpoints, progress and report around one learner."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from pydantic import model_validator
from typing_extensions import Self

from robot_rl import checkpoint, lineage, parallel, report
from robot_rl.checkpoint import CheckpointError
from robot_rl.data.buffer import Replay, ReplayBuffer
from robot_rl.data.mix import Mix, Shares, refuse_seeds
from robot_rl.data.rescale import Rescaled
from robot_rl.data.seen import measure_seen
from robot_rl.diagnosis import Cause
from robot_rl.loops.cluster import Cluster, ClusterOffPolicy
from robot_rl.loops.contract import rows_per_batch
from robot_rl.loops.device import DeviceOffPolicy
from robot_rl.loops.device_on_policy import DeviceOnPolicy
from robot_rl.loops.evaluate import Evaluation, FilmCamera, evaluate, evaluate_midway
from robot_rl.loops.off_policy import OffPolicy
from robot_rl.loops.on_policy import OnPolicy
from robot_rl.loops.on_policy_async import AsyncOnPolicy
from robot_rl.loops.stepping import begins_anew
from robot_rl.parts import Parts
from robot_rl.run import Run, RunStart, reason
from robot_rl.schedule import Schedule
from robot_rl.types import AnyLearner, Callback, IOSpec, Needs, OwnLoop, Policy, Sampler, Seen, Stateful, VecEnv
from robot_rl.types.options import Count, Discount, NotNegative, Part, Share, Whole
from robot_rl.verbs import answer, logs
from robot_rl.verbs.build import EnvMaker
from robot_rl.verbs.collect_episodes import ExpertPolicy, KeepOptions, keep_steps
from robot_rl.verbs.contract import check_learner, make_replay
from robot_rl.verbs.logs import LogSettings
from robot_rl.verbs.options import ActionMeaning


class TrainSettings(ActionMeaning):
    """Numbers of a training run."""

    total_steps: Count = 100_000
    """Environment steps (transitions) in all."""
    num_envs: Count = 1
    """Copies of the training environment, over all processes that torchrun started."""
    seed: Whole = 0
    """Of everything; evaluation uses its own fixed seeds."""
    gamma: Discount = 0.99
    """Discount per control step."""
    n_step: Count = 1
    """Control steps of a return before it bootstraps."""
    buffer_size: Count = 1_000_000
    """Transitions kept."""
    learning_starts: Whole = 100
    """Transitions before the first update."""
    updates_per_step: NotNegative = 1.0
    """Learner updates per transition; learners on a device have a number of their own."""
    workers: Whole = 0
    """Ray actors that step the environments (`num_envs` copies each), on this machine or a cluster; 0 = none."""
    demos: Whole = 0
    """Successful scripted-expert episodes collected before training and sampled beside the run's own data."""
    demo_share: Part = 0.5
    """Share of every batch that comes from them."""
    init: str | None = None
    """An offline run whose learner goes on from here (fine-tuning); its actions are taken from the first step."""
    log: str | None = None
    """A log that is sampled beside the run's own data, in the reward units of `init`."""
    log_share: Part = 0.5
    """Share of every batch that comes from it."""
    log_every: Whole = 1000
    """Steps between metric rows."""
    eval_every: Whole = 10_000
    """Steps between evaluations; 0 means only at the end."""
    eval_episodes: Count = 10
    """Episodes of an evaluation in mid-run."""
    eval_envs: Count = 1
    """Copies of the evaluation environment."""
    final_episodes: Count = 20
    """Episodes of the evaluation at the end."""
    stop_success: Share | None = None
    """Stop once an evaluation over `final_episodes` reaches this success rate; None = never."""
    checkpoint_every: Whole = 50_000
    """Steps between checkpoints; 0 means only at the end and on interruption."""
    keep_checkpoints: Count = 2
    """How many stay on disk."""
    video_episodes: Whole = 2
    """Episodes in the final video; 0 = no video."""

    @model_validator(mode="after")
    def _speaks_of_a_log(self) -> Self:
        if self.log is None and (self.action, self.action_low, self.action_high) != (None, None, None):
            raise ValueError(
                "action, action_low and action_high say what the actions of log=… mean, and there is no log"
            )
        return self


REPLAYED = ("demos", "log", "n_step", "buffer_size", "learning_starts", "updates_per_step", "workers")
"""Settings that only a learner from a replay buffer heeds."""


def refuse_idle(settings: TrainSettings, learner: AnyLearner) -> None:
    """Refuse what was set and would do nothing: a stored configuration says what was done.

    Raises:
        ValueError: names the setting and what heeds it.
    """
    need = learner.need
    feeds = need.then if settings.init is not None and need.then else need.feeds
    set_ = [name for name, value in settings if value != type(settings).model_fields[name].default]
    idle = [name for name in set_ if name in REPLAYED]
    if idle and feeds in ("rollout", "stale_rollout", "device_rollout", "environment"):
        raise ValueError(
            f"{idle[0]} has no effect on {type(learner).__name__}, which keeps no replay buffer; leave it out, or use "
            "a policy that learns from one, such as policy=online/sac or online/rlpd"
        )
    if settings.demos and settings.log is not None:
        raise ValueError("demos and log are both given, and one of them is sampled; leave the other out")
    for share, source, given in (("demo_share", "demos", settings.demos), ("log_share", "log", settings.log)):
        if given:
            refuse_seeds(need.seeds, source)
        if share in set_ and not given:
            raise ValueError(f"{share} has no effect without {source}; add {source}=<...>, or leave it out")


class TrainJob:
    """One training run in one folder, resumable from its newest checkpoint."""

    def __init__(
        self,
        settings: TrainSettings,
        start: RunStart,
        *,
        make_env: Callable[..., VecEnv],
        make_learner: Callable[[IOSpec], AnyLearner],
        make_actor: Callable[[IOSpec], AnyLearner] | None = None,
    ) -> None:
        """Build environment, learner, buffer and loop, and restore them when resuming.

        Args:
            settings: numbers of the run.
            start: where the run begins.
            make_env: (num_envs, seed, render) -> vector environment.
            make_learner: (io) -> learner.
            make_actor: (io) -> learner on the CPU, for the policy of rollout workers; default `make_learner`.

        Raises:
            CheckpointError: nothing to resume from, or it does not fit.
            InUse: another process runs in the folder that is to be resumed.
        """
        s = self.settings = settings
        self.make_env, self._make_actor = make_env, make_actor or make_learner
        # judged by the simulator, whatever paid in training
        self._plain = make_env.plain if isinstance(make_env, EnvMaker) else make_env
        self.cluster: Cluster | None = None
        if start.resume:
            checkpoint.find(start.folder)
            _refuse_fewer(start.folder, s.total_steps)
        self.env = make_env(parallel.shard(s.num_envs), s.seed + 100_003 * parallel.rank(), False)
        self.learner: AnyLearner = make_learner(self.env.io)
        check_learner(self.learner)
        refuse_idle(s, self.learner)
        # at the start, since the end will need it
        self._eval_env = self._plain(s.eval_envs, s.seed + 10_000, False) if parallel.rank() == 0 else None
        self.buffer: Replay | None = None
        self.notes: list[str] = []
        claim = start.claim()
        self.folder = claim.folder
        with claim.building():
            self.loop: Any = self._make_loop(self.folder)
            self._run = Run(
                start,
                claim,
                Schedule.of(s, s.total_steps),
                self._parts(),
                count=lambda: int(self.loop.env_steps),
                evaluate=self.evaluate,
            )
            for line in (*self.notes, *self.env.parts.notes, *self.learner.notes):
                self._run.note(line)
            if start.resume:
                self._run.restore()
            elif s.init is not None:
                self._begin_from(checkpoint.find(Path(s.init)))
            why = (
                begins_anew(self.env, None if self.loop is self.learner else self.loop.state_dict())
                if start.resume
                else ""
            )
            if why:
                self._run.note(why)
            video = {"video": self._check_video} if s.video_episodes else {}
            self._run.begin(sources=self._sources(), checks=video)
        self.resume_step, self.tracker = self._run.step, self._run.tracker

    def _parts(self) -> Parts:
        """What a checkpoint holds."""
        states: dict[str, Stateful] = {"learner": self.learner}
        if self.loop is not self.learner:
            states["loop"] = self.loop
        stores = {} if self.buffer is None else {"buffer": self.buffer}
        if self.buffer is not None and self.loop.sampler is not self.buffer:
            if self.settings.demos:  # they never change: a checkpoint links to the files of the one before it
                stores["demos"] = self.loop.sampler.parts["demos"]
            states["sampler"] = Shares(self.loop.sampler, "log")
        return Parts(
            states,
            stores=stores,
            policy=self.learner.policy,
            io=self.env.io,
            facts={"seed": self.settings.seed, "settings": self.settings.model_dump(mode="json")},
            seen=self._measure_seen,
        )

    def _measure_seen(self) -> Seen | None:
        """What training saw: of the replay, or of all rollouts; None where a learner with its own loop keeps none."""
        if isinstance(self.loop, OwnLoop):
            return measure_seen(self.loop.seen_rows, self.env.io, count=self.loop.env_steps)
        on_policy = isinstance(self.loop, OnPolicy | DeviceOnPolicy)
        source = self.buffer if self.buffer is not None else self.loop.rows if on_policy else None
        return measure_seen(source, self.env.io, count=int(self.loop.env_steps))

    def _sources(self) -> dict[str, Mapping[str, object]]:
        """What a new run comes from."""
        s = self.settings
        out: dict[str, Mapping[str, object]] = {}
        if s.init is not None:
            found = checkpoint.find(Path(s.init))
            out["parent"] = {"run": str(found), **lineage.digest(found / "learner.pt")}
        if s.log is not None:
            out["log"] = {"path": s.log, "fingerprint": logs.open_log(s.log).fingerprint}
        if s.demos:
            out["demonstrations"] = {"of": "the scripted expert", "episodes": s.demos, "seed": s.seed + 77_777}
        return out

    def _check_video(self) -> str:
        """Film one frame."""
        with closing(self._plain(1, self.settings.seed + 20_000, True)) as env:
            env.reset(seed=20_000)
            return "" if env.render() is not None else "the environment draws no pictures"

    def _make_loop(self, folder: Path) -> Any:
        s = self.settings
        need = self.learner.need
        consumes = need.then if s.init is not None and need.then else need.feeds
        if consumes.startswith("device_"):
            return self._device_loop(folder)
        if parallel.size() > 1:
            raise ValueError(
                f"{type(self.learner).__name__} learns in one process, and torchrun started {parallel.size()}; use "
                "policy=online/fast_sac, online/fast_td3 or online/fast_ppo, or start without torchrun"
            )
        if s.workers and consumes != "transitions":
            raise ValueError(
                f"workers={s.workers} feeds learners from a replay buffer, and {type(self.learner).__name__} reads "
                f"'{consumes}'; use policy=online/sac or online/rlpd, or workers=0"
            )
        if consumes == "episodes":
            raise ValueError(
                f"{type(self.learner).__name__} learns with a person in the loop; use robot-rl hil policy=..."
            )
        if consumes == "rollout":
            if (rows := need.rollout_steps * s.num_envs) > s.total_steps:
                self.notes.append(
                    f"one rollout is {rows} steps, {need.rollout_steps} of {s.num_envs} environments, and the run ends "
                    f"with it, not at total_steps={s.total_steps}: a smaller policy.rollout_steps gives more updates"
                )
            return OnPolicy(self.env, self.learner, seed=s.seed, save_to=folder)  # type: ignore[arg-type]
        if consumes == "stale_rollout":
            return AsyncOnPolicy(self.env, self.learner, seed=s.seed, save_to=folder)  # type: ignore[arg-type]
        if isinstance(self.learner, OwnLoop):
            self.learner.attach(self.env)
            return self.learner
        if s.workers and (need.hindsight or need.columns):
            lacking = "the goals that they reached" if need.hindsight else f"{', '.join(need.columns)} of every step"
            raise ValueError(
                f"workers={s.workers} sends episodes without {lacking}, and {type(self.learner).__name__} learns from "
                "those; use workers=0 with num_envs=… instead"
            )
        self.buffer = make_replay(
            self.env,
            self.learner,
            min(s.buffer_size, max(s.total_steps, 1) + s.num_envs),
            num_envs=1 if s.workers else s.num_envs,
            n_step=s.n_step,
            gamma=s.gamma,
            seed=s.seed,
        )
        sampler: Sampler = self.buffer
        if s.demos:
            sampler = Mix({"online": (self.buffer, 1.0 - s.demo_share), "demos": (self._demos(), s.demo_share)})
        elif s.log is not None:
            sampler = self._beside_log(s.log)
        if s.workers:
            # On a cluster the factories travel; the environment made here only tells the interface.
            self.cluster = Cluster(self.make_env, self._make_actor, workers=s.workers, num_envs=s.num_envs, seed=s.seed)
            return ClusterOffPolicy(
                self.cluster,
                self.learner,
                self.buffer,
                sampler=sampler,
                batch_size=rows_per_batch(self.learner),
                learning_starts=s.learning_starts if s.init is None else 0,
                updates_per_step=s.updates_per_step,
                workers_file=folder / "workers",
            )
        return OffPolicy(
            self.env,
            self.learner,
            self.buffer,
            sampler=sampler,
            batch_size=rows_per_batch(self.learner),
            learning_starts=s.learning_starts,
            random_steps=None if s.init is None else 0,
            updates_per_step=s.updates_per_step,
            seed=s.seed,
            failure_folder=folder,
        )

    def _device_loop(self, folder: Path) -> Any:
        """The loop of a learner whose data stays on the device."""
        s, learner = self.settings, self.learner
        unfit = [name for name, value in (("demos", s.demos), ("log", s.log), ("workers", s.workers)) if value]
        if unfit or s.updates_per_step != 1.0:
            names = ", ".join(unfit) or "updates_per_step"
            raise ValueError(
                f"{names} does not go with {type(learner).__name__}, which has its own replay on the device and counts "
                "updates per step of all environments (policy.updates); use policy=online/sac or online/rlpd for it"
            )
        if learner.need.feeds == "device_rollout":
            return DeviceOnPolicy(self.env, learner, seed=s.seed, save_to=folder)  # type: ignore[arg-type]
        loop = DeviceOffPolicy(
            self.env,
            learner,  # type: ignore[arg-type]
            buffer_size=min(s.buffer_size, max(s.total_steps, 1) + s.num_envs),
            n_step=s.n_step,
            gamma=s.gamma,
            learning_starts=s.learning_starts,
            seed=s.seed,
            save_to=folder,
        )
        self.buffer = loop.replay
        return loop

    @property
    def _window(self) -> int:
        """Steps per sample that the learner reads."""
        return self.learner.need.window

    def _beside_log(self, path: str) -> Mix:
        """The run's own transitions and those of a log, rewards alike."""
        s = self.settings
        assert isinstance(self.buffer, ReplayBuffer)
        if s.n_step != 1:
            raise ValueError(f"n_step is {s.n_step}; beside a log it has to be 1")
        settings = LogSettings(data=path, action=s.action, action_low=s.action_low, action_high=s.action_high)
        store, notes = logs.fit(logs.read_log(settings), self.env.io)
        reward = {"scale": 1.0, "bias": 0.0}
        if s.init is not None:
            reward |= checkpoint.read_meta(checkpoint.find(Path(s.init))).get("reward", {})
        settings = LogSettings(
            data=path,
            gamma=s.gamma,
            reward="scale_bias",
            reward_scale=reward["scale"],
            reward_bias=reward["bias"],
            action_clip=True,
        )
        data, more = logs.sampler(store, settings, seed=s.seed + 1, need=Needs(window=self._window))
        self.notes = [f"the log beside the run: {line}" for line in (*notes, *more)]
        own = Rescaled(self.buffer, scale=reward["scale"], bias=reward["bias"])
        return Mix({"online": (own, 1.0 - s.log_share), "log": (data, s.log_share)}, seed=s.seed)

    def _begin_from(self, path: Path) -> None:
        """Take over the learner of an offline run.

        Raises:
            CheckpointError: it was made for another interface.
        """
        differences = checkpoint.read_io(path).differences(self.env.io)
        if differences:
            raise CheckpointError(f"{path} does not fit this environment:\n  - " + "\n  - ".join(differences))
        self.learner.load_state_dict(checkpoint.load_state(path / "learner.pt"))

    def _demos(self) -> ReplayBuffer:
        """Successful episodes of the scripted expert; the same for the same seed, so a resume makes them anew."""
        s = self.settings
        env = self.make_env(min(s.demos, 16), s.seed + 77_777, False)
        expert = ExpertPolicy(env)
        episodes = keep_steps(env, expert, KeepOptions(episodes=s.demos, only_success=True), seed=s.seed + 77_777)
        rows = sum(len(episode) for episode in episodes)
        options = {"n_step": s.n_step, "gamma": s.gamma, "window": self._window, "seed": s.seed + 1}
        buffer = ReplayBuffer(env.io, rows + 1, **options)
        for episode in episodes:
            buffer.add_episode(episode)
        env.close()
        return buffer

    def run(self, callback: Callback | None = None) -> dict[str, object]:
        """Train, evaluate, write curve, video and report; returns the summary.

        Args:
            callback: hears of every row of metrics.

        Raises:
            CheckpointError: a checkpoint could not be written.
            KeyboardInterrupt: after a Ctrl-C, once everything is saved.
        """
        return self._run.play(self._train, calls={"model": self._model, "video": self._video}, callback=callback)

    @property
    def findings(self) -> list[Cause]:
        """What may have kept it from learning, once it has ended."""
        return self._run.findings

    def _train(self) -> None:
        try:
            if self.loop.env_steps < self.settings.total_steps:
                self.loop.run(self.settings.total_steps, self._run.tick, due=self._run.due)
        finally:
            if self.cluster is not None:
                self.cluster.close()

    def evaluate(self, episodes: int) -> Evaluation:
        """Deterministic evaluation on environments of its own; leaves the training state untouched."""
        assert self._eval_env is not None  # else nothing is evaluated
        return evaluate_midway(self._eval_env, self.learner.policy, episodes=episodes)

    def _model(self) -> Path | None:
        return report.export_model(self.learner, self.folder / f"model_{int(self.loop.env_steps):09d}")

    def _video(self) -> Path | str:
        s = self.settings
        return film(self._plain, self.learner.policy, self.folder / "eval.mp4", s.video_episodes, s.seed)


def record_video(*what: Any, **how: Any) -> Path | str:
    """`film`, or why there is no film; nothing is raised."""
    try:
        return film(*what, **how)
    except Exception as error:  # a renderer raises anything
        return f"not made: {reason(error)}"


def film(
    make_env: Callable[..., VecEnv],
    policy: Policy,
    path: Path,
    episodes: int,
    seed: int,
    *,
    trial: Callable[..., Evaluation] = evaluate,
    seconds: float = 30.0,
) -> Path | str:
    """Film the policy in episodes of `trial` (environment, policy, how), or say that this is switched off."""
    if episodes < 1:
        return "switched off"
    with closing(make_env(1, seed + 20_000, True)) as env:
        made = FilmCamera(env, seconds)
        with answer.bar(made.most, "frame", "film") as made.tell:
            trial(env, policy, episodes=episodes, seed=20_000, film=made)
        return report.write_video(path, made.frames, made.hz)


def _refuse_fewer(folder: Path, total_steps: int) -> None:
    """Refuse an end that lies behind a run: its newest checkpoint would not fit, and an older one be taken.

    Raises:
        ValueError: it does, and is not the end that the run was given before.
    """
    made = [int(checkpoint.read_meta(path)["step"]) for path in checkpoint.complete(folder / "checkpoints")]
    if made and total_steps < max(made) and total_steps != checkpoint.read_config(folder).get("total_steps"):
        raise ValueError(
            f"total_steps is {total_steps}, and {folder} has made {max(made)} steps already; expected more than that, "
            "to go on with it"
        )
