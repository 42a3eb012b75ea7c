from __future__ import annotations

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _


class JobBatchesConfig(AppConfig):
    name = "django_job_batches"
    verbose_name = _("Job batches")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        # The checks register themselves; a worker that knows what its horses run spares each of them the import.
        from django_job_batches import checks, execution  # noqa: F401
