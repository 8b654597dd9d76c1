"""What is told of differences that are a few of FP16's steps: of those over 1024, and of smaller ones that are divided by."""

from __future__ import annotations

from pathlib import Path

from in_memory_calibration import ask, floats, make_model, node, scalar, scan

from overflow_fixer.rules.lost_difference import find_lost_differences


def test_the_evidence(tmp_path: Path) -> None:
    nodes = [node("Mul", "x one", "a"), node("Sub", "a far", "y")]
    model = make_model(nodes, {"x": [None]}, "y", {"one": scalar(1), "far": scalar(3000)})
    graph, ranges = scan(model, tmp_path, {"x": floats()}, {"x": floats(3000.3, 3004.75)})
    mul, sub = ask(find_lost_differences, graph, ranges)
    assert (mul.node, sub.node, sub.tensor, sub.batch) == ("Mul_a", "Sub_y", "y", "batch_1")
    assert (sub.value, sub.limit, sub.action) == (4.75, 128, "pin")
    assert sub.reason == ("y is 4.75 at most, of which a, up to 3004.75, lose much: FP16's steps are 2 there")


def test_below_1024_it_must_be_divided_by(tmp_path: Path) -> None:
    """Each batch by itself: 800.1 less 800 is lost, in a batch, where another has 3 less 1."""
    nodes = [
        node("Mul", "x one", "a"),
        node("Sub", "a b", "d"),
        node("Neg", "d", "n"),
        node("Reciprocal", "n", "y"),
    ]
    model = make_model(nodes, {"x": [1], "b": [1]}, "y", {"one": scalar(1)})
    feeds = {"x": floats(3), "b": floats(1)}, {"x": floats(800.125), "b": floats(800.0625)}
    graph, ranges = scan(model, tmp_path, *feeds)
    mul, sub = ask(find_lost_differences, graph, ranges)
    assert (mul.node, sub.node, sub.tensor, sub.batch) == ("Mul_a", "Sub_d", "d", "batch_1")
    assert (sub.value, sub.limit, sub.action) == (0.0625, 8, "pin")
    assert sub.reason == (
        "d is 0.0625 at most in that batch, and its terms, up to 800.125, lose much: FP16's steps are 0.5 there, and "
        "Reciprocal Reciprocal_y divides by it"
    )
    nodes[-1] = node("Abs", "n", "y")
    model = make_model(nodes, {"x": [1], "b": [1]}, "y", {"one": scalar(1)})
    assert ask(find_lost_differences, *scan(model, tmp_path, *feeds)) == []


def test_over_1024_it_is_told_once(tmp_path: Path) -> None:
    nodes = [node("Mul", "x one", "a"), node("Sub", "a b", "d"), node("Reciprocal", "d", "y")]
    model = make_model(nodes, {"x": [1], "b": [1]}, "y", {"one": scalar(1)})
    graph, ranges = scan(model, tmp_path, {"x": floats(3000.3), "b": floats(3000.1)})
    assert [(one.node, one.limit) for one in ask(find_lost_differences, graph, ranges)] == [
        ("Mul_a", 128),
        ("Sub_d", 128),
    ]


def test_over_1024_in_a_batch_that_others_are_larger_than(tmp_path: Path) -> None:
    nodes = [node("Sub", "a b", "d"), node("Reciprocal", "d", "y")]
    model = make_model(nodes, {"a": [1], "b": [1]}, "y")
    feeds = {"a": floats(9000.1), "b": floats(1.1)}, {"a": floats(70000.3), "b": floats(70000.1)}
    (found,) = ask(find_lost_differences, *scan(model, tmp_path, *feeds))
    assert (found.batch, found.limit) == ("batch_1", 16 * 64)
    assert "lose much: FP16 ends at 65504, and" in found.reason
