"""A backbone of this repository: small convolutions per view under the sentence. Trains in minutes on a CPU."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from robot_rl.policies.nets.vla_words import HashedWords


class TinyBackbone(nn.Module):
    """Three strided convolutions per view, the first two scaled and shifted by the sentence, then one vector.

    With `places` the vector also knows where each feature is (the mean place under a softmax over the map, as in
    spatial soft-argmax): a hand is sent to places, and few demonstrations do not teach a linear layer what a place is.

    Args:
        image_size: (height, width), multiples of 8.
        views: pictures of one moment.
        width: of the answer.
        words: table size of the tokenizer.
        places: see above.

    Raises:
        ValueError: a size that is no multiple of 8.

    Source: Levine et al., End-to-End Training of Deep Visuomotor Policies (places of features).
    """

    grid: Tensor

    def __init__(
        self,
        image_size: tuple[int, int] = (48, 48),
        *,
        views: int = 1,
        width: int = 96,
        words: int = 509,
        places: bool = False,
    ) -> None:
        super().__init__()
        if image_size[0] % 8 or image_size[1] % 8:
            raise ValueError(f"pictures of {image_size[0]} x {image_size[1]} pixels, expected multiples of 8")
        self.image_size, self.views, self.width, self.vocabulary = image_size, views, width, words
        self.tokens = HashedWords(words)
        self.embed = nn.Embedding(words, 32, padding_idx=0)
        self.read = nn.GRU(32, 48, batch_first=True)
        self.film = nn.Linear(48, 2 * (16 + 32))
        self.conv1 = nn.Conv2d(3, 16, 5, stride=2, padding=2)
        self.conv2 = nn.Conv2d(16, 32, 3, stride=2, padding=1)
        self.conv3 = nn.Conv2d(32, 32, 3, stride=2, padding=1)
        flat = 32 * (image_size[0] // 8) * (image_size[1] // 8)
        self.places = places
        if places:
            self.sharpness = nn.Parameter(torch.ones(32))
            axes = [torch.linspace(-1, 1, side // 4) for side in image_size]
            grid = torch.stack(torch.meshgrid(*axes, indexing="ij")).flatten(1)
            self.register_buffer("grid", grid, persistent=False)
            flat += 64
        self.join = nn.Linear(views * flat + 48, width)

    def forward(self, images: Tensor, goal: Sequence[str]) -> Tensor:
        """(B, V, H, W, 3) uint8 and B sentences -> (B, width) float32."""
        device = self.join.weight.device
        texts = list(dict.fromkeys(goal))  # a batch holds few different sentences
        ids, length = (torch.as_tensor(x, device=device) for x in self.tokens(texts))
        states, _ = self.read(self.embed(ids))
        place = {text: i for i, text in enumerate(texts)}
        rows = torch.tensor([place[text] for text in goal], device=device, dtype=torch.int64)
        sentence = states[torch.arange(len(ids), device=device), length - 1][rows]
        count, views = images.shape[:2]
        if not views:
            return F.relu(self.join(sentence))
        x = images.to(device).flatten(0, 1).permute(0, 3, 1, 2).to(torch.float32) / 127.5 - 1.0
        parts = self.film(sentence).repeat_interleave(views, dim=0).split([16, 16, 32, 32], dim=1)
        scale1, shift1, scale2, shift2 = (part[:, :, None, None] for part in parts)
        x = F.relu(self.conv1(x) * (1 + scale1) + shift1)
        x = F.relu(self.conv2(x) * (1 + scale2) + shift2)
        found = [F.relu(self.conv3(x)).flatten(1)]
        if self.places:
            share = torch.softmax(x.flatten(2) * self.sharpness[:, None], dim=2)
            found.append((share @ self.grid.T).flatten(1))
        x = torch.cat(found, dim=1).reshape(count, -1)
        return F.relu(self.join(torch.cat([x, sentence], dim=1)))

    def fingerprint(self) -> dict[str, object]:
        """Of the tokenizer."""
        return self.tokens.fingerprint()

    def roles(self) -> dict[str, list[nn.Parameter]]:
        """Parameters of "vision" (convolutions and what joins them) and "language" (the sentence's part)."""
        names = ("embed", "read", "film")
        language = [p for name, p in self.named_parameters() if name.startswith(names)]
        known = {id(p) for p in language}
        return {"vision": [p for p in self.parameters() if id(p) not in known], "language": language}
