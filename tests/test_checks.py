"""The system checks: each misconfiguration is found by its id, has a hint, and costs no connection."""

from __future__ import annotations

import re
import socket
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings as django_settings
from django.core.checks import run_checks
from django.db import connections

from django_job_batches import batch_of, checks, conf, job_of, queues
from tests import jobs
from tests.in_process import work

REDIS = {"UNIX_SOCKET_PATH": "/nowhere", "DB": 0}
DOCS = Path(__file__).resolve().parent.parent / "docs" / "checks.md"


@pytest.fixture(autouse=True)
def sane(settings: Any) -> None:
    settings.RQ_QUEUES = {"default": dict(REDIS), "high": dict(REDIS)}


def found() -> dict[str, str]:
    """The ids that the checks report, without their prefix, each with its message and hint."""
    messages = run_checks(tags=[checks.TAG])
    assert all(message.hint for message in messages)
    return {str(message.id).partition(".")[2]: f"{message.msg} {message.hint}" for message in messages}


def test_right_settings_are_not_complained_about():
    assert found() == {}


def test_every_setting_has_a_rule_that_its_default_keeps():
    assert checks.RULES.keys() == conf.SETTING_NAMES
    wrong = {key: getattr(conf.settings, key) for key, (is_right, _) in checks.RULES.items()}
    assert [key for key, value in wrong.items() if not checks.RULES[key][0](value)] == []


@pytest.mark.parametrize("value", [None, [], "QUEUE", 0])
def test_e001_not_a_dict(settings, value):
    settings.JOB_BATCHES = value
    assert list(found()) == ["E001"]


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("QEUE", "QUEUE"),
        ("queue", "QUEUE"),
        ("RESULTS_TTL", "RESULT_TTL"),
        ("DEADLOCK_RETRY", "DEADLOCK_RETRIES"),
        ("CHUNKSIZE", "CHUNK_SIZE"),
        ("MAX_LANE", "MAX_LANES"),
    ],
)
def test_e002_unknown_keys_are_told_from_what_was_meant(settings, key, meant):
    settings.JOB_BATCHES = {key: "x"}
    assert f"Did you mean {meant!r}?" in found()["E002"]


@pytest.mark.parametrize("key", ["ZZZ", 7, None, ("QUEUE",)])
def test_e002_unknown_keys_that_are_like_nothing(settings, key):
    settings.JOB_BATCHES = {key: "x"}
    assert "The settings are CALLBACK_QUEUE, " in found()["E002"]


@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("QUEUE", [None, "", 7, ["default"]]),
        ("CALLBACK_QUEUE", ["", 7]),
        ("TIMEOUT", [0, -2, 1.5, "60", True]),
        ("ON_LOST", ["ignore", None, True, "", ["fail"]]),
        ("DEADLOCK_RETRIES", [-1, 1.5, None, True]),
        ("DEADLOCK_BACKOFF", [-0.1, "0.05", None, float("nan"), float("inf"), True]),
        ("SETTLE_FOR", [-1, None, "60"]),
        ("RECONCILE_EVERY", [-1, None, "30"]),
        ("LOST_AFTER", [0, -1, None]),
        ("RESULT_TTL", [0, -2, None, 1.5, True, "3600"]),
        ("FAILURE_TTL", [0, -2, None, 1.5, True, "3600"]),
        ("CHUNK_SIZE", [0, -1, 10_001, 1.5, None, True]),
        ("MAX_LANES", [0, -1, 1_001, None]),
        ("MAX_ERROR_LENGTH", [0, None]),
        ("MAX_ARGUMENTS", [0, "1 MB", 1e6]),
    ],
)
def test_e003_wrong_values(settings, key, values):
    for value in values:
        settings.JOB_BATCHES = {key: value}
        assert f"JOB_BATCHES[{key!r}] is {value!r}." in found()["E003"]


def test_values_at_their_limits_are_not_complained_about(settings):
    settings.JOB_BATCHES = {
        "QUEUE": "high",
        "CALLBACK_QUEUE": "default",
        "TIMEOUT": -1,
        "ON_LOST": "retry",
        "DEADLOCK_RETRIES": 0,
        "DEADLOCK_BACKOFF": 0,
        "SETTLE_FOR": 0.5,
        "RECONCILE_EVERY": 0,
        "LOST_AFTER": 1,
        "RESULT_TTL": 2,
        "CHUNK_SIZE": 1,
        "MAX_LANES": 1,
    }
    assert found() == {}


def test_e004_django_rq_is_not_installed(settings):
    settings.INSTALLED_APPS = [app for app in settings.INSTALLED_APPS if app != "django_rq"]
    assert list(found()) == ["E004"]


@pytest.mark.parametrize("value", [None, {}, [], {"default": "redis://localhost"}])
def test_e005_no_queues(settings, value):
    settings.RQ_QUEUES = value
    assert list(found()) == ["E005"]


def test_e005_no_queues_at_all(settings):
    del settings.RQ_QUEUES
    assert list(found()) == ["E005"]


@pytest.mark.parametrize("key", ["QUEUE", "CALLBACK_QUEUE"])
def test_e006_a_queue_that_is_not_there(settings, key):
    settings.JOB_BATCHES = {key: "hihg"}
    assert f"JOB_BATCHES[{key!r}]" in found()["E006"]
    assert "Did you mean 'high'?" in found()["E006"]


def test_e006_no_default_queue(settings):
    settings.RQ_QUEUES = {"emails": dict(REDIS)}
    assert list(found()) == ["E006"]


@pytest.mark.parametrize("value", ["no.such.Serializer", "json.JSONDecoder", "yaml", 7, {}, ["json"]])
def test_e007_a_serializer_that_cannot_be_used(settings, value):
    settings.RQ_QUEUES["default"]["SERIALIZER"] = value
    assert list(found()) == ["E007"]


@pytest.mark.parametrize("value", ["False", "0", 0, None])
def test_e008_async_is_no_boolean(settings, value):
    settings.RQ_QUEUES["default"]["ASYNC"] = value
    assert list(found()) == ["E008"]


def test_e009_a_job_class_that_runs_tasks_only(settings):
    settings.RQ = {"JOB_CLASS": "django_tasks_rq.Job"}
    assert list(found()) == ["E009"]


def test_w001_jobs_that_redis_keeps_for_ever(settings):
    settings.JOB_BATCHES = {"FAILURE_TTL": -1}
    assert "'FAILURE_TTL'" in found()["W001"]


@pytest.mark.parametrize("given", [{"RESULT_TTL": 119}, {"FAILURE_TTL": 119}, {"RECONCILE_EVERY": 1801}])
def test_w002_jobs_that_are_forgotten_too_early(settings, given):
    settings.JOB_BATCHES = given
    assert list(found()) == ["W002"]


@pytest.mark.parametrize("value", ["json", "rq.serializers.JSONSerializer", "pickle5"])
def test_w003_a_serializer_of_which_workers_have_to_know(settings, value, monkeypatch):
    monkeypatch.setattr("tests.jobs.pickle5", type("S", (), {"dumps": bytes, "loads": bytes}), raising=False)
    settings.RQ_QUEUES["default"]["SERIALIZER"] = "tests.jobs.pickle5" if value == "pickle5" else value
    assert "--serializer" in found()["W003"]


@pytest.mark.parametrize("value", [None, "", "pickle", "rq.serializers.DefaultSerializer"])
def test_the_usual_serializer_is_right(settings, value):
    settings.RQ_QUEUES["default"]["SERIALIZER"] = value
    assert found() == {}


def test_w004_jobs_that_run_where_they_are_dispatched(settings):
    settings.RQ_QUEUES["default"]["ASYNC"] = False
    assert list(found()) == ["W004"]


def test_w008_times_that_jump(settings):
    settings.USE_TZ = False
    assert list(found()) == ["W008"]


# Databases: `connections` has read DATABASES already, so its own copy is what is changed here


def change(monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
    monkeypatch.setitem(connections.settings, "default", {**connections.settings["default"], **options})


def test_e010_nothing_is_ever_committed(monkeypatch):
    change(monkeypatch, AUTOCOMMIT=False)
    assert list(found()) == ["E010"]


@pytest.mark.vendors("sqlite")
@pytest.mark.parametrize("timeout", [None, 0, 5, 19.9])
def test_w005_sqlite_that_does_not_wait(monkeypatch, timeout):
    change(monkeypatch, OPTIONS={"transaction_mode": "IMMEDIATE", "timeout": timeout})
    assert list(found()) == ["W005"]


@pytest.mark.vendors("sqlite")
@pytest.mark.parametrize("mode", [None, "DEFERRED", "deferred"])
def test_w006_sqlite_that_takes_the_lock_too_late(monkeypatch, mode):
    change(monkeypatch, OPTIONS={"transaction_mode": mode, "timeout": 20})
    assert list(found()) == ["W006"]


@pytest.mark.vendors("sqlite")
@pytest.mark.parametrize("name", [":memory:", "file:memorydb?mode=memory&cache=shared"])
def test_w009_sqlite_in_memory(monkeypatch, name):
    change(monkeypatch, NAME=name)
    assert list(found()) == ["W009"]


@pytest.mark.vendors("mariadb")
def test_w007_a_character_set_without_emoji(monkeypatch):
    change(monkeypatch, OPTIONS={"charset": "utf8"})
    assert list(found()) == ["W007"]


def test_databases_that_hold_no_batches_are_left_alone(monkeypatch, settings):
    class Router:
        def allow_migrate(self, db, app_label, **hints):
            return db != "default"

    settings.DATABASE_ROUTERS = [Router()]
    change(monkeypatch, AUTOCOMMIT=False)
    assert found() == {}


def test_the_checks_connect_to_nothing(monkeypatch):
    """Neither a socket nor a database file is opened, whatever is configured."""

    def refuse(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("a check has connected")

    monkeypatch.setattr(socket, "socket", refuse)
    for alias in connections:
        monkeypatch.setattr(connections[alias], "ensure_connection", refuse)
    assert found() == {}


def test_the_page_in_the_docs_lists_each_check():
    source = Path(checks.__file__).read_text()
    made = {f"E{int(number):03}" for number in re.findall(r"_error\(\s*(\d+)", source)}
    made |= {f"W{int(number):03}" for number in re.findall(r"_warning\(\s*(\d+)", source)}
    assert len(made) == 19
    assert sorted(made) == sorted(re.findall(r"^\| `django_job_batches\.([EW]\d{3})` \|", DOCS.read_text(), re.M))


def test_json_as_serializer_works_once_the_worker_knows_it(live_db, record, settings):
    """What W003 tells: our own arguments are JSON, so that is all that is needed."""
    settings.RQ_QUEUES = {"default": {**REDIS, "UNIX_SOCKET_PATH": django_settings.REDIS_SOCKET, "SERIALIZER": "json"}}
    queues.forget_queues()
    try:
        batch = batch_of([job_of(jobs.echo, 1, a="é")], on_finish=jobs.succeed).dispatch()
        work(serializer="json")
    finally:
        queues.forget_queues()
    batch.refresh_from_db()
    assert batch.status == "succeeded"
    assert record.count("succeed") == 1
