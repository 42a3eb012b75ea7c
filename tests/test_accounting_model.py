"""The accounting against a model of a few lines: random interleavings of everything that can happen to one batch.

Redis stands aside, and every process is a call here: what matters is which transition comes after which.
`MODEL_EXAMPLES=500` looks longer.
"""

from __future__ import annotations

import os
from collections import Counter
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from django_job_batches import (
    BatchError,
    BatchFinished,
    batch_of,
    job_of,
    memory,
    outbox,
    queues,
    settling,
    transitions,
)
from django_job_batches.database import at_home
from django_job_batches.models import ENDED, Batch, BatchJob
from tests import jobs

EXAMPLES = int(os.environ.get("MODEL_EXAMPLES") or 12)
FAILED = {"result": None, "details": {"error_class": "E", "error_message": "", "traceback": ""}, "final": False}
SUCCEEDED = {"result": None, "has_result": False}


class Model:
    """What a batch is: states of its items, how many more may run, whether something was decided, and its run."""

    def __init__(self, retries: list[int], allowed: int) -> None:
        self.retries, self.allowed = retries, allowed
        self.start_over(range(len(retries)), "pending")

    def start_over(self, items: Any, state: str) -> None:
        self.state = {**getattr(self, "state", {}), **dict.fromkeys(items, state)}
        self.left = {item: self.retries[item] for item in self.state}
        self.failures, self.decided = 0, ""

    def end(self, item: int, state: str) -> None:
        self.state[item] = state
        if state in ("failed", "cancelled") and not self.decided:
            self.failures += 1
            if self.failures > self.allowed:
                self.decide("failed")

    def decide(self, decision: str) -> None:
        self.decided = decision
        self.state = {item: "cancelled" if state == "pending" else state for item, state in self.state.items()}

    @property
    def is_finished(self) -> bool:
        return not {"pending", "running"} & set(self.state.values())


class Machine(RuleBasedStateMachine):
    items = st.integers(0, 9)

    @initialize(retries=st.lists(st.integers(0, 1), min_size=1, max_size=4), allowed=st.integers(0, 2))
    def dispatch(self, retries: list[int], allowed: int) -> None:
        described = [job_of(jobs.succeed).options(retry=number) for number in retries]
        self.model = Model(list(retries), allowed)
        self.batch = batch_of(described, allow_failures=allowed, on_finish=jobs.succeed).dispatch()
        self.attempts: list[tuple[int, BatchJob, int]] = []

    def row(self, item: int) -> BatchJob:
        assume(item < len(self.model.state))
        row = self.batch.jobs.select_related("batch").get(role="item", position=item)
        return at_home(row, "default")

    @rule(item=items)
    def claim(self, item: int) -> None:
        """Whoever comes, for whatever attempt: at most one gets it."""
        row = self.row(item)
        could = self.model.state[item] == "pending"
        assert transitions.claim(row, row.attempts + 1, "") == could
        assert not transitions.claim(self.row(item), row.attempts, "")
        if could:
            self.model.state[item] = "running"
            self.attempts.append((item, row, row.attempts))

    @rule(number=st.integers(0, 50), report=st.sampled_from([SUCCEEDED, FAILED, settling.LOST]))
    def settle(self, number: int, report: dict[str, Any]) -> None:
        """An attempt ends, the newest or one that was given up long ago."""
        assume(self.attempts)
        item, row, attempt = self.attempts[number % len(self.attempts)]
        is_current = self.row(item).attempts == attempt and self.model.state[item] == "running"
        assert settling.settle(row, attempt, report) == is_current
        if not is_current:
            return
        if report is SUCCEEDED:
            self.model.end(item, "succeeded")
        elif self.model.left[item]:
            self.model.left[item] -= 1
            self.model.state[item] = "cancelled" if self.model.decided else "pending"
        else:
            self.model.end(item, "failed")

    @rule(item=items)
    def cancel_job(self, item: int) -> None:
        row = self.row(item)
        could = self.model.state[item] == "pending"
        assert row.cancel() == could
        if could:
            self.model.end(item, "cancelled")

    @rule()
    def cancel(self) -> None:
        could = not self.model.decided and not self.model.is_finished
        assert self.batch.cancel() == could
        if could:
            self.model.decide("cancelled")

    @rule(retries=st.integers(0, 1))
    def add(self, retries: int) -> None:
        item = len(self.model.state)
        assume(item < 8)
        described = [job_of(jobs.succeed).options(retry=retries)]
        if self.model.decided or self.model.is_finished:
            with pytest.raises(BatchFinished):
                self.batch.add(described)
            return
        self.batch.add(described)
        self.model.retries.append(retries)
        self.model.state[item], self.model.left[item] = "pending", retries

    @rule(item=st.none() | items)
    def retry(self, item: int | None) -> None:
        """A batch that has finished runs again, once its callback has ended."""
        callback = at_home(self.batch.jobs.select_related("batch").get(role="on_finish"), "default")
        if transitions.claim(callback, callback.attempts + 1, ""):
            settling.settle(callback, callback.attempts, SUCCEEDED)
        again = [i for i, state in self.model.state.items() if state in ("failed", "cancelled")]
        again = [i for i in again if item is None or i == item]
        wanted = None if item is None else self.batch.jobs.filter(role="item", position=item)
        self.batch.refresh_from_db()
        if not self.model.is_finished:
            with pytest.raises(BatchError):
                self.batch.retry(jobs=wanted)
            return
        assert self.batch.retry(jobs=wanted) == len(again)
        if again:
            left = sum(state == "failed" for i, state in self.model.state.items() if i not in again)
            self.model.start_over(again, "pending")
            self.model.failures = left

    @rule()
    def look_around(self) -> None:
        """What is in the outbox goes out, what was decided is swept: at any time, without any other effect."""
        outbox.catch_up("default", self.batch.pk)

    @invariant()
    def rows_and_counters_are_those_of_the_model(self) -> None:
        if not hasattr(self, "model"):
            return
        model, batch = self.model, Batch.objects.get(pk=self.batch.pk)
        rows = batch.jobs.filter(role="item").order_by("position").values_list("status", flat=True)
        shown = ["pending" if status in ("queued", "scheduled") else status for status in rows]
        assert shown == [model.state[item] for item in range(len(model.state))]
        number = Counter(model.state.values())
        ended = tuple(number[str(status)] for status in ENDED)
        assert tuple(batch.counts)[:5] == (len(model.state), number["pending"] + number["running"], *ended)
        assert batch.is_finished == model.is_finished
        if not model.is_finished:
            assert (batch.failed_at is not None, batch.cancelled_at is not None) == (
                model.decided == "failed", model.decided == "cancelled",
            )  # fmt: skip
        assert batch.jobs.get(role="on_finish").status == "held" or model.is_finished


@pytest.mark.vendors("postgresql")
def test_any_interleaving(live_db: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queues, "enqueue", lambda name, works: None)
    monkeypatch.setattr(queues, "remove", lambda name, ids: None)
    monkeypatch.setattr(memory, "is_time_for", lambda what, seconds: False)
    examples = settings(
        max_examples=EXAMPLES,
        stateful_step_count=25,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        database=None,
    )
    run_state_machine_as_test(Machine, settings=examples)  # type: ignore[no-untyped-call]
