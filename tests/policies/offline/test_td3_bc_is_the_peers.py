"""Our TD3+BC update against a plain one and d3rlpy's: same weights, batches and noise, many updates, equal networks."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from benchmarks.d3rlpy_peer import peer
from benchmarks.offline_reference import Td3BcReference
from robot_rl.policies.offline.td3_bc import Td3Bc, Td3BcOptions
from robot_rl.types import IOSpec, LogFacts, Transitions

STATE, ACTIONS, BATCH, UPDATES = 17, 6, 64, 50
MEAN = np.linspace(-2, 2, STATE).astype(np.float32)
STD = np.linspace(0.5, 10, STATE).astype(np.float32)


def learner(**options) -> Td3Bc:
    io = IOSpec(
        obs={"state": ((STATE,), "float32")},
        action_names=tuple(f"a{i}" for i in range(ACTIONS)),
        action_low=(-1.0,) * ACTIONS,
        action_high=(1.0,) * ACTIONS,
        action_units=("1",) * ACTIONS,
        control_hz=20.0,
    )
    result = Td3Bc(Td3BcOptions(batch_size=BATCH, **options), io)
    result.prepare(LogFacts(MEAN, STD, -10.0, 10.0, 0.99, 1000))
    return result


class Plain:
    """The single-file learner of `bench offline`; it gets states that are already normalised."""

    def __init__(self) -> None:
        torch.manual_seed(5)
        self.model = Td3BcReference(STATE, ACTIONS)
        self.networks = {
            "critic": (self.model.q.q1, self.model.q.q2),
            "actor": (self.model.actor,),
            "critic_target": (self.model.q_target.q1, self.model.q_target.q2),
            "actor_target": (self.model.actor_target,),
        }

    def update(self, s, a, r, s2, d) -> None:
        self.model.update([s, a, r[:, None], s2, d[:, None]])


class D3rlpy:
    """d3rlpy's own update."""

    def __init__(self) -> None:
        module = peer()
        if module is None:
            pytest.skip("d3rlpy is not installed")
        torch.manual_seed(5)
        algo = module.algos.TD3PlusBCConfig(batch_size=BATCH).create(device="cpu")
        algo.create_impl((STATE,), ACTIONS)
        self.impl, self.count = algo.impl, 0
        self.batch = module.torch_utility.TorchMiniBatch
        m = self.impl.modules
        self.networks = {
            "critic": tuple(m.q_funcs),
            "actor": (m.policy,),
            "critic_target": tuple(m.targ_q_funcs),
            "actor_target": (m.targ_policy,),
        }

    def update(self, s, a, r, s2, d) -> None:
        self.count += 1
        rest = {"returns_to_go": r[:, None], "intervals": torch.ones(BATCH, 1), "device": "cpu"}
        self.impl.inner_update(self.batch(s, a, r[:, None], s2, a, terminals=d[:, None], **rest), self.count)


def copy_weights(theirs: Plain | D3rlpy, ours: Td3Bc) -> None:
    """Their weights into our layout: members first, (in, out)."""
    for name, networks in theirs.networks.items():
        for member, network in enumerate(networks):
            linear = [layer for layer in network.modules() if isinstance(layer, torch.nn.Linear)]
            for i, layer in enumerate(linear):
                view = getattr(ours, name).params.view
                view[f"weight{i}"].data[member].copy_(layer.weight.data.T)
                view[f"bias{i}"].data[member].copy_(layer.bias.data)


def batches() -> list[Transitions]:
    """Rows of raw states with ends; the `discount` is as the log gives it."""
    rng = np.random.default_rng(0)
    out = []
    for _ in range(UPDATES):
        state, following = (torch.from_numpy((MEAN + STD * rng.normal(size=(BATCH, STATE))).astype("f4")) for _ in "ab")
        action = torch.from_numpy(rng.uniform(-1, 1, (BATCH, ACTIONS)).astype("f4"))
        ended = torch.from_numpy(rng.random(BATCH) < 0.1)
        no = torch.zeros(BATCH, dtype=torch.bool)
        out.append(
            Transitions(
                obs={"state": state},
                action=action,
                reward=10.0 * following[:, 0] - action.square().sum(1),
                discount=0.99 * (~ended).float(),
                next_obs={"state": following},
                terminated=ended,
                truncated=no,
                intervened=no,
                mask=~no,
                extras={},
            )
        )
    return out


@pytest.mark.parametrize("kernel", ["explicit", "autograd"])
@pytest.mark.parametrize("kind", [Plain, D3rlpy])
def test_many_updates_give_the_networks_of_the_peers(kind, kernel, monkeypatch):
    theirs, ours = kind(), learner(kernel=kernel)
    copy_weights(theirs, ours)
    start, data = learner(), batches()
    copy_weights(theirs, start)
    noise = torch.from_numpy(np.random.default_rng(1).normal(size=(UPDATES, BATCH, ACTIONS)).astype("f4"))

    scale = torch.from_numpy(STD + np.float32(1e-3))
    for drawn, row in zip(noise, data):
        monkeypatch.setattr("torch.randn", lambda *_, drawn=drawn, **__: drawn.clone().reshape(BATCH, ACTIONS))
        monkeypatch.setattr("torch.randn_like", lambda *_, drawn=drawn, **__: drawn.clone())
        states = [(x["state"] - torch.from_numpy(MEAN)) / scale for x in (row.obs, row.next_obs)]
        theirs.update(states[0], row.action, row.reward, states[1], row.terminated.float())
        ours.update(iter([row]))

    end = learner()
    copy_weights(theirs, end)
    for name in theirs.networks:
        first, goal, reached = (getattr(learnt, name).params.flat.detach() for learnt in (start, end, ours))
        way = goal - first
        assert way.norm() > 0.01
        # Adam turns rounding of gradients near zero into whole steps, so compare with how far the weights went
        assert (reached - goal).norm() < 2e-3 * way.norm(), name
