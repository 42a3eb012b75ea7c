from django.contrib import admin
from django.http import HttpRequest

from example_project.airports.models import Airport, AirportImport


@admin.register(Airport)
class AirportAdmin(admin.ModelAdmin):  # type: ignore[type-arg]  # cannot be subscripted at run time
    list_display = ("icao", "iata", "name", "city", "country", "time_zone")
    list_filter = ("country",)
    search_fields = ("icao", "iata", "name", "city")
    raw_id_fields = ("last_import",)


@admin.register(AirportImport)
class AirportImportAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    list_display = ("id", "created_at", "row_count", "part_count", "outcome", "clean_ups")
    list_filter = ("outcome",)

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False  # the import page does it

    def has_change_permission(self, request: HttpRequest, obj: AirportImport | None = None) -> bool:
        return False
