"""The lists and pages of the admin. What can be done there is in test_admin_operations.py."""

from __future__ import annotations

import re
import uuid
from datetime import timedelta
from html import unescape
from typing import Any

import pytest
from django.contrib.admin import AdminSite
from django.contrib.admin.models import DELETION, LogEntry
from django.contrib.auth.models import Permission, User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import path, reverse
from django.utils import timezone

from django_job_batches import batch_of, chain, job_of
from django_job_batches.admin import BatchAdmin, JobAdmin
from django_job_batches.exceptions import BatchError
from django_job_batches.items import BatchDescription
from django_job_batches.models import Batch, BatchJob
from tests import jobs

pytestmark = pytest.mark.usefixtures("live_db", "record")

BATCHES = "/admin/django_job_batches/batch/"
JOBS = "/admin/django_job_batches/batchjob/"
SCRIPT = "<script>alert(1)</script>"
BAR = re.compile(r'aria-valuenow="(\d+)" aria-valuetext="([^"]*)" aria-label="Progress of ([^"]*)"')


@pytest.fixture
def superuser():
    return User.objects.create_superuser("Grace", password="x")


@pytest.fixture
def client(superuser):
    client = Client()
    client.force_login(superuser)
    return client


def client_with(*permissions: str) -> Client:
    user = User.objects.create_user("viewer", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
    client = Client()
    client.force_login(user)
    return client


def ended(*items, **options) -> Batch:
    """A batch whose jobs have run, in this process."""
    return part(*items, **options).dispatch()


def part(*items, **options) -> BatchDescription:
    """What runs in this process: a batch, or one to be nested in another."""
    return batch_of(items, queue_name="sync", **options)


def waiting(number: int = 1, **options) -> Batch:
    """A batch whose jobs no worker takes."""
    return batch_of([job_of(jobs.succeed, n) for n in range(number)], **options).dispatch()


def copies(batch: Batch, number: int) -> None:
    """More batches like this one, with the same jobs and counters."""
    related: list[Any] = [*batch.jobs.all(), *batch.counters.all()]
    for count in range(number):
        copy = Batch.objects.get(pk=batch.pk)
        copy.pk, copy.name = uuid.uuid4(), f"{batch.name} {count}"
        copy.save(force_insert=True)
        for row in related:
            row.pk, row.batch = None, copy
            row.save(force_insert=True)


def found(client: Client, url: str, **query) -> list[Any]:
    response = client.get(url, query)
    assert response.status_code == 200, response.headers
    return [row.pk for row in response.context["cl"].result_list]


def page(client: Client, url: str, **query) -> str:
    """The text of a page, without its tags."""
    response = client.get(url, query)
    assert response.status_code == 200, response.headers
    text = unescape(re.sub(r"<[^>]+>", " ", response.content.decode()))
    return re.sub(r"\s+", " ", text)


def of(batch: Batch) -> str:
    return f"{BATCHES}{batch.pk}/change/"


def of_job(job: BatchJob) -> str:
    return f"{JOBS}{job.pk}/change/"


# The list of batches


def test_the_list_shows_status_progress_and_counters(client, superuser):
    items = [job_of(jobs.succeed), job_of(jobs.succeed), job_of(jobs.fail)]
    ended(*items, name="Import 7", allow_failures=True, created_by=superuser)
    waiting(3, name="Import 8")
    running = waiting(4, name="Import 9")
    BatchJob.objects.filter(pk=running.jobs.earliest("pk").pk).update(status="running", attempts=1)
    html = client.get(BATCHES).content.decode()
    text = page(client, BATCHES)
    assert "2 of 3 succeeded, 1 failed" in text
    assert "0 of 3 succeeded, 3 waiting" in text
    assert "0 of 4 succeeded, 1 running, 3 waiting" in text
    bars = {name: (int(value), words) for value, words, name in BAR.findall(html)}
    assert bars == {
        "Import 7": (100, "2 of 3 succeeded, 1 failed"),
        "Import 8": (0, "0 of 3 succeeded"),
        "Import 9": (0, "0 of 4 succeeded, 1 running"),
    }
    assert '<rect class="job-batch-share-succeeded" x="0.000" width="66.667" height="10"/>' in html
    assert '<rect class="job-batch-share-failed" x="66.667" width="33.333" height="10"/>' in html
    assert '<rect class="job-batch-share-running" x="0.000" width="25.000" height="10"/>' in html
    assert "Grace" in text and "succeeded" in text and "queued" in text


def test_the_list_costs_the_same_queries_for_5_batches_and_for_25(client):
    def queries() -> list[str]:
        with CaptureQueriesContext(connection) as context:
            assert client.get(BATCHES).status_code == 200
        return [query["sql"] for query in context]

    batch = waiting(2)
    copies(batch, 4)
    client.get(BATCHES)
    few = queries()
    copies(batch, 20)
    many = queries()
    assert len(found(client, BATCHES)) == 25
    assert len(many) == len(few) <= 12
    assert sum("batchcounter" in sql for sql in many) == 1
    assert [sql for sql in many if "batchjob" in sql and "LIMIT" not in sql] == []


def test_the_list_is_filtered(client):
    good = ended(job_of(jobs.succeed), name="good")
    bad = ended(job_of(jobs.fail), name="bad")
    default = waiting(name="default")
    high = waiting(name="high", queue_name="high")
    old = waiting(name="old")
    Batch.objects.filter(pk=old.pk).update(created_at=timezone.now() - timedelta(days=400))
    assert found(client, BATCHES, status__exact="succeeded") == [good.pk]
    assert found(client, BATCHES, failures="yes") == [bad.pk]
    assert bad.pk not in found(client, BATCHES, failures="no") and len(found(client, BATCHES, failures="no")) == 4
    assert found(client, BATCHES, queue_name="high") == [high.pk]
    assert set(found(client, BATCHES, queue_name="default")) == {default.pk, old.pk}
    year_ago = timezone.now() - timedelta(days=365)
    assert old.pk not in found(client, BATCHES, created_at__gte=str(year_ago))
    year = (timezone.now() - timedelta(days=400)).year
    assert found(client, BATCHES, created_at__year=year) == [old.pk]


def test_batches_are_found_by_id_name_key_and_by_a_jobs_id(client):
    batch = waiting(name="Import 7", key="website-7")
    other = waiting(name="Export")
    job = batch.jobs.get()
    for term in (str(batch.pk), batch.pk.hex, str(batch.pk)[:8], "import", "website-7", str(job.pk), job.rq_job_id):
        assert batch.pk in found(client, BATCHES, q=term), term
    assert found(client, BATCHES, q="exp") == [other.pk]
    assert found(client, BATCHES, q="9" * 30) == []
    assert found(client, BATCHES, q="import", status__exact="failed") == []
    assert found(client, BATCHES, q=str(job.pk), status__exact="failed") == []


def test_every_column_that_can_be_sorted_by_is(client):
    waiting()
    for column in range(1, len(BatchAdmin.list_display) + 2):
        assert client.get(BATCHES, {"o": f"-{column}"}).status_code == 200


# The page of a batch


def test_the_page_of_a_batch_shows_what_belongs_to_it(client):
    batch = ended(
        job_of(jobs.fail, "first"),
        *[job_of(jobs.fail, "second")] * 3,
        part(job_of(jobs.succeed), name="Part A"),
        name="Import 7",
        allow_failures=0.9,
        metadata={"site": 7},
        on_finish=job_of(jobs.echo, 1),
        on_failure=job_of(jobs.record_args),
    )
    text = page(client, of(batch))
    assert "Succeeded 1 Failed 4 Cancelled 0 Running 0 Waiting 0 Total 5 " in text
    assert re.search(r"3 . ValueError: second Traceback of an example .* Job \d+ Retry this group", text)
    assert "tests.jobs.echo on finish succeeded" in text and "tests.jobs.record_args on failure cancelled" in text
    assert "Import 7 succeeded Part A succeeded 100 % 4 jobs on failure: tests.jobs.record_args cancelled" in text
    assert "90 %" in text and '"site": 7' in text
    child = Batch.objects.get(name="Part A")
    assert "Place in its tree Import 7 succeeded Part A succeeded 1 job" in page(client, of(child))


def test_the_page_of_a_batch_links_to_its_jobs(client):
    batch = ended(job_of(jobs.fail), job_of(jobs.succeed), allow_failures=True, on_finish=job_of(jobs.succeed))
    waiting()
    links = re.findall(rf'href="({re.escape(JOBS)}\?[^"]+)"', client.get(of(batch)).content.decode())
    lists = {unescape(link): len(found(client, unescape(link))) for link in links}
    every = f"{JOBS}?batch={batch.pk}&role__exact=item"
    assert lists == {every: 2, f"{every}&status__exact=failed": 1, f"{every}&status__exact=succeeded": 1}


def test_the_pages_of_a_large_batch_cost_few_queries(client):
    batch = ended(
        *[part(job_of(jobs.succeed)) for _ in range(5)],
        *[job_of(jobs.fail, str(n)) for n in range(60)],
        allow_failures=True,
        on_finish=[job_of(jobs.succeed)] * 4,
    )
    client.get(of(batch))
    with CaptureQueriesContext(connection) as context:
        text = page(client, of(batch))
    assert len(context) <= 12
    assert "There are more kinds of errors than these." in text


def test_batches_and_jobs_can_only_be_read(client):
    batch = waiting()
    job = batch.jobs.get()
    for url in (of(batch), of_job(job)):
        html = client.get(url).content.decode()
        assert 'name="_save"' not in html and "<textarea" not in html and "deletelink" not in html
        assert client.post(url, {"status": "failed"}).status_code == 403
    for url in (f"{BATCHES}add/", f"{JOBS}add/", f"{JOBS}{job.pk}/delete/"):
        assert client.get(url).status_code == 403


def test_who_may_not_see_batches_sees_none():
    batch = waiting()
    client = client_with("view_batchjob")
    assert client.get(BATCHES).status_code == client.get(of(batch)).status_code == 403
    assert client.get(JOBS).status_code == 200


def test_who_may_not_see_jobs_gets_no_list_of_them():
    batch = waiting()
    client = client_with("view_batch")
    assert JOBS + "?" not in client.get(of(batch)).content.decode()
    assert client.get(JOBS).status_code == 403


# The list of jobs


def counting(client: Client, url: str) -> list[str]:
    with CaptureQueriesContext(connection) as context:
        assert client.get(url).status_code == 200
    return [query["sql"] for query in context if "COUNT(" in query["sql"] and "batchjob" in query["sql"]]


def test_the_list_of_jobs_is_paged_without_counting_it(client):
    waiting(750)
    assert "more than 250 jobs" in page(client, JOBS)
    assert "more than 300 jobs" in page(client, JOBS, p=2)
    assert " 750 jobs" in page(client, JOBS, p=12)
    assert len(found(client, JOBS, p=15)) == 50
    assert client.get(JOBS, {"p": 16}).url == f"{JOBS}?e=1"
    assert client.get(JOBS, {"p": "9" * 30}).status_code in (200, 302)
    queries = counting(client, JOBS)
    assert queries and all("LIMIT" in sql for sql in queries)


def test_the_list_of_jobs_costs_the_same_queries_for_5_batches_and_for_50(client):
    def queries() -> int:
        with CaptureQueriesContext(connection) as context:
            client.get(JOBS)
        return len(context)

    batch = waiting()
    copies(batch, 4)
    client.get(JOBS)
    few = queries()
    copies(batch, 45)
    assert len(found(client, JOBS)) == 50
    assert queries() == few <= 8


def test_jobs_are_filtered_and_found(client):
    batch = ended(job_of(jobs.succeed), job_of(jobs.fail, "ran dry"), allow_failures=True, on_finish=job_of(jobs.echo))
    other = waiting(queue_name="high")
    good, bad = batch.jobs.filter(role="item").order_by("pk")
    callback, far = batch.jobs.get(role="on_finish"), other.jobs.get()
    assert found(client, JOBS, batch=str(batch.pk)) == [good.pk, bad.pk]
    assert found(client, JOBS, batch=str(batch.pk), role__exact="on_finish") == [callback.pk]
    assert found(client, JOBS, status__exact="failed") == [bad.pk]
    assert found(client, JOBS, role__exact="on_finish") == [callback.pk]
    assert found(client, JOBS, queue_name="high") == [far.pk]
    assert client.get(JOBS, {"batch": "no-such"}).url == f"{JOBS}?e=1"
    assert found(client, JOBS, batch="00000000-0000-0000-0000-000000000000") == []
    for term in (str(bad.pk), bad.rq_job_id, "jobs.fail", "ValueError", "ran dry"):
        assert found(client, JOBS, q=term) == [bad.pk], term
    assert found(client, JOBS, q='"ran dry"') == [bad.pk]


# The page of a job


def test_the_page_of_a_job_shows_all_of_it(client):
    batch = ended(job_of(jobs.echo, 1, colour="blue").options(keep_result=True), job_of(jobs.fail, "ran dry"))
    good, bad = batch.jobs.order_by("pk")
    text = page(client, of_job(good))
    assert "tests.jobs.echo" in text and '"colour": "blue"' in text and '"args": [ 1 ]' in text and "1 of 1" in text
    text = page(client, of_job(bad))
    assert "ValueError" in text and "ran dry" in text and "Traceback (most recent call last)" in text
    assert "jobs.py" in text and bad.rq_job_id in text


def test_the_page_of_a_nested_batchs_job_links_to_it(client):
    batch = waiting_chain()
    row = batch.jobs.filter(status="running").get()
    html = client.get(of_job(row)).content.decode()
    assert f'<a href="{of(row.nested_batch)}">Validate</a>' in html and f'<a href="{of(batch)}">' in html


def waiting_chain() -> Batch:
    parts = [batch_of([job_of(jobs.succeed)], name=name) for name in ("Validate", "Import")]
    return batch_of([chain(*parts)], name="All").dispatch()


def test_the_page_of_a_job_links_to_its_page_in_django_rqs_dashboard(client):
    job = waiting().jobs.get()
    link = re.search(rf'href="([^"]+)">{job.rq_job_id}<', client.get(of_job(job)).content.decode())
    assert link and link[1].startswith("/admin/django_rq/dashboard/")
    assert job.rq_job_id in client.get(link[1]).content.decode()


def test_there_is_no_such_link_without_the_dashboard_or_before_the_job_was_enqueued(client, superuser, settings):
    blocked = batch_of([chain(job_of(jobs.succeed), job_of(jobs.succeed))]).dispatch().jobs.get(status="blocked")
    assert f"{blocked.rq_job_id}</a>" not in client.get(of_job(blocked)).content.decode()
    site = AdminSite("own")
    site.register(Batch, BatchAdmin)
    site.register(BatchJob, JobAdmin)
    settings.ROOT_URLCONF = type("urls", (), {"urlpatterns": [path("own/", site.urls)]})
    job = waiting().jobs.get()
    html = client.get(reverse("own:django_job_batches_batchjob_change", args=[job.pk])).content.decode()
    assert job.rq_job_id in html and f"{job.rq_job_id}</a>" not in html
    assert f'href="/own/django_job_batches/batch/{job.batch_id}/change/"' in html
    html = client.get(f"/own/django_job_batches/batch/{job.batch_id}/change/").content.decode()
    assert "/own/django_job_batches/batch/operation/cancel/" in html and "/admin/django_job" not in html


# Deleting


def delete(client: Client, *batches: Batch) -> str:
    """Choose the admin's own action for these, confirm it, and return the text of the page that follows."""
    data = {"action": "delete_selected", "_selected_action": [str(batch.pk) for batch in batches]}
    return confirmed(client, client.post(BATCHES, data))


def confirmed(client: Client, asked: Any) -> str:
    chosen = {"chosen": asked.context["chosen"]}
    return unescape(client.post(asked.context["action_url"], chosen, follow=True).content.decode())


def test_finished_batches_are_deleted_with_all_that_belongs_to_them(client):
    one, two = ended(*[job_of(jobs.succeed)] * 3), ended(part(job_of(jobs.succeed)))
    asked = client.get(f"{BATCHES}{one.pk}/delete/", follow=True)
    assert "3 jobs will be deleted with them." in asked.content.decode()
    assert "1 batch was deleted." in confirmed(client, asked)
    assert not Batch.objects.filter(pk=one.pk).exists() and not BatchJob.objects.filter(batch=one.pk).exists()
    delete(client, two)
    assert not Batch.objects.exists() and not BatchJob.objects.exists()
    entries = LogEntry.objects.filter(action_flag=DELETION)
    assert {entry.object_id for entry in entries} == {str(one.pk), str(two.pk)}


def test_a_batch_is_not_deleted_before_its_end_nor_without_the_one_that_it_is_part_of(client):
    active, done = waiting(name="active"), ended(part(job_of(jobs.succeed), name="part"))
    child = Batch.objects.get(name="part")
    for batch, reason in ((active, "has not finished"), (child, "part of another batch; delete that one")):
        asked = client.get(f"{BATCHES}operation/delete/", {"row": batch.pk})
        assert reason in asked.content.decode() and not asked.context["sentences"]
        forged = client.post(f"{BATCHES}operation/delete/", {"chosen": f"{batch.pk}.{batch.run}"}, follow=True)
        assert f"Batch {batch.pk} " in forged.content.decode()
    assert (
        "2 of those that were selected will be left alone"
        in client.post(
            BATCHES,
            {"action": "delete_selected", "_selected_action": [str(batch.pk) for batch in (active, child, done)]},
        ).content.decode()
    )
    assert Batch.objects.count() == 3


def test_a_batch_that_runs_again_meanwhile_is_kept_and_the_page_says_so(client, monkeypatch):
    def refuse(batch: Batch) -> None:
        raise BatchError(f"Batch {batch.pk} has not ended.")

    batch = ended(job_of(jobs.succeed))
    monkeypatch.setattr(Batch, "delete", refuse)
    html = delete(client, batch)
    assert f"Batch {batch.pk} has not ended." in html and "was deleted" not in html
    assert Batch.objects.exists() and not LogEntry.objects.exists()


def test_deleting_needs_its_permission():
    batch = ended(job_of(jobs.succeed))
    client = client_with("view_batch")
    assert "delete_selected" not in client.get(BATCHES).content.decode()
    url = f"{BATCHES}operation/delete/"
    assert client.get(url, {"row": batch.pk}).status_code == 403
    assert client.post(url, {"chosen": f"{batch.pk}.1"}).status_code == 403
    assert client.post(f"{BATCHES}{batch.pk}/delete/", {"post": "yes"}, follow=True).status_code == 403
    assert Batch.objects.exists()


# Whatever the texts are


def test_hostile_text_does_no_harm(client):
    """HTML, control characters and the like in every text that a user can bring in."""
    text = f"{SCRIPT}\u202e\x1b[31m"
    batch = ended(
        job_of(jobs.fail, text).options(description=text),
        job_of(jobs.echo, text, **{SCRIPT: text}).options(keep_result=True),
        name=text,
        key=text,
        metadata={SCRIPT: text},
        allow_failures=True,
        on_finish=job_of(jobs.fail, text).options(description=text),
    )
    waiting(name=text).cancel(reason=text)
    urls = [
        BATCHES,
        JOBS,
        f"{JOBS}?batch={batch.pk}",
        f"{BATCHES}?q={SCRIPT}",
        f"{BATCHES}operation/delete/?row={batch.pk}",
    ]
    urls += [of(batch) for batch in Batch.objects.all()] + [of_job(job) for job in BatchJob.objects.all()]
    urls += [f"{BATCHES}operation/retry/?row={batch.pk}", f"{BATCHES}{batch.pk}/history/"]
    for url in urls:
        html = client.get(url).content.decode()
        assert "script&gt;alert(1)" in html or url.startswith(JOBS) or "history" in url
        assert SCRIPT not in html, url


def test_long_texts_are_cut(client):
    batch = waiting()
    batch.jobs.update(args=["x" * 500_000], error_message="y" * 10_000, traceback="z" * 10_000)
    assert len(client.get(of_job(batch.jobs.get())).content) < 100_000


def test_pages_have_no_inline_script_or_style_of_ours(client):
    """A strict Content-Security-Policy allows none."""
    batch = ended(job_of(jobs.fail), name="x")
    urls = (BATCHES, JOBS, of(batch), of_job(batch.jobs.get()), f"{BATCHES}operation/retry/?row={batch.pk}")
    for url in urls:
        html = client.get(url).content.decode()
        assert not re.search(r"""<script(?![^>]*\bsrc=)|<style|\son\w+=|\sstyle=""", html), url
