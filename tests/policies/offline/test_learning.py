"""Every method walks home from a log of random actions, which cloning cannot: its mean action stands still (-8)."""

import pytest

from robot_rl import build

CASES = {
    "awac.Awac": ({"temperature": 0.3, "hidden": (32, 32)}, 1000, -4.5),
    "rebrac.ReBrac": ({"actor_penalty": 0.01, "critic_penalty": 0.01}, 800, -2.5),
    "sac_n.SacN": ({"critics": 3}, 800, -3.0),
    "edac.Edac": ({"critics": 3, "eta": 0.1}, 600, -3.0),
    "cql.Cql": ({"alpha_cql": 0.5, "samples": 4, "actor_lr": 2e-3}, 700, -3.0),
    "cal_ql.CalQl": ({"alpha_cql": 0.5, "samples": 4, "actor_lr": 2e-3, "critic_hidden": (32, 32)}, 700, -3.0),
    "xql.Xql": ({"gumbel": 0.3, "beta": 10.0, "actor_decay": 0}, 1000, -4.0),
    "f_dvl.FDvl": ({"weight": 0.8, "beta": 10.0, "actor_decay": 0}, 1000, -4.0),
}


FAST = ("rebrac.ReBrac", "cql.Cql")  # of a policy that acts by its critic, and of a pessimistic one; all: make test-all


@pytest.mark.parametrize("name", [pytest.param(name, marks=[] if name in FAST else pytest.mark.slow) for name in CASES])
def test_learns_to_walk_home_from_random_actions(name, point):
    options, updates, wanted = CASES[name]
    shared = {"name": f"offline/{name.split('.')[0]}", "hidden": (32, 32), "batch_size": 128, "lr": 2e-3, "tau": 0.02}
    learner = build.make("policy", {**shared, **options}, point.io, seed=0, device="cpu", gamma=point.gamma)
    assert point.train(learner, updates) > wanted
