"""Real architectures with random weights write text about pictures; what they write is no label, and is told so."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from robot_rl.policies.nets import vlm
from robot_rl.policies.nets.picture_labels import TwoStage
from robot_rl.policies.vla.text_models import open_model
from robot_rl.policies.vla.vlm_text import LocalModel
from tests.policies.vla.tiny_models import tiny_config

transformers = pytest.importorskip("transformers")


def saved(family: str, folder: Path) -> Path:
    config = {key: value for key, value in tiny_config(family).items() if key != "model_type"}
    torch.manual_seed(0)
    model = transformers.AutoModelForImageTextToText.from_config(
        transformers.AutoConfig.for_model(family, **config), attn_implementation="eager"
    )
    model.save_pretrained(folder)
    return folder


def picture(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (48, 60, 3)).astype(np.uint8)


@pytest.mark.parametrize("family", vlm.FAMILIES)
def test_model_of_a_folder_looks_and_writes(family: str, tmp_path: Path) -> None:
    model = open_model(str(saved(family, tmp_path)), {"tokenizer": "bytes", "tokens": 6})
    assert isinstance(model, LocalModel)
    seen = [model.answer([picture(0), picture(1)], "which?"), model.answer([picture(0), picture(1)], "which?")]
    assert seen[0] == seen[1]  # greedy
    assert isinstance(model.answer([], "no pictures"), str)
    logits = []
    model._model.register_forward_hook(lambda module, given, out: logits.append(out.logits[0, -1]))
    first = []
    for seed in (2, 3):
        logits.clear()
        model.answer([picture(seed), picture(1)], "which?")
        first.append(logits[0])
    assert float((first[0] - first[1]).abs().max()) > 1e-4  # it looks
    judge = TwoStage(model)
    assert judge.label(picture(0), picture(1), "stack the blocks") in (-1, 0, 1)
    assert judge.counts.asked == 1


def test_folders_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"config\.json"):
        LocalModel(tmp_path)
    transformers.LlamaConfig(vocab_size=8).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="holds a 'llama', expected one of smolvlm"):
        LocalModel(tmp_path)
