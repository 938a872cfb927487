"""Small programs over named arrays, read by a parser of our own: nothing of them is ever executed as Python."""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Callable, Collection, Mapping

import numpy as np

Columns = Mapping[str, np.ndarray]
"""name -> (N, k) float64; k = 1 for a number."""
_Node = Callable[[dict[str, np.ndarray]], np.ndarray]
LONGEST, LARGEST, DEEPEST = 2000, 200, 25
"""Characters, nodes and depth of a program."""


class ProgramError(ValueError):
    """A program that is not allowed, or does not fit its observables."""


def _reduce(way: Callable[..., np.ndarray], many: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    """Over the components of one argument, or element by element over several."""

    def made(*values: np.ndarray) -> np.ndarray:
        if len(values) == 1:
            return way(values[0], axis=1, keepdims=True)
        out = values[0]
        for value in values[1:]:
            out = many(out, value)
        return out

    return made


FUNCTIONS: dict[str, tuple[int, int, Callable[..., np.ndarray]]] = {
    "abs": (1, 1, np.abs),
    "exp": (1, 1, np.exp),
    "log": (1, 1, np.log),
    "sqrt": (1, 1, np.sqrt),
    "tanh": (1, 1, np.tanh),
    "sin": (1, 1, np.sin),
    "cos": (1, 1, np.cos),
    "clip": (3, 3, lambda x, low, high: np.minimum(np.maximum(x, low), high)),
    "where": (3, 3, lambda c, a, b: np.where(c != 0, a, b)),
    "norm": (1, 1, lambda v: np.sqrt(np.sum(v * v, axis=1, keepdims=True))),
    "dot": (2, 2, lambda a, b: np.sum(a * b, axis=1, keepdims=True)),
    "sum": (1, 1, lambda v: np.sum(v, axis=1, keepdims=True)),
    "mean": (1, 1, lambda v: np.mean(v, axis=1, keepdims=True)),
    "min": (1, 8, _reduce(np.min, np.minimum)),
    "max": (1, 8, _reduce(np.max, np.maximum)),
    "minimum": (2, 2, np.minimum),
    "maximum": (2, 2, np.maximum),
}
"""Name -> fewest and most arguments, and what it does to (N, k)."""
_BINARY: dict[type, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    ast.Add: np.add, ast.Sub: np.subtract, ast.Mult: np.multiply, ast.Div: np.divide,
}  # fmt: skip
_COMPARE: dict[type, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    ast.Lt: np.less, ast.LtE: np.less_equal, ast.Gt: np.greater, ast.GtE: np.greater_equal, ast.Eq: np.equal,
    ast.NotEq: np.not_equal,
}  # fmt: skip


class Expression:
    """A program: lines `name = expression`, then one expression, over whitelisted names.

    Allowed: numbers, names, + - * / ** (by a constant up to 8), comparisons, and, or, not, a if c else b, v[i], v[i:j],
    and `FUNCTIONS`. Everything else is refused by name: attributes, calls of anything else, loops, imports, strings.
    Comparisons give 0 or 1.

    Args:
        code: the program.
        widths: observable -> number of components.

    Raises:
        ProgramError: says what is not allowed and where, or which name is unknown, or what does not fit.
    """

    def __init__(self, code: str, widths: Mapping[str, int]) -> None:
        self.code, self.names = code, frozenset(widths)
        if len(code) > LONGEST:
            raise ProgramError(f"the program has {len(code)} characters, expected at most {LONGEST}")
        try:
            body = ast.parse(code.strip(), mode="exec").body
        except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
            raise ProgramError(f"the program cannot be read: {error}") from error
        nodes = sum(1 for part in body for _ in ast.walk(part))
        if not body or nodes > 4 * LARGEST:
            raise ProgramError(f"the program has {nodes} parts, expected 1 to {4 * LARGEST}")
        self._lines: list[tuple[str, _Node]] = []
        known = set(widths)
        for line in body[:-1]:
            if not isinstance(line, ast.Assign) or len(line.targets) != 1 or not isinstance(line.targets[0], ast.Name):
                raise _refusal(line, "lines before the last must be 'name = expression'")
            name = line.targets[0].id
            if name in widths or name in FUNCTIONS:
                raise _refusal(line, f"'{name}' has a meaning already")
            self._lines.append((name, self._build(line.value, known, 0)))
            known.add(name)
        if not isinstance(body[-1], ast.Expr):
            raise _refusal(body[-1], "the last line must be an expression, the value of the program")
        self._value = self._build(body[-1].value, known, 0)
        probe = np.random.default_rng(0)
        try:
            value = self._run({name: probe.normal(size=(3, width)) for name, width in widths.items()})
        except (ValueError, IndexError) as error:
            raise ProgramError(f"the program's parts do not fit: {error}") from error
        if value.shape[1:] not in ((1,), ()):
            raise ProgramError(f"the program gives {value.shape[1]} numbers, expected one; take norm, sum or mean")

    def __call__(self, columns: Columns) -> np.ndarray:
        """(N,) float64 of N rows; not finite where the program is not (a logarithm of 0)."""
        count = len(next(iter(columns.values())))
        return np.broadcast_to(self._run(dict(columns)), (count, 1))[:, 0].astype(np.float64)

    def _run(self, names: dict[str, np.ndarray]) -> np.ndarray:
        with np.errstate(all="ignore"):
            for name, node in self._lines:
                names[name] = node(names)
            return np.asarray(self._value(names), np.float64)

    def _build(self, node: ast.expr, known: Collection[str], depth: int) -> _Node:
        """A function of the observables for one part of the tree."""
        if depth > DEEPEST:
            raise _refusal(node, f"nested deeper than {DEEPEST}")

        def part(inner: ast.expr) -> _Node:
            return self._build(inner, known, depth + 1)

        if isinstance(node, ast.Constant):
            if isinstance(node.value, bool) or not isinstance(node.value, (int, float)) or not abs(node.value) <= 1e9:
                raise _refusal(node, "constants must be numbers up to 1e9")
            value = np.full((1, 1), float(node.value))
            return lambda _: value
        if isinstance(node, ast.Name):
            name = node.id
            if name not in known:
                near = difflib.get_close_matches(name, sorted(known), 2)
                hint = f"did you mean {' or '.join(near)}?" if near else f"there are: {', '.join(sorted(known))}"
                raise _refusal(node, f"there is no observable '{name}'; {hint}")
            return lambda names: names[name]
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
            power = node.right
            sign = 1.0
            if isinstance(power, ast.UnaryOp) and isinstance(power.op, ast.USub):
                sign, power = -1.0, power.operand
            if not isinstance(power, ast.Constant) or not isinstance(power.value, (int, float)) or power.value > 8:
                raise _refusal(node, "powers must be constants up to 8")
            base, by = part(node.left), sign * float(power.value)
            return lambda names: np.power(base(names), by)
        if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
            way, left, right = _BINARY[type(node.op)], part(node.left), part(node.right)
            return lambda names: way(left(names), right(names))
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd, ast.Not)):
            inner, kind = part(node.operand), type(node.op)
            if kind is ast.Not:
                return lambda names: (inner(names) == 0).astype(np.float64)
            return (lambda names: -inner(names)) if kind is ast.USub else inner
        if isinstance(node, ast.Compare) and all(type(op) in _COMPARE for op in node.ops):
            values = [part(item) for item in (node.left, *node.comparators)]
            ways = [_COMPARE[type(op)] for op in node.ops]
            return lambda names: _all([way(a(names), b(names)) for way, a, b in zip(ways, values, values[1:])])
        if isinstance(node, ast.BoolOp):
            values, both = [part(item) for item in node.values], isinstance(node.op, ast.And)
            if both:
                return lambda names: _all([value(names) != 0 for value in values])
            return lambda names: 1.0 - _all([value(names) == 0 for value in values])
        if isinstance(node, ast.IfExp):
            asked, yes, no = part(node.test), part(node.body), part(node.orelse)
            return lambda names: np.where(asked(names) != 0, yes(names), no(names))
        if isinstance(node, ast.Subscript):
            inner, pick = part(node.value), _pick(node.slice)
            return lambda names: _take(inner(names), pick)
        if isinstance(node, ast.Call):
            if not isinstance(node.func, ast.Name) or node.func.id not in FUNCTIONS or node.keywords:
                raise _refusal(node, f"only these may be called, without names: {', '.join(FUNCTIONS)}")
            fewest, most, function = FUNCTIONS[node.func.id]
            if not fewest <= len(node.args) <= most:
                raise _refusal(node, f"{node.func.id} takes {fewest} to {most} arguments")
            arguments = [part(item) for item in node.args]
            return lambda names: function(*(argument(names) for argument in arguments))
        raise _refusal(node, f"{type(node).__name__} is not allowed")


def _refusal(node: ast.expr | ast.stmt, why: str) -> ProgramError:
    return ProgramError(f"line {node.lineno}, column {node.col_offset + 1}: {why}")


def _all(parts: list[np.ndarray]) -> np.ndarray:
    out = parts[0]
    for part in parts[1:]:
        out = out & part
    return np.asarray(out, np.float64)


def _number(node: ast.expr | None, where: ast.expr) -> int | None:
    sign = 1
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        sign, node = -1, node.operand
    if node is None:
        return None
    if not isinstance(node, ast.Constant) or type(node.value) is not int or abs(node.value) > 10_000:
        raise _refusal(where, "components are counted by whole numbers: v[0], v[1:3]")
    return sign * node.value


def _pick(node: ast.expr) -> slice | int:
    if isinstance(node, ast.Slice):
        if node.step is not None:
            raise _refusal(node, "slices have no step")
        return slice(_number(node.lower, node), _number(node.upper, node))
    index = _number(node, node)
    assert index is not None
    return index


def _take(value: np.ndarray, pick: slice | int) -> np.ndarray:
    width = value.shape[1]
    if isinstance(pick, int):
        if not -width <= pick < width:
            raise IndexError(f"component {pick} of a value with {width}")
        return value[:, [pick]]
    out = value[:, pick]
    if not out.shape[1]:
        raise IndexError(f"no components in [{pick.start}:{pick.stop}] of a value with {width}")
    return out


def observables(state: Collection[str], size: int, actions: Collection[str]) -> dict[str, tuple[str, list[int]]]:
    """What a program may read of an interface.

    Args:
        state: names of the components of "state"; empty where nothing is named.
        size: components of "state".
        actions: names of the actions.

    Returns:
        Name -> ("state", "before" or "action", columns). Beside the components there are vectors (`tip_to_goal` where
        there are `tip_to_goal_x` and `_y`), "state" and "action" as a whole, "action_<name>", and with "before_" in
        front the state before the action.
    """
    found: dict[str, list[int]] = {}
    for i, name in enumerate(state):
        found[re.sub(r"\W", "_", name)] = [i]
        stem = re.fullmatch(r"(.+)_[xyzw]", name)
        if stem:
            found.setdefault(re.sub(r"\W", "_", stem[1]), []).append(i)
    found["state"] = list(range(size))
    out = {name: ("state", columns) for name, columns in found.items() if name.isidentifier()}
    out |= {f"before_{name}": ("before", columns) for name, (_, columns) in list(out.items())}
    for i, name in enumerate(actions):
        out["action_" + re.sub(r"\W", "_", name)] = ("action", [i])
    return {**out, "action": ("action", list(range(len(actions))))}
