"""Nodes that add up products, with their sums of magnitudes from the definition."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import product as walk
from pathlib import Path
from typing import Any

import numpy as np
from in_memory_calibration import make_model, node, save

from overflow_fixer.records import Array


@dataclass(frozen=True)
class Case:
    """One node; `constants` are the names of its inputs that the model holds."""

    op: str
    inputs: Mapping[str, Array]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    constants: str = ""
    opset: int = 17

    def build(self, folder: Path) -> tuple[Any, dict[str, Array]]:
        held = {name: value for name, value in self.inputs.items() if name in self.constants}
        fed = {name: value for name, value in self.inputs.items() if name not in held}
        at = node(self.op, " ".join(self.inputs), "y", **self.attributes)
        model = make_model([at], {name: list(v.shape) for name, v in fed.items()}, "y", held, self.opset)
        return save(model, folder), fed

    def in_range(self) -> Case:
        """The same, its first factor scaled so that FP16 can just hold the output."""
        biased = max(
            (float(np.abs(self.inputs[name]).max()) for name in "bc" if self._is_bias(name)), default=0.0
        )
        factors = {name: value for name, value in self.inputs.items() if not self._is_bias(name)}
        plain = {name: value for name, value in self.attributes.items() if name != "beta"}
        most = float(np.abs(COMPUTE[self.op](*factors.values(), **plain)).max())
        scale = (65000 - abs(self.attributes.get("beta", 1.0)) * biased) / most
        first = next(iter(factors))
        return replace(self, inputs={**self.inputs, first: (factors[first] * scale).astype(np.float32)})

    def _is_bias(self, name: str) -> bool:
        return self.op != "Einsum" and name == (*self.inputs, "")[2]

    def exact(self) -> float:
        """The largest sum |a| |b|, and what is added to it."""
        wide = [np.abs(value.astype(np.float64)) for value in self.inputs.values()]
        found = COMPUTE[self.op](*wide, **self.attributes)
        return float(found.max()) if found.size else 0.0


def _matmul(a: Array, b: Array) -> Array:
    return np.asarray(a @ b)


def _gemm(
    a: Array,
    b: Array,
    c: Array | None = None,
    *,
    alpha: float = 1,
    beta: float = 1,
    transA: int = 0,  # noqa: N803
    transB: int = 0,  # noqa: N803
) -> Array:
    """A Gemm that makes its sum smaller has the whole of it before."""
    sums, scale = (a.T if transA else a) @ (b.T if transB else b), abs(float(np.float32(alpha)))
    added = 0 if c is None else abs(float(np.float32(beta))) * c
    return scale * sums + added if scale >= 1 else sums


def _einsum(*factors: Array, equation: str) -> Array:
    return np.asarray(np.einsum(equation, *factors))


def _conv(
    x: Array,
    w: Array,
    b: Array | None = None,
    *,
    group: int = 1,
    dilations: tuple[int, int] = (1, 1),
    strides: tuple[int, int] = (1, 1),
    pads: tuple[int, ...] = (0, 0, 0, 0),
) -> Array:
    """Element by element, from the definition."""
    x = np.pad(x, ((0, 0), (0, 0), (pads[0], pads[2]), (pads[1], pads[3])))
    reach = [(size - 1) * step + 1 for size, step in zip(w.shape[2:], dilations, strict=True)]
    places = [(n - r) // s + 1 for n, r, s in zip(x.shape[2:], reach, strides, strict=True)]
    found = np.zeros((len(x), len(w), *places))
    for n, m, i, j in walk(*map(range, found.shape)):
        first = m // (len(w) // group) * w.shape[1]
        rows = slice(i * strides[0], i * strides[0] + reach[0], dilations[0])
        columns = slice(j * strides[1], j * strides[1] + reach[1], dilations[1])
        found[n, m, i, j] = (x[n, first : first + w.shape[1], rows, columns] * w[m]).sum()
    return found if b is None else found + b[:, None, None]


def _conv_transpose(
    x: Array,
    w: Array,
    b: Array | None = None,
    *,
    group: int = 1,
    strides: tuple[int, int] = (1, 1),
    dilations: tuple[int, int] = (1, 1),
) -> Array:
    """Each element of x, times the kernel, is added where it reaches."""
    reach = [(size - 1) * step + 1 for size, step in zip(w.shape[2:], dilations, strict=True)]
    places = [(n - 1) * s + r for n, r, s in zip(x.shape[2:], reach, strides, strict=True)]
    found = np.zeros((len(x), group * w.shape[1], *places))
    for n, c, i, j in walk(*map(range, x.shape)):
        first = c // (x.shape[1] // group) * w.shape[1]
        rows = slice(i * strides[0], i * strides[0] + reach[0], dilations[0])
        columns = slice(j * strides[1], j * strides[1] + reach[1], dilations[1])
        found[n, first : first + w.shape[1], rows, columns] += x[n, c, i, j] * w[c]
    return found if b is None else found + b[:, None, None]


COMPUTE = {
    "MatMul": _matmul,
    "Gemm": _gemm,
    "Einsum": _einsum,
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
}


def draw_values(rng: np.random.Generator, *shape: int) -> Array:
    return (rng.standard_normal(shape) * 300).astype(np.float32)


# of which no sum is near the output: see in_range
RNG = np.random.default_rng(108)
CONV = {"x": draw_values(RNG, 2, 4, 6, 7), "w": draw_values(RNG, 6, 4, 3, 2), "b": draw_values(RNG, 6)}
GROUPED = {"x": draw_values(RNG, 2, 4, 6, 7), "w": draw_values(RNG, 6, 2, 3, 2), "b": draw_values(RNG, 6)}
TRANSPOSED = {"x": draw_values(RNG, 2, 4, 3, 4), "w": draw_values(RNG, 4, 3, 3, 2), "b": draw_values(RNG, 6)}
CASES = [
    *(
        Case("Conv", inputs, attributes, constants)
        for inputs, attributes in (
            (CONV, {}),
            ({"x": CONV["x"], "w": CONV["w"]}, {"pads": (1, 0, 1, 1), "strides": (2, 1)}),
            (GROUPED, {"group": 2, "dilations": (2, 3)}),
        )
        for constants in ("wb", "")
    ),
    *(
        Case("ConvTranspose", inputs, attributes, constants)
        for inputs, attributes in (
            ({"x": TRANSPOSED["x"], "w": TRANSPOSED["w"]}, {"strides": (2, 1)}),
            (TRANSPOSED, {"group": 2, "strides": (2, 2), "dilations": (1, 2)}),
        )
        for constants in ("wb", "")
    ),
    *(
        Case("MatMul", {"a": draw_values(RNG, *left), "b": draw_values(RNG, *right)}, {}, constants)
        for left, right in (
            ((5, 8), (8, 3)),
            ((2, 3, 5, 8), (3, 8, 4)),
            ((8,), (8, 3)),
            ((2, 5, 8), (8,)),
            ((8,), (8,)),
        )
        for constants in ("b", "a", "")
    ),
    *(
        Case(
            "Gemm",
            {
                "a": draw_values(RNG, *((8, 5) if trans_a else (5, 8))),
                "b": draw_values(RNG, *((3, 8) if trans_b else (8, 3))),
                **({"c": draw_values(RNG, *bias)} if bias else {}),
            },
            {"transA": trans_a, "transB": trans_b, "alpha": alpha, "beta": beta},
            constants,
        )
        for trans_a, trans_b, alpha, beta, bias in (
            (0, 0, 1.0, 1.0, ()),
            (1, 0, -2.5, 1.0, (3,)),
            (0, 1, 0.5, -3.0, (5, 1)),
            (1, 1, 2.0, 0.0, (5, 3)),
        )
        for constants in ("bc", "a", "")
    ),
    *(
        Case("Einsum", {"a": draw_values(RNG, *left), "b": draw_values(RNG, *right)}, {"equation": equation})
        for equation, left, right in (
            ("ij,jk->ik", (5, 8), (8, 3)),
            ("bhqd,bhkd->bhqk", (2, 2, 3, 8), (2, 2, 4, 8)),
            ("i,jk->i", (5,), (8, 9)),
            ("ij,jk", (5, 8), (8, 3)),
            ("...ij,...jk->...ik", (2, 5, 8), (2, 8, 3)),
            ("ii,i->", (16, 16), (16,)),
            ("i , i -> ", (60,), (60,)),
        )
    ),
    *(
        Case(
            "Einsum",
            {f"x{i}": draw_values(RNG, *shape) for i, shape in enumerate(shapes)},
            {"equation": equation},
        )
        for equation, shapes in (
            ("ij,jk,kl->il", [(5, 8), (8, 6), (6, 3)]),
            ("ij->i", [(5, 900)]),
            ("...i,...i,i->...", [(2, 5, 8), (2, 5, 8), (8,)]),
        )
    ),
]


def name_case(case: Case) -> str:
    shapes = " ".join("x".join(map(str, value.shape)) for value in case.inputs.values())
    return f"{case.op} {shapes} {dict(case.attributes)} {case.constants or 'no'} constants"
