"""Attention over limbs whose outputs turn with the world about the vertical, exactly and without training for it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from robot_rl.types import IOSpec

_VECTOR = re.compile(r"limb(\d+)\.(\w+)\.([xyz])$")
_SCALAR = re.compile(r"limb(\d+)\.(\w+)$")
_JOINT = re.compile(r"limb(\d+)\.axis(\d+)$")


@dataclass(frozen=True)
class LimbLayout:
    """Where vectors and numbers of every limb lie in "state", and which joint every action moves.

    Attributes:
        vectors: (L, V, 3) columns of "state", by limb, vector and x, y, z.
        scalars: (L, S) columns of "state".
        vector_names: V names.
        fixed: columns among V of "gravity" and "target", which every map of vectors sees as they are.
        axes: columns among V of "axis0", "axis1", ...
        joints: (A, 2) limb and number of the axis of every action.
    """

    vectors: Tensor
    scalars: Tensor
    vector_names: tuple[str, ...]
    fixed: tuple[int, ...]
    axes: tuple[int, ...]
    joints: Tensor

    @classmethod
    def of(cls, io: IOSpec) -> LimbLayout:
        """Read names like "limb0.velocity.x", "limb0.height" and actions like "limb1.axis0".

        Raises:
            ValueError: names of another form, limbs that differ, no gravity, no target or no axis.
        """
        vectors: dict[int, dict[str, dict[str, int]]] = {}
        scalars: dict[int, dict[str, int]] = {}
        for column, name in enumerate(io.obs_names):
            if found := _VECTOR.match(name):
                limb, what, axis = int(found[1]), found[2], found[3]
                vectors.setdefault(limb, {}).setdefault(what, {})[axis] = column
            elif found := _SCALAR.match(name):
                scalars.setdefault(int(found[1]), {})[found[2]] = column
            else:
                raise ValueError(
                    f"observation '{name}' is neither 'limb<i>.<vector>.<x|y|z>' nor 'limb<i>.<number>'; this network "
                    "reads worlds that name their limbs, such as env=limbs"
                )
        limbs = len(vectors)
        if sorted(vectors) != list(range(limbs)) or sorted(scalars) != list(range(limbs)) or not limbs:
            raise ValueError(f"limbs {sorted(vectors)} have vectors and {sorted(scalars)} numbers; expected 0 to L - 1")
        names, numbers = tuple(vectors[0]), tuple(scalars[0])
        for limb in range(limbs):
            whole = all(sorted(parts) == ["x", "y", "z"] for parts in vectors[limb].values())
            if set(vectors[limb]) != set(names) or set(scalars[limb]) != set(numbers) or not whole:
                raise ValueError(f"limb{limb} observes other things than limb0; expected the same x, y, z of each")
        axes = tuple(i for i, name in enumerate(names) if re.match(r"axis\d+$", name))
        missing = [name for name in ("gravity", "target", "axis0") if name not in names]
        if missing:
            raise ValueError(f"limbs observe the vectors {names}; expected {missing} among them")
        joints = []
        for name in io.action_names:
            found = _JOINT.match(name)
            if not found or int(found[1]) >= limbs or f"axis{found[2]}" not in names:
                raise ValueError(f"action '{name}' is not 'limb<i>.axis<j>' of an observed axis")
            joints.append((int(found[1]), int(found[2])))
        table = [[[vectors[i][name][a] for a in "xyz"] for name in names] for i in range(limbs)]
        return cls(
            torch.tensor(table),
            torch.tensor([[scalars[i][name] for name in numbers] for i in range(limbs)]),
            names,
            (names.index("gravity"), names.index("target")),
            tuple(sorted(axes, key=lambda i: int(names[i][4:]))),
            torch.tensor(joints),
        )


def traversals(parents: Sequence[int]) -> list[list[int]]:
    """Places of every limb in pre-, in- and post-order of the tree; in-order: first child, limb, other children.

    Raises:
        ValueError: not a tree with its root at 0.
    """
    limbs = len(parents)
    if not limbs or parents[0] != -1 or any(not 0 <= parents[i] < i for i in range(1, limbs)):
        raise ValueError(f"parents are {list(parents)}; expected -1 first, then for every limb an earlier one")
    children = [[j for j in range(1, limbs) if parents[j] == i] for i in range(limbs)]

    def visit(i: int, when: str) -> list[int]:
        below = [visit(j, when) for j in children[i]]
        first, rest = below[:1], below[1:]
        cut = {"pre": ([], below), "in": (first, rest), "post": (below, [])}[when]
        return [*(x for part in cut[0] for x in part), i, *(x for part in cut[1] for x in part)]

    orders = [visit(0, when) for when in ("pre", "in", "post")]
    return [[order.index(i) for i in range(limbs)] for order in orders]


def relations(parents: Sequence[int]) -> list[list[int]]:
    """(L, L) 0 itself, 1 parent, 2 child, 3 sibling, 4 any other: how the second limb stands to the first."""
    count = len(parents)

    def kind(i: int, j: int) -> int:
        if i == j:
            return 0
        return 1 if parents[i] == j else 2 if parents[j] == i else 3 if parents[i] == parents[j] else 4

    return [[kind(i, j) for j in range(count)] for i in range(count)]


class Invariants(nn.Module):
    """phi, n and [Z W | D] of vectors Z: numbers that no rotation about the vertical changes.

    M = [Z W | D]^T [Z W | D] holds all inner products, n = |M| + 1 its size, phi is a network of M.

    Source: alpc91/SGRL, SEActor.py.
    """

    def __init__(self, columns: int, width: int, fixed: int = 2) -> None:
        """`columns` of Z, `width` of phi."""
        super().__init__()
        self.turn = nn.Linear(columns, columns, bias=False)  # a bias would point somewhere in the world
        size = columns + fixed
        self.read = nn.Sequential(nn.Linear(size * size, width), nn.ReLU(), nn.Linear(width, width))

    def forward(self, z: Tensor, fixed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(..., width), (..., 1) and (..., 3, columns + 2) of z (..., 3, columns) and fixed (..., 3, 2)."""
        joined = torch.cat([self.turn(z), fixed], -1)
        inner = joined.transpose(-1, -2) @ joined
        size = inner.flatten(-2).norm(dim=-1, keepdim=True) + 1.0
        return self.read(inner.flatten(-2)), size, joined


class SetBlock(nn.Module):
    """Attention among limbs, then a network per limb, both on numbers (B, L, E) and vectors (B, L, 3, C)."""

    def __init__(self, columns: int, width: int, heads: int, kinds: int) -> None:
        """`kinds`: relations that a bias of the scores is learnt for; 0: none."""
        super().__init__()
        self.heads, self.columns = heads, columns
        self.seen, self.after = Invariants(columns, width), Invariants(columns, width)
        self.ask = nn.Linear(2 * width, 3 * width)
        self.carry = nn.Linear(columns, columns, bias=False)
        self.out, self.out_vector = (
            nn.Linear(width, width),
            nn.Linear(columns + 2 * heads, columns, bias=False),
        )
        self.bias = nn.Parameter(torch.zeros(heads, kinds)) if kinds else None
        self.numbers = nn.Sequential(nn.Linear(2 * width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width))
        self.mix = nn.Sequential(nn.Linear(2 * width, width), nn.ReLU(), nn.Linear(width, (columns + 2) ** 2))
        self.back = nn.Linear(columns + 2, columns, bias=False)
        self.norm, self.norm_after = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, h: Tensor, z: Tensor, fixed: Tensor, relation: Tensor) -> tuple[Tensor, Tensor]:
        """New numbers and vectors."""
        size, limbs, width = h.shape
        phi, n, _ = self.seen(z, fixed)
        q, k, v = (self.ask(torch.cat([phi, h], -1)) / n).view(size, limbs, 3, self.heads, -1).unbind(2)
        score = torch.einsum("blhd,bmhd->bhlm", q, k) / (2.0 * width / self.heads) ** 0.5
        if self.bias is not None:
            score = score + self.bias[:, relation]
        share = score.softmax(-1)
        told = torch.einsum("bhlm,bmhd->blhd", share, v).reshape(size, limbs, width)
        carried = self.carry(z).view(size, limbs, 3, self.heads, -1)
        # every head also gathers the fixed vectors of the limbs that it looks at
        carried = torch.cat([carried, fixed[:, :, :, None].expand(-1, -1, -1, self.heads, -1)], -1)
        brought = torch.einsum("bhlm,bmxhc->blxhc", share, carried).flatten(3)
        h, z = self.norm(h + self.out(told)), z + self.out_vector(brought)
        phi, n, joined = self.after(z, fixed)
        both = torch.cat([phi, h], -1)
        turned = joined @ (self.mix(both) / n).unflatten(-1, (self.columns + 2, self.columns + 2))
        return self.norm_after(h + self.numbers(both) / n), z + self.back(turned)


class SetNet(nn.Module):
    """Subequivariant transformer over limbs: means of all joints, and a value.

    Under a rotation about gravity of all vectors, numbers and therefore means and value stay as they are, and the
    vectors inside turn along. Under other rotations they change, because gravity is an input: subequivariance.

    Source: alpc91/SGRL, SEActor.py and subequivariant_attentions.py (published sizes: 32 columns, width 128).
    """

    def __init__(
        self, layout: LimbLayout, parents: Sequence[int], *, columns: int, width: int, layers: int, heads: int
    ) -> None:
        """Sizes as in `SetPpo`."""
        super().__init__()
        limbs, vectors = layout.vectors.shape[:2]
        if len(parents) != limbs:
            raise ValueError(f"parents has {len(parents)} entries, expected one for each of the {limbs} limbs")
        if width % heads or columns % heads:
            raise ValueError(f"width, columns, heads are {width}, {columns}, {heads}; expected multiples of the heads")
        self.fixed, self.axes = list(layout.fixed), list(layout.axes)
        for name, value in (
            ("vector_at", layout.vectors), ("scalar_at", layout.scalars), ("joints", layout.joints),
            ("orders", torch.tensor(traversals(parents))), ("relation", torch.tensor(relations(parents))),
        ):  # fmt: skip
            self.register_buffer(name, value, persistent=False)
        self.embed = nn.Linear(vectors, columns, bias=False)
        self.first = Invariants(columns, width)
        self.begin = nn.Sequential(
            nn.Linear(width + layout.scalars.shape[1], width), nn.ReLU(), nn.Linear(width, width)
        )
        self.order = nn.ParameterList([nn.Parameter(torch.zeros(limbs, width)) for _ in range(3)])
        self.blocks = nn.ModuleList(SetBlock(columns, width, heads, 0 if i else 5) for i in range(layers))
        self.last = Invariants(columns, width)
        self.steer = nn.Sequential(nn.Linear(2 * width, width), nn.ReLU(), nn.Linear(width, columns + 2))
        self.judge = nn.Sequential(nn.Linear(2 * width, width), nn.ReLU(), nn.Linear(width, 1))

    vector_at: Tensor
    scalar_at: Tensor
    joints: Tensor
    orders: Tensor
    relation: Tensor

    def forward(self, state: Tensor) -> tuple[Tensor, Tensor]:
        """Means (B, A) in (-1, 1) and values (B,) of states (B, S)."""
        pushed, given, value = self._run(state)
        axes = given[..., self.axes]  # (B, L, 3, axes)
        at, number = self.joints.unbind(1)
        # <axis, o>: an axis that a limb lacks is zero, and so is what it would do
        return torch.einsum("bax,bax->ba", axes[:, at, :, number].transpose(0, 1), pushed[:, at]).tanh(), value

    def vectors(self, state: Tensor) -> Tensor:
        """(B, L, 3) the vectors o that the joints' axes are multiplied with; they turn with the world."""
        return self._run(state)[0]

    def _run(self, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        given = state[:, self.vector_at].transpose(-1, -2)  # (B, L, 3, V)
        fixed, z = given[..., self.fixed], self.embed(given)
        phi, n, _ = self.first(z, fixed)
        h = self.begin(torch.cat([phi, state[:, self.scalar_at]], -1)) / n
        for table, place in zip(self.order, self.orders):
            h = h + table[place]
        for block in self.blocks:
            h, z = block(h, z, fixed, self.relation)
        phi, n, joined = self.last(z, fixed)
        both = torch.cat([phi, h], -1)
        o = (joined @ (self.steer(both) / n)[..., None])[..., 0]
        return o, given, self.judge(both)[..., 0].mean(1)
