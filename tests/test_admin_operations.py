"""Cancelling and retrying in the admin: who may, what the page says before, and what has happened after."""

from __future__ import annotations

import re
import uuid
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client

from django_job_batches import batch_of, chain, job_of
from django_job_batches.models import Batch
from tests import jobs
from tests.test_admin import BATCHES, SCRIPT, client, client_with, copies, ended, of, page, part, superuser, waiting

__all__ = ("client", "superuser")  # fixtures

pytestmark = pytest.mark.usefixtures("live_db", "record")

ACTIONS = {
    "cancel": "cancel_selected",
    "stop": "cancel_and_stop_selected",
    "retry": "retry_selected",
    "delete": "delete_selected",
}


def url_of(name: str, batch: Batch | None = None) -> str:
    return f"{BATCHES}operation/{name}/" + (f"?row={batch.pk}" if batch else "")


def select(client: Client, name: str, *batches: Batch, url: str = BATCHES, **data):
    """Choose an action for these batches in the list; the response is the page that asks."""
    selected = {"action": ACTIONS[name], "_selected_action": [str(batch.pk) for batch in batches]}
    response = client.post(url, {**selected, **data})
    assert response.status_code == 200, response.headers
    return response


def confirm(client: Client, asked, **data):
    """Say yes on a page that asks; the response is the page that follows."""
    assert asked.context["sentences"], "there is nothing to confirm"
    return client.post(asked.context["action_url"], {"chosen": asked.context["chosen"], **data}, follow=True)


def sentences(response) -> str:
    return " ".join(response.context["sentences"])


def told(response) -> list[str]:
    return [str(message) for message in response.context["messages"]]


# Cancelling


def test_cancelling_asks_first_and_then_reports_what_has_happened(client, superuser):
    batches = [waiting(4, name="Import 7"), waiting(2)]
    over = ended(job_of(jobs.succeed), name="Export")
    asked = select(client, "cancel", *batches, over)
    assert "2 batches will be cancelled. 6 jobs have not ended." in sentences(asked)
    assert "None of them is running now." in sentences(asked)
    html = asked.content.decode()
    assert "already succeeded" in html and "1 of those that were selected will be left alone." in html
    assert Batch.objects.filter(status="cancelled").count() == 0
    assert told(confirm(client, asked, reason="wrong file")) == ["2 batches were cancelled."]
    for batch in batches:
        batch.refresh_from_db()
        assert (batch.status, batch.cancel_reason, batch.pending_jobs) == ("cancelled", "wrong file", 0)
    assert "wrong file" in page(client, of(batches[0]))
    assert {entry.user_id for entry in LogEntry.objects.all()} == {superuser.pk}
    assert LogEntry.objects.filter(change_message__contains="wrong file").count() == 2


def test_batches_nested_in_a_cancelled_one_are_counted_and_cancelled(client):
    inner = batch_of([job_of(jobs.succeed)] * 3)
    batch = batch_of([chain(inner, batch_of([inner, job_of(jobs.succeed)])), job_of(jobs.succeed)]).dispatch()
    asked = select(client, "cancel", batch)
    assert "1 batch will be cancelled. So will 3 batches nested in them. 8 jobs have not ended." in sentences(asked)
    confirm(client, asked)
    assert set(Batch.objects.values_list("status", flat=True)) == {"cancelled"}


def test_a_second_click_cancels_nothing_more(client):
    batch = waiting()
    asked = select(client, "cancel", batch)
    confirm(client, asked, reason="first")
    assert "1 was left alone" in told(confirm(client, asked, reason="second"))[0]
    batch.refresh_from_db()
    assert batch.cancel_reason == "first" and LogEntry.objects.count() == 1


def test_a_run_that_nobody_has_looked_at_is_not_cancelled(client):
    """Somebody else has cancelled and retried it while the page was open."""
    batch = waiting()
    asked = select(client, "cancel", batch)
    batch.cancel()
    assert batch.retry() == 1
    assert "1 was left alone" in told(confirm(client, asked))[0]
    batch.refresh_from_db()
    assert batch.run == 2 and not batch.is_decided


def test_what_runs_is_stopped_if_that_was_chosen(client, workers, wait_until):
    batch = batch_of([job_of(jobs.sleep, 60), job_of(jobs.succeed)]).dispatch()
    workers()
    wait_until(lambda: batch.jobs.filter(status="running").exists())
    asked = select(client, "cancel", batch)
    assert "1 job is running now. It will end by itself." in sentences(asked)
    asked = select(client, "stop", batch)
    assert "1 job is running now. It will be stopped in the middle of its work." in sentences(asked)
    assert told(confirm(client, asked)) == ["1 batch was cancelled."]
    wait_until(lambda: Batch.objects.get(pk=batch.pk).is_finished)
    assert list(batch.jobs.values_list("status", flat=True)) == ["cancelled", "cancelled"]


def test_cancelling_works_while_redis_is_away(client, redis_down):
    batch = waiting(2)
    batch.jobs.filter(pk=batch.jobs.earliest("pk").pk).update(status="running", attempts=1)
    with redis_down():
        asked = select(client, "stop", batch)
        assert told(confirm(client, asked, reason="wrong file")) == ["1 batch was cancelled."]
    batch.refresh_from_db()
    assert (batch.status, batch.cancel_reason, batch.cancelled_jobs) == ("cancelled", "wrong file", 1)
    assert LogEntry.objects.count() == 1


def test_no_lock_is_held_until_the_response_where_requests_are_transactions(client, monkeypatch):
    """A project with ATOMIC_REQUESTS: what is done here still commits by itself."""
    inside = []
    cancel = Batch.cancel

    def spy(batch: Batch, **options: Any) -> bool:
        inside.append(connection.in_atomic_block)
        return cancel(batch, **options)

    monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", True)
    monkeypatch.setattr(Batch, "cancel", spy)
    confirm(client, client.get(url_of("cancel", waiting())))
    assert inside == [False]


def test_a_deleted_batch_is_left_alone(client):
    batch = ended(job_of(jobs.fail))
    asked = select(client, "retry", batch)
    batch.delete()
    assert "1 was left alone" in told(confirm(client, asked))[0]


# Retrying


def test_retrying_asks_first_and_then_reports_what_has_happened(client, superuser, record):
    batches = [ended(*[job_of(jobs.fail)] * 2, job_of(jobs.succeed), name=name, allow_failures=2) for name in "ab"]
    active, fine = waiting(), ended(job_of(jobs.succeed))
    asked = select(client, "retry", *batches, active, fine)
    assert "2 batches will run again. 4 failed or cancelled jobs will run." in sentences(asked)
    html = asked.content.decode()
    assert "has not finished yet" in html and "nothing in it failed or was cancelled" in html
    assert "2 of those that were selected will be left alone." in html
    assert told(confirm(client, asked)) == ["2 batches run again, with 4 items."]
    assert record.count("fail") == 8 and record.count("succeed") == 3
    assert LogEntry.objects.filter(user=superuser, change_message__startswith="Retried 2").count() == 2


def test_a_second_click_retries_nothing_more(client, record):
    batch = ended(job_of(jobs.fail))
    asked = select(client, "retry", batch)
    confirm(client, asked)
    assert "1 was left alone" in told(confirm(client, asked))[0]
    batch.refresh_from_db()
    assert batch.run == 2 and batch.is_finished and record.count("fail") == 2


def test_failures_in_nested_batches_are_counted_and_retried(client, record):
    batch = ended(part(job_of(jobs.fail), job_of(jobs.fail), allow_failures=1), job_of(jobs.succeed))
    child = Batch.objects.exclude(pk=batch.pk).get()
    asked = select(client, "retry", batch, child)
    assert "1 batch will run again. So will 1 batch nested in them." in sentences(asked)
    assert "2 failed or cancelled jobs will run." in sentences(asked)
    assert "part of another batch; retry that one" in asked.content.decode()
    confirm(client, asked)
    assert record.count("fail") == 4


def test_what_cannot_be_retried_any_more_is_an_error_that_says_why(client):
    batch = ended(job_of(jobs.fail), part(job_of(jobs.fail)))
    child = Batch.objects.exclude(pk=batch.pk).get()
    answer = client.post(url_of("retry"), {"chosen": f"{child.pk.hex}.1"}, follow=True)
    assert told(answer) == [f"Batch {child.pk} is part of batch {batch.pk}; retry that one."]


# From the list, from a batch's page


def test_the_list_comes_back_as_it_was(client):
    batch = waiting(name="Import 7")
    asked = select(client, "cancel", batch, url=f"{BATCHES}?q=import&o=2")
    answer = confirm(client, asked)
    assert answer.request["PATH_INFO"] == BATCHES and answer.request["QUERY_STRING"] == "q=import&o=2"
    assert f"{BATCHES}?q=import&amp;o=2" in asked.content.decode()


def test_all_that_the_filter_shows_can_be_selected_at_once(client):
    batch = waiting(name="Import")
    copies(batch, 59)
    other = waiting(name="Export")
    asked = select(client, "cancel", batch, url=f"{BATCHES}?q=import", select_across="1")
    assert "60 batches will be cancelled." in sentences(asked) and "and 40 more" in page_of(asked)
    late = waiting(name="Import, later than the question")
    assert told(confirm(client, asked)) == ["60 batches were cancelled."]
    for batch in (other, late):
        batch.refresh_from_db()
        assert not batch.is_decided


def page_of(response) -> str:
    return re.sub(r"\s+", " ", response.content.decode())


def test_a_batchs_page_offers_what_can_be_done_and_is_come_back_to(client):
    batch = waiting()
    html = client.get(of(batch)).content.decode()
    assert url_of("cancel", batch) in html and url_of("stop", batch) in html and url_of("retry", batch) not in html
    asked = client.get(url_of("cancel", batch))
    assert "1 batch will be cancelled." in sentences(asked)
    answer = confirm(client, asked)
    assert answer.request["PATH_INFO"] == of(batch) and told(answer) == ["1 batch was cancelled."]
    html = answer.content.decode()
    assert url_of("cancel", batch) not in html and url_of("retry", batch) in html
    assert told(confirm(client, client.get(url_of("retry", batch)))) == ["1 batch runs again, with 1 item."]


def test_nothing_to_do_is_said_and_cannot_be_confirmed(client):
    asked = client.get(url_of("cancel", ended(job_of(jobs.succeed))))
    html = asked.content.decode()
    assert "There is nothing to do" in html and 'name="chosen"' not in html


def test_looking_changes_nothing(client):
    batch = waiting()
    for name in ACTIONS:
        client.get(url_of(name, batch))
        client.get(url_of(name), {"row": batch.pk, "chosen": f"{batch.pk.hex}.1"})
        select(client, name, batch)
    batch.refresh_from_db()
    assert batch.status == "queued" and not LogEntry.objects.exists()


# Who may


def test_without_the_permission_nobody_sees_or_does_it(record):
    viewer = client_with("view_batch", "view_batchjob")
    batches = {"cancel": waiting(), "stop": waiting(), "retry": ended(job_of(jobs.fail))}
    for name, batch in batches.items():
        assert ACTIONS[name] not in viewer.get(BATCHES).content.decode()
        assert "operation/" not in viewer.get(of(batch)).content.decode()
        viewer.post(BATCHES, {"action": ACTIONS[name], "_selected_action": [str(batch.pk)]})
        assert viewer.get(url_of(name, batch)).status_code == 403
        for url in (url_of(name), url_of(name, batch)):
            assert viewer.post(url, {"chosen": f"{batch.pk.hex}.1"}).status_code == 403
    assert not Batch.objects.filter(cancelled_at__isnull=False).exists() and record.count("fail") == 1


@pytest.mark.parametrize(
    ("permission", "may", "may_not"),
    [("cancel_batch", ("cancel", "stop"), ("retry",)), ("retry_batch", ("retry",), ("cancel", "stop"))],
)
def test_each_permission_allows_what_it_says(permission, may, may_not):
    user = client_with("view_batch", permission)
    batch = waiting()
    html = user.get(BATCHES).content.decode()
    assert all(ACTIONS[name] in html for name in may) and not any(ACTIONS[name] in html for name in may_not)
    assert all(user.get(url_of(name, batch)).status_code == 200 for name in may)
    assert all(user.get(url_of(name, batch)).status_code == 403 for name in may_not)


def test_the_permission_alone_does_not_show_batches():
    batch = waiting()
    user = client_with("cancel_batch")
    assert user.post(url_of("cancel"), {"chosen": f"{batch.pk.hex}.1"}).status_code == 403


def test_the_forms_are_protected_against_forged_requests(superuser):
    batch = waiting()
    forger = Client(enforce_csrf_checks=True)
    forger.force_login(superuser)
    assert forger.post(url_of("cancel"), {"chosen": f"{batch.pk.hex}.1"}).status_code == 403
    assert 'name="csrfmiddlewaretoken"' in forger.get(url_of("cancel", batch)).content.decode()


def test_anonymous_and_ordinary_users_are_sent_to_the_login():
    batch = waiting()
    ordinary = Client()
    ordinary.force_login(User.objects.create_user("ordinary"))
    for visitor in (Client(), ordinary):
        for url in (BATCHES, of(batch), url_of("cancel", batch)):
            assert "/login/" in visitor.get(url).headers["Location"]


# Input that makes no sense


def test_what_does_not_exist_is_not_found(client):
    assert client.get(f"{BATCHES}operation/explode/").status_code == 404
    for key in ("", "no-such", uuid.uuid4(), SCRIPT):
        assert client.get(url_of("cancel"), {"row": key}).status_code == 404


@pytest.mark.parametrize("batches", ["no-such.1", "1", f"{uuid.UUID(int=1).hex}.1.2"])
def test_a_damaged_list_of_batches_is_refused(client, batches):
    assert client.post(url_of("cancel"), {"chosen": batches}).status_code == 400


def test_a_reason_that_cannot_be_stored_is_asked_for_again(client):
    batch = waiting()
    for reason in ("x" * 501, "NUL \0"):
        answer = confirm(client, client.get(url_of("cancel", batch)), reason=reason)
        assert 'class="errorlist"' in answer.content.decode().replace('class="errorlist" id', 'class="errorlist"')
    batch.refresh_from_db()
    assert not batch.is_decided


def test_hostile_text_in_the_reports_does_no_harm(client):
    batch = waiting(name=SCRIPT)
    asked = client.get(url_of("cancel", batch))
    answer = confirm(client, asked, reason=SCRIPT)
    for response in (asked, answer, client.get(f"{BATCHES}{batch.pk}/history/")):
        assert SCRIPT not in response.content.decode()
