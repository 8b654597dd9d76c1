"""What a sum of products can reach on the way, by cheap bounds of sum |a| |b|.

Kernels that accumulate in FP16 exist, and TensorRT chooses them. In whatever order a kernel adds, no partial sum is
larger than the sum of magnitudes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from overflow_fixer.formats import FP16_MAX
from overflow_fixer.inner.channel_norms import ChannelNorm
from overflow_fixer.inner.products import Product, Shapes, count_terms, gemm_factors

MaxAbs = Callable[[str], float]
"""Gives the largest magnitude of a tensor, NaN where none was seen."""


@dataclass(frozen=True)
class Bound:
    """A sum of products and a bias is at most `slope` max|a| max|b| ... + `shift` max|bias|; NaN where nobody can tell."""

    product: Product
    slope: float
    shift: float

    def at(self, max_abs: MaxAbs) -> float:
        bias = max_abs(self.product.bias) * self.shift if self.product.bias else 0.0
        return self.slope * math.prod(map(max_abs, self.product.factors)) + bias


def bound_by_ranges(product: Product, shapes: Shapes) -> Bound:
    """By the number of terms K."""
    scale, shift = gemm_factors(product.node)
    return Bound(product, count_terms(product, shapes) * scale, shift)


def bound_by_sizes(product: Product, counts: Mapping[str, int]) -> Bound:
    """The same by the numbers of elements, where no shape tells K. NaN of an Einsum, and of a convolution without a bias.

    Of matrices, [.., m, K] has as many as K m and [.., K, n] as K n, each as often as it has matrices, and the output as
    m n; that has no more matrices than the two multiplied, so that K^2 is at most |a| |b| / |output|. A convolution has
    K weights for each output channel, and one number of the bias.
    """
    node, (scale, shift) = product.node, gemm_factors(product.node)
    names = (*product.factors, product.bias, node.outputs[0])
    *factors, bias, out = (float(counts.get(name, math.nan)) for name in names)
    terms = math.nan
    if node.op_type in ("MatMul", "Gemm") and out:
        terms = math.sqrt(math.prod(factors) / out)
    elif node.op_type.startswith("Conv") and bias:
        terms = factors[1] / bias
    return Bound(product, terms * scale, shift)


def bound_by_norm(product: Product, norm: ChannelNorm, max_abs: MaxAbs) -> float:
    """The same bound with what find_channel_norm gives in place of K max|b|."""
    scale, shift = gemm_factors(product.node)
    bias = max_abs(product.bias) if product.bias else 0.0
    return norm.sum * max_abs(norm.factor) * scale + bias * shift


def find_room(product: Product, max_bias: float) -> float:
    """What a sum of products may reach, before it is scaled and the bias added, so that both stay within FP16's limit."""
    scale, shift = gemm_factors(product.node)
    room = FP16_MAX - (max_bias * shift if product.bias else 0.0)
    return room / scale
