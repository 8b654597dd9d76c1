"""A BERT-like encoder (Devlin et al., 2018), LayerNorm and GELU decomposed as exporters below opset 17 do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto

from benchmarks.models.sketch import Sketch

_MASKED = -10000.0
_NODES_A_LAYER = 62
_NODES_AROUND = 20


@dataclass(frozen=True)
class BertSize:
    """The defaults are BERT base at a sequence length of 128."""

    layers: int = 12
    hidden: int = 768
    heads: int = 12
    sequence: int = 128
    vocabulary: int = 30522

    @staticmethod
    def of_nodes(nodes: int) -> BertSize:
        """Narrow, and as deep as it takes to have about `nodes` nodes."""
        layers = max(1, round((nodes - _NODES_AROUND) / _NODES_A_LAYER))
        return BertSize(layers, hidden=32, heads=2, sequence=8, vocabulary=100)


def build_bert(size: BertSize) -> onnx.ModelProto:
    """Inputs "input_ids" and "attention_mask" int64 [1, sequence]; output "hidden" [1, sequence, hidden]."""
    sketch = Sketch(seed=12)
    words = sketch.weight(size.vocabulary, size.hidden, std=0.02)
    positions = sketch.weight(1, size.sequence, size.hidden, std=0.02)
    x = sketch.add("Add", sketch.add("Gather", words, "input_ids"), positions)
    x = _add_layer_norm(sketch, x, size.hidden)
    mask = _add_mask(sketch)
    for _ in range(size.layers):
        attended = _add_attention(sketch, x, mask, size)
        x = _add_layer_norm(sketch, sketch.add("Add", x, attended), size.hidden)
        x = _add_layer_norm(sketch, sketch.add("Add", x, _add_mlp(sketch, x, size.hidden)), size.hidden)
    shape = (1, size.sequence)
    inputs = {"input_ids": (TensorProto.INT64, shape), "attention_mask": (TensorProto.INT64, shape)}
    return sketch.to_model(inputs, ("hidden", (*shape, size.hidden)))


def draw_tokens(rng: np.random.Generator, size: BertSize) -> dict[str, npt.NDArray[Any]]:
    """One sentence, int64 [1, sequence], of which the mask keeps at least half."""
    length = rng.integers(size.sequence // 2, size.sequence + 1)
    mask = (np.arange(size.sequence) < length).astype(np.int64)[None]
    return {"input_ids": rng.integers(0, size.vocabulary, (1, size.sequence)), "attention_mask": mask}


def _add_mask(sketch: Sketch) -> str:
    """0 where a token counts and -10000 where not, [1, 1, 1, sequence]."""
    mask = sketch.add("Unsqueeze", "attention_mask", sketch.constant([1, 2], np.int64))
    left_out = sketch.add("Sub", sketch.constant(1), sketch.add("Cast", mask, to=TensorProto.FLOAT))
    return sketch.add("Mul", left_out, sketch.constant(_MASKED))


def _add_attention(sketch: Sketch, x: str, mask: str, size: BertSize) -> str:
    def project(last: tuple[int, ...]) -> str:
        projected = _add_linear(sketch, x, size.hidden, size.hidden)
        shape = sketch.constant([1, size.sequence, size.heads, size.hidden // size.heads], np.int64)
        return sketch.add("Transpose", sketch.add("Reshape", projected, shape), perm=last)

    query, key, value = project((0, 2, 1, 3)), project((0, 2, 3, 1)), project((0, 2, 1, 3))
    scale = sketch.constant((size.hidden / size.heads) ** 0.5)
    scores = sketch.add("Div", sketch.add("MatMul", query, key), scale)
    weights = sketch.add("Softmax", sketch.add("Add", scores, mask), axis=-1)
    mixed = sketch.add("Transpose", sketch.add("MatMul", weights, value), perm=(0, 2, 1, 3))
    shape = sketch.constant([1, size.sequence, size.hidden], np.int64)
    return _add_linear(sketch, sketch.add("Reshape", mixed, shape), size.hidden, size.hidden)


def _add_mlp(sketch: Sketch, x: str, hidden: int) -> str:
    x = _add_linear(sketch, x, hidden, 4 * hidden)
    erf = sketch.add("Erf", sketch.add("Div", x, sketch.constant(2**0.5)))
    gelu = sketch.add("Mul", x, sketch.add("Add", erf, sketch.constant(1)))
    return _add_linear(sketch, sketch.add("Mul", gelu, sketch.constant(0.5)), 4 * hidden, hidden)


def _add_linear(sketch: Sketch, x: str, fan_in: int, fan_out: int) -> str:
    product = sketch.add("MatMul", x, sketch.weight(fan_in, fan_out, std=fan_in**-0.5))
    return sketch.add("Add", product, sketch.weight(fan_out, std=0.02))


def _add_layer_norm(sketch: Sketch, x: str, hidden: int) -> str:
    centred = sketch.add("Sub", x, sketch.add("ReduceMean", x, axes=[-1]))
    square = sketch.add("Pow", centred, sketch.constant(2))
    variance = sketch.add("ReduceMean", square, axes=[-1])
    deviation = sketch.add("Sqrt", sketch.add("Add", variance, sketch.constant(1e-12)))
    scaled = sketch.add("Mul", sketch.add("Div", centred, deviation), sketch.weight(hidden, std=0.1, mean=1))
    return sketch.add("Add", scaled, sketch.weight(hidden, std=0.1))
