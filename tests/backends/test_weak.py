"""Weak typing over a fake TensorRT: what is pinned, what is given up for a build, and what is widened."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from engine_scripts import SOFTMAX_SHUFFLE, disobeyed, engine, small_graph, small_script
from fake_tensorrt import Asked, LayerSpec, Plan, Refusal, Script, TensorSpec, Variant, fake_tensorrt
from recorded_networks import make_plan, recorded_graph, recorded_script
from standin_gpu import use_standin_gpu
from typed_models import write_model

from overflow_fixer.backends.tensorrt.builder import DisobedientError
from overflow_fixer.backends.tensorrt.capabilities import probe
from overflow_fixer.backends.tensorrt.weak import WeakBuild
from overflow_fixer.errors import BackendError
from overflow_fixer.graph.model import Graph, load_graph
from overflow_fixer.progress import silent
from overflow_fixer.records import BuildSettings, Clamp, PinOutcome, PrecisionPlan, ShapeRange

SHAPES = {"x": ShapeRange((1, 4), (2, 4), (8, 4))}
SETTINGS = BuildSettings(shapes=SHAPES)
ADD_SHUFFLE = "(Unnamed Layer* 4) [Shuffle]"
OBEY = {"TF32", "FP16", "OBEY_PRECISION_CONSTRAINTS"}
PREFER = {"TF32", "FP16", "PREFER_PRECISION_CONSTRAINTS"}


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Graph:
    return small_graph(tmp_path_factory.mktemp("small"))


@contextmanager
def _weak(
    script: Script, graph: Graph, *pinned: str, variant: Variant = "8.6", **changes: Any
) -> Iterator[WeakBuild]:
    trt = fake_tensorrt(variant, script)
    plan = changes.pop("plan", None) or make_plan(graph, *pinned)
    settings = changes.pop("settings", SETTINGS)
    with use_standin_gpu(trt):
        yield WeakBuild(trt, probe(trt), graph, plan, settings, silent, **changes)


def _pinned(asked: Asked) -> list[str]:
    """The layers pinned, after a look at what else was asked for: FP32 alone, and each pin whole."""
    assert set(asked.precisions.values()) <= {"FLOAT"}
    assert set(asked.output_types.values()) <= {"FLOAT"}
    assert {name for name, _ in asked.output_types} == set(asked.precisions)
    return sorted(asked.precisions)


# ---------------------------------------------------------------- a build that obeys


def test_a_plan_is_built_with_its_nodes_in_fp32_under_obey(graph: Graph) -> None:
    script = small_script(engine(("square", "FP32"), ("softmax", "FP16")))
    with _weak(script, graph, "square") as weak:
        built, runner, layers, outcomes = weak.run()
    (asked,) = script.asked
    assert asked.flags == OBEY
    assert _pinned(asked) == ["square"]
    assert built.plan == b"engine"
    assert runner.output_names == ("y", "i")
    assert [layer.nodes for layer in layers] == [("square",), ("softmax",)]
    assert outcomes == (PinOutcome("square", "honoured", ("square",)),)
    assert (weak.constraints, weak.dropped, weak.builds, weak.widened) == ("obey", (), 1, {})
    assert script.parsed == [str(graph.path)]


@pytest.mark.parametrize("variant", ["8.6", "10.0"])
def test_every_layer_and_every_float_output_of_a_node_is_pinned(graph: Graph, variant: Variant) -> None:
    script = small_script(engine())
    with _weak(script, graph, "softmax", "add", "topk", variant=variant) as weak:
        weak.run()
    (asked,) = script.asked
    assert _pinned(asked) == sorted(["softmax", SOFTMAX_SHUFFLE, ADD_SHUFFLE, "add", "topk"])
    assert asked.output_types == {(name, 0): "FLOAT" for name in asked.precisions}


def test_deprecated_setters_are_used_without_a_warning(
    graph: Graph, recwarn: pytest.WarningsRecorder
) -> None:
    script = small_script(disobeyed("softmax"), engine())
    with _weak(script, graph, "softmax", variant="10.12") as weak:
        weak.run()
    assert _pinned(script.asked[1]) == ["softmax"]
    assert [str(w.message) for w in recwarn if "Deprecated in TensorRT" in str(w.message)] == []


def test_pins_follow_the_graphs_order(graph: Graph) -> None:
    with _weak(small_script(engine()), graph, "topk", "square") as weak:
        _, _, _, outcomes = weak.run()
    assert [outcome.node for outcome in outcomes] == ["square", "topk"]


def test_where_nothing_is_pinned_nothing_is_to_be_obeyed(graph: Graph) -> None:
    script = small_script(engine(("square", "FP16")))
    with _weak(script, graph) as weak:
        *_, outcomes = weak.run()
    (asked,) = script.asked
    assert asked.flags == {"TF32", "FP16"}
    assert (asked.precisions, asked.output_types, outcomes) == ({}, {}, ())
    assert weak.constraints == "none"


def test_tf32_can_be_refused(graph: Graph) -> None:
    script = small_script(engine())
    with _weak(script, graph, "square", settings=BuildSettings(shapes=SHAPES, tf32=False)) as weak:
        weak.run()
    assert script.asked[0].flags == OBEY - {"TF32"}


def test_the_profile_reaches_the_builder_and_the_inspector_has_shapes(graph: Graph) -> None:
    script = small_script(engine())
    with _weak(script, graph, "square") as weak:
        _, runner, _, _ = weak.run()
        assert tuple(runner.context.get_tensor_shape("x")) == (2, 4)
    assert script.asked[0].profiles[0]["shapes"] == {"x": ((1, 4), (2, 4), (8, 4))}


def test_clamped_constants_come_in_the_models_bytes(graph: Graph) -> None:
    plan = PrecisionPlan(graph.sha256, 1e4, (), (Clamp("w", 2.0, "a mask"),))
    script = small_script(engine())
    with _weak(script, graph, plan=plan) as weak:
        weak.run()
    ((content, origin),) = script.parsed
    assert origin == str(graph.path)
    assert isinstance(content, bytes)


# ---------------------------------------------------------------- a build that does not


def test_pins_of_movement_are_given_up_first(graph: Graph) -> None:
    script = small_script(disobeyed("softmax + shuffle"), engine(("softmax", "FP32"), ("square", "FP32")))
    with _weak(script, graph, "softmax", "square") as weak:
        *_, outcomes = weak.run()
    first, second = script.asked
    assert (first.flags, second.flags) == (OBEY, OBEY)
    assert _pinned(first) == sorted(["softmax", SOFTMAX_SHUFFLE, "square"])
    assert _pinned(second) == ["softmax", "square"]
    assert (weak.constraints, weak.builds, weak.dropped, weak.notes) == ("obey", 2, (), ())
    assert {outcome.state for outcome in outcomes} == {"honoured"}


def _turning(folder: Path, *outcomes: Plan | Refusal) -> tuple[Graph, Script]:
    """x * x, turned."""
    graph = load_graph(
        write_model(
            folder, "g (float[2,4] x) => (float[4,2] y) { [square] s = Mul(x, x) [turn] y = Transpose(s) }"
        )
    )
    layers = [
        LayerSpec("square", "ELEMENTWISE", ("x",), (TensorSpec("s", shape=(2, 4)),), "[ONNX Layer: square]"),
        LayerSpec("turn", "SHUFFLE", ("s",), (TensorSpec("y", shape=(4, 2)),), "[ONNX Layer: turn]"),
    ]
    return graph, Script([TensorSpec("x", shape=(2, 4))], layers, ["y"], outcomes=list(outcomes))


def test_a_node_that_only_moves_is_listed_when_its_pins_are_given_up(tmp_path: Path) -> None:
    graph, script = _turning(tmp_path, disobeyed("turn"), engine(("square", "FP32")))
    with _weak(script, graph, "square", "turn") as weak:
        *_, judged = weak.run()
    (dropped,) = weak.dropped
    assert (dropped.node, dropped.op_type) == ("turn", "SHUFFLE")
    assert dropped.reason == "pin of 'turn' given up: nothing obeyed it in 'turn'"
    assert [outcome.state for outcome in judged] == ["honoured", "no layer"]
    assert weak.constraints == "obey"


def test_where_a_fused_layer_cannot_obey_the_whole_of_it_is_pinned(graph: Graph) -> None:
    script = small_script(disobeyed("PWN(square, softmax)"), engine(("PWN(square, softmax)", "FP32")))
    with _weak(script, graph, "square") as weak:
        weak.run()
    assert [asked.flags for asked in script.asked] == [OBEY, OBEY]
    assert _pinned(script.asked[1]) == sorted(["square", "softmax", SOFTMAX_SHUFFLE])
    assert list(weak.widened) == ["softmax"]
    assert "square" in weak.widened["softmax"]
    assert (weak.constraints, weak.dropped) == ("obey", ())


@pytest.mark.parametrize("culprit", ["PWN(add, topk)", "{ForeignNode[square...topk]}", "something else"])
def test_a_layer_without_a_pin_or_unseen_within_pins_no_more(graph: Graph, culprit: str) -> None:
    script = small_script(disobeyed(culprit), engine(("square", "FP32")))
    with _weak(script, graph, "square") as weak:
        weak.run()
    assert weak.widened == {}
    assert [asked.flags for asked in script.asked] == [OBEY, PREFER]


def test_movement_that_widening_brings_is_given_up_too(graph: Graph) -> None:
    """First the shuffles go; then the fused layer is pinned whole, again without them."""
    refusals = [disobeyed("something else"), disobeyed("PWN(softmax, add)")]
    script = small_script(*refusals, engine(("PWN(softmax, add)", "FP32")))
    with _weak(script, graph, "softmax") as weak:
        weak.run()
    assert [_pinned(asked) for asked in script.asked] == [
        sorted(["softmax", SOFTMAX_SHUFFLE]),
        ["softmax"],
        ["add", "softmax"],
    ]
    assert (weak.constraints, weak.builds) == ("obey", 3)


def test_where_that_does_not_help_pins_are_preferred_and_the_engine_says_so(graph: Graph) -> None:
    script = small_script(disobeyed("one"), disobeyed("two"), engine(("softmax", "FP32")))
    with _weak(script, graph, "softmax") as weak:
        weak.run()
    assert [asked.flags for asked in script.asked] == [OBEY, OBEY, PREFER]
    assert [_pinned(asked) for asked in script.asked] == [
        sorted(["softmax", SOFTMAX_SHUFFLE]),
        ["softmax"],
        sorted(["softmax", SOFTMAX_SHUFFLE]),
    ]
    assert (weak.constraints, weak.builds, weak.dropped) == ("prefer", 3, ())
    assert weak.notes == ("No implementation of 'two' obeys its pins: pins are only preferred.",)


def test_a_pin_that_was_given_up_first_is_preferred_with_the_others(tmp_path: Path) -> None:
    graph, script = _turning(
        tmp_path, disobeyed("turn"), disobeyed("square"), engine(("square", "FP32"), ("turn", "FP32"))
    )
    with _weak(script, graph, "square", "turn") as weak:
        *_, judged = weak.run()
    assert [_pinned(asked) for asked in script.asked] == [["square", "turn"], ["square"], ["square", "turn"]]
    assert (weak.constraints, weak.dropped) == ("prefer", ())
    assert [outcome.state for outcome in judged] == ["honoured", "honoured"]


def test_without_movement_there_is_nothing_to_give_up_before_that(graph: Graph) -> None:
    script = small_script(disobeyed("square"), engine(("square", "FP32")))
    with _weak(script, graph, "square") as weak:
        weak.run()
    assert [asked.flags for asked in script.asked] == [OBEY, PREFER]
    assert weak.dropped == ()
    assert "'square'" in weak.notes[0]


@pytest.mark.parametrize("before", [0, 1, 2])
def test_any_other_failure_ends_it_in_tensorrts_words(graph: Graph, before: int) -> None:
    outcomes = [*(disobeyed("softmax") for _ in range(before)), Refusal(("insufficient workspace",))]
    script = small_script(*outcomes)
    with _weak(script, graph, "softmax") as weak, pytest.raises(BackendError) as error:
        weak.run()
    assert not isinstance(error.value, DisobedientError)
    assert "could not build the engine: insufficient workspace. Expected" in str(error.value)
    assert "\n" not in str(error.value)
    assert len(script.asked) == before + 1


# ---------------------------------------------------------------- a pin that the engine does not honour


def test_a_pin_that_is_not_honoured_is_widened_over_what_it_was_fused_with(graph: Graph) -> None:
    fused = "PWN(square, softmax)"
    script = small_script(engine((fused, "FP16")), engine((fused, "FP32"), content=b"second"))
    with _weak(script, graph, "square") as weak:
        built, _, _, outcomes = weak.run()
    assert [_pinned(asked) for asked in script.asked] == [
        ["square"],
        sorted(["square", "softmax", SOFTMAX_SHUFFLE]),
    ]
    assert built.plan == b"second"
    assert [(outcome.node, outcome.state) for outcome in outcomes] == [("square", "honoured")]
    assert list(weak.widened) == ["softmax"]
    assert "square" in weak.widened["softmax"]
    assert weak.builds == 2


def test_builds_that_were_refused_do_not_count_against_widening(graph: Graph) -> None:
    """Each engine comes after two refusals, and shows another node that is fused with the pin."""
    script = small_script(
        *(disobeyed("one"), disobeyed("two"), engine(("PWN(softmax, square)", "FP16"))),
        *(disobeyed("one"), disobeyed("two"), engine(("PWN(softmax, add)", "FP16"))),
        engine(("softmax", "FP32"), content=b"last"),
    )
    with _weak(script, graph, "softmax") as weak:
        built, _, _, _ = weak.run()
    assert (built.plan, weak.builds) == (b"last", 7)
    assert list(weak.widened) == ["square", "add"]


def test_pins_are_widened_three_times_at_most() -> None:
    """An engine that finds something new to fuse with each time."""
    graph, script = recorded_graph("conv_chain"), recorded_script("conv_chain")
    fused = ["/pool/GlobalAveragePool", "/relu1/Relu", "/relu2/Relu", "/relu3/Relu", "/relu4/Relu"]
    script.outcomes = [engine((f"/relu7/Relu + {name}", "FP16")) for name in fused]
    shape = (2, 3, 64, 64)
    settings = BuildSettings(shapes={"image": ShapeRange(shape, shape, shape)})
    with _weak(script, graph, "/relu7/Relu", settings=settings) as weak:
        *_, outcomes = weak.run()
    assert list(weak.widened) == fused[:3]
    assert len(script.asked) == weak.builds == 4
    assert [outcome.state for outcome in outcomes] == ["not honoured"]
    assert _pinned(script.asked[-1]) == sorted(["/relu7/Relu", *fused[:3]])


def test_a_pin_is_not_widened_over_what_computes_no_floats(tmp_path: Path) -> None:
    """No precision can be asked of it, so that another build would show the same."""
    graph = load_graph(
        write_model(
            tmp_path,
            """g (float[2,4] x) => (bool[2,4] y, float[2,4] s) {
                [square] s = Mul(x, x) [compare] y = Greater(s, x)
            }""",
        )
    )
    square, compared = TensorSpec("s", shape=(2, 4)), TensorSpec("y", "BOOL", (2, 4))
    layers = [
        LayerSpec("square", "ELEMENTWISE", ("x",), (square,), "[ONNX Layer: square]"),
        LayerSpec("compare", "ELEMENTWISE", ("s", "x"), (compared,), "[ONNX Layer: compare]"),
    ]
    outcomes = [engine(("PWN(square, compare)", "FP16"))]
    script = Script([TensorSpec("x", shape=(2, 4))], layers, ["y", "s"], outcomes=outcomes)
    with _weak(script, graph, "square") as weak:
        *_, judged = weak.run()
    assert (weak.widened, weak.builds) == ({}, 1)
    assert [outcome.state for outcome in judged] == ["not honoured"]


def test_nothing_new_to_widen_over_ends_it(graph: Graph) -> None:
    script = small_script(engine(("square", "FP16")))
    with _weak(script, graph, "square") as weak:
        *_, outcomes = weak.run()
    assert len(script.asked) == 1
    assert outcomes == (PinOutcome("square", "not honoured", ("square",)),)


def test_a_pin_reaches_over_what_will_be_fused_before_the_first_build() -> None:
    graph, script = recorded_graph("conv_chain"), recorded_script("conv_chain")
    script.outcomes = [engine(("/conv7/Conv + /relu7/Relu", "FP32"))]
    shape = (2, 3, 64, 64)
    settings = BuildSettings(shapes={"image": ShapeRange(shape, shape, shape)})
    with _weak(script, graph, "/conv7/Conv", settings=settings) as weak:
        *_, outcomes = weak.run()
    assert _pinned(script.asked[0]) == ["/conv7/Conv", "/relu7/Relu"]
    assert list(weak.widened) == ["/relu7/Relu"]
    assert "/conv7/Conv" in weak.widened["/relu7/Relu"]
    assert [outcome.node for outcome in outcomes] == ["/conv7/Conv"]


def test_what_cannot_be_seen_is_not_widened(graph: Graph) -> None:
    script = small_script(engine(("{ForeignNode[square...topk]}", "FP32")))
    with _weak(script, graph, "square", "softmax") as weak:
        *_, outcomes = weak.run()
    assert {outcome.state for outcome in outcomes} == {"not visible"}
    assert weak.builds == 1


# ---------------------------------------------------------------- inputs and outputs


def _types(network: Any) -> dict[str, str]:
    inputs = [network.get_input(index) for index in range(network.num_inputs)]
    outputs = [network.get_output(index) for index in range(network.num_outputs)]
    return {tensor.name: tensor.dtype.name for tensor in (*inputs, *outputs)}


@pytest.mark.parametrize(
    ("io_types", "types"),
    [
        ("keep", {"x": "FLOAT", "y": "FLOAT", "i": "INT32"}),
        ("fp16", {"x": "HALF", "y": "HALF", "i": "INT32"}),
    ],
)
@pytest.mark.parametrize("variant", ["8.6", "10.12"])
def test_float_inputs_and_outputs_become_fp16_where_that_is_wanted(
    graph: Graph, io_types: Any, types: dict[str, str], variant: Variant, recwarn: pytest.WarningsRecorder
) -> None:
    settings = BuildSettings(io_types=io_types, shapes=SHAPES)
    with _weak(small_script(), graph, settings=settings, variant=variant) as weak:
        assert _types(weak.network) == types
    assert [str(w.message) for w in recwarn if "Deprecated in TensorRT" in str(w.message)] == []


def test_inner_tensors_are_marked_as_outputs_in_fp32(graph: Graph) -> None:
    settings = BuildSettings(io_types="fp16", shapes=SHAPES)
    with _weak(small_script(), graph, settings=settings, marked=("q", "s", "y", "lost", "u1")) as weak:
        found = _types(weak.network)
    assert list(found) == ["x", "y", "i", "s", "u1", "q"]
    assert (found["s"], found["q"], found["y"]) == ("FLOAT", "FLOAT", "HALF")


def test_an_engine_without_outcome_is_no_engine(graph: Graph) -> None:
    """The builder made bytes that the runtime does not take."""
    script = small_script(engine())
    with _weak(script, graph, "square") as weak:
        script.engines = _Deaf()
        with pytest.raises(BackendError, match=r"cannot load the engine: .*magic tag does not match"):
            weak.run()


class _Deaf(dict[bytes, Plan]):
    """Engines that are forgotten as they are built."""

    def __setitem__(self, content: bytes, plan: Plan) -> None:
        return


def test_the_models_file_is_not_written(tmp_path: Path) -> None:
    graph = small_graph(tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    with _weak(small_script(engine()), graph, "square") as weak:
        weak.run()
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
