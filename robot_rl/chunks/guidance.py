"""Real-time chunking: a flow policy continues the chunk that still runs while it computes the next one."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

SCHEDULES = ("linear", "exp", "ones", "zeros")


def guidance_weights(start: int, end: int, total: int, schedule: str = "exp") -> Tensor:
    """(total,) how firmly each entry of a new chunk is held to the running one.

    Args:
        start: entries that will be executed before the new chunk is there (the delay): weight 1.
        end: entries from here on are free; horizon minus executed steps.
        total: H.
        schedule: "linear", "exp", "ones" (1 up to `end`), "zeros" (a hard mask up to `start`).

    Raises:
        ValueError: unknown schedule.

    Source: Black et al., Real-Time Execution of Action Chunking Flow Policies (real-time-chunking-kinetix model.py).
    """
    if schedule not in SCHEDULES:
        raise ValueError(f"schedule is '{schedule}', expected one of {', '.join(SCHEDULES)}")
    start = min(start, end)
    i = torch.arange(total, dtype=torch.float64)
    weight = ((start - 1 - i) / (end - start + 1) + 1).clamp(0.0, 1.0)
    if schedule == "exp":
        weight = weight * torch.expm1(weight) / (math.e - 1.0)
    elif schedule == "ones":
        weight = torch.ones_like(weight)
    elif schedule == "zeros":
        weight = (i < start).double()
    limit = start if schedule == "zeros" else end
    return torch.where(i < limit, weight, torch.zeros_like(weight))


def guided_flow(
    velocity: Callable[[Tensor, Tensor], Tensor],
    noise: Tensor,
    previous: Tensor,
    weight: Tensor,
    *,
    steps: int = 10,
    beta: float = 5.0,
    jacobian: str = "full",
) -> Tensor:
    """Euler integration of a flow, pulled towards the running chunk.

    At each step x1 = x + (1 - t) v, e = (previous - x1) weight, correction J^T e with J = dx1/dx, and
    x <- x + dt (v + min(c, beta) correction), c = ((1 - t) / t) (t^2 + (1 - t)^2) / (1 - t)^2.

    Args:
        velocity: (x (B, H, A), t (B,)) -> (B, H, A); t from 0 (noise) to 1 (action).
        noise: (B, H, A) start.
        previous: (B, H, A) running chunk, entry 0 for now.
        weight: (H,) or (B, H) from `guidance_weights`; 0 where `previous` does not exist.
        steps: Euler steps.
        beta: largest guidance factor.
        jacobian: "full", or "identity" (J = 1: no gradient through the network, which halves the cost).

    Raises:
        ValueError: another jacobian.

    Returns:
        (B, H, A), not clipped.

    Source: Black et al., Real-Time Execution of Action Chunking Flow Policies, algorithm 1.
    """
    if jacobian not in ("full", "identity"):
        raise ValueError(f"jacobian is '{jacobian}', expected 'full' or 'identity'")
    x, dt = noise, 1.0 / steps
    held = weight.to(noise)[..., None]
    for i in range(steps):
        t = i * dt
        now = x.detach().requires_grad_(jacobian == "full")
        with torch.set_grad_enabled(jacobian == "full"):
            v = velocity(now, torch.full((len(now),), t, dtype=now.dtype, device=now.device))
            x1 = now + (1.0 - t) * v
        error = ((previous - x1) * held).detach()
        correction = torch.autograd.grad(x1, now, error)[0] if jacobian == "full" else error
        c = guidance_factor(t, beta)
        x = now.detach() + dt * (v.detach() + c * correction)
    return x


def guidance_factor(t: float, beta: float = 5.0) -> float:
    """min(((1 - t) / t) (t^2 + (1 - t)^2) / (1 - t)^2, beta), `beta` at t = 0; t from 0 (noise) to 1 (action).

    Source: Black et al., Real-Time Execution of Action Chunking Flow Policies, algorithm 1.
    """
    if t <= 0.0:
        return beta
    return min((1.0 - t) / t * (t * t + (1.0 - t) ** 2) / (1.0 - t) ** 2, beta)
