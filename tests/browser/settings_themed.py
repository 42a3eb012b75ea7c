"""The tests' settings with django-admin-interface, which has inline styles: no policy here."""

from tests.browser.settings import *  # noqa: F403
from tests.settings import INSTALLED_APPS as TEST_APPS
from tests.settings import MIDDLEWARE as TEST_MIDDLEWARE

INSTALLED_APPS = ["admin_interface", "colorfield", *TEST_APPS]
MIDDLEWARE = ["django.middleware.locale.LocaleMiddleware", *TEST_MIDDLEWARE]
X_FRAME_OPTIONS = "SAMEORIGIN"
SILENCED_SYSTEM_CHECKS = ["security.W019"]
