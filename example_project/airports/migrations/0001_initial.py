# ruff: noqa: RUF012

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="AirportImport",
            fields=[
                (
                    "id",
                    models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                ),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("row_count", models.PositiveIntegerField(default=0)),
                ("part_count", models.PositiveIntegerField(default=0)),
                (
                    "outcome",
                    models.CharField(blank=True, help_text="The status of the batch at the clean-up.", max_length=20),
                ),
                (
                    "clean_ups",
                    models.PositiveIntegerField(default=0, help_text="How often the clean-up has run."),
                ),
            ],
        ),
        migrations.CreateModel(
            name="Airport",
            fields=[
                (
                    "icao",
                    models.CharField(max_length=4, primary_key=True, serialize=False, verbose_name="ICAO code"),
                ),
                ("iata", models.CharField(blank=True, db_index=True, max_length=3, verbose_name="IATA code")),
                ("name", models.CharField(max_length=200)),
                ("city", models.CharField(blank=True, max_length=100)),
                ("country", models.CharField(db_index=True, max_length=2)),
                ("latitude", models.FloatField()),
                ("longitude", models.FloatField()),
                ("elevation", models.FloatField(help_text="Feet above the sea.")),
                ("time_zone", models.CharField(max_length=64)),
                (
                    "last_import",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="airports",
                        to="airports.airportimport",
                    ),
                ),
            ],
            options={
                "ordering": ("icao",),
            },
        ),
        migrations.CreateModel(
            name="CountryCheck",
            fields=[
                (
                    "id",
                    models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                ),
                ("country", models.CharField(max_length=2)),
                ("checks", models.PositiveIntegerField(default=0)),
                (
                    "airport_import",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="country_checks",
                        to="airports.airportimport",
                    ),
                ),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(fields=("airport_import", "country"), name="airports_one_check_each")
                ],
            },
        ),
    ]
