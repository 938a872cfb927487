"""Two sentences as a reward: equations on known similarities, calibration, state terms, and encoders."""
# pyright: reportArgumentType=false

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from robot_rl.policies.reward.contrast import ContrastOptions, ContrastReward, OpenedContrastOptions, contrast
from robot_rl.policies.vla.picture_text import ClipEncoder, TinyEncoder, open_encoder
from robot_rl.types import IOSpec

IO = IOSpec(
    {"state": ((2,), "float32"), "image.front": ((4, 4, 3), "uint8")}, ("a",), (-1.0,), (1.0,), ("1",), 10.0,
    obs_names=("speed", "aside"),
)  # fmt: skip


class Grey:
    """Grey 0 is all good, 100 all bad; the gap of a picture is 2 sin(angle) of its level."""

    image_size = None

    def pictures(self, pictures: np.ndarray) -> torch.Tensor:
        angle = torch.from_numpy(pictures[:, 0, 0, 0].astype(np.float32)) / 100 * np.pi / 2
        return torch.stack([angle.cos(), angle.sin()], 1)

    def texts(self, texts: Sequence[str]) -> torch.Tensor:
        return torch.tensor([{"clear": [1.0, 0.0], "crash": [0.0, 1.0]}[text] for text in texts])


def shown(*levels: int) -> np.ndarray:
    return np.stack([np.full((4, 4, 3), level, np.uint8) for level in levels])


def seen(levels: Sequence[int], state: Any = ((0, 0), (0, 0)), own: Sequence[float] = (0, 0)) -> dict[str, Any]:
    return {"image.front": shown(*levels), "state": np.array(state, np.float32), "env_reward": np.array(own, float)}


def made(**options: Any) -> ContrastReward:
    reward = ContrastReward(ContrastOptions(good="clear", bad="crash", **{"z_max": 0.5, **options}), Grey())
    reward.bind(IO)
    return reward


NO, ALL = np.zeros(2, bool), np.ones(2, bool)


def test_gap_is_cut_and_turned_into_a_share() -> None:
    reward = made()
    np.testing.assert_allclose(reward.gap(shown(0, 50, 100)), [-1, 0, 1], atol=1e-6)
    reward.start(ALL, seen((0, 0)))
    angle = 60 / 100 * np.pi / 2
    expected = [1.0, 1 - (np.sin(angle) - np.cos(angle)) / 0.5]
    np.testing.assert_allclose(reward.step(seen((20, 60)), NO), expected, atol=1e-6)
    np.testing.assert_allclose(reward.step(seen((100, 50)), NO), [0.0, 1.0], atol=1e-6)


def test_state_terms_are_joined_and_a_crash_keeps_its_own_reward() -> None:
    reward = made(speed="speed", v_max=2.0, terms=["1 - abs(aside)", "1"], keep_below=-5.0)
    reward.start(ALL, seen((0, 0)))
    # clear road: 2 is wanted; blocked: standing still
    paid = reward.step(seen((0, 100), ((1.0, 0.0), (0.0, 0.5))), NO)
    np.testing.assert_allclose(paid, [0.5, 0.5])
    paid = reward.step(seen((0, 100), ((9.0, 0.0), (0.5, 3.0)), (-10, -1)), NO)
    np.testing.assert_allclose(paid, [-10.0, 0.0])


def test_speed_that_is_no_number_pays_nothing() -> None:
    reward = made(speed="speed / aside", v_max=2.0)
    reward.start(ALL, seen((0, 0)))
    with np.errstate(divide="ignore", invalid="ignore"):
        paid = reward.step(seen((0, 0), ((0.0, 0.0), (2.0, 1.0))), NO)
    np.testing.assert_allclose(paid, [0.0, 1.0])


def test_looks_are_held_and_a_run_continues() -> None:
    reward = made(every=2)
    reward.start(ALL, seen((0, 100)))
    np.testing.assert_allclose(reward.step(seen((100, 0)), NO), [1.0, 0.0])
    state = reward.state_dict()
    np.testing.assert_allclose(reward.step(seen((100, 0)), NO), [0.0, 1.0])
    other = made(every=2, z_max=None)
    other.load_state_dict(state)
    np.testing.assert_allclose(other.step(seen((100, 0)), NO), [0.0, 1.0])


def test_z_max_is_the_95th_percentile_of_random_pictures() -> None:
    reward = made(z_max=None)
    with pytest.raises(ValueError, match="z_max is not known"):
        reward.start(ALL, seen((0, 0)))
    levels = np.random.default_rng(0).integers(0, 101, 500)
    found = reward.calibrate(shown(*levels))
    assert found == pytest.approx(np.quantile(reward.gap(shown(*levels)), 0.95))
    with pytest.raises(ValueError, match="find hardly any of them bad"):
        reward.calibrate(shown(0, 1, 2))
    with pytest.raises(ValueError, match="cannot tell"):
        ContrastReward(ContrastOptions(good="clear", bad="clear"), Grey())
    with pytest.raises(ValueError, match="no observable 'height'"):
        made(terms=["height"])


def captioned(count: int, seed: int) -> tuple[np.ndarray, list[str]]:
    rng = np.random.default_rng(seed)
    pictures, captions = rng.integers(0, 60, (count, 32, 32, 3)).astype(np.uint8), []
    for picture in pictures:
        left, red = rng.random(2) < 0.5
        x = rng.integers(0, 8) + (0 if left else 16)
        picture[8:16, x : x + 8] = (220, 30, 30) if red else (30, 30, 220)
        captions.append(f"a {'red' if red else 'blue'} block on the {'left' if left else 'right'}")
    return pictures, captions


def test_tiny_encoder_learns_captions_and_pays_for_the_good_one(tmp_path: Path) -> None:
    encoder = TinyEncoder(seed=0)
    losses = list(encoder.fit(*captioned(300, 0), steps=80))
    assert losses[-1] < 0.75 * losses[0]
    fresh, captions = captioned(100, 1)
    choices = sorted(set(captions))
    best = (encoder.pictures(fresh) @ encoder.texts(choices).T).argmax(1)
    assert np.mean([choices[i] == text for i, text in zip(best.tolist(), captions)]) > 0.9
    encoder.save(tmp_path / "tiny.pt")
    again = open_encoder(str(tmp_path / "tiny.pt"))
    torch.testing.assert_close(again.pictures(fresh), encoder.pictures(fresh))
    options = {"good": "a red block on the left", "bad": "a blue block on the right"}
    reward = contrast(OpenedContrastOptions(encoder=str(tmp_path / "tiny.pt"), **options))
    reward.calibrate(fresh)
    good, bad = (np.array([text == options[key] for text in captions]) for key in ("good", "bad"))
    share = 1 - np.clip(reward.gap(fresh), 0, reward.z_max) / reward.z_max
    assert share[good].mean() > 0.95
    assert share[bad].mean() < 0.3


def test_encoders_that_cannot_be_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="encoder is"):
        open_encoder(str(tmp_path / "none"))
    (tmp_path / "empty").mkdir()
    pytest.importorskip("transformers")
    with pytest.raises(FileNotFoundError, match=r"config\.json"):
        open_encoder(str(tmp_path / "empty"))
    torch.save({"x": 1}, tmp_path / "other.pt")
    with pytest.raises(ValueError, match="is no encoder"):
        open_encoder(str(tmp_path / "other.pt"))
    for content in (b"", b"\x80\x02cos\nsystem\n."):
        (tmp_path / "other.pt").write_bytes(content)
        with pytest.raises(ValueError, match="is no encoder"):
            open_encoder(str(tmp_path / "other.pt"))
    with pytest.raises(TypeError, match="float32, expected uint8"):
        TinyEncoder().pictures(np.zeros((1, 8, 8, 3), np.float32))
    with pytest.raises(ValueError, match="sentence is empty"):
        TinyEncoder().texts([" "])


def test_clip_of_a_local_folder_embeds_both(tmp_path: Path) -> None:
    hub = pytest.importorskip("transformers")
    words = pytest.importorskip("tokenizers")
    part = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = hub.CLIPConfig(
        text_config={**part, "vocab_size": 8, "max_position_embeddings": 12, "eos_token_id": 1, "bos_token_id": 2,
                     "pad_token_id": 1},
        vision_config={**part, "image_size": 32, "patch_size": 16}, projection_dim=16,
    )  # fmt: skip
    torch.manual_seed(0)
    hub.CLIPModel(config).save_pretrained(tmp_path)
    made = words.Tokenizer(words.models.WordLevel({"[UNK]": 0, "</s>": 1, "<s>": 2, "red": 3, "blue": 4}, "[UNK]"))
    made.pre_tokenizer = words.pre_tokenizers.Whitespace()
    made.post_processor = words.processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 2), ("</s>", 1)]
    )
    hub.PreTrainedTokenizerFast(
        tokenizer_object=made, unk_token="[UNK]", eos_token="</s>", bos_token="<s>", pad_token="</s>"
    ).save_pretrained(tmp_path)
    encoder = open_encoder(str(tmp_path))
    assert isinstance(encoder, ClipEncoder)
    seen = encoder.pictures(np.random.default_rng(0).integers(0, 256, (3, 40, 60, 3)).astype(np.uint8))
    said = encoder.texts(["red", "blue red"])
    assert seen.shape == (3, 16)
    torch.testing.assert_close(seen.norm(dim=1), torch.ones(3))
    torch.testing.assert_close(said.norm(dim=1), torch.ones(2))
    assert float((said[0] - said[1]).abs().max()) > 1e-3
    hub.CLIPModel.from_pretrained(tmp_path, dtype=torch.bfloat16).save_pretrained(tmp_path)
    half = open_encoder(str(tmp_path))
    assert next(half._model.parameters()).dtype == torch.float32  # the gap of two sentences is smaller than a rounding
    with pytest.raises(ValueError, match="expected at most 12"):
        encoder.texts(["red " * 20])
