"""What the pages show of a batch, how they are kept up to date, and that no size of a batch is too much for them."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.admin import AdminSite, site
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import path, reverse
from django.utils import timezone

from django_job_batches import batch_of, chain, job_of
from django_job_batches.admin import BatchAdmin, JobAdmin, figures, tables
from django_job_batches.models import Batch, BatchJob
from tests import jobs
from tests.test_admin import (
    BATCHES,
    JOBS,
    client,
    client_with,
    copies,
    ended,
    found,
    of,
    of_job,
    page,
    part,
    superuser,
    waiting,
)

__all__ = ("client", "superuser")  # fixtures

pytestmark = pytest.mark.usefixtures("live_db", "record")

PARTS = BatchAdmin.live_parts
FROM_JOBS = re.compile(r"FROM .?django_job_batches_batchjob")
BY_KEY = re.compile(r"batchjob.?\..?(id|position).? (IN|=) ")
OF_DJANGO = ("django_session", "auth_user", "auth_permission", "auth_group")


def queries_of(client: Client, url: str, **query: Any) -> list[str]:
    """The statements of one request, without those that find out who is asking."""
    client.get(url, query)  # content types are read once per process
    with CaptureQueriesContext(connection) as context:
        response = client.get(url, query)
    assert response.status_code in (200, 204), response.status_code
    return [query["sql"] for query in context if not re.search(f'FROM ."?`?({"|".join(OF_DJANGO)})', query["sql"])]


def part_of(client: Client, batch: Batch, part: str, **query: Any) -> Any:
    return client.get(f"{BATCHES}{batch.pk}/live/{part}/", query)


def rows_of(client: Client, *batches: Batch, versions: dict[str, str] | None = None) -> dict[str, Any]:
    shown = ",".join(f"{batch.pk}.{(versions or {}).get(str(batch.pk), '')}" for batch in batches)
    return json.loads(client.get(f"{BATCHES}live/", {"rows": shown}).content)


# Kept up to date


def test_only_rows_that_have_changed_are_sent_again(client):
    one, two = waiting(2, name="one"), waiting(2, name="two")
    first = rows_of(client, one, two)
    assert set(first["rows"]) == {str(one.pk), str(two.pk)}
    assert set(first["rows"][str(one.pk)]["cells"]) == set(BatchAdmin.live_columns)
    versions = {key: row["version"] for key, row in first["rows"].items()}
    again = rows_of(client, one, two, versions=versions)
    assert again["rows"] == {} and again["pulse"] == first["pulse"]
    two.cancel()
    changed = rows_of(client, one, two, versions=versions)
    assert set(changed["rows"]) == {str(two.pk)} and changed["pulse"] != first["pulse"]
    assert "cancelled" in changed["rows"][str(two.pk)]["cells"]["state"]
    one_waits = rows_of(client, one, two)["summary"]
    assert re.search(r"<strong>1</strong>\s+waiting", one_waits)


def test_a_part_of_a_page_is_sent_again_when_it_has_changed(client):
    batch = waiting(2)
    first = part_of(client, batch, "overview")
    version = first.headers["X-Version"]
    same = part_of(client, batch, "overview", version=version)
    assert same.status_code == 204 and same.headers["X-Pulse"] == first.headers["X-Pulse"]
    batch.cancel()
    changed = part_of(client, batch, "overview", version=version)
    assert changed.status_code == 200 and changed.headers["X-Pulse"] != first.headers["X-Pulse"]
    assert "cancelled" in changed.content.decode()


def test_each_refresh_costs_at_most_three_queries(client):
    batch = ended(
        part(job_of(jobs.succeed)), chain(job_of(jobs.succeed), job_of(jobs.fail)), on_finish=job_of(jobs.succeed)
    )
    active = waiting(3)
    copies(active, 20)
    assert len(queries_of(client, f"{BATCHES}live/", rows=",".join(f"{b.pk}." for b in Batch.objects.all()))) <= 3
    for name in PARTS:
        assert len(queries_of(client, f"{BATCHES}{batch.pk}/live/{name}/")) <= 3, name


def test_refreshing_needs_the_permission_to_look():
    batch = waiting()
    stranger = client_with("view_batchjob")
    assert stranger.get(f"{BATCHES}live/", {"rows": f"{batch.pk}."}).status_code == 403
    assert all(part_of(stranger, batch, name).status_code == 403 for name in PARTS)
    assert "/login/" in Client().get(f"{BATCHES}live/").headers["Location"]


def test_what_makes_no_sense_is_not_found(client):
    batch = waiting()
    assert client.get(f"{BATCHES}live/", {"rows": "no-such.1"}).status_code == 404
    assert part_of(client, batch, "no-such").status_code == 404
    batch.cancel()
    batch.delete()
    assert part_of(client, batch, "overview").status_code == 404
    assert rows_of(client, batch)["rows"] == {}


# What a page shows


def test_the_tree_shows_chains_nested_batches_callbacks_and_what_is_around(client):
    inner = part(chain(job_of(jobs.succeed), job_of(jobs.fail), job_of(jobs.echo)), name="Inner", allow_failures=True)
    outer = ended(part(inner, name="Middle"), *[job_of(jobs.succeed)] * 3, name="Outer", on_finish=job_of(jobs.echo))
    text = page(client, of(outer))
    assert "Outer succeeded Middle succeeded 100 % 3 jobs on finish: tests.jobs.echo succeeded" in text
    text = page(client, of(Batch.objects.get(name="Inner")))
    chained = "One after the other: tests.jobs.succeed succeeded tests.jobs.fail failed tests.jobs.echo cancelled"
    assert f"Outer succeeded Middle succeeded Inner succeeded {chained}" in text
    assert "Place in its tree" not in page(client, of(batch_of([]).dispatch()))


def test_a_batch_of_many_items_shows_the_first_of_them(client, monkeypatch):
    monkeypatch.setattr("django_job_batches.admin.tree.ITEMS_DRAWN", 3)
    batch = waiting(10)
    assert "3 jobs and 7 more items" in page(client, of(batch))


def test_errors_are_grouped_and_one_group_is_retried(client, record):
    items = [*[job_of(jobs.fail, "no price")] * 3, *[job_of(jobs.fail, "no name")] * 2, job_of(jobs.succeed)]
    batch = ended(*items, allow_failures=True)
    html = client.get(of(batch)).content.decode()
    example = batch.jobs.filter(error_message="no price").earliest("pk")
    url = f"{BATCHES}operation/retry_group/?row={batch.pk}&amp;example={example.pk}"
    assert url in html and "raise ValueError(message)" in html
    asked = client.get(url.replace("&amp;", "&"))
    assert "3 jobs that failed with this error will run again." in asked.context["sentences"]
    client.post(asked.context["action_url"], {"chosen": asked.context["chosen"]})
    assert (record.count("fail no price"), record.count("fail no name")) == (6, 2)
    for query in ("", "&example=x", "&example=0"):
        response = client.get(f"{BATCHES}operation/retry_group/?row={batch.pk}{query}")
        assert response.status_code == 404 or not response.context["sentences"], query


def test_errors_are_the_same_only_to_the_letter(client):
    """Whatever the database's collation holds to be equal."""
    batch = ended(
        *[job_of(jobs.fail, text) for text in ("Gone", "gone", "gone ", "göne", "gone%")], allow_failures=True
    )
    groups = figures.errors(batch, 10).groups
    assert sorted(group.error_message for group in groups) == sorted(["Gone", "gone", "gone ", "göne", "gone%"])
    for group in groups:
        same = figures.same_error(batch, group.example)
        assert [job.pk for job in same or ()] == [group.example]


def test_throughput_is_drawn_from_the_ends_of_the_jobs(client):
    batch = ended(*[job_of(jobs.succeed)] * 30, *[job_of(jobs.fail)] * 10, allow_failures=True)
    end = timezone.now()
    start = end - timedelta(seconds=40)
    Batch.objects.filter(pk=batch.pk).update(started_at=start, finished_at=end)
    for number, job in enumerate(batch.jobs.order_by("position")):
        BatchJob.objects.filter(pk=job.pk).update(finished_at=start + timedelta(seconds=number + 0.5))
    batch.refresh_from_db()
    drawn = figures.throughput(batch)
    assert drawn is not None
    assert (drawn.unit, round(drawn.peak, 3), round(drawn.average, 3), drawn.is_estimated) == ("second", 1, 1, False)
    assert [good > 0 for good, _bad in drawn.bars] == [True] * 30 + [False] * 10
    assert "Jobs that ended per second: 1 on average, 1 at most." in page(client, of(batch))
    assert figures.throughput(waiting()) is None


def test_throughput_of_a_large_batch_is_estimated_from_a_sample(monkeypatch):
    monkeypatch.setattr(figures, "JOBS_SAMPLED", 10)
    batch = ended(*[job_of(jobs.succeed)] * 40)
    end = timezone.now()
    start = end - timedelta(seconds=400)
    Batch.objects.filter(pk=batch.pk).update(started_at=start, finished_at=end)
    for number, job in enumerate(batch.jobs.order_by("position")):
        BatchJob.objects.filter(pk=job.pk).update(finished_at=start + timedelta(seconds=10 * number))
    batch.refresh_from_db()
    drawn = figures.throughput(batch)
    assert drawn is not None and drawn.is_estimated and drawn.unit == "minute"
    assert drawn.average == pytest.approx(6, rel=0.01)  # 40 jobs in 400 seconds


def test_the_jobs_of_a_batch_are_paged_by_key_and_filtered_by_state(client, monkeypatch):
    monkeypatch.setattr(tables, "PER_PAGE", 4)
    batch = ended(*[job_of(jobs.fail) if n % 2 else job_of(jobs.succeed) for n in range(10)], allow_failures=True)
    every = list(batch.jobs.order_by("position").values_list("pk", flat=True))
    for state, wanted in (("", every), ("failed", every[1::2]), ("no-such", every), ("queued", [])):
        url, seen = f"?state={state}", []
        while url:
            shown = client.get(f"{of(batch)}{url}").context["parts"]["jobs"]["html"]
            seen += [int(pk) for pk in re.findall(r'<th scope="row"><a href="[^"]*/(\d+)/change/"', shown)]
            follow = re.search(r'href="(\?[^#"]*)#job-batch-jobs" rel="next"', shown)
            url = follow[1].replace("&amp;", "&") if follow else ""
        assert seen == wanted, state
    assert client.get(of(batch), {"after": "9" * 30, "state": "failed"}).status_code == 200


def test_the_history_says_who_did_what(client, superuser):
    batch = waiting()
    batch.cancel("wrong file", by=superuser)
    text = page(client, of(batch))
    assert re.search(r"History Time User Action .* Grace Cancelled\. wrong file", text)


def test_the_list_offers_what_is_stuck_whose_it_is_and_what_is_nested(client, superuser):
    mine = waiting(name="mine", created_by=superuser)
    whole = ended(part(job_of(jobs.succeed), name="nested"), name="whole")
    nested = Batch.objects.get(name="nested")
    stuck = waiting(name="stuck")
    stuck.jobs.update(enqueued_at=None)
    Batch.objects.filter(pk=stuck.pk).update(heartbeat_at=timezone.now() - timedelta(hours=1))
    assert found(client, BATCHES, stuck="yes") == [stuck.pk]
    assert found(client, BATCHES, created_by=superuser.pk) == [mine.pk]
    assert found(client, BATCHES, nested="yes") == [nested.pk]
    assert nested.pk not in found(client, BATCHES, nested="no") and whole.pk in found(client, BATCHES, nested="no")
    assert found(client, BATCHES, name="mine") == [mine.pk]
    assert client.get(BATCHES, {"created_by": "nobody"}).headers["Location"].endswith("?e=1")
    Batch.objects.filter(pk=mine.pk).update(metadata={"site": "alpha-7"})
    assert found(client, BATCHES, q="alpha-7") == [mine.pk]


# One job


def operate(client: Client, name: str, job: BatchJob) -> list[str]:
    """Press the button on the job's page, and confirm; returns what is said then."""
    url = f"{JOBS}operation/{name}/?row={job.pk}"
    assert url in client.get(of_job(job)).content.decode()
    asked = client.get(url)
    answer = client.post(asked.context["action_url"], {"chosen": asked.context["chosen"]}, follow=True)
    assert answer.request["PATH_INFO"] == of_job(job)
    return [str(message) for message in answer.context["messages"]]


def test_a_job_is_retried_cancelled_and_stopped_from_its_page(client, workers, wait_until):
    job = ended(job_of(jobs.fail)).jobs.get()
    assert operate(client, "retry", job) == ["The job runs again."]
    job.refresh_from_db()
    assert job.attempts == 2
    waits = waiting().jobs.get()
    assert operate(client, "cancel", waits) == ["The job was cancelled."]
    workers()
    running = batch_of([job_of(jobs.sleep, 60)]).dispatch().jobs.get()
    wait_until(lambda: BatchJob.objects.get(pk=running.pk).status == "running")
    assert operate(client, "stop", running) == ["The job was told to stop."]
    wait_until(lambda: BatchJob.objects.get(pk=running.pk).status == "cancelled")
    assert "Stopped job" in page(client, of(running.batch))


def test_a_failed_callback_is_retried_alone(client, record):
    batch = ended(job_of(jobs.succeed), on_finish=job_of(jobs.fail))
    assert operate(client, "retry", batch.jobs.get(role="on_finish")) == ["The job runs again."]
    assert (record.count("succeed"), record.count("fail")) == (1, 2)


def test_what_cannot_be_done_to_a_job_is_not_offered_and_says_why(client):
    done = ended(job_of(jobs.succeed)).jobs.get()
    assert "operation/" not in client.get(of_job(done)).content.decode()
    for name in ("retry", "cancel", "stop"):
        asked = client.get(f"{JOBS}operation/{name}/?row={done.pk}")
        assert not asked.context["sentences"] and asked.context["left_alone"] == 1
    damaged = client.post(f"{JOBS}operation/retry/", {"chosen": f"{10**30}.1"})
    assert damaged.status_code == 400


def test_a_job_that_went_on_meanwhile_is_left_alone(client, drain):
    job = waiting().jobs.get()
    asked = client.get(f"{JOBS}operation/cancel/?row={job.pk}")
    drain(simple=True)
    answer = client.post(asked.context["action_url"], {"chosen": asked.context["chosen"]}, follow=True)
    assert "1 was left alone" in str(next(iter(answer.context["messages"])))
    job.refresh_from_db()
    assert job.status == "succeeded"


def test_jobs_are_changed_by_those_alone_who_may_change_batches():
    job = waiting().jobs.get()
    viewer = client_with("view_batch", "view_batchjob")
    assert "operation/" not in viewer.get(of_job(job)).content.decode()
    for name in ("retry", "cancel", "stop"):
        assert viewer.post(f"{JOBS}operation/{name}/", {"chosen": f"{job.pk}.1-0-queued"}).status_code == 403


# Projects of all kinds


def test_several_sites_and_classes_of_a_project_work(client, settings):
    class OwnBatches(BatchAdmin):
        list_display = ("title", "progress")

        def get_queryset(self, request):
            return super().get_queryset(request).filter(name="mine")

    own = AdminSite("own")
    own.register(Batch, OwnBatches)
    own.register(BatchJob, JobAdmin)
    settings.ROOT_URLCONF = type("urls", (), {"urlpatterns": [path("own/", own.urls), path("admin/", site.urls)]})
    mine, other = waiting(name="mine"), waiting(name="other")
    base = "/own/django_job_batches/batch/"
    assert found(client, base) == [mine.pk]
    html = client.get(reverse("own:django_job_batches_batch_change", args=[mine.pk])).content.decode()
    assert "/admin/django_job" not in html and f"{base}operation/cancel/?row={mine.pk}" in html
    answer = json.loads(client.get(f"{base}live/", {"rows": f"{mine.pk}.,{other.pk}."}).content)
    assert set(answer["rows"]) == {str(mine.pk)}
    assert set(answer["rows"][str(mine.pk)]["cells"]) == {"progress"} and "/admin/" not in answer["summary"]
    assert client.get(f"{base}{other.pk}/live/overview/").status_code == 404
    assert client.get(f"{base}operation/cancel/", {"row": other.pk}).status_code == 404
    client.post(f"{base}operation/cancel/", {"chosen": f"{other.pk}.1"})
    other.refresh_from_db()
    assert not other.is_decided


def test_times_are_those_of_the_project(client, settings):
    batch = waiting()
    Batch.objects.filter(pk=batch.pk).update(created_at="2026-01-01T23:30:00Z")
    settings.TIME_ZONE = "Asia/Tokyo"
    assert "Jan. 2, 2026, 8:30 a.m." in page(client, of(batch))


# Sizes


def test_f30_no_page_counts_or_sorts_the_jobs(client, superuser):
    """Each statement on the table of jobs has a limit, or names the keys or positions that it reads."""
    batch = ended(
        part(job_of(jobs.fail)),
        *[job_of(jobs.fail, str(n)) for n in range(60)],
        allow_failures=True,
        on_finish=job_of(jobs.succeed),
        created_by=superuser,
    )
    job = batch.jobs.filter(status="failed", role="item").exclude(func="").earliest("pk")
    urls = [BATCHES, of(batch), f"{of(batch)}?state=failed", of(Batch.objects.exclude(pk=batch.pk).get())]
    urls += [f"{JOBS}?batch={batch.pk}", f"{JOBS}?status__exact=failed", of_job(job)]
    urls += [f"{BATCHES}operation/{name}/?row={batch.pk}" for name in ("cancel", "retry", "delete")]
    urls += [f"{BATCHES}operation/retry_group/?row={batch.pk}&example={job.pk}"]
    for url in urls:
        queries = queries_of(client, url)
        assert len(queries) <= 10, url
        on_jobs = [sql for sql in queries if FROM_JOBS.search(sql)]
        assert not [sql for sql in on_jobs if "LIMIT" not in sql and not BY_KEY.search(sql)], url
        assert not [sql for sql in on_jobs if "COUNT(" in sql and "LIMIT" not in sql], url
        assert not [sql for sql in on_jobs if "GROUP BY" in sql], url


def test_what_no_index_leads_to_is_looked_for_in_few_jobs(client, monkeypatch):
    monkeypatch.setattr("django_job_batches.admin.job_list.LOOKED_AT", 5)
    monkeypatch.setattr("django_job_batches.admin.job_list.LOOKED_AT_IN_BATCH", 5)
    old = waiting(8, name="old")
    new = waiting(8, name="new")
    every = [
        *old.jobs.order_by("pk").values_list("pk", flat=True),
        *new.jobs.order_by("pk").values_list("pk", flat=True),
    ]
    assert found(client, JOBS) == every[::-1]
    assert found(client, JOBS, status__exact="queued") == found(client, JOBS, q="succeed") == every[:-6:-1]
    assert found(client, JOBS, q=str(every[0])) == [every[0]]
    assert found(client, JOBS, batch=str(old.pk)) == every[:8]
    assert found(client, JOBS, batch=str(old.pk), status__exact="queued") == every[:8][::-1]
    assert found(client, JOBS, batch=str(old.pk), q="succeed") == every[:5]
    assert "Only 5 jobs were looked at" in page(client, JOBS, q="succeed")
    assert "were looked at" not in page(client, JOBS) + page(client, JOBS, batch=str(old.pk))


def test_f31_a_page_never_shows_all_jobs_and_survives_rows_that_make_no_sense(client):
    batch = ended(*[job_of(jobs.fail, str(n)) for n in range(150)], allow_failures=True)
    html = client.get(of(batch)).content.decode()
    assert html.count('class="job-batch-status') < 60 and "There are more kinds of errors" in html
    rows = batch.jobs.order_by("pk")
    nonsense: list[dict[str, Any]] = [
        {"func": "no.such.module.function", "args": "not a list", "kwargs": 7},
        {"options": ["not", "an", "object"], "queue_name": "no such queue"},
        {"options": {"description": 7, "retries": "many"}, "result": None, "has_result": True},
        {"error_class": "x" * 255, "error_message": "", "traceback": ""},
        {"chain": 1, "position": 10_000_000},
    ]
    for row, values in zip(rows, nonsense, strict=False):
        BatchJob.objects.filter(pk=row.pk).update(**values)
    Batch.objects.filter(pk=batch.pk).update(metadata=["not", "an", "object"], final_counts={"not": "a list"})
    for url in (BATCHES, of(batch), JOBS, f"{JOBS}?batch={batch.pk}", *[of_job(row) for row in rows[:6]]):
        assert client.get(url).status_code == 200, url
    assert len(rows_of(client, batch)["rows"]) == 1


def test_large_ones_are_begun_at_once_and_gone_on_with_by_a_worker(client, monkeypatch, drain):
    monkeypatch.setattr("django_job_batches.admin.confirmation.IN_REQUEST", 40)
    batch = waiting(60)
    asked = client.get(f"{BATCHES}operation/cancel/?row={batch.pk}")
    answer = client.post(asked.context["action_url"], {"chosen": asked.context["chosen"]}, follow=True)
    text = "Cancel: 1 batch is large; a worker goes on with it, and its page shows how far it is."
    assert [str(message) for message in answer.context["messages"]] == [text]
    batch.refresh_from_db()
    assert batch.is_cancelled and batch.cancelled_jobs == 0  # nothing new begins; the rest is called off later
    assert "Cancel: waits for a worker" in page(client, of(batch))
    drain(simple=True)
    batch.refresh_from_db()
    assert batch.is_finished and batch.cancelled_jobs == 60
    assert "waits for a worker" not in page(client, of(batch))


@pytest.mark.parametrize("clicks", [1, 2])
def test_a_large_retry_and_a_large_deletion_are_done_once_by_a_worker(client, monkeypatch, drain, record, clicks):
    batch = ended(*[job_of(jobs.fail)] * 30, allow_failures=True)
    monkeypatch.setattr("django_job_batches.admin.confirmation.IN_REQUEST", 40)
    for operation in ("retry", "delete"):
        asked = client.get(f"{BATCHES}operation/{operation}/?row={batch.pk}")
        for _click in range(clicks):
            client.post(asked.context["action_url"], {"chosen": asked.context["chosen"]})
        assert record.count("fail") == (30 if operation == "retry" else 60)
        drain(simple=True)
        assert record.count("fail") == 60
    assert not Batch.objects.exists() and not BatchJob.objects.exists()


def test_a_large_one_says_so_when_redis_is_away(client, monkeypatch, redis_down):
    batch = ended(*[job_of(jobs.fail)] * 30, allow_failures=True)
    monkeypatch.setattr("django_job_batches.admin.confirmation.IN_REQUEST", 40)
    asked = client.get(f"{BATCHES}operation/retry/?row={batch.pk}")
    with redis_down():
        answer = client.post(asked.context["action_url"], {"chosen": asked.context["chosen"]}, follow=True)
    assert "Redis does not answer" in str(next(iter(answer.context["messages"])))
    batch.refresh_from_db()
    assert batch.run == 1


def test_of_many_batches_some_are_done_at_once_and_the_rest_by_workers(client, monkeypatch, drain):
    first = waiting(name="Import")
    copies(first, 9)
    monkeypatch.setattr("django_job_batches.admin.confirmation.IN_REQUEST", 21 * 4)
    keys = [str(pk) for pk in Batch.objects.values_list("pk", flat=True)]
    asked = client.post(BATCHES, {"action": "cancel_selected", "_selected_action": keys})
    answer = client.post(asked.context["action_url"], {"chosen": asked.context["chosen"]}, follow=True)
    told = " ".join(str(message) for message in answer.context["messages"])
    assert "4 batches were cancelled." in told and "Cancel: a worker goes on with 6 batches" in told
    drain(simple=True)
    assert Batch.objects.filter(status="cancelled", finished_at__isnull=False).count() == 10


def test_many_batches_are_given_to_a_worker_as_a_whole(client, monkeypatch, drain, redis):
    monkeypatch.setattr("django_job_batches.admin.confirmation.MANY", 5)
    first = waiting(name="Import")
    copies(first, 9)
    done = ended(job_of(jobs.succeed))
    asked = client.post(
        BATCHES, {"action": "cancel_selected", "_selected_action": [str(done.pk)], "select_across": "1"}
    )
    running_again = Batch.objects.get(name="Import 3")
    redis.flushall()
    answer = client.post(asked.context["action_url"], {"chosen": asked.context["chosen"]}, follow=True)
    assert "a worker goes on with 10 batches" in str(next(iter(answer.context["messages"])))
    assert redis.llen("rq:queue:default") == 1 and not Batch.objects.exclude(cancelled_at=None).exists()
    Batch.objects.filter(pk=running_again.pk).update(run=2)
    drain(simple=True)
    assert Batch.objects.filter(status="cancelled").count() == 9
    running_again.refresh_from_db()
    assert not running_again.is_decided
    job = first.jobs.get()
    many = " ".join(f"{job.pk + number}.1-0-queued" for number in range(6))
    assert client.post(f"{JOBS}operation/cancel/", {"chosen": many}).status_code == 400


def test_pages_of_a_batch_that_another_user_owns_say_who(client):
    owner = User.objects.create_user("Ada")
    batch = waiting(created_by=owner)
    assert "Created by: Ada" in page(client, of(batch))
