"""Values that nodes compute inside, where no tensor shows them: expressions that make tensors of them.

An expression is a few ONNX nodes that stand behind the node and compute the value from what the node reads. A
scan observes their tensors like any other. A newcomer adds a function here, in the table, and a test.

Read first quantities, the words for such values, and expression, which collects the nodes, of tensors and of their rows; rounding
and rounded_terms measure what FP16 would take, quiet_rows how little of a row is left. Sums of products are measured otherwise:
see products, which tells of the nodes, channel_norms and accumulators.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from onnx import NodeProto, TensorProto

from overflow_fixer.graph.copies import insert_nodes
from overflow_fixer.graph.free_names import free_prefix
from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.graph.operators import COMPARES
from overflow_fixer.inner.attention import find_in_attention
from overflow_fixer.inner.choices import find_in_choice
from overflow_fixer.inner.decisions import find_in_comparison
from overflow_fixer.inner.differences import find_in_difference
from overflow_fixer.inner.exponentials import find_in_exponential, has_exponential
from overflow_fixer.inner.expression import Expression
from overflow_fixer.inner.norms import (
    find_in_group_normalization,
    find_in_instance_normalization,
    find_in_layer_normalization,
    find_in_lp_normalization,
    find_in_mean_variance_normalization,
    find_in_rms_normalization,
)
from overflow_fixer.inner.orders import find_in_order
from overflow_fixer.inner.outputs import (
    find_in_global_lp_pool,
    find_in_log_sum,
    find_in_log_sum_exp,
    find_in_lp_pool,
)
from overflow_fixer.inner.products import Product, find_products
from overflow_fixer.inner.quantities import (
    BOUNDS,
    DIVIDED_BY,
    LONGEST_UNTOLD,
    NO_MAGNITUDES,
    NOTHING,
    SIGNED,
    Found,
    Quantity,
)
from overflow_fixer.inner.recurrent import find_in_hidden_states, find_in_lstm
from overflow_fixer.inner.sampling import find_in_grid_sample
from overflow_fixer.inner.softmax import find_in_softmax
from overflow_fixer.inner.sums import (
    find_in_exclusive_sum,
    find_in_global_average,
    find_in_l2_norm,
    find_in_mean,
    find_in_mean_of_inputs,
    find_in_sum,
)
from overflow_fixer.inner.windows import find_in_average_pool
from overflow_fixer.native import DOMAIN, declare_operators

__all__ = [
    "EXPRESSIONS",
    "LONGEST_UNTOLD",
    "NOTHING",
    "NO_MAGNITUDES",
    "SIGNED",
    "InnerValue",
    "Inside",
    "Quantity",
    "look_inside",
]

EXPRESSIONS: dict[str, Callable[[Expression], Iterator[Found]]] = {
    "LayerNormalization": find_in_layer_normalization,
    "InstanceNormalization": find_in_instance_normalization,
    "GroupNormalization": find_in_group_normalization,
    "MeanVarianceNormalization": find_in_mean_variance_normalization,
    "RMSNormalization": find_in_rms_normalization,
    "SimplifiedLayerNormalization": find_in_rms_normalization,
    "LpNormalization": find_in_lp_normalization,
    "ReduceMean": find_in_mean,
    "ReduceSum": find_in_sum,
    "ReduceL2": find_in_l2_norm,
    "GlobalAveragePool": find_in_global_average,
    "ReduceLogSum": find_in_log_sum,
    "ReduceLogSumExp": find_in_log_sum_exp,
    "LpPool": find_in_lp_pool,
    "GlobalLpPool": find_in_global_lp_pool,
    "AveragePool": find_in_average_pool,
    "Mean": find_in_mean_of_inputs,
    "Sum": find_in_mean_of_inputs,
    "CumSum": find_in_exclusive_sum,
    "Softmax": find_in_softmax,
    "LogSoftmax": find_in_softmax,
    "Attention": find_in_attention,
    "LSTM": find_in_lstm,
    "GRU": find_in_hidden_states,
    "RNN": find_in_hidden_states,
    "Sub": find_in_difference,
    "ArgMin": find_in_choice,
    "ArgMax": find_in_choice,
    "TopK": find_in_order,
    "GridSample": find_in_grid_sample,
    "Exp": find_in_exponential,
    "Mul": find_in_exponential,
    **dict.fromkeys(COMPARES, find_in_comparison),
}
_PREFIX = "inner_value_"


@dataclass(frozen=True)
class InnerValue:
    """A value inside the node labelled `node`, made the tensor `tensor` from what the node reads, `source` first.

    Of one that is of no interest there is no tensor: NOTHING. Where it `may_divide`, its smallest magnitude matters.
    """

    node: str
    source: str
    quantity: Quantity
    tensor: str
    may_divide: bool = False

    @property
    def is_bound(self) -> bool:
        return self.quantity in BOUNDS


@dataclass(frozen=True)
class Inside:
    """What there is to measure inside nodes, in the order of the graph, and the graph with a tensor for each."""

    values: tuple[InnerValue, ...]
    graph: Graph
    extremes: Mapping[str, tuple[str, str, str]]
    """For tensors that are looked at row by row, in `graph`: of each row the largest, the smallest and what shows a NaN."""
    products: tuple[Product, ...]
    """The nodes that add up products, whose sums of magnitudes are measured where a bound asks for it."""


def look_inside(graph: Graph, is_native: bool = False) -> Inside:
    """The expressions of all nodes that compute FP32; `is_native`: with the operators of overflow_fixer.native too."""
    nodes = [node for node in graph.nodes if node.op_type in EXPRESSIONS and _is_asked(graph, node)]
    if not nodes:
        return Inside((), graph, {}, find_products(graph))
    prefix, shapes = free_prefix(graph, _PREFIX), graph.sure_shapes
    values: list[InnerValue] = []
    behind: dict[str, list[NodeProto]] = {}
    extremes: dict[str, tuple[str, str, str]] = {}
    constants: dict[object, str] = {}
    for node in nodes:
        expression = Expression(graph, node, f"{prefix}{node.index}_", constants, shapes, is_native)
        found = EXPRESSIONS[node.op_type](expression)
        divisors = DIVIDED_BY.get(node.op_type, ())
        values += [InnerValue(node.label, node.inputs[0], *one, one[0] in divisors) for one in found]
        if expression.nodes:
            behind[node.label] = expression.nodes
        if expression.extremes is not None:
            extremes[expression.source] = expression.extremes
    tensors = chain((value.tensor for value in values if value.tensor != NOTHING), *extremes.values())
    return Inside(
        tuple(values), _insert(graph, behind, tensors) if values else graph, extremes, find_products(graph)
    )


def _insert(graph: Graph, behind: Mapping[str, Sequence[NodeProto]], tensors: Iterable[str]) -> Graph:
    statistics = [node.output[-1] for node in chain(*behind.values()) if node.domain == DOMAIN]
    dtypes = {**dict.fromkeys(tensors, TensorProto.FLOAT), **dict.fromkeys(statistics, TensorProto.DOUBLE)}
    expressed = insert_nodes(graph, behind, dtypes)
    if statistics:
        declare_operators(expressed.model)
    return expressed


def _is_asked(graph: Graph, node: Node) -> bool:
    computes_float = node.is_standard and graph.dtypes.get(node.inputs[0]) == TensorProto.FLOAT
    return computes_float and (node.op_type != "Mul" or has_exponential(graph, node))
