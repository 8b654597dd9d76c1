"""Which batch shows the largest value of a tensor."""

from pathlib import Path

from in_memory_calibration import floats, make_model, node, scan

from overflow_fixer.rules.batches import find_worst_batch


def test_the_batch_of_the_largest_value_and_none_of_a_constant(tmp_path: Path) -> None:
    model = make_model([node("Mul", "x w", "y")], {"x": [2]}, "y", {"w": floats(1, -2)})
    graph, ranges = scan(model, tmp_path, {"x": floats(1, 2)}, {"x": floats(3, -4)}, {"x": floats(1, 1)})
    told = {name: find_worst_batch(graph, ranges, name) for name in ("x", "w", "y")}
    assert told == {"x": "batch_1", "w": None, "y": "batch_1"}
