"""Engines on disk: what is written is read again, and what is torn or foreign is refused."""

from __future__ import annotations

import errno
import json
import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from engine_scripts import small_graph
from recorded_networks import make_plan

from overflow_fixer.backends.tensorrt.builder import Precision
from overflow_fixer.backends.tensorrt.engine_file import (
    note_price,
    read_artifact,
    read_price,
    sidecar_of,
    write_engine,
)
from overflow_fixer.errors import BackendError, OutputError
from overflow_fixer.graph.model import Graph, load_graph
from overflow_fixer.records import (
    Artifact,
    BuildSettings,
    Clamp,
    Engine,
    Kept,
    Latency,
    PinOutcome,
    Price,
    ShapeRange,
)

SETTINGS = BuildSettings(
    io_types="fp16",
    workspace_bytes=1 << 30,
    optimization_level=4,
    tactic_sources=("CUDNN",),
    plugins=(Path("lib/plugin.so"),),
    timing_cache=Path("timings"),
    shapes={"x": ShapeRange((1, 4), (2, 4), (8, 4)), "n": ShapeRange((), (), (), ((1,), (2,), (3,)))},
)
ENGINE = Engine(
    tensorrt="8.6.1",
    gpu="GPU",
    compute_capability=(9, 0),
    typing="weak",
    constraints="obey",
    layers=5,
    fp32_layers=2,
    fp16_layers=1,
    reformat_layers=2,
    opaque_layers=0,
    pins=(PinOutcome("square", "honoured", ("square",)), PinOutcome("softmax", "no layer")),
    skipped=(Kept("softmax", "SHUFFLE", "layer 's': it computes with shapes"),),
    dropped=(Kept("topk", "SHUFFLE", "given up"),),
    builds=3,
    build_seconds=1.25,
    warnings=("a warning", "größer"),
)


class Written:
    """An engine written for the small graph."""

    def __init__(self, folder: Path) -> None:
        self.graph: Graph = small_graph(folder)
        self.plan = make_plan(self.graph, "square", "softmax")
        self.path = folder / "out" / "model.engine"
        files = (self.path, sidecar_of(self.path), self.path.with_name("model.fp16.onnx"))
        kept = (Kept("add", "Add", "TensorRT fuses it", "fusion"),)
        self.artifact = Artifact(
            "tensorrt", self.path, files, ("topk",), ("square", "softmax", "add"), kept, 7, ENGINE
        )
        self.write(b"the engine")

    def write(self, content: bytes) -> None:
        precision = Precision(True, constraints="obey")
        write_engine(content, self.path, self.graph, self.plan, SETTINGS, precision, self.artifact)

    def read(self, **changes: Any) -> Artifact:
        given = {"graph": self.graph, "plan": self.plan, "settings": SETTINGS, **changes}
        return read_artifact(given["graph"], given["plan"], self.path, given["settings"])

    def change(self, **changes: Any) -> None:
        side = sidecar_of(self.path)
        side.write_text(
            json.dumps({**json.loads(side.read_text(encoding="utf-8")), **changes}), encoding="utf-8"
        )

    def refusal(self, **changes: Any) -> str:
        with pytest.raises(BackendError) as error:
            self.read(**changes)
        assert "\n" not in str(error.value)
        assert str(self.path) in str(error.value)
        assert "fix-fp16 build --backend tensorrt" in str(error.value)
        return str(error.value)


@pytest.fixture
def written(tmp_path: Path) -> Written:
    return Written(tmp_path)


def test_an_artifact_is_read_as_it_was_written(written: Written) -> None:
    assert written.path.read_bytes() == b"the engine"
    assert written.read() == written.artifact


PRICE = Price("b0.npz", (Latency("fixed", 0.5, 0.75, 200),), 0.25, math.nan, ("FP16 brings nothing",))


def test_a_price_is_read_as_it_was_noted_with_the_data_of_its_batch_and_goes_with_the_engine(
    written: Written,
) -> None:
    assert read_price(written.path) is None
    note_price(written.path, PRICE, "calib")
    assert "NaN" not in sidecar_of(written.path).read_text(encoding="utf-8")
    found = read_price(written.path)
    assert found is not None
    assert math.isnan(found.opaque_time_share)
    assert replace(found, opaque_time_share=0) == replace(
        PRICE, batch="b0.npz of calib, when it was built", opaque_time_share=0
    )
    assert written.read() == written.artifact
    written.write(b"another engine of the plan")
    assert read_price(written.path) is None


@pytest.mark.parametrize(
    "price", [None, "much", {}, {**asdict(PRICE), "latencies": 3}, {**asdict(PRICE), "more": 1}]
)
def test_a_price_that_nobody_can_read_is_none(price: object, written: Written) -> None:
    written.change(price=price)
    assert read_price(written.path) is None
    sidecar_of(written.path).unlink()
    assert read_price(written.path) is None


def test_it_is_read_from_where_it_was_moved_to(written: Written, tmp_path: Path) -> None:
    folder = tmp_path / "moved"
    folder.mkdir()
    for path in (written.path, sidecar_of(written.path)):
        path.rename(folder / path.name)
    written.path = folder / written.path.name
    found = written.read()
    assert found.path == written.path
    assert found.files == tuple(folder / path.name for path in written.artifact.files)


def test_the_sidecar_tells_what_the_engine_was_built_with(written: Written) -> None:
    document = json.loads(sidecar_of(written.path).read_text(encoding="utf-8"))
    assert sidecar_of(written.path).name == "model.engine.json"
    assert document["model_sha256"] == written.graph.sha256
    assert document["flags"] == {"fp16": True, "tf32": True, "constraints": "obey"}
    assert document["settings"]["plugins"] == [str(Path("lib/plugin.so"))]
    assert document["settings"]["shapes"]["n"] == {"min": [], "opt": [], "max": [], "values": [[1], [2], [3]]}
    assert document["engine"]["gpu"] == "GPU"


def test_a_missing_engine_or_sidecar_is_refused(written: Written) -> None:
    written.path.rename(written.path.with_name("away"))
    assert "with its sidecar model.engine.json is not there or cannot be read" in written.refusal()
    written.write(b"the engine")
    sidecar_of(written.path).unlink()
    assert "is not there or cannot be read" in written.refusal()


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b'{"schema_version": "2.0"'])
def test_a_torn_sidecar_is_refused(written: Written, content: bytes) -> None:
    sidecar_of(written.path).write_bytes(content)
    assert "cannot be read" in written.refusal()


@pytest.mark.parametrize("content", [b"[]", b"null", b"3", b'"text"', b"{}", b'{"schema_version": "2.0"}'])
def test_a_foreign_sidecar_is_refused(written: Written, content: bytes) -> None:
    sidecar_of(written.path).write_bytes(content)
    assert "is not the engine that its sidecar" in written.refusal()


@pytest.mark.parametrize("content", [b"the engin", b"the engine!", b"", b"another"])
def test_an_engine_that_its_sidecar_does_not_know_is_refused(written: Written, content: bytes) -> None:
    written.path.write_bytes(content)
    assert (
        "is not the engine that its sidecar model.engine.json tells of. Expected the two" in written.refusal()
    )


def test_a_sidecar_of_another_version_is_refused(written: Written) -> None:
    written.change(schema_version="1.0")
    assert "is not the engine that its sidecar" in written.refusal()


def test_a_sidecar_that_lacks_a_part_is_refused(written: Written) -> None:
    document = json.loads(sidecar_of(written.path).read_text(encoding="utf-8"))
    for key in ("model_sha256", "plan_sha256", "fp16_nodes", "kept", "cast_count", "files", "engine"):
        written.write(b"the engine")
        left = {name: value for name, value in document.items() if name != key}
        sidecar_of(written.path).write_text(json.dumps(left), encoding="utf-8")
        assert "is not the engine that its sidecar" in written.refusal()
    written.write(b"the engine")
    written.change(engine={**document["engine"], "unknown": 1})
    assert "is not the engine that its sidecar" in written.refusal()
    written.change(engine=None)
    assert "is not the engine that its sidecar" in written.refusal()


def test_another_models_plans_or_settings_engine_is_refused(written: Written) -> None:
    other_model = written.graph.path.with_name("other.onnx")
    other_model.write_bytes(written.graph.path.read_bytes() + b"\x3a\x00")  # an empty graph, merged into it
    others: list[dict[str, Any]] = [
        {"plan": make_plan(written.graph, "square")},
        {"plan": replace(written.plan, clamps=(Clamp("w", 2.0, "a mask"),))},
        {"graph": load_graph(other_model)},
    ]
    for other in others:
        assert "was not built from this model and plan. Expected" in written.refusal(**other)
    with pytest.raises(BackendError, match="with io_types 'fp16'"):
        written.read(settings=replace(SETTINGS, io_types="keep"))


def test_what_does_not_decide_the_engines_numbers_is_no_ground_to_refuse(written: Written) -> None:
    settings = replace(SETTINGS, timing_cache=None, workspace_bytes=None)
    plan = make_plan(written.graph, "softmax", "square", reason="another reason")
    assert written.read(settings=settings, plan=plan) == written.artifact


def test_a_folder_that_cannot_be_written_is_refused_and_the_engine_stays(written: Written) -> None:
    (written.path.parent / "in_the_way").write_text("a file")
    path = written.path.parent / "in_the_way" / "model.engine"
    with pytest.raises(OutputError):
        write_engine(b"", path, written.graph, written.plan, SETTINGS, Precision(True), written.artifact)
    assert written.read() == written.artifact


def test_the_fraction_of_a_second_survives(written: Written) -> None:
    engine = written.read().engine
    assert engine is not None
    assert math.isclose(engine.build_seconds, 1.25)
    assert engine.warnings == ("a warning", "größer")


def test_no_engine_is_left_without_its_sidecar(tmp_path: Path) -> None:
    """It would be taken for another program's, and never be replaced."""
    written = Written(tmp_path)
    for path in (written.path, sidecar_of(written.path)):
        path.unlink()
    sidecar_of(written.path).mkdir()
    with pytest.raises(OutputError):
        written.write(b"another")
    assert not written.path.exists()


def test_where_the_disk_is_full_the_pair_that_is_there_stays_one(
    written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: Path, content: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", fail)
    with pytest.raises(OutputError, match="No space left"):
        written.write(b"another")
    assert read_artifact(written.graph, written.plan, written.path, SETTINGS) == written.artifact
