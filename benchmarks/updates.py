"""Updates per second of methods in two checkouts of the project, side by side.

    python -m benchmarks.updates <other checkout> bc,iql,sac 24 '{"matmul": "bf16"}'
    python -m benchmarks.updates <other checkout> 'ppo 1,ppo 8' 8

Each checkout has a process of its own with one thread; slices of a tenth of a second alternate, in turning order, and
are measured in processor time, so that other work on the machine disturbs both alike. The ratio is that of medians,
this checkout over the other one: 1.1 is faster. "ppo N" is the whole loop, rollout and update, of N copies of
HalfCheetah-v5: one "update" is 2,048 steps of each.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

_RLPD = {"critics": 10, "subset": 2, "layer_norm": True, "utd": 20, "actor_reduce": "mean", "target_entropy": "half"}
_SMALL = {"hidden": (256, 256), "batch_size": 64}
_BRANCHES = {"rollout_batch": 2000, "rollout_every": 10_000}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "bc": ("offline.bc:Bc", {}),
    "bc gaussian": ("offline.bc:Bc", {"gaussian": True}),
    "td3_bc": ("offline.td3_bc:Td3Bc", {}),
    "iql": ("offline.iql:Iql", {}),
    "iql corl": ("offline.iql:Iql", {"order": "corl"}),
    "awac": ("offline.awac:Awac", {}),
    "rebrac": ("offline.rebrac:ReBrac", {}),
    "xql": ("offline.xql:Xql", {}),
    "f_dvl": ("offline.f_dvl:FDvl", {}),
    "recoil": ("offline.recoil:Recoil", {}),
    "cql": ("offline.cql:Cql", {}),
    "cal_ql": ("offline.cal_ql:CalQl", {}),
    "sac_n": ("offline.sac_n:SacN", {}),
    "edac": ("offline.edac:Edac", {}),
    "sac": ("online.sac:Sac", {}),
    "sac mean": ("online.sac:Sac", {"subset": 1, "actor_reduce": "mean", "normalize_obs": True}),
    "sac rlpd": ("online.sac:Sac", _RLPD),
    "sac hlgauss": ("online.sac:Sac", {"value_head": "hlgauss"}),
    "crossq": ("contrib.crossq:CrossQ", {}),
    "simba": ("contrib.simba:Simba", {}),
    "imitation_sac": ("human.imitation_sac:ImitationSac", {}),
    "rlif": ("human.rlif:Rlif", {}),
    "hil_serl": ("human.hil_serl:HilSerl", {}),
    "hg_dagger": ("human.hg_dagger:HgDagger", {}),
    "hil_ppo": ("human.hil_ppo:HilPpo", {"rows": 500}),
    "arsq": ("sequence.arsq:Arsq", _SMALL),
    "qc": ("sequence.qc:Qc", {"samples": 4, **_SMALL}),
    "qc_fql": ("sequence.qc_fql:QcFql", _SMALL),
    "fql": ("sequence.fql:Fql", _SMALL),
    "diffusion": ("sequence.diffusion:Diffusion", _SMALL),
    "diffusion student": ("sequence.diffusion:Diffusion", {"clone_updates": 1, "distill_from": 1, **_SMALL}),
    "rl100 judge": ("sequence.rl100:Rl100", {"clone_updates": 1, **_SMALL}),
    "rl100 improve": ("sequence.rl100:Rl100", {"clone_updates": 1, "judge_updates": 1, **_SMALL}),
    "demo_kl": ("offline.demo_kl:DemoKl", {}),
    "mopo": ("offline.mopo:Mopo", {**_BRANCHES, "model_updates": 1}),
    "mopo model": ("offline.mopo:Mopo", _BRANCHES),
    "ravl": ("offline.ravl:Ravl", {**_BRANCHES, "model_updates": 1}),
    "goal_bc": ("offline.goal_bc:GoalBc", {}),
    "oer": ("offline.oer:Oer", {}),
    "history_iql": ("offline.history_iql:HistoryIql", {}),
    "fqe": ("offline.fqe:Fqe", {"valued": True}),
    "model_value": ("offline.model_value:ModelValue", {"valued": True}),
    "ppo 1": ("loop:Ppo", {"num_envs": 1}),
    "ppo 8": ("loop:Ppo", {"num_envs": 8}),
}
MOVED = {"contrib.crossq": "online.crossq", "contrib.simba": "online.simba"}
"""Where methods stood in older checkouts."""
STATE, ACTION = 17, 6


def _serve() -> None:
    """Answer lines: a case and its options make a learner, a number of updates is timed."""
    import torch

    from robot_rl.types import IOSpec, Transitions

    torch.set_num_threads(1)
    io = IOSpec(
        {"state": ((STATE,), "float32")},
        (*(f"a{i}" for i in range(ACTION - 1)), "grip"),
        (-1.0,) * ACTION,
        (1.0,) * ACTION,
        ("1",) * ACTION,
        10.0,
    )

    def rows(size: int, window: int) -> Iterator[Transitions]:
        draw = torch.Generator().manual_seed(0)
        action = torch.rand(2, size, ACTION, generator=draw) * 1.8 - 0.9
        state = torch.randn(2, size, STATE, generator=draw)
        number, no = torch.randn(2, size, generator=draw), torch.zeros(size, dtype=torch.bool)
        extras = {"next_action": action[1], "next_action_valid": torch.ones(size), "return_to_go": number[1]}
        extras |= {"reward_task": number[0], "reward_rlif": -(number[1] > 1).float()}
        extras["source"] = torch.arange(size) * 2 // size
        extras |= {"boundary": torch.arange(size) % 100 == 99, "step": torch.arange(size) % 100, "goal": state[1]}
        discount, following = torch.full((size,), 0.99), {"state": state[1]}
        batch = Transitions(
            {"state": state[0]}, action[0], number[0], discount, following, no, no, no, ~no, extras=extras
        )
        if window > 1:  # the same row in every step

            def wide(x: Any) -> Any:
                return x[:, None].expand(-1, window, *x.shape[1:]).clone()

            parts = (wide(batch.action), wide(batch.reward), wide(batch.discount), {"state": wide(state[1])})
            batch = Transitions({"state": wide(state[0])}, *parts, wide(no), wide(no), wide(no), wide(~no))
        while True:
            yield batch

    learner: Any = None
    batches: Iterator[Transitions] = iter(())
    for line in sys.stdin:
        asked = json.loads(line)
        if "case" in asked:
            place, options = CASES[asked["case"]]
            module, _, kind = place.partition(":")
            if module == "loop":
                learner, batches = _ppo_loop(options["num_envs"]), iter(())
            else:
                here = importlib.util.find_spec(f"robot_rl.policies.{module.partition('.')[0]}")
                module = module if here is not None else MOVED.get(module, module)
                held = vars(importlib.import_module(f"robot_rl.policies.{module}"))
                options, stated = {**options, **asked["options"]}, held.get(f"{kind}Options")
                size, given = options.pop("rows", 0), (io, _Still()) if options.pop("valued", False) else (io,)
                learner = held[kind](stated(**options), *given) if stated else held[kind](*given, **options)
                said = vars(learner)  # a method of before says so itself, not in what it needs
                old = said.get("batch_size", 0)
                batches = rows(size or old or learner.need.rows, said.get("window", 1) if old else learner.need.window)
        begin = time.process_time()
        for _ in range(asked["updates"]):
            learner.update(batches)
        print(json.dumps((time.process_time() - begin) / asked["updates"]), flush=True)  # noqa: T201


class _Still:
    """A policy whose values are estimated: it does nothing."""

    def act(self, obs: Any, *, deterministic: bool = False) -> Any:
        """Zeros for every row."""
        types = importlib.import_module("robot_rl.types")
        return types.Action(obs["state"].new_zeros(len(obs["state"]), ACTION))


class _Loop:
    """The on-policy loop where a learner's update is expected."""

    def __init__(self, loop: Any, steps: int) -> None:
        self._loop, self._steps = loop, steps

    def update(self, _: Any) -> None:
        """One rollout and what is learnt from it."""
        self._loop.run(self._loop.env_steps + self._steps)


def _ppo_loop(count: int) -> _Loop:
    env = importlib.import_module("robot_rl.sim.gym_env").make(count, 0, "cpu", id="HalfCheetah-v5")
    ppo = vars(importlib.import_module("robot_rl.policies.online.ppo"))
    # what a checkout of before did: observations standardised, rewards as they are
    same = {"normalize_reward": False, "obs_spread": None}
    learner = ppo["Ppo"](ppo["PpoOptions"](**same), env.io) if "PpoOptions" in ppo else ppo["Ppo"](env.io)
    return _Loop(vars(importlib.import_module("robot_rl.loops.on_policy"))["OnPolicy"](env, learner), 2048 * count)


def compare(other: Path, cases: list[str], rounds: int, options: dict[str, Any]) -> list[dict[str, Any]]:
    """Rows of case, seconds per update in the other checkout and here, and their ratio."""
    here = Path(__file__).resolve().parents[1]

    def start(path: Path) -> subprocess.Popen[str]:
        env = {**os.environ, "PYTHONPATH": str(path), "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        command = [sys.executable, str(Path(__file__).resolve()), "serve"]
        return subprocess.Popen(
            command, cwd=path, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=None, text=True
        )

    def ask(process: subprocess.Popen[str], **question: Any) -> float:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(question) + "\n")
        process.stdin.flush()
        return float(json.loads(process.stdout.readline()))

    pair, found = [start(path) for path in (other, here)], []
    for case in cases:
        for process in pair:
            ask(
                process, case=case, options=options, updates=1 if case.startswith("ppo") else 5
            )  # compiles, fills caches
        count = max(
            1 if case.startswith("ppo") else 2, int(0.1 / ask(pair[0], updates=1 if case.startswith("ppo") else 3))
        )
        seen: list[list[float]] = [[], []]
        for i in range(rounds):
            for which in (0, 1) if i % 2 == 0 else (1, 0):
                seen[which].append(ask(pair[which], updates=count))
        before, after = (median(times) for times in seen)
        found.append({"case": case, "before": before, "after": after, "ratio": round(before / after, 3)})
        print(json.dumps(found[-1]), flush=True)  # noqa: T201
    for process in pair:
        assert process.stdin is not None
        process.stdin.close()
        process.wait()
    return found


if __name__ == "__main__":
    if sys.argv[1:] == ["serve"]:
        _serve()
    else:
        folder, names, number, *more = sys.argv[1:]
        compare(Path(folder).resolve(), names.split(","), int(number), json.loads(more[0]) if more else {})
