"""What a zoo of finished models costs, by their number: `python -m benchmarks.zoo_growth 10 100 1000 10000`.

Nothing is fixed: outcomes are written as if it had been, each with a hundred pins, then `fix-fp16 zoo` finds them all
finished and writes the summary. For a folder and for a zoo file with an entry a model: the process's own time on a
processor, and its peak memory; for the folder also with --compare, and the sizes of the summary's files.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx

from benchmarks.zoo import run_zoo
from overflow_fixer.zoo.entries import Zoo
from overflow_fixer.zoo.folder import read_folder
from overflow_fixer.zoo.outcomes import ZooOutcome, ZooResult, describe_basis, save_outcome

_MODEL = "g (float[N] x) => (float[N] y) { y = Relu (x) }"
_PINS = 100


def make_models(folder: Path, count: int) -> None:
    """As many models with data beside them, and a zoo file beside the folder that names each."""
    folder.mkdir()
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {_MODEL}').SerializeToString()
    np.savez(folder / "data.npz", x=np.ones(4, np.float32))
    data = (folder / "data.npz").read_bytes()
    (folder / "data.npz").unlink()
    entries = []
    for number in range(count):
        (folder / f"m{number:05}.onnx").write_bytes(model)
        (folder / f"m{number:05}.npz").write_bytes(data)
        entries.append(
            f'[[model]]\npath = "{folder.name}/m{number:05}.onnx"\ncalib = "{folder.name}/m{number:05}.npz"\n'
        )
    folder.with_suffix(".toml").write_text("\n".join(entries))


def finish(zoo: Zoo) -> None:
    """An outcome for each model, with the files that a finished one has."""
    for entry in zoo.entries:
        entry.folder.mkdir(parents=True)
        artifact = entry.folder / f"{entry.name}.fp16.onnx"
        for path in (artifact, entry.folder / "report.html", entry.folder / "log.txt"):
            path.touch()
        result = ZooResult(
            backend="onnx",
            artifact=artifact,
            size_bytes=1_000_000,
            pins=tuple(f"/encoder/layer.{number}/attention/MatMul" for number in range(_PINS)),
            clamp_count=0,
            naive_snr_db=float("nan"),
            naive_mismatched=3,
            fixed_snr_db=61.5,
            fixed_mismatched=0,
            fp16_node_share=0.9,
            fp16_flops_share=0.99,
            latency_ms={},
            stage_seconds={"scan": 1.0, "plan": 0.1, "build": 0.2, "verify": 1.0},
        )
        outcome = ZooOutcome(
            name=entry.name,
            model=entry.config.model,
            folder=entry.folder,
            kind="fixed",
            message="Fixed: FP16 but for 100 nodes, verified on 4 batches.",
            basis=describe_basis(entry).model_copy(update={"content": "0" * 64}),
            exit_code=0,
            result=result,
        )
        save_outcome(outcome)


def measure(count: int) -> str:
    """One row of the table."""
    with tempfile.TemporaryDirectory() as root:
        models, out = Path(root) / "zoo", Path(root) / "out"
        make_models(models, count)
        finish(read_folder(models, out))
        _, folder_s, folder_bytes = run_zoo(models, out, 1)
        _, compared_s, compared_bytes = run_zoo(models, out, 1, "--compare", str(out))
        _, file_s, file_bytes = run_zoo(models.with_suffix(".toml"), out, 1)
        sizes = [(out / f"zoo-report{suffix}").stat().st_size for suffix in (".json", ".html", ".csv")]
    cells = [f"{count}", f"{folder_s:.2f}", f"{file_s:.2f}", f"{compared_s:.2f}"]
    cells += [f"{size / 1e6:.0f}" for size in (folder_bytes, file_bytes, compared_bytes)]
    cells += [f"{size / 1e6:.3f}" for size in sizes]
    return f"| {' | '.join(cells)} |"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("counts", type=int, nargs="+", help="numbers of models")
    options = parser.parse_args(arguments)
    print(
        "| models | folder (s) | zoo file (s) | with --compare (s) | folder (MB) | zoo file (MB) | with --compare (MB) | "
        "JSON (MB) | HTML (MB) | CSV (MB) |"
    )
    print("|---" * 10 + "|")
    for count in options.counts:
        print(measure(count), flush=True)


if __name__ == "__main__":
    main()
