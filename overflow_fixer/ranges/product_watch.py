"""Sum |a| |b| of products, measured in the midst of a run, while what is multiplied is there."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from overflow_fixer.graph import Graph
from overflow_fixer.inner.accumulators import (
    ChannelNorm,
    Product,
    count_groups,
    count_terms,
    find_room,
    summed_axis,
)
from overflow_fixer.ranges.carried import Carried
from overflow_fixer.ranges.piecewise import PiecewiseSum, find_large_factor
from overflow_fixer.ranges.product_sessions import ProductSessions
from overflow_fixer.ranges.summaries import Summaries
from overflow_fixer.ranges.watches import Watch
from overflow_fixer.records import Array, Batch

_TENSOR = (ctypes.c_void_p, ctypes.POINTER(ctypes.c_int64), ctypes.c_int64)
_LOOK = ctypes.CFUNCTYPE(None, ctypes.c_int64, *_TENSOR, *_TENSOR)
_LARGE_BYTES = 1 << 24
"""Of a constant that is read in pieces: in one piece, it is the faster to multiply with."""
_NOTHING, _EVERYTHING = (0.0, 0.0, 0.0), (math.inf, math.inf, 0.0)
_UNKNOWN = (0.0, 0.0, 2.0)
"""What the native operators call an Allowance: the largest magnitude, the largest length, and how often it can grow."""


class ProductWatch:
    """Measures those of `products` for which there are `watches`, where no bound says that the sums are in range.

    `find_largest` gives the largest magnitude of a constant, `find_norm` what find_channel_norm does of a product.
    """

    def __init__(
        self,
        graph: Graph,
        products: Sequence[Product],
        find_largest: Callable[[str], float],
        find_norm: Callable[[int, Batch], ChannelNorm | None],
    ) -> None:
        self._graph, self._products = graph, products
        self._find_largest, self._find_norm = find_largest, find_norm
        self._sessions = ProductSessions(graph)
        self._allowed = np.full((len(products), len(_NOTHING)), _UNKNOWN)
        self._constants = {name: tuple(tensor.dims) for name, tensor in graph.constants.items()}
        self._has_own_weights = True
        self._live = graph.producers.keys() | {spec.name for spec in graph.inputs}
        self._function = _LOOK(self._look)
        self._error: BaseException | None = None
        self._batch = Batch("", {})
        self.found: dict[int, Summaries] = {}
        """Of the batch at hand, what was measured."""
        self.watches = dict(self._find_watches())

    def begin(self, batch: Batch) -> None:
        """Before it is run. Of weights that it feeds nothing is known."""
        has_own_weights = batch.feeds.keys().isdisjoint(self._graph.initializers)
        if not has_own_weights:
            self._allowed[:] = _NOTHING
        elif not self._has_own_weights:
            self._allowed[:] = _UNKNOWN
        self._has_own_weights, self._batch = has_own_weights, batch
        self.found.clear()

    def finish(self) -> None:
        """After the run. Raises what kept it from measuring."""
        if self._error is not None:
            error, self._error = self._error, None
            self._allowed[:] = _UNKNOWN
            raise error

    def _find_watches(self) -> Iterator[tuple[int, Watch]]:
        """By the product's number."""
        function = ctypes.cast(self._function, ctypes.c_void_p).value or 0
        start, step = self._allowed.ctypes.data, self._allowed.strides[0]
        for row, product in enumerate(self._products):
            node = product.node
            if slots := self._find_watched(product):
                axes = (summed_axis(node, is_right=slot == 1) for slot in slots)
                factors = tuple(zip((product.factors[slot] for slot in slots), axes, strict=True))
                groups = count_groups(node) if node.op_type.startswith("Conv") else 1
                yield row, Watch(node.outputs[0], factors, groups, function, row, start + row * step)

    def _find_watched(self, product: Product) -> list[int]:
        """The places of the factors that are computed or fed.

        None where a bias, or the weights of a convolution, are computed, and of products of any number of factors.
        """
        live = [slot for slot, name in enumerate(product.factors) if name not in self._constants]
        is_known = all(product.factors[slot] in self._live for slot in live)
        has_plain_bias = not product.bias or product.bias in self._constants
        is_whole = product.node.op_type.startswith("Conv") and live != [0]
        is_watched = is_known and has_plain_bias and not is_whole and product.node.op_type != "Einsum"
        return live if is_watched else []

    def _look(self, row: int, *tensors: Any) -> None:
        """What a native node calls in the midst of a run, from which nothing can be raised."""
        try:
            if tensors[0] is None:
                self._allow(row)
            else:
                self._measure(row, tensors)
        except BaseException as error:
            self._error = error
            self._allowed[:] = _EVERYTHING

    def _allow(self, row: int) -> None:
        """Set what is allowed for a product: first by the constant's largest element, then by its channels."""
        product, allowed = self._products[row], self._allowed[row]
        room = np.float64(find_room(product, self._find_largest(product.bias) if product.bias else 0.0))
        constant = next((name for name in product.factors if name in self._constants), None)
        with np.errstate(all="ignore"):
            if constant is None:
                allowed[:] = room, room, 0
            elif allowed[2] == 2:
                terms = count_terms(product, self._constants)
                allowed[:] = room / (terms * self._find_largest(constant)), 0, 1
            elif (norm := self._find_norm(row, self._batch)) is not None:
                allowed[:] = max(allowed[0], room / norm.sum), room / norm.length, 0
            else:
                allowed[:] = _EVERYTHING  # of a constant without elements

    def _measure(self, row: int, tensors: Sequence[Any]) -> None:
        product = self._products[row]
        watch = self.watches[row]
        given = (_view(*tensors[i : i + 3]) for i in (0, 3))
        values = {name: value for (name, _), value in zip(watch.factors, given, strict=False)}
        counts = {name: value.size for name, value in values.items()}
        place = find_large_factor(self._graph, product, counts, _LARGE_BYTES)
        if place is None:
            self.found[row] = self._sessions.measure(product, self._batch, values)
            return
        bias = Carried(self._graph, filter(None, (product.bias,))).complete(self._batch, {})
        piecewise = PiecewiseSum(self._graph, product, place, self._sessions)
        self.found[row] = piecewise.measure(self._batch, {**values, **bias})


def _view(address: int, dimensions: Any, rank: int) -> Array:
    """A tensor of the run, as long as that does not go on."""
    shape = dimensions[:rank]
    flat = (ctypes.c_float * math.prod(shape)).from_address(address)
    return np.asarray(np.ctypeslib.as_array(flat).reshape(shape))
