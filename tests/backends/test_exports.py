"""The files that `--export` leaves: scripts that run as they are, and trtexec's arguments."""

import ast
import importlib
import json
import shlex
import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnx
import pytest
from engine_scripts import disobeyed, engine, small_graph, small_script
from fake_tensorrt import Script, Variant, fake_tensorrt
from onnx import TensorProto, helper, numpy_helper
from recorded_networks import NAMES, make_plan, parsed_network, pinned_layers, recorded_graph, recorded_script
from standin_gpu import use_standin_gpu
from trtexec_rules import pin_by_rules, read_options
from typed_models import write_model

from overflow_fixer.backends.mixed_onnx.assignment import computes_float
from overflow_fixer.backends.tensorrt import emit, exports, network
from overflow_fixer.backends.tensorrt.capabilities import probe
from overflow_fixer.backends.tensorrt.exports import trtexec_files
from overflow_fixer.backends.tensorrt.exports.chosen_pins import choose_pins
from overflow_fixer.backends.tensorrt.exports.export import Export
from overflow_fixer.backends.tensorrt.exports.staleness import remove_stale, sign
from overflow_fixer.backends.tensorrt.mapping import map_layers, read_layers
from overflow_fixer.backends.tensorrt.pins import choose_layers, set_pins
from overflow_fixer.backends.tensorrt.source import find_source
from overflow_fixer.cli import main
from overflow_fixer.errors import BackendError, OutputError
from overflow_fixer.graph.model import Graph, load_graph
from overflow_fixer.records import Artifact, BuildSettings, Clamp, Engine, Kept, PrecisionPlan, ShapeRange
from overflow_fixer.reports import load_plan

_PLAIN = BuildSettings()


def _onnx_artifact(graph: Graph) -> Artifact:
    return Artifact("onnx", graph.path, (), (), (), (), 0)


def _engine_artifact(graph: Graph, **changes: Any) -> Artifact:
    engine = Engine("8.6.1", "GPU", (9, 0), "weak", "obey", 1, 1, 0, 0, 0)
    return Artifact("tensorrt", graph.path, (), (), (), (), 0, replace(engine, **changes))


def _import_script(path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Import a script as Polygraphy does: as a module, by its file name without the suffix."""
    monkeypatch.syspath_prepend(str(path.parent))
    monkeypatch.delitem(sys.modules, path.stem, raising=False)
    importlib.invalidate_caches()
    return importlib.import_module(path.stem)


@pytest.fixture
def use_tensorrt(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], None]:
    """Put a fake module in TensorRT's place, and what a loader script takes from Polygraphy beside it."""

    def use(trt: Any) -> None:
        polygraphy: Any = ModuleType("polygraphy.backend.trt")
        logger = type("Quiet", (trt.ILogger,), {"log": lambda *_: None})()
        polygraphy.get_trt_logger = lambda: logger
        polygraphy.create_network = lambda: _create_network(trt, logger)
        monkeypatch.setitem(sys.modules, "tensorrt", trt)
        for name in ("polygraphy", "polygraphy.backend"):
            monkeypatch.setitem(sys.modules, name, ModuleType(name))
        monkeypatch.setitem(sys.modules, "polygraphy.backend.trt", polygraphy)

    return use


def _create_network(trt: Any, logger: Any) -> tuple[Any, Any]:
    builder = trt.Builder(logger)
    explicit = trt.NetworkDefinitionCreationFlag.__members__.get("EXPLICIT_BATCH")
    return builder, builder.create_network(0 if explicit is None else 1 << int(explicit))


def _floats(graph: Graph) -> list[str]:
    """Every third node that computes floats."""
    labels = [n.label for n in graph.nodes if n.op_type != "Constant" and graph.is_float(n.outputs[0])]
    return labels[::3]


def _expected_pins(trt: Any, graph: Graph, labels: list[str]) -> dict[str, Any]:
    parsed = parsed_network(trt)
    fused = [pin.node for pin in choose_pins(graph, make_plan(graph, *labels), _onnx_artifact(graph))]
    set_pins(trt, parsed, choose_layers(graph, map_layers(read_layers(parsed), graph), fused))
    return pinned_layers(parsed)


@pytest.mark.parametrize("name", NAMES)
def test_the_npps_script_pins_what_the_backend_pins(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, use_tensorrt: Callable[[Any], None]
) -> None:
    graph, trt = recorded_graph(name), fake_tensorrt("8.6", recorded_script(name))
    labels = _floats(graph)
    (path,) = exports.write_exports(
        ["polygraphy-npps"], Export(graph, make_plan(graph, *labels), _onnx_artifact(graph), _PLAIN, tmp_path)
    )
    use_tensorrt(trt)
    parsed = parsed_network(trt)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert _import_script(path, monkeypatch).postprocess(network=parsed) is None
    assert pinned_layers(parsed) == _expected_pins(trt, graph, labels) != {}


@pytest.mark.parametrize("name", NAMES)
def test_the_loader_script_parses_the_model_and_pins_what_the_backend_pins(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, use_tensorrt: Callable[[Any], None]
) -> None:
    graph, trt = recorded_graph(name), fake_tensorrt("8.6", recorded_script(name))
    labels = _floats(graph)
    (path,) = exports.write_exports(
        ["polygraphy-loader"],
        Export(graph, make_plan(graph, *labels), _onnx_artifact(graph), _PLAIN, tmp_path),
    )
    use_tensorrt(trt)
    builder, parsed, parser = _import_script(path, monkeypatch).load_network()
    assert isinstance(builder, trt.Builder)
    assert isinstance(parser, trt.OnnxParser)
    assert Path(trt.script.parsed[0]).samefile(graph.path)
    assert pinned_layers(parsed) == _expected_pins(trt, graph, labels) != {}


@pytest.mark.parametrize("kind", ["polygraphy-npps", "polygraphy-loader"])
def test_a_script_imports_nothing_but_tensorrt_and_polygraphy(kind: str, tmp_path: Path) -> None:
    graph = recorded_graph("conv_chain")
    plan = make_plan(graph, "/conv5/Conv")
    (path,) = exports.write_exports([kind], Export(graph, plan, _onnx_artifact(graph), _PLAIN, tmp_path))
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text, feature_version=(3, 8))
    modules = {alias.name for n in ast.walk(tree) if isinstance(n, ast.Import) for alias in n.names}
    modules |= {n.module or "" for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
    standard = {m for m in modules if m.split(".")[0] in sys.stdlib_module_names}
    assert modules - standard <= {"tensorrt", "polygraphy.backend.trt"}
    assert "# threshold: it was seen at 1e+06" in text
    assert "--fp16 --precision-constraints obey" in text


@pytest.mark.parametrize("by_settings", [False, True])
@pytest.mark.parametrize("by_plan", [False, True])
@pytest.mark.parametrize("kind", ["polygraphy-npps", "polygraphy-loader", "trtexec"])
def test_tf32_is_allowed_where_settings_and_plan_do(
    kind: str, by_plan: bool, by_settings: bool, tmp_path: Path
) -> None:
    graph, trt = recorded_graph("conv_chain"), fake_tensorrt("8.6", recorded_script("conv_chain"))
    plan = replace(make_plan(graph, "/fc/Gemm"), tf32=by_plan)
    with use_standin_gpu(trt):
        exported = Export(graph, plan, _engine_artifact(graph), replace(_PLAIN, tf32=by_settings), tmp_path)
        written = exports.write_exports([kind], exported)
    text = "".join(path.read_text() for path in written)
    assert ("--no-tf32" in text or "--noTF32" in text) is not (by_plan and by_settings)


@pytest.mark.parametrize("kind", ["polygraphy-npps", "polygraphy-loader"])
def test_a_script_asks_for_no_fp16_where_every_node_is_pinned(kind: str, tmp_path: Path) -> None:
    graph = recorded_graph("conv_chain")
    plan = make_plan(graph, *(node.label for node in graph.nodes if computes_float(graph, node)))
    for io_types, is_asked in (("keep", False), ("fp16", True)):
        settings = replace(_PLAIN, io_types=io_types)
        exported = Export(graph, plan, _onnx_artifact(graph), settings, tmp_path)
        (path,) = exports.write_exports([kind], exported)
        (usage,) = (line for line in path.read_text().splitlines() if "$ polygraphy" in line)
        assert ("--fp16 --precision-constraints obey" in usage) is ("--fp16" in usage) is is_asked


def test_what_a_model_says_of_itself_cannot_break_out_of_a_script(tmp_path: Path) -> None:
    graph = recorded_graph("conv_chain")
    plan = make_plan(graph, "/conv5/Conv", reason="one\nimport os\r\x0cos.abort()\x00\u2028")
    clamps = (Clamp("/conv5/Conv_output_0", 6e4, 'two\nraise """'),)
    kinds = ["polygraphy-npps", "polygraphy-loader"]
    written = exports.write_exports(
        kinds, Export(graph, replace(plan, clamps=clamps), _onnx_artifact(graph), _PLAIN, tmp_path)
    )
    for path in written:
        lines = path.read_text(encoding="utf-8").split("\n")
        ast.parse("\n".join(lines))
        assert [line.lstrip()[0] for line in lines if "abort" in line or 'raise """' in line] == ["#", "#"]


def test_a_model_whose_name_has_dots_gives_scripts_that_can_be_imported(tmp_path: Path) -> None:
    model = tmp_path / "net.v1.2.onnx"
    model.write_bytes(recorded_graph("needs_constraints").path.read_bytes())
    graph = load_graph(model)
    kinds = ["polygraphy-npps", "polygraphy-loader", "polygraphy-npps"]
    written = exports.write_exports(
        kinds, Export(graph, make_plan(graph), _onnx_artifact(graph), _PLAIN, tmp_path)
    )
    assert [path.name for path in written] == ["net_v1_2_npps.py", "net_v1_2_loader.py"]


def test_the_loader_refuses_another_model_and_says_what_tensorrt_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, use_tensorrt: Callable[[Any], None]
) -> None:
    model = tmp_path / "model.onnx"
    model.write_bytes(recorded_graph("needs_constraints").path.read_bytes())
    graph = load_graph(model)
    out = tmp_path / "out"
    (path,) = exports.write_exports(
        ["polygraphy-loader"], Export(graph, make_plan(graph, "/Add"), _onnx_artifact(graph), _PLAIN, out)
    )
    script = _import_script(path, monkeypatch)
    use_tensorrt(fake_tensorrt("8.6", Script(parse_errors=["No importer registered for op: Foo"])))
    with pytest.raises(RuntimeError, match=r"cannot take .*No importer registered for op: Foo"):
        script.load_network()
    use_tensorrt(fake_tensorrt("11", recorded_script("needs_constraints")))
    with pytest.raises(RuntimeError, match="strongly typed"):
        script.load_network()
    model.write_bytes(recorded_graph("conv_chain").path.read_bytes())
    with pytest.raises(RuntimeError, match="is not the model that the plan was made for"):
        script.load_network()


def _model_with_masks(path: Path) -> Graph:
    """x + mask + other + full, the mask an initializer in external data, the other of a Constant node, the last filled."""
    mask = numpy_helper.from_array(np.array([0, -3.4e38, np.nan], np.float32), "mask")
    low = numpy_helper.from_array(np.array([-3.4e38], np.float32), "low")
    nodes = [
        helper.make_node("Constant", [], ["other"], value_floats=[1.0, -1e9, 2.0], name="const"),
        helper.make_node("Add", ["x", "mask"], ["a"], name="add"),
        helper.make_node("Add", ["a", "other"], ["b"], name="add2"),
        helper.make_node("Shape", ["b"], ["shape"], name="shape"),
        helper.make_node("ConstantOfShape", ["shape"], ["full"], name="fill", value=low),
        helper.make_node("Add", ["b", "full"], ["y"], name="add3"),
    ]
    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 3]) for name in "xy"]
    graph = helper.make_graph(nodes, "g", value[:1], value[1:], [mask])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, str(path), save_as_external_data=True, size_threshold=0, location="model.data")
    return load_graph(path)


def _clamping_plan(graph: Graph) -> PrecisionPlan:
    clamps = (Clamp("mask", 6e4, "-3.4e38 is no FP16 value"), Clamp("other", 5e4, "nor is -1e9"))
    return replace(make_plan(graph, "add2"), clamps=(*clamps, Clamp("full", 4e4, "nor is -3.4e38")))


def test_the_loader_clamps_what_the_backend_clamps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, use_tensorrt: Callable[[Any], None]
) -> None:
    graph = _model_with_masks(tmp_path / "model.onnx")
    plan = _clamping_plan(graph)
    (path,) = exports.write_exports(
        ["polygraphy-loader"], Export(graph, plan, _onnx_artifact(graph), _PLAIN, tmp_path / "out")
    )
    trt = fake_tensorrt("8.6", Script())
    use_tensorrt(trt)
    with pytest.raises(RuntimeError, match="'add2' matches no layer"):
        _import_script(path, monkeypatch).load_network()
    ((content, origin),) = trt.script.parsed
    assert Path(origin).samefile(graph.path)
    expected = find_source(graph, plan, probe(trt), {})
    assert isinstance(expected, bytes)
    found, wanted = onnx.ModelProto.FromString(content), onnx.ModelProto.FromString(expected)
    assert found == wanted
    clamped = numpy_helper.to_array(found.graph.initializer[0])
    np.testing.assert_array_equal(clamped, np.array([0, -6e4, np.nan], np.float32))


def test_the_loader_script_writes_out_the_sigmoids_that_the_tool_writes_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, use_tensorrt: Callable[[Any], None]
) -> None:
    graph = load_graph(write_model(tmp_path, "g (float[4] x) => (float[4] y) { a = Relu(x) y = Sigmoid(a) }"))
    plan = make_plan(graph, graph.nodes[1].label)
    kinds = ["polygraphy-loader", "polygraphy-npps"]
    export = Export(graph, plan, _onnx_artifact(graph), _PLAIN, tmp_path / "out")
    loader, script = exports.write_exports(kinds, export)
    trt = fake_tensorrt("8.6", Script())
    use_tensorrt(trt)
    with pytest.raises(RuntimeError, match="matches no layer"):
        _import_script(loader, monkeypatch).load_network()
    ((content, _),) = trt.script.parsed
    expected = find_source(graph, plan, probe(trt), {})
    assert isinstance(expected, bytes)
    assert onnx.ModelProto.FromString(content) == onnx.ModelProto.FromString(expected)
    network = parsed_network(trt)
    with (
        pytest.warns(UserWarning, match=r"\['y'\] are off by 2\^-24 and more in TensorRT"),
        pytest.raises(RuntimeError),
    ):
        _import_script(script, monkeypatch).postprocess(network)


def test_the_npps_script_warns_that_it_cannot_clamp(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, use_tensorrt: Callable[[Any], None]
) -> None:
    graph = recorded_graph("needs_constraints")
    plan = replace(make_plan(graph, "/Add"), clamps=(Clamp("rot90", 1.0, "too large"),))
    (path,) = exports.write_exports(
        ["polygraphy-npps"], Export(graph, plan, _onnx_artifact(graph), _PLAIN, tmp_path)
    )
    trt = fake_tensorrt("8.6", recorded_script("needs_constraints"))
    use_tensorrt(trt)
    with pytest.warns(UserWarning, match=r"clamps the constants \['rot90'\]"):
        _import_script(path, monkeypatch).postprocess(parsed_network(trt))


def _model_with_axes(folder: Path, axes: str = "int64[1] axes = {1}") -> Graph:
    text = f"""g (float[2,3] x) => (float[] y) <{axes}> {{
        a = Abs(x) m = ReduceMean(a, axes) s = Shape<start=-1>(x) y = Expand(m, s)
    }}"""
    return load_graph(write_model(folder, text, opset=18))


@pytest.mark.parametrize("axes", ["int64[1] axes = {1}", "int64[0] axes = {}"])
@pytest.mark.parametrize(("variant", "is_told"), [("8.6", True), ("10.0", False)])
def test_the_loader_tells_what_is_overlooked_as_the_backend_does(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    use_tensorrt: Callable[[Any], None],
    variant: Variant,
    is_told: bool,
    axes: str,
) -> None:
    graph = _model_with_axes(tmp_path, axes)
    plan, artifact = make_plan(graph, graph.nodes[0].label), _onnx_artifact(graph)
    (path,) = exports.write_exports(
        ["polygraphy-loader"], Export(graph, plan, artifact, _PLAIN, tmp_path / "out")
    )
    trt = fake_tensorrt(variant, Script())
    use_tensorrt(trt)
    with pytest.raises(RuntimeError, match="matches no layer"):
        _import_script(path, monkeypatch).load_network()
    (parsed,) = trt.script.parsed
    source = find_source(graph, None, probe(trt), {})
    assert isinstance(source, bytes) == isinstance(parsed, tuple) == is_told
    if isinstance(source, bytes):
        assert onnx.ModelProto.FromString(parsed[0]) == onnx.ModelProto.FromString(source)
    else:
        assert Path(parsed).samefile(source)


@pytest.mark.parametrize(
    ("variant", "warned"),
    [("8.6", ["overlooks the axes", "the parts of shapes ['s'] for the whole"]), ("10.0", [])],
)
def test_the_npps_script_warns_of_what_was_overlooked(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    use_tensorrt: Callable[[Any], None],
    variant: Variant,
    warned: list[str],
) -> None:
    graph = _model_with_axes(tmp_path)
    (path,) = exports.write_exports(
        ["polygraphy-npps"], Export(graph, make_plan(graph), _onnx_artifact(graph), _PLAIN, tmp_path / "out")
    )
    trt = fake_tensorrt(variant, recorded_script("needs_constraints"))
    use_tensorrt(trt)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        _import_script(path, monkeypatch).postprocess(parsed_network(trt))
    told = "overlooks the axes", "the parts of shapes ['s'] for the whole"
    assert [text for text in told if any(text in str(w.message) for w in caught)] == warned


def _model_with_modes(folder: Path) -> Graph:
    text = """g (float[1,1,4,4] x, float[1,2,2,2] g) => (float[1,1,2,2] y) {
        a = GridSample<mode="linear">(x, g) b = GridSample<padding_mode="border", mode="cubic">(x, g) y = Add(a, b)
    }"""
    return load_graph(write_model(folder, text, opset=20))


@pytest.mark.parametrize("kind", ["npps", "loader"])
def test_modes_of_opset_20_are_told_by_the_loader_and_warned_of_by_the_other_script(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, use_tensorrt: Callable[[Any], None]
) -> None:
    """By the parser of every TensorRT they are the nearest element, without a word."""
    graph = _model_with_modes(tmp_path)
    plan, artifact = make_plan(graph, graph.nodes[-1].label), _onnx_artifact(graph)
    (path,) = exports.write_exports(
        [f"polygraphy-{kind}"], Export(graph, plan, artifact, _PLAIN, tmp_path / "out")
    )
    trt = fake_tensorrt("10.0", Script())
    use_tensorrt(trt)
    script = _import_script(path, monkeypatch)
    if kind == "npps":
        told = pytest.warns(UserWarning, match=r"the modes of the GridSamples that write \['a', 'b'\]")
        with told, pytest.raises(RuntimeError, match="matches no layer"):
            script.postprocess(parsed_network(trt))
        return
    with pytest.raises(RuntimeError, match="matches no layer"):
        script.load_network()
    ((content, _),) = trt.script.parsed
    assert content == find_source(graph, None, probe(trt), {})


def test_functions_are_inlined_by_the_loader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, use_tensorrt: Callable[[Any], None]
) -> None:
    body = [helper.make_node("Mul", ["a", "a"], ["b"], name="mul")]
    function = helper.make_function("local", "square", ["a"], ["b"], body, [helper.make_opsetid("", 17)])
    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [3]) for name in "xy"]
    graph = helper.make_graph(
        [helper.make_node("square", ["x"], ["y"], domain="local")], "g", value[:1], value[1:]
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
    onnx.save(
        helper.make_model(graph, opset_imports=imports, functions=[function], ir_version=8),
        str(tmp_path / "model.onnx"),
    )
    loaded = load_graph(tmp_path / "model.onnx")
    plan = make_plan(loaded, loaded.nodes[0].label)
    (path,) = exports.write_exports(
        ["polygraphy-loader"], Export(loaded, plan, _onnx_artifact(loaded), _PLAIN, tmp_path)
    )
    trt = fake_tensorrt("8.6", Script())
    use_tensorrt(trt)
    with pytest.raises(RuntimeError, match="matches no layer"):
        _import_script(path, monkeypatch).load_network()
    ((content, _),) = trt.script.parsed
    assert [node.op_type for node in onnx.ModelProto.FromString(content).graph.node] == ["Mul"]


def test_the_usage_tells_the_shapes_of_open_inputs(tmp_path: Path) -> None:
    graph = recorded_graph("conv_chain")
    shapes = {"image": ShapeRange((1, 3, 64, 64), (2, 3, 64, 64), (4, 3, 64, 64))}
    (path,) = exports.write_exports(
        ["polygraphy-npps"],
        Export(
            graph,
            make_plan(graph, "/conv5/Conv"),
            _onnx_artifact(graph),
            BuildSettings(shapes=shapes),
            tmp_path,
        ),
    )
    usage = next(line for line in path.read_text().splitlines() if "polygraphy convert" in line)
    words = shlex.split(usage.removeprefix("# $ "))
    assert words[words.index("--trt-opt-shapes") + 1] == "image:[2,3,64,64]"
    assert words[words.index("--trt-npps") + 1] == path.name


def test_a_model_behind_a_link_is_named_by_the_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, open_fake: Callable[[Any], None]
) -> None:
    """Its external data is looked for beside that; in a cache, what is behind the link has another name for it."""
    open_fake(fake_tensorrt("8.6", Script()))
    (tmp_path / "blobs").mkdir()
    text = "g (float[4] x) => (float[4] y) { y = Abs(x) }"
    home, link = write_model(tmp_path, text).rename(tmp_path / "blobs" / "1"), tmp_path / "model.onnx"
    link.symlink_to(home)
    graph = load_graph(link)
    listed, _, npps, loader = exports.write_exports(
        ["trtexec", "polygraphy-npps", "polygraphy-loader"],
        Export(graph, make_plan(graph), _engine_artifact(graph), _PLAIN, tmp_path / "out"),
    )
    assert read_options(listed.read_text().splitlines())["--onnx"] == str(tmp_path.resolve() / "model.onnx")
    assert "$ polygraphy convert ../model.onnx" in npps.read_text()
    named = Path(_import_script(loader, monkeypatch).MODEL)
    assert (named.name, named.is_symlink()) == ("model.onnx", True)


@pytest.mark.parametrize("kind", ["npps", "loader"])
def test_the_usage_is_for_the_folder_of_the_script(kind: str, tmp_path: Path) -> None:
    graph = recorded_graph("conv_chain")
    (path,) = exports.write_exports(
        [f"polygraphy-{kind}"], Export(graph, make_plan(graph), _onnx_artifact(graph), _PLAIN, tmp_path)
    )
    lines = path.read_text(encoding="utf-8").splitlines()
    usage = shlex.split(next(line for line in lines if "polygraphy convert" in line).removeprefix("# $ "))
    model = graph.path if kind == "npps" else path
    assert (tmp_path / usage[2]).resolve() == model.resolve()
    assert usage[usage.index("-o") + 1] == "model.polygraphy.engine"  # model.engine is another one there
    assert any(line.endswith("Use it with weak typing, in its folder:") for line in lines)


def test_a_plugin_that_the_loader_finds_by_its_name_is_named_so(
    tmp_path: Path, open_fake: Callable[[Any], None]
) -> None:
    graph, trt = recorded_graph("conv_chain"), fake_tensorrt("8.6", recorded_script("conv_chain"))
    open_fake(trt)
    mine = tmp_path / "libmine.so"
    mine.touch()
    settings = BuildSettings(plugins=(Path("libelsewhere.so"), mine))
    listed, _, script = exports.write_exports(
        ["trtexec", "polygraphy-loader"],
        Export(graph, make_plan(graph), _engine_artifact(graph), settings, tmp_path),
    )
    named = [line for line in listed.read_text().splitlines() if line.startswith("--plugins")]
    assert named == ["--plugins=libelsewhere.so", f"--plugins={mine.resolve()}"]
    assert f"PLUGINS = {('libelsewhere.so', str(mine.resolve()))!r}" in script.read_text()


def test_a_widened_engine_gives_its_pins_with_their_reasons(tmp_path: Path) -> None:
    graph = recorded_graph("conv_chain")
    reason = "TensorRT fused it with /conv5/Conv and ran both in FP16"
    kept = (
        Kept("/conv6/Conv", "Conv", reason, "fusion"),
        Kept("/conv1/Conv", "Conv", "TensorRT chose FP32 for it by itself", "speed"),
    )
    artifact = replace(_engine_artifact(graph), kept=kept)
    found = choose_pins(graph, make_plan(graph, "/conv5/Conv"), artifact)
    assert {pin.node: pin.reasons[0] for pin in found} == {
        "/conv5/Conv": "threshold: it was seen at 1e+06",
        "/relu5/Relu": "TensorRT fuses it with /conv5/Conv, which is pinned",
        "/conv6/Conv": reason,
    }


@pytest.fixture
def open_fake(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], None]:
    """Let the export of trtexec's arguments parse with a fake module, on no GPU."""

    def use(trt: Any, typing: str = "weak") -> None:
        monkeypatch.setattr(trtexec_files, "open_tensorrt", lambda settings: (trt, probe(trt), typing))
        monkeypatch.setattr(network, "open_device", lambda: None)

    return use


@pytest.mark.parametrize("name", NAMES)
def test_trtexec_is_told_the_engines_pins(
    name: str, tmp_path: Path, open_fake: Callable[[Any], None]
) -> None:
    graph, trt = recorded_graph(name), fake_tensorrt("8.6", recorded_script(name))
    labels = _floats(graph)
    open_fake(trt)
    listed, line = exports.write_exports(
        ["trtexec"], Export(graph, make_plan(graph, *labels), _engine_artifact(graph), _PLAIN, tmp_path)
    )
    arguments = listed.read_text(encoding="utf-8").splitlines()
    assert shlex.split(line.read_text(encoding="utf-8"), comments=True) == ["trtexec", *arguments]
    options = read_options(arguments)
    assert Path(options["--onnx"]).samefile(graph.path)
    parsed = parsed_network(trt)
    pin_by_rules(trt, parsed, options)
    assert pinned_layers(parsed) == _expected_pins(trt, graph, labels)


def test_pins_that_were_given_up_are_not_told_to_trtexec(
    tmp_path: Path, open_fake: Callable[[Any], None]
) -> None:
    graph, trt = recorded_graph("conv_chain"), fake_tensorrt("8.6", recorded_script("conv_chain"))
    open_fake(trt)
    plan = make_plan(graph, "/fc/Gemm", "/flatten/Flatten")
    texts = []
    for movement_is_free in (False, True):
        artifact = _engine_artifact(graph, movement_is_free=movement_is_free)
        listed, _ = exports.write_exports(["trtexec"], Export(graph, plan, artifact, _PLAIN, tmp_path))
        texts.append(read_options(listed.read_text().splitlines())["--layerPrecisions"])
    assert "[Shuffle]" in texts[0]
    assert "[Shuffle]" not in texts[1]
    assert texts[1].startswith("/fc/Gemm:fp32")


def test_trtexec_is_told_the_pins_that_the_engine_was_built_with(tmp_path: Path) -> None:
    """Where the pin of a Softmax's last shuffle was given up, and the Softmax itself kept its own."""
    graph = small_graph(tmp_path)
    plan, settings = (
        make_plan(graph, "softmax"),
        BuildSettings(shapes={"x": ShapeRange((1, 4), (2, 4), (8, 4))}),
    )
    script = small_script(disobeyed("softmax + shuffle"), engine(("softmax", "FP32")))
    with use_standin_gpu(fake_tensorrt("8.6", script)):
        artifact = emit(graph, plan, tmp_path / "model.engine", settings)
        listed, _ = exports.write_exports(["trtexec"], Export(graph, plan, artifact, settings, tmp_path))
    options = read_options(listed.read_text().splitlines())
    assert options["--layerPrecisions"] == "softmax:fp32"
    assert list(script.asked[-1].precisions) == ["softmax"]


@pytest.mark.parametrize(("pinned", "is_allowed"), [("softmax", True), ("square softmax add topk", False)])
def test_trtexec_is_allowed_fp16_where_a_node_is_left_for_it(
    pinned: str, is_allowed: bool, tmp_path: Path, open_fake: Callable[[Any], None]
) -> None:
    graph = small_graph(tmp_path)
    open_fake(fake_tensorrt("8.6", small_script()))
    settings = BuildSettings(shapes={"x": ShapeRange((1, 4), (2, 4), (8, 4))})
    plan, artifact = make_plan(graph, *pinned.split()), _engine_artifact(graph)
    listed, _ = exports.write_exports(["trtexec"], Export(graph, plan, artifact, settings, tmp_path))
    options = read_options(listed.read_text().splitlines())
    assert ("--fp16" in options) is ("--layerPrecisions" in options) is is_allowed


@pytest.mark.parametrize("kind", ["polygraphy-npps", "polygraphy-loader"])
def test_a_script_pins_what_the_engine_was_built_with(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, use_tensorrt: Callable[[Any], None]
) -> None:
    graph, trt = small_graph(tmp_path), fake_tensorrt("8.6", small_script())
    artifact = _engine_artifact(graph, movement_is_free=True)
    (path,) = exports.write_exports(
        [kind], Export(graph, make_plan(graph, "softmax"), artifact, _PLAIN, tmp_path)
    )
    use_tensorrt(trt)
    script = _import_script(path, monkeypatch)
    parsed = parsed_network(trt) if kind == "polygraphy-npps" else script.load_network()[1]
    if kind == "polygraphy-npps":
        script.postprocess(network=parsed)
    assert list(pinned_layers(parsed)) == ["softmax"]


@pytest.mark.parametrize("kind", ["polygraphy-npps", "polygraphy-loader"])
@pytest.mark.parametrize(("typing", "asked"), [("weak", "prefer"), ("strong", "obey")])
def test_a_script_asks_for_pins_to_be_preferred_where_nothing_else_could_be_built(
    typing: str, asked: str, kind: str, tmp_path: Path
) -> None:
    graph = recorded_graph("conv_chain")
    artifact = _engine_artifact(graph, typing=typing, constraints="prefer" if typing == "weak" else "none")
    plan = make_plan(graph, "/conv5/Conv")
    (path,) = exports.write_exports([kind], Export(graph, plan, artifact, _PLAIN, tmp_path))
    head = path.read_text(encoding="utf-8").partition("from __future__")[0]
    assert head.count(f"--precision-constraints {asked}") == 2
    assert head.count("--precision-constraints") == 2


def test_trtexec_is_given_the_clamped_model_unless_its_data_lies_elsewhere(
    tmp_path: Path, open_fake: Callable[[Any], None]
) -> None:
    trt = fake_tensorrt("8.6", recorded_script("needs_constraints"))
    open_fake(trt)
    graph = recorded_graph("needs_constraints")
    plan = replace(make_plan(graph, "/Add"), clamps=(Clamp("rot90", 0.5, "too large"),))
    listed, _, model = exports.write_exports(
        ["trtexec"], Export(graph, plan, _engine_artifact(graph), _PLAIN, tmp_path)
    )
    assert read_options(listed.read_text().splitlines())["--onnx"] == str(model.resolve())
    assert np.abs(numpy_helper.to_array(onnx.load(model).graph.initializer[0])).max() <= 0.5
    outside = _model_with_masks(tmp_path / "model.onnx")
    open_fake(fake_tensorrt("8.6", Script()))
    plan = replace(_clamping_plan(outside), pins=())
    with pytest.raises(
        BackendError, match=r"the data of 'mask' lies in another file.*--export polygraphy-loader"
    ):
        exports.write_exports(
            ["trtexec"], Export(outside, plan, _engine_artifact(outside), _PLAIN, tmp_path / "out")
        )


def test_what_trtexec_cannot_be_told_is_no_reason_to_leave_the_scripts_out(
    tmp_path: Path, open_fake: Callable[[Any], None]
) -> None:
    open_fake(fake_tensorrt("8.6", Script()))
    graph, out = _model_with_masks(tmp_path / "model.onnx"), tmp_path / "out"
    plan = replace(_clamping_plan(graph), pins=())
    with pytest.raises(BackendError, match=r"^trtexec would need"):
        exports.write_exports(
            ["trtexec", "polygraphy-npps", "polygraphy-loader"],
            Export(graph, plan, _engine_artifact(graph), _PLAIN, out),
        )
    assert {path.name for path in out.iterdir()} == {"model_npps.py", "model_loader.py"}


def test_a_model_is_refused_for_trtexec_without_a_word_of_changes_that_it_does_not_need(
    tmp_path: Path, open_fake: Callable[[Any], None]
) -> None:
    text = "g (float[4] x) => (float[4] y) <float low = {-inf}, float high = {6}> { a = Relu(x) y = Clip(a, low, high) }"
    model = onnx.load(write_model(tmp_path, text))
    model.graph.initializer.append(numpy_helper.from_array(np.ones(4, np.float32), "outside"))
    model.graph.node.append(helper.make_node("Add", ["a", "outside"], ["z"], "add"))
    onnx.save(model, tmp_path / "model.onnx", save_as_external_data=True, size_threshold=8, location="data")
    open_fake(fake_tensorrt("8.6", Script()))
    graph = load_graph(tmp_path / "model.onnx")
    with pytest.raises(BackendError, match=r"as it is changed for TensorRT.*changes nothing else") as error:
        exports.write_exports(
            ["trtexec"], Export(graph, make_plan(graph), _engine_artifact(graph), _PLAIN, tmp_path / "out")
        )
    assert "with constants clamped" not in str(error.value)


def test_a_changed_model_goes_when_trtexec_is_given_the_model_itself_again(
    tmp_path: Path, open_fake: Callable[[Any], None]
) -> None:
    graph, plan = recorded_graph("needs_constraints"), make_plan(recorded_graph("needs_constraints"), "/Add")
    clamping = replace(plan, clamps=(Clamp("rot90", 0.5, "too large"),))
    for change, is_left in (("", False), ("# the user's own\n", True)):
        open_fake(fake_tensorrt("8.6", recorded_script("needs_constraints")))
        _, line, model = exports.write_exports(
            ["trtexec"], Export(graph, clamping, _engine_artifact(graph), _PLAIN, tmp_path)
        )
        line.write_text(line.read_text() + change)
        listed, _ = exports.write_exports(
            ["trtexec"], Export(graph, plan, _engine_artifact(graph), _PLAIN, tmp_path)
        )
        assert Path(read_options(listed.read_text().splitlines())["--onnx"]).samefile(graph.path)
        assert model.is_file() == is_left


def test_trtexec_is_given_the_model_in_which_nothing_is_overlooked(
    tmp_path: Path, open_fake: Callable[[Any], None]
) -> None:
    open_fake(fake_tensorrt("8.6", Script()))
    graph = _model_with_axes(tmp_path)
    listed, _, model = exports.write_exports(
        ["trtexec"], Export(graph, make_plan(graph), _engine_artifact(graph), _PLAIN, tmp_path / "out")
    )
    assert read_options(listed.read_text().splitlines())["--onnx"] == str(model.resolve())
    by_type = {at.op_type: at for at in onnx.load(model).graph.node}
    assert (len(by_type["ReduceMean"].input), list(by_type["Shape"].attribute)) == (1, [])


def test_trtexec_builds_the_typed_model_where_typing_is_strong(
    tmp_path: Path, open_fake: Callable[..., None]
) -> None:
    graph, trt = recorded_graph("conv_chain"), fake_tensorrt("10.0", recorded_script("conv_chain"))
    open_fake(trt, "strong")
    typed = _write_typed(tmp_path, "Abs(x)")
    artifact = replace(_engine_artifact(graph, typing="strong"), files=(tmp_path / "model.engine", typed))
    shapes = {"image": ShapeRange((1, 3, 64, 64), (2, 3, 64, 64), (4, 3, 64, 64))}
    listed, _ = exports.write_exports(
        ["trtexec"],
        Export(graph, make_plan(graph, "/fc/Gemm"), artifact, BuildSettings(shapes=shapes), tmp_path),
    )
    assert read_options(listed.read_text().splitlines()) == {
        "--onnx": str(typed.resolve()),
        "--stronglyTyped": "",
        "--minShapes": "image:1x3x64x64",
        "--optShapes": "image:2x3x64x64",
        "--maxShapes": "image:4x3x64x64",
        "--saveEngine": str(tmp_path.resolve() / "model.trtexec.engine"),
    }


def _write_typed(folder: Path, y: str) -> Path:
    written = write_model(
        folder, f"g (float[1,1,2,2] x, float[1,2,2,2] g) => (float[] y) {{ y = {y} }}", opset=20
    )
    return written.rename(folder / "model.fp16.onnx")


def test_trtexec_is_given_the_typed_model_as_it_was_changed(
    tmp_path: Path, open_fake: Callable[..., None]
) -> None:
    graph, trt = recorded_graph("conv_chain"), fake_tensorrt("10.0", recorded_script("conv_chain"))
    open_fake(trt, "strong")
    typed = _write_typed(tmp_path, 'GridSample<mode="linear">(x, g)')
    artifact = replace(_engine_artifact(graph, typing="strong"), files=(tmp_path / "model.engine", typed))
    listed, _, model = exports.write_exports(
        ["trtexec"], Export(graph, make_plan(graph, "/fc/Gemm"), artifact, _PLAIN, tmp_path / "out")
    )
    assert read_options(listed.read_text().splitlines())["--onnx"] == str(model.resolve())
    assert onnx.load(model).graph.node[0].attribute[0].s == b"bilinear"


def test_a_changed_model_finds_its_data_in_the_folder_that_it_is_written_to(
    tmp_path: Path, open_fake: Callable[..., None]
) -> None:
    """There a typed model of many weights has them, and nobody can have it in one file."""
    graph, trt = recorded_graph("conv_chain"), fake_tensorrt("10.0", recorded_script("conv_chain"))
    open_fake(trt, "strong")
    typed = _write_typed(tmp_path, 'GridSample<mode="linear">(x, grid)')
    model, grid = onnx.load(typed), np.full([1, 2, 2, 2], 0.5, np.float32)
    model.graph.initializer.append(numpy_helper.from_array(grid, "grid"))
    onnx.save(model, typed, save_as_external_data=True, size_threshold=0, location="data")
    artifact = replace(_engine_artifact(graph, typing="strong"), files=(tmp_path / "model.engine", typed))
    plan = make_plan(graph, "/fc/Gemm")
    _, _, changed = exports.write_exports(["trtexec"], Export(graph, plan, artifact, _PLAIN, tmp_path))
    np.testing.assert_array_equal(numpy_helper.to_array(onnx.load(changed).graph.initializer[0]), grid)
    with pytest.raises(BackendError, match=r"the data of 'grid' lies in another file"):
        exports.write_exports(["trtexec"], Export(graph, plan, artifact, _PLAIN, tmp_path / "out"))


def test_trtexec_is_refused_without_tensorrt_before_anything_is_built() -> None:
    with pytest.raises(BackendError, match="only the network that TensorRT parses has them"):
        exports.check_exports(["polygraphy-npps", "trtexec"], "onnx")
    exports.check_exports(["polygraphy-npps", "polygraphy-loader"], "onnx")
    exports.check_exports(["trtexec"], "tensorrt")


def test_a_script_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    graph = recorded_graph("conv_chain")
    (tmp_path / "out").write_text("a file, where a folder is needed")
    with pytest.raises(OutputError):
        exports.write_exports(
            ["polygraphy-npps"],
            Export(graph, make_plan(graph), _onnx_artifact(graph), _PLAIN, tmp_path / "out"),
        )


@pytest.mark.parametrize("verb", ["fix", "build"])
def test_the_command_exports_beside_a_typed_model(
    verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    graph = recorded_graph("needs_constraints")
    common = ["--backend", "onnx", "--out", str(tmp_path), "--export", "polygraphy-npps"]
    data = ["--calib", str(graph.folder / "data")]
    assert _run(str(graph.path), *common, *data, "--export", "polygraphy-loader") == 0
    if verb == "build":
        (tmp_path / "model_npps.py").unlink()
        assert _run("build", str(graph.path), *common) == 0
        assert f"{tmp_path / 'model_npps.py'}: exported." in capsys.readouterr().out
    listed = json.loads((tmp_path / "report.json").read_text())["files"]
    assert {"model_npps.py", "model_loader.py"} <= {Path(file["path"]).name for file in listed}
    script = _import_script(tmp_path / "model_npps.py", monkeypatch)
    assert set(script.PINS) >= {pin.node for pin in load_plan(tmp_path / "plan.json").pins} != set()


def test_what_was_exported_of_an_older_plan_goes_and_of_the_same_stays(tmp_path: Path) -> None:
    graph = recorded_graph("needs_constraints")
    common = [str(graph.path), "--backend", "onnx", "--out", str(tmp_path)]
    script = tmp_path / "model_npps.py"
    assert _run(*common, "--calib", str(graph.folder / "data"), "--export", "polygraphy-npps", "-q") == 0
    (tmp_path / "model_loader.py").write_text("# the user's own")
    plan = script.read_text().splitlines()[0].removeprefix("# Plan: ").partition(",")[0]
    for suffix in ("sh", "txt"):
        (tmp_path / f"model.trtexec.{suffix}").write_text(sign("trtexec\n", plan))
    assert _run("build", *common, "-q") == 0
    assert script.is_file()
    assert _run("plan", *common[:1], "--out", str(tmp_path), "--exclude-nodes", ".", "-q") == 0
    assert _run("build", *common, "-q") == 0
    left = {path.name for path in tmp_path.iterdir()}
    assert not left & {"model_npps.py", "model.trtexec.sh", "model.trtexec.txt"}
    assert (tmp_path / "model_loader.py").read_text() == "# the user's own"


def test_what_was_exported_and_changed_since_is_left(tmp_path: Path) -> None:
    graph = recorded_graph("needs_constraints")
    script = tmp_path / "model_npps.py"
    for text, is_left in (("print(1)\n", False), ("print(1)\nprint(2)\n", True)):
        script.write_text(sign("print(1)\n", "0" * 64).replace("print(1)\n", text))
        remove_stale(graph.path, tmp_path, "0" * 64, ())
        assert script.is_file()
        remove_stale(graph.path, tmp_path, "1" * 64, ())
        assert script.is_file() == is_left


def test_the_command_refuses_trtexec_without_tensorrt_before_it_scans(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    graph = recorded_graph("needs_constraints")
    data = ["--calib", str(graph.folder / "data")]
    out = tmp_path / "out"
    assert _run(str(graph.path), "--backend", "onnx", "--export", "trtexec", *data, "--out", str(out)) == 6
    assert "only the network that TensorRT parses has them" in capsys.readouterr().err
    assert not out.exists()


def test_an_export_that_cannot_be_written_leaves_the_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    graph = recorded_graph("needs_constraints")
    (tmp_path / "model_npps.py").mkdir()
    common = ["--backend", "onnx", "--out", str(tmp_path), "--export", "polygraphy-npps"]
    assert _run(str(graph.path), *common, "--calib", str(graph.folder / "data")) == 2
    assert "model_npps.py could not be written" in capsys.readouterr().err
    assert json.loads((tmp_path / "report.json").read_text())["verification"]["fixed"]["passed"]


def _run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as stop:
        main(list(arguments))
    return int(stop.value.code or 0)
