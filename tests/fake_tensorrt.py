"""A small TensorRT module for tests of the code that builds: no GPU, no libraries, every outcome by script.

`fake_tensorrt(variant, script)` gives a module of the variant "8.6" (weak typing alone), "10.0" (both),
"10.12" (both, and setting a precision warns) or "11" (strong typing alone), which has what that release has and nothing else: test_fake_tensorrt holds every
class, attribute, signature and enum value against the real bindings.

Parsing gives the script's layers or its errors. Building first refuses what TensorRT refuses (a profile
missing, FP16 allowed in a strongly typed network, an FP16 pin where FP16 is not allowed), then takes the
script's next outcome, and keeps what it was asked for in `script.asked`.
"""

from __future__ import annotations

import enum
import inspect
import json
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Literal

Variant = Literal["8.6", "10.0", "10.12", "11"]

RELEASE_OF_VARIANT: dict[Variant, str] = {
    "8.6": "8.6.1",
    "10.0": "10.0.1",
    "10.12": "10.12.0.36",
    "11": "11.4.0.106",
}

DISOBEYED = (
    "No implementation of layer {layer} obeys the requested constraints. I.e. no conforming implementation was found "
    "for requested layer computation precision and output precision. kOBEY_PRECISION_CONSTRAINTS was set, so treating "
    "as error."
)
NO_PROFILE = "Network has dynamic or shape inputs, but no optimization profile has been defined."
NO_FP16 = "fp16 precision has been set for a layer or layer output, but fp16 is not configured in the builder"
STRONG_FP16 = (
    "IBuilder::buildSerializedNetwork: Error Code 3: API Usage Error (Parameter check failed, condition: "
    "!config.getFlag(BuilderFlag::kFP16). )"
)

_ENUMS = """
NetworkDefinitionCreationFlag.EXPLICIT_BATCH    0   0   0   -
NetworkDefinitionCreationFlag.STRONGLY_TYPED    -   1   1   0
BuilderFlag.FP16                                0   0   0   -
BuilderFlag.TF32                                7   6   6   6
BuilderFlag.OBEY_PRECISION_CONSTRAINTS          10  9   9   -
BuilderFlag.PREFER_PRECISION_CONSTRAINTS        11  10  10  -
DataType.FLOAT                                  0   0   0   0
DataType.HALF                                   1   1   1   1
DataType.INT8                                   2   2   2   2
DataType.INT32                                  3   3   3   3
DataType.BOOL                                   4   4   4   4
DataType.UINT8                                  5   5   5   5
DataType.BF16                                   -   7   7   7
DataType.INT64                                  -   8   8   8
DataType.E8M0                                   -   -   11  11
DeviceType.GPU                                  0   0   0   0
DeviceType.DLA                                  1   1   1   1
LayerType.CONVOLUTION                           0   0   0   0
LayerType.ACTIVATION                            2   2   2   2
LayerType.POOLING                               3   3   3   3
LayerType.SCALE                                 5   5   5   5
LayerType.SOFTMAX                               6   6   6   6
LayerType.DECONVOLUTION                         7   7   7   7
LayerType.CONCATENATION                         8   8   8   8
LayerType.ELEMENTWISE                           9   9   9   9
LayerType.UNARY                                 11  11  11  11
LayerType.SHUFFLE                               13  13  13  13
LayerType.REDUCE                                14  14  14  14
LayerType.TOPK                                  15  15  15  15
LayerType.GATHER                                16  16  16  16
LayerType.MATRIX_MULTIPLY                       17  17  17  17
LayerType.CONSTANT                              19  19  19  19
LayerType.IDENTITY                              21  20  20  20
LayerType.SLICE                                 23  22  22  22
LayerType.SHAPE                                 24  23  23  23
LayerType.RESIZE                                26  25  25  25
LayerType.SELECT                                31  30  30  30
LayerType.FILL                                  32  31  31  31
LayerType.NORMALIZATION                         46  45  45  45
LayerType.CAST                                  47  1   1   1
LayerType.SQUEEZE                               -   -   47  47
LayerType.UNSQUEEZE                             -   -   48  48
LayerInformationFormat.ONELINE                  0   0   0   0
LayerInformationFormat.JSON                     1   1   1   1
MemoryPoolType.WORKSPACE                        0   0   0   0
OnnxParserFlag.NATIVE_INSTANCENORM              0   0   0   0
ProfilingVerbosity.LAYER_NAMES_ONLY             0   0   0   0
ProfilingVerbosity.NONE                         1   1   1   1
ProfilingVerbosity.DETAILED                     2   2   2   2
TacticSource.CUBLAS                             0   0   0   -
TacticSource.CUBLAS_LT                          1   1   1   -
TacticSource.CUDNN                              2   2   2   -
TacticSource.EDGE_MASK_CONVOLUTIONS             3   3   3   0
TacticSource.JIT_CONVOLUTIONS                   4   4   4   1
TensorIOMode.NONE                               0   0   0   0
TensorIOMode.INPUT                              1   1   1   1
TensorIOMode.OUTPUT                             2   2   2   2
TensorLocation.DEVICE                           0   0   0   0
TensorLocation.HOST                             1   1   1   1
"""


# ---------------------------------------------------------------- the script


@dataclass(frozen=True)
class TensorSpec:
    """A network's tensor; `dtype` by TensorRT's name, -1 in `shape` for a dimension left open."""

    name: str
    dtype: str = "FLOAT"
    shape: tuple[int, ...] = (1, 4)
    is_shape_tensor: bool = False
    is_execution_tensor: bool = True


@dataclass(frozen=True)
class LayerSpec:
    """A network's layer; `inputs` name tensors made before it ("" for one that is left out)."""

    name: str
    kind: str
    inputs: tuple[str, ...]
    outputs: tuple[TensorSpec, ...]
    metadata: str = ""


@dataclass(frozen=True)
class IoSpec:
    """An engine's input or output; a -1 in an output's shape is known only when it has run."""

    name: str
    mode: Literal["INPUT", "OUTPUT"]
    dtype: str = "FLOAT"
    shape: tuple[int, ...] = (1, 4)
    location: Literal["DEVICE", "HOST"] = "DEVICE"
    profile: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]] | None = None


@dataclass(frozen=True)
class Plan:
    """An outcome of a build: an engine, what its inspector tells, the warnings of building it, and what was timed."""

    content: bytes = b"engine"
    information: str | dict[str, Any] = '{"Layers": [], "Bindings": []}'
    io: tuple[IoSpec, ...] = ()
    warnings: tuple[str, ...] = ()
    timed: bytes = b"kernel"


@dataclass(frozen=True)
class Refusal:
    """An outcome of a build: none, and the errors that TensorRT logs."""

    errors: tuple[str, ...]


@dataclass(frozen=True)
class Asked:
    """What one build was asked for: flags by name, and the layers' own types by layer name."""

    flags: frozenset[str]
    precisions: dict[str, str]
    output_types: dict[tuple[str, int], str]
    profiles: tuple[dict[str, Any], ...]
    workspace_bytes: int | None
    tactic_sources: int | None


@dataclass(eq=False)
class Script:
    """What the module does, and what was done with it.

    `outcomes` are taken one a build. `engines` are the plans that a Runtime knows: every Plan built, and
    those put there. `parsed` are the paths and bytes given to the parser, `plugin_libraries` the paths given
    to the plug-in registry. `parse_errors` are those of each parsing, or of the first `refused_parsings` alone;
    `refused_node` is the node that they are about: operator, name and what it writes (the log tells of none where that is
    empty).
    """

    inputs: Sequence[TensorSpec] = ()
    layers: Sequence[LayerSpec] = ()
    outputs: Sequence[str] = ()
    parse_errors: Sequence[str] = ()
    refused_parsings: float = math.inf
    refused_node: tuple[str, str, str] | None = None
    outcomes: list[Plan | Refusal] = field(default_factory=list)
    engines: dict[bytes, Plan] = field(default_factory=dict)
    asked: list[Asked] = field(default_factory=list)
    parsed: list[Any] = field(default_factory=list)
    plugin_libraries: list[str] = field(default_factory=list)
    bad_plugin_libraries: Sequence[str] = ()


def fake_tensorrt(variant: Variant, script: Script) -> Any:
    """A module of the variant that follows the script; its `script` is the one given."""
    trt: Any = ModuleType("tensorrt")
    trt.__version__, trt.script = RELEASE_OF_VARIANT[variant], script
    for name, members in _enums(variant).items():
        setattr(trt, name, _Enum(name, members))
    trt.float32, trt.float16 = trt.DataType.FLOAT, trt.DataType.HALF
    trt.int32, trt.bool = trt.DataType.INT32, trt.DataType.BOOL
    for name, bound in (_COMMON | _OF_VARIANT[variant]).items():
        setattr(trt, name, _bind(name, bound, trt))
    trt.init_libnvinfer_plugins = _init_plugins
    trt.get_plugin_registry = lambda: trt.IPluginRegistry()
    return trt


def _enums(variant: Variant) -> dict[str, dict[str, int]]:
    column = list(RELEASE_OF_VARIANT).index(variant)
    found: dict[str, dict[str, int]] = {}
    for line in filter(None, _ENUMS.splitlines()):
        name, *values = line.split()
        owner, member = name.split(".")
        if values[column] != "-":
            found.setdefault(owner, {})[member] = int(values[column])
    return found


def _bind(name: str, bound: type, trt: Any) -> type:
    """The class under its public name; `_trt` is its module."""
    return type(name, (bound,), {"_trt": trt, "__module__": "tensorrt"})


def _init_plugins(logger: Any, namespace: str) -> bool:
    return isinstance(logger, _Logger)


class _Registry:
    """Knows the libraries that it was given; one that the script calls bad is refused."""

    _trt: Any

    def load_library(self, plugin_path: str) -> Any:
        self._trt.script.plugin_libraries.append(plugin_path)
        return None if plugin_path in self._trt.script.bad_plugin_libraries else object()


class _Enum(enum.Enum):
    """As pybind11 makes them: an int on request, equal to no int."""

    def __int__(self) -> int:
        return int(self.value)

    __index__ = __int__


class _Severity(_Enum):
    INTERNAL_ERROR = 0
    ERROR = 1
    WARNING = 2
    INFO = 3
    VERBOSE = 4

    def __le__(self, other: _Severity) -> bool:
        return int(self) <= int(other)


class _Bound:
    """Takes no public attribute that its class does not declare, as pybind11's objects do."""

    _trt: Any

    def __setattr__(self, name: str, value: Any) -> None:
        if not name.startswith("_") and name not in declared(type(self)):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r} to set")
        object.__setattr__(self, name, value)


def declared(owner: type) -> set[str]:
    """The attributes of a fake class that can be set."""
    annotated = {name for base in owner.__mro__ for name in inspect.get_annotations(base)}
    settable = {
        name
        for base in owner.__mro__
        for name, value in vars(base).items()
        if isinstance(value, property) and value.fset is not None
    }
    return {name for name in annotated | settable if not name.startswith("_")}


class _NormalizationLayer:
    """Of which nothing is asked but whether it is there."""


# ---------------------------------------------------------------- what the user subclasses


class _Logger:
    Severity = _Severity
    INTERNAL_ERROR, ERROR, WARNING, INFO, VERBOSE = _Severity

    def log(self, severity: _Severity, msg: str) -> None:
        raise NotImplementedError


class _ProgressMonitor:
    def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
        raise NotImplementedError

    def step_complete(self, phase_name: str, step: int) -> bool:
        raise NotImplementedError

    def phase_finish(self, phase_name: str) -> None:
        raise NotImplementedError


class _Profiler:
    def report_layer_time(self, layer_name: str, ms: float) -> None:
        raise NotImplementedError


class _OutputAllocator:
    """Calls `reallocate_output` and `notify_shape` of the subclass, which the real class does not show."""


# ---------------------------------------------------------------- the network


class _Tensor(_Bound):
    name: str = ""
    shape: tuple[int, ...] = ()

    def __init__(self, spec: TensorSpec) -> None:
        self._spec, self.name, self.shape = spec, spec.name, spec.shape
        self._dtype = self._trt.DataType.__members__[spec.dtype]
        self._is_input = self._is_output = False

    @property
    def dtype(self) -> Any:
        return self._dtype

    @property
    def is_network_input(self) -> bool:
        return self._is_input

    @property
    def is_network_output(self) -> bool:
        return self._is_output

    @property
    def is_shape_tensor(self) -> bool:
        return self._spec.is_shape_tensor

    @property
    def is_execution_tensor(self) -> bool:
        return self._spec.is_execution_tensor


class _WeakTensor(_Tensor):
    @property
    def dtype(self) -> Any:
        return self._dtype

    @dtype.setter
    def dtype(self, dtype: Any) -> None:
        self._dtype = dtype


class _Layer(_Bound):
    name: str = ""
    metadata: str = ""

    def __init__(self, spec: LayerSpec, tensors: dict[str, Any]) -> None:
        self.name, self.metadata = spec.name, spec.metadata
        self._type = self._trt.LayerType.__members__[spec.kind]
        self._inputs = [tensors[name] if name else None for name in spec.inputs]
        self._outputs = [self._trt.ITensor(output) for output in spec.outputs]
        self._precision: Any = None
        self._output_types: dict[int, Any] = {}

    @property
    def type(self) -> Any:
        return self._type

    @property
    def num_inputs(self) -> int:
        return len(self._inputs)

    @property
    def num_outputs(self) -> int:
        return len(self._outputs)

    def get_input(self, index: int) -> Any:
        return self._inputs[index]

    def get_output(self, index: int) -> Any:
        return self._outputs[index]

    def get_output_type(self, index: int) -> Any:
        return self._output_types.get(index, self._outputs[index].dtype)


class _WeakLayer(_Layer):
    @property
    def precision(self) -> Any:
        return self._trt.DataType.FLOAT if self._precision is None else self._precision

    @precision.setter
    def precision(self, dtype: Any) -> None:
        self._precision = dtype

    @property
    def precision_is_set(self) -> bool:
        return self._precision is not None

    def reset_precision(self) -> None:
        self._precision = None

    def set_output_type(self, index: int, dtype: Any) -> None:
        self._output_types[index] = dtype

    def output_type_is_set(self, index: int) -> bool:
        return index in self._output_types

    def reset_output_type(self, index: int) -> None:
        self._output_types.pop(index, None)


class _WarningTensor(_WeakTensor):
    @property
    def dtype(self) -> Any:
        return self._dtype

    @dtype.setter
    def dtype(self, dtype: Any) -> None:
        _warn()
        self._dtype = dtype


class _WarningLayer(_WeakLayer):
    @property
    def precision(self) -> Any:
        return super().precision

    @precision.setter
    def precision(self, dtype: Any) -> None:
        _warn()
        self._precision = dtype

    def reset_precision(self) -> None:
        _warn()
        super().reset_precision()

    def set_output_type(self, index: int, dtype: Any) -> None:
        _warn()
        super().set_output_type(index, dtype)

    def reset_output_type(self, index: int) -> None:
        _warn()
        super().reset_output_type(index)


def _warn() -> None:
    warnings.warn(
        "Deprecated in TensorRT 10.12. Superseded by strong typing.", DeprecationWarning, stacklevel=3
    )


class _Network(_Bound):
    name: str = "Unnamed Network 0"

    def __init__(self, flags: int) -> None:
        self._flags = flags
        self._inputs: list[Any] = []
        self._layers: list[Any] = []
        self._outputs: list[Any] = []

    @property
    def num_inputs(self) -> int:
        return len(self._inputs)

    @property
    def num_layers(self) -> int:
        return len(self._layers)

    @property
    def num_outputs(self) -> int:
        return len(self._outputs)

    def get_input(self, index: int) -> Any:
        return self._inputs[index]

    def get_layer(self, index: int) -> Any:
        return self._layers[index]

    def get_output(self, index: int) -> Any:
        return self._outputs[index]

    def mark_output(self, tensor: Any) -> None:
        tensor._is_output = True
        self._outputs.append(tensor)

    def unmark_output(self, tensor: Any) -> None:
        tensor._is_output = False
        self._outputs.remove(tensor)

    def _has(self, flag: str) -> bool:
        member = self._trt.NetworkDefinitionCreationFlag.__members__.get(flag)
        return member is not None and bool(self._flags >> int(member) & 1)

    def _is_strong(self) -> bool:
        return self._has("STRONGLY_TYPED") or not hasattr(self._trt.ILayer, "precision")

    def _fill(self, script: Script) -> None:
        tensors: dict[str, Any] = {spec.name: self._trt.ITensor(spec) for spec in script.inputs}
        self._inputs = list(tensors.values())
        for tensor in self._inputs:
            tensor._is_input = True
        for spec in script.layers:
            layer = self._trt.ILayer(spec, tensors)
            self._layers.append(layer)
            tensors |= {tensor.name: tensor for tensor in layer._outputs}
        for name in script.outputs:
            self.mark_output(tensors[name])


class _FlaggedNetwork(_Network):
    @property
    def flags(self) -> int:
        return self._flags

    def get_flag(self, flag: Any) -> bool:
        return self._has(flag.name)


class _ParserError(_Bound):
    def __init__(self, text: str, refused: tuple[str, str, str] | None) -> None:
        self._text, self._refused = text, refused

    def desc(self) -> str:
        return self._text

    def node(self) -> int:
        return 3 if self._refused else -1


class _NamingParserError(_ParserError):
    def node_name(self) -> str:
        return self._refused[1] if self._refused else ""

    def node_operator(self) -> str:
        return self._refused[0] if self._refused else ""


class _Parser(_Bound):
    def __init__(self, network: Any, logger: Any) -> None:
        self._network, self._logger = network, logger
        self._errors: list[Any] = []
        self._own_flags: set[Any] = set()

    @property
    def num_errors(self) -> int:
        return len(self._errors)

    def get_error(self, index: int) -> Any:
        return self._errors[index]

    def clear_errors(self) -> None:
        self._errors = []

    def set_flag(self, flag: Any) -> None:
        self._own_flags.add(flag)

    def clear_flag(self, flag: Any) -> None:
        self._own_flags.discard(flag)

    def get_flag(self, flag: Any) -> bool:
        return flag in self._own_flags

    def parse(self, model: bytes, path: str | None = None) -> bool:
        return self._take((bytes(model), path))

    def parse_from_file(self, model: str) -> bool:
        return self._take(model)

    def _take(self, source: Any) -> bool:
        script: Script = self._trt.script
        script.parsed.append(source)
        errors = list(script.parse_errors) if len(script.parsed) <= script.refused_parsings else []
        if hasattr(self._trt.Builder, "max_batch_size") and not self._network._has("EXPLICIT_BATCH"):
            errors.append("Network must have an explicit batch dimension")
        self._errors = [self._trt.ParserError(text, script.refused_node) for text in errors]
        for text in errors:
            if script.refused_node and script.refused_node[2]:
                operator, _, output = script.refused_node
                self._logger.log(_Severity.ERROR, f'While parsing node number 3 [{operator} -> "{output}"]:')
            self._logger.log(_Severity.ERROR, text)
        if not errors:
            self._network._fill(script)
        return not errors


class _TensorFindingParser(_Parser):
    def get_layer_output_tensor(self, name: str, i: int) -> Any:
        layers = [layer for layer in self._network._layers if layer.name == name]
        return layers[0].get_output(i) if layers and i < layers[0].num_outputs else None


# ---------------------------------------------------------------- building


class _HostMemory(_Bound):
    def __init__(self, content: bytes) -> None:
        self._content = content

    def __bytes__(self) -> bytes:
        return self._content

    @property
    def nbytes(self) -> int:
        return len(self._content)


TIMINGS_HERE = b"here:"
"""Begins the bytes of this device's and version's timings; a name a line follows."""
TIMINGS_ELSEWHERE = b"there:"
"""Begins those of another's. What begins neither way is torn."""


class _TimingCache(_Bound):
    def __init__(self, content: bytes) -> None:
        self._content = content

    def _is_foreign(self) -> bool:
        return self._content.startswith(TIMINGS_ELSEWHERE)

    def serialize(self) -> Any:
        return self._trt.IHostMemory(self._content)

    def combine(self, input_cache: Any, ignore_mismatch: bool) -> bool:
        if input_cache._is_foreign():
            return False
        for name in input_cache._content.removeprefix(TIMINGS_HERE).splitlines():
            self._add(name)
        return True

    def _add(self, name: bytes) -> None:
        names = self._content.removeprefix(TIMINGS_HERE).splitlines()
        self._content = TIMINGS_HERE + b"\n".join(dict.fromkeys((*names, name)))

    def reset(self) -> bool:
        self._content = b""
        return True


class _Profile(_Bound):
    def __init__(self) -> None:
        self._shapes: dict[str, Any] = {}
        self._values: dict[str, Any] = {}

    def set_shape(self, input: str, min: Any, opt: Any, max: Any) -> None:
        _check_order(self._trt, input, (min, opt, max))
        self._shapes[input] = (tuple(min), tuple(opt), tuple(max))

    def set_shape_input(self, input: str, min: Any, opt: Any, max: Any) -> None:
        _check_order(self._trt, input, (min, opt, max))
        self._values[input] = (tuple(min), tuple(opt), tuple(max))


class _Config(_Bound):
    profiling_verbosity: Any = None
    default_device_type: Any = None
    builder_optimization_level: int = 3

    def __init__(self, logger: Any) -> None:
        self._logger = logger
        self.profiling_verbosity = self._trt.ProfilingVerbosity.LAYER_NAMES_ONLY
        self.default_device_type = self._trt.DeviceType.GPU
        self._flags = {self._trt.BuilderFlag.TF32}
        self._limits: dict[Any, int] = {}
        self._sources: int | None = None
        self._profiles: list[Any] = []
        self._cache: Any = None

    def set_flag(self, flag: Any) -> None:
        rivals = {"OBEY_PRECISION_CONSTRAINTS", "PREFER_PRECISION_CONSTRAINTS"}
        if flag.name in rivals and rivals & {other.name for other in self._flags} - {flag.name}:
            self._logger.log(_Severity.ERROR, "kOBEY and kPREFER_PRECISION_CONSTRAINTS exclude each other")
            return
        self._flags.add(flag)

    def clear_flag(self, flag: Any) -> None:
        self._flags.discard(flag)

    def get_flag(self, flag: Any) -> bool:
        return flag in self._flags

    def set_memory_pool_limit(self, pool: Any, pool_size: int) -> None:
        self._limits[pool] = pool_size

    def get_memory_pool_limit(self, pool: Any) -> int:
        return self._limits.get(pool, 2**34)

    def set_tactic_sources(self, tactic_sources: int) -> bool:
        self._sources = tactic_sources
        return True

    def add_optimization_profile(self, profile: Any) -> int:
        self._profiles.append(profile)
        return len(self._profiles) - 1

    @property
    def num_optimization_profiles(self) -> int:
        return len(self._profiles)

    def create_timing_cache(self, serialized_timing_cache: bytes) -> Any:
        """Of torn bytes TensorRT 8.6.0 logs an error and makes an empty cache, as seen on a GPU."""
        content = bytes(serialized_timing_cache)
        if content and not content.startswith((TIMINGS_HERE, TIMINGS_ELSEWHERE)):
            self._logger.log(_Severity.ERROR, "The timing cache will not be used!")
            content = b""
        return self._trt.ITimingCache(content)

    def set_timing_cache(self, cache: Any, ignore_mismatch: bool) -> bool:
        if cache._is_foreign():
            self._logger.log(_Severity.WARNING, "The timing cache is of another device or version")
            return False
        self._cache = cache
        return True

    def get_timing_cache(self) -> Any:
        return self._cache


class _MonitoredConfig(_Config):
    progress_monitor: Any = None


class _Builder(_Bound):
    def __init__(self, logger: Any) -> None:
        self._logger = logger

    def create_network(self, flags: int = 0) -> Any:
        return self._trt.INetworkDefinition(flags)

    def create_builder_config(self) -> Any:
        return self._trt.IBuilderConfig(self._logger)

    def create_optimization_profile(self) -> Any:
        return self._trt.IOptimizationProfile()

    def build_serialized_network(self, network: Any, config: Any) -> Any:
        script: Script = self._trt.script
        script.asked.append(_note(network, config))
        refused = next((text for text, is_so in _FAULTS if is_so(network, script.asked[-1])), None)
        outcome = Refusal((refused,)) if refused else script.outcomes.pop(0)
        if isinstance(outcome, Refusal):
            for text in outcome.errors:
                self._logger.log(_Severity.ERROR, text)
            return None
        return self._finish(outcome, config)

    def _finish(self, plan: Plan, config: Any) -> Any:
        for text in plan.warnings:
            self._logger.log(_Severity.WARNING, text)
        monitor = getattr(config, "progress_monitor", None)
        if monitor is not None:
            monitor.phase_start("Building Engine", None, 1)
            monitor.step_complete("Building Engine", 0)
            monitor.phase_finish("Building Engine")
        if config._cache is not None:
            config._cache._add(plan.timed)
        self._trt.script.engines[plan.content] = plan
        return self._trt.IHostMemory(plan.content)


class _OldBuilder(_Builder):
    max_batch_size: int = 1


def _note(network: Any, config: Any) -> Asked:
    layers = network._layers
    return Asked(
        flags=frozenset(flag.name for flag in config._flags),
        precisions={layer.name: layer._precision.name for layer in layers if layer._precision is not None},
        output_types={
            (layer.name, index): dtype.name
            for layer in layers
            for index, dtype in layer._output_types.items()
        },
        profiles=tuple({"shapes": p._shapes, "values": p._values} for p in config._profiles),
        workspace_bytes=config._limits.get(config._trt.MemoryPoolType.WORKSPACE),
        tactic_sources=config._sources,
    )


def _lacks_profile(network: Any, asked: Asked) -> bool:
    given = {name for profile in asked.profiles for kind in profile.values() for name in kind}
    needed = {t.name for t in network._inputs if t.is_shape_tensor or -1 in t.shape}
    return not needed <= given


def _pins_fp16_in_vain(network: Any, asked: Asked) -> bool:
    wanted = {*asked.precisions.values(), *asked.output_types.values()}
    return "HALF" in wanted and "FP16" not in asked.flags


def _allows_fp16_in_strong(network: Any, asked: Asked) -> bool:
    return network._is_strong() and "FP16" in asked.flags


_FAULTS: tuple[tuple[str, Callable[[Any, Asked], bool]], ...] = (
    (NO_PROFILE, _lacks_profile),
    (NO_FP16, _pins_fp16_in_vain),
    (STRONG_FP16, _allows_fp16_in_strong),
)


# ---------------------------------------------------------------- running


class _Runtime(_Bound):
    def __init__(self, logger: Any) -> None:
        self._logger = logger

    def deserialize_cuda_engine(self, serialized_engine: bytes) -> Any:
        plan = self._trt.script.engines.get(bytes(serialized_engine))
        if plan is None:
            self._logger.log(
                _Severity.ERROR, "IRuntime::deserializeCudaEngine: Error Code 1: magic tag does not match"
            )
            return None
        return self._trt.ICudaEngine(plan, self._logger)


class _Engine(_Bound):
    def __init__(self, plan: Plan, logger: Any) -> None:
        self._plan, self._logger = plan, logger
        self._io = {spec.name: spec for spec in plan.io}

    @property
    def num_io_tensors(self) -> int:
        return len(self._io)

    def get_tensor_name(self, index: int) -> str:
        return self._plan.io[index].name

    def get_tensor_mode(self, name: str) -> Any:
        return self._trt.TensorIOMode.__members__[self._io[name].mode]

    def get_tensor_dtype(self, name: str) -> Any:
        return self._trt.DataType.__members__[self._io[name].dtype]

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        return self._io[name].shape

    def get_tensor_location(self, name: str) -> Any:
        return self._trt.TensorLocation.__members__[self._io[name].location]

    def get_tensor_profile_shape(self, name: str, profile_index: int) -> list[tuple[int, ...]]:
        spec = self._io[name]
        return list(spec.profile or (spec.shape, spec.shape, spec.shape))

    def create_execution_context(self) -> Any:
        return self._trt.IExecutionContext(self)

    def create_engine_inspector(self) -> Any:
        return self._trt.EngineInspector(self._plan)


class _Inspector(_Bound):
    execution_context: Any = None

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def get_engine_information(self, format: Any) -> str:
        told = self._plan.information
        return told if isinstance(told, str) else json.dumps(told)


class _Context(_Bound):
    profiler: Any = None

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self._shapes = {name: spec.shape for name, spec in engine._io.items()}
        self._addresses: dict[str, int] = {}
        self._allocators: dict[str, Any] = {}

    def set_input_shape(self, name: str, shape: Sequence[int]) -> bool:
        least, _, most = self._engine.get_tensor_profile_shape(name, 0)
        fits = len(shape) == len(least) and all(
            low <= size <= high for low, size, high in zip(least, shape, most, strict=True)
        )
        if fits:
            self._shapes[name] = tuple(shape)
        else:
            self._engine._logger.log(
                _Severity.ERROR, f"Static dimension mismatch while setting input shape for {name}"
            )
        return fits

    def infer_shapes(self) -> list[str]:
        inputs = [name for name, spec in self._engine._io.items() if spec.mode == "INPUT"]
        return [name for name in inputs if -1 in self._shapes[name]]

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        return self._shapes[name]

    def set_tensor_address(self, name: str, memory: int) -> bool:
        self._addresses[name] = memory
        return True

    def set_output_allocator(self, name: str, output_allocator: Any) -> bool:
        self._allocators[name] = output_allocator
        return True

    def execute_async_v3(self, stream_handle: int) -> bool:
        missing = [n for n in self._engine._io if n not in self._addresses and n not in self._allocators]
        if missing:
            self._engine._logger.log(_Severity.ERROR, f"Neither address or allocator is set for {missing[0]}")
        return not missing


def _check_order(trt: Any, name: str, shapes: Sequence[Any]) -> None:
    """As the bindings do; their integers have 32 bits before 10."""
    bits = 31 if hasattr(trt.Builder, "max_batch_size") else 63
    if any(not -(2**bits) <= size < 2**bits for shape in shapes for size in shape):
        raise TypeError("incompatible function arguments")
    least, usual, most = (tuple(shape) for shape in shapes)
    ordered = all(a <= b <= c for a, b, c in zip(least, usual, most, strict=True))
    if not ordered:
        raise ValueError(f"Shape provided for min, opt, max of {name} are inconsistent")


_COMMON: dict[str, type] = {
    "EngineInspector": _Inspector,
    "ICudaEngine": _Engine,
    "IExecutionContext": _Context,
    "IHostMemory": _HostMemory,
    "ILogger": _Logger,
    "INormalizationLayer": _NormalizationLayer,
    "IOptimizationProfile": _Profile,
    "IOutputAllocator": _OutputAllocator,
    "IPluginRegistry": _Registry,
    "IProfiler": _Profiler,
    "ITimingCache": _TimingCache,
    "ParserError": _ParserError,
    "Runtime": _Runtime,
}
_WEAK: dict[str, type] = {"ILayer": _WeakLayer, "ITensor": _WeakTensor}
_STRONG: dict[str, type] = {"ILayer": _Layer, "ITensor": _Tensor}
_OLD: dict[str, type] = {
    "Builder": _OldBuilder,
    "IBuilderConfig": _Config,
    "INetworkDefinition": _Network,
    "OnnxParser": _Parser,
}
_NEW: dict[str, type] = {
    "Builder": _Builder,
    "IBuilderConfig": _MonitoredConfig,
    "INetworkDefinition": _FlaggedNetwork,
    "IProgressMonitor": _ProgressMonitor,
    "OnnxParser": _TensorFindingParser,
    "ParserError": _NamingParserError,
}
_OF_VARIANT: dict[Variant, dict[str, type]] = {
    "8.6": _OLD | _WEAK,
    "10.0": _NEW | _WEAK,
    "10.12": _NEW | {"ILayer": _WarningLayer, "ITensor": _WarningTensor},
    "11": _NEW | _STRONG,
}
