"""When help is asked for: each signal by itself, a budget that is kept, and a person who listens."""
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportOptionalMemberAccess=false

from types import SimpleNamespace

import numpy as np
import pytest

from robot_rl.checkpoint import load_state, save_state
from robot_rl.human.adviser import Adviser
from robot_rl.human.devices.scripted import ScriptedHuman, ScriptedOptions
from robot_rl.human.options import SessionOptions
from robot_rl.link import LinkSettings
from robot_rl.policies.human.hg_dagger import HgDagger, HgDaggerOptions
from robot_rl.policies.human.imitation_sac import ImitationSac, ImitationSacOptions
from robot_rl.run import RunStart
from robot_rl.verbs.hil_job import HilJob, HilSettings
from robot_rl.verbs.hil_link import HilActorJob
from tests.human.line_world import LineEnv
from tests.human.test_loop import build

ACTION = np.zeros(1, np.float32)


class Critics:
    """Two critics whose values and spread are set from outside."""

    def __init__(self, rng=None):
        self.mean, self.spread, self.rng = 0.0, 0.1, rng

    def __call__(self, obs, action):
        noise = 0.0 if self.rng is None else self.rng.normal(size=2)
        mean, spread = self.mean + 0.01 * np.ravel(noise)[0], self.spread * (1 + 0.1 * np.ravel(noise)[-1])
        return np.array([[mean - spread], [mean + spread]])


def walk(adviser, rng, steps, place=0.0, speed=0.1):
    asked = []
    for _ in range(steps):
        place += speed * (1 + 0.3 * rng.normal())
        asked.append(adviser.look({"state": np.array([[place, 1.0]], np.float32)}, ACTION))
    return place, asked


@pytest.fixture
def warm():
    """An adviser that has seen ten ordinary episodes of 40 steps; its critics; the generator."""
    rng = np.random.default_rng(0)
    critics = Critics(rng)
    adviser = Adviser(critics, 10.0, share=0.03)
    for _ in range(10):
        adviser.begin()
        walk(adviser, rng, 40)
    adviser.begin()
    place, _ = walk(adviser, rng, 15)
    return adviser, critics, rng, place


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda c: setattr(c, "spread", 1.0), "disagreement"),
        (lambda c: setattr(c, "mean", -1.0), "value drop"),
        (lambda c: None, "stuck"),
    ],
)
def test_each_signal_asks_for_help_at_the_second_step(warm, change, why):
    adviser, critics, rng, place = warm
    change(critics)
    speed = 0.0 if why == "stuck" else 0.1
    steps = 14 if why == "stuck" else 2  # it takes a second until standing still is known as such
    _, asked = walk(adviser, rng, steps, place, speed)
    assert asked[-1]
    assert not asked[0]
    assert adviser.why == why
    adviser.begin()
    assert adviser.why == ""


def test_questions_stay_near_their_budget_when_nothing_stands_out():
    rng = np.random.default_rng(1)
    adviser, total = Adviser(Critics(rng), 10.0, share=0.15), 0
    for _ in range(40):
        adviser.begin()
        total += sum(walk(adviser, rng, 40)[1])
    assert total / 1600 < 0.15


def test_nothing_is_asked_before_it_is_warm():
    rng = np.random.default_rng(2)
    adviser = Adviser(Critics(rng), 10.0, share=0.5, warm=100)
    assert not any(walk(adviser, rng, 99)[1])


def test_values_of_the_learner_are_those_of_its_target_critics():
    env = LineEnv()
    learner = ImitationSac(ImitationSacOptions(hidden=(8,), critics=3, subset=2), env.io)
    found = learner.values({"state": np.zeros((5, 2), np.float32)}, np.zeros((5, 1), np.float32))
    assert found.shape == (3, 5)
    assert not np.allclose(found[0], found[1])


def test_person_who_listens_helps_when_asked_and_only_then(tmp_path):
    env = LineEnv()
    human = ScriptedHuman(ScriptedOptions(help="adviser", patience_s=0.0, drive_s=0.5), env.io, expert=env.expert)
    loop = build(tmp_path, human, env=env, options=SessionOptions(learning_starts=10))

    class Third:
        """Asks at the third step of every episode."""

        why, count = "", 0

        def begin(self):
            self.count = 0

        def look(self, obs, action):
            self.count += 1
            return self.count == 3

    loop.adviser = Third()
    loop.collect_demos(2)  # nobody is asked in a demonstration
    facts = loop._episode(demo=False)
    assert facts.spans == 1
    assert facts.first_span == 2
    human.advise(False)
    loop.adviser = None
    assert loop._episode(demo=False).spans == 0


def test_learner_without_critics_is_refused_with_what_to_choose():
    job = SimpleNamespace(
        settings=SimpleNamespace(advise=0.1), learner=HgDagger(HgDaggerOptions(hidden=(8,)), LineEnv().io)
    )
    with pytest.raises(ValueError, match="imitation_sac"):
        HilJob._make_adviser(job)


def test_an_actor_refuses_to_advise_since_its_critics_are_elsewhere(tmp_path):
    """It took the option, and help was never asked for."""
    with pytest.raises(ValueError, match="role=both"):
        HilActorJob(HilSettings(advise=0.1), RunStart(tmp_path, "", None), None, link=LinkSettings(), policy={})


def test_settings_refuse_nonsense():
    with pytest.raises(ValueError, match="share"):
        Adviser(Critics(), 10.0, share=1.5)


def test_an_adviser_goes_on_as_it_would_have(tmp_path):
    one, other = (Adviser(Critics(np.random.default_rng(0)), 10.0) for _ in range(2))
    place, _ = walk(one, np.random.default_rng(1), 300)
    save_state(tmp_path / "adviser.pt", one.state_dict())
    other.load_state_dict(load_state(tmp_path / "adviser.pt"))
    one._values = other._values = Critics()
    one._values.spread = 0.3
    ends = []
    for adviser in (one, other):
        adviser.begin()
        ends.append(walk(adviser, np.random.default_rng(2), 60, place)[1])
    assert ends[0] == ends[1]
    assert one.asked == other.asked > 0
