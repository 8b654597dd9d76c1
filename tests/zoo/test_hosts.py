"""What a zoo relies on, the same on this machine and on a Ray cluster of several nodes; and what only a cluster can do.

The cluster is a real one: each node has a raylet and worker processes of its own.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import psutil
import pytest
from zoo_models import AddModel, make_entry, write_model

from overflow_fixer.config import ScanOptions
from overflow_fixer.errors import ConfigError
from overflow_fixer.zoo import pool as pool_module
from overflow_fixer.zoo import ray_cluster
from overflow_fixer.zoo.entries import ZooEntry
from overflow_fixer.zoo.errands import Errand, run_errand
from overflow_fixer.zoo.fixing import fix_zoo
from overflow_fixer.zoo.machine import Machine
from overflow_fixer.zoo.outcomes import ZooOutcome, load_outcome
from overflow_fixer.zoo.pool import Host, Pool
from overflow_fixer.zoo.ray_cluster import RayCluster
from overflow_fixer.zoo.ray_connection import open_ray
from overflow_fixer.zoo.ray_nodes import Ask, share_cpus
from overflow_fixer.zoo.worker import PROGRESS_FILE

pytestmark = pytest.mark.alone

MACHINE = Machine(workers=3, threads=1, memory_gib=8.0)
_SYSTEM = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 500,
    "health_check_failure_threshold": 2,
    "worker_niceness": 0,
}
_NODE = {"num_cpus": 2, "memory": 8 << 30, "object_store_memory": 80 << 20}


@pytest.fixture(scope="module")
def nodes() -> Iterator[Any]:
    """A head and one more node."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    from ray.cluster_utils import Cluster

    head = {**_NODE, "include_dashboard": False, "_system_config": _SYSTEM}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    cluster.add_node(**_NODE, num_gpus=1)
    yield cluster
    cluster.shutdown()


@pytest.fixture(scope="module")
def cluster(nodes: Any) -> Iterator[RayCluster]:
    with open_ray(nodes.address) as found:
        yield found


@pytest.fixture(params=["machine", "ray"])
def host(request: pytest.FixtureRequest) -> Host:
    return MACHINE if request.param == "machine" else request.getfixturevalue("cluster")


def _run(host: Host, *entries: ZooEntry, force: bool = False) -> dict[str, ZooOutcome]:
    return {found.name: found for found in Pool(host, force).run(entries) if found is not None}


def test_good_and_broken_models_each_have_their_outcome(host: Host, add_model: AddModel) -> None:
    good = make_entry(add_model("good"))
    torn = make_entry(add_model("torn", lambda content: content[: len(content) // 2]))
    foreign = make_entry(add_model("foreign", lambda content: b"not a model"))
    dataless = make_entry(add_model("dataless"))
    Path(dataless.config.calib).write_bytes(b"not an npz file")
    outcomes = _run(host, good, torn, foreign, dataless)
    assert {name: (found.kind, found.exit_code) for name, found in outcomes.items()} == {
        "good": ("fixed", 0),
        "torn": ("failed", 3),
        "foreign": ("failed", 3),
        "dataless": ("failed", 4),
    }
    assert all("Expected" in outcomes[name].message for name in ("torn", "foreign", "dataless"))
    result = outcomes["good"].result
    assert result is not None
    assert result.artifact.is_file()
    assert result.pins == ("Mul_b", "Mul_y")
    assert result.naive_mismatched
    assert (result.fixed_mismatched, result.fixed_snr_db > 30) == (0, True)
    assert (good.folder / "report.json").is_file()
    assert outcomes["good"].peak_memory_bytes > 10_000_000
    for entry in (good, torn, foreign, dataless):
        kept, found = load_outcome(entry), outcomes[entry.name]
        assert kept is not None, entry.name
        assert kept.model_dump_json() == found.model_dump_json()  # NaN is not itself


def test_a_hanging_model_is_ended_and_the_rest_goes_on(
    host: Host, add_model: AddModel, endless: Path
) -> None:
    hanging = replace(make_entry(endless), timeout_minutes=0.2)
    outcomes = _run(host, hanging, make_entry(add_model("good")))
    assert (outcomes["endless"].kind, outcomes["endless"].exit_code) == ("timed_out", None)
    assert "after 0.2 minutes" in outcomes["endless"].message
    assert 'File "' in (outcomes["endless"].folder / "log.txt").read_text()
    assert outcomes["good"].passed
    assert not _workers(endless.parent)


def test_a_model_over_its_memory_is_ended(host: Host, add_model: AddModel, greedy: Path) -> None:
    outcomes = _run(host, replace(make_entry(greedy), memory_gib=0.5), make_entry(add_model("good")))
    assert outcomes["greedy"].kind == "out_of_memory"
    assert outcomes["greedy"].peak_memory_bytes > 2**29
    assert "more than 0.5 GiB" in outcomes["greedy"].message
    assert outcomes["good"].passed


def test_a_crash_is_tried_again(host: Host, endless: Path) -> None:
    pool, found = Pool(host), []
    for outcome in pool.run([make_entry(endless)]):
        _strike_worker(endless.parent, signal.SIGSEGV)
        found += [outcome] if outcome is not None else []
    assert [(one.kind, one.attempts) for one in found] == [("crashed", 2)]
    assert "SIGSEGV" in found[0].message


def test_no_process_outlives_a_pool_that_is_left(
    host: Host, endless: Path, add_model: AddModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_module, "_PATIENCE_SECONDS", 2.0)
    pool, entries = Pool(host), [make_entry(endless), make_entry(add_model("good"))]
    run: Iterator[ZooOutcome | None] = pool.run(entries)
    while not any(one.entry is entries[0] and one.read_progress() is not None for one in pool.running):
        next(run)
    assert any(one.seconds > 0 and one.peak_bytes > 10_000_000 for one in pool.running)
    run.close()  # type: ignore[attr-defined]
    _wait_for(lambda: not _workers(endless.parent), 5.0)  # a cluster cancels, and does not say when it did
    assert load_outcome(entries[0]) is None
    assert not list(endless.parent.rglob(".ray-*"))


def test_more_memory_than_there_is_runs_all_the_same(host: Host, add_model: AddModel) -> None:
    assert _run(host, replace(make_entry(add_model("m")), memory_gib=500.0))["m"].passed


def _workers(folder: Path) -> list[psutil.Process]:
    """The processes of models below a folder, wherever they run."""
    found = []
    for one in psutil.process_iter(["cmdline"]):
        line = " ".join(one.info["cmdline"] or ())
        if "overflow_fixer.zoo.worker" in line and str(folder) in line:
            found.append(one)
    return found


def _folder_of(worker: psutil.Process) -> Path:
    """As it was told when the process was found: one that has ended since tells nothing."""
    return Path(worker.info["cmdline"][-1])


def _strike_worker(folder: Path, number: int) -> None:
    """Send a signal to a model's process that has begun to work."""
    for one in _workers(folder):
        if (_folder_of(one) / PROGRESS_FILE).exists():
            with suppress(ProcessLookupError):
                os.kill(one.pid, number)


def _parents(process: psutil.Process) -> list[psutil.Process]:
    with suppress(psutil.NoSuchProcess):
        return list(process.parents())
    return []


def _kill_ray_worker(process: psutil.Process) -> bool:
    """Kill the Ray worker that a model's process belongs to; whether it was there to be killed."""
    with suppress(psutil.NoSuchProcess):
        for one in process.parents()[:1]:
            if " ".join(one.cmdline()).startswith("ray::"):
                one.kill()
                return True
    return False


def _tell(outcomes: dict[str, ZooOutcome]) -> dict[str, Any]:
    """Outcomes and the models that were built, without what is measured in seconds or bytes of memory."""
    told: dict[str, Any] = {}
    for name, outcome in sorted(outcomes.items()):
        document = json.loads(outcome.model_dump_json(exclude={"seconds", "peak_memory_bytes", "is_earlier"}))
        if document["result"] is not None:
            del document["result"]["stage_seconds"]
            document["bytes"] = Path(document["result"]["artifact"]).read_bytes()
        told[name] = document
    return told


def _run_here(*entries: ZooEntry) -> dict[str, Any]:
    """What this machine comes to; the results are removed."""
    told = _tell(_run(MACHINE, *entries))
    for entry in entries:
        shutil.rmtree(entry.folder)
    return told


@pytest.fixture
def entries(tmp_path: Path) -> list[ZooEntry]:
    """Four models, one of them torn."""
    paths = [write_model(tmp_path, f"m{i}", (lambda data: data[:40]) if i == 2 else None) for i in range(4)]
    return [make_entry(path) for path in paths]


def _fix_while(
    host: Host, entries: list[ZooEntry], strike: Callable[[], bool]
) -> tuple[dict[str, ZooOutcome], bool]:
    """All outcomes, each of which must come once, while `strike` is called until it says that it struck."""
    struck, found = False, []

    def watch(running: Any) -> None:
        nonlocal struck
        struck = struck or strike()

    for outcome in fix_zoo(entries, host, watch):
        found.append(outcome)
    assert len(found) == len({outcome.name for outcome in found}) == len(entries)
    return {outcome.name: outcome for outcome in found}, struck


def test_a_model_whose_ray_worker_was_killed_runs_again(
    cluster: RayCluster, entries: list[ZooEntry], tmp_path: Path
) -> None:
    here = _run_here(*entries)

    def kill_ray_worker() -> bool:
        return any(_kill_ray_worker(one) for one in _workers(tmp_path))

    found, struck = _fix_while(cluster, entries, kill_ray_worker)
    assert struck
    assert _tell(found) == here
    assert sum(cluster.losses.values()) >= 1
    assert all(outcome.is_earlier for outcome in fix_zoo(entries, MACHINE))


def test_models_of_a_node_that_was_lost_run_elsewhere(
    nodes: Any, cluster: RayCluster, entries: list[ZooEntry], tmp_path: Path
) -> None:
    here = _run_here(*entries)
    with ExitStack() as others:
        others.enter_context(_busy(nodes, cluster))
        lost = nodes.add_node(**_NODE)
        raylet = lost.all_processes["raylet"][0].process.pid

        def kill_raylet() -> bool:
            if not any(raylet in [parent.pid for parent in _parents(one)] for one in _workers(tmp_path)):
                return False
            nodes.remove_node(lost, allow_graceful=False)
            others.close()
            return True

        found, struck = _fix_while(cluster, entries, kill_raylet)
    assert struck
    assert _tell(found) == here
    assert all(outcome.is_earlier for outcome in fix_zoo(entries, cluster))


def test_a_kill_is_told_of_late_since_a_node_that_is_lost_kills_its_models_first(
    cluster: RayCluster, endless: Path
) -> None:
    entry = make_entry(endless)
    token = endless.parent / "token"
    token.touch()
    errand = Errand("key", entry, 1, 1, None, False, Path.cwd(), token, ())
    with ThreadPoolExecutor(max_workers=1) as beside:
        delivery = beside.submit(run_errand, errand, cluster.board, [])
        _wait_for((entry.folder / PROGRESS_FILE).exists)
        _strike_worker(endless.parent, signal.SIGKILL)
        with pytest.raises(FutureTimeoutError):
            delivery.result(timeout=1.0)
    outcome = delivery.result().outcome
    assert outcome is not None
    assert outcome.kind == "out_of_memory"


@contextmanager
def _busy(nodes: Any, cluster: RayCluster) -> Iterator[None]:
    """The cluster with no CPU but those of nodes that come later."""
    ray = cluster.ray

    class Holder:
        def hold(self) -> None: ...

    count = len(nodes.list_all_nodes())
    holders = [ray.remote(num_cpus=_NODE["num_cpus"])(Holder).remote() for _ in range(count)]
    ray.get([one.hold.remote() for one in holders])
    try:
        yield
    finally:
        for one in holders:
            ray.kill(one)


def _start_blind_node(nodes: Any, hidden: Path) -> subprocess.Popen[bytes]:
    """A node that sees nothing of a folder: an empty one lies over it."""
    ray = str(Path(sys.executable).with_name("ray"))
    options = f"--address={nodes.address} --num-cpus=2 --memory={8 << 30} --object-store-memory={80 << 20}"
    command = f"mount -t tmpfs none {hidden} && exec {ray} start {options} --block --disable-usage-stats"
    return subprocess.Popen(
        ["unshare", "--mount", "sh", "-c", command],
        cwd="/",
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


@contextmanager
def _only_blind(nodes: Any, cluster: RayCluster, hidden: Path) -> Iterator[None]:
    """The cluster with no CPU but those of a node that does not see a folder."""
    before = {node["NodeID"] for node in cluster.ray.nodes()}
    with _busy(nodes, cluster):
        process = _start_blind_node(nodes, hidden)
        try:
            while not any(node["NodeID"] not in before and node["Alive"] for node in cluster.ray.nodes()):
                assert process.poll() is None
                time.sleep(0.1)
            yield
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@pytest.mark.skipif(
    subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode != 0,
    reason="a node that does not see the folder needs a mount namespace, which this system does not permit",
)
def test_without_a_shared_path_files_travel_and_come_back(
    nodes: Any, cluster: RayCluster, entries: list[ZooEntry], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = [entries[0], entries[2], _make_entry_of_all_kinds(tmp_path, monkeypatch)]
    here = _tell(_run(MACHINE, *entries))
    kept = {entry.name: _read_stable(entry.folder) for entry in entries}
    for entry in entries:
        shutil.rmtree(entry.folder)
    assert not cluster.sends_files
    with _only_blind(nodes, cluster, tmp_path):
        found = {outcome.name: outcome for outcome in fix_zoo(entries, cluster)}
        assert cluster.sends_files
        assert _tell(found) == here
        assert {entry.name: _read_stable(entry.folder) for entry in entries} == kept
        assert not [path for path in tmp_path.rglob("*") if b"/fix-fp16-" in _read(path)]
        assert all(outcome.is_earlier for outcome in fix_zoo(entries, cluster))
        _check_that_a_stopped_scan_comes_back(cluster, tmp_path)
    assert all(outcome.is_earlier for outcome in fix_zoo(entries, MACHINE))


def _make_entry_of_all_kinds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ZooEntry:
    """Paths relative to the working folder, weights in a file beside the model, data in a folder."""
    monkeypatch.chdir(tmp_path)
    model = write_model(tmp_path / "all", "kinds")
    document = onnx.load(model)
    onnx.save(document, model, save_as_external_data=True, location="weights.bin", size_threshold=0)
    Path("all/data").mkdir()
    model.with_suffix(".npz").rename("all/data/0.npz")
    entry = make_entry(Path("all/kinds.onnx"))
    return replace(entry, config=entry.config.model_copy(update={"calib": Path("all/data")}))


def _read(path: Path) -> bytes:
    return path.read_bytes() if path.is_file() else b""


def _read_stable(folder: Path) -> dict[str, Any]:
    """The names of the files, and what is in those that hold nothing that is measured."""
    names = {path.name for path in folder.iterdir() if path.suffix != ".lock"}
    if not (folder / "report.json").exists():
        return {"names": names}
    report = json.loads((folder / "report.json").read_text())
    told = {key: report[key] for key in ("model", "calibration") if key in report}
    return {"names": names, "plan": _read(folder / "plan.json"), **told}


def _write_long(folder: Path, name: str = "long", batches: int = 200_000) -> Path:
    """A model with data of many batches, whose scan takes its time and can be stopped after any of them."""
    model = write_model(folder, name)
    rng = np.random.default_rng(0)
    np.savez(model.with_suffix(".npz"), x=rng.uniform(1, 4, (batches, 8)).astype(np.float32))
    return model


def _check_that_a_stopped_scan_comes_back(cluster: RayCluster, tmp_path: Path) -> None:
    pool, entry = Pool(cluster), make_entry(_write_long(tmp_path / "long"))
    run: Iterator[ZooOutcome | None] = pool.run([entry])
    while not any((one.read_progress() or ("",))[0] == "scan" for one in pool.running):
        next(run)
    run.close()  # type: ignore[attr-defined]
    assert not _workers(tmp_path)
    assert (entry.folder / "log.txt").is_file()
    assert (entry.folder / "ranges.h5").is_file()


def test_a_model_that_uses_a_gpu_has_it_for_itself(cluster: RayCluster, tmp_path: Path) -> None:
    """The cluster's one GPU is but declared: what is looked at is what processes are told of it."""
    entries = [make_entry(_write_long(tmp_path / name, name, 1500)) for name in ("a", "b", "typed")]
    on_gpu = ScanOptions.model_validate({"provider": "cuda"})
    for index in (0, 1):
        config = entries[index].config.model_copy(update={"scan": on_gpu})
        entries[index] = replace(entries[index], config=config)
    seen, most = set(), 0
    for _ in Pool(cluster).run(entries):
        visible = {_folder_of(one).name: _visible_gpus(one) for one in _workers(tmp_path)}
        most = max(most, list(visible.values()).count("0"))
        seen |= set(visible.items())
    assert {("a", "0"), ("b", "0"), ("typed", os.environ.get("CUDA_VISIBLE_DEVICES"))} <= seen
    assert most == 1


def _visible_gpus(process: psutil.Process) -> str | None:
    with suppress(psutil.Error):
        return process.environ().get("CUDA_VISIBLE_DEVICES")
    return None


def _start_command(zoo: Path, out: Path, *options: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "overflow_fixer", "zoo", str(zoo), "--out", str(out), *options]
    return subprocess.Popen(command, stderr=subprocess.PIPE)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_command_that_is_ended_leaves_nothing_running(
    nodes: Any, cluster: RayCluster, tmp_path: Path, number: int
) -> None:
    _write_long(tmp_path / "zoo")
    with _start_command(tmp_path / "zoo", tmp_path / "out", "--ray-address", nodes.address) as command:
        try:
            _wait_for(lambda: bool(_workers(tmp_path)))
        finally:
            command.send_signal(number)
        assert command.wait() == (130 if number == signal.SIGTERM else -number)
    _wait_for(lambda: not _workers(tmp_path))


def test_a_command_tells_what_it_does_on_a_cluster_of_its_own(
    entries: list[ZooEntry], tmp_path: Path
) -> None:
    command = _start_command(entries[0].config.model.parent, tmp_path / "cli", "--ray", "--workers", "2")
    _, said = command.communicate()
    assert command.returncode == 1, said.decode()
    told = re.findall(r"^\[\d/4\] m\d: (\w+)", said.decode(), re.MULTILINE)
    assert sorted(told) == ["failed", "fixed", "fixed", "fixed"], said.decode()


def _wait_for(condition: Callable[[], bool], seconds: float = 240.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_another_version_of_ray_is_refused_in_one_paragraph(nodes: Any, tmp_path: Path) -> None:
    write_model(tmp_path / "zoo", "m")
    code = f"""
import sys, ray
ray.__version__ = "1.0.0"
from overflow_fixer.cli import main
main(["zoo", {str(tmp_path / "zoo")!r}, "--ray-address", {nodes.address!r}])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 2
    assert "Version mismatch" in done.stderr
    assert "Nothing was run." in done.stderr
    assert done.stderr.count("\n") == 1


def test_without_ray_it_is_said_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"pip install '\.\[ray\]'"), open_ray():
        pass


def test_models_that_no_node_can_run_any_more_end_the_zoo(
    cluster: RayCluster, add_model: AddModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_cluster, "_NODE_PATIENCE_SECONDS", 1.0)
    gone = replace_cluster(cluster, Ask(cpus=64, gpus=0, memory_bytes=1 << 30))
    with pytest.raises(ConfigError, match=r"had no node for .* minutes .*: 64 CPUs, 0 GPUs and 1.0 GiB"):
        _run(gone, make_entry(add_model("m")))


def replace_cluster(cluster: RayCluster, largest: Ask) -> RayCluster:
    """The cluster as it is after a larger node was lost."""
    larger = replace(cluster, threads=largest.cpus)
    larger.set_nodes([largest])
    return larger


def test_a_model_that_is_lost_every_time_has_an_outcome_that_is_not_taken_for_finished(
    cluster: RayCluster, add_model: AddModel
) -> None:
    entry = replace(make_entry(add_model("m")), retries=0)

    def kill() -> bool:
        for one in _workers(entry.config.model.parent):
            _kill_ray_worker(one)
        return False

    (found,) = _fix_while(cluster, [entry], kill)[0].values()
    assert (found.kind, found.exit_code) == ("crashed", None)
    assert "lost 4 times" in found.message
    assert [outcome.is_earlier for outcome in fix_zoo([entry], MACHINE)] == [False]


@pytest.mark.parametrize(
    ("cpus", "workers", "threads"),
    [((16,), 2, 8), ((16, 16), 3, 8), ((16, 16), 2, 16), ((4, 2), 0, 1), ((2,), 9, 1), ((8, 3), 4, 2)],
)
def test_cpus_are_shared_out_among_the_workers(cpus: tuple[int, ...], workers: int, threads: int) -> None:
    assert share_cpus([Ask(count, 0, 0) for count in cpus], workers) == threads
