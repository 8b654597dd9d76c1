"""Makes the layernorm_transformer sample: python calib_data/layernorm_transformer/make.py [FOLDER]"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto

sys.path.append(str(Path(__file__).resolve().parents[1]))

from sample_model import ExportedGraph, Feeds, Floats, draw_normal, draw_uniform, save_sample

D_MODEL = 64
HEADS = 4
D_HEAD = D_MODEL // HEADS
D_MLP = 4 * D_MODEL
OUTLIERS = {11: 1.0, 38: -0.6}
"""Channels that are hundreds of times larger than the rest, and their share of the token's size."""
GAIN = 12.0
"""Of the projections back into the residual stream: what they add is as large as most channels."""
SHAPES = ((2, 24), (3, 17), (1, 32), (4, 9))


def make_model() -> onnx.ModelProto:
    """x + attention(norm(x)), then + mlp(norm(.)), then norm: one block and the last norm of a model."""
    rng = np.random.RandomState(3)
    graph = ExportedGraph()
    x = "hidden_states"
    attended = _add_attention(graph, rng, _add_layer_norm(graph, rng, "ln_1", x))
    x = graph.add("/block", "Add", x, attended)
    x = graph.add("/block", "Add", x, _add_mlp(graph, rng, _add_layer_norm(graph, rng, "ln_2", x)))
    graph.rename_output(_add_layer_norm(graph, rng, "ln_f", x), "last_hidden_state")
    dims = ["batch", "sequence", D_MODEL]
    inputs = {"hidden_states": (TensorProto.FLOAT, dims)}
    return graph.to_model("layernorm_transformer", 13, inputs, {"last_hidden_state": dims})


def _add_layer_norm(graph: ExportedGraph, rng: np.random.RandomState, name: str, x: str) -> str:
    """LayerNorm as exporters write it below opset 17: the square is a tensor of its own."""
    scope = f"/{name}"
    mean = graph.add(scope, "ReduceMean", x, axes=[-1])
    centred = graph.add(scope, "Sub", x, mean)
    squared = graph.add(scope, "Pow", centred, graph.constant(scope, np.asarray(2, np.float32)))
    variance = graph.add(scope, "ReduceMean", squared, axes=[-1])
    safe = graph.add(scope, "Add", variance, graph.constant(scope, np.asarray(1e-5, np.float32)))
    scaled = graph.add(scope, "Div", centred, graph.add(scope, "Sqrt", safe))
    weighted = graph.add(scope, "Mul", scaled, graph.weight(f"{name}.weight", _draw_scale(rng)))
    return graph.add(scope, "Add", weighted, graph.weight(f"{name}.bias", draw_uniform(rng, 0.1, D_MODEL)))


def _draw_scale(rng: np.random.RandomState) -> Floats:
    """A learned scale: large on most channels, small on the outliers, which it tames."""
    scale = 3 + draw_uniform(rng, 0.5, D_MODEL)
    scale[list(OUTLIERS)] = 0.1
    return scale


def _add_attention(graph: ExportedGraph, rng: np.random.RandomState, x: str) -> str:
    query = _split_heads(graph, "q", _add_linear(graph, rng, "attn.q_proj", x, D_MODEL, D_MODEL), 0, 2, 1, 3)
    key = _split_heads(graph, "k", _add_linear(graph, rng, "attn.k_proj", x, D_MODEL, D_MODEL), 0, 2, 3, 1)
    value = _split_heads(graph, "v", _add_linear(graph, rng, "attn.v_proj", x, D_MODEL, D_MODEL), 0, 2, 1, 3)
    root = graph.constant("/attn", np.asarray(math.sqrt(D_HEAD), np.float32))
    scores = graph.add("/attn", "Div", graph.add("/attn", "MatMul", query, key), root)
    weights = graph.add("/attn", "Softmax", scores, axis=-1)
    heads = graph.add("/attn", "MatMul", weights, value)
    merged = _reshape(graph, "/attn", graph.add("/attn", "Transpose", heads, perm=[0, 2, 1, 3]), D_MODEL)
    return _add_linear(graph, rng, "attn.out_proj", merged, D_MODEL, D_MODEL, GAIN)


def _split_heads(graph: ExportedGraph, name: str, x: str, *perm: int) -> str:
    scope = f"/attn/{name}"
    return graph.add(scope, "Transpose", _reshape(graph, scope, x, HEADS, D_HEAD), perm=list(perm))


def _reshape(graph: ExportedGraph, scope: str, x: str, *last: int) -> str:
    """x as [batch, sequence, *last], the first two read from its shape at run time."""
    shape = graph.add(scope, "Shape", x)
    axes = graph.constant(scope, np.asarray([0], np.int64))
    dims = [
        graph.add(
            scope,
            "Unsqueeze",
            graph.add(scope, "Gather", shape, graph.constant(scope, np.asarray(axis, np.int64)), axis=0),
            axes,
        )
        for axis in (0, 1)
    ]
    dims += [graph.constant(scope, np.asarray([dim], np.int64)) for dim in last]
    return graph.add(scope, "Reshape", x, graph.add(scope, "Concat", *dims, axis=0))


def _add_mlp(graph: ExportedGraph, rng: np.random.RandomState, x: str) -> str:
    """Linear, GELU x/2 (1 + erf(x / sqrt 2)), Linear."""
    x = _add_linear(graph, rng, "mlp.fc1", x, D_MODEL, D_MLP)
    root = graph.constant("/mlp/act", np.asarray(math.sqrt(2), np.float32))
    erf = graph.add("/mlp/act", "Erf", graph.add("/mlp/act", "Div", x, root))
    gate = graph.add("/mlp/act", "Add", erf, graph.constant("/mlp/act", np.asarray(1, np.float32)))
    product = graph.add("/mlp/act", "Mul", x, gate)
    half = graph.constant("/mlp/act", np.asarray(0.5, np.float32))
    return _add_linear(
        graph, rng, "mlp.fc2", graph.add("/mlp/act", "Mul", product, half), D_MLP, D_MODEL, GAIN
    )


def _add_linear(
    graph: ExportedGraph,
    rng: np.random.RandomState,
    name: str,
    x: str,
    d_in: int,
    d_out: int,
    gain: float = 1,
) -> str:
    scope = "/" + name.replace(".", "/")
    bound = gain * math.sqrt(6 / (d_in + d_out))
    weight = graph.weight(f"{name}.weight", draw_uniform(rng, bound, d_in, d_out))
    bias = graph.weight(f"{name}.bias", draw_uniform(rng, 1 / math.sqrt(d_in), d_out))
    return graph.add(scope, "Add", bias, graph.add(scope, "MatMul", x, weight))


def make_batches() -> Iterator[Feeds]:
    rng = np.random.RandomState(4)
    for batch, sequence in SHAPES:
        yield {"hidden_states": np.stack([_draw_tokens(rng, sequence) for _ in range(batch)])}


def _draw_tokens(rng: np.random.RandomState, sequence: int) -> Floats:
    """float32 [sequence, D_MODEL]: a residual stream deep inside a model.

    Most channels are within tens. The outlier channels are in the hundreds at every token, and near
    two thousand at the first token and at a delimiter, as in pretrained models.
    """
    tokens = draw_normal(rng, 12, sequence, D_MODEL)
    size = 400 + draw_uniform(rng, 80, sequence)
    size[[0, rng.randint(1, sequence)]] = 1900 + draw_uniform(rng, 130, 2)
    for channel, share in OUTLIERS.items():
        tokens[:, channel] += size * np.float32(share)
    return tokens


if __name__ == "__main__":
    save_sample(make_model(), make_batches(), __file__)
