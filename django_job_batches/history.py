"""Who did what to a batch: Django's own admin log is the record."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.apps import apps

from django_job_batches.models import Batch

if TYPE_CHECKING:
    from django.contrib.auth.base_user import AbstractBaseUser


def record(batch: Batch, by: AbstractBaseUser | None, message: str, *, is_deletion: bool = False) -> None:
    """Note in the admin's log that the user ``by`` did this; nothing where nobody did, or no admin is installed."""
    if by is None or not apps.is_installed("django.contrib.admin"):
        return
    from django.contrib.admin.models import CHANGE, DELETION, LogEntry
    from django.contrib.contenttypes.models import ContentType

    LogEntry.objects.create(
        user_id=by.pk,
        content_type_id=ContentType.objects.get_for_model(Batch).pk,
        object_id=str(batch.pk),
        object_repr=str(batch)[:200],
        action_flag=DELETION if is_deletion else CHANGE,
        change_message=message,
    )
