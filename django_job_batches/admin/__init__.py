"""The pages of the admin. A project replaces a class by unregistering it and registering a subclass of it."""

from __future__ import annotations

from django_job_batches.admin.batches import BatchAdmin
from django_job_batches.admin.jobs import JobAdmin

__all__ = ("BatchAdmin", "JobAdmin")
