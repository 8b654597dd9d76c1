"""Makes the masked_attention sample: python calib_data/masked_attention/make.py [FOLDER]"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto

sys.path.append(str(Path(__file__).resolve().parents[1]))

from sample_model import ExportedGraph, Feeds, draw_normal, save_sample

VOCABULARY = 512
MAX_LENGTH = 48
D_MODEL = 64
HEADS = 4
D_HEAD = D_MODEL // HEADS
D_MLP = 2 * D_MODEL
PAD, CLS, SEP, FIRST_WORD = 0, 1, 2, 3
FP32_MIN = np.finfo(np.float32).min
"""-3.4028234663852886e38: what masked positions add to their score."""
LENGTHS = ((31, 12, 19, 7), (9, 14, 22, 40, 17, 5), (26,), (11, 18, 0, 6))
"""Tokens in each sentence. The third file pads nothing; the last fills its batch with an empty row."""


def make_model() -> onnx.ModelProto:
    """Embeddings and one encoder layer, as a BERT export of opset 17."""
    rng = np.random.RandomState(5)
    graph = ExportedGraph()
    mask = _add_mask(graph)
    x = _add_embeddings(graph, rng)
    attended = _add_attention(graph, rng, x, mask)
    x = _add_layer_norm(graph, rng, "attention.output", graph.add("/attention/output", "Add", attended, x))
    x = _add_layer_norm(graph, rng, "output", graph.add("/output", "Add", _add_mlp(graph, rng, x), x))
    graph.rename_output(x, "last_hidden_state")
    ids = (TensorProto.INT64, ["batch", "sequence"])
    return graph.to_model(
        "masked_attention",
        17,
        {"input_ids": ids, "attention_mask": ids},
        {"last_hidden_state": ["batch", "sequence", D_MODEL]},
    )


def _add_mask(graph: ExportedGraph) -> str:
    """(1 - attention_mask) * FP32_MIN as [batch, 1, 1, sequence]."""
    mask = "attention_mask"
    for axis in (1, 2):
        mask = graph.add("", "Unsqueeze", mask, graph.constant("", np.asarray([axis], np.int64)))
    mask = graph.add("", "Cast", mask, to=TensorProto.FLOAT)
    inverted = graph.add("", "Sub", graph.constant("", np.asarray(1, np.float32)), mask)
    return graph.add("", "Mul", inverted, graph.constant("", np.asarray(FP32_MIN)))


def _add_embeddings(graph: ExportedGraph, rng: np.random.RandomState) -> str:
    scope = "/embeddings"
    words = graph.weight("embeddings.word_embeddings.weight", draw_normal(rng, 1.0, VOCABULARY, D_MODEL))
    places = graph.weight("embeddings.position_embeddings.weight", draw_normal(rng, 0.3, MAX_LENGTH, D_MODEL))
    every_place = graph.weight("embeddings.position_ids", np.arange(MAX_LENGTH, dtype=np.int64)[None])
    zero, one = (graph.constant(scope, np.asarray([value], np.int64)) for value in (0, 1))
    shape = graph.add(scope, "Shape", "input_ids")
    sequence = graph.add(scope, "Gather", shape, one, axis=0)
    place_ids = graph.add(scope, "Slice", every_place, zero, sequence, one, one)
    word = graph.add(f"{scope}/word_embeddings", "Gather", words, "input_ids")
    place = graph.add(f"{scope}/position_embeddings", "Gather", places, place_ids)
    return _add_layer_norm(graph, rng, "embeddings", graph.add(scope, "Add", word, place))


def _add_attention(graph: ExportedGraph, rng: np.random.RandomState, x: str, mask: str) -> str:
    scope = "/attention/self"
    query = _split_heads(graph, rng, "query", x, 0, 2, 1, 3)
    key = _split_heads(graph, rng, "key", x, 0, 2, 3, 1)
    value = _split_heads(graph, rng, "value", x, 0, 2, 1, 3)
    root = graph.constant(scope, np.asarray(math.sqrt(D_HEAD), np.float32))
    scores = graph.add(scope, "Div", graph.add(scope, "MatMul", query, key), root)
    weights = graph.add(scope, "Softmax", graph.add(scope, "Add", scores, mask), axis=-1)
    heads = graph.add(scope, "Transpose", graph.add(scope, "MatMul", weights, value), perm=[0, 2, 1, 3])
    whole = graph.constant(scope, np.asarray([0, 0, D_MODEL], np.int64))
    merged = graph.add(scope, "Reshape", heads, whole)
    return _add_linear(graph, rng, "attention.output.dense", merged, D_MODEL, D_MODEL)


def _split_heads(graph: ExportedGraph, rng: np.random.RandomState, name: str, x: str, *perm: int) -> str:
    scope = "/attention/self"
    x = _add_linear(graph, rng, f"attention.self.{name}", x, D_MODEL, D_MODEL)
    split = graph.constant(scope, np.asarray([0, 0, HEADS, D_HEAD], np.int64))
    return graph.add(scope, "Transpose", graph.add(scope, "Reshape", x, split), perm=list(perm))


def _add_mlp(graph: ExportedGraph, rng: np.random.RandomState, x: str) -> str:
    """Linear, GELU x/2 (1 + erf(x / sqrt 2)), Linear."""
    scope = "/intermediate/act"
    x = _add_linear(graph, rng, "intermediate.dense", x, D_MODEL, D_MLP)
    root, one, half = (graph.constant(scope, np.asarray(v, np.float32)) for v in (math.sqrt(2), 1, 0.5))
    gate = graph.add(scope, "Add", graph.add(scope, "Erf", graph.add(scope, "Div", x, root)), one)
    x = graph.add(scope, "Mul", graph.add(scope, "Mul", x, gate), half)
    return _add_linear(graph, rng, "output.dense", x, D_MLP, D_MODEL)


def _add_linear(
    graph: ExportedGraph, rng: np.random.RandomState, name: str, x: str, d_in: int, d_out: int
) -> str:
    scope = "/" + name.replace(".", "/")
    weight = graph.weight(f"{name}.weight", draw_normal(rng, 1 / math.sqrt(d_in), d_in, d_out))
    bias = graph.weight(f"{name}.bias", draw_normal(rng, 0.02, d_out))
    return graph.add(scope, "Add", bias, graph.add(scope, "MatMul", x, weight))


def _add_layer_norm(graph: ExportedGraph, rng: np.random.RandomState, name: str, x: str) -> str:
    scope = f"/{name.replace('.', '/')}/LayerNorm"
    scale = graph.weight(f"{name}.LayerNorm.weight", 1 + draw_normal(rng, 0.1, D_MODEL))
    bias = graph.weight(f"{name}.LayerNorm.bias", draw_normal(rng, 0.05, D_MODEL))
    return graph.add(scope, "LayerNormalization", x, scale, bias, axis=-1, epsilon=1e-12)


def make_batches() -> Iterator[Feeds]:
    rng = np.random.RandomState(6)
    for lengths in LENGTHS:
        input_ids = np.full((len(lengths), max(lengths)), PAD, np.int64)
        attention_mask = np.zeros_like(input_ids)
        for row, length in enumerate(lengths):
            input_ids[row, :length] = _draw_sentence(rng, length)
            attention_mask[row, :length] = 1
        yield {"input_ids": input_ids, "attention_mask": attention_mask}


def _draw_sentence(rng: np.random.RandomState, length: int) -> list[int]:
    """CLS, words, SEP; the n-th most frequent word comes 1/n times as often as the first (Zipf)."""
    shares = np.cumsum(1 / np.arange(1, VOCABULARY - FIRST_WORD + 1))
    words = np.searchsorted(shares, rng.random_sample(max(length - 2, 0)) * shares[-1])
    return [CLS, *(FIRST_WORD + words).tolist(), SEP] if length else []


if __name__ == "__main__":
    save_sample(make_model(), make_batches(), __file__)
