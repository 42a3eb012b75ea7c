"""The tests' own tools, with plain RQ jobs: a tool that is broken makes tests that cannot fail."""

from __future__ import annotations

import django_rq
import pytest
from django.contrib.auth.models import Permission, User
from django.db import connections, transaction
from redis.exceptions import ConnectionError
from rq.job import JobStatus

from tests import jobs
from tests.models import Effect
from tests.processes import is_running


def is_running_for_long(pid: int, wait_until) -> bool:
    try:
        wait_until(lambda: not is_running(pid), timeout=5)
    except TimeoutError:
        return True
    return False


@pytest.mark.parametrize("simple", [False, True], ids=["forking", "simple"])
def test_drain_runs_what_is_enqueued_and_returns_the_log(drain, record, simple):
    queue = django_rq.get_queue()
    for n in range(3):
        queue.enqueue(jobs.succeed, n)
    log = drain(simple=simple)
    assert record.lines() == ["succeed 0", "succeed 1", "succeed 2"]
    assert log.count("Job OK") == 3
    assert not queue.count


def test_drain_takes_the_queues_that_it_is_told(drain, record):
    for name in ("low", "high", "default"):
        django_rq.get_queue(name).enqueue(jobs.record_args, name)
    drain(queues=("high", "low"))
    assert record.lines() == ["record_args ('high',) {}", "record_args ('low',) {}"]


@pytest.mark.parametrize("alias", ["default", "other"])
def test_workers_see_the_databases_of_the_test(drain, alias):
    user = User.objects.using(alias).create(username="someone")
    django_rq.get_queue().enqueue(delete_user, user.pk, alias)
    drain()
    assert not User.objects.using(alias).exists()


def delete_user(pk: int, alias: str) -> None:
    User.objects.using(alias).get(pk=pk).delete()


@pytest.mark.parametrize("alias", ["default", "other"])
@pytest.mark.parametrize("turn", [1, 2])
def test_each_test_finds_empty_databases_but_for_permissions(live_db, redis, alias, turn):
    assert not User.objects.using(alias).exists()
    assert not Effect.objects.using(alias).exists()
    assert Permission.objects.using(alias).exists()
    assert not redis.keys()
    User.objects.using(alias).create(username="left for the next test")
    Effect.objects.using(alias).create(name="left for the next test")
    redis.set("left", "for the next test")


def test_each_database_is_of_the_engine_that_was_asked_for(live_db, settings):
    vendors = {"sqlite": "sqlite", "postgresql": "postgresql", "mariadb": "mysql"}
    assert {connection.vendor for connection in connections.all()} == {vendors[settings.TEST_DATABASE]}
    names = {str(connection.settings_dict["NAME"]) for connection in connections.all()}
    assert len(names) == 2
    assert all(settings.DATABASE_NAME in name for name in names)


@pytest.mark.vendors("postgresql", "mariadb")
def test_the_isolation_level_is_the_one_asked_for(live_db, settings):
    query = {
        "postgresql": "SELECT setting FROM pg_settings WHERE name = 'transaction_isolation'",
        "mariadb": (
            "SELECT LOWER(REPLACE(variable_value, '-', ' ')) FROM information_schema.session_variables"
            " WHERE variable_name IN ('tx_isolation', 'transaction_isolation')"
        ),
    }[settings.TEST_DATABASE]
    with transaction.atomic(), connections["default"].cursor() as cursor:
        cursor.execute(query)
        assert cursor.fetchone() == (settings.ISOLATION,)


def test_a_horse_can_be_killed_alone(workers, record, wait_until):
    job = django_rq.get_queue().enqueue(jobs.sleep, 60)
    (worker,) = workers()
    wait_until(lambda: record.count("sleep begins"))
    horse = worker.kill_horse()
    wait_until(lambda: job.get_status() == JobStatus.FAILED)
    assert horse != worker.pid
    assert worker.is_alive
    assert record.count("sleep ends") == 0


def test_a_worker_can_be_killed_alone_and_its_horse_goes_on(workers, record, wait_until):
    django_rq.get_queue().enqueue(jobs.sleep, 1)
    (worker,) = workers()
    horse = worker.horse_pid()
    worker.kill()
    assert not worker.is_alive
    assert is_running(horse)
    wait_until(lambda: record.count("sleep ends"))


def test_worker_and_horse_can_be_killed_together(workers, record, wait_until):
    django_rq.get_queue().enqueue(jobs.sleep, 60)
    (worker,) = workers()
    horse = worker.horse_pid()
    worker.kill_all()
    assert not is_running_for_long(horse, wait_until)
    assert record.count("sleep ends") == 0


def test_nothing_outlives_the_end_of_a_worker(workers, wait_until):
    django_rq.get_queue().enqueue(jobs.sleep, 60)
    (worker,) = workers(scheduler=True)
    horse = worker.horse_pid()
    processes = worker._session()
    worker.end()
    assert {worker.pid, horse} < set(processes)
    assert not any(is_running_for_long(pid, wait_until) for pid in processes)


def test_a_worker_stops_after_its_job(workers, record, wait_until):
    django_rq.get_queue().enqueue(jobs.sleep, 1)
    (worker,) = workers(simple=True)
    wait_until(lambda: record.count("sleep begins"))
    assert worker.stop() == 0
    assert record.count("sleep ends") == 1


def test_a_worker_that_does_not_start_shows_why(workers):
    with pytest.raises(AssertionError, match="no_such_module"):
        workers(env={"DJANGO_SETTINGS_MODULE": "no_such_module"})


def test_a_job_that_dies_does_not_stop_the_drain(drain, record):
    queue = django_rq.get_queue()
    queue.enqueue(jobs.kill_self)
    queue.enqueue(jobs.succeed)
    drain()
    assert record.lines() == ["kill_self", "succeed 0"]


def test_flaky_fails_as_often_as_it_is_told(record):
    outcomes = []
    for _ in range(3):
        try:
            outcomes.append(jobs.flaky("door", 2))
        except OSError:
            outcomes.append("failed")
    assert outcomes == ["failed", "failed", "door"]
    assert record.count("flaky door") == 3


def test_redis_can_be_down(redis, redis_down):
    redis.set("a", 1)
    with redis_down(), pytest.raises(ConnectionError):
        redis.ping()
    assert redis.ping()
    assert redis.get("a") is None


def test_waiting_ends_with_an_error_that_names_what_did_not_come(wait_until):
    with pytest.raises(TimeoutError, match="the moon is full"):
        wait_until(lambda: False, timeout=0.05, message="the moon is full")
    assert wait_until(lambda: 7) == 7
