"""kill -9 at random moments of real scans: what is stored is always whole, and nothing is lost that was stored."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from scan_cases import MemoryBatches
from ways_to_observe import assert_same_table

from overflow_fixer.graph.model import Graph
from overflow_fixer.ranges import collect_ranges, load_ranges

pytestmark = pytest.mark.alone

COUNT = 300
SCRIPT = f"""
import json, os, random, signal, sys, time
from pathlib import Path
sys.path.append(sys.argv[3])
import numpy as np
from scan_cases import MemoryBatches
from overflow_fixer.graph.model import load_graph
from overflow_fixer.ranges import collect, collect_ranges
from overflow_fixer.ranges.store import load_recording

collect.CHECKPOINT_SECONDS, collect._CHECKPOINT_SHARE = 0.0, 1e9  # most of the time is spent in writing
store, chance = Path(sys.argv[2]), random.Random(4)
data = MemoryBatches([{{"x": np.full((1, 2), i, np.float32)}} for i in range({COUNT})])
done, is_killed = [], True
while is_killed:
    child = os.fork()
    if child == 0:
        collect_ranges(load_graph(Path(sys.argv[1])), data, store=store)
        os._exit(0)
    time.sleep(chance.uniform(0, 0.2 + 0.05 * len(done)))
    os.kill(child, signal.SIGKILL)
    is_killed = os.WIFSIGNALED(os.waitpid(child, 0)[1])
    done.append(len(load_recording(store).batch_names) if store.exists() else 0)
print(json.dumps(done))
"""


@pytest.mark.skipif(os.name != "posix", reason="forks, and kills")
def test_a_scan_killed_again_and_again_comes_to_the_same_end(small_graph: Graph, tmp_path: Path) -> None:
    store = tmp_path / "out" / "ranges.h5"
    command = [sys.executable, "-c", SCRIPT, str(small_graph.path), str(store), str(Path(__file__).parent)]
    done = json.loads(subprocess.run(command, capture_output=True, check=True, text=True).stdout)
    assert len(done) > 3
    assert done == sorted(done)
    assert len(set(done[:-1]) - {0}) > 1
    data = MemoryBatches([{"x": np.full((1, 2), i, np.float32)} for i in range(COUNT)])
    assert_same_table(load_ranges(store), collect_ranges(small_graph, data))
