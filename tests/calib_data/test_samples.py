"""FP16 truly fails on each sample, where its README says: judged by tests/fp16_emulation.py alone."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
import onnxruntime
import pytest
from fp16_emulation import Values, run_fp16, run_fp32

CALIB_DATA = Path(__file__).resolve().parents[2] / "calib_data"
WRONG_DB = 10.0
RIGHT_DB = 50.0
FP16_MAX = 65504


@dataclass(frozen=True)
class Sample:
    """What a README claims: the first wrong tensor, how all outputs end, the nodes that repair it."""

    first_wrong: str
    outputs: Literal["zero", "nan", "finite"]
    repaired_by: frozenset[str]


SAMPLES = {
    "needs_constraints": Sample("/Sub_output_0", "zero", frozenset({"/Add_output_0", "/Sub_output_0"})),
    "conv_chain": Sample(
        "/conv4/Conv_output_0",
        "nan",
        frozenset({"/conv4/Conv_output_0", "/relu4/Relu_output_0", "/conv5/Conv_output_0"}),
    ),
    "layernorm_transformer": Sample(
        "/ln_1/Pow_output_0",
        "finite",
        frozenset(
            f"/{norm}/{op}_output_0"
            for norm in ("ln_1", "ln_2", "ln_f")
            for op in ("Pow", "ReduceMean_1", "Add", "Sqrt")
        ),
    ),
    "masked_attention": Sample(
        "/Mul_output_0",
        "nan",
        frozenset({"/Mul_output_0", "/attention/self/Add_output_0", "/attention/self/Softmax_output_0"}),
    ),
}
every_sample = pytest.mark.parametrize("name", SAMPLES)
every_file = pytest.mark.parametrize(
    ("name", "file"),
    [
        pytest.param(name, file, id=f"{name}-{file.stem}")
        for name in SAMPLES
        for file in sorted((CALIB_DATA / name / "data").glob("*.npz"))
    ],
)


def _model_path(name: str) -> Path:
    return CALIB_DATA / name / "model.onnx"


def _read(file: Path) -> dict[str, np.ndarray]:
    with np.load(file) as arrays:
        return {key: arrays[key] for key in arrays.files}


def _outputs(name: str) -> list[str]:
    return [output.name for output in onnx.load(_model_path(name)).graph.output]


def _is_wrong(reference: Any, candidate: Any) -> bool:
    return not _snr_db(reference, candidate) >= WRONG_DB


def _snr_db(reference: np.ndarray, candidate: np.ndarray) -> float:
    """10 log10(sum ref^2 / sum (ref - cand)^2); -inf as soon as the candidate is not finite."""
    if not np.isfinite(candidate).all():
        return -np.inf
    reference = reference.astype(np.float64)
    noise = np.square(reference - candidate).sum()
    return float(10 * np.log10(np.square(reference).sum() / noise)) if noise else np.inf


def _first_wrong(name: str, reference: Values, candidate: Values) -> str | None:
    nodes = onnx.load(_model_path(name)).graph.node
    floats = (key for node in nodes for key in node.output if reference[key].dtype.kind == "f")
    return next((key for key in floats if _is_wrong(reference[key], candidate[key])), None)


def _worst_snr_db(name: str, fp32_nodes: frozenset[str]) -> float:
    worst = np.inf
    for file in (CALIB_DATA / name / "data").glob("*.npz"):
        feeds = _read(file)
        reference = run_fp32(_model_path(name), feeds)
        candidate = run_fp16(_model_path(name), feeds, fp32_nodes)
        worst = min(worst, *(_snr_db(reference[key], candidate[key]) for key in _outputs(name)))
    return worst


def test_every_folder_is_tested() -> None:
    assert {path.parent.name for path in CALIB_DATA.glob("*/model.onnx")} == set(SAMPLES)
    assert all(3 <= len(list((CALIB_DATA / name / "data").iterdir())) <= 4 for name in SAMPLES)


@every_sample
def test_make_gives_the_same_sample(name: str, tmp_path: Path) -> None:
    """Equal as messages and as arrays, bit for bit; how zip and protobuf frame them is theirs."""
    subprocess.run([sys.executable, str(CALIB_DATA / name / "make.py"), str(tmp_path)], check=True)
    assert onnx.load(tmp_path / "model.onnx") == onnx.load(_model_path(name))
    made, kept = ({f.name: f for f in (d / "data").iterdir()} for d in (tmp_path, CALIB_DATA / name))
    assert made.keys() == kept.keys()
    for key, file in kept.items():
        ours, theirs = _read(file), _read(made[key])
        assert ours.keys() == theirs.keys()
        for tensor, values in ours.items():
            assert (values.dtype, values.shape) == (theirs[tensor].dtype, theirs[tensor].shape)
            assert values.tobytes() == theirs[tensor].tobytes()


@every_sample
def test_folder_is_small(name: str) -> None:
    sizes_bytes = [path.stat().st_size for path in (CALIB_DATA / name).rglob("*") if path.is_file()]
    assert 0 < sum(sizes_bytes) < 600_000


@every_sample
def test_model_is_valid_and_old_enough(name: str) -> None:
    model = onnx.load(_model_path(name))
    onnx.checker.check_model(model, full_check=True)
    assert model.ir_version == 8
    assert [(item.domain, 13 <= item.version <= 17) for item in model.opset_import] == [("", True)]
    labels = [node.name for node in model.graph.node]
    assert all(labels)
    assert len(set(labels)) == len(labels)


@every_sample
def test_weights_fit_fp16(name: str) -> None:
    weights = [
        onnx.numpy_helper.to_array(tensor) for tensor in onnx.load(_model_path(name)).graph.initializer
    ]
    assert all(np.abs(values).max() <= FP16_MAX for values in weights)


@every_file
def test_fp32_is_finite_and_the_walk_agrees_with_the_whole_model(name: str, file: Path) -> None:
    feeds = _read(file)
    walked = run_fp32(_model_path(name), feeds)
    assert all(np.isfinite(values).all() for values in walked.values())
    session = onnxruntime.InferenceSession(_model_path(name), providers=["CPUExecutionProvider"])
    for key, values in zip(_outputs(name), session.run(None, feeds), strict=True):
        np.testing.assert_allclose(walked[key], values, rtol=1e-3, atol=1e-3 * np.abs(values).max())


@every_file
def test_fp16_fails_where_the_readme_says(name: str, file: Path) -> None:
    feeds = _read(file)
    reference, naive = run_fp32(_model_path(name), feeds), run_fp16(_model_path(name), feeds)
    first = _first_wrong(name, reference, naive)
    assert first == SAMPLES[name].first_wrong
    assert f"**First wrong tensor:** `{first}`" in (CALIB_DATA / name / "README.md").read_text(
        encoding="utf-8"
    )
    assert all(_is_wrong(reference[key], naive[key]) for key in _outputs(name))


@every_file
def test_outputs_end_as_the_readme_says(name: str, file: Path) -> None:
    naive = run_fp16(_model_path(name), _read(file))
    holds = {"zero": lambda x: x == 0, "nan": np.isnan, "finite": np.isfinite}[SAMPLES[name].outputs]
    assert all(holds(naive[key]).all() for key in _outputs(name))


@every_sample
def test_the_named_nodes_in_fp32_repair_it(name: str) -> None:
    assert _worst_snr_db(name, SAMPLES[name].repaired_by) >= RIGHT_DB


@pytest.mark.parametrize(
    ("name", "left_out"),
    [(name, node) for name, sample in SAMPLES.items() for node in sorted(sample.repaired_by)],
)
def test_each_named_node_is_needed(name: str, left_out: str) -> None:
    assert _worst_snr_db(name, SAMPLES[name].repaired_by - {left_out}) < RIGHT_DB
