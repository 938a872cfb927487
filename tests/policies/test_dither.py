"""What a policy keeps of its noise where it acts alone."""

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf

from robot_rl.onnx_policy import OnnxPolicy
from robot_rl.policies.human.imitation_sac import ImitationSac, ImitationSacOptions
from robot_rl.types import IOSpec
from robot_rl.verbs import export

IO = IOSpec({"state": ((3,), "float32")}, ("a", "b"), (-1.0, -1.0), (1.0, 1.0), ("1", "1"), 10.0)
OBS = {"state": np.random.default_rng(0).normal(0.0, 1e-5, (20_000, 3)).astype(np.float32)}  # all the same but in noise


def policy(share):
    return ImitationSac(ImitationSacOptions(hidden=(16, 16), bc_steps=0, dither=share), IO, seed=0).policy


def width(values):
    return np.arctanh(np.clip(values, -0.999999, 0.999999)).std(0)


def test_alone_it_acts_with_its_share_of_the_noise():
    own = policy(0.5)
    free, alone = (width(own.act(OBS, deterministic=alone).value) for alone in (False, True))
    np.testing.assert_allclose(alone, 0.5 * free, rtol=0.03)
    still = policy(0.0)
    assert np.ptp(still.act(OBS, deterministic=True).value, axis=0).max() < 1e-3
    own.parts.set_dither(0.0)  # as export does: a graph acts by the mean
    assert np.array_equal(own.act(OBS, deterministic=True).value, still.act(OBS, deterministic=True).value)


def test_the_same_observation_is_answered_alike_whatever_came_between_and_training_goes_on_as_without():
    tried, untried = policy(0.5), policy(0.5)
    first = tried.act(OBS, deterministic=True).value
    assert np.array_equal(tried.act(OBS).value, untried.act(OBS).value)
    few = {"state": OBS["state"][7:9]}
    np.testing.assert_allclose(tried.act(few, deterministic=True).value, first[7:9], atol=1e-6)
    assert np.corrcoef(first[:-1, 0], first[1:, 0])[0, 1] < 0.05


def test_a_tensor_is_answered_as_an_array_is():
    own = policy(0.5)
    few = OBS["state"][:5] + np.arange(5, dtype=np.float32)[:, None]
    array = own.act({"state": few}, deterministic=True).value
    tensor = own.act({"state": torch.from_numpy(few)}, deterministic=True).value
    np.testing.assert_allclose(tensor, array, atol=1e-6)


def test_a_file_acts_by_the_mean_and_that_is_said(tmp_path, monkeypatch, capsys):
    pytest.importorskip("onnxscript")
    own, still = policy(0.5), policy(0.0)
    monkeypatch.setattr(export, "_of_run", lambda _: (own, IO, "", {}))
    export.export(OmegaConf.create({"path": "run", "out": str(tmp_path / "file")}))
    assert "the file acts by the mean" in capsys.readouterr().out
    few = {"state": OBS["state"][:5]}
    found = OnnxPolicy(str(tmp_path / "file")).act(few).value
    np.testing.assert_allclose(found, still.act(few, deterministic=True).value, atol=1e-5)
