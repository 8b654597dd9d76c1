"""What Attention computes inside: the products of queries and keys, before they are scaled or after."""

from __future__ import annotations

from collections.abc import Iterator

from overflow_fixer.inner.expression import Expression
from overflow_fixer.inner.quantities import Found


def find_in_attention(expression: Expression) -> Iterator[Found]:
    """Q K^T of every head, masked places too; by a scale over 1 scaled. Heads of queries that share a head of keys are put behind
    one another.

    ONNX multiplies queries and keys with the root of the scale, and others their product with all of it.
    [batch, heads, tokens, size], or [batch, tokens, heads * size], of which the numbers of heads are attributes.
    """
    queries, keys = expression.node.inputs[:2]
    query_heads, key_heads = (expression.attribute(name, 0) for name in ("q_num_heads", "kv_num_heads"))
    if query_heads and key_heads:
        queries = _split(expression, queries, query_heads)
        keys = _split(expression, keys, key_heads)
    past = expression.node.inputs[4] if len(expression.node.inputs) > 4 else ""
    if past:
        keys = expression.apply("Concat", past, keys, axis=2)
    scores = expression.apply("MatMul", _share(expression, queries, keys), _transpose(expression, keys))
    scale = float(expression.attribute("scale", 1.0))
    if scale > 1:
        yield "scaled scores", expression.apply("Mul", scores, expression.number(scale))
    else:
        yield "scores", scores


def _split(expression: Expression, tensor: str, heads: int) -> str:
    """[batch, tokens, heads * size] to [batch, heads, tokens, size], as which four dimensions are taken already.

    By way of [batch, groups, tokens, heads / groups, size]: all heads are one group, or each is one.
    """
    tokens, width = expression.sizes(tensor, -2), expression.sizes(tensor, -1)
    grouped = _reshape(expression, tensor, expression.integers(0, -1), tokens, width)
    heads_each = expression.apply("Div", expression.integers(heads), expression.sizes(grouped, 1))
    apart = _reshape(expression, grouped, expression.integers(0, 0, 0), heads_each, expression.integers(-1))
    moved = expression.apply("Transpose", apart, perm=[0, 1, 3, 2, 4])
    return _reshape(expression, moved, expression.integers(0, heads), tokens, expression.integers(-1))


def _reshape(expression: Expression, tensor: str, *dims: str) -> str:
    return expression.apply("Reshape", tensor, expression.apply("Concat", *dims, axis=0))


def _transpose(expression: Expression, keys: str) -> str:
    return expression.apply("Transpose", keys, perm=[0, 1, 3, 2])


def _share(expression: Expression, queries: str, keys: str) -> str:
    """[batch, q heads, tokens, size] to [batch, kv heads, q heads / kv heads * tokens, size]."""
    heads, size = expression.sizes(keys, 1), expression.sizes(keys, 3)
    return _reshape(expression, queries, expression.integers(0), heads, expression.integers(-1), size)
