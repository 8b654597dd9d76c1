"""Networks that others designed, with random weights: nothing in the package is tuned on them.

The table needs none of the libraries that its rows are made with; `build` does (see ../requirements-networks.txt).
"""

from __future__ import annotations

from benchmarks.model import BenchmarkModel
from benchmarks.networks.images import IMAGES
from benchmarks.networks.quantized import QUANTIZED
from benchmarks.networks.sequences import SEQUENCES
from benchmarks.networks.written import WRITTEN

NETWORKS: dict[str, BenchmarkModel] = {**IMAGES, **SEQUENCES, **WRITTEN, **QUANTIZED}
"""By the names under which docs/scan.md lists them."""
