from django import forms

from example_project.airports.imports import Variant


class ImportForm(forms.Form):
    variant = forms.ChoiceField(choices=Variant.choices, initial=Variant.PLAIN)
