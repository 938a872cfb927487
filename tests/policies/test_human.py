"""Learners with a person in the loop: reductions, known answers, gradients, state."""
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportPossiblyUnboundVariable=false

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from robot_rl.loops.evaluate import evaluate_midway
from robot_rl.policies.human.hg_dagger import HgDagger, HgDaggerOptions
from robot_rl.policies.human.hil_serl import HilSerl, HilSerlOptions, choice_of, choices_of
from robot_rl.policies.human.imitation_sac import ImitationSac, ImitationSacOptions
from robot_rl.policies.human.rlif import Rlif, RlifOptions
from robot_rl.policies.nets.distributions import squash
from robot_rl.policies.nets.imitation import human_rows, imitation_loss, log_density
from robot_rl.policies.online.sac import Sac, SacOptions
from robot_rl.sim.mujoco_env import MujocoVectorEnv
from robot_rl.sim.worlds.pick import Pick
from robot_rl.types import IOSpec, Transitions

SMALL = {"batch_size": 32, "hidden": (16, 16)}


OPTIONS = {
    Sac: SacOptions,
    ImitationSac: ImitationSacOptions,
    Rlif: RlifOptions,
    HilSerl: HilSerlOptions,
    HgDagger: HgDaggerOptions,
}


def make(kind, io, *, seed=0, **options):
    return kind(OPTIONS[kind](**options), io, seed=seed)


def spec(actions=("a", "b"), state=3):
    size = len(actions)
    return IOSpec({"state": ((state,), "float32")}, actions, (-1.0,) * size, (1.0,) * size, ("1",) * size, 10.0)


def batch(size=32, seed=0, actions=2, imitate=None, state=3):
    g = torch.Generator().manual_seed(seed)
    off = torch.zeros(size, dtype=torch.bool)
    extras = {
        "imitate": torch.ones(size) if imitate is None else imitate,
        "reward_task": torch.rand(size, generator=g),
        "reward_rlif": -(torch.rand(size, generator=g) > 0.7).float(),
        "grip_penalty": torch.zeros(size),
    }
    return Transitions(
        obs={"state": torch.randn(size, state, generator=g)},
        action=torch.rand(size, actions, generator=g) * 1.8 - 0.9,
        reward=torch.rand(size, generator=g),
        discount=torch.full((size,), 0.97),
        next_obs={"state": torch.randn(size, state, generator=g)},
        terminated=off,
        truncated=off,
        intervened=off,
        mask=~off,
        extras=extras,
    )


def stream(**options):
    seed = 0
    while True:
        yield batch(seed=seed, **options)
        seed += 1


def test_log_density_agrees_with_torch():
    g = torch.Generator().manual_seed(0)
    raw, action = torch.randn(40, 6, generator=g).double(), (torch.rand(40, 3, generator=g) * 1.9 - 0.95).double()
    mean, log_std = raw.chunk(2, -1)
    known = torch.distributions.TransformedDistribution(
        torch.distributions.Normal(mean, log_std.clamp(-20, 2).exp()), torch.distributions.TanhTransform()
    )
    torch.testing.assert_close(log_density(raw, action), known.log_prob(action).sum(-1))
    sample = squash(raw, torch.randn(40, 3, generator=g).double())
    torch.testing.assert_close(log_density(raw, sample.action, edge=1e-12), sample.logp, rtol=1e-4, atol=1e-4)


def test_imitation_ignores_rows_without_weight_and_survives_the_edge():
    raw, action = torch.randn(4, 4, requires_grad=True), torch.tensor([[1.0, -1.0], [0.5, 0.0], [1.0, 1.0], [0.0, 0.2]])
    loss = imitation_loss(raw, action, torch.tensor([0.0, 1.0, 1.0, 0.0]), min_std=0.1)
    (grad,) = torch.autograd.grad(loss, raw)
    assert (grad[[0, 3]] == 0).all()
    assert torch.isfinite(grad).all()
    assert torch.isfinite(loss)
    loss = imitation_loss(raw, action, torch.zeros(4), min_std=0.1)
    assert (torch.autograd.grad(loss, raw)[0] == 0).all()
    assert loss == 0


def test_a_wide_policy_is_pulled_to_what_people_did_as_a_narrower_one_and_keeps_its_width():
    def pull(std, **ceiling):
        raw = torch.tensor([[0.5, math.log(std)]], dtype=torch.float64, requires_grad=True)
        loss = imitation_loss(raw, torch.zeros(1, 1, dtype=torch.float64), torch.ones(1), min_std=0.1, **ceiling)
        return torch.autograd.grad(loss, raw)[0][0].tolist()

    # u = 0: (mean - u) / std^2 for the mean, 1 - (mean - u)^2 / std^2 for log-std
    assert pull(1.0) == pytest.approx([0.5, 0.75])
    assert pull(1.0, max_std=0.5) == pytest.approx([0.5 / 0.25, 0.75])
    assert pull(0.25, max_std=0.5) == pytest.approx([0.5 / 0.0625, 1.0 - 0.25 / 0.0625])


def test_rows_of_demonstrations_are_found_without_the_memorys_weights():
    row = batch(4)
    human = torch.tensor([True, False, False, False])
    source = torch.tensor([0, 0, 1, 1])
    assert human_rows(replace(row, extras={}, intervened=human)).tolist() == [1, 0, 0, 0]
    assert human_rows(replace(row, extras={"source": source}, intervened=human)).tolist() == [1, 0, 1, 1]
    assert human_rows(row).tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize("backup", [True, False])
def test_without_its_terms_imitation_sac_is_sac_bit_for_bit(backup):
    options = {**SMALL, "critics": 2, "utd": 1, "backup_entropy": backup, "init_alpha": 1.0, "metrics_every": 1}
    same_as = {"layer_norm": True, "actor_reduce": "mean", "target_entropy": "half", "normalize_obs": True}
    plain = make(Sac, spec(), **same_as, **options)
    ours = make(ImitationSac, spec(), subset=None, bc_steps=0, il_weight=0.0, kl_weight=0.0, **options)
    data, same = stream(), stream()
    ours.pretrain(stream())
    for _ in range(5):
        plain.update(data)
        ours.update(same)
    for name in ("actor", "critic", "target", "log_alpha"):
        assert torch.equal(plain.state_dict()[name]["flat"], ours.state_dict()[name]["flat"]), name


def test_leash_of_zero_changes_nothing_and_a_strong_one_keeps_the_policy_near_the_clone():
    def trained(kl):
        newest = {"lr": 5e-3, "init_alpha": 1e-4, "acting_rate": 1.0, "critics": 2, "utd": 1, "il_weight": 0.0}
        learner = make(ImitationSac, spec(), bc_steps=150, kl_weight=kl, **newest, **SMALL)

        # the person always does 0.5; the reward pays for going to -1
        def data():
            for row in stream():
                yield replace(row, reward=-row.action.sum(1), discount=torch.zeros(32))

        def demos():
            for row in stream():
                yield replace(row, action=torch.full((32, 2), 0.5))

        learner.pretrain(demos())
        rows = data()
        for _ in range(120):
            learner.update(rows)
        return learner.policy.act({"state": batch(200).obs["state"]}, deterministic=True).value.mean()

    assert trained(0.0) < -0.5
    assert trained(10.0) > 0.2


def test_pretraining_clones_the_person():
    learner = make(ImitationSac, spec(), bc_steps=400, lr=3e-3, **SMALL)

    def demos():
        for row in stream():
            yield replace(row, action=0.8 * torch.tanh(row.obs["state"][:, :2]))

    metrics = learner.pretrain(demos())
    assert metrics["pretrain/nll"] < metrics["pretrain/nll_first"] - 1.0
    test = batch(200, seed=999)
    acted = learner.policy.act(test.obs, deterministic=True).value
    assert (acted - 0.8 * torch.tanh(test.obs["state"][:, :2])).abs().mean() < 0.08


def test_imitation_pulls_towards_human_rows_only():
    weight = torch.zeros(32)
    weight[:8] = 1.0
    learner = make(
        ImitationSac, spec(), critics=2, utd=1, bc_steps=0, il_weight=5.0, il_fade=0, lr=3e-3, init_alpha=1e-4, **SMALL
    )

    def data():
        for row in stream(imitate=weight):
            action = torch.full((32, 2), -0.6)
            action[:8] = 0.6  # the person's rows; no reward anywhere
            yield replace(row, action=action, reward=torch.zeros(32))

    rows = data()
    for _ in range(200):
        metrics = learner.update(rows)
    assert learner.policy.act(batch(100, seed=5).obs, deterministic=True).value.mean() > 0.4
    assert metrics["train/il_weight"] == 5.0


def test_imitation_fades():
    learner = make(ImitationSac, spec(), il_weight=1.0, il_fade=10, bc_steps=0, critics=2, utd=1, **SMALL)
    data, seen = stream(), []
    for _ in range(12):
        seen.append(learner.il_weight)
        told = learner.update(data)
        assert ("train/il_loss" in told) == (seen[-1] > 0.0)  # no number of an update of before
    assert seen[0] == 1.0
    assert seen[5] == pytest.approx(0.5)
    assert seen[11] == 0.0


def test_what_acts_is_a_running_mean_of_the_actors_weights():
    learner = make(ImitationSac, spec(), bc_steps=3, critics=2, utd=1, acting_rate=0.25, lr=1e-2, **SMALL)
    learner.pretrain(stream())
    expected = learner.state_dict()["actor"]["flat"].clone()  # a clone acts as it is
    assert torch.equal(learner.policy.state_dict()["actor"], expected)
    data = stream()
    for rate in (1.0, 1 / 2, 1 / 3, 0.25, 0.25):  # the plain mean while they are few
        learner.update(data)
        expected = (1.0 - rate) * expected + rate * learner.state_dict()["actor"]["flat"]
        torch.testing.assert_close(learner.policy.state_dict()["actor"], expected)
    assert not torch.equal(expected, learner.state_dict()["actor"]["flat"])
    newest = make(ImitationSac, spec(), bc_steps=0, critics=2, utd=1, acting_rate=1.0, **SMALL)
    newest.update(data)
    assert torch.equal(newest.policy.state_dict()["actor"], newest.state_dict()["actor"]["flat"])


def test_where_features_change_the_mean_of_the_weights_begins_anew_and_its_age_is_saved():
    learner = make(ImitationSac, spec(), bc_steps=3, critics=2, utd=1, acting_rate=0.01, lr=1e-2, **SMALL)
    data, seen = stream(), []
    learner.pretrain(data)
    learner.update(data)
    learner.features_changed()
    for _ in range(3):
        learner.update(data)
        seen.append(learner.state_dict()["actor"]["flat"].clone())
    torch.testing.assert_close(learner.policy.state_dict()["actor"], torch.stack(seen).mean(0))
    other = make(ImitationSac, spec(), bc_steps=3, critics=2, utd=1, acting_rate=0.01, lr=1e-2, **SMALL)
    other.load_state_dict(learner.state_dict())
    assert other.state_dict()["taken"] == 3


def test_q_filter_leaves_out_actions_that_the_critics_like_less():
    options = {**SMALL, "critics": 2, "utd": 1, "bc_steps": 0, "il_weight": 1.0, "il_fade": 0}
    one, other = (make(ImitationSac, spec(), q_filter=flag, **options) for flag in (True, False))
    row = batch()
    assert set(one.prefers_recorded(row.obs["state"], row.action, -row.action).tolist()) <= {0.0, 1.0}
    for learner in (one, other):
        learner.update(iter([row]))
    assert not torch.equal(one.state_dict()["actor"]["flat"], other.state_dict()["actor"]["flat"])


def test_rlif_relabels_from_what_was_recorded():
    row = batch()
    learner = make(Rlif, spec(), w_task=2.0, w_rlif=0.5, terminal_on_takeover=True, **SMALL)
    out = learner.relabel(row)
    torch.testing.assert_close(out.reward, 2.0 * row.extras["reward_task"] + 0.5 * row.extras["reward_rlif"])
    assert (out.discount[row.extras["reward_rlif"] < 0] == 0).all()
    assert (out.discount[row.extras["reward_rlif"] == 0] > 0.9).all()


def test_rlif_asks_for_a_person_where_none_was_recorded():
    bare = replace(batch(), extras={})
    with pytest.raises(ValueError, match="use robot-rl hil policy=human/rlif"):
        make(Rlif, spec(), **SMALL).update(iter([bare] * 50))


def test_rlif_avoids_what_makes_people_take_over():
    # a takeover follows every action above 0; the person's own actions (all 0.9, poor ones) are no target
    learner = make(Rlif, spec(("a",), 1), critics=2, utd=1, lr=3e-3, **SMALL)

    def data():
        for row in stream(actions=1, state=1):
            bad = -(row.action[:, 0] > 0).float()
            human = torch.arange(32) % 4 == 0
            action = torch.where(human[:, None], torch.tensor(0.9), row.action)
            label = torch.where(human, torch.tensor(0.0), bad)
            extras = {**row.extras, "reward_rlif": label, "reward_task": torch.zeros(32)}
            yield replace(
                row, action=torch.where(action > 0.85, action, action), extras=extras, discount=torch.zeros(32)
            )

    rows = data()
    for _ in range(200):
        learner.update(rows)
    acted = learner.policy.act({"state": torch.zeros(64, 1)}, deterministic=True).value
    assert acted.max() < 0.0


def test_hg_dagger_learns_from_human_rows_alone():
    weight = torch.zeros(32)
    weight[:16] = 1.0
    learner = make(HgDagger, spec(), bc_steps=0, lr=3e-3, **SMALL)

    def data():
        for row in stream(imitate=weight):
            action = torch.full((32, 2), -0.7)
            action[:16] = 0.4
            yield replace(row, action=action)

    rows = data()
    for _ in range(300):
        learner.update(rows)
    assert learner.policy.act(batch(100).obs, deterministic=True).value.mean() == pytest.approx(0.4, abs=0.05)


def test_choice_of_gripper_commands():
    assert choice_of(torch.tensor([-1.0, -0.5, 0.0, 0.5, 0.51, 1.0])).tolist() == [0, 1, 1, 1, 2, 2]


def grasping(**options):
    return make(HilSerl, spec(("x", "gripper_opening"), 1), critics=2, utd=1, lr=3e-3, **SMALL, **options)


def grasp_data(penalty):
    for row in stream(state=1):
        where = row.obs["state"][:, 0] > 0
        choice = torch.randint(0, 3, (32,), generator=torch.Generator().manual_seed(int(row.reward[0] * 1e6)))
        right = torch.where(where, choice == 0, choice == 2)
        action = torch.stack([row.action[:, 0], choice - 1.0], 1)
        extras = {**row.extras, "grip_penalty": penalty * (choice != 1).float()}
        yield replace(row, action=action, reward=right.float(), discount=torch.zeros(32), extras=extras)


def test_grasp_critic_closes_and_opens_where_it_pays():
    learner = grasping()
    rows = grasp_data(0.0)
    for _ in range(300):
        learner.update(rows)
    states = torch.linspace(-2, 2, 41)[:, None]
    states = states[states[:, 0].abs() > 0.3]
    acted = learner.policy.act({"state": states}, deterministic=True).value
    assert acted.shape == (len(states), 2)
    assert (acted[:, 1] == torch.where(states[:, 0] > 0, -1.0, 1.0)).float().mean() > 0.9


def test_grasp_penalty_enters_its_own_target_in_every_update_and_no_other():
    # LeRobot drops the penalty in its last critic batch, which is every batch at one critic step per update
    plain, dear = grasping(metrics_every=1), grasping(metrics_every=1)
    one, other = grasp_data(0.0), grasp_data(-5.0)
    for _ in range(20):
        a, b = plain.update(one), dear.update(other)
        assert b["train/grasp_q"] < a["train/grasp_q"] - 1.0
    assert torch.equal(plain.state_dict()["critic"]["flat"], dear.state_dict()["critic"]["flat"])
    rows = grasp_data(-5.0)
    for _ in range(300):
        dear.update(rows)
    assert (dear._grasp_of({"state": torch.randn(50, 1)}) == 1).all()  # staying is all that is left


def test_choices_that_did_the_same_are_all_taught():
    row = batch(5)
    told = torch.tensor([1.0, -1.0, -1.0, 1.0, 0.2])
    became = torch.tensor([0.0, 0.0, -1.0, 1.0, 0.0])  # stays open, stays closed, closes, opens, stays
    row = replace(row, action=torch.stack([torch.zeros(5), told], 1), extras={**row.extras, "grip_action": became})
    expected = [[0, 1, 1], [1, 1, 0], [1, 0, 0], [0, 0, 1], [0, 1, 0]]  # close, stay, open
    assert choices_of(row).tolist() == expected
    del row.extras["grip_action"]
    assert choices_of(row).tolist() == [[0, 0, 1], [1, 0, 0], [1, 0, 0], [0, 0, 1], [0, 1, 0]]


def test_stay_has_a_target_though_every_command_is_open_or_close():
    learner = grasping()

    def data():  # a gripper that is told to be open in every step, and so stays; each step pays 1
        for row in stream(state=1):
            action = torch.stack([row.action[:, 0], torch.ones(32)], 1)
            extras = {**row.extras, "grip_action": torch.zeros(32)}
            yield replace(row, action=action, reward=torch.ones(32), discount=torch.zeros(32), extras=extras)

    rows = data()
    for _ in range(300):
        learner.update(rows)
    values = learner.grasp(learner.see({"state": torch.linspace(-1, 1, 9)[:, None]}, [])).detach()
    assert (values[:, 1:] - 1.0).abs().max() < 0.05
    assert (values[:, 0] - 1.0).abs().min() > 0.1  # nobody closed it: nothing is known of that


def test_stay_keeps_what_was_really_done():
    learner = grasping()
    learner.policy._grasp = lambda obs: torch.ones(1, dtype=torch.long)  # stay
    obs = {"state": np.zeros((1, 1), np.float32)}
    assert learner.policy.act(obs).value[0, 1] == 1.0  # open at the start
    learner.policy.executed(np.array([[0.0, -1.0]]))  # a person closed it
    assert learner.policy.act(obs).value[0, 1] == -1.0
    learner.policy._grasp = lambda obs: torch.full((1,), 2)  # the policy would open, and a person drives
    learner.policy.act(obs)
    learner.policy.executed(np.array([[0.0, 0.2]]))
    learner.policy._grasp = lambda obs: torch.ones(1, dtype=torch.long)
    assert learner.policy.act(obs).value[0, 1] == -1.0
    learner.policy.reset()
    assert learner.policy.act(obs).value[0, 1] == 1.0


def test_entropy_target_leaves_the_gripper_out():
    assert grasping().target_entropy == pytest.approx(-0.5)  # one continuous action of two


def test_hil_serl_without_a_gripper_is_its_actor_critic_alone():
    """As the released code has it for a fixed gripper: SAC with HIL-SERL's numbers, bit for bit, on every action."""
    options = {**SMALL, "normalize_obs": False}
    plain = {"layer_norm": True, "utd": 2, "actor_reduce": "mean", "init_alpha": 0.01, "backup_entropy": False}
    peer = make(Sac, spec(), target_entropy="half", **plain, **options)
    learner = make(HilSerl, spec(), **options)
    for one in (learner, peer):
        rows = stream()
        for _ in range(3):
            metrics = one.update(rows)
        assert "train/grasp_loss" not in metrics
    obs = batch(5).obs
    found = [one.policy.act(obs, deterministic=True).value for one in (learner, peer)]
    assert found[0].shape == (5, 2)
    assert torch.equal(*found)


@pytest.mark.parametrize(
    ("kind", "actions"),
    [*((kind, ("a", "b")) for kind in (ImitationSac, Rlif, HgDagger, HilSerl)), (HilSerl, ("x", "gripper_opening"))],
)
def test_saved_and_loaded_learner_makes_the_same_next_update(kind, actions):
    io = spec(actions)
    more = {HgDagger: {"bc_steps": 5}, HilSerl: {"critics": 2}}.get(kind, {"critics": 2, "bc_steps": 5})
    first, second = (make(kind, io, seed=seed, utd=2, **SMALL, **more) for seed in (0, 1))
    first.pretrain(stream())
    rows = stream()
    for _ in range(3):
        first.update(rows)
    second.load_state_dict(first.state_dict())
    third = list(zip(range(4), stream()))
    for learner in (first, second):
        learner.update(iter([row for _, row in third]))
        learner.update(iter([row for _, row in third]))
    obs = {"state": np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)}
    np.testing.assert_array_equal(first.policy.act(obs).value, second.policy.act(obs).value)


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        (ImitationSac, {"il_weight": -1.0}),
        (ImitationSac, {"kl_weight": 1.0, "bc_steps": 0}),
        (ImitationSac, {"il_edge": 0.0}),
        (ImitationSac, {"acting_rate": 0.0}),
        (Rlif, {"il_switch_weight": -1.0}),
        (HgDagger, {"utd": 0}),
        (HgDagger, {"min_std": 0.0}),
    ],
)
def test_options_out_of_range_are_refused(kind, wrong):
    with pytest.raises(ValueError, match=r"must|needs|expected"):
        make(kind, spec(), **wrong)


def test_cloning_teaches_the_image_encoder_what_to_look_for():
    """Where a dot is says what to do; the encoder moves, targets and policy take it over before anything is driven."""
    torch.set_num_threads(1)
    io = replace(spec(("a",)), obs={"image.front": ((24, 24, 3), "uint8")})
    small = {"batch_size": 32, "hidden": (32,), "shift_pad": 0, "latent": 16, "encoder_channels": (8, 8)}
    learner = make(ImitationSac, io, bc_steps=150, lr=1e-3, encoder_strides=(2, 2), normalize_obs=False, **small)
    generator = torch.Generator().manual_seed(0)

    def dots(size=32):
        side = torch.randint(0, 2, (size,), generator=generator)
        pictures = torch.randint(90, 130, (size, 24, 24, 3), generator=generator).to(torch.uint8)
        for picture, right in zip(pictures, side.tolist()):
            picture[10:13, 16 * right + 2 : 16 * right + 5] = 160
        return pictures, side

    def batches():
        while True:
            pictures, side = dots()
            rows = batch(actions=1)
            yield replace(
                rows,
                obs={"image.front": pictures},
                next_obs={"image.front": pictures},
                action=(side * 1.2 - 0.6)[:, None],
            )

    before = learner.encoders[0].params.flat.detach().clone()
    found = learner.pretrain(batches())
    after = learner.encoders[0].params.flat.detach()
    assert not torch.equal(before, after)
    assert torch.equal(learner._target_encoders[0].params.flat, after)
    assert torch.equal(learner.policy.state_dict()["encoder"], after)
    assert found["pretrain/nll"] < found["pretrain/nll_first"] - 1.0
    pictures, side = dots(64)
    answer = learner.policy.act({"image.front": pictures.numpy()}, deterministic=True).value[:, 0]
    assert ((answer > 0.0) == (side.numpy() == 1)).mean() > 0.95


def test_an_evaluation_midway_leaves_the_gripper_alone():
    world = MujocoVectorEnv(1, 1, world=Pick(seconds=0.5))
    policy = HilSerl(HilSerlOptions(hidden=(8,)), world.io, seed=0).policy
    policy.reset()
    policy.executed(np.array([[0.0, 0.0, 0.0, -1.0]], np.float32))
    evaluate_midway(world, policy, episodes=1, seed=0)
    assert policy._held.tolist() == [-1.0]
