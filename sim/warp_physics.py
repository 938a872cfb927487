"""N copies of one MuJoCo model on MuJoCo Warp, with their state as torch tensors that share the device's memory.

Every control step is one captured graph: a CUDA graph on a GPU, Warp's own recording on the CPU device. MuJoCo computes
sensors before it integrates; models with sensors therefore get one more forward pass after the last physics step, so
that sensor values belong to the state that is handed out (as in `sim.mujoco_physics`).

Source: google-deepmind/mujoco_warp, `put_model`, `make_data`, `step`, `forward`, `set_const`; NVIDIA/warp,
`to_torch`, `ScopedCapture`, `capture_launch`, `stream_from_torch`.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from robot_rl.extras import require
from robot_rl.sim.mujoco_physics import SCALED_FIELDS, mujoco, sensors, substeps

warp = require("warp")
mujoco_warp = require("mujoco_warp")

# what follows from the fields that a factor multiplies
_DERIVED = ("body_subtreemass", "body_invweight0", "dof_invweight0", "actuator_acc0")
_FULL_BITS = ("NEFC", "NJMAX_NNZ", "BROADPHASE", "NARROWPHASE", "CCD")


class WarpPhysics:
    """A batch of MuJoCo states on one device.

    Args:
        xml: the model as MJCF text.
        num_envs: N copies.
        control_hz: calls of `advance` per simulated second; each makes `substeps` physics steps.
        device: "cpu" or a CUDA device.
        max_contacts: room for contacts per copy, shared by all copies; None takes mujoco_warp's guess.
        max_constraints: room for constraint rows in each copy; None takes twice mujoco_warp's guess.
        scaled: which of "mass", "friction", "damping" and "gain" each copy has of its own, for `scale`.
        latency: whether controls come for each physics step, in `pending`.

    Raises:
        ValueError: `control_hz` is no whole number of physics steps, or the model uses what mujoco_warp has not.

    Attributes:
        qpos: (N, nq) float32, shares memory with the simulation, as do qvel (N, nv), ctrl (N, nu) and time (N,).
        sensors: name -> (N, dim) float32 views into the sensor values.
        pending: (substeps, N, nu) controls of the next control step, with latency.
        overflow: (N,) int32 bits of `mujoco_warp.OverflowType`.
        substeps: physics steps per control step.
    """

    def __init__(
        self,
        xml: str,
        num_envs: int,
        control_hz: float,
        *,
        device: torch.device,
        max_contacts: int | None = None,
        max_constraints: int | None = None,
        scaled: tuple[str, ...] = (),
        latency: bool = False,
    ) -> None:
        self.num_envs, self.device = num_envs, device
        self.model = model = mujoco.MjModel.from_xml_string(xml)
        model.opt.noslip_iterations = 0  # it has no such pass
        self.substeps = substeps(control_hz, float(model.opt.timestep))
        own = [name for key in scaled for name in SCALED_FIELDS[key]] + list(_DERIVED if "mass" in scaled else ())
        if not model.npair:
            own = [name for name in own if name != "pair_friction"]
        self._announce(xml)
        self._warp_device = warp.device_from_torch(device)
        with self.on_stream():
            try:
                self._model = mujoco_warp.put_model(model, batch_sizes=dict.fromkeys(own, num_envs))
            except NotImplementedError as error:
                raise ValueError(
                    f"MuJoCo Warp cannot run this model: {error}; use the CPU engine (engine=mujoco)"
                ) from error
            self._model.opt.warn_overflow = 0  # `overflow` says it, once and for all copies
            if max_constraints is None:
                max_constraints = 2 * int(mujoco_warp.make_data(model, nworld=1).njmax)
            self._data = mujoco_warp.make_data(model, nworld=num_envs, nconmax=max_contacts, njmax=max_constraints)
        data = self._data
        self.qpos, self.qvel, self.ctrl, self.time, self._warmstart, self.overflow = (
            warp.to_torch(array)
            for array in (data.qpos, data.qvel, data.ctrl, data.time, data.qacc_warmstart, data.overflow)
        )
        # equalities of a step read the velocities that the last one left; activations are of actuators with dynamics
        left = ("cvel", "cdof_dot", "subtree_linvel", *(("act",) if model.na else ()))
        self._left = {name: warp.to_torch(getattr(data, name)) for name in left}
        self.sensors = sensors(model, warp.to_torch(data.sensordata)) if model.nsensor else {}
        self._scaled = {name: warp.to_torch(getattr(self._model, name)) for key in scaled for name in SCALED_FIELDS[key]
                        if name in own}  # fmt: skip
        self._nominal = {name: value.clone() for name, value in self._scaled.items()}
        self.pending = torch.zeros((self.substeps if latency else 0, num_envs, model.nu), device=device)
        self._controls_warp = warp.from_torch(self.pending) if latency else None
        self._graphs: dict[str, object] = {}
        self._full = sum(int(mujoco_warp.OverflowType[name]) for name in _FULL_BITS)

    def advance(self) -> None:
        """Advance all copies by `substeps` physics steps with the controls in `ctrl` (or `pending`), as one graph."""
        self._launch("step", self._advance)

    def forward(self) -> None:
        """Recompute sensor values from the state; nothing where the model has none."""
        if self.sensors:
            self._launch("forward", self._forward)

    def place(self, mask: Tensor, qpos: Tensor, qvel: Tensor, ctrl: Tensor) -> None:
        """Put the copies of `mask` (N,) bool into a new state: qpos (N, nq), qvel (N, nv), ctrl (N, nu).

        Sensor values follow with `forward`.
        """
        column = mask[:, None]
        for target, value in ((self.qpos, qpos), (self.qvel, qvel), (self.ctrl, ctrl)):
            target.copy_(torch.where(column, value.to(target.dtype), target))
        self._warmstart.masked_fill_(column, 0.0)
        for left in self._left.values():
            left.masked_fill_(mask.view(-1, *[1] * (left.ndim - 1)), 0.0)
        self.time.masked_fill_(mask, 0.0)

    def scale(self, mask: Tensor, factors: dict[str, Tensor]) -> None:
        """Set the models of the copies of `mask` to nominal values times factors.

        Args:
            mask: (N,) bool.
            factors: name -> (N, size) as `randomize.factor_sizes` says; only names given as `scaled`.
        """
        for key, factor in factors.items():
            for name in SCALED_FIELDS[key]:
                if name not in self._scaled:
                    continue
                target, nominal = self._scaled[name], self._nominal[name]
                shaped = factor.reshape(*factor.shape, *[1] * (target.ndim - 2))
                if name.startswith("actuator"):  # the first three parameters hold gain and bias
                    ones = torch.ones_like(target)
                    ones[..., :3] = shaped
                    shaped = ones
                flags = mask.view(-1, *[1] * (target.ndim - 1))
                target.copy_(torch.where(flags, nominal * shaped, target))
        if "mass" in factors:
            with self.on_stream():
                mujoco_warp.set_const(self._model, self._data)

    def trouble(self) -> str | None:
        """Whether contacts or constraints did not fit; waits for the device."""
        if not int(self.overflow.max()) & self._full:
            return None
        return (
            "contacts or constraints did not fit into their buffers, so the physics was wrong; give more room, for "
            "example +env.max_contacts=96 +env.max_constraints=256"
        )

    def state_dict(self) -> dict[str, Tensor]:
        """Copies of what the next step depends on."""
        return {name: value.clone() for name, value in self._tensors().items()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Continue from `state_dict`; the arrays stay where they are."""
        for name, target in self._tensors().items():
            target.copy_(state[name])

    def _tensors(self) -> dict[str, Tensor]:
        kept = {
            "qpos": self.qpos,
            "qvel": self.qvel,
            "ctrl": self.ctrl,
            "time": self.time,
            "warmstart": self._warmstart,
        }
        return kept | self._left | {f"sensor.{name}": value for name, value in self.sensors.items()}

    def close(self) -> None:
        """Free the graphs."""
        self._graphs.clear()

    @contextmanager
    def on_stream(self) -> Iterator[None]:
        """Warp's work goes to the device and the stream on which torch works, so that both stay in order."""
        with warp.ScopedDevice(self._warp_device):
            if self.device.type == "cuda":
                with warp.ScopedStream(warp.stream_from_torch(torch.cuda.current_stream(self.device))):
                    yield
            else:
                yield

    def _advance(self) -> None:
        for index in range(self.substeps):
            if self._controls_warp is not None:
                warp.copy(self._data.ctrl, self._controls_warp[index])
            mujoco_warp.step(self._model, self._data)
        self._forward()

    def _forward(self) -> None:
        if self.sensors:
            mujoco_warp.forward(self._model, self._data)

    def _launch(self, name: str, work: Callable[[], None]) -> None:
        if name not in self._graphs:
            self._graphs[name] = self._capture(work)
        graph = self._graphs[name]
        if self.device.type == "cuda":
            warp.capture_launch(graph, stream=warp.stream_from_torch(torch.cuda.current_stream(self.device)))
        else:
            warp.capture_launch(graph)

    def _capture(self, work: Callable[[], None]) -> Any:
        """Record `work` without changing the state."""
        if self.device.type == "cuda":  # kernels have to be built and loaded before a CUDA capture
            kept, overflow = self.state_dict(), self.overflow.clone()
            with self.on_stream():
                work()
            self.load_state_dict(kept)
            self.overflow.copy_(overflow)
            torch.cuda.synchronize(self.device)
        with warp.ScopedDevice(self._warp_device), warp.ScopedCapture(device=self._warp_device) as capture:
            work()
        return capture.graph

    def _announce(self, xml: str) -> None:
        """Say, once per model and machine, why the first step takes minutes."""
        warp.config.log_level = max(warp.config.log_level, warp.LOG_WARNING)
        warp.init()
        folder = str(warp.config.kernel_cache_dir or "")
        kind = f"{self.device.type} {mujoco_warp.__version__} {warp.__version__}"
        digest = hashlib.sha256(f"{kind} {xml}".encode()).hexdigest()[:16]
        marker = os.path.join(folder, f"robot_rl_{digest}")
        if not folder or os.path.exists(marker):
            return
        sys.stderr.write(
            f"MuJoCo Warp builds its kernels for this model on '{self.device}': minutes the first time, then they lie "
            f"in {folder}\n"
        )
        try:
            with open(marker, "w", encoding="utf-8") as file:
                file.write(kind)
        except OSError:
            return  # a cache that cannot be written is warp's to complain about
