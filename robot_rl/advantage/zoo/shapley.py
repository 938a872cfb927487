"""Credit for facts by their Shapley value: the mean gain of a fact over all orders in which the facts could come."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch

from robot_rl.advantage.arrays import in_torch
from robot_rl.advantage.kinds import Array, match_dtype, require_option

EXACT_LIMIT = 8
"""Up to this many facts all subsets are evaluated; the table of a fact set has 2^n entries."""


@in_torch
def shapley(value: Array) -> Array:
    """Exact Shapley values from the value of every subset.

    Args:
        value: (..., 2^n) value of each subset; bit i of the index says whether fact i is in it, so index 0 is the
            empty set.

    Returns:
        (..., n) values; their sum is value(all) - value(none).

    Raises:
        ValueError: the last dimension is not a power of two.

    Source: Shapley 1953; used for information gain in ProMed.
    """
    size = int(value.shape[-1])
    n = size.bit_length() - 1
    if size < 1 or size != 1 << n:
        raise ValueError(f"value has {size} entries, expected 2^n: one per subset of n facts")
    v = value.double()
    members = [bin(i).count("1") for i in range(size)]
    out = []
    for i in range(n):
        without = [s for s in range(size) if not s >> i & 1]
        total = 0.0
        for s in without:
            factor = math.factorial(members[s]) * math.factorial(n - members[s] - 1) / math.factorial(n)
            total = total + factor * (v[..., s | 1 << i] - v[..., s])
        out.append(total)
    return match_dtype(torch.stack(out, -1) if out else v[..., :0], value)


def shapley_sampled(
    value_of: Callable[[frozenset[int]], float],
    n: int,
    *,
    permutations: int = 30,
    seed: int = 0,
    pairs: str = "antithetic",
) -> np.ndarray:
    """Shapley values from random orders of the facts.

    Args:
        value_of: value of a set of fact indices; called once per set.
        n: number of facts.
        permutations: number of orders.
        seed: of the own generator.
        pairs: "antithetic" follows every order by its reverse, which lowers the variance; "independent" does not.

    Returns:
        (n,) float64; the sum equals value(all) - value(none) for any number of orders.

    Raises:
        ValueError: no permutation, or an unknown option.

    Source: permutation sampling, Castro et al. 2009; antithetic pairs are ours.
    """
    require_option("pairs", pairs, ["antithetic", "independent"])
    if permutations < 1:
        raise ValueError(f"permutations is {permutations}, expected at least one")
    generator = np.random.default_rng(seed)
    known: dict[frozenset[int], float] = {}
    total = np.zeros(n)
    order = np.arange(n)
    for i in range(permutations):
        order = order[::-1] if pairs == "antithetic" and i % 2 else generator.permutation(n)
        chosen: frozenset[int] = frozenset()
        before = known.setdefault(chosen, float(value_of(chosen))) if chosen not in known else known[chosen]
        for fact in order:
            chosen = chosen | {int(fact)}
            if chosen not in known:
                known[chosen] = float(value_of(chosen))
            total[fact] += known[chosen] - before
            before = known[chosen]
    return total / permutations


def shapley_gain(
    value_of: Callable[[frozenset[int]], float], n: int, *, permutations: int = 30, seed: int = 0
) -> np.ndarray:
    """Shapley values, exact for few facts and sampled for many.

    Args:
        value_of: probability of the correct outcome given a set of facts.
        n: number of facts.
        permutations: orders to sample when n > 8.
        seed: of the sampling.

    Returns:
        (n,) float64.

    Source: ProMed, Shapley information gain (README; permutations from a port).
    """
    if n > EXACT_LIMIT:
        return shapley_sampled(value_of, n, permutations=permutations, seed=seed)
    table = [value_of(frozenset(i for i in range(n) if s >> i & 1)) for s in range(1 << n)]
    return shapley(np.array(table, dtype=np.float64))


@in_torch
def credit_share(phi: Array, *, temperature: float = 2.0) -> Array:
    """Softmax of the credits over the facts, for handing out a fixed reward.

    Args:
        phi: (..., n) credits.
        temperature: divides the credits; large values share evenly.

    Returns:
        (..., n) positive shares that sum to 1.

    Raises:
        ValueError: temperature is not positive.

    Source: a port of ProMed.
    """
    if temperature <= 0:
        raise ValueError(f"temperature is {temperature}, expected a positive number")
    scaled = phi.double() / temperature
    shifted = scaled - scaled.amax(-1, keepdim=True)
    weight = torch.exp(shifted)
    total = weight.sum(-1)
    return match_dtype(weight / total[..., None], phi)
