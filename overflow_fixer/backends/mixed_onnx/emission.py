"""A plan turned into a typed mixed-precision ONNX model, checked before it is handed on."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import onnx

from overflow_fixer import __version__
from overflow_fixer.annotations import held_to_types
from overflow_fixer.backends.fit import check_fit
from overflow_fixer.backends.mixed_onnx.assignment import FLOAT, FLOAT16, Assignment, IoTypes, assign_types
from overflow_fixer.backends.mixed_onnx.loading import find_refusal
from overflow_fixer.backends.mixed_onnx.rewrite import TypedModel, rewrite
from overflow_fixer.backends.mixed_onnx.weights import write_model
from overflow_fixer.backends.stamps import fingerprint, refuse_other_types
from overflow_fixer.errors import BackendError, ModelError
from overflow_fixer.files import has_unfinished, is_there, name_data, refuse_to_replace, replace_files
from overflow_fixer.graph.constant_shapes import clip_fill
from overflow_fixer.graph.model import Graph, load_graph
from overflow_fixer.host.shortages import tell_shortage
from overflow_fixer.model_file.reading import read_model
from overflow_fixer.records import Artifact, PrecisionPlan, Runner
from overflow_fixer.sessions.marking import keep_outputs
from overflow_fixer.sessions.session import SessionRunner, open_session
from overflow_fixer.sessions.settings import has_native_probes
from overflow_fixer.simulation.typed_model import simulate

_SHA256 = "overflow_fixer.model_sha256"
_VERSION = "overflow_fixer.version"
_PLAN = "overflow_fixer.plan_sha256"
_BESIDE = ("ranges.h5", "plan.json")
"""What is written before a model is, where a run does more than to build."""


@held_to_types
def emit(graph: Graph, plan: PrecisionPlan, path: Path | str, *, io_types: IoTypes = "keep") -> Artifact:
    """Write the typed model to `path`: pinned nodes in FP32, all others that can in FP16.

    Graph inputs and outputs keep their types, or become FP16 with `io_types` "fp16". The file passes
    onnx.checker with full shape inference, where the original does, and loads in ONNX Runtime.
    Raises BackendError when it does not, ModelError when the original does not load either or changed, and leaves
    what was at `path` then; OutputError when it cannot be written, or would take the place of the original or its
    weights, PlanError for a plan of another model or with names that this one lacks, ConfigError for other `io_types`.
    """
    path = Path(path)
    check_fit(graph, plan)
    refuse_to_replace(graph.files, name_files(path))
    assignment, typed = _type(graph, plan, io_types)
    clamps = {clamp.tensor: clamp for clamp in plan.clamps}
    for node in typed.model.graph.node:
        if node.op_type == "ConstantOfShape" and node.output[0] in clamps:
            clip_fill(node, clamps[node.output[0]].magnitude)
    with replace_files(path) as staged:
        files = write_model(graph, typed, clamps, staged)
        check_artifact(graph, staged)
    return _describe(graph, assignment, typed, tuple(path.with_name(file.name) for file in files))


def describe(graph: Graph, plan: PrecisionPlan, path: Path, *, io_types: IoTypes = "keep") -> Artifact:
    """The artifact of an earlier `emit` with the same arguments.

    Raises BackendError where there is none, or it is cut short or another model's or plan's.
    """
    if not os.path.isfile(path):
        raise BackendError(
            f"{path} is not there. Expected the typed model of an earlier step. Build it with fix-fp16 build."
        )
    built = _read(path)
    stamps = {entry.key: entry.value for entry in built.model.metadata_props}
    if stamps.get(_SHA256) != graph.sha256:
        raise BackendError(
            f"{path} was built from a model with the SHA-256 {stamps.get(_SHA256, '(none named)')}. Expected that of "
            f"{graph.path}, {graph.sha256}. Build it again with fix-fp16 build, or compare another tool's model with --artifact."
        )
    refuse_other_types(path, plan, io_types, stamps.get(_PLAN))
    if stamps.get(_PLAN) != fingerprint(plan, io_types):
        raise BackendError(
            f"{path} was not built from this plan. Expected the model that this plan gives. Build it again with fix-fp16 build, "
            "name the plan that it was built from with --plan, or compare another tool's model with --artifact."
        )
    files = name_files(path) if any(built.external_tensors()) else (path,)
    return _describe(graph, *_type(graph, plan, io_types), files)


def name_files(path: Path) -> tuple[Path, Path]:
    """The model at `path`, and the file with its weights where it is large."""
    return path, name_data(path)


def find_foreign(path: Path) -> Path | None:
    """Of the files that `emit` would replace, the first that it did not write; weights beside a model of its own are its own.

    A model that is torn, or weights without a model, may be of a run that was killed: they are foreign where none left a trace.
    """
    suspect = path if is_there(path) else name_data(path)
    if not is_there(suspect):
        return None
    with suppress(ModelError):
        if suspect == path:
            return None if read_stamps(path)[0] else path
    return None if _has_run_in(path.parent) else suspect


def _has_run_in(folder: Path) -> bool:
    return has_unfinished(folder) or any(is_there(folder / name) for name in _BESIDE)


def read_stamps(path: Path) -> tuple[str, str]:
    """The SHA-256 of the model and the plan's fingerprint that a typed model names; "" for none. Raises ModelError as read_model."""
    named = {entry.key: entry.value for entry in read_model(path).metadata_props}
    return named.get(_SHA256, ""), named.get(_PLAN, "")


@held_to_types
def open_runner(artifact: Artifact, extra_outputs: Sequence[str] = ()) -> Runner:
    """The artifact as FP16 hardware would run it: every FP16 tensor rounded, node by node."""
    return open_as_it_stands(load_graph(artifact.path), extra_outputs)


def open_as_it_stands(graph: Graph, extra_outputs: Sequence[str] = ()) -> Runner:
    """A model as FP16 hardware would run it: what it has in FP16 rounded, node by node, and all else in FP32."""
    simulated = simulate(graph, extra_outputs, has_native_probes())
    return SessionRunner(open_session(simulated, graph.path.parent, by_priority=True))


def open_tracer(artifact: Artifact, tensors: Sequence[str]) -> Runner:
    """The same of inner tensors alone: of its nodes only those run that they need."""
    simulated = simulate(load_graph(artifact.path), tensors, has_native_probes())
    keep_outputs(simulated, tensors)
    return SessionRunner(open_session(simulated, artifact.path.parent, by_priority=True))


def check_artifact(graph: Graph, path: Path) -> None:
    """Raise BackendError unless the model at `path` passes the checker and loads.

    Where the original fails the checker too, that is let pass; where it does not load either, its
    ModelError is raised. Where memory or open files run out, what tells of that is raised.
    """
    error = _checker_error(path)
    if error is not None and _checker_error(graph.path) is None:
        raise BackendError(
            f"The typed model of {graph.path} does not pass onnx.checker: {error}. Expected a valid model, as the original "
            "is. This is a fault of overflow_fixer: please report it with the model's operators."
        )
    refusal = find_refusal(path)
    if refusal is not None and tell_shortage(refusal) is not None:
        raise refusal
    if refusal is not None:
        open_session(graph.model, graph.folder)
        raise BackendError(
            f"The typed model of {graph.path} does not load: {refusal} This is a fault of overflow_fixer, since the "
            "original loads: please report it with the model's operators."
        ) from refusal


def _read(path: Path) -> Graph:
    try:
        return load_graph(path)
    except ModelError as error:
        raise BackendError(f"{error} Build it again with fix-fp16 build.") from error


def _type(graph: Graph, plan: PrecisionPlan, io_types: IoTypes) -> tuple[Assignment, TypedModel]:
    assignment = assign_types(graph, plan.pinned, io_types)
    typed = rewrite(graph, assignment)
    stamps = {_SHA256: graph.sha256, _VERSION: __version__, _PLAN: fingerprint(plan, io_types)}
    kept = {entry.key: entry.value for entry in typed.model.metadata_props}
    onnx.helper.set_model_props(typed.model, {**kept, **stamps})
    return assignment, typed


def _describe(graph: Graph, assignment: Assignment, typed: TypedModel, files: tuple[Path, ...]) -> Artifact:
    fp16, fp32 = (assignment.nodes_in(graph, kind) for kind in (FLOAT16, FLOAT))
    return Artifact("onnx", files[0], files, fp16, fp32, assignment.kept, typed.cast_count)


def _checker_error(path: Path) -> str | None:
    try:
        onnx.checker.check_model(str(path), full_check=True)
    except Exception as error:  # the checker raises its own types and bare RuntimeErrors
        if tell_shortage(error) is not None:
            raise
        return " ".join(str(error).split())
    return None
