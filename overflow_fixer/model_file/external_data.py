"""Where a model's weights lie: in which files, and whether those may be read."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import onnx
from onnx import TensorProto

from overflow_fixer.errors import ModelError
from overflow_fixer.model_file.reading import read_model
from overflow_fixer.model_file.subgraphs import all_tensors, bodies, graph_tensors

_NO_EXPORTERS = "The file is damaged, or was not made by an exporter."


def read_referring(path: Path) -> tuple[onnx.ModelProto, Path]:
    """The model, and the file from whose folder its external data is told.

    External data must not pass a symbolic link out of that folder. Behind one, weights are left in the file itself, and others
    whose links lead into the folder of that file too, as caches lay them out, are told by their names there; where others lie
    beside the link, all of the model is read. So it is where the file has a second hard link and bodies hold large weights: ONNX
    Runtime refuses those there, and takes all others.
    """
    model, home = read_model(path), _follow(path)
    names = _find_names(path, home, model)
    if names is None:
        return read_model(path, in_place=False), path
    if os.stat(home).st_nlink > 1 and any(_external_in_bodies(model)):
        model = read_model(path, in_place=False)
    for entry in _locations(model):
        entry.value = names.get(entry.value, entry.value)
    return model, home


def _find_names(path: Path, home: Path, model: onnx.ModelProto) -> dict[str, str] | None:
    """By location, beside the link `path`, the names in the folder of `home` behind it; None where one has none there."""
    others = {entry.value for entry in _locations(model)} - {home.name} if home != path else set()
    files = {location: _resolve(path.parent, location) for location in others}
    if not all(file and file != home and file.is_relative_to(home.parent) for file in files.values()):
        return None
    return {location: file.relative_to(home.parent).as_posix() for location, file in files.items() if file}


def _locations(model: onnx.ModelProto) -> Iterator[onnx.StringStringEntryProto]:
    entries = (entry for tensor in external_tensors(model) for entry in tensor.external_data)
    return (entry for entry in entries if entry.key == "location")


def _resolve(folder: Path, location: str) -> Path | None:
    """Where a location leads; None for one that no exporter writes."""
    is_odd = not location or "\0" in location or Path(location).is_absolute() or ".." in Path(location).parts
    return None if is_odd else Path(os.path.realpath(folder / location))


def _external_in_bodies(model: onnx.ModelProto) -> Iterator[TensorProto]:
    held = (tensor for node in model.graph.node for body in bodies(node) for tensor in graph_tensors(body))
    return (tensor for tensor in held if tensor.data_location == TensorProto.EXTERNAL)


def _follow(path: Path) -> Path:
    """The file behind a symbolic link; any other path as it is."""
    return path.resolve() if path.is_symlink() else path


def list_data_files(path: Path) -> tuple[Path, ...]:
    """The files below the model's folder that it names for its weights, there or not; nothing else is checked.

    Links to files in the folder of what is behind a link count. None for a file that is no model, or that memory has no
    room for: `load_graph` says why.
    """
    try:
        model = read_model(path)
    except (ModelError, MemoryError):
        return ()
    home = path.resolve()
    locations = {entry.value for entry in _locations(model)} - {home.name}
    folders = (path.parent.resolve(), home.parent)
    resolved = {path.parent / location: _resolve(path.parent, location) for location in sorted(locations)}
    return tuple(
        file
        for file, behind in resolved.items()
        if behind is not None
        and (os.path.isfile(behind) or not os.path.lexists(behind))
        and behind != home
        and any(map(behind.is_relative_to, folders))
    )


def external_tensors(model: onnx.ModelProto) -> Iterator[TensorProto]:
    """Every tensor of the model, at any depth, whose data lies in another file."""
    for tensor in all_tensors(model):
        if tensor.data_location == TensorProto.EXTERNAL:
            yield tensor


def check_external_data(path: Path, model: onnx.ModelProto) -> set[Path]:
    """The model's external data files, each inside the model's folder, there, and long enough.

    Raises ModelError otherwise: a model file is untrusted, and a path that leaves its folder would
    read any file of this machine into a tensor.
    """
    files: dict[str, Path] = {}
    sizes: dict[str, int] = {}
    for tensor in external_tensors(model):
        entry = {item.key: item.value for item in tensor.external_data}
        location = entry.get("location", "")
        if location not in files:
            files[location] = _find_data_file(path, tensor, location)
            sizes[location] = files[location].stat().st_size
        offset, length = _find_extent(path, tensor, entry)
        if offset + length > sizes[location]:
            raise ModelError(
                f"{path}: the data of tensor {tensor.name!r} ends at byte {offset + length} of {files[location]}, which "
                f"has {sizes[location]}. Expected the whole external data file. It is probably truncated: copy it again."
            )
    return set(files.values())


def _find_extent(path: Path, tensor: TensorProto, entry: Mapping[str, str]) -> tuple[int, int]:
    """Where the data begin, and how long they are (0: to the end of the file), in bytes."""
    with suppress(ValueError):
        offset, length = int(entry.get("offset") or 0), int(entry.get("length") or 0)
        if offset >= 0 and length >= 0:
            return offset, length
    raise ModelError(
        f"{path}: the data of tensor {tensor.name!r} have the offset {entry.get('offset')!r} and the length "
        f"{entry.get('length')!r}. Expected whole numbers of bytes, none below 0. {_NO_EXPORTERS}"
    )


def _find_data_file(path: Path, tensor: TensorProto, location: str) -> Path:
    folder = path.parent.resolve()
    file = folder if "\0" in location else Path(os.path.realpath(folder / location))
    begin = f"{path}: the data of tensor {tensor.name!r}"
    if file == folder:
        raise ModelError(
            f"{begin} lies in {location!r}, which names no file. Expected the name of a file beside the model. {_NO_EXPORTERS}"
        )
    if Path(location).is_absolute() or not file.is_relative_to(folder):
        leads = f", which leads to {file}" if os.path.islink(folder / location) else ""
        raise ModelError(
            f"{begin} lies in {location!r}{leads}, outside the model's folder. "
            "Expected a file beside the model. Such a path is refused, since it could read any file of "
            "this machine; save the model again with its data beside it if you trust it."
        )
    if not os.path.isfile(file):
        raise _refuse_missing(begin, file)
    return file


def _refuse_missing(begin: str, file: Path) -> ModelError:
    is_other = f"cannot be read: {file} is {'a folder' if os.path.isdir(file) else 'no regular file'}"
    fault = is_other if os.path.lexists(file) else f"is missing: {file} is not there"
    return ModelError(
        f"{begin} {fault}. Expected the external data file beside the model. Copy it there, under that name."
    )
