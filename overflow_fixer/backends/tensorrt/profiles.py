"""The shapes that an engine is built for: as the user writes them, and as TensorRT is told them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from overflow_fixer.errors import BackendError, ConfigError
from overflow_fixer.graph.model import Graph
from overflow_fixer.records import ShapeRange

_Edges = tuple[tuple[int, ...], tuple[int, ...]]
_OPEN_KINDS = frozenset({"NON_ZERO", "NMS"})


def override_shapes(
    graph: Graph, seen: Mapping[str, ShapeRange], profiles: Mapping[str, Sequence[Sequence[int]]]
) -> Mapping[str, ShapeRange]:
    """The shapes seen, with the user's min, opt and max for the inputs named.

    Raises ConfigError for an input that the model does not have, three shapes of different rank, or
    dimensions that do not grow from min over opt to max.
    """
    known = {spec.name: spec for spec in graph.inputs}
    for name, shapes in profiles.items():
        dims = known[name].dims if name in known else None
        least, usual, most = shapes
        grows = all(a <= b <= c for a, b, c in zip(least, usual, most, strict=False))
        fits = len(least) == len(usual) == len(most) and (dims is None or _takes(dims, shapes))
        if name not in known or not (grows and fits):
            told = ":".join("x".join(map(str, shape)) for shape in shapes)
            raise ConfigError(
                f"The profile {name}:{told} does not fit the model, whose inputs are "
                f"{', '.join(f'{n} {list(s.dims or ())}' for n, s in known.items())}. Expected an input's name and "
                "three shapes of its rank with min <= opt <= max. Correct --profile."
            )
    return {
        **seen,
        **{name: _make_range(known[name].dims, seen.get(name), profiles[name]) for name in profiles},
    }


def check_cover(wanted: Mapping[str, ShapeRange], seen: Mapping[str, ShapeRange]) -> None:
    """Raise ConfigError where an engine for the shapes, and values, `wanted` would not take data of those `seen`."""
    for name, data in seen.items():
        for asked, found in _pair_edges(wanted[name], data):
            if not _covers(asked, found):
                takes, have = (
                    " to ".join("x".join(map(str, edge)) for edge in one) for one in (asked, found)
                )
                raise ConfigError(
                    f"The profile of {name!r} takes {takes}, and the calibration data have {have}. Expected one that takes all of "
                    "the data, since the engine is verified on them. Widen --profile, or give other data."
                )


def _pair_edges(wanted: ShapeRange, data: ShapeRange) -> Iterator[tuple[_Edges, _Edges]]:
    """The least and the greatest, of what is wanted and of the data: shapes, then values where both have them."""
    yield (wanted.min, wanted.max), (data.min, data.max)
    if wanted.values is not None and data.values is not None:
        yield wanted.values[::2], data.values[::2]


def _covers(asked: _Edges, found: _Edges) -> bool:
    (low, high), (least, most) = asked, found
    grows = all(a <= b <= c <= d for a, b, c, d in zip(low, least, most, high, strict=False))
    return len(low) == len(least) and grows


def _takes(dims: Sequence[int | str | None], shapes: Sequence[Sequence[int]]) -> bool:
    """Whether an input of these dimensions takes the shapes, or, if it is a list of so many numbers, those values."""
    if _holds_values(dims, shapes[0]):
        return True
    fits = (
        d == size if isinstance(d, int) else size >= 0
        for s in shapes
        for d, size in zip(dims, s, strict=False)
    )
    return len(dims) == len(shapes[0]) and all(fits)


def _holds_values(dims: Sequence[int | str | None], told: Sequence[int]) -> bool:
    """Whether what is told of an input of these dimensions is its values, and not its shape."""
    return list(dims) == [len(told)]


def _make_range(
    dims: tuple[int | str | None, ...] | None, seen: ShapeRange | None, shapes: Sequence[Sequence[int]]
) -> ShapeRange:
    least, usual, most = (tuple(shape) for shape in shapes)
    if dims is not None and _holds_values(dims, usual):
        size = (len(usual),)
        return ShapeRange(size, size, size, (least, usual, most))
    return ShapeRange(least, usual, most, seen.values if seen is not None else None)


def add_profile(builder: Any, config: Any, network: Any, shapes: Mapping[str, ShapeRange]) -> None:
    """One optimization profile over every input whose shape, or whose value as a shape, is not fixed.

    Where no input is open but shapes inside depend on the data, over all inputs: without a profile
    TensorRT 8.6 builds such an engine and then makes no execution context for it. Raises ConfigError for
    an open input that `shapes` does not tell, BackendError where TensorRT refuses the profile.
    """
    inputs = [network.get_input(index) for index in range(network.num_inputs)]
    needed = [tensor for tensor in inputs if tensor.is_shape_tensor or _is_open(tensor)]
    needed = needed or (inputs if _has_open_shapes(network) else [])
    if not needed:
        return
    profile = builder.create_optimization_profile()
    told = {tensor.name: _range_of(tensor, shapes) for tensor in needed}
    if not _fill(profile, needed, told) or config.add_optimization_profile(profile) < 0:
        raise BackendError(
            f"TensorRT refuses the optimization profile {_say(told)}. Expected, for each dimension, min <= opt <= max "
            "within what the model and TensorRT's integers allow. Correct --profile, or use calibration data of the shapes to be served."
        )


def _fill(profile: Any, needed: Sequence[Any], told: Mapping[str, ShapeRange]) -> bool:
    """Tell the profile every input's shapes, and values; whether TensorRT takes them."""
    try:
        for tensor in needed:
            wanted = told[tensor.name]
            if _is_open(tensor) or not tensor.is_shape_tensor:
                profile.set_shape(tensor.name, wanted.min, wanted.opt, wanted.max)
            if tensor.is_shape_tensor and wanted.values is not None:
                profile.set_shape_input(tensor.name, *(list(values) for values in wanted.values))
    except (TypeError, ValueError):  # by the first the bindings refuse integers that are too large
        return False
    return True


def _is_open(tensor: Any) -> bool:
    try:
        return -1 in tuple(tensor.shape)
    except ValueError:  # of unknown rank
        return True


def _has_open_shapes(network: Any) -> bool:
    outputs = (network.get_output(index) for index in range(network.num_outputs))
    kinds = (network.get_layer(index).type.name for index in range(network.num_layers))
    return any(_is_open(tensor) for tensor in outputs) or any(kind in _OPEN_KINDS for kind in kinds)


def _range_of(tensor: Any, shapes: Mapping[str, ShapeRange]) -> ShapeRange:
    wanted, needs_values = shapes.get(tensor.name), bool(tensor.is_shape_tensor)
    if not _is_open(tensor) and not needs_values:
        fixed = tuple(tensor.shape)
        return ShapeRange(fixed, fixed, fixed)
    if wanted is None or (needs_values and wanted.values is None):
        what = "values of a shape" if needs_values else "shape"
        raise ConfigError(
            f"Nothing says which {what} input {tensor.name!r} {'holds' if needs_values else 'has'}, and the model leaves "
            "it open. Expected calibration data (--calib) with one number of dimensions, or "
            f"--profile {tensor.name}:MIN:OPT:MAX (dimensions joined by x)."
        )
    return wanted


def _say(told: Mapping[str, ShapeRange]) -> str:
    rows = ((name, (wanted.min, wanted.opt, wanted.max)) for name, wanted in told.items())
    return "; ".join(
        f"{name}: {' / '.join('x'.join(map(str, shape)) for shape in shapes)}" for name, shapes in rows
    )
