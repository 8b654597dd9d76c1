"""A model file read without its large weights: each becomes a reference to its bytes in the very file.

The file is walked by the lengths of the protobuf wire format, so that no weight is read or copied;
ONNX Runtime takes such references as external data.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

import onnx
from google.protobuf.message import DecodeError
from onnx import AttributeProto, TensorProto

from overflow_fixer.errors import ModelError
from overflow_fixer.host.shortages import tells_of_memory
from overflow_fixer.model_file.subgraphs import CONTROL_FLOW, STANDARD_DOMAINS
from overflow_fixer.model_file.unreadable import refuse_unreadable

LEAST_BYTES = 16384
"""Smaller weights stay in the message: rules and shape inference look into those."""
_GRAPH = 7
_NODE, _INITIALIZER = 1, 5
_OP_TYPE, _ATTRIBUTE, _DOMAIN = 4, 5, 7
_TENSOR, _BODY, _TYPE = 5, 6, 20
_FLOAT_DATA, _RAW_DATA, _DOUBLE_DATA = 4, 9, 10
"""Numbers of fields: of ModelProto, GraphProto, NodeProto, AttributeProto and TensorProto (onnx.proto)."""
_MOST_VARINT_BYTES = 10
_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_TYPED = {_FLOAT_DATA: TensorProto.FLOAT, _DOUBLE_DATA: TensorProto.DOUBLE}
"""Lists that are packed as the bytes of raw_data are, for tensors of this type."""


class _Field(NamedTuple):
    """One field of a message: its number, where it begins, and where its content lies."""

    number: int
    wire: int
    begin: int
    offset: int
    end: int


_Replacements = Mapping[int, Callable[[mmap.mmap, _Field, str], "bytes | None"]]


def read_model(path: Path, *, in_place: bool = True) -> onnx.ModelProto:
    """The model in the file, its large weights as external data that lies in the file itself, unless not `in_place`.

    Those of Constant nodes and of bodies too, but not of local functions. They bear the name of the file itself where
    `path` is a symbolic link. Raises ModelError for a file that cannot be read or is no ONNX model, and
    MemoryError where it does not fit.
    """
    _refuse_special(path)
    try:
        with path.open("rb") as file:
            data = _read_without_weights(file.fileno(), path.resolve().name) if in_place else None
            model: onnx.ModelProto = onnx.ModelProto.FromString(file.read() if data is None else data)
    except OSError as error:
        raise refuse_unreadable(path, error) from error
    except DecodeError as error:
        if tells_of_memory(error):
            raise MemoryError(str(error)) from error
        raise ModelError(
            f"{path} ({path.stat().st_size} bytes) is not a whole ONNX model: {error}. Expected an .onnx file as an "
            "exporter writes it. It is another kind of file, or a download or copy that was cut short."
        ) from error
    if not model.graph.node and not model.graph.output:
        raise ModelError(
            f"{path} ({path.stat().st_size} bytes) has no graph in it. Expected an ONNX model with nodes and outputs. "
            "It is probably another kind of file, or empty."
        )
    return model


def _refuse_special(path: Path) -> None:
    """Raise ModelError for a pipe, a socket or a device: to open a pipe that nobody writes to waits for ever."""
    if os.path.exists(path) and not (os.path.isfile(path) or os.path.isdir(path)):
        raise ModelError(
            f"{path} is not a regular file but a pipe, a socket or a device. Expected an ONNX model file, which is read several "
            "times. Write the model to a file first."
        )


def _read_without_weights(descriptor: int, location: str) -> bytes | None:
    """The message with references; None where it is not laid out as a model is, for protobuf to say why."""
    try:
        with mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ) as image:
            return b"".join(_refer_all(image, location))
    except (ValueError, IndexError, RecursionError):
        return None


def _refer_all(image: mmap.mmap, location: str) -> Iterator[bytes]:
    """The model's fields: as they are, but for the graph's large weights."""
    for field in _walk(image, 0, len(image)):
        if field.number == _GRAPH and field.wire == _LENGTH:
            yield _message(_GRAPH, _refer_in_graph(image, field, location))
        else:
            yield image[field.begin : field.end]


def _refer_in_graph(image: mmap.mmap, graph: _Field, location: str) -> bytes:
    return _replace({_INITIALIZER: _refer, _NODE: _refer_in_node}, image, graph, location)


def _refer_in_node(image: mmap.mmap, node: _Field, location: str) -> bytes | None:
    """With references in a Constant's value, or in the bodies of a node that may have some."""
    fields = _walk(image, node.offset, node.end)
    told = {f.number: image[f.offset : f.end].decode() for f in fields if f.number in (_OP_TYPE, _DOMAIN)}
    op_type, is_standard = told.get(_OP_TYPE), told.get(_DOMAIN, "") in STANDARD_DOMAINS
    if is_standard and op_type == "Constant":
        held: _Replacements = {_TENSOR: _refer}
    elif op_type in CONTROL_FLOW or not is_standard:
        held = {_BODY: _refer_in_graph}
    else:
        return None
    return _replace({_ATTRIBUTE: partial(_refer_in_attribute, held)}, image, node, location)


def _refer_in_attribute(
    held: _Replacements, image: mmap.mmap, attribute: _Field, location: str
) -> bytes | None:
    """With references in the one that it is: others may lie there too, and nobody looks at those."""
    fields = _walk(image, attribute.offset, attribute.end)
    types = [_read_varint(image, field.offset)[0] for field in fields if field.number == _TYPE]
    wanted = AttributeProto.TENSOR if _TENSOR in held else AttributeProto.GRAPH
    return _replace(held, image, attribute, location) if types == [wanted] else None


def _replace(replacements: _Replacements, image: mmap.mmap, message: _Field, location: str) -> bytes:
    """The content of a message, of which the large fields of these numbers are made anew, unless that gives None."""
    parts, start = [], message.offset
    for field in _walk(image, message.offset, message.end, LEAST_BYTES):
        if field.number in replacements and field.wire == _LENGTH:
            content = replacements[field.number](image, field, location)
            if content is not None:
                parts += [image[start : field.begin], _message(field.number, content)]
                start = field.end
    return b"".join([*parts, image[start : message.end]])


def _refer(image: mmap.mmap, tensor: _Field, location: str) -> bytes | None:
    """The tensor with a reference in place of its data; None where that is small or in another form."""
    fields = list(_walk(image, tensor.offset, tensor.end))
    large = [field for field in fields if field.end - field.offset >= LEAST_BYTES]
    rest = b"".join(image[field.begin : field.end] for field in fields if field not in large)
    referred = TensorProto.FromString(rest)
    if len(large) != 1 or not _is_plain(large[0], referred):
        return None
    referred.data_location = TensorProto.EXTERNAL
    entries = {"location": location, "offset": large[0].offset, "length": large[0].end - large[0].offset}
    for key, value in entries.items():
        referred.external_data.add(key=key, value=str(value))
    return bytes(referred.SerializeToString())


def _is_plain(data: _Field, tensor: TensorProto) -> bool:
    """Whether the field holds all of the tensor's data as the bytes of its elements, one after the other."""
    others = (tensor.raw_data, tensor.float_data, tensor.double_data, tensor.external_data)
    if data.wire != _LENGTH or any(len(other) for other in others):
        return False
    return data.number == _RAW_DATA or _TYPED.get(data.number) == tensor.data_type


def _message(number: int, content: bytes) -> bytes:
    """A field that holds a message."""
    return _varint(number << 3 | _LENGTH) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*found, value))


def _walk(image: mmap.mmap, at: int, end: int, least_bytes: int = 0) -> Iterator[_Field]:
    """The fields of a message, of at least so many bytes each. Raises ValueError or IndexError for bytes that are none."""
    while at < end:
        begin, key, at = at, image[at], at + 1
        if key >= 0x80:
            key, at = _read_varint(image, begin)
        wire = key & 7
        if wire == _LENGTH:
            length, at = image[at], at + 1
            if length >= 0x80:
                length, at = _read_varint(image, at - 1)
        else:
            length = _measure(image, at, wire)
        if at + length > end:
            raise ValueError("a field ends behind its message")
        if length >= least_bytes:
            yield _Field(key >> 3, wire, begin, at, at + length)
        at += length


def _measure(image: mmap.mmap, at: int, wire: int) -> int:
    """The bytes of a number."""
    if wire == _VARINT:
        return _read_varint(image, at)[1] - at
    if wire not in (_FIXED64, _FIXED32):
        raise ValueError(f"wire type {wire}")
    return 8 if wire == _FIXED64 else 4


def _read_varint(image: mmap.mmap, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 7 * _MOST_VARINT_BYTES, 7):
        byte = image[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise ValueError("a number without an end")
