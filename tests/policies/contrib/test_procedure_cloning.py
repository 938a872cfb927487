"""Procedure cloning: the search by hand, that it is the expert's, saving, and unseen mazes solved by learnt search."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from robot_rl.loops.evaluate import evaluate
from robot_rl.policies.contrib.procedure_cloning import (
    ProcedureCloning,
    ProcedureCloningOptions,
    at_agent,
    search_labels,
)
from robot_rl.sim.array_env import ArrayVectorEnv
from robot_rl.sim.check import check
from robot_rl.sim.worlds.grid_maze import GridMaze
from robot_rl.types import IOSpec, Transitions

SMALL: dict[str, Any] = {"channels": 8, "layers": 3, "batch_size": 8, "metrics_every": 1}


def planes_of(text: str) -> torch.Tensor:
    """# wall, A agent, G goal."""
    rows = text.split()
    return torch.tensor([[[float(cell == mark) for cell in row] for row in rows] for mark in "#AG"])[None]


def batch(world: GridMaze, size: int, seed: int) -> Transitions:
    rng = np.random.default_rng(seed)
    rows = [world.start(rng) for _ in range(size)]
    state = world.observe({key: np.stack([row[key] for row in rows]) for key in rows[0]})
    action, obs = torch.as_tensor(world.expert(state)), {"state": torch.as_tensor(state)}
    zero, no = torch.zeros(size), torch.zeros(size, dtype=torch.bool)
    return Transitions(obs, action, zero, zero, obs, no, no, no, ~no)


def test_world_keeps_the_contract() -> None:
    assert check(ArrayVectorEnv(GridMaze(7, steps=20), 3, 0), steps=200) == []


def test_expert_takes_shortest_ways() -> None:
    env = ArrayVectorEnv(GridMaze(9), 20, 1)
    obs, _ = env.reset(seed=3)
    from robot_rl.sim.worlds.grid_maze import distances

    state = env.state
    far = [distances(state["wall"][i], tuple(state["goal"][i]))[tuple(state["agent"][i])] for i in range(20)]
    steps = np.zeros(20)
    for t in range(60):
        obs, reward, *_ = env.step(env.expert(obs))
        steps = np.where((steps == 0) & (reward > 0), t + 1, steps)
    assert steps.tolist() == far


def test_search_by_hand() -> None:
    """A corridor with a dead end: labels grow one cell a layer; the walls keep 0."""
    planes = planes_of("##### #A..# ###.# #..G# #####")
    layers = search_labels(planes)[:, 0]
    assert len(layers) == 5  # the goal, then four layers
    # up 1, down 2, left 3, right 4: beside the goal "right", above it "down"
    assert layers[1].tolist()[3] == [0, 0, 4, 1, 0]
    assert layers[1].tolist()[2] == [0, 0, 0, 2, 0]
    assert layers[-1].tolist() == [[0] * 5, [0, 4, 4, 2, 0], [0, 0, 0, 2, 0], [0, 4, 4, 1, 0], [0] * 5]
    assert at_agent(layers[-1][None, None], planes).item() == 4


def test_search_ends_with_the_experts_action() -> None:
    """In random mazes with several ways, ties broken alike."""
    world = GridMaze(9, openings=0.3)
    data = batch(world, 64, 0)
    planes = data.obs["state"].view(-1, 3, 9, 9)
    labels = at_agent(search_labels(planes)[-1][:, None], planes)[:, 0]
    assert torch.equal(labels - 1, data.action.argmax(1))


def test_save_load_update_equals_update_with_and_without_the_procedure() -> None:
    world = GridMaze(7)
    for procedure in (True, False):
        one, other = (
            ProcedureCloning(ProcedureCloningOptions(procedure=procedure, **SMALL), world.io, seed=i) for i in (1, 2)
        )
        for i in range(2):
            one.update(iter([batch(world, 8, i)]))
        other.load_state_dict(one.state_dict())
        for i in range(2, 4):
            assert one.update(iter([batch(world, 8, i)])) == other.update(iter([batch(world, 8, i)]))
        obs = {"state": batch(world, 5, 9).obs["state"].numpy()}
        np.testing.assert_array_equal(one.policy.act(obs).value, other.policy.act(obs).value)


def test_search_that_does_not_arrive_acts_at_random_and_says_so() -> None:
    learner = ProcedureCloning(ProcedureCloningOptions(most_layers=5, **SMALL), GridMaze(7).io)
    with torch.no_grad():
        for value in learner.net.parameters():
            value.zero_()  # label 0 everywhere: nothing is ever visited
    answer = learner.policy.act({"state": batch(GridMaze(7), 40, 0).obs["state"].numpy()})
    assert answer.extras["layers"].tolist() == [0] * 40
    assert len(set(answer.value.argmax(1).tolist())) == 4


def test_other_observations_are_refused() -> None:
    with pytest.raises(ValueError, match="three square planes"):
        ProcedureCloning(
            ProcedureCloningOptions(), IOSpec({"state": ((10,), "float32")}, ("x",), (-1.0,), (1.0,), ("1",), 10.0)
        )


def test_learnt_search_solves_unseen_mazes() -> None:
    """The same network, data and updates: cloning the action alone stays far behind on mazes that it never saw."""
    world = GridMaze(7, steps=30)
    data = [batch(world, 32, i) for i in range(20)]
    found = {}
    for procedure in (True, False):
        learner = ProcedureCloning(
            ProcedureCloningOptions(procedure=procedure, channels=24, layers=3, batch_size=32, lr=3e-3), world.io
        )
        for i in range(250):
            learner.update(iter([data[i % len(data)]]))
        result = evaluate(ArrayVectorEnv(world, 40, 77), learner.policy, episodes=40, seed=77)
        found[procedure] = float(np.mean(result.returns))
    assert found[True] > 0.9
    assert found[True] > found[False] + 0.15
