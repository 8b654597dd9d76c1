"""Sum |a| |b| of products, measured in the midst of a run, while what is multiplied is there."""

from __future__ import annotations

import ctypes
import math
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from overflow_fixer.errors import ModelError
from overflow_fixer.formats import FP16_MAX
from overflow_fixer.graph.folding import Folder
from overflow_fixer.graph.model import Graph
from overflow_fixer.inner.accumulators import find_room
from overflow_fixer.inner.channel_norms import ChannelNorm
from overflow_fixer.inner.products import Product, count_groups, count_terms, is_matrix_product, summed_axis
from overflow_fixer.ranges.carried import Carried
from overflow_fixer.ranges.lasting import find_lasting
from overflow_fixer.ranges.midst import Midst
from overflow_fixer.ranges.piecewise import PiecewiseSum, find_large_factor
from overflow_fixer.ranges.product_sessions import ProductSessions
from overflow_fixer.ranges.summaries import Summaries, merge_summaries
from overflow_fixer.ranges.watches import Watch
from overflow_fixer.records import Array, Batch

_TENSOR = (ctypes.c_void_p, ctypes.POINTER(ctypes.c_int64), ctypes.c_int64)
_LOOK = ctypes.CFUNCTYPE(None, ctypes.c_int64, *_TENSOR, *_TENSOR)
_LARGE_BYTES = 1 << 24
"""Of a constant that is read in pieces: in one piece, it is the faster to multiply with."""
_MOST_DIMENSIONS = 64
_EITHER: tuple[list[int], ...] = ([0], [1], [0, 1])
_WATCHED = {
    "Conv": ([0], [0, 1]),
    "ConvTranspose": ([0],),
    "MatMul": _EITHER,
    "Gemm": _EITHER,
    "Einsum": ([0, 1],),
}
"""Of operators, the places of factors of which none is constant."""
_NO_BATCH = Batch("", {})
_UNKNOWN, _EVERYTHING = (0.0, 0.0, 2.0), (math.inf, math.inf, 0.0)
"""What the native operators call an Allowance: the largest magnitude, the largest length, and how often it can grow."""


class ProductWatch:
    """Measures those of `products` for which there are `watches`, where no bound says that the sums are in range.

    `midst` is that of the runs in which the graph's nodes take part, once or, in a body, any number of times.
    `find_largest` gives the largest magnitude of a constant, `find_norm` what find_channel_norm does of a product;
    `select` gives, of a run's batch, what it feeds to the graph.
    """

    def __init__(
        self,
        graph: Graph,
        products: Sequence[Product],
        find_largest: Callable[[str], float],
        find_norm: Callable[[int, Batch], ChannelNorm | None],
        midst: Midst,
        select: Callable[[Batch], Batch],
    ) -> None:
        self._graph, self._products, self._midst, self._select = graph, products, midst, select
        self._find_largest, self._find_norm = find_largest, find_norm
        self._sessions = ProductSessions(graph)
        self._allowed = np.full((len(products), len(_UNKNOWN)), _UNKNOWN)
        self._constants = graph.constants.keys()
        self._fed: frozenset[str] = frozenset()
        self._biases = _read_lasting_biases(graph, products)
        self._live = graph.producers.keys() | {spec.name for spec in graph.inputs}
        look = weakref.WeakMethod(self._look)  # a function that held this would keep all of it to the end
        self._function = _LOOK(lambda row, *tensors: look()(row, *tensors))  # type: ignore[misc]
        self._has_failed = False
        self._batch = _NO_BATCH
        self.found: dict[int, Summaries] = {}
        """Of the last run, what was measured."""
        self.watches = dict(self._find_watches())
        midst.before_each(self._begin)

    def _begin(self, batch: Batch) -> None:
        """Of weights that it feeds, or the one before it did, nothing is known."""
        batch = self._select(batch)
        if self._has_failed:
            self._allowed[:], self._has_failed = _UNKNOWN, False
        fed = frozenset(batch.feeds.keys() & self._constants)
        changed = fed | self._fed
        for row, product in enumerate(self._products) if changed else ():
            if not changed.isdisjoint((*product.factors, product.bias)):
                self._allowed[row] = _UNKNOWN
        self._fed, self._batch = fed, batch
        self.found.clear()

    def _find_watches(self) -> Iterator[tuple[int, Watch]]:
        """By the product's number."""
        function = ctypes.cast(self._function, ctypes.c_void_p).value or 0
        start, step = self._allowed.ctypes.data, self._allowed.strides[0]
        for row, product in enumerate(self._products):
            node = product.node
            if slots := self._find_watched(product):
                axes = (summed_axis(node, is_right=slot == 1) for slot in slots)
                factors = tuple(zip((product.factors[slot] for slot in slots), axes, strict=True))
                is_convolution = node.op_type.startswith("Conv")
                groups = count_groups(node) if is_convolution else 1
                place = start + row * step
                has_kernel = is_convolution and len(slots) == 2
                shown = product.factors[1] if is_convolution and not has_kernel else ""
                yield row, Watch(node.outputs[0], factors, groups, function, row, place, has_kernel, shown)

    def _find_watched(self, product: Product) -> list[int]:
        """The places of the factors that are computed or fed.

        None where a bias is computed of more than constants, or only the weights of a convolution, or those of a
        ConvTranspose, and of an Einsum that is not as a product of matrices.
        """
        if product.node.op_type == "Einsum" and not is_matrix_product(product.node):
            return []
        live = [slot for slot, name in enumerate(product.factors) if name not in self._constants]
        is_known = all(product.factors[slot] in self._live for slot in live)
        has_plain_bias = not product.bias or product.bias in self._constants or product.bias in self._biases
        is_watched = live in _WATCHED.get(product.node.op_type, ())
        return live if is_known and has_plain_bias and is_watched else []

    def _look(self, row: int, *tensors: Any) -> None:
        """What a native node calls in the midst of a run, from which nothing can be raised."""
        try:
            if self._midst.error is not None:
                self._allowed[row], self._has_failed = _EVERYTHING, True
            elif tensors[0] is None:
                self._allow(row)
            else:
                self._measure(row, tensors)
        except BaseException as error:
            self._midst.fail(error)
            self._allowed[row] = _UNKNOWN

    def _allow(self, row: int) -> None:
        """Set what is allowed: first, for all products that wait for it, by the constant's largest element, then by its channels."""
        with np.errstate(all="ignore"):
            if self._allowed[row, 2] == _UNKNOWN[2]:
                rows = [row for row in self.watches if self._allowed[row, 2] == _UNKNOWN[2]]
                found = np.array([self._allow_by_largest(row) for row in rows])
                self._allowed[rows, 0] = found[:, 0] / found[:, 1]
                self._allowed[rows, 1:] = found[:, 2:]
            else:
                self._allow_by_channels(row)

    def _allow_by_largest(self, row: int) -> tuple[float, float, float, float]:
        """An allowance, its magnitude as what is to be divided and by what.

        Everything, where FP16 cannot hold a constant: the node runs in FP32 anyway.
        """
        product = self._products[row]
        largest = self._find_largest_of(product)
        if any(one > FP16_MAX for one in largest.values()):
            return _EVERYTHING[0], 1, *_EVERYTHING[1:]
        room = find_room(product, largest.get(product.bias, 0.0))
        constant = next((largest[name] for name in product.factors if name in largest), None)
        if constant is None:
            return room, 1, room, 0
        return room, count_terms(product, self._graph.fixed_dims) * constant, 0, 1

    def _allow_by_channels(self, row: int) -> None:
        product, allowed = self._products[row], self._allowed[row]
        norm = self._find_norm(row, self._batch)
        if norm is None:  # fed
            allowed[1:] = 0
        else:
            room = np.float64(find_room(product, self._find_largest_of(product).get(product.bias, 0.0)))
            allowed[:] = np.fmax(allowed[0], room / norm.sum), room / norm.length, 0

    def _find_largest_of(self, product: Product) -> dict[str, float]:
        """The largest magnitudes of its constants in this batch, and of a bias that is made of such."""
        held = {name: self._batch.feeds[name] for name in self._fed} | self._biases
        names = (name for name in (*product.factors, product.bias) if name in held or name in self._constants)
        return {
            name: float(np.abs(held[name]).max(initial=0)) if name in held else self._find_largest(name)
            for name in names
        }

    def _measure(self, row: int, tensors: Sequence[Any]) -> None:
        product = self._products[row]
        watch = self.watches[row]
        live = [name for name, _ in watch.factors]
        shown = [*live, watch.constant] if watch.constant else live
        values = {name: self._view(name, *tensors[3 * i : 3 * i + 3]) for i, name in enumerate(shown)}
        if any((values[name] < -FP16_MAX).any() for name in live):  # what is told need not tell
            return
        values |= {name: self._biases[name] for name in (product.bias,) if name in self._biases}
        counts = {name: value.size for name, value in values.items()}
        place = find_large_factor(self._graph, product, counts, _LARGE_BYTES)
        if place is None:
            found = self._sessions.measure(product, self._batch, values)
        else:
            rest = [name for name in (product.bias,) if name and name not in values]
            bias = Carried(self._graph, rest).complete(self._batch, {})
            piecewise = PiecewiseSum(self._graph, product, place, self._sessions)
            found = piecewise.measure(self._batch, {**values, **bias})
        before = self.found.get(row)
        self.found[row] = found if before is None else merge_summaries(before, found)

    def _view(self, name: str, address: int, dimensions: Any, rank: int) -> Array:
        """A tensor of the run, as long as that does not go on."""
        if rank > _MOST_DIMENSIONS:
            raise ModelError(
                f"Tensor {name} has {rank} dimensions in batch {self._batch.name}. Expected at most {_MOST_DIMENSIONS}, as "
                "numpy has, of what is multiplied. Flatten it in the model."
            )
        shape = dimensions[:rank]
        if not math.prod(shape):  # whose address may be null
            return np.empty(shape, np.float32)
        flat = (ctypes.c_float * math.prod(shape)).from_address(address)
        return np.asarray(np.ctypeslib.as_array(flat).reshape(shape))


def _read_lasting_biases(graph: Graph, products: Sequence[Product]) -> dict[str, Array]:
    """By name the biases that are computed of constants, as a quantized model's are, and one in FP16 that is cast."""
    computed = {product.bias for product in products if product.bias in graph.producers}
    lasting = computed & find_lasting(graph) if computed else computed
    found = Folder(graph).values(sorted(lasting)) if lasting else {}
    return {name: value for name, value in found.items() if value is not None}
