"""NaN and infinities that come from an overflow in the model's own FP16: no plan changes the types that it comes with."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from onnx import TensorProto

from overflow_fixer.graph.model import Graph
from overflow_fixer.records import RangeTable


@lru_cache(maxsize=1)
def find_lost_in_own_fp16(graph: Graph, ranges: RangeTable) -> Mapping[str, str]:
    """Each tensor whose NaN and infinities come from a tensor that is FP16 in the model itself, with the name of that.

    In graph order, that one first. It holds NaN or infinities and is made of tensors that hold none; what it leads to is
    made, as far as it reads NaN or infinities, of nothing else. A constant overflowed nowhere.
    """
    lost: dict[str, str] = {}
    for node in graph.nodes:
        read = [name for name in node.reads if _is_broken(ranges, name)]
        for name in node.writes if node.op_type != "Constant" else ():
            if not _is_broken(ranges, name):
                continue
            if not read and graph.dtypes.get(name) == TensorProto.FLOAT16:
                lost[name] = name
            elif read and all(one in lost for one in read):
                lost[name] = lost[read[0]]
    return lost


def _is_broken(ranges: RangeTable, tensor: str) -> bool:
    seen = ranges.get(tensor)
    return seen is not None and not seen.is_finite
