"""Diffusion and flow chunk policies: golden schedules, DDIM and its density, the student, real-time chunks."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
import torch

from robot_rl.data.buffer import ReplayBuffer
from robot_rl.policies.nets.diffusion import NoiseSchedule, ddim_step, denoise_clip, step_log_density
from robot_rl.policies.sequence.diffusion import Diffusion, DiffusionOptions
from robot_rl.policies.sequence.rl100 import Rl100, Rl100Options
from robot_rl.types import Episode, IOSpec

IO = IOSpec({"state": ((1,), "float32")}, ("x",), (-1.0,), (1.0,), ("1",), 10.0)
SMALL: dict[str, Any] = {
    "hidden": (32,), "batch_size": 32, "horizon_pred": 4, "horizon_exec": 2, "noise_steps": 8, "sample_steps": 4,
    "warmup": 0, "average_power": 0.5, "metrics_every": 1,
}  # fmt: skip


def test_cosine_schedule_golden() -> None:
    short, long = NoiseSchedule.cosine(20), NoiseSchedule.cosine(100)
    assert float(short.beta[0]) == pytest.approx(0.007993, abs=1e-6)
    assert float(short.beta[19]) == pytest.approx(0.999)
    assert float(short.alpha_bar[0]) == pytest.approx(0.992007, abs=1e-6)
    assert float(short.alpha_bar[9]) == pytest.approx(0.493844, abs=1e-6)
    assert float(long.alpha_bar[0]) == pytest.approx(0.999369, abs=1e-6)
    assert long.indices(10) == [90, 80, 70, 60, 50, 40, 30, 20, 10, 0]


def test_denoise_clip_golden_and_a_chain_of_one() -> None:
    assert denoise_clip(5).tolist() == pytest.approx([0.001, 0.001527, 0.002642, 0.005002, 0.01], abs=1e-6)
    assert denoise_clip(1).tolist() == [0.01]  # the source divides by zero


def test_ddim_with_the_true_noise_returns_the_clean_chunk() -> None:
    schedule, g = NoiseSchedule.cosine(20), torch.Generator().manual_seed(0)
    clean, noise = torch.rand(5, 3, generator=g) * 1.8 - 0.9, torch.randn(5, 3, generator=g)
    x = schedule.add_noise(clean, noise, torch.full((5,), 12))
    end = ddim_step(schedule, x, noise, 12, -1)
    torch.testing.assert_close(end.mean, clean, atol=1e-5, rtol=0)
    middle = ddim_step(schedule, x, noise, 12, 5)
    torch.testing.assert_close(middle.mean, schedule.add_noise(clean, noise, torch.full((5,), 5)), atol=1e-5, rtol=0)


def test_ddim_eta_one_has_the_variance_of_ddpm() -> None:
    schedule = NoiseSchedule.cosine(20)
    here, there, beta = float(schedule.alpha_bar[9]), float(schedule.alpha_bar[8]), float(schedule.beta[9])
    step = ddim_step(schedule, torch.zeros(1, 1), torch.zeros(1, 1), 9, 8, eta=1.0)
    assert step.std**2 == pytest.approx((1 - there) / (1 - here) * beta)


def test_clipping_recomputes_the_noise() -> None:
    """x, clean and noise stay one triple: sqrt(ab) clean + sqrt(1 - ab) noise = x."""
    schedule = NoiseSchedule.cosine(20)
    x, wrong = torch.tensor([[2.0]]), torch.tensor([[-1.0]])
    step = ddim_step(schedule, x, wrong, 9, 8)
    assert step.clean.item() == 1.0
    here, there = schedule.level(9), schedule.level(8)
    noise = (2.0 - here**0.5) / (1 - here) ** 0.5
    assert step.mean.item() == pytest.approx(there**0.5 + (1 - there) ** 0.5 * noise, rel=1e-5)


def test_density_uses_the_floor_and_refuses_a_deterministic_step() -> None:
    schedule = NoiseSchedule.cosine(20)
    step = ddim_step(schedule, torch.zeros(1, 1), torch.zeros(1, 1), 9, 8)
    with pytest.raises(ValueError, match="deterministic"):
        step_log_density(step, step.mean, floor=0.0)
    expected = torch.distributions.Normal(step.mean, 0.1).log_prob(torch.tensor([[0.05]]))
    torch.testing.assert_close(step_log_density(step, torch.tensor([[0.05]]), floor=0.1), expected)


def demos() -> ReplayBuffer:
    """From state 0 all actions are 0.5 or all are -0.5: two modes, whose mean is no demonstration."""
    buffer = ReplayBuffer(IO, 4096, window=4, seed=0)
    for i in range(40):
        action = np.full((4, 1), 0.5 if i % 2 else -0.5, np.float32)
        state = np.arange(5, dtype=np.float32)[:, None]
        buffer.add_episode(
            Episode(
                {"state": state}, action, action, np.zeros(4, np.float32), False, True, np.zeros(4, bool), state[:, 0]
            )
        )
    return buffer


@pytest.mark.parametrize("kind", ["diffusion", "flow"])
def test_two_modes_are_kept_and_the_student_copies_them(kind: str) -> None:
    options = DiffusionOptions(**{**SMALL, "kind": kind, "hidden": (64, 64), "lr": 3e-3, "distill_from": 250})
    learner = Diffusion(options, IO)
    batches = demos().batches(64)
    for _ in range(600):
        learner.update(batches)
    state, noise = torch.zeros(300, 1), torch.randn(300, 4, generator=torch.Generator().manual_seed(1))
    teacher = learner.teacher(learner.see(state), noise)[:, :2]
    assert ((teacher.abs() - 0.5).abs() < 0.25).float().mean() > 0.75  # near a mode ...
    assert (teacher.abs() < 0.15).float().mean() < 0.15  # ... and seldom near their mean
    assert 0.25 < (teacher[:, 0] > 0).float().mean() < 0.75
    student = learner.student(learner.see(state), noise)[:, :2]
    assert (student.sign() == teacher.sign()).float().mean() > 0.9  # the same noise, the same mode
    assert (student - teacher).abs().mean() < 0.15


def test_behind_clone_updates_the_teacher_stays_and_the_student_learns_at_its_own_falling_rate() -> None:
    learner = Diffusion(DiffusionOptions(**{**SMALL, "clone_updates": 3, "distill_from": 3, "distill_decay": 4}), IO)
    batches, teachers, moved = demos().batches(32), [], []
    for _ in range(8):
        before = learner.student_net.params.flat.clone()
        learner.update(batches)
        teachers.append(learner.acting.params.flat.clone())
        moved.append((learner.student_net.params.flat - before).abs().max().item())
    assert not torch.equal(teachers[1], teachers[2])
    assert all(torch.equal(teachers[2], later) for later in teachers[3:])
    assert moved[:2] == [0.0, 0.0]
    assert moved[2] > 0
    assert moved[5] < 0.5 * moved[3]  # step sizes cos^2(pi / 8 n): 0.85 in the second update, 0.15 in the fourth
    assert moved[6:] == [0.0, 0.0]


def test_noise_on_states_teaches_the_student_beside_the_logged_ones() -> None:
    """The log holds states 0 to 3; the teacher answers beside them too, and noise lets the student learn that."""
    errors = []
    for spread in (0.0, 3.0):
        options = {"hidden": (64, 64), "lr": 3e-3, "clone_updates": 300, "distill_from": 300, "distill_noise": spread}
        learner = Diffusion(DiffusionOptions(**{**SMALL, **options, "normalize": False}), IO)
        batches = demos().batches(64)
        for _ in range(1000):
            learner.update(batches)
        state = torch.tensor([[-3.0], [-2.0], [5.0], [6.0], [7.0]]).repeat(60, 1)
        noise = torch.randn(300, 4, generator=torch.Generator().manual_seed(1))
        errors.append((learner.student(state, noise) - learner.teacher(state, noise))[:, :2].abs().mean().item())
    assert errors[1] < 0.8 * errors[0], errors


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"kind": "flow", "distill_from": 1},
        {"distill_from": 2, "student_acts": True},
        {"distill_from": 2, "clone_updates": 3, "distill_decay": 9, "distill_noise": 0.1},
    ],
)
def test_save_load_update_equals_update(options: dict[str, Any]) -> None:
    one, other = (Diffusion(DiffusionOptions(**{**SMALL, **options}), IO, seed=s) for s in (1, 2))
    stream = demos().batches(32)
    data = [next(stream) for _ in range(5)]
    for b in data[:3]:
        one.update(iter([b]))
    other.load_state_dict(one.state_dict())
    for b in data[3:]:
        assert one.update(iter([b])) == other.update(iter([b]))
    one.policy.reset()
    obs = {"state": np.ones((3, 1), np.float32)}
    np.testing.assert_array_equal(one.policy.act(obs).value, other.policy.act(obs).value)


def test_a_chunk_of_one_action_learns_from_single_steps() -> None:
    """A replay that draws no windows gives (B,) columns; in every stage of RL-100 too."""
    buffer = ReplayBuffer(IO, 64, seed=0)
    times = (np.zeros(8, bool), np.arange(9.0))
    state, action = np.zeros((9, 1), np.float32), np.linspace(-1.0, 1.0, 8, dtype=np.float32)[:, None]
    buffer.add_episode(Episode({"state": state}, action, action, np.ones(8, np.float32), True, False, *times, {}))
    single = {**SMALL, "horizon_pred": 1, "horizon_exec": 1}
    learner, batches = Diffusion(DiffusionOptions(**single), IO), buffer.batches(32)
    assert "train/clone_loss" in learner.update(batches)
    single |= {"clone_updates": 1, "judge_updates": 1, "judge_hidden": (8,), "tuned_steps": 4, "gate_states": 8}
    stages = Rl100(Rl100Options(**single), IO)
    found = [stages.update(batches) for _ in range(3)]
    for metrics, name in zip(found, ("clone_loss", "q_loss", "kl")):
        assert f"train/{name}" in metrics


def test_teacher_is_a_function_of_the_noise() -> None:
    learner = Diffusion(DiffusionOptions(**SMALL), IO)
    learner.update(demos().batches(32))
    state, noise = torch.zeros(5, 1), torch.randn(5, 4)
    assert torch.equal(learner.teacher(state, noise), learner.teacher(state, noise))


def test_student_decides_faster_than_its_teacher() -> None:
    learner = Diffusion(DiffusionOptions(**{**SMALL, "distill_from": 1, "noise_steps": 20, "sample_steps": 20}), IO)
    state, noise = torch.zeros(1, 1), torch.randn(1, 4)
    spent = {}
    for name, call in (("teacher", learner.teacher), ("student", learner.student)):
        call(state, noise)
        begun = time.process_time()
        for _ in range(50):
            call(state, noise)
        spent[name] = time.process_time() - begun
    assert spent["teacher"] > 3.0 * spent["student"]


def test_realtime_flow_goes_on_from_the_running_chunk() -> None:
    options = {**SMALL, "kind": "flow", "horizon_pred": 4, "horizon_exec": 2, "mode": "realtime", "delay": 1}
    learner = Diffusion(DiffusionOptions(**{**options, "hidden": (64, 64), "lr": 3e-3, "sample_steps": 10}), IO)
    batches = demos().batches(64)
    for _ in range(400):
        learner.update(batches)
    state, g = torch.zeros(200, 1), torch.Generator().manual_seed(2)
    noise, previous = torch.randn(200, 4, generator=g), torch.full((200, 4, 1), 0.5)
    free = learner.teacher(learner.see(state), noise)
    held = learner.continue_chunk(learner.see(state), noise, previous, torch.ones(200, 4, dtype=torch.bool))
    agree = [(x[:, 1:3].mean(1) > 0).float().mean().item() for x in (free, held)]
    assert agree[0] < 0.75
    assert agree[1] > agree[0] + 0.15  # the running chunk was of the upper mode: its continuation sooner is
    assert (held[:, 0] - 0.5).abs().mean() < 0.5 * (free[:, 0] - 0.5).abs().mean()  # the entry that is held firmly


def test_wrong_options_are_refused() -> None:
    for options in (
        {"kind": "gan"}, {"student_acts": True}, {"sample_steps": 50}, {"horizon_exec": 9}, {"distill_noise": -1.0},
        {"clone_updates": 5, "distill_from": 6}, {"clone_updates": 5},
    ):  # fmt: skip
        with pytest.raises(ValueError, match=r"kind|student|sampling|horizon_exec|distill_noise|distill_from"):
            Diffusion(DiffusionOptions(**{**SMALL, **options}), IO)


def test_a_student_that_never_learned_cannot_be_chosen() -> None:
    options = DiffusionOptions(horizon_pred=2, horizon_exec=1, hidden=(8,), noise_steps=4, sample_steps=2)
    learner = Diffusion(options, IO)
    with pytest.raises(ValueError, match="never learned"):
        learner.policy.choose(student=True)
    learner.policy.choose(student=False)


def test_student_in_numpy_is_the_student() -> None:
    options = {"horizon_pred": 4, "horizon_exec": 2, "hidden": (16, 8), "noise_steps": 4, "sample_steps": 2}
    learner = Diffusion(DiffusionOptions.model_validate({**options, "distill_from": 1}), IO)
    learner.student_acting.params.flat.copy_(torch.randn(learner.student_acting.params.flat.shape))
    learner.student_acting.kernel.refresh()
    state, noise = torch.randn(5, 1), torch.randn(5, 4)
    found = learner.student_numpy(state.numpy(), noise.numpy())
    np.testing.assert_allclose(found.reshape(5, -1), learner.student(state, noise), atol=1e-5)
