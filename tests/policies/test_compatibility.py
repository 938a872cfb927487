"""Compatible demonstrations: who is redundant, conflicting, new; and that a person is asked again, but not forever."""

import numpy as np
import pytest

from robot_rl.data.hil_episode import EpisodeRules
from robot_rl.human.devices.scripted import ScriptedHuman, ScriptedOptions
from robot_rl.human.elicitor import Elicitor
from robot_rl.policies.human.compatibility import Compatibility, CompatibilityOptions
from tests.human import traces
from tests.human.line_world import LineEnv
from tests.human.test_loop import build


def person(seed, count=10, low=-1.0, high=1.0, turn=1.0, noise=0.05):
    """Demonstrations on a line: go to the origin; `turn` -1 goes the other way."""
    rng = np.random.default_rng(seed)
    states, actions = [], []
    for _ in range(count):
        x = rng.uniform(low, high, (20, 2)).astype(np.float32)
        a = np.stack([-turn * x[:, 0] + noise * rng.normal(size=20), np.full(20, 0.7)], 1)
        states.append(x)
        actions.append(a.astype(np.float32))
    return states, actions


@pytest.fixture(scope="module")
def model():
    return Compatibility(CompatibilityOptions(hidden=(32,), steps=300), *person(0, 12), control_hz=10.0, seed=1)


def test_formula_of_compatibility_per_step(model):
    """M = 1 - min(e / lambda, 1) where n < eta, else 1."""
    found = model.assess(*(x[0] for x in person(5, 1)))
    expected = np.where(found.novelty >= 1.0, 1.0, 1.0 - np.minimum(found.error, 1.0))
    np.testing.assert_allclose(found.compatibility, expected)
    assert found.score == pytest.approx(expected.mean())
    np.testing.assert_allclose(found.windows, expected.reshape(4, 5).mean(1))  # half a second at 10 Hz


def test_limits_are_percentiles_of_demonstrations_that_were_not_fitted(model):
    scores = [model.assess(s, a).score for s, a in zip(*person(7, 20))]
    assert np.mean(scores) > 0.6
    assert model.threshold == pytest.approx(np.mean(model.own) - 0.15)  # they are all of one length
    inside = np.concatenate([model.assess(s, a).error for s, a in zip(*person(8, 20))])
    assert 0.8 < (inside < 1.0).mean() <= 1.0


def test_one_demonstration_is_fitted_however_many_are_held_out():
    options = CompatibilityOptions(hidden=(8,), steps=2, held_out=0.9)
    assert len(Compatibility(options, *person(0, 4), control_hz=10.0).own) == 3


@pytest.mark.parametrize(
    ("turn", "low", "high", "kind"),
    [
        (1.0, -1.0, 1.0, "redundant"),
        (-1.0, -1.0, 1.0, "conflicting"),
        (-1.0, 6.0, 9.0, "coverage"),
    ],
)
def test_quadrants(model, turn, low, high, kind):
    found = model.assess(*(x[0] for x in person(5, 1, low, high, turn)))
    assert found.kind == kind
    if kind == "coverage":
        assert found.score == 1.0  # what is new is welcome, however it is done
        assert found.worst == ()
    if kind == "conflicting":
        assert len(found.worst) == 5
        assert found.compatibility[list(found.worst)].max() <= np.median(found.compatibility)


def test_dimension_that_never_changes_is_left_out(model):
    states, actions = person(5, 1)
    other = actions[0].copy()
    other[:, 1] = -0.7  # constant in the base: says nothing about how it should be
    assert model.assess(states[0], other).score == model.assess(states[0], actions[0]).score


def test_one_clone_knows_no_novelty_and_says_so():
    with pytest.warns(UserWarning, match="no spread"):
        single = Compatibility(CompatibilityOptions(members=1, hidden=(16,), steps=50), *person(0), control_hz=10.0)
    assert single.assess(*(x[0] for x in person(5, 1, 6.0, 9.0, -1.0))).kind == "conflicting"


def test_too_few_demonstrations_are_refused():
    with pytest.raises(ValueError, match="at least 4"):
        Compatibility(CompatibilityOptions(), *person(0, 3), control_hz=10.0)


class Judge:
    def __init__(self, kinds):
        self.kinds = iter(kinds)

    def assess(self, states, actions):
        kind = next(self.kinds)
        return type("Found", (), {"kind": kind, "score": 0.1, "worst": (3, 1)})()


def test_person_is_asked_again_twice_and_then_believed():
    heard = []
    judge = Judge(["redundant", "conflicting", "conflicting", "conflicting", "conflicting", "coverage"])
    elicitor = Elicitor(lambda s, a: judge, base=4, control_hz=10.0, patience=2, say=heard.append)
    steps = traces.draft("HHHH").steps
    assert [elicitor.offer(steps) for _ in range(4)] == [True] * 4
    assert heard == []
    assert [elicitor.offer(steps) for _ in range(6)] == [True, False, False, True, False, True]
    assert elicitor.refused == 3
    assert "at 0.1 s, 0.3 s" in heard[1]
    assert "please do it again" in heard[1]
    assert "please" not in heard[3]


def test_elicitor_knows_after_a_resume_what_it_had_accepted():
    fitted, steps = [], traces.draft("HHHH").steps
    elicitor = Elicitor(lambda s, a: fitted.append(len(s)) or Judge(["conflicting"]), base=4, control_hz=10.0)
    elicitor.restore([steps] * 6)
    assert not elicitor.offer(steps)
    assert fitted == [4]  # as in the process that was killed: on the first four


def test_session_does_not_count_demonstrations_that_contradict_the_others(tmp_path):
    env = LineEnv(steps=80)
    human = ScriptedHuman(ScriptedOptions(), env.io, expert=env.expert)
    loop = build(tmp_path, human, env=env, rules=EpisodeRules())
    judge = Judge(["redundant", "conflicting", "conflicting", "redundant"])
    loop.elicitor = Elicitor(lambda states, actions: judge, base=8, control_hz=10.0)
    loop.collect_demos(10)
    assert loop.demos == 10
    assert loop.elicitor.refused == 2
    counted = [line["demo"] for line in loop.log.manifest]
    assert counted == [True] * 9 + [False] * 2 + [True]  # kept on disk, but not as demonstrations
    rows = sum(line["valid"] for line in loop.log.manifest if line["demo"])
    assert len(loop.memory.views["demo"]) == rows
