"""The tests' settings with the stock admin, under a policy that allows nothing inline, and nothing from elsewhere."""

from tests.settings import *  # noqa: F403
from tests.settings import MIDDLEWARE as TEST_MIDDLEWARE

ALLOWED_HOSTS = ["127.0.0.1"]
MIDDLEWARE = [
    "tests.browser.policy.StrictPolicy",
    "django.middleware.locale.LocaleMiddleware",
    *TEST_MIDDLEWARE,
]
POLICY = {
    "default-src": "'none'",
    "script-src": "'self'",
    "style-src": "'self'",
    "img-src": "'self'",
    "font-src": "'self'",
    "connect-src": "'self'",
    "base-uri": "'none'",
    "form-action": "'self'",
    "frame-ancestors": "'none'",
}
