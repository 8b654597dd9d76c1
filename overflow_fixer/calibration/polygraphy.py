"""Polygraphy's JSON, as `polygraphy run --save-inputs` writes it: one file, or a folder of them.

Source of the format: polygraphy/json/serde.py, 0.48 to 0.53. A file is a list of batches, or one batch;
a batch maps input names to {"array": base64 of a .npy, "polygraphy_class": "ndarray"}. Older
releases mark the type as "__polygraphy_encoded_ndarray", and may hold a .npz, its bytes as latin-1.
"""

from __future__ import annotations

import base64
import binascii
import io
import json
import mmap
import re
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from zipfile import ZipFile

from overflow_fixer.calibration.listing import Listing
from overflow_fixer.calibration.npy_stream import read_array
from overflow_fixer.calibration.options import CalibrationOptions
from overflow_fixer.calibration.source import Part, Source, reading
from overflow_fixer.records import Array, Feeds, InputSpec

SUFFIXES: tuple[str, ...] = (".json",)
_EXPECTED = (
    "JSON that `polygraphy run --save-inputs` wrote: NumPy arrays by input name, a batch or a list of them"
)
_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{}]|[^\s,:"\[\]{}]+', re.DOTALL)
_CLASS = "polygraphy_class"
_LEGACY_CLASS = "__polygraphy_encoded_"

Span = tuple[int, int]


def open_source(listing: Listing, inputs: Sequence[InputSpec], options: CalibrationOptions) -> Source:
    """A file is scanned once for where its batches lie; each is then decoded by itself."""
    parts: list[Part] = []
    places: list[tuple[Path, Span]] = []
    for file in listing.flat_files():
        spans, is_list = _find_batches(file)
        name = listing.name_of(file)
        parts += [Part(f"{name}[{index}]" if is_list else name, (file,)) for index in range(len(spans))]
        places += [(file, span) for span in spans]
    return Source(tuple(parts), partial(_read_all, places))


def _read_all(places: Sequence[tuple[Path, Span]]) -> Iterator[Feeds]:
    for path, (start, stop) in places:
        with reading(path, _EXPECTED), path.open("rb") as file:
            file.seek(start)
            feeds = _decode_batch(json.loads(file.read(stop - start), object_pairs_hook=_read_object))
        yield feeds


def _find_batches(path: Path) -> tuple[list[Span], bool]:
    """Where the objects of a list lie in the file, in bytes, or the single object; and whether it is a list."""
    with reading(path, _EXPECTED), path.open("rb") as file:
        # Not closed by hand: an error raised below keeps a match, and so the map, in use.
        text = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        is_list = text[:64].lstrip().startswith(b"[")
        spans = list(_find_objects(text, 1 if is_list else 0))
        if not spans:
            raise ValueError("it holds no batch")
        return spans, is_list


def _find_objects(text: mmap.mmap, level: int) -> Iterator[Span]:
    """The spans of the objects that begin at a nesting level, with nothing else at or above it."""
    depth, start, is_closed = 0, 0, False
    for token in _TOKEN.finditer(text):
        kind = text[token.start() : token.start() + 1]
        if is_closed or (depth <= level and kind not in b"[{]}"):
            raise ValueError(f"what begins at byte {token.start()} belongs to no batch")
        if kind in b"[{":
            start = token.start() if depth == level else start
            depth += 1
        elif kind in b"]}":
            depth -= 1
            is_closed = depth <= 0
            if depth == level:
                yield start, token.end()
    if depth:
        raise ValueError("its brackets do not match")


def _read_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Python's json takes the last of two values of one key, in silence."""
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {key!r} is given twice in one object")
        found[key] = value
    return found


def _decode_batch(batch: Any) -> Feeds:
    if not isinstance(batch, dict):
        raise ValueError("a batch is not an object of arrays by input name")
    kind = _class_of(batch)
    if kind is not None:
        raise ValueError(f"it holds a {kind}, not inputs (--save-outputs writes RunResults)")
    return {name: _decode_array(name, value) for name, value in batch.items()}


def _decode_array(name: str, value: Any) -> Array:
    kind = _class_of(value)
    if kind in ("LazyArray", "LazyNumpyArray"):
        return _decode_array(name, value.get("values"))
    if kind == "Tensor":
        raise ValueError(
            f"input {name!r} is a pickled PyTorch tensor, which is never loaded; save NumPy arrays"
        )
    if kind != "ndarray" or not isinstance(value.get("array"), str):
        raise ValueError(f"input {name!r} is not an array that Polygraphy encoded")
    data = _decode_text(value["array"])
    return _read_npz(data) if data.startswith(b"PK") else read_array(io.BytesIO(data), len(data))


def _class_of(value: Any) -> str | None:
    """The Python class that Polygraphy encoded as this object."""
    if not isinstance(value, dict):
        return None
    legacy = (key.removeprefix(_LEGACY_CLASS) for key in value if key.startswith(_LEGACY_CLASS))
    kind = value.get(_CLASS, next(legacy, None))
    return kind if isinstance(kind, str) else None


def _decode_text(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return text.encode("latin-1")


def _read_npz(data: bytes) -> Array:
    with ZipFile(io.BytesIO(data)) as archive:
        members = archive.infolist()
        if len(members) != 1:
            raise ValueError(f"an input is a .npz of {len(members)} arrays, where one is expected")
        member = members[0]
        with archive.open(member) as file:
            return read_array(file, member.file_size)
