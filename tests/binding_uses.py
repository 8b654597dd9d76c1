"""Every name of TensorRT's module that the `tensorrt` backend uses, and how: the table of the contract test.

A row is the name, when it is used, and how. `when` is "always" or a field of Capabilities that is asked
before the use. `how` is "read", "write" (an attribute), "value" (an enum's member or a constant), "type" (a
class, to be made or subclassed), or the arguments of a call in their order, each with its type where a
mistake would not show ("name: str").
"""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np

from overflow_fixer import records

_ROWS = """
Builder                                     always              (logger)
Builder.create_network                      always              (flags: int)
Builder.create_builder_config               always              ()
Builder.create_optimization_profile         always              ()
Builder.build_serialized_network            always              (network, config)
Builder.max_batch_size                      explicit_batch      read

INetworkDefinition.num_layers               always              read
INetworkDefinition.get_layer                always              (index: int)
INetworkDefinition.num_inputs               always              read
INetworkDefinition.get_input                always              (index: int)
INetworkDefinition.num_outputs              always              read
INetworkDefinition.get_output               always              (index: int)
INetworkDefinition.mark_output              always              (tensor)
NetworkDefinitionCreationFlag.EXPLICIT_BATCH explicit_batch     value
NetworkDefinitionCreationFlag.STRONGLY_TYPED strong             value
INetworkDefinition.get_flag                 strong              (flag)

ILayer.name                                 always              read
ILayer.type                                 always              read
ILayer.metadata                             metadata            read
ILayer.num_inputs                           always              read
ILayer.get_input                            always              (index: int)
ILayer.num_outputs                          always              read
ILayer.get_output                           always              (index: int)
ILayer.precision                            weak                write
ILayer.reset_precision                      weak                ()
ILayer.set_output_type                      weak                (index: int, dtype: DataType)
ILayer.reset_output_type                    weak                (index: int)
LayerType.name                              always              read
INormalizationLayer                         normalization_layers type

ITensor.name                                always              read
ITensor.dtype                               always              read
ITensor.dtype                               weak                write
ITensor.shape                               always              read
ITensor.is_network_output                   always              read
ITensor.is_shape_tensor                     always              read
ITensor.is_execution_tensor                 always              read
DataType.name                               always              read
DataType.FLOAT                              always              value
DataType.HALF                               always              value
DataType.INT8                               always              value
DataType.UINT8                              always              value
DataType.INT32                              always              value
DataType.BOOL                               always              value
float32                                     always              value
float16                                     always              value

OnnxParser                                  always              (network, logger)
OnnxParser.parse                            always              (model, path: str)
OnnxParser.parse_from_file                  always              (model: str)
OnnxParser.num_errors                       always              read
OnnxParser.get_error                        always              (index: int)
OnnxParser.set_flag                         parser_flags        (flag)
OnnxParser.get_layer_output_tensor          axes_inputs         (name: str, i: int)
OnnxParserFlag.NATIVE_INSTANCENORM          parser_flags        value
ParserError.desc                            always              ()
ParserError.node                            always              ()
ParserError.node_name                       error_nodes         ()
ParserError.node_operator                   error_nodes         ()

IBuilderConfig.set_flag                     always              (flag: BuilderFlag)
IBuilderConfig.clear_flag                   always              (flag: BuilderFlag)
IBuilderConfig.set_memory_pool_limit        always              (pool: MemoryPoolType, pool_size: int)
IBuilderConfig.profiling_verbosity          always              write
IBuilderConfig.default_device_type          always              write
IBuilderConfig.builder_optimization_level   optimization_level  write
IBuilderConfig.set_tactic_sources           always              (tactic_sources: int)
IBuilderConfig.add_optimization_profile     always              (profile)
IBuilderConfig.create_timing_cache          always              (serialized_timing_cache)
IBuilderConfig.set_timing_cache             always              (cache, ignore_mismatch: bool)
IBuilderConfig.get_timing_cache             always              ()
IBuilderConfig.progress_monitor             progress            write
ITimingCache.serialize                      always              ()
ITimingCache.combine                        always              (input_cache, ignore_mismatch: bool)
BuilderFlag.TF32                            always              value
BuilderFlag.FP16                            weak                value
BuilderFlag.OBEY_PRECISION_CONSTRAINTS      weak                value
BuilderFlag.PREFER_PRECISION_CONSTRAINTS    weak                value
MemoryPoolType.WORKSPACE                    always              value
ProfilingVerbosity.DETAILED                 always              value
DeviceType.GPU                              always              value
TacticSource                                always              type
IOptimizationProfile.set_shape              always              (input: str, min, opt, max)
IOptimizationProfile.set_shape_input        always              (input: str, min, opt, max)
IProgressMonitor                            progress            ()
IProgressMonitor.phase_start                progress            (phase_name: str, parent_phase: str, num_steps: int)
IProgressMonitor.step_complete              progress            (phase_name: str, step: int)
IProgressMonitor.phase_finish               progress            (phase_name: str)

Runtime                                     always              (logger)
Runtime.deserialize_cuda_engine             always              (serialized_engine)
ICudaEngine.create_execution_context        always              ()
ICudaEngine.create_engine_inspector         always              ()
ICudaEngine.num_io_tensors                  always              read
ICudaEngine.get_tensor_name                 always              (index: int)
ICudaEngine.get_tensor_mode                 always              (name: str)
ICudaEngine.get_tensor_dtype                always              (name: str)
ICudaEngine.get_tensor_shape                always              (name: str)
ICudaEngine.get_tensor_location             always              (name: str)
ICudaEngine.get_tensor_profile_shape        always              (name: str, profile_index: int)
TensorIOMode.INPUT                          always              value
TensorIOMode.OUTPUT                         always              value
TensorLocation.HOST                         always              value

IExecutionContext.set_input_shape           always              (name: str, shape)
IExecutionContext.infer_shapes              always              ()
IExecutionContext.get_tensor_shape          always              (name: str)
IExecutionContext.set_tensor_address        always              (name: str, memory: int)
IExecutionContext.set_output_allocator      always              (name: str, output_allocator: IOutputAllocator)
IExecutionContext.execute_async_v3          always              (stream_handle: int)
IExecutionContext.profiler                  always              write
IOutputAllocator                            always              ()
IProfiler                                   always              ()
IProfiler.report_layer_time                 always              (layer_name: str, ms: float)

EngineInspector.execution_context           always              write
EngineInspector.get_engine_information      always              (format: LayerInformationFormat)
LayerInformationFormat.JSON                 always              value

ILogger                                     always              ()
ILogger.log                                 always              (severity, msg: str)
ILogger.ERROR                               always              value
ILogger.WARNING                             always              value
init_libnvinfer_plugins                     always              (logger, namespace: str)
get_plugin_registry                         always              ()
IPluginRegistry.load_library                always              (plugin_path: str)
"""

_SYNONYMS = (("typing.SupportsInt", "int"), ("typing.SupportsFloat", "float"))
_PLAIN = frozenset(
    name
    for kind in (str, bytes, int, float, list, tuple, dict, set, Path, re.Match, np.ndarray, builtins)
    for name in dir(kind)
)
_RECORD_FIELDS = frozenset(
    item.name for record in vars(records).values() if is_dataclass(record) for item in fields(record)
)


@dataclass(frozen=True)
class Use:
    """A row of the table; `arguments` is None for what is not called."""

    name: str
    when: str
    how: str

    @property
    def arguments(self) -> tuple[str, ...] | None:
        return _split(self.how[1:-1]) if self.how.startswith("(") else None


USES = tuple(Use(*line.split(maxsplit=2)) for line in _ROWS.splitlines() if line)
NAMES = frozenset(part for use in USES for part in use.name.split("."))


def find_fault(use: Use, found: dict[str, Any]) -> str | None:
    """What is wrong with a use, by the description of a release; None where it holds."""
    owner, _, name = use.name.rpartition(".")
    if not owner and use.how == "value":
        return None if name in found["values"] else f"no constant {name}"
    if not owner and name in found["functions"] and name not in found["classes"]:
        return _fault_of_call(use, found["functions"][name])
    members = found["classes"].get(owner or name)
    if members is None:
        return f"no class {owner or name}"
    if use.how == "type":
        return None
    member = members.get(name if owner else "__init__")
    return f"no {use.name}" if member is None else _fault_of_member(use, member)


def _fault_of_member(use: Use, member: dict[str, Any]) -> str | None:
    if use.arguments is not None:
        return _fault_of_call(use, member.get("signatures", []))
    wanted = "value" if use.how == "value" else "attribute"
    if member["kind"] != wanted:
        return f"{use.name} is a {member['kind']}, not a {wanted}"
    return f"{use.name} cannot be set" if use.how == "write" and not member["writable"] else None


def _fault_of_call(use: Use, signatures: Sequence[str]) -> str | None:
    asked = [_parse_argument(argument) for argument in use.arguments or ()]
    offers = [[_parse_argument(argument) for argument in _split(_normalize(text))] for text in signatures]
    if any(_takes([a for a in offer if a[0] != "self"], asked) for offer in offers):
        return None
    return f"{use.name}{use.how} fits none of {list(signatures)}"


def _takes(offer: Sequence[tuple[str, str, bool]], asked: Sequence[tuple[str, str, bool]]) -> bool:
    """Whether a signature takes the arguments by position; those left over need a default."""
    given, left = offer[: len(asked)], offer[len(asked) :]
    same = all(a[0] == o[0] and a[1] in ("", o[1]) for a, o in zip(asked, given, strict=False))
    return len(given) == len(asked) and same and all(argument[2] for argument in left)


def _parse_argument(text: str) -> tuple[str, str, bool]:
    """Name, type and whether there is a default, of `name: type = default`."""
    declared, _, default = text.partition(" = ")
    name, _, kind = declared.partition(": ")
    return name, re.split(r"::|\.", kind)[-1], bool(default)


def _normalize(signature: str) -> str:
    for spelled, plain in _SYNONYMS:
        signature = signature.replace(spelled, plain)
    return signature


def _split(text: str) -> tuple[str, ...]:
    """Arguments, split at the commas that stand in no bracket."""
    found, depth = [""], 0
    for character in text:
        depth += (character in "[(<") - (character in "])>")
        if character == "," and depth == 0:
            found.append("")
        else:
            found[-1] += character
    return tuple(part.strip() for part in found if part.strip())


# ---------------------------------------------------------------- what the backend's modules use


def attributes_used(sources: Sequence[Path]) -> dict[str, set[str]]:
    """Attribute names read or set on what may be a TensorRT object, each with the files that do.

    The package types TensorRT objects as Any, so whatever is annotated with Any, or made from such a
    value, may be one: parameters, fields, results of functions, loop variables.
    """
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in sources}
    results = {name for tree in trees.values() for name in _functions_of_any(tree)}
    shared: set[str] = set()
    walks = {path: list(_walks(tree, results, shared)) for path, tree in trees.items()}
    known = -1
    while known != (known := sum(walk.follow() for mine in walks.values() for walk in mine)):
        pass
    found: dict[str, set[str]] = {}
    for path, mine in walks.items():
        for name in {name for walk in mine for name in walk.attributes()}:
            found.setdefault(name, set()).add(path.name)
    return found


def names_defined(sources: Sequence[Path]) -> set[str]:
    """Names that the modules define themselves: functions, methods, fields."""
    found: set[str] = set()
    for path in sources:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                found.add(node.name)
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                found.add(node.target.id)
            elif isinstance(node, ast.Attribute) and _is_name(node.value, "self") and _is_stored(node):
                found.add(node.attr)
    return found


def is_plain(name: str) -> bool:
    """Whether a built-in type, a path, a regular expression's match or an array has such an attribute."""
    return name in _PLAIN or (name.startswith("__") and name.endswith("__"))


class _Walk:
    """Names of one function, and fields, that may hold TensorRT objects.

    `own` are fields of its module's classes, `shared` those of every module's, less the names that a
    record has a field of as well.
    """

    def __init__(self, scope: ast.FunctionDef, results: set[str], own: set[str], shared: set[str]) -> None:
        self._scope, self._results, self._own, self._shared = scope, results, own, shared
        self._names: set[str] = set(_annotated(scope))

    def follow(self) -> int:
        """Mark what is made from marked values; the number of names that are."""
        for target, value in _bindings(self._scope):
            self._bind(target, value)
        self._shared |= self._own - _RECORD_FIELDS
        return len(self._names) + len(self._own) + len(self._shared)

    def attributes(self) -> Iterator[str]:
        for node in ast.walk(self._scope):
            if isinstance(node, ast.Attribute) and self._holds(node.value):
                yield node.attr
            elif isinstance(node, ast.Call) and self._asks(node):
                yield from (a.value for a in node.args[1:2] if isinstance(a, ast.Constant))

    def _asks(self, node: ast.Call) -> bool:
        is_question = any(_is_name(node.func, name) for name in ("hasattr", "getattr", "setattr"))
        return is_question and bool(node.args) and self._holds(node.args[0])

    def _bind(self, target: ast.expr, value: ast.expr) -> None:
        both = isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple)
        if both and isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            for one, its in zip(target.elts, value.elts, strict=False):
                self._bind(one, its)
        elif self._holds(value):
            for node in ast.walk(target):
                if isinstance(node, ast.Name) and _is_stored(node):
                    self._names.add(node.id)
                elif isinstance(node, ast.Attribute) and _is_stored(node) and _is_name(node.value, "self"):
                    self._own.add(node.attr)

    def _holds(self, node: ast.expr) -> bool:
        match node:
            case ast.Name(id=name):
                return name in self._names
            case ast.Attribute(value=value, attr=name):
                return self._holds(value) or name in self._own | self._shared
            case ast.Call(func=ast.Name(id="getattr"), args=[first, *_]):
                return self._holds(first)
            case ast.Call(func=ast.Name(id=name)):
                return name in self._results
            case ast.Call(func=ast.Attribute(value=value, attr=name)):
                return self._holds(value) or name in self._results
            case ast.Subscript(value=value) | ast.NamedExpr(value=value):
                return self._holds(value)
            case ast.ListComp(elt=inner) | ast.GeneratorExp(elt=inner) | ast.SetComp(elt=inner):
                return self._holds(inner)
            case ast.IfExp(body=body, orelse=other):
                return self._holds(body) or self._holds(other)
        return False


def _walks(tree: ast.Module, results: set[str], shared: set[str]) -> Iterator[_Walk]:
    own = set(_fields_of_any(tree))
    return (_Walk(scope, results, own, shared) for scope in _scopes(tree))


def _scopes(tree: ast.Module) -> Iterator[ast.FunctionDef]:
    """Functions and methods; those inside of others belong to the outer."""
    for node in tree.body:
        members = node.body if isinstance(node, ast.ClassDef) else [node]
        yield from (member for member in members if isinstance(member, ast.FunctionDef))


def _functions_of_any(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and _mentions_any(node.returns):
            yield node.name


def _fields_of_any(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            for line in node.body:
                if isinstance(line, ast.AnnAssign) and _mentions_any(line.annotation):
                    yield from (n.id for n in [line.target] if isinstance(n, ast.Name))
        elif isinstance(node, ast.AnnAssign) and _mentions_any(node.annotation):
            yield from (n.attr for n in [node.target] if isinstance(n, ast.Attribute))


def _annotated(scope: ast.FunctionDef) -> Iterator[str]:
    for node in ast.walk(scope):
        if isinstance(node, ast.arg) and _mentions_any(node.annotation):
            yield node.arg
        elif isinstance(node, ast.AnnAssign) and _mentions_any(node.annotation):
            yield from (n.id for n in [node.target] if isinstance(n, ast.Name))


def _bindings(scope: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    for node in ast.walk(scope):
        if isinstance(node, ast.Assign):
            yield from ((target, node.value) for target in node.targets)
        elif isinstance(node, ast.NamedExpr | ast.AnnAssign) and node.value is not None:
            yield node.target, node.value
        elif isinstance(node, ast.For | ast.comprehension):
            yield node.target, node.iter


def _mentions_any(annotation: ast.expr | None) -> bool:
    return annotation is not None and any(_is_name(node, "Any") for node in ast.walk(annotation))


def _is_name(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _is_stored(node: ast.Name | ast.Attribute) -> bool:
    return isinstance(node.ctx, ast.Store)
