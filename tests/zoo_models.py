"""Small models for zoos."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
from in_memory_calibration import make_model, node, scalar

from overflow_fixer.config import FixConfig
from overflow_fixer.zoo.entries import ZooEntry

AddModel = Callable[..., Path]
ZOO_SCHEMA = "zoo-report.schema.json"


def write_model(
    folder: Path, name: str, spoil: Callable[[bytes], bytes] | None = None, size: int = 8
) -> Path:
    """NAME.onnx, whose squares overflow in FP16, and NAME.npz, its data; `spoil` changes the bytes of the model."""
    path = folder / f"{name}.onnx"
    path.parent.mkdir(parents=True, exist_ok=True)
    nodes = [node("Mul", "x big", "a"), node("Mul", "a a", "b"), node("Mul", "b tiny", "y")]
    constants = {"big": scalar(100.0), "tiny": scalar(1e-4)}
    content = make_model(nodes, {"x": ["n", size]}, "y", constants).SerializeToString()
    path.write_bytes(content if spoil is None else spoil(content))
    rng = np.random.default_rng(0)
    np.savez(path.with_suffix(".npz"), x=rng.uniform(1, 4, (4, size)).astype(np.float32))
    return path


def make_entry(model: Path, backend: str = "onnx") -> ZooEntry:
    """An entry named by the model's stem, with the data beside it and results in a folder beside it."""
    config = {
        "model": model,
        "calib": model.with_suffix(".npz"),
        "out": model.parent / "out" / model.stem,
        "build": {"backend": backend},
    }
    return ZooEntry(model.stem, FixConfig.model_validate(config))


def write_text_model(path: Path, text: str) -> Path:
    """A model in ONNX's textual form, with four ones as its data."""
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(onnx.parser.parse_model(text), path)
    np.savez(path.with_suffix(".npz"), x=np.ones(4, np.float32))
    return path


def write_endless(folder: Path) -> Path:
    """A loop of 2^40 iterations."""
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[4] x) => (float[4] y) <int64 trips = {1099511627776}> {
        y = Loop (trips, , x) <
            body = b (int64 i, bool c, float[4] s) => (bool c2, float[4] t) { c2 = Identity (c) t = Tanh (s) }
        >
    }"""
    return write_text_model(folder / "endless.onnx", text)


def write_greedy(folder: Path) -> Path:
    """Three tensors of 800 MB each."""
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[4] x) => (float y) <int64[2] shape = {50000000, 4}> {
        a = Expand (x, shape)
        b = Tanh (a)
        c = Mul (a, b)
        y = ReduceSum <keepdims = 0> (c)
    }"""
    return write_text_model(folder / "greedy.onnx", text)
