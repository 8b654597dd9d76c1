"""A model whose weights stay where they are: each large initializer refers to its bytes in the model's own file.

ONNX Runtime then reads them from there, and a changed copy of the model costs as little as its graph.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import onnx
from onnx import TensorProto

from overflow_fixer.graph import Graph

_LEAST_BYTES = 4096
_GRAPH, _INITIALIZER, _NAME, _RAW_DATA = 7, 5, 8, 9
"""Numbers of fields: ModelProto.graph, GraphProto.initializer, TensorProto.name and raw_data (onnx.proto)."""
_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_SAMPLE_BYTES = 64
_COPIED_FIELDS = ("input", "sparse_initializer", "value_info", "quantization_annotation")


@dataclass(frozen=True)
class Extent:
    """Where bytes lie in a file."""

    offset: int
    length: int


def copy_model(graph: Graph) -> onnx.ModelProto:
    """The model as it runs, to be changed freely; its large weights are those in the model's file."""
    model = copy_shell(graph)
    model.graph.node.extend(graph.model.graph.node)
    model.graph.output.extend(graph.model.graph.output)
    return model


def copy_shell(graph: Graph) -> onnx.ModelProto:
    """The same without nodes and outputs."""
    source = graph.model
    model = onnx.ModelProto(ir_version=source.ir_version, opset_import=source.opset_import)
    model.graph.name = source.graph.name or "graph"
    for field in _COPIED_FIELDS:
        getattr(model.graph, field).extend(getattr(source.graph, field))
    model.graph.initializer.extend(_refer_initializers(graph))
    return model


def _refer_initializers(graph: Graph) -> Iterator[TensorProto]:
    extents = find_weights(graph.path)
    for tensor in graph.model.graph.initializer:
        extent = extents.get(tensor.name)
        if extent is None or not _is_same(graph.path, extent, tensor):
            yield tensor
        else:
            yield _refer(tensor, graph.path.name, extent)


def find_weights(path: Path) -> Mapping[str, Extent]:
    """Where the raw data of each large initializer of the main graph lies in a model file.

    Reads the protobuf wire format, whose lengths lead from field to field: no weight is read. Empty for
    a file that is not a model.
    """
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as image:
            return dict(_walk_initializers(image))
    except (OSError, ValueError, IndexError):
        return {}


def _walk_initializers(image: mmap.mmap) -> Iterator[tuple[str, Extent]]:
    for number, graph in _walk_fields(image, Extent(0, len(image))):
        if number == _GRAPH:
            for inner, tensor in _walk_fields(image, graph):
                if inner == _INITIALIZER and tensor.length >= _LEAST_BYTES:
                    yield from _locate(image, tensor)


def _locate(image: mmap.mmap, tensor: Extent) -> Iterator[tuple[str, Extent]]:
    fields = dict(_walk_fields(image, tensor))
    name, data = fields.get(_NAME), fields.get(_RAW_DATA)
    if name is not None and data is not None and data.length >= _LEAST_BYTES:
        yield image[name.offset : name.offset + name.length].decode(), data


def _walk_fields(image: mmap.mmap, within: Extent) -> Iterator[tuple[int, Extent]]:
    """Each field of a message with its number and, for one of bytes, where they lie (else an empty extent)."""
    at, end = within.offset, within.offset + within.length
    while at < end:
        key, at = _read_varint(image, at)
        number, wire = key >> 3, key & 7
        length = 0
        if wire == _LENGTH:
            length, at = _read_varint(image, at)
        elif wire == _VARINT:
            _, at = _read_varint(image, at)
        elif wire in (_FIXED64, _FIXED32):
            at += 8 if wire == _FIXED64 else 4
        else:
            raise ValueError(f"wire type {wire}")
        yield number, Extent(at, length)
        at += length


def _read_varint(image: mmap.mmap, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = image[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def _is_same(path: Path, extent: Extent, tensor: TensorProto) -> bool:
    """Whether the file holds what the model in memory has: it may have been written anew meanwhile."""
    if extent.length != len(tensor.raw_data):
        return False
    with path.open("rb") as file:
        file.seek(extent.offset)
        return file.read(_SAMPLE_BYTES) == tensor.raw_data[:_SAMPLE_BYTES]


def _refer(tensor: TensorProto, location: str, extent: Extent) -> TensorProto:
    found = TensorProto(name=tensor.name, dims=tensor.dims, data_type=tensor.data_type)
    found.data_location = TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", extent.offset), ("length", extent.length)):
        found.external_data.append(onnx.StringStringEntryProto(key=key, value=str(value)))
    return found
