"""What a built engine says of itself: its layers, the types at their borders, and what became of the pins."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from overflow_fixer.backends.tensorrt.mapping import parse_metadata
from overflow_fixer.errors import BackendError
from overflow_fixer.records import PinOutcome

_SEPARATORS = re.compile(r"[\x1e\x1f]| \+ | \|\| |, |\.\.\.")
_ESCAPES = re.compile(r"""\\(?:(["\\/bfnrt]|u[0-9a-fA-F]{4})|x([01][0-9a-fA-F])|)""")
_WRAPPER = re.compile(r"(?:PWN|fusion)\(|\{ForeignNode\[|Reformatting CopyNode for \w+ Tensor \d+ to ")
_TYPES = (
    ("bf16", ("BFLOAT16", "BF16")),
    ("fp16", ("FP16", "HALF")),
    ("fp32", ("FP32", "FLOAT")),
    ("int", ("INT8", "INT32", "INT64", "UINT8", "BOOL")),
)
_TYPE_KEYS = ("Format/Datatype", "Datatype", "DataType", "Format")


@dataclass(frozen=True)
class EngineLayer:
    """One layer of an engine: its fused name, the ONNX nodes in it, the types of its inputs and outputs.

    `types` are of "fp32", "fp16", "bf16", "int" and "?" (what TensorRT does not tell). `is_opaque` marks
    a region whose inside the inspector does not show (Myelin). `tactic` is the name of its kernel, where that is told.
    """

    name: str
    kind: str
    nodes: tuple[str, ...]
    types: tuple[str, ...]
    is_opaque: bool
    tactic: str = ""

    @property
    def is_reformat(self) -> bool:
        return self.kind in ("Reformat", "NoOp")

    @property
    def is_fp32(self) -> bool:
        """Whether the layer can be seen to run in FP32: floats at its borders, and all of them FP32."""
        return "fp32" in self.types and not {"fp16", "bf16"} & set(self.types) and not self.is_opaque

    @property
    def is_tf32(self) -> bool:
        """Whether its kernel is named as one that rounds what it multiplies to TF32, of which the borders are FP32."""
        return "tf32" in self.tactic

    @property
    def is_fp16(self) -> bool:
        return "fp16" in self.types and not self.is_opaque


def read_engine(trt: Any, engine: Any, context: Any, owners: Mapping[str, str]) -> tuple[EngineLayer, ...]:
    """The layers of an engine. `context` has its shapes set: without, a dynamic engine tells no types.

    `owners` maps names of network layers to labels of ONNX nodes.
    """
    inspector = engine.create_engine_inspector()
    inspector.execution_context = context
    return parse_layers(inspector.get_engine_information(trt.LayerInformationFormat.JSON), owners)


def parse_layers(text: str, owners: Mapping[str, str]) -> tuple[EngineLayer, ...]:
    """The layers in the JSON of `IEngineInspector.get_engine_information`.

    TensorRT joins names with raw control characters, which strict JSON refuses, and can put a backslash before what JSON does
    not escape (seen of 8.6.0). A layer that is a bare string (an engine built without detailed verbosity) has a name and
    nothing else. Raises BackendError, with the place, for what is no JSON even so.
    """
    try:
        document = json.loads(_ESCAPES.sub(_mend_escape, text), strict=False)
    except ValueError as error:
        place = getattr(error, "pos", 0)
        raise BackendError(
            f"TensorRT describes the engine in what is no JSON: {error}, at {text[max(place - 60, 0) : place + 60]!r}. Expected what "
            "its engine inspector writes, to read which layers run in FP32. Please report this; --backend onnx does without."
        ) from error
    return tuple(_parse_layer(item, owners) for item in document.get("Layers", ()))


def _mend_escape(found: re.Match[str]) -> str:
    """An escape as JSON has it: a byte by its number is that character, another backslash is itself."""
    known, byte = found.groups()
    if known:
        return found[0]
    return chr(int(byte, 16)) if byte else r"\\"


def judge_pins(
    layers: Collection[EngineLayer],
    pinned: Collection[str],
    skipped: Collection[str],
    casts: Collection[str] = (),
) -> tuple[PinOutcome, ...]:
    """What became of each pinned node; `skipped` are those without a layer that could be pinned.

    `casts` are the nodes that convert in a strongly typed model: a layer that one of them was fused into
    has FP16 at its border by right, and does not show what it computes in.
    """
    by_node = _layers_by_node([_hide_behind_casts(layer, frozenset(casts)) for layer in layers])
    hidden = any(layer.is_opaque for layer in layers)
    return tuple(_judge(node, by_node.get(node, []), hidden and node not in skipped) for node in pinned)


def fused_with(layers: Collection[EngineLayer], node: str) -> tuple[str, ...]:
    """The other ONNX nodes in the engine layers of `node`."""
    names = (name for layer in layers if node in layer.nodes and not layer.is_opaque for name in layer.nodes)
    return tuple(dict.fromkeys(name for name in names if name != node))


def find_fp32_nodes(layers: Sequence[EngineLayer]) -> frozenset[str]:
    """Nodes all of whose visible layers are FP32, pinned or by TensorRT's own choice."""
    by_node = _layers_by_node(layers)
    return frozenset(node for node, mine in by_node.items() if all(layer.is_fp32 for layer in mine))


def _hide_behind_casts(layer: EngineLayer, casts: frozenset[str]) -> EngineLayer:
    hides = layer.is_fp16 and not casts.isdisjoint(layer.nodes)
    return replace(layer, is_opaque=True) if hides else layer


def _layers_by_node(layers: Collection[EngineLayer]) -> dict[str, list[EngineLayer]]:
    found: dict[str, list[EngineLayer]] = {}
    for layer in layers:
        for node in layer.nodes if not layer.is_reformat else ():
            found.setdefault(node, []).append(layer)
    return found


def _judge(node: str, mine: list[EngineLayer], may_hide: bool) -> PinOutcome:
    names = tuple(layer.name for layer in mine)
    if any({"fp16", "bf16"} & set(layer.types) and not layer.is_opaque for layer in mine):
        return PinOutcome(node, "not honoured", names)
    if any(layer.is_opaque for layer in mine) or (not mine and may_hide):
        return PinOutcome(node, "not visible", names)
    if not any(layer.is_fp32 for layer in mine):
        return PinOutcome(node, "not visible" if mine else "no layer", names)
    return PinOutcome(node, "honoured", names)


def _parse_layer(item: str | Mapping[str, Any], owners: Mapping[str, str]) -> EngineLayer:
    if isinstance(item, str):
        return EngineLayer(item, "", tuple(find_nodes(item, "", owners)), (), is_opaque(item, ""))
    name, kind = str(item.get("Name", "")), str(item.get("LayerType", ""))
    tensors = (*item.get("Inputs", ()), *item.get("Outputs", ()))
    nodes = tuple(dict.fromkeys(find_nodes(name, str(item.get("Metadata", "")), owners)))
    types, tactic = tuple(_type_of(t) for t in tensors), str(item.get("TacticName", ""))
    return EngineLayer(name, kind, nodes, types, is_opaque(name, kind), tactic)


def is_opaque(name: str, kind: str = "") -> bool:
    """Whether a layer is a region that shows only its borders."""
    return kind.lower() == "myelin" or name.startswith(("{ForeignNode[", "__myl"))


def _type_of(tensor: Mapping[str, Any]) -> str:
    text = next((str(tensor[key]) for key in _TYPE_KEYS if tensor.get(key)), "").upper()
    return next((kind for kind, words in _TYPES if any(word in text for word in words)), "?")


def find_nodes(name: str, metadata: str, owners: Mapping[str, str]) -> Iterator[str]:
    """The nodes that an engine layer's metadata and fused name (`conv1 + relu1`, `PWN(a, b)`) tell."""
    known = frozenset(owners.values())
    yield from (node for node in parse_metadata(metadata) if node in known)
    for part in _SEPARATORS.split(name):
        token = _WRAPPER.sub("", part)
        while token and token not in owners and token[-1] in ")]}":
            token = token[:-1]
        if token in owners:
            yield owners[token]
