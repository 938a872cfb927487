"""What every verb may be told: names, types, ranges, defaults and a line each, stated once.

What a job takes, its own file says (`robot_rl.jobs.train.TrainSettings`); here is what its verb takes besides. The YAML
of a verb holds the groups that it chooses from, and its page of help.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, create_model

from robot_rl import build
from robot_rl.jobs.classify import ClassifySettings
from robot_rl.jobs.hil import HilSettings
from robot_rl.jobs.logs import ActionMeaning
from robot_rl.jobs.offline import OfflineSettings
from robot_rl.jobs.ope import OpeSettings
from robot_rl.jobs.prefer import PreferSettings
from robot_rl.jobs.prefer_pictures import PictureSettings
from robot_rl.jobs.train import TrainSettings
from robot_rl.link import LinkSettings
from robot_rl.types import Options
from robot_rl.types.options import (
    Bound,
    Count,
    Device,
    Discount,
    Meaning,
    NotNegative,
    Number,
    Part,
    Pixels,
    Positive,
    Share,
    Whole,
)

Folders = Annotated[str | tuple[str, ...], Meaning("a folder, or a list [folder,folder]")]


class VerbOptions(Options):
    """What every verb may be told."""

    model_config = ConfigDict(coerce_numbers_to_str=True)  # name=5 is a name

    name: str | None = None
    """Last part of the run folder's name."""
    output: str = "runs"
    """Where run folders go."""
    trust: bool | Literal["changed"] = False
    """true: run code that a run folder names, with your rights; changed: as its file is today."""
    debug: bool = False
    """Show tracebacks of errors."""


class Machine(VerbOptions):
    """Where a verb computes."""

    seed: Whole = 0
    """Of everything random."""
    device: Device = "cpu"
    """Where networks live."""
    threads: Whole = 1
    """CPU threads of torch (one is fastest for small networks); 0 = one per core."""


class Env(Options):
    """A task of Gymnasium, or one for a robot of the user's own."""

    id: str | None = None
    """Gymnasium id, for env=gym."""
    robot: str | None = None
    """Card of the arm, for env=reach: a name (./<name>.yaml) or a path; robot-rl robot new writes one."""


class Resume(Options):
    """A run that goes on."""

    resume: str | None = None
    """A run folder: continue it."""


class TrainOptions(Machine, Env, Resume, TrainSettings):
    """robot-rl train."""


class OfflineOptions(Machine, Env, Resume, OfflineSettings):
    """robot-rl offline."""


class HilOptions(Machine, Env, Resume, HilSettings):
    """robot-rl hil."""

    judge: str | None = None
    """A folder of robot-rl classify, for task_reward=classifier."""
    role: Literal["both", "actor", "learner"] = "both"
    """One process, or the one that drives and records, or the one that learns; see docs/hil_link.md."""
    link: LinkSettings = LinkSettings()
    """Between actor and learner; see docs/hil_link.md."""
    takeover: dict[str, Any] = Field(default_factory=lambda: {"mode": "deadman"})
    """How the person takes over: mode=deadman, toggle or implicit; further +takeover.hold_ms=200 ... (docs/hil.md)."""
    safety: dict[str, Any] = Field(default_factory=dict)
    """Limits of what is executed: +safety.acceleration=1.0 ... (docs/hil.md)."""


class ClassifyOptions(Machine, ClassifySettings):
    """robot-rl classify."""

    logs: tuple[str, ...] = ()
    """Run folders of robot-rl hil."""
    path: str | None = None
    """A folder of this verb: judge the logs with it instead of training."""


class PreferOptions(Machine, PreferSettings, PictureSettings):
    """robot-rl prefer."""

    model: str | None = None
    """labels=vlm: http://127.0.0.1:<port>/v1/chat/completions, a folder, python:<module>:<object>, or scripted."""
    model_options: dict[str, Any] = Field(default_factory=dict)
    """labels=vlm: options of the model, such as {timeout: 30}."""


class DesignOptions(VerbOptions):
    """robot-rl design."""

    train: tuple[str, ...] = ()
    """What robot-rl train is given: stands behind --."""
    goal: str = ""
    """The task in words, for a model."""
    model: str | None = None
    """Who proposes: http://127.0.0.1:<port>/v1/chat/completions, a folder, or python:<module>:<object>."""
    model_options: dict[str, Any] = Field(default_factory=dict)
    """Of the model, such as {timeout: 30}."""
    codes: tuple[str, ...] | None = None
    """Programs to try in place of a model's."""
    rank: str = "score"
    """score (the task's own, in the final evaluation), ask (a person), python:<module>:<function>."""
    rounds: Count = 3
    """Of proposing and training."""
    each: Count = 4
    """Programs trained in a round."""
    timeout: Positive = 3600
    """Seconds for one training."""
    path: str | None = None
    """A folder of an earlier search: continue it."""


class EvalOptions(Machine, Env, ActionMeaning):
    """robot-rl eval."""

    path: str
    """A run folder, a checkpoint folder, or (policy=sb3) a zip."""
    episodes: Count = 20
    """To measure over."""
    num_envs: Count = 1
    """Copies of the environment."""
    gamma: Discount = 0.99
    """Discount per control step."""
    deterministic: bool = True
    """The policy's best action; false draws one."""
    student: bool | None = None
    """Whether the one-step student of a diffusion policy acts; null = as trained."""
    target_return: Number | None = None
    """Return to ask for, of a decision transformer; null = as trained."""
    video_episodes: Whole = 1
    """Episodes in the film; 0 = no film."""


class OpeOptions(Machine, OpeSettings):
    """robot-rl eval ope."""

    path: str
    """A run or checkpoint folder: the policy."""


class FasOptions(Machine, Env, ActionMeaning):
    """robot-rl eval fas."""

    path: Folders
    """A run or checkpoint folder, or a list of them (one per seed)."""
    largest: Positive | None = None
    """Return that counts as 1; null = by the task's name (Pendulum, Hopper ...)."""
    offset: Number = 0.0
    """Added to returns, with largest."""
    episodes: Count = 10
    """Per interval."""
    num_envs: Count = 10
    """Copies of the environment."""
    gamma: Discount = 0.99
    """Discount per control step."""


class CompareOptions(Machine, Env, ActionMeaning):
    """robot-rl eval compare."""

    path: Folders
    """Run or checkpoint folders; each is compared with the first."""
    episodes: Count = 50
    """Of each run, on the same seeds."""
    gamma: Discount = 0.99
    """Discount per control step."""


Way = Literal["queue", "naive", "wait", "rtc"]
Ways = Annotated[tuple[Way, ...] | Way, Meaning("queue, naive, wait or rtc, or a list of them")]


class LatencyOptions(Machine, Env, ActionMeaning):
    """robot-rl eval latency."""

    path: str
    """A run folder, a checkpoint folder, or (policy=vla/folder) a model folder."""
    latency_ms: NotNegative = 300.0
    """From the observation to the answer."""
    latency_kind: Literal["const", "uniform", "lognormal"] = "const"
    """How it is spread: uniform reaches to latency_ms + latency_jitter_ms."""
    latency_jitter_ms: NotNegative = 0.0
    """Width of the spread."""
    latency_drop: Share = 0.0
    """Probability that no answer comes."""
    compensation: Ways = ("queue", "naive", "wait")
    """Ways to deal with it; rtc for flow policies."""
    horizon_exec: Count | None = None
    """Actions between two requests; null = as trained."""
    margin: Whole = 1
    """Control steps that a chunk is asked for earlier than the measured delay says."""
    blend: Whole = 0
    """Control steps over which a new chunk fades in."""
    episodes: Count = 200
    """Per way."""
    num_envs: Count = 20
    """Copies of the environment."""
    gamma: Discount = 0.99
    """Discount per control step."""


class CheckOptions(VerbOptions, Env):
    """robot-rl check."""

    num_envs: Count = 8
    """Copies of the environment."""
    steps: Count = 1200
    """An episode has to end within so many."""
    seed: Whole = 0
    """Of everything random."""
    device: Device = "cpu"
    """Where a GPU engine computes."""


class CollectOptions(Machine, Env, ActionMeaning):
    """robot-rl collect."""

    out: str
    """A new .hdf5 file (D4RL layout) or a folder (our recordings)."""
    path: str | None = None
    """A run or checkpoint folder; null = the world's scripted expert."""
    level: Literal["random", "medium", "medium-replay", "medium-expert", "expert"] | None = None
    """A graded D4RL-like set."""
    steps: Count = 100_000
    """With level: at least this many."""
    medium_path: str | None = None
    """With level: a weaker agent (zip) or an earlier checkpoint; null = noise on the agent."""
    medium_fraction: Share = 0.4
    """With level: return of medium between random (0) and expert (1)."""
    medium_noise: NotNegative | None = None
    """With level: its strength; null = found by bisection, or none on the agent of medium_path."""
    medium_by: Literal["noise", "bias"] = "noise"
    """With level: what makes the agent medium; bias = a fixed wrong function of the state."""
    replay_by: Literal["uniform", "agents"] = "uniform"
    """With level=medium-replay: medium with ever fewer uniform actions, or ever less spoilt agents."""
    episodes: Count = 20
    """To record."""
    only_success: bool = False
    """Leave out episodes without success."""
    per_task: Count | None = None
    """Keep this many of each task of the world (tabletop), whatever episodes= says."""
    noise: NotNegative = 0.0
    """Standard deviation of Gaussian noise on the expert's actions; with level on all agents'."""
    noise_time: NotNegative = 0.0
    """s over which the expert's noise stays alike (Ornstein-Uhlenbeck); 0 = new at every step."""
    pauses: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of the time in which the expert stands still."""
    pause_time: Positive = 0.3
    """Mean length of a pause, s."""
    mistakes: Share = 0.0
    """Share of episodes in which the expert does something else than what is asked."""
    sample: bool = False
    """With level: the agents draw their actions from their own policies, in place of noise."""
    deterministic: bool = False
    """The policy's best action; false draws one."""
    num_envs: Count = 8
    """Copies of the environment."""
    gamma: Discount = 0.99
    """Discount per control step."""


class DataOptions(VerbOptions):
    """robot-rl data; null = the format's default."""

    what: Literal["info", "validate", "convert", "plot"]
    """info, validate, convert or plot."""
    path: str
    """File or folder of any known format."""
    out: str | None = None
    """convert: what to write; plot: the picture."""
    to: Literal["store", "d4rl", "minari", "lerobot", "recording"] | None = None
    """convert: the format; null = by the name of out."""
    batch: Count = 256
    """validate: rows per training batch."""
    dataset: str | None = None
    """Name such as hopper-medium-v2, which tells limits, sizes and scores."""
    episode_length: Count | None = None
    """D4RL without ends: steps of an episode."""
    antmaze_terminal: Literal["keep", "first_hit"] | None = None
    """D4RL: what ends an episode."""
    maze2d_shift: Literal["none", "fix"] | None = None
    """D4RL: rewards one row late."""
    terminals: Literal["auto", "terminal", "timeout"] | None = None
    """D4RL: what its terminals mean."""
    shuffled: bool = False
    """D4RL: rows in no order, read as single transitions."""
    salvage: bool = False
    """Read what is whole in a damaged file."""
    infos: bool | None = None
    """Also read further columns."""
    keys: tuple[str, ...] | None = None
    """robomimic: observations to keep."""
    filter: str | None = None
    """robomimic: mask such as train."""
    success_reward: Number | None = None
    """robomimic: reward that means success."""
    map: str | None = None
    """CSV and rosbag2: YAML that says which columns or topics are what."""
    ros_distro: str | None = None
    """rosbag2 without type definitions: who recorded it."""
    reward: Literal["none", "column", "success_at_end"] | None = None
    """LeRobot: where rewards come from."""
    videos: bool | None = None
    """LeRobot: decode the cameras."""
    image_size: Pixels | None = None
    """LeRobot: [height,width] to scale frames to."""
    control_hz: Positive | None = None
    """Rate that the file does not tell."""
    rows: Count | None = None
    """Run folder: only this many of the oldest steps of its replay buffer."""
    action: Literal["clip", "rescale", "keep", "normalised"] | None = None
    """convert: what is done to actions; normalised: -1 and +1 are the bounds of the robot (docs/data.md)."""
    action_low: Bound | None = None
    """convert: lower bound of the actions where the log does not tell, a number or a list."""
    action_high: Bound | None = None
    """convert: upper bound."""
    drop_bad_episodes: bool = False
    """convert: leave out episodes with NaN or infinity."""
    dedupe: bool = False
    """convert: keep one of several equal episodes."""
    trust_terminals: bool = False
    """convert: keep terminals at the time limit as true ends."""
    split_gaps: bool = False
    """convert: cut episodes where time stamps do not run on."""


SHARES = {
    "success": 4, "pause": 1, "wrong_object": 2, "wrong_place": 2, "drop": 2, "stall": 2, "miss": 2, "regress": 2,
    "undo": 1,
}  # fmt: skip


class CriticOptions(Machine):
    """robot-rl critic."""

    what: Literal["clips", "train", "eval", "label"]
    """clips, train, eval or label."""
    path: Folders | None = None
    """eval, label: a critic's folder (label: a list is an ensemble); train: a run folder to resume."""
    data: str | None = None
    """train: folder of clips; eval: another; label: a log with pictures."""
    out: str | None = None
    """clips: folder to write; label: log to write."""
    count: Count = 900
    """Clips to make."""
    chunk: Count = 60
    """Clips in a file."""
    shares: dict[str, NotNegative] = Field(default_factory=lambda: dict(SHARES))
    """Of the kinds of clips, in parts."""
    calibration: Part = 0.1
    """Share of the clips kept from training, to calibrate done."""
    save_every: Count = 500
    """Updates between saved states."""
    minutes: Positive | None = None
    """train: stop and save after so many; give the run's path to continue."""
    phrasing: Literal["held_out", "train"] = "held_out"
    """eval: which sentences."""
    combine: Literal["mean", "wco", "uwo"] = "wco"
    """label: of an ensemble, the mean, the minimum (wco) or mean - caution * variance (uwo)."""
    caution: NotNegative = 1.0
    """label: of uwo."""
    instruction: str | None = None
    """label: the sentence; null takes that of each episode of the log."""
    reference: str | None = None
    """label: <clips or log>:<episode> that shows the goal; alone, or beside instruction=."""
    reference_frames: Count = 6
    """label: frames of it; 1 = its last one, a picture of the goal."""
    camera: str = "front"
    """label: which pictures."""
    mode: Literal["reward", "potential", "delta", "dlogw", "absolute"] = "potential"
    """label: how progress becomes reward."""
    gamma: Discount = 0.99
    """label: of the potential."""
    stride: Count = 1
    """label: control steps between the frames of a pair."""
    done_reward: Number = 1.0
    """label: paid at every control step while the goal counts as met (done_events); 0 = shaping alone."""
    pictures: bool = True
    """label: keep them; false writes a log of the state alone."""


class BenchOptions(VerbOptions):
    """robot-rl bench."""

    suite: str
    """See the list of suites."""
    quick: bool = False
    """Fewer repetitions, for a look."""


class SweepOptions(Options):
    """robot-rl sweep, with two dashes each."""

    folder: str | None = None
    """Of the sweep (null: runs/sweeps/<date>); given again, finished trials are kept and interrupted ones resumed."""
    cpus: Positive = 1
    """Processors per trial."""
    gpus: NotNegative = 0
    """Devices per trial, also 0.5."""
    retries: Whole = 2
    """How often a trial is begun again when its machine is lost."""


class RosDoctorOptions(Options):
    """robot-rl doctor ros."""

    namespace: str = ""
    """Of the robot's topics, such as /left."""
    listen: Positive = 3.0
    """Seconds to listen."""
    wiggle: bool = False
    """Move each joint by 0.01 rad and see it on the right one."""


class IsaacDoctorOptions(Options):
    """robot-rl doctor isaac."""

    world: str = "quadruped"
    """World to check Isaac Gym with."""
    num_envs: Count = 16
    """Copies of it."""
    device: Device | None = None
    """Where; null takes a GPU where there is one."""
    id: str | None = None
    """Task of Isaac Lab."""


@cache
def _deploy() -> type[VerbOptions]:
    """What can be chosen of a robot's processes, and what every verb may be told."""
    graph = build.options_of("graph", build.find("graph", "processes"))
    fields: dict[str, Any] = {name: (item.annotation, item) for name, item in graph.model_fields.items()}
    fields["seed"] = (Whole, Field(0, description="Of the simulation."))
    left_out = "run or checkpoint folder; left out = no policy"  # an empty one is a mistake
    fields["policy_path"] = (str | None, Field(None, description=left_out))
    return create_model("DeployOptions", __base__=VerbOptions, **fields)


VERBS: dict[str, Callable[[], type[VerbOptions]]] = {
    "train": lambda: TrainOptions,
    "hil": lambda: HilOptions,
    "classify": lambda: ClassifyOptions,
    "offline": lambda: OfflineOptions,
    "prefer": lambda: PreferOptions,
    "design": lambda: DesignOptions,
    "eval": lambda: EvalOptions,
    "ope": lambda: OpeOptions,
    "fas": lambda: FasOptions,
    "compare": lambda: CompareOptions,
    "latency": lambda: LatencyOptions,
    "check": lambda: CheckOptions,
    "collect": lambda: CollectOptions,
    "data": lambda: DataOptions,
    "critic": lambda: CriticOptions,
    "deploy": _deploy,
    "bench": lambda: BenchOptions,
}
"""Configuration of a verb -> the class of its options."""
