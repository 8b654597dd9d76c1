"""The networks of the GPU tests, small and without a GPU: they run, and FP16 does to them what they are for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from fp16_emulation import run_fp16, run_fp32
from gpu_networks import (
    LARGE,
    Feeds,
    Network,
    make_big_conv_chain,
    make_boolean_mask_block,
    make_choice,
    make_dynamic_conv,
    make_gemm_softmax_l2,
    make_layernorm_block,
    make_lookup,
    make_masked_block,
    make_non_zero,
    make_opset18_block,
    make_reshape_by_input,
    make_transformer_block,
    write_network,
)

from overflow_fixer.calibration import open_calibration
from overflow_fixer.graph.model import load_graph

RIGHT_DB = 30.0
NORMS = [
    f"{norm}_{part}" for norm in ("ln1", "ln2", "ln3") for part in ("squared", "variance", "safe", "root")
]
SMALL_BLOCK = (2, 16, 64, 4)
SMALL: dict[str, Network] = {
    "big_conv_chain": make_big_conv_chain(1, 32, 12),
    "transformer_block": make_transformer_block(*SMALL_BLOCK),
    "opset18_block": make_opset18_block(*SMALL_BLOCK),
    "layernorm_block": make_layernorm_block(*SMALL_BLOCK),
    "masked_block": make_masked_block(*SMALL_BLOCK),
    "boolean_mask_block": make_boolean_mask_block(*SMALL_BLOCK),
    "gemm_softmax_l2": make_gemm_softmax_l2(32, 64),
}
REPAIRED_BY: dict[str, list[str]] = {
    "big_conv_chain": ["conv5", "relu5", "conv6"],
    "transformer_block": NORMS,
    "opset18_block": NORMS,
    "masked_block": ["mask", "masked_scores", "attention"],
    "gemm_softmax_l2": ["gemm1", "length", "unit"],
}
RIGHT = ["layernorm_block", "boolean_mask_block"]
RUNNER_NETWORKS = [make_dynamic_conv, make_non_zero, make_reshape_by_input, make_choice, make_lookup]


def _snr_db(expected: np.ndarray, found: np.ndarray) -> float:
    if not np.isfinite(found).all():
        return -np.inf
    noise = np.square(expected.astype(np.float64) - found).sum()
    return float(10 * np.log10(np.square(expected.astype(np.float64)).sum() / noise))


def _fp16_snr_db(path: Path, network: Network, fp32_nodes: frozenset[str] = frozenset()) -> float:
    """The worst over batches and outputs."""
    names = [output.name for output in network.model.graph.output]
    pairs = [(run_fp32(path, feeds), run_fp16(path, feeds, fp32_nodes)) for feeds in network.batches]
    return min(_snr_db(reference[name], found[name]) for reference, found in pairs for name in names)


def test_every_large_network_is_run_small() -> None:
    assert SMALL.keys() == LARGE.keys()
    assert set(REPAIRED_BY) == SMALL.keys() - set(RIGHT)
    assert {name for name, large in LARGE.items() if large.naive == "wrong"} <= REPAIRED_BY.keys()


@pytest.mark.parametrize("name", REPAIRED_BY)
def test_plain_fp16_is_wrong_and_the_named_nodes_repair_it(name: str, tmp_path: Path) -> None:
    path, _ = write_network(SMALL[name], tmp_path)
    assert not _fp16_snr_db(path, SMALL[name]) >= 10.0
    assert _fp16_snr_db(path, SMALL[name], frozenset(REPAIRED_BY[name])) >= RIGHT_DB


@pytest.mark.parametrize("name", RIGHT)
def test_plain_fp16_is_right(name: str, tmp_path: Path) -> None:
    path, _ = write_network(SMALL[name], tmp_path)
    assert _fp16_snr_db(path, SMALL[name]) >= RIGHT_DB


def test_the_producers_alone_do_not_repair_the_chain(tmp_path: Path) -> None:
    path, _ = write_network(SMALL["big_conv_chain"], tmp_path)
    assert not _fp16_snr_db(path, SMALL["big_conv_chain"], frozenset({"conv5", "relu5"})) >= RIGHT_DB


def test_the_written_out_norm_ends_finite_and_wrong(tmp_path: Path) -> None:
    path, _ = write_network(SMALL["transformer_block"], tmp_path)
    found = run_fp16(path, SMALL["transformer_block"].batches[0])["ln3_shifted"]
    assert np.isfinite(found).all()


def test_only_conv5_of_the_chain_overflows(tmp_path: Path) -> None:
    path, _ = write_network(SMALL["big_conv_chain"], tmp_path)
    values = run_fp32(path, SMALL["big_conv_chain"].batches[0])
    over = {key for key, value in values.items() if value.dtype == np.float32 and np.abs(value).max() > 10000}
    assert over == {"conv5", "relu5"}


def test_one_row_of_the_mask_is_whole_and_none_is_empty() -> None:
    for feeds in SMALL["masked_block"].batches:
        shares = feeds["attention_mask"].mean(axis=1)
        assert shares.max() == 1
        assert (shares[:-1] < 1).all()
        assert shares.min() > 0


@pytest.mark.parametrize("make", RUNNER_NETWORKS, ids=lambda make: make.__name__)
def test_networks_for_the_runner_run(make: Callable[[], Network], tmp_path: Path) -> None:
    network = make()
    path, data = write_network(network, tmp_path)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    for feeds in network.batches:
        assert all(output is not None for output in session.run(None, feeds))
    assert [batch.feeds.keys() for batch in open_calibration(data, load_graph(path).inputs)] == [
        feeds.keys() for feeds in network.batches
    ]


def test_the_files_hold_what_was_made(tmp_path: Path) -> None:
    network = SMALL["masked_block"]
    path, data = write_network(network, tmp_path)
    assert (tmp_path / "weights.bin").stat().st_size > 10 * path.stat().st_size
    for file, feeds in zip(sorted(data.iterdir()), network.batches, strict=True):
        with np.load(file) as kept:
            _assert_equal(dict(kept), feeds)


def _assert_equal(found: Feeds, expected: Feeds) -> None:
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values)
