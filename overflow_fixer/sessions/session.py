"""ONNX Runtime sessions: the one place that opens and runs them."""

from __future__ import annotations

import ctypes
import shutil
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import onnx
import onnxruntime

from overflow_fixer.errors import ModelError, RunError
from overflow_fixer.files import refuse_temporary
from overflow_fixer.formats import round_to_fp16
from overflow_fixer.host.shortages import tells_of_memory
from overflow_fixer.model_file.reading import read_model
from overflow_fixer.model_file.subgraphs import all_nodes
from overflow_fixer.records import Array, Batch
from overflow_fixer.sessions.bf16_values import run_with_bf16
from overflow_fixer.sessions.providers import (
    EXECUTION_PROVIDERS,
    Provider,
    find_ordinary_ops,
    list_providers,
    preload_libraries,
    quiet_onnxruntime,
)
from overflow_fixer.sessions.refusals import first_line, tell_refusal, tell_want_of_memory
from overflow_fixer.sessions.settings import add_native, make_options

_EXTERNAL_FOLDER = "session.model_external_initializers_file_folder_path"
_OPTIMIZED_WEIGHTS = "session.optimized_model_external_initializers_file_name"
_OPTIMIZED_LEAST_BYTES = "session.optimized_model_external_initializers_min_size_in_bytes"
_DISABLE_PREPACKING = "session.disable_prepacking"
_OF_WRITING = ("Failed to write external initializers", "Protobuf serialization failed")
"""ONNX Runtime's words where a file cannot be written; it does not say why."""


def open_session(
    model: onnx.ModelProto | Path,
    folder: Path,
    *,
    optimize: bool = False,
    by_priority: bool = False,
    pack_weights: bool = True,
    provider: Provider = "cpu",
) -> Any:
    """Open a session of a model in memory or in a file; external data is looked up in `folder`.

    optimize: ONNX Runtime's default graph optimisation; off, each node is computed as it stands.
    by_priority: run each node as soon as it can be, so that a probe behind its producer frees it.
    pack_weights: lay the weights of matrix products out anew; off, they are read where they lie, and values differ by rounding.
    provider: what runs it, as providers.choose_provider gives it; a node that has no kernel there runs on
    the CPU. Raises ModelError with ONNX Runtime's own words when it refuses the model, and where `provider`
    does not load: another is never taken silently. A model with a ScatterND that reduces gets one thread.
    """
    options = make_options(optimize, by_priority, provider)
    if _races(model):
        options.intra_op_num_threads = 1
    if not pack_weights:
        options.add_session_config_entry(_DISABLE_PREPACKING, "1")
    if isinstance(model, onnx.ModelProto):
        options.add_session_config_entry(_EXTERNAL_FOLDER, str(folder))
        add_native(options, model)
    source = str(model) if isinstance(model, Path) else _serialize(model)
    if provider != "cpu":
        preload_libraries()
    providers = list_providers(provider, _ordinary_ops(model) if provider == "tensorrt" else ())
    session = _create(source, options, provider, providers)
    if EXECUTION_PROVIDERS[provider] not in session.get_providers():
        raise ModelError(tell_refusal(provider, f"it opens without {EXECUTION_PROVIDERS[provider]}"))
    return session


def make_run_options() -> Any:
    """Those of a run which, where `terminate` is set meanwhile, ends after the node at hand, as an error."""
    return onnxruntime.RunOptions()


def run_session(session: Any, outputs: Sequence[str] | None, batch: Batch, options: Any = None) -> list[Any]:
    """Run one batch and return the outputs asked for (None: all), BF16 and FP8 as numpy has them with ml_dtypes.

    `options` are those of make_run_options. On a GPU nothing is logged: each of its convolutions would be warned of. Raises
    RunError naming the batch; where memory ran out, a plain ModelError.
    """
    try:
        with nullcontext() if _is_on_the_cpu(session) else quiet_onnxruntime():
            return run_with_bf16(session, outputs, batch.feeds, options)
    except Exception as error:
        reason = first_line(error)
        text = (
            f"The model could not be run on batch {batch.name}: {reason}. Expected every batch to run in "
            f"ONNX Runtime {onnxruntime.__version__}. Check that the batch has the shapes the model was made "
            f"for; if memory ran out, use a smaller batch{'' if _is_on_the_cpu(session) else ', or --provider cpu'}."
        )
        raise (ModelError(text) if tells_of_memory(error) else RunError(text, reason)) from error


def save_optimized(model: onnx.ModelProto, folder: Path, path: Path) -> None:
    """Write the model as ONNX Runtime optimises it by default, large weights into a file beside `path`.

    What stands there needs no further optimisation, and this processor. Raises ModelError as open_session, OutputError where
    the folder of `path`, one below that for temporary files, has no room.
    """
    options = make_options(optimize=True, by_priority=False, provider="cpu")
    options.optimized_model_filepath = str(path)
    options.add_session_config_entry(_EXTERNAL_FOLDER, str(folder))
    options.add_session_config_entry(_OPTIMIZED_WEIGHTS, path.name + ".data")
    options.add_session_config_entry(_OPTIMIZED_LEAST_BYTES, "1024")
    options.add_session_config_entry(_DISABLE_PREPACKING, "1")  # it is never run
    add_native(options, model)
    try:
        _create(_serialize(model), options, "cpu", list_providers("cpu"))
    except ModelError as error:
        if not any(word in str(error.__cause__) for word in _OF_WRITING):
            raise
        left = shutil.disk_usage(path.parent).free
        reason = f"ONNX Runtime cannot write the optimised model, and {left / 1e6:.1f} MB are left there"
        raise refuse_temporary(path.parent.parent, reason) from error
    _return_memory()


class SessionRunner:
    """A Runner over a session: all of its outputs, by name, each once though a model lists it twice. FP32 feeds of FP16 inputs
    are rounded.
    """

    def __init__(self, session: Any) -> None:
        self._session = session
        self.output_names: tuple[str, ...] = tuple(dict.fromkeys(one.name for one in session.get_outputs()))
        self._halves = {given.name for given in session.get_inputs() if given.type == "tensor(float16)"}

    def run(self, batch: Batch) -> dict[str, Array]:
        feeds = {n: round_to_fp16(a) if n in self._halves else a for n, a in batch.feeds.items()}
        batch = Batch(batch.name, feeds)
        return dict(zip(self.output_names, run_session(self._session, self.output_names, batch), strict=True))


def _return_memory() -> None:
    """Give back what a closed session took: the C library (glibc) would keep much of it, and the next session take more."""
    with suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


def _create(source: str | bytes, options: Any, provider: Provider, providers: list[Any]) -> Any:
    try:
        return onnxruntime.InferenceSession(source, options, providers=providers, enable_fallback=0)
    except Exception as error:  # onnxruntime raises many unrelated types
        tell = tell_want_of_memory if tells_of_memory(error) else partial(tell_refusal, provider)
        raise ModelError(tell(first_line(error))) from error


def _races(model: onnx.ModelProto | Path) -> bool:
    """Whether a ScatterND reduces: ONNX Runtime's threads read and write one element at once, and lose what one of them adds."""
    held = _read(model)
    nodes = chain(all_nodes(held.graph), *(all_nodes(function) for function in held.functions))
    return any(node.op_type == "ScatterND" and _reduces(node) for node in nodes)


def _reduces(node: onnx.NodeProto) -> bool:
    return any(one.name == "reduction" and one.s != b"none" for one in node.attribute)


def _ordinary_ops(model: onnx.ModelProto | Path) -> set[str]:
    return find_ordinary_ops(_read(model).graph)


def _read(model: onnx.ModelProto | Path) -> onnx.ModelProto:
    return read_model(model) if isinstance(model, Path) else model


def _is_on_the_cpu(session: Any) -> bool:
    return bool(session.get_providers() == [EXECUTION_PROVIDERS["cpu"]])


def _serialize(model: onnx.ModelProto) -> bytes:
    try:
        return bytes(model.SerializeToString())
    except Exception as error:
        raise ModelError(
            f"The model is too large for one protobuf message ({first_line(error)}). Expected weights in "
            "external data for a model near 2 GB. Save it with onnx.save(..., save_as_external_data=True)."
        ) from error
