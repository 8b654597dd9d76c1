"""Convolutions by constant weights of one sign, and the differences that are made of what they give."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from fp16_emulation import measure_snr_db
from in_memory_calibration import floats, make_model, node, pinned_by, scalar, scan

from overflow_fixer.evidence.kernels.difference_kernels import MOST_WEIGHTS
from overflow_fixer.evidence.kernels.weighted_means import find_weighted_means
from overflow_fixer.rules.lost_difference import find_lost_differences

BLUR = floats(1, 4, 6, 4, 1) / 16
WEIGHTS = {
    "blur": (BLUR, True),
    "sum": (np.ones(5, np.float32), True),
    "with zeros": (floats(0, 1, 2, 1, 0), True),
    "with a negative one": (floats(-0.1, 1, 2, 1, 0), False),
    "zeros": (np.zeros(5, np.float32), False),
    "with NaN": (floats(1, 2, math.nan), False),
    "with infinity": (floats(1, 2, math.inf), False),
    "as many as are read": (np.ones(MOST_WEIGHTS, np.float32), True),
    "more": (np.ones(MOST_WEIGHTS + 1, np.float32), False),
}


def _load(folder: Path, nodes: list[onnx.NodeProto], constants: dict[str, Any], **shapes: Any) -> Any:
    feeds = {name: np.ones(shape, np.float32) for name, shape in shapes.items()}
    return scan(make_model(nodes, shapes, "y", constants), folder, feeds)[0]


@pytest.mark.parametrize("name", WEIGHTS)
def test_which_weights_make_a_mean(name: str, tmp_path: Path) -> None:
    weights, is_mean = WEIGHTS[name]
    constants = {"w": weights.reshape(1, 1, -1)}
    graph = _load(tmp_path, [node("Conv", "x w", "y")], constants, x=[1, 1, weights.size])
    assert find_weighted_means(graph) == ({"Conv_y"} if is_mean else set())


@pytest.mark.parametrize(
    ("op", "inputs", "is_mean"),
    [
        ("Conv", "x w", True),
        ("Conv", "x w zero", True),
        ("Conv", "x w one", False),
        ("Conv", "x v", False),
        ("Conv", "x none", False),
        ("ConvTranspose", "x w", False),
    ],
)
def test_which_nodes_are_means(op: str, inputs: str, is_mean: bool, tmp_path: Path) -> None:
    constants = {
        "w": BLUR.reshape(1, 1, -1),
        "zero": floats(0),
        "one": floats(1),
        "none": np.zeros((0, 1, 5), np.float32),
    }
    shapes = {"x": [1, 1, 9]} | ({"v": [1, 1, 5]} if "v" in inputs.split() else {})
    graph = _load(tmp_path, [node(op, inputs, "y")], constants, **shapes)
    assert find_weighted_means(graph) == ({"Conv_y"} if is_mean else set())


SIGNAL = np.random.default_rng(8).normal(0, 0.2, (2, 1, 64)).astype(np.float32)
FORMS = {
    "a variance": (
        [
            node("Mul", "x x", "q"),
            node("Conv", "q w", "mq"),
            node("Conv", "x w", "mu"),
            node("Mul", "mu mu", "m2"),
            node("Sub", "mq m2", "v"),
            node("Add", "v eps", "ve"),
            node("Div", "one ve", "y"),
        ],
        ["Mul_q", "Conv_mq", "Conv_mu", "Mul_m2", "Sub_v"],
        ["Mul_q"],
    ),
    "what a padded blur leaves": (
        [
            node("Mul", "x one", "s"),
            node("Pad", "s pads", "p", mode="reflect"),
            node("Conv", "p w", "b"),
            node("Sub", "s b", "d"),
            node("Abs", "d", "m"),
            node("ReduceMax", "m", "most", axes=[2]),
            node("Div", "d most", "y"),
        ],
        ["Mul_s", "Pad_p", "Conv_b", "Sub_d"],
        ["Pad_p"],
    ),
    "an error that is blurred": (
        [
            node("Sub", "x far", "d"),
            node("Mul", "d d", "q"),
            node("Conv", "q w", "v"),
            node("Div", "one v", "y"),
        ],
        ["Sub_d"],
        ["Sub_d"],
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_difference_of_means_is_right_with_what_they_read(form: str, tmp_path: Path) -> None:
    """At 20 FP16's steps are 1/64, and at its square 1/4."""
    nodes, pinned, needed = FORMS[form]
    constants = {"w": BLUR.reshape(1, 1, 5), "eps": scalar(1e-4), "one": scalar(1), "far": scalar(20.01)}
    constants["pads"] = np.asarray([0, 0, 2, 0, 0, 2])
    near = (SIGNAL if form == "a variance" else SIGNAL / 5) + np.float32(20)
    graph, ranges = scan(make_model(nodes, {"x": [2, 1, 64]}, "y", constants), tmp_path, {"x": near})
    assert pinned_by(find_lost_differences, graph, ranges) == pinned

    def snr_db(labels: list[str]) -> float:
        fp32 = {name for one in graph.nodes if one.label in labels for name in one.writes}
        return measure_snr_db(tmp_path / "model.onnx", {"x": near}, fp32)

    assert snr_db(pinned) > 40
    assert snr_db([label for label in pinned if label not in needed]) < 30
