"""Small instances of real vision-language architectures, as critic and as policy, behind the same contracts."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("transformers")

from robot_rl.policies.language.agent_model import local_model, tiny_model
from robot_rl.policies.nets import vlm
from robot_rl.policies.nets.tiny_backbone import TinyBackbone
from robot_rl.policies.vla import guard
from robot_rl.policies.vla.backbone_critic import BackboneCritic
from robot_rl.policies.vla.guard import WeightsError
from robot_rl.policies.vla.interface import ActionStats
from tests.policies.vla.tiny_models import tiny_config

if "vla_cases" not in sys.modules:
    _spec = importlib.util.spec_from_file_location("vla_cases", Path(__file__).parent / "cases.py")
    assert _spec is not None
    assert _spec.loader is not None
    sys.modules["vla_cases"] = importlib.util.module_from_spec(_spec)
    _spec.loader.exec_module(sys.modules["vla_cases"])
cases: Any = sys.modules["vla_cases"]

TEXTS = ["put the red block on the yellow plate", "stop"]
BIG = {"image_size": (64, 64)}


def backbone(family: str, views: int = 2) -> Any:
    if family == "tiny":
        torch.manual_seed(0)
        return TinyBackbone((64, 64), views=views)
    return vlm.from_config(tiny_config(family))


def pictures(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.as_tensor(np.random.default_rng(seed).integers(0, 256, (*shape, 64, 64, 3)).astype(np.uint8))


@pytest.mark.parametrize("family", vlm.FAMILIES)
def test_backbone_is_the_familys_own_class_and_padding_changes_nothing(family: str) -> None:
    made, x = backbone(family), pictures(2, 2)
    assert type(made.model).__module__.startswith(f"transformers.models.{family}")
    with torch.no_grad():
        both = made(x, TEXTS)
        for i in range(2):
            torch.testing.assert_close(made(x[i : i + 1], TEXTS[i : i + 1])[0], both[i], atol=1e-5, rtol=1e-4)
        assert (made(pictures(2, 2, seed=1), TEXTS) - both).abs().max() > 1e-3  # it looks
        assert (made(x, TEXTS[::-1]) - both).abs().max() > 1e-3  # it reads
    parts = made.roles()
    assert parts["vision"]
    assert parts["language"]
    assert sum(len(part) for part in parts.values()) == len(list(made.parameters()))
    with pytest.raises(ValueError, match="tokens, expected at most"):
        made(x[:1], ["x" * 200])


@pytest.mark.parametrize("family", ["tiny", *vlm.FAMILIES])
def test_backbone_as_critic_answers_trains_and_comes_back_from_disk(family: str, tmp_path: Path) -> None:
    critic = BackboneCritic(backbone(family))
    a, b = pictures(2, seed=1), pictures(2, seed=2)
    out, back = critic(a, b, TEXTS), critic(b, a, TEXTS)
    torch.testing.assert_close(out.dlogw, -back.dlogw, atol=1e-6, rtol=0)
    assert (critic(a, a, TEXTS).delta == 0).all()
    assert out.valid.all()
    path = critic.trajectory(pictures(4, seed=3), TEXTS[0], stride=2)
    assert path.index.tolist() == [0, 2, 3]
    optimizer = torch.optim.AdamW(critic.parameters(), lr=2e-3)
    losses = []
    for _ in range(6):
        loss = critic.loss(a, b, TEXTS, torch.tensor([0.8, -0.5]), torch.tensor([1.0, 0.0]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
    assert losses[-1] < losses[0]
    for name, part in critic.backbone.roles().items():
        assert any(p.grad is not None and float(p.grad.abs().sum()) > 0 for p in part), name
    trained = critic(a, b, TEXTS)
    torch.save(critic.state_dict(), tmp_path / "critic.pt")
    again = BackboneCritic(backbone(family))
    again.load_state_dict(torch.load(tmp_path / "critic.pt", weights_only=True))
    torch.testing.assert_close(again(a, b, TEXTS).dlogw, trained.dlogw, atol=0, rtol=0)


@pytest.mark.parametrize("family", vlm.FAMILIES)
def test_backbone_as_policy_trains_saves_loads_and_refuses_wrong_statistics(family: str, tmp_path: Path) -> None:
    config = {"backbone": tiny_config(family)}
    folder = cases.checkpoint(tmp_path / "policy", config, **BIG)  # two steps of imitation in between
    policy, _ = guard.load(folder, cases.build, cases.robot(**BIG), probe=cases.probe)
    obs, goal = cases.probe_obs(policy.meta)
    chunk = policy.act(obs, goal, generator=torch.Generator().manual_seed(1))
    assert chunk.actions.shape == (4, 4, 4)
    assert chunk.logp.shape == (4, 4)
    low, high = torch.tensor(cases.LOW), torch.tensor(cases.HIGH)
    assert ((chunk.env_actions >= low) & (chunk.env_actions <= high)).all()
    logp, entropy, value = policy.evaluate(obs, goal, chunk.trace)
    torch.testing.assert_close(logp, chunk.logp, atol=1e-5, rtol=0)
    torch.testing.assert_close(value, chunk.value, atol=1e-5, rtol=0)
    assert entropy.shape == (4, 4)
    roles = policy.parameters_by_role()
    assert sum(len(part) for part in roles.values()) == len(list(policy.parameters()))
    with np.load(folder / "stats.npz") as found:
        arrays = {name: found[name] for name in found.files}
    np.savez(folder / "stats.npz", **{**arrays, **{name: arrays[name] * 100 for name in ("q01", "q99", "mean", "std")}})
    with pytest.raises(WeightsError, match=r"stats_data: action 'tip_dx'"):
        guard.load(folder, cases.build, cases.robot(**BIG), probe=cases.probe)


def test_policy_refuses_what_it_cannot_see() -> None:
    policy = cases.trained({"backbone": "tiny", "size": [48, 48]})
    obs, goal = cases.probe_obs(policy.meta)
    draw = torch.Generator().manual_seed(0)
    assert obs.state is not None
    bad = obs.state.clone()
    bad[0, 0] = float("nan")
    for changed, words in (
        (type(obs)({"front": obs.images["front"]}, obs.state), r"pictures of \['top'\] are missing"),
        (type(obs)(obs.images, obs.state[:, :3]), r"expected \(B, 5\)"),
        (type(obs)(obs.images, bad), "NaN or infinity"),
    ):
        with pytest.raises(ValueError, match=words):
            policy.act(changed, goal, generator=draw)
    same = policy.act(obs, goal, generator=draw, deterministic=True).actions
    torch.testing.assert_close(policy.act(obs, goal, generator=draw, deterministic=True).actions, same)


@pytest.mark.parametrize(
    "read", [lambda folder: local_model(str(folder)), vlm.from_folder, lambda folder: vlm.FolderTokens(folder, 3)]
)
def test_code_in_a_folder_is_neither_run_nor_asked_about(
    read: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """transformers would ask on the terminal, and run it after a y."""
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    places = {"AutoConfig": "evil.Evil", "AutoModel": "evil.Evil", "AutoModelForCausalLM": "evil.Evil"}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "mystery", "auto_map": places}))
    tokens = {"tokenizer_class": "Evil", "auto_map": {"AutoTokenizer": ["evil.Evil", None]}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(tokens))
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'was_run')!r}, 'w').close()\nclass Evil: pass\n")
    with pytest.raises(ValueError, match="custom code"):
        read(tmp_path)
    assert not (tmp_path / "was_run").exists()


def test_weights_of_a_language_model_are_tensors_only(tmp_path: Path) -> None:
    core = tiny_model(8, hidden=8, layers=1, heads=1, context=8, seed=0).core
    core.save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    torch.save(core.state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(OSError, match="safetensors"):
        local_model(str(tmp_path))
    with pytest.raises(OSError, match=r"holds no config\.json"):
        local_model("mistralai/Mistral-7B-v0.1")


def test_local_folder_gives_the_same_backbone_and_a_lost_weight_is_named(tmp_path: Path) -> None:
    made = vlm.from_config(tiny_config("smolvlm"), seed=3)
    made.model.save_pretrained(tmp_path / "model")
    again = vlm.from_folder(tmp_path / "model", tokenizer="bytes")
    x = pictures(2, 1)
    with torch.no_grad():
        torch.testing.assert_close(again(x, TEXTS), made(x, TEXTS), atol=0, rtol=0)
    from safetensors.torch import load_file, save_file

    file = tmp_path / "model" / "model.safetensors"
    state = load_file(file)
    lost = sorted(name for name in state if "layers.1" in name)[0]
    del state[lost]
    save_file(state, file, metadata={"format": "pt"})
    with pytest.raises(ValueError, match="1 weights of the model are not in its file"):
        vlm.from_folder(tmp_path / "model", tokenizer="bytes")
    with pytest.raises(FileNotFoundError, match=r"no config\.json"):
        vlm.from_folder(tmp_path / "nothing")


def test_statistics_scale_both_ways_in_every_norm() -> None:
    data = cases.demonstrations()
    actions = torch.as_tensor(data[:7])
    for norm in ("quantile", "mean_std", "min_max", "identity"):
        stats = ActionStats.of(data, norm=norm)
        torch.testing.assert_close(stats.to_robot(stats.from_robot(actions)), actions)
    stats = ActionStats.of(np.array([[0.0], [1.0], [3.0]]), norm="min_max")
    assert stats.to_robot(torch.tensor([[-1.0], [0.0], [1.0]])).tolist() == [[0.0], [1.5], [3.0]]
    with pytest.raises(ValueError, match="norm is 'z'"):
        ActionStats.of(data, norm="z")
