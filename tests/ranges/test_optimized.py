"""The scan of optimised kernels: near the exact values, and no tensor kept longer than it must be."""

import subprocess
import tempfile
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from onnx import NodeProto, TensorProto, helper, numpy_helper
from scan_cases import MemoryBatches, save_model, value_info

from overflow_fixer.errors import ModelError, OutputError
from overflow_fixer.graph.model import Graph
from overflow_fixer.ranges import collect_ranges, observers
from overflow_fixer.ranges.instrument import add_probes
from overflow_fixer.ranges.optimized import has_faster_kernels, optimize_probed
from overflow_fixer.ranges.probing import Probing
from overflow_fixer.sessions.session import save_optimized
from overflow_fixer.sessions.settings import has_native_probes

node = helper.make_node
RNG = np.random.default_rng(0)
needs_library = pytest.mark.skipif(not has_native_probes(), reason="the library was not built")


def conv_net(path: Path, channels: int) -> Graph:
    """Three convolutions of `channels` each, with a residual and what ends the blocked layout."""
    widths = [(channels, 3), (channels, channels), (channels, channels)]
    weights = [
        numpy_helper.from_array(RNG.normal(0, 0.2, (*width, 3, 3)).astype(np.float32), f"w{i}")
        for i, width in enumerate(widths)
    ]
    same = {"kernel_shape": [3, 3], "pads": [1] * 4}
    nodes = [
        node("Conv", ["x", "w0"], ["c0"], **same),
        node("Relu", ["c0"], ["r0"]),
        node("Conv", ["r0", "w1"], ["c1"], **same),
        node("Sigmoid", ["c1"], ["s1"]),
        node("Mul", ["c1", "s1"], ["m1"]),
        node("Conv", ["m1", "w2"], ["c2"], **same),
        node("Add", ["c2", "r0"], ["a"]),
        node("ReduceMean", ["a"], ["y"], axes=[2, 3]),
    ]
    return save_model(path, nodes, [value_info("x", dims=[1, 3, 16, 16])], [value_info("y")], weights)


def batches(*scales: float) -> MemoryBatches:
    values = RNG.normal(size=(1, 3, 16, 16)).astype(np.float32)
    return MemoryBatches([{"x": values * np.float32(scale)} for scale in scales])


@pytest.mark.parametrize("channels", [16, 32, 20, 24, 30])
def test_values_are_near_the_exact_ones(tmp_path: Path, channels: int) -> None:
    graph, data = conv_net(tmp_path / "m.onnx", channels), batches(1, 3)
    exact, near = (collect_ranges(graph, data, observe=way) for way in ("reductions", "optimized"))
    assert (near.observe, near.batch_names) == ("optimized", exact.batch_names)
    for one, other in zip(exact.ranges, near.ranges, strict=True):
        assert (one.tensor, one.element_count, one.nan_count) == (
            other.tensor,
            other.element_count,
            other.nan_count,
        )
        np.testing.assert_allclose(
            [other.min, other.max], [one.min, one.max], rtol=0, atol=1e-5 * one.max_abs
        )


def test_what_overflows_is_counted_as_in_the_exact_scan(tmp_path: Path) -> None:
    graph, data = conv_net(tmp_path / "m.onnx", 16), batches(1, 1e5, np.nan)
    exact, near = (collect_ranges(graph, data, observe=way) for way in ("reductions", "optimized"))
    counts = [(r.tensor, r.over_fp16_count, r.nan_count, r.inf_count) for r in near.ranges]
    assert counts == [(r.tensor, r.over_fp16_count, r.nan_count, r.inf_count) for r in exact.ranges]
    assert any(over for _, over, _, _ in counts)
    assert any(nan for _, _, nan, _ in counts)


def test_probes_read_blocks_and_stand_behind_their_tensors(tmp_path: Path) -> None:
    graph = conv_net(tmp_path / "m.onnx", 32)
    tensors = ["c0", "r0", "c1", "s1", "m1", "c2", "a", "y"]
    probed = add_probes(graph, tensors, Probing(shapes=graph.sure_shapes))
    with TemporaryDirectory() as work:
        nodes = list(optimize_probed(probed, Path(work))[0].graph.node)
    written = [name for at in nodes for name in at.output]
    assert all(
        written.index(name) < written.index(at.output[0])
        for at in nodes
        for name in at.input
        if name in written
    )
    convolutions = [i for i, at in enumerate(nodes) if at.op_type == "Conv"]
    if {nodes[i].domain for i in convolutions} != {"com.microsoft.nchwc"}:
        pytest.skip("ONNX Runtime has no blocked layout on this processor")
    for i in convolutions:
        (output,) = nodes[i].output
        assert nodes[i + 1].input[0] == output
        assert nodes[i + 1].op_type.startswith("Reduce")
    assert {at.output[0] for at in nodes if at.op_type == "ReorderOutput"} == {"a"}  # which ReduceMean reads


def optimized_nodes(graph: Graph, how: Probing) -> list[NodeProto]:
    """With a probe of c0."""
    with TemporaryDirectory() as work:
        nodes = list(optimize_probed(add_probes(graph, ["c0"], how), Path(work))[0].graph.node)
    if "com.microsoft.nchwc" not in {at.domain for at in nodes}:
        pytest.skip("ONNX Runtime has no blocked layout on this processor")
    return nodes


@needs_library
def test_a_native_probe_reads_padded_blocks(tmp_path: Path) -> None:
    nodes = optimized_nodes(
        conv_net(tmp_path / "m.onnx", 20), Probing(detailed=frozenset({"c0"}), is_native=True)
    )
    (probe,) = (at for at in nodes if at.op_type == "BlockProbe")
    (layout,) = (at for at in nodes if at.output[0] == probe.input[1])
    channels, block = numpy_helper.to_array(layout.attribute[0].t)
    assert (channels, block) in ((20, 8), (20, 16))
    assert "c0" not in {name for at in nodes for name in at.output}


def test_a_reorder_that_only_a_probe_needs_stays_where_blocks_are_padded(tmp_path: Path) -> None:
    nodes = optimized_nodes(conv_net(tmp_path / "m.onnx", 20), Probing())
    place = next(i for i, at in enumerate(nodes) if "c0" in at.output)
    assert nodes[place].op_type == "ReorderOutput"
    assert nodes[place - 1].output[0] == nodes[place].input[0]
    assert nodes[place + 1].input[0] == "c0"


@pytest.mark.parametrize(
    ("op_type", "elem_type", "expected"),
    [
        ("Conv", TensorProto.FLOAT, True),
        ("Conv", TensorProto.DOUBLE, False),
        ("Conv", TensorProto.FLOAT16, False),
        ("MatMul", TensorProto.FLOAT, False),
    ],
)
def test_only_convolutions_of_float32_have_faster_kernels(
    tmp_path: Path, op_type: str, elem_type: int, expected: bool
) -> None:
    inputs = [value_info(name, elem_type, [1, 1, 4, 4]) for name in "xw"]
    graph = save_model(
        tmp_path / "m.onnx", [node(op_type, ["x", "w"], ["y"])], inputs, [value_info("y", elem_type)]
    )
    assert has_faster_kernels(graph) is expected


@pytest.mark.parametrize("is_quantized", [True, False])
def test_convolutions_of_what_was_an_integer_have_none(is_quantized: bool, tmp_path: Path) -> None:
    scale = numpy_helper.from_array(np.float32(0.1), "scale")
    weight = numpy_helper.from_array(np.ones((1, 1, 1, 1), np.float32), "w")
    nodes = [
        node("QuantizeLinear", ["x", "scale"], ["q"]),
        node("DequantizeLinear", ["q", "scale"], ["d"]),
        node("Conv", ["d" if is_quantized else "x", "w"], ["y"]),
        node("Neg", ["d"], ["z"]),
    ]
    outputs = [value_info(name, TensorProto.FLOAT) for name in "yz"]
    inputs = [value_info("x", TensorProto.FLOAT, [1, 1, 4, 4])]
    graph = save_model(tmp_path / "m.onnx", nodes, inputs, outputs, [scale, weight])
    assert has_faster_kernels(graph) is not is_quantized


@pytest.mark.parametrize(("products", "observe"), [(0, "optimized"), (1, "reductions"), (2, "reductions")])
def test_what_is_mostly_products_of_matrices_is_scanned_exactly_and_told_so(
    tmp_path: Path, products: int, observe: str
) -> None:
    weights = [numpy_helper.from_array(RNG.normal(0, 0.2, (16, 3, 3, 3)).astype(np.float32), "w")]
    weights += [numpy_helper.from_array(np.eye(14, dtype=np.float32), "eye")]
    names = [f"t{i}" for i in range(products + 1)]
    nodes = [node("Conv", ["x", "w"], ["t0"], kernel_shape=[3, 3])]
    nodes += [node("MatMul", [before, "eye"], [name]) for before, name in pairwise(names)]
    graph = save_model(
        tmp_path / "m.onnx", nodes, [value_info("x", dims=[1, 3, 16, 16])], [value_info(names[-1])], weights
    )
    assert collect_ranges(graph, batches(1), observe="optimized").observe == observe


def test_a_model_with_fp16_beside_its_convolutions_is_scanned_exactly(tmp_path: Path) -> None:
    weight = numpy_helper.from_array(RNG.normal(0, 0.2, (16, 3, 3, 3)).astype(np.float32), "w")
    nodes = [
        node("Conv", ["x", "w"], ["c"], kernel_shape=[3, 3]),
        node("Cast", ["c"], ["h"], to=TensorProto.FLOAT16),
        node("Cast", ["h"], ["y"], to=TensorProto.FLOAT),
    ]
    graph = save_model(
        tmp_path / "m.onnx", nodes, [value_info("x", dims=[1, 3, 16, 16])], [value_info("y")], [weight]
    )
    data = batches(1)
    exact, near = (collect_ranges(graph, data, observe=way) for way in ("reductions", "optimized"))
    assert near.ranges == exact.ranges


def test_a_model_that_does_not_load_is_refused(tmp_path: Path) -> None:
    graph = save_model(
        tmp_path / "m.onnx", [node("Add", ["x", "x"], ["y"])], [value_info("x", dims=[2])], [value_info("y")]
    )
    probed = add_probes(graph, ["x"])
    model = probed.build_model()
    model.graph.node.append(node("NoSuchOperator", ["x"], ["z"]))
    with pytest.raises(ModelError, match="refuses the model"):
        save_optimized(model, tmp_path, tmp_path / "optimized.onnx")


def test_a_model_that_the_optimiser_breaks_is_told_to_go_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise ModelError("Refused. Expected another.") from RuntimeError("no single static assignment.")

    monkeypatch.setattr(observers, "optimize_probed", refuse)
    weight = numpy_helper.from_array(np.ones((1, 3, 1, 1), np.float32), "w")
    x, y = value_info("x", dims=[1, 3, 16, 16]), value_info("y")
    graph = save_model(tmp_path / "m.onnx", [node("Conv", ["x", "w"], ["y"])], [x], [y], [weight])
    with pytest.raises(
        ModelError, match=r"of it: no single static assignment\. Expected .* Leave --fast out"
    ):
        collect_ranges(graph, batches(1), observe="optimized")


@pytest.mark.parametrize("size", ["64k", "900k"])
def test_a_folder_for_temporary_files_that_is_full_is_told(
    size: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "small").mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", tmp_path / "small"], capture_output=True
    )
    if mounted.returncode != 0:
        pytest.skip("a small file system can be mounted by root alone")
    monkeypatch.setenv("TMPDIR", str(tmp_path / "small"))
    monkeypatch.setattr(tempfile, "tempdir", None)
    try:
        graph = conv_net(tmp_path / "m.onnx", 256)
        with pytest.raises(OutputError, match=r"temporary files, .*/small, could not be written: .* TMPDIR"):
            collect_ranges(graph, batches(1), observe="optimized")
        assert list((tmp_path / "small").iterdir()) == []
    finally:
        subprocess.run(["umount", tmp_path / "small"], check=True)


def test_no_folder_for_temporary_files_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise FileNotFoundError(2, "No usable temporary directory found")

    monkeypatch.setattr(tempfile, "TemporaryDirectory", refuse)
    with pytest.raises(OutputError, match=r"could not be written: No usable .* TMPDIR"):
        collect_ranges(conv_net(tmp_path / "m.onnx", 16), batches(1), observe="optimized")


def test_what_a_body_that_is_not_looked_into_captures_is_still_there(tmp_path: Path) -> None:
    """Laid out as it was, for a body reads no blocks."""
    body = helper.make_graph(
        [helper.make_node("Add", ["e", "h"], ["f"])], "b", [value_info("e")], [value_info("f")]
    )
    weight = numpy_helper.from_array(np.ones((32, 16, 1, 1), np.float32), "w")
    items = helper.make_tensor_sequence_value_info("q", TensorProto.FLOAT, None)
    out = helper.make_tensor_sequence_value_info("r", TensorProto.FLOAT, None)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["h"]),
        helper.make_node("SequenceMap", ["q"], ["r"], body=body),
    ]
    graph = save_model(
        tmp_path / "m.onnx", nodes, [value_info("x", dims=[1, 16, 4, 4]), items], [out], [weight]
    )
    feeds = {"x": np.ones((1, 16, 4, 4), np.float32), "q": [np.ones(1, np.float32)]}
    table = collect_ranges(graph, MemoryBatches([feeds]), observe="optimized")
    assert table.by_tensor["h"].max_abs == 16
