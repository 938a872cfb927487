"""What holds for every learner from logs: it saves and continues bit for bit, survives small and masked batches."""
# pyright: reportPossiblyUnboundVariable=false

from dataclasses import replace
from typing import Any

import pytest
import torch

from robot_rl.build import make
from robot_rl.words import Refused

METHODS = {
    "bc.Bc": {},
    "bc.Bc gaussian": {"gaussian": True},
    "td3_bc.Td3Bc": {},
    "td3_bc.Td3Bc seeds": {"seeds": 3},
    "iql.Iql": {},
    "iql.Iql seeds": {"seeds": 3},
    "iql.Iql corl": {"order": "corl"},
    "iql.Iql deterministic": {"deterministic": True},
    "iql.Iql dropout": {"dropout": 0.1, "seeds": 2},
    "awac.Awac": {},
    "rebrac.ReBrac": {},
    "rebrac.ReBrac seeds": {"seeds": 2},
    "sac_n.SacN": {"critics": 3},
    "edac.Edac": {"critics": 3},
    "cql.Cql": {"samples": 2},
    "cql.Cql lagrange": {"samples": 2, "lagrange_gap": 1.0, "max_target_backup": True, "backup_entropy": True},
    "cql.Cql plain": {"samples": 2, "importance": False, "bc_steps": 2},
    "cal_ql.CalQl": {"samples": 2, "critic_hidden": (16, 16)},
    "xql.Xql": {},
    "xql.Xql seeds": {"seeds": 2, "random_actions": 1},
    "recoil.Recoil": {},
    "oer.Oer": {"model_hidden": (8,), "model_members": 2, "pool": 64, "keep": 8, "horizon": 2, "updates": 4},
    "demo_kl.DemoKl": {"clone_updates": 2},
    "f_dvl.FDvl": {},
    "f_dvl.FDvl tv": {"divergence": "tv", "random_actions": 1},
    "f_dvl.FDvl code": {"variant": "code", "seeds": 2},
}
CASES = [pytest.param(name.split()[0], options, id=name) for name, options in METHODS.items()]


def build(name: str, io: Any, *, seed: int = 0, **options: Any) -> Any:
    options = {"hidden": (16, 16), "batch_size": 8, "metrics_every": 1, **options}
    return make("policy", {"name": f"offline/{name.split('.')[0]}", **options}, io, seed=seed, device="cpu", gamma=0.99)


def differing(a: Any, b: Any, path: str = "") -> list[str]:
    if isinstance(a, dict):
        return [line for key in a for line in differing(a[key], b[key], f"{path}/{key}")]
    same = torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b
    return [] if same else [path]


@pytest.mark.parametrize(("name", "options"), CASES)
def test_save_load_update_equals_update(name, options, io, batch):
    one, other = build(name, io, seed=1, **options), build(name, io, seed=2, **options)
    data = [batch(one.need.rows, seed=i) for i in range(5)]
    for b in data[:3]:
        one.update(iter([b] * 9))
    other.load_state_dict(one.state_dict())
    for b in data[3:]:
        assert one.update(iter([b] * 9)) == other.update(iter([b] * 9))
    assert not differing(one.state_dict(), other.state_dict())
    obs = {"state": data[0].obs["state"].numpy()}
    assert (one.policy.act(obs).value == other.policy.act(obs).value).all()


@pytest.mark.parametrize(("name", "options"), CASES)
def test_same_seed_gives_the_same_numbers(name, options, io, batch):
    pair = [build(name, io, seed=4, **options) for _ in range(2)]
    for learner in pair:
        for i in range(3):
            learner.update(iter([batch(learner.need.rows, seed=i)] * 9))
    assert not differing(pair[0].state_dict(), pair[1].state_dict())


@pytest.mark.parametrize(("name", "options"), CASES)
def test_batch_of_one_row_per_seed(name, options, io, batch):
    learner = build(name, io, **{**options, "batch_size": 1})
    for i in range(3):
        metrics = learner.update(iter([batch(learner.need.rows, seed=i)] * 9))
    assert metrics


@pytest.mark.parametrize(("name", "options"), CASES)
def test_masked_rows_are_not_learnt_from(name, options, io, batch):
    """Rows with absurd values behind the mask change nothing but which valid rows are repeated: all stays finite."""
    learner = build(name, io, **options)
    data = batch(learner.need.rows)
    mask = torch.ones(learner.need.rows, dtype=torch.bool)
    mask[1::2] = False
    poisoned = replace(
        data, reward=torch.where(mask, data.reward, torch.full_like(data.reward, float("nan"))), mask=mask
    )
    learner.update(iter([poisoned] * 9))
    assert all(torch.isfinite(v).all() for v in learner.policy.state_dict().values() if isinstance(v, torch.Tensor))


@pytest.mark.parametrize(("name", "options"), CASES)
def test_policy_answers_arrays_and_tensors_alike(name, options, io, batch):
    learner = build(name, io, **options)
    state = batch(5).obs["state"]
    from_array = learner.policy.act({"state": state.numpy()}, deterministic=True).value
    from_tensor = learner.policy.act({"state": state}, deterministic=True).value
    assert isinstance(from_tensor, torch.Tensor)
    torch.testing.assert_close(torch.from_numpy(from_array), from_tensor)
    assert from_array.shape == (5, 2)
    assert abs(from_array).max() <= 1.0


@pytest.mark.parametrize(("name", "options"), CASES)
def test_explicit_and_autograd_kernels_take_the_same_step(name, options, io, batch):
    pair = [build(name, io, kernel=kernel, **options) for kernel in ("explicit", "autograd")]
    for learner in pair:
        for i in range(3):
            learner.update(iter([batch(learner.need.rows, seed=i)] * 9))
    a, b = (learner.policy.state_dict()["actor"] for learner in pair)
    torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_images_are_refused(io):
    seen = replace(io, obs={**io.obs, "image.front": ((8, 8, 3), "uint8")})
    with pytest.raises(Refused, match="reads one vector observation 'state'"):
        build("iql.Iql", seen)
