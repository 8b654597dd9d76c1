"""What an exponential loses by the terms of its exponent, against an independent computation in float64."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import onnx
import pytest
from in_memory_calibration import ints, make_model, node, scalar, scan

from overflow_fixer.inner.exponentials import find_exponent
from overflow_fixer.records import InnerRange

GENERATOR = np.random.default_rng(0)
TIMES = np.sort(GENERATOR.uniform(0, 1000, (2, 40)), 1).astype(np.float32)
CENTRES = np.linspace(0, 1000, 40, dtype=np.float32)
DIFFERENCE = [node("Unsqueeze", "x last", "a"), node("Unsqueeze", "x middle", "b"), node("Sub", "a b", "d")]
POSITIVE = [*DIFFERENCE, node("Abs", "d", "p")]
CONSTANTS = {
    "last": ints(-1),
    "middle": ints(1),
    "minus": scalar(-0.5),
    "two": scalar(2),
    "zero": scalar(0),
    "eps": scalar(1e-6),
    "centres": CENTRES,
    "mask": np.tril(np.ones((40, 40), np.float32), -1),
    "is_before": np.tril(np.ones((40, 40), bool), -1),
    "least": scalar(-math.inf),
}


def _measure(folder: Path, nodes: list[onnx.NodeProto], *batches: np.ndarray) -> list[InnerRange]:
    model = make_model(nodes, {"x": [None, None]}, "y", CONSTANTS, 18)
    _, ranges = scan(model, folder, *({"x": one} for one in batches))
    return [one for one in ranges.inner if one.quantity == "exponent loss"]


def _lose(right: np.ndarray, found: np.ndarray) -> float:
    return float(np.sqrt(np.square(found - right).sum() / np.square(right).sum()))


def _decay(x: np.ndarray) -> np.ndarray:
    return np.exp(-0.5 * np.abs(x[..., :, None] - x[..., None, :]))


def _kernel(x: np.ndarray) -> np.ndarray:
    centres = CENTRES.astype(np.float16) if x.dtype == np.float16 else CENTRES
    return np.exp(-0.5 * np.square(x.astype(np.float64) - centres.astype(np.float64)))


FORMS = {
    "behind a factor": ([*POSITIVE, node("Mul", "p minus", "e"), node("Exp", "e", "y")], _decay),
    "behind a root": (
        [
            *DIFFERENCE,
            node("Mul", "d d", "q"),
            node("Sqrt", "q", "p"),
            node("Mul", "p minus", "e"),
            node("Exp", "e", "y"),
        ],
        _decay,
    ),
    **{
        f"inside {norm}": (
            [
                *DIFFERENCE,
                node("Unsqueeze", "d last", "u"),
                node(norm, "u last", "p", keepdims=0),
                node("Mul", "p minus", "e"),
                node("Exp", "e", "y"),
            ],
            _decay,
        )
        for norm in ("ReduceL1", "ReduceL2")
    },
    "less a small constant": (
        [*POSITIVE, node("Mul", "p minus", "m"), node("Sub", "m eps", "e"), node("Exp", "e", "y")],
        _decay,
    ),
    "of constants, squared": (
        [
            node("Sub", "x centres", "d"),
            node("Pow", "d two", "q"),
            node("Mul", "minus q", "e"),
            node("Exp", "e", "y"),
        ],
        _kernel,
    ),
    "behind a mask of infinities": (
        [
            *POSITIVE,
            node("Mul", "p minus", "m"),
            node("Where", "is_before m least", "e"),
            node("Exp", "e", "y"),
        ],
        lambda x: _decay(x) * np.tril(np.ones((40, 40)), -1),
    ),
    "what a mask leaves": (
        [*POSITIVE, node("Mul", "p minus", "e"), node("Exp", "e", "f"), node("Mul", "f mask", "y")],
        lambda x: _decay(x) * np.tril(np.ones((40, 40)), -1),
    ),
}


@pytest.mark.parametrize("native", ["0", "1"])
@pytest.mark.parametrize("form", FORMS)
def test_the_loss(form: str, native: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OVERFLOW_FIXER_NATIVE", native)
    nodes, function = FORMS[form]
    batches = [TIMES, TIMES / 10]
    (found,) = _measure(tmp_path, nodes, *batches)
    assert (found.node, found.is_bound) == (nodes[-1].name, False)
    halves = [one.astype(np.float16) if form == "of constants, squared" else _round(one) for one in batches]
    wanted = [
        _lose(function(x.astype(np.float64)), function(half)) for x, half in zip(batches, halves, strict=True)
    ]
    assert found.batch_max_abs.tolist() == pytest.approx(wanted, rel=1e-2)


def _round(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float16).astype(np.float64)


OTHERS = {
    "no difference": [node("Mul", "x minus", "e"), node("Exp", "e", "y")],
    "an input": [node("Exp", "x", "y")],
    "of a layer": [node("MatMul", "x mask", "e"), node("Exp", "e", "y")],
    "less its largest": [
        node("ReduceMax", "x last", "m"),
        node("Sub", "x m", "d"),
        node("Exp", "d", "y"),
    ],
    "less its largest, whose axis is put back": [
        node("ReduceMax", "x last", "m", keepdims=0),
        node("Unsqueeze", "m last", "u"),
        node("Sub", "x u", "d"),
        node("Exp", "d", "y"),
    ],
}


@pytest.mark.parametrize("form", OTHERS)
def test_no_such_exponent(form: str, tmp_path: Path) -> None:
    assert _measure(tmp_path, OTHERS[form], TIMES / 100) == []


@pytest.mark.parametrize("other", [math.nan, math.inf])
def test_of_what_is_not_finite_there_is_no_number(other: float, tmp_path: Path) -> None:
    broken = TIMES.copy()
    broken[0, 0] = other
    (found,) = _measure(tmp_path, FORMS["behind a factor"][0], broken)
    assert math.isnan(found.batch_max_abs[0])


def test_of_no_element_there_is_no_number(tmp_path: Path) -> None:
    (found,) = _measure(tmp_path, FORMS["behind a factor"][0], TIMES[:0])
    assert math.isnan(found.batch_max_abs[0])


@pytest.mark.parametrize("x", [np.zeros((1, 40), np.float32), TIMES[:, :1], np.round(TIMES)])
def test_of_what_fp16_has_nothing_is_lost(x: np.ndarray, tmp_path: Path) -> None:
    (found,) = _measure(tmp_path, FORMS["behind a factor"][0], x)
    assert found.batch_max_abs[0] == 0


def test_of_one_number(tmp_path: Path) -> None:
    nodes = [node("Sub", "x z", "d"), node("Exp", "d", "y")]
    x, z = scalar(300.1), scalar(299.8)
    _, ranges = scan(make_model(nodes, {"x": [], "z": []}, "y"), tmp_path, {"x": x, "z": z})
    (found,) = ranges.inner
    wanted = math.exp(float(np.float16(x)) - float(np.float16(z)) - (float(x) - float(z))) - 1
    assert found.seen.max_abs == pytest.approx(abs(wanted), rel=1e-3)


@pytest.mark.parametrize("opset", [9, 11])
def test_nodes_of_old_opsets(opset: int, tmp_path: Path) -> None:
    """Whose axes and bounds are attributes."""
    bounds = {"min": 0.0} if opset == 9 else {}
    bounded = node("Clip", "d" if opset == 9 else "d zero", "p", **bounds)
    nodes = [
        node("Unsqueeze", "x", "a", axes=[2]),
        node("Unsqueeze", "x", "b", axes=[1]),
        node("Sub", "a b", "d"),
        bounded,
        node("Mul", "p minus", "e"),
        node("ReduceSum", "e", "s", axes=[2]),
        node("Exp", "s", "y"),
    ]
    model = make_model(nodes, {"x": [None, None]}, "y", CONSTANTS, opset)
    x = TIMES[:, -4:]
    _, ranges = scan(model, tmp_path, {"x": x})
    (found,) = (one for one in ranges.inner if one.quantity == "exponent loss")
    assert found.seen.max_abs == pytest.approx(
        _lose(*(_add_up(one) for one in (x.astype(float), _round(x)))), rel=1e-2
    )


def _add_up(x: np.ndarray) -> np.ndarray:
    return np.exp(-0.5 * np.maximum(x[..., :, None] - x[..., None, :], 0).sum(-1))


def test_the_terms_are_those_of_the_nearest_difference(tmp_path: Path) -> None:
    nodes = [*DIFFERENCE, node("Add", "d a", "s"), node("Exp", "s", "y")]
    graph, _ = scan(make_model(nodes, {"x": [None, None]}, "y", CONSTANTS, 18), tmp_path, {"x": TIMES / 1000})
    exponent = find_exponent(graph, graph.by_label["Exp_y"])
    assert exponent is not None
    assert exponent.differences.terms == ("d", "a")
    assert [one.label for one in exponent.differences.nodes] == ["Add_s"]


def test_a_long_chain_is_followed_a_few_nodes(tmp_path: Path) -> None:
    chain = [node("Neg", f"n{index}", f"n{index + 1}") for index in range(20)]
    nodes = [node("Sub", "x centres", "n0"), *chain, node("Exp", "n20", "y")]
    assert _measure(tmp_path, nodes, TIMES / 1000) == []
    assert len(_measure(tmp_path, [*nodes[:11], node("Exp", "n10", "y")], TIMES / 1000)) == 1
