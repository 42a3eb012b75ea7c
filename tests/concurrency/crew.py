"""Threads that do what workers would do: they take deliveries out of one queue, in random order, and run them.

Redis stands aside, so that the databases get all of the blows: a delivery is a call of `execution.run_job`.
"""

from __future__ import annotations

import itertools
import random
import threading
import time
import traceback
import uuid
from collections import Counter
from collections.abc import Callable
from functools import partial
from queue import PriorityQueue
from typing import Any

import pytest
from django.db import connections

from django_job_batches import execution, memory, outbox, queues
from django_job_batches.database import is_conflict
from tests.concurrency.bodies import BoomError

DOUBLES = 0.05
"""The share of deliveries that arrive twice."""
LOOKS = 0.02
"""How often a job that has ended looks for work that was left behind: many do at once."""


class Crew:
    """`size` threads, each with a database connection of its own.

    `jitter`: the share of statements after which a thread rests for a moment, within its transaction if it is in
    one, so that more of them are open at once. What went wrong is in `errors`; `conflicts` counts the deadlocks and
    the like that connections of the crew have seen, `finished` how often each batch was finished by a commit.
    """

    def __init__(self, size: int, *, jitter: float = 0.0) -> None:
        self.jitter = jitter
        self.errors: list[str] = []
        self.conflicts: Counter[str] = Counter()
        self.finished: Counter[uuid.UUID] = Counter()
        self._queue: PriorityQueue[tuple[float, int, Callable[[], Any] | None]] = PriorityQueue()
        self._number = itertools.count()
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._work, name=f"crew-{n}", daemon=True) for n in range(size)]

    def __enter__(self) -> Crew:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        for _ in self._threads:
            self._queue.put((2.0, next(self._number), None))
        for thread in self._threads:
            thread.join(60)

    def do(self, *actions: Callable[[], Any], at_once: bool = False) -> None:
        """Have each of these called by some thread; `at_once`: before everything else that waits."""
        for action in actions:
            priority = -1.0 if at_once else random.random()
            self._queue.put((priority, next(self._number), action))

    def deliver(self, name: str, works: list[queues.Work]) -> None:
        """What stands in for `queues.enqueue()`; some deliveries come twice."""
        for work in works:
            delivery = partial(execution.run_job, *work.args)
            self.do(*[delivery] * (2 if random.random() < DOUBLES else 1))

    def rest(self, timeout: float) -> None:
        """Wait until nothing is left to do. Raises TimeoutError, and AssertionError if something went wrong."""
        deadline = time.monotonic() + timeout
        with self._queue.all_tasks_done:
            while self._queue.unfinished_tasks:
                if not self._queue.all_tasks_done.wait(deadline - time.monotonic()):
                    raise TimeoutError(f"{self._queue.unfinished_tasks} deliveries are left: {self.errors[:3]}")
        assert not self.errors, f"{len(self.errors)} errors, the first: {self.errors[0]}"

    def follow_up(self, effects: Any, original: Callable[[Any], None]) -> None:
        """What a commit has finished is counted, then followed up."""
        with self._lock:
            self.finished.update(effects.finished)
        original(effects)

    def _work(self) -> None:
        connection = connections["default"]
        connection.execute_wrappers.append(self._watch)
        try:
            while (action := self._queue.get()[2]) is not None:
                self._try(action)
                self._queue.task_done()
            self._queue.task_done()
        finally:
            connection.execute_wrappers.remove(self._watch)
            connections.close_all()

    def _try(self, action: Callable[[], Any]) -> None:
        try:
            action()
        except BoomError:
            pass
        except BaseException:
            self.errors.append(traceback.format_exc())

    def _watch(self, execute: Callable[..., Any], sql: str, params: Any, many: bool, context: Any) -> Any:
        try:
            return execute(sql, params, many, context)
        except Exception as error:
            if is_conflict(error, context["connection"].vendor):
                with self._lock:
                    self.conflicts[f"{type(error).__name__}: {str(error).splitlines()[0]}: {sql[:160]}"] += 1
            raise
        finally:
            if random.random() < self.jitter:
                time.sleep(random.random() * 0.004)


def take_over(monkeypatch: pytest.MonkeyPatch, crew: Crew) -> None:
    """Have the crew do what RQ does, for as long as the patches stand."""
    monkeypatch.setattr(queues, "enqueue", crew.deliver)
    monkeypatch.setattr(queues, "alive", lambda name, ids: set())
    monkeypatch.setattr(queues, "remove", lambda name, ids: None)
    monkeypatch.setattr(queues, "runs_elsewhere", lambda: True)
    monkeypatch.setattr(queues, "is_in_worker", lambda: True)
    monkeypatch.setattr(memory, "is_time_for", lambda what, seconds: random.random() < LOOKS)
    monkeypatch.setattr(outbox, "_follow_up", partial(crew.follow_up, original=outbox._follow_up))
