"""Which values inside nodes break plain FP16 engines: `python tests/gpu/measure_inner.py` prints a table.

Each case is one operator between two 1x1 convolutions of 64 channels, large enough for FP16 kernels, on data where a
value inside it is beyond FP16 and no tensor passes the threshold.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, helper, numpy_helper

from overflow_fixer.backends import BACKENDS, find_protected
from overflow_fixer.calibration import open_calibration
from overflow_fixer.config import BuildOptions, FixConfig
from overflow_fixer.graph.model import load_graph
from overflow_fixer.planning.plan import plan_precision
from overflow_fixer.progress import silent
from overflow_fixer.ranges import collect_ranges
from overflow_fixer.records import PrecisionPlan
from overflow_fixer.trials.bench import make_settings
from overflow_fixer.verification.comparison import open_reference, verify

CHANNELS, SIZE, BATCH = 64, 96, 8
node = helper.make_node
Weights = dict[str, np.ndarray]


def cases() -> Iterator[tuple[str, Sequence[NodeProto], Weights, float, int]]:
    """Name, the nodes from "a" to "b", their weights, the scale of the data, the opset."""
    ones, zeros = np.ones(SIZE, np.float32), np.zeros(SIZE, np.float32)
    yield (
        "LayerNormalization",
        [node("LayerNormalization", ["a", "g", "h"], ["b"])],
        {"g": ones, "h": zeros},
        600,
        17,
    )
    per_channel = {"g": np.ones(CHANNELS, np.float32), "h": np.zeros(CHANNELS, np.float32)}
    yield (
        "InstanceNormalization",
        [node("InstanceNormalization", ["a", "g", "h"], ["b"])],
        per_channel,
        600,
        13,
    )
    divide = [node("ReduceL2", ["a"], ["n"], axes=[3]), node("Div", ["a", "n"], ["b"])]
    yield "ReduceL2", divide, {}, 200, 13
    shift = {"shift": np.float32(300)}
    subtract = node("Sub", ["s", "m"], ["b"])
    add = node("Add", ["a", "shift"], ["s"])
    mean = node("ReduceMean", ["s"], ["m"], axes=[2, 3])
    yield "ReduceMean", [add, mean, subtract], shift, 1, 13
    yield "GlobalAveragePool", [add, node("GlobalAveragePool", ["s"], ["m"]), subtract], shift, 1, 13
    pool = node("AveragePool", ["s"], ["m"], kernel_shape=[31, 31], strides=[1, 1], pads=[15] * 4)
    yield "AveragePool", [add, pool, subtract], shift, 1, 13
    yield "LogSoftmax", [node("LogSoftmax", ["a"], ["b"], axis=3)], {}, 12, 13
    twelve = {"shift": np.float32(11.5)}
    lse = node("ReduceLogSumExp", ["s"], ["m"], axes=[3])
    yield "ReduceLogSumExp", [add, lse, subtract], twelve, 1, 13
    twenty = {"shift": np.float32(20)}
    yield "Softplus", [add, node("Softplus", ["s"], ["m"]), node("Sub", ["m", "shift"], ["b"])], twenty, 1, 13
    pairs = np.repeat(np.random.RandomState(3).normal(0, 40, (2048, 64)).astype(np.float32), 2, axis=0)
    pairs[1::2] *= -1
    spread = np.random.RandomState(4).normal(0, 1, (SIZE, 4096)).astype(np.float32)
    spread[:, 1::2] = spread[:, ::2] + np.float32(0.01) * spread[:, 1::2]
    back = np.random.RandomState(5).normal(0, 0.1, (64, SIZE)).astype(np.float32)
    products = [
        node("MatMul", ["a", "spread"], ["wide"]),
        node("MatMul", ["wide", "pairs"], ["narrow"]),
        node("MatMul", ["narrow", "back"], ["b"]),
    ]
    yield "MatMul", products, {"spread": spread, "pairs": pairs, "back": back}, 1, 13


def save(
    folder: Path, name: str, nodes: Sequence[NodeProto], weights: Weights, scale: float, opset: int
) -> None:
    rng = np.random.RandomState(1)
    mix = np.eye(CHANNELS, dtype=np.float32) + rng.normal(0, 0.02, (CHANNELS, CHANNELS)).astype(np.float32)
    kernel = mix.reshape(CHANNELS, CHANNELS, 1, 1)
    everything = {**weights, "in_kernel": kernel, "out_kernel": kernel}
    chain = [node("Conv", ["x", "in_kernel"], ["a"]), *nodes, node("Conv", ["b", "out_kernel"], ["y"])]
    for i, each in enumerate(chain):
        each.name = f"{each.op_type}_{i}"
    shape = [BATCH, CHANNELS, SIZE, SIZE]
    info = helper.make_tensor_value_info
    initializers = [numpy_helper.from_array(np.asarray(value), key) for key, value in everything.items()]
    inputs, outputs = [info("x", TensorProto.FLOAT, shape)], [info("y", TensorProto.FLOAT, shape)]
    graph = helper.make_graph(chain, name, inputs, outputs, initializers)
    imports = [helper.make_opsetid("", opset)]
    onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=8), folder / "model.onnx")
    (folder / "data").mkdir()
    for i in range(2):
        np.savez(folder / "data" / f"{i}.npz", x=rng.normal(0, scale, shape).astype(np.float32))


def measure(folder: Path) -> str:
    """Plain FP16, with the plan's findings, and the fixed engine."""
    build = BuildOptions(backend="tensorrt")
    config = FixConfig(model=folder / "model.onnx", calib=folder / "data", out=folder / "out", build=build)
    backend, graph = BACKENDS["tensorrt"], load_graph(config.model)
    calibration = open_calibration(config.calib, graph.inputs, config.calibration)
    settings = make_settings(config, graph, calibration, backend)
    ranges = collect_ranges(graph, calibration)
    policy = config.plan.policy(find_protected("tensorrt", "auto"))
    plan = plan_precision(graph, ranges, policy)
    said = []
    for kind, tried in (("naive", PrecisionPlan(graph.sha256, 10000.0, ())), ("fixed", plan)):
        artifact = backend.emit(graph, tried, folder / f"{kind}.engine", settings, silent)
        runner = backend.open_runner(artifact, settings)
        found = verify(open_reference(graph), runner, calibration, config.verify.tolerance())
        error = found.outputs[0].error
        said.append(f"{kind} {error.snr_db:.1f} dB, {error.mismatched} not finite")
    findings = [f for pin in plan.pins for f in pin.findings] + list(plan.considered)
    evidence = {f"{f.action}: {f.reason}" for f in findings}
    widest = max(found.max_abs for found in ranges.ranges)
    return f"{' | '.join(said)} | tensors up to {widest:.4g} | {'; '.join(sorted(evidence))}"


def main() -> None:
    asked = set(sys.argv[1:])
    for name, nodes, weights, scale, opset in cases():
        if asked and name not in asked:
            continue
        with tempfile.TemporaryDirectory() as work:
            save(Path(work), name, nodes, weights, scale, opset)
            try:
                print(f"{name} | {measure(Path(work))}", flush=True)
            except Exception as error:  # a case that fails is a result
                print(f"{name} | {type(error).__name__}: {error}", flush=True)


if __name__ == "__main__":
    main()
