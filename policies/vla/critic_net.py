"""The tiny critic's network: each frame is read under the goal, pairs of readings become progress.

The sentence scales and shifts the feature maps before any pooling. Conditioning only the pooled vector was measured to
accept wrong-object clips as done however it was trained (see docs/vla/critic.md).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from robot_rl.policies.nets.vla_words import HashedWords

BINS = 41
_MAPS = (16, 32, 48)


class CriticNet(nn.Module):
    """Frame reader under a goal, and three heads.

    Args:
        size: (height, width) of the pictures; multiples of 8.
        width: of the reading.
        words: table size of the tokenizer.
        conditioning: "maps" (scale and shift of the first two feature maps) or "pooled" (the sentence joins at the
            end only; for comparison).
    """

    fine: Tensor
    coarse: Tensor

    def __init__(
        self, size: tuple[int, int] = (48, 48), *, width: int = 128, words: int = 509, conditioning: str = "maps"
    ) -> None:
        super().__init__()
        if size[0] % 8 or size[1] % 8:
            raise ValueError(f"pictures of {size[0]} x {size[1]} pixels, expected multiples of 8")
        if conditioning not in ("maps", "pooled"):
            raise ValueError(f"conditioning is '{conditioning}', expected 'maps' or 'pooled'")
        self.size, self.conditioning = size, conditioning
        text = 64
        self.tokens = HashedWords(words)
        self.embed = nn.Embedding(words, 48, padding_idx=0)
        self.read = nn.GRU(48, text, batch_first=True)
        self.film = nn.Linear(text, 2 * (_MAPS[0] + _MAPS[1]))
        nn.init.zeros_(self.film.bias)
        self.conv1 = nn.Conv2d(3, _MAPS[0], 5, stride=2, padding=2)
        self.conv2 = nn.Conv2d(_MAPS[0], _MAPS[1], 3, stride=2, padding=1)
        self.conv3 = nn.Conv2d(_MAPS[1], _MAPS[2], 3, stride=2, padding=1)
        self.register_buffer("fine", _places(size[0] // 2, size[1] // 2), persistent=False)
        self.register_buffer("coarse", _places(size[0] // 4, size[1] // 4), persistent=False)
        self.sharpness = nn.Parameter(torch.ones(_MAPS[0] + _MAPS[1]))
        flat = _MAPS[2] * (size[0] // 8) * (size[1] // 8) + 3 * (_MAPS[0] + _MAPS[1])
        self.join = nn.Linear(flat + text, width)
        self.norm = nn.LayerNorm(width)
        self.frame_head = nn.Sequential(nn.Linear(width, 64), nn.ReLU(), nn.Linear(64, 2))
        self.pair_head = nn.Sequential(nn.Linear(3 * width, 128), nn.ReLU(), nn.Linear(128, BINS))

    def sentence(self, ids: Tensor, length: Tensor) -> Tensor:
        """(B, L) numbers, (B,) lengths -> (B, 64)."""
        states, _ = self.read(self.embed(ids))
        return states[torch.arange(len(ids), device=ids.device), length - 1]

    def frames(self, images: Tensor, sentence: Tensor) -> Tensor:
        """(B, H, W, 3) uint8 or float in [0, 255], (B, 64) -> readings (B, width)."""
        x = images.permute(0, 3, 1, 2).to(torch.float32) * (1 / 127.5) - 1.0
        first = self.conv1(x)
        if self.conditioning == "maps":
            scale1, shift1, scale2, shift2 = self.film(sentence).split([_MAPS[0], _MAPS[0], _MAPS[1], _MAPS[1]], dim=1)
            first = F.relu(torch.addcmul(shift1[:, :, None, None], first, 1 + scale1[:, :, None, None]))
            second = self.conv2(first)
            second = F.relu(torch.addcmul(shift2[:, :, None, None], second, 1 + scale2[:, :, None, None]))
        else:
            first = F.relu(first)
            second = F.relu(self.conv2(first))
        # Where each feature is: distances between things are what remaining work is made of.
        sharp = self.sharpness.split(list(_MAPS[:2]))
        found = []
        for maps, sharpness, places in ((first, sharp[0], self.fine), (second, sharp[1], self.coarse)):
            flat = maps.flatten(2)
            found += [(torch.softmax(flat * sharpness[:, None], dim=2) @ places.T).flatten(1), flat.amax(dim=2)]
        last = F.relu(self.conv3(second)).flatten(1)
        return F.relu(self.norm(self.join(torch.cat([last, *found, sentence], dim=1))))

    def pairs(self, first: Tensor, second: Tensor) -> Tensor:
        """Readings (B, width) of two moments -> logits (B, 41) over shares in [-1, 1]."""
        return self.pair_head(torch.cat([first, second, second - first], dim=1))

    def moments(self, reading: Tensor) -> tuple[Tensor, Tensor]:
        """Readings (B, width) -> s (B,), minus log remaining work up to a constant, and logits of done (B,)."""
        out = self.frame_head(reading)
        return out[:, 0], out[:, 1]


def _places(height: int, width: int) -> Tensor:
    """(2, height * width) coordinates in [-1, 1]."""
    axes = torch.linspace(-1, 1, height), torch.linspace(-1, 1, width)
    return torch.stack(torch.meshgrid(*axes, indexing="ij")).flatten(1)
