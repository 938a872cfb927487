"""Memory: what was shown once is used later; bisimulation by hand; resume; padding."""
# pyright: reportCallIssue=false, reportPossiblyUnboundVariable=false

import numpy as np
import pytest
import torch

from robot_rl.data.log_dataset import LogDataset, LogView
from robot_rl.data.store import write_store
from robot_rl.policies.offline.history_iql import HistoryIql, HistoryIqlOptions, bisimulation_loss
from robot_rl.types import Episode, IOSpec, LogFacts

IO = IOSpec({"state": ((2,), "float32")}, ("a",), (-1.0,), (1.0,), ("1",), 10.0)
STEPS = 4
SMALL = {"width": 16, "hidden": (16,), "batch_size": 8, "metrics_every": 1}


@pytest.fixture(scope="module")
def cue(tmp_path_factory):
    """A cue of -1 or 1 is seen at the first step only; the last step pays its product with the action."""
    rng, episodes = np.random.default_rng(0), []
    for _ in range(300):
        sign = rng.choice([-1.0, 1.0])
        action = rng.uniform(-1, 1, (STEPS, 1)).astype(np.float32)
        state = np.stack([[sign if t == 0 else 0.0, t / STEPS] for t in range(STEPS + 1)]).astype(np.float32)
        reward = np.zeros(STEPS, np.float32)
        reward[-1] = sign * action[-1, 0]
        episodes.append(
            Episode(
                obs={"state": state},
                action=action,
                proposed=action,
                reward=reward,
                terminated=True,
                truncated=False,
                intervened=np.zeros(STEPS, bool),
                stamp=np.arange(STEPS + 1.0),
            )
        )
    return write_store(tmp_path_factory.mktemp("cue") / "cue.store", episodes, io=IO)


def score(policy) -> float:
    """Mean of cue times last action over both cues; 0 without a memory."""
    total = 0.0
    for sign in (-1.0, 1.0):
        policy.reset()
        for t in range(STEPS):
            state = np.array([[sign if t == 0 else 0.0, t / STEPS]], np.float32)
            action = policy.act({"state": state}, deterministic=True).value
        total += sign * float(action[0, 0]) / 2
    return total


def train(store, history: int, updates: int = 700, **options) -> HistoryIql:
    stated = HistoryIqlOptions(
        history=history, width=32, hidden=(32,), batch_size=64, lr=3e-3, beta=10.0, tau=0.05, **options
    )
    learner = HistoryIql(stated, IO, gamma=0.9)
    data = LogDataset(store, LogView(gamma=0.9, window=learner.need.window), seed=0)
    learner.prepare(LogFacts(*store.moments(), -1.0, 1.0, 0.9, STEPS))
    batches = data.batches(learner.need.rows)
    for _ in range(updates):
        learner.update(batches)
    return learner


def test_policy_remembers_what_it_was_shown_and_one_without_a_past_cannot(cue):
    assert score(train(cue, history=STEPS).policy) > 0.5
    assert abs(score(train(cue, history=1, updates=100).policy)) < 0.1


def test_bisimulation_loss_by_hand():
    # |z| apart 3, rewards apart 1, successors sqrt(3^2 + 4^2) = 5 apart in mean and spread, discount 0.2: (3 - 1 - 1)^2
    z = torch.tensor([[0.0, 0.0], [1.0, 2.0]], requires_grad=True)
    mean, std = torch.tensor([[0.0, 0.0], [3.0, 0.0]]), torch.tensor([[1.0, 1.0], [1.0, 5.0]])
    other, half = torch.tensor([1, 0]), torch.full((2,), 0.2)
    loss = bisimulation_loss(z, torch.tensor([0.0, 1.0]), mean, std, other, half, torch.tensor([1.0, 0.5]))
    assert loss.item() == pytest.approx((1.0 + 0.5) / 2)
    loss.backward()
    assert z.grad is not None
    assert (z.grad != 0).all()


def test_resume_is_exact_and_zero_weight_still_measures_bisimulation(cue):
    data = LogDataset(cue, LogView(gamma=0.9, window=3), seed=0)
    drawn = [data.sample(8) for _ in range(5)]
    one, other = (HistoryIql(HistoryIqlOptions(history=3, bisimulation=0.0, **SMALL), IO, seed=s) for s in (1, 2))
    for b in drawn[:3]:
        one.update(iter([b]))
    other.load_state_dict(one.state_dict())
    for b in drawn[3:]:
        expected = one.update(iter([b]))
        assert other.update(iter([b])) == expected
    assert expected["train/bisimulation"] > 0


def test_steps_behind_the_end_of_an_episode_change_nothing(cue):
    data = LogDataset(cue, LogView(gamma=0.9, window=3), seed=0)
    batch = data.sample(64)
    assert not batch.mask.all()
    losses = []
    for junk in (0.0, 1e3):
        learner = HistoryIql(HistoryIqlOptions(history=3, **SMALL), IO, seed=1)
        action = torch.where(batch.mask[..., None], batch.action, torch.full_like(batch.action, junk))
        after = torch.where(batch.mask[..., None], batch.next_obs["state"], torch.tensor(junk))
        changed = {**batch.__dict__, "action": action, "next_obs": {"state": after}}
        losses.append(learner.update(iter([type(batch)(**changed)])))
    assert losses[0] == losses[1]


def test_policy_forgets_rows_that_reset_and_sees_no_further_than_its_history():
    policy = HistoryIql(HistoryIqlOptions(history=2, normalize=False, **SMALL), IO).policy
    rng = np.random.default_rng(0)
    first, second, third = (rng.normal(size=(2, 2)).astype(np.float32) for _ in range(3))

    def answers(*states, reset=None):
        policy.reset()
        for i, state in enumerate(states):
            if reset is not None and i == reset[0]:
                policy.reset(reset[1])
            value = policy.act({"state": state}, deterministic=True).value
        return value

    plain = answers(first, second)
    anew = answers(first, second, reset=(1, np.array([True, False])))
    fresh = answers(second)
    np.testing.assert_allclose(anew[0], fresh[0], rtol=1e-5)
    np.testing.assert_allclose(anew[1], plain[1], rtol=1e-5)
    assert abs(anew[0] - plain[0]).max() > 1e-4
    # with a past of two, the third answer sees the second and third observation, the older action forgotten
    seen = policy._encoder
    answers(first, second, third)
    z = seen(policy.memory.state, policy.memory.previous)[:, -1]
    assert torch.equal(policy.memory.state, torch.from_numpy(np.stack([second, third], 1)))
    assert (policy.memory.previous[:, 0] == 0).all()
    assert z.shape == (2, 16)


def test_rows_are_forgotten_by_masks_on_a_device():
    class OnDevice(torch.Tensor):
        """A tensor that NumPy cannot read, as those of a GPU."""

        def __array__(self, *_, **__):
            raise TypeError("can't convert cuda:0 device type tensor to numpy")

    policy = HistoryIql(HistoryIqlOptions(history=2, normalize=False, **SMALL), IO).policy
    policy.act({"state": np.ones((2, 2), np.float32)})
    policy.reset(torch.tensor([True, False]).as_subclass(OnDevice))
    assert policy.memory.count.tolist() == [0, 1]


def test_windows_of_another_length_are_refused(cue):
    learner = HistoryIql(HistoryIqlOptions(history=3, **SMALL), IO)
    with pytest.raises(ValueError, match=r"windows of 2 steps, expected 3"):
        learner.update(iter([LogDataset(cue, LogView(window=2)).sample(4)]))
