"""The flags that the verbs share, and the settings they make with a config file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

from overflow_fixer.cli.named_path import NamedPath, NamedSource
from overflow_fixer.config import FixConfig, make_config
from overflow_fixer.reports.numbers_json import dump_json, encode_number
from overflow_fixer.sessions.settings import use_custom_ops

F = TypeVar("F", bound=Callable[..., Any])
_FILE = NamedPath()
_PLACES = {
    "model": (),
    "calib": (),
    "out": (),
    "custom_ops": (),
    "refuse_layernorm": (),
    "threshold": ("plan",),
    "masks": ("plan",),
    "accumulators": ("plan",),
    "include_nodes": ("plan",),
    "include_ops": ("plan",),
    "exclude_nodes": ("plan",),
    "exclude_ops": ("plan",),
    "observe": ("scan",),
    "provider": ("scan",),
    "backend": ("build",),
    "io_types": ("build",),
    "typing": ("build",),
    "workspace_gib": ("build",),
    "optimization_level": ("build",),
    "tactic_sources": ("build",),
    "timing_cache": ("build",),
    "plugins": ("build",),
    "profile": ("build",),
    "compare": ("build",),
    "exports": ("build",),
    "min_snr_db": ("verify",),
    "jitter": ("verify",),
    "parts": ("verify",),
    "max_rounds": ("repair",),
    "max_builds": ("repair",),
    "max_minutes": ("repair",),
    "allow_nonfinite": ("calibration",),
    "batch_size": ("calibration",),
    "max_batches": ("calibration",),
    "seed": ("calibration",),
}
"""Where each flag stands in the config file: the table, or () for the top."""


def refuse_beside(option: str, flags: Mapping[str, Any], why: str) -> None:
    """Raise UsageError, which says `why`, for the first of the `flags` that was given: nothing reads it beside `option`."""
    given = next((flag for flag, value in flags.items() if value not in (None, ())), None)
    if given is not None:
        raise click.UsageError(f"{option} was given with --{given}. Expected one of them: {why}")


def settings(**flags: Any) -> FixConfig:
    """The config of a verb's flags; those that were not given are taken from the file or the defaults.

    Its custom operators are loaded.
    """
    nested: dict[str, Any] = {}
    for flag, places in _PLACES.items():
        value = flags.get(flag)
        target = nested.setdefault(places[0], {}) if places else nested
        target[flag] = None if value == () else value
    config = make_config(flags.get("config"), nested, _name_flags())
    use_custom_ops(config.custom_ops)
    return config


def _name_flags() -> dict[str, str]:
    """How the flags of the verb that runs are written, by the names of their values."""
    context = click.get_current_context(silent=True)
    found = [] if context is None else context.command.params
    return {
        one.name: one.opts[0] if isinstance(one, click.Option) else one.name.upper()
        for one in found
        if one.name is not None
    }


def to_json(**values: Any) -> str:
    """The values as JSON, paths as text and numbers that are not finite as text."""
    return dump_json(_plain(values))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return (
        encode_number(value) if isinstance(value, float) else str(value) if isinstance(value, Path) else value
    )


def model_argument(function: F) -> F:
    """MODEL, which a config file may name instead."""
    return click.argument("model", type=_FILE, required=False)(function)


def common_options(function: F) -> F:
    """--out, --config and what is said on the terminal."""
    options = [
        click.option("--out", type=_FILE, help="Folder of the results [MODEL-stem.fp16]."),
        click.option("--config", type=_FILE, help="TOML file with settings; see configs/default.toml."),
        click.option(
            "--ort-custom-op",
            "custom_ops",
            multiple=True,
            type=_FILE,
            help="A library of custom operators for ONNX Runtime.",
        ),
        click.option("-q", "--quiet", is_flag=True, help="Say nothing but errors."),
        click.option("--json", "as_json", is_flag=True, help="Print the result as JSON on stdout."),
        click.option("--debug", is_flag=True, help="Show the traceback of an error."),
    ]
    return _apply(options, function)


def verbose_option(function: F) -> F:
    return click.option("-v", "--verbose", is_flag=True, help="Say more.")(function)


def calibration_options(function: F) -> F:
    """The data, and how they are read."""
    options = [
        click.option("--calib", type=NamedSource(), help='Calibration data: a folder or file, or "random".'),
        click.option("--allow-nonfinite", is_flag=True, default=None, help="Accept NaN and Inf in the data."),
        click.option("--batch-size", type=int, help="Samples a batch, where a sample axis is cut."),
        click.option("--max-batches", type=int, help="Batches used, from the first."),
        click.option("--seed", type=int, help="Seed of --calib random."),
    ]
    return _apply(options, function)


def scan_options(function: F) -> F:
    """How the model runs on them, where it is observed."""
    options = [
        click.option(
            "--observe",
            type=click.Choice(["reductions", "outputs", "optimized"]),
            help="How tensors are observed [reductions].",
        ),
        click.option(
            "--fast",
            "observe",
            flag_value="optimized",
            help="Observe the optimised kernels: --observe optimized.",
        ),
        click.option(
            "--provider", type=click.Choice(["cpu", "cuda", "tensorrt"]), help="What runs the scan [cpu]."
        ),
    ]
    return _apply(options, function)


def plan_options(function: F) -> F:
    options = [
        click.option("--threshold", type=float, help="Magnitude not trusted to FP16 [10000]."),
        click.option(
            "--masks",
            type=click.Choice(["auto", "pin", "clamp"]),
            help="What to do with masks of scores [auto].",
        ),
        click.option(
            "--accumulators",
            type=click.Choice(["pin", "report", "off"]),
            help="What to do with sums of products that may overflow on the way [pin].",
        ),
        click.option("--include-nodes", multiple=True, metavar="REGEX", help="Keep these nodes in FP32."),
        click.option("--include-ops", multiple=True, metavar="OP", help="Keep these operators in FP32."),
        click.option("--exclude-nodes", multiple=True, metavar="REGEX", help="Never pin these nodes."),
        click.option("--exclude-ops", multiple=True, metavar="OP", help="Never pin these operators."),
    ]
    return _apply(options, function)


def build_options(function: F) -> F:
    options = [
        click.option(
            "--backend", type=click.Choice(["auto", "tensorrt", "onnx"]), help="What to build [auto]."
        ),
        click.option(
            "--io-types",
            type=click.Choice(["keep", "fp16"]),
            help="Types of float inputs and outputs [keep].",
        ),
    ]
    return _apply(options, _engine_options(function))


def compare_option(function: F) -> F:
    option = click.option(
        "--compare/--no-compare",
        default=None,
        help="Build plain FP16 and FP32 too, to compare with and to time [compare].",
    )
    return option(function)


def export_options(function: F) -> F:
    option = click.option(
        "--export",
        "exports",
        multiple=True,
        type=click.Choice(["trtexec", "polygraphy-npps", "polygraphy-loader"]),
        help="Write an engine's pins for another tool as well.",
    )
    return option(function)


def _engine_options(function: F) -> F:
    """What TensorRT alone is told."""
    options = [
        click.option(
            "--typing",
            type=click.Choice(["auto", "weak", "strong"]),
            help="TensorRT's typing [what it prefers].",
        ),
        click.option(
            "--profile",
            multiple=True,
            metavar="NAME:MIN:OPT:MAX",
            callback=_parse_profiles,
            help="Shapes of an input an engine is built for, as 1x3x224x224 [those of the data].",
        ),
        click.option(
            "--plugin", "plugins", multiple=True, type=_FILE, help="A TensorRT plug-in library to load."
        ),
        click.option(
            "--workspace-gib",
            type=float,
            help="GPU memory that a layer of a TensorRT engine may use, in GiB.",
        ),
        click.option("--optimization-level", type=int, help="Effort of TensorRT's builder, 0 to 5."),
        click.option(
            "--tactic-source",
            "tactic_sources",
            multiple=True,
            help="A library that TensorRT takes kernels from.",
        ),
        click.option(
            "--timing-cache",
            type=_FILE,
            help="TensorRT's kernel timings kept across builds [OUT/timing.cache].",
        ),
    ]
    return _apply(options, function)


def verify_options(function: F) -> F:
    options = [
        click.option("--min-snr-db", type=float, help="SNR in dB from which an output passes [30]."),
        click.option(
            "--jitter",
            type=int,
            help="Verify on as many copies of each batch, changed by up to 2^-10, too [0].",
        ),
        click.option(
            "--part",
            "parts",
            multiple=True,
            metavar="OUTPUT[INDEX]",
            help="A part of an output, as NumPy indexes it ('y[:, 4:]'), to judge by itself too.",
        ),
    ]
    return _apply(options, function)


def repair_options(function: F) -> F:
    options = [
        click.option("--max-rounds", type=int, help="Widenings of the plan to try [6]."),
        click.option("--max-builds", type=int, help="Builds of a repair, the first included [40]."),
        click.option(
            "--max-minutes", type=float, help="Minutes after which no further round is begun [120]."
        ),
    ]
    return _apply(options, function)


def _parse_profiles(
    context: click.Context, option: click.Parameter, given: tuple[str, ...]
) -> dict[str, list[list[int]]] | None:
    """{name: [min, opt, max]} of NAME:MIN:OPT:MAX; an input's name may hold colons itself."""
    profiles: dict[str, list[list[int]]] = {}
    for text in given:
        name, *shapes = text.rsplit(":", 3)
        if name in profiles:
            raise click.BadParameter(f"the input {name!r} was given two profiles.")
        try:
            profiles[name] = [[int(size) for size in shape.split("x")] for shape in shapes]
        except ValueError:
            shapes = []
        if len(shapes) != 3:
            raise click.BadParameter(f"{text!r} is not NAME:MIN:OPT:MAX with shapes such as 1x3x224x224.")
    return profiles or None


def _apply(options: list[Callable[[Any], Any]], function: F) -> F:
    for option in reversed(options):
        function = option(function)
    return function
