"""The outcomes of a zoo as one document: zoo-report.json (its shape: zoo-report.schema.json), and as HTML and CSV."""

from __future__ import annotations

import csv
import io
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import jinja2
from pydantic import BaseModel, ValidationError

from overflow_fixer import __version__
from overflow_fixer.errors import ConfigError
from overflow_fixer.files import is_there, make_folder, write_text
from overflow_fixer.locks import hold_lock
from overflow_fixer.plurals import say_plural
from overflow_fixer.problems import say_problem
from overflow_fixer.reports.numbers_json import dump_json, encode_number, parse_json
from overflow_fixer.reports.wording import say_decibels, say_share
from overflow_fixer.zoo.entries import SUMMARY, Zoo
from overflow_fixer.zoo.outcomes import ZooOutcome, ZooResult, load_outcome
from overflow_fixer.zoo.running import LOG_FILE

SCHEMA_VERSION = "1.1"
Document = dict[str, Any]
_REPORT = "report.html"
_COLUMNS = (
    "name outcome warning_count pin_count clamp_count naive_snr_db naive_mismatched fixed_snr_db fixed_mismatched fp16_node_share "
    "fp16_flops_share size_bytes seconds peak_memory_bytes attempts message report log"
).split()


def summarize(
    zoo: Zoo, outcomes: Mapping[str, ZooOutcome], earlier: Document | None = None
) -> tuple[Document, tuple[Path, ...]]:
    """Write the summary of these outcomes, and of those that lie in the folders of the zoo's other models.

    Zoos that run parts of one side by side wait for each other here: whoever comes last has every outcome.
    """
    with hold_lock(zoo.folder / SUMMARY):
        others = (load_outcome(entry) for entry in zoo.entries if entry.name not in outcomes)
        everything = [*outcomes.values(), *(outcome for outcome in others if outcome is not None)]
        document = build_document(zoo.source, zoo.folder, everything, earlier)
        return document, write_summary(document, zoo.folder)


def build_document(
    source: Path, folder: Path, outcomes: Sequence[ZooOutcome], earlier: Document | None = None
) -> Document:
    """The whole summary, models by name. Paths are relative to `folder`, where it lies."""
    models = [_describe(outcome, folder) for outcome in sorted(outcomes, key=lambda outcome: outcome.name)]
    return {
        "schema_version": SCHEMA_VERSION,
        "tool_version": __version__,
        "source": str(source),
        "passed": all(outcome.passed for outcome in outcomes),
        "counts": dict(sorted(Counter(outcome.kind for outcome in outcomes).items())),
        "models": models,
        "comparison": None if earlier is None else compare(earlier, models),
    }


def compare(earlier: Document, models: Sequence[Document]) -> Document:
    """What changed since an earlier summary: models that newly fail or pass, plans, contents, versions, models come and gone."""
    before = {model["name"]: model for model in earlier["models"]}
    now = {model["name"]: model for model in models}
    both = [name for name in now if name in before]
    return {
        "tool_version": earlier["tool_version"],
        "newly_failing": [n for n in both if before[n]["passed"] and not now[n]["passed"]],
        "newly_passing": [n for n in both if now[n]["passed"] and not before[n]["passed"]],
        "changed_plans": [c for n in both if (c := _compare_pins(n, before[n], now[n])) is not None],
        "changed_content": [n for n in both if _has_other_content(before[n], now[n])],
        "changed_versions": _compare_versions(before, now, both),
        "added": [name for name in now if name not in before],
        "removed": [name for name in before if name not in now],
    }


def write_summary(document: Document, folder: Path) -> tuple[Path, ...]:
    """Write zoo-report.json, .html and .csv, each whole or not at all."""
    make_folder(folder)
    texts = {".json": dump_json(document), ".html": render_html(document), ".csv": render_csv(document)}
    for suffix, text in texts.items():
        write_text(folder / f"{SUMMARY}{suffix}", text)
    return tuple(folder / f"{SUMMARY}{suffix}" for suffix in texts)


class _ComparedResult(BaseModel):
    pins: list[str]


class _ComparedModel(BaseModel):
    name: str
    passed: bool
    versions: dict[str, str]
    content_sha256: str
    result: _ComparedResult | None


class _Compared(BaseModel):
    """What a comparison reads of a summary. To hold all of it against the schema takes a minute for 10,000 models."""

    schema_version: Literal["1.0", "1.1"]
    tool_version: str
    models: list[_ComparedModel]


def load_summary(path: Path) -> Document:
    """A summary that was written before: a file, or the folder that it lies in. Raises ConfigError for anything else."""
    file = path / f"{SUMMARY}.json" if os.path.isdir(path) else path
    try:
        found = _Compared.model_validate(parse_json(file.read_text(encoding="utf-8")))
    except OSError as error:
        raise ConfigError(_no_summary(file, error.strerror or str(error))) from error
    except ValidationError as error:
        raise ConfigError(_no_summary(file, say_problem(error.errors()[0]))) from error
    except ValueError as error:  # not UTF-8, not JSON, or a key twice
        raise ConfigError(_no_summary(file, str(error))) from error
    return found.model_dump()


def render_csv(document: Document) -> str:
    """One row a model; latencies in columns of their own, as far as any model has them."""
    timed = sorted(
        {name for model in document["models"] for name in (model["result"] or {}).get("latency_ms", {})}
    )
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*_COLUMNS, *(f"latency_{name}_ms" for name in timed)])
    for model in document["models"]:
        result = model["result"] or {}
        counts = {f"{kind}_count": len(result[f"{kind}s"]) if result else None for kind in ("pin", "warning")}
        values = {**result, **model, **counts}
        latencies = result.get("latency_ms", {})
        writer.writerow(
            [*(values.get(column) for column in _COLUMNS), *(latencies.get(name) for name in timed)]
        )
    return out.getvalue()


def render_html(document: Document) -> str:
    """One file without scripts, links to each model's report."""
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["number"] = _say_number
    environment.filters["plural"] = say_plural
    environment.filters["decibels"] = say_decibels
    environment.filters["percent"] = say_share
    template = resources.files(__package__).joinpath("zoo-report.html.j2").read_text(encoding="utf-8")
    return environment.from_string(template).render(zoo=document)


def _describe(outcome: ZooOutcome, folder: Path) -> Document:
    report, log = outcome.folder / _REPORT, outcome.folder / LOG_FILE
    return {
        "name": outcome.name,
        "model": str(outcome.model),
        "outcome": outcome.kind,
        "passed": outcome.passed,
        "message": outcome.message,
        "exit_code": outcome.exit_code,
        "versions": outcome.basis.versions,
        "content_sha256": outcome.basis.content,
        "report": _link(report, folder) if outcome.result is not None and is_there(report) else None,
        "log": _link(log, folder) if is_there(log) else None,
        "attempts": outcome.attempts,
        "seconds": encode_number(outcome.seconds),
        "peak_memory_bytes": outcome.peak_memory_bytes,
        "result": None if outcome.result is None else _describe_result(outcome.result, folder),
    }


def _describe_result(result: ZooResult, folder: Path) -> Document:
    found: Document = parse_json(result.model_dump_json())
    return {**found, "artifact": _link(result.artifact, folder)}


def _link(path: Path, folder: Path) -> str:
    """Relative to the folder, so that both can be moved together."""
    return Path(os.path.relpath(path.resolve(), folder.resolve())).as_posix()


def _compare_pins(name: str, before: Document, now: Document) -> Document | None:
    pins = [set((model["result"] or {}).get("pins", ())) for model in (before, now)]
    if before["result"] is None or now["result"] is None or pins[0] == pins[1]:
        return None
    return {"name": name, "added": sorted(pins[1] - pins[0]), "removed": sorted(pins[0] - pins[1])}


def _has_other_content(before: Document, now: Document) -> bool:
    """Whether model or data differ, as far as each was read."""
    hashes = [model["content_sha256"] for model in (before, now)]
    return all(hashes) and hashes[0] != hashes[1]


def _compare_versions(
    before: Mapping[str, Document], now: Mapping[str, Document], names: Sequence[str]
) -> Document:
    """Of each library, the versions before and now, where they differ for any model."""
    changed: dict[str, list[str | None]] = {}
    for name in names:
        for library in sorted({*before[name]["versions"], *now[name]["versions"]}):
            pair = [model["versions"].get(library) for model in (before[name], now[name])]
            if pair[0] != pair[1]:
                changed.setdefault(library, pair)
    return changed


def _no_summary(file: Path, reason: str) -> str:
    return (
        f"{file} is no summary of a zoo: {reason}. Expected the zoo-report.json of an earlier run, or its folder. Check the "
        "path given to --compare."
    )


def _say_number(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value:.3g}" if isinstance(value, float) else str(value)
