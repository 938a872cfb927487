"""The network of a critic that can be shown its goal: frames of a reference become a code where a sentence's would be.

Each frame of the reference is read by the same trunk as the frames that are judged. Queries of its own are compared
with every place of the feature map beside its change since the reference's first frame, so that one of them may look
where something came to lie; what they find, distances between them and between what every sentence looks at, and the
announced progress make the frame's code. Attention over the frames gives the code of what is shown. From there on a
goal is a goal: the same queries, the same gate, the same heads, whether it was told, shown or both.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from robot_rl.policies.nets.progress_net import _MAPS, CriticNet
from robot_rl.policies.nets.reference import BOTH

TEXT = 64


class ContextNet(CriticNet):
    """`CriticNet` under goals that are told, shown or both.

    Args:
        size: (height, width) of the pictures; multiples of 8.
        width: of the reading.
        words: table size of the tokenizer.
        pointers: queries of a sentence; as many more are the same for every goal, and as many look at references.
        code: width of the code of a reference's frame.
    """

    def __init__(
        self,
        size: tuple[int, int] = (48, 48),
        *,
        width: int = 128,
        words: int = 509,
        pointers: int = 6,
        code: int = 128,
    ) -> None:
        super().__init__(size, width=width, words=words, conditioning="maps", pointers=pointers)
        channels = 2 * _MAPS[1]  # the map and its change
        self.look = nn.Parameter(torch.randn(pointers, channels))
        features = pointers * (3 + channels) + pointers * (3 + _MAPS[1]) + self.apart.shape[1]
        self.frame_code = nn.Sequential(
            nn.Linear(features + 1, code), nn.LayerNorm(code), nn.ReLU(), nn.Linear(code, code), nn.ReLU()
        )
        self.attend = nn.Linear(code, 2)
        self.show = nn.Sequential(nn.Linear(3 * code, code), nn.ReLU(), nn.Linear(code, TEXT))
        # what is added to a goal by how it is given; the first is the state "no reference"
        self.given = nn.Parameter(torch.zeros(3, TEXT))
        self.agree = nn.Sequential(nn.Linear(3 * TEXT, TEXT), nn.ReLU(), nn.Linear(TEXT, TEXT))

    def encode_reference(self, frames: Tensor, progress: Tensor, there: Tensor) -> Tensor:
        """References -> their codes.

        Args:
            frames: (M, R, H, W, 3) uint8 or float in [0, 255].
            progress: (M, R), announced.
            there: (M, R) bool; shorter references are filled up behind.

        Returns:
            (M, 64).
        """
        count, length = frames.shape[:2]
        x = frames.flatten(0, 1).permute(0, 3, 1, 2).to(torch.float32) * (1 / 127.5) - 1.0
        keys = F.relu(self.conv2(F.relu(self.conv1(x)))).flatten(2).unflatten(0, (count, length))
        both = torch.cat([keys, keys - keys[:, :1]], dim=2).flatten(0, 1)
        found = self._point(self.look.expand(len(both), -1, -1), both)
        always = self._point(self.query.expand(len(both), -1, -1), keys.flatten(0, 1))
        spots = torch.cat([found[..., :2], always[..., :2]], dim=1)
        between = (spots[:, self.apart[0]] - spots[:, self.apart[1]]).square().sum(dim=2)
        parts = [found.flatten(1), always.flatten(1), (between + 1e-6).sqrt(), progress.flatten()[:, None]]
        code = self.frame_code(torch.cat(parts, dim=1)).view(count, length, -1)
        weight = self.attend(code).masked_fill(~there[..., None], -torch.inf).softmax(dim=1)
        looked = (weight.transpose(1, 2) @ code).flatten(1)
        last = code[torch.arange(count, device=code.device), there.sum(dim=1) - 1]
        return self.show(torch.cat([looked, last], dim=1))

    def goal(self, told: Tensor, shown: Tensor, how: Tensor) -> Tensor:
        """Codes of goals.

        Args:
            told: (N, 64) codes of sentences; whatever where there is none.
            shown: (N, 64) codes of references; whatever where there is none.
            how: (N,) int64, `TOLD`, `SHOWN` or `BOTH` of `policies/nets/reference.py`.

        Returns:
            (N, 64), in the place of a sentence's code.
        """
        share = torch.tensor([1.0, 0.0, 0.5], device=told.device)[how][:, None]
        # whether the two agree is not to be read off their mean
        extra = self.agree(torch.cat([told, shown, (told - shown).abs()], dim=1))
        return share * told + (1 - share) * shown + self.given[how] + extra * (how == BOTH)[:, None]
