"""ONNX Runtime sessions: the one place that opens and runs them."""

from __future__ import annotations

import ctypes
import re
import shutil
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from functools import cache, partial
from pathlib import Path
from typing import Any

import onnx
import onnxruntime

from overflow_fixer.errors import ModelError, RunError
from overflow_fixer.files import refuse_temporary, sha256_of
from overflow_fixer.formats import round_to_fp16
from overflow_fixer.host.allotment import count_threads
from overflow_fixer.model_file.subgraphs import captured_by
from overflow_fixer.native import find_library, may_hold_operators
from overflow_fixer.records import Array, Batch
from overflow_fixer.sessions.bf16_values import run_with_bf16
from overflow_fixer.sessions.providers import (
    EXECUTION_PROVIDERS,
    PLUGIN_DOMAIN,
    Provider,
    find_lack,
    find_ordinary_ops,
    has_plugins,
    list_providers,
    preload_libraries,
    quiet_onnxruntime,
)

_ASKED_BYTES = re.compile(r"requested buffer of size (\d+)")
_MOST_BYTES = 1 << 44
"""More than a machine has."""
_OF_WRITING = ("Failed to write external initializers", "Protobuf serialization failed")
"""ONNX Runtime's words where a file cannot be written; it does not say why."""
_OF_MEMORY = (
    "bad_alloc",
    "bad allocation",
    "failed to allocate",
    "out of memory",
    "cannot allocate memory",  # what mmap says
    "pthread_create failed",  # of a thread's stack
)
_EXTERNAL_FOLDER = "session.model_external_initializers_file_folder_path"
_OPTIMIZED_WEIGHTS = "session.optimized_model_external_initializers_file_name"
_OPTIMIZED_LEAST_BYTES = "session.optimized_model_external_initializers_min_size_in_bytes"
_DISABLE_PREPACKING = "session.disable_prepacking"
_DISABLE_QUANTIZED = "session.disable_quant_qdq"
_STOP_SPINNING = "session.force_spinning_stop"
_SPIN_MICROSECONDS = "session.intra_op.spin_duration_us", "500"
"""Idle threads would spin on the cores that another session, or what runs beside one that opens, needs."""
_RECORD_PLACES = "session.record_ep_graph_assignment_info"
_custom_ops: list[Path] = []
"""Libraries for every session; a process has one list, as it has one set of loaded libraries."""
_threads = [0]
"""Of every session, on the CPU; 0: one a core. As many as ONNX Runtime likes would be pinned, each to a core on which
another thread may be at work."""
_ELEM_TYPES = {
    "float": onnx.TensorProto.FLOAT,
    "float16": onnx.TensorProto.FLOAT16,
    "bfloat16": onnx.TensorProto.BFLOAT16,
    "double": onnx.TensorProto.DOUBLE,
    "bool": onnx.TensorProto.BOOL,
    "string": onnx.TensorProto.STRING,
    **{
        f"{sign}int{bits}": getattr(onnx.TensorProto, f"{sign.upper()}INT{bits}")
        for sign in ("", "u")
        for bits in (8, 16, 32, 64)
    },
}


def use_custom_ops(libraries: Sequence[Path]) -> None:
    """Have ONNX Runtime load these libraries of custom operators for every session from now on, and no others.

    They run code of their own in this process. Raises ModelError for one that does not load, with ONNX Runtime's words.
    """
    for library in libraries:
        try:
            onnxruntime.SessionOptions().register_custom_ops_library(str(library.resolve()))
        except Exception as error:  # onnxruntime raises many unrelated types
            raise ModelError(
                f"The library of custom operators {library} does not load: {first_line(error)}. Expected a shared library "
                f"that registers operators with ONNX Runtime {onnxruntime.__version__} (RegisterCustomOps). Check the path "
                "and which ONNX Runtime it was built for."
            ) from error
    _custom_ops[:] = libraries


def use_threads(count: int) -> None:
    """Have every session from now on compute with so many threads; 0: one a core that this process may use."""
    _threads[0] = count


def hash_custom_ops() -> str:
    """The SHA-256 of the libraries in use, in hexadecimal; "" where there are none."""
    return sha256_of(_custom_ops) if _custom_ops else ""


def has_native_probes() -> bool:
    """Whether the native operators of overflow_fixer.native are there and load, so that a model may hold them."""
    library = find_library()
    return library is not None and _loads(library)


@cache
def _loads(library: Path) -> bool:
    with suppress(Exception):  # onnxruntime raises many unrelated types
        onnxruntime.SessionOptions().register_custom_ops_library(str(library))
        return True
    return False


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
    does not load: another is never taken silently.
    """
    options = _session_options(optimize, by_priority, provider)
    if not pack_weights:
        options.add_session_config_entry(_DISABLE_PREPACKING, "1")
    if isinstance(model, onnx.ModelProto):
        options.add_session_config_entry(_EXTERNAL_FOLDER, str(folder))
        _add_native(options, model)
    source = str(model) if isinstance(model, Path) else _serialize(model)
    if provider != "cpu":
        preload_libraries()
    providers = list_providers(provider, _ordinary_ops(model) if provider == "tensorrt" else ())
    session = _create(source, options, provider, providers)
    if EXECUTION_PROVIDERS[provider] not in session.get_providers():
        raise ModelError(_refusal(provider, f"it opens without {EXECUTION_PROVIDERS[provider]}"))
    return session


def count_on_cpu(session: Any) -> Counter[str] | None:
    """The operators of the nodes that a GPU's session runs on the CPU, with how many there are of each.

    None where this ONNX Runtime is too old to tell.
    """
    if not hasattr(session, "get_provider_graph_assignment_info"):
        return None
    cpu = EXECUTION_PROVIDERS["cpu"]
    parts = [part for part in session.get_provider_graph_assignment_info() if part.ep_name == cpu]
    return Counter(node.op_type for part in parts for node in part.get_nodes())


def make_run_options() -> Any:
    """Those of a run which, where `terminate` is set meanwhile, ends after the node at hand, as an error."""
    return onnxruntime.RunOptions()


def run_session(session: Any, outputs: Sequence[str] | None, batch: Batch, options: Any = None) -> list[Any]:
    """Run one batch and return the outputs asked for (None: all), BF16 as numpy has it with ml_dtypes.

    `options` are those of make_run_options. On a GPU nothing is logged: each of its convolutions would be warned of. Raises RunError naming the batch; where memory ran out, a plain ModelError.
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
        raise (ModelError(text) if _tells_of_memory(error) else RunError(text, reason)) from error


def save_optimized(model: onnx.ModelProto, folder: Path, path: Path) -> None:
    """Write the model as ONNX Runtime optimises it by default, large weights into a file beside `path`.

    What stands there needs no further optimisation, and this processor. Raises ModelError as open_session, OutputError where
    the folder of `path`, one below that for temporary files, has no room.
    """
    options = _session_options(optimize=True, by_priority=False, provider="cpu")
    options.optimized_model_filepath = str(path)
    options.add_session_config_entry(_EXTERNAL_FOLDER, str(folder))
    options.add_session_config_entry(_OPTIMIZED_WEIGHTS, path.name + ".data")
    options.add_session_config_entry(_OPTIMIZED_LEAST_BYTES, "1024")
    options.add_session_config_entry(_DISABLE_PREPACKING, "1")  # it is never run
    _add_native(options, model)
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
    """A Runner over a session: all of its outputs, by name. FP32 feeds of FP16 inputs are rounded."""

    def __init__(self, session: Any) -> None:
        self._session = session
        self.output_names: tuple[str, ...] = tuple(output.name for output in session.get_outputs())
        self._halves = {given.name for given in session.get_inputs() if given.type == "tensor(float16)"}

    def run(self, batch: Batch) -> dict[str, Array]:
        feeds = {n: round_to_fp16(a) if n in self._halves else a for n, a in batch.feeds.items()}
        batch = Batch(batch.name, feeds)
        return dict(zip(self.output_names, run_session(self._session, None, batch), strict=True))


def mark_outputs(model: onnx.ModelProto, tensors: Sequence[str]) -> None:
    """Make inner tensors outputs of the model, in place; ONNX Runtime tells their types itself."""
    present = {output.name for output in model.graph.output}
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in tensors if name not in present)


def infer_types(model: onnx.ModelProto, folder: Path, tensors: Sequence[str]) -> dict[str, int]:
    """ONNX Runtime's own word on the element types of `tensors`; what is not a tensor is left out.

    Serves where ONNX shape inference knows nothing (other domains' operators); plug-ins of TensorRT, which it alone
    knows, need it here. Raises ModelError when ONNX Runtime refuses the model.
    """
    marked = onnx.ModelProto()
    marked.CopyFrom(model)
    mark_outputs(marked, tensors)
    are_plugins = has_plugins(model.graph)
    lack = find_lack("tensorrt") if are_plugins else None
    if lack is not None:
        raise ModelError(
            f"The model has plug-ins of TensorRT (domain {PLUGIN_DOMAIN}), whose types ONNX Runtime's TensorRT provider alone "
            f"knows, and {lack}. Expected that provider. Install it (docs/scan-gpu.md; fix-fp16 doctor tells what is there), or "
            "have the exporter write standard operators in their place."
        )
    session = open_session(marked, folder, provider="tensorrt" if are_plugins else "cpu")
    types = {output.name: output.type for output in session.get_outputs()}
    return {name: _ELEM_TYPES[kind] for name in tensors if (kind := types[name][7:-1]) in _ELEM_TYPES}


def keep_outputs(model: onnx.ModelProto, tensors: Sequence[str]) -> None:
    """Make these of the model's outputs, in place, its only ones, with the nodes that they need."""
    needed, nodes = set(tensors), list[onnx.NodeProto]()
    kept = [output for output in model.graph.output if output.name in needed]
    for node in reversed(model.graph.node):
        if not needed.isdisjoint(node.output):
            needed.update(filter(None, node.input), captured_by(node))
            nodes.append(node)
    found = onnx.GraphProto(node=reversed(nodes), output=kept)
    del model.graph.node[:], model.graph.output[:]
    model.graph.node.extend(found.node)
    model.graph.output.extend(found.output)


def _session_options(optimize: bool, by_priority: bool, provider: Provider) -> Any:
    options = onnxruntime.SessionOptions()
    level = onnxruntime.GraphOptimizationLevel
    options.graph_optimization_level = level.ORT_ENABLE_ALL if optimize else level.ORT_DISABLE_ALL
    options.enable_mem_pattern = False
    options.enable_mem_reuse = provider != "cpu"  # planning it takes the square of the number of nodes
    options.intra_op_num_threads = _threads[0] or count_threads()
    options.log_severity_level = 4
    if not optimize:  # even so, each reader of a DequantizeLinear, a probe too, would get one of its own
        options.add_session_config_entry(_DISABLE_QUANTIZED, "1")
    options.add_session_config_entry(_STOP_SPINNING, "1")
    options.add_session_config_entry(*_SPIN_MICROSECONDS)
    for library in _custom_ops:
        options.register_custom_ops_library(str(library.resolve()))
    if by_priority:
        options.execution_order = onnxruntime.ExecutionOrder.PRIORITY_BASED
    if provider != "cpu":
        options.use_deterministic_compute = True
        options.add_session_config_entry(_RECORD_PLACES, "1")
    return options


def _return_memory() -> None:
    """Give back what a closed session took: the C library (glibc) would keep much of it, and the next session take more."""
    with suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


def _add_native(options: Any, model: onnx.ModelProto) -> None:
    """ONNX Runtime names the operators' domain in whatever it saves once it has heard of them, so that they need not be there."""
    library = find_library()
    if library is not None and may_hold_operators(model):
        options.register_custom_ops_library(str(library))


def _create(source: str | bytes, options: Any, provider: Provider, providers: list[Any]) -> Any:
    try:
        return onnxruntime.InferenceSession(source, options, providers=providers, enable_fallback=0)
    except Exception as error:  # onnxruntime raises many unrelated types
        tell = _want_of_memory if _tells_of_memory(error) else partial(_refusal, provider)
        raise ModelError(tell(first_line(error))) from error


def _ordinary_ops(model: onnx.ModelProto | Path) -> set[str]:
    if isinstance(model, Path):
        model = onnx.load(model, load_external_data=False)
    return find_ordinary_ops(model.graph)


def _refusal(provider: Provider, reason: str) -> str:
    expected = "on the CPU" if provider == "cpu" else f"with its {EXECUTION_PROVIDERS[provider]}"
    remedy = "Use --provider cpu if it is the GPU that cannot (docs/scan-gpu.md)"
    if provider == "cpu":
        remedy = (
            "Run the model in ONNX Runtime alone to see the same error. For operators that it does not know, name "
            "their library with --ort-custom-op, or scan TensorRT's plug-ins with --provider tensorrt where that loads, which fix-fp16 doctor tells (docs/custom-ops.md)"
        )
    return (
        f"ONNX Runtime {onnxruntime.__version__} refuses the model: {reason}. Expected a model that it can run "
        f"{expected}, since every value is taken from a real run. {remedy}."
    )


def _want_of_memory(reason: str) -> str:
    return (
        f"Memory ran out when ONNX Runtime {onnxruntime.__version__} opened the model: {reason}. Expected room for the model, one "
        "batch and what is computed from it. Use a machine with more memory, or raise the limit of what a process may take "
        "(ulimit -v), and of its threads (ulimit -u)."
    )


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


def _tells_of_memory(error: Exception) -> bool:
    """Whether it is Python's, C++'s or ONNX Runtime's word for memory that ran out.

    Of a size that no machine has, memory did not run out: something overflowed on the way to it.
    """
    asked = _ASKED_BYTES.search(str(error))
    if asked is not None and int(asked[1]) >= _MOST_BYTES:
        return False
    return isinstance(error, MemoryError) or any(word in str(error).lower() for word in _OF_MEMORY)


def first_line(error: BaseException) -> str:
    """What an error says first, without its full stop; its type where it says nothing."""
    return str(error).strip().splitlines()[0].rstrip(".") if str(error).strip() else type(error).__name__
