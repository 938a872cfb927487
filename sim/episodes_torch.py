"""Episodes of N copies of a world on any physics whose state lies in tensors: the parts of a step, without the engine.

All parts work on arrays that stay where they are, never ask the device for a value and make no choice on the host, so
a CUDA graph can hold each of them. Every environment computes a fresh start in every step, and a mask decides who takes
it. On the CPU, where asking costs nothing, starts are computed only in steps in which an episode ends.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Protocol

import array_api_compat.torch as xp
import torch
from torch import Tensor

from robot_rl.sim.draw_torch import TorchStreams
from robot_rl.sim.randomize import Randomize
from robot_rl.sim.randomize_torch import TorchRandomizer
from robot_rl.sim.scene import CONTROL, STATE, Sensors, check_markers, check_reset, check_returned
from robot_rl.sim.world import Reset, View, World, parts_of

if TYPE_CHECKING:
    from mujoco import MjModel

BAD_STATE, BAD_REWARD, BAD_ACTION = 1, 2, 4
"""Bits of `Episodes.flags`."""
_WARM_UP = 2  # eager calls before a part of the step is captured


class TensorPhysics(Protocol):
    """What an engine brings: N copies of a model whose state lies in tensors that stay where they are.

    Attributes:
        model: the compiled `mujoco.MjModel` of the world, for sizes and pictures.
        qpos: (N, nq) float32, as MuJoCo orders and defines it; qvel (N, nv) and ctrl (N, nu) alike.
        sensors: name -> (N, dim).
        pending: (substeps, N, nu) controls of the next control step, where the engine was made with latency.
        substeps: physics steps per control step.
    """

    model: MjModel
    qpos: Tensor
    qvel: Tensor
    ctrl: Tensor
    sensors: dict[str, Tensor]
    pending: Tensor
    substeps: int

    def advance(self) -> None:
        """`substeps` physics steps with the controls that lie in `ctrl` (or `pending`)."""
        ...

    def forward(self) -> None:
        """Recompute sensor values from the state."""
        ...

    def place(self, mask: Tensor, qpos: Tensor, qvel: Tensor, ctrl: Tensor) -> None:
        """Put the copies of `mask` (N,) bool into a new state."""
        ...

    def scale(self, mask: Tensor, factors: dict[str, Tensor]) -> None:
        """Set the models of the copies of `mask` to nominal values times factors."""
        ...

    def trouble(self) -> str | None:
        """What went wrong since the last call, in words; may wait for the device."""
        ...

    def state_dict(self) -> dict[str, Tensor]:
        """Copies of what the next step depends on."""
        ...

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Continue from `state_dict`."""
        ...

    def close(self) -> None:
        """Free what the engine holds."""
        ...


class Episodes:
    """State of N episodes of a world, and the parts of a step.

    Args:
        world: the task.
        physics: the engine.
        num_envs: N.
        seed: as in `sim.draw.Streams`.
        options: domain randomisation and observation noise.
        device: of all tensors.

    Attributes:
        wish: (N, A) the action of the step, clipped.
        state: (N, S) float32 observation to act on.
        final: (N, S) true successor of the last step.
        reward, terminated, truncated, done, success: (N,) of the last step.
        paid: name -> (N,) of the last step, what the reward was added up from, where its world names that.
        flags: (N,) uint8, what went wrong since somebody looked: `BAD_STATE`, `BAD_REWARD`, `BAD_ACTION`.
    """

    def __init__(
        self,
        world: World,
        physics: TensorPhysics,
        num_envs: int,
        seed: int,
        *,
        options: Randomize,
        device: torch.device,
    ) -> None:
        self.world, self.physics, self.device, self.num_envs = world, physics, device, num_envs
        self.offers = parts_of(world)
        self._host = device.type == "cpu"
        self.streams = TorchStreams(num_envs, seed, device=device)
        self.random = TorchRandomizer(
            options,
            num_envs,
            seed,
            physics.model,
            physics.substeps,
            device=device,
        )
        # drawing a model anew in the middle of training is more than a graph can hold
        self._models_change = options.needs_models and options.per == "episode"
        actions, components = len(world.action_names), len(world.obs_names)

        def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros((num_envs, *shape), dtype=dtype, device=device)

        self.wish, self.action, self.previous = zeros(actions), zeros(actions), zeros(actions)
        self.count = zeros(dtype=torch.int64)
        self.reward, self.final, self.state = zeros(), zeros(components), zeros(components)
        self.terminated, self.truncated, self.done, self.success = (zeros(dtype=torch.bool) for _ in range(4))
        self.flags = zeros(dtype=torch.uint8)
        self.everyone = ~zeros(dtype=torch.bool)
        self.task: dict[str, Tensor] = {}
        self.paid: dict[str, Tensor] = {}
        self.view = View(
            xp=xp,
            qpos=physics.qpos,
            qvel=physics.qvel,
            ctrl=physics.ctrl,
            sensors=Sensors(physics.sensors),
            action=self.action,
            previous_action=self.previous,
            step=self.count,
            task={},
        )
        self._graphs: dict[str, torch.cuda.CUDAGraph] = {}
        self._calls: dict[str, int] = {}

    def start(self, mask: Tensor) -> None:
        """Begin episodes in the environments of `mask` (N,) bool and observe them."""
        with self.terms():
            self._begin(mask, ended=False)
            self.physics.forward()
            self._look_after(mask, self.state)

    def step(self) -> None:
        """One control step with the actions that lie in `wish`; results are in the attributes."""
        with self.terms():
            self._part("before", self._before)
            self.physics.advance()
            self._part("after", self._after)
            if (self._host or self._models_change) and bool(self.done.any()):
                self._begin(self.done, ended=True)
            if self.physics.sensors:
                self.physics.forward()
            self._part("look", self._look)

    def adopt(self, task: dict[str, Tensor]) -> None:
        """Take over the world's variables (after a load); none are of a state from before the first reset."""
        if not task:
            return
        if not self.task:
            check_markers(self.world, task)
            self.task = {key: torch.zeros_like(value, device=self.device) for key, value in task.items()}
        for key, target in self.task.items():
            target.copy_(task[key])
        self.view.task = dict(self.task)

    def close(self) -> None:
        """Free the graphs."""
        self._graphs.clear()

    def terms(self) -> ExitStack:
        """Where terms of the world run: no gradients, and arrays made without naming a device are made on ours."""
        stack = ExitStack()
        stack.enter_context(torch.no_grad())
        if not self._host:
            stack.enter_context(torch.device(self.device))
        return stack

    def _part(self, name: str, work: Callable[[], None]) -> None:
        """Run one part of the step: on a GPU captured after two eager calls and replayed from then on."""
        if self._host:
            work()
            return
        graph = self._graphs.get(name)
        if graph is None:
            calls = self._calls[name] = self._calls.get(name, 0) + 1
            if calls <= _WARM_UP:
                work()
                return
            graph = self._graphs[name] = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                work()
        graph.replay()

    def _before(self) -> None:
        """Clip the action and turn it into controls."""
        bad = torch.isnan(self.wish).any(dim=1)
        self.flags |= BAD_ACTION * bad.to(torch.uint8)
        self.wish.copy_(torch.nan_to_num(self.wish, nan=0.0).clamp(-1.0, 1.0))
        self.previous.copy_(self.action)
        control: Any = self.world.control(self.view, self.wish.clone())
        self.action.copy_(self.wish)
        check_returned(self.world, "control returned", control, tuple(self.physics.ctrl.shape), CONTROL)
        self._keep_task()
        push = self.random.push()
        if push is not None:
            self.physics.qvel[:, :2] += push
        late = self.random.delay(control)
        if late.ndim == 3:
            self.physics.pending.copy_(late.transpose(0, 1))
            self.physics.ctrl.copy_(late[:, -1])
        else:
            self.physics.ctrl.copy_(late)

    def _after(self) -> None:
        """Rewards, ends and true successors; on a GPU the new episodes as well."""
        view, world = self.view, self.world
        self.count += 1
        world.update(view)
        self._keep_task()
        view.terms = {}
        for target, value in (
            (self.reward, world.reward(view)),
            (self.terminated, world.terminated(view)),
            (self.success, world.success(view)),
        ):
            target.copy_(_vector(value, target, world.name))
        self._keep_terms(view.terms)
        self.truncated.copy_((self.count >= world.episode_steps) & ~self.terminated)
        self.done.copy_(self.terminated | self.truncated)
        self._look_after(self.everyone, self.final)
        self.flags |= BAD_REWARD * (~torch.isfinite(self.reward)).to(torch.uint8)
        if not (self._host or self._models_change):
            self._begin(self.done, ended=True)

    def _keep_terms(self, terms: Mapping[str, object]) -> None:
        """Bring the reward's terms to arrays that stay where they are; made in the eager calls before a capture."""
        for name, value in terms.items():
            if name not in self.paid:
                self.paid[name] = torch.zeros_like(self.reward)
            self.paid[name].copy_(_vector(value, self.reward, self.world.name))

    def _look(self) -> None:
        """What to act on next: the true successor, or the first observation where an episode ended."""
        self.state.copy_(self.final)
        if not self._host or bool(self.done.any()):
            self._look_after(self.done, self.state)

    def _look_after(self, mask: Tensor, target: Tensor) -> None:
        """Observe the present state into the rows `mask` of `target`."""
        state: Any = self.world.observe(self.view)
        check_returned(self.world, "observe returned", state, tuple(target.shape), STATE)
        state = state.float()
        self.flags |= BAD_STATE * (~torch.isfinite(state).all(dim=1) & mask).to(torch.uint8)
        target.copy_(torch.where(mask[:, None], self.random.noisy(state, mask), target))

    def _begin(self, mask: Tensor, *, ended: bool) -> None:
        """Begin episodes in the environments of `mask`; sensors follow with `physics.forward`."""
        view, count, physics = self.view, self.num_envs, self.physics
        draw = self.streams.draw(mask)
        follow = self.offers.reset_after if ended else None
        start: Reset = self.world.reset(draw, count, xp) if follow is None else follow(draw, view)
        check_reset(self.world, start, count, physics.model, self.task)
        given: dict[str, Any] = {"qpos": start.qpos, "qvel": start.qvel, "ctrl": start.ctrl}
        drawn, factors = self.random.restart(mask, given["ctrl"])
        if factors and (self._models_change or not ended):  # models drawn once stay as they are
            physics.scale(drawn, factors)
        physics.place(mask, **given)
        self.action.masked_fill_(mask[:, None], 0.0)
        self.previous.masked_fill_(mask[:, None], 0.0)
        self.count.masked_fill_(mask, 0)
        task: dict[str, Any] = start.task
        if not self.task:
            self.task = {key: torch.zeros_like(value, device=self.device) for key, value in task.items()}
            view.task = dict(self.task)
        for key, target in self.task.items():
            flags = mask.view(-1, *[1] * (target.ndim - 1))
            target.copy_(torch.where(flags, task[key].to(target.dtype), target))

    def _keep_task(self) -> None:
        """Bring what the world has put into `view.task` to the arrays that stay where they are."""
        task: dict[str, Any] = self.view.task
        fresh = {key: value.clone() for key, value in task.items() if value is not self.task[key]}
        for key, value in fresh.items():
            self.task[key].copy_(value)
        self.view.task = dict(self.task)


def _vector(value: Any, like: Tensor, world: str) -> Tensor:
    if tuple(value.shape) != tuple(like.shape):
        raise ValueError(f"a term of world '{world}' has shape {tuple(value.shape)}, expected {tuple(like.shape)}")
    if like.dtype is torch.bool and value.dtype is not torch.bool:
        raise TypeError(f"a flag of world '{world}' is {value.dtype}, expected bool (N,); compare with a threshold")
    return value.to(like.dtype)
