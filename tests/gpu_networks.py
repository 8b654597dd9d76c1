"""Networks large enough that TensorRT takes FP16 kernels, and small ones for what its runner must know.

Each function gives a model and its calibration batches, the same on every machine: random numbers come
from RandomState with fixed seeds. The sizes are arguments, so that the same networks can be run small.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Floats = np.ndarray[Any, np.dtype[np.float32]]
Feeds = dict[str, np.ndarray]
Random = np.random.RandomState
Type = tuple[int, Sequence[int | str]]

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
LOWEST_FLOAT = np.finfo(np.float32).min
SCALED_CONVS = {3: 10.0, 4: 10.0, 5: 300.0, 6: 1 / 300, 7: 1 / 100}
"""Gains of big_conv_chain: values near 1, up to 600 behind conv4, 2e5 behind conv5, 600 behind conv6, 6 again."""
BLOCK_GAIN = 12.0
"""Of the projections back into the residual stream: what they add is as large as most channels."""


@dataclass(frozen=True)
class Network:
    """A model and the batches to calibrate and verify it on."""

    model: onnx.ModelProto
    batches: tuple[Feeds, ...]


@dataclass(frozen=True)
class LargeNetwork:
    """A network for engines. `naive`: how plain FP16 ends there; "either" where TensorRT decides.

    TensorRT computes a LayerNormalization by itself in a precision that it does not show, and clamps a
    mask's constant to what FP16 holds, so that plain FP16 may be right there.
    """

    make: Callable[[], Network]
    naive: Literal["wrong", "either"]


def make_big_conv_chain(batch: int = 8, channels: int = 128, size: int = 112) -> Network:
    """Twelve Conv + Relu; over 65504 behind conv5 alone, then pooled to ten logits."""
    rng, net = Random(5), _Nodes()
    x, width = "image", 3
    for index in range(1, 13):
        scale = SCALED_CONVS.get(index, 1.0) * np.sqrt(2 / (9 * width))
        weights = net.weight(f"conv{index}.weight", _normal(rng, scale, channels, width, 3, 3))
        bias = net.weight(f"conv{index}.bias", _normal(rng, 0.01, channels))
        x = net.add("Conv", f"conv{index}", x, weights, bias, pads=[1, 1, 1, 1])
        x, width = net.add("Relu", f"relu{index}", x), channels
    pooled = net.add("Flatten", "flatten", net.add("GlobalAveragePool", "pool", x))
    weights = net.weight("head.weight", _normal(rng, 1 / np.sqrt(channels), 10, channels))
    net.add("Gemm", "head", pooled, weights, net.weight("head.bias", _normal(rng, 0.1, 10)), transB=1)
    shape = (batch, 3, size, size)
    model = net.to_model(13, {"image": (FLOAT, shape)}, {"head": (FLOAT, (batch, 10))})
    return Network(model, tuple({"image": _normal(rng, 1.0, *shape)} for _ in range(3)))


def make_wide_convs(channels: int = 512) -> Network:
    """As at the end of a ResNet: by its heuristics cuDNN has no plan for them without TF32, and 3e-4 is off."""
    rng, net = Random(16), _Nodes()
    shape, x = (1, channels, 7, 7), "features"
    for index in range(3):
        scale = np.sqrt(2 / (9 * channels))
        weights = net.weight(f"conv{index}.weight", _normal(rng, scale, channels, channels, 3, 3))
        x = net.add("Conv", f"conv{index}", x, weights, pads=[1, 1, 1, 1])
        x = net.add("Relu", f"relu{index}", x)
    model = net.to_model(13, {"features": (FLOAT, shape)}, {x: (FLOAT, shape)})
    return Network(model, tuple({"features": _normal(rng, 1.0, *shape)} for _ in range(3)))


def make_transformer_block(batch: int = 8, tokens: int = 256, width: int = 1024, heads: int = 16) -> Network:
    """A pre-norm block and a last norm, each norm written out: squares of a residual of up to 2e3 overflow."""
    net, rng = _Nodes(), Random(6)
    _add_block(net, rng, _add_written_out_norm, batch, tokens, width, heads, None)
    return _finish_block(net, rng, 13, batch, tokens, width)


def make_opset18_block(batch: int = 8, tokens: int = 256, width: int = 1024, heads: int = 16) -> Network:
    """The first as exporters write it since opset 18: the axes of its means are an input."""
    net, rng = _Nodes(), Random(15)
    _add_block(net, rng, _add_opset18_norm, batch, tokens, width, heads, None)
    return _finish_block(net, rng, 18, batch, tokens, width)


def make_layernorm_block(batch: int = 8, tokens: int = 256, width: int = 1024, heads: int = 16) -> Network:
    """The same with LayerNormalization nodes."""
    net, rng = _Nodes(), Random(7)
    _add_block(net, rng, _add_norm, batch, tokens, width, heads, None)
    return _finish_block(net, rng, 17, batch, tokens, width)


def make_masked_block(batch: int = 8, tokens: int = 256, width: int = 1024, heads: int = 16) -> Network:
    """The same with padding masked by (1 - mask) * -3.4e38; one row is whole, none is masked everywhere."""
    return _make_masked_block(_add_mask, batch, tokens, width, heads)


def make_boolean_mask_block(batch: int = 8, tokens: int = 256, width: int = 1024, heads: int = 16) -> Network:
    """The same with a boolean mask as PyTorch's exporters write it: 0 or -inf, added to the scores."""
    return _make_masked_block(_add_boolean_mask, batch, tokens, width, heads)


def _make_masked_block(
    add_mask: Callable[[_Nodes], str], batch: int, tokens: int, width: int, heads: int
) -> Network:
    net, rng = _Nodes(), Random(8)
    mask = add_mask(net)
    _add_block(net, rng, _add_norm, batch, tokens, width, heads, mask)
    plain = _finish_block(net, rng, 17, batch, tokens, width, {"attention_mask": (INT64, (batch, tokens))})
    lengths = [rng.randint(tokens // 4, tokens, batch) for _ in plain.batches]
    masks = [(np.arange(tokens) < np.append(length[1:], tokens)[:, None]) for length in lengths]
    batches = [
        {**feeds, "attention_mask": kept.astype(np.int64)}
        for feeds, kept in zip(plain.batches, masks, strict=True)
    ]
    return Network(plain.model, tuple(batches))


def make_gemm_softmax_l2(rows: int = 2048, width: int = 1024) -> Network:
    """Operators whose layers TensorRT leaves unnamed; the first Gemm reaches 2e5, its ReduceL2 over 1e6."""
    net, rng = _Nodes(), Random(9)
    wide = net.weight("gemm1.weight", _normal(rng, 4e4 / (0.5 * 30 * np.sqrt(width)), width, width))
    hidden = net.add(
        "Gemm", "gemm1", "features", wide, net.weight("gemm1.bias", _normal(rng, 1000, width)), alpha=0.5
    )
    length = net.add("ReduceL2", "length", hidden, axes=[1], keepdims=1)
    bounds = [
        net.weight(name, np.float32(bound / np.sqrt(width))) for name, bound in (("low", -2.5), ("high", 2.5))
    ]
    unit = net.add("Clip", "clip", net.add("Div", "unit", hidden, length), *bounds)
    weights, bias = _normal(rng, 1.0, width, width), _normal(rng, 0.1, width)
    inputs = (net.weight("gemm2.weight", weights), net.weight("gemm2.bias", bias))
    scores = net.add("Gemm", "gemm2", unit, *inputs, alpha=2.0, beta=0.5)
    shape = (rows, 32, width // 32)
    grouped = net.add("Reshape", "grouped", scores, net.weight("shape", np.asarray(shape, np.int64)))
    net.add("Softmax", "probabilities", grouped, axis=1)
    model = net.to_model(13, {"features": (FLOAT, (rows, width))}, {"probabilities": (FLOAT, shape)})
    return Network(model, tuple({"features": _normal(rng, 30.0, rows, width)} for _ in range(3)))


LARGE: Mapping[str, LargeNetwork] = {
    "big_conv_chain": LargeNetwork(make_big_conv_chain, "wrong"),
    "transformer_block": LargeNetwork(make_transformer_block, "wrong"),
    "opset18_block": LargeNetwork(make_opset18_block, "wrong"),
    "layernorm_block": LargeNetwork(make_layernorm_block, "either"),
    "masked_block": LargeNetwork(make_masked_block, "either"),
    "boolean_mask_block": LargeNetwork(make_boolean_mask_block, "either"),
    "gemm_softmax_l2": LargeNetwork(make_gemm_softmax_l2, "wrong"),
}


def make_dynamic_conv() -> Network:
    """Conv + Relu over a batch of 1 to 16 images."""
    net, rng = _Nodes(), Random(10)
    net.add("Conv", "conv", "image", net.weight("weight", _normal(rng, 0.2, 8, 3, 3, 3)), pads=[1, 1, 1, 1])
    net.add("Relu", "relu", "conv")
    dims = ("batch", 3, 8, 8)
    model = net.to_model(13, {"image": (FLOAT, dims)}, {"relu": (FLOAT, ("batch", 8, 8, 8))})
    return Network(model, tuple({"image": _normal(rng, 1.0, size, 3, 8, 8)} for size in (1, 4, 16)))


def make_non_zero() -> Network:
    """The positions of positive numbers: how many there are is known once it has run. The last batch has none."""
    net, rng = _Nodes(), Random(11)
    net.add("NonZero", "positions", net.add("Relu", "relu", "x"))
    model = net.to_model(
        13, {"x": (FLOAT, (4, 5))}, {"relu": (FLOAT, (4, 5)), "positions": (INT64, (2, "n"))}
    )
    some, more = _normal(rng, 1.0, 4, 5), np.abs(_normal(rng, 1.0, 4, 5))
    return Network(model, ({"x": some}, {"x": more}, {"x": -more}))


def make_reshape_by_input() -> Network:
    """x in the shape that a second input holds."""
    net, rng = _Nodes(), Random(12)
    net.add("Relu", "relu", net.add("Reshape", "reshaped", "x", "shape"))
    inputs: dict[str, Type] = {"x": (FLOAT, ("n",)), "shape": (INT64, (2,))}
    model = net.to_model(13, inputs, {"relu": (FLOAT, ("rows", "columns"))})
    shapes = ((2, 2), (4, 6), (8, 6))
    return Network(
        model, tuple({"x": _normal(rng, 1.0, a * b), "shape": np.array((a, b))} for a, b in shapes)
    )


def make_choice() -> Network:
    """If over a boolean scalar input: the positive part of x, or x turned over."""
    net, rng = _Nodes(), Random(13)
    bodies = {
        branch: helper.make_graph(
            [helper.make_node(op_type, ["x"], [f"{op_type}_x"], name=op_type)],
            branch,
            [],
            [helper.make_tensor_value_info(f"{op_type}_x", FLOAT, (4, 5))],
        )
        for branch, op_type in (("then_branch", "Relu"), ("else_branch", "Neg"))
    }
    net.add("If", "chosen", "condition", **bodies)
    inputs: dict[str, Type] = {"condition": (BOOL, ()), "x": (FLOAT, (4, 5))}
    model = net.to_model(13, inputs, {"chosen": (FLOAT, (4, 5))})
    x = _normal(rng, 1.0, 4, 5)
    return Network(model, tuple({"condition": np.asarray(choice), "x": x} for choice in (True, False)))


def make_lookup() -> Network:
    """Rows of a table by int64 indices."""
    net, rng = _Nodes(), Random(14)
    net.add("Gather", "rows", net.weight("table", _normal(rng, 1.0, 6, 4)), "ids", axis=0)
    model = net.to_model(13, {"ids": (INT64, (3,))}, {"rows": (FLOAT, (3, 4))})
    return Network(model, ({"ids": np.array((0, 5, 2))},))


def write_network(network: Network, folder: Path) -> tuple[Path, Path]:
    """Write model.onnx with its weights in a file of their own, and data/*.npz; returns the two paths."""
    model = onnx.ModelProto()
    model.CopyFrom(network.model)
    path, data = folder / "model.onnx", folder / "data"
    data.mkdir(parents=True)
    onnx.save_model(model, path, save_as_external_data=True, location="weights.bin", size_threshold=1024)
    for index, feeds in enumerate(network.batches):
        np.savez(data / f"batch_{index}.npz", **feeds)
    return path, data


@dataclass
class _Nodes:
    """Nodes and weights in the making; each node is named as the one tensor that it writes."""

    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: list[TensorProto] = field(default_factory=list)

    def add(self, op_type: str, name: str, *inputs: str, **attributes: Any) -> str:
        self.nodes.append(helper.make_node(op_type, list(inputs), [name], name=name, **attributes))
        return name

    def weight(self, name: str, values: Any) -> str:
        self.weights.append(numpy_helper.from_array(np.asarray(values), name))
        return name

    def to_model(
        self, opset: int, inputs: Mapping[str, Type], outputs: Mapping[str, Type]
    ) -> onnx.ModelProto:
        infos = [
            [helper.make_tensor_value_info(name, *kind) for name, kind in side.items()]
            for side in (inputs, outputs)
        ]
        graph = helper.make_graph(self.nodes, "network", *infos, self.weights)
        model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", opset)])
        onnx.checker.check_model(model, full_check=True)
        return model


def _normal(rng: Random, scale: float, *shape: int) -> Floats:
    return (rng.standard_normal(shape) * scale).astype(np.float32)


Norm = Callable[[_Nodes, Random, str, str, int], str]


def _add_written_out_norm(net: _Nodes, rng: Random, name: str, x: str, width: int) -> str:
    """LayerNorm as exporters write it below opset 17: the square is a tensor of its own."""

    def average(what: str, values: str) -> str:
        return net.add("ReduceMean", f"{name}_{what}", values, axes=[-1])

    return _write_out_norm(net, rng, name, x, width, average)


def _add_opset18_norm(net: _Nodes, rng: Random, name: str, x: str, width: int) -> str:
    def average(what: str, values: str) -> str:
        axes = net.weight(f"{name}_{what}.axes", np.asarray([-1]))
        return net.add("ReduceMean", f"{name}_{what}", values, axes)

    return _write_out_norm(net, rng, name, x, width, average)


def _write_out_norm(
    net: _Nodes, rng: Random, name: str, x: str, width: int, average: Callable[[str, str], str]
) -> str:
    centred = net.add("Sub", f"{name}_centred", x, average("mean", x))
    squared = net.add("Pow", f"{name}_squared", centred, net.weight(f"{name}.two", np.float32(2)))
    variance = average("variance", squared)
    safe = net.add("Add", f"{name}_safe", variance, net.weight(f"{name}.epsilon", np.float32(1e-5)))
    scaled = net.add("Div", f"{name}_scaled", centred, net.add("Sqrt", f"{name}_root", safe))
    scale, bias = _add_scale_and_bias(net, rng, name, width)
    return net.add("Add", f"{name}_shifted", net.add("Mul", f"{name}_weighted", scaled, scale), bias)


def _add_norm(net: _Nodes, rng: Random, name: str, x: str, width: int) -> str:
    return net.add("LayerNormalization", name, x, *_add_scale_and_bias(net, rng, name, width), axis=-1)


def _add_scale_and_bias(net: _Nodes, rng: Random, name: str, width: int) -> tuple[str, str]:
    """A learned scale: large on most channels, small on the outliers, which it tames."""
    scale = 3 + _normal(rng, 0.2, width)
    scale[list(_outliers(width))] = 0.1
    return net.weight(f"{name}.weight", scale), net.weight(f"{name}.bias", _normal(rng, 0.1, width))


def _outliers(width: int) -> dict[int, float]:
    """Channels that are tens of times larger than the rest, and their share of the token's size."""
    return {width // 6: 1.0, 3 * width // 5: -0.6}


def _add_block(
    net: _Nodes, rng: Random, norm: Norm, batch: int, tokens: int, width: int, heads: int, mask: str | None
) -> None:
    """x + attention(norm(x)), then + mlp(norm(.)), then norm."""
    shape = batch, tokens, width, heads
    attended = _add_attention(net, rng, norm(net, rng, "ln1", "x", width), shape, mask)
    middle = net.add("Add", "residual1", "x", attended)
    hidden = _add_linear(net, rng, "fc1", norm(net, rng, "ln2", middle, width), width, 4 * width)
    widened = _add_linear(net, rng, "fc2", _add_gelu(net, hidden), 4 * width, width, BLOCK_GAIN)
    norm(net, rng, "ln3", net.add("Add", "residual2", middle, widened), width)


def _add_attention(
    net: _Nodes, rng: Random, x: str, shape: tuple[int, int, int, int], mask: str | None
) -> str:
    batch, tokens, width, heads = shape
    split = net.weight("split", np.asarray((batch, tokens, heads, width // heads)))
    parts = []
    for name, perm in (("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1]), ("v", [0, 2, 1, 3])):
        part = net.add("Reshape", f"{name}_heads", _add_linear(net, rng, name, x, width, width), split)
        parts.append(net.add("Transpose", f"{name}_turned", part, perm=perm))
    root = net.weight("root", np.float32(np.sqrt(width // heads)))
    scores = net.add("Div", "scores", net.add("MatMul", "products", *parts[:2]), root)
    if mask is not None:
        scores = net.add("Add", "masked_scores", scores, mask)
    mixed = net.add("MatMul", "mixed", net.add("Softmax", "attention", scores, axis=-1), parts[2])
    turned = net.add("Transpose", "mixed_turned", mixed, perm=[0, 2, 1, 3])
    merged = net.add("Reshape", "merged", turned, net.weight("merge", np.asarray((batch, tokens, width))))
    return _add_linear(net, rng, "out", merged, width, width, BLOCK_GAIN)


def _add_mask(net: _Nodes) -> str:
    """(1 - mask) * the lowest float, to be added to [batch, heads, tokens, tokens]."""
    kept = net.add("Unsqueeze", "kept", "attention_mask", net.weight("axes", np.asarray((1, 2))))
    turned = net.add(
        "Sub", "padding", net.weight("one", np.float32(1)), net.add("Cast", "kept_float", kept, to=FLOAT)
    )
    return net.add("Mul", "mask", turned, net.weight("lowest", LOWEST_FLOAT))


def _add_boolean_mask(net: _Nodes) -> str:
    """0 where the mask is 1, else -inf, to be added to [batch, heads, tokens, tokens]."""
    kept = net.add("Unsqueeze", "kept", "attention_mask", net.weight("axes", np.asarray((1, 2))))
    values = (net.weight("zero", np.float32(0)), net.weight("infinity", np.float32(-np.inf)))
    return net.add("Where", "mask", net.add("Cast", "is_kept", kept, to=BOOL), *values)


def _add_gelu(net: _Nodes, x: str) -> str:
    """x/2 (1 + erf(x / sqrt 2)), written out."""
    erf = net.add(
        "Erf", "erf", net.add("Div", "erf_input", x, net.weight("root_of_two", np.float32(np.sqrt(2))))
    )
    gate = net.add("Add", "gate", erf, net.weight("gate.one", np.float32(1)))
    return net.add("Mul", "gelu", net.add("Mul", "gated", x, gate), net.weight("half", np.float32(0.5)))


def _add_linear(net: _Nodes, rng: Random, name: str, x: str, d_in: int, d_out: int, gain: float = 1.0) -> str:
    weight = net.weight(f"{name}.weight", _normal(rng, gain * np.sqrt(2 / (d_in + d_out)), d_in, d_out))
    bias = net.weight(f"{name}.bias", _normal(rng, 0.02, d_out))
    return net.add("Add", f"{name}_biased", net.add("MatMul", name, x, weight), bias)


def _finish_block(
    net: _Nodes,
    rng: Random,
    opset: int,
    batch: int,
    tokens: int,
    width: int,
    more_inputs: Mapping[str, Type] | None = None,
) -> Network:
    dims = (batch, tokens, width)
    inputs = {"x": (FLOAT, dims), **(more_inputs or {})}
    model = net.to_model(opset, inputs, {net.nodes[-1].output[0]: (FLOAT, dims)})
    batches = ({"x": np.stack([_draw_tokens(rng, tokens, width) for _ in range(batch)])} for _ in range(3))
    return Network(model, tuple(batches))


def _draw_tokens(rng: Random, tokens: int, width: int) -> Floats:
    """float32 [tokens, width]: a residual stream deep inside a pretrained model.

    Most channels are within tens. The outliers are in the hundreds at every token, and near two thousand
    at the first and one other.
    """
    stream = _normal(rng, 12.0, tokens, width)
    size = 400 + rng.uniform(-80, 80, tokens)
    size[[0, rng.randint(1, tokens)]] = 1900 + rng.uniform(-130, 130, 2)
    for channel, share in _outliers(width).items():
        stream[:, channel] += (size * share).astype(np.float32)
    return stream
