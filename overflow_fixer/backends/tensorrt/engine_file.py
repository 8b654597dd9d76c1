"""An engine on disk, with a sidecar that says what it is: TensorRT, GPU, flags, model and plan."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from overflow_fixer import __version__
from overflow_fixer.backends.stamps import fingerprint, refuse_other_types
from overflow_fixer.backends.tensorrt.builder import Precision
from overflow_fixer.errors import BackendError
from overflow_fixer.files import replace_file, write_text
from overflow_fixer.graph.model import Graph
from overflow_fixer.records import (
    Artifact,
    BuildSettings,
    Engine,
    Kept,
    Latency,
    PinOutcome,
    PrecisionPlan,
    Price,
)

_VERSION = "2.0"
_SHARES = ("fp32_time_share", "opaque_time_share")


def sidecar_of(path: Path) -> Path:
    return path.with_name(path.name + ".json")


def write_engine(
    plan_bytes: bytes,
    path: Path,
    graph: Graph,
    plan: PrecisionPlan,
    settings: BuildSettings,
    precision: Precision,
    artifact: Artifact,
) -> None:
    """Write engine and sidecar, each whole or not at all. Raises OutputError where that cannot be done.

    The sidecar comes to its place first, since an engine without one is taken for another program's (see
    emission.find_foreign), and not before the engine is written: the pair that is there stays one where the disk is full.
    """
    document = {
        "schema_version": _VERSION,
        "tool_version": __version__,
        "model_sha256": graph.sha256,
        "engine_sha256": _sha256(plan_bytes),
        "plan_sha256": fingerprint(plan, settings.io_types),
        "flags": asdict(precision),
        "settings": {
            "typing": settings.typing,
            "io_types": settings.io_types,
            "workspace_bytes": settings.workspace_bytes,
            "optimization_level": settings.optimization_level,
            "tactic_sources": settings.tactic_sources,
            "plugins": [str(library) for library in settings.plugins],
            "shapes": {name: asdict(shape) for name, shape in settings.shapes.items()},
        },
        "fp16_nodes": artifact.fp16_nodes,
        "fp32_nodes": artifact.fp32_nodes,
        "kept": [asdict(kept) for kept in artifact.kept],
        "cast_count": artifact.cast_count,
        "files": [file.name for file in artifact.files],
        "engine": asdict(artifact.engine) if artifact.engine is not None else None,
    }
    with replace_file(path, len(plan_bytes)) as temporary:
        temporary.write_bytes(plan_bytes)
        write_text(sidecar_of(path), json.dumps(document, indent=1) + "\n")


def read_artifact(graph: Graph, plan: PrecisionPlan, path: Path, settings: BuildSettings) -> Artifact:
    """The artifact of an earlier build. Raises BackendError where there is none, or another plan's."""
    try:
        document = json.loads(sidecar_of(path).read_text(encoding="utf-8"))
        content = path.read_bytes()
    except (OSError, ValueError) as error:
        raise BackendError(
            f"{path} with its sidecar {sidecar_of(path).name} is not there or cannot be read: {error}. Expected the "
            "engine of an earlier step. Build it with fix-fp16 build --backend tensorrt."
        ) from error
    try:
        if document["schema_version"] != _VERSION or document["engine_sha256"] != _sha256(content):
            raise KeyError
        origin = document["model_sha256"], document["plan_sha256"]
        artifact = _artifact(document, path)
    except (KeyError, TypeError, AttributeError) as error:  # of another version, or edited
        raise BackendError(
            f"{path} is not the engine that its sidecar {sidecar_of(path).name} tells of. Expected the two as one build "
            "left them. Build it again with fix-fp16 build --backend tensorrt."
        ) from error
    if origin[0] == graph.sha256:
        refuse_other_types(path, plan, settings.io_types, origin[1])
    if origin != (graph.sha256, fingerprint(plan, settings.io_types)):
        raise BackendError(
            f"{path} was not built from this model and plan. Expected the engine that this plan gives. Build it again with "
            "fix-fp16 build --backend tensorrt, or name the plan that it was built from with --plan."
        )
    return artifact


def note_price(path: Path, price: Price, source: str) -> None:
    """Keep what the engine at `path` was found to cost in its sidecar; `source` names the data of the batch it was timed on."""
    document = json.loads(sidecar_of(path).read_text(encoding="utf-8"))
    told = asdict(replace(price, batch=f"{price.batch} of {source}, when it was built"))
    document["price"] = {**told, **{share: None for share in _SHARES if math.isnan(told[share])}}
    write_text(sidecar_of(path), json.dumps(document, indent=1) + "\n")


def read_price(path: Path) -> Price | None:
    """What the engine at `path` was found to cost when it was built; None where it was not timed, or nobody can read it."""
    try:
        fields = json.loads(sidecar_of(path).read_text(encoding="utf-8"))["price"]
        shares = {share: math.nan if fields[share] is None else float(fields[share]) for share in _SHARES}
        latencies = tuple(Latency(**row) for row in fields["latencies"])
        return Price(**{**fields, **shares, "latencies": latencies, "remarks": tuple(fields["remarks"])})
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _artifact(document: dict[str, Any], path: Path) -> Artifact:
    return Artifact(
        backend="tensorrt",
        path=path,
        files=tuple(path.parent / name for name in document["files"]),
        fp16_nodes=tuple(document["fp16_nodes"]),
        fp32_nodes=tuple(document["fp32_nodes"]),
        kept=_kept(document["kept"]),
        cast_count=document["cast_count"],
        engine=_engine(document["engine"]),
    )


def _engine(fields: dict[str, Any]) -> Engine:
    pins = tuple(PinOutcome(pin["node"], pin["state"], tuple(pin["layers"])) for pin in fields["pins"])
    return Engine(
        **{
            **fields,
            "compute_capability": tuple(fields["compute_capability"]),
            "pins": pins,
            "skipped": _kept(fields["skipped"]),
            "dropped": _kept(fields["dropped"]),
            "warnings": tuple(fields["warnings"]),
        }
    )


def _kept(rows: Sequence[dict[str, Any]]) -> tuple[Kept, ...]:
    return tuple(Kept(**row) for row in rows)


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
