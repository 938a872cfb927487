"""The tiny critic's network: a goal-free reader of pictures, a sentence that looks for what it names, and three heads.

Pictures are read once, whatever is asked. The sentence then points: each of its queries is compared with every place of
a feature map, before any pooling, and gives where its match is and what is there. All goals of a scene can be asked for
the price of one picture. Conditioning only the pooled vector was measured to accept wrong-object clips as done however
it was trained (see docs/vla/critic.md).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from robot_rl.policies.nets.vla_words import HashedWords

BINS = 41
_MAPS = (16, 24, 32, 32)
_POOLED = 64


class CriticNet(nn.Module):
    """Frame reader under a goal, and three heads.

    Args:
        size: (height, width) of the pictures; multiples of 8.
        width: of the reading.
        words: table size of the tokenizer.
        conditioning: "maps" (the sentence's queries look through the feature map) or "pooled" (the sentence joins at
            the end only; for comparison).
        pointers: queries of a sentence; as many more are the same for every sentence.
    """

    places: Tensor
    apart: Tensor

    def __init__(
        self,
        size: tuple[int, int] = (48, 48),
        *,
        width: int = 128,
        words: int = 509,
        conditioning: str = "maps",
        pointers: int = 6,
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
        with torch.no_grad():  # words that training never saw should say little; padding says nothing
            self.embed.weight.normal_(std=0.2)[0] = 0.0
        self.read = nn.GRU(48, text, batch_first=True)
        self.bag = nn.Linear(48, text, bias=False)
        self.conv1 = nn.Conv2d(3, _MAPS[0], 5, stride=2, padding=2)
        self.conv2 = nn.Conv2d(_MAPS[0], _MAPS[1], 3, padding=1)
        self.conv3 = nn.Conv2d(_MAPS[1], _MAPS[2], 3, stride=2, padding=1)
        self.conv4 = nn.Conv2d(_MAPS[2], _MAPS[3], 3, stride=2, padding=1)
        self.register_buffer("places", _places(size[0] // 2, size[1] // 2), persistent=False)
        self.query = nn.Parameter(torch.randn(pointers, _MAPS[1]))
        self.ask = nn.Linear(text, pointers * _MAPS[1])
        each = 3 + _MAPS[1]  # two coordinates, how well it matches, what is there
        self.register_buffer("apart", torch.triu_indices(2 * pointers, 2 * pointers, 1), persistent=False)
        self.pool = nn.Linear(_MAPS[3] * (size[0] // 8) * (size[1] // 8) + pointers * each, _POOLED)
        asked = pointers * each + self.apart.shape[1] if conditioning == "maps" else 0
        self.join = nn.Linear(_POOLED + text + asked, width)
        self.norm = nn.LayerNorm(width)
        self.gate = nn.Linear(text, 2 * width)
        self.think = nn.Linear(width, width)
        self.frame_head = nn.Sequential(nn.Linear(width, 64), nn.ReLU(), nn.Linear(64, 2))
        self.pair_head = nn.Sequential(nn.Linear(3 * width, 128), nn.ReLU(), nn.Linear(128, BINS))

    def sentence(self, ids: Tensor, length: Tensor) -> Tensor:
        """(B, L) numbers, (B,) lengths -> (B, 64)."""
        words = self.embed(ids)
        states, _ = self.read(words)
        # The sum of the words beside the state: what single words mean is learned before what their order means.
        return states[torch.arange(len(ids), device=ids.device), length - 1] + self.bag(words.sum(dim=1))

    def frames(self, images: Tensor, sentence: Tensor) -> Tensor:
        """(B, H, W, 3) uint8 or float in [0, 255], (B, 64) -> readings (B, width)."""
        return self.under(images, sentence[:, None])[:, 0]

    def under(self, images: Tensor, sentence: Tensor) -> Tensor:
        """(B, H, W, 3) uint8 or float in [0, 255], each under G sentences (B, G, 64) -> readings (B, G, width)."""
        x = images.permute(0, 3, 1, 2).to(torch.float32) * (1 / 127.5) - 1.0
        keys = F.relu(self.conv2(F.relu(self.conv1(x))))
        coarse = F.relu(self.conv4(F.relu(self.conv3(keys)))).flatten(1)
        keys = keys.flatten(2)
        count, goals = sentence.shape[:2]
        always = self._point(self.query.expand(count, -1, -1), keys)
        seen = F.relu(self.pool(torch.cat([coarse, always.flatten(1)], dim=1)))
        parts = [seen[:, None].expand(-1, goals, -1), sentence]
        if self.conditioning == "maps":
            query = self.ask(sentence).view(count, -1, _MAPS[1])
            named = self._point(query, keys).view(count, goals, -1, 3 + _MAPS[1])
            # What remains is made of distances between things, which sums of coordinates learn slowly.
            spots = torch.cat([named[..., :2], always[:, None, :, :2].expand(-1, goals, -1, -1)], dim=2)
            between = spots[:, :, self.apart[0]] - spots[:, :, self.apart[1]]
            parts += [named.flatten(2), (between.square().sum(dim=3) + 1e-6).sqrt()]
        joined = self.norm(self.join(torch.cat(parts, dim=2)))
        # The same distance counts under one goal and not under another: products, which sums learn slowly.
        scale, shift = self.gate(sentence).chunk(2, dim=2)
        return F.relu(self.think(F.relu(joined * (1 + scale) + shift)))

    def looks(self, images: Tensor, sentence: Tensor) -> Tensor:
        """(B, H, W, 3), (B, 64) -> (B, 3 * 2 P): where each of the pointers looks, in [-1, 1], and how well it matches.

        The sentence's P pointers first, then those that are the same for every sentence.
        """
        x = images.permute(0, 3, 1, 2).to(torch.float32) * (1 / 127.5) - 1.0
        keys = F.relu(self.conv2(F.relu(self.conv1(x)))).flatten(2)
        asked = self.ask(sentence).view(len(images), -1, _MAPS[1])
        query = torch.cat([asked, self.query.expand(len(images), -1, -1)], dim=1)
        return self._point(query, keys)[..., :3].flatten(1)

    def _point(self, query: Tensor, keys: Tensor) -> Tensor:
        """Queries (B, Q, C), keys (B, C, places) -> (B, Q, 3 + C): where, how well, what."""
        match = torch.bmm(query, keys)
        weight = match.softmax(dim=2)
        what = torch.bmm(weight, keys.transpose(1, 2))
        # query times what was found is how well it matches there: the mean of `match` under its weights
        return torch.cat([weight @ self.places.T, (query * what).sum(dim=2, keepdim=True), what], dim=2)

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
