"""A plan written for other tools: the three ways in which layers are pinned elsewhere. One line here a kind.

`export` is what is exported, `chosen_pins` says what of it is pinned; `trtexec` and `polygraphy` render it. The modules
`standalone_*` are what Polygraphy's scripts run: their text is exported as it stands.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from overflow_fixer.backends.tensorrt.exports.export import Export
from overflow_fixer.backends.tensorrt.exports.polygraphy import name_script, render_loader, render_npps
from overflow_fixer.backends.tensorrt.exports.staleness import remove_stale, sign
from overflow_fixer.backends.tensorrt.exports.trtexec_files import write_trtexec
from overflow_fixer.errors import BackendError
from overflow_fixer.files import write_text


def check_exports(kinds: Sequence[str], backend: str) -> None:
    """Raise BackendError for a kind that the backend's artifact cannot give: asked before anything is built."""
    if "trtexec" in kinds and backend != "tensorrt":
        raise BackendError(
            f"--export trtexec cannot be had from the backend {backend!r}: trtexec is told the exact names of layers, "
            "and only the network that TensorRT parses has them. Expected TensorRT and a GPU on this machine. Build "
            "with --backend tensorrt, or use --export polygraphy-npps, which finds the layers when it runs."
        )


def write_exports(kinds: Sequence[str], export: Export) -> tuple[Path, ...]:
    """Write each kind's files, each file whole or not at all, and name them; those there of another plan go.

    Raises BackendError for what trtexec cannot be told (see `trtexec`), once all else is written, and OutputError where a
    file cannot be written.
    """
    check_exports(kinds, export.artifact.backend)
    written: list[Path] = []
    refusal: BackendError | None = None
    for kind in dict.fromkeys(kinds):
        try:
            written += _WRITERS[kind](export)
        except BackendError as error:
            refusal = error
    remove_stale(export.graph.path, export.folder, export.plan_sha256, written)
    if refusal is not None:
        raise refusal
    return tuple(written)


def _write_npps(export: Export) -> tuple[Path, ...]:
    return _write_script(export, "npps", render_npps(export))


def _write_loader(export: Export) -> tuple[Path, ...]:
    return _write_script(export, "loader", render_loader(export))


def _write_script(export: Export, kind: str, text: str) -> tuple[Path, ...]:
    path = export.folder / name_script(export.graph.path, kind)
    write_text(path, sign(text, export.plan_sha256))
    return (path,)


_WRITERS: dict[str, Callable[[Export], tuple[Path, ...]]] = {
    "trtexec": write_trtexec,
    "polygraphy-npps": _write_npps,
    "polygraphy-loader": _write_loader,
}
