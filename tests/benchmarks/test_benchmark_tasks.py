"""Each row's task runs, agrees with the scan by hand, and is measured in a fresh process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from tiny_models import TINY, write_model

from benchmarks.measure import OUT_OF_MEMORY, describe
from benchmarks.prepare import write_typed
from benchmarks.rounds import FEW, ROOT, Job, Limits, prepare, run_job, run_rounds, select
from benchmarks.scans import ONE_SHOT, SCANS, Task, open_by_hand
from benchmarks.stages import STAGES, open_verification
from benchmarks.tables import count_equal

LIMITS = Limits(seconds=100, memory_gb=8, patience_seconds=0)
UNOPTIMIZED = (
    "overflow_fixer",
    "overflow_fixer, no native probes",
    "by hand",
    "ONNX Runtime MinMaxCalibrater",
)
OPTIMIZED = ("overflow_fixer --fast", "Polygraphy API", "ModelOpt AutoCast's runner", "Polygraphy CLI")


def _open(task: str) -> Task:
    try:
        return (SCANS | ONE_SHOT)[task]()
    except ImportError as error:
        pytest.skip(f"{task}: {error}")


@pytest.mark.parametrize("name", TINY)
def test_the_scan_sees_every_float_tensor_and_each_value_bit_for_bit(name: str, tmp_path: Path) -> None:
    model, batches = write_model(name, tmp_path)
    exact = open_by_hand()(model, batches)
    assert exact.keys() >= _float_outputs(model)
    assert count_equal(_open("overflow_fixer")(model, batches), exact) == (len(exact), 0.0)


@pytest.mark.parametrize("task", [*UNOPTIMIZED, *OPTIMIZED])
def test_every_way_to_scan_agrees_with_the_scan_by_hand(task: str, tmp_path: Path) -> None:
    scan = _open(task)
    model, batches = write_model("yolo", tmp_path)
    exact = open_by_hand()(model, batches)
    found = scan(model, batches)
    assert len(found.keys() & exact.keys()) > 0.9 * len(exact)
    equal, error = count_equal(found, exact)
    assert error <= (0 if task in UNOPTIMIZED else 1e-5)
    assert equal > 0


def test_all_scans_are_held_against_the_scan_by_hand() -> None:
    assert {*UNOPTIMIZED, *OPTIMIZED} == {*SCANS, *ONE_SHOT} - {"plain", "plain, optimisation off"}


def test_verification_reads_the_typed_model_that_was_prepared(tmp_path: Path) -> None:
    model, batches = write_model("resnet", tmp_path)
    with pytest.raises(Exception, match=r"model\.fp16\.onnx"):
        open_verification()(model, batches)
    write_typed(model)
    assert open_verification()(model, batches) == {}


@pytest.mark.parametrize("task", ["plain", "plain, optimisation off", *STAGES])
def test_a_task_is_measured_in_a_fresh_process(task: str, tmp_path: Path) -> None:
    model, _ = write_model("bert", tmp_path)
    write_typed(model)
    found = run_job(Job(task), model, LIMITS)
    if found.failure.startswith("not installed"):
        pytest.skip(f"{task}: {found.failure}")
    assert found.failure == ""
    assert found.seconds > 0
    assert found.peak_bytes >= found.imported_bytes > 2**20


def test_the_parts_of_a_scan_are_all_of_its_time(tmp_path: Path) -> None:
    model, _ = write_model("bert", tmp_path)
    found = run_job(Job("scan split"), model, LIMITS)
    assert list(found.numbers) == ["load", "instrument", "open", "run", "other"]
    assert min(found.numbers.values()) > 0
    assert sum(found.numbers.values()) == pytest.approx(found.seconds, rel=0.2)


def test_the_few_batches_are_the_first_of_all(tmp_path: Path) -> None:
    model = prepare("small_convnet", tmp_path, batches=3, few=1)
    folders = [sorted((model.parent / name).glob("*.npz")) for name in ("data", "few")]
    assert [len(folder) for folder in folders] == [3, 1]
    assert folders[0][0].read_bytes() == folders[1][0].read_bytes()
    jobs = [Job("plain"), Job("by hand", FEW)]
    runs = run_rounds(model, jobs, 1, LIMITS)
    (found,) = select(runs, ["by hand"], FEW)["by hand"]
    with np.load(folders[1][0]) as arrays:
        assert found.numbers["image"] == np.abs(arrays["image"]).max()


def test_a_job_over_its_time_is_killed_and_not_tried_again(tmp_path: Path) -> None:
    model, _ = write_model("resnet", tmp_path)
    runs = run_rounds(model, [Job("plain")], 2, Limits(0.01, 8, 0))
    assert [found.failure for found in runs[Job("plain")]] == ["over 0.01 s"]


def test_what_ran_out_of_memory_is_told_as_that() -> None:
    assert describe(MemoryError("Unable to allocate 4 GiB")) == OUT_OF_MEMORY
    assert describe(RuntimeError("bfc_arena.cc: Failed to allocate memory for requested")) == OUT_OF_MEMORY
    assert describe(ValueError("no\nsense")) == "failed: ValueError: no"


def test_one_command_puts_the_tables_into_a_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- measured: begin -->\nold\n<!-- measured: end -->\nafter\n")
    arguments = ["--models", "", "--counts", "", "--sizes", "82", "--size-rounds", "1", "--patience", "0"]
    command = [sys.executable, "-m", "benchmarks.run", *arguments, "--write", str(page)]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    before, _, after = page.read_text().partition("### By number of nodes")
    assert before.startswith("before\n")
    assert "old" not in before
    assert "| 82 |" in after
    assert after.endswith("after\n")
    assert after.split("<!--")[0].strip() in done.stdout


def _float_outputs(model: Path) -> set[str]:
    """Every node output that holds floats, by ONNX Runtime's own word."""
    proto = onnx.load(model)
    del proto.graph.output[:]
    names = [name for node in proto.graph.node for name in node.output]
    proto.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    return {output.name for output in session.get_outputs() if output.type == "tensor(float)"}
