"""Constants rounded to FP16 and written, one at a time, inside the model file or beside it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

import numpy as np
import onnx
from onnx import TensorProto

from overflow_fixer.backends.mixed_onnx.rewrite import TypedModel
from overflow_fixer.files import name_data, replace_file
from overflow_fixer.formats import round_to_fp16
from overflow_fixer.graph.copies import embed_weights
from overflow_fixer.graph.model import Graph
from overflow_fixer.model_file.external_data import external_tensors
from overflow_fixer.model_file.weights import bring_in
from overflow_fixer.records import Clamp

_EMBED_LIMIT_BYTES = 1_500_000_000
_ALIGNMENT_BYTES = 4096
_SMALL_BYTES = 1024


def write_model(graph: Graph, typed: TypedModel, clamps: Mapping[str, Clamp], path: Path) -> tuple[Path, ...]:
    """Write the typed model with its weights; returns the files, the model first.

    Weights go beside it, into `<name>.data`, when any of the original's do, or the whole would not fit one
    protobuf message. Each is read, rounded and written before the next.
    Raises ModelError when a file of the original's was written since it was loaded, OutputError when one cannot be written.
    """
    graph.check_unchanged()
    files = _write(graph, typed, clamps, path)
    graph.check_unchanged()
    return files


def _write(graph: Graph, typed: TypedModel, clamps: Mapping[str, Clamp], path: Path) -> tuple[Path, ...]:
    external = list(external_tensors(typed.model))
    size = _size_bytes(typed, external)
    if not graph.data_files and size <= _EMBED_LIMIT_BYTES:
        _embed(graph, typed, clamps)
        _write_message(typed.model, path)
        return (path,)
    data_path = name_data(path)
    with replace_file(data_path, size) as temporary, temporary.open("wb") as file:
        for tensor in external:
            bring_in(tensor, graph.folder)
            _move_out(tensor, bytes(tensor.raw_data), file, data_path.name)
        for tensor in typed.model.graph.initializer:
            if tensor.name in typed.sources:
                _move_out(
                    tensor, _rounded_bytes(graph, typed.sources[tensor.name], clamps), file, data_path.name
                )
            elif tensor.HasField("raw_data"):
                _move_out(tensor, bytes(tensor.raw_data), file, data_path.name)
    _write_message(typed.model, path)
    if not data_path.stat().st_size:
        data_path.unlink()
        return (path,)
    return (path, data_path)


def _embed(graph: Graph, typed: TypedModel, clamps: Mapping[str, Clamp]) -> None:
    embed_weights(typed.model, graph)
    for tensor in _fp16_initializers(typed):
        tensor.raw_data = _rounded_bytes(graph, typed.sources[tensor.name], clamps)


def _write_message(model: onnx.ModelProto, path: Path) -> None:
    content = model.SerializeToString()
    with replace_file(path, len(content)) as temporary:
        temporary.write_bytes(content)


def _size_bytes(typed: TypedModel, external: Iterable[TensorProto]) -> int:
    """What the typed model takes as one message, but for some bytes a tensor: what is in it, what lies in the original's file,
    FP16 copies.
    """
    entries = (item for tensor in external for item in tensor.external_data)
    held = sum(int(item.value) for item in entries if item.key == "length")
    halves: int = sum(math.prod(tensor.dims) for tensor in _fp16_initializers(typed))
    return typed.model.ByteSize() + held + 2 * halves


def _fp16_initializers(typed: TypedModel) -> Iterator[TensorProto]:
    return (tensor for tensor in typed.model.graph.initializer if tensor.name in typed.sources)


def _rounded_bytes(graph: Graph, source: str, clamps: Mapping[str, Clamp]) -> bytes:
    value = graph.read_constant(source)
    if source in clamps:
        value = np.clip(value, -clamps[source].magnitude, clamps[source].magnitude)
    return round_to_fp16(value).tobytes()


def _move_out(tensor: TensorProto, data: bytes, file: BinaryIO, location: str) -> None:
    """Append a tensor's bytes to `file` and leave a reference; a small one keeps them."""
    del tensor.external_data[:]
    tensor.data_location = TensorProto.DEFAULT
    if len(data) <= _SMALL_BYTES:
        tensor.raw_data = data
        return
    offset = -(-file.tell() // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
    file.seek(offset)
    file.write(data)
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", offset), ("length", len(data))):
        tensor.external_data.add(key=key, value=str(value))
