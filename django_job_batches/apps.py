from __future__ import annotations

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _


class JobBatchesConfig(AppConfig):
    name = "django_job_batches"
    verbose_name = _("Job batches")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from django_job_batches import checks  # noqa: F401  registers the system checks
