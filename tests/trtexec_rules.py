"""What trtexec makes of its arguments, by the rules that its source shows: a model of it to hold ours against."""

from collections.abc import Mapping, Sequence
from typing import Any

_TYPES = {"fp32": "FLOAT", "fp16": "HALF", "int32": "INT32", "int64": "INT64"}


def read_options(arguments: Sequence[str]) -> dict[str, str]:
    """Each option by its name; the value is what follows the first "="."""
    pairs = [argument.partition("=") for argument in arguments]
    assert len({name for name, _, _ in pairs}) == len(pairs), "an option is read once"
    return {name: value for name, _, value in pairs}


def read_list(text: str) -> dict[str, str]:
    """name:value,name:value cut at each comma, and each piece at its last colon, or behind a quoted name."""
    found = {}
    for piece in text.split(","):
        quoted = piece.split("'")
        assert len(quoted) in (1, 3), "quotation marks come in pairs"
        name, _, value = (
            piece.rpartition(":") if len(quoted) == 1 else (quoted[0] + quoted[1], "", quoted[2][1:])
        )
        found[name] = value
    return found


def pin_by_rules(trt: Any, network: Any, options: Mapping[str, str]) -> None:
    """Set what --layerPrecisions and --layerOutputTypes ask for: by the exact name first, else by one star."""
    precisions = read_list(options["--layerPrecisions"])
    types = read_list(options["--layerOutputTypes"])
    for index in range(network.num_layers):
        layer = network.get_layer(index)
        if (key := _find(precisions, layer.name)) is not None:
            layer.precision = trt.DataType.__members__[_TYPES[precisions[key]]]
        if (key := _find(types, layer.name)) is not None:
            told = types[key].split("+")
            assert len(told) in (1, layer.num_outputs)
            for slot in range(layer.num_outputs):
                name = told[slot if len(told) > 1 else 0]
                layer.set_output_type(slot, trt.DataType.__members__[_TYPES[name]])


def _find(table: Mapping[str, str], name: str) -> str | None:
    if name in table:
        return name
    return next((pattern for pattern in table if _matches(pattern, name)), None)


def _matches(pattern: str, name: str) -> bool:
    before, star, behind = pattern.partition("*")
    fits = len(name) >= len(before) + len(behind) and name.startswith(before) and name.endswith(behind)
    return bool(star) and fits
