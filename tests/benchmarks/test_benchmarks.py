"""The benchmark's models are valid and run, its scans agree, and its ratios are what they say."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT))

from benchmarks.measure import Measurement  # noqa: E402
from benchmarks.models import BenchmarkModel, sized_transformer  # noqa: E402
from benchmarks.models.resnet import build_resnet50, draw_image  # noqa: E402
from benchmarks.models.transformer import BertSize, build_bert, draw_tokens  # noqa: E402
from benchmarks.models.unet import build_unet  # noqa: E402
from benchmarks.neighbours import CpuTimes, others_share, read_cpu_times  # noqa: E402
from benchmarks.scans import open_by_hand, open_min_max_calibrater, open_overflow_fixer  # noqa: E402
from benchmarks.tables import count_equal, ratios, scan_table  # noqa: E402

BERT = BertSize(layers=2, hidden=16, heads=2, sequence=8, vocabulary=20)
TINY = {
    "resnet": BenchmarkModel(
        lambda: build_resnet50(32, width=8, stages=(1, 2), classes=5), lambda rng: draw_image(rng, 32)
    ),
    "bert": BenchmarkModel(lambda: build_bert(BERT), lambda rng: draw_tokens(rng, BERT)),
    "unet": BenchmarkModel(lambda: build_unet(32, width=4, levels=2), lambda rng: draw_image(rng, 32)),
}


def _write(name: str, folder: Path) -> tuple[Path, list[Path]]:
    (folder / "data").mkdir()
    batches = [folder / "data" / f"{index}.npz" for index in range(2)]
    onnx.save(TINY[name].build(), folder / "model.onnx")
    for index, batch in enumerate(batches):
        np.savez(batch, **TINY[name].draw(np.random.default_rng(index)))
    return folder / "model.onnx", batches


@pytest.mark.parametrize("name", TINY)
def test_models_are_valid_and_run_to_finite_outputs(name: str) -> None:
    model = TINY[name].build()
    onnx.checker.check_model(model, full_check=True)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (output,) = session.run(None, TINY[name].draw(np.random.default_rng(0)))
    assert np.isfinite(output).all()
    assert output.std() > 0
    assert TINY[name].build() == model


def test_sized_transformers_have_about_that_many_nodes() -> None:
    assert [len(sized_transformer(size).build().graph.node) for size in (82, 702, 1012)] == [82, 702, 1012]


@pytest.mark.parametrize("name", TINY)
def test_the_scan_is_exact_and_the_calibrator_agrees(name: str, tmp_path: Path) -> None:
    model, batches = _write(name, tmp_path)
    exact = open_by_hand()(model, batches)
    assert exact.keys() >= _float_outputs(model)
    assert count_equal(open_overflow_fixer()(model, batches), exact) == (len(exact), 0.0)
    found = open_min_max_calibrater()(model, batches)
    assert all(exact[name] == value for name, value in found.items() if name in exact)
    assert len(found.keys() & exact.keys()) > len(exact) / 2


def _float_outputs(model: Path) -> set[str]:
    """Every node output that holds floats, by ONNX Runtime's own word."""
    proto = onnx.load(model)
    del proto.graph.output[:]
    names = [name for node in proto.graph.node for name in node.output]
    proto.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    return {output.name for output in session.get_outputs() if output.type == "tensor(float)"}


def test_a_measurement_in_a_fresh_process_has_time_and_memory(tmp_path: Path) -> None:
    model, _ = _write("resnet", tmp_path)
    result = tmp_path / "result.json"
    arguments = ["plain", str(model), str(tmp_path / "data"), str(result), "8"]
    subprocess.run([sys.executable, "-m", "benchmarks.measure", *arguments], cwd=ROOT, check=True)
    found = Measurement(**json.loads(result.read_text()))
    assert found.failure == ""
    assert found.seconds > 0
    assert found.peak_bytes >= found.imported_bytes > 2**20


def test_others_are_what_was_busy_and_not_ours() -> None:
    before = CpuTimes(busy=10, total=100, ours=5)
    assert others_share(before, CpuTimes(busy=16, total=120, ours=7)) == 0.2
    assert others_share(before, CpuTimes(busy=12, total=120, ours=8)) == 0.0
    now = read_cpu_times()
    assert 0 < now.busy <= now.total


def test_ratios_are_taken_round_by_round_and_failures_left_out() -> None:
    floor = [Measurement(seconds=1), Measurement(seconds=2), Measurement(seconds=4)]
    found = [Measurement(seconds=3), Measurement(failure="over 1 s"), Measurement(seconds=4)]
    assert ratios(found, floor, "seconds") == [3, 1]


def test_values_count_as_equal_only_bit_for_bit() -> None:
    exact = {"a": 1.0, "b": 2.0, "c": 3.0}
    equal, error = count_equal({"a": 1.0, "b": math.nextafter(2.0, 3)}, exact)
    assert equal == 1
    assert 0 < error < 1e-15


def test_a_failure_is_told_in_its_row() -> None:
    good = [Measurement(1.0, 2**20, 2**19, {"x": 1.0})]
    runs = {"plain": good, "plain, optimisation off": good, "by hand": good}
    table = scan_table({**runs, "Polygraphy API": [Measurement(failure="not installed (No module)")]})
    assert "| Polygraphy API | not installed (No module) |" in table
    assert "| by hand | 1.00 | 1.00 (1.00–1.00) |" in table
    assert len({line.count("|") for line in table.splitlines()}) == 1
