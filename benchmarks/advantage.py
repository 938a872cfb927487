"""Speed of the advantage core against its peers: one process, one thread, turn by turn, with equal results."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from benchmarks.harness import compare, one_thread, repeat
from robot_rl.advantage import available, entries, gae, make_batch, rollout_gae, use_backend
from robot_rl.advantage.registry import Entry
from robot_rl.advantage.rows import RolloutRows

GAMMA, LAMBDA = 0.99, 0.95
SHAPES = ((1024, 64), (128, 4096), (2048, 64))
ROWS = 1 << 20
TOLERANCE = 1e-5
SLICE = 0.02  # seconds that each side runs before it is the other's turn
OPTIONS: dict[str, dict[str, Any]] = {"n_step": {"n": 5}}
Pair = tuple[Callable[[], Any], Callable[[], Any]]


def run(quick: bool = False) -> dict[str, Any]:
    """Time our GAE and its peers in alternation, and every estimator on a flat ragged batch of 2^20 steps.

    Peers are real packages where they can be imported (stable-baselines3, TorchRL, Tianshou) and plain loops of our own
    in the manner of CleanRL and verl. Times are
    processor time of the one thread. All data are float32; results agree to 1e-5 of the largest advantage or the row
    says so.

    Args:
        quick: small shapes and few repetitions, to see that everything runs.

    Returns:
        "rows": {name, backend, peer, ours_ms, peer_ms, ours_best_ms, peer_best_ms, ratio (median of peer / ours over
        the repetitions), spread (lower and upper quartile of it), error, agrees}; "estimators": {name, backend, rows,
        ms, best_ms}; "skipped": {peer: reason}; "shapes": of the rollouts.
    """
    with one_thread():
        rounds = 3 if quick else 21
        shapes = ((64, 8),) if quick else SHAPES
        skipped: dict[str, str] = {}
        rows = []
        for backend in [x for x in available() if x in ("numpy", "numba")]:
            with use_backend(backend):
                for steps, width in shapes:
                    rows += _peers(steps, width, backend, rounds, skipped)
        flat = _estimators(2000 if quick else ROWS, 2 if quick else 7)
    return {"rows": rows, "estimators": flat, "skipped": skipped, "shapes": [list(x) for x in shapes]}


def _data(steps: int, width: int) -> dict[str, np.ndarray]:
    """A rollout whose episodes last 100 steps on average and end by termination, which every peer understands."""
    rng = np.random.default_rng(0)
    reward, value = rng.standard_normal((2, steps, width)).astype(np.float32)
    last = rng.standard_normal(width).astype(np.float32)
    done = rng.random((steps, width)) < 0.01
    boundary = done.copy()
    boundary[-1] = True
    next_value = np.zeros_like(value)
    next_value[-1] = last
    ahead = np.concatenate((value[1:], last[None]))
    return {
        "reward": reward,
        "value": value,
        "next_value": next_value,
        "terminated": done,
        "boundary": boundary,
        "last": last,
        "ahead": ahead,
    }


def _peers(steps: int, width: int, backend: str, rounds: int, skipped: dict[str, str]) -> list[dict[str, Any]]:
    data = _data(steps, width)
    makers = {
        "stable-baselines3": _stable_baselines3,
        "cleanrl-like": _cleanrl_like,
        "verl-like": _verl_like,
        "torchrl": _torchrl,
        "tianshou": _tianshou,
    }
    rows = []
    for peer, make in makers.items():
        try:
            ours, theirs = make(data)
        except ImportError as error:
            skipped[peer] = str(error)
            continue
        rows.append(
            {"name": f"gae [{steps}, {width}]", "backend": backend, "peer": peer, **_compare(ours, theirs, rounds)}
        )
    return rows


def _compare(ours: Callable[[], Any], theirs: Callable[[], Any], rounds: int) -> dict[str, Any]:
    first, second = np.asarray(ours()).copy(), np.asarray(theirs()).copy()
    error = float(np.abs(first - second).max() / max(1.0, float(np.abs(second).max())))
    calls = [max(1, int(SLICE / _seconds(function, 3))) for function in (ours, theirs)]
    cases = {"ours": repeat(ours, calls[0]), "peer": repeat(theirs, calls[1])}
    times = np.array(list(compare(cases, rounds, clock=time.thread_time).values())).T / calls
    ratio = times[:, 1] / times[:, 0]
    return {
        "ours_ms": float(np.median(times[:, 0]) * 1e3),
        "peer_ms": float(np.median(times[:, 1]) * 1e3),
        "ours_best_ms": float(times[:, 0].min() * 1e3),
        "peer_best_ms": float(times[:, 1].min() * 1e3),
        "ratio": float(np.median(ratio)),
        "spread": [float(np.quantile(ratio, 0.25)), float(np.quantile(ratio, 0.75))],
        "error": error,
        "agrees": error <= TOLERANCE,
    }


def _seconds(function: Callable[[], Any], calls: int) -> float:
    """Processor time of this thread per call, over some calls in a row: warm caches for both sides, and what other
    programs do meanwhile does not count."""
    start = time.thread_time()
    for _ in range(calls):
        function()
    return (time.thread_time() - start) / calls


def _ours(data: dict[str, np.ndarray]) -> Callable[[], Any]:
    columns = [data[name] for name in ("reward", "value", "next_value", "terminated", "boundary")]
    out = (np.empty_like(data["reward"]), np.empty_like(data["reward"]))
    return lambda: rollout_gae(RolloutRows(*columns), gamma=GAMMA, gae_lambda=LAMBDA, out=out)[0]


def _stable_baselines3(data: dict[str, np.ndarray]) -> Pair:
    buffers = importlib.import_module("stable_baselines3.common.buffers")
    spaces = importlib.import_module("gymnasium.spaces")
    steps, width = data["reward"].shape
    box = spaces.Box(-1.0, 1.0, (1,), np.float32)
    buffer = buffers.RolloutBuffer(steps, box, box, "cpu", gae_lambda=LAMBDA, gamma=GAMMA, n_envs=width)
    buffer.rewards, buffer.values = data["reward"], data["value"]
    buffer.episode_starts[1:] = data["terminated"][:-1]
    last, done = torch.from_numpy(data["last"]), data["terminated"][-1]

    def theirs() -> np.ndarray:
        buffer.compute_returns_and_advantage(last, done)
        return buffer.advantages

    return _ours(data), theirs


def _cleanrl_like(data: dict[str, np.ndarray]) -> Pair:
    reward, value, last = (torch.from_numpy(data[name]) for name in ("reward", "value", "last"))
    done = torch.from_numpy(data["terminated"].astype(np.float32))

    def theirs() -> torch.Tensor:
        advantage = torch.zeros_like(reward)
        carry = torch.zeros_like(last)
        for t in reversed(range(len(reward))):
            following = last if t == len(reward) - 1 else value[t + 1]
            alive = 1.0 - done[t]
            delta = reward[t] + GAMMA * following * alive - value[t]
            advantage[t] = carry = delta + GAMMA * LAMBDA * alive * carry
        _ = advantage + value
        return advantage

    return _ours(data), theirs


def _verl_like(data: dict[str, np.ndarray]) -> Pair:
    """Token rewards of one response per line, time last, every token valid, nothing behind the last one."""
    reward, value = (torch.from_numpy(np.ascontiguousarray(data[name].T)) for name in ("reward", "value"))
    mask = torch.ones_like(reward)
    length = reward.shape[1]
    following = torch.cat((value[:, 1:], torch.zeros_like(value[:, :1])), dim=1)
    discount = torch.full_like(reward, GAMMA)
    discount[:, -1] = 0
    trace = discount * LAMBDA

    def theirs() -> torch.Tensor:
        after, carry, columns = 0.0, torch.zeros_like(reward[:, 0]), []
        for t in reversed(range(length)):
            delta = reward[:, t] + GAMMA * after - value[:, t]
            now = delta + GAMMA * LAMBDA * carry
            after = value[:, t] * mask[:, t] + (1 - mask[:, t]) * after
            carry = now * mask[:, t] + (1 - mask[:, t]) * carry
            columns.append(carry)
        advantage = torch.stack(columns[::-1], dim=1)
        _ = advantage + value
        return advantage

    return (lambda: gae(reward, discount, value, following, trace)[0]), theirs


def _torchrl(data: dict[str, np.ndarray]) -> Pair:
    functional = importlib.import_module("torchrl.objectives.value.functional")
    columns = [torch.from_numpy(np.ascontiguousarray(data[x].T))[..., None] for x in ("value", "ahead", "reward")]
    terminated = torch.from_numpy(np.ascontiguousarray(data["terminated"].T))[..., None]

    def theirs() -> np.ndarray:
        advantage, _ = functional.vec_generalized_advantage_estimate(
            GAMMA, LAMBDA, *columns, done=terminated, terminated=terminated
        )
        return advantage[..., 0].numpy().T

    return _ours(data), theirs


def _tianshou(data: dict[str, np.ndarray]) -> Pair:
    try:
        kernel = importlib.import_module("tianshou.algorithm.algorithm_base")._gae
    except ModuleNotFoundError:
        kernel = importlib.import_module("tianshou.policy.base")._gae
    # Its buffer keeps the rows of one environment together, successors masked where an episode terminated.
    value, reward = (np.ascontiguousarray(data[x].T).reshape(-1) for x in ("value", "reward"))
    ahead = np.where(data["terminated"], 0, data["ahead"]).T.reshape(-1).astype(np.float32)
    end = np.ascontiguousarray(data["boundary"].T).reshape(-1)
    shape = data["reward"].T.shape

    def theirs() -> np.ndarray:
        advantage = kernel(value, ahead, reward, end, GAMMA, LAMBDA)
        _ = advantage + value
        return advantage.reshape(shape).T

    return _ours(data), theirs


def flat_batch(rows: int) -> Any:
    """Ragged batch with everything that any estimator reads: episodes of 64 steps on average, turns of 8."""
    rng = np.random.default_rng(0)
    turn_start = rng.random(rows) < 1 / 8
    turn_start[0] = True
    new = turn_start & (rng.random(rows) < 1 / 8)
    new[0] = True
    last = np.append(new[1:], True)
    terminated = last & (rng.random(rows) < 0.5)
    truncated = last & ~terminated
    turns, episodes = int(turn_start.sum()), int(new.sum())
    noise = iter(rng.standard_normal((9, rows)).astype(np.float32))
    chance = iter(rng.random((2, rows)).astype(np.float32))
    columns = {name: next(noise) for name in ("reward", "value", "next_value", "logp_behaviour", "logp_prox")}
    extras = {name: next(noise) for name in ("next_expected_q", "value_high", "value_switch", "next_value_high")}
    extras |= {"prob": next(chance), "prob_square_sum": next(chance)}
    heads = rng.standard_normal((2, rows, 2)).astype(np.float32)
    extras |= {
        "v": heads[1],
        "greedy": rng.random(rows) < 0.1,
        "match": rng.random(rows) < 0.8,
        "gain": columns["value"],
    }
    batch = make_batch(
        **columns,
        terminated=terminated,
        truncated=truncated,
        episode_id=(np.cumsum(new) - 1).astype(np.int32),
        turn_id=(np.cumsum(turn_start) - 1).astype(np.int32),
        segment_id=(np.cumsum(turn_start) - 1).astype(np.int32),
        k=rng.integers(1, 9, rows).astype(np.int32),
        turn={"anchor_key": rng.integers(1, 1000, turns), "actor_id": (np.arange(turns) % 2).astype(np.int32)},
        episode={"group_id": (np.arange(episodes) // 8).astype(np.int32), "task_id": np.arange(episodes) % 16},
        extras=extras,
    )
    batch.steps.extras["q"] = columns["value"]
    return batch, heads


def _estimators(rows: int, rounds: int) -> list[dict[str, Any]]:
    batch, heads = flat_batch(rows)
    batch, heads = batch.to("cpu"), [torch.from_numpy(x) for x in heads]
    out = []
    for backend in [x for x in available() if x in ("numpy", "numba")]:
        with use_backend(backend):
            for item in (x for x in entries() if x.kind != "redistribute"):
                # ArCHer's column of the same name holds the two heads, Retrace's one.
                batch.steps.extras["q"] = heads[0] if item.name == "archer" else batch.steps.value
                out.append({"name": item.name, "backend": backend, "rows": rows, **_time(item, batch, rounds)})
    return out


def _time(item: Entry, batch: Any, rounds: int) -> dict[str, float]:
    options = OPTIONS.get(item.name, {})
    state = () if item.state is None else (item.state(),)
    item.function(batch, *state, **options)
    times = []
    for _ in range(rounds):
        times.append(_seconds(lambda: item.function(batch, *state, **options), 1))
    return {"ms": float(np.median(times) * 1e3), "best_ms": float(min(times) * 1e3)}
