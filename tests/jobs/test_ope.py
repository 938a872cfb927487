"""A policy's value from a log alone covers the true one; a policy that leaves the data is named."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from robot_rl.data.store import write_store
from robot_rl.policies.offline.bc import Bc, BcOptions
from robot_rl.policies.offline.fqe import Fqe, FqeOptions
from robot_rl.policies.offline.model_value import ModelValue, ModelValueOptions
from robot_rl.types import Action, Episode, IOSpec, PolicyParts
from robot_rl.verbs.ope import Judges, OpeSettings, run

IO = IOSpec({"state": ((1,), "float32")}, ("a",), (-1.0,), (1.0,), ("1",), 10.0)
STEPS, GAMMA = 5, 0.9


class Gaussian:
    """a ~ N(mean, std), clipped when it acts."""

    io = IO

    @property
    def parts(self):
        return PolicyParts(log_prob=self.log_prob)

    def __init__(self, mean: float, std: float = 0.3) -> None:
        self.mean, self.std = mean, std

    def reset(self, rows: Any = None) -> None:
        """No memory."""

    def act(self, obs: Any, *, deterministic: bool = False) -> Action:
        return Action(torch.full((len(obs["state"]), 1), self.mean))

    def log_prob(self, obs: Any, action: torch.Tensor) -> torch.Tensor:
        return torch.distributions.Normal(self.mean, self.std).log_prob(action).sum(-1)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Five steps, reward = action, behaviour N(0, 0.3): a policy of mean m is worth m (1 + 0.9 + ... + 0.9^4)."""
    rng = np.random.default_rng(0)
    episodes = []
    for _ in range(150):
        action = np.clip(rng.normal(0, 0.3, (STEPS, 1)), -1, 1).astype(np.float32)
        episodes.append(
            Episode(
                obs={"state": np.linspace(0, 1, STEPS + 1, dtype=np.float32)[:, None]},
                action=action,
                proposed=action,
                reward=action[:, 0],
                terminated=True,
                truncated=False,
                intervened=np.zeros(STEPS, bool),
                stamp=np.arange(STEPS + 1.0),
            )
        )
    write_store(tmp_path / "log.store", episodes, io=IO)
    return tmp_path / "log.store"


def evaluate(log: Path, mean: float, **options: Any):
    settings = OpeSettings(
        **{
            **{"data": str(log), "gamma": GAMMA, "updates": 1500, "behaviour_updates": 800, "resamples": 300},
            **{"methods": ("fqe", "mb", "is", "wis", "pdis", "wpdis", "dr", "wdr"), "model_updates": 700},
            **options,
        }
    )
    return run(
        settings,
        Gaussian(mean),
        IO,
        Judges(
            make_fqe=lambda io, p, **how: Fqe(
                FqeOptions(hidden=(32, 32), lr=2e-3, tau=0.05, batch_size=64, members=3, samples=2), io, p, **how
            ),
            make_behaviour=lambda io: Bc(BcOptions(gaussian=True, hidden=(32, 32), lr=2e-3), io),
            make_model=lambda io, p, **how: ModelValue(
                ModelValueOptions(hidden=(32, 32), batch_size=64, members=3, rollouts=4), io, p, gamma=GAMMA, **how
            ),
        ),
    )


def test_ope_intervals_cover_the_known_value(log):
    truth = 0.15 * (1 - GAMMA**STEPS) / (1 - GAMMA)
    report = evaluate(log, 0.15)
    assert report.outside < 0.05
    assert report.effective is not None
    assert 10 < report.effective < 150
    for estimate in report.estimates:
        assert estimate.interval is not None
        slack = 0.1  # the behaviour is estimated, and clipping moves it a little
        assert estimate.interval.low - slack <= truth <= estimate.interval.high + slack, estimate
    assert not any("WARNING" in line for line in report.warnings)
    assert any("estimated by cloning" in line for line in report.warnings)


def test_ope_policy_that_leaves_the_data_is_named(log):
    report = evaluate(log, 0.99, methods=("wis",))
    assert report.outside > 0.9
    text = "\n".join(report.warnings)
    assert "less likely under the data" in text
    assert "unreliable" in text


def test_ope_unsettled_fqe_is_named(log):
    report = evaluate(log, 0.3, methods=("fqe",), updates=60)
    assert any("has not settled" in line for line in report.warnings)


def test_ope_unknown_estimator_lists_the_known(log):
    with pytest.raises(ValueError, match="methods is 'magic', expected a list, each one of fqe, mb"):
        evaluate(log, 0.1, methods=("magic",))


def test_ope_command_line_refuses_ratios_of_a_deterministic_policy_and_offers_smoothing(log, robot_rl, tmp_path):
    small = ["policy.hidden=[16,16]", "updates=100", "track.tensorboard=false", "gamma=0.9"]
    done = robot_rl("offline", f"data={log}", "policy=offline/td3_bc", *small, "name=p")
    assert done.returncode == 0, done.stderr
    run_folder = next(tmp_path.glob("runs/offline/*_p"))
    base = ["eval", "ope", f"path={run_folder}", f"data={log}", "gamma=0.9", "updates=200", "behaviour_updates=100"]
    base += ["resamples=50", "ope.hidden=[16,16]", "behaviour.hidden=[16,16]"]
    shown = robot_rl(*base)
    assert shown.returncode == 0, shown.stderr
    assert "smooth=0.1" in shown.stdout
    numbers = json.loads(next(tmp_path.glob("runs/ope/*/ope.json")).read_text())
    assert numbers["estimates"]["fqe"]["low"] <= numbers["estimates"]["fqe"]["high"]
    assert "value" not in numbers["estimates"]["wis"]
    smoothed = robot_rl(*base, "smooth=0.3", "methods=[wis]")
    assert smoothed.returncode == 0, smoothed.stderr
    assert "smooth=0.1" not in smoothed.stdout


class Sampling(Gaussian):
    """Acts at its mean, or one above it when it samples."""

    def act(self, obs: Any, *, deterministic: bool = False) -> Action:
        return Action(torch.full((len(obs["state"]), 1), self.mean + (0.0 if deterministic else 1.0)))


@pytest.mark.parametrize(
    ("methods", "smooth", "kind", "name", "expected"),
    [
        (("fqe",), None, Gaussian, "by its mode", 0.0),
        (("fqe", "dr"), None, Sampling, "as it samples", 1.0),
        (("fqe", "mb"), None, Sampling, "by its mode", 0.0),
    ],
)
def test_ope_all_estimators_judge_one_policy(log, methods, smooth, kind, name, expected):
    """Weights speak of the policy that samples, and so must the values beside them."""
    seen = []

    class Spy(Fqe):
        def __init__(self, io: IOSpec, policy: Any, **options: Any) -> None:
            super().__init__(FqeOptions(hidden=(8,), batch_size=32, members=2, samples=1), io, policy, **options)
            answer = policy.act({"state": torch.zeros(1, 1)}, deterministic=options["deterministic"])
            seen.append(float(answer.value[0, 0]))

    settings = OpeSettings(
        data=str(log), gamma=GAMMA, updates=10, behaviour_updates=10, model_updates=10, resamples=20, methods=methods,
        smooth=smooth,
    )  # fmt: skip
    report = run(
        settings, kind(0.0), IO, Judges(
            make_fqe=Spy, make_behaviour=lambda io: Bc(BcOptions(gaussian=True, hidden=(8,)), io),
            make_model=lambda io, p, **how: ModelValue(
                ModelValueOptions(hidden=(8,), members=2, rollouts=1), io, p, gamma=GAMMA, **how
            ),
        ),
    )  # fmt: skip
    assert report.judged == name
    assert seen == [expected]


def test_smoothed_policy_samples_what_its_density_says():
    from robot_rl.verbs.ope_policy import Smoothed

    policy = Smoothed(Gaussian(0.2), 0.1, seed=0)
    obs = {"state": torch.zeros(4000, 1)}
    action = torch.as_tensor(policy.act(obs).value)
    assert action.mean().item() == pytest.approx(0.2, abs=0.01)
    assert action.std().item() == pytest.approx(0.1, abs=0.01)
    expected = torch.distributions.Normal(0.2, 0.1).log_prob(action).sum(-1)
    torch.testing.assert_close(policy.log_prob(obs, action), expected)
    with pytest.raises(ValueError, match="smooth is 0"):
        Smoothed(Gaussian(0.2), 0.0, seed=0)
