"""What happens to processes and servers while batches run."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from redis import RedisError

from tests.chaos.servers import restart
from tests.processes import WorkerProcess

if TYPE_CHECKING:
    from tests.chaos.world import World

Fault = Callable[["World", random.Random], bool]
"""Does something; False if there was nothing to do it to."""


def _send(pid: int, number: int) -> bool:
    with suppress(ProcessLookupError):
        os.kill(pid, number)
        return True
    return False


def _worker(world: World, rng: random.Random) -> WorkerProcess | None:
    alive = [worker for worker in world.workers if worker.is_alive]
    return rng.choice(alive) if alive else None


def kill_horse(world: World, rng: random.Random) -> bool:
    pids = [pid for worker in world.workers for pid in worker.horses()]
    return bool(pids) and _send(rng.choice(pids), signal.SIGKILL)


def kill_worker_alone(world: World, rng: random.Random) -> bool:
    """One with a horse, if there is any: that goes on."""
    at_work = [worker for worker in world.workers if worker.is_alive and worker.horses()]
    worker = rng.choice(at_work) if at_work else _worker(world, rng)
    return worker is not None and _send(worker.pid, signal.SIGKILL)


def kill_worker_and_horse(world: World, rng: random.Random) -> bool:
    worker = _worker(world, rng)
    if worker is None:
        return False
    worker.kill_all()
    return True


def stop_worker(world: World, rng: random.Random) -> bool:
    """Warm: SIGTERM, as a deployment does."""
    worker = _worker(world, rng)
    return worker is not None and _send(worker.pid, signal.SIGTERM)


def stop_worker_now(world: World, rng: random.Random) -> bool:
    """Cold: a second SIGTERM after more than a second."""
    worker = _worker(world, rng)
    if worker is None:
        return False
    _send(worker.pid, signal.SIGTERM)
    time.sleep(1.1)
    _send(worker.pid, signal.SIGTERM)
    return True


def freeze(world: World, rng: random.Random) -> bool:
    """A worker, a horse or the dispatcher sleeps until everybody takes it for dead."""
    pids = [world.dispatcher_pid, *(worker.pid for worker in world.workers if worker.is_alive)]
    pids += [pid for worker in world.workers for pid in worker.horses()]
    pid = rng.choice([pid for pid in pids if pid] or [0])
    if not pid or not _send(pid, signal.SIGSTOP):
        return False
    world.later(rng.uniform(4, 9), lambda: _send(pid, signal.SIGCONT) and None)
    return True


def kill_dispatcher(world: World, rng: random.Random) -> bool:
    return bool(world.dispatcher_pid) and _send(world.dispatcher_pid, signal.SIGKILL)


def cut_redis_clients(world: World, rng: random.Random) -> bool:
    with suppress(RedisError):
        world.redis_client().client_kill_filter(_type="normal", skipme=True)
        return True
    return False


def restart_redis(world: World, rng: random.Random) -> bool:
    restart(world.redis, rng.choice([signal.SIGTERM, signal.SIGKILL]), rng.random() * 2)
    return True


def restart_redis_without_its_data(world: World, rng: random.Random) -> bool:
    world.redis.stop(signal.SIGKILL)
    world.redis.forget()
    world.redis.start()
    return True


def flush_redis(world: World, rng: random.Random) -> bool:
    with suppress(RedisError):
        world.redis_client().flushall()
        return True
    return False


def cut_database_connections(world: World, rng: random.Random) -> bool:
    return world.cut_database_connections()


def restart_database(world: World, rng: random.Random) -> bool:
    if world.database is None:
        return False
    restart(world.database, signal.SIGTERM, rng.random())
    return True


def crash_database(world: World, rng: random.Random) -> bool:
    if world.database is None:
        return False
    restart(world.database, signal.SIGKILL, rng.random())
    return True


FAULTS: list[tuple[float, Fault]] = [
    (20, kill_horse),
    (8, kill_worker_alone),
    (8, kill_worker_and_horse),
    (4, stop_worker),
    (3, stop_worker_now),
    (10, freeze),
    (4, kill_dispatcher),
    (8, cut_redis_clients),
    (2, restart_redis),
    (1, restart_redis_without_its_data),
    (2, flush_redis),
    (12, cut_database_connections),
    (2, restart_database),
    (2, crash_database),
]
