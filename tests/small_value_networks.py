"""Small networks that plain FP16 gets wrong though nothing in them is large: with data, and what must stay in FP32."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from in_memory_calibration import floats, ints, make_model, node, scalar
from onnx import TensorProto

INT64 = TensorProto.INT64
_LENGTH = 256

Feeds = tuple[Mapping[str, Any], ...]


@dataclass(frozen=True)
class Network:
    """`rule` is the one that finds it, `pins` the nodes to stay in FP32."""

    model: onnx.ModelProto
    feeds: Feeds
    rule: str
    pins: tuple[str, ...]


def _draw(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def rotary_positions(largest: int = 4096) -> Network:
    """q sin(angle) + q cos(angle), the angle being a position times a frequency."""
    frequencies = (1 / 10000 ** (np.arange(32) / 32)).astype(np.float32)
    nodes = [
        node("Cast", "ids", "positions", to=TensorProto.FLOAT),
        node("Unsqueeze", "positions last", "column"),
        node("Mul", "column frequencies", "half"),
        node("Concat", "half half", "angle", axis=-1),
        node("Sin", "angle", "sine"),
        node("Cos", "angle", "cosine"),
        node("Mul", "q sine", "a"),
        node("Mul", "q cosine", "b"),
        node("Add", "a b", "y"),
    ]
    inputs = {"ids": (INT64, [1, _LENGTH]), "q": [1, _LENGTH, 64]}
    model = make_model(nodes, inputs, "y", {"frequencies": frequencies, "last": ints(-1)})
    ids = np.linspace(0, largest - 1, _LENGTH).astype(np.int64)[None]
    feeds = tuple({"ids": ids, "q": _draw(seed, 1, _LENGTH, 64)} for seed in range(2))
    pins = ("Cast_positions", "Unsqueeze_column", "Mul_half", "Concat_angle", "Sin_sine", "Cos_cosine")
    return Network(model, feeds, "lost_phase", pins)


def harmonic_source() -> Network:
    """The sine of a pitch that a layer tells, as vocoders make it: turns are summed up and taken for an angle."""
    nodes = [
        node("Conv", "mel w", "a", pads=[1, 1]),
        node("Add", "a middle", "logarithm"),
        node("Exp", "logarithm", "pitch"),
        node("Resize", "pitch rois scales", "samples"),
        node("Div", "samples rate", "turns"),
        node("CumSum", "turns axis", "phase"),
        node("Mul", "phase circle", "angle"),
        node("Sin", "angle", "y"),
    ]
    constants = {
        "w": _draw(1, 1, 8, 3) / 10,
        "middle": scalar(5.2),
        "rois": floats(),
        "scales": floats(1, 1, 80),
        "rate": scalar(8000),
        "axis": np.asarray(2),
        "circle": scalar(2 * np.pi),
    }
    model = make_model(nodes, {"mel": [1, 8, 50]}, "y", constants)
    feeds = tuple({"mel": _draw(seed, 1, 8, 50)} for seed in range(2))
    pins = "Conv_a Add_logarithm Exp_pitch Resize_samples Div_turns CumSum_phase Mul_angle Sin_y"
    return Network(model, feeds, "lost_phase", tuple(pins.split()))


def relative_positions(first: int = 6000) -> Network:
    """Attention with a bias of -|i - j| / 2; the positions go on from an earlier call."""
    nodes = [
        node("Cast", "ids", "p", to=TensorProto.FLOAT),
        node("Unsqueeze", "p two", "i"),
        node("Unsqueeze", "p one", "j"),
        node("Sub", "i j", "d"),
        node("Abs", "d", "far"),
        node("Mul", "far slope", "bias"),
        node("Add", "x bias", "scores"),
        node("Softmax", "scores", "weights", axis=-1),
        node("MatMul", "weights v", "y"),
    ]
    inputs = {"ids": (INT64, [1, _LENGTH]), "x": [1, _LENGTH, _LENGTH], "v": [1, _LENGTH, 16]}
    constants = {"two": ints(2), "one": ints(1), "slope": scalar(-0.5)}
    ids = (first + np.arange(_LENGTH))[None]
    feeds = tuple(
        {"ids": ids, "x": _draw(seed, 1, _LENGTH, _LENGTH), "v": _draw(seed + 9, 1, _LENGTH, 16)}
        for seed in range(2)
    )
    pins = ("Cast_p", "Unsqueeze_i", "Unsqueeze_j", "Sub_d")
    return Network(make_model(nodes, inputs, "y", constants), feeds, "lost_integer", pins)


def counted_events() -> Network:
    """Numbers that a layer tells as logarithms, rounded, and which of them are odd."""
    nodes = [
        node("Gemm", "x w middle", "logarithm"),
        node("Exp", "logarithm", "number"),
        node("Unsqueeze", "number one", "column"),
        node("Round", "column", "count"),
        node("Mod", "count two", "odd", fmod=1),
        node("Mul", "odd half", "y"),
    ]
    constants = {
        "w": _draw(1, 4, 1),
        "middle": floats(8),
        "one": ints(1),
        "two": scalar(2),
        "half": scalar(0.5),
    }
    feeds = tuple({"x": _draw(seed, 512, 4) / 8} for seed in range(2))
    pins = ("Gemm_logarithm", "Exp_number", "Unsqueeze_column", "Round_count", "Mod_odd")
    return Network(make_model(nodes, {"x": [512, 4]}, "y", constants), feeds, "lost_integer", pins)


def words_as_floats() -> Network:
    """Ids come as floats, and become integers only behind a Reshape and a product."""
    nodes = [
        node("Reshape", "x shape", "flat"),
        node("Mul", "flat one", "ids"),
        node("Cast", "ids", "rows", to=INT64),
        node("Gather", "table rows", "words"),
        node("MatMul", "words w", "y"),
    ]
    constants = {"shape": ints(4, 64), "one": scalar(1), "table": _draw(1, 8000, 32), "w": _draw(2, 32, 32)}
    ids = (np.random.default_rng(seed).integers(0, 8000, (4, 64, 1)) for seed in range(2))
    feeds = tuple({"x": found.astype(np.float32)} for found in ids)
    pins = ("Reshape_flat", "Mul_ids")
    return Network(make_model(nodes, {"x": [4, 64, 1]}, "y", constants), feeds, "lost_integer", pins)


def counted_tokens() -> Network:
    """The token in place 3000, found by a running count."""
    nodes = [
        node("Cast", "mask", "there", to=TensorProto.FLOAT),
        node("CumSum", "there axis", "count"),
        node("Sub", "count first", "place"),
        node("Equal", "place wanted", "is_it"),
        node("Cast", "is_it", "chosen", to=TensorProto.FLOAT),
        node("Mul", "chosen x", "picked"),
        node("ReduceSum", "picked axes", "y", keepdims=0),
    ]
    constants = {"axis": np.asarray(1), "axes": ints(1), "first": scalar(1), "wanted": scalar(3000)}
    model = make_model(nodes, {"mask": (INT64, [2, 4096]), "x": [2, 4096]}, "y", constants)
    feeds = tuple({"mask": np.ones((2, 4096), np.int64), "x": _draw(seed, 2, 4096)} for seed in range(3))
    return Network(model, feeds, "lost_integer", ("CumSum_count", "Sub_place"))


def wide_boxes() -> Network:
    """Boxes around the places of a grid of 4096, and their sides."""
    grid = np.arange(4096, dtype=np.float32)[:, None]
    nodes = [
        node("MatMul", "x w", "logits"),
        node("Sigmoid", "logits", "offsets"),
        node("Add", "offsets grid", "centres"),
        node("Sub", "centres offsets", "low"),
        node("Add", "centres offsets", "high"),
        node("Sub", "high low", "y"),
    ]
    model = make_model(nodes, {"x": [4096, 8]}, "y", {"w": _draw(1, 8, 1), "grid": grid})
    feeds = tuple({"x": _draw(seed, 4096, 8)} for seed in range(2))
    return Network(model, feeds, "lost_integer", ("Add_centres", "Sub_low", "Add_high", "Sub_y"))


def sides_at_4k() -> Network:
    """Sides of boxes that stand anywhere in an image of 4096 pixels, from their corners."""
    nodes = [
        node("MatMul", "x w", "logits"),
        node("Sigmoid", "logits", "shares"),
        node("Mul", "shares width", "centres"),
        node("Mul", "shares small", "half"),
        node("Sub", "centres half", "low"),
        node("Add", "centres half", "high"),
        node("Sub", "high low", "y"),
    ]
    constants = {"w": _draw(1, 8, 4), "width": scalar(4000.7), "small": scalar(5.3)}
    model = make_model(nodes, {"x": [512, 8]}, "y", constants)
    feeds = tuple({"x": _draw(seed, 512, 8)} for seed in range(2))
    pins = ("Sigmoid_shares", "Mul_centres", "Sub_low", "Add_high", "Sub_y")
    return Network(model, feeds, "lost_difference", pins)


def short_vectors() -> Network:
    """x / |x|, no epsilon; every second row is 1e-5 long."""
    nodes = [
        node("Mul", "x x", "squares"),
        node("ReduceSum", "squares axes", "sum", keepdims=1),
        node("Sqrt", "sum", "norm"),
        node("Div", "x norm", "unit"),
        node("MatMul", "unit w", "y"),
    ]
    model = make_model(nodes, {"x": [8, 64]}, "y", {"axes": ints(1), "w": _draw(1, 64, 16)})
    lengths = np.where(np.arange(8) % 2, np.float32(1e-5), np.float32(1))[:, None]
    feeds = tuple({"x": _draw(seed, 8, 64) * lengths} for seed in range(2))
    pins = ("Mul_squares", "ReduceSum_sum", "Sqrt_norm", "Div_unit")
    return Network(model, feeds, "vanishing_divisor", pins)


def entropy() -> Network:
    """sum p log p, with probabilities of 1e-30."""
    nodes = [
        node("Softmax", "x", "p", axis=-1),
        node("Log", "p", "l"),
        node("Mul", "p l", "product"),
        node("ReduceSum", "product axes", "y"),
    ]
    feeds = tuple({"x": 12 * _draw(seed, 8, 64)} for seed in range(2))
    model = make_model(nodes, {"x": [8, 64]}, "y", {"axes": ints(1)})
    return Network(model, feeds, "vanishing_divisor", ("Softmax_p", "Log_l"))


def small_units() -> Network:
    """Values of 1e-7 between two changes of units."""
    nodes = [
        node("Mul", "x milli", "a"),
        node("Mul", "a down", "b"),
        node("MatMul", "b w", "c"),
        node("Mul", "c up", "d"),
        node("Tanh", "d", "y"),
    ]
    constants = {"milli": scalar(1e-3), "down": scalar(1e-4), "up": scalar(5e3), "w": 100 * _draw(1, 64, 16)}
    feeds = tuple({"x": _draw(seed, 8, 64)} for seed in range(2))
    model = make_model(nodes, {"x": [8, 64]}, "y", constants)
    return Network(model, feeds, "small_value", ("Mul_b", "MatMul_c"))


def small_factor() -> Network:
    """A factor of 2.1e-7, of which FP16 makes 2.38e-7."""
    nodes = [node("Mul", "x large", "a"), node("Mul", "a factor", "b"), node("Tanh", "b", "y")]
    model = make_model(nodes, {"x": [8, 64]}, "y", {"large": scalar(2e3), "factor": scalar(2.1e-7)})
    return Network(model, ({"x": _draw(0, 8, 64)},), "small_value", ("Mul_b",))


def dead_channels() -> Network:
    """A BatchNormalization of channels that hardly vary, with an epsilon that is as small."""
    nodes = [
        node("Conv", "x w", "a", kernel_shape=[1, 1]),
        node("BatchNormalization", "a ones zeros zeros variances", "b", epsilon=1e-8),
        node("Relu", "b", "y"),
    ]
    constants = {
        "w": _draw(1, 4, 4, 1, 1),
        "ones": np.ones(4, np.float32),
        "zeros": np.zeros(4, np.float32),
        "variances": floats(2e-8, 1e-6, 1e-7, 2e-8),
    }
    feeds = tuple({"x": _draw(seed, 2, 4, 8, 8) / 1000} for seed in range(2))
    model = make_model(nodes, {"x": [2, 4, 8, 8]}, "y", constants)
    return Network(model, feeds, "vanishing_constant", ("BatchNormalization_b",))


def offset_features() -> Network:
    """Features far from zero that a LayerNormalization brings there."""
    nodes = [node("Add", "x level", "a"), node("LayerNormalization", "a one", "y")]
    constants = {"level": scalar(300.1), "one": np.ones(16, np.float32)}
    model = make_model(nodes, {"x": [32, 16]}, "y", constants)
    feeds = tuple({"x": 0.3 * _draw(seed, 32, 16)} for seed in range(2))
    return Network(model, feeds, "lost_difference", ("Add_a", "LayerNormalization_y"))


NETWORKS: dict[str, Callable[[], Network]] = {
    found.__name__: found
    for found in (
        rotary_positions,
        harmonic_source,
        relative_positions,
        counted_events,
        words_as_floats,
        counted_tokens,
        wide_boxes,
        sides_at_4k,
        short_vectors,
        entropy,
        small_units,
        small_factor,
        dead_channels,
        offset_features,
    )
}


def healthy_networks() -> Iterator[tuple[str, onnx.ModelProto, Mapping[str, Any]]]:
    """Networks with small values and large integers that FP16 takes well."""
    cast = node("Cast", "ids", "p", to=TensorProto.FLOAT)
    ids = {"ids": np.arange(4000)[None]}
    shape = {"ids": (INT64, [1, 4000])}
    yield (
        "a mean over 4000 tokens",
        make_model(
            [
                node("Shape", "x", "shape"),
                node("Cast", "shape", "count", to=TensorProto.FLOAT),
                node("ReduceSum", "x axes", "sum", keepdims=0),
                node("Div", "sum count", "y"),
            ],
            {"x": [4001]},
            "y",
            {"axes": ints(0)},
        ),
        {"x": _draw(0, 4001)},
    )
    yield (
        "positions brought to [0, 1]",
        make_model(
            [cast, node("Div", "p most", "q"), node("Unsqueeze", "q last", "c"), node("MatMul", "c w", "y")],
            shape,
            "y",
            {"most": scalar(4000), "last": ints(-1), "w": _draw(1, 1, 8)},
        ),
        ids,
    )
    yield (
        "boxes up to 640 at a stride of 8",
        make_model(
            [node("Sigmoid", "x", "s"), node("Add", "s grid", "g"), node("Mul", "g stride", "y")],
            {"x": [80]},
            "y",
            {"grid": np.arange(80, dtype=np.float32), "stride": scalar(8)},
        ),
        {"x": _draw(0, 80)},
    )
    yield (
        "probabilities",
        make_model(
            [
                node("MatMul", "x w", "a"),
                node("Softmax", "a", "p"),
                node("MatMul", "p v", "b"),
                node("Sigmoid", "a", "s"),
                node("Mul", "s p", "c"),
                node("Concat", "b c", "y", axis=1),
            ],
            {"x": [4, 64]},
            "y",
            {"w": 4 * _draw(1, 64, 64), "v": _draw(2, 64, 8)},
        ),
        {"x": _draw(0, 4, 64)},
    )
    yield (
        "a branch with a layer scale of 1e-6",
        make_model(
            [
                node("MatMul", "x w", "a"),
                node("Mul", "a gamma", "b"),
                node("Add", "x b", "c"),
                node("Relu", "c", "y"),
            ],
            {"x": [4, 64]},
            "y",
            {"w": _draw(1, 64, 64) / 8, "gamma": scalar(1e-6)},
        ),
        {"x": _draw(0, 4, 64)},
    )
    yield (
        "a dead channel in front of a bias",
        make_model(
            [node("Mul", "x tiny", "a"), node("Conv", "a w bias", "b"), node("Relu", "b", "y")],
            {"x": [1, 4, 8, 8]},
            "y",
            {"tiny": scalar(1e-6), "w": _draw(1, 4, 4, 3, 3), "bias": _draw(2, 4)},
        ),
        {"x": _draw(0, 1, 4, 8, 8)},
    )
    yield (
        "a root with an epsilon",
        make_model(
            [
                node("Mul", "x x", "q"),
                node("ReduceMean", "q", "v", axes=[1]),
                node("Add", "v eps", "e"),
                node("Sqrt", "e", "r"),
                node("Div", "x r", "y"),
            ],
            {"x": [4, 64]},
            "y",
            {"eps": scalar(1e-5)},
        ),
        {"x": _draw(0, 4, 64) * floats(1, 1e-5, 1, 1e-4)[:, None]},
    )
    yield "rotary positions up to 100", rotary_positions(101).model, rotary_positions(101).feeds[0]
