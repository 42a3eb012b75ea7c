from __future__ import annotations

from django.apps import AppConfig
from django.conf import settings


class ChaosConfig(AppConfig):
    name = "tests.chaos"
    label = "tests_chaos"

    def ready(self) -> None:
        from tests.chaos import points

        points.break_promise(settings.CHAOS_BREAK)
        if settings.CHAOS_RATE:
            points.lay(settings.CHAOS_RATE)
