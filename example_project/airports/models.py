"""What is imported, and a record of each import."""

from django.db import models


class AirportImport(models.Model):
    """One import: how many rows it staged, and what became of it."""

    created_at = models.DateTimeField(auto_now_add=True)
    row_count = models.PositiveIntegerField(default=0)
    part_count = models.PositiveIntegerField(default=0)
    outcome = models.CharField(max_length=20, blank=True, help_text="The status of the batch at the clean-up.")
    clean_ups = models.PositiveIntegerField(default=0, help_text="How often the clean-up has run.")

    def __str__(self) -> str:
        return f"Import {self.pk}"


class Airport(models.Model):
    """An airport, by its ICAO code (or the data's own code where it has none)."""

    icao = models.CharField("ICAO code", max_length=4, primary_key=True)
    iata = models.CharField("IATA code", max_length=3, blank=True, db_index=True)
    name = models.CharField(max_length=200)
    city = models.CharField(max_length=100, blank=True)
    country = models.CharField(max_length=2, db_index=True)
    latitude = models.FloatField()
    longitude = models.FloatField()
    elevation = models.FloatField(help_text="Feet above the sea.")
    time_zone = models.CharField(max_length=64)
    last_import = models.ForeignKey(AirportImport, models.PROTECT, related_name="airports")

    class Meta:
        ordering = ("icao",)

    def __str__(self) -> str:
        return f"{self.icao} {self.name}"


class CountryCheck(models.Model):
    """How often a country was checked in an import: the rows that the jobs in locking.py fight over."""

    airport_import = models.ForeignKey(AirportImport, models.CASCADE, related_name="country_checks")
    country = models.CharField(max_length=2)
    checks = models.PositiveIntegerField(default=0)

    class Meta:
        constraints = (models.UniqueConstraint(fields=("airport_import", "country"), name="airports_one_check_each"),)

    def __str__(self) -> str:
        return f"{self.country}: {self.checks}"
