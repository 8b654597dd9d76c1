"""Another tool's typed model or engine, held against FP32: no plan, no ranges."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import onnxruntime
from onnx import TensorProto

from overflow_fixer.backends import BACKENDS, choose_backend, mixed_onnx
from overflow_fixer.calibration import jitter, open_calibration, say_unheeded
from overflow_fixer.config import FixConfig
from overflow_fixer.errors import BackendError, ModelError
from overflow_fixer.graph.model import Graph, load_graph
from overflow_fixer.host.shortages import tell_shortage
from overflow_fixer.progress import Progress
from overflow_fixer.records import Artifact, Runner, Verification
from overflow_fixer.sessions.refusals import first_line
from overflow_fixer.simulation.typed_model import find_unsimulated
from overflow_fixer.trials.bench import make_tolerance
from overflow_fixer.verification.comparison import (
    CachedRunner,
    CopyCheck,
    check_parts,
    open_reference,
    verify,
)

_HALVES = frozenset({TensorProto.FLOAT16, TensorProto.BFLOAT16})
_ENGINES = frozenset({".engine", ".plan", ".trt"})


def verify_foreign(
    config: FixConfig, graph: Graph, path: Path, progress: Progress
) -> tuple[Verification, tuple[str, ...]]:
    """Run the artifact at `path` on the data of `config`, as FP16 hardware would, and compare it with FP32 of `graph`.

    With the verification comes what makes it worth less. A name that ends as an engine's is one. Raises BackendError where the
    artifact cannot be read or run, has other inputs, or computes in FP16 where rounding cannot be simulated, ModelError where
    the model's files are written meanwhile.
    """
    reference = CachedRunner(open_reference(graph))
    calibration = open_calibration(config.calib, graph.inputs, config.calibration)
    candidate, remarks = _open(config, graph, path)
    found = verify(
        reference,
        candidate,
        jitter(calibration, config.verify.jitter, CopyCheck(reference)),
        make_tolerance(config, graph),
        lambda done: progress("verify", done, len(calibration)),
    )
    graph.check_unchanged()
    check_parts(found)
    return found, (*remarks, *say_unheeded(config.calibration, config.calib, calibration))


def _open(config: FixConfig, graph: Graph, path: Path) -> tuple[Runner, tuple[str, ...]]:
    name = "tensorrt" if path.suffix in _ENGINES else "onnx"
    choose_backend(name)
    remarks: tuple[str, ...] = ()
    if name == "onnx":
        typed = _read(path)
        _check_inputs(graph, typed)
        _refuse_unsimulated(typed)
        _refuse_faulty(path)
        remarks = tuple(_say_fp32(typed))
    settings = config.build.settings(config.folder, {})
    with _refuse_unopened(path):
        return BACKENDS[name].open_runner(Artifact(name, path, (path,), (), (), (), 0), settings), remarks


def _read(path: Path) -> Graph:
    """The artifact's graph. Raises BackendError where it cannot be read or checked: a ModelError would be about MODEL."""
    try:
        return load_graph(path)
    except ModelError as error:
        raise BackendError(str(error)) from error


def _refuse_faulty(path: Path) -> None:
    """Raise BackendError for a model that no runtime takes: the simulation, in FP32 throughout, would run what has two types."""
    fault = mixed_onnx.find_fault(path)
    if fault is not None:
        with _refuse_unopened(path):
            raise fault


@contextmanager
def _refuse_unopened(path: Path) -> Iterator[None]:
    """Turn a ModelError, which would be about MODEL, into a BackendError about the artifact at `path`, but for want of memory."""
    try:
        yield
    except ModelError as error:
        if tell_shortage(error) is not None:
            raise
        reason = first_line(error if error.__cause__ is None else error.__cause__)
        raise BackendError(
            f"ONNX Runtime {onnxruntime.__version__} refuses {path}: {reason}. Expected a model in which each node reads the types "
            "that it takes, of operators that are known there. Make it again with the tool that it is of, or mend it; for "
            "operators of your own name their library with --ort-custom-op."
        ) from error


def _check_inputs(graph: Graph, typed: Graph) -> None:
    """Raise BackendError where the data of the one model cannot be fed to the other."""
    wanted, found = ({spec.name for spec in one.inputs} for one in (graph, typed))
    if wanted != found:
        raise BackendError(
            f"{typed.path} has the inputs {', '.join(sorted(found)) or '(none)'}. Expected those of {graph.path}: "
            f"{', '.join(sorted(wanted)) or '(none)'}. It was made from another model, or inputs were renamed or dropped."
        )


def _say_fp32(typed: Graph) -> Iterator[str]:
    """That nothing of the artifact is in 16 bits, so that it could not but pass."""
    if _HALVES.isdisjoint(typed.dtypes.values()):
        yield f"Nothing in {typed.path} is FP16: FP32 was compared with FP32, which proves nothing of FP16."


def _refuse_unsimulated(typed: Graph) -> None:
    """Raise BackendError for a model whose FP16 the simulation does not round everywhere."""
    opaque = next(find_unsimulated(typed), None)
    if opaque is not None:
        raise BackendError(
            f"{typed.path}: node {opaque.label!r} ({opaque.op_type}) computes in FP16 where rounding cannot be simulated. "
            "Expected FP16 in standard operators of the main graph alone. Keep that node in FP32."
        )
