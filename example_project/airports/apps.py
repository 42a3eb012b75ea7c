from django.apps import AppConfig


class AirportsConfig(AppConfig):
    name = "example_project.airports"
    label = "airports"
