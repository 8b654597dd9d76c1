"""Sessions compute each node as it stands, and say in one paragraph why they cannot."""

import platform
import re
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from overflow_fixer.errors import ModelError, RunError
from overflow_fixer.host.allotment import count_threads
from overflow_fixer.records import Batch
from overflow_fixer.sessions.providers import Provider
from overflow_fixer.sessions.session import (
    SessionRunner,
    open_session,
    run_session,
)
from overflow_fixer.sessions.settings import make_options, use_threads

SAVING_SCRIPT = """
import sys
from pathlib import Path
import onnx
from overflow_fixer.sessions.session import save_optimized

def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

folder = Path(sys.argv[1])
model = onnx.load(folder / "model.onnx")
before = resident_bytes()
save_optimized(model, folder, folder / "optimized.onnx")
print(resident_bytes() - before)
"""


def _model(elem_type: int = TensorProto.FLOAT) -> onnx.ModelProto:
    nodes = [helper.make_node("Neg", ["x"], ["t"]), helper.make_node("Abs", ["t"], ["y"])]
    x, y = (helper.make_tensor_value_info(name, elem_type, [None]) for name in "xy")
    graph = helper.make_graph(nodes, "g", [x], [y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_a_session_has_a_thread_a_core_or_as_many_as_are_told(tmp_path: Path) -> None:
    use_threads(3)
    told = open_session(_model(), tmp_path).get_session_options().intra_op_num_threads
    use_threads(0)
    own = open_session(_model(), tmp_path).get_session_options().intra_op_num_threads
    assert (told, own) == (3, count_threads())


def _scatter(reduction: str, place: str = "graph") -> onnx.ModelProto:
    """y[i] reduced over the 40,000 rows u that name it, 8 wide; in the graph itself, in a branch, or in a local function."""
    node = helper.make_node("ScatterND", ["x", "i", "u"], ["y"], reduction=reduction)
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("own", 1)]
    inputs = [
        helper.make_tensor_value_info(name, kind, shape)
        for name, kind, shape in (
            ("x", 1, [4, 8]),
            ("i", 7, [40_000, 1]),
            ("u", 1, [40_000, 8]),
            ("c", 9, []),
        )
    ]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, [4, 8])
    functions = []
    if place == "function":
        functions = [helper.make_function("own", "Put", ["x", "i", "u"], ["y"], [node], opsets[:1])]
        node = helper.make_node("Put", ["x", "i", "u"], ["y"], domain="own")
    if place == "branch":
        bodies = [
            helper.make_graph([one], "b", [], [output])
            for one in (node, helper.make_node("Neg", ["x"], ["y"]))
        ]
        node = helper.make_node("If", ["c"], ["y"], then_branch=bodies[0], else_branch=bodies[1])
    graph = helper.make_graph([node], "g", inputs, [output])
    return helper.make_model(graph, opset_imports=opsets, functions=functions, ir_version=8)


@pytest.mark.parametrize("place", ["graph", "branch", "function", "file"])
def test_rows_that_are_added_to_one_element_are_all_added(place: str, tmp_path: Path) -> None:
    """Several threads of ONNX Runtime's ScatterND read and write one element at once."""
    model: onnx.ModelProto | Path = _scatter("add", place)
    if place == "file":
        onnx.save(model, tmp_path / "m.onnx")
        model = tmp_path / "m.onnx"
    feeds = {
        "x": np.zeros((4, 8), np.float32),
        "i": np.arange(40_000)[:, None] % 4,
        "u": np.ones((40_000, 8), np.float32),
        "c": np.asarray(True),
    }
    use_threads(4)
    session = open_session(model, tmp_path)
    use_threads(0)
    assert session.get_session_options().intra_op_num_threads == 1  # whether several lose any is luck
    for _ in range(5):
        (found,) = run_session(session, None, Batch("b", feeds))
        np.testing.assert_array_equal(found, np.full((4, 8), 10_000, np.float32))


def test_whether_rows_are_added_is_seen_without_the_weights_of_a_file(tmp_path: Path) -> None:
    model = _scatter("add")
    model.graph.initializer.append(numpy_helper.from_array(np.ones(2_000_000, np.float32), "w"))
    onnx.save(model, tmp_path / "m.onnx")
    del model
    tracemalloc.start()
    open_session(tmp_path / "m.onnx", tmp_path)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 2_000_000


def test_a_scatter_that_does_not_reduce_keeps_the_threads(tmp_path: Path) -> None:
    use_threads(3)
    told = open_session(_scatter("none"), tmp_path).get_session_options().intra_op_num_threads
    use_threads(0)
    assert told == 3


def test_weights_are_packed_unless_told_not_to(tmp_path: Path) -> None:
    packed, unpacked = (
        open_session(_model(), tmp_path, pack_weights=way).get_session_options() for way in (True, False)
    )
    assert unpacked.get_session_config_entry("session.disable_prepacking") == "1"
    with pytest.raises(RuntimeError, match="does not have configuration"):
        packed.get_session_config_entry("session.disable_prepacking")


@pytest.mark.parametrize("optimize", [False, True])
def test_what_several_nodes_read_is_dequantized_once(optimize: bool, tmp_path: Path) -> None:
    """ONNX Runtime has each of them read a DequantizeLinear of its own, unless it is told not to."""
    nodes = [
        helper.make_node("DequantizeLinear", ["q", "s"], ["w"]),
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("ReduceMax", ["w"], ["b"], keepdims=0),
    ]
    held = [
        numpy_helper.from_array(np.ones((2, 2), np.int8), "q"),
        numpy_helper.from_array(np.float32(1), "s"),
    ]
    x, *outputs = (helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in "xab")
    graph = helper.make_graph(nodes, "g", [x], outputs, held)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    options = make_options(optimize, by_priority=False, provider="cpu")
    if optimize:  # but for constant folding, which leaves none
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.optimized_model_filepath = str(tmp_path / "run.onnx")
    onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    run = onnx.load(tmp_path / "run.onnx").graph.node
    assert sum(node.op_type == "DequantizeLinear" for node in run) == (2 if optimize else 1)


def test_fp16_inputs_take_rounded_fp32_feeds(tmp_path: Path) -> None:
    runner = SessionRunner(open_session(_model(TensorProto.FLOAT16), tmp_path))
    found = runner.run(Batch("b", {"x": np.float32([1, -65520])}))["y"]
    assert found.dtype == np.float16
    assert found.tolist() == [1, np.inf]


def test_a_refused_model_and_a_failing_batch_are_told(tmp_path: Path) -> None:
    broken = _model()
    broken.graph.node[0].op_type = "NoSuchOperator"
    with pytest.raises(ModelError, match="NoSuchOperator"):
        open_session(broken, tmp_path)
    with pytest.raises(ModelError, match=r"batch night\.npz"):
        run_session(
            open_session(_model(), tmp_path), None, Batch("night.npz", {"x": np.ones((2, 2), np.float32)})
        )


HALF_WAY = {
    "a Cast that was not changed": [
        helper.make_node("Cast", ["x"], ["h"], to=TensorProto.FLOAT),
        helper.make_node("Add", ["h", "k"], ["y"]),
    ],
    "a scale of Resize": [helper.make_node("Resize", ["x", "", "k"], ["y"])],
    "a node that was to stay in FP32": [helper.make_node("Mul", ["x", "k"], ["y"])],
    "a normalisation under autocast": [helper.make_node("LayerNormalization", ["x", "k"], ["y"])],
}


@pytest.mark.parametrize("name", HALF_WAY)
def test_of_a_conversion_that_stopped_half_way_the_model_before_it_is_asked_for(
    name: str, tmp_path: Path
) -> None:
    x, y = (helper.make_tensor_value_info(one, TensorProto.FLOAT, [1]) for one in "xy")
    k = numpy_helper.from_array(np.ones(1, np.float16), "k")
    graph = helper.make_graph(HALF_WAY[name], "g", [x], [y], [k])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    with pytest.raises(ModelError) as refused:
        open_session(model, tmp_path)
    assert "Give the FP32 model that it was made from" in str(refused.value)
    assert "--ort-custom-op" not in str(refused.value)


def test_of_operators_for_a_gpu_the_model_before_they_were_fused_is_asked_for(tmp_path: Path) -> None:
    x, y = (helper.make_tensor_value_info(one, TensorProto.FLOAT, [1, 4, 4, 8]) for one in "xy")
    w = numpy_helper.from_array(np.ones((8, 1, 1, 8), np.float32), "w")
    conv = helper.make_node("NhwcConv", ["x", "w"], ["y"], domain="com.microsoft")
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(
        helper.make_graph([conv], "g", [x], [y], [w]), opset_imports=opsets, ir_version=8
    )
    with pytest.raises(ModelError, match="Give the model as it was before that"):
        open_session(model, tmp_path)


@pytest.mark.parametrize(
    ("error", "is_of_memory"),
    [
        (MemoryError(), True),
        (RuntimeError("std::bad_alloc"), True),
        (RuntimeError("bad allocation"), True),
        (RuntimeError("CUDA failure 2: out of memory"), True),
        (RuntimeError("Failed to allocate memory for requested buffer of size 8"), True),
        (RuntimeError("Failed to allocate memory for requested buffer of size 9223372036854775808"), False),
        (RuntimeError("Gather node. idx=9 must be within the inclusive range [-3,2]"), False),
    ],
)
def test_a_run_that_fails_says_whether_memory_ran_out(error: Exception, is_of_memory: bool) -> None:
    class Session:
        def get_providers(self) -> list[str]:
            return ["CPUExecutionProvider"]

        def get_outputs(self) -> list[Any]:
            return []

        def run(self, *arguments: Any) -> None:
            raise error

    with pytest.raises(ModelError) as raised:
        run_session(Session(), None, Batch("b", {}))
    assert isinstance(raised.value, RunError) is not is_of_memory
    if isinstance(raised.value, RunError):
        assert raised.value.reason == str(error)


@pytest.mark.parametrize(("providers", "levels"), [(["CUDA", "CPU"], [4, 2]), (["CPU"], [])])
def test_what_a_gpu_logs_of_a_run_is_not_shown(
    providers: list[str], levels: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Session:
        def get_providers(self) -> list[str]:
            return [f"{name}ExecutionProvider" for name in providers]

        def get_outputs(self) -> list[Any]:
            return []

        def run(self, *arguments: Any) -> list[Any]:
            assert seen == levels[:1]
            return []

    seen: list[int] = []
    monkeypatch.setattr(onnxruntime, "set_default_logger_severity", seen.append)
    run_session(Session(), None, Batch("b", {}))
    assert seen == levels


@pytest.mark.skipif(
    "CUDAExecutionProvider" in onnxruntime.get_available_providers(), reason="this onnxruntime has CUDA"
)
@pytest.mark.filterwarnings("ignore:Specified provider")
@pytest.mark.parametrize("provider", ["cuda", "tensorrt"])
def test_a_session_never_takes_another_provider_than_it_was_told(
    provider: Provider, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(_model(), path)
    for model in (_model(), path):
        with pytest.raises(ModelError, match=r"opens without .*--provider cpu"):
            open_session(model, tmp_path, provider=provider)
    assert capfd.readouterr().out == ""


def test_a_refused_model_is_not_tried_again_and_nothing_is_printed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    broken = _model()
    broken.graph.node[0].input[0] = "nowhere"
    with pytest.raises(ModelError, match="nowhere"):
        open_session(broken, tmp_path)
    assert capfd.readouterr() == ("", "")


@pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc", reason="the memory that another C library keeps is its own matter"
)
def test_saving_an_optimized_model_leaves_no_memory_behind(tmp_path: Path) -> None:
    """20 MB of weights, of which ONNX Runtime holds several copies meanwhile; without giving back, 48 MB stay."""
    values = np.ones((96, 96, 3, 3), np.float32)
    weights = [numpy_helper.from_array(values * i, f"w{i}") for i in range(60)]
    nodes = [helper.make_node("Conv", [f"t{i}", f"w{i}"], [f"t{i + 1}"], pads=[1] * 4) for i in range(60)]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 96, 8, 8]) for name in ("t0", "t60"))
    graph = helper.make_graph(nodes, "g", [x], [y], weights)
    imports = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=8), tmp_path / "model.onnx")
    command = [sys.executable, "-c", SAVING_SCRIPT, str(tmp_path)]
    grown_bytes = int(subprocess.run(command, capture_output=True, check=True, text=True).stdout)
    assert grown_bytes < 20_000_000


def test_a_batch_that_fails_on_the_cpu_is_not_advised_to_use_it(tmp_path: Path) -> None:
    with pytest.raises(ModelError) as caught:
        run_session(open_session(_model(), tmp_path), None, Batch("b", {"x": np.ones((2, 2), np.float32)}))
    assert "smaller batch." in str(caught.value)
    assert "--provider" not in str(caught.value)


@pytest.mark.parametrize(
    ("reason", "is_of_memory"),
    [
        ("Exception during initialization: std::bad_alloc", True),
        ("mmap failed: Cannot allocate memory", True),
        ("PosixThread pthread_create failed, error code: 11", True),
        ("Fatal error: com.acme:Twice(-1) is not a registered function/op", False),
    ],
)
def test_a_model_that_memory_cannot_hold_is_not_told_as_refused(
    reason: str, is_of_memory: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*given: Any, **more: Any) -> None:
        raise RuntimeError(reason)

    monkeypatch.setattr(onnxruntime, "InferenceSession", refuse)
    with pytest.raises(ModelError, match=re.escape(reason)) as raised:
        open_session(_model(), tmp_path)
    assert str(raised.value).startswith("Memory ran out when ONNX Runtime") is is_of_memory
    assert ("--ort-custom-op" in str(raised.value)) is not is_of_memory
