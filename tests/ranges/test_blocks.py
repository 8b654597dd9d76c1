"""How large blocks are is told by weights, or left open."""

from __future__ import annotations

import pytest
from onnx import TensorProto, helper

from overflow_fixer.ranges.blocks import find_block


@pytest.mark.parametrize(
    ("channels", "padded", "block"),
    [
        (20, 24, 8),
        (24, 24, 8),
        (20, 32, 16),
        (24, 32, 16),
        (30, 32, None),
        (32, 32, None),
        (1, 8, 8),
        (1, 16, 16),
    ],
)
def test_weights_tell_how_large_a_block_is_or_leave_it_open(
    channels: int, padded: int, block: int | None
) -> None:
    weights = helper.make_tensor("w", TensorProto.FLOAT, [padded, 16, 1, 1], [0.0] * padded * 16)
    convolution = helper.make_node("Conv", ["x", "w"], ["c"], domain="com.microsoft.nchwc")
    assert find_block(helper.make_graph([convolution], "g", [], [], [weights]), {"c": channels}) == block
