"""A page with a button that dispatches the import."""

from django.contrib import admin, messages
from django.contrib.admin.views.decorators import staff_member_required
from django.contrib.auth.decorators import permission_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_http_methods

from example_project.airports.forms import ImportForm
from example_project.airports.imports import Variant, start_import
from example_project.airports.models import Airport


@staff_member_required
@permission_required("airports.add_airportimport", raise_exception=True)
@require_http_methods(["GET", "POST"])
def import_airports(request: HttpRequest) -> HttpResponse:
    """Show the button; pressed, dispatch the import and go to its batch in the admin."""
    form = ImportForm(request.POST or None)
    if form.is_valid():
        batch = start_import(Variant(form.cleaned_data["variant"]), user=request.user)
        messages.success(request, f"{batch.name} was dispatched.")
        return redirect(reverse("admin:django_job_batches_batch_change", args=[batch.pk]))
    context = {**admin.site.each_context(request), "title": "Import airports", "form": form}
    return render(request, "airports/import.html", {**context, "airport_count": Airport.objects.count()})
