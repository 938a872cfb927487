"""Imitation by a VLA policy: what it sees, exact continuation, and its folder read back through the guard."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from robot_rl.policies.vla.guard import WeightsError
from robot_rl.policies.vla.imitation import VlaImitation, VlaImitationOptions
from robot_rl.policies.vla.player import from_folder
from robot_rl.policies.vla.player_parts import idle_action, semantics_of
from robot_rl.types import IOSpec, Transitions

IO = IOSpec(
    {"state": ((4,), "float32"), "image.top": ((16, 16, 3), "uint8"), "instruction": ((12,), "uint8")},
    ("tip_dx", "tip_dy", "gripper_opening"), (-0.03, -0.03, 0.0), (0.03, 0.03, 0.08), ("m", "m", "m"), 10.0,
    ("tip_x", "tip_y", "secret", "goal"),
)  # fmt: skip
SMALL: dict[str, Any] = {
    "horizon_pred": 4, "horizon_exec": 2, "proprio": ["tip_*"], "batch_size": 8, "trunk": [32],
    "backbone": {"kind": "tiny", "width": 16, "places": True},
}  # fmt: skip


def words(texts: list[str]) -> np.ndarray:
    out = np.zeros((len(texts), 12), np.uint8)
    for i, text in enumerate(texts):
        out[i, : len(text.encode())] = list(text.encode())
    return out


def batches(seed: int = 0, size: int = 8) -> Iterator[Transitions]:
    """Windows in which "left" moves to the left and "right" to the right."""
    draw = np.random.default_rng(seed)
    while True:
        right = draw.integers(2, size=size).astype(bool)
        action = torch.zeros(size, 4, 3)
        action[..., 0] = torch.as_tensor(np.where(right, 0.8, -0.8), dtype=torch.float32)[:, None]
        action[..., 1:] = torch.as_tensor(draw.normal((0.0, -0.5), 0.05, (size, 4, 2)).astype(np.float32))
        text = torch.as_tensor(words(["right" if flag else "left" for flag in right]))[:, None].expand(-1, 4, -1)
        obs = {
            "state": torch.as_tensor(draw.normal(size=(size, 4, 4)).astype(np.float32)),
            "image.top": torch.as_tensor(draw.integers(0, 256, (size, 4, 16, 16, 3)).astype(np.uint8)),
            "instruction": text,
        }
        mask = torch.ones(size, 4, dtype=torch.bool)
        mask[0, 2:] = False  # an episode that ends
        no = torch.zeros(size, 4, dtype=torch.bool)
        zero = torch.zeros(size, 4)
        yield Transitions(obs, action * mask[..., None], zero, zero, obs, no, no, no, mask)


def first(seed: int = 3, size: int = 2) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(seed)
    return {
        "state": draw.normal(size=(size, 4)).astype(np.float32),
        "image.top": draw.integers(0, 256, (size, 16, 16, 3)).astype(np.uint8),
        "instruction": words(["left", "right"][:size]),
    }


@pytest.mark.parametrize(
    ("head", "options"), [("gaussian", {}), ("token", {"bins": 32}), ("flow", {"steps": 4})], ids=lambda x: str(x)
)
def test_policy_learns_to_listen_and_comes_back_from_its_folder(
    head: Any, options: dict[str, Any], tmp_path: Path
) -> None:
    made, data = VlaImitation(VlaImitationOptions(head=head, head_options=options, **SMALL), IO), batches()
    metrics: dict[str, float] = {}
    for _ in range(150):
        metrics = made.update(data)
    assert metrics["train/action_error"] < 0.2
    obs = first()
    said = made.policy.act(obs, deterministic=True).value
    assert said[0, 0] < -0.4
    assert said[1, 0] > 0.4
    folder = made.export(tmp_path / "model")
    again = from_folder(str(folder), IO)
    np.testing.assert_allclose(again.act(obs, deterministic=True).value, said, atol=1e-5)
    assert again.planner.model.stats.std[0] == pytest.approx(0.8 * 0.03, rel=0.1)  # of the data, robot units
    other = replace(IO, action_high=(0.03, 0.03, 0.008))
    with pytest.raises(WeightsError, match="limits"):
        from_folder(str(folder), other)
    with pytest.raises(WeightsError, match="control_hz"):
        from_folder(str(folder), replace(IO, control_hz=20.0))


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("cameras", [[], ["top"], ["side", "top"]], ids=str)
def test_folder_comes_back_where_there_are_more_cameras_in_another_order(
    cameras: list[str], seed: int, tmp_path: Path
) -> None:
    io = replace(IO, obs={**IO.obs, "image.side": IO.obs["image.top"]})
    made = VlaImitation(VlaImitationOptions(**{**SMALL, "cameras": cameras, "backbone": None}), io, seed=seed)
    seen = {**first(), "image.side": first(4)["image.top"]}
    batch = next(batches(size=4))
    side = {**batch.obs, "image.side": batch.obs["image.top"]}
    made.update(iter([replace(batch, obs=side, next_obs=side)]))
    again = from_folder(str(made.export(tmp_path / "model")), io)
    said, told = (policy.act(seen, deterministic=True).value for policy in (again, made.policy))
    np.testing.assert_allclose(said, told, atol=1e-5)


def test_continued_learner_is_the_learner_bit_for_bit() -> None:
    one, data = VlaImitation(VlaImitationOptions(head="flow", **SMALL), IO), batches()
    for _ in range(3):
        one.update(data)
    other = VlaImitation(VlaImitationOptions(head="flow", **SMALL), IO, seed=5)
    other.load_state_dict(one.state_dict())
    for made in (one, other):
        made.update(batches(7))
    for mine, theirs in ((one.model, other.model), (one.policy.planner.model, other.policy.planner.model)):
        assert all(torch.equal(a, b) for a, b in zip(mine.parameters(), theirs.parameters()))
    with pytest.raises(ValueError, match="built otherwise"):
        VlaImitation(VlaImitationOptions(head="gaussian", **SMALL), IO).load_state_dict(one.state_dict())


def test_policy_of_another_recipe_becomes_the_saved_one() -> None:
    saved = VlaImitation(VlaImitationOptions(head="token", head_options={"bins": 16}, **SMALL), IO)
    fresh = VlaImitation(VlaImitationOptions(**{**SMALL, "horizon_exec": 4}), IO)
    fresh.policy.load_state_dict(saved.policy.state_dict())
    assert fresh.policy.execution.horizons.exec == 2
    obs = first()
    np.testing.assert_array_equal(
        fresh.policy.act(obs, deterministic=True).value, saved.policy.act(obs, deterministic=True).value
    )


def test_policy_sees_what_it_is_told_to_and_nothing_else() -> None:
    made, obs = VlaImitation(VlaImitationOptions(**SMALL), IO), first()
    assert made.policy.planner.sight.proprio == ("tip_x", "tip_y")
    before = made.policy.act(obs, deterministic=True).value
    obs["state"][:, 2:] = 99.0
    made.policy.reset()
    np.testing.assert_array_equal(made.policy.act(obs, deterministic=True).value, before)
    blind = VlaImitation(VlaImitationOptions(**{**SMALL, "cameras": [], "backbone": None}), IO)
    assert blind.policy.act(first(), deterministic=True).value.shape == (2, 3)


def test_semantics_come_from_names_and_ranges() -> None:
    assert semantics_of(IO) == (("delta", "delta", "absolute"), (0, 0, 1))
    np.testing.assert_array_equal(idle_action(IO), [0.0, 0.0, np.nan])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"proprio": ["elbow"]}, "no component 'elbow'; its components are tip_x"),
        ({"cameras": ["side"]}, r"no pictures of \['side'\]; it has \['top'\]"),
        ({"head": "cat"}, "expected one of gaussian"),
        ({"average": 1.0}, r"\[0, 1\)"),
        ({"backbone": {"kind": "cloud"}}, "expected tiny, transformers or folder"),
        ({"backbone": {"kind": "folder"}}, "kind=folder with path .'path'"),
        ({"backbone": {"kind": "tiny", "breadth": 16}}, "options of TinyBackbone.*breadth"),
    ],
)
def test_bad_options_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        VlaImitation(VlaImitationOptions(**{**SMALL, **changes}), IO)
