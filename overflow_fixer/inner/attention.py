"""What Attention computes inside: the products of queries and keys, before they are scaled."""

from __future__ import annotations

from collections.abc import Iterator

from overflow_fixer.inner.expression import Expression
from overflow_fixer.inner.quantities import Found


def find_in_attention(expression: Expression) -> Iterator[Found]:
    """Q K^T of every head, masked places too. Heads of queries that share a head of keys are put behind one another.

    [batch, heads, tokens, size], or [batch, tokens, heads * size] with the numbers of heads as attributes.
    """
    queries, keys = expression.node.inputs[:2]
    key_heads = expression.attribute("kv_num_heads", None)
    if key_heads is not None:
        queries = _split(expression, queries, expression.attribute("q_num_heads", key_heads))
        keys = _split(expression, keys, key_heads)
    past = expression.node.inputs[4] if len(expression.node.inputs) > 4 else ""
    if past:
        keys = expression.apply("Concat", past, keys, axis=2)
    yield (
        "scores",
        expression.apply("MatMul", _share(expression, queries, keys), _transpose(expression, keys)),
    )


def _split(expression: Expression, tensor: str, heads: int) -> str:
    """[batch, tokens, heads * size] to [batch, heads, tokens, size]."""
    apart = expression.apply("Reshape", tensor, expression.integers(0, 0, heads, -1))
    return expression.apply("Transpose", apart, perm=[0, 2, 1, 3])


def _transpose(expression: Expression, keys: str) -> str:
    return expression.apply("Transpose", keys, perm=[0, 1, 3, 2])


def _share(expression: Expression, queries: str, keys: str) -> str:
    """[batch, q heads, tokens, size] to [batch, kv heads, q heads / kv heads * tokens, size]."""
    heads = expression.apply(
        "Slice", expression.apply("Shape", keys), expression.integers(1), expression.integers(2)
    )
    size = expression.apply(
        "Slice", expression.apply("Shape", keys), expression.integers(3), expression.integers(4)
    )
    target = expression.apply("Concat", expression.integers(0), heads, expression.integers(-1), size, axis=0)
    return expression.apply("Reshape", queries, target)
