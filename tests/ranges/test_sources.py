"""Whose values a tensor holds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from in_memory_calibration import InMemoryCalibration
from typed_models import write_model

from overflow_fixer.graph.model import load_graph
from overflow_fixer.ranges import collect_ranges
from overflow_fixer.ranges.sources import find_sources

CHAIN = """g (float[N,4] x) => (float[4,N] y, float[M] z) {
    a = Neg(x)
    b = Identity(a)
    y = Transpose(b)
    f = Flatten(y)
    s = Constant<value = int64[1] {-1}>()
    r = Reshape(f, s)
    z = Exp(r)
}"""


def test_what_is_only_rearranged_stands_for_its_source(tmp_path: Path) -> None:
    graph = load_graph(write_model(tmp_path, CHAIN))
    tensors = [name for name in graph.tensors if graph.is_float(name)]
    sources = find_sources(graph, tensors)
    assert sources == {"x": "x", "a": "a", "b": "a", "y": "a", "f": "a", "r": "a", "z": "z"}


def test_a_source_that_is_not_observed_stands_for_nothing(tmp_path: Path) -> None:
    graph = load_graph(write_model(tmp_path, CHAIN))
    assert find_sources(graph, ["b", "y", "z"]) == {"b": "b", "y": "b", "z": "z"}


def test_fp16_stands_for_itself(tmp_path: Path) -> None:
    text = "g (float[N] x) => (float[N] y) { h = Cast<to = 10>(x) i = Identity(h) y = Cast<to = 1>(i) }"
    graph = load_graph(write_model(tmp_path, text))
    assert find_sources(graph, ["h", "i"]) == {"h": "h", "i": "i"}


@pytest.mark.parametrize("op", ["Relu", "Neg", "Abs"])
@settings(max_examples=25, deadline=None)
@given(
    values=st.lists(
        st.one_of(
            st.sampled_from([0.0, -0.0, 1.0, -1.0, 2.0**-149, 65519.0, 65520.0, np.inf, -np.inf, np.nan]),
            st.floats(width=32),
        ),
        max_size=8,
    )
)
def test_a_shared_probe_tells_the_exact_values_of_each(
    op: str, values: list[float], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Zeros, limits, NaN and nothing at all: the probes agree with every tensor fetched."""
    folder = tmp_path_factory.mktemp("m")
    graph = load_graph(
        write_model(folder, f"g (float[N] x) => (float[N] y) {{ a = {op}(x) b = Identity(a) y = Neg(b) }}")
    )
    batches = InMemoryCalibration(({"x": np.array(values, np.float32)}, {"x": np.float32([0.25, 0, 3])}))
    seen = [collect_ranges(graph, batches, observe=way) for way in ("reductions", "outputs")]
    np.testing.assert_equal([vars(found) for found in seen[0].ranges], [vars(f) for f in seen[1].ranges])
