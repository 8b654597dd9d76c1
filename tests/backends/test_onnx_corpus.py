"""The models of onnx's own backend tests, which nobody wrote for this tool: none may crash it.

A fixed sample of them is taken; OVERFLOW_FIXER_WHOLE_CORPUS=1 in the environment takes them all.
What ONNX Runtime does not run as it stands is left out (operators it lacks, opsets it does not know).
"""

from __future__ import annotations

import os
import warnings
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from typed_models import Typed, all_nodes, assert_same, judge, plan_of, read_types, run_plain

from overflow_fixer.backends.mixed_onnx import emit
from overflow_fixer.errors import ModelError
from overflow_fixer.graph.model import load_graph
from overflow_fixer.model_file.opsets import MIN_OPSET

WHOLE = bool(os.environ.get("OVERFLOW_FIXER_WHOLE_CORPUS"))
ONNX_DOMAINS = ("", "ai.onnx")
DATA = Path(onnx.__file__).parent / "backend" / "test" / "data"
RANDOM_OPS = {
    "Bernoulli",
    "Dropout",
    "Multinomial",
    "RandomNormal",
    "RandomNormalLike",
    "RandomUniform",
    "RandomUniformLike",
}


@dataclass(frozen=True)
class Case:
    name: str
    model: onnx.ModelProto
    feeds: dict[str, Any]

    @property
    def opset(self) -> int:
        return max((o.version for o in self.model.opset_import if o.domain in ONNX_DOMAINS), default=0)

    @property
    def is_too_old(self) -> bool:
        """Whether it has nodes of an opset that is refused; models of ai.onnx.ml alone name none."""
        return self.opset < MIN_OPSET and any(n.domain in ONNX_DOMAINS for n in all_nodes(self.model.graph))


def _sampled(name: str, one_in: int) -> bool:
    return WHOLE or zlib.crc32(name.encode()) % one_in == 0


def _node_cases(one_in: int) -> Iterator[Case]:
    """Pooling makes zeros of what is expected, and no case its page of documentation: read by nothing here, most of the time."""
    from onnx.backend.test.case.node import collect_testcases

    def pool(padded: Any, x_shape: Any, kernel: Any, strides: Any, out_shape: Any, *_: Any, **__: Any) -> Any:
        return np.zeros((*x_shape[:2], *out_shape), padded.dtype)

    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        patch.setattr("onnx.reference.ops.op_pool_common.pool", pool)
        patch.setattr("onnx.backend.test.case.base.process_snippet", lambda *_: ("", ""))
        warnings.simplefilter("ignore")
        found = collect_testcases(None)
    for case in found:
        if _sampled(case.name, one_in):
            names = (info.name for info in case.model.graph.input)
            values = (_to_array(value) for value in case.data_sets[0][0])
            yield Case(case.name, case.model, dict(zip(names, values, strict=False)))


def _to_array(value: Any) -> Any:
    return numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value


def _file_cases(kind: str, one_in: int) -> Iterator[Case]:
    for path in sorted((DATA / kind).glob("*/model.onnx")):
        if _sampled(path.parent.name, one_in):
            model = onnx.load(path)
            folder = path.parent / "test_data_set_0"
            files = (folder / f"input_{index}.pb" for index in range(len(list(folder.glob("input_*.pb")))))
            pairs = zip(model.graph.input, files, strict=False)
            feeds = {info.name: _read(file, info.type.WhichOneof("value")) for info, file in pairs}
            yield Case(path.parent.name, model, feeds)


def _read(file: Path, kind: str | None) -> Any:
    if kind == "sequence_type":
        return numpy_helper.to_list(onnx.SequenceProto.FromString(file.read_bytes()))
    return numpy_helper.to_array(onnx.TensorProto.FromString(file.read_bytes()))


def _light_cases(names: Iterable[str]) -> Iterator[Case]:
    """Whole networks whose weights are ConstantOfShape."""
    for name in names:
        model = onnx.load(DATA / "light" / f"light_{name}.onnx")
        weights = {tensor.name for tensor in model.graph.initializer}
        rng = np.random.RandomState(0)
        feeds = {
            info.name: rng.random_sample([d.dim_value for d in info.type.tensor_type.shape.dim]).astype(
                np.float32
            )
            for info in model.graph.input
            if info.name not in weights
        }
        yield Case(name, model, feeds)


def _try(case: Case, folder: Path) -> str:
    """Take one case through everything; returns what became of it. Raises where the tool does."""
    path = folder / "model.onnx"
    path.write_bytes(case.model.SerializeToString())
    if case.is_too_old:
        with pytest.raises(ModelError, match="opset"):
            load_graph(path)
        try:
            converted = onnx.version_converter.convert_version(case.model, MIN_OPSET)
        except Exception:
            return "opset below 9, refused"
        path.write_bytes(converted.SerializeToString())
    try:
        expected = run_plain(path, case.feeds)
    except Exception:
        load_graph(path)
        return "not run by ONNX Runtime"
    for kind in ("naive", "fp16", "pinned"):
        _try_plan(case, path, kind, expected)
    return "converted from an older opset" if case.is_too_old else "run"


def _try_plan(case: Case, path: Path, kind: str, expected: dict[str, Any]) -> None:
    graph = load_graph(path)
    labels = frozenset(graph.by_label) if kind == "pinned" else frozenset()
    plan = plan_of(graph, labels)
    artifact = emit(graph, plan, path.parent / f"{kind}.onnx", io_types="fp16" if kind == "fp16" else "keep")
    typed = Typed(graph, artifact, labels)
    found = typed.run(case.feeds)
    assert list(found) == list(expected)
    if kind != "fp16":
        judge(typed)
    if kind == "pinned":
        assert artifact.cast_count == 0
        if not _is_random(typed) and not _has_fp16(typed):
            for name, values in expected.items():
                if _has_sigmoid(typed):  # ONNX Runtime's own is off by 1e-7, the simulation's is not
                    np.testing.assert_allclose(found[name], values, rtol=1e-5, atol=2e-7)
                else:
                    assert_same(_read_codes(found[name]), values)


def _read_codes(values: Any) -> Any:
    """FP8 as ONNX Runtime gives it to numpy."""
    is_fp8 = isinstance(values, np.ndarray) and values.dtype.name.startswith("float8")
    return values.view(np.uint8) if is_fp8 else values


def _is_random(typed: Typed) -> bool:
    return not RANDOM_OPS.isdisjoint(node.op_type for node in typed.graph.nodes)


def _has_sigmoid(typed: Typed) -> bool:
    return any(node.op_type == "Sigmoid" for node in typed.graph.nodes)


def _has_fp16(typed: Typed) -> bool:
    """ONNX Runtime does not round between the nodes of FP16 parts, the simulation does."""
    kinds = read_types(typed.graph.model, typed.graph.folder).values()
    return any("float16" in kind for kind in kinds)


def _try_all(cases: Iterable[Case], folder: Path) -> Counter[str]:
    """How many cases ended in what way; every failure is told by the case's name."""
    counts: Counter[str] = Counter()
    failures: dict[str, str] = {}
    for case in cases:
        try:
            counts[_try(case, folder)] += 1
        except Exception as error:
            failures[case.name] = f"{type(error).__name__}: {str(error)[:300]}"
    assert failures == {}
    print(dict(counts))
    return counts


def test_a_twelfth_of_the_node_tests(tmp_path: Path) -> None:
    counts = _try_all(_node_cases(12), tmp_path)
    assert counts["run"] > 60


@pytest.mark.parametrize(
    ("kind", "one_in", "fewest"), [("pytorch-converted", 4, 8), ("pytorch-operator", 4, 4), ("simple", 1, 8)]
)
def test_a_sample_of_the_model_files(tmp_path: Path, kind: str, one_in: int, fewest: int) -> None:
    counts = _try_all(_file_cases(kind, one_in), tmp_path)
    assert counts["run"] + counts["converted from an older opset"] >= fewest


def test_two_light_networks_of_nine(tmp_path: Path) -> None:
    whole = sorted(path.name[6:-5] for path in (DATA / "light").glob("*.onnx"))
    names = whole if WHOLE else ["shufflenet", "squeezenet"]
    counts = _try_all(_light_cases(names), tmp_path)
    assert counts["run"] + counts["converted from an older opset"] == len(names)
