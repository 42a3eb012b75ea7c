"""The same with django-admin-interface, which writes its colours, and a logo, into each page."""

from tests.browser.settings import *  # noqa: F403
from tests.browser.settings import POLICY as STRICT_POLICY
from tests.settings import INSTALLED_APPS as TEST_APPS

INSTALLED_APPS = ["admin_interface", "colorfield", *TEST_APPS]
X_FRAME_OPTIONS = "SAMEORIGIN"
SILENCED_SYSTEM_CHECKS = ["security.W019"]
POLICY = {**STRICT_POLICY, "style-src": "'self' 'unsafe-inline'", "img-src": "'self' data:"}
