"""The errors of outputs and of their parts, against a meter of each by itself."""

from __future__ import annotations

import numpy as np
import pytest

from overflow_fixer.errors import ConfigError
from overflow_fixer.metrics.error_meter import ErrorMeter
from overflow_fixer.metrics.output_meters import OutputMeters
from overflow_fixer.metrics.parts import find_parts
from overflow_fixer.records import Array, TensorError, Tolerance

RNG = np.random.default_rng(7)
PARTS = find_parts(Tolerance(parts=("z[0]", "y[:, 2]", "y[..., ::2]", "x[0]")), ["x", "y", "z"])


def _draw(*shape: int) -> dict[str, Array]:
    return {"y": RNG.normal(size=shape).astype(np.float32), "z": RNG.integers(9, size=(2, 5))}


def _blur(values: dict[str, Array]) -> dict[str, Array]:
    return {"y": values["y"] + np.float32(1e-3) * values["y"] ** 2, "z": values["z"] // 2 * 2}


def _alone(tensor: str, part: str, pairs: list[tuple[Array, Array]]) -> TensorError:
    meter = ErrorMeter(tensor, part=part)
    for number, (expected, found) in enumerate(pairs):
        meter.add(expected, found, f"batch_{number}")
    return meter.result()


def test_each_part_is_measured_as_if_it_were_an_output_behind_its_whole() -> None:
    expected = [_draw(4, 3), _draw(2, 3)]
    found = [_blur(values) for values in expected]
    meters = OutputMeters(["y", "z"], PARTS, {})
    for number, (right, value) in enumerate(zip(expected, found, strict=True)):
        meters.add(right, value, f"batch_{number}")
    pairs = list(zip(expected, found, strict=True))
    assert meters.results() == [
        _alone("y", "", [(a["y"], b["y"]) for a, b in pairs]),
        _alone("y", "[:, 2]", [(a["y"][:, 2], b["y"][:, 2]) for a, b in pairs]),
        _alone("y", "[..., ::2]", [(a["y"][..., ::2], b["y"][..., ::2]) for a, b in pairs]),
        _alone("z", "", [(a["z"], b["z"]) for a, b in pairs]),
        _alone("z", "[0]", [(a["z"][0], b["z"][0]) for a, b in pairs]),
    ]
    assert [error.name for error in meters.results()] == ["y", "y[:, 2]", "y[..., ::2]", "z", "z[0]"]


def test_of_another_shape_a_part_matches_nowhere() -> None:
    meters = OutputMeters(["y"], PARTS, {})
    meters.add({"y": np.ones((4, 3), np.float32)}, {"y": np.ones((4, 2), np.float32)}, "batch_0")
    for error in meters.results():
        assert error.mismatched == error.element_count == 12
        assert error.other_shape == "[4, 2] instead of [4, 3] on batch_0"


def test_a_batch_that_failed_counts_the_elements_of_the_part() -> None:
    meters = OutputMeters(["y"], PARTS, {})
    meters.add_failure({"y": np.ones((4, 3), np.float32)}, "batch_0", "index out of range")
    assert [(error.mismatched, error.failure) for error in meters.results()] == [
        (12, "index out of range"),
        (4, "index out of range"),
        (8, "index out of range"),
    ]


def test_the_energy_of_other_batches_is_that_of_the_part() -> None:
    meters = OutputMeters(["y"], PARTS[1:2], {}, {"y": -9.0, "y[:, 2]": 2.0})
    meters.add({"y": np.full((4, 3), 0.1, np.float32)}, {"y": np.full((4, 3), 0.2, np.float32)}, "b")
    whole, part = meters.results()
    assert whole.worst_batch_snr_db == pytest.approx(0, abs=1e-5)
    assert part.worst_batch_snr_db == pytest.approx(20, abs=1e-5)


def test_a_part_that_is_not_there_is_an_error_whichever_way() -> None:
    meters, narrow = OutputMeters(["y"], PARTS, {}), {"y": np.ones((4, 2), np.float32)}
    with pytest.raises(ConfigError, match=r"no part y\[:, 2\]: y is of shape \[4, 2\]"):
        meters.add(narrow, narrow, "batch_0")
    with pytest.raises(ConfigError, match=r"no part y\[:, 2\]"):
        meters.add_failure(narrow, "batch_0", "")
