"""A zoo fixed on this machine or a cluster: what is finished is taken, the rest is run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from overflow_fixer.config import FixConfig
from overflow_fixer.zoo.entries import ZooEntry
from overflow_fixer.zoo.machine import describe_machine
from overflow_fixer.zoo.outcomes import ZooOutcome, find_current
from overflow_fixer.zoo.places import check_apart
from overflow_fixer.zoo.pool import Host, Pool, Work

Watch = Callable[[Sequence[Work]], None]
"""Called a few times a second with the models that run."""


def watch_nothing(running: Sequence[Work]) -> None:
    """Tell nobody."""


def fix_zoo(
    configs: Iterable[ZooEntry | FixConfig],
    host: Host | None = None,
    watch: Watch = watch_nothing,
    *,
    force: bool = False,
) -> Iterator[ZooOutcome]:
    """Fix each model in a process of its own, and give its outcome as soon as it is there; never raises for a model.

    First come the outcomes of models that an earlier run finished, if nothing they rest on changed since (`force`: all
    are run again). `host` is what runs them: describe_machine(...), the default, or open_ray(...). A FixConfig goes by its
    model's stem. Results lie in each config's folder, and stay when the iteration is left: the next one goes on. Raises
    ConfigError where results would not be apart: see places.check_apart.
    """
    entries = [one if isinstance(one, ZooEntry) else ZooEntry(one.model.stem, one) for one in configs]
    check_apart(entries)
    host = host or describe_machine()
    versions = host.find_versions()
    waiting: list[ZooEntry] = []
    for entry in entries:
        found = None if force else find_current(entry, versions)
        if found is None:
            waiting.append(entry)
        else:
            yield found.model_copy(update={"is_earlier": True})
    pool = Pool(host, force)
    for outcome in pool.run(waiting):
        if outcome is not None:
            yield outcome
        watch(pool.running)
