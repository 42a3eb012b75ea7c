"""A Django project in one module, run by the package's check with nothing but the built wheel installed.

It is its own settings, its jobs, and (`run()`) a user who migrates, dispatches a batch and starts a worker.
"""

from __future__ import annotations

import os
from pathlib import Path

SECRET_KEY = "for one run"
INSTALLED_APPS = [
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django_rq",
    "django_job_batches",
]
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": str(Path("db.sqlite3").absolute()),
        "OPTIONS": {"transaction_mode": "IMMEDIATE", "timeout": 20},
    }
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
RQ_QUEUES = {"default": {"UNIX_SOCKET_PATH": os.environ.get("REDIS_SOCKET", ""), "DB": 0}}
USE_TZ = True

RAN = Path("ran.txt")


def greet(name: str) -> str:
    with RAN.open("a") as ran:
        ran.write(f"{name}\n")
    return f"Good morning, {name}"


def say_goodbye() -> None:
    with RAN.open("a") as ran:
        ran.write("goodbye\n")


def run() -> None:
    import django
    from django.core.management import call_command

    django.setup()
    call_command("check", fail_level="WARNING")
    call_command("makemigrations", "django_job_batches", check=True, dry_run=True, verbosity=0)
    call_command("migrate", verbosity=0)
    _run_a_batch()


def _run_a_batch() -> None:
    import django_rq

    from django_job_batches import batch_of, job_of

    jobs = [job_of(greet, name).options(keep_result=True) for name in ("Ada", "Grace", "Radia")]
    batch = batch_of(jobs, name="Greetings", on_finish=say_goodbye).dispatch()
    django_rq.get_worker("default", worker_class="rq.SimpleWorker").work(burst=True, logging_level="WARNING")
    batch.refresh_from_db()
    assert batch.status == "succeeded", batch.status
    assert (batch.total_jobs, batch.succeeded_jobs, batch.progress) == (3, 3, 100)
    assert sorted(RAN.read_text().split()) == ["Ada", "Grace", "Radia", "goodbye"]
