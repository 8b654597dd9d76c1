"""Many short vectors joined into few."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import onnx
from onnx import NodeProto

_FAN_IN = 64
"""How many vectors a Concat joins. ONNX Runtime opens a session in time quadratic in the number of
outputs, and in the number of a node's inputs."""
_AXIS = onnx.helper.make_attribute("axis", 0)


class Gathering:
    """Joins vectors of one element type, in the order they come, by a tree of Concats."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._count = 0
        self._open: list[str] = []
        self._joined: list[str] = []
        self.lengths: list[int] = []

    def add(self, vector: str, lengths: Sequence[int]) -> Iterator[NodeProto]:
        """Take one more vector, of segments of these lengths; a node that joins is given when enough are there."""
        self.lengths += lengths
        self._open.append(vector)
        if len(self._open) == _FAN_IN:
            yield self._join_open()

    def finish(self) -> tuple[list[NodeProto], list[str]]:
        """The nodes that join what is left, and the outputs that hold everything, in order."""
        nodes = [self._join_open()] if self._open else []
        groups = [self._joined[i : i + _FAN_IN] for i in range(0, len(self._joined), _FAN_IN)]
        tops = [self._join(group) for group in groups]
        return nodes + tops, [node.output[0] for node in tops]

    def _join_open(self) -> NodeProto:
        node = self._join(self._open)
        self._joined.append(node.output[0])
        self._open = []
        return node

    def _join(self, names: Sequence[str]) -> NodeProto:
        self._count += 1
        output = f"{self._prefix}{self._count}"
        return NodeProto(op_type="Concat", input=names, output=[output], attribute=[_AXIS])
