from django.urls import path

from example_project.airports.views import import_airports

app_name = "airports"

urlpatterns = [path("import/", import_airports, name="import")]
