"""Small models for zoos."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from in_memory_calibration import make_model, node, scalar

from overflow_fixer.config import FixConfig
from overflow_fixer.zoo.entries import ZooEntry

AddModel = Callable[..., Path]


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
