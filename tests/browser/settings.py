"""The tests' settings with the stock admin, under a strict Content-Security-Policy."""

from tests.settings import *  # noqa: F403
from tests.settings import MIDDLEWARE as TEST_MIDDLEWARE

ALLOWED_HOSTS = ["127.0.0.1"]
MIDDLEWARE = [
    "tests.browser.policy.StrictPolicy",
    "django.middleware.locale.LocaleMiddleware",
    *TEST_MIDDLEWARE,
]
