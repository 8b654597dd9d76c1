from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest
from in_memory_calibration import InMemoryCalibration, floats, make_model, node, save

import overflow_fixer
from overflow_fixer import (
    Batch,
    collect_ranges,
    emit,
    fix,
    load_graph,
    load_plan,
    load_ranges,
    merge_ranges,
    open_calibration,
    open_reference,
    plan_precision,
    save_plan,
    verify,
)
from overflow_fixer.config import FixConfig
from overflow_fixer.errors import ConfigError, OutputError
from overflow_fixer.graph.model import Graph
from overflow_fixer.records import PlanPolicy, PrecisionPlan, Tolerance


@pytest.fixture
def graph(tmp_path: Path) -> Graph:
    return save(make_model([node("Mul", "x x", "y")], {"x": [2]}, "y"), tmp_path)


ONLY_PUBLIC = sorted(
    name for name in overflow_fixer.__all__ if inspect.isfunction(getattr(overflow_fixer, name))
)


@pytest.mark.parametrize("name", ONLY_PUBLIC)
def test_every_public_function_refuses_what_is_of_no_type_that_it_takes(name: str) -> None:
    function = getattr(overflow_fixer, name)
    asked = inspect.signature(function).parameters
    needed = [each for each, about in asked.items() if about.default is about.empty]
    with pytest.raises(
        ConfigError, match=rf"^{needed[0]} is of the type object\. Expected .* Give such a one\.$"
    ):
        function(*(object() for _ in needed))
    with pytest.raises(TypeError, match="argument"):
        function()


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda g: collect_ranges(g, InMemoryCalibration(()), limit="x"), "limit is 'x'. Expected a number."),
        (
            lambda g: collect_ranges(g, InMemoryCalibration(()), limit=True),
            "limit is True. Expected a number.",
        ),
        (lambda g: collect_ranges("m.onnx", g), "graph is 'm.onnx'. Expected a Graph, as load_graph gives."),
        (lambda g: collect_ranges(g, g, over=None), "over is None. Expected a function."),
        (lambda g: collect_ranges(g, g, store=3), "store is 3. Expected a Path or a text or None."),
        (
            lambda g: fix({"model": 1}),
            "config is {'model': 1}. Expected a FixConfig, which is made so: FixConfig(",
        ),
        (
            lambda g: fix(FixConfig(model="m", calib="c"), ranges_path=3),
            "ranges_path is 3. Expected a Path or a text",
        ),
        (
            lambda g: fix(FixConfig(model="m", calib="c"), existing="no", ranges_path="r"),
            "existing is 'no'. Expected",
        ),
        (
            lambda g: merge_ranges("a.h5"),
            "files is 'a.h5'. Expected a tuple or list, of which each is a Path or a text.",
        ),
        (lambda g: merge_ranges(x for x in "ab"), "files is of the type generator. Expected a tuple or list"),
        (
            lambda g: open_calibration("x", ["x"]),
            "inputs is ['x']. Expected a tuple or list, of which each is an InputSpec",
        ),
        (lambda g: open_reference(g, "y"), "extra_outputs is 'y'. Expected a tuple or list"),
        (lambda g: open_reference(g, {"y": 1}), "extra_outputs is {'y': 1}. Expected a tuple or list"),
        (
            lambda g: open_reference(g, "y" * 200),
            f"extra_outputs is '{'y' * 79}. Expected a tuple or list",
        ),
        (
            lambda g: plan_precision(g, g, PlanPolicy()),
            "ranges is of the type Graph. Expected a RangeTable, as collect_",
        ),
        (
            lambda g: verify(g, g, [], Tolerance()),
            "reference is of the type Graph. Expected a Runner, as open_",
        ),
        (
            lambda g: Tolerance(fills=3),
            "Tolerance.fills is 3. Expected a dict, of which each key is a text and each",
        ),
        (lambda g: Tolerance(fills={"y": ("a",)}), "Tolerance.fills is {'y': ('a',)}. Expected a dict"),
        (lambda g: Tolerance(per_output=[("y", 3)]), "Tolerance.per_output is [('y', 3)]. Expected a dict"),
        (
            lambda g: Tolerance(parts=(3,)),
            "Tolerance.parts is (3,). Expected a tuple or list, of which each is a text.",
        ),
        (
            lambda g: PlanPolicy(include_nodes=None),
            "PlanPolicy.include_nodes is None. Expected a tuple or list",
        ),
        (
            lambda g: PrecisionPlan("", 1.0, ("Mul",)),
            "PrecisionPlan.pins is ('Mul',). Expected a tuple or list, of which each",
        ),
        (
            lambda g: Batch("a", [1]),
            "Batch.feeds is [1]. Expected a dict, of which each key is a text and each value anything.",
        ),
    ],
)
def test_what_is_of_another_type_is_told_in_one_line(
    call: Callable[[Any], Any], told: str, graph: Graph
) -> None:
    with pytest.raises(ConfigError) as caught:
        call(graph)
    assert str(caught.value).startswith(told)
    assert "\n" not in str(caught.value)


def test_paths_that_no_file_can_have_are_refused(graph: Graph, tmp_path: Path) -> None:
    for call in (load_graph, load_ranges, load_plan, lambda path: open_calibration(path, graph.inputs)):
        with pytest.raises(ConfigError, match=r"^path is 'a\\x00b', with a NUL character\. Expected a path"):
            call("a\0b")
    plan = PrecisionPlan(graph.sha256, 1.0, ())
    for call in (lambda path: save_plan(plan, path), lambda path: emit(graph, plan, path)):
        for path in ("", "."):
            with pytest.raises(OutputError, match=r"^\. is a folder\. Expected the name of a file"):
                call(path)


def test_lists_arrays_numpys_numbers_and_a_class_of_ones_own_are_taken(graph: Graph, tmp_path: Path) -> None:
    policy = PlanPolicy(include_ops=["Mul"])  # type: ignore[arg-type]
    batches = InMemoryCalibration(({"x": floats(1, 2)},))
    ranges = collect_ranges(graph, batches, limit=np.float32(3), progress=MagicMock())
    plan = plan_precision(graph, ranges, policy, {"own": lambda *_: iter(())})
    assert plan.pins == ()
    runner = MagicMock(output_names=("y",), run=lambda batch: {"y": batch.feeds["x"] ** 2})
    assert verify(open_reference(graph), runner, iter(batches), Tolerance()).passed
    Batch("a", np.load(_save_arrays(tmp_path)))


def test_numpys_truth_is_taken_and_no_number_for_one() -> None:
    assert PrecisionPlan("", 1.0, (), tf32=np.bool_(True)).tf32
    with pytest.raises(ConfigError, match=r"^PrecisionPlan\.tf32 is 1\. Expected True or False"):
        PrecisionPlan("", 1.0, (), tf32=1)  # type: ignore[arg-type]


def test_a_subclass_may_have_annotations_that_cannot_be_read() -> None:
    @dataclass(frozen=True)
    class Mine(PlanPolicy):
        note: OnlyForTypeCheckers | None = None  # type: ignore[name-defined]  # noqa: F821

    assert Mine(include_ops=("Mul",)).note is None
    with pytest.raises(ConfigError, match=r"^Mine\.include_ops is \(3,\)\. Expected a tuple or list"):
        Mine(include_ops=(3,))  # type: ignore[arg-type]


def test_batches_may_be_of_what_is_gone_through_by_number(graph: Graph) -> None:
    class ByNumber:
        def __getitem__(self, number: int) -> Batch:
            return (Batch("a", {"x": floats(1, 2)}),)[number]

    runner = open_reference(graph)
    assert verify(runner, runner, ByNumber(), Tolerance()).batch_count == 1  # type: ignore[arg-type]


class _HandsOn:
    """A runner around another, of which it has all but what it does itself."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def test_a_runner_that_hands_on_what_another_has_is_taken(graph: Graph) -> None:
    runner, batches = open_reference(graph), InMemoryCalibration(({"x": floats(1, 2)},))
    assert verify(_HandsOn(runner), _HandsOn(runner), batches, Tolerance()).passed
    with pytest.raises(ConfigError, match=r"^candidate is of the type _HandsOn\. Expected a Runner"):
        verify(runner, _HandsOn(graph), batches, Tolerance())


def _save_arrays(folder: Path) -> Path:
    np.savez(folder / "a.npz", x=floats(1, 2))
    return folder / "a.npz"
