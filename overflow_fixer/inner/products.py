"""Nodes that add up products: what they multiply and add up along which axes, and how many terms a sum has."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import onnx
from onnx import TensorProto

from overflow_fixer.graph.copies import insert_nodes
from overflow_fixer.graph.free_names import free_prefix
from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.graph.operators import MATRIX_PRODUCTS
from overflow_fixer.records import Dim

Shapes = Mapping[str, Sequence[Dim]]
_OPERATORS = MATRIX_PRODUCTS | {"Conv", "ConvTranspose"}


@dataclass(frozen=True)
class Product:
    """A node that adds up products of its `factors`: two, of an Einsum any number; `bias` is added too, "" where none is.

    Where it reads a copy of a constant, that constant is named (see Graph.copied_constants).
    """

    node: Node
    factors: tuple[str, ...]
    bias: str = ""


def find_products(graph: Graph) -> tuple[Product, ...]:
    """The nodes that add up products in FP32, in the order of the graph."""
    return tuple(_make_product(graph, node) for node in graph.nodes if _adds_products(graph, node))


def _make_product(graph: Graph, node: Node) -> Product:
    read = tuple(graph.copied_constants.get(name, name) for name in node.inputs)
    return Product(node, read) if node.op_type == "Einsum" else Product(node, read[:2], "".join(read[2:3]))


def _adds_products(graph: Graph, node: Node) -> bool:
    is_product = node.is_standard and node.op_type in _OPERATORS
    is_float = graph.dtypes.get(node.outputs[0]) == TensorProto.FLOAT
    return is_product and is_float


def summed_axis(node: Node, is_right: bool) -> int:
    """The axis of that factor, which is not a ConvTranspose's weights, along which products are added up.

    A kernel's places aside. From the end where it is negative; of one dimension it is that one. Of an Einsum that is_matrix_product.
    """
    if node.op_type == "Einsum":
        terms, output = _read_equation(node)
        return next(axis for axis, letter in enumerate(terms[is_right]) if letter not in (output or ""))
    if node.op_type.startswith("Conv"):
        return 1
    return -2 if sums_rows(node, is_right) else -1


def is_matrix_product(node: Node) -> bool:
    """Whether an Einsum multiplies two factors as matrices are: it sums along one axis, which both have, and no other is left out."""
    terms, output = _read_equation(node)
    if len(terms) != 2 or output is None or "." in "".join((*terms, output)):
        return False
    has_each_once = all(len(set(term)) == len(term) for term in terms)
    summed = [{letter for letter in term if letter not in output} for term in terms]
    return has_each_once and len(summed[0]) == 1 and summed[0] == summed[1]


def sums_first_axis(node: Node, rank: int, is_right: bool) -> bool:
    """Whether a sum of the node runs along the first axis of that factor, which is not an Einsum's; else it has one index there."""
    if node.op_type == "Conv":
        return not is_right
    if node.op_type == "ConvTranspose":
        return True
    return rank < 2 or (rank == 2 and sums_rows(node, is_right))


def sums_rows(node: Node, is_right: bool) -> bool:
    """Whether a factor of a MatMul or Gemm is summed along its last but one axis, and not along its last."""
    is_transposed = node.op_type == "Gemm" and bool(node.value_of("transB" if is_right else "transA", 0))
    return is_right != is_transposed


def _read_equation(node: Node) -> tuple[list[str], str | None]:
    """The terms of an Einsum, and its output; None where no arrow tells of one."""
    found = node.attribute("equation")
    equation = (found.s.decode() if found is not None else "").replace(" ", "")
    left, arrow, output = equation.partition("->")
    return left.split(","), output if arrow else None


def count_terms(product: Product, shapes: Shapes) -> float:
    """How many products make one sum, at most; NaN where that cannot be told."""
    node = product.node
    found = [shapes.get(name) for name in product.factors]
    if node.op_type == "Einsum":
        known = [shape for shape in found if shape is not None]
        return _multiply(_summed_dims(node, known)) if len(known) == len(found) else math.nan
    left, right = found
    if node.op_type == "Conv":
        return _multiply(right[1:]) if right else math.nan
    if node.op_type == "ConvTranspose":
        return _multiply((right[0], *right[2:])) / count_groups(node) if right else math.nan
    is_transposed = node.op_type == "Gemm" and bool(node.value_of("transA", 0))
    from_left = left[0 if is_transposed else -1] if left else None
    from_right = _inner_dim(node, right) if right else None
    length = next((dim for dim in (from_left, from_right) if isinstance(dim, int)), None)
    return math.nan if length is None else float(length)


def _summed_dims(node: Node, shapes: Sequence[Sequence[Dim]]) -> Sequence[Dim]:
    """The dimensions of an Einsum's letters that are not in its output, in which what "..." stands for is."""
    terms, output = _read_equation(node)
    dims: dict[str, list[Dim]] = {}
    for term, shape in zip(terms, shapes, strict=True):
        head, _, tail = term.partition("...")
        named = (*shape[: len(head)], *shape[len(shape) - len(tail) :])
        for letter, dim in zip((*head, *tail), named, strict=True):
            dims.setdefault(letter, []).append(dim)
    kept = output if output is not None else {letter for letter in dims if "".join(terms).count(letter) == 1}
    return [_longest(found) for letter, found in dims.items() if letter not in kept]


def _longest(dims: Sequence[Dim]) -> Dim:
    """The dimension that these are broadcast to: one of 1 says nothing of the others."""
    known = [dim for dim in dims if isinstance(dim, int)]
    longest = max(known, default=1)
    return longest if longest > 1 or len(known) == len(dims) else None


def count_groups(node: Node) -> int:
    """Of a convolution."""
    return int(node.value_of("group", 1))


def _inner_dim(node: Node, right: Sequence[Dim]) -> Dim:
    if node.op_type == "Gemm" and bool(node.value_of("transB", 0)):
        return right[1]
    return right[-2] if len(right) > 1 else right[0]


def _multiply(dims: Sequence[Dim]) -> float:
    return math.prod(float(dim) if isinstance(dim, int) else math.nan for dim in dims)


def gemm_factors(node: Node) -> tuple[float, float]:
    """What products and bias are multiplied with: |alpha| and |beta| of a Gemm.

    Where |alpha| is below 1, 1 and 0: the sum is there before it is made smaller, and what the bias is added to then is
    the output, which is a tensor.
    """
    factors = (node.attribute(name) if node.op_type == "Gemm" else None for name in ("alpha", "beta"))
    alpha, beta = (1.0 if factor is None else abs(factor.f) for factor in factors)
    return (alpha, beta) if alpha >= 1 else (1.0, 0.0)


def express_products(graph: Graph, products: Sequence[Product]) -> tuple[Graph, tuple[str, ...]]:
    """The graph with the same nodes once more, on magnitudes; and the tensors that these write."""
    prefix = free_prefix(graph, "inner_products_")
    behind = {p.node.label: multiply_magnitudes(p, f"{prefix}{p.node.index}_") for p in products}
    tensors = tuple(nodes[-1].output[0] for nodes in behind.values())
    return insert_nodes(graph, behind, dict.fromkeys(tensors, TensorProto.FLOAT)), tensors


def multiply_magnitudes(product: Product, prefix: str) -> list[onnx.NodeProto]:
    """The node once more, on magnitudes, and with those of its factors; the last one writes the sums."""
    inputs = [f"{prefix}{slot}" if name else "" for slot, name in enumerate(product.node.inputs)]
    nodes = [
        onnx.helper.make_node("Abs", [name], [output])
        for name, output in zip(product.node.inputs, inputs, strict=True)
        if name
    ]
    node = onnx.NodeProto()
    node.CopyFrom(product.node.proto)
    node.ClearField("name")
    node.input[:] = inputs
    node.output[:] = [f"{prefix}sum"]
    if node.op_type == "Gemm":
        kept = [attribute for attribute in node.attribute if attribute.name not in ("alpha", "beta")]
        scales = zip(("alpha", "beta"), gemm_factors(product.node), strict=True)
        del node.attribute[:]
        node.attribute.extend([*kept, *(onnx.helper.make_attribute(name, value) for name, value in scales)])
    return [*nodes, node]
