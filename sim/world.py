"""The contract of a world: one MJCF model plus batched terms, written once and run by every engine.

All terms work on arrays whose first axis is the environment (N, ...). They use only the array-API subset that NumPy and
torch share, through `view.xp` (an `array_api_compat` namespace), so that the CPU, Warp and Isaac engines run one file.
No term loops over environments.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

from robot_rl.types import Array, Goals
from robot_rl.types.policy_card import PolicyCard


@dataclass
class View:
    """What the terms of a world may read: the state of N environments after a control step (or after a reset).

    The arrays are overwritten by the next step: what `task` should remember must be a copy. Sensor values belong to
    this very state, also right after a reset.

    Attributes:
        xp: array namespace of all arrays here (`array_api_compat.numpy` or `.torch`).
        qpos: (N, nq) joint positions.
        qvel: (N, nv) joint velocities.
        ctrl: (N, nu) controls applied during the last control step.
        sensors: name -> (N, dim) MuJoCo sensor values by sensor name.
        action: (N, A) last executed action in [-1, 1]; zeros after a reset.
        previous_action: (N, A) the one before.
        step: (N,) int64 control steps since the reset.
        task: per-environment variables of the world (goal, latch, checkpoint index ...), name -> (N, ...).
        terms: what `total` added up last, name -> (N,); the engine empties it before it asks for the reward.
    """

    xp: ModuleType
    qpos: Array
    qvel: Array
    ctrl: Array
    sensors: dict[str, Array]
    action: Array
    previous_action: Array
    step: Array
    task: dict[str, Any] = field(default_factory=dict)
    terms: dict[str, Array] = field(default_factory=dict)

    def total(self, terms: Mapping[str, Array]) -> Array:
        """The sum (N,) of a reward's named terms (N,), weighted already, which are kept so that a run can record each.

        A reward that ends in `return view.total({"near": ..., "effort": -0.1 * ...})` is one of which a run's report
        says which term is how large, and which was never paid.

        Raises:
            ValueError: there is no term.
        """
        self.terms = dict(terms)
        return add_terms(terms, self.xp)


def add_terms(terms: Mapping[str, Array], xp: ModuleType) -> Array:
    """The sum (N,) float32 of named terms (N,).

    Raises:
        ValueError: there is no term.
    """
    if not terms:
        raise ValueError("a reward has no term; expected at least one name -> (N,)")
    first, *others = terms.values()
    for term in others:
        first = first + term
    return xp.astype(first, xp.float32)


def heading(view: View) -> Array:
    """(N,) yaw [rad] of a body whose free joint comes first in `qpos`."""
    w, x, y, z = (view.qpos[:, i] for i in range(3, 7))
    return view.xp.atan2(2.0 * (w * z + x * y), 1.0 - 2.0 * (y * y + z * z))


class Draw(Protocol):
    """Random numbers for the n environments that reset, from each environment's own stream."""

    def uniform(self, *shape: int, low: object = 0.0, high: object = 1.0) -> Array:
        """(n, *shape) float32 uniform in [low, high); the limits are numbers or arrays that broadcast."""
        ...

    def normal(self, *shape: int, std: object = 1.0) -> Array:
        """(n, *shape) float32 normal with mean 0; `std` is a number or an array that broadcasts."""
        ...


@dataclass
class Reset:
    """Initial state of the n environments that reset.

    Attributes:
        qpos: (n, nq).
        qvel: (n, nv).
        ctrl: (n, nu) controls that hold the robot where it is.
        task: the world's variables, name -> (n, ...); the same keys every time.
    """

    qpos: Array
    qvel: Array
    ctrl: Array
    task: dict[str, Any] = field(default_factory=dict)


class World(Protocol):
    """One simulated task. Implementations are plain classes `World(**options)` in sim/worlds/<name>.py.

    Attributes:
        name: the world's name.
        control_hz: decisions per second; substeps = 1 / (control_hz * model timestep), a whole number.
        episode_steps: control steps until truncation.
        action_names, action_low, action_high, action_units: the IOSpec's action fields (physical units).
        obs_names: names of the components of "state".
        cameras: camera names of the model that may be rendered as "image.<name>".

    What a world may have beyond this stands in `WorldParts`, and is read where present.
    """

    @property
    def name(self) -> str:
        """The world's name."""
        ...

    @property
    def control_hz(self) -> float:
        """Decisions per second."""
        ...

    @property
    def episode_steps(self) -> int:
        """Control steps until truncation."""
        ...

    @property
    def action_names(self) -> tuple[str, ...]:
        """(A,) names."""
        ...

    @property
    def action_low(self) -> tuple[float, ...]:
        """(A,) lower bounds in physical units."""
        ...

    @property
    def action_high(self) -> tuple[float, ...]:
        """(A,) upper bounds."""
        ...

    @property
    def action_units(self) -> tuple[str, ...]:
        """(A,) units."""
        ...

    @property
    def obs_names(self) -> tuple[str, ...]:
        """Names of the components of "state"."""
        ...

    @property
    def cameras(self) -> tuple[str, ...]:
        """Cameras of the model."""
        ...

    def mjcf(self) -> str:
        """The model as one MJCF string (paths to meshes absolute)."""
        ...

    def reset(self, draw: Draw, n: int, xp: ModuleType) -> Reset:
        """Initial states of n environments."""
        ...

    def control(self, view: View, action: Array) -> Array:
        """Map actions (N, A) in [-1, 1] to controls (N, nu); scaling to physical units happens here, once."""
        ...

    def update(self, view: View) -> None:
        """Advance `view.task` in place after a control step (latches, checkpoints, held counters). May be empty."""
        ...

    def observe(self, view: View) -> Array:
        """(N, S), the "state" observation; engines convert it to float32."""
        ...

    def reward(self, view: View) -> Array:
        """(N,); engines convert it to float32. Named terms are recorded where it ends in `return view.total({...})`."""
        ...

    def terminated(self, view: View) -> Array:
        """(N,) bool, true ends (not the time limit)."""
        ...

    def success(self, view: View) -> Array:
        """(N,) bool, the task is done now."""
        ...


@dataclass(frozen=True)
class WorldGoals:
    """Goals of a world whose reward depends on them alone.

    Attributes:
        achieved: (view) -> (N, R) what has been reached.
        desired: (view) -> (N, G) what is asked.
        terms: what a step earns under another goal, and how the state shows it.
    """

    achieved: Callable[[View], Array]
    desired: Callable[[View], Array]
    terms: Goals


@dataclass(frozen=True)
class WorldParts:
    """What a world may have beyond `World`, each an attribute or method of that name; None or empty where it has none.

    Attributes:
        expert: a scripted controller, (state (N, S)) -> actions (N, A) in [-1, 1], memoryless: for demonstrations, for
            `human=scripted` and as a check that the task can be done. A world without one is taught by a person.
        markers: name of a mocap body -> name of a (N, 3) variable of `task`, its position [m] in pictures (a goal that
            cameras should see). Only drawn: give its geoms contype="0" conaffinity="0" and put no sensor on it.
        task_names: names of several tasks in one scene, where `task["goal"]` (N,) counts them; evaluations then report
            each, and the info of every step holds "task" (N,).
        asked_tasks: which of them are drawn at all, as indices; all where a world does not say.
        instruction_bytes: length L of the observation "instruction", 0 for none (CPU engine).
        instruct: (view) -> (N, L) uint8: the sentence that says the task, UTF-8 with zeros behind.
        reset_after: (draw, view) -> Reset: in place of `reset` when an episode ended by itself; `view` is the final
            state of the n environments that reset, so that the next start may depend on it (practice without a person).
        adopt: (view): takes the measured `qpos` as the start, for worlds whose policies run on a robot.
        tool: (view) -> dict: "position", "velocity" (N, D), "low", "high" (D,) of the first D actions where these are
            moves: what a safety layer between policy and simulation watches; where there are grippers, "gripper" (N,
            G), their openings in units of their actions, which are the last.
        instructions: (view) -> list of N sentences: what is asked of each copy, for critics and policies that read.
        mistaken: (state, draw) -> state (N, S) as if something else were asked; `draw` (N,) in [0, 1) says what, NaN
            leaves a row: logs in which people do the wrong thing.
        place: (view) -> (N, P) [m].
        stages: (view) -> "reached", "held" (N,) bool: how far a task with an object has come, to say where an episode
            failed.
        way_out: (A,) an action (None: any number) that leads out of where the robot is stuck.
        policy_cameras: cameras that show a policy what it needs to do the task.
        goal_lift: metres above the tip at success that the place which pictures show lies, as the mouth of a hole does.
        proprio: components of "state" that the robot feels of itself; the others are of goals and objects.
        goals: what a step would have earned under another goal, for hindsight.
        policy_card: of policies of this world, where a robot on legs sees and does what such a card says.
        privileged_names: () -> names of what the simulator knows and no component of "state" tells.
        privileged: (view) -> (N, P) of these, for critics and teachers.
        eval_options: of the class: options as evaluations have them, where training has others (levels, practice).
        landmarks: (view) -> "object", "goal" -> (N, 4) where they are [m] and how they are turned about the vertical
            [rad]: what pictures show and `proprio` hides, as labels for who trains an encoder, and to judge one by.
    """

    expert: Callable[[Array], Array] | None = None
    markers: Mapping[str, str] = field(default_factory=dict)
    task_names: tuple[str, ...] = ()
    asked_tasks: tuple[int, ...] = ()
    instruction_bytes: int = 0
    instruct: Callable[[View], Array] | None = None
    reset_after: Callable[[Draw, View], Reset] | None = None
    adopt: Callable[[View], None] | None = None
    tool: Callable[[View], dict[str, Array]] | None = None
    instructions: Callable[[View], list[str]] | None = None
    mistaken: Callable[[Array, Array], Array] | None = None
    place: Callable[[View], Array] | None = None
    stages: Callable[[View], dict[str, Array]] | None = None
    way_out: tuple[float | None, ...] | None = None
    policy_cameras: tuple[str, ...] = ()
    proprio: tuple[str, ...] = ()
    goal_lift: float = 0.0
    goals: WorldGoals | None = None
    policy_card: PolicyCard | None = None
    privileged_names: Callable[[], tuple[str, ...]] | None = None
    privileged: Callable[[View], Array] | None = None
    eval_options: Mapping[str, object] = field(default_factory=dict)
    landmarks: Callable[[View], dict[str, Array]] | None = None

    def ask_expert(self, state: Array) -> Array:
        """(N, A) actions of the scripted controller for states (N, S).

        Raises:
            ValueError: the world has none.
        """
        if self.expert is None:
            raise ValueError("this world has no scripted controller (a method expert); docs/add_a_world.md says how")
        return self.expert(state)

    def say_facts(self, view: View) -> dict[str, Array]:
        """Views of what a step's info says: "task", "achieved_goal" and "desired_goal", where there are any."""
        facts = {"task": view.task["goal"]} if self.task_names else {}
        if self.goals is not None:
            facts |= {"achieved_goal": self.goals.achieved(view), "desired_goal": self.goals.desired(view)}
        return facts


def parts_of(world: object) -> WorldParts:
    """What a world has beyond `World`: the one place that looks.

    Raises:
        ValueError: `goals` is something of the world's own.
    """
    found = {item.name: getattr(world, item.name, None) for item in fields(WorldParts)}
    parts = WorldParts(**{name: value for name, value in found.items() if value is not None})
    if parts.goals is not None and not isinstance(parts.goals, WorldGoals):
        raise ValueError(
            f"{type(world).__name__}.goals is a {type(parts.goals).__name__}, expected sim.world.WorldGoals: "
            "what is achieved and what a step earns under other goals; give what you keep there another name"
        )
    if parts.task_names and not parts.asked_tasks:
        return replace(parts, asked_tasks=tuple(range(len(parts.task_names))))
    return parts


ASSETS = Path(__file__).resolve().parent / "assets"


def asset(name: str) -> str:
    """Text of a file that comes with our worlds, such as "race/car.xml"."""
    return (ASSETS / name).read_text(encoding="utf-8")


def gymnasium_model(name: str) -> str:
    """MJCF of a model that comes with Gymnasium.

    Raises:
        FileNotFoundError: it has none of this name.
    """
    spec = find_spec("gymnasium")
    root = Path(spec.origin).parent if spec and spec.origin else Path("gymnasium")
    path = root / "envs" / "mujoco" / "assets" / f"{name}.xml"
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing; expected a model of gymnasium 1.x such as hopper or walker2d")
    return path.read_text(encoding="utf-8")
